/* blame.h - traces one failing case through history, tensors and examples. */
#ifndef FM_OPS_BLAME_CASE_H
#define FM_OPS_BLAME_CASE_H

#include "cli/ops/blame/data.h"
#include "cli/ops/version/version_tree.h"
#include "testing/blame.h"

#define BLAME_UNIT_NAME 256

/* The smallest part to take from parent or child: a tensor, or an adapter's A and B of one
 * module. */
typedef struct fmo_blame_unit {
    char name[BLAME_UNIT_NAME]; /* "model.layers.3.mlp.up_proj" */
    size_t group;               /* its layer */
    size_t block;               /* its part of the layer: "layers.3.mlp" */
    const fm_change **change;   /* the changes of its entries; borrowed */
    size_t count, cap;
} fmo_blame_unit;

typedef struct fmo_blame_example {
    uint32_t index; /* record number in its file */
    uint32_t place; /* index in the dataset */
    double score;
    char *preview;
    char *file; /* name of its file if there are several; else NULL */
} fmo_blame_example;

/* How to search; all zero is the command without options. */
typedef struct fmo_blame_how {
    double flip_rate;      /* of one run; 0: none if the case does not sample, else measured */
    double confidence;     /* 0 = 0.95 */
    uint32_t history_runs; /* runs of versions, forms and mixtures of steps; 0 = 1000 */
    uint32_t max_runs;     /* mixtures of each search through tensors; 0 = 400 */
    bool all_versions;     /* every version is run, so that the table of outcomes is complete */
    bool ranks;            /* go on to the rank-one parts of the adapters that were found */
    bool shapley;          /* also compute Shapley values of the found units */
    uint64_t seed;
} fmo_blame_how;

/* A request to run a case on a tree. `id` names it for `noise`: equal questions of one search have
 * equal ids. */
typedef struct fmo_blame_question {
    const fm_tree *tree;
    const fm_provider *provider; /* serves the tree's tensors; NULL: the store */
    const char *what;            /* name in errors and progress; "5ee1d8aa34" */
    uint64_t id;
    uint32_t repeat;
    const fm_suite *suite; /* with case_name the case to run; NULL: the case of the blame */
    const char *case_name;
} fmo_blame_question;
typedef struct fmo_blame_heard {
    fm_verdict verdict;  /* a tree that cannot be run is FM_ERROR_CASE, and output says why */
    uint64_t answer;     /* digest of the answer without letter case, space and punctuation */
    double score;        /* lower is nearer to a failure; NaN = none */
    char *output, *text; /* owned: output and answer of the result; NULL = none */
} fmo_blame_heard;

/* One rank-one part of an adapter's module: a column of B with its row of A. */
typedef struct fmo_blame_rank {
    size_t unit; /* index in fmo_blame.unit */
    uint32_t rank;
} fmo_blame_rank;

/* A version of the history: node i of the search. */
typedef struct fmo_blamed_version {
    fm_version commit;
    char names[64]; /* its branches and tags, "" if none */
    fm_blame_node node;
    double changed_bytes; /* of the model's entries that differ from its first parent's */
    char *output;         /* its output; NULL if not run; owned, as all of these */
    char *text;           /* the answer alone; NULL if not run, or none */
    uint64_t heard;       /* digest of text; 0 if not run */
    bool passed;          /* it was judged a pass */
    fm_tree *tree;        /* opened when needed */
} fmo_blamed_version;

typedef struct fmo_blame {
    fm_ops *c;
    const fm_suite *suite;
    size_t case_index;
    fmo_blame_how how;
    /* For tests of blame: changes a result after it was judged. NULL in the product. */
    void (*noise)(void *ctx, const fmo_blame_question *q, fmo_blame_heard *heard);
    void *noise_ctx;
    /* history */
    fmo_blamed_version *version; /* node i; 0 = the version asked about */
    size_t count, cap;
    fm_blame_history history; /* testing/blame.h: verdict, posterior, per node, evidence, note */
    fm_suite *forms;          /* other forms of the case; made at first use */
    /* culprit */
    fm_tree *parent, *child;
    fm_change *change;
    size_t change_count, change_cap;
    fmo_blame_unit *unit;
    size_t unit_count, unit_cap, group_count, block_count;
    fm_minimal_set minimal; /* the child's units that break the parent */
    fm_minimal_set repair;  /* the units that repair the child if set back to the parent's */
    /* --ranks: the rank-one parts of the adapters in `minimal`, and those that suffice; rank_count
     * 0: there are none, or not requested */
    fmo_blame_rank *rank;
    size_t rank_count;
    fm_minimal_set rank_set;
    /* --shapley: values of the units of `minimal`, in their order; shapley.units 0: not requested,
     * or one unit alone, or more than 64 */
    fm_shapley shapley;
    char *shapley_why_not;     /* --max-runs is too small for so many units; else NULL */
    bool shapley_margin;       /* value = fall of the score; else 1 = fails, 0 = passes */
    char *answer, *detail;     /* of the culprit */
    const char *right, *wrong; /* set by fmo_blame_contrast; borrowed, NULL: no contrast */
    /* data */
    fmo_blame_example *example;        /* best first */
    size_t example_count, outstanding; /* the first `outstanding` stand out from the rest */
    char *data_name;
    fmo_blame_data_section data; /* every ranking that was made; data.opts: the request */
} fmo_blame;

/* Runs n questions in as few batches as memory allows; a batch loads each tree once, and each
 * tensor once. The caller releases out[n] by fmo_blame_heard_release. */
fm_status fmo_blame_ask(fmo_blame *b, const fmo_blame_question *q, size_t n, fmo_blame_heard *out);
void fmo_blame_heard_release(fmo_blame_heard *h, size_t n);
/* The flip rate for the searches: the given one, FM_BLAME_MEASURE, or 0 if the case does not
 * sample. */
double fmo_blame_flip_rate(const fmo_blame *b);
/* The tree of node i, owned by b. */
fm_status fmo_blame_node_tree(fmo_blame *b, size_t node, const fm_tree **out);
/* Whether a step (or a merge) of the history caused the failure: it has tensors and data to
 * search. */
bool fmo_blame_has_step(const fmo_blame *b);
/* Sets child, parent, answer and detail of the guilty step, once. */
fm_status fmo_blame_open_culprit(fmo_blame *b);

/* Computed tensors, served together with the store's. The struct must not move while open. */
typedef struct fmo_blame_made {
    fm_digest id;
    uint8_t *data;
    uint64_t bytes;
} fmo_blame_made;
typedef struct fmo_blame_overlay {
    fm_provider provider, store;
    fmo_blame_made *made;
    size_t count, cap;
} fmo_blame_overlay;
void fmo_blame_overlay_open(fmo_blame_overlay *o, const fmo_blame *b);
void fmo_blame_overlay_release(fmo_blame_overlay *o);
/* Puts a tensor like `like` (path, name, dtype, shape) into tree, with these values rounded to the
 * dtype. */
fm_status fmo_blame_overlay_put(fmo_blame_overlay *o, fm_tree *tree, const fm_entry *like,
                                float *value);
bool fmo_blame_can_compute(const fm_entry *e); /* F32, F16, BF16 */
fm_status fmo_blame_read_f32(const fm_provider *p, const fm_entry *e, float **out); /* fm_free */
/* Removes adapters without a tensor and numbers the others 0, 1, ... again. */
fm_status fmo_blame_close_gaps(fm_tree *tree);
/* Makes the tree of the base (the root behind step[0] by first parents) with the changes of n steps
 * (nodes, youngest first). Adapters that a step added are appended, oldest first; changes of
 * tensors add up in float32. *out NULL: a step changed an adapter in place, or a tensor that cannot
 * be added (another shape, integers). */
fm_status fmo_blame_mix_steps(fmo_blame *b, const size_t *step, size_t n,
                              fmo_blame_overlay *overlay, fm_tree **out);

/* fm_blame_oracle.mix for ctx = b: runs the case on n such trees, whose computed tensors are all in
 * memory; a mix of count 0 is the base behind step[0]. */
fm_status fmo_blame_ask_step_mixtures(void *ctx, const fm_blame_mix *mix, size_t n,
                                      fm_blame_reply *out);

/* fm_blame_oracle.forms for ctx = b: runs perturbed forms of the case on some versions. */
fm_status fmo_blame_ask_forms(void *ctx, const size_t *node, size_t n, uint64_t wrong,
                              fm_blame_forms *out);

fm_status fmo_blame_history(fmo_blame *b, const fm_oid *start);
/* Finds the guilty tensors of the culprit against its first parent. */
fm_status fmo_blame_tensors(fmo_blame *b);
/* Makes the tree `from` (the child, or a tree with the child's paths) with every unit that is not
 * taken set back to the parent's value. */
fm_status fmo_blame_mixture(const fmo_blame *b, const fm_tree *from, const bool *take,
                            fm_tree **out);
/* Runs the case on n mixtures; take: [n][unit_count]. The caller releases heard[n]. */
fm_status fmo_blame_run_mixtures(fmo_blame *b, const bool *take, const uint32_t *repeat, size_t n,
                                 fmo_blame_heard *heard);
/* The size of a unit's change: |B A| of an adapter's module, |after - before| / |before| of a
 * tensor. */
fm_status fmo_blame_unit_size(const fmo_blame *b, const fmo_blame_unit *u, double *out);
/* After fmo_blame_tensors: search the found adapters' ranks; compute the found units' Shapley
 * values. */
fm_status fmo_blame_ranks(fmo_blame *b);
fm_status fmo_blame_shapley(fmo_blame *b);
/* From this call on, results of a case without a score have the margin as score: log P of the
 * parent's answer less that of the culprit's. No effect if they are not known, or equal. */
void fmo_blame_contrast(fmo_blame *b);
/* c in lower case if it is a letter or digit, else 0: "Mirefall." and "mirefall" compare equal. */
char fmo_blame_letter(char c);
/* log P of answers after the case's prompt, by models of one engine, in one batch; NaN if there is
 * no text, or the model cannot take it. */
typedef struct fmo_blame_answer {
    fm_model *model;
    const char *text; /* may be NULL */
} fmo_blame_answer;
fm_status fmo_blame_lps(const fmo_blame *b, const fmo_blame_answer *a, size_t n, double *lp);
/* The margin for n models: log P of the right answer less that of the wrong one. */
fm_status fmo_blame_margins(const fmo_blame *b, fm_model *const *model, size_t n, double *out);
/* Ranks the examples of the culprit's data; leaves example_count 0 if it has none. */
fm_status fmo_blame_data(fmo_blame *b);
void fmo_blame_release(fmo_blame *b);

#endif
