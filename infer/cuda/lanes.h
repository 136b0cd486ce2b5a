/* lanes.h - the arithmetic of mode exact on a GPU: the same bits as infer/cpu/kern/vec.h gives.
 *
 * A reduction runs over FM_LANES = 16 lanes (element i in lane i % 16, ascending) and folds them by
 * halves. Here a lane is a thread of a half warp: both halves of a warp work on rows of their own.
 * The functions are vec.h's, operation for operation; tests/kernel compares bits. */
#ifndef FM_INFER_CUDA_LANES_H
#define FM_INFER_CUDA_LANES_H

#include "infer/act.h"
#include "infer/cuda/device.h"

#define FMC_LANES 16u

/* a > b ? a : b, and likewise the smaller; the second operand where either is NaN. */
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

/* vf_tanh */
FMC_DEVICE float fmc_tanh(float x)
{
    float neg = 0.0f - x, size = fmc_max(x, neg), z = x * x;
    float p = -5.70498872745e-3f;
    p = fmaf(p, z, 2.06390887954e-2f);
    p = fmaf(p, z, -5.37397155531e-2f);
    p = fmaf(p, z, 1.33314422036e-1f);
    p = fmaf(p, z, -3.33332819422e-1f);
    p = fmaf(p * z, x, x);
    float big = 1.0f - 2.0f / (fmc_exp(size + size) + 1.0f);
    big = x > 0.0f ? big : 0.0f - big;
    return size > 0.625f ? big : p;
}

/* vf_normal_tail */
FMC_DEVICE float fmc_normal_tail(float x)
{
    float size = fmc_min(14.5f, fmc_max(x, 0.0f - x)), s = 1.0f / fmaf(size, 0.3f, 1.0f);
    float p = -0x1.51e51a0000000p-6f;
    p = fmaf(p, s, 0x1.cc894a0000000p-4f);
    p = fmaf(p, s, -0x1.d361a80000000p-3f);
    p = fmaf(p, s, 0x1.88c6540000000p-3f);
    p = fmaf(p, s, -0x1.4551920000000p-4f);
    p = fmaf(p, s, 0x1.89dbc00000000p-4f);
    p = fmaf(p, s, 0x1.4115820000000p-4f);
    p = fmaf(p, s, 0x1.c386380000000p-4f);
    p = fmaf(p, s, 0x1.e9c4220000000p-4f);
    p = fmaf(p, s, 0x1.ea3c980000000p-4f);
    float sq = size * size, low = fmaf(size, size, 0.0f - sq);
    float e = fmc_exp(sq * -0.5f);
    e = fmaf(e * -0.5f, low, e);
    return e * (p * s);
}

/* act_of of cpu/kern/act.h */
FMC_DEVICE float fmc_act(fm_act f, float x)
{
    if (f == FM_ACT_GELU) {
        float tail = fmc_normal_tail(x);
        return x * (x > 0.0f ? 1.0f - tail : tail);
    }
    if (f == FM_ACT_RELU || f == FM_ACT_RELU2) {
        float y = fmc_max(0.0f, x); /* keeps NaN */
        return f == FM_ACT_RELU ? y : y * y;
    }
    if (f == FM_ACT_SIGMOID)
        return fmc_sigmoid(x);
    float u = x;
    if (f == FM_ACT_GELU_TANH)
        u = fmaf((x * x) * x, 0.044715f, x) * 1.5957691216057308f;
    if (f == FM_ACT_CLAMPED) {
        x = fmc_min(FM_ACT_LIMIT, x);
        u = x * FM_ACT_ALPHA;
    }
    return x * fmc_sigmoid(u);
}

/* act_factor of cpu/kern/act.h */
FMC_DEVICE float fmc_act_factor(fm_act f, float up)
{
    if (f != FM_ACT_CLAMPED)
        return up;
    return fmc_max(-FM_ACT_LIMIT, fmc_min(FM_ACT_LIMIT, up)) + 1.0f;
}

/* f(x) and f'(x): slope_of of cpu/kern/grads.h */
struct fmc_slope {
    float y, slope;
};
FMC_DEVICE fmc_slope fmc_act_slope(fm_act f, float x)
{
    if (f == FM_ACT_RELU)
        return fmc_slope{fmc_max(0.0f, x), x > 0.0f ? 1.0f : 0.0f};
    if (f == FM_ACT_RELU2) {
        float y = fmc_max(0.0f, x);
        return fmc_slope{y * y, y + y};
    }
    if (f == FM_ACT_CLAMPED) {
        float g = fmc_min(FM_ACT_LIMIT, x), u = g * FM_ACT_ALPHA, s = fmc_sigmoid(u);
        return fmc_slope{g * s, x > FM_ACT_LIMIT ? 0.0f : s * fmaf(u, 1.0f - s, 1.0f)};
    }
    if (f == FM_ACT_SIGMOID) {
        float y = fmc_sigmoid(x);
        return fmc_slope{y, y * (1.0f - y)};
    }
    float sq = fmc_min(400.0f, x * x), near = sq > 399.0f ? 0.0f : x;
    if (f == FM_ACT_GELU) {
        float tail = fmc_normal_tail(x), share = x > 0.0f ? 1.0f - tail : tail;
        float density = fmc_exp(sq * -0.5f) * 0.3989422804014327f;
        return fmc_slope{x * share, fmaf(near, density, share)};
    }
    if (f == FM_ACT_GELU_TANH) {
        float s = fmc_sigmoid(fmaf((x * x) * x, 0.044715f, x) * 1.5957691216057308f);
        float du = fmaf(sq, 3.0f * 0.044715f, 1.0f) * 1.5957691216057308f;
        return fmc_slope{x * s, fmaf(near * du, s * (1.0f - s), s)};
    }
    float s = fmc_sigmoid(x);
    return fmc_slope{x * s, s * fmaf(x, 1.0f - s, 1.0f)};
}

/* Sum over the 16 lanes of this half warp, returned in each lane: lane l += lane l + 8, then 4, 2,
 * 1. mask: the calling lanes, a half warp or both halves together. */
template <class T> FMC_DEVICE T fmc_fold_add_of(unsigned mask, T v)
{
    for (unsigned by = 8; by > 0; by /= 2)
        v = v + __shfl_down_sync(mask, v, by, 16);
    return __shfl_sync(mask, v, 0, 16);
}
template <class T> FMC_DEVICE T fmc_fold_add(T v)
{
    return fmc_fold_add_of(0xffffu << (threadIdx.x & 16u), v);
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
