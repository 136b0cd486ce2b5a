/* aux_models.h - models of the repository that are asked about answers. */
#ifndef FM_TESTING_HELP_H
#define FM_TESTING_HELP_H

#include "testing/assert/assert.h"

/* Models and forms of a run; open until its answers are judged. */
typedef struct fmv_helpers fmv_helpers;
void fmv_helpers_free(fmv_helpers *h);

void fmv_help_release(fmv_help *h);
#endif
