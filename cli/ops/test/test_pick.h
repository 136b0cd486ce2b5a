/* test_pick.h - chooses the cases of a suite that run, their order, and when to stop early. */
#ifndef FM_OPS_TEST_PICK_H
#define FM_OPS_TEST_PICK_H

#include "cli/ops/test.h"

/* Chooses the cases. FM_EINVAL: a slice that is no key=value. p->count 0: no case was chosen. */
fm_status fmo_test_part_open(fm_test_part *p, const fm_suite *s, const fm_test_choice *choice);
void fmo_test_part_release(fm_test_part *p);
/* The cases to run next, and their number; 0: the part is done. */
size_t fmo_test_part_next(const fm_test_part *p, const size_t **pick);
/* Call it after these ran, with all results so far in run. */
void fmo_test_part_look(fm_test_part *p, const fm_suite_run *run);

#endif
