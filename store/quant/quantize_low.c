/* quantize_low.c - float32 to Q2_K and Q3_K, blocks of 256 elements in sub-blocks of 16, with an
 * importance matrix or without. */
#include "store/quant/quantize_fit.h"

#define BLOCK FMS_FIT_ELEMS
#define LANES 16u
#define LEN 16u
#define PLAIN FM_QUANT_PLAIN

/* ==== positive values ======================================================================= */

/* first: of the first candidate, whose codes ggml holds in a byte. */
static float squared_error(const float *x, const float *weight, unsigned n, float inverse, int top,
                           bool first)
{
    const float scale = 1.0f / inverse;
    float error = 0.0f;

    for (unsigned i = 0; i < n; i++) {
        const int32_t near = fms_nearest(inverse * x[i]);
        const int32_t c = first ? (uint8_t)(uint32_t)near : near < top ? near : top;
        const float off = x[i] - scale * (float)c;
        error += weight[i] * off * off;
    }
    return error;
}

/* Moves one code after another to where the least squares scale of the others would put it. */
static bool move_codes(uint8_t *code, const float *x, const float *weight, unsigned n, int top,
                       float *lx, float *l2)
{
    bool moved = false;

    for (unsigned i = 0; i < n; i++) {
        const float w = weight[i], old = (float)code[i];
        float rest_lx = *lx - w * x[i] * old, rest_l2 = *l2 - w * old * old;
        if (!(rest_lx > 0.0f && rest_l2 > 0.0f))
            continue;
        const int32_t near = fms_nearest(x[i] * rest_l2 / rest_lx), c = near < top ? near : top;
        if (c == code[i])
            continue;
        rest_lx += w * x[i] * (float)c;
        rest_l2 += w * (float)c * (float)c;
        if (rest_lx * rest_lx * *l2 > *lx * *lx * rest_l2) {
            code[i] = (uint8_t)(uint32_t)c;
            *lx = rest_lx;
            *l2 = rest_l2;
            moved = true;
        }
    }
    return moved;
}

float fms_fit_positive(uint8_t *code, const float *x, const float *weight, unsigned n, int top)
{
    float most = 0.0f, lx = 0.0f, l2 = 0.0f;

    for (unsigned i = 0; i < n; i++)
        most = most > x[i] ? most : x[i];
    memset(code, 0, n);
    if (most < FMS_FIT_TINY)
        return 0.0f;
    float inverse = (float)top / most, best = squared_error(x, weight, n, inverse, top, true);
    for (int t = -4; t <= 4; t++) {
        const float other = (0.1f * (float)t + (float)top) / most;
        const float error = t != 0 ? squared_error(x, weight, n, other, top, false) : best;
        if (error < best) {
            best = error;
            inverse = other;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        const int32_t near = fms_nearest(inverse * x[i]), c = near < top ? near : top;
        code[i] = (uint8_t)(uint32_t)c;
        lx += weight[i] * x[i] * (float)c;
        l2 += weight[i] * (float)c * (float)c;
    }
    for (int t = 0; t < 5 && move_codes(code, x, weight, n, top, &lx, &l2); t++)
        ;
    return l2 > 0.0f ? lx / l2 : 0.0f;
}

/* ==== Q2_K ================================================================================== */

/* Two bits of each code: those of elements i, i + 32, i + 64, i + 96 of each half in a byte. */
FMS_INLINE void put_pairs_of_bits(uint8_t *dst, const uint8_t code[BLOCK])
{
    for (unsigned h = 0; h < 2; h++)
        for (unsigned i = 0; i < 32; i++) {
            const uint8_t *c = code + h * 128 + i;
            dst[h * 32 + i] =
                (uint8_t)((c[0] & 3u) | (c[32] & 3u) << 2 | (c[64] & 3u) << 4 | (c[96] & 3u) << 6);
        }
}

/* The float16 super-scale at `half`, and values that are not negative in 4 bits: the largest is
 * 15. */
FMS_INLINE void four_bits_by_largest(uint8_t *half, uint8_t code[LANES], const float v[LANES])
{
    float most = 0.0f;

    for (unsigned s = 0; s < LANES; s++)
        most = v[s] > most ? v[s] : most;
    for (unsigned s = 0; s < LANES; s++)
        code[s] = most > 0.0f ? (uint8_t)(uint32_t)fms_nearest(15.0f / most * v[s]) : 0;
    fm_put_u16(half, fms_half(most > 0.0f ? most / 15.0f : 0.0f));
}

FMS_INLINE void fit_q2_k(uint8_t *dst, fms_fit *f, const float *x, const float *importance,
                         uint8_t scale[LANES], uint8_t min[LANES])
{
    fms_transpose(f->x, x, LEN, LANES);
    if (importance) {
        fms_weigh_by(f, importance, fms_sum_squares(x, BLOCK) / (float)BLOCK, LEN, LANES);
        fms_fit_min(f, (fms_spread){3, 36, -0.9f, 0.05f, false}, LEN, LANES, PLAIN);
        fm_put_u16(dst + 80, fms_half(fms_fit_positive(scale, f->scale, f->sum_w, LANES, 15)));
        fm_put_u16(dst + 82, fms_half(fms_fit_positive(min, f->min, f->sum_w, LANES, 15)));
        return;
    }
    for (unsigned i = 0; i < BLOCK; i++)
        f->weight[i] = fabsf(f->x[i]);
    fms_fit_min(f, (fms_spread){3, 15, -0.5f, 0.1f, true}, LEN, LANES, PLAIN);
    four_bits_by_largest(dst + 80, scale, f->scale);
    four_bits_by_largest(dst + 82, min, f->min);
}

FMS_INLINE void q2_k(uint8_t *dst, const float *x, const float *importance)
{
    uint8_t code[BLOCK], scale[LANES], min[LANES];
    fms_fit f;

    fit_q2_k(dst, &f, x, importance, scale, min);
    const float super = fm_f16_to_f32(fm_get_u16(dst + 80));
    const float below = fm_f16_to_f32(fm_get_u16(dst + 82));
    for (unsigned s = 0; s < LANES; s++) {
        dst[s] = (uint8_t)(scale[s] | (unsigned)min[s] << 4);
        const float d = super * (float)(dst[s] & 15u), m = below * (float)(dst[s] >> 4);
        for (unsigned e = 0; e < LEN; e++)
            code[s * LEN + e] =
                d == 0.0f ? (uint8_t)f.code[e * LANES + s]
                          : (uint8_t)fms_clamp(fms_nearest((x[s * LEN + e] + m) / d), 0, 3);
    }
    put_pairs_of_bits(dst + 16, code);
}

/* ==== Q3_K ================================================================================== */

/* One round over the elements of all sub-blocks: a code moves to where the least squares scale of
 * the others would put it, if that is better. */
FMS_INLINE bool move_signed(fms_fit *f, float lx[LANES], float l2[LANES])
{
    bool moved = false;

    for (unsigned e = 0; e < LEN; e++)
        for (unsigned s = 0; s < LANES; s++) {
            const float x = f->x[e * LANES + s], w = f->weight[e * LANES + s];
            const float old = f->code[e * LANES + s];
            float rest_lx = lx[s] - w * x * old, rest_l2 = l2[s] - w * old * old;
            const bool may = rest_lx > 0.0f;
            const float c = (float)fms_clamp(fms_nearest(x * rest_l2 / rest_lx), -4, 3);
            rest_lx += w * x * c;
            rest_l2 += w * c * c;
            const bool take = may && c != old && rest_l2 > 0.0f &&
                              rest_lx * rest_lx * l2[s] > lx[s] * lx[s] * rest_l2;
            f->code[e * LANES + s] = take ? c : old;
            lx[s] = take ? rest_lx : lx[s];
            l2[s] = take ? rest_l2 : l2[s];
            moved |= take;
        }
    return moved;
}

/* x is about scale * code, codes -4 ... 3, by moving codes one at a time. */
FMS_INLINE void fit_by_moves(fms_fit *f)
{
    float inverse[LANES], lx[LANES], l2[LANES];

    for (unsigned i = 0; i < BLOCK; i++)
        f->weight[i] = f->x[i] * f->x[i];
    fms_extremes(f, LEN, LANES);
    for (unsigned s = 0; s < LANES; s++)
        inverse[s] = -4.0f / f->extreme[s];
    fms_encode_even(f->code, f, inverse, lx, l2, 4, LEN, LANES, PLAIN, PLAIN);
    for (int t = 0; t < 5 && move_signed(f, lx, l2); t++)
        ;
    for (unsigned s = 0; s < LANES; s++) {
        f->scale[s] = l2[s] > 0.0f && !f->flat[s] ? lx[s] / l2[s] : 0.0f;
        for (unsigned e = 0; f->flat[s] && e < LEN; e++) /* ggml leaves stored zeros here */
            f->code[e * LANES + s] = -4.0f;
    }
}

/* The super-scale, by which the largest of the scales is -32; *half: as float16. */
FMS_INLINE void six_bits_by_largest(uint16_t *half, uint8_t small[LANES], const float v[LANES])
{
    float most = 0.0f, largest = 0.0f;

    for (unsigned s = 0; s < LANES; s++)
        if (fabsf(v[s]) > most) {
            most = fabsf(v[s]);
            largest = v[s];
        }
    const float by = largest != 0.0f ? -32.0f / largest : 0.0f;
    for (unsigned s = 0; s < LANES; s++)
        small[s] =
            largest != 0.0f
                ? (uint8_t)(fms_clamp((int8_t)(uint8_t)(uint32_t)fms_nearest(by * v[s]), -32, 31) +
                            32)
                : 0;
    *half = fms_half(largest != 0.0f ? 1.0f / by : 0.0f);
}

/* The same, fitted by the weights of the sub-blocks. */
FMS_INLINE void six_bits_by_fit(uint16_t *half, uint8_t small[LANES], const float v[LANES],
                                const fms_fit *f)
{
    fms_fit scales;

    for (unsigned s = 0; s < LANES; s++) {
        scales.x[s] = v[s];
        scales.weight[s] = 0.0f;
        for (unsigned e = 0; e < LEN; e++)
            scales.weight[s] += f->weight[e * LANES + s];
    }
    fms_fit_scale(&scales, 32, LANES, 1, PLAIN);
    for (unsigned s = 0; s < LANES; s++)
        small[s] = (uint8_t)(scales.code[s] + 32.0f);
    *half = fms_half(scales.scale[0]);
}

FMS_INLINE void put_six_bits(uint8_t packed[12], const uint8_t small[LANES])
{
    for (unsigned s = 0; s < 8; s++)
        packed[s] = (uint8_t)((small[s] & 15u) | (small[s + 8] & 15u) << 4);
    for (unsigned s = 0; s < 4; s++)
        packed[8 + s] = (uint8_t)(small[s] >> 4 | small[s + 4] >> 4 << 2 | small[s + 8] >> 4 << 4 |
                                  small[s + 12] >> 4 << 6);
}

FMS_INLINE void q3_k(uint8_t *dst, const float *x, const float *importance)
{
    uint8_t code[BLOCK], small[LANES];
    uint16_t half;
    fms_fit f;

    fms_transpose(f.x, x, LEN, LANES);
    if (importance) {
        fms_weigh_by(&f, importance, 2.0f * fms_sum_squares(x, BLOCK) / (float)BLOCK, LEN, LANES);
        fms_fit_scale(&f, 4, LEN, LANES, PLAIN);
        six_bits_by_fit(&half, small, f.scale, &f);
    } else {
        fit_by_moves(&f);
        six_bits_by_largest(&half, small, f.scale);
    }
    put_six_bits(dst + 96, small);
    fm_put_u16(dst + 108, half);
    const float super = fm_f16_to_f32(half);
    for (unsigned s = 0; s < LANES; s++) {
        const float d = super * (float)((int)small[s] - 32);
        for (unsigned e = 0; e < LEN; e++) {
            const int32_t c = d == 0.0f ? (int32_t)f.code[e * LANES + s]
                                        : fms_clamp(fms_nearest(x[s * LEN + e] / d), -4, 3);
            code[s * LEN + e] = (uint8_t)(c + 4);
        }
    }
    for (unsigned i = 0; i < 32; i++) {
        unsigned high = 0;
        for (unsigned b = 0; b < 8; b++)
            high |= (unsigned)(code[b * 32 + i] >> 2) << b;
        dst[i] = (uint8_t)high;
    }
    put_pairs_of_bits(dst + 32, code);
}

/* ==== dispatch ============================================================================== */

FMS_INLINE void run(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                    const float *importance)
{
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        const float *w = importance ? importance + at : NULL;
        if (type == FM_Q2_K)
            q2_k(dst + at / BLOCK * 84, src + at, w);
        else
            q3_k(dst + at / BLOCK * 110, src + at, w);
    }
}

void fms_quantize_low_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                           const float *importance)
{
    run(dst, type, src, elems, importance);
}

#ifdef FMS_QUANT_X86
FMS_TARGET_AVX2 static void run_avx2(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                                     const float *importance)
{
    run(dst, type, src, elems, importance);
}
#endif

void fms_quantize_low(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                      const float *importance)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        run_avx2(dst, type, src, elems, importance);
        return;
    }
#endif
    fms_quantize_low_base(dst, type, src, elems, importance);
}
