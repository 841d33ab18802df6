/* Encoders return -1, or the first row that holds a non-finite value. Strides and k count elements;
   `bf16` tells the source's type: bf16 bits (1) or float32 (0). Rows are multiples of 8, k of the
   format's block. Decoders read `count` rows of a stream by index. */
int64_t fmt_bfp16_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst);
void fmt_bfp16_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst);
int64_t fmt_bfp6s_encode(const void *src, int bf16, size_t stride, size_t rows, size_t k, uint8_t *dst);
void fmt_bfp6s_decode(const uint8_t *src, size_t k, const int64_t *index, size_t count, float *dst);
