/* loss.c - the oracle's losses over two rows of logits, naive and in double. */
#include "infer/cpu/ref/ref.h"

#include <math.h>

/* log sum exp of x / t. */
static double lse_of(const float *x, uint32_t v, double t)
{
    double max = (double)-INFINITY, sum = 0.0;

    for (uint32_t j = 0; j < v; j++)
        max = fmax(max, (double)x[j] / t);
    for (uint32_t j = 0; j < v; j++)
        sum += exp((double)x[j] / t - max);
    return max + log(sum);
}

void fmi_ref_distill(fm_backend *be, float *loss, float *logits, size_t ld, const float *teacher,
                     size_t ldt, const int32_t *label, uint32_t m, uint32_t v, float temperature,
                     float weight, float dloss)
{
    double t = (double)temperature, w = (double)weight;

    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        float *z = logits + i * ld;
        const float *y = teacher + i * ldt;
        double plain = lse_of(z, v, 1.0), soft = lse_of(z, v, t), taught = lse_of(y, v, t);
        double kl = 0.0, own = label[i] < 0 ? 0.0 : plain - (double)z[label[i]];
        for (uint32_t j = 0; j < v; j++) {
            double lp = (double)y[j] / t - taught, lq = (double)z[j] / t - soft;
            double g = (1.0 - w) * (exp((double)z[j] - plain) - (j == (uint32_t)label[i]));
            kl += exp(lp) * (lp - lq);
            g += w * t * (exp(lq) - exp(lp));
            z[j] = label[i] < 0 ? 0.0f : (float)(g * (double)dloss);
        }
        loss[i] = label[i] < 0 ? 0.0f : (float)((1.0 - w) * own + w * t * t * kl);
    }
}
