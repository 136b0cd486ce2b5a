/* githost_impl.h - an open git host with its bucket, for the files of this folder. */
#ifndef FM_REMOTE_GITHOST_GITHOST_IMPL_H
#define FM_REMOTE_GITHOST_GITHOST_IMPL_H

#include "remote/githost/answers.h"
#include "remote/githost/githost.h"
#include "remote/link/process.h"

FM_BEGIN_DECLS

typedef struct fmr_githost {
    fmr_far far;
    fmr_service service;
    char *url;           /* for git */
    char *shown;         /* for errors: without a user */
    char *ssh, *ca_file; /* NULL: as git is set up */
    fmr_url packs;
    fmr_far *bucket; /* NULL: not opened yet */
    fmr_host_refs refs;
    bool listed;
    uint64_t in, out; /* of git's objects, and of buckets that are closed */
} fmr_githost;

static inline fmr_githost *fmr_githost_of(fmr_far *f)
{
    return (fmr_githost *)f;
}

/* ---- call.c: one call of git ---- */
/* Its words; each is freed by fmr_call_release. A call that failed once stays failed. */
typedef struct fmr_call {
    char **argv;
    size_t count, cap;
    fm_status rc;
} fmr_call;
/* git_dir: the repository that it works in. */
void fmr_call_init(fmr_call *c, const fmr_githost *h, const char *git_dir);
void fmr_call_add(fmr_call *c, const char *format, ...) FM_PRINTF(2, 3);
void fmr_call_release(fmr_call *c);
/* FM_EIO with git's words where it exits with another code than 0 and 1 (1: a push of which refs
 * were refused). */
FM_CHECKED fm_status fmr_call_run(fmr_call *c, const fmr_githost *h, fmr_git_run *run);
/* What the host itself said (lines "remote: ..."), else all that git did, as one line. */
void fmr_call_words(const fmr_git_run *run, bool remote, char *out, size_t cap);

/* ---- githost.c ---- */
FM_CHECKED fm_status fmr_githost_list(fmr_githost *h);   /* reads the host's refs anew */
FM_CHECKED fm_status fmr_githost_bucket(fmr_githost *h); /* opens it */

/* ---- fetch.c, push.c ---- */
/* Makes an empty repository for git in dir. borrow: with the lineage's objects in root. */
FM_CHECKED fm_status fmr_githost_repo(const char *dir, const char *root, bool borrow);
FM_CHECKED fm_status fmr_githost_get(fmr_far *f, const fm_exchange_ask *ask, fm_bytes_fn fn,
                                     void *ctx);
FM_CHECKED fm_status fmr_githost_put(fmr_far *f, fm_repo *from, const fm_exchange_ask *ask);
FM_CHECKED fm_status fmr_githost_move(fmr_far *f, fm_ref_wish *wish, size_t count);

FM_END_DECLS
#endif
