/* blame_bench.h - shared by the parts of bench_blame: planted families, everything that can be
 * asked of them, searches and rivals over that.
 *
 * blame_plant.py makes the repository and says what it planted (plan.json). blame_table.c asks
 * every version once, without noise: an exhaustive table a family, by which a family counts or is
 * discarded. Searches then run over the tables, with outcomes flipped by a seed; thousands of them
 * cost seconds. What stands on mixtures (blame_mix.c) is run when it is first asked, and
 * remembered. */
#ifndef FM_TESTS_BLAME_BENCH_H
#define FM_TESTS_BLAME_BENCH_H

#include "cli/base/context.h"
#include "cli/ops/blame/blame.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

/* ---- blame_damage.c: what the planter cannot do with the program alone ---- */
/* --damage REPO PARENT RAW NAME MODULE KIND AMOUNT SEED: version NAME on PARENT, which is RAW but
 * for one tensor. --weigh-adapter REPO TIP NAME NUMBER WEIGHT: version NAME on TIP, its adapter
 * NUMBER with that weight; 0: without it. --reset-layers REPO TIP BEFORE NAME N: version NAME on
 * TIP, tensors of its first N layers as version BEFORE has them. */
int bb_damage(int argc, char **argv);
int bb_weigh_adapter(int argc, char **argv);
int bb_reset_layers(int argc, char **argv);

/* ---- blame_table.c ---- */
typedef struct bb_outcome {
    fm_verdict verdict;
    uint64_t answer; /* digest of the answer's text */
} bb_outcome;

typedef struct bb_family {
    const fm_json *plan; /* its entry of plan.json; borrowed */
    const char *id, *what;
    char kind;
    fm_blame_class truth;
    size_t culprit; /* node; 0 where there is none */
    fm_suite *suite;
    size_t forms, repeats;
    /* nodes, 0 = the tip, children before parents */
    fm_version *version; /* [count] */
    fm_blame_node *node; /* [count] */
    fm_tree **tree;      /* [count] */
    size_t count, cap;
    bb_outcome *at;          /* [count] the case */
    bb_outcome *form;        /* [count][forms] */
    bb_outcome *again;       /* [count][repeats] */
    fm_map *mixed, *stepped; /* memory of blame_mix.c: what was mixed -> bb_outcome */
    uint32_t mixtures;       /* run for real */
    const char *discard;     /* NULL: it counts */
} bb_family;

typedef struct bench {
    cli *c;
    fm_json *doc;            /* plan.json */
    const char *dir, *kinds; /* kinds: letters of those to be studied */
    bb_family *family;
    size_t count;
    uint64_t seed;
    double confidence; /* wanted of the searches; 0: their own */
} bench;

/* Reads plan.json of b->dir, opens the repository, asks everything. */
fm_status bb_tables(bench *b);
void bb_tables_release(bench *b);
/* The culprit's wrong answer is what the tip says; where the culprit says another, it says so
 * itself. */
uint64_t bb_wrong(const bb_family *f);

/* ---- blame_mix.c ---- */
/* The case on a tree, run for real. */
fm_status bb_run(bench *b, bb_family *f, const fm_tree *tree, bb_outcome *out);
/* The root with the changes of some steps (nodes, youngest first) against their first parents.
 * FM_ERROR_CASE: there is no such model. */
fm_status bb_mix_steps(bench *b, bb_family *f, const size_t *step, size_t n, bb_outcome *out);

/* The tensors that the culprit changed against its first parent, as blame's units. */
typedef struct bb_units {
    bb_family *f;
    bench *b;
    const fm_tree *parent, *child;
    char (*name)[BLAME_UNIT_NAME];
    fm_change *change;     /* sorted by unit */
    size_t *unit_of;       /* [changes] */
    size_t *layer, *block; /* [count] */
    size_t changes, change_cap, count, cap;
} bb_units;
fm_status bb_units_open(bb_units *u, bench *b, bb_family *f);
void bb_units_release(bb_units *u);
/* take[i]: unit i has the child's value. */
fm_status bb_mix_units(bb_units *u, const bool *take, bb_outcome *out);
size_t bb_unit_find(const bb_units *u, const char *name); /* SIZE_MAX: none */

/* ---- figures ---- */
typedef struct bb_rate {
    size_t hit, of;
} bb_rate;
void bb_count(bb_rate *r, bool hit);
double bb_cpu_s(void); /* of this process */
const char *
bb_rate_text(const bb_rate *r); /* "97.3 % [94.1, 98.8]": Wilson, 95 %; ring of buffers */

/* ---- blame_study.c, blame_study_units.c, blame_study_data.c: searches and rivals, printed ---- */
fm_status bb_study_history(bench *b, unsigned seeds);
fm_status bb_study_units(bench *b, unsigned seeds);
fm_status bb_study_data(bench *b, const char *program);

#endif
