/* ptx90.h - instructions of Hopper (sm_90a) that CUDA C++ has no name for, each with an emulated
 * twin (tests/cuda/simt_ptx90.h): bulk copies, barriers that count bytes, products of a warpgroup.
 * Only files that are compiled for sm_90a may call them.
 *
 * A barrier is 8 bytes of shared memory, 8-aligned. It has phases, the first of parity 0; a phase
 * ends after `count` arrivals and when all announced bytes have arrived. */
#ifndef FM_INFER_CUDA_PTX90_H
#define FM_INFER_CUDA_PTX90_H

#include "infer/cuda/ptx.h"

#if !defined(__CUDACC__)
#include "simt_ptx90.h"
#else

FMC_DEVICE unsigned fmc_shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* ---- barriers and bulk copies ---- */

/* Called by one thread, which then calls fmc_barrier_publish; the other threads see it after a
 * barrier of the block. */
FMC_DEVICE void fmc_barrier_init(uint64_t *bar, unsigned count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(fmc_shared_address(bar)),
                 "r"(count)
                 : "memory");
}
FMC_DEVICE void fmc_barrier_publish(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FMC_DEVICE void fmc_barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(fmc_shared_address(bar))
                 : "memory");
}
/* Arrives, and announces bytes of copies for this phase. */
FMC_DEVICE void fmc_barrier_expect(uint64_t *bar, unsigned bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(fmc_shared_address(bar)),
        "r"(bytes)
        : "memory");
}
/* Returns when the phase of this parity has ended. */
FMC_DEVICE void fmc_barrier_wait(uint64_t *bar, unsigned parity)
{
    unsigned done;
    do
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(fmc_shared_address(bar)), "r"(parity)
                     : "memory");
    while (!done);
}
/* Called by one thread; copies bytes (a multiple of 16, both addresses 16-byte aligned) that were
 * announced to bar. */
FMC_DEVICE void fmc_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(fmc_shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(fmc_shared_address(bar))
                 : "memory");
}
/* After this call and a barrier, fmc_sm90 may read what this thread has stored to shared memory,
 * and bulk copies may overwrite it. */
FMC_DEVICE void fmc_async_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- clusters of two blocks ---- */

/* Before a kernel's name: blocks 2 i and 2 i + 1 run together, with dynamic shared memory alone.
 * The host calls fmc_cluster_of_two for it before its first launch. */
#define FMC_CLUSTER_OF_TWO __cluster_dims__(2, 1, 1)
template <class F> static inline void fmc_cluster_of_two(F *kernel)
{
    (void)kernel;
}
FMC_DEVICE unsigned fmc_cluster_rank(void)
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* Called by all threads of both blocks. No block may end before the last copy and arrival that the
 * other makes in it. */
FMC_DEVICE void fmc_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* Arrives at block `rank`'s barrier at the address of bar. */
FMC_DEVICE void fmc_barrier_arrive_at(uint64_t *bar, unsigned rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(
                     fmc_shared_address(bar)),
                 "r"(rank)
                 : "memory");
}
/* fmc_bulk_copy into both blocks at once, each time with that block's bar. */
FMC_DEVICE void fmc_bulk_copy_all(void *shared, const void *global, unsigned bytes, uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(fmc_shared_address(shared)),
        "l"(global), "r"(bytes), "r"(fmc_shared_address(bar)), "h"((unsigned short)3)
        : "memory");
}

/* Sets the registers of each thread of this warpgroup from here on: 24 to 240, a multiple of 8; in
 * a kernel with __launch_bounds__(threads, 1). */
template <int registers> FMC_DEVICE void fmc_registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> FMC_DEVICE void fmc_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* ---- products ---- */

/* Describes a matrix of 16-bit elements in shared memory (dynamic; 16-byte aligned), not swizzled:
 * cores of 8 by 8, 128 bytes, whose lines of 16 bytes are 8 k of one row (turned: 8 rows of one k).
 * along_k, along_n: bytes from a core to the next, multiples of 16. The matrix that begins 16 i
 * bytes further on is the result + i. */
FMC_DEVICE uint64_t fmc_matrix(const void *shared, unsigned along_k, unsigned along_n)
{
    return (uint64_t)(fmc_shared_address(shared) >> 4 & 0x3fffu) |
           (uint64_t)(along_k >> 4 & 0x3fffu) << 16 | (uint64_t)(along_n >> 4 & 0x3fffu) << 32;
}

/* Called before a product whose registers (d, a) were written by other instructions. */
FMC_DEVICE void fmc_sm90_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* The products since the last call form a group. */
FMC_DEVICE void fmc_sm90_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits for all groups but the `left` newest: then d may be used, a and b may change. */
template <int left> FMC_DEVICE void fmc_sm90_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* Called after the wait and before d is used: keeps uses of d behind the wait. */
template <int count> FMC_DEVICE void fmc_sm90_there(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int count> FMC_DEVICE void fmc_sm90_there(int32_t (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

#define FMC_D16(d, i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]),           \
        "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define FMC_D32(d, i) FMC_D16(d, i), FMC_D16(d, i + 16)
#define FMC_D64(d, i) FMC_D32(d, i), FMC_D32(d, i + 32)
#define FMC_D96(d, i) FMC_D64(d, i), FMC_D32(d, i + 64)
#define FMC_P16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FMC_P32                                                                                    \
    FMC_P16 ", "                                                                                   \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FMC_P64                                                                                    \
    FMC_P32 ", "                                                                                   \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FMC_P96                                                                                    \
    FMC_P64 ", "                                                                                   \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "     \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

#define FMC_WIDE_HEAD "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned."
/* a in registers; operands a0 .. a0 + 3, b, turned follow d's. */
#define FMC_WIDE_REGISTERS(shape, type, regs, a0, a1, a2, a3, b, t)                                \
    asm volatile(FMC_WIDE_HEAD shape "k16.f32." type "." type " {" FMC_P##regs                     \
                 "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", p, 1, 1, %" t ";\n}"            \
                 : FMC_D##regs(d, 0)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_matrix), "n"(turned ? 1 : 0))
#define FMC_WIDE_SHARED(shape, type, regs, a0, b, t)                                               \
    asm volatile(FMC_WIDE_HEAD shape "k16.f32." type "." type " {" FMC_P##regs                     \
                 "}, %" a0 ", %" b ", p, 1, 1, 0, %" t ";\n}"                                      \
                 : FMC_D##regs(d, 0)                                                               \
                 : "l"(a_matrix), "l"(b_matrix), "n"(turned ? 1 : 0))

/* Four warps, the first a multiple of four, call together: d [64, n] += a [64, 16] b [16, n], f16
 * or bf16 into f32. Warp w of the four has rows 16 w .. of a and d; d[4 i ..] is mma's d of columns
 * 8 i .., a is mma's a. n: 32, 64, 128, 192. b: fmc_matrix; turned: its lines are 8 n of one k. d
 * is valid after a wait; until then a and b must not change. */
template <int n, bool f16, bool turned>
FMC_DEVICE void fmc_sm90(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b_matrix)
{
    static_assert(n == 32 || n == 64 || n == 128 || n == 192, "no such instruction here");
    if constexpr (n == 32 && f16)
        FMC_WIDE_REGISTERS("m64n32", "f16", 16, "16", "17", "18", "19", "20", "21");
    else if constexpr (n == 32)
        FMC_WIDE_REGISTERS("m64n32", "bf16", 16, "16", "17", "18", "19", "20", "21");
    else if constexpr (n == 64 && f16)
        FMC_WIDE_REGISTERS("m64n64", "f16", 32, "32", "33", "34", "35", "36", "37");
    else if constexpr (n == 64)
        FMC_WIDE_REGISTERS("m64n64", "bf16", 32, "32", "33", "34", "35", "36", "37");
    else if constexpr (n == 128 && f16)
        FMC_WIDE_REGISTERS("m64n128", "f16", 64, "64", "65", "66", "67", "68", "69");
    else if constexpr (n == 128)
        FMC_WIDE_REGISTERS("m64n128", "bf16", 64, "64", "65", "66", "67", "68", "69");
    else if constexpr (f16)
        FMC_WIDE_REGISTERS("m64n192", "f16", 96, "96", "97", "98", "99", "100", "101");
    else
        FMC_WIDE_REGISTERS("m64n192", "bf16", 96, "96", "97", "98", "99", "100", "101");
}
/* The same with a in shared memory too (never turned). */
template <int n, bool f16, bool turned>
FMC_DEVICE void fmc_sm90_shared(float (&d)[n / 2], uint64_t a_matrix, uint64_t b_matrix)
{
    static_assert(n == 32 || n == 64 || n == 128 || n == 192, "no such instruction here");
    if constexpr (n == 32 && f16)
        FMC_WIDE_SHARED("m64n32", "f16", 16, "16", "17", "18");
    else if constexpr (n == 32)
        FMC_WIDE_SHARED("m64n32", "bf16", 16, "16", "17", "18");
    else if constexpr (n == 64 && f16)
        FMC_WIDE_SHARED("m64n64", "f16", 32, "32", "33", "34");
    else if constexpr (n == 64)
        FMC_WIDE_SHARED("m64n64", "bf16", 32, "32", "33", "34");
    else if constexpr (n == 128 && f16)
        FMC_WIDE_SHARED("m64n128", "f16", 64, "64", "65", "66");
    else if constexpr (n == 128)
        FMC_WIDE_SHARED("m64n128", "bf16", 64, "64", "65", "66");
    else if constexpr (f16)
        FMC_WIDE_SHARED("m64n192", "f16", 96, "96", "97", "98");
    else
        FMC_WIDE_SHARED("m64n192", "bf16", 96, "96", "97", "98");
}

#define FMC_I16(d, i)                                                                              \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]),    \
        "+r"(d[i + 6]), "+r"(d[i + 7]), "+r"(d[i + 8]), "+r"(d[i + 9]), "+r"(d[i + 10]),           \
        "+r"(d[i + 11]), "+r"(d[i + 12]), "+r"(d[i + 13]), "+r"(d[i + 14]), "+r"(d[i + 15])
#define FMC_P48                                                                                    \
    FMC_P32 ", "                                                                                   \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

/* Whole numbers, as fmc_sm90: d [64, 96] += a [64, 32] b [32, 96], int8 into int32. b: cores of 8
 * rows by 16 k, a line of 16 bytes each row. */
FMC_DEVICE void fmc_sm90_s8(int32_t (&d)[48], const uint32_t (&a)[4], uint64_t b_matrix)
{
    asm volatile(FMC_WIDE_HEAD "m64n96k32.s32.s8.s8 {" FMC_P48 "}, {%48, %49, %50, %51}, %52, p;\n}"
                 : FMC_I16(d, 0), FMC_I16(d, 16), FMC_I16(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_matrix));
}
#endif

#endif
