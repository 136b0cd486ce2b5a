/* io.h - files: the only door to open, write, fsync and rename, with fault injection.
 *
 * Files are never modified in place: a new one is written beside its place, fsynced, renamed,
 * and the folder fsynced. All paths are NUL-terminated bytes. Errors are FM_EIO (the text holds
 * the path and strerror), FM_ENOTFOUND where the file is missing, FM_ENOMEM. */
#ifndef FM_BASE_IO_H
#define FM_BASE_IO_H

#include "store/base/buf.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

/* Read-only mapping of a whole regular file. An empty file maps to len 0. Close is NULL-safe. */
typedef struct fm_file_map {
    const uint8_t *data;
    size_t len;
} fm_file_map;
FM_CHECKED fm_status fm_map_file(fm_file_map *out, const char *path);
void fm_unmap_file(fm_file_map *map);
/* These bytes are not wanted for now: they no longer count as this process's memory. Reading them
 * again is fine. Whole pages within the range. */
void fm_map_forget(const fm_file_map *map, size_t offset, size_t len);

FM_CHECKED fm_status fm_read_file(fm_buf *out, const char *path, size_t max_bytes); /* appends */
/* Durable replace: temp, fsync, rename, fsync folder. */
FM_CHECKED fm_status fm_write_file(const char *path, const void *data, size_t len);

/* Streaming writer: bytes go to a temporary file in `tmp_dir` (NULL: the target's own folder);
 * commit makes it durable at `path`; close without commit removes it. Remembers its first error.
 * The name of a temporary is "tmp-<pid>-<random>", and its owner holds an flock on it. */
typedef struct fm_writer fm_writer;
FM_CHECKED fm_status fm_writer_open(fm_writer **out, const char *path, const char *tmp_dir);
FM_CHECKED fm_status fm_writer_write(fm_writer *w, const void *data, size_t len);
/* The file will have about this many bytes: room is set aside where the file system can, so that a
 * full disk is told of before the work and the file lies in one piece. FM_EIO: there is no room. */
FM_CHECKED fm_status fm_writer_reserve(fm_writer *w, uint64_t bytes);
/* Appends bytes [offset, offset + len) of another file, inside the kernel where it can: blocks are then
 * shared on file systems that know how (XFS, Btrfs) and copied without passing through this process
 * elsewhere. FM_ECORRUPT: the file ends before. */
FM_CHECKED fm_status fm_writer_copy(fm_writer *w, const char *path, uint64_t offset, uint64_t len);
void fm_io_copy_plainly(bool plainly); /* tests: as where the kernel cannot */
FM_CHECKED fm_status fm_writer_pwrite(fm_writer *w, uint64_t offset, const void *data, size_t len);
uint64_t fm_writer_offset(const fm_writer *w);
/* Reads back what was written so far (flushes first). FM_EINVAL beyond it. */
FM_CHECKED fm_status fm_writer_pread(fm_writer *w, uint64_t offset, void *dst, size_t len);
/* The path may be decided late (a file named by its digest): NULL keeps the one given at open. */
FM_CHECKED fm_status fm_writer_commit(fm_writer *w, const char *path);
/* As commit, but nothing is made durable: for what can be made again, and whose readers check it. */
FM_CHECKED fm_status fm_writer_place(fm_writer *w, const char *path);
void fm_writer_close(fm_writer *w);

/* Removes the temporaries of dead owners from a folder. Failing harms nothing, and is not told. */
void fm_remove_dead_temps(const char *dir);

FM_CHECKED fm_status fm_pread_file(const char *path, uint64_t offset, void *dst, size_t len);
FM_CHECKED fm_status fm_make_dirs(const char *path); /* mkdir -p; existing is fine */
FM_CHECKED fm_status fm_fsync_dir(const char *path);
/* To another name on the same file system, durably: both folders are fsynced. */
FM_CHECKED fm_status fm_move_file(const char *from, const char *to);
FM_CHECKED fm_status fm_fsync_tree(const char *path);  /* every file and folder in it, and it */
FM_CHECKED fm_status fm_remove_file(const char *path); /* a missing file is fine */
FM_CHECKED fm_status fm_remove_tree(const char *path); /* rm -r; does not follow links */
bool fm_path_exists(const char *path);
bool fm_path_is_dir(const char *path);
/* `dir` holds something of this name. Allocates nothing: want of memory must not hide a file. */
bool fm_path_holds(const char *dir, const char *name);
FM_CHECKED fm_status fm_file_bytes(uint64_t *out, const char *path);
/* Time of its last change in nanoseconds since 1970; fm_touch_file sets it to now. */
FM_CHECKED fm_status fm_file_time(int64_t *out, const char *path);
FM_CHECKED fm_status fm_touch_file(const char *path);
/* Sets it to now by the exact clock, where changes made by the system count in ticks of some
 * milliseconds: a later one cannot have the same time. *out: what it is. FM_EUNSUPPORTED where the
 * file system keeps no such times. */
FM_CHECKED fm_status fm_mark_time(int64_t *out, const char *path);
char *fm_path_join(const char *a, const char *b); /* fm_free; NULL = ENOMEM */
/* Absolute, every link followed; owned. FM_ENOTFOUND, FM_EIO. */
FM_CHECKED fm_status fm_path_real(char **out, const char *path);
const char *fm_path_base(const char *path);       /* after the last '/', borrowed */

/* Names in a folder but "." and "..", in byte order. */
typedef struct fm_names {
    char **name;
    size_t count;
} fm_names;
FM_CHECKED fm_status fm_list_dir(fm_names *out, const char *path);
void fm_names_release(fm_names *names);

/* Advisory whole-repository lock (flock on an own file), held while a writer commits. */
typedef struct fm_lock fm_lock;
FM_CHECKED fm_status fm_lock_take(fm_lock **out, const char *path); /* waits */
/* Waits for an exclusive holder only; any number may share. */
FM_CHECKED fm_status fm_lock_share(fm_lock **out, const char *path);
/* Does not wait: FM_ECONFLICT where somebody holds it. Ended by fm_lock_end, which removes the
 * file. */
FM_CHECKED fm_status fm_lock_try(fm_lock **out, const char *path);
void fm_lock_end(fm_lock *lock, const char *path); /* NULL is a no-op */
/* Makes a file of one's own (FM_EEXISTS) and holds its lock, by which others see that the owner
 * lives. What is appended is seen by others at once and is not durable; dropping leaves the file. */
FM_CHECKED fm_status fm_lock_make(fm_lock **out, const char *path);
FM_CHECKED fm_status fm_lock_append(fm_lock *lock, const void *data, size_t len);
void fm_lock_drop(fm_lock *lock);
/* Nobody holds the lock of this file. False also where that cannot be told. */
bool fm_lock_is_free(const char *path);
/* Which file this is, whatever it is called: device and inode. */
FM_CHECKED fm_status fm_file_identity(uint64_t out[2], const char *path);

/* Tests: the nth next write-side call (open for write, write, fsync, rename, unlink) of the process
 * fails with errno `err`, or with err == 0 the process kills itself (SIGKILL) right there.
 * A program's own process is reached through tests/cli/kill_main.c. */
void fm_io_fail_at(uint64_t nth, int err);
uint64_t fm_io_call_count(void);

FM_END_DECLS
#endif
