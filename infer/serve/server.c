/* server.c - begin and end of the server, and the loop of the engine thread.
 *
 * One thread owns engine, catalog and scheduler, so none of them needs a lock; only jobs, and
 * versions on their way to the loader and back, pass between threads. The queue is bounded at
 * admission: waiting and running sequences are counted from parsing to the last byte sent. */
#include "infer/serve/batch.h"
#include "infer/serve/prepare.h"

#include <string.h>
#include <time.h>

#include "store/base/mem.h"

#define IDLE_WAIT 0.1 /* seconds; how soon *stop is seen */
#define LOOK_FOR_DEPARTED 0.05
#define FINISH_WITHIN 10.0 /* seconds for requests in flight at the end */
#define SEND_WITHIN 2.0    /* then seconds for answers that are ready */

fm_server_opts fm_server_defaults(void)
{
    return (fm_server_opts){.host = "127.0.0.1",
                            .max_running = 32,
                            .max_queue = 256,
                            .max_models = 64,
                            .max_tokens = 4096,
                            .max_body_bytes = (size_t)4 << 20};
}

/* ==== begin and end ==== */

static fm_status check(const fm_server_opts *o)
{
    const fm_server_catalog *k = &o->catalog;
    if (!k->resolve || !k->tree || !k->list || !k->provider.read)
        return fm_fail(FM_EINVAL, "server: the catalog lacks a callback");
    if (!o->host || !o->host[0])
        return fm_fail(FM_EINVAL, "server: no host to bind to");
    if (o->max_running < 1 || o->max_models < 1 || o->max_tokens < 1 || o->max_body_bytes < 1)
        return fm_fail(FM_EINVAL, "server: max_running, max_models, max_tokens and "
                                  "max_body_bytes must be at least 1");
    if (o->api_key && !o->api_key[0])
        return fm_fail(FM_EINVAL, "server: the API key is empty");
    return FM_OK;
}

static fm_status make_locks(fm_server *s)
{
    pthread_condattr_t attr;
    bool ok = pthread_mutex_init(&s->lock, NULL) == 0 &&
              pthread_mutex_init(&s->site_lock, NULL) == 0 && pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
             pthread_cond_init(&s->wake, &attr) == 0 && pthread_cond_init(&s->load, NULL) == 0;
        (void)pthread_condattr_destroy(&attr);
    }
    return ok ? fmi_metrics_init(&s->metrics) : fm_fail(FM_EIO, "server: cannot make a lock");
}

static fm_status fill(fm_server *s, const fm_server_opts *opts)
{
    s->opts = *opts;
    s->opts.api_key = opts->api_key ? "" : NULL; /* only its digest is kept */
    s->host = fm_strdup(opts->host);
    if (!s->host)
        return FM_ENOMEM;
    s->opts.host = s->host;
    if (opts->api_key)
        return fm_sha256(&s->key, opts->api_key, strlen(opts->api_key));
    return FM_OK;
}

fm_status fm_server_new(fm_server **out, fm_engine *e, const fm_server_opts *opts)
{
    *out = NULL;
    FM_TRY(check(opts));
    fm_server *s = fm_calloc(1, sizeof(*s));
    if (!s)
        return FM_ENOMEM;
    s->engine = e;
    s->queue_end = &s->queue;
    s->to_load_end = &s->to_load;
    s->loaded_end = &s->loaded;
    fm_status rc = make_locks(s);
    if (rc < 0) {
        fm_free(s);
        return rc;
    }
    rc = fill(s, opts);
    FM_THEN(rc, fmi_sites_init(s, opts->sites));
    FM_THEN(rc, fm_scheduler_new(&s->scheduler, e, opts->max_running));
    FM_THEN(rc, fmi_loader_start(s));
    FM_THEN(rc, fmi_prepare_start(s));
    FM_THEN(rc, fmi_http_start(s));
    if (rc < 0) {
        fm_server_free(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

uint16_t fm_server_port(const fm_server *s)
{
    return s->port;
}

bool fm_server_local(const fm_server *s)
{
    return s->local;
}

fm_status fm_server_preload(fm_server *s, const char *name)
{
    FM_TRY(fmi_models_load_now(s, name, false));
    fmi_batch_publish(s);
    return FM_OK;
}

fm_status fm_server_pin(fm_server *s, const char *name)
{
    FM_TRY(fmi_models_load_now(s, name, true));
    fmi_batch_publish(s);
    return FM_OK;
}

void fm_server_stop(fm_server *s)
{
    atomic_store(&s->stop, true);
    (void)pthread_mutex_lock(&s->lock);
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
}

/* ==== the queue ==== */

static void serve_queue(fm_server *s, double wait)
{
    fmi_job *next;
    for (fmi_job *j = fmi_server_take(s, wait, false); j; j = next) {
        next = j->next_queued;
        fmi_batch_serve(s, j);
        fmi_job_unref(j);
    }
}

static void refuse_queue(fm_server *s)
{
    fmi_job *next;
    for (fmi_job *j = fmi_server_take(s, 0, true); j; j = next) {
        next = j->next_queued;
        fmi_job_fail(j, 503, "shutting_down", NULL, "the server is shutting down");
        fmi_job_give_back(j, FMI_FAILED);
        fmi_job_unref(j);
    }
    fmi_models_drop_waiting(s, true);
}

/* ==== the loop ==== */

static bool working(const fm_server *s)
{
    return s->active || fm_scheduler_running(s->scheduler) || fm_scheduler_waiting(s->scheduler);
}

/* One round of the loop. idle: seconds that it may wait for work. */
static fm_status turn(fm_server *s, double idle, double *looked)
{
    fm_status rc = FM_OK;
    atomic_store(&s->working, working(s));
    serve_queue(s, working(s) ? 0 : idle);
    fmi_models_settle(s);
    double now = fm_now_s();
    if (now - *looked >= LOOK_FOR_DEPARTED) {
        *looked = now;
        fmi_batch_drop_departed(s);
        fmi_conns_sweep(&s->conns);
    }
    if (working(s))
        rc = fmi_batch_step(s);
    fmi_batch_publish(s);
    return rc;
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 2000000};
    (void)nanosleep(&t, NULL);
}

static void let_answers_leave(const fm_server *s)
{
    double until = fm_now_s() + SEND_WITHIN;
    while (atomic_load(&s->open_jobs) && fm_now_s() < until)
        nap();
}

/* The engine cannot be used any more: fails every request with the reason. */
static void give_up(fm_server *s)
{
    fm_error_state kept;
    fm_error_save(&kept);
    fmi_prepare_stop(s);
    refuse_queue(s);
    fm_error_restore(&kept);
    fmi_batch_abandon(s, "engine_lost", fm_error_text(), false);
    fmi_batch_cancel_all(s);
    for (int rounds = 0; working(s) && rounds < 8; rounds++)
        fm_ignore(fmi_batch_step(s), "the cancelled ones end in it");
    fmi_sites_end(s);
    let_answers_leave(s);
    fm_error_restore(&kept);
}

/* Refuses new requests, lets those in flight end in time, and lets answers leave. */
static fm_status wind_up(fm_server *s)
{
    fm_status rc = FM_OK;
    double looked = 0, until = fm_now_s() + FINISH_WITHIN;
    while (rc == FM_OK && fm_now_s() < until && (working(s) || atomic_load(&s->open_jobs))) {
        if (!working(s))
            nap();
        rc = turn(s, 0, &looked);
    }
    fmi_prepare_stop(s);
    refuse_queue(s);
    fmi_batch_cancel_all(s);
    while (rc == FM_OK && working(s))
        rc = fmi_batch_step(s);
    fmi_sites_end(s);
    let_answers_leave(s);
    return rc;
}

fm_status fm_server_run(fm_server *s, const volatile int *stop)
{
    fm_status rc = FM_OK;
    double looked = 0;
    while (rc == FM_OK && !atomic_load(&s->stop) && !(stop && *stop))
        if ((rc = turn(s, IDLE_WAIT, &looked)) == FM_OK)
            rc = fm_engine_check(s->engine);
    atomic_store(&s->refusing, true);
    if (rc == FM_OK)
        return wind_up(s);
    give_up(s);
    return rc;
}

void fm_server_abandon(fm_server *s, const char *text)
{
    atomic_store(&s->refusing, true);
    fmi_batch_abandon(s, "device_hangs", text, true);
    fmi_prepare_stop(s);
    refuse_queue(s);
    let_answers_leave(s);
}

void fm_server_free(fm_server *s)
{
    if (!s)
        return;
    atomic_store(&s->refusing, true);
    fmi_prepare_free(s);
    refuse_queue(s);
    fmi_batch_cancel_all(s);
    fm_scheduler_free(s->scheduler); /* running requests end "cancelled" and their jobs resume */
    s->scheduler = NULL;
    fmi_batch_retire_done(s);
    fmi_sites_wait(s);
    fmi_http_stop(s);
    fmi_loader_stop(s);
    fmi_models_close_all(s);
    fmi_metrics_destroy(&s->metrics);
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_cond_destroy(&s->load);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->site_lock);
    fm_free(s->host);
    fm_free(s);
}
