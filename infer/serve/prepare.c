/* prepare.c - the threads that make prompts, and their queue. */
#include "infer/serve/prepare.h"

#include <stdio.h>

#include "infer/prompt.h"
#include "store/base/mem.h"

#define WORKERS 4u
#define ONE_MODEL_MAX (WORKERS - 1)
#define READY_WITHIN                                                                               \
    30.0 /* seconds from FMI_FOUND to FMI_RUN; a rendering alone takes one or two at most */

typedef struct worker {
    struct fmi_prepare *of;
    pthread_t thread;
    fmi_job *job; /* the job that it works on; its model is job->res */
    double until;
    fm_chat_watch watch;
} worker;

typedef struct fmi_prepare {
    fm_server *server;
    worker worker[WORKERS];
    size_t started;
    atomic_bool over;
    pthread_mutex_t lock; /* guards queue and worker[].job; no other lock is taken inside of it */
    pthread_cond_t wake;
    fmi_job *queue, **queue_end;
} fmi_prepare;

/* ==== one prompt ==== */

static fm_status encode_one(const fmi_job *j, size_t i, fm_ids *ids)
{
    const fm_model *m = j->res->model;
    if (j->ask.chat)
        return fm_prompt_messages(ids, m, j->ask.messages, j->ask.tools, j->ask.variables);
    fmi_prompt *p = &j->ask.prompt[i];
    if (p->text.data && j->ask.kind == FMI_ASK_EMBED)
        return fm_embed_encode(m, p->text, ids);
    if (p->text.data)
        return fm_prompt_text(ids, m, p->text);
    *ids = (fm_ids){p->ids, p->count, p->count}; /* moves them */
    p->ids = NULL;
    return FM_OK;
}

/* Whether to stop: called between prompts, and now and then during a rendering. */
static bool given_up(void *ctx)
{
    worker *w = ctx;
    return atomic_load(&w->of->over) || fm_now_s() > w->until || fmi_job_client_left(w->job);
}

static fm_status encode(worker *w, fmi_job *j)
{
    size_t n = (j->ask.chat ? 1 : j->ask.prompts) * j->ask.n;
    j->choice = fm_calloc(n, sizeof(*j->choice));
    if (!j->choice)
        return FM_ENOMEM;
    j->choices = j->left = n;
    for (size_t i = 0; i < n; i++) {
        fmi_choice *c = &j->choice[i];
        fm_ids ids = {0};
        c->job = j;
        fm_buf_init(&c->text, 0);
        if (i % j->ask.n) {
            c->prompt = c[-1].prompt;
            c->prompt_len = c[-1].prompt_len;
            continue;
        }
        if (given_up(w))
            return fm_fail(FM_ECANCELLED, "stopped before the prompt was made");
        fm_status rc = encode_one(j, i / j->ask.n, &ids);
        c->prompt = ids.id;
        c->prompt_len = ids.count;
        if (rc == FM_OK && ids.count == 0)
            rc = fm_fail(FM_EINVAL, "'%s' is empty, and this model begins with no token of its own",
                         fmi_job_question(j));
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* Fails the job. over: the server is shutting down. */
static void refuse(fmi_job *j, fm_status rc, bool over)
{
    char text[96];
    (void)snprintf(text, sizeof(text),
                   "the prompt was not ready within %.0f seconds; try again, or send less",
                   READY_WITHIN);
    (void)pthread_mutex_lock(&j->lock);
    if (over)
        fmi_job_fail(j, 503, "shutting_down", NULL, "the server is shutting down");
    else if (rc == FM_ECANCELLED && j->gone)
        fmi_job_fail_cancelled(j);
    else if (rc == FM_ECANCELLED)
        fmi_job_fail(j, 503, "prompt_not_ready", fmi_job_question(j), text);
    else
        fmi_job_fail(j, rc == FM_ENOMEM ? 500 : 400, "invalid_value", fmi_job_question(j), NULL);
    (void)pthread_mutex_unlock(&j->lock);
    fmi_job_give_back(j, FMI_FAILED);
}

static void prepare(worker *w, fmi_job *j)
{
    fm_status rc = encode(w, j);
    fmi_ask_drop_texts(&j->ask);
    if (rc < 0) {
        refuse(j, rc, rc == FM_ECANCELLED && atomic_load(&w->of->over));
        return;
    }
    (void)pthread_mutex_lock(&j->lock);
    j->stage = FMI_RUN;
    (void)pthread_mutex_unlock(&j->lock);
    if (!fmi_server_post(w->of->server, j))
        refuse(j, FM_ECANCELLED, true);
}

/* ==== the queue ==== */

static unsigned at_work(const fmi_prepare *p, const fmi_resident *r)
{
    unsigned n = 0;
    for (size_t i = 0; i < WORKERS; i++)
        n += p->worker[i].job && p->worker[i].job->res == r;
    return n;
}

/* Takes the next job out of the queue; NULL: none may be taken now. The lock is held. */
static fmi_job *take(fmi_prepare *p)
{
    fmi_job **best = NULL;
    unsigned fewest = ONE_MODEL_MAX;
    for (fmi_job **at = &p->queue; *at; at = &(*at)->next_queued) {
        unsigned n = at_work(p, (*at)->res);
        if (n < fewest) {
            fewest = n;
            best = at;
        }
    }
    if (!best)
        return NULL;
    fmi_job *j = *best;
    *best = j->next_queued;
    if (!j->next_queued)
        p->queue_end = best;
    return j;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    fmi_prepare *p = w->of;
    w->watch = (fm_chat_watch){.stop = given_up, .ctx = w};
    (void)fm_chat_watch_set(&w->watch);
    (void)pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!(w->job = take(p)) && !atomic_load(&p->over))
            (void)pthread_cond_wait(&p->wake, &p->lock);
        fmi_job *j = w->job;
        if (!j)
            break;
        w->until = j->found + READY_WITHIN;
        (void)pthread_mutex_unlock(&p->lock);
        prepare(w, j);
        (void)pthread_mutex_lock(&p->lock);
        w->job = NULL;
        (void)pthread_cond_broadcast(&p->wake); /* its model may use one more thread again */
        (void)pthread_mutex_unlock(&p->lock);
        fmi_job_unref(j);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

void fmi_prepare_put(fm_server *s, fmi_job *j)
{
    fmi_prepare *p = s->prepare;
    (void)pthread_mutex_lock(&j->lock); /* with it, the HTTP side has suspended the connection */
    j->stage = FMI_FOUND;
    (void)pthread_mutex_unlock(&j->lock);
    j->found = fm_now_s();
    (void)pthread_mutex_lock(&p->lock);
    bool over = atomic_load(&p->over);
    if (!over) {
        fmi_job_ref(j);
        j->next_queued = NULL;
        *p->queue_end = j;
        p->queue_end = &j->next_queued;
        (void)pthread_cond_signal(&p->wake);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (over)
        refuse(j, FM_ECANCELLED, true);
}

/* ==== begin and end ==== */

fm_status fmi_prepare_start(fm_server *s)
{
    fmi_prepare *p = fm_calloc(1, sizeof(*p));
    if (!p)
        return FM_ENOMEM;
    if (pthread_mutex_init(&p->lock, NULL) != 0 || pthread_cond_init(&p->wake, NULL) != 0) {
        fm_free(p);
        return fm_fail(FM_EIO, "server: cannot make a lock");
    }
    p->server = s;
    p->queue_end = &p->queue;
    s->prepare = p;
    for (; p->started < WORKERS; p->started++) {
        worker *w = &p->worker[p->started];
        w->of = p;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            return fm_fail(FM_EIO, "server: cannot start a preparing thread");
    }
    return FM_OK;
}

void fmi_prepare_stop(fm_server *s)
{
    fmi_prepare *p = s->prepare;
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    atomic_store(&p->over, true);
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (; p->started > 0; p->started--) /* the workers empty the queue first */
        (void)pthread_join(p->worker[p->started - 1].thread, NULL);
}

void fmi_prepare_free(fm_server *s)
{
    fmi_prepare *p = s->prepare;
    fmi_prepare_stop(s);
    if (!p)
        return;
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    fm_free(p);
    s->prepare = NULL;
}
