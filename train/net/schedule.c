/* schedule.c - learning rate, number of steps, clipping: pure functions of the config. */
#include "train/net/internal.h"

#include "store/base/math/detmath.h"

#include <math.h>

uint32_t fmt_schedule_steps(const fm_train_config *c, uint64_t examples)
{
    uint64_t per_step = (uint64_t)c->batch * c->accumulate;
    double wanted = ceil(c->epochs * (double)examples);

    if (c->steps > 0 || per_step == 0)
        return c->steps;
    double steps = ceil(wanted / (double)per_step);
    return steps >= 4294967295.0 ? UINT32_MAX : (uint32_t)steps;
}

/* Warm-up step i has (i + 1) / warmup of lr; the schedule runs over the remaining steps and would
 * reach 0 just after the last one, as in the usual trainers. */
double fmt_schedule_lr(const fm_train_config *c, uint32_t step, uint32_t steps)
{
    const double pi = 3.14159265358979323846;

    if (step < c->warmup)
        return c->lr * ((double)step + 1.0) / (double)c->warmup;
    if (c->schedule == FM_SCHEDULE_CONSTANT || steps <= c->warmup)
        return c->lr;
    double done = (double)(step - c->warmup) / (double)(steps - c->warmup);
    if (done > 1.0)
        done = 1.0;
    if (c->schedule == FM_SCHEDULE_LINEAR)
        return c->lr * (1.0 - done);
    double sine;
    double cosine;
    fm_sincos(&sine, &cosine, pi * done);
    return c->lr * 0.5 * (1.0 + cosine);
}

float fmt_clip_scale(double norm, double max_norm)
{
    if (max_norm <= 0.0)
        return 1.0f;
    float scale = (float)(max_norm / (norm + 1e-6));
    return scale < 1.0f ? scale : 1.0f;
}
