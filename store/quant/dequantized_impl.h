/* dequantized_impl.h - solvers of one block, shared by dequantized.c and dequantized_k.c; inside
 * store only. */
#ifndef FM_STORE_DEQUANTIZED_IMPL_H
#define FM_STORE_DEQUANTIZED_IMPL_H

#include <math.h>
#include <string.h>

#include "store/quant/dequantized.h"

/* Find a block whose dequantization is y (256 finite floats), bit for bit; false: none found. */
bool fms_solve_q4_k(uint8_t *block, const float *y);
bool fms_solve_q5_k(uint8_t *block, const float *y);
bool fms_solve_q6_k(uint8_t *block, const float *y);

static inline uint32_t fms_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline bool fms_same_float(float a, float b)
{
    return fms_float_bits(a) == fms_float_bits(b);
}

/* Whether v is a float16, neither zero nor infinite; *h gets its bits. */
static inline bool fms_is_half(float v, uint16_t *h)
{
    if ((fms_float_bits(v) & 0xfffu) != 0 || v == 0.0f)
        return false;
    *h = fm_f32_to_f16(v);
    return (*h & 0x7c00u) != 0x7c00u && fm_f16_to_f32(*h) == v;
}

static inline int fms_round_int(float v)
{
    return (int)(v < 0.0f ? v - 0.5f : v + 0.5f); /* |v| < 2^20 at the callers */
}

#endif
