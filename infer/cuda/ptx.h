/* ptx.h - the instructions that CUDA C++ has no name for, each with an emulated twin
 * (tests/cuda/simt_ptx.h). sm_80 and newer unless said otherwise; register layouts are those of the
 * PTX ISA's fragments for mma. All lanes of a warp call together. */
#ifndef FM_INFER_CUDA_PTX_H
#define FM_INFER_CUDA_PTX_H

#include "infer/cuda/device.h"

#if !defined(__CUDACC__)
#include "simt_ptx.h"
#else

/* Kernels of one stream that overlap (sm_90; elsewhere, and in code that is not made from sm_90's
 * PTX, both functions do nothing and no launch may begin before its turn, fmc_may_begin_soon).
 * fmc_let_next: once all blocks have called it or ended, the next kernel begins if it was launched
 * by FMC_RUN_PDL. fmc_wait_for_turn returns when all earlier kernels have ended and their writes
 * are visible. Every thread of a kernel launched so calls it before it ends, before it reads what
 * an earlier kernel may write and before it writes what an earlier one may use; since each kernel
 * waits, the end of one is the end of all before it. A kernel that never calls fmc_let_next lets
 * the next begin by ending, but its writes need not be visible before the wait either. Only lists
 * of operations and weights may be read before the wait, because between a kernel that writes one
 * and a kernel that reads it early there is a copy or a kernel launched by FMC_RUN, and those wait
 * for all earlier writes. */
FMC_DEVICE void fmc_let_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
FMC_DEVICE void fmc_wait_for_turn(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Copies 16 aligned bytes from global to shared memory, asynchronously; zeros where !valid. */
FMC_DEVICE void fmc_copy16(void *shared, const void *global, bool valid)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(shared), bytes = valid ? 16u : 0u;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}
/* The copies since the last call form a group. */
FMC_DEVICE void fmc_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for this thread's groups but the `left` newest; a barrier shows them to other threads. */
template <int left> FMC_DEVICE void fmc_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Four 8x8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8. */
FMC_DEVICE void fmc_load_matrix4(uint32_t r[4], const void *row)
{
    unsigned from = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
/* Likewise, each matrix transposed. */
FMC_DEVICE void fmc_load_matrix4_t(uint32_t r[4], const void *row)
{
    unsigned from = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* Two f32 rounded to nearest even, NaN to a quiet NaN: `low` in the low half. */
FMC_DEVICE uint32_t fmc_pack_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
FMC_DEVICE uint32_t fmc_pack_f16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* Two products of bf16, rounded to nearest even; subnormal numbers are kept. */
FMC_DEVICE uint32_t fmc_times_bf16(uint32_t a, uint32_t b)
{
    uint32_t r; /* + -0: mul is sm_90's */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}
/* The f16 whose bits are the low half of h; exact. */
FMC_DEVICE float fmc_from_f16(uint32_t h)
{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)h));
    return r;
}

/* 2^x within 2 ulp; results below 2^-126 are 0. One instruction, where exp2f is four. */
FMC_DEVICE float fmc_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* d += a b: a [16, 16] by rows, b [16, 8] by columns, d [16, 8] f32. */
FMC_DEVICE void fmc_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
FMC_DEVICE void fmc_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* d = start + a b, whole numbers: a [16, 32] by rows and b [32, 8] by columns of int8. */
FMC_DEVICE void fmc_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], int32_t start)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
}
#endif

/* For the top of a kernel that does nothing before its turn. */
FMC_DEVICE void fmc_take_turn(void)
{
    fmc_let_next();
    fmc_wait_for_turn();
}

#endif
