/* parallel_plan.c - plans over ranks, against figures worked out by hand: a large model split, in
 * stages, and in both; what cannot be split; the state of a training. */
#include <math.h>

#include "infer/parallel_plan.h"
#include "tests/testkit.h"

/* The shape of Llama 3 70B: 80 layers, 64 heads on 8 of keys and values. */
static fm_arch big(void)
{
    static const char text[] =
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":128256,"
        "\"hidden_size\":8192,\"intermediate_size\":28672,\"num_hidden_layers\":80,"
        "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":128,"
        "\"max_position_embeddings\":8192,\"tie_word_embeddings\":false}}";
    fm_json *v = NULL;
    fm_arch a;
    tk_ok(fm_json_parse(&v, fm_span_str(text), "big"));
    tk_ok(fm_arch_from_json(&a, v, "big"));
    fm_json_free(v);
    return a;
}

static void near(double got, double want, const char *what)
{
    tk_assert_le(fabs(got - want), 1e-9 * fabs(want), what);
}

#define BIG_LAYER 855638016.0 /* 2 x 8192^2 + 2 x 1024 x 8192 + 3 x 28672 x 8192 */
#define BIG_HEAD 1050673152.0 /* 128256 x 8192 */
#define BIG_ALL 70553706496.0

TEST(one_stage_split)
{
    const fm_arch a = big();
    fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 64ull << 30, .rows = 8};
    fm_serve_plan p;
    tk_ok(fm_serve_plan_of(&p, &ask, 1, 8, "big"));
    assert_int_equal(p.kv_bytes, 8ull << 30); /* what the engine of a rank is given */
    assert_int_equal(p.text_bytes, 64ull << 30);
    /* Norms are whole on every rank: 161 vectors of 8192 among 70.55 G parameters. */
    double whole = 161.0 * 8192.0 / BIG_ALL;
    near((double)p.weight_bytes, floor(141e9 * (whole + (1 - whole) / 8)), "weights");
    /* Of 8 rows the states of 8 ranks, and each one's 16,032 logits and one word more. */
    assert_int_equal(p.room_bytes, 8 * 4 * (8 * 8192 + 8 * 16033));
    assert_int_equal(p.bytes, p.weight_bytes + p.kv_bytes + p.room_bytes);
    assert_true(p.fits); /* nothing is known of the memory */
    ask.memory_bytes = 8 * p.bytes;
    tk_ok(fm_serve_plan_of(&p, &ask, 1, 8, "big"));
    assert_true(p.fits);
    ask.memory_bytes -= 1;
    tk_ok(fm_serve_plan_of(&p, &ask, 1, 8, "big"));
    assert_false(p.fits);
    tk_ok(fm_serve_plan_of(&p, &ask, 1, 1, "big"));
    assert_int_equal(p.weight_bytes, ask.weight_bytes);
    assert_int_equal(p.kv_bytes, ask.kv_bytes);
    assert_int_equal(p.room_bytes, 0);
}

TEST(stages_of_split_ranks)
{
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan p;
    tk_ok(fm_serve_plan_of(&p, &ask, 2, 8, "big"));
    /* The head is 1.23 layers: 41 layers, and 39 with it. */
    assert_int_equal(p.begin[0], 0);
    assert_int_equal(p.begin[1], 41);
    assert_int_equal(p.begin[2], 80);
    double first = ((41 * BIG_LAYER + BIG_HEAD) / 8 + 82.0 * 8192) / BIG_ALL;
    near((double)p.weight_bytes, floor(141e9 * first), "weights of the first stage");
    assert_int_equal(p.kv_bytes, 1ull << 30);
    near((double)p.text_bytes, floor((double)(1ull << 30) * 8 * 80 / 41), "the fullest stage's");
    assert_int_equal(p.bytes, p.weight_bytes + p.kv_bytes + p.room_bytes);
    tk_ok(fm_serve_plan_of(&p, &ask, 2, 1, "big"));
    near((double)p.weight_bytes, floor(141e9 * (41 * BIG_LAYER + BIG_HEAD + 82.0 * 8192) / BIG_ALL),
         "half of it");
    assert_int_equal(p.room_bytes, 0);
}

TEST(what_cannot_be_dealt_says_why)
{
    const fm_arch a = big();
    const fm_serve_ask ask = {.arch = &a, .weight_bytes = 1, .kv_bytes = 1, .rows = 1};
    fm_serve_plan p;
    tk_fails(fm_serve_plan_of(&p, &ask, 1, 3, "big"), FM_EUNSUPPORTED,
             "big: 64 query heads do not go into 3 equal parts");
    tk_fails(fm_serve_plan_of(&p, &ask, 81, 1, "big"), FM_EUNSUPPORTED, "at most 64");
}

TEST(training)
{
    fm_train_ranks_plan p;
    const uint64_t n = 1000000000;
    fm_train_ranks_plan_of(&p, n, 8, 8, false);
    assert_int_equal(p.parameter_bytes, 4 * n);
    assert_int_equal(p.gradient_bytes, 4 * n);
    assert_int_equal(p.moment_bytes, 8ull * ((2 << 20) * 59 + (2 << 20)));
    assert_int_equal(p.waiting_bytes, 56 << 20); /* stripes of seven shards */
    fm_train_ranks_plan_of(&p, n, 8, 16, false); /* two shards a rank: the first one waits whole */
    assert_int_equal(p.waiting_bytes, (14 << 22) + 4 * n);
    fm_train_ranks_plan_of(&p, n, 1, 2, false);
    assert_int_equal(p.moment_bytes, 8 * n);
    assert_int_equal(p.waiting_bytes, 4 * n);
    assert_int_equal(fm_train_stripe(n, 8, 8, false), 2 << 20);
    assert_int_equal(fm_train_stripe(n, 8, 8, true), 2 << 16);
    assert_int_equal(fm_train_stripe(n, 8, 4096, false), 65536);
    assert_int_equal(fm_train_stripe(1000, 8, 8, false), 65536);
    assert_int_equal(fm_train_stripe(100 << 20, 2, 2, false), 100 << 16); /* eight of each rank */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_split), cmocka_unit_test(stages_of_split_ranks),
        cmocka_unit_test(what_cannot_be_dealt_says_why), cmocka_unit_test(training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
