/* contrastive.c - the loss over texts that belong together, against the other texts of the
 * micro-batch. With several shards the gradients of the vectors are given (run/child_gather.c). */
#include "train/objective/objective.h"

#include "store/base/mem.h"

#define TEMPERATURE 0.05 /* if the settings give none: sentence-transformers' scale 20 */

/* The order of the vectors of a micro-batch: anchors, then their positives, then the negatives. */
typedef struct layout {
    uint32_t anchors, negatives;
    uint32_t seen[3]; /* vectors of each part so far */
} layout;

static layout layout_of(const fmt_lane *lane)
{
    layout l = {0};

    for (uint32_t k = 0; k < lane->batch.seqs; k++) {
        const fmt_seq_of *s = &lane->of[lane->batch.which[k]];
        l.anchors += s->part == 0;
        l.negatives += s->part == 2;
    }
    return l;
}

/* Index of the next sequence's vector. */
static size_t place(layout *l, const fmt_seq_of *s)
{
    size_t base = s->part == 0 ? 0 : s->part == 1 ? l->anchors : 2 * (size_t)l->anchors;

    fm_assert(s->part < 3);
    return base + l->seen[s->part]++;
}

/* Picked rows of sequence k: all tokens of the text, or one. */
static uint32_t rows_of(const fmt_objective_setup *g, uint32_t k)
{
    const fmt_lane *lane = g->lane;
    return g->mode == FMI_POOL_MEAN ? lane->in[lane->batch.which[k]].len : 1;
}

static void pool(const fmt_objective_setup *g, double *out, const float *x)
{
    const fmt_lane *lane = g->lane;
    layout l = layout_of(lane);
    size_t h = lane->net->arch.hidden, at = 0;

    for (uint32_t k = 0; k < lane->batch.seqs; k++) {
        uint32_t rows = rows_of(g, k);
        size_t to = place(&l, &lane->of[lane->batch.which[k]]);
        fmt_pool_rows(out + to * h, x + at * h, rows, (uint32_t)h, g->mode);
        at += rows;
    }
}

static void hand_back(const fmt_objective_setup *g, float *dx, const double *dout)
{
    const fmt_lane *lane = g->lane;
    layout l = layout_of(lane);
    size_t h = lane->net->arch.hidden, at = 0;

    for (uint32_t k = 0; k < lane->batch.seqs; k++) {
        uint32_t rows = rows_of(g, k);
        size_t from = place(&l, &lane->of[lane->batch.which[k]]);
        fmt_pool_rows_grad(dx + at * h, dout + from * h, rows, (uint32_t)h, g->mode);
        at += rows;
    }
}

/* The states of the lane's picked rows, in memory that the host reads. */
static fm_status read_states(fmt_pass *p, const fmt_lane *lane, const float *x, const float **out)
{
    fmt_objective_setup *g = lane->objective_ctx;
    size_t bytes = lane->labels * (size_t)lane->net->arch.hidden * sizeof(float);

    *out = p->be->host_visible ? x : g->x;
    return p->be->host_visible ? p->be->sync(p->be) : p->be->download(p->be, g->x, x, bytes);
}

fmt_infonce fmt_contrastive_loss(const fm_train_config *c, uint32_t n, uint32_t cands, uint32_t h)
{
    return (fmt_infonce){.n = n,
                         .cands = cands,
                         .h = h,
                         .temperature = c->temperature > 0.0 ? c->temperature : TEMPERATURE,
                         .symmetric = c->symmetric};
}

fm_status fmt_contrastive_vectors(fmt_pass *p, fmt_lane *lane)
{
    fmt_objective_setup *g = lane->objective_ctx;
    size_t h = lane->net->arch.hidden;
    const float *x = NULL;
    FM_TRY(read_states(p, lane, p->hl + lane->label0 * h, &x));

    for (uint32_t k = 0; k < lane->batch.seqs; k++) {
        uint32_t rows = rows_of(g, k);
        fmt_pool_rows(g->all.vec + (g->all.first + lane->batch.which[k]) * h, x, rows, (uint32_t)h,
                      g->mode);
        x += rows * h;
    }
    return FM_OK;
}

/* Takes the gradients that child_gather.c has computed. */
static fm_status given(fmt_pass *p, const fmt_lane *lane, float *dx)
{
    fmt_objective_setup *g = lane->objective_ctx;
    size_t h = lane->net->arch.hidden, at = 0;
    bool here = p->be->host_visible;
    fm_status rc = here ? p->be->sync(p->be) : FM_OK;
    float *to = here ? dx : g->dx;

    for (uint32_t k = 0; rc == FM_OK && k < lane->batch.seqs; k++) {
        uint32_t rows = rows_of(g, k);
        const double *dv = g->all.dvec + (g->all.first + lane->batch.which[k]) * h;
        fmt_pool_rows_grad(to + at * h, dv, rows, (uint32_t)h, g->mode);
        at += rows;
    }
    return rc == FM_OK && !here ? p->be->upload(p->be, dx, to, at * h * sizeof(float)) : rc;
}

static fm_status contrastive_states(fmt_pass *p, fmt_lane *lane, const float *x, float *dx,
                                    double *loss)
{
    fmt_objective_setup *g = lane->objective_ctx;
    size_t h = lane->net->arch.hidden, bytes = lane->labels * h * sizeof(float);
    bool here = p->be->host_visible;
    const float *states = NULL;

    if (g->all.given)
        return given(p, lane, dx);
    layout l = layout_of(lane);
    FM_TRY(read_states(p, lane, x, &states));
    size_t all = (size_t)lane->batch.seqs * h, anchors = (size_t)l.anchors * h;
    double *v = g->sums, *dv = v + all;
    pool(g, v, states);
    fmt_infonce c = fmt_contrastive_loss(g->c, l.anchors, l.anchors + l.negatives, (uint32_t)h);
    c.anchor = v;
    c.cand = v + anchors;
    c.dloss = (double)lane->dloss;
    c.danchor = lane->ps ? dv : NULL;
    c.dcand = lane->ps ? dv + anchors : NULL;
    c.work = dv + all;
    fmt_infonce_run(&c);
    *loss += c.loss;
    g->hits += c.hits;
    g->tried += c.n;
    if (!lane->ps)
        return FM_OK;
    hand_back(g, here ? dx : g->dx, dv);
    return here ? FM_OK : p->be->upload(p->be, dx, g->dx, bytes);
}

const fmt_objective fmt_contrastive = {.name = "contrastive", .states = contrastive_states};
