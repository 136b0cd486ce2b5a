/* cublaslt.h - a library's matrix product behind a door of two calls, so that tests can stand in
 * for it (tests/cuda/library.cpp). */
#ifndef FM_INFER_CUDA_LIBRARY_H
#define FM_INFER_CUDA_LIBRARY_H

#include "infer/cuda/mma/fast.h"

/* y[m, n] (add: +=) = x[m, k] w[n, k]^T: bf16 by rows, ld apart, y and its sums f32. */
typedef struct fmc_library_call {
    const void *x, *w;
    size_t ldx, ldw, ldy;
    float *y;
    uint32_t m, n, k;
    bool add;
} fmc_library_call;

typedef struct fmc_library fmc_library;

/* NULL: not on this machine. */
fmc_library *fmc_library_open(void);
void fmc_library_close(fmc_library *l);
/* Queues the call with the algorithm that belongs to (n, k), whatever m is; false: refused. */
bool fmc_library_run(fmc_library *l, cudaStream_t stream, const fmc_library_call *c);

#endif
