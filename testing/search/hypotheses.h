/* hypotheses.h - between the files of the search through history: worlds (hypotheses.c), the
 * search (blame.c), its asks (blame_ask.c), what kind of failure it is (blame_kind.c). */
#ifndef FM_TESTING_BLAME_WORLD_H
#define FM_TESTING_BLAME_WORLD_H

#include "testing/blame.h"

/* What a world says of the failure. */
typedef enum fmv_answer_kind {
    FMV_ANSWER_PASSES,
    FMV_ANSWER_INHERITED, /* back to a root */
    FMV_ANSWER_BREAK,     /* a step; nothing older fails */
    FMV_ANSWER_MERGE,     /* a merge of parents that pass; nothing older fails */
    FMV_ANSWER_OLDER,     /* parents pass (or a repair was lost), something older fails */
    FMV_ANSWER_FLAKY,
    FMV_ANSWER_KINDS
} fmv_answer_kind;
typedef struct fmv_observation {
    fmv_answer_kind kind;
    size_t culprit;
    double posterior;
} fmv_observation;

/* Worlds: for each version, would the case truly fail there? bit i of a row = node i fails. */
typedef struct fmv_hypotheses {
    const fm_blame_node *node;
    size_t count, words; /* nodes; 64-bit words of a row */
    double flip;
    uint64_t *ancestors; /* [count][words] strict */
    size_t n, cap;
    uint64_t *state;        /* [n][words] */
    double *logw;           /* [n] log posterior, up to a constant; -INFINITY: refuted */
    double *mass;           /* [n] the same, adding up to 1 */
    uint32_t *answer;       /* [n] kind * count + culprit (FLAKY: the version it begins at) */
    uint8_t *channel;       /* [n] how a failing version answers: see fmv_fail_rate */
    double *breaks, *mends; /* [count] prior of an event at a node */
    bool alive;             /* some world is left */
    double *scratch;        /* [FMV_ANSWER_KINDS * count] */
} fmv_hypotheses;

static inline bool fmv_bit(const uint64_t *row, size_t i)
{
    return row[i / 64] >> (i % 64) & 1;
}

fm_status fmv_hypotheses_init(fmv_hypotheses *w, const fm_blame_node *nodes, size_t count,
                              double flip);
void fmv_hypotheses_release(fmv_hypotheses *w);
/* One ask's outcome. */
void fmv_hypotheses_learn(fmv_hypotheses *w, size_t node, bool fails);
/* mass from logw; sets alive. */
void fmv_hypotheses_normalize(fmv_hypotheses *w);
fmv_observation fmv_hypotheses_top(const fmv_hypotheses *w);
/* Up to `want` nodes (repeats of one too, where repeats tell anything) that tell most about the
 * answer; only those with can[i]. *n = 0: nothing is left to learn. */
fm_status fmv_hypotheses_pick(fmv_hypotheses *w, const bool *can, size_t want, size_t *pick,
                              size_t *n);
/* fails[i] and share[i], [count] each; given: only worlds of this answer (NULL: all). */
void fmv_hypotheses_marginals(const fmv_hypotheses *w, const fmv_observation *given, double *fails,
                              double *share);
/* The answer of one row of states. */
fmv_observation fmv_hypotheses_classify(const fmv_hypotheses *w, const uint64_t *row,
                                        bool *reached);

#define FMV_BATCH_MAX 6

/* A search under way. */
typedef struct fmv_search {
    const fm_blame_node *node;
    size_t count;
    const fm_blame_oracle *oracle;
    fm_blame_opts opts; /* no zeros left */
    fmv_hypotheses w;
    fm_blame_history *out;
    uint32_t *failed, *passed; /* [count] asks that said so */
    bool *can;                 /* [count] asking it (again) can tell something */
    bool *unasked;             /* [count] asked, and could not be */
    size_t evidence_cap, steps_count, steps_cap;
} fmv_search;

/* One batch of asks of the case; cut to what max_runs leaves. Updates counts and worlds. */
fm_status fmv_ask_nodes(fmv_search *s, const size_t *node, size_t n);
fm_status fmv_keep_evidence(fmv_search *s, const fm_blame_evidence *e);
/* The answer that most failing asks of a node got; 0 = none. */
uint64_t fmv_wrong_answer(const fmv_search *s, size_t node);
/* blame_kind.c: verdict, source, partner, posterior and note from the likeliest answer. */
fm_status fmv_blame_decide(fmv_search *s, const fmv_observation *top);

#endif
