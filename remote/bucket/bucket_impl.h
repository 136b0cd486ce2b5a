/* bucket_impl.h - an open bucket, for the files of this folder. */
#ifndef FM_REMOTE_BUCKET_BUCKET_IMPL_H
#define FM_REMOTE_BUCKET_BUCKET_IMPL_H

#include "remote/bucket/crew.h"
#include "remote/bucket/door.h"
#include "remote/bucket/heads.h"
#include "remote/bucket/manifest.h"
#include "remote/wire/far.h"

FM_BEGIN_DECLS

/* Defaults; tests set less. */
#define FMR_PACK_BYTES ((uint64_t)1 << 30)  /* a pack that has these ends with the record */
#define FMR_PART_BYTES ((uint64_t)16 << 20) /* of an upload; doubled for a very long pack */
#define FMR_PIECE_BYTES ((uint64_t)8 << 20) /* of a pack that are read by one request */

typedef struct fmr_bucket {
    fmr_far far;
    fmr_service service;
    uint64_t pack_bytes, part_bytes, piece_bytes;
    fmr_door *door;
    fmr_door *worker[FMR_CREW_MAX]; /* the doors of a crew's threads; opened when first needed */
    fmr_manifest manifest;
    char tag[FMR_TAG_MAX]; /* of the manifest; "": there is none yet */
    fmr_heads heads;
    bool has_heads;
    fmr_manifest fresh;     /* what this push has brought: packs, and git packs */
    fm_map *listed;         /* names of a folder of objects -> their sizes; writers only */
    struct fm_arena *arena; /* of these sizes */
} fmr_bucket;

static inline fmr_bucket *fmr_bucket_of(fmr_far *f)
{
    return (fmr_bucket *)f;
}

#define FMR_OBJECT_MAX 96u /* "lineage/<digest>.pack", with its NUL */
void fmr_pack_name(char out[FMR_OBJECT_MAX], const fm_digest *d);
void fmr_heads_name(char out[FMR_OBJECT_MAX], const fm_digest *d);
void fmr_git_name(char out[FMR_OBJECT_MAX], const fm_digest *d);

/* ---- bucket.c ---- */
/* Reads the manifest anew; the heads are read again after it. */
FM_CHECKED fm_status fmr_bucket_load(fmr_bucket *b);
FM_CHECKED fm_status fmr_bucket_workers(fmr_bucket *b);

/* ---- read.c ---- */
FM_CHECKED fm_status fmr_bucket_heads(fmr_bucket *b); /* reads the heads, once */
FM_CHECKED fm_status fmr_bucket_git_get(fmr_far *f, const fm_exchange_ask *ask, fm_bytes_fn fn,
                                        void *ctx);
FM_CHECKED fm_status fmr_bucket_info(fmr_far *f, const fm_digest *id, size_t count,
                                     fm_record_info *out, bool *there);
FM_CHECKED fm_status fmr_bucket_get(fmr_far *f, const fmr_ask_record *ask, size_t count,
                                    const fmr_sink *to);

/* ---- write.c ---- */
FM_CHECKED fm_status fmr_bucket_has(fmr_far *f, const fm_digest *id, size_t count, bool *there);
FM_CHECKED fm_status fmr_bucket_put(fmr_far *f, const fmr_load *load);
FM_CHECKED fm_status fmr_bucket_git_put(fmr_far *f, fm_repo *from, const fm_exchange_ask *ask);
/* Lists the objects, and marks the packs that the manifest names and the bucket has not. To be
 * called after the manifest was read: what it names was there before it. FM_ECORRUPT: a git pack
 * is gone. */
FM_CHECKED fm_status fmr_bucket_list(fmr_bucket *b);

/* ---- move.c ---- */
FM_CHECKED fm_status fmr_bucket_move(fmr_far *f, fm_ref_wish *wish, size_t count);

FM_END_DECLS
#endif
