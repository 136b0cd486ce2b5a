/* attention_train.cu - attention of training in mode bf16 on Hopper: every sum in the order of
 * cuda/mma/attention_train.cu, by wgmma, whose second operands are packs as bulk copies load them.
 *
 * A block has 128 query rows of a head (forward, dq) or 128 positions (dk, dv), 64 for each of two
 * warpgroups; one more warp loads tiles of 64 of the other side. While one warpgroup computes
 * weights, the other multiplies; the forward pass starts the next tile's scores before it adds this
 * one's values. As in attention.cu, a kernel is used only if its bits are the same. */
#include "infer/cuda/mma/whole.h"
#include "infer/cuda/sm90/wide.h"

#define LINES 64u /* lines of a tile */
#define GROUPS 2u
#define BLOCK_ROWS (GROUPS * LINES)
#define THREADS ((GROUPS + 1) * 128)
#define STAGES 4u
#define BRINGS 24 /* registers of threads that load, and of those that multiply */
#define MULTIPLIES 240
static_assert(fmc_registers_fit(GROUPS, BRINGS, MULTIPLIES), "registers");
static_assert(BLOCK_ROWS == FMC_WIDE_KEYS, "lists are made for these");

template <int HD> struct whole_tiles {
    static constexpr uint32_t matrix = LINES * HD * 2;
    static constexpr uint32_t stage = 2 * matrix + 2 * LINES * 4; /* with lse, own */
    static constexpr uint32_t resident = 2 * BLOCK_ROWS * HD * 2; /* for dk, dv: keys, values */
    static constexpr uint32_t bars = resident + STAGES * stage;
    static constexpr uint32_t bytes = bars + sizeof(fmc_ring_bars) + 16;
    static_assert(stage % 128 == 0 && bytes <= FMC_SHARED_90, "tiles");
};

/* A block's shared memory. */
typedef struct block_shared {
    unsigned char *resident, *stages;
    fmc_ring_bars *ring;
    uint64_t *there; /* the resident rows have arrived */
} block_shared;

template <int HD> FMC_DEVICE block_shared open_shared(unsigned char *shared)
{
    typedef whole_tiles<HD> T;
    block_shared s;
    s.resident = shared;
    s.stages = shared + T::resident;
    s.ring = (fmc_ring_bars *)(shared + T::bars);
    s.there = (uint64_t *)(s.ring + 1);
    if (threadIdx.x == 0) {
        fmc_barrier_init(s.there, 1);
        fmc_ring_begin(s.ring, STAGES, GROUPS * 4);
    }
    __syncthreads();
    return s;
}

template <int HD> FMC_DEVICE unsigned char *stage_at(const block_shared *s, fmc_turn at)
{
    return s->stages + at.stage * whole_tiles<HD>::stage;
}

/* Loads rows `first` .. of two packs, and lse and own of query rows (or NULL). */
template <int HD>
FMC_DEVICE void bring_pair(const block_shared *s, fmc_turn at, const unsigned char *a,
                           const unsigned char *b, const float *lse, const float *own)
{
    typedef whole_tiles<HD> T;
    uint64_t *bar = &s->ring->full[at.stage];
    unsigned char *to = stage_at<HD>(s, at);
    fmc_ring_wait_empty(s->ring, at);
    if (threadIdx.x % 32 != 0)
        return;
    fmc_barrier_expect(bar, 2 * T::matrix + (lse ? 2 * LINES * 4 : 0));
    fmc_bulk_copy(to, a, T::matrix, bar);
    fmc_bulk_copy(to + T::matrix, b, T::matrix, bar);
    if (lse) {
        fmc_bulk_copy(to + 2 * T::matrix, lse, LINES * 4, bar);
        fmc_bulk_copy(to + 2 * T::matrix + LINES * 4, own, LINES * 4, bar);
    }
}

template <int HD>
FMC_DEVICE void bring_positions(const block_shared *s, const place *w, const walk *k)
{
    fmc_turn turn = {0, 0};
    for (uint32_t tile = tile_after(k, 0xffffffffu); tile < k->end; tile = tile_after(k, tile)) {
        size_t at = pack_at(tile * LINES, 0, HD);
        bring_pair<HD>(s, turn, w->k + at, w->v + at, NULL, NULL);
        fmc_turn_next(&turn, STAGES);
    }
}

/* ---- warpgroups ---- */

template <int HD> struct row_lines {
    uint32_t f[HD / 16][4];
};

/* Loads the warp's 16 rows of a pack as first operand. */
template <int HD>
FMC_DEVICE void load_rows(row_lines<HD> *l, const unsigned char *pack, uint32_t row)
{
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            l->f[k][i] = *(const uint32_t *)(pack + pack_at(row + i % 2 * 8, 2 * k + i / 2, HD) +
                                             threadIdx.x % 4 * 4);
}

/* s += products with a tile's lines. */
template <int HD>
FMC_DEVICE void multiply_rows(float (&s)[LINES / 2], const row_lines<HD> *l,
                              const unsigned char *tile)
{
    uint64_t b = fmc_matrix(tile, 128, HD * 16);
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
        fmc_sm90<LINES, false, false>(s, l->f[k], b + 16 * k);
}
/* Likewise for 64 lines of a pack in shared memory. */
template <int HD>
FMC_DEVICE void multiply_lines(float (&s)[LINES / 2], const unsigned char *lines,
                               const unsigned char *tile)
{
    uint64_t a = fmc_matrix(lines, 128, HD * 16), b = fmc_matrix(tile, 128, HD * 16);
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
        fmc_sm90_shared<LINES, false, false>(s, a + 16 * k, b + 16 * k);
}
/* o += weights times a tile's lines. */
template <int HD>
FMC_DEVICE void multiply_weights(float (&o)[HD / 2], const uint32_t (&p)[4][4],
                                 const unsigned char *tile)
{
    uint64_t b = fmc_matrix(tile, HD * 16, 128);
#pragma unroll
    for (uint32_t k = 0; k < LINES / 16; k++)
        fmc_sm90<HD, false, true>(o, p[k], b + 2 * HD * k);
}

FMC_DEVICE void clear_scores(float (&s)[LINES / 2])
{
#pragma unroll
    for (uint32_t i = 0; i < LINES / 2; i++)
        s[i] = 0.0f;
}

FMC_DEVICE void pack_weights(uint32_t (&p)[4][4], const float (&s)[LINES / 2])
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        weights_operand(p[k], s, k);
}

/* This thread's first row (or position) in the block; its second one is 8 further on. */
FMC_DEVICE uint32_t first_row(void)
{
    return threadIdx.x / 32 * FMC_WARP_ROWS + threadIdx.x % 32 / 4;
}

/* For a warpgroup without rows: releases tiles as they arrive. */
FMC_DEVICE void pass_tile(const block_shared *s, fmc_turn *turn)
{
    fmc_ring_wait_full(s->ring, *turn);
    fmc_ring_release(s->ring, turn->stage);
    fmc_turn_next(turn, STAGES);
}

/* ---- forward ---- */

template <int HD> struct forward {
    part<HD> sum;
    row_lines<HD> q;
    float s[LINES / 2];
    sight see[2];
    fmc_turn turn;
    uint32_t before; /* stage of the values being added */
    bool busy;       /* values are being added */
};

template <int HD> FMC_DEVICE void begin_scores(forward<HD> *w, const block_shared *s)
{
    fmc_ring_wait_full(s->ring, w->turn);
    clear_scores(w->s);
    fmc_sm90_fence();
    multiply_rows<HD>(w->s, &w->q, stage_at<HD>(s, w->turn));
    fmc_sm90_commit();
}

template <int HD>
FMC_DEVICE void begin_values(forward<HD> *w, const block_shared *s, const uint32_t (&p)[4][4],
                             fmc_turn at)
{
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    fmc_sm90_fence();
    multiply_weights<HD>(w->sum.o, p, stage_at<HD>(s, at) + whole_tiles<HD>::matrix);
    fmc_sm90_commit();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        fmc_mma_bf16(w->sum.l, p[k], ones);
}

/* Turns finished scores into weights; the values of the tile before are added. */
template <int HD>
FMC_DEVICE void weigh_tile(uint32_t (&p)[4][4], forward<HD> *w, const block_shared *s,
                           const soft_job *j, uint32_t at)
{
    float f[2];
    score_tile<LINES / 2>(w->s, &j->a);
    hide_unseen<LINES / 2>(w->s, w->see, at, -INFINITY);
    weigh_scores<HD>(&w->sum, w->s, f);
    fmc_sm90_there(w->s); /* the weights are computed before the wait */
    fmc_sm90_wait<0>();
    fmc_sm90_there(w->sum.o);
    if (w->busy)
        fmc_ring_release(s->ring, w->before);
    if (__any_sync(0xffffffffu, f[0] != 1.0f || f[1] != 1.0f))
        scale_part<HD>(&w->sum, f);
    pack_weights(p, w->s);
}

template <int HD>
FMC_DEVICE void walk_forward(const block_shared *s, const soft_job *j, const place *w,
                             const walk *k)
{
    uint32_t r = w->first + first_row(), tile = tile_after(k, 0xffffffffu), p[4][4];
    forward<HD> x;
    x.see[0] = sight_of(j, w, r);
    x.see[1] = sight_of(j, w, r + 8);
    x.turn = {0, 0};
    x.busy = false;
    load_rows(&x.q, w->q, r);
    clear_part(&x.sum);
    begin_scores(&x, s);
    fmc_sm90_wait<0>();
    fmc_sm90_there(x.s);
    for (uint32_t next; (next = tile_after(k, tile)) < k->end; tile = next) {
        fmc_turn now = x.turn;
        weigh_tile(p, &x, s, j, tile * LINES);
        fmc_turn_next(&x.turn, STAGES);
        begin_scores(&x, s);
        begin_values(&x, s, p, now);
        fmc_sm90_wait<1>();
        fmc_sm90_there(x.s);
        x.before = now.stage;
        x.busy = true;
    }
    weigh_tile(p, &x, s, j, tile * LINES);
    begin_values(&x, s, p, x.turn);
    fmc_sm90_wait<0>();
    fmc_sm90_there(x.sum.o);
    put_rows<HD>(j, w, r, &x.sum);
}

template <int HD> __global__ void __launch_bounds__(THREADS, 1) k_wide_whole(soft_job j)
{
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    block_shared s = open_shared<HD>(shared);
    place w = open_place(&j, blockIdx.x, j.a.nh, 1);
    walk k = walk_of(&j, &w, fmc_least(BLOCK_ROWS, w.s->len - w.first), LINES);
    fmc_turn turn = {0, 0};
    if (threadIdx.x >= GROUPS * 128) {
        fmc_registers_less<BRINGS>();
        if (threadIdx.x < GROUPS * 128 + 32)
            bring_positions<HD>(&s, &w, &k);
        return;
    }
    fmc_registers_more<MULTIPLIES>();
    if (w.first + threadIdx.x / 128 * LINES < w.s->len)
        walk_forward<HD>(&s, &j, &w, &k);
    else
        for (uint32_t t = tile_after(&k, 0xffffffffu); t < k.end; t = tile_after(&k, t))
            pass_tile(&s, &turn);
}

/* ---- dq ---- */

/* Adds the tile's part of dq; p: scratch. */
template <int HD>
FMC_DEVICE void add_dq(float (&dq)[HD / 2], const row_lines<HD> *q, const row_lines<HD> *dout,
                       const unsigned char *keys, const soft_job *j, const sight see[2],
                       const float lse[2], const float own[2], uint32_t at)
{
    float s[LINES / 2], ds[LINES / 2];
    uint32_t p[4][4];
    clear_scores(s);
    clear_scores(ds);
    fmc_sm90_fence();
    multiply_rows<HD>(s, q, keys);
    multiply_rows<HD>(ds, dout, keys + whole_tiles<HD>::matrix);
    fmc_sm90_commit();
    fmc_sm90_wait<0>();
    fmc_sm90_there(s);
    fmc_sm90_there(ds);
    weigh_rows<LINES / 2>(s, ds, &j->a, lse, own);
    hide_unseen<LINES / 2>(ds, see, at, 0.0f);
    pack_weights(p, ds);
    fmc_sm90_fence();
    multiply_weights<HD>(dq, p, keys);
    fmc_sm90_commit();
    fmc_sm90_wait<0>();
    fmc_sm90_there(dq);
}

template <int HD>
FMC_DEVICE void walk_dq(const block_shared *s, const soft_job *j, const place *w, const walk *k)
{
    uint32_t r = w->first + first_row(), len = w->s->len;
    uint32_t top = w->first + threadIdx.x / 128 * LINES;
    sight see[2] = {sight_of(j, w, r), sight_of(j, w, r + 8)};
    sight some = sight_of(j, w, top); /* positions that any row of the warpgroup sees */
    some.hi = sight_of(j, w, fmc_least(top + LINES, len) - 1).hi;
    float dq[HD / 2] = {}, lse[2], own[2];
    row_lines<HD> q, dout;
    fmc_turn turn = {0, 0};
    for (uint32_t i = 0; i < 2; i++) {
        lse[i] = w->lse[r + 8 * i];
        own[i] = w->own[r + 8 * i];
    }
    load_rows(&q, w->q, r);
    load_rows(&dout, w->dout, r);
    for (uint32_t t = tile_after(k, 0xffffffffu); t < k->end; t = tile_after(k, t)) {
        fmc_ring_wait_full(s->ring, turn);
        if (sees_any(&some, t * LINES, LINES))
            add_dq<HD>(dq, &q, &dout, stage_at<HD>(s, turn), j, see, lse, own, t * LINES);
        fmc_ring_release(s->ring, turn.stage);
        fmc_turn_next(&turn, STAGES);
    }
    put_lines<HD>(j->a.dq + w->s->begin * j->a.ldq + (size_t)w->head * j->a.hd, j->a.ldq, r, 0, len,
                  j->a.hd, dq);
}

template <int HD> __global__ void __launch_bounds__(THREADS, 1) k_wide_whole_dq(soft_job j)
{
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    block_shared s = open_shared<HD>(shared);
    place w = open_place(&j, blockIdx.x, j.a.nh, 1);
    walk k = walk_of(&j, &w, fmc_least(BLOCK_ROWS, w.s->len - w.first), LINES);
    fmc_turn turn = {0, 0};
    if (threadIdx.x >= GROUPS * 128) {
        fmc_registers_less<BRINGS>();
        if (threadIdx.x < GROUPS * 128 + 32)
            bring_positions<HD>(&s, &w, &k);
        return;
    }
    fmc_registers_more<MULTIPLIES>();
    if (w.first + threadIdx.x / 128 * LINES < w.s->len)
        walk_dq<HD>(&s, &j, &w, &k);
    else
        for (uint32_t t = tile_after(&k, 0xffffffffu); t < k.end; t = tile_after(&k, t))
            pass_tile(&s, &turn);
}

/* ---- dk, dv ---- */

/* Loads keys and values of the block's positions, then tiles of query rows of the group's heads. */
template <int HD>
FMC_DEVICE void bring_rows(const block_shared *s, const soft_job *j, place *w, const row_walk *k)
{
    typedef whole_tiles<HD> T;
    uint32_t groups = fmc_least((padded_rows(w->all) - w->first) / LINES, GROUPS);
    size_t at = pack_at(w->first, 0, HD);
    fmc_turn turn = {0, 0};
    if (threadIdx.x % 32 == 0) {
        fmc_barrier_expect(s->there, 2 * groups * T::matrix);
        fmc_bulk_copy(s->resident, w->k + at, groups * T::matrix, s->there);
        fmc_bulk_copy(s->resident + GROUPS * T::matrix, w->v + at, groups * T::matrix, s->there);
    }
    __syncwarp();
    for (uint32_t i = 0; i < k->end; i++) {
        uint32_t first = row_tile(w, j, k, i, LINES);
        at = pack_at(first, 0, HD);
        bring_pair<HD>(s, turn, w->q + at, w->dout + at, w->lse + first, w->own + first);
        fmc_turn_next(&turn, STAGES);
    }
}

/* Adds the tile's part of dk and dv. */
template <int HD>
FMC_DEVICE void add_dkv(float (&dk)[HD / 2], float (&dv)[HD / 2], const unsigned char *keys,
                        const unsigned char *rows, const soft_job *j, const rows_seeing by[2],
                        uint32_t first)
{
    typedef whole_tiles<HD> T;
    const float *lse = (const float *)(rows + 2 * T::matrix), *own = lse + LINES;
    float p[LINES / 2], ds[LINES / 2];
    uint32_t pv[4][4], pk[4][4];
    clear_scores(p);
    clear_scores(ds);
    fmc_sm90_fence();
    multiply_lines<HD>(p, keys, rows);
    multiply_lines<HD>(ds, keys + GROUPS * T::matrix, rows + T::matrix);
    fmc_sm90_commit();
    fmc_sm90_wait<0>();
    fmc_sm90_there(p);
    fmc_sm90_there(ds);
    weigh_columns<LINES / 2>(p, ds, &j->a, lse, own);
    hide_rows<LINES / 2>(p, ds, by, first);
    pack_weights(pv, p);
    pack_weights(pk, ds);
    fmc_sm90_fence();
    multiply_weights<HD>(dv, pv, rows + T::matrix);
    multiply_weights<HD>(dk, pk, rows);
    fmc_sm90_commit();
    fmc_sm90_wait<0>();
    fmc_sm90_there(dv);
    fmc_sm90_there(dk);
}

template <int HD>
FMC_DEVICE void walk_dkv(const block_shared *s, const soft_job *j, place *w, const row_walk *k)
{
    uint32_t group = threadIdx.x / 128, at = w->first + first_row();
    uint32_t top = w->first + group * LINES, last = fmc_least(top + LINES, w->all) - 1;
    const rows_seeing by[2] = {rows_of(j, w, at), rows_of(j, w, at + 8)};
    rows_seeing some = {rows_of(j, w, top).lo, rows_of(j, w, last).hi};
    float dk[HD / 2] = {}, dv[HD / 2] = {};
    fmc_turn turn = {0, 0};
    if (top < w->s->virt)
        some.hi = w->s->len;
    fmc_barrier_wait(s->there, 0);
    for (uint32_t i = 0; i < k->end; i++) {
        uint32_t first = (k->begin + i % k->of_head) * LINES;
        fmc_ring_wait_full(s->ring, turn);
        if (first < some.hi && first + LINES > some.lo)
            add_dkv<HD>(dk, dv, s->resident + group * whole_tiles<HD>::matrix,
                        stage_at<HD>(s, turn), j, by, first);
        fmc_ring_release(s->ring, turn.stage);
        fmc_turn_next(&turn, STAGES);
    }
    put_keys<HD>(j, w, at, 0, dk, dv);
}

template <int HD> __global__ void __launch_bounds__(THREADS, 1) k_wide_whole_dkv(soft_job j)
{
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    block_shared s = open_shared<HD>(shared);
    place w = open_place(&j, blockIdx.x, j.a.nkv, 1);
    row_walk k = rows_walk(&j, &w, FMC_WIDE_KEYS, LINES);
    fmc_turn turn = {0, 0};
    if (threadIdx.x >= GROUPS * 128) {
        fmc_registers_less<BRINGS>();
        if (threadIdx.x < GROUPS * 128 + 32)
            bring_rows<HD>(&s, &j, &w, &k);
        return;
    }
    fmc_registers_more<MULTIPLIES>();
    if (w.first + threadIdx.x / 128 * LINES < w.all)
        walk_dkv<HD>(&s, &j, &w, &k);
    else
        for (uint32_t i = 0; i < k.end; i++)
            pass_tile(&s, &turn);
}

/* ---- the calls ---- */

template <class K>
static void launch(fmc_device *d, K kernel, uint32_t bytes, const soft_job *j, unsigned blocks)
{
    fmc_enter(d);
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess) {
        (void)cudaGetLastError(); /* reported here, not again at the next launch */
        fmc_stick(d, FM_EUNSUPPORTED, "self_attention: the device has too little shared memory");
    }
    FMC_RUN(d, kernel, blocks, THREADS, bytes, *j);
}

void fmc_sm90_whole_forward(fmc_device *d, const soft_job *j, unsigned blocks)
{
    if (j->a.hd > 64)
        launch(d, k_wide_whole<128>, whole_tiles<128>::bytes, j, blocks);
    else
        launch(d, k_wide_whole<64>, whole_tiles<64>::bytes, j, blocks);
}

void fmc_sm90_whole_dq(fmc_device *d, const soft_job *j, unsigned blocks)
{
    if (j->a.hd > 64)
        launch(d, k_wide_whole_dq<128>, whole_tiles<128>::bytes, j, blocks);
    else
        launch(d, k_wide_whole_dq<64>, whole_tiles<64>::bytes, j, blocks);
}

void fmc_sm90_whole_dkv(fmc_device *d, const soft_job *j, unsigned blocks)
{
    if (j->a.hd > 64)
        launch(d, k_wide_whole_dkv<128>, whole_tiles<128>::bytes, j, blocks);
    else
        launch(d, k_wide_whole_dkv<64>, whole_tiles<64>::bytes, j, blocks);
}

/* ---- the check ---- */

#define CHECK_ROWS 150u

/* The arrays of a call [CHECK_ROWS, hd], one after another, for both kernels. */
enum { AT_Q, AT_K, AT_V, AT_DOUT, AT_OUT, AT_LSE, AT_DQ, AT_DK, AT_DV, ARRAYS };
#define CHECK_INPUTS 4u

/* Makes keys that differ in their last bits, so that with a scale of 2^10 the last bits of scores
 * decide the weights, and values and gradients of different sizes. */
__global__ void k_wide_whole_telling(float *x, uint32_t of_array, uint32_t hd)
{
    for (uint64_t i = fmc_index(); i < (uint64_t)CHECK_INPUTS * of_array; i += fmc_stride()) {
        uint32_t array = (uint32_t)(i / of_array), at = (uint32_t)(i % of_array);
        uint32_t h = fmc_hash(at, 1 + array);
        if (array == AT_K)
            x[i] =
                fmc_telling(fmc_hash(at % hd, 9), 4) * (1.0f + ((float)(h % 3) - 1.0f) * 0x1p-7f);
        else
            x[i] = fmc_telling(h, array == AT_Q ? 4 : 12);
    }
}

__global__ void k_wide_whole_differ(unsigned *differ, const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = fmc_index(); i < n; i += fmc_stride())
        if (__float_as_uint(a[i]) != __float_as_uint(b[i]))
            (void)atomicOr(differ, 1u);
}

static void check_call(fmc_device *d, float *x, float *result, uint32_t of_array, uint32_t hd,
                       bool wide)
{
    fm_train_seq seq = {};
    fm_attn_train a = {};
    seq.len = CHECK_ROWS;
    a.rows = CHECK_ROWS;
    a.seqs = a.nh = a.nkv = 1;
    a.hd = hd;
    a.scale = 0x1p10f;
    a.seq = &seq;
    a.q = x + AT_Q * of_array;
    a.k = x + AT_K * of_array;
    a.v = x + AT_V * of_array;
    a.dout = x + AT_DOUT * of_array;
    a.ldq = a.ldk = hd;
    a.out = result + (AT_OUT - CHECK_INPUTS) * of_array;
    a.lse = result + (AT_LSE - CHECK_INPUTS) * of_array;
    a.dq = result + (AT_DQ - CHECK_INPUTS) * of_array;
    a.dk = result + (AT_DK - CHECK_INPUTS) * of_array;
    a.dv = result + (AT_DV - CHECK_INPUTS) * of_array;
    fmc_whole_attention(d, &a, false, wide);
    fmc_whole_attention(d, &a, true, wide);
}

static fmc_verdict check(fmc_device *d, uint32_t hd)
{
    const uint32_t of_array = CHECK_ROWS * hd;
    const size_t results = (size_t)(ARRAYS - CHECK_INPUTS) * of_array;
    const size_t floats = (size_t)CHECK_INPUTS * of_array + 2 * results;
    unsigned differ = 1, *differ_at;
    float *room = NULL;
    fmc_enter(d);
    if (cudaMalloc((void **)&room, floats * sizeof(float) + 256) != cudaSuccess) {
        (void)cudaGetLastError();
        return FMC_UNKNOWN;
    }
    float *mine = room + CHECK_INPUTS * of_array, *plain = mine + results;
    differ_at = (unsigned *)(void *)(plain + results);
    bool queued = cudaMemsetAsync(room, 0, floats * sizeof(float) + 256, d->stream) == cudaSuccess;
    FMC_RUN(d, k_wide_whole_telling, 64, FMC_THREADS, 0, room, of_array, hd);
    check_call(d, room, mine, of_array, hd, true);
    check_call(d, room, plain, of_array, hd, false);
    FMC_RUN(d, k_wide_whole_differ, fmc_blocks(results, FMC_THREADS), FMC_THREADS, 0, differ_at,
            mine, plain, (uint64_t)results);
    bool equal = queued && d->failed == FM_OK &&
                 cudaMemcpyAsync(&differ, differ_at, sizeof differ, cudaMemcpyDeviceToHost,
                                 d->stream) == cudaSuccess &&
                 cudaStreamSynchronize(d->stream) == cudaSuccess && differ == 0;
    fmc_verdict found = fmc_found(d, equal);
    (void)cudaFree(room);
    return found;
}

bool fmc_sm90_whole_may(fmc_device *d, uint32_t hd)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    if (!f->wide || hd > 128 || d->failed != FM_OK)
        return false;
    fmc_verdict *v = &f->wide_whole[hd > 64];
    if (*v == FMC_UNKNOWN) {
        if (d->arena) /* a check waits, which a recorded step cannot */
            return false;
        *v = check(d, hd > 64 ? 128 : 64);
    }
    return *v == FMC_EQUAL;
}
