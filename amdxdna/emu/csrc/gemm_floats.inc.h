/* How GEMMs over float32 pack A; after TILE_ROWS. */

/* [k][TILE_ROWS] float32; missing rows are left out. */
TARGET static void pack(const uint16_t *const *rows, unsigned count, size_t k, void *out)
{
    float *to = out;
    for (size_t at = 0; at < k; at += 8, to += 8 * TILE_ROWS)
        for (unsigned r = 0; r < count; r++) {
            float v[8] __attribute__((aligned(32)));
            __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(rows[r] + at)));
            _mm256_store_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
            for (unsigned j = 0; j < 8; j++)
                to[j * TILE_ROWS + r] = v[j];
        }
}
