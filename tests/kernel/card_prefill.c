/* ctest: card */
/* Attention of mode fast over many rows on a GPU (KK_DEVICE=cuda; emulated or real): Hopper's
 * kernels against those for all GPUs, bit for bit, and the check that chooses between them. What
 * is right in both is fast_attention.c's. */
#include "tests/kernel/kernel_kit.h"

#include <unistd.h>

#include "store/base/os/io.h"

/* Rows of one sequence in the call: at positions first .. first + rows - 1. */
typedef struct piece {
    uint32_t first, rows;
} piece;

#define PIECES 5u
typedef struct shape {
    uint32_t nh, nkv, hd, window;
    float cap;
    piece of[PIECES];
    uint32_t bad; /* not 0: the position of sequence 0 whose key is NaN */
} shape;

typedef struct world {
    fm_backend *be;
    void *all[16];
    size_t count;
    fm_attn a;
} world;

static void *area(world *w, size_t bytes)
{
    void **p = &w->all[w->count++];
    assert_true(w->count <= FM_ARRAY_LEN(w->all));
    tk_ok(w->be->host_alloc(w->be, p, bytes));
    return *p;
}

static float *floats(world *w, size_t n, uint64_t stream, double size)
{
    float *x = area(w, (n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((2.0 * fm_rng_uniform(3, stream, i) - 1.0) * size);
    return x;
}

/* The cache of one sequence: pages dealt from *page on; those that no row sees are nowhere. */
static void fill_cache(world *w, const shape *s, uint32_t seq, int32_t *table, uint32_t *page,
                       int32_t *slot)
{
    const uint32_t len = s->of[seq].first + s->of[seq].rows, nk = s->nkv * s->hd;
    const uint32_t least = s->window && s->of[seq].first >= s->window
                               ? (s->of[seq].first - s->window + 1) / FM_KV_PAGE
                               : 0;
    size_t mark = w->count;
    float *k = floats(w, len * (size_t)nk, 10 + seq, 2.0);
    float *v = floats(w, len * (size_t)nk, 20 + seq, 1.0);

    if (seq == 0 && s->bad)
        k[s->bad * (size_t)nk] = NAN;
    for (uint32_t p = 0; p * FM_KV_PAGE < len; p++)
        table[p] = p < least ? -1000000 : (int32_t)(*page)++;
    const uint32_t begin = least * FM_KV_PAGE;
    for (uint32_t i = begin; i < len; i++)
        slot[i - begin] = table[i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE + (int32_t)(i % FM_KV_PAGE);
    w->be->kv_write(w->be, w->a.kv, k + (size_t)begin * nk, nk, v + (size_t)begin * nk, nk, slot,
                    len - begin, s->nkv, s->hd);
    tk_ok(w->be->sync(w->be));
    while (w->count > mark)
        w->be->host_free(w->be, w->all[--w->count]);
}

static void make(world *w, fm_backend *be, const shape *s)
{
    const size_t ld = (size_t)s->nh * s->hd, page_bytes = be->kv_page_bytes(be, s->nkv, s->hd);
    uint32_t rows = 0, longest = 0, pages = 0, page = 0;

    memset(w, 0, sizeof *w);
    w->be = be;
    for (uint32_t i = 0; i < PIECES; i++) {
        uint32_t len = s->of[i].first + s->of[i].rows;
        rows += s->of[i].rows;
        longest = FM_MAX(longest, len);
        pages += len / FM_KV_PAGE + 1;
    }
    uint32_t stride = longest / FM_KV_PAGE + 1;
    int32_t *seq = area(w, rows * sizeof *seq), *pos = area(w, rows * sizeof *pos);
    int32_t *table = area(w, PIECES * stride * sizeof *table);
    int32_t *slot = area(w, longest * sizeof *slot);
    w->a.kv = (fm_kv_view){area(w, pages * page_bytes), area(w, pages * page_bytes)};
    memset(w->a.kv.k, 0xff, pages * page_bytes); /* NaN */
    memset(w->a.kv.v, 0xff, pages * page_bytes);
    for (uint32_t i = 0, row = 0; i < PIECES; i++) {
        if (s->of[i].rows == 0)
            continue;
        fill_cache(w, s, i, table + i * stride, &page, slot);
        for (uint32_t r = 0; r < s->of[i].rows; r++, row++) {
            seq[row] = (int32_t)i;
            pos[row] = (int32_t)(s->of[i].first + r);
        }
    }
    w->a.out = floats(w, rows * ld, 1, 1.0);
    w->a.q = floats(w, rows * ld, 2, 3.0);
    w->a.ldo = w->a.ldq = ld;
    w->a.table = table;
    w->a.table_stride = stride;
    w->a.seq = seq;
    w->a.pos = pos;
    w->a.m = rows;
    w->a.nh = s->nh;
    w->a.nkv = s->nkv;
    w->a.hd = s->hd;
    w->a.window = s->window;
    w->a.scale = 1.5f / sqrtf((float)s->hd);
    w->a.softcap = s->cap;
}

static void drop(world *w)
{
    while (w->count > 0)
        w->be->host_free(w->be, w->all[--w->count]);
}

/* A GPU with Hopper's kernels (as `how` says that theirs round), or without. */
static fm_backend *open_card(bool wide, const char *how)
{
    setenv("FMSTORE_CUDA_WIDE", wide ? "1" : "0", 1);
    setenv("SIMT_WIDE", how, 1);
    fm_backend *be = kk_card("fast");
    unsetenv("FMSTORE_CUDA_WIDE");
    return be;
}

/* Blocks that multiplied with such instructions since the last time; the emulator alone knows. */
static size_t blocks_of(const char *log)
{
    size_t lines = 0;
    FILE *f = fopen(log, "r");

    for (int c; f && (c = fgetc(f)) != EOF;)
        lines += c == '\n';
    if (f)
        fclose(f);
    (void)remove(log);
    return lines;
}

static bool emulated(void)
{
    const char *module = getenv("FMSTORE_CUDA_MODULE");
    return module && strstr(module, "emulated");
}

static void same_bits(fm_backend *wide, fm_backend *plain, const shape *s)
{
    world x, y;

    make(&x, wide, s);
    make(&y, plain, s);
    wide->attention(wide, &x.a);
    plain->attention(plain, &y.a);
    tk_ok(wide->sync(wide));
    tk_ok(plain->sync(plain));
    for (size_t i = 0; i < x.a.m * x.a.ldo; i++) {
        const size_t row = i / x.a.ldo;
        const bool bad = s->bad && x.a.seq[row] == 0 && x.a.pos[row] >= (int32_t)s->bad;
        if (bad ? !isnan(x.a.out[i]) || !isnan(y.a.out[i])
                : memcmp(&x.a.out[i], &y.a.out[i], sizeof(float)) != 0 || !isfinite(x.a.out[i]))
            fail_msg("heads of %u: element %zu of row %zu is %a, expected %a", s->hd, i % x.a.ldo,
                     i / x.a.ldo, (double)x.a.out[i], (double)y.a.out[i]);
    }
    drop(&x);
    drop(&y);
}

/* Long runs, runs of few rows among them (which other kernels take), windows whose pages are gone,
 * and a key that is not finite. */
static const shape shapes[] = {
    {4, 1, 64, 0, 0, {{0, 290}}, 0},
    {2, 2, 128, 40, 0, {{70, 120}, {0, 100}, {301, 1}, {3, 1}, {500, 40}}, 0},
    {3, 1, 80, 0, 5, {{250, 20}, {2, 200}, {9, 7}, {80, 31}, {0, 1}}, 0},
    {18, 1, 40, 33, 0, {{0, 5}, {300, 262}}, 0},
    {1, 1, 96, 300, 0, {{190, 150}, {500, 130}}, 0},
    {2, 1, 64, 0, 0, {{100, 200}, {0, 90}}, 200},
};

TEST(kernels_of_hopper_have_the_bits_of_the_others)
{
    char *dir = tk_scratch(), *log = fm_path_join(dir, "wide.log");

    setenv("SIMT_WIDE_LOG", log, 1);
    fm_backend *wide = open_card(true, "same");
    if (!wide)
        skip();
    fm_backend *plain = open_card(false, "same");
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        same_bits(wide, plain, &shapes[i]);
        size_t blocks = blocks_of(log);
        if (emulated())
            assert_true(blocks > (i == 0 || i == 1)); /* the check of this length is one */
    }
    fm_backend_close(wide);
    fm_backend_close(plain);
    unsetenv("SIMT_WIDE_LOG");
    fm_free(log);
    fm_free(dir);
}

/* An emulated GPU whose warpgroups round otherwise: tried once, never used. */
TEST(another_rounding_is_refused)
{
    const shape s[] = {{2, 1, 64, 20, 0, {{0, 270}}, 0}, {2, 1, 128, 20, 0, {{0, 270}}, 0}};
    char *dir = tk_scratch(), *log = fm_path_join(dir, "other.log");

    if (!emulated())
        skip();
    setenv("SIMT_WIDE_LOG", log, 1);
    fm_backend *wide = open_card(true, "other");
    if (!wide)
        skip();
    fm_backend *plain = open_card(false, "other");
    for (size_t i = 0; i < FM_ARRAY_LEN(s); i++) {
        same_bits(wide, plain, &s[i]);
        assert_int_equal(blocks_of(log), i == 0 ? 1 : 2);
        same_bits(wide, plain, &s[i]);
        assert_int_equal(blocks_of(log), 0);
    }
    fm_backend_close(wide);
    fm_backend_close(plain);
    unsetenv("SIMT_WIDE");
    unsetenv("SIMT_WIDE_LOG");
    fm_free(log);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_of_hopper_have_the_bits_of_the_others),
        cmocka_unit_test(another_rounding_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
