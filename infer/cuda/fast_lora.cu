/* fast_lora.cu - low-rank terms of mixed ranks: every term of a list in two launches, by segments;
 * no rank is filled up to another's (each to a multiple of 16, which is what mma takes).
 *
 * u = x A^T is a list of products as any other (f32). y += (scale u) B^T: scale * u is taken as two
 * bf16, rounded and the rest; a chain of mma over steps of 16 of r ascending from +0, in a step the
 * rounded one first; then y = y + that. A warp has 16 outputs, B's operand stays in registers for
 * r <= 64 while it walks the term's rows. Bound by the bytes of A, B and y. */
#include "infer/cuda/fast.h"
#include "infer/cuda/ptx.h"

#define HELD 4u        /* steps of B in registers */
#define ROWS_BLOCK 64u /* of a block */
#define PANELS (FMC_THREADS / 32)
#define TERMS_MAX 256u

typedef struct expand_job {
    float *y;
    size_t ldy;
    const unsigned char *b; /* [n, r] in steps of 512 bytes */
    const float *u;         /* [m, r] */
    const int32_t *rows, *from, *to;
    float scale;
    uint32_t first, m, n, r;
    uint32_t begin; /* block at which it begins */
} expand_job;

/* Row i of u at step s as the second operand: rounded, and the rest. */
FMC_DEVICE void expand_operand(uint32_t high[2], uint32_t low[2], const expand_job *j, uint32_t i,
                               uint32_t s)
{
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float v[2], rest[2];
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t k = 16 * s + 8 * h + 2 * t + e;
            v[e] = i < j->m && k < j->r ? j->u[(size_t)i * j->r + k] * j->scale : 0.0f;
        }
        high[h] = fmc_pack_bf16(v[0], v[1]);
        rest[0] = v[0] - __uint_as_float(high[h] << 16);
        rest[1] = v[1] - __uint_as_float(high[h] & 0xffff0000u);
        low[h] =
            fmc_pack_bf16(isfinite(rest[0]) ? rest[0] : 0.0f, isfinite(rest[1]) ? rest[1] : 0.0f);
    }
}

FMC_DEVICE void expand_step(float acc[4], const uint32_t a[4], const expand_job *j, uint32_t i,
                            uint32_t s)
{
    uint32_t high[2], low[2];
    expand_operand(high, low, j, i, s);
    fmc_mma_bf16(acc, a, high);
    fmc_mma_bf16(acc, a, low);
}

__global__ void k_fast_expand(const expand_job *list, uint32_t count)
{
    uint32_t at = 0, high = count;
    while (high - at > 1) {
        uint32_t mid = (at + high) / 2;
        if (list[mid].begin <= blockIdx.x)
            at = mid;
        else
            high = mid;
    }
    expand_job j = list[at];
    if (fmc_settle(&j))
        return;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = (j.r + 15) / 16;
    uint32_t panel = (blockIdx.x - j.begin) * PANELS + threadIdx.x / 32;
    uint32_t row = blockIdx.y * ROWS_BLOCK, end = row + ROWS_BLOCK < j.m ? row + ROWS_BLOCK : j.m;
    uint32_t held[HELD][4];
    if (panel * FMC_OUTPUTS >= j.n || row >= j.m)
        return; /* whole warps; there is no barrier */
    const uint4 *b = (const uint4 *)(const void *)(j.b + (size_t)panel * steps * 512) + lane;
#pragma unroll
    for (uint32_t s = 0; s < HELD; s++) {
        uint4 v = s < steps ? b[s * 32] : make_uint4(0, 0, 0, 0);
        held[s][0] = v.x;
        held[s][1] = v.y;
        held[s][2] = v.z;
        held[s][3] = v.w;
    }
    for (; row < end; row += FMC_TILE_ROWS) {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (uint32_t s = 0; s < HELD; s++)
            if (s < steps)
                expand_step(acc, held[s], &j, row + g, s);
        for (uint32_t s = HELD; s < steps; s++) {
            uint4 v = b[s * 32];
            uint32_t a[4] = {v.x, v.y, v.z, v.w};
            expand_step(acc, a, &j, row + g, s);
        }
#pragma unroll
        for (uint32_t q = 0; q < 4; q++) {
            uint32_t n = panel * FMC_OUTPUTS + g + 8 * (q / 2), i = row + 2 * t + q % 2;
            if (n < j.n && i < j.m) {
                size_t to = j.rows ? (size_t)j.rows[i] : (size_t)j.first + i;
                j.y[to * j.ldy + n] = j.y[to * j.ldy + n] + acc[q];
            }
        }
    }
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

static expand_job expand_of(const fm_lora *l, const float *u, uint32_t begin)
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
    j.begin = begin;
    return j;
}

static void run_terms(fmc_device *d, const float *x, size_t ldx, const fm_lora *term,
                      uint32_t terms)
{
    static thread_local fmc_sum sums[TERMS_MAX];
    static thread_local expand_job jobs[TERMS_MAX];
    uint64_t floats = 0;
    uint32_t n = 0, blocks = 0, rows = 0;
    for (uint32_t i = 0; i < terms; i++)
        floats += (uint64_t)term[i].m * fmc_fast_weight_of(term[i].a)->n;
    if (floats == 0)
        return;
    float *u = (float *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, floats * sizeof *u);
    if (!u)
        return;
    for (uint32_t i = 0; i < terms; i++) {
        if (term[i].m == 0)
            continue;
        sums[n] = shrink_of(&term[i], u, x, ldx);
        jobs[n] = expand_of(&term[i], u, blocks);
        blocks += fmc_ceil(fmc_ceil(jobs[n].n, FMC_OUTPUTS), PANELS);
        rows = term[i].m > rows ? term[i].m : rows;
        u += (uint64_t)term[i].m * sums[n].n;
        n++;
    }
    fmc_sums(d, sums, n);
    const expand_job *list = (const expand_job *)fmc_args(d, jobs, n * sizeof jobs[0]);
    if (list)
        FMC_RUN(d, k_fast_expand, dim3(blocks, fmc_ceil(rows, ROWS_BLOCK)), FMC_THREADS, 0, list,
                n);
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
