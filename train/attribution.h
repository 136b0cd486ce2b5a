/* attribution.h - which training examples made a model give an answer: several methods in one
 * table, and a test of a ranking (training again without a group of examples).
 *
 * The case is a text that the model should not give after its prompt (wrong) and, where one is
 * known, a text that it should give (right). The target is then the margin: log-probability of
 * wrong less that of right, summed over their tokens, so that what both share cancels out; without
 * right it is the log-probability of wrong alone. A positive score: training on the example made
 * the wrong answer likelier. Units differ by method; only orders compare. */
#ifndef FM_TRAIN_ATTRIBUTION_H
#define FM_TRAIN_ATTRIBUTION_H

#include "train/train.h"

FM_BEGIN_DECLS

typedef enum fm_attribution_kind {
    /* dot product of gradients at points between the values before the step and the child */
    FM_ATTR_PATH,
    /* at the run's kept states, by learning rate (Pruthi et al. 2020); as PATH without states */
    FM_ATTR_TRACIN,
    FM_ATTR_COSINE,    /* cosine of gradients at PATH's points */
    FM_ATTR_DOT,       /* dot product at the child alone */
    FM_ATTR_INFLUENCE, /* dot product through the inverse of a damped Gauss-Newton matrix */
    FM_ATTR_RELATIF,   /* influence divided by the example's own size (Barshan et al. 2020) */
    FM_ATTR_BM25,      /* words in common with prompt and wrong answer (Robertson et al. 1994) */
    FM_ATTRIBUTIONS
} fm_attribution_kind;

typedef struct fm_attribution_method {
    const char *name; /* for --data-method, JSON */
    const char *says; /* for people: "cosine of gradients on the step's way" */
    bool gradients;   /* needs forward and backward of every example, at some points */
} fm_attribution_method;
extern const fm_attribution_method fm_attribution_methods[FM_ATTRIBUTIONS];
/* FM_EINVAL lists the methods. */
FM_CHECKED fm_status fm_attribution_find(fm_attribution_kind *out, const char *name);

typedef struct fm_attribution_in {
    fm_engine *e;
    const fm_provider *p; /* bytes of job->parent and child */
    /* The step as it was run: name, config, parent, data, and its teacher, classes and init. */
    const fm_train_job *job;
    const fm_tree *child;            /* the version that the step made */
    const fm_example *wrong, *right; /* right NULL: not known. classify: wrong's class */
    /* The run's checkpoints, ascending, where they were kept: TracIn's points. states 0: TracIn
     * also uses points on the line from the values before the step to the child's, as the other
     * methods always do. */
    const fm_train_state *state;
    size_t states;
    void (*progress)(void *ctx, size_t done, size_t of); /* counts gradients; NULL is fine */
    void *ctx;
} fm_attribution_in;

/* Fills score[kind] [count of data] where it is not NULL. One walk serves all methods: gradients
 * are taken once at each point. Memory: a few gradients of the trained parameters, plus at most 256
 * MiB of kept ones. A full fine-tune counts from the last layer down, as many layers as 16 Mi
 * floats hold. FM_EUNSUPPORTED: gradients of a contrastive run, where the loss of an example
 * depends on its batch. */
FM_CHECKED fm_status fm_attribution_scores(const fm_attribution_in *in,
                                           double *const score[FM_ATTRIBUTIONS]);
/* How often fm_attribution_scores would run an example forward and backward. */
uint64_t fm_attribution_cost(const fm_attribution_in *in, double *const score[FM_ATTRIBUTIONS]);

/* The digest under which the run's states are kept (fm_train_state.run). */
FM_CHECKED fm_status fm_attribution_run(const fm_attribution_in *in, fm_digest *run);

/* ---- test of a ranking ---- */
/* margin[g]: the case's margin in a model that is trained as the child was, without the examples of
 * group g (without[g] [count of data], true = left out; without[g] NULL: all stay). Children train
 * together in passes of a few; their bytes are those of `derive --skip`. The margin is log p(wrong)
 * - log p(right), or log p(wrong). A group of all examples: FM_EINVAL. */
FM_CHECKED fm_status fm_attribution_retrain(const fm_attribution_in *in, const bool *const *without,
                                            size_t groups, double *margin);
/* The case's margin in the child as it is. */
FM_CHECKED fm_status fm_attribution_margin(const fm_attribution_in *in, double *margin);
/* Spearman's rank correlation, ties by their mean rank; NaN where one side is constant or n < 2. */
double fm_spearman(const double *a, const double *b, size_t n);

FM_END_DECLS
#endif
