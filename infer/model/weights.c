/* weights.c - chained hash table over tensor ids, and a list of entries without references. An id
 * is a SHA-256 of content, so its first bytes spread evenly; the table grows by doubling and its
 * entries never move.
 *
 * An entry is made before its bytes are read, in state LOADING, so that other threads that want the
 * same tensor find it and wait. An entry whose reading failed leaves the table at once; the last
 * thread that waited for it frees it, and each of them then tries to read by itself. */
#include "infer/model/weights.h"

#include "infer/device/host_staging.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/mem.h"

/* An image is kept in a file up to twice the tensor's bytes (infer/README.md has the measurements):
 * images of mode fast, and f32 or bf16 in mode exact, but not 4-bit blocks widened to 6.4 times. */
#define ARTEFACT_GROWTH_MAX 2u

struct fmi_weights {
    fm_backend *be;
    fmi_weights_opts opts;
    fmi_slabs *slabs;
    fmi_staging staging;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t settled;
    fmi_cached **bucket;
    size_t buckets;              /* power of two */
    fmi_cached *oldest, *newest; /* list of entries without references */
    fmi_weights_stats stats;
};

/* ==== life ==== */

fm_status fmi_weights_new(fmi_weights **out, fm_backend *be, const fmi_weights_opts *opts)
{
    *out = NULL;
    fmi_weights *c = fm_calloc(1, sizeof(*c));
    if (!c)
        return FM_ENOMEM;
    c->be = be;
    c->opts = *opts;
    c->stats.bytes_max = opts->bytes_max;
    c->buckets = 256;
    c->bucket = fm_calloc(c->buckets, sizeof(fmi_cached *));
    if (!c->bucket || fmi_slabs_new(&c->slabs) != FM_OK) {
        fm_free(c->bucket);
        fm_free(c);
        return FM_ENOMEM;
    }
    fmi_staging_init(&c->staging, be);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->settled, NULL);
    *out = c;
    return FM_OK;
}

static bool is_elsewhere(const fmi_cached *w)
{
    return w->form & FMI_ELSEWHERE;
}

static void release(fmi_weights *c, fmi_cached *w)
{
    if (w->w && !is_elsewhere(w))
        c->be->weight_free(c->be, w->w);
    if (w->mem)
        c->be->free(c->be, w->mem);
    fmi_slab_give(c->slabs, w->slab);
    fm_unmap_file(&w->map);
    fm_free(w);
}

static void release_all(fmi_weights *c, fmi_cached *list)
{
    fmi_cached *next;
    for (; list; list = next) {
        next = list->next;
        release(c, list);
    }
}

/* ==== the table; the lock is held ==== */

static size_t slot_of(const fm_digest *id, size_t buckets)
{
    return (size_t)fm_get_u64(id->b) & (buckets - 1);
}

/* A table that cannot grow still works, only slower. */
static void grow_table(fmi_weights *c)
{
    size_t buckets = c->buckets * 2;
    fmi_cached **fresh = fm_calloc(buckets, sizeof(fmi_cached *));
    if (!fresh)
        return;
    for (size_t i = 0; i < c->buckets; i++) {
        fmi_cached *next;
        for (fmi_cached *w = c->bucket[i]; w; w = next) {
            next = w->next;
            size_t s = slot_of(&w->id, buckets);
            w->next = fresh[s];
            fresh[s] = w;
        }
    }
    fm_free(c->bucket);
    c->bucket = fresh;
    c->buckets = buckets;
}

static fmi_cached *find(const fmi_weights *c, const fm_digest *id, fmi_form form)
{
    fmi_cached *w = c->bucket[slot_of(id, c->buckets)];
    while (w && (w->form != form || !fm_digest_eq(&w->id, id)))
        w = w->next;
    return w;
}

static void link_entry(fmi_weights *c, fmi_cached *w)
{
    if (c->stats.count >= c->buckets)
        grow_table(c);
    size_t s = slot_of(&w->id, c->buckets);
    w->next = c->bucket[s];
    c->bucket[s] = w;
    c->stats.count++;
    c->stats.elsewhere += is_elsewhere(w);
    c->stats.bytes += w->bytes;
}

static bool is_mapped(const fmi_cached *w)
{
    return w->state == FMI_READY && (w->lent || w->map.len > 0);
}

static void unlink_entry(fmi_weights *c, fmi_cached *w)
{
    fmi_cached **at = &c->bucket[slot_of(&w->id, c->buckets)];
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->next = NULL;
    c->stats.count--;
    c->stats.elsewhere -= is_elsewhere(w);
    c->stats.bytes -= w->bytes;
    c->stats.mapped_bytes -= is_mapped(w) ? w->bytes : 0;
}

static void leave_idle(fmi_weights *c, fmi_cached *w)
{
    *(w->older ? &w->older->newer : &c->oldest) = w->newer;
    *(w->newer ? &w->newer->older : &c->newest) = w->older;
    w->older = w->newer = NULL;
    c->stats.idle--;
    c->stats.idle_bytes -= w->bytes;
}

static void join_idle(fmi_weights *c, fmi_cached *w)
{
    w->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = w;
    c->newest = w;
    c->stats.idle++;
    c->stats.idle_bytes += w->bytes;
}

static void reference(fmi_weights *c, fmi_cached *w)
{
    w->refs++;
    if (w->refs == 1 && w->state == FMI_READY)
        leave_idle(c, w);
    if (w->refs == 2) {
        c->stats.shared++;
        c->stats.shared_bytes += w->bytes;
    }
}

/* Drops a reference. True: w has left the table, and the caller releases it without the lock. */
static bool dereference(fmi_weights *c, fmi_cached *w)
{
    fm_assert(w->refs > 0);
    w->refs--;
    if (w->refs == 1) {
        c->stats.shared--;
        c->stats.shared_bytes -= w->bytes;
    }
    if (w->refs > 0)
        return false;
    if (w->state == FMI_FAILED)
        return true; /* it left when it failed */
    if (c->stats.bytes_max && !w->lent) {
        join_idle(c, w);
        return false;
    }
    unlink_entry(c, w);
    return true;
}

/* Evicts until `need` more bytes fit; evicted entries are chained to *gone. */
static fm_status make_room(fmi_weights *c, uint64_t need, const fm_entry *e, fmi_cached **gone)
{
    const fmi_weights_stats *s = &c->stats;
    uint64_t pinned = s->bytes - s->idle_bytes;
    if (s->bytes_max == 0)
        return FM_OK;
    if (need > s->bytes_max || pinned > s->bytes_max - need)
        return fm_fail(FM_ELIMIT,
                       "tensor '%s' needs %" PRIu64 " bytes beside %" PRIu64
                       " that open models hold; the budget for weights is %" PRIu64,
                       e->name, need, pinned, s->bytes_max);
    while (s->bytes > s->bytes_max - need) {
        fmi_cached *w = c->oldest;
        leave_idle(c, w);
        unlink_entry(c, w);
        w->next = *gone;
        *gone = w;
        c->stats.evictions++;
    }
    return FM_OK;
}

/* ==== reading; without the lock ==== */

static fm_status need_of(fmi_weights *c, uint64_t *out, const fm_entry *e, fmi_form form)
{
    uint64_t n = 0;
    if (form & FMI_ELSEWHERE) {
        *out = 0;
        return FM_OK;
    }
    if (fmi_form_is_vector(form)) {
        fm_status rc = fm_shape_elems(&n, &e->shape);
        if (rc == FM_OK && fm_mul_overflow(out, n, sizeof(float)))
            rc = fm_fail(FM_ELIMIT, "tensor '%s' is too large", e->name);
        return rc;
    }
    if (e->shape.rank != 2 || e->shape.dim[0] > INT32_MAX || e->shape.dim[1] > INT32_MAX)
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s' is no matrix that a product can take",
                       e->name);
    uint32_t rows = (uint32_t)e->shape.dim[0], cols = (uint32_t)e->shape.dim[1];
    fm_status rc = form == FMI_MATRIX_T
                       ? c->be->weight_image_bytes(c->be, out, FM_ROLE_LINEAR, e->dtype, cols, rows)
                       : c->be->weight_image_bytes(c->be, out, (fm_role)form, e->dtype, rows, cols);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "tensor '%s'", e->name);
}

static fmi_packed_file_key key_of(const fmi_cached *w, const fm_entry *e)
{
    bool turn = w->form == FMI_MATRIX_T;
    return (fmi_packed_file_key){.id = e->id,
                                 .role = turn ? FM_ROLE_LINEAR : (fm_role)w->form,
                                 .dtype = e->dtype,
                                 .n = (uint32_t)e->shape.dim[turn],
                                 .k = (uint32_t)e->shape.dim[!turn],
                                 .bytes = w->bytes};
}

/* A transposed matrix has no file: its key would be that of the plain one. */
static bool keeps_file(const fmi_weights *c, const fmi_cached *w, uint64_t stored_bytes)
{
    return !fmi_form_is_vector(w->form) && w->form != FMI_MATRIX_T && c->opts.artefacts &&
           w->bytes >= c->opts.artefact_min && w->bytes / ARTEFACT_GROWTH_MAX <= stored_bytes;
}

/* Maps w from its packed file; false: there is none. */
static bool load_file(fmi_weights *c, fmi_cached *w, const fm_entry *e)
{
    fmi_packed_file_key key = key_of(w, e);
    if (!fmi_packed_file_map(c->opts.artefacts, &w->map, &key))
        return false;
    if (c->be->weight_map(c->be, &w->w, key.role, key.dtype, key.n, key.k,
                          w->map.data + FMI_ARTEFACT_HEADER_BYTES) == FM_OK)
        return true;
    fm_unmap_file(&w->map);
    return false;
}

static fm_status transposed(void **out, fm_dtype dtype, uint32_t rows, uint32_t cols,
                            const void *src)
{
    fm_shape one = {.rank = 1, .dim = {1}};
    uint64_t bytes = 0;
    *out = NULL;
    if (fm_tensor_bytes(&bytes, dtype, &one, "it") != FM_OK || bytes > 4)
        return fm_fail(FM_EUNSUPPORTED, "a matrix that is stored [in, out] cannot be of blocks");
    size_t size = (size_t)bytes;
    const uint8_t *from = src;
    uint8_t *to = fm_malloc((size_t)rows * cols * size);
    *out = to;
    if (!to)
        return FM_ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy(to + (c * rows + r) * size, from + (r * cols + c) * size, size);
    return FM_OK;
}

/* Makes w's image. file: the image is also written to a file, which is then mapped in its place, so
 * that processes share it. */
static fm_status load_image(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes,
                            bool file)
{
    fmi_packed_file_key key = key_of(w, e);
    void *image = fmi_slab_take(c->slabs, &w->slab, (size_t)w->bytes);
    if (!image)
        return FM_ENOMEM;
    FM_TRY(c->be->weight_image(c->be, image, key.role, key.dtype, key.n, key.k, bytes));
    if (file && fmi_packed_file_write(c->opts.artefacts, &key, image) && load_file(c, w, e)) {
        fmi_slab_give(c->slabs, w->slab);
        w->slab = NULL;
        return FM_OK;
    }
    return c->be->weight_map(c->be, &w->w, key.role, key.dtype, key.n, key.k, image);
}

static fm_status load_matrix(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes,
                             bool file)
{
    fmi_packed_file_key key = key_of(w, e);
    void *turned = NULL;
    fm_status rc = FM_OK;
    if (w->form == FMI_MATRIX_T)
        rc = transposed(&turned, key.dtype, key.k, key.n, bytes);
    if (turned)
        bytes = turned;
    if (rc == FM_OK && c->be->weight_image)
        rc = load_image(c, w, e, bytes, file);
    else if (rc == FM_OK)
        rc = c->be->weight_new(c->be, &w->w, key.role, key.dtype, key.n, key.k, bytes);
    fm_free(turned);
    return rc;
}

static void add_one(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = 1.0f + x[i];
}

static fm_status load_vector(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes)
{
    fm_status rc = c->be->alloc(c->be, &w->mem, (size_t)w->bytes);
    w->v = w->mem;
    if (rc == FM_OK && c->be->host_visible) {
        rc = fm_to_f32(w->mem, e->dtype, bytes, w->bytes / sizeof(float));
        if (rc == FM_OK && w->form == FMI_VECTOR_PLUS1)
            add_one(w->mem, w->bytes / sizeof(float));
        return rc;
    }
    if (rc != FM_OK)
        return rc;
    float *wide = fm_malloc((size_t)w->bytes);
    if (!wide)
        return FM_ENOMEM;
    rc = fm_to_f32(wide, e->dtype, bytes, w->bytes / sizeof(float));
    if (rc == FM_OK && w->form == FMI_VECTOR_PLUS1)
        add_one(wide, w->bytes / sizeof(float));
    FM_THEN(rc, c->be->upload(c->be, w->mem, wide, (size_t)w->bytes));
    fm_free(wide);
    return rc;
}

/* Whether the backend computes with the bytes as they are stored: float32 vectors, and factors of
 * adapters that it reads as f32 [n, k] (backend.h, weight_floats). */
static bool used_as_stored(const fmi_weights *c, const fmi_cached *w, const fm_entry *e)
{
    return c->be->host_visible && e->dtype == FM_F32 &&
           (w->form == FMI_VECTOR ||
            ((w->form == FMI_LORA_A || w->form == FMI_LORA_B) && c->be->weight_floats));
}

/* Makes w use the provider's bytes in place. */
static fm_status lend(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes)
{
    fmi_packed_file_key key = key_of(w, e);
    w->lent = true;
    if (w->form != FMI_VECTOR)
        return c->be->weight_map(c->be, &w->w, key.role, key.dtype, key.n, key.k, bytes);
    w->v = bytes;
    return FM_OK;
}

static fm_status load_from(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes,
                           bool file)
{
    fm_status rc = fmi_form_is_vector(w->form) ? load_vector(c, w, e, bytes)
                                               : load_matrix(c, w, e, bytes, file);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "tensor '%s'", e->name);
}

/* Gives w an address for comparisons, without bytes. */
static void name_elsewhere(fmi_cached *w)
{
    w->lent = true; /* leaves with its last reference */
    if (fmi_form_is_vector(w->form))
        w->v = (const float *)(const void *)w;
    else
        w->w = (fm_weight *)(void *)w;
}

static fm_status load(fmi_weights *c, fmi_cached *w, const fm_entry *e, const fm_provider *p)
{
    uint64_t bytes = 0;
    if (is_elsewhere(w)) {
        name_elsewhere(w);
        return FM_OK;
    }
    FM_TRY(fm_tensor_bytes(&bytes, e->dtype, &e->shape, e->name));
    bool file = keeps_file(c, w, bytes);
    if (file && load_file(c, w, e))
        return FM_OK;
    fm_span there = {NULL, 0};
    if (p->view && p->view(p->ctx, e, &there) == FM_OK && there.data && there.len == bytes)
        return used_as_stored(c, w, e) ? lend(c, w, e, there.data)
                                       : load_from(c, w, e, there.data, file);
    void *raw = fmi_staging_take(&c->staging, (size_t)bytes);
    if (!raw)
        return FM_ENOMEM;
    fm_status rc = p->read(p->ctx, e, raw);
    FM_THEN(rc, load_from(c, w, e, raw, file));
    fmi_staging_give(&c->staging, raw);
    return rc;
}

/* ==== taking and dropping ==== */

/* A resident entry with one more reference, or NULL. Waits for an entry that is being read. The
 * lock is held, but not while it waits. */
static fmi_cached *take_resident(fmi_weights *c, const fm_entry *e, fmi_form form)
{
    for (;;) {
        fmi_cached *w = find(c, &e->id, form);
        if (!w)
            return NULL;
        reference(c, w);
        while (w->state == FMI_LOADING)
            (void)pthread_cond_wait(&c->settled, &c->lock);
        if (w->state == FMI_READY) {
            c->stats.hits++;
            return w;
        }
        if (dereference(c, w))
            release(c, w); /* without bytes: reading failed */
    }
}

/* Ends LOADING, by whether the bytes were read, and wakes the waiting threads. Frees w where
 * reading failed and no thread waits. */
static void settle(fmi_weights *c, fmi_cached *w, bool read)
{
    bool last = false;
    (void)pthread_mutex_lock(&c->lock);
    w->state = read ? FMI_READY : FMI_FAILED;
    c->stats.mapped_bytes += is_mapped(w) ? w->bytes : 0;
    if (!read) {
        unlink_entry(c, w);
        last = dereference(c, w);
    }
    (void)pthread_cond_broadcast(&c->settled);
    (void)pthread_mutex_unlock(&c->lock);
    if (last)
        release(c, w);
}

fm_status fmi_weights_take(fmi_weights *c, fmi_cached **out, const fm_entry *e, fmi_form form,
                           const fm_provider *p)
{
    fmi_cached *gone = NULL, *w;
    uint64_t need = 0;
    *out = NULL;
    if (e->kind != FM_ENTRY_TENSOR)
        return fm_fail(FM_ECORRUPT, "%s: is no tensor", e->path);
    fm_status rc = need_of(c, &need, e, form);
    fmi_cached *fresh = rc == FM_OK ? fm_calloc(1, sizeof(*fresh)) : NULL;
    if (!fresh)
        return rc == FM_OK ? FM_ENOMEM : rc;
    (void)pthread_mutex_lock(&c->lock);
    w = take_resident(c, e, form);
    if (!w)
        rc = make_room(c, need, e, &gone);
    if (!w && rc == FM_OK) {
        *fresh = (fmi_cached){.id = e->id, .form = form, .bytes = need, .refs = 1};
        link_entry(c, fresh);
        c->stats.misses++;
    }
    (void)pthread_mutex_unlock(&c->lock);
    release_all(c, gone);
    if (w || rc != FM_OK) {
        fm_free(fresh);
        *out = w;
        return rc;
    }
    rc = load(c, fresh, e, p);
    *out = rc == FM_OK ? fresh : NULL;
    settle(c, fresh, rc == FM_OK);
    return rc;
}

void fmi_weights_drop(fmi_weights *c, fmi_cached *w)
{
    if (!w)
        return;
    (void)pthread_mutex_lock(&c->lock);
    bool left = dereference(c, w);
    (void)pthread_mutex_unlock(&c->lock);
    if (left)
        release(c, w);
}

void fmi_weights_free(fmi_weights *c)
{
    if (!c)
        return;
    fm_assert(c->stats.count == c->stats.idle); /* models are closed before their engine */
    while (c->oldest) {
        fmi_cached *w = c->oldest;
        leave_idle(c, w);
        unlink_entry(c, w);
        release(c, w);
    }
    (void)pthread_cond_destroy(&c->settled);
    (void)pthread_mutex_destroy(&c->lock);
    fmi_staging_release(&c->staging);
    fmi_slabs_free(c->slabs);
    fm_free(c->bucket);
    fm_free(c);
}

fmi_weights_stats fmi_weights_stats_of(fmi_weights *c)
{
    (void)pthread_mutex_lock(&c->lock);
    fmi_weights_stats s = c->stats;
    (void)pthread_mutex_unlock(&c->lock);
    return s;
}
