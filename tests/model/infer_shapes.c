/* ctest: apart */
/* infer_shapes.c - sizes that no reference model has: odd head counts and vocabularies, heads of
 * one group, windows and positions that end inside of a text. Two independent paths must agree:
 * inference over pages, and training over whole sequences. */
#include "store/base/math/rng.h"
#include "tests/model/infer_kit.h"
#include "train/train.h"

#include <math.h>

typedef struct shape {
    const char *type;
    uint32_t vocab, hidden, inter, layers, heads, kv, hd, positions, window;
    bool tied;
} shape;

static const shape shapes[] = {
    {"llama", 131, 37, 53, 2, 5, 5, 6, 40, 0, true},
    {"llama", 33, 50, 70, 1, 7, 1, 34, 40, 0, false},
    {"mistral", 97, 24, 1033, 2, 9, 3, 2, 40, 7, false},
    {"qwen2", 65, 530, 31, 1, 3, 3, 96, 40, 0, true},
    {"qwen3", 1, 16, 16, 1, 1, 1, 2, 40, 0, true},
    {"qwen3", 257, 48, 40, 3, 6, 2, 112, 40, 1, false},
};

static void describe(fm_tree *tree, const shape *s)
{
    char *window = s->window ? fm_asprintf("\"sliding_window\":%u,\"use_sliding_window\":true,"
                                           "\"max_window_layers\":0,",
                                           s->window)
                             : fm_strdup("\"sliding_window\":null,");
    char *text = fm_asprintf(
        "{\"format\":1,\"config\":{\"model_type\":\"%s\",\"vocab_size\":%u,\"hidden_size\":%u,"
        "\"intermediate_size\":%u,\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
        "\"num_key_value_heads\":%u,\"head_dim\":%u,\"max_position_embeddings\":%u,%s"
        "\"tie_word_embeddings\":%s}}",
        s->type, s->vocab, s->hidden, s->inter, s->layers, s->heads, s->kv, s->hd, s->positions,
        window, s->tied ? "true" : "false");
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(text)));
    fm_free(text);
    fm_free(window);
}

static void put_random(ik_mem *mem, fm_tree *tree, const fm_param *p, uint32_t stream)
{
    uint64_t n = 0;
    tk_ok(fm_shape_elems(&n, &p->shape));
    float *x = fm_malloc((size_t)n * sizeof(float));
    double size = p->is_matrix ? 1.0 / sqrt((double)p->shape.dim[1]) : 0.2;
    for (uint64_t k = 0; k < n; k++)
        x[k] = (float)(size * fm_rng_normal(11, stream, k) + (p->is_matrix ? 0.0 : 1.0));
    ik_put(mem, tree, "tensors", p->name, x, p->shape.rank, p->shape.dim[0],
           p->shape.rank == 2 ? p->shape.dim[1] : 1);
    fm_free(x);
}

static void make(ik_mem *mem, fm_tree **tree, const shape *s)
{
    fm_arch a;
    fm_param p;
    tk_ok(fm_tree_new(tree));
    describe(*tree, s);
    tk_ok(fm_arch_of_tree(&a, *tree, NULL, s->type));
    assert_int_equal(a.window, s->window);
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++)
        put_random(mem, *tree, &p, i);
}

static void some_ids(int32_t *ids, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 37 + 5 * (i / 3)) % vocab);
}

static double loss_of_scores(fm_model *m, const int32_t *ids, uint32_t n)
{
    float lp[64];
    double sum = 0.0;
    tk_ok(fm_score(m, ids, n, lp, NULL, 0));
    for (uint32_t i = 1; i < n; i++)
        sum -= (double)lp[i];
    return sum / (double)(n - 1);
}

/* All at once, one by one, and beside another sequence: the same bits. */
static void check_cuts(fm_engine *e, fm_model *m, const int32_t *ids, uint32_t n)
{
    uint32_t vocab = fm_model_arch(m)->vocab;
    float *whole = fm_malloc((size_t)n * vocab * sizeof(float));
    float *cut = fm_malloc((size_t)n * vocab * sizeof(float));
    ik_logits(m, ids, n, n, whole);
    ik_logits(m, ids, n, 1, cut);
    assert_memory_equal(whole, cut, (size_t)n * vocab * sizeof(float));
    fm_seq *a = NULL, *b = NULL;
    tk_ok(fm_seq_open(&a, m));
    tk_ok(fm_seq_open(&b, m));
    for (uint32_t i = 0; i < n; i++) {
        fm_row row[] = {{a, ids[i], true}, {b, ids[n - 1 - i], i % 2 == 0}};
        tk_ok(fm_engine_step(e, row, 2));
        assert_memory_equal(fm_engine_logits(e, 0), whole + (size_t)i * vocab,
                            vocab * sizeof(float));
    }
    fm_seq_close(a);
    fm_seq_close(b);
    fm_free(whole);
    fm_free(cut);
}

static void check_shape(const shape *s)
{
    ik_mem mem = {0};
    fm_tree *tree = NULL;
    fm_engine *e = ik_engine(3, 64);
    fm_model *m = NULL;
    int32_t ids[40];
    double loss = 0.0;
    fm_train_result g;
    make(&mem, &tree, s);
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m, e, tree, &p, s->type));
    assert_null(fm_model_tokenizer(m));
    some_ids(ids, 40, s->vocab);
    tk_ok(fm_train_gradients(e, tree, &p, ids, ids, 1, 40, &loss, &g));
    double have = loss_of_scores(m, ids, 40);
    assert_true(isfinite(have) && isfinite(loss));
    tk_assert_le(fabs(have - loss), 1e-6 * (1.0 + fabs(loss)), s->type);
    for (size_t i = 0; i < g.count; i++)
        for (uint64_t k = 0; k < g.tensors[i].bytes / sizeof(float); k++) {
            float x;
            memcpy(&x, g.tensors[i].data + k * sizeof(float), sizeof(x));
            assert_true(isfinite(x));
        }
    fm_train_result_release(&g);
    check_cuts(e, m, ids, 40);
    fm_model_close(m);
    fm_engine_free(e);
    fm_tree_free(tree);
    ik_mem_free(&mem);
}

TEST(training_and_inference_agree_on_odd_shapes)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++)
        check_shape(&shapes[i]);
}

/* Families that training does not know, at sizes that divide nothing: the same bits whole, cut,
 * beside others, on one thread and on three. */
#define SIZES(v, h, i, l, n)                                                                       \
    "\"vocab_size\":" #v ",\"hidden_size\":" #h ",\"intermediate_size\":" #i                       \
    ",\"num_hidden_layers\":" #l ",\"num_attention_heads\":" #n ",\"max_position_embeddings\":40,"
static const char *const odd[] = {
    "\"model_type\":\"gpt2\",\"vocab_size\":37,\"n_embd\":30,\"n_head\":6,\"n_layer\":2,"
    "\"n_positions\":40,\"n_inner\":51",
    "\"model_type\":\"gpt_neox\"," SIZES(41, 40, 33, 2, 4) "\"rotary_pct\":0.4",
    "\"model_type\":\"gemma2\"," SIZES(
        53, 37, 29, 3,
        3) "\"num_key_value_heads\":1,\"head_dim\":6,"
           "\"sliding_window\":5,\"attn_logit_softcapping\":1.5,\"final_logit_softcapping\":2",
    "\"model_type\":\"gemma3_text\"," SIZES(53, 37, 29, 7,
                                            3) "\"num_key_value_heads\":3,"
                                               "\"head_dim\":34,\"sliding_window\":3",
    "\"model_type\":\"qwen2_moe\"," SIZES(
        29, 33, 17, 2,
        3) "\"num_key_value_heads\":3,"
           "\"head_dim\":4,\"num_experts\":7,\"num_experts_per_tok\":3,\"moe_intermediate_size\":9,"
           "\"shared_expert_intermediate_size\":45",
    "\"model_type\":\"mixtral\"," SIZES(29, 48, 17, 2,
                                        3) "\"num_key_value_heads\":1,"
                                           "\"num_local_experts\":3,\"num_experts_per_tok\":3",
    "\"model_type\":\"mixtral\"," SIZES(29, 48, 90, 1,
                                        3) "\"num_key_value_heads\":1,"
                                           "\"num_local_experts\":1,\"num_experts_per_tok\":1",
    "\"model_type\":\"deepseek_v3\"," SIZES(
        29, 35, 17, 2,
        5) "\"num_key_value_heads\":5,\"n_routed_experts\":6,\"num_experts_per_tok\":3,"
           "\"moe_intermediate_size\":9,\"n_group\":3,\"topk_group\":2,"
           "\"first_k_dense_replace\":1,\"kv_lora_rank\":7,\"q_lora_rank\":11,"
           "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":6,\"v_head_dim\":3",
    "\"model_type\":\"deepseek_v2\"," SIZES(
        29, 35, 17, 2,
        5) "\"num_key_value_heads\":5,\"n_routed_experts\":6,\"num_experts_per_tok\":3,"
           "\"moe_intermediate_size\":9,\"q_lora_rank\":null,\"kv_lora_rank\":33,"
           "\"qk_nope_head_dim\":2,\"qk_rope_head_dim\":4,\"v_head_dim\":6",
    "\"model_type\":\"gpt_oss\"," SIZES(29, 33, 17, 3,
                                        6) "\"num_key_value_heads\":2,\"head_dim\":6,"
                                           "\"num_local_experts\":5,\"num_experts_per_tok\":3,"
                                           "\"sliding_window\":3",
    "\"model_type\":\"granitemoeshared\"," SIZES(
        29, 33, 17, 3, 6) "\"num_key_value_heads\":2,\"head_dim\":6,\"num_local_experts\":5,"
                          "\"num_experts_per_tok\":3,\"shared_intermediate_size\":11",
    "\"model_type\":\"phi3\"," SIZES(31, 36, 23, 2, 6) "\"num_key_value_heads\":2,"
                                                       "\"sliding_window\":1",
    "\"model_type\":\"phi\"," SIZES(31, 42, 19, 2, 3) "\"partial_rotary_factor\":0.45",
    "\"model_type\":\"gptj\",\"vocab_size\":37,\"n_embd\":30,\"n_head\":3,\"n_layer\":2,"
    "\"n_positions\":40,\"n_inner\":51,\"rotary_dim\":6",
    "\"model_type\":\"glm4\"," SIZES(31, 42, 19, 2, 6) "\"num_key_value_heads\":3,\"head_dim\":12",
    "\"model_type\":\"hunyuan_v1_dense\"," SIZES(31, 42, 19, 2, 7) "\"num_key_value_heads\":1",
    "\"model_type\":\"nemotron\"," SIZES(31, 36, 17, 2, 3) "\"num_key_value_heads\":1",
    "\"model_type\":\"falcon\",\"vocab_size\":41,\"hidden_size\":36,\"ffn_hidden_size\":29,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_kv_heads\":3,"
    "\"new_decoder_architecture\":true,\"max_position_embeddings\":40",
    "\"model_type\":\"olmo2\"," SIZES(31, 42, 19, 2, 7) "\"num_key_value_heads\":7",
    "\"model_type\":\"glm4_moe\"," SIZES(
        31, 40, 19, 3,
        5) "\"num_key_value_heads\":1,"
           "\"n_routed_experts\":9,\"num_experts_per_tok\":3,\"moe_intermediate_size\":7,\"n_"
           "group\":3,"
           "\"topk_group\":2,\"routed_scaling_factor\":1.5,\"first_k_dense_replace\":1",
    "\"model_type\":\"ernie4_5_moe\"," SIZES(
        31, 40, 19, 2, 5) "\"num_key_value_heads\":1,"
                          "\"moe_num_experts\":5,\"moe_k\":3,\"moe_intermediate_size\":7",
    "\"model_type\":\"starcoder2\"," SIZES(31, 18, 19, 2, 9) "\"num_key_value_heads\":3",
};

static void check_odd(const char *config)
{
    ik_mem mem = {0};
    fm_tree *tree = NULL;
    fm_arch a;
    fm_param p;
    int32_t ids[40];
    char *text = fm_asprintf("{\"format\":1,\"config\":{%s}}", config);
    tk_ok(fm_tree_new(&tree));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(text)));
    tk_ok(fm_arch_of_tree(&a, tree, NULL, config));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++) {
        fm_param same;
        assert_true(fm_arch_param_named(&a, p.name, &same) && same.place == p.place &&
                    same.expert == p.expert && same.layer == p.layer);
        put_random(&mem, tree, &p, i);
    }
    fm_provider from = ik_provider(&mem);
    float *logits[2];
    some_ids(ids, 40, a.vocab);
    for (unsigned t = 0; t < 2; t++) {
        fm_engine *e = ik_engine(t ? 3 : 1, 64);
        fm_model *m = NULL;
        tk_ok(fm_model_load(&m, e, tree, &from, a.family));
        logits[t] = fm_malloc((size_t)40 * a.vocab * sizeof(float));
        ik_logits(m, ids, 40, 40, logits[t]);
        for (size_t i = 0; i < (size_t)40 * a.vocab; i++)
            assert_true(isfinite(logits[t][i]));
        check_cuts(e, m, ids, 40);
        fm_model_close(m);
        fm_engine_free(e);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)40 * a.vocab * sizeof(float));
    fm_free(logits[0]);
    fm_free(logits[1]);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_free(text);
}

TEST(families_keep_their_bits_at_odd_sizes)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(odd); i++)
        check_odd(odd[i]);
}

TEST(the_last_position_is_used_and_no_more)
{
    ik_mem mem = {0};
    fm_tree *tree = NULL;
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL;
    fm_seq *s = NULL;
    fm_gen_result r;
    int32_t ids[41];
    fm_row row[41];
    make(&mem, &tree, &shapes[0]);
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m, e, tree, &p, "short"));
    some_ids(ids, 41, shapes[0].vocab);
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < 41; i++)
        row[i] = (fm_row){s, ids[i], true};
    tk_fails(fm_engine_step(e, row, 41), FM_ELIMIT, "40");
    assert_int_equal(fm_seq_len(s), 0);
    tk_ok(fm_engine_step(e, row, 40));
    tk_fails(fm_engine_step(e, row + 40, 1), FM_ELIMIT, "40");
    assert_int_equal(fm_seq_len(s), 40);
    fm_seq_close(s);
    fm_gen_request q = {
        .model = m, .prompt = ids, .prompt_len = 38, .max_new = 9, .ignore_eos = true};
    fm_sample_defaults(&q.sampling);
    tk_ok(fm_generate(e, &q, 1, &r));
    assert_string_equal(r.finish, "length");
    assert_int_equal(r.count, 2);
    assert_int_equal(r.text.len, 0); /* no tokenizer */
    fm_gen_result_release(&r);
    q.prompt_len = 40;
    tk_fails(fm_generate(e, &q, 1, &r), FM_EINVAL, "prompt");
    fm_model_close(m);
    fm_engine_free(e);
    fm_tree_free(tree);
    ik_mem_free(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_and_inference_agree_on_odd_shapes),
        cmocka_unit_test(families_keep_their_bits_at_odd_sizes),
        cmocka_unit_test(the_last_position_is_used_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
