/* stage_split.h - the layers of a model, split over the stages of a pipeline.
 *
 * Ranks are stages times split: ranks s * split .. s * split + split - 1 are stage s, and share its
 * layers by tensor parallelism (shard.h). A stage holds a segment of layers; the first also what
 * comes before them (embedding, positions), the last what comes behind (final norm, head).
 * The split gives the stage with the most work as little as possible: a layer counts the parameters
 * that a row uses (of experts the chosen ones), the last stage the head as well. Among such splits
 * the stages before the last are balanced in the same way, and so on; where splits are equal,
 * earlier stages have fewer layers, since the first also has the embedding's memory. */
#ifndef FM_INFER_STAGE_SPLIT_H
#define FM_INFER_STAGE_SPLIT_H

#include "infer/arch.h"

FM_BEGIN_DECLS

#define FMI_STAGES_MOST 64u

typedef struct fmi_stage_split {
    uint32_t stages;
    uint32_t begin[FMI_STAGES_MOST + 1]; /* stage s has layers begin[s] .. begin[s + 1] - 1 */
} fmi_stage_split;

/* FM_EUNSUPPORTED, naming `what`: fewer layers than stages, or more stages than are possible. */
FM_CHECKED fm_status fmi_stage_split_of(fmi_stage_split *out, const fm_arch *a, uint32_t stages,
                                        const char *what);
/* The stage that computes layer l; for l = layers (norm and head) the last stage. */
uint32_t fmi_stage_split_stage(const fmi_stage_split *d, uint32_t l);
/* Layers of the stage with the most. */
uint32_t fmi_stage_split_most(const fmi_stage_split *d);

FM_END_DECLS
#endif
