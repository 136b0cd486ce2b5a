/* ref.h - what the oracle's files share. */
#ifndef FM_INFER_CPU_REF_H
#define FM_INFER_CPU_REF_H

#include "infer/backend.h"

void fmi_ref_train_install(fm_backend *be);
void fmi_ref_act_install(fm_backend *be);
void fmi_ref_loss_install(fm_backend *be);
void fmi_ref_backward_install(fm_backend *be);
void fmi_train_install(fm_backend *be); /* train.c: made of other operations */
float *fmi_ref_weight(const fm_weight *w, uint32_t *n, uint32_t *k); /* [n, k], borrowed */

#endif
