/* pool.c - a fork-join pool with persistent workers.
 *
 * The caller publishes a job and one 64-bit word: the generation and the number of parts. The
 * partition is fixed; which thread computes a part is not. A worker claims the part of its number;
 * when the caller has done its own part, it claims and computes those that no worker has begun, so
 * that a worker whose core is taken by another process delays nothing. Only the thread that has won
 * a claim looks at the job, so it may be rewritten as soon as all parts are done.
 *
 * A short call costs as much as the cache lines that travel between cores, so there are two of
 * them: one with the word and the job, which goes to a worker, and the worker's own, with its
 * claim, its status and whether it is done, which comes back.
 *
 * Both sides spin for a few microseconds, then yield their core between looks (the awaited thread
 * may be queued for this very core), and then sleep on a condition variable: waking a sleeping
 * thread costs more than a whole short kernel. Sleeping is announced (sleepers, caller_waits)
 * before the words are read a last time, and words are written before the announcement is read, all
 * in sequential consistency: one of the two sides always sees the other. */
#include "store/base/os/pool.h"

#include "store/base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define SPIN_NS 5000  /* with pauses */
#define WAIT_NS 45000 /* and yielding the core */
#define SPINS_PER_CLOCK 64
#define PARTS_BITS 16

struct worker {
    _Alignas(64) atomic_uint_fast64_t state; /* the last generation begun << 1 | done */
    fm_status status;                        /* result of the part; written by the claimant */
    unsigned number;                         /* 1 ..: the caller is number 0 */
    fm_pool *pool;
    pthread_t thread;
    fm_error_state error;
};

struct fm_pool {
    unsigned threads;
    unsigned started;      /* workers whose thread runs */
    struct worker *worker; /* [threads], [0] unused */
    /* The job: read by participants only, on the cache line of the word that announces it. */
    _Alignas(64) atomic_uint_fast64_t word; /* generation << PARTS_BITS | parts */
    fm_pool_fn fn;
    void *ctx;
    size_t count;
    _Alignas(64) atomic_uint sleepers; /* read by all threads, rarely written */
    atomic_bool caller_waits;
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_cond_t done;
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

unsigned fm_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (unsigned)FM_MAX(CPU_COUNT(&set), 1);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
    return n > 0 ? (unsigned)FM_MIN(n, MAX_THREADS) : 1;
}

/* Part i of parts: the first count % parts ones are one longer. */
static void part_of(size_t *begin, size_t *end, size_t count, unsigned parts, unsigned i)
{
    size_t each = count / parts;
    size_t longer = count % parts;

    *begin = i * each + FM_MIN(i, longer);
    *end = *begin + each + (i < longer ? 1 : 0);
}

/* Pauses or yields between looks at a word; false: it is time to sleep. */
static bool keep_waiting(int64_t since)
{
    const int64_t waited = now_ns() - since;

    if (waited > SPIN_NS)
        sched_yield();
    return waited < WAIT_NS;
}

static bool word_changed(fm_pool *p, uint64_t seen)
{
    return atomic_load(&p->word) != seen || atomic_load(&p->stop);
}

static void wait_for_word(fm_pool *p, uint64_t seen)
{
    const int64_t since = now_ns();

    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (word_changed(p, seen))
                return;
            cpu_pause();
        }
    } while (keep_waiting(since));
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while (!word_changed(p, seen))
        pthread_cond_wait(&p->wake, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

static bool is_done(struct worker *w, uint64_t generation)
{
    return atomic_load(&w->state) == (generation << 1 | 1);
}

static void wait_for_part(fm_pool *p, struct worker *w, uint64_t generation)
{
    const int64_t since = now_ns();

    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (is_done(w, generation))
                return;
            cpu_pause();
        }
    } while (keep_waiting(since));
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_waits, true);
    while (!is_done(w, generation))
        pthread_cond_wait(&p->done, &p->mutex);
    atomic_store(&p->caller_waits, false);
    pthread_mutex_unlock(&p->mutex);
}

static void finish_part(struct worker *w, uint64_t generation)
{
    fm_pool *p = w->pool;

    atomic_store(&w->state, generation << 1 | 1);
    if (!atomic_load(&p->caller_waits))
        return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mutex);
}

/* Claims the worker's part of this generation; the worker or the caller wins. A late worker always
 * loses: a caller that has gone on has computed the part itself. */
static bool claim(struct worker *w, uint64_t generation)
{
    uint_fast64_t last = atomic_load(&w->state);
    return last >> 1 < generation &&
           atomic_compare_exchange_strong(&w->state, &last, generation << 1);
}

static void compute_part(fm_pool *p, struct worker *w, unsigned parts)
{
    size_t begin, end;
    part_of(&begin, &end, p->count, parts, w->number);
    w->status = p->fn(p->ctx, begin, end, w->number);
    if (w->status < 0)
        fm_error_save(&w->error);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    fm_pool *p = w->pool;
    uint64_t seen = 0;

    for (;;) {
        wait_for_word(p, seen);
        if (atomic_load(&p->stop))
            return NULL;
        seen = atomic_load(&p->word);
        unsigned parts = (unsigned)(seen & ((1u << PARTS_BITS) - 1));
        if (w->number >= parts || !claim(w, seen >> PARTS_BITS))
            continue;
        compute_part(p, w, parts);
        finish_part(w, seen >> PARTS_BITS);
    }
}

static fm_status start_workers(fm_pool *p)
{
    for (unsigned i = 1; i < p->threads; i++) {
        struct worker *w = &p->worker[i];
        w->pool = p;
        w->number = i;
        int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err)
            return fm_fail(FM_EIO, "cannot start thread %u of %u: %s", i + 1, p->threads,
                           strerror(err));
        p->started++;
    }
    return FM_OK;
}

fm_status fm_pool_new(fm_pool **out, unsigned threads)
{
    *out = NULL;
    if (threads == 0)
        threads = fm_cpus();
    if (threads > MAX_THREADS)
        return fm_fail(FM_ELIMIT, "%u threads: at most %d", threads, MAX_THREADS);
    fm_pool *p = fm_aligned_alloc(_Alignof(fm_pool), sizeof(*p));
    if (!p)
        return FM_ENOMEM;
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->worker = fm_aligned_alloc(_Alignof(struct worker), threads * sizeof(*p->worker));
    if (p->worker)
        memset(p->worker, 0, threads * sizeof(*p->worker));
    fm_status rc = p->worker ? start_workers(p) : FM_ENOMEM;
    if (rc < 0) {
        fm_pool_free(p);
        return rc;
    }
    *out = p;
    return FM_OK;
}

unsigned fm_pool_threads(const fm_pool *pool)
{
    return pool ? pool->threads : 1;
}

static unsigned parts_for(const fm_pool *p, size_t count, size_t min_chunk)
{
    size_t parts = count / FM_MAX(min_chunk, 1);
    return (unsigned)FM_MAX(FM_MIN(parts, fm_pool_threads(p)), 1);
}

static uint64_t publish(fm_pool *p, unsigned parts)
{
    uint64_t generation = (atomic_load(&p->word) >> PARTS_BITS) + 1;

    atomic_store(&p->word, generation << PARTS_BITS | parts);
    if (atomic_load(&p->sleepers) == 0)
        return generation;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
    return generation;
}

static void compute_unclaimed(fm_pool *p, unsigned parts, uint64_t generation)
{
    for (unsigned i = 1; i < parts; i++) {
        if (!claim(&p->worker[i], generation))
            continue;
        compute_part(p, &p->worker[i], parts);
        atomic_store(&p->worker[i].state, generation << 1 | 1);
    }
}

fm_status fm_pool_run(fm_pool *pool, size_t count, size_t min_chunk, fm_pool_fn fn, void *ctx)
{
    const unsigned parts = parts_for(pool, count, min_chunk);
    size_t begin, end;

    if (count == 0)
        return FM_OK;
    if (parts == 1)
        return fn(ctx, 0, count, 0);
    pool->fn = fn;
    pool->ctx = ctx;
    pool->count = count;
    const uint64_t generation = publish(pool, parts);
    part_of(&begin, &end, count, parts, 0);
    fm_status rc = fn(ctx, begin, end, 0);
    fm_error_state own;
    if (rc < 0)
        fm_error_save(&own); /* a part computed below may fail too; the lowest part's text counts */
    compute_unclaimed(pool, parts, generation);
    if (rc < 0)
        fm_error_restore(&own);
    for (unsigned i = 1; i < parts; i++) {
        if (!is_done(&pool->worker[i], generation))
            wait_for_part(pool, &pool->worker[i], generation);
        if (rc >= 0 && pool->worker[i].status < 0) {
            rc = pool->worker[i].status;
            fm_error_restore(&pool->worker[i].error);
        }
    }
    return rc;
}

void fm_pool_free(fm_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 1; i <= pool->started; i++)
        pthread_join(pool->worker[i].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    fm_free(pool->worker);
    fm_free(pool);
}
