/* kern_fast_attention.h - attention of mode fast in one instruction set: kernels, no threads.
 *
 * kern_fast_attention.c is compiled once per instruction set and fills one table; fast.c chooses.
 * Of one key/value head a page holds
 *   keys    int16 [hd/2][32 positions][2], then f32 scale[32]: k = int16 * scale of the position
 *   values  bf16 [16 pairs of positions][hdv][2], hdv = hd rounded up to 16
 * and both take FMI_FA_HEAD_BYTES(hd) bytes. A key's int16 are as large as the norm allows: two
 * vectors of norm at most FMI_FA_NORM + sqrt(512) / 2 have a dot product, partial sums included,
 * below 2^31 (Cauchy-Schwarz), so the sum of a score is exact and its order free. Rounding keys to
 * bf16 instead costs SmolLM2 as much error as bf16 activations in all its linears together.
 *
 * Positions are cut into chunks of FMI_FA_CHUNK, counted from 0. A chunk's part of a row is
 *   m = max of the scores s (in base 2: s = q . k * scale * log2 e), p = bf16(2^(s - m)),
 *   l = sum of p over sixteen lanes, o[d] = sum of p v[d] over ascending pairs of positions, in a
 *   pair the odd one first,
 * and parts are merged in ascending order of chunks. Nothing else enters a row, so its bits do not
 * depend on the tile that it is computed in: positions that only another row sees have weight +0
 * and a finite value (a position with a value that is not finite gets a key scale of NaN and values
 * of 0, so that just the rows that see it become NaN), and zeros of the result are positive. */
#ifndef FM_INFER_CPU_KERN_FAST_ATTENTION_H
#define FM_INFER_CPU_KERN_FAST_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FMI_FA_PAGE 32u
#define FMI_FA_CHUNK 256u
#define FMI_FA_CHUNK_PAGES (FMI_FA_CHUNK / FMI_FA_PAGE)
#define FMI_FA_ROWS 12u  /* rows of a register tile, at most */
#define FMI_FA_Q_LD 544u /* int16 from one query to the next: a constant, and no power of two */
#define FMI_FA_NORM 46300.0f
#define FMI_FA_HDV(hd) (((size_t)(hd) + 15) / 16 * 16)
#define FMI_FA_HEAD_BYTES(hd) (FMI_FA_HDV(hd) * FMI_FA_PAGE * 2 + FMI_FA_PAGE * 4)

/* Rows of one tile (at most FMI_FA_ROWS) against one chunk of one key/value head. */
typedef struct fmi_fast_attn {
    const int16_t *q;        /* [rows][FMI_FA_Q_LD] */
    const float *q_scale;    /* [rows] factor of a product with q, after the key's */
    const uint16_t *lo;      /* [rows] first and last visible position in the chunk; */
    const uint16_t *hi;      /* lo > hi: none; the row's part is m = -inf, l = 0, o = 0 */
    const float *const *bias; /* [rows] added to scores from lo on, in base e; NULL: none */
    const uint8_t *const *k;  /* [pages of the chunk]; only those that a row sees are read */
    const uint8_t *const *v;
    float *m, *l; /* [rows] */
    float *o;     /* [rows][hdv] */
    float *score; /* scratch [FMI_FA_ROWS][FMI_FA_CHUNK] */
    uint16_t *p;  /* scratch [FMI_FA_ROWS][FMI_FA_CHUNK], then bf16 [hdv][2] */
    uint32_t rows, hd;
    float softcap; /* > 0: q_scale holds 1 / softcap, else log2 e, besides the scores' scale */
} fmi_fast_attn;

typedef struct fmi_fast_attn_kern {
    /* x [hd] as int16 with one scale; a vector with an element that is not finite gets NaN. */
    float (*quantise)(int16_t *dst, const float *x, uint32_t hd);
    /* Stores one position of one head in its page. */
    void (*put)(uint8_t *kpage, uint8_t *vpage, uint32_t at, const float *k, const float *v,
                uint32_t hd);
    void (*chunk)(const fmi_fast_attn *job);
    /* Merges (m, l, o) of a later chunk into those of a row; o has hdv floats. */
    void (*merge)(float *m, float *l, float *o, float later_m, float later_l, const float *later_o,
                  uint32_t hd);
    void (*finish)(float *out, const float *o, float l, uint32_t hd); /* out = o * (1 / l) */
    /* y = gate / (1 + e^-gate) * up within 4e-7 of it and gate's rounding in the exponent */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
} fmi_fast_attn_kern;

extern const fmi_fast_attn_kern fmi_fast_attn_generic;
#if defined(__x86_64__)
extern const fmi_fast_attn_kern fmi_fast_attn_avx2;
extern const fmi_fast_attn_kern fmi_fast_attn_avx512;
extern const fmi_fast_attn_kern fmi_fast_attn_avx512vnni;
extern const fmi_fast_attn_kern fmi_fast_attn_avx512bf16;
#endif

#endif
