/* lora_families.c - a LoRA of every family trains, and runs as it trained: the loss of the second
 * step is what inference gives for the child that the first step made. Families without gradients
 * are refused by name. */
#include "tests/model/train_kit.h"

#include <math.h>

#include "infer/model.h"

#define TOKENS 40u
#define MASKED 5u /* tokens without a label, at the beginning */
#define CLASSES 3u
#define CLASS 1 /* of the text */

typedef struct child {
    fm_source *src;
    fm_provider of_base;
    ik_mem mem;
    int32_t ids[2 * TOKENS], labels[2 * TOKENS]; /* the same text in both steps */
} child;

static void open_child(child *c, const char *name)
{
    char *dir = fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, name);
    char *file = fm_path_join(dir, "ref.safetensors");
    ik_ref ref;

    memset(c, 0, sizeof(*c));
    tk_ok(fm_source_open(&c->src, dir));
    tk_ok(fm_source_open(&ref.src, file));
    c->of_base = fm_source_provider(c->src);
    c->mem.behind[0] = c->of_base;
    c->mem.behind_count = 1;
    int32_t *ids = ik_ref_get(&ref, "input_ids", NULL);
    for (uint32_t i = 0; i < 2 * TOKENS; i++) {
        c->ids[i] = ids[i % TOKENS];
        c->labels[i] = i % TOKENS < MASKED ? -100 : c->ids[i];
    }
    fm_free(ids);
    fm_source_close(ref.src);
    fm_free(file);
    fm_free(dir);
}

static void close_child(child *c)
{
    ik_mem_free(&c->mem);
    fm_source_close(c->src);
}

static fm_status try_train(child *c, fm_engine *e, fm_objective objective, uint32_t steps,
                           fm_train_result *out)
{
    fm_train_job j = {.name = "child",
                      .config = fm_train_defaults(FM_METHOD_LORA),
                      .parent = fm_source_tree(c->src),
                      .batch_ids = c->ids,
                      .batch_labels = c->labels};

    j.config.objective = objective;
    j.config.classes = objective == FM_OBJECTIVE_CLASSIFY ? CLASSES : 0;
    j.config.r = 2;
    j.config.alpha = 4;
    j.config.lr = 1e-2;
    j.config.schedule = FM_SCHEDULE_CONSTANT;
    j.config.steps = steps;
    j.config.batch = 1;
    j.config.max_tokens = TOKENS;
    return fm_train_run(e, &c->of_base, &j, 1, out, NULL, NULL);
}

static void train(child *c, fm_engine *e, fm_objective objective, uint32_t steps,
                  fm_train_result *out)
{
    tk_ok(try_train(c, e, objective, steps, out));
}

static fm_tree *tree_of(child *c, const fm_train_result *r)
{
    fm_tree *t = NULL;
    fm_buf config;

    fm_buf_init(&config, 0);
    tk_ok(fm_tree_copy(&t, fm_source_tree(c->src)));
    tk_ok(fm_json_write(&config, r->adapter_config, FM_JSON_PRETTY));
    tk_ok(fm_tree_put_file(t, "adapters/0-lora/adapter_config.json", fm_buf_span(&config)));
    for (size_t i = 0; i < r->count; i++) {
        const fm_trained *x = &r->tensors[i];
        ik_put(&c->mem, t, "adapters/0-lora/tensors", x->name, (const float *)(const void *)x->data,
               x->shape.rank, x->shape.dim[0], x->shape.dim[1]);
    }
    fm_buf_release(&config);
    return t;
}

static double loss_of(child *c, fm_engine *e, const fm_tree *tree, const char *name)
{
    const fm_provider p = ik_provider(&c->mem);
    float lp[TOKENS];
    double sum = 0.0;
    fm_model *m = NULL;

    tk_ok(fm_model_load(&m, e, tree, &p, name));
    tk_ok(fm_score(m, c->ids, TOKENS, lp, NULL, 0));
    for (uint32_t i = MASKED; i < TOKENS; i++)
        sum -= (double)lp[i];
    fm_model_close(m);
    return sum / (TOKENS - MASKED);
}

static void check_lora(const char *name)
{
    child c;
    fm_train_result one, two;
    fm_engine *e = ik_engine(2, 64);

    open_child(&c, name);
    train(&c, e, FM_OBJECTIVE_NEXT_TOKEN, 1, &one);
    train(&c, e, FM_OBJECTIVE_NEXT_TOKEN, 2, &two);
    fm_tree *tree = tree_of(&c, &one);
    const double before = loss_of(&c, e, fm_source_tree(c.src), name);
    const double after = loss_of(&c, e, tree, name);
    tk_assert_le(fabs(before - kit_log(&two, 0, "loss")), 2e-6, name);
    tk_assert_le(fabs(after - kit_log(&two, 1, "loss")), 2e-6, name);
    tk_assert_le(after, before - 1e-4, name); /* it learns */
    print_message("%s: loss %.6f, then %.6f\n", name, before, after);
    fm_tree_free(tree);
    fm_train_result_release(&one);
    fm_train_result_release(&two);
    close_child(&c);
    fm_engine_free(e);
}

TEST(a_lora_runs_as_it_trained)
{
    static const char *const names[] = {
        /* clang-format off */
        "apertus", "arcee", "bloom", "cohere", "cohere2", "dots1", "ernie4_5", "exaone4",
        "ernie4_5_moe", "falcon", "falcon-groups", "gemma", "gemma2", "gemma3-linear",
        "glm", "glm4", "glm4_moe", "gpt_neox", "gpt_bigcode", "gpt_bigcode-heads",
        "gpt_oss", "gpt_oss-mxfp4", "gptj", "granite", "helium", "hyperclovax", "internlm3",
        "jais2", "llama-gelu", "hunyuan_v1_dense", "llama-gptq", "llama-awq", "minimax_m2",
        "llama-bnb-nf4", "llama-ct-int4", "ministral", "ministral3", "ministral3-long",
        "mistral3", "mpt", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt",
        "phi", "phi3", "phimoe", "qwen2-mixed", "qwen2_5_vl", "qwen2_moe", "qwen3_moe",
        "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma", "lfm2", "lfm2_moe",
        "mamba", "mamba2", "bamba", "granitemoehybrid", "granitemoehybrid-experts",
        "nemotron_h", "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_vl"
        /* clang-format on */
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_lora(names[i]);
}

/* Likewise with a head that the LoRA brings: the loss is the class's. */
static void check_lora_of_classes(const char *name)
{
    child c;
    fm_train_result one, two;
    float lp[CLASSES];
    fm_model *m = NULL;
    fm_engine *e = ik_engine(2, 64);

    open_child(&c, name);
    c.labels[0] = c.labels[TOKENS] = CLASS;
    train(&c, e, FM_OBJECTIVE_CLASSIFY, 1, &one);
    train(&c, e, FM_OBJECTIVE_CLASSIFY, 2, &two);
    fm_tree *tree = tree_of(&c, &one);
    const fm_provider p = ik_provider(&c.mem);
    tk_ok(fm_model_load(&m, e, tree, &p, name));
    const fm_classify_request q = {m, c.ids, TOKENS, lp};
    tk_ok(fm_classify_many(e, &q, 1));
    tk_assert_le(fabs(-(double)lp[CLASS] - kit_log(&two, 1, "loss")), 2e-6, name);
    tk_assert_le(kit_log(&two, 1, "loss"), kit_log(&two, 0, "loss") - 1e-4, name);
    print_message("%s: loss %.6f, then %.6f\n", name, kit_log(&two, 0, "loss"), -(double)lp[CLASS]);
    fm_model_close(m);
    fm_tree_free(tree);
    fm_train_result_release(&one);
    fm_train_result_release(&two);
    close_child(&c);
    fm_engine_free(e);
}

TEST(a_lora_of_an_encoder_runs_as_it_trained)
{
    static const char *const names[] = {"roberta", "distilbert", "mpnet"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_lora_of_classes(names[i]);
}

/* ModernBERT's has an activation and a norm, whose gradients are not computed. */
TEST(heads_without_gradients_are_refused_by_name)
{
    child c;
    fm_train_result out;
    fm_engine *e = ik_engine(1, 64);

    open_child(&c, "modernbert");
    c.labels[0] = c.labels[TOKENS] = CLASS;
    tk_fails(try_train(&c, e, FM_OBJECTIVE_CLASSIFY, 1, &out), FM_EUNSUPPORTED,
             "the classification head of modernbert is not supported");
    close_child(&c);
    fm_engine_free(e);
}

TEST(families_without_gradients_are_refused_by_name)
{
    static const char *const names[] = {"deepseek_v2", "deepseek_v2-lite", "deepseek_v3",
                                        "nemotron_h-experts", "falcon_h1"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        char *dir = fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, names[i]);
        const int32_t ids[4] = {5, 6, 7, 8};
        char family[16];
        fm_train_result g;
        double loss = 0.0;
        fm_source *src = NULL;
        fm_engine *e = ik_engine(1, 64);
        (void)snprintf(family, sizeof(family), "%.*s", (int)strcspn(names[i], "-"), names[i]);
        tk_ok(fm_source_open(&src, dir));
        const fm_provider p = fm_source_provider(src);
        tk_fails(fm_train_gradients(e, fm_source_tree(src), &p, ids, ids, 1, 4, &loss, &g),
                 FM_EUNSUPPORTED, family);
        fm_engine_free(e);
        fm_source_close(src);
        fm_free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lora_runs_as_it_trained),
        cmocka_unit_test(a_lora_of_an_encoder_runs_as_it_trained),
        cmocka_unit_test(heads_without_gradients_are_refused_by_name),
        cmocka_unit_test(families_without_gradients_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
