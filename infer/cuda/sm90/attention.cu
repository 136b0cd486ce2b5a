/* attention.cu - prefill of mode fast on Hopper: every sum in the order of cuda/mma/attention.cu,
 * by wgmma, whose second operands are pages as bulk copies load them.
 *
 * A block has the query rows of one aligned window of rows and a group's heads, run by run: 64 for
 * each of two warpgroups (three where the head has up to 64 elements); one warp of a further
 * warpgroup loads tiles of 64 positions. A warpgroup starts the next tile's scores before it adds
 * this one's values, so its exponentials overlap the tensor cores' work and the other warpgroups'
 * products. Merged parts stay in shared memory, each thread's own.
 *
 * No document states how wgmma rounds inside. So before a kernel is first used, its results on data
 * that distinguish roundings are compared with k_fast_attention's, and it is used only if no bit
 * differs. FMSTORE_CUDA_WIDE=0 uses none. */
#include "infer/cuda/mma/paged.h"
#include "infer/cuda/sm90/wide.h"

#include <string.h>

template <int HD> struct wide_tiles {
    static constexpr uint32_t groups = HD <= 64 ? 3 : 2; /* warpgroups that multiply */
    static constexpr uint32_t threads = (groups + 1) * 128;
    static constexpr uint32_t registers = HD <= 64 ? 160 : 240; /* registers of their threads */
    static constexpr uint32_t others = HD <= 64 ? 32 : 24;
    static constexpr uint32_t rows = groups * 64;
    static constexpr uint32_t positions = tiles<HD>::positions;
    static constexpr uint32_t of_split = FMC_SPLIT / positions;
    static constexpr uint32_t matrix = positions * HD * 2;
    static constexpr uint32_t stage = 2 * matrix + positions * 4; /* keys, values, scales */
    static constexpr uint32_t stages = HD <= 64 ? 6 : 4;
    static constexpr uint32_t kept = groups * 128 * HD * 2; /* merged parts */
    static constexpr uint32_t bars = stages * stage + kept;
    static constexpr uint32_t bytes = bars + sizeof(fmc_ring_bars) + 16;
    static_assert(positions == 64 && stage % 128 == 0 && bytes <= FMC_SHARED_90, "tiles");
    static_assert(fmc_registers_fit(groups, others, registers), "registers");
};

/* ---- work items ---- */

/* The block's window of rows, and the current run in it. */
typedef struct wide_window {
    uint32_t at, end;
    uint32_t part;
} wide_window;

FMC_DEVICE wide_window open_window(fast_unit *u, const fast_job *j)
{
    uint32_t at = blockIdx.x, group = j->a.nh / j->a.nkv;
    uint32_t windows = (j->a.m + j->most - 1) / j->most;
    wide_window w;
    w.part = at % j->group_parts;
    at /= j->group_parts;
    u->kv_head = at % j->a.nkv;
    w.at = (windows - 1 - at / j->a.nkv) * j->most; /* long ones first */
    w.end = fmc_least(w.at + j->most, j->a.m);
    u->head = u->kv_head * group + w.part * j->heads;
    u->heads = fmc_least(j->heads, group - w.part * j->heads);
    u->block = 0;
    return w;
}

/* Finds the next run with enough rows; false: there is none. */
FMC_DEVICE bool next_unit(fast_unit *u, wide_window *w, const fast_job *j)
{
    while (w->at < w->end) {
        uint32_t rows = fmc_run_length(&j->a, w->at, w->end);
        u->row = w->at;
        w->at += rows;
        if (rows * j->heads < j->at_least)
            continue;
        u->n = rows * u->heads;
        u->table = j->a.table + (size_t)j->a.seq[u->row] * j->a.table_stride;
        u->first = fmc_first_position((uint32_t)j->a.pos[u->row], j->a.window);
        u->last = (uint32_t)j->a.pos[u->row + rows - 1];
        return true;
    }
    return false;
}

/* ---- the warp that loads tiles ---- */

/* Begins all copies of a tile; pages that no row of the work item sees are not loaded. */
template <int HD>
FMC_DEVICE void bring_tile(unsigned char *to, const fast_job *j, const fast_unit *u, uint32_t tile,
                           uint64_t *bar)
{
    typedef wide_tiles<HD> T;
    uint32_t lane = threadIdx.x % 32, hdp = padded_head(j->a.hd), pages = 0;
    uint32_t begin = tile * (T::positions / FM_KV_PAGE);
    for (uint32_t i = 0; i < T::positions / FM_KV_PAGE; i++)
        pages += begin + i >= u->first / FM_KV_PAGE && begin + i <= u->last / FM_KV_PAGE;
    if (lane == 0)
        fmc_barrier_expect(bar, pages * (hdp * FM_KV_PAGE * 4 + FM_KV_PAGE * 4));
    __syncwarp();
    /* Lanes 0 .. 7 load eight positions of keys each, 8 .. 15 of values, 16, 17 a page's scales. */
    uint32_t eight = lane % 8, page = begin + (lane < 16 ? eight / 4 : eight);
    if (lane >= 18 || page < u->first / FM_KV_PAGE || page > u->last / FM_KV_PAGE)
        return;
    size_t at = page_at(j, u, page);
    const unsigned char *from = (const unsigned char *)(lane / 8 == 1 ? j->a.kv.v : j->a.kv.k) + at;
    if (lane < 16)
        fmc_bulk_copy(to + lane / 8 * T::matrix + eight * HD * 16, from + eight % 4 * hdp * 16,
                      hdp * 16, bar);
    else
        fmc_bulk_copy(to + 2 * T::matrix + eight * FM_KV_PAGE * 4, from + hdp * FM_KV_PAGE * 2,
                      FM_KV_PAGE * 4, bar);
}

/* Sets values of positions that no row of the work item sees to 0; their weights are 0 too. */
template <int HD>
FMC_DEVICE void clear_values(unsigned char *values, const fast_unit *u, uint32_t first)
{
    for (uint32_t i = threadIdx.x % 32; i < wide_tiles<HD>::positions * (HD / 8); i += 32) {
        uint32_t p = i / (HD / 8), c = i % (HD / 8);
        if (first + p < u->first || first + p > u->last)
            *(uint4 *)(values + line_at(p, c, HD)) = make_uint4(0, 0, 0, 0);
    }
    fmc_async_fence();
    __syncwarp();
}

/* edge: a barrier for tiles that must be cleared before they are passed on, and its parity. */
template <int HD>
FMC_DEVICE void bring_tiles(unsigned char *shared, fmc_ring_bars *ring, uint64_t *edge,
                            const fast_job *j)
{
    typedef wide_tiles<HD> T;
    fast_unit u;
    wide_window w = open_window(&u, j);
    fmc_turn turn = {0, 0};
    uint32_t parity = 0;
    while (next_unit(&u, &w, j))
        for (uint32_t tile = u.first / T::positions; tile <= u.last / T::positions; tile++) {
            uint32_t first = tile * T::positions;
            unsigned char *to = shared + turn.stage * T::stage;
            fmc_ring_wait_empty(ring, turn);
            if (first >= u.first && first + T::positions - 1 <= u.last) {
                bring_tile<HD>(to, j, &u, tile, &ring->full[turn.stage]);
            } else {
                bring_tile<HD>(to, j, &u, tile, edge);
                fmc_barrier_wait(edge, parity);
                parity ^= 1u;
                clear_values<HD>(to + T::matrix, &u, first);
                if (threadIdx.x % 32 == 0)
                    fmc_barrier_arrive(&ring->full[turn.stage]);
            }
            fmc_turn_next(&turn, T::stages);
        }
}

/* ---- warpgroups that multiply ---- */

template <int HD> struct walker {
    part<HD> sum;
    lines16<HD, true> lines;
    float s[wide_tiles<HD>::positions / 2];
    query q[2];
    unsigned char *shared;
    fmc_ring_bars *ring;
    fmc_turn turn;
    float4 *kept;           /* this thread's merged parts: columns 8 n .. of both rows at 128 n */
    uint32_t split, before; /* split: the current one; before: stage of the values being added */
    bool busy;              /* values are being added */
};

/* Starts s = products with the stage's keys, once those have arrived. */
template <int HD> FMC_DEVICE void begin_scores(walker<HD> *w, fmc_turn at)
{
    typedef wide_tiles<HD> T;
    fmc_ring_wait_full(w->ring, at);
    uint64_t keys = fmc_matrix(w->shared + at.stage * T::stage, 128, HD * 16);
#pragma unroll
    for (uint32_t i = 0; i < T::positions / 2; i++)
        w->s[i] = 0.0f;
    fmc_sm90_fence();
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
        fmc_sm90<T::positions, true, false>(w->s, w->lines.f[k], keys + 16 * k);
    fmc_sm90_commit();
}

/* Starts o, l += weights p times the stage's values, and times ones. */
template <int HD>
FMC_DEVICE void begin_values(walker<HD> *w, const uint32_t (&p)[4][4], fmc_turn at)
{
    typedef wide_tiles<HD> T;
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    uint64_t values = fmc_matrix(w->shared + at.stage * T::stage + T::matrix, HD * 16, 128);
    fmc_sm90_fence();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        fmc_sm90<HD, false, true>(w->sum.o, p[k], values + 2 * HD * k);
    fmc_sm90_commit();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        fmc_mma_bf16(w->sum.l, p[k], ones);
}

/* Merges a split's part, whose maxima were m, with those kept; stores out after the last one. */
template <int HD>
FMC_DEVICE void keep_part(walker<HD> *w, const fast_job *j, uint32_t split, const float m[2])
{
    const part<HD> *s = &w->sum;
    uint32_t t = threadIdx.x % 4, hd = j->a.hd;
    float f[2] = {0.0f, 0.0f}, g[2] = {1.0f, 1.0f}, inverse[2];
    bool begins[2], sees[2], ends[2];
    float *out[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        query *q = &w->q[i];
        sees[i] = q->lo <= q->hi && q->lo / FMC_SPLIT <= split && q->hi / FMC_SPLIT >= split;
        begins[i] = split == q->lo / FMC_SPLIT;
        ends[i] = sees[i] && split == q->hi / FMC_SPLIT;
        out[i] = j->a.out + q->row * j->a.ldo + (size_t)q->head * hd;
        if (sees[i] && begins[i]) {
            q->m = m[i];
            q->l = s->l[2 * i];
        } else if (sees[i]) {
            merge_factors(&q->m, &q->l, m[i], s->l[2 * i], &f[i], &g[i]);
        }
        inverse[i] = 1.0f / q->l;
    }
#pragma unroll
    for (uint32_t n = 0; n < HD / 8; n++) {
        float4 old = w->kept[128 * n];
        float v[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            uint32_t i = e / 2, d = 8 * n + 2 * t + e % 2;
            float o = s->o[4 * n + e];
            o = begins[i] ? o : fmaf(o, g[i], v[e] * f[i]);
            v[e] = sees[i] ? o : v[e];
            if (ends[i] && d < hd)
                out[i][d] = fmaf(o, inverse[i], 0.0f);
        }
        w->kept[128 * n] = make_float4(v[0], v[1], v[2], v[3]);
    }
}

/* Waits until the values are added; then their stage may be filled again. */
template <int HD> FMC_DEVICE void settle(walker<HD> *w)
{
    fmc_sm90_wait<0>();
    fmc_sm90_there(w->sum.o);
}

/* Turns the tile's finished scores into weights p; the values of the tile before are added and its
 * stage is released. */
template <int HD>
FMC_DEVICE void weigh_tile(uint32_t (&p)[4][4], walker<HD> *w, const fast_job *j, uint32_t tile)
{
    typedef wide_tiles<HD> T;
    const unsigned char *scales = w->shared + w->turn.stage * T::stage + 2 * T::matrix;
    uint32_t at = tile * T::positions;
    float f[2];
    bool all = true;
    finish_scores<HD>(w->s, scales, w->q, j->a.softcap);
#pragma unroll
    for (int i = 0; i < 2; i++)
        all = all && w->q[i].lo <= at && w->q[i].hi >= at + T::positions - 1;
    if (!__all_sync(0xffffffffu, all))
        hide_scores<HD>(w->s, w->q, at);
    bool new_split = tile / T::of_split != w->split;
    float m[2] = {w->sum.m[0], w->sum.m[1]};
    if (new_split)
        w->sum.m[0] = w->sum.m[1] = -INFINITY;
    weigh_scores<HD>(&w->sum, w->s, f);
    fmc_sm90_there(w->s); /* the weights are computed before the wait */
    settle(w);
    if (w->busy)
        fmc_ring_release(w->ring, w->before);
    if (new_split) {
        keep_part(w, j, w->split, m);
        clear_sums(&w->sum);
        w->split = tile / T::of_split;
    }
    if (__any_sync(0xffffffffu, f[0] != 1.0f || f[1] != 1.0f))
        scale_part<HD>(&w->sum, f);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        weights_operand(p[k], w->s, k);
}

/* Walks tiles begin .. end, which some row of the warpgroup sees. */
template <int HD>
FMC_DEVICE void walk_tiles(walker<HD> *w, const fast_job *j, uint32_t begin, uint32_t end)
{
    typedef wide_tiles<HD> T;
    uint32_t p[4][4];
    w->split = begin / T::of_split;
    w->busy = false;
    begin_scores(w, w->turn);
    fmc_sm90_wait<0>();
    fmc_sm90_there(w->s);
    clear_part(&w->sum);
    for (uint32_t tile = begin; tile < end; tile++) {
        fmc_turn now = w->turn;
        weigh_tile(p, w, j, tile);
        fmc_turn_next(&w->turn, T::stages);
        begin_scores(w, w->turn);
        begin_values(w, p, now);
        fmc_sm90_wait<1>();
        fmc_sm90_there(w->s);
        w->before = now.stage;
        w->busy = true;
    }
    weigh_tile(p, w, j, end);
    begin_values(w, p, w->turn);
    settle(w);
    fmc_ring_release(w->ring, w->turn.stage);
    fmc_turn_next(&w->turn, T::stages);
    keep_part(w, j, w->split, w->sum.m);
}

/* Releases tiles that no row of the warpgroup sees. */
template <int HD> FMC_DEVICE void pass_tiles(walker<HD> *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fmc_ring_wait_full(w->ring, w->turn);
        fmc_ring_release(w->ring, w->turn.stage);
        fmc_turn_next(&w->turn, wide_tiles<HD>::stages);
    }
}

template <int HD>
FMC_DEVICE void walk_units(unsigned char *shared, fmc_ring_bars *ring, const fast_job *j)
{
    typedef wide_tiles<HD> T;
    uint32_t group = threadIdx.x / 128, first_row = group * 64;
    uint32_t r = first_row + threadIdx.x % 128 / 32 * FMC_WARP_ROWS + threadIdx.x % 32 / 4;
    fast_unit u;
    wide_window window = open_window(&u, j);
    walker<HD> w;
    w.shared = shared;
    w.ring = ring;
    w.turn = {0, 0};
    w.kept = (float4 *)(shared + T::stages * T::stage) + group * 128 * (HD / 8) + threadIdx.x % 128;
    while (next_unit(&u, &window, j)) {
        uint32_t begin = u.first / T::positions, end = u.last / T::positions;
        if (first_row >= u.n) {
            pass_tiles(&w, end - begin + 1);
            continue;
        }
        uint32_t top = u.row + first_row / u.heads;
        uint32_t low = u.row + (fmc_least(first_row + 64, u.n) - 1) / u.heads;
        uint32_t from = fmc_first_position((uint32_t)j->a.pos[top], j->a.window) / T::positions;
        uint32_t to = (uint32_t)j->a.pos[low] / T::positions;
        w.q[0] = query_at(j, &u, r);
        w.q[1] = query_at(j, &u, r + 8);
        load_queries<HD>(&w.lines, &j->a, w.q);
        pass_tiles(&w, from - begin);
        walk_tiles(&w, j, from, to);
        pass_tiles(&w, end - to);
    }
}

template <int HD>
__global__ void __launch_bounds__(wide_tiles<HD>::threads, 1) k_wide_attention(fast_job j)
{
    typedef wide_tiles<HD> T;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    fmc_ring_bars *ring = (fmc_ring_bars *)(shared + T::bars);
    uint64_t *edge = (uint64_t *)(ring + 1);
    uint32_t of_row = HD / 8, there = padded_head(j.a.hd) / 8;
    if (threadIdx.x == 0) {
        fmc_barrier_init(edge, 1);
        fmc_ring_begin(ring, T::stages, T::groups * 4);
    }
    if (there < of_row) { /* keys beyond the head: no copy writes there */
        for (uint32_t i = threadIdx.x; i < T::stages * T::positions * of_row; i += T::threads) {
            uint32_t p = i / of_row % T::positions, c = i % of_row;
            if (c >= there)
                *(uint4 *)(shared + i / of_row / T::positions * T::stage + line_at(p, c, HD)) =
                    make_uint4(0, 0, 0, 0);
        }
        fmc_async_fence();
    }
    __syncthreads();
    if (threadIdx.x >= T::rows * 2) {
        fmc_registers_less<T::others>();
        if (threadIdx.x < T::rows * 2 + 32)
            bring_tiles<HD>(shared, ring, edge, &j);
    } else {
        fmc_registers_more<T::registers>();
        walk_units<HD>(shared, ring, &j);
    }
}

/* ---- the call ---- */

template <int HD> static void run(fmc_device *d, fast_job *j)
{
    typedef wide_tiles<HD> T;
    j->most = T::rows / j->heads;
    j->at_least = FMC_WARP_ROWS + 1;
    fmc_enter(d);
    if (cudaFuncSetAttribute(k_wide_attention<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)T::bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* reported here, not again at the next launch */
        fmc_stick(d, FM_EUNSUPPORTED, "attention: the device has too little shared memory");
    }
    FMC_RUN(d, (k_wide_attention<HD>), fmc_ceil(j->a.m, j->most) * j->a.nkv * j->group_parts,
            T::threads, T::bytes, *j);
}

/* ---- the check ---- */

#define CHECK_HEADS 2u /* query heads, on one key/value head */
#define CHECK_BEFORE 10u
#define CHECK_ROWS 96u
#define CHECK_POSITIONS (CHECK_BEFORE + CHECK_ROWS)
#define CHECK_PAGES ((CHECK_POSITIONS + FM_KV_PAGE - 1) / FM_KV_PAGE)

/* Device memory of a check. */
typedef struct check_room {
    float *q, *k, *v, *out[2];
    fm_kv_view kv;
    int32_t *table, *slot, *seq, *pos;
    unsigned *differ;
} check_room;

/* Makes keys that differ in their last bits, so that with a scale of 2^14 the last bits of scores
 * decide the weights, and values of very different sizes. */
__global__ void k_attention_telling(check_room r, uint32_t hd)
{
    uint64_t stride = fmc_stride(), i;
    for (i = fmc_index(); i < (uint64_t)CHECK_ROWS * CHECK_HEADS * hd; i += stride)
        r.q[i] = fmc_telling(fmc_hash((uint32_t)i, 1), 4);
    for (i = fmc_index(); i < (uint64_t)CHECK_POSITIONS * hd; i += stride) {
        uint32_t h = fmc_hash((uint32_t)i, 2);
        r.k[i] = fmc_telling(fmc_hash((uint32_t)(i % hd), 3), 4) *
                 (1.0f + ((float)(h % 5) - 2.0f) * 0x1p-10f);
        r.v[i] = fmc_telling(h, 24);
    }
    for (i = fmc_index(); i < CHECK_POSITIONS; i += stride)
        r.slot[i] = (int32_t)i;
    for (i = fmc_index(); i < CHECK_PAGES; i += stride)
        r.table[i] = (int32_t)i;
    for (i = fmc_index(); i < CHECK_ROWS; i += stride) {
        r.seq[i] = 0;
        r.pos[i] = (int32_t)(CHECK_BEFORE + i);
    }
}

__global__ void k_attention_differ(check_room r, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride())
        if (__float_as_uint(r.out[0][i]) != __float_as_uint(r.out[1][i]))
            (void)atomicOr(r.differ, 1u);
}

static fm_attn check_call(const check_room *r, uint32_t hd, float *out)
{
    fm_attn a = {};
    a.out = out;
    a.q = r->q;
    a.ldo = a.ldq = (size_t)CHECK_HEADS * hd;
    a.kv = r->kv;
    a.table = r->table;
    a.table_stride = CHECK_PAGES;
    a.seq = r->seq;
    a.pos = r->pos;
    a.m = CHECK_ROWS;
    a.nh = CHECK_HEADS;
    a.nkv = 1;
    a.hd = hd;
    a.scale = 0x1p14f;
    return a;
}

template <int HD> static bool compare(fmc_device *d, const check_room *r)
{
    const uint64_t all = (uint64_t)CHECK_ROWS * CHECK_HEADS * HD;
    fm_attn mine = check_call(r, HD, r->out[0]), plain = check_call(r, HD, r->out[1]);
    fast_job j = fmc_attention_job(&mine);
    unsigned differ = 1;
    if (cudaMemsetAsync(r->differ, 0, sizeof *r->differ, d->stream) != cudaSuccess)
        return false;
    FMC_RUN(d, k_attention_telling, 64, FMC_THREADS, 0, *r, HD);
    d->be.kv_write(&d->be, r->kv, r->k, HD, r->v, HD, r->slot, CHECK_POSITIONS, 1, HD);
    run<HD>(d, &j);
    fmc_plain_attention(d, &plain);
    FMC_RUN(d, k_attention_differ, fmc_blocks(all, FMC_THREADS), FMC_THREADS, 0, *r, all);
    return d->failed == FM_OK &&
           cudaMemcpyAsync(&differ, r->differ, sizeof differ, cudaMemcpyDeviceToHost, d->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(d->stream) == cudaSuccess && differ == 0;
}

static unsigned char *take(unsigned char **at, size_t bytes)
{
    unsigned char *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

template <int HD> static fmc_verdict check(fmc_device *d)
{
    const size_t of_q = CHECK_ROWS * CHECK_HEADS * HD * 4, of_k = CHECK_POSITIONS * HD * 4;
    const size_t pages = CHECK_PAGES * d->be.kv_page_bytes(&d->be, 1, HD);
    unsigned char *room = NULL, *at;
    check_room r;
    fmc_enter(d);
    if (cudaMalloc((void **)&room, 3 * of_q + 2 * of_k + 2 * pages + 8192) != cudaSuccess) {
        (void)cudaGetLastError();
        return FMC_UNKNOWN;
    }
    at = room;
    r.q = (float *)(void *)take(&at, of_q);
    r.out[0] = (float *)(void *)take(&at, of_q);
    r.out[1] = (float *)(void *)take(&at, of_q);
    r.k = (float *)(void *)take(&at, of_k);
    r.v = (float *)(void *)take(&at, of_k);
    r.kv = {take(&at, pages), take(&at, pages)};
    r.table = (int32_t *)(void *)take(&at, CHECK_PAGES * 4);
    r.slot = (int32_t *)(void *)take(&at, CHECK_POSITIONS * 4);
    r.seq = (int32_t *)(void *)take(&at, CHECK_ROWS * 4);
    r.pos = (int32_t *)(void *)take(&at, CHECK_ROWS * 4);
    r.differ = (unsigned *)(void *)take(&at, 4);
    fmc_verdict found = fmc_found(d, compare<HD>(d, &r));
    (void)cudaFree(room);
    return found;
}

/* Whether there is a kernel for this head size that may be used. */
static bool may_run(fmc_device *d, bool longer)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    fmc_verdict *v = &f->wide_attention[longer];
    if (!f->wide)
        return false;
    if (*v == FMC_UNKNOWN) {
        if (d->arena) /* a check waits, which a recorded step cannot */
            return false;
        *v = longer ? check<128>(d) : check<64>(d);
    }
    return *v == FMC_EQUAL;
}

bool fmc_sm90_attention(fmc_device *d, fast_job *j)
{
    if (j->parts || j->a.hd <= 32 || j->a.hd > 128 || d->failed != FM_OK ||
        !may_run(d, j->a.hd > 64))
        return false;
    if (j->a.hd > 64)
        run<128>(d, j);
    else
        run<64>(d, j);
    return true;
}
