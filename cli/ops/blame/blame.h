/* blame.h - one failing case traced through history, tensors and examples. */
#ifndef FM_OPS_BLAME_CASE_H
#define FM_OPS_BLAME_CASE_H

#include "cli/ops/blame/data.h"
#include "cli/ops/version/version_tree.h"
#include "testing/blame.h"

#define BLAME_UNIT_NAME 256

/* What may be taken from parent or child as one: a tensor, or an adapter's A and B of one module.
 */
typedef struct fmo_blame_unit {
    char name[BLAME_UNIT_NAME]; /* "model.layers.3.mlp.up_proj" */
    size_t group;               /* its layer */
    size_t block;               /* its part of the layer: "layers.3.mlp" */
    const fm_change **change;   /* the entries that it moves; borrowed */
    size_t count, cap;
} fmo_blame_unit;

typedef struct fmo_blame_example {
    uint32_t index; /* record number in its file */
    uint32_t place; /* in the dataset */
    double score;
    char *preview;
    char *file; /* its name, where the data are several files; else NULL */
} fmo_blame_example;

/* How to search; all zero is what the command does without options. */
typedef struct fmo_blame_how {
    double flip_rate;      /* of one run; 0: none where the case does not sample, else measured */
    double confidence;     /* 0 = 0.95 */
    uint32_t history_runs; /* asks of versions, forms and mixtures of steps; 0 = 1000 */
    uint32_t max_runs;     /* mixtures of each search through tensors; 0 = 400 */
    bool all_versions;     /* every version is asked, so that the table of outcomes is whole */
    bool ranks;            /* go on to the rank-one parts of the adapters that were found */
    bool shapley;          /* also what each unit of the found sets is worth */
    uint64_t seed;
} fmo_blame_how;

/* What is asked of one tree. `id` names it for `noise`: equal questions of one search, equal
 * ids. */
typedef struct fmo_blame_question {
    const fm_tree *tree;
    const fm_provider *provider; /* of tensors that no store has; NULL: the store */
    const char *what;            /* for errors and progress; "5ee1d8aa34" */
    uint64_t id;
    uint32_t repeat;
    const fm_suite *suite; /* NULL: the case of the blame; else case_name of it */
    const char *case_name;
} fmo_blame_question;
typedef struct fmo_blame_heard {
    fm_verdict verdict;  /* a tree that cannot be run is FM_ERROR_CASE, and output says why */
    uint64_t answer;     /* digest of the answer as words: case and punctuation do not count */
    double score;        /* falls as the failure nears; NaN = none */
    char *output, *text; /* owned: output and answer of the result; NULL = none */
} fmo_blame_heard;

/* One rank-one part of an adapter's module: a column of B with its row of A. */
typedef struct fmo_blame_rank {
    size_t unit; /* in blame.unit */
    uint32_t rank;
} fmo_blame_rank;

/* A version of the history: node i of the search. */
typedef struct fmo_blamed_version {
    fm_version commit;
    char names[64]; /* branches and tags here, "" if none */
    fm_blame_node node;
    double changed_bytes; /* of tensors that it has other than its first parent */
    char *output;         /* what it answered; NULL where not asked; owned, as all of these */
    char *text;           /* the answer alone; NULL where not asked or none */
    uint64_t heard;       /* its digest; 0 where not asked */
    bool passed;          /* it was judged a pass */
    fm_tree *tree;        /* opened as it is needed */
} fmo_blamed_version;

typedef struct fmo_blame {
    fm_ops *c;
    const fm_suite *suite;
    size_t case_index;
    fmo_blame_how how;
    /* Tests of blame: changes what is heard, after it was judged. NULL in the product. */
    void (*noise)(void *ctx, const fmo_blame_question *q, fmo_blame_heard *heard);
    void *noise_ctx;
    /* history */
    fmo_blamed_version *version; /* node i; 0 = the version asked about */
    size_t count, cap;
    fm_blame_history
        history;     /* see testing/blame.h: verdict, posterior, per node, evidence, note */
    fm_suite *forms; /* other forms of the case; made when they are asked first */
    /* culprit */
    fm_tree *parent, *child;
    fm_change *change;
    size_t change_count, change_cap;
    fmo_blame_unit *unit;
    size_t unit_count, unit_cap, group_count, block_count;
    fm_minimal_set minimal; /* enough to break the parent */
    fm_minimal_set repair;  /* enough to repair the child, set back to the parent */
    /* --ranks: the rank-one parts of the adapters in `minimal`, and which of them are enough;
     * rank_count 0: there are none, or not asked for */
    fmo_blame_rank *rank;
    size_t rank_count;
    fm_minimal_set rank_set;
    /* --shapley: of the units of `minimal`, in their order; shapley.units 0: not asked for, or one
     * unit alone */
    fm_shapley shapley;
    char *shapley_why_not;     /* --max-runs is too small for so many units; else NULL */
    bool shapley_margin;       /* value = how much the score falls; else 1 = fails, 0 = passes */
    char *answer, *detail;     /* of the culprit */
    const char *right, *wrong; /* see fmo_blame_contrast; borrowed, NULL: no contrast */
    /* data */
    fmo_blame_example *example;        /* best first */
    size_t example_count, outstanding; /* how many stand out from the rest */
    char *data_name;
    fmo_blame_data_section data; /* every ranking that was made; data.opts: what was asked for */
} fmo_blame;

/* n questions in as few batches as memory allows; a tree that is asked several things is loaded
 * once, and trees share what tensors they share. out[n] is released by fmo_blame_heard_release. */
fm_status fmo_blame_ask(fmo_blame *b, const fmo_blame_question *q, size_t n, fmo_blame_heard *out);
void fmo_blame_heard_release(fmo_blame_heard *h, size_t n);
/* The flip rate as the searches want it: stated, measured, or 0 where the case does not sample. */
double fmo_blame_flip_rate(const fmo_blame *b);
/* The tree of node i, owned by b. */
fm_status fmo_blame_node_tree(fmo_blame *b, size_t node, const fm_tree **out);
/* Did a step (or a merge) of the history make it, so that tensors and data can be looked at? */
bool fmo_blame_has_step(const fmo_blame *b);
/* child, parent, answer and detail of the guilty step; nothing where they are there already. */
fm_status fmo_blame_open_culprit(fmo_blame *b);

/* Tensors that no store has, served beside those that one has. Not to be moved while open. */
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
/* tree gets a tensor as `like` (path, name, dtype, shape) with these values, rounded to the
 * dtype. */
fm_status fmo_blame_overlay_put(fmo_blame_overlay *o, fm_tree *tree, const fm_entry *like,
                                float *value);
bool fmo_blame_can_compute(const fm_entry *e); /* F32, F16, BF16 */
fm_status fmo_blame_read_f32(const fm_provider *p, const fm_entry *e, float **out); /* fm_free */
/* Adapters without a tensor go, the others are numbered 0, 1, ... again. */
fm_status fmo_blame_close_gaps(fm_tree *tree);
/* The base behind step[0] with the changes of n steps (nodes, youngest first). Adapters that a step
 * added are laid on in the order of time; tensors add up in float32. *out NULL: a step changed an
 * adapter in place, or a tensor that cannot be added (another shape, whole numbers). */
fm_status fmo_blame_mix_steps(fmo_blame *b, const size_t *step, size_t n,
                              fmo_blame_overlay *overlay, fm_tree **out);

/* fm_blame_oracle.mix for ctx = b: the case on n of these, whose computed tensors are held at a
 * time; a step of count 0 is the base behind step[0]. */
fm_status fmo_blame_ask_step_mixtures(void *ctx, const fm_blame_mix *mix, size_t n,
                                      fm_blame_reply *out);

/* fm_blame_oracle.forms for ctx = b: perturbed forms of the case at some versions. */
fm_status fmo_blame_ask_forms(void *ctx, const size_t *node, size_t n, uint64_t wrong,
                              fm_blame_forms *out);

fm_status fmo_blame_history(fmo_blame *b, const fm_oid *start);
/* The culprit against its first parent. */
fm_status fmo_blame_tensors(fmo_blame *b);
/* `from` (the child, or a tree with the child's paths) with every unit that is not taken set
 * back to the parent's value. */
fm_status fmo_blame_mixture(const fmo_blame *b, const fm_tree *from, const bool *take,
                            fm_tree **out);
/* The case on n of them; take: [n][unit_count]. heard[n] is the caller's. */
fm_status fmo_blame_run_mixtures(fmo_blame *b, const bool *take, const uint32_t *repeat, size_t n,
                                 fmo_blame_heard *heard);
/* How large a unit's change is: |B A| of an adapter's module, |after - before| / |before| of
 * tensors. */
fm_status fmo_blame_unit_size(const fmo_blame *b, const fmo_blame_unit *u, double *out);
/* After fmo_blame_tensors: into the adapters that were found; what each unit found is worth. */
fm_status fmo_blame_ranks(fmo_blame *b);
fm_status fmo_blame_shapley(fmo_blame *b);
/* From here on what is heard has a score also where the case has none: how much likelier (in
 * logprob) the parent's answer is than the culprit's. Where they are not known, or equal,
 * nothing changes. */
void fmo_blame_contrast(fmo_blame *b);
/* A letter or digit in lower case, 0 for what stands between words: "Mirefall." is "mirefall". */
char fmo_blame_letter(char c);
/* log P of answers behind the case's prompt, of models of one engine, in one batch; NaN where there
 * is no text, or none that the model can take. */
typedef struct fmo_blame_answer {
    fm_model *model;
    const char *text; /* may be NULL */
} fmo_blame_answer;
fm_status fmo_blame_lps(const fmo_blame *b, const fmo_blame_answer *a, size_t n, double *lp);
/* That score for n models: the right answer's less the wrong one's. */
fm_status fmo_blame_margins(const fmo_blame *b, fm_model *const *model, size_t n, double *out);
/* Ranks the examples of the culprit's data; leaves example_count 0 when it carries none. */
fm_status fmo_blame_data(fmo_blame *b);
void fmo_blame_release(fmo_blame *b);

#endif
