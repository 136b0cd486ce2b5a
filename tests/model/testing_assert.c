/* What a case may ask and what other models say of answers, on the family's base model: it is its
 * own judge and embedder, and with a head of four numbers a classifier. Figures are recomputed from
 * fm_score, fm_embed_many and fm_classify_many. */
#include <math.h>

#include "infer/prompt.h"
#include "tests/model/suite_kit.h"

#define BASE "00000000000000000000000000000000000000aa"
#define HEAD "00000000000000000000000000000000000000bb"
#define NEAR_SUM 1e-4

typedef struct world {
    fm_source *src;
    fm_engine *engine;
    fm_model *model, *head;
    fm_tree *tree;
    ik_mem mem;
    unsigned opened;
} world;

/* The base with two classes in place of a vocabulary: yes is the first element of the state, no
 * the second. */
static void make_head(world *w)
{
    size_t hidden = fm_model_arch(w->model)->hidden;
    float *rows = fm_calloc(2 * hidden, sizeof *rows);
    fm_json *doc = NULL, *names = NULL;
    fm_buf text;
    rows[0] = rows[hidden + 1] = 1;
    tk_ok(fm_tree_copy(&w->tree, fm_source_tree(w->src)));
    const fm_entry *e = fm_tree_find(w->tree, "model.json");
    tk_ok(fm_json_parse(&doc, fm_span_of(e->data, (size_t)e->bytes), "model.json"));
    fm_json *config = fm_json_ref(fm_json_get(doc, "config"));
    tk_ok(fm_json_parse(&names, fm_span_str("[\"LlamaForSequenceClassification\"]"), "t"));
    tk_ok(fm_json_set(config, "architectures", names));
    tk_ok(fm_json_parse(&names, fm_span_str("{\"0\": \"yes\", \"1\": \"no\"}"), "t"));
    tk_ok(fm_json_set(config, "id2label", names));
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, doc, FM_JSON_CANONICAL));
    tk_ok(fm_tree_put_file(w->tree, "model.json", fm_buf_span(&text)));
    ik_put(&w->mem, w->tree, "tensors", "score.weight", rows, 2, 2, hidden);
    w->mem.behind[0] = fm_source_provider(w->src);
    w->mem.behind_count = 1;
    fm_provider p = ik_provider(&w->mem);
    tk_ok(fm_model_load(&w->head, w->engine, w->tree, &p, "head"));
    fm_json_free(config);
    fm_json_free(doc);
    fm_buf_release(&text);
    fm_free(rows);
}

static int open_world(void **state)
{
    world *w = fm_calloc(1, sizeof *w);
    char *path = tk_source("examples/atlas/base");
    tk_ok(fm_source_open(&w->src, path));
    fm_free(path);
    w->engine = ik_engine(2, 256);
    w->model = ik_model(w->engine, w->src, "base");
    make_head(w);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    world *w = *state;
    fm_model_close(w->head);
    fm_model_close(w->model);
    fm_engine_free(w->engine);
    fm_tree_free(w->tree);
    ik_mem_free(&w->mem);
    fm_source_close(w->src);
    fm_free(w);
    return 0;
}

static fm_status open_by_id(void *ctx, const char *id, fm_model **out)
{
    world *w = ctx;
    fm_provider head = ik_provider(&w->mem), base = fm_source_provider(w->src);
    w->opened++;
    if (strcmp(id, BASE) == 0)
        return fm_model_load(out, w->engine, fm_source_tree(w->src), &base, id);
    if (strcmp(id, HEAD) == 0)
        return fm_model_load(out, w->engine, w->tree, &head, id);
    return fm_fail(FM_EINVAL, "model '%s' is a name, and may move: write its id", id);
}

static fm_result_cache env_of(world *w)
{
    return (fm_result_cache){.ctx = w, .open = open_by_id};
}

static void expect_error(const fm_suite_run *run, const char *name, const char *why)
{
    sk_verdict(run, name, FM_ERROR_CASE);
    if (!strstr(sk_result(run, name)->detail, why))
        fail_msg("%s: %s", name, sk_result(run, name)->detail);
}

static void near_score(const fm_suite_run *run, const char *name, double want)
{
    double have = sk_result(run, name)->score;
    if (!(fabs(have - want) <= NEAR_SUM * FM_MAX(1, fabs(want))))
        fail_msg("%s: score %.6f, want %.6f", name, have, want);
}

/* ---- judges, embedders, classifiers ---- */

#define ASK "chat: What is the capital of Ulevia?, expect: "
static const char helped[] =
    "suite: helped\ngenerate: {max-tokens: 16}\ncases:\n"
    "  - {name: rubric, " ASK "{llm-rubric: it names a city, model: '" BASE "'}}\n"
    "  - {name: rubric-not, " ASK "{not-llm-rubric: it names a city, model: '" BASE "'}}\n"
    "  - {name: facts, " ASK "{factuality: Kingswick, model: '" BASE "'}}\n"
    "  - {name: facts-not, " ASK "{not-factuality: Kingswick, model: '" BASE "'}}\n"
    "  - {name: qa, " ASK "{model-graded-closedqa: short, model: '" BASE "'}}\n"
    "  - {name: qa-not, " ASK "{not-model-graded-closedqa: short, model: '" BASE "'}}\n"
    "  - {name: alike, " ASK "{similar: The capital of Ulevia is Kingswick., model: '" BASE "',\n"
    "     threshold: 0.5, metric: near}}\n"
    "  - {name: unlike, " ASK "{similar: [x, y z], model: '" BASE "', threshold: 0.99}}\n"
    "  - {name: no-branch, " ASK "{similar: x, model: atlas}}\n"
    "  - {name: no-head, " ASK "{classifier: yes, model: '" BASE "', threshold: 0.5}}\n"
    "  - {name: no-label, " ASK "{classifier: maybe, model: '" HEAD "', threshold: 0.5}}\n"
    "  - {name: label, " ASK "{classifier: 'yes', model: '" HEAD "', threshold: 0.5}}\n"
    "  - {name: label-no, " ASK "{classifier: 'no', model: '" HEAD "', threshold: 0.5}}\n"
    "  - {name: sure, " ASK "{perplexity: true, threshold: 2}}\n"
    "  - {name: unsure, " ASK "{not-perplexity: true, threshold: 2}}\n";

static void passes_or_fails_as_its_negation_does_not(const fm_suite_run *run, const char *name,
                                                     const char *negated)
{
    const fm_case_result *a = sk_result(run, name), *b = sk_result(run, negated);
    if (a->verdict == FM_ERROR_CASE || a->verdict == b->verdict)
        fail_msg("%s: %s, %s: %s", name, a->detail, negated, b->detail);
    tk_assert_le(fabs(a->score + b->score - 1), 1e-12, "scores of an assertion and its negation");
}

static void other_models_are_asked_about_answers(void **state)
{
    world *w = *state;
    fm_suite *s = sk_parsed(helped);
    fm_result_cache env = env_of(w);
    fm_suite_run run;
    w->opened = 0;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, &env));
    assert_int_equal(w->opened, 3); /* base, head, and the name that is none: once each */
    passes_or_fails_as_its_negation_does_not(&run, "rubric", "rubric-not");
    passes_or_fails_as_its_negation_does_not(&run, "facts", "facts-not");
    passes_or_fails_as_its_negation_does_not(&run, "qa", "qa-not");
    sk_verdict(&run, "alike", FM_PASS);
    sk_verdict(&run, "unlike", FM_FAIL);
    assert_true(fm_json_real(fm_json_get(sk_result(&run, "alike")->metrics, "near"), -1) ==
                sk_result(&run, "alike")->score);
    expect_error(&run, "no-branch", "is a name, and may move");
    expect_error(&run, "no-head", "no classification head");
    expect_error(&run, "no-label", "no class 'maybe' (it has yes, no)");
    double yes = sk_result(&run, "label")->score, no = sk_result(&run, "label-no")->score;
    tk_assert_le(fabs(yes + no - 1), 1e-6, "probabilities of both classes");
    sk_verdict(&run, "label", yes >= 0.5 ? FM_PASS : FM_FAIL);
    sk_verdict(&run, "label-no", no >= 0.5 ? FM_PASS : FM_FAIL);
    sk_verdict(&run, "sure", FM_PASS);
    sk_verdict(&run, "unsure", FM_FAIL);
    fm_suite_run_release(&run);
    tk_ok(fm_suite_run_on(&run, s, w->model, "alike", NULL));
    expect_error(&run, "alike", "no repository is at hand");
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

/* ---- scores against the engine's own ---- */

static fm_ids alone(const world *w, const char *text)
{
    fm_ids ids = {0};
    tk_ok(fm_ids_push(&ids, fm_tokenizer_bos(fm_model_tokenizer(w->model))));
    tk_ok(fm_tokenizer_encode(fm_model_tokenizer(w->model), fm_span_str(text), false, &ids));
    return ids;
}

static double sum_score(const world *w, const int32_t *ids, size_t n, size_t from)
{
    float lp[512];
    double sum = 0;
    assert_true(n <= 512);
    tk_ok(fm_score(w->model, ids, n, lp, NULL, 0));
    for (size_t i = from; i < n; i++)
        sum += (double)lp[i];
    return sum;
}

#define LONG "The capital of Ulevia is Kingswick. Who are you, and what river runs through Dorador?"

static void rolling_perplexity_is_lm_eval_s(void **state)
{
    world *w = *state;
    fm_ids ids = alone(w, LONG);
    size_t t = ids.count - 1, words = 15, bytes = strlen(LONG), part = t / 2 - 1;
    char *yaml =
        fm_asprintf("suite: r\nmeasures:\n"
                    "  - {measure: perplexity, over: {set: 'on'}, at-most: 100000}\ncases:\n"
                    "  - {name: word, prompt: '" LONG "', perplexity: {per: word, below: 1e9}}\n"
                    "  - {name: byte, prompt: '" LONG "', perplexity: {per: byte, below: 1e9}}\n"
                    "  - {name: token, prompt: '" LONG "', perplexity: {per: token, above: 2}}\n"
                    "  - {name: bad, prompt: '" LONG "', perplexity: {per: token, below: 1.01},\n"
                    "     tags: {set: 'on'}}\n"
                    "  - {name: cut, tags: {set: 'on'}, prompt: '" LONG "', perplexity: {per: token, below: 1e9,\n"
                    "     window: %zu}}\n",
                    part);
    fm_suite *s = sk_parsed(yaml);
    fm_suite_run run;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    double whole = sum_score(w, ids.id, ids.count, 1);
    near_score(&run, "word", exp(-whole / (double)words));
    near_score(&run, "byte", exp(-whole / (double)bytes));
    near_score(&run, "token", exp(-whole / (double)t));
    sk_verdict(&run, "token", FM_PASS);
    sk_verdict(&run, "bad", FM_FAIL);
    /* lm-eval: [prefix] + a part; a part after one token; the rest after all that fits */
    double cut = sum_score(w, ids.id, part + 1, 1) + sum_score(w, ids.id + part, part + 1, 1) +
                 sum_score(w, ids.id + t - part, part + 1, part + 1 - (t - 2 * part));
    near_score(&run, "cut", exp(-cut / (double)t));
    double both = exp(-(whole + cut) / (double)(2 * t));
    assert_int_equal(run.measure[0].count, 2);
    tk_assert_le(fabs(run.measure[0].value - both), 1e-6 * both, "measure");
    assert_true(fabs(cut - whole) > 0.1);
    fm_suite_run_release(&run);
    fm_suite_free(s);
    fm_ids_release(&ids);
    fm_free(yaml);
}

static double choice_sum(const world *w, const char *prompt, const char *choice)
{
    fm_ids ids = {0};
    char text[200];
    snprintf(text, sizeof text, "%s%s", prompt, choice);
    tk_ok(fm_prompt_text(&ids, w->model, fm_span_str(prompt)));
    size_t from = ids.count;
    fm_ids_release(&ids);
    tk_ok(fm_prompt_text(&ids, w->model, fm_span_str(text)));
    double sum = sum_score(w, ids.id, ids.count, from);
    fm_ids_release(&ids);
    return sum;
}

static double alone_sum(const world *w, const char *text)
{
    fm_ids ids = alone(w, text);
    double sum = sum_score(w, ids.id, ids.count, 1);
    fm_ids_release(&ids);
    return sum;
}

static void choices_are_normalised_as_lm_eval_does(void **state)
{
    world *w = *state;
    fm_suite *s =
        sk_parsed("suite: c\ncases:\n"
                  "  - {name: mutual, prompt: The capital of, choices: [' Ulevia', ' the'],\n"
                  "     answer: ' Ulevia', normalize: mutual-info}\n"
                  "  - {name: characters, prompt: The capital of, answer: ' Ulevia',\n"
                  "     choices: [' Ulevia', ' thé'], normalize: characters}\n");
    fm_suite_run run;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    double a = choice_sum(w, "The capital of", " Ulevia"),
           b = choice_sum(w, "The capital of", " the");
    near_score(&run, "mutual", a - alone_sum(w, " Ulevia") - (b - alone_sum(w, " the")));
    near_score(&run, "characters", a / 6 - choice_sum(w, "The capital of", " thé") / 3);
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

static void greedy_is_what_decoding_says(void **state)
{
    world *w = *state;
    static const char *const prompts[] = {"The capital of Ulevia", "Who are"};
    for (size_t i = 0; i < 2; i++) {
        fm_suite *s = NULL;
        fm_suite_run run;
        tk_ok(fm_suite_from_prompt(&s, prompts[i], "\x01", false));
        tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
        fm_json *said =
            fm_json_new_strn(run.result[0].output, FM_MIN(strlen(run.result[0].output), (size_t)9));
        fm_buf quoted;
        fm_buf_init(&quoted, 0);
        tk_ok(fm_json_write(&quoted, said, FM_JSON_COMPACT));
        fm_suite_run_release(&run);
        fm_suite_free(s);
        char *yaml = fm_asprintf("suite: g\ncases:\n"
                                 "  - {name: 'yes', prompt: %s, continuation: %s, greedy: true}\n"
                                 "  - {name: 'no', prompt: %s, continuation: %s, greedy: false}\n"
                                 "  - {name: other, prompt: %s, continuation: zzz, greedy: true}\n",
                                 prompts[i], fm_buf_cstr(&quoted), prompts[i], fm_buf_cstr(&quoted),
                                 prompts[i]);
        s = sk_parsed(yaml);
        tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
        /* what was cut off may have been inside a token: then the two verdicts still differ */
        assert_int_not_equal(sk_result(&run, "yes")->verdict, sk_result(&run, "no")->verdict);
        sk_verdict(&run, "other", FM_FAIL);
        fm_suite_run_release(&run);
        fm_suite_free(s);
        fm_buf_release(&quoted);
        fm_json_free(said);
        fm_free(yaml);
    }
}

/* ---- classes and nearness ---- */

static double yes_of(const world *w, const char *text)
{
    fm_ids ids = {0};
    float lp[2];
    tk_ok(fm_embed_encode(w->head, fm_span_str(text), &ids));
    fm_classify_request q = {w->head, ids.id, ids.count, lp};
    tk_ok(fm_classify_many(w->engine, &q, 1));
    fm_ids_release(&ids);
    return exp((double)lp[0]);
}

static void classes_of_prompts(void **state)
{
    world *w = *state;
    static const char *const text[] = {"The capital of Ulevia", "Who are you?"};
    double p = yes_of(w, text[0]), q = yes_of(w, text[1]);
    char *yaml = fm_asprintf(
        "suite: c\ncases:\n"
        "  - {name: 'yes', prompt: '%s', class: 'yes'}\n"
        "  - {name: 'no', prompt: '%s', class: 'no'}\n"
        "  - {name: above, prompt: '%s', class: 'yes', probability-above: %.6f}\n"
        "  - {name: below, prompt: '%s', class: 'yes', probability-below: %.6f}\n"
        "  - {name: inv, kind: INV, prompt: ['%s', '%s'], class: 'yes', margin: %.6f}\n"
        "  - {name: inv-not, kind: INV, prompt: ['%s', '%s'], class: 'yes', margin: %.6f}\n"
        "  - {name: dir, kind: DIR, prompt: ['%s', '%s'], class: 'yes', direction: %s}\n"
        "  - {name: dir-not, kind: DIR, prompt: ['%s', '%s'], class: 'yes', direction: %s}\n"
        "  - {name: what, prompt: a, class: perhaps}\n",
        text[0], text[0], text[0], p - 1e-4, text[0], p - 1e-4, text[0], text[1],
        fabs(p - q) + 1e-4, text[0], text[1], fabs(p - q) - 1e-4, text[0], text[1],
        q > p ? "increases" : "decreases", text[0], text[1], q > p ? "decreases" : "increases");
    fm_suite *s = sk_parsed(yaml);
    fm_suite_run run;
    tk_assert_le(1e-3, fabs(p - q), "the two texts differ");
    tk_ok(fm_suite_run_on(&run, s, w->head, NULL, NULL));
    sk_verdict(&run, "yes", p > 0.5 ? FM_PASS : FM_FAIL);
    sk_verdict(&run, "no", p > 0.5 ? FM_FAIL : FM_PASS);
    near_score(&run, "yes", p);
    near_score(&run, "no", 1 - p);
    sk_verdict(&run, "above", FM_PASS);
    sk_verdict(&run, "below", FM_FAIL);
    sk_verdict(&run, "inv", FM_PASS);
    sk_verdict(&run, "inv-not", FM_FAIL);
    sk_verdict(&run, "dir", FM_PASS);
    sk_verdict(&run, "dir-not", FM_FAIL);
    expect_error(&run, "what", "it has yes, no");
    assert_string_equal(sk_result(&run, "yes")->answer, p > 0.5 ? "yes" : "no");
    fm_suite_run_release(&run);
    fm_suite_free(s);
    fm_free(yaml);
}

static double nearness(const world *w, const char *a, const char *b)
{
    size_t n = fm_model_arch(w->model)->hidden;
    float *v = fm_calloc(2 * n, sizeof *v);
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < 2; i++) {
        fm_ids ids = {0};
        tk_ok(fm_embed_encode(w->model, fm_span_str(i ? b : a), &ids));
        fm_embed_request q = {w->model, ids.id, ids.count, v + i * n};
        tk_ok(fm_embed_many(w->engine, &q, 1));
        fm_ids_release(&ids);
    }
    for (size_t i = 0; i < n; i++) {
        ab += (double)v[i] * (double)v[n + i];
        aa += (double)v[i] * (double)v[i];
        bb += (double)v[n + i] * (double)v[n + i];
    }
    fm_free(v);
    return ab / sqrt(aa * bb);
}

static void nearness_of_texts(void **state)
{
    world *w = *state;
    double near = nearness(w, "The capital of Ulevia", "The capital of Dorador"),
           far = nearness(w, "The capital of Ulevia", "Who are you?");
    tk_assert_le(far + 0.01, near, "one is nearer");
#define E(name, what) "  - {name: " name ", prompt: The capital of Ulevia, embedding: {" what "}}\n"
#define NEARER "nearer: The capital of Dorador"
    char *yaml = fm_asprintf(
        "suite: e\ncases:\n" E("nearer", NEARER ", than: ['Who are you?'], margin: 0.01")
            E("farther", "nearer: 'Who are you?', than: The capital of Dorador")
                E("margin", NEARER ", than: 'Who are you?', margin: %.6f")
                    E("above", NEARER ", above: %.6f") E("below", NEARER ", below: %.6f"),
        near - far + 1e-4, near - 1e-4, near - 1e-4);
    fm_suite *s = sk_parsed(yaml);
    fm_suite_run run;
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    sk_verdict(&run, "nearer", FM_PASS);
    near_score(&run, "nearer", near - far);
    sk_verdict(&run, "farther", FM_FAIL);
    sk_verdict(&run, "margin", FM_FAIL);
    sk_verdict(&run, "above", FM_PASS);
    sk_verdict(&run, "below", FM_FAIL);
    near_score(&run, "above", near);
    fm_suite_run_release(&run);
    fm_suite_free(s);
    fm_free(yaml);
}

/* ---- repeats, and one batch ---- */

static void repeats_are_seeds_a_stride_apart(void **state)
{
    world *w = *state;
    fm_buf yaml;
    fm_suite_run run;
    fm_buf_init(&yaml, 0);
    fm_buf_str(&yaml, "suite: m\ngenerate: {max-tokens: 4, temperature: 1.5, seed: 40}\ncases:\n"
                      "  - {name: m, prompt: The, filter: [majority], generate: {repeats: 5},\n"
                      "     expect: {contains: x}}\n");
    for (int64_t i = 0; i < 5; i++)
        fm_buf_printf(&yaml,
                      "  - {name: s%d, prompt: The, generate: {seed: %lld}, "
                      "expect: {contains: x}}\n",
                      (int)i, (long long)(40 + (i << 32)));
    fm_suite *s = sk_parsed(fm_buf_cstr(&yaml));
    tk_ok(fm_suite_run_on(&run, s, w->model, NULL, NULL));
    size_t best = 0, votes = 0;
    for (size_t i = 1; i <= 5; i++) {
        size_t same = 0;
        for (size_t k = 1; k <= 5; k++)
            same += strcmp(run.result[i].answer, run.result[k].answer) == 0;
        if (same > votes) {
            votes = same;
            best = i;
        }
    }
    assert_string_equal(run.result[0].answer, run.result[best].answer);
    fm_suite_run_release(&run);
    fm_suite_free(s);
    fm_buf_release(&yaml);
}

/* Two models and two suites together say what each says alone; an error spoils nothing. */
static void a_batch_changes_nothing(void **state)
{
    world *w = *state;
    fm_suite *s = sk_parsed(helped);
    fm_suite *t = sk_parsed("suite: t\ncases:\n  - {name: c, prompt: a b, class: 'yes'}\n"
                            "  - {name: e, prompt: a b, embedding: {nearer: a, than: zz}}\n"
                            "  - {name: p, prompt: a b c, perplexity: {per: byte, below: 99}}\n");
    fm_result_cache env = env_of(w);
    const fm_suite_ask ask[] = {{.suite = s, .model = w->model},
                                {.suite = t, .model = w->model},
                                {.suite = t, .model = w->head}};
    fm_suite_run all[3], one;
    tk_ok(fm_suites_run(all, ask, 3, &env));
    for (size_t k = 0; k < 3; k++) {
        tk_ok(fm_suites_run(&one, &ask[k], 1, &env));
        for (size_t i = 0; i < one.count; i++) {
            const fm_case_result *a = &all[k].result[i], *b = &one.result[i];
            assert_int_equal(a->verdict, b->verdict);
            assert_string_equal(a->output ? a->output : "", b->output ? b->output : "");
            assert_string_equal(a->detail ? a->detail : "", b->detail ? b->detail : "");
            assert_true(a->score == b->score || (isnan(a->score) && isnan(b->score)));
        }
        fm_suite_run_release(&one);
        if (k)
            sk_verdict(&all[k], "c", k == 1 ? FM_ERROR_CASE : all[k].result[0].verdict);
    }
    assert_int_not_equal(sk_result(&all[2], "c")->verdict, FM_ERROR_CASE);
    for (size_t k = 0; k < 3; k++)
        fm_suite_run_release(&all[k]);
    fm_suite_free(s);
    fm_suite_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_models_are_asked_about_answers),
        cmocka_unit_test(rolling_perplexity_is_lm_eval_s),
        cmocka_unit_test(choices_are_normalised_as_lm_eval_does),
        cmocka_unit_test(greedy_is_what_decoding_says),
        cmocka_unit_test(classes_of_prompts),
        cmocka_unit_test(nearness_of_texts),
        cmocka_unit_test(repeats_are_seeds_a_stride_apart),
        cmocka_unit_test(a_batch_changes_nothing),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
