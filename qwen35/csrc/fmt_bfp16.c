/* bfp16 streams: groups of 8 rows, 72 bytes a block of 8 k; a row's 9 bytes are exponent, 8 mantissas. */
#include "fmt_vector.h"

enum { ROW = 9, BLOCK = 72 };

/* One row's block; returns 0 for a non-finite value. */
FMT_INLINE int encode_block(fmt_u8 bits, uint8_t *dst)
{
    fmt_u8 magnitude = bits & 0x7FFFFFFFu;
    uint32_t e = fmt_max(magnitude) >> 23;
    if (e == 255)
        return 0;
    /* 2^(133 - e) in two factors that are both normal floats; the product of all is exact. */
    fmt_f8 scaled = (fmt_f8)bits * fmt_pow2(e < 7 ? 126 : 133 - (int)e);
    if (e < 7)
        scaled *= fmt_pow2(7 - (int)e);
    scaled = fmt_min8(fmt_round(scaled), (fmt_f8){127, 127, 127, 127, 127, 127, 127, 127});
    fmt_q8 mantissa = __builtin_convertvector(__builtin_convertvector(scaled, fmt_i8), fmt_q8);
    dst[0] = (uint8_t)e;
    memcpy(dst + 1, &mantissa, sizeof mantissa);
    return 1;
}

FMT_INLINE int64_t encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst)
{
    for (size_t group = 0; group < rows; group += 8)
        for (size_t at = 0; at < k; at += 8, dst += BLOCK)
            for (size_t r = 0; r < 8; r++)
                if (!encode_block(fmt_load(src, bf16, (group + r) * stride + at), dst + r * ROW))
                    return (int64_t)(group + r);
    return -1;
}

FMT_CLONES int64_t fmt_bfp16_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k,
                                    uint8_t *dst)
{
    return bf16 ? encode(src, 1, stride, rows, k, dst) : encode(src, 0, stride, rows, k, dst);
}

void fmt_bfp16_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst)
{
    for (size_t i = 0; i < count; i++) {
        size_t row = (size_t)index[i];
        const uint8_t *p = src + row / 8 * (k / 8 * BLOCK) + row % 8 * ROW;
        for (size_t at = 0; at < k; at += 8, p += BLOCK, dst += 8) {
            float scale = fmt_pow2(p[0] - 133);
            for (int j = 0; j < 8; j++)
                dst[j] = (float)(int8_t)p[1 + j] * scale;
        }
    }
}
