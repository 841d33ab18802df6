#ifndef AVX2_H
#define AVX2_H

#include "internal.h"

/* Bytes ahead of use that weights are asked for: past what the hardware prefetcher follows across pages. */
enum { PREFETCH = 2048 };

size_t avx2_prepare_bfp16(const uint16_t *x, size_t k, void *out);
size_t avx2_prepare_bfp6s(const uint16_t *x, size_t k, void *out);
void avx2_gemv_bfp16(const gemv_job *job, size_t begin, size_t end);
void avx2_gemv_bfp6s(const gemv_job *job, size_t begin, size_t end);
void avx2_finish(const float *sums, const float *bias, int swiglu, unsigned columns, uint16_t *out);

#endif
