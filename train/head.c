/* head.c - losses of the lanes of a pass, and the gradient of every row behind the last layer.
 *
 * The labelled rows of all lanes go through the language head together. Logits exist for a chunk of
 * rows at a time and become their gradient in place. */
#include "train/pass.h"

const fmi_objective fmi_next_token = {.name = "next_token", .head = true};

/* Lanes' labelled rows as parts of rows at .. at + n - 1 of the labelled. */
static fmi_parts label_parts(fmi_pass *p, uint32_t at, uint32_t n)
{
    fmi_parts ps = {p->head_part, 0, 0};

    for (size_t i = 0; i < p->lanes; i++) {
        fmi_lane *l = p->lane[i];
        uint32_t begin = FM_MAX(l->label0, at);
        uint32_t end = FM_MIN(l->label0 + l->labels, at + n);
        if (!l->labels || begin >= end)
            continue;
        p->head_part[ps.n++] = (fmi_part){.lane = l,
                                          .begin = begin - at,
                                          .count = end - begin,
                                          .u0 = begin - l->label0,
                                          .deeper = l->deep};
        ps.rows += end - begin;
    }
    return ps;
}

/* n rows of logits as inference has them: divided, then capped; what the cap gave is kept. */
static void cap_logits(fmi_pass *p, uint32_t n)
{
    const fm_switches *sw = &p->arch.sw;
    uint64_t all = (uint64_t)n * p->arch.vocab;

    if (sw->logit_divisor != 1.0f)
        p->be->scale(p->be, p->logits, 1.0f / sw->logit_divisor, all);
    if (!(sw->logit_softcap > 0.0f))
        return;
    p->be->softcap(p->be, p->logits, p->arch.vocab, n, p->arch.vocab, sw->logit_softcap);
    p->be->copy_rows(p->be, p->capped, p->arch.vocab, p->logits, p->arch.vocab, NULL, n,
                     p->arch.vocab);
}

static void cap_gradient(fmi_pass *p, uint32_t n)
{
    const fm_switches *sw = &p->arch.sw;

    if (sw->logit_softcap > 0.0f)
        p->be->softcap_grad(p->be, p->logits, p->arch.vocab, p->capped, p->arch.vocab, n,
                            p->arch.vocab, sw->logit_softcap);
    if (sw->logit_divisor != 1.0f)
        p->be->scale(p->be, p->logits, 1.0f / sw->logit_divisor, (uint64_t)n * p->arch.vocab);
}

/* One chunk of labelled rows: logits, losses, the gradient of hl in dl. */
static fm_status chunk_pass(fmi_pass *p, uint32_t at, uint32_t n)
{
    const fm_arch *a = &p->arch;
    fm_backend *be = p->be;
    float *h = p->hl + (size_t)at * a->hidden;
    const fmi_out out = {FMI_HEAD, p->logits, a->vocab};
    fmi_parts ps = label_parts(p, at, n);
    fm_status rc = fmi_linears_forward(p, ps, FMI_OUTSIDE, h, a->hidden, &out, 1);

    if (rc < 0)
        return rc;
    cap_logits(p, n);
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmi_part *part = &ps.p[i];
        be->cross_entropy(be, p->loss + at + part->begin,
                          p->logits + (size_t)part->begin * a->vocab, a->vocab,
                          p->label + at + part->begin, part->count, a->vocab, part->lane->dloss);
    }
    cap_gradient(p, n);
    return fmi_linears_grad(p, ps, FMI_OUTSIDE, p->dl + (size_t)at * a->hidden, a->hidden, false, h,
                            a->hidden, &out, 1);
}

static fm_status sum_losses(fmi_pass *p)
{
    fm_backend *be = p->be;
    fm_status rc = be->download(be, p->host_loss, p->loss, p->labels * sizeof(float));

    for (size_t i = 0; i < p->lanes && rc == FM_OK; i++) {
        fmi_lane *l = p->lane[i];
        for (uint32_t k = 0; k < l->labels; k++)
            l->loss += (double)p->host_loss[l->label0 + k];
    }
    return rc;
}

/* Rows of lanes of which something in the layers or below them trains: the first ones. */
static uint32_t rows_below(const fmi_pass *p)
{
    uint32_t rows = 0;

    for (size_t i = 0; i < p->lanes && p->lane[i]->first < p->arch.layers; i++)
        rows += p->lane[i]->batch.rows;
    return rows;
}

fm_status fmi_head(fmi_pass *p)
{
    size_t h = p->arch.hidden;
    fm_backend *be = p->be;
    uint32_t r = p->labels;
    fm_status rc = FM_OK;

    if (r > 0) {
        be->copy_rows(be, p->xl, h, p->xout, h, p->label_row, r, (uint32_t)h);
        fmi_norms(p, label_parts(p, 0, r), FMI_OUTSIDE, FMI_NORM, p->hl, p->xl, p->rstdl, 1,
                  (uint32_t)h);
    }
    for (uint32_t at = 0; at < r && rc == FM_OK; at += p->chunk)
        rc = chunk_pass(p, at, FM_MIN(p->chunk, r - at));
    if (rc == FM_OK && r > 0)
        rc = sum_losses(p);
    if (rc < 0)
        return rc;
    /* dl -> gradient of xl, in hl (no longer needed), then back to all rows: those without a
     * target take the row of zeros that follows. */
    if (r > 0)
        fmi_norms_grad(p, label_parts(p, 0, r), FMI_OUTSIDE, FMI_NORM, p->hl, false, p->dl, p->xl,
                       p->rstdl, 1, (uint32_t)h);
    be->copy_rows(be, p->hl + (size_t)r * h, h, p->zero, h, NULL, 1, (uint32_t)h);
    uint32_t rows = rows_below(p);
    if (rows > 0)
        be->copy_rows(be, p->dx, h, p->hl, h, p->back, rows, (uint32_t)h);
    return FM_OK;
}
