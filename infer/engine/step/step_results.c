/* step_results.c - what the rows of the last step wanted, on the host. */
#include "infer/engine/step/step.h"

const float *fm_engine_logits(const fm_engine *e, uint32_t i)
{
    const fmi_step *s = e->step;
    if (i >= s->last_n || s->logit_row[i] < 0 || s->headless[i])
        return NULL;
    return s->logits_host + (size_t)s->logit_row[i] * s->ld;
}

const float *fm_engine_hidden(const fm_engine *e, uint32_t i)
{
    const fmi_step *s = e->step;
    if (i >= s->last_n || s->logit_row[i] < 0)
        return NULL;
    return s->hidden_host + (size_t)s->logit_row[i] * s->hidden_ld;
}

fm_status fmi_engine_lse(fm_engine *e)
{
    fmi_step *s = e->step;
    fm_backend *be = e->be;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->runs && s->last_n; i++) {
        uint32_t w = s->run[i].wanted;
        if (w)
            be->logsumexp(be, s->lse + at, s->logits + at * s->ld, s->ld, w,
                          s->run[i].model->arch.vocab);
        at += w;
    }
    fm_status rc = be->download(be, s->lse_host, s->lse, at * sizeof(float));
    e->failures += rc != FM_OK;
    return rc;
}

float fmi_engine_lse_of(const fm_engine *e, uint32_t row)
{
    return e->step->lse_host[e->step->logit_row[row]];
}
