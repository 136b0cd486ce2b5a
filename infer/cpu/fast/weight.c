/* weight.c - weights of mode fast: layouts, images, and rows read back out of them.
 *
 * Block types keep the values and the size of their bytes; only the order changes, so that one
 * 64-byte line holds four k of sixteen outputs. Scales are stored after all lines of the image. */
#include "infer/cpu/fast/fast.h"

#include <string.h>

#include "store/base/checked.h"
#include "store/base/mem.h"

/* Of a file's block: where its elements, float16 scales and single bytes of scales begin. */
typedef struct block_info {
    fm_dtype dtype;
    fmi_fast_block block;
    uint32_t q_bytes; /* bytes of 32 k of a panel */
    int32_t offset;
    uint32_t q_at, halves, half_at, bytes, byte_at;
} block_info;

/* clang-format off */
static const block_info infos[] = {
    {FM_Q8_0,   FMI_Q8_0,   512, -128, 2,  1, 0,   0,  0},
    {FM_Q4_0,   FMI_Q4_0,   256, -8,   2,  1, 0,   0,  0},
    {FM_Q4_1,   FMI_Q4_1,   256, 0,    4,  2, 0,   0,  0},
    {FM_Q5_0,   FMI_Q5_0,   320, -16,  2,  1, 0,   0,  0},
    {FM_Q5_1,   FMI_Q5_1,   320, 0,    4,  2, 0,   0,  0},
    {FM_IQ4_NL, FMI_IQ4_NL, 256, -128, 2,  1, 0,   0,  0},
    {FM_MXFP4,  FMI_MXFP4,  256, -128, 1,  0, 0,   1,  0},
    {FM_IQ4_XS, FMI_IQ4_XS, 256, -128, 8,  1, 0,   6,  2},
    {FM_Q2_K,   FMI_Q2_K,   128, 0,    16, 2, 80,  16, 0},
    {FM_Q3_K,   FMI_Q3_K,   192, -4,   32, 1, 108, 12, 96},
    {FM_Q4_K,   FMI_Q4_K,   256, 0,    16, 2, 0,   12, 4},
    {FM_Q5_K,   FMI_Q5_K,   320, 0,    48, 2, 0,   12, 4},
    {FM_Q6_K,   FMI_Q6_K,   384, -32,  0,  1, 208, 16, 192},
};
/* clang-format on */

/* Bytes of the scales of a file's block of one output. */
static uint32_t scale_bytes(const block_info *info)
{
    return 2 * info->halves + info->bytes;
}

static const block_info *info_of(fm_dtype dtype)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(infos); i++)
        if (infos[i].dtype == dtype)
            return &infos[i];
    return NULL;
}

static fmi_fast_layout layout_of(fm_role role, fm_dtype dtype)
{
    if (role != FM_ROLE_LINEAR)
        return role == FM_ROLE_LORA_A ? FMI_LAYOUT_DOWN : FMI_LAYOUT_UP;
    if (info_of(dtype))
        return FMI_LAYOUT_INT8;
    if (dtype == FM_BF16)
        return FMI_LAYOUT_BF16;
    if (dtype == FM_F16)
        return FMI_LAYOUT_F16;
    return dtype == FM_F32 ? FMI_LAYOUT_F32 : FMI_LAYOUT_FILE;
}

/* Outputs in the panels of bf16: panels of 32, the last one of 16 where that is enough. */
static uint64_t wide_outputs(uint32_t n)
{
    return ((uint64_t)n + FMI_OUTPUTS - 1) / FMI_OUTPUTS * FMI_OUTPUTS;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static fm_status plan(fmi_fast_weight *w, uint64_t *bytes, fm_role role, fm_dtype dtype, uint32_t n,
                      uint32_t k)
{
    fm_shape row = {.rank = 1, .dim = {k}};
    const block_info *info = info_of(dtype);
    uint64_t row_bytes, per_panel;

    *w = (fmi_fast_weight){0};
    *bytes = 0;
    if (n == 0 || k == 0)
        return fm_fail(FM_EINVAL, "a weight of %u x %u has no elements", n, k);
    if (!fm_dtype_get(dtype)->is_float || dtype == FM_F64) /* float64 would be rounded */
        return fm_fail(FM_EUNSUPPORTED, "a weight of type %s cannot be widened to float32",
                       fm_dtype_get(dtype)->name);
    FM_TRY(fm_tensor_bytes(&row_bytes, dtype, &row, "one row of a weight"));
    *w = (fmi_fast_weight){.base = {.role = role, .n = n, .k = k},
                           .dtype = dtype,
                           .layout = layout_of(role, dtype),
                           .row_bytes = (size_t)row_bytes};
    w->base.panels = ceil_div(n, fmi_panel_outputs(w));
    per_panel = FMI_WIDE * (uint64_t)k * sizeof(float); /* an upper bound for all layouts */
    if (fm_mul_overflow(bytes, per_panel, (uint64_t)ceil_div(n, FMI_OUTPUTS)) || k > 1u << 30)
        return fm_fail(FM_ELIMIT, "a weight of %u x %u is too large", n, k);
    if (w->layout == FMI_LAYOUT_INT8) {
        w->depth = k / FMI_BLOCK;
        w->block = info->block;
        w->offset = info->offset;
        w->panel_q = (size_t)w->depth * info->q_bytes;
        w->quads = info->block == FMI_Q6_K || info->q_bytes < 256 ? 4 : 8;
        w->panel_s = k / fm_dtype_get(dtype)->block_elems * (size_t)scale_bytes(info) * FMI_OUTPUTS;
        *bytes = (uint64_t)w->base.panels * (w->panel_q + w->panel_s);
    } else if (w->layout == FMI_LAYOUT_BF16 || w->layout == FMI_LAYOUT_UP) {
        w->depth = ceil_div(k, 2);
        w->panel_q = (size_t)w->depth * fmi_panel_outputs(w) * 4;
        *bytes = wide_outputs(n) * w->depth * 4;
    } else if (w->layout == FMI_LAYOUT_F16) {
        w->depth = k;
        w->panel_q = (size_t)k * FMI_WIDE * 2;
        *bytes = wide_outputs(n) * k * 2;
    } else if (w->layout == FMI_LAYOUT_DOWN) {
        w->depth = ceil_div(k, 32) * 32;
        *bytes = (uint64_t)n * w->depth * 2;
    } else if (w->layout == FMI_LAYOUT_FILE) {
        *bytes = n * row_bytes;
    }
    return FM_OK;
}

/* ---- block types ---- */

/* Sets `count` bits of one output's byte of a line, of quad `quad` of those that share it. */
static void put_bits(uint8_t *line, uint32_t byte, uint32_t quad, uint32_t count, uint32_t v)
{
    const uint32_t before = quad ? line[byte] : 0u;
    line[byte] = (uint8_t)(before | v << count * quad);
}

/* Stores 32 unsigned elements of one output: bytes, nibbles or pairs of bits, with their higher
 * bits apart. */
static void put_elements(const block_info *info, uint8_t *q, uint32_t o, const uint8_t *v)
{
    for (uint32_t e = 0; e < FMI_BLOCK; e++) {
        const uint32_t quad = e / 4, byte = 4 * o + e % 4;
        if (info->q_bytes == 512) {
            q[64 * quad + byte] = v[e];
            continue;
        }
        if (info->q_bytes < 256) {
            put_bits(q + 64 * (quad / 4), byte, quad % 4, 2, v[e] & 3u);
            if (info->q_bytes == 192)
                put_bits(q + 128, byte, quad, 1, v[e] >> 2);
            continue;
        }
        if (quad < 4)
            q[64 * quad + byte] = (uint8_t)((v[e] & 15u) | (uint32_t)(v[e + 16] & 15u) << 4);
        if (info->q_bytes == 320)
            put_bits(q + 256, byte, quad, 1, v[e] >> 4 & 1u);
        if (info->q_bytes == 384)
            put_bits(q + 256 + 64 * (quad / 4), byte, quad % 4, 2, v[e] >> 4 & 3u);
    }
}

/* The unsigned elements of a block of 32. */
static void elements_32(const block_info *info, uint8_t *v, const uint8_t *src)
{
    const uint32_t high = info->q_bytes == 320 ? fm_get_u32(src + info->q_at) : 0;

    src += info->q_at + (info->q_bytes == 320 ? 4 : 0);
    for (uint32_t i = 0; i < FMI_BLOCK; i++) {
        if (info->q_bytes == 512)
            v[i] = src[i] ^ 0x80u; /* + 128 */
        else
            v[i] = (uint8_t)((i < 16 ? src[i] & 15u : (uint32_t)src[i - 16] >> 4) | (high >> i & 1u)
                                                                                        << 4);
    }
}

/* A place of an element of a block of 256 in the file: `bits` bits of a byte from `shift` on. */
typedef struct bit_place {
    uint32_t byte, shift, bits;
} bit_place;

/* The low bits of element e; store/quant/dequant_k.c describes GGUF's order of bits. */
static bit_place low_of(const block_info *info, uint32_t e)
{
    const uint32_t i = e % 32, half = e / 128, quarter = e % 128 / 32;

    if (info->q_bytes < 256) /* Q2_K, Q3_K */
        return (bit_place){info->q_at + 32 * half + i, 2 * quarter, 2};
    if (info->block == FMI_Q6_K)
        return (bit_place){64 * half + quarter % 2 * 32 + i, quarter / 2 * 4, 4};
    if (info->block == FMI_IQ4_XS)
        return (bit_place){info->q_at + e / 32 * 16 + e % 16, e / 16 % 2 * 4, 4};
    return (bit_place){info->q_at + e / 64 * 32 + i, e / 32 % 2 * 4, 4}; /* Q4_K, Q5_K */
}

/* The bits above those; no bits where the type has none. */
static bit_place high_of(const block_info *info, uint32_t e)
{
    if (info->block == FMI_Q3_K)
        return (bit_place){e % 32, e / 32, 1};
    if (info->block == FMI_Q5_K)
        return (bit_place){16 + e % 32, e / 32, 1};
    if (info->block == FMI_Q6_K)
        return (bit_place){128 + e / 128 * 32 + e % 32, e % 128 / 32 * 2, 2};
    return (bit_place){0};
}

/* The places of all elements of a block of 256. */
typedef struct places {
    bit_place low[256], high[256];
} places;

static void places_of(places *p, const block_info *info)
{
    for (uint32_t e = 0; e < 256; e++) {
        p->low[e] = low_of(info, e);
        p->high[e] = high_of(info, e);
    }
}

static uint32_t bits_at(const uint8_t *src, bit_place p)
{
    return (uint32_t)src[p.byte] >> p.shift & ((1u << p.bits) - 1u);
}

/* The unsigned elements of a block of 256. */
static void elements_256(const places *p, uint8_t *v, const uint8_t *src)
{
    for (uint32_t e = 0; e < 256; e++)
        v[e] = (uint8_t)(bits_at(src, p->low[e]) | bits_at(src, p->high[e]) << p->low[e].bits);
}

/* Stores the scales of one output: float16 unchanged, single bytes as planes. */
static void put_scales(const block_info *info, uint8_t *s, uint32_t o, const uint8_t *src)
{
    for (uint32_t i = 0; i < info->halves; i++)
        memcpy(s + 2 * FMI_OUTPUTS * i + 2 * o, src + info->half_at + 2 * i, 2);
    s += 2 * FMI_OUTPUTS * info->halves + o;
    for (uint32_t i = 0; i < info->bytes; i++)
        s[FMI_OUTPUTS * i] = src[info->byte_at + i];
}

/* Stores one block of the file. */
static void put_block(const block_info *info, const places *p, uint8_t *q, uint8_t *s, uint32_t o,
                      const uint8_t *src)
{
    const uint32_t elems = fm_dtype_get(info->dtype)->block_elems;
    uint8_t v[256];

    put_scales(info, s, o, src);
    if (elems == FMI_BLOCK)
        elements_32(info, v, src);
    else
        elements_256(p, v, src);
    for (uint32_t b = 0; b < elems / FMI_BLOCK; b++)
        put_elements(info, q + (size_t)b * info->q_bytes, o, v + b * FMI_BLOCK);
}

static void image_int8(uint8_t *image, const fmi_fast_weight *w, const uint8_t *src)
{
    const block_info *info = info_of(w->dtype);
    const fm_dtype_info *type = fm_dtype_get(w->dtype);
    uint8_t *scales = image + w->base.panels * w->panel_q;
    places p;

    fm_assert(info != NULL && w->base.panels > 0);
    places_of(&p, info);
    if (w->base.n % FMI_OUTPUTS != 0) { /* padding outputs */
        memset(image + (w->base.panels - 1) * w->panel_q, 0, w->panel_q);
        memset(scales + (w->base.panels - 1) * w->panel_s, 0, w->panel_s);
    }
    for (uint32_t n = 0; n < w->base.n; n++) {
        uint8_t *q = image + n / FMI_OUTPUTS * w->panel_q;
        uint8_t *s = scales + n / FMI_OUTPUTS * w->panel_s;
        for (uint32_t k = 0; k < w->base.k; k += type->block_elems, src += type->block_bytes) {
            put_block(info, &p, q, s, n % FMI_OUTPUTS, src);
            q += (size_t)type->block_elems / FMI_BLOCK * info->q_bytes;
            s += (size_t)scale_bytes(info) * FMI_OUTPUTS;
        }
    }
}

/* ---- bf16 ---- */

/* One row as bf16; a stored bf16 keeps its bits. row: k floats of scratch. */
static fm_status row_bf16(uint16_t *dst, float *row, fm_dtype dtype, const uint8_t *src, uint32_t k)
{
    if (dtype == FM_BF16) {
        memcpy(dst, src, 2 * (size_t)k);
        return FM_OK;
    }
    FM_TRY(fm_to_f32(row, dtype, src, k));
    return fm_from_f32(dst, FM_BF16, row, k);
}

/* Offset of pair (f16: k) p of output n in the panels; the last panel may have 16 outputs. */
static size_t pair_at(const fmi_fast_weight *w, uint32_t n, uint32_t p)
{
    uint32_t wide = fmi_panel_outputs(w), at = n / wide * wide;
    uint32_t width = w->base.n - at <= FMI_OUTPUTS ? FMI_OUTPUTS : wide;

    return (size_t)at * w->depth + (size_t)p * width + n % wide;
}

static fm_status image_bf16(uint8_t *image, uint64_t bytes, const fmi_fast_weight *w,
                            const uint8_t *src)
{
    const uint32_t k = w->base.k;
    uint16_t *half = fm_calloc((size_t)k + 1, sizeof *half);
    float *row = fm_malloc((size_t)k * sizeof *row);
    fm_status rc = half && row ? FM_OK : FM_ENOMEM;

    memset(image, 0, (size_t)bytes);
    for (uint32_t n = 0; n < w->base.n && rc == FM_OK; n++, src += w->row_bytes) {
        rc = row_bf16(half, row, w->dtype, src, k);
        if (w->layout == FMI_LAYOUT_DOWN) {
            memcpy(image + (size_t)n * w->depth * 2, half, 2 * (size_t)k);
            continue;
        }
        for (uint32_t p = 0; p < w->depth; p++)
            memcpy(image + 4 * pair_at(w, n, p), half + 2 * (size_t)p, 4);
    }
    fm_free(half);
    fm_free(row);
    return rc;
}

static void image_f16(uint8_t *image, uint64_t bytes, const fmi_fast_weight *w, const uint8_t *src)
{
    memset(image, 0, (size_t)bytes);
    for (uint32_t n = 0; n < w->base.n; n++)
        for (uint32_t k = 0; k < w->base.k; k++, src += 2)
            memcpy(image + 2 * pair_at(w, n, k), src, 2);
}

/* ---- slots ---- */

static fm_status op_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                uint32_t n, uint32_t k)
{
    fmi_fast_weight w = {0};
    fm_status rc = plan(&w, out, role, dtype, n, k);

    if (rc == FM_OK && w.layout == FMI_LAYOUT_F32)
        rc = fmi_fast_of(be)->exact.weight_image_bytes(be, out, role, dtype, n, k);
    if (rc < 0)
        *out = 0;
    return rc;
}

static fm_status op_image(fm_backend *be, void *image, fm_role role, fm_dtype dtype, uint32_t n,
                          uint32_t k, const void *host_bytes)
{
    fmi_fast_weight w = {0};
    uint64_t bytes;
    FM_TRY(plan(&w, &bytes, role, dtype, n, k));
    if (w.layout == FMI_LAYOUT_F32)
        return fmi_fast_of(be)->exact.weight_image(be, image, role, dtype, n, k, host_bytes);
    if (w.layout == FMI_LAYOUT_INT8)
        image_int8(image, &w, host_bytes);
    else if (w.layout == FMI_LAYOUT_F16)
        image_f16(image, bytes, &w, host_bytes);
    else if (w.layout == FMI_LAYOUT_FILE)
        memcpy(image, host_bytes, (size_t)bytes);
    else
        FM_TRY(image_bf16(image, bytes, &w, host_bytes));
    return FM_OK;
}

static fm_status op_map(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype, uint32_t n,
                        uint32_t k, const void *image)
{
    uint64_t bytes;
    fmi_fast_weight *w = fm_calloc(1, sizeof *w);
    fm_status rc = w ? plan(w, &bytes, role, dtype, n, k) : FM_ENOMEM;
    union { /* only the image's owner frees it, and nothing writes it */
        const void *in;
        float *out;
    } panel = {.in = image};

    (void)be;
    *out = NULL;
    if (rc < 0) {
        fm_free(w);
        return rc;
    }
    w->base.panel = panel.out;
    w->q = image;
    w->scale = w->q + w->base.panels * w->panel_q;
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

static uint64_t op_bytes(const fm_weight *weight)
{
    const fmi_cpu_weight *base = fmi_cpu_weight_of(weight);
    fmi_fast_weight w = {0};
    uint64_t bytes = 0;
    fm_status rc =
        plan(&w, &bytes, base->role, fmi_fast_weight_of(weight)->dtype, base->n, base->k);

    fm_assert(rc == FM_OK);
    if (w.layout == FMI_LAYOUT_F32)
        bytes = (uint64_t)w.base.panels * FMI_PANEL * base->k * sizeof(float);
    return sizeof w + bytes;
}

/* ---- rows read back ----
 * A row is turned back into blocks of the file, which the store's dequantization widens, so the
 * bits are the store's. */

/* Element e of 32 in a panel, unsigned. */
static uint32_t element_at(const block_info *info, const uint8_t *q, uint32_t o, uint32_t e)
{
    const uint32_t quad = e / 4, byte = 4 * o + e % 4;
    uint32_t v;

    if (info->q_bytes == 512)
        return q[64 * quad + byte];
    if (info->q_bytes < 256) {
        v = q[64 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3u;
        return info->q_bytes == 192 ? v | (q[128 + byte] >> quad & 1u) << 2 : v;
    }
    v = q[64 * (quad % 4) + byte];
    v = quad < 4 ? v & 15u : v >> 4;
    if (info->q_bytes == 320)
        v |= (q[256 + byte] >> quad & 1u) << 4;
    if (info->q_bytes == 384)
        v |= (q[256 + 64 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3u) << 4;
    return v;
}

static void get_scales(const block_info *info, uint8_t *dst, const uint8_t *s, uint32_t o)
{
    for (uint32_t i = 0; i < info->halves; i++)
        memcpy(dst + info->half_at + 2 * i, s + 2 * FMI_OUTPUTS * i + 2 * o, 2);
    s += 2 * FMI_OUTPUTS * info->halves + o;
    for (uint32_t i = 0; i < info->bytes; i++)
        dst[info->byte_at + i] = s[FMI_OUTPUTS * i];
}

static void set_element_32(const block_info *info, uint8_t *dst, uint32_t e, uint32_t v)
{
    uint8_t *q = dst + info->q_at + (info->q_bytes == 320 ? 4 : 0);

    if (info->q_bytes == 512)
        q[e] = (uint8_t)(v ^ 0x80u);
    else
        q[e % 16] |= (uint8_t)((v & 15u) << (e < 16 ? 0 : 4));
    if (info->q_bytes == 320)
        dst[info->q_at + e / 8] |= (uint8_t)((v >> 4) << e % 8);
}

static void set_element_256(const block_info *info, uint8_t *dst, uint32_t e, uint32_t v)
{
    const bit_place low = low_of(info, e), high = high_of(info, e);

    dst[low.byte] |= (uint8_t)((v & ((1u << low.bits) - 1u)) << low.shift);
    dst[high.byte] |= (uint8_t)((v >> low.bits & ((1u << high.bits) - 1u)) << high.shift);
}

static fm_status row_int8(float *y, const fmi_fast_weight *w, uint32_t n)
{
    const block_info *info = info_of(w->dtype);
    const fm_dtype_info *type = fm_dtype_get(w->dtype);
    const uint8_t *q = w->q + n / FMI_OUTPUTS * w->panel_q;
    const uint8_t *s = w->scale + n / FMI_OUTPUTS * w->panel_s;
    const uint32_t o = n % FMI_OUTPUTS, elems = type->block_elems;

    fm_assert(info != NULL);
    for (uint32_t k = 0; k < w->base.k; k += elems, y += elems) {
        uint8_t block[256] = {0};
        get_scales(info, block, s, o);
        for (uint32_t e = 0; e < elems; e++) {
            uint32_t v = element_at(info, q + (size_t)(e / 32) * info->q_bytes, o, e % 32);
            if (elems == FMI_BLOCK)
                set_element_32(info, block, e, v);
            else
                set_element_256(info, block, e, v);
        }
        FM_TRY(fm_to_f32(y, w->dtype, block, elems));
        q += (size_t)elems / FMI_BLOCK * info->q_bytes;
        s += (size_t)scale_bytes(info) * FMI_OUTPUTS;
    }
    return FM_OK;
}

static void row_halves(float *y, const fmi_fast_weight *w, uint32_t n)
{
    for (uint32_t k = 0; k < w->base.k && w->layout == FMI_LAYOUT_F16; k++)
        y[k] = fm_f16_to_f32(fm_get_u16(w->q + 2 * pair_at(w, n, k)));
    if (w->layout == FMI_LAYOUT_F16)
        return;
    for (uint32_t k = 0; k < w->base.k; k++)
        y[k] = fm_bf16_to_f32(fm_get_u16(w->q + 4 * pair_at(w, n, k / 2) + 2 * (k % 2)));
}

static void op_embed(fm_backend *be, float *y, size_t ldy, const fm_weight *weight,
                     const int32_t *ids, const int32_t *rows, uint32_t m)
{
    const fmi_fast_weight *w = fmi_fast_weight_of(weight);

    if (w->layout == FMI_LAYOUT_F32) {
        fmi_fast_of(be)->exact.embed(be, y, ldy, weight, ids, rows, m);
        return;
    }
    for (uint32_t i = 0; i < m; i++) {
        uint32_t row = rows ? (uint32_t)rows[i] : i, id = (uint32_t)ids[row];
        float *out = y + row * ldy;
        fm_assert(id < w->base.n);
        if (w->layout == FMI_LAYOUT_INT8)
            fmi_stick(fmi_cpu_of(be), row_int8(out, w, id));
        else if (w->layout == FMI_LAYOUT_FILE)
            fmi_stick(fmi_cpu_of(be),
                      fm_to_f32(out, w->dtype, w->q + id * w->row_bytes, w->base.k));
        else
            row_halves(out, w, id);
    }
}

void fmi_fast_weight_install(fm_backend *be)
{
    be->weight_image_bytes = op_image_bytes;
    be->weight_image = op_image;
    be->weight_map = op_map;
    be->weight_bytes = op_bytes;
    be->embed = op_embed;
}
