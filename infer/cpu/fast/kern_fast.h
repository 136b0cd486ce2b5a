/* kern_fast.h - what one instruction set offers to mode fast: kernels on packed rows and panels.
 *
 * kern_fast.c is compiled once per instruction set and fills one fmi_fast_kern; fast.c chooses
 * among them, in one place. A panel is 16 outputs (block types) or up to 32 (bf16), with all their
 * k; KERNELS.md has the layouts ("Weights of mode fast"), which are the same for every instruction
 * set.
 *
 * Packed rows are stored in tiles. m rows have ceil(m / tile_rows) tiles, whose sizes differ by at
 * most one; a tile of r rows is
 *   int8: for each block of 32 k (Q2_K, Q3_K, Q6_K: 16): int32 quad[8 or 4][r] (four int8 each),
 *         float scale[r], and int32 start[r] = offset * sum of the block's int8, or where offset
 *         is 0 float sum[r] = scale * that sum
 *   bf16: for each pair of k: uint32 pair[r] (the even k in the low half)
 *   f16: for each k: float x[r] (only the weight is float16) */
#ifndef FM_INFER_CPU_KERN_FAST_H
#define FM_INFER_CPU_KERN_FAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FMI_BLOCK 32u   /* k of one scale */
#define FMI_OUTPUTS 16u /* outputs of a panel of block types */
#define FMI_WIDE 32u    /* outputs of a panel of bf16 or f16; the last has 16 if enough */
#define FMI_ROW_BLOCK_BYTES(quads) (4u * (quads) + 8u) /* of a row in a packed int8 block */

/* The form of a panel's blocks. UNPACKED: eight lines of 64 unsigned bytes a block, 16 f32 scales,
 * and with _MIN 16 f32 minima after them; _16: four lines and 16 scales (and minima) for every
 * 16 k. unpack makes these forms of every block type; a product of many rows is faster in them. */
typedef enum fmi_fast_block {
    FMI_UNPACKED,
    FMI_UNPACKED_MIN,
    FMI_UNPACKED_16,
    FMI_UNPACKED_16_MIN,
    FMI_Q8_0,
    FMI_Q4_0,
    FMI_Q4_1,
    FMI_Q5_0,
    FMI_Q5_1,
    FMI_IQ4_NL,
    FMI_MXFP4,
    FMI_IQ4_XS,
    FMI_Q2_K,
    FMI_Q3_K,
    FMI_Q4_K,
    FMI_Q5_K,
    FMI_Q6_K,
} fmi_fast_block;

/* Receives the results of a block of rows: y[row, 0..n) (+ bias). */
typedef struct fmi_fast_out {
    float *y; /* the panel's first output of row number 0 */
    size_t ldy;
    const int32_t *rows; /* row numbers; NULL: first, first + 1, .. */
    uint32_t first;
    uint32_t n;        /* outputs of this panel that exist */
    const float *bias; /* of the panel's first output, or NULL */
    bool add;          /* y += instead of y =; bf16 only */
} fmi_fast_out;

typedef struct fmi_fast_kern {
    const char *isa;
    const char *kernel_class;
    uint32_t tile_int8, tile_bf16; /* rows of a register tile */

    /* Packs rows rows[i] (or first + i) of x, quantised by block of quads * 4: scale = amax / 127,
     * q = rne(x * (127 / amax)); a block with a non-finite element gets a scale of NaN, one with
     * amax < 2^-100 is 0. grain (by row number; NULL: none): scale 1 / grain, q = rne(x * grain). */
    void (*pack_int8)(void *dst, const float *x, size_t ldx, const int32_t *rows, uint32_t first,
                      uint32_t m, uint32_t blocks, uint32_t quads, int32_t offset,
                      const float *grain);
    /* Sums over the panel's blocks, ascending: s = fmaf(dot, w_scale * x_scale, s), then with
     * minima s = fmaf(w_min, x_sum, s). */
    void (*product_int8)(const fmi_fast_out *out, const void *packed, uint32_t m,
                         fmi_fast_block kind, const void *q, const void *scale, uint32_t blocks);
    /* Unpacks `blocks` blocks of 32 k of a panel. */
    void (*unpack)(void *q_out, float *scale_out, fmi_fast_block kind, const void *q,
                   const void *scale, uint32_t blocks);

    /* Rounded to nearest even; an odd k is padded with 0. rest: packs x - bf16(x) instead. */
    void (*pack_bf16)(void *dst, const float *x, size_t ldx, const int32_t *rows, uint32_t first,
                      uint32_t m, uint32_t k, bool rest);
    /* s = fmaf(x[k], w[k], s) over the pairs ascending, in a pair the odd k first. width: outputs
     * of the panel, 16 or 32. */
    void (*product_bf16)(const fmi_fast_out *out, const void *packed, uint32_t m, const void *panel,
                         uint32_t width, uint32_t pairs);

    void (*pack_f32)(void *dst, const float *x, size_t ldx, const int32_t *rows, uint32_t first,
                     uint32_t m, uint32_t k);
    /* Weights widened from float16; order and bits of mode exact: blocks of 512 k. */
    void (*product_f16)(const fmi_fast_out *out, const void *packed, uint32_t m, const void *panel,
                        uint32_t width, uint32_t k);

    /* ---- low-rank terms ---- */
    /* One row of x as bf16 [kp], zeros from k on. */
    void (*round_row)(uint16_t *dst, const float *x, uint32_t k, uint32_t kp);
    /* t[i, j] = x[i] . a[j], lanes of pairs folded by halves; kp a multiple of 32. Rows of t are r
     * apart. next: the operand that is read afterwards, prefetched; also in lora_up. */
    void (*lora_down)(float *t, const uint16_t *x, uint32_t m, const uint16_t *a, uint32_t r,
                      uint32_t kp, const void *next, size_t next_bytes);
    /* out.y[row, 0..n) += (t * scale) B^T for panels of 16 outputs; t [m, r] f32 is split into two
     * bf16. wide: scratch of 8 * (r + 1) * 4 bytes. */
    void (*lora_up)(const fmi_fast_out *out, const float *t, float scale, uint32_t m, const void *b,
                    uint32_t r, uint32_t *wide, const void *next, size_t next_bytes);

    const struct fmi_fast_attn_kern *attention; /* kern_fast_attention.h */
} fmi_fast_kern;

extern const fmi_fast_kern fmi_fast_kern_generic;
#if defined(__x86_64__)
extern const fmi_fast_kern fmi_fast_kern_avx2;
extern const fmi_fast_kern fmi_fast_kern_avx512;
extern const fmi_fast_kern fmi_fast_kern_avx512vnni;
extern const fmi_fast_kern fmi_fast_kern_avx512bf16;
#endif

#endif
