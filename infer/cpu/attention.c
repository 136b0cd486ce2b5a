/* attention.c - the paged cache and both attentions, dealt to threads.
 *
 * A unit of work is one row (or sequence) and one key/value head with its group of query heads.
 * Units of a causal sequence differ in length, so threads take them from a counter instead of
 * fixed halves; a unit is computed whole, so who took it leaves no trace in the bits. */
#include "infer/cpu/cpu.h"

#include <stdatomic.h>
#include <string.h>

#include "store/base/mem.h"

typedef struct queue {
    fmi_cpu *cpu;
    atomic_size_t next;
    size_t count;
} queue;

/* As many parts as threads; each takes units until none is left. */
static void run_queue(queue *q, fmi_cpu *cpu, size_t count, bool parallel, fm_pool_fn fn, void *ctx)
{
    q->cpu = cpu;
    q->count = count;
    atomic_init(&q->next, 0);
    fmi_run(cpu, parallel ? FM_MIN(count, (size_t)cpu->threads) : 1, 1, fn, ctx);
}

static bool take(queue *q, size_t *unit)
{
    *unit = atomic_fetch_add_explicit(&q->next, 1, memory_order_relaxed);
    return *unit < q->count;
}

static void op_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
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

static size_t op_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return (size_t)nkv * hd * FM_KV_PAGE * sizeof(float);
}

/* Whatever a page holds: mode fast uses it too. */
static void op_kv_copy(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                       uint32_t hd)
{
    size_t bytes = be->kv_page_bytes(be, nkv, hd);

    memcpy((char *)kv.k + (size_t)dst * bytes, (char *)kv.k + (size_t)src * bytes, bytes);
    memcpy((char *)kv.v + (size_t)dst * bytes, (char *)kv.v + (size_t)src * bytes, bytes);
}

static uint32_t first_position(uint32_t pos, uint32_t window)
{
    return window && pos >= window ? pos - window + 1 : 0;
}

typedef struct paged_job {
    queue q;
    const fm_attn *op;
} paged_job;

static fm_status paged_unit(const fmi_cpu *cpu, const fm_attn *j, size_t unit, fmi_scratch *scratch)
{
    uint32_t row = (uint32_t)(unit / j->nkv), head = (uint32_t)(unit % j->nkv);
    uint32_t group = j->nh / j->nkv, last = (uint32_t)j->pos[row];
    uint32_t first = first_position(last, j->window), pages = last / FM_KV_PAGE + 1;
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
                  .softcap = j->softcap};
    cpu->kern->attention(&a);
    return FM_OK;
}

static fm_status paged_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    paged_job *j = ctx;
    fm_status rc = FM_OK;
    size_t unit;

    (void)begin;
    (void)end;
    while (rc == FM_OK && take(&j->q, &unit)) /* the longest rows come last: begin with them */
        rc = paged_unit(j->q.cpu, j->op, j->q.count - 1 - unit, &j->q.cpu->worker[worker]);
    return rc;
}

static void op_attention(fm_backend *be, const fm_attn *a)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    uint64_t work = 0;

    fm_assert(a->nkv > 0 && a->nh % a->nkv == 0 && a->hd <= FM_K_BLOCK);
    for (uint32_t i = 0; i < a->m; i++)
        work += ((uint64_t)a->pos[i] + 1) * a->nh * a->hd;
    paged_job j = {.op = a};
    run_queue(&j.q, cpu, (size_t)a->m * a->nkv, work > 20000, paged_worker, &j);
}

/* ---- whole sequences ---- */

typedef struct train_job {
    queue q;
    float *out, *lse;
    const float *query, *k, *v;
    const int32_t *len;
    uint32_t t, nh, nkv, hd, window;
    float scale;
    float *dq, *dk, *dv; /* the gradient's */
    const float *dout, *saved_out, *saved_lse;
} train_job;

/* One sequence and key/value head: its keys are turned once into the scratch, in pages. */
static fm_status train_unit(const train_job *j, size_t unit, fmi_scratch *scratch)
{
    uint32_t b = (uint32_t)(unit / j->nkv), head = (uint32_t)(unit % j->nkv);
    uint32_t group = j->nh / j->nkv, len = (uint32_t)j->len[b];
    uint32_t pages = (len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    size_t ldq = (size_t)j->nh * j->hd, ldk = (size_t)j->nkv * j->hd;
    size_t tp = (size_t)pages * FM_KV_PAGE;
    size_t first_row = (size_t)b * j->t, head_at = (size_t)head * group * j->hd;
    size_t kt_floats = tp * j->hd, floats = kt_floats + 4 * tp;
    float *kt = fmi_scratch_get(scratch, floats * sizeof *kt + 2 * pages * sizeof(float *));

    if (!kt)
        return FM_ENOMEM;
    const float **kpage = (const float **)(void *)(kt + floats), **vpage = kpage + pages;
    memset(kt, 0, kt_floats * sizeof *kt);
    for (uint32_t p = 0; p < pages; p++) {
        size_t row = (first_row + p * FM_KV_PAGE) * ldk + (size_t)head * j->hd;
        kpage[p] = kt + (size_t)p * FM_KV_PAGE * j->hd;
        vpage[p] = j->v + row;
        j->q.cpu->kern->transpose(kt + (size_t)p * FM_KV_PAGE * j->hd, FM_KV_PAGE, j->k + row, ldk,
                                  FM_MIN(len - p * FM_KV_PAGE, FM_KV_PAGE), j->hd);
    }
    for (uint32_t i = 0; i < j->t; i++) {
        float *out = j->out + (first_row + i) * ldq + head_at;
        float *lse = j->lse + ((size_t)b * j->nh + (size_t)head * group) * j->t + i;
        if (i >= len) {
            memset(out, 0, (size_t)group * j->hd * sizeof *out);
            for (uint32_t g = 0; g < group; g++)
                lse[(size_t)g * j->t] = 0.0f;
            continue;
        }
        fmi_attn a = {.out = out,
                      .q = j->query + (first_row + i) * ldq + head_at,
                      .out_stride = j->hd,
                      .q_stride = j->hd,
                      .lse = lse,
                      .lse_stride = j->t,
                      .kpage = kpage,
                      .vpage = vpage,
                      .ldv = ldk,
                      .score = kt + kt_floats,
                      .g = group,
                      .first = first_position(i, j->window),
                      .last = i,
                      .hd = j->hd,
                      .scale = j->scale};
        j->q.cpu->kern->attention(&a);
    }
    return FM_OK;
}

static fm_status grad_unit(const train_job *j, size_t unit, fmi_scratch *scratch)
{
    uint32_t b = (uint32_t)(unit / j->nkv), head = (uint32_t)(unit % j->nkv);
    uint32_t group = j->nh / j->nkv, len = (uint32_t)j->len[b];
    size_t ldq = (size_t)j->nh * j->hd, ldk = (size_t)j->nkv * j->hd;
    size_t at_q = (size_t)b * j->t * ldq + (size_t)head * group * j->hd;
    size_t at_k = (size_t)b * j->t * ldk + (size_t)head * j->hd;
    size_t floats = fmi_attn_grad_scratch(len, j->hd);
    size_t pages = ((size_t)len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    float *buf = fmi_scratch_get(scratch, floats * sizeof *buf + 3 * pages * sizeof(float *));

    if (!buf)
        return FM_ENOMEM;
    fmi_attn_grad a = {.dq = j->dq + at_q,
                       .dk = j->dk + at_k,
                       .dv = j->dv + at_k,
                       .dout = j->dout + at_q,
                       .q = j->query + at_q,
                       .k = j->k + at_k,
                       .v = j->v + at_k,
                       .out = j->saved_out + at_q,
                       .lse = j->saved_lse + ((size_t)b * j->nh + (size_t)head * group) * j->t,
                       .ldq = ldq,
                       .ldk = ldk,
                       .lse_stride = j->t,
                       .scratch = buf,
                       .page = (const float **)(void *)(buf + floats),
                       .g = group,
                       .t = j->t,
                       .len = len,
                       .hd = j->hd,
                       .window = j->window,
                       .scale = j->scale};
    j->q.cpu->kern->attention_grad(&a);
    return FM_OK;
}

static fm_status train_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    train_job *j = ctx;
    fm_status rc = FM_OK;
    size_t unit;

    (void)begin;
    (void)end;
    while (rc == FM_OK && take(&j->q, &unit))
        rc = j->dq ? grad_unit(j, unit, &j->q.cpu->worker[worker])
                   : train_unit(j, unit, &j->q.cpu->worker[worker]);
    return rc;
}

static void op_attention_train(fm_backend *be, float *out, float *lse, const float *q,
                               const float *k, const float *v, const int32_t *len, uint32_t b,
                               uint32_t t, uint32_t nh, uint32_t nkv, uint32_t hd, uint32_t window,
                               float scale)
{
    train_job j = {.out = out,
                   .lse = lse,
                   .query = q,
                   .k = k,
                   .v = v,
                   .len = len,
                   .t = t,
                   .nh = nh,
                   .nkv = nkv,
                   .hd = hd,
                   .window = window,
                   .scale = scale};

    fm_assert(nkv > 0 && nh % nkv == 0 && hd <= FM_K_BLOCK);
    run_queue(&j.q, fmi_cpu_of(be), (size_t)b * nkv, true, train_worker, &j);
}

static void op_attention_grad(fm_backend *be, float *dq, float *dk, float *dv, const float *dout,
                              const float *q, const float *k, const float *v, const float *out,
                              const float *lse, const int32_t *len, uint32_t b, uint32_t t,
                              uint32_t nh, uint32_t nkv, uint32_t hd, uint32_t window, float scale)
{
    train_job j = {.query = q,
                   .k = k,
                   .v = v,
                   .len = len,
                   .t = t,
                   .nh = nh,
                   .nkv = nkv,
                   .hd = hd,
                   .window = window,
                   .scale = scale,
                   .dq = dq,
                   .dk = dk,
                   .dv = dv,
                   .dout = dout,
                   .saved_out = out,
                   .saved_lse = lse};

    fm_assert(nkv > 0 && nh % nkv == 0 && hd <= FM_K_BLOCK);
    run_queue(&j.q, fmi_cpu_of(be), (size_t)b * nkv, true, train_worker, &j);
}

void fmi_attention_install(fm_backend *be)
{
    be->kv_page_bytes = op_kv_page_bytes;
    be->kv_copy = op_kv_copy;
    be->kv_write = op_kv_write;
    be->attention = op_attention;
    be->attention_train = op_attention_train;
    be->attention_grad = op_attention_grad;
}
