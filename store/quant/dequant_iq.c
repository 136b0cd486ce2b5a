/* dequant_iq.c - GGUF's "IQ" block types of 256 elements to float32.
 *
 * Groups of 8 elements (of 4 in IQ3) are numbers of entries in a fixed grid, of magnitudes whose
 * signs are stored apart (IQ2, IQ3) or of -1, 0 and 1 (IQ1). Products and sums follow gguf-py's
 * order, each rounded to float32. Multi-byte fields are little-endian. */
#include "store/quant/dequant.h"

#define BLOCK 256u
#define GROUPS 32u /* of 8 elements */

static float half_at(const uint8_t *p)
{
    return fm_f16_to_f32(fm_get_u16(p));
}

/* Eight signs, bit i of element i, of which the last makes their number even. */
static unsigned even_signs(unsigned low7)
{
    unsigned odd = low7 ^ low7 >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return low7 | (odd & 1u) << 7;
}

static unsigned nibble(const uint8_t *p, unsigned i)
{
    return (unsigned)p[i / 2] >> (i % 2 * 4) & 15u;
}

/* ---- IQ2: 8, 25 or 43 times a scale of 16 or 32 elements ---- */

static void put_iq2(float *dst, uint16_t entry, float scale, unsigned signs)
{
    static const float value[4] = {8, 25, 43, 0};
    for (unsigned i = 0; i < 8; i++) {
        const float x = scale * value[(unsigned)entry >> 2 * i & 3u];
        dst[i] = signs >> i & 1u ? -x : x;
    }
}

static float iq2_scale(float d, unsigned s)
{
    return d * (0.5f + (float)s) * 0.25f;
}

void fm_dequant_iq2_xxs(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 66, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned g = 0; g < GROUPS; g++) {
            const uint8_t *q = src + 2 + g / 4 * 8; /* 4 entries, then signs and the scale */
            const uint32_t s = fm_get_u32(q + 4);
            put_iq2(dst + 8 * g, fms_grid_iq2_xxs[q[g % 4]], iq2_scale(d, s >> 28),
                    even_signs(s >> 7 * (g % 4) & 127u));
        }
    }
}

void fm_dequant_iq2_xs(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 74, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned g = 0; g < GROUPS; g++) {
            const unsigned q = fm_get_u16(src + 2 + 2 * g);
            put_iq2(dst + 8 * g, fms_grid_iq2_xs[q & 511u], iq2_scale(d, nibble(src + 66, g / 2)),
                    even_signs(q >> 9));
        }
    }
}

void fm_dequant_iq2_s(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 82, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned g = 0; g < GROUPS; g++) {
            const unsigned high = (unsigned)src[66 + g / 4] >> g % 4 * 2 & 3u;
            put_iq2(dst + 8 * g, fms_grid_iq2_s[src[2 + g] | high << 8],
                    iq2_scale(d, nibble(src + 74, g / 2)), src[34 + g]);
        }
    }
}

/* ---- IQ3: eight magnitudes times a scale of 32 elements ---- */

static void put_iq3(float *dst, uint16_t entry, const float value[8], float scale, unsigned signs)
{
    for (unsigned i = 0; i < 4; i++) {
        const float x = scale * value[(unsigned)entry >> 4 * i & 7u];
        dst[i] = signs >> i & 1u ? -x : x;
    }
}

void fm_dequant_iq3_xxs(float *dst, const uint8_t *src, uint64_t blocks)
{
    static const float value[8] = {4, 12, 20, 28, 36, 44, 52, 62};

    for (uint64_t b = 0; b < blocks; b++, src += 98, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned g = 0; g < GROUPS; g++) {
            const uint32_t s = fm_get_u32(src + 66 + g / 4 * 4);
            const float scale = d * (0.5f + (float)(s >> 28)) * 0.5f;
            const unsigned signs = even_signs(s >> 7 * (g % 4) & 127u);
            const uint8_t *q = src + 2 + 2 * g;
            put_iq3(dst + 8 * g, fms_grid_iq3_xxs[q[0]], value, scale, signs);
            put_iq3(dst + 8 * g + 4, fms_grid_iq3_xxs[q[1]], value, scale, signs >> 4);
        }
    }
}

void fm_dequant_iq3_s(float *dst, const uint8_t *src, uint64_t blocks)
{
    static const float value[8] = {1, 3, 5, 7, 9, 11, 13, 15};

    for (uint64_t b = 0; b < blocks; b++, src += 110, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned h = 0; h < 2 * GROUPS; h++) {
            const unsigned ninth = (unsigned)src[66 + h / 8] >> h % 8 & 1u;
            const float scale = d * (float)(1 + 2 * nibble(src + 106, h / 8));
            put_iq3(dst + 4 * h, fms_grid_iq3_s[src[2 + h] | ninth << 8], value, scale,
                    (unsigned)src[74 + h / 2] >> h % 2 * 4);
        }
    }
}

/* ---- IQ1: -1, 0 or 1, moved by an eighth, times an odd multiple of d ---- */

static void put_iq1(float *dst, uint16_t entry, float scale, bool down)
{
    const float delta = down ? -0.125f : 0.125f;
    for (unsigned i = 0; i < 8; i++)
        dst[i] = scale * ((float)(int)((unsigned)entry >> 2 * i & 3u) - 1.0f + delta);
}

void fm_dequant_iq1_s(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 50, dst += BLOCK) {
        const float d = half_at(src);
        for (unsigned g = 0; g < GROUPS; g++) {
            const unsigned h = fm_get_u16(src + 34 + g / 4 * 2);
            const unsigned entry = src[2 + g] | (h >> g % 4 * 3 & 7u) << 8;
            put_iq1(dst + 8 * g, fms_grid_iq1[entry], d * (float)(2 * (h >> 12 & 7u) + 1),
                    h >> 15 != 0);
        }
    }
}

/* The float16 scale is in the high nibbles of four words whose other bits are the scales of 16. */
void fm_dequant_iq1_m(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 56, dst += BLOCK) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 4; i++)
            bits |= (unsigned)(fm_get_u16(src + 48 + 2 * i) >> 12) << 4 * i;
        const float d = fm_f16_to_f32((uint16_t)bits);
        for (unsigned g = 0; g < GROUPS; g++) {
            const unsigned h = nibble(src + 32, g);
            const unsigned s = (unsigned)fm_get_u16(src + 48 + g / 8 * 2) >> g / 2 % 4 * 3 & 7u;
            put_iq1(dst + 8 * g, fms_grid_iq1[src[g] | (h & 7u) << 8], d * (float)(2 * s + 1),
                    h >> 3 != 0);
        }
    }
}

/* ---- IQ4 ---- */

void fm_dequant_iq4_xs(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 136, dst += BLOCK) {
        const float d = half_at(src);
        const unsigned high = fm_get_u16(src + 2);
        for (unsigned j = 0; j < 8; j++) {
            const int s = (int)(nibble(src + 4, j) | (high >> 2 * j & 3u) << 4) - 32;
            fms_put_iq4(dst + 32 * j, src + 8 + 16 * j, d * (float)s);
        }
    }
}
