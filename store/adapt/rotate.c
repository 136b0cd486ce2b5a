/* rotate.c - adapters that rotate the inputs of a weight: W R. Formulas as in PEFT 0.21
 * (peft/tuners: oft, boft, hra). Small matrices are inverted in double. */
#include <math.h>
#include <string.h>

#include "store/adapt/rotate_impl.h"
#include "store/base/mem.h"

/* (I - Q)(I + Q)^-1 of a skew-symmetric Q [n, n], into r. I + Q always has an inverse: its
 * eigenvalues are 1 + i x. scratch: 2 n n. */
void adt_cayley(double *r, const double *q, uint64_t n, double *scratch)
{
    double *m = scratch, *x = scratch + n * n;

    /* X (I + Q) = I - Q, that is (I + Q)^T X^T = (I - Q)^T; rows of x are columns of X. */
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            m[i * n + j] = (i == j ? 1.0 : 0.0) + q[j * n + i];
            x[i * n + j] = (i == j ? 1.0 : 0.0) - q[j * n + i];
        }
    for (uint64_t c = 0; c < n; c++) {
        uint64_t best = c;
        for (uint64_t i = c + 1; i < n; i++)
            if (fabs(m[i * n + c]) > fabs(m[best * n + c]))
                best = i;
        for (uint64_t j = 0; best != c && j < n; j++) {
            const double a = m[c * n + j], b = x[c * n + j];
            m[c * n + j] = m[best * n + j], m[best * n + j] = a;
            x[c * n + j] = x[best * n + j], x[best * n + j] = b;
        }
        for (uint64_t i = 0; i < n; i++) {
            const double f = i == c ? 0.0 : m[i * n + c] / m[c * n + c];
            for (uint64_t j = 0; f != 0.0 && j < n; j++) {
                m[i * n + j] -= f * m[c * n + j];
                x[i * n + j] -= f * x[c * n + j];
            }
        }
    }
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++)
            r[j * n + i] = x[i * n + j] / m[i * n + i];
}

/* row's block [n] becomes: at k the sum over c of r[k, c] row[c]. */
static void turn_block(float *row, const double *r, uint64_t n, double *scratch)
{
    for (uint64_t k = 0; k < n; k++) {
        scratch[k] = 0.0;
        for (uint64_t c = 0; c < n; c++)
            scratch[k] += r[k * n + c] * (double)row[c];
    }
    for (uint64_t k = 0; k < n; k++)
        row[k] = (float)scratch[k];
}

/* ==== OFT ==== */

/* oft_R [blocks, size (size - 1) / 2], one row where blocks share it. */
fm_status adt_fit_oft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t rows = adt_dim(s, 0, 0), elems = adt_dim(s, 0, 1);
    const bool shared = fm_json_bool(fm_json_get(c, "block_share"), false);
    const int64_t terms = fm_json_int(fm_json_get(c, "num_cayley_neumann_terms"), 5);
    uint64_t size = 1;

    (void)out;
    while (size < in && size * (size - 1) / 2 < elems)
        size++;
    FM_TRY(adt_need(s, 0, 2, rows, size * (size - 1) / 2));
    if (in % size || rows != (shared ? 1 : in / size))
        return fm_fail(FM_EBASE, "'%s': oft_R has %llu blocks of %llu for %llu inputs", s->module,
                       (unsigned long long)rows, (unsigned long long)size, (unsigned long long)in);
    if (terms < 1 || terms > 1000)
        return fm_fail(FM_EINVAL, "adapter_config.json: field 'num_cayley_neumann_terms' must be "
                                  "1 to 1000");
    s->num[OFT_BLOCK] = (double)size;
    s->num[OFT_SHARED] = shared;
    s->num[OFT_NEUMANN] = fm_json_bool(fm_json_get(c, "use_cayley_neumann"), true);
    s->num[OFT_TERMS] = (double)terms;
    s->num[OFT_EPS] = fm_json_bool(fm_json_get(c, "coft"), false)
                          ? fm_json_real(fm_json_get(c, "eps"), 6e-5) / sqrt((double)rows)
                          : (double)INFINITY;
    return FM_OK;
}

/* out = a b, all [n, n]. */
void adt_times(double *out, const double *a, const double *b, uint64_t n)
{
    memset(out, 0, (size_t)(n * n) * sizeof *out);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < n; k++)
            for (uint64_t j = 0; j < n; j++)
                out[i * n + j] += a[i * n + k] * b[k * n + j];
}

/* I + 2 Q + 2 Q^2 + ... + Q^(terms - 1), the last power once. scratch: 2 n n. */
static void neumann(double *r, const double *q, uint64_t n, unsigned terms, double *scratch)
{
    double *power = scratch, *next = scratch + n * n;

    for (uint64_t i = 0; i < n * n; i++)
        r[i] = (i % (n + 1) == 0 ? 1.0 : 0.0) + (terms > 1 ? 2.0 * q[i] : 0.0);
    if (terms < 3)
        return;
    memcpy(power, q, (size_t)(n * n) * sizeof *power);
    for (unsigned t = 2; t < FM_MAX(terms, 4u); t++) {
        const double by = t + 1 < FM_MAX(terms, 4u) ? 2.0 : 1.0;
        adt_times(next, power, q, n);
        memcpy(power, next, (size_t)(n * n) * sizeof *power);
        for (uint64_t i = 0; i < n * n; i++)
            r[i] += by * power[i];
    }
}

/* The skew-symmetric matrix of an upper triangle, drawn towards 0 where its norm is above eps. */
void adt_skew(double *q, const float *upper, uint64_t n, double eps)
{
    double sum = 0.0, by = 1.0;
    uint64_t at = 0;

    for (uint64_t i = 0; i < n * (n - 1) / 2; i++)
        sum += 2.0 * (double)upper[i] * (double)upper[i];
    if (sqrt(sum) > eps)
        by = eps / sqrt(sum);
    memset(q, 0, (size_t)(n * n) * sizeof *q);
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = i + 1; j < n; j++, at++) {
            q[i * n + j] = by * (double)upper[at];
            q[j * n + i] = -q[i * n + j];
        }
}

fm_status adt_oft(adt_work *w)
{
    const double *num = w->step->num;
    const uint64_t n = (uint64_t)num[OFT_BLOCK];
    double *r = fm_malloc((size_t)(n * n) * 4 * sizeof *r), *q = r + n * n, *scratch = q + n * n;
    if (!r)
        return FM_ENOMEM;

    for (uint64_t b = 0; b < w->in / n; b++) {
        if (b == 0 || num[OFT_SHARED] == 0.0) {
            adt_skew(q, w->part[0] + b * (n * (n - 1) / 2), n, num[OFT_EPS]);
            if (num[OFT_NEUMANN] != 0.0)
                neumann(r, q, n, (unsigned)num[OFT_TERMS], scratch);
            else
                adt_cayley(r, q, n, scratch);
        }
        for (uint64_t o = 0; o < w->out; o++)
            turn_block(w->w + o * w->in + b * n, r, n, scratch);
    }
    fm_free(r);
    return FM_OK;
}

/* ==== BOFT ==== */

/* boft_R [factors, blocks, size, size], boft_s [out, 1]. */
fm_status adt_fit_boft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const fm_shape *r = &s->part[0]->shape;

    (void)c;
    const uint64_t factors = adt_dim(s, 0, 0), blocks = adt_dim(s, 0, 1), size = adt_dim(s, 0, 2);
    if (r->rank != 4 || size < 1 || r->dim[3] != size || blocks != in / size || in % size ||
        factors < 1 || factors > 32 ||
        (factors > 1 && (size % 2 || blocks % (1ull << (factors - 1)))))
        return fm_fail(FM_EBASE, "'%s': boft_R does not fit %llu inputs", s->module,
                       (unsigned long long)in);
    return adt_need(s, 1, 2, out, 1);
}

/* What the butterfly's permutation of factor f puts at place i: within groups of blocks, the runs
 * of half a block at even places come first, then those at odd ones. */
uint64_t adt_butterfly(uint64_t i, uint64_t in, uint64_t blocks, uint64_t size, unsigned f)
{
    const uint64_t group = in / (blocks >> f), half = size / 2, runs = group / half;
    const uint64_t run = i % group / half, evens = (runs + 1) / 2;
    const uint64_t from = run < evens ? 2 * run : 2 * (run - evens) + 1;
    return i / group * group + from * half + i % half;
}

/* One factor applied to a row: undo the permutation's order, turn the blocks, restore it. */
static void turn_factor(float *row, float *moved, const double *r, const adt_step *s, uint64_t in,
                        unsigned f, double *scratch)
{
    const uint64_t factors = adt_dim(s, 0, 0), blocks = adt_dim(s, 0, 1), n = adt_dim(s, 0, 2);

    for (uint64_t i = 0; i < in; i++)
        moved[factors > 1 ? adt_butterfly(i, in, blocks, n, f) : i] = row[i];
    for (uint64_t b = 0; b < blocks; b++)
        turn_block(moved + b * n, r + b * n * n, n, scratch);
    for (uint64_t i = 0; i < in; i++)
        row[i] = moved[factors > 1 ? adt_butterfly(i, in, blocks, n, f) : i];
}

fm_status adt_boft(adt_work *w)
{
    const adt_step *s = w->step;
    const uint64_t blocks = adt_dim(s, 0, 1), n = adt_dim(s, 0, 2), one = n * n;
    double *r = fm_malloc((size_t)(blocks * one) * sizeof *r);
    double *q = fm_malloc((size_t)one * 3 * sizeof *q);
    float *moved = fm_malloc((size_t)w->in * sizeof *moved);
    const bool there = r && q && moved;

    for (unsigned f = 0; there && f < adt_dim(s, 0, 0); f++) {
        for (uint64_t b = 0; b < blocks; b++) {
            const float *data = w->part[0] + (f * blocks + b) * one;
            for (uint64_t i = 0; i < n; i++)
                for (uint64_t j = 0; j < n; j++)
                    q[i * n + j] = 0.5 * ((double)data[i * n + j] - (double)data[j * n + i]);
            adt_cayley(r + b * one, q, n, q + one);
        }
        for (uint64_t o = 0; o < w->out; o++)
            turn_factor(w->w + o * w->in, moved, r, s, w->in, f, q);
    }
    for (uint64_t o = 0; there && o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k++)
            w->w[o * w->in + k] *= w->part[1][o];
    fm_free(r);
    fm_free(q);
    fm_free(moved);
    return there ? FM_OK : FM_ENOMEM;
}

/* ==== HRA: a chain of reflections of the inputs ==== */

fm_status adt_fit_hra(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    (void)out;
    s->num[0] = fm_json_bool(fm_json_get(c, "apply_GS"), false);
    return adt_need(s, 0, 2, in, adt_dim(s, 0, 1));
}

static double dot(const double *a, const double *b, uint64_t n)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Unit vectors [r, in] out of u [in, r]; each orthogonal to those before it where gs. */
void adt_unit_vectors(double *v, const float *u, uint64_t in, uint64_t r, bool gs)
{
    for (uint64_t l = 0; l < r; l++) {
        double *x = v + l * in;
        for (uint64_t k = 0; k < in; k++)
            x[k] = (double)u[k * r + l];
        for (uint64_t j = 0; gs && j < l; j++) {
            const double by = dot(v + j * in, x, in);
            for (uint64_t k = 0; k < in; k++)
                x[k] -= by * v[j * in + k];
        }
        const double norm = sqrt(dot(x, x, in));
        for (uint64_t k = 0; k < in; k++)
            x[k] /= norm;
    }
}

/* W (I - 2 v1 v1^T)(I - 2 v2 v2^T)...; orthogonal vectors give I - 2 V^T V. */
fm_status adt_hra(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, 0, 1), in = w->in;
    double *v = fm_malloc((size_t)((r + 1) * in) * sizeof *v), *row = v ? v + r * in : NULL;
    if (!v)
        return FM_ENOMEM;

    adt_unit_vectors(v, w->part[0], in, r, w->step->num[0] != 0.0);
    for (uint64_t o = 0; o < w->out; o++) {
        for (uint64_t k = 0; k < in; k++)
            row[k] = (double)w->w[o * in + k];
        for (uint64_t l = 0; l < r; l++) {
            const double by = 2.0 * dot(row, v + l * in, in);
            for (uint64_t k = 0; k < in; k++)
                row[k] -= by * v[l * in + k];
        }
        for (uint64_t k = 0; k < in; k++)
            w->w[o * in + k] = (float)row[k];
    }
    fm_free(v);
    return FM_OK;
}
