/* join.c - see join.h. */
#include "infer/engine/join.h"

#include "infer/comm.h"

fm_status fmi_join_ranks(fmi_pass *p, float *x)
{
    fm_comm *c = p->e->group;
    return fm_comm_size(c) > 1 ? fm_comm_all_reduce(c, x, (uint64_t)p->m * p->g->hidden) : FM_OK;
}

static uint32_t per_rank(uint32_t vocab, uint32_t ranks)
{
    return (vocab + ranks - 1) / ranks;
}

size_t fmi_vocab_here(const fm_engine *e, uint32_t vocab)
{
    return (size_t)per_rank(vocab, fm_comm_size(e->group)) + 1;
}

size_t fmi_logits_here(const fmi_pass *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->want.n; i++)
        if (p->want.p[i].model->head.w)
            most = FM_MAX(most, fmi_vocab_here(p->e, p->want.p[i].model->arch.vocab));
    return most;
}

void fmi_place_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count, const float *from,
                      size_t ld, uint32_t r)
{
    fm_backend *be = s->e->be;
    uint32_t vocab = m->arch.vocab, per = per_rank(vocab, fm_comm_size(s->e->group));
    uint32_t begin = FM_MIN(vocab, per * r), n = FM_MIN(per, vocab - begin);
    if (m->head.w && n)
        be->copy_rows(be, s->logits + at * s->ld + begin, s->ld, from, ld, NULL, count, n);
}

void fmi_finish_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count)
{
    fm_backend *be = s->e->be;
    const fm_switches *sw = &m->arch.sw;
    float *rows = s->logits + at * s->ld;
    if (sw->logit_divisor != 1.0f)
        for (uint32_t r = 0; r < count; r++)
            be->scale(be, rows + r * s->ld, 1.0f / sw->logit_divisor, m->arch.vocab);
    if (sw->logit_softcap > 0.0f)
        be->softcap(be, rows, s->ld, count, m->arch.vocab, sw->logit_softcap);
}

/* Places the columns of rank r for all rows, part by part. */
static void place_logits(fmi_pass *p, const float *from, size_t ld, uint32_t r)
{
    for (uint32_t i = 0; i < p->want.n; i++) {
        const fmi_part *part = &p->want.p[i];
        fmi_place_logits(p->s, part->model, p->want0 + (size_t)part->begin, part->count,
                         from + part->begin * ld, ld, r);
    }
}

fm_status fmi_gather_logits(fmi_pass *p, const float *here, size_t ld)
{
    fm_comm *c = p->e->group;
    uint32_t rank = fm_comm_rank(c), ranks = fm_comm_size(c);
    size_t floats = (size_t)p->w * ld, bytes = floats * sizeof(float);
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0}, in[FM_COMM_MAX_RANKS] = {0};
    float *room = (float *)(uintptr_t)here;
    for (uint32_t r = 1; r < ranks; r++) {
        part[0] = here;
        out[0] = rank ? bytes : 0;
        got[r] = rank ? NULL : room + r * floats;
        in[r] = rank ? 0 : bytes;
    }
    FM_TRY(fm_comm_exchange(c, part, out, got, in));
    for (uint32_t r = 0; rank == 0 && r < ranks; r++)
        place_logits(p, room + r * floats, ld, r);
    return FM_OK;
}
