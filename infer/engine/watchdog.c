/* watchdog.c - see watchdog.h. */
#include "infer/engine/watchdog.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define LOOKS 8.0 /* checks within the time limit */

struct fmi_watchdog {
    double limit_s;
    char name[64];
    pthread_mutex_t lock; /* guards what follows; held while hung is called */
    pthread_cond_t wake;
    pthread_t thread;
    uint32_t depth; /* nested steps that the engine's thread is in */
    double begun;
    bool ends, told;
    fm_hung_fn hung;
    void *ctx;
};

static void wait_a_while(fmi_watchdog *p)
{
    double s = p->limit_s / LOOKS;
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + (uint64_t)(s * 1e9);
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    (void)pthread_cond_timedwait(&p->wake, &p->lock, &t);
}

static void *look(void *arg)
{
    fmi_watchdog *p = arg;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->ends) {
        wait_a_while(p);
        if (p->depth == 0 || p->told || !p->hung || fm_now_s() - p->begun < p->limit_s)
            continue;
        char text[160];
        (void)snprintf(text, sizeof(text),
                       "%s: a step does not end within %.3g s (config compute.stepTimeout)",
                       p->name, p->limit_s);
        p->told = true;
        p->hung(p->ctx, text);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool make_locks(fmi_watchdog *p)
{
    pthread_condattr_t attr;
    if (pthread_mutex_init(&p->lock, NULL) != 0)
        return false;
    bool good = pthread_condattr_init(&attr) == 0;
    if (good) {
        good = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
               pthread_cond_init(&p->wake, &attr) == 0;
        (void)pthread_condattr_destroy(&attr);
    }
    if (!good)
        (void)pthread_mutex_destroy(&p->lock);
    return good;
}

fm_status fmi_watchdog_new(fmi_watchdog **out, double limit_s, const char *name)
{
    *out = NULL;
    fmi_watchdog *p = fm_calloc(1, sizeof(*p));
    if (!p)
        return FM_ENOMEM;
    p->limit_s = limit_s;
    (void)snprintf(p->name, sizeof(p->name), "%s", name);
    bool locks = make_locks(p);
    if (!locks || pthread_create(&p->thread, NULL, look, p) != 0) {
        if (locks) {
            (void)pthread_cond_destroy(&p->wake);
            (void)pthread_mutex_destroy(&p->lock);
        }
        fm_free(p);
        return fm_fail(FM_ELIMIT, "no thread to look after the device");
    }
    *out = p;
    return FM_OK;
}

void fmi_watchdog_free(fmi_watchdog *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->ends = true;
    (void)pthread_cond_signal(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_join(p->thread, NULL);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    fm_free(p);
}

void fmi_watchdog_hung(fmi_watchdog *p, fm_hung_fn hung, void *ctx)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->hung = hung;
    p->ctx = ctx;
    (void)pthread_mutex_unlock(&p->lock);
}

void fmi_watchdog_begin(fmi_watchdog *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    if (p->depth++ == 0)
        p->begun = fm_now_s();
    (void)pthread_mutex_unlock(&p->lock);
}

void fmi_watchdog_end(fmi_watchdog *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->depth--;
    p->told = p->told && p->depth > 0;
    (void)pthread_mutex_unlock(&p->lock);
}
