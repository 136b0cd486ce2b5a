/* githost.h - the far side as two places: the lineage on a git host where nothing of ours runs, the
 * tensors in a bucket (../README.md).
 *
 * A push commits the packs to the bucket first and moves the host's refs last, and whoever reads
 * asks for the refs first and for the bucket's list after that: so no ref is ever seen whose
 * tensors the bucket does not name. */
#ifndef FM_REMOTE_GITHOST_GITHOST_H
#define FM_REMOTE_GITHOST_GITHOST_H

#include "remote/link/open.h"

FM_BEGIN_DECLS

/* FM_EINVAL: these two cannot be a remote: of `git` a scheme that git has not, of `packs` one that
 * is no bucket. */
FM_CHECKED fm_status fmr_githost_check(const fmr_url *git, const fmr_url *packs);
/* Nothing is asked before the first use. text: the git URL as it was given; what it refers to is
 * copied. */
FM_CHECKED fm_status fmr_open_githost(fmr_far **out, const char *text, const fmr_url *packs,
                                      fmr_service service, const fmr_open_opts *opts);

FM_END_DECLS
#endif
