/* The variant every CPU runs: plain C over the compiler's generic vectors, float32 throughout. */
#include "internal.h"

#include <math.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* the vectors never cross a call */

typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int8_t q8 __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));

enum { TILE_ROWS = 4 };

static int always(void) { return 1; }

INLINE f8 load_bf16(const uint16_t *at) { return (f8)(__builtin_convertvector(*(const h8 *)at, i8) << 16); }

INLINE f8 load_int8(const uint8_t *at)
{
    return __builtin_convertvector(__builtin_convertvector(*(const q8 *)at, i8), f8);
}

INLINE float total(f8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

/* Mantissas of one row of a bfp6s tile (16 k) and the factor they share. */
INLINE float bfp6s_row(const uint8_t *segment, size_t tile, size_t row, uint8_t out[16])
{
    const uint8_t *nib = segment + tile * BFP6S_TILE + row * 8;
    const uint8_t *two = segment + tile * BFP6S_TILE + 64 + row % 4 * 8;
    int s = segment[BFP6S_SCALES + tile * 8 + row], c = 5 + (s & 3), shift = row < 4 ? 0 : 2;
    for (int j = 0; j < 8; j++) {
        int low = ((nib[j] & 15) + 16 * (two[j] >> shift & 3) - 32) * c;
        int high = ((nib[j] >> 4) + 16 * (two[j] >> (shift + 4) & 3) - 32) * c;
        out[j] = (uint8_t)((low + (low >> 1 & 1)) >> 1);
        out[8 + j] = (uint8_t)((high + (high >> 1 & 1)) >> 1);
    }
    return pow2((s >> 2) - 53);
}

INLINE void store_row(const gemv_job *job, size_t row, float sum)
{
    job->y[row] = to_bf16(job->bias ? sum + load_float(job->bias + 4 * row) : sum);
}

static void gemv_bfp16(const gemv_job *job, size_t begin, size_t end)
{
    const uint16_t *x = job->x;
    for (size_t row = begin * 8; row < end * 8; row++) {
        const uint8_t *p = job->w + row / 8 * job->stride + row % 8 * BFP16_ROW;
        f8 sum = {0};
        for (size_t at = 0; at < job->k; at += 8, p += BFP16_BLOCK)
            sum += load_bf16(x + at) * (load_int8(p + 1) * pow2(p[0] - 133));
        store_row(job, row, total(sum));
    }
}

static void gemv_bfp6s(const gemv_job *job, size_t begin, size_t end)
{
    const uint16_t *x = job->x;
    for (size_t row = begin * 8; row < end * 8; row++) {
        const uint8_t *segment = job->w + row / 8 * job->stride;
        f8 sum = {0};
        for (size_t at = 0; at < job->k; at += 128, segment += BFP6S_SEGMENT)
            for (size_t tile = 0; tile < 8; tile++) {
                uint8_t m[16];
                float scale = bfp6s_row(segment, tile, row % 8, m);
                const uint16_t *from = x + at + tile * 16;
                sum += load_bf16(from) * (load_int8(m) * scale);
                sum += load_bf16(from + 8) * (load_int8(m + 8) * scale);
            }
        store_row(job, row, total(sum));
    }
}

/* [k][TILE_ROWS] float32, missing rows zero. */
static void pack(const uint16_t *const *rows, unsigned count, size_t k, void *out)
{
    float *to = out;
    for (size_t i = 0; i < k; i++)
        for (unsigned r = 0; r < TILE_ROWS; r++)
            *to++ = r < count ? from_bf16(rows[r][i]) : 0;
}

static void decode_bfp16(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    memset(panel, 0, k * HALF * sizeof *panel);
    for (size_t g = 0; g < count; g++)
        for (size_t at = 0; at < k; at += 8, groups += BFP16_BLOCK)
            for (size_t r = 0; r < 8; r++) {
                f8 v = load_int8(groups + r * BFP16_ROW + 1) * pow2(groups[r * BFP16_ROW] - 133);
                for (size_t j = 0; j < 8; j++)
                    panel[(at + j) * HALF + g * 8 + r] = v[j];
            }
}

static void decode_bfp6s(const uint8_t *groups, size_t count, size_t k, void *out)
{
    float *panel = out;
    memset(panel, 0, k * HALF * sizeof *panel);
    for (size_t g = 0; g < count; g++)
        for (size_t at = 0; at < k; at += 128, groups += BFP6S_SEGMENT)
            for (size_t tile = 0; tile < 8; tile++)
                for (size_t r = 0; r < 8; r++) {
                    uint8_t m[16];
                    float scale = bfp6s_row(groups, tile, r, m);
                    for (size_t j = 0; j < 16; j++)
                        panel[(at + tile * 16 + j) * HALF + g * 8 + r] = (float)(int8_t)m[j] * scale;
                }
}

static void tile(const void *a, const void *b, unsigned count, size_t k, float *out)
{
    for (size_t part = 0; part < HALF; part += 8) {
        f8 sums[TILE_ROWS] = {{0}};
        const float *x = a, *w = (const float *)b + part;
        for (size_t i = 0; i < k; i++, x += TILE_ROWS, w += HALF)
            for (unsigned r = 0; r < TILE_ROWS; r++)
                sums[r] += *(const f8 *)w * x[r];
        for (unsigned r = 0; r < count; r++)
            *(f8 *)(out + r * PANEL + part) = sums[r];
    }
}

static void finish(const float *sums, const float *bias, epilogue kind, unsigned columns, uint16_t *out)
{
    for (unsigned j = 0; j < (kind == SWIGLU ? HALF : columns); j++) {
        float v = sums[j] + bias[j];
        if (kind == SWIGLU) {
            v = v / (1.0f + expf(-v)) * (sums[HALF + j] + bias[HALF + j]);
        } else if (kind == GELU) {
            v = v < -64.0f ? -64.0f : v; /* the result is zero from -15 on; -infinity would make a NaN */
            v = v / (1.0f + expf(-v * (GELU_X + GELU_X3 * v * v)));
        }
        out[j] = to_bf16(v);
    }
}

const isa_variant isa_portable = {
    .name = "portable",
    .supported = always,
    .gemv = {gemv_bfp16, gemv_bfp6s},
    .tile_rows = TILE_ROWS,
    .element = 4,
    .pack = pack,
    .decode = {decode_bfp16, decode_bfp6s},
    .tile = tile,
    .finish = finish,
};
