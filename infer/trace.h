/* trace.h - hidden states of a sequence read and replaced, and the effect of a replacement on an
 * answer (activation patching: Vig et al. 2020; Meng et al. 2022, "causal tracing").
 *
 * A hook belongs to one sequence. The rows of other sequences, also in the same step, keep their
 * bits. A sequence with hooks neither takes anything from the prefix cache nor leaves anything in
 * it, for the rest of its life. Without hooks a step costs one comparison a site. */
#ifndef FM_INFER_TRACE_H
#define FM_INFER_TRACE_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef enum fm_site {
    /* The stream after layer 1..layers, before the final norm; 0: the embeddings. */
    FM_SITE_RESIDUAL,
    /* The attention's output in layer 0..layers-1, before it is normed, scaled and added (HF: the
     * module's output). */
    FM_SITE_ATTENTION,
    FM_SITE_MLP, /* likewise the output of the MLP, or the experts' sum */
    FM_SITES
} fm_site;

typedef struct fm_hook {
    fm_site site;
    uint32_t layer;
    uint32_t token, tokens; /* [token, token + tokens) of the sequence, virtual ones not counted */
    float *read;            /* [tokens, hidden] gets the model's states; NULL: not wanted */
    const float *write;     /* [tokens, hidden] replaces them (after the read); NULL: they stay */
} fm_hook;

/* Sets the hooks of s from the next step on; n = 0 removes them. hook and what it points to are
 * borrowed until then or until the sequence is closed. FM_EINVAL: a layer or site that the model
 * does not have, an encoder, or a sequence that has run without hooks before (its states may come
 * from the cache).
 *
 * Over several ranks a layer's rows are whole on every rank that computes it, so hooks work as in
 * one process: replacements are sent to the other ranks with each step that runs those tokens, and
 * states read in another stage come back after its passes. */
FM_CHECKED fm_status fm_seq_hooks(fm_seq *s, const fm_hook *hook, size_t n);

/* Two texts that begin alike and part at some token: prompt + wrong answer, prompt + right answer.
 * margin = log P(rest of wrong) - log P(rest of right), both given what they have in common; above
 * 0 the model prefers the wrong one. */
typedef struct fm_trace_ask {
    fm_model *to;   /* runs */
    fm_model *from; /* gives the states: same layers, width and vocabulary; may be `to` */
    const int32_t *wrong, *right;
    size_t wrong_len, right_len; /* each has at least one token behind the common ones */
    unsigned sites;              /* 1 << fm_site, .. */
    /* Rows to run at most, about: until they fit, neighbouring tokens are taken together and layers
     * are left out, by turns; 0 = each token at each layer. */
    uint64_t rows_max;
    bool (*progress)(void *ctx, uint64_t done, uint64_t total); /* true = stop; may be NULL */
    void *ctx;
} fm_trace_ask;

typedef struct fm_trace {
    double margin;             /* of `to` without patches */
    double from_margin;        /* of `from` without patches */
    uint32_t common;           /* tokens that both texts begin with; these are patched */
    uint32_t columns;          /* segments of tokens: [begin[i], begin[i + 1]) */
    uint32_t *begin;           /* [columns + 1] */
    uint32_t rows[FM_SITES];   /* of each site; 0: not asked for */
    uint32_t *layer[FM_SITES]; /* [rows] */
    double *effect[FM_SITES];  /* [rows, columns] margin of `to` with `from`'s states there */
    uint64_t run_rows;         /* rows that were run */
    void *memory;              /* one allocation of all arrays */
} fm_trace;

/* FM_EUNSUPPORTED: models of different shape, encoders, classifiers; FM_EINVAL: texts that do not
 * part; FM_ELIMIT: no KV memory for one sequence; FM_ECANCELLED: stopped. */
FM_CHECKED fm_status fm_trace_grid(fm_trace *out, const fm_trace_ask *ask);
void fm_trace_release(fm_trace *t);

FM_END_DECLS
#endif
