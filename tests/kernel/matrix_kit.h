/* matrix_kit.h - random weights of every stored type, with their exact values beside them. */
#ifndef FM_TESTS_MATRIX_KIT_H
#define FM_TESTS_MATRIX_KIT_H

#include "tests/kernel/kernel_kit.h"

typedef struct matrix {
    fm_dtype dtype;
    uint32_t n, k;
    uint8_t *bytes;
    float *f; /* widened */
} matrix;

static uint64_t stream_now; /* of the counter RNG: each array its own */

static inline double uniform(uint64_t i)
{
    return 2.0 * fm_rng_uniform(3, stream_now, i) - 1.0;
}

static inline float *random_floats(size_t n, double size)
{
    float *x = fm_malloc((n + 1) * sizeof *x);

    assert_non_null(x);
    stream_now++;
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(uniform(i) * size);
    return x;
}

/* Sets the float16 scales of a block, two at most, or MXFP4's exponent, to small values. */
static inline void put_scales(uint8_t *block, fm_dtype d, uint64_t seed)
{
    uint32_t at = 0, count = 1;

    if (d == FM_Q4_1 || d == FM_Q5_1 || d == FM_Q4_K || d == FM_Q5_K || d == FM_Q2_K)
        count = 2;
    if (d == FM_Q2_K)
        at = 80;
    if (d == FM_Q3_K)
        at = 108;
    if (d == FM_Q6_K)
        at = 208;
    if (d == FM_MXFP4) { /* now and then a subnormal scale */
        block[0] = (uint8_t)(seed % 32 == 2 ? seed / 32 % 2 : 118 + seed % 6);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint16_t h = fm_f32_to_f16((float)(0.02 * uniform(seed + i)));
        memcpy(block + at + 2 * i, &h, 2);
    }
}

static inline matrix random_matrix(fm_dtype d, uint32_t n, uint32_t k)
{
    const fm_dtype_info *info = fm_dtype_get(d);
    size_t blocks = (size_t)n * k / info->block_elems, bytes = blocks * info->block_bytes;
    matrix m = {d, n, k, fm_malloc(bytes + 1), random_floats((size_t)n * k, 0.5)};

    assert_non_null(m.bytes);
    assert_int_equal(k % info->block_elems, 0);
    stream_now++;
    if (d == FM_F32 || d == FM_BF16 || d == FM_F16) {
        tk_ok(fm_from_f32(m.bytes, d, m.f, (uint64_t)n * k));
    } else {
        for (size_t i = 0; i < bytes; i++)
            m.bytes[i] = (uint8_t)(fm_rng_uniform(5, stream_now, i) * 256.0);
        for (size_t i = 0; i < bytes && !info->is_block; i++)
            m.bytes[i] &= 0x9fu; /* small float8 values, no NaN */
        for (size_t i = 0; i < blocks && info->is_block; i++)
            put_scales(m.bytes + i * info->block_bytes, d, 2 * i);
    }
    tk_ok(fm_to_f32(m.f, d, m.bytes, (uint64_t)n * k));
    return m;
}

static inline void matrix_free(matrix *m)
{
    fm_free(m->bytes);
    fm_free(m->f);
}

static inline double dot(const float *a, const float *b, uint32_t k)
{
    double s = 0.0;

    for (uint32_t i = 0; i < k; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

#endif
