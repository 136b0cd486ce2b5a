/* plan.c - which weights an export writes and what each is made of: the base's tensor, or one that
 * an adapter saved whole, plus low-rank terms. */
#include "store/export/export_impl.h"

#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

void exp_plan_free(exp_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        fm_free(plan->weight[i].name);
        fm_free(plan->weight[i].term);
    }
    fm_free(plan->weight);
    memset(plan, 0, sizeof *plan);
}

fm_status exp_plan_add(exp_plan *plan, const char *name, const fm_entry *base)
{
    exp_weight w = {.base = base};
    FM_TRY(fm_grow(&plan->weight, &plan->cap, plan->count + 1, sizeof w));
    w.name = fm_strdup(name);
    if (!w.name)
        return FM_ENOMEM;
    plan->weight[plan->count++] = w;
    return FM_OK;
}

/* Finds the weight of that name; a tied lm_head that an adapter changes becomes its own weight. */
static fm_status find_weight(exp_weight **out, exp_plan *plan, const fm_tree *tree,
                             const char *name, const fm_entry *e)
{
    const fm_entry *base;
    fm_status rc;

    for (size_t i = 0; i < plan->count; i++)
        if (strcmp(plan->weight[i].name, name) == 0) {
            *out = &plan->weight[i];
            return FM_OK;
        }
    FM_TRY(adp_base_tensor(&base, tree, name));
    if (!base)
        return fm_fail(FM_EBASE, "adapter tensor '%s': the model has no '%s'", e->name, name);
    for (size_t i = 0; strcmp(name, "lm_head.weight") != 0 && i < plan->count; i++)
        if (strcmp(plan->weight[i].name, base->name) == 0) { /* under the file's prefix */
            *out = &plan->weight[i];
            return FM_OK;
        }
    rc = exp_plan_add(plan, name, base);
    plan->unties = true;
    *out = rc == FM_OK ? &plan->weight[plan->count - 1] : NULL;
    return rc;
}

/* ---- low-rank terms ---- */

/* Refuses settings by which the result is not W + scale * B A. */
static fm_status check_plain(const adp_place *place, const fm_json *config)
{
    if (strcmp(place->kind, "lora") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: an adapter of kind '%s' cannot be merged into the "
                       "weights; export it with --format peft",
                       place->dir, place->kind);
    FM_TRY(fm_adapter_config_check(config, place->kind, place->dir));
    if (fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s/adapter_config.json: field 'fan_in_fan_out' is set; such an "
                       "adapter cannot be merged, export it with --format peft",
                       place->dir);
    return FM_OK;
}

/* Adds a term; e is its lora_A, whose lora_B has the same path but for the letter. */
static fm_status add_term(exp_plan *plan, const fm_tree *tree, const fm_entry *e,
                          const adp_key *key, const fm_json *config)
{
    char weight[FM_MAX_NAME_BYTES + 16];
    exp_term term = {e, NULL, 0};
    exp_weight *w = NULL;
    fm_lora_spec spec;
    char *other = fm_strdup(e->path), *p = other ? strstr(other, "/lora_A") : NULL;
    fm_status rc = other ? fm_lora_spec_of(&spec, config, key->module) : FM_ENOMEM;

    if (p)
        p[6] = 'B';
    term.b = p ? fm_tree_find(tree, other) : NULL;
    fm_free(other);
    if (rc < 0)
        return rc;
    if (!term.b)
        return fm_fail(FM_EBASE, "adapter tensor '%s' has no partner lora_B", e->name);
    term.scale = spec.scale;
    snprintf(weight, sizeof weight, "%s.weight", key->module);
    FM_TRY(find_weight(&w, plan, tree, weight, e));
    const fm_shape *s = &w->base->shape, *a = &e->shape, *b = &term.b->shape;
    if (s->rank != 2 || a->rank != 2 || b->rank != 2 || a->dim[0] != spec.r ||
        a->dim[1] != s->dim[1] || b->dim[0] != s->dim[0] || b->dim[1] != spec.r)
        return fm_fail(FM_EBASE, "adapter tensor '%s' does not fit '%s'", e->name, weight);
    rc = fm_grow(&w->term, &w->term_cap, w->term_count + 1, sizeof term);
    if (rc == FM_OK)
        w->term[w->term_count++] = term;
    return rc;
}

/* Where an adapter of a tied model saved the embedding alone, the head stays as it was, as in
 * PEFT's own merge, and needs a weight of its own. */
static fm_status keep_head(exp_plan *plan, const fm_tree *tree, const adp_key *key,
                           const fm_entry *e)
{
    const fm_entry *old = NULL;
    exp_weight *head;

    if (strcmp(key->module, "model.embed_tokens.weight") == 0)
        FM_TRY(adp_base_tensor(&old, tree, key->module));
    if (!old || fm_digest_eq(&old->id, &e->id))
        return FM_OK;
    return find_weight(&head, plan, tree, "lm_head.weight", e);
}

static fm_status add_adapter_tensor(exp_plan *plan, const fm_tree *tree, const fm_entry *e,
                                    const fm_json *config, bool saved_pass)
{
    adp_key key;
    exp_weight *w = NULL;
    fm_status rc;

    adp_parse_key(&key, e->name);
    if ((key.role == ADP_SAVED) != saved_pass)
        return FM_OK;
    if (key.role == ADP_LORA_B)
        return adp_check_pair(tree, e);
    if (key.role == ADP_LORA_A)
        return add_term(plan, tree, e, &key, config);
    if (key.role != ADP_SAVED)
        return fm_fail(FM_EUNSUPPORTED, "adapter tensor '%s' cannot be merged", e->name);
    rc = keep_head(plan, tree, &key, e);
    FM_THEN(rc, find_weight(&w, plan, tree, key.module, e));
    if (rc == FM_EBASE) /* a classifier's score: the merged model would have another class */
        return fm_fail(FM_EUNSUPPORTED,
                       "adapter tensor '%s': is a head that the model has not; such an adapter "
                       "cannot be merged, export it with --format peft",
                       e->name);
    if (rc < 0)
        return rc;
    if (!fm_shape_eq(&w->base->shape, &e->shape))
        return fm_fail(FM_EBASE, "adapter tensor '%s' does not fit '%s'", e->name, key.module);
    w->base = e; /* replaces the base's tensor and terms added before */
    w->term_count = 0;
    return FM_OK;
}

static fm_status add_adapter(exp_plan *plan, const fm_tree *tree, const fm_provider *p,
                             const adp_place *place)
{
    char prefix[96];
    fm_json *config = NULL;
    size_t begin, end;
    fm_status rc = adp_config(&config, tree, p, place);

    FM_THEN(rc, check_plain(place, config));
    snprintf(prefix, sizeof prefix, "%s/tensors/", place->dir);
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++)
        rc = fm_entry_check_name(fm_tree_at(tree, i));
    for (int pass = 0; pass < 2; pass++) /* whole parameters first, then terms */
        for (size_t i = begin; rc == FM_OK && i < end; i++)
            if (fm_tree_at(tree, i)->kind == FM_ENTRY_TENSOR)
                rc = add_adapter_tensor(plan, tree, fm_tree_at(tree, i), config, pass == 0);
    fm_json_free(config);
    return rc;
}

static fm_status add_base(exp_plan *plan, const fm_tree *tree)
{
    size_t begin, end;

    fm_tree_range(tree, "tensors/", &begin, &end);
    if (begin == end)
        return fm_fail(FM_EUNSUPPORTED, "this version holds no model, only an adapter or data");
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            return fm_fail(FM_ECORRUPT, "tree path '%s' is no tensor", e->path);
        FM_TRY(fm_entry_check_name(e));
        FM_TRY(exp_plan_add(plan, e->name, e));
    }
    return FM_OK;
}

/* The dtype to write a tensor in: `wanted`, or `stored` where that is NONE or does not apply. */
static fm_dtype dtype_of(fm_dtype stored, fm_dtype wanted)
{
    const fm_dtype_info *info = fm_dtype_get(stored);

    if (!info->is_float)
        return stored;
    if (wanted != FM_DTYPE_NONE)
        return wanted;
    return info->is_block ? FM_F32 : stored;
}

fm_status exp_plan_sizes(exp_plan *plan, fm_dtype dtype)
{
    for (size_t i = 0; i < plan->count; i++) {
        exp_weight *w = &plan->weight[i];
        w->dtype = dtype_of(w->base->dtype, dtype);
        FM_TRY(fm_tensor_bytes(&w->bytes, w->dtype, &w->base->shape, w->name));
    }
    return FM_OK;
}

fm_status exp_plan_make(exp_plan *out, const fm_tree *tree, const fm_provider *p, fm_dtype dtype)
{
    adp_place *place = NULL;
    size_t count = 0;
    fm_status rc;

    memset(out, 0, sizeof *out);
    rc = add_base(out, tree);
    FM_THEN(rc, adp_list(&place, &count, tree));
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = add_adapter(out, tree, p, &place[i]);
    FM_THEN(rc, exp_plan_sizes(out, dtype));
    fm_free(place);
    if (rc < 0)
        exp_plan_free(out);
    return rc;
}
