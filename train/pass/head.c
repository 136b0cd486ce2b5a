/* head.c - losses of the lanes of a pass, and the gradient of every row behind the last layer.
 *
 * The picked rows of all lanes are gathered and normed together. Rows of objectives over tokens go
 * through the language head, a chunk of rows at a time: logits become their own gradient in place.
 * In an objective where the weight of a row depends on all losses (DPO), the gradient of unit
 * weights is scaled row by row if the head is frozen; if it trains, the head runs once more when
 * the weights are known. Objectives over states get the states as they are. */
#include "train/pass/pass.h"

#include "store/base/mem.h"

const fmt_objective fmt_next_token = {.name = "next_token", .head = true};

static bool head_trains(const fmt_lane *l)
{
    return l->ps && fmt_linear_trains(&l->net->outer[FMT_HEAD]);
}

/* Whether the lane's head must wait for the weights of the rows. */
static bool waits(const fmt_lane *l)
{
    return l->objective->weigh && head_trains(l);
}

static fmt_part part_of(fmt_lane *l, uint32_t at, uint32_t begin, uint32_t end)
{
    return (fmt_part){.lane = l,
                      .begin = begin - at,
                      .count = end - begin,
                      .u0 = begin - l->label0,
                      .deeper = l->deep};
}

/* The lanes' parts of the picked rows at .. at + n - 1. */
static fmt_parts label_parts(fmt_pass *p, uint32_t at, uint32_t n)
{
    fmt_parts ps = {p->head_part, 0, 0};

    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        uint32_t begin = FM_MAX(l->label0, at);
        uint32_t end = FM_MIN(l->label0 + l->labels, at + n);
        if (!l->labels || begin >= end)
            continue;
        p->head_part[ps.n++] = part_of(l, at, begin, end);
        ps.rows += end - begin;
    }
    return ps;
}

/* ---- logits ---- */
/* Divides, then caps the logits, as infer does. */
static void finish_logits(fmt_pass *p, float *logits, uint32_t n)
{
    const fm_arch *a = &p->arch;

    if (a->sw.logit_divisor != 1.0f)
        p->be->scale(p->be, logits, 1.0f / a->sw.logit_divisor, (uint64_t)n * a->vocab);
    if (a->sw.logit_softcap > 0.0f)
        p->be->softcap(p->be, logits, a->vocab, n, a->vocab, a->sw.logit_softcap);
}

static fm_status logits_of(fmt_pass *p, fmt_parts ps, const float *h, float *logits, uint32_t n)
{
    const fmt_out out = {FMT_HEAD, logits, p->arch.vocab};
    FM_TRY(fmt_linears_forward(p, ps, FMT_OUTSIDE, h, p->arch.hidden, &out, 1));

    finish_logits(p, logits, n);
    return FM_OK;
}

fm_status fmt_head_logits(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n, float *logits)
{
    fmt_part part = part_of(lane, lane->label0 + at, lane->label0 + at, lane->label0 + at + n);
    fmt_parts ps = {&part, 1, n};
    return logits_of(p, ps, p->hl + (size_t)(lane->label0 + at) * p->arch.hidden, logits, n);
}

/* Keeps the capped logits for unfinish_logits, which undoes finish_logits in the backward. */
static void keep_logits(fmt_pass *p, uint32_t n)
{
    uint32_t v = p->arch.vocab;

    if (p->capped)
        p->be->copy_rows(p->be, p->capped, v, p->logits, v, NULL, n, v);
}

static void unfinish_logits(fmt_pass *p, uint32_t n)
{
    const fm_arch *a = &p->arch;

    if (p->capped)
        p->be->softcap_grad(p->be, p->logits, a->vocab, p->capped, a->vocab, n, a->vocab,
                            a->sw.logit_softcap);
    if (a->sw.logit_divisor != 1.0f)
        p->be->scale(p->be, p->logits, 1.0f / a->sw.logit_divisor, (uint64_t)n * a->vocab);
}

/* Goes from the gradient of a chunk's logits to dl and to the gradients of the head. */
static fm_status logits_grad(fmt_pass *p, fmt_parts ps, uint32_t at)
{
    size_t h = p->arch.hidden;
    const fmt_out out = {FMT_HEAD, p->logits, p->arch.vocab};

    return fmt_linears_grad(p, ps, FMT_OUTSIDE, p->dl + at * h, h, false, p->hl + at * h, h, &out,
                            1);
}

/* Computes the losses of one part; its logits become their gradient. */
static fm_status part_loss(fmt_pass *p, const fmt_part *part, uint32_t at)
{
    fmt_lane *l = part->lane;
    uint32_t v = p->arch.vocab;
    float *logits = p->logits + (size_t)part->begin * v;
    float *loss = p->loss + at + part->begin;

    if (l->objective->rows)
        return l->objective->rows(p, l, part->u0, part->count, logits, loss);
    p->be->cross_entropy(p->be, loss, logits, v, p->label + at + part->begin, part->count, v,
                         l->objective->weigh ? 1.0f : l->dloss);
    return FM_OK;
}

/* Takes one chunk of rows through the head: logits, losses, the gradient of hl in dl. */
static fm_status chunk_pass(fmt_pass *p, uint32_t at, uint32_t n)
{
    fmt_parts ps = label_parts(p, at, n), grads;
    fm_status rc = logits_of(p, ps, p->hl + (size_t)at * p->arch.hidden, p->logits, n);

    if (rc < 0)
        return rc;
    keep_logits(p, n);
    for (uint32_t i = 0; i < ps.n && rc == FM_OK; i++)
        rc = part_loss(p, &ps.p[i], at);
    unfinish_logits(p, n);
    /* segments of lanes that need not wait */
    for (uint32_t i = 0, j; i < ps.n && rc == FM_OK; i = j) {
        grads = (fmt_parts){ps.p + i, 0, 0};
        for (j = i; j < ps.n && !waits(ps.p[j].lane); j++, grads.n++)
            grads.rows += ps.p[j].count;
        if (grads.n == 0)
            j++;
        else
            rc = logits_grad(p, grads, at);
    }
    return rc;
}

/* ---- weights that follow from the losses ---- */
/* Multiplies picked rows i .. i + n - 1 in x by their weights, uploaded over their losses. */
static fm_status scale_by_weight(fmt_pass *p, float *x, uint32_t n, uint32_t i, uint32_t width)
{
    fm_status rc = p->be->upload(p->be, p->loss + i, p->host_weigh + i, n * sizeof(float));

    p->be->scale_rows(p->be, x, width, x, width, p->loss + i, n, width);
    return rc;
}

/* Runs the head again for a lane whose head trains, with the weights in p->host_weigh. */
static fm_status chunk_again(fmt_pass *p, fmt_lane *l, uint32_t at, uint32_t n)
{
    uint32_t v = p->arch.vocab, row = l->label0 + at;
    fmt_part part = part_of(l, row, row, row + n);
    fmt_parts ps = {&part, 1, n};
    FM_TRY(fmt_head_logits(p, l, at, n, p->logits));
    keep_logits(p, n);
    p->be->cross_entropy(p->be, p->loss + row, p->logits, v, p->label + row, n, v, 1.0f);
    fm_status rc = scale_by_weight(p, p->logits, n, row, v);
    unfinish_logits(p, n);
    return rc == FM_OK ? logits_grad(p, ps, row) : rc;
}

static fm_status weigh(fmt_pass *p, fmt_lane *l)
{
    size_t h = p->arch.hidden;
    FM_TRY(
        l->objective->weigh(p, l, p->host_loss + l->label0, p->host_weigh + l->label0, &l->loss));

    for (uint32_t at = 0; waits(l) && at < l->labels; at += p->chunk)
        FM_TRY(chunk_again(p, l, at, FM_MIN(p->chunk, l->labels - at)));
    if (!waits(l) && l->deep)
        FM_TRY(scale_by_weight(p, p->dl + l->label0 * h, l->labels, l->label0, (uint32_t)h));
    return FM_OK;
}

/* ---- losses that wait ---- */
bool fmt_puts_off(const fmt_pass *p, const fmt_lane *lane)
{
    return p->tally && lane->later && !lane->objective->weigh;
}

fm_status fmt_put_off(fmt_pass *p, const fmt_lane *lane)
{
    fmt_tally *t = p->tally;
    uint32_t n = lane->labels;
    FM_TRY(fm_grow(&t->entry, &t->cap, t->count + 1, sizeof(*t->entry)));
    fm_assert(t->used + n <= t->room);
    p->be->copy_rows(p->be, t->rows + t->used, n, p->loss + lane->label0, n, NULL, 1, n);
    t->entry[t->count++] = (struct fmt_put_off){.into = lane->later, .at = t->used, .n = n};
    t->used += n;
    return FM_OK;
}

/* Sums as a pass without a tally does: row by row, then the sum to the others. */
void fmt_tally_settle(fmt_tally *t, const float *rows)
{
    for (size_t i = 0; i < t->count; i++) {
        double sum = 0.0;
        for (uint32_t k = 0; k < t->entry[i].n; k++)
            sum += (double)rows[t->entry[i].at + k];
        *t->entry[i].into += sum;
    }
    t->count = 0;
    t->used = 0;
}

static bool over_logits(const fmt_lane *l)
{
    return l->objective->head && !l->objective->silent && l->labels > 0;
}

static fm_status sum_losses(fmt_pass *p, uint32_t rows)
{
    fm_backend *be = p->be;

    bool needed = false;

    for (size_t i = 0; i < p->lanes; i++) {
        const fmt_lane *l = p->lane[i];
        if (over_logits(l) && fmt_puts_off(p, l))
            FM_TRY(fmt_put_off(p, l));
        else
            needed = needed || over_logits(l);
    }
    if (needed)
        FM_TRY(be->download(be, p->host_loss, p->loss, rows * sizeof(float)));
    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        bool known = over_logits(l) && !l->objective->weigh && !fmt_puts_off(p, l);
        for (uint32_t k = 0; known && k < l->labels; k++)
            l->loss += (double)p->host_loss[l->label0 + k];
    }
    for (size_t i = 0; i < p->lanes; i++)
        if (p->lane[i]->objective->weigh && p->lane[i]->labels)
            FM_TRY(weigh(p, p->lane[i]));
    return FM_OK;
}

/* ---- the whole ---- */
void fmt_head_states(fmt_pass *p)
{
    size_t h = p->arch.hidden;
    uint32_t r = p->labels;

    p->be->copy_rows(p->be, p->xl, h, p->xout, h, p->label_row, r, (uint32_t)h);
    if (!fm_ends_normed(&p->arch.sw)) /* the last layer ends with a norm of its own */
        p->be->copy_rows(p->be, p->hl, h, p->xl, h, NULL, r, (uint32_t)h);
    else
        fmt_norms(p, label_parts(p, 0, r), FMT_OUTSIDE, FMT_NORM, p->hl, p->xl, p->rstdl, 1,
                  (uint32_t)h);
}

/* How many rows belong to lanes that train in the layers or below them: the first ones. */
static uint32_t rows_below(const fmt_pass *p)
{
    uint32_t rows = 0;

    for (size_t i = 0; i < p->lanes && p->lane[i]->first < p->arch.layers; i++)
        rows += p->lane[i]->batch.rows;
    return rows;
}

/* Goes from dl to the gradient of xl, in hl, which is no longer needed, and spreads it over all
 * rows: rows that are not picked get the row of zeros behind it. */
static void spread(fmt_pass *p)
{
    size_t h = p->arch.hidden;
    uint32_t r = p->labels;

    if (r > 0 && !fm_ends_normed(&p->arch.sw))
        p->be->copy_rows(p->be, p->hl, h, p->dl, h, NULL, r, (uint32_t)h);
    else if (r > 0)
        fmt_norms_grad(p, label_parts(p, 0, r), FMT_OUTSIDE, FMT_NORM, p->hl, false, p->dl, p->xl,
                       p->rstdl, 1, (uint32_t)h);
    p->be->copy_rows(p->be, p->hl + (size_t)r * h, h, p->zero, h, NULL, 1, (uint32_t)h);
    uint32_t rows = rows_below(p);
    if (rows > 0)
        p->be->copy_rows(p->be, p->dx, h, p->hl, h, p->back, rows, (uint32_t)h);
}

static fm_status over_states(fmt_pass *p)
{
    size_t h = p->arch.hidden;

    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        if (l->objective->states && l->labels)
            FM_TRY(
                l->objective->states(p, l, p->hl + l->label0 * h, p->dl + l->label0 * h, &l->loss));
    }
    return FM_OK;
}

/* Takes segments of lanes with token objectives through the language head, chunk by chunk. */
static fm_status over_tokens(fmt_pass *p)
{
    fm_status rc = FM_OK;
    uint32_t last = 0;

    for (size_t i = 0, j; i < p->lanes && rc == FM_OK; i = j) {
        uint32_t begin = p->lane[i]->label0, end = begin;
        for (j = i; j < p->lanes; j++) {
            const fmt_objective *o = p->lane[j]->objective;
            if (!o->head || o->silent)
                break;
            end = p->lane[j]->label0 + p->lane[j]->labels;
        }
        for (uint32_t at = begin; at < end && rc == FM_OK; at += p->chunk)
            rc = chunk_pass(p, at, FM_MIN(p->chunk, end - at));
        last = FM_MAX(last, end);
        j = FM_MAX(j, i + 1);
    }
    return rc == FM_OK && last > 0 ? sum_losses(p, last) : rc;
}

fm_status fmt_head(fmt_pass *p)
{
    if (p->labels > 0)
        fmt_head_states(p);
    FM_TRY(over_tokens(p));
    FM_TRY(over_states(p));
    spread(p);
    return FM_OK;
}
