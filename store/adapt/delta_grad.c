/* delta_grad.c - gradients of the adapters that add a dense matrix to a weight (delta.c). */
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
