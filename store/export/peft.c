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

/* The config with the fields that PEFT's own file always has. */
static fm_status filled_config(fm_json **out, const fm_json *config)
{
    fm_json *all = NULL;
    fm_status rc = fm_json_parse(&all, fm_span_str(LORA_DEFAULTS), "LoRA defaults");

    for (void *it = fm_json_iter(config); rc == FM_OK && it; it = fm_json_next(config, it))
        rc = fm_json_set(all, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    FM_THEN(rc, sorted(out, all));
    fm_json_free(all);
    return rc;
}

static fm_status set_text(fm_json *config, const char *key, const char *text)
{
    return text ? fm_json_set(config, key, fm_json_new_str(text)) : FM_OK;
}

static fm_status add_config(fm_view *v, const adp_place *place, const fm_view_opts *opts)
{
    static const char name[] = "adapter_config.json";
    char path[128];
    fm_json *stored = NULL, *filled = NULL;
    fm_status rc = adp_config(&stored, v->tree, v->p, place);

    if (rc == FM_OK && strcmp(place->kind, "lora") == 0 && !fm_json_get(stored, "peft_version"))
        rc = filled_config(&filled, stored);
    fm_json *config = filled ? filled : stored;
    FM_THEN(rc, set_text(config, "base_model_name_or_path", opts->base_name));
    FM_THEN(rc, set_text(config, "revision", opts->base_revision));
    if (rc == FM_OK && (filled || opts->base_name || opts->base_revision)) {
        rc = exp_add_json(v, name, config, "");
    } else if (rc == FM_OK) {
        snprintf(path, sizeof path, "%s/%s", place->dir, name);
        const fm_entry *e = fm_tree_find(v->tree, path);
        rc = exp_add_file(v, name);
        FM_THEN(rc, exp_add_entry(v, e, 0, e->bytes));
    }
    fm_json_free(filled);
    fm_json_free(stored);
    return rc;
}

static fm_status add_tensors(fm_view *v, const adp_place *place, fm_dtype dtype)
{
    char prefix[96];
    size_t begin, end;

    snprintf(prefix, sizeof prefix, "%s/tensors/", place->dir);
    fm_tree_range(v->tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(v->tree, i);
        if (e->kind == FM_ENTRY_TENSOR)
            FM_TRY(exp_plan_add(&v->plan, e->name, e));
    }
    if (v->plan.count == 0)
        return fm_fail(FM_ECORRUPT, "%s holds no tensors", place->dir);
    FM_TRY(exp_plan_sizes(&v->plan, dtype));
    return exp_add_weights(v, "adapter_model.safetensors", v->plan.weight, v->plan.count);
}

fm_status exp_peft(fm_view *v, const fm_view_opts *opts)
{
    adp_place *place = NULL;
    size_t count = 0;
    fm_status rc = adp_list(&place, &count, v->tree);

    if (rc == FM_OK && count == 0)
        rc = fm_fail(FM_EUNSUPPORTED, "this version holds no adapter; export it with --format hf");
    FM_THEN(rc, add_config(v, &place[count - 1], opts));
    FM_THEN(rc, add_tensors(v, &place[count - 1], opts->dtype));
    fm_free(place);
    return rc;
}
