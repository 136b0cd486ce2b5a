/* pass.h - one pass over the stem: forward with saved activations, loss, backward, for the rows of
 * several children together.
 *
 * A lane is one child in a pass: its net, its parameters, and its rows, which are consecutive among
 * the rows of the pass. For each module, neighbouring lanes that hold the same weight go through
 * one product, forward and backward; low-rank terms are lists; sums over rows (gradients, losses)
 * are over the rows of one lane alone, in their order. So a lane's bits do not depend on the other
 * lanes of the pass, and a frozen lane (a reference, a teacher) has rows like any other. Lanes are
 * ordered by the lowest layer in which they train: the rows that a layer's backward needs are then
 * the first ones. */
#ifndef FM_TRAIN_PASS_H
#define FM_TRAIN_PASS_H

#include "train/net/internal.h"

FM_BEGIN_DECLS

/* The most that one micro-batch of a lane needs; for several lanes sums and maxima of these. */
typedef struct fmt_pass_size {
    uint32_t rows, labels, seqs, longest;
} fmt_pass_size;
void fmt_size_grow(fmt_pass_size *size, const fmt_seq_in *s, size_t n, const fmt_batch_how *how);

/* Whether lanes of a and b may share a pass: it has one set of sizes, switches, rope tables. */
bool fmt_same_shape(const fm_arch *a, const fm_arch *b);

typedef struct fmt_pass fmt_pass;
typedef struct fmt_lane fmt_lane;

/* How a lane's final states become a loss. */
typedef struct fmt_objective {
    const char *name;
    bool head;   /* labelled rows go through the language head */
    bool silent; /* only through the final norm: a teacher's rows */
    /* If head: writes the losses of labelled rows at .. at + n - 1 and turns their logits [n, V]
     * into dloss times the gradient. NULL: cross entropy with the labels. */
    fm_status (*rows)(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n, float *logits,
                      float *loss);
    /* If head: sets weigh[i] of labelled row i once all row losses of the pass are known, and adds
     * the lane's loss to *loss. NULL: every row weighs lane->dloss, and the rows' losses are
     * summed. */
    fm_status (*weigh)(fmt_pass *p, fmt_lane *lane, const float *row_loss, float *weigh,
                       double *loss);
    /* If not head: x [labels, H] has the states of the lane's picked rows behind the final norm (of
     * an encoder: its last states). Sets dx, adds to the lane's gradients and to *loss. */
    fm_status (*states)(fmt_pass *p, fmt_lane *lane, const float *x, float *dx, double *loss);
} fmt_objective;
extern const fmt_objective fmt_next_token;

/* Losses of rows that stay on the device until a step's end: the host waits for them once. */
typedef struct fmt_tally {
    float *rows; /* device: [room] losses */
    uint64_t room, used;
    struct fmt_put_off {
        double *into; /* where the sum of the rows is added */
        uint64_t at;
        uint32_t n;
    } * entry;
    size_t count, cap;
} fmt_tally;
/* Adds up the losses and empties the tally. rows: a copy of t->rows on the host. */
void fmt_tally_settle(fmt_tally *t, const float *rows);

struct fmt_lane {
    fmt_net *net;
    fmt_params *ps; /* NULL: nothing trains, even if the net has parameters */
    const fm_train_config *c;
    const fmt_objective *objective;
    void *objective_ctx;
    fmt_pass_size most; /* the most of any of its micro-batches */
    uint32_t first;     /* lowest layer with something to train in or below it; arch.layers: none */
    bool embed_trains;  /* the embedding trains: every layer passes its gradient down */
    bool deep;          /* something below the head trains: the final norm, or a layer */
    float *mem;         /* device: activations that its own parameters need, x A^T and others */
    /* ---- of the current micro-batch ---- */
    fmt_batch batch;
    const fmt_seq_in *in; /* [ins] the sequences that batch.which numbers */
    const fmt_seq_of *of; /* [ins]; NULL is fine for next_token */
    size_t ins;
    float dloss;       /* 1 / targets of the whole optimizer step */
    double loss;       /* out: sum over the targets, without losses that are put off */
    double *later;     /* where the pass's tally adds losses that are put off; NULL: none is */
    uint32_t step;     /* for dropout */
    uint64_t row_base; /* rows of the step's earlier micro-batches, also for dropout */
    bool went_before, goes_on; /* over stages: the shard has more passes of it */
    /* ---- set by the pass ---- */
    uint32_t row0, seq0;
    uint32_t label0, labels; /* among the picked rows of all lanes */
};

/* Allocates one device buffer for everything: the rows of all lanes together never exceed cap.rows
 * (likewise for the other sizes). recompute: only each layer's input is kept, and the backward
 * computes the rest again (same bits). */
FM_CHECKED fm_status fmt_pass_new(fmt_pass **out, fm_backend *be, fmt_lane *const *lane, size_t n,
                                  const fmt_pass_size *cap, bool recompute);
/* The same, but working memory, which is not kept from forward to backward, is borrowed from kin
 * (NULL: allocated), a pass over lanes of the same sizes that is freed later. So several forwards
 * may be under way. */
FM_CHECKED fm_status fmt_pass_new_beside(fmt_pass **out, fm_backend *be, fmt_lane *const *lane,
                                         size_t n, const fmt_pass_size *cap, bool recompute,
                                         fmt_pass *kin);
void fmt_pass_free(fmt_pass *p);
uint64_t fmt_pass_bytes(const fmt_pass *p);
/* Runs those of the lanes given to fmt_pass_new that have rows in their batch. Adds the gradients
 * of dloss * the loss to each lane's ps->g, sets lane->loss. */
FM_CHECKED fm_status fmt_pass_run(fmt_pass *p, fmt_lane *const *lane, size_t n);

/* The first tensor of a pass with a number that is not finite (nan_watch.c), in the order of
 * computation: forward, then backward. */
typedef struct fmt_watch {
    bool found;
    char name[FMT_MODULE_BYTES + 64];
} fmt_watch;
FM_CHECKED fm_status fmt_watch_params(fmt_watch *w, const fmt_params *ps);
/* Runs the layers forward, and the final norm of the picked rows: fmt_head_logits may follow. */
FM_CHECKED fm_status fmt_pass_states(fmt_pass *p, fmt_lane *const *lane, size_t n);
/* The rest of fmt_pass_run, after fmt_pass_states for the same lanes and batches. */
FM_CHECKED fm_status fmt_pass_finish(fmt_pass *p);
/* Takes lanes and their batches and places their rows; fmt_layers_forward may run then. */
FM_CHECKED fm_status fmt_pass_begin(fmt_pass *p, fmt_lane *const *lane, size_t n);
/* Watches every tensor from now on, which costs a download of each; NULL: stops. */
void fmt_pass_watch(fmt_pass *p, fmt_watch *w);

/* ---- inside the pass ---- */
/* Rows begin .. begin + count - 1 of a matrix belong to this lane. */
typedef struct fmt_part {
    fmt_lane *lane;
    uint32_t begin, count;
    uint32_t u0; /* index of the first row among the rows that the lane keeps for a module */
    bool deeper; /* the gradient of x is wanted */
} fmt_part;
typedef struct fmt_parts {
    const fmt_part *p;
    uint32_t n;
    uint32_t rows; /* of all parts, which are one segment from row p[0].begin on */
} fmt_parts;

typedef struct fmt_slot { /* Saved activations of one layer, each [rows of the pass, ..]. */
    float *xin, *rstd1, *qraw, *kraw, *qrstd, *krstd, *q, *k, *v, *attn, *lse;
    float *xmid, *rstd2, *gate, *up;
    float *fused;                        /* q, k, v in one row; the fields q, k, v are NULL then */
    float *araw, *arstd, *mraw, *mrstd;  /* inputs of the norms behind the branches */
    float *xgate, *xup, *xout;           /* experts: [rows * chosen, ..] by slot */
    float *sgate, *sup, *sout, *sswitch; /* the shared expert */
    float *rin, *rout;                   /* recurrent: the first product; what the last one reads */
    float *rsteps, *rdt, *ry;            /* .. (t, b, c), dt; what the scan gives */
    float *rz, *rb, *ra;                 /* .. of the delta rule: rin has its (q, k, v) */
    float *agate;                        /* attention's output gates, before their sigmoid */
    struct fmt_choices *choices;         /* which rows went to which expert (block_moe.c) */
} fmt_slot;

/* number of its pointers to floats */
#define FMT_SLOT_FIELDS (offsetof(fmt_slot, choices) / sizeof(float *))

struct fmt_pass {
    fm_backend *be;
    fm_arch arch; /* shapes and switches, the same for all lanes */
    fmt_pass_size cap;
    bool recompute;
    fmt_lane **lane; /* lanes of the current run, by ascending `first` */
    size_t lanes, room;
    uint32_t rows, labels, seqs; /* of the current run */
    uint32_t lowest;             /* the lowest `first` of all lanes of the pass */
    uint32_t begin, end;         /* layers that run in this process: all, or those of a stage */
    uint32_t low;                /* first of these layers with a slot of its own */
    struct fmt_stage *stage;     /* NULL: all layers are here */
    fmt_pass *kin;               /* the pass whose working memory it borrows; NULL: its own */
    bool frozen;                 /* no lane trains */
    bool taught_rows;            /* some lane follows a teacher */
    uint32_t chunk;              /* labelled rows whose logits are computed at a time */
    fmt_part *part, *head_part;  /* [room] */
    fm_train_seq *seq;           /* [cap.seqs] host */
    float *mem;
    uint64_t floats;
    fmt_slot *slot;            /* [end - low]; the layers below low share the first */
    uint32_t *saved;           /* [slots] rows that the backward may need, times 16 */
    float *xout;               /* [M, H] after the last layer */
    float *h, *act;            /* [M, H], [M, I] */
    float *dx, *dh;            /* [M, H] */
    float *dact, *dgate, *dup; /* [M, I] */
    float *dattn, *dq, *dqraw; /* [M, NH*HD] */
    float *dk, *dkraw, *dv;    /* [M, NKV*HD] */
    float *du;                 /* x A^T and dy B of low-rank terms, where not kept */
    uint64_t du_floats;
    float *alone[3]; /* working memory of linears_alone.c */
    uint64_t alone_floats;
    float *xl, *hl, *rstdl, *dl;              /* labelled rows: [R, H], [R + 1, H], [R], [R, H] */
    float *zero;                              /* [H] zeros to copy: a product would keep NaN */
    float *logits, *loss;                     /* [chunk, V], [R] */
    float *taught;                            /* [chunk, V] a teacher's logits, or NULL */
    float *cos, *sin, *cos_slide, *sin_slide; /* [longest, rotary_dim / 2] of rope[0], rope[1] */
    float *grow, *grow_zero;                  /* [longest] fm_arch_growth; NULL: queries do not */
    float *drin, *drout;                      /* recurrent: gradients of the slot's rin, rout */
    float *drsteps, *drdt, *dry;              /* .. of rsteps, rdt, ry */
    float *rmix, *rout, *rgate, *rrstd;       /* .. computed again: the convolution's y, rout, .. */
    float *drmix, *rwork;                     /* .. and what its norm reads; fm_scan_grad.work */
    float *rdeal, *rdeal_ba;                  /* products that hold one group after another */
    float *drz, *drb, *dra;                   /* gradients of rz, rb, ra */
    float *gated, *amade, *dagate, *damade;   /* [M, 2 NH*HD] q and gates; [M, NH*HD] attn gated */
    float *fused, *dfused;                    /* [M, (NH + 2 NKV) * HD] */
    float *branch;                            /* [M, H]: a branch, or its gradient */
    float *xembed, *embed_rstd;               /* [M, H] before the norm of the embeddings */
    float *capped;                            /* [chunk, V]: logits after their softcap */
    struct fmt_moe *moe;                      /* block_moe.c; NULL: no layer has experts */
    int32_t *imem;
    int32_t *ids, *pos, *back, *label_row, *label; /* device */
    int32_t *place;                                /* device: rows of the position table */
    int32_t *states; /* device: lists of fm_state_rows, where layers recur */
    int32_t *host;   /* [max(rows, labels)]; where layers recur: [max(3 rows, labels)] */
    float *host_loss, *host_weigh;                 /* [R] */
    fm_product *product;                           /* [room * 4] */
    fm_term *term;
    size_t term_cap;
    fmt_watch *watch;
    /* Called each time the backward has left a layer (arch.layers: the head): all gradients of this
     * layer are added to the lanes' or queued. NULL: no call. */
    fm_status (*left)(void *ctx, const fmt_pass *p, uint32_t layer);
    void *left_ctx;
    fmt_tally *tally; /* borrowed; NULL: a run waits for the losses itself */
};
/* Whether the lane's row losses can wait until the step's end; fmt_put_off makes them wait. */
bool fmt_puts_off(const fmt_pass *p, const fmt_lane *lane);
FM_CHECKED fm_status fmt_put_off(fmt_pass *p, const fmt_lane *lane);
FM_CHECKED fm_status fmt_watch_rows(fmt_pass *p, const char *what, const char *module,
                                    const float *x, size_t ld, uint32_t rows, uint32_t n);

/* Parts of all lanes. */
fmt_parts fmt_parts_all(fmt_pass *p);
/* For the backward: parts of the lanes that train in this layer or below it. fmt_parts_from sets
 * `deeper` on all; fmt_parts_below sets it where something before the layer needs the gradient. A
 * call overwrites the parts of the call before. */
fmt_parts fmt_parts_from(fmt_pass *p, uint32_t layer);
fmt_parts fmt_parts_below(fmt_pass *p, uint32_t layer);

/* One output of a set of linear layers that share x. */
typedef struct fmt_out {
    uint32_t which; /* FMT_Q .. */
    float *y;       /* in the backward: dy */
    size_t ldy;
} fmt_out;
/* Computes y of every out on every part; x and y have the same row numbers. */
FM_CHECKED fm_status fmt_linears_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x,
                                         size_t ldx, const fmt_out *out, uint32_t outs);
/* Sets dx, or adds to it, where parts want it (NULL: none); adds parameters' gradients. */
FM_CHECKED fm_status fmt_linears_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                      size_t lddx, bool add, const float *x, size_t ldx,
                                      const fmt_out *out, uint32_t outs);
/* The same for one out whose x is made from swiglu, maybe in the product: dx is set. */
FM_CHECKED fm_status fmt_linears_made(fmt_pass *p, fmt_parts ps, int32_t layer, const fm_swiglu *x,
                                      size_t ldx, const fmt_out *out);
FM_CHECKED fm_status fmt_linears_made_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                           size_t lddx, const fm_swiglu *x, size_t ldx,
                                           const fmt_out *out);
/* Whether some lane of the parts trains one of these linears, so that its input is needed. */
bool fmt_linears_train(fmt_parts ps, int32_t layer, const fmt_out *out, uint32_t outs);

/* linears_alone.c: what a linear layer does besides a product and plain low-rank terms (scales of
 * IA3 and DoRA, dropout), part by part. */
bool fmt_scales_input(const fmt_linear *l);
bool fmt_goes_alone(const fmt_linear *l); /* in the backward */
/* Floats of each of the three buffers p->alone that the lane's linears need. */
uint64_t fmt_alone_floats(const fmt_lane *lane);
FM_CHECKED fm_status fmt_alone_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x,
                                       size_t ldx, const fmt_out *out);
FM_CHECKED fm_status fmt_alone_backward(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx,
                                        size_t lddx, bool add, const float *x, size_t ldx,
                                        const fmt_out *out);
/* A term over a part's rows of x; the caller sets y and u, or the gradients. */
fm_term fmt_term_on(const fmt_part *part, const fmt_linear *l, const fmt_term *t, const float *x,
                    size_t ldx);
/* Where x A^T of a term is written: to the kept rows, or to p->du from *at on. */
float *fmt_place_u(fmt_pass *p, const fmt_term *t, const fmt_part *part, uint64_t *at);
/* The gradient of a parameter; NULL: it is frozen. */
float *fmt_lane_grad(const fmt_lane *lane, int32_t param);
/* Of a factor of a term: made, where it is not NULL, or a parameter's. */
float *fmt_factor_grad(const fmt_lane *lane, int32_t param, float *made);

/* lane_embed.c: a lane's low-rank term of the embedding and its virtual tokens. */
void fmt_embed_terms(fmt_pass *p, fmt_lane *lane, float *x);
void fmt_virtual_rows(fmt_pass *p, fmt_lane *lane, float *x);
/* Gradients of the rows in place of tokens, and of the embedding's matrix and terms. */
void fmt_virtual_rows_grad(fmt_pass *p, fmt_lane *lane, const float *dx);
void fmt_embed_tokens_grad(fmt_pass *p, fmt_lane *lane, float *dx);
/* Puts the layer's keys and values of virtual tokens into p->seq; grad: their gradients too. */
void fmt_virtual_layer(fmt_pass *p, fmt_parts ps, uint32_t layer, bool grad);

/* y = norm(x) on per_row vectors of h in each row. rstd NULL: not kept. */
void fmt_norms(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *y, const float *x,
               float *rstd, uint32_t per_row, uint32_t h);
void fmt_norms_grad(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *dx, bool add,
                    const float *dy, const float *x, const float *rstd, uint32_t per_row,
                    uint32_t h);

/* pass_util.c */
float *fmt_plan_take(float *base, uint64_t *at, uint64_t n); /* base NULL: measures only */
fmt_slot *fmt_slot_of(fmt_pass *p, uint32_t layer);
static inline uint32_t fmt_pass_slots(const fmt_pass *p)
{
    return FM_MAX(p->end - p->low, 1u);
}
/* The branches of a layer. Forward: x is the branch's input, y its output. Backward: goes from dy
 * to the gradients of the branch's first linear layers; input_grad goes on from these to dh (set,
 * where the part wants it) and reads x only where input_trains. */
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
/* block_recurrent.c: the same for a recurrent block, which stands in the place of attention. */
FM_CHECKED fm_status fmt_recurrent_forward(fmt_pass *p, fmt_parts ps, uint32_t layer,
                                           const float *x, float *y);
FM_CHECKED fm_status fmt_recurrent_backward(fmt_pass *p, fmt_parts ps, uint32_t layer,
                                            const float *dy);
FM_CHECKED fm_status fmt_recurrent_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                              const float *x);
bool fmt_recurrent_input_trains(fmt_parts ps, uint32_t layer);
fm_scan fmt_recurrent_scan(const fmt_pass *p, uint32_t rows); /* its sizes */
fm_delta fmt_recurrent_delta(const fmt_pass *p, uint32_t rows);
/* block_moe.c: the same for experts. fmt_moe_new allocates the choices of all slots. */
FM_CHECKED fm_status fmt_moe_new(fmt_pass *p, uint32_t slots);
void fmt_moe_free(fmt_pass *p);
/* after fmt_moe_plan has placed its floats */
FM_CHECKED fm_status fmt_moe_ready(fmt_pass *p);
uint64_t fmt_moe_plan(fmt_pass *p, float *base, uint64_t at); /* returns the end of its floats */
FM_CHECKED fm_status fmt_moe_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x,
                                     float *y);
FM_CHECKED fm_status fmt_moe_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy);
FM_CHECKED fm_status fmt_moe_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                        const float *x);
bool fmt_moe_input_trains(const fmt_pass *p, fmt_parts ps, uint32_t layer);
/* layers.c: embeddings and layers, forward and backward. */
FM_CHECKED fm_status fmt_layers_forward(fmt_pass *p);
FM_CHECKED fm_status fmt_layers_backward(fmt_pass *p);
void fmt_embed_backward(fmt_pass *p); /* after fmt_layers_backward */
/* head.c: losses, and dx of every row behind the last layer. */
FM_CHECKED fm_status fmt_head(fmt_pass *p);
/* Computes the final norm of the picked rows into hl. */
void fmt_head_states(fmt_pass *p);
/* Logits of the lane's picked rows at .. at + n - 1, after fmt_head_states. */
FM_CHECKED fm_status fmt_head_logits(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n,
                                     float *logits);

/* pass_plan.c: lays out the buffer, or measures it if base is NULL. */
FM_CHECKED fm_status fmt_pass_plan(fmt_pass *p, float *base, uint64_t *floats);
uint64_t fmt_lane_plan(fmt_lane *lane, float *base);
/* pass_share.c: lays out slots so that the rows that a layer does not save lie where the next
 * layer's will be written. plan: lays out a slot of m rows, each field m times a row. */
typedef void (*fmt_plan_slot_fn)(const void *ctx, fmt_slot *s, float *base, uint64_t *at,
                                 uint64_t m);
FM_CHECKED fm_status fmt_plan_shared(fmt_pass *p, uint32_t slots, float *base, uint64_t *at,
                                     fmt_plan_slot_fn plan, const void *ctx);

FM_END_DECLS
#endif
