/* run.c - the steps of all children of a call, taken together.
 *
 * A step of the run is the next step of every child that is still at work; their micro-batches go
 * through passes together, with as many rows in each as pay. A child that ends, is dropped or
 * breaks leaves; nothing that the other children compute depends on it. */
#include "train/run/grad_overlap.h"
#include "train/net/method.h"
#include "train/run/pipeline_1f1b.h"

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#include <stdio.h>
#include <string.h>

typedef struct run {
    fmt_child *child; /* [n] */
    size_t n;
    fm_backend *be;
    fmt_pass *pass;
    fmt_pass_size cap;
    fmt_lane **lane;             /* [2 n] lanes of the current pass */
    fm_train_progress *progress; /* [n] progress in the current step */
    bool *drop;                  /* [n] */
    double *norm;                /* [n] of the step's gradients */
    double started;
    uint32_t shard;           /* current shard, among each child's shards on this rank */
    size_t micro;             /* current micro-batch */
    bool stands;              /* the next pass has already gone through its layers */
    fmt_grad_overlap *beside; /* NULL: one rank, or stages */
    /* What the host downloads of a step, at once: sums of squares of all children, then the losses
     * of rows that were put off. */
    double *report, *host_report; /* device and host, [report_bytes] */
    size_t sums, report_bytes;
    fmt_tally tally;
    fm_comm *comm;    /* NULL: one rank */
    fmt_stage *stage; /* NULL: every rank has all layers */
    fmt_pipeline *flights;
} run;

static bool has_micro(const run *r, const fmt_child *ch, size_t k)
{
    return ch->at_work && r->shard < ch->shards.own && k < ch->micros;
}

/* ---- passes ---- */

static fm_status make_pass(run *r)
{
    if (r->stage)
        return fmt_pipeline_new(&r->flights, r->stage, r->be, r->child, r->n, r->lane);
    FM_TRY(fmt_run_pass(&r->pass, r->be, r->child, r->n, r->lane));

    r->cap = r->pass->cap;
    return FM_OK;
}

static fm_status run_pass(run *r, size_t lanes)
{
    bool stands = r->stands;

    r->stands = false;
    if (stands)
        return fmt_pass_finish(r->pass);
    return lanes > 0 ? fmt_pass_run(r->pass, r->lane, lanes) : FM_OK;
}

/* Sizes of the child's current micro-batch. */
static fmt_pass_size size_of(fmt_child *ch)
{
    fmt_lane *lane[2];
    size_t n = fmt_objective_setup_lanes(&ch->goal, lane);
    fmt_pass_size s = {0};

    for (size_t i = 0; i < n; i++) {
        s.rows += lane[i]->batch.rows;
        s.labels += lane[i]->batch.labels;
        s.seqs += lane[i]->batch.seqs;
    }
    return s;
}

/* Runs all children's k-th micro-batches in the fewest passes. *any: some child had one. */
static fm_status micro_passes(run *r, size_t k, bool *any)
{
    fmt_pass_size in = {0};
    size_t lanes = 0;
    fm_status rc = FM_OK;

    *any = false;
    r->micro = k;
    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        if (!has_micro(r, ch, k))
            continue;
        *any = true;
        rc = fmt_child_load_micro(ch, k);
        if (rc < 0 || ch->lane.batch.rows == 0)
            continue;
        fmt_pass_size own = size_of(ch);
        if (in.rows + own.rows > r->cap.rows || in.labels + own.labels > r->cap.labels ||
            in.seqs + own.seqs > r->cap.seqs) {
            rc = run_pass(r, lanes);
            lanes = 0;
            in = (fmt_pass_size){0};
        }
        lanes += fmt_objective_setup_lanes(&ch->goal, r->lane + lanes);
        in.rows += own.rows;
        in.labels += own.labels;
        in.seqs += own.seqs;
    }
    FM_THEN(rc, run_pass(r, lanes));
    for (size_t i = 0; i < r->n && rc == FM_OK; i++)
        if (has_micro(r, &r->child[i], k))
            fmt_child_end_micro(&r->child[i]);
    return rc;
}

/* ---- steps ---- */
static uint32_t most_shards(const run *r)
{
    uint32_t most = 0;

    for (size_t i = 0; i < r->n; i++)
        if (r->child[i].at_work)
            most = FM_MAX(most, r->child[i].shards.own);
    return most;
}

/* Gathers losses that are over all shards. A single child with one micro-batch and one shard on
 * this rank goes through the layers once: its pass waits for the vectors of the other ranks. */
static fm_status gather(run *r)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        bool stands = false;
        if (!ch->at_work || ch->c->objective != FM_OBJECTIVE_CONTRASTIVE || ch->c->shards == 1)
            continue;
        rc = fmt_child_gather(ch, r->pass, &stands);
        r->stands = stands && r->n == 1 && ch->shards.own == 1 && ch->micros == 1;
    }
    return rc;
}

static bool has_lane(const fmt_pass *p, const fmt_child *ch)
{
    for (size_t i = 0; i < p->lanes; i++)
        if (p->lane[i]->ps == &ch->ps)
            return true;
    return false;
}

/* Called when the backward has left a layer: in a child's last micro-batch of its last shard on
 * this rank the layer's gradients are complete. Those of formulas are at the end of the shard. */
static fm_status left(void *ctx, const fmt_pass *p, uint32_t layer)
{
    run *r = ctx;

    for (size_t i = 0; i < r->n; i++) {
        const fmt_child *ch = &r->child[i];
        if (ch->at_work && ch->net.folds == 0 && r->shard + 1 == ch->shards.own &&
            r->micro + 1 == ch->micros && has_lane(p, ch))
            FM_TRY(fmt_grad_overlap_left(r->beside, i, layer));
    }
    return FM_OK;
}

static fm_status gradients(run *r)
{
    fm_status rc = FM_OK;
    bool any = true;

    for (size_t i = 0; i < r->n && rc == FM_OK; i++)
        if (r->child[i].at_work)
            rc = fmt_child_begin_step(&r->child[i]);
    if (r->stage)
        return rc == FM_OK ? fmt_pipeline_step(r->flights, &r->tally) : rc;
    FM_THEN(rc, gather(r));
    fmt_grad_overlap_begin(r->beside);
    r->pass->tally = &r->tally;
    for (uint32_t s = 0; rc == FM_OK && s < most_shards(r); s++) {
        any = true;
        for (size_t i = 0; i < r->n; i++)
            if (r->child[i].at_work && s < r->child[i].shards.own)
                fmt_child_begin_shard(&r->child[i], r->child[i].shards.first + s);
        r->shard = s;
        for (size_t k = 0; rc == FM_OK && any; k++)
            rc = micro_passes(r, k, &any);
        for (size_t i = 0; i < r->n && rc == FM_OK; i++)
            if (r->child[i].at_work && s < r->child[i].shards.own)
                rc = fmt_child_end_shard(&r->child[i], s);
    }
    r->pass->tally = NULL;
    return rc;
}

/* ---- the download of a step ---- */
static fm_status open_report(run *r)
{
    void *mem = NULL;

    for (size_t i = 0; i < r->n; i++) {
        r->sums += fmt_params_sums(&r->child[i].ps);
        r->tally.room += r->child[i].step_labels;
    }
    r->report_bytes = r->sums * sizeof(double) + r->tally.room * sizeof(float);
    r->host_report = fm_calloc(1, r->report_bytes);
    if (!r->host_report)
        return FM_ENOMEM;
    fm_status rc = r->be->alloc(r->be, &mem, r->report_bytes);
    r->report = mem;
    if (rc == FM_OK)
        r->tally.rows = (float *)(r->report + r->sums);
    return rc;
}

/* Downloads losses and sums of squares when the norms are queued: the one wait of a step. */
static fm_status look(run *r)
{
    size_t at = 0;

    memset(r->host_report, 0, r->sums * sizeof(double));
    fm_status rc = r->be->upload(r->be, r->report, r->host_report, r->sums * sizeof(double));
    FM_THEN(rc, fmt_grad_overlap_end(r->beside));
    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        if (ch->at_work && !r->beside)
            rc = fmt_shards_reduce(&ch->shards, &ch->ps);
        if (ch->at_work && rc == FM_OK && r->stage)
            rc = fmt_stage_meet_edges(&ch->ps);
        if (ch->at_work && rc == FM_OK)
            fmt_params_squares(&ch->ps, r->report + at);
        at += fmt_params_sums(&ch->ps);
    }
    for (size_t i = 0; i < r->n && rc == FM_OK; i++)
        if (r->child[i].at_work)
            rc = fmt_child_look_ahead(&r->child[i]);
    if (rc == FM_OK && r->comm)
        rc = fm_comm_settle(r->comm);
    FM_THEN(rc, r->be->download(r->be, r->host_report, r->report,
                                r->sums * sizeof(double) + r->tally.used * sizeof(float)));
    if (rc < 0)
        return rc;
    fmt_tally_settle(&r->tally, (const float *)(r->host_report + r->sums));
    at = 0;
    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        if (ch->at_work)
            rc = fmt_child_total(ch);
        if (ch->at_work && rc == FM_OK)
            rc = fmt_params_norm(&ch->ps, r->host_report + at, &r->norm[i]);
        at += fmt_params_sums(&ch->ps);
    }
    return rc;
}

static char *examples_text(const fmt_child *ch)
{
    fm_buf text;
    char *out = NULL;

    fm_buf_init(&text, 4096);
    for (size_t i = 0; ch->order && i < ch->pick_count && i < 16; i++)
        fm_buf_printf(&text, "%s%u", i > 0 ? ", " : "",
                      fm_dataset_at(ch->job->data, ch->picks[i])->index);
    if (ch->order && ch->pick_count > 16)
        fm_buf_printf(&text, ", .. (%zu in all)", ch->pick_count);
    if (fm_buf_ok(&text) == FM_OK)
        out = fm_strdup(text.len > 0 ? fm_buf_cstr(&text) : "given as a batch");
    fm_buf_release(&text);
    return out;
}

/* Explains why the step's loss or gradient is not finite: its examples, and the first tensor that
 * is not finite, found by computing the step's first bad micro-batch again, alone and watched. */
static fm_status explain(run *r, fmt_child *ch, const fm_train_progress *p)
{
    fmt_watch watch = {0};
    fm_status rc = fmt_child_load_step(ch, p->step);
    char *examples = rc == FM_OK ? examples_text(ch) : NULL;

    fm_cancel_wait(true); /* the child has failed, whether or not the run is stopped now */
    FM_THEN(rc, examples ? FM_OK : FM_ENOMEM);
    if (rc == FM_OK && r->stage)
        rc = fmt_pipeline_explain(r->flights, ch, &watch);
    else if (rc == FM_OK)
        rc = fmt_watch_params(&watch, &ch->ps);

    for (size_t i = 0; !r->stage && rc == FM_OK && !watch.found && i < ch->micros * ch->c->shards;
         i++) {
        fmt_lane *lane[2];
        fmt_child_begin_shard(ch, (uint32_t)(i / ch->micros));
        rc = fmt_child_load_micro(ch, i % ch->micros);
        if (rc == FM_OK && ch->lane.batch.rows > 0) {
            fmt_pass_watch(r->pass, &watch);
            rc = fmt_pass_run(r->pass, lane, fmt_objective_setup_lanes(&ch->goal, lane));
            fmt_pass_watch(r->pass, NULL);
        }
    }
    fm_cancel_wait(false);
    char *why = NULL;
    if (rc == FM_OK) {
        why = fm_asprintf("%s: step %u: %s is no finite number (records %s); lower lr, or look at "
                          "these records",
                          ch->job->name, p->step,
                          watch.found ? watch.name : "the sum of the gradient's squares", examples);
        rc = why ? FM_OK : FM_ENOMEM;
    }
    fm_free(examples);
    if (rc == FM_OK)
        fmt_child_fail(ch, why);
    return rc;
}

/* Updates all children; fills the progress of those that took a step. */
static fm_status updates(run *r, size_t *reports)
{
    double seconds = fm_now_s() - r->started;
    fm_status rc = FM_OK;

    *reports = 0;
    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        fm_train_progress *p = &r->progress[*reports];
        bool broken = false;
        if (!ch->at_work)
            continue;
        rc = fmt_child_end_step(ch, r->norm[i], p, &broken);
        p->tokens_per_s = seconds > 0.0 ? (double)ch->fresh_tokens / seconds : 0.0;
        if (rc == FM_OK && broken && !ch->result->why)
            rc = explain(r, ch, p);
        *reports += !broken;
    }
    return rc;
}

static fm_status keep(run *r, bool all)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < r->n && rc == FM_OK; i++) {
        fmt_child *ch = &r->child[i];
        uint32_t every = ch->job->checkpoint_every;
        bool due = every > 0 && ch->state.step % every == 0;
        bool ended = ch->state.step == ch->steps;
        if (ch->result->failed == FM_OK && !ch->result->dropped && ch->state.step > 0 &&
            ((ch->at_work && (all || due)) || (ended && !ch->saved)))
            rc = fmt_child_save(ch);
        ch->saved = ended;
    }
    return rc;
}

/* Only rank 0 calls the callback; its answer holds for all ranks. */
static fm_status share_decision(run *r, bool *stopped)
{
    if (r->comm)
        FM_TRY(fm_comm_tell(r->comm, stopped, sizeof(*stopped), 0));
    if (r->comm)
        FM_TRY(fm_comm_tell(r->comm, r->drop, r->n * sizeof(*r->drop), 0));
    return FM_OK;
}

static bool some_at_work(const run *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->child[i].at_work)
            return true;
    return false;
}

static fm_status all_steps(run *r, fm_train_fn progress, void *ctx, bool *stopped)
{
    r->started = fm_now_s();
    while (some_at_work(r) && !*stopped) {
        size_t reports = 0;
        fm_status rc = gradients(r);
        FM_THEN(rc, look(r));
        FM_THEN(rc, updates(r, &reports));
        if (rc == FM_ECANCELLED) { /* the rest of the step is left out, what was before it kept */
            *stopped = true;
            return keep(r, true);
        }
        FM_TRY(rc);

        memset(r->drop, 0, r->n * sizeof(*r->drop));
        if (progress && reports > 0 && fm_comm_rank(r->comm) == 0)
            *stopped = progress(ctx, r->progress, reports, r->drop);
        FM_TRY(share_decision(r, stopped));

        for (size_t i = 0; i < reports; i++) {
            fmt_child *ch = &r->child[r->progress[i].child];
            if (r->drop[i] && ch->at_work) {
                ch->at_work = false;
                ch->result->dropped = true;
            }
        }
        FM_TRY(keep(r, *stopped));
    }
    return FM_OK;
}

static fm_status take_results(run *r, bool stopped)
{
    double seconds = fm_now_s() - r->started;

    for (size_t i = 0; i < r->n; i++) {
        fmt_child *ch = &r->child[i];
        fm_train_result *out = ch->result;
        out->seconds = seconds;
        out->tokens = ch->state.tokens;
        out->log = fm_json_ref(ch->state.log);
        out->stopped = stopped && ch->at_work;
        if (!out->stopped && out->failed == FM_OK)
            FM_TRY(fmt_child_take_result(ch));
    }
    return FM_OK;
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
    if (j->init && (!fmt_method_is_adapter(c->method) || !j->init_provider))
        return fm_fail(FM_EINVAL, "%s: init is an adapter, and its method makes none", j->name);
    if (c->method == FM_METHOD_PRETRAIN && n != 1)
        return fm_fail(FM_EINVAL, "%s: pretraining is one job at a time", j->name);
    if (!fmt_method_is_adapter(c->method) && has_adapters(j->parent))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: the parent has adapters; export it merged and import that, or train "
                       "with method lora",
                       j->name);
    return fmt_method_check(c, j->name);
}

static fm_status check_jobs(const fm_train_job *jobs, size_t n)
{
    if (n == 0)
        return fm_fail(FM_EINVAL, "there is no training job");
    for (size_t i = 0; i < n; i++)
        FM_TRY(check_job(&jobs[i], n));
    return FM_OK;
}

/* A pass has one shape: children may differ by adapters and values only. */
static fm_status check_stem(const run *r)
{
    for (size_t i = 1; i < r->n; i++)
        if (!fmt_same_shape(&r->child[0].net.arch, &r->child[i].net.arch))
            return fm_fail(FM_EINVAL,
                           "%s: its parent has another architecture than that of %s; train them in "
                           "two runs",
                           r->child[i].job->name, r->child[0].job->name);
    return FM_OK;
}

static fm_status open_all(run *r, fm_engine *e, const fm_provider *p, const fm_train_job *jobs,
                          fm_train_result *results)
{
    const char *lacks = fm_backend_lacks(r->be, true);

    if (lacks)
        return fm_fail(FM_EUNSUPPORTED, "the %s backend cannot train in mode %s: it lacks %s",
                       r->be->name, r->be->mode, lacks);
    r->lane = fm_calloc(2 * r->n, sizeof(fmt_lane *));
    r->progress = fm_calloc(r->n, sizeof(*r->progress));
    r->drop = fm_calloc(r->n, sizeof(*r->drop));
    r->norm = fm_calloc(r->n, sizeof(*r->norm));
    if (!r->lane || !r->progress || !r->drop || !r->norm)
        return FM_ENOMEM;
    for (size_t i = 0; i < r->n; i++)
        FM_TRY(fmt_child_open_on(&r->child[i], e, p, &jobs[i], (uint32_t)i, &results[i], r->stage));
    FM_TRY(check_stem(r));
    for (size_t i = 0; i < r->n; i++)
        FM_TRY(fmt_child_resume(&r->child[i]));
    FM_TRY(make_pass(r));
    if (!r->stage) /* over stages the passes themselves use the comm */
        FM_TRY(fmt_grad_overlap_open(&r->beside, r->comm, r->be, r->child, r->n));
    if (r->beside) {
        r->pass->left = left;
        r->pass->left_ctx = r;
    }
    return open_report(r);
}

fm_status fm_train_run(fm_engine *e, const fm_provider *p, const fm_train_job *jobs, size_t n,
                       fm_train_result *results, fm_train_fn progress, void *ctx)
{
    fm_comm *comm = fm_engine_batch_ranks(e);
    run r = {.n = n, .be = fm_engine_backend(e), .comm = fm_comm_size(comm) > 1 ? comm : NULL};
    bool stopped = false, together = r.comm || fm_engine_batch_stages(e) > 1;

    if (together) /* several ranks stop together, at the end of a step: progress says so */
        fm_cancel_wait(true);
    memset(results, 0, n * sizeof(*results));
    fm_status rc = fm_engine_ranks(e) > 1
                       ? fm_fail(FM_EUNSUPPORTED, "models that are split over ranks cannot train; "
                                                  "the ranks share the examples of derive instead")
                       : check_jobs(jobs, n);
    FM_THEN(rc, fmt_stage_open(&r.stage, e));
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = fmt_shards_check(&jobs[i].config, r.stage ? r.stage->group : r.comm, jobs[i].name);
    for (size_t i = 0; i < n && rc == FM_OK && r.stage; i++)
        rc = fm_train_check_stages(&jobs[i].config, jobs[i].name);
    if (rc == FM_OK)
        r.child = fm_calloc(n, sizeof(*r.child));
    FM_THEN(rc, r.child ? open_all(&r, e, p, jobs, results) : FM_ENOMEM);
    FM_THEN(rc, all_steps(&r, progress, ctx, &stopped));
    FM_THEN(rc, take_results(&r, stopped));
    fmt_grad_overlap_close(r.beside);
    rc = fm_comm_meet(r.comm, rc, 0); /* a rank that failed above makes all ranks fail */
    for (size_t i = 0; r.child && i < n; i++) {
        if (r.child[i].e)
            fmt_child_release(&r.child[i]);
        if (rc < 0)
            fm_train_result_release(&results[i]);
    }
    fmt_pipeline_free(r.flights);
    fmt_stage_free(r.stage);
    fmt_pass_free(r.pass);
    if (r.report)
        r.be->free(r.be, r.report);
    fm_free(r.host_report);
    fm_free(r.tally.entry);
    fm_free(r.norm);
    fm_free(r.child);
    fm_free(r.lane);
    fm_free(r.progress);
    fm_free(r.drop);
    if (together)
        fm_cancel_wait(false);
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
    fm_free(r->why);
    fm_free(r->model_json);
    memset(r, 0, sizeof(*r));
}
