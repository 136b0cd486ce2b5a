/* method_virtual.c - prefix tuning (Li and Liang 2021): keys and values of virtual positions;
 * prompt tuning (Lester et al. 2021): rows in place of token embeddings. As in PEFT the rows of a
 * prefix are [layers][2][kv heads * head_dim], without rope; the text's positions follow theirs. */
#include "train/net/method.h"

#include "store/base/mem.h"

#include <string.h>

/* Stored as [virt][layers * 2][kv]; turned so that a layer's keys are one matrix. */
static void turn(float *out, const float *rows, uint32_t virt, size_t parts, size_t kv)
{
    for (size_t v = 0; v < virt; v++)
        for (size_t i = 0; i < parts; i++)
            memcpy(out + (i * virt + v) * kv, rows + (v * parts + i) * kv, kv * sizeof(float));
}

fm_status fmt_virtual_take(fmt_net *net, const fm_model *model)
{
    const fm_arch *a = &net->arch;
    size_t kv = (size_t)a->kv_heads * a->head_dim;
    size_t width = model->virtual_is_kv ? 2 * kv * a->layers : a->hidden;
    size_t bytes = model->virtual_len * width * sizeof(float);
    void *mem = NULL;

    if (model->virtual_len == 0)
        return FM_OK;
    float *host = fm_memdup(model->virtual_rows, bytes);
    fm_status rc = host ? net->be->alloc(net->be, &mem, bytes) : FM_ENOMEM;
    net->virt_own = mem;
    if (rc == FM_OK && model->virtual_is_kv)
        turn(host, model->virtual_rows, model->virtual_len, 2 * (size_t)a->layers, kv);
    FM_THEN(rc, net->be->upload(net->be, mem, host, bytes));
    fm_free(host);
    net->virt_rows = net->virt_own;
    net->virt = model->virtual_len;
    net->virt_kind = model->virtual_is_kv ? FMT_VIRTUAL_KV : FMT_VIRTUAL_ROWS;
    return rc;
}

void fmt_virtual_how(const fmt_net *net, fmt_batch_how *how)
{
    how->vocab = net->arch.vocab;
    how->virt = net->virt_kind == FMT_VIRTUAL_ROWS ? net->virt : 0;
    how->offset = net->virt_kind == FMT_VIRTUAL_KV ? net->virt : 0;
}

fm_status fmt_virtual_declare(fmt_net *net, fmt_params *ps, fmt_virtual kind, uint32_t tokens)
{
    const fm_arch *a = &net->arch;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;
    uint64_t width = kind == FMT_VIRTUAL_KV ? 2 * kv * a->layers : a->hidden;
    fm_shape shape = {.rank = 2, .dim = {tokens, width}};

    if (net->virt > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "the parent has virtual tokens already; a second adapter with virtual "
                       "tokens is not supported");
    if (a->sw.encoder)
        return fm_fail(FM_EUNSUPPORTED,
                       "virtual tokens (prefix or prompt tuning) before an encoder's text are not "
                       "supported");
    if (fm_arch_recurs(a))
        return fm_fail(FM_EUNSUPPORTED,
                       "virtual tokens (prefix or prompt tuning) before the recurrent layers of %s "
                       "are not supported",
                       a->family);
    if (tokens < 1 || tokens >= a->max_positions)
        return fm_fail(FM_EINVAL, "virtual_tokens: %u leave no room in the model's %u positions",
                       tokens, a->max_positions);
    FM_TRY(fmt_params_add(ps, &net->virt_param, "prompt_embeddings", &shape));
    ps->item[net->virt_param].turned = kind == FMT_VIRTUAL_KV ? (uint32_t)kv : 0;
    net->virt_kind = kind;
    net->virt = tokens;
    return FM_OK;
}
