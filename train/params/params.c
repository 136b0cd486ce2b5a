/* params.c - the parameters that train: one flat device buffer each of values, gradients and
 * AdamW's moments.
 *
 * They are flat because clipping and AdamW are then one call over everything, a checkpoint is three
 * reads, and the low-rank factors of modules that read the same input lie next to each other. */
#include "train/params/stage.h"

#include "store/base/checked.h"
#include "store/base/mem.h"

#include <math.h>
#include <string.h>

#define ALIGN_FLOATS 16u

fm_status fmt_params_add(fmt_params *ps, int32_t *index, const char *name, const fm_shape *shape)
{
    uint64_t n = 0;
    uint64_t padded = 0;
    fm_status rc = fm_shape_elems(&n, shape);

    *index = -1;
    FM_THEN(rc, fm_grow(&ps->item, &ps->cap, ps->count + 1, sizeof(*ps->item)));
    if (rc < 0)
        return rc;
    fmt_param *p = &ps->item[ps->count];
    memset(p, 0, sizeof(*p));
    if (fm_align_overflow(&padded, n, ALIGN_FLOATS) ||
        fm_add_overflow(&padded, padded, ps->total) || padded > FM_MAX_TENSOR_BYTES)
        return fm_fail(FM_ELIMIT, "%s: too many parameters to train", name);
    p->name = fm_strdup(name);
    if (!p->name)
        return FM_ENOMEM;
    p->shape = *shape;
    p->n = p->here = n;
    p->at = p->whole_at = ps->total;
    p->lr_scale = 1.0f;
    ps->total = padded;
    *index = (int32_t)ps->count++;
    return FM_OK;
}

fm_status fmt_params_fix(fmt_params *ps, int32_t *index, const char *name, fm_dtype dtype,
                         const fm_shape *shape, bool *fresh)
{
    uint64_t n = 0;

    *fresh = false;
    for (size_t i = 0; i < ps->fixed_count; i++)
        if (strcmp(ps->fixed[i].name, name) == 0) {
            *index = (int32_t)i;
            return FM_OK;
        }
    FM_TRY(fm_shape_elems(&n, shape));
    FM_TRY(fm_grow(&ps->fixed, &ps->fixed_cap, ps->fixed_count + 1, sizeof(*ps->fixed)));
    fmt_fixed *f = &ps->fixed[ps->fixed_count];
    *f = (fmt_fixed){.name = fm_strdup(name),
                     .dtype = dtype,
                     .shape = *shape,
                     .value = fm_calloc((size_t)FM_MAX(n, (uint64_t)1), sizeof(float))};
    *index = (int32_t)ps->fixed_count++;
    *fresh = true;
    return f->name && f->value ? FM_OK : FM_ENOMEM;
}

static fm_status new_floats(fm_backend *be, float **out, uint64_t n)
{
    void *mem = NULL;
    fm_status rc = be->alloc(be, &mem, (size_t)n * sizeof(float));

    *out = mem;
    return rc;
}

fm_status fmt_params_alloc(fmt_params *ps, fm_backend *be, bool moments)
{
    void *sum = NULL;

    ps->be = be;
    if (ps->count == 0)
        return fm_fail(FM_EINVAL, "there is nothing to train: no module was chosen");
    if (!ps->comm)
        ps->own = ps->stripe = ps->total;
    uint64_t own = FM_MAX(ps->own, (uint64_t)1);
    uint64_t held = FM_MAX(ps->total + ps->guest, (uint64_t)1);
    fm_status rc = new_floats(be, &ps->p, held);
    FM_THEN(rc, new_floats(be, &ps->g, held));
    if (rc == FM_OK && moments)
        rc = new_floats(be, &ps->m, own);
    if (rc == FM_OK && moments)
        rc = new_floats(be, &ps->v, own);
    FM_THEN(rc, new_floats(be, &ps->zero, FMT_ZERO_FLOATS));
    if (rc == FM_OK && ps->stage)
        rc = fmt_stage_edges(ps);
    FM_THEN(rc, be->alloc(be, &sum, fmt_params_sums(ps) * sizeof(double)));
    ps->sum = sum;
    return rc;
}

/* Copies a tensor between its stored order and its order in the buffers. */
static void turn(const fmt_param *p, float *buffers, float *stored, bool store)
{
    uint64_t rows = p->shape.dim[0];
    uint64_t block = p->turned;
    uint64_t blocks = p->shape.dim[1] / block;

    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t b = 0; b < blocks; b++) {
            float *in = buffers + (b * rows + r) * block;
            float *out = stored + (r * blocks + b) * block;
            memcpy(store ? out : in, store ? in : out, (size_t)block * sizeof(float));
        }
}

fm_status fmt_params_put(fmt_params *ps, int32_t index, const float *host)
{
    const fmt_param *p = &ps->item[index];
    size_t bytes = (size_t)p->n * sizeof(float), here = (size_t)p->here * sizeof(float);

    if (here == 0)
        return FM_OK;
    if (!p->turned)
        return ps->be->upload(ps->be, ps->p + p->at, host + p->skip, here);
    float *own = fm_memdup(host, bytes);
    float *turned = fm_malloc(bytes);
    fm_status rc = own && turned ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK) {
        turn(p, turned, own, false);
        rc = ps->be->upload(ps->be, ps->p + p->at, turned + p->skip, here);
    }
    fm_free(own);
    fm_free(turned);
    return rc;
}

/* The floats of parameter p in the buffer `which`, in stored order. whole: the buffer of all
 * stages, on the host; NULL: `which` holds everything. */
static fm_status get_one(const fmt_params *ps, const fmt_param *p, const float *which,
                         const float *whole, float *host)
{
    size_t bytes = (size_t)p->n * sizeof(float);
    fm_status rc = FM_OK;

    if (whole)
        memcpy(host, whole + p->whole_at, bytes);
    else
        rc = ps->be->download(ps->be, host, which + p->at, bytes);
    if (rc < 0 || !p->turned)
        return rc;
    float *raw = fm_memdup(host, bytes);
    if (!raw)
        return FM_ENOMEM;
    turn(p, raw, host, true);
    fm_free(raw);
    return FM_OK;
}

fm_status fmt_params_get_all(const fmt_params *ps, const float *which, float *host)
{
    return ps->be->download(ps->be, host, which, (size_t)ps->total * sizeof(float));
}

fm_status fmt_params_put_all(const fmt_params *ps, float *which, const float *host)
{
    return ps->be->upload(ps->be, which, host, (size_t)ps->total * sizeof(float));
}

size_t fmt_params_sums(const fmt_params *ps)
{
    if (ps->stage)
        return fmt_stage_sums(ps);
    return ps->comm ? fmt_ranks_sums(ps) : 1;
}

void fmt_params_squares(const fmt_params *ps, double *sums)
{
    fm_backend *be = ps->be;
    fmt_stripe s;

    if (ps->stage) {
        fmt_stage_squares(ps, sums);
        return;
    }
    if (!ps->comm)
        be->sum_squares(be, sums, ps->g, ps->total);
    else
        for (uint64_t i = 0; fmt_params_stripe(ps, i, &s); i++)
            be->block_squares(be, sums + s.own / FMT_BLOCK_FLOATS, ps->g + s.at, s.n);
}

fm_status fmt_params_norm(const fmt_params *ps, const double *sums, double *norm)
{
    double sum = sums[0];
    fm_status rc = ps->stage  ? fmt_stage_add(ps, sums, &sum)
                   : ps->comm ? fmt_ranks_add(ps, sums, &sum)
                              : FM_OK;

    *norm = rc == FM_OK ? sqrt(sum) : 0.0;
    return rc;
}

fm_status fmt_params_grad_norm(fmt_params *ps, double *norm)
{
    size_t bytes = fmt_params_sums(ps) * sizeof(double);
    double *host = fm_calloc(1, bytes);
    fm_status rc = host ? ps->be->upload(ps->be, ps->sum, host, bytes) : FM_ENOMEM;

    *norm = 0.0;
    if (rc == FM_OK && ps->stage)
        rc = fmt_stage_meet_edges(ps);
    if (rc == FM_OK) {
        fmt_params_squares(ps, ps->sum);
        rc = ps->be->download(ps->be, host, ps->sum, bytes);
    }
    FM_THEN(rc, fmt_params_norm(ps, host, norm));
    fm_free(host);
    return rc;
}

/* Widens at .. end by the padded floats of parameter i that this rank's stage updates. */
static void widen(const fmt_params *ps, size_t i, uint64_t *at, uint64_t *end)
{
    const fmt_param *p = &ps->item[i];

    if (p->here == 0 || p->at >= ps->total)
        return;
    *at = FM_MIN(*at, p->at);
    *end = FM_MAX(*end, p->at + ((p->here + 15u) & ~(uint64_t)15u));
}

/* Updates the floats begin .. end - 1, which have one learning rate. */
static void step_range(fmt_params *ps, const fm_train_config *c, double lr, uint64_t step,
                       float g_scale, uint64_t begin, uint64_t end)
{
    fmt_stripe s;

    for (uint64_t i = fmt_params_round(ps, begin); fmt_params_stripe(ps, i, &s) && s.at < end;
         i++) {
        uint64_t at = FM_MAX(s.at, begin), stop = FM_MIN(s.at + s.n, end);
        uint64_t moment = s.own + (at - s.at);
        if (at < stop)
            ps->be->adamw(ps->be, ps->p + at, ps->m + moment, ps->v + moment, ps->g + at, stop - at,
                          (float)lr, (float)c->beta1, (float)c->beta2, (float)c->eps,
                          (float)c->weight_decay, step, g_scale);
    }
}

/* Neighbouring parameters with one learning rate take one call a stripe; padding stays 0. */
fm_status fmt_params_step(fmt_params *ps, const fm_train_config *c, double lr, uint64_t step,
                          float g_scale)
{
    for (size_t i = 0, j; i < ps->count; i = j) {
        float scale = ps->item[i].lr_scale;
        uint64_t at = UINT64_MAX, end = 0;
        for (j = i;
             j < ps->count && !(ps->item[j].lr_scale < scale) && !(ps->item[j].lr_scale > scale);
             j++)
            widen(ps, j, &at, &end);
        if (at < end)
            step_range(ps, c, lr * (double)scale, step, g_scale, at, end);
    }
    fm_status rc = ps->comm ? fmt_ranks_gather(ps, ps->p) : FM_OK;
    return rc == FM_OK && ps->stage ? fmt_stage_tell_tied(ps) : rc;
}

static fm_status one_result(fm_trained *out, const fmt_params *ps, const fmt_param *p,
                            const float *which, const float *whole, fm_dtype dtype)
{
    float *host = NULL;
    fm_status rc = fm_tensor_bytes(&out->bytes, dtype, &p->shape, p->name);

    if (rc < 0)
        return rc;
    out->dtype = dtype;
    out->shape = p->shape;
    out->name = fm_strdup(p->name);
    out->data = fm_malloc((size_t)out->bytes);
    host = fm_malloc((size_t)p->n * sizeof(float));
    if (!out->name || !out->data || !host)
        rc = FM_ENOMEM;
    FM_THEN(rc, get_one(ps, p, which, whole, host));
    FM_THEN(rc, fm_from_f32(out->data, dtype, host, p->n));
    fm_free(host);
    return rc;
}

static fm_status fixed_result(fm_trained *out, const fmt_fixed *f)
{
    uint64_t n = 0;
    FM_TRY(fm_shape_elems(&n, &f->shape));
    FM_TRY(fm_tensor_bytes(&out->bytes, f->dtype, &f->shape, f->name));

    out->dtype = f->dtype;
    out->shape = f->shape;
    out->name = fm_strdup(f->name);
    out->data = fm_malloc((size_t)out->bytes);
    if (!out->name || !out->data)
        return FM_ENOMEM;
    if (f->dtype == FM_F32)
        return fm_from_f32(out->data, FM_F32, f->value, n);
    for (uint64_t i = 0; i < n; i++)
        fm_put_u32((uint8_t *)out->data + 4 * i, (uint32_t)(int32_t)f->value[i]);
    return FM_OK;
}

/* A child can be stored as a delta to its parent only in the parent's types. */
static fm_dtype dtype_as_parent(const fm_tree *parent, const char *name)
{
    const fm_entry *e = fmt_find_tensor(parent, name);
    bool plain = e && (e->dtype == FM_F32 || e->dtype == FM_BF16 || e->dtype == FM_F16);
    return plain ? e->dtype : FM_F32;
}

fm_status fmt_params_result(const fmt_params *ps, const float *which, fm_dtype dtype,
                            const fm_tree *parent, fm_train_result *out)
{
    bool reads = !ps->stage || ps->stage->rank == 0;
    float *whole = NULL;
    fm_status rc = FM_OK;

    if (ps->stage && reads)
        whole = fm_malloc((size_t)ps->whole * sizeof(float));
    if (ps->stage && reads && !whole)
        return FM_ENOMEM;
    if (ps->stage)
        rc = fmt_stage_collect(ps, which, false, whole);
    const size_t fixed = which == ps->p ? ps->fixed_count : 0; /* they have no gradients */
    out->tensors =
        rc == FM_OK && reads ? fm_calloc(ps->count + fixed, sizeof(*out->tensors)) : NULL;
    if (rc == FM_OK && reads && !out->tensors)
        rc = FM_ENOMEM;
    for (size_t i = 0; reads && i < ps->count && rc == FM_OK; i++) {
        out->count = i + 1;
        const fmt_param *p = &ps->item[i];
        fm_dtype own = dtype == FM_DTYPE_NONE ? dtype_as_parent(parent, p->name) : dtype;
        rc = one_result(&out->tensors[i], ps, p, which, whole, own);
    }
    for (size_t i = 0; reads && i < fixed && rc == FM_OK; i++) {
        out->count = ps->count + i + 1;
        rc = fixed_result(&out->tensors[ps->count + i], &ps->fixed[i]);
    }
    fm_free(whole);
    return rc;
}

void fmt_params_release(fmt_params *ps)
{
    fm_backend *be = ps->be;

    fmt_stage_edges_free(ps);
    for (size_t i = 0; i < ps->count; i++) {
        if (be && ps->item[i].weight)
            be->weight_free(be, ps->item[i].weight);
        fm_free(ps->item[i].name);
    }
    for (size_t i = 0; i < ps->fixed_count; i++) {
        fm_free(ps->fixed[i].name);
        fm_free(ps->fixed[i].value);
    }
    fm_free(ps->fixed);
    if (be) {
        float *const buf[] = {ps->p, ps->g, ps->m, ps->v, ps->zero};
        for (size_t i = 0; i < FM_ARRAY_LEN(buf); i++)
            if (buf[i])
                be->free(be, buf[i]);
        if (ps->sum)
            be->free(be, ps->sum);
    }
    fm_free(ps->item);
    memset(ps, 0, sizeof(*ps));
}
