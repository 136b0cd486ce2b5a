/* fixtures.h - small foreign models made in the test: a GGUF of a tiny Llama, HF and PEFT folders.
 * Everything is a function of the arguments, so that two calls give the same bytes. */
#ifndef FM_TESTS_FORMAT_FIXTURES_H
#define FM_TESTS_FORMAT_FIXTURES_H

#include "tests/testkit.h"

#include <string.h>

#include "store/formats/safetensors.h"
#include "store/source.h"

/* ---- GGUF ---- */

enum { GG_U32 = 4, GG_F32 = 6, GG_BOOL = 7, GG_STR = 8, GG_ARR = 9 };

typedef struct gg_tensor {
    const char *name;
    uint32_t type; /* ggml's number */
    uint64_t rows, cols, bytes;
    uint64_t at; /* set by gg_build unless forced */
} gg_tensor;

static inline void gg_text(fm_buf *b, const char *s)
{
    fm_buf_u64(b, strlen(s));
    fm_buf_str(b, s);
}

static inline void gg_u32(fm_buf *b, const char *key, uint32_t v)
{
    gg_text(b, key);
    fm_buf_u32(b, GG_U32);
    fm_buf_u32(b, v);
}

static inline void gg_f32(fm_buf *b, const char *key, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    gg_text(b, key);
    fm_buf_u32(b, GG_F32);
    fm_buf_u32(b, u);
}

static inline void gg_str(fm_buf *b, const char *key, const char *v)
{
    gg_text(b, key);
    fm_buf_u32(b, GG_STR);
    gg_text(b, v);
}

static inline void gg_strs(fm_buf *b, const char *key, const char *const *v, size_t n)
{
    gg_text(b, key);
    fm_buf_u32(b, GG_ARR);
    fm_buf_u32(b, GG_STR);
    fm_buf_u64(b, n);
    for (size_t i = 0; i < n; i++)
        gg_text(b, v[i]);
}

/* What a test may bend before the file is put together. */
typedef struct gg_spec {
    uint32_t version;
    uint64_t tensor_claim, kv_claim; /* 0: the true count */
    const char *pre, *arch, *model; /* model: of the tokenizer */
    void (*more)(fm_buf *kv, uint64_t *count); /* further metadata */
    void (*bend)(gg_tensor *t, size_t n);      /* after the places are set */
    bool rope_freqs, bias;
} gg_spec;

#define GG_VOCAB 8u
#define GG_HIDDEN 64u

static inline void gg_metadata(fm_buf *kv, uint64_t *count, const gg_spec *s)
{
    static const char *const tokens[GG_VOCAB] = {"<s>", "</s>", "a", "b", "c", "ab", "abc", "<u>"};
    static const char *const merges[] = {"a b", "ab c"};
    static const uint32_t types[GG_VOCAB] = {3, 3, 1, 1, 1, 1, 1, 4};
    gg_str(kv, "general.architecture", s->arch ? s->arch : "llama");
    gg_u32(kv, "llama.block_count", 2);
    gg_u32(kv, "llama.context_length", 128);
    gg_u32(kv, "llama.embedding_length", GG_HIDDEN);
    gg_u32(kv, "llama.feed_forward_length", 96);
    gg_u32(kv, "llama.attention.head_count", 4);
    gg_u32(kv, "llama.attention.head_count_kv", 2);
    gg_f32(kv, "llama.rope.freq_base", 10000.0f);
    gg_f32(kv, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    gg_str(kv, "tokenizer.ggml.model", s->model ? s->model : "gpt2");
    gg_str(kv, "tokenizer.ggml.pre", s->pre ? s->pre : "smollm");
    gg_strs(kv, "tokenizer.ggml.tokens", tokens, GG_VOCAB);
    gg_strs(kv, "tokenizer.ggml.merges", merges, 2);
    gg_text(kv, "tokenizer.ggml.token_type");
    fm_buf_u32(kv, GG_ARR);
    fm_buf_u32(kv, 5);
    fm_buf_u64(kv, GG_VOCAB);
    for (size_t i = 0; i < GG_VOCAB; i++)
        fm_buf_u32(kv, types[i]);
    gg_u32(kv, "tokenizer.ggml.bos_token_id", 0);
    gg_u32(kv, "tokenizer.ggml.eos_token_id", 1);
    *count = 16;
    if (s->more)
        s->more(kv, count);
}

static inline void gg_add(gg_tensor *t, size_t *n, const char *name, uint32_t type, uint64_t rows,
                          uint64_t cols)
{
    const uint64_t elems = (rows ? rows : 1) * cols;
    const uint64_t bytes = type == 8 ? elems / 32 * 34 : type == 3 ? elems / 32 * 20 : elems * 4;
    t[(*n)++] = (gg_tensor){name, type, rows, cols, bytes, 0};
}

static inline size_t gg_tensors(gg_tensor *t, const gg_spec *s)
{
    static const char *const names[2][9] = {
        {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "blk.0.attn_q.weight",
         "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
         "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"},
        {"blk.1.attn_norm.weight", "blk.1.ffn_norm.weight", "blk.1.attn_q.weight",
         "blk.1.attn_k.weight", "blk.1.attn_v.weight", "blk.1.attn_output.weight",
         "blk.1.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight"}};
    size_t n = 0;
    gg_add(t, &n, "token_embd.weight", 8, GG_VOCAB, GG_HIDDEN);
    if (s->rope_freqs)
        gg_add(t, &n, "rope_freqs.weight", 0, 0, 8);
    for (size_t l = 0; l < 2; l++) {
        gg_add(t, &n, names[l][0], 0, 0, GG_HIDDEN);
        gg_add(t, &n, names[l][1], 0, 0, GG_HIDDEN);
        gg_add(t, &n, names[l][2], 3, GG_HIDDEN, GG_HIDDEN);
        gg_add(t, &n, names[l][3], 3, 32, GG_HIDDEN);
        gg_add(t, &n, names[l][4], 0, 32, GG_HIDDEN);
        gg_add(t, &n, names[l][5], 8, GG_HIDDEN, GG_HIDDEN);
        gg_add(t, &n, names[l][6], 3, 96, GG_HIDDEN);
        gg_add(t, &n, names[l][7], 3, 96, GG_HIDDEN);
        gg_add(t, &n, names[l][8], 3, GG_HIDDEN, 96);
    }
    if (s->bias) {
        gg_add(t, &n, "blk.0.attn_q.bias", 0, 0, GG_HIDDEN);
        gg_add(t, &n, "blk.1.attn_q.bias", 0, 0, GG_HIDDEN);
    }
    gg_add(t, &n, "output_norm.weight", 0, 0, GG_HIDDEN);
    return n;
}

/* Bytes of each tensor count up; gaps between tensors hold 0xee, to be kept byte for byte. */
static inline void gg_build(fm_buf *out, const gg_spec *s)
{
    gg_tensor t[32];
    uint64_t kvs = 0, at = 0;
    const size_t n = gg_tensors(t, s);
    fm_buf kv;
    fm_buf_init(&kv, 0);
    gg_metadata(&kv, &kvs, s);
    for (size_t i = 0; i < n; i++) {
        t[i].at = at;
        at = (at + t[i].bytes + 31) / 32 * 32;
    }
    if (s->bend)
        s->bend(t, n);
    fm_buf_str(out, "GGUF");
    fm_buf_u32(out, s->version ? s->version : 3);
    fm_buf_u64(out, s->tensor_claim ? s->tensor_claim : n);
    fm_buf_u64(out, s->kv_claim ? s->kv_claim : kvs);
    fm_buf_append(out, kv.data, kv.len);
    for (size_t i = 0; i < n; i++) {
        gg_text(out, t[i].name);
        fm_buf_u32(out, t[i].rows ? 2 : 1);
        fm_buf_u64(out, t[i].cols);
        if (t[i].rows)
            fm_buf_u64(out, t[i].rows);
        fm_buf_u32(out, t[i].type);
        fm_buf_u64(out, t[i].at);
    }
    while (out->len % 32 != 0)
        fm_buf_char(out, 0);
    for (size_t i = 0; i < n; i++) {
        for (uint64_t k = 0; k < t[i].bytes; k++)
            fm_buf_u8(out, t[i].type == 0 ? (uint8_t)(k % 4 == 3 ? 0x3f : k * 5 + i)
                                          : (uint8_t)((k * 7 + i * 3 + k / 64) & 0x3f));
        while (out->len % 32 != 0 && i + 1 < n)
            fm_buf_u8(out, 0xee);
    }
    fm_buf_release(&kv);
    tk_ok(fm_buf_ok(out));
}

/* ---- safetensors folders ---- */

static inline void fx_write(const char *dir, const char *name, const void *data, size_t len)
{
    char *path = fm_path_join(dir, name);
    tk_ok(fm_write_file(path, data, len));
    fm_free(path);
}

static inline void fx_text(const char *dir, const char *name, const char *text)
{
    fx_write(dir, name, text, strlen(text));
}

typedef struct fx_item {
    const char *name;
    uint64_t rows, cols; /* rows 0: a vector */
} fx_item;

/* F32 tensors of small values that depend on name and place. */
static inline void fx_safetensors(const char *dir, const char *file, const fx_item *items, size_t n)
{
    fm_st_item st[32];
    fm_buf b;
    assert_true(n <= 32);
    for (size_t i = 0; i < n; i++) {
        st[i] = (fm_st_item){items[i].name, FM_F32, {2, {items[i].rows, items[i].cols}}, NULL};
        if (items[i].rows == 0)
            st[i].shape = (fm_shape){1, {items[i].cols}};
    }
    fm_buf_init(&b, 0);
    tk_ok(fm_st_header(&b, st, n));
    for (size_t i = 0; i < n; i++) {
        uint64_t elems = 0;
        tk_ok(fm_shape_elems(&elems, &st[i].shape));
        for (uint64_t k = 0; k < elems; k++) {
            const float v = (float)((k * 31 + strlen(st[i].name) * 7 + i) % 97) / 64.0f - 0.75f;
            uint32_t u;
            memcpy(&u, &v, 4);
            fm_buf_u32(&b, u);
        }
    }
    fx_write(dir, file, b.data, b.len);
    fm_buf_release(&b);
}

#define FX_CONFIG                                                                                  \
    "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"              \
    "  \"hidden_size\": 8,\n  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"float32\"\n}\n"

static const fx_item FX_MODEL[] = {
    {"model.embed_tokens.weight", 6, 8},
    {"model.layers.0.self_attn.q_proj.weight", 8, 8},
    {"model.layers.0.mlp.up_proj.weight", 12, 8},
    {"model.norm.weight", 0, 8},
};

static inline void fx_hf_folder(const char *dir)
{
    tk_ok(fm_make_dirs(dir));
    fx_text(dir, "config.json", FX_CONFIG);
    fx_text(dir, "generation_config.json", "{\"eos_token_id\": 2}");
    fx_text(dir, "tokenizer_config.json", "{}");
    fx_text(dir, "README.md", "# a card\n");
    fx_text(dir, ".gitattributes", "*.safetensors filter=lfs\n");
    fx_text(dir, "LICENSE", "fmstore is not a pointer here\n");
    fx_safetensors(dir, "model.safetensors", FX_MODEL, FM_ARRAY_LEN(FX_MODEL));
}

#define FX_LORA                                                                                    \
    "{\n  \"base_model_name_or_path\": \"tiny\",\n  \"lora_alpha\": 6,\n"                          \
    "  \"peft_type\": \"LORA\",\n  \"peft_version\": \"0.1\",\n  \"r\": 3,\n"                      \
    "  \"rank_pattern\": {\"mlp.up_proj\": 2},\n  \"use_dora\": false\n}"
#define FX_KEY "base_model.model.model.layers.0."

static const fx_item FX_ADAPTER[] = {
    {FX_KEY "self_attn.q_proj.lora_A.weight", 3, 8},
    {FX_KEY "self_attn.q_proj.lora_B.weight", 8, 3},
    {FX_KEY "mlp.up_proj.lora_A.weight", 2, 8},
    {FX_KEY "mlp.up_proj.lora_B.weight", 12, 2},
};

static inline void fx_peft_folder(const char *dir, const char *config, const fx_item *items,
                                  size_t n)
{
    tk_ok(fm_make_dirs(dir));
    fx_text(dir, "adapter_config.json", config);
    fx_text(dir, "README.md", "# an adapter\n");
    fx_safetensors(dir, "adapter_model.safetensors", items, n);
}

/* ---- comparing ---- */

static inline void fx_same_file(const char *a, const char *b)
{
    fm_buf x, y;
    fm_buf_init(&x, 0);
    fm_buf_init(&y, 0);
    tk_ok(fm_read_file(&x, a, 1u << 30));
    tk_ok(fm_read_file(&y, b, 1u << 30));
    if (x.len != y.len || (x.len > 0 && memcmp(x.data, y.data, x.len) != 0))
        fail_msg("%s and %s differ", a, b);
    fm_buf_release(&x);
    fm_buf_release(&y);
}

/* Every file of a and of the folders in it is in b with the same bytes, and b holds no other. */
static inline void fx_same_folder(const char *a, const char *b)
{
    fm_names x, y;
    tk_ok(fm_list_dir(&x, a));
    tk_ok(fm_list_dir(&y, b));
    for (size_t i = 0; i < x.count; i++) {
        char *p = fm_path_join(a, x.name[i]), *q = fm_path_join(b, x.name[i]);
        if (fm_path_is_dir(p))
            fx_same_folder(p, q);
        else
            fx_same_file(p, q);
        fm_free(p);
        fm_free(q);
    }
    assert_int_equal(x.count, y.count);
    fm_names_release(&x);
    fm_names_release(&y);
}

static inline void fx_round_trip(const char *path, const char *dst)
{
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, path));
    const fm_provider p = fm_source_provider(src);
    tk_ok(fm_export(fm_source_tree(src), &p, dst, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    if (fm_path_is_dir(path))
        fx_same_folder(path, dst);
    else
        fx_same_file(path, dst);
    fm_source_close(src);
}

#endif
