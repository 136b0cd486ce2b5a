/* plan_ranks.c - prints plans over ranks: memory of each, bytes over each link, time. */
#include "cli/report/plan_ranks.h"

#include <string.h>

/* "2 ranks on 1 node, host 2.0 GB/s, network 12.5 GB/s" */
static void print_topology(const fm_topology *t)
{
    printf("ranks   %u on %u node%s; %s %.3g GB/s%s", t->ranks, t->nodes, t->nodes == 1 ? "" : "s",
           fm_link_name(t->inside), t->inside_bytes_s / 1e9, t->shared ? " for all" : " a rank");
    if (t->nodes > 1)
        printf(", network %.3g GB/s a node", t->net_bytes_s / 1e9);
    printf("; %s reads %.3g GB/s, multiplies %.3g TFLOP/s\n", t->shared ? "a node" : "a rank",
           t->memory_bytes_s / 1e9, t->flops_s / 1e12);
}

static void cell_time(out_table *t, double s)
{
    if (s >= 1.0)
        out_cell_right(t, "%.2f s", s);
    else
        out_cell_right(t, "%.3f ms", 1e3 * s);
}

static void print_splits(const fm_serve_plan *all, uint32_t count, uint32_t best,
                         const fm_topology *t)
{
    static const char *const head[] = {
        "stages",  "split", "replicas", "memory a rank", "exchanges", NULL, "network",
        "compute", "links", "waits",    "step",          "tokens/s",  ""};
    out_table *table = out_table_new();
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        out_cell_right(table, "%s", head[i] ? head[i] : fm_link_name(t->inside));
    out_end_row(table);
    for (uint32_t i = 0; i < count; i++) {
        const fm_serve_plan *p = &all[i];
        if (p->refused[0])
            continue;
        out_cell_right(table, "%u", p->stages);
        out_cell_right(table, "%u", p->split);
        out_cell_right(table, "%u", p->replicas);
        out_cell_right(table, "%s", out_bytes(p->bytes));
        out_cell_right(table, "%u", p->exchanges);
        out_cell_right(table, "%s", out_bytes(p->traffic.bytes[t->inside]));
        out_cell_right(table, "%s", out_bytes(p->traffic.bytes[FM_LINK_NET]));
        cell_time(table, p->compute_s);
        cell_time(table, p->comm_s);
        cell_time(table, p->wait_s);
        cell_time(table, p->step_s);
        out_cell_right(table, "%.0f", p->rows_s);
        out_cell(table, "%s", !p->fits ? "does not fit" : i == best ? "chosen" : "");
        out_end_row(table);
    }
    out_table_print(table, stdout, "  ");
    for (uint32_t i = 0; i < count; i++)
        if (all[i].refused[0])
            printf("not %u x %u   %s\n", all[i].stages, all[i].split, all[i].refused);
}

/* The best beside the next best that takes as many ranks for a replica, or other replicas. */
static void print_why(const fm_serve_plan *all, uint32_t count, const fm_serve_plan *p,
                      const fm_topology *t)
{
    const fm_serve_plan *q = NULL;
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        const fm_serve_plan *o = &all[i];
        any = any || (o != p && !o->refused[0]);
        if (o != p && !o->refused[0] && o->fits == p->fits && (!q || o->rows_s > q->rows_s))
            q = o;
    }
    if (!any)
        printf("why     no other way is possible\n");
    else if (!p->fits)
        printf("why     nothing fits; this takes the least memory of a rank\n");
    else if (!q)
        printf("why     nothing else fits\n");
    else
        printf(
            "why     the most tokens a second of what fits; next %u stages of %u: %.0f, whose step "
            "takes %.3g ms (%s over %s, %s over the network) for %.3g ms\n",
            q->stages, q->split, q->rows_s, 1e3 * q->step_s, out_bytes(q->traffic.bytes[t->inside]),
            fm_link_name(t->inside), out_bytes(q->traffic.bytes[FM_LINK_NET]), 1e3 * p->step_s);
}

static void print_best(const fm_serve_plan *p, const fm_serve_ask *ask)
{
    if (p->stages > 1)
        printf(
            "stages  %u, of at most %u of %u layers; %u begin%s on another node; %u piece%s of a "
            "step: %.0f %% of it waits\n",
            p->stages, p->layers, ask->arch->layers, p->hops, p->hops == 1 ? "s" : "", p->pieces,
            p->pieces == 1 ? "" : "s", 100.0 * p->bubble);
    printf("split   over %u: of %u heads %u, of %u for keys and values %u, of %u columns %u, of %u "
           "tokens %u; norms and routers whole\n",
           p->split, ask->arch->heads, p->heads, ask->arch->kv_heads, p->kv_heads, ask->arch->inter,
           p->inter, ask->arch->vocab, p->vocab);
    printf("memory  a rank: weights %s, pages %s for as much text as %s hold whole, exchanges %s\n",
           out_bytes(p->weight_bytes), out_bytes(p->kv_bytes), out_bytes(p->text_bytes),
           out_bytes(p->room_bytes));
    char how[48] = "";
    if (p->stages > 1)
        (void)snprintf(how, sizeof(how), " --stages %u", p->stages);
    if (p->replicas > 1)
        printf("start   %u servers, each fmstore --ranks %u%s serve, on neighbouring ranks\n",
               p->replicas, p->stages * p->split, how);
    else
        printf("start   fmstore --ranks %u%s serve%s\n", p->stages * p->split, how,
               p->hops ? ", under mpirun" : "");
}

fm_status plan_serve(cli *c, const char *rev, const fm_topology *t, uint32_t rows)
{
    fm_serve_plan all[FM_SERVE_PLANS];
    fm_model *m = NULL;
    fm_oid oid;
    uint32_t best = 0;
    fm_status rc = fm_ops_load_rev(c, rev, &oid, &m);
    if (rc != FM_OK)
        return rc;
    const fm_serve_ask ask = {.arch = fm_model_arch(m),
                              .weight_bytes = fm_engine_stats_of(c->engine).weight_bytes,
                              .kv_bytes = fm_engine_defaults().kv_bytes_max,
                              .rows = rows};
    uint32_t count = fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, t);
    printf("plan    %s, mode %s, a decode step of %u rows\n", rev, fm_engine_mode(c->engine), rows);
    print_topology(t);
    print_splits(all, count, best, t);
    print_why(all, count, &all[best], t);
    print_best(&all[best], &ask);
    fm_model_close(m);
    return FM_OK;
}

void plan_train(const fm_plan *p, uint32_t shards, const fm_topology *t)
{
    fm_train_ranks_plan r;
    uint32_t steps = FM_MAX(p->steps, 1u);
    fm_train_ranks_plan_of(&r, p->parameter_bytes / sizeof(float), shards,
                           (p->seconds - p->update_s) / steps, p->update_s / steps, t);
    uint64_t one = p->parameter_bytes + p->gradient_bytes + p->moment_bytes;
    uint64_t many = r.parameter_bytes + r.gradient_bytes + r.moment_bytes + r.waiting_bytes;
    print_topology(t);
    printf("split   %u shards of each micro-batch, %u a rank; the stem whole on each\n", shards,
           shards / t->ranks);
    printf("memory  a rank: %s instead of %s of what trains (moments %s, shards that wait %s), "
           "activations of a shard\n",
           out_bytes(many), out_bytes(one), out_bytes(r.moment_bytes), out_bytes(r.waiting_bytes));
    printf("links   a step: %s %s a rank", fm_link_name(t->inside),
           out_bytes(r.traffic.bytes[t->inside]));
    if (t->nodes > 1)
        printf(", network %s a node", out_bytes(r.traffic.bytes[FM_LINK_NET]));
    printf("\ntime    %.4f s a step, of it %.4f s links: %.2f times one rank%s\n", r.step_s,
           r.comm_s, r.faster, t->shared ? ", whose processors they share" : "");
}

static void stage_row(out_table *table, const fm_stages_plan *p, uint32_t s)
{
    const fm_stage_plan *q = &p->stage[s];
    bool last = s + 1 == p->stages;
    char layers[32];
    (void)snprintf(layers, sizeof(layers), q->begin + 1 == q->end ? "%u" : "%u-%u", q->begin,
                   q->end - 1);
    out_cell_right(table, "%u", s);
    out_cell_right(table, "%s", layers);
    out_cell(table, "%s", s == 0 ? "embedding" : last ? "norm, head" : "");
    out_cell_right(table, "%s", out_bytes(q->stem_bytes));
    out_cell_right(table, "%llu", (unsigned long long)q->trains);
    out_cell_right(table, "%s", out_bytes(q->state_bytes));
    out_cell_right(table, "%s", out_bytes(q->activation_bytes));
    out_cell_right(table, "%u", q->kept);
    cell_time(table, q->pass_s);
    out_cell_right(table, "%s", last ? "" : out_bytes(q->on_bytes));
    out_cell_right(table, "%s", last ? "" : out_bytes(q->back_bytes));
    out_cell(table, "%s", last ? "" : fm_link_name(q->link));
    out_end_row(table);
}

void plan_train_stages(const fm_stages_plan *p, const fm_topology *t)
{
    static const char *const head[] = {"stage",  "layers",    "and",         "stem",
                                       "trains", "its state", "activations", "kept",
                                       "pass",   "on",        "back",        "over"};
    out_table *table = out_table_new();
    print_topology(t);
    printf("stages  %u of %u rank%s; %u pass%s of a step: %u / (%u + %u) = %.0f %% of it waits\n",
           p->stages, p->wide, p->wide == 1 ? "" : "s", p->passes, p->passes == 1 ? "" : "es",
           p->stages - 1, p->passes, p->stages - 1, 100.0 * p->bubble);
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        out_cell_right(table, "%s", head[i]);
    out_end_row(table);
    for (uint32_t s = 0; s < p->stages; s++)
        stage_row(table, p, s);
    out_table_print(table, stdout, "  ");
    if (p->tied_bytes)
        printf("tied    embedding and head: %s a step between the first stage and the last\n",
               out_bytes(p->tied_bytes));
    if (p->shard_bytes)
        printf("links   a step: %s of gradients and values among the ranks of a stage\n",
               out_bytes(p->shard_bytes));
    printf("time    %.4f s a step, of it %.4f s waiting\n", p->step_s, p->wait_s);
}
