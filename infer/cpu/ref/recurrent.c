/* recurrent.c - the oracle of recurrences: sums in double, rounded at the end. */
#include "infer/cpu/ref/ref.h"

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
