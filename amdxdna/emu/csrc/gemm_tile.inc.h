/* After tile_rows, whose rows are a constant at every call: its sums stay in registers. */

TARGET static void tile(const void *a, const void *b, unsigned count, size_t k, float *out)
{
    switch (count) {
#define CASE(n) case n: tile_rows(a, b, n, k, out); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11)
#undef CASE
    default: tile_rows(a, b, TILE_ROWS, k, out);
    }
}
