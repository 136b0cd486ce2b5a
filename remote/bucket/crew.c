/* crew.c - a few threads that make requests at once. */
#include "remote/bucket/crew.h"

#include <pthread.h>

#include "store/base/mem.h"

struct fmr_crew {
    pthread_mutex_t mutex;
    pthread_cond_t given, done;
    fmr_job_fn fn;
    void *ctx;
    bool end;
    unsigned queue[FMR_CREW_MAX], queued; /* slots that wait, the first one next */
    struct slot {
        bool busy;
        fm_status rc;
        fm_error_state text;
    } slot[FMR_CREW_MAX];
    struct worker {
        struct fmr_crew *crew;
        pthread_t thread;
    } worker[FMR_CREW_MAX];
    unsigned workers;
};

/* The mutex is held on call and on return. */
static void work_once(fmr_crew *c, unsigned me)
{
    const unsigned slot = c->queue[0];
    fm_error_state text;
    c->queued--;
    for (unsigned i = 0; i < c->queued; i++)
        c->queue[i] = c->queue[i + 1];
    (void)pthread_mutex_unlock(&c->mutex);
    const fm_status rc = c->fn(c->ctx, me, slot);
    fm_error_save(&text);
    (void)pthread_mutex_lock(&c->mutex);
    c->slot[slot].rc = rc;
    c->slot[slot].text = text;
    c->slot[slot].busy = false;
    (void)pthread_cond_broadcast(&c->done);
}

static void *work(void *ctx)
{
    struct worker *w = ctx;
    fmr_crew *c = w->crew;
    (void)pthread_mutex_lock(&c->mutex);
    for (;;) {
        while (!c->end && c->queued == 0)
            (void)pthread_cond_wait(&c->given, &c->mutex);
        if (c->end)
            break;
        work_once(c, (unsigned)(w - c->worker));
    }
    (void)pthread_mutex_unlock(&c->mutex);
    return NULL;
}

fm_status fmr_crew_new(fmr_crew **out, unsigned workers, fmr_job_fn fn, void *ctx)
{
    *out = NULL;
    fmr_crew *c = fm_calloc(1, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    fm_assert(workers > 0 && workers <= FMR_CREW_MAX);
    (void)pthread_mutex_init(&c->mutex, NULL);
    (void)pthread_cond_init(&c->given, NULL);
    (void)pthread_cond_init(&c->done, NULL);
    c->fn = fn;
    c->ctx = ctx;
    for (; c->workers < workers; c->workers++) {
        struct worker *w = &c->worker[c->workers];
        w->crew = c;
        if (pthread_create(&w->thread, NULL, work, w) != 0)
            break;
    }
    if (c->workers == 0) {
        fmr_crew_free(c);
        return fm_fail(FM_ENOMEM, "no thread can be started");
    }
    *out = c;
    return FM_OK;
}

void fmr_crew_give(fmr_crew *c, unsigned slot)
{
    (void)pthread_mutex_lock(&c->mutex);
    fm_assert(slot < FMR_CREW_MAX && !c->slot[slot].busy);
    c->slot[slot].busy = true;
    c->slot[slot].rc = FM_OK;
    c->queue[c->queued++] = slot;
    (void)pthread_cond_signal(&c->given);
    (void)pthread_mutex_unlock(&c->mutex);
}

fm_status fmr_crew_wait(fmr_crew *c, unsigned slot)
{
    (void)pthread_mutex_lock(&c->mutex);
    while (c->slot[slot].busy)
        (void)pthread_cond_wait(&c->done, &c->mutex);
    const fm_status rc = c->slot[slot].rc;
    if (rc != FM_OK)
        fm_error_restore(&c->slot[slot].text);
    c->slot[slot].rc = FM_OK;
    (void)pthread_mutex_unlock(&c->mutex);
    return rc;
}

void fmr_crew_free(fmr_crew *c)
{
    fm_error_state text;
    if (!c)
        return;
    fm_error_save(&text);
    (void)pthread_mutex_lock(&c->mutex);
    c->end = true;
    (void)pthread_cond_broadcast(&c->given);
    (void)pthread_mutex_unlock(&c->mutex);
    for (unsigned i = 0; i < c->workers; i++)
        (void)pthread_join(c->worker[i].thread, NULL);
    (void)pthread_cond_destroy(&c->done);
    (void)pthread_cond_destroy(&c->given);
    (void)pthread_mutex_destroy(&c->mutex);
    fm_free(c);
    fm_error_restore(&text);
}
