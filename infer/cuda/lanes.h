/* lanes.h - the arithmetic of mode exact on a card: the same bits as infer/cpu/vec.h gives.
 *
 * A reduction runs over FM_LANES = 16 lanes (element i in lane i % 16, ascending) and folds them by
 * halves. Here a lane is a thread of a half warp: both halves of a warp work on rows of their own.
 * The functions are vec.h's, operation for operation; tests/kernel compares bits. */
#ifndef FM_INFER_CUDA_LANES_H
#define FM_INFER_CUDA_LANES_H

#include "infer/cuda/device.h"

#define FMC_LANES 16u

/* a > b ? a : b, and likewise: the second where either is NaN. */
FMC_DEVICE float fmc_max(float a, float b)
{
    return a > b ? a : b;
}
FMC_DEVICE float fmc_min(float a, float b)
{
    return a < b ? a : b;
}

/* 2^n of t = n + 1.5 * 2^23. */
FMC_DEVICE float fmc_pow2_biased(float t)
{
    return __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u);
}

/* vf_exp */
FMC_DEVICE float fmc_exp(float x)
{
    const float magic = 12582912.0f;
    x = fmc_min(89.0f, fmc_max(-104.0f, x));
    float n = fmaf(x, 1.44269504088896341f, magic) - magic;
    float r = fmaf(n, -0x1.62e43p-1f, x);
    r = fmaf(n, 0x1.05c610p-29f, r);
    float q = 1.9875691500e-4f;
    q = fmaf(q, r, 1.3981999507e-3f);
    q = fmaf(q, r, 8.3334519073e-3f);
    q = fmaf(q, r, 4.1665795894e-2f);
    q = fmaf(q, r, 1.6666665459e-1f);
    q = fmaf(q, r, 5.0000001201e-1f);
    q = fmaf(q, r * r, r) + 1.0f;
    float half = fmaf(n, 0.5f, magic);
    n = (n - (half - magic)) + magic;
    return (q * fmc_pow2_biased(half)) * fmc_pow2_biased(n);
}

/* vf_sigmoid */
FMC_DEVICE float fmc_sigmoid(float x)
{
    return 1.0f / (1.0f + fmc_exp(0.0f - x));
}

/* Sum over the 16 lanes of this half warp, in every lane of it: l += l + 8, 4, 2, 1. */
FMC_DEVICE float fmc_fold_add(float v)
{
    unsigned half = 0xffffu << (threadIdx.x & 16u);
    for (int by = 8; by > 0; by /= 2)
        v = v + __shfl_down_sync(half, v, by, 16);
    return __shfl_sync(half, v, 0, 16);
}
/* vf_fold_max: the first of equal values, so that -0 and NaN come out as there. */
FMC_DEVICE float fmc_fold_max(float v)
{
    unsigned half = 0xffffu << (threadIdx.x & 16u);
    float best = __shfl_sync(half, v, 0, 16);
    for (int i = 1; i < 16; i++) {
        float other = __shfl_sync(half, v, i, 16);
        best = other > best ? other : best;
    }
    return best;
}

#endif
