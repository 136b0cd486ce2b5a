/* norm.c - norms over rows of many models, by neighbouring runs with the same gain. */
#include "infer/engine/step/step.h"

void fmi_norm(fmi_pass *p, fmi_parts ps, fm_norm_kind kind, fmi_gain_fn gain, uint32_t layer,
              float *y, const float *x, uint32_t per_row, uint32_t h)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j; i < ps.n; i = j) {
        fmi_gain g = gain(ps.p[i].model, layer);
        uint32_t m = 0;
        for (j = i; j < ps.n; j++) {
            fmi_gain other = gain(ps.p[j].model, layer);
            if (other.gain != g.gain || other.bias != g.bias)
                break;
            m += ps.p[j].count;
        }
        size_t at = (size_t)ps.p[i].begin * per_row * h;
        if (fm_norm_is_layer(kind))
            be->layernorm(be, y + at, x + at, g.gain, g.bias, m * per_row, h, h, p->g->eps);
        else
            be->rmsnorm(be, y + at, x + at, g.gain, NULL, m * per_row, h, h, p->g->eps);
    }
}
