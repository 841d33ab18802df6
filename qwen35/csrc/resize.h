#ifndef RESIZE_H
#define RESIZE_H

#include <stddef.h>
#include <stdint.h>

void resize_rows_u8(const uint8_t *src, size_t lines, size_t in, size_t out, const int32_t *first,
                    const int32_t *count, const int16_t *weights, size_t taps, int precision, uint8_t *dst);
void resize_lines_u8(const uint8_t *src, size_t width, size_t out, const int32_t *first, const int32_t *count,
                     const int16_t *weights, size_t taps, int precision, uint8_t *dst);

#endif
