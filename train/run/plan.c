/* plan.c - the memory and time that a training will take, before its first step.
 *
 * Memory is counted where it is taken: the children are opened and their pass is laid out as
 * fm_train_run does it. Time is measured: the first micro-batches go through as few layers as have
 * a backward, and through the head, by a table of operations that reads the clock; the cost of a
 * layer is then multiplied by the layers, rows, labels and row pairs of all steps, which follow
 * from the order of the examples. */
#include "train/net/method.h"
#include "train/run/stage_plan.h"

#include "store/base/mem.h"
#include "store/base/os/clock.h"

#include <string.h>
#include <sys/resource.h>

enum { PRODUCTS, ATTENTION, THIN, KINDS };
enum { FORWARD, HEAD, BACKWARD, PHASES };
#define PROBE_ENOUGH_S 0.5
#define PROBE_LOOKS 4

typedef struct probe {
    fm_backend be; /* the real backend's table with clocks; first, so that a call finds its probe */
    fm_backend *real;
    double spent[PHASES][KINDS], phase_s[PHASES];
    int phase;
    double since;                     /* begin of the phase */
    const int32_t *gathers, *spreads; /* rows with which the head begins and ends */
} probe;

typedef struct work { /* rows, labelled rows, sum of squared lengths */
    double rows, labels, pairs, tokens;
} work;

/* ---- the clocks ---- */
static probe *probe_of(fm_backend *be)
{
    return (probe *)(void *)be;
}

static void note(probe *p, int kind, double began)
{
    fm_ignore(p->real->sync(p->real), "the run itself syncs at its end, and tells");
    p->spent[p->phase][kind] += fm_now_s() - began;
}

static void enter(probe *p, int phase)
{
    double now = fm_now_s();
    p->phase_s[p->phase] += now - p->since;
    p->phase = phase;
    p->since = now;
}

static void timed_products(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                           const fm_product *list, uint32_t count)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->products(p->real, x, ldx, k, list, count);
    note(p, PRODUCTS, began);
}

static void timed_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                     const fm_weight *w, uint32_t m, bool accumulate)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->linear_dx(p->real, dx, lddx, dy, lddy, w, m, accumulate);
    note(p, PRODUCTS, began);
}

static void timed_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                     size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->linear_dw(p->real, dw, dy, lddy, x, ldx, m, n, k, stored_kn);
    note(p, PRODUCTS, began);
}

static void timed_attention(fm_backend *be, const fm_attn_train *a)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->self_attention(p->real, a);
    note(p, ATTENTION, began);
}

static void timed_attention_grad(fm_backend *be, const fm_attn_train *a)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->self_attention_grad(p->real, a);
    note(p, ATTENTION, began);
}

static void timed_terms(fm_backend *be, const fm_term *list, uint32_t count)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->terms(p->real, list, count);
    note(p, THIN, began);
}

static void timed_terms_grad(fm_backend *be, const fm_term *list, uint32_t count)
{
    probe *p = probe_of(be);
    double began = fm_now_s();
    p->real->terms_grad(p->real, list, count);
    note(p, THIN, began);
}

/* The head begins by gathering the labelled rows and ends by spreading their gradients. */
static void timed_copy_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                            const int32_t *rows, uint32_t m, uint32_t n)
{
    probe *p = probe_of(be);
    if (rows == p->gathers)
        enter(p, HEAD);
    p->real->copy_rows(p->real, y, ldy, x, ldx, rows, m, n);
    if (rows == p->spreads)
        enter(p, BACKWARD);
}

static void probe_begin(probe *p, const fmt_pass *pass, fm_backend *real)
{
    memset(p, 0, sizeof(*p));
    p->be = *real;
    p->real = real;
    p->gathers = pass->label_row;
    p->spreads = pass->back;
    p->be.products = timed_products;
    p->be.linear_dx = timed_dx;
    p->be.linear_dw = timed_dw;
    p->be.self_attention = timed_attention;
    p->be.self_attention_grad = timed_attention_grad;
    p->be.terms = timed_terms;
    p->be.terms_grad = timed_terms_grad;
    p->be.copy_rows = timed_copy_rows;
    p->be.products_terms = NULL; /* products and terms are counted apart */
    p->be.linears_dx = NULL;
    p->since = fm_now_s();
}

/* ---- memory ---- */
static uint64_t resident_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (uint64_t)u.ru_maxrss * 1024u : 0;
}

/* ---- how much there is to do ---- */
static void add_work(work *w, const fmt_child *ch, const fmt_seq_in *s)
{
    double rows = fmt_seq_rows(s, &ch->how);
    w->rows += rows;
    w->labels += fmt_seq_labels(s);
    w->pairs += rows * rows;
    w->tokens += s->len;
}

static fm_status work_of_step(work *w, fmt_child *ch, uint32_t step)
{
    const uint32_t *pick = NULL;
    const uint32_t *ends = NULL;
    size_t n = 0;
    size_t micros = 0;
    FM_TRY(fmt_order_step(ch->order, step, &pick, &n, &ends, &micros));

    for (size_t i = 0; i < n; i++) {
        const fm_example *e = fm_dataset_at(ch->job->data, pick[i]);
        const fmt_seq_in s = {e->ids, e->labels, e->len};
        add_work(w, ch, &s);
    }
    return FM_OK;
}

static fm_status work_of_all(work *w, fmt_child *ch)
{
    for (uint32_t s = 0; s < ch->steps; s++)
        FM_TRY(work_of_step(w, ch, s));
    return FM_OK;
}

/* Work of the current batches. */
static work work_in_hand(const fmt_pass *p)
{
    work w = {0};

    for (size_t i = 0; i < p->lanes; i++) {
        const fmt_batch *b = &p->lane[i]->batch;
        w.rows += b->rows;
        w.labels += p->lane[i]->labels;
        for (uint32_t k = 0; k < b->seqs; k++)
            w.pairs += (double)b->len[k] * b->len[k];
    }
    return w;
}

/* ---- the measurement ---- */
static fm_status first_batches(fmt_child *child, size_t n, const fmt_pass_size *cap,
                               fmt_lane **lane, size_t *lanes)
{
    fmt_pass_size in = {0};
    fm_status rc = FM_OK;

    *lanes = 0;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fmt_batch *b = &child[i].lane.batch;
        rc = fmt_child_begin_step(&child[i]);
        for (uint32_t s = 0; rc == FM_OK && b->rows == 0 && s < child[i].c->shards; s++) {
            fmt_child_begin_shard(&child[i], s); /* the first shard may be empty */
            rc = fmt_child_load_micro(&child[i], 0);
        }
        size_t own = fmt_objective_setup_lanes(&child[i].goal, lane + *lanes);
        in.rows += b->rows * (uint32_t)own;
        in.labels += b->labels * (uint32_t)own;
        in.seqs += b->seqs * (uint32_t)own;
        if (in.rows > cap->rows || in.labels > cap->labels || in.seqs > cap->seqs)
            break;
        *lanes += own;
    }
    return rc;
}

/* Measures layers up to the lowest that trains, which passes its gradient down as others do. */
static fm_status look(probe *best, fmt_pass *pass, fmt_lane *const *lane, size_t lanes)
{
    fm_backend *real = pass->be;
    uint32_t layers = pass->arch.layers;
    double begun = fm_now_s();
    double least = 0.0;
    fm_status rc = FM_OK;

    for (size_t i = 0; i < lanes; i++)
        lane[i]->embed_trains = lane[i]->ps != NULL;
    pass->arch.layers = pass->end = FM_MIN(layers, pass->lowest + 1);
    for (int k = 0; rc == FM_OK && k < PROBE_LOOKS; k++) {
        probe one;
        probe_begin(&one, pass, real);
        pass->be = &one.be;
        double began = fm_now_s();
        rc = fmt_pass_run(pass, lane, lanes);
        enter(&one, one.phase);
        pass->be = real;
        double took = fm_now_s() - began;
        if (k <= 1 || took < least) { /* the first run touches memory for the first time */
            *best = one;
            least = took;
        }
        if (k > 0 && fm_now_s() - begun > PROBE_ENOUGH_S)
            break;
    }
    pass->arch.layers = pass->end = layers;
    return rc;
}

static double time_update(fmt_child *ch)
{
    double norm = 0.0;
    double began = fm_now_s();

    fm_ignore(fmt_params_grad_norm(&ch->ps, &norm), "only the time counts");
    fm_ignore(fmt_params_step(&ch->ps, ch->c, 0.0, 1, 1.0f), "only the time counts");
    fm_ignore(fmt_net_refresh(&ch->net, &ch->ps), "only the time counts");
    fmt_params_zero_grad(&ch->ps);
    fm_ignore(ch->ps.be->sync(ch->ps.be), "only the time counts");
    return fm_now_s() - began;
}

/* ---- from the measurement to the whole run ---- */
static void extrapolate(fm_plan *out, const fmt_pass *pass, const probe *p, const work *all,
                        const work *seen)
{
    double layers = pass->arch.layers;
    double back = FM_MAX(layers - pass->lowest, 1.0);
    double again = pass->recompute ? back - 1.0 : 0.0;
    double forward = (layers + again) / FM_MIN(layers, pass->lowest + 1.0);
    double rows = seen->rows > 0.0 ? all->rows / seen->rows : 0.0;
    double pairs = seen->pairs > 0.0 ? all->pairs / seen->pairs : 0.0;
    double labels = seen->labels > 0.0 ? all->labels / seen->labels : 0.0;
    double kind[KINDS];

    for (int k = 0; k < KINDS; k++)
        kind[k] = p->spent[FORWARD][k] * forward + p->spent[BACKWARD][k] * back;
    double whole = p->phase_s[FORWARD] * forward + p->phase_s[BACKWARD] * back;
    out->other_s = (whole - kind[PRODUCTS] - kind[ATTENTION] - kind[THIN]) * rows;
    out->products_s = kind[PRODUCTS] * rows;
    out->thin_s = kind[THIN] * rows;
    out->attention_s = kind[ATTENTION] * pairs;
    out->head_s = p->phase_s[HEAD] * labels;
}

/* resident: the process with weights and parameters, before other buffers were touched. */
static void count_memory(fm_plan *out, fm_engine *e, const fmt_pass *pass, const fmt_child *child,
                         size_t n, uint64_t resident)
{
    const fm_arch *a = &pass->arch;
    uint64_t logits = (uint64_t)pass->chunk * a->vocab +
                      (uint64_t)pass->cap.labels * (3ull * a->hidden + 2) + a->hidden;

    out->stem_bytes = fm_engine_stats_of(e).weight_bytes;
    out->logit_bytes = logits * sizeof(float);
    out->activation_bytes = fmt_pass_bytes(pass) - FM_MIN(fmt_pass_bytes(pass), out->logit_bytes);
    for (size_t i = 0; i < n; i++) {
        const fmt_params *ps = &child[i].ps;
        uint64_t bytes = ps->total * sizeof(float);
        out->parameter_bytes += bytes;
        out->gradient_bytes += bytes;
        out->moment_bytes += 2 * bytes;
        for (size_t k = 0; k < ps->count; k++)
            if (ps->item[k].weight)
                out->layout_bytes += ps->item[k].n * sizeof(float);
        out->layout_bytes += fmt_fold_bytes(&child[i].net);
        out->activation_bytes +=
            fmt_lane_plan((fmt_lane *)(uintptr_t)&child[i].lane, child[i].lane.mem) * sizeof(float);
    }
    uint64_t known = out->stem_bytes + out->layout_bytes + out->parameter_bytes;
    out->other_bytes = resident > known ? resident - known : 0;
    out->bytes = out->other_bytes + out->stem_bytes + out->layout_bytes + out->parameter_bytes +
                 out->gradient_bytes + out->moment_bytes + out->activation_bytes + out->logit_bytes;
}

static fm_status measure_all(fm_plan *out, fm_engine *e, fmt_child *child, size_t n, fmt_pass *pass,
                             fmt_lane **lane)
{
    probe p = {0};
    work all = {0};
    size_t lanes = 0;

    uint64_t resident = resident_bytes();

    for (size_t i = 0; i < n; i++) {
        out->steps = FM_MAX(out->steps, child[i].steps);
        FM_TRY(work_of_all(&all, &child[i]));
        FM_TRY(fmt_net_refresh(&child[i].net, &child[i].ps));
    }
    FM_TRY(first_batches(child, n, &pass->cap, lane, &lanes));
    FM_TRY(look(&p, pass, lane, lanes));
    work seen = work_in_hand(pass);
    extrapolate(out, pass, &p, &all, &seen);
    for (size_t i = 0; i < n; i++)
        out->update_s += time_update(&child[i]) * child[i].steps;
    out->seconds = out->products_s + out->attention_s + out->head_s + out->thin_s + out->other_s +
                   out->update_s;
    out->tokens = (uint64_t)all.tokens;
    out->rows = pass->cap.rows;
    out->recompute = pass->recompute;
    count_memory(out, e, pass, child, n, resident);
    return FM_OK;
}

fm_status fm_train_plan(fm_engine *e, const fm_provider *p, const fm_train_job *jobs, size_t n,
                        fm_plan *out)
{
    return fm_train_plan_stages(e, p, jobs, n, 1, 1, out, NULL);
}

fm_status fm_train_plan_stages(fm_engine *e, const fm_provider *p, const fm_train_job *jobs,
                               size_t n, uint32_t ranks, uint32_t stages, fm_plan *out,
                               fm_stages_plan *of)
{
    fmt_pass *pass = NULL;
    fmt_child *child = fm_calloc(n, sizeof(*child));
    fmt_lane **lane = fm_calloc(2 * n, sizeof(fmt_lane *));
    fm_train_result *result = fm_calloc(n, sizeof(*result));
    double began = fm_now_s();
    fm_status rc = child && lane && result ? FM_OK : FM_ENOMEM;

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        if (!jobs[i].data)
            rc = fm_fail(FM_EINVAL, "%s: a plan needs a data set", jobs[i].name);
        else
            rc = fmt_child_open(&child[i], e, p, &jobs[i], (uint32_t)i, &result[i]);
    }
    FM_THEN(rc, fmt_run_pass(&pass, fm_engine_backend(e), child, n, lane));
    FM_THEN(rc, measure_all(out, e, child, n, pass, lane));
    if (rc == FM_OK && of)
        rc = fmt_stages_plan(of, out, child, n, pass, ranks, stages);
    out->probe_s = fm_now_s() - began;
    for (size_t i = 0; child && i < n; i++)
        if (child[i].e)
            fmt_child_release(&child[i]);
    for (size_t i = 0; result && i < n; i++)
        fm_train_result_release(&result[i]);
    fmt_pass_free(pass);
    fm_free(child);
    fm_free(lane);
    fm_free(result);
    return rc;
}
