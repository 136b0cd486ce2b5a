/* Of more relatives than are candidates the nearest are found, wherever they stand. */
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { ROWS = 64, COLUMNS = 128, ELEMS = ROWS * COLUMNS, TENSORS = 4, SIBLINGS = 90 };

typedef struct model {
    fm_tree *tree;
    fm_dtype dtype;
    uint64_t size;
    uint8_t bytes[TENSORS][ELEMS * 4];
} model;

static double value(unsigned sibling, unsigned tensor, size_t i)
{
    return 0.02 * fm_rng_normal(1, tensor, i) + 0.002 * fm_rng_normal(100 + sibling, tensor, i);
}

static void set(model *m, unsigned k, size_t i, double v)
{
    const float f = (float)v;
    if (m->dtype == FM_F32)
        memcpy(m->bytes[k] + 4 * i, &f, 4);
    else
        fm_put_u16(m->bytes[k] + 2 * i, fm_f32_to_bf16(f));
}

static void name_all(model *m)
{
    const fm_shape shape = {2, {ROWS, COLUMNS}};
    for (unsigned k = 0; k < TENSORS; k++) {
        fm_buf path;
        fm_digest id;
        char *name = fm_asprintf("model.layers.%u.mlp.up_proj.weight", k);
        fm_buf_init(&path, 0);
        tk_ok(fm_tensor_path(&path, "tensors", name));
        tk_ok(fm_tensor_id(&id, m->dtype, &shape, fm_span_of(m->bytes[k], (size_t)m->size), NULL));
        tk_ok(fm_tree_put_tensor(m->tree, fm_buf_cstr(&path), name, m->dtype, &shape, &id));
        fm_buf_release(&path);
        fm_free(name);
    }
}

static model *model_new(fm_dtype dtype)
{
    model *m = fm_calloc(1, sizeof *m);
    assert_non_null(m);
    tk_ok(fm_tree_new(&m->tree));
    m->dtype = dtype;
    m->size = (uint64_t)ELEMS * (dtype == FM_F32 ? 4 : 2);
    return m;
}

/* A full fine-tune of the one base. */
static model *sibling(unsigned n)
{
    model *m = model_new(FM_BF16);
    for (unsigned k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < ELEMS; i++)
            set(m, k, i, value(n, k, i));
    name_all(m);
    return m;
}

/* ... and one of that. */
static model *child_of(unsigned n)
{
    model *m = model_new(FM_BF16);
    for (unsigned k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < ELEMS; i++)
            set(m, k, i, value(n, k, i) + 2e-5 * fm_rng_normal(2, k, i));
    name_all(m);
    return m;
}

static model *average_of(unsigned a, unsigned b)
{
    model *m = model_new(FM_BF16);
    for (unsigned k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < ELEMS; i++) {
            const float x = fm_bf16_to_f32(fm_f32_to_bf16((float)value(a, k, i)));
            const float y = fm_bf16_to_f32(fm_f32_to_bf16((float)value(b, k, i)));
            set(m, k, i, (double)(0.5F * x + 0.5F * y));
        }
    name_all(m);
    return m;
}

static model *cast_of(const model *from)
{
    model *m = model_new(FM_F32);
    for (unsigned k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < ELEMS; i++)
            set(m, k, i, (double)fm_bf16_to_f32(fm_get_u16(from->bytes[k] + 2 * i)));
    name_all(m);
    return m;
}

static void model_free(model *m)
{
    fm_tree_free(m->tree);
    fm_free(m);
}

static fm_status read_model(void *ctx, const fm_entry *e, void *dst)
{
    const model *m = ctx;
    for (unsigned k = 0; k < TENSORS; k++)
        if (fm_digest_eq(&fm_tree_at(m->tree, k)->id, &e->id)) {
            memcpy(dst, m->bytes[k], (size_t)e->bytes);
            return FM_OK;
        }
    return fm_fail(FM_ENOTFOUND, "%s", e->name);
}

typedef struct family {
    char *root;
    fm_store *s;
    model *m[SIBLINGS];
} family;

static fm_txn_stats put(family *f, model *m, const fm_tree *const *offer, size_t offers,
                        bool expect)
{
    fm_txn *t;
    fm_txn_stats st;
    const fm_provider p = {.ctx = m, .read = read_model};
    tk_ok(fm_txn_begin(&t, f->s));
    if (expect)
        tk_ok(fm_txn_expect(t, m->tree, &p));
    for (size_t i = 0; i < offers; i++)
        tk_ok(fm_txn_offer(t, offer[i]));
    tk_ok(fm_txn_put_tree(t, m->tree, &p, NULL, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    uint8_t *back = fm_malloc((size_t)m->size);
    for (unsigned k = 0; k < TENSORS; k++) {
        tk_ok(fm_store_read(f->s, &fm_tree_at(m->tree, k)->id, back, m->size));
        assert_memory_equal(back, m->bytes[k], m->size);
    }
    fm_free(back);
    return st;
}

static void family_open(family *f)
{
    f->root = tk_scratch();
    tk_ok(fm_store_init(f->root));
    tk_ok(fm_store_open(&f->s, f->root));
    for (unsigned i = 0; i < SIBLINGS; i++) {
        f->m[i] = sibling(i);
        put(f, f->m[i], NULL, 0, false);
    }
}

static void family_close(family *f)
{
    for (unsigned i = 0; i < SIBLINGS; i++)
        model_free(f->m[i]);
    fm_store_close(f->s);
    fm_free(f->root);
}

static void offer_all(const family *f, const fm_tree *offer[SIBLINGS])
{
    for (unsigned i = 0; i < SIBLINGS; i++)
        offer[i] = f->m[i]->tree;
}

TEST(the_nearest_is_found_wherever_it_stands)
{
    static const unsigned place[] = {0, 7, 8, 63, 64, SIBLINGS - 1};
    family f;
    const fm_tree *offer[SIBLINGS];
    family_open(&f);
    offer_all(&f, offer);
    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++) {
        model *m = child_of(place[i]);
        const fm_txn_stats st = put(&f, m, offer, SIBLINGS, true);
        tk_assert_le((double)st.bytes_stored / (double)(TENSORS * m->size), 0.16, "a child");
        assert_int_equal(st.offers_passed_over, SIBLINGS - 64);
        model_free(m);
    }
    family_close(&f);
}

TEST(both_parents_of_a_merge_are_found)
{
    family f;
    const fm_tree *offer[SIBLINGS];
    family_open(&f);
    offer_all(&f, offer);
    model *m = average_of(SIBLINGS - 1, 30);
    const fm_txn_stats st = put(&f, m, offer, SIBLINGS, true);
    tk_assert_le((double)st.bytes_stored / (double)(TENSORS * m->size), 0.06, "a sum of two");
    model_free(m);
    family_close(&f);
}

TEST(a_cast_relative_is_found)
{
    family f;
    const fm_tree *offer[SIBLINGS];
    family_open(&f);
    offer_all(&f, offer);
    model *m = cast_of(f.m[SIBLINGS - 1]);
    const fm_txn_stats st = put(&f, m, offer, SIBLINGS, true);
    tk_assert_le((double)st.bytes_stored / (double)(TENSORS * m->size), 0.03, "a cast");
    model_free(m);
    family_close(&f);
}

/* ---- adapters ---- */

enum { RANK = 4 };

static double factor(unsigned branch, unsigned k, unsigned which, size_t i)
{
    return (double)(float)((which ? 0.02 : 0.1) * fm_rng_normal(500 + branch * 2 + which, k, i));
}

/* The base with an adapter of its own, stored. */
static fm_tree *with_adapter(family *f, const model *base, unsigned branch)
{
    static const char config[] =
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4,\"target_modules\":[\"up_proj\"]}";
    fm_tree *tree;
    fm_txn *t;
    tk_ok(fm_tree_copy(&tree, base->tree));
    tk_ok(fm_txn_begin(&t, f->s));
    for (unsigned k = 0; k < TENSORS; k++)
        for (unsigned which = 0; which < 2; which++) {
            const fm_shape shape = {2, {which ? ROWS : RANK, which ? RANK : COLUMNS}};
            float w[COLUMNS * RANK];
            const size_t n = which ? ROWS * RANK : RANK * COLUMNS;
            fm_buf path;
            fm_digest id;
            char *name = fm_asprintf("base_model.model.model.layers.%u.mlp.up_proj.lora_%s.weight",
                                     k, which ? "B" : "A");
            for (size_t i = 0; i < n; i++)
                w[i] = (float)factor(branch, k, which, i);
            fm_buf_init(&path, 0);
            tk_ok(fm_tensor_path(&path, "adapters/0-lora/tensors", name));
            tk_ok(fm_txn_put_tensor(t, &id, FM_F32, &shape, fm_span_of(w, n * 4), NULL, NULL));
            tk_ok(fm_tree_put_tensor(tree, fm_buf_cstr(&path), name, FM_F32, &shape, &id));
            fm_buf_release(&path);
            fm_free(name);
        }
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    tk_ok(fm_tree_put_file(tree, "adapters/0-lora/adapter_config.json", fm_span_str(config)));
    return tree;
}

static model *merged(const model *base, unsigned branch)
{
    model *m = model_new(FM_BF16);
    for (unsigned k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < ELEMS; i++) {
            double v = (double)fm_bf16_to_f32(fm_get_u16(base->bytes[k] + 2 * i));
            for (size_t r = 0; r < RANK; r++)
                v += factor(branch, k, 1, i / COLUMNS * RANK + r) *
                     factor(branch, k, 0, r * COLUMNS + i % COLUMNS);
            set(m, k, i, v);
        }
    name_all(m);
    return m;
}

TEST(the_adapter_that_was_merged_is_found_among_many)
{
    family f;
    fm_tree *tree[SIBLINGS];
    const fm_tree *offer[SIBLINGS];
    family_open(&f);
    for (unsigned i = 0; i < SIBLINGS; i++)
        offer[i] = tree[i] = with_adapter(&f, f.m[0], i);
    model *m = merged(f.m[0], SIBLINGS - 1);
    const fm_txn_stats st = put(&f, m, offer, SIBLINGS, true);
    tk_assert_le((double)st.bytes_stored / (double)(TENSORS * m->size), 0.06, "a merge");
    model_free(m);
    for (unsigned i = 0; i < SIBLINGS; i++)
        fm_tree_free(tree[i]);
    family_close(&f);
}

/* Branches that differ in suites and cards alone are one candidate, not 64. */
TEST(copies_crowd_nobody_out)
{
    family f;
    const fm_tree *offer[SIBLINGS];
    fm_tree *copy[SIBLINGS] = {NULL};
    family_open(&f);
    for (unsigned i = 0; i < SIBLINGS; i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", i);
        tk_ok(fm_tree_copy(&copy[i], f.m[i + 1 < SIBLINGS ? 30 : SIBLINGS - 1]->tree));
        tk_ok(fm_tree_put_file(copy[i], "README.md", fm_span_str(text)));
        offer[i] = copy[i];
    }
    model *m = average_of(SIBLINGS - 1, 30);
    const fm_txn_stats st = put(&f, m, offer, SIBLINGS, true);
    tk_assert_le((double)st.bytes_stored / (double)(TENSORS * m->size), 0.06, "a sum of two");
    assert_int_equal(st.offers_passed_over, 0);
    model_free(m);
    for (unsigned i = 0; i < SIBLINGS; i++)
        fm_tree_free(copy[i]);
    family_close(&f);
}

TEST(what_is_passed_over_is_counted_also_where_nothing_is_expected)
{
    family f;
    const fm_tree *offer[SIBLINGS];
    family_open(&f);
    offer_all(&f, offer);
    model *m = child_of(3);
    assert_int_equal(put(&f, m, offer, SIBLINGS, false).offers_passed_over, SIBLINGS - 64);
    model_free(m);
    family_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_is_found_wherever_it_stands),
        cmocka_unit_test(both_parents_of_a_merge_are_found),
        cmocka_unit_test(a_cast_relative_is_found),
        cmocka_unit_test(the_adapter_that_was_merged_is_found_among_many),
        cmocka_unit_test(copies_crowd_nobody_out),
        cmocka_unit_test(what_is_passed_over_is_counted_also_where_nothing_is_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
