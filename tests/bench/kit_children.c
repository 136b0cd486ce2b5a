/* kit_children.c - SmolLM2 in its forms, engines, and children made of noise. Adapters go the way
 * that a user's go: a PEFT folder is written, opened as a source and laid on the stem. */
#include <stdlib.h>

#include "tests/bench/bench_kit.h"

#define PREFIX_TOKENS 20u

const char *const bk_file_name[BK_FILES] = {"Q4_1", "Q8_0", "bf16", "Q4_K_M", "IQ4_XS", "MXFP4"};

char *bk_model_file(const char *model, int file)
{
    static const char *const kind[BK_FILES] = {"q4_1", "q8_0", "bf16", "q4_k_m", "iq4_xs", "mxfp4"};
    char name[64];
    if (file == BK_Q4_1 && strcmp(model, "smollm2") == 0)
        return tk_smollm2_gguf();
    (void)snprintf(name, sizeof(name), "models/%s-%s.gguf", model, kind[file]);
    return bk_llama(name);
}

fm_status bk_engine(fm_engine **out, unsigned threads, const char *mode, uint32_t max_rows)
{
    fm_engine_opts o = fm_engine_defaults();
    o.threads = threads;
    o.mode = mode;
    o.max_rows = max_rows;
    return fm_engine_new(out, &o);
}

/* ==== sizes ==== */

double bk_matrix_bytes(const fm_source *src)
{
    const fm_tree *t = fm_source_tree(src);
    size_t begin, end;
    double sum = 0;
    fm_tree_range(t, "tensors/", &begin, &end);
    for (size_t i = begin; i < end; i++)
        if (fm_tree_at(t, i)->shape.rank == 2)
            sum += (double)fm_tree_at(t, i)->bytes;
    return sum;
}

double bk_linear_params(const fm_arch *a)
{
    fm_param p;
    double n = 0;
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++)
        if (p.is_matrix && p.layer >= 0)
            n += (double)p.shape.dim[0] * (double)p.shape.dim[1];
    return n;
}

double bk_prefill_ops(const fm_arch *a, double tokens)
{
    double attention = 4.0 * a->layers * a->heads * a->head_dim * tokens * (tokens + 1) / 2;
    return 2 * bk_linear_params(a) * tokens + 2.0 * a->vocab * a->hidden + attention;
}

/* ==== a PEFT folder of noise ==== */

typedef struct peft { /* adapter_model.safetensors in the making */
    fm_buf header, body;
    uint32_t seed;
    double bytes;
} peft;

static void put_noise(peft *p, const char *name, uint64_t rows, uint64_t cols)
{
    size_t begin = p->body.len, n = (size_t)(rows * cols);
    for (size_t i = 0; i < n; i++) {
        float v = 1e-3f * (float)((i * 31 + begin * 7 + p->seed * 13) % 97) - 0.05f;
        uint32_t bits;
        memcpy(&bits, &v, sizeof(bits));
        uint16_t half = (uint16_t)(bits >> 16);
        fm_buf_append(&p->body, &half, sizeof(half));
    }
    fm_buf_printf(&p->header,
                  "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%llu,%llu],\"data_offsets\":[%zu,%zu]}",
                  p->header.len ? "," : "{", name, (unsigned long long)rows,
                  (unsigned long long)cols, begin, p->body.len);
    p->bytes += 2.0 * (double)n;
}

static bool ends_with(const char *s, int len, const char *end)
{
    int n = (int)strlen(end);
    return len >= n && strncmp(s + len - n, end, (size_t)n) == 0;
}

static void put_linears(peft *p, const fm_arch *a, bk_child kind, uint32_t rank)
{
    fm_param q;
    char name[256];
    for (uint32_t i = 0; fm_arch_param(a, i, &q); i++) {
        if (!q.is_matrix || q.layer < 0 ||
            (kind == BK_LORA_UPPER && q.layer < (int32_t)(a->layers / 2)))
            continue;
        int stem = (int)(strlen(q.name) - strlen(".weight"));
        bool down = ends_with(q.name, stem, "down_proj");
        if (kind == BK_LORA || kind == BK_LORA_UPPER) {
            (void)snprintf(name, sizeof(name), "base_model.model.%.*s.lora_A.weight", stem, q.name);
            put_noise(p, name, rank, q.shape.dim[1]);
            (void)snprintf(name, sizeof(name), "base_model.model.%.*s.lora_B.weight", stem, q.name);
            put_noise(p, name, q.shape.dim[0], rank);
        } else if (down || ends_with(q.name, stem, "k_proj") || ends_with(q.name, stem, "v_proj")) {
            (void)snprintf(name, sizeof(name), "base_model.model.%.*s.ia3_l", stem, q.name);
            put_noise(p, name, down ? 1 : q.shape.dim[0], down ? q.shape.dim[1] : 1);
        }
    }
}

static void adapter_config(fm_buf *out, const fm_arch *a, bk_child kind, uint32_t rank)
{
    if (kind == BK_LORA || kind == BK_LORA_UPPER)
        fm_buf_printf(out,
                      "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":%u,"
                      "\"target_modules\":[\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\","
                      "\"gate_proj\",\"up_proj\",\"down_proj\"],\"task_type\":\"CAUSAL_LM\"}",
                      rank, 2 * rank);
    else if (kind == BK_IA3)
        fm_buf_printf(out, "{\"peft_type\":\"IA3\",\"target_modules\":[\"k_proj\",\"v_proj\","
                           "\"down_proj\"],\"feedforward_modules\":[\"down_proj\"],"
                           "\"fan_in_fan_out\":false,\"task_type\":\"CAUSAL_LM\"}");
    else
        fm_buf_printf(out,
                      "{\"peft_type\":\"PREFIX_TUNING\",\"num_virtual_tokens\":%u,"
                      "\"num_layers\":%u,\"num_attention_heads\":%u,\"token_dim\":%u,"
                      "\"encoder_hidden_size\":%u,\"num_transformer_submodules\":1,"
                      "\"prefix_projection\":false,\"task_type\":\"CAUSAL_LM\"}",
                      PREFIX_TOKENS, a->layers, a->kv_heads, a->kv_heads * a->head_dim,
                      a->kv_heads * a->head_dim);
}

static void write_in(const char *folder, const char *name, const fm_buf *b)
{
    char *path = fm_path_join(folder, name);
    assert_non_null(path);
    tk_ok(fm_buf_ok(b));
    tk_ok(fm_write_file(path, b->data, b->len));
    fm_free(path);
}

/* Writes the folder; fm_remove_tree and fm_free. */
static char *write_peft(const fm_arch *a, bk_child kind, uint32_t rank, uint32_t seed,
                        double *bytes)
{
    static char *room;
    peft p = {.seed = seed};
    fm_buf file, config;
    char name[32];
    fm_buf_init(&p.header, 0);
    fm_buf_init(&p.body, 0);
    fm_buf_init(&file, 0);
    fm_buf_init(&config, 0);
    if (kind == BK_PREFIX)
        put_noise(&p, "prompt_embeddings", PREFIX_TOKENS,
                  2ull * a->layers * a->kv_heads * a->head_dim);
    else
        put_linears(&p, a, kind, rank);
    fm_buf_printf(&p.header, "}");
    uint64_t len = p.header.len;
    fm_buf_append(&file, &len, sizeof(len));
    fm_buf_append(&file, p.header.data, p.header.len);
    fm_buf_append(&file, p.body.data, p.body.len);
    adapter_config(&config, a, kind, rank);
    room = room ? room : tk_scratch();
    (void)snprintf(name, sizeof(name), "%d-%u-%u", (int)kind, rank, seed);
    char *folder = fm_path_join(room, name);
    assert_non_null(folder);
    tk_ok(fm_make_dirs(folder));
    write_in(folder, "adapter_config.json", &config);
    write_in(folder, "adapter_model.safetensors", &file);
    *bytes += p.bytes;
    fm_buf_release(&p.header);
    fm_buf_release(&p.body);
    fm_buf_release(&file);
    fm_buf_release(&config);
    return folder;
}

/* ==== children ==== */

static fm_status load_adapter(fm_model **out, fm_engine *e, const fm_source *stem,
                              const char *folder)
{
    fm_source *src = NULL;
    fm_tree *tree = NULL;
    fm_status rc = fm_source_open(&src, folder);
    if (rc >= 0)
        rc = fm_adapter_apply(&tree, fm_source_tree(stem), fm_source_tree(src), "", NULL);
    if (rc >= 0) {
        ik_mem both = {.behind = {fm_source_provider(stem), fm_source_provider(src)},
                       .behind_count = 2};
        fm_provider p = ik_provider(&both);
        rc = fm_model_load(out, e, tree, &p, "child");
    }
    fm_tree_free(tree);
    fm_source_close(src);
    return rc;
}

/* The tensors of the upper half with the lowest bit of each 16 turned: other ids, a sane model. */
static void change_upper(ik_mem *mem, fm_tree *t, const fm_source *src, const fm_arch *a,
                         double *bytes)
{
    fm_provider from = fm_source_provider(src);
    fm_param p;
    fm_buf path;
    fm_buf_init(&path, 0);
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        if (p.layer < (int32_t)(a->layers / 2))
            continue;
        fm_buf_clear(&path);
        tk_ok(fm_tensor_path(&path, "tensors", p.name));
        const fm_entry *e = fm_tree_find(t, fm_buf_cstr(&path));
        assert_true(e && (e->dtype == FM_BF16 || e->dtype == FM_F32));
        assert_true(mem->count < IK_MAX_TENSORS);
        uint16_t *word = fm_malloc((size_t)e->bytes);
        assert_non_null(word);
        tk_ok(from.read(from.ctx, e, word));
        for (size_t k = 0; k < e->bytes / 2; k++)
            word[k] ^= 1;
        mem->t[mem->count].bytes = word;
        mem->t[mem->count].len = e->bytes;
        tk_ok(fm_tensor_id(&mem->t[mem->count].id, e->dtype, &e->shape,
                           fm_span_of(word, (size_t)e->bytes), NULL));
        *bytes += (double)e->bytes;
        tk_ok(fm_tree_put_tensor(t, fm_buf_cstr(&path), p.name, e->dtype, &e->shape,
                                 &mem->t[mem->count].id));
        mem->count++;
    }
    fm_buf_release(&path);
}

static fm_status load_full(fm_model **out, fm_engine *e, const fm_source *src, const fm_arch *a,
                           double *bytes)
{
    static ik_mem mem;
    fm_tree *t = NULL;
    mem.behind[0] = fm_source_provider(src);
    mem.behind_count = 1;
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    change_upper(&mem, t, src, a, bytes);
    fm_provider p = ik_provider(&mem);
    fm_status rc = fm_model_load(out, e, t, &p, "full child");
    fm_tree_free(t);
    ik_mem_free(&mem);
    return rc;
}

fm_status bk_child_load(fm_model **out, fm_engine *e, const fm_source *src, bk_child kind,
                        uint32_t rank, uint32_t seed, double *bytes)
{
    fm_arch a;
    fm_provider p = fm_source_provider(src);
    *out = NULL;
    if (kind == BK_STEM)
        return fm_model_load(out, e, fm_source_tree(src), &p, "smollm2");
    tk_ok(fm_arch_of_tree(&a, fm_source_tree(src), NULL, "smollm2"));
    if (kind == BK_FULL_UPPER)
        return load_full(out, e, src, &a, bytes);
    char *folder = write_peft(&a, kind, rank, seed, bytes);
    fm_status rc = load_adapter(out, e, src, folder);
    fm_ignore(fm_remove_tree(folder), "its scratch goes at exit anyway");
    fm_free(folder);
    return rc;
}
