/* elem_train.cu - gradients of elem.cu and act.cu, dropout, sums over columns and rows, AdamW.
 *
 * Bound by bytes. A sum over rows is one chain of additions a column, in ascending rows: with few
 * columns and many rows that chain, 4 cycles a row, is the limit. */
#include "infer/cuda/detmath.h"
#include "infer/cuda/rows.h"

/* ---- elements ---- */

__global__ void k_swiglu_grad(float *dgate, float *dup, const float *dy, const float *gate,
                              const float *up, uint64_t n, bool wide)
{
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float g[w.value], u[w.value], d[w.value];
        fmc_get(g, gate + i);
        fmc_get(u, up + i);
        fmc_get(d, dy + i);
        for (int j = 0; j < w.value; j++) {
            float s = fmc_sigmoid(g[j]), slope = s * fmaf(g[j], 1.0f - s, 1.0f);
            float by = d[j] * u[j];
            u[j] = d[j] * (g[j] * s);
            g[j] = by * slope;
        }
        fmc_put(dup + i, u);
        fmc_put(dgate + i, g);
    });
}

void fmc_op_swiglu_grad(fm_backend *be, float *dgate, float *dup, const float *dy,
                        const float *gate, const float *up, uint64_t n)
{
    FMC_SPAN(fmc_of(be), k_swiglu_grad, n, fmc_aligned(dgate, dup, dy, gate, up), dgate, dup, dy,
             gate, up);
}

__global__ void k_act_grad(fm_act f, float *dgate, size_t lddg, float *dup, size_t lddu,
                           const float *dy, size_t lddy, const float *gate, size_t ldg,
                           const float *up, size_t ldu, uint32_t m, uint32_t n, bool wide)
{
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float g[w.value], u[w.value] = {}, d[w.value], y[w.value];
        fmc_get(g, gate + row * ldg + col);
        fmc_get(d, dy + row * lddy + col);
        if (up)
            fmc_get(u, up + row * ldu + col);
        for (int j = 0; j < w.value; j++) {
            fmc_slope a = fmc_act_slope(f, g[j]);
            y[j] = d[j] * a.y;
            if (up && f == FM_ACT_CLAMPED && (u[j] > FM_ACT_LIMIT || u[j] < -FM_ACT_LIMIT))
                y[j] = 0.0f;
            if (up)
                d[j] = d[j] * fmc_act_factor(f, u[j]);
            g[j] = d[j] * a.slope;
        }
        if (dup)
            fmc_put(dup + row * lddu + col, y);
        fmc_put(dgate + row * lddg + col, g);
    });
}

void fmc_op_act_grad(fm_backend *be, fm_act f, float *dgate, size_t lddg, float *dup, size_t lddu,
                     const float *dy, size_t lddy, const float *gate, size_t ldg, const float *up,
                     size_t ldu, uint32_t m, uint32_t n)
{
    lddu = dup ? lddu : 0;
    ldu = up ? ldu : 0;
    FMC_CELLS(fmc_of(be), k_act_grad, m, n,
              fmc_aligned(dgate, dup, dy, gate, up) && fmc_aligned_ld(lddg, lddu, lddy, ldg, ldu),
              f, dgate, lddg, dup, lddu, dy, lddy, gate, ldg, up, ldu);
}

__global__ void k_softcap_grad(float *dy, size_t lddy, const float *y, size_t ldy, float cap,
                               uint32_t m, uint32_t n, bool wide)
{
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float d[w.value], v[w.value];
        fmc_get(v, y + row * ldy + col);
        fmc_get(d, dy + row * lddy + col);
        for (int j = 0; j < w.value; j++) {
            float t = v[j] / cap;
            d[j] = d[j] * fmaf(0.0f - t, t, 1.0f);
        }
        fmc_put(dy + row * lddy + col, d);
    });
}

void fmc_op_softcap_grad(fm_backend *be, float *dy, size_t lddy, const float *y, size_t ldy,
                         uint32_t m, uint32_t n, float cap)
{
    FMC_CELLS(fmc_of(be), k_softcap_grad, m, n, fmc_aligned(dy, y) && fmc_aligned_ld(lddy, ldy), dy,
              lddy, y, ldy, cap);
}

__global__ void k_scale_rows(float *y, size_t ldy, const float *x, size_t ldx, const float *w_row,
                             uint32_t m, uint32_t n, bool wide)
{
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value], by = w_row[row];
        fmc_get(v, x + row * ldx + col);
        for (int j = 0; j < w.value; j++)
            v[j] = v[j] * by;
        fmc_put(y + row * ldy + col, v);
    });
}

void fmc_op_scale_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                       const float *w, uint32_t m, uint32_t n)
{
    FMC_CELLS(fmc_of(be), k_scale_rows, m, n, fmc_aligned(y, x) && fmc_aligned_ld(ldy, ldx), y, ldy,
              x, ldx, w);
}

typedef struct adamw_scalars {
    float decay, one_less_beta1, beta2, one_less_beta2, step, bias2_sqrt, eps, g_scale;
} adamw_scalars;

__global__ void k_adamw(float *p, float *m, float *v, const float *g, adamw_scalars o, uint64_t n,
                        bool wide)
{
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float pv[w.value], mv[w.value], vv[w.value], gv[w.value];
        fmc_get(pv, p + i);
        fmc_get(mv, m + i);
        fmc_get(vv, v + i);
        fmc_get(gv, g + i);
        for (int j = 0; j < w.value; j++) {
            float grad = gv[j] * o.g_scale, kept = pv[j] * o.decay;
            mv[j] = fmaf(grad - mv[j], o.one_less_beta1, mv[j]);
            vv[j] = fmaf(grad * o.one_less_beta2, grad, vv[j] * o.beta2);
            pv[j] = fmaf(o.step, mv[j] / (sqrtf(vv[j]) / o.bias2_sqrt + o.eps), kept);
        }
        fmc_put(p + i, pv);
        fmc_put(m + i, mv);
        fmc_put(v + i, vv);
    });
}

/* The scalars are computed in double and rounded once, as in PyTorch. */
void fmc_op_adamw(fm_backend *be, float *p, float *m, float *v, const float *g, uint64_t n,
                  float lr, float beta1, float beta2, float eps, float weight_decay, uint64_t step,
                  float g_scale)
{
    double t = (double)step, bias1 = 1.0 - fmc_pow((double)beta1, t);
    double bias2 = 1.0 - fmc_pow((double)beta2, t);
    adamw_scalars o = {(float)(1.0 - (double)lr * (double)weight_decay),
                       (float)(1.0 - (double)beta1),
                       beta2,
                       (float)(1.0 - (double)beta2),
                       0.0f - (float)((double)lr / bias1),
                       (float)sqrt(bias2),
                       eps,
                       g_scale};
    FMC_SPAN(fmc_of(be), k_adamw, n, fmc_aligned(p, m, v, g), p, m, v, g, o);
}

/* ---- dropout ---- */

typedef struct dropout_how {
    uint64_t seed, stream, row0;
    float scale, limit; /* limit: an element whose 16-bit number is above it is kept */
    bool accumulate;
} dropout_how;

typedef struct philox {
    uint32_t c[4];
} philox;

/* Philox4x32-10 (store/base/math/rng.h) */
FMC_DEVICE philox philox_block(uint64_t seed, uint64_t stream, uint64_t index)
{
    philox x = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)x.c[0] * 0xD2511F53u, b = (uint64_t)x.c[2] * 0xCD9E8D57u;
        x = philox{{(uint32_t)(b >> 32) ^ x.c[1] ^ k0, (uint32_t)b,
                    (uint32_t)(a >> 32) ^ x.c[3] ^ k1, (uint32_t)a}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* A cell is one Philox block: eight columns, 16 apart, of 128. */
__global__ void k_dropout(float *y, size_t ldy, const float *x, size_t ldx, uint32_t n,
                          dropout_how how, uint32_t m, uint32_t blocks, bool wide)
{
    fmc_cells(m, blocks, wide, [&](auto, uint32_t row, uint32_t block) {
        philox p = philox_block(how.seed, how.stream, (how.row0 + row) << 24 | block);
        uint32_t first = block / FMC_LANES * (8 * FMC_LANES) + block % FMC_LANES;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t col = first + k * FMC_LANES;
            uint32_t draw = k % 2 ? p.c[k / 2] >> 16 : p.c[k / 2] & 0xffffu;
            if (col < n) {
                float v = x[row * ldx + col] * how.scale;
                v = (float)draw > how.limit ? v : 0.0f;
                float *at = y + row * ldy + col;
                *at = how.accumulate ? *at + v : v;
            }
        }
    });
}

void fmc_op_dropout(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                    uint32_t n, float p, uint64_t seed, uint64_t stream, uint64_t row0,
                    bool accumulate)
{
    uint32_t drop = (uint32_t)((double)p * 65536.0 + 0.5);
    uint32_t blocks = (n + 8 * FMC_LANES - 1) / (8 * FMC_LANES) * FMC_LANES;
    dropout_how how = {seed, stream, row0, 1.0f / (1.0f - p), (float)drop - 0.5f, accumulate};
    FMC_CELLS(fmc_of(be), k_dropout, m, blocks, false, y, ldy, x, ldx, n, how);
}

/* ---- sums over rows ---- */

__global__ void k_bias_grad(float *db, const float *dy, size_t lddy, uint32_t m, uint32_t n)
{
    FMC_SHARED(float, buf, [2 * FMC_STRIP_FLOATS]);
    uint32_t col = blockIdx.x * FMC_STRIP + threadIdx.x;
    float sum = fmc_column_sums<1, 1>(
        buf, m, n, [&](uint32_t row, uint32_t c, float(&v)[1]) { v[0] = dy[row * lddy + c]; },
        [](uint32_t, const float *v, float l) { return l + v[0]; });
    if (threadIdx.x < FMC_STRIP && col < n)
        db[col] = db[col] + sum;
}

void fmc_op_bias_grad(fm_backend *be, float *db, const float *dy, size_t lddy, uint32_t m,
                      uint32_t n)
{
    fmc_device *d = fmc_of(be);
    if (n > 0)
        FMC_RUN(d, k_bias_grad, fmc_blocks(n, FMC_STRIP), FMC_THREADS, 0, db, dy, lddy, m, n);
}

/* dst[col] += sum of dy * x: for dgain dy * (x * rstd[row]) (rstd NULL: x itself). */
__global__ void k_column_dots(float *dst, const float *dy, size_t lddy, const float *x, size_t ldx,
                              const float *rstd, uint32_t m, uint32_t n)
{
    FMC_SHARED(float, buf, [4 * FMC_STRIP_FLOATS]);
    uint32_t col = blockIdx.x * FMC_STRIP + threadIdx.x;
    float sum = fmc_column_sums<2, 1>(
        buf, m, n,
        [&](uint32_t row, uint32_t c, float(&v)[2]) {
            v[0] = dy[row * lddy + c];
            v[1] = x[row * ldx + c];
            if (rstd)
                v[1] = v[1] * rstd[row];
        },
        [](uint32_t, const float *v, float l) { return fmaf(v[0], v[FMC_STRIP_FLOATS], l); });
    if (threadIdx.x < FMC_STRIP && col < n)
        dst[col] = dst[col] + sum;
}

static void column_dots(fmc_device *d, float *dst, const float *dy, size_t lddy, const float *x,
                        size_t ldx, const float *rstd, uint32_t m, uint32_t n)
{
    if (n > 0)
        FMC_RUN(d, k_column_dots, fmc_blocks(n, FMC_STRIP), FMC_THREADS, 0, dst, dy, lddy, x, ldx,
                rstd, m, n);
}

__global__ void k_multiply(float *y, size_t ldy, const float *x, size_t ldx, const float *by,
                           uint32_t m, uint32_t n, bool wide)
{
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value], s[w.value];
        fmc_get(v, x + row * ldx + col);
        fmc_get(s, by + col);
        for (int j = 0; j < w.value; j++)
            v[j] = v[j] * s[j];
        fmc_put(y + row * ldy + col, v);
    });
}

void fmc_op_scale_grad(fm_backend *be, float *dx, size_t lddx, float *dscale, const float *dy,
                       size_t lddy, const float *x, size_t ldx, const float *scale, uint32_t m,
                       uint32_t n)
{
    if (dscale)
        column_dots(fmc_of(be), dscale, dy, lddy, x, ldx, NULL, m, n);
    if (dx)
        FMC_CELLS(fmc_of(be), k_multiply, m, n,
                  fmc_aligned(dx, dy, scale) && fmc_aligned_ld(lddx, lddy), dx, lddx, dy, lddy,
                  scale);
}

/* Block (i, c): if no row before i has its id, all rows with that id are added to columns c of
 * dw's row, in ascending order, by the thread of the column. */
#define SCAN 1024u /* ids looked at between two barriers */

/* Writes the rows of at .. min(at + SCAN, m) - 1 with this id, ascending; returns their number. */
FMC_DEVICE uint32_t rows_of_id(uint32_t *list, uint32_t *found, const int32_t *ids, int32_t id,
                               uint32_t at, uint32_t m)
{
    const uint32_t each = SCAN / FMC_THREADS, warps = FMC_THREADS / 32;
    uint32_t lane = threadIdx.x % 32, mine[SCAN / FMC_THREADS], total = 0;
    for (uint32_t k = 0; k < each; k++) {
        uint32_t j = at + k * FMC_THREADS + threadIdx.x;
        mine[k] = __ballot_sync(0xffffffffu, j < m && ids[j] == id);
        if (lane == 0)
            found[k * warps + threadIdx.x / 32] = mine[k];
    }
    __syncthreads();
    for (uint32_t word = 0; word < SCAN / 32; word++) {
        uint32_t k = word / warps;
        if (word % warps == threadIdx.x / 32 && (mine[k] >> lane & 1u))
            list[total + (uint32_t)__popc((int)(mine[k] & ((1u << lane) - 1u)))] =
                at + word * 32 + lane;
        total += (uint32_t)__popc((int)found[word]);
    }
    __syncthreads();
    return total;
}

FMC_DEVICE bool seen_before(uint32_t *flag, const int32_t *ids, int32_t id, uint32_t row)
{
    for (uint32_t end = row; end > 0;) {
        uint32_t begin = end > 4 * SCAN ? end - 4 * SCAN : 0;
        bool hit = false;
        for (uint32_t j = begin + threadIdx.x; j < end; j += blockDim.x)
            hit = hit || ids[j] == id;
        if (threadIdx.x == 0)
            *flag = 0;
        __syncthreads();
        if (hit)
            *flag = 1;
        __syncthreads();
        uint32_t any = *flag;
        __syncthreads();
        if (any)
            return true;
        end = begin;
    }
    return false;
}

template <int W>
__global__ void k_embed_grad(float *dw, const float *dy, size_t lddy, const int32_t *ids,
                             uint32_t m, uint32_t h)
{
    FMC_SHARED(uint32_t, list, [SCAN]);
    FMC_SHARED(uint32_t, found, [SCAN / 32]);
    FMC_SHARED(uint32_t, flag, [1]);
    uint32_t row = blockIdx.x, col = (blockIdx.y * FMC_THREADS + threadIdx.x) * W;
    int32_t id = ids[row];
    float sum[W] = {}, v[W];
    if (seen_before(flag, ids, id, row))
        return;
    float *out = dw + (size_t)id * h + col;
    if (col < h)
        fmc_get(sum, out);
    for (uint32_t at = row; at < m; at += SCAN) {
        uint32_t count = rows_of_id(list, found, ids, id, at, m);
        if (col < h) {
#pragma unroll 4
            for (uint32_t k = 0; k < count; k++) {
                fmc_get(v, dy + (size_t)list[k] * lddy + col);
                for (int j = 0; j < W; j++)
                    sum[j] = sum[j] + v[j];
            }
        }
    }
    if (col < h)
        fmc_put(out, sum);
}

void fmc_op_embed_grad(fm_backend *be, float *dw, const float *dy, size_t lddy, const int32_t *ids,
                       uint32_t m, uint32_t h)
{
    fmc_device *d = fmc_of(be);
    if (m == 0 || h == 0)
        return;
    if (fmc_aligned(dw, dy) && fmc_aligned_ld(lddy, h))
        FMC_RUN(d, (k_embed_grad<4>), dim3(m, fmc_blocks(h, 4 * FMC_THREADS)), FMC_THREADS, 0, dw,
                dy, lddy, ids, m, h);
    else
        FMC_RUN(d, (k_embed_grad<1>), dim3(m, fmc_blocks(h, FMC_THREADS)), FMC_THREADS, 0, dw, dy,
                lddy, ids, m, h);
}

/* ---- norms ---- */

/* With g = dy * gain, xhat = x * rstd: dx = rstd * (g - xhat * mean(g * xhat)). */
template <bool warp>
__global__ void k_rmsnorm_dx(fmc_rows r, float *dx, const float *dy, const float *x,
                             const float *gain, const float *rstd, size_t ldx, bool accumulate)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_group<warp> g(shared, r, 2);
    float *hats = g.tile + g.room;
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        const float *xr = x + row * ldx, *dyr = dy + row * ldx;
        float scale = rstd[row], sum[1];
        auto stage = [&](auto w, uint32_t i, uint32_t to) {
            float d[w.value], v[w.value], by[w.value];
            fmc_get(d, dyr + i);
            fmc_get(v, xr + i);
            fmc_get(by, gain + i);
            for (int j = 0; j < w.value; j++) {
                d[j] = d[j] * by[j];
                v[j] = v[j] * scale;
            }
            fmc_put(g.tile + to, d);
            fmc_put(hats + to, v);
        };
        fmc_row_sums(sum, g, r, stage,
                     [&](uint32_t at, float(&l)[1]) { l[0] = fmaf(g.tile[at], hats[at], l[0]); });
        float mean = 0.0f - sum[0] / (float)r.h;
        fmc_row_again(g, r, stage, [&](auto w, uint32_t i, uint32_t from) {
            float d[w.value], v[w.value], old[w.value], *at = dx + row * ldx + i;
            fmc_get(d, g.tile + from);
            fmc_get(v, hats + from);
            if (accumulate)
                fmc_get(old, at);
            for (int j = 0; j < w.value; j++) {
                d[j] = scale * fmaf(v[j], mean, d[j]);
                if (accumulate)
                    d[j] = old[j] + d[j];
            }
            fmc_put(at, d);
        });
    }
}

/* The gain's sums come first: dx may be dy. */
void fmc_op_rmsnorm_grad(fm_backend *be, float *dx, float *dgain, const float *dy, const float *x,
                         const float *gain, const float *rstd, uint32_t m, uint32_t h, size_t ldx,
                         bool accumulate_dx)
{
    fmc_device *d = fmc_of(be);
    if (dgain)
        column_dots(d, dgain, dy, ldx, x, ldx, rstd, m, h);
    if (dx)
        FMC_ROWS(d, k_rmsnorm_dx,
                 fmc_rows_of(m, h, 2, fmc_aligned(dx, dy, x, gain) && fmc_aligned_ld(ldx)), dx, dy,
                 x, gain, rstd, ldx, accumulate_dx);
}

/* stat[row] = mean, 1 / deviation */
template <bool warp>
__global__ void k_layernorm_stats(fmc_rows r, float *stat, const float *x, size_t ldx, float eps)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_group<warp> g(shared, r, 1);
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        float mean, rstd;
        fmc_row_moments(mean, rstd, g, r, x + row * ldx, eps);
        if (g.rank == 0) {
            stat[2 * (size_t)row] = mean;
            stat[2 * (size_t)row + 1] = rstd;
        }
    }
}

__global__ void k_layernorm_columns(float *dgain, float *dbias, const float *dy, const float *x,
                                    const float *stat, size_t ldx, uint32_t m, uint32_t n)
{
    FMC_SHARED(float, buf, [4 * FMC_STRIP_FLOATS]);
    uint32_t chain = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t col = blockIdx.x * FMC_STRIP + lane;
    float sum = fmc_column_sums<2, 2>(
        buf, m, n,
        [&](uint32_t row, uint32_t c, float(&v)[2]) {
            v[0] = dy[row * ldx + c];
            v[1] = (x[row * ldx + c] - stat[2 * (size_t)row]) * stat[2 * (size_t)row + 1];
        },
        [](uint32_t which, const float *v, float l) {
            return which == 0 ? fmaf(v[0], v[FMC_STRIP_FLOATS], l) : l + v[0];
        });
    float *dst = chain == 0 ? dgain : chain == 1 ? dbias : NULL;
    if (dst && lane < FMC_STRIP && col < n)
        dst[col] = dst[col] + sum;
}

/* With g = dy * gain: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)). */
template <bool warp>
__global__ void k_layernorm_dx(fmc_rows r, float *dx, const float *dy, const float *x,
                               const float *gain, const float *stat, size_t ldx, bool accumulate)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_group<warp> g(shared, r, 2);
    float *hats = g.tile + g.room;
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        const float *xr = x + row * ldx, *dyr = dy + row * ldx;
        float shift = stat[2 * (size_t)row], scale = stat[2 * (size_t)row + 1], sum[2];
        auto stage = [&](auto w, uint32_t i, uint32_t to) {
            float d[w.value], v[w.value], by[w.value];
            fmc_get(d, dyr + i);
            fmc_get(v, xr + i);
            if (gain)
                fmc_get(by, gain + i);
            for (int j = 0; j < w.value; j++) {
                if (gain)
                    d[j] = d[j] * by[j];
                v[j] = (v[j] - shift) * scale;
            }
            fmc_put(g.tile + to, d);
            fmc_put(hats + to, v);
        };
        fmc_row_sums(sum, g, r, stage, [&](uint32_t at, float(&l)[2]) {
            l[0] = l[0] + g.tile[at];
            l[1] = fmaf(g.tile[at], hats[at], l[1]);
        });
        float mean = sum[0] / (float)r.h, slope = 0.0f - sum[1] / (float)r.h;
        fmc_row_again(g, r, stage, [&](auto w, uint32_t i, uint32_t from) {
            float d[w.value], v[w.value], old[w.value], *at = dx + row * ldx + i;
            fmc_get(d, g.tile + from);
            fmc_get(v, hats + from);
            if (accumulate)
                fmc_get(old, at);
            for (int j = 0; j < w.value; j++) {
                d[j] = scale * fmaf(v[j], slope, d[j] - mean);
                if (accumulate)
                    d[j] = old[j] + d[j];
            }
            fmc_put(at, d);
        });
    }
}

void fmc_op_layernorm_grad(fm_backend *be, float *dx, float *dgain, float *dbias, const float *dy,
                           const float *x, const float *gain, uint32_t m, uint32_t h, size_t ldx,
                           float eps, bool accumulate_dx)
{
    fmc_device *d = fmc_of(be);
    float *stat = (float *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, 2 * (size_t)m * sizeof *stat);
    if (!stat)
        return;
    FMC_ROWS(d, k_layernorm_stats, fmc_rows_of(m, h, 1, fmc_aligned(x) && fmc_aligned_ld(ldx)),
             stat, x, ldx, eps);
    if ((dgain || dbias) && h > 0)
        FMC_RUN(d, k_layernorm_columns, fmc_blocks(h, FMC_STRIP), FMC_THREADS, 0, dgain, dbias, dy,
                x, stat, ldx, m, h);
    if (dx)
        FMC_ROWS(d, k_layernorm_dx,
                 fmc_rows_of(m, h, 2, fmc_aligned(dx, dy, x, gain) && fmc_aligned_ld(ldx)), dx, dy,
                 x, gain, stat, ldx, accumulate_dx);
}

/* ---- sums over a row, sums over everything ---- */

template <bool warp>
__global__ void k_row_dots(fmc_rows r, float *out, const float *a, size_t lda, const float *b,
                           size_t ldb, const int32_t *rows_of_b)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_group<warp> g(shared, r, 2);
    float *others = g.tile + g.room;
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        const float *ar = a + row * lda;
        const float *br = b + (rows_of_b ? (size_t)rows_of_b[row] : row) * ldb;
        float sum[1];
        fmc_row_sums(
            sum, g, r,
            [&](auto w, uint32_t i, uint32_t to) {
                float v[w.value];
                fmc_get(v, ar + i);
                fmc_put(g.tile + to, v);
                fmc_get(v, br + i);
                fmc_put(others + to, v);
            },
            [&](uint32_t at, float(&l)[1]) { l[0] = fmaf(g.tile[at], others[at], l[0]); });
        if (g.rank == 0)
            out[row] = sum[0];
    }
}

void fmc_op_row_dots(fm_backend *be, float *out, const float *a, size_t lda, const float *b,
                     size_t ldb, const int32_t *rows_of_b, uint32_t m, uint32_t n)
{
    FMC_ROWS(fmc_of(be), k_row_dots,
             fmc_rows_of(m, n, 2, fmc_aligned(a, b) && fmc_aligned_ld(lda, ldb)), out, a, lda, b,
             ldb, rows_of_b);
}

#define SUM_BLOCK 65536u /* elements of one partial sum of squares */
#define SUM_PIECE 4096u

__global__ void k_square_blocks(double *partial, const float *x, uint64_t n, uint64_t blocks,
                                bool wide)
{
    FMC_SHARED(float, buf, [2 * SUM_PIECE]);
    FMC_SHARED(double, stat, [1]);
    for (uint64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
        const float *from = x + b * SUM_BLOCK;
        uint64_t left = n - b * SUM_BLOCK;
        double sum[1];
        fmc_long_sums<1, SUM_PIECE>(
            sum, stat, buf, (uint32_t)(left < SUM_BLOCK ? left : SUM_BLOCK), wide,
            [&](auto w, uint32_t i, float *tile, uint32_t to) {
                float v[w.value];
                fmc_get(v, from + i);
                fmc_put(tile + to, v);
            },
            [](uint32_t, const float *tile, uint32_t at, double l) {
                return l + (double)tile[at] * (double)tile[at]; /* the product is exact */
            });
        if (threadIdx.x == 0)
            partial[b] = sum[0];
    }
}

/* One chain over the blocks' sums; the other threads load them. */
__global__ void k_square_sum(double *out, const double *partial, uint64_t blocks)
{
    FMC_SHARED(double, tile, [4 * FMC_THREADS]);
    double sum = 0.0;
    for (uint64_t at = 0; at < blocks; at += 4 * FMC_THREADS) {
        uint32_t n = blocks - at < 4 * FMC_THREADS ? (uint32_t)(blocks - at) : 4 * FMC_THREADS;
        for (uint32_t i = threadIdx.x; i < n; i += FMC_THREADS)
            tile[i] = partial[at + i];
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (uint32_t i = 0; i < n; i++)
                sum = sum + tile[i];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = *out + sum;
}

void fmc_op_block_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    fmc_device *d = fmc_of(be);
    uint64_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    if (blocks > 0)
        FMC_RUN(d, k_square_blocks, fmc_blocks(blocks, 1), fmc_long<1>::threads, 0, out, x, n,
                blocks, fmc_aligned(x));
}

void fmc_op_sum_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    fmc_device *d = fmc_of(be);
    uint64_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    double *partial = (double *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, blocks * sizeof *partial);
    if (!partial)
        return;
    fmc_op_block_squares(be, partial, x, n);
    FMC_RUN(d, k_square_sum, 1, FMC_THREADS, 0, out, partial, blocks);
}
