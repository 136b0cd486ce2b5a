/* expansion.h - expands templates to cases, within limits shared with perturbations. */
#ifndef FM_TESTING_EXPANSION_H
#define FM_TESTING_EXPANSION_H

#include "testing/assert/parsed.h"

/* template.c: calls each(ctx, case) for every filling of the slots; each consumes its case. room:
 * what all templates of the suite together may still write and do; beyond it FM_ELIMIT. */
typedef struct fmv_expansion_room {
    const fm_json *lexicons; /* the suite's, or NULL */
    size_t bytes;            /* FMV_EXPANDED_BYTES_MAX at first */
    size_t steps;            /* FMV_EXPANSION_STEPS_MAX: slots written, values tried */
} fmv_expansion_room;
typedef fm_status (*fmv_case_fn)(void *ctx, fm_json *doc);
fm_status fmv_template_expand(const fm_json *tmpl, const char *what, fmv_expansion_room *room,
                              fmv_case_fn each, void *ctx);

/* perturb.c: the random stream of a text (FNV-1a), independent of its neighbours. */
uint64_t fmv_stream_of(fm_span text, uint64_t salt);

#endif
