/* derive_plan.c - fmstore derive --plan: memory, time and where they go, for people. */
#include <string.h>

#include "cli/derive/derive_run.h"
#include "cli/base/plan_ranks.h"

static void memory_row(out_table *t, const char *what, uint64_t bytes, uint64_t all)
{
    if (!bytes)
        return;
    out_cell(t, "%s", what);
    out_cell_right(t, "%s", out_bytes(bytes));
    out_cell_right(t, "%.0f %%", 100.0 * (double)bytes / (double)all);
    out_end_row(t);
}

static void print_memory(const fm_plan *p)
{
    out_table *t = out_table_new();
    printf("memory  %s\n", out_bytes(p->bytes));
    memory_row(t, "stem", p->stem_bytes, p->bytes);
    memory_row(t, "weights that train, as products want them", p->layout_bytes, p->bytes);
    memory_row(t, "parameters", p->parameter_bytes, p->bytes);
    memory_row(t, "gradients", p->gradient_bytes, p->bytes);
    memory_row(t, "moments", p->moment_bytes, p->bytes);
    memory_row(t, p->recompute ? "activations, recomputed" : "activations", p->activation_bytes,
               p->bytes);
    memory_row(t, "logits", p->logit_bytes, p->bytes);
    memory_row(t, "data, program, mapped files", p->other_bytes, p->bytes);
    out_table_print(t, stdout, "  ");
}

static void time_row(out_table *t, const char *what, double s, const fm_plan *p)
{
    if (s <= 0.0)
        return;
    out_cell(t, "%s", what);
    out_cell_right(t, "%.3f s a step", s / p->steps);
    out_cell_right(t, "%.0f %%", 100.0 * s / p->seconds);
    out_end_row(t);
}

static void print_time(const fm_plan *p)
{
    out_table *t = out_table_new();
    unsigned long long s = (unsigned long long)(p->seconds + 0.5);
    printf("time    %llu:%02llu:%02llu for %u steps, %.3f s each, %.0f tokens/s\n", s / 3600,
           s / 60 % 60, s % 60, p->steps, p->seconds / p->steps, (double)p->tokens / p->seconds);
    time_row(t, "products", p->products_s, p);
    time_row(t, "attention", p->attention_s, p);
    time_row(t, "head and loss", p->head_s, p);
    time_row(t, "thin terms", p->thin_s, p);
    time_row(t, "updates", p->update_s, p);
    time_row(t, "elsewhere", p->other_s, p);
    out_table_print(t, stdout, "  ");
}

static void print_choices(const derivation *d, const fm_plan *p)
{
    size_t later = 0, dropped = 0;
    for (size_t k = 0; k < d->f->units; k++) {
        later += d->f->unit[k].wave > 0;
        dropped += d->f->unit[k].sweep && sweep_halves(d->f->unit[k].sweep);
    }
    printf("chosen  mode %s (%s), %u threads, at most %u rows in a pass, ",
           fm_engine_mode(d->c->engine), fm_engine_kernel_class(d->c->engine),
           fm_engine_threads(d->c->engine), p->rows);
    if (d->policy.every)
        printf("a state each %llu steps", (unsigned long long)d->policy.every);
    else
        printf("a state about each minute");
    printf("%s\n", p->recompute ? ", activations recomputed" : "");
    if (dropped)
        printf("less    trials that halving drops are counted to their end\n");
    if (later)
        printf("later   %zu that stand on these are not in the plan\n", later);
}

/* Shards as derive --ranks sets them; ranks are the command line's, the rest --topology's. */
static fm_status stages_asked(derivation *d, fm_topology *t)
{
    fm_status rc = plan_topology(d->c, FM_MAX(d->plan_ranks, 1u), d->topology, t);
    for (size_t i = 0; rc == FM_OK && i < d->jobs; i++)
        if (d->job[i].config.shards == 1)
            d->job[i].config.shards = t->ranks;
    return rc;
}

fm_status print_plan(derivation *d)
{
    fm_provider store = fm_store_provider(fm_repo_store(d->c->repo));
    bool staged = d->c->stages > 1;
    fm_topology t;
    fm_stages_plan s;
    fm_plan p;
    fm_status rc = FM_OK;
    if (staged)
        rc = stages_asked(d, &t);
    if (rc == FM_OK)
        rc = fm_train_plan_stages(d->c->engine, &store, d->job, d->jobs, &t,
                                  staged ? d->c->stages : 0, &p, staged ? &s : NULL);
    if (rc < 0)
        return rc;
    printf("plan    %zu %s in one pass; looked at for %.1f s\n", d->jobs,
           d->jobs == 1 ? "child" : "children", p.probe_s);
    print_memory(&p);
    print_time(&p);
    print_choices(d, &p);
    if (staged)
        plan_train_stages(&s, &t);
    if (staged || (d->plan_ranks <= 1 && !d->topology))
        return FM_OK;
    rc = plan_topology(d->c, FM_MAX(d->plan_ranks, 1u), d->topology, &t);
    uint32_t shards = d->f->child[0].config.shards;
    if (rc == FM_OK && shards == 1)
        shards = t.ranks; /* as derive --ranks sets it */
    if (rc == FM_OK && shards % t.ranks != 0)
        rc = fm_fail(FM_EINVAL, "%u shards cannot be dealt to %u ranks evenly", shards, t.ranks);
    if (rc == FM_OK)
        plan_train(&p, shards, &t);
    return rc;
}
