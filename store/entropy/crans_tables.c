/* crans_tables.c - crans.h's frequencies: made, coded, decoded; contexts that share a table. */
#include <string.h>

#include "store/entropy/crans.h"

enum { SCALE = FMS_CRANS_SCALE };

void fms_crans_normalise(fms_crans *m, size_t t, const uint32_t histogram[FMS_CRANS_SYMBOLS])
{
    uint16_t *freq = m->freq[t];
    uint64_t n = 0;
    unsigned top = 0;
    for (unsigned s = 0; s < FMS_CRANS_SYMBOLS; s++) {
        n += histogram[s];
        if (histogram[s] > histogram[top])
            top = s;
    }
    fm_assert(n > 0);
    int32_t left = SCALE;
    for (unsigned s = 0; s < FMS_CRANS_SYMBOLS; s++) {
        uint64_t f = histogram[s] ? (histogram[s] * (uint64_t)SCALE + n / 2) / n : 0;
        freq[s] = (uint16_t)(histogram[s] ? FM_MAX(f, 1u) : 0);
        left -= freq[s];
    }
    while (left < 0 && freq[top] + left < 1) { /* many rare symbols: reduce the frequent ones */
        for (unsigned s = 0; s < FMS_CRANS_SYMBOLS && left < 0; s++)
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
void fms_crans_put_tables(fm_buf *out, const fms_crans *m, size_t tables)
{
    bit_writer w = {out, 0, 0};
    for (size_t t = 0; t < tables; t++) {
        unsigned last = FMS_CRANS_SYMBOLS - 1;
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

fm_status fms_crans_get_tables(fms_crans *m, size_t tables, fm_cursor *cur)
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

uint64_t fms_crans_nlog2(uint32_t n)
{
    if (n < 2)
        return 0;
    /* log2 of the mantissa by squaring: eight fraction bits. */
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

/* Cost of a histogram's symbols with a table of their own, and of that table, in 1/256 bits. */
static uint64_t cost_of(const uint32_t h[FMS_CRANS_SYMBOLS])
{
    uint64_t bits = 0;
    uint32_t n = 0, kinds = 0;
    for (unsigned s = 0; s < FMS_CRANS_SYMBOLS; s++)
        if (h[s]) {
            bits += fms_crans_nlog2(h[s]);
            n += h[s];
            kinds++;
        }
    return fms_crans_nlog2(n) - bits + (uint64_t)(24 + 8 * kinds) * 256;
}

static bool occurs(const uint32_t h[FMS_CRANS_SYMBOLS])
{
    uint32_t any = 0;
    for (unsigned s = 0; s < FMS_CRANS_SYMBOLS; s++)
        any |= h[s];
    return any != 0;
}

unsigned fms_crans_join(fms_crans *m, uint32_t *histogram, unsigned contexts,
                        uint8_t last[FMS_CRANS_TABLES])
{
    unsigned tables = 0;
    uint32_t *group = NULL, both[FMS_CRANS_SYMBOLS];
    uint64_t group_cost = 0;
    for (unsigned c = 0; c < contexts; c++) {
        uint32_t *h = histogram + (size_t)c * FMS_CRANS_SYMBOLS;
        if (!occurs(h))
            continue;
        uint64_t alone = cost_of(h), joined = 0;
        for (unsigned s = 0; group && s < FMS_CRANS_SYMBOLS; s++)
            both[s] = group[s] + h[s];
        if (group)
            joined = cost_of(both);
        if (group && (joined <= group_cost + alone || tables == FMS_CRANS_TABLES)) {
            memcpy(group, both, sizeof both);
            group_cost = joined;
        } else {
            if (group)
                fms_crans_normalise(m, tables - 1, group);
            group = h;
            group_cost = alone;
            tables++;
        }
        last[tables - 1] = (uint8_t)c;
    }
    fm_assert(group);
    fms_crans_normalise(m, tables - 1, group);
    last[tables - 1] = (uint8_t)(contexts - 1);
    return tables;
}

void fms_crans_put_contexts(fm_buf *out, const fms_crans *m, const uint8_t *last, unsigned tables)
{
    fm_buf_u8(out, (uint8_t)(tables - 1));
    fm_buf_append(out, last, tables);
    fms_crans_put_tables(out, m, tables);
}

fm_status fms_crans_get_contexts(fms_crans *m, uint8_t *table_of, unsigned contexts,
                                 unsigned *tables, fm_cursor *cur)
{
    *tables = fm_cursor_u8(cur) + 1u;
    fm_span last = fm_cursor_bytes(cur, *tables);
    FM_TRY(fm_cursor_ok(cur, "coded leaf", "its tables' contexts"));
    bool rising = *tables <= FMS_CRANS_TABLES && last.data[*tables - 1] == contexts - 1;
    for (unsigned t = 1; rising && t < *tables; t++)
        rising = last.data[t] > last.data[t - 1];
    if (!rising)
        return fm_fail(FM_ECORRUPT, "coded leaf: the contexts of its %u tables are out of order",
                       *tables);
    fms_crans_map(table_of, last.data, *tables);
    return fms_crans_get_tables(m, *tables, cur);
}

void fms_crans_map(uint8_t *table_of, const uint8_t *last, unsigned tables)
{
    for (unsigned t = 0, c = 0; t < tables; t++)
        for (; c <= last[t]; c++)
            table_of[c] = (uint8_t)t;
}
