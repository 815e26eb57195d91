/* Preloaded into a node by tests (tests/faults/test_faults_disk.py): calls on chosen files fail with EIO, syncs are slow, or the wall clock
 * is wrong.
 *
 * FAULT_ORDERS names a directory. A file `sync` or `read` in it is an order; its text is a part of the paths it concerns. An order is
 * taken by the first call that fits it (the file is removed, so that it happens once) and this call fails with EIO. A failed sync does
 * nothing else; the next one succeeds and tells nothing of it, as Linux does after it has reported an error once. While a file `slow` is
 * there, every sync that it concerns takes SLOW_NS longer. While a file `clock` is there, the wall clock is ahead by as many seconds as it
 * says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOW_NS 150000000

static int fits(const char *what, int fd, char *order, size_t room) {
    const char *orders = getenv("FAULT_ORDERS");
    char part[512], link[64], path[4096];
    if (orders == NULL) return 0;
    snprintf(order, room, "%s/%s", orders, what);
    int file = (int)syscall(SYS_openat, AT_FDCWD, order, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long size = syscall(SYS_read, file, part, sizeof part - 1);
    syscall(SYS_close, file);
    if (size <= 0) return 0;
    part[size] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}

static int ordered(const char *what, int fd) {
    char order[4096];
    return fits(what, fd, order, sizeof order) && unlink(order) == 0;
}

static void slowed(int fd) {
    char order[4096];
    struct timespec longer = {0, SLOW_NS};
    if (fits("slow", fd, order, sizeof order)) nanosleep(&longer, NULL);
}

static long long ahead_s(void) {
    const char *orders = getenv("FAULT_ORDERS");
    char order[4096], text[32];
    if (orders == NULL) return 0;
    snprintf(order, sizeof order, "%s/clock", orders);
    int file = (int)syscall(SYS_openat, AT_FDCWD, order, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    long size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (size <= 0) return 0;
    text[size] = 0;
    return atoll(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += ahead_s();
    return result;
}

#define FAILS(what, fd) \
    if (ordered(what, fd)) { errno = EIO; return -1; }

int fdatasync(int fd) { slowed(fd); FAILS("sync", fd); return (int)syscall(SYS_fdatasync, fd); }
int fsync(int fd) { slowed(fd); FAILS("sync", fd); return (int)syscall(SYS_fsync, fd); }

ssize_t pread64(int fd, void *data, size_t size, off64_t at) { FAILS("read", fd); return syscall(SYS_pread64, fd, data, size, at); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return pread64(fd, data, size, at); }

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    FAILS("read", fd);
    return syscall(SYS_preadv2, fd, parts, count, at, 0L, flags);
}
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) { return preadv64v2(fd, parts, count, at, flags); }
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    FAILS("read", fd);
    return syscall(SYS_preadv, fd, parts, count, at, 0L);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) { return preadv64(fd, parts, count, at); }
