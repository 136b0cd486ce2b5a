/* batch.c - the engine side: jobs become sequences of the scheduler, events become answers.
 * Everything here runs on the engine thread. */
#include "infer/serve/batch.h"

#include <string.h>

#include "store/base/mem.h"

/* ==== events of the scheduler ==== */

static size_t code_points(fm_span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += (s.data[i] & 0xC0) != 0x80;
    return n;
}

static fm_status keep_token(fmi_choice *c, const fm_gen_event *ev)
{
    const fm_tokenizer *tok = fm_model_tokenizer(c->job->res->model);
    FM_TRY(fm_grow(&c->token, &c->cap, c->count + 1, sizeof(*c->token)));
    if (ev->top_count)
        FM_TRY(fm_grow(&c->top, &c->tops_cap, c->tops + ev->top_count, sizeof(*c->top)));
    c->token[c->count++] = (fmi_token){.id = ev->token,
                                       .logprob = ev->logprob,
                                       .top0 = (uint32_t)c->tops,
                                       .top_count = ev->top_count,
                                       .text_at = (uint32_t)c->text_chars,
                                       .text_end = (uint32_t)c->text.len};
    if (ev->top_count)
        memcpy(c->top + c->tops, ev->top, ev->top_count * sizeof(*c->top));
    c->tops += ev->top_count;
    if (tok && c->job->ask.logprobs)
        c->text_chars += code_points(fm_tokenizer_token_bytes(tok, ev->token));
    return FM_OK;
}

static void keep_finish(fmi_choice *c, const fm_gen_event *ev)
{
    fmi_job *j = c->job;
    size_t n = FM_MIN(strlen(ev->finish), sizeof(c->finish) - 1);
    memcpy(c->finish, ev->finish, n);
    c->finish[n] = '\0';
    c->done = true;
    j->left--;
    if (ev->error)
        fmi_job_fail(j, 500, "generation_failed", NULL, ev->error);
    else if (strcmp(c->finish, "cancelled") == 0)
        fmi_job_fail_cancelled(j);
}

static bool on_event(void *ctx, const fm_gen_event *ev)
{
    fmi_choice *c = ctx;
    fmi_job *j = c->job;
    fmi_metrics *m = &j->server->metrics;
    fm_status rc = FM_OK;
    bool first = false;
    (void)pthread_mutex_lock(&j->lock);
    fm_buf_append(&c->text, ev->text, ev->text_len);
    c->cached = ev->cached;
    if (ev->token >= 0) {
        rc = keep_token(c, ev);
        first = !j->first_token;
        j->first_token = true;
    }
    FM_THEN(rc, fm_buf_ok(&c->text));
    if (rc < 0)
        fmi_job_fail(j, 500, "out_of_memory", NULL, NULL);
    if (ev->finish)
        keep_finish(c, ev);
    if (j->left == 0 || j->ask.stream)
        fmi_job_resume_locked(j);
    bool go_on = !j->gone && !j->fault.http;
    (void)pthread_mutex_unlock(&j->lock);
    if (first)
        fmi_metrics_add(m, &m->first_token, fm_now_s() - j->begun);
    return go_on;
}

/* ==== stages that the HTTP side posts ==== */

static void serve_list(fm_server *s, fmi_job *j)
{
    fm_status rc = fmi_models_describe(s, j->name, &j->listing);
    if (rc < 0)
        fmi_job_fail_model(j, rc);
    fmi_job_give_back(j, FMI_LISTED);
}

static void cancel_all(fm_server *s, fmi_job *j)
{
    if (j->ask.kind == FMI_ASK_EMBED)
        fmi_vectors_cancel(j);
    for (size_t i = 0; i < j->choices; i++)
        if (j->choice[i].id && !j->choice[i].done)
            (void)fm_scheduler_cancel(s->scheduler, j->choice[i].id);
}

static fm_status start(fm_server *s, fmi_job *j, fmi_choice *c)
{
    const fmi_ask *a = &j->ask;
    const char *stop[FMI_ASK_MAX_STOPS];
    for (size_t i = 0; i < a->stops; i++)
        stop[i] = a->stop[i];
    fm_gen_request q = {.model = j->res->model,
                        .prompt = c->prompt,
                        .prompt_len = c->prompt_len,
                        .max_new = a->max_tokens,
                        .sampling = a->sampling,
                        .stop = stop,
                        .stop_count = a->stops,
                        .ignore_eos = a->ignore_eos,
                        .grammar = a->grammar,
                        .want_logprobs = a->logprobs,
                        .top_logprobs = a->top_logprobs,
                        .on_event = on_event,
                        .ctx = c};
    /* Each choice of a request draws its own numbers. */
    q.sampling.seed += (uint64_t)(c - j->choice);
    return fm_scheduler_add(s->scheduler, &q, &c->id);
}

/* The most bytes that j's answers may take until they are sent. */
static size_t answer_bytes(const fmi_job *j)
{
    const fm_arch *a = fm_model_arch(j->res->model);
    const fmi_ask *q = &j->ask;
    size_t token = sizeof(fmi_token) + (q->logprobs ? q->top_logprobs * sizeof(fm_logprob) : 0);
    size_t bytes = 0;
    for (size_t i = 0; i < j->choices; i++) {
        size_t most_tokens = fm_arch_longest(a);
        size_t taken = a->sw.cross ? 0 : j->choice[i].prompt_len; /* a source's are its own */
        size_t left = most_tokens - FM_MIN(taken, most_tokens);
        bytes += q->kind == FMI_ASK_EMBED ? a->hidden * sizeof(float)
                                          : FM_MIN(q->max_tokens, left) * token;
    }
    return bytes;
}

/* Counts j's answers against the bound of all answers, which wait in memory for slow readers. */
static fm_status reserve_answer(fm_server *s, fmi_job *j)
{
    size_t bytes = answer_bytes(j);
    size_t sequences = (size_t)s->opts.max_running + s->opts.max_queue;
    size_t most = FM_MAX(sequences * FMI_ANSWER_BYTES_EACH, FMI_ANSWER_BYTES_MIN);
    if (bytes <= most - FM_MIN(atomic_load(&s->answer_bytes), most)) {
        atomic_fetch_add(&s->answer_bytes, bytes);
        j->answer_bytes = bytes;
        return FM_OK;
    }
    bool embed = j->ask.kind == FMI_ASK_EMBED, never = bytes > most;
    fm_status rc = fm_fail(
        FM_ELIMIT, "the answer may take %zu MiB of memory (%s), and %s %zu MiB%s", bytes >> 20,
        embed ? "texts of 'input' x the model's width"
              : "prompts x 'n' x 'max_tokens' x alternatives of 'logprobs'",
        never ? "all answers together may take" : "the answers in flight leave less than that of",
        most >> 20, never ? "" : "; try again");
    (void)pthread_mutex_lock(&j->lock);
    fmi_job_fail(j, never ? 400 : 503, never ? "invalid_value" : "queue_full",
                 embed ? "input" : "n", NULL);
    (void)pthread_mutex_unlock(&j->lock);
    return rc;
}

static void serve_run(fm_server *s, fmi_job *j)
{
    size_t in = 0;
    fm_status rc = reserve_answer(s, j);
    size_t started = 0;
    while (started < j->choices && rc == FM_OK) {
        if (j->ask.kind != FMI_ASK_EMBED)
            rc = start(s, j, &j->choice[started]);
        if (rc == FM_OK)
            in += j->choice[started++].prompt_len;
    }
    if (rc < 0) {
        (void)pthread_mutex_lock(&j->lock);
        fmi_job_fail(j, fmi_job_http_of(rc), NULL, fmi_job_question(j), NULL);
        for (size_t i = started; i < j->choices; i++)
            j->choice[i].done = true;
        j->left = started;
        (void)pthread_mutex_unlock(&j->lock);
        cancel_all(s, j);
    }
    (void)pthread_mutex_lock(&s->metrics.lock);
    s->metrics.tokens_in += in;
    (void)pthread_mutex_unlock(&s->metrics.lock);
    fmi_job_ref(j);
    j->next_active = s->active;
    s->active = j;
    if (j->ask.stream || started == 0)
        fmi_job_resume(j); /* the HTTP side sends the head of the answer now */
}

void fmi_batch_serve(fm_server *s, fmi_job *j)
{
    switch (j->stage) {
    case FMI_LIST:
        serve_list(s, j);
        break;
    case FMI_FIND:
        fmi_models_want(s, j);
        break;
    case FMI_RUN:
        (void)pthread_mutex_lock(&j->lock);
        j->stage = FMI_RUNNING;
        (void)pthread_mutex_unlock(&j->lock);
        serve_run(s, j);
        break;
    case FMI_READ:
    case FMI_LISTED:
    case FMI_FOUND:
    case FMI_RUNNING:
    case FMI_FAILED:
        break; /* these stages are never posted */
    }
}

/* ==== the active jobs ==== */

void fmi_batch_drop_departed(fm_server *s)
{
    for (fmi_job *j = s->active; j; j = j->next_active)
        if (fmi_job_client_left(j))
            cancel_all(s, j);
    fmi_models_drop_waiting(s, false);
}

void fmi_batch_cancel_all(fm_server *s)
{
    for (fmi_job *j = s->active; j; j = j->next_active)
        cancel_all(s, j);
}

void fmi_batch_abandon(fm_server *s, const char *code, const char *text, bool stuck)
{
    for (fmi_job *j = s->active; j; j = j->next_active) {
        (void)pthread_mutex_lock(&j->lock);
        if (j->left > 0) /* else the answer is whole, though perhaps not sent yet */
            fmi_job_fail(j, 503, code, NULL, text);
        if (stuck) {
            j->left = 0;
            fmi_job_resume_locked(j);
        }
        (void)pthread_mutex_unlock(&j->lock);
    }
}

static void retire(fm_server *s, fmi_job *j)
{
    size_t out = 0;
    for (size_t i = 0; i < j->choices; i++)
        out += j->choice[i].count;
    (void)pthread_mutex_lock(&j->lock);
    bool gone = j->gone;
    fmi_job_resume_locked(j);
    (void)pthread_mutex_unlock(&j->lock);
    (void)pthread_mutex_lock(&s->metrics.lock);
    s->metrics.tokens_out += out;
    s->metrics.cancelled += gone;
    (void)pthread_mutex_unlock(&s->metrics.lock);
    if (!gone)
        fmi_metrics_add(&s->metrics, &s->metrics.whole, fm_now_s() - j->begun);
    fmi_job_unref(j);
}

void fmi_batch_retire_done(fm_server *s)
{
    for (fmi_job **at = &s->active; *at;) {
        fmi_job *j = *at;
        (void)pthread_mutex_lock(&j->lock);
        bool done = j->left == 0;
        (void)pthread_mutex_unlock(&j->lock);
        if (!done) {
            at = &j->next_active;
            continue;
        }
        *at = j->next_active;
        retire(s, j);
    }
}

/* Versions with sequences in the batch or waiting for it. */
static uint32_t models_active(const fm_server *s)
{
    uint32_t n = 0;
    for (const fmi_job *j = s->active; j; j = j->next_active) {
        const fmi_job *k = s->active;
        while (k != j && k->res != j->res)
            k = k->next_active;
        n += k == j;
    }
    return n;
}

void fmi_batch_publish(fm_server *s)
{
    fmi_metrics *m = &s->metrics;
    fm_engine_stats e = fm_engine_stats_of(s->engine);
    uint32_t models = models_active(s);
    (void)pthread_mutex_lock(&m->lock);
    m->engine = e;
    m->running = fm_scheduler_running(s->scheduler);
    m->waiting = fm_scheduler_waiting(s->scheduler);
    m->models_running = models;
    m->resident = s->residents - s->loading;
    m->loading = s->loading;
    (void)pthread_mutex_unlock(&m->lock);
}

fm_status fmi_batch_step(fm_server *s)
{
    bool busy;
    uint64_t rows = fm_engine_stats_of(s->engine).rows;
    uint32_t models = models_active(s);
    fm_status rc = fm_scheduler_step(s->scheduler, &busy);
    fmi_vectors_step(s);
    rows = fm_engine_stats_of(s->engine).rows - rows;
    if (rows) {
        fmi_metrics_add(&s->metrics, &s->metrics.step_rows, (double)rows);
        fmi_metrics_add(&s->metrics, &s->metrics.step_models, (double)models);
    }
    fmi_batch_retire_done(s);
    return rc;
}
