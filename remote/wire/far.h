/* far.h - the far side of a fetch or a push, whatever it is reached by: a process on a pipe, a
 * server behind HTTP, files in object storage. One thread uses it at a time. */
#ifndef FM_REMOTE_WIRE_FAR_H
#define FM_REMOTE_WIRE_FAR_H

#include "remote/wire/message.h"

FM_BEGIN_DECLS

typedef struct fmr_far fmr_far;

/* Takes the bytes of records, in the order in which they were asked for. */
typedef struct fmr_sink {
    void *ctx;
    /* The record asked for as number `i` follows from its offset on; there false: the far side has
     * this record no more. */
    fm_status (*begin)(void *ctx, size_t i, bool there);
    fm_status (*bytes)(void *ctx, const void *data, size_t len);
    fm_status (*end)(void *ctx); /* of a record that was there */
} fmr_sink;

/* What travels on a put: info[i] from offset[i] on, out of a store. */
typedef struct fmr_load {
    fm_store *from;
    const fm_record_info *info;
    const uint64_t *offset;
    size_t count;
    fm_bytes_fn sent; /* told of each piece that went out, after it; may be NULL */
    void *ctx;
} fmr_load;

typedef struct fmr_far_ops {
    FM_CHECKED fm_status (*refs)(fmr_far *f, fm_exchange_ref_fn fn, void *ctx);
    /* fn is called with data NULL after each pack but the last, which may be left to the return. */
    FM_CHECKED fm_status (*git_get)(fmr_far *f, const fm_exchange_ask *ask, fm_bytes_fn fn,
                                    void *ctx);
    /* there[i]: out[i] is set. */
    FM_CHECKED fm_status (*info)(fmr_far *f, const fm_digest *id, size_t count, fm_record_info *out,
                                 bool *there);
    FM_CHECKED fm_status (*get)(fmr_far *f, const fmr_ask_record *ask, size_t count,
                                const fmr_sink *to);
    FM_CHECKED fm_status (*has)(fmr_far *f, const fm_digest *id, size_t count, bool *there);
    /* What an earlier push left cut (fm_intake_cut). */
    FM_CHECKED fm_status (*cut)(fmr_far *f, fmr_ask_record *out, bool *there);
    FM_CHECKED fm_status (*put)(fmr_far *f, const fmr_load *load);
    FM_CHECKED fm_status (*git_put)(fmr_far *f, fm_repo *from, const fm_exchange_ask *ask);
    FM_CHECKED fm_status (*move)(fmr_far *f, fm_ref_wish *wish, size_t count);
    void (*traffic)(fmr_far *f, uint64_t *in, uint64_t *out); /* bytes on the wire so far */
    void (*close)(fmr_far *f);
} fmr_far_ops;

struct fmr_far {
    const fmr_far_ops *ops;
    /* What its refs reach may be missing there (a bucket, a clone of the lineage alone), so a push
     * asks about all that its versions name. */
    bool unkept;
    fm_repo *repo; /* that fetches or pushes, set by these: files cannot decide what it has */
};

FM_END_DECLS
#endif
