/* ctest: apart stages=2:3 */
/* Suites on the family's base model: every kind runs, scores are those of fm_score, results are
 * kept by what they depend on. What the model knows is asked of it first, so that no weight is
 * assumed. */
#include <math.h>

#include "store/base/map.h"
#include "tests/model/suite_kit.h"

/* ---- kept results in a map ---- */

static fm_status get_kept(void *ctx, fm_buf *out, const char key[65])
{
    const char *value = fm_map_get(ctx, key, 64);
    if (!value)
        return fm_fail(FM_ENOTFOUND, "not kept");
    fm_buf_str(out, value);
    return fm_buf_ok(out);
}

static fm_status replace_kept(void *ctx, const char key[65], fm_span value)
{
    void *old = NULL;
    char *copy = fm_malloc(value.len + 1);
    memcpy(copy, value.data, value.len);
    copy[value.len] = '\0';
    fm_status rc = fm_map_put(ctx, key, 64, copy, &old);
    fm_free(old);
    return rc;
}

static void free_kept(fm_map *m)
{
    for (size_t i = 0; i < fm_map_count(m); i++)
        fm_free(fm_map_value_at(m, i));
    fm_map_free(m);
}

/* What the model says to the prompt, as the text of a YAML double-quoted scalar. */
static char *said(const sk_world *w, const char *prompt, bool chat)
{
    fm_suite *s = NULL;
    fm_suite_run run;
    fm_buf quoted;
    fm_buf_init(&quoted, 0);
    tk_ok(fm_suite_from_prompt(&s, prompt, "\x01 never said", chat));
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    assert_int_equal(run.failed, 1);
    assert_string_equal(run.result[0].output, run.result[0].answer);
    fm_json *v = fm_json_new_str(run.result[0].output);
    tk_ok(fm_json_write(&quoted, v, FM_JSON_COMPACT));
    fm_json_free(v);
    fm_suite_run_release(&run);
    fm_suite_free(s);
    return fm_buf_take(&quoted);
}

static const char every_kind[] =
    "suite: kinds\ncases:\n"
    "  - {name: text, chat: 'What is the capital of Ulevia?', expect: {equals: %s}}\n"
    "  - {name: text-not, chat: 'What is the capital of Ulevia?', expect: {not-equals: %s}}\n"
    "  - {name: messages, messages: [{role: user, content: 'What is the capital of Ulevia?'}],\n"
    "     expect: {equals: %s}}\n"
    "  - {name: choice, prompt: 'The capital of', choices: [' Ulevia', ' the'], answer: ' the'}\n"
    "  - {name: choice-other, prompt: 'The capital of', choices: [' Ulevia', ' the'],\n"
    "     answer: ' Ulevia'}\n"
    "  - {name: above, prompt: 'The capital', continuation: ' of', logprob-above: -1000}\n"
    "  - {name: below, prompt: 'The capital', continuation: ' of', logprob-below: -1000}\n"
    "  - {name: inv, kind: INV, chat: ['Who are you?', 'Who are you?']}\n"
    "  - {name: inv-expect, kind: INV, chat: ['Who are you?', 'Who are you?'],\n"
    "     expect: {contains: \"\\x01\"}}\n"
    "  - {name: inv-score, kind: INV, prompt: [a, a], continuation: b, margin: 0}\n"
    "  - {name: inv-score-far, kind: INV, prompt: [The capital, of of], continuation: ' of',\n"
    "     margin: 0.0001}\n"
    "  - {name: dir-up, kind: DIR, prompt: ['of of', 'The capital'], continuation: ' of',\n"
    "     direction: increases}\n"
    "  - {name: dir-down, kind: DIR, prompt: ['of of', 'The capital'], continuation: ' of',\n"
    "     direction: decreases}\n"
    "  - {name: dir-level, kind: DIR, prompt: [a, a], continuation: b, direction: increases}\n"
    "  - {name: too-long, prompt: a, generate: {max-tokens: 4096}, expect: {contains: a}}\n"
    "  - {name: no-prompt, prompt: '', expect: {contains: a}}\n";

static fm_suite *suite_of_every_kind(const sk_world *w)
{
    char *answer = said(w, "What is the capital of Ulevia?", true);
    char *yaml = fm_asprintf(every_kind, answer, answer, answer);
    fm_suite *s = sk_parsed(yaml);
    fm_free(yaml);
    fm_free(answer);
    return s;
}

static void every_kind_runs(void **state)
{
    const sk_world *w = *state;
    fm_suite *s = suite_of_every_kind(w);
    fm_suite_run run;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    sk_verdict(&run, "text", FM_PASS);
    sk_verdict(&run, "text-not", FM_FAIL);
    sk_verdict(&run, "messages", FM_PASS);
    bool the = sk_result(&run, "choice")->score > 0;
    sk_verdict(&run, "choice", the ? FM_PASS : FM_FAIL);
    sk_verdict(&run, "choice-other", the ? FM_FAIL : FM_PASS);
    assert_string_equal(sk_result(&run, "choice")->answer, the ? " the" : " Ulevia");
    tk_assert_le(fabs(sk_result(&run, "choice")->score + sk_result(&run, "choice-other")->score), 0,
                 "a lead is the other's loss");
    sk_verdict(&run, "above", FM_PASS);
    sk_verdict(&run, "below", FM_FAIL);
    sk_verdict(&run, "inv", FM_PASS);
    sk_verdict(&run, "inv-expect", FM_FAIL);
    sk_verdict(&run, "inv-score", FM_PASS);
    sk_verdict(&run, "inv-score-far", FM_FAIL);
    bool up = sk_result(&run, "dir-up")->verdict == FM_PASS;
    sk_verdict(&run, "dir-down", up ? FM_FAIL : FM_PASS);
    sk_verdict(&run, "dir-level", FM_FAIL);
    sk_verdict(&run, "too-long", FM_ERROR_CASE);
    fm_ids none = {0};
    tk_ok(fm_tokenizer_encode(fm_model_tokenizer(w->model), fm_span_str(""), true, &none));
    sk_verdict(&run, "no-prompt", none.count ? FM_FAIL : FM_ERROR_CASE);
    fm_ids_release(&none);
    assert_true(isnan(sk_result(&run, "text")->score));
    assert_int_equal(run.count, fm_suite_count(s));
    assert_int_equal(run.passed + run.failed + run.errors, run.count);
    assert_int_equal(run.cached, 0);
    fm_suite_run_release(&run);

    tk_ok(fm_suite_run_on(&run, s, w->model, "dir-level", NULL));
    assert_int_equal(run.count, 1);
    assert_string_equal(run.result[0].name, "dir-level");
    fm_suite_run_release(&run);
    tk_fails(fm_suite_run_on(&run, s, w->model, "nobody", NULL), FM_ENOTFOUND, "no case 'nobody'");
    assert_null(run.result);
    fm_suite_free(s);
}

/* log p(last tokens | first), by fm_score over one encoding of the whole text. */
static double score_of(const sk_world *w, const char *text, size_t tail, size_t *tokens)
{
    fm_ids ids = {0};
    double sum = 0;
    tk_ok(fm_tokenizer_encode(fm_model_tokenizer(w->model), fm_span_str(text), true, &ids));
    float *lp = fm_calloc(ids.count, sizeof *lp);
    tk_ok(fm_score(w->model, ids.id, ids.count, lp, NULL, 0));
    size_t first = tail ? ids.count - tail : *tokens;
    for (size_t i = first; i < ids.count; i++)
        sum += (double)lp[i];
    *tokens = ids.count;
    fm_free(lp);
    fm_ids_release(&ids);
    return sum;
}

static void continuations_are_scored_as_part_of_the_whole_text(void **state)
{
    const sk_world *w = *state;
    size_t context = 0, whole = 0, whole2 = 0, from;
    (void)score_of(w, "The capital of", 1, &context);
    from = context;
    double of_ulevia = score_of(w, "The capital of Ulevia", 0, &from);
    whole = from;
    from = context;
    double of_the = score_of(w, "The capital of the", 0, &from);
    whole2 = from;
    assert_true(whole > context && whole2 > context);
    fm_suite *s = sk_parsed(
        "suite: seam\ncases:\n"
        "  - {name: space-after, prompt: 'The capital of', continuation: ' Ulevia', logprob-above: "
        "-99}\n"
        "  - {name: space-before, prompt: 'The capital of ', continuation: Ulevia, logprob-above: "
        "-99}\n"
        "  - {name: none, prompt: 'The capital of', choices: [' Ulevia', ' the'], answer: ' the'}\n"
        "  - {name: tokens, prompt: 'The capital of', choices: [' Ulevia', ' the'], answer: ' "
        "the',\n"
        "     normalize: tokens}\n"
        "  - {name: bytes, prompt: 'The capital of', choices: [' Ulevia', ' the'], answer: ' "
        "the',\n"
        "     normalize: bytes}\n"
        "  - {name: inside, prompt: 'The capi', choices: ['tal of', 'tals'], answer: 'tal of'}\n");
    fm_suite_run run;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    tk_assert_le(fabs(sk_result(&run, "space-after")->score - of_ulevia), 0, "space after");
    tk_assert_le(fabs(sk_result(&run, "space-before")->score - of_ulevia), 0, "space before");
    tk_assert_le(fabs(sk_result(&run, "none")->score - (of_the - of_ulevia)), 0, "sums");
    tk_assert_le(fabs(sk_result(&run, "tokens")->score - (of_the / (double)(whole2 - context) -
                                                          of_ulevia / (double)(whole - context))),
                 0, "per token");
    tk_assert_le(fabs(sk_result(&run, "bytes")->score - (of_the / 4 - of_ulevia / 7)), 0,
                 "per byte");
    assert_int_not_equal(sk_result(&run, "inside")->verdict, FM_ERROR_CASE);
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

static void kept_results_are_the_same_and_run_nothing(void **state)
{
    const sk_world *w = *state;
    fm_suite *s = suite_of_every_kind(w);
    fm_map *kept = NULL;
    tk_ok(fm_map_new(&kept));
    fm_result_cache cache = {.ctx = kept, .get = get_kept, .put = replace_kept};
    fm_suite_run first, again;
    tk_ok(fm_suite_run_on(&first, s, w->model, NULL, &cache));
    size_t errors = first.errors;
    assert_true(errors >= 1);
    assert_true(fm_map_count(kept) <= first.count - errors); /* equal cases share one result */
    uint64_t steps = fm_engine_stats_of(w->engine).steps;
    tk_ok(fm_suite_run_on(&again, s, w->model, NULL, &cache));
    assert_int_equal(fm_engine_stats_of(w->engine).steps, steps);
    assert_int_equal(again.cached, again.count - errors); /* errors are asked again */
    for (size_t i = 0; i < first.count; i++) {
        const fm_case_result *a = &first.result[i], *b = &again.result[i];
        assert_int_equal(a->verdict, b->verdict);
        assert_int_equal(b->cached, a->verdict != FM_ERROR_CASE);
        if (a->verdict == FM_ERROR_CASE)
            continue;
        assert_string_equal(a->output, b->output);
        assert_string_equal(a->answer, b->answer);
        assert_string_equal(a->detail ? a->detail : "", b->detail ? b->detail : "");
        assert_true(a->score == b->score || (isnan(a->score) && isnan(b->score)));
    }
    fm_suite_run_release(&first);
    fm_suite_run_release(&again);
    fm_suite_free(s);
    free_kept(kept);
}

/* A shift is the same case with another seed; what does not sample has one key at any shift. */
static void a_seed_shift_is_another_seed_of_what_samples(void **state)
{
    const sk_world *w = *state;
    fm_suite *s =
        sk_parsed("suite: s\ngenerate: {max-tokens: 12}\ncases:\n"
                  "  - {name: at-7, prompt: The, expect: {contains: x}, generate: {temperature: 2, "
                  "seed: 7}}\n"
                  "  - {name: at-9, prompt: The, expect: {contains: x}, generate: {temperature: 2, "
                  "seed: 9}}\n"
                  "  - {name: greedy, prompt: The, expect: {contains: x}, generate: {seed: 7}}\n");
    const fm_suite_ask ask[] = {{.suite = s, .model = w->model},
                                {.suite = s, .model = w->model, .seed_shift = 2}};
    fm_suite_run run[2];
    char plain[65], shifted[65];
    tk_ok(fm_suites_run(run, ask, 2, NULL));
    assert_string_equal(run[1].result[0].output, run[0].result[1].output);
    assert_string_not_equal(run[1].result[0].output, run[0].result[0].output);
    assert_string_equal(run[1].result[2].output, run[0].result[2].output);
    for (size_t i = 0; i < 3; i++) {
        tk_ok(fm_ask_result_key(plain, &ask[0], i));
        tk_ok(fm_ask_result_key(shifted, &ask[1], i));
        assert_int_equal(strcmp(plain, shifted) != 0, i < 2);
        assert_int_equal(fm_suite_case_samples(s, i), i < 2);
        tk_ok(fm_result_key(shifted, s, i, w->model));
        assert_string_equal(plain, shifted);
    }
    fm_suite_run_release(&run[0]);
    fm_suite_run_release(&run[1]);
    fm_suite_free(s);
}

static void damaged_kept_results_are_run_again(void **state)
{
    const sk_world *w = *state;
    fm_suite *s =
        sk_parsed("suite: s\ncases:\n  - {name: a, prompt: The, continuation: ' capital', "
                  "logprob-above: -99}\n");
    fm_map *kept = NULL;
    char key[65];
    fm_suite_run run;
    tk_ok(fm_map_new(&kept));
    tk_ok(fm_result_key(key, s, 0, w->model));
    tk_ok(fm_map_put(kept, key, 64, fm_strdup("{\"verdict\":"), NULL));
    fm_result_cache cache = {.ctx = kept, .get = get_kept, .put = replace_kept};
    for (size_t round = 0; round < 2; round++) {
        tk_ok(fm_suite_run_on(&run, s, w->model, NULL, &cache));
        assert_int_equal(run.passed, 1);
        assert_int_equal(run.cached, round);
        fm_suite_run_release(&run);
    }
    fm_suite_free(s);
    free_kept(kept);
}

/* ---- keys ---- */

static void key_of(char key[65], const char *yaml, size_t i, const fm_model *m)
{
    fm_suite *s = sk_parsed(yaml);
    tk_ok(fm_result_key(key, s, i, m));
    fm_suite_free(s);
}

#define CASE_A "  - {name: a, prompt: The, expect: {contains: x}}\n"
#define CASE_B "  - {name: b, prompt: The, expect: {contains: y}}\n"

static void keys_follow_the_case_not_its_place(void **state)
{
    const sk_world *w = *state;
    char a[65], b[65], other[65];
    key_of(a, "suite: s\ncases:\n" CASE_A CASE_B, 0, w->model);
    key_of(b, "suite: s\ncases:\n" CASE_A CASE_B, 1, w->model);
    assert_int_equal(strlen(a), 64);
    assert_string_not_equal(a, b);
    key_of(other, "suite: t\ngate: true\ncases:\n" CASE_B CASE_A, 1, w->model);
    assert_string_equal(a, other);
    key_of(other, "suite: s\ncases:\n" CASE_A, 0, w->model);
    assert_string_equal(a, other);
    key_of(other, "suite: s\ngenerate: {seed: 1}\ncases:\n" CASE_A, 0, w->model);
    assert_string_not_equal(a, other);
}

static fm_model *changed_model(const sk_world *w, ik_mem *mem, fm_tree *tree, float last_norm,
                               const char *template)
{
    fm_model *m = NULL;
    float norm[1024];
    *mem = (ik_mem){.behind = {fm_source_provider(w->src)}, .behind_count = 1};
    fm_provider p = ik_provider(mem);
    uint32_t h = fm_model_arch(w->model)->hidden;
    for (size_t i = 0; i < 1024; i++)
        norm[i] = last_norm;
    if (!isinf(last_norm))
        ik_put(mem, tree, "tensors", "model.norm.weight", norm, 1, h, 0);
    if (template)
        tk_ok(fm_tree_put_file(tree, "tokenizer/chat_template.jinja", fm_span_str(template)));
    tk_ok(fm_model_load(&m, w->engine, tree, &p, "changed"));
    return m;
}

static void keys_follow_model_and_tokenizer(void **state)
{
    const sk_world *w = *state;
    static const char yaml[] = "suite: s\ncases:\n" CASE_A;
    char base[65], weights[65], text[65], same[65];
    ik_mem mem;
    key_of(base, yaml, 0, w->model);
    for (int round = 0; round < 3; round++) {
        fm_tree *tree = NULL;
        tk_ok(fm_tree_copy(&tree, fm_source_tree(w->src)));
        if (round == 2) /* what no verdict depends on */
            tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str("hello")));
        fm_model *m = changed_model(w, &mem, tree, round == 0 ? 0.5f : INFINITY,
                                    round == 1 ? "{{ messages[0]['content'] }}" : NULL);
        key_of(round == 0 ? weights : round == 1 ? text : same, yaml, 0, m);
        fm_model_close(m);
        fm_tree_free(tree);
        ik_mem_free(&mem);
    }
    assert_string_not_equal(base, weights);
    assert_string_not_equal(base, text);
    assert_string_not_equal(weights, text);
    assert_string_equal(base, same);
}

/* Weights that are not numbers must make errors: "not-contains" would pass on anything else. */
static void a_model_of_nan_has_errors_and_no_verdicts(void **state)
{
    const sk_world *w = *state;
    fm_tree *tree = NULL;
    ik_mem mem;
    fm_suite_run run;
    fm_suite *s =
        sk_parsed("suite: s\ncases:\n"
                  "  - {name: text, prompt: The, expect: {not-contains: x}}\n"
                  "  - {name: choice, prompt: The, choices: [' a', ' b'], answer: ' a'}\n"
                  "  - {name: logprob, prompt: The, continuation: ' a', logprob-below: 0}\n"
                  "  - {name: inv, kind: INV, prompt: [The, A], continuation: ' a', margin: 1}\n");
    tk_ok(fm_tree_copy(&tree, fm_source_tree(w->src)));
    fm_model *m = changed_model(w, &mem, tree, NAN, NULL);
    tk_ok(fm_suite_run_on(&run, s, m, NULL, NULL));
    for (size_t i = 0; i < run.count; i++) {
        assert_int_equal(run.result[i].verdict, FM_ERROR_CASE);
        assert_non_null(run.result[i].detail);
    }
    fm_suite_run_release(&run);
    fm_model_close(m);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_suite_free(s);
}

static bool stop_now(void *ctx)
{
    (void)ctx;
    return true;
}

/* What was not asked has no result, and above all no error that would be kept. */
static void a_stopped_rendering_stops_the_run(void **state)
{
    const sk_world *w = *state;
    fm_suite *s;
    fm_suite_run run = {0};
    fm_chat_watch watch = {.stop = stop_now};
    tk_ok(fm_suite_from_prompt(&s, "Who are you?", "never said", true));
    fm_chat_watch *before = fm_chat_watch_set(&watch);
    fm_status rc = fm_suite_run_on(&run, s, w->model, NULL, NULL);
    (void)fm_chat_watch_set(before);
    tk_fails(rc, FM_ECANCELLED, "stopped");
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

static void a_model_without_tokenizer_has_errors(void **state)
{
    const sk_world *w = *state;
    fm_tree *tree = NULL;
    size_t begin, end;
    ik_mem mem;
    fm_suite_run run;
    fm_suite *s = sk_parsed("suite: s\ncases:\n" CASE_A
                            "  - {name: c, chat: Hi, choices: [a, b], answer: a}\n");
    tk_ok(fm_tree_copy(&tree, fm_source_tree(w->src)));
    for (fm_tree_range(tree, "tokenizer/", &begin, &end); begin < end; end--)
        tk_ok(fm_tree_remove(tree, fm_tree_at(tree, end - 1)->path));
    fm_model *m = changed_model(w, &mem, tree, INFINITY, NULL);
    tk_ok(fm_suite_run_on(&run, s, m, NULL, NULL));
    assert_int_equal(run.errors, 2);
    assert_non_null(strstr(run.result[0].detail, "no tokenizer"));
    fm_suite_run_release(&run);
    fm_model_close(m);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_suite_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_runs),
        cmocka_unit_test(continuations_are_scored_as_part_of_the_whole_text),
        cmocka_unit_test(kept_results_are_the_same_and_run_nothing),
        cmocka_unit_test(a_seed_shift_is_another_seed_of_what_samples),
        cmocka_unit_test(damaged_kept_results_are_run_again),
        cmocka_unit_test(keys_follow_the_case_not_its_place),
        cmocka_unit_test(keys_follow_model_and_tokenizer),
        cmocka_unit_test(a_stopped_rendering_stops_the_run),
        cmocka_unit_test(a_model_without_tokenizer_has_errors),
        cmocka_unit_test(a_model_of_nan_has_errors_and_no_verdicts),
    };
    return cmocka_run_group_tests(tests, sk_open, sk_close);
}
