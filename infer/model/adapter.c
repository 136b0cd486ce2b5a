/* adapter.c - adapters/<n>-<kind>/ as PEFT writes them: finding them, their configs, the meaning of
 * their tensors. adapter_kinds.c applies the tensors to the model.
 *
 * Keys are "base_model.model.<module>.lora_A.weight", lora_B, lora_embedding_A, lora_embedding_B,
 * lora_magnitude_vector, ia3_l, or "prompt_embeddings"; any other tensor stands for a parameter
 * that it replaces (modules_to_save, trained biases). What other kinds of PEFT do is part of the
 * weights that come here (store/adapted.h). A setting that would change the result and is
 * not computed here is refused by name, as in arch/arch.c (store/adapt/adapter_config.c). */
#include "infer/model/model_bind.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/source.h"

/* The folders' names. */
static const char *const kinds[FMI_ADAPTER_KINDS] = {
    [FMI_LORA] = "lora",     [FMI_DORA] = "dora",     [FMI_IA3] = "ia3",
    [FMI_PREFIX] = "prefix", [FMI_PROMPT] = "prompt",
};

static fm_status check_config(const fmi_binder *b, const fmi_adapter *a)
{
    const fm_json *saved = fm_json_get(a->config, "modules_to_save");
    FM_TRY(fm_adapter_config_check(a->config, kinds[a->kind], a->what));
    if (b->m->arch.tied && fm_json_bool(fm_json_get(a->config, "ensure_weight_tying"), false) &&
        fm_json_count(saved) > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: ensure_weight_tying with modules_to_save is not supported", a->what);
    return FM_OK;
}

/* ==== finding ==== */

/* The kind of a folder's name; one that the view of store/adapted.h left as it is does not run. */
static fm_status find_kind(fmi_adapter *a, const char *kind)
{
    for (int k = 0; k < FMI_ADAPTER_KINDS; k++)
        if (strcmp(kinds[k], kind) == 0) {
            a->kind = (fmi_adapter_kind)k;
            return FM_OK;
        }
    FM_TRY(fm_adapter_config_check(a->config, kind, a->what)); /* names the setting */
    return fm_fail(FM_EUNSUPPORTED, "%s: kind '%s' is not supported", a->what, kind);
}

static fm_status read_config(fmi_binder *b, fmi_adapter *a, const char *path)
{
    const fm_entry *e = fm_tree_find(b->tree, path);
    if (!e)
        return fm_fail(FM_ENOTFOUND, "%s: adapter_config.json is missing", a->what);
    fm_buf text;
    fm_buf_init(&text, 16u << 20);
    fm_status rc = fm_entry_read(&text, b->p, e);
    FM_THEN(rc, fm_json_parse(&a->config, fm_buf_span(&text), a->what));
    fm_buf_release(&text);
    return rc;
}

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
    const char *folder = fm_tree_at(b->tree, begin)->path + strlen(prefix);
    char kind[64], path[160];
    (void)snprintf(kind, sizeof(kind), "%.*s", (int)FM_MIN(strcspn(folder, "/"), (size_t)48),
                   folder);
    (void)snprintf(path, sizeof(path), "adapters/%u-%s/tensors/", n, kind);
    fm_tree_range(b->tree, path, &a->begin, &a->end);
    (void)snprintf(path, sizeof(path), "adapters/%u-%s/adapter_config.json", n, kind);
    FM_TRY(read_config(b, a, path));
    FM_TRY(find_kind(a, kind));
    return check_config(b, a);
}

typedef enum key_kind {
    KEY_UNKNOWN,
    KEY_A,
    KEY_B,
    KEY_BIAS,
    KEY_EMBED_A,
    KEY_EMBED_B,
    KEY_MAGNITUDE,
    KEY_IA3,
    KEY_VIRTUAL,
    KEY_REPLACES
} key_kind;

/* KEY_UNKNOWN: not in an adapter of this kind. */
static key_kind kind_of(const fmi_adapter *a, const char *key)
{
    bool lora = a->kind == FMI_LORA || a->kind == FMI_DORA;
    if (a->kind == FMI_PREFIX || a->kind == FMI_PROMPT)
        return strcmp(key, "prompt_embeddings") == 0 ? KEY_VIRTUAL : KEY_UNKNOWN;
    if (!fmi_module_of(key))
        return KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_A.weight"))
        return lora ? KEY_A : KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_B.weight"))
        return lora ? KEY_B : KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_B.bias"))
        return a->kind == FMI_LORA ? KEY_BIAS : KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_embedding_A"))
        return a->kind == FMI_LORA ? KEY_EMBED_A : KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_embedding_B"))
        return a->kind == FMI_LORA ? KEY_EMBED_B : KEY_UNKNOWN;
    if (fm_ends_with(key, ".lora_magnitude_vector") ||
        fm_ends_with(key, ".lora_magnitude_vector.weight"))
        return a->kind == FMI_DORA ? KEY_MAGNITUDE : KEY_UNKNOWN;
    if (fm_ends_with(key, ".ia3_l"))
        return a->kind == FMI_IA3 ? KEY_IA3 : KEY_UNKNOWN;
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
        key_kind kind = kind_of(a, e->name);
        if (kind == KEY_UNKNOWN)
            return fm_fail(FM_EUNSUPPORTED, "%s: tensor '%s' is not understood", a->what, e->name);
        if (kind != KEY_REPLACES)
            continue;
        char name[FM_MAX_NAME_BYTES + 1];
        (void)snprintf(name, sizeof(name), "%s", fmi_module_of(e->name));
        unwrap(name);
        union { /* the map holds plain pointers; entries are only read */
            const fm_entry *in;
            void *out;
        } value = {.in = e};
        FM_TRY(fm_map_put(b->replaced, name, strlen(name), value.out, NULL));
    }
    return FM_OK;
}

fm_status fmi_adapters_find(fmi_binder *b)
{
    size_t begin = 0, end = 0, seen = 0;
    fm_tree_range(b->tree, "adapters/", &begin, &end);
    bool there = begin < end;
    for (uint32_t n = 0; there; n++) {
        FM_TRY(find_one(b, n, &there, &seen));
        if (there)
            FM_TRY(find_replaced(b, &b->adapter[n]));
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

/* Binds low-rank factors first: a magnitude needs the matrix that they make. */
fm_status fmi_adapters_bind(fmi_binder *b, fm_hasher *digest)
{
    static fm_status (*const bind[])(fmi_binder *, uint32_t, const fm_entry *, fm_hasher *) = {
        [KEY_A] = fmi_bind_lora,
        [KEY_BIAS] = fmi_bind_lora_bias,
        [KEY_EMBED_A] = fmi_bind_embedding,
        [KEY_MAGNITUDE] = fmi_bind_magnitude,
        [KEY_IA3] = fmi_bind_ia3,
        [KEY_VIRTUAL] = fmi_bind_virtual,
        [KEY_REPLACES] = NULL,
    };
    static const key_kind order[] = {KEY_A,         KEY_BIAS, KEY_EMBED_A,
                                     KEY_MAGNITUDE, KEY_IA3,  KEY_VIRTUAL};
    for (uint32_t n = 0; n < b->adapters; n++) {
        const fmi_adapter *a = &b->adapter[n];
        size_t count[KEY_REPLACES + 1] = {0};
        for (size_t i = a->begin; i < a->end; i++)
            count[kind_of(a, fm_tree_at(b->tree, i)->name)]++;
        for (size_t k = 0; k < FM_ARRAY_LEN(order); k++)
            for (size_t i = a->begin; i < a->end; i++) {
                const fm_entry *e = fm_tree_at(b->tree, i);
                if (kind_of(a, e->name) != order[k])
                    continue;
                FM_TRY(bind[order[k]](b, n, e, digest));
            }
        if (count[KEY_A] != count[KEY_B] || count[KEY_EMBED_A] != count[KEY_EMBED_B])
            return fm_fail(FM_ECORRUPT, "%s: a lora_B without its lora_A", a->what);
        if (a->kind == FMI_DORA && count[KEY_A] != count[KEY_MAGNITUDE])
            return fm_fail(FM_ECORRUPT, "%s: %zu lora_A but %zu lora_magnitude_vector", a->what,
                           count[KEY_A], count[KEY_MAGNITUDE]);
    }
    return FM_OK;
}
