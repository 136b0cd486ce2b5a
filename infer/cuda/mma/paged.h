/* paged.h - attention of mode fast over pages (attention.cu has the order of its sums): shared by
 * the kernels for all GPUs and those of Hopper (cuda/sm90/attention.cu). */
#ifndef FM_INFER_CUDA_FAST_PAGED_H
#define FM_INFER_CUDA_FAST_PAGED_H

#include "infer/cuda/mma/fast.h"
#include "infer/cuda/mma/attend.h"

#define FMC_SPLIT 256u /* positions whose part of a row is summed before it is merged */

/* ---- pages ---- */

FMC_DEVICE uint32_t padded_head(uint32_t hd)
{
    return (hd + 7) / 8 * 8;
}
static __host__ __device__ inline size_t head_bytes(uint32_t hd)
{
    return ((size_t)hd + 7) / 8 * 8 * FM_KV_PAGE * 2 + FM_KV_PAGE * sizeof(float);
}

/* Bytes before elements 8 c .. of a row. */
FMC_DEVICE uint32_t line_at(uint32_t row, uint32_t c, uint32_t hdp)
{
    return row / 8 * hdp * 16 + c * 128 + row % 8 * 16;
}

/* Powers of two that bring size to 2^10 .. 2^11, and back; finite for any size. */
FMC_DEVICE void power_scale(float size, float *scale, float *inverse)
{
    uint32_t e = __float_as_uint(size) >> 23 & 255u;
    e = e < 11 ? 11 : e;
    *scale = __uint_as_float((264 - e) << 23);
    *inverse = __uint_as_float((e - 10) << 23);
}

/* ---- work items ---- */

typedef struct fast_job {
    fm_attn a;
    float *parts;              /* [rows * nh][splits] of part_floats; NULL: merged in out */
    uint32_t row0, rows, most; /* row0, rows: of this launch; most: rows of a run at most */
    uint32_t heads, group_parts;
    uint32_t splits;          /* parts of a row at most */
    uint32_t blocks;          /* blocks that share a work item's splits */
    uint32_t at_least, below; /* query rows of the runs that this launch has */
    uint32_t *arrived;        /* blocks done of each work item; the last one merges; or NULL */
    const uint32_t *runs;     /* device: number of runs, then each one's first row; NULL: all */
} fast_job;

typedef struct fast_unit {
    const int32_t *table;
    uint32_t row, n;        /* query rows: rows of the run times heads */
    uint32_t kv_head, head; /* first query head */
    uint32_t heads, block;
    uint32_t first, last; /* range of positions that any of the rows sees */
} fast_unit;

/* Byte offset of the work item's head in the cache, for a page of its sequence. */
FMC_DEVICE size_t page_at(const fast_job *j, const fast_unit *u, uint32_t page)
{
    return ((size_t)u->table[page] * j->a.nkv + u->kv_head) * head_bytes(j->a.hd);
}

/* A query row of this thread: row g or g + 8 of its warp. */
typedef struct query {
    uint32_t lo, hi; /* positions that it sees; lo > hi: the row does not exist */
    uint32_t row, head;
    float scale; /* factor of a product, after the key's */
    float m, l;  /* merged parts */
} query;

FMC_DEVICE query query_at(const fast_job *j, const fast_unit *u, uint32_t r)
{
    query q = {1, 0, u->row, u->head, 0.0f, 0.0f, 0.0f};
    if (r < u->n) {
        q.row = u->row + r / u->heads;
        q.head = u->head + r % u->heads;
        q.hi = (uint32_t)j->a.pos[q.row];
        q.lo = fmc_first_position(q.hi, j->a.window);
    }
    return q;
}

/* Elements d, d + 1 of the query row; 0 beyond. */
FMC_DEVICE float2 query_pair(const fm_attn *a, const query *q, uint32_t d)
{
    const float *x = a->q + q->row * a->ldq + (size_t)q->head * a->hd;
    bool there = q->lo <= q->hi;
    return make_float2(there && d < a->hd ? x[d] : 0.0f, there && d + 1 < a->hd ? x[d + 1] : 0.0f);
}

/* Loads the warp's queries as first operands of mma, scaled like keys; sets both rows' scale. */
template <int HD>
FMC_DEVICE void load_queries(lines16<HD, true> *lines, const fm_attn *a, query q[2])
{
    uint32_t t = threadIdx.x % 4;
    float by[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float size = 0.0f, inverse;
        for (uint32_t d = 2 * t; d < HD; d += 8) {
            float2 x = query_pair(a, &q[i], d);
            size = fmc_max(fabsf(x.x), fmc_max(fabsf(x.y), size));
        }
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, 1), size);
        size = fmc_max(__shfl_xor_sync(0xffffffffu, size, 2), size);
        power_scale(size, &by[i], &inverse);
        q[i].scale = inverse * (a->softcap > 0.0f ? a->scale / a->softcap : a->scale * FMC_LOG2E);
    }
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++)
#pragma unroll
        for (uint32_t r = 0; r < 4; r++) {
            float2 x = query_pair(a, &q[r % 2], 16 * k + 2 * t + r / 2 * 8);
            lines->f[k][r] = fmc_pack_f16(x.x * by[r % 2], x.y * by[r % 2]);
        }
}

/* ---- scores ---- */

/* Turns products into scores in base 2. */
template <int HD>
FMC_DEVICE void finish_scores(float s[tiles<HD>::positions / 2], const unsigned char *scales,
                              const query q[2], float softcap)
{
    const float *scale = (const float *)scales;
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            s[4 * n + i] = s[4 * n + i] * scale[8 * n + 2 * t + i % 2] * q[i / 2].scale;
    if (softcap > 0.0f)
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s[4 * n + i] = cap_tanh(s[4 * n + i]) * softcap * FMC_LOG2E;
}

/* Sets scores of positions that the row does not see to -inf; first: the tile's first position. */
template <int HD>
FMC_DEVICE void hide_scores(float s[tiles<HD>::positions / 2], const query q[2], uint32_t first)
{
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = first + 8 * n + 2 * t + i % 2;
            s[4 * n + i] = at >= q[i / 2].lo && at <= q[i / 2].hi ? s[4 * n + i] : -INFINITY;
        }
}

/* Factors f of the merged part and g of the later one; m becomes the larger maximum. */
FMC_DEVICE void merge_factors(float *m, float *l, float later_m, float later_l, float *f, float *g)
{
    float top = fmc_max(later_m, *m);
    *f = fmc_exp2(*m - top);
    *g = fmc_exp2(later_m - top);
    *l = fmaf(later_l, *g, *l * *f);
    *m = top;
}

/* attention.cu: the job fields that all launches of a call share. */
fast_job fmc_attention_job(const fm_attn *a);
/* attention.cu: runs a call of any size by the kernels for all GPUs, without parts. */
void fmc_plain_attention(fmc_device *d, const fm_attn *a);
/* cuda/sm90/attention.cu: queues the runs of more than FMC_WARP_ROWS query rows, and sets j->most
 * for a launch of the other runs; false: not for this GPU or this job, and nothing is queued. */
bool fmc_sm90_attention(fmc_device *d, fast_job *j);

#endif
