/* linear.c - is the tensor a sum of the tensors at its path? Averages, SLERP, task arithmetic.
 *
 * Coefficients come from least squares over the windows, in differences from the first tensor (a
 * family's members are nearly parallel, their differences are not), by a modified Gram-Schmidt in
 * double. Those near a number that people write (0.3, 1/3) are replaced by it, and the orders and
 * precisions of merging programs are tried; the windows decide. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/search/search_impl.h"

#define COLUMNS_MAX SRC_PATH_SOURCES_MAX

typedef struct fit {
    uint32_t source[COLUMNS_MAX];
    const float *x[COLUMNS_MAX];
    double c[COLUMNS_MAX];
    uint32_t count;
    double residual; /* its norm */
} fit;

typedef struct linear_work {
    fms_search *s;
    size_t n;     /* elements of all windows */
    float *x;     /* [columns][n], then y */
    double *q;    /* [columns][n] */
    double *rest; /* [n] */
    uint32_t dropped[COLUMNS_MAX];
    uint32_t dropped_count;
} linear_work;

/* ==== least squares ======================================================================== */

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void subtract(double *a, double c, const double *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] -= c * b[i];
}

static void load_column(const linear_work *w, const fit *f, uint32_t k, double *to)
{
    for (size_t i = 0; i < w->n; i++)
        to[i] = (double)f->x[k][i] - (k ? (double)f->x[0][i] : 0.0);
}

/* Sets f->c and f->residual. Columns in the span of the others get 0. */
static void solve(const linear_work *w, fit *f, const float *y)
{
    double r[COLUMNS_MAX][COLUMNS_MAX] = {{0}}, z[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < w->n; i++)
        w->rest[i] = (double)y[i];
    for (uint32_t k = 0; k < f->count; k++) {
        double *q = w->q + k * w->n;
        load_column(w, f, k, q);
        const double whole = sqrt(dot(q, q, w->n));
        for (uint32_t j = 0; j < k; j++) {
            r[j][k] = dot(w->q + j * w->n, q, w->n);
            subtract(q, r[j][k], w->q + j * w->n, w->n);
        }
        const double left = sqrt(dot(q, q, w->n));
        r[k][k] = left > whole * 1e-9 && left > 0 ? left : 0;
        for (size_t i = 0; i < w->n; i++)
            q[i] = r[k][k] > 0 ? q[i] / r[k][k] : 0;
        z[k] = dot(q, w->rest, w->n);
        subtract(w->rest, z[k], q, w->n);
    }
    f->residual = sqrt(dot(w->rest, w->rest, w->n));
    for (uint32_t k = f->count; k-- > 0;) {
        double v = z[k];
        for (uint32_t j = k + 1; j < f->count; j++)
            v -= r[k][j] * f->c[j];
        f->c[k] = r[k][k] > 0 ? v / r[k][k] : 0;
    }
    for (uint32_t k = 1; k < f->count; k++) /* coefficients of the tensors, not of differences */
        f->c[0] -= f->c[k];
}

static void remove_column(fit *f, uint32_t k)
{
    f->count--;
    for (uint32_t j = k; j < f->count; j++) {
        f->source[j] = f->source[j + 1];
        f->x[j] = f->x[j + 1];
        f->c[j] = f->c[j + 1];
    }
}

/* Removes tensors without which the sum is as good. */
static void reduce(linear_work *w, fit *f, const float *y)
{
    while (f->count > 1) {
        uint32_t least = 0;
        for (uint32_t k = 1; k < f->count; k++)
            if (fabs(f->c[k]) < fabs(f->c[least]))
                least = k;
        fit less = *f;
        remove_column(&less, least);
        solve(w, &less, y);
        if (!(less.residual <= f->residual * 1.02 + 1e-30))
            return;
        w->dropped[w->dropped_count++] = f->source[least];
        *f = less;
    }
}

/* ==== trials =============================================================================== */

static bool done(const fms_search *s)
{
    return s->best.count && s->best.bits < SRC_EXACT;
}

static fm_status try_sum(fms_search *s, unsigned form, unsigned arithmetic, const uint32_t *source,
                         const double *c, uint32_t count, double *bits)
{
    uint8_t params[8 * (COLUMNS_MAX + 1)];
    for (uint32_t k = 0; k < count; k++) {
        uint64_t u;
        memcpy(&u, &c[k], sizeof u);
        fm_put_u64(params + 8 * (size_t)k, u);
    }
    const fms_recipe r = {FMS_OP_LINEAR, (uint16_t)(form | arithmetic << 8),
                          fm_span_of(params, 8 * (size_t)count)};
    return src_try(s, &r, source, count, bits);
}

static fm_status try_arithmetics(fms_search *s, unsigned form, const uint32_t *source,
                                 const double *c, uint32_t count)
{
    const fm_dtype dtype = s->subject->form.dtype;
    fm_status rc = FM_OK;
    bool wider = false;
    for (uint32_t k = 0; k < count; k++)
        wider = wider || (dtype != FM_F32 && s->source[source[k]].form.dtype != dtype);
    for (unsigned narrow = 0; narrow <= (wider ? 1u : 0u); narrow++)
        for (unsigned a = 0; rc == FM_OK && a < FMS_ARITH_COUNT && !done(s); a++)
            if (a != FMS_ARITH_STORED || dtype != FM_F32)
                rc = try_sum(s, form | (narrow ? (unsigned)FMS_LINEAR_NARROW : 0u), a, source, c,
                             count, NULL);
    return rc;
}

static fm_status try_reversed(fms_search *s, const fit *f)
{
    uint32_t source[COLUMNS_MAX];
    double c[COLUMNS_MAX];
    for (uint32_t k = 0; k < f->count; k++) {
        source[k] = f->source[f->count - 1 - k];
        c[k] = f->c[f->count - 1 - k];
    }
    return try_arithmetics(s, FMS_LINEAR_SUM, source, c, f->count);
}

/* Tries base + sum of c (x - base); base may be a tensor of the sum or another one. */
static fm_status try_task(fms_search *s, const fit *f, uint32_t base)
{
    uint32_t source[COLUMNS_MAX + 1] = {base}, n = 1;
    double c[COLUMNS_MAX + 1] = {1};
    for (uint32_t k = 0; k < f->count; k++)
        if (f->source[k] != base) {
            source[n] = f->source[k];
            c[n++] = f->c[k];
        }
    return n > 1 && n <= FMS_PARENTS_MAX ? try_arithmetics(s, FMS_LINEAR_TASK, source, c, n)
                                         : FM_OK;
}

static bool all_equal(const fit *f)
{
    for (uint32_t k = 1; k < f->count; k++)
        if (fabs(f->c[k] - f->c[0]) > 1e-6)
            return false;
    return f->count > 1;
}

static fm_status try_forms(linear_work *w, const fit *f)
{
    fms_search *s = w->s;
    double sum = 0, mean[COLUMNS_MAX] = {0};
    for (uint32_t k = 0; k < f->count; k++)
        sum += f->c[k];
    fm_status rc = try_arithmetics(s, FMS_LINEAR_SUM, f->source, f->c, f->count);
    if (rc == FM_OK && f->count > 1 && !done(s))
        rc = try_reversed(s, f);
    if (rc == FM_OK && all_equal(f) && !done(s)) {
        mean[0] = f->c[0];
        rc = try_arithmetics(s, FMS_LINEAR_SCALED, f->source, mean, f->count);
        mean[0] = 1.0 / f->c[0];
        FM_THEN(rc, try_arithmetics(s, FMS_LINEAR_DIVIDED, f->source, mean, f->count));
    }
    for (uint32_t k = 0; rc == FM_OK && fabs(sum - 1) < 1e-3 && k < f->count && !done(s); k++)
        rc = try_task(s, f, f->source[k]);
    for (uint32_t k = 0; rc == FM_OK && k < w->dropped_count && k < 3 && !done(s); k++)
        rc = try_task(s, f, w->dropped[k]);
    return rc;
}

/* The number that a person or a program may have written for c. */
static double snap(double c, double tolerance)
{
    static const int q[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 100, 1000};
    for (size_t i = 0; i < FM_ARRAY_LEN(q); i++) {
        const double p = rint(c * q[i]) / q[i];
        if (fabs(c - p) <= tolerance)
            return p;
    }
    return c;
}

static float next_float(float v, int steps)
{
    for (; steps > 0; steps--)
        v = nextafterf(v, INFINITY);
    for (; steps < 0; steps++)
        v = nextafterf(v, -INFINITY);
    return v;
}

/* Coefficients that are not round numbers (from an angle) may be off by some units in the last
 * place: the windows show which direction is better. */
static fm_status refine(fms_search *s, const fit *f)
{
    static const int step[] = {1, -1, 3, -3, 12, -12, 50, -50};
    double c[COLUMNS_MAX], least;
    for (uint32_t k = 0; k < f->count; k++)
        c[k] = (double)(float)f->c[k];
    fm_status rc = try_sum(s, FMS_LINEAR_SUM, FMS_ARITH_F32, f->source, c, f->count, &least);
    bool better = true;
    for (unsigned round = 0; rc == FM_OK && better && round < 12 && !done(s); round++) {
        better = false;
        for (uint32_t k = 0; rc == FM_OK && k < f->count; k++)
            for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(step); i++) {
                const double was = c[k];
                double bits;
                c[k] = (double)next_float((float)was, step[i]);
                rc = try_sum(s, FMS_LINEAR_SUM, FMS_ARITH_F32, f->source, c, f->count, &bits);
                if (bits < least) {
                    least = bits;
                    better = true;
                } else {
                    c[k] = was;
                }
            }
    }
    return rc;
}

static fm_status try_fit(linear_work *w, const fit *f)
{
    static const double tolerance[] = {5e-3, 2e-4, 0};

    for (size_t i = 0; i < FM_ARRAY_LEN(tolerance) && !done(w->s); i++) {
        fit g = *f;
        bool moved = i == 0 || tolerance[i] == 0;
        for (uint32_t k = 0; k < g.count; k++) {
            g.c[k] = snap(f->c[k], tolerance[i]);
            moved = moved || g.c[k] != snap(f->c[k], tolerance[i - (i > 0)]);
        }
        if (moved)
            FM_TRY(try_forms(w, &g));
    }
    if (!done(w->s) && f->count > 1)
        FM_TRY(refine(w->s, f));
    return FM_OK;
}

/* ==== the windows ========================================================================== */

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Loads the windows' elements of a source, cast to float32. */
static fm_status load_source(linear_work *w, uint32_t source, float *to)
{
    fms_search *s = w->s;
    const fm_dtype dtype = s->subject->form.dtype;
    const size_t width = fm_dtype_get(dtype)->block_bytes, per = s->window_bytes / width;
    const fm_dtype_info *type = fm_dtype_get(s->source[source].form.dtype);
    const uint64_t spare = 2 * (uint64_t)type->block_elems;
    uint8_t *coded = fm_malloc((size_t)((per + spare) / type->block_elems * type->block_bytes));
    float *wide = fm_malloc((per + (size_t)spare) * sizeof *wide);
    fm_status rc = coded && wide ? FM_OK : FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < s->windows; i++) {
        const uint64_t first = s->window_at[i] / width, from = first / type->block_elems;
        const uint64_t blocks = (first + per - 1) / type->block_elems + 1 - from;
        rc = src_read(s, source, from * type->block_bytes, coded,
                      (size_t)(blocks * type->block_bytes));
        FM_THEN(rc,
                fm_to_f32(wide, s->source[source].form.dtype, coded, blocks * type->block_elems));
        if (rc == FM_OK)
            memcpy(to + i * per, wide + (first - from * type->block_elems), per * sizeof *to);
    }
    fm_free(coded);
    fm_free(wide);
    return rc;
}

static fm_status load_all(linear_work *w, fit *f, const float **y)
{
    fms_search *s = w->s;
    const fm_dtype dtype = s->subject->form.dtype;
    const size_t width = fm_dtype_get(dtype)->block_bytes, per = s->window_bytes / width;
    fm_status rc = FM_OK;
    for (uint32_t i = 0; rc == FM_OK && i < s->path_sources; i++) {
        const fms_form *form = &s->source[i].form;
        float *to = w->x + f->count * w->n;
        if (!fm_shape_eq(&form->shape, &s->subject->form.shape) || form->dtype == FM_F64 ||
            !fm_dtype_get(form->dtype)->is_float)
            continue;
        rc = load_source(w, i, to);
        if (rc == FM_OK && all_finite(to, w->n)) {
            f->x[f->count] = to;
            f->source[f->count++] = i;
        }
    }
    float *child = w->x + (size_t)COLUMNS_MAX * w->n;
    for (uint32_t i = 0; rc == FM_OK && i < s->windows; i++)
        rc = fm_to_f32(child + i * per, dtype, s->bytes + s->window_at[i] % FM_LEAF_BYTES, per);
    *y = child;
    return rc;
}

/* The residual of the nearest tensor alone. */
static double nearest(const linear_work *w, const fit *f, const float *y)
{
    double best = INFINITY;
    for (uint32_t k = 0; k < f->count; k++) {
        double sum = 0;
        for (size_t i = 0; i < w->n; i++) {
            const double d = (double)y[i] - (double)f->x[k][i];
            sum += d * d;
        }
        best = fmin(best, sqrt(sum));
    }
    return best;
}

fm_status src_linear(fms_search *s)
{
    const fm_dtype dtype = s->subject->form.dtype;
    if ((dtype != FM_F32 && dtype != FM_BF16 && dtype != FM_F16) || s->path_sources < 2)
        return FM_OK;
    linear_work w = {.s = s};
    w.n = s->windows * (s->window_bytes / fm_dtype_get(dtype)->block_bytes);
    w.x = fm_malloc((COLUMNS_MAX + 1) * w.n * sizeof *w.x);
    w.q = fm_malloc(COLUMNS_MAX * w.n * sizeof *w.q);
    w.rest = fm_malloc(w.n * sizeof *w.rest);
    fit f = {.count = 0};
    const float *y = NULL;
    fm_status rc = w.x && w.q && w.rest ? load_all(&w, &f, &y) : FM_ENOMEM;
    if (rc == FM_OK && f.count > 1 && w.n > COLUMNS_MAX && all_finite(y, w.n)) {
        solve(&w, &f, y);
        if (f.residual < 0.7 * nearest(&w, &f, y)) {
            reduce(&w, &f, y);
            rc = try_fit(&w, &f);
        }
    }
    fm_free(w.x);
    fm_free(w.q);
    fm_free(w.rest);
    return rc;
}
