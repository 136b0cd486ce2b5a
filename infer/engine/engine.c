/* engine.c - makes and frees engines, and holds what models share inside of an engine. */
#include "infer/engine/watchdog.h"
#include "infer/engine/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

#define MAX_ROWS_LIMIT 65536u

fm_engine_opts fm_engine_defaults(void)
{
    return (fm_engine_opts){.threads = 0,
                            .mode = "exact",
                            .max_rows = 512,
                            .kv_bytes_max = 1ull << 30,
                            .prefix_cache = true,
                            .cache_bytes_max = 4ull << 30,
                            .cache_min_bytes = 256u << 10};
}

static fm_status open_weights(fm_engine *e)
{
    fm_engine_opts *o = &e->opts;
    fm_status rc = FM_OK;
    if (o->cache_dir && e->be->weight_image) /* without it a device makes its layout itself */
        rc = fmi_packed_files_new(&e->artefacts, o->cache_dir, e->be->layout, o->cache_bytes_max);
    o->cache_dir = NULL; /* the caller's memory, copied above */
    fmi_weights_opts w = {o->weight_bytes_max, e->artefacts, o->cache_min_bytes};
    return rc == FM_OK ? fmi_weights_new(&e->weights, e->be, &w) : rc;
}

/* Starts the watchdog. Over ranks its limit is a little longer than step_timeout_s, with which the
 * comm ends waits for other ranks by itself. */
static fm_status watch_steps(fm_engine *e, const char *device)
{
    char name[64];
    uint32_t ranks = fm_comm_size(e->comm);
    double limit = e->opts.step_timeout_s;
    device = device ? device : e->be->name;
    if (ranks > 1) {
        (void)snprintf(name, sizeof(name), "rank %u of %u, %s", fm_comm_rank(e->comm), ranks,
                       device);
        limit += FM_MAX(limit / 10.0, 1.0);
        fm_comm_step_timeout(e->comm, e->opts.step_timeout_s);
    } else {
        (void)snprintf(name, sizeof(name), "device %s", device);
    }
    /* A device whose memory is the host's cannot hang, however long its operations take. */
    return e->be->host_visible ? FM_OK : fmi_watchdog_new(&e->watchdog, limit, name);
}

void fm_engine_hung(fm_engine *e, fm_hung_fn hung, void *ctx)
{
    fmi_watchdog_hung(e->watchdog, hung, ctx);
}

static fm_status keep_stored(fm_backend *be)
{
    if (be->keep_stored)
        return be->keep_stored(be);
    return fm_fail(FM_EUNSUPPORTED,
                   "mode %s on device %s lays out weights in its own way and cannot keep them as "
                   "they are stored (--stored): use mode exact, or leave --stored out",
                   be->mode, be->name);
}

fm_status fm_engine_new(fm_engine **out, const fm_engine_opts *opts)
{
    *out = NULL;
    fm_engine_opts o = opts ? *opts : fm_engine_defaults();
    if (o.max_rows < 1 || o.max_rows > MAX_ROWS_LIMIT)
        return fm_fail(FM_EINVAL, "max_rows is %u, allowed are 1 to %u", o.max_rows,
                       MAX_ROWS_LIMIT);
    fm_engine *e = fm_calloc(1, sizeof(*e));
    if (!e)
        return FM_ENOMEM;
    if (!o.mode)
        o.mode = "exact";
    e->opts = o;
    e->opts.device = NULL; /* the caller's memory */
    (void)pthread_mutex_init(&e->share, NULL);
    fm_status rc = fm_pool_new(&e->pool, o.threads);
    FM_THEN(rc, fm_backend_open_on(&e->be, o.device, o.mode, e->pool));
    if (rc == FM_OK && fm_backend_lacks(e->be, false))
        rc = fm_fail(FM_EUNSUPPORTED, "backend %s lacks the operation '%s'", e->be->name,
                     fm_backend_lacks(e->be, false));
    e->comm = o.comm_splits_batches ? NULL : o.comm;
    e->batch_comm = o.comm_splits_batches ? o.comm : NULL;
    if (rc == FM_OK && e->batch_comm)
        rc = fm_comm_attach_device(e->batch_comm, e->be);
    FM_THEN(rc, fmi_pipe_new(e));
    if (rc == FM_OK) {
        (void)snprintf(e->kernel_class, sizeof(e->kernel_class), "%s", e->be->kernel_class);
        rc = fmi_log_new(e);
    }
    if (rc == FM_OK && e->log)
        rc = fmi_pipe_group(e);
    if (rc == FM_OK && o.step_timeout_s > 0.0)
        rc = watch_steps(e, o.device);
    if (rc == FM_OK && o.keep_stored)
        rc = keep_stored(e->be);
    FM_THEN(rc, open_weights(e));
    FM_THEN(rc, fmi_kv_new(&e->kv, e->be, o.kv_bytes_max));
    FM_THEN(rc, fmi_kv_lanes(e->kv, e->stages, e->stage));
    if (rc == FM_OK && fm_comm_size(e->comm) > 1)
        rc = fmi_kv_at_once(e->kv);
    if (rc == FM_OK && o.prefix_cache)
        rc = fmi_prefix_new(&e->prefix, e->kv);
    FM_THEN(rc, fmi_step_new(&e->step, e));
    if (rc != FM_OK) {
        fm_engine_free(e);
        return rc;
    }
    *out = e;
    return FM_OK;
}

void fm_engine_free(fm_engine *e)
{
    if (!e)
        return;
    fm_assert(e->models == 0 && e->seqs == 0);
    if (e->log)
        e->log->free(e);
    fmi_pipe_free(e);
    if (e->batch_comm)
        fm_comm_detach(e->batch_comm);
    fmi_texts_free(e);
    fmi_step_free(e->step);
    fmi_prefix_free(e->prefix);
    fmi_kv_free(e->kv);
    fmi_weights_free(e->weights);
    fmi_packed_files_free(e->artefacts);
    fmi_geom *next;
    for (fmi_geom *g = e->geoms; g; g = next) {
        next = g->next;
        fm_free(g);
    }
    fmi_watchdog_free(e->watchdog);
    fm_backend_close(e->be);
    fm_pool_free(e->pool);
    (void)pthread_mutex_destroy(&e->share);
    fm_free(e);
}

fm_status fm_engine_check(const fm_engine *e)
{
    return e->comm ? fm_comm_check(e->comm) : FM_OK;
}

uint32_t fm_engine_ranks(const fm_engine *e)
{
    return fm_comm_size(e->comm);
}

struct fm_comm *fm_engine_batch_ranks(const fm_engine *e)
{
    return e->batch_comm;
}

uint32_t fm_engine_batch_stages(const fm_engine *e)
{
    return e->batch_comm ? e->stages : 1;
}

const char *fm_engine_mode(const fm_engine *e)
{
    return e->be->mode;
}

const char *fm_engine_isa(const fm_engine *e)
{
    return e->be->isa;
}

const char *fm_engine_device(const fm_engine *e)
{
    return e->be->name;
}

unsigned fm_engine_threads(const fm_engine *e)
{
    return fm_pool_threads(e->pool);
}

const char *fm_engine_kernel_class(const fm_engine *e)
{
    return e->kernel_class;
}

fm_backend *fm_engine_backend(fm_engine *e)
{
    return e->be;
}

void fm_engine_tap(fm_engine *e, fm_tap_fn tap, void *ctx)
{
    e->tap = tap;
    e->tap_ctx = ctx;
}

fm_engine_stats fm_engine_stats_of(const fm_engine *e)
{
    fmi_weights_stats w = fmi_weights_stats_of(e->weights);
    fmi_packed_file_stats f = {0, 0, 0};
    if (e->artefacts)
        f = fmi_packed_file_stats_of(e->artefacts);
    return (fm_engine_stats){
        .weights = w.count - w.elsewhere,
        .weight_bytes = w.bytes,
        .weight_bytes_unshared = e->bytes_unshared,
        .weight_bytes_shared = w.shared_bytes,
        .weight_bytes_idle = w.idle_bytes,
        .weight_bytes_mapped = w.mapped_bytes,
        .weight_bytes_max = w.bytes_max,
        .weight_hits = w.hits,
        .weight_misses = w.misses,
        .weight_evictions = w.evictions,
        .packed_mapped = f.mapped,
        .packed_written = f.written,
        .packed_refused = f.refused,
        .kv_bytes = fmi_kv_bytes(e->kv),
        .prefix_queries = e->prefix_queries,
        .prefix_hits = e->prefix_hits,
        .prefix_bytes = fmi_kv_bytes_kept(e->kv),
        .prefix_evictions = e->prefix ? fmi_prefix_evictions(e->prefix) : 0,
        .steps = e->steps,
        .rows = e->rows,
        .models = e->models,
        .gemm_groups = e->gemm_groups,
        .layer_rows = e->layer_rows,
    };
}

uint64_t fm_engine_layer_hits(const fm_engine *e, uint32_t layer)
{
    return layer < FM_MAX_LAYERS ? e->layer_hits[layer] : 0;
}

/* ==== what models share ==== */

/* Opens the pools of every stage's layers. */
static fm_status open_lanes(fm_engine *e, fmi_geom *g)
{
    fm_status rc = FM_OK;
    for (uint32_t s = 0; rc == FM_OK && s < e->stages; s++) {
        rc = fmi_kv_pool_of(e->kv, &g->lane[s], s, g->kv_heads, g->head_dim);
        FM_THEN(rc, fmi_kv_rows_of(e->kv, &g->row_lane[s], s, g->hidden));
    }
    if (g->sw.full_head_dim || g->sw.full_kv_heads)
        FM_THEN(rc, fmi_kv_pool_of(e->kv, &g->full, e->stage,
                                   g->sw.full_kv_heads ? g->sw.full_kv_heads : g->kv_heads,
                                   g->sw.full_head_dim ? g->sw.full_head_dim : g->head_dim));
    g->pool = g->lane[e->stage];
    g->rows = g->row_lane[e->stage];
    return rc;
}

/* Numbers the recurrent layers and opens the pool of their states. Between two states that stay in
 * the cache lie so many blocks that they take no more memory than keys and values of `hidden`. */
static fm_status open_states(fm_engine *e, fmi_geom *g)
{
    size_t floats = fm_recurrence_floats(&g->sw.rec), wide = 2 * (size_t)FM_KV_PAGE * g->hidden;
    for (uint32_t l = 0; l < g->layers; l++) {
        g->recur_at[l] = (uint16_t)g->recurs;
        g->recurs += fm_layer_recurs(&g->sw, l);
        g->attending += fm_layer_keeps(&g->sw, l);
        g->at_full += g->full && fm_layer_keeps(&g->sw, l) && fm_layer_is_full(&g->sw, l);
    }
    g->stride = (uint32_t)((floats + wide - 1) / wide);
    return g->recurs ? fmi_kv_states_of(e->kv, &g->states, e->stage, (uint32_t)FM_MAX(floats, 1u))
                     : FM_OK;
}

fm_status fmi_geom_of(fm_engine *e, fmi_geom **out, const fm_arch *a, const fmi_stage_split *d)
{
    *out = NULL;
    for (fmi_geom *g = e->geoms; g; g = g->next)
        if (g->hidden == a->hidden && g->inter == a->inter && g->layers == a->layers &&
            g->heads == a->heads && g->kv_heads == a->kv_heads && g->head_dim == a->head_dim &&
            g->window == a->window && memcmp(&g->eps, &a->eps, sizeof(float)) == 0 &&
            g->qk_norm == a->qk_norm && memcmp(&g->sw, &a->sw, sizeof(a->sw)) == 0 &&
            memcmp(&g->split, d, sizeof(*d)) == 0) {
            *out = g;
            return FM_OK;
        }
    fmi_geom *g = fm_calloc(1, sizeof(*g));
    if (!g)
        return FM_ENOMEM;
    g->hidden = a->hidden;
    g->inter = a->inter;
    g->layers = a->layers;
    g->heads = a->heads;
    g->kv_heads = a->kv_heads;
    g->head_dim = a->head_dim;
    g->window = a->window;
    g->eps = a->eps;
    g->qk_norm = a->qk_norm;
    memcpy(&g->sw, &a->sw, sizeof(a->sw)); /* with padding, which is compared above */
    g->split = *d;
    g->begin = d->begin[e->stage];
    g->here = d->begin[e->stage + 1] - g->begin;
    fm_status rc = open_lanes(e, g);
    FM_THEN(rc, open_states(e, g));
    if (rc != FM_OK) {
        fm_free(g);
        return rc;
    }
    g->next = e->geoms;
    e->geoms = g;
    *out = g;
    return FM_OK;
}

static void rope_free(fm_engine *e, fmi_rope *r)
{
    if (r->cos)
        e->be->free(e->be, r->cos);
    if (r->sin)
        e->be->free(e->be, r->sin);
    fm_free(r);
}

static fm_status rope_fill(fm_engine *e, fmi_rope *r, const fm_arch *a, uint32_t which)
{
    size_t bytes = (size_t)r->positions * (r->dim / 2) * sizeof(float);
    float *host = fm_malloc(2 * bytes);
    if (!host)
        return FM_ENOMEM;
    float *sin = host + bytes / sizeof(float);
    void *c = NULL, *s = NULL;
    fm_status rc = FM_OK;
    if (r->grows.every)
        fm_arch_growth(&r->grows, r->positions, host, sin);
    else
        rc = fm_arch_rope(a, which, r->positions, host, sin);
    FM_THEN(rc, e->be->alloc(e->be, &c, bytes));
    r->cos = c;
    FM_THEN(rc, e->be->alloc(e->be, &s, bytes));
    r->sin = s;
    FM_THEN(rc, e->be->upload(e->be, r->cos, host, bytes));
    FM_THEN(rc, e->be->upload(e->be, r->sin, sin, bytes));
    fm_free(host);
    return rc;
}

/* Bytes of a block's keys and values in all layers of a stage. */
static uint64_t block_bytes(const fm_engine *e, const fm_arch *a, uint32_t layers)
{
    const fm_switches *s = &a->sw;
    uint64_t sum = 0;
    if (!fm_layers_uneven(s))
        return 2 * (uint64_t)layers * e->be->kv_page_bytes(e->be, a->kv_heads, a->head_dim);
    for (uint32_t l = 0; l < a->layers; l++) /* one stage */
        if (fm_layer_keeps(s, l))
            sum += 2 * (uint64_t)e->be->kv_page_bytes(e->be, fm_layer_kv_heads(s, a->kv_heads, l),
                                                      fm_layer_head_dim(s, a->head_dim, l));
    return sum;
}

/* Positions of a rotary table: no sequence can be longer than the KV budget of a stage allows. */
static uint32_t rope_positions(const fm_engine *e, const fm_arch *a, uint32_t layers)
{
    for (uint32_t l = 0; fm_arch_recurs(a) && l < a->layers && layers > 1; l++) /* one stage */
        layers -= !fm_layer_attends(&a->sw, l);
    uint64_t page = block_bytes(e, a, layers);
    uint64_t fit = fmi_kv_bytes_max(e->kv) / page * FM_KV_PAGE;
    return (uint32_t)FM_MAX(1u, FM_MIN(fit, (uint64_t)a->max_positions));
}

/* Takes one more reference to the table with these settings; where there is none by now, fresh is
 * added. Tables are computed without the lock. */
static fmi_rope *rope_share(fm_engine *e, const fmi_rope *want, fmi_rope *fresh)
{
    (void)pthread_mutex_lock(&e->share);
    fmi_rope *r = e->ropes;
    while (r && (memcmp(&r->of, &want->of, sizeof(want->of)) != 0 || r->dim != want->dim ||
                 memcmp(&r->grows, &want->grows, sizeof(want->grows)) != 0 ||
                 r->positions != want->positions))
        r = r->next;
    if (!r && fresh) {
        r = fresh;
        r->next = e->ropes;
        e->ropes = r;
    }
    if (r)
        r->refs++;
    (void)pthread_mutex_unlock(&e->share);
    return r;
}

fm_status fmi_rope_of(fm_engine *e, fmi_rope **out, const fm_arch *a, uint32_t which,
                      uint32_t layers)
{
    *out = NULL;
    bool turns = which != FMI_GROWTH;
    if (!turns && !a->sw.grow.every)
        return FM_OK;
    fmi_rope want = {.dim = turns ? fm_arch_turns(a, which) : 2,
                     .positions = rope_positions(e, a, layers)};
    if (turns)
        want.of = a->rope[which];
    else
        want.grows = a->sw.grow;
    *out = rope_share(e, &want, NULL);
    if (*out)
        return FM_OK;
    fmi_rope *r = fm_memdup(&want, sizeof(want));
    if (!r)
        return FM_ENOMEM;
    fm_status rc = rope_fill(e, r, a, which);
    if (rc == FM_OK)
        *out = rope_share(e, &want, r);
    if (*out != r)
        rope_free(e, r);
    return rc;
}

void fmi_rope_drop(fm_engine *e, fmi_rope *r)
{
    if (!r)
        return;
    (void)pthread_mutex_lock(&e->share);
    bool last = --r->refs == 0;
    fmi_rope **at = &e->ropes;
    while (last && *at != r)
        at = &(*at)->next;
    if (last)
        *at = r->next;
    (void)pthread_mutex_unlock(&e->share);
    if (last)
        rope_free(e, r);
}
