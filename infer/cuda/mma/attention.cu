/* attention.cu - attention of mode fast: tensor cores, online softmax, pages of 16 bits.
 *
 * For each key/value head a page holds 32 rows of HDP = hd rounded up to 8 elements, and 32 floats;
 * in groups of eight rows 16 bytes of one row are followed by 16 of the next (line_at), so that
 * Hopper's products read a page without repacking:
 *   keys    f16, each position times a power of two that brings its largest element to 2^10 ..
 *           2^11, and the inverse as the position's float: eight times bf16's precision;
 *   values  bf16; their floats are unused.
 * A position with a key that is not finite, or a value that bf16 cannot hold, gets values of 0 and
 * a scale of NaN: only the rows that see it become NaN.
 *
 * One order for every row, whichever kernel computes it: positions in splits of 256, in them tiles
 * of 64 (32 where the head is longer than 128), both counted from position 0. A split's part of a
 * row is
 *   tile by tile  m' = max(m, scores), o = o * 2^(m - m'), l likewise, p = bf16(2^(s - m')),
 *   o, l += mma over 16 positions at a time (l against a column of ones)
 * and parts are merged in ascending order. Scores are chains of mma over 16 elements. A warp has 16
 * query rows: rows of a run of one sequence times query heads of the key/value head. Positions that
 * only other rows of the tile see have weight +0 and finite values, and zeros of the result are
 * positive, so a row's bits do not depend on its tile or on the other rows in it. Prefill walks the
 * splits and keeps the merged part in `out`; decode splits them over blocks, of which the last one
 * done merges (contexts of many splits: a separate launch).
 */
#include "infer/cuda/mma/fast.h"
#include "infer/cuda/mma/paged.h"
#include "infer/cuda/rows.h"

#define WIDE_WARPS 4u /* warps of a block for long runs */
#define RUN_THREADS 1024u
#define DECODE_ROWS 256u /* calls of more rows have enough blocks without splits */
#define PART_BYTES ((size_t)64 << 20)
#define MERGE_LANES 8u   /* lanes that share a query row when the last block merges */
#define MERGE_SPLITS 16u /* more parts are merged by k_fast_attention_merge */

/* ---- pages ---- */

/* A warp has a position and a head: first those of keys and values, then those of q, which is
 * rotated in place. turns is 0 where nothing is rotated. */
__global__ void k_fast_keep_rows(fm_new_rows r)
{
    fmc_take_turn();
    const fm_kv_view kv = r.kv;
    const uint32_t lane = threadIdx.x % 32, hd = r.hd, nkv = r.nkv, hdp = padded_head(hd);
    const uint64_t keys = (uint64_t)r.m * nkv;
    uint64_t unit = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= keys) {
        unit -= keys;
        if (r.turns == 0 || unit >= (uint64_t)r.m * r.nh)
            return;
        uint32_t row = (uint32_t)(unit / r.nh), head = (uint32_t)(unit % r.nh);
        for (uint32_t i = lane; i < r.turns / 2; i += 32)
            fmc_turn_pair(r.q + row * r.ldq + (size_t)head * hd, i, r, row);
        return;
    }
    uint32_t row = (uint32_t)(unit / nkv), head = (uint32_t)(unit % nkv);
    uint32_t page = (uint32_t)r.slot[row] / FM_KV_PAGE, at = (uint32_t)r.slot[row] % FM_KV_PAGE;
    size_t base = ((size_t)page * nkv + head) * head_bytes(hd);
    const float *kr = r.k + row * r.ldk + (size_t)head * hd;
    const float *vr = r.v + row * r.ldv + (size_t)head * hd;
    float size = 0.0f, scale, inverse;
    bool good = true;
    for (uint32_t d = lane; d < hd; d += 32) {
        float key = fmc_turned(kr, d, r, row);
        uint32_t vb = fmc_pack_bf16(vr[d], 0.0f);
        size = fmc_max(fabsf(key), size);
        good = good && fabsf(key) < INFINITY && (vb & 0x7f80u) != 0x7f80u;
    }
    for (int by = 16; by > 0; by /= 2)
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, by), size);
    good = __all_sync(0xffffffffu, good);
    power_scale(size, &scale, &inverse);
    uint32_t *kw = (uint32_t *)((unsigned char *)kv.k + base);
    uint32_t *vw = (uint32_t *)((unsigned char *)kv.v + base);
    for (uint32_t i = lane; i < hdp / 2; i += 32) {
        bool low = good && 2 * i < hd, high = good && 2 * i + 1 < hd;
        uint32_t to = line_at(at, i / 4, hdp) / 4 + i % 4;
        kw[to] = fmc_pack_f16(low ? fmc_turned(kr, 2 * i, r, row) * scale : 0.0f,
                              high ? fmc_turned(kr, 2 * i + 1, r, row) * scale : 0.0f);
        vw[to] = fmc_pack_bf16(low ? vr[2 * i] : 0.0f, high ? vr[2 * i + 1] : 0.0f);
    }
    float *scales = (float *)((unsigned char *)kv.k + base + (size_t)hdp * FM_KV_PAGE * 2);
    if (lane == 0)
        scales[at] = good ? inverse : NAN;
}

/* ---- work items ---- */

/* Whether this launch does runs of `rows` query rows. */
FMC_DEVICE bool is_ours(const fast_job *j, uint32_t rows)
{
    return rows > 0 && rows * j->heads >= j->at_least && rows * j->heads < j->below;
}

/* Makes j.runs of a call: the runs that a launch does, the last first. One block. */
__global__ void __launch_bounds__(RUN_THREADS) k_fast_attention_runs(fast_job j, uint32_t *runs)
{
    FMC_SHARED(uint32_t, sums, [RUN_THREADS / 32]);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = 0;
    for (uint32_t from = 0; from < j.rows; from += RUN_THREADS) {
        uint32_t row = j.rows - 1 - from - threadIdx.x, before = n; /* wraps below 0 */
        bool ours = row < j.rows && is_ours(&j, fmc_run_at(&j.a, row, j.most));
        unsigned all = __ballot_sync(0xffffffffu, ours);
        if (lane == 0)
            sums[warp] = (uint32_t)__popc(all);
        __syncthreads();
        for (uint32_t i = 0; i < RUN_THREADS / 32; i++) {
            before += i < warp ? sums[i] : 0;
            n += sums[i];
        }
        if (ours)
            runs[1 + before + (uint32_t)__popc(all & ((1u << lane) - 1))] = row;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        runs[0] = n;
}

/* Sets work item `at` of the launch; false: there is nothing to do. */
FMC_DEVICE bool open_unit(fast_unit *u, const fast_job *j, uint32_t at)
{
    const fm_attn *a = &j->a;
    uint32_t group = a->nh / a->nkv, rows;
    u->block = at % j->blocks;
    at /= j->blocks;
    uint32_t part = at % j->group_parts;
    at /= j->group_parts;
    u->kv_head = at % a->nkv;
    at /= a->nkv;
    u->head = u->kv_head * group + part * j->heads;
    u->heads = fmc_least(j->heads, group - part * j->heads);
    if (j->runs) {
        u->row = j->runs[1 + at];
        rows = fmc_run_length(a, u->row, fmc_least(u->row / j->most * j->most + j->most, a->m));
    } else {
        u->row = j->row0 + j->rows - 1 - at;
        rows = fmc_run_at(a, u->row, j->most);
    }
    if (!is_ours(j, rows))
        return false;
    u->n = rows * u->heads;
    u->table = a->table + (size_t)a->seq[u->row] * a->table_stride;
    u->first = fmc_first_position((uint32_t)a->pos[u->row], a->window);
    u->last = (uint32_t)a->pos[u->row + rows - 1];
    return true;
}

/* ---- tiles of positions ---- */

template <int HD> struct paged_tiles : tiles<HD> {
    static constexpr uint32_t bytes = 2 * tiles<HD>::matrix + tiles<HD>::positions * 4; /* scales */
    static constexpr uint32_t of_split = FMC_SPLIT / tiles<HD>::positions;
};

/* Begins to copy a tile. Positions that no row of the work item sees become 0. */
template <int HD>
FMC_DEVICE void fetch_tile(unsigned char *to, const fast_job *j, const fast_unit *u, uint32_t tile)
{
    typedef paged_tiles<HD> T;
    const uint32_t hdp = padded_head(j->a.hd), each = HD / 8;
    const unsigned char *k = (const unsigned char *)j->a.kv.k;
    const unsigned char *v = (const unsigned char *)j->a.kv.v;
    for (uint32_t i = threadIdx.x; i < T::positions * each; i += blockDim.x) {
        uint32_t p = i / (8 * each) * 8 + i % 8, c = i / 8 % each, pos = tile * T::positions + p;
        bool valid = pos >= u->first && pos <= u->last && 8 * c < hdp;
        size_t from = 0;
        if (valid)
            from = page_at(j, u, pos / FM_KV_PAGE) + line_at(pos % FM_KV_PAGE, c, hdp);
        fmc_copy16(to + p * T::ld + 16 * c, k + from, valid);
        fmc_copy16(to + T::matrix + p * T::ld + 16 * c, v + from, valid);
    }
    for (uint32_t i = threadIdx.x; i < T::positions / 4; i += blockDim.x) {
        uint32_t pos = tile * T::positions + 4 * i, page = pos / FM_KV_PAGE;
        bool valid = page >= u->first / FM_KV_PAGE && page <= u->last / FM_KV_PAGE;
        size_t from = 0;
        if (valid)
            from = page_at(j, u, page) + (size_t)hdp * FM_KV_PAGE * 2 + pos % FM_KV_PAGE * 4;
        fmc_copy16(to + 2 * T::matrix + 16 * i, k + from, valid);
    }
    fmc_copy_commit();
}

/* ---- merging ---- */

FMC_DEVICE size_t part_floats(uint32_t hd)
{
    return hd + 2;
}

FMC_DEVICE float *part_at(const fast_job *j, uint32_t row, uint32_t head, uint32_t split)
{
    size_t flat = (size_t)(row - j->row0) * j->a.nh + head;
    return j->parts + (flat * j->splits + split) * part_floats(j->a.hd);
}

/* Stores row i's part of a split that it sees: in parts, or merged into out. */
template <int HD>
FMC_DEVICE void put_part(const fast_job *j, query *q, const part<HD> *s, uint32_t i, uint32_t split)
{
    uint32_t t = threadIdx.x % 4, hd = j->a.hd, first = q->lo / FMC_SPLIT, last = q->hi / FMC_SPLIT;
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
            float o = s->o[4 * n + 2 * i + e];
            if (d >= hd)
                continue;
            o = begins ? o : fmaf(o, g, to[d] * f);
            to[d] = ends ? fmaf(o, inverse, 0.0f) : o;
        }
}

/* Merges the parts of decoding rows, in the same order; a block has a row and a head. */
__global__ void k_fast_attention_merge(fast_job j)
{
    fmc_take_turn();
    uint32_t row = j.row0 + blockIdx.x / j.a.nh, head = blockIdx.x % j.a.nh, begin = row;
    while (begin > row / j.most * j.most && j.a.seq[begin - 1] == j.a.seq[row])
        begin--;
    uint32_t n = fmc_run_at(&j.a, begin, j.most) * j.heads, hi = (uint32_t)j.a.pos[row];
    if (n < j.at_least || n >= j.below)
        return;
    uint32_t lo = fmc_first_position(hi, j.a.window), count = hi / FMC_SPLIT - lo / FMC_SPLIT + 1;
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

/* Merges the item's rows in its last block: the operations of the kernel above, with MERGE_LANES
 * lanes a row, so that a warp loads four rows' parts at a time. */
template <int HD> FMC_DEVICE void merge_unit(const fast_job *j, const fast_unit *u)
{
    constexpr uint32_t each = (HD + MERGE_LANES - 1) / MERGE_LANES;
    const uint32_t lane = threadIdx.x % MERGE_LANES, hd = j->a.hd;
    for (uint32_t r = threadIdx.x / MERGE_LANES; r < u->n; r += blockDim.x / MERGE_LANES) {
        const query q = query_at(j, u, r);
        const uint32_t count = q.hi / FMC_SPLIT - q.lo / FMC_SPLIT + 1;
        const float *p = part_at(j, q.row, q.head, 0);
        float m = p[0], l = p[1], o[each], f, g;
#pragma unroll
        for (uint32_t i = 0; i < each; i++)
            o[i] = lane + MERGE_LANES * i < hd ? p[2 + lane + MERGE_LANES * i] : 0.0f;
#pragma unroll 2
        for (uint32_t s = 1; s < count; s++) {
            p += part_floats(hd);
            merge_factors(&m, &l, p[0], p[1], &f, &g);
#pragma unroll
            for (uint32_t i = 0; i < each; i++)
                if (lane + MERGE_LANES * i < hd)
                    o[i] = fmaf(p[2 + lane + MERGE_LANES * i], g, o[i] * f);
        }
        float *out = j->a.out + q.row * j->a.ldo + (size_t)q.head * hd;
#pragma unroll
        for (uint32_t i = 0; i < each; i++)
            if (lane + MERGE_LANES * i < hd)
                out[lane + MERGE_LANES * i] = fmaf(o[i], 1.0f / l, 0.0f);
    }
}

/* Whether this block is the last of its work item to arrive here; the other blocks' writes are
 * visible then. All threads call it; word: shared memory that is no longer in use. */
FMC_DEVICE bool comes_last(uint32_t *arrived, uint32_t blocks, uint32_t *word)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *word = atomicAdd(arrived, 1u);
        if (*word + 1 == blocks)
            *arrived = 0; /* for the next launch */
    }
    __syncthreads();
    __threadfence();
    return *word + 1 == blocks;
}

/* ---- the kernel ---- */

/* The tile after `tile` among the splits of this block. */
template <int HD> FMC_DEVICE uint32_t tile_after(const fast_job *j, uint32_t tile)
{
    tile++;
    return tile % paged_tiles<HD>::of_split == 0
               ? tile + (j->blocks - 1) * paged_tiles<HD>::of_split
               : tile;
}

/* One or four warps have 16 query rows each, over the splits block, block + blocks, .. */
template <int HD>
FMC_DEVICE void attend_unit(unsigned char *shared, const fast_job &j, const fast_unit &u)
{
    typedef paged_tiles<HD> T;
    uint32_t r = threadIdx.x / 32 * FMC_WARP_ROWS + threadIdx.x % 32 / 4;
    uint32_t last = u.last / T::positions, buffer = 0;
    query q[2] = {query_at(&j, &u, r), query_at(&j, &u, r + 8)};
    uint32_t split = u.first / FMC_SPLIT + u.block, tile = split * T::of_split;
    lines16<HD, true> f;
    part<HD> part;
    tile = u.block == 0 ? u.first / T::positions : tile;
    if (tile > last)
        return;
    fetch_tile<HD>(shared, &j, &u, tile);
    load_queries<HD>(&f, &j.a, q);
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
            float s[T::positions / 2];
            line_products<HD, T::positions, true>(s, &f, now);
            finish_scores<HD>(s, now + 2 * T::matrix, q, j.a.softcap);
            if (!all)
                hide_scores<HD>(s, q, at);
            soften<HD>(&part, s);
            add_values<HD>(&part, s, now + T::matrix);
        }
        __syncthreads(); /* the next round overwrites it */
        if (next > last || next / T::of_split != tile / T::of_split) {
            split = tile / T::of_split;
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                if (q[i].lo <= q[i].hi && q[i].lo / FMC_SPLIT <= split &&
                    q[i].hi / FMC_SPLIT >= split)
                    put_part<HD>(&j, &q[i], &part, i, split);
            clear_part(&part);
        }
        tile = next;
    }
}

template <int HD> __global__ void __launch_bounds__(WIDE_WARPS * 32) k_fast_attention(fast_job j)
{
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    fmc_take_turn();
    uint32_t end = j.runs ? j.runs[0] * j.a.nkv * j.group_parts * j.blocks : gridDim.x;
    for (uint32_t at = blockIdx.x; at < end; at += gridDim.x) {
        fast_unit u;
        if (!open_unit(&u, &j, at))
            continue;
        attend_unit<HD>(shared, j, u);
        if (j.arrived &&
            comes_last(j.arrived + at / j.blocks, j.blocks, (uint32_t *)(void *)shared))
            merge_unit<HD>(&j, &u);
    }
}

/* ---- the call ---- */

template <int HD> static void run(fmc_device *d, const fast_job *j, unsigned warps)
{
    unsigned bytes = 2 * paged_tiles<HD>::bytes;
    unsigned grid = j->rows * j->a.nkv * j->group_parts * j->blocks;
    unsigned enough = (unsigned)d->multiprocessors * 8;
    if (j->runs && grid > enough)
        grid = enough;
    fmc_enter(d);
    if (bytes > 48u * 1024u &&
        cudaFuncSetAttribute(k_fast_attention<HD>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* reported here, not again at the next launch */
        fmc_stick(d, FM_EUNSUPPORTED, "attention: the device has too little shared memory");
    }
    FMC_RUN_PDL(d, (k_fast_attention<HD>), grid, warps * 32, bytes, *j);
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

/* Number of blocks that share an item's splits, so that the whole GPU has work. */
static uint32_t blocks_for(const fmc_device *d, const fast_job *j, uint32_t units)
{
    uint32_t enough = (uint32_t)d->multiprocessors * 8, n = (enough + units - 1) / units;
    return n < j->splits ? n : j->splits;
}

/* Runs rows row0 .. of the call: one warp for short runs, four for long ones; merges the parts. */
static void decode_part(fmc_device *d, fast_job *j)
{
    uint32_t units = j->rows * j->a.nkv * j->group_parts;
    if (j->parts && j->splits <= MERGE_SPLITS && units <= FMC_ARRIVED)
        j->arrived = fmc_fast_of(&d->be)->arrived;
    j->at_least = 0;
    j->below = FMC_WARP_ROWS + 1;
    j->blocks = blocks_for(d, j, units);
    run_width(d, j, 1);
    if (j->rows * j->heads > FMC_WARP_ROWS && !j->a.single) {
        j->at_least = FMC_WARP_ROWS + 1;
        j->below = 0xffffffffu;
        j->blocks = blocks_for(d, j, (units + j->most - 1) / j->most);
        run_width(d, j, WIDE_WARPS);
    }
    j->at_least = 0;
    j->below = 0xffffffffu;
    if (j->parts && !j->arrived)
        FMC_RUN_PDL(d, k_fast_attention_merge, j->rows * j->a.nh, j->a.hd <= 64 ? 64 : 128, 0, *j);
}

fast_job fmc_attention_job(const fm_attn *a)
{
    fast_job j = {};
    j.a = *a;
    j.rows = a->m;
    j.heads = fmc_group_heads(a, FMC_WARP_ROWS);
    j.group_parts = fmc_group_parts(a, j.heads);
    j.most = WIDE_WARPS * FMC_WARP_ROWS / j.heads;
    j.splits = (a->table_stride * FM_KV_PAGE + FMC_SPLIT - 1) / FMC_SPLIT;
    if (a->window && a->window / FMC_SPLIT + 2 < j.splits)
        j.splits = a->window / FMC_SPLIT + 2;
    j.blocks = 1;
    j.below = 0xffffffffu;
    return j;
}

/* Launches blocks for the runs that exist, instead of one for every row that may begin one. */
static void run_listed(fmc_device *d, fast_job *j, unsigned warps)
{
    size_t bytes = ((size_t)j->rows + 1) * sizeof(uint32_t);
    uint32_t *runs = (uint32_t *)fmc_scratch_get(d, FMC_SCRATCH_ATTENTION, bytes);
    FMC_RUN(d, k_fast_attention_runs, 1, RUN_THREADS, 0, *j, runs);
    j->runs = runs;
    run_width(d, j, warps);
}

void fmc_plain_attention(fmc_device *d, const fm_attn *a)
{
    fast_job j = fmc_attention_job(a);
    run_listed(d, &j, WIDE_WARPS);
}

static void attention(fm_backend *be, const fm_attn *a)
{
    fmc_device *d = fmc_of(be);
    if (a->m == 0 || d->failed != FM_OK)
        return;
    if (a->nkv == 0 || a->nh % a->nkv != 0 || a->hd == 0 || a->hd > 256) {
        fmc_stick(d, FM_EUNSUPPORTED,
                  "attention: mode fast has heads of 1 to 256 elements; use mode exact");
        return;
    }
    fast_job j = fmc_attention_job(a);
    if (a->m > DECODE_ROWS) {
        if (fmc_sm90_attention(d, &j)) {
            j.at_least = 0;
            j.below = FMC_WARP_ROWS + 1;
            run_listed(d, &j, 1);
        } else {
            run_listed(d, &j, WIDE_WARPS);
        }
        return;
    }
    size_t row_bytes = (size_t)a->nh * j.splits * (a->hd + 2) * sizeof(float);
    uint32_t fit = row_bytes > PART_BYTES ? 0 : (uint32_t)(PART_BYTES / row_bytes);
    uint32_t each = fit >= a->m ? a->m : fit / j.most * j.most;
    each = each > 0 ? each : j.most;
    each = each < a->m ? each : a->m;
    if (j.splits > 1) /* one part is the whole sum */
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

static void launch_keep_rows(fmc_device *d, const fm_new_rows *r)
{
    uint64_t units = (uint64_t)r->m * (r->nkv + (r->turns ? r->nh : 0));
    if (units > 0)
        FMC_RUN_PDL(d, k_fast_keep_rows, fmc_blocks(units, FMC_THREADS / 32), FMC_THREADS, 0, *r);
}

static void kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                     size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    fm_new_rows r = {};
    r.kv = kv;
    r.k = (float *)(uintptr_t)k; /* is not written to */
    r.ldk = ldk;
    r.v = v;
    r.ldv = ldv;
    r.slot = slot;
    r.m = m;
    r.nkv = nkv;
    r.hd = hd;
    launch_keep_rows(fmc_of(be), &r);
}

static void keep_rows(fm_backend *be, const fm_new_rows *r)
{
    if (!fmc_keep_apart(be, r))
        launch_keep_rows(fmc_of(be), r);
}

/* kv_copy stays mode exact's, which copies kv_page_bytes. */
void fmc_fast_attention_install(fm_backend *be)
{
    be->attends = 0;
    be->kv_page_bytes = kv_page_bytes;
    be->kv_write = kv_write;
    be->keep_rows = keep_rows;
    be->attention = attention;
}
