/* child.c - one job from settings to result; run.c takes the steps of all children together. */
#include "train/run/child.h"
#include "train/net/method.h"

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "train/data/dataset.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIVERGE_STEPS 8u
#define DIVERGED 3.0

/* ---- data ---- */
static fm_status exact_seqs(fmt_child *ch, uint32_t step)
{
    const fm_train_job *j = ch->job;
    uint32_t t = ch->c->max_tokens;

    uint32_t parts = fmt_objective_setup_parts(j);

    ch->seqs = (size_t)ch->c->batch * ch->c->accumulate;
    ch->micros = ch->c->accumulate;
    for (size_t i = 0; i < ch->seqs; i++) {
        size_t at = ((size_t)step * ch->seqs + i) * t;
        uint32_t len = t;
        while (j->batch_mask && len > 0 && j->batch_mask[at + len - 1] == 0)
            len--;
        for (uint32_t k = 0; j->batch_mask && k < len; k++)
            if (j->batch_mask[at + k] == 0)
                return fm_fail(FM_EUNSUPPORTED,
                               "%s: a batch is padded on the left or inside; pad on the right",
                               j->name);
        ch->seq[i] = (fmt_seq_in){j->batch_ids + at, j->batch_labels + at, len};
        ch->of[i] = (fmt_seq_of){
            .unit = (uint32_t)i / parts, .part = (uint32_t)i % parts, .klass = j->batch_labels[at]};
    }
    return FM_OK;
}

static fm_status data_seqs(fmt_child *ch, uint32_t step)
{
    const uint32_t *ends = NULL;
    fm_status rc = fmt_order_step(ch->order, step, &ch->picks, &ch->pick_count, &ends, &ch->micros);
    uint32_t i = 0;

    FM_THEN(rc,
            fm_grow(&ch->seq, &ch->seq_cap, ch->pick_count * FM_EXAMPLE_PARTS, sizeof(*ch->seq)));
    FM_THEN(rc, fm_grow(&ch->of, &ch->of_cap, ch->pick_count * FM_EXAMPLE_PARTS, sizeof(*ch->of)));
    FM_THEN(rc, fm_grow(&ch->ends, &ch->ends_cap, ch->micros, sizeof(*ch->ends)));
    ch->seqs = 0;
    for (size_t k = 0; rc == FM_OK && k < ch->micros; k++) {
        for (; i < ends[k]; i++)
            ch->seqs += fmt_objective_setup_seqs(ch->seq + ch->seqs, ch->of + ch->seqs,
                                                 fm_dataset_at(ch->job->data, ch->picks[i]), i);
        ch->ends[k] = (uint32_t)ch->seqs;
    }
    return rc;
}

fm_status fmt_child_load_step(fmt_child *ch, uint32_t step)
{
    if (ch->loaded == (uint64_t)step + 1)
        return FM_OK;
    ch->loaded = 0;
    FM_TRY(ch->order ? data_seqs(ch, step) : exact_seqs(ch, step));
    ch->loaded = (uint64_t)step + 1;
    return FM_OK;
}

fm_status fmt_child_look_ahead(fmt_child *ch)
{
    uint32_t next = ch->state.step + 1;

    return next < ch->steps ? fmt_child_load_step(ch, next) : FM_OK;
}

void fmt_child_part(const fmt_child *ch, size_t k, uint32_t s, size_t *begin, size_t *end)
{
    size_t at = k > 0 ? ch->ends[k - 1] : 0;
    size_t last = ch->ends[k];
    uint32_t count = ch->c->shards;

    *begin = at;
    *end = last;
    if (count == 1 || at == last)
        return;
    uint64_t first = ch->of[at].unit;
    uint64_t units = (uint64_t)ch->of[last - 1].unit + 1 - first;
    uint64_t from = first + units * s / count;
    uint64_t to = first + units * (s + 1) / count;
    while (*begin < last && ch->of[*begin].unit < from)
        (*begin)++;
    for (*end = *begin; *end < last && ch->of[*end].unit < to;)
        (*end)++;
}

/* Rows of the shards before this one; dropout numbers rows by it. */
static uint64_t rows_before(const fmt_child *ch, uint32_t shard)
{
    uint64_t rows = 0;

    for (uint32_t s = 0; s < shard; s++)
        for (size_t k = 0; k < ch->micros; k++) {
            size_t begin, end;
            fmt_child_part(ch, k, s, &begin, &end);
            for (size_t i = begin; i < end; i++)
                rows += fmt_seq_rows(&ch->seq[i], &ch->how) + (uint64_t)ch->how.virt;
        }
    return rows;
}

/* Finds the largest micro-batch of the whole run, so that memory is taken once. */
static fm_status measure(fmt_child *ch)
{
    fm_status rc = FM_OK;

    for (uint32_t s = 0; s < ch->steps && rc == FM_OK; s++) {
        rc = fmt_child_load_step(ch, s);
        uint64_t labels = 0;
        for (size_t i = 0; rc == FM_OK && i < ch->seqs; i++)
            labels += fmt_seq_picked(&ch->seq[i], &ch->how);
        ch->step_labels = FM_MAX(ch->step_labels, labels);
        ch->most_micros = FM_MAX(ch->most_micros, ch->micros);
        for (size_t i = 0; rc == FM_OK && i < ch->micros * ch->c->shards; i++) {
            size_t begin, end;
            fmt_child_part(ch, i / ch->c->shards, (uint32_t)(i % ch->c->shards), &begin, &end);
            fmt_size_grow(&ch->lane.most, ch->seq + begin, end - begin, &ch->how);
        }
    }
    if (rc == FM_OK && ch->lane.most.labels == 0)
        rc = fm_fail(FM_EINVAL, "%s: no token of the data counts as a target", ch->job->name);
    ch->goal.how = ch->how;
    return rc;
}

static fm_status open_data(fmt_child *ch)
{
    const fm_train_config *c = ch->c;
    size_t per_step = (size_t)c->batch * c->accumulate;

    if (ch->job->data) {
        fm_status rc = fmt_order_new(&ch->order, c, ch->job->data);
        ch->steps = rc == FM_OK ? fmt_order_steps(ch->order) : 0;
        return rc;
    }
    ch->steps = fmt_schedule_steps(c, 0);
    if (c->batch % fmt_objective_setup_parts(ch->job) != 0)
        return fm_fail(FM_EINVAL, "%s: %u rows of a batch are no whole examples of %u texts",
                       ch->job->name, c->batch, fmt_objective_setup_parts(ch->job));
    FM_TRY(fm_grow(&ch->seq, &ch->seq_cap, per_step, sizeof(*ch->seq)));
    FM_TRY(fm_grow(&ch->of, &ch->of_cap, per_step, sizeof(*ch->of)));
    FM_TRY(fm_grow(&ch->ends, &ch->ends_cap, c->accumulate, sizeof(*ch->ends)));
    for (uint32_t k = 0; k < c->accumulate; k++)
        ch->ends[k] = (k + 1) * c->batch;
    return FM_OK;
}

/* ---- what trains ---- */
static fm_status declare(fmt_child *ch, const fmt_method *m)
{
    FM_TRY(fmt_method_declare(&ch->net, &ch->ps, m, &ch->adapter_config));

    if (ch->fresh.tree)
        FM_TRY(fmt_fresh_declare(&ch->fresh, &ch->net, &ch->ps, ch->c, ch->stem));
    fmt_virtual_how(&ch->net, &ch->how);
    FM_TRY(measure(ch));
    if (ch->lane.most.longest > ch->net.arch.max_positions)
        return fm_fail(FM_ELIMIT,
                       "%s: examples of %u tokens, the model has %u positions; lower "
                       "max_tokens",
                       ch->job->name, ch->lane.most.longest + 1, ch->net.arch.max_positions);
    return FM_OK;
}

static fm_status build(fmt_child *ch)
{
    fm_backend *be = fm_engine_backend(ch->e);
    const fm_train_job *j = ch->job;
    const fmt_method m = {ch->c, j->parent, ch->p, j->init, j->init_provider};
    fm_comm *comm = ch->stage ? ch->stage->group : fm_engine_batch_ranks(ch->e);
    fm_arch arch;
    fm_status rc = fm_arch_of_tree(&arch, j->parent, ch->p, j->name);

    if (rc == FM_OK && ch->stage)
        rc = fmt_stage_split(ch->stage, &arch, j->name);
    ch->how.vocab = arch.vocab;
    FM_THEN(rc, fmt_objective_setup_how(&ch->goal, &ch->how, j, ch->p, &arch));
    if (rc == FM_OK && ch->how.pick != FMT_PICK_TARGETS && !arch.tied)
        arch.headless = true; /* no text is predicted, so the head neither trains nor decays */
    if (rc == FM_OK && fmt_method_needs_stem(ch->c))
        rc = fm_model_load(&ch->stem, ch->e, j->parent, ch->p, j->name);
    const uint32_t all[] = {0, arch.layers};
    const uint32_t *layers = ch->stage ? ch->stage->split.begin + ch->stage->mine : all;
    FM_THEN(rc, fmt_net_init_layers(&ch->net, be, &arch, ch->stem, layers[0], layers[1]));
    if (rc == FM_OK && !ch->stem)
        rc = fmt_net_fixed(&ch->net, j->parent, ch->p, j->name);
    FM_THEN(rc, declare(ch, &m));
    if (rc == FM_OK && ch->stage)
        rc = fmt_stage_keep(ch->stage, &ch->net, &ch->ps);
    FM_THEN(rc, fmt_params_share(&ch->ps, ch->c, comm, be));
    FM_THEN(rc, fmt_params_alloc(&ch->ps, be, true));
    FM_THEN(rc, fmt_shards_open(&ch->shards, ch->c, comm, &ch->ps));
    FM_THEN(rc, fmt_net_bind(&ch->net, &ch->ps, true));
    FM_THEN(rc, fmt_method_fill(&ch->net, &ch->ps, &m));
    FM_THEN(rc, fmt_objective_setup_open(&ch->goal, ch->e, ch->p, &ch->lane, ch->stem));
    return rc == FM_OK && ch->job->held_outs ? fmt_eval_open(&ch->eval, ch) : rc;
}

fm_status fmt_child_open(fmt_child *ch, fm_engine *e, const fm_provider *p, const fm_train_job *job,
                         uint32_t number, fm_train_result *result)
{
    return fmt_child_open_on(ch, e, p, job, number, result, NULL);
}

fm_status fmt_child_open_on(fmt_child *ch, fm_engine *e, const fm_provider *p,
                            const fm_train_job *job, uint32_t number, fm_train_result *result,
                            fmt_stage *stage)
{
    memset(ch, 0, sizeof(*ch));
    ch->e = e;
    ch->stage = stage;
    ch->p = p;
    ch->job = job;
    ch->c = &job->config;
    ch->number = number;
    ch->result = result;
    ch->lane.net = &ch->net;
    ch->lane.ps = &ch->ps;
    ch->lane.c = ch->c;
    fm_status rc = FM_OK;
    if (ch->c->objective == FM_OBJECTIVE_CLASSIFY) {
        ch->own_job = *job;
        rc = fmt_fresh_head(&ch->fresh, &ch->own_job, &ch->own_p, p);
        ch->job = &ch->own_job;
        ch->p = &ch->own_p;
    }
    FM_THEN(rc, open_data(ch));
    if (rc == FM_OK && ch->steps == 0)
        rc = fm_fail(FM_EINVAL, "%s: training option steps must be at least 1 here", job->name);
    return rc == FM_OK ? build(ch) : rc;
}

void fmt_child_release(fmt_child *ch)
{
    fm_backend *be = fm_engine_backend(ch->e);

    fmt_eval_free(ch->eval);
    fmt_objective_setup_release(&ch->goal);
    fmt_batch_release(&ch->lane.batch);
    if (ch->lane.mem)
        be->free(be, ch->lane.mem);
    fmt_shards_release(&ch->shards, be);
    fmt_params_release(&ch->ps);
    fmt_net_release(&ch->net);
    fmt_order_free(ch->order);
    fm_json_free(ch->state.log);
    fm_json_free(ch->adapter_config);
    fm_free(ch->seq);
    fm_free(ch->of);
    fm_free(ch->ends);
    fm_model_close(ch->stem);
    fmt_fresh_release(&ch->fresh);
}

/* ---- the digest that names a checkpoint ---- */
static fm_status hash_data(const fmt_child *ch, fm_hasher *h)
{
    const fm_train_job *j = ch->job;
    size_t n = (size_t)ch->c->batch * ch->c->accumulate * ch->c->max_tokens * ch->steps;

    if (!j->data) {
        FM_TRY(fm_hasher_update(h, j->batch_ids, n * sizeof(int32_t)));
        FM_TRY(fm_hasher_update(h, j->batch_labels, n * sizeof(int32_t)));
        FM_TRY(fm_hasher_update(h, &j->batch_parts, sizeof(j->batch_parts)));
        if (j->batch_mask)
            FM_TRY(fm_hasher_update(h, j->batch_mask, n * sizeof(int32_t)));
        return FM_OK;
    }
    return fmt_dataset_hash(j->data, h);
}

static fm_status hash_tree(fm_hasher *h, const fm_tree *tree)
{
    static const char *const skip[] = {"suites/", "source/", "README.md", "recipe.json", NULL};
    fm_digest d = {{0}};
    FM_TRY(tree ? fm_tree_digest(&d, tree, skip) : FM_OK);
    return fm_hasher_update(h, d.b, FM_DIGEST_BYTES);
}

static fm_status run_digest(fmt_child *ch)
{
    fm_hasher *h = NULL;
    fm_buf text;
    fm_json *config = fm_train_config_json(ch->c);
    const char *kernels = fm_engine_kernel_class(ch->e);
    fm_status rc = config ? fm_hasher_new(&h) : FM_ENOMEM;

    fm_buf_init(&text, 0);
    FM_THEN(rc, fm_json_write(&text, config, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_hasher_update(h, text.data, text.len));
    FM_THEN(rc, fm_hasher_update(h, kernels, strlen(kernels) + 1));
    FM_THEN(rc, hash_tree(h, ch->job->parent));
    FM_THEN(rc, hash_tree(h, ch->job->init));
    FM_THEN(rc, hash_tree(h, ch->job->teacher));
    FM_THEN(rc, hash_data(ch, h));
    FM_THEN(rc, fm_hasher_final(h, &ch->state.run));
    fm_hasher_free(h);
    fm_buf_release(&text);
    fm_json_free(config);
    return rc;
}

fm_status fmt_child_save(fmt_child *ch)
{
    return fmt_checkpoint_save(ch->job, ch->number, &ch->state, &ch->ps);
}

/* ---- steps ---- */
fm_status fmt_child_begin_step(fmt_child *ch)
{
    fm_status rc = fmt_child_load_step(ch, ch->state.step);

    ch->targets = 0;
    ch->shard = 0;
    ch->loss = 0.0;
    ch->tokens = 0;
    ch->lane.row_base = 0;
    ch->lane.step = ch->state.step;
    ch->goal.all.given = false;
    for (size_t i = 0; rc == FM_OK && i < ch->seqs; i++)
        ch->targets += fmt_objective_setup_units(ch->c, &ch->seq[i], &ch->of[i], 1);
    ch->lane.dloss = ch->targets > 0 ? (float)(1.0 / (double)ch->targets) : 0.0f;
    if (rc == FM_OK) {
        fmt_params_zero_grad(&ch->ps);
        fmt_fold_zero(&ch->net, &ch->ps);
    }
    return rc;
}

void fmt_child_begin_shard(fmt_child *ch, uint32_t s)
{
    ch->shard = s;
    /* the gathered loss is that of all shards */
    ch->loss = ch->goal.all.given && s == 0 ? ch->goal.all.loss : 0.0;
    ch->tokens = 0;
    ch->lane.later = &ch->shards.sum[s].loss;
    ch->lane.row_base = rows_before(ch, s);
}

fm_status fmt_child_end_shard(fmt_child *ch, uint32_t i)
{
    const fmt_shard_sum sum = {.loss = ch->loss, .tokens = ch->tokens};
    FM_TRY(fmt_fold_gather(&ch->net, &ch->ps));

    fmt_shards_keep(&ch->shards, &ch->ps, i, sum);
    return FM_OK;
}

fm_status fmt_child_total(fmt_child *ch)
{
    fmt_shard_sum all;
    fm_status rc = fmt_shards_total(&ch->shards, &all);

    if (rc == FM_OK && ch->stage)
        rc = fmt_stage_tell(ch->stage, &all, sizeof(all));
    ch->loss = all.loss;
    ch->state.tokens += all.tokens;
    ch->fresh_tokens += all.tokens;
    return rc;
}

fm_status fmt_child_load_micro(fmt_child *ch, size_t k)
{
    size_t begin, end;

    fmt_batch_clear(&ch->lane.batch);
    if (k >= ch->micros || ch->targets == 0)
        return FM_OK;
    fmt_child_part(ch, k, ch->shard, &begin, &end);
    ch->lane.in = ch->seq + begin;
    ch->lane.of = ch->of + begin;
    ch->lane.ins = end - begin;
    ch->goal.all.first = begin;
    if (begin == end)
        return FM_OK;
    FM_TRY(fmt_batch_build(&ch->lane.batch, ch->lane.in, ch->lane.ins, &ch->how));
    return fmt_objective_setup_load(&ch->goal);
}

void fmt_child_end_micro(fmt_child *ch)
{
    ch->loss += ch->lane.loss;
    ch->lane.loss = 0.0;
    ch->lane.row_base += ch->lane.batch.rows;
    ch->tokens += ch->lane.batch.tokens;
}

static fm_status log_evaluation(fm_json *o, const fm_evaluation *ev)
{
    FM_TRY(fm_json_set(o, "eval_loss", fm_json_new_real(ev->loss)));

    if (ev->accuracy < 0.0)
        FM_TRY(fm_json_set(o, "eval_perplexity", fm_json_new_real(fm_exp(ev->loss))));
    else
        FM_TRY(fm_json_set(o, "eval_accuracy", fm_json_new_real(ev->accuracy)));
    return FM_OK;
}

static fm_status log_step(fmt_child *ch, const fm_train_progress *p)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "step", fm_json_new_int((int64_t)p->step)) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "loss", fm_json_new_real(p->loss)));
    FM_THEN(rc, fm_json_set(o, "grad_norm", fm_json_new_real(p->grad_norm)));
    FM_THEN(rc, fm_json_set(o, "lr", fm_json_new_real(p->lr)));
    if (rc == FM_OK && p->evaluated)
        rc = log_evaluation(o, &p->held_out);
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    return fm_json_push(ch->state.log, o);
}

/* Whether what is held out is evaluated after the steps taken so far. */
static bool evaluates(const fmt_child *ch)
{
    uint32_t every = ch->job->eval_every, step = ch->state.step;

    return ch->eval && step > 0 && (step == ch->steps || (every > 0 && step % every == 0));
}

/* Evaluates after the last step of a state that was kept when the evaluation was stopped. */
static fm_status evaluate_late(fmt_child *ch)
{
    size_t steps = fm_json_count(ch->state.log);
    const fm_json *last = steps > 0 ? fm_json_at(ch->state.log, steps - 1) : NULL;
    fm_evaluation ev;

    if (!evaluates(ch) || !last || fm_json_get(last, "eval_loss"))
        return FM_OK;
    FM_TRY(fmt_eval_run(ch->eval, &ev));
    fm_json *entry = fm_json_ref(last);
    fm_status rc = log_evaluation(entry, &ev);
    fm_json_free(entry);
    return rc;
}

fm_status fmt_child_resume(fmt_child *ch)
{
    bool found = false;
    fm_status rc = ch->job->checkpoints ? run_digest(ch) : FM_OK;

    FM_THEN(rc, fmt_checkpoint_load(ch->job, ch->number, &ch->state, &ch->ps, &found));
    if (rc == FM_OK && !ch->state.log) {
        ch->state.log = fm_json_new_array();
        rc = ch->state.log ? FM_OK : FM_ENOMEM;
    }
    ch->at_work = ch->state.step < ch->steps;
    FM_THEN(rc, fmt_net_refresh(&ch->net, &ch->ps));
    return rc == FM_OK && found ? evaluate_late(ch) : rc;
}

/* Whether the run has diverged: the mean loss of the last steps is above DIVERGED times the loss
 * before the first update, and 1 nat more. Read from the log, so that a resumed run ends alike. */
static bool diverged(const fmt_child *ch, double *first, double *last)
{
    size_t n = fm_json_count(ch->state.log);

    *first = *last = 0.0;
    if (n <= DIVERGE_STEPS)
        return false;
    *first = fm_json_real(fm_json_get(fm_json_at(ch->state.log, 0), "loss"), 0.0);
    for (size_t i = 0; i < DIVERGE_STEPS; i++)
        *last += fm_json_real(fm_json_get(fm_json_at(ch->state.log, n - 1 - i), "loss"), 0.0);
    *last /= DIVERGE_STEPS;
    return *last > DIVERGED * *first + 1.0;
}

/* The parameter on this rank with the largest gradient; *most: the sum of its squares. */
static size_t largest_here(const fmt_child *ch, const float *host, double *most)
{
    size_t at = 0;

    *most = -1.0;
    for (size_t i = 0; i < ch->ps.count; i++) {
        const fmt_param *p = &ch->ps.item[i];
        double sum = 0.0;
        if (p->here == 0 || p->at >= ch->ps.total)
            continue;
        for (uint64_t k = 0; k < p->here; k++)
            sum += (double)host[p->at + k] * (double)host[p->at + k];
        at = sum > *most ? i : at;
        *most = FM_MAX(*most, sum);
    }
    return at;
}

/* The largest of all ranks, of equals the first. */
static fm_status largest_of_ranks(const fmt_child *ch, size_t *at, double most)
{
    const struct said {
        double most;
        uint64_t at;
    } mine = {most, *at};
    struct said all[FM_COMM_MAX_RANKS];
    FM_TRY(fm_comm_collect(ch->stage->all, all, &mine, sizeof(mine)));

    for (uint32_t r = 0; r < fm_comm_size(ch->stage->all); r++)
        if (all[r].most > most || (!(all[r].most < most) && all[r].at < *at)) {
            most = all[r].most;
            *at = (size_t)all[r].at;
        }
    return FM_OK;
}

static fm_status fail_diverged(fmt_child *ch, uint32_t step, double first, double last)
{
    float *host = fm_malloc((size_t)FM_MAX(ch->ps.total, (uint64_t)1) * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && ch->ps.comm)
        rc = fmt_ranks_gather(&ch->ps, ch->ps.g);
    FM_THEN(rc, fmt_params_get_all(&ch->ps, ch->ps.g, host));
    double most = -1.0;
    size_t at = rc == FM_OK ? largest_here(ch, host, &most) : 0;
    fm_free(host);
    if (rc == FM_OK && ch->stage)
        rc = largest_of_ranks(ch, &at, most);
    if (rc < 0)
        return rc;
    char *why = fm_asprintf("%s: step %u: diverged: the mean loss of the last %u steps is %.4g, of "
                            "the first step %.4g; the largest gradient is that of %s; lower lr",
                            ch->job->name, step, DIVERGE_STEPS, last, first, ch->ps.item[at].name);
    if (!why)
        return FM_ENOMEM;
    fmt_child_fail(ch, why);
    return FM_OK;
}

fm_status fmt_child_end_step(fmt_child *ch, double norm, fm_train_progress *p, bool *broken)
{
    uint32_t step = ch->state.step;
    fm_status rc = FM_OK;

    *broken = false;
    p->grad_norm = norm;
    p->loss = ch->targets > 0 ? ch->loss / (double)ch->targets : 0.0;
    p->child = ch->number;
    p->step = step;
    p->steps = ch->steps;
    p->lr = fmt_schedule_lr(ch->c, step, ch->steps);
    if (!isfinite(p->loss) || !isfinite(p->grad_norm)) {
        *broken = true;
        return FM_OK;
    }
    rc = fmt_params_step(&ch->ps, ch->c, p->lr, (uint64_t)step + 1,
                         fmt_clip_scale(p->grad_norm, ch->c->clip));
    FM_THEN(rc, fmt_net_refresh(&ch->net, &ch->ps));
    ch->state.step++;
    p->evaluated = evaluates(ch);
    if (rc == FM_OK && p->evaluated)
        rc = fmt_eval_run(ch->eval, &p->held_out);
    if (rc == FM_ECANCELLED) { /* fmt_child_resume makes up for it */
        p->evaluated = false;
        FM_TRY(log_step(ch, p));
        return rc;
    }
    FM_THEN(rc, log_step(ch, p));
    ch->at_work = ch->state.step < ch->steps;
    double first;
    double last;
    *broken = rc == FM_OK && diverged(ch, &first, &last);
    return *broken ? fail_diverged(ch, step, first, last) : rc;
}

fm_status fmt_child_take_result(fmt_child *ch)
{
    bool adapter = ch->adapter_config != NULL;
    fm_train_result *out = ch->result;
    fm_status rc =
        fmt_params_result(&ch->ps, ch->ps.p, adapter ? FM_F32 : ch->c->dtype, ch->job->parent, out);

    if (rc == FM_OK && adapter && out->tensors)
        out->adapter_config = fm_json_ref(ch->adapter_config);
    return rc == FM_OK && ch->fresh.tree ? fmt_fresh_result(&ch->fresh, &ch->net, out) : rc;
}

void fmt_child_fail(fmt_child *ch, char *why)
{
    ch->at_work = false;
    ch->result->failed = FM_EINVAL;
    ch->result->why = why;
}
