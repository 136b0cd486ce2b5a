/* weight.cu - weights on the GPU: the stored bytes in panels of 32 rows (weight.h), which products
 * widen inside; low-rank factors as float32 rows. */
#include "infer/cuda/exact/weight.h"

typedef struct field {
    uint16_t at, bytes; /* in the stored block */
} field;

typedef struct type_info {
    const char *name;
    uint32_t elems, bytes;
    uint32_t stored_elems; /* 1: a row may have any length */
    const field *fields;   /* NULL: bytes / 16 fields of 16 bytes, then one of the rest */
    uint32_t count;
} type_info;

static const field q8_0[] = {{2, 16}, {18, 16}, {0, 2}};
static const field q4_0[] = {{2, 16}, {0, 2}};
static const field q4_1[] = {{4, 16}, {0, 4}};
static const field q5_0[] = {{6, 16}, {2, 4}, {0, 2}};
static const field q5_1[] = {{8, 16}, {0, 4}, {4, 4}};

#define FIELDS(f) f, sizeof(f) / sizeof *(f)
#define BLOCK(type) fmc_block<type>::elems, fmc_block<type>::bytes

/* name NULL: no weight can have this type. */
static const type_info *type_of(fm_dtype dtype)
{
    static const type_info none = {NULL, 1, 1, 1, NULL, 0};
    static const type_info types[] = {
        {"F32", BLOCK(FM_F32), 1, NULL, 0},         {"BF16", BLOCK(FM_BF16), 1, NULL, 0},
        {"F16", BLOCK(FM_F16), 1, NULL, 0},         {"F8_E4M3", BLOCK(FM_F8_E4M3), 1, NULL, 0},
        {"F8_E5M2", BLOCK(FM_F8_E5M2), 1, NULL, 0}, {"Q8_0", BLOCK(FM_Q8_0), 32, FIELDS(q8_0)},
        {"Q4_0", BLOCK(FM_Q4_0), 32, FIELDS(q4_0)}, {"Q4_1", BLOCK(FM_Q4_1), 32, FIELDS(q4_1)},
        {"Q5_0", BLOCK(FM_Q5_0), 32, FIELDS(q5_0)}, {"Q5_1", BLOCK(FM_Q5_1), 32, FIELDS(q5_1)},
        {"Q4_K", BLOCK(FM_Q4_K), 256, NULL, 0},     {"Q5_K", BLOCK(FM_Q5_K), 256, NULL, 0},
        {"Q6_K", BLOCK(FM_Q6_K), 256, NULL, 0},     {"IQ4_NL", BLOCK(FM_IQ4_NL), 32, FIELDS(q4_0)},
    };
    int at = 0;
#define FIND(type)                                                                                 \
    if (dtype == type)                                                                             \
        return &types[at];                                                                         \
    at++;
    FMC_TYPES(FIND)
#undef FIND
    return &none;
}

static const char *name_of(fm_dtype dtype)
{
    static const char *const other[] = {"none", "F64", "",   "",    "",    "",    "",   "I64",
                                        "I32",  "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"};
    const type_info *t = type_of(dtype);
    if (dtype == FM_MXFP4)
        return "MXFP4";
    return t->name ? t->name : dtype < sizeof other / sizeof *other ? other[dtype] : "unknown";
}

/* Sets the matrix but for its address; *bytes: size of its image. */
static fm_status plan(fmc_matrix *m, uint64_t *bytes, fm_role role, fm_dtype dtype, uint32_t n,
                      uint32_t k)
{
    const type_info *t = type_of(dtype);
    *bytes = 0;
    *m = fmc_matrix();
    if (n == 0 || k == 0)
        return fmc_fail(FM_EINVAL, "a weight of %u x %u has no elements", n, k);
    if (!t->name)
        return fmc_fail(FM_EUNSUPPORTED, "a weight of type %s cannot be widened to float32",
                        name_of(dtype));
    if (k % t->stored_elems != 0)
        return fmc_fail(FM_EINVAL,
                        "one row of a weight: %u elements are no whole number of %s "
                        "blocks of %u",
                        k, t->name, t->stored_elems);
    while ((1u << m->elems_log2) < t->elems)
        m->elems_log2++;
    m->dtype = dtype;
    m->n = n;
    m->k = k;
    m->record_bytes = FMC_PANEL * t->bytes;
    m->panel_bytes = ((size_t)k + t->elems - 1) / t->elems * m->record_bytes;
    *bytes = ((uint64_t)n + FMC_PANEL - 1) / FMC_PANEL * m->panel_bytes;
    if (role != FM_ROLE_LINEAR)
        *bytes = (uint64_t)n * k * sizeof(float);
    return *bytes <= FM_MAX_TENSOR_BYTES
               ? FM_OK
               : fmc_fail(FM_ELIMIT, "a weight of %u x %u is too large", n, k);
}

fm_status fmc_op_weight_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                    uint32_t n, uint32_t k)
{
    fmc_matrix m;
    (void)be;
    return plan(&m, out, role, dtype, n, k);
}

/* ---- on the host: blocks of rows to records ---- */

static void copy_field(unsigned char *dst, const unsigned char *src, size_t src_step, uint32_t rows,
                       uint32_t bytes)
{
    for (uint32_t j = 0; j < rows; j++, src += src_step)
        switch (bytes) {
        case 16:
            memcpy(dst + (size_t)j * 16, src, 16);
            break;
        case 4:
            memcpy(dst + (size_t)j * 4, src, 4);
            break;
        default:
            memcpy(dst + (size_t)j * bytes, src, bytes);
            break;
        }
}

/* One record of `rows` rows, each of `here` bytes (less than a block: a row's end). */
static void pack_record(unsigned char *dst, const type_info *t, const unsigned char *src,
                        size_t src_step, uint32_t rows, uint32_t here)
{
    uint32_t before = 0;
    if (rows < FMC_PANEL || here < t->bytes)
        memset(dst, 0, (size_t)FMC_PANEL * t->bytes);
    for (uint32_t f = 0; before < t->bytes; f++) {
        uint32_t left = t->bytes - before;
        field whole = {(uint16_t)before, (uint16_t)(left < 16 ? left : 16)};
        field o = t->fields ? t->fields[f] : whole;
        if (o.at + o.bytes <= here)
            copy_field(dst + (size_t)before * FMC_PANEL, src + o.at, src_step, rows, o.bytes);
        else if (o.at < here)
            for (uint32_t j = 0; j < rows; j++)
                memcpy(dst + (size_t)before * FMC_PANEL + (size_t)j * o.bytes,
                       src + j * src_step + o.at, here - o.at);
        before += o.bytes;
    }
}

static void pack_panel(unsigned char *dst, const fmc_matrix *m, const type_info *t,
                       const unsigned char *src, uint32_t rows)
{
    size_t block = t->stored_elems == 1 ? t->bytes / t->elems : t->bytes;
    size_t row_bytes = m->k / t->stored_elems * block;
    for (size_t at = 0; at < row_bytes; at += t->bytes, dst += m->record_bytes) {
        size_t left = row_bytes - at;
        pack_record(dst, t, src + at, row_bytes, rows,
                    (uint32_t)(left < t->bytes ? left : t->bytes));
    }
}

/* Widens rows of a low-rank factor to float32, by way of a panel. */
static fm_status widen_rows(float *dst, const fmc_matrix *m, const type_info *t,
                            const unsigned char *src, size_t row_bytes)
{
    fmc_matrix one = *m;
    unsigned char *panel = (unsigned char *)fmc_take(m->panel_bytes);
    if (!panel)
        return fmc_fail(FM_ENOMEM, "out of memory: %zu bytes", m->panel_bytes);
    one.image = panel;
    for (uint32_t n = 0; n < m->n; n += FMC_PANEL) {
        uint32_t rows = m->n - n < FMC_PANEL ? m->n - n : FMC_PANEL;
        pack_panel(panel, m, t, src + n * row_bytes, rows);
        for (uint32_t j = 0; j < rows; j++)
            for (uint32_t k = 0; k < m->k; k += 8) {
                float eight[8];
                fmc_row8(eight, &one, j, k);
                memcpy(dst + (size_t)(n + j) * m->k + k, eight,
                       (m->k - k < 8 ? m->k - k : 8) * sizeof *eight);
            }
    }
    fmc_release(panel);
    return FM_OK;
}

/* Runs on the calling thread with memory of its own: a thread may load while a step runs. */
fm_status fmc_op_weight_image(fm_backend *be, void *image, fm_role role, fm_dtype dtype, uint32_t n,
                              uint32_t k, const void *host_bytes)
{
    const type_info *t = type_of(dtype);
    const unsigned char *src = (const unsigned char *)host_bytes;
    uint64_t bytes;
    fmc_matrix m;
    fm_status rc = plan(&m, &bytes, role, dtype, n, k);
    (void)be;
    if (rc != FM_OK)
        return rc;
    size_t row_bytes =
        t->stored_elems == 1 ? (size_t)k * t->bytes / t->elems : (size_t)k / t->elems * t->bytes;
    if (role != FM_ROLE_LINEAR && dtype == FM_F32) {
        memcpy(image, src, bytes);
        return FM_OK;
    }
    if (role != FM_ROLE_LINEAR)
        return widen_rows((float *)image, &m, t, src, row_bytes);
    for (uint32_t at = 0; at < n; at += FMC_PANEL)
        pack_panel((unsigned char *)image + at / FMC_PANEL * m.panel_bytes, &m, t,
                   src + at * row_bytes, n - at < FMC_PANEL ? n - at : FMC_PANEL);
    return FM_OK;
}

/* ---- on the GPU ---- */

void fmc_op_weight_free(fm_backend *be, fm_weight *weight)
{
    fmc_exact_weight *w = fmc_exact_weight_of(weight);
    if (w && w->bytes)
        be->free(be, w->bytes);
    fmc_release(w);
}

/* Copies the image to the GPU, so the host's may be freed. */
fm_status fmc_op_weight_map(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                            uint32_t n, uint32_t k, const void *image)
{
    uint64_t bytes;
    fmc_matrix m;
    fm_status rc = plan(&m, &bytes, role, dtype, n, k);
    *out = NULL;
    if (rc != FM_OK)
        return rc;
    fmc_exact_weight *w = (fmc_exact_weight *)fmc_take(sizeof *w);
    if (!w)
        return fmc_fail(FM_ENOMEM, "out of memory");
    rc = be->alloc(be, &w->bytes, bytes);
    if (rc == FM_OK)
        rc = be->upload(be, w->bytes, image, bytes);
    if (rc != FM_OK) {
        fmc_op_weight_free(be, (fm_weight *)(void *)w);
        return rc;
    }
    w->role = role;
    w->m = m;
    w->m.image = (unsigned char *)w->bytes;
    w->floats = role == FM_ROLE_LINEAR ? NULL : (float *)w->bytes;
    w->n_bytes = bytes;
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

fm_status fmc_op_weight_new(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                            uint32_t n, uint32_t k, const void *host_bytes)
{
    uint64_t bytes;
    fm_status rc = fmc_op_weight_image_bytes(be, &bytes, role, dtype, n, k);
    *out = NULL;
    if (rc != FM_OK)
        return rc;
    if (role != FM_ROLE_LINEAR && dtype == FM_F32)
        return fmc_op_weight_map(be, out, role, dtype, n, k, host_bytes);
    void *image = fmc_take(bytes);
    if (!image)
        return fmc_fail(FM_ENOMEM, "out of memory: %llu bytes", (unsigned long long)bytes);
    rc = fmc_op_weight_image(be, image, role, dtype, n, k, host_bytes);
    if (rc == FM_OK)
        rc = fmc_op_weight_map(be, out, role, dtype, n, k, image);
    fmc_release(image);
    return rc;
}

uint64_t fmc_op_weight_bytes(const fm_weight *weight)
{
    const fmc_exact_weight *w = fmc_exact_weight_of(weight);
    return sizeof *w + w->n_bytes;
}

const float *fmc_op_weight_floats(const fm_weight *weight)
{
    const fmc_exact_weight *w = fmc_exact_weight_of(weight);
    return w->floats;
}

/* A thread moves sixteen bytes: four elements of a row to their place in its panel. */
__global__ void k_pack_f32(unsigned char *image, const float *src, uint32_t n, uint32_t k)
{
    uint64_t quads = ((uint64_t)k + 15) / 16 * 4;
    uint64_t all = ((uint64_t)n + FMC_PANEL - 1) / FMC_PANEL * FMC_PANEL * quads;
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint64_t row = i / (FMC_PANEL * quads) * FMC_PANEL + i % FMC_PANEL;
        uint64_t at = i / FMC_PANEL % quads * 4;
        float v[4];
        for (uint32_t e = 0; e < 4; e++)
            v[e] = row < n && at + e < k ? src[row * k + at + e] : 0.0f;
        ((float4 *)(void *)image)[i] = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* The new values are float32, whatever the weight's type was. */
void fmc_op_weight_update(fm_backend *be, fm_weight *weight, const float *src)
{
    fmc_exact_weight *w = fmc_exact_weight_of(weight);
    fmc_device *d = fmc_of(be);
    uint64_t bytes = 0;
    fmc_matrix m;
    fm_status rc = w->role == FM_ROLE_LINEAR
                       ? plan(&m, &bytes, w->role, FM_F32, w->m.n, w->m.k)
                       : fmc_fail(FM_EINVAL, "a low-rank factor is no weight of a layer");
    if (rc == FM_OK && w->m.dtype != FM_F32) {
        void *fresh;
        rc = be->alloc(be, &fresh, bytes);
        if (rc == FM_OK) {
            be->free(be, w->bytes);
            m.image = (unsigned char *)(w->bytes = fresh);
            w->m = m;
            w->n_bytes = bytes;
        }
    }
    if (rc != FM_OK) {
        fmc_stick(d, rc,
                  "new values of a weight: no room for them as float32, or no layer's weight");
        return;
    }
    FMC_RUN(d, k_pack_f32, fmc_blocks(bytes / 16, FMC_THREADS), FMC_THREADS, 0,
            (unsigned char *)w->bytes, src, w->m.n, w->m.k);
}

/* A thread writes eight elements. */
__global__ void k_weight_rows(float *y, size_t ldy, fmc_matrix w, const int32_t *ids,
                              const int32_t *rows, uint32_t m)
{
    const uint64_t eights = ((uint64_t)w.k + 7) / 8, all = m * eights;
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        const uint64_t at = i / eights, row = rows ? (uint64_t)rows[at] : at;
        const uint32_t k = (uint32_t)(i % eights) * 8, id = (uint32_t)ids[row];
        float v[8];
        if (id < w.n)
            fmc_row8(v, &w, id, k);
        for (uint32_t e = 0; id < w.n && e < 8 && k + e < w.k; e++)
            y[row * ldy + k + e] = v[e];
    }
}

void fmc_op_embed(fm_backend *be, float *y, size_t ldy, const fm_weight *weight, const int32_t *ids,
                  const int32_t *rows, uint32_t m)
{
    const fmc_exact_weight *w = fmc_exact_weight_of(weight);
    const uint64_t all = ((uint64_t)w->m.k + 7) / 8 * m;
    if (m > 0)
        FMC_RUN(fmc_of(be), k_weight_rows, fmc_blocks(all, FMC_THREADS), FMC_THREADS, 0, y, ldy,
                w->m, ids, rows, m);
}

/* Weights always keep their stored type. */
fm_status fmc_op_keep_stored(fm_backend *be)
{
    (void)be;
    return FM_OK;
}
