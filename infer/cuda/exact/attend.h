/* attend.h - shared by the kernels of attention over pages: which rows walk the keys together.
 *
 * Lists of rows are device memory, so the host does not know where a sequence ends. A launch has
 * blocks for every row. A run is the consecutive rows of one sequence in an aligned window; the
 * blocks of its first row do the work, those of the other rows end at once. */
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

/* The first position that a row sees. */
FMC_DEVICE uint32_t fmc_first_of(const fm_attn *a, uint32_t row)
{
    uint32_t first = fmc_first_position((uint32_t)a->pos[row], a->window);
    return a->first && (uint32_t)a->first[row] > first ? (uint32_t)a->first[row] : first;
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

/* Number of rows from row on, below end, that are of one sequence. All lanes of a warp call it. */
FMC_DEVICE uint32_t fmc_run_length(const fm_attn *a, uint32_t row, uint32_t end)
{
    uint32_t lane = threadIdx.x % 32;
    int32_t seq = a->seq[row];
    for (uint32_t at = row; at < end; at += 32) {
        bool same = at + lane < end && a->seq[at + lane] == seq;
        unsigned others = ~__ballot_sync(0xffffffffu, same);
        if (others)
            return at - row + (uint32_t)__ffs((int)others) - 1;
    }
    return end - row;
}

/* Query heads of one key/value head that are done together, at most `most`. */
static inline uint32_t fmc_group_heads(const fm_attn *a, uint32_t most)
{
    uint32_t group = a->nh / a->nkv;
    return group < most ? group : most;
}
static inline uint32_t fmc_group_parts(const fm_attn *a, uint32_t heads)
{
    return (a->nh / a->nkv + heads - 1) / heads;
}

/* attention_train.cu: adds sequence i's part, [2][virt][ld] at grad + at[i], to its dvk and dvv, in
 * ascending sequences (seq, at: device lists); most: floats of the largest half. */
void fmc_attention_virtual(fmc_device *d, const fm_train_seq *seq, uint32_t seqs, const float *grad,
                           const uint64_t *at, size_t ld, size_t most);

#endif
