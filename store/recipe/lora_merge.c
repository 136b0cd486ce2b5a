/* lora_merge.c - W += scale * (B A), in the order of PEFT's float32 merge on a CPU.
 *
 * Per element: a chain of fused multiply-adds over ascending rank from zero, then one product with
 * scale, then one addition. Vectors run over the columns, so their width changes no bit. */
#include "store/source.h"

#include <math.h>

#define COLUMNS 64u

static inline __attribute__((always_inline)) void
merge_row(float *w, const float *a, const float *b, uint64_t in, uint64_t r, float scale)
{
    float sum[COLUMNS];

    for (uint64_t at = 0; at < in; at += COLUMNS) {
        const uint64_t n = FM_MIN(in - at, (uint64_t)COLUMNS);
        for (uint64_t j = 0; j < n; j++)
            sum[j] = 0.0f;
        for (uint64_t k = 0; k < r; k++) {
            const float bk = b[k];
            const float *ak = a + k * in + at;
            for (uint64_t j = 0; j < n; j++)
                sum[j] = fmaf(bk, ak[j], sum[j]);
        }
        for (uint64_t j = 0; j < n; j++) {
            const float delta = sum[j] * scale;
            w[at + j] += delta;
        }
    }
}

static void merge_plain(float *w, const float *a, const float *b, uint64_t out, uint64_t in,
                        uint64_t r, float scale)
{
    for (uint64_t o = 0; o < out; o++)
        merge_row(w + o * in, a, b + o * r, in, r, scale);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same code with the FMA instruction: without it fmaf is a call per element. */
__attribute__((target("avx2,fma"))) static void merge_fma(float *w, const float *a, const float *b,
                                                          uint64_t out, uint64_t in, uint64_t r,
                                                          float scale)
{
    for (uint64_t o = 0; o < out; o++)
        merge_row(w + o * in, a, b + o * r, in, r, scale);
}
#endif

void fm_lora_merge(float *w, const float *a, const float *b, uint64_t out, uint64_t in, uint64_t r,
                   float scale)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        merge_fma(w, a, b, out, in, r, scale);
        return;
    }
#endif
    merge_plain(w, a, b, out, in, r, scale);
}
