/* checkpoint.c - turns a run's state into named tensors for the callbacks that keep it, and back.
 *
 * A state has "p/NAME", "m/NAME", "v/NAME" for every parameter that trains; they may be read back
 * in any order. On a backend whose memory the host sees the tensors point at the parameters; else
 * they are downloaded. */
#include "train/pass/stage_pass.h"

#include "store/base/mem.h"

#include <string.h>

enum { PARTS = 3 };
static const char part_word[PARTS] = {'p', 'm', 'v'};

/* Host memory for a copy of everything, and device memory to gather a moment, of which each rank
 * has its stripes. Either all ranks get their memory or the save fails on all. */
typedef struct rooms {
    float *copy;  /* host [PARTS, total]; NULL: the parameters are read where they are */
    void *gather; /* device [total] */
} rooms;

static void rooms_release(rooms *r, const fmt_params *ps)
{
    if (r->gather)
        ps->be->free(ps->be, r->gather);
    fm_free(r->copy);
}

/* The ranks that the parameters are split over. */
static fm_comm *ranks_of(const fmt_params *ps)
{
    return ps->stage ? ps->stage->all : ps->comm;
}

static uint64_t floats_of(const fmt_params *ps)
{
    return ps->stage ? ps->whole : ps->total;
}

static fm_status rooms_take(rooms *r, const fmt_params *ps)
{
    fm_status rc = FM_OK;

    memset(r, 0, sizeof(*r));
    if (ps->stage && ps->stage->rank > 0)
        return FM_OK;
    if (ps->be->host_visible && !ps->comm && !ps->stage)
        return FM_OK;
    r->copy = fm_malloc(PARTS * (size_t)floats_of(ps) * sizeof(float));
    if (!r->copy)
        rc = FM_ENOMEM;
    if (ps->stage) /* the other stages see a failure in their sends */
        return rc;
    if (rc == FM_OK && ps->comm)
        rc = ps->be->alloc(ps->be, &r->gather, (size_t)ps->total * sizeof(float));
    return ps->comm ? fm_comm_agree(ps->comm, rc) : rc;
}

/* Gathers a moment, of which each rank has its stripes. */
static fm_status gathered(const fmt_params *ps, const rooms *r, const float *own, float *host)
{
    FM_TRY(fmt_ranks_moment(ps, own, r->gather));
    return fmt_params_get_all(ps, r->gather, host);
}

static fm_status host_parts(const fmt_params *ps, const rooms *r, const float *host[PARTS])
{
    const float *const part[PARTS] = {ps->p, ps->m, ps->v};
    fm_status rc = FM_OK;

    memcpy(host, part, sizeof(part));
    for (size_t k = 0; rc == FM_OK && ps->stage && k < PARTS; k++) {
        float *to = r->copy ? r->copy + k * (size_t)ps->whole : NULL;
        rc = fmt_stage_collect(ps, part[k], k > 0, to);
        host[k] = to;
    }
    if (ps->stage)
        return rc;
    if (!r->copy)
        return ps->be->sync(ps->be);
    for (size_t k = 0; rc == FM_OK && k < PARTS; k++) {
        float *to = r->copy + k * (size_t)ps->total;
        rc = ps->comm && k > 0 ? gathered(ps, r, part[k], to) : fmt_params_get_all(ps, part[k], to);
        host[k] = to;
    }
    return rc;
}

static fm_status name_tensors(fm_trained *t, const fmt_params *ps, const float *const host[PARTS])
{
    for (size_t i = 0; i < PARTS * ps->count; i++) {
        const fmt_param *p = &ps->item[i % ps->count];
        size_t k = i / ps->count;
        t[i] = (fm_trained){.name = fm_asprintf("%c/%s", part_word[k], p->name),
                            .dtype = FM_F32,
                            .shape = p->shape,
                            .data = (uint8_t *)(uintptr_t)(host[k] + p->whole_at),
                            .bytes = p->n * sizeof(float)};
        if (!t[i].name)
            return FM_ENOMEM;
    }
    return FM_OK;
}

fm_status fmt_checkpoint_save(const fm_train_job *job, uint32_t child, const fmt_checkpoint *c,
                              const fmt_params *ps)
{
    const fm_train_checkpoints *k = job->checkpoints;
    const float *host[PARTS];
    bool writes = fm_comm_rank(ranks_of(ps)) == 0;
    bool due = k && (!writes || !k->due || k->due(k->ctx, child, c->step));

    if (k && ranks_of(ps)) { /* due() may depend on the clock, so rank 0's answer holds */
        fm_status told = fm_comm_tell(ranks_of(ps), &due, sizeof(due), 0);
        if (told < 0)
            return told;
    }
    if (!due)
        return FM_OK;
    fm_train_state s = {
        .run = c->run, .step = c->step, .tokens = c->tokens, .log = c->log, .count = 0};
    rooms room;
    fm_status rc = rooms_take(&room, ps);
    FM_THEN(rc, host_parts(ps, &room, host));
    if (rc == FM_OK && writes) {
        s.tensors = fm_calloc(PARTS * ps->count, sizeof(*s.tensors));
        rc = s.tensors ? name_tensors(s.tensors, ps, host) : FM_ENOMEM;
        s.count = PARTS * ps->count;
    }
    if (rc == FM_OK && writes)
        rc = k->save(k->ctx, child, &s);
    for (size_t i = 0; s.tensors && i < s.count; i++)
        fm_free(s.tensors[i].name); /* the bytes belong to the parameters or the copy */
    fm_free(s.tensors);
    rooms_release(&room, ps);
    return rc;
}

static const fm_trained *find_state(const fm_train_state *s, char part, const fmt_param *p)
{
    for (size_t i = 0; i < s->count; i++) {
        const fm_trained *t = &s->tensors[i];
        if (t->name[0] == part && t->name[1] == '/' && strcmp(t->name + 2, p->name) == 0)
            return t;
    }
    return NULL;
}

static fm_status put_part(fmt_params *ps, size_t k, const fm_train_state *s, float *host,
                          const char *name)
{
    float *const part[PARTS] = {ps->p, ps->m, ps->v};

    memset(host, 0, (size_t)(ps->total + ps->guest) * sizeof(float));
    for (size_t i = 0; i < ps->count; i++) {
        const fmt_param *p = &ps->item[i];
        const fm_trained *t = find_state(s, part_word[k], p);
        if (!t || t->dtype != FM_F32 || !fm_shape_eq(&t->shape, &p->shape) ||
            t->bytes != p->n * sizeof(float))
            return fm_fail(FM_ECORRUPT, "%s: its checkpoint has %s %c/%s", name,
                           t ? "another shape of" : "no", part_word[k], p->name);
        memcpy(host + p->at, t->data + p->skip * sizeof(float), (size_t)p->here * sizeof(float));
    }
    if (k == 0)
        return ps->be->upload(ps->be, part[k], host,
                              (size_t)(ps->total + ps->guest) * sizeof(float));

    fmt_stripe own;
    for (uint64_t i = 0; fmt_params_stripe(ps, i, &own); i++)
        FM_TRY(ps->be->upload(ps->be, part[k] + own.own, host + own.at,
                              (size_t)own.n * sizeof(float)));
    return FM_OK;
}

static fm_status put_state(fmt_params *ps, const fm_train_state *s, const char *name)
{
    float *host = fm_malloc((size_t)FM_MAX(ps->total + ps->guest, (uint64_t)1) * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && s->count != PARTS * ps->count)
        rc = fm_fail(FM_ECORRUPT, "%s: its checkpoint has %zu tensors, %zu belong there", name,
                     s->count, PARTS * ps->count);
    for (size_t k = 0; rc == FM_OK && k < PARTS; k++)
        rc = put_part(ps, k, s, host, name);
    fm_free(host);
    return rc;
}

/* Fails on all ranks unless all have loaded the same step. */
static fm_status same_step(fm_comm *comm, fm_status rc, uint32_t step, const char *name)
{
    uint32_t all[FM_COMM_MAX_RANKS];

    FM_THEN(rc, fm_comm_collect(comm, all, &step, sizeof(step)));
    for (uint32_t i = 1; rc == FM_OK && i < fm_comm_size(comm); i++)
        if (all[i] != all[0])
            rc = fm_fail(FM_ECONFLICT, "%s: rank %u finds a state of step %u, rank 0 of step %u",
                         name, i, all[i], all[0]);
    return rc;
}

fm_status fmt_checkpoint_load(const fm_train_job *job, uint32_t child, fmt_checkpoint *c,
                              fmt_params *ps, bool *found)
{
    const fm_train_checkpoints *k = job->checkpoints;
    fm_train_state s = {0};

    *found = false;
    if (!k || !k->load)
        return FM_OK;
    fm_status rc = k->load(k->ctx, child, &c->run, &s, found);
    if (rc == FM_OK && *found) {
        rc = put_state(ps, &s, job->name);
        if (rc == FM_OK) {
            c->step = s.step;
            c->tokens = s.tokens;
            c->log = s.log;
            s.log = NULL;
        }
    }
    if (rc < 0)
        *found = false;
    fm_train_state_release(&s);
    return ranks_of(ps) ? same_step(ranks_of(ps), rc, *found ? c->step : 0, job->name) : rc;
}

void fm_train_state_release(fm_train_state *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->tensors && i < s->count; i++) {
        fm_free(s->tensors[i].name);
        fm_free(s->tensors[i].data);
    }
    fm_free(s->tensors);
    fm_json_free(s->log);
    memset(s, 0, sizeof(*s));
}
