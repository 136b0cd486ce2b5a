/* block_mlp.c - the feed-forward branch of a layer, forward and backward. */
#include "train/pass.h"

fm_status fmi_mlp_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    const fmi_out in[] = {{FMI_GATE, s->gate, a->inter}, {FMI_UP, s->up, a->inter}};
    const fmi_out out = {FMI_DOWN, y, a->hidden};
    fm_status rc = fmi_linears_forward(p, ps, (int32_t)layer, x, a->hidden, in, 2);

    if (rc < 0)
        return rc;
    p->be->swiglu(p->be, p->act, s->gate, s->up, (uint64_t)ps.rows * a->inter);
    return fmi_linears_forward(p, ps, (int32_t)layer, p->act, a->inter, &out, 1);
}

/* dy -> gradients of gate and up. */
fm_status fmi_mlp_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *dy)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    uint64_t n = (uint64_t)ps.rows * a->inter;
    const fmi_out out = {FMI_DOWN, (float *)(uintptr_t)dy, a->hidden};

    if (fmi_linears_train(ps, (int32_t)layer, &out, 1)) /* cheap to make, large to keep */
        p->be->swiglu(p->be, p->act, s->gate, s->up, n);
    fm_status rc = fmi_linears_grad(p, ps, (int32_t)layer, p->dact, a->inter, false, p->act,
                                    a->inter, &out, 1);
    if (rc == FM_OK)
        p->be->swiglu_grad(p->be, p->dgate, p->dup, p->dact, s->gate, s->up, n);
    return rc;
}

fm_status fmi_mlp_input_grad(fmi_pass *p, fmi_parts ps, uint32_t layer, float *dh, const float *x)
{
    const fm_arch *a = &p->arch;
    const fmi_out in[] = {{FMI_GATE, p->dgate, a->inter}, {FMI_UP, p->dup, a->inter}};

    return fmi_linears_grad(p, ps, (int32_t)layer, dh, a->hidden, false, x, a->hidden, in, 2);
}

bool fmi_mlp_input_trains(fmi_parts ps, uint32_t layer)
{
    const fmi_out in[] = {{FMI_GATE, NULL, 0}, {FMI_UP, NULL, 0}};
    return fmi_linears_train(ps, (int32_t)layer, in, 2);
}
