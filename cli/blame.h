/* blame.h - one failing case traced through history, tensors and examples. */
#ifndef FM_CLI_BLAME_H
#define FM_CLI_BLAME_H

#include "cli/version_tree.h"
#include "testing/blame.h"

#define BLAME_UNIT_NAME 256

/* What may be taken from parent or child as one: a tensor, or an adapter's A and B of one module.
 */
typedef struct blame_unit {
    char name[BLAME_UNIT_NAME]; /* "model.layers.3.mlp.up_proj" */
    size_t group;               /* its layer */
    size_t block;               /* its part of the layer: "layers.3.mlp" */
    const fm_change **change;   /* the entries that it moves; borrowed */
    size_t count, cap;
    uint64_t bytes; /* of its changed tensors */
} blame_unit;

typedef struct blame_example {
    uint32_t index; /* record number in the data */
    double score;
    char *preview;
} blame_example;

/* How to search; all zero is what the command does without options. */
typedef struct blame_how {
    double flip_rate;      /* of one run; 0: none where the case does not sample, else measured */
    double confidence;     /* 0 = 0.95 */
    uint32_t history_runs; /* asks of versions, forms and mixtures of steps; 0 = 1000 */
    uint32_t max_runs;     /* mixtures of each search through tensors; 0 = 400 */
    bool all_versions;     /* every version is asked, so that the table of outcomes is whole */
    bool ranks;            /* go on to the rank-one parts of the adapters that were found */
    bool shapley;          /* also what each unit of the found sets is worth */
    uint64_t seed;
} blame_how;

/* What is asked: one tree. `id` names it for `noise`; equal trees, equal ids. */
typedef struct blame_question {
    const fm_tree *tree;
    const fm_provider *provider; /* of tensors that no store has; NULL: the store */
    const char *what;            /* for errors and progress; "5ee1d8aa34" */
    uint64_t id;
    uint32_t repeat;
} blame_question;
typedef struct blame_heard {
    fm_verdict verdict; /* a tree that cannot be run is FM_ERROR_CASE, and output says why */
    uint64_t answer;    /* digest of the answer as words: case and punctuation do not count */
    double score;
    char *output, *text; /* owned: output and answer of the result; NULL = none */
} blame_heard;

/* One rank-one part of an adapter's module: a column of B with its row of A. */
typedef struct blame_rank {
    size_t unit; /* in blame.unit */
    uint32_t rank;
} blame_rank;

typedef struct blame {
    cli *c;
    const fm_suite *suite;
    size_t case_index;
    blame_how how;
    /* Tests of blame: changes what is heard, after it was judged. NULL in the product. */
    void (*noise)(void *ctx, const blame_question *q, blame_heard *heard);
    void *noise_ctx;
    /* history */
    fm_version *version; /* node i; 0 = the version asked about */
    char (*names)[64];   /* branches and tags at node i, "" if none */
    fm_blame_node *node;
    double *changed_bytes; /* [count] tensors that node i has other than its first parent */
    size_t count, cap;
    fm_blame_history
        history;    /* see testing/blame.h: verdict, posterior, per node, evidence, note */
    char **output;  /* [count] what node i answered; NULL where not asked */
    char **text;    /* [count] the answer alone; NULL where not asked or none */
    fm_tree **tree; /* [count] opened as they are needed */
    /* culprit */
    fm_tree *parent, *child;
    fm_change *change;
    size_t change_count, change_cap;
    blame_unit *unit;
    size_t unit_count, unit_cap, group_count, block_count;
    fm_minimal_set minimal; /* enough to break the parent */
    fm_minimal_set repair;  /* enough to repair the child, set back to the parent */
    /* --ranks: the rank-one parts of the adapters in `minimal`, and which of them are enough; rank_count
     * 0: there are none, or not asked for */
    blame_rank *rank;
    size_t rank_count;
    fm_minimal_set rank_set;
    /* --shapley: of the units of `minimal`, in their order; shapley.units 0: not asked for, or one
     * unit alone */
    fm_shapley shapley;
    bool shapley_margin;   /* value = how much the score falls; else 1 = fails, 0 = passes */
    bool *keep;            /* scratch [unit_count] */
    char *answer, *detail; /* of the culprit */
    /* data */
    blame_example *example;            /* best first */
    size_t example_count, outstanding; /* how many stand out from the rest */
    char *data_name;
} blame;

/* The case (of b, or of another suite made from it) on n trees in as few batches as memory allows;
 * trees share what tensors they share. out[n] is released by blame_heard_release. */
fm_status blame_ask(blame *b, const fm_suite *suite, const char *case_name, const blame_question *q,
                    size_t n, blame_heard *out);
void blame_heard_release(blame_heard *h, size_t n);
/* The flip rate as the searches want it: stated, measured, or 0 where the case does not sample. */
double blame_flip_rate(const blame *b);
/* The tree of node i, owned by b. */
fm_status blame_node_tree(blame *b, size_t node, const fm_tree **out);
/* Did a step (or a merge) of the history make it, so that tensors and data can be looked at? */
bool blame_has_step(const blame *b);
/* child, parent, answer and detail of the guilty step; nothing where they are there already. */
fm_status blame_open_culprit(blame *b);

fm_status blame_history(blame *b, const fm_oid *start);
/* The culprit against its first parent. */
fm_status blame_tensors(blame *b);
/* Ranks the examples of the culprit's data; leaves example_count 0 when it carries none. */
fm_status blame_data(blame *b);
void blame_release(blame *b);

#endif
