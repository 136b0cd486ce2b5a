/* aux_models.h - models of the repository that are asked about answers. */
#ifndef FM_TESTING_HELP_H
#define FM_TESTING_HELP_H

#include "testing/assert/assert.h"

/* Models and forms of a run; open until its answers are judged. */
typedef struct fmi_helpers fmi_helpers;
void fmi_helpers_free(fmi_helpers *h);

/* Adds one text that the helper is to read. */
fm_status fmi_help_text(fmi_help *h, fm_span text);
void fmi_help_release(fmi_help *h);
/* FM_EUNSUPPORTED: not finite. */
fm_status fmi_cosine(double *out, const float *a, const float *b, size_t n);
/* The class of that label; FM_EINVAL lists those there are. */
fm_status fmi_class_of(uint32_t *out, const fm_model *m, const char *label);
/* The JSON Schema of the replies to a judge's assertion; what a reply says. */
const char *fmi_judge_form(const fmi_assertion *a);
fm_status fmi_judge_reply(const fmi_assertion *a, fm_span text, fmi_grade *out);

#endif
