/* Small float32 products of row-major matrices that sit in the caches: C = scale * C + A B. */

enum { MR = HOST_ISA == 512 ? 8 : 4 };

/* rows x (vectors * VL) of C; rows and vectors are constants at every call, so that acc lives in registers. */
INLINE void gemm_tile(const int rows, const int vectors, int k, const float *a, int64_t lda, const float *b,
                      int64_t ldb, float *c, int64_t ldc, float scale)
{
    vf acc[MR][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            acc[i][j] = scale == 0.0f ? v_set(0.0f) : v_mul(v_set(scale), v_load(c + i * ldc + j * VL));
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
                         int64_t ldb, float *c, int64_t ldc, float scale)
{
    int i = 0;
    for (; i + MR <= m; i += MR)
        gemm_tile(MR, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, scale);
    for (; i + 2 <= m; i += 2)
        gemm_tile(2, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, scale);
    if (i < m)
        gemm_tile(1, vectors, k, a + i * lda, lda, b, ldb, c + i * ldc, ldc, scale);
}

/* n a multiple of 16; scale 0 never reads C. */
static void gemm(int m, int n, int k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                 int64_t ldc, float scale)
{
    int j = 0;
    for (; j + 2 * VL <= n; j += 2 * VL)
        gemm_columns(2, m, k, a, lda, b + j, ldb, c + j, ldc, scale);
    for (; j + VL <= n; j += VL)
        gemm_columns(1, m, k, a, lda, b + j, ldb, c + j, ldc, scale);
}

static void matmul(int m, int n, int k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c,
                   int64_t ldc)
{
    gemm(m, n, k, a, lda, b, ldb, c, ldc, 0.0f);
}
