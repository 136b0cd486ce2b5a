/* elem.cu - norms, rope, pages of keys and values and element-wise operations of
 * inference. All are bound by the bytes that they read and write. */
#include "infer/cuda/rows.h"

/* ---- elements ---- */

__global__ void k_add(float *y, const float *x, uint64_t n, bool wide)
{
    fmc_take_turn();
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float a[w.value], b[w.value];
        fmc_get(a, y + i);
        fmc_get(b, x + i);
        for (int j = 0; j < w.value; j++)
            a[j] = a[j] + b[j];
        fmc_put(y + i, a);
    });
}

__global__ void k_scale(float *y, float s, uint64_t n, bool wide)
{
    fmc_take_turn();
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float a[w.value];
        fmc_get(a, y + i);
        for (int j = 0; j < w.value; j++)
            a[j] = a[j] * s;
        fmc_put(y + i, a);
    });
}

__global__ void k_swiglu(float *y, const float *gate, const float *up, uint64_t n, bool wide)
{
    fmc_take_turn();
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float g[w.value], u[w.value];
        fmc_get(g, gate + i);
        fmc_get(u, up + i);
        for (int j = 0; j < w.value; j++)
            g[j] = (g[j] * fmc_sigmoid(g[j])) * u[j];
        fmc_put(y + i, g);
    });
}

void fmc_op_add(fm_backend *be, float *y, const float *x, uint64_t n)
{
    FMC_SPAN_BY(FMC_RUN_PDL, fmc_of(be), k_add, n, fmc_aligned(y, x), y, x);
}

void fmc_op_scale(fm_backend *be, float *y, float s, uint64_t n)
{
    FMC_SPAN_BY(FMC_RUN_PDL, fmc_of(be), k_scale, n, fmc_aligned(y), y, s);
}

void fmc_op_swiglu(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n)
{
    FMC_SPAN_BY(FMC_RUN_PDL, fmc_of(be), k_swiglu, n, fmc_aligned(y, gate, up), y, gate, up);
}

/* ---- rows ---- */

__global__ void k_affine(float *y, size_t ldy, const float *scale, const float *bias,
                         uint32_t first, const int32_t *rows, uint32_t m, uint32_t n, bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value], s[w.value], b[w.value];
        float *at = y + (rows ? (size_t)rows[row] : (size_t)first + row) * ldy + col;
        fmc_get(v, at);
        if (scale)
            fmc_get(s, scale + col);
        if (bias)
            fmc_get(b, bias + col);
        for (int j = 0; j < w.value; j++) {
            if (scale)
                v[j] = v[j] * s[j];
            if (bias)
                v[j] = v[j] + b[j];
        }
        fmc_put(at, v);
    });
}

void fmc_op_affine(fm_backend *be, float *y, size_t ldy, uint32_t n, const float *scale,
                   const float *bias, uint32_t first, uint32_t m, const int32_t *rows)
{
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_affine, m, n,
                 fmc_aligned(y, scale, bias) && fmc_aligned_ld(ldy), y, ldy, scale, bias, first,
                 rows);
}

__global__ void k_copy_rows(float *y, size_t ldy, const float *x, size_t ldx, const int32_t *rows,
                            uint32_t m, uint32_t n, bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        float v[w.value];
        fmc_get(v, x + (rows ? (size_t)rows[row] : row) * ldx + col);
        fmc_put(y + row * ldy + col, v);
    });
}

void fmc_op_copy_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                      const int32_t *rows_of_x, uint32_t m, uint32_t n)
{
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_copy_rows, m, n,
                 fmc_aligned(y, x) && fmc_aligned_ld(ldy, ldx), y, ldy, x, ldx, rows_of_x);
}

/* A cell is a pair (2i, 2i + 1) of a head. */
__global__ void k_rope_pairs(float *x, size_t ldx, const int32_t *pos, const float *cos_table,
                             const float *sin_table, uint32_t half, float sign, uint32_t m,
                             uint32_t n, bool wide)
{
    fmc_take_turn();
    (void)wide;
    fmc_cells(m, n, false, [&](auto, uint32_t row, uint32_t col) {
        uint32_t head = col / half, i = col - head * half;
        float *at = x + row * ldx + (size_t)head * 2 * half + 2 * i;
        size_t angle = (size_t)pos[row] * half + i;
        float c = cos_table[angle], turn = sign * sin_table[angle], a = at[0], b = at[1];
        at[0] = fmc_turn_low(a, b, c, turn);
        at[1] = fmc_turn_high(a, b, c, turn);
    });
}

/* A cell is a pair (i, i + half) of a head. */
__global__ void k_rope(float *x, size_t ldx, const int32_t *pos, const float *cos_table,
                       const float *sin_table, uint32_t half, float sign, uint32_t m, uint32_t n,
                       bool wide)
{
    fmc_take_turn();
    fmc_cells(m, n, wide, [&](auto w, uint32_t row, uint32_t col) {
        uint32_t head = col / half, i = col - head * half;
        float *at = x + row * ldx + (size_t)head * 2 * half + i;
        size_t angle = (size_t)pos[row] * half + i;
        float c[w.value], s[w.value], lo[w.value], hi[w.value];
        fmc_get(c, cos_table + angle);
        fmc_get(s, sin_table + angle);
        fmc_get(lo, at);
        fmc_get(hi, at + half);
        for (int j = 0; j < w.value; j++) {
            float turn = sign * s[j], a = lo[j], b = hi[j];
            lo[j] = fmc_turn_low(a, b, c[j], turn);
            hi[j] = fmc_turn_high(a, b, c[j], turn);
        }
        fmc_put(at, lo);
        fmc_put(at + half, hi);
    });
}

void fmc_op_rope(fm_backend *be, float *x, size_t ldx, const int32_t *pos, const float *cos_table,
                 const float *sin_table, uint32_t m, uint32_t heads, uint32_t hd, bool pairs,
                 bool inverse)
{
    uint32_t half = hd / 2;
    if (pairs) {
        FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_rope_pairs, m, heads * half, false, x, ldx, pos,
                     cos_table, sin_table, half, inverse ? -1.0f : 1.0f);
        return;
    }
    FMC_CELLS_BY(FMC_RUN_PDL, fmc_of(be), k_rope, m, heads * half,
                 fmc_aligned(x, cos_table, sin_table) && fmc_aligned_ld(ldx, half), x, ldx, pos,
                 cos_table, sin_table, half, inverse ? -1.0f : 1.0f);
}

/* y = x rstd gain of a row. */
template <class G>
FMC_DEVICE void put_normed(const G &g, const fmc_rows &r, float *y, const float *x,
                           const float *gain, float rstd)
{
    fmc_span(g.rank, g.size, r.h, r.wide, [&](auto w, uint32_t i) {
        float v[w.value], by[w.value];
        fmc_get(v, x + i);
        fmc_get(by, gain + i);
        for (int j = 0; j < w.value; j++)
            v[j] = (v[j] * rstd) * by[j];
        fmc_put(y + i, v);
    });
}

template <bool warp>
__global__ void k_rmsnorm(fmc_rows r, float *y, const float *x, const float *gain, float *rstd_out,
                          size_t ldx, float eps)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_take_turn();
    fmc_group<warp> g(shared, r, 1);
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        const float *xr = x + row * ldx;
        float sum[1];
        fmc_row_sums(
            sum, g, r,
            [&](auto w, uint32_t i, uint32_t to) {
                float v[w.value];
                fmc_get(v, xr + i);
                fmc_put(g.tile + to, v);
            },
            [&](uint32_t at, float(&l)[1]) { l[0] = fmaf(g.tile[at], g.tile[at], l[0]); });
        float rstd = 1.0f / sqrtf(sum[0] / (float)r.h + eps);
        put_normed(g, r, y + row * ldx, r.h <= g.room ? g.tile : xr, gain, rstd);
        if (rstd_out && g.rank == 0)
            rstd_out[row] = rstd;
    }
}

void fmc_op_rmsnorm(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                    uint32_t m, uint32_t h, size_t ldx, float eps)
{
    FMC_ROWS_BY(FMC_RUN_PDL, fmc_of(be), k_rmsnorm,
                fmc_rows_of(m, h, 1, fmc_aligned(y, x, gain) && fmc_aligned_ld(ldx)), y, x, gain,
                rstd_out, ldx, eps);
}

/* k_add and then k_rmsnorm in one kernel: the sum is written while the row is loaded. */
template <bool warp>
__global__ void k_add_rmsnorm(fmc_rows r, float *y, float *x, const float *branch,
                              const float *gain, float eps)
{
    FMC_SHARED_DYNAMIC(float, shared);
    fmc_take_turn();
    fmc_group<warp> g(shared, r, 1);
    for (uint32_t row = g.first; row < r.m; row += g.step) {
        float *xr = x + (size_t)row * r.h;
        const float *br = branch + (size_t)row * r.h;
        float sum[1];
        fmc_row_sums(
            sum, g, r,
            [&](auto w, uint32_t i, uint32_t to) {
                float v[w.value], b[w.value];
                fmc_get(v, xr + i);
                fmc_get(b, br + i);
                for (int j = 0; j < w.value; j++)
                    v[j] = v[j] + b[j];
                fmc_put(xr + i, v);
                fmc_put(g.tile + to, v);
            },
            [&](uint32_t at, float(&l)[1]) { l[0] = fmaf(g.tile[at], g.tile[at], l[0]); });
        float rstd = 1.0f / sqrtf(sum[0] / (float)r.h + eps);
        put_normed(g, r, y + (size_t)row * r.h, r.h <= g.room ? g.tile : xr, gain, rstd);
    }
}

void fmc_op_add_rmsnorm(fm_backend *be, float *y, float *x, const float *branch, const float *gain,
                        uint32_t m, uint32_t h, float eps)
{
    FMC_ROWS_BY(FMC_RUN_PDL, fmc_of(be), k_add_rmsnorm,
                fmc_rows_of(m, h, 1, fmc_aligned(y, x, branch, gain) && fmc_aligned_ld(h)), y, x,
                branch, gain, eps);
}

/* ---- pages of keys and values ---- */

size_t fmc_op_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return (size_t)nkv * hd * FM_KV_PAGE * sizeof(float);
}

__global__ void k_kv_copy(float *k, float *v, size_t dst, size_t src, uint64_t n, bool wide)
{
    fmc_span(fmc_index(), fmc_stride(), n, wide, [&](auto w, uint64_t i) {
        float a[w.value], b[w.value];
        fmc_get(a, k + src + i);
        fmc_get(b, v + src + i);
        fmc_put(k + dst + i, a);
        fmc_put(v + dst + i, b);
    });
}

/* Copies a page whatever it holds, so modes with other pages use it too. */
void fmc_op_kv_copy(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                    uint32_t hd)
{
    uint64_t n = be->kv_page_bytes(be, nkv, hd) / sizeof(float);
    FMC_SPAN(fmc_of(be), k_kv_copy, n, fmc_aligned(kv.k, kv.v) && n % 4 == 0, (float *)kv.k,
             (float *)kv.v, (size_t)dst * n, (size_t)src * n);
}

#define KV_TILE 32u
#define KEEP_ROWS 256u /* most rows of a launch of k_keep_rows */

/* Keys are transposed: 32 rows by 32 columns pass through shared memory, so that positions that are
 * adjacent in a page are written side by side. */
__global__ void k_kv_write(float *k_pages, float *v_pages, const float *k, size_t ldk,
                           const float *v, size_t ldv, const int32_t *slot, uint32_t m,
                           uint32_t nkv, uint32_t hd)
{
    FMC_SHARED(float, tile, [KV_TILE][KV_TILE + 1]);
    FMC_SHARED(size_t, base, [KV_TILE]); /* of the row's page, in floats */
    FMC_SHARED(uint32_t, offset, [KV_TILE]);
    fmc_take_turn();
    uint32_t n = nkv * hd, row0 = blockIdx.x * KV_TILE, col0 = blockIdx.y * KV_TILE;
    uint32_t a = threadIdx.x % KV_TILE, b = threadIdx.x / KV_TILE, step = blockDim.x / KV_TILE;
    uint32_t rows = m - row0 < KV_TILE ? m - row0 : KV_TILE;
    if (threadIdx.x < rows) {
        uint32_t at = (uint32_t)slot[row0 + threadIdx.x];
        base[threadIdx.x] = (size_t)(at / FM_KV_PAGE) * n * FM_KV_PAGE;
        offset[threadIdx.x] = at % FM_KV_PAGE;
    }
    __syncthreads();
    if (col0 + a < n) {
        uint32_t col = col0 + a, head = col / hd, d = col - head * hd;
        for (uint32_t i = b; i < rows; i += step) {
            tile[a][i] = k[(row0 + i) * ldk + col];
            v_pages[base[i] + ((size_t)head * FM_KV_PAGE + offset[i]) * hd + d] =
                v[(row0 + i) * ldv + col];
        }
    }
    __syncthreads();
    if (a < rows)
        for (uint32_t i = b; i < KV_TILE && col0 + i < n; i += step)
            k_pages[base[a] + (size_t)(col0 + i) * FM_KV_PAGE + offset[a]] = tile[i][a];
}

void fmc_op_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                     size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    fmc_device *d = fmc_of(be);
    dim3 grid(fmc_blocks(m, KV_TILE), fmc_blocks((uint64_t)nkv * hd, KV_TILE));
    if (m > 0 && nkv > 0 && hd > 0)
        FMC_RUN_PDL(d, k_kv_write, grid, FMC_THREADS, 0, (float *)kv.k, (float *)kv.v, k, ldk, v,
                     ldv, slot, m, nkv, hd);
}

/* As k_kv_write, with keys rotated while they are loaded; the blocks behind those of keys rotate q,
 * each KV_TILE rows by FMC_THREADS pairs. */
__global__ void k_keep_rows(fm_new_rows r, uint32_t kv_blocks)
{
    FMC_SHARED(float, tile, [KV_TILE][KV_TILE + 1]);
    FMC_SHARED(size_t, base, [KV_TILE]); /* of the row's page, in floats */
    FMC_SHARED(uint32_t, offset, [KV_TILE]);
    fmc_take_turn();
    uint32_t n = r.nkv * r.hd, row0 = blockIdx.x * KV_TILE, col0 = blockIdx.y * KV_TILE;
    uint32_t a = threadIdx.x % KV_TILE, b = threadIdx.x / KV_TILE, step = blockDim.x / KV_TILE;
    uint32_t rows = r.m - row0 < KV_TILE ? r.m - row0 : KV_TILE;
    if (blockIdx.y >= kv_blocks) {
        uint32_t half = r.turns / 2, at = (blockIdx.y - kv_blocks) * FMC_THREADS + threadIdx.x;
        for (uint32_t i = row0; i < row0 + rows && at < r.nh * half; i++)
            fmc_turn_pair(r.q + i * r.ldq + (size_t)(at / half) * r.hd, at % half, r, i);
        return;
    }
    if (threadIdx.x < rows) {
        uint32_t at = (uint32_t)r.slot[row0 + threadIdx.x];
        base[threadIdx.x] = (size_t)(at / FM_KV_PAGE) * n * FM_KV_PAGE;
        offset[threadIdx.x] = at % FM_KV_PAGE;
    }
    __syncthreads();
    if (col0 + a < n) {
        uint32_t col = col0 + a, head = col / r.hd, d = col - head * r.hd;
        for (uint32_t i = b; i < rows; i += step) {
            tile[a][i] = fmc_turned(r.k + (row0 + i) * r.ldk + (size_t)head * r.hd, d, r, row0 + i);
            ((float *)r.kv.v)[base[i] + ((size_t)head * FM_KV_PAGE + offset[i]) * r.hd + d] =
                r.v[(row0 + i) * r.ldv + col];
        }
    }
    __syncthreads();
    if (a < rows)
        for (uint32_t i = b; i < KV_TILE && col0 + i < n; i += step)
            ((float *)r.kv.k)[base[a] + (size_t)(col0 + i) * FM_KV_PAGE + offset[a]] = tile[i][a];
}

/* With many rows the separate operations are faster: 16 bytes a load. */
bool fmc_keep_apart(fm_backend *be, const fm_new_rows *r)
{
    bool whole = r->turns == r->hd;
    if (r->m <= KEEP_ROWS)
        return false;
    for (uint32_t h = 0; h < (whole ? 1 : r->nh); h++)
        be->rope(be, r->q + (size_t)h * r->hd, r->ldq, r->pos, r->cos, r->sin, r->m,
                 whole ? r->nh : 1, r->turns, false, false);
    for (uint32_t h = 0; h < (whole ? 1 : r->nkv); h++)
        be->rope(be, r->k + (size_t)h * r->hd, r->ldk, r->pos, r->cos, r->sin, r->m,
                 whole ? r->nkv : 1, r->turns, false, false);
    be->kv_write(be, r->kv, r->k, r->ldk, r->v, r->ldv, r->slot, r->m, r->nkv, r->hd);
    return true;
}

void fmc_op_keep_rows(fm_backend *be, const fm_new_rows *r)
{
    unsigned kv_blocks = fmc_blocks((uint64_t)r->nkv * r->hd, KV_TILE);
    unsigned q_blocks = fmc_blocks((uint64_t)r->nh * (r->turns / 2), FMC_THREADS);
    if (r->m > 0 && !fmc_keep_apart(be, r))
        FMC_RUN_PDL(fmc_of(be), k_keep_rows, dim3(fmc_blocks(r->m, KV_TILE), kv_blocks + q_blocks),
                     FMC_THREADS, 0, *r, kv_blocks);
}
