/* sample.cu - choice of tokens on the GPU: the token that infer/text/sampler.c picks, from the same
 * sums in the same order.
 *
 * A row has a block. The candidates that the host's heap pops one by one come here in chunks: the
 * next CHUNK candidates at most, found by a radix select over (logit, lowest id first) as one
 * 64-bit number and sorted in shared memory, are walked by one thread in double; mostly the first
 * chunk is enough. Without top-k the mass is a sum over all logits in the order of ids: one double
 * addition after the other, whose bits chain.h gives many at a time, so that the exponentials take
 * most of the time. Passes wait for memory, so each thread has AHEAD loads in flight (8 to 32 KB a
 * block). */
#include "infer/cuda/chain.h"
#include "infer/cuda/rows.h"

#define THREADS 512u
#define CHUNK 1024u
#define DIGIT 11
#define BUCKETS (1u << DIGIT)
#define GROUP 32u /* buckets that one thread adds up */
#define AHEAD 4u  /* loads of a thread in a pass over the row */
#define EACH (CHUNK / THREADS)
#define PIECES (THREADS / 32) /* pieces of a chunk in a sum by id, one a warp */
#define SAMPLER_STREAM 0x73616d706c657231u

/* ---- store/base/math/rng.c, operation for operation ---- */

FMC_DEVICE double uniform(uint64_t seed, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)SAMPLER_STREAM, c3 = (uint32_t)((uint64_t)SAMPLER_STREAM >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(((uint64_t)c0 | (uint64_t)c1 << 32) >> 11) * 0x1p-53;
}

/* ---- candidates ---- */

struct row_of {
    const float *logits;
    const uint64_t *seen;
    uint32_t vocab;
    float penalty;
    double best, temperature;
};

/* Bit j: whether id i + j was seen. */
FMC_DEVICE uint64_t seen_of(const row_of &r, uint32_t i)
{
    return r.seen ? r.seen[i / 64] >> (i % 64) : 0;
}

/* Not inlined: few tokens were seen, and a division is more code than the rest of a pass. */
static __device__ __attribute__((noinline)) float penalty_of(float l, float by)
{
    return l < 0.0f ? l * by : l / by;
}

FMC_DEVICE float penalized(const row_of &r, float l, bool seen)
{
    return seen ? penalty_of(l, r.penalty) : l;
}

FMC_DEVICE float logit_of(const row_of &r, uint32_t i)
{
    return penalized(r, r.logits[i], (seen_of(r, i) & 1) != 0);
}

/* Calls f(id, logit, logit after the penalty) for ids from begin on, W at a time as long as there
 * are W, split over the threads in no order. W: 4 where begin and the row are aligned to 16. */
template <int W, class F> FMC_DEVICE void scan(const row_of &r, uint32_t begin, F f)
{
    const uint32_t units = (r.vocab - begin) / W;
    for (uint32_t at = threadIdx.x; at < units; at += AHEAD * THREADS) {
        float v[AHEAD][W];
        uint64_t seen[AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            const uint32_t i = begin + (at + a * THREADS) * W;
            seen[a] = 0;
            if (at + a * THREADS < units) {
                fmc_get(v[a], r.logits + i);
                seen[a] = seen_of(r, i);
            }
        }
#pragma unroll
        for (uint32_t a = 0; a < AHEAD; a++) {
            if (at + a * THREADS >= units)
                break;
#pragma unroll
            for (int e = 0; e < W; e++)
                f(begin + (at + a * THREADS) * W + (uint32_t)e, v[a][e],
                  penalized(r, v[a][e], (seen[a] >> e & 1) != 0));
        }
    }
}
template <class F> FMC_DEVICE void scan_all(const row_of &r, F f)
{
    const bool wide = ((uintptr_t)r.logits & 15u) == 0;
    if (wide)
        scan<4>(r, 0, f);
    scan<1>(r, wide ? r.vocab / 4 * 4 : 0, f);
}

/* A candidate's rank; larger ones come first, of equal logits (also 0 and -0) the lowest id. */
FMC_DEVICE uint64_t rank_of(float l, uint32_t id)
{
    uint32_t u = __float_as_uint(l == 0.0f ? 0.0f : l);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (0xffffffffu - id);
}

FMC_DEVICE uint32_t id_of(uint64_t rank)
{
    return 0xffffffffu - (uint32_t)rank;
}

FMC_DEVICE float logit_of_rank(uint64_t rank)
{
    uint32_t u = (uint32_t)(rank >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

FMC_DEVICE double weight_of(const row_of &r, float l)
{
    return l > __uint_as_float(0xff800000u) ? fmc_exp_dd(((double)l - r.best) / r.temperature, 0.0)
                                            : 0.0;
}

/* ---- a block's shared state ---- */

struct shared_state {
    uint64_t rank[CHUNK];
    double weight[CHUNK];
    unsigned bucket[BUCKETS];
    unsigned group[BUCKETS / GROUP];
    unsigned count; /* ranks of the chunk */
    unsigned taken, found;
    bool stop;
    uint64_t floor;
    /* of the walk */
    double total, mass, sum;
    fmc_chain piece[PIECES];
    uint32_t at, kept, pick, from;
    bool finished;
};

/* Reduces rank[0..THREADS) to rank[0]. */
FMC_DEVICE uint64_t most_of(shared_state *s, uint64_t mine)
{
    uint32_t t = threadIdx.x;
    s->rank[t] = mine;
    __syncthreads();
    for (uint32_t by = THREADS / 2; by > 0; by /= 2) {
        if (t < by && s->rank[t + by] > s->rank[t])
            s->rank[t] = s->rank[t + by];
        __syncthreads();
    }
    uint64_t most = s->rank[0];
    __syncthreads();
    return most;
}

/* The first bucket from the top that does not fit whole: stops there, or goes on inside it. */
FMC_DEVICE void choose_bucket(shared_state *s, uint64_t prefix, int bits, int lo)
{
    unsigned acc = s->taken;
    int buckets = 1 << bits, g = (buckets - 1) / (int)GROUP;
    while (g >= 0 && acc + s->group[g] <= CHUNK)
        acc += s->group[g--];
    if (g < 0) { /* all buckets fit */
        s->floor = lo + bits == 64 ? 0 : prefix << (lo + bits);
        s->stop = true;
        return;
    }
    int last = (g + 1) * (int)GROUP, b = (last < buckets ? last : buckets) - 1;
    while (acc + s->bucket[b] <= CHUNK)
        acc += s->bucket[b--];
    s->found = (unsigned)b;
    s->taken = acc;
    s->stop = acc >= CHUNK / 4;
    s->floor = ((prefix << bits | (unsigned)b) + 1) << lo;
}

/* Sets s->floor: the chunk is the ranks from there up to below `last`, CHUNK at most, and at least
 * 1 where any is left. */
FMC_DEVICE void select_floor(shared_state *s, const row_of &r, uint64_t last)
{
    uint64_t prefix = 0;
    int lo = 64, bits;
    if (threadIdx.x == 0)
        s->taken = 0;
    for (bool stop = false; !stop;) {
        bits = lo < DIGIT ? lo : DIGIT;
        lo -= bits;
        for (uint32_t i = threadIdx.x; i < BUCKETS; i += THREADS)
            s->bucket[i] = 0;
        __syncthreads();
        scan_all(r, [&](uint32_t i, float, float l) {
            uint64_t rank = rank_of(l, i);
            if (rank < last && (lo + bits == 64 || rank >> (lo + bits) == prefix))
                atomicAdd(&s->bucket[(rank >> lo) & ((1u << bits) - 1u)], 1u);
        });
        __syncthreads();
        if (threadIdx.x < BUCKETS / GROUP) {
            unsigned sum = 0;
            for (uint32_t i = 0; i < GROUP; i++)
                sum += s->bucket[threadIdx.x * GROUP + i];
            s->group[threadIdx.x] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0)
            choose_bucket(s, prefix, bits, lo);
        __syncthreads();
        stop = s->stop;
        prefix = prefix << bits | s->found;
        __syncthreads();
    }
}

/* Makes the chunk that follows `last`, sorted, with weights. */
FMC_DEVICE void next_chunk(shared_state *s, const row_of &r, uint64_t last)
{
    uint32_t t = threadIdx.x, size = 2;
    select_floor(s, r, last);
    if (t == 0)
        s->count = 0;
    for (uint32_t i = t; i < CHUNK; i += THREADS)
        s->rank[i] = 0;
    __syncthreads();
    const uint64_t floor = s->floor;
    scan_all(r, [&](uint32_t i, float, float l) {
        uint64_t rank = rank_of(l, i);
        if (rank < last && rank >= floor)
            s->rank[atomicAdd(&s->count, 1u)] = rank;
    });
    __syncthreads();
    while (size < s->count)
        size *= 2;
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t by = run / 2; by > 0; by /= 2) {
            for (uint32_t i = t; i < size / 2; i += THREADS) {
                uint32_t a = i / by * 2 * by + i % by, b = a + by;
                uint64_t x = s->rank[a], y = s->rank[b];
                if ((x < y) == ((a & run) == 0)) { /* descending in even runs */
                    s->rank[a] = y;
                    s->rank[b] = x;
                }
            }
            __syncthreads();
        }
    for (uint32_t i = t; i < s->count; i += THREADS)
        s->weight[i] = weight_of(r, logit_of_rank(s->rank[i]));
    __syncthreads();
}

/* ---- the walks, by one thread over each chunk ---- */

enum walk { WALK_TOTAL, WALK_KEEP, WALK_DRAW, WALK_UNCUT };

struct cuts {
    uint32_t k;
    double u, top_p, min_p;
};

FMC_DEVICE void walk_total(shared_state *s, const cuts &c)
{
    for (uint32_t i = 0; i < s->count && s->at < c.k; i++, s->at++)
        s->total += s->weight[i];
    s->finished = s->at == c.k;
}

FMC_DEVICE void walk_keep(shared_state *s, const cuts &c)
{
    for (uint32_t i = 0; i < s->count && s->at < c.k && !s->finished; i++) {
        bool enough = c.top_p < 1.0 && !(s->mass < c.top_p * s->total);
        if (s->at > 0 && (enough || s->weight[i] < c.min_p)) {
            s->finished = true;
        } else {
            s->mass += s->weight[i];
            s->at++;
        }
    }
    s->finished = s->finished || s->at == c.k;
    s->kept = s->at;
}

FMC_DEVICE void walk_draw(shared_state *s, const cuts &c)
{
    for (uint32_t i = 0; i < s->count && !s->finished; i++, s->at++) {
        s->pick = id_of(s->rank[i]);
        if (s->at + 1 < s->kept)
            s->sum += s->weight[i];
        s->finished = s->at + 1 >= s->kept || s->sum > c.u * s->mass;
    }
}

FMC_DEVICE void walk_uncut(shared_state *s, const cuts &c)
{
    for (uint32_t i = 0; i < s->count && !s->finished; i++, s->at++) {
        bool counts = s->weight[i] > 0.0;
        if (counts || s->at == 0)
            s->pick = id_of(s->rank[i]);
        if (counts)
            s->sum += s->weight[i];
        s->finished = !counts || s->sum > c.u * s->total;
    }
}

/* The walks of `walks` (bits) one after another, each from the best candidate on, over as many
 * chunks as it needs. */
FMC_DEVICE void walk_chunks(shared_state *s, const row_of &r, const cuts &c, unsigned walks)
{
    const uint64_t none = ~(uint64_t)0;
    uint64_t last = none;
    bool first = false; /* the chunk in s is the first */
    for (unsigned w = WALK_TOTAL; w <= WALK_UNCUT;) {
        if (!(walks >> w & 1)) {
            w++;
            continue;
        }
        if (threadIdx.x == 0 && last == none) {
            s->at = 0;
            s->finished = false;
        }
        if (!first || last != none) {
            first = last == none;
            next_chunk(s, r, last);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            if (w == WALK_TOTAL)
                walk_total(s, c);
            else if (w == WALK_KEEP)
                walk_keep(s, c);
            else if (w == WALK_DRAW)
                walk_draw(s, c);
            else
                walk_uncut(s, c);
        }
        __syncthreads();
        const bool more = !s->finished && s->count > 0;
        last = more ? s->rank[s->count - 1] : none;
        w += !more;
        __syncthreads();
    }
}

/* Makes the chain of each warp's 32 * EACH weights, for sums of exponent e. */
FMC_DEVICE void make_pieces(shared_state *s, int e)
{
    fmc_chain c = fmc_chain_of(s->weight[threadIdx.x * EACH], e);
#pragma unroll
    for (uint32_t i = 1; i < EACH; i++)
        c = fmc_chain_join(c, fmc_chain_of(s->weight[threadIdx.x * EACH + i], e));
    for (unsigned by = 1; by < 32; by *= 2) { /* lane l has lanes l .. l + by - 1 */
        fmc_chain next;
        next.by[0] = __shfl_down_sync(0xffffffffu, c.by[0], by);
        next.by[1] = __shfl_down_sync(0xffffffffu, c.by[1], by);
        if (threadIdx.x % 32 + by < 32)
            c = fmc_chain_join(c, next);
    }
    if (threadIdx.x % 32 == 0)
        s->piece[threadIdx.x / 32] = c;
}

/* One thread adds pieces from `from` on until the sum's exponent changes; returns the next. */
FMC_DEVICE uint32_t add_pieces(shared_state *s, uint32_t from)
{
    double sum = s->total;
    while (from < PIECES && fmc_chain_add(&sum, s->piece[from]))
        from++;
    if (from < PIECES) {
        for (uint32_t i = 0; i < 32 * EACH; i++)
            sum += s->weight[from * 32 * EACH + i];
        from++;
    }
    s->total = sum;
    return from;
}

/* The sum of all weights in the order of ids, to s->total. */
FMC_DEVICE void sum_by_id(shared_state *s, const row_of &r)
{
    float next[EACH];
    auto fetch = [&](uint32_t at) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t id = at + threadIdx.x + i * THREADS;
            next[i] = id < r.vocab ? logit_of(r, id) : -INFINITY;
        }
    };
    fetch(0);
    for (uint32_t at = 0; at < r.vocab; at += CHUNK) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            s->weight[threadIdx.x + i * THREADS] = weight_of(r, next[i]);
        if (r.vocab - at > CHUNK)
            fetch(at + CHUNK);
        if (threadIdx.x == 0)
            s->from = 0;
        __syncthreads();
        while (s->from < PIECES) {
            make_pieces(s, fmc_chain_exponent(s->total));
            __syncthreads();
            if (threadIdx.x == 0)
                s->from = add_pieces(s, s->from);
            __syncthreads();
        }
        __syncthreads(); /* all threads have seen that this chunk is done */
    }
}

FMC_DEVICE uint32_t draw(shared_state *s, const row_of &r, const fm_pick *k)
{
    bool top_k = k->top_k > 0 && k->top_k < r.vocab;
    bool uncut = !top_k && k->top_p >= 1.0f && !(k->min_p > 0.0f);
    const cuts c = {top_k ? k->top_k : r.vocab, uniform(k->seed, k->index), (double)k->top_p,
                    (double)k->min_p};
    if (threadIdx.x == 0)
        s->total = s->mass = s->sum = 0.0;
    __syncthreads();
    if (!top_k && (uncut || k->top_p < 1.0f))
        sum_by_id(s, r);
    walk_chunks(s, r, c,
                uncut ? 1u << WALK_UNCUT
                      : (unsigned)(top_k && k->top_p < 1.0f) << WALK_TOTAL | 1u << WALK_KEEP |
                            1u << WALK_DRAW);
    return s->pick;
}

/* 0, or fm_backend.sample's `bad` for a row without a token; *best: the best candidate's rank. */
FMC_DEVICE int32_t inspect(shared_state *s, const row_of &r, uint64_t *best)
{
    uint64_t fault = 0;
    float most = -INFINITY;
    uint32_t at = 0;
    scan_all(r, [&](uint32_t i, float raw,
                    float l) { /* a thread's ids ascend */
                               if (!(raw < __uint_as_float(0x7f800000u)) && fault == 0)
                                   fault = 0xffffffffu - i; /* the first is the largest */
                               if (l > most) {
                                   most = l;
                                   at = i;
                               }
    });
    fault = most_of(s, fault);
    *best = most_of(s, most > -INFINITY ? rank_of(most, at) : 0);
    if (fault == 0)
        return *best != 0 ? 0 : -1;
    at = id_of(fault);
    return r.logits[at] != r.logits[at] ? 1 + (int32_t)at : -2 - (int32_t)at;
}

__global__ void k_sample(int32_t *token, int32_t *bad, const float *logits, size_t ld,
                         const fm_pick *pick)
{
    FMC_SHARED(shared_state, s, );
    const fm_pick *k = &pick[blockIdx.x];
    uint64_t best;
    row_of r = {logits + k->row * ld,  k->seen, k->vocab,
                k->repetition_penalty, 0.0,     (double)k->temperature};
    int32_t fault = inspect(&s, r, &best);
    uint32_t chosen = id_of(best);
    r.best = (double)logit_of_rank(best);
    if (fault == 0 && k->temperature > 0.0f)
        chosen = draw(&s, r, k);
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    bad[blockIdx.x] = fault;
    token[blockIdx.x] = fault == 0 ? (int32_t)chosen : 0;
    if (fault == 0 && k->seen)
        k->seen[chosen / 64] |= (uint64_t)1 << (chosen % 64);
}

void fmc_op_sample(fm_backend *be, int32_t *token, int32_t *bad, const float *logits, size_t ld,
                   const fm_pick *pick, uint32_t count, uint32_t vocab_max)
{
    fmc_device *d = fmc_of(be);
    (void)vocab_max;
    if (count > 0)
        FMC_RUN(d, k_sample, count, THREADS, 0, token, bad, logits, ld, pick);
}
