/* quantize_weighted.c - float32 to the types of 32 elements with an importance matrix, and to
 * IQ4_NL and IQ4_XS with one or without.
 *
 * Eight blocks of 32 are fitted at once, as the lanes of quantize_fit.h; a row may end before the
 * eighth, and the lanes that are left go unused. (IQ4_NL is in quantize.c too: there its bits in
 * all variants and for NaN are what recipes stand on.) */
#include "store/quant/quantize_fit.h"

#define LANES 8u
#define LEN 32u
#define ELEMS FMS_FIT_ELEMS
#define PLAIN FM_QUANT_PLAIN

/* ==== IQ4's sixteen values ================================================================== */

static const float LEVEL[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

/* Index of the level nearest to v; halfway goes up. The middles are exact. */
FMS_INLINE uint8_t level_of(float v)
{
    uint8_t n = 0;

    for (unsigned i = 0; i < 15; i++)
        n = (uint8_t)(n + !(v < 0.5f * (LEVEL[i] + LEVEL[i + 1])));
    return n;
}

/* The level itself. */
FMS_INLINE float nearest_level(float v)
{
    float at = LEVEL[0];

    for (unsigned i = 0; i < 15; i++)
        at += v < 0.5f * (LEVEL[i] + LEVEL[i + 1]) ? 0.0f : LEVEL[i + 1] - LEVEL[i];
    return at;
}

/* The sums of weight*q*x and weight*q*q for the levels q at scale 1 / inverse. */
FMS_INLINE void level_sums(const fms_fit *f, const float *inverse, float qx[LANES], float q2[LANES])
{
    for (unsigned s = 0; s < LANES; s++)
        qx[s] = q2[s] = 0.0f;
    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float x = f->x[e * LANES + s], q = nearest_level(inverse[s] * x);
            const float wq = f->weight[e * LANES + s] * q;
            qx[s] += wq * x;
            q2[s] += wq * q;
        }
}

/* x is about scale * level; x and weights are there. Candidates put the extreme on the lowest
 * level, then on -134 ... -120. */
FMS_INLINE void fit_levels(fms_fit *f)
{
    float inverse[LANES], qx[LANES], q2[LANES];

    fms_extremes(f, LEN, LANES);
    for (unsigned s = 0; s < LANES; s++)
        inverse[s] = 1.0f / (-f->extreme[s] / LEVEL[0]);
    level_sums(f, inverse, qx, q2);
    for (unsigned s = 0; s < LANES; s++) {
        f->scale[s] = q2[s] > 0.0f ? qx[s] / q2[s] : 0.0f;
        f->best[s] = f->scale[s] * qx[s];
    }
    for (int t = -7; t <= 7; t++) {
        for (unsigned s = 0; s < LANES; s++)
            inverse[s] = ((float)t + LEVEL[0]) / f->extreme[s];
        level_sums(f, inverse, qx, q2);
        for (unsigned s = 0; s < LANES; s++) {
            const bool take = q2[s] > 0.0f && qx[s] * qx[s] > f->best[s] * q2[s];
            f->scale[s] = take ? qx[s] / q2[s] : f->scale[s];
            f->best[s] = take ? f->scale[s] * qx[s] : f->best[s];
        }
    }
    for (unsigned s = 0; s < LANES; s++)
        f->scale[s] = f->flat[s] ? 0.0f : f->scale[s];
}

FMS_INLINE void level_codes(uint8_t code[LEN], const float *x, float scale)
{
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;

    for (unsigned e = 0; e < LEN; e++)
        code[e] = level_of(inverse * x[e]);
}

FMS_INLINE void iq4_xs(uint8_t *dst, const float *x, const float *importance)
{
    float most = 0.0f, largest = 0.0f;
    uint32_t high = 0, low = 0;
    uint8_t code[LEN];
    fms_fit f;

    fms_transpose(f.x, x, LEN, LANES);
    if (importance)
        fms_weigh_by(&f, importance, fms_sum_squares(x, ELEMS) * (2.0f / (float)ELEMS), LEN, LANES);
    for (unsigned i = 0; !importance && i < ELEMS; i++)
        f.weight[i] = f.x[i] * f.x[i];
    fit_levels(&f);
    for (unsigned s = 0; s < LANES; s++)
        if (fabsf(f.scale[s]) > most) {
            most = fabsf(f.scale[s]);
            largest = f.scale[s];
        }
    const float d = -largest / 32.0f, by = d != 0.0f ? 1.0f / d : 0.0f;
    for (unsigned s = 0; s < LANES; s++) {
        const int32_t small = fms_clamp(fms_nearest(by * f.scale[s]), -32, 31);
        level_codes(code, x + s * LEN, d * (float)small);
        fms_nibbles(dst + 8 + s * 16, code);
        low |= ((uint32_t)(small + 32) & 15u) << 4 * s;
        high |= (uint32_t)(small + 32) >> 4 << 2 * s;
    }
    fm_put_u16(dst, fms_half(d));
    fm_put_u16(dst + 2, (uint16_t)high);
    fm_put_u32(dst + 4, low);
}

/* ==== blocks of 32 ========================================================================== */

FMS_INLINE void fit_group(fms_fit *f, fm_dtype type)
{
    if (type == FM_IQ4_NL)
        fit_levels(f);
    else if (type == FM_Q4_0 || type == FM_Q5_0)
        fms_fit_scale(f, type == FM_Q4_0 ? 8 : 16, LEN, LANES, PLAIN);
    else
        fms_fit_min(f, (fms_spread){type == FM_Q4_1 ? 15 : 31, 36, -0.9f, 0.05f, false}, LEN, LANES,
                    PLAIN);
}

/* Writes block s of the group. */
FMS_INLINE void put_block(uint8_t *dst, fm_dtype type, const fms_fit *f, const float *x, unsigned s)
{
    const bool min = type == FM_Q4_1 || type == FM_Q5_1, five = type == FM_Q5_0 || type == FM_Q5_1;
    const float zero = type == FM_Q4_0 ? 8.0f : type == FM_Q5_0 ? 16.0f : 0.0f;
    uint8_t code[LEN];

    if (type == FM_IQ4_NL)
        level_codes(code, x, f->scale[s]);
    for (unsigned e = 0; type != FM_IQ4_NL && e < LEN; e++)
        code[e] = (uint8_t)(f->code[e * LANES + s] + zero);
    fm_put_u16(dst, fms_half(f->scale[s]));
    dst += 2;
    if (min) {
        fm_put_u16(dst, fms_half(-f->min[s]));
        dst += 2;
    }
    if (five) {
        fm_put_u32(dst, fms_fifth_bits(code));
        dst += 4;
    }
    fms_nibbles(dst, code);
}

/* weight = importance * root of (the block's own mean + x * x), or without importance x * x */
FMS_INLINE void weigh_levels(fms_fit *f, const float *x, const float *importance)
{
    float weight[ELEMS];

    for (unsigned s = 0; s < LANES; s++) {
        const float *in = x + s * LEN;
        const float mean = fms_sum_squares(in, LEN) * (2.0f / (float)LEN);
        for (unsigned e = 0; e < LEN; e++)
            weight[s * LEN + e] =
                importance ? importance[s * LEN + e] * sqrtf(mean + in[e] * in[e]) : in[e] * in[e];
    }
    fms_transpose(f->weight, weight, LEN, LANES);
}

FMS_INLINE void row_of_32(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                          const float *importance)
{
    const uint32_t bytes = fm_dtype_get(type)->block_bytes;
    const float mean = type == FM_IQ4_NL ? 0.0f : fms_sum_squares(src, elems) / (float)elems;
    float x[ELEMS] = {0}, by[ELEMS] = {0};
    fms_fit f;

    for (uint64_t at = 0; at < elems; at += ELEMS) {
        const uint64_t n = FM_MIN(elems - at, (uint64_t)ELEMS);
        memcpy(x, src + at, (size_t)n * sizeof *x);
        if (importance)
            memcpy(by, importance + at, (size_t)n * sizeof *by);
        fms_transpose(f.x, x, LEN, LANES);
        if (type == FM_IQ4_NL)
            weigh_levels(&f, x, importance ? by : NULL);
        else
            fms_weigh_by(&f, by, mean, LEN, LANES);
        fit_group(&f, type);
        for (unsigned s = 0; s < n / LEN; s++, dst += bytes)
            put_block(dst, type, &f, x + s * LEN, s);
    }
}

/* ==== dispatch ============================================================================== */

FMS_INLINE void run_32(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                       const float *importance)
{
    if (type == FM_Q4_0)
        row_of_32(dst, FM_Q4_0, src, elems, importance);
    else if (type == FM_Q4_1)
        row_of_32(dst, FM_Q4_1, src, elems, importance);
    else if (type == FM_Q5_0)
        row_of_32(dst, FM_Q5_0, src, elems, importance);
    else if (type == FM_Q5_1)
        row_of_32(dst, FM_Q5_1, src, elems, importance);
    else
        row_of_32(dst, FM_IQ4_NL, src, elems, importance);
}

FMS_INLINE void run_xs(uint8_t *dst, const float *src, uint64_t elems, const float *importance)
{
    for (uint64_t at = 0; at < elems; at += ELEMS, dst += 136)
        iq4_xs(dst, src + at, importance ? importance + at : NULL);
}

void fms_weighted_32_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                          const float *importance)
{
    run_32(dst, type, src, elems, importance);
}

void fms_quantize_iq4_xs_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                              const float *importance)
{
    (void)type;
    run_xs(dst, src, elems, importance);
}

#ifdef FMS_QUANT_X86
FMS_TARGET_AVX2 static void avx2_32(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                                    const float *importance)
{
    run_32(dst, type, src, elems, importance);
}

FMS_TARGET_AVX2 static void avx2_xs(uint8_t *dst, const float *src, uint64_t elems,
                                    const float *importance)
{
    run_xs(dst, src, elems, importance);
}
#endif

void fms_weighted_32(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                     const float *importance)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        avx2_32(dst, type, src, elems, importance);
        return;
    }
#endif
    fms_weighted_32_base(dst, type, src, elems, importance);
}

void fms_quantize_iq4_xs(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                         const float *importance)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        avx2_xs(dst, src, elems, importance);
        return;
    }
#endif
    fms_quantize_iq4_xs_base(dst, type, src, elems, importance);
}
