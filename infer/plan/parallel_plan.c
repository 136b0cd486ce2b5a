/* parallel_plan.c - memory of a model and of a training over ranks. */
#include "infer/parallel_plan.h"

#include <string.h>

#include "infer/model/shard.h"
#include "infer/model/stage_split.h"

_Static_assert(FM_STAGE_PLANS == FMI_STAGES_MOST, "a plan has room for every stage");

/* ==== serving ==== */

/* The share of the model's parameters that a rank of stage s holds. Since all are laid out at about
 * the same size, it holds the same share of the bytes. Norms, routers and tables of positions are
 * whole on every rank of a stage. */
static double held_share(const fm_arch *a, const fmi_stage_split *d, uint32_t s, uint32_t split)
{
    double all = 0.0, mine = 0.0;
    fm_param p;
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        uint64_t n = 0;
        int32_t place = fmi_pipe_place(&p);
        if (fm_shape_elems(&n, &p.shape) != FM_OK)
            continue;
        fmi_cut c = fmi_cut_of(a, p.place, 0, split);
        uint32_t at = place >= 0                   ? fmi_stage_split_stage(d, (uint32_t)place)
                      : place == FMI_BEHIND_LAYERS ? d->stages - 1
                                                   : 0;
        bool tied = p.place == FM_P_EMBED && a->tied && s + 1 == d->stages;
        all += (double)n;
        if (at == s || tied)
            mine += (double)n / (c.parts ? split : 1);
    }
    return all > 0.0 ? mine / all : 1.0;
}

static uint32_t layers_of(const fmi_stage_split *d, uint32_t s)
{
    return d->begin[s + 1] - d->begin[s];
}

fm_status fm_serve_plan_of(fm_serve_plan *out, const fm_serve_ask *ask, uint32_t stages,
                           uint32_t split, const char *what)
{
    const fm_arch *a = ask->arch;
    const uint64_t states = (uint64_t)split * a->hidden;
    const uint64_t logits = split * ((a->vocab + split - 1ull) / split + 1);
    fmi_stage_split d;
    fm_arch local;
    memset(out, 0, sizeof(*out));
    FM_TRY(fmi_shard_arch(&local, a, split, what));
    FM_TRY(fmi_stage_split_of(&d, a, stages, what));
    memcpy(out->begin, d.begin, sizeof(out->begin));
    out->room_bytes = split > 1 ? ask->rows * sizeof(float) * (states + logits) : 0;
    out->kv_bytes = ask->kv_bytes / ((uint64_t)split * stages);
    for (uint32_t s = 0; s < stages; s++) {
        double kv = (double)local.kv_heads / a->kv_heads * layers_of(&d, s) / a->layers;
        uint64_t weights = (uint64_t)((double)ask->weight_bytes * held_share(a, &d, s, split));
        uint64_t text = (uint64_t)((double)out->kv_bytes / kv);
        out->weight_bytes = FM_MAX(out->weight_bytes, weights);
        out->text_bytes = s == 0 ? text : FM_MIN(out->text_bytes, text);
    }
    out->bytes = out->weight_bytes + out->kv_bytes + out->room_bytes;
    out->fits = !ask->memory_bytes || out->bytes <= ask->memory_bytes / ((uint64_t)stages * split);
    return FM_OK;
}

/* ==== training ==== */

uint64_t fm_train_stripe(uint64_t parameters, uint32_t ranks, uint32_t shards, bool host)
{
    const uint64_t block = FM_TRAIN_BLOCK_FLOATS;
    uint64_t most = host ? 2 : FM_TRAIN_ROOM_FLOATS / block / FM_MAX(shards, 1u);
    uint64_t even = (parameters + block - 1) / block / ((uint64_t)ranks * 8);
    return FM_MAX(FM_MIN(most, even), (uint64_t)1) * block;
}

/* Floats of the first rank's stripes; no rank has more. */
static uint64_t most_owned(uint64_t parameters, uint32_t ranks, uint64_t stripe)
{
    uint64_t round = ranks * stripe, rest = parameters % round;
    return parameters / round * stripe + FM_MIN(rest, stripe);
}

void fm_train_ranks_plan_of(fm_train_ranks_plan *out, uint64_t parameters, uint32_t ranks,
                            uint32_t shards, bool host)
{
    bool several = ranks > 1;
    uint64_t bytes = parameters * sizeof(float);
    uint64_t stripe = fm_train_stripe(parameters, ranks, shards, host);
    uint32_t own = shards / ranks;
    memset(out, 0, sizeof(*out));
    out->parameter_bytes = bytes;
    out->gradient_bytes = bytes;
    out->moment_bytes =
        2 * sizeof(float) * (several ? most_owned(parameters, ranks, stripe) : parameters);
    out->waiting_bytes = several ? (shards - own) * stripe * sizeof(float) + (own - 1) * bytes
                                 : (shards > 1 ? bytes : 0);
}
