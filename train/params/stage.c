/* stage.c - the ranks as stages; which part of the parameters a stage holds. */
#include "train/params/stage.h"

#include "store/base/mem.h"

#include <string.h>

/* ---- life ---- */
fm_status fmt_stage_open(fmt_stage **out, fm_engine *e)
{
    uint32_t stages = fm_engine_batch_stages(e), member[FM_COMM_MAX_RANKS];

    *out = NULL;
    if (stages == 1)
        return FM_OK;
    fmt_stage *s = fm_calloc(1, sizeof(*s));
    if (!s)
        return FM_ENOMEM;
    s->all = fm_engine_batch_ranks(e);
    s->rank = fm_comm_rank(s->all);
    s->stages = stages;
    s->wide = fm_comm_size(s->all) / stages;
    s->mine = s->rank / s->wide;
    for (uint32_t i = 0; i < s->wide; i++)
        member[i] = s->mine * s->wide + i;
    fm_status rc = FM_OK;
    if (s->wide > 1)
        rc = fm_comm_group(&s->group, s->all, fm_engine_backend(e), member, s->wide);
    if (rc < 0) {
        fm_free(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

void fmt_stage_free(fmt_stage *s)
{
    if (!s)
        return;
    fm_comm_free(s->group);
    fm_free(s);
}

static fm_status refuse(const char *name, const char *what)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: %s cannot train over stages; leave --stages out: the ranks then share the "
                   "examples",
                   name, what);
}

fm_status fm_train_check_stages(const fm_train_config *c, const char *name)
{
    switch (c->objective) {
    case FM_OBJECTIVE_CONTRASTIVE:
        return refuse(name, "objective=contrastive, whose loss is over all texts of a step,");
    case FM_OBJECTIVE_CLASSIFY:
    case FM_OBJECTIVE_DPO:
    case FM_OBJECTIVE_DISTILL:
    case FM_OBJECTIVE_NEXT_TOKEN:
        break;
    }
    return FM_OK;
}

fm_status fmt_stage_split(fmt_stage *s, const fm_arch *a, const char *name)
{
    return fmi_stage_split_of(&s->split, a, s->stages, name);
}

bool fmt_stage_is_last(const fmt_stage *s)
{
    return s->mine + 1 == s->stages;
}

uint32_t fmt_stage_end_rank(const fmt_stage *s)
{
    return (s->stages - 1) * s->wide;
}

/* ---- places ---- */
/* How many floats of p, from *begin on, `stage` updates, with the padding at p's end. */
static uint64_t part_of(const fmt_stage *s, const fmt_param *p, uint32_t stage, uint64_t *begin)
{
    uint64_t padded = (p->n + 15u) & ~(uint64_t)15u;

    *begin = 0;
    if (!p->per_layer)
        return p->stage == stage ? padded : 0;
    *begin = s->split.begin[stage] * p->per_layer;
    uint64_t end = s->split.begin[stage + 1] * p->per_layer;
    return (end == p->n ? padded : end) - *begin;
}

fm_status fmt_stage_extents(fmt_extent **out, size_t *count, uint64_t *total, const fmt_params *ps,
                            uint32_t stage)
{
    fmt_extent *e = fm_calloc(ps->count, sizeof(*e));
    uint64_t local = 0, begin;
    size_t n = 0;

    *out = e;
    *count = 0;
    if (!e)
        return FM_ENOMEM;
    for (size_t i = 0; i < ps->count; i++) {
        const fmt_param *p = &ps->item[i];
        uint64_t floats = part_of(ps->stage, p, stage, &begin), at = p->whole_at + begin;
        if (floats == 0)
            continue;
        if (n > 0 && e[n - 1].at + e[n - 1].n == at)
            e[n - 1].n += floats;
        else
            e[n++] = (fmt_extent){.at = at, .n = floats, .local = local};
        local += (floats + 15u) & ~(uint64_t)15u;
    }
    *count = n;
    *total = local;
    return FM_OK;
}

fm_status fmt_stage_place(fmt_params *ps)
{
    const fmt_stage *s = ps->stage;
    uint64_t local = 0;

    for (size_t i = 0; i < ps->count; i++) {
        fmt_param *p = &ps->item[i];
        if (p->per_layer % 16 != 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: %llu floats a layer, which stages cannot cut; virtual_tokens times "
                           "2 heads of keys must be a multiple of 16",
                           p->name, (unsigned long long)p->per_layer);
        uint64_t floats = part_of(s, p, s->mine, &p->skip);
        p->here = FM_MIN(floats, p->n - FM_MIN(p->n, p->skip));
        p->at = local;
        local += floats;
    }
    ps->whole = ps->total;
    ps->total = local;
    if (ps->tied >= 0 && fmt_stage_is_last(s)) {
        fmt_param *p = &ps->item[ps->tied];
        p->at = ps->total;
        p->here = p->n;
        ps->guest = (p->n + 15u) & ~(uint64_t)15u;
    }
    return FM_OK;
}
