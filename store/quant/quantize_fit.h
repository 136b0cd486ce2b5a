/* quantize_fit.h - the scales (and minima) that fit sub-blocks best; inside the quantizers only.
 *
 * Up to 256 elements are `lanes` sub-blocks of `len` elements. A sub-block's scale is the best of
 * some twenty candidates by weighted squared error, all sums running over its elements in order.
 * Sub-blocks are independent of each other, so they are the lanes: element i of all sub-blocks at
 * once, which keeps every lane's order of operations and lets the compiler vectorize. The pragmas
 * keep gcc from unrolling the loops over lanes before it gets there, at half the speed. */
#ifndef FM_STORE_QUANTIZE_FIT_H
#define FM_STORE_QUANTIZE_FIT_H

#include "store/quant/quantize_impl.h"

#define FMS_FIT_ELEMS 256u
#define FMS_FIT_LANES 16u /* at most */
#define FMS_FIT_TINY 1e-15f

typedef struct fms_fit {
    float x[FMS_FIT_ELEMS], weight[FMS_FIT_ELEMS]; /* [element][sub-block] */
    float code[FMS_FIT_ELEMS], trial[FMS_FIT_ELEMS];
    float scale[FMS_FIT_LANES], best[FMS_FIT_LANES]; /* the best so far, and its measure */
    float min[FMS_FIT_LANES], high[FMS_FIT_LANES];
    float sum_w[FMS_FIT_LANES], sum_x[FMS_FIT_LANES]; /* of the weights, of weight * x */
    float extreme[FMS_FIT_LANES];
    bool flat[FMS_FIT_LANES]; /* nothing above the minimum; nothing that is not zero */
} fms_fit;

/* in[e][s] = element e of sub-block s */
FMS_INLINE void fms_transpose(float *in, const float *x, unsigned len, unsigned lanes)
{
    for (unsigned s = 0; s < lanes; s++)
        for (unsigned e = 0; e < len; e++)
            in[e * lanes + s] = x[s * len + e];
}

FMS_INLINE int32_t fms_clamp(int32_t v, int32_t low, int32_t high)
{
    v = v > high ? high : v;
    return v < low ? low : v;
}

FMS_INLINE float fms_sum_squares(const float *x, uint64_t n)
{
    float sum = 0.0f;

    for (uint64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

/* weight = importance * root of (square + x * x); f->x is there */
FMS_INLINE void fms_weigh_by(fms_fit *f, const float *importance, float square, unsigned len,
                             unsigned lanes)
{
    fms_transpose(f->weight, importance, len, lanes);
    for (unsigned i = 0; i < len * lanes; i++)
        f->weight[i] *= sqrtf(square + f->x[i] * f->x[i]);
}

FMS_INLINE void fms_take_codes(fms_fit *f, const bool *take, unsigned len, unsigned lanes)
{
    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++)
            f->code[e * lanes + s] = take[s] ? f->trial[e * lanes + s] : f->code[e * lanes + s];
}

/* ==== scale and minimum ===================================================================== */

FMS_INLINE void fms_range_and_sums(fms_fit *f, unsigned len, unsigned lanes, fm_quant_variant how)
{
    for (unsigned s = 0; s < lanes; s++) {
        f->min[s] = f->high[s] = f->x[s];
        f->sum_w[s] = f->weight[s];
        f->sum_x[s] = f->weight[s] * f->x[s];
    }
    for (unsigned e = 1; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float x = f->x[e * lanes + s], w = f->weight[e * lanes + s];
            f->min[s] = x < f->min[s] ? x : f->min[s];
            f->high[s] = x > f->high[s] ? x : f->high[s];
            f->sum_w[s] += w;
            f->sum_x[s] = fms_mad(w, x, f->sum_x[s], how);
        }
    for (unsigned s = 0; s < lanes; s++) {
        f->min[s] = f->min[s] > 0.0f ? 0.0f : f->min[s];
        f->flat[s] = f->high[s] == f->min[s];
    }
}

/* Encodes with `codes` steps from the best minimum so far to the largest value. */
FMS_INLINE void fms_encode(float *code, float *inverse, const fms_fit *f, float codes, int top,
                           unsigned len, unsigned lanes, fm_quant_variant how)
{
    for (unsigned s = 0; s < lanes; s++)
        inverse[s] = codes / (f->high[s] - f->min[s]);
    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float v = f->x[e * lanes + s] - f->min[s];
            code[e * lanes + s] = (float)fms_clamp(fms_nearest_product(inverse[s], v, how), 0, top);
        }
}

/* What is measured: the sum of weight * off^2, or with `linear` of weight * |off|, where off =
 * scale * code + min - x. */
FMS_INLINE void fms_measure(float *error, const fms_fit *f, const float *code, const float *scale,
                            const float *min, bool linear, unsigned len, unsigned lanes,
                            fm_quant_variant how)
{
    for (unsigned s = 0; s < lanes; s++)
        error[s] = 0.0f;
    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float at = fms_mad(scale[s], code[e * lanes + s], min[s], how);
            const float off = at - f->x[e * lanes + s], cost = linear ? fabsf(off) : off * off;
            error[s] = fms_mad(f->weight[e * lanes + s], cost, error[s], how);
        }
}

/* Computes the least squares scale and minimum (at most 0) for the trial codes; where their error
 * is less than the best so far, they replace it. */
FMS_INLINE void fms_improve(fms_fit *f, bool linear, unsigned len, unsigned lanes,
                            fm_quant_variant how)
{
    float l[FMS_FIT_LANES] = {0}, l2[FMS_FIT_LANES] = {0}, xl[FMS_FIT_LANES] = {0};
    float scale[FMS_FIT_LANES], min[FMS_FIT_LANES], error[FMS_FIT_LANES], det[FMS_FIT_LANES];
    bool take[FMS_FIT_LANES];

    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float w = f->weight[e * lanes + s], c = f->trial[e * lanes + s], wc = w * c;
            l[s] = how == FM_QUANT_CLANG ? fmaf(w, c, l[s])
                                         : l[s] + wc; /* gcc keeps a shared product */
            l2[s] = fms_mad(wc, c, l2[s], how);
            xl[s] = fms_mad(wc, f->x[e * lanes + s], xl[s], how);
        }
    for (unsigned s = 0; s < lanes; s++) {
        det[s] = fms_mad(f->sum_w[s], l2[s], -(l[s] * l[s]), how);
        scale[s] = fms_mad(f->sum_w[s], xl[s], -(f->sum_x[s] * l[s]), how) / det[s];
        min[s] = fms_mad(l2[s], f->sum_x[s], -(l[s] * xl[s]), how) / det[s];
        if (min[s] > 0.0f) {
            min[s] = 0.0f;
            scale[s] = xl[s] / l2[s];
        }
    }
    fms_measure(error, f, f->trial, scale, min, linear, len, lanes, how);
    for (unsigned s = 0; s < lanes; s++) {
        take[s] = !f->flat[s] && det[s] > 0.0f && error[s] < f->best[s];
        f->best[s] = take[s] ? error[s] : f->best[s];
        f->scale[s] = take[s] ? scale[s] : f->scale[s];
        f->min[s] = take[s] ? min[s] : f->min[s];
    }
    fms_take_codes(f, take, len, lanes);
}

/* x is about scale * code - min, codes 0 ... top; x and weights are there. Candidates spread top +
 * start + delta * step codes, step 0 ... steps. */
typedef struct fms_spread {
    int top, steps;
    float start, delta;
    bool linear;
} fms_spread;

FMS_INLINE void fms_fit_min(fms_fit *f, fms_spread by, unsigned len, unsigned lanes,
                            fm_quant_variant how)
{
    float inverse[FMS_FIT_LANES];

    fms_range_and_sums(f, len, lanes, how);
    fms_encode(f->code, inverse, f, (float)by.top, by.top, len, lanes, how);
    for (unsigned s = 0; s < lanes; s++) {
        f->scale[s] = f->flat[s] ? 0.0f : 1.0f / inverse[s];
        for (unsigned e = 0; f->flat[s] && e < len; e++)
            f->code[e * lanes + s] = 0.0f;
    }
    fms_measure(f->best, f, f->code, f->scale, f->min, by.linear, len, lanes, how);
    for (int t = 0; t <= by.steps; t++) {
        const float codes = fms_mad(by.delta, (float)t, by.start, how) + (float)by.top;
        fms_encode(f->trial, inverse, f, codes, by.top, len, lanes, how);
        fms_improve(f, by.linear, len, lanes, how);
    }
    for (unsigned s = 0; s < lanes; s++)
        f->min[s] = -f->min[s];
}

/* ==== scale alone =========================================================================== */

/* The element of the largest magnitude, the first of equal ones; NaN is ignored. */
FMS_INLINE void fms_extremes(fms_fit *f, unsigned len, unsigned lanes)
{
    float most[FMS_FIT_LANES] = {0};

    for (unsigned s = 0; s < lanes; s++)
        f->extreme[s] = 0.0f;
    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float x = f->x[e * lanes + s], a = fabsf(x);
            f->extreme[s] = a > most[s] ? x : f->extreme[s];
            most[s] = a > most[s] ? a : most[s];
        }
    for (unsigned s = 0; s < lanes; s++)
        f->flat[s] = most[s] < FMS_FIT_TINY;
}

/* Codes at scale 1 / inverse, and the sums of weight*x*code and weight*code*code. `sums` is the
 * sums' variant: gcc -O3 vectorizes the products of the loop over candidates, which then round. */
FMS_INLINE void fms_encode_even(float *code, const fms_fit *f, const float *inverse, float *lx,
                                float *l2, int top, unsigned len, unsigned lanes,
                                fm_quant_variant how, fm_quant_variant sums)
{
    for (unsigned s = 0; s < lanes; s++)
        lx[s] = l2[s] = 0.0f;
    for (unsigned e = 0; e < len; e++)
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            const float x = f->x[e * lanes + s], w = f->weight[e * lanes + s];
            const float c =
                (float)fms_clamp(fms_nearest_product(inverse[s], x, how), -top, top - 1);
            code[e * lanes + s] = c;
            lx[s] = fms_mad(w * x, c, lx[s], sums);
            l2[s] = fms_mad(w * c, c, l2[s], sums);
        }
}

/* x is about scale * code, codes -top ... top - 1; x and weights are there. Candidates put the
 * extreme on -(top + 0.1 * step), step -9 ... 9. */
FMS_INLINE void fms_fit_scale(fms_fit *f, int top, unsigned len, unsigned lanes,
                              fm_quant_variant how)
{
    const fm_quant_variant sums = how == FM_QUANT_GCC ? FM_QUANT_PLAIN : how;
    float inverse[FMS_FIT_LANES], lx[FMS_FIT_LANES], l2[FMS_FIT_LANES];
    bool take[FMS_FIT_LANES];

    fms_extremes(f, len, lanes);
    for (unsigned s = 0; s < lanes; s++)
        inverse[s] = (float)-top / f->extreme[s];
    fms_encode_even(f->code, f, inverse, lx, l2, top, len, lanes, how, how);
    for (unsigned s = 0; s < lanes; s++) {
        f->scale[s] = l2[s] != 0.0f ? lx[s] / l2[s] : 0.0f;
        f->best[s] = f->scale[s] * lx[s];
    }
    for (int t = -9; t <= 9; t++) {
        if (t == 0)
            continue;
        const float codes = -fms_mad(0.1f, (float)t, (float)top, how);
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++)
            inverse[s] = codes / f->extreme[s];
        fms_encode_even(f->trial, f, inverse, lx, l2, top, len, lanes, how, sums);
#pragma GCC unroll 1
        for (unsigned s = 0; s < lanes; s++) {
            take[s] = l2[s] > 0.0f && lx[s] * lx[s] > f->best[s] * l2[s];
            f->scale[s] = take[s] ? lx[s] / l2[s] : f->scale[s];
            f->best[s] = take[s] ? f->scale[s] * lx[s] : f->best[s];
        }
        fms_take_codes(f, take, len, lanes);
    }
    for (unsigned s = 0; s < lanes; s++)
        if (f->flat[s]) { /* ggml leaves stored zeros here, which mean -top */
            f->scale[s] = 0.0f;
            for (unsigned e = 0; e < len; e++)
                f->code[e * lanes + s] = (float)-top;
        }
}

/* The scale for which values that are not negative are best as codes 0 ... top, 63 at most, by
 * weighted squared error; n at most FMS_FIT_LANES. */
float fms_fit_positive(uint8_t *code, const float *x, const float *weight, unsigned n, int top);

#endif
