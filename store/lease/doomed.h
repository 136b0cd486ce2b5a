/* doomed.h - the list of the objects that gc found unreached and will delete after their grace.
 *
 * A reader still finds condemned objects. For a writer whose lease began after they were condemned
 * they are not stored, so it stores them again. The file is replaced whole and durably; when it is
 * lost or damaged nothing is condemned, which costs a grace period and no data. */
#ifndef FM_STORE_DOOMED_H
#define FM_STORE_DOOMED_H

#include "store/base/math/hash.h"
#include "store/base/map.h"
#include "store/base/mem.h"

FM_BEGIN_DECLS

#define FMS_GIT_ID_BYTES 20u

/* Objects condemned at one time, and the writers' leases that lived then: each of these writers may
 * have found one of the objects stored, and may move a ref to it. */
typedef struct fms_batch {
    int64_t time; /* seconds since 1970 */
    char **lease; /* sorted */
    size_t lease_count, lease_cap;
    uint64_t ids; /* number of ids in this batch */
} fms_batch;

typedef struct fms_condemned {
    fms_batch *batch; /* oldest first */
    size_t batch_count, batch_cap;
    fm_map *object, *git; /* id (32 bytes, 20 bytes) -> 1 + number of its batch, as a pointer */
} fms_condemned;

FM_CHECKED fm_status fms_condemned_new(fms_condemned **out);
void fms_condemned_free(fms_condemned *c);
/* A missing file is an empty list. FM_ECORRUPT: damaged, and *out is an empty list all the same. */
FM_CHECKED fm_status fms_condemned_read(fms_condemned **out, const char *root);
/* Durable on return. Batches without ids are left out; an empty list removes the file. sum (may be
 * NULL) gets the digest that fms_condemned_sum will give. */
FM_CHECKED fm_status fms_condemned_write(const fms_condemned *c, const char *root, fm_digest *sum);
/* SHA-256 of the file, zeros where there is none. */
FM_CHECKED fm_status fms_condemned_sum(fm_digest *out, const char *root);

FM_CHECKED fm_status fms_condemned_add_batch(fms_condemned *c, int64_t time);
FM_CHECKED fm_status fms_condemned_add_lease(fms_condemned *c, const char *name); /* last batch */
/* An id that is listed already stays in its batch. */
FM_CHECKED fm_status fms_condemned_add_object(fms_condemned *c, size_t batch, const fm_digest *id);
FM_CHECKED fm_status fms_condemned_add_git(fms_condemned *c, size_t batch, const uint8_t *id);
/* The batch of an id; NULL: it is not condemned. */
const fms_batch *fms_condemned_object(const fms_condemned *c, const fm_digest *id);
const fms_batch *fms_condemned_git(const fms_condemned *c, const uint8_t *id);

/* Parses the file's text; public for the fuzzer. */
FM_CHECKED fm_status fms_condemned_parse(fms_condemned *c, fm_span text, const char *what);

FM_END_DECLS
#endif
