/* Templates beyond rows and products: lexicons, numbered and nested slots, articles, samples;
 * perturb, tags and slices of cases; what is refused and what is bounded. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "testing/suite/internal.h"
#include "tests/testkit.h"

static fm_suite *parsed(const char *yaml)
{
    fm_suite *s = NULL;
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    return s;
}

static void refused(const char *yaml, fm_status status, const char *needle)
{
    fm_suite *s = NULL;
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    tk_fails(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"), status, needle);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    assert_null(s);
    assert_non_null(strstr(fm_error_text(), "f.yaml"));
    assert_true(b.tv_sec - a.tv_sec < 20);
}

#define LEX                                                                                        \
    "suite: s\nlexicons:\n  pet: [cat, owl, '{colour} dog']\n  colour: [red, grey]\n"              \
    "  person:\n    - {name: Anna, city: Rome}\n    - {name: Omar, city: Cairo}\n"                 \
    "    - {name: Mei, city: Beijing}\ntemplates:\n"
#define TAIL ", expect: {contains: x}"

/* The prompts of all cases, each ended by a bar. */
static void prompts_are(const char *yaml, const char *want)
{
    fm_suite *s = parsed(yaml);
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < fm_suite_count(s); i++)
        fm_buf_printf(&b, "%s|", fm_json_cstr(s->cases[i].prompt[0], "?"));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
    fm_suite_free(s);
}

TEST(lexicons_fill_what_no_slot_names)
{
    prompts_are(LEX "  - {name: '{#}', prompt: '{person.name} of {person.city}'" TAIL "}\n",
                "Anna of Rome|Omar of Cairo|Mei of Beijing|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{person}'" TAIL "}\n", "Anna|Omar|Mei|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{who} {n}', slots: {n: [1, 2], "
                    "who: {lexicon: colour}}" TAIL "}\n",
                "red 1|grey 1|red 2|grey 2|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{n} {colour}', slots: [{n: 1}, {n: 2}]" TAIL "}\n",
                "1 red|1 grey|2 red|2 grey|");
    /* A slot of the template comes before a lexicon of its name. */
    prompts_are(LEX "  - {name: '{#}', prompt: '{colour}', slots: {colour: [teal]}" TAIL "}\n",
                "teal|");
    fm_suite *s = parsed("suite: s\ntemplates:\n  - {name: '{first-names}', prompt: hi" TAIL "}\n");
    assert_true(fm_suite_count(s) >= 20);
    fm_suite_free(s);
}

TEST(numbered_slots_are_different)
{
    prompts_are(LEX "  - {name: '{#}', prompt: '{person1.name}, {person2.name}'" TAIL "}\n",
                "Anna, Omar|Anna, Mei|Omar, Anna|Omar, Mei|Mei, Anna|Mei, Omar|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{x1}{x2}', slots: {x: [a, b]}" TAIL "}\n",
                "ab|ba|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{x}{x2}', slots: {x: [a, b]}" TAIL "}\n", "ab|ba|");
    /* x1 is a slot of its own here */
    prompts_are(LEX "  - {name: '{#}', prompt: '{x1}{x2}', slots: {x1: [a, b], x2: [a]}" TAIL "}\n",
                "aa|ba|");
    refused(LEX "  - {name: '{#}', prompt: '{colour1}{colour2}{colour3}'" TAIL "}\n", FM_EINVAL,
            "it has too few");
}

TEST(nested_slots_make_nothing_twice)
{
    prompts_are(LEX "  - {name: '{#}', prompt: 'a {pet}'" TAIL "}\n",
                "a cat|a owl|a red dog|a grey dog|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{p}', slots: {p: ['{colour}', '{{x}}']}" TAIL "}\n",
                "{colour}|{{x}}|"); /* values of slots are text ... */
    prompts_are(LEX "  - {name: '{#}', nested: true, prompt: '{p}', "
                    "slots: {p: ['{colour}', '{{x}}']}" TAIL "}\n",
                "red|grey|{x}|"); /* ... unless the template says otherwise */
    prompts_are(LEX "  - {name: '{#}', nested: true, prompt: '{p}', "
                    "slots: [{p: '{q}!', q: '{colour}'}]" TAIL "}\n",
                "red!|grey!|");
    refused("suite: s\nlexicons: {a: ['{b}'], b: ['{a}']}\ntemplates:\n"
            "  - {name: n, prompt: '{a}'" TAIL "}\n",
            FM_EINVAL, "holds the slot itself");
    refused("suite: s\ntemplates:\n  - {name: n, nested: true, prompt: '{a}', "
            "slots: [{a: '{b}', b: '{a}'}]" TAIL "}\n",
            FM_ELIMIT, "a cycle?");
}

TEST(articles_follow_the_sound)
{
    prompts_are(LEX "  - {name: '{#}', prompt: '{A:w}!', slots: {w: [apple, dog, hour, user, "
                    "uncle, European, one, unimportant thing, 8]}" TAIL "}\n",
                "An apple!|A dog!|An hour!|A user!|An uncle!|A European!|A one!|"
                "An unimportant thing!|A 8!|");
    prompts_are(LEX "  - {name: '{#}', prompt: '{a:pet}'" TAIL "}\n",
                "a cat|an owl|a red dog|a grey dog|");
}

TEST(samples_are_some_of_all)
{
    const char *few = LEX "  - {name: '{pet}{person1}{person2}', sample: 5, seed: 3, "
                          "prompt: '{pet}: {person1} {person2}'" TAIL "}\n";
    fm_suite *all = parsed(LEX "  - {name: '{pet}{person1}{person2}', "
                               "prompt: '{pet}: {person1} {person2}'" TAIL "}\n");
    fm_suite *a = parsed(few), *b = parsed(few);
    assert_int_equal(fm_suite_count(all), 4 * 6);
    assert_int_equal(fm_suite_count(a), 5);
    bool ordered = true;
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(fm_suite_case_name(a, i), fm_suite_case_name(b, i));
        assert_true(fm_suite_find(all, fm_suite_case_name(a, i)) >= 0);
        ordered = ordered && fm_suite_find(all, fm_suite_case_name(a, i)) == (long)i;
    }
    assert_false(ordered);
    fm_suite_free(all);
    fm_suite_free(a);
    fm_suite_free(b);
    /* All of a small space are found; more than there are is an error. */
    all = parsed(LEX "  - {name: '{#}', sample: 24, prompt: '{pet}{person1}{person2}'" TAIL "}\n");
    assert_int_equal(fm_suite_count(all), 24);
    fm_suite_free(all);
    refused(LEX "  - {name: '{#}', sample: 25, prompt: '{pet}{person1}{person2}'" TAIL "}\n",
            FM_EINVAL, "there seem to be 24");
    /* Some of 10^9 */
    prompts_are("suite: s\ntemplates:\n  - {name: '{#}', sample: 1, seed: 1, prompt: "
                "'{numbers1}', expect: {contains: x}, slots: {z: ['']}}\n",
                "eight|"); /* recorded: the same on every machine */
    fm_suite *big = parsed("suite: s\ntemplates:\n  - {name: '{#}', sample: 50, prompt: "
                           "'{cities1}{cities2}{cities3}{cities4}{cities5}{cities6}'" TAIL "}\n");
    assert_int_equal(fm_suite_count(big), 50);
    fm_suite_free(big);
}

TEST(bad_templates_are_refused)
{
    refused(LEX "  - {name: n, prompt: '{person.age}'" TAIL "}\n", FM_EINVAL, "no field 'age'");
    refused(LEX "  - {name: n, prompt: '{nobody}', slots: {x: [1]}" TAIL "}\n", FM_EINVAL,
            "'{nobody}' names no slot");
    refused(LEX "  - {name: n, prompt: '{x}', slots: {x: {lexicon: nope}}" TAIL "}\n", FM_EINVAL,
            "no lexicon 'nope'");
    refused(LEX "  - {name: n, prompt: '{pet}', seed: 3" TAIL "}\n", FM_EINVAL, "'seed' says");
    refused(LEX "  - {name: n, prompt: '{pet}', sample: 0" TAIL "}\n", FM_EINVAL, "'sample' wants");
    refused(LEX "  - {name: n, prompt: '{pet}', nested: 1" TAIL "}\n", FM_EINVAL, "'nested'");
    refused("suite: s\nlexicons: [a]\n", FM_EINVAL, "'lexicons' wants");
    refused("suite: s\nlexicons: {'a b': [x]}\n", FM_EINVAL, "lexicon 'a b'");
    refused("suite: s\nlexicons: {a: []}\n", FM_EINVAL, "lexicons.a wants");
    refused("suite: s\nlexicons: {a: [[x]]}\n", FM_EINVAL, "lexicons.a[0]");
    refused("suite: s\nlexicons: {a: [{x: [1]}]}\n", FM_EINVAL, "lexicons.a[0]");
    refused("suite: s\nlexicons: {a: [{x: 1}]}\ntemplates: [{name: n, prompt: '{a}'" TAIL "}]\n",
            FM_EINVAL, "say which field");
}

TEST(bombs_end_soon)
{
    /* 8 levels of 30 slots each */
    fm_buf b;
    fm_suite *s = NULL;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "suite: s\nlexicons:\n");
    for (int level = 0; level < 7; level++) {
        fm_buf_printf(&b, "  l%c: ['", 'a' + level);
        for (int i = 0; i < 30; i++)
            fm_buf_printf(&b, "{l%c}", 'b' + level);
        fm_buf_str(&b, "']\n");
    }
    fm_buf_str(&b, "  lh: ['']\ntemplates:\n  - {name: n, prompt: '{la}'" TAIL "}\n");
    tk_fails(fm_suite_parse(&s, fm_buf_span(&b), "f.yaml"), FM_ELIMIT, "slots");
    fm_buf_release(&b);
    /* too many numbered draws of a list: 13! dead ends */
    refused("suite: s\nlexicons: {x: [1,2,3,4,5,6,7,8,9,10,11,12,13]}\ntemplates:\n  - {name: n, "
            "prompt: '{x1}{x2}{x3}{x4}{x5}{x6}{x7}{x8}{x9}{x10}{x11}{x12}{x13}{x14}'" TAIL "}\n",
            FM_ELIMIT, "steps");
    /* draws from long lists: the cost of one does not grow with them */
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "suite: s\ntemplates:\n  - {name: '{#}', sample: 4000, prompt: '");
    for (int i = 1; i <= 32; i++)
        fm_buf_printf(&b, "{x%d}", i);
    fm_buf_str(&b, "'" TAIL ", slots: {x: [0");
    for (int i = 1; i < 20000; i++)
        fm_buf_printf(&b, ",%d", i);
    fm_buf_str(&b, "]}}\n");
    s = parsed(fm_buf_cstr(&b));
    assert_int_equal(fm_suite_count(s), 4000);
    fm_suite_free(s);
    fm_buf_release(&b);
    refused("suite: s\na: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
            "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
            "cases: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
            FM_ELIMIT, "aliases expand");
}

/* ---- perturb, tags, slices ---- */

TEST(perturb_makes_pairs)
{
    fm_suite *s = parsed(
        "suite: s\ncases:\n"
        "  - {name: i, chat: 'Is not Anna in Rome?', expect: {contains: x}, perturb: [typos, "
        "{names: {count: 3}}, {prefix: 'Well,'}, contractions]}\n"
        "  - {name: d, prompt: It is good., continuation: x, direction: decreases, "
        "perturb: {negation: add}}\n"
        "templates:\n  - {name: 't-{x}', prompt: '{x}', perturb: [numbers, {casing: upper}], "
        "slots: {x: [it is, 7, '-']}}\n");
    assert_int_equal(fm_suite_count(s), 4); /* '-' has neither digits nor letters */
    assert_int_equal(s->cases[0].kind, FMV_INV);
    assert_int_equal(s->cases[0].prompt_count, 1 + 1 + 3 + 1 + 1);
    assert_string_equal(fm_json_cstr(s->cases[0].prompt[0], ""), "Is not Anna in Rome?");
    assert_string_equal(fm_json_cstr(s->cases[0].prompt[6], ""), "Isn't Anna in Rome?");
    assert_int_equal(s->cases[1].kind, FMV_DIR);
    assert_true(s->cases[1].against_first);
    assert_string_equal(fm_json_cstr(s->cases[1].prompt[1], ""), "It is not good.");
    assert_string_equal(fm_suite_case_name(s, 2), "t-it is");
    assert_string_equal(fm_json_cstr(s->cases[2].prompt[1], ""), "IT IS");
    assert_string_equal(fm_suite_case_name(s, 3), "t-7");
    fm_suite_free(s);
#define BAD(keys, needle)                                                                          \
    refused("suite: s\ncases:\n  - {name: c, prompt: ab cd, " keys "}\n", FM_EINVAL, needle)
    BAD("perturb: []", "1 to 32");
    BAD("perturb: typoes", "unknown perturbation 'typoes'");
    BAD("perturb: [names]", "perturb.names finds nothing to change");
    BAD("perturb: {typos: {k: 3}}", "perturb.typos has no option 'k'");
    BAD("perturb: {typos: {n: 0}}", "perturb.typos.n wants");
    BAD("perturb: {casing: up}", "upper, lower, title");
    BAD("perturb: [prefix]", "wants its text");
    BAD("perturb: {names: {lexicon: zzz}}", "no lexicon 'zzz'");
    BAD("kind: MFT, perturb: typos", "kind INV or DIR");
    refused("suite: s\ncases:\n  - {name: c, prompt: [a, b], perturb: typos}\n", FM_EINVAL,
            "a string");
    refused("suite: s\ntemplates:\n  - {name: c, prompt: '{x}', perturb: names, slots: {x: [b]}}\n",
            FM_EINVAL, "nothing to change in any");
    refused("suite: s\ncases:\n  - {name: c, prompt: abcdef ghijkl mnopqr stuvwxyz Abcdef, "
            "perturb: [{typos: {n: 4, count: 63}}, {neutral: {count: 10}}]}\n",
            FM_ELIMIT, "64 prompts");
}

TEST(slices_are_told)
{
    fm_suite *s = parsed(
        "suite: s\ncases:\n  - {name: a, prompt: p, expect: {contains: x}, capability: negation, "
        "tags: {gender: f, level: '3'}}\n  - {name: b, kind: INV, prompt: [p, q]}\n");
    assert_int_equal(fm_suite_case_kind(s, 0), FM_CASE_MFT);
    assert_int_equal(fm_suite_case_kind(s, 1), FM_CASE_INV);
    assert_string_equal(fm_suite_case_capability(s, 0), "negation");
    assert_string_equal(fm_suite_case_capability(s, 1), "");
    assert_string_equal(fm_suite_case_tag(s, 0, "level"), "3");
    assert_null(fm_suite_case_tag(s, 1, "level"));
    assert_true(fm_suite_case_matches(s, 0, "gender", "f"));
    assert_false(fm_suite_case_matches(s, 0, "gender", "m"));
    assert_false(fm_suite_case_matches(s, 1, "gender", ""));
    assert_true(fm_suite_case_matches(s, 1, "kind", "INV"));
    assert_true(fm_suite_case_matches(s, 0, "capability", "negation"));
    assert_true(fm_suite_case_matches(s, 1, "name", "b"));
    fm_suite *plain = parsed("suite: s\ncases: [{name: a, prompt: p, expect: {contains: x}}]\n");
    fm_digest p = fm_suite_case_digest(s, 0), q = fm_suite_case_digest(plain, 0);
    assert_true(fm_digest_eq(&p, &q)); /* filing a case elsewhere runs nothing anew */
    fm_suite_free(s);
    fm_suite_free(plain);
    BAD("expect: {contains: x}, tags: []", "'tags' wants");
    BAD("expect: {contains: x}, tags: {a: 3}", "tags.a wants text");
    BAD("expect: {contains: x}, tags: {kind: x}", "cannot be named 'kind'");
    BAD("expect: {contains: x}, capability: 3", "'capability' wants");
    BAD("expect: {contains: x}, against: first", "'against' says nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lexicons_fill_what_no_slot_names),
        cmocka_unit_test(numbered_slots_are_different),
        cmocka_unit_test(nested_slots_make_nothing_twice),
        cmocka_unit_test(articles_follow_the_sound),
        cmocka_unit_test(samples_are_some_of_all),
        cmocka_unit_test(bad_templates_are_refused),
        cmocka_unit_test(bombs_end_soon),
        cmocka_unit_test(perturb_makes_pairs),
        cmocka_unit_test(slices_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
