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

/* ==== BOFT: a row goes through one rotation after another, then is scaled ==== */

typedef struct chain {
    const adt_step *s;
    uint64_t in, blocks, n;
    unsigned factors;
    double *r, *dr; /* [factors, blocks, n, n] */
    double *x; /* [factors + 1, in]: the row before each factor, permuted, and behind the last */
    double *g, *moved;
} chain;

static uint64_t place(const chain *c, uint64_t i, unsigned f)
{
    return c->factors > 1 ? adt_butterfly(i, c->in, c->blocks, c->n, f) : i;
}

/* Sets x of a row of W; at the end x[factors] has the rotated row in its own order. */
static void forth(const chain *c, const float *row)
{
    for (uint64_t i = 0; i < c->in; i++)
        c->g[i] = (double)row[i];
    for (unsigned f = 0; f < c->factors; f++) {
        double *x = c->x + f * c->in;
        for (uint64_t i = 0; i < c->in; i++)
            x[place(c, i, f)] = c->g[i];
        for (uint64_t i = 0; i < c->in; i++) {
            const double *r = c->r + ((f * c->blocks + i / c->n) * c->n + i % c->n) * c->n;
            c->moved[i] = 0.0;
            for (uint64_t k = 0; k < c->n; k++)
                c->moved[i] += r[k] * x[i / c->n * c->n + k];
        }
        for (uint64_t i = 0; i < c->in; i++)
            c->g[i] = c->moved[place(c, i, f)];
    }
    memcpy(c->x + c->factors * c->in, c->g, (size_t)c->in * sizeof *c->g);
}

/* g: the gradient of the rotated row; adds to dr. */
static void back(const chain *c)
{
    for (unsigned f = c->factors; f-- > 0;) {
        const double *x = c->x + f * c->in;
        for (uint64_t i = 0; i < c->in; i++)
            c->moved[place(c, i, f)] = c->g[i];
        memset(c->g, 0, (size_t)c->in * sizeof *c->g);
        for (uint64_t i = 0; i < c->in; i++) {
            const uint64_t at = ((f * c->blocks + i / c->n) * c->n + i % c->n) * c->n;
            const uint64_t first = i / c->n * c->n;
            for (uint64_t k = 0; k < c->n; k++) {
                c->dr[at + k] += c->moved[i] * x[first + k];
                c->g[first + k] += c->moved[i] * c->r[at + k];
            }
        }
        memcpy(c->moved, c->g, (size_t)c->in * sizeof *c->g);
        for (uint64_t i = 0; i < c->in; i++)
            c->g[i] = c->moved[place(c, i, f)];
    }
}

static void boft_rows(const chain *c, const adt_back *b)
{
    const adt_work *w = b->w;
    const double *last = c->x + c->factors * c->in;

    for (uint64_t o = 0; o < w->out; o++) {
        const float *d = b->dw + o * w->in;
        double sum = 0.0;
        forth(c, w->w + o * w->in);
        for (uint64_t k = 0; k < w->in; k++) {
            sum += (double)d[k] * last[k];
            c->g[k] = (double)d[k] * (double)w->part[1][o];
        }
        if (b->grad[1])
            b->grad[1][o] = (float)sum;
        back(c);
    }
}

/* One rotation (I - Q)(I + Q)^-1, Q = (D - D^T) / 2. q: 3 n n. */
static void of_data(double *r, const float *data, uint64_t n, double *q)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++)
            q[i * n + j] = 0.5 * ((double)data[i * n + j] - (double)data[j * n + i]);
    adt_cayley(r, q, n, q + n * n);
}

static void data_grad(float *grad, double *r, const double *dr, uint64_t n, double *dq)
{
    cayley_grad(dq, r, dr, n, dq + n * n);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++)
            grad[i * n + j] = (float)(0.5 * (dq[i * n + j] - dq[j * n + i]));
}

fm_status adt_boft_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t n = adt_dim(w->step, 0, 2), blocks = adt_dim(w->step, 0, 1), one = n * n;
    const uint64_t mats = adt_dim(w->step, 0, 0) * blocks;
    const unsigned factors = (unsigned)adt_dim(w->step, 0, 0);
    double *mem = fm_calloc((size_t)((2 * mats + 3) * one + (factors + 3) * w->in), sizeof *mem);
    if (!mem)
        return FM_ENOMEM;
    double *q = mem + 2 * mats * one, *rows = q + 3 * one;
    const chain c = {.s = w->step,
                     .in = w->in,
                     .blocks = blocks,
                     .n = n,
                     .factors = factors,
                     .r = mem,
                     .dr = mem + mats * one,
                     .x = rows,
                     .g = rows + (factors + 1) * w->in,
                     .moved = rows + (factors + 2) * w->in};

    for (uint64_t i = 0; i < mats; i++)
        of_data(c.r + i * one, w->part[0] + i * one, n, q);
    boft_rows(&c, b);
    for (uint64_t i = 0; b->grad[0] && i < mats; i++)
        data_grad(b->grad[0] + i * one, c.r + i * one, c.dr + i * one, n, q);
    fm_free(mem);
    return FM_OK;
}

/* ==== HRA ==== */

static double dot(const double *a, const double *b, uint64_t n)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The gradients dv of the unit vectors, of y = x - 2 (x v) v one after another. x: [r + 2, in]. */
static void reflections(double *dv, const adt_back *b, const double *v, uint64_t r, double *x)
{
    const adt_work *w = b->w;
    const uint64_t in = w->in;
    double *g = x + (r + 1) * in;

    for (uint64_t o = 0; o < w->out; o++) {
        for (uint64_t k = 0; k < in; k++) {
            x[k] = (double)w->w[o * in + k];
            g[k] = (double)b->dw[o * in + k];
        }
        for (uint64_t l = 0; l < r; l++) {
            const double by = 2.0 * dot(x + l * in, v + l * in, in);
            for (uint64_t k = 0; k < in; k++)
                x[(l + 1) * in + k] = x[l * in + k] - by * v[l * in + k];
        }
        for (uint64_t l = r; l-- > 0;) {
            const double *at = x + l * in, *one = v + l * in;
            const double gv = 2.0 * dot(g, one, in), xv = 2.0 * dot(at, one, in);
            for (uint64_t k = 0; k < in; k++) {
                dv[l * in + k] -= xv * g[k] + gv * at[k];
                g[k] -= gv * one[k];
            }
        }
    }
}

/* From the gradient of vector l, which is made of length 1 and, with gs, orthogonal to those before
 * it, that of column l of u; theirs get their shares. x: [r + 1, in]. */
static void vector_grad(float *grad, double *dv, const double *v, const float *u, uint64_t l,
                        uint64_t in, uint64_t r, bool gs, double *x)
{
    const uint64_t before = gs ? l : 0;
    double *g = dv + l * in;

    for (uint64_t k = 0; k < in; k++)
        x[k] = (double)u[k * r + l];
    for (uint64_t j = 0; j < before; j++) {
        const double by = dot(v + j * in, x + j * in, in);
        for (uint64_t k = 0; k < in; k++)
            x[(j + 1) * in + k] = x[j * in + k] - by * v[j * in + k];
    }
    const double norm = sqrt(dot(x + before * in, x + before * in, in));
    const double along = dot(g, v + l * in, in);
    for (uint64_t k = 0; k < in; k++)
        g[k] = (g[k] - along * v[l * in + k]) / norm;
    for (uint64_t j = before; j-- > 0;) {
        const double *one = v + j * in, *at = x + j * in;
        const double gv = dot(g, one, in), xv = dot(at, one, in);
        for (uint64_t k = 0; k < in; k++) {
            dv[j * in + k] -= xv * g[k] + gv * at[k];
            g[k] -= gv * one[k];
        }
    }
    for (uint64_t k = 0; k < in; k++)
        grad[k * r + l] = (float)g[k];
}

fm_status adt_hra_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t r = adt_dim(w->step, 0, 1), in = w->in;
    const bool gs = w->step->num[0] != 0.0;
    if (!b->grad[0])
        return FM_OK;
    double *v = fm_calloc((size_t)((3 * r + 2) * in), sizeof *v);
    if (!v)
        return FM_ENOMEM;
    double *dv = v + r * in, *x = dv + r * in;

    adt_unit_vectors(v, w->part[0], in, r, gs);
    reflections(dv, b, v, r, x);
    for (uint64_t l = r; l-- > 0;)
        vector_grad(b->grad[0], dv, v, w->part[0], l, in, r, gs, x);
    fm_free(v);
    return FM_OK;
}
