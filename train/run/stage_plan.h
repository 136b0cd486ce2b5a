/* stage_plan.h - the memory that a training over stages will take, computed from one process's. */
#ifndef FM_TRAIN_STAGE_PLAN_H
#define FM_TRAIN_STAGE_PLAN_H

#include "train/run/child.h"

FM_BEGIN_DECLS

/* Fills out. The children are open with whole models; pass is laid out for all of them; whole is
 * the plan of one process. */
FM_CHECKED fm_status fmt_stages_plan(fm_stages_plan *out, const fm_plan *whole, fmt_child *child,
                                     size_t n, const fmt_pass *pass, uint32_t ranks,
                                     uint32_t stages);

FM_END_DECLS
#endif
