/* ctest: apart stages=2:2 */
/* Tiny models of each architecture, against Hugging Face's float32 logits. */
#include "tests/model/infer_kit.h"
#include "train/train.h"

#define LIMIT 1e-5

static void check_arch(const char *name)
{
    char path[128];
    ik_ref ref;
    (void)snprintf(path, sizeof(path), "arch/%s/ref.safetensors", name);
    if (!ik_ref_open(&ref, path))
        skip();
    (void)snprintf(path, sizeof(path), "arch/%s", name);
    fm_source *src = ik_source(path);
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = ik_model(e, src, name);
    size_t n = 0, count = 0;
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    float *want = ik_ref_get(&ref, "logits", &count);
    float *got = fm_malloc(count * sizeof(float));
    for (size_t b = 0; b < n / 24; b++) /* whole, and cut in a way that crosses nothing evenly */
        ik_logits(m, ids + b * 24, 24, b ? 7 : 24, got + b * 24 * (count / n));
    tk_assert_le(tk_rel_norm(got, want, count), LIMIT, name);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_source_close(ref.src);
}

TEST(llama_logits_match)
{
    check_arch("llama");
}
TEST(llama3_rope_scaling_matches)
{
    check_arch("llama3");
}
TEST(mistral_window_matches)
{
    check_arch("mistral");
}
TEST(qwen2_biases_match)
{
    check_arch("qwen2");
}
TEST(qwen3_head_norms_match)
{
    check_arch("qwen3");
}

TEST(gemma3_sandwich_and_local_layers_match)
{
    check_arch("gemma3");
}
TEST(mixtral_experts_match)
{
    check_arch("mixtral");
}
TEST(gpt2_positions_and_fused_products_match)
{
    check_arch("gpt2");
}

/* Final states of one text; the whole of it in one step. */
static void states_of(fm_engine *e, fm_model *m, const int32_t *ids, uint32_t n, float *out)
{
    fm_row row[64];
    fm_seq *s = NULL;
    size_t h = fm_model_arch(m)->hidden;
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < n; i++)
        row[i] = (fm_row){s, ids[i], true};
    tk_ok(fm_engine_step(e, row, n));
    for (uint32_t i = 0; i < n; i++) {
        assert_null(fm_engine_logits(e, i));
        memcpy(out + i * h, fm_engine_hidden(e, i), h * sizeof(float));
    }
    tk_fails(fm_engine_step(e, row, 1), FM_EINVAL, "one step");
    fm_seq_close(s);
}

TEST(bert_states_match)
{
    ik_ref ref;
    if (!ik_ref_open(&ref, "arch/bert/ref.safetensors"))
        skip();
    fm_source *src = ik_source("arch/bert");
    fm_engine *e = ik_engine(2, 64);
    fm_model *m = ik_model(e, src, "bert");
    size_t n = 0, count = 0, h = fm_model_arch(m)->hidden;
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n),
            *mask = ik_ref_get(&ref, "attention_mask", &n);
    float *want = ik_ref_get(&ref, "hidden", &count), *got = fm_malloc(count * sizeof(float));
    for (size_t b = 0; b < n / 24; b++) {
        uint32_t len = 0;
        while (len < 24 && mask[b * 24 + len])
            len++;
        states_of(e, m, ids + b * 24, len, got);
        tk_assert_le(tk_rel_norm(got, want + b * 24 * h, len * h), LIMIT, "bert");
    }
    fm_gen_request q = {.model = m, .prompt = ids, .prompt_len = 3, .max_new = 1};
    fm_gen_result r;
    fm_sample_defaults(&q.sampling);
    tk_fails(fm_generate(e, &q, 1, &r), FM_EUNSUPPORTED, "encoder");
    tk_fails(fm_score(m, ids, 3, got, NULL, 0), FM_EUNSUPPORTED, "encoder");
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_free(mask);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_source_close(ref.src);
}

TEST(next_token_gradients_need_a_language_head)
{
    fm_source *src = ik_source("arch/bert");
    if (!src)
        skip();
    fm_engine *e = ik_engine(1, 64);
    int32_t ids[4] = {5, 6, 7, 8};
    double loss = 0;
    fm_train_result g = {0};
    fm_provider p = fm_source_provider(src);
    tk_fails(fm_train_gradients(e, fm_source_tree(src), &p, ids, ids, 1, 4, &loss, &g),
             FM_EUNSUPPORTED, "bert has no language head");
    fm_source_close(src);
    fm_engine_free(e);
}

/* Rows of two models that share their stem but not one expert, beside each other and alone. */
TEST(experts_of_two_models_share_a_step)
{
    fm_source *src = ik_source("arch/mixtral");
    if (!src)
        skip();
    ik_mem mem = {.behind = {fm_source_provider(src)}, .behind_count = 1};
    fm_tree *tree = NULL;
    float *other = fm_calloc(96 * 48, sizeof(float));
    for (int i = 0; i < 96 * 48; i++)
        other[i] = 0.01f * (float)(i % 17 - 8);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
    ik_put(&mem, tree, "tensors", "model.layers.0.block_sparse_moe.experts.1.w1.weight", other, 2,
           96, 48);
    fm_engine *e = ik_engine(3, 64);
    fm_model *m[2] = {ik_model(e, src, "parent"), NULL};
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m[1], e, tree, &p, "child"));
    int32_t ids[24];
    float *alone = fm_malloc(2 * 24 * 160 * sizeof(float));
    for (int i = 0; i < 24; i++)
        ids[i] = 3 + (i * 37) % 150;
    for (size_t k = 0; k < 2; k++)
        ik_logits(m[k], ids, 24, k ? 1 : 24, alone + k * 24 * 160);
    assert_true(memcmp(alone, alone + 24 * 160, 24 * 160 * sizeof(float)) != 0);
    fm_seq *s[2];
    fm_row row[48];
    for (size_t k = 0; k < 2; k++)
        tk_ok(fm_seq_open(&s[k], m[k]));
    for (uint32_t i = 0; i < 48; i++)
        row[i] = (fm_row){s[i % 2], ids[i / 2], true};
    tk_ok(fm_engine_step(e, row, 48));
    for (uint32_t i = 0; i < 48; i++)
        assert_memory_equal(fm_engine_logits(e, i), alone + ((i % 2) * 24 + i / 2) * 160,
                            160 * sizeof(float));
    for (size_t k = 0; k < 2; k++) {
        fm_seq_close(s[k]);
        fm_model_close(m[k]);
    }
    fm_engine_free(e);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_free(other);
    fm_free(alone);
    fm_source_close(src);
}

/* A model of another shape in the same step takes its own pages and its own pass. */
TEST(unlike_models_share_a_step)
{
    fm_source *a = ik_source("arch/llama"), *b = ik_source("arch/qwen3");
    if (!a || !b)
        skip();
    fm_engine *e = ik_engine(2, 64);
    fm_model *ma = ik_model(e, a, "a"), *mb = ik_model(e, b, "b");
    int32_t ids[20];
    float *alone = fm_malloc(2 * 20 * 160 * sizeof(float));
    for (int i = 0; i < 20; i++)
        ids[i] = 3 + (i * 37) % 150;
    ik_logits(ma, ids, 20, 20, alone);
    ik_logits(mb, ids, 20, 20, alone + 20 * 160);
    fm_seq *s[2];
    fm_row row[40];
    tk_ok(fm_seq_open(&s[0], ma));
    tk_ok(fm_seq_open(&s[1], mb));
    for (uint32_t i = 0; i < 40; i++)
        row[i] = (fm_row){.seq = s[i % 2], .token = ids[i / 2], .want_logits = i % 3 != 0};
    tk_ok(fm_engine_step(e, row, 40));
    for (uint32_t i = 0; i < 40; i++) {
        const float *got = fm_engine_logits(e, i);
        assert_true((got != NULL) == row[i].want_logits);
        if (got)
            assert_memory_equal(got, alone + ((i % 2) * 20 + i / 2) * 160, 160 * sizeof(float));
    }
    fm_seq_close(s[0]);
    fm_seq_close(s[1]);
    fm_model_close(ma);
    fm_model_close(mb);
    fm_engine_free(e);
    fm_free(alone);
    fm_source_close(a);
    fm_source_close(b);
}

/* ==== text ==== */

static const char bytes_tokenizer[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

static fm_model *model_with_text(fm_engine *e, const fm_source *src, const char *tokenizer,
                                 const char *chat)
{
    fm_provider p = fm_source_provider(src);
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
    tk_ok(fm_tree_put_file(tree, "tokenizer/tokenizer.json", fm_span_str(tokenizer)));
    tk_ok(fm_tree_put_file(tree, "tokenizer/chat_template.jinja", fm_span_str(chat)));
    fm_status rc = fm_model_load(&m, e, tree, &p, "the model");
    fm_tree_free(tree);
    if (rc != FM_OK)
        assert_null(m);
    return m;
}

TEST(models_share_their_tokenizer_by_content)
{
    fm_source *src = ik_source("arch/llama");
    if (!src)
        skip();
    fm_engine *e = ik_engine(1, 64);
    fm_model *a = model_with_text(e, src, bytes_tokenizer, "{{ 1 }}");
    fm_model *b = model_with_text(e, src, bytes_tokenizer, "{{ 1 }}");
    fm_model *other = model_with_text(e, src, bytes_tokenizer, "{{ 2 }}");
    const fm_tokenizer *tok = fm_model_tokenizer(a);
    const fm_chat_template *chat = fm_model_chat_template(a);
    assert_true(tok && chat && fm_model_tokenizer(b) == tok && fm_model_chat_template(b) == chat);
    assert_true(fm_model_tokenizer(other) != tok && fm_model_chat_template(other) != chat);
    fm_model_close(other);
    fm_model_close(a);
    fm_ids ids = {0};
    tk_ok(fm_tokenizer_encode(fm_model_tokenizer(b), fm_span_str("abb"), false, &ids));
    assert_int_equal(ids.count, 2);
    fm_ids_release(&ids);
    fm_model_close(b);
    b = model_with_text(e, src, bytes_tokenizer, "{{ 1 }}"); /* the last used one stayed */
    assert_true(fm_model_tokenizer(b) == tok);
    fm_model_close(b);
    assert_null(model_with_text(e, src, "{", "{{ 1 }}"));
    assert_non_null(strstr(fm_error_text(), "the model"));
    assert_null(model_with_text(e, src, bytes_tokenizer, "{% if %}"));
    assert_non_null(strstr(fm_error_text(), "the model: chat template: line 1"));
    fm_engine_free(e);
    fm_source_close(src);
}

/* Every token is "a", two letters and the first byte of a code point: whatever the model says, the
 * text stops at once, and what the last byte would have become is not said. */
TEST(no_text_follows_a_stop_string)
{
    fm_source *src = ik_source("arch/llama");
    if (!src)
        skip();
    fm_buf tok;
    fm_buf_init(&tok, 0);
    fm_buf_str(&tok, "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,"
                     "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                     "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 160; i++)
        fm_buf_printf(&tok, "%s\"a%c%c\\u00c3\":%d", i ? "," : "", 'a' + i / 26, 'a' + i % 26, i);
    fm_buf_str(&tok, "}}}");
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = model_with_text(e, src, fm_buf_cstr(&tok), "{{ 1 }}");
    const char *stop[] = {"a"};
    int32_t prompt[] = {5, 6, 7};
    fm_gen_request q = {.model = m,
                        .prompt = prompt,
                        .prompt_len = 3,
                        .max_new = 4,
                        .stop = stop,
                        .stop_count = 1,
                        .ignore_eos = true};
    fm_sample_defaults(&q.sampling);
    fm_gen_result r;
    tk_ok(fm_generate(e, &q, 1, &r));
    assert_string_equal(r.finish, "stop");
    assert_int_equal(r.count, 1);
    assert_int_equal(r.text.len, 0);
    fm_gen_result_release(&r);
    fm_model_close(m);
    fm_buf_release(&tok);
    fm_engine_free(e);
    fm_source_close(src);
}

int main(void)
{
    char *here = tk_shared("arch");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_logits_match),
        cmocka_unit_test(llama3_rope_scaling_matches),
        cmocka_unit_test(mistral_window_matches),
        cmocka_unit_test(qwen2_biases_match),
        cmocka_unit_test(qwen3_head_norms_match),
        cmocka_unit_test(gemma3_sandwich_and_local_layers_match),
        cmocka_unit_test(mixtral_experts_match),
        cmocka_unit_test(gpt2_positions_and_fused_products_match),
        cmocka_unit_test(bert_states_match),
        cmocka_unit_test(next_token_gradients_need_a_language_head),
        cmocka_unit_test(experts_of_two_models_share_a_step),
        cmocka_unit_test(unlike_models_share_a_step),
        cmocka_unit_test(models_share_their_tokenizer_by_content),
        cmocka_unit_test(no_text_follows_a_stop_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
