/* Templates that want to do more than they may: each ends, soon, with a text or an error that names
 * the limit. What is bounded is the work that the interpreter counts; that it counts all it does is
 * what
 *
 *     unit_infer_jinja_work --drive SEED COUNT
 *
 * looks for: it draws COUNT templates (and first those that apply every filter, method, test and
 * operator once to large values), renders them under the full limit, and reports the CPU time of
 * the slowest and the dearest units. */
#include "infer/chat.h"
#include "tests/testkit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HANG_SECONDS 600 /* of all tests: a rendering without end is killed, not waited for */
#define SMALL_WORK 30000000u

/* ==== rendering ==== */

static const char messages_text[] =
    "[{\"role\":\"system\",\"content\":\"Be "
    "kind.\"},{\"role\":\"user\",\"content\":\"Gr\\u00fc\\u00df "
    "dich, 1 < 2\",\"n\":1.5},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"name\":"
    "\"f\",\"arguments\":{\"b\":[1,2.5,null],\"a\":\"x\"}}]}]";

static fm_status render(fm_buf *out, const char *source, fm_chat_watch *w)
{
    fm_chat_template *t = NULL;
    fm_json *m = NULL;
    fm_status rc;

    tk_ok(fm_json_parse(&m, fm_span_str(messages_text), "messages"));
    rc = fm_chat_template_open(&t, fm_span_str(source), "t");
    if (rc == FM_OK) {
        fm_chat_watch *before = fm_chat_watch_set(w);
        rc = fm_chat_render(out, t, m, m, true, NULL);
        assert_ptr_equal(fm_chat_watch_set(before), w);
    }
    fm_chat_template_close(t);
    fm_json_free(m);
    return rc;
}

/* ==== bombs ==== */

#define TWO_TOWERS                                                                                 \
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"  \
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
#define TWO_DICTS                                                                                  \
    "{% set ns = namespace(x={}, y={}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': "  \
    "ns.x} %}{% set ns.y = {'a': ns.y, 'b': ns.y} %}{% endfor %}"
#define MANY "{% for i in range(100000) %}"
#define LONG "{% set s = 'ab' * 10000000 %}"

/* Without the limit each of these runs for minutes or for ever. */
static const struct {
    const char *name, *source;
} bombs[] = {
    {"equal_exp", TWO_TOWERS "{{ ns.x == ns.y }}"},
    {"equal_dict", TWO_DICTS "{{ ns.x == ns.y }}"},
    {"compare_exp", TWO_TOWERS "{{ ns.x < ns.y }}"},
    {"in_list", "{% set l = range(100000) | list %}" MANY "{{ -1 in l }}{% endfor %}"},
    {"in_range", "{% set r = range(100000) %}" MANY "{{ -1 in r }}{% endfor %}"},
    {"str_scan", LONG MANY "{{ 'bb' in s }}{% endfor %}"},
    {"str_len", LONG MANY "{{ s | length }}{% endfor %}"},
    {"unique", "{{ range(100000) | unique | list | length }}"},
    {"unique_many", "{% for i in range(1000) %}{{ range(9000) | unique | first }}{% endfor %}"},
    {"strip2", "{{ ('ab' * 2000000).strip('cdefgh' * 100000 ~ 'ab') | length }}"},
    /* the same holes by other doors */
    {"ne_exp", TWO_TOWERS "{{ ns.x != ns.y }}"},
    {"is_eq", TWO_TOWERS "{{ ns.x is eq ns.y }}"},
    {"in_exp", TWO_TOWERS "{{ ns.x in [ns.y] }}"},
    {"index_exp", TWO_TOWERS "{{ [ns.y].index(ns.x) }}"},
    {"sort_exp", TWO_TOWERS "{{ [ns.x, ns.y] | sort | length }}"},
    {"max_exp", TWO_TOWERS "{{ [ns.x, ns.y] | max | length }}"},
    {"select_exp", TWO_TOWERS "{{ [ns.x] | select('equalto', ns.y) | list | length }}"},
    {"tojson_exp", TWO_TOWERS "{{ ns.x | tojson }}"},
    {"tojson_sort", TWO_DICTS "{{ ns.x | tojson(sort_keys=true, indent=2) }}"},
    {"repr_exp", TWO_TOWERS "{{ ns.x }}"},
    {"string_exp", TWO_TOWERS "{{ ns.x | string | length }}"},
    {"join_exp", TWO_TOWERS "{{ [ns.x] | join }}"},
    {"format_exp", TWO_TOWERS "{{ '{}'.format(ns.x) }}"},
    {"tuple_key", "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, "
                  "ns.x) %}{% endfor %}{{ {ns.x: 1}[(ns.x, 1)] }}{{ {ns.x: 1, ns.x: 2} }}"},
    {"find", LONG MANY "{{ s.find('bb') }}{% endfor %}"},
    {"find_long", LONG MANY "{{ s.find('ab' * 127 ~ 'c') }}{% endfor %}"},
    {"index_chars", LONG MANY "{{ s[19999999] }}{% endfor %}"},
    {"replace_none", LONG MANY "{{ s.replace('bb', '') | first }}{% endfor %}"},
    {"replace_grow", "{{ ('a' * 1000000).replace('a', 'b' * 60) | length }}" MANY
                     "{{ ('a' * 9000).replace('', 'xyz') | length }}{% endfor %}"},
    {"upper", LONG MANY "{{ s | upper | first }}{% endfor %}"},
    {"sharp_s", "{% set s = '\xc3\x9f' * 100000 %}" MANY "{{ s.upper() | first }}{% endfor %}"},
    {"lstrip", "{% set s = ' ' * 20000000 %}" MANY "{{ s.lstrip() }}{% endfor %}"},
    {"starts", "{% set s = 'a' * 9000000 %}" MANY "{{ s.startswith(s) }}{% endfor %}"},
    {"string_eq", "{% set s = 'a' * 9000000 %}{% set u = 'a' * 9000000 %}" MANY
                  "{{ s == u }}{{ s < u }}{% endfor %}"},
    {"string_key", "{% set s = 'a' * 9000000 %}{% set d = {s: 1} %}{% set u = 'a' * 9000000 %}" MANY
                   "{{ d[u] }}{% endfor %}"},
    {"floats", "{% for j in range(100000) %}" MANY "{{ 1.1e300 * i }}{% endfor %}{% endfor %}"},
    {"indent", MANY "{{ ('a\\n' * 100000) | indent(100) | first }}{% endfor %}"},
    {"fields", "{{ ('{b}' * 1000000).format(a=1, b=2) | first }}"},
    {"repeat", MANY "{{ ('a' * 9000000) | first }}{% endfor %}"},
    {"add_lists", "{% set l = range(100000) | list %}" MANY "{{ (l + l) | length }}{% endfor %}"},
    {"slices", "{% set l = range(100000) | list %}" MANY "{{ l[1:] | length }}{% endfor %}"},
    {"map_chain", "{% set l = range(100000) | map('string') | list %}{{ l | map('length') | list | "
                  "length }}{{ l | map('upper') | map('lower') | list | length }}"},
    {"sort", "{% set l = (('ab' * 100 ~ ',') * 50000).split(',') %}{{ l | "
             "sort(case_sensitive=true) | length }}"},
    {"names", "{% set l = range(100000) %}{% for a in l %}{% for b in l %}{% set c = b %}{% endfor "
              "%}{% endfor %}"},
    {"macros", "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
               "{{ f(60) }}"},
    {"recursive_loop",
     "{% macro f(n) %}{% for x in [1, 2] %}{% if n < 60 %}{{ f(n + 1) }}{% endif %}"
     "{% endfor %}{% endmacro %}{{ f(0) }}"},
    {"star", "{% macro f(a) %}{{ a }}{% endmacro %}{% set l = ['a' * 900000] %}" MANY
             "{% set x = f(*l) | first %}{% endfor %}"},
    {"attr_path", "{% set l = range(100000) %}{{ l | map(attribute='a' * 1000000) | list | length "
                  "}}"},
};

TEST(bombs_end_within_their_work)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(bombs); i++) {
        fm_chat_watch w = {.work_max = SMALL_WORK};
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_status rc = render(&out, bombs[i].source, &w);
        const char *text = rc < 0 ? fm_error_text() : "it ended with a text";
        if (rc != FM_ELIMIT || !strstr(text, "t: line 1: the template does too much: more than 30 "
                                             "million units of work"))
            fail_msg("%s: %s", bombs[i].name, text);
        /* what one allocation took is seen by the next count */
        assert_true(w.work <= SMALL_WORK + FM_CHAT_OUTPUT_MAX);
        assert_int_equal(out.len, 0);
        fm_buf_release(&out);
    }
}

/* Looking a name up compares it with others: their length is bounded when the template is
 * opened. */
TEST(long_names_are_refused)
{
    fm_buf source, out;

    fm_buf_init(&out, 0);
    for (int n = 255; n <= 256; n++) {
        fm_buf_init(&source, 0);
        fm_buf_printf(&source, "{{ %0*d }}", n, 0);
        for (int i = 0; i < n; i++)
            source.data[3 + i] = 'a';
        if (n == 255)
            tk_ok(render(&out, fm_buf_cstr(&source), NULL));
        else
            tk_fails(render(&out, fm_buf_cstr(&source), NULL), FM_ELIMIT,
                     "t: line 1: a name of more than 255 bytes");
        fm_buf_release(&source);
    }
    fm_buf_release(&out);
}

/* ==== what real templates need ==== */

static fm_json *long_talk(size_t turns, size_t bytes_each)
{
    fm_json *m = fm_json_new_array();
    fm_buf text;

    fm_buf_init(&text, 0);
    for (size_t i = 0; i < bytes_each; i++)
        fm_buf_char(&text, i % 60 == 59 ? '\n' : (char)('a' + i % 26));
    for (size_t i = 0; i < turns; i++) {
        fm_json *one = fm_json_new_object();
        tk_ok(fm_json_set(one, "role", fm_json_new_str(i % 2 ? "assistant" : "user")));
        tk_ok(fm_json_set(one, "content", fm_json_new_strn(fm_buf_cstr(&text), text.len)));
        tk_ok(fm_json_push(m, one));
    }
    fm_buf_release(&text);
    return m;
}

/* The families' templates of jinja_cases.json over 2,000 messages of 1 MB together. */
TEST(long_conversations_take_little_of_it)
{
    char *path = tk_source("tests/unit/infer/jinja_cases.json");
    fm_json *file, *m = long_talk(2000, 525), *extra = NULL;
    size_t rendered = 0;

    tk_ok(fm_json_parse_file(&file, path, (size_t)1 << 22));
    tk_ok(
        fm_json_parse(&extra, fm_span_str("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}"), "x"));
    const fm_json *cases = fm_json_get(file, "cases");
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        fm_span source = fm_json_str(fm_json_get(fm_json_at(cases, i), "template"));
        fm_chat_template *t = NULL;
        fm_chat_watch w = {.stop = NULL};
        fm_buf out;
        if (i > 0 &&
            fm_span_eq(source, fm_json_str(fm_json_get(fm_json_at(cases, i - 1), "template"))))
            continue;
        fm_buf_init(&out, 0);
        tk_ok(fm_chat_template_open(&t, source, "case"));
        fm_chat_watch *before = fm_chat_watch_set(&w);
        fm_status rc = fm_chat_render(&out, t, m, NULL, true, extra);
        (void)fm_chat_watch_set(before);
        if (rc == FM_ELIMIT)
            fail_msg("%s: %s", fm_json_cstr(fm_json_get(fm_json_at(cases, i), "name"), ""),
                     fm_error_text());
        if (rc == FM_OK && out.len > (size_t)1 << 20) {
            rendered++;
            assert_true(w.work < FM_CHAT_WORK_MAX / 5);
            if (getenv("FM_JINJA_WORK"))
                printf("%s: %llu\n", fm_json_cstr(fm_json_get(fm_json_at(cases, i), "name"), ""),
                       (unsigned long long)w.work);
        }
        fm_chat_template_close(t);
        fm_buf_release(&out);
    }
    assert_true(rendered >= 10);
    fm_json_free(extra);
    fm_json_free(m);
    fm_json_free(file);
    fm_free(path);
}

/* A megabyte of text is given back four times; nothing makes tens of megabytes out of little. */
TEST(the_text_is_bounded_by_what_was_given)
{
    static const char four[] = "{% for i in range(4) %}{% for m in messages %}{{ m.content }}{% "
                               "endfor %}{% endfor %}";
    fm_json *m = long_talk(2, 2000000);
    fm_chat_template *t = NULL;
    fm_buf out;

    fm_buf_init(&out, 0);
    tk_ok(render(&out, "{{ 'a' * 4194304 }}", NULL));
    assert_int_equal(out.len, 4194304);
    fm_buf_clear(&out);
    tk_fails(render(&out, "{{ 'a' * 5000000 }}", NULL), FM_ELIMIT, "t: more than 42");
    tk_fails(render(&out, "{% for i in range(50) %}{{ 'a' * 100000 }}{% endfor %}", NULL),
             FM_ELIMIT, "t: more than 42");
    assert_int_equal(out.len, 0);
    tk_ok(fm_chat_template_open(&t, fm_span_str(four), "t"));
    tk_ok(fm_chat_render(&out, t, m, NULL, true, NULL));
    assert_int_equal(out.len, 16000000);
    fm_chat_template_close(t);
    fm_json_free(m);
    fm_buf_release(&out);
}

static bool stop_at_third(void *ctx)
{
    int *asked = ctx;

    return ++*asked == 3;
}

TEST(a_watch_ends_a_rendering)
{
    int asked = 0;
    fm_chat_watch w = {.stop = stop_at_third, .ctx = &asked};
    fm_buf out;

    fm_buf_init(&out, 0);
    fm_buf_str(&out, "kept");
    tk_fails(render(&out, bombs[0].source, &w), FM_ECANCELLED, "t: stopped while");
    assert_int_equal(asked, 3);
    assert_true(w.work < FM_CHAT_WORK_MAX / 10);
    assert_string_equal(fm_buf_cstr(&out), "kept");
    fm_buf_clear(&out);
    tk_ok(render(&out, "{{ 1 + 1 }}", NULL)); /* nobody watches any more */
    assert_string_equal(fm_buf_cstr(&out), "2");
    assert_int_equal(asked, 3);
    fm_buf_release(&out);
}

/* ==== drawn templates ==== */

typedef struct draw {
    uint64_t state;
    fm_buf out;
} draw;

static uint64_t below(draw *d, uint64_t n)
{
    d->state += 0x9e3779b97f4a7c15u;
    uint64_t z = d->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

static void put(draw *d, const char *s)
{
    fm_buf_str(&d->out, s);
}

#define PICK(d, list) (list)[below(d, FM_ARRAY_LEN(list))]

/* Names that every drawn template sets, to values that are large or hold each other. */
static const char *const large[] = {
    "s", "u",   "w", "h", "l",        "r", "t", "b", "x",  "y", "p",         "q",    "d",
    "e", "big", "i", "m", "messages", "k", "n", "f", "no", "g", "loop.last", "ns.x", "ns.y"};

static const struct {
    const char *before, *after; /* the size */
} set_up[] = {{"s = 'ab' * ", ""},
              {"u = '\xc3\x9f\xce\xa3.' * ", ""},
              {"w = ' a\\n\\t' * ", ""},
              {"h = '\\x01\\\"<&{}%' * ", ""},
              {"l = range(", " % 100000) | list"},
              {"r = range(", " % 100000)"},
              {"t = ('ab,' * ", ").split(',')"},
              {"d = {s: 1, 3: l, 'a': ", "}"},
              {"e = {s: u, u: t, 'a': {'a': t, 'b': l}, 'k': ", "}"}};

static void put_set_up(draw *d, uint64_t most)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(set_up); i++) {
        uint64_t bits = below(d, 24), size = 1 + below(d, (uint64_t)1 << bits);
        fm_buf_printf(&d->out, "{%% set %s%llu%s %%}", set_up[i].before,
                      (unsigned long long)FM_MIN(size, most), set_up[i].after);
    }
    put(d, "{% set ns = namespace(x=s, y=u) %}{% set k = 3 %}{% set f = 1.5e300 %}{% set no = none "
           "%}{% set p = '{0}{k}' ~ s %}{% set q = '{0}' * 50 %}");
    fm_buf_printf(
        &d->out,
        "{%% set z = namespace(b=[[1, 'a'], [2, 'b']], g=[{'a': s, 'b': l}, {'a': u, 'b': "
        "t}]) %%}{%% for i in range(%u) %%}{%% set z.b = z.b + z.b %%}{%% set z.g = z.g + "
        "z.g %%}{%% endfor %%}{%% set b = z.b %%}{%% set big = z.g %%}",
        (unsigned)below(d, 17));
    fm_buf_printf(&d->out,
                  "{%% for i in range(%u) %%}{%% set ns.x = [ns.x, ns.x] %%}{%% set ns.y = %s "
                  "%%}{%% endfor %%}",
                  (unsigned)below(d, 70), below(d, 2) ? "[ns.y, ns.y]" : "{'a': ns.y, 'b': ns.y}");
    put(d, "{% set x = ns.x %}{% set y = ns.y %}");
    put(d, "{% macro m(n=0, a=1) %}{{ n }}{{ caller() if caller }}{{ a }}{% endmacro %}");
}

static const char *const filters[] = {"length",
                                      "count",
                                      "join",
                                      "join(s)",
                                      "default(s)",
                                      "d(s, true)",
                                      "first",
                                      "last",
                                      "list",
                                      "map('upper')",
                                      "map('length')",
                                      "map(attribute='a')",
                                      "map('string')",
                                      "map('tojson')",
                                      "map(attribute='a.b.0')",
                                      "select",
                                      "select('in', l)",
                                      "select('eq', x)",
                                      "select('lt', 5)",
                                      "selectattr('a')",
                                      "selectattr('a', 'eq', s)",
                                      "reject",
                                      "rejectattr('a', 'in', t)",
                                      "items",
                                      "dictsort",
                                      "unique",
                                      "reverse",
                                      "sort",
                                      "sort(reverse=true)",
                                      "sort(attribute='a')",
                                      "min",
                                      "max",
                                      "trim",
                                      "trim(s)",
                                      "trim('ba')",
                                      "upper",
                                      "lower",
                                      "tojson",
                                      "tojson(indent=4)",
                                      "tojson(ensure_ascii=true)",
                                      "tojson(sort_keys=true)",
                                      "tojson(separators=(s, u))",
                                      "string",
                                      "replace('a', s)",
                                      "replace('', 'xy')",
                                      "replace(s, '')",
                                      "replace('ab', 'c', 5)",
                                      "indent",
                                      "indent(100000)",
                                      "indent(s, true, true)",
                                      "safe",
                                      "capitalize",
                                      "title",
                                      "int",
                                      "int(s)",
                                      "float"};

static const char *const methods[] = {"split()",
                                      "split('a')",
                                      "split('ab', 7)",
                                      "split(s)",
                                      "splitlines()",
                                      "strip()",
                                      "strip('ab')",
                                      "strip(s)",
                                      "lstrip(u)",
                                      "rstrip(w)",
                                      "startswith(s)",
                                      "startswith((s, u, w))",
                                      "endswith(s)",
                                      "endswith((u, 'b'))",
                                      "replace('a', 'bc')",
                                      "replace('', s)",
                                      "replace(s, u)",
                                      "find('c')",
                                      "find('ab' * 120 ~ 'c')",
                                      "find(s)",
                                      "join(t)",
                                      "join(s)",
                                      "join(l | map('string'))",
                                      "title()",
                                      "capitalize()",
                                      "lower()",
                                      "upper()",
                                      "format(s, k=u)",
                                      "format(*t)",
                                      "index(x)",
                                      "get('a')",
                                      "get(s)",
                                      "items()",
                                      "keys()",
                                      "values()",
                                      "a",
                                      "b.a",
                                      "0"};

static const char *const is_tests[] = {"defined",  "undefined", "none",   "string",  "mapping",
                                       "iterable", "sequence",  "number", "integer", "float",
                                       "boolean",  "true",      "false",  "eq(y)",   "equalto(s)",
                                       "ne(l)",    "lt(s)",     "le(t)",  "gt(x)",   "ge(y)",
                                       "in(l)",    "in(t)",     "in(s)",  "odd",     "even"};

static const char *const operators[] = {
    " + ",  " - ", " * ",  " / ",  " // ",     " % ",   " ~ ",  " == ",        " != ", " < ",
    " <= ", " > ", " >= ", " in ", " not in ", " and ", " or ", " if s else ", ", "};

static const char *const items[] = {"[0]",     "[-1]",         "[1:]",  "[::-1]",   "[::2]",
                                    "[:-1]",   "[5:100000:3]", "['a']", "[k]",      "[s]",
                                    "[99999]", ".a",           ".b.a",  "[100:200]"};

static const char *const atoms[] = {"3",
                                    "'a'",
                                    "''",
                                    "[]",
                                    "{}",
                                    "(s, u)",
                                    "[s, u, l]",
                                    "{'a': s, 'b': x}",
                                    "range(1000)",
                                    "range(99999)",
                                    "1.5",
                                    "-1",
                                    "true",
                                    "none",
                                    "missing",
                                    "dict(a=s, b=u)",
                                    "m(s)",
                                    "m(1, 2)",
                                    "m(*[s, u])",
                                    "namespace(a=s)",
                                    "loop.index",
                                    "loop.previtem",
                                    "'{} {}'.format(s, u)",
                                    "q.format(x)",
                                    "p.format(s, k=u)",
                                    "1e300 | string"};

static void expression(draw *d, int depth)
{
    uint64_t kind = depth > 0 ? below(d, 12) : below(d, 2);

    if (kind == 0) {
        put(d, PICK(d, atoms));
    } else if (kind <= 2) {
        put(d, PICK(d, large));
    } else if (kind <= 5) {
        put(d, "(");
        expression(d, depth - 1);
        put(d, " | ");
        put(d, PICK(d, filters));
        put(d, ")");
    } else if (kind <= 7) {
        put(d, "(");
        expression(d, depth - 1);
        put(d, ").");
        put(d, PICK(d, methods));
    } else if (kind == 8) {
        put(d, "(");
        expression(d, depth - 1);
        put(d, " is ");
        put(d, PICK(d, is_tests));
        put(d, ")");
    } else if (kind == 9) {
        put(d, "(");
        expression(d, depth - 1);
        put(d, ")");
        put(d, PICK(d, items));
    } else {
        put(d, "(");
        expression(d, depth - 1);
        put(d, PICK(d, operators));
        expression(d, depth - 1);
        put(d, ")");
    }
}

static void statement(draw *d, int depth);

static void body(draw *d, int depth)
{
    for (uint64_t n = 1 + below(d, 3); n > 0; n--)
        statement(d, depth);
}

static void statement(draw *d, int depth)
{
    static const char *const names[] = {"s", "u",    "l",    "t", "x", "y",
                                        "d", "ns.x", "ns.y", "k", "w"};
    static const char *const after[] = {" | length", " | first", " | string | length", "",
                                        " is none"};
    uint64_t kind = depth > 0 ? below(d, 10) : below(d, 4);

    if (kind <= 1) {
        put(d, "{{ (");
        expression(d, 3);
        put(d, ")");
        put(d, PICK(d, after));
        put(d, " }}");
    } else if (kind <= 3) {
        put(d, "{% set ");
        put(d, PICK(d, names));
        put(d, " = ");
        expression(d, 2);
        put(d, " %}");
    } else if (kind <= 6) {
        put(d, "{% for i in ");
        if (below(d, 2))
            fm_buf_printf(&d->out, "range(%u)", 1u << below(d, 17));
        else
            expression(d, 1);
        put(d, below(d, 4) ? " %}" : " if i != k %}");
        body(d, depth - 1);
        put(d, "{% endfor %}");
    } else if (kind == 7) {
        put(d, "{% if ");
        expression(d, 2);
        put(d, " %}");
        body(d, depth - 1);
        put(d, "{% endif %}");
    } else if (kind == 8) {
        put(d, "{% filter ");
        put(d, PICK(d, filters));
        put(d, " %}");
        body(d, depth - 1);
        put(d, "{% endfilter %}");
    } else {
        put(d, "{% macro z(n) %}{% if n %}");
        body(d, 0);
        put(d, "{{ z(n - 1) }}{% endif %}{% endmacro %}{{ z(40) }}{% call m(s) %}");
        body(d, depth - 1);
        put(d, "{% endcall %}");
    }
}

/* The n-th of the plain ones: one operation on one large value, often or once; false: no more. */
static bool plain(draw *d, uint64_t n)
{
    uint64_t values = FM_ARRAY_LEN(large), ops = FM_ARRAY_LEN(filters) + FM_ARRAY_LEN(methods) +
                                                 FM_ARRAY_LEN(is_tests) + FM_ARRAY_LEN(items) +
                                                 FM_ARRAY_LEN(operators);
    uint64_t op = n % ops;
    const char *v = large[n / ops % values];

    if (n >= ops * values)
        return false;
    put_set_up(d, below(d, 4) ? 50000 : 5000000);
    if (below(d, 3))
        fm_buf_printf(&d->out, "{%% for i in range(%u) %%}", 1u << below(d, 17));
    else
        put(d, "{% for i in [1] %}");
    put(d, "{% set o = ");
    if (op < FM_ARRAY_LEN(filters))
        fm_buf_printf(&d->out, "%s | %s", v, filters[op]);
    else if ((op -= FM_ARRAY_LEN(filters)) < FM_ARRAY_LEN(methods))
        fm_buf_printf(&d->out, "%s.%s", v, methods[op]);
    else if ((op -= FM_ARRAY_LEN(methods)) < FM_ARRAY_LEN(is_tests))
        fm_buf_printf(&d->out, "%s is %s", v, is_tests[op]);
    else if ((op -= FM_ARRAY_LEN(is_tests)) < FM_ARRAY_LEN(items))
        fm_buf_printf(&d->out, "%s%s", v, items[op]);
    else
        fm_buf_printf(&d->out, "%s%s%s", v, operators[op - FM_ARRAY_LEN(items)], PICK(d, large));
    put(d, " %}{% endfor %}");
    return true;
}

static void drawn_templates_end_within_their_work(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 150; i++) {
        draw d = {.state = 7000 + i};
        fm_chat_watch w = {.work_max = SMALL_WORK / 3};
        fm_buf out;
        fm_buf_init(&d.out, 0);
        fm_buf_init(&out, 0);
        put_set_up(&d, 50000);
        body(&d, 3);
        fm_ignore(render(&out, fm_buf_cstr(&d.out), &w), "a text or an error, but soon");
        assert_true(w.work <= SMALL_WORK + FM_CHAT_OUTPUT_MAX);
        fm_buf_release(&out);
        fm_buf_release(&d.out);
    }
}

/* ==== driving ==== */

typedef struct record {
    double seconds, unit; /* CPU; nanoseconds a unit */
    uint64_t work, seed;
    bool plain;
    char outcome[90];
} record;

static double cpu(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define KEPT 12

static void keep(record *best, const record *r, bool by_unit)
{
    size_t low = 0;

    for (size_t i = 1; i < KEPT; i++)
        if (by_unit ? best[i].unit < best[low].unit : best[i].seconds < best[low].seconds)
            low = i;
    if (by_unit ? r->unit > best[low].unit : r->seconds > best[low].seconds)
        best[low] = *r;
}

static void tell(const char *what, const record *best)
{
    printf("%s\n", what);
    for (size_t i = 0; i < KEPT; i++)
        printf("  %.3f s, %.2f ns a unit, %llu M units, %s %llu: %s\n", best[i].seconds,
               best[i].unit, (unsigned long long)(best[i].work / 1000000),
               best[i].plain ? "plain" : "drawn", (unsigned long long)best[i].seed,
               best[i].outcome);
}

static bool one(uint64_t seed, uint64_t n, bool is_plain, record *r, bool show)
{
    draw d = {.state = seed * 1000003 + n};
    fm_chat_watch w = {.stop = NULL};
    fm_buf out;
    bool any = true;

    fm_buf_init(&d.out, 0);
    fm_buf_init(&out, 0);
    if (is_plain) {
        any = plain(&d, n);
    } else {
        put_set_up(&d, below(&d, 8) ? 10000 : 5000000);
        body(&d, 3);
    }
    if (show)
        puts(fm_buf_cstr(&d.out));
    double begun = cpu();
    fm_status rc = any ? render(&out, fm_buf_cstr(&d.out), &w) : FM_OK;
    *r = (record){.seconds = cpu() - begun, .work = w.work, .seed = n, .plain = is_plain};
    r->unit = r->seconds > 0.02 ? r->seconds * 1e9 / (double)(w.work + 1) : 0;
    (void)snprintf(r->outcome, sizeof(r->outcome), "%d %s", (int)rc, rc < 0 ? fm_error_text() : "");
    fm_buf_release(&out);
    fm_buf_release(&d.out);
    return any;
}

static int drive(uint64_t seed, uint64_t count)
{
    record slow[KEPT] = {{0}}, dear[KEPT] = {{0}}, r;
    uint64_t done = 0, plains = 0, ok = 0, limit = 0;
    double all = 0;

    for (size_t i = 0; i < FM_ARRAY_LEN(bombs); i++) {
        fm_chat_watch w = {.stop = NULL};
        fm_buf out;
        fm_buf_init(&out, 0);
        double begun = cpu();
        fm_status rc = render(&out, bombs[i].source, &w);
        double took = cpu() - begun;
        printf("%-16s %.3f s, %.2f ns a unit, %d %s\n", bombs[i].name, took,
               took * 1e9 / (double)(w.work + 1), (int)rc, rc < 0 ? fm_error_text() : "");
        fm_buf_release(&out);
    }
    for (uint64_t n = 0; n < count; n++) {
        bool is_plain = n % 4 == 0 && one(seed, n / 4, true, &r, false);
        if (!is_plain)
            (void)one(seed, n, false, &r, false);
        plains += is_plain;
        ok += r.outcome[0] == '0';
        limit += strstr(r.outcome, "too much") != NULL;
        all += r.seconds;
        keep(slow, &r, false);
        keep(dear, &r, true);
        done++;
        if (done % 500 == 0)
            (void)fprintf(stderr, "%llu of %llu, %.1f s CPU\n", (unsigned long long)done,
                          (unsigned long long)count, all);
    }
    printf("%llu templates (%llu of one operation), seed %llu: %llu texts, %llu ended by work, the "
           "others by errors; %.1f s CPU\n",
           (unsigned long long)done, (unsigned long long)plains, (unsigned long long)seed,
           (unsigned long long)ok, (unsigned long long)limit, all);
    tell("slowest:", slow);
    tell("dearest:", dear);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--drive") == 0)
        return drive(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 5 && strcmp(argv[1], "--show") == 0) {
        record r;
        (void)one(strtoull(argv[2], NULL, 10), strtoull(argv[4], NULL, 10), argv[3][0] == 'p', &r,
                  true);
        printf("%.3f s, %.2f ns a unit: %s\n", r.seconds, r.unit, r.outcome);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bombs_end_within_their_work),
        cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(long_conversations_take_little_of_it),
        cmocka_unit_test(the_text_is_bounded_by_what_was_given),
        cmocka_unit_test(a_watch_ends_a_rendering),
        cmocka_unit_test(drawn_templates_end_within_their_work),
    };
    (void)alarm(HANG_SECONDS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
