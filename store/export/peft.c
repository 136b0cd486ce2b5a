/* peft.c - the topmost adapter as a folder that PEFT loads.
 *
 * A config that PEFT wrote is exported unchanged. A config that an fmstore derivation wrote gets
 * the other fields that PEFT's own file always has, with keys sorted as PEFT sorts them. */
#include "store/export/export_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"

static const char LORA_DEFAULTS[] =
    "{\"alpha_pattern\":{},\"auto_mapping\":null,\"base_model_name_or_path\":null,"
    "\"bias\":\"none\",\"fan_in_fan_out\":false,\"inference_mode\":true,"
    "\"init_lora_weights\":true,\"layers_pattern\":null,\"layers_to_transform\":null,"
    "\"lora_dropout\":0.0,\"modules_to_save\":null,\"peft_type\":\"LORA\",\"rank_pattern\":{},"
    "\"revision\":null,\"task_type\":\"CAUSAL_LM\",\"use_dora\":false,\"use_rslora\":false}";

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A new object with o's members, keys ascending. */
static fm_status sorted(fm_json **out, const fm_json *o)
{
    size_t n = 0;
    const char **key = fm_calloc(fm_json_count(o) + 1, sizeof *key);
    fm_status rc = FM_OK;

    *out = fm_json_new_object();
    if (!key || !*out)
        rc = FM_ENOMEM;
    for (void *it = fm_json_iter(o); rc == FM_OK && it; it = fm_json_next(o, it))
        key[n++] = fm_json_iter_key(it);
    if (n > 1)
        qsort(key, n, sizeof *key, by_text);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = fm_json_set(*out, key[i], fm_json_ref(fm_json_get(o, key[i])));
    fm_free(key);
    return rc;
}

static fm_status filled_config(fm_buf *out, const fm_json *config)
{
    fm_json *all = NULL, *ordered = NULL;
    fm_status rc = fm_json_parse(&all, fm_span_str(LORA_DEFAULTS), "LoRA defaults");

    for (void *it = fm_json_iter(config); rc == FM_OK && it; it = fm_json_next(config, it))
        rc = fm_json_set(all, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    FM_THEN(rc, sorted(&ordered, all));
    FM_THEN(rc, fm_json_write(out, ordered, FM_JSON_PRETTY));
    fm_json_free(ordered);
    fm_json_free(all);
    return rc;
}

static fm_status put_config(const fm_tree *tree, const fm_provider *p, const char *dst,
                            const adp_place *place)
{
    char path[128];
    fm_json *config = NULL;
    fm_buf text;
    fm_status rc = adp_config(&config, tree, p, place);

    fm_buf_init(&text, 0);
    snprintf(path, sizeof path, "%s/adapter_config.json", place->dir);
    if (rc == FM_OK && strcmp(place->kind, "lora") == 0 && !fm_json_get(config, "peft_version"))
        rc = filled_config(&text, config);
    else if (rc == FM_OK)
        rc = fm_entry_read(&text, p, fm_tree_find(tree, path));
    FM_THEN(rc, exp_put_file(dst, "adapter_config.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_json_free(config);
    return rc;
}

static fm_status put_tensors(const fm_tree *tree, const fm_provider *p, const char *dst,
                             const adp_place *place, fm_dtype dtype)
{
    char prefix[96];
    char *path = fm_path_join(dst, "adapter_model.safetensors");
    size_t begin, end, n = 0;
    exp_weight *list;
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    snprintf(prefix, sizeof prefix, "%s/tensors/", place->dir);
    fm_tree_range(tree, prefix, &begin, &end);
    list = fm_calloc(end - begin + 1, sizeof *list);
    if (!list)
        rc = FM_ENOMEM;
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        list[n] = (exp_weight){e->name, e, NULL, 0, 0, exp_dtype(e->dtype, dtype), 0};
        rc = fm_tensor_bytes(&list[n].bytes, list[n].dtype, &e->shape, e->name);
        n++;
    }
    if (rc == FM_OK && n == 0)
        rc = fm_fail(FM_ECORRUPT, "%s holds no tensors", place->dir);
    FM_THEN(rc, exp_write_weights(path, list, n, p));
    fm_free(list);
    fm_free(path);
    return rc;
}

fm_status exp_peft(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype)
{
    adp_place *place = NULL;
    size_t count = 0;
    fm_status rc = adp_list(&place, &count, tree);

    if (rc == FM_OK && count == 0)
        rc = fm_fail(FM_EUNSUPPORTED, "this version holds no adapter; export it with --format hf");
    FM_THEN(rc, fm_make_dirs(dst));
    FM_THEN(rc, put_config(tree, p, dst, &place[count - 1]));
    FM_THEN(rc, put_tensors(tree, p, dst, &place[count - 1], dtype));
    fm_free(place);
    return rc;
}
