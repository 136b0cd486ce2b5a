/* ctest: card */
/* Attention of mode fast: double precision over the same stored keys and values and over unrounded
 * ones, rows that know nothing of tiles, chunks, neighbours, pages and threads, and every
 * instruction set with the same bits. On a GPU (KK_DEVICE=cuda) likewise, with the GPU's pages
 * and chunks (infer/cuda/mma/attention.cu). */
#include "tests/kernel/kernel_kit.h"

#include "infer/cpu/fast/fast.h"
#include "infer/cpu/fast/kern_fast_attention.h"

/* Over stored values only float rounding is left, and weights that this rounding pushes to the
 * other side of a bf16: one in a thousand, each by 2^-8. */
#define TOL_STORED 4e-4
/* Values and weights are rounded to bf16: 2^-9 / sqrt(3) each for random signs, relative to the
 * largest terms of a sum that may cancel. */
#define TOL 4e-3

typedef struct shape {
    uint32_t nh, nkv, hd, window, len;
    float softcap;
} shape;

/* One sequence: its rows, and where its positions lie. */
typedef struct world {
    shape s;
    fm_backend *be;
    fm_kv_view kv;
    float *q, *k, *v; /* [len][heads * hd] */
    int32_t *table, *slot, *seq, *pos;
    uint32_t pages, per_seq, seqs, stride; /* stride: of the table, as attention is told */
} world;

static float scale_of(const shape *s)
{
    return 1.5f / sqrtf((float)s->hd);
}

static const char *const isas[] = {"avx512bf16", "avx512vnni", "avx512", "avx2", "generic"};

/* Memory for the test and for operations; a GPU's is pinned. */
static void *area(fm_backend *be, size_t bytes)
{
    void *out = NULL;

    if (be->host_alloc)
        tk_ok(be->host_alloc(be, &out, bytes));
    else
        out = fm_malloc(bytes);
    assert_non_null(out);
    return out;
}

static void area_free(fm_backend *be, void *ptr)
{
    if (be->host_free)
        be->host_free(be, ptr);
    else
        fm_free(ptr);
}

/* NULL: this CPU lacks it. */
static fm_backend *open_isa(const char *isa, fm_pool *pool)
{
    fm_backend *be = NULL;
    fm_status rc = fmi_cpu_open_fast(&be, pool, isa);

    if (rc != FM_EUNSUPPORTED)
        tk_ok(rc);
    return be;
}

/* The GPU where there is one, else this CPU's best. */
static fm_backend *open_best(fm_pool *pool)
{
    fm_backend *be = kk_card("fast");

    return be ? be : open_isa(NULL, pool);
}

static bool on_card(const fm_backend *be)
{
    return !be->host_visible;
}

static float *floats(fm_backend *be, size_t n, uint64_t stream, double size)
{
    float *x = area(be, (n + 1) * sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)((2.0 * fm_rng_uniform(3, stream, i) - 1.0) * size);
    return x;
}

/* Sequence 0 holds the rows of k, v; seqs - 1 others, all pages scattered by placement, the rest of
 * the cache NaN. Every sequence holds the same rows, so any may be asked. */
static world make(fm_backend *be, const shape *s, uint32_t seqs, uint64_t placement)
{
    world w = {.s = *s, .be = be, .seqs = seqs, .per_seq = s->len / FM_KV_PAGE + 1};
    size_t bytes = be->kv_page_bytes(be, s->nkv, s->hd);
    size_t nk = (size_t)s->nkv * s->hd;

    w.pages = w.per_seq * seqs;
    w.stride = w.per_seq;
    w.q = floats(be, s->len * (size_t)s->nh * s->hd, 1, 3.0);
    w.k = floats(be, s->len * nk, 2, 2.0);
    w.v = floats(be, s->len * nk, 3, 1.0);
    w.kv = (fm_kv_view){area(be, bytes * w.pages), area(be, bytes * w.pages)};
    memset(w.kv.k, 0xff, bytes * w.pages);
    memset(w.kv.v, 0xff, bytes * w.pages);
    w.table = area(be, w.pages * sizeof *w.table);
    fm_rng_permutation((uint32_t *)(void *)w.table, w.pages, 9, placement);
    w.slot = area(be, s->len * sizeof *w.slot);
    w.seq = area(be, s->len * sizeof *w.seq);
    w.pos = area(be, s->len * sizeof *w.pos);
    memset(w.seq, 0, s->len * sizeof *w.seq);
    for (uint32_t q = 0; q < seqs; q++) {
        for (uint32_t i = 0; i < s->len; i++) {
            w.slot[i] = w.table[q * w.per_seq + i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE +
                        (int32_t)(i % FM_KV_PAGE);
            w.pos[i] = (int32_t)i;
        }
        be->kv_write(be, w.kv, w.k, nk, w.v, nk, w.slot, s->len, s->nkv, s->hd);
        tk_ok(be->sync(be));
    }
    return w;
}

static void drop(world *w)
{
    void *all[] = {w->kv.k, w->kv.v, w->q, w->k, w->v, w->table, w->slot, w->seq, w->pos};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        area_free(w->be, all[i]);
}

static float *room(const world *w)
{
    return floats(w->be, w->s.len * (size_t)w->s.nh * w->s.hd, 8, 1.0);
}

/* Rows row .. row + m of the sequence, in one call. */
static void attend(const world *w, float *out, uint32_t row, uint32_t m)
{
    size_t ld = (size_t)w->s.nh * w->s.hd;
    const fm_attn a = {.out = out + row * ld,
                       .ldo = ld,
                       .q = w->q + row * ld,
                       .ldq = ld,
                       .kv = w->kv,
                       .table = w->table,
                       .table_stride = w->stride,
                       .seq = w->seq + row,
                       .pos = w->pos + row,
                       .m = m,
                       .nh = w->s.nh,
                       .nkv = w->s.nkv,
                       .hd = w->s.hd,
                       .window = w->s.window,
                       .scale = scale_of(&w->s),
                       .softcap = w->s.softcap};
    w->be->attention(w->be, &a);
    tk_ok(w->be->sync(w->be));
}

static void same_rows(const float *a, const float *b, size_t from, size_t n, const char *what)
{
    for (size_t i = from; i < from + n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: %a and %a at %zu", what, (double)a[i], (double)b[i], i);
}

/* ==== double precision ==== */

/* q as the kernel rounds it, by the formula of the header. */
static void quantised(double *out, const float *x, uint32_t hd)
{
    float max = 0.0f, sum = 0.0f;
    for (uint32_t i = 0; i < hd; i++)
        max = fmaxf(max, fabsf(x[i]));
    for (uint32_t i = 0; i < hd; i++)
        sum += x[i] / max * (x[i] / max);
    double f = fmin(32767.0, (double)FMI_FA_NORM / sqrt((double)sum));
    for (uint32_t i = 0; i < hd; i++)
        out[i] = rint((double)x[i] / (double)max * f) * (double)max / f;
}

/* ---- the GPU's pages: rows of 16-bit elements by eights, in which 16 bytes of a row stand beside
 * those of the next; then scales ---- */

static uint32_t card_hd(const world *w)
{
    return (w->s.hd + 7) / 8 * 8;
}

static const uint8_t *card_page(const world *w, const void *pages, uint32_t t, uint32_t head)
{
    size_t head_bytes = (size_t)card_hd(w) * FM_KV_PAGE * 2 + FM_KV_PAGE * sizeof(float);
    size_t page = (size_t)w->table[t / FM_KV_PAGE];

    assert_int_equal(w->be->kv_page_bytes(w->be, w->s.nkv, w->s.hd), w->s.nkv * head_bytes);
    return (const uint8_t *)pages + (page * w->s.nkv + head) * head_bytes;
}

static uint16_t card_element(const world *w, const uint8_t *page, uint32_t t, uint32_t d)
{
    const size_t row = t % FM_KV_PAGE;
    uint16_t v;
    memcpy(&v, page + row / 8 * card_hd(w) * 16 + d / 8 * 128 + row % 8 * 16 + d % 8 * 2, sizeof v);
    return v;
}

static double card_key(const world *w, uint32_t t, uint32_t head, uint32_t d)
{
    const uint8_t *page = card_page(w, w->kv.k, t, head);
    float scale;
    memcpy(&scale, page + 2 * (size_t)card_hd(w) * FM_KV_PAGE + t % FM_KV_PAGE * sizeof scale,
           sizeof scale);
    return (double)fm_f16_to_f32(card_element(w, page, t, d)) * (double)scale;
}

/* A query: f16 after a power of two that brings its largest element to 2^10 .. 2^11. */
static void card_query(double *out, const float *x, uint32_t hd)
{
    float max = 0.0f;
    for (uint32_t i = 0; i < hd; i++)
        max = fmaxf(max, fabsf(x[i]));
    int e = 10 - ilogbf(max);
    for (uint32_t i = 0; i < hd; i++)
        out[i] = ldexp((double)fm_f16_to_f32(fm_f32_to_f16(ldexpf(x[i], e))), -e);
}

/* The last position of those whose maximum position t is weighed against; the first is that of its
 * chunk: 256 positions, on a GPU met tile by tile. */
static uint32_t met_with(const world *w, uint32_t t)
{
    uint32_t tile = !on_card(w->be) ? FMI_FA_CHUNK : w->s.hd <= 128 ? 64 : 32;
    return t / tile * tile + tile - 1;
}

static double stored_key(const world *w, uint32_t t, uint32_t head, uint32_t d)
{
    if (on_card(w->be))
        return card_key(w, t, head, d);
    const uint32_t hd = w->s.hd, at = t % FM_KV_PAGE;
    const uint8_t *page =
        (const uint8_t *)w->kv.k +
        ((size_t)w->table[t / FM_KV_PAGE] * w->s.nkv + head) * FMI_FA_HEAD_BYTES(hd);
    int16_t v;
    float scale;
    memcpy(&v, page + (d / 2 * FM_KV_PAGE + at) * 4 + d % 2 * 2, sizeof v);
    memcpy(&scale, page + (size_t)hd * 64 + at * 4, sizeof scale);
    return (double)v * (double)scale;
}

static double stored_value(const world *w, uint32_t t, uint32_t head, uint32_t d)
{
    if (on_card(w->be))
        return (double)fm_bf16_to_f32(card_element(w, card_page(w, w->kv.v, t, head), t, d));
    const uint32_t hd = w->s.hd, at = t % FM_KV_PAGE;
    const uint8_t *page =
        (const uint8_t *)w->kv.v +
        ((size_t)w->table[t / FM_KV_PAGE] * w->s.nkv + head) * FMI_FA_HEAD_BYTES(hd);
    uint16_t v;
    memcpy(&v, page + (at / 2 * FMI_FA_HDV(hd) + d) * 4 + at % 2 * 2, sizeof v);
    return (double)fm_bf16_to_f32(v);
}

static double score_of(const shape *s, double dot)
{
    double x = dot * (double)scale_of(s), cap = (double)s->softcap;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Weights relative to each chunk's maximum are rounded to bf16 if stored. */
static void reference_row(const world *w, bool stored, uint32_t row, uint32_t h, double *out)
{
    const shape *s = &w->s;
    const uint32_t hd = s->hd, head = h / (s->nh / s->nkv);
    const uint32_t first = s->window && row >= s->window ? row - s->window + 1 : 0;
    double *score = fm_calloc(row + 1u, sizeof *score), q[512], sum = 0, max = -INFINITY;

    for (uint32_t d = 0; d < hd; d++)
        q[d] = (double)w->q[(row * s->nh + h) * (size_t)hd + d];
    if (stored)
        (on_card(w->be) ? card_query : quantised)(q, w->q + (row * s->nh + h) * (size_t)hd, hd);
    for (uint32_t t = first; t <= row; t++) {
        double dot = 0;
        for (uint32_t d = 0; d < hd; d++)
            dot += q[d] * (stored ? stored_key(w, t, head, d)
                                  : (double)w->k[(t * s->nkv + head) * (size_t)hd + d]);
        score[t] = score_of(s, dot);
        max = fmax(max, score[t]);
    }
    memset(out, 0, hd * sizeof *out);
    for (uint32_t t = first; t <= row; t++) {
        double top = max, p;
        if (stored) {
            uint32_t c = t / FMI_FA_CHUNK * FMI_FA_CHUNK;
            top = -INFINITY;
            for (uint32_t u = FM_MAX(c, first); u <= row && u <= met_with(w, t); u++)
                top = fmax(top, score[u]);
        }
        p = exp(score[t] - top);
        if (stored)
            p = (double)fm_bf16_to_f32(fm_f32_to_bf16((float)p));
        p *= exp(top - max);
        sum += p;
        for (uint32_t d = 0; d < hd; d++)
            out[d] += p * (stored ? stored_value(w, t, head, d)
                                  : (double)w->v[(t * s->nkv + head) * (size_t)hd + d]);
    }
    for (uint32_t d = 0; d < hd; d++)
        out[d] /= sum;
    fm_free(score);
}

static double error_of(const world *w, const float *out, bool stored)
{
    const shape *s = &w->s;
    double want[512], err = 0, norm = 0;

    for (uint32_t i = 0; i < s->len; i += i + 1 < s->len && i + 13 > s->len ? 1 : 13)
        for (uint32_t h = 0; h < s->nh; h++) {
            reference_row(w, stored, i, h, want);
            for (uint32_t d = 0; d < s->hd; d++) {
                double e = (double)out[(i * s->nh + h) * (size_t)s->hd + d] - want[d];
                err += e * e;
                norm += want[d] * want[d];
            }
        }
    return sqrt(err / norm);
}

static const shape shapes[] = {
    {1, 1, 2, 0, 1, 0},     {2, 2, 16, 0, 40, 0},    {9, 3, 64, 0, 300, 0},  {4, 2, 34, 0, 530, 0},
    {8, 1, 80, 9, 130, 0},  {5, 1, 96, 33, 290, 0},  {14, 2, 64, 1, 40, 0},  {2, 2, 128, 0, 270, 0},
    {6, 1, 256, 0, 70, 30}, {7, 1, 64, 300, 600, 5}, {2, 1, 512, 0, 65, 50}, {16, 1, 32, 0, 33, 0},
};

/* An emulated GPU is slow. Lengths beyond 256 rows: a call that is not split, and one that is. */
static const shape card_shapes[] = {
    {1, 1, 2, 0, 1, 0},    {9, 3, 64, 0, 70, 0},  {2, 1, 20, 0, 530, 0}, {8, 1, 80, 9, 70, 0},
    {3, 1, 96, 33, 98, 5}, {1, 1, 128, 0, 70, 0}, {3, 1, 256, 0, 40, 9}, {1, 1, 40, 300, 600, 5},
    {20, 1, 32, 0, 33, 0}, {1, 1, 130, 0, 40, 0},
};

static size_t shapes_for(const fm_backend *be, const shape **list)
{
    *list = on_card(be) ? card_shapes : shapes;
    return on_card(be) ? FM_ARRAY_LEN(card_shapes) : FM_ARRAY_LEN(shapes);
}

TEST(attention_equals_double_precision)
{
    fm_backend *be = open_best(NULL);
    const shape *list;

    for (size_t i = 0, n = shapes_for(be, &list); i < n; i++) {
        world w = make(be, &list[i], 1, i);
        float *out = room(&w);
        attend(&w, out, 0, w.s.len);
        tk_assert_le(error_of(&w, out, true), TOL_STORED, "over stored values");
        tk_assert_le(error_of(&w, out, false), TOL, "over unrounded values");
        area_free(be, out);
        drop(&w);
    }
    fm_backend_close(be);
}

/* ==== bits ==== */

TEST(every_instruction_set_and_thread_count_gives_the_same_bits)
{
    if (getenv("KK_DEVICE"))
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        float *first = NULL;
        for (size_t n = 0; n < FM_ARRAY_LEN(isas) * 3; n++) {
            fm_pool *pool;
            tk_ok(fm_pool_new(&pool, 1 + (unsigned)n % 3));
            fm_backend *be = open_isa(isas[n / 3], pool);
            if (be) {
                world w = make(be, &shapes[i], 1, n);
                float *out = room(&w);
                attend(&w, out, 0, w.s.len);
                if (first)
                    same_rows(first, out, 0, w.s.len * (size_t)w.s.nh * w.s.hd, isas[n / 3]);
                else
                    first = room(&w), memcpy(first, out, w.s.len * (size_t)w.s.nh * w.s.hd * 4);
                fm_free(out);
                drop(&w);
                fm_backend_close(be);
            }
            fm_pool_free(pool);
        }
        fm_free(first);
    }
}

/* The whole prompt in one call, in pieces, and row by row (where chunks are split over threads). Of
 * small pieces a GPU sees some. */
TEST(pieces_give_the_bits_of_the_whole)
{
    static const uint32_t piece[] = {1, 5, 32, 100};
    fm_pool *pool;

    tk_ok(fm_pool_new(&pool, 2));
    fm_backend *be = open_best(pool);
    const shape *list;
    for (size_t i = 0, count = shapes_for(be, &list); i < count; i++) {
        world w = make(be, &list[i], 1, i);
        float *whole = room(&w), *part = room(&w);
        attend(&w, whole, 0, w.s.len);
        for (size_t n = 0; n < FM_ARRAY_LEN(piece); n++) {
            const uint32_t m = piece[n], step = on_card(be) ? (40 / m + 1) * m : m;
            const size_t ld = (size_t)w.s.nh * w.s.hd;
            memset(part, 0xff, w.s.len * ld * sizeof *part);
            for (uint32_t row = 0; row < w.s.len; row += step) {
                const uint32_t some = FM_MIN(m, w.s.len - row);
                attend(&w, part, row, some);
                same_rows(whole, part, row * ld, some * ld, "pieces");
            }
        }
        area_free(be, whole);
        area_free(be, part);
        drop(&w);
    }
    fm_backend_close(be);
    fm_pool_free(pool);
}

/* Room for parts is bounded: rows whose tables are long are taken in several goes. */
TEST(long_tables_leave_no_trace)
{
    const shape s = {16, 1, 32, 0, 33, 0};
    fm_backend *be = open_best(NULL);

    world w = make(be, &s, 1, 1);
    float *want = room(&w), *got = room(&w);
    attend(&w, want, 0, s.len);
    w.stride = 1u << 17;
    attend(&w, got, 0, s.len);
    same_rows(want, got, 0, s.len * (size_t)s.nh * s.hd, "long table");
    area_free(be, want);
    area_free(be, got);
    drop(&w);
    fm_backend_close(be);
}

/* Rows split over three sequences (with equal contents) whose positions interleave. */
TEST(neighbours_and_pages_leave_no_trace)
{
    fm_pool *pool;

    tk_ok(fm_pool_new(&pool, 2));
    fm_backend *be = open_best(pool);
    const shape *list;
    for (size_t i = 0, count = shapes_for(be, &list); i < count; i++) {
        if (on_card(be) && list[i].len > 128)
            continue; /* minutes on an emulated one */
        world one = make(be, &list[i], 1, 1), w = make(be, &list[i], 3, 2);
        float *whole = room(&w), *mixed = room(&w);
        attend(&one, whole, 0, w.s.len);
        for (uint32_t r = 0; r < w.s.len; r++)
            w.seq[r] = (int32_t)(fm_rng_below(5, 1, r / 3, 3));
        attend(&w, mixed, 0, w.s.len);
        same_rows(whole, mixed, 0, w.s.len * (size_t)w.s.nh * w.s.hd, "three sequences");
        area_free(be, whole);
        area_free(be, mixed);
        drop(&one);
        drop(&w);
    }
    fm_backend_close(be);
    fm_pool_free(pool);
}

/* Position T of the prompt is broken; rows before it must not notice, rows after it must. */
TEST(a_value_that_is_not_finite_harms_only_those_who_see_it)
{
    enum { T = 37 };
    float bad[] = {NAN, INFINITY, NAN, 3.4e38f}; /* the last overflows bf16, but is a fine key */
    const shape s = {6, 2, 48, 0, 50, 0};

    fm_backend *be = open_best(NULL);
    memset(&bad[2], 0xff, sizeof bad[2]);
    for (size_t n = 0; n < 2 * FM_ARRAY_LEN(bad) - 1; n++) {
        world w = make(be, &s, 1, n);
        size_t nk = (size_t)s.nkv * s.hd, ld = (size_t)s.nh * s.hd;
        float *good = room(&w), *out = room(&w);
        attend(&w, good, 0, s.len);
        (n < FM_ARRAY_LEN(bad) ? w.v : w.k)[T * nk + 5] = bad[n % FM_ARRAY_LEN(bad)];
        be->kv_write(be, w.kv, w.k, nk, w.v, nk, w.slot, s.len, s.nkv, s.hd);
        attend(&w, out, 0, s.len);
        same_rows(good, out, 0, T * ld, "before the broken position");
        for (uint32_t r = T; r < s.len; r++) {
            assert_true(isnan(out[r * ld]));
            assert_true(isfinite(out[r * ld + ld - 1])); /* the other key/value head */
        }
        area_free(be, good);
        area_free(be, out);
        drop(&w);
    }
    fm_backend_close(be);
}

/* Refused by name, not computed wrongly. */
TEST(a_head_that_is_too_long_is_refused)
{
    fm_backend *be = kk_card("fast");
    const shape s = {1, 1, 257, 0, 3, 0};

    if (!be)
        skip();
    world w = make(be, &s, 1, 1);
    float *out = room(&w);
    const fm_attn a = {.out = out,
                       .ldo = s.hd,
                       .q = w.q,
                       .ldq = s.hd,
                       .kv = w.kv,
                       .table = w.table,
                       .table_stride = w.per_seq,
                       .seq = w.seq,
                       .pos = w.pos,
                       .m = s.len,
                       .nh = 1,
                       .nkv = 1,
                       .hd = s.hd,
                       .scale = 1.0f};
    be->attention(be, &a);
    assert_int_equal(be->sync(be), FM_EUNSUPPORTED);
    assert_non_null(strstr(fm_error_text(), "1 to 256 elements"));
    area_free(be, out);
    drop(&w);
    fm_backend_close(be);
}

TEST(a_copied_page_answers_as_the_original)
{
    const shape s = {4, 2, 80, 0, 90, 0};

    fm_backend *be = open_best(NULL);
    world w = make(be, &s, 2, 4);
    size_t bytes = be->kv_page_bytes(be, s.nkv, s.hd);
    float *want = room(&w), *got = room(&w);
    attend(&w, want, 0, s.len);
    int32_t from = w.table[1], to = w.table[w.per_seq];
    memset((uint8_t *)w.kv.k + (size_t)to * bytes, 0, bytes);
    memset((uint8_t *)w.kv.v + (size_t)to * bytes, 0, bytes);
    be->kv_copy(be, w.kv, to, from, s.nkv, s.hd);
    tk_ok(be->sync(be));
    memset((uint8_t *)w.kv.k + (size_t)from * bytes, 0xff, bytes);
    w.table[1] = to;
    attend(&w, got, 0, s.len);
    same_rows(want, got, 0, s.len * (size_t)s.nh * s.hd, "copied page");
    area_free(be, want);
    area_free(be, got);
    drop(&w);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_equals_double_precision),
        cmocka_unit_test(every_instruction_set_and_thread_count_gives_the_same_bits),
        cmocka_unit_test(pieces_give_the_bits_of_the_whole),
        cmocka_unit_test(long_tables_leave_no_trace),
        cmocka_unit_test(neighbours_and_pages_leave_no_trace),
        cmocka_unit_test(a_value_that_is_not_finite_harms_only_those_who_see_it),
        cmocka_unit_test(a_copied_page_answers_as_the_original),
        cmocka_unit_test(a_head_that_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
