/* floats.c - zeros and copies of a row of floats on the device. */
#include "train/params/zero.h"

/* Zeros are copied from a row of zeros: a product with 0 would keep NaN and make -0. */
void fmt_params_put_zeros(const fmt_params *ps, float *x, uint64_t floats)
{
    uint32_t rows = (uint32_t)(floats / FMT_ZERO_FLOATS);
    uint32_t rest = (uint32_t)(floats % FMT_ZERO_FLOATS);
    uint32_t n = (uint32_t)FMT_ZERO_FLOATS;

    if (rows > 0)
        ps->be->copy_rows(ps->be, x, n, ps->zero, 0, NULL, rows, n);
    if (rest > 0)
        ps->be->copy_rows(ps->be, x + (uint64_t)rows * n, rest, ps->zero, 0, NULL, 1, rest);
}

void fmt_params_zero_grad(fmt_params *ps)
{
    fmt_params_put_zeros(ps, ps->g, ps->total + ps->guest);
}

/* Copies in rows of 1 Mi floats, since the length of a row has 32 bits. */
void fmt_copy_floats(fm_backend *be, float *y, const float *x, uint64_t n)
{
    const uint64_t most = (uint64_t)1 << 20;

    for (uint64_t at = 0; at < n; at += most) {
        uint32_t m = (uint32_t)FM_MIN(most, n - at);
        be->copy_rows(be, y + at, m, x + at, m, NULL, 1, m);
    }
}
