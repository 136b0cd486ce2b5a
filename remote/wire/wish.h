/* wish.h - what a push does itself where no fmstore answers (a bucket, a git host): it decides
 * whether a ref may move, and joins results and notes. */
#ifndef FM_REMOTE_WIRE_WISH_H
#define FM_REMOTE_WIRE_WISH_H

#include "remote/wire/far.h"

FM_BEGIN_DECLS

bool fmr_is_no_oid(const fm_oid *oid);    /* zeros */
bool fmr_ref_is_shared(const char *name); /* results or notes: merged by union */
/* Sets the outcome of a wish that may not be granted, while the ref holds `now` there (zeros:
 * there is none), else FM_OK. here: where the wish comes from, which has the versions. */
FM_CHECKED fm_status fmr_wish_check(fm_repo *here, fm_ref_wish *w, const fm_oid *now);
FM_CHECKED fm_status fmr_wish_refuse(fm_ref_wish *w, fm_status status, const char *why);
/* The union of the results or notes there (`theirs`) with those here: made here, and sent by
 * git_put where it is more than theirs. */
FM_CHECKED fm_status fmr_unite(fmr_far *f, const char *name, const fm_oid *theirs, fm_oid *out);
/* Of two who collided both wait, for times that differ; more often tried, longer. */
FM_CHECKED fm_status fmr_wish_pause(unsigned tried);

FM_END_DECLS
#endif
