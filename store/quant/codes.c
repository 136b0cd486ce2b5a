/* codes.c - see codes.h. Sixteen codes have sixteen floats, which are made once for a block. */
#include "store/quant/codes.h"

#include <string.h>

static const float nf4[16] = {-1.0f,           -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.94654p-2f,
                              -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
                              0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
                              0x1.c3497p-2f,   0x1.200f56p-1f,  0x1.722766p-1f,  1.0f};
static const float fp4[16] = {
    0.0f, 0x1.555556p-8f,  0x1.555556p-1f,  1.0f,  0x1.555556p-2f,  0.5f,  0x1.555556p-3f,  0.25f,
    0.0f, -0x1.555556p-8f, -0x1.555556p-1f, -1.0f, -0x1.555556p-2f, -0.5f, -0x1.555556p-3f, -0.25f};

uint8_t fms_code_rounding(fm_dtype dtype)
{
    return dtype == FM_F16 ? FMS_CODE_F16 : dtype == FM_BF16 ? FMS_CODE_BF16 : FMS_CODE_F32;
}

static float rounded(float x, uint8_t how)
{
    if ((how & FMS_CODE_ROUNDING) == FMS_CODE_F16)
        return fm_f16_to_f32(fm_f32_to_f16(x));
    return (how & FMS_CODE_ROUNDING) == FMS_CODE_BF16 ? fm_bf16_to_f32(fm_f32_to_bf16(x)) : x;
}

/* Every product is one IEEE operation, in the order of the libraries. */
float fms_code_value(const fms_code_block *b, uint8_t code)
{
    switch (b->how & FMS_CODE_KIND) {
    case FMS_CODE_NF4:
        return rounded(nf4[code & 15] * b->scale, b->how);
    case FMS_CODE_FP4:
        return rounded(fp4[code & 15] * b->scale, b->how);
    case FMS_CODE_INT8: {
        const float x = (float)((int)code - 128) * b->scale;
        return rounded(x * FMS_CODE_127TH, b->how);
    }
    case FMS_CODE_ADD: {
        const float x = (float)((int)code - 8) * b->scale;
        return rounded(x + b->add, b->how);
    }
    default:
        return rounded((float)((int)code - (int)b->zero) * b->scale, b->how);
    }
}

/* Bits of a code. */
static uint32_t bits_of(fm_dtype layout)
{
    return layout <= FM_CODE4_128 ? 4 : layout <= FM_CODE8_128 ? 8 : 2;
}

void fms_code_put(uint8_t *dst, fm_dtype layout, const fms_code_block *b, const uint8_t *code)
{
    const uint32_t n = fm_dtype_get(layout)->block_elems;
    const uint32_t wide = bits_of(layout);
    uint32_t bits;

    memcpy(&bits, &b->scale, sizeof bits);
    dst[0] = b->how;
    dst[1] = b->zero;
    fm_put_u32(dst + 2, bits);
    dst += FMS_CODE_HEAD_BYTES;
    if (wide == 8)
        memcpy(dst, code, n);
    for (uint32_t i = 0; wide == 4 && i < n; i += 2)
        dst[i / 2] = (uint8_t)((code[i] & 15) | code[i + 1] << 4);
    for (uint32_t i = 0; wide == 2 && i < n; i += 4)
        dst[i / 4] = (uint8_t)((code[i] & 3) | (code[i + 1] & 3) << 2 | (code[i + 2] & 3) << 4 |
                               (code[i + 3] & 3) << 6);
}

static void widen_one(float *dst, uint32_t wide, const uint8_t *src, uint32_t n)
{
    const uint32_t bits = fm_get_u32(src + 2);
    fms_code_block b = {.how = src[0], .zero = src[1]};
    float value[16];

    memcpy(&b.scale, &bits, sizeof bits);
    src += FMS_CODE_HEAD_BYTES;
    for (uint32_t i = 0; wide == 8 && i < n; i++)
        dst[i] = fms_code_value(&b, src[i]);
    for (uint8_t c = 0; wide < 8 && c < 1u << wide; c++)
        value[c] = fms_code_value(&b, c);
    for (uint32_t i = 0; wide == 4 && i < n; i += 2) {
        dst[i] = value[src[i / 2] & 15];
        dst[i + 1] = value[src[i / 2] >> 4];
    }
    for (uint32_t i = 0; wide == 2 && i < n; i++)
        dst[i] = value[src[i / 4] >> 2 * (i % 4) & 3];
}

void fms_codes_widen(float *dst, fm_dtype layout, const uint8_t *src, uint64_t blocks)
{
    const fm_dtype_info *info = fm_dtype_get(layout);

    for (uint64_t i = 0; i < blocks; i++, src += info->block_bytes, dst += info->block_elems)
        widen_one(dst, bits_of(layout), src, info->block_elems);
}
