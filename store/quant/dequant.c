/* dequant.c - GGUF's 32-element block types to float32.
 *
 * Every product and sum is one IEEE operation in the order of ggml's reference code, unfused, so
 * the floats are those that every other program gets. Scales are float16. In the 4- and 5-bit types
 * byte i holds element i in its low nibble and element i + 16 in its high one. */
#include "store/quant/dequant.h"

#define BLOCK 32u
#define HALF 16u

static float scale_at(const uint8_t *p)
{
    return fm_f16_to_f32(fm_get_u16(p));
}

void fm_dequant_q8_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 34, dst += BLOCK) {
        const float d = scale_at(src);
        for (unsigned i = 0; i < BLOCK; i++)
            dst[i] = (float)(int8_t)src[2 + i] * d;
    }
}

void fm_dequant_q4_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 18, dst += BLOCK) {
        const float d = scale_at(src);
        for (unsigned i = 0; i < HALF; i++) {
            dst[i] = (float)((src[2 + i] & 15) - 8) * d;
            dst[i + HALF] = (float)((src[2 + i] >> 4) - 8) * d;
        }
    }
}

void fm_dequant_q4_1(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 20, dst += BLOCK) {
        const float d = scale_at(src), m = scale_at(src + 2);
        for (unsigned i = 0; i < HALF; i++) {
            dst[i] = (float)(src[4 + i] & 15) * d + m;
            dst[i + HALF] = (float)(src[4 + i] >> 4) * d + m;
        }
    }
}

/* `high` holds the fifth bits of all 32 elements; bit i belongs to element i. */
static unsigned fifth_bit(uint32_t high, unsigned i)
{
    return (unsigned)(high >> i & 1u) << 4;
}

void fm_dequant_q5_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 22, dst += BLOCK) {
        const float d = scale_at(src);
        const uint32_t high = fm_get_u32(src + 2);
        for (unsigned i = 0; i < HALF; i++) {
            const unsigned lo = (src[6 + i] & 15u) | fifth_bit(high, i);
            const unsigned hi = (unsigned)(src[6 + i] >> 4) | fifth_bit(high, i + HALF);
            dst[i] = (float)((int)lo - 16) * d;
            dst[i + HALF] = (float)((int)hi - 16) * d;
        }
    }
}

void fm_dequant_q5_1(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 24, dst += BLOCK) {
        const float d = scale_at(src), m = scale_at(src + 2);
        const uint32_t high = fm_get_u32(src + 4);
        for (unsigned i = 0; i < HALF; i++) {
            const unsigned lo = (src[8 + i] & 15u) | fifth_bit(high, i);
            const unsigned hi = (unsigned)(src[8 + i] >> 4) | fifth_bit(high, i + HALF);
            dst[i] = (float)lo * d + m;
            dst[i + HALF] = (float)hi * d + m;
        }
    }
}

void fms_put_iq4(float *dst, const uint8_t *q, float d)
{
    static const int8_t value[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

    for (unsigned i = 0; i < HALF; i++) {
        dst[i] = d * (float)value[q[i] & 15];
        dst[i + HALF] = d * (float)value[q[i] >> 4];
    }
}

void fm_dequant_iq4_nl(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 18, dst += BLOCK)
        fms_put_iq4(dst, src + 2, scale_at(src));
}
