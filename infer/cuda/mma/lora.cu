/* lora.cu - low-rank terms of mixed ranks: all terms of a list in two launches, by segments; ranks
 * are padded to a multiple of 16 for mma, and not to each other's.
 *
 * u = x A^T is an ordinary list of products (f32). y += (scale u) B^T: scale * u is split into two
 * bf16, the rounded value and the remainder; a chain of mma runs over steps of 16 of r ascending
 * from +0, in a step the rounded one first; its sum is then added to y. A warp has 16 outputs, or
 * 64 at rank 16 (2 KB of B in flight); B's operand stays in registers for r <= 64 while it walks
 * the term's rows. Bound by the bytes of A, B and y. */
#include "infer/cuda/mma/fast.h"
#include "infer/cuda/find.h"
#include "infer/cuda/ptx.h"

#define HELD 4u        /* steps of B in registers, of one panel or more */
#define ROWS_BLOCK 64u /* rows of a block */
#define WARPS (FMC_THREADS / 32)
#define TERMS_MAX 256u

typedef struct expand_job {
    float *y;
    size_t ldy;
    const unsigned char *b; /* [n, r] in steps of 512 bytes */
    const float *u;         /* [m, r], 8-byte aligned */
    const int32_t *rows, *from, *to;
    float scale;
    uint32_t first, m, n, r;
    uint32_t begin; /* block at which it begins */
    uint32_t each;  /* panels of a warp: 1 .. max(1, HELD / steps) */
} expand_job;

/* Row i of u at step s as the second operand: the rounded values and the remainder. */
FMC_DEVICE void expand_operand(uint32_t high[2], uint32_t low[2], const expand_job *j, uint32_t i,
                               uint32_t s)
{
    const float *u = j->u + (size_t)i * j->r;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t k = 16 * s + 8 * h + threadIdx.x % 4 * 2;
        float v[2] = {0.0f, 0.0f}, rest[2];
        if (i < j->m && k + 1 < j->r && j->r % 2 == 0) {
            float2 both = *(const float2 *)(const void *)(u + k);
            v[0] = both.x * j->scale;
            v[1] = both.y * j->scale;
        } else {
#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                v[e] = i < j->m && k + e < j->r ? u[k + e] * j->scale : 0.0f;
        }
        high[h] = fmc_pack_bf16(v[0], v[1]);
        rest[0] = v[0] - __uint_as_float(high[h] << 16);
        rest[1] = v[1] - __uint_as_float(high[h] & 0xffff0000u);
        low[h] =
            fmc_pack_bf16(isfinite(rest[0]) ? rest[0] : 0.0f, isfinite(rest[1]) ? rest[1] : 0.0f);
    }
}

/* This lane's elements of rows i, i + 1 of y: those at 0 and 8 of a panel. */
typedef struct expand_cell {
    float *line[2]; /* at the panel's first output of this lane; not read where !has */
    uint32_t n;     /* outputs from there on */
    bool has[2];
} expand_cell;

FMC_DEVICE expand_cell expand_cell_of(const expand_job *j, uint32_t panel, uint32_t i)
{
    const uint32_t n = panel * FMC_OUTPUTS + threadIdx.x % 32 / 4;
    expand_cell c;
    c.n = n < j->n ? j->n - n : 0;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        c.has[e] = i + e < j->m;
        size_t row = c.has[e] && j->rows ? (size_t)j->rows[i + e] : (size_t)j->first + i + e;
        c.line[e] = j->y + row * j->ldy + n;
    }
    return c;
}

/* One tile of rows by one panel; i is this lane's row: steps in registers; `more`: also the
 * rest. */
template <uint32_t STEPS, bool more>
FMC_DEVICE void expand_panel(float acc[4], const uint32_t (&held)[STEPS][4],
                             const uint32_t (&high)[STEPS][2], const uint32_t (&low)[STEPS][2],
                             const expand_job *j, const uint4 *b, uint32_t i)
{
    const uint32_t steps = (j->r + 15) / 16;
#pragma unroll
    for (uint32_t s = 0; s < STEPS; s++)
        if (s < steps) {
            fmc_mma_bf16(acc, held[s], high[s]);
            fmc_mma_bf16(acc, held[s], low[s]);
        }
    for (uint32_t s = STEPS; more && s < steps; s++) {
        uint4 v = b[s * 32];
        uint32_t a[4] = {v.x, v.y, v.z, v.w}, h[2], l[2];
        expand_operand(h, l, j, i, s);
        fmc_mma_bf16(acc, a, h);
        fmc_mma_bf16(acc, a, l);
    }
}

/* Rows row .. end - 1 by EACH panels of STEPS steps in registers; a panel's further steps are read
 * for each tile of rows. All operands of a tile are requested before its first mma. */
template <uint32_t STEPS, uint32_t EACH>
FMC_DEVICE void expand_rows(const expand_job *j, uint32_t panel, uint32_t row, uint32_t end)
{
    const uint32_t steps = (j->r + 15) / 16, lane = threadIdx.x % 32;
    const uint4 *b = (const uint4 *)(const void *)(j->b + (size_t)panel * steps * 512) + lane;
    uint32_t held[EACH][STEPS][4];
#pragma unroll
    for (uint32_t p = 0; p < EACH; p++)
#pragma unroll
        for (uint32_t s = 0; s < STEPS; s++) {
            bool there = s < steps && (panel + p) * FMC_OUTPUTS < j->n;
            uint4 v = there ? b[(p * steps + s) * 32] : make_uint4(0, 0, 0, 0);
            held[p][s][0] = v.x;
            held[p][s][1] = v.y;
            held[p][s][2] = v.z;
            held[p][s][3] = v.w;
        }
    fmc_wait_for_turn(); /* B is a weight */
    for (; row < end; row += FMC_TILE_ROWS) {
        uint32_t i = row + 2 * (lane % 4), high[STEPS][2], low[STEPS][2];
        const expand_cell c = expand_cell_of(j, panel, i);
        float y[EACH][4];
#pragma unroll
        for (uint32_t p = 0; p < EACH; p++)
#pragma unroll
            for (uint32_t q = 0; q < 4; q++) {
                const uint32_t n = p * FMC_OUTPUTS + q / 2 * 8;
                y[p][q] = c.has[q % 2] && n < c.n ? c.line[q % 2][n] : 0.0f;
            }
#pragma unroll
        for (uint32_t s = 0; s < STEPS; s++)
            expand_operand(high[s], low[s], j, row + lane / 4, s);
#pragma unroll
        for (uint32_t p = 0; p < EACH; p++) {
            float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            expand_panel<STEPS, EACH == 1>(acc, held[p], high, low, j, b, row + lane / 4);
#pragma unroll
            for (uint32_t q = 0; q < 4; q++) {
                const uint32_t n = p * FMC_OUTPUTS + q / 2 * 8;
                if (c.has[q % 2] && n < c.n)
                    c.line[q % 2][n] = y[p][q] + acc[q];
            }
        }
    }
}

__global__ void __launch_bounds__(FMC_THREADS, 3)
    k_fast_expand(const expand_job *list, uint32_t count)
{
    expand_job j = list[fmc_find_begin(list, count)];
    fmc_let_next();
    if (j.from)
        fmc_wait_for_turn(); /* only the device knows how many rows there are */
    if (fmc_settle(&j)) {
        fmc_wait_for_turn();
        return;
    }
    uint32_t warp = (blockIdx.x - j.begin) * WARPS + threadIdx.x / 32;
    uint32_t panel = warp * j.each;
    uint32_t row = blockIdx.y * ROWS_BLOCK, end = row + ROWS_BLOCK < j.m ? row + ROWS_BLOCK : j.m;
    if (panel * FMC_OUTPUTS >= j.n || row >= j.m) {
        fmc_wait_for_turn();
        return; /* whole warps; there is no barrier */
    }
    if (j.each == HELD)
        expand_rows<1, HELD>(&j, panel, row, end);
    else if (j.each == HELD / 2)
        expand_rows<2, HELD / 2>(&j, panel, row, end);
    else
        expand_rows<HELD, 1>(&j, panel, row, end);
}

static fmc_sum shrink_of(const fm_lora *l, float *u, const float *x, size_t ldx)
{
    fm_product p = {};
    p.y = u;
    p.ldy = fmc_fast_weight_of(l->a)->n;
    p.w = l->a;
    p.first = l->first;
    p.m = l->m;
    p.rows = l->rows;
    p.from = l->from;
    p.to = l->to;
    p.listed = l->listed;
    fmc_sum s = fmc_sum_of(&p, x, ldx);
    s.dense = true;
    return s;
}

static expand_job expand_of(const fm_lora *l, const float *u)
{
    const fmc_fast_weight *b = fmc_fast_weight_of(l->b);
    expand_job j = {};
    j.y = l->y;
    j.ldy = l->ldy;
    j.b = b->tiles;
    j.u = u;
    j.rows = l->rows;
    j.from = l->from;
    j.to = l->to;
    j.scale = l->scale;
    j.first = l->first;
    j.m = l->m;
    j.n = b->n;
    j.r = b->k;
    return j;
}

static uint32_t blocks_of(const expand_job *j)
{
    return fmc_ceil(fmc_ceil(j->n, FMC_OUTPUTS), WARPS * j->each);
}

/* With small ranks a warp's registers hold more panels, so that more bytes are in flight and u is
 * rounded once for all of them; not used where multiprocessors would be left idle. */
static void deal_panels(const fmc_device *d, expand_job *list, uint32_t count)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < count; i++) {
        expand_job *j = &list[i];
        j->each = j->r <= 16 ? HELD : j->r <= 32 ? HELD / 2 : 1;
        blocks += (uint64_t)blocks_of(j) * fmc_ceil(j->m, ROWS_BLOCK);
    }
    for (uint32_t i = 0; blocks < 2 * (uint64_t)d->multiprocessors && i < count; i++)
        list[i].each = 1;
}

static void run_expand(fmc_device *d, expand_job *list, uint32_t count)
{
    uint32_t blocks = 0, rows = 0;
    deal_panels(d, list, count);
    for (uint32_t i = 0; i < count; i++) {
        list[i].begin = blocks;
        blocks += blocks_of(&list[i]);
        rows = list[i].m > rows ? list[i].m : rows;
    }
    const expand_job *on_card = (const expand_job *)fmc_args(d, list, count * sizeof *list);
    if (on_card)
        FMC_RUN_PDL(d, k_fast_expand, dim3(blocks, fmc_ceil(rows, ROWS_BLOCK)), FMC_THREADS, 0,
                     on_card, count);
}

static uint64_t floats_of(const fm_lora *l)
{
    return ((uint64_t)l->m * fmc_fast_weight_of(l->a)->n + 1) / 2 * 2;
}

static void run_terms(fmc_device *d, const float *x, size_t ldx, const fm_lora *term,
                      uint32_t terms)
{
    static thread_local fmc_sum sums[TERMS_MAX];
    static thread_local expand_job jobs[TERMS_MAX];
    uint64_t floats = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < terms; i++)
        floats += floats_of(&term[i]);
    if (floats == 0)
        return;
    float *u = (float *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, floats * sizeof *u);
    if (!u)
        return;
    for (uint32_t i = 0; i < terms; i++) {
        if (term[i].m == 0)
            continue;
        sums[n] = shrink_of(&term[i], u, x, ldx);
        jobs[n++] = expand_of(&term[i], u);
        u += floats_of(&term[i]);
    }
    fmc_sums(d, sums, n);
    run_expand(d, jobs, n);
}

static void lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                 uint32_t terms)
{
    (void)k;
    for (uint32_t at = 0; at < terms; at += TERMS_MAX)
        run_terms(fmc_of(be), x, ldx, term + at, terms - at < TERMS_MAX ? terms - at : TERMS_MAX);
}

void fmc_fast_lora_install(fm_backend *be)
{
    be->lora = lora;
}
