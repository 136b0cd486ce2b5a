/* test_pick.h - which cases of a suite are asked, in which order, and when enough is known. */
#ifndef FM_OPS_TEST_PICK_H
#define FM_OPS_TEST_PICK_H

#include "cli/ops/test.h"

/* FM_EINVAL: a slice that is no key=value. count 0: nothing of this suite was chosen. */
fm_status fmo_test_part_open(fm_test_part *p, const fm_suite *s, const fm_test_choice *choice);
void fmo_test_part_release(fm_test_part *p);
/* The cases to ask next; 0: enough is known. */
size_t fmo_test_part_next(const fm_test_part *p, const size_t **pick);
/* After these were asked: run holds all so far. */
void fmo_test_part_look(fm_test_part *p, const fm_suite_run *run);

#endif
