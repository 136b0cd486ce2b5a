/* pissa.c - what PEFT takes out of a weight for a LoRA of init_lora_weights "pissa": the product of
 * its r greatest singular values and their vectors. That product does not depend on how the vectors
 * are found. PEFT decomposes the whole weight in float32; here Lanczos' method in double finds the
 * greatest ones alone, with every vector made orthogonal to all before it. */
#include <math.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

/* A residual of this part of the greatest eigenvalue is rounding for a float32 weight. */
#define TOLERANCE 1e-11

/* The greatest eigenvectors of G = W^T W, or W W^T where W is wide: the smaller matrix. */
typedef struct lanczos {
    const float *w;
    uint64_t out, in, n, r;
    bool wide;
    uint64_t steps;       /* vectors so far */
    double *basis;        /* [room, n] */
    double *alpha, *beta; /* of the tridiagonal matrix; beta[i] between i and i + 1 */
    double *value, *row;  /* its eigenvalues, eigenvectors as columns [steps, steps] */
    double *half, *z;     /* the longer side, [n] */
    uint64_t random;
} lanczos;

/* Sums in eight places side by side, which add up in pairs: one order on every machine. */
static double dot(const double *a, const double *b, uint64_t n)
{
    double sum[8] = {0};

    for (uint64_t i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += a[i + (uint64_t)k] * b[i + (uint64_t)k];
    for (uint64_t i = n / 8 * 8; i < n; i++)
        sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static double dot_row(const float *a, const double *b, uint64_t n)
{
    double sum[8] = {0};

    for (uint64_t i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            sum[k] += (double)a[i + (uint64_t)k] * b[i + (uint64_t)k];
    for (uint64_t i = n / 8 * 8; i < n; i++)
        sum[0] += (double)a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* z = G v */
static void multiply(lanczos *l, const double *v)
{
    memset(l->wide ? l->half : l->z, 0, (size_t)l->in * sizeof(double));
    for (uint64_t o = 0; l->wide && o < l->out; o++) /* half = W^T v */
        for (uint64_t k = 0; k < l->in; k++)
            l->half[k] += v[o] * (double)l->w[o * l->in + k];
    for (uint64_t o = 0; o < l->out; o++) {
        const float *row = l->w + o * l->in;
        const double *x = l->wide ? l->half : v;
        const double sum = dot_row(row, x, l->in);
        if (l->wide)
            l->z[o] = sum;
        for (uint64_t k = 0; !l->wide && k < l->in; k++)
            l->z[k] += sum * (double)row[k];
    }
}

/* Makes x orthogonal to the basis, twice for rounding; returns its length. */
static double against(const lanczos *l, double *x)
{
    for (int twice = 0; twice < 2; twice++)
        for (uint64_t j = 0; j < l->steps; j++) {
            const double *b = l->basis + j * l->n;
            const double by = dot(b, x, l->n);
            for (uint64_t i = 0; i < l->n; i++)
                x[i] -= by * b[i];
        }
    return sqrt(dot(x, x, l->n));
}

/* Adds z, of that length, to the basis; where nothing is left of z, a vector of the rest. */
static void add_vector(lanczos *l, double length)
{
    while (!(length > 0.0)) {
        for (uint64_t i = 0; i < l->n; i++) {
            l->random = l->random * 6364136223846793005u + 1442695040888963407u;
            l->z[i] = (double)(l->random >> 33) * 0x1p-30 - 1.0;
        }
        length = against(l, l->z);
    }
    for (uint64_t i = 0; i < l->n; i++)
        l->basis[l->steps * l->n + i] = l->z[i] / length;
    l->steps++;
}

static void step(lanczos *l)
{
    const double *v = l->basis + (l->steps - 1) * l->n;

    multiply(l, v);
    const double a = dot(v, l->z, l->n);
    l->alpha[l->steps - 1] = a;
    double length = against(l, l->z);
    if (length <= 1e-14 * l->alpha[0]) /* the basis holds all that G leads to from its vectors */
        length = 0.0;
    l->beta[l->steps - 1] = length;
    if (l->steps < l->n)
        add_vector(l, length);
}

/* Rotates columns i and i + 1 of the eigenvectors. */
static void rotate(lanczos *l, uint64_t m, uint64_t i, double c, double s)
{
    for (uint64_t k = 0; k < m; k++) {
        double *row = l->row + k * m;
        const double x = row[i + 1];
        row[i + 1] = s * row[i] + c * x;
        row[i] = c * row[i] - s * x;
    }
}

/* One implicit QL sweep over places [from, to] of the tridiagonal matrix d, e. */
static void sweep(lanczos *l, double *d, double *e, uint64_t m, uint64_t from, uint64_t to)
{
    double g = (d[from + 1] - d[from]) / (2.0 * e[from]), r = hypot(g, 1.0), s = 1.0, c = 1.0;
    double p = 0.0;

    g = d[to] - d[from] + e[from] / (g + (g >= 0.0 ? r : -r));
    for (uint64_t i = to; i-- > from;) {
        double f = s * e[i];
        const double b = c * e[i];
        r = hypot(f, g);
        e[i + 1] = r;
        if (r == 0.0) {
            d[i + 1] -= p;
            e[to] = 0.0;
            return;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2.0 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        rotate(l, m, i, c, s);
    }
    d[from] -= p;
    e[from] = g;
    e[to] = 0.0;
}

/* Eigenvalues and vectors of the first m rows of the tridiagonal matrix. e: [m] of scratch. */
static fm_status decompose(lanczos *l, uint64_t m, double *e)
{
    double *d = l->value;

    memcpy(d, l->alpha, (size_t)m * sizeof *d);
    memcpy(e, l->beta, (size_t)m * sizeof *e);
    e[m - 1] = 0.0;
    memset(l->row, 0, (size_t)(m * m) * sizeof *l->row);
    for (uint64_t i = 0; i < m; i++)
        l->row[i * m + i] = 1.0;
    for (uint64_t from = 0; from < m; from++)
        for (int tries = 0;; tries++) {
            uint64_t to = from;
            while (to + 1 < m && fabs(e[to]) > 1e-16 * (fabs(d[to]) + fabs(d[to + 1])))
                to++;
            if (to == from)
                break;
            if (tries > 200)
                return fm_fail(FM_EINVAL, "a weight has no singular values: is it finite?");
            sweep(l, d, e, m, from, to);
        }
    return FM_OK;
}

/* The place of the next greatest eigenvalue; value[] of a place that was given becomes -1. */
static uint64_t greatest(lanczos *l, uint64_t m)
{
    uint64_t best = 0;
    for (uint64_t i = 1; i < m; i++)
        best = l->value[i] > l->value[best] ? i : best;
    l->value[best] = -1.0;
    return best;
}

/* Writes the r greatest eigenvectors of G to vectors [r, n]. *done: their residuals are small. */
static fm_status vectors_of(lanczos *l, uint64_t m, double *vectors, bool *done)
{
    double *e = fm_malloc((size_t)m * sizeof *e), most = 0.0;
    l->row = fm_malloc((size_t)(m * m) * sizeof *l->row);
    fm_status rc = e && l->row ? decompose(l, m, e) : FM_ENOMEM;

    for (uint64_t i = 0; rc == FM_OK && i < m; i++)
        most = FM_MAX(most, l->value[i]);
    *done = rc == FM_OK;
    memset(vectors, 0, (size_t)(l->r * l->n) * sizeof *vectors);
    for (uint64_t j = 0; rc == FM_OK && j < l->r; j++) {
        const uint64_t at = greatest(l, m);
        *done = *done &&
                (m == l->n || fabs(l->beta[m - 1] * l->row[(m - 1) * m + at]) <= TOLERANCE * most);
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t k = 0; k < l->n; k++)
                vectors[j * l->n + k] += l->row[i * m + at] * l->basis[i * l->n + k];
    }
    fm_free(l->row);
    fm_free(e);
    return rc;
}

static fm_status run(lanczos *l, double *vectors)
{
    uint64_t room = FM_MIN(l->n, 2 * l->r + 16);
    bool done = false;

    add_vector(l, 0.0);
    for (uint64_t at = 0; !done; room = FM_MIN(l->n, room + room / 2)) {
        double *grown = fm_realloc(l->basis, (size_t)((room + 1) * l->n) * sizeof *grown);
        if (!grown)
            return FM_ENOMEM;
        l->basis = grown;
        for (; at < room; at++)
            step(l);
        FM_TRY(vectors_of(l, room, vectors, &done));
    }
    return FM_OK;
}

/* W - W V V^T, or W - U U^T W: the vectors' part of W leaves it. */
static fm_status take_out(adt_work *w, const double *vectors, uint64_t r, bool wide)
{
    double *part = fm_calloc((size_t)FM_MAX(w->in, w->out), sizeof *part);

    for (uint64_t j = 0; part && j < r; j++) {
        const double *v = vectors + j * (wide ? w->out : w->in);
        memset(part, 0, (size_t)FM_MAX(w->in, w->out) * sizeof *part);
        for (uint64_t o = 0; o < w->out; o++)
            for (uint64_t k = 0; k < w->in; k++)
                part[wide ? k : o] += v[wide ? o : k] * (double)w->w[o * w->in + k];
        for (uint64_t o = 0; o < w->out; o++)
            for (uint64_t k = 0; k < w->in; k++)
                w->w[o * w->in + k] -= (float)(wide ? v[o] * part[k] : part[o] * v[k]);
    }
    fm_free(part);
    return part ? FM_OK : FM_ENOMEM;
}

static fm_status pissa(adt_work *w)
{
    lanczos l = {.w = w->w,
                 .out = w->out,
                 .in = w->in,
                 .n = FM_MIN(w->out, w->in),
                 .r = (uint64_t)w->step->num[0],
                 .wide = w->in > w->out,
                 .random = 1};
    for (uint64_t i = 0; i < w->out * w->in; i++)
        if (!isfinite(w->w[i]))
            return fm_fail(FM_EINVAL, "'%s': a weight is not finite", w->step->module);
    double *vectors = fm_malloc((size_t)(l.r * l.n) * sizeof *vectors);

    l.alpha = fm_malloc((size_t)l.n * 3 * sizeof *l.alpha);
    l.basis = fm_malloc((size_t)l.n * sizeof *l.basis);
    l.half = fm_malloc((size_t)FM_MAX(w->out, w->in) * 2 * sizeof *l.half);
    fm_status rc = vectors && l.alpha && l.basis && l.half ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK) {
        l.beta = l.alpha + l.n;
        l.value = l.beta + l.n;
        l.z = l.half + FM_MAX(w->out, w->in);
        rc = run(&l, vectors);
    }
    FM_THEN(rc, take_out(w, vectors, l.r, l.wide));
    fm_free(vectors);
    fm_free(l.alpha);
    fm_free(l.basis);
    fm_free(l.half);
    return rc;
}

const adt_op adt_op_pissa = {.name = "pissa 1",
                             .flags = ADT_RUN | ADT_MERGE | ADT_ROUND,
                             .fit = adt_fit_start,
                             .apply = pissa};
