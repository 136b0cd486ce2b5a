/* pipeline.h - a model's layers over stages: what a rank holds of them, and what stages send.
 *
 * Ranks are stages times split (model/stage_split.h). Every rank plans every step, for all layers:
 * positions, page numbers, what the prefix cache has. For tensors and pages of other stages it has
 * ids and numbers alone (FMI_ELSEWHERE, lanes of kv/kvcache.h), which take no memory; so all ranks
 * decide alike and no plan is sent. Then a rank runs its stage's layers:
 *
 *   - a stage sends its rows' residual stream to the next one, f32 [rows, hidden]; ranks of a split
 *     stage send a part each and gather the whole in their group. Rows that the prefix cache lets
 *     begin above the boundary are not sent.
 *   - a pass is cut into micro-batches, so that stages work at the same time: while stage s + 1 has
 *     the first one, stage s computes the second. Rows of a text stay in order, and a row's bits
 *     depend on the row alone, so cuts do not change results. With m micro-batches of equal cost
 *     a step of s stages takes (m + s - 1) of their times; (s - 1) / (m + s - 1) of it is waiting.
 *   - when all have passed, the last stage sends final states and logits to rank 0.
 *
 * No sum is cut by a stage: with split 1 bits and kernel class are those of one rank. */
#ifndef FM_INFER_PIPELINE_H
#define FM_INFER_PIPELINE_H

#include "infer/engine/join.h"
#include "infer/model/shard.h"

FM_BEGIN_DECLS

/* Sets stages and split of an engine whose backend and comm are there. FM_EINVAL: the number of
 * ranks is no multiple of the stages. */
FM_CHECKED fm_status fmi_pipe_new(fm_engine *e);
/* Makes the ranks of this stage a group; called once comm is attached to the device. */
FM_CHECKED fm_status fmi_pipe_group(fm_engine *e);
void fmi_pipe_free(fm_engine *e);

/* Called once rows are ordered: cuts the runs of each pass into micro-batches, each a pass of its
 * own. A text of an encoder stays whole. */
void fmi_pipe_cut(fmi_step *s, const fm_row *rows, uint32_t n);
/* Rows of a micro-batch unless fm_engine_opts.micro_rows sets them: with about so many, products
 * are bound by arithmetic, so that cutting costs little. host: the device is a CPU. */
uint32_t fmi_pipe_micro_rows(bool host);
/* Micro-batches of a pass of m rows. */
uint32_t fmi_pipe_pieces(uint32_t m, uint32_t stages, uint32_t micro_rows);

/* Receive rows of a pass from the stage before, or send them to the next, in front of layer l. */
FM_CHECKED fm_status fmi_pipe_receive(fmi_pass *p, uint32_t l);
FM_CHECKED fm_status fmi_pipe_send(fmi_pass *p, uint32_t l);
/* Rows of the pass in layers of other stages, for fm_engine_stats.layer_rows. */
uint64_t fmi_pipe_rows_elsewhere(const fmi_pass *p);
/* Floats of a row of logits in the step's shard (engine/step/step.h), one layout for all passes. */
size_t fmi_pipe_shard_ld(const fmi_step *s);
/* Whether this rank ever has whole rows of logits: rank 0, and a last stage of one rank. */
bool fmi_pipe_has_logits(const fm_engine *e);
/* After all passes: sends states and logits to rank 0. */
FM_CHECKED fm_status fmi_pipe_deliver(fmi_step *s);

FM_END_DECLS
#endif
