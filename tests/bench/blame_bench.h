/* blame_bench.h - shared by the parts of bench_blame: planted families, what was asked of them, searches
 * and rivals over what they answered.
 *
 * blame_plant.py makes the repository and says what it planted (plan.json). blame_table.c asks
 * everything there is to ask once, without noise: an exhaustive table a family, by which a family
 * counts or is discarded. Searches then run over the table, with outcomes flipped by a seed. */
#ifndef FM_TESTS_BLAME_BENCH_H
#define FM_TESTS_BLAME_BENCH_H

#include "cli/blame.h"
#include "store/base/rng.h"

/* ---- blame_damage.c: what the planter cannot do with the program alone ---- */
/* --damage REPO PARENT RAW NAME MODULE KIND AMOUNT SEED: version NAME on PARENT, which is RAW but for one
 * tensor. --drop-adapter REPO TIP NAME NUMBER: version NAME on TIP without its adapter NUMBER. */
int bb_damage(int argc, char **argv);
int bb_drop_adapter(int argc, char **argv);

#endif
