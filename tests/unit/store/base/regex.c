/* Regular expressions: what Python's re makes of the patterns in PEFT's configs, and the bounds. */
#include "tests/testkit.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "store/base/cancel.h"
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

static fm_status first_match(const char *pattern, fm_span text, size_t from, bool *found,
                             size_t *begin, size_t *end)
{
    fm_regex *re;
    fm_regex_run *run;
    tk_ok(fm_regex_new(&re, fm_span_str(pattern), 0, "here"));
    tk_ok(fm_regex_run_new(&run, 1000000, 10000000));
    fm_status rc = fm_regex_next(re, run, text, from, found, begin, end);
    fm_regex_run_free(run);
    fm_regex_free(re);
    return rc;
}

/* A text of n times `unit`, then `tail`. */
static char *long_text(const char *unit, size_t n, const char *tail)
{
    size_t len = strlen(unit);
    char *text = fm_malloc(n * len + strlen(tail) + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, unit, len);
    memcpy(text + n * len, tail, strlen(tail) + 1);
    return text;
}

/* The bound of one match holds at each place where it may begin: 80,000 of them took a minute. */
TEST(all_places_of_a_search_have_one_bound)
{
    char *text = long_text("a", 80000, "");
    size_t begin, end;
    bool found;
    tk_fails(first_match("\\w+\\d", fm_span_str(text), 0, &found, &begin, &end), FM_ELIMIT,
             "gave up");
    fm_free(text);
}

TEST(a_search_of_a_long_text_finds_its_first_match)
{
    static const struct {
        const char *pattern;
        bool far; /* found where the tail is, though it may begin nowhere else */
    } cases[] = {{"x\\d", true},
                 {"(?<=\xc3\xa9)x", true},
                 {"x.$", true},
                 {"\\bx1", false},
                 {"^x", false},
                 {"\\Gx", false},
                 {"\\Ax", false},
                 {"(?m)^x1$", false},
                 {"(?:^|\xc3\xa9)x", true}};
    for (size_t n = 0; n < 300; n = n < 140 ? n + 1 : n + 37) {
        char *text = long_text("\xc3\xa9", n, "x1");
        for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
            size_t begin = 0, end = 0;
            bool found;
            tk_ok(first_match(cases[i].pattern, fm_span_str(text), 0, &found, &begin, &end));
            bool behind = strncmp(cases[i].pattern, "(?<=", 4) == 0 ||
                          strncmp(cases[i].pattern, "(?:^", 4) == 0;
            if (found != (n == 0 ? !behind || cases[i].pattern[2] == ':' : cases[i].far))
                fail_msg("'%s' behind %zu characters: %d", cases[i].pattern, n, found);
            if (found)
                assert_int_equal(begin, n > 0 && cases[i].pattern[2] == ':' ? 2 * n - 2 : 2 * n);
        }
        fm_free(text);
    }
}

static void *cancel_soon(void *arg)
{
    (void)arg;
    (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    fm_cancel(true);
    return NULL;
}

/* The whole search is 10^11 comparisons. */
TEST(a_search_sees_a_request_to_stop)
{
    char *text = long_text("a", 500000, "");
    size_t begin, end;
    bool found;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, NULL), 0);
    tk_fails(first_match("a++\\d", fm_span_str(text), 0, &found, &begin, &end), FM_ECANCELLED,
             "stopped");
    assert_int_equal(pthread_join(thread, NULL), 0);
    fm_cancel(false);
    fm_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_means_what_it_means_to_python),
        cmocka_unit_test(what_python_does_not_know_is_refused_by_name),
        cmocka_unit_test(an_empty_pattern_is_one),
        cmocka_unit_test(work_has_bounds),
        cmocka_unit_test(a_run_gives_up_for_all_its_matches),
        cmocka_unit_test(all_places_of_a_search_have_one_bound),
        cmocka_unit_test(a_search_of_a_long_text_finds_its_first_match),
        cmocka_unit_test(a_search_sees_a_request_to_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
