/* sha256_ni.c - FIPS 180-4 by the sha256rnds2, sha256msg1 and sha256msg2 instructions. */
#include "store/base/math/sha256_ni.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define WITH_SHA __attribute__((target("sha,sse4.1,ssse3")))

static const uint32_t ROUND[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool fmb_sha_usable(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) /* older processors have no such leaf */
        return false;
    return (b & bit_SHA) && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

/* The state in the order that the instructions want: ABEF and CDGH. */
WITH_SHA static void load_state(__m128i s[2], const uint32_t h[8])
{
    const __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)h), 0xB1);
    const __m128i hgfe =
        _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(h + 4)), 0x1B);

    s[0] = _mm_alignr_epi8(dcba, hgfe, 8);
    s[1] = _mm_blend_epi16(hgfe, dcba, 0xF0);
}

WITH_SHA static void store_state(uint32_t h[8], const __m128i s[2])
{
    const __m128i feba = _mm_shuffle_epi32(s[0], 0x1B), dchg = _mm_shuffle_epi32(s[1], 0xB1);

    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

WITH_SHA static inline void load_block(__m128i w[4], const uint8_t *p)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);

    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), swap);
}

/* Words 4 r + 16 .. 4 r + 19 of the schedule, in place of words 4 r .. 4 r + 3. */
WITH_SHA static inline void next_words(__m128i w[4], int r)
{
    const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[r & 3], w[(r + 1) & 3]),
                                      _mm_alignr_epi8(w[(r + 3) & 3], w[(r + 2) & 3], 4));

    w[r & 3] = _mm_sha256msg2_epu32(sum, w[(r + 3) & 3]);
}

WITH_SHA static inline void four_rounds(__m128i s[2], __m128i w)
{
    s[1] = _mm_sha256rnds2_epu32(s[1], s[0], w);
    s[0] = _mm_sha256rnds2_epu32(s[0], s[1], _mm_shuffle_epi32(w, 0x0E));
}

WITH_SHA static void blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
    __m128i s[2], w[4];

    load_state(s, h);
    for (; n > 0; n--, p += 64) {
        const __m128i s0 = s[0], s1 = s[1];
        load_block(w, p);
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++) {
            const __m128i k = _mm_load_si128((const __m128i *)(const void *)(ROUND + 4 * r));
            four_rounds(s, _mm_add_epi32(w[r & 3], k));
            if (r < 12)
                next_words(w, r);
        }
        s[0] = _mm_add_epi32(s[0], s0);
        s[1] = _mm_add_epi32(s[1], s1);
    }
    store_state(h, s);
}

WITH_SHA static void blocks_two(uint32_t h[8], const uint8_t *p, uint32_t g[8], const uint8_t *q,
                                size_t n)
{
    __m128i s[2], t[2], w[4], v[4];

    load_state(s, h);
    load_state(t, g);
    for (; n > 0; n--, p += 64, q += 64) {
        const __m128i s0 = s[0], s1 = s[1], t0 = t[0], t1 = t[1];
        load_block(w, p);
        load_block(v, q);
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++) {
            const __m128i k = _mm_load_si128((const __m128i *)(const void *)(ROUND + 4 * r));
            const __m128i x = _mm_add_epi32(w[r & 3], k), y = _mm_add_epi32(v[r & 3], k);
            s[1] = _mm_sha256rnds2_epu32(s[1], s[0], x);
            t[1] = _mm_sha256rnds2_epu32(t[1], t[0], y);
            s[0] = _mm_sha256rnds2_epu32(s[0], s[1], _mm_shuffle_epi32(x, 0x0E));
            t[0] = _mm_sha256rnds2_epu32(t[0], t[1], _mm_shuffle_epi32(y, 0x0E));
            if (r < 12) {
                next_words(w, r);
                next_words(v, r);
            }
        }
        s[0] = _mm_add_epi32(s[0], s0);
        s[1] = _mm_add_epi32(s[1], s1);
        t[0] = _mm_add_epi32(t[0], t0);
        t[1] = _mm_add_epi32(t[1], t1);
    }
    store_state(h, s);
    store_state(g, t);
}
#else
bool fmb_sha_usable(void)
{
    return false;
}

static void blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
    (void)h, (void)p, (void)n;
}

static void blocks_two(uint32_t h[8], const uint8_t *p, uint32_t g[8], const uint8_t *q, size_t n)
{
    (void)h, (void)p, (void)g, (void)q, (void)n;
}
#endif

void fmb_sha_init(fmb_sha *s)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memset(s, 0, sizeof *s);
    memcpy(s->h, first, sizeof first);
}

/* Fills the block that is begun, from *p, which moves past the bytes taken. Bytes stay in `part`
 * only if the input ended before the block was full. */
static void fill_part(fmb_sha *s, const uint8_t **p, size_t *len)
{
    const size_t held = (size_t)(s->bytes % 64), take = FM_MIN(*len, (64 - held) % 64);

    if (take == 0)
        return;
    memcpy(s->part + held, *p, take);
    s->bytes += take;
    *p += take;
    *len -= take;
    if (s->bytes % 64 == 0)
        blocks(s->h, s->part, 1);
}

/* Compresses the whole blocks at p and keeps the rest in `part`, which must be empty. */
static void take_rest(fmb_sha *s, const uint8_t *p, size_t len)
{
    const size_t n = len / 64;

    if (n > 0)
        blocks(s->h, p, n);
    if (len % 64)
        memcpy(s->part, p + n * 64, len % 64);
    s->bytes += len;
}

void fmb_sha_update(fmb_sha *s, const uint8_t *p, size_t len)
{
    fill_part(s, &p, &len);
    if (len > 0)
        take_rest(s, p, len);
}

void fmb_sha_update_two(fmb_sha *a, const uint8_t *p, size_t p_len, fmb_sha *b, const uint8_t *q,
                        size_t q_len)
{
    fill_part(a, &p, &p_len);
    fill_part(b, &q, &q_len);
    const size_t n = FM_MIN(p_len, q_len) / 64;
    if (n > 0) {
        blocks_two(a->h, p, b->h, q, n);
        a->bytes += n * 64;
        b->bytes += n * 64;
    }
    if (p_len > n * 64)
        take_rest(a, p + n * 64, p_len - n * 64);
    if (q_len > n * 64)
        take_rest(b, q + n * 64, q_len - n * 64);
}

void fmb_sha_final(const fmb_sha *s, uint8_t out[32])
{
    fmb_sha end = *s;
    uint8_t pad[128] = {0x80};
    const size_t held = (size_t)(s->bytes % 64), zeros = (held < 56 ? 56 : 120) - held;
    const uint64_t bits = s->bytes * 8;

    for (int i = 0; i < 8; i++)
        pad[zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    fmb_sha_update(&end, pad, zeros + 8);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(end.h[i / 4] >> (24 - 8 * (i % 4)));
}
