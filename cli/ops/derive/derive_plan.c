/* derive_plan.c - estimates the memory and time of a derivation, and its memory over ranks. */
#include "cli/ops/base/ranks.h"
#include "cli/ops/derive/derive_run.h"

#include <string.h>

static fm_status over_ranks(const fmo_derivation *d, fm_derive_plan *out)
{
    uint32_t ranks = d->plan_ranks;
    out->over_ranks = true;
    out->shards = d->f->child[0].config.shards;
    if (out->shards == 1)
        out->shards = ranks; /* as derive --ranks sets it */
    if (out->shards % ranks != 0)
        return fm_fail(FM_EINVAL, "%u shards cannot be split over %u ranks evenly", out->shards,
                       ranks);
    out->rank_shards = out->shards / ranks;
    fm_train_ranks_plan_of(&out->of_rank, out->plan.parameter_bytes / sizeof(float), ranks,
                           out->shards, strcmp(fm_engine_device(d->c->engine), "cpu") == 0);
    return FM_OK;
}

fm_status fmo_make_plan(fmo_derivation *d, fm_derive_plan *out)
{
    fm_provider store = fm_store_provider(fm_repo_store(d->c->repo));
    bool staged = d->c->stages > 1;
    out->jobs = d->jobs;
    out->every = d->policy.every;
    out->over_stages = staged;
    for (size_t k = 0; k < d->f->units; k++) {
        out->later += d->f->unit[k].wave > 0;
        out->halving =
            out->halving || (d->f->unit[k].sweep && fmo_sweep_halves(d->f->unit[k].sweep));
    }
    for (size_t i = 0; staged && i < d->jobs; i++)
        if (d->job[i].config.shards == 1)
            d->job[i].config.shards = d->plan_ranks; /* as derive --ranks sets it */
    FM_TRY(fm_train_plan_stages(d->c->engine, &store, d->job, d->jobs, d->plan_ranks, d->c->stages,
                                &out->plan, staged ? &out->stages : NULL));
    return staged || d->plan_ranks <= 1 ? FM_OK : over_ranks(d, out);
}
