/* ctest: apart */
/* Virtual positions (prefix and prompt tuning): PEFT's logits, whatever the cut and the neighbours;
 * their pages are held once and copied before they are written to. */
#include "tests/model/infer_kit.h"

#include "infer/backend.h"
#include "infer/model.h"
#include "store/base/math/rng.h"

#define VOCAB 160u
#define LIMIT 1e-5
#define LAYERS 2u
#define PAGE_BYTES (2ull * 24 * FM_KV_PAGE * sizeof(float)) /* of one layer */

static fm_model *load(ik_adapted *a, fm_engine *e)
{
    fm_provider p = ik_provider(&a->both);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, a->tree, &p, "virtual"));
    return m;
}

static void check_kind(const char *kind, uint32_t max_rows)
{
    ik_adapted a;
    ik_ref ref;
    char path[128];
    ik_open_adapted(&a, kind);
    (void)snprintf(path, sizeof(path), "arch/llama/peft/%s/ref.safetensors", kind);
    assert_true(ik_ref_open(&ref, path));
    size_t n = 0, count = 0;
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    float *want = ik_ref_get(&ref, "logits", &count);
    float *got = fm_malloc(count * sizeof(float));
    fm_engine *e = ik_engine(1, max_rows);
    fm_model *m = load(&a, e);
    for (size_t b = 0; b < n / 24; b++)
        ik_logits(m, ids + b * 24, 24, b ? 1 : FM_MIN(24u, max_rows), got + b * 24 * (count / n));
    tk_assert_le(tk_rel_norm(got, want, count), LIMIT, kind);
    fm_model_close(m);
    fm_engine_free(e);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_source_close(ref.src);
    ik_close_adapted(&a);
}

TEST(logits_are_those_of_peft)
{
    for (int rows = 3; rows <= 64; rows += 61) { /* 3: the virtual rows are cut too */
        check_kind("prefix", (uint32_t)rows);
        check_kind("prompt", (uint32_t)rows);
    }
}

/* ==== any number of them, any neighbours ==== */

/* The adapter's own rows drawn out to len, as a tensor of that many would have been. */
static void segment(fm_model *m, uint32_t len)
{
    uint32_t cols = m->virtual_is_kv ? LAYERS * 2 * 24 : 48;
    float *rows = fm_malloc((size_t)len * cols * sizeof(float));
    for (size_t i = 0; i < (size_t)len * cols; i++)
        rows[i] = (float)(0.3 * fm_rng_normal(11, len, i));
    fm_free(m->virtual_rows);
    m->virtual_rows = rows;
    m->virtual_len = len;
}

static const int32_t text[40] = {9,  33, 70, 4,  88, 12, 100, 3,  45, 61, 7,  8,  99, 14,
                                 15, 16, 17, 18, 19, 20, 21,  22, 23, 24, 25, 26, 27, 28,
                                 29, 30, 31, 32, 33, 34, 35,  36, 37, 38, 39, 40};

TEST(any_number_of_them_in_any_company)
{
    static const uint32_t lens[] = {1, 31, 32, 33, 70};
    ik_adapted a[2];
    ik_open_adapted(&a[0], "prefix");
    ik_open_adapted(&a[1], "prompt");
    float *alone[2];
    for (size_t i = 0; i < FM_ARRAY_LEN(lens); i++) {
        for (int k = 0; k < 2; k++) {
            fm_engine *e = ik_engine(1, 64);
            fm_model *m = load(&a[k], e);
            segment(m, lens[i]);
            alone[k] = fm_malloc(40 * VOCAB * sizeof(float));
            ik_logits(m, text, 40, 40, alone[k]);
            fm_model_close(m);
            fm_engine_free(e);
        }
        fm_engine *e = ik_engine(2, 64);
        fm_model *m[3] = {load(&a[0], e), load(&a[1], e), ik_model(e, a[0].base, "base")};
        segment(m[0], lens[i]);
        segment(m[1], lens[i]);
        fm_seq *s[6];
        for (int k = 0; k < 6; k++)
            tk_ok(fm_seq_open(&s[k], m[k % 3]));
        for (uint32_t t = 0; t < 40; t++) {
            fm_row row[6];
            for (int k = 0; k < 6; k++)
                row[k] =
                    (fm_row){.seq = s[(k + (int)t) % 6], .token = text[t], .want_logits = true};
            tk_ok(fm_engine_step(e, row, 6));
            for (int k = 0; k < 6; k++) {
                int kind = (k + (int)t) % 3;
                if (kind < 2)
                    assert_memory_equal(fm_engine_logits(e, (uint32_t)k),
                                        alone[kind] + (size_t)t * VOCAB, VOCAB * sizeof(float));
            }
        }
        for (int k = 0; k < 6; k++) {
            assert_int_equal(fm_seq_len(s[k]), 40);
            fm_seq_close(s[k]);
        }
        for (int k = 0; k < 3; k++)
            fm_model_close(m[k]);
        fm_engine_free(e);
        fm_free(alone[0]);
        fm_free(alone[1]);
    }
    ik_close_adapted(&a[0]);
    ik_close_adapted(&a[1]);
}

/* ==== pages ==== */

TEST(their_pages_are_held_once)
{
    ik_adapted a;
    ik_open_adapted(&a, "prefix");
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(&a, e);
    segment(m, 70); /* two whole pages and a part of one, in each layer */
    fm_seq *s[8];
    for (int i = 0; i < 8; i++)
        tk_ok(fm_seq_open(&s[i], m));
    assert_int_equal(fm_engine_stats_of(e).kv_bytes, 3 * LAYERS * PAGE_BYTES);
    fm_row row[8];
    for (int i = 0; i < 8; i++)
        row[i] = (fm_row){.seq = s[i], .token = 5};
    tk_ok(fm_engine_step(e, row, 8)); /* each copies the third */
    assert_int_equal(fm_engine_stats_of(e).kv_bytes, (3 + 8) * LAYERS * PAGE_BYTES);
    for (int i = 0; i < 8; i++)
        fm_seq_close(s[i]);
    fm_model_close(m);
    fm_engine_free(e);
    ik_close_adapted(&a);
}

TEST(too_many_of_them_are_refused)
{
    ik_adapted a;
    ik_open_adapted(&a, "prefix");
    fm_engine *e = NULL;
    fm_engine_opts o = fm_engine_defaults();
    o.threads = 1;
    o.kv_bytes_max = 4 * LAYERS * PAGE_BYTES;
    tk_ok(fm_engine_new(&e, &o));
    fm_model *m = load(&a, e);
    fm_seq *s = NULL, *t = NULL;
    segment(m, 200);
    tk_fails(fm_seq_open(&s, m), FM_ELIMIT, "200 virtual tokens");
    segment(m, 70);
    tk_ok(fm_seq_open(&s, m));
    tk_ok(fm_seq_open(&t, m));
    fm_row row = {.seq = s, .token = 5};
    tk_ok(fm_engine_step(e, &row, 1));
    row.seq = t;
    tk_fails(fm_engine_step(e, &row, 1), FM_ELIMIT, "KV");
    assert_int_equal(fm_seq_len(t), 0);
    fm_seq_close(s);
    tk_ok(fm_engine_step(e, &row, 1));
    fm_seq_close(t);
    fm_model_close(m);
    fm_engine_free(e);
    ik_close_adapted(&a);
}

int main(void)
{
    char *here = tk_shared("arch/llama/peft/prefix");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_peft),
        cmocka_unit_test(any_number_of_them_in_any_company),
        cmocka_unit_test(their_pages_are_held_once),
        cmocka_unit_test(too_many_of_them_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
