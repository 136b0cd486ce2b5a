/* cdelta.c - see cdelta.h.
 *
 * z = zigzag of the change. Symbols: z itself below 16, else 16 + 4 * (log2 z - 4) + the two bits
 * after the leading one; the bits after those are noise and are stored apart, uncoded ("tails").
 * Context of an element whose parent has the exponent e (at least 1), in a row of scale s:
 *   s = 255 (a quiet row)  128 + e mod 128
 *   else                   clamp(s + base - 2 e + 24, 0, 127): 24 is a mean change of one ulp */
#include "store/codec/cdelta.h"

#include <string.h>

#include "store/codec/cdelta_kern.h"

fm_status fms_cdelta_new(fms_cdelta **out)
{
    *out = fm_calloc(1, sizeof **out);
    return *out ? FM_OK : FM_ENOMEM;
}

void fms_cdelta_free(fms_cdelta *w)
{
    fm_free(w);
}

bool fms_cdelta_applies(const fms_leaf_at *at, size_t bytes)
{
    if (at->dtype != FM_F32 && at->dtype != FM_BF16 && at->dtype != FM_F16)
        return false;
    size_t width = layout_of(at->dtype).width;
    return bytes % width == 0 && bytes / width >= FMS_CDELTA_MIN;
}

static void measure_portable(fms_cdelta *w, layout l, fm_span leaf, const uint8_t *parent,
                             const fms_rows *g, size_t n)
{
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        uint32_t most = changes(w->z, l, leaf.data, parent, from, to);
        w->scale[k] = most <= 2 ? INT32_MIN : row_scale(w->z, l, parent, from, to);
        from = to;
    }
}

static void measure(fms_cdelta *w, fm_dtype dtype, fm_span leaf, const uint8_t *parent,
                    const fms_rows *g, size_t n)
{
    if (fms_simd_level() >= FMS_SIMD_AVX512)
        fms_cdelta_measure_wide(w, dtype, leaf, parent, g, n);
    else
        measure_portable(w, layout_of(dtype), leaf, parent, g, n);
}
/* Codes the rows' scales as bytes above the returned base; beyond 254 half octaves they are cut. */
static int32_t pack_scales(fms_cdelta *w, size_t rows)
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

/* Sets w->table[i] to map[context of element i]; map NULL: to the context itself. */
static void contexts(fms_cdelta *w, int32_t base, layout l, const uint8_t *parent,
                     const fms_rows *g, size_t n, const uint8_t *map)
{
    for (int b = 0; b < 2; b++)
        for (int j = 0; j < SLICE + 256; j++) {
            int v = FM_MIN(FM_MAX(2 * (SLICE - j) + b, 0), MOVING - 1);
            w->slice[b][j] = map ? map[v] : (uint8_t)v;
        }
    for (unsigned e = 0; e < 256; e++)
        w->quiet[e] = map ? map[MOVING + (e & 127)] : (uint8_t)(MOVING + (e & 127));
    if (fms_simd_level() >= FMS_SIMD_AVX512 && l.width == 2) {
        fms_cdelta_contexts_wide(w, base, l, parent, g, n);
        return;
    }
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        const uint8_t *of = row_tables(w, w->coded_scale[k], base);
        for (size_t i = from; i < to; i++)
            w->table[i] = of[exponent_of(load(parent, i, l.width), l)];
        from = to;
    }
}

/* Counts (context, symbol) and appends the tails: their length (u32), then bits, lowest first. */
static void put_tails(fms_cdelta *w, fm_buf *out, size_t n, layout l)
{
    size_t begin = out->len;
    uint8_t *dst = fm_buf_extend(out, 4 + n * l.width + 16);
    if (!dst)
        return;
    memset(w->histogram, 0, sizeof w->histogram);
    tail_writer t = {dst + 4, 0, 0};
    size_t i =
        fms_simd_level() >= FMS_SIMD_AVX512 && l.width == 2 ? fms_cdelta_symbols_wide(w, &t, n) : 0;
    for (; i < n; i++) {
        uint32_t z = get_z(w->z, i, l);
        w->symbol[i] = symbol_of(z);
        w->histogram[i & 1][(size_t)w->table[i] << 7 | w->symbol[i]]++;
        put_tail(&t, z, w->symbol[i]);
    }
    for (size_t k = 0; k < (size_t)CONTEXTS * FMS_CRANS_SYMBOLS; k++)
        w->histogram[0][k] += w->histogram[1][k];
    for (; t.count > 0; t.count -= FM_MIN(t.count, 8u), t.held >>= 8)
        *t.p++ = (uint8_t)t.held;
    fm_put_u32(dst, (uint32_t)(t.p - dst - 4));
    out->len = begin + (size_t)(t.p - dst);
}

/* ==== the leaf ============================================================================= */

fms_rows fms_cdelta_begin(fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                          const uint8_t *parent, int32_t *base)
{
    layout l = layout_of(at->dtype);
    size_t n = leaf.len / l.width;
    fms_rows g = fms_rows_choose(at, l.width, n);
    measure(w, at->dtype, leaf, parent, &g, n);
    *base = pack_scales(w, g.count);
    fm_buf_u16(out, (uint16_t)g.each);
    fm_buf_u16(out, (uint16_t)g.first);
    fm_buf_u16(out, (uint16_t)*base);
    fms_classes_put(out, w->coded_scale, g.count);
    contexts(w, *base, l, parent, &g, n, NULL);
    return g;
}

fm_status fms_cdelta_open(fms_cdelta *w, fms_rows *g, int32_t *base, fm_cursor *cur, size_t n)
{
    size_t each = fm_cursor_u16(cur), first = fm_cursor_u16(cur);
    *base = (int16_t)fm_cursor_u16(cur);
    FM_TRY(fms_rows_from(g, first, each, n, cur));
    return fms_classes_get(w->coded_scale, g->count, cur);
}

void fms_cdelta_contexts(fms_cdelta *w, int32_t base, fm_dtype dtype, const uint8_t *parent,
                         const fms_rows *g, size_t n)
{
    contexts(w, base, layout_of(dtype), parent, g, n, NULL);
}

void fms_cdelta_encode(fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                       const uint8_t *parent)
{
    layout l = layout_of(at->dtype);
    size_t n = leaf.len / l.width;
    int32_t base;
    fms_rows g = fms_cdelta_begin(w, out, at, leaf, parent, &base);
    put_tails(w, out, n, l);
    if (out->failed != FM_OK)
        return; /* nothing was counted; the caller sees out->failed */
    uint8_t last[FMS_CRANS_TABLES];
    unsigned tables = fms_crans_join(&w->model, w->histogram[0], CONTEXTS, last);
    fms_crans_put_contexts(out, &w->model, last, tables);
    fms_crans_map(w->table_of, last, tables);
    contexts(w, base, l, parent, &g, n, w->table_of);
    fms_crans_encode(&w->model, tables, out, w->symbol, w->table, n);
}

/* Decodes elements [i, n) of two bytes by blocks of 32; the tails have a loop of their own, so that
 * the compiler can vectorize the other. Returns how many elements it decoded. */
static size_t apply_blocks(uint8_t *dst, const uint8_t *symbol, fm_span tails, uint64_t *at,
                           const uint8_t *parent, size_t i, size_t n)
{
    size_t begin = i;
    for (; n - i >= 32; i += 32) {
        uint16_t z[32];
        uint8_t most = 0;
        for (size_t k = 0; k < 32; k++) {
            z[k] = symbol[i + k];
            most = FM_MAX(most, symbol[i + k]);
        }
        for (size_t k = 0; most >= DIRECT && k < 32; k++)
            if (z[k] >= DIRECT)
                z[k] = (uint16_t)take_tail(symbol[i + k], tails, at);
        for (size_t k = 0; k < 32; k++) {
            uint16_t p = fm_get_u16(parent + 2 * (i + k));
            uint16_t u = (uint16_t)(z[k] >> 1 ^ (0 - (z[k] & 1)));
            uint16_t m = (uint16_t)((p & 0x7fff) + u);
            m = (uint16_t)(m ^ (0x7fff & (0 - (m >> 15))) ^ (p & 0x8000));
            fm_put_u16(dst + 2 * (i + k), m);
        }
    }
    return i - begin;
}

/* Makes z from symbols and tails, the child from z and parent. Returns the tail bits read. */
static uint64_t apply(uint8_t *dst, layout l, const uint8_t *symbol, fm_span tails,
                      const uint8_t *parent, size_t n)
{
    uint64_t at = 0;
    size_t i = fms_simd_level() >= FMS_SIMD_AVX512 && l.width == 2
                   ? fms_cdelta_apply_wide(dst, symbol, tails, &at, parent, n)
                   : 0;
    if (l.width == 2)
        i += apply_blocks(dst, symbol, tails, &at, parent, i, n);
    for (; i < n; i++) {
        uint32_t z = symbol[i] < DIRECT ? symbol[i] : take_tail(symbol[i], tails, &at);
        uint32_t p = load(parent, i, l.width);
        uint32_t u = z >> 1 ^ (z & 1 ? l.ones : 0u);
        uint32_t c = fold(((p & ~l.sign) + u) & l.ones, l) ^ (p & l.sign);
        if (l.width == 2)
            fm_put_u16(dst + 2 * i, (uint16_t)c);
        else
            fm_put_u32(dst + 4 * i, c);
    }
    return at;
}

/* Refuses symbols too high for the dtype: log2 z < 8 * width. */
static fm_status check_symbols(const fms_cdelta *w, unsigned tables, layout l)
{
    unsigned most = DIRECT + 4u * (8u * (unsigned)l.width - 4u);
    for (unsigned t = 0; t < tables; t++)
        for (unsigned s = most; s < FMS_CRANS_SYMBOLS; s++)
            if (w->model.freq[t][s])
                return fm_fail(FM_ECORRUPT, "coded leaf: symbol %u is beyond the dtype's", s);
    return FM_OK;
}

fm_status fms_cdelta_decode(fms_cdelta *w, uint8_t *dst, size_t bytes, fm_dtype dtype,
                            fm_span coded, const uint8_t *parent)
{
    fms_leaf_at at = {dtype, 0, 0, false};
    if (!fms_cdelta_applies(&at, bytes))
        return fm_fail(FM_ECORRUPT, "coded leaf: a delta of this dtype or length is unknown");
    layout l = layout_of(dtype);
    size_t n = bytes / l.width;
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    int32_t base;
    fms_rows g;
    fm_status rc = fms_cdelta_open(w, &g, &base, &cur, n);
    unsigned tables = 0;
    uint32_t tail_bytes = fm_cursor_u32(&cur);
    fm_span tails = fm_cursor_bytes(&cur, tail_bytes);
    FM_THEN(rc, fm_cursor_ok(&cur, "coded leaf", "its tails"));
    FM_THEN(rc, fms_crans_get_contexts(&w->model, w->table_of, CONTEXTS, &tables, &cur));
    FM_THEN(rc, check_symbols(w, tables, l));
    if (rc != FM_OK)
        return rc;
    contexts(w, base, l, parent, &g, n, w->table_of);
    fm_span rest = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    FM_TRY(fms_crans_decode(&w->model, tables, w->symbol, w->table, n, rest));
    uint64_t used = apply(dst, l, w->symbol, tails, parent, n);
    if ((used + 7) / 8 != tails.len)
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes of tails, not %llu", tails.len,
                       (unsigned long long)((used + 7) / 8));
    return FM_OK;
}
