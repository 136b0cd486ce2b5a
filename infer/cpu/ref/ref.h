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

/* What the oracle has: fmi_ref_<op>. */
#define FMI_REF_OPS(X) FM_BACKEND_FORWARD(X) FM_BACKEND_TRAINING(X)
#define FMI_DECLARE(op) FM_BACKEND_FN(op, fmi_ref_##op);
FMI_REF_OPS(FMI_DECLARE)
#undef FMI_DECLARE

#endif
