/* kern.c - every kernel of the CPU backend, compiled once per instruction set (FMI_ISA_*).
 *
 * One source instead of hand-written variants: the order of operations is then the same by
 * construction, and the tests only have to show that vec.h is right. The parts are headers of
 * static functions because the register tiles must be inlined into code of their own ISA. */
#include "infer/cpu/kern/kern.h"
#include "infer/cpu/kern/tiles.h"
#include "infer/cpu/kern/vec.h"
#include "store/base/math/detmath.h"

#include "infer/cpu/kern/product.h"
#include "infer/cpu/kern/elem.h"
#include "infer/cpu/kern/act.h"
#include "infer/cpu/kern/loss.h"
#include "infer/cpu/kern/grads.h"
#include "infer/cpu/kern/recurrent.h"
#include "infer/cpu/kern/attention.h"
#include "infer/cpu/kern/terms.h"
#include "infer/cpu/kern/bf16.h"

const fmi_kern FMI_TABLE(fmi_kern_) = {
    .isa = FMI_ISA,
    .tile_rows = FMI_TILE_ROWS,
    .pack_a = k_pack_a,
    .product = k_product,
    .row_product = k_row_product,
    .transpose = k_transpose,
    .copy_panel = k_copy_panel,
    .swiglu = k_swiglu,
    .swiglu_grad = k_swiglu_grad,
    .add = k_add,
    .scale = k_scale,
    .layernorm = k_layernorm,
    .layernorm_stats = k_layernorm_stats,
    .layernorm_dx = k_layernorm_dx,
    .layernorm_columns = k_layernorm_columns,
    .column_dots = k_column_dots,
    .act_grad = k_act_grad,
    .softcap_grad = k_softcap_grad,
    .multiply = k_multiply,
    .scale_to = k_scale_to,
    .dot = k_dot,
    .dropout = k_dropout,
    .act = k_act,
    .softcap = k_softcap,
    .mix_rows = k_mix_rows,
    .rope = k_rope,
    .rmsnorm = k_rmsnorm,
    .rmsnorm_dx = k_rmsnorm_dx,
    .column_sum = k_column_sum,
    .logsumexp = k_logsumexp,
    .cross_entropy = k_cross_entropy,
    .distill = k_distill,
    .sum_squares = k_sum_squares,
    .adamw = k_adamw,
    .convolve = k_convolve,
    .convolve_grad = k_convolve_grad,
    .scan = k_scan,
    .scan_states = k_scan_states,
    .scan_grad = k_scan_grad,
    .scan_grad_sum = k_scan_grad_sum,
    .delta = k_delta,
    .delta_states = k_delta_states,
    .delta_grad = k_delta_grad,
    .delta_grad_sum = k_delta_grad_sum,
    .attention = k_attention,
    .attn_rows = k_attn_rows,
    .attn_grad_rows = k_attn_grad_rows,
    .attn_spread = k_attn_spread,
    .attn_pages = k_attn_pages,
    .thin = k_thin,
    .round = k_round,
    .pairs = k_pairs,
};
