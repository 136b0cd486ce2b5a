/* multipliers.c - the numbers by which a config multiplies what products read or give
 * (fm_multipliers), as scales of these products. */
#include "infer/model/model_bind.h"

#include "store/base/mem.h"

/* Vectors that all layers share. */
typedef struct scales {
    const float *attn_in, *key, *attn_out, *gate, *down, *ssm_in, *ssm, *ssm_out;
} scales;

/* A vector of n times x; NULL where x is 1. */
static fm_status even(fm_model *m, const float **out, float x, uint32_t n)
{
    *out = NULL;
    if (x == 1.0f)
        return FM_OK;
    float *v = fm_malloc(n * sizeof(float));
    for (uint32_t i = 0; v && i < n; i++)
        v[i] = x;
    fm_status rc = v ? fmi_own(m, out, v, n) : FM_ENOMEM;
    fm_free(v);
    return rc;
}

/* What the first product of a recurrent block gives: z, x, b, c and t one behind another. */
static fm_status parts(fm_model *m, const float **out)
{
    const fm_recurrence *r = &m->arch.sw.rec;
    const uint32_t share = r->groups * r->n;
    const uint32_t wide[] = {r->inner, r->inner, share, share, r->heads};
    float *v = fm_malloc(r->in * sizeof(float)), *at = v;
    for (size_t p = 0; v && p < FM_ARRAY_LEN(wide); p++)
        for (uint32_t i = 0; i < wide[p]; i++)
            *at++ = m->arch.sw.by.ssm[p];
    fm_status rc = v ? fmi_own(m, out, v, r->in) : FM_ENOMEM;
    fm_free(v);
    return rc;
}

fm_status fmi_multipliers_bind(fmi_binder *b)
{
    fm_model *m = b->m;
    const fm_arch *a = &m->arch;
    const fm_multipliers *by = &a->sw.by;
    scales s;
    if (!a->sw.beside)
        return FM_OK;
    FM_TRY(even(m, &s.attn_in, by->attn_in, a->hidden));
    FM_TRY(even(m, &s.key, by->key, a->kv_heads * a->head_dim));
    FM_TRY(even(m, &s.attn_out, by->attn_out, a->hidden));
    FM_TRY(even(m, &s.gate, by->gate, a->inter));
    FM_TRY(even(m, &s.down, by->down, a->hidden));
    FM_TRY(even(m, &s.ssm_in, by->ssm_in, a->hidden));
    FM_TRY(even(m, &s.ssm_out, by->ssm_out, a->hidden));
    FM_TRY(parts(m, &s.ssm));
    for (uint32_t l = 0; l < a->layers; l++) {
        fm_layer *y = &m->layers[l];
        y->q.in_scale = y->k.in_scale = y->v.in_scale = s.attn_in;
        y->k.out_scale = s.key;
        y->o.out_scale = s.attn_out;
        y->gate.out_scale = s.gate;
        y->down.out_scale = s.down;
        y->rec->in.in_scale = s.ssm_in;
        y->rec->in.out_scale = s.ssm;
        y->rec->out.out_scale = s.ssm_out;
    }
    return FM_OK;
}
