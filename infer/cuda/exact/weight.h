/* weight.h - a matrix on the GPU: the stored bytes, and their exact widening.
 *
 * Layout "panels of 32 rows": rows are split over panels of 32, the last one filled up with zeros.
 * A panel is a run of records, one for each block of its type (16 elements for types without
 * blocks, a row's end filled up with zeros), so one panel's range of k is one run of bytes. In a
 * record the bytes of a block are cut into fields, those of 16 bytes first, then of 4, then of 2;
 * field by field the 32 rows are adjacent. So a warp whose lanes are rows reads a field as 512, 128
 * or 64 contiguous bytes, aligned to the field's size, and no byte is stored twice or widened.
 *
 * | type | fields of a row's block, in order |
 * | F32, BF16, F16, F8 | elements 0.. in 4, 2, 2, 1 times 16 bytes |
 * | Q8_0 | 2 x 16 quants; scale |
 * | Q4_0, IQ4_NL; Q4_1 | 16 quants; scale; (4 bytes) scale and minimum |
 * | Q5_0; Q5_1 | 16 quants, 4 of fifth bits; scale; (scale and minimum before the bits) |
 * | Q4_K, Q5_K | as stored: the scales' 16 bytes, (fifth bits,) quants |
 * | Q6_K | as stored: quants, bit pairs, scales; the super-scale's 2 bytes |
 *
 * Widening follows store/quant/dequant*.c and store/tensor/float16.c operation for operation; small
 * integers become floats by adding 2^23, which is exact and as fast as an addition. */
#ifndef FM_INFER_CUDA_WEIGHT_H
#define FM_INFER_CUDA_WEIGHT_H

#include <string.h>

#include "infer/cuda/cuda.h"

#define FMC_PANEL 32u
#define FMC_BOTH static __host__ __device__ __forceinline__

/* The matrix as kernels get it. */
typedef struct fmc_matrix {
    const unsigned char *image;
    size_t panel_bytes;
    uint32_t dtype, n, k;
    uint32_t record_bytes, elems_log2; /* of a record: FMC_PANEL rows of 2^elems_log2 elements */
} fmc_matrix;

typedef struct fmc_exact_weight {
    fm_role role;
    fmc_matrix m;     /* role LINEAR */
    float *floats;    /* roles LORA_*: [n, k] */
    void *bytes;      /* m's image or floats, on the GPU */
    uint64_t n_bytes; /* size of bytes */
} fmc_exact_weight;
/* The object behind backend.h's handle. */
static inline fmc_exact_weight *fmc_exact_weight_of(const fm_weight *w)
{
    return (fmc_exact_weight *)(void *)w;
}

/* Blocks of a type: elements, bytes. */
template <int T> struct fmc_block {
    enum {
        elems_log2 = 4,
        elems = 16,
        bytes = T == FM_F32                   ? 64
                : T == FM_BF16 || T == FM_F16 ? 32
                                              : 16
    };
};
#define FMC_BLOCK(type, log2, size)                                                                \
    template <> struct fmc_block<type> {                                                           \
        enum { elems_log2 = log2, elems = 1 << log2, bytes = size };                               \
    }
FMC_BLOCK(FM_Q8_0, 5, 34);
FMC_BLOCK(FM_Q4_0, 5, 18);
FMC_BLOCK(FM_Q4_1, 5, 20);
FMC_BLOCK(FM_Q5_0, 5, 22);
FMC_BLOCK(FM_Q5_1, 5, 24);
FMC_BLOCK(FM_IQ4_NL, 5, 18);
FMC_BLOCK(FM_Q4_K, 8, 144);
FMC_BLOCK(FM_Q5_K, 8, 176);
FMC_BLOCK(FM_Q6_K, 8, 210);

/* Every type that widens, X(type). */
#define FMC_TYPES(X)                                                                               \
    X(FM_F32)                                                                                      \
    X(FM_BF16)                                                                                     \
    X(FM_F16)                                                                                      \
    X(FM_F8_E4M3)                                                                                  \
    X(FM_F8_E5M2)                                                                                  \
    X(FM_Q8_0)                                                                                     \
    X(FM_Q4_0)                                                                                     \
    X(FM_Q4_1)                                                                                     \
    X(FM_Q5_0)                                                                                     \
    X(FM_Q5_1)                                                                                     \
    X(FM_Q4_K)                                                                                     \
    X(FM_Q5_K)                                                                                     \
    X(FM_Q6_K)                                                                                     \
    X(FM_IQ4_NL)

/* ---- pieces ---- */

FMC_BOTH float fmc_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Byte i of w as a float, minus offset (2^23 + offset is exact). */
FMC_BOTH float fmc_byte(uint32_t w, int i, float offset)
{
    return fmc_as_float(0x4b000000u | (w >> (8 * i) & 255u)) - (8388608.0f + offset);
}

FMC_BOTH float fmc_half(uint32_t h)
{
    uint32_t u = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    float f = fmc_as_float(u) * 0x1p112f; /* exact for subnormals too */
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return fmc_as_float(((h & 0x7c00u) == 0x7c00u ? u | 0x7f800000u : bits) | sign);
}

FMC_BOTH float fmc_e4m3(uint32_t v)
{
    float f = fmc_as_float((v & 0x7fu) << 20) * 0x1p120f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return fmc_as_float(((v & 0x7fu) == 0x7fu ? 0x7fc00000u : bits) | (v & 0x80u) << 24);
}

/* Eight bytes of field `chunk` of row j: at 0 or 8. */
FMC_BOTH uint2 fmc_eight(const unsigned char *rec, uint32_t chunk, uint32_t j, uint32_t at)
{
    return *(const uint2 *)(const void *)(rec + (chunk * FMC_PANEL + j) * 16 + at);
}
FMC_BOTH uint4 fmc_sixteen(const unsigned char *rec, uint32_t chunk, uint32_t j)
{
    return *(const uint4 *)(const void *)(rec + (chunk * FMC_PANEL + j) * 16);
}
/* The field of 4 or 2 bytes that begins after `before` bytes of a block. */
FMC_BOTH uint32_t fmc_four(const unsigned char *rec, uint32_t before, uint32_t j)
{
    return *(const uint32_t *)(const void *)(rec + before * FMC_PANEL + j * 4);
}
FMC_BOTH uint32_t fmc_two(const unsigned char *rec, uint32_t before, uint32_t j)
{
    return *(const uint16_t *)(const void *)(rec + before * FMC_PANEL + j * 2);
}

/* Nibbles of eight bytes, the high ones or the low ones. */
FMC_BOTH uint2 fmc_nibbles(uint2 q, bool high)
{
    unsigned by = high ? 4 : 0;
    return make_uint2(q.x >> by & 0x0f0f0f0fu, q.y >> by & 0x0f0f0f0fu);
}
/* Bits 0..7 of b as the fifth bits of eight bytes. */
FMC_BOTH uint2 fmc_fifth(uint2 q, uint32_t b)
{
    for (int i = 0; i < 4; i++) {
        q.x |= (b >> i & 1u) << (8 * i + 4);
        q.y |= (b >> (i + 4) & 1u) << (8 * i + 4);
    }
    return q;
}

FMC_BOTH void fmc_times(float out[8], uint2 q, float offset, float d)
{
    for (int i = 0; i < 4; i++) {
        out[i] = fmc_byte(q.x, i, offset) * d;
        out[i + 4] = fmc_byte(q.y, i, offset) * d;
    }
}
FMC_BOTH void fmc_times_plus(float out[8], uint2 q, float d, float plus)
{
    for (int i = 0; i < 4; i++) {
        out[i] = fmc_byte(q.x, i, 0.0f) * d + plus;
        out[i + 4] = fmc_byte(q.y, i, 0.0f) * d + plus;
    }
}

/* Scale and minimum of sub-block s of 8, from a block's first 16 bytes. */
FMC_BOTH void fmc_scale_min(float *scale, float *min, uint4 head, uint32_t s)
{
    uint32_t by = 8 * (s & 3u);
    uint32_t a = head.y >> by & 255u, b = head.z >> by & 255u, c = head.w >> by & 255u;
    uint32_t sc = s < 4 ? a & 63u : (c & 15u) | (a >> 6) << 4;
    uint32_t mn = s < 4 ? b & 63u : c >> 4 | (b >> 6) << 4;
    *scale = fmc_half(head.x & 0xffffu) * fmc_byte(sc, 0, 0.0f);
    *min = fmc_half(head.x >> 16) * fmc_byte(mn, 0, 0.0f);
}

/* One of IQ4_NL's sixteen values. */
FMC_BOTH float fmc_nonlinear(uint32_t i)
{
    /* -127 -104 -83 -65 -49 -35 -22 -10, 1 13 25 38 53 69 89 113; each plus 128 */
    uint64_t eight = i & 8u ? 0xf1d9c5b5a6998d81ull : 0x766a5d4f3f2d1801ull;
    return fmc_byte((uint32_t)(eight >> (8 * (i & 7u))), 0, 128.0f);
}

/* ---- eight elements ---- */

template <int T> struct fmc_widen_small;
template <int T> struct fmc_widen_k;

/* Elements e .. e + 7 (e a multiple of 8) of row j of a record. */
template <int T>
FMC_BOTH void fmc_widen8(float out[8], const unsigned char *rec, uint32_t j, uint32_t e)
{
    if (T == FM_F32) {
        uint4 a = fmc_sixteen(rec, e / 4, j), b = fmc_sixteen(rec, e / 4 + 1, j);
        const uint32_t u[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        for (int i = 0; i < 8; i++)
            out[i] = fmc_as_float(u[i]);
    } else if (T == FM_BF16 || T == FM_F16) {
        uint4 a = fmc_sixteen(rec, e / 8, j);
        const uint32_t u[4] = {a.x, a.y, a.z, a.w};
        for (int i = 0; i < 4; i++) {
            out[2 * i] = T == FM_BF16 ? fmc_as_float(u[i] << 16) : fmc_half(u[i] & 0xffffu);
            out[2 * i + 1] = T == FM_BF16 ? fmc_as_float(u[i] & 0xffff0000u) : fmc_half(u[i] >> 16);
        }
    } else if (T == FM_F8_E4M3 || T == FM_F8_E5M2) {
        uint2 a = fmc_eight(rec, 0, j, e);
        for (int i = 0; i < 8; i++) {
            uint32_t v = (i < 4 ? a.x : a.y) >> (8 * (i & 3)) & 255u;
            out[i] = T == FM_F8_E4M3 ? fmc_e4m3(v) : fmc_half(v << 8);
        }
    } else if (T == FM_Q8_0) {
        uint2 q = fmc_eight(rec, e / 16, j, e % 16);
        fmc_times(out, make_uint2(q.x ^ 0x80808080u, q.y ^ 0x80808080u), 128.0f,
                  fmc_half(fmc_two(rec, 32, j)));
    } else if (fmc_block<T>::elems == 32) {
        fmc_widen_small<T>::eight(out, rec, j, e,
                                  fmc_nibbles(fmc_eight(rec, 0, j, e % 16), e >= 16));
    } else {
        fmc_widen_k<T>::eight(out, rec, j, e);
    }
}

/* Blocks of 32 with 16 bytes of nibbles q. */
template <int T> struct fmc_widen_small {
    FMC_BOTH void eight(float out[8], const unsigned char *rec, uint32_t j, uint32_t e, uint2 q)
    {
        if (T == FM_Q4_0) {
            fmc_times(out, q, 8.0f, fmc_half(fmc_two(rec, 16, j)));
        } else if (T == FM_IQ4_NL) {
            float d = fmc_half(fmc_two(rec, 16, j));
            for (int i = 0; i < 4; i++) {
                out[i] = d * fmc_nonlinear(q.x >> (8 * i) & 15u);
                out[i + 4] = d * fmc_nonlinear(q.y >> (8 * i) & 15u);
            }
        } else if (T == FM_Q5_0) {
            fmc_times(out, fmc_fifth(q, fmc_four(rec, 16, j) >> e), 16.0f,
                      fmc_half(fmc_two(rec, 20, j)));
        } else {
            uint32_t dm = fmc_four(rec, 16, j);
            if (T == FM_Q5_1)
                q = fmc_fifth(q, fmc_four(rec, 20, j) >> e);
            fmc_times_plus(out, q, fmc_half(dm & 0xffffu), fmc_half(dm >> 16));
        }
    }
};

/* Blocks of 256. */
template <int T> struct fmc_widen_k {
    FMC_BOTH void eight(float out[8], const unsigned char *rec, uint32_t j, uint32_t e)
    {
        uint32_t s = e / 32, i = e % 32, first = T == FM_Q4_K ? 1 : 3;
        float scale, min;
        uint2 q = fmc_nibbles(fmc_eight(rec, first + s / 2 * 2 + i / 16, j, i % 16), s % 2);
        if (T == FM_Q5_K) {
            uint2 h = fmc_eight(rec, 1 + i / 16, j, i % 16);
            q.x |= (h.x >> s & 0x01010101u) << 4;
            q.y |= (h.y >> s & 0x01010101u) << 4;
        }
        fmc_scale_min(&scale, &min, fmc_sixteen(rec, 0, j), s);
        for (int b = 0; b < 4; b++) {
            out[b] = scale * fmc_byte(q.x, b, 0.0f) - min;
            out[b + 4] = scale * fmc_byte(q.y, b, 0.0f) - min;
        }
    }
};
template <> struct fmc_widen_k<FM_Q6_K> {
    FMC_BOTH void eight(float out[8], const unsigned char *rec, uint32_t j, uint32_t e)
    {
        uint32_t half = e / 128, quarter = e % 128 / 32, i = e % 32;
        uint2 q = fmc_nibbles(fmc_eight(rec, half * 4 + quarter % 2 * 2 + i / 16, j, i % 16),
                              quarter >= 2);
        uint2 h = fmc_eight(rec, 8 + half * 2 + i / 16, j, i % 16);
        q.x |= (h.x >> (2 * quarter) & 0x03030303u) << 4;
        q.y |= (h.y >> (2 * quarter) & 0x03030303u) << 4;
        uint32_t scale = rec[(12 * FMC_PANEL + j) * 16 + e / 16] ^ 0x80u;
        float d = fmc_half(fmc_two(rec, 208, j)) * fmc_byte(scale, 0, 128.0f);
        fmc_times(out, q, 32.0f, d);
    }
};

/* The same for a type that is known only at run time. */
FMC_BOTH void fmc_widen8_of(float out[8], uint32_t dtype, const unsigned char *rec, uint32_t j,
                            uint32_t e)
{
    switch (dtype) {
#define FMC_CASE(type)                                                                             \
    case type:                                                                                     \
        fmc_widen8<type>(out, rec, j, e);                                                          \
        break;
        FMC_TYPES(FMC_CASE)
#undef FMC_CASE
    default:
        break;
    }
}

/* Elements k .. k + 7 of a row of w, k a multiple of 8 below w->k; zeros beyond the row's end. */
FMC_BOTH void fmc_row8(float out[8], const fmc_matrix *w, uint32_t row, uint32_t k)
{
    const unsigned char *rec = w->image + (size_t)(row / FMC_PANEL) * w->panel_bytes +
                               (size_t)(k >> w->elems_log2) * w->record_bytes;
    fmc_widen8_of(out, w->dtype, rec, row % FMC_PANEL, k & ((1u << w->elems_log2) - 1u));
}

#endif
