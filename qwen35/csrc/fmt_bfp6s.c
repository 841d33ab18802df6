/* bfp6s streams: groups of 8 rows; 832 bytes a segment of 128 k: eight tiles of 16 k, 96 bytes each, then
   64 scale bytes, 8 a tile, one a row. Scale s: c = 5 + (s & 3), exponent (s >> 2) + 80;
   value = round_half_even(q * c / 2) * 2^(exponent - 133), q in -32..31. */
#include "fmt_vector.h"

enum { SEGMENT = 832, TILE = 96, SCALES = 768 };
/* Scales tried around the smallest that clips nothing. Steps differ by 12 to 25 percent. On dense weights the
   best is one below to three above; blocks of few values other than zero go further. */
enum { BELOW = 2, ABOVE = 6 };

/* 2^(exponent - 133) of a scale byte. */
FMT_INLINE float unit(int s) { return fmt_pow2((s >> 2) - 53); }

/* The smallest scale whose 31.5 steps reach `amax` > 0 (a positive finite float), unclamped. */
FMT_INLINE int first_scale(float amax)
{
    float step = amax * (1.0f / 31.5f);
    uint32_t bits;
    memcpy(&bits, &step, sizeof bits);
    /* step = f * 2^x with f in [1, 2); a scale's step is c / 4 * 2^(exponent - 132). */
    int x = (int)(bits >> 23) - 127;
    uint32_t quarters = ((bits & 0x7FFFFF) + 0x1FFFFF) >> 21; /* ceil(4 (f - 1)), 0..4 */
    return (x + 132 - 80) * 4 + (int)quarters - 1;
}

typedef struct {
    fmt_f8 q[2];
    float error;
} fmt_fit;

/* The nearest levels of 16 values (in units of 2^(exponent - 133)) and the sum of squared errors. */
FMT_INLINE fmt_fit fit(const fmt_f8 v[2], int c)
{
    const fmt_f8 low = {-32, -32, -32, -32, -32, -32, -32, -32}, high = {31, 31, 31, 31, 31, 31, 31, 31};
    float half = 0.5f * (float)c, inverse = 2.0f / (float)c;
    fmt_fit result;
    fmt_f8 sum = {0};
    for (int h = 0; h < 2; h++) {
        fmt_f8 q = fmt_max8(fmt_min8(fmt_round(v[h] * inverse), high), low);
        fmt_f8 d = v[h] - fmt_round(q * half);
        /* Levels are rounded to integers, so the neighbour on the error's side can be nearer. */
        fmt_f8 one = (fmt_f8)(((fmt_i8)d & (int32_t)0x80000000) | 0x3F800000);
        fmt_f8 q2 = fmt_max8(fmt_min8(q + one, high), low);
        fmt_f8 d2 = v[h] - fmt_round(q2 * half);
        fmt_f8 e = d * d, e2 = d2 * d2;
        fmt_i8 second = e2 < e;
        result.q[h] = (fmt_f8)(((fmt_i8)q2 & second) | ((fmt_i8)q & ~second));
        sum += fmt_min8(e, e2);
    }
    result.error = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    return result;
}

/* Chooses the scale byte of 16 values by least squared error and gives their u = q + 32. */
FMT_INLINE int encode_row(fmt_u8 a, fmt_u8 b, uint8_t u[16], uint8_t *scale)
{
    uint32_t ma = fmt_max(a & 0x7FFFFFFFu), mb = fmt_max(b & 0x7FFFFFFFu);
    uint32_t largest = ma > mb ? ma : mb;
    if (largest >= 0x7F800000u)
        return 0;
    /* Below the finest step of the finest scale everything is zero. */
    if (largest < 0x800000u * 16) {
        memset(u, 32, 16);
        *scale = 0;
        return 1;
    }
    float amax;
    memcpy(&amax, &largest, sizeof amax);
    int first = first_scale(amax), from = first - BELOW, to = first + ABOVE;
    from = from < 0 ? 0 : from > 255 ? 255 : from;
    to = to < 0 ? 0 : to > 255 ? 255 : to;
    fmt_fit best = {0};
    float best_error = 0;
    int best_scale = -1;
    for (int s = from; s <= to && (best_scale < 0 || best_error > 0); s++) {
        float down = fmt_pow2(53 - (s >> 2)), up = unit(s) * (1.0f / amax);
        fmt_f8 v[2] = {(fmt_f8)a * down, (fmt_f8)b * down};
        fmt_fit now = fit(v, 5 + (s & 3));
        float error = now.error * up * up;
        if (best_scale < 0 || error < best_error) {
            best = now;
            best_error = error;
            best_scale = s;
        }
    }
    for (int h = 0; h < 2; h++) {
        fmt_q8 bytes = __builtin_convertvector(__builtin_convertvector(best.q[h] + 32.0f, fmt_i8), fmt_q8);
        memcpy(u + 8 * h, &bytes, 8);
    }
    *scale = (uint8_t)best_scale;
    return 1;
}

FMT_INLINE int64_t encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst)
{
    for (size_t group = 0; group < rows; group += 8)
        for (size_t at = 0; at < k; at += 128, dst += SEGMENT)
            for (size_t tile = 0; tile < 8; tile++) {
                uint8_t *nib = dst + tile * TILE, *two = nib + 64;
                memset(two, 0, 32);
                for (size_t r = 0; r < 8; r++) {
                    size_t from = (group + r) * stride + at + tile * 16;
                    uint8_t u[16];
                    if (!encode_row(fmt_load(src, bf16, from), fmt_load(src, bf16, from + 8), u,
                                    dst + SCALES + tile * 8 + r))
                        return (int64_t)(group + r);
                    unsigned shift = r < 4 ? 0 : 2;
                    for (size_t j = 0; j < 8; j++) {
                        nib[r * 8 + j] = (uint8_t)((u[j] & 15) | u[8 + j] << 4);
                        two[r % 4 * 8 + j] |= (uint8_t)((u[j] >> 4 | (u[8 + j] & 0x30)) << shift);
                    }
                }
            }
    return -1;
}

FMT_CLONES int64_t fmt_bfp6s_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k,
                                    uint8_t *dst)
{
    return bf16 ? encode(src, 1, stride, rows, k, dst) : encode(src, 0, stride, rows, k, dst);
}

void fmt_bfp6s_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst)
{
    for (size_t i = 0; i < count; i++) {
        size_t row = (size_t)index[i], r = row % 8;
        const uint8_t *segment = src + row / 8 * (k / 128 * SEGMENT);
        unsigned shift = r < 4 ? 0 : 2;
        for (size_t at = 0; at < k; at += 128, segment += SEGMENT)
            for (size_t tile = 0; tile < 8; tile++) {
                const uint8_t *nib = segment + tile * TILE + r * 8, *two = segment + tile * TILE + 64 + r % 4 * 8;
                int s = segment[SCALES + tile * 8 + r], c = 5 + (s & 3);
                float scale = unit(s);
                for (size_t h = 0; h < 2; h++)
                    for (size_t j = 0; j < 8; j++) {
                        int high = two[j] >> (shift + 4 * h) & 3;
                        int t = ((nib[j] >> 4 * h & 15) + 16 * high - 32) * c;
                        *dst++ = (float)((t + (t >> 1 & 1)) >> 1) * scale;
                    }
            }
    }
}
