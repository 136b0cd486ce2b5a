/* Each allocation of templates, perturbations, measures and foreign formats fails in turn, once and
 * for ever after: FM_ENOMEM or the whole, never a part; leaks are for the address sanitizer. */
#include <math.h>

#include "testing/suite/internal.h"
#include "tests/fault/kit/alloc_kit.h"

static const char yaml[] =
    "suite: s\nlexicons: {pet: [cat, '{colour} dog'], colour: [red, grey], "
    "person: [{name: Anna, city: Rome}, {name: Mei, city: Oslo}]}\n"
    "measures: [{measure: pass-rate, over: {kind: INV}, at-least: 0.5}, "
    "{measure: gap, by: g, at-most: 0.5}, {measure: brier, at-most: 1}, "
    "{measure: perplexity, at-most: 3}]\ncases:\n"
    "  - {name: i, chat: \"Isn't Anna in 12 Rome?\", tags: {g: a}, perturb: [typos, "
    "{names: {count: 2}}, {casing: upper}, negation, numbers, contractions, {suffix: x}]}\n"
    "  - {name: d, kind: DIR, prompt: [a, b], choices: [x, y], against: first, tags: {g: b}, "
    "pairs: {any: [{answer: changes}, {probability: {of: x, increases: 0.1}}]}}\n"
    "  - {name: c, prompt: a, choices: [x, y], answer: x, capability: k}\n"
    "templates:\n"
    "  - {name: '{#}', sample: 3, seed: 1, prompt: '{A:pet} of {person1.name}, {person2}', "
    "expect: {contains: x}}\n"
    "  - {name: 'n-{#}', nested: true, prompt: '{p}', expect: {contains: x}, "
    "slots: {p: ['{pet}', y]}}\n";

static fm_status parse_and_perturb(void)
{
    fm_suite *s = NULL, *forms = NULL;
    fm_status rc = fm_suite_parse(&s, fm_span_str(yaml), "t");
    if (rc == FM_OK) {
        assert_int_equal(fm_suite_count(s), 3 + 3 + 4);
        assert_int_equal(fm_suite_measure_count(s), 4);
        rc = fm_suite_perturbed(&forms, s, 0, 3, 4);
    }
    assert_int_equal(rc == FM_OK, forms != NULL);
    fm_suite_free(forms);
    fm_suite_free(s);
    return rc;
}

static fm_suite *measured;

static fm_status measure(void)
{
    fm_suite_run run = {.suite = measured, .count = fm_suite_count(measured)};
    run.result = fm_calloc(run.count, sizeof *run.result);
    fm_status rc = run.result ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < run.count && rc == FM_OK; i++) {
        run.result[i].at = i;
        run.result[i].verdict = i % 2 ? FM_PASS : FM_FAIL;
        run.result[i].numbers = (fm_case_measures){0.5, 0.5, 0.5, 1, 2};
    }
    if (rc == FM_OK)
        rc = fmv_measures_take(&run);
    if (rc == FM_OK) {
        fm_json *j = fm_suite_measures_json(&run);
        rc = j ? FM_OK : FM_ENOMEM;
        fm_json_free(j);
    }
    fm_suite_run_release(&run);
    return rc;
}

static const struct {
    const char *from, *text, *data;
} foreign[] = {
    {"promptfoo",
     "description: d\nprompts: ['Say {{w}}', '[{\"role\": \"user\", \"content\": "
     "\"{{w|upper}}\"}]']\n"
     "defaultTest: {vars: {z: 1}, assert: [{type: not-contains, value: q}]}\n"
     "tests: [{vars: {w: [a, b]}, metadata: {k: 1}, assert: [{type: contains, value: '{{w}}'}, "
     "{type: is-json}]}]\n",
     ""},
    {"lm-eval",
     "task: t\noutput_type: multiple_choice\ndescription: D.\ndoc_to_text: '{{q.strip()}}'\n"
     "doc_to_choice: c\ndoc_to_target: t\n",
     "{\"q\": \" x \", \"c\": [\"a\", \"b\"], \"t\": 1}\n"},
    {"lm-eval",
     "task: t\ndoc_to_text: q\ndoc_to_target: a\ngeneration_kwargs: {do_sample: true, top_p: "
     "0.5}\n",
     "{\"q\": \"x\", \"a\": \"b\"}\n"},
    {"checklist",
     "{\"choices\": [\"a\", \"b\"], \"tests\": {\"n\": {\"type\": \"MFT\", \"data\": [[\"x\", "
     "\"y\"]], "
     "\"labels\": 1, \"capability\": \"c\"}, \"m\": {\"type\": \"DIR\", \"data\": [[\"x\", "
     "\"y\"]], "
     "\"expect\": {\"direction\": \"increases\", \"label\": 0}}}}",
     ""},
    {"csv", "name,prompt,expected,tags.k\nn,p,contains: x,v\nn,\"q\"\"\",y,\n", ""},
};
static size_t which;

static fm_status convert(void)
{
    fm_buf out;
    fm_foreign_opts o = {.from = foreign[which].from, .data = fm_span_str(foreign[which].data)};
    fm_buf_init(&out, 0);
    fm_status rc = fm_suite_convert(&out, fm_span_str(foreign[which].text), "f", &o);
    assert_int_equal(rc == FM_OK, out.len > 0);
    fm_buf_release(&out);
    return rc;
}

TEST(templates_survive_each_failure)
{
    ak_fail_each(parse_and_perturb, 200);
}

TEST(measures_survive_each_failure)
{
    tk_ok(fm_suite_parse(&measured, fm_span_str(yaml), "t"));
    ak_fail_each(measure, 20);
    fm_suite_free(measured);
}

TEST(converting_survives_each_failure)
{
    for (which = 0; which < FM_ARRAY_LEN(foreign); which++)
        ak_fail_each(convert, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_survive_each_failure),
        cmocka_unit_test(measures_survive_each_failure),
        cmocka_unit_test(converting_survives_each_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
