/* step.h - what the planning of a step (step_plan.c) and its passes (forward.c) share. */
#ifndef FM_INFER_STEP_H
#define FM_INFER_STEP_H

#include "infer/engine/engine.h"

FM_BEGIN_DECLS

/* Rows [begin, begin + count) of one model, numbered inside of their fmi_pass. */
typedef struct fmi_part {
    fm_model *model;
    uint32_t begin, count;
    uint32_t wanted; /* how many of its rows want logits */
    uint32_t row0;   /* rows of the step before its fmi_pass */
    uint32_t first;  /* its rows begin at this layer */
    uint32_t at;     /* begin, if all rows of the fmi_pass ran */
} fmi_part;

typedef struct fmi_parts {
    const fmi_part *p;
    uint32_t n;
} fmi_parts;

/* Rows [row, row + count) of the step are rows off, off + 1, .. of a block that takes or saves a
 * stream. */
typedef struct fmi_span {
    uint32_t row, count, off;
    const fmi_block *block;
} fmi_span;

/* Row `row` of the step is token `token` of a sequence that has hooks; taken: how many rows this
 * rank's stage reads before it. */
typedef struct fmi_hooked {
    const fm_seq *seq;
    uint32_t row, token, taken;
} fmi_hooked;

typedef struct fmi_chunk { /* row lists of this step, on the host and on the device */
    int32_t *host, *dev;
    uint32_t used;
    struct fmi_chunk *next;
} fmi_chunk;

typedef struct fmi_list {
    const fmi_chunk *c;
    uint32_t at, count;
} fmi_list;

typedef struct fmi_lists { /* row lists that are on the device */
    fmi_chunk *chunks, *now;
    fmi_list *list;
    size_t count, cap;
} fmi_lists;

typedef struct fmi_routes fmi_routes;

/* Residual streams that rows of the pass at row0 leave before a layer, on their way to pages. A
 * recorded step must write them to the same address each time; this names one such buffer. */
#define FMI_STAGES 8u
typedef struct fmi_saved_stream {
    uint32_t row0, layer;
} fmi_saved_stream;

/* The arguments of fmi_step_picked. */
typedef struct fmi_picking {
    fmi_queued *q;
    const fm_row *rows;
    uint32_t n;
    fmi_row_pick *ask;
} fmi_picking;

struct fmi_step {
    fm_engine *e;
    uint32_t max_rows;
    fmi_part *run, *want; /* [max_rows] all rows, and those with logits, by model and first layer */
    uint32_t runs;
    uint32_t *run_of; /* [max_rows] by the caller's number */
    fmi_span *span;   /* [max_rows] */
    uint32_t spans;
    fmi_hooked *hooked; /* mostly none */
    uint32_t hooked_count;
    size_t hooked_cap;
    /* Rows of taken_ld floats that hooks read. Each later stage's first rank keeps them until the
     * passes are done; then rank 0 gets them. */
    float *taken, *taken_host;
    size_t taken_floats, taken_host_floats, taken_ld;
    uint32_t *order;    /* [max_rows] the caller's number of each row, passes one after another */
    uint32_t *pos;      /* [max_rows] by the caller's number */
    int32_t *logit_row; /* [max_rows] by the caller's number: row of logits or -1 */
    bool *headless;     /* [max_rows] likewise: the row's model has no head */
    uint32_t *member;   /* [max_rows] scratch of grouping */
    const fm_linear **lin; /* [max_rows] likewise */
    fm_product *product;   /* [FMI_OUTS * max_rows] likewise */
    fm_lora *lora;         /* [FMI_OUTS * max_rows] likewise */
    fm_seq **seq;          /* [max_rows] the sequences of the step */
    uint32_t seqs;
    uint32_t last_n;
    const float *given;  /* host rows that stand in for embeddings: fmi_step_given */
    int32_t *host, *dev; /* ids, pos, gather, seq of n rows, then slots [layers, m] of each pass */
    size_t ints;
    /* Page tables [layers, sequences, stride] of each shape class, and the versions of the
     * sequences that they were made from: a step with the same versions as the last one uploads no
     * tables. Slots and tables have the layers of this rank's stage. */
    int32_t *table_host, *table;
    size_t table_ints;
    uint64_t *version; /* [max_rows] */
    uint32_t versions, table_stride, table_cap;
    float *act; /* device activations */
    size_t act_floats;
    float *logits, *logits_host; /* [wanted, ld]; host: the same where the device is visible */
    size_t logits_floats, logits_host_floats, ld;
    uint32_t wanted;
    float *shard; /* with several ranks: this one's logits; on rank 0 those of all, one by one */
    size_t shard_floats;
    float *lse, *lse_host; /* [max_rows] */
    float *tap_host;
    size_t tap_floats;
    float *hidden, *hidden_host; /* [wanted, hidden_ld]: final states; host as logits_host */
    size_t hidden_floats, hidden_host_floats, hidden_ld;
    int32_t *place_host, *place; /* [4, max_rows] fmi_pass.place, seen, from, to */
    fmi_routes *routes;    /* block_moe.c; NULL until a layer has experts; stays where it is */
    fmi_lists own, *lists; /* lists: own, begun anew by each step, or those of a recorded step */
    struct fmi_step_graphs *replays; /* engine/step_graph.c; NULL: the device records no steps */
    fmi_saved_stream stage_of[FMI_STAGES];
    uint32_t stages; /* saved streams of this step; 0: streams go to their pages at once */
    float *stage;    /* [stages, max_rows, hidden_ld] device */
    size_t stage_floats;
    /* For queued steps (step_queue.c): the tokens that the last one picked, whether each is bad,
     * then ids and the places that ids are gathered from; [4 * max_rows] on device and host. */
    int32_t *picked, *picked_host;
    uint32_t picks;
    fm_pick *pick_host, *pick;  /* [max_rows] */
    const fmi_picking *picking; /* NULL: logits go to the host */
    bool queued;                /* rows of the current step may have tokens that only picked has */
};

/* One pass: the runs of one shape class. */
typedef struct fmi_pass {
    fmi_step *s;
    fm_engine *e;
    const fmi_geom *g;
    fmi_parts all, want; /* all: parts that run in the current layer */
    uint32_t row0, m;    /* first row in step order; rows of the current layer */
    uint32_t want0, w;   /* first row of logits, rows of them */
    uint32_t table_stride;
    fmi_part *parts; /* all parts of the pass, those that begin at upper layers first */
    uint32_t part_count, rows, step_rows;
    float *x0;                               /* x, if all rows ran */
    bool normed;                             /* xn is already what the next branch reads */
    const int32_t *ints;                     /* device: ids, pos, .. of the step */
    const int32_t *ids, *pos, *gather, *seq; /* device, of the rows that run */
    const int32_t *slots, *tables;           /* device, [layers, m], [layers, seqs, stride] */
    uint32_t seqs;
    const int32_t *slot, *table; /* device, of the current layer: [m], [seqs, stride] */
    const int32_t *place, *seen; /* device: row of the position table, last position seen */
    const int32_t *from, *to;    /* device: what an encoder's row sees in a layer that slides */
    /* Activations; step_layout.c has their sizes. xr, yr: rows times chosen experts. */
    float *x, *xn, *q, *k, *v, *att, *o, *gate, *up, *scaled, *fused, *other, *xr, *yr, *router,
        *latent;
    float *rounded, *grain; /* fm_switches.rounds: inputs of products, and what round_rows says */
    float *mixed, *steps; /* recurrent blocks: behind the convolution; smaller products. steps:
                           * gates of attention */
    /* [rows, layers, per_layer] of all rows of the pass: what each layer reads; scratch. */
    float *per, *per_map;
} fmi_pass;
#define FMI_ACTIVATIONS 22u

/* ---- linears.c ---- */

#define FMI_OUTS 4u /* linears that may share one x */

typedef struct fmi_rows { /* rows begin, begin + 1, .. (list NULL), or those of the list */
    uint32_t begin, count;
    const int32_t *list; /* device; valid for this step */
} fmi_rows;

/* Makes sure that count more row numbers fit without a new allocation. */
FM_CHECKED fm_status fmi_list_room(fmi_step *s, uint32_t count);
void fmi_lists_clear(fmi_lists *l); /* no list; the memory stays */
void fmi_lists_release(fm_engine *e, fmi_lists *l);
/* count row numbers (host, of this pass) as a list on the device; equal lists are made once. */
FM_CHECKED fm_status fmi_row_list(fmi_step *s, fmi_rows *out, const int32_t *rows, uint32_t count);

typedef struct fmi_matrix { /* rows of activations, device */
    float *p;
    size_t ld;
} fmi_matrix;

/* The linear of a layer; NULL: this model has none there. */
typedef const fm_linear *(*fmi_pick)(const fm_model *m, uint32_t layer);

typedef struct fmi_out {
    fmi_pick pick;
    fmi_matrix y;
} fmi_out;

/* Up to FMI_OUTS linears of one layer on the same x, for all rows of ps: rows with the same weight
 * go through one product, whatever their model; then low-rank terms, then scales. */
FM_CHECKED fm_status fmi_linears(fmi_pass *p, fmi_parts ps, fmi_matrix x, uint32_t layer,
                                 const fmi_out *out, uint32_t outs);

/* ---- step_layout.c ---- */

/* Runs [i, the return value) are one pass; *m: its rows. */
uint32_t fmi_pass_end(const fmi_step *s, uint32_t i, uint32_t *m);
fmi_geom *fmi_geom_of_run(const fmi_step *s, uint32_t i);
/* Runs [i, the return value) are the passes of one shape class, which share their page tables. */
uint32_t fmi_class_end(const fmi_step *s, uint32_t i);
size_t fmi_table_ints(const fmi_step *s, const fmi_geom *g); /* ints of these tables */
/* Floats of a pass's activations. */
size_t fmi_act_floats(const fmi_geom *g, uint32_t rows);
/* Ints of a row of this shape class in the plan: slots; rows, from and to of recurrences. */
size_t fmi_row_ints(const fmi_geom *g);
/* Sets the pointers of p's activations into s->act. */
void fmi_carve(fmi_pass *p);
/* Uploads the rows of the position table, and the last position that each encoder row sees. */
FM_CHECKED fm_status fmi_upload_places(fmi_step *s, uint32_t n, const fm_row *rows);

/* ---- step_states.c ---- */

/* Fills in which rows of a pass go through recurrences, in which order, and where their states lie
 * before and behind them: row [m], then from [m] and to [m] of each recurrent layer. */
void fmi_fill_states(const fmi_step *s, const fm_row *rows, uint32_t row0, uint32_t m,
                     const fmi_geom *g, int32_t *out);

/* ---- step_plan.c ---- */

/* Everything that comes before the passes: positions, pages, what is uploaded, workspace. */
FM_CHECKED fm_status fmi_step_plan(fmi_step *s, const fm_row *rows, uint32_t n);

/* ---- step.c ---- */

/* After a failure: restores the sequences and empties the device's queue. */
void fmi_step_undo(fmi_step *s);

/* ---- step_streams.c ---- */

/* Sets the pass to the rows that run in layer l, with their slots and page tables. Rows that begin
 * here get their residual stream from the cache; rows that later texts may begin from save theirs.
 * forward.c calls it before each layer, l = layers before the final norm. It may have no rows. */
void fmi_pass_enter(fmi_pass *p, uint32_t l);

/* Plans a buffer for the streams that the step's rows save, by pass and layer. *fits false: rows
 * take streams too, or there are not enough buffers. */
FM_CHECKED fm_status fmi_stage_plan(fmi_step *s, bool *fits);
/* After the passes: copies the buffers to their pages. */
void fmi_stage_empty(fmi_step *s);

/* ---- step_picks.c ---- */

FM_CHECKED fm_status fmi_pick_room(fmi_step *s); /* allocates picked and pick */
/* Queues the picks of the rows that ask, into s->picked. */
FM_CHECKED fm_status fmi_pick_tokens(fmi_step *s, fmi_queued *q, const fm_row *rows, uint32_t n,
                                     fmi_row_pick *ask);
/* Fetches the logits of rows that have no pick, segment by segment, and waits. */
FM_CHECKED fm_status fmi_fetch_logits(fmi_step *s, const fm_row *rows, uint32_t n,
                                      const fmi_row_pick *ask);
/* Does both for s->picking, and waits for the tokens. */
FM_CHECKED fm_status fmi_collect_picks(fmi_step *s);

/* ---- engine/step_graph.c ---- */

/* Runs the passes of a queued step: directly, or recorded and replayed, or replayed. */
FM_CHECKED fm_status fmi_step_graph_passes(fmi_step *s, uint32_t n);
void fmi_step_graphs_free(fmi_step *s);
/* What a rank could do with the planned step. */
typedef struct fmi_way {
    uint64_t can, keys;
} fmi_way;
/* Over ranks with a device's wire: what this rank could do; then what all will do, by the ways of
 * all ranks. */
FM_CHECKED fm_status fmi_step_graph_look(fmi_step *s, uint32_t n, fmi_way *out);
void fmi_step_graph_agree(fmi_step *s, const fmi_way *way /* [ranks] */, uint32_t ranks);
/* Runs the operations of the step in the agreed way; with any wire. */
FM_CHECKED fm_status fmi_step_graph_together(fmi_step *s, uint32_t n);

/* ---- engine/hooks.c ---- */

/* Notes the rows whose sequences have hooks. */
FM_CHECKED fm_status fmi_find_hooked(fmi_step *s, const fm_row *rows, uint32_t n);
/* After all passes: sends what hooks read in later stages to rank 0. */
FM_CHECKED fm_status fmi_hooks_deliver(fmi_step *s);
/* Reads and replaces rows of x [m, hidden], the output of this site of the layer. */
FM_CHECKED fm_status fmi_run_hooks(fmi_pass *p, fm_site site, uint32_t layer, float *x);
static inline fm_status fmi_hooks(fmi_pass *p, fm_site site, uint32_t layer, float *x)
{
    return p->s->hooked_count ? fmi_run_hooks(p, site, layer, x) : FM_OK;
}

/* ---- forward.c ---- */

/* Runs the passes of a planned step of n rows, one after another. */
FM_CHECKED fm_status fmi_step_passes(fmi_step *s, uint32_t n);

/* ---- norm.c ---- */

/* A norm's gain and bias in a model; gain NULL: this model has none there. */
typedef struct fmi_gain {
    const float *gain, *bias;
} fmi_gain;
typedef fmi_gain (*fmi_gain_fn)(const fm_model *m, uint32_t layer);

/* y = norm(x), each row with its own model's gain; a row has per_row vectors of h. */
void fmi_norm(fmi_pass *p, fmi_parts ps, fm_norm_kind kind, fmi_gain_fn gain, uint32_t layer,
              float *y, const float *x, uint32_t per_row, uint32_t h);

/* ---- block_*.c: a branch of layer l from p->xn (or x) ---- */

FM_CHECKED fm_status fmi_attention(fmi_pass *p, uint32_t l, float *x, float *y);
FM_CHECKED fm_status fmi_recurrent(fmi_pass *p, uint32_t l, float *x, float *y);
/* Turns one head of all rows: elements x .. x + turns - 1, rows ld apart. */
void fmi_rotate(fmi_pass *p, uint32_t l, float *x, size_t ld, uint32_t turns);
/* block_latent.c: p->q, k and v of a layer with latent keys, turned; p->att without what a head's
 * values lack. */
FM_CHECKED fm_status fmi_latent(fmi_pass *p, uint32_t l, float *x);
fmi_matrix fmi_latent_out(fmi_pass *p);
/* stacks.c: attention to the sources of the rows' sequences */
FM_CHECKED fm_status fmi_cross(fmi_pass *p, uint32_t l, float *x, float *y);
FM_CHECKED fm_status fmi_mlp(fmi_pass *p, uint32_t l, float *x, float *y);
FM_CHECKED fm_status fmi_moe(fmi_pass *p, uint32_t l, float *x, float *y);
/* Of fm_switches.mlp_too: y = norm(mlp(x)) + norm(experts(..)), where x is p->xn. */
FM_CHECKED fm_status fmi_moe_beside(fmi_pass *p, uint32_t l, float *x, float *y);
void fmi_routes_free(fmi_step *s);

FM_END_DECLS
#endif
