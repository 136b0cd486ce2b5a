/* train.h - kernels of training's products: one table for each instruction set, as kern.h.
 *
 * train.c is compiled once per instruction set and fills one table; cpu/exact/terms.c chooses among
 * them by the name of the exact kernels' one. */
#ifndef FM_INFER_CPU_KERN_TRAIN_H
#define FM_INFER_CPU_KERN_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FMI_THIN_COLUMNS 8u /* columns of b are readable up to the next multiple of this */

/* c[m, n] = (c +) alpha * a b over one block of k; neither matrix is packed. Element (i, k) of a
 * lies at a[i * lda + k], or if ta at a[k * lda + i]; (k, j) of b at b[k * ldb + j]. */
typedef struct fmi_thin {
    float *c;
    const float *a, *b;
    size_t ldc, lda, ldb;
    uint32_t m, n, k;
    float alpha;
    bool ta, add;
} fmi_thin;

typedef struct fmi_train_kern {
    const char *isa;
    /* Per element a chain of fmaf over ascending k from +0, times alpha, then added to c. */
    void (*thin)(const fmi_thin *t);
    void (*round)(uint16_t *dst, const float *src, size_t n); /* to bf16, to nearest even */
    /* dst[i * ld_dst + j] = bf16 of rows 2 i (low half) and 2 i + 1 of src [k, n], to nearest even;
     * an odd k is padded with 0. */
    void (*pairs)(uint32_t *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t n,
                  uint32_t k);
} fmi_train_kern;

extern const fmi_train_kern fmi_train_kern_generic;
#if defined(__x86_64__)
extern const fmi_train_kern fmi_train_kern_avx2;
extern const fmi_train_kern fmi_train_kern_avx512;
#elif defined(__aarch64__)
extern const fmi_train_kern fmi_train_kern_neon;
#endif

#endif
