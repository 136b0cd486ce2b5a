/* Importance matrices: what is read of both forms, and that a file that is no such thing, or damaged,
 * is refused by the name of what is wrong. What quantizing makes of one: gguf_mix.c. */
#include "tests/format/fixtures.h"

#include <math.h>

#include "store/formats/imatrix.h"

/* ---- files ---- */

typedef struct spec {
    const char *sums, *counts; /* names; NULL: the tensor is missing */
    uint64_t cols, rows;       /* rows: of the sums; there are as many counts, or `given` */
    uint64_t given;
    uint32_t counts_type;
    float count, value;
    bool no_size;
} spec;

static void info(fm_buf *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type,
                 uint64_t at)
{
    gg_text(b, name);
    fm_buf_u32(b, 2);
    fm_buf_u64(b, cols);
    fm_buf_u64(b, rows);
    fm_buf_u32(b, type);
    fm_buf_u64(b, at);
}

static void floats(fm_buf *b, uint64_t n, float v)
{
    for (uint64_t i = 0; i < n; i++)
        fm_buf_append(b, &v, sizeof v);
    while (b->len % 32 != 0)
        fm_buf_u8(b, 0);
}

static void build(fm_buf *out, const spec *s)
{
    static const char *const sets[] = {"a set", "another"};
    const uint64_t given = s->given ? s->given : s->rows;
    fm_buf_clear(out);
    fm_buf_str(out, "GGUF");
    fm_buf_u32(out, 3);
    fm_buf_u64(out, (s->sums ? 1u : 0u) + (s->counts ? 1u : 0u));
    fm_buf_u64(out, s->no_size ? 2 : 3);
    gg_strs(out, "imatrix.datasets", sets, 2);
    gg_u32(out, "imatrix.chunk_count", 7);
    if (!s->no_size)
        gg_u32(out, "imatrix.chunk_size", 512);
    if (s->sums)
        info(out, s->sums, s->cols, s->rows, 0, 0);
    if (s->counts)
        info(out, s->counts, 1, given, s->counts_type,
             s->sums ? (s->cols * s->rows * 4 + 31) / 32 * 32 : 0);
    while (out->len % 32 != 0)
        fm_buf_u8(out, 0);
    if (s->sums)
        floats(out, s->cols * s->rows, s->value);
    if (s->counts)
        floats(out, given, s->count);
}

static const spec good = {
    "blk.0.x.weight.in_sum2", "blk.0.x.weight.counts", 5, 3, 0, 0, 4.0f, 6.0f, false};

static void refuse(const fm_buf *b, fm_status rc, const char *says)
{
    fm_imatrix *m = NULL;
    tk_fails(fm_imatrix_parse(&m, fm_buf_span(b), "m.gguf"), rc, says);
    assert_null(m);
}

TEST(a_matrix_of_either_form_is_read)
{
    fm_imatrix *m = NULL;
    uint64_t n = 9;
    fm_buf b;
    fm_buf_init(&b, 0);
    build(&b, &good);
    tk_ok(fm_imatrix_parse(&m, fm_buf_span(&b), "m.gguf"));
    assert_int_equal(fm_imatrix_count(m), 1);
    assert_int_equal(fm_imatrix_chunks(m), 7);
    assert_string_equal(fm_imatrix_dataset(m), "a set");
    const float *v = fm_imatrix_find(m, "blk.0.x.weight", &n);
    assert_int_equal(n, 15);
    assert_true(v[0] == 1.5f && v[14] == 1.5f);
    assert_null(fm_imatrix_find(m, "blk.0.x", &n));
    fm_imatrix_free(m);
    spec unreached = good;
    unreached.count = 0.0f;
    build(&b, &unreached);
    tk_ok(fm_imatrix_parse(&m, fm_buf_span(&b), "m.gguf"));
    assert_true(fm_imatrix_find(m, "blk.0.x.weight", &n)[0] == 1.0f);
    fm_imatrix_free(m);
    fm_buf_clear(&b);
    fm_buf_u32(&b, 1);
    fm_buf_u32(&b, 3);
    fm_buf_str(&b, "w.x");
    fm_buf_u32(&b, 2);
    fm_buf_u32(&b, 2);
    floats(&b, 2, 5.0f);
    tk_ok(fm_imatrix_parse(&m, fm_span_of(b.data, 27), "m.dat"));
    assert_true(fm_imatrix_find(m, "w.x", &n)[1] == 2.5f && n == 2);
    assert_int_equal(fm_imatrix_chunks(m), 0);
    assert_null(fm_imatrix_dataset(m));
    fm_imatrix_free(m);
    fm_buf_release(&b);
}

TEST(what_is_wrong_is_named)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    spec s = good;
    s.counts = NULL;
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "has no 'blk.0.x.weight.counts' beside it");
    s = good;
    s.sums = NULL;
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "has no 'blk.0.x.weight.in_sum2' beside it");
    s = good;
    s.given = 4; /* 15 values for 4 experts */
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "that fits");
    s = good;
    s.counts_type = 1; /* F16 */
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "both of type F32");
    s = good;
    s.value = INFINITY;
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "weight 'blk.0.x.weight': value 0 is not finite");
    s = good;
    s.count = NAN;
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "a count is out of range");
    s = good;
    s.no_size = true;
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "'imatrix.chunk_size' is missing");
    s = good;
    s.sums = "a.weight";
    s.counts = "b.weight";
    build(&b, &s);
    refuse(&b, FM_ECORRUPT, "holds no weight's sums");
    build(&b, &good);
    for (size_t cut = 0; cut + 20 < b.len; cut++) { /* 20: what fills up the counts */
        const fm_buf part = {.data = b.data, .len = cut};
        refuse(&part, FM_ECORRUPT, "m.gguf");
    }
    fm_buf_release(&b);
}

TEST(the_older_form_claims_no_more_than_it_has)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_u32(&b, 0);
    refuse(&b, FM_ECORRUPT, "is neither a GGUF nor an older importance matrix");
    fm_buf_clear(&b);
    fm_buf_u32(&b, 0x7fffffff);
    refuse(&b, FM_ECORRUPT, "is neither");
    fm_buf_clear(&b);
    fm_buf_u32(&b, 1);
    fm_buf_u32(&b, 1);
    fm_buf_str(&b, "w");
    fm_buf_u32(&b, 1);
    fm_buf_u32(&b, 0xffffffff); /* values */
    refuse(&b, FM_ECORRUPT, "ends in the middle of a weight");
    b.len -= 4;
    fm_buf_u32(&b, 0);
    refuse(&b, FM_ECORRUPT, "has no name or no values");
    fm_buf_clear(&b);
    fm_buf_u32(&b, 2);
    for (int i = 0; i < 2; i++) {
        fm_buf_u32(&b, 1);
        fm_buf_str(&b, "w");
        fm_buf_u32(&b, 1);
        fm_buf_u32(&b, 1);
        fm_buf_u32(&b, 0);
    }
    refuse(&b, FM_ECORRUPT, "weight 'w' is there twice");
    fm_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_of_either_form_is_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(the_older_form_claims_no_more_than_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
