/* hypotheses.h - declarations that the files of the search through history share: worlds
 * (hypotheses.c), the search (blame.c), its asks (blame_ask.c), the kind of a failure
 * (blame_kind.c). */
#ifndef FM_TESTING_HYPOTHESES_H
#define FM_TESTING_HYPOTHESES_H

#include "testing/blame.h"

/* The cause of the failure in a world. */
typedef enum fmv_answer_kind {
    FMV_ANSWER_PASSES,
    FMV_ANSWER_INHERITED, /* it fails back to a root */
    FMV_ANSWER_BREAK,     /* a step broke it; nothing older fails */
    FMV_ANSWER_MERGE,     /* a merge of parents that pass broke it; nothing older fails */
    FMV_ANSWER_OLDER,     /* the parents pass (or a repair was lost), and something older fails */
    FMV_ANSWER_FLAKY,
    FMV_ANSWER_KINDS
} fmv_answer_kind;
typedef struct fmv_observation {
    fmv_answer_kind kind;
    size_t culprit;
    double posterior;
} fmv_observation;

/* Worlds: for each version, whether the case truly fails there. Bit i of a row = node i fails. */
typedef struct fmv_hypotheses {
    const fm_blame_node *node;
    size_t count, words; /* nodes; 64-bit words of a row */
    double flip;
    uint64_t *ancestors; /* [count][words] ancestors of each node without the node */
    size_t n, cap;
    uint64_t *state;        /* [n][words] */
    double *logw;           /* [n] log posterior, up to a constant; -INFINITY: refuted */
    double *mass;           /* [n] posterior, adding up to 1 */
    uint32_t *answer;       /* [n] kind * count + culprit (FLAKY: the version where it begins) */
    uint8_t *channel;       /* [n] how a failing version answers: see fail_rate in hypotheses.c */
    double *breaks, *mends; /* [count] prior of an event at a node */
    bool alive;             /* some world is not refuted */
    double *scratch;        /* [FMV_ANSWER_KINDS * count] */
} fmv_hypotheses;

static inline bool fmv_bit(const uint64_t *row, size_t i)
{
    return row[i / 64] >> (i % 64) & 1;
}

fm_status fmv_hypotheses_init(fmv_hypotheses *w, const fm_blame_node *nodes, size_t count,
                              double flip);
void fmv_hypotheses_release(fmv_hypotheses *w);
/* Updates the worlds by the outcome of one ask. */
void fmv_hypotheses_learn(fmv_hypotheses *w, size_t node, bool fails);
/* Computes mass from logw; sets alive. */
void fmv_hypotheses_normalize(fmv_hypotheses *w);
fmv_observation fmv_hypotheses_top(const fmv_hypotheses *w);
/* Picks up to `want` nodes that tell most about the answer (one node more than once, where repeats
 * tell anything); only nodes with can[i]. *n = 0: nothing is left to learn. */
fm_status fmv_hypotheses_pick(fmv_hypotheses *w, const bool *can, size_t want, size_t *pick,
                              size_t *n);
/* Computes fails and share, [count] each; given: from worlds with this answer (NULL: all). */
void fmv_hypotheses_marginals(const fmv_hypotheses *w, const fmv_observation *given, double *fails,
                              double *share);
/* The answer of one row of states. */
fmv_observation fmv_hypotheses_classify(const fmv_hypotheses *w, const uint64_t *row,
                                        bool *reached);

#define FMV_BATCH_MAX 6

/* The state of a search. */
typedef struct fmv_search {
    const fm_blame_node *node;
    size_t count;
    const fm_blame_oracle *oracle;
    fm_blame_opts opts; /* with defaults in place of zeros */
    fmv_hypotheses w;
    fm_blame_history *out;
    uint32_t *failed, *passed; /* [count] asks with this outcome */
    bool *can;                 /* [count] another ask of the node can tell something */
    bool *unasked;             /* [count] the node could not be asked */
    size_t evidence_cap, steps_count, steps_cap;
} fmv_search;

/* Asks one batch of the case, at most what max_runs leaves; updates counts and worlds. */
fm_status fmv_ask_nodes(fmv_search *s, const size_t *node, size_t n);
fm_status fmv_keep_evidence(fmv_search *s, const fm_blame_evidence *e);
/* The most frequent answer of the failing asks of a node; 0 = none. */
uint64_t fmv_wrong_answer(const fmv_search *s, size_t node);
/* blame_kind.c: sets verdict, source, partner, posterior and note from the likeliest answer. */
fm_status fmv_blame_decide(fmv_search *s, const fmv_observation *top);

#endif
