/* codec_cdelta.c - see codec_cdelta.h.
 *
 * z = zigzag of the change. Symbols: z itself below 16, else 16 + 4 * (log2 z - 4) + the two bits
 * after the leading one; the bits after those are noise and stand apart as they are ("tails").
 * Context of an element with parent's exponent e (at least 1) in a row of scale s:
 *   s = 255 (a quiet row)  128 + e mod 128
 *   else                   clamp(s + base - 2 e + 24, 0, 127): 24 is a mean change of one ulp */
#include "store/codec_cdelta.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/codec_rans.h"

enum { DIRECT = 16, CONTEXTS = 256, MOVING = 128, QUIET = 255, BIAS = 24 };
enum { SEGMENT_MIN = 128, SEGMENT_MAX = 4096, SEGMENT_LONG = 1024 };
enum { MEAN_BITS = 24 }; /* fraction of the row means, below the row's highest exponent */
enum { ROWS_RAW = 0, ROWS_CONST = 1, ROWS_RANS = 3 };
enum { ROWS_MAX = FM_LEAF_BYTES / 2 / SEGMENT_MIN + 2 };

struct fmi_cdelta {
    fmi_crans model;
    uint32_t histogram[CONTEXTS][FMI_CRANS_SYMBOLS];
    uint8_t table_of[CONTEXTS];
    uint8_t table[FM_LEAF_BYTES / 2];
    uint8_t symbol[FM_LEAF_BYTES / 2];
    uint32_t z[FM_LEAF_BYTES / 2];
    int32_t scale[ROWS_MAX]; /* s + base; INT32_MIN: quiet */
    uint8_t coded_scale[ROWS_MAX];
    uint8_t rans[ROWS_MAX + 1024];
};

typedef struct layout {
    size_t width;
    unsigned exp_shift;
    uint32_t exp_mask, sign, ones;
} layout;

static layout layout_of(fm_dtype dtype)
{
    if (dtype == FM_F32)
        return (layout){4, 23, 255, 0x80000000u, 0xffffffffu};
    if (dtype == FM_BF16)
        return (layout){2, 7, 255, 0x8000u, 0xffffu};
    fm_assert(dtype == FM_F16);
    return (layout){2, 10, 31, 0x8000u, 0xffffu};
}

/* Rows of the tensor where their length is usable, else pieces of a length that is. */
typedef struct segments {
    size_t first, each, count; /* elements of the first, of the others; how many in all */
} segments;

static segments segments_of(size_t first, size_t each, size_t n)
{
    segments g = {FM_MIN(first, n), each, 1};
    g.count += (n - g.first + each - 1) / each;
    return g;
}

static size_t segment_end(const segments *g, size_t k, size_t n)
{
    return FM_MIN(g->first + k * g->each, n);
}

fm_status fmi_cdelta_new(fmi_cdelta **out)
{
    *out = fm_calloc(1, sizeof **out);
    return *out ? FM_OK : FM_ENOMEM;
}

void fmi_cdelta_free(fmi_cdelta *w)
{
    fm_free(w);
}

bool fmi_cdelta_applies(const fmi_leaf_at *at, size_t bytes)
{
    if (at->dtype != FM_F32 && at->dtype != FM_BF16 && at->dtype != FM_F16)
        return false;
    size_t width = layout_of(at->dtype).width;
    return bytes % width == 0 && bytes / width >= FMI_CDELTA_MIN;
}

static inline uint32_t load(const uint8_t *p, size_t i, size_t width)
{
    return width == 2 ? fm_get_u16(p + 2 * i) : fm_get_u32(p + 4 * i);
}

static inline uint32_t ordered(uint32_t v, layout l)
{
    return v & l.sign ? ~v & l.ones : v | l.sign;
}

static inline uint32_t exponent_of(uint32_t v, layout l)
{
    uint32_t e = v >> l.exp_shift & l.exp_mask;
    return FM_MAX(e, 1u); /* subnormals have the ulp of exponent 1 */
}

/* ==== encoding: changes, row scales, contexts, symbols ===================================== */

/* Zigzagged changes of elements [from, to), counted away from zero. Returns the largest. */
static inline __attribute__((always_inline)) uint32_t
changes(uint32_t *z, layout l, const uint8_t *child, const uint8_t *parent, size_t from, size_t to)
{
    uint32_t most = 0;
    for (size_t i = from; i < to; i++) {
        uint32_t p = load(parent, i, l.width), c = load(child, i, l.width);
        uint32_t u = ordered(c, l) - ordered(p, l);
        u = (p & l.sign ? 0u - u : u) & l.ones;
        z[i] = (u << 1 & l.ones) ^ (u & l.sign ? l.ones : 0u);
        most = FM_MAX(most, z[i]);
    }
    return most;
}

/* Two times log2 of the mean |change| in units of 2^(exponent of ulp), rounded down. */
static inline __attribute__((always_inline)) int32_t
row_scale(const uint32_t *z, layout l, const uint8_t *parent, size_t from, size_t to)
{
    uint32_t top = 1;
    for (size_t i = from; i < to; i++) {
        uint32_t e = exponent_of(load(parent, i, l.width), l);
        top = FM_MAX(top, e == l.exp_mask ? 1u : e);
    }
    uint64_t sum = 0; /* at most 2^12 elements of at most 2^(24 + 24) */
    for (size_t i = from; i < to; i++) {
        uint32_t e = exponent_of(load(parent, i, l.width), l);
        uint32_t gap = e > top ? 63u : FM_MIN(top - e, 63u);
        uint64_t d = FM_MIN((z[i] >> 1) + (z[i] & 1), 1u << 24);
        sum += (d << MEAN_BITS) >> gap;
    }
    uint64_t mean = FM_MAX(sum / (to - from), 1u);
    int32_t whole = 63 - __builtin_clzll(mean);
    uint64_t x = mean << (63 - whole) >> 33; /* 1.30 */
    int32_t half = (x * x >> 60) >= 2;       /* the square reaches 2: above the half octave */
    return 2 * (whole - MEAN_BITS + (int32_t)top) + half;
}

static void measure(fmi_cdelta *w, layout l, fm_span leaf, const uint8_t *parent, const segments *g,
                    size_t n)
{
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = segment_end(g, k, n);
        uint32_t most = l.width == 2 ? changes(w->z, l, leaf.data, parent, from, to)
                                     : changes(w->z, l, leaf.data, parent, from, to);
        w->scale[k] = most <= 2 ? INT32_MIN : row_scale(w->z, l, parent, from, to);
        from = to;
    }
}

/* Scales as bytes above a base; returns the base. A range beyond 254 half octaves is cut. */
static int32_t pack_scales(fmi_cdelta *w, size_t rows)
{
    int32_t base = INT32_MAX;
    for (size_t k = 0; k < rows; k++)
        if (w->scale[k] != INT32_MIN)
            base = FM_MIN(base, w->scale[k]);
    base = base == INT32_MAX ? 0 : base;
    for (size_t k = 0; k < rows; k++) {
        int32_t s = FM_MIN(w->scale[k] - (w->scale[k] == INT32_MIN ? 0 : base), QUIET - 1);
        w->coded_scale[k] = (uint8_t)(w->scale[k] == INT32_MIN ? QUIET : s);
    }
    return base;
}

/* Contexts by exponent for a row of this coded scale. */
static void row_contexts(uint8_t of[256], uint8_t coded, int32_t base, layout l)
{
    for (uint32_t e = 0; e <= l.exp_mask; e++) {
        int32_t x = (int32_t)FM_MAX(e, 1u);
        int32_t v = coded + base - 2 * x + BIAS;
        of[e] = (uint8_t)(coded == QUIET ? MOVING + (x & 127) : FM_MIN(FM_MAX(v, 0), MOVING - 1));
    }
}

/* table[i] = map[context of element i]; map NULL: the context itself. */
static inline __attribute__((always_inline)) void
fill_contexts(uint8_t *table, const uint8_t *coded_scale, int32_t base, layout l,
              const uint8_t *parent, const segments *g, size_t n, const uint8_t *map)
{
    uint8_t of[256];
    int last = -1;
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = segment_end(g, k, n);
        if (last != coded_scale[k]) {
            row_contexts(of, coded_scale[k], base, l);
            for (uint32_t e = 0; map && e <= l.exp_mask; e++)
                of[e] = map[of[e]];
            last = coded_scale[k];
        }
        for (size_t i = from; i < to; i++)
            table[i] = of[load(parent, i, l.width) >> l.exp_shift & l.exp_mask];
        from = to;
    }
}

static void contexts(fmi_cdelta *w, int32_t base, layout l, const uint8_t *parent,
                     const segments *g, size_t n, const uint8_t *map)
{
    const layout bf16 = layout_of(FM_BF16);
    if (l.exp_shift == bf16.exp_shift) /* constants for the common case */
        fill_contexts(w->table, w->coded_scale, base, bf16, parent, g, n, map);
    else
        fill_contexts(w->table, w->coded_scale, base, l, parent, g, n, map);
}

static inline unsigned tail_bits(uint8_t symbol)
{
    return symbol < DIRECT ? 0 : (unsigned)(symbol - DIRECT) / 4 + 2;
}

static inline uint8_t symbol_of(uint32_t z)
{
    if (z < DIRECT)
        return (uint8_t)z;
    unsigned k = 31u - (unsigned)__builtin_clz(z);
    return (uint8_t)(DIRECT + 4 * (k - 4) + (z >> (k - 2) & 3));
}

/* Counts (context, symbol) and writes the tails, u32 bytes first, lowest bit first. */
static void put_tails(fmi_cdelta *w, fm_buf *out, size_t n, size_t width)
{
    size_t begin = out->len;
    uint8_t *dst = fm_buf_extend(out, 4 + n * width + 16);
    if (!dst)
        return;
    memset(w->histogram, 0, sizeof w->histogram);
    uint8_t *p = dst + 4;
    uint64_t held = 0;
    unsigned count = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t z = w->z[i];
        uint8_t s = symbol_of(z);
        w->symbol[i] = s;
        w->histogram[w->table[i]][s]++;
        unsigned bits = tail_bits(s);
        held |= (uint64_t)(z & ((1u << bits) - 1)) << count;
        count += bits;
        if (count >= 32) {
            fm_put_u32(p, (uint32_t)held);
            p += 4;
            held >>= 32;
            count -= 32;
        }
    }
    for (; count > 0; count -= FM_MIN(count, 8u), held >>= 8)
        *p++ = (uint8_t)held;
    fm_put_u32(dst, (uint32_t)(p - dst - 4));
    out->len = begin + (size_t)(p - dst);
}

/* ==== tables =============================================================================== */

/* What n symbols of this histogram cost under a table of their own, in 1/256 bits, and the table.
 */
static uint64_t cost_of(const uint32_t h[FMI_CRANS_SYMBOLS])
{
    uint64_t bits = 0;
    uint32_t n = 0, kinds = 0;
    for (unsigned s = 0; s < FMI_CRANS_SYMBOLS; s++)
        if (h[s]) {
            bits += fmi_crans_nlog2(h[s]);
            n += h[s];
            kinds++;
        }
    return fmi_crans_nlog2(n) - bits + (uint64_t)(24 + 8 * kinds) * 256;
}

/* Neighbouring contexts share a table where that costs less than two. Histograms of a group are
 * gathered in the row of its first context. last[t] is the highest context of table t. */
static unsigned join_contexts(fmi_cdelta *w, uint8_t last[FMI_CRANS_TABLES])
{
    unsigned tables = 0;
    uint32_t *group = NULL;
    uint64_t group_cost = 0;
    for (unsigned c = 0; c < CONTEXTS; c++) {
        uint32_t *h = w->histogram[c], both[FMI_CRANS_SYMBOLS], any = 0;
        for (unsigned s = 0; s < FMI_CRANS_SYMBOLS; s++)
            any |= h[s];
        if (!any)
            continue;
        uint64_t alone = cost_of(h), joined = 0;
        for (unsigned s = 0; group && s < FMI_CRANS_SYMBOLS; s++)
            both[s] = group[s] + h[s];
        if (group)
            joined = cost_of(both);
        if (group && (joined <= group_cost + alone || tables == FMI_CRANS_TABLES)) {
            memcpy(group, both, sizeof both);
            group_cost = joined;
        } else {
            group = h;
            group_cost = alone;
            tables++;
        }
        last[tables - 1] = (uint8_t)c;
        fmi_crans_normalise(&w->model, tables - 1, group);
    }
    last[tables - 1] = CONTEXTS - 1;
    return tables;
}

static void map_contexts(uint8_t table_of[CONTEXTS], const uint8_t *last, unsigned tables)
{
    for (unsigned t = 0, c = 0; t < tables; t++)
        for (; c <= last[t]; c++)
            table_of[c] = (uint8_t)t;
}

/* ==== row scales =========================================================================== */

static void put_scales(fmi_cdelta *w, fm_buf *out, size_t rows)
{
    uint32_t h[256] = {0};
    for (size_t k = 0; k < rows; k++)
        h[w->coded_scale[k]]++;
    bool same = h[w->coded_scale[0]] == rows;
    size_t coded = same ? 0 : fmi_rans_encode(w->rans, rows, w->coded_scale, rows, h);
    fm_buf_u8(out, same ? ROWS_CONST : coded ? ROWS_RANS : ROWS_RAW);
    fm_buf_u32(out, (uint32_t)(same ? 1 : coded ? coded : rows));
    fm_buf_append(out, coded ? w->rans : w->coded_scale, same ? 1 : coded ? coded : rows);
}

static fm_status get_scales(fmi_cdelta *w, fm_cursor *cur, size_t rows)
{
    uint8_t mode = fm_cursor_u8(cur);
    uint32_t len = fm_cursor_u32(cur);
    fm_span s = fm_cursor_bytes(cur, len);
    fm_status rc = fm_cursor_ok(cur, "coded leaf", "the scales of its rows");
    if (rc != FM_OK)
        return rc;
    if (mode == ROWS_RANS)
        return fmi_rans_decode(w->coded_scale, rows, s.data, s.len);
    if (mode == ROWS_RAW && s.len == rows)
        memcpy(w->coded_scale, s.data, rows);
    else if (mode == ROWS_CONST && s.len == 1)
        memset(w->coded_scale, s.data[0], rows);
    else
        return fm_fail(FM_ECORRUPT, "coded leaf: scales of rows of mode %u, %zu bytes", mode,
                       s.len);
    return FM_OK;
}

/* ==== the leaf ============================================================================= */

static segments choose_segments(const fmi_leaf_at *at, size_t width, size_t n)
{
    uint64_t row = at->row_bytes / width, start = at->offset / width;
    if (row > SEGMENT_MAX)
        return segments_of(SEGMENT_LONG, SEGMENT_LONG, n);
    if (row == 0)
        return segments_of(SEGMENT_MIN * 4, SEGMENT_MIN * 4, n);
    if (row < SEGMENT_MIN) /* whole rows, as many as make a usable length */
        row *= (SEGMENT_MIN + row - 1) / row;
    return segments_of((size_t)(row - start % row), (size_t)row, n);
}

void fmi_cdelta_encode(fmi_cdelta *w, fm_buf *out, const fmi_leaf_at *at, fm_span leaf,
                       const uint8_t *parent)
{
    layout l = layout_of(at->dtype);
    size_t n = leaf.len / l.width;
    segments g = choose_segments(at, l.width, n);
    measure(w, l, leaf, parent, &g, n);
    int32_t base = pack_scales(w, g.count);
    fm_buf_u16(out, (uint16_t)g.each);
    fm_buf_u16(out, (uint16_t)g.first);
    fm_buf_u16(out, (uint16_t)base);
    put_scales(w, out, g.count);
    contexts(w, base, l, parent, &g, n, NULL);
    put_tails(w, out, n, l.width);
    uint8_t last[FMI_CRANS_TABLES];
    unsigned tables = join_contexts(w, last);
    fm_buf_u8(out, (uint8_t)(tables - 1));
    fm_buf_append(out, last, tables);
    fmi_crans_put_tables(out, &w->model, tables);
    map_contexts(w->table_of, last, tables);
    contexts(w, base, l, parent, &g, n, w->table_of);
    fmi_crans_encode(&w->model, tables, out, w->symbol, w->table, n);
}

static fm_status get_tables(fmi_cdelta *w, fm_cursor *cur, unsigned *tables)
{
    *tables = fm_cursor_u8(cur) + 1u;
    fm_span last = fm_cursor_bytes(cur, *tables);
    fm_status rc = fm_cursor_ok(cur, "coded leaf", "its tables' contexts");
    if (rc != FM_OK)
        return rc;
    bool rising = *tables <= FMI_CRANS_TABLES && last.data[*tables - 1] == CONTEXTS - 1;
    for (unsigned t = 1; rising && t < *tables; t++)
        rising = last.data[t] > last.data[t - 1];
    if (!rising)
        return fm_fail(FM_ECORRUPT, "coded leaf: the contexts of its %u tables are out of order",
                       *tables);
    map_contexts(w->table_of, last.data, *tables);
    return fmi_crans_get_tables(&w->model, *tables, cur);
}

/* Symbols and tails to z, z and parent to child. Tails beyond the end read as zeros; the caller
 * compares how many bits were asked for. */
static inline __attribute__((always_inline)) uint64_t
apply(uint8_t *dst, layout l, const uint8_t *symbol, fm_span tails, const uint8_t *parent, size_t n)
{
    uint64_t at = 0; /* bits */
    for (size_t i = 0; i < n; i++) {
        uint32_t z = symbol[i];
        if (z >= DIRECT) {
            unsigned bits = tail_bits((uint8_t)z);
            uint64_t held = 0;
            size_t byte = (size_t)(at >> 3);
            if (byte + 8 <= tails.len)
                held = fm_get_u64(tails.data + byte);
            else
                for (size_t b = byte; b < tails.len; b++)
                    held |= (uint64_t)tails.data[b] << (8 * (b - byte));
            z = (4 + ((z - DIRECT) & 3)) << bits |
                ((uint32_t)(held >> (at & 7)) & ((1u << bits) - 1));
            at += bits;
        }
        uint32_t p = load(parent, i, l.width);
        uint32_t u = z >> 1 ^ (z & 1 ? l.ones : 0u);
        uint32_t o = (ordered(p, l) + (p & l.sign ? 0u - u : u)) & l.ones;
        o = o & l.sign ? o ^ l.sign : ~o & l.ones;
        if (l.width == 2)
            fm_put_u16(dst + 2 * i, (uint16_t)o);
        else
            fm_put_u32(dst + 4 * i, o);
    }
    return at;
}

/* The highest symbol of a dtype: log2 z < 8 * width. */
static fm_status check_symbols(const fmi_cdelta *w, unsigned tables, layout l)
{
    unsigned most = DIRECT + 4u * (8u * (unsigned)l.width - 4u);
    for (unsigned t = 0; t < tables; t++)
        for (unsigned s = most; s < FMI_CRANS_SYMBOLS; s++)
            if (w->model.freq[t][s])
                return fm_fail(FM_ECORRUPT, "coded leaf: symbol %u is beyond the dtype's", s);
    return FM_OK;
}

fm_status fmi_cdelta_decode(fmi_cdelta *w, uint8_t *dst, size_t bytes, fm_dtype dtype,
                            fm_span coded, const uint8_t *parent)
{
    fmi_leaf_at at = {dtype, 0, 0, false};
    if (!fmi_cdelta_applies(&at, bytes))
        return fm_fail(FM_ECORRUPT, "coded leaf: a delta of this dtype or length is unknown");
    layout l = layout_of(dtype);
    size_t n = bytes / l.width;
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    size_t each = fm_cursor_u16(&cur), first = fm_cursor_u16(&cur);
    int32_t base = (int16_t)fm_cursor_u16(&cur);
    if (cur.failed || each < SEGMENT_MIN || each > SEGMENT_MAX || first == 0 || first > each)
        return fm_fail(FM_ECORRUPT, "coded leaf: rows of %zu elements, the first of %zu", each,
                       first);
    segments g = segments_of(first, each, n);
    unsigned tables = 0;
    fm_status rc = get_scales(w, &cur, g.count);
    uint32_t tail_bytes = fm_cursor_u32(&cur);
    fm_span tails = fm_cursor_bytes(&cur, tail_bytes);
    if (rc == FM_OK)
        rc = fm_cursor_ok(&cur, "coded leaf", "its tails");
    if (rc == FM_OK)
        rc = get_tables(w, &cur, &tables);
    if (rc == FM_OK)
        rc = check_symbols(w, tables, l);
    if (rc != FM_OK)
        return rc;
    contexts(w, base, l, parent, &g, n, w->table_of);
    fm_span rest = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    rc = fmi_crans_decode(&w->model, tables, w->symbol, w->table, n, rest);
    if (rc != FM_OK)
        return rc;
    const layout bf16 = layout_of(FM_BF16);
    uint64_t used = dtype == FM_BF16 ? apply(dst, bf16, w->symbol, tails, parent, n)
                                     : apply(dst, l, w->symbol, tails, parent, n);
    if ((used + 7) / 8 != tails.len)
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes of tails, not %llu", tails.len,
                       (unsigned long long)((used + 7) / 8));
    return FM_OK;
}
