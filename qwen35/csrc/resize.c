#include "resize.h"

/* The sums are exact in int32: at most 255 * (sum of |weights|) with |weight| < 2^15 and a sum of the weights
 * close to 2^precision <= 2^22 stays below 2^31. */

static inline uint8_t to_u8(int32_t sum, int precision)
{
    int32_t value = sum >> precision;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

void resize_rows_u8(const uint8_t *src, size_t lines, size_t in, size_t out, const int32_t *first,
                    const int32_t *count, const int16_t *weights, size_t taps, int precision, uint8_t *dst)
{
    const int32_t half = precision ? 1 << (precision - 1) : 0;

    for (size_t y = 0; y < lines; y++) {
        const uint8_t *line = src + y * in * 3;
        for (size_t x = 0; x < out; x++) {
            const uint8_t *pixel = line + (size_t)first[x] * 3;
            const int16_t *weight = weights + x * taps;
            int32_t red = half, green = half, blue = half;
            for (int32_t j = 0; j < count[x]; j++, pixel += 3) {
                red += pixel[0] * weight[j];
                green += pixel[1] * weight[j];
                blue += pixel[2] * weight[j];
            }
            *dst++ = to_u8(red, precision);
            *dst++ = to_u8(green, precision);
            *dst++ = to_u8(blue, precision);
        }
    }
}

void resize_lines_u8(const uint8_t *src, size_t width, size_t out, const int32_t *first, const int32_t *count,
                     const int16_t *weights, size_t taps, int precision, uint8_t *dst)
{
    enum { STRIP = 256 }; /* bytes a line: the sums stay in cache and the loops vectorise */
    const int32_t half = precision ? 1 << (precision - 1) : 0;
    int32_t sums[STRIP];

    for (size_t y = 0; y < out; y++)
        for (size_t x = 0; x < width; x += STRIP) {
            const size_t n = width - x < STRIP ? width - x : STRIP;
            const uint8_t *line = src + (size_t)first[y] * width + x;
            for (size_t i = 0; i < n; i++)
                sums[i] = half;
            for (int32_t j = 0; j < count[y]; j++, line += width) {
                const int32_t weight = weights[y * taps + (size_t)j];
                for (size_t i = 0; i < n; i++)
                    sums[i] += line[i] * weight;
            }
            for (size_t i = 0; i < n; i++)
                dst[y * width + x + i] = to_u8(sums[i], precision);
        }
}
