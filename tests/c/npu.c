#include "npu.h"

#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

_Noreturn void npu_die(const char *file, int line, const char *what)
{
    printf("not ok: %s:%d: %s (errno %d, %s)\n", file, line, what, errno, strerror(errno));
    fflush(stdout);
    _exit(1);
}

int npu_call(int fd, unsigned long request, void *argument)
{
    int value;
    do
        value = ioctl(fd, request, argument);
    while (value < 0 && errno == EINTR);
    return value < 0 ? errno : 0;
}

int npu_open(const char *node)
{
    return open(node, O_RDWR | O_CLOEXEC);
}

static uint32_t create(int fd, uint32_t type, size_t size)
{
    struct amdxdna_drm_create_bo args = {.size = size, .type = type};
    errno = npu_call(fd, DRM_IOCTL_AMDXDNA_CREATE_BO, &args);
    CHECK(!errno);
    return args.handle;
}

static struct amdxdna_drm_get_bo_info info(int fd, uint32_t handle)
{
    struct amdxdna_drm_get_bo_info args = {.handle = handle};
    errno = npu_call(fd, DRM_IOCTL_AMDXDNA_GET_BO_INFO, &args);
    CHECK(!errno);
    return args;
}

struct bo npu_share(int fd, size_t size, uint32_t type)
{
    struct bo bo = {create(fd, type, size), size, 0, NULL};
    struct amdxdna_drm_get_bo_info before = info(fd, bo.handle);
    bo.host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)before.map_offset);
    CHECK(bo.host != MAP_FAILED);
    struct amdxdna_drm_get_bo_info after = info(fd, bo.handle);
    bo.device = after.xdna_addr == AMDXDNA_INVALID_ADDR ? (uintptr_t)bo.host : after.xdna_addr;
    npu_flush(bo.host, size);
    return bo;
}

/* Firmware wants the heap at a multiple of 64 MiB. */
struct bo npu_heap(int fd)
{
    struct bo bo = {create(fd, AMDXDNA_BO_DEV_HEAP, HEAP_BYTES), HEAP_BYTES, 0, NULL};
    struct amdxdna_drm_get_bo_info where = info(fd, bo.handle);
    char *space = mmap(NULL, 2 * HEAP_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(space != MAP_FAILED);
    char *at = (char *)(((uintptr_t)space + HEAP_BYTES - 1) & ~(HEAP_BYTES - 1));
    bo.host = mmap(at, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)where.map_offset);
    CHECK(bo.host == at);
    bo.device = where.xdna_addr;
    return bo;
}

struct bo npu_dev(int fd, const struct bo *heap, size_t size)
{
    struct bo bo = {create(fd, AMDXDNA_BO_DEV, size), size, 0, NULL};
    struct amdxdna_drm_get_bo_info where = info(fd, bo.handle);
    CHECK(where.map_offset == AMDXDNA_INVALID_ADDR);
    bo.device = where.xdna_addr;
    bo.host = (char *)heap->host + (where.xdna_addr - heap->device);
    return bo;
}

void npu_close_bo(int fd, uint32_t handle)
{
    struct drm_gem_close args = {.handle = handle};
    errno = npu_call(fd, DRM_IOCTL_GEM_CLOSE, &args);
    CHECK(!errno);
}

int npu_context(int fd, uint32_t *context, uint32_t *syncobj)
{
    struct amdxdna_qos_info qos = {.gops = 1, .priority = AMDXDNA_QOS_NORMAL_PRIORITY};
    struct amdxdna_drm_create_hwctx args = {.qos_p = (uintptr_t)&qos, .max_opc = 2048, .num_tiles = 32};
    int failed = npu_call(fd, DRM_IOCTL_AMDXDNA_CREATE_HWCTX, &args);
    *context = args.handle;
    *syncobj = args.syncobj_handle;
    return failed;
}

int npu_destroy(int fd, uint32_t context)
{
    struct amdxdna_drm_destroy_hwctx args = {.handle = context};
    return npu_call(fd, DRM_IOCTL_AMDXDNA_DESTROY_HWCTX, &args);
}

int npu_configure(int fd, uint32_t context, uint32_t pdi)
{
    struct {
        struct amdxdna_hwctx_param_config_cu head;
        struct amdxdna_cu_config cu;
    } block = {.head = {.num_cus = 1}, .cu = {.cu_bo = pdi}};
    struct amdxdna_drm_config_hwctx args = {
        .handle = context, .param_type = DRM_AMDXDNA_HWCTX_CONFIG_CU, .param_val = (uintptr_t)&block,
        .param_val_size = sizeof block};
    return npu_call(fd, DRM_IOCTL_AMDXDNA_CONFIG_HWCTX, &args);
}

int npu_submit(int fd, uint32_t context, uint32_t command, const uint32_t *bos, uint32_t count, uint64_t *seq)
{
    struct amdxdna_drm_exec_cmd args = {
        .hwctx = context, .type = AMDXDNA_CMD_SUBMIT_EXEC_BUF, .cmd_handles = command,
        .args = (uintptr_t)bos, .cmd_count = 1, .arg_count = count};
    int failed = npu_call(fd, DRM_IOCTL_AMDXDNA_EXEC_CMD, &args);
    *seq = args.seq;
    return failed;
}

/* The timeout is a time of CLOCK_MONOTONIC. */
int npu_wait(int fd, uint32_t syncobj, uint64_t point, int64_t nanoseconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct drm_syncobj_timeline_wait args = {
        .handles = (uintptr_t)&syncobj, .points = (uintptr_t)&point,
        .timeout_nsec = now.tv_sec * 1000000000L + now.tv_nsec + nanoseconds, .count_handles = 1,
        .flags = DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT};
    return npu_call(fd, DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT, &args);
}

void npu_flush(const void *address, size_t size)
{
    _mm_mfence();
    for (size_t at = 0; at < size; at += 64)
        _mm_clflush((const char *)address + at);
    _mm_mfence();
}

unsigned char *npu_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    CHECK(file);
    CHECK(!fseek(file, 0, SEEK_END));
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*size);
    CHECK(data && fread(data, 1, *size, file) == *size);
    fclose(file);
    return data;
}

static struct bo load(int fd, const struct bo *heap, const char *path, size_t *bytes)
{
    unsigned char *data = npu_file(path, bytes);
    struct bo bo = npu_dev(fd, heap, (*bytes + PAGE - 1) & ~(PAGE - 1));
    memcpy(bo.host, data, *bytes);
    npu_flush(bo.host, bo.size);
    free(data);
    return bo;
}

void npu_start(struct npu *npu, const char *node, const char *pdi, const char *code)
{
    size_t pdi_bytes;
    npu->fd = npu_open(node);
    CHECK(npu->fd >= 0);
    npu->heap = npu_heap(npu->fd);
    npu->pdi = load(npu->fd, &npu->heap, pdi, &pdi_bytes);
    npu->code = load(npu->fd, &npu->heap, code, &npu->code_bytes);
    errno = npu_context(npu->fd, &npu->context, &npu->syncobj);
    CHECK(!errno);
    errno = npu_configure(npu->fd, npu->context, npu->pdi.handle);
    CHECK(!errno);
}

void npu_pack(const struct npu *npu, const struct bo *command, const struct bo *source, const struct bo *target)
{
    const uint32_t words[] = {
        1 | 16 << 12 | 3u << 28, /* NEW, 16 words follow, START_CU */
        1, 3, 0, (uint32_t)npu->code.device, (uint32_t)(npu->code.device >> 32), (uint32_t)npu->code_bytes,
        (uint32_t)source->device, (uint32_t)(source->device >> 32),
        (uint32_t)target->device, (uint32_t)(target->device >> 32), 0, 0, 0, 0, 0, 0};
    memcpy(command->host, words, sizeof words);
    npu_flush(command->host, sizeof words);
}

uint32_t npu_state(const struct bo *command)
{
    npu_flush(command->host, 64);
    return *(const volatile uint32_t *)command->host & 15;
}
