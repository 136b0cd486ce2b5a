/* recurrent.c - the oracle of recurrences: sums in double, rounded at the end. */
#include "infer/cpu/ref/ref.h"

#include <math.h>

#include "store/base/mem.h"

/* u of the row that stands `back` rows before entry i, from the rows or from the state. */
static double input_at(const fm_convolve *c, uint32_t i, uint32_t back, uint32_t channel)
{
    const fm_state_rows *r = &c->rows;
    for (; back > 0 && r->from[i] == FM_STATE_ON; back--)
        i--;
    if (back > 0) /* the entry is the first of its sequence here */
        return r->from[i] < 0
                   ? 0.0
                   : (double)r->pages[(size_t)r->from[i] * r->page_floats +
                                      (size_t)(c->kernel - 1 - back) * c->channels + channel];
    size_t at = (size_t)r->row[i] * c->ldx + channel;
    return (double)(c->before ? c->before[at] * c->x[at] : c->x[at]);
}

void fmi_ref_convolve(fm_backend *be, const fm_convolve *c)
{
    const fm_state_rows *r = &c->rows;
    (void)be;
    for (uint32_t i = 0; i < r->m; i++)
        for (uint32_t n = 0; n < c->channels; n++) {
            double y = c->bias ? (double)c->bias[n] : 0.0;
            for (uint32_t j = 0; j < c->kernel; j++)
                y += (double)c->weight[(size_t)n * c->kernel + j] *
                     input_at(c, i, c->kernel - 1 - j, n);
            if (c->silu)
                y = fmi_ref_f(FM_ACT_SILU, y);
            if (c->after)
                y *= (double)c->after[(size_t)r->row[i] * c->ldx + n];
            c->y[(size_t)r->row[i] * c->ldy + n] = (float)y;
            for (uint32_t j = 0; j + 1 < c->kernel && r->to[i] >= 0; j++)
                r->pages[(size_t)r->to[i] * r->page_floats + (size_t)j * c->channels + n] =
                    (float)input_at(c, i, c->kernel - 2 - j, n);
        }
}

static double before_silu(const fm_convolve *c, uint32_t i, uint32_t n)
{
    double z = c->bias ? (double)c->bias[n] : 0.0;
    for (uint32_t j = 0; j < c->kernel; j++)
        z += (double)c->weight[(size_t)n * c->kernel + j] * input_at(c, i, c->kernel - 1 - j, n);
    return z;
}

static double grad_before_silu(const fm_convolve_grad *g, uint32_t i, uint32_t n)
{
    const fm_convolve *c = &g->c;
    size_t row = (size_t)c->rows.row[i];
    double d = (double)g->dy[row * g->lddy + n], z = before_silu(c, i, n);
    double s = 1.0 / (1.0 + exp(-z));
    d *= c->after ? (double)c->after[row * c->ldx + n] : 1.0;
    return c->silu ? d * s * (1.0 + z * (1.0 - s)) : d;
}

/* What u of entry i meets in the rows from there on. */
static double grad_of_input(const fm_convolve_grad *g, uint32_t i, uint32_t n)
{
    const fm_convolve *c = &g->c;
    double du = 0.0;
    for (uint32_t later = 0; later < c->kernel && i + later < c->rows.m; later++) {
        if (later > 0 && c->rows.from[i + later] != FM_STATE_ON)
            break;
        du += (double)c->weight[(size_t)n * c->kernel + c->kernel - 1 - later] *
              grad_before_silu(g, i + later, n);
    }
    return du;
}

void fmi_ref_convolve_grad(fm_backend *be, const fm_convolve_grad *g)
{
    const fm_convolve *c = &g->c;
    (void)be;
    for (uint32_t n = 0; n < c->channels; n++) {
        double db = 0.0, dw[FM_MAX_CONV_KERNEL] = {0};
        for (uint32_t i = 0; i < c->rows.m; i++) {
            size_t row = (size_t)c->rows.row[i], in = row * c->ldx + n, out = row * g->lddx + n;
            double dz = grad_before_silu(g, i, n), du = grad_of_input(g, i, n);
            double z = before_silu(c, i, n);
            db += dz;
            for (uint32_t j = 0; j < c->kernel; j++)
                dw[j] += dz * input_at(c, i, c->kernel - 1 - j, n);
            g->dx[out] = (float)(c->before ? du * (double)c->before[in] : du);
            if (c->before)
                g->dbefore[out] = (float)(du * (double)c->x[in]);
            if (c->after)
                g->dafter[out] = (float)((double)g->dy[row * g->lddy + n] *
                                         (c->silu ? fmi_ref_f(FM_ACT_SILU, z) : z));
        }
        for (uint32_t j = 0; g->dweight && j < c->kernel; j++)
            g->dweight[(size_t)n * c->kernel + j] += (float)dw[j];
        if (g->dbias)
            g->dbias[n] += (float)db;
    }
}

#define MOST 512u /* rows of a state */

/* One column of a head's state before entry i: s, if the entry goes on. */
static void load(double *s, const fm_state_rows *r, uint32_t i, size_t at, uint32_t n, uint32_t hd)
{
    for (uint32_t j = 0; j < n && r->from[i] != FM_STATE_ON; j++)
        s[j] = r->from[i] < 0
                   ? 0.0
                   : (double)r->pages[(size_t)r->from[i] * r->page_floats + at + (size_t)j * hd];
}

static void store(const double *s, const fm_state_rows *r, uint32_t i, size_t at, uint32_t n,
                  uint32_t hd)
{
    for (uint32_t j = 0; j < n && r->to[i] >= 0; j++)
        r->pages[(size_t)r->to[i] * r->page_floats + at + (size_t)j * hd] = (float)s[j];
}

static void scan_column(const fm_scan *s, uint32_t h, uint32_t p)
{
    size_t at = (size_t)h * s->n * s->hd + p, c = (size_t)h * s->hd + p;
    size_t group = (size_t)(h / (s->heads / s->groups)) * s->n, own = s->by_channel ? c : h;
    double state[MOST];
    for (uint32_t i = 0; i < s->rows.m; i++) {
        size_t row = (size_t)s->rows.row[i];
        double x = (double)s->x[row * s->ldx + c], y = (double)s->d[own] * x;
        double dt = log1p(exp((double)s->dt[row * s->lddt + own] + (double)s->dt_bias[own]));
        dt = fmin(fmax(dt, (double)s->dt_min), (double)s->dt_max);
        load(state, &s->rows, i, at, s->n, s->hd);
        for (uint32_t j = 0; j < s->n; j++) {
            double a = -exp((double)s->a_log[s->by_channel ? c * s->n + j : h]);
            state[j] = state[j] * exp(dt * a) + dt * x * (double)s->b[row * s->ldb + group + j];
            y += state[j] * (double)s->c[row * s->ldb + group + j];
        }
        s->y[row * s->ldy + c] = (float)y;
        store(state, &s->rows, i, at, s->n, s->hd);
    }
}

void fmi_ref_scan(fm_backend *be, const fm_scan *s)
{
    (void)be;
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint32_t p = 0; p < s->hd; p++)
            scan_column(s, h, p);
}

/* One column: g's sums of b and c, [m, groups * n] of doubles each, and all else. */
static void scan_grad_column(const fm_scan_grad *g, uint32_t h, uint32_t p, double *db, double *dc,
                             double *states)
{
    const fm_scan *s = &g->s;
    size_t c = (size_t)h * s->hd + p, wide = (size_t)s->groups * s->n;
    size_t group = (size_t)(h / (s->heads / s->groups)) * s->n, own = s->by_channel ? c : h;
    double next[MOST] = {0}, da[MOST] = {0}, dskip = 0.0, dbias = 0.0;

    for (uint32_t back = 0; back < 2 * s->rows.m; back++) {
        bool forward = back < s->rows.m;
        uint32_t i = forward ? back : 2 * s->rows.m - 1 - back;
        size_t row = (size_t)s->rows.row[i];
        bool on = s->rows.from[i] == FM_STATE_ON;
        const float *b = s->b + row * s->ldb + group, *cs = s->c + row * s->ldb + group;
        double x = (double)s->x[row * s->ldx + c], dy = (double)g->dy[row * g->lddy + c];
        double raw = (double)s->dt[row * s->lddt + own] + (double)s->dt_bias[own];
        double soft = log1p(exp(raw)), dt = fmin(fmax(soft, (double)s->dt_min), (double)s->dt_max);
        double *now = states + (size_t)i * s->n, add = 0.0, ddt = 0.0;
        for (uint32_t j = 0; j < s->n; j++) {
            double a = -exp((double)s->a_log[s->by_channel ? c * s->n + j : h]);
            double before = on ? now[j - (size_t)s->n] : 0.0;
            if (forward) {
                now[j] = before * exp(dt * a) + dt * x * (double)b[j];
                continue;
            }
            double ds = dy * (double)cs[j] + next[j];
            dc[i * wide + group + j] += dy * now[j];
            db[i * wide + group + j] += ds * dt * x;
            add += ds * (double)b[j];
            ds *= exp(dt * a);
            ddt += ds * before * a;
            da[j] += ds * before * a * dt;
            next[j] = on ? ds : 0.0;
        }
        if (forward)
            continue;
        ddt += add * x;
        ddt *= soft >= (double)s->dt_min && soft <= (double)s->dt_max ? 1.0 / (1.0 + exp(-raw)) : 0;
        g->dx[row * g->lddx + c] = (float)(add * dt + dy * (double)s->d[own]);
        dskip += dy * x;
        dbias += ddt;
        if (s->by_channel)
            g->ddt[row * g->ldddt + c] = (float)ddt;
        else
            g->ddt[row * g->ldddt + h] = (p ? g->ddt[row * g->ldddt + h] : 0.0f) + (float)ddt;
    }
    for (uint32_t j = 0; g->da_log && j < s->n; j++)
        g->da_log[s->by_channel ? c * s->n + j : h] += (float)da[j];
    if (g->dd)
        g->dd[own] += (float)dskip;
    if (g->ddt_bias)
        g->ddt_bias[own] += (float)dbias;
}

void fmi_ref_scan_grad(fm_backend *be, const fm_scan_grad *g)
{
    const fm_scan *s = &g->s;
    size_t wide = (size_t)s->groups * s->n, m = s->rows.m;
    double *mem = fm_calloc(m * (2 * wide + s->n) + 1, sizeof(*mem));
    double *dc = mem + m * wide;
    (void)be;
    fm_assert(mem);
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint32_t p = 0; p < s->hd; p++)
            scan_grad_column(g, h, p, mem, dc, dc + m * wide);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < wide; j++) {
            size_t at = (size_t)s->rows.row[i] * g->lddb + j;
            g->db[at] = (float)mem[i * wide + j];
            g->dc[at] = (float)dc[i * wide + j];
        }
    fm_free(mem);
}

static double length_of(const float *x, uint32_t n)
{
    double sum = 1e-6;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void delta_column(const fm_delta *d, uint32_t h, uint32_t p)
{
    size_t at = (size_t)h * d->dk * d->dv + p, from = (size_t)(h / (d->hv / d->hk)) * d->dk;
    double state[MOST];
    for (uint32_t i = 0; i < d->rows.m; i++) {
        size_t row = (size_t)d->rows.row[i];
        const float *q = d->q + row * d->ldx + from, *k = d->k + row * d->ldx + from;
        double lq = length_of(q, d->dk) * sqrt((double)d->dk), lk = length_of(k, d->dk);
        double a = (double)d->a[row * d->lda + h] + (double)d->dt_bias[h];
        double decay = exp(-exp((double)d->a_log[h]) * log1p(exp(a)));
        double beta = 1.0 / (1.0 + exp(-(double)d->b[row * d->lda + h])), seen = 0.0, y = 0.0;
        load(state, &d->rows, i, at, d->dk, d->dv);
        for (uint32_t j = 0; j < d->dk; j++)
            seen += (double)k[j] / lk * (state[j] *= decay);
        double u = ((double)d->v[row * d->ldx + (size_t)h * d->dv + p] - seen) * beta;
        for (uint32_t j = 0; j < d->dk; j++) {
            state[j] += (double)k[j] / lk * u;
            y += (double)q[j] / lq * state[j];
        }
        d->y[row * d->ldy + (size_t)h * d->dv + p] = (float)y;
        store(state, &d->rows, i, at, d->dk, d->dv);
    }
}

void fmi_ref_delta(fm_backend *be, const fm_delta *d)
{
    (void)be;
    for (uint32_t h = 0; h < d->hv; h++)
        for (uint32_t p = 0; p < d->dv; p++)
            delta_column(d, h, p);
}

/* Sums over columns: gradients of q and k of length 1, of log(decay) and of beta. */
typedef struct delta_sums {
    double *q, *k, *log, *beta, *states;
} delta_sums;

static double beta_of(const fm_delta *d, size_t row, uint32_t h)
{
    return 1.0 / (1.0 + exp(-(double)d->b[row * d->lda + h]));
}

static double log_decay(const fm_delta *d, size_t row, uint32_t h)
{
    double a = (double)d->a[row * d->lda + h] + (double)d->dt_bias[h];
    return -exp((double)d->a_log[h]) * log1p(exp(a));
}

static void delta_grad_column(const fm_delta_grad *g, uint32_t h, uint32_t p, const delta_sums *sum)
{
    const fm_delta *d = &g->d;
    size_t from = (size_t)(h / (d->hv / d->hk)) * d->dk, wide = (size_t)d->hk * d->dk;
    size_t c = (size_t)h * d->dv + p;
    double ds[MOST] = {0};

    for (uint32_t step = 0; step < 2 * d->rows.m; step++) {
        bool forward = step < d->rows.m;
        uint32_t i = forward ? step : 2 * d->rows.m - 1 - step;
        size_t row = (size_t)d->rows.row[i];
        const float *q = d->q + row * d->ldx + from, *k = d->k + row * d->ldx + from;
        double lq = length_of(q, d->dk) * sqrt((double)d->dk), lk = length_of(k, d->dk);
        double decay = exp(log_decay(d, row, h)), beta = beta_of(d, row, h), seen = 0.0, du = 0.0;
        double *now = sum->states + (size_t)i * d->dk, dy = (double)g->dy[row * g->lddy + c];
        bool on = d->rows.from[i] == FM_STATE_ON;
        for (uint32_t j = 0; j < d->dk; j++)
            seen += (double)k[j] / lk * (on ? now[j - (size_t)d->dk] * decay : 0.0);
        double miss = (double)d->v[row * d->ldx + c] - seen;
        for (uint32_t j = 0; j < d->dk && forward; j++)
            now[j] = (on ? now[j - (size_t)d->dk] * decay : 0.0) + (double)k[j] / lk * miss * beta;
        if (forward)
            continue;
        for (uint32_t j = 0; j < d->dk; j++) {
            ds[j] += (double)q[j] / lq * dy;
            du += ds[j] * (double)k[j] / lk;
            sum->q[i * wide + from + j] += now[j] * dy;
        }
        g->dv[row * g->lddx + c] = (float)(du * beta);
        sum->beta[(size_t)i * d->hv + h] += du * miss;
        for (uint32_t j = 0; j < d->dk; j++) {
            double old = on ? now[j - (size_t)d->dk] * decay : 0.0;
            sum->k[i * wide + from + j] += ds[j] * miss * beta - old * du * beta;
            ds[j] -= (double)k[j] / lk * du * beta;
            sum->log[(size_t)i * d->hv + h] += ds[j] * old;
            ds[j] = on ? ds[j] * decay : 0.0;
        }
    }
}

static void unit_grad(float *dx, const double *du, const float *x, uint32_t n, double scale)
{
    double length = length_of(x, n), dot = 0.0;
    for (uint32_t j = 0; j < n; j++)
        dot += (double)x[j] * du[j];
    for (uint32_t j = 0; j < n; j++)
        dx[j] = (float)((du[j] - (double)x[j] * dot / (length * length)) * scale / length);
}

static void delta_grad_end(const fm_delta_grad *g, const delta_sums *sum, uint32_t h)
{
    const fm_delta *d = &g->d;
    double dlog = 0.0, dbias = 0.0;
    for (uint32_t i = 0; i < d->rows.m; i++) {
        size_t row = (size_t)d->rows.row[i], at = (size_t)i * d->hv + h;
        double x = (double)d->a[row * d->lda + h] + (double)d->dt_bias[h];
        double da = sum->log[at] * -exp((double)d->a_log[h]) / (1.0 + exp(-x));
        double beta = beta_of(d, row, h);
        dbias += da;
        dlog += sum->log[at] * log_decay(d, row, h);
        g->da[row * g->ldda + h] = (float)da;
        g->db[row * g->ldda + h] = (float)(sum->beta[at] * beta * (1.0 - beta));
    }
    if (g->da_log)
        g->da_log[h] += (float)dlog;
    if (g->ddt_bias)
        g->ddt_bias[h] += (float)dbias;
}

void fmi_ref_delta_grad(fm_backend *be, const fm_delta_grad *g)
{
    const fm_delta *d = &g->d;
    size_t wide = (size_t)d->hk * d->dk, m = d->rows.m;
    double *mem = fm_calloc(m * (2 * wide + 2 * (size_t)d->hv + d->dk) + 1, sizeof(*mem));
    delta_sums sum = {.q = mem, .k = mem + m * wide, .log = mem + 2 * m * wide};
    (void)be;
    fm_assert(mem);
    sum.beta = sum.log + m * d->hv;
    sum.states = sum.beta + m * d->hv;
    for (uint32_t h = 0; h < d->hv; h++) {
        for (uint32_t p = 0; p < d->dv; p++)
            delta_grad_column(g, h, p, &sum);
        delta_grad_end(g, &sum, h);
    }
    for (size_t i = 0; i < m; i++)
        for (uint32_t h = 0; h < d->hk; h++) {
            size_t row = (size_t)d->rows.row[i], at = (size_t)h * d->dk;
            unit_grad(g->dq + row * g->lddx + at, sum.q + i * wide + at, d->q + row * d->ldx + at,
                      d->dk, 1.0 / sqrt((double)d->dk));
            unit_grad(g->dk + row * g->lddx + at, sum.k + i * wide + at, d->k + row * d->ldx + at,
                      d->dk, 1.0);
        }
    fm_free(mem);
}
