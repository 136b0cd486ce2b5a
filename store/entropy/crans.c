/* crans.c - see crans.h. Symbol i belongs to state i mod 32; the encoder runs
 * backwards so that the decoder runs forwards; words are read in the order of the symbols. */
#include "store/entropy/crans.h"

#include <string.h>

#include "store/base/error.h"
#include "store/entropy/crans_simd.h"

enum { BITS = FMS_CRANS_BITS, SCALE = 1 << BITS, STATES = FMS_CRANS_STATES };
enum { INVERSE_SHIFT = 43 }; /* exact for x < freq << 21, freq <= 2^11; products fit 64 bits */
static const uint32_t state_low = 1u << 16;

/* ==== coding =============================================================================== */

static void make_codes(fms_crans *m, size_t tables)
{
    for (size_t t = 0; t < tables; t++) {
        uint32_t sum = 0;
        for (unsigned s = 0; s < FMS_CRANS_SYMBOLS; s++) {
            uint32_t f = m->freq[t][s];
            size_t k = t * FMS_CRANS_SYMBOLS + s;
            m->u.code[k].inverse = f ? ((1ull << INVERSE_SHIFT) + f - 1) / f : 0;
            m->u.code[k].start = sum;
            m->u.code[k].rest = SCALE - f;
            sum += f;
        }
    }
}

static void make_pairs(fms_crans *m, size_t tables)
{
    for (size_t t = 0; t < tables; t++)
        for (uint32_t s = 0, sum = 0; s < FMS_CRANS_SYMBOLS; s++) {
            m->u.pair[t * FMS_CRANS_SYMBOLS + s] = m->freq[t][s] | sum << 16;
            sum += m->freq[t][s];
        }
}

/* Codes symbols [from, n), the last first, into states x; words go down from p; returns new p. */
static uint8_t *encode_down(const fms_crans *m, uint32_t x[STATES], uint8_t *p,
                            const uint8_t *symbol, const uint8_t *table, size_t from, size_t n)
{
    for (size_t i = n; i-- > from;) {
        size_t k = (size_t)table[i] * FMS_CRANS_SYMBOLS + symbol[i];
        uint32_t v = x[i % STATES], rest = m->u.code[k].rest;
        uint32_t full = v >> (32 - BITS) >= SCALE - rest; /* arithmetic, not a branch */
        fm_put_u16(p - 2, (uint16_t)v);
        p -= 2 * full;
        v >>= 16 * full;
        uint32_t q = (uint32_t)(v * m->u.code[k].inverse >> INVERSE_SHIFT);
        x[i % STATES] = v + m->u.code[k].start + q * rest;
    }
    return p;
}

void fms_crans_encode(fms_crans *m, size_t tables, fm_buf *out, const uint8_t *symbol,
                      const uint8_t *table, size_t n)
{
    size_t room = 2 * n + 64 + 4 * STATES; /* a symbol takes at most 11 bits */
    size_t begin = out->len;
    uint8_t *dst = fm_buf_extend(out, room);
    if (!dst)
        return;
    uint32_t x[STATES];
    for (unsigned j = 0; j < STATES; j++)
        x[j] = state_low;
    const int level = fms_simd_level();
    size_t whole = level >= FMS_SIMD_AVX2 ? n - n % STATES : 0;
    make_codes(m, tables);
    uint8_t *p = encode_down(m, x, dst + room, symbol, table, whole, n);
    if (whole)
        make_pairs(m, tables);
    if (whole && level >= FMS_SIMD_AVX512)
        p = fms_crans_encode_simd(m->u.pair, x, p, symbol, table, whole);
    else if (whole)
        p = fms_crans_encode_avx2(m->u.pair, x, p, symbol, table, whole);
    size_t words = (size_t)(dst + room - p);
    for (unsigned j = 0; j < STATES; j++)
        fm_put_u32(dst + 4 * (size_t)j, x[j]);
    memmove(dst + 4 * STATES, p, words);
    out->len = begin + 4 * STATES + words;
}

static void make_slots(fms_crans *m, size_t tables)
{
    for (size_t t = 0; t < tables; t++) {
        uint32_t *slot = m->u.slot + t * SCALE;
        for (uint32_t s = 0; s < FMS_CRANS_SYMBOLS; s++) {
            uint32_t f = m->freq[t][s];
            for (uint32_t j = 0; j < f; j++)
                *slot++ = s | (f - 1) << 8 | j << 20;
        }
    }
}

static int level_most = FMS_SIMD_AVX512;

void fms_simd_limit(int most)
{
    level_most = most;
}

int fms_simd_level(void)
{
    return FM_MIN(level_most, fms_crans_simd_level());
}

/* Decodes one symbol from one state. Reads two bytes at *p, and consumes them if the state is
 * low. */
static inline uint32_t pull(uint32_t v, const uint32_t *slot, uint8_t *symbol, const uint8_t **p)
{
    uint32_t e = slot[v & (SCALE - 1)];
    *symbol = (uint8_t)e;
    v = ((e >> 8 & 0xfff) + 1) * (v >> BITS) + (e >> 20);
    uint32_t want = v < state_low;
    v = v << (16 * want) | (fm_get_u16(*p) & (0 - want));
    *p += 2 * want;
    return v;
}

/* Decodes groups of 32 symbols while a group's words cannot run out; returns how many symbols. */
static size_t decode_groups(const fms_crans *m, uint8_t *symbol, const uint8_t *table, size_t n,
                            uint32_t x[STATES], const uint8_t **words, const uint8_t *end)
{
    const uint8_t *p = *words;
    size_t i = 0;
    for (; n - i >= STATES && end - p >= 2 * STATES; i += STATES)
        for (unsigned j = 0; j < STATES; j++)
            x[j] = pull(x[j], m->u.slot + (size_t)table[i + j] * SCALE, &symbol[i + j], &p);
    *words = p;
    return i;
}

fm_status fms_crans_decode(fms_crans *m, size_t tables, uint8_t *symbol, const uint8_t *table,
                           size_t n, fm_span src)
{
    if (src.len < 4 * STATES)
        return fm_fail(FM_ECORRUPT, "coded leaf: its symbols take %zu bytes", src.len);
    make_slots(m, tables);
    uint32_t x[STATES];
    for (unsigned j = 0; j < STATES; j++)
        x[j] = fm_get_u32(src.data + 4 * (size_t)j);
    const uint8_t *p = src.data + 4 * STATES, *end = src.data + src.len;
    size_t i = 0;
    if (fms_simd_level() >= FMS_SIMD_AVX512)
        i = fms_crans_decode_simd(m->u.slot, symbol, table, n, x, &p, end);
    else if (fms_simd_level() == FMS_SIMD_AVX2)
        i = fms_crans_decode_avx2(m->u.slot, symbol, table, n, x, &p, end);
    i += decode_groups(m, symbol + i, table + i, n - i, x, &p, end);
    for (; i < n; i++) {
        static const uint8_t none[2];
        const uint8_t *q = end - p >= 2 ? p : none, *from = q;
        x[i % STATES] = pull(x[i % STATES], m->u.slot + (size_t)table[i] * SCALE, &symbol[i], &q);
        if (q != from && from == none)
            return fm_fail(FM_ECORRUPT, "coded leaf: its words end after %zu of %zu", i, n);
        p += q - from;
    }
    for (unsigned j = 0; j < STATES; j++)
        if (x[j] != state_low || p != end)
            return fm_fail(FM_ECORRUPT, "coded leaf: its words do not end where its bytes end");
    return FM_OK;
}
