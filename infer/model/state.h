/* state.h - what a model, a sequence and the engine consist of: types for this folder, engine/,
 * sched/ and tasks/. */
#ifndef FM_INFER_STATE_H
#define FM_INFER_STATE_H

#include <pthread.h>

#include "infer/model/class_head.h"
#include "infer/model/stage_split.h"
#include "infer/model/pooling.h"
#include "infer/kv/kvcache.h"
#include "infer/model.h"
#include "infer/kv/prefix_cache.h"
#include "infer/trace.h"
#include "infer/model/weights.h"

FM_BEGIN_DECLS

/* Everything that rows must have in common to go through one pass: sizes, not weights. Interned
 * per engine, so equal pointers mean equal shapes. */
typedef struct fmi_geom {
    uint32_t hidden, inter, layers, heads, kv_heads, head_dim, window;
    float eps;
    bool qk_norm;
    fm_switches sw;
    fmi_stage_split split;
    uint32_t begin, here;     /* this rank's layers: begin .. begin + here - 1 */
    fmi_kv_pool *pool, *rows; /* of this rank's layers: keys and values; residual streams */
    /* [stages] the same for every stage's layers. */
    fmi_kv_pool *lane[FMI_STAGES_MOST], *row_lane[FMI_STAGES_MOST];
    /* Recurrent layers (engine/seq_state.h): how many, their pool, blocks from one kept state to
     * the next, and the number of each among them. attending: layers with keys and values; at_full:
     * those of them in the pool `full`. */
    uint32_t recurs, attending, at_full, stride;
    fmi_kv_pool *states;
    fmi_kv_pool *full; /* of full layers, where their heads have other sizes; NULL: none */
    uint16_t recur_at[FM_MAX_LAYERS];
    uint64_t stamp; /* the step that seqs belongs to */
    uint32_t seqs;  /* sequences of this shape class in that step */
    struct fmi_geom *next;
} fmi_geom;

/* A rotary table, shared by the models with the same settings. */
typedef struct fmi_rope {
    fm_rope of;
    fm_growth grows; /* every: 0 in a rotary table; else dim is 2 */
    uint32_t dim, positions;
    float *cos, *sin; /* device, [positions, dim/2] */
    uint32_t refs;
    struct fmi_rope *next;
} fmi_rope;

/* The pool of keys and values of layer l; fmi_rows_at: of residual streams before layer l. */
static inline fmi_kv_pool *fmi_pool_at(const fmi_geom *g, uint32_t l)
{
    if (g->full && fm_layer_is_full(&g->sw, l))
        return g->full;
    return g->lane[fmi_stage_split_stage(&g->split, l)];
}
static inline fmi_kv_pool *fmi_rows_at(const fmi_geom *g, uint32_t l)
{
    return g->row_lane[fmi_stage_split_stage(&g->split, l)];
}

#define FMI_SAVES 4u /* residual streams kept of a block */

typedef struct fmi_ranks fmi_ranks; /* engine/ranks_log.h */
typedef struct fmi_text fmi_text;   /* a tokenizer and its template: text_cache.c */

/* fm_model.priv */
typedef struct fmi_model_priv {
    fm_arch local;         /* of the shard that this rank holds; with one rank the model's */
    fmi_stage_split split; /* of its layers to the stages */
    uint32_t log_number;   /* its number in the log of the ranks */
    fm_buf encoded;        /* log entry from which the other ranks make the model */
    fmi_geom *geom;
    fmi_rope *rope, *rope_slide; /* of full layers, of sliding ones */
    fmi_rope *grow;              /* fm_arch_growth; NULL: queries do not grow */
    fm_model *longer; /* fm_model_for_length; NULL: none. It has its own sequences and keys */
    bool beside;      /* it is the longer one of another model, and not counted */
    fmi_text *text;
    fmi_pooling pooling;
    fmi_class_head classifier;
    fm_digest asked[FM_ASK_KINDS]; /* fm_model_digest_for each kind of question */
    fmi_cached **held;             /* references taken from the cache, each entry once */
    size_t held_count, held_cap;
    float **own; /* device vectors that the model owns: scales computed from tensors */
    size_t own_count, own_cap;
    uint64_t bytes_alone;  /* bytes of its weights without sharing */
    uint64_t serial;       /* its number among all models that were ever adopted */
    bool adopted;          /* counted by the engine, geom is set */
    uint32_t seqs;         /* open sequences */
    int32_t *virtual_page; /* [layers, pages of virtual_len], held; NULL until first needed */
    fm_digest *kv_key, *stream_key; /* [layers], [layers + 1]: layer_key.c; one allocation */
    uint32_t *parts;                /* [layers]: how many other models first differ there */
    uint32_t save[FMI_SAVES - 1];   /* layers before which other models can use its stream */
    uint32_t saves;
    fm_model *next; /* in the engine's list */
    uint64_t stamp; /* the step that run belongs to */
    uint32_t run;
} fmi_model_priv;

static inline fmi_model_priv *fmi_priv(const fm_model *m)
{
    return (fmi_model_priv *)m->priv;
}

/* A page's worth of positions of a sequence. */
typedef struct fmi_block {
    uint32_t first; /* its rows begin at this layer: below, K and V come from the cache */
    int32_t from;   /* held: the page of the residual stream there, -1: not needed */
    fmi_node *node; /* held while the block is incomplete: its node in the cache, NULL: none yet */
    struct {
        uint32_t layer; /* >= 1 */
        int32_t page;   /* held: to save the residual stream before that layer, -1: none */
    } save[FMI_SAVES];
} fmi_block;

typedef struct fmi_mark {
    uint32_t at; /* the state is that behind so many tokens */
    bool keeps;  /* it goes into the cache when its block is complete */
} fmi_mark;

struct fm_seq {
    fm_model *model;
    uint32_t len;     /* tokens; fm_seq_len */
    uint32_t base;    /* virtual positions before them */
    int32_t *page;    /* [layers, page_cap], of which page_count of each layer are held */
    fmi_block *block; /* [page_cap] */
    uint32_t page_count, page_cap;
    fmi_mark *mark;     /* [marks] states of the recurrent layers: engine/seq_state.h */
    int32_t *mark_page; /* [marks, recurrent layers] held */
    uint32_t marks, mark_cap;
    int32_t *token; /* [known]; behind len: future tokens that fmi_seq_tell has set */
    uint32_t known;
    uint32_t whole;      /* tokens in complete blocks */
    fmi_node *node;      /* held: the cache's node of the last complete block */
    /* Keys and values of the source, in the layers' pools: [layers, source_pages] held. */
    int32_t *source_page;
    uint32_t source_pages, source_len; /* len: tokens; 0: it has none */
    bool uncached;       /* takes nothing from the cache, gives nothing to it */
    const fm_hook *hook; /* [hooks] borrowed; trace.h */
    size_t hooks;
    uint32_t skipped;              /* tokens of which nothing was computed */
    uint32_t want_begin, want_end; /* tokens whose logits are wanted lie in this range */
    uint64_t version;              /* of its page table; unique among the tables of an engine */
    uint64_t stamp;                /* the step that the next two fields belong to */
    uint32_t pending;              /* rows of this sequence in that step */
    uint32_t number;               /* its number among that step's sequences of its shape class */
    uint32_t log_number;           /* its number in the log of the ranks */
};

typedef struct fmi_step fmi_step; /* workspace of steps: engine/step/step.c */

struct fm_engine {
    fm_engine_opts opts;
    fm_pool *pool;
    fm_backend *be;
    struct fmi_watchdog *watchdog;    /* engine/watchdog.h; NULL: a step may take any time */
    struct fm_comm *comm;             /* borrowed; NULL: models are not split */
    struct fm_comm *batch_comm;       /* borrowed; NULL: batches are not split */
    const struct fmi_engine_log *log; /* engine/engine.h; NULL: one rank */
    fmi_ranks *ranks;                 /* state of the log */
    /* engine/pipeline.h: stages (1: none), the stage of this rank, and the group of ranks that
     * split its layers: comm itself where there is one stage. */
    uint32_t stages, stage;
    struct fm_comm *group;
    char kernel_class[64];
    fmi_weights *weights;
    fmi_packed_files *artefacts; /* NULL without cache_dir */
    fmi_kv *kv;
    fmi_prefix *prefix; /* NULL: switched off */
    fmi_geom *geoms;
    fm_model *first_model; /* list of the adopted models */
    pthread_mutex_t share; /* guards ropes and texts: other threads prepare models */
    fmi_rope *ropes;
    fmi_text *texts;
    fmi_step *step;
    fm_tap_fn tap;
    void *tap_ctx;
    uint32_t models, seqs;
    uint64_t bytes_unshared;
    uint64_t stamp;    /* of the step that is being planned */
    uint64_t failures; /* failed syncs: operations queued then may have been lost */
    uint64_t model_clock;
    uint64_t table_clock;
    uint64_t steps, rows, gemm_groups, layer_rows;
    uint64_t replayed;                    /* recorded steps that the device ran again */
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t layer_hits[FM_MAX_LAYERS];   /* blocks */
};

/* ---- layer_key.c ---- */

/* Sets kv_key and stream_key of m, and for all models where they part; the engine's thread. */
FM_CHECKED fm_status fmi_layer_keys(fm_model *m);
void fmi_layer_keys_drop(fm_model *m);
/* Whether b can use the blocks that a leaves in the cache: in all layers, or in those below a layer
 * before which the residual stream is kept. */
bool fmi_leaves_for(const fm_model *a, const fm_model *b);

FM_END_DECLS
#endif
