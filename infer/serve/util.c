/* util.c - helpers of the server: the count of admitted sequences, the release of a model. */
#include "infer/serve/internal.h"


bool fmi_server_admit(fm_server *s, uint32_t n)
{
    uint64_t most = (uint64_t)s->opts.max_running + s->opts.max_queue;
    (void)pthread_mutex_lock(&s->lock);
    bool room = (uint64_t)s->admitted + n <= most;
    if (room)
        s->admitted += n;
    (void)pthread_mutex_unlock(&s->lock);
    return room;
}

void fmi_server_leave(fm_server *s, uint32_t n)
{
    (void)pthread_mutex_lock(&s->lock);
    s->admitted -= n;
    (void)pthread_mutex_unlock(&s->lock);
}

void fmi_models_unpin(fmi_resident *r)
{
    if (r)
        atomic_fetch_sub(&r->pins, 1);
}
