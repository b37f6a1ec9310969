/* A disk that does less than it is asked for, or fails: loaded before the C library (LD_PRELOAD).

   It stands in for all that lies in the folder DISK_FOLDER. The file DISK_SETTING holds three numbers: what the disk
   does (the sum of 1: short reads and writes, 2: writing fails, 4: reading fails, 8: no locks, 16: locks that do
   nothing), the error, and in how many of 1000 calls it comes. Without that file the disk is as it should be. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

enum { SHORT = 1, WRITING = 2, READING = 4, NO_LOCKS = 8, EMPTY_LOCKS = 16 };

static unsigned chance(unsigned below) {
    static atomic_ulong state = 88172645463325252UL;
    unsigned long x = state;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    state = x;
    return (unsigned)((x >> 11) % below);
}

static int setting(int *number, int *share) {
    static int (*really_open)(const char *, int, ...);
    static ssize_t (*really_read)(int, void *, size_t);
    if (!really_open) really_open = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    if (!really_read) really_read = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    char text[64] = {0};
    int what = 0, before = errno, file = really_open(getenv("DISK_SETTING"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (really_read(file, text, 63) > 0) sscanf(text, "%d %d %d", &what, number, share);
        close(file);
    }
    errno = before;
    return what;
}

static int does(int what) {
    int number, share;
    return setting(&number, &share) & what;
}

static int fails(int what) {
    int number = EIO, share = 0;
    if (!(setting(&number, &share) & what) || (int)chance(1000) >= share) return 0;
    errno = number;
    return 1;
}

static size_t part(size_t size) { return size > 1 && does(SHORT) ? 1 + chance((unsigned)size) : size; }

static int in_folder(const char *path) {
    const char *folder = getenv("DISK_FOLDER");
    return !strncmp(path, folder, strlen(folder));
}

static int is_ours(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return in_folder(path);
}

ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (!is_ours(file)) return real(file, data, size);
    return fails(WRITING) ? -1 : real(file, data, part(size));
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (!is_ours(file)) return real(file, parts, count);
    if (fails(WRITING)) return -1;
    while (count > 1 && !parts->iov_len) parts++, count--;
    return does(SHORT) ? write(file, parts->iov_base, parts->iov_len) : real(file, parts, count);
}

ssize_t read(int file, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (!is_ours(file)) return real(file, data, size);
    return fails(READING) ? -1 : real(file, data, part(size));
}

ssize_t pread(int file, void *data, size_t size, off_t start) {
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    if (!is_ours(file)) return real(file, data, size, start);
    return fails(READING) ? -1 : real(file, data, part(size), start);
}

int fsync(int file) {
    REAL(int, "fsync", int);
    return is_ours(file) && fails(WRITING) ? -1 : real(file);
}

int flock(int file, int how) {
    REAL(int, "flock", int, int);
    if (is_ours(file) && does(NO_LOCKS)) return errno = ENOSYS, -1;
    return is_ours(file) && does(EMPTY_LOCKS) ? 0 : real(file, how);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return in_folder(to) && fails(WRITING) ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return in_folder(path) && fails(WRITING) ? -1 : real(path, mode);
}

int open(const char *path, int flags, ...) {
    REAL(int, "open", const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return flags & O_CREAT && in_folder(path) && fails(WRITING) ? -1 : real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return open(path, flags | O_LARGEFILE, mode);
}
