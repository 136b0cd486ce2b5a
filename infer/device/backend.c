/* backend.c - what every device shares: closing, and naming what one lacks. */
#include "infer/backend.h"

void fm_backend_close(fm_backend *be)
{
    if (be)
        be->close(be);
}

const char *fm_backend_lacks(const fm_backend *be, bool training)
{
    const struct {
        const char *name;
        bool present, training;
    } op[] = {
#define OP(slot, needs_training) {#slot, be->slot != NULL, needs_training}
        OP(alloc, false),
        OP(free, false),
        OP(upload, false),
        OP(download, false),
        OP(sync, false),
        OP(weight_new, false),
        OP(weight_free, false),
        OP(weight_bytes, false),
        OP(weight_image_bytes, false),
        OP(linear, false),
        OP(lora, false),
        OP(products, false),
        OP(affine, false),
        OP(kv_page_bytes, false),
        OP(kv_copy, false),
        OP(embed, false),
        OP(rmsnorm, false),
        OP(rope, false),
        OP(swiglu, false),
        OP(add, false),
        OP(scale, false),
        OP(layernorm, false),
        OP(act, false),
        OP(softcap, false),
        OP(mix_rows, false),
        OP(route, false),
        OP(scalings, false),
        OP(sigmoid, false),
        OP(copy_rows, false),
        OP(kv_write, false),
        OP(attention, false),
        OP(logsumexp, false),
        OP(weight_update, true),
        OP(gemm, true),
        OP(linear_dx, true),
        OP(bias_grad, true),
        OP(embed_grad, true),
        OP(rmsnorm_grad, true),
        OP(swiglu_grad, true),
        OP(cross_entropy, true),
        OP(sum_squares, true),
        OP(block_squares, true),
        OP(adamw, true),
        OP(self_attention, true),
        OP(self_attention_grad, true),
        OP(terms, true),
        OP(terms_grad, true),
        OP(linear_dw, true),
        OP(layernorm_grad, true),
        OP(act_grad, true),
        OP(softcap_grad, true),
        OP(scale_grad, true),
        OP(dropout, true),
        OP(row_dots, true),
        OP(scale_rows, true),
        OP(route_grad, true),
        OP(sigmoid_grad, true),
        OP(distill, true),
#undef OP
    };

    if (be->host_visible && (!be->weight_image || !be->weight_map))
        return be->weight_image ? "weight_map" : "weight_image";
    for (size_t i = 0; i < FM_ARRAY_LEN(op); i++)
        if (!op[i].present && (training || !op[i].training))
            return op[i].name;
    return NULL;
}
