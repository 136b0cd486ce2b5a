/* exponents.c - see exponents.h. Elements are rotated left by one bit: the top byte (the exponent;
 * in F16 with three bits of mantissa) is coded, the others are stored as planes. */
#include "store/codec/exponents.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/entropy/crans.h"
#include "store/codec/exponents_kern.h"
#include "store/codec/rows.h"

enum { ELEMS_MIN = 4096, CONTEXTS = 128, MIDDLE = 64, SAMPLE = 2048, SPARE = 176 };
enum { COLUMN_ROWS = 64 }; /* with fewer rows a column's mean says nothing */

struct fms_exponents {
    fms_crans model;
    /* Four, since equal neighbours would wait for one counter; SPARE puts their equal counters at
     * different offsets in a page, since a CPU would take equal ones for the same address. */
    uint32_t histogram[4][CONTEXTS * FMS_CRANS_SYMBOLS + SPARE];
    uint8_t table_of[CONTEXTS];
    uint8_t table[FM_LEAF_BYTES / 2];
    uint8_t symbol[FM_LEAF_BYTES / 2];
    uint32_t sum[FMS_ROW_MAX];
    uint8_t row[FMS_ROWS_MAX];
    uint8_t column[FMS_ROW_MAX];
};

fm_status fms_exponents_new(fms_exponents **out)
{
    *out = fm_calloc(1, sizeof **out);
    return *out ? FM_OK : FM_ENOMEM;
}

void fms_exponents_free(fms_exponents *w)
{
    fm_free(w);
}

/* ==== loops, plain or wide ================================================================= */

static void split(uint8_t *top, uint8_t *rest, const uint8_t *src, size_t width, size_t n)
{
    if (fms_simd_level() >= FMS_SIMD_AVX512)
        fms_exponents_split_wide(top, rest, src, width, n);
    else
        fms_exponents_split(top, rest, src, width, n);
}

static void join(uint8_t *dst, const uint8_t *top, const uint8_t *rest, size_t width, size_t n,
                 uint8_t lowest)
{
    if (fms_simd_level() >= FMS_SIMD_AVX512)
        fms_exponents_join_wide(dst, top, rest, width, n, lowest);
    else
        fms_exponents_join(dst, top, rest, width, n, lowest);
}

static void fill_contexts(fms_exponents *w, const fms_rows *g, size_t n, const uint8_t *map)
{
    uint8_t of[256];
    for (int k = 0; k < 256; k++) {
        int c = FM_MIN(FM_MAX(k - MIDDLE, 0), CONTEXTS - 1);
        of[k] = map ? map[c] : (uint8_t)c;
    }
    size_t like[256] = {0}; /* 1 + the place of a row of this class that begins at column 0 */
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n), at = k == 0 ? g->phase : 0;
        uint8_t row = w->row[k], *table = w->table + from;
        if (at == 0 && like[row]) /* it is long enough: only the first and last rows are shorter */
            memcpy(table, w->table + like[row] - 1, to - from);
        else if (fms_simd_level() >= FMS_SIMD_AVX512)
            fms_exponents_contexts_wide(table, w->column + at, row, of, to - from);
        else
            fms_exponents_contexts(table, w->column + at, row, of, to - from);
        if (at == 0 && k > 0 && !like[row])
            like[row] = from + 1;
        from = to;
    }
}

/* ==== classes ============================================================================== */

/* The variance of log2 of a normal variable, 2.6, in 1/64 octaves. */
enum { NOISE = 10650, WORTH = 6 };

typedef struct mean_of {
    uint64_t total; /* sum of all symbols */
    size_t n;
    unsigned per_octave; /* symbols */
} mean_of;

/* class[k] = MIDDLE + the distance of sum k's mean from that of all, in quarter octaves; all MIDDLE
 * where storing them would not pay. Sum k is over row k (g NULL: `each` elements). */
static void classes_of(uint8_t *class, const uint32_t *sum, size_t count, const fms_rows *g,
                       size_t each, const mean_of *m)
{
    int64_t all = (int64_t)(64 * m->total / ((uint64_t)m->n * m->per_octave));
    uint64_t between = 0;
    for (size_t k = 0, from = 0; k < count; k++) {
        size_t to = g ? fms_rows_end(g, k, m->n) : from + each;
        int64_t mean = (int64_t)(64ull * sum[k] / ((to - from) * m->per_octave)) - all;
        between += (uint64_t)(mean * mean) * (to - from);
        int64_t off = (mean + (mean < 0 ? -8 : 8)) / 16;
        class[k] = (uint8_t)(MIDDLE + FM_MIN(FM_MAX(off, -MIDDLE), MIDDLE - 1));
        from = to;
    }
    if (between < (uint64_t)count * NOISE * WORTH)
        memset(class, MIDDLE, count);
}

static void classify(fms_exponents *w, const fms_rows *g, size_t n, unsigned per_octave)
{
    mean_of m = {0, n, per_octave};
    bool wide = fms_simd_level() >= FMS_SIMD_AVX512;
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        w->sum[k] = wide ? fms_exponents_sum_wide(w->symbol + from, to - from)
                         : fms_exponents_sum(w->symbol + from, to - from);
        m.total += w->sum[k];
        from = to;
    }
    classes_of(w->row, w->sum, g->count, g, 0, &m);
    memset(w->column, MIDDLE, g->each);
    if (g->count < COLUMN_ROWS)
        return;
    memset(w->sum, 0, g->each * sizeof *w->sum);
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n), at = k == 0 ? g->phase : 0;
        if (wide)
            fms_exponents_add_wide(w->sum + at, w->symbol + from, to - from);
        else
            fms_exponents_add(w->sum + at, w->symbol + from, to - from);
        from = to;
    }
    /* The first and the last row may be short: that error costs at most a few bits. */
    classes_of(w->column, w->sum, g->each, NULL, g->count, &m);
}

/* ==== the leaf ============================================================================= */

static size_t width_of(fm_dtype dtype)
{
    return dtype == FM_F32 ? 4 : dtype == FM_BF16 || dtype == FM_F16 ? 2 : 0;
}

/* Whether byte b of the rotated elements looks like noise: two of a sample agree once in 256. */
static bool is_noise(fm_span leaf, size_t width, size_t b)
{
    uint32_t h[256] = {0};
    size_t n = leaf.len / width;
    for (size_t k = 0; k < SAMPLE; k++) {
        size_t i = (size_t)((uint64_t)k * n / SAMPLE) * width;
        uint32_t low = leaf.data[i + b], before = leaf.data[i + (b ? b : width) - 1];
        h[(uint8_t)(low << 1 | before >> 7)]++;
    }
    uint64_t pairs = 0;
    for (unsigned s = 0; s < 256; s++)
        pairs += (uint64_t)h[s] * (h[s] - 1u + (h[s] == 0));
    return pairs * 256 * 10 <= (uint64_t)SAMPLE * (SAMPLE - 1) * 11;
}

/* Symbols: 0 for a top byte of 0, else top - lowest + 1. */
static bool map_symbols(fms_exponents *w, size_t n, uint8_t *lowest)
{
    uint8_t low = 255, high = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t t = w->symbol[i], above = (uint8_t)(t - 1); /* 0 becomes the highest */
        low = FM_MIN(low, above);
        high = FM_MAX(high, t);
    }
    if (high == 0 || high - low > (int)FMS_CRANS_SYMBOLS - 1)
        return false;
    *lowest = (uint8_t)(low + 1);
    for (size_t i = 0; i < n; i++)
        w->symbol[i] = (uint8_t)(w->symbol[i] > low ? w->symbol[i] - low : 0);
    return true;
}

static void count_symbols(fms_exponents *w, size_t n)
{
    memset(w->histogram, 0, sizeof w->histogram);
    size_t i = fms_simd_level() >= FMS_SIMD_AVX512
                   ? fms_exponents_count_wide(w->histogram[0], CONTEXTS * FMS_CRANS_SYMBOLS + SPARE,
                                              w->table, w->symbol, n)
                   : 0;
    for (; i + 4 <= n; i += 4)
        for (size_t k = 0; k < 4; k++)
            w->histogram[k][(size_t)w->table[i + k] << 7 | w->symbol[i + k]]++;
    for (; i < n; i++)
        w->histogram[0][(size_t)w->table[i] << 7 | w->symbol[i]]++;
    for (size_t k = 0; k < (size_t)CONTEXTS * FMS_CRANS_SYMBOLS; k++)
        w->histogram[0][k] += w->histogram[1][k] + w->histogram[2][k] + w->histogram[3][k];
}

bool fms_exponents_encode(fms_exponents *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf)
{
    size_t width = width_of(at->dtype);
    if (!width || leaf.len % width || leaf.len / width < ELEMS_MIN)
        return false;
    for (size_t b = 0; b + 1 < width; b++)
        if (!is_noise(leaf, width, b))
            return false;
    size_t n = leaf.len / width, begin = out->len;
    fms_rows g = fms_rows_choose(at, width, n);
    uint8_t lowest = 0;
    fm_buf_u8(out, (uint8_t)width);
    fm_buf_u8(out, 0);
    fm_buf_u16(out, (uint16_t)g.each);
    fm_buf_u16(out, (uint16_t)g.first);
    uint8_t *rest = fm_buf_extend(out, (width - 1) * n);
    if (!rest)
        return false;
    split(w->symbol, rest, leaf.data, width, n);
    if (!map_symbols(w, n, &lowest)) {
        out->len = begin;
        return false;
    }
    out->data[begin + 1] = lowest;
    classify(w, &g, n, at->dtype == FM_F16 ? 8 : 1);
    fms_classes_put(out, w->row, g.count);
    fms_classes_put(out, w->column, g.each);
    fill_contexts(w, &g, n, NULL);
    count_symbols(w, n);
    uint8_t last[FMS_CRANS_TABLES];
    unsigned tables = fms_crans_join(&w->model, w->histogram[0], CONTEXTS, last);
    fms_crans_put_contexts(out, &w->model, last, tables);
    fms_crans_map(w->table_of, last, tables);
    fill_contexts(w, &g, n, w->table_of);
    fms_crans_encode(&w->model, tables, out, w->symbol, w->table, n);
    return true;
}

fm_status fms_exponents_decode(fms_exponents *w, uint8_t *dst, size_t bytes, fm_span coded)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    size_t width = fm_cursor_u8(&cur);
    uint8_t lowest = fm_cursor_u8(&cur);
    size_t each = fm_cursor_u16(&cur), first = fm_cursor_u16(&cur);
    if (cur.failed || (width != 2 && width != 4) || bytes % width || lowest == 0)
        return fm_fail(FM_ECORRUPT, "coded leaf: exponents of elements of %zu bytes, from %u",
                       width, lowest);
    size_t n = bytes / width;
    fms_rows g;
    FM_TRY(fms_rows_from(&g, first, each, n, &cur));
    fm_span rest = fm_cursor_bytes(&cur, (width - 1) * n);
    unsigned tables = 0;
    FM_TRY(fm_cursor_ok(&cur, "coded leaf", "the mantissas"));
    FM_TRY(fms_classes_get(w->row, g.count, &cur));
    FM_TRY(fms_classes_get(w->column, g.each, &cur));
    FM_TRY(fms_crans_get_contexts(&w->model, w->table_of, CONTEXTS, &tables, &cur));
    fill_contexts(w, &g, n, w->table_of);
    fm_span words = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    FM_TRY(fms_crans_decode(&w->model, tables, w->symbol, w->table, n, words));
    join(dst, w->symbol, rest.data, width, n, lowest);
    return FM_OK;
}
