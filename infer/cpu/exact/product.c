/* product.c - every matrix product: linear, lora, gemm, linear_dx. The matrices are in weight.c.
 *
 * One driver (mm_range) walks blocks of rows, blocks of 512 k and panels of 32 outputs, packing
 * rows (and, where the second matrix is not a weight, panels) into the worker's scratch. Between
 * blocks of k the sums are kept in c itself. How rows and panels are split over threads is free,
 * because one thread computes each output in one order. */
#include "infer/cpu/cpu.h"

#include <string.h>

#include "store/base/mem.h"

#define WHOLE_K 1024u     /* up to here all of k is packed at once and panels are walked whole; */
#define WHOLE_FEW_K 2730u /* and up to here for few rows, whose time goes into streaming weights */
#define WHOLE_FLOATS (128u << 10)
#define BLOCK_ROWS 512u /* rows that share a panel in passing; they stream from L3 */
#define FEW_ROWS 48u    /* with fewer rows only the streaming of weights counts */
#define LORA_ROWS 256u  /* rows whose x A^T is kept in scratch */
#define LORA_FEW 2u     /* up to here factors are not packed */

typedef enum mm_b {
    MM_PANELS,   /* a weight's panels */
    MM_PANELS_T, /* a weight [k of the product, n of the product], read as its transpose */
    MM_ROWS,     /* row-major [n, k] */
    MM_COLUMNS,  /* row-major [k, n] */
    MM_STORED,   /* a weight in its stored type, widened panel by panel */
    MM_STORED_T, /* the same, read as its transpose */
} mm_b;

typedef struct mm {
    fmi_cpu *cpu;
    float *c;
    size_t ldc;
    const int32_t *rows_c, *rows_a; /* NULL: 0, 1, .. */
    const float *a;
    size_t lda;
    bool ta;
    mm_b kind;
    const float *b;
    size_t ldb;              /* MM_PANELS_T: k of the weight */
    const fmi_cpu_weight *w; /* MM_STORED, MM_STORED_T */
    uint32_t m, n, k;
    float alpha;
    bool accumulate;
    const float *bias;
    uint32_t row_parts, panel_parts;
} mm;

typedef struct mm_rows { /* a block of rows */
    uint32_t at, count;
    float *c; /* of the first row, or of row number 0 where rows_c is not NULL */
    const int32_t *rows_c, *rows_a;
} mm_rows;

/* Whether k is not cut. With blocks of k as the outer loop, a block of a panel stays in L2 while
 * all rows pass; a weight is then read in strides, once for each block of rows. With few rows it is
 * read once, in order. */
static bool mm_whole_k(mm_b kind, uint32_t m, uint32_t k)
{
    return kind == MM_PANELS && (k <= WHOLE_K || (k <= WHOLE_FEW_K && m <= WHOLE_FLOATS / k));
}

/* Rows that are packed at a time. Where panels are packed too, more rows share that work. */
static uint32_t mm_block_rows(mm_b kind)
{
    return kind == MM_PANELS ? BLOCK_ROWS : 1024;
}

static size_t mm_scratch_floats(mm_b kind, uint32_t rows, uint32_t k)
{
    size_t kc = FM_MIN(k, FM_K_BLOCK), depth = mm_whole_k(kind, rows, k) ? k : kc;
    bool widens = kind == MM_STORED || kind == MM_STORED_T;
    size_t panel = kc * FMI_PANEL * (widens ? 2 : 1) + (widens ? FMI_STORED_BLOCK : 0);
    return FM_MIN(rows, mm_block_rows(kind)) * depth + panel;
}

/* The panel of outputs n0.. for k0..k0+kc, from whatever form b has. Columns beyond n up to the
 * next 16 are set to 0, since a tile reads them. */
static const float *mm_panel(const mm *j, float *dst, uint32_t k0, uint32_t kc, uint32_t n0,
                             uint32_t n)
{
    uint32_t width = n > FMI_PANEL / 2 ? FMI_PANEL : FMI_PANEL / 2;

    if (j->kind == MM_PANELS)
        return j->b + (size_t)n0 * j->k + (size_t)k0 * FMI_PANEL;
    for (uint32_t k = 0; n < width && k < kc; k++)
        memset(dst + (size_t)k * FMI_PANEL + n, 0, (width - n) * sizeof *dst);
    if (j->kind == MM_PANELS_T)
        fmi_turn_panel(j->cpu->kern, dst, j->b, (uint32_t)j->ldb, k0, kc, n0, n);
    else if (j->kind == MM_STORED)
        fmi_stored_panel(j->cpu->kern, j->w, dst, dst + kc * FMI_PANEL, k0, kc, n0, n);
    else if (j->kind == MM_STORED_T)
        fmi_stored_turned(j->w, dst, dst + kc * FMI_PANEL, k0, kc, n0, n);
    else if (j->kind == MM_ROWS)
        j->cpu->kern->transpose(dst, FMI_PANEL, j->b + (size_t)n0 * j->ldb + k0, j->ldb, n, kc);
    else
        j->cpu->kern->copy_panel(dst, j->b + k0 * j->ldb + n0, j->ldb, n, kc);
    return dst;
}

static void mm_pack(const mm *j, const mm_rows *r, float *apack, uint32_t k0)
{
    uint32_t kc = FM_MIN(j->k - k0, FM_K_BLOCK);
    const float *a =
        j->ta ? j->a + k0 * j->lda + r->at : j->a + k0 + (r->rows_a ? 0 : r->at * j->lda);

    j->cpu->kern->pack_a(apack, a, j->lda, r->rows_a, j->ta, r->count, kc);
}

/* Prefetches a share of the next panel into L2. */
static void fetch_panel(const float *panel, uint32_t k, uint32_t part, uint32_t parts)
{
    const size_t lines = (size_t)k * FMI_PANEL / 16;

    for (size_t i = lines * part / parts; i < lines * (part + 1) / parts; i++)
        __builtin_prefetch(panel + 16 * i, 0, 2);
}

/* Prefetches the outputs that a tile's sums are added to, which nothing else touches meanwhile. */
static void fetch_out(const mm_rows *r, size_t ldc, uint32_t n0, uint32_t n)
{
    for (uint32_t i = 0; i < r->count; i++) {
        const float *c = r->c + (r->rows_c ? (size_t)r->rows_c[i] : i) * ldc + n0;
        __builtin_prefetch(c, 1, 3);
        __builtin_prefetch(c + n / 2, 1, 3);
        __builtin_prefetch(c + n - 1, 1, 3);
    }
}

/* Packed rows against one panel for k0 .. k1. With many rows a tile's blocks of k follow one
 * another, so that the sums in c are still in the cache when the next block is added (rows of
 * logits lie 192 KiB apart and share a cache set), and the next operands are prefetched. */
static void mm_panel_rows(const mm *j, const mm_rows *r, const float *apack, float *turned,
                          uint32_t k0, uint32_t k1, uint32_t p)
{
    const bool many = r->count >= FEW_ROWS;
    const uint32_t most = many ? j->cpu->kern->tile_rows : r->count;
    const uint32_t tiles = (r->count + most - 1) / most, n0 = p * FMI_PANEL;
    const uint32_t n = FM_MIN(j->n - n0, FMI_PANEL);
    const float *panel = mm_panel(j, turned, k0, FM_MIN(k1 - k0, FM_K_BLOCK), n0, n);
    const float *next = !many && j->kind == MM_PANELS && n0 + FMI_PANEL < j->n
                            ? panel + (size_t)FMI_PANEL * j->k
                            : NULL;
    mm_rows one = *r;

    for (uint32_t t = 0, i = 0; t < tiles; t++, i += one.count) {
        one.count = r->count / tiles + (t < r->count % tiles ? 1 : 0);
        one.c = r->c + (j->rows_c ? 0 : i * j->ldc);
        one.rows_c = j->rows_c ? r->rows_c + i : NULL;
        if (many)
            fetch_out(&one, j->ldc, n0, n);
        if (many && j->kind == MM_PANELS && n0 + FMI_PANEL < j->n)
            fetch_panel(panel + (size_t)FMI_PANEL * j->k, k1 - k0, t, tiles);
        for (uint32_t k = k0; k < k1; k += FM_K_BLOCK) {
            uint32_t kc = FM_MIN(k1 - k, FM_K_BLOCK);
            fmi_epilogue epi = {.alpha = j->alpha,
                                .add = k > 0 || j->accumulate,
                                .bias = k + kc == j->k && j->bias ? j->bias + n0 : NULL,
                                .next = next ? next + (size_t)(k - k0) * FMI_PANEL : NULL};
            j->cpu->kern->product(one.c + n0, j->ldc, one.rows_c,
                                  apack + (size_t)(k - k0) * r->count + (size_t)i * kc, one.count,
                                  panel + (size_t)(k - k0) * FMI_PANEL, n, kc, &epi);
        }
    }
}

/* Rows m0..m1 of panels p0..p1, on this thread. Where all k of a block of rows fit L2, panels are
 * walked whole: a weight then streams from memory in one direction, once. */
static void mm_range(const mm *j, float *scratch, uint32_t m0, uint32_t m1, uint32_t p0,
                     uint32_t p1)
{
    uint32_t most = mm_block_rows(j->kind), count = m1 - m0;
    uint32_t blocks = (count + most - 1) / most;
    float *turned = scratch, *apack = scratch + mm_scratch_floats(j->kind, 0, j->k);
    mm_rows r = {.at = m0};

    for (uint32_t block = 0; block < blocks; block++, r.at += r.count) {
        r.count = count / blocks + (block < count % blocks ? 1 : 0);
        r.c = j->c + (j->rows_c ? 0 : r.at * j->ldc);
        r.rows_c = j->rows_c ? j->rows_c + r.at : NULL;
        r.rows_a = j->rows_a ? j->rows_a + r.at : NULL;
        if (mm_whole_k(j->kind, j->m, j->k)) {
            for (uint32_t k0 = 0; k0 < j->k; k0 += FM_K_BLOCK)
                mm_pack(j, &r, apack + (size_t)k0 * r.count, k0);
            for (uint32_t p = p0; p < p1; p++)
                mm_panel_rows(j, &r, apack, NULL, 0, j->k, p);
            continue;
        }
        for (uint32_t k0 = 0; k0 < j->k; k0 += FM_K_BLOCK) {
            mm_pack(j, &r, apack, k0);
            for (uint32_t p = p0; p < p1; p++)
                mm_panel_rows(j, &r, apack, turned, k0, FM_MIN(j->k, k0 + FM_K_BLOCK), p);
        }
    }
}

static uint32_t part_begin(uint32_t count, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)count * part / parts);
}

static fm_status mm_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const mm *j = ctx;
    size_t floats = mm_scratch_floats(j->kind, j->m, j->k);
    float *scratch = fmi_scratch_get(&j->cpu->worker[worker], floats * sizeof *scratch);

    if (!scratch)
        return FM_ENOMEM;
    for (size_t i = begin; i < end; i++) {
        uint32_t rp = (uint32_t)i / j->panel_parts, pp = (uint32_t)i % j->panel_parts;
        uint32_t panels = fmi_panels_of(j->n);
        mm_range(j, scratch, part_begin(j->m, rp, j->row_parts),
                 part_begin(j->m, rp + 1, j->row_parts), part_begin(panels, pp, j->panel_parts),
                 part_begin(panels, pp + 1, j->panel_parts));
    }
    return FM_OK;
}

/* Rows are split when there are many: each thread then packs only its own. Panels otherwise: each
 * thread then streams only its own, which is all that matters to a decode step. */
static void mm_run(mm *j)
{
    uint32_t panels = fmi_panels_of(j->n), threads = j->cpu->threads;
    uint64_t work = (uint64_t)j->m * j->n * j->k;
    bool by_rows = j->kind == MM_PANELS ? j->m >= 64 * threads : j->m >= j->n;

    if (j->m == 0 || j->n == 0)
        return;
    fm_assert(j->k > 0);
    if (work < 20000) /* shorter than waking a thread */
        threads = 1;
    if (panels < threads)
        by_rows = true;
    j->row_parts = by_rows ? FM_MIN(threads, (j->m + 3) / 4) : 1;
    j->panel_parts =
        by_rows ? FM_MAX(1u, FM_MIN(threads / j->row_parts, panels)) : FM_MIN(threads, panels);
    fmi_run(j->cpu, (size_t)j->row_parts * j->panel_parts, 1, mm_worker, j);
}

/* ---- operations ---- */

void fmi_exact_linear(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                      const fm_weight *weight, const float *bias, const int32_t *rows, uint32_t m)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    mm j = {.cpu = fmi_cpu_of(be),
            .c = y,
            .ldc = ldy,
            .rows_c = rows,
            .rows_a = rows,
            .a = x,
            .lda = ldx,
            .kind = w->stored ? MM_STORED : MM_PANELS,
            .b = w->panel,
            .w = w,
            .m = m,
            .n = w->n,
            .k = w->k,
            .alpha = 1.0f,
            .bias = bias};
    mm_run(&j);
}

void fmi_exact_products(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                        const fm_product *list, uint32_t count)
{
    (void)k;
    for (uint32_t i = 0; i < count; i++) {
        fm_product p = list[i];
        FMI_SETTLE(&p);
        size_t first = p.rows ? 0 : p.first;
        fmi_exact_linear(be, p.y + first * p.ldy, p.ldy, x + first * ldx, ldx, p.w, p.bias, p.rows,
                         p.m);
    }
}

void fmi_exact_linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                         const fm_weight *weight, uint32_t m, bool accumulate)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    const float *turned = fmi_dx_panels(fmi_cpu_of(be), w);
    mm j = {.cpu = fmi_cpu_of(be),
            .c = dx,
            .ldc = lddx,
            .a = dy,
            .lda = lddy,
            .kind = turned      ? MM_PANELS
                    : w->stored ? MM_STORED_T
                                : MM_PANELS_T,
            .b = turned ? turned : w->panel,
            .w = w,
            .ldb = w->k,
            .m = m,
            .n = w->k,
            .k = w->n,
            .alpha = 1.0f,
            .accumulate = accumulate};
    mm_run(&j);
}

void fmi_exact_gemm(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
                    const float *b, size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k,
                    float alpha, bool accumulate)
{
    mm j = {.cpu = fmi_cpu_of(be),
            .c = c,
            .ldc = ldc,
            .a = a,
            .lda = lda,
            .ta = ta,
            .kind = tb ? MM_ROWS : MM_COLUMNS,
            .b = b,
            .ldb = ldb,
            .m = m,
            .n = n,
            .k = k,
            .alpha = alpha,
            .accumulate = accumulate};
    mm_run(&j);
}

/* ---- low-rank terms ----
 * A work item is some rows of one term, and where there are fewer items than threads a share of the
 * outputs: each thread with a share computes t = x A^T itself, which costs less than a barrier. */
typedef struct lora_job {
    fmi_cpu *cpu;
    const float *x;
    size_t ldx;
    uint32_t k;
    const fm_lora *term;
    uint32_t terms, widest; /* largest r of a term */
    uint32_t rows;          /* of a work item, at most */
    uint32_t panel_parts;
} lora_job;

typedef struct lora_unit {
    const fm_lora *term;
    uint32_t at, m; /* rows of the term */
    uint32_t n0, n1;
    float *t, *scratch;
} lora_unit;

/* One or two rows: factors are read where they lie, since transposing them would cost more. */
static void lora_few(const lora_job *j, const lora_unit *u)
{
    const fm_lora *l = u->term;
    const fmi_cpu_weight *a = fmi_cpu_weight_of(l->a), *b = fmi_cpu_weight_of(l->b);
    const uint32_t r = a->n;

    for (uint32_t i = u->at; i < u->at + u->m; i++) {
        size_t row = l->rows ? (size_t)l->rows[i] : l->first + i;
        const float *x = j->x + row * j->ldx;
        float *y = l->y + row * l->ldy + u->n0;
        for (uint32_t k0 = 0; k0 < j->k; k0 += FM_K_BLOCK)
            j->cpu->kern->row_product(u->t, x + k0, a->panel + k0, j->k, r,
                                      FM_MIN(j->k - k0, FM_K_BLOCK),
                                      &(fmi_epilogue){.alpha = 1.0f, .add = k0 > 0});
        for (uint32_t r0 = 0; r0 < r; r0 += FM_K_BLOCK)
            j->cpu->kern->row_product(y, u->t + r0, b->panel + (size_t)u->n0 * r + r0, r,
                                      u->n1 - u->n0, FM_MIN(r - r0, FM_K_BLOCK),
                                      &(fmi_epilogue){.alpha = l->scale, .add = true});
    }
}

static void lora_many(const lora_job *j, const lora_unit *u)
{
    const fm_lora *l = u->term;
    const fmi_cpu_weight *a = fmi_cpu_weight_of(l->a), *b = fmi_cpu_weight_of(l->b);
    const uint32_t r = a->n;
    size_t first = l->rows ? 0 : l->first + u->at;
    const int32_t *rows = l->rows ? l->rows + u->at : NULL;
    mm down = {.cpu = j->cpu,
               .c = u->t,
               .ldc = r,
               .rows_a = rows,
               .a = j->x + first * j->ldx,
               .lda = j->ldx,
               .kind = MM_ROWS,
               .b = a->panel,
               .ldb = j->k,
               .m = u->m,
               .n = r,
               .k = j->k,
               .alpha = 1.0f};
    mm up = {.cpu = j->cpu,
             .c = l->y + first * l->ldy,
             .ldc = l->ldy,
             .rows_c = rows,
             .a = u->t,
             .lda = r,
             .kind = MM_ROWS,
             .b = b->panel,
             .ldb = r,
             .m = u->m,
             .n = b->n,
             .k = r,
             .alpha = l->scale,
             .accumulate = true};

    mm_range(&down, u->scratch, 0, u->m, 0, fmi_panels_of(r));
    mm_range(&up, u->scratch, 0, u->m, u->n0 / FMI_PANEL, fmi_panels_of(u->n1));
}

static uint32_t lora_units(const lora_job *j, const fm_lora *l)
{
    return (l->m + j->rows - 1) / j->rows * j->panel_parts;
}

static void lora_do(const lora_job *j, lora_unit *u, uint32_t unit)
{
    uint32_t n = fmi_cpu_weight_of(u->term->b)->n, panels = fmi_panels_of(n),
             part = unit % j->panel_parts;

    u->at = unit / j->panel_parts * j->rows;
    u->m = FM_MIN(u->term->m - u->at, j->rows);
    u->n0 = part_begin(panels, part, j->panel_parts) * FMI_PANEL;
    u->n1 = FM_MIN(part_begin(panels, part + 1, j->panel_parts) * FMI_PANEL, n);
    if (u->m <= LORA_FEW)
        lora_few(j, u);
    else
        lora_many(j, u);
}

static fm_status lora_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const lora_job *j = ctx;
    size_t t_floats = ((size_t)j->rows * j->widest + 15) & ~(size_t)15;
    size_t floats = t_floats + FM_MAX(mm_scratch_floats(MM_ROWS, j->rows, j->k),
                                      mm_scratch_floats(MM_ROWS, j->rows, j->widest));
    float *t = fmi_scratch_get(&j->cpu->worker[worker], floats * sizeof *t);
    lora_unit u = {.t = t, .scratch = t + t_floats};
    size_t at = 0;

    if (!t)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < j->terms && at < end; i++) {
        uint32_t units = lora_units(j, &j->term[i]);
        u.term = &j->term[i];
        for (uint32_t k = 0; k < units; k++, at++)
            if (at >= begin && at < end)
                lora_do(j, &u, k);
    }
    return FM_OK;
}

static void run_terms(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                      uint32_t terms)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    lora_job j = {cpu, x, ldx, k, term, terms, 0, 0, 1};
    uint64_t work = 0, rows = 0, units = 0;
    uint32_t narrowest = UINT32_MAX;

    for (uint32_t i = 0; i < terms; i++) {
        uint32_t n = fmi_cpu_weight_of(term[i].b)->n, r = fmi_cpu_weight_of(term[i].a)->n;
        work += ((uint64_t)n + k) * term[i].m * r;
        rows += term[i].m;
        j.widest = FM_MAX(j.widest, r);
        narrowest = FM_MIN(narrowest, n);
    }
    uint32_t threads = work < 20000 ? 1 : cpu->threads; /* shorter than waking a thread */
    j.rows = (uint32_t)FM_MAX(LORA_FEW, FM_MIN(LORA_ROWS, (rows + threads - 1) / threads));
    for (uint32_t i = 0; i < terms; i++)
        units += lora_units(&j, &term[i]);
    if (units < threads && work >= 200000) {
        j.panel_parts = FM_MIN(threads, fmi_panels_of(narrowest));
        units *= j.panel_parts;
    }
    fmi_run(cpu, units, threads > 1 ? 1 : units, lora_worker, &j);
}

void fmi_settle_terms(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                      uint32_t terms, fmi_terms_fn run)
{
    fm_lora some[FMI_SETTLED];
    bool settled = true;

    for (uint32_t i = 0; i < terms; i++)
        settled = settled && !term[i].from;
    for (uint32_t i = 0, n = 0; !settled && i < terms; i++) {
        some[n] = term[i];
        FMI_SETTLE(&some[n]);
        n += some[n].m > 0;
        if (n > 0 && (n == FMI_SETTLED || i + 1 == terms)) {
            run(be, x, ldx, k, some, n);
            n = 0;
        }
    }
    if (settled)
        run(be, x, ldx, k, term, terms);
}

void fmi_exact_lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                    uint32_t terms)
{
    fmi_settle_terms(be, x, ldx, k, term, terms, run_terms);
}

void fmi_exact_linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                         size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    if (stored_kn)
        be->gemm(be, dw, n, x, ldx, true, dy, lddy, false, k, n, m, 1.0f, true);
    else
        be->gemm(be, dw, k, dy, lddy, true, x, ldx, false, n, k, m, 1.0f, true);
}
