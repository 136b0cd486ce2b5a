/* mixed.c - see mixed.h. One loop over the elements serves both directions: code_bit codes the bit
 * that it is given, or decodes a bit and returns it. */
#include "store/codec/mixed.h"

#include <string.h>

#include "store/codec/cdelta_kern.h"

/* Nodes: is there a change; is it towards zero; its magnitude's length, in unary. */
enum { CHANGED = 0, TOWARDS = 1, LENGTH = 2, NODES = 35, INPUTS = 6, SETS = 4, LIMIT = 1023 };
enum { WEIGHT_MOST = 1 << 22 };
enum { SPACES = 256 + 4096 + 8192 + 1024 + 4096 + 16384 };

struct fms_mixed {
    int16_t squash[4096], stretch[4096];
    uint32_t rate[LIMIT + 1];
    uint32_t cell[SPACES * NODES]; /* probability of a 1 in 22 bits << 10 | bits seen, cut */
    uint32_t top[256][96];         /* likewise, for the two bits after a magnitude's leading one */
    int32_t weight[NODES * SETS][INPUTS];
    int32_t column[FMS_ROW_MAX];
    fm_buf *out; /* NULL: decoding */
    fm_span in;  /* decoding */
    size_t at;
    uint32_t low, high, value;
};

/* squash: the logistic function of d / 256 in 1/4096, by a recurrence; stretch: its inverse. */
static void make_tables(fms_mixed *m)
{
    uint64_t e = 1ull << 32;
    m->squash[0] = 1;
    for (int d = 0; d < 2048; d++, e = e * 4278222805u >> 32) {
        uint64_t p = FM_MIN((4096ull << 32) / ((1ull << 32) + e), 4095u);
        m->squash[2048 - d] = (int16_t)(4096 - p);
        m->squash[2048 + d] = (int16_t)p;
    }
    for (int p = 0, d = -2047; p < 4096; p++) {
        while (d < 2047 && m->squash[2048 + d] < p)
            d++;
        m->stretch[p] = (int16_t)d;
    }
    for (uint32_t k = 0; k <= LIMIT; k++)
        m->rate[k] = 655360 / (10 * k + 16);
}

fm_status fms_mixed_new(fms_mixed **out)
{
    *out = fm_calloc(1, sizeof **out);
    if (!*out)
        return FM_ENOMEM;
    make_tables(*out);
    return FM_OK;
}

void fms_mixed_free(fms_mixed *m)
{
    fm_free(m);
}

static void reset(fms_mixed *m)
{
    for (size_t k = 0; k < FM_ARRAY_LEN(m->cell); k++)
        m->cell[k] = 1u << 31;
    for (size_t k = 0; k < 256; k++)
        for (size_t j = 0; j < 96; j++)
            m->top[k][j] = 1u << 31;
    for (size_t k = 0; k < FM_ARRAY_LEN(m->weight); k++)
        for (size_t j = 0; j < INPUTS; j++)
            m->weight[k][j] = 16384;
    memset(m->column, 0, sizeof m->column);
    m->low = m->value = 0;
    m->high = UINT32_MAX;
    m->at = 0;
}

static uint8_t next_byte(fms_mixed *m)
{
    uint8_t b = m->at < m->in.len ? m->in.data[m->at] : 0;
    m->at++;
    return b;
}

/* Codes `bit`, or decodes a bit, whose probability of being 1 is p / 65536. */
static bool code_bit(fms_mixed *m, uint32_t p, bool bit)
{
    uint32_t mid = m->low + (uint32_t)((uint64_t)(m->high - m->low) * p >> 16);
    if (!m->out)
        bit = m->value <= mid;
    if (bit)
        m->high = mid;
    else
        m->low = mid + 1;
    while ((m->low ^ m->high) >> 24 == 0) {
        if (m->out)
            fm_buf_u8(m->out, (uint8_t)(m->high >> 24));
        else
            m->value = m->value << 8 | next_byte(m);
        m->low <<= 8;
        m->high = m->high << 8 | 255;
    }
    return bit;
}

static void learn(const fms_mixed *m, uint32_t *cell, bool bit)
{
    uint32_t seen = *cell & LIMIT;
    int64_t p = *cell >> 10, to = bit ? (1 << 22) - 1 : 0;
    p += (to - p) * (int64_t)m->rate[seen] / 65536;
    *cell = (uint32_t)p << 10 | (seen < LIMIT ? seen + 1 : seen);
}

/* A bit of a node by mixed predictions. input: each prediction's cell. *p12: the probability
 * used. */
static bool mixed_bit(fms_mixed *m, const uint32_t input[INPUTS], unsigned node, unsigned set,
                      bool bit, int *p12)
{
    int32_t *weight = m->weight[node * SETS + set], s[INPUTS];
    int64_t dot = 0;
    for (unsigned k = 0; k < INPUTS; k++) {
        s[k] = m->stretch[m->cell[input[k] * NODES + node] >> 20];
        dot += (int64_t)weight[k] * s[k];
    }
    int64_t d = FM_MIN(FM_MAX(dot / 65536, -2047), 2047);
    int p = m->squash[2048 + d];
    bit = code_bit(m, (uint32_t)p << 4, bit);
    int err = (bit ? 4096 : 0) - p;
    for (unsigned k = 0; k < INPUTS; k++) {
        weight[k] = FM_MIN(FM_MAX(weight[k] + s[k] * err / 4096, -WEIGHT_MOST), WEIGHT_MOST);
        learn(m, &m->cell[input[k] * NODES + node], bit);
    }
    *p12 = p;
    return bit;
}

static bool top_bit(fms_mixed *m, uint32_t *cell, bool bit)
{
    uint32_t p = FM_MIN(FM_MAX(*cell >> 16, 64u), 65472u);
    bit = code_bit(m, p, bit);
    learn(m, cell, bit);
    return bit;
}

/* Codes the bits of a magnitude below its leading one. */
static uint32_t low_bits(fms_mixed *m, unsigned context, unsigned length, uint32_t magnitude)
{
    uint32_t v = 1;
    for (unsigned k = length; k-- > 0;) {
        bool bit = magnitude >> k & 1;
        unsigned done = length - 1 - k;
        if (done < 2)
            bit = top_bit(m, &m->top[context][length * 3 + (done ? 1 + (v & 1) : 0)], bit);
        else
            bit = code_bit(m, 32768, bit);
        v = v << 1 | bit;
    }
    return v;
}

/* ==== contexts ============================================================================= */

typedef struct place {
    const uint8_t *parent;
    layout l;
    size_t row_begin, each, column;
    bool quiet;
    int32_t drift; /* how the row's changes went so far */
} place;

static unsigned size_class(int8_t d)
{
    int a = d < 0 ? -d : d;
    return a > 6 ? 3u : a > 1 ? 2u : (unsigned)a;
}

static unsigned sign_class(int8_t d, bool negative)
{
    return d == 0 ? 0u : (d < 0) != negative ? 2u : 1u;
}

static int32_t clamp(int32_t v, int32_t most)
{
    return FM_MIN(FM_MAX(v, 0), most);
}

/* Finds the cells of element i. seen: the changes so far with their true sign, cut to -7..7. */
static void gather(const fms_mixed *m, uint32_t input[INPUTS], unsigned c, const place *q,
                   const int8_t *seen, size_t i)
{
    int8_t left = i > q->row_begin ? seen[i - 1] : 0, up = i >= q->each ? seen[i - q->each] : 0;
    uint32_t p = load(q->parent, i, q->l.width), e = exponent_of(p, q->l);
    uint32_t mantissa = p >> (q->l.exp_shift - 3) & 7;
    bool negative = (p & q->l.sign) != 0;
    uint32_t column = (uint32_t)clamp((m->column[q->column] + 512) / 128, 7);
    uint32_t row = (uint32_t)clamp((q->drift + 512) / 256, 3);
    uint32_t base = 0;
    input[0] = c;
    input[1] = (base += 256) + c * 16 + size_class(left) * 4 + size_class(up);
    input[2] = (base += 4096) + c * 32 + column * 4 + row;
    input[3] = (base += 8192) + (e & 31) * 32 + mantissa * 4 + negative * 2u + q->quiet;
    input[4] = (base += 1024) + c * 16 + sign_class(left, negative) * 4 + sign_class(up, negative);
    input[5] = (base += 4096) + c * 64 + mantissa * 8 + column;
}

/* Codes z, the zigzagged change away from zero, or decodes and returns it. */
static uint32_t element(fms_mixed *m, unsigned c, place *q, const int8_t *seen, size_t i,
                        uint32_t z)
{
    uint32_t input[INPUTS];
    unsigned set = q->quiet ? 1 : c < 18 ? 0 : c < 24 ? 2 : 3;
    int p, unused;
    gather(m, input, c, q, seen, i);
    bool changed = mixed_bit(m, input, CHANGED, set, z != 0, &p);
    int32_t surprise = (changed ? 4095 : 0) - p;
    m->column[q->column] += (surprise - m->column[q->column]) / 16;
    q->drift += (surprise - q->drift) / 32;
    if (!changed)
        return 0;
    bool towards = mixed_bit(m, input, TOWARDS, set, z & 1, &unused);
    uint32_t magnitude = (z >> 1) + (z & 1);
    unsigned most = 8 * (unsigned)q->l.width - 1, length = 0;
    unsigned real = magnitude ? 31u - (unsigned)__builtin_clz(magnitude) : 0;
    while (length < most && mixed_bit(m, input, LENGTH + length, set, length < real, &unused))
        length++;
    magnitude = low_bits(m, c, length, magnitude);
    return towards ? 2 * magnitude - 1 : 2 * magnitude;
}

static void walk(fms_mixed *m, fms_cdelta *w, layout l, const uint8_t *parent, const fms_rows *g,
                 size_t n)
{
    int8_t *seen = (int8_t *)w->symbol;
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        place q = {parent, l, from, g->each, 0, w->coded_scale[k] == QUIET, 0};
        for (size_t i = from; i < to; i++) {
            q.column = i - from + (k == 0 ? g->phase : 0);
            uint32_t z = element(m, w->table[i], &q, seen, i, m->out ? get_z(w->z, i, l) : 0);
            z &= l.ones;
            put_z(w->z, i, l, z);
            int size = (int)FM_MIN((z >> 1) + (z & 1), 7u);
            bool down = (z & 1) != ((load(parent, i, l.width) & l.sign) != 0);
            seen[i] = (int8_t)(down ? -size : size);
        }
        from = to;
    }
}

/* ==== the leaf ============================================================================= */

void fms_mixed_encode(fms_mixed *m, fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                      const uint8_t *parent)
{
    layout l = layout_of(at->dtype);
    int32_t base;
    fms_rows g = fms_cdelta_begin(w, out, at, leaf, parent, &base);
    reset(m);
    m->out = out;
    walk(m, w, l, parent, &g, leaf.len / l.width);
    for (int k = 0; k < 4; k++, m->low <<= 8)
        fm_buf_u8(out, (uint8_t)(m->low >> 24));
}

fm_status fms_mixed_decode(fms_mixed *m, fms_cdelta *w, uint8_t *dst, size_t bytes, fm_dtype dtype,
                           fm_span coded, const uint8_t *parent)
{
    fms_leaf_at at = {dtype, 0, 0, false};
    if (!fms_cdelta_applies(&at, bytes))
        return fm_fail(FM_ECORRUPT, "coded leaf: a delta of this dtype or length is unknown");
    layout l = layout_of(dtype);
    size_t n = bytes / l.width;
    int32_t base;
    fms_rows g;
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    FM_TRY(fms_cdelta_open(w, &g, &base, &cur, n));
    fms_cdelta_contexts(w, base, dtype, parent, &g, n);
    reset(m);
    m->out = NULL;
    m->in = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    for (int k = 0; k < 4; k++)
        m->value = m->value << 8 | next_byte(m);
    walk(m, w, l, parent, &g, n);
    if (m->at != m->in.len)
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes of mixed bits, not %zu", m->in.len,
                       m->at);
    for (size_t i = 0; i < n; i++) {
        uint32_t z = get_z(w->z, i, l), p = load(parent, i, l.width);
        uint32_t u = z >> 1 ^ (z & 1 ? l.ones : 0u);
        uint32_t c = fold(((p & ~l.sign) + u) & l.ones, l) ^ (p & l.sign);
        if (l.width == 2)
            fm_put_u16(dst + 2 * i, (uint16_t)c);
        else
            fm_put_u32(dst + 4 * i, c);
    }
    return FM_OK;
}
