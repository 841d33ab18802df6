/* All return 0 (or an address) on success and -errno on failure; none touches the caller's errno. */
int xdna_ioctl(int fd, unsigned long request, uintptr_t arg);
intptr_t xdna_mmap(uintptr_t address, size_t length, int prot, int flags, int fd, uint64_t offset);
int xdna_munmap(uintptr_t address, size_t length);
void xdna_flush(uintptr_t address, size_t length);
/* 16-bit words, each in a line of its own or not: written, and the lines through to memory; and how many hold
 * `value` there. */
void xdna_mark(const uintptr_t *places, size_t count, uint16_t value);
size_t xdna_marked(const uintptr_t *places, size_t count, uint16_t value, const uintptr_t *ranges, size_t pairs);
int xdna_has_clflushopt(void);
int xdna_vm_read(int pid, uintptr_t remote, void *local, size_t length);
int xdna_vm_write(int pid, uintptr_t remote, const void *local, size_t length);
/* `count` times two ioctls, one after the other, whatever they answer: what a dispatch costs at the least. */
void xdna_ioctl_pairs(int fd, unsigned long first, uintptr_t first_arg, unsigned long second, uintptr_t second_arg,
                      int count);
