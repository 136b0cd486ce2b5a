/* product.c - linear and lists of products in mode fast.
 *
 * A list is cut into groups of adjacent products that have the same rows. Where a group has many
 * rows, each thread takes a share of them and walks all panels; the panels of all other groups form
 * one line, which is cut into parts of equal cost, one for each thread. So a step has one barrier
 * of the threads for each list, and a decode step streams every weight once, each thread its own
 * part. One thread computes each output whole, in one order, so the split changes no bit. */
#include "infer/cpu/fast/fast.h"

#include <string.h>

#define ROWS_TO_DEAL 64u          /* rows for each thread from which rows are split, not panels */
#define PACKED_BYTES (384u << 10) /* packed rows at a time, which leave space in L2 */
#define UNPACK_ROWS 25u           /* rows from which some panels are unpacked before their tiles */
#define SMALL_COST 20000u         /* estimated cycles: shorter than waking a thread */

typedef struct product_job {
    fmi_cpu *cpu;
    const fmi_fast_kern *kern;
    const float *x;
    size_t ldx;
    const fm_product *list;
    uint32_t count;
    uint32_t parts;
    uint64_t cost; /* of all panels that are split over threads */
} product_job;

/* A block of rows, packed for the layouts of one kind of weight. */
typedef struct packed_rows {
    const product_job *job;
    const int32_t *rows;
    uint32_t first, m, most; /* most: rows that the scratch holds */
    const fmi_fast_weight *like;
    const float *grain;     /* fm_product.grain of the packed product */
    bool split;             /* two sets: x rounded to bf16, and the remainder */
    uint8_t *bytes, *panel; /* scratch: rows; an unpacked or widened panel */
} packed_rows;

static bool deals_rows(const product_job *j, const fm_product *p)
{
    return j->parts > 1 && p->m >= ROWS_TO_DEAL * j->parts;
}

static bool same_rows(const fm_product *a, const fm_product *b)
{
    return a->rows == b->rows && a->m == b->m && (a->rows || a->first == b->first);
}

static bool is_f32(const fmi_fast_weight *w)
{
    return w->layout == FMI_LAYOUT_F32 || w->layout == FMI_LAYOUT_FILE;
}

static bool is_split(const fm_product *p)
{
    return p->split && fmi_fast_weight_of(p->w)->layout == FMI_LAYOUT_BF16;
}

/* Bytes of one packed row. */
static size_t row_bytes(const fmi_fast_weight *w)
{
    if (w->layout == FMI_LAYOUT_INT8)
        return (size_t)w->depth * 8 / w->quads * FMI_ROW_BLOCK_BYTES(w->quads);
    return (is_f32(w) ? w->base.k : (size_t)w->depth) * 4; /* bf16: pairs */
}

/* Bytes of an unpacked or widened panel, and of the rows that it is widened from. */
static size_t panel_bytes(const fmi_fast_weight *w)
{
    if (w->layout == FMI_LAYOUT_INT8)
        return (size_t)w->depth * (512u + (w->block == FMI_Q2_K ? 256u : 128u));
    return w->layout == FMI_LAYOUT_FILE ? 2ul * FM_K_BLOCK * FMI_WIDE * sizeof(float) : 0;
}

/* Estimated cycles of one panel: its bytes from memory, or its products. */
static uint64_t panel_cost(const fmi_fast_weight *w, uint32_t m)
{
    uint64_t elems = (uint64_t)w->base.k * fmi_panel_outputs(w);
    uint64_t per_row = elems / 16, bytes = is_f32(w) ? elems * 4 : w->panel_q + w->panel_s;

    if (w->layout == FMI_LAYOUT_INT8 || w->layout == FMI_LAYOUT_BF16)
        per_row = elems / (w->layout == FMI_LAYOUT_BF16 ? 32 : 40);
    return bytes / 6 + m * per_row;
}

/* ---- packing ---- */

static bool packed_alike(const fmi_fast_weight *a, const fmi_fast_weight *b)
{
    if (!a || a->layout != b->layout)
        return a && is_f32(a) && is_f32(b);
    return a->layout != FMI_LAYOUT_INT8 || (a->offset == b->offset && a->quads == b->quads);
}

static void pack_f32(const packed_rows *r, uint32_t k)
{
    const product_job *j = r->job;
    const float *x = j->x + (r->rows ? 0 : r->first * j->ldx);
    float *dst = (float *)(void *)r->bytes;

    for (uint32_t k0 = 0; k0 < k; k0 += FM_K_BLOCK)
        j->cpu->kern->pack_a(dst + (size_t)k0 * r->m, x + k0, j->ldx, r->rows, false, r->m,
                             FM_MIN(k - k0, FM_K_BLOCK));
}

static void pack(packed_rows *r, const fmi_fast_weight *w, bool split, const float *grain)
{
    const product_job *j = r->job;

    if (packed_alike(r->like, w) && r->split == split && r->grain == grain)
        return;
    r->like = w;
    r->split = split;
    r->grain = grain;
    if (w->layout == FMI_LAYOUT_INT8)
        j->kern->pack_int8(r->bytes, j->x, j->ldx, r->rows, r->first, r->m, w->depth * 8 / w->quads,
                           w->quads, w->offset, grain);
    else if (is_f32(w))
        pack_f32(r, w->base.k);
    else if (w->layout == FMI_LAYOUT_F16)
        j->kern->pack_f32(r->bytes, j->x, j->ldx, r->rows, r->first, r->m, w->base.k);
    else
        j->kern->pack_bf16(r->bytes, j->x, j->ldx, r->rows, r->first, r->m, w->base.k, false);
    if (split)
        j->kern->pack_bf16(r->bytes + r->m * row_bytes(w), j->x, j->ldx, r->rows, r->first, r->m,
                           w->base.k, true);
}

/* ---- one panel ---- */

/* The form that a panel is unpacked to. */
static fmi_fast_block unpacked_as(const fmi_fast_weight *w)
{
    if (w->quads == 4)
        return w->offset == 0 ? FMI_UNPACKED_16_MIN : FMI_UNPACKED_16;
    return w->offset == 0 ? FMI_UNPACKED_MIN : FMI_UNPACKED;
}

/* Whether panels are unpacked before their tiles: from the third tile on, but for the types whose
 * elements lie in one line and share one scale. */
static bool is_unpacked_first(const fmi_fast_weight *w, uint32_t m)
{
    return m >= UNPACK_ROWS && w->block != FMI_Q8_0 && w->block != FMI_Q4_0 && w->block != FMI_Q4_1;
}

static void panel_int8(const packed_rows *r, const fmi_fast_weight *w, uint32_t p,
                       const fmi_fast_out *out)
{
    const fmi_fast_kern *kern = r->job->kern;
    const uint8_t *q = w->q + p * w->panel_q, *s = w->scale + p * w->panel_s;
    float *scale = (float *)(void *)(r->panel + (size_t)w->depth * 512);

    if (!is_unpacked_first(w, r->m)) {
        kern->product_int8(out, r->bytes, r->m, w->block, q, s, w->depth);
        return;
    }
    kern->unpack(r->panel, scale, w->block, q, s, w->depth);
    kern->product_int8(out, r->bytes, r->m, unpacked_as(w), r->panel, scale,
                       w->depth * 8 / w->quads);
}

/* Outputs n0 .. n0 + n of a stored weight as a panel of mode exact for k0 .. k0 + kc. */
static const float *widen(const packed_rows *r, const fmi_fast_weight *w, uint32_t n0, uint32_t n,
                          uint32_t k0, uint32_t kc)
{
    const fm_dtype_info *type = fm_dtype_get(w->dtype);
    float *panel = (float *)(void *)r->panel, *rows = panel + FM_K_BLOCK * FMI_WIDE;
    const uint8_t *src = w->q + n0 * w->row_bytes;

    src += (size_t)k0 / type->block_elems * type->block_bytes;
    if (n < FMI_WIDE)
        memset(panel, 0, FM_K_BLOCK * FMI_WIDE * sizeof *panel);
    for (uint32_t i = 0; i < n; i++)
        fmi_stick(r->job->cpu,
                  fm_to_f32(rows + (size_t)i * kc, w->dtype, src + i * w->row_bytes, kc));
    r->job->cpu->kern->transpose(panel, FMI_WIDE, rows, kc, n, kc);
    return panel;
}

static void panel_f32(const packed_rows *r, const fmi_fast_weight *w, uint32_t p,
                      const fmi_fast_out *out)
{
    const uint32_t k = w->base.k, n0 = p * FMI_WIDE;
    float *y = out->y + (out->rows ? 0 : out->first * out->ldy);

    for (uint32_t k0 = 0; k0 < k; k0 += FM_K_BLOCK) {
        uint32_t kc = FM_MIN(k - k0, FM_K_BLOCK);
        fmi_epilogue epi = {.alpha = 1.0f, .add = k0 > 0, .bias = k0 + kc == k ? out->bias : NULL};
        const float *panel = w->layout == FMI_LAYOUT_F32
                                 ? w->base.panel + (size_t)n0 * k + (size_t)k0 * FMI_WIDE
                                 : widen(r, w, n0, out->n, k0, kc);
        r->job->cpu->kern->product(y, out->ldy, out->rows,
                                   (const float *)(void *)r->bytes + (size_t)k0 * r->m, r->m, panel,
                                   out->n, kc, &epi);
    }
}

static void panel_half(const packed_rows *r, const fmi_fast_weight *w, uint32_t p,
                       fmi_fast_out *out)
{
    const fmi_fast_kern *kern = r->job->kern;
    const uint8_t *panel = w->q + p * w->panel_q;
    const uint32_t wide = fmi_panel_outputs(w);
    const uint32_t width = w->base.n - p * wide <= FMI_OUTPUTS ? FMI_OUTPUTS : wide;

    if (w->layout == FMI_LAYOUT_F16) {
        kern->product_f16(out, r->bytes, r->m, panel, width, w->depth);
        return;
    }
    kern->product_bf16(out, r->bytes, r->m, panel, width, w->depth);
    if (!r->split)
        return;
    out->add = true;
    out->bias = NULL;
    kern->product_bf16(out, r->bytes + r->m * row_bytes(w), r->m, panel, width, w->depth);
}

static void do_panels(packed_rows *r, const fm_product *p, uint32_t p0, uint32_t p1)
{
    const fmi_fast_weight *w = fmi_fast_weight_of(p->w);
    const uint32_t wide = fmi_panel_outputs(w);

    if (p0 < p1)
        pack(r, w, is_split(p), p->grain);
    for (uint32_t i = p0; i < p1; i++) {
        uint32_t n0 = i * wide, left = w->base.n - n0;
        fmi_fast_out out = {.y = p->y + n0,
                            .ldy = p->ldy,
                            .rows = r->rows,
                            .first = r->first,
                            .n = FM_MIN(left, wide),
                            .bias = p->bias ? p->bias + n0 : NULL};
        if (w->layout == FMI_LAYOUT_INT8)
            panel_int8(r, w, i, &out);
        else if (is_f32(w))
            panel_f32(r, w, i, &out);
        else
            panel_half(r, w, i, &out);
    }
}

/* ---- splitting the work ---- */

/* Panels of a product that begin in this part's share of the line; *at: the position in it. */
static void my_panels(const product_job *j, const fm_product *p, unsigned part, uint64_t *at,
                      uint32_t *p0, uint32_t *p1)
{
    const uint64_t cost = panel_cost(fmi_fast_weight_of(p->w), p->m);
    const uint64_t from = j->cost * part / j->parts, to = j->cost * (part + 1) / j->parts;
    const uint32_t panels = fmi_cpu_weight_of(p->w)->panels;
    uint64_t begin = from > *at ? (from - *at + cost - 1) / cost : 0;
    uint64_t end = to > *at ? (to - *at + cost - 1) / cost : 0;

    *at += cost * panels;
    *p0 = (uint32_t)FM_MIN(begin, panels);
    *p1 = (uint32_t)FM_MIN(end, panels);
}

/* Computes products that share their rows, on rows r0 .. r1 of those. */
static void do_group(packed_rows *r, const fm_product *group, uint32_t count, unsigned part,
                     uint64_t *at)
{
    const product_job *j = r->job;
    const bool by_rows = deals_rows(j, group);
    const uint32_t m = group->m;
    uint32_t r0 = by_rows ? (uint32_t)((uint64_t)m * part / j->parts) : 0;
    uint32_t r1 = by_rows ? (uint32_t)((uint64_t)m * (part + 1) / j->parts) : m;
    const uint64_t begin = *at;

    for (; r0 < r1; r0 += r->m) {
        uint32_t blocks = (r1 - r0 + r->most - 1) / r->most;
        r->m = (r1 - r0 + blocks - 1) / blocks;
        r->rows = group->rows ? group->rows + r0 : NULL;
        r->first = group->first + r0;
        r->like = NULL;
        *at = begin;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t p0 = 0, p1 = fmi_cpu_weight_of(group[i].w)->panels;
            if (!by_rows)
                my_panels(j, group + i, part, at, &p0, &p1);
            do_panels(r, group + i, p0, p1);
        }
    }
}

static uint32_t group_at(const product_job *j, uint32_t i)
{
    uint32_t count = 1;

    while (i + count < j->count && same_rows(&j->list[i], &j->list[i + count]))
        count++;
    return count;
}

static fm_status product_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const product_job *j = ctx;
    size_t widest = 0, panel = 0, rows = 0;

    for (uint32_t i = 0; i < j->count; i++) {
        const fmi_fast_weight *w = fmi_fast_weight_of(j->list[i].w);
        widest = FM_MAX(widest, row_bytes(w) * (is_split(&j->list[i]) ? 2 : 1));
        panel = FM_MAX(panel, panel_bytes(w));
        rows = FM_MAX(rows, j->list[i].m);
    }
    uint32_t most = (uint32_t)FM_MAX(48u, FM_MIN(480u, PACKED_BYTES / widest));
    size_t bytes = (FM_MIN(rows, most) * widest + 63) & ~(size_t)63;
    uint8_t *scratch = fmi_scratch_get(&j->cpu->worker[worker], bytes + panel);
    packed_rows r = {.job = j, .most = most, .bytes = scratch, .panel = scratch + bytes};

    if (!scratch)
        return FM_ENOMEM;
    for (size_t part = begin; part < end; part++) {
        uint64_t at = 0;
        for (uint32_t i = 0; i < j->count;) {
            uint32_t count = group_at(j, i);
            do_group(&r, j->list + i, count, (unsigned)part, &at);
            i += count;
        }
    }
    return FM_OK;
}

static void run_products(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                         const fm_product *list, uint32_t count)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    product_job j = {.cpu = cpu,
                     .kern = fmi_fast_of(be)->kern,
                     .x = x,
                     .ldx = ldx,
                     .list = list,
                     .count = count,
                     .parts = cpu->threads};
    uint64_t total = 0;

    for (uint32_t i = 0; i < count; i++) {
        fm_assert(fmi_cpu_weight_of(list[i].w)->k == k);
        total += panel_cost(fmi_fast_weight_of(list[i].w), list[i].m) *
                 fmi_cpu_weight_of(list[i].w)->panels;
    }
    if (total < SMALL_COST)
        j.parts = 1;
    for (uint32_t i = 0; i < count; i++)
        if (list[i].m > 0 && !deals_rows(&j, &list[i]))
            j.cost += panel_cost(fmi_fast_weight_of(list[i].w), list[i].m) *
                      fmi_cpu_weight_of(list[i].w)->panels;
    if (count > 0)
        fmi_run(cpu, j.parts, 1, product_worker, &j);
}

/* Products whose rows are known (fmi_segment), to be passed to run_products. */
typedef struct settled {
    fm_backend *be;
    const float *x;
    size_t ldx;
    uint32_t k, count;
    fm_product some[FMI_SETTLED];
} settled;

static void run_settled(settled *s)
{
    if (s->count > 0)
        run_products(s->be, s->x, s->ldx, s->k, s->some, s->count);
    s->count = 0;
}

static void settle(settled *s, const fm_product *p)
{
    fm_product *to = &s->some[s->count];
    *to = *p;
    FMI_SETTLE(to);
    s->count += to->m > 0;
    if (s->count == FMI_SETTLED)
        run_settled(s);
}

#define PAIRED 2048u /* products of a list that are searched for the same segment */

/* Gate and up of an expert share the packing of their rows, so they are made adjacent. */
static void op_products(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                        const fm_product *list, uint32_t count)
{
    settled s;
    uint64_t gone[PAIRED / 64] = {0};
    bool segments = false;

    for (uint32_t i = 0; i < count; i++)
        segments = segments || list[i].from;
    if (!segments) {
        run_products(be, x, ldx, k, list, count);
        return;
    }
    s.be = be;
    s.x = x;
    s.ldx = ldx;
    s.k = k;
    s.count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const fm_product *p = &list[i];
        if ((i < PAIRED && gone[i / 64] >> i % 64 & 1) || (p->from && *p->from == *p->to))
            continue;
        settle(&s, p);
        for (uint32_t j = i + 1; j < FM_MIN(count, PAIRED); j++)
            if (p->from && list[j].from == p->from && list[j].to == p->to) {
                settle(&s, &list[j]);
                gone[j / 64] |= (uint64_t)1 << j % 64;
            }
    }
    run_settled(&s);
}

static void op_linear(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                      const fm_weight *w, const float *bias, const int32_t *rows, uint32_t m)
{
    const fm_product p = {.y = y, .ldy = ldy, .w = w, .bias = bias, .m = m, .rows = rows};

    op_products(be, x, ldx, fmi_cpu_weight_of(w)->k, &p, 1);
}

void fmi_fast_product_install(fm_backend *be)
{
    be->linear = op_linear;
    be->products = op_products;
}
