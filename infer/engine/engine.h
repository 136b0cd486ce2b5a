/* engine.h - inside of the engine: what its own files, sched/ and tasks/ share. */
#ifndef FM_INFER_ENGINE_H
#define FM_INFER_ENGINE_H

#include "infer/model/state.h"
#include "store/base/cursor.h"

FM_BEGIN_DECLS

/* The shape class of an architecture that is split so, made if need be. */
FM_CHECKED fm_status fmi_geom_of(fm_engine *e, fmi_geom **out, const fm_arch *a,
                                 const fmi_stage_split *d);
#define FMI_GROWTH 2u
/* A rotary table, made if need be. Any thread, as fmi_text_bind. which: 0 of full layers, 1 of
 * sliding ones, FMI_GROWTH of growing queries (NULL: they do not); layers: the most of a stage. */
FM_CHECKED fm_status fmi_rope_of(fm_engine *e, fmi_rope **out, const fm_arch *a, uint32_t which,
                                 uint32_t layers);
void fmi_rope_drop(fm_engine *e, fmi_rope *r);

FM_CHECKED fm_status fmi_step_new(fmi_step **out, fm_engine *e);
void fmi_step_free(fmi_step *s);

/* Computes log sum exp of each row of logits of the last step; fmi_engine_lse_of reads a row's. */
FM_CHECKED fm_status fmi_engine_lse(fm_engine *e);
float fmi_engine_lse_of(const fm_engine *e, uint32_t row);

/* ---- ranks_leader.c: the calls to rank 0's engine, which all ranks repeat in one order ---- */

/* What happens to a sequence between steps: fmi_seq_expect and so on. */
typedef enum fmi_seq_op {
    FMI_OP_EXPECT,
    FMI_OP_TELL,
    FMI_OP_WANT,
    FMI_OP_ADOPT,
    FMI_OP_RESERVE,
    FMI_OP_REWIND,
    FMI_OP_CLOSE,
    FMI_OP_UNCACHE
} fmi_seq_op;

/* Observes the engine: fm_engine.log, NULL with one rank. Rank 0 encodes the calls and sends them;
 * a follower repeats what rank 0 sent and only takes part in the meetings (fm_comm_meet). */
typedef struct fmi_engine_log {
    /* Encodes what the other ranks need to make this model. */
    fm_status (*prepare)(fm_model *m, const fm_tree *tree, const char *what);
    fm_status (*adopt)(fm_model *m); /* all ranks make it; returns the worst status of all */
    void (*close)(fm_model *m);
    /* step: before a step. planned: when it is planned; plan must be equal on all ranks.
     * end, where step returned FM_OK: after it, with this rank's status; returns that of all. */
    fm_status (*step)(fm_engine *e, const fm_row *rows, uint32_t n);
    void (*planned)(fm_engine *e, uint64_t plan);
    fm_status (*end)(fm_engine *e, fm_status rc);
    /* open: before a sequence opens. opened, where open returned FM_OK: after it, with this rank's
     * status; returns the status of all ranks, and where that is a failure the caller closes s
     * (NULL: it did not open here). *met: the opening computed something on all ranks. */
    fm_status (*open)(fm_model *m);
    fm_status (*opened)(fm_model *m, fm_seq *s, fm_status rc, bool *met);
    void (*op)(fm_seq *s, fmi_seq_op op, uint32_t a, int32_t b);
    void (*free)(fm_engine *e); /* the leader's ends the followers */
} fmi_engine_log;

/* Called once be, opts and comm are set: checks that the ranks were made alike, sets e->log. */
FM_CHECKED fm_status fmi_log_new(fm_engine *e);

static inline void fmi_log_op(fm_seq *s, fmi_seq_op op, uint32_t a, int32_t b)
{
    const fmi_engine_log *log = s->model->engine->log;
    if (log)
        log->op(s, op, a, b);
}

/* ---- hooks.c ---- */

/* The parts of s's hooks that concern its next `rows` tokens, for the other ranks. Size: their
 * bytes in the log. Encode: appends them to the log. Decode: sets them as hooks of s (NULL: skips
 * them); they lie in *memory, which the caller frees by fm_free. FM_ECORRUPT: no valid hooks. */
uint64_t fmi_hooks_size(const fm_seq *s, uint32_t rows);
void fmi_hooks_encode(fm_buf *log, const fm_seq *s, uint32_t rows);
FM_CHECKED fm_status fmi_hooks_decode(fm_cursor *c, fm_seq *s, void **memory);

/* ---- sequence.c ---- */

/* A sequence without tokens; the model's virtual positions are computed. */
FM_CHECKED fm_status fmi_seq_new(fm_seq **out, fm_model *m);
/* Positions that a sequence of m can have for tokens. */
uint32_t fmi_positions(const fm_model *m);
/* What sets that limit, as the subject and verb of an error: the model, or the KV cache's memory,
 * with the settings that change it. */
const char *fmi_positions_limit(const fm_model *m);
/* Grows the tables for len tokens, so that steps up to there allocate nothing. */
FM_CHECKED fm_status fmi_seq_expect(fm_seq *s, uint32_t len);
/* Sets the future token `at` (>= the sequence's length). Where it differs from the one set before,
 * all known tokens behind it are forgotten. `at` lies below the len given to fmi_seq_expect. */
void fmi_seq_tell(fm_seq *s, uint32_t at, int32_t token);
/* Logits of tokens begin .. end - 1 will be wanted, as far as is known: until the next step. */
void fmi_seq_want(fm_seq *s, uint32_t begin, uint32_t end);
/* Takes blocks behind the sequence's length from the cache: those whose tokens are known and whose
 * K and V the cache has in all layers. At least one known token stays to be computed. */
void fmi_seq_adopt(fm_seq *s);
/* Takes pages so that s can hold len tokens; pages that will be written are its own. On failure it
 * gives back what it took. A block of known tokens begins at the layer up to which it is cached. */
FM_CHECKED fm_status fmi_seq_reserve(fm_seq *s, uint32_t len);
/* Moves the length on: the rows of a step are done. */
void fmi_seq_advance(fm_seq *s, uint32_t rows);
/* Moves the length on: the rows of a step are queued. Their tokens may not be known yet, and none
 * of them is in the cache before fmi_seq_confirm. */
void fmi_seq_queue(fm_seq *s, uint32_t rows);
/* Sets token `at` (the first that is not known, below the length), which a queued step computed. */
void fmi_seq_learn(fm_seq *s, uint32_t at, int32_t token);
/* The first len tokens are computed: complete blocks of them go into the cache. */
void fmi_seq_confirm(fm_seq *s, uint32_t len);
void fmi_seq_trim(fm_seq *s); /* pages beyond its length go back */
fmi_block *fmi_seq_block(const fm_seq *s, uint32_t token);

/* ---- engine/step/stacks.c ---- */

/* Whether these ids can be the source of a sequence of m, which has an encoder. */
FM_CHECKED fm_status fmi_source_check(const fm_model *m, const int32_t *ids, size_t n);
void fmi_source_drop(fm_seq *s);

/* ---- virtual_tokens.c ---- */

/* Keys and values of the model's virtual positions, computed once, held until the model closes. */
FM_CHECKED fm_status fmi_virtual_ready(fm_model *m);
void fmi_virtual_drop(fm_model *m);

/* ---- engine/step/step_queue.c: steps that are queued and collected later ---- */

/* Whether the device picks tokens: never while a tap is set. */
bool fmi_picks(const fm_engine *e);
/* Whether steps can also be queued before those tokens are known: never over several ranks. */
bool fmi_queues(const fm_engine *e);

/* How the token of a row with logits is picked; how NULL: its logits go to the host. */
typedef struct fmi_row_pick {
    const fm_sample_params *how;
    uint64_t index;
    uint64_t *seen; /* device, as in fm_pick */
    int32_t pick;   /* out: the number of its token among those picked */
} fmi_row_pick;

/* A queued step. */
typedef struct fmi_queued {
    int32_t *picked; /* [2 * max_rows] of be->host_alloc: tokens, then whether each is bad */
    uint32_t picks;
    uint64_t ticket, failures;
} fmi_queued;
FM_CHECKED fm_status fmi_queued_init(fmi_queued *q, fm_engine *e);
/* Waits for the step, if one is queued. */
void fmi_queued_release(fmi_queued *q, fm_engine *e);

/* As fm_engine_step, but returns when all is queued: the lengths of sequences have moved, and
 * tokens are picked for the rows that ask, numbered in their order. A row's token may be -1 - j:
 * the one that the last queued step picks with number j. Where rows want their logits on the host
 * it waits for those: fm_engine_logits. At most one step before may still be uncollected. */
FM_CHECKED fm_status fmi_step_queue(fm_engine *e, fmi_queued *q, const fm_row *rows, uint32_t n,
                                    fmi_row_pick *ask);
/* Waits for the step; its tokens are in q->picked then. It fails where the step, or an earlier one
 * that it depends on, failed: what its rows left in their sequences is void then. */
FM_CHECKED fm_status fmi_step_wait(fm_engine *e, fmi_queued *q);
/* As fm_engine_step, but the device picks tokens for the rows that ask: q->picked holds them on
 * return, and only the logits of other rows come to the host. For several ranks. */
FM_CHECKED fm_status fmi_step_picked(fm_engine *e, fmi_queued *q, const fm_row *rows, uint32_t n,
                                     fmi_row_pick *ask);
/* FM_ECORRUPT with the host sampler's text where bad says that there was nothing to pick. */
FM_CHECKED fm_status fmi_pick_status(int32_t bad);

/* ---- engine/step/step.c ---- */

/* A step of n rows of s whose embeddings are given: host [n, hidden]. For virtual_tokens.c. */
FM_CHECKED fm_status fmi_step_given(fm_seq *s, const float *rows, uint32_t n);

FM_END_DECLS
#endif
