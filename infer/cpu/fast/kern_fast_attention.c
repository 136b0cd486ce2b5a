/* kern_fast_attention.c - kernels of kern_fast_attention.h, compiled once per instruction set.
 *
 * Both products are tiles of rows x vectors of sixteen outputs: scores run over pairs of the head's
 * elements with outputs = positions, the sum over values over pairs of positions with outputs = the
 * head's elements. All weights of a chunk are known before the values are walked, so that sums
 * stay in registers for the whole chunk. */
#include "infer/cpu/fast/kern_fast_attention.h"
#include "infer/cpu/fast/kern_fast_line.h"
#include "infer/cpu/kern/tiles.h"

#define FA_LOG2E 1.44269504088896341f

#define FA_LEVEL 2 /* prefetches into L2, because L1 allows too few misses in flight */

#if defined(FMI_ISA_AVX512)
#define FA_WIDE_ROWS 6u /* up to here tiles are four vectors wide; with more rows, two */
#define FA_MOST_ROWS 12 /* FMI_FA_ROWS */
#define FA_WIDE 4u
#define FA_NARROW 2u
#else
#define FA_WIDE_ROWS 2u
#define FA_MOST_ROWS 4
#define FA_WIDE 2u
#define FA_NARROW 1u
#endif

/* ==== vectors ==== */

#if defined(FMI_ISA_AVX512)

FMI_INLINE vi vi_dot16(vi sum, vi pairs, vi pair)
{
#if defined(FMI_FAST_VNNI)
    /* gcc 12 spills half of a tile's sums around the intrinsic: 0.44, not 0.8 of the peak rate */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(pairs), "v"(pair));
    return sum;
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, pair));
#endif
}
FMI_INLINE void store_int16(int16_t *dst, vf v)
{
    _mm256_storeu_si256((void *)dst, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
}
FMI_INLINE float fold_max(vf v)
{
    return _mm512_reduce_max_ps(v);
}
FMI_INLINE float fold_add(vf v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

#elif defined(FMI_ISA_AVX2)

FMI_INLINE vi vi_dot16(vi sum, vi pairs, vi pair)
{
    return (vi){_mm256_add_epi32(sum.lo, _mm256_madd_epi16(pairs.lo, pair.lo)),
                _mm256_add_epi32(sum.hi, _mm256_madd_epi16(pairs.hi, pair.hi))};
}
FMI_INLINE vf vf_floor(vf x)
{
    return (vf){_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)};
}
/* v where x is not below limit (NaN counts as not below), else 0. */
FMI_INLINE vf vf_unless_below(vf x, float limit, vf v)
{
    const __m256 l = _mm256_set1_ps(limit);
    return (vf){_mm256_and_ps(_mm256_cmp_ps(x.lo, l, _CMP_NLT_UQ), v.lo),
                _mm256_and_ps(_mm256_cmp_ps(x.hi, l, _CMP_NLT_UQ), v.hi)};
}

#else

FMI_LANES vi vi_dot16(vi sum, vi pairs, vi pair)
{
    int16_t a[2 * VF_LANES], b[2];

    memcpy(a, &pairs, sizeof a);
    memcpy(b, &pair, sizeof b);
    for (uint32_t i = 0; i < VF_LANES; i++)
        sum.i[i] += a[2 * i] * b[0] + a[2 * i + 1] * b[1];
    return sum;
}

FMI_LANES vf vf_floor(vf x)
{
    float f[VF_LANES];

    vf_store(f, x);
    for (uint32_t i = 0; i < VF_LANES; i++)
        f[i] = floorf(f[i]);
    return vf_load(f);
}
FMI_LANES vf vf_unless_below(vf x, float limit, vf v)
{
    float f[VF_LANES], size[VF_LANES];

    vf_store(f, v);
    vf_store(size, x);
    for (uint32_t i = 0; i < VF_LANES; i++)
        f[i] = size[i] < limit ? 0.0f : f[i];
    return vf_load(f);
}

#endif

#if !defined(FMI_ISA_AVX512)

FMI_INLINE void store_int16(int16_t *dst, vf v)
{
    float f[VF_LANES];
    int32_t bits[VF_LANES];

    vf_store(f, vf_add(v, vf_set1(12582912.0f))); /* 1.5 * 2^23: the low bits are the integer */
    memcpy(bits, f, sizeof bits);
    for (uint32_t i = 0; i < VF_LANES; i++)
        dst[i] = (int16_t)(bits[i] & 0xffff);
}
FMI_INLINE float fold_max(vf v)
{
    return vf_fold_max(v);
}
FMI_INLINE float fold_add(vf v)
{
    return vf_fold_add(v);
}

#endif

/* Floats >= 0 (lo, then hi) as 32 bf16; adds both elements of a pair to sum, the odd one first. */
#if defined(FMI_FAST_BF16)
FMI_INLINE vf store_bf16(uint16_t *dst, vf lo, vf hi, vf sum)
{
    __m512bh both = _mm512_cvtne2ps_pbh(hi, lo);
    _mm512_storeu_si512(dst, (__m512i)both);
    return _mm512_dpbf16_ps(sum, both, (__m512bh)_mm512_set1_epi16(0x3f80));
}
#else
FMI_INLINE vf store_bf16(uint16_t *dst, vf lo, vf hi, vf sum)
{
    float f[2 * VF_LANES];
    uint32_t bits[2 * VF_LANES];

    vf_store(f, lo);
    vf_store(f + VF_LANES, hi);
    memcpy(bits, f, sizeof bits);
    for (uint32_t i = 0; i < 2 * VF_LANES; i++) {
        uint32_t b = bits[i] + 0x7fffu + (bits[i] >> 16 & 1u);
        b = f[i] != f[i] ? bits[i] | 0x400000u : b;
        dst[i] = (uint16_t)(b >> 16);
    }
    return vb_dot(sum, vb_load(dst), vb_set1(0x3f803f80u));
}
#endif

/* 2^f for f in [0, 1) within 1e-7 of it; 1 at 0. */
FMI_INLINE vf exp2_of_fraction(vf f)
{
    vf q = vf_set1(1.867130050e-3f);

    q = vf_fma(q, f, vf_set1(9.017030708e-3f));
    q = vf_fma(q, f, vf_set1(5.579991266e-2f));
    q = vf_fma(q, f, vf_set1(2.401644439e-1f));
    q = vf_fma(q, f, vf_set1(6.931512952e-1f));
    return vf_fma(q, f, vf_set1(1.0f));
}

/* 2^x for x <= 0, 0 below -126. */
#if defined(FMI_ISA_AVX512)
FMI_INLINE vf exp2_of_negative(vf x)
{
    vf f = vf_sub(x, _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
    __mmask16 some = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(some, exp2_of_fraction(f), x);
}
#else
FMI_INLINE vf exp2_of_negative(vf x)
{
    vf n = vf_floor(x);
    vf q = vf_mul(exp2_of_fraction(vf_sub(x, n)), vf_pow2_biased(vf_add(n, vf_set1(12582912.0f))));
    return vf_unless_below(x, -126.0f, q);
}
#endif

/* tanh from 2^x: its absolute error is 2e-7, enough for a score of ten to fifty. */
FMI_INLINE vf tanh_of(vf x)
{
    const vf one = vf_set1(1.0f);
    vf size = vf_max(x, vf_sub(vf_zero(), x));
    vf e = exp2_of_negative(vf_mul(size, vf_set1(-2.0f * FA_LOG2E)));
    vf y = vf_div(vf_sub(one, e), vf_add(one, e));
    return vf_div(vf_mul(x, y), vf_max(size, vf_set1(1e-30f)));
}

/* ==== scores ==== */

typedef struct score_job {
    const fmi_fast_attn *a;
    const int16_t *q; /* of the tile's first row */
    const float *q_scale;
    float *score;
    uint32_t from, to; /* vectors, inclusive */
} score_job;

FMI_INLINE const uint8_t *key_vector(const fmi_fast_attn *a, uint32_t v)
{
    return a->k[v / 2] + (size_t)(v % 2) * 64;
}

/* What to prefetch at vector v - 1 of the keys: more keys, then the values. With few rows, reading
 * is faster than the hardware's prefetchers, which stop at the end of a page. */
FMI_INLINE const uint8_t *vector_ahead(const score_job *j, uint32_t v)
{
    const uint32_t left = v - j->to - 1;

    if (v <= j->to)
        return key_vector(j->a, v);
    return j->a->v[(left <= j->to - j->from ? j->from + left : j->to) / 2] + v % 2 * 64;
}

/* Score vectors at .. at + nv - 1 (of sixteen positions each) of some rows. */
FMI_INLINE void score_tile(const uint32_t rows, const uint32_t nv, const score_job *j, uint32_t at)
{
    const uint32_t hd = j->a->hd;
    const uint8_t *k[FA_WIDE], *ahead[FA_WIDE];
    vi sum[FMI_FA_ROWS][FA_WIDE];

#pragma GCC unroll 4
    for (uint32_t v = 0; v < nv; v++) {
        k[v] = key_vector(j->a, at + v);
        ahead[v] = vector_ahead(j, at + nv + v);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++)
            sum[r][v] = vi_set1(0);
    }
    for (uint32_t d = 0; d < hd; d += 2) {
        vi key[FA_WIDE];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nv; v++)
            key[v] = vi_load(k[v] + (size_t)d * 64);
        if (rows <= FA_WIDE_ROWS)
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nv; v++)
                __builtin_prefetch(ahead[v] + (size_t)d * 64, 0, FA_LEVEL);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, j->q + r * FMI_FA_Q_LD + d, sizeof pair);
            vi x = vi_set1(pair);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nv; v++)
                sum[r][v] = vi_dot16(sum[r][v], key[v], x);
        }
    }
#pragma GCC unroll 4
    for (uint32_t v = 0; v < nv; v++) {
        const uint8_t *page = j->a->k[(at + v) / 2] + (size_t)hd * 64;
        vf scale = vf_load((const float *)(const void *)page + (at + v) % 2 * VF_LANES);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            vf s = vf_mul(vf_of_int(sum[r][v]), scale);
            vf_store(j->score + r * FMI_FA_CHUNK + (at + v) * VF_LANES,
                     vf_mul(s, vf_set1(j->q_scale[r])));
        }
    }
}

FMI_INLINE void score_rows(const uint32_t rows, const score_job *j)
{
    const uint32_t wide = rows <= FA_WIDE_ROWS ? FA_WIDE : FA_NARROW;
    uint32_t v = j->from;

    for (; v + wide <= j->to + 1; v += wide)
        score_tile(rows, wide, j, v);
    for (; v <= j->to; v++)
        score_tile(rows, 1, j, v);
}

/* ==== values ==== */

typedef struct mix_job {
    const fmi_fast_attn *a;
    const uint16_t *p; /* of the tile's first row */
    float *o;
    const uint8_t *last; /* values of the last pair if only half of it is visible, else NULL */
    uint32_t from, to;   /* pairs from .. to - 1, and where last is not NULL pair `to` */
} mix_job;

FMI_INLINE void mix_pairs(const uint32_t rows, const uint32_t nv, const mix_job *j,
                          vf sum[FMI_FA_ROWS][FA_WIDE], const uint8_t *value, const uint8_t *ahead,
                          uint32_t pair, uint32_t pairs)
{
    const size_t line = FMI_FA_HDV(j->a->hd) * 4;
    const uint16_t *p = j->p + 2 * (size_t)pair;

    for (uint32_t i = 0; i < pairs; i++, value += line, ahead += line, p += 2) {
        vb val[FA_WIDE];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nv; v++)
            val[v] = vb_load(value + (size_t)v * 64);
        if (rows <= FA_WIDE_ROWS)
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nv; v++)
                __builtin_prefetch(ahead + (size_t)v * 64, 0, FA_LEVEL);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            uint32_t bits;
            memcpy(&bits, p + r * FMI_FA_CHUNK, sizeof bits);
            vb x = vb_set1(bits);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < nv; v++)
                sum[r][v] = vb_dot(sum[r][v], x, val[v]);
        }
    }
}

/* Elements 16 at .. 16 (at + nv) of the sums of some rows. */
FMI_INLINE void mix_tile(const uint32_t rows, const uint32_t nv, const mix_job *j, uint32_t at)
{
    const size_t hdv = FMI_FA_HDV(j->a->hd), line = hdv * 4;
    vf sum[FMI_FA_ROWS][FA_WIDE];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nv; v++)
            sum[r][v] = vf_zero();
    for (uint32_t i = j->from, next; i < j->to; i = next) {
        const uint32_t first = i % (FMI_FA_PAGE / 2), page = i / (FMI_FA_PAGE / 2);
        const size_t begin = first * line + at * 64;
        next = i - first + FMI_FA_PAGE / 2;
        const uint8_t *ahead = j->a->v[next < j->to ? page + 1 : page];
        next = next < j->to ? next : j->to;
        mix_pairs(rows, nv, j, sum, j->a->v[page] + begin, ahead + begin, i, next - i);
    }
    if (j->last)
        mix_pairs(rows, nv, j, sum, j->last + at * 64, j->last, j->to, 1);
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (uint32_t v = 0; v < nv; v++)
            vf_store(j->o + r * hdv + (at + v) * VF_LANES, sum[r][v]);
}

FMI_INLINE void mix_rows(const uint32_t rows, const mix_job *j)
{
    const uint32_t wide = rows <= FA_WIDE_ROWS ? FA_WIDE : FA_NARROW;
    const uint32_t vectors = (uint32_t)(FMI_FA_HDV(j->a->hd) / VF_LANES);
    uint32_t v = 0;

    for (; v + wide <= vectors; v += wide)
        mix_tile(rows, wide, j, v);
    for (; v < vectors; v++)
        mix_tile(rows, 1, j, v);
}

/* ==== a chunk ==== */

#define FA_CASE(m, tile, j)                                                                        \
    case m:                                                                                        \
        tile(m, j);                                                                                \
        break;

static void score_some(uint32_t rows, const score_job *j)
{
    switch (rows) {
        FMI_TILES(FA_MOST_ROWS, FA_CASE, score_rows, j)
    default:
        break;
    }
}

static void mix_some(uint32_t rows, const mix_job *j)
{
    switch (rows) {
        FMI_TILES(FA_MOST_ROWS, FA_CASE, mix_rows, j)
    default:
        break;
    }
}

static void cap_scores(float *s, uint32_t from, uint32_t to, float softcap)
{
    const vf cap = vf_set1(softcap * FA_LOG2E);

    for (uint32_t i = from; i <= to; i += VF_LANES)
        vf_store(s + i, vf_mul(cap, tanh_of(vf_load(s + i))));
}

static void add_bias(float *s, const float *bias, uint32_t n)
{
    const vf base = vf_set1(FA_LOG2E);

    for (uint32_t i = 0; i < n; i += VF_LANES)
        vf_store_upto(
            s + i, vf_fma(vf_load_upto(bias + i, n - i), base, vf_load_upto(s + i, n - i)), n - i);
}

/* Sets scores at positions that the row does not see to -inf and returns the row's maximum. from ..
 * to are whole pages. */
static float mask_and_max(const fmi_fast_attn *a, uint32_t r, uint32_t from, uint32_t to)
{
    float *s = a->score + r * FMI_FA_CHUNK;
    vf best = vf_set1(-INFINITY);

    if (a->softcap > 0.0f)
        cap_scores(s, from, to, a->softcap);
    if (a->bias && a->lo[r] <= a->hi[r])
        add_bias(s + a->lo[r], a->bias[r], a->hi[r] - a->lo[r] + 1u);
    for (uint32_t i = from; i < a->lo[r] && i <= to; i++)
        s[i] = -INFINITY;
    for (uint32_t i = to + 1; i > a->hi[r] + 1u && i > from; i--)
        s[i - 1] = -INFINITY;
    for (uint32_t i = from; i <= to; i += VF_LANES)
        best = vf_max(vf_load(s + i), best);
    return fold_max(best);
}

/* Computes p of one row, 0 where the score is -inf, and returns their sum. */
static float weigh(const fmi_fast_attn *a, uint32_t r, uint32_t from, uint32_t to)
{
    const float *s = a->score + r * FMI_FA_CHUNK;
    uint16_t *p = a->p + r * FMI_FA_CHUNK;
    const vf most = vf_set1(a->m[r] > -INFINITY ? a->m[r] : 0.0f);
    vf sum = vf_zero();

    for (uint32_t i = from; i <= to; i += 2 * VF_LANES) {
        vf lo = exp2_of_negative(vf_sub(vf_load(s + i), most));
        vf hi = exp2_of_negative(vf_sub(vf_load(s + i + VF_LANES), most));
        sum = store_bf16(p + i, lo, hi, sum);
    }
    return fold_add(sum);
}

/* The values of a pair whose second position no row sees, with zeros: it may hold anything. */
static const uint8_t *half_pair(const fmi_fast_attn *a, uint32_t hi)
{
    const size_t hdv = FMI_FA_HDV(a->hd);
    const uint8_t *src = a->v[hi / FMI_FA_PAGE] + hi % FMI_FA_PAGE / 2 * hdv * 4;
    uint16_t *dst = a->p + FMI_FA_ROWS * FMI_FA_CHUNK;

    for (size_t d = 0; d < hdv; d++) {
        memcpy(dst + 2 * d, src + 4 * d, sizeof *dst);
        dst[2 * d + 1] = 0;
    }
    return (const uint8_t *)dst;
}

static void k_chunk(const fmi_fast_attn *a)
{
    const size_t hdv = FMI_FA_HDV(a->hd);
    uint32_t lo = FMI_FA_CHUNK, hi = 0;

    for (uint32_t r = 0; r < a->rows; r++)
        if (a->lo[r] <= a->hi[r]) {
            lo = a->lo[r] < lo ? a->lo[r] : lo;
            hi = a->hi[r] > hi ? a->hi[r] : hi;
        }
    if (lo > hi) { /* no row sees it */
        for (uint32_t r = 0; r < a->rows; r++) {
            a->m[r] = -INFINITY;
            a->l[r] = 0.0f;
        }
        memset(a->o, 0, a->rows * hdv * sizeof *a->o);
        return;
    }
    const uint32_t from = lo / FMI_FA_PAGE * FMI_FA_PAGE, to = hi | (FMI_FA_PAGE - 1);
    mix_job mix = {.a = a, .from = lo / 2, .to = (hi + 1) / 2};
    if (hi % 2 == 0)
        mix.last = half_pair(a, hi);
    for (uint32_t at = 0, n; at < a->rows; at += n) {
        n = a->rows - at < FA_MOST_ROWS ? a->rows - at : FA_MOST_ROWS;
        score_job score = {.a = a,
                           .q = a->q + at * FMI_FA_Q_LD,
                           .q_scale = a->q_scale + at,
                           .score = a->score + at * FMI_FA_CHUNK,
                           .from = from / VF_LANES,
                           .to = to / VF_LANES};
        score_some(n, &score);
        for (uint32_t r = at; r < at + n; r++)
            a->m[r] = mask_and_max(a, r, from, to);
        for (uint32_t r = at; r < at + n; r++)
            a->l[r] = weigh(a, r, from, to);
        mix.p = a->p + at * FMI_FA_CHUNK;
        mix.o = a->o + at * hdv;
        mix_some(n, &mix);
    }
}

/* ==== rows ==== */

static float k_quantise(int16_t *dst, const float *x, uint32_t hd)
{
    vf most = vf_zero(), sum = vf_zero(), inv;

    for (uint32_t i = 0; i < hd; i += VF_LANES) {
        vf v = vf_load_upto(x + i, hd - i);
        vf size = vf_max(v, vf_sub(vf_zero(), v));
        most = vf_max(size, most);
        sum = vf_add(sum, vf_mul(v, vf_zero())); /* NaN if any element is not finite */
    }
    const float max = fold_max(most), bad = fold_add(sum);
    if (bad != 0.0f || !(max >= 1e-30f)) {
        memset(dst, 0, hd * sizeof *dst);
        return bad;
    }
    inv = vf_set1(1.0f / max);
    sum = vf_zero();
    for (uint32_t i = 0; i < hd; i += VF_LANES) {
        vf t = vf_mul(vf_load_upto(x + i, hd - i), inv);
        sum = vf_fma(t, t, sum);
    }
    const float most_int = FMI_FA_NORM / sqrtf(fold_add(sum));
    const float f = most_int < 32767.0f ? most_int : 32767.0f;
    for (uint32_t i = 0; i < hd; i += VF_LANES) {
        int16_t tmp[VF_LANES];
        vf t = vf_mul(vf_mul(vf_load_upto(x + i, hd - i), inv), vf_set1(f));
        store_int16(hd - i < VF_LANES ? tmp : dst + i, t);
        if (hd - i < VF_LANES)
            memcpy(dst + i, tmp, (hd - i) * sizeof *dst);
    }
    return max / f;
}

/* Stores v as bf16 in one half of a line of pairs; false: zeros, as not all are finite. */
static bool put_value(uint32_t *line, bool odd, const float *v, uint32_t hd)
{
    const uint32_t keep = odd ? 0xffffu : 0xffff0000u, shift = odd ? 16 : 0;
    uint32_t bits[512], most = 0;

    memcpy(bits, v, hd * sizeof *v);
    for (uint32_t d = 0; d < hd; d++) {
        const uint32_t before = bits[d] & 0x7f800000u;
        bits[d] += 0x7fffu + (bits[d] >> 16 & 1u); /* may carry a NaN over to 0 */
        const uint32_t size = bits[d] & 0x7f800000u;
        most = before > most ? before : most;
        most = size > most ? size : most;
        line[d] = (line[d] & keep) | (size > 0 ? bits[d] >> 16 : 0) << shift;
    }
    for (uint32_t d = hd; d < FMI_FA_HDV(hd); d++)
        line[d] &= keep;
    for (uint32_t d = 0; d < hd && most == 0x7f800000u; d++)
        line[d] &= keep;
    return most < 0x7f800000u;
}

static void k_put(uint8_t *kpage, uint8_t *vpage, uint32_t at, const float *k, const float *v,
                  uint32_t hd)
{
    uint32_t *line = (uint32_t *)(void *)vpage + at / 2 * FMI_FA_HDV(hd);
    int16_t key[512];
    float scale = k_quantise(key, k, hd);

    for (uint32_t d = 0; d < hd; d += 2)
        memcpy(kpage + (size_t)d * 64 + at * 4, key + d, 4);
    if (!put_value(line, at % 2 != 0, v, hd))
        scale = NAN;
    memcpy(kpage + (size_t)hd * 64 + at * 4, &scale, sizeof scale);
}

static void k_merge(float *m, float *l, float *o, float later_m, float later_l,
                    const float *later_o, uint32_t hd)
{
    const size_t hdv = FMI_FA_HDV(hd);
    const float most = later_m > *m ? later_m : *m;
    float f[VF_LANES] = {*m - most, later_m - most};

    vf_store(f, exp2_of_negative(vf_load(f)));
    vf a = vf_set1(f[0]), b = vf_set1(f[1]);
    *m = most;
    *l = *l * f[0] + later_l * f[1];
    for (size_t d = 0; d < hdv; d += VF_LANES)
        vf_store(o + d, vf_fma(vf_load(later_o + d), b, vf_mul(vf_load(o + d), a)));
}

/* Adding +0 makes zeros positive. */
static void k_finish(float *out, const float *o, float l, uint32_t hd)
{
    const vf f = vf_set1(1.0f / l);

    for (uint32_t d = 0; d < hd; d += VF_LANES)
        vf_store_upto(out + d, vf_fma(vf_load(o + d), f, vf_zero()), hd - d);
}

/* e^-|gate| on both sides of 0: gate * (1 or e) / (1 + e) * up. */
static void k_swiglu(float *y, const float *gate, const float *up, size_t n)
{
    const vf one = vf_set1(1.0f);

    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf g = vf_load_upto(gate + i, left), size = vf_max(g, vf_sub(vf_zero(), g));
        vf e = exp2_of_negative(vf_mul(size, vf_set1(-FA_LOG2E)));
        /* max(g, 0) + min(g, 0) * e */
        vf top = vf_fma(vf_min(g, vf_zero()), e, vf_max(g, vf_zero()));
        top = vf_mul(top, vf_load_upto(up + i, left));
        vf_store_upto(y + i, vf_div(top, vf_add(one, e)), left);
    }
}

const fmi_fast_attn_kern FMI_TABLE(fmi_fast_attn_) = {
    .quantise = k_quantise,
    .put = k_put,
    .chunk = k_chunk,
    .merge = k_merge,
    .finish = k_finish,
    .swiglu = k_swiglu,
};
