/* attribution.h - which training examples made a model say a given answer: several methods behind
 * one table, and what tells whether a ranking is true (training again without a group).
 *
 * The case is a text that the model should not say after its prompt (wrong) and, where one is
 * known, a text that it should (right). The target is then the margin: log-probability of wrong
 * less that of right, sums over their tokens, so that what both share cancels out; without right it
 * is the log-probability of wrong alone. A positive score: training on the example made the wrong
 * answer likelier. Scores of different methods are in different units; only orders compare. */
#ifndef FM_TRAIN_ATTRIBUTION_H
#define FM_TRAIN_ATTRIBUTION_H

#include "train/train.h"

FM_BEGIN_DECLS

typedef enum fm_attribution_kind {
    FM_ATTR_PATH,   /* dot product of gradients at points on the way from before the step */
    FM_ATTR_TRACIN, /* the same at the run's kept states, weighted by learning rate (Pruthi et al.
                     * 2020); where none are kept: as PATH */
    FM_ATTR_COSINE, /* cosine of gradients at PATH's points */
    FM_ATTR_DOT,    /* dot product at the child alone */
    FM_ATTR_INFLUENCE, /* the same through the inverse of a damped Gauss-Newton matrix */
    FM_ATTR_RELATIF,   /* influence over the example's own size (Barshan et al. 2020) */
    FM_ATTR_BM25,      /* words in common with prompt and wrong answer (Robertson et al. 1994) */
    FM_ATTRIBUTIONS
} fm_attribution_kind;

typedef struct fm_attribution_method {
    const char *name; /* for --data-method, JSON */
    const char *says; /* "cosine of gradients over the run": for people */
    bool gradients;   /* forward and backward of every example, at some points */
} fm_attribution_method;
extern const fm_attribution_method fm_attribution_methods[FM_ATTRIBUTIONS];
/* FM_EINVAL names the methods that there are. */
FM_CHECKED fm_status fm_attribution_find(fm_attribution_kind *out, const char *name);

typedef struct fm_attribution_in {
    fm_engine *e;
    const fm_provider *p; /* bytes of job->parent and child */
    /* The step as it was run: name, config, parent, data; teacher and classes where the objective
     * has them. init as there. */
    const fm_train_job *job;
    const fm_tree *child;            /* what it made */
    const fm_example *wrong, *right; /* right NULL: not known. classify: of the wrong class */
    /* The run's checkpoints, ascending, where they were kept: TracIn's points. 0: points on the
     * line from the values before the step to the child's, at which the other methods always
     * stand. */
    const fm_train_state *state;
    size_t states;
    void (*progress)(void *ctx, size_t done, size_t of); /* gradients; NULL is fine */
    void *ctx;
} fm_attribution_in;

/* score[kind] [count of data] is filled where it is not NULL. One walk serves all methods:
 * gradients are taken once a point. Memory: a few gradients of what trained, plus at most 256
 * MiB of kept ones. A full fine-tune counts from the last layer down, as many layers as 16 Mi
 * floats hold. FM_EUNSUPPORTED: gradients of a contrastive run (an example's loss is that of its
 * batch). */
FM_CHECKED fm_status fm_attribution_scores(const fm_attribution_in *in,
                                           double *const score[FM_ATTRIBUTIONS]);
/* Passes of one example through forward and backward (an evaluation) that scores would take for
 * these methods. */
uint64_t fm_attribution_cost(const fm_attribution_in *in, double *const score[FM_ATTRIBUTIONS]);

/* The digest by which the run's states are kept (fm_train_state.run). */
FM_CHECKED fm_status fm_attribution_run(const fm_attribution_in *in, fm_digest *run);

/* ---- is a ranking true? ---- */
/* margin[g] of the case in a model trained as the child was, without the examples of group g
 * (without[g] [count of data], true = left out; without[g] NULL: all stay). Children train together
 * in passes of a few; their bytes are those of `derive --skip`. The margin is log p(wrong) - log
 * p(right), or log p(wrong). A group of all examples: FM_EINVAL. */
FM_CHECKED fm_status fm_attribution_retrain(const fm_attribution_in *in, const bool *const *without,
                                            size_t groups, double *margin);
/* The same of the child as it is. */
FM_CHECKED fm_status fm_attribution_margin(const fm_attribution_in *in, double *margin);
/* Spearman's rank correlation, ties by their mean rank; NaN where one side is constant or n < 2. */
double fm_spearman(const double *a, const double *b, size_t n);

FM_END_DECLS
#endif
