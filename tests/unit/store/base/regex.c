/* Regular expressions: what Python's re makes of the patterns in PEFT's configs, and the bounds. */
#include "tests/testkit.h"

#include <string.h>

#include "store/base/text/regex.h"

#define LAYER "model.layers.12.self_attn.q_proj"

/* Each verdict is that of Python 3.11's re.fullmatch. */
TEST(a_pattern_means_what_it_means_to_python)
{
    static const struct {
        const char *pattern, *text;
        bool want;
    } cases[] = {
        {".*\\.q_proj", LAYER, true},
        {".*\\.(q|k)_proj", LAYER, true},
        {".*q_pro", LAYER, false},
        {"layers.*", LAYER, false},
        {"model\\.layers\\.\\d{1,2}\\..*", LAYER, true},
        {"model\\.layers\\.\\d{3,}\\..*", LAYER, false},
        {"model\\.layers\\.(?:1[0-9]|2\\d)\\.self_attn\\.[qkv]_proj", LAYER, true},
        {"(?!.*mlp).*_proj", LAYER, true},
        {"(?!.*self_attn).*_proj", LAYER, false},
        {".*(?<=\\.)q_proj$", LAYER, true},
        {".*[^\\W_]", LAYER, true},
        {"[^\\d]*", LAYER, false},
        {"(?P<part>\\w+)(\\.(?P=part))*", "a.a.a", true},
        {"(?i)MODEL.*?", LAYER, true},
        {"a|ab", "ab", true}, /* a whole match is looked for, not the first one */
        {"\\w+", "caf\xc3\xa9", true},
        {"[]x]+", "]x]", true},
        {"a.c", "a\nc", false},
        {"", "", true},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        bool got = !cases[i].want;
        tk_ok(fm_pattern_matches(&got, cases[i].pattern, cases[i].text, "here"));
        if (got != cases[i].want)
            fail_msg("'%s' on '%s'", cases[i].pattern, cases[i].text);
    }
}

TEST(what_python_does_not_know_is_refused_by_name)
{
    static const struct {
        const char *pattern;
        fm_status rc;
        const char *needle;
    } cases[] = {
        {"a\\Kb", FM_EUNSUPPORTED, "'a\\Kb' is not supported: an escape"},
        {"\\Qa\\E", FM_EUNSUPPORTED, "an escape"},
        {"(?R)", FM_EUNSUPPORTED, "a group"},
        {"a(?", FM_EINVAL, "offset"},
        {"(?P<a>x)(?P>a)", FM_EUNSUPPORTED, "a group"},
        {"(?<n>a)", FM_EUNSUPPORTED, "a group"},
        {"(?(DEFINE)b)a", FM_EUNSUPPORTED, "a group"},
        {"(?-i)a", FM_EUNSUPPORTED, "a group"},
        {"\\x{61}", FM_EUNSUPPORTED, "an escape"},
        {"(*FAIL)", FM_EUNSUPPORTED, "a verb"},
        {"[[:alpha:]]", FM_EUNSUPPORTED, "a named class"},
        {"a{,3}", FM_EUNSUPPORTED, "a repeat without a lower bound"},
        {"a\\", FM_EUNSUPPORTED, "a trailing backslash"},
        {"a(b", FM_EINVAL, "here: the regular expression 'a(b': "},
        {"ab**", FM_EINVAL, "at offset 3"},
    };
    bool got;
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++)
        tk_fails(fm_pattern_matches(&got, cases[i].pattern, "a", "here"), cases[i].rc,
                 cases[i].needle);
}

TEST(an_empty_pattern_is_one)
{
    fm_regex *re;
    fm_regex_run *run;
    size_t begin = 9, end = 9;
    bool found;
    tk_ok(fm_regex_new(&re, (fm_span){0}, FM_REGEX_OFTEN, "here"));
    tk_ok(fm_regex_run_new(&run, 1000, 1000));
    tk_ok(fm_regex_next(re, run, fm_span_str("a"), 0, &found, &begin, &end));
    assert_true(found && begin == 0 && end == 0);
    fm_regex_run_free(run);
    fm_regex_free(re);
    tk_ok(fm_regex_new(&re, fm_span_str("(*NO_JIT)a"), FM_REGEX_OFTEN, "here"));
    tk_ok(fm_regex_run_new(&run, 1000, 1000));
    tk_ok(fm_regex_next(re, run, fm_span_str("ba"), 0, &found, &begin, &end));
    assert_true(found && begin == 1 && end == 2);
    fm_regex_run_free(run);
    fm_regex_free(re);
}

TEST(work_has_bounds)
{
    char text[65], pattern[1100];
    bool got;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 2] = 'x';
    text[sizeof text - 1] = '\0';
    tk_fails(fm_pattern_matches(&got, "(a|aa)+", text, "here"), FM_ELIMIT, "'(a|aa)+' gave up");
    tk_fails(fm_pattern_matches(&got, "((((a{999}){999}){999}){999}){999}", text, "here"),
             FM_EINVAL, "too large");
    memset(pattern, 'a', sizeof pattern - 1);
    pattern[sizeof pattern - 1] = '\0';
    tk_fails(fm_pattern_matches(&got, pattern, text, "here"), FM_ELIMIT, "1024 bytes");
}

/* The steps in vain of one run, for all its matches. */
TEST(a_run_gives_up_for_all_its_matches)
{
    fm_span text = fm_span_str("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    const size_t *spans;
    size_t groups, begin, end;
    bool found;
    for (unsigned flags = 0; flags <= FM_REGEX_OFTEN; flags += FM_REGEX_OFTEN) {
        fm_regex *re;
        fm_regex_run *run;
        tk_ok(fm_regex_new(&re, fm_span_str("(a|aa)+b|(c)"), flags, "here"));
        tk_ok(fm_regex_run_new(&run, 1000000, 5000));
        tk_fails(fm_regex_next(re, run, text, 0, &found, &begin, &end), FM_ELIMIT, "gave up");
        assert_false(found);
        tk_ok(fm_regex_next(re, run, fm_span_str("xxc"), 1, &found, &begin, &end));
        assert_true(found);
        assert_int_equal(begin, 2);
        assert_int_equal(end, 3);
        spans = fm_regex_groups(run, &groups);
        assert_int_equal(groups, 3);
        assert_true(spans[2] == SIZE_MAX);
        assert_int_equal(spans[4], 2);
        fm_regex_run_free(run);
        fm_regex_free(re);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_means_what_it_means_to_python),
        cmocka_unit_test(what_python_does_not_know_is_refused_by_name),
        cmocka_unit_test(an_empty_pattern_is_one),
        cmocka_unit_test(work_has_bounds),
        cmocka_unit_test(a_run_gives_up_for_all_its_matches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
