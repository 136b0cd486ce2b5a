/* attention_train.c - self-attention of whole sequences and its gradient, split over threads.
 *
 * A work item is one sequence and one key/value head with its group of query heads; the longest are
 * taken first. An item that would keep one thread busy while the others have nothing left is split:
 * rows of the forward pass are independent; in the gradient the weights of some rows are computed
 * in parallel, then each position's sums over them, so that every sum keeps its order. The matrix
 * of all scores never exists: only FMI_GRAD_ROWS rows of it do (some more for a split item). */
#include "infer/cpu/cpu.h"

#include <string.h>

#include "store/base/math/detmath.h"

#define FORWARD_ROWS 4u     /* rows that share one walk over the keys */
#define SPLIT_POSITIONS 96u /* shorter sequences are never split */

typedef struct seq_plan {
    uint32_t seq;
    uint64_t work;
    size_t virtual_at; /* floats before this sequence's part of the virtual positions' gradients */
} seq_plan;

typedef struct train_job {
    const fmi_kern *kern;
    const fm_attn_train *a;
    bool grad;
    seq_plan *order; /* [seqs], longest first */
    float *virtual_grad;
    /* of a split work item */
    fmi_attn_seq unit;
    float *p, *ds;
    uint32_t head, row, rows;
} train_job;

static uint32_t pages_of(const fm_train_seq *s)
{
    return (uint32_t)((fmi_attn_padded(s->virt) + fmi_attn_padded(s->len)) / FMI_PANEL);
}

static bool virtual_trains(const fm_train_seq *s)
{
    return s->virt > 0 && (s->dvk || s->dvv);
}

static size_t page_bytes(const train_job *j, const fm_train_seq *s)
{
    size_t pages = pages_of(s), tables = j->grad ? 2 : 1;

    return tables * pages * ((size_t)FMI_PANEL * j->a->hd * sizeof(float) + sizeof(float *));
}

/* Transposed copies of one matrix, virtual positions first. */
static void turn(const fmi_kern *kern, const float **page, float *dst, const fmi_attn_seq *u,
                 const float *virtual_rows, const float *rows)
{
    size_t at = fmi_attn_padded(u->virt), all = at + fmi_attn_padded(u->len);

    kern->attn_pages(dst, virtual_rows, u->ldvirt, u->virt, u->hd);
    kern->attn_pages(dst + at * u->hd, rows, u->ldk, u->len, u->hd);
    for (size_t i = 0; i < all / FMI_PANEL; i++)
        page[i] = dst + i * FMI_PANEL * u->hd;
}

/* Sets the pointers of a work item; buf has page_bytes. Outputs that are sums are set to 0. */
static void open_unit(const train_job *j, fmi_attn_seq *u, const seq_plan *plan, uint32_t head,
                      float *buf)
{
    const fm_attn_train *a = j->a;
    const fm_train_seq *s = &a->seq[plan->seq];
    uint32_t group = a->nh / a->nkv, pages = pages_of(s);
    size_t at = (size_t)head * a->hd, first = s->begin, ldo = (size_t)a->nh * a->hd;
    size_t q = first * a->ldq + at * group, k = first * a->ldk + at, o = first * ldo + at * group;

    *u = (fmi_attn_seq){.q = a->q + q,
                        .k = a->k + k,
                        .v = a->v + k,
                        .ldq = a->ldq,
                        .ldk = a->ldk,
                        .vk = s->virt ? s->vk + at : NULL,
                        .vv = s->virt ? s->vv + at : NULL,
                        .ldvirt = (size_t)a->nkv * a->hd,
                        .out = a->out + o,
                        .ldo = ldo,
                        .lse = a->lse + first * a->nh + (size_t)head * group * s->len,
                        .g = group,
                        .len = s->len,
                        .virt = s->virt,
                        .hd = a->hd,
                        .window = a->window,
                        .encoder = a->encoder,
                        .scale = a->scale,
                        .softcap = a->softcap,
                        .sink = s->sink ? s->sink + (size_t)head * group : NULL,
                        .bias = s->bias ? s->bias + (size_t)head * group * a->bias_ld : NULL,
                        .bias_ld = a->bias_ld,
                        .bias_zero = a->bias_zero};
    size_t turned = (size_t)pages * FMI_PANEL * a->hd;
    const float **page = (const float **)(void *)(buf + (j->grad ? 2 : 1) * turned);
    u->kpage = page;
    turn(j->kern, page, buf, u, u->vk, u->k);
    if (!j->grad)
        return;
    u->vpage = page + pages;
    turn(j->kern, page + pages, buf + turned, u, u->vv, u->v);
    u->dout = a->dout + o;
    u->dq = a->dq + q;
    u->dk = a->dk + k;
    u->dv = a->dv + k;
    if (virtual_trains(s)) {
        size_t some = (size_t)s->virt * a->hd;
        u->dvk = j->virtual_grad + plan->virtual_at + 2 * head * some;
        u->dvv = u->dvk + some;
        memset(u->dvk, 0, 2 * some * sizeof(float));
    }
    for (size_t i = 0; i < s->len; i++) {
        memset(u->dk + i * u->ldk, 0, a->hd * sizeof(float));
        memset(u->dv + i * u->ldk, 0, a->hd * sizeof(float));
    }
}

static size_t row_floats(const fm_train_seq *s)
{
    return (size_t)pages_of(s) * FMI_PANEL;
}

/* ---- whole work items ---- */

static fm_status whole_unit(void *ctx, size_t unit, fmi_scratch *scratch)
{
    const train_job *j = ctx;
    const seq_plan *plan = &j->order[unit / j->a->nkv];
    const uint32_t head = (uint32_t)(unit % j->a->nkv);
    const fmi_kern *kern = j->kern;
    const fm_train_seq *s = &j->a->seq[plan->seq];
    size_t ld = row_floats(s), rows = j->grad ? 2 * FMI_GRAD_ROWS : FORWARD_ROWS;
    float *p = fmi_scratch_get(scratch, rows * ld * sizeof *p + page_bytes(j, s));
    fmi_attn_seq u;

    if (!p)
        return FM_ENOMEM;
    open_unit(j, &u, plan, head, p + rows * ld);
    for (uint32_t h = 0; h < u.g && !j->grad; h++)
        for (uint32_t i = 0; i < u.len; i += FORWARD_ROWS)
            kern->attn_rows(&u, h, i, FM_MIN(FORWARD_ROWS, u.len - i), p);
    float *ds = p + FMI_GRAD_ROWS * ld;
    for (uint32_t h = 0; h < u.g && j->grad; h++)
        for (uint32_t i = 0; i < u.len; i += FMI_GRAD_ROWS) {
            uint32_t n = FM_MIN(FMI_GRAD_ROWS, u.len - i);
            kern->attn_grad_rows(&u, h, i, n, p, ds);
            kern->attn_spread(&u, h, i, n, p, ds, 0, (uint32_t)ld);
        }
    return FM_OK;
}

/* ---- split work items ---- */

static fm_status rows_unit(void *ctx, size_t unit, fmi_scratch *scratch)
{
    const train_job *j = ctx;
    const fmi_attn_seq *u = &j->unit;
    uint32_t blocks = (u->len + FORWARD_ROWS - 1) / FORWARD_ROWS;
    uint32_t i = (blocks - 1 - (uint32_t)unit % blocks) * FORWARD_ROWS;
    size_t ld = fmi_attn_padded(u->virt) + fmi_attn_padded(u->len);
    float *score = fmi_scratch_get(scratch, FORWARD_ROWS * ld * sizeof *score);

    if (!score)
        return FM_ENOMEM;
    j->kern->attn_rows(u, (uint32_t)unit / blocks, i, FM_MIN(FORWARD_ROWS, u->len - i), score);
    return FM_OK;
}

static fm_status weights_unit(void *ctx, size_t unit, fmi_scratch *scratch)
{
    const train_job *j = ctx;
    size_t ld = fmi_attn_padded(j->unit.virt) + fmi_attn_padded(j->unit.len);
    uint32_t at = (uint32_t)unit * FMI_GRAD_ROWS;

    (void)scratch;
    j->kern->attn_grad_rows(&j->unit, j->head, j->row + at, FM_MIN(FMI_GRAD_ROWS, j->rows - at),
                            j->p + at * ld, j->ds + at * ld);
    return FM_OK;
}

static fm_status spread_unit(void *ctx, size_t unit, fmi_scratch *scratch)
{
    const train_job *j = ctx;
    size_t ld = fmi_attn_padded(j->unit.virt) + fmi_attn_padded(j->unit.len);

    (void)scratch;
    for (uint32_t at = 0; at < j->rows; at += FMI_GRAD_ROWS)
        j->kern->attn_spread(&j->unit, j->head, j->row + at, FM_MIN(FMI_GRAD_ROWS, j->rows - at),
                             j->p + at * ld, j->ds + at * ld, (uint32_t)unit * FMI_PANEL,
                             ((uint32_t)unit + 1) * FMI_PANEL);
    return FM_OK;
}

static uint32_t split_rows(const fmi_cpu *cpu)
{
    return 4 * FMI_GRAD_ROWS * cpu->threads;
}

static size_t split_bytes(const train_job *j, const fmi_cpu *cpu, const fm_train_seq *s)
{
    size_t rows = j->grad ? 2 * (size_t)split_rows(cpu) : 0;
    return rows * row_floats(s) * sizeof(float) + page_bytes(j, s);
}

static void split_unit(train_job *j, fmi_cpu *cpu, const seq_plan *plan, uint32_t head, float *buf)
{
    size_t ld = row_floats(&j->a->seq[plan->seq]), rows = split_rows(cpu);
    fmi_attn_seq *u = &j->unit;

    j->p = buf;
    j->ds = buf + rows * ld;
    open_unit(j, u, plan, head, j->grad ? buf + 2 * rows * ld : buf);
    if (!j->grad) {
        size_t blocks = (u->len + FORWARD_ROWS - 1) / FORWARD_ROWS;
        fmi_run_units(cpu, blocks * u->g, true, rows_unit, j);
        return;
    }
    for (j->head = 0; j->head < u->g; j->head++)
        for (j->row = 0; j->row < u->len; j->row += (uint32_t)rows) {
            j->rows = FM_MIN((uint32_t)rows, u->len - j->row);
            fmi_run_units(cpu, (j->rows + FMI_GRAD_ROWS - 1) / FMI_GRAD_ROWS, true, weights_unit,
                          j);
            fmi_run_units(cpu, ld / FMI_PANEL, true, spread_unit, j);
        }
}

/* ---- the call ---- */

static uint64_t work_of(const fm_attn_train *a, const fm_train_seq *s)
{
    uint64_t seen = a->encoder ? s->len : (s->len + 1u) / 2;

    if (a->window)
        seen = FM_MIN(seen, (uint64_t)a->window * (a->encoder ? 2 : 1));
    return (uint64_t)s->len * (seen + s->virt + 8);
}

/* Longest first; equal ones stay in order. Shell sort: lists are nearly always short or sorted. */
static void sort_plan(seq_plan *p, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            seq_plan one = p[i];
            uint32_t at = i;
            for (; at >= gap && p[at - gap].work < one.work; at -= gap)
                p[at] = p[at - gap];
            p[at] = one;
        }
}

/* dvk, dvv += each sequence's part, ascending. */
static void add_virtual(const train_job *j, const fmi_cpu *cpu)
{
    const fm_attn_train *a = j->a;
    size_t ld = (size_t)a->nkv * a->hd, from = 0;

    for (uint32_t i = 0; i < a->seqs; i++) {
        const fm_train_seq *s = &a->seq[i];
        size_t some = (size_t)s->virt * a->hd;
        for (uint32_t h = 0; virtual_trains(s) && h < a->nkv; h++, from += 2 * some)
            for (uint32_t t = 0; t < s->virt; t++) {
                const float *part = j->virtual_grad + from + (size_t)t * a->hd;
                size_t to = t * ld + (size_t)h * a->hd;
                if (s->dvk)
                    cpu->kern->add(s->dvk + to, part, a->hd);
                if (s->dvv)
                    cpu->kern->add(s->dvv + to, part + some, a->hd);
            }
    }
}

/* dsink += each sequence's part, ascending. */
static void add_sinks(const fmi_kern *kern, const fm_attn_train *a)
{
    for (uint32_t i = 0; i < a->seqs; i++) {
        const fm_train_seq *s = &a->seq[i];
        for (uint32_t h = 0; s->dsink && h < a->nh; h++) {
            const float *lse = a->lse + (size_t)s->begin * a->nh + (size_t)h * s->len;
            float sum = 0.0f;
            for (uint32_t r = 0; r < s->len; r++) {
                size_t at = ((size_t)(s->begin + r) * a->nh + h) * a->hd;
                float share = (float)fm_exp((double)s->sink[h] - (double)lse[r]);
                sum = sum - share * kern->dot(a->dout + at, a->out + at, a->hd);
            }
            s->dsink[h] = s->dsink[h] + sum;
        }
    }
}

static void self_attention(fm_backend *be, const fm_attn_train *a, bool grad)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern, .a = a, .grad = grad};
    size_t virtual_floats = 0, split = 0;
    uint64_t work = 0, longest = 0;
    uint32_t first = 0;

    fm_assert(a->nkv > 0 && a->nh % a->nkv == 0 && a->hd <= FM_K_BLOCK);
    for (uint32_t i = 0; i < a->seqs; i++) {
        const fm_train_seq *s = &a->seq[i];
        if (grad && virtual_trains(s))
            virtual_floats += 2 * (size_t)a->nkv * s->virt * a->hd;
        if (s->len >= SPLIT_POSITIONS)
            split = FM_MAX(split, split_bytes(&j, cpu, s));
        work += work_of(a, s) * a->nkv;
        longest = FM_MAX(longest, work_of(a, s));
    }
    bool uneven = cpu->threads > 1 && longest * 2 * cpu->threads > work;
    size_t order_bytes = (a->seqs * sizeof *j.order + 63) / 64 * 64;
    size_t virtual_bytes = (virtual_floats * sizeof(float) + 63) / 64 * 64;
    char *mem = fmi_scratch_get(&cpu->shared, order_bytes + virtual_bytes + (uneven ? split : 0));
    if (!mem) {
        fmi_stick(cpu, FM_ENOMEM);
        return;
    }
    j.order = (seq_plan *)(void *)mem;
    j.virtual_grad = (float *)(void *)(mem + order_bytes);
    virtual_floats = 0;
    for (uint32_t i = 0; i < a->seqs; i++) {
        const fm_train_seq *s = &a->seq[i];
        j.order[i] = (seq_plan){i, work_of(a, s), virtual_floats};
        if (grad && virtual_trains(s))
            virtual_floats += 2 * (size_t)a->nkv * s->virt * a->hd;
    }
    sort_plan(j.order, a->seqs);
    for (; uneven && first < a->seqs && j.order[first].work * 2 * cpu->threads > work &&
           a->seq[j.order[first].seq].len >= SPLIT_POSITIONS;
         first++)
        for (uint32_t h = 0; h < a->nkv; h++)
            split_unit(&j, cpu, &j.order[first], h,
                       (float *)(void *)(mem + order_bytes + virtual_bytes));
    j.order += first;
    fmi_run_units(cpu, (size_t)(a->seqs - first) * a->nkv, work > 2000, whole_unit, &j);
    if (virtual_floats && cpu->failed == FM_OK)
        add_virtual(&j, cpu);
    if (grad && cpu->failed == FM_OK)
        add_sinks(cpu->kern, a);
}

void fmi_exact_self_attention(fm_backend *be, const fm_attn_train *a)
{
    self_attention(be, a, false);
}

void fmi_exact_self_attention_grad(fm_backend *be, const fm_attn_train *a)
{
    self_attention(be, a, true);
}
