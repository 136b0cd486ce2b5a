/* train_config.c - options, their JSON, and the schedules. */
#include "tests/testkit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/net/internal.h"

TEST(an_unknown_key_names_what_there_is)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    tk_fails(fm_train_config_set(&c, "learning_rate", "1"), FM_EINVAL, "lr");
    tk_fails(fm_train_config_set(&c, "learning_rate", "1"), FM_EINVAL, "learning_rate");
}

TEST(wrong_values_are_refused_with_key_and_value)
{
    static const char *const bad[][2] = {
        {"r", "0"},       {"r", "-1"},          {"r", "8x"},        {"r", ""},
        {"r", "5000"},    {"lr", "nan"},        {"lr", "fast"},     {"lr", "-1"},
        {"lr", "1e999"},  {"rslora", "yes"},    {"schedule", "up"}, {"method", "dora"},
        {"dtype", "f16"}, {"batch", "0"},       {"epochs", "0"},    {"max_tokens", "1"},
        {"seed", "-1"},   {"answers_only", ""}, {"beta2", "1"},     {"steps", "4294967296"}};

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
        tk_fails(fm_train_config_set(&c, bad[i][0], bad[i][1]), FM_EINVAL, bad[i][0]);
        fm_train_config same = fm_train_defaults(FM_METHOD_LORA);
        assert_memory_equal(&c, &same, sizeof(c));
    }
}

TEST(text_beyond_its_room_is_refused)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    char text[300];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    tk_fails(fm_train_config_set(&c, "targets", text), FM_ELIMIT, "targets");
}

TEST(every_field_survives_json_both_ways)
{
    static const char *const set[][2] = {{"method", "lora"},
                                         {"r", "3"},
                                         {"alpha", "7.25"},
                                         {"rslora", "true"},
                                         {"targets", "q_proj"},
                                         {"modules_to_save", "lm_head"},
                                         {"lr", "0.000123"},
                                         {"beta1", "0.8"},
                                         {"beta2", "0.95"},
                                         {"eps", "1e-7"},
                                         {"weight_decay", "0.2"},
                                         {"clip", "0.4"},
                                         {"schedule", "cosine"},
                                         {"warmup", "9"},
                                         {"steps", "77"},
                                         {"epochs", "2.5"},
                                         {"batch", "3"},
                                         {"accumulate", "5"},
                                         {"max_tokens", "99"},
                                         {"seed", "18446744073709551615"},
                                         {"dtype", "bf16"},
                                         {"answers_only", "false"},
                                         {"objective", "dpo"},
                                         {"dora", "true"},
                                         {"dropout", "0.1"},
                                         {"loraplus", "16"},
                                         {"exclude", "o_proj"},
                                         {"feedforward", "down_proj"},
                                         {"rank_pattern", "q_proj=4"},
                                         {"alpha_pattern", "q_proj=8"},
                                         {"layers", "0-3"},
                                         {"bias", "all"},
                                         {"freeze", "embed_tokens"},
                                         {"virtual_tokens", "7"},
                                         {"classes", "3"},
                                         {"pooling", "mean"},
                                         {"temperature", "0.05"},
                                         {"dpo_beta", "0.2"},
                                         {"distill_weight", "0.7"},
                                         {"packing", "true"},
                                         {"buckets", "4"},
                                         {"symmetric", "true"}};
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_train_config back;
    fm_buf text;

    for (size_t i = 0; i < FM_ARRAY_LEN(set); i++)
        tk_ok(fm_train_config_set(&c, set[i][0], set[i][1]));
    fm_json *v = fm_train_config_json(&c);
    assert_int_equal(fm_json_count(v), FM_ARRAY_LEN(set));
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, v, FM_JSON_CANONICAL));
    fm_json_free(v);
    tk_ok(fm_json_parse(&v, fm_buf_span(&text), "config"));
    tk_ok(fm_train_config_from_json(&back, v, "config"));
    assert_true(back.seed == UINT64_MAX && back.alpha == 7.25 && back.lr == 0.000123);
    assert_true(back.rslora && !back.answers_only && back.dtype == FM_BF16 && back.r == 3);
    assert_int_equal(back.schedule, FM_SCHEDULE_COSINE);
    fm_json *again = fm_train_config_json(&back);
    assert_true(fm_json_equal(v, again));
    fm_json_free(again);
    fm_json_free(v);
    fm_buf_release(&text);
}

TEST(stored_types_follow_the_parent_unless_a_recipe_says_otherwise)
{
    static const struct {
        const char *json;
        fm_dtype dtype;
    } recipe[] = {{"{\"method\":\"full\"}", FM_DTYPE_NONE},
                  {"{\"method\":\"full\",\"dtype\":\"parent\"}", FM_DTYPE_NONE},
                  {"{\"method\":\"full\",\"dtype\":\"f32\"}", FM_F32},
                  {"{\"method\":\"pretrain\",\"dtype\":\"bf16\"}", FM_BF16},
                  {"{\"method\":\"pretrain\",\"dtype\":\"BF16\"}", FM_BF16}};
    fm_train_config c;

    for (size_t i = 0; i < FM_ARRAY_LEN(recipe); i++) {
        fm_json *v = NULL;
        tk_ok(fm_json_parse(&v, fm_span_str(recipe[i].json), "recipe"));
        tk_ok(fm_train_config_from_json(&c, v, "recipe"));
        assert_int_equal(c.dtype, recipe[i].dtype);
        fm_json_free(v);
    }
    c = fm_train_defaults(FM_METHOD_FULL);
    fm_json *v = fm_train_config_json(&c);
    assert_string_equal(fm_json_cstr(fm_json_get(v, "dtype"), ""), "parent");
    fm_json_free(v);
}

TEST(json_with_a_wrong_field_names_the_file)
{
    static const char *const bad[] = {"{\"r\":[]}", "{\"rank\":8}", "{\"method\":\"x\"}", "[]"};
    fm_train_config c;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_json *v = NULL;
        tk_ok(fm_json_parse(&v, fm_span_str(bad[i]), "family.yaml"));
        tk_fails(fm_train_config_from_json(&c, v, "family.yaml"), FM_EINVAL, "family.yaml");
        fm_json_free(v);
    }
}

TEST(warm_up_reaches_the_rate_and_schedules_fall_to_zero)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.lr = 2.0;
    c.warmup = 4;
    c.schedule = FM_SCHEDULE_CONSTANT;
    assert_true(fmt_schedule_lr(&c, 0, 12) == 0.5 && fmt_schedule_lr(&c, 3, 12) == 2.0);
    assert_true(fmt_schedule_lr(&c, 11, 12) == 2.0);
    c.schedule = FM_SCHEDULE_LINEAR;
    assert_true(fmt_schedule_lr(&c, 4, 12) == 2.0 && fmt_schedule_lr(&c, 8, 12) == 1.0);
    assert_true(fmt_schedule_lr(&c, 11, 12) == 0.25 && fmt_schedule_lr(&c, 12, 12) == 0.0);
    c.schedule = FM_SCHEDULE_COSINE;
    assert_true(fmt_schedule_lr(&c, 4, 12) == 2.0);
    tk_assert_le(fabs(fmt_schedule_lr(&c, 8, 12) - 1.0), 1e-15, "half way");
    tk_assert_le(fabs(fmt_schedule_lr(&c, 6, 12) - (1.0 + cos(0.25 * 3.14159265358979))), 1e-14,
                 "a quarter");
    c.warmup = 20; /* longer than the run */
    assert_true(fmt_schedule_lr(&c, 11, 12) == 2.0 * 12.0 / 20.0);
}

TEST(steps_come_from_epochs_when_none_are_given)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.batch = 4;
    c.accumulate = 2;
    c.epochs = 1.5;
    assert_int_equal(fmt_schedule_steps(&c, 100), 19); /* 150 examples in steps of 8 */
    c.steps = 3;
    assert_int_equal(fmt_schedule_steps(&c, 100), 3);
}

TEST(clipping_is_that_of_pytorch)
{
    assert_true(fmt_clip_scale(5.0, 0.0) == 1.0f);
    assert_true(fmt_clip_scale(0.5, 1.0) == 1.0f);
    assert_true(fmt_clip_scale(2.0, 1.0) == (float)(1.0 / (2.0 + 1e-6)));
    assert_true(fmt_clip_scale(1.0, 1.0) == (float)(1.0 / (1.0 + 1e-6)));
}

TEST(a_batch_leaves_out_what_no_target_depends_on)
{
    static const int32_t ids[] = {5, 6, 7, 8, 9, 4};
    static const int32_t labels[] = {-100, -100, 7, 8, -100, -100};
    static const int32_t none[] = {3, -100, -100}; /* the first token is nobody's target */
    const fmt_seq_in s[] = {{ids, labels, 6}, {ids, none, 3}, {ids, ids, 3}};
    const fmt_batch_how how = {.vocab = 10};
    const fmt_batch_how few = {.vocab = 9};
    fmt_batch b = {0};

    tk_ok(fmt_batch_build(&b, s, 3, &how));
    assert_int_equal(b.rows, 5);
    assert_int_equal(b.labels, 4);
    assert_int_equal(b.seqs, 2);
    assert_int_equal(b.longest, 3);
    assert_int_equal(b.tokens, 12);
    static const int32_t pos[] = {0, 1, 2, 0, 1};
    static const int32_t row[] = {1, 2, 3, 4};
    static const int32_t target[] = {7, 8, 6, 7};
    assert_memory_equal(b.pos, pos, sizeof(pos));
    assert_memory_equal(b.label_row, row, sizeof(row));
    assert_memory_equal(b.label, target, sizeof(target));
    tk_fails(fmt_batch_build(&b, s, 3, &few), FM_EINVAL, "vocabulary");
    static const int32_t wrong[] = {-100, -1, 2};
    const fmt_seq_in bad = {ids, wrong, 3};
    tk_fails(fmt_batch_build(&b, &bad, 1, &how), FM_EINVAL, "-100");
    fmt_batch_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_key_names_what_there_is),
        cmocka_unit_test(wrong_values_are_refused_with_key_and_value),
        cmocka_unit_test(text_beyond_its_room_is_refused),
        cmocka_unit_test(every_field_survives_json_both_ways),
        cmocka_unit_test(stored_types_follow_the_parent_unless_a_recipe_says_otherwise),
        cmocka_unit_test(json_with_a_wrong_field_names_the_file),
        cmocka_unit_test(warm_up_reaches_the_rate_and_schedules_fall_to_zero),
        cmocka_unit_test(steps_come_from_epochs_when_none_are_given),
        cmocka_unit_test(clipping_is_that_of_pytorch),
        cmocka_unit_test(a_batch_leaves_out_what_no_target_depends_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
