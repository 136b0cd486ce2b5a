/* attention.cu - attention over pages of keys and values, the bits of cpu/kern/attention.h.
 *
 * Two kernels. Scores: a lane is a position, so that a page's keys [hd, 32] are read coalesced, and
 * a thread has up to 16 query rows of one key/value head; positions are split over blocks. Scores
 * go through scratch memory, because the sums over ascending positions need the true maximum first.
 * Mix: a lane is an element of the head, each with one chain of fmaf per query row; one more warp
 * adds the weights. Rows are done in parts that keep scratch memory small. */
#include "infer/cuda/exact/attend.h"
#include "infer/cuda/lanes.h"

#define ROWS 16u /* query rows of a work item: rows of a run times heads of a group */
#define SCORE_WARPS 4u
#define MIX_TILE 64u /* positions */
#define MIX_LD (MIX_TILE + 4u)
#define MIX_WIDTH 64u /* elements of the head for each warp */
#define SCORE_BYTES ((size_t)64 << 20)

typedef struct paged_job {
    fm_attn a;
    float *score;              /* [rows * nh, ld], from the page of the row's first position on */
    uint32_t row0, rows, most; /* row0, rows: of this launch; most: rows of a run at most */
    uint32_t heads, parts;     /* query heads of a work item, items of a key/value head */
    uint32_t splits;           /* blocks that share a work item */
    uint32_t ld, ldq;
} paged_job;

/* A work item: the run of rows and the heads that this block computes. */
typedef struct paged_unit {
    uint32_t row, n;        /* query rows: rows of the run times heads */
    uint32_t kv_head, head; /* first query head */
    uint32_t heads, split;
    const int32_t *table;
} paged_unit;

/* False: another block does this row. The last rows come first, because they are the longest. */
FMC_DEVICE bool open_unit(paged_unit *u, const paged_job *j)
{
    const fm_attn *a = &j->a;
    uint32_t at = blockIdx.x, group = a->nh / a->nkv, part, rows;
    u->split = at % j->splits;
    at /= j->splits;
    part = at % j->parts;
    at /= j->parts;
    u->kv_head = at % a->nkv;
    u->row = j->row0 + j->rows - 1 - at / a->nkv;
    u->head = u->kv_head * group + part * j->heads;
    u->heads = fmc_least(j->heads, group - part * j->heads);
    rows = fmc_run_at(a, u->row, j->most);
    u->n = rows * u->heads;
    u->table = a->table + (size_t)a->seq[u->row] * a->table_stride;
    return rows > 0;
}

/* Where the scores of the item's query row r begin. */
FMC_DEVICE float *score_row(const paged_job *j, const paged_unit *u, uint32_t r)
{
    size_t row = u->row - j->row0 + r / u->heads;
    return j->score + (row * j->a.nh + u->head + r % u->heads) * j->ld;
}

/* Sets the positions that each query row sees, for all threads; the caller adds a barrier. */
FMC_DEVICE void spans(uint32_t *lo, uint32_t *hi, const paged_job *j, const paged_unit *u)
{
    uint32_t r = threadIdx.x;
    if (r < ROWS) {
        uint32_t last = r < u->n ? (uint32_t)j->a.pos[u->row + r / u->heads] : 0;
        lo[r] = r < u->n ? fmc_first_of(&j->a, u->row + r / u->heads) : 1;
        hi[r] = last;
    }
    __syncthreads();
}

/* ---- scores ---- */

/* s[r][p]: chains over d of q[r][d] k[p][d] for this lane's position in each of the pages. */
template <int NQ, int PAGES>
FMC_DEVICE void score_chains(float s[NQ][PAGES], const float *q, uint32_t ldq,
                             const float *const k[PAGES], uint32_t hd)
{
    uint32_t d = 0;
#pragma unroll
    for (int r = 0; r < NQ; r++)
#pragma unroll
        for (int p = 0; p < PAGES; p++)
            s[r][p] = 0.0f;
    for (; d + 4 <= hd; d += 4) {
        float x[4][PAGES];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int p = 0; p < PAGES; p++)
                x[i][p] = k[p][(size_t)(d + i) * FM_KV_PAGE];
#pragma unroll
        for (int r = 0; r < NQ; r++) {
            float4 w = *(const float4 *)(q + r * ldq + d);
#pragma unroll
            for (int p = 0; p < PAGES; p++)
                s[r][p] = fmaf(w.w, x[3][p],
                               fmaf(w.z, x[2][p], fmaf(w.y, x[1][p], fmaf(w.x, x[0][p], s[r][p]))));
        }
    }
    for (; d < hd; d++)
#pragma unroll
        for (int r = 0; r < NQ; r++)
#pragma unroll
            for (int p = 0; p < PAGES; p++)
                s[r][p] = fmaf(q[r * ldq + d], k[p][(size_t)d * FM_KV_PAGE], s[r][p]);
}

/* Scores of the item's pages from `first` to `last`, PAGES at a time to a warp. */
template <int NQ, int PAGES>
FMC_DEVICE void score_pages(const paged_job *j, const paged_unit *u, const float *q,
                            const uint32_t *lo, const uint32_t *hi, uint32_t last)
{
    const fm_attn *a = &j->a;
    uint32_t lane = threadIdx.x % 32, step = j->splits * SCORE_WARPS * PAGES;
    uint32_t page = lo[0] / FM_KV_PAGE + (u->split * SCORE_WARPS + threadIdx.x / 32) * PAGES;
    for (; page <= last; page += step) {
        const float *k[PAGES];
        float s[NQ][PAGES];
#pragma unroll
        for (int p = 0; p < PAGES; p++) {
            size_t at = (size_t)u->table[fmc_least(page + p, last)] * a->nkv + u->kv_head;
            k[p] = (const float *)a->kv.k + at * a->hd * FM_KV_PAGE + lane;
        }
        score_chains<NQ, PAGES>(s, q, j->ldq, k, a->hd);
#pragma unroll
        for (int r = 0; r < NQ; r++) {
            uint32_t from = lo[r] / FM_KV_PAGE, to = hi[r] / FM_KV_PAGE;
#pragma unroll
            for (int p = 0; p < PAGES; p++) {
                float y = s[r][p] * a->scale;
                if ((uint32_t)r >= u->n || page + p < from || page + p > to)
                    continue;
                if (a->softcap > 0.0f)
                    y = a->softcap * fmc_tanh(y / a->softcap);
                score_row(j, u, (uint32_t)r)[(page + p - from) * FM_KV_PAGE + lane] = y;
            }
        }
    }
}

__global__ void __launch_bounds__(SCORE_WARPS * 32) k_attention_scores(paged_job j)
{
    FMC_SHARED_DYNAMIC(float, q);
    FMC_SHARED(uint32_t, lo, [ROWS]);
    FMC_SHARED(uint32_t, hi, [ROWS]);
    paged_unit u;
    if (!open_unit(&u, &j))
        return;
    for (uint32_t i = threadIdx.x; i < u.n * j.a.hd; i += blockDim.x) {
        uint32_t r = i / j.a.hd, d = i % j.a.hd;
        size_t head = u.head + r % u.heads;
        q[r * j.ldq + d] = j.a.q[(u.row + r / u.heads) * j.a.ldq + head * j.a.hd + d];
    }
    spans(lo, hi, &j, &u);
    uint32_t last = hi[u.n - 1] / FM_KV_PAGE;
    if (u.n == 1)
        score_pages<1, 1>(&j, &u, q, lo, hi, last);
    else if (u.n == 2)
        score_pages<2, 1>(&j, &u, q, lo, hi, last);
    else if (u.n <= 4)
        score_pages<4, 1>(&j, &u, q, lo, hi, last);
    else if (u.n <= 8)
        score_pages<8, 2>(&j, &u, q, lo, hi, last);
    else
        score_pages<16, 2>(&j, &u, q, lo, hi, last);
}

/* ---- sums over positions ---- */

typedef struct mix_shared {
    float e[2][ROWS][MIX_LD]; /* weights of a tile of positions, two tiles in turn */
    float max[ROWS], sum[ROWS];
    uint32_t lo[ROWS], hi[ROWS];
} mix_shared;

/* The largest score of each query row, ignoring NaN. */
FMC_DEVICE void mix_max(mix_shared *sh, const paged_job *j, const paged_unit *u)
{
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t r = threadIdx.x / 32; r < u->n; r += blockDim.x / 32) {
        const float *s = score_row(j, u, r);
        uint32_t first = sh->lo[r] % FM_KV_PAGE, end = first + sh->hi[r] - sh->lo[r] + 1;
        float best = -INFINITY;
        for (uint32_t i = first + lane; i < end; i += 32)
            best = fmc_max(s[i], best);
        for (int by = 16; by > 0; by /= 2)
            best = fmc_max(__shfl_xor_sync(0xffffffffu, best, by), best);
        if (j->a.sink)
            best = fmc_max(j->a.sink[u->head + r % u->heads], best);
        if (lane == 0)
            sh->max[r] = best;
    }
    __syncthreads();
}

/* e = exp(s - max) of the tile from position `at` on, 0 where a row does not see it. */
FMC_DEVICE void mix_weights(mix_shared *sh, uint32_t turn, const paged_job *j, const paged_unit *u,
                            uint32_t at)
{
    for (uint32_t i = threadIdx.x; i < u->n * MIX_TILE; i += blockDim.x) {
        uint32_t r = i / MIX_TILE, pos = at + i % MIX_TILE;
        float e = 0.0f;
        if (pos >= sh->lo[r] && pos <= sh->hi[r])
            e = fmc_exp(score_row(j, u, r)[pos - sh->lo[r] / FM_KV_PAGE * FM_KV_PAGE] - sh->max[r]);
        sh->e[turn][r][i % MIX_TILE] = e;
    }
}

/* Sums over a page that every query row sees; e at its first position, rows MIX_LD apart. */
template <int NQ>
FMC_DEVICE void mix_page(float o[NQ][2], const float *e, const float *v, uint32_t hd, uint32_t d0,
                         uint32_t d1)
{
#pragma unroll 2
    for (uint32_t p = 0; p < FM_KV_PAGE; p += 4) {
        float x[4][2];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            x[i][0] = v[(p + i) * hd + d0];
            x[i][1] = v[(p + i) * hd + d1];
        }
#pragma unroll
        for (int r = 0; r < NQ; r++) {
            float4 w = *(const float4 *)(e + r * MIX_LD + p);
#pragma unroll
            for (int i = 0; i < 2; i++)
                o[r][i] = fmaf(w.w, x[3][i],
                               fmaf(w.z, x[2][i], fmaf(w.y, x[1][i], fmaf(w.x, x[0][i], o[r][i]))));
        }
    }
}

/* Sums over positions from .. to of a page, each for the rows that see it. */
template <int NQ>
FMC_DEVICE void mix_edge(float o[NQ][2], const mix_shared *sh, const float *e, const float *v,
                         uint32_t hd, uint32_t d0, uint32_t d1, uint32_t page, uint32_t from,
                         uint32_t to)
{
    for (uint32_t pos = from; pos <= to; pos++) {
        uint32_t p = pos - page * FM_KV_PAGE;
        float x0 = v[p * hd + d0], x1 = v[p * hd + d1];
#pragma unroll
        for (int r = 0; r < NQ; r++)
            if (pos >= sh->lo[r] && pos <= sh->hi[r]) {
                o[r][0] = fmaf(e[r * MIX_LD + p], x0, o[r][0]);
                o[r][1] = fmaf(e[r * MIX_LD + p], x1, o[r][1]);
            }
    }
}

/* Walks all tiles: the last warp adds weights, each other one has MIX_WIDTH elements. */
template <int NQ> FMC_DEVICE void mix_unit(mix_shared *sh, const paged_job *j, const paged_unit *u)
{
    const fm_attn *a = &j->a;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, mixers = blockDim.x / 32 - 1;
    uint32_t d = (u->split * mixers + warp) * MIX_WIDTH + lane;
    uint32_t d0 = fmc_least(d, a->hd - 1), d1 = fmc_least(d + 32, a->hd - 1);
    uint32_t first = sh->lo[0], last = sh->hi[u->n - 1], both_lo = sh->lo[u->n - 1];
    uint32_t both_hi = sh->hi[0], turn = 0;
    float o[NQ][2], sum = 0.0f;
#pragma unroll
    for (int r = 0; r < NQ; r++)
        o[r][0] = o[r][1] = 0.0f;
    if (warp == mixers && lane < u->n && a->sink)
        sum = fmc_exp(a->sink[u->head + lane % u->heads] - sh->max[lane]);
    uint32_t at = first / FM_KV_PAGE * FM_KV_PAGE;
    mix_weights(sh, turn, j, u, at);
    __syncthreads();
    for (; at <= last; at += MIX_TILE, turn ^= 1) {
        if (warp == mixers)
            for (uint32_t p = 0; lane < u->n && p < MIX_TILE; p++)
                sum = sum + sh->e[turn][lane][p];
        for (uint32_t i = 0; warp < mixers && i < MIX_TILE && at + i <= last; i += FM_KV_PAGE) {
            uint32_t from = at + i, to = from + FM_KV_PAGE - 1, page = from / FM_KV_PAGE;
            size_t where = (size_t)u->table[page] * a->nkv + u->kv_head;
            const float *v = (const float *)a->kv.v + where * a->hd * FM_KV_PAGE;
            const float *e = &sh->e[turn][0][i];
            if (from >= both_lo && to <= both_hi)
                mix_page<NQ>(o, e, v, a->hd, d0, d1);
            else
                mix_edge<NQ>(o, sh, e, v, a->hd, d0, d1, page, from > first ? from : first,
                             fmc_least(to, last));
        }
        if (at + MIX_TILE <= last)
            mix_weights(sh, turn ^ 1, j, u, at + MIX_TILE);
        __syncthreads();
    }
    if (warp == mixers && lane < u->n)
        sh->sum[lane] = sum;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < NQ; r++) {
        if (warp == mixers || (uint32_t)r >= u->n)
            continue;
        size_t head = u->head + (uint32_t)r % u->heads;
        float *out = a->out + (u->row + (uint32_t)r / u->heads) * a->ldo + head * a->hd;
        if (d < a->hd)
            out[d] = o[r][0] / sh->sum[r];
        if (d + 32 < a->hd)
            out[d + 32] = o[r][1] / sh->sum[r];
    }
}

__global__ void k_attention_mix(paged_job j)
{
    FMC_SHARED(mix_shared, sh, [1]);
    paged_unit u;
    if (!open_unit(&u, &j))
        return;
    spans(sh->lo, sh->hi, &j, &u);
    mix_max(sh, &j, &u);
    if (u.n == 1)
        mix_unit<1>(sh, &j, &u);
    else if (u.n == 2)
        mix_unit<2>(sh, &j, &u);
    else if (u.n <= 4)
        mix_unit<4>(sh, &j, &u);
    else if (u.n <= 8)
        mix_unit<8>(sh, &j, &u);
    else
        mix_unit<16>(sh, &j, &u);
}

/* ---- the call ---- */

static void attention_part(fmc_device *d, paged_job *j)
{
    const fm_attn *a = &j->a;
    unsigned units = j->rows * a->nkv * j->parts, enough = (unsigned)d->multiprocessors * 8;
    unsigned slices = (a->hd + MIX_WIDTH - 1) / MIX_WIDTH;
    unsigned most = (j->ld / FM_KV_PAGE + SCORE_WARPS - 1) / SCORE_WARPS;
    j->splits = (enough + units - 1) / units;
    j->splits = j->splits > most ? most : j->splits;
    FMC_RUN(d, k_attention_scores, units * j->splits, SCORE_WARPS * 32,
            ROWS * j->ldq * sizeof(float), *j);
    j->splits = units < enough / 4 ? slices : 1;
    FMC_RUN(d, k_attention_mix, units * j->splits, (slices / j->splits + 1) * 32, 0, *j);
}

void fmc_op_attention(fm_backend *be, const fm_attn *a)
{
    fmc_device *d = fmc_of(be);
    paged_job j = {};
    uint32_t pages = a->table_stride;
    if (a->m == 0 || d->failed != FM_OK)
        return;
    if (a->nkv == 0 || a->nh % a->nkv != 0 || a->hd == 0 || a->hd > FM_K_BLOCK) {
        fmc_stick(d, FM_EUNSUPPORTED, "attention: heads of 1 to 512 elements are supported");
        return;
    }
    if (a->window && a->window / FM_KV_PAGE + 2 < pages)
        pages = a->window / FM_KV_PAGE + 2;
    j.a = *a;
    j.ld = pages * FM_KV_PAGE;
    j.ldq = (a->hd + 3) / 4 * 4;
    j.heads = fmc_group_heads(a, ROWS);
    j.parts = fmc_group_parts(a, j.heads);
    j.most = ROWS / j.heads;
    size_t row_bytes = (size_t)a->nh * j.ld * sizeof(float), fit = SCORE_BYTES / row_bytes;
    uint32_t each = fit > a->m ? a->m : (uint32_t)fit / j.most * j.most;
    each = each > 0 ? each : j.most;
    j.score =
        (float *)fmc_scratch_get(d, FMC_SCRATCH_ATTENTION, (each < a->m ? each : a->m) * row_bytes);
    for (; j.row0 < a->m; j.row0 += each) {
        j.rows = each < a->m - j.row0 ? each : a->m - j.row0;
        attention_part(d, &j);
    }
}
