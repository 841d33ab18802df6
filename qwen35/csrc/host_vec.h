/* One vector type for the kernels of host_*.inc.h, at the width of HOST_ISA: 512 (AVX-512 F, BW, VL),
   256 (AVX2, FMA, F16C) or 0 (what every compiler offers). Included once a translation unit. */
#ifndef HOST_VEC_H
#define HOST_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if HOST_ISA
#include <immintrin.h>
#endif

#if HOST_BF16
#define HOST_TARGET "avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma,f16c"
#elif HOST_ISA == 512
#define HOST_TARGET "avx512f,avx512bw,avx512vl,avx2,fma,f16c"
#elif HOST_ISA == 256
#define HOST_TARGET "avx2,fma,f16c"
#endif

#ifdef HOST_TARGET
#ifdef __clang__
#if HOST_BF16
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma,f16c"))), apply_to = function)
#elif HOST_ISA == 512
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#endif
#else
#if HOST_BF16
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma,f16c")
#elif HOST_ISA == 512
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#endif
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

INLINE float f32_of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

#if HOST_ISA == 512
typedef __m512 vf;
enum { VL = 16 };
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE void v_stream(float *p, vf a) { _mm512_stream_ps(p, a); }
INLINE vf v_set(float a) { return _mm512_set1_ps(a); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b where either is NaN */
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, 8); }
INLINE vf v_below(vf a, vf b, vf then, vf otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}
INLINE vf v_pow2(vf whole)
{
    __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(whole), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float v_top(vf a) { return _mm512_reduce_max_ps(a); }
INLINE vf v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE void v_store_bf16(uint16_t *p, vf a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
INLINE vf v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void v_store_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
#elif HOST_ISA == 256
typedef __m256 vf;
enum { VL = 8 };
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
INLINE void v_stream(float *p, vf a) { _mm256_stream_ps(p, a); }
INLINE vf v_set(float a) { return _mm256_set1_ps(a); }
INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf v_round(vf a) { return _mm256_round_ps(a, 8); }
INLINE vf v_below(vf a, vf b, vf then, vf otherwise)
{
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE vf v_pow2(vf whole)
{
    __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
INLINE float v_sum(vf a)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
INLINE float v_top(vf a)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE void v_store_bf16(uint16_t *p, vf a)
{
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(low, high));
}
INLINE vf v_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE void v_store_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
#else
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
enum { VL = 4 };
INLINE vf v_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
INLINE void v_stream(float *p, vf a) { v_store(p, a); }
INLINE vf v_set(float a) { return (vf){a, a, a, a}; }
INLINE vf v_add(vf a, vf b) { return a + b; }
INLINE vf v_sub(vf a, vf b) { return a - b; }
INLINE vf v_mul(vf a, vf b) { return a * b; }
INLINE vf v_div(vf a, vf b) { return a / b; }
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf v_pick(vi mask, vf then, vf otherwise)
{
    return (vf)(((vi)then & mask) | ((vi)otherwise & ~mask));
}
INLINE vf v_max(vf a, vf b) { return v_pick((vi)(a > b), a, b); }
INLINE vf v_min(vf a, vf b) { return v_pick((vi)(a < b), a, b); }
INLINE vf v_round(vf a) /* right for |a| < 2^22, which is all that v_exp needs */
{
    vf shift = v_set(12582912.0f);
    return (a + shift) - shift;
}
INLINE vf v_below(vf a, vf b, vf then, vf otherwise) { return v_pick((vi)(a < b), then, otherwise); }
INLINE vf v_pow2(vf whole)
{
    vi biased;
    for (int i = 0; i < VL; i++) /* a NaN has no integer: any power will do */
        biased[i] = whole[i] == whole[i] ? ((int32_t)whole[i] + 127) * (1 << 23) : 0;
    return (vf)biased;
}
INLINE float v_sum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE float v_top(vf a)
{
    float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    return (vf){f32_of_bf16(p[0]), f32_of_bf16(p[1]), f32_of_bf16(p[2]), f32_of_bf16(p[3])};
}
INLINE void v_store_bf16(uint16_t *p, vf a)
{
    for (int i = 0; i < VL; i++)
        p[i] = bf16_of(a[i]);
}
INLINE float f32_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7FFF, bits;
    float value;
    if (magnitude < 0x400) { /* zero and subnormal: an integer of 2^-24 */
        value = (float)magnitude * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (magnitude >= 0x7C00 ? 0x7F800000 | (magnitude & 0x3FF) << 13
                                       : (magnitude << 13) + ((127 - 15) << 23));
    memcpy(&value, &bits, 4);
    return value;
}
INLINE uint16_t f16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return sign | 0x7E00;
    if (magnitude >= 0x477FF000) /* rounds to 2^16 or more */
        return sign | 0x7C00;
    if (magnitude < 0x38800000) { /* subnormal: let the float adder round to a multiple of 2^-24 */
        float shifted, base = 0.5f;
        memcpy(&shifted, &magnitude, 4);
        shifted += base;
        memcpy(&bits, &shifted, 4);
        return sign | (uint16_t)(bits - 0x3F000000);
    }
    magnitude += 0xFFF + ((magnitude >> 13) & 1);
    return sign | (uint16_t)((magnitude - ((127 - 15) << 23)) >> 13);
}
INLINE vf v_load_f16(const uint16_t *p)
{
    return (vf){f32_of_f16(p[0]), f32_of_f16(p[1]), f32_of_f16(p[2]), f32_of_f16(p[3])};
}
INLINE void v_store_f16(uint16_t *p, vf a)
{
    for (int i = 0; i < VL; i++)
        p[i] = f16_of(a[i]);
}
#endif

/* e^a to about 2 ulp; 0 below -87.3, +inf above 88.4, NaN stays NaN. Range reduction by ln 2 in two parts and a
   degree-7 polynomial (Cephes' expf coefficients). */
INLINE vf v_exp(vf a)
{
    vf x = v_min(v_set(89.0f), v_max(v_set(-87.33f), a));
    vf n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    vf r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_fma(v_set(1.9875691500e-4f), r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    return v_below(a, v_set(-87.33f), v_set(0.0f), v_mul(p, v_pow2(n)));
}

/* 2^a for a <= 0 to about 2 ulp; 0 below -126.5, NaN stays NaN. A Taylor polynomial over [-1/2, 1/2]; where the
   power of two is below the normal numbers, its biased exponent is 0 and so is the power. */
INLINE vf v_exp2_down(vf a)
{
    vf x = v_max(v_set(-127.0f), a), n = v_round(x), r = v_sub(x, n);
    vf p = v_fma(v_set(1.5252734e-5f), r, v_set(1.5403530e-4f));
    p = v_fma(p, r, v_set(1.3333558e-3f));
    p = v_fma(p, r, v_set(9.6181291e-3f));
    p = v_fma(p, r, v_set(5.5504109e-2f));
    p = v_fma(p, r, v_set(2.4022651e-1f));
    p = v_fma(p, r, v_set(6.9314718e-1f));
    p = v_fma(p, r, v_set(1.0f));
    return v_mul(p, v_pow2(n));
}

INLINE vf v_sigmoid(vf a)
{
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), a))));
}

INLINE vf v_silu(vf a)
{
    return v_div(a, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), a))));
}

#endif
