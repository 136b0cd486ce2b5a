/* cdelta_kern.h - loops of cdelta.c, in a header so that cdelta_simd.c can compile them for wider
 * vectors too; mixed.c shares its rows and contexts. */
#ifndef FM_STORE_CODEC_CDELTA_KERN_H
#define FM_STORE_CODEC_CDELTA_KERN_H

#include "store/base/mem.h"
#include "store/codec/cdelta.h"
#include "store/codec/rows.h"

enum { DIRECT = 16, CONTEXTS = 256, MOVING = 128, QUIET = 255, BIAS = 24, SLICE = 320 };

struct fms_cdelta {
    fms_crans model;
    /* Two, since equal neighbours would wait for one counter; the spare 176 put them at different
     * offsets in a page, since a CPU takes equal ones for the same address. */
    uint32_t histogram[2][CONTEXTS * FMS_CRANS_SYMBOLS + 176];
    uint8_t table_of[CONTEXTS];
    uint8_t table[FM_LEAF_BYTES / 2];
    uint8_t symbol[FM_LEAF_BYTES / 2];
    uint8_t z[FM_LEAF_BYTES];    /* elements of u16 or u32 */
    int32_t scale[FMS_ROWS_MAX]; /* s + base; INT32_MIN: quiet */
    uint8_t coded_scale[FMS_ROWS_MAX];
    /* Tables by exponent e: slice[b][SLICE - h + e] where s + base + BIAS = 2 h + b, else
     * quiet[e]. */
    uint8_t slice[2][SLICE + 320], quiet[256];
};

typedef struct layout {
    size_t width;
    unsigned exp_shift;
    uint32_t exp_mask, sign, ones;
} layout;

static inline layout layout_of(fm_dtype dtype)
{
    if (dtype == FM_F32)
        return (layout){4, 23, 255, 0x80000000u, 0xffffffffu};
    if (dtype == FM_BF16)
        return (layout){2, 7, 255, 0x8000u, 0xffffu};
    fm_assert(dtype == FM_F16);
    return (layout){2, 10, 31, 0x8000u, 0xffffu};
}

static inline uint32_t load(const uint8_t *p, size_t i, size_t width)
{
    return width == 2 ? fm_get_u16(p + 2 * i) : fm_get_u32(p + 4 * i);
}

static inline uint32_t exponent_of(uint32_t v, layout l)
{
    uint32_t e = v >> l.exp_shift & l.exp_mask;
    return FM_MAX(e, 1u); /* subnormals have the ulp of exponent 1 */
}

/* v ^ (sign of v ? all lower bits : 0). The function is its own inverse, and makes the change away
 * from zero of ordered integers a plain difference: child = fold(|parent| + u) ^ parent's sign. */
static inline uint32_t fold(uint32_t v, layout l)
{
    return v ^ (v & l.sign ? l.ones ^ l.sign : 0u);
}

static inline void put_z(void *z, size_t i, layout l, uint32_t v)
{
    if (l.width == 2)
        ((uint16_t *)z)[i] = (uint16_t)v;
    else
        ((uint32_t *)z)[i] = v;
}

static inline uint32_t get_z(const void *z, size_t i, layout l)
{
    return l.width == 2 ? ((const uint16_t *)z)[i] : ((const uint32_t *)z)[i];
}

/* z = the zigzagged changes of elements [from, to), counted away from zero. Returns the largest. */
static inline __attribute__((always_inline)) uint32_t
changes(void *z, layout l, const uint8_t *child, const uint8_t *parent, size_t from, size_t to)
{
    uint32_t most = 0;
    for (size_t i = from; i < to; i++) {
        uint32_t p = load(parent, i, l.width), c = load(child, i, l.width) ^ (p & l.sign);
        uint32_t u = (fold(c, l) - (p & ~l.sign)) & l.ones;
        uint32_t v = (u << 1 & l.ones) ^ (u & l.sign ? l.ones : 0u);
        put_z(z, i, l, v);
        most = FM_MAX(most, v);
    }
    return most;
}

static inline int32_t half_octaves(uint64_t sum, size_t n, unsigned fraction, uint32_t top)
{
    uint64_t mean = FM_MAX(sum / n, 1u);
    int32_t whole = 63 - __builtin_clzll(mean);
    uint64_t x = mean << (63 - whole) >> 33; /* 1.30 */
    int32_t half = (x * x >> 60) >= 2;       /* x >= sqrt(2) */
    return 2 * (whole - (int32_t)fraction + (int32_t)top) + half;
}

/* Twice the log2 of the mean |change| in units of 2^(exponent of the ulp), rounded down. */
static inline __attribute__((always_inline)) int32_t
row_scale(const void *z, layout l, const uint8_t *parent, size_t from, size_t to)
{
    uint32_t top = 1;
    for (size_t i = from; i < to; i++) {
        uint32_t e = load(parent, i, l.width) >> l.exp_shift & l.exp_mask;
        top = FM_MAX(top, e == l.exp_mask ? 1u : e);
    }
    const unsigned fraction = l.width == 2 ? 16 : 24; /* below the highest exponent's ulp */
    uint64_t sum = 0;                                 /* at most 2^15 elements of at most 2^48 */
    for (size_t i = from; i < to; i++) {
        uint32_t e = exponent_of(load(parent, i, l.width), l);
        uint32_t v = get_z(z, i, l), d = (v >> 1) + (v & 1),
                 gap = FM_MIN(top - e, 31u); /* NaN: 31 */
        if (l.width == 2)
            sum += d << 16 >> gap;
        else
            sum += (uint64_t)FM_MIN(d, 1u << 24) << 24 >> gap;
    }
    return half_octaves(sum, to - from, fraction, top);
}

/* The tables of a row with this coded scale, indexed by exponent. */
static inline const uint8_t *row_tables(const fms_cdelta *w, uint8_t coded, int32_t base)
{
    if (coded == QUIET)
        return w->quiet;
    int32_t s = coded + base + BIAS;
    s = FM_MIN(FM_MAX(s, 0), 2 * (SLICE - 1) + 1);
    return w->slice[s & 1] + SLICE - (s >> 1);
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

/* Writes bits, the lowest first, by whole u32. */
typedef struct tail_writer {
    uint8_t *p;
    uint64_t held;
    unsigned count;
} tail_writer;

static inline void put_tail(tail_writer *t, uint32_t z, uint8_t symbol)
{
    unsigned bits = tail_bits(symbol);
    t->held |= (uint64_t)(z & ((1u << bits) - 1)) << t->count;
    t->count += bits;
    if (t->count >= 32) {
        fm_put_u32(t->p, (uint32_t)t->held);
        t->p += 4;
        t->held >>= 32;
        t->count -= 32;
    }
}

/* The z of a symbol that has a tail, from bit *at. Bits beyond the end read as zeros; the caller
 * compares the final *at with the length. */
static inline uint32_t take_tail(uint8_t symbol, fm_span tails, uint64_t *at)
{
    unsigned bits = tail_bits(symbol);
    uint64_t held = 0;
    size_t byte = (size_t)(*at >> 3);
    if (byte + 8 <= tails.len)
        held = fm_get_u64(tails.data + byte);
    else
        for (size_t b = byte; b < tails.len; b++)
            held |= (uint64_t)tails.data[b] << (8 * (b - byte));
    held >>= *at & 7;
    *at += bits;
    return (4u + ((symbol - (unsigned)DIRECT) & 3)) << bits | ((uint32_t)held & ((1u << bits) - 1));
}

/* For the codecs that share rows and contexts. begin appends rows, base and scales, and leaves
 * changes in z and contexts in table. To decode: open reads that head, contexts fills table. */
fms_rows fms_cdelta_begin(fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                          const uint8_t *parent, int32_t *base);
FM_CHECKED fm_status fms_cdelta_open(fms_cdelta *w, fms_rows *g, int32_t *base, fm_cursor *cur,
                                     size_t n);
void fms_cdelta_contexts(fms_cdelta *w, int32_t base, fm_dtype dtype, const uint8_t *parent,
                         const fms_rows *g, size_t n);

/* The same with AVX-512; elements have two bytes, except for measure. */
void fms_cdelta_measure_wide(fms_cdelta *w, fm_dtype dtype, fm_span leaf, const uint8_t *parent,
                             const fms_rows *g, size_t n);
void fms_cdelta_contexts_wide(fms_cdelta *w, int32_t base, layout l, const uint8_t *parent,
                              const fms_rows *g, size_t n);
size_t fms_cdelta_symbols_wide(fms_cdelta *w, tail_writer *t, size_t n); /* returns elements done */
size_t fms_cdelta_apply_wide(uint8_t *dst, const uint8_t *symbol, fm_span tails, uint64_t *at,
                             const uint8_t *parent, size_t n); /* likewise */

#endif
