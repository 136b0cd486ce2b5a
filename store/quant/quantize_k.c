/* quantize_k.c - float32 to Q4_K, Q5_K and Q6_K, blocks of 256 elements.
 *
 * Sub-blocks are fitted independently (quantize_fit.h); then their scales are rounded against the
 * block's largest, and the elements are encoded again with the scales as they will be read. */
#include "store/quant/quantize_fit.h"

#define BLOCK FMS_FIT_ELEMS

/* Makes every NaN the same: which payload survives a sum is the compiler's choice. */
FMS_INLINE void quieten(float clean[BLOCK], const float *x)
{
    for (unsigned i = 0; i < BLOCK; i++)
        clean[i] = x[i] == x[i] ? x[i] : NAN;
}

/* ==== scale and minimum: Q4_K, Q5_K ========================================================= */

#define LANES 8u
#define LEN 32u

/* weight = root of the mean square + magnitude */
FMS_INLINE void weigh(fms_fit *f, fm_quant_variant how)
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

/* The float16 super-scales, and the sub-blocks' scales and minima in 6 bits: the largest is 63. */
FMS_INLINE void scales_by_largest(uint8_t *dst, const fms_fit *f, uint8_t scale[LANES],
                                  uint8_t min[LANES], fm_quant_variant how)
{
    const float most_scale = largest(f->scale), most_min = largest(f->min);
    const float by_scale = most_scale > 0.0f ? 63.0f / most_scale : 0.0f;
    const float by_min = most_min > 0.0f ? 63.0f / most_min : 0.0f;

    fm_put_u16(dst, fms_half(most_scale / 63.0f));
    fm_put_u16(dst + 2, fms_half(most_min / 63.0f));
    for (unsigned s = 0; s < LANES; s++) {
        scale[s] = six_bits(by_scale, f->scale[s], how);
        min[s] = six_bits(by_min, f->min[s], how);
    }
}

/* The same, each fitted by the weights of its sub-block. */
FMS_INLINE void scales_by_fit(uint8_t *dst, const fms_fit *f, uint8_t scale[LANES],
                              uint8_t min[LANES], bool five)
{
    fm_put_u16(dst, fms_half(fms_fit_positive(scale, f->scale, f->sum_w, LANES, 63)));
    fm_put_u16(dst + 2, fms_half(fms_fit_positive(min, f->min, f->sum_w, LANES, 63)));
    for (unsigned s = 0; five && s < LANES; s++) { /* Q4_K cuts none */
        scale[s] = scale[s] < 63 ? scale[s] : 63;
        min[s] = min[s] < 63 ? min[s] : 63;
    }
}

/* Packs them as dequant_k.c reads them, and reads them back. */
FMS_INLINE void pack_scales(uint8_t *packed, uint8_t scale[LANES], uint8_t min[LANES])
{
    for (unsigned s = 0; s < 4; s++) {
        packed[s] = (uint8_t)(scale[s] | scale[s + 4] >> 4 << 6);
        packed[s + 4] = (uint8_t)(min[s] | min[s + 4] >> 4 << 6);
        packed[s + 8] = (uint8_t)((scale[s + 4] & 15u) | (min[s + 4] & 15u) << 4);
    }
    for (unsigned s = 0; s < 4; s++) { /* a code that was negative is cut to what fits */
        scale[s] = packed[s] & 63;
        min[s] = packed[s + 4] & 63;
        scale[s + 4] = (uint8_t)((packed[s + 8] & 15u) | packed[s] >> 6 << 4);
        min[s + 4] = (uint8_t)(packed[s + 8] >> 4 | packed[s + 4] >> 6 << 4);
    }
}

/* Encodes again with the scales as they will be read; a scale of zero keeps the search's codes. */
FMS_INLINE void final_codes(uint8_t code[BLOCK], const uint8_t *dst, const fms_fit *f,
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
                code[s * LEN + e] =
                    (uint8_t)fms_clamp(fms_nearest((x[s * LEN + e] + m) / d), 0, top);
    }
}

FMS_INLINE void fit_block(fms_fit *f, const float *x, const float *importance, bool five,
                          fm_quant_variant how)
{
    const int top = five ? 31 : 15;

    fms_transpose(f->x, x, LEN, LANES);
    if (importance) {
        fms_weigh_by(f, importance, 2.0f * fms_sum_squares(x, BLOCK) / (float)BLOCK, LEN, LANES);
        fms_fit_min(f, (fms_spread){top, 36, -0.9f, 0.05f, false}, LEN, LANES, how);
    } else {
        weigh(f, how);
        fms_fit_min(f, (fms_spread){top, five ? 15 : 20, five ? -0.5f : -1.0f, 0.1f, false}, LEN,
                    LANES, how);
    }
}

FMS_INLINE void q45_k(uint8_t *dst, const float *src, uint64_t blocks, const float *importance,
                      bool five, fm_quant_variant how)
{
    const unsigned bytes = five ? 176 : 144;
    uint8_t code[BLOCK], scale[LANES], min[LANES];
    float x[BLOCK];
    fms_fit f;

    for (uint64_t b = 0; b < blocks; b++, src += BLOCK, dst += bytes) {
        quieten(x, src);
        uint8_t *low = dst + bytes - BLOCK / 2;
        fit_block(&f, x, importance ? importance + b * BLOCK : NULL, five, how);
        if (importance)
            scales_by_fit(dst, &f, scale, min, five);
        else
            scales_by_largest(dst, &f, scale, min, how);
        pack_scales(dst + 4, scale, min);
        final_codes(code, dst, &f, scale, min, x, five ? 31 : 15);
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

FMS_INLINE void fit_block_6(fms_fit *f, const float *x, const float *importance,
                            fm_quant_variant how)
{
    fms_transpose(f->x, x, LEN, LANES);
    if (importance)
        fms_transpose(f->weight, importance, LEN, LANES);
    else
        for (unsigned i = 0; i < BLOCK; i++)
            f->weight[i] = f->x[i] * f->x[i];
    fms_fit_scale(f, 32, LEN, LANES, how);
}

FMS_INLINE void q6_k(uint8_t *dst, const float *src, uint64_t blocks, const float *importance,
                     fm_quant_variant how)
{
    uint8_t code[BLOCK];
    float x[BLOCK];
    fms_fit f;

    for (uint64_t b = 0; b < blocks; b++, src += BLOCK, dst += 210) {
        quieten(x, src);
        float most = 0.0f, extreme = 0.0f;
        fit_block_6(&f, x, importance ? importance + b * BLOCK : NULL, how);
        for (unsigned s = 0; s < LANES; s++)
            if (fabsf(f.scale[s]) > most) {
                most = fabsf(f.scale[s]);
                extreme = f.scale[s];
            }
        if (most < FMS_FIT_TINY) {
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
                                            : fms_clamp(fms_nearest(x[s * LEN + e] / d), -32, 31);
                code[s * LEN + e] = (uint8_t)(c + 32);
            }
        }
        pack6(dst, code);
    }
}

/* ==== dispatch ============================================================================== */

FMS_INLINE void run(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                    const float *importance, fm_quant_variant how)
{
    if (type == FM_Q4_K)
        q45_k(dst, src, blocks, importance, false, how);
    else if (type == FM_Q5_K)
        q45_k(dst, src, blocks, importance, true, how);
    else
        q6_k(dst, src, blocks, importance, how);
}

/* The variant as a constant in each copy of the code. */
FMS_INLINE void run_variant(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                            fm_quant_variant how)
{
    if (how == FM_QUANT_PLAIN)
        run(dst, type, src, blocks, NULL, FM_QUANT_PLAIN);
    else if (how == FM_QUANT_CLANG)
        run(dst, type, src, blocks, NULL, FM_QUANT_CLANG);
    else
        run(dst, type, src, blocks, NULL, FM_QUANT_GCC);
}

void fms_quantize_k_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                         fm_quant_variant how)
{
    run_variant(dst, type, src, blocks, how);
}

void fms_weighted_k_base(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                         const float *importance)
{
    run(dst, type, src, elems / BLOCK, importance, FM_QUANT_PLAIN);
}

#ifdef FMS_QUANT_X86
FMS_TARGET_AVX2 static void run_avx2(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                                     fm_quant_variant how)
{
    run_variant(dst, type, src, blocks, how);
}

FMS_TARGET_AVX2 static void weighted_avx2(uint8_t *dst, fm_dtype type, const float *src,
                                          uint64_t elems, const float *importance)
{
    run(dst, type, src, elems / BLOCK, importance, FM_QUANT_PLAIN);
}
#endif

void fms_quantize_k(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                    fm_quant_variant how)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        run_avx2(dst, type, src, blocks, how);
        return;
    }
#endif
    fms_quantize_k_base(dst, type, src, blocks, how);
}

void fms_weighted_k(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                    const float *importance)
{
#ifdef FMS_QUANT_X86
    if (fms_has_avx2()) {
        weighted_avx2(dst, type, src, elems, importance);
        return;
    }
#endif
    fms_weighted_k_base(dst, type, src, elems, importance);
}
