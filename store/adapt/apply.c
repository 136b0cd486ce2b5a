/* apply.c - lays a PEFT adapter on a parent, with every module and shape checked. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"
#include "store/scaled.h"

/* Limits of the work of both files together: each pattern of a config is tried on each tensor. */
#define MAX_REGEX_TRIES 20000u
#define MAX_NAME_TRIES 1000000000u

/* ---- fit ---- */

static fm_status misfit(const fm_entry *e, const fm_shape *base, const char *what)
{
    char have[160], want[160];

    fm_shape_text(&e->shape, have, sizeof have);
    fm_shape_text(base, want, sizeof want);
    return fm_fail(FM_EBASE, "adapter tensor '%s' of shape %s does not fit the parent's %s %s",
                   e->name, have, what, want);
}

static fm_status fit_lora(const fm_entry *e, const adp_key *key, const fm_entry *base,
                          const fm_json *config)
{
    fm_lora_spec spec;
    bool turned = fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false);
    FM_TRY(fm_lora_spec_of(&spec, config, key->module));
    if (base->shape.rank != 2 || e->shape.rank != 2)
        return misfit(e, &base->shape, "weight");
    const uint64_t in = base->shape.dim[turned ? 0 : 1], out = base->shape.dim[turned ? 1 : 0];
    const fm_shape want =
        key->role == ADP_LORA_A ? (fm_shape){2, {spec.r, in}} : (fm_shape){2, {out, spec.r}};
    return fm_shape_eq(&e->shape, &want) ? FM_OK : misfit(e, &want, "weight, which needs");
}

/* Compares the number of elements only: IA3 writes [1, in] or [out, 1], DoRA [out]. */
static fm_status fit_vector(const fm_entry *e, const adp_key *key, const fm_entry *base,
                            const fm_json *config)
{
    bool turned = fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false);
    uint64_t n = 0;
    FM_TRY(fm_shape_elems(&n, &e->shape));
    if (base->shape.rank != 2)
        return misfit(e, &base->shape, "weight");
    const uint64_t in = base->shape.dim[turned ? 0 : 1], out = base->shape.dim[turned ? 1 : 0];
    if (n != out && !(key->role == ADP_IA3 && n == in))
        return misfit(e, &base->shape, "weight");
    return FM_OK;
}

static fm_status fit_one(const fm_tree *parent, const fm_entry *e, const fm_json *config)
{
    adp_key key;
    char weight[FM_MAX_NAME_BYTES + 16];
    const fm_entry *base;

    adp_parse_key(&key, e->name);
    if (key.role == ADP_PROMPT || key.role == ADP_OTHER)
        return FM_OK;
    snprintf(weight, sizeof weight, "%s%s", key.module, key.role == ADP_SAVED ? "" : ".weight");
    FM_TRY(adp_base_tensor(&base, parent, weight));
    if (!base)
        return fm_fail(FM_EBASE, "adapter tensor '%s': the parent has no '%s'", e->name, weight);
    if (key.role == ADP_SAVED)
        return fm_shape_eq(&e->shape, &base->shape) ? FM_OK : misfit(e, &base->shape, "parameter");
    if (key.role == ADP_LORA_A || key.role == ADP_LORA_B)
        return fit_lora(e, &key, base, config);
    return fit_vector(e, &key, base, config);
}

fm_status adp_check_pair(const fm_tree *adapter, const fm_entry *e)
{
    char *other, *p;
    bool whole = true;
    adp_key key;

    adp_parse_key(&key, e->name);
    if (key.role != ADP_LORA_A && key.role != ADP_LORA_B)
        return FM_OK;
    other = fm_strdup(e->path);
    p = other ? strstr(other, "/lora_") : NULL;

    if (!other)
        return FM_ENOMEM;
    if (p && (p[6] == 'A' || p[6] == 'B') && p[7] == '.') {
        p[6] = p[6] == 'A' ? 'B' : 'A';
        whole = fm_tree_find(adapter, other) != NULL;
    }
    fm_free(other);
    return whole ? FM_OK : fm_fail(FM_EBASE, "adapter tensor '%s' has no partner", e->name);
}

static fm_status check_patterns(const fm_json *config, size_t tensors)
{
    static const char *const field[] = {"rank_pattern", "alpha_pattern"};

    for (size_t i = 0; i < FM_ARRAY_LEN(field); i++) {
        const fm_json *map = fm_json_get(config, field[i]);
        size_t regexes = 0, all = fm_json_count(map);
        for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it))
            regexes += fm_pattern_is_regex(fm_json_iter_key(it));
        if (regexes * tensors > MAX_REGEX_TRIES || all * tensors > MAX_NAME_TRIES)
            return fm_fail(FM_ELIMIT,
                           "adapter_config.json: field '%s' has %zu patterns, %zu of them regular "
                           "expressions, for %zu tensors, which is too many; write plain names",
                           field[i], all, regexes, tensors);
    }
    return FM_OK;
}

static fm_status check_fit(const fm_tree *parent, const fm_tree *adapter, const adp_place *from,
                           const fm_json *config)
{
    size_t begin, end;
    fm_status rc = fm_adapter_config_check(config, from->kind, from->dir);

    if (rc == FM_EUNSUPPORTED) { /* it is kept and does not run: what its tensors mean is unknown */
        fm_error_clear();
        return FM_OK;
    }
    FM_TRY(rc);
    if (!adt_native(from->kind))
        return FM_OK; /* adt_plan_make compares its tensors with their modules */
    fm_tree_range(adapter, from->dir, &begin, &end);
    FM_TRY(check_patterns(config, end - begin));
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(adapter, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        FM_TRY(fit_one(parent, e, config));
        FM_TRY(adp_check_pair(adapter, e));
    }
    return FM_OK;
}

/* ---- laying it on ---- */

static fm_status put_moved(fm_tree *tree, const fm_entry *e, const char *from, const char *to)
{
    fm_entry moved = *e;
    fm_status rc;

    moved.path = fm_asprintf("%s%s", to, e->path + strlen(from));
    if (!moved.path)
        return FM_ENOMEM;
    rc = fm_tree_put_entry(tree, &moved);
    fm_free(moved.path);
    return rc;
}

static fm_status replace_source(fm_tree *tree, const fm_tree *adapter, const char *root)
{
    size_t begin, end;
    fm_status rc = FM_OK;

    fm_tree_range(tree, "source/", &begin, &end);
    for (size_t i = end; rc == FM_OK && i > begin; i--)
        rc = fm_tree_remove(tree, fm_tree_at(tree, i - 1)->path);
    fm_tree_range(adapter, "source/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++)
        rc = fm_tree_put_entry(tree, fm_tree_at(adapter, i));
    if (rc == FM_OK && begin < end)
        rc = fm_tree_put_file(tree, "source/root", fm_span_str(root));
    return rc;
}

static fm_status warn_base(fm_buf *warning, const fm_json *config, const char *base_name)
{
    const char *made_for = fm_json_cstr(fm_json_get(config, "base_model_name_or_path"), NULL);

    if (!warning || !base_name || !made_for || !*made_for || strcmp(made_for, base_name) == 0)
        return FM_OK;
    fm_buf_printf(warning, "the adapter names its base '%s'; its shapes fit '%s'", made_for,
                  base_name);
    return fm_buf_ok(warning);
}

static fm_status apply(fm_tree *tree, const fm_tree *adapter, const adp_place *from,
                       uint32_t number)
{
    char to[80];
    size_t begin, end;

    snprintf(to, sizeof to, "adapters/%" PRIu32 "-%s", number, from->kind);
    fm_tree_range(adapter, from->dir, &begin, &end);
    for (size_t i = begin; i < end; i++)
        FM_TRY(put_moved(tree, fm_tree_at(adapter, i), from->dir, to));
    return replace_source(tree, adapter, to);
}

/* Compares what the adapter, the last of the tree, changes with the parent's weights. One that is
 * not computed here on such a parent is kept. */
static fm_status check_steps(const fm_tree *tree, size_t first, fm_buf *warning)
{
    adt_plan plan;
    fm_status rc = adt_plan_make(&plan, tree, NULL, first);
    adt_plan_free(&plan);
    if (rc != FM_EUNSUPPORTED)
        return rc;
    if (warning)
        fm_buf_printf(warning, "%skept, not run: %s", warning->len ? "; " : "", fm_error_text());
    fm_error_clear();
    return warning ? fm_buf_ok(warning) : FM_OK;
}

/* A config that is too long to lie in a tree cannot be read here; what runs the adapter checks. */
static bool config_is_long(const fm_tree *adapter, const adp_place *from)
{
    char path[128];
    snprintf(path, sizeof path, "%s/adapter_config.json", from->dir);
    const fm_entry *e = fm_tree_find(adapter, path);
    return e && e->kind == FM_ENTRY_BLOB;
}

/* shapes: the parent's tree with plain weights. */
static fm_status apply_by(fm_tree **out, const fm_tree *parent, const fm_tree *shapes,
                          const fm_tree *adapter, const char *base_name, fm_buf *warning)
{
    adp_place *from = NULL, *there = NULL;
    size_t from_count = 0, there_count = 0;
    fm_json *config = NULL;
    fm_tree *tree = NULL, *seen = NULL; /* seen: with plain weights */
    fm_status rc = adp_list(&from, &from_count, adapter);

    *out = NULL;
    if (rc == FM_OK && from_count != 1)
        rc = fm_fail(FM_EINVAL, "an adapter's own tree must hold one adapter, this holds %zu",
                     from_count);
    FM_THEN(rc, adp_list(&there, &there_count, parent));
    if (rc == FM_OK && there_count >= FM_MAX_ADAPTERS)
        rc = fm_fail(FM_ELIMIT, "the parent already holds %zu adapters", there_count);
    const bool shown = rc == FM_OK && !config_is_long(adapter, &from[0]);
    if (shown) {
        rc = adp_config(&config, adapter, NULL, &from[0]);
        FM_THEN(rc, check_fit(shapes, adapter, &from[0], config));
        FM_THEN(rc, warn_base(warning, config, base_name));
    }
    const uint32_t number = rc == FM_OK && there_count > 0 ? there[there_count - 1].number + 1 : 0;
    FM_THEN(rc, fm_tree_copy(&tree, parent));
    FM_THEN(rc, apply(tree, adapter, &from[0], number));
    FM_THEN(rc, fm_tree_copy(&seen, shapes));
    FM_THEN(rc, apply(seen, adapter, &from[0], number));
    if (rc == FM_OK && shown)
        rc = check_steps(seen, there_count, warning);
    fm_tree_free(seen);
    fm_json_free(config);
    fm_free(there);
    fm_free(from);
    if (rc < 0) {
        fm_tree_free(tree);
        return rc;
    }
    *out = tree;
    return FM_OK;
}

fm_status fm_adapter_apply(fm_tree **out, const fm_tree *parent, const fm_tree *adapter,
                           const char *base_name, fm_buf *warning)
{
    return apply_by(out, parent, parent, adapter, base_name, warning);
}

fm_status fm_adapter_apply_to(fm_tree **out, const fm_tree *parent, const fm_provider *p,
                              const fm_tree *adapter, const char *base_name, fm_buf *warning)
{
    fm_plain *plain = NULL;
    *out = NULL;
    FM_TRY(fm_plain_open(&plain, parent, p, "the parent"));
    fm_status rc = apply_by(out, parent, fm_plain_tree(plain), adapter, base_name, warning);
    fm_plain_close(plain);
    return rc;
}
