/* remote.h - other repositories: what they hold, and versions fetched from them and pushed to them.
 *
 * Only what is missing travels: git objects by have and want, tensors and files by their ids. A
 * delta travels as the delta, with what it is coded against where the other side lacks it. All of
 * it is verified on arrival, before any ref moves; what arrived is kept when a transfer breaks
 * off, and the next one goes on with it. URLs: remote/link/url.h.
 *
 * fetch brings objects and moves no ref; its caller moves them (fm_refs_move). push moves the other
 * side's refs, each by compare-and-swap. */
#ifndef FM_REMOTE_REMOTE_H
#define FM_REMOTE_REMOTE_H

#include "lineage/exchange.h"

FM_BEGIN_DECLS

typedef struct fm_remote fm_remote;
typedef struct fm_remote_opts {
    const char *url;
    /* The bucket that has the tensors, where url is a git host, which has the lineage; NULL: url
     * has both. */
    const char *packs;
    bool write;          /* for push */
    const char
        *ssh; /* the command in the place of ssh; NULL: ssh. $GIT_SSH_COMMAND goes before it */
    const char *program; /* fmstore at the other end of ssh; NULL: "fmstore" */
    /* Certificates to trust in the place of the system's (PEM). NULL: $GIT_SSL_CAINFO, else git's
     * http.sslCAInfo, else the system's. */
    const char *ca_file;
} fm_remote_opts;
/* FM_EINVAL: no URL; FM_EUNSUPPORTED: packs are given, and git is missing; FM_ENOTFOUND: no
 * repository is there; FM_EREFUSED: it cannot be written; FM_EVERSION: it speaks a newer protocol;
 * FM_EIO: it cannot be reached. */
FM_CHECKED fm_status fm_remote_open(fm_remote **out, const fm_remote_opts *opts);
void fm_remote_close(fm_remote *m);            /* NULL is fine */
const char *fm_remote_url(const fm_remote *m); /* as it may be shown: without user and password */
/* FM_EINVAL: no URL that fm_remote_open would take, or with packs (may be NULL) no such two. */
FM_CHECKED fm_status fm_remote_check_url(const char *url, const char *packs);
/* Makes an empty bucket in a folder: a remote that is only files (remote/bucket/README.md).
 * FM_EEXISTS: one is there. */
FM_CHECKED fm_status fm_remote_make_bucket(const char *dir);
/* Its branches, tags, notes and results, by name. */
FM_CHECKED fm_status fm_remote_refs(fm_remote *m, fm_exchange_ref_fn fn, void *ctx);

typedef struct fm_travel {
    uint64_t objects, bytes;    /* tensors and files that travelled (dry run: would), as stored */
    uint64_t wire_in, wire_out; /* bytes on the connection so far */
} fm_travel;

typedef struct fm_fetch {
    const fm_oid *want; /* commits or annotated tags of the remote's refs */
    size_t wants;
    bool lineage_only; /* git objects, and files of up to 16 MiB; tensors stay there */
    bool dry_run;      /* git objects come, so that the rest can be counted, and nothing else */
    fm_progress_fn progress; /* of bytes as stored; may be NULL; true cancels */
    void *ctx;
} fm_fetch;
/* Takes a writer's lease on r, which lasts until r is closed, so that refs can be moved to what
 * came. FM_ENOTFOUND: the remote lacks something that its versions name; the text says what. */
FM_CHECKED fm_status fm_remote_fetch(fm_remote *m, fm_repo *r, const fm_fetch *f, fm_travel *out);
/* Brings objects by their ids, with all that they are coded against; those that are stored here are
 * passed over. *absent: how many the remote lacks. */
FM_CHECKED fm_status fm_remote_bring(fm_remote *m, fm_repo *r, const fm_digest *id, size_t count,
                                     fm_progress_fn progress, void *ctx, size_t *absent,
                                     fm_travel *out);

typedef struct fm_push {
    fm_ref_wish *wish; /* of the remote's refs; each gets its outcome. dry_run: none is tried */
    size_t count;
    /* The last so many wishes are fulfilled, by what the remote's refs hold: what their versions
     * name is asked about only where the remote may lack some of it, and they are tried only if it
     * does. */
    size_t settled;
    const fm_oid *theirs; /* what the remote's refs hold, for what need not travel */
    size_t their_count;
    bool dry_run;
    fm_progress_fn progress;
    void *ctx;
} fm_push;
/* FM_OK: refs were tried; a wish's status has its outcome. */
FM_CHECKED fm_status fm_remote_push(fm_remote *m, fm_repo *r, fm_push *p, fm_travel *out);

FM_END_DECLS
#endif
