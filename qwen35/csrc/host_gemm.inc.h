/* Small float32 products of row-major matrices that sit in the caches: C = A B. */

enum { MR = HOST_ISA == 512 ? 8 : 4 };

/* rows x (vectors * VL) of C; rows and vectors are constants at every call, so that acc lives in registers. */
INLINE void gemm_tile(const int rows, const int vectors, int k, const float *a, int64_t lda, const float *b,
                      int64_t ldb, float *c, int64_t ldc)
{
    vf acc[MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            acc[i][j] = v_set(0.0f);
    for (int p = 0; p < k; p++) {
        vf right[2];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            right[j] = v_load(b + p * ldb + j * VL);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf left = v_set(a[i * lda + p]);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                acc[i][j] = v_fma(left, right[j], acc[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            v_store(c + i * ldc + j * VL, acc[i][j]);
}

INLINE void gemm_columns(const int vectors, int m, int k, const float *a, int64_t lda, const float *b,
                         int64_t ldb, float *c, int64_t ldc)
{
    int i = 0;
    for (; i + MR <= m; i += MR)
        gemm_tile(MR, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    for (; i + 2 <= m; i += 2)
        gemm_tile(2, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
    if (i < m)
        gemm_tile(1, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc);
}

/* n a multiple of 16 */
static void matmul(int m, int n, int k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                   int64_t ldc)
{
    int j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL)
        gemm_columns(2, m, k, a, lda, b + j, ldb, c + j, ldc);
    for (; j + VL <= n; j += VL)
        gemm_columns(1, m, k, a, lda, b + j, ldb, c + j, ldc);
}

/* Products of packed matrices, for the inner loops of a prompt: rows x (vectors * VL) of
   C = factors * C + A B (factors: one a column; NULL: C is not read). Here A's rows are neighbours,
   a[p * lda + i]. Like gemm_tile's, rows and vectors are constants at every call. */
enum { PANEL = 8, PANEL_ROWS = HOST_ISA == 512 ? 8 : 4, PANEL_VECTORS = HOST_ISA ? 3 : 2 };

INLINE void panel_tile(const int rows, const int vectors, int k, const float *a, int64_t lda, const float *b,
                       int64_t ldb, float *c, int64_t ldc, const float *factors)
{
    vf acc[8][PANEL_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++)
            acc[i][j] = factors ? v_mul(v_load(factors + j * VL), v_load(c + i * ldc + j * VL)) : v_set(0.0f);
    for (int p = 0; p < k; p++, a += lda, b += ldb) {
        vf right[PANEL_VECTORS];
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++)
            right[j] = v_load(b + j * VL);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vf left = v_set(a[i]);
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++)
                acc[i][j] = v_fma(left, right[j], acc[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++)
            v_store(c + i * ldc + j * VL, acc[i][j]);
}

/* panel_tile over m rows, an even number, of columns as wide as the registers take best. */
INLINE void panel_rows(const int vectors, int m, int k, const float *a, int64_t lda, const float *b,
                       int64_t ldb, float *c, int64_t ldc, const float *factors)
{
    enum { TALL = HOST_ISA == 512 ? 8 : HOST_ISA == 256 ? 6 : 4 };
    int i = 0;
    for (; i + TALL <= m; i += TALL)
        panel_tile(TALL, vectors, k, a + i, lda, b, ldb, c + i * ldc, ldc, factors);
    for (; i < m; i += 2)
        panel_tile(2, vectors, k, a + i, lda, b, ldb, c + i * ldc, ldc, factors);
}

/* to[j * to_stride + i] = from[i * from_stride + j] of 8 x 8 */
INLINE void transpose8(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
#if HOST_ISA
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(from + i * from_stride);
    for (int i = 0; i < 4; i++) {
        s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 2; i++) {
            r[4 * h + 2 * i] = _mm256_shuffle_ps(s[4 * h + i], s[4 * h + 2 + i], 0x44);
            r[4 * h + 2 * i + 1] = _mm256_shuffle_ps(s[4 * h + i], s[4 * h + 2 + i], 0xEE);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
        _mm256_storeu_ps(to + (4 + i) * to_stride, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
    }
#else
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            to[j * to_stride + i] = from[i * from_stride + j];
#endif
}

/* FMA_CHAINS independent sums of FMAs in registers, `rounds` of each: what no kernel here can beat. */
static float fma_loop(int64_t rounds)
{
    volatile float opaque = 0.5f;
    vf acc[FMA_CHAINS], factor = v_set(opaque), sum = v_set(0.0f);
#pragma GCC unroll 12
    for (int i = 0; i < FMA_CHAINS; i++)
        acc[i] = v_set((float)i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < FMA_CHAINS; i++)
            acc[i] = v_fma(acc[i], factor, factor);
#pragma GCC unroll 12
    for (int i = 0; i < FMA_CHAINS; i++)
        sum = v_add(sum, acc[i]);
    return v_sum(sum);
}

/* Eight bf16 as f32. */
INLINE void load8_bf16(const uint16_t *from, float *to)
{
#if HOST_ISA
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
#else
    for (int i = 0; i < 8; i++)
        to[i] = f32_of_bf16(from[i]);
#endif
}
