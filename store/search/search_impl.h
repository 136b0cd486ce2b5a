/* search_impl.h - shared by the files of the search; inside this folder only. */
#ifndef FM_STORE_SEARCH_IMPL_H
#define FM_STORE_SEARCH_IMPL_H

#include "store/search/search.h"

#define SRC_WINDOWS 4u
#define SRC_WINDOW_ELEMS 4096u
#define SRC_SOURCES_MAX 24u
#define SRC_PATH_SOURCES_MAX 8u
#define SRC_TRIALS_MAX 700u
#define SRC_NOTHING_NEARER 0.3 /* bits per element of ADAMW: nothing else can be nearer */
#define SRC_EXACT 0.002        /* bits per element: nothing can be much better */

/* A stored tensor that is a candidate's input, with its chain open and a few leaves cached. */
typedef struct src_source {
    fm_digest id;
    fms_form form;
    uint32_t depth;
    fms_chain chain;
} src_source;

typedef struct src_trial {
    fms_recipe recipe;
    uint32_t count;
    uint32_t source[FMS_PARENTS_MAX];
    double bits;
} src_trial;

/* The recipe that was best for the last tensor, tried first on the next. */
typedef struct src_habit {
    bool set;
    uint16_t op, mode;
    uint32_t count;
    uint8_t params[64];
    size_t params_len;
    uint32_t source[FMS_PARENTS_MAX]; /* numbers of sources at the path */
} src_habit;

struct fms_search {
    fms_search_env env;
    fm_tree *tree[FMS_OFFERS_MAX];
    uint32_t trees;
    uint64_t passed_over;        /* trees that were offered and are not among these */
    struct src_nearest *nearest; /* ranks them for `expected`; NULL: the first to come */
    const fm_tree *expected;
    src_habit habit;
    const fm_tree *own;          /* the tree that is being put; may be NULL */
    struct fms_adamw_fit *adamw; /* fit of the last tensor; NULL: none yet */
    fm_buf params;               /* parameters of the guess */
    /* The state of one run. */
    const fms_subject *subject;
    fms_coder *coder;
    src_source source[SRC_SOURCES_MAX];
    uint32_t sources, path_sources;
    uint32_t leaf;  /* the leaf that the windows are in */
    uint8_t *bytes; /* bytes of that leaf */
    size_t leaf_bytes;
    uint64_t window_at[SRC_WINDOWS]; /* byte offsets in the tensor */
    size_t window_bytes;
    uint32_t windows, trials;
    uint8_t *predicted; /* FM_LEAF_BYTES */
    src_trial best, second;
};

/* ---- trial.c ---- */
/* The subject's entry in the tree that is being put, or NULL. */
const fm_entry *src_own_entry(const fms_search *s);

/* Opens the tensor as a source; *at: its number, the same for the same id; UINT32_MAX: unusable. */
FM_CHECKED fm_status src_open(fms_search *s, const fm_digest *id, uint32_t *at);
/* Judges a recipe over sources by the windows and keeps the best two, with copied parameters. bits
 * may be NULL. A recipe that does not fit the sources is skipped and is not a failure. */
FM_CHECKED fm_status src_try(fms_search *s, const fms_recipe *r, const uint32_t *source,
                             uint32_t count, double *bits);
FM_CHECKED fm_status src_read(fms_search *s, uint32_t source, uint64_t offset, void *dst,
                              size_t bytes);
/* Bytes [offset, offset + bytes) of what the recipe makes of its sources. */
FM_CHECKED fm_status src_predict(fms_search *s, const fms_recipe *r, const uint32_t *source,
                                 uint32_t count, uint64_t offset, size_t bytes, uint8_t *dst);
bool src_passes_over(fm_status rc);
void src_drop_trial(src_trial *t);

/* ---- nearest.c ---- */
FM_CHECKED fm_status src_nearest_new(fms_search *s, const fm_tree *tree, const fm_provider *from);
FM_CHECKED fm_status src_nearest_offer(fms_search *s, const fm_tree *tree);
void src_nearest_free(struct src_nearest *n);
/* ---- adamw.c ---- */
FM_CHECKED fm_status src_adamw(fms_search *s);
/* *out: whether the subject is a weight or a moment of a checkpoint that is being put. */
FM_CHECKED fm_status src_of_checkpoint(const fms_search *s, bool *out);
/* ---- linear.c ---- */
FM_CHECKED fm_status src_linear(fms_search *s);
/* ---- lora.c ---- */
FM_CHECKED fm_status src_lora(fms_search *s);
/* Bytes of what an offered tree's tensor at e's path is with the tree's adapter of that number
 * merged, in e's dtype. *there: it has so many adapters; *made: dst was filled. */
FM_CHECKED fm_status src_lora_window(fms_search *s, const fm_tree *tree, size_t adapter,
                                     const fm_entry *e, uint64_t offset, size_t bytes, uint8_t *dst,
                                     bool *there, bool *made);
/* ---- rows.c ---- */
FM_CHECKED fm_status src_same_bytes(fms_search *s, const fm_entry *e); /* reshaped, transposed */
FM_CHECKED fm_status src_rows(fms_search *s);

#endif
