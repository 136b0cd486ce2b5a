/* codec_crans.c - see codec_crans.h. Symbol i belongs to state i mod 32; the encoder runs
 * backwards so that the decoder runs forwards; words are read in the order of the symbols. */
#include "store/codec_crans.h"

#include <string.h>

#include "store/base/error.h"
#include "store/codec_crans_simd.h"

enum { BITS = FMI_CRANS_BITS, SCALE = 1 << BITS, STATES = FMI_CRANS_STATES };
enum { INVERSE_SHIFT = 43 }; /* x < freq << 21, freq <= 2^11: exact, and the product fits 64 bits */
static const uint32_t state_low = 1u << 16;

/* ==== tables =============================================================================== */

void fmi_crans_normalise(fmi_crans *m, size_t t, const uint32_t histogram[FMI_CRANS_SYMBOLS])
{
    uint16_t *freq = m->freq[t];
    uint64_t n = 0;
    unsigned top = 0;
    for (unsigned s = 0; s < FMI_CRANS_SYMBOLS; s++) {
        n += histogram[s];
        if (histogram[s] > histogram[top])
            top = s;
    }
    fm_assert(n > 0);
    int32_t left = SCALE;
    for (unsigned s = 0; s < FMI_CRANS_SYMBOLS; s++) {
        uint64_t f = histogram[s] ? (histogram[s] * (uint64_t)SCALE + n / 2) / n : 0;
        freq[s] = (uint16_t)(histogram[s] ? FM_MAX(f, 1u) : 0);
        left -= freq[s];
    }
    while (left < 0 && freq[top] + left < 1) { /* many rare symbols: shave the larger ones */
        for (unsigned s = 0; s < FMI_CRANS_SYMBOLS && left < 0; s++)
            if (freq[s] > 1) {
                freq[s]--;
                left++;
            }
    }
    freq[top] = (uint16_t)(freq[top] + left);
}

typedef struct bit_writer {
    fm_buf *out;
    uint32_t held, count;
} bit_writer;

static void put_bits(bit_writer *w, uint32_t value, uint32_t bits)
{
    w->held |= value << w->count;
    w->count += bits;
    for (; w->count >= 8; w->count -= 8, w->held >>= 8)
        fm_buf_u8(w->out, (uint8_t)w->held);
}

static unsigned bit_length(uint32_t v)
{
    return v ? 32u - (unsigned)__builtin_clz(v) : 0;
}

/* Per table: 7 bits, the highest symbol; per symbol up to it 4 bits, the length of its frequency,
 * and the bits below the leading one. Filled up to a byte at the end of all tables. */
void fmi_crans_put_tables(fm_buf *out, const fmi_crans *m, size_t tables)
{
    bit_writer w = {out, 0, 0};
    for (size_t t = 0; t < tables; t++) {
        unsigned last = FMI_CRANS_SYMBOLS - 1;
        while (last > 0 && !m->freq[t][last])
            last--;
        put_bits(&w, last, 7);
        for (unsigned s = 0; s <= last; s++) {
            uint32_t f = m->freq[t][s];
            unsigned len = bit_length(f);
            put_bits(&w, len, 4);
            if (len > 1)
                put_bits(&w, f - (1u << (len - 1)), len - 1);
        }
    }
    if (w.count)
        fm_buf_u8(out, (uint8_t)w.held);
}

typedef struct bit_reader {
    fm_cursor *cur;
    uint32_t held, count;
} bit_reader;

static uint32_t get_bits(bit_reader *r, uint32_t bits)
{
    for (; r->count < bits; r->count += 8)
        r->held |= (uint32_t)fm_cursor_u8(r->cur) << r->count;
    uint32_t v = r->held & ((1u << bits) - 1);
    r->held >>= bits;
    r->count -= bits;
    return v;
}

fm_status fmi_crans_get_tables(fmi_crans *m, size_t tables, fm_cursor *cur)
{
    bit_reader r = {cur, 0, 0};
    for (size_t t = 0; t < tables; t++) {
        memset(m->freq[t], 0, sizeof m->freq[t]);
        unsigned last = get_bits(&r, 7);
        uint32_t sum = 0;
        for (unsigned s = 0; s <= last; s++) {
            uint32_t len = get_bits(&r, 4), f = len ? 1u << (len - 1) : 0;
            if (len > 1)
                f += get_bits(&r, len - 1);
            if (cur->failed || f > SCALE - sum)
                return fm_fail(FM_ECORRUPT, "coded leaf: frequency table %zu is malformed", t);
            m->freq[t][s] = (uint16_t)f;
            sum += f;
        }
        if (sum != SCALE)
            return fm_fail(FM_ECORRUPT, "coded leaf: frequency table %zu sums to %u, not %d", t,
                           sum, SCALE);
    }
    if (r.held)
        return fm_fail(FM_ECORRUPT, "coded leaf: bits after the frequency tables");
    return FM_OK;
}

uint64_t fmi_crans_nlog2(uint32_t n)
{
    if (n < 2)
        return 0;
    /* log2 of the mantissa by squaring: eight fraction bits */
    unsigned whole = bit_length(n) - 1;
    uint64_t x = (uint64_t)n << (31 - whole); /* 1.31 */
    uint32_t bits = 0;
    for (int k = 0; k < 8; k++) {
        x = x * x >> 31;
        bits <<= 1;
        if (x >> 32) {
            x >>= 1;
            bits |= 1;
        }
    }
    return (uint64_t)n * (whole * 256 + bits);
}

/* ==== coding =============================================================================== */

static void make_codes(fmi_crans *m, size_t tables)
{
    for (size_t t = 0; t < tables; t++) {
        uint32_t sum = 0;
        for (unsigned s = 0; s < FMI_CRANS_SYMBOLS; s++) {
            uint32_t f = m->freq[t][s];
            size_t k = t * FMI_CRANS_SYMBOLS + s;
            m->u.code[k].inverse = f ? ((1ull << INVERSE_SHIFT) + f - 1) / f : 0;
            m->u.code[k].start = sum;
            m->u.code[k].rest = SCALE - f;
            sum += f;
        }
    }
}

void fmi_crans_encode(fmi_crans *m, size_t tables, fm_buf *out, const uint8_t *symbol,
                      const uint8_t *table, size_t n)
{
    make_codes(m, tables);
    size_t room = 2 * n + 64 + 4 * STATES; /* a symbol takes at most 11 bits */
    size_t begin = out->len;
    uint8_t *dst = fm_buf_extend(out, room);
    if (!dst)
        return;
    uint32_t x[STATES];
    for (unsigned j = 0; j < STATES; j++)
        x[j] = state_low;
    uint8_t *p = dst + room;
    for (size_t i = n; i-- > 0;) {
        size_t k = (size_t)table[i] * FMI_CRANS_SYMBOLS + symbol[i];
        uint32_t v = x[i % STATES], rest = m->u.code[k].rest;
        uint32_t full = v >> (32 - BITS) >= SCALE - rest; /* arithmetic: nobody can guess it */
        fm_put_u16(p - 2, (uint16_t)v);
        p -= 2 * full;
        v >>= 16 * full;
        uint32_t q = (uint32_t)(v * m->u.code[k].inverse >> INVERSE_SHIFT);
        x[i % STATES] = v + m->u.code[k].start + q * rest;
    }
    size_t words = (size_t)(dst + room - p);
    for (unsigned j = 0; j < STATES; j++)
        fm_put_u32(dst + 4 * (size_t)j, x[j]);
    memmove(dst + 4 * STATES, p, words);
    out->len = begin + 4 * STATES + words;
}

static void make_slots(fmi_crans *m, size_t tables)
{
    for (size_t t = 0; t < tables; t++) {
        uint32_t *slot = m->u.slot + t * SCALE;
        for (uint32_t s = 0; s < FMI_CRANS_SYMBOLS; s++) {
            uint32_t f = m->freq[t][s];
            for (uint32_t j = 0; j < f; j++)
                *slot++ = s | (f - 1) << 8 | j << 20;
        }
    }
}

static int level_most = 1;

int fmi_crans_level(int most)
{
    level_most = most;
    return FM_MIN(most, fmi_crans_simd_level());
}

/* One symbol out of one state. Reads two bytes at *p, and takes them if the state wants them. */
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

/* Whole groups of 32 symbols while their words are surely there; returns how many symbols. */
static size_t decode_groups(const fmi_crans *m, uint8_t *symbol, const uint8_t *table, size_t n,
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

fm_status fmi_crans_decode(fmi_crans *m, size_t tables, uint8_t *symbol, const uint8_t *table,
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
    if (FM_MIN(level_most, fmi_crans_simd_level()) > 0)
        i = fmi_crans_decode_simd(m->u.slot, symbol, table, n, x, &p, end);
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
