/* Views of exports: what they read, in one go and in ranges, is what fm_export wrote before there
 * were views; how little a range reads; what is refused. */
#include "tests/format/view_kit.h"

#include <pthread.h>

#include "store/import/source_impl.h"

/* ---- models ---- */

static char *root; /* models in it are functions of their names */

#define Q_PROJ "model.layers.0.self_attn.q_proj.weight"

static char *make_hf(const char *name)
{
    char *dir = fm_path_join(root, name);
    fx_hf_folder(dir);
    return dir;
}

/* Weights of several leaves, whose rows end within leaves. */
static char *make_big(void)
{
    static const fx_item items[] = {{"model.embed_tokens.weight", 6, 1003},
                                    {Q_PROJ, 1504, 1003},
                                    {"model.norm.weight", 0, 1003}};
    char *dir = make_hf("big");
    fx_safetensors(dir, "model.safetensors", items, FM_ARRAY_LEN(items));
    return dir;
}

static char *make_big_lora(void)
{
    static const fx_item items[] = {{FX_KEY "self_attn.q_proj.lora_A.weight", 3, 1003},
                                    {FX_KEY "self_attn.q_proj.lora_B.weight", 1504, 3}};
    char *dir = fm_path_join(root, "big_lora");
    fx_peft_folder(dir, FX_LORA, items, FM_ARRAY_LEN(items));
    return dir;
}

static char *make_lora(void)
{
    char *dir = fm_path_join(root, "lora");
    fx_peft_folder(dir, FX_LORA, FX_ADAPTER, FM_ARRAY_LEN(FX_ADAPTER));
    return dir;
}

/* A config that a derivation wrote, without PEFT's other fields. */
static char *make_plain_lora(void)
{
    char *dir = fm_path_join(root, "plain_lora");
    fx_peft_folder(dir,
                   "{\"r\": 3, \"peft_type\": \"LORA\", \"lora_alpha\": 6, "
                   "\"rank_pattern\": {\"mlp.up_proj\": 2}}",
                   FX_ADAPTER, FM_ARRAY_LEN(FX_ADAPTER));
    return dir;
}

/* A whole lm_head beside the LoRA: the merged model has a weight more, and is no longer tied. */
static char *make_saved_head(void)
{
    const fx_item items[] = {
        {"base_model.model.lm_head.weight", 6, 8}, FX_ADAPTER[0], FX_ADAPTER[1]};
    char *dir = fm_path_join(root, "saved_head");
    fx_peft_folder(dir, FX_LORA, items, FM_ARRAY_LEN(items));
    return dir;
}

static char *make_gguf(void)
{
    const gg_spec spec = {.bias = true};
    char *path = fm_path_join(root, "m.gguf");
    fm_buf b;
    fm_buf_init(&b, 0);
    gg_build(&b, &spec);
    tk_ok(fm_write_file(path, b.data, b.len));
    fm_buf_release(&b);
    return path;
}

/* The model of a case's name, "model" or "model+adapter". */
static void open_named(vk_world *w, const char *name)
{
    char *golden = fm_asprintf("%s/tests/model/golden/arch/llama-fp8", FM_SOURCE_DIR);
    if (strcmp(name, "hf") == 0)
        vk_open(w, make_hf("hf"), NULL);
    else if (strcmp(name, "hf+lora") == 0)
        vk_open(w, make_hf("hf"), make_lora());
    else if (strcmp(name, "hf+plain_lora") == 0)
        vk_open(w, make_hf("hf"), make_plain_lora());
    else if (strcmp(name, "hf+saved_head") == 0)
        vk_open(w, make_hf("hf"), make_saved_head());
    else if (strcmp(name, "big") == 0)
        vk_open(w, make_big(), NULL);
    else if (strcmp(name, "big+lora") == 0)
        vk_open(w, make_big(), make_big_lora());
    else if (strcmp(name, "lora") == 0)
        vk_open(w, make_lora(), NULL);
    else if (strcmp(name, "gguf") == 0)
        vk_open(w, make_gguf(), NULL);
    else if (strcmp(name, "fp8") == 0)
        vk_open(w, fm_strdup(golden), NULL);
    else if (strcmp(name, "atlas") == 0)
        vk_open(w, tk_source("examples/atlas/base"), NULL);
    else
        fail_msg("no model '%s'", name);
    fm_free(golden);
}

static const vk_case cases[] = {
    {"hf", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "4fc1cdd96b76dc648eb4047b7281b0caa6abf19a896f1bed766e7c2359c4ee7e"},
    {"hf", FM_EXPORT_HF, FM_DTYPE_NONE,
     "c7408e7b96c123a4244863d54d20e837325f4652893e8c9c076ada30c977ba87"},
    {"hf", FM_EXPORT_HF, FM_BF16,
     "915940103ad96f4d34c3ea32f72c3ead309d57396425587798a38cc86ae01d3a"},
    {"hf", FM_EXPORT_SAFETENSORS, FM_DTYPE_NONE,
     "0e8fc5136c8b71e613a384ff70558e0aebf3418e5bfe53b0e0c90d167130cbaa"},
    {"hf", FM_EXPORT_SAFETENSORS, FM_F16,
     "c25ecb334a7abff3a1f85444ea93cf8026a5789bd52abd5ea267de65744e8a96"},
    {"hf+lora", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "4a61ddd555cfee4487b4aad9ec9947c4e21fb6376e1764b30504dc0588050d1d"},
    {"hf+lora", FM_EXPORT_HF, FM_DTYPE_NONE,
     "d7b6fbc4c47346eac87819b28227b0052f28f17d53c94594728c2d4edb44f782"},
    {"hf+lora", FM_EXPORT_SAFETENSORS, FM_BF16,
     "b1a7e4f996fc9262495fd81ce556194fe73923be9659d6bcbe397c09fa648974"},
    {"hf+lora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "3962afe779b2cdb0163a8049e22f7816d9ed73106351eb519f70badc43675bef"},
    {"hf+lora", FM_EXPORT_PEFT, FM_F16,
     "88cc260cadc67c225e3e893a115167968a11afe868e36846f80aceb49127bea6"},
    {"hf+plain_lora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "c35c5bacf912b86ccabe56058c7d9f1e1369f5d067097b774dc62a5aef394353"},
    {"hf+saved_head", FM_EXPORT_HF, FM_DTYPE_NONE,
     "7f2ef978d72648213e1ec18533713bc873925c8788e3df334c4b50329772f54d"},
    {"lora", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "4a61ddd555cfee4487b4aad9ec9947c4e21fb6376e1764b30504dc0588050d1d"},
    {"lora", FM_EXPORT_PEFT, FM_DTYPE_NONE,
     "3962afe779b2cdb0163a8049e22f7816d9ed73106351eb519f70badc43675bef"},
    {"lora", FM_EXPORT_PEFT, FM_BF16,
     "2f906f3a370a5419603e5c4da34c9109369e0b073e7c654f466851502f3f0991"},
    {"big", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "e9836122ad74b4b1a94a462c2dacab50b8e2228579c845f0a6f9751550565922"},
    {"big", FM_EXPORT_HF, FM_DTYPE_NONE,
     "ee3a32d2d6f9b30a1a9c48304f2ec3c682d555bfbf7d4c28cb4157df5cf8bee4"},
    {"big", FM_EXPORT_SAFETENSORS, FM_BF16,
     "2b466dbc30523d81daa4fad73d5d3598e38e886b91a9593a66dce6637912e273"},
    {"big+lora", FM_EXPORT_HF, FM_DTYPE_NONE,
     "f65bc07015f06460381ab3945cc19f04720dd69608956ec972489686efb06091"},
    {"big+lora", FM_EXPORT_SAFETENSORS, FM_F16,
     "f462f908d63b0c0735b4640a90dcf1fbdb84c4efd5671301362f6f05faf77af1"},
    {"gguf", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "42f8658bc29c057b416528020feb38ca9b780d9a0f243a6ae5aaacb24521a849"},
    {"gguf", FM_EXPORT_HF, FM_DTYPE_NONE,
     "1f9f0ddaeb5ea54569fea929111f8d6d649e1f6df09724aea19ef7cfaa358c5b"},
    {"gguf", FM_EXPORT_HF, FM_BF16,
     "65b8ecce8100d93f79ccea842a6d94988ebd575195b66be9bb9a1d80d5ad22f0"},
    {"fp8", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "0aa1f23b16643e065d0dd96f2aa5c691aaf06f3dfbb78ff0ef8c0d87afd7a97c"},
    {"fp8", FM_EXPORT_HF, FM_DTYPE_NONE,
     "1b536195718e9487137c00edb81ec637fae25a24bad6879611b3e218ca0b1c19"},
    {"fp8", FM_EXPORT_HF, FM_BF16,
     "b57b44eece902e12f3b625efaf8b034e8f8bf9077a5754fdb0e016eeed02cee1"},
    {"fp8", FM_EXPORT_SAFETENSORS, FM_F32,
     "e7f5ec4afd276e45616929e5a9c270bafa2d53491478203de933b2ff246eae08"},
    {"atlas", FM_EXPORT_SOURCE, FM_DTYPE_NONE,
     "6538437afbb6269da0a41c25f610863a622bc492f109952831457835749e4a66"},
    {"atlas", FM_EXPORT_HF, FM_DTYPE_NONE,
     "6538437afbb6269da0a41c25f610863a622bc492f109952831457835749e4a66"},
    {"atlas", FM_EXPORT_HF, FM_F32,
     "f037e648d26050931dee7a4e60650e8a27c8653b0664e56cdb547b511d0ec0ca"},
    {"atlas", FM_EXPORT_SAFETENSORS, FM_BF16,
     "849c0edef680456d456181ee4dd90db622e614cd76e5dfbf01c84274cf0f21e4"},
    {"atlas", FM_EXPORT_SAFETENSORS, FM_F16,
     "4d95526930be2621dfa865ff45996145711234a32cde96dd512704b4f827a111"},
    {"atlas", FM_EXPORT_GGUF, FM_DTYPE_NONE,
     "723f4409ac41a1966c169713688148c465b8e840f6c17895a5e631d71d3a10c9"},
    {"atlas", FM_EXPORT_GGUF, FM_F32,
     "b6bb71dd95bbc74794ee41814aaa129cd0a3c43df9b21043943966aa3fffb56d"},
};

TEST(views_and_exports_are_what_exports_were)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        vk_world w;
        open_named(&w, cases[i].model);
        vk_check(&w, &cases[i], root, 100, 1000);
        vk_close(&w);
    }
}

TEST(shards_and_their_index_are_in_the_view)
{
    const fm_view_opts opts = {.format = FM_EXPORT_HF};
    fm_view *v = NULL;
    vk_world w;
    open_named(&w, "hf+lora");
    tk_ok(exp_view_open(&v, w.tree, &w.p, &opts, 400));
    assert_true(fm_view_find(v, "model.safetensors.index.json") < fm_view_count(v));
    assert_true(fm_view_find(v, "model-00002-of-00003.safetensors") < fm_view_count(v));
    assert_int_equal(fm_view_find(v, "model.safetensors"), SIZE_MAX);
    vk_check_view(v, "4c64a7bf324371ef4cc043316c5fdbdad8b8a0bf45d0f6cb6f7fa18c074a3c9d", 100, 100);
    fm_view_close(v);
    vk_close(&w);
}

/* Where two parts of a model would be written under one name, the later one was left on disk. */
TEST(of_two_files_with_one_name_the_later_stays)
{
    static const char mine[] = "tokenizer's";
    static const char *const names[] = {"README.md", "generation_config.json", "model.safetensors"};
    const fm_view_opts opts = {.format = FM_EXPORT_HF};
    char *out = fm_path_join(root, "out");
    fm_view *v = NULL, *plain = NULL;
    fm_tree *t = NULL;
    vk_world w;
    open_named(&w, "hf");
    tk_ok(fm_tree_copy(&t, w.tree));
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        char *path = fm_path_join("tokenizer", names[i]);
        tk_ok(fm_tree_put_file(t, path, fm_span_str(mine)));
        fm_free(path);
    }
    tk_ok(fm_view_open(&plain, w.tree, &w.p, &opts));
    tk_ok(fm_view_open(&v, t, &w.p, &opts));
    tk_ok(fm_export(t, &w.p, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    assert_int_equal(fm_view_count(v), fm_view_count(plain));
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        const size_t f = fm_view_find(v, names[i]), old = fm_view_find(plain, names[i]);
        const bool weights = i == 2;
        char *path = fm_path_join(out, names[i]);
        fm_file_map map;
        tk_ok(fm_map_file(&map, path));
        assert_int_equal(map.len, weights ? fm_view_at(plain, old)->bytes : strlen(mine));
        vk_same_range(v, f, map.data, 0, fm_view_at(v, f)->bytes);
        assert_int_equal(map.len, fm_view_at(v, f)->bytes);
        fm_unmap_file(&map);
        fm_free(path);
    }
    tk_ok(fm_remove_tree(out));
    fm_view_close(plain);
    fm_view_close(v);
    fm_tree_free(t);
    vk_close(&w);
    fm_free(out);
}

/* ---- rotary rows ---- */

/* Rows in GGUF's order: of each head, element i of the first half stands before that of the
 * second. */
static uint8_t *interleaved(const uint8_t *rows, uint64_t count, uint64_t row, uint64_t heads)
{
    uint8_t *out = fm_malloc((size_t)(count * row)), *to = out;
    const uint64_t dim = count / heads;
    assert_non_null(out);
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t i = 0; i < dim / 2; i++)
            for (uint64_t half = 0; half < 2; half++, to += row)
                memcpy(to, rows + (h * dim + half * (dim / 2) + i) * row, (size_t)row);
    return out;
}

/* Rows of a fused product in GGUF's order: all queries, then all keys, then all values, where each
 * group had its own of all three. */
static uint8_t *ungrouped(const uint8_t *rows, uint64_t count, uint64_t row, uint64_t groups,
                          uint64_t queries)
{
    uint8_t *out = fm_malloc((size_t)(count * row)), *to = out;
    const uint64_t dim = count / (groups * (queries + 2)), group = (queries + 2) * dim * row;
    const struct {
        uint64_t from, blocks;
    } part[] = {{0, queries}, {queries, 1}, {queries + 1, 1}};
    assert_non_null(out);
    for (size_t k = 0; k < FM_ARRAY_LEN(part); k++)
        for (uint64_t g = 0; g < groups; g++, to += part[k].blocks * dim * row)
            memcpy(to, rows + g * group + part[k].from * dim * row,
                   (size_t)(part[k].blocks * dim * row));
    return out;
}

/* Heads of more and of less than a part, and fused products, between two literals. */
TEST(rows_in_ggufs_orders_are_read_in_ranges)
{
    static const struct {
        unsigned heads, queries;
    } order[] = {{1, 0}, {4, 0}, {47, 0}, {752, 0}, {1, 6}, {4, 2}, {47, 2}, {94, 14}};
    enum { ROWS = 1504, ROW = 1003 * 4, BYTES = ROWS * ROW };
    char hex[FM_HEX_CHARS + 1];
    const fm_view_opts opts = {.format = FM_EXPORT_SOURCE};
    vk_world w;
    fm_tree *t = NULL;
    open_named(&w, "big");
    const fm_entry *e = fm_tree_find(w.tree, "tensors/model/layers/0/self_attn/q_proj.weight");
    const fm_entry *card = fm_tree_find(w.tree, "README.md");
    uint8_t *stored = fm_malloc(BYTES), *want = fm_malloc(BYTES + 2 * card->bytes);
    assert_true(stored && want && e->bytes == BYTES);
    tk_ok(w.p.read(w.p.ctx, e, stored));
    tk_ok(fm_tree_copy(&t, w.tree));
    for (size_t i = 0; i < FM_ARRAY_LEN(order); i++) {
        const unsigned heads = order[i].heads, queries = order[i].queries;
        uint8_t *rows = queries ? ungrouped(stored, ROWS, ROW, heads, queries)
                                : interleaved(stored, ROWS, ROW, heads);
        char *fused = fm_asprintf("\"fused_groups\":%u,\"fused_queries\":%u", heads, queries);
        char *rotary = fm_asprintf("\"rotary_heads\":%u", heads);
        fm_digest d;
        fm_view *v = NULL;
        memcpy(want, card->data, card->bytes);
        memcpy(want + card->bytes, rows, BYTES);
        memcpy(want + card->bytes + BYTES, card->data, card->bytes);
        tk_ok(fm_sha256(&d, want, BYTES + 2 * card->bytes));
        fm_digest_hex(&d, hex);
        char *text = fm_asprintf("{\"format\":1,\"files\":[{\"name\":\"a/"
                                 "b\",\"bytes\":%llu,\"sha256\":\"%s\",\"pieces\":"
                                 "[{\"literal\":\"README.md\"},{\"entry\":\"%s\",%s},"
                                 "{\"literal\":\"README.md\"}]}]}",
                                 (unsigned long long)(BYTES + 2 * card->bytes), hex, e->path,
                                 queries ? fused : rotary);
        tk_ok(fm_tree_put_file(t, FM_SOURCE_JSON, fm_span_str(text)));
        tk_ok(fm_view_open(&v, t, &w.p, &opts));
        assert_int_equal(fm_view_count(v), 1);
        vk_same_range(v, 0, want, 0, BYTES + 2 * card->bytes);
        vk_check_ranges(v, 0, want, 40, 10);
        char *out = fm_path_join(root, "out"), *file = fm_path_join(out, "a/b");
        tk_ok(fm_export(t, &w.p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
        fm_file_map map;
        tk_ok(fm_map_file(&map, file));
        assert_int_equal(map.len, BYTES + 2 * card->bytes);
        assert_memory_equal(map.data, want, map.len);
        fm_unmap_file(&map);
        tk_ok(fm_remove_tree(out));
        fm_view_close(v);
        fm_free(out);
        fm_free(file);
        fm_free(text);
        fm_free(rotary);
        fm_free(fused);
        fm_free(rows);
    }
    fm_tree_free(t);
    vk_close(&w);
    fm_free(stored);
    fm_free(want);
}

/* GPT-2's matrices are [in, out]; a GGUF has them the other way, whatever part of it is read. */
TEST(matrices_that_are_turned_are_read_in_ranges)
{
    static const fm_dtype dtypes[] = {FM_DTYPE_NONE, FM_F32, FM_F16};
    char *dir = fm_asprintf("%s/tests/model/golden/gguf/gpt2", FM_SOURCE_DIR);
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, dir));
    const fm_provider p = fm_source_provider(src);
    for (size_t i = 0; i < FM_ARRAY_LEN(dtypes); i++) {
        const fm_view_opts opts = {.format = FM_EXPORT_GGUF, .dtype = dtypes[i]};
        fm_view *v = NULL;
        tk_ok(fm_view_open(&v, fm_source_tree(src), &p, &opts));
        const uint64_t bytes = fm_view_at(v, 0)->bytes;
        uint8_t *whole = vk_range_of(v, 0, 0, bytes);
        vk_check_ranges(v, 0, whole, 60, 100);
        fm_free(whole);
        fm_view_close(v);
    }
    fm_source_close(src);
    fm_free(dir);
}

/* ---- how much is read ---- */

/* Counts what is read of tensors and blobs; every read of a view is a verified one. */
typedef struct counted {
    fm_provider from;
    uint64_t bytes;
} counted;

static fm_status count_read(void *ctx, const fm_entry *e, void *dst)
{
    counted *c = ctx;
    c->bytes += e->bytes;
    return c->from.read(c->from.ctx, e, dst);
}

static fm_status count_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                             void *dst, unsigned flags)
{
    counted *c = ctx;
    assert_int_equal(flags, 0);
    c->bytes += bytes;
    return c->from.range(c->from.ctx, e, offset, bytes, dst, flags);
}

static uint64_t cost(counted *c, fm_view *v, const char *name, uint64_t offset, uint64_t bytes)
{
    c->bytes = 0;
    fm_free(vk_range_of(v, fm_view_find(v, name), offset, bytes));
    return c->bytes;
}

TEST(a_small_range_reads_little)
{
    static const char file[] = "model.safetensors";
    enum { ROW = 1003 };
    static const struct {
        const char *model;
        fm_dtype dtype;
        uint64_t most; /* of tensors, for 100 bytes in the middle of the weight */
    } form[] = {
        {"big", FM_DTYPE_NONE, 100},
        {"big", FM_BF16, 200},                                    /* 50 elements of 4 bytes */
        {"big+lora", FM_F32, (2 * ROW + 3 * ROW + 1504 * 3) * 4}, /* two rows and the factors */
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(form); i++) {
        const fm_view_opts opts = {.format = FM_EXPORT_HF, .dtype = form[i].dtype};
        fm_view *v = NULL;
        vk_world w;
        open_named(&w, form[i].model);
        counted c = {.from = w.p};
        const fm_provider p = {.ctx = &c, .read = count_read, .range = count_range};
        tk_ok(fm_view_open(&v, w.tree, &p, &opts));
        assert_int_equal(c.bytes, 0); /* sizes and places are known without weights */
        const size_t f = fm_view_find(v, file);
        uint64_t head = 0;
        uint8_t *eight = vk_range_of(v, f, 0, 8);
        memcpy(&head, eight, 8);
        fm_free(eight);
        assert_int_equal(cost(&c, v, file, 8, head), 0);
        assert_int_equal(cost(&c, v, "config.json", 0, 10), 0);
        const uint64_t middle = fm_view_at(v, f)->bytes / 2 / 4 * 4;
        const uint64_t read = cost(&c, v, file, middle, 100);
        assert_true(read >= 100 && read <= form[i].most);
        fm_view_close(v);
        vk_close(&w);
    }
}

/* ---- two threads ---- */

typedef struct racer {
    fm_view *v;
    size_t file;
    const uint8_t *whole;
    uint64_t seed;
} racer;

static void *race(void *arg)
{
    const racer *r = arg;
    const uint64_t n = fm_view_at(r->v, r->file)->bytes;
    for (uint64_t k = 0; k < 30; k++) {
        const uint64_t at = fm_rng_u64(r->seed, 0, k) % n;
        vk_same_range(r->v, r->file, r->whole, at,
                      FM_MIN(n - at, fm_rng_u64(r->seed, 1, k) % (3 << 20)));
    }
    return NULL;
}

TEST(two_threads_read_one_view)
{
    const fm_view_opts opts = {.format = FM_EXPORT_HF, .dtype = FM_F32};
    fm_view *v = NULL;
    vk_world w;
    pthread_t other;
    open_named(&w, "big+lora");
    tk_ok(fm_view_open(&v, w.tree, &w.p, &opts));
    const size_t f = fm_view_find(v, "model.safetensors");
    uint8_t *whole = vk_range_of(v, f, 0, fm_view_at(v, f)->bytes);
    racer a = {v, f, whole, 1}, b = {v, f, whole, 2};
    assert_int_equal(pthread_create(&other, NULL, race, &a), 0);
    race(&b);
    assert_int_equal(pthread_join(other, NULL), 0);
    fm_free(whole);
    fm_view_close(v);
    vk_close(&w);
}

/* ---- refusals ---- */

static fm_status stop_at_once(void *ctx, const void *data, size_t len)
{
    (void)data;
    (void)len;
    ++*(int *)ctx;
    return fm_fail(FM_EIO, "the client went away");
}

TEST(what_lies_outside_a_file_is_refused_and_a_failure_ends_it)
{
    const fm_view_opts opts = {.format = FM_EXPORT_SAFETENSORS};
    fm_view *v = NULL;
    vk_world w;
    int calls = 0;
    open_named(&w, "big");
    tk_ok(fm_view_open(&v, w.tree, &w.p, &opts));
    const uint64_t n = fm_view_at(v, 0)->bytes;
    assert_string_equal(fm_view_at(v, 0)->name, "model.safetensors");
    tk_fails(fm_view_read(v, 0, n + 1, 0, stop_at_once, &calls), FM_EINVAL, "not within");
    tk_fails(fm_view_read(v, 0, 1, n, stop_at_once, &calls), FM_EINVAL, "not within");
    tk_fails(fm_view_read(v, 0, 8, UINT64_MAX - 4, stop_at_once, &calls), FM_EINVAL, "not within");
    tk_fails(fm_view_read(v, 1, 0, 0, stop_at_once, &calls), FM_EINVAL, "number");
    tk_ok(fm_view_read(v, 0, n, 0, stop_at_once, &calls));
    assert_int_equal(calls, 0);
    tk_fails(fm_view_read(v, 0, 0, n, stop_at_once, &calls), FM_EIO, "went away");
    assert_int_equal(calls, 1);
    fm_view_close(v);
    vk_close(&w);
}

TEST(a_view_refuses_what_an_export_refuses)
{
    static const struct {
        const char *model;
        fm_view_opts opts;
        fm_status rc;
        const char *says;
    } bad[] = {
        {"hf", {.format = FM_EXPORT_PEFT}, FM_EUNSUPPORTED, "no adapter"},
        {"hf", {.format = FM_EXPORT_HF, .dtype = FM_I32}, FM_EINVAL, "I32"},
        {"hf", {.format = FM_EXPORT_SOURCE, .dtype = FM_F16}, FM_EINVAL, "dtype"},
        {"lora", {.format = FM_EXPORT_HF}, FM_EUNSUPPORTED, "no model"},
        {"lora", {.format = FM_EXPORT_SAFETENSORS}, FM_EUNSUPPORTED, "no model"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        vk_world w;
        fm_view *v = NULL;
        open_named(&w, bad[i].model);
        tk_fails(fm_view_open(&v, w.tree, &w.p, &bad[i].opts), bad[i].rc, bad[i].says);
        assert_null(v);
        vk_close(&w);
    }
}

/* A provider of one text more. */
typedef struct with_text {
    fm_provider from;
    fm_digest id;
    fm_span text;
} with_text;

static fm_status text_read(void *ctx, const fm_entry *e, void *dst)
{
    const with_text *t = ctx;
    if (!fm_digest_eq(&e->id, &t->id))
        return t->from.read(t->from.ctx, e, dst);
    memcpy(dst, t->text.data, t->text.len);
    return FM_OK;
}

/* Opens the view, and makes the export and the check, of a tree whose source.json is this text. */
static void refused(const vk_world *w, fm_span text, fm_status rc, const char *says)
{
    const fm_view_opts opts = {.format = FM_EXPORT_SOURCE};
    with_text with = {.from = w->p, .text = text};
    const fm_provider p = {.ctx = &with, .read = text_read};
    char *out = fm_path_join(root, "out");
    fm_tree *t = NULL;
    fm_view *v = NULL;
    tk_ok(fm_blob_id(&with.id, text, NULL));
    tk_ok(fm_tree_copy(&t, w->tree));
    tk_ok(fm_tree_put_blob(t, FM_SOURCE_JSON, &with.id, text.len));
    tk_fails(fm_view_open(&v, t, &p, &opts), rc, says);
    assert_null(v);
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), rc, says);
    assert_false(fm_path_exists(out));
    tk_fails(fm_export_check(t, &p), rc, says);
    fm_tree_free(t);
    fm_free(out);
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define HOSTILE(name, bytes, pieces)                                                               \
    "{\"format\":1,\"files\":[{\"name\":\"" name "\",\"bytes\":" bytes ",\"sha256\":\"" ZEROS      \
    "\",\"pieces\":[" pieces "]}]}"

TEST(a_hostile_source_json_opens_no_view)
{
    static const struct {
        const char *text, *says;
        fm_status rc;
    } bad[] = {
        {HOSTILE("../x", "0", ""), "inside the folder", FM_ECORRUPT},
        {HOSTILE("/x", "0", ""), "inside the folder", FM_ECORRUPT},
        {HOSTILE("a/../../x", "0", ""), "inside the folder", FM_ECORRUPT},
        {HOSTILE("a/.", "0", ""), "inside the folder", FM_ECORRUPT},
        {HOSTILE("x", "9", "{\"literal\":\"README.md\",\"at\":9,\"bytes\":9223372036854775807}"),
         "past the literal", FM_ECORRUPT},
        {HOSTILE("x", "8", "{\"literal\":\"README.md\"}"), "more bytes than", FM_ECORRUPT},
        {HOSTILE("x", "9223372036854775807", "{\"literal\":\"README.md\"}"), "its pieces give",
         FM_ECORRUPT},
        {HOSTILE("x", "32", "{\"entry\":\"tensors/model/norm.weight\",\"rotary_heads\":3}"),
         "rotary_heads", FM_ECORRUPT},
        {HOSTILE("x", "32",
                 "{\"entry\":\"tensors/model/norm.weight\",\"rotary_heads\":4294967296}"),
         "rotary_heads", FM_ECORRUPT},
        {HOSTILE("x", "32",
                 "{\"entry\":\"tensors/model/norm.weight\",\"fused_groups\":3,"
                 "\"fused_queries\":1}"),
         "fused_groups", FM_ECORRUPT},
        {HOSTILE("x", "32", "{\"entry\":\"tensors/model/norm.weight\",\"fused_groups\":2}"),
         "fused_queries", FM_ECORRUPT},
        {HOSTILE("x", "4", "{\"literal\":\"no such\"}"), "no file", FM_ENOTFOUND},
        {HOSTILE("x", "4", "{\"entry\":\"tensors/no\"}"), "no longer", FM_EUNSUPPORTED},
        {"{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":0,\"sha256\":\"0\",\"pieces\":[]}]}",
         "no digest", FM_ECORRUPT},
        {"{\"format\":2,\"files\":[]}", "unknown format", FM_EVERSION},
    };
    vk_world w;
    open_named(&w, "hf");
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refused(&w, fm_span_str(bad[i].text), bad[i].rc, bad[i].says);
    fm_buf many; /* refused by their number, before one is looked at */
    fm_buf_init(&many, 0);
    fm_buf_str(&many, "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":0,\"sha256\":\"" ZEROS
                      "\",\"pieces\":[0");
    for (uint32_t i = 0; i < FM_SOURCE_MAX_PIECES; i++)
        fm_buf_append(&many, ",0", 2);
    fm_buf_str(&many, "]}]}");
    refused(&w, fm_buf_span(&many), FM_ELIMIT, "pieces");
    fm_buf_release(&many);
    vk_close(&w);
}

/* ---- names of bases ---- */

static fm_json *config_of(const vk_world *w, const char *name, const char *revision, bool *same)
{
    const fm_view_opts opts = {
        .format = FM_EXPORT_PEFT, .base_name = name, .base_revision = revision};
    fm_view *v = NULL;
    fm_json *config = NULL;
    tk_ok(fm_view_open(&v, w->tree, &w->p, &opts));
    const size_t f = fm_view_find(v, "adapter_config.json");
    const uint64_t n = fm_view_at(v, f)->bytes;
    uint8_t *text = vk_range_of(v, f, 0, n);
    tk_ok(fm_json_parse(&config, fm_span_of(text, (size_t)n), "config"));
    *same = n == strlen(FX_LORA) && memcmp(text, FX_LORA, (size_t)n) == 0;
    fm_free(text);
    fm_view_close(v);
    return config;
}

TEST(an_adapters_base_can_be_named_anew)
{
    static const struct {
        const char *model, *name, *revision, *want_name, *want_revision;
        bool same;
    } form[] = {
        {"hf+lora", NULL, NULL, "tiny", NULL, true},
        {"hf+lora", "fmstore/base", NULL, "fmstore/base", NULL, false},
        {"hf+lora", NULL, "abc", "tiny", "abc", false},
        {"hf+plain_lora", "fmstore/base", "abc", "fmstore/base", "abc", false},
        {"hf+plain_lora", NULL, NULL, NULL, NULL, false},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(form); i++) {
        vk_world w;
        bool same;
        open_named(&w, form[i].model);
        fm_json *c = config_of(&w, form[i].name, form[i].revision, &same);
        const char *name = fm_json_cstr(fm_json_get(c, "base_model_name_or_path"), NULL);
        const char *revision = fm_json_cstr(fm_json_get(c, "revision"), NULL);
        assert_int_equal(same, form[i].same);
        assert_true(form[i].want_name ? name && strcmp(name, form[i].want_name) == 0 : !name);
        assert_true(form[i].want_revision ? revision && strcmp(revision, "abc") == 0 : !revision);
        assert_int_equal(fm_json_int(fm_json_get(c, "lora_alpha"), 0), 6);
        assert_int_equal(fm_json_int(fm_json_path(c, "r"), 0), 3);
        fm_json_free(c);
        vk_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_and_exports_are_what_exports_were),
        cmocka_unit_test(shards_and_their_index_are_in_the_view),
        cmocka_unit_test(of_two_files_with_one_name_the_later_stays),
        cmocka_unit_test(rows_in_ggufs_orders_are_read_in_ranges),
        cmocka_unit_test(matrices_that_are_turned_are_read_in_ranges),
        cmocka_unit_test(a_small_range_reads_little),
        cmocka_unit_test(two_threads_read_one_view),
        cmocka_unit_test(what_lies_outside_a_file_is_refused_and_a_failure_ends_it),
        cmocka_unit_test(a_view_refuses_what_an_export_refuses),
        cmocka_unit_test(a_hostile_source_json_opens_no_view),
        cmocka_unit_test(an_adapters_base_can_be_named_anew),
    };
    root = tk_scratch();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(root);
    return failed;
}
