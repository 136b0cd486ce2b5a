/* simt_ptx90.h - the emulated twins of infer/cuda/sm90/ptx90.h. A bulk copy arrives when its
 * barrier is waited for (SIMT_BULK=soon: at once). A product's sums are kept aside until the wait
 * for its group, d is NaN in between. What then stands in d, or a second operand that has changed,
 * stops the program, and so do a group of products without fmc_sm90_fence and a block that leaves
 * before its copies have come: on a GPU all are races. */
#ifndef FM_TESTS_SIMT_PTX90_H
#define FM_TESTS_SIMT_PTX90_H

#include "simt_ptx.h"

void simt_block_ends(void); /* simt.cpp's call: nothing may be on its way to the block */

void fmc_barrier_init(uint64_t *bar, unsigned count);
void fmc_barrier_arrive(uint64_t *bar);
void fmc_barrier_expect(uint64_t *bar, unsigned bytes);
void fmc_barrier_wait(uint64_t *bar, unsigned parity);
void fmc_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *bar);
#define FMC_CLUSTER_OF_TWO
template <class F> static inline void fmc_cluster_of_two(F *kernel)
{
    simt_cluster((const void *)kernel, 2);
}
unsigned fmc_cluster_rank(void);
void fmc_cluster_sync(void);
void fmc_barrier_arrive_at(uint64_t *bar, unsigned rank);
void fmc_bulk_copy_all(void *shared, const void *global, unsigned bytes, uint64_t *bar);
static inline void fmc_barrier_publish(void)
{
}
static inline void fmc_async_fence(void)
{
}
template <int registers> static inline void fmc_registers_less(void)
{
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "setmaxnreg");
}
template <int registers> static inline void fmc_registers_more(void)
{
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "setmaxnreg");
}

uint64_t fmc_matrix(const void *shared, unsigned along_k, unsigned along_n);

void simt_wide(float *d, int n, bool f16, bool turned, const uint32_t *a, uint64_t a_matrix,
               uint64_t b_matrix);
void fmc_sm90_fence(void);
void fmc_sm90_commit(void);
void simt_wide_wait(int left);
template <int left> static inline void fmc_sm90_wait(void)
{
    simt_wide_wait(left);
}
template <int count> static inline void fmc_sm90_there(float (&d)[count])
{
    (void)d;
}
template <int count> static inline void fmc_sm90_there(int32_t (&d)[count])
{
    (void)d;
}
template <int n, bool f16, bool turned>
static inline void fmc_sm90(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b_matrix)
{
    simt_wide(d, n, f16, turned, a, 0, b_matrix);
}
template <int n, bool f16, bool turned>
static inline void fmc_sm90_shared(float (&d)[n / 2], uint64_t a_matrix, uint64_t b_matrix)
{
    simt_wide(d, n, f16, turned, NULL, a_matrix, b_matrix);
}
void simt_wide_s8(int32_t *d, int n, const uint32_t *a, uint64_t b_matrix);
static inline void fmc_sm90_s8(int32_t (&d)[48], const uint32_t (&a)[4], uint64_t b_matrix)
{
    simt_wide_s8(d, 96, a, b_matrix);
}

#endif
