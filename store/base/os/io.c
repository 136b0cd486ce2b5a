/* io.c - files: reading, writing, locks. Calls that change a file pass fms_io_gate (io_path.c).
 *
 * A writer puts its bytes into a temporary file through a small buffer and publishes it by fsync,
 * rename and fsync of the folder; before that no reader sees it, and a crash leaves a temporary. */
#include "store/base/os/io_impl.h"

#include "store/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_CHUNK_BYTES ((size_t)1 << 16)
#define WRITER_BUFFER_BYTES ((size_t)1 << 17)
#define URGE_BYTES ((uint64_t)8 << 20)
#define TEMP_TRIES 100

/* ==== reading ==== */

static const uint8_t no_bytes[1];

fm_status fm_map_file(fm_file_map *out, const char *path)
{
    struct stat st;
    fm_status rc = FM_OK;

    *out = (fm_file_map){no_bytes, 0};
    int fd = fms_io_open_read(path, 0);
    if (fd < 0)
        return fms_io_fail("open", path);
    if (fstat(fd, &st) < 0) {
        rc = fms_io_fail("stat", path);
    } else if (!S_ISREG(st.st_mode)) {
        rc = fm_fail(FM_EIO, "cannot map %s: not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            rc = fms_io_fail("map", path);
        else
            *out = (fm_file_map){p, (size_t)st.st_size};
    }
    close(fd);
    return rc;
}

void fm_unmap_file(fm_file_map *map)
{
    if (!map)
        return;
    if (map->len > 0)
        munmap((void *)(uintptr_t)map->data, map->len);
    *map = (fm_file_map){NULL, 0};
}

void fm_map_forget(const fm_file_map *map, size_t offset, size_t len)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t at = (uintptr_t)map->data + offset;
    const uintptr_t begin = (at + page - 1) / page * page, end = (at + len) / page * page;

    if (offset <= map->len && len <= map->len - offset && begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* a hint: failing harms nothing */
}

static ssize_t read_some(int fd, void *dst, size_t len)
{
    ssize_t n;

    do
        n = read(fd, dst, len);
    while (n < 0 && errno == EINTR);
    return n;
}

static fm_status read_all(fm_buf *out, int fd, const char *path, size_t max_bytes)
{
    const size_t start = out->len;

    for (;;) {
        uint8_t *at = fm_buf_extend(out, READ_CHUNK_BYTES);
        if (!at)
            return fm_error_prefix(fm_buf_ok(out), "%s", path);
        ssize_t n = read_some(fd, at, READ_CHUNK_BYTES);
        out->len -= READ_CHUNK_BYTES - (size_t)FM_MAX(n, 0);
        out->data[out->len] = '\0';
        if (n < 0)
            return fms_io_fail("read", path);
        if (out->len - start > max_bytes)
            return fm_fail(FM_ELIMIT, "%s: larger than %zu bytes", path, max_bytes);
        if (n == 0)
            return FM_OK;
    }
}

fm_status fm_read_file(fm_buf *out, const char *path, size_t max_bytes)
{
    const size_t start = out->len;
    const size_t max = out->max ? out->max : FM_BUF_MAX_DEFAULT;
    FM_TRY(fm_buf_ok(out));
    int fd = fms_io_open_read(path, 0);
    if (fd < 0)
        return fms_io_fail("open", path);
    /* read_all reserves before it reads: the limit is raised by one chunk and checked here. */
    max_bytes = FM_MIN(max_bytes ? max_bytes : max, max - start);
    out->max = max < SIZE_MAX / 2 ? max + READ_CHUNK_BYTES : max;
    fm_status rc = read_all(out, fd, path, max_bytes);
    out->max = max;
    close(fd);
    if (rc < 0 && out->data) {
        out->len = start;
        out->data[start] = '\0';
    }
    return rc;
}

fm_status fm_pread_file(const char *path, uint64_t offset, void *dst, size_t len)
{
    uint8_t *at = dst;
    size_t done = 0;
    fm_status rc = FM_OK;

    if (offset > INT64_MAX || len > INT64_MAX - offset)
        return fm_fail(FM_EINVAL, "%s: byte %llu is beyond any file", path,
                       (unsigned long long)offset);
    int fd = fms_io_open_read(path, 0);
    if (fd < 0)
        return fms_io_fail("open", path);
    while (done < len && rc >= 0) {
        ssize_t n = pread(fd, at + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = fms_io_fail("read", path);
        else if (n == 0)
            rc = fm_fail(FM_ECORRUPT, "%s: ends at byte %llu, wanted %zu bytes from %llu", path,
                         (unsigned long long)(offset + done), len, (unsigned long long)offset);
        else
            done += (size_t)n;
    }
    close(fd);
    return rc;
}

/* ==== writing ==== */

struct fm_writer {
    int fd;
    char *path; /* NULL: given at commit */
    char *temp; /* NULL once renamed: nothing left to remove */
    uint64_t flushed_bytes;
    uint64_t urged_bytes; /* that the system was told to write out */
    size_t held_bytes; /* in buffer, not yet written */
    bool kept;         /* close leaves the temporary */
    uint8_t *buffer;
    fm_status failed;
    fm_error_state error;
};

/* Remembers the first failure, which later calls return again. */
static fm_status writer_fail(fm_writer *w, fm_status rc)
{
    if (rc < 0 && w->failed >= 0) {
        w->failed = rc;
        fm_error_save(&w->error);
    }
    return rc;
}

static fm_status writer_failed(const fm_writer *w)
{
    if (w->failed < 0)
        fm_error_restore(&w->error);
    return w->failed;
}

/* The lock shows other processes that the owner lives, in whatever container it runs. False: a
 * cleaner removed the file since its creation. Where no lock can be had (some network file
 * systems), no cleaner gets one either, and nothing is removed. */
static bool own_temp(int fd)
{
    struct stat st;

    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno != EWOULDBLOCK;
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static fm_status open_temp(fm_writer *w, const char *folder)
{
    for (int i = 0; i < TEMP_TRIES; i++) {
        uint64_t r = 0;
        if (getrandom(&r, sizeof(r), 0) < 0)
            r = (uint64_t)i;
        char *temp =
            fm_asprintf("%s/tmp-%ld-%016llx", folder, (long)getpid(), (unsigned long long)r);
        if (!temp)
            return FM_ENOMEM;
        w->fd = fms_io_gate_open(temp, O_RDWR | O_CREAT | O_EXCL);
        if (w->fd >= 0 && own_temp(w->fd)) {
            w->temp = temp;
            return FM_OK;
        }
        fm_status rc = w->fd >= 0 || errno == EEXIST
                           ? FM_OK
                           : fms_io_fail("create", w->path ? w->path : temp);
        if (w->fd >= 0)
            close(w->fd);
        w->fd = -1;
        fm_free(temp);
        if (rc < 0)
            return rc;
    }
    return fm_fail(FM_EIO, "cannot create a temporary file in %s: every name is taken", folder);
}

static fm_writer *new_writer(void)
{
    fm_writer *w = fm_calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->fd = -1;
    w->buffer = fm_malloc(WRITER_BUFFER_BYTES);
    return w;
}

fm_status fm_writer_open(fm_writer **out, const char *path, const char *tmp_dir)
{
    char *folder = NULL;

    *out = NULL;
    if (!path && !tmp_dir)
        return fm_fail(FM_EINVAL, "a writer needs a path or a folder");
    fm_writer *w = new_writer();
    if (!w)
        return FM_ENOMEM;
    w->path = path ? fm_strdup(path) : NULL;
    folder = tmp_dir ? fm_strdup(tmp_dir) : fms_io_folder(path);
    fm_status rc = FM_ENOMEM;
    if (w->buffer && folder && (w->path || !path))
        rc = open_temp(w, folder);
    fm_free(folder);
    if (rc < 0) {
        fm_writer_close(w);
        return rc;
    }
    *out = w;
    return FM_OK;
}

static fm_status write_at(fm_writer *w, uint64_t offset, const uint8_t *p, size_t len)
{
    while (len > 0) {
        ssize_t n = fms_io_gate() ? -1 : pwrite(w->fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return writer_fail(w, fms_io_fail("write", w->temp));
        p += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return FM_OK;
}

static fm_status flush(fm_writer *w)
{
    FM_TRY(write_at(w, w->flushed_bytes, w->buffer, w->held_bytes));
    w->flushed_bytes += w->held_bytes;
    w->held_bytes = 0;
    return FM_OK;
}

static fm_status writer_usable(const fm_writer *w, uint64_t offset, size_t len)
{
    if (w->failed < 0)
        return writer_failed(w);
    if (w->fd < 0)
        return fm_fail(FM_EINVAL, "%s: already committed", w->path ? w->path : "file");
    if (offset > INT64_MAX || len > INT64_MAX - offset)
        return fm_fail(FM_EINVAL, "%s: larger than any file", w->temp);
    return FM_OK;
}

fm_status fm_writer_write(fm_writer *w, const void *data, size_t len)
{
    FM_TRY(writer_usable(w, fm_writer_offset(w), len));
    if (len > WRITER_BUFFER_BYTES - w->held_bytes)
        FM_TRY(flush(w));
    if (len < WRITER_BUFFER_BYTES) {
        if (len > 0)
            memcpy(w->buffer + w->held_bytes, data, len);
        w->held_bytes += len;
        return FM_OK;
    }
    fm_status rc = write_at(w, w->flushed_bytes, data, len);
    if (rc >= 0)
        w->flushed_bytes += len;
    return rc;
}

fm_status fm_writer_pwrite(fm_writer *w, uint64_t offset, const void *data, size_t len)
{
    fm_status rc = writer_usable(w, offset, len);

    if (rc >= 0)
        rc = flush(w); /* else the buffered bytes would overwrite these later */
    return rc < 0 ? rc : write_at(w, offset, data, len);
}

fm_status fm_writer_reserve(fm_writer *w, uint64_t bytes)
{
    fm_status rc = writer_usable(w, 0, 0);

    if (rc < 0 || bytes == 0 || bytes > INT64_MAX)
        return rc;
    if (!fms_io_gate() && fallocate(w->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
        return FM_OK;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR || errno == EINVAL)
        return FM_OK; /* a hint */
    return writer_fail(w, fms_io_fail("make room for", w->temp));
}

static atomic_bool copy_plainly;

void fm_io_copy_plainly(bool plainly)
{
    atomic_store(&copy_plainly, plainly);
}

/* Copies as much as the kernel is willing to; *offset and *len then describe the rest. */
static fm_status copy_by_kernel(fm_writer *w, int from, uint64_t *offset, uint64_t *len)
{
    while (*len > 0 && !atomic_load(&copy_plainly)) {
        loff_t in = (loff_t)*offset, out = (loff_t)w->flushed_bytes;
        const size_t most = (size_t)FM_MIN(*len, (uint64_t)1 << 30);
        ssize_t n = fms_io_gate() ? -1 : copy_file_range(from, &in, w->fd, &out, most, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EIO || errno == EDQUOT || errno == EFBIG))
            return writer_fail(w, fms_io_fail("write", w->temp));
        if (n <= 0)
            return FM_OK; /* across file systems, say, or one without such a call */
        *offset += (uint64_t)n;
        *len -= (uint64_t)n;
        w->flushed_bytes += (uint64_t)n;
    }
    return FM_OK;
}

fm_status fm_writer_copy(fm_writer *w, const char *path, uint64_t offset, uint64_t len)
{
    fm_status rc = writer_usable(w, fm_writer_offset(w), (size_t)len);
    uint8_t *part;
    int from;

    if (rc >= 0)
        rc = flush(w);
    if (rc < 0)
        return rc;
    from = fms_io_open_read(path, 0);
    if (from < 0)
        return fms_io_fail("open", path);
    rc = copy_by_kernel(w, from, &offset, &len);
    close(from);
    if (rc < 0 || len == 0)
        return rc;
    part = fm_malloc(READ_CHUNK_BYTES);
    if (!part)
        return FM_ENOMEM;
    while (rc >= 0 && len > 0) {
        const size_t n = (size_t)FM_MIN(len, (uint64_t)READ_CHUNK_BYTES);
        rc = fm_pread_file(path, offset, part, n);
        if (rc >= 0)
            rc = fm_writer_write(w, part, n);
        offset += n;
        len -= n;
    }
    fm_free(part);
    return rc;
}

uint64_t fm_writer_offset(const fm_writer *w)
{
    return w->flushed_bytes + w->held_bytes;
}

fm_status fm_writer_pread(fm_writer *w, uint64_t offset, void *dst, size_t len)
{
    fm_status rc = writer_usable(w, offset, len);
    if (rc >= 0 && offset + len > fm_writer_offset(w))
        return fm_fail(FM_EINVAL, "%s: read beyond what was written", w->temp);
    if (rc >= 0)
        rc = flush(w);
    uint8_t *p = dst;
    while (rc >= 0 && len > 0) {
        ssize_t n = pread(w->fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fms_io_fail("read back", w->temp);
        if (n == 0)
            return fm_fail(FM_EIO, "%s: was cut while it was written", w->temp);
        p += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return rc;
}

static fm_status put_in_place(fm_writer *w, const char *path)
{
    /* Renamed while open: the lock that marks the temporary as owned must be held until then. */
    if (fms_io_gate() || rename(w->temp, path) < 0)
        return fms_io_fail("rename into place", path);
    fm_free(w->temp);
    w->temp = NULL;
    int fd = w->fd;
    w->fd = -1;
    /* EINTR: the descriptor is gone, and what was written stays written. */
    return close(fd) < 0 && errno != EINTR ? fms_io_fail("close", path) : FM_OK;
}

static fm_status publish(fm_writer *w, const char *path)
{
    if (fms_io_fsync(w->fd) < 0)
        return fms_io_fail("fsync", w->temp);
    FM_TRY(put_in_place(w, path));
    return fms_io_fsync_folder(path);
}

static fm_status finish(fm_writer *w, const char *path,
                        fm_status (*end)(fm_writer *w, const char *path))
{
    FM_TRY(writer_usable(w, 0, 0));
    if (!path)
        path = w->path;
    if (!path)
        return fm_fail(FM_EINVAL, "%s: a path is needed to commit", w->temp);
    FM_TRY(flush(w));
    return writer_fail(w, end(w, path));
}

fm_status fm_writer_commit(fm_writer *w, const char *path)
{
    return finish(w, path, publish);
}

fm_status fm_writer_place(fm_writer *w, const char *path)
{
    return finish(w, path, put_in_place);
}

void fm_writer_keep(fm_writer *w, bool keep)
{
    w->kept = keep;
}

static bool still_at(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

/* Takes a kept temporary over: its lock, and the end at which it goes on. */
static fm_status take_over(fm_writer *w, const char *path)
{
    struct stat st;

    w->fd = fms_io_gate_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (w->fd < 0)
        return fms_io_fail("open", path);
    if (flock(w->fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? fm_fail(FM_ECONFLICT, "%s is held by another process", path)
                                    : fm_fail(FM_ECONFLICT, "%s cannot be locked", path);
    if (!still_at(w->fd, path))
        return fm_fail(FM_ENOTFOUND, "%s went away", path);
    if (fstat(w->fd, &st) < 0 || !S_ISREG(st.st_mode))
        return fm_fail(FM_EIO, "%s: not a regular file", path);
    w->flushed_bytes = (uint64_t)st.st_size;
    w->temp = fm_strdup(path);
    return w->temp ? FM_OK : FM_ENOMEM;
}

fm_status fm_writer_resume(fm_writer **out, const char *path)
{
    fm_writer *w = new_writer();

    *out = NULL;
    if (!w)
        return FM_ENOMEM;
    w->kept = true;
    fm_status rc = w->buffer ? take_over(w, path) : FM_ENOMEM;
    if (rc < 0) {
        fm_writer_close(w);
        return rc;
    }
    *out = w;
    return FM_OK;
}

fm_status fm_writer_flush(fm_writer *w)
{
    FM_TRY(writer_usable(w, 0, 0));
    return flush(w);
}

void fm_writer_urge(fm_writer *w)
{
    if (w->flushed_bytes < w->urged_bytes) /* it was cut */
        w->urged_bytes = w->flushed_bytes;
    if (w->flushed_bytes - w->urged_bytes < URGE_BYTES)
        return;
    (void)sync_file_range(w->fd, (off_t)w->urged_bytes, (off_t)(w->flushed_bytes - w->urged_bytes),
                          SYNC_FILE_RANGE_WRITE);
    w->urged_bytes = w->flushed_bytes;
}

fm_status fm_writer_cut(fm_writer *w, uint64_t bytes)
{
    FM_TRY(writer_usable(w, bytes, 0));
    if (bytes > fm_writer_offset(w))
        return fm_fail(FM_EINVAL, "%s: cut beyond what was written", w->temp);
    if (bytes >= w->flushed_bytes) {
        w->held_bytes = (size_t)(bytes - w->flushed_bytes);
        return FM_OK;
    }
    if (fms_io_gate() || ftruncate(w->fd, (off_t)bytes) < 0)
        return writer_fail(w, fms_io_fail("cut", w->temp));
    w->held_bytes = 0;
    w->flushed_bytes = bytes;
    return FM_OK;
}

const char *fm_writer_temp(const fm_writer *w)
{
    return w->temp;
}

fm_status fm_writer_map(fm_file_map *out, const fm_writer *w, size_t len)
{
    *out = (fm_file_map){no_bytes, 0};
    FM_TRY(writer_usable(w, 0, len));
    if (len == 0)
        return FM_OK;
    void *p = mmap(NULL, len, PROT_READ, MAP_SHARED, w->fd, 0);
    if (p == MAP_FAILED)
        return fms_io_fail("map", w->temp);
    *out = (fm_file_map){p, len};
    return FM_OK;
}

void fm_writer_close(fm_writer *w)
{
    fm_error_state kept;

    if (!w)
        return;
    fm_error_save(&kept); /* a caller on its way out with an error keeps its text */
    if (w->kept && w->temp && w->failed >= 0)
        fm_ignore(flush(w), "what does not fit is sent again");
    if (w->fd >= 0)
        close(w->fd);
    if (w->temp && !w->kept)
        fm_ignore(fm_remove_file(w->temp), "a temporary left behind is found by gc");
    fm_error_restore(&kept);
    fm_free(w->temp);
    fm_free(w->path);
    fm_free(w->buffer);
    fm_free(w);
}

static void remove_if_dead(const char *path)
{
    int fd = fms_io_open_read(path, O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        fm_ignore(fm_remove_file(path), "an orphan is harmless");
    close(fd);
}

void fm_remove_dead_temps(const char *dir)
{
    fm_names names;

    if (fm_list_dir(&names, dir) < 0)
        return;
    for (size_t i = 0; i < names.count; i++) {
        char *path =
            strncmp(names.name[i], "tmp-", 4) == 0 ? fm_path_join(dir, names.name[i]) : NULL;
        if (path)
            remove_if_dead(path);
        fm_free(path);
    }
    fm_names_release(&names);
}

fm_status fm_write_file(const char *path, const void *data, size_t len)
{
    fm_writer *w;
    fm_status rc = fm_writer_open(&w, path, NULL);

    if (rc >= 0)
        rc = fm_writer_write(w, data, len);
    if (rc >= 0)
        rc = fm_writer_commit(w, NULL);
    fm_writer_close(w);
    return rc;
}

/* ==== lock ==== */

struct fm_lock {
    int fd;
};

static fm_status lock_open(fm_lock **out, const char *path, int flags, int how)
{
    int got;

    *out = NULL;
    fm_lock *lock = fm_malloc(sizeof(*lock));
    if (!lock)
        return FM_ENOMEM;
    lock->fd = fms_io_gate_open(path, O_RDWR | O_CREAT | flags);
    if (lock->fd < 0) {
        bool taken = errno == EEXIST;
        fm_free(lock);
        return taken ? fm_fail(FM_EEXISTS, "%s is there already", path)
                     : fms_io_fail("open lock", path);
    }
    do
        got = flock(lock->fd, how);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        fm_status rc = errno == EWOULDBLOCK
                           ? fm_fail(FM_ECONFLICT, "%s is held by another process", path)
                           : fms_io_fail("lock", path);
        fm_lock_drop(lock);
        return rc;
    }
    *out = lock;
    return FM_OK;
}

fm_status fm_lock_take(fm_lock **out, const char *path)
{
    return lock_open(out, path, 0, LOCK_EX);
}

fm_status fm_lock_share(fm_lock **out, const char *path)
{
    return lock_open(out, path, 0, LOCK_SH);
}

fm_status fm_lock_make(fm_lock **out, const char *path)
{
    return lock_open(out, path, O_EXCL | O_APPEND, LOCK_EX);
}

fm_status fm_lock_append(fm_lock *lock, const void *data, size_t len)
{
    const uint8_t *p = data;
    off_t before = lseek(lock->fd, 0, SEEK_END);

    while (len > 0) {
        ssize_t n = fms_io_gate() ? -1 : write(lock->fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            fm_status rc = fms_io_fail("write", "the file of a lock");
            bool cut = before >= 0 && ftruncate(lock->fd, before) == 0;
            return cut ? rc : fm_error_prefix(rc, "half a line is left");
        }
        p += n;
        len -= (size_t)n;
    }
    return FM_OK;
}

void fm_lock_drop(fm_lock *lock)
{
    if (!lock)
        return;
    close(lock->fd); /* the lock file stays: removing it would race with the next taker */
    fm_free(lock);
}

/* A holder removes the file before it unlocks it: a process that has locked a file which is no
 * longer at the path has locked nothing and tries again. */
fm_status fm_lock_try(fm_lock **out, const char *path)
{
    fm_status rc;

    while ((rc = lock_open(out, path, 0, LOCK_EX | LOCK_NB)) == FM_OK &&
           !still_at((*out)->fd, path)) {
        fm_lock_drop(*out);
        *out = NULL;
    }
    return rc;
}

void fm_lock_end(fm_lock *lock, const char *path)
{
    if (!lock)
        return;
    fm_ignore(fm_remove_file(path), "a lock file that nobody holds is taken over by the next");
    fm_lock_drop(lock);
}

bool fm_lock_is_free(const char *path)
{
    int fd = fms_io_open_read(path, O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return false;
    bool is_free = flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return is_free;
}

fm_status fm_file_identity(uint64_t out[2], const char *path)
{
    struct stat st;

    out[0] = out[1] = 0;
    if (stat(path, &st) < 0)
        return fms_io_fail("stat", path);
    out[0] = (uint64_t)st.st_dev;
    out[1] = (uint64_t)st.st_ino;
    return FM_OK;
}

fm_status fm_file_owner(uint64_t *uid, const char *path)
{
    struct stat st;
    *uid = 0;
    if (stat(path, &st) < 0)
        return fms_io_fail("stat", path);
    *uid = st.st_uid;
    return FM_OK;
}
