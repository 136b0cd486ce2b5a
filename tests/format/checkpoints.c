/* ctest: cost=15 */
/* Every step of a run is kept, weights and both moments: the series comes back bit for bit and
 * costs little more than the first moments' deltas. */
#include "tests/testkit.h"

#include <string.h>

#include "infer/cpu/cpu.h"
#include "store/recipe/adamw.h"
#include "store/base/math/rng.h"
#include "store/recipe/recipe.h"
#include "store/store.h"

enum { ROWS = 64, COLS = 160, N = ROWS * COLS, TENSORS = 2, STEPS = 13 };

typedef struct run {
    float *x[TENSORS][3]; /* w, m, v */
    fm_backend *be;
    fm_pool *pool;
} run;

static const char *const NAME[2][TENSORS][3] = {
    {{"net.up.weight", "net.up.weight.exp_avg", "net.up.weight.exp_avg_sq"},
     {"net.down.weight", "net.down.weight.exp_avg", "net.down.weight.exp_avg_sq"}},
    {{"up.weight", "m.up.weight", "v.up.weight"},
     {"down.weight", "m.down.weight", "v.down.weight"}},
};

static void step(run *r, uint64_t t)
{
    float *g = fm_malloc(N * sizeof *g);
    for (unsigned k = 0; k < TENSORS; k++) {
        for (size_t i = 0; i < N; i++)
            g[i] = (float)fm_rng_normal(4 + k, t, i) * (float)(1 + i / COLS % 9) * 1e-3f;
        r->be->adamw(r->be, r->x[k][0], r->x[k][1], r->x[k][2], g, N, 1e-3f / (float)(t + 3), 0.9f,
                     0.999f, 1e-8f, 0.1f, t, 1.0f);
    }
    fm_free(g);
}

static void start(run *r)
{
    tk_ok(fm_pool_new(&r->pool, 1));
    tk_ok(fmi_cpu_open_isa(&r->be, r->pool, NULL));
    for (unsigned k = 0; k < TENSORS; k++) {
        for (unsigned p = 0; p < 3; p++)
            r->x[k][p] = fm_calloc(N, sizeof(float));
        for (size_t i = 0; i < N; i++)
            r->x[k][0][i] = (float)fm_rng_normal(3, k, i) * 0.05f;
    }
    for (uint64_t t = 1; t <= 10; t++)
        step(r, t);
}

static void stop(run *r)
{
    for (unsigned k = 0; k < TENSORS; k++)
        for (unsigned p = 0; p < 3; p++)
            fm_free(r->x[k][p]);
    fm_backend_close(r->be);
    fm_pool_free(r->pool);
}

typedef struct memory {
    const run *r;
    int naming;
} memory;

static fm_status read_part(void *ctx, const fm_entry *e, void *dst)
{
    const memory *m = ctx;
    for (unsigned k = 0; k < TENSORS; k++)
        for (unsigned p = 0; p < 3; p++)
            if (strcmp(e->name, NAME[m->naming][k][p]) == 0) {
                memcpy(dst, m->r->x[k][p], N * sizeof(float));
                return FM_OK;
            }
    return fm_fail(FM_ENOTFOUND, "%s", e->name);
}

static fm_tree *tree_of(const run *r, int naming)
{
    const fm_shape shape = {2, {ROWS, COLS}};
    fm_tree *tree;
    tk_ok(fm_tree_new(&tree));
    for (unsigned k = 0; k < TENSORS; k++)
        for (unsigned p = 0; p < 3; p++) {
            fm_digest id;
            fm_buf path;
            fm_buf_init(&path, 0);
            tk_ok(fm_tensor_path(&path, "tensors", NAME[naming][k][p]));
            tk_ok(
                fm_tensor_id(&id, FM_F32, &shape, fm_span_of(r->x[k][p], N * sizeof(float)), NULL));
            tk_ok(fm_tree_put_tensor(tree, fm_buf_cstr(&path), NAME[naming][k][p], FM_F32, &shape,
                                     &id));
            fm_buf_release(&path);
        }
    return tree;
}

/* Puts the step after `before` and reads it back. */
static uint64_t keep(fm_store *s, const run *r, const fm_tree *tree, const fm_tree *before,
                     int naming)
{
    memory mem = {r, naming};
    const fm_provider p = {.ctx = &mem, .read = read_part};
    fm_txn_stats stats;
    fm_txn *t;
    float *back = fm_malloc(N * sizeof *back);
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tree(t, tree, &p, before, NULL, NULL));
    tk_ok(fm_txn_commit(t, &stats));
    fm_txn_close(t);
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        float *want = fm_malloc(N * sizeof *want);
        tk_ok(read_part(&mem, e, want));
        tk_ok(fm_store_read(s, &e->id, back, N * sizeof *back));
        assert_memory_equal(back, want, N * sizeof *back);
        fm_free(want);
    }
    fm_free(back);
    return stats.bytes_stored;
}

static void series(int naming, double limit)
{
    char *root = tk_scratch();
    fm_store *s;
    fm_tree *before = NULL;
    run r;
    double stored = 0;
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    start(&r);
    for (uint64_t t = 11; t < 11 + STEPS; t++) {
        step(&r, t);
        fm_tree *tree = tree_of(&r, naming);
        const uint64_t bytes = keep(s, &r, tree, before, naming);
        stored += before ? (double)bytes : 0;
        fm_tree_free(before);
        before = tree;
    }
    tk_assert_le(stored / (STEPS - 1.0) / (TENSORS * 3.0 * N * sizeof(float)), limit,
                 "a step's share of its bytes");
    fm_tree_free(before);
    stop(&r);
    fm_store_close(s);
    fm_free(root);
}

TEST(a_series_costs_a_third_and_comes_back)
{
    series(0, 0.37);
    series(1, 0.37);
}

/* Three steps of PyTorch's AdamW as the first version that knew the operation kept them. */
TEST(the_golden_steps_decode)
{
    char *golden = tk_source("tests/format/golden_adamw"), *root = tk_scratch();
    char *packs = fm_path_join(root, "packs");
    fm_fsck_report report;
    fm_names names;
    fm_store *s;
    tk_ok(fm_store_init(root));
    tk_ok(fm_list_dir(&names, golden));
    for (size_t i = 0; i < names.count; i++) {
        char *a = fm_path_join(golden, names.name[i]), *b = fm_path_join(packs, names.name[i]);
        fm_buf bytes;
        fm_buf_init(&bytes, 0);
        tk_ok(fm_read_file(&bytes, a, 1 << 20));
        tk_ok(fm_write_file(b, bytes.data, bytes.len));
        fm_buf_release(&bytes);
        fm_free(a);
        fm_free(b);
    }
    assert_int_equal(names.count, 5);
    tk_ok(fm_store_open(&s, root));
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.objects, 36);
    fm_store_close(s);
    fm_names_release(&names);
    fm_free(golden);
    fm_free(packs);
    fm_free(root);
}

static fm_status no_read(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    (void)ctx, (void)input, (void)offset, (void)dst, (void)bytes;
    return fm_fail(FM_EIO, "not read");
}

TEST(recipes_that_do_not_fit_are_refused)
{
    const fms_adamw_scalars ok = {0.1f, 0.999f, 0.001f, 1.0f, 1e-3f, 0.5f, 1e-8f};
    uint8_t params[FMS_ADAMW_BYTES];
    fms_form f = {FM_F32, {2, {ROWS, COLS}}, N * 4};
    fms_inputs in = {.child = f, .input = {f, f, f}, .count = 3, .read = no_read};
    fms_adamw_put(params, &ok);
    fms_recipe r = {FMS_OP_ADAMW, FMS_ADAMW_WEIGHTS, fm_span_of(params, sizeof params)};
    tk_ok(fms_recipe_check(&r, &in));
    in.count = 2;
    tk_fails(fms_recipe_check(&r, &in), FM_ECORRUPT, "three");
    in.count = 3;
    in.input[2].shape.dim[0] = 1;
    tk_fails(fms_recipe_check(&r, &in), FM_ECORRUPT, "one shape");
    in.input[2] = f;
    in.input[1].dtype = FM_I32;
    tk_fails(fms_recipe_check(&r, &in), FM_ECORRUPT, "F32");
    in.input[1] = f;
    r.mode = FMS_ADAMW_MODES;
    tk_fails(fms_recipe_check(&r, &in), FM_EVERSION, "newer");
    r.mode = 32;
    tk_fails(fms_recipe_check(&r, &in), FM_EVERSION, "newer");
    r.mode = 0;
    r.params.len--;
    tk_fails(fms_recipe_check(&r, &in), FM_ECORRUPT, "parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_series_costs_a_third_and_comes_back),
        cmocka_unit_test(the_golden_steps_decode),
        cmocka_unit_test(recipes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
