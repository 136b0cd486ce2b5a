/* What a new tensor is coded against where one tensor lies at its path: that one if it is a
 * relation, else what it is made of. */
#include <string.h>

#include "store/base/math/rng.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { ROWS = 320, COLUMNS = 1000, HEAD = 64, TENSORS = 3 };

typedef struct model {
    fm_tree *tree;
    fm_dtype dtype;
    uint64_t size;
    uint8_t *bytes[TENSORS];
} model;

static const char *const name_of[TENSORS] = {"model.layers.0.mlp.up_proj.weight",
                                             "model.layers.1.mlp.up_proj.weight",
                                             "model.layers.2.mlp.up_proj.weight"};

static model *model_new(fm_dtype dtype)
{
    model *m = fm_calloc(1, sizeof *m);
    assert_non_null(m);
    tk_ok(fm_tree_new(&m->tree));
    m->dtype = dtype;
    m->size = (uint64_t)ROWS * COLUMNS * (dtype == FM_F32 ? 4 : 2);
    for (size_t k = 0; k < TENSORS; k++)
        m->bytes[k] = fm_malloc((size_t)m->size);
    return m;
}

static void model_free(model *m)
{
    for (size_t k = 0; k < TENSORS; k++)
        fm_free(m->bytes[k]);
    fm_tree_free(m->tree);
    fm_free(m);
}

static void set(model *m, size_t k, size_t i, double v)
{
    const float f = (float)v;
    if (m->dtype == FM_F32)
        memcpy(m->bytes[k] + 4 * i, &f, 4);
    else
        fm_put_u16(m->bytes[k] + 2 * i, fm_f32_to_bf16(f));
}

static void name_all(model *m)
{
    for (size_t k = 0; k < TENSORS; k++) {
        const fm_shape shape = {2, {ROWS, COLUMNS}};
        fm_buf path;
        fm_digest id;
        fm_buf_init(&path, 0);
        tk_ok(fm_tensor_path(&path, "tensors", name_of[k]));
        tk_ok(fm_tensor_id(&id, m->dtype, &shape, fm_span_of(m->bytes[k], (size_t)m->size), NULL));
        tk_ok(fm_tree_put_tensor(m->tree, fm_buf_cstr(&path), name_of[k], m->dtype, &shape, &id));
        fm_buf_release(&path);
    }
}

static model *parent_of(fm_dtype dtype)
{
    model *m = model_new(dtype);
    for (size_t k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++)
            set(m, k, i, 0.02 * fm_rng_normal(1, k, i));
    name_all(m);
    return m;
}

/* Each element moved by `step` times a normal number. */
static model *trained(fm_dtype dtype, double step)
{
    model *m = model_new(dtype);
    for (size_t k = 0; k < TENSORS; k++)
        for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++)
            set(m, k, i, 0.02 * fm_rng_normal(1, k, i) + step * fm_rng_normal(2, k, i));
    name_all(m);
    return m;
}

static model *layer_dropped(const model *of)
{
    model *m = model_new(of->dtype);
    for (size_t k = 0; k < TENSORS; k++)
        memcpy(m->bytes[k], of->bytes[(k + 1) % TENSORS], (size_t)of->size);
    name_all(m);
    return m;
}

/* GGUF's order of rotary rows: the pairs of a head side by side. */
static model *rotary(const model *of)
{
    model *m = model_new(of->dtype);
    const size_t row = (size_t)of->size / ROWS;
    for (size_t k = 0; k < TENSORS; k++)
        for (size_t r = 0; r < ROWS; r++) {
            const size_t head = r / HEAD * HEAD, in = r % HEAD;
            const size_t from = head + in % 2 * (HEAD / 2) + in / 2;
            memcpy(m->bytes[k] + r * row, of->bytes[k] + from * row, row);
        }
    name_all(m);
    return m;
}

static fm_status read_model(void *ctx, const fm_entry *e, void *dst)
{
    const model *m = ctx;
    for (size_t k = 0; k < TENSORS; k++)
        if (strcmp(name_of[k], e->name) == 0) {
            memcpy(dst, m->bytes[k], (size_t)e->bytes);
            return FM_OK;
        }
    return fm_fail(FM_ENOTFOUND, "%s", e->name);
}

static double put(fm_store *s, model *m, const fm_tree *parent)
{
    fm_txn *t;
    fm_txn_stats st;
    const fm_provider p = {.ctx = m, .read = read_model};
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tree(t, m->tree, &p, parent, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    return (double)st.bytes_stored / (double)(TENSORS * m->size);
}

static void expect_back(fm_store *s, const model *m)
{
    uint8_t *back = fm_malloc((size_t)m->size);
    for (size_t k = 0; k < TENSORS; k++) {
        const fm_entry *e = fm_tree_at(m->tree, k);
        tk_ok(fm_store_read(s, &e->id, back, m->size));
        assert_memory_equal(back, m->bytes[k], m->size);
    }
    fm_free(back);
}

static double stored_as_child(model *parent, model *child)
{
    char *root = tk_scratch();
    fm_store *s;
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    put(s, parent, NULL);
    const double share = put(s, child, parent->tree);
    expect_back(s, child);
    fm_store_close(s);
    fm_free(root);
    return share;
}

TEST(a_lone_relation_is_the_parent)
{
    static const fm_dtype type[] = {FM_BF16, FM_F32};
    for (size_t k = 0; k < FM_ARRAY_LEN(type); k++) {
        model *p = parent_of(type[k]), *near = trained(type[k], 2e-5),
              *far = trained(type[k], 2e-3);
        tk_assert_le(stored_as_child(p, near), k ? 0.54 : 0.10, "a small update");
        tk_assert_le(stored_as_child(p, far), k ? 0.76 : 0.48, "a large one");
        model_free(p);
        model_free(near);
        model_free(far);
    }
}

TEST(a_stranger_at_the_path_is_not_taken_unseen)
{
    static const fm_dtype type[] = {FM_BF16, FM_F32};
    for (size_t k = 0; k < FM_ARRAY_LEN(type); k++) {
        model *p = parent_of(type[k]), *turned = rotary(p), *dropped = layer_dropped(p);
        tk_assert_le(stored_as_child(p, turned), 0.005, "rows in rotary order");
        tk_assert_le(stored_as_child(p, dropped), 0.005, "layers that moved");
        model_free(p);
        model_free(turned);
        model_free(dropped);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_relation_is_the_parent),
        cmocka_unit_test(a_stranger_at_the_path_is_not_taken_unseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
