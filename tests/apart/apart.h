/* apart.h - a device that the host cannot see, made of the CPU backend, for tests.
 *
 * Its memory is addresses of which every byte faults when the host touches it; operations, upload
 * and download reach it through a second mapping. Whatever an operation is given as device memory
 * must be live memory of it, or the program stops and names the operation: so neither side takes
 * the other's for its own. Bits are those of the CPU in the same mode.
 *
 * Late, operations are queued with what they were given by value, and run at sync, download or wait
 * alone: what reads a result early, or frees what is still needed, shows. A late device also
 * samples (by the host's sampler), fetches, and keeps steps for replay.
 *
 * Link with -Wl,--wrap=fm_backend_open_on and wrap.c: then every engine of the program is on
 * such a device (apart_use). */
#ifndef FM_TESTS_APART_H
#define FM_TESTS_APART_H

#include "infer/backend.h"

typedef enum apart_kind {
    APART_OFF,   /* the CPU itself */
    APART_NOW,   /* operations run when they are called */
    APART_LATE,  /* they run when somebody waits */
    APART_PLAIN, /* late, without what a device may have beyond the needed slots */
} apart_kind;

FM_CHECKED fm_status apart_open(fm_backend **out, apart_kind kind, const char *mode, fm_pool *pool);

/* What engines of this program get from now on (APART_LATE at first). */
void apart_use(apart_kind kind);

/* Since the device was opened. */
typedef struct apart_stats {
    uint64_t ops, uploads, downloads, fetches, samples, recorded, replayed;
    uint64_t download_bytes, fetch_bytes;
    uint64_t waits_ahead; /* waits that left later operations in the queue */
} apart_stats;
apart_stats apart_stats_of(const fm_backend *be);

/* The operation after the next `ops` ones fails with FM_EIO "apart: it was told to fail"; and all
 * behind it do nothing until sync or wait said so. */
void apart_fail_after(fm_backend *be, uint64_t ops);

#endif
