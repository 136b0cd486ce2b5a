/* rotate_impl.h - what rotations (rotate.c) and their gradients (rotate_grad.c) share. */
#ifndef FM_STORE_ROTATE_IMPL_H
#define FM_STORE_ROTATE_IMPL_H

#include "store/adapt/adapt_impl.h"

enum { OFT_BLOCK, OFT_SHARED, OFT_NEUMANN, OFT_TERMS, OFT_EPS }; /* adt_step.num */

/* (I - Q)(I + Q)^-1 of a skew-symmetric Q [n, n]. scratch: 2 n n. */
void adt_cayley(double *r, const double *q, uint64_t n, double *scratch);
/* out = a b, all [n, n]. */
void adt_times(double *out, const double *a, const double *b, uint64_t n);
/* The skew-symmetric matrix of an upper triangle, of a norm up to eps. */
void adt_skew(double *q, const float *upper, uint64_t n, double eps);
/* What the butterfly's permutation of factor f puts at place i. */
uint64_t adt_butterfly(uint64_t i, uint64_t in, uint64_t blocks, uint64_t size, unsigned f);
/* Unit vectors [r, in] out of u [in, r]; each orthogonal to those before it where gs. */
void adt_unit_vectors(double *v, const float *u, uint64_t in, uint64_t r, bool gs);

#endif
