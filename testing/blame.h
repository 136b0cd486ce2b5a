/* blame.h - blame's searches: which version, which tensors, how much each is worth.
 *
 * These are algorithms over callbacks: this folder knows no repository and no mixture. An oracle is
 * asked rounds of questions, so that it can run a round in one batch. Answers may be noisy:
 * `flip_rate` is the probability that one ask gives the opposite of the true answer; 0 means that
 * each question has one answer and is asked once. Nothing here reads a clock: equal inputs and
 * seeds give equal answers. */
#ifndef FM_TESTING_BLAME_H
#define FM_TESTING_BLAME_H

#include "testing/testing.h"

FM_BEGIN_DECLS

/* ---- where in history ---- */
typedef struct fm_blame_node {
    const size_t *parent; /* indices into the node array, role order */
    size_t parent_count;
    /* how likely the step broke something, relative to the others (> 0), for example its size; 0 =
     * no step is known to be likelier (taken as 1) */
    double weight;
} fm_blame_node;

/* One question: the case at a version; repeat r > 0 shifts the sampling seed by r. */
typedef struct fm_blame_ask {
    size_t node;
    uint32_t repeat;
} fm_blame_ask;
typedef struct fm_blame_reply {
    fm_verdict verdict; /* FM_ERROR_CASE: cannot be asked at this version, at any repeat */
    uint64_t answer;    /* digest of the answer; equal answers have equal digests; 0 = none */
    double score;       /* logprob or margin where the case has one, else NaN */
} fm_blame_reply;

/* A version's answers to other forms of the case (perturbed prompts, other wordings). */
typedef struct fm_blame_forms {
    uint32_t asked; /* forms that could be asked; 0 = this version cannot tell */
    uint32_t same;  /* how many of these got the culprit's wrong answer */
    /* rate of that answer without the fault: 1/choices, or small for free text */
    double chance;
} fm_blame_forms;

/* The case on the base (the root behind the culprit, by first parents) plus the changes of some of
 * the steps between. step[i] is a node; its change is the difference from its first parent. */
typedef struct fm_blame_mix {
    const size_t *step; /* ascending age: the base's child is last */
    size_t count;
    uint32_t repeat;
} fm_blame_mix;

/* The callbacks get whole rounds and fill out[n]. A failure ends the search. */
typedef struct fm_blame_oracle {
    void *ctx;
    fm_status (*ask)(void *ctx, const fm_blame_ask *ask, size_t n, fm_blame_reply *out);
    /* Other forms of the case at some versions; `wrong` is the culprit's answer. NULL: no forms. */
    fm_status (*forms)(void *ctx, const size_t *node, size_t n, uint64_t wrong,
                       fm_blame_forms *out);
    /* NULL: steps are not taken apart. out[i].verdict FM_ERROR_CASE: this mixture cannot be
     * made. */
    fm_status (*mix)(void *ctx, const fm_blame_mix *mix, size_t n, fm_blame_reply *out);
} fm_blame_oracle;

#define FM_BLAME_MEASURE (-1.0)
typedef struct fm_blame_opts {
    double flip_rate;  /* 0: none; (0, 0.45]; FM_BLAME_MEASURE: by repeats of node 0 */
    double confidence; /* wanted posterior of verdict and version together; 0 = 0.95 */
    uint32_t max_runs; /* most asks of all kinds; a form is one ask; 0 = 1000 */
    uint32_t round;    /* most asks in one batch; 0 = chosen from the flip rate */
    bool all_versions; /* every version is asked at least once */
} fm_blame_opts;

typedef enum fm_blame_class {
    FM_BLAME_PASSES,    /* there is nothing to blame: the case passes at node 0 */
    FM_BLAME_INHERITED, /* the case fails back to `culprit`, which has no parents */
    /* `culprit` fails and all its parents pass; no older version gives its answer */
    FM_BLAME_INTRODUCED,
    /* as introduced, but the older version `source` failed with another answer; or a merge took the
     * failing side of a line that had been repaired */
    FM_BLAME_REINTRODUCED,
    /* the parents of `culprit` pass the case as it is written, but the older version `source` gives
     * the culprit's answer to the case or to other forms of it */
    FM_BLAME_EXPOSED,
    /* a merge whose parents all pass; or a step that needs the earlier steps `partner` */
    FM_BLAME_INTERACTION,
    FM_BLAME_FLAKY, /* repeats disagree more than the flip rate allows, from `culprit` on */
    /* below the wanted confidence; `likely` and `culprit` are the best guess */
    FM_BLAME_CANNOT_TELL,
} fm_blame_class;
/* "passes", "inherited", ..., "cannot tell". */
const char *fm_blame_class_word(fm_blame_class c);

typedef enum fm_blame_kind { FM_BLAME_CASE, FM_BLAME_FORM, FM_BLAME_MIX } fm_blame_kind;
typedef struct fm_blame_evidence {
    fm_blame_kind kind;
    size_t node;                   /* MIX: the culprit */
    uint32_t repeat;               /* CASE, MIX */
    fm_blame_reply said;           /* CASE, MIX */
    fm_blame_forms forms;          /* FORM */
    size_t step_begin, step_count; /* MIX: steps[step_begin...] of the history */
    uint32_t round;                /* 1 = the first batch */
} fm_blame_evidence;

typedef struct fm_blame_history {
    fm_blame_class verdict, likely; /* likely == verdict except for CANNOT_TELL */
    size_t culprit;                 /* PASSES: 0 */
    size_t source;                  /* EXPOSED, REINTRODUCED; SIZE_MAX: none */
    double posterior; /* probability of `likely` and `culprit` together, given all answers */
    bool uncertain;   /* versions that could not be asked might change the answer */
    /* For each node, [count], owned. */
    fm_verdict *at; /* asked: what most asks said; not asked: the likelier outcome */
    uint32_t *asks; /* how often it was asked; 0: `at` is inferred */
    double *fails;  /* posterior that the node fails */
    /* posterior that it is the culprit of a failure of any class from inherited to interaction */
    double *share;
    size_t *partner; /* INTERACTION on a chain: the earlier steps that the culprit needs; owned */
    size_t partner_count;
    fm_blame_evidence *evidence; /* all asks and answers, in order; owned */
    size_t evidence_count;
    size_t *steps; /* steps of the mixtures in `evidence`; owned */
    uint32_t runs, rounds;
    double flip_rate; /* given or measured */
    char note[160];   /* what remains open, as text; "" if nothing */
} fm_blame_history;
void fm_blame_history_release(fm_blame_history *h);

/* Searches for the version that broke the case. Node 0 is the version that fails; the array is
 * closed under parents, children before parents.
 *
 * Noisy search: a posterior over worlds (the true outcome at each version), from a prior in which
 * each step breaks, or mends, with a probability in proportion to its weight, three times at most
 * in one history. Each round asks the versions whose answers are expected to tell most about the
 * verdict (mutual information), until one verdict and version has the wanted posterior. With flip
 * rate 0 and one break this is a bisection by weight on the graph. A case that disagrees with
 * itself is a world too (flaky). Then a failure that looks introduced is tested by other forms of
 * the case on older versions (exposed) and by the step's change alone on the base (interaction),
 * where the oracle offers them. FM_EUNSUPPORTED: the case cannot be asked at node 0. */
FM_CHECKED fm_status fm_blame_search(fm_blame_history *out, const fm_blame_node *nodes,
                                     size_t count, const fm_blame_oracle *oracle,
                                     const fm_blame_opts *opts);

/* ---- which tensors ---- */
/* take[u] true = unit u has the child's value, false = the parent's. */
typedef struct fm_mixture {
    const bool *take;
    uint32_t repeat;
} fm_mixture;
typedef struct fm_mixture_reply {
    bool fails;   /* the outcome that the search looks for holds */
    bool unasked; /* it could not be made or asked; `fails` is not read */
    double score; /* a number that falls as the failure nears (margin, logprob), or NaN */
} fm_mixture_reply;
typedef fm_status (*fm_mixture_fn)(void *ctx, const fm_mixture *mix, size_t n,
                                   fm_mixture_reply *out);

#define FM_BLAME_LEVELS_MAX 8
typedef struct fm_blame_units {
    size_t count;
    /* groupings from coarse to fine, 0 = none; the units themselves come after them */
    size_t levels;
    /* [count] each: unit -> group, any numbers < count */
    const size_t *group_of[FM_BLAME_LEVELS_MAX];
    const double *weight; /* [count] how likely a unit matters (size of its change), or NULL */
} fm_blame_units;
typedef struct fm_minimal_opts {
    double flip_rate;  /* flip rate of one run, [0, 0.45] */
    double confidence; /* probability that all flags of the set are true; 0 = 0.95 */
    uint32_t max_runs; /* 0 = 400 */
    uint32_t batch;    /* mixtures that one call runs cheaper than several; 0 = 1 */
} fm_minimal_opts;
typedef struct fm_minimal_set {
    bool *take; /* [units] the set; owned (fm_free) */
    size_t size;
    bool sufficient; /* parent + set fails (checked by runs) */
    bool necessary;  /* child - set passes (by runs); if not: another cause too */
    /* the set without any one of its units passes (checked by runs); false: the runs were used up,
     * and a smaller set may do */
    bool minimal;
    double posterior; /* probability that the flags are right, given the flip rate */
    uint32_t runs;    /* asks of the oracle; without noise no mixture twice */
    uint32_t rounds;
} fm_minimal_set;

/* Finds a set of units whose child values make the case fail (sufficient), no unit of which can be
 * left out (1-minimal). Level by level, coarse to fine: the shortest working prefix of the
 * candidates, ordered by what is known of their effect, is found by halving; its last candidate is
 * needed, and the search goes on before it (QuickXplain, Junker 2004), about |set| log2(candidates)
 * runs; then each unit is left out once. Monotony is not assumed: every claim is run. Nothing is
 * assumed of the ends: when the mixture without any unit fails, the set is empty (the failure is
 * not in the units); when the mixture with all of them passes, the set has all of them and is not
 * sufficient. With the oracle inverted (take[u] = set back to the parent's value, fails = the child
 * passes) the same search finds a minimal necessary set: the units that must be set back to repair
 * the child, whatever the number of causes. */
FM_CHECKED fm_status fm_blame_minimal(fm_minimal_set *out, const fm_blame_units *units,
                                      fm_mixture_fn oracle, void *ctx, const fm_minimal_opts *opts);

/* ---- what each is worth ---- */
/* Computes value[i] of the coalition take + i * units. It is called with many coalitions at once
 * and never twice with the same. */
typedef fm_status (*fm_value_fn)(void *ctx, const bool *take, size_t n, double *value);
typedef struct fm_shapley_opts {
    uint32_t max_runs;  /* coalitions; 0 = 1000 */
    uint32_t exact_max; /* exact for up to so many units if max_runs allows it; 0 = 8, at most 16 */
    double confidence;  /* of each interval; 0 = 0.95 */
    uint64_t seed;
} fm_shapley_opts;
typedef struct fm_shapley {
    size_t units;
    double *value;      /* [units] owned; the values add up to whole - nothing */
    double *low, *high; /* [units] owned; equal to value where exact */
    double nothing, whole;
    bool exact;
    uint32_t runs, permutations;
} fm_shapley;
void fm_shapley_release(fm_shapley *s);
/* Shapley values (Shapley 1953): exact by all coalitions, or the mean marginal contribution over
 * random permutations, each with its reverse (antithetic pairs; Castro et al. 2009, Mitchell et
 * al. 2022), with Student intervals over the pairs. units <= 64. FM_EINVAL where max_runs is
 * below two permutations. */
FM_CHECKED fm_status fm_shapley_values(fm_shapley *out, size_t units, fm_value_fn value, void *ctx,
                                       const fm_shapley_opts *opts);

FM_END_DECLS
#endif
