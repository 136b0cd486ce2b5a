/* chain.h - a chain of additions in double, many at a time, with the bits of one by one.
 *
 * While sums stay in [2^e, 2^(e+1)), they are multiples of u = 2^(e-52), and rounding s + w to the
 * nearest double adds a whole number of u: w / u rounded, where a tie goes to whichever makes the
 * sum even. So what a run of additions adds depends only on whether s is even: two numbers, which
 * join associatively. If the end is below 2^(e+1), every sum on the way was, since no number is
 * negative; otherwise fmc_chain_add returns false and the run must be added one by one. */
#ifndef FM_INFER_CUDA_CHAIN_H
#define FM_INFER_CUDA_CHAIN_H

#include "infer/cuda/detmath.h"

#define FMC_CHAIN_MOST 1024u /* numbers of a chain, so that 64 bits hold it */

/* What a run adds, in units of the sum's last place: by[0] to an even sum, by[1] to an odd one. */
struct fmc_chain {
    uint64_t by[2];
};

FMC_BOTH uint64_t fmc_double_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* The exponent field of a sum (not negative, finite); 1 for a subnormal sum. */
FMC_BOTH int fmc_chain_exponent(double sum)
{
    int e = (int)(fmc_double_bits(sum) >> 52);
    return e < 1 ? 1 : e;
}

/* The chain that adds w (>= +0, finite) to sums of exponent field e. */
FMC_BOTH fmc_chain fmc_chain_of(double w, int e)
{
    const uint64_t u = fmc_double_bits(w), hidden = (uint64_t)1 << 52;
    const int own = (int)(u >> 52), by = e - (own < 1 ? 1 : own);
    const uint64_t m = own < 1 ? u : (u & (hidden - 1)) | hidden;
    if (by < 0) /* larger than any sum of e */
        return fmc_chain{{2 * hidden, 2 * hidden}};
    if (by == 0)
        return fmc_chain{{m, m}};
    if (by > 53) /* below half a unit */
        return fmc_chain{{0, 0}};
    const uint64_t whole = m >> by, rest = m << (64 - by), half = (uint64_t)1 << 63;
    if (rest != half)
        return fmc_chain{{whole + (rest > half), whole + (rest > half)}};
    return fmc_chain{{whole + (whole & 1), whole + (~whole & 1)}};
}

/* The chain that adds a, then b. */
FMC_BOTH fmc_chain fmc_chain_join(fmc_chain a, fmc_chain b)
{
    fmc_chain c;
    c.by[0] = a.by[0] + ((a.by[0] & 1) != 0 ? b.by[1] : b.by[0]);
    c.by[1] = a.by[1] + ((a.by[1] & 1) != 0 ? b.by[0] : b.by[1]);
    return c;
}

/* Adds a chain of at most FMC_CHAIN_MOST numbers, made for the sum's exponent. False: a sum would
 * leave that exponent, and *sum is unchanged. */
FMC_BOTH bool fmc_chain_add(double *sum, fmc_chain c)
{
    const uint64_t u = fmc_double_bits(*sum), hidden = (uint64_t)1 << 52;
    const uint64_t e = (uint64_t)fmc_chain_exponent(*sum);
    const uint64_t s = u < hidden ? u : (u & (hidden - 1)) | hidden;
    const uint64_t end = s + ((s & 1) != 0 ? c.by[1] : c.by[0]);
    if (end >= 2 * hidden)
        return false;
    const uint64_t out = ((e - 1) << 52) + end;
    memcpy(sum, &out, sizeof out);
    return true;
}

#endif
