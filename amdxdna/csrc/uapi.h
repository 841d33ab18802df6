/* The amdxdna and DRM ioctl interface, for both cffi's cdef and the C compiler: plain declarations only.
 * Names, field order and numbers are the interface's own (include/uapi/drm/amdxdna_accel.h and drm.h of
 * Linux 7.3.4); tests/binding/test_uapi.py checks every size, offset and number against that header. */

/* ioctl requests: _IOWR('d', 0x40 + n, size) for the driver, _IOWR('d', n, size) for DRM's core. */
#define DRM_IOCTL_VERSION 0xC0406400
#define DRM_IOCTL_GEM_CLOSE 0x40086409
#define DRM_IOCTL_PRIME_HANDLE_TO_FD 0xC00C642D
#define DRM_IOCTL_PRIME_FD_TO_HANDLE 0xC00C642E
#define DRM_IOCTL_SYNCOBJ_DESTROY 0xC00864C0
#define DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT 0xC03064CA
#define DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT_V1 0xC02864CA
#define DRM_IOCTL_AMDXDNA_CREATE_HWCTX 0xC0386440
#define DRM_IOCTL_AMDXDNA_DESTROY_HWCTX 0xC0086441
#define DRM_IOCTL_AMDXDNA_CONFIG_HWCTX 0xC0186442
#define DRM_IOCTL_AMDXDNA_CREATE_BO 0xC0206443
#define DRM_IOCTL_AMDXDNA_GET_BO_INFO 0xC0306444
#define DRM_IOCTL_AMDXDNA_SYNC_BO 0xC0186445
#define DRM_IOCTL_AMDXDNA_EXEC_CMD 0xC0386446
#define DRM_IOCTL_AMDXDNA_GET_INFO 0xC0106447
#define DRM_IOCTL_AMDXDNA_SET_STATE 0xC0106448
#define DRM_IOCTL_AMDXDNA_WAIT_CMD 0x40106449
#define DRM_IOCTL_AMDXDNA_GET_ARRAY 0xC018644A

#define AMDXDNA_INVALID_ADDR 0xFFFFFFFFFFFFFFFF
#define AMDXDNA_INVALID_BO_HANDLE 0

#define AMDXDNA_BO_INVALID 0
#define AMDXDNA_BO_SHARE 1
#define AMDXDNA_BO_DEV_HEAP 2
#define AMDXDNA_BO_DEV 3
#define AMDXDNA_BO_CMD 4

#define AMDXDNA_QOS_REALTIME_PRIORITY 0x100
#define AMDXDNA_QOS_HIGH_PRIORITY 0x180
#define AMDXDNA_QOS_NORMAL_PRIORITY 0x200
#define AMDXDNA_QOS_LOW_PRIORITY 0x280

#define DRM_AMDXDNA_HWCTX_CONFIG_CU 0
#define DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF 1
#define DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF 2

#define SYNC_DIRECT_TO_DEVICE 0
#define SYNC_DIRECT_FROM_DEVICE 1

#define AMDXDNA_CMD_SUBMIT_EXEC_BUF 0
#define AMDXDNA_CMD_SUBMIT_DEPENDENCY 1
#define AMDXDNA_CMD_SUBMIT_SIGNAL 2

#define DRM_AMDXDNA_QUERY_AIE_STATUS 0
#define DRM_AMDXDNA_QUERY_AIE_METADATA 1
#define DRM_AMDXDNA_QUERY_AIE_VERSION 2
#define DRM_AMDXDNA_QUERY_CLOCK_METADATA 3
#define DRM_AMDXDNA_QUERY_SENSORS 4
#define DRM_AMDXDNA_QUERY_HW_CONTEXTS 5
#define DRM_AMDXDNA_QUERY_FIRMWARE_VERSION 8
#define DRM_AMDXDNA_GET_POWER_MODE 9
#define DRM_AMDXDNA_QUERY_TELEMETRY 10
#define DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE 11
#define DRM_AMDXDNA_QUERY_RESOURCE_INFO 12
#define DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE 13

#define DRM_AMDXDNA_SET_POWER_MODE 0
#define DRM_AMDXDNA_WRITE_AIE_MEM 1
#define DRM_AMDXDNA_WRITE_AIE_REG 2
#define DRM_AMDXDNA_SET_FORCE_PREEMPT 3
#define DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT 4

#define DRM_AMDXDNA_HW_CONTEXT_ALL 0
#define DRM_AMDXDNA_HW_LAST_ASYNC_ERR 2
#define DRM_AMDXDNA_BO_USAGE 6

#define AMDXDNA_SENSOR_TYPE_POWER 0
#define AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION 1

#define POWER_MODE_DEFAULT 0
#define POWER_MODE_LOW 1
#define POWER_MODE_MEDIUM 2
#define POWER_MODE_HIGH 3
#define POWER_MODE_TURBO 4

#define AMDXDNA_HWCTX_STATE_IDLE 0
#define AMDXDNA_HWCTX_STATE_ACTIVE 1

#define DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL 1
#define DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT 2

/* DRM core */
struct drm_version {
    int version_major;
    int version_minor;
    int version_patchlevel;
    uint64_t name_len;
    uint64_t name;
    uint64_t date_len;
    uint64_t date;
    uint64_t desc_len;
    uint64_t desc;
};

struct drm_gem_close {
    uint32_t handle;
    uint32_t pad;
};

struct drm_prime_handle {
    uint32_t handle;
    uint32_t flags;
    int32_t fd;
};

struct drm_syncobj_destroy {
    uint32_t handle;
    uint32_t pad;
};

struct drm_syncobj_timeline_wait {
    uint64_t handles;
    uint64_t points;
    int64_t timeout_nsec; /* absolute CLOCK_MONOTONIC */
    uint32_t count_handles;
    uint32_t flags;
    uint32_t first_signaled;
    uint32_t pad;
    uint64_t deadline_nsec;
};

/* hardware contexts */
struct amdxdna_qos_info {
    uint32_t gops;
    uint32_t fps;
    uint32_t dma_bandwidth;
    uint32_t latency;
    uint32_t frame_exec_time;
    uint32_t priority;
};

struct amdxdna_drm_create_hwctx {
    uint64_t ext;
    uint64_t ext_flags;
    uint64_t qos_p;
    uint32_t umq_bo;
    uint32_t log_buf_bo;
    uint32_t max_opc;
    uint32_t num_tiles;
    uint32_t mem_size;
    uint32_t umq_doorbell;
    uint32_t handle;
    uint32_t syncobj_handle;
};

struct amdxdna_drm_destroy_hwctx {
    uint32_t handle;
    uint32_t pad;
};

struct amdxdna_cu_config {
    uint32_t cu_bo;
    uint8_t cu_func;
    uint8_t pad[3];
};

struct amdxdna_hwctx_param_config_cu {
    uint16_t num_cus;
    uint16_t pad[3];
    struct amdxdna_cu_config cu_configs[];
};

struct amdxdna_drm_config_hwctx {
    uint32_t handle;
    uint32_t param_type;
    uint64_t param_val;
    uint32_t param_val_size;
    uint32_t pad;
};

/* buffer objects */
struct amdxdna_drm_va_entry {
    uint64_t vaddr;
    uint64_t len;
};

struct amdxdna_drm_va_tbl {
    int32_t dmabuf_fd;
    uint32_t num_entries;
    struct amdxdna_drm_va_entry va_entries[];
};

struct amdxdna_drm_create_bo {
    uint64_t flags;
    uint64_t vaddr;
    uint64_t size;
    uint32_t type;
    uint32_t handle;
};

struct amdxdna_drm_get_bo_info {
    uint64_t ext;
    uint64_t ext_flags;
    uint32_t handle;
    uint32_t pad;
    uint64_t map_offset;
    uint64_t vaddr;
    uint64_t xdna_addr;
};

struct amdxdna_drm_sync_bo {
    uint32_t handle;
    uint32_t direction;
    uint64_t offset;
    uint64_t size;
};

/* commands */
struct amdxdna_drm_exec_cmd {
    uint64_t ext;
    uint64_t ext_flags;
    uint32_t hwctx;
    uint32_t type;
    uint64_t cmd_handles;
    uint64_t args;
    uint32_t cmd_count;
    uint32_t arg_count;
    uint64_t seq;
};

struct amdxdna_drm_wait_cmd {
    uint32_t hwctx;
    uint32_t timeout;
    uint64_t seq;
};

/* queries */
struct amdxdna_drm_query_aie_status {
    uint64_t buffer;
    uint32_t buffer_size;
    uint32_t cols_filled;
};

struct amdxdna_drm_query_aie_version {
    uint32_t major;
    uint32_t minor;
};

struct amdxdna_drm_query_aie_tile_metadata {
    uint16_t row_count;
    uint16_t row_start;
    uint16_t dma_channel_count;
    uint16_t lock_count;
    uint16_t event_reg_count;
    uint16_t pad[3];
};

struct amdxdna_drm_query_aie_metadata {
    uint32_t col_size;
    uint16_t cols;
    uint16_t rows;
    struct amdxdna_drm_query_aie_version version;
    struct amdxdna_drm_query_aie_tile_metadata core;
    struct amdxdna_drm_query_aie_tile_metadata mem;
    struct amdxdna_drm_query_aie_tile_metadata shim;
};

struct amdxdna_drm_query_clock {
    uint8_t name[16];
    uint32_t freq_mhz;
    uint32_t pad;
};

struct amdxdna_drm_query_clock_metadata {
    struct amdxdna_drm_query_clock mp_npu_clock;
    struct amdxdna_drm_query_clock h_clock;
};

struct amdxdna_drm_query_sensor {
    uint8_t label[64];
    uint32_t input;
    uint32_t max;
    uint32_t average;
    uint32_t highest;
    uint8_t status[64];
    uint8_t units[16];
    int8_t unitm;
    uint8_t type;
    uint8_t pad[6];
};

struct amdxdna_drm_query_hwctx {
    uint32_t context_id;
    uint32_t start_col;
    uint32_t num_col;
    uint32_t pad;
    int64_t pid;
    uint64_t command_submissions;
    uint64_t command_completions;
    uint64_t migrations;
    uint64_t preemptions;
    uint64_t errors;
};

struct amdxdna_drm_get_power_mode {
    uint8_t power_mode;
    uint8_t pad[7];
};

struct amdxdna_drm_set_power_mode {
    uint8_t power_mode;
    uint8_t pad[7];
};

struct amdxdna_drm_query_firmware_version {
    uint32_t major;
    uint32_t minor;
    uint32_t patch;
    uint32_t build;
};

struct amdxdna_drm_get_resource_info {
    uint64_t npu_clk_max;
    uint64_t npu_tops_max;
    uint64_t npu_task_max;
    uint64_t npu_tops_curr;
    uint64_t npu_task_curr;
};

struct amdxdna_drm_attribute_state {
    uint8_t state;
    uint8_t pad[7];
};

struct amdxdna_drm_query_telemetry_header {
    uint32_t major;
    uint32_t minor;
    uint32_t type;
    uint32_t map_num_elements;
    uint32_t map[];
};

struct amdxdna_drm_get_info {
    uint32_t param;
    uint32_t buffer_size;
    uint64_t buffer;
};

struct amdxdna_drm_set_state {
    uint32_t param;
    uint32_t buffer_size;
    uint64_t buffer;
};

struct amdxdna_drm_hwctx_entry {
    uint32_t context_id;
    uint32_t start_col;
    uint32_t num_col;
    uint32_t hwctx_id;
    int64_t pid;
    uint64_t command_submissions;
    uint64_t command_completions;
    uint64_t migrations;
    uint64_t preemptions;
    uint64_t errors;
    uint64_t priority;
    uint64_t heap_usage;
    uint64_t suspensions;
    uint32_t state;
    uint32_t pasid;
    uint32_t gops;
    uint32_t fps;
    uint32_t dma_bandwidth;
    uint32_t latency;
    uint32_t frame_exec_time;
    uint32_t txn_op_idx;
    uint32_t ctx_pc;
    uint32_t fatal_error_type;
    uint32_t fatal_error_exception_type;
    uint32_t fatal_error_exception_pc;
    uint32_t fatal_error_app_module;
    uint32_t pad;
};

struct amdxdna_async_error {
    uint64_t err_code;
    uint64_t ts_us;
    uint64_t ex_err_code;
};

struct amdxdna_drm_bo_usage {
    int64_t pid;
    uint64_t total_usage;
    uint64_t internal_usage;
    uint64_t heap_usage;
};

struct amdxdna_drm_get_array {
    uint32_t param;
    uint32_t element_size;
    uint32_t num_element;
    uint32_t pad;
    uint64_t buffer;
};
