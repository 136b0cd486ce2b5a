/* fold.h - one adapter's change of one weight (adapted.h: which kinds), and the gradients of its
 * tensors: what training needs of the formulas.
 *
 * A fold makes a weight W' [out, in] of W and of the adapter's tensors for this module, in float32,
 * with the bits that the view of adapted.h has. From the gradient of W' it makes those of the
 * tensors. Kinds that come to low-rank factors (adalora, vera) have A [r, in] and B [out, r], W' =
 * W + B A, and gradients by these. */
#ifndef FM_STORE_FOLD_H
#define FM_STORE_FOLD_H

#include "store/tree.h"
#include "store/base/text/json.h"

FM_BEGIN_DECLS

#define FM_FOLD_PARTS 7u

typedef struct fm_fold fm_fold;

/* What a module is, for the formula. most_out, most_in: the greatest sizes of the modules that the
 * adapter changes, for which PEFT draws projections that are not stored. */
typedef struct fm_fold_of {
    const char *kind;   /* of the adapter's folder: "loha" */
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    const fm_json *config;
    uint64_t out, in, most_out, most_in;
} fm_fold_of;

/* Whether kinds of this name can be trained by a fold. */
bool fm_fold_knows(const char *kind);
/* The place in a formula of an adapter's tensor; -1: it is none of this kind's. *tail: length of
 * what stands behind the module's name. */
int fm_fold_part(const char *kind, const char *name, size_t *tail);
/* How the name of a part ends; a leading '/': a tensor of the whole adapter, "base_model.x". NULL:
 * the formula has no such part. */
const char *fm_fold_part_name(const char *kind, int part);
/* Whether a part is drawn once and never trained. */
bool fm_fold_part_fixed(const char *kind, int part);
/* shape[i]: of part i, NULL where it is absent. FM_EBASE: they do not fit out and in. */
FM_CHECKED fm_status fm_fold_new(fm_fold **out, const fm_fold_of *of,
                                 const fm_shape *const shape[FM_FOLD_PARTS]);
void fm_fold_free(fm_fold *f); /* NULL is fine */
/* Rank of the factors; 0: the fold changes W itself. */
uint32_t fm_fold_rank(const fm_fold *f);

/* w [out, in] holds W and gets W'. part[i]: values, NULL where absent. */
FM_CHECKED fm_status fm_fold_apply(const fm_fold *f, float *w, float *const part[FM_FOLD_PARTS]);
/* From W and dw, the gradient of W', sets grad[i] of the parts that train; NULL: not wanted. */
FM_CHECKED fm_status fm_fold_grad(const fm_fold *f, const float *w, const float *dw,
                                  float *const part[FM_FOLD_PARTS],
                                  float *const grad[FM_FOLD_PARTS]);
/* Draws values into what the formula allows, as PEFT does in each pass of a constrained OFT; false:
 * nothing was changed. */
bool fm_fold_settle(const fm_fold *f, float *const part[FM_FOLD_PARTS]);
/* A [r, in] or B [out, r] of a fold with a rank. */
FM_CHECKED fm_status fm_fold_factor(const fm_fold *f, float *dst, bool b,
                                    float *const part[FM_FOLD_PARTS]);
FM_CHECKED fm_status fm_fold_factor_grad(const fm_fold *f, const float *da, const float *db,
                                         float *const part[FM_FOLD_PARTS],
                                         float *const grad[FM_FOLD_PARTS]);

/* The first `count` places of a shuffle of 0 to n - 1, which is torch.randperm's of this seed. */
FM_CHECKED fm_status fm_fold_places(int64_t *out, size_t count, uint64_t n, uint64_t seed);

FM_END_DECLS
#endif
