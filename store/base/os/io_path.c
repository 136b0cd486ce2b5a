/* io_path.c - the gate to the file system, then paths and folders: names, times, making, removing,
 * listing. io.c stands on this file.
 *
 * Every call that changes the file system passes fms_io_gate(), which counts it and can, for tests,
 * make it fail or kill the process just before it. */
#include "store/base/os/io_impl.h"

#include "store/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TREE_MAX_DEPTH 256

/* ==== faults ==== */

static atomic_uint_fast64_t call_count;
static atomic_uint_fast64_t fail_countdown; /* 0 = off */
static atomic_int fail_errno;               /* 0 = kill */

void fm_io_fail_at(uint64_t nth, int err)
{
    atomic_store(&fail_errno, err);
    atomic_store(&fail_countdown, nth);
}

uint64_t fm_io_call_count(void)
{
    return atomic_load(&call_count);
}

bool fms_io_gate(void)
{
    atomic_fetch_add(&call_count, 1);
    uint_fast64_t left = atomic_load(&fail_countdown);
    while (left != 0)
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            break;
    if (left != 1)
        return false;
    if (atomic_load(&fail_errno) == 0)
        kill(getpid(), SIGKILL);
    errno = atomic_load(&fail_errno);
    return true;
}

int fms_io_fsync(int fd)
{
    int rc;

    if (fms_io_gate())
        return -1;
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    return rc;
}

int fms_io_gate_open(const char *path, int flags)
{
    int fd;

    if (fms_io_gate())
        return -1;
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* ==== errors ==== */

fm_status fms_io_fail(const char *verb, const char *path)
{
    char text[128];
    const int err = errno;
    const char *why = strerror_r(err, text, sizeof(text));

    if (err == ENOMEM)
        return fm_fail(FM_ENOMEM, "out of memory: cannot %s %s", verb, path);
    return fm_fail(err == ENOENT || err == ENOTDIR ? FM_ENOTFOUND : FM_EIO, "cannot %s %s: %s",
                   verb, path, why);
}

int fms_io_open_read(const char *path, int flags)
{
    int fd;

    do
        fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* ==== paths and folders ==== */

const char *fm_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *fm_path_join(const char *a, const char *b)
{
    size_t len = strlen(a);

    if (len == 0)
        return fm_strdup(b);
    return fm_asprintf("%s%s%s", a, a[len - 1] == '/' ? "" : "/", b);
}

/* The folder that holds path: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
char *fms_io_folder(const char *path)
{
    const char *base = fm_path_base(path);

    if (base == path)
        return fm_strdup(".");
    size_t len = (size_t)(base - path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    return fm_strndup(path, len);
}

fm_status fm_path_real(char **out, const char *path)
{
    char real[PATH_MAX];

    *out = NULL;
    if (!realpath(path, real))
        return fms_io_fail("follow the links of", path);
    *out = fm_strdup(real);
    return *out ? FM_OK : FM_ENOMEM;
}

bool fm_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool fm_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool fm_path_is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool fm_path_holds(const char *dir, const char *name)
{
    char path[PATH_MAX]; /* the kernel takes no longer ones */
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof(path) && fm_path_exists(path);
}

fm_status fm_file_bytes(uint64_t *out, const char *path)
{
    struct stat st;

    *out = 0;
    if (stat(path, &st) < 0)
        return fms_io_fail("stat", path);
    if (!S_ISREG(st.st_mode))
        return fm_fail(FM_EIO, "%s: not a regular file", path);
    *out = (uint64_t)st.st_size;
    return FM_OK;
}

fm_status fm_file_time(int64_t *out, const char *path)
{
    struct stat st;

    *out = 0;
    if (stat(path, &st) < 0)
        return fms_io_fail("stat", path);
    *out = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return FM_OK;
}

fm_status fm_touch_file(const char *path)
{
    if (fms_io_gate() || utimensat(AT_FDCWD, path, NULL, 0) < 0)
        return fms_io_fail("set the time of", path);
    return FM_OK;
}

fm_status fm_mark_time(int64_t *out, const char *path)
{
    struct timespec t[2] = {{0, UTIME_OMIT}, {0, 0}};

    *out = 0;
    if (clock_gettime(CLOCK_REALTIME, &t[1]) < 0)
        return fms_io_fail("read the clock for", path);
    t[1].tv_nsec |= 1; /* the system's own times are even */
    if (fms_io_gate() || utimensat(AT_FDCWD, path, t, 0) < 0)
        return fms_io_fail("set the time of", path);
    FM_TRY(fm_file_time(out, path));
    if (*out != (int64_t)t[1].tv_sec * 1000000000 + t[1].tv_nsec) {
        *out = 0;
        return fm_fail(FM_EUNSUPPORTED, "%s: its file system keeps no exact times", path);
    }
    return FM_OK;
}

static fm_status fsync_path(const char *path, int flags)
{
    fm_status rc = FM_OK;
    int fd = fms_io_open_read(path, flags);

    if (fd < 0)
        return fms_io_fail("open", path);
    /* EINVAL: the file system has nothing to sync for a folder. */
    if (fms_io_fsync(fd) < 0 && errno != EINVAL)
        rc = fms_io_fail("fsync", path);
    close(fd);
    return rc;
}

fm_status fm_fsync_dir(const char *path)
{
    return fsync_path(path, O_DIRECTORY);
}

fm_status fms_io_fsync_folder(const char *path)
{
    char *folder = fms_io_folder(path);
    fm_status rc = folder ? fm_fsync_dir(folder) : FM_ENOMEM;

    fm_free(folder);
    return rc;
}

static fm_status make_dir(const char *path)
{
    if (!fms_io_gate() && mkdir(path, 0777) == 0)
        return fms_io_fsync_folder(path);
    if (errno == EEXIST && fm_path_is_dir(path))
        return FM_OK;
    return fms_io_fail("create folder", path);
}

fm_status fm_make_dirs(const char *path)
{
    fm_status rc = FM_OK;

    if (fm_path_is_dir(path))
        return FM_OK;
    char *part = fm_strdup(path);
    if (!part)
        return FM_ENOMEM;
    for (char *p = part; *p && rc >= 0; p++) {
        if (*p != '/' || p == part)
            continue;
        *p = '\0';
        if (!fm_path_is_dir(part))
            rc = make_dir(part);
        *p = '/';
    }
    fm_free(part);
    return rc < 0 || fm_path_is_dir(path) ? rc : make_dir(path);
}

fm_status fm_remove_file(const char *path)
{
    if (!fms_io_gate() && unlink(path) == 0)
        return FM_OK;
    return errno == ENOENT ? FM_OK : fms_io_fail("remove", path);
}

fm_status fm_move_file(const char *from, const char *to)
{
    if (fms_io_gate() || rename(from, to) < 0)
        return fms_io_fail("move", from);
    FM_TRY(fms_io_fsync_folder(to));
    return fms_io_fsync_folder(from);
}

fm_status fm_link_file(const char *from, const char *to)
{
    fm_writer *w = NULL;
    uint64_t bytes = 0;

    if (!fms_io_gate() && link(from, to) == 0)
        return FM_OK;
    if (errno == EEXIST)
        return fm_fail(FM_EEXISTS, "%s is there already", to);
    fm_status rc = fm_file_bytes(&bytes, from); /* another file system, or one without links */
    FM_THEN(rc, fm_writer_open(&w, to, NULL));
    FM_THEN(rc, fm_writer_reserve(w, bytes));
    FM_THEN(rc, fm_writer_copy(w, from, 0, bytes));
    FM_THEN(rc, fm_writer_place(w, NULL));
    fm_writer_close(w);
    return rc;
}

static fm_status remove_children(const char *path, int depth);

static fm_status remove_at(const char *path, int depth)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? FM_OK : fms_io_fail("stat", path);
    if (!S_ISDIR(st.st_mode))
        return fm_remove_file(path);
    if (depth >= TREE_MAX_DEPTH)
        return fm_fail(FM_ELIMIT, "%s: deeper than %d folders", path, TREE_MAX_DEPTH);
    FM_TRY(remove_children(path, depth));
    if (!fms_io_gate() && rmdir(path) == 0)
        return FM_OK;
    return errno == ENOENT ? FM_OK : fms_io_fail("remove", path);
}

static fm_status remove_children(const char *path, int depth)
{
    fm_names names;
    fm_status rc = fm_list_dir(&names, path);

    for (size_t i = 0; i < names.count && rc >= 0; i++) {
        char *child = fm_path_join(path, names.name[i]);
        rc = child ? remove_at(child, depth + 1) : FM_ENOMEM;
        fm_free(child);
    }
    fm_names_release(&names);
    return rc;
}

fm_status fm_remove_tree(const char *path)
{
    return remove_at(path, 0);
}

static fm_status bytes_below(uint64_t *sum, const char *path, int depth)
{
    fm_names names = {NULL, 0};
    fm_status rc = depth < TREE_MAX_DEPTH
                       ? fm_list_dir(&names, path)
                       : fm_fail(FM_ELIMIT, "%s: deeper than %d folders", path, TREE_MAX_DEPTH);

    for (size_t i = 0; i < names.count && rc == FM_OK; i++) {
        char *child = fm_path_join(path, names.name[i]);
        struct stat st;
        if (!child)
            rc = FM_ENOMEM;
        else if (lstat(child, &st) < 0)
            rc = errno == ENOENT ? FM_OK : fms_io_fail("stat", child);
        else if (S_ISDIR(st.st_mode))
            rc = bytes_below(sum, child, depth + 1);
        else if (S_ISREG(st.st_mode))
            *sum += (uint64_t)st.st_size;
        fm_free(child);
    }
    fm_names_release(&names);
    return rc;
}

fm_status fm_tree_bytes(uint64_t *out, const char *path)
{
    *out = 0;
    return bytes_below(out, path, 0);
}

static fm_status fsync_at(const char *path, int depth)
{
    fm_names names = {NULL, 0};
    fm_status rc = FM_OK;

    if (depth >= TREE_MAX_DEPTH)
        return fm_fail(FM_ELIMIT, "%s: deeper than %d folders", path, TREE_MAX_DEPTH);
    if (fm_path_is_dir(path))
        rc = fm_list_dir(&names, path);
    for (size_t i = 0; i < names.count && rc >= 0; i++) {
        char *child = fm_path_join(path, names.name[i]);
        rc = child ? fsync_at(child, depth + 1) : FM_ENOMEM;
        fm_free(child);
    }
    fm_names_release(&names);
    return rc < 0 ? rc : fsync_path(path, 0);
}

fm_status fm_fsync_tree(const char *path)
{
    return fsync_at(path, 0);
}

static int by_bytes(const void *a, const void *b)
{
    char *const *x = a;
    char *const *y = b;
    return strcmp(*x, *y);
}

static fm_status add_name(fm_names *names, size_t *cap, const char *name)
{
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return FM_OK;
    FM_TRY(fm_grow(&names->name, cap, names->count + 1, sizeof(*names->name)));
    char *copy = fm_strdup(name);
    if (!copy)
        return FM_ENOMEM;
    names->name[names->count++] = copy;
    return FM_OK;
}

fm_status fm_list_dir(fm_names *out, const char *path)
{
    size_t cap = 0;
    fm_status rc = FM_OK;

    *out = (fm_names){NULL, 0};
    DIR *dir = opendir(path);
    if (!dir)
        return fms_io_fail("open folder", path);
    while (rc >= 0) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (!e) {
            rc = errno ? fms_io_fail("read folder", path) : FM_OK;
            break;
        }
        rc = add_name(out, &cap, e->d_name);
    }
    closedir(dir);
    if (rc < 0)
        fm_names_release(out);
    else if (out->count > 1)
        qsort(out->name, out->count, sizeof(*out->name), by_bytes);
    return rc;
}

void fm_names_release(fm_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        fm_free(names->name[i]);
    fm_free(names->name);
    *names = (fm_names){NULL, 0};
}
