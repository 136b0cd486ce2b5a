/* Suites of other tools: what each becomes, and that what has no meaning here is refused by file,
 * test and key. The fixtures are small files in the forms that the tools' documents describe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/text/yaml.h"
#include "testing/foreign/foreign.h"
#include "testing/suite/internal.h"
#include "tests/testkit.h"

static void read_fixture(fm_buf *out, const char *name)
{
    char relative[200];
    snprintf(relative, sizeof relative, "tests/unit/testing/foreign/%s", name);
    char *path = tk_source(relative);
    fm_buf_init(out, 0);
    tk_ok(fm_read_file(out, path, 1 << 20));
    fm_free(path);
}

static fm_suite *converted(const char *file, const char *data, const char *from, bool chat)
{
    fm_buf text, rows, yaml;
    fm_suite *s = NULL;
    read_fixture(&text, file);
    fm_buf_init(&rows, 0);
    fm_buf_init(&yaml, 0);
    if (data)
        read_fixture(&rows, data);
    fm_foreign_opts o = {.from = from, .data = fm_buf_span(&rows), .data_what = data, .chat = chat};
    tk_ok(fm_suite_convert(&yaml, fm_buf_span(&text), file, &o));
    tk_ok(fm_suite_parse(&s, fm_buf_span(&yaml), "converted"));
    fm_buf_release(&text);
    fm_buf_release(&rows);
    fm_buf_release(&yaml);
    return s;
}

static const fmv_case *case_of(const fm_suite *s, const char *name)
{
    long i = fm_suite_find(s, name);
    if (i < 0)
        fail_msg("no case '%s'", name);
    return &s->cases[i];
}

static const char *text_of(const fm_json *v)
{
    return fm_json_cstr(v, "?");
}

TEST(promptfoo_is_read)
{
    fm_suite *s = converted("promptfoo.yaml", NULL, NULL, true);
    assert_string_equal(fm_suite_name(s), "promptfoo");
    assert_string_equal(fm_suite_description(s), "Capitals, asked twice");
    assert_int_equal(fm_suite_count(s), 8); /* (1 + 2 + 1 variable sets) x 2 prompts */
    const fmv_case *c = case_of(s, "France/prompt-1");
    assert_int_equal(c->form, FMV_PROMPT_CHAT);
    assert_string_equal(text_of(c->prompt[0]),
                        "What is the capital of France? Answer with one word.");
    assert_int_equal(c->assertion_count, 3);
    assert_true(c->assertion[0].negated);
    assert_string_equal(text_of(c->assertion[0].value), "As an AI");
    assert_string_equal(text_of(c->assertion[2].value), "^\\s*P");
    assert_string_equal(fm_suite_case_tag(s, 0, "region"), "europe");
    assert_string_equal(fm_suite_case_tag(s, 0, "level"), "1");
    c = case_of(s, "France/prompt-2");
    assert_int_equal(c->form, FMV_PROMPT_MESSAGES);
    assert_string_equal(text_of(fm_json_get(fm_json_at(c->prompt[0], 1), "content")),
                        "Capital of France?");
    c = case_of(s, "test-2/prompt-1-2");
    assert_string_equal(text_of(c->assertion[1].value), "Peru");
    fm_suite_free(s);
}

TEST(lm_eval_is_read)
{
    fm_suite *s = converted("lm_eval_choice.yaml", "lm_eval_choice.jsonl", NULL, false);
    assert_string_equal(fm_suite_name(s), "tiny_arc");
    assert_int_equal(fm_suite_count(s), 2);
    const fmv_case *c = &s->cases[1];
    assert_int_equal(c->scoring, FMV_SCORE_CHOICE);
    assert_string_equal(text_of(c->prompt[0]),
                        "Questions of biology.\n\nQuestion: What barks?\nAnswer:");
    assert_int_equal(c->choice_count, 2);
    assert_int_equal(c->answer, 1);
    assert_string_equal(c->choice[1], " a dog");
    assert_int_equal(c->normalize, FMV_PER_CHARACTER);
    assert_string_equal(text_of(s->cases[0].prompt[0]),
                        "Questions of physics.\n\nQuestion: What falls?\nAnswer:");
    fm_suite_free(s);
    s = converted("lm_eval_generate.yaml", "lm_eval_generate.jsonl", "lm-eval", false);
    c = &s->cases[1];
    assert_int_equal(c->scoring, FMV_SCORE_TEXT);
    assert_true(c->ignore_case);
    assert_int_equal(c->max_tokens, 12);
    assert_int_equal(c->stop_count, 2);
    assert_string_equal(c->stop[0], "\n");
    assert_string_equal(text_of(c->assertion[0].value), "Paris");
    fm_suite_free(s);
}

static fm_suite *made_of(const char *text, const char *rows, const char *from)
{
    fm_buf yaml;
    fm_suite *s = NULL;
    fm_buf_init(&yaml, 0);
    fm_foreign_opts o = {.from = from, .data = fm_span_str(rows), .data_what = "d.jsonl"};
    tk_ok(fm_suite_convert(&yaml, fm_span_str(text), "f.yaml", &o));
    tk_ok(fm_suite_parse(&s, fm_buf_span(&yaml), "converted"));
    fm_buf_release(&yaml);
    return s;
}

/* As lm-eval: digits in a field of text are a choice's text, digits of a template an index. */
TEST(lm_eval_tells_texts_from_indices)
{
#define SUM "task: t\noutput_type: multiple_choice\ndoc_to_text: q\ndoc_to_choice: c\n"
#define SUM_ROW "{\"q\": \"1 + 1 =\", \"c\": [\"1\", \"2\", \"3\"], \"t\": \"2\", \"i\": 2}\n"
    static const struct {
        const char *target;
        size_t answer;
    } is[] = {{"t", 1}, {"i", 2}, {"'{{t}}'", 2}};
    for (size_t i = 0; i < FM_ARRAY_LEN(is); i++) {
        char text[200];
        snprintf(text, sizeof text, SUM "doc_to_target: %s\n", is[i].target);
        fm_suite *s = made_of(text, SUM_ROW, "lm-eval");
        assert_int_equal(s->cases[0].answer, is[i].answer);
        fm_suite_free(s);
    }
}

TEST(promptfoo_has_options_for_all)
{
    fm_suite *s =
        made_of("prompts: ['{{x}}']\n"
                "defaultTest: {options: {disableVarExpansion: true}, metadata: {a: one, b: two}, "
                "assert: [{type: contains, value: y}]}\n"
                "tests:\n"
                "  - {description: n, vars: {x: [1, 2]}, metadata: {b: three}, "
                "assert: [{type: contains, value: z}]}\n"
                "  - {description: m, vars: {x: [1, 2]}, options: {disableDefaultAsserts: true, "
                "disableVarExpansion: false}, assert: [{type: contains, value: z}]}\n",
                "", "promptfoo");
    assert_int_equal(fm_suite_count(s), 3);
    assert_int_equal(s->cases[0].assertion_count, 2);
    assert_string_equal(fm_suite_case_tag(s, 0, "a"), "one");
    assert_string_equal(fm_suite_case_tag(s, 0, "b"), "three");
    assert_int_equal(s->cases[1].assertion_count, 1);
    assert_string_equal(text_of(s->cases[2].prompt[0]), "2");
    fm_suite_free(s);
}

TEST(checklist_is_read)
{
    fm_suite *s = converted("checklist.json", NULL, NULL, false);
    assert_string_equal(fm_suite_name(s), "sentiment");
    assert_int_equal(fm_suite_count(s), 8);
    const fmv_case *c = case_of(s, "single words-3");
    assert_string_equal(c->choice[c->answer], " neutral");
    assert_string_equal(c->capability, "Vocabulary");
    assert_string_equal(text_of(c->prompt[0]), "Review: a table\nSentiment:");
    c = case_of(s, "simple negation-3");
    assert_string_equal(c->choice[c->answer], " negative");
    c = case_of(s, "names");
    assert_int_equal(c->kind, FMV_INV);
    assert_int_equal(c->prompt_count, 3);
    c = case_of(s, "adding praise");
    assert_int_equal(c->kind, FMV_DIR);
    assert_true(c->against_first);
    assert_string_equal(text_of(fm_json_path(c->pairs, "probability.of")), " positive");
    fm_suite_free(s);
}

/* Compares what PyYAML reads in yaml with json; Python without it compares nothing. */
static void pyyaml_agrees(fm_span yaml, fm_span json)
{
    static const char code[] =
        "import json, sys\n"
        "try: import yaml\n"
        "except ImportError: sys.exit(0)\n"
        "a, b = (open(sys.argv[i], encoding='utf-8').read() for i in (1, 2))\n"
        "bad = [p for p in zip(yaml.safe_load(a), json.loads(b)) if p[0] != p[1]]\n"
        "sys.exit('PyYAML reads %r' % bad if bad else 0)\n";
    char command[1600], *dir = tk_scratch();
    const fm_span part[] = {yaml, json};
    static const char *const name[] = {"a.yaml", "b.json"};
    for (size_t i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, name[i]);
        tk_ok(fm_write_file(path, part[i].data, part[i].len));
    }
    if (system("python3 -c 'import json' 2>/dev/null") == 0) {
        snprintf(command, sizeof command, "python3 -c \"%s\" '%s/a.yaml' '%s/b.json'", code, dir,
                 dir);
        assert_int_equal(system(command), 0);
    }
    fm_free(dir);
}

/* Every value must come back as itself, also from a reader of YAML 1.1 (PyYAML, if it is there). */
TEST(yaml_keeps_types)
{
    static const char values[] =
        "[\"yes\", \"No\", \"ON\", \"off\", \"y\", \"N\", \"null\", \"tRUE\", \"False\", \"~\", "
        "\"\","
        " \"0o7\", \"0x1f\", \"0b1\", \"1_000\", \"1:30\", \".inf\", \"-.INF\", \".nan\", \"1.5\","
        " \"+1\", \"1e3\", \"2001-01-01\", \"2001-01-01 10:00:00\", \"<<\", \"=\", \"-\", \"- a\","
        " \"---\", \"...\", \"?\", \"!x\", \"&x\", \"*x\", \"%x\", \"@x\", \"`x\", \"|\", \">\","
        " \"[\", \"{\", \" a\", \"a \", \"a: b\", \"a #b\", \"a\\tb\", \"a\\nb\", \"a\\u007f\","
        " \"a\\u0085b\", \"a\\u00a0b\", \"a\\u2028b\", \"\\ufeffa\", \"\\\"\", \"'\", \"\\\\\","
        " \"yes no\", 1e20, 1e-7, 0.5, 3.0, -2e100, 7, true]";
    fm_json *list, *keys = fm_json_new_object(), *back = NULL;
    fm_status rc = FM_OK;
    fm_buf yaml, json;
    tk_ok(fm_json_parse(&list, fm_span_of(values, sizeof values - 1), "values"));
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const char *text = fm_json_cstr(fm_json_at(list, i), NULL);
        if (text)
            fm_json_put(&rc, keys, text, fm_json_new_str(text));
    }
    fm_json_push_to(&rc, list, keys);
    tk_ok(rc);
    fm_buf_init(&yaml, 0);
    fm_buf_init(&json, 0);
    tk_ok(fmv_yaml_write(&yaml, list));
    tk_ok(fm_json_write(&json, list, FM_JSON_COMPACT));
    for (size_t i = 0; i < 9; i++) { /* this project's reader takes some of these words as text */
        char bare[16];
        snprintf(bare, sizeof bare, "- %s\n", text_of(fm_json_at(list, i)));
        assert_null(strstr(fm_buf_cstr(&yaml), bare));
    }
    tk_ok(fm_yaml_parse(&back, fm_buf_span(&yaml), "written"));
    assert_true(fm_json_equal(list, back));
    pyyaml_agrees(fm_buf_span(&yaml), fm_buf_span(&json));
    fm_buf_release(&yaml);
    fm_buf_release(&json);
    fm_json_free(list);
    fm_json_free(back);
}

TEST(tables_are_read)
{
    fm_suite *s = converted("table.csv", NULL, NULL, false);
    assert_int_equal(fm_suite_count(s), 4);
    const fmv_case *c = case_of(s, "france");
    assert_string_equal(text_of(c->prompt[0]), "The capital of \"France\", please:");
    assert_int_equal(c->max_tokens, 5);
    assert_string_equal(c->capability, "facts");
    assert_string_equal(text_of(case_of(s, "two lines")->prompt[0]), "First\nsecond");
    assert_int_equal(case_of(s, "3")->assertion[0].negated, false);
    assert_string_equal(text_of(case_of(s, "3")->assertion[0].value), "4");
    assert_int_equal(case_of(s, "pick")->answer, 0);
    fm_suite_free(s);
    s = converted("table_promptfoo.csv", NULL, NULL, false);
    assert_int_equal(case_of(s, "greeting")->assertion_count, 2);
    assert_int_equal(case_of(s, "json please")->assertion_count, 1);
    fm_suite_free(s);
}

/* The text as file `what`; refused with needle. */
static void refused(const char *what, const char *from, const char *text, const char *data,
                    const char *needle)
{
    fm_buf out;
    fm_foreign_opts o = {.from = from, .data = fm_span_str(data), .data_what = "d.jsonl"};
    fm_buf_init(&out, 0);
    fm_status rc = fm_suite_convert(&out, fm_span_str(text), what, &o);
    if (rc >= 0)
        fail_msg("converted: %s", text);
    if (!strstr(fm_error_text(), needle))
        fail_msg("'%s' is not in: %s", needle, fm_error_text());
    assert_int_equal(out.len, 0);
    fm_buf_release(&out);
}

#define PF(tests) "prompts: ['{{q}}']\ntests:\n" tests

TEST(promptfoo_without_meaning_is_refused)
{
    static const struct {
        const char *text, *needle;
    } bad[] = {
        {PF("  - {vars: {q: a}, assert: [{type: javascript, value: 'true'}]}\n"),
         "p.yaml: tests[0]: assert[0]: javascript: is not read: a suite runs no code"},
        {PF("  - {vars: {q: a}, assert: [{type: not-python, value: x}]}\n"), "runs no code"},
        {PF("  - {vars: {q: a}, assert: [{type: latency, threshold: 5}]}\n"), "latency"},
        {PF("  - {vars: {q: a}, assert: [{type: llm-rubric, value: x}]}\n"), "needs a judge"},
        {PF("  - {vars: {q: a}, assert: [{type: contains, value: x, transform: y}]}\n"),
         "assert[0]: contains: 'transform' has no meaning"},
        {PF("  - {vars: {q: a}, assert: [{type: equals, value: {a: 1}}]}\n"), "equality of JSON"},
        {PF("  - {vars: {q: a}, assert: [{type: contains, value: 'file://x'}]}\n"), "not fetched"},
        {PF("  - {vars: {q: a}, assert: [{type: no-such, value: x}]}\n"), "no-such"},
        {PF("  - {vars: {q: a}, assert: [{value: x}]}\n"), "wants a 'type'"},
        {PF("  - {vars: {q: a}}\n"), "tests[0]: has no assertion"},
        {PF("  - {vars: {z: a}, assert: [{type: contains, value: x}]}\n"), "'{{q}}' names nothing"},
        {PF("  - {vars: {q: 'file://a'}, assert: []}\n"), "vars.q: files are not fetched"},
        {PF("  - {vars: {q: a}, options: {transform: x}, assert: []}\n"), "'transform'"},
        {PF("  - file://tests.yaml\n"), "tests[0]: wants a mapping"},
        {PF("  - {vars: {q: []}, assert: []}\n"), "none of them empty"},
        {"prompts: [a]\ntests: file://t.csv\n", "--from csv"},
        {"prompts: [file://p.txt]\ntests: [{assert: [{type: contains, value: x}]}]\n",
         "prompt 'file://p.txt'"},
        {"prompts: ['{% for a in q %}{% endfor %}']\ntests: [{vars: {q: 1}, assert: []}]\n",
         "'{% for' is not read"},
        {"prompts: [a]\nscenarios: []\n", "'scenarios' has no meaning"},
        {"prompts: [a]\nevaluateOptions: {repeat: 3}\n", "evaluateOptions: 'repeat'"},
        {"prompts: [\n", "p.yaml: line"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refused("p.yaml", "promptfoo", bad[i].text, "", bad[i].needle);
}

#define LM(keys) "task: t\noutput_type: multiple_choice\ndoc_to_text: q\n" keys
#define ROW "{\"q\": \"x\", \"c\": [\"a\", \"b\"], \"t\": 1}\n"

TEST(lm_eval_without_meaning_is_refused)
{
    static const struct {
        const char *text, *data, *needle;
    } bad[] = {
        {LM("doc_to_choice: c\ndoc_to_target: t\n"), "", "--data"},
        {LM("doc_to_choice: c\ndoc_to_target: t\nnum_fewshot: 5\n"), ROW, "'num_fewshot'"},
        {LM("doc_to_choice: c\ndoc_to_target: t\nfilter_list: []\n"), ROW, "'filter_list'"},
        {LM("doc_to_choice: c\ndoc_to_target: t\nmetric_list: [{metric: f1}]\n"), ROW,
         "metric_list[0] (f1)"},
        {LM("doc_to_choice: c\ndoc_to_target: '7'\n"), ROW "\n" ROW,
         "d.jsonl: line 1: doc_to_target gives '7'"},
        {LM("doc_to_choice: nothing\ndoc_to_target: t\n"), ROW, "doc_to_choice gives no list"},
        {LM("doc_to_choice: c\n"), ROW, "'doc_to_target' is missing"},
        {LM("doc_to_choice: c\ndoc_to_target: t\n"), ROW "{\"q\": }\n", "d.jsonl: line 2"},
        {LM("doc_to_choice: c\ndoc_to_target: t\n"), "[1]\n", "an object a line"},
        {LM("doc_to_choice: c\ndoc_to_target: '{{missing}}'\n"), ROW, "names nothing"},
        {LM("doc_to_choice: !function utils.f\n"), ROW, "tags are not read"},
        {"task: t\noutput_type: loglikelihood_rolling\ndoc_to_text: q\n", ROW, "has no bound"},
        {"task: t\noutput_type: other\ndoc_to_text: q\n", ROW, "'other' is not known"},
        {"task: t\ndoc_to_text: q\ndoc_to_target: q\ngeneration_kwargs: {beams: 3}\n", ROW,
         "unknown key 'beams'"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refused("t.yaml", "lm-eval", bad[i].text, bad[i].data, bad[i].needle);
}

#define CL(keys) "{\"tests\": [{\"name\": \"n\", " keys "}]}"

TEST(other_formats_are_refused_by_place)
{
    static const struct {
        const char *what, *text, *needle;
    } bad[] = {
        {"c.json", CL("\"type\": \"MFT\", \"data\": [\"a\"], \"labels\": 1"),
         "c.json: test 'n': data[0]: a label that is a number"},
        {"c.json", CL("\"type\": \"MFT\", \"data\": [\"a\"]"), "MFT wants a label"},
        {"c.json", CL("\"type\": \"XYZ\", \"data\": [\"a\"]"), "type 'XYZ'"},
        {"c.json", CL("\"type\": \"INV\", \"data\": [\"a\"]"), "the original and its changed"},
        {"c.json", CL("\"type\": \"MFT\", \"data\": [\"a\"], \"labels\": [1, 2]"),
         "2 labels for 1"},
        {"c.json", CL("\"type\": \"DIR\", \"data\": [[\"a\", \"b\"]], \"expect\": \"<function>\""),
         "a function of Python is not read"},
        {"c.json", CL("\"type\": \"MFT\", \"data\": [3], \"labels\": \"x\""), "data wants texts"},
        {"c.json", CL("\"type\": \"MFT\", \"fn\": 1"), "unknown key 'fn'"},
        {"c.json", "{\"tests\": []}", "wants {\"tests\""},
        {"c.json", "{\"a\": 1}", "unknown key 'a'"},
        {"t.csv", "prompt,expected,colour\na,b,red\n", "t.csv: line 2: colour: column 'colour'"},
        {"t.csv", "question,expected\na,b\n", "'prompt' or 'chat'"},
        {"t.csv", "prompt,prompt\na,b\n", "two columns are named 'prompt'"},
        {"t.csv", "prompt,expected\na,b,c\n", "line 2: 3 fields, the head has 2"},
        {"t.csv", "prompt,expected\n\n\r\na,b,c\n", "line 4: 3 fields, the head has 2"},
        {"t.csv", "prompt,expected\na,\"b\n", "line 2: a quote is opened here and never closed"},
        {"t.csv", "prompt,expected\na,\"b\"c\n", "line 2: text stands behind a closing quote"},
        {"t.csv", "prompt,expected\n\"a\n\",\xff\n", "row at line 2: text is not UTF-8"},
        {"t.csv", "prompt,__expected\na,javascript: true\n", "runs no code"},
        {"t.csv", "prompt,__expected\na,grade: polite\n", "'grade:' is not read"},
        {"t.csv", "prompt,expected\na,\n", "could not fail"},
        {"t.csv", "prompt,expected,max-tokens\na,b,many\n", "max-tokens wants a number"},
        {"t.csv", "prompt,expected\n", "has no test"},
        {"t.txt", "hello\n", "cannot tell what it is"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refused(bad[i].what, NULL, bad[i].text, "", bad[i].needle);
    refused("t.csv", "excel", "a\n", "", "'excel' is no format");
}

TEST(bombs_end_soon)
{
    struct timespec a, b;
    fm_buf t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    refused("p.yaml", "promptfoo",
            "prompts: [a]\ntests:\n  - vars: {a: &l [1,2,3,4,5,6,7,8,9,0], b: *l, c: *l, d: *l, "
            "e: *l, f: *l, g: *l}\n    assert: [{type: contains, value: x}]\n",
            "", "makes more than");
    /* 30,000 tests of one name are named one after the other, not by trying all numbers */
    fm_buf_init(&t, 0);
    fm_buf_str(
        &t,
        "{\"tests\": [{\"name\": \"n\", \"type\": \"MFT\", \"labels\": \"x\", \"data\": [\"a\"");
    for (int i = 1; i < 30000; i++)
        fm_buf_str(&t, ",\"a\"");
    fm_buf_str(&t, "]}]}");
    fm_buf out;
    fm_suite *s = NULL;
    fm_foreign_opts o = {.from = "checklist"};
    fm_buf_init(&out, 0);
    tk_ok(fm_suite_convert(&out, fm_buf_span(&t), "c.json", &o));
    tk_ok(fm_suite_parse(&s, fm_buf_span(&out), "c.json"));
    assert_int_equal(fm_suite_count(s), 30000);
    assert_string_equal(fm_suite_case_name(s, 29999), "n-30000");
    fm_suite_free(s);
    fm_buf_release(&out);
    fm_buf_release(&t);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    assert_true(b.tv_sec - a.tv_sec < 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promptfoo_is_read),
        cmocka_unit_test(lm_eval_is_read),
        cmocka_unit_test(lm_eval_tells_texts_from_indices),
        cmocka_unit_test(promptfoo_has_options_for_all),
        cmocka_unit_test(checklist_is_read),
        cmocka_unit_test(tables_are_read),
        cmocka_unit_test(yaml_keeps_types),
        cmocka_unit_test(promptfoo_without_meaning_is_refused),
        cmocka_unit_test(lm_eval_without_meaning_is_refused),
        cmocka_unit_test(other_formats_are_refused_by_place),
        cmocka_unit_test(bombs_end_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
