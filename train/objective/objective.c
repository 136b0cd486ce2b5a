/* objective.c - the common parts of all objectives: rows of examples, frozen lanes, memory. */
#include "train/objective/objective.h"
#include "train/pass/stage_pass.h"

#include "store/base/mem.h"

#include <string.h>

/* ---- examples ---- */
size_t fmt_objective_setup_seqs(fmt_seq_in *out, fmt_seq_of *of, const fm_example *e, uint32_t unit)
{
    uint32_t parts = e->parts > 1 ? e->parts : 1;
    uint32_t at = 0;

    for (uint32_t k = 0; k < parts; k++) {
        uint32_t len = parts > 1 ? e->part_len[k] : e->len;
        out[k] = (fmt_seq_in){
            .ids = e->ids + at, .labels = e->labels ? e->labels + at : NULL, .len = len};
        of[k] = (fmt_seq_of){.unit = unit, .part = k, .klass = e->klass};
        at += len;
    }
    return parts;
}

uint32_t fmt_objective_setup_parts(const fm_train_job *job)
{
    fm_objective o = job->config.objective;
    bool pairs = o == FM_OBJECTIVE_DPO || o == FM_OBJECTIVE_CONTRASTIVE;

    return job->batch_parts > 0 ? job->batch_parts : pairs ? 2 : 1;
}

uint64_t fmt_objective_setup_units(const fm_train_config *c, const fmt_seq_in *s,
                                   const fmt_seq_of *of, size_t n)
{
    bool tokens = c->objective == FM_OBJECTIVE_NEXT_TOKEN || c->objective == FM_OBJECTIVE_DISTILL;
    uint64_t units = 0;

    for (size_t i = 0; i < n; i++)
        units += tokens ? fmt_seq_labels(&s[i]) : of[i].part == 0;
    return units;
}

/* ---- how data become rows ---- */
static fm_status how_contrastive(fmt_objective_setup *g, fmt_batch_how *how, const fm_provider *p,
                                 const fm_arch *arch)
{
    static const struct {
        const char *name;
        fmi_pool_mode mode;
    } known[] = {{"mean", FMI_POOL_MEAN}, {"cls", FMI_POOL_FIRST}, {"last", FMI_POOL_LAST}};
    fmi_pooling own;
    fm_status rc = fmi_pooling_read(&own, g->job->parent, p, arch, g->job->name);
    bool found = strcmp(g->c->pooling, "auto") == 0;

    if (rc < 0)
        return rc;
    if (found && own.refused[0])
        return fm_fail(FM_EUNSUPPORTED, "%s: %s; say which with pooling=mean, cls or last",
                       g->job->name, own.refused);
    if (found && own.denses)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: the parent's vectors go through Dense modules, which do not train; say "
                       "how the states are pooled with pooling=mean, cls or last",
                       g->job->name);
    g->mode = own.mode;
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(g->c->pooling, known[i].name) == 0) {
            g->mode = known[i].mode;
            found = true;
        }
    if (!found)
        return fm_fail(FM_EINVAL, "%s: pooling '%s' is none of auto, mean, cls, last", g->job->name,
                       g->c->pooling);
    how->pick = g->mode == FMI_POOL_MEAN    ? FMT_PICK_ALL
                : g->mode == FMI_POOL_FIRST ? FMT_PICK_FIRST
                                            : FMT_PICK_LAST;
    return FM_OK;
}

fm_status fmt_objective_setup_how(fmt_objective_setup *g, fmt_batch_how *how,
                                  const fm_train_job *job, const fm_provider *p,
                                  const fm_arch *arch)
{
    fm_objective o = job->config.objective;
    bool texts = o == FM_OBJECTIVE_CLASSIFY || o == FM_OBJECTIVE_CONTRASTIVE;

    memset(g, 0, sizeof(*g));
    g->job = job;
    g->c = &job->config;
    how->whole = arch->sw.encoder;
    how->pad = arch->pad;
    if (!texts && (arch->sw.encoder || arch->headless))
        return fm_fail(FM_EUNSUPPORTED, "%s: %s has no language head; train it with objective=%s",
                       job->name, arch->family, "contrastive or classify");
    if (o == FM_OBJECTIVE_CLASSIFY)
        how->pick = FMT_PICK_CLASS;
    if (o == FM_OBJECTIVE_CONTRASTIVE)
        FM_TRY(how_contrastive(g, how, p, arch));
    if ((o == FM_OBJECTIVE_DISTILL) != (job->teacher != NULL))
        return fm_fail(FM_EINVAL, "%s: a teacher goes with objective=distill, and it needs one",
                       job->name);
    if (job->config.method == FM_METHOD_PRETRAIN && o == FM_OBJECTIVE_DPO)
        return fm_fail(FM_EINVAL, "%s: dpo needs a parent that was trained", job->name);
    return FM_OK;
}

/* ---- frozen lanes ---- */
static fm_status open_aux(fmt_objective_setup *g, const fm_model *model,
                          const fmt_objective *objective)
{
    const fm_arch *a = fm_model_arch(model), *mine = &g->lane->net->arch;
    fmt_lane *lane = &g->aux;

    if (a->vocab != mine->vocab)
        return fm_fail(FM_EINVAL,
                       "%s: the teacher has %u tokens, the parent %u; they must speak "
                       "the same vocabulary",
                       g->job->name, a->vocab, mine->vocab);
    const fmt_net *net = g->lane->net;
    if (net->staged && !fmt_same_shape(a, mine))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: over stages a teacher has the parent's architecture; leave --stages "
                       "out",
                       g->job->name);
    FM_TRY(fmt_net_init_layers(&g->aux_net, g->be, a, model, net->staged ? net->begin : 0,
                               net->staged ? net->end : a->layers));
    if (net->staged)
        fmt_stage_leave(&g->aux_net);
    *lane = (fmt_lane){.net = &g->aux_net,
                       .c = g->c,
                       .objective = objective,
                       .objective_ctx = g,
                       .most = g->lane->most};
    if (a->max_positions < lane->most.longest)
        return fm_fail(FM_ELIMIT, "%s: examples of %u tokens, the teacher has %u positions",
                       g->job->name, lane->most.longest + 1, a->max_positions);
    return fmt_same_shape(a, mine) ? FM_OK
                                   : fmt_pass_new(&g->own, g->be, &lane, 1, &lane->most, false);
}

static fm_status open_dpo(fmt_objective_setup *g, const fm_provider *p, fm_model *stem)
{
    fm_status rc = FM_OK;

    if (!stem) {
        rc = fm_model_load(&g->aux_model, g->e, g->job->parent, p, g->job->name);
        stem = g->aux_model;
    }
    return rc == FM_OK ? open_aux(g, stem, &fmt_reference) : rc;
}

static fm_status open_distill(fmt_objective_setup *g)
{
    const fm_provider *p = g->job->teacher_provider;

    if (!p)
        return fm_fail(FM_EINVAL, "%s: the teacher has no provider", g->job->name);
    FM_TRY(fm_model_load(&g->aux_model, g->e, g->job->teacher, p, "teacher"));
    return open_aux(g, g->aux_model, &fmt_teacher);
}

/* ---- memory of objectives over states ---- */
static fm_status open_contrastive(fmt_objective_setup *g)
{
    size_t rows = g->lane->most.labels, h = g->lane->net->arch.hidden;
    size_t seqs = g->lane->most.seqs;

    g->sums =
        fm_calloc(2 * seqs * h + fmt_infonce_work((uint32_t)seqs, (uint32_t)seqs, (uint32_t)h),
                  sizeof(double));
    if (!g->be->host_visible) {
        g->x = fm_calloc(rows * h, sizeof(float));
        g->dx = fm_calloc(rows * h, sizeof(float));
    }
    return g->sums && (g->be->host_visible || (g->x && g->dx)) ? FM_OK : FM_ENOMEM;
}

static fm_status open_classify(fmt_objective_setup *g)
{
    size_t rows = g->lane->most.labels, h = g->lane->net->arch.hidden;
    size_t classes = g->lane->net->outer[FMT_SCORE].out;
    void *room = NULL;
    fm_status rc = g->be->alloc(g->be, &room, rows * (2 * h + classes) * sizeof(float));

    g->room = room;
    g->host = fm_calloc(rows * classes, sizeof(float));
    return rc == FM_OK && !g->host ? FM_ENOMEM : rc;
}

fm_status fmt_objective_setup_open(fmt_objective_setup *g, fm_engine *e, const fm_provider *p,
                                   fmt_lane *lane, fm_model *stem)
{
    static const fmt_objective *const objective[] = {&fmt_next_token, &fmt_classify,
                                                     &fmt_contrastive, &fmt_dpo, &fmt_distill};

    g->e = e;
    g->be = fm_engine_backend(e);
    g->lane = lane;
    lane->objective = objective[g->c->objective];
    lane->objective_ctx = g;
    switch (g->c->objective) {
    case FM_OBJECTIVE_CLASSIFY:
        return open_classify(g);
    case FM_OBJECTIVE_CONTRASTIVE:
        return open_contrastive(g);
    case FM_OBJECTIVE_DPO:
        return open_dpo(g, p, stem);
    case FM_OBJECTIVE_DISTILL:
        if (lane->ps)
            return open_distill(g);
        /* an evaluation measures the text's loss, not the teacher's */
        lane->objective = &fmt_next_token;
        return FM_OK;
    case FM_OBJECTIVE_NEXT_TOKEN:
        break;
    }
    return FM_OK;
}

void fmt_objective_setup_release(fmt_objective_setup *g)
{
    fmt_pass_free(g->own);
    fmt_batch_release(&g->aux.batch);
    fmt_net_release(&g->aux_net);
    fm_model_close(g->aux_model);
    if (g->room)
        g->be->free(g->be, g->room);
    fm_free(g->all.vec);
    fm_free(g->all.dvec);
    fm_free(g->sums);
    fm_free(g->x);
    fm_free(g->dx);
    fm_free(g->host);
    memset(g, 0, sizeof(*g));
}

/* ---- steps ---- */
size_t fmt_objective_setup_lanes(fmt_objective_setup *g, fmt_lane *lanes[2])
{
    bool two = g->aux_net.block && !g->own;

    lanes[0] = g->lane;
    lanes[1] = two ? &g->aux : NULL;
    return two ? 2 : 1;
}

fmt_batch_how fmt_objective_setup_aux_how(const fmt_objective_setup *g)
{
    fmt_batch_how how = g->how;

    how.virt = g->aux_net.virt_kind == FMT_VIRTUAL_ROWS ? g->aux_net.virt : 0;
    how.offset = g->aux_net.virt_kind == FMT_VIRTUAL_KV ? g->aux_net.virt : 0;
    return how;
}

fm_status fmt_objective_setup_load(fmt_objective_setup *g)
{
    fmt_lane *aux = &g->aux;
    fmt_batch_how how = g->how;

    fmt_batch_clear(&aux->batch);
    for (uint32_t k = 0; how.pick == FMT_PICK_CLASS && k < g->lane->batch.labels; k++)
        g->lane->batch.label[k] = g->lane->of[g->lane->batch.which[k]].klass;
    if (!g->aux_net.block || g->lane->batch.rows == 0)
        return FM_OK;
    how = fmt_objective_setup_aux_how(g);
    fm_status rc = fmt_batch_build(&aux->batch, g->lane->in, g->lane->ins, &how);
    return rc == FM_OK && g->own ? fmt_pass_states(g->own, &aux, 1) : rc;
}
