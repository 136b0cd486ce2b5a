/* runner.c - runs suites on models, everything in one batch.
 *
 * Each case on each model is a job; every prompt of a job becomes one generation or one scoring per
 * continuation. All jobs run together (rows of a batch do not change each other's bits, and models
 * share the products of the tensors that they share), then each is judged alone. A case that cannot
 * be asked (no chat template, a token beyond the model) is an error of that case on that model. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/clock.h"
#include "testing/run/run.h"

typedef struct runner {
    fm_engine *engine;
    fmv_job *job;
    size_t jobs;
    fmv_work *work;
    size_t works;
    fmv_aux_models *aux_models;
} runner;

static fm_status prepare(runner *r)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; i < r->jobs; i++) {
        r->job[i].count = fmv_works_of(r->job[i].c);
        r->works += r->job[i].count;
    }
    r->work = fm_calloc(r->works, sizeof *r->work);
    if (!r->work)
        return FM_ENOMEM;
    fmv_work *next = r->work;
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        fmv_job *j = &r->job[i];
        j->work = next;
        next += j->count;
        rc = fmv_ask(j);
        if (rc < 0)
            rc = fmv_case_error(j, rc);
    }
    return rc;
}

/* The generation for a prompt: its answer, or greedy decoding to compare a continuation with. */
static fm_gen_request generation(const fmv_job *j, size_t k)
{
    const fmv_case *c = j->c;
    const fmv_work *w = &j->work[k];
    fm_gen_request q = {.model = j->model, .prompt = w->ids.id, .prompt_len = w->prompt_len};
    if (c->scoring != FMV_SCORE_TEXT) {
        q.max_new = (uint32_t)(w->ids.count - w->prompt_len);
        q.ignore_eos = true;
        fm_sample_defaults(&q.sampling);
        return q;
    }
    q.max_new = c->max_tokens;
    q.sampling = c->sampling;
    q.stop = c->stop;
    q.stop_count = c->stop_count;
    q.want_logprobs = c->wants_logprobs;
    if (fmv_case_samples(c))
        q.sampling.seed += j->seed_shift + (uint64_t)(k % c->repeats) * FMV_REPEAT_STRIDE;
    return q;
}

static fm_status run_generations(runner *r)
{
    fm_gen_request *req = fm_calloc(r->works, sizeof *req);
    fm_gen_result **to = fm_calloc(r->works, sizeof *to);
    size_t n = 0;
    fm_status rc = req && to ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        const fmv_job *j = &r->job[i];
        bool generates = j->c->scoring == FMV_SCORE_TEXT || j->c->greedy >= 0;
        for (size_t k = 0; k < j->count && !j->broken && generates; k++) {
            req[n] = generation(j, k);
            to[n++] = &j->work[k].gen;
        }
    }
    FM_THEN(rc, fmv_generate_all(r->engine, req, to, n));
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        fmv_job *j = &r->job[i];
        if (j->broken || j->c->scoring != FMV_SCORE_TEXT)
            continue;
        rc = fmv_answers(j);
        if (rc < 0)
            rc = fmv_case_error(j, rc);
    }
    fm_free(req);
    fm_free(to);
    return rc;
}

static fm_status run_scorings(runner *r)
{
    fm_score_request *req = fm_calloc(r->works, sizeof *req);
    size_t n = 0;
    if (!req)
        return FM_ENOMEM;
    for (size_t i = 0; i < r->jobs; i++) {
        const fmv_job *j = &r->job[i];
        bool scores = j->c->scoring == FMV_SCORE_CHOICE || j->c->scoring == FMV_SCORE_LOGPROB;
        for (size_t k = 0; k < j->count && !j->broken && scores; k++) {
            const fmv_work *w = &j->work[k];
            req[n++] = (fm_score_request){.model = j->model,
                                          .ids = w->ids.id,
                                          .n = w->ids.count,
                                          .logprobs = w->logprobs,
                                          .from = w->prompt_len};
        }
    }
    fm_status rc = n ? fm_score_many(r->engine, req, n) : FM_OK;
    fm_free(req);
    return rc;
}

static void runner_release(runner *r)
{
    for (size_t i = 0; i < r->works && r->work; i++) {
        fm_ids_release(&r->work[i].ids);
        fm_free(r->work[i].logprobs);
        fm_gen_result_release(&r->work[i].gen);
    }
    for (size_t i = 0; i < r->jobs; i++) {
        fmv_answers_release(&r->job[i]);
        fmv_auxs_release(&r->job[i]);
    }
    fmv_aux_models_free(r->aux_models);
    fm_free(r->work);
    fm_free(r->job);
}

/* Keeps a result. Errors are not kept, since their cause may be gone tomorrow. */
static fm_status keep(const fmv_job *j, const fm_result_cache *cache)
{
    fm_buf text;
    if (!cache || !cache->put || j->result->verdict == FM_ERROR_CASE)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = fmv_result_encode(&text, j->result);
    FM_THEN(rc, cache->put(cache->ctx, j->key, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

static fm_status run_jobs(runner *r, const fm_result_cache *env)
{
    fm_status rc = prepare(r);
    FM_THEN(rc, run_generations(r));
    FM_THEN(rc, run_scorings(r));
    FM_THEN(rc, fmv_look_all(r->engine, r->job, r->jobs));
    FM_THEN(rc, fmv_aux_ask_all(&r->aux_models, r->engine, env, r->job, r->jobs));
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        fmv_job *j = &r->job[i];
        if (j->broken)
            continue;
        rc = fmv_judge(j);
        if (rc < 0)
            rc = fmv_case_error(j, rc); /* a regex that gave up, a score that is NaN */
        FM_THEN(rc, keep(j, env));
    }
    return rc;
}

/* A kept result fills *result; otherwise the case becomes a job. */
static fm_status cached_or_job(runner *r, const fm_suite_ask *ask, size_t i, fm_case_result *result,
                               const fm_result_cache *cache)
{
    const fm_suite *s = ask->suite;
    fm_buf kept;
    fmv_job *j = &r->job[r->jobs];
    bool kept_somewhere = cache && cache->get;
    result->name = s->cases[i].name;
    result->at = i;
    result->score = NAN;
    result->waived = fm_suite_waived(s, i);
    result->numbers = (fm_case_measures){NAN, NAN, NAN, NAN, NAN};
    fm_status rc = fm_ask_result_key(j->key, ask, i);
    fm_buf_init(&kept, 0);
    if (rc == FM_OK && kept_somewhere)
        rc = cache->get(cache->ctx, &kept, j->key);
    if (rc == FM_OK && kept_somewhere)
        rc = fmv_result_decode(result, fm_buf_span(&kept));
    fm_buf_release(&kept);
    if (rc == FM_ENOTFOUND || rc == FM_ECORRUPT || (rc == FM_OK && !kept_somewhere)) {
        fm_error_clear();
        j->c = &s->cases[i];
        j->model = ask->model;
        j->seed_shift = ask->seed_shift;
        j->result = result;
        r->jobs++;
        rc = FM_OK;
    }
    return rc;
}

static size_t cases_of(const fm_suite_ask *a)
{
    return a->case_name ? 1 : a->pick ? a->pick_count : a->suite->count;
}

/* Allocates the results of one suite on one model; *first is its first case. */
static fm_status open_run(fm_suite_run *run, const fm_suite_ask *a, size_t *first)
{
    long only = a->case_name ? fm_suite_find(a->suite, a->case_name) : 0;
    if (only < 0)
        return fm_fail(FM_ENOTFOUND, "suite '%s' has no case '%s'", a->suite->name, a->case_name);
    *first = (size_t)only;
    run->suite = a->suite;
    run->count = cases_of(a);
    run->result = fm_calloc(run->count, sizeof *run->result);
    return run->result ? FM_OK : FM_ENOMEM;
}

fm_status fm_suites_run(fm_suite_run *out, const fm_suite_ask *ask, size_t n,
                        const fm_result_cache *cache)
{
    const double began = fm_now_s();
    runner r = {.engine = n ? fm_model_engine(ask[0].model) : NULL};
    size_t cases = 0, first = 0;
    fm_status rc = FM_OK;
    memset(out, 0, n * sizeof *out);
    for (size_t k = 0; k < n; k++)
        cases += cases_of(&ask[k]);
    r.job = fm_calloc(cases, sizeof *r.job);
    if (!r.job)
        return FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < n; k++) {
        fm_assert(fm_model_engine(ask[k].model) == r.engine);
        rc = open_run(&out[k], &ask[k], &first);
        bool picked = ask[k].pick && !ask[k].case_name;
        for (size_t i = 0; rc == FM_OK && i < out[k].count; i++)
            rc = cached_or_job(&r, &ask[k], picked ? ask[k].pick[i] : first + i, &out[k].result[i],
                               cache);
    }
    if (rc == FM_OK && r.jobs)
        rc = run_jobs(&r, cache);
    for (size_t k = 0; rc == FM_OK && k < n; k++)
        rc = fmv_measures_take(&out[k]);
    runner_release(&r);
    const double seconds = fm_now_s() - began;
    for (size_t k = 0; k < n; k++) {
        out[k].seconds = seconds;
        if (rc == FM_OK)
            fmv_run_count(&out[k]);
        else
            fm_suite_run_release(&out[k]);
    }
    return rc;
}

fm_status fm_suite_run_on(fm_suite_run *out, const fm_suite *s, fm_model *m, const char *case_name,
                          const fm_result_cache *cache)
{
    const fm_suite_ask ask = {.suite = s, .model = m, .case_name = case_name};
    return fm_suites_run(out, &ask, 1, cache);
}
