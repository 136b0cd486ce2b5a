/* queue.c - the queue of jobs between the HTTP side and the engine thread. */
#include "infer/serve/internal.h"

#include <errno.h>
#include <time.h>

bool fmi_server_post(fm_server *s, fmi_job *j)
{
    (void)pthread_mutex_lock(&s->lock);
    bool open = !s->closed;
    if (open) {
        fmi_job_ref(j);
        j->next_queued = NULL;
        *s->queue_end = j;
        s->queue_end = &j->next_queued;
        (void)pthread_cond_signal(&s->wake);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return open;
}

fmi_job *fmi_server_take(fm_server *s, double seconds, bool close)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    long ns = until.tv_nsec + (long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)pthread_mutex_lock(&s->lock);
    int timed = seconds > 0 ? 0 : ETIMEDOUT;
    while (!s->queue && !s->loaded && timed == 0 && !atomic_load(&s->stop))
        timed = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    fmi_job *all = s->queue;
    s->queue = NULL;
    s->queue_end = &s->queue;
    s->closed = s->closed || close;
    (void)pthread_mutex_unlock(&s->lock);
    return all;
}
