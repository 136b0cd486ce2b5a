/* apart.c - a device whose memory the host cannot see, run at once and late, gives the bits of the
 * CPU: logits of families and of every kind of adapter, answers, log-probabilities, vectors, and
 * what is trained. cuda/engine.c is the same on a GPU (FM_ON_CARD). */
#include "tests/apart/apart.h"
#include "tests/model/train_kit.h"

#include "store/base/math/rng.h"

#define TOKENS 45u /* a block of the cache and a part of the next */

#ifdef FM_ON_CARD
static const apart_kind kinds[] = {APART_LATE};

static fm_engine *engine_on(apart_kind kind)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 2;
    o.max_rows = 64;
    o.kv_bytes_max = 32u << 20;
    o.device = kind == APART_OFF ? "cpu" : "cuda";
    tk_ok(fm_engine_new(&e, &o));
    return e;
}
#else
static const apart_kind kinds[] = {APART_NOW, APART_LATE, APART_PLAIN};

static fm_engine *engine_on(apart_kind kind)
{
    apart_use(kind);
    fm_engine *e = ik_engine(2, 64);
    apart_use(APART_LATE);
    assert_string_equal(fm_engine_device(e), kind == APART_OFF ? "cpu" : "apart");
    return e;
}
#endif

static void draw_ids(int32_t *ids, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(fm_rng_u64(5, 1, i) % (vocab - 4)) + 2;
}

/* Logits, and for an encoder the states, of one text. */
static float *outputs(apart_kind kind, const fm_tree *tree, const fm_provider *p, size_t *n)
{
    fm_engine *e = engine_on(kind);
    fm_model *m = NULL;
    int32_t ids[TOKENS];
    tk_ok(fm_model_load(&m, e, tree, p, "it"));
    const fm_arch *a = fm_model_arch(m);
    bool encoder = a->sw.encoder;
    size_t wide = encoder ? a->hidden : a->vocab;
    draw_ids(ids, TOKENS, a->vocab);
    float *out = fm_calloc(TOKENS * wide, sizeof(float));
    assert_non_null(out);
    if (encoder) {
        fm_row row[TOKENS];
        fm_seq *s = NULL;
        tk_ok(fm_seq_open(&s, m));
        for (uint32_t i = 0; i < TOKENS; i++)
            row[i] = (fm_row){.seq = s, .token = ids[i], .want_logits = true};
        tk_ok(fm_engine_step(e, row, TOKENS));
        for (uint32_t i = 0; i < TOKENS; i++)
            memcpy(out + i * wide, fm_engine_hidden(e, i), wide * sizeof(float));
        fm_seq_close(s);
    } else {
        ik_logits(m, ids, TOKENS, 7, out);
    }
    fm_model_close(m);
    fm_engine_free(e);
    *n = TOKENS * wide;
    return out;
}

static void same_outputs(const fm_tree *tree, const fm_provider *p, const char *what)
{
    size_t n, m;
    float *want = outputs(APART_OFF, tree, p, &n);
    for (size_t k = 0; k < FM_ARRAY_LEN(kinds); k++) {
        float *have = outputs(kinds[k], tree, p, &m);
        assert_int_equal(n, m);
        if (memcmp(have, want, n * sizeof(float)) != 0)
            fail_msg("%s on device kind %u differs", what, kinds[k]);
        fm_free(have);
    }
    fm_free(want);
}

TEST(families_have_the_cpus_bits)
{
    static const char *const family[] = {"arch/llama", "arch/gpt2",    "arch/gemma3",
                                         "arch/qwen3", "arch/mixtral", "arch/bert"};
    for (size_t i = 0; i < FM_ARRAY_LEN(family); i++) {
        fm_source *src = ik_source(family[i]);
        if (!src)
            skip();
        fm_provider p = fm_source_provider(src);
        same_outputs(fm_source_tree(src), &p, family[i]);
        fm_source_close(src);
    }
}

TEST(adapters_have_the_cpus_bits)
{
    static const char *const kind[] = {"lora",   "dora",   "ia3",   "lora-modules-to-save",
                                       "rslora", "prefix", "prompt"};
    for (size_t i = 0; i < FM_ARRAY_LEN(kind); i++) {
        ik_adapted a;
        ik_open_adapted(&a, kind[i]);
        fm_provider p = ik_provider(&a.both);
        same_outputs(a.tree, &p, kind[i]);
        ik_close_adapted(&a);
    }
}

/* ==== answers of the atlas model ==== */

#define ASKS 9u

static fm_source *atlas(void)
{
    fm_source *src = NULL;
    char *path = tk_source("examples/atlas/base");
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static void answers(apart_kind kind, const fm_source *src, fm_gen_result *out)
{
    static const char *const prompt[] = {"The capital of", "Who rules", "A ship sails from",
                                         "The capital of"};
    fm_engine *e = engine_on(kind);
    fm_model *m = ik_model(e, src, "atlas");
    fm_gen_request q[ASKS];
    fm_ids ids[ASKS];
    for (uint32_t i = 0; i < ASKS; i++) {
        memset(&q[i], 0, sizeof(q[i]));
        memset(&ids[i], 0, sizeof(ids[i]));
        tk_ok(
            fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(prompt[i % 4]), true, &ids[i]));
        q[i] = (fm_gen_request){.model = m,
                                .prompt = ids[i].id,
                                .prompt_len = ids[i].count,
                                .max_new = 3 + 7 * i,
                                .ignore_eos = i % 2 == 0,
                                .want_logprobs = i == 7};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.seed = i;
        if (i >= 2)
            q[i].sampling.temperature = 0.4f * (float)i;
        if (i % 3 == 1)
            q[i].sampling.top_k = 5 * i;
        if (i % 3 == 2)
            q[i].sampling.top_p = 0.9f;
        if (i == 5)
            q[i].sampling.min_p = 0.05f;
        if (i >= 4)
            q[i].sampling.repetition_penalty = 1.2f;
    }
    tk_ok(fm_generate(e, q, ASKS, out));
    for (uint32_t i = 0; i < ASKS; i++)
        fm_ids_release(&ids[i]);
    fm_model_close(m);
    fm_engine_free(e);
}

TEST(answers_are_the_cpus)
{
    fm_source *src = atlas();
    fm_gen_result want[ASKS], have[ASKS];
    answers(APART_OFF, src, want);
    for (size_t k = 0; k < FM_ARRAY_LEN(kinds); k++) {
        answers(kinds[k], src, have);
        for (uint32_t i = 0; i < ASKS; i++) {
            assert_string_equal(have[i].finish, want[i].finish);
            assert_int_equal(have[i].count, want[i].count);
            assert_memory_equal(have[i].tokens, want[i].tokens, want[i].count * sizeof(int32_t));
            assert_string_equal(fm_buf_cstr(&have[i].text), fm_buf_cstr(&want[i].text));
            if (want[i].logprobs)
                assert_memory_equal(have[i].logprobs, want[i].logprobs,
                                    want[i].count * sizeof(float));
            fm_gen_result_release(&have[i]);
        }
    }
    for (uint32_t i = 0; i < ASKS; i++)
        fm_gen_result_release(&want[i]);
    fm_source_close(src);
}

TEST(scores_are_the_cpus)
{
    fm_source *src = atlas();
    float want[TOKENS], have[TOKENS];
    int32_t ids[TOKENS];
    for (size_t k = 0; k <= FM_ARRAY_LEN(kinds); k++) {
        fm_engine *e = engine_on(k ? kinds[k - 1] : APART_OFF);
        fm_model *m = ik_model(e, src, "atlas");
        draw_ids(ids, TOKENS, fm_model_arch(m)->vocab);
        tk_ok(fm_score(m, ids, TOKENS, k ? have : want, NULL, 0));
        if (k) /* the first is of no token */
            assert_memory_equal(have + 1, want + 1, (TOKENS - 1) * sizeof(float));
        fm_model_close(m);
        fm_engine_free(e);
    }
    fm_source_close(src);
}

/* ==== training ==== */

#define STEPS 3u
#define BATCH 2u
#define LEN 12u

static void train(apart_kind kind, const fm_source *src, fm_method method, fm_train_result *out)
{
    int32_t ids[STEPS * BATCH * LEN];
    fm_provider p = fm_source_provider(src);
    fm_train_config k = fm_train_defaults(method);
    draw_ids(ids, STEPS * BATCH * LEN, 90);
    k.lr = 1e-2;
    k.batch = BATCH;
    k.max_tokens = LEN;
    k.steps = STEPS;
    k.dora = method == FM_METHOD_LORA && fm_tree_count(fm_source_tree(src)) % 2 == 0;
    k.dropout = method == FM_METHOD_LORA ? 0.1 : 0.0;
    fm_train_job job = {.name = "it",
                        .config = k,
                        .parent = fm_source_tree(src),
                        .batch_ids = ids,
                        .batch_labels = ids};
    fm_engine *e = engine_on(kind);
    tk_ok(fm_train_run(e, &p, &job, 1, out, NULL, NULL));
    assert_int_equal(out->failed, FM_OK);
    fm_engine_free(e);
}

TEST(what_is_trained_has_the_cpus_bits)
{
    static const struct {
        const char *family;
        fm_method method;
    } of[] = {{"arch/llama", FM_METHOD_LORA},   {"arch/llama", FM_METHOD_FULL},
              {"arch/qwen2", FM_METHOD_BITFIT}, {"arch/llama", FM_METHOD_IA3},
              {"arch/llama", FM_METHOD_PREFIX}, {"arch/llama", FM_METHOD_PROMPT},
              {"arch/gpt2", FM_METHOD_LORA},    {"arch/gpt2", FM_METHOD_FULL},
              {"arch/mixtral", FM_METHOD_FULL}, {"arch/gemma3", FM_METHOD_LORA}};
    for (size_t i = 0; i < FM_ARRAY_LEN(of); i++) {
        fm_source *src = ik_source(of[i].family);
        fm_train_result want, have;
        if (!src)
            skip();
        train(APART_OFF, src, of[i].method, &want);
        assert_true(want.count > 0);
        for (size_t k = 0; k < FM_MIN(FM_ARRAY_LEN(kinds), (size_t)2); k++) {
            train(kinds[k], src, of[i].method, &have);
            kit_same_bits(&have, &want);
            fm_train_result_release(&have);
        }
        fm_train_result_release(&want);
        fm_source_close(src);
    }
}

#ifdef FM_ON_CARD
/* There may be no GPU: skipped then. */
static bool no_card(void)
{
    uint32_t n;
    return fm_device_count(&n) == FM_EUNSUPPORTED;
}
#else
static bool no_card(void)
{
    return false;
}
#endif

int main(void)
{
    if (no_card())
        return tk_skip(fm_error_text());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_the_cpus_bits),
        cmocka_unit_test(adapters_have_the_cpus_bits),
        cmocka_unit_test(answers_are_the_cpus),
        cmocka_unit_test(scores_are_the_cpus),
        cmocka_unit_test(what_is_trained_has_the_cpus_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
