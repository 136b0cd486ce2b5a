/* act.cu - layer norm, activations, softcaps and mixtures of rows: bound by bytes; only gelu of a
 * large batch comes near to the limit of instructions. */
#include "infer/cuda/detmath.h"
#include "infer/cuda/rows.h"

template <bool warp>
__global__ void k_layernorm(fmc_rows r, float *y, const float *x, const float *gain,
                            const float *bias, size_t ldx, float eps)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_take_turn();
    fmc_group<warp> g(shared, r, 1);
    bool whole = r.h <= g.room;
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        const float *xr = x + row * ldx;
        float mean, scale;
        fmc_row_moments(mean, scale, g, r, xr, eps);
        fmc_span(g.rank, g.size, r.h, r.wide, [&](auto w, uint32_t i) {
            float v[w.value], b[w.value];
            fmc_get(v, (whole ? g.tile : xr) + i);
            for (int j = 0; j < w.value; j++)
                v[j] = (whole ? v[j] : v[j] - mean) * scale;
            if (gain) {
                fmc_get(b, gain + i);
                for (int j = 0; j < w.value; j++)
                    v[j] = v[j] * b[j];
            }
            if (bias) {
                fmc_get(b, bias + i);
                for (int j = 0; j < w.value; j++)
                    v[j] = v[j] + b[j];
            }
            fmc_put(y + row * ldx + i, v);
        });
    }
}

void fmc_op_layernorm(fm_backend *be, float *y, const float *x, const float *gain,
                      const float *bias, uint32_t m, uint32_t h, size_t ldx, float eps)
{
    FMC_ROWS_BY(FMC_RUN_PDL, fmc_of(be), k_layernorm,
                fmc_rows_of(m, h, 1, fmc_aligned(y, x, gain, bias) && fmc_aligned_ld(ldx)), y, x,
                gain, bias, ldx, eps);
}

__global__ void k_act(fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                      const float *up, size_t ldu, uint32_t m, uint32_t n, bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value], u[w.value] = {};
        fmc_get(v, gate + row * ldg + col);
        if (up)
            fmc_get(u, up + row * ldu + col);
        for (int j = 0; j < w.value; j++) {
            v[j] = fmc_act(f, v[j]);
            if (up)
                v[j] = v[j] * fmc_act_factor(f, u[j]);
        }
        fmc_put(y + row * ldy + col, v);
    });
}

void fmc_op_act(fm_backend *be, fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    if (!up)
        ldu = 0;
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_act, m, n,
                 fmc_aligned(y, gate, up) && fmc_aligned_ld(ldy, ldg, ldu), f, y, ldy, gate, ldg,
                 up, ldu);
}

__global__ void k_xielu(float *y, size_t ldy, const float *x, size_t ldx, const float *param,
                        uint32_t m, uint32_t n)
{
    const double a = param[0], b = param[1], beta = param[2], eps = param[3];
    for (uint64_t i = fmc_index(); i < (uint64_t)m * n; i += fmc_stride()) {
        size_t row = i / n, col = i % n;
        double v = x[row * ldx + col], low = v < eps ? v : eps;
        double f = v > 0.0 ? a * v * v : b * ((fmc_exp_dd(low, 0.0) - 1.0) - v);
        y[row * ldy + col] = (float)(f + beta * v);
    }
}

void fmc_op_xielu(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                  const float *param, uint32_t m, uint32_t n)
{
    if (m > 0 && n > 0)
        FMC_RUN(fmc_of(be), k_xielu, fmc_blocks((uint64_t)m * n, FMC_THREADS), FMC_THREADS, 0, y,
                ldy, x, ldx, param, m, n);
}

/* A block a row. Bits of floats without sign are ordered as their values are, NaN at the top. */
__global__ void k_round_rows(float *y, size_t ldy, float *grain, const float *x, size_t ldx,
                             uint32_t m, uint32_t n)
{
    FMC_SHARED(uint32_t, stat, [32]);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        const float *from = x + row * ldx;
        uint32_t most = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            uint32_t bits = __float_as_uint(from[i]) & 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        for (int by = 16; by > 0; by /= 2) {
            uint32_t other = __shfl_xor_sync(0xffffffffu, most, by);
            most = other > most ? other : most;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            stat[threadIdx.x / 32] = most;
        __syncthreads();
        most = stat[0];
        for (uint32_t i = 1; i < blockDim.x / 32; i++)
            most = stat[i] > most ? stat[i] : most;
        float largest = __uint_as_float(most);
        float s = 127.0f / (largest < 1e-5f ? 1e-5f : largest);
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            y[row * ldy + i] = ((from[i] * s + 12582912.0f) - 12582912.0f) / s;
        if (threadIdx.x == 0)
            grain[row] = s;
    }
}

void fmc_op_round_rows(fm_backend *be, float *y, size_t ldy, float *grain, const float *x,
                       size_t ldx, uint32_t m, uint32_t n)
{
    if (m > 0 && n > 0)
        FMC_RUN(fmc_of(be), k_round_rows, fmc_blocks(m, 1), FMC_THREADS, 0, y, ldy, grain, x, ldx,
                m, n);
}

__global__ void k_xielu_grad(float *dx, size_t lddx, const float *dy, size_t lddy, const float *x,
                             size_t ldx, const float *param, uint32_t m, uint32_t n)
{
    const double a = param[0], b = param[1], beta = param[2], eps = param[3];
    for (uint64_t i = fmc_index(); i < (uint64_t)m * n; i += fmc_stride()) {
        size_t row = i / n, col = i % n;
        double v = x[row * ldx + col];
        double slope = v > 0.0 ? 2.0 * a * v : b * (v < eps ? fmc_exp_dd(v, 0.0) - 1.0 : -1.0);
        dx[row * lddx + col] = (float)((double)dy[row * lddy + col] * (slope + beta));
    }
}

void fmc_op_xielu_grad(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                       const float *x, size_t ldx, const float *param, uint32_t m, uint32_t n)
{
    if (m > 0 && n > 0)
        FMC_RUN(fmc_of(be), k_xielu_grad, fmc_blocks((uint64_t)m * n, FMC_THREADS), FMC_THREADS, 0,
                dx, lddx, dy, lddy, x, ldx, param, m, n);
}

__global__ void k_softcap(float *y, size_t ldy, float cap, uint32_t m, uint32_t n, bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value], *at = y + row * ldy + col;
        fmc_get(v, at);
        for (int j = 0; j < w.value; j++)
            v[j] = cap * fmc_tanh(v[j] / cap);
        fmc_put(at, v);
    });
}

void fmc_op_softcap(fm_backend *be, float *y, size_t ldy, uint32_t m, uint32_t n, float cap)
{
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_softcap, m, n, fmc_aligned(y) && fmc_aligned_ld(ldy), y,
                 ldy, cap);
}

__global__ void k_mix_rows(float *y, size_t ldy, const float *x, size_t ldx, const int32_t *from,
                           const float *weight, uint32_t per, uint32_t m, uint32_t n, bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float sum[w.value], v[w.value];
        for (int j = 0; j < w.value; j++)
            sum[j] = 0.0f;
        for (uint32_t k = 0; k < per; k++) {
            size_t at = (size_t)row * per + k;
            float by = weight[at];
            fmc_get(v, x + (size_t)from[at] * ldx + col);
            for (int j = 0; j < w.value; j++)
                sum[j] = fmaf(by, v[j], sum[j]);
        }
        fmc_put(y + row * ldy + col, sum);
    });
}

void fmc_op_mix_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                     const int32_t *row, const float *weight, uint32_t per, uint32_t m, uint32_t n)
{
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_mix_rows, m, n,
                 fmc_aligned(y, x) && fmc_aligned_ld(ldy, ldx), y, ldy, x, ldx, row, weight, per);
}
