/* math.c - pooling, InfoNCE, DPO: plain loops in double over ascending indexes. */
#include "train/objective/objective.h"

#include "store/base/math/detmath.h"

#include <math.h>
#include <string.h>

#define LANES 8u
#define TINY 1e-12 /* no vector is divided by less, as in torch's normalize */

/* ---- pooling ---- */
static uint32_t picked(uint32_t len, fmi_pool_mode mode)
{
    return mode == FMI_POOL_LAST ? len - 1 : 0;
}

void fmt_pool_rows(double *out, const float *x, uint32_t len, uint32_t h, fmi_pool_mode mode)
{
    uint32_t from = mode == FMI_POOL_MEAN ? 0 : picked(len, mode);
    uint32_t to = mode == FMI_POOL_MEAN ? len : from + 1;

    fm_assert(len > 0);
    for (uint32_t j = 0; j < h; j++)
        out[j] = 0.0;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t j = 0; j < h; j++)
            out[j] += (double)x[(size_t)i * h + j];
    for (uint32_t j = 0; j < h && mode == FMI_POOL_MEAN; j++)
        out[j] /= (double)len;
}

void fmt_pool_rows_grad(float *dx, const double *dout, uint32_t len, uint32_t h, fmi_pool_mode mode)
{
    double by = mode == FMI_POOL_MEAN ? 1.0 / (double)len : 1.0;

    for (uint32_t i = 0; i < len; i++) {
        bool counts = mode == FMI_POOL_MEAN || i == picked(len, mode);
        for (uint32_t j = 0; j < h; j++)
            dx[(size_t)i * h + j] = counts ? (float)(dout[j] * by) : 0.0f;
    }
}

/* ---- InfoNCE ---- */

/* Adds element i to lane i % 8, ascending; then the lanes are folded by halves. */
static double dot(const double *a, const double *b, uint32_t n)
{
    double lane[LANES] = {0};

    for (uint32_t i = 0; i + LANES <= n; i += LANES)
        for (uint32_t l = 0; l < LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (uint32_t i = n / LANES * LANES; i < n; i++)
        lane[i % LANES] += a[i] * b[i];
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* unit [n, h]: rows of x divided by their norm. */
static void units(double *unit, double *norm, const double *x, uint32_t n, uint32_t h)
{
    for (uint32_t i = 0; i < n; i++) {
        const double *row = x + (size_t)i * h;
        norm[i] = FM_MAX(sqrt(dot(row, row, h)), TINY);
        for (uint32_t j = 0; j < h; j++)
            unit[(size_t)i * h + j] = row[j] / norm[i];
    }
}

/* Cross entropy of `own` among `count` scores at a distance of `step`; adds their gradient, times
 * `by`, to ds. *best: no score is above own's. */
static double choose(double *ds, const double *s, uint32_t count, size_t step, uint32_t own,
                     double by, bool *best)
{
    double max = s[own * step], sum = 0.0;

    for (uint32_t j = 0; j < count; j++)
        max = FM_MAX(max, s[j * step]);
    for (uint32_t j = 0; j < count; j++)
        sum += fm_exp(s[j * step] - max);
    for (uint32_t j = 0; j < count; j++)
        ds[j * step] += by * (fm_exp(s[j * step] - max) / sum - (j == own ? 1.0 : 0.0));
    *best = s[own * step] == max;
    return max + fm_log(sum) - s[own * step];
}

/* dx[i] = (g - unit (unit . g)) / norm with g = sum over j of ds[i * si + j * sj] other[j]. */
static void unit_grads(double *dx, const double *unit, const double *norm, uint32_t n,
                       const double *other, uint32_t count, const double *ds, size_t si, size_t sj,
                       uint32_t h)
{
    for (uint32_t i = 0; i < n; i++) {
        double *g = dx + (size_t)i * h;
        const double *u = unit + (size_t)i * h;
        for (uint32_t k = 0; k < h; k++)
            g[k] = 0.0;
        for (uint32_t j = 0; j < count; j++) {
            double by = ds[i * si + j * sj];
            for (uint32_t k = 0; k < h; k++)
                g[k] += by * other[(size_t)j * h + k];
        }
        double along = dot(u, g, h);
        for (uint32_t k = 0; k < h; k++)
            g[k] = (g[k] - u[k] * along) / norm[i];
    }
}

size_t fmt_infonce_work(uint32_t n, uint32_t cands, uint32_t h)
{
    return ((size_t)n + cands) * ((size_t)h + 1) + 2 * (size_t)n * cands;
}

void fmt_infonce_run(fmt_infonce *c)
{
    uint32_t n = c->n, m = c->cands, h = c->h;
    double *ua = c->work, *uc = ua + (size_t)n * h, *na = uc + (size_t)m * h, *nc = na + n;
    double *s = nc + m, *ds = s + (size_t)n * m;
    double by = c->dloss / c->temperature * (c->symmetric ? 0.5 : 1.0);
    double share = c->symmetric ? 0.5 : 1.0;
    bool best;

    fm_assert(n > 0 && m >= n);
    units(ua, na, c->anchor, n, h);
    units(uc, nc, c->cand, m, h);
    memset(ds, 0, (size_t)n * m * sizeof(*ds));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < m; j++)
            s[(size_t)i * m + j] = dot(ua + (size_t)i * h, uc + (size_t)j * h, h) / c->temperature;
    c->loss = 0.0;
    c->hits = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)i * m;
        c->loss += share * choose(ds + at, s + at, m, 1, i, by, &best);
        c->hits += best;
    }
    for (uint32_t j = 0; j < n && c->symmetric; j++)
        c->loss += share * choose(ds + j, s + j, n, m, j, by, &best);
    if (c->danchor)
        unit_grads(c->danchor, ua, na, n, uc, m, ds, m, 1, h);
    if (c->dcand)
        unit_grads(c->dcand, uc, nc, m, ua, n, ds, 1, m, h);
}

/* ---- DPO ---- */

/* log(1 + x) for x in [0, 1], without the cancellation of 1 + x. */
static double log1p_small(double x)
{
    double u = 1.0 + x;
    return u == 1.0 ? x : fm_log(u) * (x / (u - 1.0)); /* Kahan */
}

double fmt_dpo_loss(double margin, double beta, double *slope)
{
    double z = beta * margin, e = fm_exp(-fabs(z)); /* <= 1 */

    *slope = -beta * (z >= 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e));
    return (z >= 0.0 ? 0.0 : -z) + log1p_small(e);
}
