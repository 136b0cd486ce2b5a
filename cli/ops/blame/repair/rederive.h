/* rederive.h - the guilty step trained again: with another recipe, or as far as a step. */
#ifndef FM_OPS_BLAME_REDERIVE_H
#define FM_OPS_BLAME_REDERIVE_H

#include "cli/ops/blame/blame_more.h"
#include "cli/ops/derive/data.h"

typedef struct fmo_blame_variant {
    fm_json *recipe; /* the guilty one's, changed; owned */
    fm_train_config config;
    fm_dataset *data;
    fmo_goal goal;
    fm_train_result result;
} fmo_blame_variant;

/* The culprit with all that its training took; FM_EUNSUPPORTED where no training made it. While it
 * is open the cli's engine stays the one that judges; closed also after a failure. */
fm_status fmo_blame_replay_open(fmo_blame_more *m, fmo_replay *r);
void fmo_blame_replay_close(fmo_blame_more *m, fmo_replay *r);
void fmo_blame_swap_engines(fmo_blame_more *m);
/* Seconds that the whole run would take here, 0 = not known; bytes of a state (values, moments). */
double fmo_blame_plan(fmo_blame_more *m, const fmo_replay *r, uint64_t *state_bytes);

/* recipe without the file (by its name), or with records of it left out (record not NULL; file
 * NULL: of all files); owned, NULL = ENOMEM. */
fm_json *fmo_blame_recipe_without(const fm_json *recipe, const char *file, const uint32_t *record,
                                  size_t records);
/* Takes recipe, also when it fails. */
fm_status fmo_blame_variant_open(fmo_blame_variant *v, const fmo_replay *r,
                                 const fm_train_config *config, fm_json *recipe);
void fmo_blame_variant_release(fmo_blame_variant *v);
/* Trains all in one pass; one that fails says so in its result. */
fm_status fmo_blame_variants_train(fmo_blame_more *m, const fmo_replay *r, fmo_blame_variant *v,
                                   size_t n, const char *label);
/* The guilty version's tree with a state's values ("p/NAME") or a result's tensors in it. */
fm_status fmo_blame_tree_of_state(const fmo_replay *r, const fm_trained *t, size_t n, fm_tree **out,
                                  fmo_blame_overlay *made);
fm_status fmo_blame_tree_of_result(const fmo_replay *r, const fm_train_result *result,
                                   fm_tree **out, fmo_blame_overlay *made);

/* What was changed in the recipe, and what came of it: fills steps.ablation. */
fm_status fmo_blame_ablate(fmo_blame_more *m, const fmo_replay *r);

#endif
