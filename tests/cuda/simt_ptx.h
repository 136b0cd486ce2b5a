/* simt_ptx.h - the emulated twins of infer/cuda/ptx.h. A copy arrives when its group is waited for,
 * not before. Products of mma are exact, their sum with d is taken in double and rounded once: a
 * GPU's own order inside of one instruction is not known. */
#ifndef FM_TESTS_SIMT_PTX_H
#define FM_TESTS_SIMT_PTX_H

#include "simt.h"

void simt_copy16(void *shared, const void *global, bool valid);
void simt_copy_commit(void);
void simt_copy_wait(int left);

static inline void fmc_copy16(void *shared, const void *global, bool valid)
{
    simt_copy16(shared, global, valid);
}
static inline void fmc_copy_commit(void)
{
    simt_copy_commit();
}
template <int left> static inline void fmc_copy_wait(void)
{
    simt_copy_wait(left);
}

static inline void fmc_wait_for_turn(void)
{
    simt_wait_for_turn();
}
static inline void fmc_let_next(void)
{
    simt_let_next();
}

void simt_load_matrix4(uint32_t r[4], const void *row, bool transposed);

static inline void fmc_load_matrix4(uint32_t r[4], const void *row)
{
    simt_load_matrix4(r, row, false);
}
static inline void fmc_load_matrix4_t(uint32_t r[4], const void *row)
{
    simt_load_matrix4(r, row, true);
}

uint32_t fmc_pack_bf16(float low, float high);
uint32_t fmc_pack_f16(float low, float high);
uint32_t fmc_times_bf16(uint32_t a, uint32_t b);
float fmc_from_f16(uint32_t h);
static inline float fmc_exp2(float x)
{
    float r = exp2f(x);
    return r < 0x1p-126f ? 0.0f : r;
}

void fmc_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void fmc_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void fmc_mma_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], int32_t start);

#endif
