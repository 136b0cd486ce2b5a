/* step_streams.c - residual streams that rows of a pass take from the cache and save there, layer
 * by layer; a recorded step saves them in buffers of its own first. */
#include "infer/device/room.h"
#include "infer/engine/step/step.h"

/* The run that row `row` of the step is in. */
static const fmi_part *run_of_row(const fmi_step *s, uint32_t row)
{
    const fmi_part *run = s->run;
    while (row < run->row0 + run->at || row >= run->row0 + run->at + run->count)
        run++;
    return run;
}

static float *stage_at(const fmi_step *s, uint32_t row0, uint32_t layer)
{
    uint32_t i = 0;
    while (s->stage_of[i].row0 != row0 || s->stage_of[i].layer != layer)
        i++;
    return s->stage + (size_t)i * s->max_rows * s->hidden_ld;
}

static bool add_stage(fmi_step *s, uint32_t row0, uint32_t layer)
{
    for (uint32_t i = 0; i < s->stages; i++)
        if (s->stage_of[i].row0 == row0 && s->stage_of[i].layer == layer)
            return true;
    if (s->stages == FMI_STAGES)
        return false;
    s->stage_of[s->stages++] = (fmi_saved_stream){row0, layer};
    return true;
}

/* Whether rows of shape class g go through layer l (layers: the end) on this rank, so that pages of
 * streams before it have memory here. */
static bool passes_here(const fmi_step *s, const fmi_geom *g, uint32_t l)
{
    const uint32_t *deal = g->split.begin + s->e->stage;
    return l >= deal[0] && (l < deal[1] || deal[1] == g->layers);
}

fm_status fmi_stage_plan(fmi_step *s, bool *fits)
{
    *fits = true;
    s->stages = 0;
    for (uint32_t i = 0; i < s->spans && *fits; i++) {
        const fmi_block *k = s->span[i].block;
        const fmi_part *run = run_of_row(s, s->span[i].row);
        const fmi_geom *g = fmi_priv(run->model)->geom;
        *fits = k->from < 0;
        for (size_t j = 0; j < FMI_SAVES && *fits; j++)
            *fits = k->save[j].page < 0 || !passes_here(s, g, k->save[j].layer) ||
                    add_stage(s, run->row0, k->save[j].layer);
    }
    fm_status rc = FM_OK;
    if (*fits)
        rc = fmi_float_room(s->e->be, &s->stage, &s->stage_floats,
                            (size_t)s->stages * s->max_rows * s->hidden_ld);
    if (rc != FM_OK || !*fits)
        s->stages = 0;
    return rc;
}

void fmi_stage_empty(fmi_step *s)
{
    fm_backend *be = s->e->be;
    for (uint32_t i = 0; i < s->spans && s->stages; i++) {
        const fmi_span *w = &s->span[i];
        const fmi_part *run = run_of_row(s, w->row);
        const fmi_geom *g = fmi_priv(run->model)->geom;
        float *kept = fmi_kv_view(g->rows).k;
        size_t h = g->hidden, row = w->row - run->row0;
        for (size_t j = 0; j < FMI_SAVES; j++)
            if (w->block->save[j].page >= 0 && passes_here(s, g, w->block->save[j].layer))
                be->copy_rows(be, kept + ((size_t)w->block->save[j].page * FM_KV_PAGE + w->off) * h,
                              h, stage_at(s, run->row0, w->block->save[j].layer) + row * h, h, NULL,
                              w->count, g->hidden);
    }
    s->stages = 0;
}

/* Saves the streams of all rows of the pass before layer l in the buffers planned for it. */
static void put_on_stage(const fmi_pass *p, uint32_t l)
{
    const fmi_step *s = p->s;
    uint32_t h = p->g->hidden;
    for (uint32_t i = 0; i < s->stages; i++)
        if (s->stage_of[i].row0 == p->row0 && s->stage_of[i].layer == l)
            p->e->be->copy_rows(p->e->be, s->stage + (size_t)i * s->max_rows * s->hidden_ld, h,
                                p->x0, h, NULL, p->rows, h);
}

/* Takes and saves residual streams of rows of the pass before layer l. */
static void exchange(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    const fmi_step *s = p->s;
    uint32_t h = p->g->hidden;
    if (s->stages) {
        put_on_stage(p, l);
        return;
    }
    float *kept = fmi_kv_view(p->g->rows).k;
    for (uint32_t i = 0; i < s->spans; i++) {
        const fmi_span *w = &s->span[i];
        const fmi_block *k = w->block;
        if (w->row < p->row0 || w->row >= p->row0 + p->rows)
            continue;
        float *x = p->x0 + (size_t)(w->row - p->row0) * h;
        if (k->from >= 0 && k->first == l)
            be->copy_rows(be, x, h, kept + ((size_t)k->from * FM_KV_PAGE + w->off) * h, h, NULL,
                          w->count, h);
        for (size_t j = 0; j < FMI_SAVES; j++)
            if (k->save[j].page >= 0 && k->save[j].layer == l)
                be->copy_rows(be, kept + ((size_t)k->save[j].page * FM_KV_PAGE + w->off) * h, h, x,
                              h, NULL, w->count, h);
    }
}

void fmi_pass_enter(fmi_pass *p, uint32_t l)
{
    uint32_t skip = 0, r0 = 0;
    while (skip < p->part_count && p->parts[skip].first > l)
        r0 += p->parts[skip++].count;
    for (uint32_t i = skip; i < p->part_count; i++)
        p->parts[i].begin = p->parts[i].at - r0;
    p->all = (fmi_parts){p->parts + skip, p->part_count - skip};
    p->m = p->rows - r0;
    p->x = p->x0 + (size_t)r0 * p->g->hidden;
    p->ids = p->ints + p->row0 + r0;
    p->pos = p->ids + p->step_rows;
    p->seq = p->pos + 2 * (size_t)p->step_rows;
    if (p->s->place) {
        p->place = p->s->place + p->row0 + r0;
        p->seen = p->place + p->s->max_rows;
        p->from = p->seen + p->s->max_rows;
        p->to = p->from + p->s->max_rows;
    }
    if (l < p->g->layers) {
        p->e->layer_rows += p->m;
        p->slot = p->slots + (size_t)(l - p->g->begin) * p->rows + r0;
        p->table = p->tables + (size_t)(l - p->g->begin) * p->seqs * p->table_stride;
    }
    if (p->s->spans)
        exchange(p, l);
}
