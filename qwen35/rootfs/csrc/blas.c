/* The part of CBLAS that numpy's core is linked with, in plain loops: what stands in for OpenBLAS in an image.
 * Semantics are those of the reference CBLAS (netlib.org/blas, "CBLAS": orders, transpositions, negative
 * increments, an output that is not read where beta is 0), names and 64-bit integers those of the OpenBLAS that
 * numpy's wheels bring along (INTERFACE64, SYMBOLSUFFIX 64_; SYMBOLPREFIX scipy_ from numpy 2.0 on). */
#include "blas.h"

#include <complex.h>
#include <stdbool.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum { ROW_MAJOR = 101, NO_TRANS = 111, CONJ_TRANS = 113, UPPER = 121 };

typedef float complex cfloat;
typedef double complex cdouble;

/* A matrix as its element (i, j) lies: at i * row + j * column. */
struct steps {
    int64_t row, column;
};

static struct steps steps(int order, int trans, int64_t ld)
{
    return (order == ROW_MAJOR) == (trans == NO_TRANS) ? (struct steps){ld, 1} : (struct steps){1, ld};
}

/* Where a vector's first element lies: a negative increment starts at the end. */
static int64_t first(int64_t n, int64_t inc)
{
    return inc < 0 ? (1 - n) * inc : 0;
}

static inline float conj_s(float x) { return x; }
static inline double conj_d(double x) { return x; }
static inline cfloat conj_c(cfloat x) { return conjf(x); }
static inline cdouble conj_z(cdouble x) { return conj(x); }

/* Sums are taken in SUM, which is wider than T for single precision. */
#define KERNELS(K, T, SUM)                                                                                     \
    static SUM dot_##K(int64_t n, const T *x, int64_t incx, const T *y, int64_t incy, bool conjugate)          \
    {                                                                                                          \
        SUM sum = 0;                                                                                           \
                                                                                                               \
        x += first(n, incx), y += first(n, incy);                                                              \
        for (int64_t i = 0; i < n; i++)                                                                        \
            sum += (SUM)(conjugate ? conj_##K(x[i * incx]) : x[i * incx]) * y[i * incy];                       \
        return sum;                                                                                            \
    }                                                                                                          \
                                                                                                               \
    static void put_##K(T *out, T alpha, SUM sum, T beta)                                                      \
    {                                                                                                          \
        *out = beta == 0 ? (T)(alpha * sum) : (T)(alpha * sum + (SUM)beta * *out);                             \
    }                                                                                                          \
                                                                                                               \
    static void gemv_##K(int order, int trans, int64_t m, int64_t n, T alpha, const T *a, int64_t lda,         \
                         const T *x, int64_t incx, T beta, T *y, int64_t incy)                                 \
    {                                                                                                          \
        struct steps at = steps(order, trans, lda);                                                            \
        int64_t rows = trans == NO_TRANS ? m : n, columns = trans == NO_TRANS ? n : m;                         \
                                                                                                               \
        x += first(columns, incx), y += first(rows, incy);                                                     \
        for (int64_t i = 0; i < rows; i++) {                                                                   \
            SUM sum = 0;                                                                                       \
            for (int64_t j = 0; j < columns; j++) {                                                            \
                T value = a[i * at.row + j * at.column];                                                       \
                sum += (SUM)(trans == CONJ_TRANS ? conj_##K(value) : value) * x[j * incx];                     \
            }                                                                                                  \
            put_##K(y + i * incy, alpha, sum, beta);                                                           \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    static void gemm_##K(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, T alpha, const T *a,      \
                         int64_t lda, const T *b, int64_t ldb, T beta, T *c, int64_t ldc)                      \
    {                                                                                                          \
        struct steps at = steps(order, ta, lda), bt = steps(order, tb, ldb), ct = steps(order, NO_TRANS, ldc); \
        enum { COLUMNS = 64 };                                                                                 \
                                                                                                               \
        for (int64_t i = 0; i < m; i++) {                                                                      \
            for (int64_t from = 0; from < n; from += COLUMNS) {                                                \
                int64_t count = n - from < COLUMNS ? n - from : COLUMNS;                                       \
                SUM sums[COLUMNS] = {0};                                                                       \
                for (int64_t l = 0; l < k; l++) {                                                              \
                    T value = a[i * at.row + l * at.column];                                                   \
                    SUM left = ta == CONJ_TRANS ? conj_##K(value) : value;                                     \
                    const T *right = b + l * bt.row + from * bt.column;                                        \
                    for (int64_t j = 0; j < count; j++)                                                        \
                        sums[j] += left * (tb == CONJ_TRANS ? conj_##K(right[j * bt.column])                   \
                                                            : right[j * bt.column]);                           \
                }                                                                                              \
                for (int64_t j = 0; j < count; j++)                                                            \
                    put_##K(c + i * ct.row + (from + j) * ct.column, alpha, sums[j], beta);                    \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    static void syrk_##K(int order, int uplo, int trans, int64_t n, int64_t k, T alpha, const T *a,            \
                         int64_t lda, T beta, T *c, int64_t ldc)                                               \
    {                                                                                                          \
        struct steps at = steps(order, trans, lda), ct = steps(order, NO_TRANS, ldc);                          \
                                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                      \
            for (int64_t j = uplo == UPPER ? i : 0; j < (uplo == UPPER ? n : i + 1); j++) {                    \
                SUM sum = 0;                                                                                   \
                for (int64_t l = 0; l < k; l++)                                                                \
                    sum += (SUM)a[i * at.row + l * at.column] * a[j * at.row + l * at.column];                 \
                put_##K(c + i * ct.row + j * ct.column, alpha, sum, beta);                                     \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
                                                                                                               \
    static void axpy_##K(int64_t n, T alpha, const T *x, int64_t incx, T *y, int64_t incy)                     \
    {                                                                                                          \
        x += first(n, incx), y += first(n, incy);                                                              \
        for (int64_t i = 0; i < n; i++)                                                                        \
            y[i * incy] += alpha * x[i * incx];                                                                \
    }

KERNELS(s, float, double)
KERNELS(d, double, double)
KERNELS(c, cfloat, cdouble)
KERNELS(z, cdouble, cdouble)

/* One function under both of its names. */
#define BOTH(NAME) extern EXPORT __typeof__(scipy_##NAME) NAME __attribute__((alias("scipy_" #NAME)));

/* Scalars are passed by value when real (SCALAR is T), by pointer when complex; VALUE reads one. */
#define INTERFACE(K, T, P, SCALAR, VALUE)                                                                      \
    EXPORT void scipy_cblas_##K##gemv64_(int order, int trans, int64_t m, int64_t n, SCALAR alpha, const P *a, \
                                         int64_t lda, const P *x, int64_t incx, SCALAR beta, P *y,             \
                                         int64_t incy)                                                         \
    {                                                                                                          \
        gemv_##K(order, trans, m, n, VALUE(alpha), a, lda, x, incx, VALUE(beta), y, incy);                     \
    }                                                                                                          \
    EXPORT void scipy_cblas_##K##gemm64_(int order, int ta, int tb, int64_t m, int64_t n, int64_t k,           \
                                         SCALAR alpha, const P *a, int64_t lda, const P *b, int64_t ldb,       \
                                         SCALAR beta, P *c, int64_t ldc)                                       \
    {                                                                                                          \
        gemm_##K(order, ta, tb, m, n, k, VALUE(alpha), a, lda, b, ldb, VALUE(beta), c, ldc);                   \
    }                                                                                                          \
    EXPORT void scipy_cblas_##K##syrk64_(int order, int uplo, int trans, int64_t n, int64_t k, SCALAR alpha,   \
                                         const P *a, int64_t lda, SCALAR beta, P *c, int64_t ldc)              \
    {                                                                                                          \
        syrk_##K(order, uplo, trans, n, k, VALUE(alpha), a, lda, VALUE(beta), c, ldc);                         \
    }                                                                                                          \
    EXPORT void scipy_cblas_##K##axpy64_(int64_t n, SCALAR alpha, const P *x, int64_t incx, P *y,              \
                                         int64_t incy)                                                         \
    {                                                                                                          \
        axpy_##K(n, VALUE(alpha), x, incx, y, incy);                                                           \
    }                                                                                                          \
    BOTH(cblas_##K##gemv64_) BOTH(cblas_##K##gemm64_) BOTH(cblas_##K##syrk64_) BOTH(cblas_##K##axpy64_)

#define REAL_DOT(K, T)                                                                                         \
    EXPORT T scipy_cblas_##K##dot64_(int64_t n, const T *x, int64_t incx, const T *y, int64_t incy)            \
    {                                                                                                          \
        return (T)dot_##K(n, x, incx, y, incy, false);                                                         \
    }                                                                                                          \
    BOTH(cblas_##K##dot64_)

#define COMPLEX_DOT(K, T)                                                                                      \
    EXPORT void scipy_cblas_##K##dotu_sub64_(int64_t n, const void *x, int64_t incx, const void *y,            \
                                             int64_t incy, void *out)                                          \
    {                                                                                                          \
        *(T *)out = (T)dot_##K(n, x, incx, y, incy, false);                                                    \
    }                                                                                                          \
    EXPORT void scipy_cblas_##K##dotc_sub64_(int64_t n, const void *x, int64_t incx, const void *y,            \
                                             int64_t incy, void *out)                                          \
    {                                                                                                          \
        *(T *)out = (T)dot_##K(n, x, incx, y, incy, true);                                                     \
    }                                                                                                          \
    BOTH(cblas_##K##dotu_sub64_) BOTH(cblas_##K##dotc_sub64_)

#define PLAIN(x) (x)
#define CFLOAT(x) (*(const cfloat *)(x))
#define CDOUBLE(x) (*(const cdouble *)(x))

INTERFACE(s, float, float, float, PLAIN)
INTERFACE(d, double, double, double, PLAIN)
INTERFACE(c, cfloat, void, const void *, CFLOAT)
INTERFACE(z, cdouble, void, const void *, CDOUBLE)
REAL_DOT(s, float)
REAL_DOT(d, double)
COMPLEX_DOT(c, cfloat)
COMPLEX_DOT(z, cdouble)
