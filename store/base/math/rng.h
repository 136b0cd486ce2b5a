/* rng.h - Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a
 * counter RNG. A number is a pure function of (seed, stream, index), so that threads, resumes and
 * replays agree without any state. */
#ifndef FM_BASE_RNG_H
#define FM_BASE_RNG_H

#include "store/base/fm.h"

FM_BEGIN_DECLS
typedef struct fm_u32x4 {
    uint32_t v[4];
} fm_u32x4;
fm_u32x4 fm_philox(uint64_t seed, uint64_t stream, uint64_t index);
uint64_t fm_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double fm_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1), 53 bits */
/* Uniform in [0, n), n >= 1, without bias: rejected draws are repeated under another key. */
uint64_t fm_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);
/* Standard normal by Box-Muller on the functions of detmath.h: the same bits on every machine. */
double fm_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* The permutation of [0, n) for (seed, stream): Fisher-Yates. */
void fm_rng_permutation(uint32_t *out, uint32_t n, uint64_t seed, uint64_t stream);
FM_END_DECLS
#endif
