/* The official cases of JSON Schema over both readers of schemas: the assertion gives the verdict
 * of the case or refuses the schema by name; the grammar refuses it, or takes what is valid as it
 * writes it and nothing that is not. Debian 12's json-schema-test-suite has draft 7 at the latest;
 * a folder of draft 2020-12 is read too where the reference data has one. */
#include <stdio.h>
#include <string.h>

#include "infer/grammar.h"
#include "store/base/math/rng.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"
#include "testing/assert/assert.h"
#include "tests/testkit.h"

#define DRAFT7 "/usr/share/json-schema-test-suite/tests/draft7"
#define MEMBERS_MAX 6
#define DRAWS 20 /* texts of each schema that the grammar takes */

typedef struct tally {
    size_t schemas, texts;
    size_t assertion_refuses, grammar_refuses; /* schemas */
    size_t judged, taken, rejected, unwritten; /* texts */
    size_t drawn, wrong;
    bool before_2019; /* the draft */
} tally;

/* What is valid and never written, by the choices of infer/grammar.h. */
static const char *const by_choice[] = {
    "ignore", /* values of other types than the keywords speak of */
    "JavaScript pseudo-array is valid",
    "root pointer ref",                            /* so too: its members are 'true' and 'false' */
    "additionalProperties are allowed by default", /* where some are declared, these alone */
    "doesn't invalidate other properties", "anyOf complex types: both anyOf valid (complex)",
    "string is only an annotation by default",
    /* values of const and enum as they stand, and whole numbers without a point */
    "float zero is valid", "float one is valid", "[0.0] is valid", "[1.0] is valid",
    "integer -2 is valid", "float is valid", "a float with zero fractional part is an integer"};

static bool in_grammar(fm_grammar *g, const fm_json *v)
{
    fm_grammar_state *st;
    fm_buf text;
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, v, FM_JSON_COMPACT));
    tk_ok(fm_grammar_state_new(&st, g, NULL));
    bool yes = fm_grammar_accept_bytes(st, fm_buf_span(&text)) == FM_OK && fm_grammar_complete(st);
    fm_grammar_state_free(st);
    fm_buf_release(&text);
    return yes;
}

/* Any order of the members of an object: the grammar has one of its own. */
static bool in_some_order(fm_grammar *g, const fm_json *v, fm_json *so_far)
{
    size_t n = fm_json_count(v);
    if (fm_json_count(so_far) == n)
        return in_grammar(g, so_far);
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        if (fm_json_get(so_far, fm_json_iter_key(it)))
            continue;
        fm_json *more = fm_json_copy(so_far);
        tk_ok(fm_json_set(more, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
        bool yes = in_some_order(g, v, more);
        fm_json_free(more);
        if (yes)
            return true;
    }
    return false;
}

static bool takes(fm_grammar *g, const fm_json *v)
{
    if (!fm_json_is(v, FM_JSON_OBJECT) || fm_json_count(v) > MEMBERS_MAX)
        return in_grammar(g, v);
    fm_json *none = fm_json_new_object();
    bool yes = in_some_order(g, v, none);
    fm_json_free(none);
    return yes;
}

static bool is_choice(const fm_json *group, const fm_json *one)
{
    char text[512];
    snprintf(text, sizeof text, "%s: %s", fm_json_cstr(fm_json_get(group, "description"), ""),
             fm_json_cstr(fm_json_get(one, "description"), ""));
    for (size_t i = 0; i < FM_ARRAY_LEN(by_choice); i++)
        if (strstr(text, by_choice[i]))
            return true;
    return false;
}

static void note(tally *t, const char *file, const fm_json *group, const fm_json *one,
                 const char *what)
{
    printf("%s: %s: %s: %s\n", file, fm_json_cstr(fm_json_get(group, "description"), ""),
           fm_json_cstr(fm_json_get(one, "description"), ""), what);
    t->wrong++;
}

/* Until draft 7 what stands beside '$ref' is ignored; since 2019-09, and here, it holds too. */
static bool differs(const tally *t, const fm_json *group)
{
    return t->before_2019 && strcmp(fm_json_cstr(fm_json_get(group, "description"), ""),
                                    "ref overrides any sibling keywords") == 0;
}

/* The error names what is not understood, or says that no value is valid, which is then so. */
static bool is_named(const fm_json *tests)
{
    bool named = strchr(fm_error_text(), '\'') || strstr(fm_error_text(), "$ref");
    bool none = strstr(fm_error_text(), "no value satisfies it") != NULL;
    for (size_t i = 0; i < fm_json_count(tests); i++)
        none = none && !fm_json_bool(fm_json_get(fm_json_at(tests, i), "valid"), true);
    return named || none;
}

/* A format is a promise of the grammar's texts: it writes some emails, and need not know all. */
static bool is_format(void)
{
    return strstr(fm_error_text(), "'format'") != NULL;
}

static void run_text(tally *t, const char *file, const fm_json *group, const fm_json *one,
                     const fmv_schema *s, fm_grammar *g)
{
    const fm_json *v = fm_json_get(one, "data");
    bool want = fm_json_bool(fm_json_get(one, "valid"), false), valid = false;
    uint32_t steps = 0;
    char why[200];
    t->texts++;
    if (s) {
        tk_ok(fmv_schema_check(s, v, &steps, &valid, why, sizeof why));
        t->judged++;
        if (valid != want && !differs(t, group))
            note(t, file, group, one, "the assertion is wrong");
    }
    if (!g)
        return;
    bool yes = takes(g, v);
    t->taken += yes && want;
    t->rejected += !yes && !want;
    t->unwritten += !yes && want;
    if (yes && !want)
        note(t, file, group, one, "the grammar takes what is not valid");
    if (!yes && want && !is_choice(group, one) && !differs(t, group))
        note(t, file, group, one, "the grammar does not write what is valid");
}

/* A text that the grammar writes, byte by byte. False: none within 200 bytes. */
static bool draw(fm_buf *out, fm_grammar *g, uint64_t seed)
{
    static const char some[] = "{}[]\":,\"abfor1029-.0 \\x ntuelsr", end[] = "\"}]\"}]1e:,\"";
    fm_grammar_state *st;
    uint64_t i = 0;
    bool done = false, stuck = false;
    tk_ok(fm_grammar_state_new(&st, g, NULL));
    while (!done && !stuck && out->len < 200) {
        stuck = true;
        for (int tries = 0; stuck && tries < 400; tries++) {
            bool late = out->len > 40 && tries < 40;
            uint8_t c = late          ? (uint8_t)end[fm_rng_below(seed, 1, i++, sizeof end - 1)]
                        : tries < 200 ? (uint8_t)some[fm_rng_below(seed, 1, i++, sizeof some - 1)]
                                      : (uint8_t)(32 + fm_rng_below(seed, 1, i++, 95));
            stuck = fm_grammar_accept_bytes(st, (fm_span){&c, 1}) < 0;
            if (!stuck)
                fm_buf_append(out, &c, 1);
        }
        done = fm_grammar_complete(st) &&
               (fm_grammar_ended(st) || stuck || fm_rng_below(seed, 2, i, 3) == 0);
    }
    fm_grammar_state_free(st);
    return done;
}

/* What the grammar writes, the assertion finds valid. */
static void run_drawn(tally *t, const char *file, const fm_json *group, const fmv_schema *s,
                      fm_grammar *g)
{
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        fm_buf text;
        fm_json *v = NULL;
        uint32_t steps = 0;
        bool valid;
        char why[200];
        fm_buf_init(&text, 0);
        /* One name twice is what may be written, and is not read. */
        if (draw(&text, g, seed) && fm_json_parse(&v, fm_buf_span(&text), "text") == FM_OK) {
            tk_ok(fmv_schema_check(s, v, &steps, &valid, why, sizeof why));
            t->drawn++;
            if (!valid)
                note(t, file, group, NULL, fm_buf_cstr(&text));
        }
        fm_json_free(v);
        fm_buf_release(&text);
    }
}

static void run_group(tally *t, const char *file, const fm_json *group)
{
    const fm_json *schema = fm_json_get(group, "schema"), *tests = fm_json_get(group, "tests");
    fmv_schema *s = NULL;
    fm_grammar *g = NULL;
    bool format = false;
    t->schemas++;
    if (fmv_schema_new(&s, schema, "schema") < 0) {
        t->assertion_refuses++;
        format = is_format();
        if (!is_named(tests))
            note(t, file, group, NULL, fm_error_text());
    }
    if (fm_grammar_new(&g, schema, true) < 0) {
        t->grammar_refuses++;
        if (!is_named(tests))
            note(t, file, group, NULL, fm_error_text());
    } else if (!s && !format) {
        note(t, file, group, NULL, "the grammar takes a schema that the assertion refuses");
    }
    for (size_t i = 0; i < fm_json_count(tests); i++)
        run_text(t, file, group, fm_json_at(tests, i), s, g);
    if (s && g)
        run_drawn(t, file, group, s, g);
    fmv_schema_free(s);
    fm_grammar_free(g);
}

static void run_file(tally *t, const char *dir, const char *name)
{
    size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 5, ".json") != 0)
        return;
    char *path = fm_path_join(dir, name);
    fm_json *groups;
    tk_ok(fm_json_parse_file(&groups, path, (size_t)1 << 24));
    for (size_t i = 0; i < fm_json_count(groups); i++)
        run_group(t, name, fm_json_at(groups, i));
    fm_json_free(groups);
    fm_free(path);
}

static tally run_folder(const char *dir, bool before_2019)
{
    tally t = {.before_2019 = before_2019};
    fm_names names;
    tk_ok(fm_list_dir(&names, dir));
    for (size_t i = 0; i < names.count; i++)
        run_file(&t, dir, names.name[i]);
    fm_names_release(&names);
    printf("%s: %zu schemas, %zu texts\n  assertion: refuses %zu schemas, judges %zu texts\n"
           "  grammar: refuses %zu schemas, takes %zu valid texts, rejects %zu invalid ones, does "
           "not write %zu valid ones,\n  writes %zu texts that the assertion finds valid\n  wrong: "
           "%zu\n",
           dir, t.schemas, t.texts, t.assertion_refuses, t.judged, t.grammar_refuses, t.taken,
           t.rejected, t.unwritten, t.drawn, t.wrong);
    return t;
}

TEST(draft_7_is_judged_right_or_refused)
{
    tally t = run_folder(DRAFT7, true);
    assert_int_equal(t.wrong, 0);
    assert_true(t.judged >= 300 && t.taken >= 70 && t.rejected >= 90); /* of 423 */
    assert_true(t.drawn >= 500);
}

TEST(draft_2020_12_is_judged_right_or_refused)
{
    char *dir = tk_shared("json-schema-test-suite/tests/draft2020-12");
    if (!dir) {
        printf("no draft 2020-12 among the reference data\n");
        skip();
    }
    tally t = run_folder(dir, false);
    assert_int_equal(t.wrong, 0);
    fm_free(dir);
}

/* Keywords that the official cases do not have: the readers take or refuse them together. */
TEST(keywords_are_taken_or_refused_by_both)
{
    static const struct {
        const char *schema;
        bool taken;
    } one[] = {
        {"{'type': 'string', 'title': 't', 'description': 'd', 'example': 'e', 'examples': ['e']}",
         true},
        {"{'type': 'string', 'default': 'd', 'deprecated': true, 'readOnly': true}", true},
        {"{'type': 'string', 'writeOnly': true, '$comment': 'c', '$defs': {'a': true}}", true},
        {"{'type': 'string', 'definitions': {'a': true}, 'nullable': false}", true},
        {"{'$schema': 'https://json-schema.org/draft/2020-12/schema', 'type': 'string'}", true},
        {"{'$schema': 'http://json-schema.org/draft-07/schema#', '$id': 'x', 'type': 'string'}",
         true},
        {"{'$schema': 'http://json-schema.org/draft-03/schema#', 'type': 'string'}", false},
        {"{'$schema': 'https://example.com/mine', 'type': 'string'}", false},
        {"{'properties': {'a': {'$id': 'x', 'type': 'string'}}}", false},
        {"{'properties': {'a': {'$ref': '#/$defs/a'}}, '$defs': {'a': {'$id': 'x'}}}", false},
        {"{'type': 'string', 'nullable': true}", false},
        {"{'type': 'object', 'unevaluatedProperties': false}", false},
        {"{'type': 'array', 'unevaluatedItems': false}", false},
        {"{'type': 'string', '$anchor': 'a'}", false},
        {"{'type': 'string', 'x-mine': 1}", false},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(one); i++) {
        char *text = fm_strdup(one[i].schema);
        fm_json *schema;
        fmv_schema *s = NULL;
        fm_grammar *g = NULL;
        for (char *p = text; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        tk_ok(fm_json_parse(&schema, fm_span_str(text), "schema"));
        if ((fmv_schema_new(&s, schema, "schema") == FM_OK) != one[i].taken ||
            (!one[i].taken && !strchr(fm_error_text(), '\'')))
            fail_msg("the assertion: %s: %s", text, fm_error_text());
        if ((fm_grammar_new(&g, schema, true) == FM_OK) != one[i].taken ||
            (!one[i].taken && !strchr(fm_error_text(), '\'')))
            fail_msg("the grammar: %s: %s", text, fm_error_text());
        fmv_schema_free(s);
        fm_grammar_free(g);
        fm_json_free(schema);
        fm_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keywords_are_taken_or_refused_by_both),
        cmocka_unit_test(draft_7_is_judged_right_or_refused),
        cmocka_unit_test(draft_2020_12_is_judged_right_or_refused),
    };
    fm_names names;
    if (fm_list_dir(&names, DRAFT7) < 0)
        return tk_skip("Debian's json-schema-test-suite is not installed");
    fm_names_release(&names);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
