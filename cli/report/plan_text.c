/* plan_text.c - prints fmstore derive --plan: memory and time, part by part. */
#include "cli/report/plan_ranks.h"
#include "cli/report/report.h"

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

static void print_choices(const cli *c, const fm_derive_plan *d)
{
    const fm_plan *p = &d->plan;
    printf("chosen  mode %s (%s), %u threads, at most %u rows in a pass, ",
           fm_engine_mode(c->engine), fm_engine_kernel_class(c->engine),
           fm_engine_threads(c->engine), p->rows);
    if (d->every)
        printf("a state each %llu steps", (unsigned long long)d->every);
    else
        printf("a state about each minute");
    printf("%s\n", p->recompute ? ", activations recomputed" : "");
    if (d->halving)
        printf("less    trials that halving drops are counted to their end\n");
    if (d->later)
        printf("later   %zu that stand on these are not in the plan\n", d->later);
}

void print_derive_plan(const cli *c, const fm_derive_plan *d)
{
    printf("plan    %zu %s in one pass; looked at for %.1f s\n", d->jobs,
           d->jobs == 1 ? "child" : "children", d->plan.probe_s);
    print_memory(&d->plan);
    print_time(&d->plan);
    print_choices(c, d);
    if (d->over_stages)
        plan_train_stages(&d->stages);
    if (d->over_ranks)
        plan_train(d);
}
