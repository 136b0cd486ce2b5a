/* GGUFs in llama-quantize's mixes are the files that llama-quantize makes of the F32 export, byte for
 * byte: golden/gguf_mix.txt has their digests, which golden/make_gguf_mix.sh records by a real one
 * (it runs this program with FM_MIX_OUT naming the folder that gets the F32 exports). */
#include "tests/format/view_kit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/formats/gguf.h"

/* ---- models ---- */

typedef struct made {
    const char *name, *config;
    uint64_t hidden, ffn, kv, layers, vocab, experts;
    bool head;
} made;

#define LLAMA_HEAD "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
#define COMMON "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"max_position_embeddings\":256,"

/* Blocks of 256 with heads in groups of four and a table of rotary factors; experts, eight in number;
 * rows of no whole block, which become F16. */
static const made models[] = {
    {"wide",
     LLAMA_HEAD COMMON
     "\"hidden_size\":256,\"intermediate_size\":512,\"num_hidden_layers\":8,\"num_attention_"
     "heads\":8,"
     "\"num_key_value_heads\":2,\"vocab_size\":64,\"rope_theta\":10000.0,"
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
     "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}}",
     256, 512, 64, 8, 64, 0, true},
    {"experts",
     "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\"," COMMON
     "\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":2,\"num_attention_"
     "heads\":4,"
     "\"num_key_value_heads\":4,\"vocab_size\":64,\"rope_theta\":10000.0,\"num_local_experts\":8,"
     "\"num_experts_per_tok\":2}",
     256, 256, 256, 2, 64, 8, true},
    {"odd",
     LLAMA_HEAD COMMON "\"hidden_size\":48,\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_"
                       "attention_heads\":2,"
                       "\"num_key_value_heads\":1,\"vocab_size\":64,\"rope_theta\":10000.0,"
                       "\"tie_word_embeddings\":true}",
     48, 96, 24, 3, 64, 0, false},
};

typedef struct weights {
    fm_st_item item[64];
    size_t count;
    char name[64][96];
} weights;

static void add(weights *w, uint64_t rows, uint64_t cols, const char *format, ...)
{
    va_list ap;
    char *name = w->name[w->count];
    va_start(ap, format);
    vsnprintf(name, sizeof w->name[0], format, ap);
    va_end(ap);
    fm_st_item item = {name, FM_F32, {2, {rows, cols}}, NULL};
    if (rows == 0)
        item.shape = (fm_shape){1, {cols}};
    w->item[w->count++] = item;
}

static void add_layer(weights *w, const made *m, unsigned l)
{
    add(w, 0, m->hidden, "model.layers.%u.input_layernorm.weight", l);
    add(w, m->hidden, m->hidden, "model.layers.%u.self_attn.q_proj.weight", l);
    add(w, m->kv, m->hidden, "model.layers.%u.self_attn.k_proj.weight", l);
    add(w, m->kv, m->hidden, "model.layers.%u.self_attn.v_proj.weight", l);
    add(w, m->hidden, m->hidden, "model.layers.%u.self_attn.o_proj.weight", l);
    add(w, 0, m->hidden, "model.layers.%u.post_attention_layernorm.weight", l);
    for (unsigned e = 0; e < m->experts; e++) {
        add(w, m->ffn, m->hidden, "model.layers.%u.block_sparse_moe.experts.%u.w1.weight", l, e);
        add(w, m->hidden, m->ffn, "model.layers.%u.block_sparse_moe.experts.%u.w2.weight", l, e);
        add(w, m->ffn, m->hidden, "model.layers.%u.block_sparse_moe.experts.%u.w3.weight", l, e);
    }
    if (m->experts > 0) {
        add(w, m->experts, m->hidden, "model.layers.%u.block_sparse_moe.gate.weight", l);
        return;
    }
    add(w, m->ffn, m->hidden, "model.layers.%u.mlp.gate_proj.weight", l);
    add(w, m->ffn, m->hidden, "model.layers.%u.mlp.up_proj.weight", l);
    add(w, m->hidden, m->ffn, "model.layers.%u.mlp.down_proj.weight", l);
}

/* One shard: weights with a few outliers, of integers and one product, so the same everywhere. */
static void write_shard(const char *dir, const char *file, weights *w, uint64_t stream)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_st_header(&b, w->item, w->count));
    for (size_t i = 0; i < w->count; i++) {
        uint64_t elems = 0;
        tk_ok(fm_shape_elems(&elems, &w->item[i].shape));
        for (uint64_t k = 0; k < elems; k++) {
            const uint64_t u = fm_rng_u64(31, stream + i, k);
            const int32_t v = (int32_t)(u & 0xffff) + (int32_t)(u >> 16 & 0xffff) - 65535;
            const float x = (float)v * (u >> 32 & 1023 ? 1e-6f : 3e-5f);
            fm_buf_append(&b, &x, sizeof x);
        }
    }
    fx_write(dir, file, b.data, b.len);
    fm_buf_release(&b);
}

static void write_index(const char *dir, fm_buf *map)
{
    char *text = fm_asprintf("{\"metadata\":{},\"weight_map\":{%s}}", fm_buf_cstr(map));
    fx_text(dir, "model.safetensors.index.json", text);
    fm_free(text);
}

static char *make_model(const char *root, const made *m)
{
    char *dir = fm_path_join(root, m->name);
    weights *w = fm_calloc(1, sizeof *w);
    fm_buf map;
    fm_buf_init(&map, 0);
    tk_ok(fm_make_dirs(dir));
    fx_text(dir, "config.json", m->config);
    for (unsigned l = 0; l <= m->layers; l++) {
        char file[32];
        snprintf(file, sizeof file, "model-%u.safetensors", l);
        w->count = 0;
        if (l < m->layers)
            add_layer(w, m, l);
        else {
            add(w, m->vocab, m->hidden, "model.embed_tokens.weight");
            add(w, 0, m->hidden, "model.norm.weight");
            if (m->head)
                add(w, m->vocab, m->hidden, "lm_head.weight");
        }
        write_shard(dir, file, w, 100 * l);
        for (size_t i = 0; i < w->count; i++)
            fm_buf_printf(&map, "%s\"%s\":\"%s\"", map.len > 0 ? "," : "", w->name[i], file);
    }
    write_index(dir, &map);
    fm_buf_release(&map);
    fm_free(w);
    return dir;
}

static void open_model(vk_world *w, const char *root, const char *name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(models); i++)
        if (strcmp(name, models[i].name) == 0) {
            vk_open(w, make_model(root, &models[i]), NULL);
            return;
        }
    assert_string_equal(name, "atlas");
    vk_open(w, tk_source("examples/atlas/base"), NULL);
}

/* ---- importance matrices ---- */

/* "NAME.imatrix.gguf" in `dir`, of the F32 export: weights for all matrices but one, and an expert
 * that no input reached. With `old` the older form beside it, "NAME.imatrix.dat". */
typedef struct building {
    fm_buf info, data, old;
    uint32_t tensors, entries;
} building;

static void add_floats(building *b, const char *weight, const char *end, uint64_t cols,
                       uint64_t rows, const float *v)
{
    char *name = fm_asprintf("%s%s", weight, end);
    gg_text(&b->info, name);
    fm_buf_u32(&b->info, 2);
    fm_buf_u64(&b->info, cols);
    fm_buf_u64(&b->info, rows);
    fm_buf_u32(&b->info, 0);
    fm_buf_u64(&b->info, b->data.len);
    fm_buf_append(&b->data, v, (size_t)(cols * rows) * sizeof *v);
    while (b->data.len % 32 != 0)
        fm_buf_u8(&b->data, 0);
    b->tensors++;
    fm_free(name);
}

static void add_weight(building *b, const fm_gguf_tensor *t)
{
    const uint64_t cols = t->shape.dim[t->shape.rank - 1];
    const uint64_t rows = t->shape.rank > 2 ? t->shape.dim[0] : 1;
    float *sums = fm_malloc(cols * rows * sizeof *sums), counts[8];
    assert_true(rows <= FM_ARRAY_LEN(counts));
    for (uint64_t i = 0; i < cols * rows; i++) {
        const float u = (float)(fm_rng_u64(32, b->entries, i) >> 40) / 16777216.0f;
        sums[i] = u * u * u * 900.0f;
    }
    for (uint64_t r = 0; r < rows; r++)
        counts[r] = r == 5 ? 0.0f : 512.0f - (float)r;
    add_floats(b, t->name, ".in_sum2", cols, rows, sums);
    add_floats(b, t->name, ".counts", 1, rows, counts);
    fm_buf_u32(&b->old, (uint32_t)strlen(t->name));
    fm_buf_str(&b->old, t->name);
    fm_buf_u32(&b->old, 7);
    fm_buf_u32(&b->old, (uint32_t)(cols * rows));
    fm_buf_append(&b->old, sums, (size_t)(cols * rows) * sizeof *sums);
    b->entries++;
    fm_free(sums);
}

static void write_built(const char *dir, const char *name, building *b)
{
    static const char *const sets[] = {"calibration.txt"};
    fm_buf out;
    fm_buf_init(&out, 0);
    fm_buf_str(&out, "GGUF");
    fm_buf_u32(&out, 3);
    fm_buf_u64(&out, b->tensors);
    fm_buf_u64(&out, 4);
    gg_str(&out, "general.type", "imatrix");
    gg_strs(&out, "imatrix.datasets", sets, 1);
    gg_u32(&out, "imatrix.chunk_count", 3);
    gg_u32(&out, "imatrix.chunk_size", 512);
    fm_buf_append(&out, b->info.data, b->info.len);
    while (out.len % 32 != 0)
        fm_buf_u8(&out, 0);
    fm_buf_append(&out, b->data.data, b->data.len);
    char *file = fm_asprintf("%s.imatrix.gguf", name);
    fx_write(dir, file, out.data, out.len);
    fm_free(file);
    fm_buf_clear(&out);
    fm_buf_u32(&out, b->entries);
    fm_buf_append(&out, b->old.data, b->old.len);
    fm_buf_u32(&out, 3);
    fm_buf_u32(&out, 9);
    fm_buf_str(&out, "older.txt");
    file = fm_asprintf("%s.imatrix.dat", name);
    fx_write(dir, file, out.data, out.len);
    fm_free(file);
    fm_buf_release(&out);
}

static void make_imatrix(const vk_world *w, const char *dir, const char *name)
{
    char *path = fm_path_join(dir, "f32.gguf");
    building b = {.tensors = 0};
    fm_file_map map;
    fm_gguf *g = NULL;
    fm_buf_init(&b.info, 0);
    fm_buf_init(&b.data, 0);
    fm_buf_init(&b.old, 0);
    tk_ok(fm_export(w->tree, &w->p, path, FM_EXPORT_GGUF, FM_F32));
    tk_ok(fm_map_file(&map, path));
    tk_ok(fm_gguf_parse(&g, fm_span_of(map.data, map.len), "f32"));
    for (size_t i = 0; i < fm_gguf_count(g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(g, i);
        if (t->shape.rank > 1 && strcmp(t->name, "blk.1.ffn_up.weight") != 0)
            add_weight(&b, t);
    }
    write_built(dir, name, &b);
    fm_gguf_close(g);
    fm_unmap_file(&map);
    tk_ok(fm_remove_tree(path));
    fm_buf_release(&b.info);
    fm_buf_release(&b.data);
    fm_buf_release(&b.old);
    fm_free(path);
}

/* ---- what a real llama-quantize made ---- */

/* imatrix: "" or a file of the folder that we are in. */
static void check_line(const vk_world *w, const char *root, const char *sha256, const char *mix,
                       const char *imatrix)
{
    const fm_view_opts opts = {
        .format = FM_EXPORT_GGUF, .mix = mix, .imatrix = *imatrix ? imatrix : NULL};
    char *out = fm_path_join(root, "out.gguf"), hex[FM_HEX_CHARS + 1];
    fm_file_map map;
    fm_digest d;
    tk_ok(fm_export_as(w->tree, &w->p, out, &opts));
    tk_ok(fm_map_file(&map, out));
    tk_ok(fm_sha256(&d, map.data, map.len));
    fm_digest_hex(&d, hex);
    if (strcmp(hex, sha256) != 0)
        fail_msg("%s %s: not the file that llama-quantize makes", mix, imatrix);
    if (strcmp(mix, "Q4_K_M") == 0) { /* in ranges the same */
        fm_view *v = NULL;
        tk_ok(fm_view_open(&v, w->tree, &w->p, &opts));
        vk_check_ranges(v, 0, map.data, 40, 40);
        fm_view_close(v);
    }
    fm_unmap_file(&map);
    tk_ok(fm_remove_tree(out));
    fm_free(out);
}

TEST(mixes_are_the_files_that_llama_quantize_makes)
{
    char *root = tk_scratch(), *path = tk_source("tests/format/golden/gguf_mix.txt");
    char name[16] = "", sha[80], model[16], mix[16], imatrix[32], line[256];
    unsigned lines = 0;
    FILE *in = fopen(path, "r");
    vk_world w;
    assert_non_null(in);
    assert_int_equal(chdir(root), 0); /* a matrix's path is in the file as it was given */
    while (fgets(line, sizeof line, in)) {
        *imatrix = '\0';
        assert_true(sscanf(line, "%79s %15s %15s %31s", sha, model, mix, imatrix) >= 3);
        if (strcmp(model, name) != 0) {
            if (*name)
                vk_close(&w);
            open_model(&w, root, strcpy(name, model));
            make_imatrix(&w, root, name);
        }
        print_message("%s %s %s\n", model, mix, imatrix);
        check_line(&w, root, sha, mix, imatrix);
        lines++;
    }
    assert_int_equal(lines, 64 + 29);
    vk_close(&w);
    fclose(in);
    fm_free(root);
    fm_free(path);
}

TEST(what_is_no_mix_is_refused)
{
    char *root = tk_scratch(), *out = fm_path_join(root, "x");
    vk_world w;
    open_model(&w, root, "odd");
    fm_view_opts opts = {.format = FM_EXPORT_GGUF, .mix = "Q4_K_XL"};
    tk_fails(fm_export_as(w.tree, &w.p, out, &opts), FM_EINVAL, "Q4_K_XL");
    opts.mix = "IQ3_S"; /* llama-quantize has it */
    tk_fails(fm_export_as(w.tree, &w.p, out, &opts), FM_EINVAL, "IQ3_S");
    opts = (fm_view_opts){.format = FM_EXPORT_GGUF, .mix = "Q4_K_M", .dtype = FM_F16};
    tk_fails(fm_export_as(w.tree, &w.p, out, &opts), FM_EINVAL, "Q4_K_M");
    opts = (fm_view_opts){.format = FM_EXPORT_GGUF, .imatrix = "some.gguf"};
    tk_fails(fm_export_as(w.tree, &w.p, out, &opts), FM_EINVAL, "importance matrix");
    opts = (fm_view_opts){.format = FM_EXPORT_HF, .mix = "Q4_K_M"};
    tk_fails(fm_export_as(w.tree, &w.p, out, &opts), FM_EINVAL, "GGUF");
    tk_fails(fm_export(w.tree, &w.p, out, FM_EXPORT_GGUF, FM_Q8_0), FM_EINVAL, "Q8_0");
    assert_true(fm_gguf_mix_known("Q5_K") && !fm_gguf_mix_known("q5_k"));
    assert_false(fm_path_exists(out));
    vk_close(&w);
    fm_free(out);
    fm_free(root);
}

static int write_sources(const char *out)
{
    static const char *const names[] = {"wide", "experts", "odd", "atlas"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        char *path = fm_asprintf("%s/%s.f32.gguf", out, names[i]), *root = tk_scratch();
        vk_world w;
        open_model(&w, root, names[i]);
        tk_ok(fm_export(w.tree, &w.p, path, FM_EXPORT_GGUF, FM_F32));
        make_imatrix(&w, out, names[i]);
        vk_close(&w);
        fm_free(root);
        fm_free(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_are_the_files_that_llama_quantize_makes),
        cmocka_unit_test(what_is_no_mix_is_refused),
    };
    const char *out = getenv("FM_MIX_OUT");
    return out ? write_sources(out) : cmocka_run_group_tests(tests, NULL, NULL);
}
