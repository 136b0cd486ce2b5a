/* step_layout.c - which runs of a step are a pass; where the activations of a pass lie; what
 * learned positions and encoders need for each row besides positions. */
#include "infer/engine/step/step.h"

#include <string.h>

#include "store/base/mem.h"

uint32_t fmi_pass_end(const fmi_step *s, uint32_t i, uint32_t *m)
{
    uint32_t j = i;
    for (*m = 0; j < s->runs && s->run[j].row0 == s->run[i].row0; j++)
        *m += s->run[j].count;
    return j;
}

fmi_geom *fmi_geom_of_run(const fmi_step *s, uint32_t i)
{
    return fmi_priv(s->run[i].model)->geom;
}

uint32_t fmi_class_end(const fmi_step *s, uint32_t i)
{
    const fmi_geom *g = fmi_geom_of_run(s, i);
    while (i < s->runs && fmi_geom_of_run(s, i) == g)
        i++;
    return i;
}

size_t fmi_table_ints(const fmi_step *s, const fmi_geom *g)
{
    size_t tables = g->sw.cross ? 2 : 1; /* of the rows' own pages, then of their sources' */
    return tables * g->here * g->seqs * s->table_stride;
}

size_t fmi_row_ints(const fmi_geom *g)
{
    return g->here + (g->recurs ? 1 + 2 * (size_t)g->recurs : 0);
}

fm_status fmi_upload_places(fmi_step *s, uint32_t n, const fm_row *rows)
{
    fm_backend *be = s->e->be;
    size_t all = s->max_rows, bytes = 4 * all * sizeof(int32_t);
    bool needed = false;
    for (uint32_t i = 0; i < s->runs; i++) {
        const fm_switches *sw = &s->run[i].model->arch.sw;
        needed = needed || sw->positions || sw->encoder || sw->cross || sw->chunk;
    }
    if (!needed)
        return FM_OK;
    if (!s->place) {
        void *dev = NULL;
        s->place_host = s->place_host ? s->place_host : fm_malloc(bytes);
        FM_TRY(s->place_host ? be->alloc(be, &dev, bytes) : FM_ENOMEM);
        s->place = dev;
    }
    memset(s->place_host, 0, bytes);
    for (uint32_t i = 0; i < n; i++) {
        const fm_seq *q = rows[s->order[i]].seq;
        const fm_switches *sw = &q->model->arch.sw;
        uint32_t pos = s->pos[s->order[i]], last = q->len + q->pending - 1;
        uint32_t near = FM_MAX(q->model->arch.window, 1u) - 1;
        s->place_host[i] = (int32_t)(pos + sw->position_offset);
        s->place_host[all + i] = (int32_t)(sw->cross     ? q->source_len - 1
                                           : sw->encoder ? last
                                                         : pos);
        uint32_t from = pos > near ? pos - near : 0;
        s->place_host[2 * all + i] = (int32_t)(sw->chunk ? pos - pos % sw->chunk : from);
        s->place_host[3 * all + i] = (int32_t)FM_MIN(pos + near, last);
    }
    return be->upload(be, s->place, s->place_host, bytes);
}

/* Floats of each activation of a pass, in the order of fmi_pass. */
static void layout(const fmi_geom *g, size_t rows, size_t size[FMI_ACTIVATIONS])
{
    const fm_switches *s = &g->sw;
    size_t hd = FM_MAX(g->head_dim, s->full_head_dim), h = g->hidden, q = (size_t)g->heads * hd;
    size_t kv = (size_t)FM_MAX(g->kv_heads, s->full_kv_heads) * hd;
    size_t inter = FM_MAX((size_t)g->inter * (s->wide_shared ? 2 : 1), (size_t)s->per_layer);
    size_t wide = s->kv_rank ? (size_t)g->heads * (s->nope + s->v_dim) : 0; /* and all values */
    size_t latent = s->kv_rank ? s->kv_rank + (size_t)g->head_dim - s->nope : 0;
    size_t qkv = s->fused ? q + 2 * kv : wide, up = FM_MAX(inter, (size_t)s->shared_inter);
    size_t gate = s->fused_mlp ? FM_MAX(2 * inter, up) : up, chosen = s->chosen;
    size_t expert_in = FM_MAX(h, (size_t)s->expert_in);
    size_t expert = FM_MAX(expert_in, (size_t)s->expert_inter) * chosen;
    const fm_recurrence *r = &s->rec;
    size_t inner = r->inner, mixes = r->in + (r->by_groups ? r->channels : 0);
    size_t steps = r->kind == FM_RECURS_MAMBA   ? r->rank + 2 * (size_t)r->n + inner
                   : r->kind == FM_RECURS_DELTA ? inner + 4 * (size_t)r->heads
                                                : 0;
    size_t gated = s->attn_gate ? q : 0;
    size_t one = s->fused == FM_FUSED_QKV ? 0 : 1; /* 0: q, k, v are parts of fused */
    size_t from_latent = FM_MAX((size_t)s->kv_rank, (size_t)s->q_rank);
    size_t embed = s->embed_width;
    const size_t all[FMI_ACTIVATIONS] = {
        FM_MAX(h, embed),
        FM_MAX(h, embed),
        q * one,
        kv * one,
        kv * one,
        FM_MAX(q, inner),
        FM_MAX(h, embed),
        FM_MAX(gate, s->expert_inter * chosen),
        FM_MAX(up, s->expert_inter * chosen),
        FM_MAX(FM_MAX(FM_MAX(FM_MAX(h, q), up), expert), FM_MAX(from_latent, FM_MAX(inner, embed))),
        FM_MAX(FM_MAX(qkv, mixes), 2 * gated),
        s->order == FM_BLOCK_PARALLEL || s->beside || s->mlp_too ? h : 0,
        expert_in * chosen,
        expert_in * chosen,
        (size_t)s->experts * (s->router_bias ? 2 : 1) + (s->shared_expert ? 1 : 0),
        FM_MAX(FM_MAX(latent, (size_t)s->q_rank), (size_t)s->expert_in),
        s->rec.channels,
        FM_MAX(steps, gated),
        (size_t)g->layers * s->per_layer,
        (size_t)g->layers * s->per_layer,
        s->rounds ? FM_MAX(FM_MAX(h, q), inter) : 0,
        s->rounds ? 1 : 0};
    for (size_t i = 0; i < FMI_ACTIVATIONS; i++)
        size[i] = (all[i] * rows + 15) & ~(size_t)15; /* each on a cache line */
}

size_t fmi_act_floats(const fmi_geom *g, uint32_t rows)
{
    size_t size[FMI_ACTIVATIONS], sum = 0;
    layout(g, rows, size);
    for (size_t i = 0; i < FMI_ACTIVATIONS; i++)
        sum += size[i];
    return sum;
}

void fmi_carve(fmi_pass *p)
{
    size_t size[FMI_ACTIVATIONS];
    float **fields[FMI_ACTIVATIONS] = {&p->x,       &p->xn,    &p->q,     &p->k,   &p->v,
                                       &p->att,     &p->o,     &p->gate,  &p->up,  &p->scaled,
                                       &p->fused,   &p->other, &p->xr,    &p->yr,  &p->router,
                                       &p->latent,  &p->mixed, &p->steps, &p->per, &p->per_map,
                                       &p->rounded, &p->grain};
    float *at = p->s->act;
    layout(p->g, p->s->max_rows, size);
    for (size_t f = 0; f < FMI_ACTIVATIONS; f++) {
        *fields[f] = at;
        at += size[f];
    }
}
