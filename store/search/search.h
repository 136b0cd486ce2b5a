/* search.h - finds what a new tensor is best coded against: a stored tensor or a recipe over such.
 *
 * Only trees that were offered are looked at, of more than FMS_OFFERS_MAX the nearest
 * (nearest.c). Where one candidate alone is at hand it is taken if it is a relation at all.
 * Candidates are judged by windows of one leaf of the tensor (4 of 4,096 elements); the best two by
 * the coded size of that leaf. The work a tensor is bounded: at most 8 tensors at its path, 4 pairs
 * of LoRA factors, 8 tensors of whose rows it may consist (64 MiB of them and 2^20 rows are read),
 * and 700 trials of windows. The same offers in the same order give the same choice. Not for
 * sharing between threads. */
#ifndef FM_STORE_SEARCH_H
#define FM_STORE_SEARCH_H

#include "store/pack/store_priv.h"

FM_BEGIN_DECLS

#define FMS_OFFERS_MAX 64u

typedef struct fms_search fms_search;

/* known: whether the object is stored or staged, and not condemned. */
typedef struct fms_search_env {
    fm_store *store;
    const fms_staged *staged; /* may be NULL */
    void *ctx;
    fm_status (*known)(void *ctx, const fm_digest *id, bool *out);
} fms_search_env;

/* env->staged must outlive the search. */
FM_CHECKED fm_status fms_search_new(fms_search **out, const fms_search_env *env);
void fms_search_free(fms_search *s);
/* What will be put next, with its bytes; borrowed until the last offer for it. From now on the
 * nearest FMS_OFFERS_MAX of all offers are kept (nearest.c), nearest first, behind those that were
 * offered before. */
FM_CHECKED fm_status fms_search_expect(fms_search *s, const fm_tree *tree, const fm_provider *from);
/* The tree is copied. Of more than FMS_OFFERS_MAX the rest is passed over: the farthest, or where
 * nothing is expected the last. */
FM_CHECKED fm_status fms_search_offer(fms_search *s, const fm_tree *tree);
uint64_t fms_search_passed_over(const fms_search *s); /* trees so far */

/* Sets the tree that is being put, borrowed until the next call; NULL: none. Its tensors can be
 * inputs once they are stored, so the caller puts them by fms_search_turn: 0, 1, 2. */
void fms_search_put_tree(fms_search *s, const fm_tree *tree);
FM_CHECKED fm_status fms_search_turn(unsigned *out, const fm_tree *tree, const fm_entry *e);

/* The tensor to be coded. leaf: the bytes of leaf i, in buf or elsewhere, until the next call. */
typedef struct fms_subject {
    const char *path; /* in its tree; NULL: not known, only `parent` is tried */
    const char *name; /* its true name; NULL: not known */
    fms_form form;
    const fm_digest *parent; /* same dtype and shape, tried first; may be NULL */
    void *ctx;
    fm_status (*leaf)(void *ctx, uint32_t i, uint8_t *buf, fm_span *out);
} fms_subject;

typedef struct fms_guess {
    fms_recipe recipe; /* params point into the search, valid until its next call */
    uint32_t parent_count;
    fm_digest parent[FMS_PARENTS_MAX];
    double bits; /* mean distance of sampled elements from the prediction; -1: not judged */
} fms_guess;

/* out->parent_count 0: code the tensor alone. Damaged candidates are skipped. */
FM_CHECKED fm_status fms_search_run(fms_search *s, const fms_subject *subject, fms_coder *coder,
                                    fms_guess *out);

FM_END_DECLS
#endif
