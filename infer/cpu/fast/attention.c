/* attention.c - the paged cache and attention of mode fast, split over threads.
 *
 * A tile is a few consecutive rows of one sequence. A work item is a tile and a key/value head with
 * its group of query heads; it walks the chunks of its positions in order. Where there are too few
 * items to occupy the threads evenly (a few long sequences that decode), each chunk is an item of
 * its own and the parts are merged afterwards in the same order, with the same bits. */
#include "infer/cpu/fast/fast.h"
#include "infer/cpu/fast/kern_fast_attention.h"

#define TILE_ROWS 48u         /* intended number of query rows times heads of a group */
#define MIN_WORK 60000u       /* positions x query heads x hd: less: one thread */
#define AHEAD 8u              /* rows whose cache lines are prefetched */
#define SPLIT_MAX (64u << 20) /* at most so many bytes of parts */

typedef struct tile {
    uint32_t row, rows;
    uint32_t first, last; /* range of positions that any of its rows sees */
} tile;

typedef struct job {
    fmi_cpu *cpu;
    const fmi_fast_attn_kern *kern;
    const fm_attn *op;
    const tile *tiles;
    uint32_t group, tile_rows; /* tile_rows: at most so many rows (not times group) */
    size_t hdv;
    float *parts; /* [unit][chunk] of part_floats, or NULL: not split */
    uint32_t chunks;
    size_t units;
} job;

/* The state of a work item; rows are flat: query row x head of the group. */
typedef struct work {
    const job *j;
    const tile *t;
    uint32_t head, rows;
    float *q_scale, *score, *o12;
    int16_t *q;
    uint16_t *p;
} work;

/* ==== cache ==== */

static size_t op_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return nkv * FMI_FA_HEAD_BYTES(hd);
}

typedef struct write_job {
    const fmi_fast_attn_kern *kern;
    fm_kv_view kv;
    const float *k, *v;
    size_t ldk, ldv;
    const int32_t *slot;
    uint32_t m, nkv, hd;
} write_job;

/* Writes some heads: two positions share 32-bit words of a page, so rows cannot be split. */
static fm_status write_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const write_job *j = ctx;
    const size_t head_bytes = FMI_FA_HEAD_BYTES(j->hd);

    (void)worker;
    for (size_t i = 0; i < j->m; i++) {
        size_t page = (size_t)j->slot[i] / FM_KV_PAGE, at = (size_t)j->slot[i] % FM_KV_PAGE;
        for (size_t h = begin; h < end; h++) {
            size_t base = (page * j->nkv + h) * head_bytes;
            j->kern->put((uint8_t *)j->kv.k + base, (uint8_t *)j->kv.v + base, (uint32_t)at,
                         j->k + i * j->ldk + h * j->hd, j->v + i * j->ldv + h * j->hd, j->hd);
        }
    }
    return FM_OK;
}

static void op_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                        size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    write_job j = {.kern = fmi_fast_of(be)->kern->attention,
                   .kv = kv,
                   .k = k,
                   .v = v,
                   .ldk = ldk,
                   .ldv = ldv,
                   .slot = slot,
                   .m = m,
                   .nkv = nkv,
                   .hd = hd};

    fm_assert(hd % 2 == 0 && hd <= FM_K_BLOCK);
    fmi_run(fmi_cpu_of(be), m > 0 ? nkv : 0, 8192 / ((size_t)m * hd + 1) + 1, write_part, &j);
}

/* ==== attention ==== */

/* The first position that row i sees. */
static uint32_t first_of(const fm_attn *a, uint32_t i)
{
    const uint32_t pos = (uint32_t)a->pos[i];
    const uint32_t first = a->window && pos >= a->window ? pos - a->window + 1 : 0;

    return a->first ? FM_MAX(first, (uint32_t)a->first[i]) : first;
}

/* Visible positions of a query row in chunk c, counted from its start; false: none. */
static bool visible(const fm_attn *a, uint32_t row, uint32_t c, uint16_t *lo, uint16_t *hi)
{
    const uint32_t last = (uint32_t)a->pos[row], first = first_of(a, row);
    const uint32_t begin = c * FMI_FA_CHUNK, end = begin + FMI_FA_CHUNK - 1;

    *lo = 1;
    *hi = 0;
    if (first > end || last < begin)
        return false;
    *lo = (uint16_t)(FM_MAX(first, begin) - begin);
    *hi = (uint16_t)(FM_MIN(last, end) - begin);
    return true;
}

/* m, l and o of every row in one block. */
static size_t part_floats(const job *j)
{
    return (size_t)j->tile_rows * j->group * (2 + j->hdv);
}

static float *part_o(const work *w, float *part)
{
    return part + 2 * (size_t)w->rows;
}

/* The biases of flat row r from position t on; NULL: it has none. */
static const float *bias_at(const work *w, uint32_t r, uint32_t t)
{
    const fm_attn *a = w->j->op;
    const uint32_t row = w->t->row + r / w->j->group;
    const size_t head = (size_t)w->head * w->j->group + r % w->j->group;

    const uint32_t own = (uint32_t)(a->own ? a->own : a->pos)[row];

    return a->bias ? a->bias + head * a->bias_ld + (a->bias_zero + t - own) : NULL;
}

/* The tile's rows against chunk c. */
static void chunk_part(const work *w, uint32_t c, float *part)
{
    const job *j = w->j;
    const fm_attn *a = j->op;
    const size_t head_bytes = FMI_FA_HEAD_BYTES(a->hd);
    const int32_t *table = a->table + (size_t)a->seq[w->t->row] * a->table_stride;
    const uint8_t *k[FMI_FA_CHUNK_PAGES], *v[FMI_FA_CHUNK_PAGES];
    const uint32_t from = FM_MAX(w->t->first / FM_KV_PAGE, c * FMI_FA_CHUNK_PAGES);
    const uint32_t to = FM_MIN(w->t->last / FM_KV_PAGE, (c + 1) * FMI_FA_CHUNK_PAGES - 1);

    for (uint32_t p = from; p <= to; p++) {
        size_t base = ((size_t)table[p] * a->nkv + w->head) * head_bytes;
        k[p % FMI_FA_CHUNK_PAGES] = (const uint8_t *)a->kv.k + base;
        v[p % FMI_FA_CHUNK_PAGES] = (const uint8_t *)a->kv.v + base;
    }
    for (uint32_t at = 0; at < w->rows; at += FMI_FA_ROWS) {
        uint16_t lo[FMI_FA_ROWS], hi[FMI_FA_ROWS];
        const float *bias[FMI_FA_ROWS];
        fmi_fast_attn f = {.q = w->q + (size_t)at * FMI_FA_Q_LD,
                           .q_scale = w->q_scale + at,
                           .lo = lo,
                           .hi = hi,
                           .bias = a->bias ? bias : NULL,
                           .k = k,
                           .v = v,
                           .m = part + at,
                           .l = part + w->rows + at,
                           .o = part_o(w, part) + at * j->hdv,
                           .score = w->score,
                           .p = w->p,
                           .rows = FM_MIN(w->rows - at, FMI_FA_ROWS),
                           .hd = a->hd,
                           .softcap = a->softcap};
        for (uint32_t r = 0; r < f.rows; r++)
            if (visible(a, w->t->row + (at + r) / j->group, c, &lo[r], &hi[r]))
                bias[r] = bias_at(w, at + r, c * FMI_FA_CHUNK + lo[r]);
        j->kern->chunk(&f);
    }
}

static void merge_part(const work *w, uint32_t c, float *sum, float *part)
{
    const job *j = w->j;
    uint16_t lo, hi;

    for (uint32_t r = 0; r < w->rows; r++)
        if (visible(j->op, w->t->row + r / j->group, c, &lo, &hi))
            j->kern->merge(sum + r, sum + w->rows + r, part_o(w, sum) + r * j->hdv, part[r],
                           part[w->rows + r], part_o(w, part) + r * j->hdv, j->op->hd);
}

static work work_of(const job *j, size_t unit)
{
    const tile *t = &j->tiles[unit / j->op->nkv];

    return (work){
        .j = j, .t = t, .head = (uint32_t)(unit % j->op->nkv), .rows = t->rows * j->group};
}

/* Offset of a flat row in q or out. */
static size_t query_at(const work *w, uint32_t r, size_t ld)
{
    return (w->t->row + r / w->j->group) * ld +
           ((size_t)w->head * w->j->group + r % w->j->group) * w->j->op->hd;
}

/* Prefetches a row: rows of q and out are too far apart for the hardware's prefetchers. */
static void fetch(const float *x, uint32_t n, bool write)
{
    for (uint32_t i = 0; i < n; i += 16)
        if (write)
            __builtin_prefetch(x + i, 1);
        else
            __builtin_prefetch(x + i, 0);
}

/* Converts the query rows to int16 and carves the scratch; `extra` floats of it are for the caller,
 * not aligned to 64 bytes. */
static fm_status prepare(work *w, fmi_scratch *scratch, size_t extra, float **extra_out)
{
    const job *j = w->j;
    const fm_attn *a = j->op;
    const size_t chunk = (size_t)FMI_FA_ROWS * FMI_FA_CHUNK, all = (size_t)w->rows;
    const size_t q_floats = all * FMI_FA_Q_LD / 2, p_floats = chunk / 2 + j->hdv;
    float *f = fmi_scratch_get(scratch, (chunk + p_floats + all + q_floats + extra) * sizeof *f);

    if (!f)
        return FM_ENOMEM;
    w->score = f;
    w->p = (uint16_t *)(void *)(f + chunk);
    w->q_scale = f + chunk + p_floats;
    w->q = (int16_t *)(void *)(w->q_scale + all);
    *extra_out = w->q_scale + all + q_floats;
    /* with a cap, scores reach the kernel as s / softcap */
    const float scale = a->softcap > 0.0f ? a->scale / a->softcap : a->scale * 0x1.715476p+0f;
    for (uint32_t r = 0; r < w->rows; r++) {
        const float *q = a->q + query_at(w, r, a->ldq);
        if (r + AHEAD < w->rows)
            fetch(a->q + query_at(w, r + AHEAD, a->ldq), a->hd, false);
        w->q_scale[r] = j->kern->quantise(w->q + (size_t)r * FMI_FA_Q_LD, q, a->hd) * scale;
    }
    return FM_OK;
}

/* A sink is merged last, as a part of one score whose value is 0. */
static void add_sink(const work *w, float *sum, uint32_t r)
{
    static const float none[FM_K_BLOCK];
    const job *j = w->j;
    const float s = j->op->sink[(size_t)w->head * j->group + r % j->group] * 0x1.715476p+0f;

    j->kern->merge(sum + r, sum + w->rows + r, part_o(w, sum) + r * j->hdv, s, 1.0f, none,
                   j->op->hd);
}

static void finish(const work *w, float *sum)
{
    const job *j = w->j;
    const fm_attn *a = j->op;

    for (uint32_t r = 0; r < w->rows; r++) {
        if (r + AHEAD < w->rows)
            fetch(a->out + query_at(w, r + AHEAD, a->ldo), a->hd, true);
        if (a->sink)
            add_sink(w, sum, r);
        j->kern->finish(a->out + query_at(w, r, a->ldo), part_o(w, sum) + r * j->hdv,
                        sum[w->rows + r], a->hd);
    }
}

static fm_status whole_unit(const job *j, size_t unit, fmi_scratch *scratch)
{
    work w = work_of(j, unit);
    float *sum, *part;
    uint32_t c = w.t->first / FMI_FA_CHUNK;
    FM_TRY(prepare(&w, scratch, 2 * part_floats(j), &sum));
    part = sum + part_floats(j);
    chunk_part(&w, c, sum);
    for (c++; c <= w.t->last / FMI_FA_CHUNK; c++) {
        chunk_part(&w, c, part);
        merge_part(&w, c, sum, part);
    }
    finish(&w, sum);
    return FM_OK;
}

static fm_status chunk_unit(const job *j, size_t unit, fmi_scratch *scratch)
{
    const uint32_t c = (uint32_t)(unit % j->chunks);
    work w = work_of(j, unit / j->chunks);
    float *none;

    if (c < w.t->first / FMI_FA_CHUNK || c > w.t->last / FMI_FA_CHUNK)
        return FM_OK;
    FM_TRY(prepare(&w, scratch, 0, &none));
    chunk_part(&w, c, j->parts + unit * part_floats(j));
    return FM_OK;
}

static fm_status attention_unit(void *ctx, size_t number, fmi_scratch *scratch)
{
    const job *j = ctx;
    size_t unit = j->units - 1 - number; /* the longest rows come last: begin with them */

    return j->parts ? chunk_unit(j, unit, scratch) : whole_unit(j, unit, scratch);
}

static fm_status merge_fn(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const job *j = ctx;

    (void)worker;
    for (size_t unit = begin; unit < end; unit++) {
        work w = work_of(j, unit);
        uint32_t c = w.t->first / FMI_FA_CHUNK;
        float *sum = j->parts + (unit * j->chunks + c) * part_floats(j);
        for (c++; c <= w.t->last / FMI_FA_CHUNK; c++)
            merge_part(&w, c, sum, j->parts + (unit * j->chunks + c) * part_floats(j));
        finish(&w, sum);
    }
    return FM_OK;
}

/* Cuts the rows into tiles of at most `most` consecutive rows of one sequence. */
static uint32_t cut_tiles(tile *t, const fm_attn *a, uint32_t most)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->m; i++) {
        const uint32_t last = (uint32_t)a->pos[i], first = first_of(a, i);
        if (n > 0 && a->seq[i] == a->seq[i - 1] && t[n - 1].rows < most) {
            t[n - 1].rows++;
            t[n - 1].first = FM_MIN(t[n - 1].first, first);
            t[n - 1].last = FM_MAX(t[n - 1].last, last);
        } else {
            t[n++] = (tile){.row = i, .rows = 1, .first = first, .last = last};
        }
    }
    return n;
}

static void op_attention(fm_backend *be, const fm_attn *a)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    job j = {.cpu = cpu,
             .kern = fmi_fast_of(be)->kern->attention,
             .op = a,
             .hdv = FMI_FA_HDV(a->hd),
             .chunks = 1};
    uint64_t work_total = 0;

    fm_assert(a->nkv > 0 && a->nh % a->nkv == 0 && a->hd % 2 == 0 && a->hd <= FM_K_BLOCK);
    if (cpu->failed < 0 || a->m == 0)
        return;
    j.group = a->nh / a->nkv;
    j.tile_rows = FM_MIN(a->m, FM_MAX(TILE_ROWS / j.group, 1u));
    const size_t tile_bytes = ((size_t)a->m * sizeof(tile) + 63) / 64 * 64;
    tile *tiles = fmi_scratch_get(&cpu->shared, tile_bytes);
    if (!tiles) {
        fmi_stick(cpu, FM_ENOMEM);
        return;
    }
    const uint32_t n = cut_tiles(tiles, a, j.tile_rows);
    for (uint32_t i = 0; i < n; i++) {
        work_total += (uint64_t)(tiles[i].last - tiles[i].first + 1) * tiles[i].rows;
        j.chunks = FM_MAX(j.chunks, tiles[i].last / FMI_FA_CHUNK + 1);
    }
    work_total *= (uint64_t)a->nh * a->hd;
    const size_t pairs = (size_t)n * a->nkv;
    const size_t parts_bytes = pairs * j.chunks * part_floats(&j) * sizeof(float);
    const bool parallel = cpu->threads > 1 && work_total > MIN_WORK;
    const bool split =
        parallel && j.chunks > 1 && pairs < 4 * (size_t)cpu->threads && parts_bytes <= SPLIT_MAX;
    j.units = split ? pairs * j.chunks : pairs;
    if (split) {
        uint8_t *both = fmi_scratch_get(&cpu->shared, tile_bytes + parts_bytes);
        if (!both) {
            fmi_stick(cpu, FM_ENOMEM);
            return;
        }
        tiles = (tile *)(void *)both;
        (void)cut_tiles(tiles, a, j.tile_rows);
        j.parts = (float *)(void *)(both + tile_bytes);
    }
    j.tiles = tiles;
    fmi_run_units(cpu, j.units, parallel, attention_unit, &j);
    if (split)
        fmi_run(cpu, pairs, 16, merge_fn, &j);
}

void fmi_fast_attention_install(fm_backend *be)
{
    be->kv_page_bytes = op_kv_page_bytes;
    be->kv_write = op_kv_write;
    be->attention = op_attention;
}
