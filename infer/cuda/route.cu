/* route.cu - the choice of experts and the small operations around it: the CPU's bits and ties,
 * without the host.
 *
 * A warp has a row: its lanes compute the exponentials and find the largest score, and one lane
 * adds in the order of experts (one double addition an expert: some 0.6 us for 128). For the list
 * of choices by expert there is a block for each expert, which reads all choices twice, from L2.
 * Both are bound by latency, two launches a layer. */
#include "infer/cuda/detmath.h"
#include "infer/cuda/rows.h"

#define ROUTE_WARPS 4u
#define ROUTE_CHOSEN 64u /* the most that a config may ask for */
#define ROUTE_EXPERTS 1024u
#define ROUTE_SHARED 40960u /* bytes of shared memory that any launch may ask for, beside picks */
#define DEAL_WARPS 8u
#define DEAL_THREADS (32u * DEAL_WARPS)
#define NOBODY 0xffffffffu

/* ---- the choice ---- */

struct best_of {
    float score;
    uint32_t expert;
};

/* The larger score, of equal ones the lower expert. */
FMC_DEVICE best_of better(best_of a, best_of b)
{
    bool second =
        a.expert == NOBODY ||
        (b.expert != NOBODY && (b.score > a.score || (b.score == a.score && b.expert < a.expert)));
    return second ? b : a;
}

/* The next choice of a row: the largest score that is not taken. A NaN is chosen only where it is
 * the first score left: no score is larger then. taken: bit i of lane l is expert 32 i + l. */
FMC_DEVICE uint32_t next_expert(const float *score, uint32_t experts, uint32_t taken)
{
    const uint32_t lane = threadIdx.x % 32;
    best_of best = {0.0f, NOBODY};
    uint32_t first = NOBODY;
    for (uint32_t i = 0, e = lane; e < experts; i++, e += 32) {
        if (taken >> i & 1)
            continue;
        first = first < e ? first : e;
        if (score[e] == score[e])
            best = better(best, best_of{score[e], e});
    }
    for (int by = 16; by > 0; by /= 2) {
        best_of other = {__shfl_xor_sync(0xffffffffu, best.score, by),
                         __shfl_xor_sync(0xffffffffu, best.expert, by)};
        uint32_t f = __shfl_xor_sync(0xffffffffu, first, by);
        best = better(best, other);
        first = first < f ? first : f;
    }
    return score[first] == score[first] ? best.expert : first;
}

/* The lane's share of setting the shares of a row's experts, before the division: by the sum of a
 * softmax, or 1. The callers read them behind a __syncwarp. */
FMC_DEVICE void set_shares(const fm_route &r, const float *score, double *share)
{
    double max = (double)score[0];
    for (uint32_t e = 1; e < r.experts && !r.sigmoid; e++)
        max = max > (double)score[e] ? max : (double)score[e];
    for (uint32_t e = threadIdx.x % 32; e < r.experts; e += 32)
        share[e] = r.sigmoid ? 1.0 / (1.0 + fmc_exp_dd(-(double)score[e], 0.0))
                             : fmc_exp_dd((double)score[e] - max, 0.0);
}

FMC_DEVICE double sum_shares(const fm_route &r, const double *share)
{
    double sum = 0.0;
    for (uint32_t e = 0; e < r.experts && !r.sigmoid; e++)
        sum += share[e];
    return r.sigmoid ? 1.0 : sum;
}

/* Whether the choice goes by shares; whether the sum of all of them is needed. */
FMC_DEVICE bool by_shares(const fm_route &r)
{
    return (r.sigmoid && !r.by_score) || r.bias || r.groups;
}
FMC_DEVICE bool needs_sum(const fm_route &r)
{
    return !r.renormalise || by_shares(r) || r.least > 0.0;
}

/* What a row's weights are divided by; *cut: the sum of the chosen shares is below r.least. */
FMC_DEVICE double whole_of(const fm_route &r, double kept, double sum, bool *cut)
{
    *cut = r.renormalise && kept < r.least * sum;
    return !r.renormalise ? sum : *cut ? r.least * sum : kept + r.more;
}

/* Takes experts of other groups than the best ones out of the choice; sum: scratch [groups]. */
FMC_DEVICE void keep_groups(const fm_route &r, float *value, float *sum)
{
    const uint32_t lane = threadIdx.x % 32, each = r.experts / r.groups;
    uint32_t taken = 0;
    for (uint32_t g = lane; g < r.groups; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * each; e < (g + 1) * each; e++) {
            second = value[e] > first ? first : value[e] > second ? value[e] : second;
            first = value[e] > first ? value[e] : first;
        }
        sum[g] = r.groups_best ? first : first + second;
    }
    __syncwarp();
    for (uint32_t k = 0; k < r.groups_kept; k++) {
        uint32_t g = next_expert(sum, r.groups, taken);
        if (g % 32 == lane)
            taken |= 1u << g / 32;
    }
    for (uint32_t i = 0, g = lane; g < r.groups; i++, g += 32)
        for (uint32_t e = g * each; e < (g + 1) * each && !(taken >> i & 1); e++)
            value[e] = -INFINITY;
    __syncwarp();
}

/* ---- PhiMoE's sparse mixer: few experts, one lane a row ---- */

struct mixed {
    uint32_t expert;
    double score, sum;
};

FMC_DEVICE bool is_near(const fm_route &r, const mixed &c, double score)
{
    double size = score < 0.0 ? -score : score, most = size > c.score ? size : c.score;
    return !((c.score - score) / most > 2.0 * (double)r.jitter);
}

FMC_DEVICE mixed mix_one(const fm_route &r, const float *score, uint32_t taken)
{
    mixed c = {NOBODY, 0.0, 0.0};
    for (uint32_t e = 0; e < r.experts; e++)
        if (e != taken && (c.expert == NOBODY || score[e] > score[c.expert]))
            c.expert = e;
    c.score = (double)score[c.expert];
    for (uint32_t e = 0; e < r.experts; e++)
        if (e != taken && is_near(r, c, (double)score[e]))
            c.sum += fmc_exp_dd((double)score[e] - c.score, 0.0);
    return c;
}

__global__ void k_mix(fm_route r)
{
    for (uint64_t row = fmc_index(); row < r.m; row += fmc_stride()) {
        const float *score = r.score + row * r.ld;
        const mixed a = mix_one(r, score, NOBODY), b = mix_one(r, score, a.expert);
        const uint32_t at = b.expert < a.expert ? 1 : 0;
        r.expert[2 * row + at] = (int32_t)a.expert;
        r.expert[2 * row + 1 - at] = (int32_t)b.expert;
        r.weight[2 * row + at] = (float)(1.0 / a.sum);
        r.weight[2 * row + 1 - at] = (float)(1.0 / b.sum);
    }
}

FMC_DEVICE double mix_slope(const fm_route &r, const float *score, const mixed &c, uint32_t taken,
                            double dweight, uint32_t e)
{
    if (e == taken || !is_near(r, c, (double)score[e]))
        return 0.0;
    const double own = 1.0 / c.sum, share = fmc_exp_dd((double)score[e] - c.score, 0.0) / c.sum;
    return dweight * own * ((e == c.expert ? 1.0 : 0.0) - share);
}

__global__ void k_mix_grad(fm_route r, float *dscore, const float *dweight)
{
    for (uint64_t row = fmc_index(); row < r.m; row += fmc_stride()) {
        const float *score = r.score + row * r.ld;
        const mixed a = mix_one(r, score, NOBODY), b = mix_one(r, score, a.expert);
        const uint32_t at = b.expert < a.expert ? 1 : 0;
        const double da = (double)dweight[r.slot[2 * row + at]];
        const double db = (double)dweight[r.slot[2 * row + 1 - at]];
        for (uint32_t e = 0; e < r.experts; e++)
            dscore[row * r.experts + e] = (float)(mix_slope(r, score, a, NOBODY, da, e) +
                                                  mix_slope(r, score, b, a.expert, db, e));
    }
}

__global__ void k_route(fm_route r)
{
    FMC_SHARED_DYNAMIC(double, shares);
    FMC_SHARED(uint32_t, picks, [ROUTE_WARPS][ROUTE_CHOSEN]);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const uint32_t row = blockIdx.x * warps + warp;
    double *share = shares + (size_t)warp * r.experts;
    float *values = (float *)(shares + (size_t)warps * r.experts);
    uint32_t *pick = picks[warp], taken = 0;
    if (row >= r.m)
        return; /* whole warps; there is no barrier */
    const float *score = r.score + row * r.ld;
    double sum = 0.0, kept = 0.0;
    bool cut;
    set_shares(r, score, share);
    __syncwarp();
    if (needs_sum(r))
        sum = sum_shares(r, share);
    if (by_shares(r)) {
        float *value = values + (size_t)warp * 2 * r.experts;
        for (uint32_t e = lane; e < r.experts; e += 32) {
            value[e] = (float)(share[e] / sum);
            if (r.bias)
                value[e] = value[e] + r.bias[(size_t)row * r.experts + e];
        }
        __syncwarp();
        if (r.groups)
            keep_groups(r, value, value + r.experts);
        score = value;
    }
    for (uint32_t k = 0; k < r.chosen; k++) {
        uint32_t e = next_expert(score, r.experts, taken);
        if (e % 32 == lane)
            taken |= 1u << e / 32;
        if (lane == 0) {
            uint32_t at = k;
            for (; at > 0 && pick[at - 1] > e; at--)
                pick[at] = pick[at - 1];
            pick[at] = e;
        }
    }
    __syncwarp();
    for (uint32_t k = 0; k < r.chosen; k++)
        kept += share[pick[k]];
    const double whole = whole_of(r, kept, sum, &cut), scale = r.scale != 0.0f ? r.scale : 1.0;
    for (uint32_t k = lane; k < r.chosen; k += 32) {
        size_t at = (size_t)row * r.chosen + k;
        r.expert[at] = (int32_t)pick[k];
        r.weight[at] = (float)(share[pick[k]] / whole * scale);
    }
}

/* ---- choices by expert ---- */

/* Writes where expert e's choices of each part begin: its segment of the list is ascending. */
FMC_DEVICE void begin_parts(const fm_route &r, uint32_t e, uint32_t at, uint32_t end)
{
    for (uint32_t p = threadIdx.x; p < r.parts; p += blockDim.x) {
        int32_t least = r.bound[p] * (int32_t)r.chosen;
        uint32_t lo = at, hi = end;
        while (lo < hi) {
            uint32_t mid = (lo + hi) / 2;
            if (r.list[mid] < least)
                lo = mid + 1;
            else
                hi = mid;
        }
        r.begin[(size_t)e * r.parts + p] = (int32_t)lo;
    }
}

FMC_DEVICE uint32_t warp_sum(uint32_t n)
{
    for (int by = 16; by > 0; by /= 2)
        n += __shfl_xor_sync(0xffffffffu, n, by);
    return n;
}

/* A block has an expert, each of its warps a segment of the choices. An expert's choices begin at
 * the number of choices of lower experts, so no block waits for another. */
__global__ void __launch_bounds__(DEAL_THREADS) k_deal(fm_route r)
{
    FMC_SHARED(uint32_t, lower, [DEAL_WARPS]);
    FMC_SHARED(uint32_t, own, [DEAL_WARPS]);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = blockIdx.x;
    const uint32_t all = r.m * r.chosen, each = (all + 32 * DEAL_WARPS - 1) / (32 * DEAL_WARPS);
    const uint32_t from = warp * each * 32, to = from + each * 32 < all ? from + each * 32 : all;
    uint32_t less = 0, same = 0;
#pragma unroll 4
    for (uint32_t i = from + lane; i < to; i += 32) {
        uint32_t expert = (uint32_t)r.expert[i];
        less += expert < e;
        same += expert == e;
    }
    less = warp_sum(less);
    same = warp_sum(same);
    if (lane == 0) {
        lower[warp] = less;
        own[warp] = same;
    }
    __syncthreads();
    uint32_t begin = 0, end = 0, at = 0;
    for (uint32_t w = 0; w < DEAL_WARPS; w++) {
        begin += lower[w];
        end += own[w];
        at += w < warp ? own[w] : 0;
    }
    end += begin;
    at += begin;
    for (uint32_t i = from; i < to && same > 0; i += 32) {
        bool mine = i + lane < to && r.expert[i + lane] == (int32_t)e;
        unsigned who = __ballot_sync(0xffffffffu, mine);
        if (mine) {
            uint32_t slot = at + (uint32_t)__popc(who & ((1u << lane) - 1u));
            r.list[slot] = (int32_t)(i + lane);
            if (r.slot)
                r.slot[i + lane] = (int32_t)slot;
        }
        at += (uint32_t)__popc(who);
    }
    __syncthreads();
    begin_parts(r, e, begin, end);
    if (threadIdx.x == 0 && e + 1 == r.experts)
        r.begin[(size_t)r.experts * r.parts] = (int32_t)end;
}

void fmc_op_route(fm_backend *be, const fm_route *r)
{
    fmc_device *d = fmc_of(be);
    if (r->m == 0)
        return;
    if (r->experts > ROUTE_EXPERTS || r->chosen > ROUTE_CHOSEN) {
        fmc_stick(d, FM_EUNSUPPORTED, "more experts than this device chooses from");
        return;
    }
    const bool values =
        (r->sigmoid && !r->by_score) || r->bias || r->groups; /* two floats more for each expert */
    const size_t bytes = r->experts * (sizeof(double) + (values ? 2 * sizeof(float) : 0));
    const uint32_t warps = ROUTE_WARPS * bytes <= ROUTE_SHARED ? ROUTE_WARPS : ROUTE_WARPS / 2;
    if (r->jitter > 0.0f)
        FMC_RUN(d, k_mix, fmc_blocks(r->m, FMC_THREADS), FMC_THREADS, 0, *r);
    else
        FMC_RUN(d, k_route, fmc_blocks(r->m, warps), 32 * warps, warps * bytes, *r);
    FMC_RUN(d, k_deal, r->experts, DEAL_THREADS, 0, *r);
}

/* ---- the gradient of a choice's weights ---- */

/* A warp has a row, as in k_route. */
__global__ void k_route_grad(fm_route r, float *dscore, const float *dweight)
{
    FMC_SHARED_DYNAMIC(double, shares);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row = blockIdx.x * ROUTE_WARPS + warp;
    double *share = shares + (size_t)warp * r.experts;
    if (row >= r.m)
        return; /* whole warps; there is no barrier */
    const int32_t *expert = r.expert + (size_t)row * r.chosen;
    const int32_t *slot = r.slot + (size_t)row * r.chosen;
    float *to = dscore + (size_t)row * r.experts;
    double sum = 0.0, kept = 0.0, mean = 0.0;
    bool cut;
    set_shares(r, r.score + row * r.ld, share);
    __syncwarp();
    if (needs_sum(r))
        sum = sum_shares(r, share);
    for (uint32_t k = 0; k < r.chosen; k++)
        kept += share[expert[k]];
    const double whole = whole_of(r, kept, sum, &cut), scale = r.scale != 0.0f ? r.scale : 1.0;
    for (uint32_t k = 0; k < r.chosen; k++)
        mean += share[expert[k]] / whole * (double)dweight[slot[k]];
    if (cut)
        mean *= r.sigmoid ? 0.0 : r.least;
    else if (r.sigmoid && !r.renormalise)
        mean = 0.0;
    const bool all = !r.sigmoid && (!r.renormalise || cut);
    for (uint32_t e = lane; e < r.experts; e += 32)
        to[e] = all ? (float)(-mean * share[e] / whole * scale) : 0.0f;
    __syncwarp();
    for (uint32_t k = lane; k < r.chosen; k += 32) {
        double s = share[expert[k]], slope = r.sigmoid ? 1.0 - s : 1.0;
        to[expert[k]] = (float)(s / whole * ((double)dweight[slot[k]] - mean) * slope * scale);
    }
}

void fmc_op_route_grad(fm_backend *be, const fm_route *r, float *dscore, const float *dweight)
{
    if (r->m > 0 && r->jitter > 0.0f)
        FMC_RUN(fmc_of(be), k_mix_grad, fmc_blocks(r->m, FMC_THREADS), FMC_THREADS, 0, *r, dscore,
                dweight);
    else if (r->m > 0 && r->experts <= ROUTE_EXPERTS)
        FMC_RUN(fmc_of(be), k_route_grad, fmc_blocks(r->m, ROUTE_WARPS), 32 * ROUTE_WARPS,
                ROUTE_WARPS * r->experts * sizeof(double), *r, dscore, dweight);
    else if (r->m > 0)
        fmc_stick(fmc_of(be), FM_EUNSUPPORTED, "more experts than this device chooses from");
}

/* ---- scales of segments; sigmoids ---- */

#define SCALE_BLOCKS 16u /* of one entry, which share its rows */

__global__ void k_scalings(const fm_scaling *list)
{
    const fm_scaling s = list[blockIdx.x];
    const uint32_t from = s.from ? (uint32_t)*s.from : 0, to = s.from ? (uint32_t)*s.to : s.m;
    for (uint32_t i = from + blockIdx.y; i < to; i += gridDim.y) {
        float *y = s.y + (size_t)s.rows[i] * s.ldy;
        for (uint32_t c = threadIdx.x; c < s.n; c += blockDim.x) {
            float v = y[c];
            if (s.scale)
                v = v * s.scale[c];
            if (s.bias)
                v = v + s.bias[c];
            y[c] = v;
        }
    }
}

void fmc_op_scalings(fm_backend *be, const fm_scaling *list, uint32_t count)
{
    fmc_device *d = fmc_of(be);
    const uint32_t most = FMC_ARGS_MAX / sizeof *list;
    for (uint32_t at = 0, n; at < count; at += n) {
        uint32_t rows = 1;
        n = count - at < most ? count - at : most;
        for (uint32_t i = at; i < at + n; i++)
            rows = rows > list[i].m ? rows : list[i].m;
        const fm_scaling *dev = (const fm_scaling *)fmc_args(d, list + at, n * sizeof *list);
        if (dev)
            FMC_RUN(d, k_scalings, dim3(n, rows < SCALE_BLOCKS ? rows : SCALE_BLOCKS), FMC_THREADS,
                    0, dev);
    }
}

__global__ void k_sigmoid(float *y, const float *x, uint64_t n)
{
    for (uint64_t i = fmc_index(); i < n; i += fmc_stride())
        y[i] = (float)(1.0 / (1.0 + fmc_exp_dd(-(double)x[i], 0.0)));
}

void fmc_op_sigmoid(fm_backend *be, float *y, const float *x, uint64_t n)
{
    if (n > 0)
        FMC_RUN(fmc_of(be), k_sigmoid, fmc_blocks(n, FMC_THREADS), FMC_THREADS, 0, y, x, n);
}

__global__ void k_sigmoid_grad(float *dx, const float *dy, const float *y, uint64_t n)
{
    for (uint64_t i = fmc_index(); i < n; i += fmc_stride())
        dx[i] = (float)((double)dy[i] * (double)y[i] * (1.0 - (double)y[i]));
}

void fmc_op_sigmoid_grad(fm_backend *be, float *dx, const float *dy, const float *y, uint64_t n)
{
    if (n > 0)
        FMC_RUN(fmc_of(be), k_sigmoid_grad, fmc_blocks(n, FMC_THREADS), FMC_THREADS, 0, dx, dy, y,
                n);
}
