/* merge.h - the weights of one model out of those of several: weighted average, task arithmetic.
 *
 * The sums are the store's own recipe LINEAR (FORMAT.md, "Recipes"), so that a merged tensor is
 * stored as that sum and takes next to no space. Per element, with every operation rounded to
 * float32, inputs in the order of the parts, and one rounding to the result's dtype at the end:
 *   AVERAGE  c0 x0, then + ck xk
 *   TASK     x + (c0 (x0 - x) + c1 (x1 - x) + ...), x the base's; parts whose tensor is the base's
 *            are left out (Ilharco et al. 2023)
 * Coefficients are rounded to float32 first. A LoRA of a part is merged before the sum, in float32
 * and without rounding to the weight's dtype (recipe LORA). */
#ifndef FM_STORE_MERGE_H
#define FM_STORE_MERGE_H

#include "store/store.h"

FM_BEGIN_DECLS

typedef enum fm_merge_method { FM_MERGE_AVERAGE, FM_MERGE_TASK } fm_merge_method;

typedef struct fm_merge_part {
    const fm_tree *tree;
    const char *name; /* for errors: as the user typed it */
    double coef;
} fm_merge_part;

typedef struct fm_merge {
    fm_merge_method method;
    fm_merge_part base; /* TASK: the differences are taken from it; its coef is not used */
    const fm_merge_part *part;
    uint32_t count; /* up to FM_PARENTS_MAX; for TASK one less */
} fm_merge;

typedef struct fm_merge_stats {
    uint64_t tensors, kept; /* all; those that are equal in all parts and stay as they are */
    uint64_t folded;        /* adapter terms merged into weights */
    uint64_t bytes;         /* decoded bytes of the tensors that were made */
    uint64_t bytes_stored;  /* written for them and for intermediate tensors */
} fm_merge_stats;

/* Puts the merged tensors into out, which must have no entry under tensors/, and stores those that
 * are new. A merged tensor has the dtype in which the base's (AVERAGE: the first part's) weight is
 * stored. Memory: all inputs of the largest tensor, and its result. FM_EBASE names part and tensor
 * where a tensor is missing or a shape differs; FM_EUNSUPPORTED: tensors that differ are not F32,
 * BF16 or F16, or an adapter cannot be merged into the weights. On failure out is of no use. */
FM_CHECKED fm_status fm_merge_tensors(fm_tree *out, fm_store *s, const fm_merge *m,
                                      fm_merge_stats *stats);

FM_END_DECLS
#endif
