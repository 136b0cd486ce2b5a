/* weights.c - chained hash table over tensor ids. An id is a SHA-256 of content, so its first
 * bytes spread evenly; the table grows by doubling and its entries never move. */
#include "infer/weights.h"

#include <string.h>

#include "store/base/mem.h"

struct fmi_weights {
    fm_backend *be;
    fmi_cached **bucket;
    size_t buckets; /* power of two */
    uint64_t count, bytes;
};

fm_status fmi_weights_new(fmi_weights **out, fm_backend *be)
{
    *out = NULL;
    fmi_weights *c = fm_calloc(1, sizeof(*c));
    if (!c)
        return FM_ENOMEM;
    c->be = be;
    c->buckets = 256;
    c->bucket = fm_calloc(c->buckets, sizeof(fmi_cached *));
    if (!c->bucket) {
        fm_free(c);
        return FM_ENOMEM;
    }
    *out = c;
    return FM_OK;
}

void fmi_weights_free(fmi_weights *c)
{
    if (!c)
        return;
    fm_assert(c->count == 0); /* models are closed before their engine */
    fm_free(c->bucket);
    fm_free(c);
}

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

static fm_status load_matrix(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes)
{
    if (e->shape.rank != 2 || e->shape.dim[0] > INT32_MAX || e->shape.dim[1] > INT32_MAX)
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s' is no matrix that a product can take",
                       e->name);
    fm_status rc = c->be->weight_new(c->be, &w->w, (fm_role)w->form, e->dtype, (uint32_t)e->shape.dim[0],
                                     (uint32_t)e->shape.dim[1], bytes);
    if (rc != FM_OK)
        return fm_error_prefix(rc, "tensor '%s'", e->name);
    w->bytes = c->be->weight_bytes(w->w);
    return FM_OK;
}

static fm_status load_vector(fmi_weights *c, fmi_cached *w, const fm_entry *e, const void *bytes)
{
    uint64_t n = 0;
    fm_status rc = fm_shape_elems(&n, &e->shape);
    if (rc != FM_OK)
        return rc;
    float *wide = fm_malloc((size_t)n * sizeof(float));
    if (!wide)
        return FM_ENOMEM;
    rc = fm_to_f32(wide, e->dtype, bytes, n);
    void *mem = NULL;
    w->bytes = n * sizeof(float);
    if (rc == FM_OK)
        rc = c->be->alloc(c->be, &mem, (size_t)w->bytes);
    w->v = mem;
    if (rc == FM_OK)
        rc = c->be->upload(c->be, w->v, wide, (size_t)w->bytes);
    fm_free(wide);
    return rc == FM_OK ? FM_OK : fm_error_prefix(rc, "tensor '%s'", e->name);
}

static void release(fmi_weights *c, fmi_cached *w)
{
    if (w->w)
        c->be->weight_free(c->be, w->w);
    if (w->v)
        c->be->free(c->be, w->v);
    fm_free(w);
}

static fm_status load(fmi_weights *c, fmi_cached **out, const fm_entry *e, fmi_form form,
                      const fm_provider *p)
{
    uint64_t bytes = 0;
    fm_status rc = fm_tensor_bytes(&bytes, e->dtype, &e->shape, e->name);
    if (rc != FM_OK)
        return rc;
    fmi_cached *w = fm_calloc(1, sizeof(*w));
    void *raw = w ? fm_aligned_alloc(64, (size_t)bytes) : NULL;
    if (!raw) {
        fm_free(w);
        return FM_ENOMEM;
    }
    w->id = e->id;
    w->form = form;
    rc = p->read(p->ctx, e, raw);
    if (rc == FM_OK)
        rc = form == FMI_VECTOR ? load_vector(c, w, e, raw) : load_matrix(c, w, e, raw);
    fm_free(raw);
    if (rc != FM_OK) {
        release(c, w);
        return rc;
    }
    *out = w;
    return FM_OK;
}

fm_status fmi_weights_take(fmi_weights *c, fmi_cached **out, const fm_entry *e, fmi_form form,
                           const fm_provider *p)
{
    *out = NULL;
    if (e->kind != FM_ENTRY_TENSOR)
        return fm_fail(FM_ECORRUPT, "%s: is no tensor", e->path);
    for (fmi_cached *w = c->bucket[slot_of(&e->id, c->buckets)]; w; w = w->next)
        if (w->form == form && fm_digest_eq(&w->id, &e->id)) {
            w->refs++;
            *out = w;
            return FM_OK;
        }
    fmi_cached *w = NULL;
    fm_status rc = load(c, &w, e, form, p);
    if (rc != FM_OK)
        return rc;
    if (c->count >= c->buckets)
        grow_table(c);
    size_t s = slot_of(&w->id, c->buckets);
    w->next = c->bucket[s];
    c->bucket[s] = w;
    w->refs = 1;
    c->count++;
    c->bytes += w->bytes;
    *out = w;
    return FM_OK;
}

void fmi_weights_drop(fmi_weights *c, fmi_cached *w)
{
    if (!w)
        return;
    fm_assert(w->refs > 0);
    if (--w->refs > 0)
        return;
    fmi_cached **at = &c->bucket[slot_of(&w->id, c->buckets)];
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    c->count--;
    c->bytes -= w->bytes;
    release(c, w);
}

uint64_t fmi_weights_count(const fmi_weights *c)
{
    return c->count;
}

uint64_t fmi_weights_bytes(const fmi_weights *c)
{
    return c->bytes;
}
