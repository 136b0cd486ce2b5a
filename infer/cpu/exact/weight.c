/* weight.c - matrices in mode exact: float32 panels, their transpose for gradients, or as
 * stored. */
#include <string.h>

#include "infer/cpu/cpu.h"
#include "store/base/checked.h"
#include "store/base/mem.h"

#define TURN_K 64u /* k transposed at a time: 8 KiB of a panel */

typedef struct pack_job {
    const fmi_kern *kern;
    float *panel;
    uint32_t n, k;
    fm_dtype dtype;
    const unsigned char *src;
    size_t row_bytes;
    const float *floats; /* float32 rows; the three fields above are unused then */
    float *rows;         /* scratch: FMI_PANEL * k */
    float *turned;       /* panels of W^T, made at the same time; or NULL */
} pack_job;

static fm_status pack_panels(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const pack_job *j = ctx;
    uint32_t k = j->k;
    float *rows = j->rows;

    (void)worker;
    for (size_t p = begin; p < end; p++) {
        uint32_t n = FM_MIN(j->n - (uint32_t)p * FMI_PANEL, FMI_PANEL);
        const unsigned char *src = j->floats ? NULL : j->src + p * FMI_PANEL * j->row_bytes;
        float *dst = j->panel + p * FMI_PANEL * k;
        for (uint32_t i = 0; i < n && !j->floats; i++) {
            FM_TRY(fm_to_f32(rows + (size_t)i * k, j->dtype, src + i * j->row_bytes, k));
        }
        if (n < FMI_PANEL)
            memset(dst, 0, (size_t)FMI_PANEL * k * sizeof *dst);
        const float *from = j->floats ? j->floats + p * FMI_PANEL * k : rows;
        for (uint32_t k0 = 0; k0 < k; k0 += TURN_K)
            j->kern->transpose(dst + (size_t)k0 * FMI_PANEL, FMI_PANEL, from + k0, k, n,
                               FM_MIN(TURN_K, k - k0));
        for (uint32_t c = 0; j->turned && c < k; c += FMI_PANEL)
            j->kern->copy_panel(j->turned + (size_t)c * j->n + p * FMI_PANEL * FMI_PANEL, from + c,
                                k, FM_MIN(FMI_PANEL, k - c), n);
    }
    return FM_OK;
}

static fm_status row_bytes_of(uint64_t *out, fm_dtype dtype, uint32_t n, uint32_t k)
{
    fm_shape row = {.rank = 1, .dim = {k}};

    if (n == 0 || k == 0)
        return fm_fail(FM_EINVAL, "a weight of %u x %u has no elements", n, k);
    if (!fm_dtype_get(dtype)->is_float)
        return fm_fail(FM_EUNSUPPORTED, "a weight of type %s cannot be widened to float32",
                       fm_dtype_get(dtype)->name);
    return fm_tensor_bytes(out, dtype, &row, "one row of a weight");
}

/* Whether a weight of this type is kept as stored; float32 would gain nothing. */
static bool stays_stored(fm_backend *be, fm_role role, fm_dtype dtype)
{
    return fmi_cpu_of(be)->keep_stored && role == FM_ROLE_LINEAR && dtype != FM_F32;
}

fm_status fmi_exact_weight_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                       uint32_t n, uint32_t k)
{
    uint64_t row_bytes, rows = role == FM_ROLE_LINEAR ? (uint64_t)fmi_panels_of(n) * FMI_PANEL : n;
    fm_status rc = row_bytes_of(&row_bytes, dtype, n, k);

    *out = 0;
    if (rc < 0)
        return rc;
    if (stays_stored(be, role, dtype)) {
        *out = n * row_bytes;
        return FM_OK;
    }
    if (fm_mul_overflow(out, rows, k * sizeof(float)))
        return fm_fail(FM_ELIMIT, "a weight of %u x %u is too large", n, k);
    return FM_OK;
}

/* Runs on the calling thread with memory of its own: a thread may load while a step runs. */
fm_status fmi_exact_weight_image(fm_backend *be, void *image, fm_role role, fm_dtype dtype,
                                 uint32_t n, uint32_t k, const void *host_bytes)
{
    uint64_t row_bytes;
    FM_TRY(row_bytes_of(&row_bytes, dtype, n, k));
    if (stays_stored(be, role, dtype)) {
        memcpy(image, host_bytes, n * row_bytes);
        return FM_OK;
    }
    if (role != FM_ROLE_LINEAR)
        return fm_to_f32(image, dtype, host_bytes, (uint64_t)n * k);
    pack_job job = {.kern = fmi_cpu_of(be)->kern,
                    .panel = image,
                    .n = n,
                    .k = k,
                    .dtype = dtype,
                    .src = host_bytes,
                    .row_bytes = row_bytes,
                    .rows = fm_aligned_alloc(64, (size_t)FMI_PANEL * k * sizeof(float))};
    if (!job.rows)
        return FM_ENOMEM;
    fm_status rc = pack_panels(&job, 0, fmi_panels_of(n), 0);
    fm_free(job.rows);
    return rc;
}

fm_status fmi_exact_weight_map(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                               uint32_t n, uint32_t k, const void *image)
{
    union { /* only weight_update writes, and it refuses an image that the weight does not own */
        const void *in;
        float *out;
    } panel = {.in = image};

    uint64_t row_bytes;
    fm_status rc = row_bytes_of(&row_bytes, dtype, n, k);

    *out = NULL;
    if (rc < 0)
        return rc;
    fmi_cpu_weight *w = fm_calloc(1, sizeof *w);
    if (!w)
        return FM_ENOMEM;
    *w = (fmi_cpu_weight){.role = role,
                          .stored = stays_stored(be, role, dtype),
                          .dtype = dtype,
                          .row_bytes = (size_t)row_bytes,
                          .n = n,
                          .k = k,
                          .panels = role == FM_ROLE_LINEAR ? fmi_panels_of(n) : 0,
                          .panel = panel.out};
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

fm_status fmi_exact_weight_new(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                               uint32_t n, uint32_t k, const void *host_bytes)
{
    uint64_t total;
    fm_status rc = be->weight_image_bytes(be, &total, role, dtype, n, k);

    *out = NULL;
    if (rc < 0)
        return rc;
    void *image = fm_aligned_alloc(64, total);
    if (!image)
        return FM_ENOMEM;
    rc = be->weight_image(be, image, role, dtype, n, k, host_bytes);
    FM_THEN(rc, be->weight_map(be, out, role, dtype, n, k, image));
    if (rc < 0) {
        fm_free(image);
        return rc;
    }
    fmi_cpu_weight_of(*out)->own = true;
    return FM_OK;
}

void fmi_exact_weight_free(fm_backend *be, fm_weight *weight)
{
    fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    (void)be;
    if (w && w->own)
        fm_free(w->panel);
    if (w)
        fmi_dx_free(w);
    fm_free(w);
}

uint64_t fmi_exact_weight_bytes(const fm_weight *weight)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    if (w->stored)
        return sizeof *w + (uint64_t)w->n * w->row_bytes;
    uint64_t rows = w->role == FM_ROLE_LINEAR ? (uint64_t)w->panels * FMI_PANEL : w->n;
    return sizeof *w + rows * w->k * sizeof(float) + (w->dx ? w->dx->bytes : 0);
}

/* ---- the layout for products with W itself ---- */

fm_status fmi_dx_reserve(fmi_cpu_weight *w, uint64_t bytes)
{
    fm_assert(w->role == FM_ROLE_LINEAR);
    if (w->dx)
        return FM_OK;
    fmi_dx_layout *dx = fm_calloc(1, sizeof *dx);
    if (!dx)
        return FM_ENOMEM;
    dx->bytes = bytes;
    dx->panels = fm_aligned_alloc(64, bytes); /* zeros: columns beyond k stay so */
    if (!dx->panels) {
        fm_free(dx);
        return FM_ENOMEM;
    }
    w->dx = dx;
    return FM_OK;
}

void fmi_dx_free(fmi_cpu_weight *w)
{
    if (w->dx)
        fm_free(w->dx->panels);
    fm_free(w->dx);
}

const void *fmi_dx_use(fmi_cpu *cpu, const fmi_cpu_weight *w, size_t units, fm_pool_fn turn)
{
    fmi_dx_layout *dx = w->dx;
    fmi_turn t = {cpu, w};
    if (!dx || (!dx->made && dx->products++ == 0))
        return NULL;
    if (!dx->made)
        fmi_run(cpu, units, 4, turn, &t);
    dx->made = true;
    return dx->panels;
}

/* A panel of W covers 32 k of W^T and is major in W^T's n: transposes 32 x 32 squares. */
void fmi_turn_panel(const fmi_kern *kern, float *dst, const float *panels, uint32_t depth,
                    uint32_t k0, uint32_t kc, uint32_t n0, uint32_t n)
{
    for (uint32_t k = 0; k < kc; k += FMI_PANEL) {
        const float *src = panels + (size_t)(k0 + k) * depth + (size_t)n0 * FMI_PANEL;
        kern->transpose(dst + (size_t)k * FMI_PANEL, FMI_PANEL, src, FMI_PANEL, n,
                        FM_MIN(FMI_PANEL, kc - k));
    }
}

static fm_status turn_panels(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const fmi_turn *t = ctx;
    const fmi_cpu_weight *w = t->w;
    float *turned = w->dx->panels;

    (void)worker;
    for (size_t p = begin; p < end; p++) {
        uint32_t at = (uint32_t)p * FMI_PANEL, width = FM_MIN(w->k - at, FMI_PANEL);
        fmi_turn_panel(t->cpu->kern, turned + p * FMI_PANEL * w->n, w->panel, w->k, 0, w->n, at,
                       width);
    }
    return FM_OK;
}

const float *fmi_dx_panels(fmi_cpu *cpu, const fmi_cpu_weight *w)
{
    return fmi_dx_use(cpu, w, fmi_panels_of(w->k), turn_panels);
}

/* A weight is kept as stored to save memory, so it gets no second layout. */
fm_status fmi_exact_weight_for_dx(fm_backend *be, fm_weight *weight)
{
    fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    (void)be;
    return w->stored ? FM_OK
                     : fmi_dx_reserve(w, (uint64_t)fmi_panels_of(w->k) * FMI_PANEL * w->n *
                                             sizeof(float));
}

void fmi_exact_weight_update(fm_backend *be, fm_weight *weight, const float *src)
{
    fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    fmi_cpu *cpu = fmi_cpu_of(be);
    pack_job job = {.kern = cpu->kern,
                    .panel = w->panel,
                    .n = w->n,
                    .k = w->k,
                    .floats = src,
                    .turned = fmi_dx_made(w)};

    fm_assert(w->own && !w->stored && w->role == FM_ROLE_LINEAR);
    fmi_run(cpu, w->panels, 1, pack_panels, &job);
}

const float *fmi_exact_weight_floats(const fm_weight *weight)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    return w->role == FM_ROLE_LINEAR ? NULL : w->panel;
}

/* ---- weights kept as stored: widened inside the products ---- */

/* Elements k0..k0+kc of a row: k0 and kc are whole blocks of its type. */
static void widen(const fmi_cpu_weight *w, float *dst, uint32_t row, uint32_t k0, uint32_t kc)
{
    const fm_dtype_info *type = fm_dtype_get(w->dtype);
    const unsigned char *src = (const unsigned char *)w->panel + row * w->row_bytes +
                               (size_t)(k0 / type->block_elems) * type->block_bytes;
    fm_status rc = fm_to_f32(dst, w->dtype, src, kc);

    fm_assert(rc == FM_OK); /* weight_new has checked the type */
}

void fmi_stored_panel(const fmi_kern *kern, const fmi_cpu_weight *w, float *dst, float *rows,
                      uint32_t k0, uint32_t kc, uint32_t n0, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        widen(w, rows + (size_t)i * kc, n0 + i, k0, kc);
    kern->transpose(dst, FMI_PANEL, rows, kc, n, kc);
}

void fmi_stored_turned(const fmi_cpu_weight *w, float *dst, float *row, uint32_t k0, uint32_t kc,
                       uint32_t n0, uint32_t n)
{
    const uint32_t block = fm_dtype_get(w->dtype)->block_elems;
    const uint32_t from = n0 / block * block, skip = n0 - from;
    const uint32_t count = FM_MIN((skip + n + block - 1) / block * block, w->k - from);

    for (uint32_t k = 0; k < kc; k++) {
        float *out = dst + (size_t)k * FMI_PANEL;
        widen(w, count == n ? out : row, k0 + k, from, count);
        if (count != n)
            memcpy(out, row + skip, n * sizeof *out);
    }
}

void fmi_exact_embed(fm_backend *be, float *y, size_t ldy, const fm_weight *weight,
                     const int32_t *ids, const int32_t *rows, uint32_t m)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        uint32_t row = rows ? (uint32_t)rows[i] : i, id = (uint32_t)ids[row];
        float *out = y + row * ldy;
        fm_assert(id < w->n);
        if (w->stored) {
            widen(w, out, id, 0, w->k);
            continue;
        }
        const float *src = w->panel + (size_t)(id / FMI_PANEL) * FMI_PANEL * w->k + id % FMI_PANEL;
        for (uint32_t k = 0; k < w->k; k++)
            out[k] = src[(size_t)k * FMI_PANEL];
    }
}

/* Every result has the bits of the float32 panels. */
fm_status fmi_exact_keep_stored(fm_backend *be)
{
    fmi_cpu_of(be)->keep_stored = true;
    be->layout = "stored-1";
    return FM_OK;
}
