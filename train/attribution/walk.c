/* walk.c - see walk.h. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"
#include "train/net/method.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FULL_MAX_FLOATS ((uint64_t)1 << 24) /* most floats of one gradient of a full fine-tune */
#define LANES_MAX ((size_t)8)
#define LANES_FLOATS ((uint64_t)1 << 23) /* most floats of the gradients of all lanes */

/* ---- which layers of a full fine-tune count ---- */
static bool joins(char *list, size_t room, const char *name)
{
    size_t n = strlen(list);
    return snprintf(list + n, room - n, "%s%s", n > 0 ? "," : "", name) < (int)(room - n);
}

/* Freezes matrices outside the layers (the vocabulary's) first: they are large and tell least. */
static fm_status freeze_outside(fm_train_config *c, const fm_arch *a)
{
    fm_param p;

    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        char *dot = strrchr(p.name, '.');
        if (p.layer >= 0 || !p.is_matrix || !dot)
            continue;
        *dot = '\0';
        if (!fmt_lies_in(p.name, c->freeze) && !joins(c->freeze, sizeof(c->freeze), p.name))
            return fm_fail(FM_ELIMIT, "the list of frozen modules is too long");
    }
    return FM_OK;
}

static uint64_t floats_of(const fm_arch *a, int32_t layer)
{
    uint64_t sum = 0;
    fm_param p;

    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        uint64_t n = 0;
        if (p.layer == layer && fm_shape_elems(&n, &p.shape) == FM_OK)
            sum += n;
    }
    return sum;
}

/* Takes only the last layers that the run trained, at least one. */
static fm_status bound_full(fm_train_config *c, const fm_arch *a)
{
    uint64_t inside = 0;
    int32_t first = (int32_t)a->layers;
    int32_t last = -1;

    for (int32_t l = (int32_t)a->layers - 1; l >= 0; l--) {
        uint64_t own = fmt_layer_listed(c->layers, l) ? floats_of(a, l) : 0;
        if (own == 0)
            continue;
        if (inside > 0 && inside + own > FULL_MAX_FLOATS)
            break;
        inside += own;
        last = last < 0 ? l : last;
        first = l;
    }
    bool layers_fit = first == 0 || inside + floats_of(a, first - 1) <= FULL_MAX_FLOATS;
    if (last < 0 || (layers_fit && inside + floats_of(a, -1) <= FULL_MAX_FLOATS))
        return FM_OK;
    if (!c->layers[0] || first > 0)
        (void)snprintf(c->layers, sizeof(c->layers), "%d-%d", (int)first, (int)last);
    return freeze_outside(c, a);
}

static fm_status choose_job(fmt_walk *w, bool bounded)
{
    const fm_train_job *j = w->in->job;
    fm_arch arch;
    fm_status rc = FM_OK;

    w->job = *j;
    w->job.checkpoints = NULL;
    w->job.held_out = NULL;
    w->job.held_outs = 0;
    w->job.eval_every = 0;
    w->job.recompute = false;
    if (j->config.objective == FM_OBJECTIVE_CONTRASTIVE)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a contrastive run's loss is that of a whole batch, so "
                       "its examples have no gradients of their own",
                       j->name);
    if (j->config.method != FM_METHOD_FULL || j->config.objective == FM_OBJECTIVE_CLASSIFY)
        return FM_OK;
    w->job.parent = w->in->child; /* layers that are left out have the child's values */
    rc = fm_arch_of_tree(&arch, w->job.parent, w->in->p, j->name);
    return rc == FM_OK && bounded ? bound_full(&w->job.config, &arch) : rc;
}

/* ---- workers ---- */
static void cover(fmt_pass_size *most, const fm_example *e, const fmt_batch_how *how)
{
    fmt_seq_in s[FM_EXAMPLE_PARTS];
    fmt_seq_of of[FM_EXAMPLE_PARTS];
    size_t n = fmt_objective_setup_seqs(s, of, e, 0);

    fmt_size_grow(most, s, n, how);
}

static void no_dropout(fmt_net *net)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        for (size_t t = 0; t < l->terms; t++)
            l->term[t].dropout = 0.0f;
}

static fmt_batch_how how_of_target(const fmt_walk *w, const fmt_child *ch)
{
    fmt_batch_how how = ch->how;

    if (w->job.config.objective != FM_OBJECTIVE_CLASSIFY)
        how.pick = FMT_PICK_TARGETS;
    return how;
}

/* Sizes a lane for the longest of all examples, one at a time, and for the case. */
static void set_most(fmt_walk *w, fmt_child *ch)
{
    fmt_pass_size *most = &ch->lane.most;
    fmt_batch_how how = how_of_target(w, ch);

    memset(most, 0, sizeof(*most));
    for (size_t i = 0; i < fm_dataset_count(w->job.data); i++)
        cover(most, fm_dataset_at(w->job.data, i), &ch->how);
    cover(most, w->in->wrong, &how);
    if (w->in->right)
        cover(most, w->in->right, &how);
    ch->goal.aux.most = *most;
}

static fm_status open_worker(fmt_walk *w)
{
    size_t i = w->opened++;
    fmt_child *ch = &w->worker[i];
    FM_TRY(fmt_child_open(ch, w->in->e, &w->p, &w->job, (uint32_t)i, &w->result[i]));
    set_most(w, ch);
    no_dropout(&ch->net);
    if (ch->lane.most.longest > ch->net.arch.max_positions)
        return fm_fail(FM_ELIMIT, "%s: the case has %u tokens, the model %u positions", w->job.name,
                       ch->lane.most.longest + 1, ch->net.arch.max_positions);
    return FM_OK;
}

static fm_status make_pass(fmt_walk *w)
{
    fmt_pass_size cap = {0};
    size_t n = 0;

    for (size_t i = 0; i < w->workers; i++) {
        size_t own = fmt_objective_setup_lanes(&w->worker[i].goal, w->lane + n);
        for (size_t k = 0; k < own; k++) {
            const fmt_pass_size *m = &w->lane[n + k]->most;
            cap.rows += m->rows;
            cap.labels += m->labels;
            cap.seqs += m->seqs;
            cap.longest = FM_MAX(cap.longest, m->longest);
        }
        n += own;
    }
    return fmt_pass_new(&w->pass, fm_engine_backend(w->in->e), w->lane, n, &cap, false);
}

/* ---- values ---- */
static fm_status put_everywhere(fmt_walk *w, const float *values)
{
    for (size_t i = 0; i < w->workers; i++) {
        fmt_child *ch = &w->worker[i];
        FM_TRY(fmt_params_put_all(&ch->ps, ch->ps.p, values));
        FM_TRY(fmt_net_refresh(&ch->net, &ch->ps));
    }
    return FM_OK;
}

static fm_status load_child(fmt_walk *w, fmt_params *ps)
{
    fm_buf top;
    fm_status rc = FM_OK;

    fm_buf_init(&top, FM_MAX_PATH_BYTES);
    if (fmt_method_is_adapter(w->job.config.method))
        rc = fmt_top_adapter(&top, w->in->child);
    FM_THEN(rc,
            fmt_params_load(ps, w->in->child, &w->p, top.len > 0 ? fm_buf_cstr(&top) : "", true));
    fm_buf_release(&top);
    return rc;
}

/* Loads the values before the step (seeded, or a full fine-tune's parent) and the child's. */
static fm_status load_ends(fmt_walk *w)
{
    fmt_params *ps = &w->worker[0].ps;
    bool from_parent = w->job.parent != w->in->job->parent;

    if (from_parent)
        FM_TRY(fmt_params_load(ps, w->in->job->parent, &w->p, "", false));
    FM_TRY(fmt_params_get_all(ps, ps->p, w->from));
    FM_TRY(load_child(w, ps));
    FM_TRY(fmt_params_get_all(ps, ps->p, w->to));
    if (memcmp(w->from, w->to, (size_t)w->total * sizeof(float)) == 0)
        return fm_fail(FM_EINVAL, "child and parent have the same weights: no step to explain");
    return FM_OK;
}

/* ---- points ---- */
/* 0 = before the step, 1 = the child. At the child an example that was learnt well has hardly a
 * gradient left; before the step its gradient does not yet show what the step learns. */
static const float on_the_line[FMT_WALK_LINE] = {0.1f, 0.3f, 0.5f};

static size_t picked_state(const fmt_walk *w, size_t i)
{
    return w->in->states <= FMT_WALK_STATES ? i : (i + 1) * w->in->states / FMT_WALK_STATES - 1;
}

static void set_points(fmt_walk *w)
{
    size_t states = FM_MIN(w->in->states, (size_t)FMT_WALK_STATES);
    double *weight = w->weight + FMT_WALK_LINE;
    uint32_t steps = w->worker[0].steps;
    uint32_t done = 0;
    double sum = 0.0;

    for (size_t i = 0; i < FMT_WALK_LINE; i++)
        w->weight[i] = 1.0 / FMT_WALK_LINE;
    for (size_t i = 0; i < states; i++) {
        uint32_t end = FM_MIN(w->in->state[picked_state(w, i)].step, steps);
        for (; done < end; done++)
            weight[i] += fmt_schedule_lr(&w->job.config, done, steps);
        sum += weight[i];
    }
    for (size_t i = 0; i < states; i++)
        weight[i] = sum > 0.0 ? weight[i] / sum : 1.0 / (double)states;
    w->points = FMT_WALK_LINE + states;
}

static fm_status state_values(fmt_walk *w, const fm_train_state *s)
{
    const fmt_params *ps = &w->worker[0].ps;

    memset(w->here, 0, (size_t)w->total * sizeof(float));
    for (size_t i = 0; i < ps->count; i++) {
        const fmt_param *item = &ps->item[i];
        const fm_trained *t = NULL;
        for (size_t k = 0; !t && k < s->count; k++)
            if (strncmp(s->tensors[k].name, "p/", 2) == 0 &&
                strcmp(s->tensors[k].name + 2, item->name) == 0)
                t = &s->tensors[k];
        if (!t || t->dtype != FM_F32 || t->bytes != item->n * sizeof(float))
            return fm_fail(FM_ECORRUPT, "%s: the checkpoint after step %u has no p/%s of its shape",
                           w->job.name, s->step, item->name);
        memcpy(w->here + item->at, t->data, (size_t)t->bytes);
    }
    return FM_OK;
}

fm_status fmt_walk_stand(fmt_walk *w, size_t point)
{
    if (point >= w->points) {
        memcpy(w->here, w->to, (size_t)w->total * sizeof(float));
    } else if (point >= FMT_WALK_LINE) {
        FM_TRY(state_values(w, &w->in->state[picked_state(w, point - FMT_WALK_LINE)]));
    } else {
        for (uint64_t i = 0; i < w->total; i++)
            w->here[i] = fmaf(on_the_line[point], w->to[i] - w->from[i], w->from[i]);
    }
    return put_everywhere(w, w->here);
}

fm_status fmt_walk_put(fmt_walk *w, const fm_train_result *r)
{
    fmt_params *ps = &w->worker[0].ps;
    fm_status rc = FM_OK;

    for (size_t i = 0; i < ps->count && rc == FM_OK; i++) {
        const fm_trained *t = NULL;
        for (size_t k = 0; !t && k < r->count; k++)
            if (strcmp(r->tensors[k].name, ps->item[i].name) == 0)
                t = &r->tensors[k];
        if (!t || !fm_shape_eq(&t->shape, &ps->item[i].shape))
            return fm_fail(FM_EBASE, "%s: the run made no %s", w->job.name, ps->item[i].name);
        float *host = fm_malloc((size_t)ps->item[i].n * sizeof(float));
        rc = host ? fm_to_f32(host, t->dtype, t->data, ps->item[i].n) : FM_ENOMEM;
        FM_THEN(rc, fmt_params_put(ps, (int32_t)i, host));
        fm_free(host);
    }
    return rc == FM_OK ? fmt_net_refresh(&w->worker[0].net, ps) : rc;
}

/* ---- open, close ---- */
static fm_status make_room(fmt_walk *w)
{
    float **part[] = {&w->from, &w->to, &w->here, &w->host};

    w->total = w->worker[0].ps.total;
    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        if (!(*part[i] = fm_calloc((size_t)w->total, sizeof(float))))
            return FM_ENOMEM;
    return FM_OK;
}

fm_status fmt_walk_open(fmt_walk *w, const fm_attribution_in *in, bool bounded)
{
    memset(w, 0, sizeof(*w));
    w->in = in;
    w->p = *in->p;
    fm_status rc = fm_engine_ranks(in->e) > 1
                       ? fm_fail(FM_EUNSUPPORTED, "models that are split over ranks have no "
                                                  "gradients; use one rank")
                       : choose_job(w, bounded);
    w->worker = fm_calloc(LANES_MAX, sizeof(*w->worker));
    w->result = fm_calloc(LANES_MAX, sizeof(*w->result));
    w->lane = fm_calloc(2 * LANES_MAX, sizeof(fmt_lane *));
    if (rc == FM_OK && !(w->worker && w->result && w->lane))
        rc = FM_ENOMEM;
    FM_THEN(rc, open_worker(w));
    FM_THEN(rc, make_room(w));
    if (rc < 0)
        return rc;
    if (!w->total)
        return fm_fail(FM_EUNSUPPORTED,
                       "the step trained nothing that gradients could be taken of");
    size_t fit = (size_t)(LANES_FLOATS / w->total);
    w->workers = FM_MAX((size_t)1, FM_MIN(fit, LANES_MAX));
    while (rc == FM_OK && w->opened < w->workers)
        rc = open_worker(w);
    FM_THEN(rc, make_pass(w));
    w->objective = w->worker[0].lane.objective;
    w->how = w->worker[0].how;
    if (rc == FM_OK)
        set_points(w);
    return rc == FM_OK ? load_ends(w) : rc;
}

void fmt_walk_close(fmt_walk *w)
{
    fmt_pass_free(w->pass);
    for (size_t i = 0; i < w->opened; i++)
        if (w->worker[i].e)
            fmt_child_release(&w->worker[i]);
    fm_free(w->worker);
    fm_free(w->result);
    fm_free(w->lane);
    fm_free(w->from);
    fm_free(w->to);
    fm_free(w->here);
    fm_free(w->host);
    memset(w, 0, sizeof(*w));
}

/* ---- gradients ---- */
static fm_status load_example(fmt_child *ch, const fm_example *e, const fmt_batch_how *how)
{
    fmt_lane *lane = &ch->lane;
    FM_TRY(fm_grow(&ch->seq, &ch->seq_cap, FM_EXAMPLE_PARTS, sizeof(*ch->seq)));

    FM_TRY(fm_grow(&ch->of, &ch->of_cap, FM_EXAMPLE_PARTS, sizeof(*ch->of)));
    lane->ins = fmt_objective_setup_seqs(ch->seq, ch->of, e, 0);
    lane->in = ch->seq;
    lane->of = ch->of;
    lane->dloss = 1.0f;
    lane->loss = 0.0;
    lane->step = 0;
    lane->row_base = 0;
    FM_TRY(fmt_batch_build(&lane->batch, lane->in, lane->ins, how));
    FM_TRY(fmt_objective_setup_load(&ch->goal));
    fmt_params_zero_grad(&ch->ps);
    fmt_fold_zero(&ch->net, &ch->ps);
    return FM_OK;
}

fm_status fmt_walk_each(fmt_walk *w, const size_t *which, size_t n, fmt_gradient_fn take, void *ctx)
{
    fm_status rc = FM_OK;

    for (size_t at = 0; at < n && rc == FM_OK; at += w->workers) {
        size_t now = FM_MIN(w->workers, n - at);
        size_t lanes = 0;
        for (size_t k = 0; k < now && rc == FM_OK; k++) {
            fmt_child *ch = &w->worker[k];
            size_t i = which ? which[at + k] : at + k;
            rc = load_example(ch, fm_dataset_at(w->job.data, i), &w->how);
            if (rc == FM_OK && ch->lane.batch.rows > 0)
                lanes += fmt_objective_setup_lanes(&ch->goal, w->lane + lanes);
        }
        if (rc == FM_OK && lanes > 0)
            rc = fmt_pass_run(w->pass, w->lane, lanes);
        for (size_t k = 0; k < now && rc == FM_OK; k++) {
            rc = fmt_fold_gather(&w->worker[k].net, &w->worker[k].ps);
            FM_THEN(rc, fmt_params_get_all(&w->worker[k].ps, w->worker[k].ps.g, w->host));
            FM_THEN(rc, take(ctx, at + k, w->host));
        }
        w->done += now;
        if (w->in->progress)
            w->in->progress(w->in->ctx, w->done, w->of);
    }
    return rc;
}

/* Runs one text of the case: *loss is a sum over its targets; its gradient is the worker's. */
static fm_status run_text(fmt_walk *w, const fm_example *e, double *loss)
{
    fmt_child *ch = &w->worker[0];
    fmt_batch_how how = how_of_target(w, ch);
    fmt_lane *lane = &ch->lane;
    bool classify = w->job.config.objective == FM_OBJECTIVE_CLASSIFY;

    ch->goal.how = how;
    lane->objective = classify ? w->objective : &fmt_next_token;
    fm_status rc = load_example(ch, e, &how);
    if (rc == FM_OK && lane->batch.labels == 0)
        rc = fm_fail(FM_EINVAL, "the answer to explain has no token that counts");
    FM_THEN(rc, fmt_pass_run(w->pass, &lane, 1));
    FM_THEN(rc, fmt_fold_gather(&ch->net, &ch->ps));
    *loss = lane->loss;
    lane->objective = w->objective;
    ch->goal.how = w->how;
    return rc;
}

fm_status fmt_walk_target(fmt_walk *w, float *g)
{
    double loss;
    fm_status rc = run_text(w, w->in->wrong, &loss);

    FM_THEN(rc, fmt_params_get_all(&w->worker[0].ps, w->worker[0].ps.g, g));
    if (rc < 0 || !w->in->right)
        return rc;
    rc = run_text(w, w->in->right, &loss);
    FM_THEN(rc, fmt_params_get_all(&w->worker[0].ps, w->worker[0].ps.g, w->host));
    for (uint64_t i = 0; rc == FM_OK && i < w->total; i++)
        g[i] -= w->host[i];
    return rc;
}

fm_status fmt_walk_margin(fmt_walk *w, double *margin)
{
    double wrong = 0.0;
    double right = 0.0;
    fm_status rc = run_text(w, w->in->wrong, &wrong);

    if (rc == FM_OK && w->in->right)
        rc = run_text(w, w->in->right, &right);
    *margin = right - wrong;
    return rc;
}
