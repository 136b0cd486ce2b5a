/* attention.c - the paged cache and attention over it, split over threads.
 *
 * A work item is one row and one key/value head with its group of query heads. Items differ in
 * length, so threads take them from a counter instead of in fixed shares; one thread computes a
 * whole item, so the bits do not depend on which thread took it. */
#include "infer/cpu/cpu.h"

#include <string.h>

void fmi_exact_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                        size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        size_t page = (size_t)slot[i] / FM_KV_PAGE, at = (size_t)slot[i] % FM_KV_PAGE;
        for (uint32_t h = 0; h < nkv; h++) {
            size_t base = (page * nkv + h) * hd * FM_KV_PAGE;
            const float *src = k + i * ldk + (size_t)h * hd;
            float *dst = (float *)kv.k + base + at;
            for (uint32_t d = 0; d < hd; d++)
                dst[(size_t)d * FM_KV_PAGE] = src[d];
            memcpy((float *)kv.v + base + at * hd, v + i * ldv + (size_t)h * hd,
                   hd * sizeof(float));
        }
    }
}

size_t fmi_exact_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return (size_t)nkv * hd * FM_KV_PAGE * sizeof(float);
}

/* Copies a page whatever it holds, so mode fast uses it too. */
void fmi_exact_kv_copy(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                       uint32_t hd)
{
    size_t bytes = be->kv_page_bytes(be, nkv, hd);

    memcpy((char *)kv.k + (size_t)dst * bytes, (char *)kv.k + (size_t)src * bytes, bytes);
    memcpy((char *)kv.v + (size_t)dst * bytes, (char *)kv.v + (size_t)src * bytes, bytes);
}

/* The first position that row i sees. */
static uint32_t first_of(const fm_attn *a, uint32_t i)
{
    uint32_t pos = (uint32_t)a->pos[i];
    uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;

    return a->first ? FM_MAX(first, (uint32_t)a->first[i]) : first;
}

typedef struct paged_job {
    const fmi_kern *kern;
    const fm_attn *op;
    size_t units;
} paged_job;

static fm_status paged_unit(void *ctx, size_t number, fmi_scratch *scratch)
{
    const paged_job *job = ctx;
    const fm_attn *j = job->op;
    size_t unit = job->units - 1 - number; /* the longest rows come last: begin with them */
    uint32_t row = (uint32_t)(unit / j->nkv), head = (uint32_t)(unit % j->nkv);
    uint32_t group = j->nh / j->nkv, last = (uint32_t)j->pos[row];
    uint32_t own = (uint32_t)(j->own ? j->own : j->pos)[row];
    uint32_t first = first_of(j, row), pages = last / FM_KV_PAGE + 1;
    size_t page_floats = (size_t)j->nkv * j->hd * FM_KV_PAGE;
    size_t head_at = (size_t)head * group * j->hd;
    size_t score_bytes = 4 * fmi_attn_score_ld(first, last) * sizeof(float);
    float *score = fmi_scratch_get(scratch, score_bytes + 2 * pages * sizeof(float *));

    if (!score)
        return FM_ENOMEM;
    const float **kpage = (const float **)(void *)((char *)score + score_bytes);
    const float **vpage = kpage + pages;
    const int32_t *table = j->table + (size_t)j->seq[row] * j->table_stride;
    for (uint32_t p = first / FM_KV_PAGE; p < pages; p++) {
        size_t at = (size_t)table[p] * page_floats + (size_t)head * j->hd * FM_KV_PAGE;
        kpage[p] = (const float *)j->kv.k + at;
        vpage[p] = (const float *)j->kv.v + at;
    }
    fmi_attn a = {.out = j->out + row * j->ldo + head_at,
                  .q = j->q + row * j->ldq + head_at,
                  .out_stride = j->hd,
                  .q_stride = j->hd,
                  .kpage = kpage,
                  .vpage = vpage,
                  .ldv = j->hd,
                  .score = score,
                  .g = group,
                  .first = first,
                  .last = last,
                  .hd = j->hd,
                  .scale = j->scale,
                  .softcap = j->softcap,
                  .sink = j->sink ? j->sink + (size_t)head * group : NULL,
                  .bias = j->bias ? j->bias + (size_t)head * group * j->bias_ld +
                                        (j->bias_zero + first - own)
                                  : NULL,
                  .bias_ld = j->bias_ld};
    job->kern->attention(&a);
    return FM_OK;
}

void fmi_exact_attention(fm_backend *be, const fm_attn *a)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    uint64_t work = 0;

    fm_assert(a->nkv > 0 && a->nh % a->nkv == 0 && a->hd <= FM_K_BLOCK);
    for (uint32_t i = 0; i < a->m; i++)
        work += ((uint64_t)a->pos[i] + 1) * a->nh * a->hd;
    paged_job j = {cpu->kern, a, (size_t)a->m * a->nkv};
    fmi_run_units(cpu, j.units, work > 20000, paged_unit, &j);
}
