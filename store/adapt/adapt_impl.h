/* adapt_impl.h - what the files of this folder share: the steps by which adapters change weights.
 *
 * ops.c has the table of formulas; steps.c finds in a tree which of them apply to which weights;
 * adapted.c makes the view. */
#ifndef FM_STORE_ADAPT_IMPL_H
#define FM_STORE_ADAPT_IMPL_H

#include "store/adapt/adapter_impl.h"
#include "store/adapted.h"
#include "store/base/map.h"

#define ADT_PARTS 7
#define ADT_NUMS 6

typedef struct adt_step adt_step;

/* A weight while its steps are applied. */
typedef struct adt_work {
    const adt_step *step;
    float *w; /* [out, in]; a bias: [out, 1] */
    uint64_t out, in;
    float *part[ADT_PARTS]; /* widened; NULL: absent */
} adt_work;

enum {
    ADT_RUN = 1,    /* no engine has a term for it: it is folded for a run */
    ADT_MERGE = 2,  /* it is folded for a merge */
    ADT_RANK = 4,   /* a run sees it as the low-rank factors that `factor` makes */
    ADT_WHOLE = 8,  /* its one tensor stands for the weight: nothing is computed */
    ADT_SAVE = 16,  /* the changed weight stands beside the base's: a tied head keeps the old one */
    ADT_TERM = 32,  /* an engine has a term for it */
    ADT_ROUND = 64, /* PEFT rounds the weight to its dtype behind this step */
};

/* One formula. part[i]: how the names of its tensors end behind the module; "/x": a tensor of the
 * whole adapter, "base_model.x". */
typedef struct adt_op {
    const char *name; /* of the formula, in ids: another one where its result changes */
    const char *kind; /* the folder's */
    const char *part[ADT_PARTS];
    unsigned optional; /* bits of parts that may be absent */
    unsigned flags;
    /* Compares the parts' shapes with [out, in] and reads what the formula takes from the config
     * into num. */
    fm_status (*fit)(adt_step *s, const fm_json *config, uint64_t out, uint64_t in);
    fm_status (*apply)(adt_work *w);
    /* RANK: A [r, in] with the scale in it, or B [out, r]; r is num[0]. */
    fm_status (*factor)(float *dst, const adt_work *w, bool b);
} adt_op;

struct adt_step {
    const adt_op *op;
    size_t place;   /* which adapter */
    char *module;   /* "model.layers.0.self_attn.q_proj" */
    const char *of; /* ".weight" or ".bias" */
    bool turned;    /* the weight is stored [in, out] */
    const fm_entry *part[ADT_PARTS];
    double num[ADT_NUMS]; /* settings */
    int64_t *index;       /* tokens: rows; fourierft: places; owned */
    size_t index_count;
};

extern const adt_op adt_ops[];
extern const size_t adt_op_count;
/* The formulas that no tensor's name leads to. */
extern const adt_op adt_op_whole, adt_op_bias_scale, adt_op_bias_add, adt_op_pissa, adt_op_olora;

/* ---- for formulas ---- */

/* FM_EBASE unless part i has this shape. */
fm_status adt_need(const adt_step *s, size_t i, uint32_t rank, uint64_t d0, uint64_t d1);
uint64_t adt_dim(const adt_step *s, size_t i, uint32_t axis); /* 0: no such axis */

/* apply functions, one file a family of kinds */
fm_status adt_fit_loha(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_loha(adt_work *w);
fm_status adt_fit_lokr(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_lokr(adt_work *w);
fm_status adt_fit_randlora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_randlora(adt_work *w);
fm_status adt_fit_shira(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_shira(adt_work *w);
fm_status adt_fit_fourierft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_fourierft(adt_work *w);
fm_status adt_fit_miss(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_miss(adt_work *w);

fm_status adt_fit_oft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_oft(adt_work *w);
fm_status adt_fit_boft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_boft(adt_work *w);
fm_status adt_fit_hra(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_hra(adt_work *w);

fm_status adt_fit_adalora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_factor_adalora(float *dst, const adt_work *w, bool b);
fm_status adt_fit_vera(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_factor_vera(float *dst, const adt_work *w, bool b);
fm_status adt_fit_vblora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_factor_vblora(float *dst, const adt_work *w, bool b);
fm_status adt_by_factors(adt_work *w); /* adds B A of `factor` */

fm_status adt_fit_lora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_lora(adt_work *w);
fm_status adt_fit_embedding(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_embedding(adt_work *w);
fm_status adt_fit_ia3(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_ia3(adt_work *w);
fm_status adt_fit_tokens(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_tokens(adt_work *w);
fm_status adt_fit_start(adt_step *s, const fm_json *c, uint64_t out, uint64_t in);
fm_status adt_olora(adt_work *w);
fm_status adt_pissa(adt_work *w);

/* The first `count` values of torch.randperm(n) after manual_seed(seed). */
fm_status adt_torch_places(int64_t *out, size_t count, uint64_t n, uint64_t seed);
/* torch's uniform_(-bound, bound) of n floats, continuing the generator at *state. */
typedef struct adt_twister {
    uint32_t word[624];
    uint32_t at;
} adt_twister;
void adt_twister_seed(adt_twister *t, uint64_t seed);
uint32_t adt_twister_next(adt_twister *t);

/* ---- steps.c ---- */

/* A parameter of the base that adapters change, with its steps in their order. */
typedef struct adt_weight {
    char *name;           /* of the tensor, as the base's file spells it */
    const fm_entry *base; /* NULL: the base has no such bias */
    adt_step *step;
    size_t count, cap;
    size_t folded; /* so many first steps are part of the weight in the view */
    bool beside;   /* the changed weight replaces the base's as a saved parameter does */
} adt_weight;

typedef struct adt_plan {
    adp_place *place;
    fm_json **config; /* of each place */
    size_t places;
    adt_weight *weight;
    size_t count, cap;
    fm_map *by_name;
} adt_plan;

/* Finds what the adapters of a tree change; places before `first` are passed over. A
 * place that is kept and not computed has no config. */
fm_status adt_plan_make(adt_plan *out, const fm_tree *tree, const fm_provider *p, size_t first);
void adt_plan_free(adt_plan *plan);
/* The greatest sizes of the modules of VeRA, for which it draws projections that are not stored. */
void adt_set_most(adt_step *s, uint64_t out, uint64_t in);
/* Compares a TERM's parts with its weight, as adt_plan_make does for all others. */
fm_status adt_fit(adt_plan *plan, const adt_weight *w, adt_step *s);
/* The formula and part that a tensor of an adapter of this kind is; NULL: a whole parameter. */
const adt_op *adt_op_of(const char *kind, const char *name, size_t *part);
/* Whether an engine or an export computes this kind by itself: lora, dora, ia3, prefix, prompt. */
bool adt_native(const char *kind);

#endif
