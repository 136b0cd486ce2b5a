/* run.c - training jobs: what trains, in which order, step by step, to results.
 *
 * LoRA children of one parent share its weights through the engine's cache: the parent is loaded
 * once and stays for all of them. A full fine-tune holds its own copy of everything and needs no
 * loaded model at all. */
#include "train/internal.h"

#include "store/base/mem.h"
#include "store/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct run { /* one job at work */
    fm_engine *e;
    const fm_provider *p;
    const fm_train_job *job;
    const fm_train_config *c;
    uint32_t child;
    uint32_t steps;
    uint64_t examples; /* to be seen in all; 0 = steps decide */
    fmi_net net;
    fmi_params ps;
    fmi_pass *pass;
    fmi_seq_in *seq; /* [batch * accumulate] of the step in hand */
    size_t seqs;
    uint32_t *order; /* of the epoch in hand */
    uint64_t order_epoch;
    uint64_t order_stream;
    fmi_checkpoint state;
    fm_json *adapter_config; /* of init, or NULL */
    uint64_t fresh_tokens;   /* since start or resume, for the rate */
    double started;
} run;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- data ---- */
static fm_status exact_seqs(run *r, uint32_t step)
{
    const fm_train_job *j = r->job;
    uint32_t t = r->c->max_tokens;

    r->seqs = (size_t)r->c->batch * r->c->accumulate;
    for (size_t i = 0; i < r->seqs; i++) {
        size_t at = ((size_t)step * r->seqs + i) * t;
        uint32_t len = t;
        while (j->batch_mask && len > 0 && j->batch_mask[at + len - 1] == 0)
            len--;
        for (uint32_t k = 0; j->batch_mask && k < len; k++)
            if (j->batch_mask[at + k] == 0)
                return fm_fail(FM_EUNSUPPORTED,
                               "%s: a batch is padded on the left or inside; pad on the right",
                               j->name);
        r->seq[i] = (fmi_seq_in){j->batch_ids + at, j->batch_labels + at, len};
    }
    return FM_OK;
}

static fm_status seek_epoch(run *r, uint64_t epoch)
{
    uint32_t n = (uint32_t)fm_dataset_count(r->job->data);

    if (r->order && r->order_epoch == epoch)
        return FM_OK;
    if (!r->order)
        r->order = fm_calloc(n, sizeof(*r->order));
    if (!r->order)
        return FM_ENOMEM;
    r->order_epoch = epoch;
    fm_rng_permutation(r->order, n, r->c->seed, r->order_stream + epoch);
    return FM_OK;
}

/* The step's examples: order is a function of seed and epoch alone, so that a resume needs no
 * state. Epochs follow one another without a gap; the last step of the run may be short. */
static fm_status data_seqs(run *r, uint32_t step)
{
    uint64_t n = fm_dataset_count(r->job->data);
    uint64_t per_step = (uint64_t)r->c->batch * r->c->accumulate;
    uint64_t begin = step * per_step;
    uint64_t end = begin + per_step;

    if (r->examples > 0 && end > r->examples)
        end = r->examples;
    r->seqs = 0;
    for (uint64_t i = begin; i < end; i++) {
        fm_status rc = seek_epoch(r, i / n);
        if (rc < 0)
            return rc;
        const fm_example *e = fm_dataset_at(r->job->data, r->order[i % n]);
        r->seq[r->seqs++] = (fmi_seq_in){e->ids, e->labels, e->len};
    }
    return FM_OK;
}

static fm_status load_step(run *r, uint32_t step)
{
    return r->job->data ? data_seqs(r, step) : exact_seqs(r, step);
}

static void grow_size(fmi_pass_size *size, const fmi_seq_in *s, size_t n)
{
    fmi_pass_size one = {0};

    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmi_seq_rows(&s[i]);
        one.rows += rows;
        one.labels += fmi_seq_labels(&s[i]);
        one.longest = FM_MAX(one.longest, rows);
    }
    size->rows = FM_MAX(size->rows, one.rows);
    size->labels = FM_MAX(size->labels, one.labels);
    size->longest = FM_MAX(size->longest, one.longest);
    size->seqs = FM_MAX(size->seqs, (uint32_t)n);
}

/* The largest micro-batch of the whole run, so that memory is taken once. */
static fm_status measure(run *r, fmi_pass_size *size)
{
    fm_status rc = FM_OK;

    memset(size, 0, sizeof(*size));
    for (uint32_t s = 0; s < r->steps && rc == FM_OK; s++) {
        rc = load_step(r, s);
        for (size_t at = 0; rc == FM_OK && at < r->seqs; at += r->c->batch)
            grow_size(size, r->seq + at, FM_MIN(r->c->batch, r->seqs - at));
    }
    if (rc == FM_OK && size->labels == 0)
        rc = fm_fail(FM_EINVAL, "%s: no token of the data counts as a target", r->job->name);
    return rc;
}

/* ---- what trains ---- */
static fm_status declare_full(run *r)
{
    fm_param p;
    fm_status rc = FM_OK;

    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&r->net.arch, i, &p); i++)
        rc = fmi_net_train(&r->net, &r->ps, p.name, &p.shape, p.name);
    return rc;
}

static fm_status init_config(run *r, fm_buf *prefix)
{
    fm_status rc = fmi_top_adapter(prefix, r->job->init);

    if (rc < 0 || prefix->len == 0)
        return rc;
    char *path = fm_asprintf("%sadapter_config.json", fm_buf_cstr(prefix));
    const fm_entry *e = path ? fm_tree_find(r->job->init, path) : NULL;
    rc = path ? FM_OK : FM_ENOMEM;
    if (e && e->kind == FM_ENTRY_FILE)
        rc = fm_json_parse(&r->adapter_config, fm_span_of(e->data, (size_t)e->bytes), path);
    fm_free(path);
    return rc;
}

/* An init with an adapter_config.json says itself which modules and ranks train. */
static fm_status declare_lora(run *r)
{
    fm_buf prefix;
    fm_status rc = FM_OK;

    fm_buf_init(&prefix, FM_MAX_PATH_BYTES);
    if (r->job->init)
        rc = init_config(r, &prefix);
    if (rc == FM_OK && r->adapter_config)
        rc = fmi_lora_declare_from(&r->net, &r->ps, r->job->init, fm_buf_cstr(&prefix));
    else if (rc == FM_OK)
        rc = fmi_lora_declare(&r->net, &r->ps, r->c);
    fm_buf_release(&prefix);
    return rc;
}

static double initializer_range(const fm_tree *tree)
{
    const fm_entry *e = fm_tree_find(tree, "model.json");
    fm_json *v = NULL;
    double range = 0.02;

    if (e && e->kind == FM_ENTRY_FILE &&
        fm_json_parse(&v, fm_span_of(e->data, (size_t)e->bytes), "model.json") == FM_OK)
        range = fm_json_real(fm_json_path(v, "config.initializer_range"), range);
    fm_json_free(v);
    return range;
}

/* Matrices N(0, initializer_range), gains 1, biases 0; each tensor has a stream of its own. */
static fm_status random_param(run *r, size_t index, bool is_matrix, double range)
{
    const fmi_param *p = &r->ps.item[index];
    size_t len = strlen(p->name);
    bool bias = len > 5 && strcmp(p->name + len - 5, ".bias") == 0;
    uint64_t stream = 0;
    float *host = fm_calloc((size_t)p->n, sizeof(float));
    fm_status rc = host ? fmi_stream(&stream, "init", p->name) : FM_ENOMEM;

    for (uint64_t i = 0; i < p->n && rc == FM_OK; i++) {
        if (is_matrix)
            host[i] = (float)(range * fm_rng_normal(r->c->seed, stream, i));
        else
            host[i] = bias ? 0.0f : 1.0f;
    }
    if (rc == FM_OK)
        rc = fmi_params_put(&r->ps, (int32_t)index, host);
    fm_free(host);
    return rc;
}

static fm_status fill_full(run *r)
{
    double range = initializer_range(r->job->parent);
    fm_status rc = FM_OK;

    for (size_t i = 0; i < r->ps.count && rc == FM_OK; i++) {
        const fmi_param *p = &r->ps.item[i];
        if (r->c->method == FM_METHOD_PRETRAIN) {
            rc = random_param(r, i, p->shape.rank == 2, range);
            continue;
        }
        const fm_entry *e = fmi_find_tensor(r->job->parent, p->name);
        float *host = NULL;
        if (!e)
            return fm_fail(FM_EBASE, "%s: the parent has no %s", r->job->name, p->name);
        if (!fm_shape_eq(&e->shape, &p->shape))
            return fm_fail(FM_EBASE, "%s: %s has another shape than the config says", r->job->name,
                           p->name);
        rc = fmi_read_f32(&host, r->p, e);
        if (rc == FM_OK)
            rc = fmi_params_put(&r->ps, (int32_t)i, host);
        fm_free(host);
    }
    return rc;
}

static fm_status fill_lora(run *r)
{
    fm_status rc = fmi_lora_init(&r->ps, r->c, r->job->parent, r->p);

    if (rc == FM_OK && r->job->init)
        rc = fmi_params_load(&r->ps, r->job->init, r->job->init_provider, "", false);
    return rc;
}

static fm_status build(run *r, const fm_model *stem)
{
    fm_backend *be = fm_engine_backend(r->e);
    bool lora = r->c->method == FM_METHOD_LORA;
    const char *lacks = fm_backend_lacks(be, true);
    fm_arch arch;
    fmi_pass_size size;
    fm_status rc = fm_arch_of_tree(&arch, r->job->parent, r->job->name);

    if (rc == FM_OK && lacks)
        rc = fm_fail(FM_EUNSUPPORTED, "the %s backend cannot train: it lacks %s", be->name, lacks);
    if (rc == FM_OK)
        rc = measure(r, &size);
    if (rc == FM_OK && size.longest > arch.max_positions)
        rc = fm_fail(FM_ELIMIT,
                     "%s: examples of %u tokens, the model has %u positions; lower "
                     "max_tokens",
                     r->job->name, size.longest + 1, arch.max_positions);
    if (rc == FM_OK)
        rc = fmi_net_init(&r->net, be, &arch, lora ? stem : NULL);
    if (rc == FM_OK)
        rc = lora ? declare_lora(r) : declare_full(r);
    if (rc == FM_OK)
        rc = fmi_params_alloc(&r->ps, be, true);
    if (rc == FM_OK)
        rc = fmi_net_bind(&r->net, &r->ps, true);
    if (rc == FM_OK)
        rc = lora ? fill_lora(r) : fill_full(r);
    return rc == FM_OK ? fmi_pass_new(&r->pass, &r->net, &r->ps, &size) : rc;
}

/* ---- the digest that names a checkpoint ---- */
static fm_status hash_data(const run *r, fm_hasher *h)
{
    const fm_train_job *j = r->job;
    size_t n = (size_t)r->c->batch * r->c->accumulate * r->c->max_tokens * r->steps;
    fm_status rc = FM_OK;

    if (!j->data) {
        rc = fm_hasher_update(h, j->batch_ids, n * sizeof(int32_t));
        if (rc == FM_OK)
            rc = fm_hasher_update(h, j->batch_labels, n * sizeof(int32_t));
        if (rc == FM_OK && j->batch_mask)
            rc = fm_hasher_update(h, j->batch_mask, n * sizeof(int32_t));
        return rc;
    }
    for (size_t i = 0; i < fm_dataset_count(j->data) && rc == FM_OK; i++) {
        const fm_example *e = fm_dataset_at(j->data, i);
        rc = fm_hasher_update(h, e->ids, e->len * sizeof(int32_t));
        if (rc == FM_OK)
            rc = fm_hasher_update(h, e->labels, e->len * sizeof(int32_t));
    }
    return rc;
}

static fm_status hash_tree(fm_hasher *h, const fm_tree *tree)
{
    static const char *const skip[] = {"suites/", "source/", "README.md", "recipe.json", NULL};
    fm_digest d = {{0}};
    fm_status rc = tree ? fm_tree_digest(&d, tree, skip) : FM_OK;
    return rc == FM_OK ? fm_hasher_update(h, d.b, FM_DIGEST_BYTES) : rc;
}

static fm_status run_digest(run *r)
{
    fm_hasher *h = NULL;
    fm_buf text;
    fm_json *config = fm_train_config_json(r->c);
    const char *kernels = fm_engine_kernel_class(r->e);
    fm_status rc = config ? fm_hasher_new(&h) : FM_ENOMEM;

    fm_buf_init(&text, 0);
    if (rc == FM_OK)
        rc = fm_json_write(&text, config, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        rc = fm_hasher_update(h, text.data, text.len);
    if (rc == FM_OK)
        rc = fm_hasher_update(h, kernels, strlen(kernels) + 1);
    if (rc == FM_OK)
        rc = hash_tree(h, r->job->parent);
    if (rc == FM_OK)
        rc = hash_tree(h, r->job->init);
    if (rc == FM_OK)
        rc = hash_data(r, h);
    if (rc == FM_OK)
        rc = fm_hasher_final(h, &r->state.run);
    fm_hasher_free(h);
    fm_buf_release(&text);
    fm_json_free(config);
    return rc;
}

/* ---- steps ---- */
static fm_status step_gradients(run *r, uint32_t step, double *loss)
{
    uint64_t targets = 0;
    double sum = 0.0;
    fm_status rc = load_step(r, step);

    *loss = 0.0;
    if (rc == FM_OK)
        rc = fmi_params_zero_grad(&r->ps);
    for (size_t i = 0; rc == FM_OK && i < r->seqs; i++)
        targets += fmi_seq_labels(&r->seq[i]);
    for (size_t at = 0; rc == FM_OK && targets > 0 && at < r->seqs; at += r->c->batch) {
        fmi_batch b;
        rc = fmi_batch_build(&b, r->seq + at, FM_MIN(r->c->batch, r->seqs - at), r->net.arch.vocab);
        if (rc < 0)
            break;
        rc = fmi_pass_run(r->pass, &b, (float)(1.0 / (double)targets), &sum);
        r->state.tokens += b.tokens;
        r->fresh_tokens += b.tokens;
        fmi_batch_release(&b);
    }
    if (rc == FM_OK && targets > 0)
        *loss = sum / (double)targets;
    return rc;
}

static fm_status log_step(run *r, const fm_train_progress *p)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "step", fm_json_new_int((int64_t)p->step)) : FM_ENOMEM;

    if (rc == FM_OK)
        rc = fm_json_set(o, "loss", fm_json_new_real(p->loss));
    if (rc == FM_OK)
        rc = fm_json_set(o, "grad_norm", fm_json_new_real(p->grad_norm));
    if (rc == FM_OK)
        rc = fm_json_set(o, "lr", fm_json_new_real(p->lr));
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    return fm_json_push(r->state.log, o);
}

static fm_status one_step(run *r, fm_train_progress *p)
{
    uint32_t step = r->state.step;
    fm_status rc = step_gradients(r, step, &p->loss);

    if (rc == FM_OK)
        rc = fmi_params_grad_norm(&r->ps, &p->grad_norm);
    if (rc < 0)
        return rc;
    if (!isfinite(p->loss) || !isfinite(p->grad_norm))
        return fm_fail(FM_EINVAL,
                       "%s: step %u: the loss or its gradient is no finite number; lower lr",
                       r->job->name, step);
    p->child = r->child;
    p->step = step;
    p->steps = r->steps;
    p->lr = fmi_schedule_lr(r->c, step, r->steps);
    fmi_params_step(&r->ps, r->c, p->lr, (uint64_t)step + 1,
                    fmi_clip_scale(p->grad_norm, r->c->clip));
    fm_backend *be = fm_engine_backend(r->e);
    rc = be->sync(be);
    if (rc == FM_OK)
        rc = log_step(r, p);
    double seconds = now_s() - r->started;
    p->tokens_per_s = seconds > 0.0 ? (double)r->fresh_tokens / seconds : 0.0;
    r->state.step++;
    return rc;
}

static fm_status save(run *r)
{
    return fmi_checkpoint_save(r->job, r->child, &r->state, &r->ps);
}

static fm_status resume(run *r)
{
    bool found = false;
    fm_status rc = FM_OK;

    if (r->job->keeper) {
        rc = run_digest(r);
        if (rc == FM_OK)
            rc = fmi_checkpoint_load(r->job, r->child, &r->state, &r->ps, &found);
    }
    if (rc == FM_OK && !r->state.log) {
        r->state.log = fm_json_new_array();
        rc = r->state.log ? FM_OK : FM_ENOMEM;
    }
    fmi_params_refresh(&r->ps);
    return rc;
}

static fm_status all_steps(run *r, fm_train_fn progress, void *ctx, bool *stopped)
{
    uint32_t every = r->job->checkpoint_every;
    fm_status rc = FM_OK;

    r->started = now_s();
    while (rc == FM_OK && r->state.step < r->steps && !*stopped) {
        fm_train_progress p = {0};
        rc = one_step(r, &p);
        bool drop = false;
        if (rc == FM_OK && progress && progress(ctx, &p, 1, &drop))
            *stopped = true;
        bool due = every > 0 && r->state.step % every == 0;
        if (rc == FM_OK && (*stopped || due || r->state.step == r->steps))
            rc = save(r);
    }
    return rc;
}

static fm_status take_result(run *r, fm_train_result *out)
{
    bool lora = r->c->method == FM_METHOD_LORA;
    fm_status rc =
        fmi_params_result(&r->ps, r->ps.p, lora ? FM_F32 : r->c->dtype, r->job->parent, out);

    if (rc == FM_OK && lora) {
        out->adapter_config =
            r->adapter_config ? fm_json_ref(r->adapter_config) : fmi_lora_config_json(r->c, NULL);
        rc = out->adapter_config ? FM_OK : FM_ENOMEM;
    }
    return rc;
}

static void run_release(run *r)
{
    fmi_pass_free(r->pass);
    fmi_params_release(&r->ps);
    fmi_net_release(&r->net);
    fm_json_free(r->state.log);
    fm_json_free(r->adapter_config);
    fm_free(r->seq);
    fm_free(r->order);
}

static fm_status run_job(run *r, const fm_model *stem, fm_train_result *out, fm_train_fn progress,
                         void *ctx)
{
    uint64_t n = r->job->data ? fm_dataset_count(r->job->data) : 0;
    fm_status rc = fmi_stream(&r->order_stream, "order", "");

    r->steps = fmi_schedule_steps(r->c, n);
    if (r->c->steps == 0)
        r->examples = (uint64_t)ceil(r->c->epochs * (double)n);
    if (rc == FM_OK && r->steps == 0)
        rc = fm_fail(FM_EINVAL, "%s: training option steps must be at least 1 here", r->job->name);
    r->seq = fm_calloc((size_t)r->c->batch * r->c->accumulate, sizeof(*r->seq));
    if (rc == FM_OK && !r->seq)
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        rc = build(r, stem);
    if (rc == FM_OK)
        rc = resume(r);
    double began = now_s();
    if (rc == FM_OK)
        rc = all_steps(r, progress, ctx, &out->stopped);
    if (rc == FM_OK && !out->stopped)
        rc = take_result(r, out);
    out->seconds = now_s() - began;
    out->tokens = r->state.tokens;
    out->log = fm_json_ref(r->state.log);
    return rc;
}

/* ---- jobs ---- */
static bool has_adapters(const fm_tree *tree)
{
    size_t begin = 0;
    size_t end = 0;

    fm_tree_range(tree, "adapters/", &begin, &end);
    return end > begin;
}

static fm_status check_job(const fm_train_job *j, size_t n)
{
    const fm_train_config *c = &j->config;

    if (!j->name || !j->parent)
        return fm_fail(FM_EINVAL, "a training job needs a name and a parent");
    if (!j->data && !(j->batch_ids && j->batch_labels))
        return fm_fail(FM_EINVAL, "%s: a training job needs data", j->name);
    if (c->batch == 0 || c->accumulate == 0 || c->max_tokens < 2)
        return fm_fail(FM_EINVAL, "%s: batch and accumulate must be at least 1, max_tokens 2",
                       j->name);
    if (c->method == FM_METHOD_LORA && (c->r == 0 || !(c->alpha > 0.0)))
        return fm_fail(FM_EINVAL, "%s: r and alpha must be above 0", j->name);
    if (j->init && (c->method != FM_METHOD_LORA || !j->init_provider))
        return fm_fail(FM_EINVAL, "%s: init is an adapter and goes with method lora", j->name);
    if (c->method == FM_METHOD_PRETRAIN && n != 1)
        return fm_fail(FM_EINVAL, "%s: pretraining is one job at a time", j->name);
    if (c->method != FM_METHOD_LORA && has_adapters(j->parent))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: the parent has adapters; export it merged and import that, or train "
                       "with method lora",
                       j->name);
    return FM_OK;
}

static fm_status check_jobs(const fm_train_job *jobs, size_t n, bool *needs_stem)
{
    fm_status rc = FM_OK;

    *needs_stem = false;
    if (n == 0)
        return fm_fail(FM_EINVAL, "there is no training job");
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        rc = check_job(&jobs[i], n);
        if (rc == FM_OK && jobs[i].parent != jobs[0].parent)
            rc = fm_fail(FM_EINVAL, "%s: the jobs of one run must have the same parent",
                         jobs[i].name);
        *needs_stem = *needs_stem || jobs[i].config.method == FM_METHOD_LORA;
    }
    return rc;
}

fm_status fm_train_run(fm_engine *e, const fm_provider *p, const fm_train_job *jobs, size_t n,
                       fm_train_result *results, fm_train_fn progress, void *ctx)
{
    fm_model *stem = NULL;
    bool needs_stem = false;

    memset(results, 0, n * sizeof(*results));
    fm_status rc = check_jobs(jobs, n, &needs_stem);
    if (rc == FM_OK && needs_stem)
        rc = fm_model_load(&stem, e, jobs[0].parent, p, jobs[0].name);
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        run r = {.e = e, .p = p, .job = &jobs[i], .c = &jobs[i].config, .child = (uint32_t)i};
        rc = run_job(&r, stem, &results[i], progress, ctx);
        run_release(&r);
        if (results[i].stopped)
            break;
    }
    for (size_t i = 0; i < n; i++) { /* stopped: what was not begun has no result either */
        if (rc == FM_OK && !results[i].tensors)
            results[i].stopped = true;
        if (rc < 0)
            fm_train_result_release(&results[i]);
    }
    fm_model_close(stem);
    return rc;
}

void fm_train_result_release(fm_train_result *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++) {
        fm_free(r->tensors[i].name);
        fm_free(r->tensors[i].data);
    }
    fm_free(r->tensors);
    fm_json_free(r->adapter_config);
    fm_json_free(r->log);
    memset(r, 0, sizeof(*r));
}
