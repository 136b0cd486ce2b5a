/* stage_plan.c - see stage_plan.h. Memory is counted as the stages would lay it out. */
#include "train/run/stage_plan.h"

#include "store/base/mem.h"

#include <string.h>

typedef struct asked {
    fmt_stage s;
    const fm_plan *whole;
    fmt_child *child;
    size_t n;
    const fmt_pass *pass;
} asked;

/* ---- what is frozen ---- */
static bool has(const fmt_stage *s, const fm_arch *a, const fm_param *p, uint32_t stage)
{
    bool last = stage + 1 == s->stages;

    if (p->layer >= 0)
        return fmi_stage_split_stage(&s->split, (uint32_t)p->layer) == stage;
    if (p->place == FM_P_EMBED && a->tied && last)
        return true;
    bool behind = p->place == FM_P_NORM || p->place == FM_P_NORM_B || p->place == FM_P_HEAD;
    return behind ? last : stage == 0;
}

/* Bytes of the stem on a stage, by the stage's share of the parameters. */
static uint64_t stem_of(const asked *q, uint32_t stage)
{
    const fm_arch *a = &q->pass->arch;
    uint64_t all = 0, here = 0, n;
    fm_param p;

    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        if (fm_shape_elems(&n, &p.shape) != FM_OK)
            continue;
        all += n;
        here += has(&q->s, a, &p, stage) ? n : 0;
    }
    return all > 0 ? (uint64_t)((double)q->whole->stem_bytes * (double)here / (double)all) : 0;
}

/* ---- what trains ---- */
static fm_status floats_of(const asked *q, fmt_child *ch, uint32_t stage, uint64_t *out)
{
    fmt_extent *e = NULL;
    size_t count;

    ch->ps.stage = (fmt_stage *)(uintptr_t)&q->s;
    fm_status rc = fmt_stage_extents(&e, &count, out, &ch->ps, stage);
    ch->ps.stage = NULL;
    fm_free(e);
    return rc;
}

static uint64_t layouts_of(const fmt_child *ch, uint32_t stage)
{
    uint64_t floats = 0;

    for (size_t i = 0; i < ch->ps.count; i++)
        if (ch->ps.item[i].weight && ch->ps.item[i].stage == stage)
            floats += ch->ps.item[i].n;
    return floats;
}

/* Floats of each other rank's shard that one exchange receives. */
static uint64_t piece_of(const asked *q, const fmt_child *ch, uint64_t floats)
{
    bool host = q->pass->be->host_visible;
    return q->s.wide > 1 ? fm_train_stripe(floats, q->s.wide, ch->c->shards, host) : 0;
}

static fm_status state_of(const asked *q, fm_stage_plan *out, uint32_t stage)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < q->n; i++) {
        fmt_child *ch = &q->child[i];
        uint64_t floats = 0, own = ch->c->shards / q->s.wide;
        rc = floats_of(q, ch, stage, &floats);
        uint64_t waits = q->s.wide > 1 ? own - 1 : ch->c->shards > 1;
        uint64_t held = 2 * floats + 2 * floats / q->s.wide + waits * floats;
        held += (ch->c->shards - own) * piece_of(q, ch, floats);
        held += layouts_of(ch, stage);
        if (fmt_stage_ties(&ch->net) && stage + 1 == q->s.stages) /* values, gradient, layout */
            held += 3 * ch->ps.item[ch->net.outer[FMT_EMBED].w_param].n;
        out->trains += floats;
        out->state_bytes += held * sizeof(float);
    }
    return rc;
}

/* ---- activations ---- */
/* Floats of a pass over a stage; kin: a pass that borrows the working memory of another. */
static fm_status pass_floats(fmt_pass *p, bool kin, uint64_t *floats)
{
    fmt_pass first = *p;

    p->kin = kin ? &first : NULL;
    return fmt_pass_plan(p, NULL, floats);
}

static fm_status activations_of(const asked *q, fm_stage_plan *out)
{
    fmt_pass p = *q->pass;
    uint64_t one = 0, more = 0;

    p.begin = out->begin;
    p.end = out->end;
    p.low = FM_MIN(FM_MAX(p.lowest, p.begin), p.end);
    uint32_t slots = fmt_pass_slots(&p);
    p.slot = fm_calloc(slots, sizeof(*p.slot));
    p.saved = fm_calloc(slots, sizeof(*p.saved));
    fm_status rc = p.slot && p.saved ? FM_OK : FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < slots; i++)
        p.saved[i] = q->pass->saved[p.low + i > p.lowest ? p.low + i - p.lowest : 0];
    FM_THEN(rc, pass_floats(&p, false, &one));
    FM_THEN(rc, pass_floats(&p, true, &more));
    out->activation_bytes = (one + (out->kept - 1) * more) * sizeof(float);
    fm_free(p.slot);
    fm_free(p.saved);
    return rc;
}

/* ---- the whole ---- */
static uint32_t passes_of(const asked *q)
{
    uint64_t passes = 1;

    for (size_t i = 0; i < q->n; i++) {
        const fmt_child *ch = &q->child[i];
        passes = FM_MAX(passes, (uint64_t)ch->c->shards / q->s.wide * ch->most_micros);
    }
    return (uint32_t)FM_MIN(passes, (uint64_t)UINT32_MAX);
}

fm_status fmt_stages_plan(fm_stages_plan *out, const fm_plan *whole, fmt_child *child, size_t n,
                          const fmt_pass *pass, uint32_t ranks, uint32_t stages)
{
    asked q = {.whole = whole, .child = child, .n = n, .pass = pass};

    memset(out, 0, sizeof(*out));
    if (stages == 0 || stages > FM_STAGE_PLANS || ranks % stages != 0)
        return fm_fail(FM_EINVAL, "%u ranks are not %u equal stages", ranks, stages);
    q.s.stages = out->stages = stages;
    q.s.wide = out->wide = ranks / stages;
    FM_TRY(fmt_stage_split(&q.s, &pass->arch, "the parent"));
    for (size_t i = 0; i < n; i++) {
        FM_TRY(fm_train_check_stages(child[i].c, child[i].job->name));
        if (child[i].c->shards % q.s.wide != 0)
            return fm_fail(FM_EINVAL, "%s: %u shards cannot be split over %u ranks evenly",
                           child[i].job->name, child[i].c->shards, q.s.wide);
        fmt_stage_note(&q.s, &child[i].net, &child[i].ps);
    }

    out->passes = passes_of(&q);
    for (uint32_t s = 0; s < stages; s++) {
        fm_stage_plan *p = &out->stage[s];
        p->begin = q.s.split.begin[s];
        p->end = q.s.split.begin[s + 1];
        p->kept = FM_MIN(stages - s, out->passes);
        p->stem_bytes = stem_of(&q, s);
        FM_TRY(state_of(&q, p, s));
        FM_TRY(activations_of(&q, p));
    }
    return FM_OK;
}
