/* kron.c - a damped Gauss-Newton matrix for influence, one block a parameter.
 *
 * The block of a matrix [out, in] is a Kronecker product whose factors' eigenvectors are those of
 * E[G G^T] and E[G^T G], where G is the gradient of one example: the sum over its tokens of output
 * gradient times activation. Its eigenvalues are then measured in that basis, E[(U^T G V)^2]:
 * George et al. 2018 (EK-FAC); Grosse et al. 2023 for influence; Morwani et al. 2024 on these
 * factors. The damping is a tenth of the block's mean eigenvalue. A side that is long, or whose
 * turning would cost more than FMT_KRON_WORK products an example, keeps its own axes (the short
 * side of a low-rank factor never does); a vector has a diagonal block. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"

#include <math.h>
#include <string.h>

#define KEPT_BYTES ((uint64_t)256 << 20)
#define DAMPING 0.1

typedef struct block {
    uint64_t at, rows, cols, turned; /* turned: as fmt_param's */
    bool left, right;                /* which sides are turned; the others keep their axes */
    double *su, *sv;                 /* [rows, rows], [cols, cols]: sums, while they are made */
    float *u, *v;                    /* eigenvectors of the same sides, as columns */
    double *value;                   /* [rows, cols] eigenvalues */
    double damping;
} block;

struct fmt_kron {
    block *item;
    size_t count;
    float *m, *t; /* working memory: a matrix, and the one between two products */
    size_t sampled;
};

void fmt_kron_free(fmt_kron *k)
{
    if (!k)
        return;
    for (size_t i = 0; k->item && i < k->count; i++) {
        fm_free(k->item[i].su);
        fm_free(k->item[i].sv);
        fm_free(k->item[i].u);
        fm_free(k->item[i].v);
        fm_free(k->item[i].value);
    }
    fm_free(k->item);
    fm_free(k->m);
    fm_free(k->t);
    fm_free(k);
}

/* Where element (r, c) lies in the flat buffers. */
static uint64_t place(const block *b, uint64_t r, uint64_t c)
{
    if (!b->turned)
        return b->at + r * b->cols + c;
    return b->at + (c / b->turned * b->rows + r) * b->turned + c % b->turned;
}

static void take_matrix(const block *b, const float *g, float *m)
{
    for (uint64_t r = 0; r < b->rows; r++)
        for (uint64_t c = 0; c < b->cols; c++)
            m[r * b->cols + c] = g[place(b, r, c)];
}

/* ---- the basis ---- */
/* sum += M M^T [rows, rows], or M^T M [cols, cols] */
static void add_outer(double *sum, const float *m, size_t rows, size_t cols, bool left)
{
    size_t n = left ? rows : cols;

    if (left) {
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++) {
                double s = 0.0;
                for (size_t c = 0; c < cols; c++)
                    s += (double)m[i * cols + c] * (double)m[j * cols + c];
                sum[i * n + j] += s;
            }
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        const float *row = m + r * cols;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j <= i; j++)
                sum[i * n + j] += (double)row[i] * (double)row[j];
    }
}

static void add_row(float *restrict y, const float *restrict x, float f, size_t n)
{
    for (size_t c = 0; c < n; c++)
        y[c] += f * x[c];
}

/* x [rows, cols] = U^T x V; back: U x V^T. t: working memory of the same size. */
static void turn_basis(const block *b, float *restrict x, float *restrict t, bool back)
{
    size_t rows = (size_t)b->rows;
    size_t cols = (size_t)b->cols;

    if (b->left) {
        memset(t, 0, rows * cols * sizeof(*t));
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < rows; k++)
                add_row(t + i * cols, x + k * cols, back ? b->u[i * rows + k] : b->u[k * rows + i],
                        cols);
        memcpy(x, t, rows * cols * sizeof(*t));
    }
    if (!b->right)
        return;
    memset(t, 0, rows * cols * sizeof(*t));
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < cols; k++) {
            if (!back)
                add_row(t + i * cols, b->v + k * cols, x[i * cols + k], cols);
            for (size_t c = 0; back && c < cols; c++)
                t[i * cols + c] += x[i * cols + k] * b->v[c * cols + k];
        }
    memcpy(x, t, rows * cols * sizeof(*t));
}

static fm_status add_factors(void *ctx, size_t n, const float *g)
{
    fmt_kron *k = ctx;

    (void)n;
    for (size_t i = 0; i < k->count; i++) {
        block *b = &k->item[i];
        if (!b->left && !b->right)
            continue;
        take_matrix(b, g, k->m);
        if (b->left)
            add_outer(b->su, k->m, (size_t)b->rows, (size_t)b->cols, true);
        if (b->right)
            add_outer(b->sv, k->m, (size_t)b->rows, (size_t)b->cols, false);
    }
    return FM_OK;
}

static fm_status add_values(void *ctx, size_t n, const float *g)
{
    fmt_kron *k = ctx;

    (void)n;
    for (size_t i = 0; i < k->count; i++) {
        block *b = &k->item[i];
        take_matrix(b, g, k->m);
        turn_basis(b, k->m, k->t, false);
        for (uint64_t e = 0; e < b->rows * b->cols; e++)
            b->value[e] += (double)k->m[e] * (double)k->m[e] / (double)k->sampled;
    }
    return FM_OK;
}

/* Eigenvectors of *sum, of which the lower half is filled; frees *sum. */
static fm_status to_basis(float *basis, double **sum, size_t n)
{
    double *a = *sum;
    double *q = fm_calloc(n * n + 3 * n, sizeof(*q));
    fm_status rc = q ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            a[j * n + i] = a[i * n + j];
    FM_THEN(rc, fmt_eigen(a, q, q + n * n, q + n * n + n, n));
    for (size_t i = 0; rc == FM_OK && i < n * n; i++)
        basis[i] = (float)q[i % n * n + i / n];
    fm_free(q);
    fm_free(a);
    *sum = NULL;
    return rc;
}

static fm_status all_bases(fmt_kron *k)
{
    for (size_t i = 0; i < k->count; i++) {
        block *b = &k->item[i];
        if (b->left)
            FM_TRY(to_basis(b->u, &b->su, (size_t)b->rows));
        if (b->right)
            FM_TRY(to_basis(b->v, &b->sv, (size_t)b->cols));
    }
    return FM_OK;
}

/* ---- from the examples ---- */
static bool turns(uint64_t side, uint64_t n)
{
    return side > 1 && side <= FMT_KRON_SIDE && side * n <= FMT_KRON_WORK;
}

static fm_status make_block(fmt_kron *k, const fmt_param *p)
{
    block *b = &k->item[k->count++];
    bool matrix = p->shape.rank == 2;

    b->at = p->at;
    b->rows = matrix ? p->shape.dim[0] : 1;
    b->cols = matrix ? p->shape.dim[1] : p->n;
    b->turned = p->turned;
    b->left = matrix && turns(b->rows, p->n);
    b->right = matrix && turns(b->cols, p->n);
    b->value = fm_calloc((size_t)p->n, sizeof(*b->value));
    if (b->left) {
        b->su = fm_calloc((size_t)(b->rows * b->rows), sizeof(*b->su));
        b->u = fm_calloc((size_t)(b->rows * b->rows), sizeof(*b->u));
    }
    if (b->right) {
        b->sv = fm_calloc((size_t)(b->cols * b->cols), sizeof(*b->sv));
        b->v = fm_calloc((size_t)(b->cols * b->cols), sizeof(*b->v));
    }
    bool all = b->value && (!b->left || (b->su && b->u)) && (!b->right || (b->sv && b->v));
    return all ? FM_OK : FM_ENOMEM;
}

typedef struct kept { /* Gradients of the sample, if they fit. */
    float *g;
    uint64_t total;
} kept;

static fm_status keep_one(void *ctx, size_t n, const float *g)
{
    kept *k = ctx;
    memcpy(k->g + n * (size_t)k->total, g, (size_t)k->total * sizeof(*g));
    return FM_OK;
}

static fm_status each(fmt_walk *w, const kept *have, const size_t *which, size_t n,
                      fmt_gradient_fn take, void *ctx)
{
    if (!have->g)
        return fmt_walk_each(w, which, n, take, ctx);
    for (size_t i = 0; i < n; i++)
        FM_TRY(take(ctx, i, have->g + i * (size_t)have->total));
    return FM_OK;
}

static fm_status measure(fmt_kron *k, fmt_walk *w)
{
    size_t all = fm_dataset_count(w->job.data);
    size_t which[FMT_KRON_SAMPLE];
    kept have = {.total = w->total};
    fm_status rc = FM_OK;

    k->sampled = FM_MIN(all, (size_t)FMT_KRON_SAMPLE);
    for (size_t i = 0; i < k->sampled; i++)
        which[i] = i * all / k->sampled;
    if (k->sampled * w->total * sizeof(float) <= KEPT_BYTES) {
        have.g = fm_malloc(k->sampled * (size_t)w->total * sizeof(float));
        rc = have.g ? fmt_walk_each(w, which, k->sampled, keep_one, &have) : FM_ENOMEM;
    }
    FM_THEN(rc, each(w, &have, which, k->sampled, add_factors, k));
    FM_THEN(rc, all_bases(k));
    FM_THEN(rc, each(w, &have, which, k->sampled, add_values, k));
    fm_free(have.g);
    for (size_t i = 0; i < k->count; i++) {
        block *b = &k->item[i];
        double sum = 0.0;
        for (uint64_t e = 0; e < b->rows * b->cols; e++)
            sum += b->value[e];
        b->damping = DAMPING * sum / (double)(b->rows * b->cols);
    }
    return rc;
}

fm_status fmt_kron_new(fmt_kron **out, fmt_walk *w)
{
    const fmt_params *ps = &w->worker[0].ps;
    fmt_kron *k = fm_calloc(1, sizeof(*k));
    uint64_t most = 0;
    fm_status rc = FM_OK;

    *out = k;
    if (!k || !(k->item = fm_calloc(ps->count, sizeof(*k->item))))
        return FM_ENOMEM;
    for (size_t i = 0; i < ps->count && rc == FM_OK; i++) {
        most = FM_MAX(most, ps->item[i].n);
        rc = make_block(k, &ps->item[i]);
    }
    k->m = fm_calloc((size_t)most, sizeof(*k->m));
    k->t = fm_calloc((size_t)most, sizeof(*k->t));
    if (rc == FM_OK && !(k->m && k->t))
        rc = FM_ENOMEM;
    return rc == FM_OK ? measure(k, w) : rc;
}

/* ---- the inverse ---- */
void fmt_kron_solve(const fmt_kron *k, float *y, const float *x)
{
    for (size_t i = 0; i < k->count; i++) {
        const block *b = &k->item[i];
        take_matrix(b, x, k->m);
        turn_basis(b, k->m, k->t, false);
        for (uint64_t e = 0; e < b->rows * b->cols; e++)
            k->m[e] =
                b->damping > 0.0 ? (float)((double)k->m[e] / (b->value[e] + b->damping)) : 0.0f;
        turn_basis(b, k->m, k->t, true);
        for (uint64_t r = 0; r < b->rows; r++)
            for (uint64_t c = 0; c < b->cols; c++)
                y[place(b, r, c)] = k->m[r * b->cols + c];
    }
}

double fmt_kron_size(const fmt_kron *k, const float *x)
{
    double sum = 0.0;

    for (size_t i = 0; i < k->count; i++) {
        const block *b = &k->item[i];
        take_matrix(b, x, k->m);
        turn_basis(b, k->m, k->t, false);
        for (uint64_t e = 0; e < b->rows * b->cols; e++)
            if (b->damping > 0.0)
                sum += (double)k->m[e] * (double)k->m[e] / (b->value[e] + b->damping);
    }
    return sum;
}
