/* SmolLM2 under a schema: every answer that ends parses and has the schema's fields, and what a
 * mask takes beside what a token takes. */
#include "tests/model/infer_kit.h"

#include <time.h>

#include "infer/prompt.h"

#define ASKS 3
#define ANSWERS (2 * ASKS)

static const char schema_text[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":30},"
    "\"age\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":120},\"tags\":{\"type\":\"array\","
    "\"items\":{\"type\":\"string\",\"maxLength\":20},\"minItems\":1,\"maxItems\":3}},"
    "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}";

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t code_points(fm_span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += (s.data[i] & 0xc0) != 0x80;
    return n;
}

static void check_answer(const char *text)
{
    fm_json *v = NULL;
    if (fm_json_parse(&v, fm_span_str(text), "answer") < 0)
        fail_msg("%s: %s", fm_error_text(), text);
    const fm_json *tags = fm_json_get(v, "tags");
    int64_t age = fm_json_int(fm_json_get(v, "age"), 0);
    fm_span name = fm_json_str(fm_json_get(v, "name"));
    assert_int_equal(fm_json_count(v), 3);
    assert_true(name.data && code_points(name) <= 30);
    assert_true(fm_json_is(fm_json_get(v, "age"), FM_JSON_INT) && age >= 1 && age <= 120);
    assert_true(fm_json_count(tags) >= 1 && fm_json_count(tags) <= 3);
    for (size_t i = 0; i < fm_json_count(tags); i++)
        assert_true(code_points(fm_json_str(fm_json_at(tags, i))) <= 20);
    fm_json_free(v);
}

/* Masks along the tokens of an answer: cold, then once more. */
static void time_masks(fm_grammar *g, const fm_token_trie *trie, const fm_gen_result *r)
{
    uint64_t *mask = fm_calloc(fm_token_trie_words(trie), sizeof *mask);
    assert_non_null(mask);
    for (int pass = 0; pass < 2; pass++) {
        fm_grammar_state *st;
        double seconds = 0;
        size_t n = 0;
        tk_ok(fm_grammar_state_new(&st, g, trie));
        for (; n < r->count; n++) {
            double begun = cpu_seconds();
            tk_ok(fm_grammar_mask(st, mask));
            seconds += cpu_seconds() - begun;
            if (fm_grammar_accept(st, r->tokens[n]) < 0)
                break; /* the end of text */
        }
        print_message("%s masks: %.1f us each over %zu\n", pass ? "later" : "first",
                      seconds / (double)(n ? n : 1) * 1e6, n);
        fm_grammar_state_free(st);
    }
    fm_free(mask);
}

TEST(answers_of_a_real_model_satisfy_the_schema)
{
    static const char *const ask[ASKS] = {"Describe a sailor as JSON.", "Invent a cook.",
                                          "Who was Ada Lovelace? Answer in JSON."};
    fm_source *src = NULL;
    char *path = tk_smollm2_gguf();
    fm_ids ids[ASKS] = {{0}};
    fm_gen_request q[ANSWERS] = {{0}};
    fm_gen_result r[ANSWERS];
    fm_json *schema;
    fm_grammar *g;
    fm_token_trie *trie;
    size_t ended = 0;

    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    fm_engine *e = ik_engine(0, 512);
    fm_model *m = ik_model(e, src, "smollm2");
    tk_ok(fm_json_parse(&schema, fm_span_str(schema_text), "schema"));
    tk_ok(fm_grammar_new(&g, schema, false));
    for (size_t i = 0; i < ANSWERS; i++) {
        if (i < ASKS)
            tk_ok(fm_prompt_user(&ids[i], m, fm_span_str(ask[i])));
        q[i] = (fm_gen_request){.model = m,
                                .prompt = ids[i % ASKS].id,
                                .prompt_len = ids[i % ASKS].count,
                                .max_new = 120,
                                .grammar = g};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.temperature = i < ASKS ? 0.0f : 1.0f;
        q[i].sampling.seed = i;
    }
    tk_ok(fm_generate(e, q, ANSWERS, r));
    for (size_t i = 0; i < ANSWERS; i++) {
        const char *text = fm_buf_cstr(&r[i].text);
        bool stop = strcmp(r[i].finish, "stop") == 0;
        print_message("%s: %s\n", r[i].finish, text);
        assert_true(stop || strcmp(r[i].finish, "length") == 0);
        if (stop)
            check_answer(text);
        ended += stop;
    }
    assert_true(ended >= ANSWERS - 2);
    tk_ok(fm_token_trie_new(&trie, fm_model_tokenizer(m)));
    fm_grammar_free(g);
    tk_ok(fm_grammar_new(&g, schema, false));
    time_masks(g, trie, &r[0]);
    for (size_t i = 0; i < ANSWERS; i++)
        fm_gen_result_release(&r[i]);
    for (size_t i = 0; i < ASKS; i++)
        fm_ids_release(&ids[i]);
    fm_token_trie_free(trie);
    fm_grammar_free(g);
    fm_json_free(schema);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_of_a_real_model_satisfy_the_schema),
    };
    char *path = tk_smollm2_gguf();

    if (!path)
        return tk_skip("no SmolLM2 GGUF");
    fm_free(path);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
