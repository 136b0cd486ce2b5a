/* rng.c - Philox4x32-10 and the distributions drawn from it. Counter words: index low, index high,
 * stream low, stream high; key: seed low, seed high. The words of one block are used as two 64-bit
 * numbers. These choices are part of every recipe: changing one changes every replay. */
#include "store/base/math/rng.h"

#include "store/base/math/detmath.h"

#include <math.h>

#define ROUNDS 10
#define TWO_M53 0x1p-53
#define TWO_PI 0x1.921fb54442d18p+2

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t a = (uint64_t)0xD2511F53u * c[0];
    uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                        (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};

    for (int i = 0; i < 4; i++)
        c[i] = next[i];
}

fm_u32x4 fm_philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    fm_u32x4 x = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);

    for (int i = 0; i < ROUNDS; i++) {
        philox_round(x.v, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

static uint64_t low_half(fm_u32x4 x)
{
    return (uint64_t)x.v[0] | (uint64_t)x.v[1] << 32;
}

static uint64_t high_half(fm_u32x4 x)
{
    return (uint64_t)x.v[2] | (uint64_t)x.v[3] << 32;
}

uint64_t fm_rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    return low_half(fm_philox(seed, stream, index));
}

double fm_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(fm_rng_u64(seed, stream, index) >> 11) * TWO_M53;
}

uint64_t fm_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    fm_assert(n >= 1);
    /* The lowest 2^64 mod n numbers would make small results likelier: they are drawn again. */
    const uint64_t reject_below = (0 - n) % n;

    for (;; seed += 0x9E3779B97F4A7C15u) {
        fm_u32x4 x = fm_philox(seed, stream, index);
        if (low_half(x) >= reject_below)
            return low_half(x) % n;
        if (high_half(x) >= reject_below)
            return high_half(x) % n;
    }
}

double fm_rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    fm_u32x4 x = fm_philox(seed, stream, index);
    double u = (double)((low_half(x) >> 11) + 1) * TWO_M53; /* (0, 1]: its log is finite */
    double turn = (double)(high_half(x) >> 11) * TWO_M53;
    double s, c;

    fm_sincos(&s, &c, TWO_PI * turn);
    return sqrt(-2.0 * fm_log(u)) * c;
}

void fm_rng_permutation(uint32_t *out, uint32_t n, uint64_t seed, uint64_t stream)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)fm_rng_below(seed, stream, i, i);
        uint32_t t = out[i - 1];
        out[i - 1] = out[j];
        out[j] = t;
    }
}
