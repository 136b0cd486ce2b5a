/* sweep.h - trains one child with several settings at once; the best trial becomes the branch.
 *
 *   sweep: {lr: [1e-4, 3e-4], r: [4, 8]}                    every combination, the last key fastest
 *   sweep: {search: random, trials: 12, seed: 1, lr: {log: [1e-5, 1e-3]}, r: [4, 8, 16],
 *           dropout: {uniform: [0, 0.2]}}
 *   halving: {rungs: [20, 40, 80], keep: 0.5, metric: loss}
 *
 * Successive halving (Jamieson and Talwalkar 2016): all trials train in one pass; after each rung
 * but the last, the best share `keep` of those left (rounded up) goes on. The metric `loss` is the
 * mean training loss over the last quarter of the steps up to the rung; ties go by trial number.
 * The settings drawn and the trials dropped follow from the file and the losses alone, whatever the
 * order in which trials reach a rung, so a sweep that was stopped and resumed ends like one that
 * was not. */
#ifndef FM_OPS_SWEEP_H
#define FM_OPS_SWEEP_H

#include "store/base/text/json.h"
#include "train/train.h"

#define SWEEP_TRIALS_MAX 256u

typedef struct fmo_sweep fmo_sweep;
/* child: the child's mapping with `sweep` and perhaps `halving`. FM_EINVAL names the key. */
fm_status fmo_sweep_new(fmo_sweep **out, const fm_json *child, const char *name, const char *where);
void fmo_sweep_free(fmo_sweep *s); /* NULL is a no-op */
const char *fmo_sweep_name(const fmo_sweep *s);
size_t fmo_sweep_trials(const fmo_sweep *s);
/* {"lr":0.0003,"r":8}, borrowed. */
const fm_json *fmo_sweep_settings(const fmo_sweep *s, size_t trial);
/* Sets the number of steps to the last rung, if there are rungs. */
void fmo_sweep_trial_config(const fmo_sweep *s, fm_train_config *c);
bool fmo_sweep_halves(const fmo_sweep *s); /* some trials will be dropped before their end */
/* Whether all trials have the same examples: no key that a data set depends on is swept. */
bool fmo_sweep_shares_data(const fmo_sweep *s);

/* ---- while they train ---- */
fm_status fmo_sweep_step(fmo_sweep *s, size_t trial, uint32_t step, double loss); /* step from 0 */
/* Notes the losses in the log of the state at which a trial resumed. */
fm_status fmo_sweep_log(fmo_sweep *s, size_t trial, const fm_json *log);
/* Marks a trial as failed; a later call may give a better reason. Ignored for a dropped trial. */
void fmo_sweep_failed(fmo_sweep *s, size_t trial, const char *why);
/* Decides the rungs that all trials left have reached. */
fm_status fmo_sweep_judge(fmo_sweep *s);
bool fmo_sweep_dropped(const fmo_sweep *s, size_t trial);
/* The number of steps noted for a trial. */
uint32_t fmo_sweep_seen(const fmo_sweep *s, size_t trial);

/* ---- after ---- */
/* Decides the winner; SIZE_MAX if every trial failed. */
fm_status fmo_sweep_end(fmo_sweep *s, size_t *winner);
/* All trials, for sweep.json; owned, NULL = ENOMEM. */
fm_json *fmo_sweep_json(const fmo_sweep *s);

#endif
