#ifndef FORMATS_H
#define FORMATS_H

#include <stddef.h>
#include <stdint.h>

int64_t fmt_bfp16_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst);
void fmt_bfp16_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst);
int64_t fmt_bfp6s_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst);
void fmt_bfp6s_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst);

#endif
