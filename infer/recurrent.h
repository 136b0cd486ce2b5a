/* recurrent.h - the arguments of operations that go along sequences with a state (backend.h). Kernels
 * include it, so it has types alone. */
#ifndef FM_INFER_RECURRENT_H
#define FM_INFER_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows that go through a recurrence, and the states of their sequences before and behind them, one
 * float32 state a page: page p begins at pages + p * page_floats. Entry i of the list stands for
 * row row[i]; the rows of a sequence are one behind another, in order of position. No page is both
 * read and written by one call. */
#define FM_STATE_NONE (-1) /* from: the sequence begins, all zeros; to: nobody wants the state */
#define FM_STATE_ON (-2)   /* from: the state behind the entry before this one */
#define FM_MAX_CONV_KERNEL 16u
typedef struct fm_state_rows {
    float *pages;
    size_t page_floats;
    const int32_t *row, *from, *to; /* [m] device */
    uint32_t m;
} fm_state_rows;

/* A causal convolution along each sequence, channel by channel. With u = x, times `before` where
 * that is not NULL: y = sum over j < kernel, ascending, of weight[j] * u of kernel - 1 - j rows ago
 * (a chain of fmaf that begins with the product of j = 0), then + bias, silu of it, times `after`,
 * each where it is wanted. State: the last kernel - 1 rows of u, the oldest first. */
typedef struct fm_convolve {
    fm_state_rows rows;
    float *y; /* not among the inputs */
    size_t ldy;
    const float *x, *before, *after; /* [.., channels], ldx apart */
    size_t ldx;
    const float *weight, *bias; /* [channels, kernel], [channels] or NULL */
    uint32_t channels, kernel;
    bool silu;
} fm_convolve;

#endif
