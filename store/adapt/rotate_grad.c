/* rotate_grad.c - gradients of the adapters that rotate the inputs of a weight (rotate.c), in
 * double. */
#include <math.h>
#include <string.h>

#include "store/adapt/fold_impl.h"
#include "store/adapt/rotate_impl.h"
#include "store/base/mem.h"

/* ==== of small matrices [n, n] ==== */

/* out = a b^T or, turned, a^T b. */
static void times_turned(double *out, const double *a, const double *b, uint64_t n, bool first)
{
    memset(out, 0, (size_t)(n * n) * sizeof *out);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < n; k++)
            for (uint64_t j = 0; j < n; j++)
                out[i * n + j] += first ? a[k * n + i] * b[k * n + j] : a[i * n + k] * b[j * n + k];
}

/* R (I + Q) = I - Q, so dQ = -1/2 (I + R)^T dR (I + R)^T: (I + Q)^-1 is (I + R) / 2. r is changed;
 * scratch: n n. */
static void cayley_grad(double *dq, double *r, const double *dr, uint64_t n, double *scratch)
{
    for (uint64_t i = 0; i < n; i++)
        r[i * n + i] += 1.0;
    times_turned(scratch, r, dr, n, true);
    times_turned(dq, scratch, r, n, false);
    for (uint64_t i = 0; i < n * n; i++)
        dq[i] *= -0.5;
}

/* Of I + 2 Q + 2 Q^2 + ... + Q^(terms - 1): from the highest power down, G becomes c dR + G Q^T and
 * dQ gets (Q^(t - 1))^T G. power: (terms + 2) n n. */
static void neumann_grad(double *dq, const double *q, const double *dr, uint64_t n, unsigned terms,
                         double *power)
{
    const unsigned last = terms > 2 ? FM_MAX(terms, 4u) - 1 : terms - 1;
    double *g = power + (size_t)(last + 1) * n * n, *next = g + n * n;

    memset(power, 0, (size_t)(n * n) * sizeof *power);
    for (uint64_t i = 0; i < n; i++)
        power[i * n + i] = 1.0;
    for (unsigned t = 1; t < last; t++)
        adt_times(power + (size_t)t * n * n, power + (size_t)(t - 1) * n * n, q, n);
    memset(dq, 0, (size_t)(n * n) * sizeof *dq);
    memset(g, 0, (size_t)(n * n) * sizeof *g);
    for (unsigned t = last; t > 0; t--) {
        const double by = t == last && terms > 2 ? 1.0 : 2.0;
        times_turned(next, g, q, n, false);
        for (uint64_t i = 0; i < n * n; i++)
            g[i] = next[i] + by * dr[i];
        times_turned(next, power + (size_t)(t - 1) * n * n, g, n, true);
        for (uint64_t i = 0; i < n * n; i++)
            dq[i] += next[i];
    }
}

/* ==== OFT ==== */

/* The gradient of block b's rotation, added to dr: at [k, c] the sum over rows of dw[k] w[c]. */
static void add_block(double *dr, const adt_back *back, uint64_t b, uint64_t n)
{
    const adt_work *w = back->w;

    for (uint64_t o = 0; o < w->out; o++) {
        const float *x = w->w + o * w->in + b * n, *d = back->dw + o * w->in + b * n;
        for (uint64_t k = 0; k < n; k++)
            for (uint64_t c = 0; c < n; c++)
                dr[k * n + c] += (double)d[k] * (double)x[c];
    }
}

/* From the gradient of a rotation that of the upper triangle of its skew-symmetric matrix. */
static void upper_grad(float *grad, const float *upper, const double *num, double *dr, uint64_t n,
                       double *scratch)
{
    double *q = scratch, *dq = q + n * n, *rest = dq + n * n;
    uint64_t at = 0;

    adt_skew(q, upper, n, num[OFT_EPS]);
    if (num[OFT_NEUMANN] != 0.0) {
        neumann_grad(dq, q, dr, n, (unsigned)num[OFT_TERMS], rest);
    } else {
        double *r = rest;
        adt_cayley(r, q, n, rest + n * n);
        cayley_grad(dq, r, dr, n, rest + n * n);
    }
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = i + 1; j < n; j++)
            grad[at++] = (float)(dq[i * n + j] - dq[j * n + i]);
}

fm_status adt_oft_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const double *num = w->step->num;
    const uint64_t n = (uint64_t)num[OFT_BLOCK], blocks = w->in / n, elems = n * (n - 1) / 2;
    const uint64_t mats = 8 + (num[OFT_NEUMANN] != 0.0 ? (uint64_t)num[OFT_TERMS] + 4 : 0);
    if (!b->grad[0])
        return FM_OK;
    double *dr = fm_calloc((size_t)(n * n * mats), sizeof *dr), *scratch = dr + n * n;
    if (!dr)
        return FM_ENOMEM;

    for (uint64_t i = 0; i < blocks; i++) {
        const bool shared = num[OFT_SHARED] != 0.0;
        add_block(dr, b, i, n);
        if (shared && i + 1 < blocks)
            continue;
        const uint64_t row = shared ? 0 : i;
        upper_grad(b->grad[0] + row * elems, w->part[0] + row * elems, num, dr, n, scratch);
        memset(dr, 0, (size_t)(n * n) * sizeof *dr);
    }
    fm_free(dr);
    return FM_OK;
}

bool adt_oft_settle(const adt_step *s, float *const *part)
{
    const uint64_t rows = adt_dim(s, 0, 0), elems = adt_dim(s, 0, 1);
    bool any = false;

    for (uint64_t b = 0; b < rows; b++) {
        float *x = part[0] + b * elems;
        double sum = 0.0;
        for (uint64_t i = 0; i < elems; i++)
            sum += 2.0 * (double)x[i] * (double)x[i];
        if (!(sqrt(sum) > s->num[OFT_EPS]))
            continue;
        any = true;
        for (uint64_t i = 0; i < elems; i++)
            x[i] = (float)((double)x[i] * (s->num[OFT_EPS] / sqrt(sum)));
    }
    return any;
}
