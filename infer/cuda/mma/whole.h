/* whole.h - self-attention of whole sequences in mode bf16 (attention_train.cu has the order of its
 * sums): shared by the kernels for all GPUs and those of Hopper. */
#ifndef FM_INFER_CUDA_FAST_WHOLE_H
#define FM_INFER_CUDA_FAST_WHOLE_H

#include "infer/cuda/mma/fast.h"
#include "infer/cuda/mma/attend.h"

#define FMC_PACK_ROWS 64u

typedef struct seq_tile {
    uint32_t seq, first; /* query row, or position */
} seq_tile;

/* Rows of the packs before a sequence, which has whole tiles of FMC_PACK_ROWS, zeros at the end. */
typedef struct pack_rows {
    uint64_t q, k;
} pack_rows;

typedef struct soft_job {
    fm_attn_train a;
    const fm_train_seq *seq; /* device, as the three below */
    const uint64_t *virtual_at;
    const pack_rows *before;
    const seq_tile *tile;
    unsigned char *q, *dout; /* for each sequence bf16 [nh][rows / 8][hdp / 8][8][8] */
    unsigned char *k, *v;    /* likewise [nkv], virtual and own positions */
    float *lse, *own;        /* for each sequence [nh][rows]: forward's lse, sums of dout * out */
    float *virtual_grad;
    uint32_t hdp, slices;
} soft_job;

typedef struct place {
    const fm_train_seq *s;
    const unsigned char *q, *dout, *k, *v; /* at the first row of this head */
    const float *lse, *own;
    uint32_t seq, head, kv_head, slice, first;
    uint32_t window, all; /* all: number of positions, virtual ones included */
} place;

static __host__ __device__ inline uint32_t padded_rows(uint32_t rows)
{
    return (rows + FMC_PACK_ROWS - 1) / FMC_PACK_ROWS * FMC_PACK_ROWS;
}

/* Bytes before elements 8 c .. of a row. */
FMC_DEVICE size_t pack_at(uint32_t row, uint32_t c, uint32_t hdp)
{
    return (size_t)(row / 8) * hdp * 16 + c * 128 + row % 8 * 16;
}

FMC_DEVICE void place_head(place *w, const soft_job *j, uint32_t head)
{
    uint64_t row = j->before[w->seq].q * j->a.nh + (uint64_t)head * padded_rows(w->s->len);
    w->head = head;
    w->q = j->q + row * j->hdp * 2;
    w->dout = j->dout + row * j->hdp * 2;
    w->lse = j->lse + row;
    w->own = j->own + row;
}

/* The place of work item `at` of the list's tiles, heads and slices. */
FMC_DEVICE place open_place(const soft_job *j, uint32_t at, uint32_t heads, uint32_t slices)
{
    seq_tile t = j->tile[at / (heads * slices)];
    uint32_t group = j->a.nh / j->a.nkv, head = at / slices % heads;
    place w;
    w.s = j->seq + t.seq;
    w.seq = t.seq;
    w.first = t.first;
    w.slice = at % slices;
    w.kv_head = heads == j->a.nh ? head / group : head;
    w.window = j->a.encoder ? 0 : j->a.window;
    w.all = w.s->virt + w.s->len;
    uint64_t row = j->before[t.seq].k * j->a.nkv + (uint64_t)w.kv_head * padded_rows(w.all);
    w.k = j->k + row * j->hdp * 2;
    w.v = j->v + row * j->hdp * 2;
    place_head(&w, j, head);
    return w;
}

/* ---- which row sees which positions ---- */

/* The positions that a row sees: those below virt, and lo .. hi - 1. */
typedef struct sight {
    uint32_t virt, lo, hi;
} sight;

FMC_DEVICE sight sight_of(const soft_job *j, const place *w, uint32_t row)
{
    sight s = {0, 0, 0};
    if (row < w->s->len) {
        s.virt = w->s->virt;
        s.lo = s.virt + fmc_first_position(row, w->window);
        s.hi = s.virt + (j->a.encoder ? w->s->len : row + 1);
    }
    return s;
}

FMC_DEVICE bool sees(const sight *s, uint32_t at)
{
    return at < s->virt || (at >= s->lo && at < s->hi);
}
FMC_DEVICE bool sees_any(const sight *s, uint32_t first, uint32_t n)
{
    return first < s->virt || (first < s->hi && first + n > s->lo);
}
FMC_DEVICE bool sees_all(const sight *s, uint32_t first, uint32_t n)
{
    return first + n <= s->virt || (first + n <= s->hi && (first >= s->lo || s->lo <= s->virt));
}

/* Tiles of n positions that rows first .. last see: 0 .. virtual_end - 1 and from .. end - 1. */
typedef struct walk {
    uint32_t virtual_end, from, end;
} walk;

FMC_DEVICE walk walk_of(const soft_job *j, const place *w, uint32_t rows, uint32_t n)
{
    sight first = sight_of(j, w, w->first), last = sight_of(j, w, w->first + rows - 1);
    walk k = {(first.virt + n - 1) / n, first.lo / n, (last.hi + n - 1) / n};
    return k;
}
FMC_DEVICE uint32_t tile_after(const walk *k, uint32_t tile)
{
    return tile + 1 >= k->virtual_end && tile + 1 < k->from ? k->from : tile + 1;
}

/* ---- scores ---- */

/* Turns products into scores, in base 2. */
template <int N> FMC_DEVICE void score_tile(float s[N], const fm_attn_train *a)
{
    if (a->softcap > 0.0f) {
#pragma unroll
        for (int e = 0; e < N; e++)
            s[e] = cap_tanh(s[e] * (a->scale / a->softcap)) * (a->softcap * FMC_LOG2E);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            s[e] = s[e] * (a->scale * FMC_LOG2E);
    }
}

/* Replaces the products q k and dout v by p and ds. */
template <bool CAP>
FMC_DEVICE void weigh(float *dot, float *dp, const fm_attn_train *a, float lse, float own)
{
    float p, slope = a->scale;
    if constexpr (CAP) {
        float t = cap_tanh(*dot * (a->scale / a->softcap));
        slope = slope * fmaf(0.0f - t, t, 1.0f);
        p = fmc_exp2(fmaf(t, a->softcap * FMC_LOG2E, 0.0f - lse));
    } else {
        p = fmc_exp2(fmaf(*dot, a->scale * FMC_LOG2E, 0.0f - lse));
    }
    *dot = p;
    *dp = p * (*dp - own) * slope;
}

/* weigh for sums whose rows are query rows; lse, own: of rows g and g + 8. */
template <int N, bool CAP>
FMC_DEVICE void weigh_rows_as(float s[N], float ds[N], const fm_attn_train *a, const float lse[2],
                              const float own[2])
{
#pragma unroll
    for (int e = 0; e < N; e++)
        weigh<CAP>(&s[e], &ds[e], a, lse[e / 2 % 2], own[e / 2 % 2]);
}
template <int N>
FMC_DEVICE void weigh_rows(float s[N], float ds[N], const fm_attn_train *a, const float lse[2],
                           const float own[2])
{
    if (a->softcap > 0.0f)
        weigh_rows_as<N, true>(s, ds, a, lse, own);
    else
        weigh_rows_as<N, false>(s, ds, a, lse, own);
}

/* weigh for sums whose columns are query rows; lse, own: of all of them. */
template <int N, bool CAP>
FMC_DEVICE void weigh_columns_as(float s[N], float ds[N], const fm_attn_train *a, const float *lse,
                                 const float *own)
{
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < N / 4; n++)
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            float l = lse[8 * n + 2 * t + e], o = own[8 * n + 2 * t + e];
            weigh<CAP>(&s[4 * n + e], &ds[4 * n + e], a, l, o);
            weigh<CAP>(&s[4 * n + 2 + e], &ds[4 * n + 2 + e], a, l, o);
        }
}
template <int N>
FMC_DEVICE void weigh_columns(float s[N], float ds[N], const fm_attn_train *a, const float *lse,
                              const float *own)
{
    if (a->softcap > 0.0f)
        weigh_columns_as<N, true>(s, ds, a, lse, own);
    else
        weigh_columns_as<N, false>(s, ds, a, lse, own);
}

/* Sets the sums of positions at .. that rows g and g + 8 do not see to `hidden`. */
template <int N>
FMC_DEVICE void hide_unseen(float s[N], const sight see[2], uint32_t at, float hidden)
{
    uint32_t t = threadIdx.x % 4;
    bool all = sees_all(&see[0], at, N * 2) && sees_all(&see[1], at, N * 2);
    if (__all_sync(0xffffffffu, all))
        return;
#pragma unroll
    for (uint32_t e = 0; e < N; e++)
        s[e] = sees(&see[e / 2 % 2], at + e / 4 * 8 + 2 * t + e % 2) ? s[e] : hidden;
}

/* A position is seen by query rows lo .. hi - 1. */
typedef struct rows_seeing {
    uint32_t lo, hi;
} rows_seeing;

FMC_DEVICE rows_seeing rows_of(const soft_job *j, const place *w, uint32_t at)
{
    uint32_t virt = w->s->virt, len = w->s->len;
    rows_seeing r = {0, at < w->all ? len : 0};
    if (at < virt || j->a.encoder || at >= w->all)
        return r;
    r.lo = at - virt;
    if (w->window && len - r.lo > w->window)
        r.hi = r.lo + w->window;
    return r;
}

/* Sets p and ds of positions g and g + 8 to 0 for query rows first .. that do not see them. */
template <int N>
FMC_DEVICE void hide_rows(float p[N], float ds[N], const rows_seeing by[2], uint32_t first)
{
    uint32_t t = threadIdx.x % 4;
    bool all = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
        all = all && first >= by[i].lo && first + N * 2 <= by[i].hi;
    if (__all_sync(0xffffffffu, all))
        return;
#pragma unroll
    for (uint32_t e = 0; e < N; e++) {
        uint32_t i = e / 2 % 2, row = first + e / 4 * 8 + 2 * t + e % 2;
        bool seen = row >= by[i].lo && row < by[i].hi;
        p[e] = seen ? p[e] : 0.0f;
        ds[e] = seen ? ds[e] : 0.0f;
    }
}

/* Stores rows r and r + 8 of sums, if in begin .. end - 1, to lines counted from begin. */
template <int WIDTH>
FMC_DEVICE void put_lines(float *to, size_t ld, uint32_t r, uint32_t begin, uint32_t end,
                          uint32_t width, const float o[WIDTH / 2])
{
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = r + 8 * i;
        if (row < begin || row >= end)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                if (8 * n + 2 * t + e < width)
                    to[(row - begin) * ld + 8 * n + 2 * t + e] = o[4 * n + 2 * i + e];
    }
}

/* Stores dk, dv of the place's head: elements d0 .. d0 + WIDTH - 1 of positions at, at + 8. */
template <int WIDTH>
FMC_DEVICE void put_keys(const soft_job *j, const place *w, uint32_t at, uint32_t d0,
                         const float dk[WIDTH / 2], const float dv[WIDTH / 2])
{
    size_t ld = (size_t)j->a.nkv * j->a.hd, head = (size_t)w->kv_head * j->a.hd;
    uint32_t virt = w->s->virt, width = fmc_least(WIDTH, j->a.hd - d0);
    if (w->first < virt && (w->s->dvk || w->s->dvv)) {
        float *part = j->virtual_grad + j->virtual_at[w->seq] + head + d0;
        put_lines<WIDTH>(part, ld, at, 0, virt, width, dk);
        put_lines<WIDTH>(part + virt * ld, ld, at, 0, virt, width, dv);
    }
    size_t to = w->s->begin * j->a.ldk + head + d0;
    put_lines<WIDTH>(j->a.dk + to, j->a.ldk, at, virt, w->all, width, dk);
    put_lines<WIDTH>(j->a.dv + to, j->a.ldk, at, virt, w->all, width, dv);
}

/* Stores o / l of rows r, r + 8, and their lse. */
template <int HD>
FMC_DEVICE void put_rows(const soft_job *j, const place *w, uint32_t r, const part<HD> *part)
{
    uint32_t t = threadIdx.x % 4, hd = j->a.hd;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = r + 8 * i;
        float l = part->l[2 * i], inverse = 1.0f / l;
        float *to = j->a.out + (((size_t)w->s->begin + row) * j->a.nh + w->head) * hd;
        if (row >= w->s->len)
            continue;
#pragma unroll
        for (uint32_t n = 0; n < HD / 8; n++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                if (8 * n + 2 * t + e < hd)
                    to[8 * n + 2 * t + e] = part->o[4 * n + 2 * i + e] * inverse;
        if (t == 0)
            j->a.lse[(size_t)w->s->begin * j->a.nh + (size_t)w->head * w->s->len + row] =
                part->m[i] + log2f(l);
    }
}

/* The row tiles of all heads of the group, one head after another. */
typedef struct row_walk {
    uint32_t begin, of_head, end; /* tile; tiles */
} row_walk;

/* The tiles of n rows that see some of `keys` positions from the place's first on. */
FMC_DEVICE row_walk rows_walk(const soft_job *j, const place *w, uint32_t keys, uint32_t n)
{
    const uint32_t last = fmc_least(w->first + keys, w->all) - 1;
    uint32_t group = j->a.nh / j->a.nkv, lo = rows_of(j, w, w->first).lo;
    uint32_t hi = w->first < w->s->virt ? w->s->len : rows_of(j, w, last).hi;
    row_walk k = {lo / n, (hi + n - 1) / n - lo / n, 0};
    k.end = k.of_head * group;
    return k;
}

/* First row of tile i of the walk; the place becomes that of its head. */
FMC_DEVICE uint32_t row_tile(place *w, const soft_job *j, const row_walk *k, uint32_t i, uint32_t n)
{
    place_head(w, j, w->kv_head * (j->a.nh / j->a.nkv) + i / k->of_head);
    return (k->begin + i % k->of_head) * n;
}

/* ---- calls between the two files ---- */

/* attention_train.cu: runs a call by Hopper's kernels or by those for all GPUs. */
void fmc_whole_attention(fmc_device *d, const fm_attn_train *a, bool grad, bool wide);
/* cuda/sm90/attention_train.cu: whether Hopper's kernels may be used for heads of this length;
 * tiles of the list of positions then have FMC_WIDE_KEYS positions. */
bool fmc_sm90_whole_may(fmc_device *d, uint32_t hd);
#define FMC_WIDE_KEYS 128u
void fmc_sm90_whole_forward(fmc_device *d, const soft_job *j, unsigned blocks);
void fmc_sm90_whole_dq(fmc_device *d, const soft_job *j, unsigned blocks);
void fmc_sm90_whole_dkv(fmc_device *d, const soft_job *j, unsigned blocks);

#endif
