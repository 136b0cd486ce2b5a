/* job.h - shared by the kernels of products of modes fast and bf16: the job of a block, the end of
 * a sum, and the ring through which a warp loads W. */
#ifndef FM_INFER_CUDA_FAST_JOB_H
#define FM_INFER_CUDA_FAST_JOB_H

#include "infer/cuda/mma/tile.h"
#include "infer/cuda/find.h"

FMC_DEVICE size_t row_of(const int32_t *rows, uint32_t first, uint32_t i)
{
    return rows ? (size_t)rows[i] : (size_t)first + i;
}

FMC_DEVICE void finish(const fmc_job *p, uint32_t i, uint32_t n, float sum)
{
    float *y = p->y + (p->dense ? i : row_of(p->rows, p->first, i)) * p->ldy + n;
    float v = sum * p->alpha;
    if (p->row_scale)
        v = v * p->row_scale[i];
    if (p->bias)
        v = v + p->bias[n];
    *y = p->add ? *y + v : v;
}

FMC_DEVICE const fmc_job *job_of(const fmc_job *list, uint32_t count)
{
    return list + fmc_find_begin(list, count);
}

FMC_DEVICE uint32_t tiles_of(uint32_t k)
{
    return (k + FMC_TILE_K - 1) / FMC_TILE_K;
}

/* ---- rings of stages ---- */

/* Waits for the oldest stage of a ring that has either `most` stages, or `fewer`, or two. */
template <unsigned most, unsigned fewer = 0> FMC_DEVICE void ring_wait(unsigned stages)
{
    if (stages == most)
        fmc_copy_wait<(int)most - 2>();
    else if (fewer > 2 && stages == fewer)
        fmc_copy_wait<(fewer > 2 ? (int)fewer - 2 : 0)>();
    else
        fmc_copy_wait<0>();
}
FMC_DEVICE unsigned ring_next(unsigned at, unsigned stages)
{
    return at + 1 == stages ? 0 : at + 1;
}

/* Copies a tile of W to a warp's own stage; forms a group of copies even where there is no tile. */
template <int kind>
FMC_DEVICE void ring_copy(unsigned char *stage, const fmc_job *p, uint32_t panel, uint32_t tiles,
                          uint32_t tile, bool valid, unsigned lane)
{
    constexpr unsigned pieces = fmc_tile<kind>::stage / 16;
    const unsigned char *unit = fmc_unit<kind>(p->w, panel, tiles, valid ? tile : 0);
    if (valid)
        for (unsigned i = lane; i < pieces; i += 32)
            fmc_copy16(stage + 16 * i, fmc_piece<kind>(unit, tile, i), true);
    fmc_copy_commit();
}

#endif
