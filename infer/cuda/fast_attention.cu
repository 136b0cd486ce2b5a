/* fast_attention.cu - attention of mode fast: tensor cores, online softmax, pages of 16 bits.
 *
 * A page holds of each key/value head 32 rows of HDP = hd rounded up to 8 elements and 32 floats:
 *   keys    f16, each position times a power of two that brings its largest element to 2^10 ..
 *           2^11, and the inverse as the position's float: eight times bf16's precision;
 *   values  bf16; their floats are unused.
 * A position with a key that is not finite, or a value that bf16 cannot hold, gets values of 0 and
 * a scale of NaN: just the rows that see it become NaN.
 *
 * One order for every row, whoever computes it: positions in splits of 256, in them tiles of 64 (32
 * where the head is longer than 128), both counted from position 0. A split's part of a row is
 *   tile by tile  m' = max(m, scores), o = o * 2^(m - m'), l likewise, p = bf16(2^(s - m')),
 *   o, l += mma over 16 positions at a time (l against a column of ones)
 * and parts are merged in ascending order. Scores are chains of mma over 16 elements. A warp has
 * 16 query rows: rows of a run of one sequence times query heads of the key/value head. Positions
 * that only others of them see have weight +0 and finite values, and zeros of the result are
 * positive, so a row's bits know neither of its tile nor of who else is in it. Prefill walks the
 * splits and keeps the merged part in `out`; decode deals them over blocks and merges afterwards.
 */
#include "infer/cuda/attend.h"
#include "infer/cuda/fast.h"
#include "infer/cuda/lanes.h"
#include "infer/cuda/ptx.h"

#define SPLIT 256u
#define WARP_ROWS 16u
#define WIDE_WARPS 4u    /* of a block for long runs */
#define DECODE_ROWS 256u /* calls of more rows have blocks enough without splits */
#define PART_BYTES ((size_t)64 << 20)
#define LOG2E 0x1.715476p+0f

FMC_DEVICE uint32_t padded_head(uint32_t hd)
{
    return (hd + 7) / 8 * 8;
}
static __host__ __device__ inline size_t head_bytes(uint32_t hd)
{
    return ((size_t)hd + 7) / 8 * 8 * FM_KV_PAGE * 2 + FM_KV_PAGE * sizeof(float);
}

/* ---- pages ---- */

/* Powers of two that bring size to 2^10 .. 2^11, and back. Any size gives finite ones. */
FMC_DEVICE void power_scale(float size, float *scale, float *inverse)
{
    uint32_t e = __float_as_uint(size) >> 23 & 255u;
    e = e < 11 ? 11 : e;
    *scale = __uint_as_float((264 - e) << 23);
    *inverse = __uint_as_float((e - 10) << 23);
}

/* A warp a position and head. */
__global__ void k_fast_kv_write(fm_kv_view kv, const float *k, size_t ldk, const float *v,
                                size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv,
                                uint32_t hd)
{
    uint32_t lane = threadIdx.x % 32, hdp = padded_head(hd);
    uint64_t unit = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= (uint64_t)m * nkv)
        return;
    uint32_t row = (uint32_t)(unit / nkv), head = (uint32_t)(unit % nkv);
    uint32_t page = (uint32_t)slot[row] / FM_KV_PAGE, at = (uint32_t)slot[row] % FM_KV_PAGE;
    size_t base = ((size_t)page * nkv + head) * head_bytes(hd);
    const float *kr = k + row * ldk + (size_t)head * hd, *vr = v + row * ldv + (size_t)head * hd;
    float size = 0.0f, scale, inverse;
    bool good = true;
    for (uint32_t d = lane; d < hd; d += 32) {
        uint32_t vb = fmc_pack_bf16(vr[d], 0.0f);
        size = fmc_max(fabsf(kr[d]), size);
        good = good && fabsf(kr[d]) < INFINITY && (vb & 0x7f80u) != 0x7f80u;
    }
    for (int by = 16; by > 0; by /= 2)
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, by), size);
    good = __all_sync(0xffffffffu, good);
    power_scale(size, &scale, &inverse);
    uint32_t *kw = (uint32_t *)((unsigned char *)kv.k + base) + (size_t)at * hdp / 2;
    uint32_t *vw = (uint32_t *)((unsigned char *)kv.v + base) + (size_t)at * hdp / 2;
    for (uint32_t i = lane; i < hdp / 2; i += 32) {
        bool low = good && 2 * i < hd, high = good && 2 * i + 1 < hd;
        kw[i] = fmc_pack_f16(low ? kr[2 * i] * scale : 0.0f, high ? kr[2 * i + 1] * scale : 0.0f);
        vw[i] = fmc_pack_bf16(low ? vr[2 * i] : 0.0f, high ? vr[2 * i + 1] : 0.0f);
    }
    float *scales = (float *)((unsigned char *)kv.k + base + (size_t)hdp * FM_KV_PAGE * 2);
    if (lane == 0)
        scales[at] = good ? inverse : NAN;
}

/* ---- units ---- */

typedef struct fast_job {
    fm_attn a;
    float *parts;              /* [rows * nh][splits] of part_floats, or NULL: merged in out */
    uint32_t row0, rows, most; /* rows of this launch; of a run, at most */
    uint32_t heads, group_parts;
    uint32_t splits;          /* parts of a row, at most */
    uint32_t blocks;          /* that share a unit's splits */
    uint32_t at_least, below; /* query rows of the runs that this launch has */
} fast_job;

typedef struct fast_unit {
    const int32_t *table;
    uint32_t row, n;        /* query rows: rows of the run times heads */
    uint32_t kv_head, head; /* first query head */
    uint32_t heads, block;
    uint32_t first, last; /* positions that any of them sees */
} fast_unit;

FMC_DEVICE bool open_unit(fast_unit *u, const fast_job *j)
{
    const fm_attn *a = &j->a;
    uint32_t at = blockIdx.x, group = a->nh / a->nkv;
    u->block = at % j->blocks;
    at /= j->blocks;
    uint32_t part = at % j->group_parts;
    at /= j->group_parts;
    u->kv_head = at % a->nkv;
    u->row = j->row0 + j->rows - 1 - at / a->nkv;
    u->head = u->kv_head * group + part * j->heads;
    u->heads = fmc_least(j->heads, group - part * j->heads);
    uint32_t rows = fmc_run_at(a, u->row, j->most);
    if (rows == 0 || rows * j->heads < j->at_least || rows * j->heads >= j->below)
        return false;
    u->n = rows * u->heads;
    u->table = a->table + (size_t)a->seq[u->row] * a->table_stride;
    u->first = fmc_first_position((uint32_t)a->pos[u->row], a->window);
    u->last = (uint32_t)a->pos[u->row + rows - 1];
    return true;
}

/* A query row of this thread: row g or g + 8 of its warp. */
typedef struct query {
    uint32_t lo, hi; /* positions that it sees; lo > hi: there is no such row */
    uint32_t row, head;
    float scale; /* what a product is multiplied by, after the key's */
    float m, l;  /* merged parts */
} query;

FMC_DEVICE query query_at(const fast_job *j, const fast_unit *u, uint32_t r)
{
    query q = {1, 0, u->row, u->head, 0.0f, 0.0f, 0.0f};
    if (r < u->n) {
        q.row = u->row + r / u->heads;
        q.head = u->head + r % u->heads;
        q.hi = (uint32_t)j->a.pos[q.row];
        q.lo = fmc_first_position(q.hi, j->a.window);
    }
    return q;
}

/* Elements d, d + 1 of the query row; 0 beyond. */
FMC_DEVICE float2 query_pair(const fm_attn *a, const query *q, uint32_t d)
{
    const float *x = a->q + q->row * a->ldq + (size_t)q->head * a->hd;
    bool there = q->lo <= q->hi;
    return make_float2(there && d < a->hd ? x[d] : 0.0f, there && d + 1 < a->hd ? x[d + 1] : 0.0f);
}

/* The warp's queries as first operands of mma, scaled as keys are; sets both rows' scale. */
template <int HD> FMC_DEVICE void load_queries(uint32_t f[HD / 16][4], const fm_attn *a, query q[2])
{
    uint32_t t = threadIdx.x % 4;
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float size = 0.0f, inverse;
        for (uint32_t d = 2 * t; d < HD; d += 8) {
            float2 x = query_pair(a, &q[i], d);
            size = fmc_max(fabsf(x.x), fmc_max(fabsf(x.y), size));
        }
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, 1), size);
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, 2), size);
        power_scale(size, &by[i], &inverse);
        q[i].scale = inverse * (a->softcap > 0.0f ? a->scale / a->softcap : a->scale * LOG2E);
    }
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            float2 x = query_pair(a, &q[r % 2], 16 * k + 2 * t + r / 2 * 8);
            f[k][r] = fmc_pack_f16(x.x * by[r % 2], x.y * by[r % 2]);
        }
}

/* ---- tiles of positions ---- */

template <int HD> struct tiles {
    static constexpr uint32_t positions = HD <= 128 ? 64 : 32;
    static constexpr uint32_t ld = HD * 2 + 16; /* bytes: rows lie in different banks */
    static constexpr uint32_t matrix = positions * ld;
    static constexpr uint32_t bytes = 2 * matrix + positions * 4; /* keys, values, scales */
    static constexpr uint32_t of_split = SPLIT / positions;
};

/* Begins to copy a tile. Positions that no row of the unit sees become 0. */
template <int HD>
FMC_DEVICE void fetch_tile(unsigned char *to, const fast_job *j, const fast_unit *u, uint32_t tile)
{
    typedef tiles<HD> T;
    const uint32_t hdp = padded_head(j->a.hd), each = HD / 8;
    const size_t head = head_bytes(j->a.hd);
    const unsigned char *k = (const unsigned char *)j->a.kv.k;
    const unsigned char *v = (const unsigned char *)j->a.kv.v;
    for (uint32_t i = threadIdx.x; i < T::positions * each; i += blockDim.x) {
        uint32_t p = i / each, c = i % each, pos = tile * T::positions + p;
        bool valid = pos >= u->first && pos <= u->last && 8 * c < hdp;
        size_t from = 0;
        if (valid)
            from = ((size_t)u->table[pos / FM_KV_PAGE] * j->a.nkv + u->kv_head) * head +
                   (size_t)(pos % FM_KV_PAGE) * hdp * 2 + 16 * c;
        fmc_copy16(to + p * T::ld + 16 * c, k + from, valid);
        fmc_copy16(to + T::matrix + p * T::ld + 16 * c, v + from, valid);
    }
    for (uint32_t i = threadIdx.x; i < T::positions / 4; i += blockDim.x) {
        uint32_t pos = tile * T::positions + 4 * i, page = pos / FM_KV_PAGE;
        bool valid = page >= u->first / FM_KV_PAGE && page <= u->last / FM_KV_PAGE;
        size_t from = 0;
        if (valid)
            from = ((size_t)u->table[page] * j->a.nkv + u->kv_head) * head +
                   (size_t)hdp * FM_KV_PAGE * 2 + pos % FM_KV_PAGE * 4;
        fmc_copy16(to + 2 * T::matrix + 16 * i, k + from, valid);
    }
    fmc_copy_commit();
}

/* A split's part of this warp's 16 rows: o[n] as mma leaves it, columns 8 n ..; l in the first
 * column of ones. */
template <int HD> struct part {
    float o[HD / 8][4], l[4];
    float m[2];
};

template <int HD> FMC_DEVICE void clear_part(part<HD> *s)
{
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s->o[n][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s->l[i] = 0.0f;
    s->m[0] = s->m[1] = -INFINITY;
}

/* Products of the queries with the tile's keys: s[n] has positions 8 n ... */
template <int HD>
FMC_DEVICE void tile_scores(float s[tiles<HD>::positions / 8][4], const uint32_t f[HD / 16][4],
                            const unsigned char *keys)
{
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *from =
        keys + (lane / 16 * 8 + lane % 8) * tiles<HD>::ld + lane / 8 % 2 * 16;
#pragma unroll
    for (uint32_t n = 0; n < tiles<HD>::positions / 16; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[2 * n][i] = s[2 * n + 1][i] = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < HD / 16; k++) {
            uint32_t b[4];
            fmc_load_matrix4(b, from + 16 * n * tiles<HD>::ld + 32 * k);
            fmc_mma_f16(s[2 * n], f[k], b);
            fmc_mma_f16(s[2 * n + 1], f[k], b + 2);
        }
    }
}

/* Within 2e-7, absolute. */
FMC_DEVICE float cap_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + exp2f(2.0f * LOG2E * x));
}

/* Scores in base 2. */
template <int HD>
FMC_DEVICE void finish_scores(float s[tiles<HD>::positions / 8][4], const unsigned char *scales,
                              const query q[2], float softcap)
{
    const float *scale = (const float *)scales;
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            s[n][i] = s[n][i] * scale[8 * n + 2 * t + i % 2] * q[i / 2].scale;
    if (softcap > 0.0f)
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s[n][i] = cap_tanh(s[n][i]) * softcap * LOG2E;
}

/* -inf where the row does not see the position; first: of the tile. */
template <int HD>
FMC_DEVICE void hide_scores(float s[tiles<HD>::positions / 8][4], const query q[2], uint32_t first)
{
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = first + 8 * n + 2 * t + i % 2;
            s[n][i] = at >= q[i / 2].lo && at <= q[i / 2].hi ? s[n][i] : -INFINITY;
        }
}

/* The new maxima, what was summed so far brought to them, and scores turned to weights. */
template <int HD> FMC_DEVICE void soften(part<HD> *part, float s[tiles<HD>::positions / 8][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = part->m[i];
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
            m = fmc_max(s[n][2 * i], fmc_max(s[n][2 * i + 1], m)); /* NaN never is */
        m = fmc_max(__shfl_xor_sync(0xffffffffu, m, 1), m);
        m = fmc_max(__shfl_xor_sync(0xffffffffu, m, 2), m);
        float safe = m == -INFINITY ? 0.0f : m, f = exp2f(part->m[i] - safe);
        part->m[i] = m;
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++) {
            s[n][2 * i] = exp2f(s[n][2 * i] - safe);
            s[n][2 * i + 1] = exp2f(s[n][2 * i + 1] - safe);
        }
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            part->o[n][2 * i] = part->o[n][2 * i] * f;
            part->o[n][2 * i + 1] = part->o[n][2 * i + 1] * f;
        }
        part->l[2 * i] = part->l[2 * i] * f;
        part->l[2 * i + 1] = part->l[2 * i + 1] * f;
    }
}

/* o, l += the weights times the tile's values, and times ones. */
template <int HD>
FMC_DEVICE void add_values(part<HD> *part, const float s[tiles<HD>::positions / 8][4],
                           const unsigned char *values)
{
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *from = values + lane % 16 * tiles<HD>::ld + lane / 16 * 16;
#pragma unroll
    for (uint32_t k = 0; k < tiles<HD>::positions / 16; k++) {
        const uint32_t p[4] = {fmc_pack_bf16(s[2 * k][0], s[2 * k][1]),
                               fmc_pack_bf16(s[2 * k][2], s[2 * k][3]),
                               fmc_pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]),
                               fmc_pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
        fmc_mma_bf16(part->l, p, ones);
#pragma unroll
        for (uint32_t n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            fmc_load_matrix4_t(b, from + 16 * k * tiles<HD>::ld + 32 * n);
            fmc_mma_bf16(part->o[2 * n], p, b);
            fmc_mma_bf16(part->o[2 * n + 1], p, b + 2);
        }
    }
}

/* ---- merging ---- */

/* Factors of what is merged already and of the later part; m becomes the larger maximum. */
FMC_DEVICE void merge_factors(float *m, float *l, float later_m, float later_l, float *f, float *g)
{
    float top = fmc_max(later_m, *m);
    *f = exp2f(*m - top);
    *g = exp2f(later_m - top);
    *l = fmaf(later_l, *g, *l * *f);
    *m = top;
}

FMC_DEVICE size_t part_floats(uint32_t hd)
{
    return hd + 2;
}

FMC_DEVICE float *part_at(const fast_job *j, uint32_t row, uint32_t head, uint32_t split)
{
    size_t flat = (size_t)(row - j->row0) * j->a.nh + head;
    return j->parts + (flat * j->splits + split) * part_floats(j->a.hd);
}

/* Row i's part of a split that it sees: to the parts, or merged with what stands in out. */
template <int HD>
FMC_DEVICE void put_part(const fast_job *j, query *q, const part<HD> *s, uint32_t i, uint32_t split)
{
    uint32_t t = threadIdx.x % 4, hd = j->a.hd, first = q->lo / SPLIT, last = q->hi / SPLIT;
    float *to, f = 0.0f, g = 1.0f;
    bool begins = true, ends = false;
    if (j->parts) {
        float *at = part_at(j, q->row, q->head, split - first);
        if (t == 0) {
            at[0] = s->m[i];
            at[1] = s->l[2 * i];
        }
        to = at + 2;
    } else {
        to = j->a.out + q->row * j->a.ldo + (size_t)q->head * hd;
        begins = split == first;
        ends = split == last;
        if (begins) {
            q->m = s->m[i];
            q->l = s->l[2 * i];
        } else {
            merge_factors(&q->m, &q->l, s->m[i], s->l[2 * i], &f, &g);
        }
    }
    float inverse = 1.0f / q->l;
#pragma unroll
    for (uint32_t n = 0; n < HD / 8; n++)
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t d = 8 * n + 2 * t + e;
            float o = s->o[n][2 * i + e];
            if (d >= hd)
                continue;
            o = begins ? o : fmaf(o, g, to[d] * f);
            to[d] = ends ? fmaf(o, inverse, 0.0f) : o;
        }
}

/* Parts of decoding rows, merged as above; a block a row and head. */
__global__ void k_fast_attention_merge(fast_job j)
{
    uint32_t row = j.row0 + blockIdx.x / j.a.nh, head = blockIdx.x % j.a.nh, begin = row;
    while (begin > row / j.most * j.most && j.a.seq[begin - 1] == j.a.seq[row])
        begin--;
    uint32_t n = fmc_run_at(&j.a, begin, j.most) * j.heads, hi = (uint32_t)j.a.pos[row];
    if (n < j.at_least || n >= j.below)
        return;
    uint32_t lo = fmc_first_position(hi, j.a.window), count = hi / SPLIT - lo / SPLIT + 1;
    for (uint32_t d = threadIdx.x; d < j.a.hd; d += blockDim.x) {
        const float *p = part_at(&j, row, head, 0);
        float m = p[0], l = p[1], o = p[2 + d], f, g;
        for (uint32_t s = 1; s < count; s++) {
            p += part_floats(j.a.hd);
            merge_factors(&m, &l, p[0], p[1], &f, &g);
            o = fmaf(p[2 + d], g, o * f);
        }
        j.a.out[row * j.a.ldo + (size_t)head * j.a.hd + d] = fmaf(o, 1.0f / l, 0.0f);
    }
}

/* ---- the kernel ---- */

/* The tile after `tile` among the splits of this block. */
template <int HD> FMC_DEVICE uint32_t tile_after(const fast_job *j, uint32_t tile)
{
    tile++;
    return tile % tiles<HD>::of_split == 0 ? tile + (j->blocks - 1) * tiles<HD>::of_split : tile;
}

/* 16 query rows to each of one or four warps, against the splits block, block + blocks, .. */
template <int HD> __global__ void __launch_bounds__(WIDE_WARPS * 32) k_fast_attention(fast_job j)
{
    typedef tiles<HD> T;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    fast_unit u;
    if (!open_unit(&u, &j))
        return;
    uint32_t r = threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4, last = u.last / T::positions;
    query q[2] = {query_at(&j, &u, r), query_at(&j, &u, r + 8)};
    uint32_t split = u.first / SPLIT + u.block, tile = split * T::of_split, buffer = 0;
    uint32_t f[HD / 16][4];
    part<HD> part;
    tile = u.block == 0 ? u.first / T::positions : tile;
    if (tile > last)
        return;
    fetch_tile<HD>(shared, &j, &u, tile);
    load_queries<HD>(f, &j.a, q);
    clear_part(&part);
    while (tile <= last) {
        uint32_t next = tile_after<HD>(&j, tile), at = tile * T::positions;
        unsigned char *now = shared + buffer * T::bytes;
        buffer ^= 1;
        if (next <= last) {
            fetch_tile<HD>(shared + buffer * T::bytes, &j, &u, next);
            fmc_copy_wait<1>();
        } else {
            fmc_copy_wait<0>();
        }
        __syncthreads();
        bool any = false, all = true;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            any = any || (q[i].lo < at + T::positions && q[i].hi >= at && q[i].lo <= q[i].hi);
            all = all && q[i].lo <= at && q[i].hi >= at + T::positions - 1;
        }
        all = __all_sync(0xffffffffu, all);
        if (__any_sync(0xffffffffu, any)) {
            float s[T::positions / 8][4];
            tile_scores<HD>(s, f, now);
            finish_scores<HD>(s, now + 2 * T::matrix, q, j.a.softcap);
            if (!all)
                hide_scores<HD>(s, q, at);
            soften<HD>(&part, s);
            add_values<HD>(&part, s, now + T::matrix);
        }
        __syncthreads(); /* the next round copies into it */
        if (next > last || next / T::of_split != tile / T::of_split) {
            split = tile / T::of_split;
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                if (q[i].lo <= q[i].hi && q[i].lo / SPLIT <= split && q[i].hi / SPLIT >= split)
                    put_part<HD>(&j, &q[i], &part, i, split);
            clear_part(&part);
        }
        tile = next;
    }
}

/* ---- the call ---- */

template <int HD> static void run(fmc_device *d, const fast_job *j, unsigned warps)
{
    unsigned bytes = 2 * tiles<HD>::bytes;
    unsigned grid = j->rows * j->a.nkv * j->group_parts * j->blocks;
    fmc_enter(d);
    if (bytes > 48u * 1024u &&
        cudaFuncSetAttribute(k_fast_attention<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* told here, not again at the next launch */
        fmc_stick(d, FM_EUNSUPPORTED, "attention: the device has too little shared memory");
    }
    FMC_RUN(d, (k_fast_attention<HD>), grid, warps * 32, bytes, *j);
}

static void run_width(fmc_device *d, const fast_job *j, unsigned warps)
{
    if (j->a.hd <= 32)
        run<32>(d, j, warps);
    else if (j->a.hd <= 64)
        run<64>(d, j, warps);
    else if (j->a.hd <= 96)
        run<96>(d, j, warps);
    else if (j->a.hd <= 128)
        run<128>(d, j, warps);
    else if (j->a.hd <= 192)
        run<192>(d, j, warps);
    else
        run<256>(d, j, warps);
}

/* Blocks that share a unit's splits, so that there is work for the whole card. */
static uint32_t blocks_for(const fmc_device *d, const fast_job *j, uint32_t units)
{
    uint32_t enough = (uint32_t)d->multiprocessors * 8, n = (enough + units - 1) / units;
    return n < j->splits ? n : j->splits;
}

/* Rows row0 .. of the call: short runs one warp a unit, long ones four; parts are merged after. */
static void decode_part(fmc_device *d, fast_job *j)
{
    uint32_t units = j->rows * j->a.nkv * j->group_parts;
    j->at_least = 0;
    j->below = WARP_ROWS + 1;
    j->blocks = blocks_for(d, j, units);
    run_width(d, j, 1);
    if (j->rows * j->heads > WARP_ROWS) {
        j->at_least = WARP_ROWS + 1;
        j->below = 0xffffffffu;
        j->blocks = blocks_for(d, j, (units + j->most - 1) / j->most);
        run_width(d, j, WIDE_WARPS);
    }
    j->at_least = 0;
    j->below = 0xffffffffu;
    FMC_RUN(d, k_fast_attention_merge, j->rows * j->a.nh, j->a.hd <= 64 ? 64 : 128, 0, *j);
}

static void attention(fm_backend *be, const fm_attn *a)
{
    fmc_device *d = fmc_of(be);
    fast_job j = {};
    if (a->m == 0 || d->failed != FM_OK)
        return;
    if (a->nkv == 0 || a->nh % a->nkv != 0 || a->hd == 0 || a->hd > 256) {
        fmc_stick(d, FM_EUNSUPPORTED,
                  "attention: mode fast has heads of 1 to 256 elements; use mode exact");
        return;
    }
    j.a = *a;
    j.heads = fmc_group_heads(a, WARP_ROWS);
    j.group_parts = fmc_group_parts(a, j.heads);
    j.most = WIDE_WARPS * WARP_ROWS / j.heads;
    j.splits = (a->table_stride * FM_KV_PAGE + SPLIT - 1) / SPLIT;
    if (a->window && a->window / SPLIT + 2 < j.splits)
        j.splits = a->window / SPLIT + 2;
    if (a->m > DECODE_ROWS) {
        j.rows = a->m;
        j.blocks = 1;
        j.below = 0xffffffffu;
        run_width(d, &j, WIDE_WARPS);
        return;
    }
    size_t row_bytes = (size_t)a->nh * j.splits * (a->hd + 2) * sizeof(float);
    uint32_t fit = row_bytes > PART_BYTES ? 0 : (uint32_t)(PART_BYTES / row_bytes);
    uint32_t each = fit >= a->m ? a->m : fit / j.most * j.most;
    each = each > 0 ? each : j.most;
    each = each < a->m ? each : a->m;
    j.parts = (float *)fmc_scratch_get(d, FMC_SCRATCH_ATTENTION, each * row_bytes);
    for (; j.row0 < a->m; j.row0 += each) {
        j.rows = each < a->m - j.row0 ? each : a->m - j.row0;
        decode_part(d, &j);
    }
}

static size_t kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return nkv * head_bytes(hd);
}

static void kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                     size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    fmc_device *d = fmc_of(be);
    if (m > 0 && nkv > 0)
        FMC_RUN(d, k_fast_kv_write, fmc_blocks((uint64_t)m * nkv, FMC_THREADS / 32), FMC_THREADS, 0,
                kv, k, ldk, v, ldv, slot, m, nkv, hd);
}

/* kv_copy copies what kv_page_bytes says: mode exact's does. */
void fmc_fast_attention_install(fm_backend *be)
{
    be->kv_page_bytes = kv_page_bytes;
    be->kv_write = kv_write;
    be->attention = attention;
}
