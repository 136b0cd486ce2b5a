/* blame.h - one failing case traced through history, tensors and examples. */
#ifndef FM_CLI_BLAME_H
#define FM_CLI_BLAME_H

#include "cli/blame_data.h"
#include "cli/version_tree.h"

#define BLAME_UNIT_NAME 256

/* What may be taken from parent or child as one: a tensor, or an adapter's A and B of one module.
 */
typedef struct blame_unit {
    char name[BLAME_UNIT_NAME]; /* "model.layers.3.mlp.up_proj" */
    size_t group;               /* its layer */
    const fm_change **change;   /* the entries that it moves; borrowed */
    size_t count, cap;
} blame_unit;

typedef struct blame_example {
    uint32_t index; /* record number in the data */
    double score;
    char *preview;
    char *file; /* its name, where the data are several files; else NULL */
} blame_example;

typedef struct blame {
    cli *c;
    const fm_suite *suite;
    size_t case_index;
    /* history */
    fm_version *version; /* node i; 0 = the version asked about */
    char (*names)[64];   /* branches and tags at node i, "" if none */
    fm_blame_node *node;
    size_t count, cap;
    fm_blame_history history;
    char **output; /* [count] what node i answered; NULL where not run */
    /* culprit */
    fm_tree *parent, *child;
    fm_change *change;
    size_t change_count, change_cap;
    blame_unit *unit;
    size_t unit_count, unit_cap, group_count;
    fm_minimal_set minimal; /* enough to break the parent */
    fm_minimal_set repair;  /* enough to repair the child, set back to the parent */
    bool *keep;             /* scratch [unit_count] */
    char *answer, *detail;  /* of the culprit */
    /* data */
    blame_example *example;            /* best first */
    size_t example_count, outstanding; /* how many stand out from the rest */
    char *data_name;
    blame_data_section data; /* every ranking that was made; data.opts: what was asked for */
} blame;

/* The case on one tree; run owns what out points to. A version that cannot run (no weights, another
 * architecture) is an error of the case, not of blame. */
fm_status blame_run_case(blame *b, const fm_tree *tree, const char *what, fm_case_result *out,
                         fm_suite_run *run);
/* child, parent, answer and detail of the guilty step; nothing where they are there already. */
fm_status blame_open_culprit(blame *b);

fm_status blame_history(blame *b, const fm_oid *start);
/* The culprit against its first parent; runs at most max_runs mixtures. */
fm_status blame_tensors(blame *b, uint32_t max_runs);
/* Ranks the examples of the culprit's data; leaves example_count 0 when it carries none. */
fm_status blame_data(blame *b);
void blame_release(blame *b);

#endif
