/* adapter.c - adapters/<n>-lora/ as PEFT writes them: low-rank terms on linear layers, and whole
 * modules that were trained beside them (modules_to_save).
 *
 * Keys are "base_model.model.<module>.lora_A.weight" and lora_B; any other tensor stands for a
 * parameter that it replaces. A setting that would change the result and is not computed here is
 * refused by name, as in arch.c; null, false and empty values mean "off" in PEFT's configs. */
#include "infer/model_bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/source.h"

#define PEFT_PREFIX "base_model.model."

/* Understood by fm_lora_spec_of or below, or without effect on a forward pass. */
static const char *const known_keys[] = {
    "peft_type",
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "target_modules",
    "modules_to_save",
    "bias",
    "base_model_name_or_path",
    "inference_mode",
    "init_lora_weights",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "revision",
    "task_type",
    "qalora_group_size",
    "auto_mapping",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "loftq_config",
    "ensure_weight_tying",
};

static bool is_off(const fm_json *v)
{
    switch (fm_json_typeof(v)) {
    case FM_JSON_NULL:
        return true;
    case FM_JSON_BOOL:
        return !fm_json_bool(v, true);
    case FM_JSON_ARRAY:
    case FM_JSON_OBJECT:
        return fm_json_count(v) == 0;
    case FM_JSON_STRING:
        return fm_json_str(v).len == 0;
    case FM_JSON_INT:
    case FM_JSON_REAL:
        break;
    }
    return false;
}

static bool is_known(const char *key)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(known_keys); i++)
        if (strcmp(known_keys[i], key) == 0)
            return true;
    return false;
}

static fm_status check_config(const fmi_binder *b, const fmi_adapter *a)
{
    const char *type = fm_json_cstr(fm_json_get(a->config, "peft_type"), "");
    if (strcmp(type, "LORA") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: peft_type '%s' is not supported, LORA is", a->what,
                       type);
    for (void *it = fm_json_iter(a->config); it; it = fm_json_next(a->config, it))
        if (!is_known(fm_json_iter_key(it)) && !is_off(fm_json_iter_value(it)))
            return fm_fail(FM_EUNSUPPORTED, "%s: adapter setting '%s' is not supported", a->what,
                           fm_json_iter_key(it));
    const char *bias = fm_json_cstr(fm_json_get(a->config, "bias"), "none");
    if (strcmp(bias, "none") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: bias '%s' is not supported, none is", a->what, bias);
    if (b->m->arch.tied && fm_json_bool(fm_json_get(a->config, "ensure_weight_tying"), false) &&
        !is_off(fm_json_get(a->config, "modules_to_save")))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: ensure_weight_tying with modules_to_save is not supported", a->what);
    return FM_OK;
}

/* ==== finding ==== */

/* Adapter n's entries are those under "adapters/<n>-"; all of one kind. */
static fm_status find_one(fmi_binder *b, uint32_t n, bool *there, size_t *seen)
{
    char prefix[64];
    size_t begin = 0, end = 0;
    (void)snprintf(prefix, sizeof(prefix), "adapters/%u-", n);
    fm_tree_range(b->tree, prefix, &begin, &end);
    *there = begin < end;
    *seen += end - begin;
    if (!*there)
        return FM_OK;
    if (n >= FMI_MAX_ADAPTERS)
        return fm_fail(FM_ELIMIT, "%s: more than %u adapters", b->what, FMI_MAX_ADAPTERS);
    fmi_adapter *a = &b->adapter[n];
    b->adapters = n + 1;
    (void)snprintf(a->what, sizeof(a->what), "%.200s: adapter %u", b->what, n);
    const char *kind = fm_tree_at(b->tree, begin)->path + strlen(prefix);
    size_t len = strcspn(kind, "/");
    if (len != 4 || memcmp(kind, "lora", 4) != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: kind '%.*s' is not supported, lora is", a->what,
                       (int)FM_MIN(len, (size_t)64), kind);
    (void)snprintf(prefix, sizeof(prefix), "adapters/%u-lora/tensors/", n);
    fm_tree_range(b->tree, prefix, &a->begin, &a->end);
    (void)snprintf(prefix, sizeof(prefix), "adapters/%u-lora/adapter_config.json", n);
    const fm_entry *e = fm_tree_find(b->tree, prefix);
    if (!e)
        return fm_fail(FM_ENOTFOUND, "%s: adapter_config.json is missing", a->what);
    fm_buf text;
    fm_buf_init(&text, 16u << 20);
    fm_status rc = fm_entry_read(&text, b->p, e);
    if (rc == FM_OK)
        rc = fm_json_parse(&a->config, fm_buf_span(&text), a->what);
    fm_buf_release(&text);
    return rc == FM_OK ? check_config(b, a) : rc;
}

/* "base_model.model.X": X, else NULL. */
static const char *module_of(const char *key)
{
    size_t n = sizeof(PEFT_PREFIX) - 1;
    return strncmp(key, PEFT_PREFIX, n) == 0 ? key + n : NULL;
}

typedef enum key_kind { KEY_A, KEY_B, KEY_REPLACES, KEY_UNKNOWN } key_kind;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static key_kind kind_of(const char *key)
{
    if (!module_of(key))
        return KEY_UNKNOWN;
    if (ends_with(key, ".lora_A.weight"))
        return KEY_A;
    if (ends_with(key, ".lora_B.weight"))
        return KEY_B;
    return strstr(key, ".lora_") ? KEY_UNKNOWN : KEY_REPLACES;
}

/* PEFT wraps what it adapts: "lm_head.base_layer.weight" stands for "lm_head.weight". */
static void unwrap(char *name)
{
    static const char wrapped[] = ".base_layer.";
    char *p = strstr(name, wrapped);
    if (p)
        memmove(p, p + sizeof(wrapped) - 2, strlen(p + sizeof(wrapped) - 2) + 1);
}

static fm_status find_replaced(fmi_binder *b, const fmi_adapter *a)
{
    for (size_t i = a->begin; i < a->end; i++) {
        const fm_entry *e = fm_tree_at(b->tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            return fm_fail(FM_ECORRUPT, "%s: %s is no tensor", a->what, e->path);
        key_kind kind = kind_of(e->name);
        if (kind == KEY_UNKNOWN)
            return fm_fail(FM_EUNSUPPORTED, "%s: tensor '%s' is not understood", a->what, e->name);
        if (kind != KEY_REPLACES)
            continue;
        char name[FM_MAX_NAME_BYTES + 1];
        (void)snprintf(name, sizeof(name), "%s", module_of(e->name));
        unwrap(name);
        union { /* the map holds plain pointers; entries are only read */
            const fm_entry *in;
            void *out;
        } value = {.in = e};
        fm_status rc = fm_map_put(b->replaced, name, strlen(name), value.out, NULL);
        if (rc != FM_OK)
            return rc;
    }
    return FM_OK;
}

fm_status fmi_adapters_find(fmi_binder *b)
{
    size_t begin = 0, end = 0, seen = 0;
    fm_tree_range(b->tree, "adapters/", &begin, &end);
    bool there = begin < end;
    for (uint32_t n = 0; there; n++) {
        fm_status rc = find_one(b, n, &there, &seen);
        if (rc == FM_OK && there)
            rc = find_replaced(b, &b->adapter[n]);
        if (rc != FM_OK)
            return rc;
    }
    if (seen != end - begin)
        return fm_fail(FM_ECORRUPT, "%s: adapters are not numbered 0, 1, ...", b->what);
    return FM_OK;
}

void fmi_adapters_release(fmi_binder *b)
{
    for (uint32_t i = 0; i < b->adapters; i++)
        fm_json_free(b->adapter[i].config);
}

/* ==== binding ==== */

/* The linear layer that PEFT's module name means; NULL: there is none that takes a LoRA. */
static fm_linear *linear_of(fm_model *m, const char *module)
{
    const char *head = "model.layers.";
    if (strcmp(module, "lm_head") == 0)
        return &m->head;
    if (strncmp(module, head, strlen(head)) != 0)
        return NULL;
    const char *digits = module + strlen(head);
    char *rest = NULL;
    unsigned long layer = strtoul(digits, &rest, 10);
    if (digits[0] < '0' || digits[0] > '9' || *rest != '.' || layer >= m->arch.layers)
        return NULL;
    fm_linear *lin = fmi_linear_named(m, (uint32_t)layer, rest + 1);
    return lin && !strchr(strchr(rest + 1, '.') + 1, '.') ? lin : NULL;
}

/* The lora_B of a lora_A: NULL where there is none. */
static fm_status partner_of(const fm_entry **out, const fm_tree *tree, uint32_t adapter,
                            const char *key)
{
    char prefix[64], name[FM_MAX_NAME_BYTES];
    size_t n = strlen(key) - strlen("A.weight");
    fm_buf path;
    *out = NULL;
    (void)snprintf(prefix, sizeof(prefix), "adapters/%u-lora/tensors", adapter);
    (void)snprintf(name, sizeof(name), "%.*sB.weight", (int)n, key);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, prefix, name);
    if (rc == FM_OK)
        *out = fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return rc;
}

static fm_status check_factors(const fmi_adapter *a, const char *module, const fm_linear *lin,
                               const fm_entry *ea, const fm_entry *eb, uint32_t r)
{
    const fm_shape *sa = &ea->shape, *sb = &eb->shape;
    if (sa->rank == 2 && sb->rank == 2 && sa->dim[0] == r && sa->dim[1] == lin->in &&
        sb->dim[0] == lin->out && sb->dim[1] == r)
        return FM_OK;
    char ta[96], tb[96];
    fm_shape_text(sa, ta, sizeof(ta));
    fm_shape_text(sb, tb, sizeof(tb));
    return fm_fail(FM_EBASE, "%s: '%s': A %s and B %s do not fit [%u, %u] at rank %u", a->what,
                   module, ta, tb, lin->out, lin->in, r);
}

static fm_status add_term(fm_linear *lin, const fm_lora_term *term)
{
    fm_lora_term *all = fm_realloc(lin->lora, (lin->lora_count + 1) * sizeof(*all));
    if (!all)
        return FM_ENOMEM;
    lin->lora = all;
    all[lin->lora_count++] = *term;
    return FM_OK;
}

static fm_status digest_term(fm_hasher *h, const char *module, const fmi_cached *a,
                             const fmi_cached *b, float scale)
{
    uint32_t bits;
    uint8_t le[4];
    memcpy(&bits, &scale, sizeof(bits));
    fm_put_u32(le, bits);
    fm_status rc = fm_hasher_update(h, module, strlen(module) + 1);
    if (rc == FM_OK)
        rc = fm_hasher_update(h, a->id.b, sizeof(a->id.b));
    if (rc == FM_OK)
        rc = fm_hasher_update(h, b->id.b, sizeof(b->id.b));
    return rc == FM_OK ? fm_hasher_update(h, le, sizeof(le)) : rc;
}

static fm_status bind_term(fmi_binder *b, uint32_t n, const fm_entry *ea, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    const char *full = module_of(ea->name);
    char module[FM_MAX_NAME_BYTES];
    size_t len = strlen(full) - strlen(".lora_A.weight");
    if (len >= sizeof(module))
        return fm_fail(FM_ELIMIT, "%s: a module name of %zu bytes", a->what, len);
    memcpy(module, full, len);
    module[len] = '\0';
    fm_linear *lin = linear_of(b->m, module);
    if (!lin)
        return fm_fail(FM_EBASE, "%s: module '%s' is no linear layer of this %s", a->what, module,
                       b->m->arch.family);
    const fm_entry *eb = NULL;
    fm_lora_spec spec = {0};
    fm_status rc = partner_of(&eb, b->tree, n, ea->name);
    if (rc == FM_OK && !eb)
        rc = fm_fail(FM_ECORRUPT, "%s: '%s' has lora_A but no lora_B", a->what, module);
    if (rc == FM_OK)
        rc = fm_lora_spec_of(&spec, a->config, module);
    if (rc == FM_OK)
        rc = check_factors(a, module, lin, ea, eb, spec.r);
    fmi_cached *ca = NULL, *cb = NULL;
    if (rc == FM_OK)
        rc = fmi_hold(b, &ca, ea, FMI_LORA_A);
    if (rc == FM_OK)
        rc = fmi_hold(b, &cb, eb, FMI_LORA_B);
    if (rc == FM_OK)
        rc = digest_term(digest, module, ca, cb, spec.scale);
    if (rc != FM_OK)
        return rc;
    fm_lora_term term = {.a = ca->w, .b = cb->w, .r = spec.r, .scale = spec.scale, .adapter = n};
    return add_term(lin, &term);
}

fm_status fmi_adapters_bind(fmi_binder *b, fm_hasher *digest)
{
    for (uint32_t n = 0; n < b->adapters; n++) {
        const fmi_adapter *a = &b->adapter[n];
        size_t as = 0, bs = 0;
        for (size_t i = a->begin; i < a->end; i++) {
            const fm_entry *e = fm_tree_at(b->tree, i);
            key_kind kind = kind_of(e->name);
            as += kind == KEY_A;
            bs += kind == KEY_B;
            fm_status rc = kind == KEY_A ? bind_term(b, n, e, digest) : FM_OK;
            if (rc != FM_OK)
                return rc;
        }
        if (as != bs)
            return fm_fail(FM_ECORRUPT, "%s: a lora_B without its lora_A", a->what);
    }
    return FM_OK;
}
