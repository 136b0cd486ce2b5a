/* stage_plan.h - the memory that a training over stages will take, from what one process takes. */
#ifndef FM_TRAIN_STAGE_PLAN_H
#define FM_TRAIN_STAGE_PLAN_H

#include "train/run/child.h"

FM_BEGIN_DECLS

/* The children are open, whole; pass: laid out for all of them; whole: what it takes. */
FM_CHECKED fm_status fmt_stages_plan(fm_stages_plan *out, const fm_plan *whole, fmt_child *child,
                                     size_t n, const fmt_pass *pass, uint32_t ranks,
                                     uint32_t stages);

FM_END_DECLS
#endif
