/* act.c - the oracle's layer norm, activations, softcaps, mixtures of rows. See ref.c. */
#include "infer/cpu/ref/ref.h"

#include "infer/arch.h"

#include <math.h>

void fmi_ref_layernorm(fm_backend *be, float *y, const float *x, const float *gain,
                       const float *bias, uint32_t m, uint32_t h, size_t ldx, float eps)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        const float *xr = x + i * ldx;
        double mean = 0.0, var = 0.0;
        for (uint32_t j = 0; j < h; j++)
            mean += (double)xr[j] / h;
        for (uint32_t j = 0; j < h; j++)
            var += ((double)xr[j] - mean) * ((double)xr[j] - mean) / h;
        double rstd = 1.0 / sqrt(var + (double)eps);
        for (uint32_t j = 0; j < h; j++)
            y[i * ldx + j] =
                (float)(((double)xr[j] - mean) * rstd * (gain ? (double)gain[j] : 1.0) +
                        (bias ? (double)bias[j] : 0.0));
    }
}

double fmi_ref_f(fm_act f, double x)
{
    switch (f) {
    case FM_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case FM_ACT_GELU:
        return 0.5 * x * erfc(-x / 1.4142135623730950488);
    case FM_ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case FM_ACT_RELU2:
        return x > 0.0 ? x * x : 0.0;
    case FM_ACT_CLAMPED:
        x = fmin(x, (double)FM_ACT_LIMIT);
        return x / (1.0 + exp(-(double)FM_ACT_ALPHA * x));
    case FM_ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case FM_ACT_SILU:
        break;
    }
    return x / (1.0 + exp(-x));
}

double fmi_ref_factor(fm_act f, double up)
{
    const double most = (double)FM_ACT_LIMIT;
    return f == FM_ACT_CLAMPED ? 1.0 + fmin(most, fmax(-most, up)) : up;
}

void fmi_ref_act(fm_backend *be, fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                 const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++)
            y[i * ldy + j] = (float)(fmi_ref_f(f, (double)gate[i * ldg + j]) *
                                     (up ? fmi_ref_factor(f, (double)up[i * ldu + j]) : 1.0));
}

void fmi_ref_softcap(fm_backend *be, float *y, size_t ldy, uint32_t m, uint32_t n, float cap)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++)
            y[i * ldy + j] = (float)((double)cap * tanh((double)y[i * ldy + j] / (double)cap));
}

void fmi_ref_mix_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                      const int32_t *row, const float *weight, uint32_t per, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0.0;
            for (uint32_t j = 0; j < per; j++)
                sum += (double)weight[i * per + j] * (double)x[(size_t)row[i * per + j] * ldx + c];
            y[i * ldy + c] = (float)sum;
        }
}

static void ref_shares(const fm_route *r, const float *score, double *share)
{
    double sum = 0.0;
    for (uint32_t e = 0; e < r->experts; e++)
        sum += exp((double)score[e]);
    for (uint32_t e = 0; e < r->experts; e++)
        share[e] = r->sigmoid ? 1.0 / (1.0 + exp(-(double)score[e])) : exp((double)score[e]) / sum;
}

/* The sum of the two largest values of group g, or its largest value. */
static float ref_group(const fm_route *r, const float *value, uint32_t g)
{
    uint32_t each = r->experts / r->groups;
    float best = -INFINITY;
    for (uint32_t a = g * each; a < (g + 1) * each; a++)
        for (uint32_t b = g * each; r->groups_best ? b <= a : b < a; b++)
            best = fmaxf(best, r->groups_best ? value[a] : value[a] + value[b]);
    return best;
}

/* Whether expert e is in one of the groups that fewer than groups_kept others beat. */
static bool ref_in_kept(const fm_route *r, const float *value, uint32_t e)
{
    uint32_t better = 0, own = r->groups ? e / (r->experts / r->groups) : 0;
    for (uint32_t g = 0; g < r->groups; g++) {
        float other = ref_group(r, value, g), mine = ref_group(r, value, own);
        better += other > mine || (other == mine && g < own);
    }
    return !r->groups || better < r->groups_kept;
}

/* Row i's experts are those whose value fewer than `chosen` other experts beat. */
static void ref_choose(const fm_route *r, uint32_t i)
{
    const float *score = r->score + i * r->ld;
    int32_t *expert = r->expert + (size_t)i * r->chosen;
    double share[FM_MAX_EXPERTS], sum = 0.0, scale = r->scale != 0.0f ? (double)r->scale : 1.0;
    float value[FM_MAX_EXPERTS];
    uint32_t n = 0;
    ref_shares(r, score, share);
    for (uint32_t e = 0; e < r->experts; e++) {
        value[e] =
            (r->sigmoid && !r->by_score) || r->bias || r->groups ? (float)share[e] : score[e];
        value[e] += r->bias ? r->bias[(size_t)i * r->experts + e] : 0.0f;
    }
    for (uint32_t e = 0; e < r->experts; e++) {
        uint32_t better = 0;
        for (uint32_t o = 0; o < r->experts; o++)
            better += (value[o] > value[e] || (value[o] == value[e] && o < e)) &&
                      ref_in_kept(r, value, o);
        if (better < r->chosen && ref_in_kept(r, value, e))
            expert[n++] = (int32_t)e;
    }
    for (uint32_t j = 0; j < n; j++)
        sum += share[expert[j]];
    sum = r->renormalise ? fmax(sum, r->least) + r->more : 1.0;
    for (uint32_t j = 0; j < n; j++)
        r->weight[(size_t)i * r->chosen + j] = (float)(share[expert[j]] / sum * scale);
}

/* p [experts]: the shares of the sparse mixer among the experts but `taken`; returns the choice. */
static uint32_t ref_mix(const fm_route *r, const float *score, uint32_t taken, double *p)
{
    uint32_t best = taken == 0 ? 1 : 0;
    double sum = 0.0;
    for (uint32_t e = 0; e < r->experts; e++)
        best = e != taken && score[e] > score[best] ? e : best;
    for (uint32_t e = 0; e < r->experts; e++) {
        double s = (double)score[e], m = (double)score[best];
        bool near = e != taken && !((m - s) / fmax(fabs(s), m) > 2.0 * (double)r->jitter);
        p[e] = near ? exp(s - m) : 0.0;
        sum += p[e];
    }
    for (uint32_t e = 0; e < r->experts; e++)
        p[e] /= sum;
    return best;
}

static void ref_mix_row(const fm_route *r, uint32_t i)
{
    const float *score = r->score + i * r->ld;
    double p[2][FM_MAX_EXPERTS];
    uint32_t a = ref_mix(r, score, UINT32_MAX, p[0]), b = ref_mix(r, score, a, p[1]);
    uint32_t at = a < b ? 0 : 1;
    r->expert[2 * i + at] = (int32_t)a;
    r->expert[2 * i + 1 - at] = (int32_t)b;
    r->weight[2 * i + at] = (float)p[0][a];
    r->weight[2 * i + 1 - at] = (float)p[1][b];
}

static void ref_mix_grad_row(const fm_route *r, uint32_t i, float *dscore, const float *dweight)
{
    const float *score = r->score + i * r->ld;
    double p[2][FM_MAX_EXPERTS];
    uint32_t a = ref_mix(r, score, UINT32_MAX, p[0]), b = ref_mix(r, score, a, p[1]);
    uint32_t at = a < b ? 0 : 1;
    double da = (double)dweight[r->slot[2 * i + at]], db = (double)dweight[r->slot[2 * i + 1 - at]];
    for (uint32_t e = 0; e < r->experts; e++)
        dscore[(size_t)i * r->experts + e] =
            (float)(da * p[0][a] * ((e == a ? 1.0 : 0.0) - p[0][e]) +
                    db * p[1][b] * ((e == b ? 1.0 : 0.0) - p[1][e]));
}

void fmi_ref_route(fm_backend *be, const fm_route *r)
{
    int32_t at = 0;
    (void)be;
    for (uint32_t i = 0; i < r->m; i++)
        if (r->jitter > 0.0f)
            ref_mix_row(r, i);
        else
            ref_choose(r, i);
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t p = 0; p < r->parts; p++) {
            r->begin[(size_t)e * r->parts + p] = at;
            for (int32_t n = r->bound[p] * (int32_t)r->chosen;
                 n < r->bound[p + 1] * (int32_t)r->chosen; n++)
                if (r->expert[n] == (int32_t)e) {
                    if (r->slot)
                        r->slot[n] = at;
                    r->list[at++] = n;
                }
        }
    r->begin[(size_t)r->experts * r->parts] = at;
}

/* d share_j / d score_e */
static double ref_slope(const fm_route *r, const double *share, uint32_t j, uint32_t e)
{
    double one = j == e ? 1.0 : 0.0;
    return r->sigmoid ? one * share[j] * (1.0 - share[j]) : share[j] * (one - share[e]);
}

/* w_j = scale s_j / S, so dw_j = scale (ds_j / S - s_j dS / S^2), with S the sum of the chosen
 * shares, or a constant. */
void fmi_ref_route_grad(fm_backend *be, const fm_route *r, float *dscore, const float *dweight)
{
    double share[FM_MAX_EXPERTS], scale = r->scale != 0.0f ? (double)r->scale : 1.0;
    (void)be;
    for (uint32_t i = 0; i < r->m; i++) {
        const int32_t *expert = r->expert + (size_t)i * r->chosen;
        const int32_t *slot = r->slot + (size_t)i * r->chosen;
        double kept = 0.0;
        if (r->jitter > 0.0f) {
            ref_mix_grad_row(r, i, dscore, dweight);
            continue;
        }
        ref_shares(r, r->score + i * r->ld, share);
        for (uint32_t k = 0; k < r->chosen; k++)
            kept += share[expert[k]];
        bool through = r->renormalise && kept >= r->least;
        double sum = through ? kept + r->more : r->renormalise ? r->least : 1.0;
        for (uint32_t e = 0; e < r->experts; e++) {
            double d = 0.0, dsum = 0.0;
            for (uint32_t k = 0; k < r->chosen && through; k++)
                dsum += ref_slope(r, share, (uint32_t)expert[k], e);
            for (uint32_t k = 0; k < r->chosen; k++)
                d += (double)dweight[slot[k]] * (ref_slope(r, share, (uint32_t)expert[k], e) / sum -
                                                 share[expert[k]] * dsum / (sum * sum));
            dscore[(size_t)i * r->experts + e] = (float)(d * scale);
        }
    }
}

void fmi_ref_xielu(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                   const float *param, uint32_t m, uint32_t n)
{
    double a = (double)param[0], b = (double)param[1], eps = (double)param[3];
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t k = 0; k < n; k++) {
            double v = (double)x[i * ldx + k];
            double f = v > 0.0 ? a * v * v : b * (expm1(fmin(v, eps)) - v);
            y[i * ldy + k] = (float)(f + (double)param[2] * v);
        }
}

/* In float, as the formula says it: in double other numbers would be halves. */
void fmi_ref_round_rows(fm_backend *be, float *y, size_t ldy, float *grain, const float *x,
                        size_t ldx, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        float most = 1e-5f;
        for (uint32_t k = 0; k < n; k++)
            most = fmaxf(most, fabsf(x[i * ldx + k]));
        grain[i] = 127.0f / most;
        for (uint32_t k = 0; k < n; k++)
            y[i * ldy + k] = rintf(x[i * ldx + k] * grain[i]) / grain[i];
    }
}

void fmi_ref_xielu_grad(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                        const float *x, size_t ldx, const float *param, uint32_t m, uint32_t n)
{
    double a = (double)param[0], b = (double)param[1], eps = (double)param[3];
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t k = 0; k < n; k++) {
            double v = (double)x[i * ldx + k], slope = b * ((v < eps ? exp(v) : 0.0) - 1.0);
            slope = (v > 0.0 ? 2.0 * a * v : slope) + (double)param[2];
            dx[i * lddx + k] = (float)((double)dy[i * lddy + k] * slope);
        }
}

void fmi_ref_sigmoid_grad(fm_backend *be, float *dx, const float *dy, const float *y, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        dx[i] = (float)((double)dy[i] * ((double)y[i] - (double)y[i] * (double)y[i]));
}

void fmi_ref_sigmoid(fm_backend *be, float *y, const float *x, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        y[i] = (float)(1.0 / (1.0 + exp(-(double)x[i])));
}
