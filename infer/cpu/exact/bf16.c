/* bf16.c - mode bf16: training whose large products multiply operands rounded to bf16.
 *
 * Weights are pairs of bf16 in mode fast's layout, and linear and products are mode fast's for that
 * type. linear_dx and linear_dw have their own driver over the same kernel: rows and columns are
 * packed as pairs along the dimension that is summed, in blocks (KERNELS.md has the order). Factors
 * of low-rank terms stay float32; everything else is mode exact's. */
#include "infer/cpu/fast/fast.h"

#include <string.h>

#include "store/base/mem.h"

#define BLOCK 1024u /* of the dimension that is summed: a panel's is 64 KiB */
#define PAIRS (BLOCK / 2)
#define WHOLE_WORDS 98304u /* packed rows of a larger k that are still walked whole: 384 KiB */
#define WHOLE_K 4096u      /* a larger k never is */
#define BLOCK_ROWS 512u    /* rows packed at a time */
#define SHARED_ROWS 1024u  /* likewise where panels are made on the fly */
#define TURN_PAIRS 64u     /* transposed at a time: 8 KiB of a panel */
#define SMALL_WORK 20000u  /* multiplications; less is shorter than waking a thread */

static uint32_t pairs_of(uint32_t k)
{
    return (k + 1) / 2;
}
static uint32_t panels_of(uint32_t n)
{
    return (n + FMI_WIDE - 1) / FMI_WIDE;
}

/* ---- products: c[m, n] (+)= a b over k ---- */

typedef struct product {
    fmi_cpu *cpu;
    const fmi_fast_kern *kern;
    float *c;
    size_t ldc;
    const float *a; /* [m, k], or if ta [k, m] */
    size_t lda;
    bool ta;
    const uint32_t *panel;   /* b as panels of 32 columns, [pairs of k, 32]; if NULL, b is */
    const fmi_cpu_weight *w; /* a weight [k, n], or */
    const float *b;          /* floats [k, n] */
    size_t ldb;
    uint32_t m, n, k;
    bool accumulate;
    uint32_t row_parts, panel_parts;
} product;

/* Columns at .. at + width of w [n, k] for rows n0 .. n0 + n (n0 even) as pairs along n. */
static void turn(uint32_t *dst, const fmi_cpu_weight *w, uint32_t n0, uint32_t n, uint32_t at,
                 uint32_t width)
{
    const uint32_t depth = pairs_of(w->k);
    const uint32_t *image = (const uint32_t *)(const void *)w->panel;

    for (uint32_t i = 0; i < n; i += 2) {
        uint32_t row = n0 + i, first = row / FMI_WIDE * FMI_WIDE;
        uint32_t wide = w->n - first <= FMI_OUTPUTS ? FMI_OUTPUTS : FMI_WIDE;
        const uint32_t *src = image + (size_t)first * depth + row % FMI_WIDE;
        uint32_t *out = dst + (size_t)(i / 2) * FMI_WIDE;
        src += (size_t)(at / 2) * wide;
        for (uint32_t c = 0; c < width; c += 2, src += wide) {
            uint32_t even = src[0], odd = i + 1 < n ? src[1] : 0;
            out[c] = (even & 0xffffu) | odd << 16;
            out[c + 1] = even >> 16 | (odd & 0xffff0000u); /* an odd k: the last column is zeros */
        }
        memset(out + (width + 1) / 2 * 2, 0, (FMI_WIDE - (width + 1) / 2 * 2) * sizeof *out);
    }
}

/* The panel of columns from n0 for k0 .. k0 + kc. */
static const uint32_t *panel_at(const product *j, uint32_t *dst, uint32_t k0, uint32_t kc,
                                uint32_t n0, uint32_t n)
{
    if (j->panel)
        return j->panel + (size_t)n0 * pairs_of(j->k) + (size_t)(k0 / 2) * FMI_WIDE;
    if (j->w) {
        turn(dst, j->w, k0, kc, n0, n);
        return dst;
    }
    for (uint32_t i = 0; n < FMI_WIDE && i < pairs_of(kc); i++)
        memset(dst + (size_t)i * FMI_WIDE + n, 0, (FMI_WIDE - n) * sizeof *dst);
    j->cpu->kern->pairs(dst, FMI_WIDE, j->b + k0 * j->ldb + n0, j->ldb, n, kc);
    return dst;
}

static void pack_rows(const product *j, uint32_t *dst, uint32_t at, uint32_t m, uint32_t k0)
{
    const uint32_t kc = FM_MIN(j->k - k0, BLOCK), most = j->kern->tile_bf16;
    const uint32_t tiles = (m + most - 1) / most;

    if (!j->ta) {
        j->kern->pack_bf16(dst, j->a + k0, j->lda, NULL, at, m, kc, false);
        return;
    }
    for (uint32_t t = 0; t < tiles; t++) { /* cut as in pack_bf16 */
        uint32_t n = m / tiles + (t < m % tiles ? 1 : 0);
        j->cpu->kern->pairs(dst, n, j->a + k0 * j->lda + at, j->lda, n, kc);
        dst += (size_t)n * pairs_of(kc);
        at += n;
    }
}

/* Prefetches the outputs that a tile's sums are added to. */
static void fetch_out(const float *c, size_t ldc, uint32_t m, uint32_t n)
{
    for (uint32_t i = 0; i < m; i++, c += ldc) {
        __builtin_prefetch(c, 1, 3);
        __builtin_prefetch(c + n / 2, 1, 3);
        __builtin_prefetch(c + n - 1, 1, 3);
    }
}

/* Packed rows against one panel for k0 .. k1, a tile at a time (product.c has the reason). */
static void one_panel(const product *j, const uint32_t *packed, uint32_t *made, uint32_t at,
                      uint32_t m, uint32_t k0, uint32_t k1, uint32_t p)
{
    const uint32_t n0 = p * FMI_WIDE, n = FM_MIN(j->n - n0, FMI_WIDE), most = j->kern->tile_bf16;
    const uint32_t tiles = (m + most - 1) / most;
    const uint32_t *panel = panel_at(j, made, k0, FM_MIN(k1 - k0, BLOCK), n0, n);
    fmi_fast_out out = {.y = j->c + n0, .ldy = j->ldc, .first = at, .n = n};

    for (uint32_t t = 0, i = 0; t < tiles; t++) {
        uint32_t rows = m / tiles + (t < m % tiles ? 1 : 0);
        fetch_out(out.y + out.first * j->ldc, j->ldc, rows, n);
        for (uint32_t k = k0; k < k1; k += BLOCK) {
            uint32_t pairs = pairs_of(FM_MIN(k1 - k, BLOCK)), from = (k - k0) / 2;
            out.add = k > 0 || j->accumulate;
            j->kern->product_bf16(&out, packed + (size_t)from * m + (size_t)i * pairs, rows,
                                  panel + (size_t)from * FMI_WIDE, FMI_WIDE, pairs);
        }
        i += rows;
        out.first += rows;
    }
}

/* Whether all of k is packed at once and panels are walked whole, as in mode exact (product.c). */
static bool is_whole(const product *j)
{
    return j->panel && (j->k <= BLOCK || (j->k <= WHOLE_K && j->m <= WHOLE_WORDS / pairs_of(j->k)));
}

static uint32_t rows_at_a_time(const product *j)
{
    return j->panel ? BLOCK_ROWS : SHARED_ROWS;
}

static size_t scratch_words(const product *j)
{
    uint32_t depth = is_whole(j) ? pairs_of(j->k) : FM_MIN(PAIRS, pairs_of(j->k));

    return (size_t)FM_MIN(j->m, rows_at_a_time(j)) * depth + (size_t)PAIRS * FMI_WIDE;
}

static void range(const product *j, uint32_t *scratch, uint32_t m0, uint32_t m1, uint32_t p0,
                  uint32_t p1)
{
    uint32_t *packed = scratch + (size_t)PAIRS * FMI_WIDE;
    uint32_t most = rows_at_a_time(j), blocks = (m1 - m0 + most - 1) / most, at = m0;
    const uint32_t depth = is_whole(j) ? j->k : BLOCK;

    for (uint32_t block = 0; block < blocks; block++) {
        uint32_t m = (m1 - m0) / blocks + (block < (m1 - m0) % blocks ? 1 : 0);
        for (uint32_t k0 = 0; k0 < j->k; k0 += depth) {
            uint32_t k1 = FM_MIN(j->k, k0 + depth);
            for (uint32_t k = k0; k < k1; k += BLOCK)
                pack_rows(j, packed + (size_t)((k - k0) / 2) * m, at, m, k);
            for (uint32_t p = p0; p < p1; p++)
                one_panel(j, packed, scratch, at, m, k0, k1, p);
        }
        at += m;
    }
}

static uint32_t part_begin(uint32_t count, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)count * part / parts);
}

static fm_status product_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const product *j = ctx;
    uint32_t *scratch =
        fmi_scratch_get(&j->cpu->worker[worker], scratch_words(j) * sizeof *scratch);
    const uint32_t panels = panels_of(j->n);

    if (!scratch)
        return FM_ENOMEM;
    for (size_t i = begin; i < end; i++) {
        uint32_t rp = (uint32_t)i / j->panel_parts, pp = (uint32_t)i % j->panel_parts;
        range(j, scratch, part_begin(j->m, rp, j->row_parts),
              part_begin(j->m, rp + 1, j->row_parts), part_begin(panels, pp, j->panel_parts),
              part_begin(panels, pp + 1, j->panel_parts));
    }
    return FM_OK;
}

/* Splits the work as mode exact does: by rows when there are many, by panels otherwise. */
static void run_product(product *j)
{
    uint32_t panels = panels_of(j->n), threads = j->cpu->threads;
    bool by_rows = j->panel ? j->m >= 64 * threads : j->m >= j->n;

    if (j->m == 0 || j->n == 0 || j->k == 0)
        return;
    if ((uint64_t)j->m * j->n * j->k < SMALL_WORK)
        threads = 1;
    by_rows = by_rows || panels < threads;
    j->row_parts = by_rows ? FM_MIN(threads, (j->m + 3) / 4) : 1;
    j->panel_parts =
        by_rows ? FM_MAX(1u, FM_MIN(threads / j->row_parts, panels)) : FM_MIN(threads, panels);
    fmi_run(j->cpu, (size_t)j->row_parts * j->panel_parts, 1, product_worker, j);
}

/* Makes panels of W^T from those of W. */
static fm_status turn_panels(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const fmi_cpu_weight *w = ((const fmi_turn *)ctx)->w;
    uint32_t *turned = w->dx->panels;

    (void)worker;
    for (size_t p = begin; p < end; p++) {
        uint32_t at = (uint32_t)p * FMI_WIDE, width = FM_MIN(w->k - at, FMI_WIDE);
        turn(turned + (size_t)at * pairs_of(w->n), w, 0, w->n, at, width);
    }
    return FM_OK;
}

static void op_linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                         const fm_weight *weight, uint32_t m, bool accumulate)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    product j = {.cpu = fmi_cpu_of(be),
                 .kern = fmi_fast_of(be)->kern,
                 .c = dx,
                 .ldc = lddx,
                 .a = dy,
                 .lda = lddy,
                 .panel = fmi_dx_use(fmi_cpu_of(be), w, panels_of(w->k), turn_panels),
                 .w = w,
                 .m = m,
                 .n = w->k,
                 .k = w->n,
                 .accumulate = accumulate};
    run_product(&j);
}

static void op_linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                         size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    product j = {.cpu = fmi_cpu_of(be),
                 .kern = fmi_fast_of(be)->kern,
                 .c = dw,
                 .ldc = stored_kn ? n : k,
                 .a = stored_kn ? x : dy,
                 .lda = stored_kn ? ldx : lddy,
                 .ta = true,
                 .b = stored_kn ? dy : x,
                 .ldb = stored_kn ? lddy : ldx,
                 .m = stored_kn ? k : n,
                 .n = stored_kn ? n : k,
                 .k = m,
                 .accumulate = true};
    run_product(&j);
}

/* ---- weights ---- */

/* Packs rows of any type, or float32 rows, as panels of W; scratch: k floats, 32 rows of pairs. */
typedef struct pack_job {
    fmi_cpu *cpu;
    const fmi_fast_kern *kern;
    uint32_t n, k;
    uint32_t *image;
    const float *floats;
    fm_dtype dtype; /* the type of src, where floats is NULL */
    const unsigned char *src;
    size_t row_bytes;
    float *scratch;   /* NULL: the worker's */
    uint32_t *turned; /* panels of W^T, also made from floats; or NULL */
} pack_job;

static size_t pack_floats(uint32_t k)
{
    return ((size_t)k + 15) / 16 * 16 + (size_t)FMI_WIDE * pairs_of(k);
}

static fm_status round_rows(const pack_job *j, uint32_t first, uint32_t n, float *row, float *pairs)
{
    const uint32_t kp = 2 * pairs_of(j->k);

    for (uint32_t i = 0; i < n; i++) {
        uint16_t *dst = (uint16_t *)(void *)(pairs + (size_t)i * pairs_of(j->k));
        const unsigned char *src = j->floats ? NULL : j->src + (first + i) * j->row_bytes;

        if (!j->floats && j->dtype == FM_BF16) { /* keeps its bits */
            dst[kp - 1] = 0;
            memcpy(dst, src, 2 * (size_t)j->k);
            continue;
        }
        if (!j->floats)
            FM_TRY(fm_to_f32(row, j->dtype, src, j->k));

        j->cpu->kern->round(dst, j->floats ? j->floats + (size_t)(first + i) * j->k : row, j->k);
        if (kp > j->k)
            dst[j->k] = 0;
    }
    return FM_OK;
}

static fm_status pack_panels(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const pack_job *j = ctx;
    const uint32_t depth = pairs_of(j->k);
    float *row = j->scratch;

    if (!row)
        row = fmi_scratch_get(&j->cpu->worker[worker], pack_floats(j->k) * sizeof *row);
    if (!row)
        return FM_ENOMEM;
    float *pairs = row + ((size_t)j->k + 15) / 16 * 16;
    for (size_t p = begin; p < end; p++) {
        uint32_t first = (uint32_t)p * FMI_WIDE, n = FM_MIN(j->n - first, FMI_WIDE);
        uint32_t wide = n <= FMI_OUTPUTS ? FMI_OUTPUTS : FMI_WIDE;
        uint32_t *dst = j->image + (size_t)first * depth;
        FM_TRY(round_rows(j, first, n, row, pairs));
        if (n < wide)
            memset(dst, 0, (size_t)wide * depth * sizeof *dst);
        /* Moves 32-bit words, whatever they hold. */
        for (uint32_t k0 = 0; k0 < depth; k0 += TURN_PAIRS)
            j->cpu->kern->transpose((float *)(void *)(dst + (size_t)k0 * wide), wide, pairs + k0,
                                    depth, n, FM_MIN(TURN_PAIRS, depth - k0));
        for (uint32_t c = 0; j->turned && c < j->k; c += FMI_WIDE)
            j->cpu->kern->pairs(
                j->turned + (size_t)c * pairs_of(j->n) + (size_t)first / 2 * FMI_WIDE, FMI_WIDE,
                j->floats + (size_t)first * j->k + c, j->k, FM_MIN(FMI_WIDE, j->k - c), n);
    }
    return FM_OK;
}

static fm_status op_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                uint32_t n, uint32_t k)
{
    const fmi_fast *fast = fmi_fast_of(be);
    fm_status rc = fast->exact.weight_image_bytes(be, out, role, dtype, n, k);

    return rc < 0 || role != FM_ROLE_LINEAR
               ? rc
               : fast->fast.weight_image_bytes(be, out, role, FM_BF16, n, k);
}

/* Runs on the calling thread with memory of its own, as in mode exact. */
static fm_status op_image(fm_backend *be, void *image, fm_role role, fm_dtype dtype, uint32_t n,
                          uint32_t k, const void *host_bytes)
{
    const fmi_fast *fast = fmi_fast_of(be);
    fm_shape shape = {.rank = 1, .dim = {k}};
    uint64_t row_bytes;
    fm_status rc;

    if (role != FM_ROLE_LINEAR)
        return fast->exact.weight_image(be, image, role, dtype, n, k, host_bytes);
    FM_TRY(fm_tensor_bytes(&row_bytes, dtype, &shape, "one row of a weight"));
    pack_job job = {.cpu = fmi_cpu_of(be),
                    .kern = fast->kern,
                    .n = n,
                    .k = k,
                    .image = image,
                    .dtype = dtype,
                    .src = host_bytes,
                    .row_bytes = (size_t)row_bytes,
                    .scratch = fm_aligned_alloc(64, pack_floats(k) * sizeof(float))};
    if (!job.scratch)
        return FM_ENOMEM;
    rc = pack_panels(&job, 0, panels_of(n), 0);
    fm_free(job.scratch);
    return rc;
}

static fm_status op_map(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype, uint32_t n,
                        uint32_t k, const void *image)
{
    const fmi_fast *fast = fmi_fast_of(be);

    if (role != FM_ROLE_LINEAR)
        return fast->exact.weight_map(be, out, role, dtype, n, k, image);
    return fast->fast.weight_map(be, out, role, FM_BF16, n, k, image);
}

static uint64_t op_bytes(const fm_weight *weight)
{
    const fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    uint64_t outputs = ((uint64_t)w->n + FMI_OUTPUTS - 1) / FMI_OUTPUTS * FMI_OUTPUTS;

    if (w->role != FM_ROLE_LINEAR)
        return sizeof *w + (uint64_t)w->n * w->k * sizeof(float);
    return sizeof(fmi_fast_weight) + outputs * pairs_of(w->k) * 4 + (w->dx ? w->dx->bytes : 0);
}

static fm_status op_for_dx(fm_backend *be, fm_weight *weight)
{
    fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    (void)be;
    return fmi_dx_reserve(w, (uint64_t)panels_of(w->k) * FMI_WIDE * pairs_of(w->n) * 4);
}

static void op_update(fm_backend *be, fm_weight *weight, const float *src)
{
    fmi_cpu_weight *w = fmi_cpu_weight_of(weight);
    fmi_cpu *cpu = fmi_cpu_of(be);
    pack_job job = {.cpu = cpu,
                    .kern = fmi_fast_of(be)->kern,
                    .n = w->n,
                    .k = w->k,
                    .image = (uint32_t *)(void *)w->panel,
                    .floats = src,
                    .turned = fmi_dx_made(w)};

    fm_assert(w->own && w->role == FM_ROLE_LINEAR);
    fmi_run(cpu, panels_of(w->n), 1, pack_panels, &job);
}

fm_status fmi_cpu_open_bf16(fm_backend **out, fm_pool *pool, const char *isa)
{
    FM_TRY(fmi_fast_begin(out, pool, isa));
    fm_backend *be = *out;

    be->mode = "bf16";
    be->kernel_class =
        strcmp(fmi_fast_of(be)->kern->isa, "avx512bf16") == 0 ? "bf16dp-1" : "bf16fma-1";
    be->layout = "bf16-panel32-1";
    fmi_fast_weight_install(be);
    fmi_fast_of(be)->fast = *be;
    be->weight_image_bytes = op_image_bytes;
    be->weight_image = op_image;
    be->weight_map = op_map;
    be->weight_bytes = op_bytes;
    be->weight_update = op_update;
    be->weight_for_dx = op_for_dx;
    fmi_fast_product_install(be);
    be->linear_dx = op_linear_dx;
    be->linear_dw = op_linear_dw;
    return FM_OK;
}
