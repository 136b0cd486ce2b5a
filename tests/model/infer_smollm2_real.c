/* ctest: cost=20 */
/* SmolLM2-135M-Instruct, as its GGUF holds it, against Hugging Face's float32: hidden states,
 * logits, log-probabilities, greedy answers, and the same with a LoRA that PEFT trained. */
#include "tests/model/infer_kit.h"

#include <math.h>

#define LOGIT_LIMIT 2e-4
#define HIDDEN_LIMIT 1e-5
#define PROMPTS 4
#define LAYERS 30

typedef struct world {
    fm_source *src;
    fm_engine *e;
    fm_model *m;
} world;

static int setup(void **state)
{
    static world w;
    char *path = tk_smollm2_gguf();
    tk_ok(fm_source_open(&w.src, path));
    fm_free(path);
    w.e = ik_engine(0, 512);
    w.m = ik_model(w.e, w.src, "smollm2");
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fm_model_close(w->m);
    fm_engine_free(w->e);
    fm_source_close(w->src);
    return 0;
}

/* ==== hidden states ==== */

typedef struct tap_ctx {
    const ik_ref *ref;
    uint32_t seen;
    double worst;
} tap_ctx;

static void check_hidden(void *ctx, uint32_t layer, const float *x, uint32_t n, uint32_t h)
{
    tap_ctx *t = ctx;
    char name[32];
    size_t count = 0;
    (void)snprintf(name, sizeof(name), "0.hidden.%u", layer);
    float *want = ik_ref_get(t->ref, name, &count);
    assert_int_equal(count, (size_t)n * h);
    for (uint32_t r = 0; r < n; r++) {
        double most = 0;
        for (uint32_t i = 0; i < h; i++)
            most = fmax(most, fabs((double)want[r * h + i]));
        double diff = tk_max_abs_diff(x + r * h, want + r * h, h) / most;
        t->worst = diff <= t->worst ? t->worst : diff;
    }
    t->seen++;
    fm_free(want);
}

static void hidden_states_match(void **state)
{
    world *w = *state;
    ik_ref ref;
    if (!ik_ref_open(&ref, "smollm2/forward.safetensors"))
        skip();
    size_t n = 0;
    int32_t *ids = ik_ref_get(&ref, "0.argmax", &n); /* as long as the prompt */
    tap_ctx t = {.ref = &ref};
    fm_ids prompt = {0};
    tk_ok(fm_tokenizer_encode(fm_model_tokenizer(w->m), fm_span_str("The capital of France is"),
                              true, &prompt));
    assert_int_equal(prompt.count, n);
    float *out = fm_malloc(n * 49152 * sizeof(float));
    fm_engine_tap(w->e, check_hidden, &t);
    ik_logits(w->m, prompt.id, (uint32_t)n, (uint32_t)n, out);
    fm_engine_tap(w->e, NULL, NULL);
    assert_int_equal(t.seen, LAYERS + 1);
    tk_assert_le(t.worst, HIDDEN_LIMIT, "hidden states");
    for (size_t i = 0; i < n; i++) {
        size_t best = 0;
        for (size_t v = 1; v < 49152; v++)
            best = out[i * 49152 + v] > out[i * 49152 + best] ? v : best;
        assert_int_equal(best, ids[i]);
    }
    fm_free(out);
    fm_free(ids);
    fm_ids_release(&prompt);
    fm_source_close(ref.src);
}

/* ==== logits and log-probabilities ==== */

static void check_forward(fm_model *m, const ik_ref *ref, const ik_ref *prompts)
{
    for (int i = 0; i < PROMPTS; i++) {
        char name[32];
        size_t n = 0;
        (void)snprintf(name, sizeof(name), "%d.input_ids", i);
        int32_t *ids = ik_ref_get(prompts, name, &n);
        float *lp = fm_malloc(n * sizeof(float)), *last = fm_malloc(49152 * sizeof(float));
        tk_ok(fm_score(m, ids, n, lp, NULL, 0));
        (void)snprintf(name, sizeof(name), "%d.next_logprobs", i);
        float *want = ik_ref_get(ref, name, NULL);
        tk_assert_le(tk_max_abs_diff(lp + 1, want, n - 1), LOGIT_LIMIT, name);
        fm_free(want);
        fm_row row[512];
        fm_seq *s = NULL;
        tk_ok(fm_seq_open(&s, m));
        for (size_t k = 0; k < n; k++)
            row[k] = (fm_row){.seq = s, .token = ids[k], .want_logits = k + 1 == n};
        tk_ok(fm_engine_step(fm_model_engine(m), row, (uint32_t)n));
        (void)snprintf(name, sizeof(name), "%d.last_logits", i);
        want = ik_ref_get(ref, name, NULL);
        const float *got = fm_engine_logits(fm_model_engine(m), (uint32_t)n - 1);
        tk_assert_le(tk_max_abs_diff(got, want, 49152), LOGIT_LIMIT, name);
        fm_seq_close(s);
        fm_free(want);
        fm_free(last);
        fm_free(lp);
        fm_free(ids);
    }
}

static void logits_and_logprobs_match(void **state)
{
    world *w = *state;
    ik_ref ref;
    if (!ik_ref_open(&ref, "smollm2/forward.safetensors"))
        skip();
    check_forward(w->m, &ref, &ref);
    fm_source_close(ref.src);
}

static void lora_logits_and_logprobs_match(void **state)
{
    world *w = *state;
    ik_ref ref, prompts;
    fm_source *adapter = ik_source("smollm2-lora");
    if (!adapter || !ik_ref_open(&ref, "smollm2-lora/forward.safetensors") ||
        !ik_ref_open(&prompts, "smollm2/forward.safetensors"))
        skip();
    fm_tree *tree = NULL;
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(w->src), fm_source_tree(adapter), "", NULL));
    ik_mem both = {.behind = {fm_source_provider(w->src), fm_source_provider(adapter)},
                   .behind_count = 2};
    fm_provider p = ik_provider(&both);
    fm_model *m = NULL;
    uint64_t before = fm_engine_stats_of(w->e).weight_bytes;
    tk_ok(fm_model_load(&m, w->e, tree, &p, "lora"));
    uint64_t more = fm_engine_stats_of(w->e).weight_bytes - before;
    assert_true(more > 0 && more < before / 20); /* the stem is shared */
    check_forward(m, &ref, &prompts);
    fm_model_close(m);
    assert_int_equal(fm_engine_stats_of(w->e).weight_bytes, before);
    fm_tree_free(tree);
    fm_source_close(adapter);
    fm_source_close(prompts.src);
    fm_source_close(ref.src);
}

/* ==== greedy answers, sixteen in one batch ==== */

#define ANSWERS 16

static int32_t *ids_of(const fm_json *v, size_t *n)
{
    *n = fm_json_count(v);
    int32_t *ids = fm_malloc(*n * sizeof(int32_t));
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)fm_json_int(fm_json_at(v, i), -1);
    return ids;
}

static void greedy_answers_match(void **state)
{
    world *w = *state;
    fm_json *cases = NULL;
    char *path = tk_shared("smollm2/greedy.json");
    if (!path)
        skip();
    tk_ok(fm_json_parse_file(&cases, path, 1 << 24));
    fm_free(path);
    assert_int_equal(fm_json_count(cases), ANSWERS);
    fm_gen_request q[ANSWERS] = {0};
    fm_gen_result r[ANSWERS];
    int32_t *prompt[ANSWERS];
    for (size_t i = 0; i < ANSWERS; i++) {
        prompt[i] = ids_of(fm_json_get(fm_json_at(cases, i), "prompt_ids"), &q[i].prompt_len);
        q[i].prompt = prompt[i];
        q[i].model = w->m;
        q[i].max_new = 48;
        fm_sample_defaults(&q[i].sampling);
    }
    tk_ok(fm_generate(w->e, q, ANSWERS, r));
    for (size_t i = 0; i < ANSWERS; i++) {
        size_t n = 0;
        const fm_json *c = fm_json_at(cases, i);
        int32_t *want = ids_of(fm_json_get(c, "new_ids"), &n);
        bool ended = want[n - 1] == 2; /* <|im_end|>, which the text leaves out */
        assert_string_equal(r[i].finish, ended ? "stop" : "length");
        assert_int_equal(r[i].count, n);
        assert_memory_equal(r[i].tokens, want, n * sizeof(int32_t));
        assert_string_equal(fm_buf_cstr(&r[i].text), fm_json_cstr(fm_json_get(c, "text"), ""));
        fm_free(want);
        fm_free(prompt[i]);
        fm_gen_result_release(&r[i]);
    }
    fm_json_free(cases);
}

int main(void)
{
    char *gguf = tk_smollm2_gguf(), *data = tk_shared("smollm2/forward.safetensors");
    bool there = gguf && data;
    fm_free(gguf);
    fm_free(data);
    if (!there)
        return tk_skip("SmolLM2 or its reference data is not on this machine");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_match),
        cmocka_unit_test(logits_and_logprobs_match),
        cmocka_unit_test(greedy_answers_match),
        cmocka_unit_test(lora_logits_and_logprobs_match),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
