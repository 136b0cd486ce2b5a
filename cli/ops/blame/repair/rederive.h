/* rederive.h - trains the guilty step again: with another recipe, or up to a step. */
#ifndef FM_OPS_BLAME_REDERIVE_H
#define FM_OPS_BLAME_REDERIVE_H

#include "cli/ops/blame/blame_more.h"
#include "cli/ops/derive/data.h"

typedef struct fmo_blame_variant {
    fm_json *recipe; /* the guilty step's, changed; owned */
    fm_train_config config;
    fm_dataset *data;
    fmo_goal goal;
    fm_train_result result;
} fmo_blame_variant;

/* Opens the culprit with the inputs of its training; FM_EUNSUPPORTED: no training made it. While it
 * is open c->engine stays the one that judges. Close also after a failure. */
fm_status fmo_blame_replay_open(fmo_blame_more *m, fmo_replay *r);
void fmo_blame_replay_close(fmo_blame_more *m, fmo_replay *r);
void fmo_blame_swap_engines(fmo_blame_more *m);
/* Estimates the seconds of the whole run on this machine, 0 = not known, and the bytes of a state
 * (values, moments). */
double fmo_blame_plan(fmo_blame_more *m, const fmo_replay *r, uint64_t *state_bytes);

/* Copies recipe without the file of that name, or, if record is not NULL, without records of that
 * file (file NULL: of all files); owned, NULL = ENOMEM. */
fm_json *fmo_blame_recipe_without(const fm_json *recipe, const char *file, const uint32_t *record,
                                  size_t records);
/* Takes ownership of recipe, also when it fails. */
fm_status fmo_blame_variant_open(fmo_blame_variant *v, const fmo_replay *r,
                                 const fm_train_config *config, fm_json *recipe);
void fmo_blame_variant_release(fmo_blame_variant *v);
/* Trains all in one pass; the failure of one is in its result. */
fm_status fmo_blame_variants_train(fmo_blame_more *m, const fmo_replay *r, fmo_blame_variant *v,
                                   size_t n, const char *label);
/* Makes the guilty version's tree with a state's values ("p/NAME") or a result's tensors. */
fm_status fmo_blame_tree_of_state(const fmo_replay *r, const fm_trained *t, size_t n, fm_tree **out,
                                  fmo_blame_overlay *made);
fm_status fmo_blame_tree_of_result(const fmo_replay *r, const fm_train_result *result,
                                   fm_tree **out, fmo_blame_overlay *made);

/* Trains with changed recipes and fills steps.ablation: each change and its outcome. */
fm_status fmo_blame_ablate(fmo_blame_more *m, const fmo_replay *r);

#endif
