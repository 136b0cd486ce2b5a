/* answers.h - what git prints: the refs of a host, and what became of those that were pushed.
 * Pure: a fuzzer can call it. */
#ifndef FM_REMOTE_GITHOST_ANSWERS_H
#define FM_REMOTE_GITHOST_ANSWERS_H

#include "lineage/exchange.h"

FM_BEGIN_DECLS

#define FMR_HOST_REFS_MAX 200000u
#define FMR_KEPT "refs/fmstore/kept/" /* and 40 hex digits: of a version that others name */

typedef struct fmr_host_refs {
    struct fmr_host_ref {
        char *name;
        fm_oid oid, peeled; /* peeled: as fm_exchange_ref_fn has it */
    } * ref;
    fm_oid *kept;
    size_t count, kept_count, ref_cap, kept_cap;
} fmr_host_refs;
/* Of `git ls-remote`; refs of other kinds are passed over. FM_ECORRUPT: a line is none of its;
 * FM_EUNSUPPORTED: a repository of SHA-256. A failure leaves nothing to release. */
FM_CHECKED fm_status fmr_host_refs_parse(fmr_host_refs *out, fm_span text, const char *what);
void fmr_host_refs_release(fmr_host_refs *refs);
const struct fmr_host_ref *fmr_host_refs_find(const fmr_host_refs *refs, const char *name);

/* Calls fn for each ref of `git push --porcelain`. why: "" where it moved, or was so already. Both
 * texts are cut to what the arrays hold. */
typedef void (*fmr_pushed_fn)(void *ctx, const char *name, bool moved, const char *why);
void fmr_push_report(fm_span text, fmr_pushed_fn fn, void *ctx);

FM_END_DECLS
#endif
