/* gradients.c - the methods that multiply an example's gradient with the target's. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"

#include <math.h>
#include <string.h>

enum { MIDDLE = 1 }; /* the point at which the damped matrix is made: 0.3 of the way */

typedef struct sweep { /* A walk over all examples at one point. */
    fmt_walk *w;
    double *const *score;
    fmt_kron *kron;          /* NULL: not wanted */
    float *target, *through; /* [total] the target's gradient, and its product with the inverse */
    double norm;             /* norm of the target's gradient */
    double weight;           /* weight of the point */
    bool at_child, at_kron, on_line;
} sweep;

static double dot(const float *a, const float *b, uint64_t n)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add(const sweep *s, fm_attribution_kind kind, size_t i, double value)
{
    if (s->score[kind])
        s->score[kind][i] += value;
}

static fm_status take(void *ctx, size_t i, const float *g)
{
    sweep *s = ctx;
    uint64_t n = s->w->total;
    double product = dot(s->target, g, n);
    double times = fm_dataset_weight(s->w->job.data, i); /* how often an epoch has it */

    if (s->at_child) {
        add(s, FM_ATTR_DOT, i, times * product);
        return FM_OK;
    }
    if (s->on_line == (s->w->in->states == 0))
        add(s, FM_ATTR_TRACIN, i, s->weight * times * product);
    if (s->on_line)
        add(s, FM_ATTR_PATH, i, s->weight * times * product);
    if (s->score[FM_ATTR_COSINE] && s->on_line) {
        double own = sqrt(dot(g, g, n));
        if (own > 0.0 && s->norm > 0.0)
            s->score[FM_ATTR_COSINE][i] += s->weight * product / (own * s->norm);
    }
    if (!s->kron)
        return FM_OK;
    double influence = dot(s->through, g, n);
    add(s, FM_ATTR_INFLUENCE, i, times * influence);
    if (s->score[FM_ATTR_RELATIF]) {
        double own = sqrt(fmt_kron_size(s->kron, g));
        if (own > 0.0)
            s->score[FM_ATTR_RELATIF][i] = influence / own;
    }
    return FM_OK;
}

static bool wants_kron(double *const score[FM_ATTRIBUTIONS])
{
    return score[FM_ATTR_INFLUENCE] || score[FM_ATTR_RELATIF];
}

/* Whether some method wants a point. TracIn wants the states, if there are any; the other methods
 * want the points on the line, which rank better than the run's states (tests/bench/SPEED.md). */
static bool wants_point(double *const score[FM_ATTRIBUTIONS], size_t point, size_t states)
{
    bool on_line = point < FMT_WALK_LINE;
    bool tracin = score[FM_ATTR_TRACIN] && on_line == (states == 0);

    bool line = on_line && (score[FM_ATTR_PATH] || score[FM_ATTR_COSINE]);

    return tracin || line || (wants_kron(score) && point == MIDDLE);
}

static fm_status at_point(sweep *s, size_t point)
{
    fmt_walk *w = s->w;
    fm_status rc = fmt_walk_stand(w, point);

    s->at_child = point == w->points;
    s->at_kron = wants_kron(s->score) && point == MIDDLE;
    s->on_line = point < FMT_WALK_LINE;
    s->weight = s->at_child ? 1.0 : w->weight[point];
    FM_THEN(rc, fmt_walk_target(w, s->target));
    if (rc < 0)
        return rc;
    s->norm = sqrt(dot(s->target, s->target, w->total));
    if (s->at_kron) {
        rc = fmt_kron_new(&s->kron, w);
        if (rc == FM_OK)
            fmt_kron_solve(s->kron, s->through, s->target);
    }
    FM_THEN(rc, fmt_walk_each(w, NULL, fm_dataset_count(w->job.data), take, s));
    fmt_kron_free(s->kron);
    s->kron = NULL;
    return rc;
}

uint64_t fm_attribution_cost(const fm_attribution_in *in, double *const score[FM_ATTRIBUTIONS])
{
    uint64_t n = fm_dataset_count(in->job->data);
    uint64_t sum = wants_kron(score) ? FM_MIN(n, (uint64_t)FMT_KRON_SAMPLE) : 0;
    size_t states = FM_MIN(in->states, (size_t)FMT_WALK_STATES);

    for (size_t i = 0; i < FMT_WALK_LINE + states; i++)
        sum += wants_point(score, i, states) ? n : 0;
    return sum + (score[FM_ATTR_DOT] ? n : 0);
}

fm_status fmt_attribution_gradients(const fm_attribution_in *in,
                                    double *const score[FM_ATTRIBUTIONS])
{
    fmt_walk w;
    sweep s = {.w = &w, .score = score};
    fm_status rc = fmt_walk_open(&w, in, true);

    if (rc == FM_OK) {
        w.of = (size_t)fm_attribution_cost(in, score);
        s.target = fm_calloc((size_t)w.total, sizeof(float));
        s.through = fm_calloc((size_t)w.total, sizeof(float));
        rc = s.target && s.through ? FM_OK : FM_ENOMEM;
    }
    for (size_t i = 0; rc == FM_OK && i < w.points; i++)
        if (wants_point(score, i, in->states))
            rc = at_point(&s, i);
    if (rc == FM_OK && score[FM_ATTR_DOT])
        rc = at_point(&s, w.points);
    fm_free(s.target);
    fm_free(s.through);
    fmt_walk_close(&w);
    return rc;
}
