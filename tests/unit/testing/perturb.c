/* Perturbations: what each does to a text, where it does not apply, that it is a function of text
 * and seed; `perturb` in a case; perturbed forms of a case. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/cases/perturb.h"
#include "tests/testkit.h"

/* The perturbed text, "-" when it does not apply. Static: one at a time. */
static const char *done(fmv_perturbation p, const char *text, uint64_t seed)
{
    static char kept[4][512];
    static unsigned at;
    char *out = kept[at++ % 4];
    bool applies;
    fm_buf b;
    fm_buf_init(&b, 0);
    if (!p.n)
        p.n = 1;
    tk_ok(fmv_perturb(&b, &p, fm_span_str(text), seed, &applies));
    snprintf(out, 512, "%s", applies ? fm_buf_cstr(&b) : "-");
    if (!applies)
        assert_int_equal(b.len, 0);
    fm_buf_release(&b);
    return out;
}

static void check(fmv_perturb_kind kind, fmv_perturb_mode mode, const char *text, const char *want)
{
    fmv_perturbation p = {.kind = kind, .mode = mode};
    assert_string_equal(done(p, text, 1), want);
}

TEST(contractions_go_both_ways)
{
    check(FMV_CONTRACTIONS, FMV_MODE_ANY, "The sky is not red. Do not go.",
          "The sky isn't red. Don't go.");
    check(FMV_CONTRACTIONS, FMV_MODE_EXPAND, "It isn't. I can't; what's new?",
          "It is not. I cannot; what is new?");
    check(FMV_CONTRACTIONS, FMV_MODE_ANY, "What's this?", "What is this?");
    check(FMV_CONTRACTIONS, FMV_MODE_CONTRACT, "What's this?", "-");
    check(FMV_CONTRACTIONS, FMV_MODE_CONTRACT, "Yes, it is.", "-");
    check(FMV_CONTRACTIONS, FMV_MODE_ANY, "Paris is big", "-");
    check(FMV_CONTRACTIONS, FMV_MODE_ANY, "Chris notes", "-");
}

TEST(negation_adds_removes_or_says_no)
{
    check(FMV_NEGATION, FMV_MODE_ANY, "The food is good.", "The food is not good.");
    check(FMV_NEGATION, FMV_MODE_ANY, "The food is not good.", "The food is good.");
    check(FMV_NEGATION, FMV_MODE_ANY, "It isn't good.", "It is good.");
    check(FMV_NEGATION, FMV_MODE_ANY, "Is the sky blue?", "Isn't the sky blue?");
    check(FMV_NEGATION, FMV_MODE_ANY, "Which city is big?", "Which city isn't big?");
    check(FMV_NEGATION, FMV_MODE_ANY, "We like tea.", "We do not like tea.");
    check(FMV_NEGATION, FMV_MODE_ANY, "I don't like tea.", "I like tea.");
    check(FMV_NEGATION, FMV_MODE_ANY, "You cannot win", "You can win");
    check(FMV_NEGATION, FMV_MODE_ANY, "Does it rain?", "Doesn't it rain?");
    check(FMV_NEGATION, FMV_MODE_ANY, "Do it now.", "-");
    check(FMV_NEGATION, FMV_MODE_ANY, "I did it.", "-");
    check(FMV_NEGATION, FMV_MODE_ANY, "Never mind the rain", "-");
    check(FMV_NEGATION, FMV_MODE_ADD, "It is not good.", "-");
    check(FMV_NEGATION, FMV_MODE_REMOVE, "It is good.", "-");
    check(FMV_NEGATION, FMV_MODE_ANY, "The dog barks.", "-");
}

TEST(letters_and_marks)
{
    check(FMV_CASING, FMV_MODE_UPPER, "go to Rome, it's ö", "GO TO ROME, IT'S ö");
    check(FMV_CASING, FMV_MODE_LOWER, "Go To ROME", "go to rome");
    check(FMV_CASING, FMV_MODE_TITLE, "it's a 2nd try", "It's A 2nd Try");
    check(FMV_CASING, FMV_MODE_LOWER, "go", "-");
    check(FMV_PUNCTUATION, FMV_MODE_ANY, "Hi, is 3.5 enough?", "Hi is 3.5 enough");
    check(FMV_PUNCTUATION, FMV_MODE_ANY, "Hi there", "Hi there.");
    check(FMV_PUNCTUATION, FMV_MODE_ADD, "Why? ", "Why?? ");
    check(FMV_PUNCTUATION, FMV_MODE_REMOVE, "Hi there", "-");
    check(FMV_WHITESPACE, FMV_MODE_ANY, "one two", "one  two");
    check(FMV_WHITESPACE, FMV_MODE_ANY, "one", " one");
    fmv_perturbation p = {.kind = FMV_PREFIX, .text = "Well,"};
    assert_string_equal(done(p, "go", 0), "Well, go");
    p = (fmv_perturbation){.kind = FMV_SUFFIX, .text = "Thanks."};
    assert_string_equal(done(p, "Go.", 0), "Go. Thanks.");
}

/* The letters stay, two neighbours of a word change places, digits never do. */
TEST(typos_swap_neighbours)
{
    const char *text = "The tower of 1889 stands in Paris";
    bool several = false;
    char first[64] = "";
    for (uint64_t seed = 0; seed < 50; seed++) {
        fmv_perturbation p = {.kind = FMV_TYPOS, .n = 1};
        const char *t = done(p, text, seed);
        size_t differ = 0, at = 0;
        assert_int_equal(strlen(t), strlen(text));
        assert_non_null(strstr(t, " 1889 "));
        for (size_t i = 0; text[i]; i++)
            if (t[i] != text[i] && !differ++)
                at = i;
        assert_int_equal(differ, 2);
        assert_int_equal(t[at], text[at + 1]);
        assert_int_equal(t[at + 1], text[at]);
        assert_string_equal(t, done(p, text, seed));
        several = several || (*first && strcmp(first, t) != 0);
        snprintf(first, sizeof first, "%s", t);
    }
    assert_true(several);
    fmv_perturbation many = {.kind = FMV_TYPOS, .n = 100};
    assert_string_not_equal(done(many, text, 3), text);
    check(FMV_TYPOS, FMV_MODE_ANY, "a 12 oO", "-");
}

TEST(swaps_are_alike_everywhere)
{
    fmv_perturbation p = {.kind = FMV_NAMES};
    const char *t = done(p, "Anna met Omar. Annabel saw Anna's dog.", 5);
    char name[32] = "";
    if (strncmp(t, "Anna met", 8) == 0) { /* Omar went */
        assert_null(strstr(t, "Omar"));
        assert_non_null(strstr(t, "Annabel saw Anna's"));
    } else {
        assert_int_equal(sscanf(t, "%31[^ ] met Omar", name), 1);
        assert_null(strstr(t, "Anna'"));
        assert_non_null(strstr(strstr(t, "Annabel saw "), name));
    }
    for (uint64_t seed = 0; seed < 20; seed++) {
        p = (fmv_perturbation){.kind = FMV_LOCATIONS};
        t = done(p, "He left Mexico City for Peru", seed);
        assert_true(!strstr(t, "Mexico City") != !strstr(t, "Peru"));
        assert_null(strstr(t, "Mexico C i")); /* the longest entry is taken, never half of it */
        p = (fmv_perturbation){.kind = FMV_NUMBERS};
        t = done(p, "17 and 17, not 3.14 nor x17", seed);
        int a = 0, b = 0;
        assert_int_equal(sscanf(t, "%d and %d, not 3.14 nor x17", &a, &b), 2);
        assert_true(a == b && a != 17 && a >= 10 && a <= 99);
    }
    check(FMV_NAMES, FMV_MODE_ANY, "the sky", "-");
    check(FMV_NUMBERS, FMV_MODE_ANY, "3.5 or 2024-01-02", "-");
}

static fm_suite *parsed(const char *yaml)
{
    fm_suite *s = NULL;
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    return s;
}

TEST(perturbed_forms_expect_the_same)
{
    fm_suite *s =
        parsed("suite: s\ngenerate: {max-tokens: 5}\ncases:\n"
               "  - {name: a, chat: What is the capital of France?, expect: {contains: Paris}}\n"
               "  - {name: m, messages: [{role: system, content: Be brief.}, "
               "{role: user, content: Who is it?}], expect: {contains: me}}\n"
               "  - {name: d, kind: DIR, prompt: [The capital is, In France the capital is], "
               "continuation: ' Paris', direction: increases}\n"
               "  - {name: bare, prompt: '7', expect: {contains: '8'}}\n");
    fm_suite *f = NULL, *again = NULL;
    tk_ok(fm_suite_perturbed(&f, s, 0, 7, 20));
    tk_ok(fm_suite_perturbed(&again, s, 0, 7, 20));
    assert_int_equal(fm_suite_count(f), 20);
    for (size_t i = 0; i < 20; i++) {
        fm_digest x = fm_suite_case_digest(f, i), y = fm_suite_case_digest(again, i),
                  own = fm_suite_case_digest(s, 0);
        assert_true(fm_digest_eq(&x, &y));
        assert_false(fm_digest_eq(&x, &own));
        assert_int_equal(f->cases[i].max_tokens, 5);
        assert_string_equal(fm_json_cstr(f->cases[i].assertion[0].value, ""), "Paris");
        for (size_t k = 0; k < i; k++) {
            y = fm_suite_case_digest(f, k);
            assert_false(fm_digest_eq(&x, &y));
        }
    }
    assert_string_equal(fm_suite_case_name(f, 0), "a~neutral-1");
    fm_suite_free(f);
    fm_suite_free(again);
    tk_ok(fm_suite_perturbed(&f, s, 1, 7, 4));
    assert_string_equal(
        fm_json_cstr(fm_json_get(fm_json_at(f->cases[0].prompt[0], 0), "content"), ""),
        "Be brief.");
    assert_non_null(
        strstr(fm_json_cstr(fm_json_get(fm_json_at(f->cases[0].prompt[0], 1), "content"), ""),
               " Who is it?"));
    fm_suite_free(f);
    tk_ok(fm_suite_perturbed(&f, s, 2, 7, 1)); /* both prompts get one and the same sentence */
    const char *p = fm_json_cstr(f->cases[0].prompt[0], ""),
               *q = fm_json_cstr(f->cases[0].prompt[1], "");
    assert_int_equal(f->cases[0].prompt_count, 2);
    assert_memory_equal(p, q, (size_t)(strstr(p, "The capital") - p));
    fm_suite_free(f);
    tk_ok(fm_suite_perturbed(&f, s, 3, 7, 1));
    assert_string_equal(fm_suite_case_name(f, 0), "bare~neutral-1");
    fm_suite_free(f);
    fm_suite_free(s);
}

/* Under a sanitizer that counts, nothing is lost either. */
TEST(forms_of_a_conversation_survive_a_lack_of_memory)
{
    fm_suite *s = NULL;
    fm_status rc = FM_ENOMEM;
    tk_ok(fm_suite_parse(&s,
                         fm_span_str("suite: t\ncases:\n- name: a\n  messages:\n"
                                     "  - {role: system, content: Be brief.}\n"
                                     "  - {role: user, content: What is not here?}\n"
                                     "  expect: {contains: x}\n"
                                     "- {name: b, kind: INV, prompt: [Who is it?, Where is it?],"
                                     " expect: {contains: x}}\n"),
                         "t"));
    for (size_t i = 0; i < 2; i++, rc = FM_ENOMEM) {
        for (uint64_t nth = 1; rc == FM_ENOMEM && nth < 5000; nth++) {
            fm_suite *f = NULL;
            fm_mem_fail_at(nth, false);
            rc = fm_suite_perturbed(&f, s, i, 7, 3);
            fm_mem_fail_at(0, false);
            assert_true(rc == FM_OK || rc == FM_ENOMEM);
            fm_suite_free(f);
        }
        tk_ok(rc);
    }
    fm_suite_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contractions_go_both_ways),
        cmocka_unit_test(negation_adds_removes_or_says_no),
        cmocka_unit_test(letters_and_marks),
        cmocka_unit_test(typos_swap_neighbours),
        cmocka_unit_test(swaps_are_alike_everywhere),
        cmocka_unit_test(perturbed_forms_expect_the_same),
        cmocka_unit_test(forms_of_a_conversation_survive_a_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
