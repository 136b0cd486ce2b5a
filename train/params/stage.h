/* stage.h - training over the stages of a pipeline.
 *
 * Ranks are stages times `wide`: ranks t * wide .. t * wide + wide - 1 are stage t, which holds the
 * stem's weights, what trains, its gradient and its moments of a segment of layers
 * (infer/model/stage_split.h); the first also what stands before the layers, the last the final
 * norm and the head. Ranks of a stage share a step's shards (zero.h), so rank t * wide + d works
 * with ranks d, wide + d, ..: they are a pipeline. Every rank reads all data and knows every pass
 * of a step by itself; between neighbours go rows alone, f32 [rows, hidden]: forward the stream
 * behind a stage's last layer, back the gradient of it for the rows of lanes that train below.
 *
 * Schedule (run/pipeline_1f1b.c): one forward, one backward (1F1B, Narayanan et al. 2021). A step
 * is a list of passes, one for each micro-batch of each shard, run forward and backward in the
 * order in which one process runs them, since a later one's sums go on from an earlier one's. Stage
 * t of S begins with S - 1 - t forwards and then alternates, so it keeps the activations of S - t
 * passes at most, however many there are, and nothing is computed twice. (GPipe keeps those of all
 * passes, or their inputs and a third more work.) With m passes of equal cost (S - 1) / (m + S - 1)
 * of a step is waiting: m = accumulate * shards / wide.
 *
 * Bits are one process's. Sums over rows are a layer's own, on one stage. The gradient's norm is
 * the sum of blocks of 65,536 floats of the flat parameters, as one process has them; a block that
 * lies on one rank is summed there, the others are put together on every rank; sums of blocks are
 * gathered and added in ascending order. A tied embedding that trains gets, pass by pass, what the
 * head gives and then what the rows give: the last stage sends the first what it has behind its
 * head, the first adds the rows' and, where another pass of the same shard follows, sends it back.
 * The first stage updates it and sends the new values.
 *
 * Rank 0 gathers results and states (on its host, whole) and reads them; every rank reads states.
 * A rank that fails alone leaves with its error; fm_comm_meet at the end of the run tells it. */
#ifndef FM_TRAIN_STAGE_H
#define FM_TRAIN_STAGE_H

#include "infer/model/stage_split.h"
#include "train/params/zero.h"

FM_BEGIN_DECLS

typedef struct fmt_stage {
    fm_comm *all;
    fm_comm *group; /* the ranks of this stage; NULL: this one alone */
    uint32_t rank, stages, wide, mine;
    fmi_stage_split split; /* of the run's architecture; stages 0: not known yet */
} fmt_stage;

/* Of an engine over ranks; *out NULL: it has no stages. Every rank calls it. */
FM_CHECKED fm_status fmt_stage_open(fmt_stage **out, fm_engine *e);
void fmt_stage_free(fmt_stage *s); /* NULL is fine */
/* Deals the layers. */
FM_CHECKED fm_status fmt_stage_split(fmt_stage *s, const fm_arch *a, const char *name);
bool fmt_stage_is_last(const fmt_stage *s);
uint32_t fmt_stage_end_rank(const fmt_stage *s); /* first rank of the last stage */

/* ---- places (stage.c) ---- */
/* Once each parameter's stage is known: where its floats lie here. */
FM_CHECKED fm_status fmt_stage_place(fmt_params *ps);
/* Of one process's buffers: floats at .. at + n - 1 lie here from `local` on. */
typedef struct fmt_extent {
    uint64_t at, n, local;
} fmt_extent;
/* Those of a stage, ascending, neighbours joined; fm_free. *total: all floats. */
FM_CHECKED fm_status fmt_stage_extents(fmt_extent **out, size_t *count, uint64_t *total,
                                       const fmt_params *ps, uint32_t stage);

/* ---- over all ranks (stage_share.c) ---- */
/* Blocks of the norm, once ps has its memory. */
FM_CHECKED fm_status fmt_stage_edges(fmt_params *ps);
void fmt_stage_edges_free(fmt_params *ps);
size_t fmt_stage_sums(const fmt_params *ps);
/* ps->g is a step's gradient: puts blocks that several ranks have together. Queued. */
FM_CHECKED fm_status fmt_stage_meet_edges(fmt_params *ps);
void fmt_stage_squares(const fmt_params *ps, double *sums);
FM_CHECKED fm_status fmt_stage_add(const fmt_params *ps, const double *sums, double *sum);
/* host [whole] on rank 0, NULL elsewhere: x of all ranks (p or g, or a moment). */
FM_CHECKED fm_status fmt_stage_collect(const fmt_params *ps, const float *x, bool moment,
                                       float *host);
/* The tied embedding's values, from the first stage to the last. */
FM_CHECKED fm_status fmt_stage_tell_tied(fmt_params *ps);
/* What the last stage said of the last ones: of all ranks. */
FM_CHECKED fm_status fmt_stage_tell(const fmt_stage *s, void *x, size_t bytes);

FM_END_DECLS
#endif
