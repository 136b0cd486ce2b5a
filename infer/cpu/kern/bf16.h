/* bf16.h - converts float32 rows to pairs of bf16; part of kern.c. Products of pairs are mode
 * fast's (cpu/fast/kern_fast.h). */

/* Rounded to nearest even; NaN stays NaN. */
FMI_INLINE uint32_t bits_of_bf16(float v)
{
    uint32_t u, rounded;

    memcpy(&u, &v, sizeof u);
    rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded;
}

static void k_round(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = (uint16_t)bits_of_bf16(src[i]);
}

static void k_pairs(uint32_t *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t n,
                    uint32_t k)
{
    for (uint32_t i = 0; i + 2 <= k; i += 2, src += 2 * ld_src, dst += ld_dst)
        for (uint32_t j = 0; j < n; j++)
            dst[j] = bits_of_bf16(src[ld_src + j]) << 16 | bits_of_bf16(src[j]);
    for (uint32_t j = 0; k % 2 && j < n; j++)
        dst[j] = bits_of_bf16(src[j]);
}
