/* adapter.c - LoRA: which modules, the seeded beginning, PEFT's config. */
#include "train/internal.h"

#include "store/base/mem.h"
#include "store/base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ADAPTER_CONFIG "adapter_config.json"
#define LORA_A ".lora_A.weight"
#define LORA_B ".lora_B.weight"

/* ---- the tree ---- */
const fm_entry *fmi_find_tensor(const fm_tree *tree, const char *name)
{
    fm_buf path;
    const fm_entry *e = NULL;

    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    if (fm_tensor_path(&path, "tensors", name) == FM_OK)
        e = fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return e && e->kind == FM_ENTRY_TENSOR ? e : NULL;
}

fm_status fmi_read_f32(float **out, const fm_provider *p, const fm_entry *e)
{
    uint64_t n = 0;
    void *raw = NULL;
    fm_status rc = fm_shape_elems(&n, &e->shape);

    *out = NULL;
    if (rc < 0)
        return rc;
    raw = fm_malloc((size_t)e->bytes);
    float *f = fm_malloc((size_t)n * sizeof(float));
    rc = raw && f ? p->read(p->ctx, e, raw) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_to_f32(f, e->dtype, raw, n);
    fm_free(raw);
    if (rc < 0) {
        fm_free(f);
        return rc;
    }
    *out = f;
    return FM_OK;
}

fm_status fmi_stream(uint64_t *out, const char *purpose, const char *name)
{
    fm_digest d;
    char *text = fm_asprintf("%s\n%s", purpose, name);

    *out = 0;
    if (!text)
        return FM_ENOMEM;
    fm_status rc = fm_sha256(&d, text, strlen(text));
    fm_free(text);
    if (rc == FM_OK)
        *out = fm_get_u64(d.b);
    return rc;
}

fm_status fmi_top_adapter(fm_buf *prefix, const fm_tree *tree)
{
    size_t begin = 0;
    size_t end = 0;
    int best = -1;

    fm_buf_clear(prefix);
    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const char *path = fm_tree_at(tree, i)->path + strlen("adapters/");
        const char *slash = strchr(path, '/');
        int number = 0;
        for (const char *c = path; *c >= '0' && *c <= '9' && number < 100000; c++)
            number = number * 10 + (*c - '0');
        if (!slash || number <= best)
            continue;
        best = number;
        fm_buf_clear(prefix);
        fm_buf_str(prefix, "adapters/");
        fm_buf_append(prefix, path, (size_t)(slash - path) + 1);
    }
    return fm_buf_ok(prefix);
}

fm_status fmi_tree_without(fm_tree **out, const fm_tree *tree, const char *prefix)
{
    const char *const drop[] = {prefix, "tokenizer/"};
    fm_status rc = fm_tree_copy(out, tree);

    for (size_t k = 0; k < FM_ARRAY_LEN(drop) && rc == FM_OK; k++) {
        size_t begin = 0;
        size_t end = 0;
        fm_tree_range(*out, drop[k], &begin, &end);
        while (end > begin && rc == FM_OK) {
            char *path = fm_strdup(fm_tree_at(*out, --end)->path);
            rc = path ? fm_tree_remove(*out, path) : FM_ENOMEM;
            fm_free(path);
        }
    }
    if (rc < 0) {
        fm_tree_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- which modules, from the config ---- */
static bool names_module(const char *module, const char *target, size_t len)
{
    size_t n = strlen(module);

    if (n < len || memcmp(module + n - len, target, len) != 0)
        return false;
    return n == len || module[n - len - 1] == '.';
}

static float scale_of(const fm_train_config *c)
{
    double r = c->rslora ? sqrt((double)c->r) : (double)c->r;
    return (float)(c->alpha / r);
}

/* The next name of a comma-separated list, spaces around it left out; NULL at the end. */
static const char *next_name(const char **at, size_t *len)
{
    while (**at == ',' || **at == ' ')
        (*at)++;
    const char *name = *at;
    *len = strcspn(name, ",");
    *at += *len;
    while (*len > 0 && name[*len - 1] == ' ')
        (*len)--;
    return *len > 0 ? name : NULL;
}

static fm_status check_target(fmi_net *net, const char *name, size_t len)
{
    fmi_linear *l;

    for (size_t i = 0; (l = fmi_net_linear(net, i)); i++)
        if (names_module(l->module, name, len))
            return FM_OK;
    return fm_fail(FM_EBASE,
                   "targets: the parent has no linear module '%.*s'; it has q_proj, k_proj, "
                   "v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head",
                   (int)len, name);
}

static bool is_target(const fmi_net *net, const fmi_linear *l, const char *targets)
{
    size_t len = 0;

    if (strcmp(targets, "all-linear") == 0)
        return l < net->outer || l >= net->outer + FMI_OUTER;
    for (const char *name; (name = next_name(&targets, &len));)
        if (names_module(l->module, name, len))
            return true;
    return false;
}

/* modules_to_save: whole copies of lm_head or embed_tokens train, under PEFT's names. */
static fm_status declare_saved(fmi_net *net, fmi_params *ps, const char *name, size_t len)
{
    fmi_linear *const whole[] = {&net->outer[FMI_EMBED], &net->outer[FMI_HEAD]};

    for (size_t i = 0; i < FM_ARRAY_LEN(whole); i++) {
        fmi_linear *l = whole[i];
        fm_shape shape = {.rank = 2, .dim = {l->out, l->in}};
        char own[FMI_MODULE_BYTES + 16];
        char as[FMI_MODULE_BYTES + 48];
        if (!names_module(l->module, name, len) || l->w_param >= 0)
            continue;
        (void)snprintf(own, sizeof(own), "%.159s.weight", l->module);
        (void)snprintf(as, sizeof(as), FMI_PEFT_PREFIX "%s", own);
        return fmi_net_train(net, ps, own, &shape, as);
    }
    return fm_fail(FM_EUNSUPPORTED, "modules_to_save: '%.*s' is none of lm_head, embed_tokens",
                   (int)len, name);
}

fm_status fmi_lora_declare(fmi_net *net, fmi_params *ps, const fm_train_config *c)
{
    fmi_linear *l;
    fm_status rc = FM_OK;
    const char *name;
    const char *at = c->targets;
    size_t len = 0;

    if (strcmp(c->targets, "all-linear") != 0)
        while (rc == FM_OK && (name = next_name(&at, &len)))
            rc = check_target(net, name, len);
    for (size_t i = 0; rc == FM_OK && (l = fmi_net_linear(net, i)); i++)
        if (is_target(net, l, c->targets))
            rc = fmi_net_train_lora(net, ps, l, c->r, scale_of(c));
    at = c->modules_to_save;
    while (rc == FM_OK && (name = next_name(&at, &len)))
        rc = declare_saved(net, ps, name, len);
    return rc;
}

/* ---- which modules, from an adapter that exists ---- */
static const char *ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s);
    size_t t = strlen(tail);
    return n > t && strcmp(s + n - t, tail) == 0 ? s + n - t : NULL;
}

static fmi_linear *module_of(fmi_net *net, const char *module, size_t len)
{
    fmi_linear *l;

    for (size_t i = 0; (l = fmi_net_linear(net, i)); i++)
        if (strlen(l->module) == len && memcmp(l->module, module, len) == 0)
            return l;
    return NULL;
}

static fm_status declare_entry(fmi_net *net, fmi_params *ps, const fm_json *config,
                               const fm_entry *e)
{
    const char *name = e->name;
    size_t skip = strlen(FMI_PEFT_PREFIX);

    if (strncmp(name, FMI_PEFT_PREFIX, skip) != 0)
        return fm_fail(FM_EUNSUPPORTED, "adapter tensor %s does not begin with " FMI_PEFT_PREFIX,
                       name);
    if (ends_with(name, LORA_B))
        return FM_OK;
    const char *tail = ends_with(name, LORA_A);
    if (!tail)
        return fmi_net_train(net, ps, name + skip, &e->shape, name);
    fmi_linear *l = module_of(net, name + skip, (size_t)(tail - name) - skip);
    fm_lora_spec spec;
    if (!l)
        return fm_fail(FM_EBASE, "%s: the parent has no such module", name);
    fm_status rc = fm_lora_spec_of(&spec, config, l->module);
    if (rc == FM_OK &&
        (e->shape.rank != 2 || e->shape.dim[0] != spec.r || e->shape.dim[1] != l->in))
        return fm_fail(FM_EBASE, "%s: its shape does not fit rank %u and input %u", name, spec.r,
                       l->in);
    return rc == FM_OK ? fmi_net_train_lora(net, ps, l, spec.r, spec.scale) : rc;
}

fm_status fmi_lora_declare_from(fmi_net *net, fmi_params *ps, const fm_tree *tree,
                                const char *prefix)
{
    char *path = fm_asprintf("%s" ADAPTER_CONFIG, prefix);
    const fm_entry *file = path ? fm_tree_find(tree, path) : NULL;
    fm_json *config = NULL;
    size_t begin = 0;
    size_t end = 0;
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && (!file || file->kind != FM_ENTRY_FILE))
        rc = fm_fail(FM_ENOTFOUND, "%s" ADAPTER_CONFIG " is missing", prefix);
    if (rc == FM_OK)
        rc = fm_json_parse(&config, fm_span_of(file->data, (size_t)file->bytes), path);
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end && rc == FM_OK; i++)
        if (fm_tree_at(tree, i)->kind == FM_ENTRY_TENSOR)
            rc = declare_entry(net, ps, config, fm_tree_at(tree, i));
    fm_json_free(config);
    fm_free(path);
    return rc;
}

/* ---- values ---- */
static const fm_entry *entry_named(const fm_tree *tree, const char *prefix, const char *name)
{
    size_t begin = 0;
    size_t end = 0;

    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_TENSOR && strcmp(e->name, name) == 0)
            return e;
    }
    return NULL;
}

fm_status fmi_params_load(fmi_params *ps, const fm_tree *tree, const fm_provider *p,
                          const char *prefix, bool need_all)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < ps->count && rc == FM_OK; i++) {
        const fm_entry *e = entry_named(tree, prefix, ps->item[i].name);
        float *host = NULL;
        if (!e && !need_all)
            continue;
        if (!e)
            return fm_fail(FM_EBASE, "%s is missing", ps->item[i].name);
        if (!fm_shape_eq(&e->shape, &ps->item[i].shape))
            return fm_fail(FM_EBASE, "%s has another shape than its module needs", e->name);
        rc = fmi_read_f32(&host, p, e);
        if (rc == FM_OK)
            rc = fmi_params_put(ps, (int32_t)i, host);
        fm_free(host);
    }
    return rc;
}

static fm_status init_a(fmi_params *ps, int32_t index, uint64_t seed)
{
    const fmi_param *p = &ps->item[index];
    double bound = 1.0 / sqrt((double)p->shape.dim[1]);
    uint64_t stream = 0;
    float *host = fm_malloc((size_t)p->n * sizeof(float));
    fm_status rc = host ? fmi_stream(&stream, "lora_A", p->name) : FM_ENOMEM;

    for (uint64_t i = 0; i < p->n && rc == FM_OK; i++)
        host[i] = (float)((2.0 * fm_rng_uniform(seed, stream, i) - 1.0) * bound);
    if (rc == FM_OK)
        rc = fmi_params_put(ps, index, host);
    fm_free(host);
    return rc;
}

/* What the highest adapter that has a tensor of this PEFT name put in the base's place. */
static const fm_entry *replaced_by_adapter(const fm_tree *parent, const char *name)
{
    const fm_entry *best = NULL;

    for (uint32_t n = 0;; n++) {
        char prefix[32];
        size_t begin = 0;
        size_t end = 0;
        (void)snprintf(prefix, sizeof(prefix), "adapters/%u-", n);
        fm_tree_range(parent, prefix, &begin, &end);
        if (begin == end)
            return best;
        const fm_entry *e = entry_named(parent, prefix, name);
        best = e ? e : best;
    }
}

/* A saved module begins as the weight that the parent computes with: its adapters', else its own; a
 * tied head as the base's embedding. */
static fm_status init_saved(fmi_params *ps, int32_t index, const fm_tree *parent,
                            const fm_provider *p)
{
    const char *name = ps->item[index].name + strlen(FMI_PEFT_PREFIX);
    const fm_entry *e = replaced_by_adapter(parent, ps->item[index].name);
    float *host = NULL;

    if (!e)
        e = fmi_find_tensor(parent, name);
    if (!e && strcmp(name, "lm_head.weight") == 0)
        e = fmi_find_tensor(parent, "model.embed_tokens.weight");
    if (!e)
        return fm_fail(FM_EBASE, "modules_to_save: the parent has no %s", name);
    fm_status rc = fmi_read_f32(&host, p, e);
    if (rc == FM_OK)
        rc = fmi_params_put(ps, index, host);
    fm_free(host);
    return rc;
}

fm_status fmi_lora_init(fmi_params *ps, const fm_train_config *c, const fm_tree *parent,
                        const fm_provider *p)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < ps->count && rc == FM_OK; i++) {
        if (ends_with(ps->item[i].name, LORA_A))
            rc = init_a(ps, (int32_t)i, c->seed);
        else if (!ends_with(ps->item[i].name, LORA_B))
            rc = init_saved(ps, (int32_t)i, parent, p);
    }
    return rc;
}

/* ---- PEFT's config: every field that it writes, with its defaults ---- */
static fm_json *name_list(const char *list, bool all_linear)
{
    static const char *const all[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                      "gate_proj", "up_proj", "down_proj"};
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;
    size_t len = 0;

    for (size_t i = 0; all_linear && i < FM_ARRAY_LEN(all) && rc == FM_OK; i++)
        rc = fm_json_push(a, fm_json_new_str(all[i]));
    for (const char *name; rc == FM_OK && !all_linear && (name = next_name(&list, &len));)
        rc = fm_json_push(a, fm_json_new_strn(name, len));
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

typedef struct peft_default {
    const char *key;
    char kind; /* n null, t true, f false, o empty object, i 16, s text */
    const char *text;
} peft_default;

/* In PEFT's own order (keys sorted); what depends on the run is filled in between. */
static const peft_default peft_fields[] = {
    {"alora_invocation_tokens", 'n', NULL},
    {"alpha_pattern", 'o', NULL},
    {"arrow_config", 'n', NULL},
    {"auto_mapping", 'n', NULL},
    {"base_model_name_or_path", 'n', NULL},
    {"bias", 's', "none"},
    {"corda_config", 'n', NULL},
    {"ensure_weight_tying", 'f', NULL},
    {"eva_config", 'n', NULL},
    {"exclude_modules", 'n', NULL},
    {"fan_in_fan_out", 'f', NULL},
    {"inference_mode", 't', NULL},
    {"init_lora_weights", 't', NULL},
    {"kasa_config", 'n', NULL},
    {"layer_replication", 'n', NULL},
    {"layers_pattern", 'n', NULL},
    {"layers_to_transform", 'n', NULL},
    {"loftq_config", 'o', NULL},
    {"lora_alpha", 'n', NULL},
    {"lora_bias", 'f', NULL},
    {"lora_dropout", 'z', NULL},
    {"lora_ga_config", 'n', NULL},
    {"megatron_config", 'n', NULL},
    {"megatron_core", 's', "megatron.core"},
    {"modules_to_save", 'n', NULL},
    {"monteclora_config", 'n', NULL},
    {"peft_type", 's', "LORA"},
    {"peft_version", 's', "0.21.2"},
    {"qalora_group_size", 'i', NULL},
    {"r", 'n', NULL},
    {"rank_pattern", 'o', NULL},
    {"revision", 'n', NULL},
    {"target_modules", 'n', NULL},
    {"target_parameters", 'n', NULL},
    {"task_type", 's', "CAUSAL_LM"},
    {"trainable_token_indices", 'n', NULL},
    {"use_bdlora", 'n', NULL},
    {"use_dora", 'f', NULL},
    {"use_qalora", 'f', NULL},
    {"use_rslora", 'f', NULL},
    {"velora_config", 'n', NULL},
};

static fm_json *default_value(const peft_default *d)
{
    switch (d->kind) {
    case 't':
        return fm_json_new_bool(true);
    case 'f':
        return fm_json_new_bool(false);
    case 'o':
        return fm_json_new_object();
    case 'i':
        return fm_json_new_int(16);
    case 'z':
        return fm_json_new_real(0.0);
    case 's':
        return fm_json_new_str(d->text);
    default:
        return fm_json_new_null();
    }
}

static fm_json *alpha_json(double alpha)
{
    if (alpha == floor(alpha))
        return fm_json_new_int((int64_t)alpha);
    return fm_json_new_real(alpha);
}

fm_json *fmi_lora_config_json(const fm_train_config *c, const char *base_name)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < FM_ARRAY_LEN(peft_fields) && rc == FM_OK; i++)
        rc = fm_json_set(o, peft_fields[i].key, default_value(&peft_fields[i]));
    if (rc == FM_OK)
        rc = fm_json_set(o, "base_model_name_or_path", fm_json_new_str(base_name));
    if (rc == FM_OK)
        rc = fm_json_set(o, "lora_alpha", alpha_json(c->alpha));
    if (rc == FM_OK)
        rc = fm_json_set(o, "r", fm_json_new_int((int64_t)c->r));
    if (rc == FM_OK)
        rc = fm_json_set(o, "use_rslora", fm_json_new_bool(c->rslora));
    if (rc == FM_OK)
        rc = fm_json_set(o, "target_modules",
                         name_list(c->targets, strcmp(c->targets, "all-linear") == 0));
    if (rc == FM_OK && c->modules_to_save[0])
        rc = fm_json_set(o, "modules_to_save", name_list(c->modules_to_save, false));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}
