/* What file operations say of the node: `files NODE` prints a line each, the same on a driver's node and on the
 * emulated one. Standard calls only; a folder of its own under /tmp is made and removed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *outcome(long value)
{
    static char text[8][32];
    static int turn;
    char *here = text[turn++ & 7];
    if (value < 0)
        snprintf(here, sizeof text[0], "%s", strerrorname_np(errno));
    else
        snprintf(here, sizeof text[0], "%ld", value);
    return here;
}

/* Opens and closes; "opened" or the errno. */
static const char *opened(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return outcome(fd);
    close(fd);
    return "opened";
}

static const char *kind(const char *path, int (*ask)(const char *, struct stat *))
{
    static char text[8][48];
    static int turn;
    char *here = text[turn++ & 7];
    struct stat s;
    if (ask(path, &s))
        return outcome(-1);
    snprintf(here, sizeof text[0], "%s %u:%u", S_ISCHR(s.st_mode) ? "character" : S_ISDIR(s.st_mode) ? "folder"
             : S_ISLNK(s.st_mode) ? "link" : "other", S_ISCHR(s.st_mode) ? major(s.st_rdev) : 0,
             S_ISCHR(s.st_mode) ? minor(s.st_rdev) : 0);
    return here;
}

static const char *version(int fd)
{
    struct { int numbers[3]; size_t name; char *a; size_t date; char *b; size_t text; char *c; } v;
    memset(&v, 0, sizeof v);
    return ioctl(fd, _IOWR('d', 0, v), &v) ? outcome(-1) : "answered";
}

static void paths(const char *node, char *folder, char *name)
{
    char text[PATH_MAX + 8], here[PATH_MAX];
    printf("stat: %s, lstat: %s\n", kind(node, stat), kind(node, lstat));
    for (const char *const *end = (const char *const[]){"/", "/.", "/..", "/x", NULL}; *end; end++) {
        snprintf(text, sizeof text, "%s%s", node, *end);
        printf("node%s: %s, stat %s\n", *end, opened(text, O_RDWR), kind(text, stat));
    }
    printf("access: %s %s\n", outcome(access(node, R_OK | W_OK)), outcome(access(node, F_OK)));
    printf("folder: %s, directory: %s, exclusive: %s\n", opened(folder, O_RDONLY | O_DIRECTORY),
           opened(node, O_RDWR | O_DIRECTORY), opened(node, O_RDWR | O_CREAT | O_EXCL));
    char *before = getcwd(here, sizeof here);
    printf("chdir to the node: %s, to its folder: %s\n", outcome(chdir(node)), outcome(chdir(folder)));
    printf("getcwd: %s\n", getcwd(text, sizeof text));
    snprintf(text, sizeof text, "../accel/%s", name);
    printf("relative: %s %s, stat %s, missing %s\n", opened(name, O_RDWR), opened(text, O_RDWR),
           kind(name, stat), opened("accel99", O_RDWR));
    int at = open(".", O_RDONLY | O_DIRECTORY);
    if (chdir(before))
        exit(1);
    int fd = openat(at, name, O_RDWR);
    printf("openat: %s, fchdir: %s", version(fd), outcome(fchdir(at)));
    printf(", then %s\n", opened(name, O_RDWR));
    close(fd);
    close(at);
    if (chdir(before))
        exit(1);
}

static void links(const char *node, const char *folder, const char *name)
{
    char mine[] = "/tmp/files-XXXXXX", text[PATH_MAX], target[PATH_MAX];
    if (!mkdtemp(mine) || chdir(mine))
        exit(1);
    if (symlink(node, "node") || symlink("node", "twice") || symlink(folder, "folder") || symlink("loop", "loop"))
        exit(1);
    printf("links: %s %s, stat %s, lstat %s\n", opened("node", O_RDWR), opened("twice", O_RDWR),
           kind("twice", stat), kind("node", lstat));
    printf("not followed: %s, a loop: %s\n", opened("node", O_RDWR | O_NOFOLLOW), opened("loop", O_RDWR));
    snprintf(text, sizeof text, "folder/%s", name);
    printf("through a folder's: %s\n", opened(text, O_RDWR));
    printf("readlink: %s\n", outcome(readlink("node", text, sizeof text)));
    printf("of the node: %s\n", outcome(readlink(node, text, sizeof text)));
    printf("realpath: %s\n", realpath("twice", target));
    unlink("node"), unlink("twice"), unlink("folder"), unlink("loop");
    if (chdir("/") || rmdir(mine))
        exit(1);
}

static void listings(const char *folder, const char *name)
{
    char pattern[PATH_MAX];
    glob_t found;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (!strcmp(entry->d_name, name)) {
            struct stat s;
            printf("listed as: %d, inode agrees: %d\n", entry->d_type,
                   !fstatat(dirfd(dir), name, &s, 0) && s.st_ino == entry->d_ino);
        }
    closedir(dir);
    snprintf(pattern, sizeof pattern, "%s/acc*[0-9]", folder);
    printf("glob: %s\n", glob(pattern, 0, NULL, &found) ? "none" : found.gl_pathv[0]);
}

/* What ends in a name, below a folder: how often, and as what. */
static void seek_out(const char *in, const char *name, int depth, int *folders, int *nodes)
{
    char path[PATH_MAX];
    DIR *dir = opendir(in);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", in, entry->d_name);
        if (!strcmp(entry->d_name, name))
            *(entry->d_type == DT_DIR ? folders : nodes) += 1;
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.' && depth)
            seek_out(path, name, depth - 1, folders, nodes);
    }
    if (dir)
        closedir(dir);
}

/* The folders above: they list the device's, and what is beside it is as near from there as ever. */
static void parents(const char *folder, const char *name)
{
    char above[PATH_MAX], pattern[PATH_MAX + 16], here[PATH_MAX];
    int folders = 0, nodes = 0, none = 0;
    glob_t found;
    struct stat one, other;
    snprintf(here, sizeof here, "%s", folder);
    snprintf(above, sizeof above, "%s", dirname(here));
    seek_out(above, basename((char *)folder), 0, &folders, &none);
    seek_out(above, name, 1, &none, &nodes);
    printf("listed above: %d, found below it: %d, else: %d\n", folders, nodes, none);
    for (int turn = 0; turn < 2; turn++) {
        DIR *dir = opendir(above);
        int count = 0;
        for (struct dirent *entry; dir && (entry = readdir(dir));)
            count += !strcmp(entry->d_name, basename((char *)folder));
        rewinddir(dir);
        for (struct dirent *entry; dir && (entry = readdir(dir));)
            count += !strcmp(entry->d_name, basename((char *)folder));
        closedir(dir);
        printf("%s%d%s", turn ? ", again " : "read twice: ", count, turn ? "\n" : "");
    }
    snprintf(pattern, sizeof pattern, "%s/acc*/%s", above, name);
    printf("glob: %s\n", glob(pattern, 0, NULL, &found) ? "none" : found.gl_pathv[0]);
    snprintf(pattern, sizeof pattern, "%s/..", folder);
    printf("up: stat %d, ", !stat(pattern, &one) && !stat(above, &other) && one.st_ino == other.st_ino);
    snprintf(pattern, sizeof pattern, "%s/../null", folder);
    printf("beside: %s %s\n", kind(pattern, stat), opened(pattern, O_RDWR));
    int at = open(folder, O_RDONLY | O_DIRECTORY), up = openat(at, "..", O_RDONLY | O_DIRECTORY);
    printf("openat up: %d", !fstat(up, &one) && one.st_ino == other.st_ino);
    printf(", %s", fchdir(at) ? outcome(-1) : opened("../null", O_RDONLY));
    printf(", chdir: %s", outcome(chdir("..")));
    printf(" in %s, no folder: %s\n", getcwd(here, sizeof here), opened("null/x", O_RDONLY));
    close(at);
    close(up);
    if (chdir("/"))
        exit(1);
}

static void unopened(const char *node, const char *in, const char *name)
{
    char link[64], byte;
    struct stat s;
    int fd = open(node, O_PATH), folder;
    printf("O_PATH: %s, fstat %d, read %s, ", version(fd), !fstat(fd, &s) && S_ISCHR(s.st_mode),
           outcome(read(fd, &byte, 1)));
    printf("fstatat %d, ", !fstatat(fd, "", &s, AT_EMPTY_PATH) && S_ISCHR(s.st_mode));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = open(link, O_RDWR);
    printf("opened by its link: %s\n", version(again));
    close(again);
    close(fd);
    folder = open(in, O_PATH);
    again = openat(folder, name, O_RDWR);
    printf("from its folder: %s\n", version(again));
    close(again);
    close(folder);
}

static void data(const char *node)
{
    char link[64], text[PATH_MAX] = "", bytes[16] = "";
    int pipes[2], fd = open(node, O_RDWR | O_NONBLOCK), watch = epoll_create1(0);
    struct stat s;
    if (fstat(fd, &s))
        exit(1);
    printf("fstat: %d %u:%u\n", S_ISCHR(s.st_mode), major(s.st_rdev), minor(s.st_rdev));
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, text, sizeof text - 1) < 0)
        exit(1);
    printf("its link: %s\n", text);
    /* A driver's says EAGAIN: it waits for an event. */
    printf("read: %s, pread: %s\n", read(fd, bytes, 16) < 0 ? "nothing" : "something",
           pread(fd, bytes, 16, 0) < 0 ? "nothing" : "something");
    printf("write: %s, pwrite: %s\n", outcome(write(fd, bytes, 16)), outcome(pwrite(fd, bytes, 16, 0)));
    printf("lseek: %s %s\n", outcome(lseek(fd, 4096, SEEK_SET)), outcome(lseek(fd, 0, SEEK_CUR)));
    printf("write after it: %s\n", outcome(write(fd, bytes, 16)));
    if (pipe(pipes))
        exit(1);
    struct pollfd one[3] = {{fd, POLLIN | POLLOUT | POLLPRI, 0}, {pipes[0], POLLIN, 0}, {-1, POLLIN, 9}};
    int count = poll(one, 3, 0);
    printf("poll: %d %d %d %d", count, one[0].revents, one[1].revents, one[2].revents);
    count = poll(one, 2, 30);
    printf(", waiting: %d\n", count);
    if (write(pipes[1], "x", 1) != 1)
        exit(1);
    count = poll(one, 2, -1);
    printf("with something to read beside: %d %d %d\n", count, one[0].revents, one[1].revents);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(pipes[0], &in);
    FD_SET(fd, &out);
    struct timeval none = {0, 0};
    count = select((fd > pipes[0] ? fd : pipes[0]) + 1, &in, &out, NULL, &none);
    printf("select: %d %d %d %d\n", count, FD_ISSET(fd, &in) != 0, FD_ISSET(pipes[0], &in) != 0,
           FD_ISSET(fd, &out) != 0);
    struct epoll_event event = {.events = EPOLLIN};
    printf("epoll: %s", outcome(epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event)));
    printf(" %d\n", epoll_wait(watch, &event, 1, 0));
    printf("still a device: %s\n", version(fd));
    int weak = open(node, O_RDONLY);
    printf("for reading: %s, write %s\n", version(weak), outcome(write(weak, bytes, 1)));
}

/* Calls that say themselves where in a file they read or write, and others that need a file with contents. */
static void contents(const char *node)
{
    char bytes[16] = "", path[] = "/tmp/files-XXXXXX";
    int pipes[2], fd = open(node, O_RDWR | O_NONBLOCK), file = mkstemp(path);
    struct iovec part = {bytes, sizeof bytes};
    loff_t from = 0, to = 0;
    off_t at = 0;
    if (fd < 0 || file < 0 || unlink(path) || pipe(pipes) || write(file, bytes, 16) != 16
        || write(pipes[1], bytes, 8) != 8)
        exit(1);
    printf("preadv: %s, ", preadv(fd, &part, 1, 0) < 0 ? "nothing" : "something");
    printf("preadv2: %s\n", preadv2(fd, &part, 1, 0, 0) < 0 ? "nothing" : "something");
    printf("pwritev: %s, ", outcome(pwritev(fd, &part, 1, 0)));
    printf("pwritev2: %s\n", outcome(pwritev2(fd, &part, 1, 0, 0)));
    printf("sendfile from it: %s, ", outcome(sendfile(pipes[1], fd, &at, 16)));
    printf("to it: %s\n", outcome(sendfile(fd, file, &at, 16)));
    printf("splice from it: %s, ", outcome(splice(fd, &from, pipes[1], NULL, 16, 0)));
    printf("to it: %s\n", outcome(splice(pipes[0], NULL, fd, &to, 8, 0)));
    printf("copied from it: %s, ", outcome(copy_file_range(fd, &from, file, &to, 16, 0)));
    printf("to it: %s\n", outcome(copy_file_range(file, &from, fd, &to, 16, 0)));
    printf("fallocate: %s, ftruncate: %s, ", outcome(fallocate(fd, 0, 0, 4096)), outcome(ftruncate(fd, 0)));
    printf("punched: %s\n", outcome(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096)));
    printf("truncate: %s, by an open: %s\n", outcome(truncate(node, 0)), opened(node, O_RDWR | O_TRUNC));
    printf("fsync: %s, fdatasync: %s, ", outcome(fsync(fd)), outcome(fdatasync(fd)));
    printf("readahead: %s\n", outcome(readahead(fd, 0, 4096)));
    printf("flock: %s, still a device: %s\n", outcome(flock(fd, LOCK_EX | LOCK_NB)), version(fd));
    close(fd);
    close(file);
}

int main(int argc, char **argv)
{
    char first[PATH_MAX], second[PATH_MAX];
    if (argc != 2)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(first, sizeof first, "%s", argv[1]);
    snprintf(second, sizeof second, "%s", argv[1]);
    char *folder = dirname(first), *name = basename(second);
    paths(argv[1], folder, name);
    links(argv[1], folder, name);
    listings(folder, name);
    parents(folder, name);
    unopened(argv[1], folder, name);
    data(argv[1]);
    contents(argv[1]);
    puts("the end");
    return 0;
}
