/* terms.c - low-rank terms of training: a whole list with one barrier of the threads (the gradient:
 * two, since da and db sum over rows, of which each thread has only some).
 *
 * A work item is some rows of the terms that share x (forward) or dx (gradient), or some columns of
 * one term's da and db. One item computes each output whole, in the order that KERNELS.md states,
 * so items may be cut anywhere. The long operand of a product is not packed; only the small factors
 * are transposed, by each item for itself. */
#include "infer/cpu/cpu.h"

#include <string.h>


#define UNIT_ROWS 128u          /* rows of a work item at most: x of 576 columns is 288 KiB */
#define UNIT_FEW 32u            /* and at least: an item's rows share the transposed factors */
#define CUT 16u                 /* work items are cut at multiples of this */
#define UNIT_COLUMNS 256u       /* columns of da, db at most */
#define BATCH_FLOATS (1u << 20) /* about as many of x and dy in a batch of gradients */
#define TURNED 16384u           /* floats of b transposed at a time */
#define SMALL_WORK 20000u       /* multiplications; less is shorter than waking a thread */

typedef struct unit {
    uint32_t term;  /* the first of its group */
    uint32_t at, n; /* rows; columns of da; columns of db */
    bool db;
} unit;

typedef struct job {
    fmi_cpu *cpu;
    const fm_term *term;
    uint32_t count;
    uint32_t *next; /* the next term of the same group, or count */
    unit *unit;
    size_t units;
    size_t scratch_floats;
} job;

static uint32_t padded(uint32_t n)
{
    return (n + FMI_THIN_COLUMNS - 1) / FMI_THIN_COLUMNS * FMI_THIN_COLUMNS;
}

/* dst[k, padded(n)] = b[k, n], the rest zeros. */
static void pad_columns(float *dst, const float *b, size_t ldb, uint32_t n, uint32_t k)
{
    const uint32_t width = padded(n);

    for (uint32_t i = 0; i < k; i++, b += ldb, dst += width) {
        memcpy(dst, b, n * sizeof *dst);
        memset(dst + n, 0, (width - n) * sizeof *dst);
    }
}

/* One product over all of k, in blocks. Columns beyond the last eight of b go through pad
 * [FM_K_BLOCK, 8], since a tile reads whole vectors. */
static void thin(const job *j, fmi_thin t, float *pad)
{
    const uint32_t whole = t.n / FMI_THIN_COLUMNS * FMI_THIN_COLUMNS, all = t.k;
    const bool add = t.add;

    for (uint32_t k0 = 0; k0 < all; k0 += FM_K_BLOCK) {
        fmi_thin b = t;
        b.k = FM_MIN(all - k0, FM_K_BLOCK);
        b.a += t.ta ? k0 * t.lda : k0;
        b.b += k0 * t.ldb;
        b.add = add || k0 > 0;
        b.n = whole;
        if (whole > 0)
            j->cpu->kern->thin(&b);
        if (whole == t.n)
            continue;
        b.n = t.n - whole;
        pad_columns(pad, b.b + whole, t.ldb, b.n, b.k);
        b.b = pad;
        b.ldb = FMI_THIN_COLUMNS;
        b.c += whole;
        j->cpu->kern->thin(&b);
    }
}

/* y[m, out] += scale * u B^T: B is transposed some columns at a time. */
static void up(const job *j, const fm_term *t, uint32_t at, uint32_t m, float *scratch)
{
    const uint32_t depth = FM_MIN(t->r, FM_K_BLOCK);
    const uint32_t most = FM_MAX(TURNED / depth / FMI_PANEL * FMI_PANEL, FMI_PANEL);

    for (uint32_t k0 = 0; k0 < t->r; k0 += FM_K_BLOCK)
        for (uint32_t c = 0; c < t->out; c += most) {
            uint32_t n = FM_MIN(t->out - c, most), kc = FM_MIN(t->r - k0, FM_K_BLOCK);
            uint32_t width = padded(n);
            for (uint32_t k = 0; k < kc && n < width; k++)
                memset(scratch + (size_t)k * width + n, 0, (width - n) * sizeof *scratch);
            j->cpu->kern->transpose(scratch, width, t->b + (size_t)c * t->r + k0, t->r, n, kc);
            j->cpu->kern->thin(&(fmi_thin){.c = t->y + at * t->ldy + c,
                                           .a = t->u + (size_t)at * t->r + k0,
                                           .b = scratch,
                                           .ldc = t->ldy,
                                           .lda = t->r,
                                           .ldb = width,
                                           .m = m,
                                           .n = n,
                                           .k = kc,
                                           .alpha = t->scale,
                                           .add = true});
        }
}

static uint32_t group_width(const job *j, uint32_t first)
{
    uint32_t width = 0;

    for (uint32_t i = first; i < j->count; i = j->next[i])
        width += padded(j->term[i].r);
    return width;
}

/* u of every term of a group at once: [x A0^T, x A1^T, ..], each rank padded to whole vectors. */
static void down(const job *j, const unit *w, float *sum, float *scratch)
{
    const fm_term *t = &j->term[w->term];
    const uint32_t width = group_width(j, w->term);
    fmi_thin p = {.c = sum, .b = scratch, .ldc = width, .lda = t->ldx, .ldb = width};

    p.m = w->n;
    p.n = width;
    p.alpha = 1.0f;
    for (uint32_t k0 = 0; k0 < t->in; k0 += FM_K_BLOCK) {
        uint32_t column = 0;
        p.k = FM_MIN(t->in - k0, FM_K_BLOCK);
        for (uint32_t i = w->term; i < j->count; i = j->next[i]) {
            const fm_term *o = &j->term[i];
            for (uint32_t k = 0; k < p.k && padded(o->r) > o->r; k++)
                memset(scratch + (size_t)k * width + column + o->r, 0,
                       (padded(o->r) - o->r) * sizeof *scratch);
            j->cpu->kern->transpose(scratch + column, width, o->a + k0, o->in, o->r, p.k);
            column += padded(o->r);
        }
        p.a = t->x + w->at * t->ldx + k0;
        p.add = k0 > 0;
        j->cpu->kern->thin(&p);
    }
}

static void forward_unit(const job *j, const unit *w, float *scratch)
{
    const uint32_t width = group_width(j, w->term);
    float *sum = scratch;
    uint32_t column = 0;

    scratch += (size_t)(UNIT_ROWS + CUT) * width;
    down(j, w, sum, scratch);
    for (uint32_t i = w->term; i < j->count; i = j->next[i]) {
        const fm_term *t = &j->term[i];
        for (uint32_t row = 0; row < w->n; row++)
            memcpy(t->u + (size_t)(w->at + row) * t->r, sum + (size_t)row * width + column,
                   t->r * sizeof *sum);
        column += padded(t->r);
        up(j, t, w->at, w->n, scratch);
    }
}

/* du = scale * dy B, then dx += du A, on the work item's rows. */
static void rows_unit(const job *j, const unit *w, float *scratch)
{
    for (uint32_t i = w->term; i < j->count; i = j->next[i]) {
        const fm_term *t = &j->term[i];
        float *du = t->du + (size_t)w->at * t->r;
        if (!t->da && !t->dx)
            continue;
        thin(j,
             (fmi_thin){.c = du,
                        .a = t->dy + w->at * t->lddy,
                        .b = t->b,
                        .ldc = t->r,
                        .lda = t->lddy,
                        .ldb = t->r,
                        .m = w->n,
                        .n = t->r,
                        .k = t->out,
                        .alpha = t->scale},
             scratch);
        if (!t->dx)
            continue;
        thin(j,
             (fmi_thin){.c = t->dx + w->at * t->lddx,
                        .a = du,
                        .b = t->a,
                        .ldc = t->lddx,
                        .lda = t->r,
                        .ldb = t->in,
                        .m = w->n,
                        .n = t->in,
                        .k = t->r,
                        .alpha = 1.0f,
                        .add = true},
             scratch);
    }
}

/* Columns of da += du^T x, or rows of db += scale * dy^T u. */
static void columns_unit(const job *j, const unit *w, float *scratch)
{
    const fm_term *t = &j->term[w->term];

    if (w->db)
        thin(j,
             (fmi_thin){.c = t->db + (size_t)w->at * t->r,
                        .a = t->dy + w->at,
                        .b = t->u,
                        .ldc = t->r,
                        .lda = t->lddy,
                        .ldb = t->r,
                        .m = w->n,
                        .n = t->r,
                        .k = t->m,
                        .alpha = t->scale,
                        .ta = true,
                        .add = true},
             scratch);
    else
        thin(j,
             (fmi_thin){.c = t->da + w->at,
                        .a = t->du,
                        .b = t->x + w->at,
                        .ldc = t->in,
                        .lda = t->r,
                        .ldb = t->ldx,
                        .m = t->r,
                        .n = w->n,
                        .k = t->m,
                        .alpha = 1.0f,
                        .ta = true,
                        .add = true},
             scratch);
}

/* ---- the plan and its threads ---- */

typedef void (*unit_fn)(const job *j, const unit *w, float *scratch);

typedef struct meeting {
    const job *job;
    unit_fn fn;
} meeting;

static fm_status unit_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const meeting *o = ctx;
    const job *j = o->job;
    float *scratch = fmi_scratch_get(&j->cpu->worker[worker], j->scratch_floats * sizeof *scratch);

    if (!scratch)
        return FM_ENOMEM;
    for (size_t i = begin; i < end; i++)
        o->fn(j, &j->unit[i], scratch);
    return FM_OK;
}

static void meet(const job *j, unit_fn fn, uint64_t work)
{
    meeting o = {j, fn};

    fmi_run(j->cpu, j->units, work < SMALL_WORK ? j->units : 1, unit_worker, &o);
}

/* Whether two terms belong to one group: they share x, or dx where forward is false. The field next
 * chains the terms of a group; only a group's first term starts a chain. */
static bool same_group(const fm_term *a, const fm_term *b, bool forward)
{
    if (forward)
        return a->x == b->x && a->ldx == b->ldx && a->in == b->in && a->m == b->m;
    return a->dx && a->dx == b->dx && a->m == b->m;
}

static void add_units(job *j, uint32_t term, uint32_t n, uint32_t parts, bool db)
{
    for (uint32_t i = 0, at = 0; i < parts; i++) {
        uint32_t end = (uint32_t)((uint64_t)n * (i + 1) / parts);
        end = i + 1 < parts ? end / CUT * CUT : n;
        if (end > at)
            j->unit[j->units++] = (unit){.term = term, .at = at, .n = end - at, .db = db};
        at = FM_MAX(at, end);
    }
}

static uint32_t row_parts(const job *j, uint64_t rows, uint32_t m)
{
    uint64_t each = rows / (2u * j->cpu->threads);

    each = FM_MAX(UNIT_FEW, FM_MIN(UNIT_ROWS, each));
    if (j->cpu->threads == 1)
        each = UNIT_ROWS;
    return (uint32_t)((m + each - 1) / each);
}

static void plan_rows(job *j, bool forward)
{
    uint64_t rows = 0;

    j->units = 0;
    for (uint32_t i = 0; i < j->count; i++) {
        rows += j->term[i].m;
        j->next[i] = j->count;
    }
    for (uint32_t i = 0; i < j->count; i++) {
        bool first = true;
        for (uint32_t k = i; k-- > 0 && first;)
            if (same_group(&j->term[k], &j->term[i], forward)) {
                j->next[k] = i;
                first = false;
            }
        if (first)
            add_units(j, i, j->term[i].m, row_parts(j, rows, j->term[i].m), false);
    }
}

static void plan_columns(job *j)
{
    j->units = 0;
    for (uint32_t i = 0; i < j->count; i++) {
        const fm_term *t = &j->term[i];
        if (t->m > 0 && t->da)
            add_units(j, i, t->in, (t->in + UNIT_COLUMNS - 1) / UNIT_COLUMNS, false);
        if (t->m > 0 && t->db)
            add_units(j, i, t->out, (t->out + UNIT_COLUMNS - 1) / UNIT_COLUMNS, true);
    }
}

/* Allocates the plan; sizes the work items' scratch. *work: multiplications of all terms. */
static bool begin_job(job *j, fm_backend *be, const fm_term *term, uint32_t count, uint64_t *work)
{
    size_t units = 0, width = 0, depth = 0;

    *j = (job){.cpu = fmi_cpu_of(be), .term = term, .count = count};
    *work = 0;
    for (uint32_t i = 0; i < count; i++) {
        const fm_term *t = &term[i];
        units += t->m / UNIT_FEW + 2 + t->in / UNIT_COLUMNS + t->out / UNIT_COLUMNS + 2;
        width += padded(t->r);
        depth = FM_MAX(depth, FM_MIN(t->in, FM_K_BLOCK));
        *work += (uint64_t)t->m * t->r * (t->in + t->out);
    }
    j->scratch_floats =
        (UNIT_ROWS + CUT) * width + FM_MAX(depth * width, TURNED + FM_K_BLOCK * FMI_PANEL);
    unsigned char *room =
        fmi_scratch_get(&j->cpu->shared, units * sizeof(unit) + count * sizeof(uint32_t));
    if (!room) {
        fmi_stick(j->cpu, FM_ENOMEM);
        return false;
    }
    j->unit = (unit *)(void *)room;
    j->next = (uint32_t *)(void *)(room + units * sizeof(unit));
    return count > 0;
}

void fmi_exact_terms(fm_backend *be, const fm_term *list, uint32_t count)
{
    uint64_t work;
    job j;

    if (!begin_job(&j, be, list, count, &work))
        return;
    plan_rows(&j, true);
    meet(&j, forward_unit, work);
}

/* Number of terms from i on whose rows stay in the cache between the two barriers; at least one. */
static uint32_t batch_at(const fm_term *list, uint32_t count, uint32_t i)
{
    uint64_t floats = 0;
    uint32_t n = 0;

    for (; i + n < count && (n == 0 || floats < BATCH_FLOATS); n++)
        floats += (uint64_t)list[i + n].m * (list[i + n].out + list[i + n].in);
    return n;
}

void fmi_exact_terms_grad(fm_backend *be, const fm_term *list, uint32_t count)
{
    uint64_t work;
    uint32_t n;
    job j;

    for (uint32_t i = 0; i < count; i += n) {
        n = batch_at(list, count, i);
        if (!begin_job(&j, be, list + i, n, &work))
            return;
        plan_rows(&j, false);
        meet(&j, rows_unit, work);
        plan_columns(&j);
        meet(&j, columns_unit, work);
    }
}
