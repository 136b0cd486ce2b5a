/* verify.c - a written GGUF passes beside its version, and a spoiled one does not: its tensors, its
 * template, its tokens, its numbers. */
#include "tests/testkit.h"

#include <string.h>

#include "cli/ops/derive.h"
#include "cli/ops/export.h"
#include "cli/ops/import.h"
#include "store/base/os/io.h"
#include "store/formats/gguf.h"
#include "store/source.h"

typedef struct world {
    fm_ops ops;
    char *dir, *path;
    fm_tree *tree;
    fm_buf file; /* the written bytes */
    fm_gguf *g;  /* of them */
} world;

static void world_open(world *w, fm_dtype dtype)
{
    char *folder = tk_source("examples/atlas/base");
    fm_import_result imported;
    fm_oid oid;
    *w = (world){.dir = tk_scratch()};
    tk_ok(fm_repo_init(w->dir, true));
    w->ops = (fm_ops){.dir = w->dir, .threads = 2};
    tk_ok(fm_ops_open(&w->ops));
    tk_ok(fm_ops_import(
        &w->ops, &(fm_import_opts){.path = folder, .name = "atlas", .no_gate = true}, &imported));
    tk_ok(fm_ops_resolve(&w->ops, "atlas", &oid, &w->tree));
    const fm_provider p = fm_store_provider(fm_repo_store(w->ops.repo));
    w->path = fm_path_join(w->dir, "x.gguf");
    const fm_view_opts opts = {.format = FM_EXPORT_GGUF,
                               .dtype = dtype == FM_Q8_0 ? FM_DTYPE_NONE : dtype,
                               .mix = dtype == FM_Q8_0 ? "Q8_0" : NULL};
    tk_ok(fm_export_as(w->tree, &p, w->path, &opts));
    fm_buf_init(&w->file, 0);
    tk_ok(fm_read_file(&w->file, w->path, 1u << 30));
    tk_ok(fm_gguf_parse(&w->g, fm_buf_span(&w->file), "x.gguf"));
    fm_free(folder);
}

static void world_close(world *w)
{
    fm_gguf_close(w->g);
    fm_buf_release(&w->file);
    fm_tree_free(w->tree);
    fm_ops_close(&w->ops);
    fm_free(w->path);
    fm_free(w->dir);
}

/* Writes the file with `len` other bytes at a place of it, and verifies that. */
static fm_status with(world *w, const uint8_t *at, const void *other, size_t len,
                      fm_verify_report *r)
{
    const size_t from = (size_t)(at - w->file.data);
    uint8_t *kept = fm_malloc(len);
    memcpy(kept, at, len);
    memcpy(w->file.data + from, other, len);
    tk_ok(fm_write_file(w->path, w->file.data, w->file.len));
    memcpy(w->file.data + from, kept, len);
    fm_free(kept);
    return fm_ops_verify(&w->ops, w->tree, "atlas", w->path, r);
}

static const fm_gguf_tensor *tensor(const world *w, const char *name)
{
    const fm_gguf_tensor *t = fm_gguf_find(w->g, name);
    assert_non_null(t);
    return t;
}

static const uint8_t *field(const world *w, const char *key)
{
    const fm_gguf_kv *kv = fm_gguf_get(w->g, key);
    assert_non_null(kv);
    return kv->data.data;
}

/* Where the text stands in a field. */
static const uint8_t *place(const world *w, const char *key, const char *text)
{
    const fm_gguf_kv *kv = fm_gguf_get(w->g, key);
    assert_non_null(kv);
    for (size_t i = 0; i + strlen(text) <= kv->data.len; i++)
        if (memcmp(kv->data.data + i, text, strlen(text)) == 0)
            return kv->data.data + i;
    fail_msg("field '%s' does not hold '%s'", key, text);
    return NULL;
}

TEST(each_type_passes_with_the_figures_of_its_rounding)
{
    static const struct {
        fm_dtype dtype;
        double least, most; /* of the mean KL; the atlas is of BF16 */
    } types[] = {{FM_F32, 0, 1e-10}, {FM_BF16, 0, 1e-10}, {FM_F16, 0, 1e-6}, {FM_Q8_0, 1e-6, 1e-3}};
    for (size_t i = 0; i < FM_ARRAY_LEN(types); i++) {
        fm_verify_report r;
        world w;
        world_open(&w, types[i].dtype);
        tk_ok(fm_ops_verify(&w.ops, w.tree, "atlas", w.path, &r));
        assert_true(r.compared && r.texts == 8 && r.positions > 200);
        if (!(r.file.kl >= types[i].least && r.file.kl <= types[i].most))
            fail_msg("type %zu: KL %g", i, r.file.kl);
        /* the same weights in the same kernels */
        assert_true(r.file.kl == r.rounding.kl && r.file.kl_most == r.rounding.kl_most);
        assert_true(r.file.best == r.rounding.best && r.file.answers == r.rounding.answers);
        assert_true(r.file.best >= r.positions - r.positions / 50);
        world_close(&w);
    }
}

/* A scale of some blocks, all of a norm, a quarter of a matrix, one row of the embedding. */
TEST(one_spoiled_tensor_fails)
{
    fm_verify_report r;
    world w;
    uint8_t zeros[1 << 14] = {0};
    world_open(&w, FM_Q8_0);
    const fm_gguf_tensor *t = tensor(&w, "blk.3.ffn_down.weight");
    assert_true(t->bytes > 4 * sizeof zeros / 2);
    tk_fails(with(&w, w.file.data + t->at, zeros, sizeof zeros / 2, &r), FM_EREFUSED,
             "x.gguf: is not 'atlas': its mean KL is above the limit");
    assert_true(r.compared && r.file.kl > r.kl_limit && r.rounding.kl < r.kl_limit);
    t = tensor(&w, "blk.0.attn_norm.weight");
    tk_fails(with(&w, w.file.data + t->at, zeros, (size_t)t->bytes, &r), FM_EREFUSED, "KL");
    t = tensor(&w, "blk.5.attn_q.weight"); /* NaN in a scale */
    tk_fails(with(&w, w.file.data + t->at, "\xff\x7f", 2, &r), FM_EREFUSED, "KL");
    assert_true(r.file.kl > 1e300);
    world_close(&w);
    world_open(&w, FM_F32);
    t = tensor(&w, "blk.2.attn_v.weight");
    tk_fails(with(&w, w.file.data + t->at, zeros, 2048, &r), FM_EREFUSED, "KL");
    tk_fails(with(&w, w.file.data + t->at + t->bytes - 64, zeros, 64, &r), FM_EREFUSED, "KL");
    world_close(&w);
}

/* A child of the atlas, and its LoRA alone in the place of the file. */
static void derive_kid(world *w)
{
    char *data = tk_source("examples/atlas/pirate.jsonl");
    const fm_derive_opts o = {.parent = "atlas",
                              .name = "kid",
                              .no_gate = true,
                              .data = {.item = {data}, .count = 1},
                              .set = {.item = {"steps=3", "r=2", "seed=1"}, .count = 3}};
    fm_derive_result r;
    fm_oid oid;
    tk_ok(fm_ops_derive(&w->ops, &o, &r));
    fm_derive_result_release(&r);
    fm_tree_free(w->tree);
    tk_ok(fm_ops_resolve(&w->ops, "kid", &oid, &w->tree));
    const fm_provider p = fm_store_provider(fm_repo_store(w->ops.repo));
    tk_ok(fm_remove_file(w->path));
    tk_ok(fm_export(w->tree, &p, w->path, FM_EXPORT_GGUF_LORA, FM_DTYPE_NONE));
    fm_gguf_close(w->g);
    fm_buf_clear(&w->file);
    tk_ok(fm_read_file(&w->file, w->path, 1u << 30));
    tk_ok(fm_gguf_parse(&w->g, fm_buf_span(&w->file), "x.gguf"));
    fm_free(data);
}

TEST(a_spoiled_adapter_fails)
{
    const float alpha = 160;
    fm_verify_report r;
    world w;
    uint8_t threes[1 << 9];
    memset(threes, 0x3d, sizeof threes);
    world_open(&w, FM_BF16);
    derive_kid(&w);
    tk_ok(fm_ops_verify(&w.ops, w.tree, "kid", w.path, &r));
    assert_true(r.file.kl == 0 && r.rounding.kl == 0);
    const fm_gguf_tensor *t = tensor(&w, "blk.1.ffn_up.weight.lora_b");
    assert_true(t->bytes >= sizeof threes);
    tk_fails(with(&w, w.file.data + t->at, threes, sizeof threes, &r), FM_EREFUSED, "KL");
    tk_fails(with(&w, field(&w, "adapter.lora.alpha"), &alpha, 4, &r), FM_EREFUSED, "KL");
    tk_fails(with(&w, field(&w, "general.architecture") + 8, "gemma", 5, &r), FM_EREFUSED,
             "cannot be read again");
    world_close(&w);
}

TEST(a_spoiled_template_fails)
{
    fm_verify_report r;
    world w;
    world_open(&w, FM_BF16);
    tk_fails(with(&w, place(&w, "tokenizer.chat_template", "<|end|>"), "<|End|>", 7, &r),
             FM_EREFUSED, "its chat template makes another text of a conversation");
    assert_false(r.compared);
    tk_fails(with(&w, place(&w, "tokenizer.chat_template", "message in"), "massage in", 10, &r),
             FM_EREFUSED, "its chat template");
    world_close(&w);
}

TEST(other_tokens_stops_and_numbers_fail)
{
    const uint8_t eos[4] = {9, 0, 0, 0};
    float theta = 500.0f;
    fm_verify_report r;
    world w;
    world_open(&w, FM_BF16);
    tk_fails(with(&w, field(&w, "tokenizer.ggml.eos_token_id"), eos, 4, &r), FM_EREFUSED,
             "it ends answers at token 9, which the version does not");
    tk_fails(with(&w, field(&w, "llama.rope.freq_base"), &theta, 4, &r), FM_EREFUSED, "KL");
    tk_fails(with(&w, field(&w, "tokenizer.ggml.add_bos_token"), "\1", 1, &r), FM_EREFUSED,
             "a text has other tokens");
    world_close(&w);
}

TEST(a_damaged_file_or_one_of_another_version_fails)
{
    fm_verify_report r;
    world w;
    world_open(&w, FM_BF16);
    tk_ok(fm_write_file(w.path, w.file.data, w.file.len - 4096));
    tk_fails(fm_ops_verify(&w.ops, w.tree, "atlas", w.path, &r), FM_EREFUSED,
             "cannot be read again");
    tk_fails(with(&w, field(&w, "general.architecture") + 8, "llamb", 5, &r), FM_EREFUSED,
             "'llamb' does not run");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_type_passes_with_the_figures_of_its_rounding),
        cmocka_unit_test(one_spoiled_tensor_fails),
        cmocka_unit_test(a_spoiled_adapter_fails),
        cmocka_unit_test(a_spoiled_template_fails),
        cmocka_unit_test(other_tokens_stops_and_numbers_fail),
        cmocka_unit_test(a_damaged_file_or_one_of_another_version_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
