/* INV and DIR over choices and probabilities, perturbed cases and measures, on the family's base:
 * what the pairs say is what single cases of the same prompts say. */
#include <math.h>
#include <stdlib.h>

#include "tests/model/suite_kit.h"

static fm_suite_run run_of(const sk_world *w, const char *yaml, fm_suite **s)
{
    fm_suite_run run;
    tk_ok(fm_suite_parse(s, fm_span_str(yaml), "t.yaml"));
    tk_ok(fm_suite_run_on(&run, *s, w->model, NULL, NULL));
    assert_int_equal(run.errors, 0);
    return run;
}

#define CHOICES "choices: [' Ulevia', ' of', ' is'], answer: ' of'"
#define P "'The capital'"
#define Q "'of of'"

/* Probabilities of ' of' after P and Q, and which choice is preferred, by single cases. */
static void singles(const sk_world *w, double p[2], char *best[2])
{
    fm_suite *s = NULL;
    fm_suite_run run = run_of(w,
                              "suite: s\ncases:\n  - {name: p, prompt: " P ", " CHOICES "}\n"
                              "  - {name: q, prompt: " Q ", " CHOICES "}\n",
                              &s);
    for (size_t i = 0; i < 2; i++) {
        double lp[3], sum = 0;
        assert_int_equal(sscanf(run.result[i].output, "\" Ulevia\" %lf, \" of\" %lf, \" is\" %lf",
                                &lp[0], &lp[1], &lp[2]),
                         3);
        for (size_t k = 0; k < 3; k++)
            sum += exp(lp[k]);
        p[i] = exp(lp[1]) / sum;
        tk_assert_le(fabs(run.result[i].numbers.probability - p[i]), 2e-3,
                     "softmax of what is shown");
        tk_assert_le(fabs(run.result[i].numbers.nll + lp[1]), 1e-3, "nll");
        best[i] = fm_strdup(run.result[i].answer);
    }
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

static void expect(const sk_world *w, const char *keys, bool pass, double score)
{
    fm_suite *s = NULL;
    char *yaml = fm_asprintf("suite: s\ncases:\n  - {name: c, %s}\n", keys);
    fm_suite_run run = run_of(w, yaml, &s);
    if (run.passed != pass)
        fail_msg("%s: %s", keys, run.result[0].detail ? run.result[0].detail : "passed");
    assert_int_equal(run.result[0].detail == NULL, pass);
    if (!isnan(score))
        tk_assert_le(fabs(run.result[0].score - score), 2e-3, keys);
    fm_suite_run_release(&run);
    fm_suite_free(s);
    fm_free(yaml);
}

#define PQ "prompt: [" P ", " Q "], "
#define QP "prompt: [" Q ", " P "], "
#define THREE "choices: [' Ulevia', ' of', ' is'], "

static void pairs_say_what_single_cases_say(void **state)
{
    const sk_world *w = *state;
    double p[2], d;
    char *best[2], keys[512];
    singles(w, p, best);
    bool same = strcmp(best[0], best[1]) == 0;
    d = p[1] - p[0];
    assert_true(fabs(d) > 0.02 && fabs(d) < 0.9998);
    const double wide = FM_MIN(fabs(d) + 0.01, 0.9999);
    expect(w, "kind: INV, " PQ "choices: [' Ulevia', ' of', ' is']", same, NAN);
    expect(w, "kind: INV, " PQ "choices: [' Ulevia', ' of', ' is'], pairs: {answer: changes}",
           !same, NAN);
    for (int turn = 0; turn < 2; turn++) {
        const char *prompts = turn ? QP : PQ;
        double by = turn ? -d : d;
        snprintf(keys, sizeof keys, "kind: DIR, %s" CHOICES ", pairs: {probability: {%s: 0}}",
                 prompts, by > 0 ? "increases" : "decreases");
        if (strcmp(best[turn], " of") == 0)
            expect(w, keys, true, fabs(d));
        snprintf(keys, sizeof keys,
                 "kind: DIR, %s" THREE "pairs: {probability: {of: ' of', increases: 0.01}}",
                 prompts);
        expect(w, keys, by > 0, by - 0.01);
        snprintf(keys, sizeof keys,
                 "kind: DIR, %s" THREE "pairs: {probability: {of: ' of', decreases: 0.01}}",
                 prompts);
        expect(w, keys, by < 0, -by - 0.01);
    }
    snprintf(keys, sizeof keys,
             "kind: INV, " PQ THREE "pairs: {probability: {of: ' of', within: %g}}",
             fabs(d) - 0.01);
    expect(w, keys, false, -0.01);
    snprintf(keys, sizeof keys,
             "kind: INV, " PQ THREE "pairs: {any: [{probability: {of: ' of', within: 0.0001}}, "
             "{probability: {of: ' of', within: %g}}]}",
             wide);
    expect(w, keys, true, wide - fabs(d));
    snprintf(keys, sizeof keys,
             "kind: INV, " PQ THREE "pairs: [{probability: {of: ' of', within: 0.0001}}, "
             "{probability: {of: ' of', within: %g}}]",
             wide);
    expect(w, keys, false, 0.0001 - fabs(d));
    fm_free(best[0]);
    fm_free(best[1]);
}

static void other_scorings_have_pairs_too(void **state)
{
    const sk_world *w = *state;
    expect(w,
           "kind: DIR, prompt: [of of, The capital], continuation: ' of', "
           "pairs: {any: [{probability: {increases: 0}}, {probability: {decreases: 0}}]}",
           true, NAN);
    expect(w,
           "kind: INV, prompt: [The, The], continuation: ' of', pairs: {probability: {within: 0}}",
           true, 0);
    expect(w, "kind: DIR, chat: [Who are you?, Who are you?], pairs: {answer: changes}", false, -1);
    expect(w, "kind: INV, chat: [Who are you?, Who are you?], pairs: {answer: same}", true, 1);
    /* against the first: the third prompt is the first again */
    expect(w,
           "kind: DIR, prompt: [of of, The capital, of of], continuation: ' of', "
           "direction: increases, against: first",
           false, NAN);
    double p[2];
    char *best[2];
    singles(w, p, best);
    if (strcmp(best[0], " of") != 0)
        expect(w, "kind: INV, prompt: [" P ", " P "], " CHOICES, false, NAN);
    fm_free(best[0]);
    fm_free(best[1]);
}

static void perturbed_cases_and_measures_run(void **state)
{
    const sk_world *w = *state;
    fm_suite *s = NULL, *forms = NULL;
    fm_suite_run run =
        run_of(w,
               "suite: s\nmeasures:\n  - {measure: accuracy, at-least: 0.001}\n"
               "  - {measure: brier, at-most: 1.999}\n  - {measure: perplexity, at-most: 100000}\n"
               "cases:\n  - {name: c, prompt: The capital of, " CHOICES "}\n"
               "  - {name: i, prompt: The capital of, choices: [' Ulevia', ' of'], "
               "perturb: [{prefix: 'The capital of Ulevia is far.'}, whitespace]}\n",
               &s);
    assert_int_equal(run.count, 2);
    assert_int_equal(run.measure_count, 3);
    assert_int_equal(run.measure[0].count, 1);
    double n = run.result[0].numbers.nll / run.result[0].numbers.tokens;
    tk_assert_le(fabs(run.measure[2].value - exp(n)), 1e-9 * exp(n), "perplexity of one text");
    tk_assert_le(fabs(run.measure[1].value - run.result[0].numbers.brier), 1e-12, "Brier of one");
    fm_suite_run_release(&run);
    tk_ok(fm_suite_perturbed(&forms, s, 0, 1, 6));
    tk_ok(fm_suite_run_on(&run, forms, w->model, NULL, NULL));
    assert_int_equal(run.count, 6);
    assert_int_equal(run.errors, 0);
    fm_suite_run_release(&run);
    fm_suite_free(forms);
    fm_suite_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_say_what_single_cases_say),
        cmocka_unit_test(other_scorings_have_pairs_too),
        cmocka_unit_test(perturbed_cases_and_measures_run),
    };
    return cmocka_run_group_tests(tests, sk_open, sk_close);
}
