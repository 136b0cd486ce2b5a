/* dpo.c - preferences (Rafailov et al. 2023): the rows of the policy and of the frozen reference go
 * through one pass; a pair is two neighbouring sequences, of one example. */
#include "train/objective/objective.h"

#include "store/base/mem.h"

const fmt_objective fmt_reference = {.name = "reference", .head = true};

/* Sum, over ascending rows, of log p under the policy less log p under the reference. */
static double gained(const float *row, const float *ref, uint32_t from, uint32_t to)
{
    double sum = 0.0;

    for (uint32_t i = from; i < to; i++)
        sum += (double)ref[i] - (double)row[i];
    return sum;
}

/* The end of the labelled rows before row_end, from `at` on. */
static uint32_t labels_end(const fmt_batch *b, uint32_t at, uint32_t row_end)
{
    while (at < b->labels && (uint32_t)b->label_row[at] < row_end)
        at++;
    return at;
}

static fm_status dpo_weigh(fmt_pass *p, fmt_lane *lane, const float *row_loss, float *weigh,
                           double *loss)
{
    fmt_objective_setup *g = lane->objective_ctx;
    const fmt_batch *b = &lane->batch;
    const float *ref = p->host_loss + g->aux.label0;
    uint32_t row = 0, at = 0, first = 0; /* first: first label of the current pair's chosen text */
    const fmt_seq_of *chosen = NULL;

    fm_assert(g->aux.labels == b->labels);
    for (uint32_t i = 0; i < b->labels; i++)
        weigh[i] = 0.0f;
    for (uint32_t k = 0; k < b->seqs; k++) {
        const fmt_seq_of *s = &lane->of[b->which[k]];
        uint32_t begin = at;
        double slope;
        row += b->len[k];
        at = labels_end(b, at, row);
        if (s->part == 0) {
            chosen = s;
            first = begin;
            continue;
        }
        if (!chosen || chosen->unit != s->unit || s->part != 1)
            continue; /* a text without a target has no rows, so there is no preference */
        double margin = gained(row_loss, ref, first, begin) - gained(row_loss, ref, begin, at);
        *loss += fmt_dpo_loss(margin, g->c->dpo_beta, &slope);
        g->hits += margin > 0.0;
        g->tried++;
        /* d margin / d row_loss is -1, for the rejected text 1 */
        for (uint32_t i = first; i < at; i++)
            weigh[i] = (float)((i < begin ? -slope : slope) * (double)lane->dloss);
    }
    return FM_OK;
}

const fmt_objective fmt_dpo = {.name = "dpo", .head = true, .weigh = dpo_weigh};
