/* route.c - the choice of experts and of their weights: the operations route and route_grad, and
 * the small ones around them. */
#include "infer/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

/* ---- shares ---- */

/* Sets the shares of a row's experts before they are divided by what is returned: the sum of a
 * softmax, 1 of sigmoids. */
static double shares_of(const fm_route *r, const float *score, double *share)
{
    double max = (double)score[0], sum = 0.0;

    for (uint32_t e = 0; e < r->experts && r->sigmoid; e++)
        share[e] = 1.0 / (1.0 + fm_exp(-(double)score[e]));
    if (r->sigmoid)
        return 1.0;
    for (uint32_t e = 1; e < r->experts; e++)
        max = FM_MAX(max, (double)score[e]);
    for (uint32_t e = 0; e < r->experts; e++) {
        share[e] = fm_exp((double)score[e] - max);
        sum += share[e];
    }
    return sum;
}

/* What a row's weights are divided by: the sum of all shares, or of the chosen ones and `more`, but
 * at least `least` of the whole (*cut: that is more than their sum). */
static double whole_of(const fm_route *r, double kept, double sum, bool *cut)
{
    *cut = r->renormalise && kept < r->least * sum;
    return !r->renormalise ? sum : *cut ? r->least * sum : kept + r->more;
}

static double scale_of(const fm_route *r)
{
    return r->scale != 0.0f ? (double)r->scale : 1.0;
}

/* ---- the choice ---- */

/* The `count` largest of v, ascending; of equal ones the lower, and a NaN is larger than none. */
static void largest(const float *v, uint32_t n, uint32_t count, uint32_t *pick)
{
    for (uint32_t k = 0; k < count; k++) {
        uint32_t best = UINT32_MAX, at = k;
        for (uint32_t i = 0; i < n; i++) {
            bool taken = false;
            for (uint32_t j = 0; j < k; j++)
                taken = taken || pick[j] == i;
            if (!taken && (best == UINT32_MAX || v[i] > v[best]))
                best = i;
        }
        for (; at > 0 && pick[at - 1] > best; at--)
            pick[at] = pick[at - 1];
        pick[at] = best;
    }
}

/* Takes experts of other groups than the best ones out of the choice. sum, pick: scratch. */
static void keep_groups(const fm_route *r, float *value, float *sum, uint32_t *pick)
{
    uint32_t each = r->experts / r->groups;

    for (uint32_t g = 0; g < r->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * each; e < (g + 1) * each; e++) {
            second = value[e] > first ? first : value[e] > second ? value[e] : second;
            first = value[e] > first ? value[e] : first;
        }
        sum[g] = r->groups_best ? first : first + second;
    }
    largest(sum, r->groups, r->groups_kept, pick);
    for (uint32_t g = 0, k = 0; g < r->groups; g++) {
        bool kept = k < r->groups_kept && pick[k] == g;
        k += kept ? 1 : 0;
        for (uint32_t e = g * each; e < (g + 1) * each && !kept; e++)
            value[e] = -INFINITY;
    }
}

/* Memory of one thread for a row. */
typedef struct row_room {
    double *share;
    float *value, *sum;
    uint32_t *pick;
} row_room;

static void route_row(const fm_route *r, size_t row, const row_room *t)
{
    const float *score = r->score + row * r->ld;
    double kept = 0.0, sum = shares_of(r, score, t->share);
    bool cut;

    if ((r->sigmoid && !r->by_score) || r->bias || r->groups) {
        for (uint32_t e = 0; e < r->experts; e++)
            t->value[e] = (float)(t->share[e] / sum);
        for (uint32_t e = 0; e < r->experts && r->bias; e++)
            t->value[e] = t->value[e] + r->bias[row * r->experts + e];
        if (r->groups)
            keep_groups(r, t->value, t->sum, t->pick);
        score = t->value;
    }
    largest(score, r->experts, r->chosen, t->pick);
    for (uint32_t k = 0; k < r->chosen; k++)
        kept += t->share[t->pick[k]];
    double whole = whole_of(r, kept, sum, &cut), scale = scale_of(r);
    for (uint32_t k = 0; k < r->chosen; k++) {
        r->expert[row * r->chosen + k] = (int32_t)t->pick[k];
        r->weight[row * r->chosen + k] = (float)(t->share[t->pick[k]] / whole * scale);
    }
}

/* ---- PhiMoE's sparse mixer ---- */

/* One of the two choices of a row: the expert and its share among those near enough. */
typedef struct mixed {
    uint32_t expert;
    double score, sum; /* its score; sum of e^(score - its score) over those */
} mixed;

static bool is_near(const fm_route *r, const mixed *c, double score)
{
    double size = score < 0.0 ? -score : score, most = size > c->score ? size : c->score;
    return !((c->score - score) / most > 2.0 * (double)r->jitter);
}

/* Chooses among the experts but `taken`. */
static mixed mix_one(const fm_route *r, const float *score, uint32_t taken)
{
    mixed c = {.expert = UINT32_MAX};
    for (uint32_t e = 0; e < r->experts; e++)
        if (e != taken && (c.expert == UINT32_MAX || score[e] > score[c.expert]))
            c.expert = e;
    c.score = (double)score[c.expert];
    for (uint32_t e = 0; e < r->experts; e++)
        if (e != taken && is_near(r, &c, (double)score[e]))
            c.sum += fm_exp((double)score[e] - c.score);
    return c;
}

static void mix_row(const fm_route *r, size_t row)
{
    const float *score = r->score + row * r->ld;
    mixed a = mix_one(r, score, UINT32_MAX), b = mix_one(r, score, a.expert);
    bool turned = b.expert < a.expert;
    const mixed *low = turned ? &b : &a, *high = turned ? &a : &b;
    r->expert[2 * row] = (int32_t)low->expert;
    r->expert[2 * row + 1] = (int32_t)high->expert;
    r->weight[2 * row] = (float)(1.0 / low->sum);
    r->weight[2 * row + 1] = (float)(1.0 / high->sum);
}

/* Adds the gradient through the share of c. */
static void mix_grad(const fm_route *r, const float *score, const mixed *c, uint32_t taken,
                     double dweight, double *grad)
{
    double own = 1.0 / c->sum;
    for (uint32_t e = 0; e < r->experts; e++)
        if (e != taken && is_near(r, c, (double)score[e])) {
            double share = fm_exp((double)score[e] - c->score) / c->sum;
            grad[e] += dweight * own * ((e == c->expert ? 1.0 : 0.0) - share);
        }
}

static void mix_grad_row(const fm_route *r, size_t row, float *dscore, const float *dweight,
                         double *grad)
{
    const float *score = r->score + row * r->ld;
    const int32_t *slot = r->slot + 2 * row;
    mixed a = mix_one(r, score, UINT32_MAX), b = mix_one(r, score, a.expert);
    bool turned = b.expert < a.expert;
    memset(grad, 0, r->experts * sizeof(*grad));
    mix_grad(r, score, &a, UINT32_MAX, (double)dweight[slot[turned ? 1 : 0]], grad);
    mix_grad(r, score, &b, a.expert, (double)dweight[slot[turned ? 0 : 1]], grad);
    for (uint32_t e = 0; e < r->experts; e++)
        dscore[row * r->experts + e] = (float)grad[e];
}

/* ---- operations ---- */

typedef struct route_job {
    fmi_cpu *cpu;
    const fm_route *r;
} route_job;

static fm_status route_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const route_job *j = ctx;
    const fm_route *r = j->r;
    size_t n = r->experts, picks = FM_MAX(r->chosen, r->groups_kept);
    double *share =
        fmi_scratch_get(&j->cpu->worker[worker],
                        n * sizeof(double) + 2 * n * sizeof(float) + picks * sizeof(uint32_t));

    if (!share)
        return FM_ENOMEM;
    row_room room = {.share = share, .value = (float *)(void *)(share + n)};
    room.sum = room.value + n;
    room.pick = (uint32_t *)(void *)(room.sum + n);
    for (size_t i = begin; i < end; i++)
        if (r->jitter > 0.0f)
            mix_row(r, i);
        else
            route_row(r, i, &room);
    return FM_OK;
}

/* Sorts the choice numbers by expert, rows ascending within one. begin advances to the end of each
 * group while list is filled, and is then shifted back. */
static void deal(const fm_route *r)
{
    const size_t keys = (size_t)r->experts * r->parts;
    int32_t at = 0;

    memset(r->begin, 0, (keys + 1) * sizeof(int32_t));
    for (int fill = 0; fill < 2; fill++) {
        uint32_t part = 0;
        for (uint32_t i = 0; i < r->m; i++) {
            while (i >= (uint32_t)r->bound[part + 1])
                part++;
            for (uint32_t k = 0; k < r->chosen; k++) {
                uint32_t number = i * r->chosen + k;
                int32_t *to = &r->begin[(size_t)r->expert[number] * r->parts + part];
                if (fill)
                    r->list[*to] = (int32_t)number;
                if (fill && r->slot)
                    r->slot[number] = *to;
                ++*to;
            }
        }
        for (size_t key = 0; key < keys && !fill; key++) {
            int32_t n = r->begin[key];
            r->begin[key] = at;
            at += n;
        }
    }
    memmove(r->begin + 1, r->begin, keys * sizeof(int32_t));
    r->begin[0] = 0;
}

void fmi_exact_route(fm_backend *be, const fm_route *r)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    route_job j = {cpu, r};

    fmi_run(cpu, r->m, 1024 / r->experts + 1, route_part, &j);
    if (cpu->failed == FM_OK)
        deal(r);
}

typedef struct route_grad_job {
    fmi_cpu *cpu;
    const fm_route *r;
    float *dscore;
    const float *dweight;
} route_grad_job;

/* The gradient of one row, through the shares of all experts or of the chosen ones. */
static void route_grad_row(const route_grad_job *j, size_t row, double *share)
{
    const fm_route *r = j->r;
    const int32_t *expert = r->expert + row * r->chosen, *slot = r->slot + row * r->chosen;
    float *dscore = j->dscore + row * r->experts;
    double sum = shares_of(r, r->score + row * r->ld, share), kept = 0.0, mean = 0.0;
    double scale = scale_of(r);
    bool cut;

    for (uint32_t k = 0; k < r->chosen; k++)
        kept += share[expert[k]];
    double whole = whole_of(r, kept, sum, &cut);
    for (uint32_t k = 0; k < r->chosen; k++)
        mean += share[expert[k]] / whole * (double)j->dweight[slot[k]];
    if (cut)
        mean *= r->sigmoid ? 0.0 : r->least;
    else if (r->sigmoid && !r->renormalise)
        mean = 0.0;
    bool all = !r->sigmoid && (!r->renormalise || cut);
    for (uint32_t i = 0; i < r->experts; i++)
        dscore[i] = all ? (float)(-mean * share[i] / whole * scale) : 0.0f;
    for (uint32_t k = 0; k < r->chosen; k++) {
        double s = share[expert[k]], slope = r->sigmoid ? 1.0 - s : 1.0;
        dscore[expert[k]] =
            (float)(s / whole * ((double)j->dweight[slot[k]] - mean) * slope * scale);
    }
}

static fm_status route_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const route_grad_job *j = ctx;
    double *share = fmi_scratch_get(&j->cpu->worker[worker], j->r->experts * sizeof(double));

    if (!share)
        return FM_ENOMEM;
    for (size_t i = begin; i < end; i++)
        if (j->r->jitter > 0.0f)
            mix_grad_row(j->r, i, j->dscore, j->dweight, share);
        else
            route_grad_row(j, i, share);
    return FM_OK;
}

void fmi_exact_route_grad(fm_backend *be, const fm_route *r, float *dscore, const float *dweight)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    route_grad_job j = {cpu, r, dscore, dweight};

    fmi_run(cpu, r->m, 1024 / r->experts + 1, route_grad_part, &j);
}

void fmi_exact_sigmoid_grad(fm_backend *be, float *dx, const float *dy, const float *y, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        dx[i] = (float)((double)dy[i] * (double)y[i] * (1.0 - (double)y[i]));
}

void fmi_exact_scalings(fm_backend *be, const fm_scaling *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fm_scaling s = list[i];
        FMI_SETTLE(&s);
        be->affine(be, s.y, s.ldy, s.n, s.scale, s.bias, 0, s.m, s.rows);
    }
}

void fmi_exact_sigmoid(fm_backend *be, float *y, const float *x, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        y[i] = (float)(1.0 / (1.0 + fm_exp(-(double)x[i])));
}
