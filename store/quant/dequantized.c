/* dequantized.c - 32-element blocks from their floats, the choice of a type, a leaf's coding. */
#include "store/quant/dequantized_impl.h"

#include <float.h>

#define BLOCK 32u
#define HALF 16u
#define PROBES 4u
#define EXCEPTIONS_ONE_IN 16u

/* ==== one scale: Q4_0, Q5_0, Q8_0, IQ4_NL =================================================== */

/* The values of the codes, in the order in which they are tried for the extreme element. */
typedef struct levels {
    int count, low, high;
    int16_t value[256];
    int16_t code[256]; /* by value - low; -1: no such value */
} levels;

static void levels_add(levels *l, int value, int code)
{
    l->value[l->count++] = (int16_t)value;
    l->code[value + 128] = (int16_t)code;
    l->low = FM_MIN(l->low, value);
    l->high = value > l->high ? value : l->high;
}

/* Quantizers give the extreme the code of the largest magnitude, so that code comes first. */
static void levels_of(levels *l, fm_dtype type)
{
    static const int8_t nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  113,  89,   69,  53,  38,  25,  13,  1};
    const int top = type == FM_Q4_0 ? 8 : type == FM_Q5_0 ? 16 : 128;

    *l = (levels){0};
    for (int i = 0; i < 256; i++)
        l->code[i] = -1;
    if (type == FM_IQ4_NL) {
        for (int i = 0; i < 16; i++)
            levels_add(l, nl[i], i < 8 ? i : 23 - i);
    } else if (type == FM_Q8_0) {
        for (int v = 127; v >= 0; v--) {
            levels_add(l, v, v);
            if (v > 0)
                levels_add(l, -v, 256 - v);
        }
        levels_add(l, -128, 128);
    } else {
        for (int v = top; v >= 0; v--) {
            levels_add(l, -v, top - v);
            if (v > 0 && v < top)
                levels_add(l, v, top + v);
        }
    }
}

static bool codes_at(uint8_t code[BLOCK], const float *y, float d, const levels *l)
{
    const float inverse = 1.0f / d;

    for (unsigned i = 0; i < BLOCK; i++) {
        const float q = y[i] * inverse;
        if (!(fabsf(q) < 130.0f))
            return false;
        const int v = fms_round_int(q);
        if (v < l->low || v > l->high || l->code[v + 128] < 0 ||
            !fms_same_float((float)v * d, y[i]))
            return false;
        code[i] = (uint8_t)l->code[v + 128];
    }
    return true;
}

/* A block of zeros: codes of zero under a scale with the zeros' sign; where the signs are mixed,
 * codes of either sign under a scale of +0. */
static bool zero_block(uint8_t code[BLOCK], uint16_t *d, const float *y, const levels *l)
{
    bool plus = false, minus = false;

    for (unsigned i = 0; i < BLOCK; i++)
        *(signbit(y[i]) ? &minus : &plus) = true;
    *d = minus && !plus && l->code[128] >= 0 ? 0x8000u : 0u;
    for (unsigned i = 0; i < BLOCK; i++) {
        int16_t c = l->code[128];
        if (c < 0 || (minus && plus))
            c = l->code[128 + (signbit(y[i]) ? (l->code[127] >= 0 ? -1 : -10) : 1)];
        code[i] = (uint8_t)c;
    }
    return true;
}

static bool solve_scaled(uint8_t code[BLOCK], uint16_t *d, const float *y, const levels *l)
{
    float extreme = y[0];

    for (unsigned i = 1; i < BLOCK; i++)
        extreme = fabsf(y[i]) > fabsf(extreme) ? y[i] : extreme;
    if (extreme == 0.0f)
        return zero_block(code, d, y, l);
    for (int k = 0; k < l->count; k++) {
        const float scale = l->value[k] != 0 ? extreme / (float)l->value[k] : 0.0f;
        if (fms_is_half(scale, d) && codes_at(code, y, scale, l))
            return true;
    }
    return false;
}

/* ==== scale and minimum: Q4_1, Q5_1 ========================================================= */

static bool codes_above(uint8_t code[BLOCK], const float *y, float d, float m, int top)
{
    const float inverse = 1.0f / d;

    for (unsigned i = 0; i < BLOCK; i++) {
        const float q = (y[i] - m) * inverse;
        if (!(q > -0.5f && q < (float)top + 0.5f))
            return false;
        const int v = (int)(q + 0.5f);
        const float product = (float)v * d;
        if (v > top || !fms_same_float(product + m, y[i]))
            return false;
        code[i] = (uint8_t)v;
    }
    return true;
}

/* The smallest value is the minimum itself (code 0), the largest has code `top` or slightly
 * less. */
static bool solve_affine(uint8_t code[BLOCK], uint16_t *d, uint16_t *m, const float *y, int top)
{
    float min = y[0], max = y[0];

    for (unsigned i = 1; i < BLOCK; i++) {
        min = y[i] < min ? y[i] : min;
        max = y[i] > max ? y[i] : max;
    }
    *m = 0;
    if (min != 0.0f && !fms_is_half(min, m))
        return false;
    if (min == max) {
        *d = signbit(y[0]) && min == 0.0f ? 0x8000u : 0u; /* only -0 + -0 is -0 */
        *m = (uint16_t)(*m | *d);
        memset(code, 0, BLOCK);
        for (unsigned i = 1; i < BLOCK; i++)
            if (!fms_same_float(y[i], y[0]))
                return false;
        return true;
    }
    for (int span = top; span > 0; span--) {
        const uint16_t near = fm_f32_to_f16((max - min) / (float)span);
        for (int step = 0; step < 3; step++) { /* the sum's rounding may have moved d by one */
            *d = (uint16_t)(near + (step == 2 ? -1 : step));
            const float scale = fm_f16_to_f32(*d);
            if (scale > 0.0f && scale <= 65504.0f && codes_above(code, y, scale, min, top))
                return true;
        }
    }
    return false;
}

/* ==== blocks ================================================================================ */

static void put_nibbles(uint8_t *dst, const uint8_t *code)
{
    for (unsigned i = 0; i < HALF; i++)
        dst[i] = (uint8_t)((code[i] & 15u) | (code[i + HALF] & 15u) << 4);
}

static void put_fifths(uint8_t *dst, const uint8_t *code)
{
    uint32_t high = 0;

    for (unsigned i = 0; i < BLOCK; i++)
        high |= (uint32_t)(code[i] >> 4 & 1u) << i;
    fm_put_u32(dst, high);
}

static bool solve_32(uint8_t *block, fm_dtype type, const float *y, const levels *l)
{
    uint8_t code[BLOCK];
    uint16_t d = 0, m = 0;

    if (type == FM_Q4_1 || type == FM_Q5_1) {
        if (!solve_affine(code, &d, &m, y, type == FM_Q4_1 ? 15 : 31))
            return false;
        fm_put_u16(block + 2, m);
        if (type == FM_Q5_1)
            put_fifths(block + 4, code);
        put_nibbles(block + (type == FM_Q4_1 ? 4 : 8), code);
    } else {
        if (!solve_scaled(code, &d, y, l))
            return false;
        if (type == FM_Q5_0)
            put_fifths(block + 2, code);
        if (type == FM_Q8_0)
            memcpy(block + 2, code, BLOCK);
        else
            put_nibbles(block + (type == FM_Q5_0 ? 6 : 2), code);
    }
    fm_put_u16(block, d);
    return true;
}

/* Whichever solver found it, the block is dequantized and compared with y. */
static bool solve(uint8_t *block, fm_dtype type, const float *y, const levels *l)
{
    const uint32_t n = fm_dtype_get(type)->block_elems;
    float back[256];
    bool found = false;

    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(y[i]) <= FLT_MAX))
            return false;
    if (n == BLOCK)
        found = solve_32(block, type, y, l);
    else if (type == FM_Q6_K)
        found = fms_solve_q6_k(block, y);
    else
        found = type == FM_Q4_K ? fms_solve_q4_k(block, y) : fms_solve_q5_k(block, y);
    return found && fm_to_f32(back, type, block, n) == FM_OK && memcmp(back, y, n * sizeof *y) == 0;
}

/* ==== leaves ================================================================================ */

static bool all_zero(const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (y[i] != 0.0f)
            return false;
    return true;
}

/* Tries some blocks that are not zero, spread over the leaf; most often the first one decides. */
static bool probe(fm_dtype type, fm_span leaf)
{
    const fm_dtype_info *info = fm_dtype_get(type);
    const size_t bytes = info->block_elems * sizeof(float), blocks = leaf.len / bytes;
    uint8_t block[210];
    float y[256];
    unsigned seen = 0, misses = 0;
    levels l;

    levels_of(&l, type);
    for (size_t p = 0; p < 4 * PROBES && seen < PROBES && blocks > 0; p++) {
        const size_t at = p * blocks / (4 * PROBES);
        memcpy(y, leaf.data + at * bytes, bytes);
        if (all_zero(y, info->block_elems))
            continue;
        seen++;
        misses += !solve(block, type, y, &l);
        if (misses > 1 || (misses == 1 && seen == 1))
            return false;
    }
    return seen > 1;
}

/* Fewer bits first: floats that were Q4_0 can be Q5_0 and Q8_0 too. */
static const fm_dtype ORDER[] = {FM_Q4_0, FM_IQ4_NL, FM_Q4_K, FM_Q4_1, FM_Q5_0,
                                 FM_Q5_K, FM_Q5_1,   FM_Q6_K, FM_Q8_0};

/* Sets out->type to the first type from ORDER[i] on whose probes succeed. */
static bool find_from(fms_origin *out, size_t i, fm_span leaf)
{
    for (out->type = FM_DTYPE_NONE; i < FM_ARRAY_LEN(ORDER); i++)
        if (probe(ORDER[i], leaf)) {
            out->type = ORDER[i];
            return true;
        }
    return false;
}

bool fms_origin_find(fms_origin *out, fm_dtype dtype, fm_span leaf)
{
    out->type = FM_DTYPE_NONE;
    return dtype == FM_F32 && leaf.len % sizeof(float) == 0 && find_from(out, 0, leaf);
}

size_t fms_origin_block_bytes(fm_dtype type, fm_dtype dtype, size_t leaf_bytes)
{
    const fm_dtype_info *info = fm_dtype_get(type);
    return leaf_bytes / fm_dtype_get(dtype)->block_bytes / info->block_elems * info->block_bytes;
}

/* Codes the leaf as blocks of `type`; *fits stays false where there are too many exceptions. */
static fm_status encode_as(fm_buf *blocks, fm_buf *rest, bool *fits, fm_dtype type, fm_span leaf)
{
    const fm_dtype_info *info = fm_dtype_get(type);
    const size_t bytes = info->block_elems * sizeof(float), count = leaf.len / bytes;
    const size_t head = rest->len;
    uint32_t bad = 0;
    float y[256];
    levels l;

    levels_of(&l, type);
    fm_buf_u32(rest, 0);
    for (size_t b = 0; b < count; b++) {
        uint8_t block[210] = {0};
        memcpy(y, leaf.data + b * bytes, bytes);
        if (!solve(block, type, y, &l)) {
            if (++bad > count / EXCEPTIONS_ONE_IN)
                return FM_OK;
            memset(block, 0, sizeof block);
            fm_buf_u32(rest, (uint32_t)b);
            fm_buf_append(rest, y, bytes);
        }
        fm_buf_append(blocks, block, info->block_bytes);
    }
    fm_buf_append(rest, leaf.data + count * bytes, leaf.len - count * bytes);
    if (fm_buf_ok(blocks) < 0 || fm_buf_ok(rest) < 0)
        return FM_ENOMEM;
    fm_put_u32(rest->data + head, bad);
    *fits = true;
    return FM_OK;
}

fm_status fms_origin_encode(fm_buf *blocks, fm_buf *rest, bool *fits, fms_origin *o, fm_dtype dtype,
                            fm_span leaf)
{
    const size_t blocks_len = blocks->len, rest_len = rest->len;
    size_t i = 0;

    fm_assert(dtype == FM_F32);
    *fits = false;
    while (o->type != FM_DTYPE_NONE) {
        fm_status rc = encode_as(blocks, rest, fits, o->type, leaf);
        if (rc < 0 || *fits)
            return rc;
        blocks->len = blocks_len;
        rest->len = rest_len;
        while (i < FM_ARRAY_LEN(ORDER) && ORDER[i] != o->type)
            i++;
        if (!find_from(o, i + 1, leaf))
            break;
    }
    return FM_OK;
}

fm_status fms_origin_decode(uint8_t *dst, size_t dst_bytes, fm_dtype dtype, fm_dtype type,
                            fm_span blocks, fm_span rest)
{
    const fm_dtype_info *info = fm_dtype_get(type);
    const size_t bytes = info->block_elems * sizeof(float), count = dst_bytes / bytes;
    fm_cursor cur;
    float y[256];

    if (dtype != FM_F32 || !info->is_block)
        return fm_fail(FM_ECORRUPT, "leaf: origin of %s in %s", info->name,
                       fm_dtype_get(dtype)->name);
    if (blocks.len != count * info->block_bytes)
        return fm_fail(FM_ECORRUPT, "leaf: %zu bytes of %s blocks, %zu wanted", blocks.len,
                       info->name, count * info->block_bytes);
    for (size_t b = 0; b < count; b++) {
        FM_TRY(fm_to_f32(y, type, blocks.data + b * info->block_bytes, info->block_elems));
        memcpy(dst + b * bytes, y, bytes);
    }
    fm_cursor_init(&cur, rest);
    const uint32_t bad = fm_cursor_u32(&cur);
    for (uint32_t i = 0; i < bad && !cur.failed; i++) {
        const uint32_t b = fm_cursor_u32(&cur);
        const fm_span raw = fm_cursor_bytes(&cur, bytes);
        if (b >= count)
            return fm_fail(FM_ECORRUPT, "leaf: exception at block %u of %zu", b, count);
        if (!cur.failed)
            memcpy(dst + b * bytes, raw.data, bytes);
    }
    const fm_span tail = fm_cursor_bytes(&cur, dst_bytes - count * bytes);
    if (cur.failed || fm_cursor_left(&cur) != 0)
        return fm_fail(FM_ECORRUPT, "leaf: the exceptions of an origin have a wrong length");
    if (tail.len > 0)
        memcpy(dst + count * bytes, tail.data, tail.len);
    return FM_OK;
}
