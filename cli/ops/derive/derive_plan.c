/* derive_plan.c - what a derivation would take: memory, time, and both over ranks. */
#include "cli/ops/base/ranks.h"
#include "cli/ops/derive/derive_run.h"

/* Shards as derive --ranks sets them; ranks are the command line's, the rest --topology's. */
static fm_status stages_asked(derivation *d, fm_topology *t)
{
    fm_status rc = ranks_topology(d->c, FM_MAX(d->plan_ranks, 1u), d->topology, t);
    for (size_t i = 0; rc == FM_OK && i < d->jobs; i++)
        if (d->job[i].config.shards == 1)
            d->job[i].config.shards = t->ranks;
    return rc;
}

static fm_status over_ranks(derivation *d, fm_derive_plan *out)
{
    fm_status rc = ranks_topology(d->c, FM_MAX(d->plan_ranks, 1u), d->topology, &out->topology);
    uint32_t ranks = out->topology.ranks;
    out->over_ranks = true;
    out->shards = d->f->child[0].config.shards;
    if (rc == FM_OK && out->shards == 1)
        out->shards = ranks; /* as derive --ranks sets it */
    if (rc == FM_OK && out->shards % ranks != 0)
        rc = fm_fail(FM_EINVAL, "%u shards cannot be dealt to %u ranks evenly", out->shards, ranks);
    return rc;
}

fm_status make_plan(derivation *d, fm_derive_plan *out)
{
    fm_provider store = fm_store_provider(fm_repo_store(d->c->repo));
    bool staged = d->c->stages > 1;
    fm_status rc = staged ? stages_asked(d, &out->topology) : FM_OK;
    out->jobs = d->jobs;
    out->every = d->policy.every;
    out->over_stages = staged;
    for (size_t k = 0; k < d->f->units; k++) {
        out->later += d->f->unit[k].wave > 0;
        out->halving = out->halving || (d->f->unit[k].sweep && sweep_halves(d->f->unit[k].sweep));
    }
    if (rc == FM_OK)
        rc = fm_train_plan_stages(d->c->engine, &store, d->job, d->jobs, &out->topology,
                                  staged ? d->c->stages : 0, &out->plan,
                                  staged ? &out->stages : NULL);
    if (rc < 0 || staged || (d->plan_ranks <= 1 && !d->topology))
        return rc;
    return over_ranks(d, out);
}
