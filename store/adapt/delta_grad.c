/* delta_grad.c - gradients of the adapters that add a dense matrix to a weight (delta.c). */
#include <math.h>
#include <string.h>

#include "store/adapt/fold_impl.h"
#include "store/base/mem.h"

static float *floats(uint64_t n, uint64_t m)
{
    return fm_calloc((size_t)(n * m), sizeof(float));
}

void adt_product(float *out, const float *a, const float *b, uint64_t n, uint64_t r, uint64_t m)
{
    memset(out, 0, (size_t)(n * m) * sizeof(float));
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < r; k++) {
            const float f = a[i * r + k];
            for (uint64_t j = 0; j < m; j++)
                out[i * m + j] += f * b[k * m + j];
        }
}

static double dot(const float *a, const float *b, uint64_t n)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

void adt_product_grad(float *da, float *db, const float *d, const float *a, const float *b,
                      uint64_t n, uint64_t r, uint64_t m)
{
    for (uint64_t i = 0; da && i < n; i++)
        for (uint64_t k = 0; k < r; k++)
            da[i * r + k] = (float)dot(d + i * m, b + k * m, m);
    if (db)
        memset(db, 0, (size_t)(r * m) * sizeof(float));
    for (uint64_t i = 0; db && i < n; i++)
        for (uint64_t k = 0; k < r; k++) {
            const float f = a[i * r + k];
            for (uint64_t j = 0; j < m; j++)
                db[k * m + j] += f * d[i * m + j];
        }
}

/* ==== LoHa ==== */

/* x: the other product, scaled by the gradient. */
static void times_gradient(float *x, const adt_back *b)
{
    const float scale = (float)b->w->step->num[0];

    for (uint64_t i = 0; i < b->w->out * b->w->in; i++)
        x[i] *= b->dw[i] * scale;
}

fm_status adt_loha_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t r = adt_dim(w->step, 0, 1);
    float *x = floats(w->out, w->in);
    if (!x)
        return FM_ENOMEM;

    for (size_t i = 0; i < 4; i += 2) {
        const size_t other = 2 - i;
        adt_product(x, w->part[other], w->part[other + 1], w->out, r, w->in);
        times_gradient(x, b);
        adt_product_grad(b->grad[i], b->grad[i + 1], x, w->part[i], w->part[i + 1], w->out, r,
                         w->in);
    }
    fm_free(x);
    return FM_OK;
}

/* ==== LoKr ==== */

/* A factor of the Kronecker product, whole or as two. */
typedef struct side {
    size_t at; /* index of the whole part; two factors follow */
    uint64_t n, m;
    float *own;
    const float *x;
    float *d; /* its gradient */
} side;

static fm_status open_side(side *s, const adt_work *w, size_t at)
{
    const adt_step *step = w->step;

    *s = (side){.at = at, .x = w->part[at]};
    s->n = adt_dim(step, s->x ? at : at + 1, 0);
    s->m = adt_dim(step, s->x ? at : at + 2, 1);
    s->d = floats(s->n, s->m);
    if (s->x)
        return s->d ? FM_OK : FM_ENOMEM;
    s->own = floats(s->n, s->m);
    if (!s->own || !s->d)
        return FM_ENOMEM;
    adt_product(s->own, w->part[at + 1], w->part[at + 2], s->n, adt_dim(step, at + 1, 1), s->m);
    s->x = s->own;
    return FM_OK;
}

static void close_side(side *s)
{
    fm_free(s->own);
    fm_free(s->d);
}

static void give_side(const side *s, const adt_back *b)
{
    const adt_work *w = b->w;

    if (w->part[s->at] && b->grad[s->at])
        memcpy(b->grad[s->at], s->d, (size_t)(s->n * s->m) * sizeof(float));
    if (!w->part[s->at])
        adt_product_grad(b->grad[s->at + 1], b->grad[s->at + 2], s->d, w->part[s->at + 1],
                         w->part[s->at + 2], s->n, adt_dim(w->step, s->at + 1, 1), s->m);
}

/* The gradients of both factors, of one block [n2, m2] of the weight after another. */
static void kron_grad(side *x, side *y, const float *dw, uint64_t in, float scale)
{
    for (uint64_t i = 0; i < x->n; i++)
        for (uint64_t j = 0; j < x->m; j++) {
            const float f = x->x[i * x->m + j] * scale;
            double sum = 0.0;
            for (uint64_t o = 0; o < y->n; o++) {
                const float *d = dw + (i * y->n + o) * in + j * y->m;
                sum += dot(d, y->x + o * y->m, y->m);
                for (uint64_t k = 0; k < y->m; k++)
                    y->d[o * y->m + k] += f * d[k];
            }
            x->d[i * x->m + j] = (float)(sum * (double)scale);
        }
}

fm_status adt_lokr_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    side x = {0}, y = {0};
    fm_status rc = open_side(&x, w, 0);

    FM_THEN(rc, open_side(&y, w, 3));
    if (rc == FM_OK) {
        kron_grad(&x, &y, b->dw, w->in, (float)w->step->num[0]);
        give_side(&x, b);
        give_side(&y, b);
    }
    close_side(&x);
    close_side(&y);
    return rc;
}

/* ==== RandLoRA: as adt_randlora ==== */

enum { RAND_A, RAND_B, LAMBDA, GAMMA };

/* Row f of B'^T dW', the gradient of row f of the scaled A; dw turned where the weight is. */
static void base_row(float *row, const adt_back *b, uint64_t f, bool turned)
{
    const adt_work *w = b->w;
    const uint64_t min = FM_MIN(w->out, w->in), max = FM_MAX(w->out, w->in);
    const uint64_t r = adt_dim(w->step, LAMBDA, 0);
    const uint64_t wide = adt_dim(w->step, RAND_B, 1) * r;
    const float scale = (float)w->step->num[0];

    memset(row, 0, (size_t)min * sizeof *row);
    for (uint64_t o = 0; o < max; o++) {
        const float by = w->part[RAND_B][o * wide + f] * scale;
        for (uint64_t k = 0; k < min; k++)
            row[k] += by * b->dw[turned ? k * w->in + o : o * w->in + k];
    }
}

fm_status adt_randlora_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t min = FM_MIN(w->out, w->in);
    const uint64_t r = adt_dim(w->step, LAMBDA, 0), bases = adt_dim(w->step, LAMBDA, 1);
    const uint64_t a_wide = adt_dim(w->step, RAND_A, 2);
    float *row = floats(1, min);
    if (!row)
        return FM_ENOMEM;

    if (b->grad[GAMMA])
        memset(b->grad[GAMMA], 0, (size_t)(bases * min) * sizeof(float));
    for (uint64_t f = 0; f < r * bases; f++) {
        const float *a = w->part[RAND_A] + f / bases * a_wide;
        const float *gamma = w->part[GAMMA] + f % bases * min;
        double sum = 0.0;
        base_row(row, b, f, min != w->in);
        for (uint64_t k = 0; k < min; k++) {
            sum += (double)row[k] * (double)a[k] * (double)gamma[k];
            if (b->grad[GAMMA])
                b->grad[GAMMA][f % bases * min + k] += row[k] * a[k] * w->part[LAMBDA][f];
        }
        if (b->grad[LAMBDA])
            b->grad[LAMBDA][f] = (float)sum;
    }
    fm_free(row);
    return FM_OK;
}

/* ==== SHiRA ==== */

fm_status adt_shira_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t n = adt_dim(w->step, 0, 0);

    for (uint64_t i = 0; b->grad[0] && i < n; i++) {
        const float o = w->part[1][i], k = w->part[1][n + i];
        if (!(o >= 0 && o < (float)w->out && k >= 0 && k < (float)w->in))
            return fm_fail(FM_EBASE, "'%s': shira_indices leave the weight", w->step->module);
        b->grad[0][i] = b->dw[(uint64_t)o * w->in + (uint64_t)k];
    }
    return FM_OK;
}

/* ==== FourierFT: the gradient at (u, v) is scale / (out in) sum of dw cos(2 pi (p u / out + q v /
 * in)): sums across first, for each column v that has coefficients. ==== */

static double *waves(uint64_t n)
{
    double *turn = fm_malloc((size_t)n * 2 * sizeof *turn);

    for (uint64_t i = 0; turn && i < n; i++) {
        turn[2 * i] = cos(6.283185307179586 * (double)i / (double)n);
        turn[2 * i + 1] = sin(6.283185307179586 * (double)i / (double)n);
    }
    return turn;
}

/* sum [2, out]: of each row of dw times the wave of column v. */
static void across(double *sum, const adt_back *b, const double *wave, uint64_t v)
{
    const adt_work *w = b->w;

    for (uint64_t o = 0; o < w->out; o++) {
        double re = 0.0, im = 0.0;
        for (uint64_t k = 0, phase = 0; k < w->in; k++, phase = (phase + v) % w->in) {
            re += (double)b->dw[o * w->in + k] * wave[2 * phase];
            im += (double)b->dw[o * w->in + k] * wave[2 * phase + 1];
        }
        sum[o] = re;
        sum[w->out + o] = im;
    }
}

static float down(const double *sum, const adt_work *w, const double *wave, uint64_t u)
{
    double all = 0.0;

    for (uint64_t o = 0, phase = 0; o < w->out; o++, phase = (phase + u) % w->out)
        all += sum[o] * wave[2 * phase] - sum[w->out + o] * wave[2 * phase + 1];
    return (float)(all * w->step->num[0] / ((double)w->out * (double)w->in));
}

fm_status adt_fourierft_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const adt_step *s = w->step;
    double *wide = waves(w->in), *high = waves(w->out);
    double *sum = fm_malloc((size_t)w->out * 2 * sizeof *sum);
    size_t *next = fm_malloc((s->index_count + 1) * sizeof *next); /* of the same column */
    size_t *first = fm_calloc((size_t)w->in, sizeof *first);       /* index + 1 */
    const bool there = wide && high && sum && next && first;

    for (size_t i = s->index_count; there && i-- > 0;) {
        const uint64_t v = (uint64_t)s->index[i] % w->in;
        next[i] = first[v];
        first[v] = i + 1;
    }
    for (uint64_t v = 0; there && b->grad[0] && v < w->in; v++) {
        if (first[v])
            across(sum, b, wide, v);
        for (size_t i = first[v]; i > 0; i = next[i - 1])
            b->grad[0][i - 1] = down(sum, w, high, (uint64_t)s->index[i - 1] / w->in);
    }
    fm_free(wide);
    fm_free(high);
    fm_free(sum);
    fm_free(next);
    fm_free(first);
    return there ? FM_OK : FM_ENOMEM;
}

/* ==== MiSS ==== */

/* W' = W + W B + B: of a block of rows, B [r, r]. */
static void bat_grad(const adt_back *b, uint64_t r)
{
    const adt_work *w = b->w;

    memset(b->grad[0], 0, (size_t)(w->out * r) * sizeof(float));
    for (uint64_t o = 0; o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k += r) {
            const float *x = w->w + o * w->in + k, *d = b->dw + o * w->in + k;
            float *g = b->grad[0] + o / r * r * r;
            for (uint64_t j = 0; j < r; j++)
                g[o % r * r + j] += d[j];
            for (uint64_t i = 0; i < r; i++)
                for (uint64_t j = 0; j < r; j++)
                    g[i * r + j] += x[i] * d[j];
        }
}

fm_status adt_miss_grad(const adt_back *b)
{
    const adt_work *w = b->w;
    const uint64_t r = adt_dim(w->step, 0, 0), wide = adt_dim(w->step, 0, 1);
    enum { BAT = 1 }; /* as adt_fit_miss sets num */

    if (b->grad[0] && (int)w->step->num[0] == BAT) {
        bat_grad(b, wide);
    } else if (b->grad[0]) {
        memset(b->grad[0], 0, (size_t)(r * wide) * sizeof(float));
        for (uint64_t o = 0; o < w->out; o++)
            for (uint64_t k = 0; k < w->in; k++)
                b->grad[0][k % r * wide + o % wide] += b->dw[o * w->in + k];
    }
    return FM_OK;
}

/* ==== kinds with factors ==== */

fm_status adt_adalora_grad(const adt_work *w, const float *da, const float *db, float *const *grad)
{
    enum { A, B, E };
    const uint64_t r = (uint64_t)w->step->num[0];
    const float scale = (float)w->step->num[1];

    if (grad[B])
        memcpy(grad[B], db, (size_t)(w->out * r) * sizeof(float));
    for (uint64_t l = 0; l < r; l++) {
        const float by = w->part[E][l] * scale;
        for (uint64_t k = 0; grad[A] && k < w->in; k++)
            grad[A][l * w->in + k] = da[l * w->in + k] * by;
        if (grad[E])
            grad[E][l] =
                (float)(dot(da + l * w->in, w->part[A] + l * w->in, w->in) * (double)scale);
    }
    return FM_OK;
}

/* With lambdas of 1 the formula gives the projections themselves. */
fm_status adt_vera_grad(const adt_work *w, const float *da, const float *db, float *const *grad)
{
    enum { ON_B, ON_A };
    const uint64_t r = (uint64_t)w->step->num[0];
    float *ones = floats(1, FM_MAX(w->out, r)), *x = floats(FM_MAX(w->out, w->in), r);
    adt_work plain = *w;
    fm_status rc = ones && x ? FM_OK : FM_ENOMEM;

    for (uint64_t i = 0; rc == FM_OK && i < FM_MAX(w->out, r); i++)
        ones[i] = 1.0f;
    plain.part[ON_A] = plain.part[ON_B] = ones;
    FM_THEN(rc, adt_factor_vera(x, &plain, false));
    for (uint64_t l = 0; rc == FM_OK && grad[ON_A] && l < r; l++)
        grad[ON_A][l] = (float)dot(da + l * w->in, x + l * w->in, w->in);
    FM_THEN(rc, adt_factor_vera(x, &plain, true));
    for (uint64_t o = 0; rc == FM_OK && grad[ON_B] && o < w->out; o++)
        grad[ON_B][o] = (float)dot(db + o * r, x + o * r, r);
    fm_free(ones);
    fm_free(x);
    return rc;
}
