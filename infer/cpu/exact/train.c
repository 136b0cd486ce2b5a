/* train.c - operations of training that are made of other operations of the table. */
#include "infer/cpu/cpu.h"

/* Low-rank terms as the products they are: what the oracle runs, and what terms.c must equal. */
static void op_terms(fm_backend *be, const fm_term *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, t++) {
        be->gemm(be, t->u, t->r, t->x, t->ldx, false, t->a, t->in, true, t->m, t->r, t->in, 1.0f,
                 false);
        be->gemm(be, t->y, t->ldy, t->u, t->r, false, t->b, t->r, true, t->m, t->out, t->r,
                 t->scale, true);
    }
}

static void op_terms_grad(fm_backend *be, const fm_term *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, t++) {
        if (t->m == 0)
            continue;
        if (t->db)
            be->gemm(be, t->db, t->r, t->dy, t->lddy, true, t->u, t->r, false, t->out, t->r, t->m,
                     t->scale, true);
        if (!t->da && !t->dx)
            continue;
        be->gemm(be, t->du, t->r, t->dy, t->lddy, false, t->b, t->r, false, t->m, t->r, t->out,
                 t->scale, false);
        if (t->da)
            be->gemm(be, t->da, t->in, t->du, t->r, true, t->x, t->ldx, false, t->r, t->in, t->m,
                     1.0f, true);
        if (t->dx)
            be->gemm(be, t->dx, t->lddx, t->du, t->r, false, t->a, t->in, false, t->m, t->in, t->r,
                     1.0f, true);
    }
}

static void op_linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                         size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    if (stored_kn)
        be->gemm(be, dw, n, x, ldx, true, dy, lddy, false, k, n, m, 1.0f, true);
    else
        be->gemm(be, dw, k, dy, lddy, true, x, ldx, false, n, k, m, 1.0f, true);
}

void fmi_train_install(fm_backend *be)
{
    be->terms = op_terms;
    be->terms_grad = op_terms_grad;
    be->linear_dw = op_linear_dw;
}
