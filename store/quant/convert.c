/* convert.c - values of any type as float32, of bytes or of a tensor that is read for them. */
#include "store/quant/codes.h"
#include "store/quant/dequant.h"
#include "store/tensor/float16.h"
#include "store/tree.h"

static fm_dequant_fn *dequant_of(fm_dtype dtype)
{
    static fm_dequant_fn *const table[FM_DTYPE_COUNT] = {
        [FM_Q8_0] = fm_dequant_q8_0,       [FM_Q4_0] = fm_dequant_q4_0,
        [FM_Q4_1] = fm_dequant_q4_1,       [FM_Q5_0] = fm_dequant_q5_0,
        [FM_Q5_1] = fm_dequant_q5_1,       [FM_Q4_K] = fm_dequant_q4_k,
        [FM_Q5_K] = fm_dequant_q5_k,       [FM_Q6_K] = fm_dequant_q6_k,
        [FM_IQ4_NL] = fm_dequant_iq4_nl,   [FM_Q2_K] = fm_dequant_q2_k,
        [FM_Q3_K] = fm_dequant_q3_k,       [FM_Q8_K] = fm_dequant_q8_k,
        [FM_IQ1_S] = fm_dequant_iq1_s,     [FM_IQ1_M] = fm_dequant_iq1_m,
        [FM_IQ2_XXS] = fm_dequant_iq2_xxs, [FM_IQ2_XS] = fm_dequant_iq2_xs,
        [FM_IQ2_S] = fm_dequant_iq2_s,     [FM_IQ3_XXS] = fm_dequant_iq3_xxs,
        [FM_IQ3_S] = fm_dequant_iq3_s,     [FM_IQ4_XS] = fm_dequant_iq4_xs,
        [FM_TQ1_0] = fm_dequant_tq1_0,     [FM_TQ2_0] = fm_dequant_tq2_0,
        [FM_Q1_0] = fm_dequant_q1_0,       [FM_MXFP4] = fm_dequant_mxfp4,
        [FM_NVFP4] = fm_dequant_nvfp4,     [FM_Q2_0] = fm_dequant_q2_0,
    };
    return table[dtype];
}

fm_status fm_to_f32(float *dst, fm_dtype dtype, const void *src, uint64_t n)
{
    const fm_dtype_info *info = fm_dtype_get(dtype);

    if (n == 0)
        return FM_OK;
    if (!info->is_block)
        return fms_widen_plain(dst, dtype, src, n);
    if (n % info->block_elems != 0)
        return fm_fail(FM_EINVAL, "%llu elements are no whole number of %s blocks",
                       (unsigned long long)n, info->name);
    if (dtype >= FM_DTYPE_COUNT)
        fms_codes_widen(dst, dtype, src, n / info->block_elems);
    else
        dequant_of(dtype)(dst, src, n / info->block_elems);
    return FM_OK;
}

fm_status fm_entry_read_f32(float *dst, const fm_provider *p, const fm_entry *e, uint64_t first,
                            uint64_t n, void *raw)
{
    const fm_dtype_info *info = fm_dtype_get(e->dtype);

    FM_TRY(fm_entry_read_range(p, e, first / info->block_elems * info->block_bytes,
                               n / info->block_elems * info->block_bytes, raw, 0));
    return fm_to_f32(dst, e->dtype, raw, n);
}
