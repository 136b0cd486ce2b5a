/* stage.h - training over the stages of a pipeline.
 *
 * There are stages times `wide` ranks. Ranks t * wide .. t * wide + wide - 1 are stage t. For a
 * segment of consecutive layers (infer/model/stage_split.h) a stage holds the stem's weights, the
 * parameters that train, their gradient and moments; the first stage also holds what stands before
 * the layers, the last stage the final norm and the head. Ranks of a stage share a step's shards
 * (zero.h), so rank t * wide + d works with ranks d, wide + d, ..: they are a pipeline. Every rank
 * reads all data and finds every pass of a step by itself. Only rows go between neighbours, f32
 * [rows, hidden]: forward the stream behind a stage's last layer, back its gradient for the rows of
 * lanes that train below.
 *
 * Schedule (run/pipeline_1f1b.c): one forward, one backward (1F1B, Narayanan et al. 2021). A step
 * is a list of passes, one for each micro-batch of each shard. Their forwards and backwards run in
 * the order in which one process runs them, since the sums of a later pass go on from those of an
 * earlier one. Stage t of S begins with S - 1 - t forwards and then alternates, so it keeps the
 * activations of S - t passes at most, however many there are, and computes nothing twice. (GPipe
 * keeps the activations of all passes, or keeps their inputs and does a third more work.) With m
 * passes of equal cost, (S - 1) / (m + S - 1) of a step is waiting: m = accumulate * shards / wide.
 *
 * The bits are those of one process. Sums over rows belong to one layer, on one stage. The
 * gradient's norm is the sum of blocks of 65,536 floats of one process's flat parameters; a block
 * that lies on one rank is summed there, the others are put together on every rank; sums of blocks
 * are gathered and added in ascending order. A tied embedding that trains gets, pass by pass, the
 * gradient of the head and then that of the rows: the last stage sends the first its gradient
 * behind the head; the first stage adds the gradient of the rows and, if another pass of the same
 * shard follows, sends the sum back. The first stage updates the embedding and sends the new
 * values.
 *
 * Rank 0 gathers results and states whole on its host and hands them to the caller; every rank
 * reads states. A rank that fails alone leaves with its error; fm_comm_meet at the end of the run
 * tells the other ranks. */
#ifndef FM_TRAIN_STAGE_H
#define FM_TRAIN_STAGE_H

#include "infer/model/stage_split.h"
#include "train/params/zero.h"

FM_BEGIN_DECLS

typedef struct fmt_stage {
    fm_comm *all;
    fm_comm *group; /* the ranks of this stage; NULL: this rank is the only one */
    uint32_t rank, stages, wide, mine;
    fmi_stage_split split; /* which layers each stage has; split.stages 0: not known yet */
} fmt_stage;

/* The stages of an engine's ranks; *out NULL: the engine has no stages. Every rank calls it. */
FM_CHECKED fm_status fmt_stage_open(fmt_stage **out, fm_engine *e);
void fmt_stage_free(fmt_stage *s); /* NULL is fine */
/* Splits the layers of a over the stages. name: the job's, for errors. */
FM_CHECKED fm_status fmt_stage_split(fmt_stage *s, const fm_arch *a, const char *name);
bool fmt_stage_is_last(const fmt_stage *s);
uint32_t fmt_stage_end_rank(const fmt_stage *s); /* first rank of the last stage */

/* ---- places (stage.c) ---- */
/* Sets where each parameter's floats lie in this process, once every parameter's stage is known. */
FM_CHECKED fm_status fmt_stage_place(fmt_params *ps);
/* Floats at .. at + n - 1 of one process's buffers lie from `local` on in the stage's buffers. */
typedef struct fmt_extent {
    uint64_t at, n, local;
} fmt_extent;
/* The extents of a stage, ascending, neighbours joined; fm_free. *total: their floats. */
FM_CHECKED fm_status fmt_stage_extents(fmt_extent **out, size_t *count, uint64_t *total,
                                       const fmt_params *ps, uint32_t stage);

/* ---- over all ranks (stage_share.c) ---- */
/* Lists the blocks of the norm, once the buffers' sizes are known. */
FM_CHECKED fm_status fmt_stage_edges(fmt_params *ps);
void fmt_stage_edges_free(fmt_params *ps);
size_t fmt_stage_sums(const fmt_params *ps);
/* Queues the exchange of blocks that several ranks hold together; ps->g is a step's gradient. */
FM_CHECKED fm_status fmt_stage_meet_edges(fmt_params *ps);
void fmt_stage_squares(const fmt_params *ps, double *sums);
FM_CHECKED fm_status fmt_stage_add(const fmt_params *ps, const double *sums, double *sum);
/* Collects x (p, g or a moment) of all ranks in host: [whole] on rank 0, NULL elsewhere. */
FM_CHECKED fm_status fmt_stage_collect(const fmt_params *ps, const float *x, bool moment,
                                       float *host);
/* Sends the tied embedding's values from the first stage to the last. */
FM_CHECKED fm_status fmt_stage_tell_tied(fmt_params *ps);
/* Sends bytes of x from the first rank of the last stage to all ranks. */
FM_CHECKED fm_status fmt_stage_tell(const fmt_stage *s, void *x, size_t bytes);

FM_END_DECLS
#endif
