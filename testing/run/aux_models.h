/* aux_models.h - auxiliary models: models of the repository that are asked about answers. */
#ifndef FM_TESTING_AUX_MODELS_H
#define FM_TESTING_AUX_MODELS_H

#include "testing/assert/assert.h"

/* Models and reply grammars of a run, which stay open until its answers are judged. */
typedef struct fmv_aux_models fmv_aux_models;
void fmv_aux_models_free(fmv_aux_models *h);

void fmv_aux_release(fmv_aux *h);
#endif
