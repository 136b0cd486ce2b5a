/* adamw.h - a checkpoint predicted from the one a step before.
 *
 * AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", 2019) makes of a gradient g
 *   m' = m + (1-b1) (g - m),  v' = b2 v + (1-b2) g^2
 *   w' = decay w - step m' / (sqrt(v') / root + eps)
 * so m and m' give g up to rounding, g gives v', and m' and v' give w'. Only m' and the few
 * elements whose last bit the rounding of g changed have to be stored.
 *
 * The scalars are those of the optimizer's kernel, as float32: nothing here computes powers. The
 * order of roundings is PyTorch's on a CPU, and train/'s; other orders are other modes. */
#ifndef FM_STORE_ADAMW_H
#define FM_STORE_ADAMW_H

#include "store/tensor.h"

FM_BEGIN_DECLS

/* Values are in the files: never renumber. */
typedef enum fms_adamw_mode {
    FMS_ADAMW_FUSED = 0,    /* w' = fma(-step, m' / d, decay w); v' = fma((1-b2) g, g, b2 v) */
    FMS_ADAMW_QUOTIENT = 1, /* w' = decay w + (-step m') / d; else as FUSED */
    FMS_ADAMW_PLAIN = 2, /* nothing fused: v' = b2 v + ((1-b2) g) g, w' = decay w - step (m' / d) */
    FMS_ADAMW_MODES
} fms_adamw_mode;

typedef struct fms_adamw_scalars {
    float one_less_beta1, beta2, one_less_beta2;
    float decay, step, root, eps;
} fms_adamw_scalars;
#define FMS_ADAMW_BYTES 28u /* the seven scalars, little-endian, in that order */

void fms_adamw_put(uint8_t dst[FMS_ADAMW_BYTES], const fms_adamw_scalars *s);
/* FM_ECORRUPT: NaN or infinity, or 1 - beta1 is zero. */
FM_CHECKED fm_status fms_adamw_get(fms_adamw_scalars *out, fm_span params);

/* Element by element, so any range will do. Arrays of n float32; the result may be one of the
 * inputs. The same bits on every machine; a NaN that arithmetic makes is 0x7fc00000. */
void fms_adamw_v(float *v1, const float *v0, const float *m0, const float *m1, size_t n,
                 const fms_adamw_scalars *s, fms_adamw_mode mode);
void fms_adamw_w(float *w1, const float *w0, const float *m1, const float *v1, size_t n,
                 const fms_adamw_scalars *s, fms_adamw_mode mode);

/* Find the scalars and the mode that make v1 of (v0, m0, m1), and w1 of (w0, m1, v1), from n
 * elements of two consecutive steps (thousands, spread over a tensor, without those of v1 = 0):
 * least squares, then rounded to decimals where these fit as well, then by counting equal bits.
 * exact_v, exact_w: elements that come out equal; 0: nothing was found. *_v sets the betas and
 * whether the mode is PLAIN; *_w needs these and sets the rest. About 0.5 and 30 ms for 4,096
 * elements. */
typedef struct fms_adamw_fit {
    fms_adamw_scalars s;
    fms_adamw_mode mode;
    double beta2; /* as the optimizer had it before rounding */
    size_t exact_v, exact_w;
} fms_adamw_fit;
void fms_adamw_fit_v(fms_adamw_fit *f, const float *v1, const float *v0, const float *m0,
                     const float *m1, size_t n);
void fms_adamw_fit_w(fms_adamw_fit *f, const float *w1, const float *w0, const float *m1,
                     const float *v1, size_t n);

FM_END_DECLS
#endif
