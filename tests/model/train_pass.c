/* ctest: apart */
/* train_pass.c - several children in one pass: each has the bits of its run alone, whoever is
 * beside it, whoever leaves, and however many passes their rows take. */
#include "tests/model/train_kit.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"

#define CHILDREN 7u
#define VOCAB 160u

typedef struct shape_of_child {
    fm_method method;
    const char *targets, *save;
    uint32_t r, batch, accumulate, tokens, steps;
    double lr;
} shape_of_child;

/* Every method that holds weights in another way, from the lowest layer up or from the last
 * alone. */
static const shape_of_child shapes[CHILDREN] = {
    {FM_METHOD_LORA, "all-linear", "", 8, 2, 1, 24, 6, 1e-2},
    {FM_METHOD_LORA, "q_proj,v_proj", "", 2, 3, 2, 9, 5, 1e-2},
    {FM_METHOD_FULL, "", "", 1, 2, 1, 17, 4, 1e-3},
    {FM_METHOD_LORA, "layers.1.mlp.down_proj", "", 5, 1, 1, 31, 6, 1e-2},
    {FM_METHOD_LORA, "lm_head", "", 3, 4, 1, 8, 3, 1e-2},
    {FM_METHOD_LORA, "o_proj", "lm_head", 4, 2, 3, 12, 6, 1e-2},
    {FM_METHOD_LORA, "all-linear", "", 16, 1, 1, 3, 6, 1e-2},
};

typedef struct zoo {
    fm_source *src;
    fm_provider p;
    fm_train_job job[CHILDREN];
    int32_t *ids[CHILDREN], *labels[CHILDREN];
    char name[CHILDREN][16];
} zoo;

/* segment: sequences so many times longer. */
static void zoo_open(zoo *z, uint32_t segment)
{
    memset(z, 0, sizeof(*z));
    z->src = ik_source("arch/llama");
    z->p = fm_source_provider(z->src);
    for (uint32_t c = 0; c < CHILDREN; c++) {
        const shape_of_child *s = &shapes[c];
        uint32_t tokens = FM_MIN(s->tokens * segment, 200u);
        size_t n = (size_t)s->steps * s->batch * s->accumulate * tokens;
        z->ids[c] = fm_malloc(n * sizeof(int32_t));
        z->labels[c] = fm_malloc(n * sizeof(int32_t));
        assert_non_null(z->ids[c]);
        assert_non_null(z->labels[c]);
        for (size_t i = 0; i < n; i++) { /* some without a target, some sequences that end early */
            uint64_t u = fm_rng_u64(c + 1, 7, i);
            z->ids[c][i] = (int32_t)(u % VOCAB);
            z->labels[c][i] = u >> 60 < 5 ? -100 : z->ids[c][i];
        }
        (void)snprintf(z->name[c], sizeof(z->name[c]), "child%u", c);
        fm_train_config k = fm_train_defaults(s->method);
        (void)snprintf(k.targets, sizeof(k.targets), "%s", s->targets);
        (void)snprintf(k.modules_to_save, sizeof(k.modules_to_save), "%s", s->save);
        k.r = s->r;
        k.lr = s->lr;
        k.batch = s->batch;
        k.accumulate = s->accumulate;
        k.max_tokens = tokens;
        k.steps = s->steps;
        k.seed = c;
        z->job[c] = (fm_train_job){.name = z->name[c],
                                   .config = k,
                                   .parent = fm_source_tree(z->src),
                                   .batch_ids = z->ids[c],
                                   .batch_labels = z->labels[c]};
    }
}

static void zoo_close(zoo *z)
{
    fm_source_close(z->src);
    for (uint32_t c = 0; c < CHILDREN; c++) {
        fm_free(z->ids[c]);
        fm_free(z->labels[c]);
    }
}

static void alone(const zoo *z, uint32_t c, fm_train_result *r)
{
    fm_engine *e = ik_engine(1, 64);
    tk_ok(fm_train_run(e, &z->p, &z->job[c], 1, r, NULL, NULL));
    fm_engine_free(e);
}

static void same_as_alone(const zoo *z, uint32_t c, const fm_train_result *have)
{
    fm_train_result want;

    alone(z, c, &want);
    assert_int_equal(have->failed, FM_OK);
    assert_true(want.count > 0);
    kit_same_bits(have, &want);
    for (size_t s = 0; s < fm_json_count(want.log); s++)
        assert_true(!(kit_log(have, s, "loss") < kit_log(&want, s, "loss")) &&
                    !(kit_log(have, s, "loss") > kit_log(&want, s, "loss")));
    fm_train_result_release(&want);
}

static void check_zoo(uint32_t segment, unsigned threads, bool recompute)
{
    zoo z;
    fm_train_result r[CHILDREN];
    fm_engine *e = ik_engine(threads, 64);

    zoo_open(&z, segment);
    z.job[0].recompute = recompute;
    tk_ok(fm_train_run(e, &z.p, z.job, CHILDREN, r, NULL, NULL));
    z.job[0].recompute = false;
    for (uint32_t c = 0; c < CHILDREN; c++) {
        same_as_alone(&z, c, &r[c]);
        fm_train_result_release(&r[c]);
    }
    zoo_close(&z);
    fm_engine_free(e);
}

TEST(mixed_children_have_the_bits_of_their_runs_alone)
{
    check_zoo(1, 1, false);
    check_zoo(1, 2, false);
}

TEST(so_have_children_whose_rows_take_several_passes)
{
    check_zoo(40, 2, false); /* 2,920 rows a step */
}

TEST(activations_computed_again_are_the_same)
{
    check_zoo(1, 2, true);
}

/* ---- who leaves ---- */
typedef struct leave {
    uint32_t child, step;
    uint32_t seen[CHILDREN]; /* steps reported of each */
} leave;

static bool drop_one(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    leave *l = ctx;

    for (size_t i = 0; i < n; i++) {
        assert_int_equal(p[i].step, l->seen[p[i].child]);
        l->seen[p[i].child]++;
        drop[i] = p[i].child == l->child && p[i].step == l->step;
    }
    return false;
}

TEST(a_dropped_child_leaves_the_others_alone)
{
    zoo z;
    fm_train_result r[CHILDREN];
    fm_engine *e = ik_engine(2, 64);
    leave l = {.child = 0, .step = 2};

    zoo_open(&z, 1);
    tk_ok(fm_train_run(e, &z.p, z.job, CHILDREN, r, drop_one, &l));
    assert_true(r[0].dropped);
    assert_int_equal(l.seen[0], 3);
    assert_int_equal(fm_json_count(r[0].log), 3);
    assert_true(r[0].count > 0);
    for (uint32_t c = 0; c < CHILDREN; c++) {
        if (c > 0) {
            assert_int_equal(l.seen[c], shapes[c].steps);
            same_as_alone(&z, c, &r[c]);
        }
        fm_train_result_release(&r[c]);
    }
    zoo_close(&z);
    fm_engine_free(e);
}

TEST(a_child_that_breaks_says_where_and_leaves_the_others_alone)
{
    zoo z;
    fm_train_result r[CHILDREN];
    fm_engine *e = ik_engine(2, 64);

    zoo_open(&z, 1);
    z.job[0].config.lr = 1e30;
    z.job[0].config.clip = 0.0;
    tk_ok(fm_train_run(e, &z.p, z.job, CHILDREN, r, NULL, NULL));
    assert_int_equal(r[0].failed, FM_EINVAL);
    assert_int_equal(r[0].count, 0);
    assert_non_null(r[0].why);
    print_message("%s\n", r[0].why);
    assert_non_null(strstr(r[0].why, "child0: step 1: the output of model.layers.0.self_attn."));
    for (uint32_t c = 0; c < CHILDREN; c++) {
        if (c > 0)
            same_as_alone(&z, c, &r[c]);
        fm_train_result_release(&r[c]);
    }
    zoo_close(&z);
    fm_engine_free(e);
}

/* Sizes alone are not enough: a pass has one rotary table. */
TEST(parents_that_turn_otherwise_do_not_share_a_pass)
{
    zoo z;
    fm_train_result r[2];
    fm_engine *e = ik_engine(1, 64);
    fm_tree *other = NULL;

    zoo_open(&z, 1);
    tk_ok(fm_tree_copy(&other, fm_source_tree(z.src)));
    const fm_entry *file = fm_tree_find(other, "model.json");
    assert_non_null(file);
    char *text = fm_strndup((const char *)file->data, (size_t)file->bytes);
    assert_non_null(text);
    char *theta = strstr(text, "rope_theta");
    assert_non_null(theta);
    theta[strcspn(theta, "123456789")] = '7';
    tk_ok(fm_tree_put_file(other, "model.json", fm_span_str(text)));
    z.job[1].parent = other;
    tk_fails(fm_train_run(e, &z.p, z.job, 2, r, NULL, NULL), FM_EINVAL, "another architecture");
    fm_free(text);
    fm_tree_free(other);
    zoo_close(&z);
    fm_engine_free(e);
}

TEST(a_child_that_diverges_is_stopped)
{
    zoo z;
    fm_train_result r[2];
    fm_engine *e = ik_engine(2, 64);
    const uint32_t steps = 40;
    int32_t *ids = fm_malloc(48 * steps * sizeof(int32_t));

    assert_non_null(ids);
    zoo_open(&z, 1);
    for (size_t i = 0; i < 48 * (size_t)steps; i++)
        ids[i] = (int32_t)fm_rng_below(3, 4, i, VOCAB);
    for (uint32_t c = 0; c < 2; c++) {
        fm_train_job *j = &z.job[c];
        j->config = z.job[0].config;
        j->config.steps = steps;
        j->batch_ids = j->batch_labels = ids;
        j->config.schedule = FM_SCHEDULE_CONSTANT;
        (void)snprintf(j->config.targets, sizeof(j->config.targets), "lm_head");
        j->config.lr = c == 0 ? 20.0 : 1e-3;
    }
    tk_ok(fm_train_run(e, &z.p, z.job, 2, r, NULL, NULL));
    assert_int_equal(r[0].failed, FM_EINVAL);
    print_message("%s\n", r[0].why);
    assert_non_null(strstr(r[0].why, "diverged: the mean loss of the last 8 steps is "));
    assert_true(fm_json_count(r[0].log) > 8 && fm_json_count(r[0].log) < steps);
    assert_int_equal(r[1].failed, FM_OK);
    assert_int_equal(fm_json_count(r[1].log), steps);
    fm_train_result_release(&r[0]);
    fm_train_result_release(&r[1]);
    fm_free(ids);
    zoo_close(&z);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_children_have_the_bits_of_their_runs_alone),
        cmocka_unit_test(so_have_children_whose_rows_take_several_passes),
        cmocka_unit_test(activations_computed_again_are_the_same),
        cmocka_unit_test(a_dropped_child_leaves_the_others_alone),
        cmocka_unit_test(a_child_that_breaks_says_where_and_leaves_the_others_alone),
        cmocka_unit_test(a_child_that_diverges_is_stopped),
        cmocka_unit_test(parents_that_turn_otherwise_do_not_share_a_pass),
    };

    char *data = tk_shared("arch/llama/model.safetensors");
    if (!data)
        return tk_skip("reference data is not on this machine (FM_SHARED_DATA)");
    fm_free(data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
