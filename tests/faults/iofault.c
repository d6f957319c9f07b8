/* Preloaded into a process, this makes its n-th I/O call on the files of one database fail, or logs what is written
 * to them and when it is synced. Built and driven by tests/faults/__init__.py; outside of a watch it does nothing. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, TRUNCATE = 16, UNLINK = 32, STAT = 64, LOCK = 128, MAP = 256, MODE = 512 };
enum { SHORT = -1 };
enum { FDS = 8192, NAME = 16 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char prefix[4096], folder[4096];
static char names[FDS][NAME];
static int watching, armed, error, sticky, mask, full;
static long at, count, hits;
static char what[128];
static int log_fd = -1;

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* The part of a watched path behind the database's name, "." for its folder, NULL for other files. */
static const char *name_of(const char *path) {
    if (!watching || !path) return NULL;
    size_t length = strlen(prefix);
    if (!strncmp(path, prefix, length) && strlen(path + length) < NAME) return path[length] ? path + length : "db";
    return strcmp(path, folder) ? NULL : ".";
}

static const char *name_of_fd(int fd) {
    return watching && fd >= 0 && fd < FDS && names[fd][0] ? names[fd] : NULL;
}

static void opened(int fd, const char *name) {
    if (fd >= 0 && fd < FDS) strcpy(names[fd], name ? name : "");
}

/* Count a call; the errno that it has to fail with, SHORT for half a transfer, or 0. */
static int decide(int op, const char *call, const char *name) {
    int answer = 0;
    pthread_mutex_lock(&mutex);
    if (armed && (op & mask) && strcmp(name, ".")) {
        count++;
        /* SQLite takes any failure of a lock on the -shm for "busy" and tries for ten seconds: only once of those. */
        int lasting = sticky && !(op == LOCK && !strcmp(name, "-shm"));
        if (count == at || (at && count > at && (lasting || full))) {
            if (!hits++) snprintf(what, sizeof what, "%s %s", call, name);
            answer = error == SHORT && count > at && op == WRITE ? ENOSPC : error;
            /* Of a disk that fills up the last write is short, and the one after it finds no place at all. */
            full = error == SHORT && op == WRITE && count == at;
        }
    }
    pthread_mutex_unlock(&mutex);
    return answer;
}

static int logged(const char *name) {
    return log_fd >= 0 && strcmp(name, "-shm") && strcmp(name, "-lock") && strncmp(name, "-run-", 5);
}

static void put(const void *data, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    while (length) {
        ssize_t done = real(log_fd, data, length);
        if (done <= 0) abort();
        data = (const char *)data + done;
        length -= done;
    }
}

static void record(char op, const char *name, long long offset, const void *data, size_t length) {
    char head[64];
    int size = snprintf(head, sizeof head, "%c %s %lld %zu\n", op, name, offset, length);
    put(head, size);
    if (data) put(data, length);
}

/* What the test calls. */

void iofault_watch(const char *path) {
    pthread_mutex_lock(&mutex);
    snprintf(prefix, sizeof prefix, "%s", path);
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    watching = 1;
    pthread_mutex_unlock(&mutex);
}

void iofault_arm(long at_, int error_, int sticky_, int mask_) {
    pthread_mutex_lock(&mutex);
    at = at_, error = error_, sticky = sticky_, mask = mask_, armed = 1, count = hits = full = 0, what[0] = 0;
    pthread_mutex_unlock(&mutex);
}

void iofault_disarm(void) { armed = 0; }
long iofault_count(void) { return count; }
long iofault_hits(void) { return hits; }
const char *iofault_what(void) { return what; }

void iofault_log(const char *path) {
    REAL(int, open64, const char *, int, ...);
    log_fd = real(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void iofault_mark(long number) {
    pthread_mutex_lock(&mutex);
    if (log_fd >= 0) record('M', "-", number, NULL, 0);
    pthread_mutex_unlock(&mutex);
}

/* The calls. */

#define FAIL(op, call, name, failed) \
    if (name) { \
        int answer = decide(op, call, name); \
        if (answer > 0) return errno = answer, failed; \
    }

static int open_any(int (*real)(const char *, int, ...), const char *path, int flags, mode_t mode) {
    const char *name = name_of(path);
    FAIL(OPEN, "open", name, -1);
    if (!name) {
        int fd = real(path, flags, mode);
        opened(fd, NULL);
        return fd;
    }
    pthread_mutex_lock(&mutex);
    int made = (flags & O_CREAT) && access(path, F_OK);
    int fd = real(path, flags, mode);
    opened(fd, name);
    if (fd >= 0 && logged(name)) {
        if (made) record('C', name, 0, NULL, 0);
        if (flags & O_TRUNC) record('T', name, 0, NULL, 0);
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

static mode_t mode_in(int flags, va_list list) { return flags & O_CREAT ? va_arg(list, int) : 0; }

#define OPEN_CALL(symbol) \
    int symbol(const char *path, int flags, ...) { \
        REAL(int, symbol, const char *, int, ...); \
        va_list list; \
        va_start(list, flags); \
        mode_t mode = mode_in(flags, list); \
        va_end(list); \
        return open_any(real, path, flags, mode); \
    }
OPEN_CALL(open)
OPEN_CALL(open64)

int close(int fd) {
    REAL(int, close, int);
    opened(fd, NULL);
    return real(fd);
}

#define READ_CALL(symbol, signature, arguments, less, ...) \
    ssize_t symbol signature { \
        REAL(ssize_t, symbol, __VA_ARGS__); \
        const char *name = name_of_fd(fd); \
        if (name) { \
            int answer = decide(READ, #symbol, name); \
            if (answer > 0) return errno = answer, -1; \
            if (answer == SHORT && length > 1) return real less; \
        } \
        return real arguments; \
    }
READ_CALL(read, (int fd, void *data, size_t length), (fd, data, length), (fd, data, length / 2), int, void *, size_t)
READ_CALL(pread, (int fd, void *data, size_t length, off_t offset), (fd, data, length, offset),
          (fd, data, length / 2, offset), int, void *, size_t, off_t)
READ_CALL(pread64, (int fd, void *data, size_t length, off64_t offset), (fd, data, length, offset),
          (fd, data, length / 2, offset), int, void *, size_t, off64_t)

#define WRITE_CALL(symbol, signature, place, arguments, ...) \
    ssize_t symbol signature { \
        REAL(ssize_t, symbol, __VA_ARGS__); \
        const char *name = name_of_fd(fd); \
        if (!name) return real arguments; \
        int answer = decide(WRITE, #symbol, name); \
        if (answer > 0) return errno = answer, -1; \
        if (answer == SHORT) length /= 2; \
        pthread_mutex_lock(&mutex); \
        long long start = place; \
        ssize_t done = real arguments; \
        if (done > 0 && logged(name)) record('W', name, start, data, done); \
        pthread_mutex_unlock(&mutex); \
        return done; \
    }
WRITE_CALL(write, (int fd, const void *data, size_t length), lseek64(fd, 0, SEEK_CUR), (fd, data, length), int,
           const void *, size_t)
WRITE_CALL(pwrite, (int fd, const void *data, size_t length, off_t offset), offset, (fd, data, length, offset), int,
           const void *, size_t, off_t)
WRITE_CALL(pwrite64, (int fd, const void *data, size_t length, off64_t offset), offset, (fd, data, length, offset), int,
           const void *, size_t, off64_t)

#define SYNC_CALL(symbol) \
    int symbol(int fd) { \
        REAL(int, symbol, int); \
        const char *name = name_of_fd(fd); \
        FAIL(SYNC, #symbol, name, -1); \
        if (!name) return real(fd); \
        pthread_mutex_lock(&mutex); \
        int done = real(fd); \
        if (!done && logged(name)) record('S', name, 0, NULL, 0); \
        pthread_mutex_unlock(&mutex); \
        return done; \
    }
SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

#define TRUNCATE_CALL(symbol, type) \
    int symbol(int fd, type length) { \
        REAL(int, symbol, int, type); \
        const char *name = name_of_fd(fd); \
        FAIL(TRUNCATE, #symbol, name, -1); \
        if (!name) return real(fd, length); \
        pthread_mutex_lock(&mutex); \
        int done = real(fd, length); \
        if (!done && logged(name)) record('T', name, length, NULL, 0); \
        pthread_mutex_unlock(&mutex); \
        return done; \
    }
TRUNCATE_CALL(ftruncate, off_t)
TRUNCATE_CALL(ftruncate64, off64_t)

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    const char *name = name_of(path);
    FAIL(UNLINK, "unlink", name, -1);
    if (!name) return real(path);
    pthread_mutex_lock(&mutex);
    int done = real(path);
    if (!done && logged(name)) record('U', name, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return done;
}

#define STAT_CALL(symbol, type) \
    int symbol(const char *path, struct type *found) { \
        REAL(int, symbol, const char *, struct type *); \
        const char *name = name_of(path); \
        FAIL(STAT, #symbol, name, -1); \
        return real(path, found); \
    }
STAT_CALL(stat, stat)
STAT_CALL(stat64, stat64)

#define FSTAT_CALL(symbol, type) \
    int symbol(int fd, struct type *found) { \
        REAL(int, symbol, int, struct type *); \
        const char *name = name_of_fd(fd); \
        FAIL(STAT, #symbol, name, -1); \
        return real(fd, found); \
    }
FSTAT_CALL(fstat, stat)
FSTAT_CALL(fstat64, stat64)

/* Only requests for a lock fail; the kernel refuses nobody who gives one back. */
#define FCNTL_CALL(symbol) \
    int symbol(int fd, int command, ...) { \
        REAL(int, symbol, int, int, ...); \
        va_list list; \
        va_start(list, command); \
        void *argument = va_arg(list, void *); \
        va_end(list); \
        const char *name = name_of_fd(fd); \
        if (name && (command == F_SETLK || command == F_SETLKW) && ((struct flock *)argument)->l_type != F_UNLCK) { \
            FAIL(LOCK, #symbol, name, -1); \
        } \
        return real(fd, command, argument); \
    }
FCNTL_CALL(fcntl)
FCNTL_CALL(fcntl64)

int flock(int fd, int operation) {
    REAL(int, flock, int, int);
    const char *name = operation & LOCK_UN ? NULL : name_of_fd(fd);
    FAIL(LOCK, "flock", name, -1);
    return real(fd, operation);
}

#define MMAP_CALL(symbol, type) \
    void *symbol(void *address, size_t length, int protection, int flags, int fd, type offset) { \
        REAL(void *, symbol, void *, size_t, int, int, int, type); \
        const char *name = name_of_fd(fd); \
        FAIL(MAP, #symbol, name, MAP_FAILED); \
        return real(address, length, protection, flags, fd, offset); \
    }
MMAP_CALL(mmap, off_t)
MMAP_CALL(mmap64, off64_t)

int chmod(const char *path, mode_t mode) {
    REAL(int, chmod, const char *, mode_t);
    const char *name = name_of(path);
    FAIL(MODE, "chmod", name, -1);
    return real(path, mode);
}

int fchmod(int fd, mode_t mode) {
    REAL(int, fchmod, int, mode_t);
    const char *name = name_of_fd(fd);
    FAIL(MODE, "fchmod", name, -1);
    return real(fd, mode);
}
