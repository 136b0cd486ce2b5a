/* attend.h - what the kernels of attention over pages share: which rows walk the keys together.
 *
 * The seam's lists of rows are device memory, so the host does not know where a sequence ends. A
 * launch has blocks for every row; the first row of a run (rows of one sequence that stand together
 * in an aligned window) works for the others, whose blocks leave at once. */
#ifndef FM_INFER_CUDA_ATTEND_H
#define FM_INFER_CUDA_ATTEND_H

#include "infer/cuda/cuda.h"

FMC_DEVICE uint32_t fmc_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* First position that a row at pos sees. */
FMC_DEVICE uint32_t fmc_first_position(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

/* Rows of the run that row begins, in windows of `most` rows; 0: another row begins it. */
FMC_DEVICE uint32_t fmc_run_at(const fm_attn *a, uint32_t row, uint32_t most)
{
    uint32_t begin = row / most * most, end = fmc_least(begin + most, a->m), n = 1;
    if (row > begin && a->seq[row - 1] == a->seq[row])
        return 0;
    while (row + n < end && a->seq[row + n] == a->seq[row])
        n++;
    return n;
}

/* Query heads of one key/value head that go together, at most `most`, and how many such parts. */
static inline uint32_t fmc_group_heads(const fm_attn *a, uint32_t most)
{
    uint32_t group = a->nh / a->nkv;
    return group < most ? group : most;
}
static inline uint32_t fmc_group_parts(const fm_attn *a, uint32_t heads)
{
    return (a->nh / a->nkv + heads - 1) / heads;
}

#endif
