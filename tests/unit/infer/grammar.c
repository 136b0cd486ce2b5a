/* Schemas against texts that python's jsonschema judged (grammar_cases.json: all of `accept` is
 * valid; `reject` is not, or is not written by choice, see grammar.h), masks against reading
 * each token byte by byte, and random answers against a validator of this file's own. */
#include "infer/grammar.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "tests/testkit.h"
#include "tests/kit/grammar_kit.h"

/* ==== a validator, written from the specification of JSON schema for what the cases use ==== */

static bool valid(const fm_json *root, const fm_json *s, const fm_json *v);

static bool is_type(const fm_json *v, const char *name)
{
    static const char *const of[] = {"null",   "boolean", "integer", "number",
                                     "string", "array",   "object"};
    fm_json_type t = fm_json_typeof(v);

    return strcmp(of[t], name) == 0 || (t == FM_JSON_INT && strcmp(name, "number") == 0);
}

static bool valid_type(const fm_json *type, const fm_json *v)
{
    if (!fm_json_is(type, FM_JSON_ARRAY))
        return !type || is_type(v, fm_json_cstr(type, ""));
    for (size_t i = 0; i < fm_json_count(type); i++)
        if (is_type(v, fm_json_cstr(fm_json_at(type, i), "")))
            return true;
    return false;
}

static bool valid_number(const fm_json *s, const fm_json *v)
{
    double x = fm_json_real(v, 0);
    const fm_json *b;

    return !((b = fm_json_get(s, "minimum")) && x < fm_json_real(b, 0)) &&
           !((b = fm_json_get(s, "maximum")) && x > fm_json_real(b, 0)) &&
           !((b = fm_json_get(s, "exclusiveMinimum")) && x <= fm_json_real(b, 0)) &&
           !((b = fm_json_get(s, "exclusiveMaximum")) && x >= fm_json_real(b, 0));
}

static bool valid_string(const fm_json *s, const fm_json *v)
{
    fm_span t = fm_json_str(v);
    int64_t n = 0;

    for (size_t i = 0; i < t.len; i++)
        n += (t.data[i] & 0xc0) != 0x80;
    return n >= fm_json_int(fm_json_get(s, "minLength"), 0) &&
           n <= fm_json_int(fm_json_get(s, "maxLength"), INT64_MAX);
}

static bool valid_array(const fm_json *root, const fm_json *s, const fm_json *v)
{
    const fm_json *first = fm_json_get(s, "prefixItems"), *rest = fm_json_get(s, "items");
    size_t n = fm_json_count(v);

    if ((int64_t)n < fm_json_int(fm_json_get(s, "minItems"), 0) ||
        (int64_t)n > fm_json_int(fm_json_get(s, "maxItems"), INT64_MAX))
        return false;
    for (size_t i = 0; i < n; i++) {
        const fm_json *of = i < fm_json_count(first) ? fm_json_at(first, i) : rest;
        if (of && !valid(root, of, fm_json_at(v, i)))
            return false;
    }
    return true;
}

static bool valid_object(const fm_json *root, const fm_json *s, const fm_json *v)
{
    const fm_json *props = fm_json_get(s, "properties"), *need = fm_json_get(s, "required");
    const fm_json *more = fm_json_get(s, "additionalProperties");

    for (size_t i = 0; i < fm_json_count(need); i++)
        if (!fm_json_get(v, fm_json_cstr(fm_json_at(need, i), "")))
            return false;
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        const fm_json *of = fm_json_get(props, fm_json_iter_key(it));
        of = of ? of : more;
        if (of && !valid(root, of, fm_json_iter_value(it)))
            return false;
    }
    return true;
}

static bool in_list(const fm_json *list, const fm_json *v)
{
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fm_json_equal(fm_json_at(list, i), v))
            return true;
    return !list;
}

static size_t branches(const fm_json *root, const fm_json *list, const fm_json *v)
{
    size_t n = 0;

    for (size_t i = 0; i < fm_json_count(list); i++)
        n += valid(root, fm_json_at(list, i), v);
    return n;
}

static const fm_json *deref(const fm_json *root, const char *ref)
{
    const char *name = strrchr(ref, '/');

    if (!name)
        return root;
    const fm_json *hit = fm_json_get(fm_json_get(root, "$defs"), name + 1);
    return hit ? hit : fm_json_get(fm_json_get(root, "definitions"), name + 1);
}

static bool valid(const fm_json *root, const fm_json *s, const fm_json *v)
{
    const char *ref = fm_json_cstr(fm_json_get(s, "$ref"), NULL);
    const fm_json *all = fm_json_get(s, "allOf"), *any = fm_json_get(s, "anyOf");
    const fm_json *only = fm_json_get(s, "const");

    if (fm_json_is(s, FM_JSON_BOOL))
        return fm_json_bool(s, false);
    if (ref && !valid(root, deref(root, ref), v))
        return false;
    if (!valid_type(fm_json_get(s, "type"), v) || !in_list(fm_json_get(s, "enum"), v) ||
        (only && !fm_json_equal(only, v)))
        return false;
    if ((any && branches(root, any, v) == 0) || branches(root, all, v) != fm_json_count(all))
        return false;
    switch (fm_json_typeof(v)) {
    case FM_JSON_INT:
    case FM_JSON_REAL:
        return valid_number(s, v);
    case FM_JSON_STRING:
        return valid_string(s, v);
    case FM_JSON_ARRAY:
        return valid_array(root, s, v);
    case FM_JSON_OBJECT:
        return valid_object(root, s, v);
    case FM_JSON_NULL:
    case FM_JSON_BOOL:
        break;
    }
    return true;
}

/* ==== the cases ==== */

static fm_json *load_cases(void)
{
    char *path = tk_source("tests/unit/infer/grammar_cases.json");
    fm_json *list;

    tk_ok(fm_json_parse_file(&list, path, (size_t)1 << 22));
    fm_free(path);
    return list;
}

static bool accepts(fm_grammar *g, fm_span text)
{
    fm_grammar_state *st;

    tk_ok(fm_grammar_state_new(&st, g, NULL));
    bool yes = fm_grammar_accept_bytes(st, text) == FM_OK && fm_grammar_complete(st);
    fm_grammar_state_free(st);
    return yes;
}

TEST(texts_are_taken_as_jsonschema_judges_them)
{
    fm_json *list = load_cases();

    assert_true(fm_json_count(list) >= 30);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *c = fm_json_at(list, i);
        const fm_json *yes = fm_json_get(c, "accept"), *no = fm_json_get(c, "reject");
        fm_grammar *g;
        tk_ok(fm_grammar_new(&g, fm_json_get(c, "schema"), false));
        for (size_t k = 0; k < fm_json_count(yes); k++)
            if (!accepts(g, fm_json_str(fm_json_at(yes, k))))
                fail_msg("case %zu refuses %s", i, fm_json_cstr(fm_json_at(yes, k), ""));
        for (size_t k = 0; k < fm_json_count(no); k++)
            if (accepts(g, fm_json_str(fm_json_at(no, k))))
                fail_msg("case %zu takes %s", i, fm_json_cstr(fm_json_at(no, k), ""));
        fm_grammar_free(g);
    }
    fm_json_free(list);
}

static bool allowed(const uint64_t *mask, int32_t id)
{
    return mask[id / 64] >> (id % 64) & 1;
}

/* The mask against reading each token's bytes from the same place. */
static void check_mask(fm_grammar *g, const fm_token_trie *trie, const fm_tokenizer *t,
                       const fm_buf *so_far, const uint64_t *mask)
{
    fm_grammar_state *st;

    tk_ok(fm_grammar_state_new(&st, g, trie));
    for (int32_t id = 0; id < (int32_t)fm_tokenizer_vocab_size(t); id++) {
        fm_grammar_state_free(st);
        tk_ok(fm_grammar_state_new(&st, g, trie));
        tk_ok(fm_grammar_accept_bytes(st, fm_buf_span(so_far)));
        if ((fm_grammar_accept(st, id) == FM_OK) != allowed(mask, id))
            fail_msg("token %d behind '%s': mask %d", id, fm_buf_cstr(so_far), allowed(mask, id));
    }
    fm_grammar_state_free(st);
}

/* A random allowed token; late in an answer one that closes something, if there is one. */
static int32_t draw(const fm_tokenizer *t, const uint64_t *mask, uint64_t seed, uint64_t n,
                    bool close)
{
    int32_t vocab = (int32_t)fm_tokenizer_vocab_size(t), best = -1;
    double most = -1;

    for (int32_t id = 0; id < vocab; id++) {
        fm_span s = fm_tokenizer_token_bytes(t, id);
        if (!allowed(mask, id))
            continue;
        double u = fm_rng_uniform(seed, n, (uint64_t)id);
        if (close && (memchr(s.data, '"', s.len) || memchr(s.data, '}', s.len) ||
                      memchr(s.data, ']', s.len)))
            u += 1;
        if (close && (memchr(s.data, '[', s.len) || memchr(s.data, '{', s.len) ||
                      memchr(s.data, '\\', s.len)))
            u -= 1;
        if (u > most) {
            most = u;
            best = id;
        }
    }
    return best;
}

/* false: not finished in time. */
static bool random_answer(fm_buf *out, fm_grammar *g, const fm_token_trie *trie,
                          const fm_tokenizer *t, uint64_t seed)
{
    uint64_t *mask = fm_calloc(fm_token_trie_words(trie), sizeof *mask);
    fm_grammar_state *st;
    bool done = false;

    assert_non_null(mask);
    tk_ok(fm_grammar_state_new(&st, g, trie));
    for (uint64_t n = 0; n < 300 && !done; n++) {
        tk_ok(fm_grammar_mask(st, mask));
        if (seed % 4 == 0 && n % 7 == seed / 4 % 7)
            check_mask(g, trie, t, out, mask);
        int32_t id = draw(t, mask, seed, n, n > 20 && n % 3 > 0);
        done = fm_grammar_complete(st) && (id < 0 || n % 2 == 0);
        if (done)
            break;
        tk_ok(fm_grammar_accept(st, id));
        fm_span s = fm_tokenizer_token_bytes(t, id);
        fm_buf_append(out, s.data, s.len);
    }
    assert_true(!fm_grammar_ended(st) || fm_grammar_complete(st));
    fm_grammar_state_free(st);
    fm_free(mask);
    return done;
}

TEST(random_answers_parse_and_satisfy_their_schema)
{
    fm_json *list = load_cases();
    fm_tokenizer *t = gk_tokenizer();
    fm_token_trie *trie;
    size_t finished = 0, all = 0;

    tk_ok(fm_token_trie_new(&trie, t));
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *schema = fm_json_get(fm_json_at(list, i), "schema");
        for (uint64_t seed = 0; seed < 8; seed++, all++) {
            fm_grammar *g;
            fm_buf out;
            fm_json *v = NULL;
            tk_ok(fm_grammar_new(&g, schema, seed & 1));
            fm_buf_init(&out, 0);
            bool done = random_answer(&out, g, trie, t, seed + 100 * i);
            fm_status rc = done ? fm_json_parse(&v, fm_buf_span(&out), "answer") : FM_OK;
            if (rc < 0 && !strstr(fm_error_text(), "duplicate")) /* see grammar.h */
                fail_msg("case %zu: %s: %s", i, fm_error_text(), fm_buf_cstr(&out));
            if (v && !valid(schema, schema, v))
                fail_msg("case %zu: not valid: %s", i, fm_buf_cstr(&out));
            finished += done;
            fm_json_free(v);
            fm_buf_release(&out);
            fm_grammar_free(g);
        }
    }
    fm_token_trie_free(trie);
    fm_tokenizer_close(t);
    fm_json_free(list);
    print_message("%zu of %zu random answers finished\n", finished, all);
    assert_true(finished * 10 > all * 7);
}

/* ==== refusals ==== */

static void refused(const char *text, fm_status status, const char *needle)
{
    fm_json *schema;
    fm_grammar *g;

    tk_ok(fm_json_parse(&schema, fm_span_str(text), "schema"));
    tk_fails(fm_grammar_new(&g, schema, false), status, needle);
    assert_null(g);
    fm_json_free(schema);
}

TEST(what_is_not_understood_is_refused_by_name_and_place)
{
    refused("[]", FM_EINVAL, "object or a boolean");
    refused("{\"type\":\"object\",\"properties\":{\"a\":{\"multipleOf\":3,\"type\":\"integer\"}}}",
            FM_EUNSUPPORTED, "schema.a: keyword 'multipleOf'");
    refused("{\"type\":\"array\",\"items\":{\"not\":{}}}", FM_EUNSUPPORTED,
            "schema.items: keyword 'not'");
    refused("{\"patternProperties\":{\"x\":{}}}", FM_EUNSUPPORTED, "'patternProperties'");
    refused("{\"type\":\"strnig\"}", FM_EINVAL, "strnig");
    refused("{\"type\":\"string\",\"format\":\"hostname\"}", FM_EUNSUPPORTED, "hostname");
    refused("{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":2}", FM_EUNSUPPORTED,
            "minLength");
    refused("{\"type\":\"array\",\"uniqueItems\":true}", FM_EUNSUPPORTED, "uniqueItems");
    refused("{\"$ref\":\"other.json\"}", FM_EUNSUPPORTED, "out of the schema");
    refused("{\"$ref\":\"#/$defs/x\"}", FM_EINVAL, "leads to no schema");
    refused("{\"$ref\":\"#/enum/0\",\"enum\":[{}]}", FM_EINVAL, "leads to no schema");
    refused("{\"allOf\":[{\"prefixItems\":[{\"minimum\":3}]}],\"items\":{\"minimum\":5}}",
            FM_EUNSUPPORTED, "'items' of one schema and 'prefixItems' of another");
    refused("{\"minimum\":1e300}", FM_EUNSUPPORTED, "1e15");
    refused("{\"minimum\":\"x\"}", FM_EINVAL, "'minimum' must be a number");
    refused("{\"maxItems\":100000}", FM_ELIMIT, "'maxItems'");
    refused("{\"minItems\":-1}", FM_EINVAL, "'minItems'");
}

/* Schemas whose branches cannot hold at once are among the cases. */
TEST(branches_that_may_hold_at_once_are_refused)
{
    static const char *const schema[] = {
        "[true,{'type':'string'}]",
        "[{'type':'integer'},{'type':'number'}]",
        "[{'type':['string','null']},{'type':['null','integer']}]",
        "[{'type':'integer'},{'minimum':2}]",
        "[{'enum':[1,2]},{'enum':[2.0,3]}]",
        "[{'const':{'a':[1]}},{'const':{'a':[1.0]}}]",
        "[{'enum':['a','b']},{'type':'string'}]",
        "[{'type':'string'},{'properties':{'a':true}}]", /* the second one holds for strings too */
        "[{'type':'array','items':{'type':'string'}},{'type':'array','items':{'type':'null'}}]",
        "[{'type':'object','properties':{'a':{'const':1}}},"
        "{'type':'object','properties':{'a':{'const':2}}}]", /* {} */
        "[{'type':'object','required':['a']},{'type':'object','required':['b']}]",
        "[{'type':'object','properties':{'a':true,'b':true},'required':['a']},"
        "{'type':'object','properties':{'b':true},'required':['b']}]",
        "[{'properties':{'k':{'const':1}},'required':['k']},"
        "{'properties':{'k':{'const':2}},'required':['k']},"
        "{'properties':{'k':{'enum':[0,1]}},'required':['k']}]",
        "[{'anyOf':[{'type':'string'},{'type':'null'}]},{'type':'null'}]",
        "[{'type':'null'},{'$ref':'#'}]",
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(schema); i++) {
        char *text = fm_asprintf("{\"oneOf\":%s}", schema[i]);
        for (char *p = text; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        refused(text, FM_EUNSUPPORTED, "'oneOf': a value of branch");
        fm_free(text);
    }
    refused("{\"properties\":{\"p\":{\"oneOf\":[{},{}]}}}", FM_EUNSUPPORTED,
            "schema.p: 'oneOf': a value of branch 0 may satisfy branch 1 too");
}

TEST(what_nothing_satisfies_is_refused)
{
    refused("false", FM_EINVAL, "no value");
    refused("{\"enum\":[]}", FM_EINVAL, "no value");
    refused("{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", FM_EINVAL, "no value");
    refused("{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", FM_EINVAL, "no value");
    refused("{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", FM_EINVAL,
            "no value");
    refused("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
            FM_EINVAL, "no value"); /* a value without end */
    refused("{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}", FM_EINVAL,
            "'a' is required");
}

TEST(patterns_outside_the_subset_are_refused)
{
    static const char *const bad[] = {
        "(a)\\\\1", "(?=a)", "a\\\\b", "\\\\p{L}", "(?<n>a)", "a**", "a{2,1}",      "[b-a]", "(a",
        "a)",       "[a",    "a{",     "*a",       "(^a)",    "a$b", "[[:alpha:]]", "a\\\\"};
    char text[128];

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        (void)snprintf(text, sizeof text, "{\"type\":\"string\",\"pattern\":\"%s\"}", bad[i]);
        refused(text, FM_EUNSUPPORTED, "pattern");
    }
}

TEST(hostile_schemas_end)
{
    fm_buf b;

    refused("{\"$ref\":\"#\"}", FM_ELIMIT, "refers to itself");
    refused("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", FM_ELIMIT, "refers to itself");
    refused("{\"allOf\":[{\"$ref\":\"#\"}]}", FM_ELIMIT, "refers to itself");
    refused("{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){18}$\"}", FM_ELIMIT, NULL);
    refused("{\"type\":\"string\",\"pattern\":\"((((a{99}){99}){99}){99}){99}\"}", FM_ELIMIT, NULL);
    fm_buf_init(&b, 0);
    for (int i = 0; i < 500; i++)
        fm_buf_str(&b, "{\"anyOf\":[");
    fm_buf_str(&b, "true");
    for (int i = 0; i < 500; i++)
        fm_buf_str(&b, "]}");
    refused(fm_buf_cstr(&b), FM_ELIMIT, "refers to itself");
    fm_buf_clear(&b);
    fm_buf_str(&b, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 20000; i++)
        fm_buf_printf(&b, "%s\"p%d\":{\"type\":\"string\"}", i ? "," : "", i);
    fm_buf_str(&b, "}}");
    refused(fm_buf_cstr(&b), FM_ELIMIT, NULL);
    fm_buf_release(&b);
}

/* Two ways to read every bracket: configurations would double at each, but are bounded. */
TEST(ambiguity_stays_bounded)
{
    fm_json *schema;
    fm_grammar *g;
    fm_grammar_state *st;

    tk_ok(fm_json_parse(&schema,
                        fm_span_str("{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"array\",\"items\":{"
                                    "\"$ref\":\"#/$defs/t\"},\"minItems\":1},{\"type\":\"array\","
                                    "\"items\":{\"$ref\":\"#/$defs/t\"},\"maxItems\":3}]}},"
                                    "\"$ref\":\"#/$defs/t\"}"),
                        "schema"));
    tk_ok(fm_grammar_new(&g, schema, true));
    tk_ok(fm_grammar_state_new(&st, g, NULL));
    for (int i = 0; i < 400; i++)
        tk_ok(fm_grammar_accept_bytes(st, fm_span_str("[")));
    for (int i = 0; i < 400; i++)
        tk_ok(fm_grammar_accept_bytes(st, fm_span_str("]")));
    assert_true(fm_grammar_ended(st));
    tk_fails(fm_grammar_accept_bytes(st, fm_span_str("]")), FM_EINVAL, "not allowed");
    assert_true(fm_grammar_ended(st)); /* as before */
    fm_grammar_state_free(st);
    fm_grammar_free(g);
    fm_json_free(schema);
}

TEST(special_tokens_are_never_part_of_a_value)
{
    fm_tokenizer *t = gk_tokenizer();
    fm_token_trie *trie;
    fm_grammar *g;
    fm_grammar_state *st;
    uint64_t *mask;

    tk_ok(fm_token_trie_new(&trie, t));
    tk_ok(fm_grammar_new_object(&g, false));
    tk_ok(fm_grammar_state_new(&st, g, trie));
    mask = fm_calloc(fm_token_trie_words(trie), sizeof *mask);
    assert_non_null(mask);
    tk_ok(fm_grammar_accept_bytes(st, fm_span_str("{\"a")));
    tk_ok(fm_grammar_mask(st, mask));
    assert_false(allowed(mask, 0)); /* "</s>" would be fine text inside a string */
    tk_fails(fm_grammar_accept(st, 0), FM_EINVAL, "no text");
    tk_fails(fm_grammar_accept(st, 100000), FM_EINVAL, "no text");
    assert_false(fm_grammar_complete(st));
    tk_ok(fm_grammar_accept_bytes(st, fm_span_str("\": 1}")));
    assert_true(fm_grammar_ended(st));
    tk_ok(fm_grammar_mask(st, mask));
    for (size_t i = 0; i < fm_token_trie_words(trie); i++)
        assert_int_equal(mask[i], 0);
    fm_free(mask);
    fm_grammar_state_free(st);
    fm_grammar_free(g);
    fm_token_trie_free(trie);
    fm_tokenizer_close(t);
}

TEST(every_failed_allocation_is_reported)
{
    fm_json *schema;
    fm_tokenizer *t = gk_tokenizer();

    tk_ok(fm_json_parse(&schema,
                        fm_span_str("{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"string\","
                                    "\"pattern\":\"^[ab]+$\"}},\"required\":[\"a\"]},{"
                                    "\"properties\":{\"a\":{\"description\":\"x\"}}}]}"),
                        "schema"));
    for (uint64_t n = 1; n < 3000; n++) {
        fm_grammar *g = NULL;
        fm_token_trie *trie = NULL;
        fm_grammar_state *st = NULL;
        uint64_t mask[16];
        fm_mem_fail_at(n, false);
        fm_status rc = fm_token_trie_new(&trie, t);
        assert_true(rc < 0 || fm_token_trie_words(trie) <= FM_ARRAY_LEN(mask));
        if (rc == FM_OK)
            rc = fm_grammar_new(&g, schema, true);
        if (rc == FM_OK)
            rc = fm_grammar_state_new(&st, g, trie);
        if (rc == FM_OK)
            rc = fm_grammar_accept_bytes(st, fm_span_str("{\"a\":\"a"));
        if (rc == FM_OK)
            rc = fm_grammar_mask(st, mask);
        fm_mem_fail_at(0, false);
        fm_grammar_state_free(st);
        fm_grammar_free(g);
        fm_token_trie_free(trie);
        if (rc == FM_OK) {
            assert_true(n > 50);
            fm_tokenizer_close(t);
            fm_json_free(schema);
            return;
        }
        if (rc != FM_ENOMEM)
            fail_msg("allocation %d: %s", (int)n, fm_error_text());
    }
    fail_msg("never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_understood_is_refused_by_name_and_place),
        cmocka_unit_test(branches_that_may_hold_at_once_are_refused),
        cmocka_unit_test(what_nothing_satisfies_is_refused),
        cmocka_unit_test(patterns_outside_the_subset_are_refused),
        cmocka_unit_test(texts_are_taken_as_jsonschema_judges_them),
        cmocka_unit_test(random_answers_parse_and_satisfy_their_schema),
        cmocka_unit_test(special_tokens_are_never_part_of_a_value),
        cmocka_unit_test(hostile_schemas_end),
        cmocka_unit_test(ambiguity_stays_bounded),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
