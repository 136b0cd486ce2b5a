/* quantize.c - float32 to the 32-element block types, and the table of all types.
 *
 * The scale comes from the extreme values; codes are made with it in float32, before it is rounded
 * to float16. Extremes are found by comparing bits as integers, which vectorizes; blocks where that
 * could differ from comparing floats (NaN, infinity, zeros of two signs) take the plain loop. */
#include "store/quant/quantize_impl.h"

#include <float.h>
#include <inttypes.h>

#define BLOCK 32u
#define HALF 16u
#define INF_BITS 0x7f800000u

/* ==== extremes ============================================================================== */

/* The element of the largest magnitude, the first of equal ones; NaN is ignored. */
FMS_INLINE float signed_extreme(const float *x)
{
    uint32_t most = 0;
    float best = 0.0f, amax = 0.0f;

    for (unsigned i = 0; i < BLOCK; i++) {
        const uint32_t u = fms_bits(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    if (most == 0)
        return 0.0f;
    if (most < INF_BITS) {
        unsigned i = 0;
        while ((fms_bits(x[i]) & 0x7fffffffu) != most)
            i++;
        return x[i];
    }
    for (unsigned i = 0; i < BLOCK; i++)
        if (amax < fabsf(x[i])) {
            amax = fabsf(x[i]);
            best = x[i];
        }
    return best;
}

FMS_INLINE float magnitude(const float *x)
{
    uint32_t most = 0;
    float amax = 0.0f;

    for (unsigned i = 0; i < BLOCK; i++) {
        const uint32_t u = fms_bits(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    if (most <= INF_BITS) {
        memcpy(&amax, &most, sizeof amax);
        return amax;
    }
    for (unsigned i = 0; i < BLOCK; i++) { /* takes a NaN, which the next element replaces */
        const float a = fabsf(x[i]);
        amax = amax > a ? amax : a;
    }
    return amax;
}

/* An integer in the order of the values; -0 comes just before +0. */
FMS_INLINE int32_t ordered(float f)
{
    const int32_t i = (int32_t)fms_bits(f);
    return i ^ (int32_t)((uint32_t)(i >> 31) >> 1);
}

FMS_INLINE float from_ordered(int32_t i)
{
    float f;
    i ^= (int32_t)((uint32_t)(i >> 31) >> 1);
    memcpy(&f, &i, sizeof f);
    return f;
}

FMS_INLINE void extremes(const float *x, float *min, float *max)
{
    int32_t low = INT32_MAX, high = INT32_MIN;

    for (unsigned i = 0; i < BLOCK; i++) {
        const int32_t v = ordered(x[i]);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    *min = from_ordered(low);
    *max = from_ordered(high);
    if (fabsf(*min) <= FLT_MAX && fabsf(*max) <= FLT_MAX && *min != 0.0f)
        return; /* the sign of a maximum of zero has no effect */
    *min = FLT_MAX;
    *max = -FLT_MAX;
    for (unsigned i = 0; i < BLOCK; i++) {
        if (x[i] < *min)
            *min = x[i];
        if (x[i] > *max)
            *max = x[i];
    }
}

/* ==== codes ================================================================================= */

/* Truncates to int32 as x86's conversion does: a value that does not fit gives INT32_MIN. */
FMS_INLINE int32_t truncate(float v)
{
    const float in = fabsf(v) < 2147483648.0f ? v : -2147483648.0f;
    return (int32_t)in;
}

FMS_INLINE float reciprocal(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

/* code[i] = low byte of trunc((x - min) * id + half), at most `cap`, compared as signed bytes. */
FMS_INLINE void codes(uint8_t *code, const float *x, float min, float id, float half, int cap,
                      fm_quant_variant how)
{
    for (unsigned i = 0; i < BLOCK; i++) {
        const int8_t v = (int8_t)(uint8_t)truncate(fms_mad_apart(x[i] - min, id, half, how));
        code[i] = (uint8_t)(v < cap ? v : cap);
    }
}

/* ggml ORs without cutting the low code: an overflowed code reaches into the high nibble. */
FMS_INLINE void nibbles_4(uint8_t *dst, const uint8_t *code)
{
    for (unsigned i = 0; i < HALF; i++)
        dst[i] = (uint8_t)(code[i] | (unsigned)code[i + HALF] << 4);
}

/* ==== types ================================================================================= */

/* Rounds half away from zero. The distance to the truncated value is exact. */
FMS_INLINE uint8_t round_byte(float v)
{
    const float in = fabsf(v) < 2147483648.0f ? v : -2147483648.0f;
    const int32_t t = (int32_t)in;
    const float rest = in - (float)t;
    return (uint8_t)(uint32_t)(t + (rest >= 0.5f) - (rest <= -0.5f));
}

FMS_INLINE void q8_0(uint8_t *dst, const float *x, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 34) {
        const float d = magnitude(x) / 127.0f, id = reciprocal(d);
        uint8_t code[BLOCK];
        fm_put_u16(dst, fms_half(d));
        for (unsigned i = 0; i < BLOCK; i++)
            code[i] = round_byte(x[i] * id);
        memcpy(dst + 2, code, BLOCK);
    }
}

FMS_INLINE void q4_0(uint8_t *dst, const float *x, uint64_t blocks, fm_quant_variant how)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 18) {
        const float d = signed_extreme(x) / -8.0f;
        uint8_t code[BLOCK];
        codes(code, x, 0.0f, reciprocal(d), 8.5f, 15, how);
        fm_put_u16(dst, fms_half(d));
        nibbles_4(dst + 2, code);
    }
}

FMS_INLINE void q4_1(uint8_t *dst, const float *x, uint64_t blocks, fm_quant_variant how)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 20) {
        float min, max;
        uint8_t code[BLOCK];
        extremes(x, &min, &max);
        const float d = (max - min) / 15.0f;
        codes(code, x, min, reciprocal(d), 0.5f, 15, how);
        fm_put_u16(dst, fms_half(d));
        fm_put_u16(dst + 2, fms_half(min));
        nibbles_4(dst + 4, code);
    }
}

FMS_INLINE void q5_0(uint8_t *dst, const float *x, uint64_t blocks, fm_quant_variant how)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 22) {
        const float d = signed_extreme(x) / -16.0f;
        uint8_t code[BLOCK];
        codes(code, x, 0.0f, reciprocal(d), 16.5f, 31, how);
        fm_put_u16(dst, fms_half(d));
        fm_put_u32(dst + 2, fms_fifth_bits(code));
        fms_nibbles(dst + 6, code);
    }
}

FMS_INLINE void q5_1(uint8_t *dst, const float *x, uint64_t blocks, fm_quant_variant how)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 24) {
        float min, max;
        uint8_t code[BLOCK];
        extremes(x, &min, &max);
        const float d = (max - min) / 31.0f;
        codes(code, x, min, reciprocal(d), 0.5f, 127, how); /* ggml does not cut at 31 here */
        fm_put_u16(dst, fms_half(d));
        fm_put_u16(dst + 2, fms_half(min));
        fm_put_u32(dst + 4, fms_fifth_bits(code));
        fms_nibbles(dst + 8, code);
    }
}

/* IQ4_NL's 16 values are not evenly spaced; the code is the index of the nearest. */
static const int8_t LEVEL[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

/* Index of the level nearest to v; halfway goes up. */
FMS_INLINE unsigned level_of(float v)
{
    unsigned n = 0;

    if (v <= (float)LEVEL[0])
        return 0;
    if (v >= (float)LEVEL[15])
        return 15;
    for (unsigned i = 1; i < 15; i++) /* how many levels are at or below v */
        n += v < (float)LEVEL[i] ? 0 : 1;
    return v - (float)LEVEL[n] < (float)LEVEL[n + 1] - v ? n : n + 1;
}

/* The sums of w*q*x and w*q*q for the codes at scale 1 / id; w = x*x. */
FMS_INLINE void iq4_nl_sums(const float *x, float id, float *qx, float *q2, fm_quant_variant how)
{
    *qx = *q2 = 0.0f;
    for (unsigned i = 0; i < BLOCK; i++) {
        const float q = (float)LEVEL[level_of(id * x[i])], wq = x[i] * x[i] * q;
        *qx = fms_mad(wq, x[i], *qx, how);
        *q2 = fms_mad(wq, q, *q2, how);
    }
}

/* The best of sixteen scales: the one that puts the extreme on the lowest level, then those that
 * put it on -134 ... -120; each is replaced by the least squares scale for its codes. */
FMS_INLINE float iq4_nl_scale(const float *x, fm_quant_variant how)
{
    const float max = signed_extreme(x);
    float qx, q2;

    if (fabsf(max) < 1e-15f)
        return 0.0f;
    iq4_nl_sums(x, 1.0f / (-max / (float)LEVEL[0]), &qx, &q2, how);
    float d = q2 > 0.0f ? qx / q2 : 0.0f, best = d * qx;
    for (int t = -7; t <= 7; t++) {
        iq4_nl_sums(x, (float)(t + LEVEL[0]) / max, &qx, &q2, how);
        if (q2 > 0.0f && qx * qx > best * q2) {
            d = qx / q2;
            best = d * qx;
        }
    }
    return d;
}

FMS_INLINE void iq4_nl(uint8_t *dst, const float *x, uint64_t blocks, fm_quant_variant how)
{
    for (uint64_t b = 0; b < blocks; b++, x += BLOCK, dst += 18) {
        const float d = iq4_nl_scale(x, how), id = reciprocal(d);
        uint8_t code[BLOCK];
        for (unsigned i = 0; i < BLOCK; i++)
            code[i] = (uint8_t)level_of(id * x[i]);
        fm_put_u16(dst, fms_half(d));
        fms_nibbles(dst + 2, code);
    }
}

/* ==== dispatch ============================================================================== */

FMS_INLINE void run(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                    fm_quant_variant how)
{
    if (type == FM_Q8_0)
        q8_0(dst, src, blocks);
    else if (type == FM_Q4_0)
        q4_0(dst, src, blocks, how);
    else if (type == FM_Q4_1)
        q4_1(dst, src, blocks, how);
    else if (type == FM_Q5_0)
        q5_0(dst, src, blocks, how);
    else if (type == FM_Q5_1)
        q5_1(dst, src, blocks, how);
    else
        iq4_nl(dst, src, blocks, how);
}

/* The variant as a constant in each copy of the code. */
FMS_INLINE void run_variant(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                            fm_quant_variant how)
{
    if (how == FM_QUANT_PLAIN)
        run(dst, type, src, blocks, FM_QUANT_PLAIN);
    else if (how == FM_QUANT_CLANG)
        run(dst, type, src, blocks, FM_QUANT_CLANG);
    else
        run(dst, type, src, blocks, FM_QUANT_GCC);
}

void fms_quantize_32_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                          fm_quant_variant how)
{
    run_variant(dst, type, src, blocks, how);
}

#ifdef FMS_QUANT_X86
FMS_TARGET_AVX2 static void run_avx2(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                                     fm_quant_variant how)
{
    run_variant(dst, type, src, blocks, how);
}
#endif

static void quantize_32(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                        fm_quant_variant how)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        run_avx2(dst, type, src, blocks, how);
        return;
    }
#endif
    fms_quantize_32_base(dst, type, src, blocks, how);
}

bool fm_quantize_applies(fm_dtype type) /* frozen: these a recipe may name */
{
    return type >= FM_Q8_0 && type <= FM_IQ4_NL;
}

fm_status fm_quantize_rows(void *dst, fm_dtype type, const float *src, uint64_t row_elems,
                           uint64_t rows, fm_quant_variant variant)
{
    const fm_dtype_info *info = fm_dtype_get(type);

    if (!fm_quantize_applies(type))
        return fm_fail(FM_EUNSUPPORTED, "no quantizer for %s", info->name);
    if (row_elems % info->block_elems != 0)
        return fm_fail(FM_EINVAL, "rows of %" PRIu64 " elements are no whole number of %s blocks",
                       row_elems, info->name);
    if (variant < FM_QUANT_PLAIN || variant >= FM_QUANT_VARIANTS)
        return fm_fail(FM_EINVAL, "unknown variant %d of the quantizers", (int)variant);
    const uint64_t blocks = rows * (row_elems / info->block_elems);
    if (info->block_elems == BLOCK)
        quantize_32(dst, type, src, blocks, variant);
    else
        fms_quantize_k(dst, type, src, blocks, variant);
    return FM_OK;
}

/* ==== as llama-quantize writes them ========================================================= */

bool fm_quantize_gguf_applies(fm_dtype type)
{
    return fm_quantize_applies(type) || type == FM_Q2_K || type == FM_Q3_K || type == FM_IQ4_XS;
}

static fms_gguf_fn *gguf_of(fm_dtype type)
{
    if (type == FM_Q2_K || type == FM_Q3_K)
        return fms_quantize_low;
    if (type == FM_IQ4_XS)
        return fms_quantize_iq4_xs;
    return fm_dtype_get(type)->block_elems == BLOCK ? fms_weighted_32 : fms_weighted_k;
}

fm_status fm_quantize_gguf(void *dst, fm_dtype type, const float *src, uint64_t row_elems,
                           uint64_t rows, const float *importance)
{
    const fm_dtype_info *info = fm_dtype_get(type);

    if (type == FM_Q8_0 || (!importance && type != FM_IQ4_NL && fm_quantize_applies(type)))
        return fm_quantize_rows(dst, type, src, row_elems, rows, FM_QUANT_PLAIN);
    if (!fm_quantize_gguf_applies(type))
        return fm_fail(FM_EUNSUPPORTED, "no quantizer for %s", info->name);
    if (row_elems % info->block_elems != 0)
        return fm_fail(FM_EINVAL, "rows of %" PRIu64 " elements are no whole number of %s blocks",
                       row_elems, info->name);
    const uint64_t bytes = row_elems / info->block_elems * info->block_bytes;
    for (uint64_t r = 0; r < rows; r++)
        gguf_of(type)((uint8_t *)dst + r * bytes, type, src + r * row_elems, row_elems, importance);
    return FM_OK;
}

/* Where the float16 of a block lie: of a scale, and of a minimum behind it. */
static unsigned scale_at(fm_dtype type, bool *two)
{
    *two =
        type == FM_Q4_1 || type == FM_Q5_1 || type == FM_Q2_K || type == FM_Q4_K || type == FM_Q5_K;
    return type == FM_Q2_K ? 80 : type == FM_Q3_K ? 108 : type == FM_Q6_K ? 208 : 0;
}

bool fm_blocks_finite(fm_dtype type, const uint8_t *blocks, uint64_t count)
{
    const uint32_t bytes = fm_dtype_get(type)->block_bytes;
    bool two, finite = true;
    const unsigned at = scale_at(type, &two), behind = two ? at + 2 : at;

    for (uint64_t b = 0; b < count; b++, blocks += bytes)
        finite = finite && (fm_get_u16(blocks + at) & 0x7c00u) != 0x7c00u &&
                 (fm_get_u16(blocks + behind) & 0x7c00u) != 0x7c00u;
    return finite;
}
