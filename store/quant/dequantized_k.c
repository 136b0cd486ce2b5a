/* dequantized_k.c - 256-element "K" blocks from their floats.
 *
 * A block has one float16 super-scale d, and each sub-block's scale is d times a small integer; the
 * quantizers give the largest scale the largest integer (63, -128), with which the search for d
 * begins. A candidate d must be a float16, and every other sub-block must then have an integer too,
 * so a wrong candidate is dropped at once. */
#include "store/quant/dequantized_impl.h"

#define BLOCK 256u
#define NEAR 2e-5f /* how far from an integer a quotient of rounded values may be, relative */

/* ==== Q4_K, Q5_K: y = (d sc) q - (dmin m) ==================================================== */

#define SUBS 8u
#define LEN 32u

typedef struct sub {
    const float *y;
    float low, high;
    float step; /* the largest that divides all distances; 0: all values are equal */
} sub;

typedef struct solution {
    float d, dmin;
    uint8_t scale[SUBS], min[SUBS], code[BLOCK];
} solution;

static float slack_of(const sub *s)
{
    const float far = fabsf(s->low) > fabsf(s->high) ? fabsf(s->low) : fabsf(s->high);
    return far * 0x1p-22f;
}

static bool all_multiples(const sub *s, float step, float slack)
{
    for (unsigned i = 0; i < LEN; i++) {
        const float off = s->y[i] - s->low;
        if (fabsf(off - (float)fms_round_int(off / step) * step) > slack)
            return false;
    }
    return true;
}

/* Finds low, high, step; the range over its number of steps is more exact than one distance. */
static void measure(sub *s, const float *y, int top)
{
    float v[LEN], gap = 0.0f;

    for (unsigned i = 0; i < LEN; i++) { /* insertion sort */
        unsigned at = i;
        for (; at > 0 && v[at - 1] > y[i]; at--)
            v[at] = v[at - 1];
        v[at] = y[i];
    }
    *s = (sub){.y = y, .low = v[0], .high = v[LEN - 1]};
    for (unsigned i = 1; i < LEN; i++)
        if (v[i] > v[i - 1] && (gap == 0.0f || v[i] - v[i - 1] < gap))
            gap = v[i] - v[i - 1];
    const float range = s->high - s->low;
    if (gap == 0.0f)
        return;
    s->step = gap;
    if (range / gap > 40.0f)
        return;
    for (int count = FM_MAX(fms_round_int(range / gap), 1); count <= top; count++)
        if (all_multiples(s, range / (float)count, 2.0f * slack_of(s) + NEAR * gap)) {
            s->step = range / (float)count;
            return;
        }
}

/* The n, 0 <= n <= 63, for which v is n times unit within rounding; -1: there is none. */
static int multiple(float v, float unit, float slack)
{
    const float q = v / unit;
    if (!(q > -0.5f && q < 63.5f))
        return -1;
    const int n = fms_round_int(q);
    return fabsf((float)n * unit - v) <= slack ? n : -1;
}

/* The sub-block's scale if its codes are multiples of `skip`; -1: there is none. */
static int scale_of(const sub *s, float d, int skip)
{
    return multiple(s->step / (float)skip, d, NEAR * s->step + slack_of(s));
}

static bool codes_of(uint8_t *code, const sub *s, float step, float min, int top)
{
    for (unsigned i = 0; i < LEN; i++) {
        const float q = (s->y[i] + min) / step;
        if (!(q > -0.5f && q < (float)top + 0.5f))
            return false;
        const int v = (int)(q + 0.5f);
        const float product = step * (float)v;
        if (v > top || !fms_same_float(product - min, s->y[i]))
            return false;
        code[i] = (uint8_t)v;
    }
    return true;
}

/* Finds the sub-block's integers, given both super-scales; possibly no element has code 0. */
static bool fit_sub(solution *out, unsigned j, const sub *s, int top)
{
    if (s->step == 0.0f) {
        const int m = out->dmin > 0.0f ? multiple(-s->low, out->dmin, 0.0f) : 0;
        out->scale[j] = 0;
        out->min[j] = (uint8_t)m;
        memset(out->code + j * LEN, 0, LEN);
        return m >= 0;
    }
    for (int skip = 1; skip <= 3; skip++) { /* all codes may be even, or multiples of three */
        const int n = scale_of(s, out->d, skip);
        if (n <= 0)
            continue;
        const float step = out->d * (float)n;
        for (int first = 0; first < top; first++) {
            const float m = (float)first * step - s->low;
            const int k = out->dmin > 0.0f ? multiple(m, out->dmin, slack_of(s) + m * 0x1p-22f) : 0;
            if (k < 0 || !codes_of(out->code + j * LEN, s, step, out->dmin * (float)k, top))
                continue;
            out->scale[j] = (uint8_t)n;
            out->min[j] = (uint8_t)k;
            return true;
        }
    }
    return false;
}

static bool fit_all(solution *out, const sub *s, int top)
{
    for (unsigned j = 0; j < SUBS; j++)
        if (!fit_sub(out, j, &s[j], top))
            return false;
    return true;
}

/* Tries every dmin by which the lowest value of some sub-block can have code 0. */
static bool with_d(solution *out, const sub *s, int top)
{
    uint16_t half;

    out->dmin = 0.0f;
    if (fit_all(out, s, top))
        return true;
    for (int m = 63; m > 0; m--)
        for (unsigned j = 0; j < SUBS; j++) {
            out->dmin = -s[j].low / (float)m;
            if (out->dmin > 0.0f && fms_is_half(out->dmin, &half) && fit_all(out, s, top))
                return true;
        }
    return false;
}

/* Whether a float16 d gives sub-block `anchor` the scale n and fits the other steps but one. */
static bool plausible(solution *out, const sub *s, unsigned anchor, int n, int skip)
{
    const float step = s[anchor].step / (float)skip;
    const uint16_t half = fm_f32_to_f16(step / (float)n);
    unsigned misses = 0;

    out->d = fm_f16_to_f32(half);
    if (half == 0 || half >= 0x7c00u ||
        fabsf(out->d * (float)n - step) > NEAR * step + slack_of(&s[anchor]))
        return false;
    for (unsigned j = 0; j < SUBS; j++)
        misses += s[j].step > 0.0f && scale_of(&s[j], out->d, 1) <= 0 &&
                  scale_of(&s[j], out->d, 2) <= 0 && scale_of(&s[j], out->d, 3) <= 0;
    return misses <= 1;
}

static bool search(solution *out, const float *y, int top)
{
    sub s[SUBS];
    unsigned widest = 0, flat = 0;

    for (unsigned j = 0; j < SUBS; j++) {
        measure(&s[j], y + j * LEN, top);
        flat += s[j].step == 0.0f;
        if (s[j].step > s[widest].step)
            widest = j;
    }
    *out = (solution){0};
    if (flat == SUBS) { /* any d will do; only -0 - 0 is -0 */
        out->d = y[0] == 0.0f && signbit(y[0]) ? -0.0f : 0.0f;
        return with_d(out, s, top);
    }
    for (int n = 63; n > 0; n--)
        for (int skip = 1; skip <= 3; skip++)
            if (plausible(out, s, widest, n, skip) && with_d(out, s, top))
                return true;
    return false;
}

static bool solve_45(uint8_t *block, const float *y, bool five)
{
    const unsigned bytes = five ? 176 : 144;
    uint8_t *packed = block + 4, *low = block + bytes - BLOCK / 2;
    solution s;

    if (!search(&s, y, five ? 31 : 15))
        return false;
    memset(block, 0, bytes);
    fm_put_u16(block, fm_f32_to_f16(s.d));
    fm_put_u16(block + 2, fm_f32_to_f16(s.dmin));
    for (unsigned j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(s.scale[j] | s.scale[j + 4] >> 4 << 6);
        packed[j + 4] = (uint8_t)(s.min[j] | s.min[j + 4] >> 4 << 6);
        packed[j + 8] = (uint8_t)((s.scale[j + 4] & 15u) | (s.min[j + 4] & 15u) << 4);
    }
    for (unsigned e = 0; e < BLOCK; e++) {
        const unsigned j = e / LEN, i = e % LEN;
        low[j / 2 * LEN + i] |= (uint8_t)((s.code[e] & 15u) << (j % 2 * 4));
        if (five)
            block[16 + i] |= (uint8_t)(s.code[e] >> 4 << j);
    }
    return true;
}

bool fms_solve_q4_k(uint8_t *block, const float *y)
{
    return solve_45(block, y, false);
}

bool fms_solve_q5_k(uint8_t *block, const float *y)
{
    return solve_45(block, y, true);
}

#undef SUBS
#undef LEN

/* ==== Q6_K: y = (d sc) q ===================================================================== */

#define SUBS 16u
#define LEN 16u

typedef struct sixth {
    float d;
    int scale[SUBS];
    int code[BLOCK]; /* -32 ... 31 */
} sixth;

static float extreme_of(const float *y)
{
    float e = y[0];

    for (unsigned i = 1; i < LEN; i++)
        e = fabsf(y[i]) > fabsf(e) ? y[i] : e;
    return e;
}

/* The k-th code to try for an extreme: quantizers put it near -32. */
static int extreme_code(int k)
{
    return k < 32 ? k - 32 : 63 - k;
}

static bool codes6(int *code, const float *y, float step)
{
    for (unsigned i = 0; i < LEN; i++) {
        const float q = y[i] / step;
        if (!(fabsf(q) < 33.0f))
            return false;
        code[i] = fms_round_int(q);
        if (code[i] < -32 || code[i] > 31 || !fms_same_float(step * (float)code[i], y[i]))
            return false;
    }
    return true;
}

static bool fit_sub6(sixth *out, unsigned j, const float *y)
{
    const float e = extreme_of(y);

    if (e == 0.0f) { /* zero times a code of either sign */
        const bool negative = signbit(out->d);
        out->scale[j] = 0;
        for (unsigned i = 0; i < LEN; i++)
            out->code[j * LEN + i] = signbit(y[i]) == negative ? 0 : -1;
        return true;
    }
    for (int k = 0; k < 64; k++) {
        const int q = extreme_code(k);
        const float n = q != 0 ? e / out->d / (float)q : 1000.0f;
        if (!(fabsf(n) < 128.5f) || fabsf(n) < 0.5f)
            continue;
        const int scale = fms_round_int(n);
        if (scale > 127 || fabsf(n - (float)scale) > 1e-3f)
            continue;
        if (codes6(out->code + j * LEN, y, out->d * (float)scale)) {
            out->scale[j] = scale;
            return true;
        }
    }
    return false;
}

static bool fit_all6(sixth *out, const float *y)
{
    for (unsigned j = 0; j < SUBS; j++)
        if (!fit_sub6(out, j, y + j * LEN))
            return false;
    return true;
}

static bool search6(sixth *out, const float *y)
{
    uint16_t half;
    float widest = 0.0f;

    *out = (sixth){0};
    for (unsigned j = 0; j < SUBS; j++)
        widest = fabsf(extreme_of(y + j * LEN)) > widest ? fabsf(extreme_of(y + j * LEN)) : widest;
    if (widest == 0.0f)
        return fit_all6(out, y);
    for (int k = 0; k < 64; k++)
        for (unsigned j = 0; j < SUBS; j++) {
            const float e = extreme_of(y + j * LEN);
            const int q = extreme_code(k);
            if (q == 0 || fabsf(e) < 0.5f * widest)
                continue;
            out->d = e / (float)q / -128.0f;
            if (fms_is_half(out->d, &half) && fit_all6(out, y))
                return true;
        }
    return false;
}

bool fms_solve_q6_k(uint8_t *block, const float *y)
{
    sixth s;

    if (!search6(&s, y))
        return false;
    memset(block, 0, 210);
    fm_put_u16(block + 208, fm_f32_to_f16(s.d));
    for (unsigned j = 0; j < SUBS; j++)
        block[192 + j] = (uint8_t)(int8_t)s.scale[j];
    for (unsigned e = 0; e < BLOCK; e++) {
        const unsigned half = e / 128, quarter = e % 128 / 32, i = e % 32;
        const unsigned c = (unsigned)(s.code[e] + 32);
        block[half * 64 + quarter % 2 * 32 + i] |= (uint8_t)((c & 15u) << (quarter / 2 * 4));
        block[128 + half * 32 + i] |= (uint8_t)(c >> 4 << (2 * quarter));
    }
    return true;
}
