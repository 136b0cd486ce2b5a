/* apart.c - see apart.h. */
#include "tests/apart/inside.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/base/mem.h"

#define ARENA_BYTES ((size_t)1 << 40) /* addresses; memory is taken as it is written */
#define PAGE_BYTES ((size_t)4096)
#define RANGES 65536u
#define FACTORS 16384u
/* Its own memory is malloc's, not fm_malloc's: tests count and fail those. */

_Noreturn void apart_stop(const char *op, const char *what, const void *p)
{
    fprintf(stderr, "apart: %s: %s (%p)\n", op, what, p);
    abort();
}

/* ==== memory ==== */

static range *find_range(apart *a, const uint8_t *p)
{
    size_t lo = 0, hi = a->ranges;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (a->range[mid].begin <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    range *r = lo ? &a->range[lo - 1] : NULL;
    return r && p < r->begin + r->bytes ? r : NULL;
}

/* Where operations find what the host calls p. */
void *apart_at(apart *a, const void *p, const char *op)
{
    const uint8_t *b = p;
    if (!p)
        return NULL;
    if (b < a->base || b >= a->base + ARENA_BYTES)
        apart_stop(op, "was given memory of the host as the device's", p);
    (void)pthread_mutex_lock(&a->mem);
    const range *r = find_range(a, b);
    bool live = r && r->live;
    (void)pthread_mutex_unlock(&a->mem);
    if (!live)
        apart_stop(op, "was given memory that is not allocated", p);
    return a->alias + (b - a->base);
}

static size_t pages(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static fm_status take_range(apart *a, void **out, size_t bytes, bool memory)
{
    size_t whole = pages(FM_MAX(bytes, (size_t)1));
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&a->mem);
    uint8_t *p = a->base + a->used;
    if (a->ranges == RANGES || whole + PAGE_BYTES > ARENA_BYTES - a->used)
        rc = fm_fail(FM_ELIMIT, "apart: no more addresses");
    else if (memory && mprotect(a->alias + a->used, whole, PROT_READ | PROT_WRITE) != 0)
        rc = fm_fail(FM_ENOMEM, "apart: no memory");
    if (rc == FM_OK) {
        a->range[a->ranges++] = (range){p, whole, true};
        a->used += whole + PAGE_BYTES; /* nothing may stand behind it */
        *out = p;
    }
    (void)pthread_mutex_unlock(&a->mem);
    return rc;
}

static fm_status apart_alloc(fm_backend *be, void **out, size_t bytes)
{
    *out = NULL;
    return take_range(apart_of(be), out, bytes, true);
}

static fm_status apart_reserve(fm_backend *be, void **out, size_t bytes)
{
    *out = NULL;
    return take_range(apart_of(be), out, bytes, false);
}

static fm_status apart_commit(fm_backend *be, void *ptr, size_t from, size_t bytes)
{
    uint8_t *p = apart_at(apart_of(be), ptr, "commit");
    size_t first = from / PAGE_BYTES * PAGE_BYTES; /* pages that ranges share are given twice */
    if (bytes && mprotect(p + first, pages(from - first + bytes), PROT_READ | PROT_WRITE) != 0)
        return fm_fail(FM_ENOMEM, "apart: no memory");
    return FM_OK;
}

/* ==== the queue; its lock is held ==== */

/* A failed device does nothing but to give memory back. */
static void run_task(apart *a, const task *t)
{
    bool cleans = t->name[0] == '~';
    if (a->fail_in && !cleans && --a->fail_in == 0)
        a->failed = true;
    if (!a->failed || cleans)
        t->run(a->in, t->args);
}

static void run_until(apart *a, uint64_t number)
{
    while (a->first && a->first->number <= number) {
        task *t = a->first;
        a->first = t->next;
        if (!a->first)
            a->last = &a->first;
        run_task(a, t);
        free(t);
    }
}

static fm_status settle(apart *a)
{
    fm_status rc = a->in->sync(a->in);
    if (rc == FM_OK && a->failed)
        rc = fm_fail(FM_EIO, "apart: it was told to fail");
    a->failed = false;
    return rc;
}

task *apart_task(run_fn run, const char *name, size_t bytes)
{
    task *t = malloc(sizeof(*t) + bytes);
    if (!t)
        apart_stop(name, "no memory", NULL);
    *t = (task){.run = run, .name = name};
    return t;
}

uint64_t apart_enqueue(apart *a, task *t)
{
    (void)pthread_mutex_lock(&a->lock);
    bool mine = a->captures && pthread_equal(a->capturing, pthread_self());
    if (mine && t->name[0] != '=')
        apart_stop(t->name, "stands between record and recorded", NULL);
    uint64_t number = 0;
    if (mine) {
        *a->kept_last = t;
        a->kept_last = &t->next;
    } else {
        number = t->number = ++a->number;
        *a->last = t;
        a->last = &t->next;
        if (a->kind == APART_NOW)
            run_until(a, number);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return number;
}

void apart_push(apart *a, run_fn run, const char *name, const void *args, size_t bytes)
{
    task *t = apart_task(run, name, bytes);
    memcpy(t->args, args, bytes);
    a->stats.ops++;
    (void)apart_enqueue(a, t);
}

/* ==== memory in line with the queue ==== */

typedef struct give {
    apart *a;
    uint8_t *p;
    size_t bytes;
} give;

static void run_give(fm_backend *in, const void *args)
{
    const give *g = args;
    (void)in;
    (void)mprotect(g->p, g->bytes, PROT_NONE);
    (void)fallocate(g->a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, g->p - g->a->alias,
                    (off_t)g->bytes);
}

static void apart_free(fm_backend *be, void *ptr)
{
    apart *a = apart_of(be);
    give g = {.a = a};
    if (!ptr)
        return;
    (void)pthread_mutex_lock(&a->mem);
    range *r = find_range(a, ptr);
    if (!r || !r->live || r->begin != (uint8_t *)ptr)
        apart_stop("free", "was given what alloc did not give", ptr);
    r->live = false;
    g.p = a->alias + (r->begin - a->base);
    g.bytes = r->bytes;
    (void)pthread_mutex_unlock(&a->mem);
    task *t = apart_task(run_give, "~free", sizeof(g));
    memcpy(t->args, &g, sizeof(g));
    (void)apart_enqueue(a, t);
}

typedef struct copy {
    void *dst;
    const void *src; /* NULL: the bytes follow */
    size_t bytes;
} copy;

static void run_copy(fm_backend *in, const void *args)
{
    const copy *c = args;
    (void)in;
    if (c->bytes)
        memcpy(c->dst, c->src ? c->src : (const void *)(c + 1), c->bytes);
}

static fm_status apart_upload(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    apart *a = apart_of(be);
    copy c = {.dst = apart_at(a, dst, "upload"), .bytes = bytes};
    task *t = apart_task(run_copy, "~upload", sizeof(c) + bytes);
    memcpy(t->args, &c, sizeof(c));
    if (bytes)
        memcpy(t->args + sizeof(c), src, bytes);
    a->stats.uploads++;
    (void)apart_enqueue(a, t);
    return FM_OK;
}

static fm_status apart_sync(fm_backend *be)
{
    apart *a = apart_of(be);
    (void)pthread_mutex_lock(&a->lock);
    if (a->captures && pthread_equal(a->capturing, pthread_self()))
        apart_stop("sync", "stands between record and recorded", NULL);
    run_until(a, a->number);
    fm_status rc = settle(a);
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

static fm_status apart_download(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    apart *a = apart_of(be);
    const void *from = apart_at(a, src, "download");
    a->stats.downloads++;
    a->stats.download_bytes += bytes;
    fm_status rc = apart_sync(be);
    if (rc == FM_OK && bytes)
        memcpy(dst, from, bytes);
    return rc;
}

static fm_status apart_fetch(fm_backend *be, void *dst, const void *src, size_t bytes,
                             uint64_t *ticket)
{
    apart *a = apart_of(be);
    copy c = {.dst = dst, .src = apart_at(a, src, "fetch"), .bytes = bytes};
    task *t = apart_task(run_copy, "fetch", sizeof(c));
    memcpy(t->args, &c, sizeof(c));
    memset(dst, 0xa5, bytes);
    a->stats.fetches++;
    a->stats.fetch_bytes += bytes;
    *ticket = apart_enqueue(a, t);
    return FM_OK;
}

static fm_status apart_wait(fm_backend *be, uint64_t ticket)
{
    apart *a = apart_of(be);
    (void)pthread_mutex_lock(&a->lock);
    run_until(a, ticket);
    a->stats.waits_ahead += a->first != NULL;
    fm_status rc = settle(a);
    (void)pthread_mutex_unlock(&a->lock);
    return rc;
}

static fm_status apart_host_alloc(fm_backend *be, void **out, size_t bytes)
{
    (void)be;
    *out = fm_aligned_alloc(64, FM_MAX(bytes, (size_t)1));
    return *out ? FM_OK : FM_ENOMEM;
}

static void apart_host_free(fm_backend *be, void *ptr)
{
    (void)be;
    fm_free(ptr);
}

/* ==== weights ==== */

static fm_status keep_floats(apart *a, const fm_weight *w, uint32_t n, uint32_t k)
{
    size_t bytes = (size_t)n * k * sizeof(float);
    void *copy_of = NULL;
    fm_status rc = apart_alloc(&a->be, &copy_of, bytes);
    if (rc != FM_OK)
        return rc;
    memcpy(apart_at(a, copy_of, "weight_new"), a->in->weight_floats(w), bytes);
    (void)pthread_mutex_lock(&a->mem);
    if (a->factors == FACTORS)
        apart_stop("weight_new", "too many factors", w);
    a->factor[a->factors++] = (floats){w, copy_of};
    (void)pthread_mutex_unlock(&a->mem);
    return rc;
}

static fm_status apart_weight_new(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                                  uint32_t n, uint32_t k, const void *host_bytes)
{
    apart *a = apart_of(be);
    fm_status rc = a->in->weight_new(a->in, out, role, dtype, n, k, host_bytes);
    if (rc == FM_OK && role != FM_ROLE_LINEAR && a->in->weight_floats)
        rc = keep_floats(a, *out, n, k);
    return rc;
}

static fm_status apart_weight_image_bytes(fm_backend *be, uint64_t *out, fm_role role,
                                          fm_dtype dtype, uint32_t n, uint32_t k)
{
    apart *a = apart_of(be);
    return a->in->weight_image_bytes(a->in, out, role, dtype, n, k);
}

static void run_weight_free(fm_backend *in, const void *args)
{
    fm_weight *w;
    memcpy(&w, args, sizeof(w));
    in->weight_free(in, w);
}

static void apart_weight_free(fm_backend *be, fm_weight *w)
{
    apart *a = apart_of(be);
    float *gone = NULL;
    (void)pthread_mutex_lock(&a->mem);
    for (size_t i = 0; i < a->factors; i++)
        if (a->factor[i].w == w) {
            gone = a->factor[i].copy;
            a->factor[i] = a->factor[--a->factors];
        }
    (void)pthread_mutex_unlock(&a->mem);
    apart_free(be, gone);
    task *t = apart_task(run_weight_free, "~weight_free", sizeof(w));
    memcpy(t->args, &w, sizeof(w));
    (void)apart_enqueue(a, t);
}

/* weight_bytes and weight_floats know the weight alone; one device at a time keeps factors. */
static apart *newest;

static const float *apart_weight_floats(const fm_weight *w)
{
    const float *found = NULL;
    (void)pthread_mutex_lock(&newest->mem);
    for (size_t i = 0; i < newest->factors; i++)
        if (newest->factor[i].w == w)
            found = newest->factor[i].copy;
    (void)pthread_mutex_unlock(&newest->mem);
    if (!found)
        apart_stop("weight_floats", "no factor of this device", w);
    return found;
}

static fm_status apart_weight_for_dx(fm_backend *be, fm_weight *w)
{
    return apart_of(be)->in->weight_for_dx(apart_of(be)->in, w);
}

static fm_status apart_keep_stored(fm_backend *be)
{
    return apart_of(be)->in->keep_stored(apart_of(be)->in);
}

static size_t apart_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    const apart *a = be->ctx;
    return a->in->kv_page_bytes(a->in, nkv, hd);
}

/* ==== steps that come again ==== */

static fm_status apart_record(fm_backend *be, uint64_t key)
{
    apart *a = apart_of(be);
    be->forget(be, key);
    (void)pthread_mutex_lock(&a->lock);
    a->captures = true;
    a->capturing = pthread_self();
    a->capture_key = key;
    a->kept = NULL;
    a->kept_last = &a->kept;
    (void)pthread_mutex_unlock(&a->lock);
    return FM_OK;
}

typedef struct again {
    apart *a;
    const record *r;
} again;

static void run_again(fm_backend *in, const void *args)
{
    const again *g = args;
    (void)in;
    for (const task *t = g->r->first; t; t = t->next)
        run_task(g->a, t);
}

static fm_status apart_replay(fm_backend *be, uint64_t key)
{
    apart *a = apart_of(be);
    record *r = a->records;
    while (r && r->key != key)
        r = r->next;
    if (!r)
        apart_stop("replay", "nothing is kept under this key", NULL);
    again g = {a, r};
    a->stats.replayed += r->ran; /* not the first time */
    r->ran = true;
    apart_push(a, run_again, "replay", &g, sizeof(g));
    return FM_OK;
}

static fm_status apart_recorded(fm_backend *be)
{
    apart *a = apart_of(be);
    record *r = calloc(1, sizeof(*r));
    if (!r)
        apart_stop("recorded", "no memory", NULL);
    (void)pthread_mutex_lock(&a->lock);
    a->captures = false;
    *r = (record){a->capture_key, a->kept, a->records, false};
    a->records = r;
    (void)pthread_mutex_unlock(&a->lock);
    a->stats.recorded++;
    return FM_OK;
}

static void free_record(record *r)
{
    task *next;
    for (task *t = r->first; t; t = next) {
        next = t->next;
        free(t);
    }
    free(r);
}

static void apart_forget(fm_backend *be, uint64_t key)
{
    apart *a = apart_of(be);
    record **p = &a->records;
    while (*p && (*p)->key != key)
        p = &(*p)->next;
    if (!*p)
        return;
    record *r = *p;
    *p = r->next;
    (void)pthread_mutex_lock(&a->lock);
    run_until(a, a->number); /* it may still be in line */
    (void)pthread_mutex_unlock(&a->lock);
    free_record(r);
}

/* ==== life ==== */

static void apart_close(fm_backend *be)
{
    apart *a = apart_of(be);
    run_until(a, a->number);
    for (size_t i = 0; i < a->ranges; i++)
        if (a->range[i].live)
            apart_stop("close", "memory was not freed", a->range[i].begin);
    while (a->records)
        apart_forget(be, a->records->key);
    fm_backend_close(a->in);
    fm_sampler_free(a->sampler);
    (void)munmap(a->base, ARENA_BYTES);
    (void)munmap(a->alias, ARENA_BYTES);
    (void)close(a->fd);
    (void)pthread_mutex_destroy(&a->mem);
    (void)pthread_mutex_destroy(&a->lock);
    free(a->range);
    free(a->factor);
    free(a);
}

static void install(apart *a)
{
    fm_backend *be = &a->be;
    const fm_backend *in = a->in;
    apart_install_ops(a);
    be->alloc = apart_alloc;
    be->free = apart_free;
    be->upload = apart_upload;
    be->download = apart_download;
    be->sync = apart_sync;
    be->weight_new = apart_weight_new;
    be->weight_image_bytes = apart_weight_image_bytes;
    be->weight_free = apart_weight_free;
    be->weight_bytes = in->weight_bytes;
    be->weight_floats = in->weight_floats ? apart_weight_floats : NULL;
    be->weight_for_dx = in->weight_for_dx ? apart_weight_for_dx : NULL;
    be->keep_stored = in->keep_stored ? apart_keep_stored : NULL;
    be->kv_page_bytes = apart_kv_page_bytes;
    be->close = apart_close;
    if (a->kind == APART_PLAIN) {
        be->sample = NULL;
        return;
    }
    be->host_alloc = apart_host_alloc;
    be->host_free = apart_host_free;
    be->reserve = apart_reserve;
    be->commit = apart_commit;
    be->fetch = apart_fetch;
    be->wait = apart_wait;
    be->record = apart_record;
    be->recorded = apart_recorded;
    be->replay = apart_replay;
    be->forget = apart_forget;
}

fm_status apart_open(fm_backend **out, apart_kind kind, const char *mode, fm_pool *pool)
{
    *out = NULL;
    if (kind == APART_OFF)
        return fm_backend_open(out, mode, pool);
    apart *a = calloc(1, sizeof(*a));
    fm_status rc = a ? fm_backend_open(&a->in, mode, pool) : FM_ENOMEM;
    if (rc != FM_OK) {
        free(a);
        return rc;
    }
    a->kind = kind;
    a->be = (fm_backend){.name = "apart",
                         .mode = a->in->mode,
                         .kernel_class = a->in->kernel_class,
                         .layout = a->in->layout,
                         .isa = a->in->isa,
                         .attends = a->in->attends,
                         .ctx = a};
    a->range = calloc(RANGES, sizeof(range));
    a->factor = calloc(FACTORS, sizeof(floats));
    a->last = &a->first;
    a->fd = memfd_create("apart", MFD_CLOEXEC);
    int flags = MAP_SHARED | MAP_NORESERVE;
    if (!a->range || !a->factor || a->fd < 0 || ftruncate(a->fd, (off_t)ARENA_BYTES) != 0)
        apart_stop("open", "no memory", NULL);
    a->base =
        mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a->alias = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, a->fd, 0);
    if (a->base == MAP_FAILED || a->alias == MAP_FAILED)
        apart_stop("open", "no addresses", NULL);
    (void)pthread_mutex_init(&a->mem, NULL);
    (void)pthread_mutex_init(&a->lock, NULL);
    install(a);
    newest = a;
    *out = &a->be;
    return FM_OK;
}

apart_stats apart_stats_of(const fm_backend *be)
{
    const apart *a = be->ctx;
    return a->stats;
}

void apart_fail_after(fm_backend *be, uint64_t ops)
{
    apart_of(be)->fail_in = ops + 1;
}
