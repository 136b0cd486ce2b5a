/* hf.c - Hugging Face folders and single safetensors files, adapters merged in. */
#include "store/export/export_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"

/* The dtype in which all float weights are written; FM_DTYPE_NONE where they differ. */
static fm_dtype common_dtype(const exp_plan *plan)
{
    fm_dtype all = FM_DTYPE_NONE;

    for (size_t i = 0; i < plan->count; i++) {
        fm_dtype d = plan->weight[i].dtype;
        if (!fm_dtype_get(d)->is_float)
            continue;
        if (all != FM_DTYPE_NONE && d != all)
            return FM_DTYPE_NONE;
        all = d;
    }
    return all;
}

/* The dtype as transformers spells it, or NULL. */
static const char *dtype_word(fm_dtype d)
{
    return d == FM_F32 ? "float32" : d == FM_F16 ? "float16" : d == FM_BF16 ? "bfloat16" : NULL;
}

/* Sets the config's dtype, and whether the head is the embedding, by the weights that are written.
 * A float32 fine-tune with a config that says bfloat16 would be rounded when it is loaded. Where
 * the weights' dtypes differ, the config keeps its own. */
static fm_status adjust_config(fm_json *config, const exp_plan *plan, fm_dtype dtype)
{
    const char *key = fm_json_get(config, "torch_dtype") ? "torch_dtype" : "dtype";
    const char *name = dtype_word(common_dtype(plan));

    if (name && (dtype != FM_DTYPE_NONE || fm_json_get(config, key)))
        FM_TRY(fm_json_set(config, key, fm_json_new_str(name)));
    if (plan->unties)
        FM_TRY(fm_json_set(config, "tie_word_embeddings", fm_json_new_bool(false)));
    return FM_OK;
}

fm_status exp_model_json(fm_json **out, const fm_tree *tree, const fm_provider *p)
{
    const fm_entry *e = fm_tree_find(tree, "model.json");
    fm_buf text;
    fm_status rc;

    *out = NULL;
    if (!e)
        return fm_fail(FM_EUNSUPPORTED, "this version has no model.json (it came as bare tensors); "
                                        "export it with --format safetensors");
    fm_buf_init(&text, 0);
    rc = fm_entry_read(&text, p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), "model.json"));
    if (rc == FM_OK && !fm_json_is(fm_json_get(*out, "config"), FM_JSON_OBJECT))
        rc = fm_fail(FM_ECORRUPT, "model.json: field 'config' must be an object");
    fm_buf_release(&text);
    return rc;
}

static fm_status add_config(fm_view *v, fm_dtype dtype)
{
    fm_json *model = NULL, *config = NULL;
    const fm_json *gen;
    fm_status rc = exp_model_json(&model, v->tree, v->p);

    if (rc == FM_OK) {
        config = fm_json_copy(fm_json_get(model, "config"));
        rc = config ? adjust_config(config, &v->plan, dtype) : FM_ENOMEM;
    }
    FM_THEN(rc, exp_add_json(v, "config.json", config, "\n"));
    gen = fm_json_get(model, "generation_config");
    if (rc == FM_OK && fm_json_is(gen, FM_JSON_OBJECT))
        rc = exp_add_json(v, "generation_config.json", gen, "\n");
    fm_json_free(config);
    fm_json_free(model);
    return rc;
}

static fm_status add_whole(fm_view *v, const char *name, const fm_entry *e)
{
    FM_TRY(exp_add_file(v, name));
    return exp_add_entry(v, e, 0, e->bytes);
}

/* Adds tokenizer/x as x. Paths with more parts are skipped: fmstore makes none. */
static fm_status add_tokenizer(fm_view *v)
{
    const fm_entry *card = fm_tree_find(v->tree, "README.md");
    size_t begin, end;
    fm_status rc = card ? add_whole(v, "README.md", card) : FM_OK;

    fm_tree_range(v->tree, "tokenizer/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(v->tree, i);
        const char *name = e->path + strlen("tokenizer/");
        if (!strchr(name, '/') && strcmp(name, "config.json") != 0)
            rc = add_whole(v, name, e);
    }
    return rc;
}

/* ---- shards ---- */

static size_t shard_end(const exp_plan *plan, size_t begin, uint64_t shard_bytes)
{
    uint64_t sum = 0;
    size_t i = begin;

    while (i < plan->count && (i == begin || sum + plan->weight[i].bytes <= shard_bytes))
        sum += plan->weight[i++].bytes;
    return i;
}

static void shard_name(char out[64], size_t i, size_t count)
{
    if (count == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", i + 1, count);
}

static fm_status add_extra(fm_view *v, const char *name)
{
    char *path = fm_asprintf("source/files/%s", name);
    const fm_entry *e = path ? fm_tree_find(v->tree, path) : NULL;

    fm_free(path);
    if (!path)
        return FM_ENOMEM;
    return e && e->kind != FM_ENTRY_TENSOR ? add_whole(v, name, e) : FM_OK;
}

/* Adds what a sentence-transformers folder says of pooling. */
static fm_status add_modules(fm_view *v)
{
    fm_json *modules = NULL;
    fm_status rc = exp_read_json(&modules, v, "source/files/modules.json");

    if (modules) {
        FM_THEN(rc, add_extra(v, "modules.json"));
        FM_THEN(rc, add_extra(v, "sentence_bert_config.json"));
    }
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(modules); i++) {
        const char *dir = fm_json_cstr(fm_json_get(fm_json_at(modules, i), "path"), "");
        char *name = *dir ? fm_asprintf("%.200s/config.json", dir) : NULL;
        if (*dir && !strchr(dir, '/') && strcmp(dir, "..") != 0)
            rc = name ? add_extra(v, name) : FM_ENOMEM;
        fm_free(name);
    }
    fm_json_free(modules);
    return rc;
}

static fm_status map_shard(fm_json *map, const exp_plan *plan, size_t begin, size_t end,
                           const char *file)
{
    for (size_t i = begin; i < end; i++)
        FM_TRY(fm_json_set(map, plan->weight[i].name, fm_json_new_str(file)));
    return FM_OK;
}

static fm_status add_index(fm_view *v, const fm_json *map)
{
    fm_json *index = fm_json_new_object(), *meta = fm_json_new_object();
    uint64_t total = 0;
    fm_status rc = index && meta ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < v->plan.count; i++)
        total += v->plan.weight[i].bytes;
    FM_THEN(rc, fm_json_set(meta, "total_size", fm_json_new_int((int64_t)total)));
    FM_THEN(rc, fm_json_set(index, "metadata", fm_json_ref(meta)));
    FM_THEN(rc, fm_json_set(index, "weight_map", fm_json_ref(map)));
    FM_THEN(rc, exp_add_json(v, "model.safetensors.index.json", index, "\n"));
    fm_json_free(meta);
    fm_json_free(index);
    return rc;
}

static fm_status add_shards(fm_view *v, uint64_t shard_bytes)
{
    const exp_plan *plan = &v->plan;
    fm_json *map = fm_json_new_object();
    size_t shards = 0, at = 0;
    fm_status rc = map ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < plan->count; i = shard_end(plan, i, shard_bytes))
        shards++;
    for (size_t i = 0; rc == FM_OK && i < shards; i++) {
        size_t end = shard_end(plan, at, shard_bytes);
        char name[64];
        shard_name(name, i, shards);
        rc = exp_add_weights(v, name, plan->weight + at, end - at);
        FM_THEN(rc, map_shard(map, plan, at, end, name));
        at = end;
    }
    if (rc == FM_OK && shards > 1)
        rc = add_index(v, map);
    fm_json_free(map);
    return rc;
}

fm_status exp_hf(fm_view *v, fm_dtype dtype, uint64_t shard_bytes)
{
    FM_TRY(exp_plan_make(&v->plan, v->tree, v->p, dtype));
    FM_TRY(add_config(v, dtype));
    FM_TRY(add_tokenizer(v));
    FM_TRY(add_modules(v));
    return add_shards(v, shard_bytes);
}

fm_status exp_safetensors(fm_view *v, fm_dtype dtype)
{
    v->single = true;
    FM_TRY(exp_plan_make(&v->plan, v->tree, v->p, dtype));
    return exp_add_weights(v, "model.safetensors", v->plan.weight, v->plan.count);
}
