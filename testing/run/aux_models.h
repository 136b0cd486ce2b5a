/* aux_models.h - models of the repository that are asked about answers. */
#ifndef FM_TESTING_HELP_H
#define FM_TESTING_HELP_H

#include "testing/assert/assert.h"

/* Models and forms of a run; open until its answers are judged. */
typedef struct fmi_helpers fmi_helpers;
void fmi_helpers_free(fmi_helpers *h);

void fmi_help_release(fmi_help *h);
#endif
