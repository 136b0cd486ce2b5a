/* card.c - one build, two devices: in mode exact a GPU gives the very bits of the CPU. Logits of
 * families, answers, several children in one step, a step of training and what it leaves behind.
 *
 * The GPU is the one of FMSTORE_CUDA_MODULE, emulated or real. The emulator runs some 1/1000 of a
 * GPU's speed, so texts and runs are short; each goes through every kind of kernel that a long one
 * would use. */
#include "tests/model/train_kit.h"
#include "tests/model/variant_kit.h"

#include "store/base/os/io.h"
#include "store/base/math/rng.h"

#define TOKENS 40u /* more than a page of keys and values */

static fm_engine *engine_on(const char *device, uint32_t max_rows)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;

    o.threads = 1;
    o.max_rows = max_rows;
    o.device = device;
    o.mode = "exact";
    tk_ok(fm_engine_new(&e, &o));
    assert_true(strncmp(fm_engine_device(e), device, strlen(device)) == 0);
    return e;
}

static fm_source *folder(const char *relative)
{
    fm_source *src = NULL;
    char *path = tk_source(relative);

    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static void draw_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t stream)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(fm_rng_u64(5, stream, i) % (vocab - 4)) + 2;
}

static void same_floats(const float *have, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&have[i], &want[i], sizeof(float)) != 0)
            fail_msg("%s: the card gives %a at %zu, the CPU %a", what, (double)have[i], i,
                     (double)want[i]);
}

/* ==== logits ==== */

static float *logits_of(const char *device, const fm_source *src, const char *what, uint32_t cut,
                        size_t *n)
{
    fm_engine *e = engine_on(device, 64);
    fm_model *m = ik_model(e, src, what);
    int32_t ids[TOKENS];

    *n = (size_t)TOKENS * fm_model_arch(m)->vocab;
    float *out = fm_malloc(*n * sizeof *out);
    assert_non_null(out);
    draw_ids(ids, TOKENS, fm_model_arch(m)->vocab, 1);
    ik_logits(m, ids, TOKENS, cut, out);
    fm_model_close(m);
    fm_engine_free(e);
    return out;
}

/* The atlas; layer norms and biases; caps, windows and four norms a layer; experts. */
TEST(families_have_the_cpus_logits)
{
    static const char *const family[] = {"examples/atlas/base", "tests/model/golden/arch/gpt_neox",
                                         "tests/model/golden/arch/gemma2",
                                         "tests/model/golden/arch/qwen3_moe"};

    for (size_t i = 0; i < FM_ARRAY_LEN(family); i++) {
        fm_source *src = folder(family[i]);
        size_t n = 0;
        float *want = logits_of("cpu", src, family[i], TOKENS, &n);
        float *whole = logits_of("cuda", src, family[i], TOKENS, &n);
        float *cut = logits_of("cuda", src, family[i], 13, &n);
        same_floats(whole, want, n, family[i]);
        same_floats(cut, want, n, family[i]);
        fm_free(want);
        fm_free(whole);
        fm_free(cut);
        fm_source_close(src);
    }
}

/* ==== answers ==== */

#define ASKS 3u

static void answers(const char *device, const fm_source *src, fm_gen_result *out)
{
    static const char *const prompt[ASKS] = {"The capital of", "Who rules", "A ship sails from"};
    fm_engine *e = engine_on(device, 32);
    fm_model *m = ik_model(e, src, "atlas");
    fm_gen_request q[ASKS];
    fm_ids ids[ASKS];

    memset(ids, 0, sizeof ids);
    for (uint32_t i = 0; i < ASKS; i++) {
        tk_ok(fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(prompt[i]), true, &ids[i]));
        q[i] = (fm_gen_request){.model = m,
                                .prompt = ids[i].id,
                                .prompt_len = ids[i].count,
                                .max_new = 10 + 2 * i,
                                .ignore_eos = true,
                                .want_logprobs = i == 2};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.seed = i;
        q[i].sampling.temperature = i == 0 ? 0.0f : 0.8f;
        q[i].sampling.top_p = i == 1 ? 0.9f : 1.0f;
        q[i].sampling.repetition_penalty = i == 2 ? 1.2f : 1.0f;
    }
    tk_ok(fm_generate(e, q, ASKS, out));
    for (uint32_t i = 0; i < ASKS; i++)
        fm_ids_release(&ids[i]);
    fm_model_close(m);
    fm_engine_free(e);
}

TEST(answers_are_the_cpus)
{
    fm_source *src = folder("examples/atlas/base");
    fm_gen_result want[ASKS], have[ASKS];

    answers("cpu", src, want);
    answers("cuda", src, have);
    for (uint32_t i = 0; i < ASKS; i++) {
        assert_int_equal(have[i].count, want[i].count);
        assert_true(have[i].count >= 10);
        assert_memory_equal(have[i].tokens, want[i].tokens, want[i].count * sizeof(int32_t));
        assert_string_equal(fm_buf_cstr(&have[i].text), fm_buf_cstr(&want[i].text));
        if (want[i].logprobs)
            same_floats(have[i].logprobs, want[i].logprobs, want[i].count, "log-probabilities");
        fm_gen_result_release(&have[i]);
        fm_gen_result_release(&want[i]);
    }
    fm_source_close(src);
}

/* ==== children in one step ==== */

#define CHILDREN 3u

typedef struct family {
    ik_mem mem;
    fm_tree *tree[CHILDREN]; /* the base, two adapters of their own ranks and modules */
} family;

static void make_family(family *f)
{
    fm_tree *base;

    memset(f, 0, sizeof *f);
    vk_base(&f->mem, &base);
    for (uint32_t c = 0; c < CHILDREN; c++)
        tk_ok(fm_tree_copy(&f->tree[c], base));
    fm_tree_free(base);
    vk_lora(&f->mem, f->tree[1],
            &(vk_adapter){
                .kind = "lora", .modules = 127, .to_layer = 4, .r = 2, .alpha = 4, .seed = 1});
    vk_lora(&f->mem, f->tree[2],
            &(vk_adapter){.kind = "lora",
                          .modules = 1 | 4,
                          .from_layer = 1,
                          .to_layer = 4,
                          .r = 16,
                          .alpha = 8,
                          .seed = 2});
}

/* Rows of all children in every step, 4 of one's text at a time: [CHILDREN][TOKENS][vocab]. */
static float *mixed_logits(const char *device, family *f)
{
    enum { PIECE = 4 };
    fm_engine *e = engine_on(device, 64);
    fm_model *m[CHILDREN];
    fm_seq *s[CHILDREN];
    fm_row row[CHILDREN * PIECE];
    int32_t ids[TOKENS];
    float *out = fm_malloc((size_t)CHILDREN * TOKENS * VK_VOCAB * sizeof *out);

    assert_non_null(out);
    draw_ids(ids, TOKENS, VK_VOCAB, 2);
    for (uint32_t c = 0; c < CHILDREN; c++) {
        m[c] = vk_load(e, &f->mem, f->tree[c]);
        tk_ok(fm_seq_open(&s[c], m[c]));
    }
    for (uint32_t at = 0; at < TOKENS; at += PIECE) {
        for (uint32_t i = 0; i < CHILDREN * PIECE; i++)
            row[i] = (fm_row){s[i / PIECE], ids[at + i % PIECE], true};
        tk_ok(fm_engine_step(e, row, CHILDREN * PIECE));
        for (uint32_t i = 0; i < CHILDREN * PIECE; i++)
            memcpy(out + ((size_t)(i / PIECE) * TOKENS + at + i % PIECE) * VK_VOCAB,
                   fm_engine_logits(e, i), VK_VOCAB * sizeof *out);
    }
    for (uint32_t c = 0; c < CHILDREN; c++) {
        fm_seq_close(s[c]);
        fm_model_close(m[c]);
    }
    fm_engine_free(e);
    return out;
}

TEST(children_of_one_step_have_the_cpus_bits)
{
    const size_t n = (size_t)TOKENS * VK_VOCAB;
    family f;

    make_family(&f);
    float *want = mixed_logits("cpu", &f), *have = mixed_logits("cuda", &f);
    same_floats(have, want, CHILDREN * n, "children in one step");
    for (uint32_t c = 1; c < CHILDREN; c++)
        assert_memory_not_equal(have, have + c * n, n * sizeof *have);
    fm_free(want);
    fm_free(have);
    for (uint32_t c = 0; c < CHILDREN; c++)
        fm_tree_free(f.tree[c]);
    ik_mem_free(&f.mem);
}

/* ==== training ==== */

/* The festivals of the atlas (examples/atlas/family.yaml: almanac), the first steps of small
 * batches. */
static void train(const char *device, const fm_source *src, fm_method method, fm_train_result *out)
{
    fm_engine *e = engine_on(device, 64);
    fm_model *m = ik_model(e, src, "atlas");
    fm_provider p = fm_source_provider(src);
    fm_train_config k = fm_train_defaults(method);
    fm_dataset *data = NULL;
    fm_buf text;
    char *path = tk_source("examples/atlas/almanac.jsonl");

    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, path, (size_t)1 << 20));
    fm_free(path);
    k.r = 8;
    k.alpha = 16;
    k.lr = method == FM_METHOD_FULL ? 1e-3 : 5e-3;
    k.schedule = FM_SCHEDULE_COSINE;
    k.warmup = 1;
    k.batch = 2;
    k.max_tokens = 48;
    k.steps = 2;
    k.seed = 7;
    tk_ok(fm_dataset_open(&data, fm_buf_span(&text), "almanac.jsonl", fm_model_tokenizer(m),
                          fm_model_chat_template(m), &k, NULL, 0));
    fm_train_job job = {
        .name = "almanac", .config = k, .parent = fm_source_tree(src), .data = data};
    tk_ok(fm_train_run(e, &p, &job, 1, out, NULL, NULL));
    assert_int_equal(out->failed, FM_OK);
    fm_dataset_close(data);
    fm_buf_release(&text);
    fm_model_close(m);
    fm_engine_free(e);
}

TEST(what_is_trained_has_the_cpus_bytes)
{
    static const fm_method methods[] = {FM_METHOD_LORA, FM_METHOD_FULL};
    fm_source *src = folder("examples/atlas/base");

    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++) {
        fm_train_result want, have;
        train("cpu", src, methods[i], &want);
        train("cuda", src, methods[i], &have);
        assert_true(want.count > 0);
        kit_same_bits(&have, &want);
        for (size_t s = 0; s < fm_json_count(want.log); s++)
            assert_true(!(kit_log(&have, s, "loss") < kit_log(&want, s, "loss")) &&
                        !(kit_log(&have, s, "loss") > kit_log(&want, s, "loss")));
        fm_train_result_release(&want);
        fm_train_result_release(&have);
    }
    fm_source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_the_cpus_logits),
        cmocka_unit_test(answers_are_the_cpus),
        cmocka_unit_test(children_of_one_step_have_the_cpus_bits),
        cmocka_unit_test(what_is_trained_has_the_cpus_bytes),
    };
    uint32_t cards;

    if (fm_device_count(&cards) == FM_EUNSUPPORTED) {
        print_message("skipped: %s\n", fm_error_text());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
