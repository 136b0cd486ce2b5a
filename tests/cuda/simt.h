/* simt.h - the CUDA execution model on a CPU, for tests: what the .cu files of infer/cuda see when
 * they are compiled by a C++ compiler instead of nvcc.
 *
 * A launch runs its blocks (or clusters) one after another; the threads of a block are fibers that
 * give way at barriers and warp operations only, in an order that SIMT_ORDER chooses (forward,
 * reverse, or a number that seeds a shuffle): a result that depends on it lacks a barrier. What a
 * real GPU would leave undefined or hang on stops the program with the kernel's name: a barrier
 * that not all threads reach, a warp operation whose lanes are gone. Streams run late: what is
 * queued happens at the next wait, so a host buffer that is reused too early shows. Device memory
 * ends at a page that cannot be touched (with AddressSanitizer: at its red zone), shared memory
 * begins as NaN.
 *
 * It says nothing about speed, memory coalescing, bank conflicts, or races inside of one warp. */
#ifndef FM_TESTS_SIMT_H
#define FM_TESTS_SIMT_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}

/* ---- inside of a kernel ---- */

typedef struct simt_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned linear; /* number of the thread in its block */
    unsigned rank;   /* of the block in its cluster */
    unsigned fiber;  /* number of the thread in its cluster */
} simt_place;

extern const simt_place *simt_here;   /* of the thread that runs */
extern unsigned long simt_blocks_run; /* numbers the block that runs */
extern size_t simt_static_bytes;      /* of its FMC_SHARED */
/* Blocks of so many kernels may have begun at a time; the number of the one that runs. */
#define SIMT_WORLDS 3u
extern unsigned simt_world;
/* The first use of FMC_SHARED in a block. */
void simt_static_used(void *at, size_t bytes, unsigned long *of);

#define threadIdx (simt_here->thread)
#define blockIdx (simt_here->block)
#define blockDim (simt_here->block_dim)
#define gridDim (simt_here->grid_dim)
#define warpSize 32

void simt_barrier(void);
/* Of all threads of all blocks of the cluster. */
void simt_cluster_barrier(void);
unsigned simt_cluster_blocks(void);
/* What stands in the dynamic shared memory of the cluster's block `rank` where p is in this
 * one's. */
void *simt_of_rank(void *p, unsigned rank);
void *simt_dynamic_shared(void);
/* Dynamic shared memory as the GPU addresses it, in bytes: 16-bit descriptions need that. */
size_t simt_shared_offset(const void *p);
const unsigned char *simt_shared_at(size_t offset, size_t bytes);
/* The thread waits until ready(arg); a block in which all wait so stops the program. */
void simt_wait_until(bool (*ready)(void *arg), void *arg);
/* Ends the program with the kernel's name; ends ap. */
void simt_die(const char *fmt, va_list ap);

/* Bytes of shared memory that a block may have: SIMT_SHARED, or 227 KiB. */
unsigned simt_shared_max(void);

/* ptx.h's fmc_wait_for_turn and fmc_let_next. */
void simt_wait_for_turn(void);
void simt_let_next(void);

#define SIMT_LANE_BYTES 64u
/* Every lane of mask brings bytes <= SIMT_LANE_BYTES; the result is lane i's at i *
 * SIMT_LANE_BYTES. Valid until the lane's next exchange. */
const unsigned char *simt_exchange(unsigned mask, const void *bring, size_t bytes);
unsigned simt_lane(void);

#define __syncthreads() simt_barrier()

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)simt_exchange(mask, NULL, 0);
}
template <class T> static inline T simt_from(unsigned mask, T v, unsigned lane)
{
    T r;
    const unsigned char *all = simt_exchange(mask, &v, sizeof v);
    memcpy(&r, all + (size_t)lane * SIMT_LANE_BYTES, sizeof r);
    return r;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    unsigned lane = simt_lane(), base = lane & ~((unsigned)width - 1u);
    return simt_from(mask, v, base + ((unsigned)from & ((unsigned)width - 1u)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    unsigned lane = simt_lane(), to = lane ^ (unsigned)bits;
    bool inside = (to & ~((unsigned)width - 1u)) <= (lane & ~((unsigned)width - 1u));
    return simt_from(mask, v, inside ? to : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    unsigned lane = simt_lane(), at = lane & ((unsigned)width - 1u);
    return simt_from(mask, v, at + by < (unsigned)width ? lane + by : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    unsigned lane = simt_lane(), at = lane & ((unsigned)width - 1u);
    return simt_from(mask, v, at >= by ? lane - by : lane);
}
unsigned simt_ballot(unsigned mask, bool yes);
static inline unsigned __ballot_sync(unsigned mask, int yes)
{
    return simt_ballot(mask, yes != 0);
}
static inline int __any_sync(unsigned mask, int yes)
{
    return simt_ballot(mask, yes != 0) != 0;
}
static inline int __all_sync(unsigned mask, int yes)
{
    return simt_ballot(mask, yes == 0) == 0;
}

/* Shared memory of a block: dims as in a declaration, FMC_SHARED(float, tile, [8][33]). */
#define FMC_SHARED(type, name, dims)                                                               \
    static type name dims;                                                                         \
    static unsigned long name##_of;                                                                \
    if (name##_of != simt_blocks_run)                                                              \
    simt_static_used((void *)&name, sizeof name, &name##_of)
#define FMC_SHARED_DYNAMIC(type, name) type *name = (type *)simt_dynamic_shared()

static inline void __threadfence(void)
{
}
static inline void __threadfence_block(void)
{
}
template <class T> static inline T atomicAdd(T *at, T v)
{
    T old = *at;
    *at = (T)(old + v);
    return old;
}
static inline unsigned atomicMax(unsigned *at, unsigned v)
{
    unsigned old = *at;
    *at = old > v ? old : v;
    return old;
}
static inline unsigned atomicOr(unsigned *at, unsigned v)
{
    unsigned old = *at;
    *at = old | v;
    return old;
}
static inline int atomicCAS(int *at, int expected, int v)
{
    int old = *at;
    if (old == expected)
        *at = v;
    return old;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline int __float_as_int(float f)
{
    return (int)__float_as_uint(f);
}
static inline float __int_as_float(int i)
{
    return __uint_as_float((unsigned)i);
}
/* Byte i of the result is the one of b:a (a's are 0 .. 3) that nibble i of `which` names. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (unsigned i = 0; i < 4; i++)
        r |= (unsigned)(both >> (8 * (which >> (4 * i) & 7u)) & 255u) << (8 * i);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((uint64_t)a * b) >> 32);
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
/* Four signed bytes by four signed bytes, added to c. */
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(int8_t)((unsigned)a >> (8 * i)) * (int)(int8_t)((unsigned)b >> (8 * i));
    return c;
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}

/* ---- launches ---- */

typedef struct CUstream_st *cudaStream_t;

typedef struct simt_kernel {
    const char *name;
    dim3 grid, block;
    size_t shared_bytes, granted;
    unsigned cluster;
    bool soon; /* may begin before its turn */
    std::function<void()> thread;
    void *begun = NULL; /* it did: one of its blocks waits for its turn */
    uint64_t first = 0; /* that block's number */
} simt_kernel;

void simt_launch(cudaStream_t stream, const void *kernel, const char *name, dim3 grid, dim3 block,
                 size_t shared_bytes, bool soon, std::function<void()> thread);
/* A block of a kernel that may begin soon runs up to its wait, while the kernels before it have not
 * ended. Nothing happens where there is no room for it. */
void simt_begin_kernel(simt_kernel *k);
void simt_run_kernel(simt_kernel *k);
/* runtime.cpp's: a block of the kernel that runs lets the next one of its stream begin. */
void simt_next_may_begin(void);
/* cudaFuncAttributeMaxDynamicSharedMemorySize of a kernel: without it a block has 48 KiB in all. */
void simt_grant(const void *kernel, size_t bytes);
/* Neighbours in x of this many blocks are a cluster and run together. */
void simt_cluster(const void *kernel, unsigned blocks);

template <class... P, class... A>
void simt_launch_kernel(cudaStream_t stream, const char *name, dim3 grid, dim3 block,
                        size_t shared_bytes, bool soon, void (*kernel)(P...), A... args)
{
    std::tuple<std::decay_t<P>...> held{args...};
    simt_launch(stream, (const void *)kernel, name, grid, block, shared_bytes, soon,
                [kernel, held] { std::apply(kernel, held); });
}

#endif
