/* adapter.c - applies a PEFT adapter to a parent, with every module and shape checked.
 *
 * A PEFT key is "base_model.model." + module + ".lora_A.weight" and the like; a key without such an
 * ending is a whole parameter (modules_to_save, biases) that replaces the base's. */
#include "store/adapt/adapt_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"
#include "store/scaled.h"

#define KEY_PREFIX "base_model.model."
/* Limits of the work of both files together: each pattern of a config is tried on each tensor. */
#define MAX_REGEX_TRIES 20000u
#define MAX_NAME_TRIES 1000000000u

/* ---- keys ---- */

static bool cut_suffix(char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    if (n <= m || strcmp(s + n - m, suffix) != 0)
        return false;
    s[n - m] = '\0';
    return true;
}

/* PEFT wraps modules that it adapts: a bias or an embedding that it saves with the factors is
 * called "lm_head.base_layer.weight" and means "lm_head.weight". */
static void unwrap(char *module)
{
    static const char wrapped[] = ".base_layer.";
    char *p = strstr(module, wrapped);

    if (p)
        memmove(p, p + sizeof wrapped - 2, strlen(p + sizeof wrapped - 2) + 1);
}

void adp_parse_key(adp_key *out, const char *name)
{
    static const struct {
        const char *suffix;
        adp_role role;
    } map[] = {{".lora_A.weight", ADP_LORA_A},
               {".lora_B.weight", ADP_LORA_B},
               {".lora_magnitude_vector", ADP_MAGNITUDE},
               {".lora_magnitude_vector.weight", ADP_MAGNITUDE},
               {".ia3_l", ADP_IA3},
               {".lora_embedding_A", ADP_OTHER},
               {".lora_embedding_B", ADP_OTHER}};
    size_t n = strlen(KEY_PREFIX);

    if (strncmp(name, KEY_PREFIX, n) == 0)
        name += n;
    snprintf(out->module, sizeof out->module, "%s", name);
    out->role = strcmp(name, "prompt_embeddings") == 0 ? ADP_PROMPT : ADP_SAVED;
    for (size_t i = 0; i < FM_ARRAY_LEN(map); i++)
        if (cut_suffix(out->module, map[i].suffix)) {
            out->role = map[i].role;
            return;
        }
    if (strstr(out->module, ".lora_") || strstr(out->module, ".trainable_tokens_delta"))
        out->role = ADP_OTHER;
    else
        unwrap(out->module);
}

static fm_status tensor_named(const fm_entry **out, const fm_tree *tree, const char *name)
{
    fm_buf path;

    fm_buf_init(&path, 0);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    *out = rc == FM_OK ? fm_tree_find(tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    return rc == FM_ENOMEM ? rc : FM_OK; /* a name without a path is absent */
}

fm_status adp_base_tensor(const fm_entry **out, const fm_tree *tree, const char *name)
{
    /* The class that PEFT names may put the text inside of a model with pictures, whose files have
     * other names, and a base model's files have none. */
    static const char *const prefix[] = {"model.language_model.", "language_model.model.", "model.",
                                         ""};
    static const char *const tied[] = {"model.embed_tokens.weight",
                                       "transformer.wte.weight",
                                       "wte.weight",
                                       "model.language_model.embed_tokens.weight",
                                       "language_model.model.embed_tokens.weight",
                                       "model.decoder.embed_tokens.weight",
                                       "embed_tokens.weight"};
    char other[FM_MAX_NAME_BYTES + 32];
    size_t own = 0;

    FM_TRY(tensor_named(out, tree, name));
    while (strncmp(name, prefix[own], strlen(prefix[own])) != 0)
        own++;
    for (size_t i = 0; !*out && prefix[own][0] && i < FM_ARRAY_LEN(prefix); i++) {
        (void)snprintf(other, sizeof other, "%s%s", prefix[i], name + strlen(prefix[own]));
        FM_TRY(tensor_named(out, tree, other));
    }
    for (size_t i = 0; !*out && strcmp(name, "lm_head.weight") == 0 && i < FM_ARRAY_LEN(tied); i++)
        FM_TRY(tensor_named(out, tree, tied[i]));
    return FM_OK;
}

/* ---- the adapters of a tree ---- */

/* "adapters/12-lora/..." */
static bool parse_place(adp_place *out, const char *path)
{
    const char *p = path + strlen("adapters/"), *slash = strchr(p, '/');
    uint32_t n = 0;

    if (!slash || (size_t)(slash - path) >= sizeof out->dir)
        return false;
    for (; *p >= '0' && *p <= '9' && n < FM_MAX_ADAPTERS; p++)
        n = n * 10 + (uint32_t)(*p - '0');
    if (p == path + strlen("adapters/") || *p != '-' || p + 1 == slash ||
        (size_t)(slash - p) > sizeof out->kind)
        return false;
    out->number = n;
    snprintf(out->kind, sizeof out->kind, "%.*s", (int)(slash - p - 1), p + 1);
    snprintf(out->dir, sizeof out->dir, "%.*s", (int)(slash - path), path);
    return true;
}

static int by_number(const void *a, const void *b)
{
    const adp_place *x = a, *y = b;

    return x->number < y->number ? -1 : x->number > y->number;
}

fm_status adp_list(adp_place **out, size_t *count, const fm_tree *tree)
{
    adp_place *list = NULL, place;
    size_t n = 0, cap = 0, begin, end;

    *out = NULL;
    *count = 0;
    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const char *path = fm_tree_at(tree, i)->path;
        if (!parse_place(&place, path)) {
            fm_free(list);
            return fm_fail(FM_ECORRUPT, "tree path '%s': must begin with adapters/<n>-<kind>/",
                           path);
        }
        if (n > 0 && strcmp(list[n - 1].dir, place.dir) == 0)
            continue;
        if (fm_grow(&list, &cap, n + 1, sizeof *list) < 0) {
            fm_free(list);
            return FM_ENOMEM;
        }
        list[n++] = place;
    }
    if (n > 1)
        qsort(list, n, sizeof *list, by_number);
    *out = list;
    *count = n;
    return FM_OK;
}

fm_status adp_config(fm_json **out, const fm_tree *tree, const fm_provider *p,
                     const adp_place *place)
{
    char path[128];
    const fm_entry *e;
    fm_buf text;
    fm_status rc;

    *out = NULL;
    snprintf(path, sizeof path, "%s/adapter_config.json", place->dir);
    e = fm_tree_find(tree, path);
    if (!e || (e->kind != FM_ENTRY_FILE && !p))
        return fm_fail(FM_ECORRUPT, "tree path '%s' is missing or larger than %u bytes", path,
                       FM_INLINE_MAX_BYTES);
    fm_buf_init(&text, 0);
    rc = fm_entry_read(&text, p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), path));
    fm_buf_release(&text);
    return rc;
}

/* ---- rank and scale ---- */

/* Matches a pattern against the end of a module's name, at a dot. */
static fm_status match_end(bool *found, const char *key, const char *field, const char *module)
{
    char what[96];
    fm_buf whole;

    fm_buf_init(&whole, 0);
    snprintf(what, sizeof what, "adapter_config.json: field '%s'", field);
    fm_buf_printf(&whole, "(.*\\.)?(%s)", key);
    fm_status rc = fm_pattern_matches(found, fm_buf_cstr(&whole), module, what);
    fm_buf_release(&whole);
    return rc;
}

/* PEFT matches a pattern against the end of the module's name, at a dot:
 * re.match(rf"(.*\.)?({key})$", module). It writes plain names itself. */
static fm_status match_pattern(const fm_json **out, const fm_json *config, const char *field,
                               const char *module)
{
    const fm_json *map = fm_json_get(config, field);
    size_t n = strlen(module);

    *out = NULL;
    for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it)) {
        const char *key = fm_json_iter_key(it);
        size_t m = strlen(key);
        if (fm_go_on() < 0)
            return FM_ECANCELLED;
        if (fm_pattern_is_regex(key)) {
            bool found = false;
            FM_TRY(match_end(&found, key, field, module));
            if (!*out && found)
                *out = fm_json_iter_value(it);
            continue;
        }
        if (!*out && m <= n && strcmp(module + n - m, key) == 0 &&
            (m == n || module[n - m - 1] == '.'))
            *out = fm_json_iter_value(it);
    }
    return FM_OK;
}

fm_status fm_lora_spec_of(fm_lora_spec *out, const fm_json *config, const char *module)
{
    const fm_json *rank = NULL, *alpha = NULL;
    int64_t r;
    double a;
    fm_status rc = match_pattern(&rank, config, "rank_pattern", module);

    memset(out, 0, sizeof *out);
    FM_THEN(rc, match_pattern(&alpha, config, "alpha_pattern", module));
    if (rc < 0)
        return rc;
    r = fm_json_int(rank ? rank : fm_json_get(config, "r"), 0);
    if (!alpha && !(alpha = fm_json_get(config, "lora_alpha")))
        alpha = fm_json_get(config, "alpha"); /* of LoHa and LoKr */
    a = fm_json_real(alpha, NAN);
    if (r < 1 || r > (int64_t)FM_MAX_LORA_RANK)
        return fm_fail(FM_EINVAL, "adapter_config.json: field 'r' of module '%s' must be 1 to %u",
                       module, FM_MAX_LORA_RANK);
    if (!(fabs(a) <= 1e9))
        return fm_fail(FM_EINVAL,
                       "adapter_config.json: field 'lora_alpha' of module '%s' must be "
                       "a number",
                       module);
    out->r = (uint32_t)r;
    const bool root = fm_json_bool(fm_json_get(config, "use_rslora"), false);
    out->scale = (float)(root ? a / sqrt((double)r) : a / (double)r);
    out->alpha = root ? a * sqrt((double)r) : a;
    return FM_OK;
}

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
