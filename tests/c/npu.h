/* What the C programs share: checks, and the calls of the interface. They know the uAPI and nothing else. */
#ifndef NPU_H
#define NPU_H

#include <stddef.h>
#include <stdint.h>

#include "uapi.h"

#define HEAP_BYTES ((size_t)64 << 20)
#define PAGE ((size_t)4096)

/* Ends the program with a line that says what was expected and where. */
#define CHECK(condition) ((condition) ? (void)0 : npu_die(__FILE__, __LINE__, #condition))

_Noreturn void npu_die(const char *file, int line, const char *what);

struct bo {
    uint32_t handle;
    size_t size;
    uint64_t device; /* as packets carry it */
    void *host;
};

struct npu {
    int fd;
    struct bo heap, pdi, code;
    size_t code_bytes;
    uint32_t context, syncobj;
};

/* The errno of an ioctl, 0 when it succeeded; EINTR is retried. */
int npu_call(int fd, unsigned long request, void *argument);

int npu_open(const char *node);
struct bo npu_share(int fd, size_t size, uint32_t type);
struct bo npu_heap(int fd);
struct bo npu_dev(int fd, const struct bo *heap, size_t size);
void npu_close_bo(int fd, uint32_t handle);
int npu_context(int fd, uint32_t *context, uint32_t *syncobj);
int npu_destroy(int fd, uint32_t context);
int npu_configure(int fd, uint32_t context, uint32_t pdi);
int npu_submit(int fd, uint32_t context, uint32_t command, const uint32_t *bos, uint32_t count, uint64_t *seq);
int npu_wait(int fd, uint32_t syncobj, uint64_t point, int64_t nanoseconds);
void npu_flush(const void *address, size_t size);
unsigned char *npu_file(const char *path, size_t *size);

/* Heap, PDI, instructions and one configured context. */
void npu_start(struct npu *npu, const char *node, const char *pdi, const char *code);

/* A START_CU packet that runs the instructions on two buffers. */
void npu_pack(const struct npu *npu, const struct bo *command, const struct bo *source, const struct bo *target);
uint32_t npu_state(const struct bo *command);

#endif
