/* listing.h - what the Hub's API says about a revision, and which of its files a version can
 * hold. */
#ifndef FM_REMOTE_HUB_LISTING_H
#define FM_REMOTE_HUB_LISTING_H

#include "remote/http/http.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

#define FMR_HUB_FILE_MAX_BYTES ((uint64_t)1 << 44)
#define FMR_HUB_PLAIN_MAX_BYTES ((uint64_t)64 << 20) /* of a file that is not in LFS */

typedef struct fmr_hub_file {
    char *name; /* a safe relative path */
    uint64_t bytes;
    bool lfs;
    fm_digest sha256; /* of LFS files */
    char etag[65];    /* LFS: the SHA-256, others: git's id of the blob; its name in a cache */
    /* what becomes of it */
    bool take;
    const char *why_not; /* static text */
} fmr_hub_file;

typedef struct fmr_listing {
    char commit[41];
    fmr_hub_file *file; /* by name */
    size_t count, cap;
    const char *index; /* the file that names the weights' shards, taken too; NULL: there is none */
} fmr_listing;

/* Reads the answer of /api/models/<repo>/revision/<rev>?blobs=true. FM_ECORRUPT names the field:
 * hostile input. what: for errors. */
FM_CHECKED fm_status fmr_listing_parse(fmr_listing *out, fm_span text, const char *what);
void fmr_listing_release(fmr_listing *l);
fmr_hub_file *fmr_listing_find(const fmr_listing *l, const char *name); /* NULL: not there */

/* Marks what import takes of a folder with these files; of weights in shards only the index: these
 * are marked by fmr_listing_choose_shards, which reads it. FM_ENOTFOUND: no weights that import
 * reads in a folder; the text names what could be imported alone. */
FM_CHECKED fm_status fmr_listing_choose(fmr_listing *l, const char *what);
FM_CHECKED fm_status fmr_listing_choose_shards(fmr_listing *l, fm_span index, const char *what);
/* Marks one file. FM_ENOTFOUND names others. */
FM_CHECKED fm_status fmr_listing_choose_one(fmr_listing *l, const char *file, const char *what);

/* Turns an answer that is no success into a failure in plain words, by the X-Error-Code that the
 * Hub gives. what: "hf:org/name"; page: where access is asked for; has_token: one was sent. */
FM_CHECKED fm_status fmr_hub_explain(const fmr_answer *a, const char *what, const char *page,
                                     bool has_token);

FM_END_DECLS
#endif
