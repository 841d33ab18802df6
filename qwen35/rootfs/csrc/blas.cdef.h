/* The functions of CBLAS, with 64-bit integers, that numpy's core is linked with. `order` is 101 (rows) or 102
   (columns), `trans` 111 (no), 112 (yes) or 113 (conjugated), `uplo` 121 (upper) or 122. */
void scipy_cblas_sgemv64_(int order, int trans, int64_t m, int64_t n, float alpha, const float *a, int64_t lda,
                          const float *x, int64_t incx, float beta, float *y, int64_t incy);
void scipy_cblas_sgemm64_(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                          int64_t ldc);
void scipy_cblas_ssyrk64_(int order, int uplo, int trans, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, float beta, float *c, int64_t ldc);
void scipy_cblas_saxpy64_(int64_t n, float alpha, const float *x, int64_t incx, float *y, int64_t incy);
float scipy_cblas_sdot64_(int64_t n, const float *x, int64_t incx, const float *y, int64_t incy);
void scipy_cblas_dgemv64_(int order, int trans, int64_t m, int64_t n, double alpha, const double *a, int64_t lda,
                          const double *x, int64_t incx, double beta, double *y, int64_t incy);
void scipy_cblas_dgemm64_(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, double alpha,
                          const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c,
                          int64_t ldc);
void scipy_cblas_dsyrk64_(int order, int uplo, int trans, int64_t n, int64_t k, double alpha, const double *a,
                          int64_t lda, double beta, double *c, int64_t ldc);
void scipy_cblas_daxpy64_(int64_t n, double alpha, const double *x, int64_t incx, double *y, int64_t incy);
double scipy_cblas_ddot64_(int64_t n, const double *x, int64_t incx, const double *y, int64_t incy);
void scipy_cblas_cgemv64_(int order, int trans, int64_t m, int64_t n, const void *alpha, const void *a, int64_t lda,
                          const void *x, int64_t incx, const void *beta, void *y, int64_t incy);
void scipy_cblas_cgemm64_(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, const void *alpha,
                          const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta, void *c,
                          int64_t ldc);
void scipy_cblas_csyrk64_(int order, int uplo, int trans, int64_t n, int64_t k, const void *alpha, const void *a,
                          int64_t lda, const void *beta, void *c, int64_t ldc);
void scipy_cblas_caxpy64_(int64_t n, const void *alpha, const void *x, int64_t incx, void *y, int64_t incy);
void scipy_cblas_cdotu_sub64_(int64_t n, const void *x, int64_t incx, const void *y, int64_t incy,
                             void *out);
void scipy_cblas_cdotc_sub64_(int64_t n, const void *x, int64_t incx, const void *y, int64_t incy,
                             void *out);
void scipy_cblas_zgemv64_(int order, int trans, int64_t m, int64_t n, const void *alpha, const void *a, int64_t lda,
                          const void *x, int64_t incx, const void *beta, void *y, int64_t incy);
void scipy_cblas_zgemm64_(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, const void *alpha,
                          const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta, void *c,
                          int64_t ldc);
void scipy_cblas_zsyrk64_(int order, int uplo, int trans, int64_t n, int64_t k, const void *alpha, const void *a,
                          int64_t lda, const void *beta, void *c, int64_t ldc);
void scipy_cblas_zaxpy64_(int64_t n, const void *alpha, const void *x, int64_t incx, void *y, int64_t incy);
void scipy_cblas_zdotu_sub64_(int64_t n, const void *x, int64_t incx, const void *y, int64_t incy,
                             void *out);
void scipy_cblas_zdotc_sub64_(int64_t n, const void *x, int64_t incx, const void *y, int64_t incy,
                             void *out);
