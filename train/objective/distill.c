/* distill.c - trains towards a teacher's next-token distribution. A teacher of the child's shape is
 * a frozen lane of the same pass; any other runs a pass of its own before. Both leave the states of
 * the same labelled rows, from which the logits of the current chunk are computed. */
#include "train/objective/objective.h"

const fmt_objective fmt_teacher = {.name = "teacher", .head = true, .silent = true};

static fm_status distill_rows(fmt_pass *p, fmt_lane *lane, uint32_t at, uint32_t n, float *logits,
                              float *loss)
{
    fmt_objective_setup *g = lane->objective_ctx;
    const fm_train_config *c = g->c;
    uint32_t v = p->arch.vocab;
    double t = c->temperature > 0.0 ? c->temperature : 1.0;

    fm_assert(g->aux.labels == lane->labels);
    FM_TRY(fmt_head_logits(g->own ? g->own : p, &g->aux, at, n, p->taught));
    p->be->distill(p->be, loss, logits, v, p->taught, v, p->label + lane->label0 + at, n, v,
                   (float)t, (float)c->distill_weight, lane->dloss);
    return FM_OK;
}

const fmt_objective fmt_distill = {.name = "distill", .head = true, .rows = distill_rows};
