/* GEMM, GEMV and COPY return 0, -ENOMEM, or -ECANCELED after another thread made `*stop` (NULL: nobody does)
   non-zero: a part of the result may be written then. They look at it several times a second. Operands must span
   what stream.py's spans() says, bf16 operands be 2-byte aligned. `isa`: 1 + an index of emu_isa_name(). Runs take
   turns. */
int emu_gemm(uintptr_t a, uintptr_t b, uintptr_t c, size_t rows, size_t k, size_t n, size_t lda,
             size_t c_stride, uint32_t flags, uint32_t format, int threads, int isa, const int *stop);
int emu_gemv(uintptr_t x, uintptr_t w, uintptr_t y, size_t m, size_t k, uint32_t flags,
             uint32_t format, int threads, int isa, const int *stop);
int emu_copy(uintptr_t src, uintptr_t dst, size_t nbytes, uint32_t addend, const int *stop);
/* Reads nbytes (a multiple of 64) on `threads` threads and returns their exclusive-or: a bandwidth probe. */
uint64_t emu_read(uintptr_t src, size_t nbytes, int threads);
/* The index-th variant's name, slowest first, or NULL past the end; whether this CPU runs it. */
const char *emu_isa_name(int index);
int emu_isa_supported(int index);
/* The index of the best supported variant. */
int emu_isa_default(void);
/* Sets by how many nanoseconds the kernel may lengthen timed waits of the calling thread (its timer slack, 50 us by
   default; 1 at least); returns what it was. */
long emu_timer_slack(long nanoseconds);
