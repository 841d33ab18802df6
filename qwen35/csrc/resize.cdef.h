/* One pass each of a separable resampling of interleaved RGB bytes. `first` and `count` [out] give the source
   range of an output sample, `weights` [out, taps] its fixed-point weights with `precision` fraction bits.
   rows: [lines, in, 3] -> [lines, out, 3] (horizontal); lines: [in, width] -> [out, width] (vertical, `width`
   in bytes). */
void resize_rows_u8(const uint8_t *src, size_t lines, size_t in, size_t out, const int32_t *first,
                    const int32_t *count, const int16_t *weights, size_t taps, int precision, uint8_t *dst);
void resize_lines_u8(const uint8_t *src, size_t width, size_t out, const int32_t *first, const int32_t *count,
                     const int16_t *weights, size_t taps, int precision, uint8_t *dst);
