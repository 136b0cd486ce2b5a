/* watch.c - a thread that watches the host's wire while a device's wire carries buffers.
 *
 * The host may wait for its GPU at many places (a full queue of launches, a free, a copy), and the
 * GPU for a peer that will never send. Then the host does not read what that peer sends over the
 * host's wire. This thread polls the wire every TICK_NS while exchanges are under way. It sees only
 * the first message of each connection, which is enough: a rank sends over the host's wire only
 * after all its exchanges have arrived (comm.c settles first), so a peer that a GPU still waits for
 * has sent nothing else. */
#include "infer/comm/wire.h"

#include <errno.h>
#include <time.h>

#include "store/base/mem.h"

#define TICK_NS 20000000L

struct fm_watch {
    fm_wire *host, *device;
    pthread_mutex_t *host_lock;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t wake;
    pthread_t thread;
    bool ends, under_way, gave_up;
    struct timespec since; /* when the exchanges began */
};

/* Waits for the next tick. True: the thread is to end. *look: exchanges are under way. */
static bool tick(fm_watch *w, bool *look)
{
    struct timespec until;
    (void)pthread_mutex_lock(&w->lock);
    while (!w->ends && !w->under_way)
        (void)pthread_cond_wait(&w->wake, &w->lock);
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (!w->ends && pthread_cond_timedwait(&w->wake, &w->lock, &until) != ETIMEDOUT)
        continue;
    bool ends = w->ends;
    *look = w->under_way;
    (void)pthread_mutex_unlock(&w->lock);
    return ends;
}

/* Whether the device's wire is to be given up. Runs under the host's lock, as all readers of that
 * wire do: a rank that breaks off either finds gave_up set, or has itself read the message that
 * `called` looks for. */
static bool decides(fm_watch *w)
{
    struct timespec now;
    bool called = w->host->called(w->host);
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* setting the clock back or forth is no delay */
    (void)pthread_mutex_lock(&w->lock);
    bool late = w->host->step_timeout_s > 0.0 &&
                (double)(now.tv_sec - w->since.tv_sec) > w->host->step_timeout_s + 1.0;
    bool now_ends = w->under_way && (called || late);
    w->gave_up = w->gave_up || now_ends;
    w->under_way = w->under_way && !now_ends;
    (void)pthread_mutex_unlock(&w->lock);
    return now_ends;
}

static void *watch(void *arg)
{
    fm_watch *w = arg;
    bool look = false;
    while (!tick(w, &look)) {
        if (!look || pthread_mutex_trylock(w->host_lock) != 0) /* another thread reads that wire */
            continue;
        bool gives_up = decides(w);
        (void)pthread_mutex_unlock(w->host_lock);
        if (gives_up) /* not under the lock: it may wait for the other ranks */
            w->device->give_up(w->device);
    }
    return NULL;
}

bool fm_watch_gave_up(fm_watch *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool is = w->gave_up;
    (void)pthread_mutex_unlock(&w->lock);
    return is;
}

fm_status fm_watch_new(fm_watch **out, fm_wire *host, fm_wire *device, pthread_mutex_t *lock)
{
    fm_watch *w = fm_calloc(1, sizeof(*w));
    *out = NULL;
    if (!w)
        return FM_ENOMEM;
    w->host = host;
    w->device = device;
    w->host_lock = lock;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->wake, NULL);
    if (pthread_create(&w->thread, NULL, watch, w) != 0) {
        (void)pthread_cond_destroy(&w->wake);
        (void)pthread_mutex_destroy(&w->lock);
        fm_free(w);
        return fm_fail(FM_ELIMIT, "no thread to watch the other ranks");
    }
    *out = w;
    return FM_OK;
}

void fm_watch_queued(fm_watch *w, bool something)
{
    (void)pthread_mutex_lock(&w->lock);
    if (something && !w->under_way)
        (void)pthread_cond_signal(&w->wake);
    if (something && !w->under_way)
        (void)clock_gettime(CLOCK_MONOTONIC, &w->since);
    w->under_way = something;
    (void)pthread_mutex_unlock(&w->lock);
}

void fm_watch_free(fm_watch *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->ends = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->wake);
    (void)pthread_mutex_destroy(&w->lock);
    fm_free(w);
}
