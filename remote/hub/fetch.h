/* fetch.h - files from the Hub to a folder, several at once, gone on with where they were cut. */
#ifndef FM_REMOTE_HUB_FETCH_H
#define FM_REMOTE_HUB_FETCH_H

#include "remote/hub/listing.h"

FM_BEGIN_DECLS

/* One file. All borrowed. */
typedef struct fmr_fetch_job {
    const char *what; /* for errors: "hf:org/name/config.json" */
    const char *url;
    const char *part; /* where its bytes gather; what is there already is gone on with */
    const char *path; /* where it lies in the end */
    const fmr_hub_file
        *file; /* size and digest; NULL: the server says the size, nothing the digest */
} fmr_fetch_job;

typedef struct fmr_fetch {
    const fmr_fetch_job *job;
    size_t count;
    const char *token; /* NULL: none */
    const char *page;  /* where access to a gated model is asked for */
    bool (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes); /* NULL; true stops */
    void *ctx;
} fmr_fetch;
/* The files are at their paths and have their digests. FM_ECORRUPT names the file whose bytes are
 * others; it is removed. After any other failure what came stays for the next call. */
FM_CHECKED fm_status fmr_fetch_all(const fmr_fetch *f);

FM_END_DECLS
#endif
