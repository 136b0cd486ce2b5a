/* take.c - tensors of a tree taken for a model: found by name, held by the weights cache or read as
 * numbers. */
#include "infer/model/shard.h"

#include <string.h>

#include "store/base/mem.h"

fm_status fmi_hold(fmi_binder *b, fmi_cached **out, const fm_entry *e, fmi_form form)
{
    const fmi_slice all = {0};
    return fmi_hold_slice(b, out, e, form, &all);
}

fm_status fmi_hold_slice(fmi_binder *b, fmi_cached **out, const fm_entry *e, fmi_form form,
                         const fmi_slice *slice)
{
    const fmi_model_priv *p = fmi_priv(b->m);
    fmi_cached *w = NULL;
    fm_digest id;
    *out = NULL;
    form = fmi_form_here(form, slice);
    fm_status rc = fmi_slice_id(&id, e, slice);
    for (size_t i = 0; rc == FM_OK && i < p->held_count; i++)
        if (p->held[i]->form == form && fm_digest_eq(&p->held[i]->id, &id)) {
            *out = p->held[i]; /* a tied weight, or prefetched */
            return FM_OK;
        }
    FM_THEN(rc, fmi_take_slice(b->m->engine->weights, &w, e, form, b->p, slice));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", b->what);
    rc = fmi_held(b->m, w);
    *out = rc == FM_OK ? w : NULL;
    return rc;
}

fm_status fmi_held(fm_model *m, fmi_cached *w)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_status rc = fm_grow(&p->held, &p->held_cap, p->held_count + 1, sizeof(fmi_cached *));
    bool again = false;
    for (size_t i = 0; i < p->held_count; i++)
        again = again || p->held[i] == w;
    if (again || rc != FM_OK) {
        fmi_weights_drop(m->engine->weights, w);
        return again ? FM_OK : rc;
    }
    p->bytes_alone += w->bytes;
    p->held[p->held_count++] = w;
    return FM_OK;
}

fm_status fmi_find_entry(fmi_binder *b, const fm_entry **out, const char *name)
{
    *out = fm_map_get(b->replaced, name, strlen(name));
    if (*out)
        return FM_OK;
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    if (rc == FM_OK)
        *out = fm_tree_find(b->tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    if (rc == FM_OK && !*out)
        rc = fm_fail(FM_ENOTFOUND, "%s: tensor '%s' is missing", b->what, name);
    return rc;
}

fm_status fmi_read_floats(fmi_binder *b, float **out, const fm_entry *e)
{
    uint64_t n = 0, bytes = 0;
    *out = NULL;
    if (e->kind != FM_ENTRY_TENSOR)
        return fm_fail(FM_ECORRUPT, "%s: %s is no tensor", b->what, e->path);
    fm_status rc = fm_shape_elems(&n, &e->shape);
    FM_THEN(rc, fm_tensor_bytes(&bytes, e->dtype, &e->shape, e->name));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", b->what);
    void *raw = fm_aligned_alloc(64, (size_t)bytes);
    float *wide = fm_malloc((size_t)n * sizeof(float));
    rc = raw && wide ? b->p->read(b->p->ctx, e, raw) : FM_ENOMEM;
    FM_THEN(rc, fm_to_f32(wide, e->dtype, raw, n));
    fm_free(raw);
    if (rc != FM_OK) {
        fm_free(wide);
        return fm_error_prefix(rc, "%s: tensor '%s'", b->what, e->name);
    }
    *out = wide;
    return FM_OK;
}

fm_status fmi_own(fm_model *m, const float **out, const float *host, uint32_t n)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_backend *be = m->engine->be;
    void *v = NULL;
    *out = NULL;
    FM_TRY(fm_grow(&p->own, &p->own_cap, p->own_count + 1, sizeof(float *)));
    FM_TRY(be->alloc(be, &v, (size_t)n * sizeof(float)));
    p->own[p->own_count++] = v;
    p->bytes_alone += (uint64_t)n * sizeof(float);
    *out = v;
    return be->upload(be, v, host, (size_t)n * sizeof(float));
}

/* A matrix is held for products, except the token types, whose first row is added as a vector. */
fmi_form fmi_form_of(const fm_arch *a, const fm_param *p)
{
    bool matrix = p->place != FM_P_TYPES && p->place != FM_P_ROUTER_B && p->place != FM_P_BUCKETS;
    if (p->is_matrix && matrix)
        return p->transposed ? FMI_MATRIX_T : FMI_MATRIX;
    bool gain = fm_norm_adds_one(a->sw.norm) &&
                (p->place == FM_P_NORM || p->place == FM_P_ATTN_NORM ||
                 p->place == FM_P_ATTN_POST || p->place == FM_P_MLP_NORM ||
                 p->place == FM_P_MLP_POST || p->place == FM_P_Q_NORM || p->place == FM_P_K_NORM);
    return gain ? FMI_VECTOR_PLUS1 : FMI_VECTOR;
}
