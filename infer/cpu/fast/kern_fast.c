/* kern_fast.c - kernels of mode fast, compiled once per instruction set (FMI_ISA_*, and with it
 * FMI_FAST_VNNI, FMI_FAST_BF16 where the set has those). As in cpu/kern/kern.c nothing but the
 * table has external linkage. */
#include "infer/cpu/fast/kern_fast.h"
#include "infer/cpu/fast/kern_fast_attention.h"
#include "infer/cpu/fast/kern_fast_line.h"
#include "infer/cpu/kern/tiles.h"

#define FMI_MIN2(a, b) ((a) < (b) ? (a) : (b))

#include "infer/cpu/fast/kern_fast_product.h"
#include "infer/cpu/fast/kern_fast_half.h"
#include "infer/cpu/fast/kern_fast_lora.h"

#if defined(FMI_FAST_BF16)
#define FMI_CLASS "fast-bf16dp-3"
#else
#define FMI_CLASS "fast-fma-3"
#endif

const fmi_fast_kern FMI_TABLE(fmi_fast_kern_) = {
    .isa = FMI_ISA,
    .kernel_class = FMI_CLASS,
    .tile_int8 = TILE_INT8,
    .tile_bf16 = TILE_BF16,
    .pack_int8 = k_pack_int8,
    .product_int8 = k_product_int8,
    .unpack = k_unpack,
    .pack_bf16 = k_pack_bf16,
    .product_bf16 = k_product_bf16,
    .pack_f32 = k_pack_f32,
    .product_f16 = k_product_f16,
    .round_row = k_round_row,
    .lora_down = k_lora_down,
    .lora_up = k_lora_up,
    .attention = &FMI_TABLE(fmi_fast_attn_),
};
