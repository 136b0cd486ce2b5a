/* wrap.c - engines of this program that have a prefix cache are of several stages, the others of
 * one rank, so that a test that compares the two kinds compares stages with one rank. Ranks but the
 * first are threads, whose models come from the provider that rank 0's model came from.
 *
 * FM_TEST_STAGES: how many (2); FM_TEST_SPLIT: ranks of each (1); FM_TEST_MICRO: rows of a
 * micro-batch (3). tests/CMakeLists.txt has the programs and how they are linked. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/comm/wire.h"
#include "infer/engine/engine.h"
#include "store/base/mem.h"

#define MOST_RANKS 8u
#define MOST_ENGINES 16u
#define MOST_MODELS 512u

fm_status __real_fm_engine_new(fm_engine **out, const fm_engine_opts *opts);
fm_status __wrap_fm_engine_new(fm_engine **out, const fm_engine_opts *opts);
void __real_fm_engine_free(fm_engine *e);
void __wrap_fm_engine_free(fm_engine *e);
fm_status __real_fm_model_load(fm_model **out, fm_engine *e, const fm_tree *tree,
                               const fm_provider *p, const char *what);
fm_status __wrap_fm_model_load(fm_model **out, fm_engine *e, const fm_tree *tree,
                               const fm_provider *p, const char *what);
fm_status __real_fm_model_prepare(fm_model **out, fm_engine *e, const fm_tree *tree,
                                  const fm_provider *p, const char *what, unsigned threads);
fm_status __wrap_fm_model_prepare(fm_model **out, fm_engine *e, const fm_tree *tree,
                                  const fm_provider *p, const char *what, unsigned threads);
fm_status __real_fm_model_adopt(fm_model *m);
fm_status __wrap_fm_model_adopt(fm_model *m);

typedef struct crew crew;
typedef struct rank {
    crew *of;
    fm_wire *wire;
    fm_engine_opts opts;
    pthread_t thread;
} rank;

struct crew {
    fm_engine *e; /* NULL: free */
    fm_comm *comm;
    uint32_t size;
    rank rank[MOST_RANKS];
    fm_provider now; /* of the model that is being adopted */
};

static crew crews[MOST_ENGINES];
static struct {
    const fm_model *m;
    fm_provider p;
} prepared[MOST_MODELS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of prepared */

static uint32_t setting(const char *name, uint32_t usual)
{
    const char *text = getenv(name);
    return text && *text ? (uint32_t)strtoul(text, NULL, 10) : usual;
}

static fm_status read_now(void *ctx, const fm_entry *e, void *dst)
{
    const crew *c = ctx;
    return c->now.read(c->now.ctx, e, dst);
}

static void *follow(void *arg)
{
    rank *r = arg;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    const fm_provider p = {.ctx = r->of, .read = read_now};
    fm_status rc = fm_comm_new(&comm, r->wire, NULL);
    r->opts.comm = comm;
    if (rc == FM_OK)
        rc = __real_fm_engine_new(&e, &r->opts);
    if (rc == FM_OK)
        rc = fm_engine_follow(e, &p);
    if (rc != FM_OK)
        fprintf(stderr, "a rank that follows: %s\n", fm_error_text());
    __real_fm_engine_free(e);
    fm_comm_free(comm);
    return NULL;
}

static void dismiss(crew *c)
{
    fm_comm_free(c->comm);
    for (uint32_t i = 1; i < c->size; i++)
        (void)pthread_join(c->rank[i].thread, NULL);
    memset(c, 0, sizeof(*c));
}

fm_status __wrap_fm_engine_new(fm_engine **out, const fm_engine_opts *opts)
{
    fm_engine_opts o = opts ? *opts : fm_engine_defaults();
    uint32_t stages = setting("FM_TEST_STAGES", 2), n = stages * setting("FM_TEST_SPLIT", 1);
    crew *c = crews;
    fm_wire *wire[MOST_RANKS];
    while (c < crews + MOST_ENGINES && c->e)
        c++;
    if (!o.prefix_cache || o.comm || o.max_rows == 0 || n > MOST_RANKS || c == crews + MOST_ENGINES)
        return __real_fm_engine_new(out, opts);
    o.stages = stages;
    o.micro_rows = setting("FM_TEST_MICRO", 3);
    o.kv_bytes_max /= stages; /* as much in all */
    o.threads = FM_MAX(o.threads, 1u);
    fm_status rc = fm_wire_threads(wire, n, 60.0);
    if (rc != FM_OK)
        return rc;
    c->size = n;
    for (uint32_t i = 1; i < n; i++) {
        c->rank[i] = (rank){.of = c, .wire = wire[i], .opts = o};
        c->rank[i].opts.threads = 1;
        c->rank[i].opts.cache_dir = NULL;
        if (pthread_create(&c->rank[i].thread, NULL, follow, &c->rank[i]) != 0)
            abort();
    }
    rc = fm_comm_new(&c->comm, wire[0], NULL);
    o.comm = c->comm;
    if (rc == FM_OK)
        rc = __real_fm_engine_new(out, &o);
    c->e = rc == FM_OK ? *out : NULL;
    if (rc != FM_OK) {
        fm_error_state why;
        fm_error_save(&why);
        dismiss(c);
        fm_error_restore(&why);
    }
    return rc;
}

static crew *crew_of(const fm_engine *e)
{
    for (crew *c = crews; c < crews + MOST_ENGINES; c++)
        if (e && c->e == e)
            return c;
    return NULL;
}

void __wrap_fm_engine_free(fm_engine *e)
{
    crew *c = crew_of(e);
    __real_fm_engine_free(e);
    if (c)
        dismiss(c);
}

fm_status __wrap_fm_model_load(fm_model **out, fm_engine *e, const fm_tree *tree,
                               const fm_provider *p, const char *what)
{
    crew *c = crew_of(e);
    if (c)
        c->now = *p;
    return __real_fm_model_load(out, e, tree, p, what);
}

fm_status __wrap_fm_model_prepare(fm_model **out, fm_engine *e, const fm_tree *tree,
                                  const fm_provider *p, const char *what, unsigned threads)
{
    fm_status rc = __real_fm_model_prepare(out, e, tree, p, what, threads);
    size_t i = 0;
    (void)pthread_mutex_lock(&lock);
    while (rc == FM_OK && i < MOST_MODELS && prepared[i].m && prepared[i].m != *out)
        i++;
    if (rc == FM_OK && i < MOST_MODELS) {
        prepared[i].m = *out;
        prepared[i].p = *p;
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

fm_status __wrap_fm_model_adopt(fm_model *m)
{
    crew *c = crew_of(fm_model_engine(m));
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; c && i < MOST_MODELS; i++)
        if (prepared[i].m == m)
            c->now = prepared[i].p;
    (void)pthread_mutex_unlock(&lock);
    return __real_fm_model_adopt(m);
}
