/* io.h - files: the only door to open, write, fsync and rename, with fault injection.
 *
 * Files are never modified in place: a temporary is written, fsynced and renamed, and the folder is
 * fsynced. All paths are NUL-terminated bytes. Errors are FM_EIO (the text holds the path and
 * strerror), FM_ENOTFOUND where the file is missing, FM_ENOMEM. */
#ifndef FM_BASE_IO_H
#define FM_BASE_IO_H

#include "store/base/buf.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

/* Read-only mapping of a whole regular file; an empty one has len 0. fm_unmap_file accepts NULL. */
typedef struct fm_file_map {
    const uint8_t *data;
    size_t len;
} fm_file_map;
FM_CHECKED fm_status fm_map_file(fm_file_map *out, const char *path);
void fm_unmap_file(fm_file_map *map);
/* Drops the whole pages within the range from this process's memory; they may be read again. */
void fm_map_forget(const fm_file_map *map, size_t offset, size_t len);

FM_CHECKED fm_status fm_read_file(fm_buf *out, const char *path, size_t max_bytes); /* appends */
/* Replaces the file durably: temporary, fsync, rename, fsync of the folder. */
FM_CHECKED fm_status fm_write_file(const char *path, const void *data, size_t len);

/* Streaming writer: bytes go to a temporary file in `tmp_dir` (NULL: the target's own folder);
 * commit makes it durable at `path`; close without commit removes it. A writer remembers its first
 * error. The name of a temporary is "tmp-<pid>-<random>", and its owner holds an flock on it. */
typedef struct fm_writer fm_writer;
FM_CHECKED fm_status fm_writer_open(fm_writer **out, const char *path, const char *tmp_dir);
FM_CHECKED fm_status fm_writer_write(fm_writer *w, const void *data, size_t len);
/* Reserves blocks for a file of about this many bytes, where the file system can, so that a full
 * disk is reported before the work and the file is contiguous. FM_EIO: the disk is full. */
FM_CHECKED fm_status fm_writer_reserve(fm_writer *w, uint64_t bytes);
/* Appends bytes [offset, offset + len) of another file, inside the kernel where it can: file
 * systems that are able to (XFS, Btrfs) then share the blocks, others copy them without passing
 * them through this process. FM_ECORRUPT: the other file is shorter. */
FM_CHECKED fm_status fm_writer_copy(fm_writer *w, const char *path, uint64_t offset, uint64_t len);
void fm_io_copy_plainly(bool plainly); /* tests: never copy inside the kernel */
FM_CHECKED fm_status fm_writer_pwrite(fm_writer *w, uint64_t offset, const void *data, size_t len);
uint64_t fm_writer_offset(const fm_writer *w);
/* Reads back what was written so far (flushes first). FM_EINVAL beyond it. */
FM_CHECKED fm_status fm_writer_pread(fm_writer *w, uint64_t offset, void *dst, size_t len);
/* path: a name that is known only now (a file named by its digest); NULL: the one given at open. */
FM_CHECKED fm_status fm_writer_commit(fm_writer *w, const char *path);
/* As commit, but not durable: for files that can be made again and whose readers check them. */
FM_CHECKED fm_status fm_writer_place(fm_writer *w, const char *path);
void fm_writer_close(fm_writer *w);
/* true: close leaves the temporary with all that was written, so that a transfer can be gone on
 * with. Such files lie in a folder of their own: fm_remove_dead_temps would remove them. */
void fm_writer_keep(fm_writer *w, bool keep);
/* Goes on at the end of a temporary that was kept, and keeps it. FM_ECONFLICT: its owner lives, or
 * that cannot be found out; FM_ENOTFOUND: it went away. */
FM_CHECKED fm_status fm_writer_resume(fm_writer **out, const char *path);
/* What was written so far can be read through the file's path or mapping. */
FM_CHECKED fm_status fm_writer_flush(fm_writer *w);
/* Has the system begin to write to the disk what was flushed, where that is much, and does not
 * wait: the commit has less to wait for. */
void fm_writer_urge(fm_writer *w);
FM_CHECKED fm_status fm_writer_cut(fm_writer *w, uint64_t bytes); /* drops what follows */
const char *fm_writer_temp(const fm_writer *w); /* its path; NULL once committed; borrowed */
/* Maps the first len bytes, also where the file has yet to grow so far: only what was flushed may
 * be read. */
FM_CHECKED fm_status fm_writer_map(fm_file_map *out, const fm_writer *w, size_t len);

/* Removes dead owners' temporaries from a folder. A failure does no harm and is not reported. */
void fm_remove_dead_temps(const char *dir);

FM_CHECKED fm_status fm_pread_file(const char *path, uint64_t offset, void *dst, size_t len);
FM_CHECKED fm_status fm_make_dirs(const char *path); /* mkdir -p; existing is fine */
FM_CHECKED fm_status fm_fsync_dir(const char *path);
/* Renames within one file system, durably: both folders are fsynced. */
FM_CHECKED fm_status fm_move_file(const char *from, const char *to);
/* Gives a file a second name; where the file system cannot, the name is that of a copy. Neither is
 * to be written to. FM_EEXISTS. Not durable. */
FM_CHECKED fm_status fm_link_file(const char *from, const char *to);
FM_CHECKED fm_status fm_fsync_tree(const char *path);  /* every file and folder in it, and it */
FM_CHECKED fm_status fm_remove_file(const char *path); /* a missing file is fine */
FM_CHECKED fm_status fm_remove_tree(const char *path); /* rm -r; does not follow links */
bool fm_path_exists(const char *path);
bool fm_path_is_dir(const char *path); /* or a link to one */
bool fm_path_is_link(const char *path);
/* Whether `dir` has an entry of this name. No allocation: lack of memory must not hide a file. */
bool fm_path_holds(const char *dir, const char *name);
FM_CHECKED fm_status fm_file_bytes(uint64_t *out, const char *path);
/* Of all files below a folder; does not follow links, but path itself may be one. */
FM_CHECKED fm_status fm_tree_bytes(uint64_t *out, const char *path);
/* The time of the last change in nanoseconds since 1970; fm_touch_file sets it to now. */
FM_CHECKED fm_status fm_file_time(int64_t *out, const char *path);
FM_CHECKED fm_status fm_touch_file(const char *path);
/* Sets *out and the file's time to now by the exact clock. The system stamps changes in ticks of
 * some milliseconds, so no later one can have this time. FM_EUNSUPPORTED where the file system
 * keeps no such times. */
FM_CHECKED fm_status fm_mark_time(int64_t *out, const char *path);
char *fm_path_join(const char *a, const char *b); /* fm_free; NULL = ENOMEM */
/* The absolute path with every link followed; *out is freed by fm_free. FM_ENOTFOUND, FM_EIO. */
FM_CHECKED fm_status fm_path_real(char **out, const char *path);
const char *fm_path_base(const char *path); /* after the last '/', borrowed */

/* Names in a folder but "." and "..", in byte order. */
typedef struct fm_names {
    char **name;
    size_t count;
} fm_names;
FM_CHECKED fm_status fm_list_dir(fm_names *out, const char *path);
void fm_names_release(fm_names *names);

/* Advisory lock: an flock on a file made for it, whose path is given. */
typedef struct fm_lock fm_lock;
FM_CHECKED fm_status fm_lock_take(fm_lock **out, const char *path); /* waits */
/* Shared: waits only for an exclusive holder. */
FM_CHECKED fm_status fm_lock_share(fm_lock **out, const char *path);
/* Does not wait: FM_ECONFLICT: another process holds it. fm_lock_end also removes the file. */
FM_CHECKED fm_status fm_lock_try(fm_lock **out, const char *path);
void fm_lock_end(fm_lock *lock, const char *path); /* NULL is a no-op */
/* Makes a new file (FM_EEXISTS) and holds its lock, which shows other processes that the owner
 * lives. Appended bytes are visible to them at once and not durable; dropping leaves the file. */
FM_CHECKED fm_status fm_lock_make(fm_lock **out, const char *path);
FM_CHECKED fm_status fm_lock_append(fm_lock *lock, const void *data, size_t len);
void fm_lock_drop(fm_lock *lock);
/* No process holds the lock of this file. False also where that cannot be found out. */
bool fm_lock_is_free(const char *path);
/* Device and inode, which identify a file whatever its name. */
FM_CHECKED fm_status fm_file_identity(uint64_t out[2], const char *path);
FM_CHECKED fm_status fm_file_owner(uint64_t *uid, const char *path); /* follows links */

/* Tests: the nth next write-side call (open for write, write, fsync, rename, unlink) of the process
 * fails with errno `err`, or with err == 0 the process kills itself (SIGKILL) right there.
 * tests/cli/kill_main.c does this in the fmstore program. */
void fm_io_fail_at(uint64_t nth, int err);
uint64_t fm_io_call_count(void);

FM_END_DECLS
#endif
