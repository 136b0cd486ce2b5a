/* pipeline_plan.c - what serving a model over stages and split ranks takes (parallel_plan.h).
 *
 * A piece of rows takes stage s the time c_s of its weights read once and its products, and l_s of
 * its sums over the split; then h_s to the next stage. All pieces of a step take
 *
 *   sum of (c_s + l_s) + sum of h_s + (pieces - 1) max(c_s + l_s + h_s), and the way of the logits.
 *
 * Neighbouring ranks share a node, so a split stays inside of one where it divides the ranks there,
 * and stages reach over the network where they must. */
#include "infer/parallel_plan.h"

#include <string.h>

#include "infer/engine/pipeline.h"
#include "store/base/mem.h"

#define SLICE_FLOATS 16u

/* ==== memory ==== */

/* Of the model's parameters, what a rank of stage s holds; since all are laid out at about the same
 * size, the same share of its bytes. Norms, routers and tables of positions are whole on every rank
 * of a stage. */
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

/* The rank with the most. */
static void count_memory(fm_serve_plan *out, const fm_serve_ask *ask, const fmi_stage_split *d)
{
    const fm_arch *a = ask->arch;
    uint64_t vocab = out->vocab + 1ull;
    out->room_bytes = out->split > 1 ? (uint64_t)ask->rows * sizeof(float) *
                                           ((uint64_t)out->split * a->hidden + vocab * out->split)
                                     : 0;
    out->kv_bytes = ask->kv_bytes / ((uint64_t)out->split * d->stages);
    for (uint32_t s = 0; s < d->stages; s++) {
        double kv = (double)out->kv_heads / a->kv_heads * layers_of(d, s) / a->layers;
        uint64_t weights = (uint64_t)((double)ask->weight_bytes * held_share(a, d, s, out->split));
        uint64_t text = (uint64_t)((double)out->kv_bytes / kv);
        out->weight_bytes = FM_MAX(out->weight_bytes, weights);
        out->text_bytes = s == 0 ? text : FM_MIN(out->text_bytes, text);
    }
    out->bytes = out->weight_bytes + out->kv_bytes + out->room_bytes;
}

/* ==== time ==== */

typedef struct stage {
    double compute;
    fm_traffic sums, hop; /* of a piece */
} stage;

/* Ranks of a node that work at the same time and share what it has. */
static double sharers(const fm_serve_plan *p, const fm_topology *t)
{
    double node = (double)t->ranks / t->nodes;
    double active = node * FM_MIN(p->pieces, p->stages) / p->stages;
    return t->shared ? FM_MAX(active, 1.0) : 1.0;
}

static bool crosses(const fm_topology *t, uint32_t split, uint32_t s)
{
    uint32_t per_node = t->ranks / t->nodes;
    return (s + 1) * split / per_node != s * split / per_node;
}

static void cost_stage(stage *x, const fm_serve_plan *p, const fm_serve_ask *ask,
                       const fm_topology *t, const fmi_stage_split *d, const double *met,
                       uint32_t s)
{
    uint32_t rows = (ask->rows + p->pieces - 1) / p->pieces;
    uint64_t stream = (uint64_t)rows * ask->arch->hidden, per = stream;
    memset(x, 0, sizeof(*x));
    double bytes = (double)ask->weight_bytes * held_share(ask->arch, d, s, p->split);
    double read = bytes * sharers(p, t) / t->memory_bytes_s;
    double multiply = 2.0 * met[s] / p->split * rows * sharers(p, t) / t->flops_s;
    x->compute = FM_MAX(read, multiply);
    for (uint32_t i = 0; i < 2 * layers_of(d, s) + (s == 0); i++) /* the embedding's, too */
        fm_traffic_all_reduce(&x->sums, t, p->split, stream);
    if (s + 1 == p->stages)
        return;
    if (p->split > 1) {
        per = (stream + p->split - 1) / p->split;
        per = (per + SLICE_FLOATS - 1) / SLICE_FLOATS * SLICE_FLOATS;
        fm_traffic_exchange(&x->hop, t, p->split, per * sizeof(float));
    }
    fmi_traffic_send(&x->hop, t, p->split, per * sizeof(float), crosses(t, p->split, s));
}

static void add_traffic(fm_traffic *sum, const fm_traffic *x, double times)
{
    for (size_t i = 0; i < FM_LINKS; i++)
        sum->seconds[i] += x->seconds[i] * times;
}

/* Bytes are those of the rank (the node) with the most. */
static void most_bytes(fm_traffic *sum, const fm_traffic *x, uint32_t times)
{
    for (size_t i = 0; i < FM_LINKS; i++)
        sum->bytes[i] = FM_MAX(sum->bytes[i], x->bytes[i] * times);
}

static void deliver(fm_traffic *x, const fm_serve_plan *p, const fm_serve_ask *ask,
                    const fm_topology *t)
{
    uint64_t row = p->split > 1 ? p->vocab + 1ull : ask->arch->vocab;
    uint64_t logits = ask->rows * row * sizeof(float);
    uint64_t states = (uint64_t)ask->rows * ask->arch->hidden * sizeof(float);
    uint32_t per_node = t->ranks / t->nodes;
    bool far = (p->stages - 1) * p->split / per_node > 0;
    if (p->stages == 1) {
        if (p->split > 1)
            fmi_traffic_gather(x, t, p->split, logits);
        return;
    }
    fmi_traffic_send(x, t, 1, states, far);
    fmi_traffic_send(x, t, far ? p->split : 1, far ? logits : logits * p->split, far);
}

static void count_time(fm_serve_plan *out, const stage *all, const fm_traffic *end)
{
    uint32_t most = 0, m = out->pieces;
    double longest = 0.0, others = 0.0;
    fm_traffic bytes = {{0}, {0}};
    for (uint32_t s = 0; s < out->stages; s++) {
        double c =
            all[s].compute + fmi_traffic_seconds(&all[s].sums) + fmi_traffic_seconds(&all[s].hop);
        most = c > longest ? s : most;
        longest = FM_MAX(longest, c);
    }
    for (uint32_t s = 0; s < out->stages; s++) {
        fm_traffic one = all[s].sums;
        for (size_t i = 0; i < FM_LINKS; i++)
            one.bytes[i] += all[s].hop.bytes[i];
        most_bytes(&bytes, &one, m);
        others += s == most ? 0.0 : all[s].compute + fmi_traffic_seconds(&all[s].sums);
        add_traffic(&out->traffic, &all[s].hop, s == most ? m : 1.0);
    }
    add_traffic(&out->traffic, &all[most].sums, m);
    add_traffic(&out->traffic, end, 1.0);
    for (size_t i = 0; i < FM_LINKS;
         i++) /* one stage: its own; else rank 0's, or the last node's */
        out->traffic.bytes[i] = out->stages == 1 ? bytes.bytes[i] + end->bytes[i]
                                                 : FM_MAX(bytes.bytes[i], end->bytes[i]);
    out->compute_s = m * all[most].compute;
    out->comm_s = fmi_traffic_seconds(&out->traffic);
    out->wait_s = others;
    out->step_s = out->compute_s + out->comm_s + out->wait_s;
    out->bubble = out->step_s > 0.0 ? out->wait_s / out->step_s : 0.0;
}

/* ==== the whole ==== */

static fm_status shape(fm_serve_plan *out, const fm_serve_ask *ask, const fm_topology *t,
                       fmi_stage_split *d)
{
    fm_arch local;
    const fm_arch *a = ask->arch;
    fm_status rc = fmi_shard_arch(&local, a, out->split, "it");
    if (rc == FM_OK)
        rc = fmi_stage_split_of(d, a, out->stages, "it");
    if (rc != FM_OK)
        return rc;
    out->layers = fmi_stage_split_most(d);
    out->heads = local.heads;
    out->kv_heads = local.kv_heads;
    out->inter = local.inter;
    out->vocab = (a->vocab + out->split - 1) / out->split;
    out->pieces = fmi_pipe_pieces(ask->rows, out->stages, fmi_pipe_micro_rows(t->shared));
    for (uint32_t s = 0; s + 1 < out->stages; s++)
        out->hops += crosses(t, out->split, s);
    uint32_t sums = out->split > 1 ? 2 * out->layers + 1 : 0;
    uint32_t passed =
        out->stages == 1 ? 0u : (out->stages > 2 ? 2u : 1u) * (out->split > 1 ? 2u : 1u);
    out->exchanges = out->pieces * (sums + passed) + (out->stages > 1 ? 2 : out->split > 1 ? 1 : 0);
    return FM_OK;
}

void fm_serve_plan_of(fm_serve_plan *out, const fm_serve_ask *ask, const fm_topology *t,
                      uint32_t stages, uint32_t split)
{
    fmi_stage_split d;
    stage cost[FMI_STAGES_MOST];
    double met[FMI_STAGES_MOST];
    fm_traffic end = {{0}, {0}};
    memset(out, 0, sizeof(*out));
    out->stages = stages;
    out->split = split;
    out->replicas = t->ranks / (stages * split);
    fm_error_state before;
    fm_error_save(&before);
    fm_status rc = shape(out, ask, t, &d);
    if (rc == FM_OK)
        rc = fmi_stage_split_cost(met, &d, ask->arch);
    if (rc != FM_OK) {
        const char *text = fm_error_text(); /* "it: why; what to do" */
        size_t n = strcspn(text, ";");
        size_t skip = n > 4 && strncmp(text, "it: ", 4) == 0 ? 4 : 0;
        n = FM_MIN(n - skip, sizeof(out->refused) - 1);
        memcpy(out->refused, text + skip, n);
        fm_error_restore(&before);
        return;
    }
    count_memory(out, ask, &d);
    uint64_t node = t->shared ? t->ranks / t->nodes : 1;
    out->fits = t->memory_bytes == 0 || out->bytes * node <= t->memory_bytes;
    for (uint32_t s = 0; s < stages; s++)
        cost_stage(&cost[s], out, ask, t, &d, met, s);
    deliver(&end, out, ask, t);
    count_time(out, cost, &end);
    out->rows_s = out->step_s > 0.0 ? (double)ask->rows * out->replicas / out->step_s : 0.0;
}

static bool better(const fm_serve_plan *a, const fm_serve_plan *b)
{
    if (!b || b->refused[0])
        return true;
    if (a->fits != b->fits)
        return a->fits;
    return a->fits ? a->rows_s > b->rows_s : a->bytes < b->bytes;
}

/* The power of two behind x, or the ranks. */
static uint32_t next_of(uint32_t x, uint32_t ranks)
{
    return x * 2 > ranks && x < ranks ? ranks : x * 2;
}

uint32_t fm_serve_plan_best(fm_serve_plan *all, uint32_t most, uint32_t *best,
                            const fm_serve_ask *ask, const fm_topology *t)
{
    uint32_t count = 0;
    *best = 0;
    for (uint32_t stages = 1; stages <= FM_MIN(t->ranks, FMI_STAGES_MOST);
         stages = next_of(stages, t->ranks))
        for (uint32_t split = 1; split <= t->ranks / stages && count < most;
             split = next_of(split, t->ranks / stages)) {
            if (t->ranks % (stages * split) != 0)
                continue;
            fm_serve_plan_of(&all[count], ask, t, stages, split);
            if (!all[count].refused[0] && better(&all[count], count ? &all[*best] : NULL))
                *best = count;
            count++;
        }
    return count;
}
