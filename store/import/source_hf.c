/* source_hf.c - Hugging Face model folders, single files of weights and PEFT adapter folders.
 *
 * The weights are the files that transformers would load (model.safetensors, or those that the
 * index names; pytorch_model.bin where there are none). Every other file of the folder and of the
 * folders in it is kept whole, whatever its size, so that export gives the folder back. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "store/import/source_impl.h"

#define MAX_CONFIG_BYTES (16u << 20)
#define MAX_INDEX_BYTES (256u << 20)
#define FM_SOURCE_MAX_DEPTH 16u /* of folders in a model's folder */

/* Whether the folder has a file (not a folder) of this name. */
static bool holds(const fm_source *src, const char *name)
{
    char folder[PATH_MAX];
    int n = snprintf(folder, sizeof folder, "%s/%s/.", src->path, name);

    return fm_path_holds(src->path, name) &&
           !(n > 0 && (size_t)n < sizeof folder && fm_path_exists(folder));
}

static fm_status parse_in(fm_json **out, const fm_source *src, const char *name, size_t max_bytes)
{
    char *path = fm_path_join(src->path, name);
    fm_status rc = path ? src_check_link(src, src->path, name) : FM_ENOMEM;

    *out = NULL;
    FM_THEN(rc, fm_json_parse_file(out, path, max_bytes));

    fm_free(path);
    if (rc == FM_OK && !fm_json_is(*out, FM_JSON_OBJECT)) {
        fm_json_free(*out);
        *out = NULL;
        rc = fm_fail(FM_ECORRUPT, "%s/%s: must be a JSON object", src->path, name);
    }
    return rc;
}

/* ---- the files that are not weights ---- */

static bool already_taken(const fm_source *src, const char *name)
{
    return fm_map_has(src->file_by_name, name, strlen(name));
}

static const char *place_nowhere(const char *name)
{
    (void)name;
    return NULL;
}

static fm_status leave_out(fm_source *src, const char *name, uint64_t bytes, const char *why)
{
    const fm_left_out left = {src_strdup(src, name), why, bytes};
    FM_TRY(left.name
               ? fm_grow(&src->left_out, &src->left_out_cap, src->left_out_count + 1, sizeof left)
               : FM_ENOMEM);

    src->left_out[src->left_out_count++] = left;
    return FM_OK;
}

static fm_status add_extra_file(fm_source *src, const char *dir, const char *name,
                                src_place_fn *place)
{
    const char *at = place(name);
    bool known = at != NULL;
    src_file *f = NULL;

    if (!known)
        at = src_extra_path(src, name);
    FM_TRY(at ? src_add_file(&f, src, dir, name) : FM_ENOMEM);
    return src_whole_file(src, f, at, known);
}

/* Why a folder is no part of the model; NULL: it is one. */
static const char *foreign_folder(const char *path, const char *name, unsigned depth)
{
    const char *base = fm_path_base(name);

    if (strcmp(base, ".git") == 0)
        return "git's own folder";
    if (strcmp(base, ".cache") == 0)
        return "a folder of what was downloaded";
    if (fm_path_is_link(path))
        return "a link to a folder";
    return depth == FM_SOURCE_MAX_DEPTH ? "a folder in too many others" : NULL;
}

static fm_status leave_out_folder(fm_source *src, const char *dir, const char *path,
                                  const char *name, const char *why)
{
    uint64_t bytes = 0;

    if (fm_path_is_link(path)) /* to a folder elsewhere: it may be meant as a part of the model */
        FM_TRY(src_check_link(src, dir, name));
    if (fm_tree_bytes(&bytes, path) == FM_ENOMEM)
        return FM_ENOMEM;
    fm_error_clear(); /* what is not taken need not be readable */
    return leave_out(src, name, bytes, why);
}

static fm_status add_folder(fm_source *src, const char *dir, const char *name, unsigned depth);

static fm_status add_extra(fm_source *src, const char *dir, const char *name, src_place_fn *place,
                           unsigned depth)
{
    char *path = fm_path_join(dir, name);
    fm_status rc = FM_OK;

    if (!path)
        return FM_ENOMEM;
    if (fm_path_is_dir(path)) {
        const char *why = foreign_folder(path, name, depth);
        rc = why ? leave_out_folder(src, dir, path, name, why)
                 : add_folder(src, dir, name, depth + 1);
    } else {
        rc = add_extra_file(src, dir, name, place);
    }
    fm_free(path);
    return rc;
}

static fm_status add_folder(fm_source *src, const char *dir, const char *name, unsigned depth)
{
    char *path = fm_path_join(dir, name);
    fm_names names = {NULL, 0};
    fm_status rc = path ? fm_list_dir(&names, path) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        char *inner = fm_path_join(name, names.name[i]);
        rc = inner ? add_extra(src, dir, inner, place_nowhere, depth) : FM_ENOMEM;
        fm_free(inner);
    }
    fm_names_release(&names);
    fm_free(path);
    return rc;
}

fm_status src_add_extras(fm_source *src, const char *dir, src_place_fn *place)
{
    fm_names names = {NULL, 0};
    fm_status rc = fm_list_dir(&names, dir);

    for (size_t i = 0; rc == FM_OK && i < names.count; i++)
        if (!already_taken(src, names.name[i]))
            rc = add_extra(src, dir, names.name[i], place, 0);
    fm_names_release(&names);
    return rc;
}

/* The tree path of a file of a model folder; NULL: below source/files. */
static const char *place_of_model_file(const char *name)
{
    static const char *const place[] = {
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/chat_template.jinja",
        "tokenizer/chat_template.json",
        "tokenizer/special_tokens_map.json",
        "tokenizer/added_tokens.json",
        "tokenizer/vocab.json",
        "tokenizer/merges.txt",
        "tokenizer/vocab.txt",
        "tokenizer/tokenizer.model",
        "tokenizer/spiece.model",
        "tokenizer/sentencepiece.bpe.model",
        "README.md",
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++)
        if (strcmp(fm_path_base(place[i]), name) == 0)
            return place[i];
    return NULL;
}

/* ---- model.json ---- */

static fm_status put_model_json(fm_source *src)
{
    fm_json *config = NULL, *gen = NULL, *model = fm_json_new_object();
    fm_status rc = model ? parse_in(&config, src, "config.json", MAX_CONFIG_BYTES) : FM_ENOMEM;

    if (rc == FM_OK && holds(src, "generation_config.json"))
        rc = parse_in(&gen, src, "generation_config.json", MAX_CONFIG_BYTES);
    FM_THEN(rc, fm_json_set(model, "format", fm_json_new_int(1)));
    FM_THEN(rc, fm_json_set(model, "architecture",
                            fm_json_new_str(fm_json_cstr(fm_json_get(config, "model_type"), ""))));
    FM_THEN(rc, fm_json_set(model, "config", fm_json_ref(config)));
    if (rc == FM_OK && gen)
        rc = fm_json_set(model, "generation_config", fm_json_ref(gen));
    FM_THEN(rc, src_put_json(src, "model.json", model, FM_JSON_PRETTY));
    fm_json_free(gen);
    fm_json_free(config);
    fm_json_free(model);
    return rc;
}

/* ---- sharded weights ---- */

/* The two forms in which a folder holds its weights. */
typedef struct weights_form {
    const char *file, *index, *suffix;
    fm_status (*add)(fm_source *src, const char *dir, const char *name, const char *prefix);
} weights_form;

static const weights_form forms[] = {
    {"model.safetensors", "model.safetensors.index.json", ".safetensors", src_add_safetensors},
    {"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", src_add_torch},
};

static fm_status check_shard_name(const fm_source *src, const weights_form *form,
                                  const char *tensor, const char *file)
{
    if (!file || !fm_ends_with(file, form->suffix) || strchr(file, '/') || file[0] == '.')
        return fm_fail(FM_ECORRUPT,
                       "%s/%s: field 'weight_map.%.200s' must name a %s file of this folder",
                       src->path, form->index, tensor, form->suffix);
    return FM_OK;
}

static bool file_holds(const src_file *f, const char *tensor)
{
    return f->torch ? fm_torch_find(f->torch, tensor) != NULL : fm_st_find(f->st, tensor) != NULL;
}

/* Adds shards in the order in which the map first names them; each mapped tensor must then
 * exist. */
static fm_status add_shards(fm_source *src, const weights_form *form, const fm_json *map)
{
    for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it)) {
        const char *file = fm_json_cstr(fm_json_iter_value(it), NULL);
        FM_TRY(check_shard_name(src, form, fm_json_iter_key(it), file));
        if (!already_taken(src, file))
            FM_TRY(form->add(src, src->path, file, "tensors"));
    }
    for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it)) {
        const char *file = fm_json_cstr(fm_json_iter_value(it), "");
        const src_file *f = fm_map_get(src->file_by_name, file, strlen(file));
        if (f && !file_holds(f, fm_json_iter_key(it)))
            return fm_fail(FM_ECORRUPT,
                           "%s/%s: tensor '%.200s', which the index places here, "
                           "is missing",
                           src->path, file, fm_json_iter_key(it));
    }
    return FM_OK;
}

static fm_status add_indexed(fm_source *src, const weights_form *form)
{
    fm_json *index = NULL;
    const fm_json *map;
    fm_status rc = parse_in(&index, src, form->index, MAX_INDEX_BYTES);

    if (rc < 0)
        return rc;
    map = fm_json_get(index, "weight_map");
    if (!fm_json_is(map, FM_JSON_OBJECT) || fm_json_count(map) == 0)
        rc = fm_fail(FM_ECORRUPT, "%s/%s: field 'weight_map' must be an object that names files",
                     src->path, form->index);
    else
        rc = add_shards(src, form, map);
    fm_json_free(index);
    return rc;
}

static fm_status add_weights(fm_source *src)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(forms); i++) {
        if (holds(src, forms[i].file))
            return forms[i].add(src, src->path, forms[i].file, "tensors");
        if (holds(src, forms[i].index))
            return add_indexed(src, &forms[i]);
    }
    return fm_fail(FM_ENOTFOUND,
                   "%s: no model.safetensors, no pytorch_model.bin and no index.json of either",
                   src->path);
}

fm_status src_open_hf(fm_source *src)
{
    src->kind = FM_SOURCE_HF;
    FM_TRY(add_weights(src));
    if (!holds(src, "config.json"))
        return fm_fail(FM_ENOTFOUND, "%s: no config.json beside the weights", src->path);
    FM_TRY(put_model_json(src));
    return src_add_extras(src, src->path, place_of_model_file);
}

fm_status src_open_single(fm_source *src)
{
    src->kind = FM_SOURCE_SAFETENSORS;
    return src_add_safetensors(src, NULL, fm_path_base(src->path), "tensors");
}

fm_status src_open_torch(fm_source *src)
{
    src->kind = FM_SOURCE_TORCH;
    return src_add_torch(src, NULL, fm_path_base(src->path), "tensors");
}

/* ---- adapters ---- */

/* Sets the root "adapters/0-<kind>" by PEFT's type; unknown types keep their name in lower case. */
static fm_status adapter_root(fm_source *src, const fm_json *config)
{
    static const char *const known[][2] = {
        {"LORA", "lora"}, {"IA3", "ia3"}, {"PREFIX_TUNING", "prefix"}, {"PROMPT_TUNING", "prompt"}};
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), NULL);
    char root[80] = "adapters/0-";
    size_t at = strlen(root);

    if (!type || !*type || strlen(type) > 40)
        return fm_fail(FM_ECORRUPT,
                       "%s/adapter_config.json: field 'peft_type' must be a short text", src->path);
    for (size_t i = 0; type[i]; i++) {
        char c = type[i];
        if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
            return fm_fail(FM_ECORRUPT, "%s/adapter_config.json: field 'peft_type' holds '%c'",
                           src->path, c);
        root[at + i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(type, known[i][0]) == 0) {
            memset(root + at, 0, sizeof root - at);
            memcpy(root + at, known[i][1], strlen(known[i][1]));
        }
    if (strcmp(type, "LORA") == 0 && fm_json_bool(fm_json_get(config, "use_dora"), false))
        memcpy(root + at, "dora", 5);
    src->root = src_strdup(src, root);
    return src->root ? FM_OK : FM_ENOMEM;
}

static fm_status add_adapter_files(fm_source *src)
{
    char *prefix = fm_asprintf("%s/tensors", src->root);
    char *config = fm_asprintf("%s/adapter_config.json", src->root);
    src_file *f = NULL;
    fm_status rc = prefix && config ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, src_add_file(&f, src, src->path, "adapter_config.json"));
    FM_THEN(rc, src_whole_file(src, f, config, true));
    if (rc == FM_OK && holds(src, "adapter_model.safetensors"))
        rc = src_add_safetensors(src, src->path, "adapter_model.safetensors", prefix);
    else if (rc == FM_OK)
        rc = src_add_torch(src, src->path, "adapter_model.bin", prefix);
    fm_free(prefix);
    fm_free(config);
    return rc == FM_OK ? src_add_extras(src, src->path, place_nowhere) : rc;
}

/* An adapter that is not computed here is kept: `kept` says why. */
static fm_status check_adapter(fm_source *src, const fm_json *config)
{
    const char *kind = src->root + strlen("adapters/0-");
    fm_status rc = fm_adapter_config_check(config, kind, "adapter_config.json");

    if (rc != FM_EUNSUPPORTED)
        return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", src->path);
    src->kept = src_strdup(src, fm_error_text());
    fm_error_clear();
    return src->kept ? FM_OK : FM_ENOMEM;
}

fm_status src_open_peft(fm_source *src)
{
    fm_json *config = NULL;
    fm_status rc;

    src->kind = FM_SOURCE_PEFT;
    if (!holds(src, "adapter_model.safetensors") && !holds(src, "adapter_model.bin"))
        return fm_fail(FM_ENOTFOUND, "%s: no adapter_model.safetensors and no adapter_model.bin",
                       src->path);
    rc = parse_in(&config, src, "adapter_config.json", MAX_CONFIG_BYTES);
    FM_THEN(rc, adapter_root(src, config));
    FM_THEN(rc, check_adapter(src, config));
    fm_json_free(config);
    return rc == FM_OK ? add_adapter_files(src) : rc;
}
