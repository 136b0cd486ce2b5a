/* find.h - which part of a grouped launch a block belongs to. */
#ifndef FM_INFER_CUDA_FIND_H
#define FM_INFER_CUDA_FIND_H

#include "infer/cuda/device.h"

/* The last entry of list[count] (count >= 1, `begin` ascending from 0) that begins at this block or
 * before. All lanes of a warp call it; each reads every 32nd entry, so that a block waits for one
 * load before its work and not for a chain (a binary search of 256: eight loads, some 1.2 us). */
template <class T> FMC_DEVICE uint32_t fmc_find_begin(const T *list, uint32_t count)
{
    uint32_t found = 0;
#pragma unroll 8
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32)
        found += list[i].begin <= blockIdx.x;
    for (int by = 16; by > 0; by /= 2)
        found += __shfl_xor_sync(0xffffffffu, found, by);
    return found - 1;
}

#endif
