/* fold_impl.h - gradients of the formulas that train. */
#ifndef FM_STORE_FOLD_IMPL_H
#define FM_STORE_FOLD_IMPL_H

#include "store/adapt/adapt_impl.h"
#include "store/fold.h"

/* What a gradient is made of. w->w is W, which stays as it is; dw [out, in]: the gradient of the
 * changed weight; grad[i]: written where it is not NULL. */
typedef struct adt_back {
    const adt_work *w;
    const float *dw;
    float *const *grad;
} adt_back;

fm_status adt_loha_grad(const adt_back *b);
fm_status adt_lokr_grad(const adt_back *b);
fm_status adt_oft_grad(const adt_back *b);
fm_status adt_randlora_grad(const adt_back *b);
fm_status adt_shira_grad(const adt_back *b);
fm_status adt_fourierft_grad(const adt_back *b);
fm_status adt_miss_grad(const adt_back *b);
fm_status adt_boft_grad(const adt_back *b);
fm_status adt_hra_grad(const adt_back *b);
/* From the gradients of the factors A [r, in] and B [out, r] to those of the parts. */
typedef fm_status (*adt_factors_grad)(const adt_work *w, const float *da, const float *db,
                                      float *const *grad);
fm_status adt_adalora_grad(const adt_work *w, const float *da, const float *db, float *const *grad);
fm_status adt_vera_grad(const adt_work *w, const float *da, const float *db, float *const *grad);

/* COFT: draws the vectors of oft_R into their ball; false: all were in it. */
bool adt_oft_settle(const adt_step *s, float *const *part);

/* Products that gradients consist of, summed in ascending order. */
void adt_product(float *out, const float *a, const float *b, uint64_t n, uint64_t r, uint64_t m);
/* da [n, r] = d b^T, db [r, m] = a^T d of a product a b with gradient d [n, m]; NULL: unwanted. */
void adt_product_grad(float *da, float *db, const float *d, const float *a, const float *b,
                      uint64_t n, uint64_t r, uint64_t m);

#endif
