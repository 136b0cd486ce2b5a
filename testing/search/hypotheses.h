/* hypotheses.h - between the files of the search through history: worlds (hypotheses.c), the
 * search (blame.c), what kind of failure it is (blame_kind.c). */
#ifndef FM_TESTING_BLAME_WORLD_H
#define FM_TESTING_BLAME_WORLD_H

#include "testing/blame.h"

/* What a world says of the failure. */
typedef enum fmi_answer_kind {
    FMI_ANSWER_PASSES,
    FMI_ANSWER_INHERITED, /* back to a root */
    FMI_ANSWER_BREAK,     /* a step; nothing older fails */
    FMI_ANSWER_MERGE,     /* a merge of parents that pass; nothing older fails */
    FMI_ANSWER_OLDER,     /* parents pass (or a repair was lost), something older fails */
    FMI_ANSWER_FLAKY,
    FMI_ANSWER_KINDS
} fmi_answer_kind;
typedef struct fmi_answer {
    fmi_answer_kind kind;
    size_t culprit;
    double posterior;
} fmi_answer;

/* Worlds: for each version, would the case truly fail there? bit i of a row = node i fails. */
typedef struct fmi_worlds {
    const fm_blame_node *node;
    size_t count, words; /* nodes; 64-bit words of a row */
    double flip;
    uint64_t *ancestors; /* [count][words] strict */
    size_t n, cap;
    uint64_t *state;        /* [n][words] */
    double *logw;           /* [n] log posterior, up to a constant; -INFINITY: refuted */
    double *mass;           /* [n] the same, adding up to 1 */
    uint32_t *answer;       /* [n] kind * count + culprit (FLAKY: the version it begins at) */
    uint8_t *channel;       /* [n] how a failing version answers: see fmi_fail_rate */
    double *breaks, *mends; /* [count] prior of an event at a node */
    bool alive;             /* some world is left */
    double *scratch;        /* [FMI_ANSWER_KINDS * count] */
} fmi_worlds;

static inline bool fmi_bit(const uint64_t *row, size_t i)
{
    return row[i / 64] >> (i % 64) & 1;
}

fm_status fmi_worlds_init(fmi_worlds *w, const fm_blame_node *nodes, size_t count, double flip);
void fmi_worlds_release(fmi_worlds *w);
/* One ask's outcome. */
void fmi_worlds_learn(fmi_worlds *w, size_t node, bool fails);
/* mass from logw; sets alive. */
void fmi_worlds_normalize(fmi_worlds *w);
fmi_answer fmi_worlds_top(const fmi_worlds *w);
/* Up to `want` nodes (repeats of one too, where repeats tell anything) that tell most about the
 * answer; only those with can[i]. *n = 0: nothing is left to learn. */
fm_status fmi_worlds_pick(fmi_worlds *w, const bool *can, size_t want, size_t *pick, size_t *n);
/* fails[i] and share[i], [count] each; given: only worlds of this answer (NULL: all). */
void fmi_worlds_marginals(const fmi_worlds *w, const fmi_answer *given, double *fails,
                          double *share);
/* The answer of one row of states. */
fmi_answer fmi_worlds_classify(const fmi_worlds *w, const uint64_t *row, bool *reached);

#define FMI_BATCH_MAX 6

/* A search under way. */
typedef struct fmi_search {
    const fm_blame_node *node;
    size_t count;
    const fm_blame_oracle *oracle;
    fm_blame_opts opts; /* no zeros left */
    fmi_worlds w;
    fm_blame_history *out;
    uint32_t *failed, *passed; /* [count] asks that said so */
    bool *can;                 /* [count] asking it (again) can tell something */
    bool *unasked;             /* [count] asked, and could not be */
    size_t evidence_cap, steps_count, steps_cap;
} fmi_search;

/* One batch of asks of the case; cut to what max_runs leaves. Updates counts and worlds. */
fm_status fmi_ask_nodes(fmi_search *s, const size_t *node, size_t n);
fm_status fmi_keep_evidence(fmi_search *s, const fm_blame_evidence *e);
/* The answer that most failing asks of a node got; 0 = none. */
uint64_t fmi_wrong_answer(const fmi_search *s, size_t node);
/* blame_kind.c: verdict, source, partner, posterior and note from the likeliest answer. */
fm_status fmi_blame_decide(fmi_search *s, const fmi_answer *top);

#endif
