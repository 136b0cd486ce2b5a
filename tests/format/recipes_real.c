/* ctest: cost=10 */
/* What is made from stored models is stored as all but nothing, with nothing told but the trees
 * that are there: real weights (all-MiniLM-L6-v2, float32), each case against its limit of raw. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/source.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { TENSORS_MAX = 48 };

typedef struct model {
    fm_tree *tree;
    size_t count;
    char *name[TENSORS_MAX];
    fm_dtype dtype[TENSORS_MAX];
    fm_shape shape[TENSORS_MAX];
    uint8_t *bytes[TENSORS_MAX];
    uint64_t size[TENSORS_MAX];
} model;

static model *model_new(void)
{
    model *m = fm_calloc(1, sizeof *m);
    assert_non_null(m);
    tk_ok(fm_tree_new(&m->tree));
    return m;
}

static void model_free(model *m)
{
    for (size_t i = 0; i < m->count; i++) {
        fm_free(m->name[i]);
        fm_free(m->bytes[i]);
    }
    fm_tree_free(m->tree);
    fm_free(m);
}

/* bytes are taken over. */
static void add(model *m, const char *name, fm_dtype dtype, fm_shape shape, void *bytes)
{
    fm_buf path;
    fm_digest id;
    const size_t i = m->count++;
    assert_true(i < TENSORS_MAX);
    m->name[i] = fm_strdup(name);
    m->dtype[i] = dtype;
    m->shape[i] = shape;
    m->bytes[i] = bytes;
    tk_ok(fm_tensor_bytes(&m->size[i], dtype, &shape, name));
    tk_ok(fm_tensor_id(&id, dtype, &shape, fm_span_of(bytes, (size_t)m->size[i]), NULL));
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    tk_ok(fm_tree_put_tensor(m->tree, fm_buf_cstr(&path), name, dtype, &shape, &id));
    fm_buf_release(&path);
}

static fm_status read_model(void *ctx, const fm_entry *e, void *dst)
{
    const model *m = ctx;
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->name[i], e->name) == 0) {
            memcpy(dst, m->bytes[i], (size_t)e->bytes);
            return FM_OK;
        }
    return fm_fail(FM_ENOTFOUND, "%s: not in the model", e->name);
}

/* Rows of the vocabulary are one like the next: a fifth of them is enough. */
static fm_shape part_of(const fm_entry *e)
{
    fm_shape s = e->shape;
    s.dim[0] = FM_MIN(s.dim[0], (uint64_t)6000);
    return s;
}

/* The matrices of two layers, and of the vocabulary the first rows. */
static model *minilm(const char *folder)
{
    fm_source *src;
    model *m = model_new();
    tk_ok(fm_source_open(&src, folder));
    fm_provider p = fm_source_provider(src);
    const fm_tree *tree = fm_source_tree(src);
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR || e->dtype != FM_F32 || e->shape.rank != 2 ||
            !(strstr(e->path, "/layer/0/") || strstr(e->path, "/layer/1/") ||
              strstr(e->path, "word_embeddings")))
            continue;
        void *bytes = fm_malloc((size_t)e->bytes);
        tk_ok(p.read(p.ctx, e, bytes));
        add(m, e->name, FM_F32, part_of(e), bytes);
    }
    assert_true(m->count > 6);
    fm_source_close(src);
    return m;
}

typedef float made_fn(const float *x, size_t count, uint64_t i, uint64_t tensor);

/* Element by element of up to three models. */
static model *made_of(const model *const *from, size_t count, made_fn *fn)
{
    model *m = model_new();
    for (size_t k = 0; k < from[0]->count; k++) {
        const uint64_t n = from[0]->size[k] / 4;
        float *out = fm_malloc((size_t)n * 4);
        for (uint64_t i = 0; i < n; i++) {
            float x[3];
            for (size_t j = 0; j < count; j++)
                memcpy(&x[j], from[j]->bytes[k] + 4 * i, 4);
            out[i] = fn(x, count, i, k);
        }
        add(m, from[0]->name[k], FM_F32, from[0]->shape[k], out);
    }
    return m;
}

static float tuned(const float *x, size_t count, uint64_t i, uint64_t tensor)
{
    (void)count;
    return x[0] + 4e-4f * (float)fm_rng_normal(5, tensor, i);
}
static float tuned_more(const float *x, size_t count, uint64_t i, uint64_t tensor)
{
    (void)count;
    return x[0] + 7e-4f * (float)fm_rng_normal(6, tensor, i);
}
static float average(const float *x, size_t count, uint64_t i, uint64_t tensor)
{
    (void)count, (void)i, (void)tensor;
    return (x[1] + x[2]) / 2;
}
static float task_vectors(const float *x, size_t count, uint64_t i, uint64_t tensor)
{
    (void)count, (void)i, (void)tensor;
    const float a = (x[1] - x[0]) * 0.6f, b = (x[2] - x[0]) * 0.25f;
    return x[0] + (a + b);
}
static float on_the_arc(const float *x, size_t count, uint64_t i, uint64_t tensor)
{
    (void)count, (void)i;
    const float angle = 0.3f + 0.01f * (float)tensor; /* another for each tensor */
    const float s0 = sinf(0.7f * angle) / sinf(angle), s1 = sinf(0.3f * angle) / sinf(angle);
    const float a = s0 * x[0], b = s1 * x[2];
    return a + b;
}

static model *narrowed(const model *from, fm_dtype dtype)
{
    model *m = model_new();
    for (size_t k = 0; k < from->count; k++) {
        uint8_t *out = fm_malloc((size_t)from->size[k] / 2);
        tk_ok(fm_from_f32(out, dtype, (const float *)(const void *)from->bytes[k],
                          from->size[k] / 4));
        add(m, from->name[k], dtype, from->shape[k], out);
    }
    return m;
}

static model *transposed(const model *from)
{
    model *m = model_new();
    for (size_t k = 0; k < from->count; k++) {
        const uint64_t r = from->shape[k].dim[0], c = from->shape[k].dim[1];
        uint8_t *out = fm_malloc((size_t)from->size[k]);
        for (uint64_t i = 0; i < r; i++)
            for (uint64_t j = 0; j < c; j++)
                memcpy(out + 4 * (j * r + i), from->bytes[k] + 4 * (i * c + j), 4);
        add(m, from->name[k], FM_F32, (fm_shape){2, {c, r}}, out);
    }
    return m;
}

/* Rows put in the middle and at the end of each, and each as one row less wide in its shape. */
static model *with_rows(const model *from)
{
    model *m = model_new();
    for (size_t k = 0; k < from->count; k++) {
        const uint64_t rows = from->shape[k].dim[0], row = from->size[k] / rows;
        const uint64_t half = rows / 2;
        uint8_t *out = fm_malloc((size_t)(from->size[k] + 3 * row));
        memcpy(out, from->bytes[k], (size_t)(half * row));
        for (uint64_t i = 0; i < 3 * row; i += 4) {
            const float v = 0.03f * (float)fm_rng_normal(9, k, i);
            memcpy(out + (i < row ? half * row + i : from->size[k] + i), &v, 4);
        }
        memcpy(out + (half + 1) * row, from->bytes[k] + half * row,
               (size_t)(from->size[k] - half * row));
        add(m, from->name[k], FM_F32, (fm_shape){2, {rows + 3, from->shape[k].dim[1]}}, out);
    }
    return m;
}

/* query, key and value one below the other. */
static model *fused(const model *from)
{
    static const char *const part[3] = {"query", "key", "value"};
    model *m = model_new();
    for (size_t k = 0; k < from->count; k++) {
        char *at = strstr(from->name[k], "query.weight");
        if (!at)
            continue;
        const int head = (int)(at - from->name[k]);
        uint8_t *out = fm_malloc((size_t)from->size[k] * 3);
        for (size_t j = 0; j < 3; j++) {
            char *name = fm_asprintf("%.*s%s.weight", head, from->name[k], part[j]);
            size_t p = 0;
            while (strcmp(from->name[p], name) != 0)
                p++;
            memcpy(out + j * from->size[k], from->bytes[p], (size_t)from->size[k]);
            fm_free(name);
        }
        char *name = fm_asprintf("%.*sqkv.weight", head, from->name[k]);
        add(m, name, FM_F32, (fm_shape){2, {from->shape[k].dim[0] * 3, from->shape[k].dim[1]}},
            out);
        fm_free(name);
    }
    assert_true(m->count == 2);
    return m;
}

static uint64_t put(fm_store *s, model *m, const fm_tree *const *offer, size_t offers)
{
    fm_txn *t;
    fm_txn_stats stats;
    const fm_provider p = {.ctx = m, .read = read_model};
    tk_ok(fm_txn_begin(&t, s));
    for (size_t i = 0; i < offers; i++)
        tk_ok(fm_txn_offer(t, offer[i]));
    tk_ok(fm_txn_put_tree(t, m->tree, &p, NULL, NULL, NULL));
    tk_ok(fm_txn_commit(t, &stats));
    fm_txn_close(t);
    return stats.bytes_stored;
}

static void expect(fm_store *s, const char *what, double limit, model *m,
                   const fm_tree *const *offer, size_t offers)
{
    uint64_t raw = 0;
    const uint64_t stored = put(s, m, offer, offers);
    for (size_t i = 0; i < m->count; i++) {
        fm_digest id;
        uint8_t *back = fm_malloc((size_t)m->size[i]);
        tk_ok(fm_tensor_id(&id, m->dtype[i], &m->shape[i],
                           fm_span_of(m->bytes[i], (size_t)m->size[i]), NULL));
        tk_ok(fm_store_read(s, &id, back, m->size[i]));
        assert_memory_equal(back, m->bytes[i], m->size[i]);
        fm_free(back);
        raw += m->size[i];
    }
    const double share = 100.0 * (double)stored / (double)raw;
    printf("  %-28s %7.3f %% of raw (limit %g)\n", what, share, limit);
    tk_assert_le(share, limit, what);
    model_free(m);
}

static char *folder;

TEST(what_is_made_of_stored_models_costs_next_to_nothing)
{
    char *root = tk_scratch();
    fm_store *s;
    fm_fsck_report report;
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    model *a = minilm(folder);
    model *b = made_of((const model *[]){a}, 1, tuned),
          *c = made_of((const model *[]){a}, 1, tuned_more);
    const model *const all[3] = {a, b, c};
    const fm_tree *const trees[3] = {a->tree, b->tree, c->tree};
    put(s, a, NULL, 0);
    put(s, b, trees, 1);
    put(s, c, trees, 1);
    expect(s, "average", 2, made_of(all, 3, average), trees, 3);
    expect(s, "task arithmetic", 2, made_of(all, 3, task_vectors), trees, 3);
    expect(s, "SLERP", 2, made_of(all, 3, on_the_arc), trees, 3);
    expect(s, "cast to bf16", 0.5, narrowed(a, FM_BF16), trees, 3);
    expect(s, "cast to f16", 0.5, narrowed(b, FM_F16), trees, 3);
    expect(s, "transposed", 2, transposed(a), trees, 3);
    expect(s, "rows added", 2, with_rows(a), trees, 3);
    expect(s, "fused q, k, v", 2, fused(a), trees, 3);
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    model_free(a);
    model_free(b);
    model_free(c);
    fm_store_close(s);
    fm_free(root);
}

int main(void)
{
    folder = tk_minilm();
    if (!folder)
        return tk_skip("all-MiniLM-L6-v2 is not on this machine");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_made_of_stored_models_costs_next_to_nothing)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(folder);
    return failed;
}
