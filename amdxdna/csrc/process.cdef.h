/* Calls of another process, answered (seccomp, confine.c) or watched (ptrace, ptrace.c): for cffi's cdef and
 * the C compiler. Unless said otherwise a function returns 0 or more, and -errno on failure. */

/* One system call that waits for an answer. */
struct xdna_notice {
    uint64_t id;
    uint32_t pid;  /* the calling thread */
    int32_t nr;
    uint64_t args[6];
    uint64_t dev;  /* of its descriptor's file */
    uint64_t ino;
    char path[4096];
};

/* What the answering side looks for. Lists are NUL-separated and end with an empty string. */
struct xdna_interest {
    uint64_t device;             /* of the files that stand for opens of the node */
    uint64_t node_dev, node_ino; /* the file that stands for the node where it is not open */
    const char *tokens;          /* what a path that concerns the device has in it */
    const char *root;            /* the folder of the device's files */
    const char *listed;          /* folders whose listing is not the kernel's */
    int opens;                   /* of the node, at present */
    uint64_t seen;               /* calls that came */
    int busy;                    /* with the last of them */
    int retired;                 /* takes no more of them */
};

int xdna_confine(int socket);
int xdna_start(const char *path, char *const argv[], char *const environment[]);
int xdna_watch(void);
int xdna_read_string(int pid, uint64_t address, char *text, size_t size);
int xdna_identify(int pid, int fd, uint64_t *device, uint64_t *inode);
int xdna_take_fd(int process, int thread, int fd);
int xdna_open_beneath(int folder, const char *path, int flags);
int xdna_mentions(const char *path, const char *tokens);
int xdna_notice_start(int listener);
int xdna_notice_next(int listener, int stop, struct xdna_interest *interest, struct xdna_notice *n);
int xdna_notice_answer(int listener, uint64_t id, int64_t value, int error, int go_on);
int xdna_notice_give(int listener, uint64_t id, int fd, int close_on_exec, int answer);
int xdna_notice_valid(int listener, uint64_t id);

/* A thread that is made to issue calls. */
struct xdna_injection {
    int tid;
    uint64_t mask;
    uint64_t registers[32];
};

int xdna_inject_attach(struct xdna_injection *in, int tid);
int xdna_inject_wait(struct xdna_injection *in);
int64_t xdna_inject_call(struct xdna_injection *in, int nr, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                         uint64_t e, uint64_t f);
void xdna_inject_drop(struct xdna_injection *in);
int xdna_inject_end(struct xdna_injection *in, int64_t value);

/* What a tracer sees. */
#define XDNA_TRACE_ENTER 1 /* an ioctl or close of a node begins */
#define XDNA_TRACE_EXIT 2  /* an open, ioctl, mmap or close of a node is over, with `value` */
#define XDNA_TRACE_FORK 3  /* `value`: the new thread or process */
#define XDNA_TRACE_EXEC 4
#define XDNA_TRACE_END 5   /* the process ended with wait status `value` */

struct xdna_trace_event {
    int kind;
    int pid;
    int tid;
    int32_t nr;
    uint64_t args[6];
    int64_t value;
    int64_t began; /* CLOCK_MONOTONIC, nanoseconds */
    int64_t ended;
    char path[4096];
};

int xdna_watch_is_seen(void);
struct xdna_tracer;
struct xdna_tracer *xdna_tracer_new(int every_stop, const char *nodes, const char *emulated);
int xdna_tracer_is_node(const struct xdna_tracer *t, int tid, int fd);
void xdna_tracer_free(struct xdna_tracer *t);
int xdna_tracer_seize(struct xdna_tracer *t, int pid);
int xdna_tracer_next(struct xdna_tracer *t, struct xdna_trace_event *e);
int xdna_tracer_fetch(struct xdna_tracer *t, int tid, uint64_t address, void *data, size_t size);
