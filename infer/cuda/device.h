/* device.h - the CUDA C++ that this folder is written in: what nvcc and the emulator (tests/cuda)
 * have in common.
 *
 * The subset: __global__ and __device__ functions, FMC_LAUNCH, FMC_SHARED, barriers, shuffles,
 * ptx.h. No cooperative groups, no managed memory, no atomics on floating point: a sum has one
 * order. Every product and sum of mode exact is an explicit operation or fmaf; the files are
 * compiled with --fmad=false. */
#ifndef FM_INFER_CUDA_DEVICE_H
#define FM_INFER_CUDA_DEVICE_H

#include <cuda_runtime.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define FMC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
/* The kernel may begin before the previous one has ended (ptx.h: fmc_let_next,
 * fmc_wait_for_turn). */
#define FMC_LAUNCH_PDL(kernel, grid, block, shared_bytes, stream, ...)                             \
    fmc_launch_soon((stream), (grid), (block), (shared_bytes), (kernel), __VA_ARGS__)
template <class... P, class... A>
static inline void fmc_launch_soon(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                                   void (*kernel)(P...), A... args)
{
    cudaLaunchAttribute soon = {};
    cudaLaunchConfig_t config = {};
    soon.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    soon.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &soon;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, (P)args...); /* fmc_launched reads the error */
}
/* Shared memory of a block: FMC_SHARED(float, tile, [8][33]). At the top of a kernel. */
#define FMC_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define FMC_SHARED_DYNAMIC(type, name)                                                             \
    extern __shared__ __align__(1024) unsigned char fmc_dynamic_shared[];                          \
    type *name = (type *)fmc_dynamic_shared
#else
#define FMC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    simt_launch_kernel((stream), #kernel, (grid), (block), (shared_bytes), false, (kernel),        \
                       __VA_ARGS__)
#define FMC_LAUNCH_PDL(kernel, grid, block, shared_bytes, stream, ...)                             \
    simt_launch_kernel((stream), #kernel, (grid), (block), (shared_bytes), true, (kernel),         \
                       __VA_ARGS__)
#endif

#define FMC_DEVICE static __device__ __forceinline__

/* Threads of a block where no measurement has chosen another number: eight warps. */
#define FMC_THREADS 256u

/* Blocks of `each` that cover n, at most the grid's limit: kernels stride by the grid. */
static inline unsigned fmc_blocks(uint64_t n, uint64_t each)
{
    uint64_t b = (n + each - 1) / each;
    return b < 1 ? 1u : b > 0x7fffffffu ? 0x7fffffffu : (unsigned)b;
}

/* First element of this thread and its stride in a loop over the whole grid. */
FMC_DEVICE uint64_t fmc_index(void)
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
FMC_DEVICE uint64_t fmc_stride(void)
{
    return (uint64_t)gridDim.x * blockDim.x;
}

#endif
