/* Sampling: cuts, ties, penalty and draws are exact. */
#include "infer/sampler.h"

#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "tests/testkit.h"

static int32_t pick(const float *l, uint32_t n, const fm_sample_params *p, const int32_t *hist,
                    size_t hn, uint64_t index)
{
    fm_sampler *s;
    int32_t t = -1;

    tk_ok(fm_sampler_new(&s, n));
    tk_ok(fm_sampler_pick(&t, s, l, n, p, hist, hn, index));
    fm_sampler_free(s);
    return t;
}

TEST(bad_parameters_are_named)
{
    fm_sample_params p;
    const float l[2] = {0, 1}, nan_row[2] = {0, NAN}, none[2] = {-INFINITY, -INFINITY};
    fm_sampler *s;
    int32_t t;

    tk_ok(fm_sampler_new(&s, 2));
    fm_sample_defaults(&p);
    p.temperature = NAN;
    tk_fails(fm_sampler_pick(&t, s, l, 2, &p, NULL, 0, 0), FM_EINVAL, "temperature");
    fm_sample_defaults(&p);
    p.top_p = 0;
    tk_fails(fm_sampler_pick(&t, s, l, 2, &p, NULL, 0, 0), FM_EINVAL, "top_p");
    fm_sample_defaults(&p);
    p.min_p = 2;
    tk_fails(fm_sampler_pick(&t, s, l, 2, &p, NULL, 0, 0), FM_EINVAL, "min_p");
    fm_sample_defaults(&p);
    p.repetition_penalty = 0;
    tk_fails(fm_sampler_pick(&t, s, l, 2, &p, NULL, 0, 0), FM_EINVAL, "repetition_penalty");
    fm_sample_defaults(&p);
    tk_fails(fm_sampler_pick(&t, s, l, 3, &p, NULL, 0, 0), FM_EINVAL, "room for 2");
    tk_fails(fm_sampler_pick(&t, s, nan_row, 2, &p, NULL, 0, 0), FM_ECORRUPT, "NaN");
    tk_fails(fm_sampler_pick(&t, s, none, 2, &p, NULL, 0, 0), FM_ECORRUPT, "finite");
    fm_sampler_free(s);
}

TEST(greedy_takes_the_lowest_id_of_the_best)
{
    const float l[5] = {1, 7, 3, 7, 7};
    fm_sample_params p;

    fm_sample_defaults(&p);
    assert_int_equal(pick(l, 5, &p, NULL, 0, 0), 1);
    p.temperature = 0.7f;
    p.top_k = 1;
    assert_int_equal(pick(l, 5, &p, NULL, 0, 3), 1);
}

TEST(repetition_penalty_divides_positive_and_multiplies_negative_logits_once)
{
    const float l[3] = {4.0f, 3.0f, -1.0f}, m[2] = {-1.0f, -1.5f};
    const int32_t hist[4] = {0, 0, 0, -7}, mh[1] = {0};
    fm_sample_params p;

    fm_sample_defaults(&p);
    p.repetition_penalty = 1.3f; /* 4 / 1.3 = 3.08 > 3, but 4 / 1.69 < 3 */
    assert_int_equal(pick(l, 3, &p, hist, 4, 0), 0);
    p.repetition_penalty = 1.4f;
    assert_int_equal(pick(l, 3, &p, hist, 4, 0), 1);
    p.repetition_penalty = 2.0f;
    assert_int_equal(pick(m, 2, &p, mh, 1, 0), 1);
}

/* Draw many times; counts per token. */
static void histogram(uint32_t *count, const float *l, uint32_t n, const fm_sample_params *p,
                      uint32_t draws)
{
    fm_sampler *s;

    memset(count, 0, n * sizeof *count);
    tk_ok(fm_sampler_new(&s, n));
    for (uint32_t i = 0; i < draws; i++) {
        int32_t t;
        tk_ok(fm_sampler_pick(&t, s, l, n, p, NULL, 0, i));
        count[t]++;
    }
    fm_sampler_free(s);
}

TEST(draws_follow_the_softmax)
{
    const float l[4] = {0.0f, 2.0f, 1.0f, -INFINITY};
    fm_sample_params p;
    uint32_t count[4];
    double z = exp(0.0) + exp(1.0) + exp(0.5);

    fm_sample_defaults(&p);
    p.temperature = 2.0f;
    p.seed = 11;
    histogram(count, l, 4, &p, 40000);
    assert_int_equal(count[3], 0);
    /* 5 standard deviations of a binomial of 40,000 are below 0.0125 */
    tk_assert_le(fabs(count[0] / 40000.0 - 1.0 / z), 0.0125, "token 0");
    tk_assert_le(fabs(count[1] / 40000.0 - exp(1.0) / z), 0.0125, "token 1");
    tk_assert_le(fabs(count[2] / 40000.0 - exp(0.5) / z), 0.0125, "token 2");
}

TEST(cuts_keep_exactly_what_they_say)
{
    /* probabilities 0.5, 0.25, 0.125, 0.125 */
    const float l[4] = {logf(0.125f), logf(0.5f), logf(0.25f), logf(0.125f)};
    fm_sample_params p;
    uint32_t count[4];

    fm_sample_defaults(&p);
    p.temperature = 1.0f;
    p.top_k = 3; /* of the two last, the lower id */
    histogram(count, l, 4, &p, 2000);
    assert_true(count[0] > 0 && count[1] > 0 && count[2] > 0);
    assert_int_equal(count[3], 0);
    fm_sample_defaults(&p);
    p.temperature = 1.0f;
    p.top_p = 0.6f;
    histogram(count, l, 4, &p, 2000);
    assert_int_equal(count[0] + count[3], 0);
    assert_true(count[1] > 0 && count[2] > 0);
    p.top_p = 0.4f;
    histogram(count, l, 4, &p, 200);
    assert_int_equal(count[1], 200);
    fm_sample_defaults(&p);
    p.temperature = 1.0f;
    p.min_p = 0.4f;
    histogram(count, l, 4, &p, 2000);
    assert_int_equal(count[0] + count[3], 0);
    assert_true(count[2] > 0);
    p.top_k = 2; /* top-p's mass is of the two kept: 0.667 of it is the best alone */
    p.min_p = 0;
    p.top_p = 0.65f;
    histogram(count, l, 4, &p, 200);
    assert_int_equal(count[1], 200);
}

TEST(a_cut_that_removes_nothing_draws_the_same_tokens)
{
    float l[300];
    fm_sample_params a, b;

    for (uint32_t i = 0; i < 300; i++)
        l[i] = (float)fm_rng_normal(3, 1, i);
    fm_sample_defaults(&a);
    a.temperature = 1.0f;
    a.seed = 5;
    b = a;
    b.min_p = 1e-30f;
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(pick(l, 300, &a, NULL, 0, i), pick(l, 300, &b, NULL, 0, i));
}

TEST(picking_allocates_nothing)
{
    float l[1000];
    fm_sample_params p;
    fm_sampler *s;
    int32_t t;

    for (uint32_t i = 0; i < 1000; i++)
        l[i] = (float)fm_rng_normal(1, 2, i);
    tk_ok(fm_sampler_new(&s, 1000));
    fm_sample_defaults(&p);
    p.temperature = 0.8f;
    p.top_p = 0.9f;
    uint64_t before = fm_mem_alloc_count();
    for (uint64_t i = 0; i < 50; i++)
        tk_ok(fm_sampler_pick(&t, s, l, 1000, &p, NULL, 0, i));
    assert_int_equal(fm_mem_alloc_count(), before);
    fm_sampler_free(s);
}

TEST(logprobs_are_the_log_softmax_of_the_raw_row)
{
    const float l[4] = {1.0f, 3.0f, 3.0f, -2.0f};
    fm_logprob top[3];
    float lp;
    double lse = log(exp(1.0) + 2 * exp(3.0) + exp(-2.0));

    tk_ok(fm_logprobs(&lp, top, 3, l, 4, 0));
    tk_assert_le(fabs((double)lp - (1.0 - lse)), 1e-6, "logprob");
    assert_int_equal(top[0].token, 1);
    assert_int_equal(top[1].token, 2);
    assert_int_equal(top[2].token, 0);
    tk_assert_le(fabs((double)top[1].logprob - (3.0 - lse)), 1e-6, "top");
    tk_fails(fm_logprobs(&lp, top, 5, l, 4, 0), FM_EINVAL, "outside");
    tk_fails(fm_logprobs(&lp, NULL, 0, l, 4, 4), FM_EINVAL, "outside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_best),
        cmocka_unit_test(repetition_penalty_divides_positive_and_multiplies_negative_logits_once),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(cuts_keep_exactly_what_they_say),
        cmocka_unit_test(a_cut_that_removes_nothing_draws_the_same_tokens),
        cmocka_unit_test(picking_allocates_nothing),
        cmocka_unit_test(logprobs_are_the_log_softmax_of_the_raw_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
