/* attention_train.cu - self-attention of whole sequences and its gradient, the bits of
 * cpu/kern/attention.h.
 *
 * No matrix of scores is kept: tiles of 64 rows x 64 positions are computed again where they are
 * needed (the forward twice, for the true maximum and for the sums; the gradient once for dq and
 * once for dk and dv), 256 threads with 4 x 4 chains of fmaf each. A tile is then multiplied in the
 * order of the sums: a thread owns its outputs and adds one position (or row) after another, so no
 * order depends on tiles. A head of more than 128 elements is cut into slices, one a block. */
#include "infer/cuda/exact/attend.h"
#include "infer/cuda/detmath.h"
#include "infer/cuda/lanes.h"

#include <stdlib.h>
#include <string.h>

#define TILE 64u            /* rows, and positions, of a tile */
#define TILE_LD (TILE + 4u) /* floats from one line of a tile to the next */
#define STEP 16u            /* lines that are staged at a time */
#define SLICE 128u          /* elements of the head of one block */
#define SLICE_LD (SLICE + 4u)
#define STAGE_FLOATS (2u * STEP * TILE_LD)
#define GRAD_BLOCK 8u /* FMI_GRAD_ROWS of cpu/kern/kern.h: rows of a block */

/* A tile of rows or of positions of one sequence. */
typedef struct seq_tile {
    uint32_t seq, first; /* of position tiles: counted in tiles, virtual ones first */
} seq_tile;

typedef struct whole_job {
    fm_attn_train a;
    const fm_train_seq *seq; /* device */
    const seq_tile *tile;
    const uint64_t *virtual_at; /* [seqs] floats before a sequence's part in virtual_grad */
    float *virtual_grad;
    float *own; /* [rows * nh]: D, lane sums of dout * out */
    uint32_t slices;
} whole_job;

/* Positions of a tile, with the addresses of their keys and values. */
typedef struct positions {
    const float *k, *v;
    size_t ld;
    uint32_t n;     /* 1 .. TILE */
    uint32_t first; /* position in the sequence; virtual ones have none */
    bool is_virtual;
} positions;

typedef struct place {
    const fm_train_seq *s;
    uint32_t head, kv_head, slice, first; /* first row, or tile of positions */
    uint32_t window;
} place;

FMC_DEVICE uint32_t virtual_tiles(const fm_train_seq *s)
{
    return (s->virt + TILE - 1) / TILE;
}

FMC_DEVICE positions positions_at(const whole_job *j, const place *w, uint32_t tile)
{
    const fm_train_seq *s = w->s;
    uint32_t v = virtual_tiles(s), first = (tile < v ? tile : tile - v) * TILE;
    size_t at = (size_t)w->kv_head * j->a.hd;
    positions p;
    p.is_virtual = tile < v;
    p.first = first;
    p.n = fmc_least(TILE, (p.is_virtual ? s->virt : s->len) - first);
    p.ld = p.is_virtual ? (size_t)j->a.nkv * j->a.hd : j->a.ldk;
    if (p.is_virtual) {
        p.k = s->vk + first * p.ld + at;
        p.v = s->vv + first * p.ld + at;
    } else {
        p.k = j->a.k + (s->begin + first) * p.ld + at;
        p.v = j->a.v + (s->begin + first) * p.ld + at;
    }
    return p;
}

FMC_DEVICE uint32_t own_first(const place *w, uint32_t row)
{
    return fmc_first_position(row, w->window);
}
FMC_DEVICE uint32_t own_end(const whole_job *j, const place *w, uint32_t row)
{
    return j->a.encoder ? w->s->len : row + 1;
}

/* Whether row sees position i of the tile. */
FMC_DEVICE bool sees(const whole_job *j, const place *w, const positions *p, uint32_t row,
                     uint32_t i)
{
    uint32_t at = p->first + i;
    return i < p->n && (p->is_virtual || (at >= own_first(w, row) && at < own_end(j, w, row)));
}

/* Whether all rows first .. last see all n positions. */
FMC_DEVICE bool all_see(const whole_job *j, const place *w, const positions *p, uint32_t first,
                        uint32_t last)
{
    return p->is_virtual ||
           (p->first >= own_first(w, last) && p->first + p->n <= own_end(j, w, first));
}

/* The tiles that rows first .. last see are begin .. end - 1, virtual ones before own ones. */
FMC_DEVICE uint32_t tiles_end(const whole_job *j, const place *w, uint32_t last)
{
    return virtual_tiles(w->s) + (own_end(j, w, last) - 1) / TILE + 1;
}
FMC_DEVICE uint32_t tile_after(const place *w, uint32_t tile, uint32_t first)
{
    uint32_t v = virtual_tiles(w->s), from = v + own_first(w, first) / TILE;
    return tile + 1 >= v && tile + 1 < from ? from : tile + 1;
}
FMC_DEVICE uint32_t tile_begin(const place *w, uint32_t first)
{
    return tile_after(w, 0xffffffffu, first);
}

/* ---- parts of all kernels ---- */

/* Loads STEP elements of na lines of a, transposed: stage[d][line]; zeros beyond. */
FMC_DEVICE void stage_lines(float *stage, const float *a, size_t lda, uint32_t na, uint32_t left)
{
    for (uint32_t i = threadIdx.x; i < TILE * STEP; i += blockDim.x) {
        uint32_t line = i / STEP, d = i % STEP;
        stage[d * TILE_LD + line] = line < na && d < left ? a[line * lda + d] : 0.0f;
    }
}

/* s[i][k]: chains over hd of line 4 (thread / 16) + i of a with line 4 (thread % 16) + k of b. */
FMC_DEVICE void tile_products(float s[4][4], float *stage, const float *a, size_t lda, uint32_t na,
                              const float *b, size_t ldb, uint32_t nb, uint32_t hd)
{
    uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float *other = stage + STEP * TILE_LD;
#pragma unroll
    for (int i = 0; i < 16; i++)
        s[i / 4][i % 4] = 0.0f;
    for (uint32_t d0 = 0; d0 < hd; d0 += STEP) {
        uint32_t some = fmc_least(STEP, hd - d0);
        __syncthreads();
        stage_lines(stage, a + d0, lda, na, some);
        stage_lines(other, b + d0, ldb, nb, some);
        __syncthreads();
#pragma unroll 4
        for (uint32_t d = 0; d < some; d++) {
            float4 x = *(const float4 *)(stage + d * TILE_LD + 4 * ty);
            float4 y = *(const float4 *)(other + d * TILE_LD + 4 * tx);
            float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s[i][k] = fmaf(xs[i], ys[k], s[i][k]);
        }
    }
}

/* Loads STEP lines of a slice of the head; zeros beyond. */
FMC_DEVICE void stage_slice(float *stage, const float *src, size_t ld, uint32_t lines,
                            uint32_t width)
{
    for (uint32_t i = threadIdx.x; i < STEP * SLICE; i += blockDim.x) {
        uint32_t line = i / SLICE, d = i % SLICE;
        stage[line * SLICE_LD + d] = line < lines && d < width ? src[line * ld + d] : 0.0f;
    }
}

/* o[i][..] += w[i] x, for elements 4 tx .. and 64 + 4 tx .. of the slice. */
FMC_DEVICE void add_line(float o[4][8], const float *w, const float *line, const bool use[4])
{
    uint32_t tx = threadIdx.x % 16;
    float4 x = *(const float4 *)(line + 4 * tx), y = *(const float4 *)(line + 64 + 4 * tx);
    float4 e = *(const float4 *)w;
    float es[4] = {e.x, e.y, e.z, e.w};
    float xs[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (use && !use[i])
            continue;
#pragma unroll
        for (int k = 0; k < 8; k++)
            o[i][k] = fmaf(es[i], xs[k], o[i][k]);
    }
}

FMC_DEVICE void clear_sums(float o[4][8])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        o[i / 8][i % 8] = 0.0f;
}

/* The element of the slice that o[.][k] holds. */
FMC_DEVICE uint32_t element_of(uint32_t k)
{
    return k / 4 * 64 + 4 * (threadIdx.x % 16) + k % 4;
}

/* The score of a product: scaled, capped. */
FMC_DEVICE float score_of(const fm_attn_train *a, float dot)
{
    float s = dot * a->scale;
    return a->softcap > 0.0f ? a->softcap * fmc_tanh(s / a->softcap) : s;
}

/* ---- rows: forward and dq ---- */

typedef struct row_shared {
    float stage[STAGE_FLOATS];
    float w[TILE][TILE_LD]; /* weights [position][row] */
    float sum[TILE];
} row_shared;

/* o += the tile's weights times src (values or keys), each row over what it sees, ascending. */
FMC_DEVICE void gather_tile(float o[4][8], row_shared *sh, const whole_job *j, const place *w,
                            const positions *p, const float *src, uint32_t rows)
{
    uint32_t ty = threadIdx.x / 16, width = fmc_least(SLICE, j->a.hd - w->slice * SLICE);
    bool all = all_see(j, w, p, w->first, w->first + rows - 1);
    src += w->slice * SLICE;
    for (uint32_t at = 0; at < p->n; at += STEP) {
        uint32_t some = fmc_least(STEP, p->n - at);
        __syncthreads();
        stage_slice(sh->stage, src + at * p->ld, p->ld, some, width);
        __syncthreads();
        for (uint32_t i = 0; i < some; i++) {
            bool use[4];
#pragma unroll
            for (uint32_t r = 0; r < 4; r++)
                use[r] = all || sees(j, w, p, w->first + 4 * ty + r, at + i);
            add_line(o, &sh->w[at + i][4 * ty], sh->stage + i * SLICE_LD, all ? NULL : use);
        }
    }
}

FMC_DEVICE void put_weights(row_shared *sh, const float e[4][4])
{
    uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        *(float4 *)&sh->w[4 * tx + k][4 * ty] = make_float4(e[0][k], e[1][k], e[2][k], e[3][k]);
}

FMC_DEVICE place open_place(const whole_job *j, uint32_t heads)
{
    seq_tile t = j->tile[blockIdx.x / (heads * j->slices)];
    uint32_t group = j->a.nh / j->a.nkv;
    place w;
    w.s = j->seq + t.seq;
    w.first = t.first;
    w.slice = blockIdx.x % j->slices;
    w.head = blockIdx.x / j->slices % heads;
    w.kv_head = heads == j->a.nh ? w.head / group : w.head;
    w.window = j->a.encoder ? 0 : j->a.window;
    return w;
}

/* The true maximum of each of this thread's four rows, ignoring NaN. */
FMC_DEVICE void row_max(float best[4], row_shared *sh, const whole_job *j, const place *w,
                        const float *q, uint32_t rows)
{
    uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    uint32_t end = tiles_end(j, w, w->first + rows - 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        best[i] = -INFINITY;
    for (uint32_t t = tile_begin(w, w->first); t < end; t = tile_after(w, t, w->first)) {
        positions p = positions_at(j, w, t);
        float s[4][4];
        tile_products(s, sh->stage, q, j->a.ldq, rows, p.k, p.ld, p.n, j->a.hd);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                if (sees(j, w, &p, w->first + 4 * ty + i, 4 * tx + k))
                    best[i] = fmc_max(score_of(&j->a, s[i][k]), best[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int by = 8; by > 0; by /= 2)
            best[i] = fmc_max(__shfl_xor_sync(0xffffffffu, best[i], by, 16), best[i]);
}

__global__ void __launch_bounds__(256) k_self_attention(whole_job j)
{
    FMC_SHARED(row_shared, sh, [1]);
    place w = open_place(&j, j.a.nh);
    const fm_train_seq *s = w.s;
    uint32_t rows = fmc_least(TILE, s->len - w.first), ty = threadIdx.x / 16;
    uint32_t tx = threadIdx.x % 16, end = tiles_end(&j, &w, w.first + rows - 1);
    size_t row0 = (size_t)s->begin + w.first;
    const float *q = j.a.q + row0 * j.a.ldq + (size_t)w.head * j.a.hd;
    float max[4], o[4][8], sum = 0.0f;
    row_max(max, sh, &j, &w, q, rows);
    clear_sums(o);
    for (uint32_t t = tile_begin(&w, w.first); t < end; t = tile_after(&w, t, w.first)) {
        positions p = positions_at(&j, &w, t);
        float e[4][4];
        tile_products(e, sh->stage, q, j.a.ldq, rows, p.k, p.ld, p.n, j.a.hd);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                bool seen = sees(&j, &w, &p, w.first + 4 * ty + i, 4 * tx + k);
                e[i][k] = seen ? fmc_exp(score_of(&j.a, e[i][k]) - max[i]) : 0.0f;
            }
        put_weights(sh, e);
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x < TILE && i < p.n; i++)
            sum = sum + sh->w[i][threadIdx.x];
        gather_tile(o, sh, &j, &w, &p, p.v, rows);
    }
    if (threadIdx.x < TILE)
        sh->sum[threadIdx.x] = sum;
    __syncthreads();
    float *lse = j.a.lse + (size_t)s->begin * j.a.nh + (size_t)w.head * s->len + w.first;
#pragma unroll
    for (uint32_t i = 0; i < 4 && 4 * ty + i < rows; i++) {
        float total = sh->sum[4 * ty + i];
        float *out = j.a.out + ((row0 + 4 * ty + i) * j.a.nh + w.head) * j.a.hd;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t d = w.slice * SLICE + element_of(k);
            if (d < j.a.hd)
                out[d] = o[i][k] / total;
        }
        if (w.slice == 0 && tx == 0)
            lse[4 * ty + i] = (float)((double)max[i] + fmc_log((double)total));
    }
}

/* ---- the gradient ---- */

/* A half warp has one head of one row. */
__global__ void k_attention_own(whole_job j)
{
    uint32_t lane = threadIdx.x % FMC_LANES, hd = j.a.hd, each = blockDim.x / FMC_LANES;
    size_t n = (size_t)j.a.rows * j.a.nh, padded = (hd + FMC_LANES - 1) / FMC_LANES * FMC_LANES;
    for (size_t at = blockIdx.x * (size_t)each + threadIdx.x / FMC_LANES; at < n;
         at += (size_t)gridDim.x * each) {
        float sum = 0.0f;
        for (size_t d = lane; d < padded; d += FMC_LANES)
            sum = fmaf(d < hd ? j.a.dout[at * hd + d] : 0.0f, d < hd ? j.a.out[at * hd + d] : 0.0f,
                       sum);
        sum = fmc_fold_add(sum);
        if (lane == 0)
            j.own[at] = sum;
    }
}

/* p and ds of a row at a position from the products q k and dout v. */
FMC_DEVICE void weigh(float *p, float *ds, const fm_attn_train *a, float dot, float dp, float lse,
                      float own)
{
    float s = score_of(a, dot), e = fmc_exp(s - lse), d = e * (dp - own);
    d = d * a->scale;
    if (a->softcap > 0.0f) {
        float t = s / a->softcap;
        d = d * fmaf(0.0f - t, t, 1.0f);
    }
    *p = e;
    *ds = d;
}

/* Both products of rows `first` .. with the tile's positions. */
FMC_DEVICE void grad_products(float s[4][4], float dp[4][4], float *stage, const whole_job *j,
                              const place *w, const positions *p, uint32_t head, uint32_t first,
                              uint32_t rows)
{
    size_t row0 = (size_t)w->s->begin + first, at = (size_t)head * j->a.hd;
    size_t ldo = (size_t)j->a.nh * j->a.hd;
    tile_products(s, stage, j->a.q + row0 * j->a.ldq + at, j->a.ldq, rows, p->k, p->ld, p->n,
                  j->a.hd);
    tile_products(dp, stage, j->a.dout + row0 * ldo + at, ldo, rows, p->v, p->ld, p->n, j->a.hd);
}

/* lse and D of this thread's four rows. */
FMC_DEVICE void row_state(float lse[4], float own[4], const whole_job *j, const place *w,
                          uint32_t head, uint32_t first, uint32_t rows)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = first + fmc_least(4 * (threadIdx.x / 16) + i, rows - 1);
        lse[i] = j->a.lse[(size_t)w->s->begin * j->a.nh + (size_t)head * w->s->len + row];
        own[i] = j->own[((size_t)w->s->begin + row) * j->a.nh + head];
    }
}

__global__ void __launch_bounds__(256) k_self_attention_dq(whole_job j)
{
    FMC_SHARED(row_shared, sh, [1]);
    place w = open_place(&j, j.a.nh);
    uint32_t rows = fmc_least(TILE, w.s->len - w.first), ty = threadIdx.x / 16;
    uint32_t end = tiles_end(&j, &w, w.first + rows - 1);
    float lse[4], own[4], o[4][8];
    row_state(lse, own, &j, &w, w.head, w.first, rows);
    clear_sums(o);
    for (uint32_t t = tile_begin(&w, w.first); t < end; t = tile_after(&w, t, w.first)) {
        positions p = positions_at(&j, &w, t);
        float s[4][4], ds[4][4], weight;
        grad_products(s, ds, sh->stage, &j, &w, &p, w.head, w.first, rows);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                weigh(&weight, &ds[i][k], &j.a, s[i][k], ds[i][k], lse[i], own[i]);
        put_weights(sh, ds);
        gather_tile(o, sh, &j, &w, &p, p.k, rows);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4 && 4 * ty + i < rows; i++) {
        size_t row = (size_t)w.s->begin + w.first + 4 * ty + i;
        float *dq = j.a.dq + row * j.a.ldq + (size_t)w.head * j.a.hd;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t d = w.slice * SLICE + element_of(k);
            if (d < j.a.hd)
                dq[d] = o[i][k];
        }
    }
}

typedef struct key_shared {
    float stage[STAGE_FLOATS];
    float p[TILE][TILE_LD]; /* [row][position] */
} key_shared;

/* Rows begin .. end - 1 that add to a position of the sequence: whole blocks of GRAD_BLOCK, in
 * which rows that do not see the position add products with 0. */
typedef struct touched {
    uint32_t begin, end;
} touched;

FMC_DEVICE touched rows_touching(const whole_job *j, const place *w, const positions *p, uint32_t i)
{
    uint32_t at = p->first + fmc_least(i, p->n - 1), len = w->s->len;
    touched t = {0, len};
    if (p->is_virtual || j->a.encoder)
        return t;
    t.begin = at / GRAD_BLOCK * GRAD_BLOCK;
    if (w->window && len - at > w->window) /* own_first(block's first row) <= at */
        t.end = fmc_least(len, (at + w->window - 1) / GRAD_BLOCK * GRAD_BLOCK + GRAD_BLOCK);
    return t;
}

/* o[position][..] += sum over the tile's rows ascending of weight times src (dout or q). */
FMC_DEVICE void spread_tile(float o[4][8], key_shared *sh, const touched t[4], const float *src,
                            size_t ld, uint32_t first, uint32_t rows, uint32_t width, bool all)
{
    uint32_t ty = threadIdx.x / 16;
    for (uint32_t at = 0; at < rows; at += STEP) {
        uint32_t some = fmc_least(STEP, rows - at);
        __syncthreads();
        stage_slice(sh->stage, src + at * ld, ld, some, width);
        __syncthreads();
        for (uint32_t r = 0; r < some; r++) {
            bool use[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                use[i] = all || (first + at + r >= t[i].begin && first + at + r < t[i].end);
            add_line(o, &sh->p[at + r][4 * ty], sh->stage + r * SLICE_LD, all ? NULL : use);
        }
    }
    __syncthreads();
}

FMC_DEVICE void put_rows(key_shared *sh, const float e[4][4])
{
    uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        *(float4 *)&sh->p[4 * ty + i][4 * tx] = make_float4(e[i][0], e[i][1], e[i][2], e[i][3]);
}

/* Adds the shares of rows first .. to the tile's positions. */
FMC_DEVICE void spread_rows(float dk[4][8], float dv[4][8], key_shared *sh, const whole_job *j,
                            const place *w, const positions *p, const touched t[4], uint32_t head,
                            uint32_t first)
{
    uint32_t rows = fmc_least(TILE, w->s->len - first), ty = threadIdx.x / 16;
    uint32_t tx = threadIdx.x % 16, width = fmc_least(SLICE, j->a.hd - w->slice * SLICE);
    size_t row0 = (size_t)w->s->begin + first, ldo = (size_t)j->a.nh * j->a.hd;
    size_t at = (size_t)head * j->a.hd + w->slice * SLICE;
    bool all = all_see(j, w, p, first, first + rows - 1);
    float lse[4], own[4], s[4][4], ds[4][4];
    row_state(lse, own, j, w, head, first, rows);
    grad_products(s, ds, sh->stage, j, w, p, head, first, rows);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            weigh(&s[i][k], &ds[i][k], &j->a, s[i][k], ds[i][k], lse[i], own[i]);
            if (!sees(j, w, p, first + 4 * ty + i, 4 * tx + k))
                s[i][k] = ds[i][k] = 0.0f;
        }
    put_rows(sh, s);
    spread_tile(dv, sh, t, j->a.dout + row0 * ldo + at, ldo, first, rows, width, all);
    put_rows(sh, ds);
    spread_tile(dk, sh, t, j->a.q + row0 * j->a.ldq + at, j->a.ldq, first, rows, width, all);
}

FMC_DEVICE void put_sums(float *dst, size_t ld, const whole_job *j, const place *w,
                         const positions *p, const float o[4][8])
{
    uint32_t ty = threadIdx.x / 16;
#pragma unroll
    for (uint32_t i = 0; i < 4 && 4 * ty + i < p->n; i++)
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t d = w->slice * SLICE + element_of(k);
            if (d < j->a.hd)
                dst[(4 * ty + i) * ld + d] = o[i][k];
        }
}

__global__ void __launch_bounds__(256) k_self_attention_dkv(whole_job j)
{
    FMC_SHARED(key_shared, sh, [1]);
    place w = open_place(&j, j.a.nkv);
    uint32_t group = j.a.nh / j.a.nkv, ty = threadIdx.x / 16;
    positions p = positions_at(&j, &w, w.first);
    float dk[4][8], dv[4][8];
    touched t[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        t[i] = rows_touching(&j, &w, &p, 4 * ty + i);
    uint32_t begin = rows_touching(&j, &w, &p, 0).begin;
    uint32_t end = rows_touching(&j, &w, &p, p.n - 1).end;
    clear_sums(dk);
    clear_sums(dv);
    for (uint32_t h = 0; h < group; h++)
        for (uint32_t first = begin / TILE * TILE; first < end; first += TILE)
            spread_rows(dk, dv, sh, &j, &w, &p, t, w.head * group + h, first);
    if (p.is_virtual) {
        size_t ld = (size_t)j.a.nkv * j.a.hd, at = p.first * ld + (size_t)w.head * j.a.hd;
        float *part = j.virtual_grad + j.virtual_at[w.s - j.seq];
        put_sums(part + at, ld, &j, &w, &p, dk);
        put_sums(part + w.s->virt * ld + at, ld, &j, &w, &p, dv);
    } else {
        size_t at = (w.s->begin + p.first) * j.a.ldk + (size_t)w.head * j.a.hd;
        put_sums(j.a.dk + at, j.a.ldk, &j, &w, &p, dk);
        put_sums(j.a.dv + at, j.a.ldk, &j, &w, &p, dv);
    }
}

/* dvk, dvv += each sequence's part, ascending. */
__global__ void k_attention_virtual(const fm_train_seq *seq, uint32_t seqs, const float *grad,
                                    const uint64_t *at, size_t ld, size_t n)
{
    for (size_t i = fmc_index(); i < n; i += fmc_stride())
        for (uint32_t q = 0; q < seqs; q++) {
            const fm_train_seq *s = seq + q;
            const float *part = grad + at[q];
            size_t some = s->virt * ld;
            if (i < some && s->dvk)
                s->dvk[i] = s->dvk[i] + part[i];
            if (i < some && s->dvv)
                s->dvv[i] = s->dvv[i] + part[some + i];
        }
}

void fmc_attention_virtual(fmc_device *d, const fm_train_seq *seq, uint32_t seqs, const float *grad,
                           const uint64_t *at, size_t ld, size_t most)
{
    if (most > 0)
        FMC_RUN(d, k_attention_virtual, fmc_blocks(most, FMC_THREADS), FMC_THREADS, 0, seq, seqs,
                grad, at, ld, most);
}

/* ---- the call ---- */

static bool virtual_trains(const fm_train_seq *s)
{
    return s->virt > 0 && (s->dvk || s->dvv);
}

/* The lists of some of the sequences, on the host, later on the device. */
typedef struct lists {
    seq_tile *row, *pos;
    uint64_t *virtual_at;
    size_t rows, positions, virtual_floats, virtual_most;
    uint32_t first, row_end; /* rows of the part */
} lists;

static size_t tiles_of(uint32_t n)
{
    return (n + TILE - 1) / TILE;
}

/* Long tiles first within a sequence. */
static void fill_lists(lists *l, const fm_attn_train *a, const fm_train_seq *seq, uint32_t n)
{
    size_t ld = (size_t)a->nkv * a->hd;
    for (uint32_t i = 0; i < n; i++) {
        const fm_train_seq *s = &seq[i];
        bool trains = virtual_trains(s);
        uint32_t v = (uint32_t)tiles_of(s->virt), own = (uint32_t)tiles_of(s->len);
        for (uint32_t t = own; t-- > 0;)
            l->row[l->rows++] = {i, t * TILE};
        for (uint32_t t = trains && own ? 0 : v; t < v + own; t++)
            l->pos[l->positions++] = {i, t};
        l->virtual_at[i] = l->virtual_floats;
        l->virtual_floats += trains ? 2 * s->virt * ld : 0;
        if (trains && s->virt * ld > l->virtual_most)
            l->virtual_most = s->virt * ld;
    }
}

static size_t list_bytes(const fm_train_seq *s)
{
    size_t tiles = 2 * tiles_of(s->len) + tiles_of(s->virt);
    return tiles * sizeof(seq_tile) + sizeof(uint64_t) + sizeof(fm_train_seq);
}

static void run_forward(fmc_device *d, const whole_job *j, const lists *l)
{
    FMC_RUN(d, k_self_attention, (unsigned)(l->rows * j->a.nh * j->slices), 256, 0, *j);
}

static void run_grad(fmc_device *d, whole_job *j, const lists *l)
{
    size_t heads = (size_t)j->a.rows * j->a.nh;
    size_t bytes = (heads + l->virtual_floats) * sizeof(float);
    j->own = (float *)fmc_scratch_get(d, FMC_SCRATCH_ATTENTION, bytes);
    j->virtual_grad = j->own + heads;
    FMC_RUN(d, k_attention_own, fmc_blocks(heads, FMC_THREADS / FMC_LANES), FMC_THREADS, 0, *j);
    FMC_RUN(d, k_self_attention_dq, (unsigned)(l->rows * j->a.nh * j->slices), 256, 0, *j);
    j->tile += l->rows; /* tiles of positions */
    FMC_RUN(d, k_self_attention_dkv, (unsigned)(l->positions * j->a.nkv * j->slices), 256, 0, *j);
    fmc_attention_virtual(d, j->seq, j->a.seqs, j->virtual_grad, j->virtual_at,
                          (size_t)j->a.nkv * j->a.hd, l->virtual_most);
}

/* Runs sequences seq .. seq + n - 1 of the call, whose lists fit into one copy of arguments. */
static void run_part(fmc_device *d, const fm_attn_train *a, const fm_train_seq *seq, uint32_t n,
                     size_t bytes, bool grad)
{
    whole_job j = {};
    lists l = {};
    size_t row_tiles = 0, pos_tiles = 0;
    for (uint32_t i = 0; i < n; i++) {
        row_tiles += tiles_of(seq[i].len);
        pos_tiles += tiles_of(seq[i].len) + tiles_of(seq[i].virt);
    }
    unsigned char *host = (unsigned char *)fmc_take(bytes);
    if (!host) {
        fmc_stick(d, FM_ENOMEM, "self_attention: out of memory");
        return;
    }
    size_t seq_bytes = n * sizeof *seq, at_bytes = n * sizeof(uint64_t);
    memcpy(host, seq, seq_bytes);
    l.virtual_at = (uint64_t *)(host + seq_bytes);
    l.row = (seq_tile *)(host + seq_bytes + at_bytes);
    l.pos = l.row + row_tiles;
    fill_lists(&l, a, seq, n);
    const unsigned char *dev = (const unsigned char *)fmc_args(d, host, bytes);
    fmc_release(host);
    j.a = *a;
    j.a.seqs = n;
    j.slices = (a->hd + SLICE - 1) / SLICE;
    j.seq = (const fm_train_seq *)dev;
    j.virtual_at = (const uint64_t *)(dev + seq_bytes);
    if (l.rows == 0 || d->failed != FM_OK)
        return;
    j.tile = (const seq_tile *)(dev + seq_bytes + at_bytes);
    if (!grad)
        run_forward(d, &j, &l);
    else
        run_grad(d, &j, &l);
}

static void whole(fm_backend *be, const fm_attn_train *a, bool grad)
{
    fmc_device *d = fmc_of(be);
    if (a->nkv == 0 || a->nh % a->nkv != 0 || a->hd == 0 || a->hd > FM_K_BLOCK) {
        fmc_stick(d, FM_EUNSUPPORTED, "self_attention: heads of 1 to 512 elements are supported");
        return;
    }
    for (uint32_t i = 0, n; i < a->seqs; i += n) {
        size_t bytes = 0;
        for (n = 0; i + n < a->seqs; n++) {
            size_t more = list_bytes(&a->seq[i + n]);
            if (n > 0 && bytes + more > FMC_ARGS_MAX / 2)
                break;
            bytes += more;
        }
        run_part(d, a, a->seq + i, n, bytes, grad);
    }
}

void fmc_op_self_attention(fm_backend *be, const fm_attn_train *a)
{
    whole(be, a, false);
}

void fmc_op_self_attention_grad(fm_backend *be, const fm_attn_train *a)
{
    whole(be, a, true);
}
