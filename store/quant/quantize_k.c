/* quantize_k.c - float32 to the 256-element "K" block types.
 *
 * Each sub-block's scale (and minimum) is the best of some twenty candidates by weighted squared
 * error, all sums running over the elements in order. The sub-blocks of a block are independent
 * until their scales are rounded, so they are the lanes here: element i of all sub-blocks at once,
 * which keeps every lane's order of operations and lets the compiler vectorize. */
#include "store/quant/quantize_impl.h"

#define BLOCK 256u
#define TINY 1e-15f

/* Makes every NaN the same: which payload survives a sum is the compiler's choice. */
FMS_INLINE void quieten(float clean[BLOCK], const float *x)
{
    for (unsigned i = 0; i < BLOCK; i++)
        clean[i] = x[i] == x[i] ? x[i] : NAN;
}

/* in[e][s] = element e of sub-block s */
FMS_INLINE void transpose(float *in, const float *x, unsigned lanes)
{
    const unsigned len = BLOCK / lanes;

    for (unsigned s = 0; s < lanes; s++)
        for (unsigned e = 0; e < len; e++)
            in[e * lanes + s] = x[s * len + e];
}

FMS_INLINE int32_t clamp(int32_t v, int32_t low, int32_t high)
{
    v = v > high ? high : v;
    return v < low ? low : v;
}

/* ==== scale and minimum: Q4_K, Q5_K ========================================================= */

#define LANES 8u
#define LEN 32u

typedef struct fit {
    float x[LEN * LANES], weight[LEN * LANES]; /* [element][sub-block] */
    float code[LEN * LANES], trial[LEN * LANES];
    float high[LANES];
    bool flat[LANES]; /* nothing above the minimum */
    float sum_w[LANES], sum_x[LANES];
    float scale[LANES], min[LANES], error[LANES]; /* the best so far; min is at most 0 */
} fit;

/* weight = root of the mean square + magnitude */
FMS_INLINE void weigh(fit *f, fm_quant_variant how)
{
    float square[LANES] = {0};

    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++)
            square[s] = fms_mad(f->x[e * LANES + s], f->x[e * LANES + s], square[s], how);
    for (unsigned s = 0; s < LANES; s++)
        square[s] = sqrtf(square[s] / 32.0f);
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++)
            f->weight[e * LANES + s] = square[s] + fabsf(f->x[e * LANES + s]);
}

FMS_INLINE void range_and_sums(fit *f, fm_quant_variant how)
{
    for (unsigned s = 0; s < LANES; s++) {
        f->min[s] = f->high[s] = f->x[s];
        f->sum_w[s] = f->weight[s];
        f->sum_x[s] = f->weight[s] * f->x[s];
    }
    for (unsigned e = 1; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float x = f->x[e * LANES + s], w = f->weight[e * LANES + s];
            f->min[s] = x < f->min[s] ? x : f->min[s];
            f->high[s] = x > f->high[s] ? x : f->high[s];
            f->sum_w[s] += w;
            f->sum_x[s] = fms_mad(w, x, f->sum_x[s], how);
        }
    for (unsigned s = 0; s < LANES; s++) {
        f->min[s] = f->min[s] > 0.0f ? 0.0f : f->min[s];
        f->flat[s] = f->high[s] == f->min[s];
    }
}

/* Encodes with `codes` steps from the best minimum so far to the largest value. */
FMS_INLINE void encode(float *code, float *inverse, const fit *f, float codes, int top,
                       fm_quant_variant how)
{
    for (unsigned s = 0; s < LANES; s++)
        inverse[s] = codes / (f->high[s] - f->min[s]);
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float v = f->x[e * LANES + s] - f->min[s];
            code[e * LANES + s] = (float)clamp(fms_nearest_product(inverse[s], v, how), 0, top);
        }
}

/* error = sum of weight * (scale * code + min - x)^2 */
FMS_INLINE void measure(float *error, const fit *f, const float *code, const float *scale,
                        const float *min, fm_quant_variant how)
{
    for (unsigned s = 0; s < LANES; s++)
        error[s] = 0.0f;
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float at = fms_mad(scale[s], code[e * LANES + s], min[s], how);
            const float off = at - f->x[e * LANES + s], square = off * off;
            error[s] = fms_mad(f->weight[e * LANES + s], square, error[s], how);
        }
}

/* Computes the least squares scale and minimum (at most 0) for the trial codes; where their error
 * is less than the best so far, they replace it. */
FMS_INLINE void improve(fit *f, fm_quant_variant how)
{
    float l[LANES] = {0}, l2[LANES] = {0}, xl[LANES] = {0};
    float scale[LANES], min[LANES], error[LANES], det[LANES];
    bool take[LANES];

    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float w = f->weight[e * LANES + s], c = f->trial[e * LANES + s], wc = w * c;
            l[s] = how == FM_QUANT_CLANG ? fmaf(w, c, l[s])
                                         : l[s] + wc; /* gcc keeps a shared product */
            l2[s] = fms_mad(wc, c, l2[s], how);
            xl[s] = fms_mad(wc, f->x[e * LANES + s], xl[s], how);
        }
    for (unsigned s = 0; s < LANES; s++) {
        det[s] = fms_mad(f->sum_w[s], l2[s], -(l[s] * l[s]), how);
        scale[s] = fms_mad(f->sum_w[s], xl[s], -(f->sum_x[s] * l[s]), how) / det[s];
        min[s] = fms_mad(l2[s], f->sum_x[s], -(l[s] * xl[s]), how) / det[s];
        if (min[s] > 0.0f) {
            min[s] = 0.0f;
            scale[s] = xl[s] / l2[s];
        }
    }
    measure(error, f, f->trial, scale, min, how);
    for (unsigned s = 0; s < LANES; s++) {
        take[s] = !f->flat[s] && det[s] > 0.0f && error[s] < f->error[s];
        f->error[s] = take[s] ? error[s] : f->error[s];
        f->scale[s] = take[s] ? scale[s] : f->scale[s];
        f->min[s] = take[s] ? min[s] : f->min[s];
    }
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++)
            f->code[e * LANES + s] = take[s] ? f->trial[e * LANES + s] : f->code[e * LANES + s];
}

/* Candidates spread top + start + 0.1 * step codes, step 0 ... steps. */
FMS_INLINE void fit_block(fit *f, const float *x, int top, float start, int steps,
                          fm_quant_variant how)
{
    float inverse[LANES];

    transpose(f->x, x, LANES);
    weigh(f, how);
    range_and_sums(f, how);
    encode(f->code, inverse, f, (float)top, top, how);
    for (unsigned s = 0; s < LANES; s++) {
        f->scale[s] = f->flat[s] ? 0.0f : 1.0f / inverse[s];
        for (unsigned e = 0; f->flat[s] && e < LEN; e++)
            f->code[e * LANES + s] = 0.0f;
    }
    measure(f->error, f, f->code, f->scale, f->min, how);
    for (int t = 0; t <= steps; t++) {
        encode(f->trial, inverse, f, fms_mad(0.1f, (float)t, start, how) + (float)top, top, how);
        improve(f, how);
    }
    for (unsigned s = 0; s < LANES; s++)
        f->min[s] = -f->min[s];
}

FMS_INLINE float largest(const float v[LANES])
{
    float most = 0.0f;

    for (unsigned s = 0; s < LANES; s++)
        most = v[s] > most ? v[s] : most;
    return most;
}

FMS_INLINE uint8_t six_bits(float a, float b, fm_quant_variant how)
{
    const uint8_t low = (uint8_t)(uint32_t)fms_nearest_product(a, b, how);
    return low < 63 ? low : 63;
}

/* Writes two float16 super-scales, and scales and minima in 6 bits as dequant_k.c reads them. */
FMS_INLINE void put_scales(uint8_t *dst, const fit *f, uint8_t scale[LANES], uint8_t min[LANES],
                           fm_quant_variant how)
{
    const float most_scale = largest(f->scale), most_min = largest(f->min);
    const float by_scale = most_scale > 0.0f ? 63.0f / most_scale : 0.0f;
    const float by_min = most_min > 0.0f ? 63.0f / most_min : 0.0f;
    uint8_t *packed = dst + 4;

    fm_put_u16(dst, fms_half(most_scale / 63.0f));
    fm_put_u16(dst + 2, fms_half(most_min / 63.0f));
    for (unsigned s = 0; s < LANES; s++) {
        scale[s] = six_bits(by_scale, f->scale[s], how);
        min[s] = six_bits(by_min, f->min[s], how);
    }
    for (unsigned s = 0; s < 4; s++) {
        packed[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        packed[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        packed[s + 8] = (uint8_t)((scale[s + 4] & 15u) | (min[s + 4] & 15u) << 4);
    }
}

/* Encodes again with the scales as they will be read; a scale of zero keeps the search's codes. */
FMS_INLINE void final_codes(uint8_t code[BLOCK], const uint8_t *dst, const fit *f,
                            const uint8_t scale[LANES], const uint8_t min[LANES], const float *x,
                            int top)
{
    const float super = fm_f16_to_f32(fm_get_u16(dst)), below = fm_f16_to_f32(fm_get_u16(dst + 2));

    for (unsigned s = 0; s < LANES; s++) {
        const float d = super * (float)scale[s], m = below * (float)min[s];
        if (d == 0.0f)
            for (unsigned e = 0; e < LEN; e++)
                code[s * LEN + e] = (uint8_t)f->code[e * LANES + s];
        else
            for (unsigned e = 0; e < LEN; e++)
                code[s * LEN + e] = (uint8_t)clamp(fms_nearest((x[s * LEN + e] + m) / d), 0, top);
    }
}

FMS_INLINE void q45_k(uint8_t *dst, const float *src, uint64_t blocks, bool five,
                      fm_quant_variant how)
{
    const int top = five ? 31 : 15;
    const unsigned bytes = five ? 176 : 144;
    uint8_t code[BLOCK], scale[LANES], min[LANES];
    float x[BLOCK];
    fit f;

    for (uint64_t b = 0; b < blocks; b++, src += BLOCK, dst += bytes) {
        quieten(x, src);
        uint8_t *low = dst + bytes - BLOCK / 2;
        fit_block(&f, x, top, five ? -0.5f : -1.0f, five ? 15 : 20, how);
        put_scales(dst, &f, scale, min, how);
        final_codes(code, dst, &f, scale, min, x, top);
        for (unsigned e = 0; e < BLOCK / 2; e++) {
            const uint8_t *pair = code + e / LEN * 64 + e % LEN;
            low[e] = (uint8_t)((pair[0] & 15u) | (pair[LEN] & 15u) << 4);
        }
        for (unsigned e = 0; five && e < LEN; e++) {
            unsigned high = 0;
            for (unsigned s = 0; s < LANES; s++)
                high |= (unsigned)(code[s * LEN + e] >> 4) << s;
            dst[16 + e] = (uint8_t)high;
        }
    }
}

#undef LANES
#undef LEN

/* ==== scale alone: Q6_K ===================================================================== */

#define LANES 16u
#define LEN 16u

typedef struct fit6 {
    float x[LEN * LANES];
    float code[LEN * LANES], trial[LEN * LANES];
    float extreme[LANES], scale[LANES], best[LANES];
    bool zero[LANES];
} fit6;

/* Codes at scale 1 / inverse, and the sums of w*x*code and w*code*code with w = x*x. `sums` is the
 * sums' variant: gcc -O3 vectorizes the products of the loop over candidates, which then round. */
FMS_INLINE void encode6(float *code, const fit6 *f, const float *inverse, float *lx, float *l2,
                        fm_quant_variant how, fm_quant_variant sums)
{
    for (unsigned s = 0; s < LANES; s++)
        lx[s] = l2[s] = 0.0f;
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float x = f->x[e * LANES + s], w = x * x;
            const float c = (float)clamp(fms_nearest_product(inverse[s], x, how), -32, 31);
            code[e * LANES + s] = c;
            lx[s] = fms_mad(w * x, c, lx[s], sums);
            l2[s] = fms_mad(w * c, c, l2[s], sums);
        }
}

FMS_INLINE void extremes6(fit6 *f)
{
    float most[LANES] = {0};

    for (unsigned s = 0; s < LANES; s++)
        f->extreme[s] = 0.0f;
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float x = f->x[e * LANES + s], a = fabsf(x);
            f->extreme[s] = a > most[s] ? x : f->extreme[s];
            most[s] = a > most[s] ? a : most[s];
        }
    for (unsigned s = 0; s < LANES; s++)
        f->zero[s] = most[s] < TINY;
}

/* Candidates put the extreme on -(32 + 0.1 * step), step -9 ... 9. */
FMS_INLINE void fit6_block(fit6 *f, const float *x, fm_quant_variant how)
{
    float inverse[LANES], lx[LANES], l2[LANES];
    bool take[LANES];

    transpose(f->x, x, LANES);
    extremes6(f);
    for (unsigned s = 0; s < LANES; s++)
        inverse[s] = -32.0f / f->extreme[s];
    encode6(f->code, f, inverse, lx, l2, how, how);
    for (unsigned s = 0; s < LANES; s++) {
        f->scale[s] = l2[s] != 0.0f ? lx[s] / l2[s] : 0.0f;
        f->best[s] = f->scale[s] * lx[s];
    }
    for (int t = -9; t <= 9; t++) {
        if (t == 0)
            continue;
        const float codes = -fms_mad(0.1f, (float)t, 32.0f, how);
        for (unsigned s = 0; s < LANES; s++)
            inverse[s] = codes / f->extreme[s];
        encode6(f->trial, f, inverse, lx, l2, how, how == FM_QUANT_GCC ? FM_QUANT_PLAIN : how);
        for (unsigned s = 0; s < LANES; s++) {
            take[s] = l2[s] > 0.0f && lx[s] * lx[s] > f->best[s] * l2[s];
            f->scale[s] = take[s] ? lx[s] / l2[s] : f->scale[s];
            f->best[s] = take[s] ? f->scale[s] * lx[s] : f->best[s];
        }
        for (unsigned e = 0; e < LEN; e++)
            for (unsigned s = 0; s < LANES; s++)
                f->code[e * LANES + s] = take[s] ? f->trial[e * LANES + s] : f->code[e * LANES + s];
    }
    for (unsigned s = 0; s < LANES; s++)
        if (f->zero[s]) { /* ggml leaves stored zeros here, which mean -32 */
            f->scale[s] = 0.0f;
            for (unsigned e = 0; e < LEN; e++)
                f->code[e * LANES + s] = -32.0f;
        }
}

FMS_INLINE void pack6(uint8_t *dst, const uint8_t code[BLOCK])
{
    for (unsigned h = 0; h < 2; h++)
        for (unsigned i = 0; i < 32; i++) {
            const uint8_t *c = code + h * 128 + i;
            uint8_t *low = dst + h * 64 + i;
            low[0] = (uint8_t)((c[0] & 15u) | (c[64] & 15u) << 4);
            low[32] = (uint8_t)((c[32] & 15u) | (c[96] & 15u) << 4);
            dst[128 + h * 32 + i] =
                (uint8_t)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
        }
}

FMS_INLINE void q6_k(uint8_t *dst, const float *src, uint64_t blocks, fm_quant_variant how)
{
    uint8_t code[BLOCK];
    float x[BLOCK];
    fit6 f;

    for (uint64_t b = 0; b < blocks; b++, src += BLOCK, dst += 210) {
        quieten(x, src);
        float most = 0.0f, extreme = 0.0f;
        fit6_block(&f, x, how);
        for (unsigned s = 0; s < LANES; s++)
            if (fabsf(f.scale[s]) > most) {
                most = fabsf(f.scale[s]);
                extreme = f.scale[s];
            }
        if (most < TINY) {
            memset(dst, 0, 210);
            continue;
        }
        const float by = -128.0f / extreme;
        fm_put_u16(dst + 208, fms_half(1.0f / by));
        const float super = fm_f16_to_f32(fm_get_u16(dst + 208));
        for (unsigned s = 0; s < LANES; s++) {
            const int32_t n = fms_nearest_product(by, f.scale[s], how);
            const int8_t small = (int8_t)(uint8_t)(uint32_t)(n < 127 ? n : 127);
            const float d = super * (float)small;
            dst[192 + s] = (uint8_t)small;
            for (unsigned e = 0; e < LEN; e++) {
                const int32_t c = d == 0.0f ? (int32_t)f.code[e * LANES + s]
                                            : clamp(fms_nearest(x[s * LEN + e] / d), -32, 31);
                code[s * LEN + e] = (uint8_t)(c + 32);
            }
        }
        pack6(dst, code);
    }
}

/* ==== dispatch ============================================================================== */

FMS_INLINE void run(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                    fm_quant_variant how)
{
    if (type == FM_Q4_K)
        q45_k(dst, src, blocks, false, how);
    else if (type == FM_Q5_K)
        q45_k(dst, src, blocks, true, how);
    else
        q6_k(dst, src, blocks, how);
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

void fms_quantize_k_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
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

void fms_quantize_k(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                    fm_quant_variant how)
{
#ifdef FMS_QUANT_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        run_avx2(dst, type, src, blocks, how);
        return;
    }
#endif
    fms_quantize_k_base(dst, type, src, blocks, how);
}
