/* method_virtual.c - prefix tuning (Li and Liang 2021): keys and values of virtual positions; prompt
 * tuning (Lester et al. 2021): rows in the place of their embeddings. As PEFT computes them: prefix
 * rows are [layers][2][kv heads * head_dim], not turned by rope; text goes on behind them. */
#include "train/method.h"

fm_status fmi_virtual_declare(fmi_net *net, fmi_params *ps, fmi_virtual kind, uint32_t tokens)
{
    const fm_arch *a = &net->arch;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;
    uint64_t width = kind == FMI_VIRTUAL_KV ? 2 * kv * a->layers : a->hidden;
    fm_shape shape = {.rank = 2, .dim = {tokens, width}};

    if (net->virt > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "the parent has virtual tokens already; a second adapter with virtual "
                       "tokens is not supported");
    if (a->sw.encoder)
        return fm_fail(FM_EUNSUPPORTED,
                       "virtual tokens (prefix or prompt tuning) before an encoder's text are not "
                       "supported");
    if (tokens < 1 || tokens >= a->max_positions)
        return fm_fail(FM_EINVAL, "virtual_tokens: %u leave no room in the model's %u positions",
                       tokens, a->max_positions);
    fm_status rc = fmi_params_add(ps, &net->virt_param, "prompt_embeddings", &shape);
    if (rc == FM_OK) {
        net->virt_kind = kind;
        net->virt = tokens;
    }
    return rc;
}
