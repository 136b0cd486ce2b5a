/* attention_train.cu - self-attention of whole sequences and its gradient in mode bf16.
 *
 * q, k, v and dout are rounded to bf16, and so are the weights p and their gradients ds as operands
 * of a product; sums, maxima and exponentials are f32. The forward walks positions once, with
 * weights relative to the largest score so far (Milakov and Gimelshein 2018; Dao 2023), and leaves
 * lse, in base 2; the gradient computes scores again, so no memory grows with the square of the
 * length.
 *
 * One order for every sequence, whatever else is in the call: positions (virtual ones first) ascend
 * in tiles of 64 (32 where the head is longer than 128), query rows in tiles of 64 (32 where it is
 * longer than 64), heads of a group one after another; a sum is a chain of mma. dq has a kernel, dk
 * and dv have another, and no sum has two writers. In tiles, hidden positions are products with
 * weight 0: a value that is not finite reaches every row of the sequence.
 *
 * Mode exact's kernels do heads of more than 256 elements. */
#include "infer/cuda/mma/whole.h"

#include <string.h>

#define KEY_WARPS 4u
#define KEY_TILE (KEY_WARPS * FMC_WARP_ROWS) /* positions of a block that computes dk, dv */
#define PACK_BYTES ((size_t)256 << 20)       /* bytes of sequences that run together */

template <int HD> struct train_tiles : tiles<HD> {
    static constexpr bool kept = HD <= 128;
    static constexpr uint32_t warps = kept ? 8 : 4; /* of query rows; few enough for 99 KB */
    static constexpr uint32_t rows = warps * FMC_WARP_ROWS;
    static constexpr uint32_t stages = kept ? 2 : 1;        /* stages of the gradient */
    static constexpr uint32_t queries = HD <= 64 ? 64 : 32; /* query rows of a tile of dk, dv */
    static constexpr uint32_t slice = kept ? HD : 128;      /* elements of dk, dv of a block */
    static constexpr uint32_t forward_bytes =
        4 * tiles<HD>::matrix + (kept ? 0 : rows * tiles<HD>::ld);
    static constexpr uint32_t dq_bytes =
        2 * stages * tiles<HD>::matrix + (kept ? 0 : 2 * rows * tiles<HD>::ld);
    static constexpr uint32_t dkv_bytes = 2 * (KEY_TILE + stages * queries) * tiles<HD>::ld;
};

/* ---- packs ---- */

/* Rows to pack: `virt` of one matrix, then `own` of another. */
typedef struct pack_from {
    const float *virt, *own;
    size_t ld_virt, ld_own;
    uint32_t virts, all;
} pack_from;

/* Packs whole tiles of all heads; zeros beyond rows and elements. */
FMC_DEVICE void pack_heads(unsigned char *to, const pack_from *from, uint32_t heads, uint32_t hd,
                           uint32_t hdp)
{
    uint32_t of_row = hdp / 8;
    uint64_t lines = (uint64_t)padded_rows(from->all) * of_row;
    for (uint64_t i = fmc_index(); i < heads * lines; i += fmc_stride()) {
        uint32_t line = (uint32_t)(i % lines), row = line / (8 * of_row) * 8 + line % 8, w[4];
        uint32_t d = line / 8 % of_row * 8, first = row < from->virts ? 0 : from->virts;
        const float *x = row < from->virts ? from->virt + row * from->ld_virt
                                           : from->own + (row - first) * from->ld_own;
        uint32_t there = row < from->all && d < hd ? hd - d : 0;
        x += i / lines * hd + d;
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            w[e] = fmc_pack_bf16(2 * e < there ? x[2 * e] : 0.0f,
                                 2 * e + 1 < there ? x[2 * e + 1] : 0.0f);
        *(uint4 *)(to + 16 * i) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* blockIdx.y is the sequence. */
__global__ void k_bf16_attention_pack(soft_job j)
{
    const fm_train_seq *s = j.seq + blockIdx.y;
    const fm_attn_train *a = &j.a;
    const pack_rows *at = j.before + blockIdx.y;
    uint32_t nkv = a->nkv, hd = a->hd;
    size_t virt = nkv * (size_t)hd, k_at = at->k * nkv * j.hdp * 2;
    pack_from q = {NULL, a->q + s->begin * a->ldq, 0, a->ldq, 0, s->len};
    pack_from k = {s->vk, a->k + s->begin * a->ldk, virt, a->ldk, s->virt, s->virt + s->len};
    pack_from v = {s->vv, a->v + s->begin * a->ldk, virt, a->ldk, s->virt, s->virt + s->len};
    pack_heads(j.q + at->q * a->nh * j.hdp * 2, &q, a->nh, hd, j.hdp);
    pack_heads(j.k + k_at, &k, nkv, hd, j.hdp);
    pack_heads(j.v + k_at, &v, nkv, hd, j.hdp);
}

/* Packs dout and lse, and computes own. A warp has a row and a head. */
__global__ void k_bf16_attention_own(soft_job j)
{
    const fm_train_seq *s = j.seq + blockIdx.y;
    uint32_t lane = threadIdx.x % 32, nh = j.a.nh, hd = j.a.hd, rows = padded_rows(s->len);
    uint64_t stride = (uint64_t)gridDim.x * (blockDim.x / 32);
    uint64_t unit = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    for (; unit < (uint64_t)rows * nh; unit += stride) {
        uint32_t row = (uint32_t)(unit / nh), head = (uint32_t)(unit % nh);
        uint64_t to_row = j.before[blockIdx.y].q * nh + (uint64_t)head * rows;
        size_t at = (((size_t)s->begin + row) * nh + head) * hd;
        const float *x = j.a.dout + at, *o = j.a.out + at;
        unsigned char *to = j.dout + to_row * j.hdp * 2;
        bool there = row < s->len;
        float sum = 0.0f;
        for (uint32_t d = 2 * lane; d < j.hdp; d += 64) {
            bool low = there && d < hd, high = there && d + 1 < hd;
            uint32_t w = fmc_pack_bf16(low ? x[d] : 0.0f, high ? x[d + 1] : 0.0f);
            *(uint32_t *)(to + pack_at(row, d / 8, j.hdp) + d % 8 * 2) = w;
            sum = fmaf(__uint_as_float(w << 16), low ? o[d] : 0.0f, sum);
            sum = fmaf(__uint_as_float(w & 0xffff0000u), high ? o[d + 1] : 0.0f, sum);
        }
        for (int by = 16; by > 0; by /= 2)
            sum = sum + __shfl_xor_sync(0xffffffffu, sum, by);
        if (lane == 0) {
            size_t lse = (size_t)s->begin * nh + (size_t)head * s->len + row;
            j.own[to_row + row] = sum;
            j.lse[to_row + row] = there ? j.a.lse[lse] : 0.0f;
        }
    }
}

/* ---- loading of tiles ---- */

/* Rows of two packs of one head. */
typedef struct line_pair {
    const unsigned char *a, *b; /* b: may be NULL */
    uint32_t n;                 /* rows that exist */
} line_pair;

/* The rows from first on, a multiple of 8. */
FMC_DEVICE line_pair pair_at(const unsigned char *a, const unsigned char *b, uint32_t hdp,
                             uint32_t first, uint32_t rows)
{
    size_t at = pack_at(first, 0, hdp);
    uint32_t end = padded_rows(rows);
    line_pair p = {a + at, b + at, first < end ? end - first : 0};
    return p;
}

/* Begins to copy a pair of tiles; zeros beyond n. */
template <int HD, int LINES> FMC_DEVICE void fetch_pair(unsigned char *to, const line_pair *p)
{
    const uint32_t each = HD / 8, ld = tiles<HD>::ld;
    for (uint32_t i = threadIdx.x; i < LINES * each; i += blockDim.x) {
        uint32_t line = i / (8 * each) * 8 + i % 8, c = i / 8 % each;
        bool valid = line < p->n;
        size_t from = valid ? 16 * i : 0;
        fmc_copy16(to + line * ld + 16 * c, p->a + from, valid);
        if (p->b)
            fmc_copy16(to + (LINES + line) * ld + 16 * c, p->b + from, valid);
    }
    fmc_copy_commit();
}

/* Returns when tile `now` of a walk has arrived; the next one, if any, is loading then. */
template <int HD, int LINES, int STAGES>
FMC_DEVICE unsigned char *turn(unsigned char *shared, const line_pair *now, const line_pair *next,
                               bool more, uint32_t i)
{
    const uint32_t bytes = 2 * LINES * tiles<HD>::ld;
    if (STAGES == 1 || i == 0)
        fetch_pair<HD, LINES>(shared, now);
    if (STAGES == 2 && more) {
        fetch_pair<HD, LINES>(shared + (i + 1) % 2 * bytes, next);
        fmc_copy_wait<1>();
    } else {
        fmc_copy_wait<0>();
    }
    __syncthreads();
    return shared + (STAGES == 2 ? i % 2 * bytes : 0);
}

/* ---- query rows: forward and dq ---- */

/* Copies the block's rows of q (and dout), from which this warp's lines are read. */
template <int HD> FMC_DEVICE void fetch_rows(unsigned char *to, const place *w, bool both)
{
    typedef train_tiles<HD> T;
    line_pair rows = pair_at(w->q, w->dout, HD, w->first, w->s->len);
    if (!both)
        rows.b = NULL;
    fetch_pair<HD, T::rows>(to, &rows);
    fmc_copy_wait<0>();
    __syncthreads();
}

template <int HD>
__global__ void __launch_bounds__(train_tiles<HD>::warps * 32, 1) k_bf16_attention(soft_job j)
{
    typedef train_tiles<HD> T;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    place w = open_place(&j, blockIdx.x, j.a.nh, 1);
    uint32_t line = threadIdx.x / 32 * FMC_WARP_ROWS;
    uint32_t r = w.first + line + threadIdx.x % 32 / 4, i = 0;
    sight see[2] = {sight_of(&j, &w, r), sight_of(&j, &w, r + 8)};
    walk k = walk_of(&j, &w, fmc_least(T::rows, w.s->len - w.first), T::positions);
    lines16<HD, T::kept> q;
    part<HD> part;
    unsigned char *stages = shared + (T::kept ? 0 : T::rows * T::ld);
    fetch_rows<HD>(shared, &w, false);
    set_lines(&q, shared + line * T::ld);
    if (T::kept)
        __syncthreads();
    clear_part(&part);
    for (uint32_t tile = tile_after(&k, 0xffffffffu), next; tile < k.end; tile = next, i++) {
        uint32_t at = tile * T::positions;
        next = tile_after(&k, tile);
        line_pair now = pair_at(w.k, w.v, HD, at, w.all);
        line_pair then = pair_at(w.k, w.v, HD, next * T::positions, w.all);
        const unsigned char *keys = turn<HD, T::positions, 2>(stages, &now, &then, next < k.end, i);
        bool any = sees_any(&see[0], at, T::positions) || sees_any(&see[1], at, T::positions);
        if (__any_sync(0xffffffffu, any)) {
            float s[T::positions / 2];
            line_products<HD, T::positions, false>(s, &q, keys);
            score_tile<T::positions / 2>(s, &j.a);
            hide_unseen<T::positions / 2>(s, see, at, -INFINITY);
            soften<HD>(&part, s);
            add_values<HD>(&part, s, keys + T::matrix);
        }
        __syncthreads();
    }
    put_rows<HD>(&j, &w, r, &part);
}

template <int HD>
__global__ void __launch_bounds__(train_tiles<HD>::warps * 32, 1) k_bf16_attention_dq(soft_job j)
{
    typedef train_tiles<HD> T;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    place w = open_place(&j, blockIdx.x, j.a.nh, 1);
    uint32_t line = threadIdx.x / 32 * FMC_WARP_ROWS;
    uint32_t r = w.first + line + threadIdx.x % 32 / 4, i = 0;
    sight see[2] = {sight_of(&j, &w, r), sight_of(&j, &w, r + 8)};
    walk k = walk_of(&j, &w, fmc_least(T::rows, w.s->len - w.first), T::positions);
    lines16<HD, T::kept> q, dout;
    float dq[HD / 2] = {}, lse[2], own[2];
    unsigned char *stages = shared + (T::kept ? 0 : 2 * T::rows * T::ld);
    for (uint32_t h = 0; h < 2; h++) {
        lse[h] = w.lse[fmc_least(r + 8 * h, w.s->len - 1)];
        own[h] = w.own[fmc_least(r + 8 * h, w.s->len - 1)];
    }
    fetch_rows<HD>(shared, &w, true);
    set_lines(&q, shared + line * T::ld);
    set_lines(&dout, shared + (T::rows + line) * T::ld);
    if (T::kept)
        __syncthreads();
    for (uint32_t tile = tile_after(&k, 0xffffffffu), next; tile < k.end; tile = next, i++) {
        uint32_t at = tile * T::positions;
        next = tile_after(&k, tile);
        line_pair now = pair_at(w.k, w.v, HD, at, w.all);
        line_pair then = pair_at(w.k, w.v, HD, next * T::positions, w.all);
        const unsigned char *keys =
            turn<HD, T::positions, T::stages>(stages, &now, &then, next < k.end, i);
        bool any = sees_any(&see[0], at, T::positions) || sees_any(&see[1], at, T::positions);
        if (__any_sync(0xffffffffu, any)) {
            float s[T::positions / 2], ds[T::positions / 2];
            line_products<HD, T::positions, false>(s, &q, keys);
            line_products<HD, T::positions, false>(ds, &dout, keys + T::matrix);
            weigh_rows<T::positions / 2>(s, ds, &j.a, lse, own);
            hide_unseen<T::positions / 2>(ds, see, at, 0.0f);
            add_lines<HD, T::positions, HD>(dq, ds, keys);
        }
        __syncthreads();
    }
    put_lines<HD>(j.a.dq + w.s->begin * j.a.ldq + (size_t)w.head * j.a.hd, j.a.ldq, r, 0, w.s->len,
                  j.a.hd, dq);
}

/* ---- positions: dk and dv ---- */

/* Computes p and ds of the warp's positions, by query rows first ..; false: none is seen. */
template <int HD>
FMC_DEVICE bool key_weights(float p[train_tiles<HD>::queries / 2],
                            float ds[train_tiles<HD>::queries / 2], const soft_job *j,
                            const place *w, const rows_seeing by[2], const unsigned char *shared,
                            const unsigned char *rows, uint32_t first)
{
    typedef train_tiles<HD> T;
    uint32_t line = threadIdx.x / 32 * FMC_WARP_ROWS;
    lines16<HD, false> k, v;
    bool any = false;
#pragma unroll
    for (int i = 0; i < 2; i++)
        any = any || (by[i].lo < first + T::queries && by[i].hi > first);
    if (!__any_sync(0xffffffffu, any))
        return false;
    set_lines(&k, shared + line * T::ld);
    set_lines(&v, shared + (KEY_TILE + line) * T::ld);
    line_products<HD, T::queries, false>(p, &k, rows);
    line_products<HD, T::queries, false>(ds, &v, rows + T::queries * T::ld);
    weigh_columns<T::queries / 2>(p, ds, &j->a, w->lse + first, w->own + first);
    hide_rows<T::queries / 2>(p, ds, by, first);
    return true;
}

template <int HD> __global__ void __launch_bounds__(KEY_WARPS * 32) k_bf16_attention_dkv(soft_job j)
{
    typedef train_tiles<HD> T;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    place w = open_place(&j, blockIdx.x, j.a.nkv, j.slices), next;
    uint32_t at = w.first + threadIdx.x / 32 * FMC_WARP_ROWS + threadIdx.x % 32 / 4;
    const rows_seeing by[2] = {rows_of(&j, &w, at), rows_of(&j, &w, at + 8)};
    float dk[T::slice / 2] = {}, dv[T::slice / 2] = {};
    line_pair own = pair_at(w.k, w.v, HD, w.first, w.all);
    row_walk k = rows_walk(&j, &w, KEY_TILE, T::queries);
    unsigned char *stages = shared + 2 * KEY_TILE * T::ld;
    fetch_pair<HD, KEY_TILE>(shared, &own);
    for (uint32_t i = 0; i < k.end; i++) {
        float p[T::queries / 2], ds[T::queries / 2];
        uint32_t first = row_tile(&w, &j, &k, i, T::queries), later;
        line_pair now = pair_at(w.q, w.dout, HD, first, w.s->len), then;
        bool more = i + 1 < k.end;
        next = w;
        later = more ? row_tile(&next, &j, &k, i + 1, T::queries) : 0;
        then = pair_at(next.q, next.dout, HD, later, w.s->len);
        unsigned char *rows = turn<HD, T::queries, T::stages>(stages, &now, &then, more, i);
        if (key_weights<HD>(p, ds, &j, &w, by, shared, rows, first)) {
            rows += w.slice * T::slice * 2;
            add_lines<HD, T::queries, T::slice>(dv, p, rows + T::queries * T::ld);
            add_lines<HD, T::queries, T::slice>(dk, ds, rows);
        }
        __syncthreads();
    }
    fmc_copy_wait<0>(); /* copies for positions that no row sees */
    put_keys<T::slice>(&j, &w, at, w.slice * T::slice, dk, dv);
}

/* ---- the call ---- */

/* The lists of sequences that run together, on the host, later on the device. */
typedef struct lists {
    fm_train_seq *seq;
    uint64_t *virtual_at;
    pack_rows *before;
    seq_tile *row, *pos;
    size_t rows, positions, virtual_floats, virtual_most;
    pack_rows all;
    uint32_t longest, keys; /* keys: positions of a tile */
} lists;

/* The head size that kernels are compiled for. */
static uint32_t padded_head(uint32_t hd)
{
    return hd <= 64 ? 64 : hd <= 128 ? 128 : 256;
}

static uint32_t row_tile_of(uint32_t hd)
{
    return hd <= 128 ? train_tiles<128>::rows : train_tiles<256>::rows;
}

static size_t list_bytes(const fm_train_seq *s, uint32_t hd)
{
    size_t tiles = s->len / row_tile_of(hd) + ((size_t)s->virt + s->len) / KEY_TILE + 2;
    return tiles * sizeof(seq_tile) + sizeof *s + sizeof(uint64_t) + sizeof(pack_rows);
}

/* Long tiles first within a sequence. */
static void fill_lists(lists *l, const fm_attn_train *a, uint32_t n)
{
    const uint32_t each = row_tile_of(a->hd);
    for (uint32_t i = 0; i < n; i++) {
        const fm_train_seq *s = &l->seq[i];
        bool trains = s->dvk || s->dvv;
        size_t floats = trains ? (size_t)s->virt * a->nkv * a->hd : 0;
        for (uint32_t t = (s->len + each - 1) / each; t-- > 0;)
            l->row[l->rows++] = {i, t * each};
        for (uint32_t t = trains ? 0 : s->virt / l->keys; t * l->keys < s->virt + s->len; t++)
            l->pos[l->positions++] = {i, t * l->keys};
        l->before[i] = l->all;
        l->all.q += padded_rows(s->len);
        l->all.k += padded_rows(s->virt + s->len);
        l->virtual_at[i] = l->virtual_floats;
        l->virtual_floats += 2 * floats;
        l->virtual_most = floats > l->virtual_most ? floats : l->virtual_most;
        l->longest = padded_rows(s->len) > l->longest ? padded_rows(s->len) : l->longest;
    }
}

template <class K> static void allow(fmc_device *d, K kernel, uint32_t bytes)
{
    fmc_enter(d);
    if (bytes <= 48u * 1024u ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
            cudaSuccess)
        return;
    (void)cudaGetLastError(); /* reported here, not again at the next launch */
    fmc_stick(d, FM_EUNSUPPORTED, "self_attention: the device has too little shared memory");
}

template <int HD> static void run(fmc_device *d, soft_job *j, const lists *l, bool grad)
{
    typedef train_tiles<HD> T;
    const unsigned rows = (unsigned)(l->rows * j->a.nh), threads = T::warps * 32;
    if (!grad) {
        allow(d, k_bf16_attention<HD>, T::forward_bytes);
        FMC_RUN(d, (k_bf16_attention<HD>), rows, threads, T::forward_bytes, *j);
        return;
    }
    j->slices = (j->a.hd + T::slice - 1) / T::slice;
    allow(d, k_bf16_attention_dq<HD>, T::dq_bytes);
    allow(d, k_bf16_attention_dkv<HD>, T::dkv_bytes);
    FMC_RUN(d, (k_bf16_attention_dq<HD>), rows, threads, T::dq_bytes, *j);
    j->tile += l->rows; /* tiles of positions */
    FMC_RUN(d, (k_bf16_attention_dkv<HD>), (unsigned)(l->positions * j->a.nkv * j->slices),
            KEY_WARPS * 32, T::dkv_bytes, *j);
}

static void run_wide(fmc_device *d, soft_job *j, const lists *l, bool grad)
{
    const unsigned rows = (unsigned)(l->rows * j->a.nh);
    if (!grad) {
        fmc_sm90_whole_forward(d, j, rows);
        return;
    }
    fmc_sm90_whole_dq(d, j, rows);
    j->tile += l->rows;
    fmc_sm90_whole_dkv(d, j, (unsigned)(l->positions * j->a.nkv));
}

static void run_kernels(fmc_device *d, soft_job *j, const lists *l, bool grad, bool wide)
{
    if (wide)
        run_wide(d, j, l, grad);
    else if (j->a.hd <= 64)
        run<64>(d, j, l, grad);
    else if (j->a.hd <= 128)
        run<128>(d, j, l, grad);
    else
        run<256>(d, j, l, grad);
    if (grad)
        fmc_attention_virtual(d, j->seq, j->a.seqs, j->virtual_grad, j->virtual_at,
                              (size_t)j->a.nkv * j->a.hd, l->virtual_most);
}

/* Makes the packs of all rows, and what the gradient needs; false: failed, kept for sync. */
static bool make_packs(fmc_device *d, soft_job *j, const lists *l, bool grad)
{
    size_t q = l->all.q * j->a.nh * j->hdp * 2, k = l->all.k * j->a.nkv * j->hdp * 2;
    size_t state = grad ? l->all.q * j->a.nh : 0;
    size_t bytes = q * (grad ? 2 : 1) + 2 * k + (2 * state + l->virtual_floats) * sizeof(float);
    unsigned most = fmc_blocks((uint64_t)l->longest * j->a.nh * j->hdp / 8, FMC_THREADS);
    unsigned char *at = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_ATTENTION, bytes);
    if (!at)
        return false;
    j->q = at;
    j->k = at + q;
    j->v = j->k + k;
    j->dout = j->v + k;
    j->lse = (float *)(j->dout + (grad ? q : 0));
    j->own = j->lse + state;
    j->virtual_grad = j->own + state;
    FMC_RUN(d, k_bf16_attention_pack, dim3(most, j->a.seqs), FMC_THREADS, 0, *j);
    if (grad)
        FMC_RUN(d, k_bf16_attention_own,
                dim3(fmc_blocks((uint64_t)l->longest * j->a.nh, FMC_THREADS / 32), j->a.seqs),
                FMC_THREADS, 0, *j);
    return d->failed == FM_OK;
}

/* Runs sequences seq .. seq + n - 1 of the call. */
static void run_part(fmc_device *d, const fm_attn_train *a, const fm_train_seq *seq, uint32_t n,
                     size_t bytes, bool grad, bool wide)
{
    soft_job j = {};
    lists l = {};
    l.keys = wide ? FMC_WIDE_KEYS : KEY_TILE;
    size_t tiles = 0;
    unsigned char *host = (unsigned char *)fmc_take(bytes);
    if (!host) {
        fmc_stick(d, FM_ENOMEM, "self_attention: out of memory");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        tiles += seq[i].len / row_tile_of(a->hd) + 1;
    l.seq = (fm_train_seq *)host;
    l.virtual_at = (uint64_t *)(l.seq + n);
    l.before = (pack_rows *)(l.virtual_at + n);
    l.row = (seq_tile *)(l.before + n);
    l.pos = l.row + tiles;
    memcpy(l.seq, seq, n * sizeof *seq);
    fill_lists(&l, a, n);
    if (l.rows > 0) /* those of positions follow those of rows */
        memmove(l.row + l.rows, l.pos, l.positions * sizeof *l.pos);
    unsigned char *dev = (unsigned char *)fmc_args(d, host, bytes);
    j.a = *a;
    j.a.seqs = n;
    j.hdp = padded_head(a->hd);
    j.seq = (const fm_train_seq *)dev;
    j.virtual_at = (const uint64_t *)(dev + ((unsigned char *)l.virtual_at - host));
    j.before = (const pack_rows *)(dev + ((unsigned char *)l.before - host));
    j.tile = (const seq_tile *)(dev + ((unsigned char *)l.row - host));
    fmc_release(host);
    if (l.rows == 0 || d->failed != FM_OK || !make_packs(d, &j, &l, grad))
        return;
    run_kernels(d, &j, &l, grad, wide);
}

void fmc_whole_attention(fmc_device *d, const fm_attn_train *a, bool grad, bool wide)
{
    for (uint32_t i = 0, n; i < a->seqs; i += n) {
        size_t bytes = 0, packs = 0;
        for (n = 0; i + n < a->seqs && n < 0xffffu; n++) {
            const fm_train_seq *s = &a->seq[i + n];
            size_t all = padded_rows(s->len) * (size_t)a->nh +
                         padded_rows(s->len + s->virt) * (size_t)a->nkv;
            size_t some = 4 * all * padded_head(a->hd);
            size_t more = list_bytes(s, a->hd);
            if (n > 0 && (bytes + more > FMC_ARGS_MAX / 2 || packs + some > PACK_BYTES))
                break;
            bytes += more;
            packs += some;
        }
        run_part(d, a, a->seq + i, n, bytes, grad, wide);
    }
}

static void whole(fm_backend *be, const fm_attn_train *a, bool grad)
{
    fmc_device *d = fmc_of(be);
    const fm_backend *exact = &fmc_fast_of(be)->exact;
    if (a->nkv == 0 || a->nh % a->nkv != 0 || a->hd == 0 || a->hd > 256)
        (grad ? exact->self_attention_grad : exact->self_attention)(be, a);
    else
        fmc_whole_attention(d, a, grad, fmc_sm90_whole_may(d, a->hd));
}

static void self_attention(fm_backend *be, const fm_attn_train *a)
{
    whole(be, a, false);
}

static void self_attention_grad(fm_backend *be, const fm_attn_train *a)
{
    whole(be, a, true);
}

void fmc_fast_attention_train_install(fm_backend *be)
{
    be->self_attention = self_attention;
    be->self_attention_grad = self_attention_grad;
}
