/* adapter.c - PEFT adapters in a tree: the names of their tensors, their configs, ranks and scales.
 *
 * A PEFT key is "base_model.model." + module + ".lora_A.weight" and the like; a key without such an
 * ending is a whole parameter (modules_to_save, biases) that replaces the base's. */
#include "store/adapt/adapter_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"

#define KEY_PREFIX "base_model.model."

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
                                         "backbone.", ""};
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
