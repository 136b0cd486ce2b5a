/* ctest: card apart */
/* Families and rotary kinds beside those of the shared references: tiny models with Hugging Face's
 * float32 logits, checked in (golden/make_arch.py and, with scales, make_scaled.py made them). */
#include "infer/model.h"
#include "tests/model/infer_kit.h"

#include "infer/model.h"
#include "infer/model/shard.h"
#include "infer/model/stage_split.h"

#define LIMIT 2e-6
#define FAST_LIMIT 2e-2
#define INTEGER_LIMIT 4e-2 /* products of int8 activations: 127 steps for 64 numbers */
#define TOKENS 40

static char *golden(const char *name, const char *file)
{
    return fm_asprintf("%s/tests/model/golden/arch/%s%s", FM_SOURCE_DIR, name, file);
}

static void run(fm_model *m, const int32_t *ids, uint32_t cut, bool states, float *out,
                size_t width)
{
    fm_engine *e = fm_model_engine(m);
    fm_seq *s = NULL;
    fm_row row[TOKENS];
    tk_ok(fm_seq_open(&s, fm_model_for_length(m, TOKENS)));
    for (uint32_t at = 0; at < TOKENS; at += cut) {
        uint32_t k = FM_MIN(cut, TOKENS - at);
        for (uint32_t i = 0; i < k; i++)
            row[i] = (fm_row){s, ids[at + i], true};
        tk_ok(fm_engine_step(e, row, k));
        for (uint32_t i = 0; i < k; i++)
            memcpy(out + (at + i) * width, states ? fm_engine_hidden(e, i) : fm_engine_logits(e, i),
                   width * sizeof(float));
    }
    fm_seq_close(s);
}

/* Most likely tokens behind the first 8, where the reference has them. */
static void check_greedy(fm_model *m, const ik_ref *ref, const int32_t *ids)
{
    fm_gen_request q = {
        .model = m, .prompt = ids, .prompt_len = 8, .max_new = 12, .ignore_eos = true};
    fm_gen_result r;
    if (!fm_tree_find(fm_source_tree(ref->src), "tensors/greedy"))
        return;
    int32_t *want = ik_ref_get(ref, "greedy", NULL);
    fm_sample_defaults(&q.sampling);
    q.sampling.temperature = 0;
    tk_ok(fm_generate(fm_model_engine(m), &q, 1, &r));
    assert_int_equal(r.count, 12);
    assert_memory_equal(r.tokens, want, 12 * sizeof(int32_t));
    fm_gen_result_release(&r);
    fm_free(want);
}

/* Where the device in this mode lacks what the family's attention or weights need, it says so. */
static bool refused(fm_engine *e, fm_source *src, const char *name)
{
    fm_provider p = fm_source_provider(src);
    fm_model *m = NULL;
    fm_backend *be = fm_engine_backend(e);
    bool sinks = strncmp(name, "gpt_oss", 7) == 0, lacks = !(be->attends & FM_ATTENDS_SINK);
    bool chunks = strncmp(name, "llama4", 6) == 0 && !(be->attends & FM_ATTENDS_FIRST);
    bool blocks = strcmp(name, "gpt_oss-mxfp4") == 0 && strcmp(be->name, "cuda") == 0;
    if (!blocks && !chunks && !(sinks && lacks))
        return false;
    tk_fails(fm_model_load(&m, e, fm_source_tree(src), &p, name), FM_EUNSUPPORTED,
             chunks  ? "in chunks"
             : lacks ? "sinks"
                     : "type MXFP4");
    return true;
}

/* mode fast rounds activations and cached keys: near, and the same bits however a text is cut. */
static void check(const char *name, const char *mode, double limit)
{
    char *dir = golden(name, ""), *file = golden(name, "/ref.safetensors");
    ik_ref ref = {NULL};
    fm_source *src = NULL;
    tk_ok(fm_source_open(&ref.src, file));
    tk_ok(fm_source_open(&src, dir));
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 2;
    o.max_rows = 64;
    o.mode = mode;
    tk_ok(fm_engine_new(&e, &o));
    if (refused(e, src, name))
        goto done;
    fm_model *m = ik_model(e, src, name);
    bool encoder = fm_model_arch(m)->sw.encoder, states = encoder || fm_model_arch(m)->headless;
    size_t count = 0, n = 0;
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    float *want = ik_ref_get(&ref, states ? "hidden" : "logits", &count);
    float *got = fm_malloc(2 * count * sizeof(float)), *cut = got + count;
    assert_int_equal(n, TOKENS);
    run(m, ids, TOKENS, states, got, count / n);
    print_message("%s %s: %.2g\n", name, mode, tk_rel_norm(got, want, count));
    tk_assert_le(tk_rel_norm(got, want, count), limit, name);
    if (!encoder) { /* cut in a way that crosses nothing evenly: the same bits */
        run(m, ids, 7, states, cut, count / n);
        assert_memory_equal(got, cut, count * sizeof(float));
    }
    if (strcmp(mode, "exact") == 0)
        check_greedy(m, &ref, ids);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_model_close(m);
done:
    fm_engine_free(e);
    fm_source_close(src);
    fm_source_close(ref.src);
    fm_free(dir);
    fm_free(file);
}

TEST(families_match)
{
    static const char *const names[] = {"gemma2",
                                        "gemma3-linear",
                                        "qwen2-mixed",
                                        "qwen2_moe",
                                        "qwen3_moe",
                                        "phi3",
                                        "gpt_neox",
                                        "gpt_neox-sequential",
                                        "roberta",
                                        "granite",
                                        "olmo2",
                                        "smollm3",
                                        "stablelm",
                                        "starcoder2",
                                        "llama-gelu",
                                        "llama-fp8",
                                        "llama-fp8-channel",
                                        "llama-fp8-tensor"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* Checkpoints of quantized weights run as they are. */
TEST(quantized_checkpoints_match)
{
    static const char *const names[] = {
        "llama-gptq",    "llama-gptq-act", "llama-gptq-8",  "llama-awq",     "llama-bnb-nf4",
        "llama-bnb-fp4", "llama-bnb-int8", "llama-ct-int4", "llama-ct-int8", "llama-ct-pack8",
        "llama-ao-int4", "llama-ao-intx",  "llama-ao-int8"};
    static const char *const ternary[] = {"llama-bitlinear", "llama-bitnet", "llama-bitnet-online",
                                          "bitnet-packed", "bitnet-online"};
    for (size_t i = 0; i < FM_ARRAY_LEN(ternary); i++) {
        check(ternary[i], "exact", LIMIT);
        check(ternary[i], "fast", INTEGER_LIMIT);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", INTEGER_LIMIT);
}

/* Families that differ from one above by settings and names. */
TEST(kindred_families_match)
{
    static const char *const names[] = {
        "gemma",      "gemma-untied",  "ministral",  "ministral3",   "ministral3-long",
        "mistral3",   "qwen2_5_vl",    "olmo3",      "olmoe",        "exaone4",
        "seed_oss",   "internlm3",     "qwen3-base", "distilbert",   "electra",
        "nomic_bert", "electra-small", "albert",     "albert-groups"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* Families with recurrent layers, on devices that compute them. */
TEST(recurrent_families_match)
{
    static const char *const names[] = {"lfm2",
                                        "lfm2-plain",
                                        "lfm2_moe",
                                        "mamba",
                                        "mamba2",
                                        "mamba2-plain",
                                        "qwen3_next",
                                        "qwen3_5",
                                        "qwen3_5_moe",
                                        "qwen3_5_vl",
                                        "bamba",
                                        "nemotron_h",
                                        "nemotron_h-experts",
                                        "nemotron_h-latent",
                                        "falcon_h1",
                                        "falcon_h1-gate",
                                        "falcon_h1-bare",
                                        "granitemoehybrid",
                                        "granitemoehybrid-rope",
                                        "granitemoehybrid-experts"};
    fm_engine *e = NULL;
    tk_ok(fm_engine_new(&e, NULL));
    bool here = fm_engine_backend(e)->convolve;
    fm_engine_free(e);
    for (size_t i = 0; here && i < FM_ARRAY_LEN(names); i++) {
        check(names[i], "exact", LIMIT);
        check(names[i], "fast", FAST_LIMIT);
    }
}

/* Families with a switch of their own: pairs that turn, one norm for both branches, groups of
 * heads, norms without gains or of 1 + w, a head with a bias, squared ReLU. */
TEST(switched_families_match)
{
    static const char *const names[] = {"olmo",
                                        "cohere",
                                        "cohere-untied",
                                        "cohere2",
                                        "glm",
                                        "glm4",
                                        "ernie4_5",
                                        "helium",
                                        "hunyuan_v1_dense",
                                        "arcee",
                                        "nemotron",
                                        "phi",
                                        "phi-tied",
                                        "gptj",
                                        "gpt_bigcode",
                                        "gpt_bigcode-heads",
                                        "opt",
                                        "falcon",
                                        "falcon-groups",
                                        "falcon-groups-one-norm",
                                        "vaultgemma",
                                        "jais2",
                                        "hyperclovax",
                                        "hyperclovax-plain",
                                        "falcon-heads",
                                        "bitnet",
                                        "nanochat",
                                        "apertus"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* Heads of two sizes, keys that are values, shared keys and values, embeddings of each layer's own. */
TEST(families_with_uneven_layers_match)
{
    static const char *const names[] = {"gemma4", "gemma4-plain", "gemma4-whole",
                                        "gemma4-experts"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* A device whose attention lacks what a family needs refuses it by name: true where that is so. */
static bool refused_here(const char *name, const char *needle)
{
    char *dir = golden(name, "");
    fm_engine *e = ik_engine(1, 64);
    fm_source *src = NULL;
    fm_model *m = NULL;
    bool lacks = !(fm_engine_backend(e)->attends & FM_ATTENDS_BIAS);
    tk_ok(fm_source_open(&src, dir));
    fm_provider p = fm_source_provider(src);
    if (lacks)
        tk_fails(fm_model_load(&m, e, fm_source_tree(src), &p, name), FM_EUNSUPPORTED, needle);
    fm_source_close(src);
    fm_engine_free(e);
    fm_free(dir);
    return lacks;
}

/* Scores with a bias by distance, in a decoder and in an encoder; windows to both sides. */
TEST(biases_by_distance_match)
{
    static const char *const names[] = {
        "bloom", "mpt", "mpnet", "gemma3-both-ways", "modernbert", "modernbert-biases"};
    if (refused_here("bloom", "biases by distance") && refused_here("mpnet", "biases by distance"))
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* Routers whose shares are sigmoids, or whose choice a bias or groups steer; shared experts without
 * a gate; gate and up of all experts in one tensor. */
TEST(families_of_experts_match)
{
    static const char *const names[] = {"glm4_moe",     "dots1",      "minimax_m2",
                                        "ernie4_5_moe", "granitemoe", "granitemoeshared"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
    check("phimoe", "exact", LIMIT); /* its shares jump where an expert is just near enough */
    check("phimoe", "fast", 5 * FAST_LIMIT);
}

/* Rows of two models that differ in the bias of one router, beside each other and alone. */
TEST(routers_of_two_models_share_a_step)
{
    enum { LEN = 24, V = 48 };
    static const float other[8] = {0.9f, -0.9f, 0.4f, 0.1f, -0.3f, 0.8f, -0.5f, 0.6f};
    char *dir = golden("glm4_moe", "");
    fm_source *src = NULL;
    fm_tree *tree = NULL;
    int32_t ids[TOKENS] = {0};
    float alone[2][TOKENS * V];
    tk_ok(fm_source_open(&src, dir));
    ik_mem mem = {.behind = {fm_source_provider(src)}, .behind_count = 1};
    tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
    ik_put(&mem, tree, "tensors", "model.layers.1.mlp.gate.e_score_correction_bias", other, 1, 8,
           0);
    fm_engine *e = ik_engine(3, 64);
    fm_model *m[2] = {ik_model(e, src, "parent"), NULL};
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m[1], e, tree, &p, "child"));
    for (int i = 0; i < TOKENS; i++)
        ids[i] = 3 + (i * 37) % 45;
    fm_seq *s[2];
    fm_row row[2 * LEN];
    for (size_t k = 0; k < 2; k++) {
        run(m[k], ids, 5, false, alone[k], V);
        tk_ok(fm_seq_open(&s[k], m[k]));
    }
    assert_true(memcmp(alone[0], alone[1], LEN * V * sizeof(float)) != 0);
    for (uint32_t i = 0; i < 2 * LEN; i++)
        row[i] = (fm_row){s[i % 2], ids[i / 2], true};
    tk_ok(fm_engine_step(e, row, 2 * LEN));
    for (uint32_t i = 0; i < 2 * LEN; i++)
        assert_memory_equal(fm_engine_logits(e, i), alone[i % 2] + (size_t)(i / 2) * V,
                            V * sizeof(float));
    for (size_t k = 0; k < 2; k++) {
        fm_seq_close(s[k]);
        fm_model_close(m[k]);
    }
    fm_engine_free(e);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_source_close(src);
    fm_free(dir);
}

/* Rows of two texts that stand at other positions, and so in other chunks, in one step; the second
 * goes on row by row. */
TEST(texts_at_other_positions_share_a_step)
{
    static const char *const names[] = {"llama4", "llama4-sight", "ministral3-long"};
    for (size_t k = 0; k < FM_ARRAY_LEN(names); k++) {
        enum { V = 48, FIRST = 17, AHEAD = 9 };
        char *dir = golden(names[k], ""), *file = golden(names[k], "/ref.safetensors");
        ik_ref ref = {NULL};
        fm_source *src = NULL;
        fm_seq *s[2];
        fm_row row[TOKENS];
        float alone[TOKENS * V];
        tk_ok(fm_source_open(&ref.src, file));
        tk_ok(fm_source_open(&src, dir));
        fm_engine *e = ik_engine(2, 64);
        if (refused(e, src, names[k]))
            goto done;
        fm_model *m = ik_model(e, src, names[k]);
        int32_t *ids = ik_ref_get(&ref, "input_ids", NULL);
        run(m, ids, TOKENS, false, alone, V);
        tk_ok(fm_seq_open(&s[0], m));
        tk_ok(fm_seq_open(&s[1], m));
        for (uint32_t i = 0; i < AHEAD; i++)
            row[i] = (fm_row){s[1], ids[i], true};
        tk_ok(fm_engine_step(e, row, AHEAD));
        for (uint32_t i = 0; i < FIRST; i++)
            row[i] = (fm_row){s[0], ids[i], true};
        row[FIRST] = (fm_row){s[1], ids[AHEAD], true};
        tk_ok(fm_engine_step(e, row, FIRST + 1));
        for (uint32_t i = 0; i <= FIRST; i++)
            assert_memory_equal(fm_engine_logits(e, i), alone + (i < FIRST ? i : AHEAD) * V,
                                V * sizeof(float));
        for (uint32_t at = AHEAD + 1; at < TOKENS; at++) {
            uint32_t other = FIRST + at - AHEAD - 1, n = other < TOKENS ? 2 : 1;
            row[0] = (fm_row){s[1], ids[at], true};
            row[1] = (fm_row){s[0], ids[other % TOKENS], true};
            tk_ok(fm_engine_step(e, row, n));
            assert_memory_equal(fm_engine_logits(e, 0), alone + at * V, V * sizeof(float));
            if (n == 2)
                assert_memory_equal(fm_engine_logits(e, 1), alone + other * V, V * sizeof(float));
        }
        fm_seq_close(s[0]);
        fm_seq_close(s[1]);
        fm_free(ids);
        fm_model_close(m);
    done:
        fm_engine_free(e);
        fm_source_close(src);
        fm_source_close(ref.src);
        fm_free(dir);
        fm_free(file);
    }
}

/* Layers behind the last, of which the config says how many there are, guess further tokens. */
TEST(layers_behind_the_last_are_left_out)
{
    static const float any[4] = {1.0f};
    char *dir = golden("glm4_moe", "");
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, dir));
    fm_provider p = fm_source_provider(src);
    for (int i = 0; i < 2; i++) {
        ik_mem mem = {0};
        fm_tree *tree = NULL;
        tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
        ik_put(&mem, tree, "tensors",
               i ? "model.layers.4.eh_proj.weight" : "model.layers.3.eh_proj.weight", any, 2, 2, 2);
        fm_status rc = fm_model_check(tree, &p, "m");
        if (i)
            tk_fails(rc, FM_EUNSUPPORTED, "model.layers.4.eh_proj.weight");
        else
            tk_ok(rc);
        fm_tree_free(tree);
        ik_mem_free(&mem);
    }
    fm_source_close(src);
    fm_free(dir);
}

/* Families whose attention or experts are their own. */
TEST(families_of_their_own_match)
{
    static const char *const names[] = {"gpt_oss",          "gpt_oss-mxfp4", "deepseek_v2",
                                        "deepseek_v2-lite", "deepseek_v3",   "llama4",
                                        "llama4-sight"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

TEST(rotary_kinds_match)
{
    static const char *const names[] = {"llama-linear",      "llama-dynamic", "llama-yarn",
                                        "llama-yarn-mscale", "phi3-longrope", "phi3-long"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* Adapters whose names are those of the class, and not of the file. */
static void check_adapter(const char *name)
{
    char *dir = golden(name, ""), *file = golden(name, "/ref.safetensors");
    char *lora = fm_asprintf("%s/tests/model/golden/arch_peft/%s", FM_SOURCE_DIR, name);
    char *want_file = fm_asprintf("%s/ref.safetensors", lora);
    fm_source *base = NULL, *adapter = NULL;
    ik_ref ids_of = {NULL}, ref = {NULL};
    fm_tree *both = NULL;
    fm_model *m = NULL;
    ik_mem mem = {.behind_count = 2};
    tk_ok(fm_source_open(&base, dir));
    tk_ok(fm_source_open(&adapter, lora));
    tk_ok(fm_source_open(&ids_of.src, file));
    tk_ok(fm_source_open(&ref.src, want_file));
    tk_ok(fm_adapter_apply(&both, fm_source_tree(base), fm_source_tree(adapter), name, NULL));
    mem.behind[0] = fm_source_provider(base);
    mem.behind[1] = fm_source_provider(adapter);
    fm_provider p = ik_provider(&mem);
    fm_engine *e = ik_engine(1, 64);
    tk_ok(fm_model_load(&m, e, both, &p, name));
    bool states = fm_model_arch(m)->headless || fm_model_arch(m)->sw.encoder;
    size_t count = 0;
    int32_t *ids = ik_ref_get(&ids_of, "input_ids", NULL);
    float *want = ik_ref_get(&ref, states ? "hidden" : "logits", &count);
    float *got = fm_malloc(count * sizeof(float));
    run(m, ids, TOKENS, states, got, count / TOKENS);
    tk_assert_le(tk_rel_norm(got, want, count), LIMIT, name);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_model_close(m);
    fm_engine_free(e);
    fm_tree_free(both);
    fm_source_close(ref.src);
    fm_source_close(ids_of.src);
    fm_source_close(adapter);
    fm_source_close(base);
    fm_free(want_file);
    fm_free(lora);
    fm_free(file);
    fm_free(dir);
}

TEST(adapters_are_found_by_the_names_of_the_class)
{
    check_adapter("mistral3");
    check_adapter("qwen2_5_vl");
    check_adapter("qwen3-base");
    check_adapter("modernbert");
}

/* Of products of the embeddings that each layer has of its own, and behind keys that are values. */
TEST(adapters_of_uneven_layers_match)
{
    check_adapter("gemma4");
    check_adapter("gemma4-whole");
}

/* Of layers that several others are, of an embedding and of what makes it as wide as the layers. */
TEST(adapters_of_shared_layers_match)
{
    check_adapter("albert-groups");
}

/* Parameters of layers that share them are held once. */
TEST(shared_layers_are_held_once)
{
    char *dir = golden("albert-groups", "");
    fm_source *src = NULL;
    fmi_stage_split split;
    fm_arch local;
    fm_param p, same;
    tk_ok(fm_source_open(&src, dir));
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = ik_model(e, src, "albert");
    assert_int_equal(fm_model_arch(m)->layers, 10);
    for (uint32_t l = 0; l < 10; l++) { /* repeats 0 to 2 are of the first group, 3 and 4 not */
        uint32_t first = l % 2 + (l < 6 ? 0 : 6);
        assert_int_equal(fm_arch_layer_shared(fm_model_arch(m), l), first);
        assert_ptr_equal(m->layers[l].q.w, m->layers[first].q.w);
        assert_ptr_equal(m->layers[l].mlp_post, m->layers[first].mlp_post);
    }
    assert_ptr_not_equal(m->layers[0].q.w, m->layers[1].q.w);
    assert_ptr_not_equal(m->layers[0].q.w, m->layers[6].q.w);
    for (uint32_t i = 0; fm_arch_param(fm_model_arch(m), i, &p); i++) {
        assert_true(fm_arch_param_named(fm_model_arch(m), p.name, &same));
        p.layer =
            p.layer < 0 ? -1 : (int32_t)fm_arch_layer_shared(fm_model_arch(m), (uint32_t)p.layer);
        assert_true(same.place == p.place && same.layer == p.layer);
    }
    assert_false(fm_arch_param_named(
        fm_model_arch(m), "encoder.albert_layer_groups.2.albert_layers.0.ffn.weight", &same));
    assert_false(fm_arch_param_named(
        fm_model_arch(m), "encoder.albert_layer_groups.1.albert_layers.2.ffn.weight", &same));
    tk_fails(fmi_shard_arch(&local, fm_model_arch(m), 2, "it"), FM_EUNSUPPORTED, "over ranks");
    tk_fails(fmi_stage_split_of(&split, fm_model_arch(m), 2, "it"), FM_EUNSUPPORTED, "over stages");
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_free(dir);
}

/* Rows are normed and rounded whole, so ranks cannot split them. */
TEST(rounded_rows_are_not_split_over_ranks)
{
    static const char *const names[] = {"bitnet", "llama-bitnet"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        char *dir = golden(names[i], "");
        fm_source *src = NULL;
        fm_arch whole, local;
        tk_ok(fm_source_open(&src, dir));
        fm_provider p = fm_source_provider(src);
        tk_ok(fm_arch_of_tree(&whole, fm_source_tree(src), &p, "it"));
        assert_true(whole.sw.rounds == (i == 1) && whole.sw.sub_norms == (i == 0));
        tk_fails(fmi_shard_arch(&local, &whole, 2, "it"), FM_EUNSUPPORTED, "use one rank");
        fm_source_close(src);
        fm_free(dir);
    }
}

/* Of modules that lie beside experts in one tensor. */
TEST(adapters_of_stacked_experts_match)
{
    check_adapter("granitemoeshared");
    check_adapter("llama4");
    check_adapter("llama4-sight");
}

/* Of a class with other names than its file, and where a config multiplies products. */
TEST(adapters_of_hybrids_match)
{
    fm_engine *e = ik_engine(1, 64);
    bool here = fm_engine_backend(e)->convolve;
    fm_engine_free(e);
    if (here) {
        check_adapter("nemotron_h-latent");
        check_adapter("falcon_h1");
    }
}

/* The longest text is the one up to which the frequencies stay what they are, or longrope's. */
static void check_longest(const char *name, uint32_t usual, uint32_t longest)
{
    char *dir = golden(name, ""), text[16];
    fm_source *src = NULL;
    int32_t ids[258] = {0};
    float lp[258];
    tk_ok(fm_source_open(&src, dir));
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = ik_model(e, src, name);
    assert_int_equal(fm_model_arch(m)->max_positions, usual);
    tk_ok(fm_score(m, ids, longest, lp, NULL, 0));
    (void)snprintf(text, sizeof(text), "%u", longest);
    tk_fails(fm_score(m, ids, longest + 2, lp, NULL, 0), FM_EINVAL, text);
    assert_int_equal(fm_engine_stats_of(e).models, 1);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_free(dir);
}

TEST(changing_frequencies_bound_the_text)
{
    check_longest("llama-dynamic", 64, 64);
    check_longest("phi3-longrope", 64, 256);
}

/* Texts that are short, that are long and that become long have the tokens of each alone, whether
 * the cache knows them or not. */
TEST(texts_outgrow_the_original_length)
{
    enum { TEXTS = 4, NEW = 12 };
    static const size_t length[TEXTS] = {3, 8, 15, 30};
    char *dir = golden("phi3-long", ""), *file = golden("phi3-long", "/ref.safetensors");
    ik_ref ref = {NULL};
    fm_source *src = NULL;
    fm_gen_request q[TEXTS];
    fm_gen_result alone[TEXTS], all[TEXTS];
    tk_ok(fm_source_open(&ref.src, file));
    tk_ok(fm_source_open(&src, dir));
    fm_engine *e = ik_engine(2, 16);
    fm_model *m = ik_model(e, src, "phi");
    int32_t *ids = ik_ref_get(&ref, "input_ids", NULL);
    for (size_t i = 0; i < TEXTS; i++) {
        q[i] = (fm_gen_request){
            .model = m, .prompt = ids, .prompt_len = length[i], .max_new = NEW, .ignore_eos = true};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.temperature = 0;
        tk_ok(fm_generate(e, &q[i], 1, &alone[i]));
        assert_int_equal(alone[i].count, NEW);
    }
    for (int again = 0; again < 2; again++) {
        tk_ok(fm_generate(e, q, TEXTS, all));
        for (size_t i = 0; i < TEXTS; i++) {
            assert_memory_equal(all[i].tokens, alone[i].tokens, NEW * sizeof(int32_t));
            fm_gen_result_release(&all[i]);
        }
    }
    for (size_t i = 0; i < TEXTS; i++)
        fm_gen_result_release(&alone[i]);
    fm_free(ids);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_source_close(ref.src);
    fm_free(dir);
    fm_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match),
        cmocka_unit_test(quantized_checkpoints_match),
        cmocka_unit_test(kindred_families_match),
        cmocka_unit_test(recurrent_families_match),
        cmocka_unit_test(switched_families_match),
        cmocka_unit_test(families_with_uneven_layers_match),
        cmocka_unit_test(adapters_of_uneven_layers_match),
        cmocka_unit_test(families_of_their_own_match),
        cmocka_unit_test(biases_by_distance_match),
        cmocka_unit_test(families_of_experts_match),
        cmocka_unit_test(routers_of_two_models_share_a_step),
        cmocka_unit_test(texts_at_other_positions_share_a_step),
        cmocka_unit_test(layers_behind_the_last_are_left_out),
        cmocka_unit_test(rotary_kinds_match),
        cmocka_unit_test(adapters_are_found_by_the_names_of_the_class),
        cmocka_unit_test(rounded_rows_are_not_split_over_ranks),
        cmocka_unit_test(adapters_of_stacked_experts_match),
        cmocka_unit_test(adapters_of_hybrids_match),
        cmocka_unit_test(adapters_of_shared_layers_match),
        cmocka_unit_test(shared_layers_are_held_once),
        cmocka_unit_test(changing_frequencies_bound_the_text),
        cmocka_unit_test(texts_outgrow_the_original_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
