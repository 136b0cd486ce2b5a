/* ref.h - what the oracle's files share. */
#ifndef FM_INFER_CPU_REF_H
#define FM_INFER_CPU_REF_H

#include "infer/backend.h"

struct fm_weight {
    uint32_t n, k;
    float *w; /* [n, k] */
};

/* [n, k], borrowed */
static inline float *fmi_ref_weight(const fm_weight *w, uint32_t *n, uint32_t *k)
{
    *n = w->n;
    *k = w->k;
    return w->w;
}

void fmi_ref_train_install(fm_backend *be);
void fmi_ref_act_install(fm_backend *be);
void fmi_ref_loss_install(fm_backend *be);
void fmi_ref_backward_install(fm_backend *be);
void fmi_train_install(fm_backend *be); /* train.c: made of other operations */

#endif
