/* An LD_PRELOAD shim around the system calls that write an LMDB data file.
 *
 * Two jobs, both controlled by the process it is loaded into (through ctypes):
 *
 *   shim_record(fd)        log every write, sync and acknowledgement to fd, in order; -1 stops
 *   shim_ack(number)       put an acknowledgement into the log
 *   shim_fail(nth, count, error)   the nth write from now on, and count - 1 after it, fail with that errno;
 *                                  error < 0: write half of it, then fail with -error
 *   shim_writes()          number of writes seen so far
 *   shim_syncs()           number of waits for a disk so far, of any file
 *
 * Record: kind (1 byte: 'W' write, 'D' write through a descriptor with O_DSYNC, 'S' sync, 'A' acknowledgement,
 * 'T' truncation), offset (8), length (4), data.  Integers are native.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FD 4096
static char is_data[MAX_FD]; /* 1: data file, 2: the same with O_DSYNC */
static int log_fd = -1;
static long n_writes = 0, n_syncs = 0, fail_from = -1, fail_to = -1;
static int fail_errno = 0;

void shim_record(int fd) { log_fd = fd; }
void shim_fail(long nth, long count, int error) {
    fail_from = n_writes + nth;
    fail_to = fail_from + count;
    fail_errno = error;
}
long shim_writes(void) { return n_writes; }
long shim_syncs(void) { return n_syncs; }

static void put(char kind, uint64_t offset, uint32_t length, const void *data) {
    char head[13];
    if (log_fd < 0) return;
    head[0] = kind;
    memcpy(head + 1, &offset, 8);
    memcpy(head + 9, &length, 4);
    syscall(SYS_write, log_fd, head, 13);
    if (length && data) syscall(SYS_write, log_fd, data, length);
}
void shim_ack(long number) { put('A', (uint64_t)number, 0, NULL); }

static void opened(const char *path, int flags, int fd) {
    size_t n = strlen(path);
    if (fd >= 0 && fd < MAX_FD)
        is_data[fd] = n >= 8 && !strcmp(path + n - 8, "data.mdb") ? ((flags & O_DSYNC) ? 2 : 1) : 0;
}

static int data_kind(int fd) { return fd >= 0 && fd < MAX_FD ? is_data[fd] : 0; }

static int failing(void) {
    long number = n_writes++;
    return number >= fail_from && number < fail_to;
}

#define OPEN_BODY(name)                                                   \
    int mode = 0, fd;                                                     \
    va_list arguments;                                                    \
    va_start(arguments, flags);                                           \
    if (flags & O_CREAT) mode = va_arg(arguments, int);                   \
    va_end(arguments);                                                    \
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);           \
    opened(path, flags, fd);                                              \
    return fd;
int open(const char *path, int flags, ...) { OPEN_BODY(open) }
int open64(const char *path, int flags, ...) { OPEN_BODY(open64) }

int close(int fd) {
    if (fd >= 0 && fd < MAX_FD) is_data[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

static ssize_t data_write(int fd, const struct iovec *parts, int n, off_t offset) {
    size_t total = 0, done = 0;
    char *all;
    ssize_t wrote;
    int i, bad = failing();
    for (i = 0; i < n; i++) total += parts[i].iov_len;
    all = malloc(total ? total : 1);
    for (i = 0; i < n; i++) {
        memcpy(all + done, parts[i].iov_base, parts[i].iov_len);
        done += parts[i].iov_len;
    }
    if (bad && fail_errno < 0) total = total / 2;
    if (bad && fail_errno > 0) {
        free(all);
        errno = fail_errno;
        return -1;
    }
    wrote = syscall(SYS_pwrite64, fd, all, total, offset);
    if (wrote > 0) put(data_kind(fd) == 2 ? 'D' : 'W', (uint64_t)offset, (uint32_t)wrote, all);
    free(all);
    if (bad) {
        errno = -fail_errno;
        return -1;
    }
    return wrote;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
    struct iovec part = {(void *)data, n};
    if (data_kind(fd)) return data_write(fd, &part, 1, offset);
    return syscall(SYS_pwrite64, fd, data, n, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset) { return pwrite(fd, data, n, offset); }
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    if (data_kind(fd)) return data_write(fd, parts, n, offset);
    return syscall(SYS_pwritev, fd, parts, n, offset, 0);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off_t offset) { return pwritev(fd, parts, n, offset); }
ssize_t writev(int fd, const struct iovec *parts, int n) {
    if (data_kind(fd)) {
        off_t at = lseek(fd, 0, SEEK_CUR);
        ssize_t wrote = data_write(fd, parts, n, at);
        if (wrote > 0) lseek(fd, at + wrote, SEEK_SET);
        return wrote;
    }
    return syscall(SYS_writev, fd, parts, n);
}
ssize_t write(int fd, const void *data, size_t n) {
    if (data_kind(fd)) {
        struct iovec part = {(void *)data, n};
        return writev(fd, &part, 1);
    }
    return syscall(SYS_write, fd, data, n);
}
int fsync(int fd) {
    int result = (int)syscall(SYS_fsync, fd);
    n_syncs++;
    if (data_kind(fd) && result == 0) put('S', 0, 0, NULL);
    return result;
}
int fdatasync(int fd) {
    int result = (int)syscall(SYS_fdatasync, fd);
    n_syncs++;
    if (data_kind(fd) && result == 0) put('S', 0, 0, NULL);
    return result;
}
int ftruncate(int fd, off_t size) {
    if (data_kind(fd)) put('T', (uint64_t)size, 0, NULL);
    return (int)syscall(SYS_ftruncate, fd, size);
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
