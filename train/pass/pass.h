/* pass.h - one pass over the stem: forward with saved activations, loss, backward, for the rows of
 * several children together.
 *
 * A lane is one child in a pass: its net, its parameters, its rows, which stand one after another
 * among the rows of all. For each module the neighbouring lanes that hold the same weight go
 * through one product, forward and backward; low-rank terms are lists; what is summed over rows
 * (gradients, losses) is summed over the rows of one lane alone, in their order. So a lane's bits
 * do not depend on who else is in the pass, and a frozen lane (a reference, a teacher) is rows
 * like any other. Lanes are ordered by the lowest layer in which they train: the rows that a
 * layer's backward needs are then the first ones. */
#ifndef FM_TRAIN_PASS_H
#define FM_TRAIN_PASS_H

#include "train/net/internal.h"

FM_BEGIN_DECLS

/* What a lane's micro-batches need at most; of several lanes: their sums and maxima. */
typedef struct fmt_pass_size {
    uint32_t rows, labels, seqs, longest;
} fmt_pass_size;
void fmt_size_grow(fmt_pass_size *size, const fmt_seq_in *s, size_t n, const fmt_batch_how *how);

/* Lanes of these may share a pass: it takes sizes, switches and rotary tables from one of them. */
bool fmt_same_shape(const fm_arch *a, const fm_arch *b);

typedef struct fmt_pass fmt_pass;
typedef struct fmt_lane fmt_lane;

/* How a lane's final states become a loss. */
typedef struct fmt_objective {
    const char *name;
    bool head;   /* labelled rows go through the language head, the rows of all lanes together */
    bool silent; /* they only pass the final norm: a teacher, whose logits are asked for */
    /* head: losses of labelled rows at .. at + n - 1, whose logits [n, V] become dloss times the
     * gradient. NULL: cross entropy with the labels. */
    fm_status (*rows)(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n, float *logits,
                      float *loss);
    /* head: weigh[i] of labelled row i, after all row losses of the pass are known; *loss += what
     * the lane's loss is. NULL: every row weighs lane->dloss, the loss is the sum of the rows'. */
    fm_status (*weigh)(fmt_pass *p, fmt_lane *lane, const float *row_loss, float *weigh,
                       double *loss);
    /* no head: states x [labels, H] of the lane's picked rows behind the final norm (an encoder's
     * last states); sets dx, adds to the lane's own gradients, *loss += . */
    fm_status (*states)(fmt_pass *p, fmt_lane *lane, const float *x, float *dx, double *loss);
} fmt_objective;
extern const fmt_objective fmt_next_token;

/* Losses of rows that wait on the device until a step's end: one look at it then, and none on the
 * way. */
typedef struct fmt_tally {
    float *rows; /* device [room] */
    uint64_t room, used;
    struct fmt_put_off {
        double *into; /* the sum is added there */
        uint64_t at;
        uint32_t n;
    } * entry;
    size_t count, cap;
} fmt_tally;
/* rows: those of the device, on the host. Empties it. */
void fmt_tally_settle(fmt_tally *t, const float *rows);

struct fmt_lane {
    fmt_net *net;
    fmt_params *ps; /* NULL: nothing trains, whatever the net says */
    const fm_train_config *c;
    const fmt_objective *objective;
    void *objective_ctx;
    fmt_pass_size most; /* of any of its micro-batches */
    uint32_t first;     /* lowest layer with something to train in or below it; layers: none */
    bool embed_trains;  /* then every layer passes its gradient down */
    bool deep;          /* something below the head trains: the final norm, or a layer */
    float *mem;         /* its kept x A^T and the like */
    /* ---- of the micro-batch in hand ---- */
    fmt_batch batch;
    const fmt_seq_in *in; /* [ins] what batch.which counts */
    const fmt_seq_of *of; /* [ins] NULL: next token alone */
    size_t ins;
    float dloss;       /* 1 / targets of the whole optimizer step */
    double loss;       /* out: sum over the targets, but for what is put off */
    double *later;     /* where the pass's tally adds losses that are put off; NULL: none are */
    uint32_t step;     /* for dropout */
    uint64_t row_base; /* rows of the step's earlier micro-batches: likewise */
    bool went_before, goes_on; /* over stages: the shard has an earlier, a later pass of the lane */
    /* ---- the pass's ---- */
    uint32_t row0, seq0;
    uint32_t label0, labels; /* among the picked rows of all */
};

/* One device buffer for everything, taken once: rows of all lanes together never exceed cap.rows
 * (and so on). recompute: only each layer's input is kept, the rest is computed again in the
 * backward (same bits). */
FM_CHECKED fm_status fmt_pass_new(fmt_pass **out, fm_backend *be, fmt_lane *const *lane, size_t n,
                                  const fmt_pass_size *cap, bool recompute);
/* What a pass keeps from its forward to its backward is its own, and what it works in is kin's
 * (NULL: its own too), which is of the same lanes' sizes and is freed after it: several forwards
 * may then be under way. */
FM_CHECKED fm_status fmt_pass_new_beside(fmt_pass **out, fm_backend *be, fmt_lane *const *lane,
                                         size_t n, const fmt_pass_size *cap, bool recompute,
                                         fmt_pass *kin);
void fmt_pass_free(fmt_pass *p);
uint64_t fmt_pass_bytes(const fmt_pass *p);
/* Of the lanes given to new, those that have a batch in hand. Gradients of dloss * the loss are
 * added to each lane's g, lane->loss is set. */
FM_CHECKED fm_status fmt_pass_run(fmt_pass *p, fmt_lane *const *lane, size_t n);

/* The first tensor of a pass that is no finite number (nan_watch.c): forward in the order in which
 * they are computed, then backward. */
typedef struct fmt_watch {
    bool found;
    char name[FMT_MODULE_BYTES + 64];
} fmt_watch;
FM_CHECKED fm_status fmt_watch_params(fmt_watch *w, const fmt_params *ps);
/* The layers alone, and the final norm of the picked rows: fmt_head_logits may follow. */
FM_CHECKED fm_status fmt_pass_states(fmt_pass *p, fmt_lane *const *lane, size_t n);
/* What fmt_pass_run does behind the layers, for the lanes and batches of fmt_pass_states. */
FM_CHECKED fm_status fmt_pass_finish(fmt_pass *p);
/* Takes lanes and batches in hand, whose rows' places follow; fmt_layers_forward may run. */
FM_CHECKED fm_status fmt_pass_begin(fmt_pass *p, fmt_lane *const *lane, size_t n);
/* From now on (NULL: no more); costs a look at every tensor. */
void fmt_pass_watch(fmt_pass *p, fmt_watch *w);

/* ---- inside ---- */
/* Rows begin .. begin + count - 1 of the matrix in hand are this lane's. */
typedef struct fmt_part {
    fmt_lane *lane;
    uint32_t begin, count;
    uint32_t u0; /* place of the first in the lane's kept rows of the module */
    bool deeper; /* the gradient of x is wanted */
} fmt_part;
typedef struct fmt_parts {
    const fmt_part *p;
    uint32_t n;
    uint32_t rows; /* of all: the parts are one segment from row p[0].begin */
} fmt_parts;

typedef struct fmt_slot { /* one layer's saved activations, [rows of the pass, ..] */
    float *xin, *rstd1, *qraw, *kraw, *qrstd, *krstd, *q, *k, *v, *attn, *lse;
    float *xmid, *rstd2, *gate, *up;
    float *fused;                        /* q, k, v in one row; then q, k, v are not there */
    float *araw, *arstd, *mraw, *mrstd;  /* what the norms behind the branches read */
    float *xgate, *xup, *xout;           /* of experts: [rows * chosen, ..] by slot */
    float *sgate, *sup, *sout, *sswitch; /* of the shared expert */
    struct fmt_choices *choices;         /* which rows went to which expert (block_moe.c) */
} fmt_slot;

#define FMT_SLOT_FIELDS (offsetof(fmt_slot, choices) / sizeof(float *)) /* its pointers to floats */

struct fmt_pass {
    fm_backend *be;
    fm_arch arch; /* shapes and switches, the same for all lanes */
    fmt_pass_size cap;
    bool recompute;
    fmt_lane **lane; /* of the run in hand, by ascending first */
    size_t lanes, room;
    uint32_t rows, labels, seqs; /* of the run in hand */
    uint32_t lowest;             /* the lowest `first` of all lanes of the pass */
    uint32_t begin, end;         /* layers that are run here: all, or a stage's */
    uint32_t low;                /* of them the first with a slot of its own */
    struct fmt_stage *stage;     /* NULL: all layers are here */
    fmt_pass *kin;               /* whose memory it works in; NULL: its own */
    bool frozen;                 /* no lane trains */
    bool taught_rows;            /* some lane follows a teacher */
    uint32_t chunk;              /* labelled rows of one piece of logits */
    fmt_part *part, *head_part;  /* [room] */
    fm_train_seq *seq;           /* [cap.seqs] host */
    float *mem;
    uint64_t floats;
    fmt_slot *slot;            /* [end - low], the layers below share the first */
    uint32_t *saved;           /* [slots] rows that the layer's backward may need, times 16 */
    float *xout;               /* [M, H] after the last layer */
    float *h, *act;            /* [M, H], [M, I] */
    float *dx, *dh;            /* [M, H] */
    float *dact, *dgate, *dup; /* [M, I] */
    float *dattn, *dq, *dqraw; /* [M, NH*HD] */
    float *dk, *dkraw, *dv;    /* [M, NKV*HD] */
    float *du;                 /* room of low-rank terms: what is not kept */
    uint64_t du_floats;
    float *alone[3]; /* rooms of linears_alone.c */
    uint64_t alone_floats;
    float *xl, *hl, *rstdl, *dl;              /* labelled rows: [R, H], [R + 1, H], [R], [R, H] */
    float *zero;                              /* [H] zeros: a product with 0 would keep NaN */
    float *logits, *loss;                     /* [chunk, V], [R] */
    float *taught;                            /* [chunk, V] or NULL: a teacher's */
    float *cos, *sin, *cos_slide, *sin_slide; /* [longest, rotary_dim / 2]: rope[0], rope[1] */
    float *fused, *dfused;                    /* [M, (NH + 2 NKV) * HD] */
    float *branch;                            /* [M, H]: gradient of a branch, or a branch */
    float *xembed, *embed_rstd;               /* [M, H] before the norm of the embeddings */
    float *capped;                            /* [chunk, V]: logits behind their softcap */
    struct fmt_moe *moe;                      /* block_moe.c; NULL: no layer has experts */
    int32_t *imem;
    int32_t *ids, *pos, *back, *label_row, *label; /* device */
    int32_t *place;                                /* rows of the position table */
    int32_t *host;                                 /* [max(rows, labels)] */
    float *host_loss, *host_weigh;                 /* [R] */
    fm_product *product;                           /* [room * 3] */
    fm_term *term;
    size_t term_cap;
    fmt_watch *watch;
    /* Each time the backward has a layer behind it (arch.layers: the head): what the lanes'
     * gradients get there, they have, or it is queued. NULL: nobody asks. */
    fm_status (*left)(void *ctx, const fmt_pass *p, uint32_t layer);
    void *left_ctx;
    fmt_tally *tally; /* borrowed; NULL: losses are known, and the device has settled, when a run
                         returns */
};
/* The lane's row losses can wait; they do. */
bool fmt_puts_off(const fmt_pass *p, const fmt_lane *lane);
FM_CHECKED fm_status fmt_put_off(fmt_pass *p, const fmt_lane *lane);
FM_CHECKED fm_status fmt_watch_rows(fmt_pass *p, const char *what, const char *module,
                                    const float *x, size_t ld, uint32_t rows, uint32_t n);

/* Parts of all rows. */
fmt_parts fmt_parts_all(fmt_pass *p);
/* In the backward: of the lanes that train in this layer or below it (all with deeper set); and the
 * same with deeper where what lies before the layer wants the gradient. One of these at a time. */
fmt_parts fmt_parts_from(fmt_pass *p, uint32_t layer);
fmt_parts fmt_parts_below(fmt_pass *p, uint32_t layer);

/* One output of a set of linear layers that share x. */
typedef struct fmt_out {
    uint32_t which; /* FMT_Q .. */
    float *y;       /* gradient: dy */
    size_t ldy;
} fmt_out;
/* y of every out on every part; row numbers are those of x and y alike. */
FM_CHECKED fm_status fmt_linears_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x,
                                         size_t ldx, const fmt_out *out, uint32_t outs);
/* dx (rows of parts that want it; NULL: none does) is set, or added to; what trains gets
 * gradients. */
FM_CHECKED fm_status fmt_linears_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                      size_t lddx, bool add, const float *x, size_t ldx,
                                      const fmt_out *out, uint32_t outs);
/* The same of one out where x is to be made first, and may be made on the way: dx is set. */
FM_CHECKED fm_status fmt_linears_made(fmt_pass *p, fmt_parts ps, int32_t layer, const fm_swiglu *x,
                                      size_t ldx, const fmt_out *out);
FM_CHECKED fm_status fmt_linears_made_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                           size_t lddx, const fm_swiglu *x, size_t ldx,
                                           const fmt_out *out);
/* Some lane of the parts trains a linear of these: its input is needed. */
bool fmt_linears_train(fmt_parts ps, int32_t layer, const fmt_out *out, uint32_t outs);

/* linears_alone.c: what a linear does beside a product and plain low-rank terms (scales of IA3 and
 * DoRA, dropout), part by part. */
bool fmt_scales_input(const fmt_linear *l);
bool fmt_goes_alone(const fmt_linear *l); /* in the backward */
/* Floats of each of the three buffers p->alone that the lane's linears need. */
uint64_t fmt_alone_floats(const fmt_lane *lane);
FM_CHECKED fm_status fmt_alone_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x,
                                       size_t ldx, const fmt_out *out);
FM_CHECKED fm_status fmt_alone_backward(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                        size_t lddx, bool add, const float *x, size_t ldx,
                                        const fmt_out *out);
/* A term over a part's rows of x; where y and u, or the gradients, are is the caller's to add. */
fm_term fmt_term_on(const fmt_part *part, const fmt_linear *l, const fmt_term *t, const float *x,
                    size_t ldx);
/* Where x A^T of a term goes: kept, or a piece of p->du from *at on. */
float *fmt_place_u(fmt_pass *p, const fmt_term *t, const fmt_part *part, uint64_t *at);
/* Where a parameter's gradient is; NULL: frozen. */
float *fmt_lane_grad(const fmt_lane *lane, int32_t param);

/* lane_embed.c: a lane's low-rank term of the embedding and its virtual tokens. */
void fmt_embed_terms(fmt_pass *p, fmt_lane *lane, float *x);
void fmt_virtual_rows(fmt_pass *p, fmt_lane *lane, float *x);
/* Gradients of the rows that stood in for tokens; of the matrix and its terms. */
void fmt_virtual_rows_grad(fmt_pass *p, fmt_lane *lane, const float *dx);
void fmt_embed_tokens_grad(fmt_pass *p, fmt_lane *lane, float *dx);
/* Keys and values of virtual tokens of this layer into p->seq; grad: their gradients, too. */
void fmt_virtual_layer(fmt_pass *p, fmt_parts ps, uint32_t layer, bool grad);

/* y = norm(x) on per_row vectors of h a row. rstd NULL: not kept. */
void fmt_norms(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *y, const float *x,
               float *rstd, uint32_t per_row, uint32_t h);
void fmt_norms_grad(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *dx, bool add,
                    const float *dy, const float *x, const float *rstd, uint32_t per_row,
                    uint32_t h);

/* pass_util.c */
float *fmt_plan_take(float *base, uint64_t *at, uint64_t n); /* NULL base: measures */
fmt_slot *fmt_slot_of(fmt_pass *p, uint32_t layer);
static inline uint32_t fmt_pass_slots(const fmt_pass *p)
{
    return FM_MAX(p->end - p->low, 1u);
}
/* A branch: x its input, y what goes to the residual. backward: dy to the gradients of its first
 * linear layers, which input_grad takes on to dh (set, where the part wants it); x is read only
 * where input_trains. */
FM_CHECKED fm_status fmt_attention_forward(fmt_pass *p, fmt_parts ps, uint32_t layer,
                                           const float *x, float *y);
FM_CHECKED fm_status fmt_attention_backward(fmt_pass *p, fmt_parts ps, uint32_t layer,
                                            const float *dy);
FM_CHECKED fm_status fmt_attention_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                              const float *x);
bool fmt_attention_input_trains(fmt_parts ps, uint32_t layer);
FM_CHECKED fm_status fmt_mlp_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x,
                                     float *y);
FM_CHECKED fm_status fmt_mlp_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy);
FM_CHECKED fm_status fmt_mlp_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                        const float *x);
bool fmt_mlp_input_trains(fmt_parts ps, uint32_t layer);
/* block_moe.c: the same of a layer with experts. Memory of the choices, for all slots. */
FM_CHECKED fm_status fmt_moe_new(fmt_pass *p, uint32_t slots);
void fmt_moe_free(fmt_pass *p);
FM_CHECKED fm_status fmt_moe_ready(fmt_pass *p);              /* once its floats are in place */
uint64_t fmt_moe_plan(fmt_pass *p, float *base, uint64_t at); /* returns at behind its floats */
FM_CHECKED fm_status fmt_moe_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x,
                                     float *y);
FM_CHECKED fm_status fmt_moe_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy);
FM_CHECKED fm_status fmt_moe_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                        const float *x);
bool fmt_moe_input_trains(const fmt_pass *p, fmt_parts ps, uint32_t layer);
/* layers.c: embeddings and layers, forward and backward. */
FM_CHECKED fm_status fmt_layers_forward(fmt_pass *p);
FM_CHECKED fm_status fmt_layers_backward(fmt_pass *p);
void fmt_embed_backward(fmt_pass *p); /* then */
/* head.c: losses, and dx of every row behind the last layer. */
FM_CHECKED fm_status fmt_head(fmt_pass *p);
/* The final norm of the picked rows, into hl. */
void fmt_head_states(fmt_pass *p);
/* Logits of the lane's picked rows at .. at + n - 1, after that. */
FM_CHECKED fm_status fmt_head_logits(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n,
                                     float *logits);

/* pass_plan.c: sizes, once to measure and once to carve. */
FM_CHECKED fm_status fmt_pass_plan(fmt_pass *p, float *base, uint64_t *floats);
uint64_t fmt_lane_plan(fmt_lane *lane, float *base);
/* pass_share.c: slots of which the rows that a layer does not save lie where the next layer's will
 * be written. plan: a slot of m rows, each field m times as wide as a row's. */
typedef void (*fmt_plan_slot_fn)(const void *ctx, fmt_slot *s, float *base, uint64_t *at,
                                 uint64_t m);
FM_CHECKED fm_status fmt_plan_shared(fmt_pass *p, uint32_t slots, float *base, uint64_t *at,
                                     fmt_plan_slot_fn plan, const void *ctx);

FM_END_DECLS
#endif
