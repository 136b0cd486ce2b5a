/* record.h - what the injector (inject.c) is told by its environment and what it writes down.
 *
 * A process started with LD_PRELOAD=<the module> passes every call by which it changes files
 * through the injector, libgit2's and SQLite's calls too. Only calls on files below FM_FAULT_ROOT
 * count.
 *
 *   FM_FAULT_ROOT     absolute path, no links in it; nothing happens without it
 *   FM_FAULT_AT       the nth such call (from 1) meets its fate; 0 or unset: none does
 *   FM_FAULT_HOW      ENOSPC, EDQUOT, EIO, EINTR: the call is not made and fails with it;
 *                     SHORT: a write does half of its bytes; KILL: SIGKILL before the call;
 *                     TORN: half of the bytes of a write, then SIGKILL
 *   FM_FAULT_FOREVER  with an errno: all calls from the nth on fail, but unlink, rmdir and close
 *   FM_FAULT_NOSYNC   fsync, fdatasync and msync are counted and not made
 *   FM_FAULT_LOG      a file: one record for each call that was made and succeeded, and for the
 *                     ones that failed by our doing. With FM_FAULT_DATA the bytes written follow
 *
 * The log is in host byte order: a record, path bytes, second path's bytes, data. */
#ifndef FM_TESTS_FAULT_RECORD_H
#define FM_TESTS_FAULT_RECORD_H

#include <stdint.h>

#define REC_MAGIC 0x46415543u

typedef enum rec_kind {
    REC_CREATE = 'O', /* open for writing; flag 1: the file was made, flag 2: it was emptied */
    REC_WRITE = 'W',
    REC_SYNC = 'S',
    REC_RENAME = 'R',
    REC_LINK = 'L',
    REC_UNLINK = 'U',
    REC_TRUNC = 'T',
    REC_MKDIR = 'D',
    REC_RMDIR = 'Y',
    REC_ALLOC = 'A',
    REC_COPY = 'C', /* copy_file_range, sendfile, a reflink: of unknown data */
    REC_MMAP = 'M', /* shared and writable */
    REC_MSYNC = 'I',
    REC_CLOSE = 'X',
    REC_META = 'N', /* times, modes */
} rec_kind;

typedef struct rec {
    uint32_t magic;
    uint32_t kind;
    uint32_t flags;
    int32_t failed; /* errno, 0 = it was made */
    uint64_t nth;
    uint64_t ino; /* of the file; of the folder where a folder is fsynced */
    uint64_t offset;
    uint64_t len; /* asked for; of REC_TRUNC the new size */
    uint32_t path_len, path2_len;
    uint64_t data_len; /* bytes that follow: what was really written */
} rec;

#endif
