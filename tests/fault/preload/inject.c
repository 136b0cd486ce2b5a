/* inject.c - a library to be preloaded under a process: counts, fails, cuts short, kills at or
 * writes down each call that changes files. record.h says how it is told what to do.
 *
 * The real calls are made by syscall(2), so nothing is looked up and nothing can recurse. What libc
 * does inside itself (stdio's own writes) does not pass here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/fault/preload/record.h"

#ifndef FICLONE
#define FICLONE 0x40049409
#define FICLONERANGE 0x4020940D
#endif

enum { PATH_BYTES = 4096, FATE_NONE = 0, FATE_SHORT = -1, FATE_KILL = -2, FATE_TORN = -3 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char root[PATH_BYTES];
static size_t root_len;
static uint64_t at, count;
static int how; /* an errno or one of FATE_ */
static bool forever, nosync, with_data;
static int log_fd = -1;

static long long number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static void start(void)
{
    static const struct {
        const char *name;
        int how;
    } fate[] = {{"ENOSPC", ENOSPC},    {"EDQUOT", EDQUOT},  {"EIO", EIO},       {"EINTR", EINTR},
                {"SHORT", FATE_SHORT}, {"KILL", FATE_KILL}, {"TORN", FATE_TORN}};
    const char *dir = getenv("FM_FAULT_ROOT"), *word = getenv("FM_FAULT_HOW");
    const char *log = getenv("FM_FAULT_LOG");

    if (!dir || strlen(dir) >= sizeof root)
        return;
    memcpy(root, dir, strlen(dir) + 1);
    root_len = strlen(dir);
    at = (uint64_t)number("FM_FAULT_AT");
    forever = number("FM_FAULT_FOREVER") != 0;
    nosync = number("FM_FAULT_NOSYNC") != 0;
    with_data = number("FM_FAULT_DATA") != 0;
    for (size_t i = 0; word && i < sizeof fate / sizeof *fate; i++)
        if (strcmp(word, fate[i].name) == 0)
            how = fate[i].how;
    if (log)
        log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                              0666);
}

/* ==== which file =========================================================================== */

static bool below(const char *path)
{
    return root_len > 0 && strncmp(path, root, root_len) == 0 &&
           (path[root_len] == '/' || path[root_len] == '\0');
}

static bool fd_path(int fd, char path[PATH_BYTES])
{
    char name[64];
    int saved = errno;

    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, name, path, PATH_BYTES - 1);
    errno = saved;
    path[n < 0 ? 0 : n] = '\0';
    return n >= 0;
}

/* Links and ".." are not followed: those who write below a root name it as it is. */
static bool full_path(int dir_fd, const char *path, char out[PATH_BYTES])
{
    char dir[PATH_BYTES];
    int n;

    if (path[0] == '/') {
        n = snprintf(out, PATH_BYTES, "%s", path);
    } else {
        if (dir_fd == AT_FDCWD ? syscall(SYS_getcwd, dir, sizeof dir) < 0 : !fd_path(dir_fd, dir))
            return false;
        while (path[0] == '.' && path[1] == '/')
            path += 2;
        n = snprintf(out, PATH_BYTES, "%s/%s", dir, path);
    }
    return n > 0 && n < PATH_BYTES;
}

static uint64_t inode_of(int fd, const char *path)
{
    struct stat st;
    int saved = errno;
    int rc = fd >= 0 ? fstat(fd, &st) : lstat(path, &st);

    errno = saved;
    return rc == 0 ? (uint64_t)st.st_ino : 0;
}

/* ==== fate ================================================================================= */

typedef struct call {
    rec r;
    char path[PATH_BYTES], path2[PATH_BYTES];
    bool counts;
    int fate;
} call;

static void put_all(const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        long n = syscall(SYS_write, log_fd, p, len);
        if (n <= 0)
            return;
        p += n;
        len -= (size_t)n;
    }
}

static void note(call *c, const struct iovec *iov, size_t iovs, size_t done)
{
    int saved = errno;

    if (log_fd < 0 || !c->counts)
        return;
    c->r.magic = REC_MAGIC;
    c->r.path_len = (uint32_t)strlen(c->path);
    c->r.path2_len = (uint32_t)strlen(c->path2);
    c->r.data_len = with_data ? done : 0;
    pthread_mutex_lock(&mutex);
    put_all(&c->r, sizeof c->r);
    put_all(c->path, c->r.path_len);
    put_all(c->path2, c->r.path2_len);
    for (size_t i = 0; with_data && i < iovs && done > 0; i++) {
        size_t n = iov[i].iov_len < done ? iov[i].iov_len : done;
        put_all(iov[i].iov_base, n);
        done -= n;
    }
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Counts the call. Returns true where it must not be made: errno is set. */
static bool doomed(call *c)
{
    c->counts = true;
    pthread_mutex_lock(&mutex);
    c->r.nth = ++count;
    pthread_mutex_unlock(&mutex);
    bool hit = at > 0 && (c->r.nth == at || (forever && how > 0 && c->r.nth > at));
    if (forever && c->r.nth > at &&
        (c->r.kind == REC_UNLINK || c->r.kind == REC_RMDIR || c->r.kind == REC_CLOSE))
        hit = false;
    if (!hit)
        return false;
    c->fate = how;
    if (how == FATE_KILL || (how == FATE_TORN && c->r.kind != REC_WRITE))
        die();
    if (how <= 0)
        return false;
    c->r.failed = how;
    note(c, NULL, 0, 0);
    errno = how;
    return true;
}

static bool begin_fd(call *c, rec_kind kind, int fd)
{
    pthread_once(&once, start);
    memset(&c->r, 0, sizeof c->r);
    c->path2[0] = '\0';
    c->counts = false;
    c->fate = FATE_NONE;
    c->r.kind = kind;
    if (root_len == 0 || !fd_path(fd, c->path) || !below(c->path))
        return false;
    c->r.ino = inode_of(fd, "");
    return doomed(c);
}

static bool begin_path(call *c, rec_kind kind, int dir, const char *path, int dir2,
                       const char *path2)
{
    pthread_once(&once, start);
    memset(&c->r, 0, sizeof c->r);
    c->path2[0] = '\0';
    c->counts = false;
    c->fate = FATE_NONE;
    c->r.kind = kind;
    if (root_len == 0 || !full_path(dir, path, c->path))
        return false;
    if (path2 && !full_path(dir2, path2, c->path2))
        return false;
    if (!below(c->path) && !(path2 && below(c->path2)))
        return false;
    c->r.ino = inode_of(-1, c->path);
    return doomed(c);
}

static int end(call *c, long result)
{
    if (result >= 0)
        note(c, NULL, 0, 0);
    return (int)result;
}

/* ==== opening ============================================================================== */

static int do_open(int dir, const char *path, int flags, mode_t mode)
{
    call c;
    bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;

#ifdef O_TMPFILE
    if ((flags & O_TMPFILE) == O_TMPFILE)
        writes = false; /* nobody here makes one */
#endif
    if (!writes)
        return (int)syscall(SYS_openat, dir, path, flags, mode);
    if (begin_path(&c, REC_CREATE, dir, path, 0, NULL))
        return -1;
    bool was = c.r.ino != 0;
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && c.counts) {
        c.r.ino = inode_of(fd, "");
        c.r.flags = (was ? 0u : 1u) | ((flags & O_TRUNC) ? 2u : 0u);
        note(&c, NULL, 0, 0);
    }
    return fd;
}

static mode_t mode_of(int flags, va_list args)
{
    return (flags & O_CREAT) ? (mode_t)va_arg(args, unsigned) : 0;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...);                                                    \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = mode_of(flags, args);                                                        \
        va_end(args);                                                                              \
        return do_open(AT_FDCWD, path, flags, mode);                                               \
    }
#define OPENAT(name)                                                                               \
    int name(int dir, const char *path, int flags, ...);                                           \
    int name(int dir, const char *path, int flags, ...)                                            \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = mode_of(flags, args);                                                        \
        va_end(args);                                                                              \
        return do_open(dir, path, flags, mode);                                                    \
    }
#define CREAT(name)                                                                                \
    int name(const char *path, mode_t mode);                                                       \
    int name(const char *path, mode_t mode)                                                        \
    {                                                                                              \
        return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);                        \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
OPENAT(openat)
OPENAT(openat64)
OPENAT(__openat_2)
OPENAT(__openat64_2)
CREAT(creat)
CREAT(creat64)

int close(int fd)
{
    call c;
    int mode = fcntl(fd, F_GETFL);

    if (fd == log_fd && log_fd >= 0)
        return 0;
    if (mode < 0 || (mode & O_ACCMODE) == O_RDONLY)
        return (int)syscall(SYS_close, fd);
    if (begin_fd(&c, REC_CLOSE, fd)) { /* as Linux does it, the descriptor is gone all the same */
        int why = errno;
        syscall(SYS_close, fd);
        errno = why;
        return -1;
    }
    return end(&c, syscall(SYS_close, fd));
}

/* ==== writing ============================================================================== */

/* offset < 0: at the file's own. */
static ssize_t do_writev(int fd, const struct iovec *iov, size_t iovs, off_t offset)
{
    call c;
    size_t len = 0, kept;
    ssize_t n;

    for (size_t i = 0; i < iovs; i++)
        len += iov[i].iov_len;
    if (begin_fd(&c, REC_WRITE, fd))
        return -1;
    off_t place = offset;
    if (c.counts && offset < 0) {
        struct stat st;
        bool append = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
        place = append && fstat(fd, &st) == 0 ? st.st_size : lseek(fd, 0, SEEK_CUR);
    }
    c.r.offset = (uint64_t)place;
    c.r.len = len;
    kept = (c.fate == FATE_SHORT || c.fate == FATE_TORN) && len > 1 ? len / 2 : len;
    if (kept < len) { /* the first piece will do: a short write may be as short as it likes */
        size_t i = 0;
        while (iov[i].iov_len == 0)
            i++;
        size_t m = iov[i].iov_len < kept ? iov[i].iov_len : kept;
        n = offset < 0 ? syscall(SYS_write, fd, iov[i].iov_base, m)
                       : syscall(SYS_pwrite64, fd, iov[i].iov_base, m, offset);
    } else if (iovs == 1) {
        n = offset < 0 ? syscall(SYS_write, fd, iov[0].iov_base, iov[0].iov_len)
                       : syscall(SYS_pwrite64, fd, iov[0].iov_base, iov[0].iov_len, offset);
    } else {
        n = offset < 0 ? syscall(SYS_writev, fd, iov, iovs)
                       : syscall(SYS_pwritev, fd, iov, iovs, offset, 0L);
    }
    if (c.fate == FATE_TORN)
        die();
    if (n >= 0)
        note(&c, iov, iovs, (size_t)n);
    return n;
}

static struct iovec piece(const void *data, size_t len)
{
    struct iovec v = {(void *)(uintptr_t)data, len};
    return v;
}

ssize_t write(int fd, const void *data, size_t len)
{
    struct iovec v = piece(data, len);
    return do_writev(fd, &v, 1, -1);
}

#define PWRITE(name)                                                                               \
    ssize_t name(int fd, const void *data, size_t len, off_t offset);                              \
    ssize_t name(int fd, const void *data, size_t len, off_t offset)                               \
    {                                                                                              \
        struct iovec v = piece(data, len);                                                         \
        return do_writev(fd, &v, 1, offset);                                                       \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const struct iovec *iov, int iovs)
{
    return do_writev(fd, iov, (size_t)iovs, -1);
}

#define PWRITEV(name)                                                                              \
    ssize_t name(int fd, const struct iovec *iov, int iovs, off_t offset);                         \
    ssize_t name(int fd, const struct iovec *iov, int iovs, off_t offset)                          \
    {                                                                                              \
        return do_writev(fd, iov, (size_t)iovs, offset);                                           \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name)                                                                             \
    ssize_t name(int fd, const struct iovec *iov, int iovs, off_t offset, int flags);              \
    ssize_t name(int fd, const struct iovec *iov, int iovs, off_t offset, int flags)               \
    {                                                                                              \
        (void)flags;                                                                               \
        return do_writev(fd, iov, (size_t)iovs, offset);                                           \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

static ssize_t do_copy(int to, long number, long a, long b, long c3, long d, long e, long f)
{
    call c;

    if (begin_fd(&c, REC_COPY, to))
        return -1;
    ssize_t n = syscall(number, a, b, c3, d, e, f);
    if (n >= 0) {
        c.r.len = (uint64_t)n;
        note(&c, NULL, 0, 0);
    }
    return n;
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t len,
                        unsigned flags)
{
    return do_copy(to, SYS_copy_file_range, from, (long)(uintptr_t)from_at, to,
                   (long)(uintptr_t)to_at, (long)len, (long)flags);
}

#define SENDFILE(name)                                                                             \
    ssize_t name(int to, int from, off_t *offset, size_t len);                                     \
    ssize_t name(int to, int from, off_t *offset, size_t len)                                      \
    {                                                                                              \
        return do_copy(to, SYS_sendfile, to, from, (long)(uintptr_t)offset, (long)len, 0, 0);      \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    long arg = va_arg(args, long);
    va_end(args);
    if (request == FICLONE || request == FICLONERANGE)
        return (int)do_copy(fd, SYS_ioctl, fd, (long)request, arg, 0, 0, 0);
    return (int)syscall(SYS_ioctl, fd, request, arg);
}

#define TRUNCATE(name)                                                                             \
    int name(int fd, off_t size);                                                                  \
    int name(int fd, off_t size)                                                                   \
    {                                                                                              \
        call c;                                                                                    \
        if (begin_fd(&c, REC_TRUNC, fd))                                                           \
            return -1;                                                                             \
        c.r.len = (uint64_t)size;                                                                  \
        return end(&c, syscall(SYS_ftruncate, fd, size));                                          \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define TRUNCATE_PATH(name)                                                                        \
    int name(const char *path, off_t size);                                                        \
    int name(const char *path, off_t size)                                                         \
    {                                                                                              \
        call c;                                                                                    \
        if (begin_path(&c, REC_TRUNC, AT_FDCWD, path, 0, NULL))                                    \
            return -1;                                                                             \
        c.r.len = (uint64_t)size;                                                                  \
        return end(&c, syscall(SYS_truncate, path, size));                                         \
    }
TRUNCATE_PATH(truncate)
TRUNCATE_PATH(truncate64)

static int do_allocate(int fd, int mode, off_t offset, off_t len)
{
    call c;

    if (begin_fd(&c, REC_ALLOC, fd))
        return -1;
    c.r.offset = (uint64_t)offset;
    c.r.len = (uint64_t)len;
    return end(&c, syscall(SYS_fallocate, fd, mode, offset, len));
}

#define FALLOCATE(name)                                                                            \
    int name(int fd, int mode, off_t offset, off_t len);                                           \
    int name(int fd, int mode, off_t offset, off_t len)                                            \
    {                                                                                              \
        return do_allocate(fd, mode, offset, len);                                                 \
    }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                                                      \
    int name(int fd, off_t offset, off_t len);                                                     \
    int name(int fd, off_t offset, off_t len)                                                      \
    {                                                                                              \
        int saved = errno, rc = do_allocate(fd, 0, offset, len) < 0 ? errno : 0;                   \
        errno = saved;                                                                             \
        return rc;                                                                                 \
    }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

#define MMAP(name)                                                                                 \
    void *name(void *addr, size_t len, int prot, int flags, int fd, off_t offset);                 \
    void *name(void *addr, size_t len, int prot, int flags, int fd, off_t offset)                  \
    {                                                                                              \
        call c;                                                                                    \
        bool writes = fd >= 0 && (flags & MAP_SHARED) && (prot & PROT_WRITE);                      \
        if (writes && begin_fd(&c, REC_MMAP, fd))                                                  \
            return MAP_FAILED;                                                                     \
        long p = syscall(SYS_mmap, addr, len, prot, flags, fd, offset);                            \
        if (writes && p != -1)                                                                     \
            note(&c, NULL, 0, 0);                                                                  \
        return (void *)(uintptr_t)p; /* -1 is MAP_FAILED */                                        \
    }
MMAP(mmap)
MMAP(mmap64)

/* ==== syncing ============================================================================== */

static int do_sync(int fd, long number)
{
    call c;

    if (begin_fd(&c, REC_SYNC, fd))
        return -1;
    return end(&c, nosync && c.counts ? 0 : syscall(number, fd));
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync);
}

int msync(void *addr, size_t len, int flags)
{
    return (int)syscall(SYS_msync, addr, len, flags);
}

/* ==== names ================================================================================ */

static int do_rename(int dir, const char *from, int dir2, const char *to, unsigned flags)
{
    call c;

    if (begin_path(&c, REC_RENAME, dir, from, dir2, to))
        return -1;
    return end(&c, syscall(SYS_renameat2, dir, from, dir2, to, flags));
}

int rename(const char *from, const char *to)
{
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int dir, const char *from, int dir2, const char *to)
{
    return do_rename(dir, from, dir2, to, 0);
}

int renameat2(int dir, const char *from, int dir2, const char *to, unsigned flags)
{
    return do_rename(dir, from, dir2, to, flags);
}

int linkat(int dir, const char *from, int dir2, const char *to, int flags)
{
    call c;

    if (begin_path(&c, REC_LINK, dir, from, dir2, to))
        return -1;
    return end(&c, syscall(SYS_linkat, dir, from, dir2, to, flags));
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlinkat(const char *text, int dir, const char *path)
{
    call c;

    if (begin_path(&c, REC_CREATE, dir, path, 0, NULL))
        return -1;
    return end(&c, syscall(SYS_symlinkat, text, dir, path));
}

int symlink(const char *text, const char *path)
{
    return symlinkat(text, AT_FDCWD, path);
}

int unlinkat(int dir, const char *path, int flags)
{
    call c;

    if (begin_path(&c, flags & AT_REMOVEDIR ? REC_RMDIR : REC_UNLINK, dir, path, 0, NULL))
        return -1;
    return end(&c, syscall(SYS_unlinkat, dir, path, flags));
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    call c;

    if (begin_path(&c, REC_MKDIR, dir, path, 0, NULL))
        return -1;
    return end(&c, syscall(SYS_mkdirat, dir, path, mode));
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

/* ==== what else a disk may refuse ========================================================== */

int utimensat(int dir, const char *path, const struct timespec times[2], int flags)
{
    call c;

    if (begin_path(&c, REC_META, dir, path, 0, NULL))
        return -1;
    return end(&c, syscall(SYS_utimensat, dir, path, times, flags));
}

int futimens(int fd, const struct timespec times[2])
{
    call c;

    if (begin_fd(&c, REC_META, fd))
        return -1;
    return end(&c, syscall(SYS_utimensat, fd, (char *)0, times, 0));
}

int fchmod(int fd, mode_t mode)
{
    call c;

    if (begin_fd(&c, REC_META, fd))
        return -1;
    return end(&c, syscall(SYS_fchmod, fd, mode));
}

int chmod(const char *path, mode_t mode)
{
    call c;

    if (begin_path(&c, REC_META, AT_FDCWD, path, 0, NULL))
        return -1;
    return end(&c, syscall(SYS_fchmodat, AT_FDCWD, path, mode));
}
