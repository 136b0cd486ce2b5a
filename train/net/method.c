/* method.c - what trains, by the settings or by an adapter that exists. */
#include "train/net/method.h"

#include "store/adapted.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"
#include "store/scaled.h"

#include <stdio.h>
#include <string.h>

#define ADAPTER_CONFIG "adapter_config.json"

bool fmt_method_is_adapter(fm_method m)
{
    return m != FM_METHOD_FULL && m != FM_METHOD_PRETRAIN && m != FM_METHOD_BITFIT;
}

bool fmt_method_needs_stem(const fm_train_config *c)
{
    if (c->method == FM_METHOD_FULL)
        return c->freeze[0] || c->layers[0];
    return c->method != FM_METHOD_PRETRAIN;
}

/* ---- settings that do not go together ---- */
static fm_status needs(const char *name, const char *setting, const char *methods)
{
    return fm_fail(FM_EINVAL, "%s: training option %s goes with method %s", name, setting, methods);
}

static fm_status check_lora_options(const fm_train_config *c, const char *name)
{
    bool known = !c->bias[0] || strcmp(c->bias, "none") == 0 || strcmp(c->bias, "all") == 0 ||
                 strcmp(c->bias, "lora_only") == 0;

    if (!known)
        return fm_fail(FM_EINVAL, "%s: training option bias: '%s' is none of none, all, lora_only",
                       name, c->bias);
    if (c->method == FM_METHOD_LORA)
        return FM_OK;
    const bool lycoris = c->method == FM_METHOD_LOHA || c->method == FM_METHOD_LOKR;
    if (c->dora)
        return needs(name, "dora", "lora");
    if (c->rslora)
        return needs(name, "rslora", "lora");
    if (c->dropout > 0.0)
        return needs(name, "dropout", "lora");
    if (c->loraplus < 1.0 || c->loraplus > 1.0)
        return needs(name, "loraplus", "lora");
    if (c->rank_pattern[0] && !lycoris)
        return needs(name, "rank_pattern", "lora, loha or lokr");
    if (c->alpha_pattern[0] && !lycoris)
        return needs(name, "alpha_pattern", "lora, loha or lokr");
    return c->bias[0] && strcmp(c->bias, "none") != 0 ? needs(name, "bias", "lora") : FM_OK;
}

fm_status fmt_method_check(const fm_train_config *c, const char *name)
{
    fm_method m = c->method;
    const bool targets = m == FM_METHOD_LORA || fmt_fold_kind(m);
    FM_TRY(check_lora_options(c, name));
    FM_TRY(fmt_config_check(c, name));
    if (m == FM_METHOD_OFT && (c->r > 0) == (c->oft_block_size > 0))
        return fm_fail(FM_EINVAL, "%s: oft takes one of r and oft_block_size; the other is 0",
                       name);
    const bool miss = m == FM_METHOD_MISS;
    const bool known = strcmp(c->init_weights, "true") == 0 ||
                       strcmp(c->init_weights, miss ? "bat" : "false") == 0 ||
                       (miss && strcmp(c->init_weights, "mini") == 0);
    if ((miss || m == FM_METHOD_FOURIERFT) && !known)
        return fm_fail(FM_EINVAL, "%s: training option init_weights: '%s' is none of true, %s",
                       name, c->init_weights, miss ? "bat, mini" : "false");
    if (m == FM_METHOD_BOFT && (c->boft_block_num > 0) == (c->boft_block_size > 0))
        return fm_fail(FM_EINVAL,
                       "%s: boft takes one of boft_block_size and boft_block_num; the other is 0",
                       name);
    if (targets && m != FM_METHOD_OFT && (c->r == 0 || !(c->alpha > 0.0)))
        return fm_fail(FM_EINVAL, "%s: r and alpha must be above 0", name);
    if (c->feedforward[0] && m != FM_METHOD_IA3)
        return needs(name, "feedforward", "ia3");
    if (c->freeze[0] && m != FM_METHOD_FULL)
        return needs(name, "freeze", "full");
    if (c->exclude[0] && !targets && m != FM_METHOD_IA3)
        return needs(name, "exclude", "lora or ia3");
    if (c->modules_to_save[0] && !targets && m != FM_METHOD_IA3)
        return needs(name, "modules_to_save", "lora or ia3");
    if (targets && c->layers[0] && fm_pattern_is_regex(c->targets))
        return fm_fail(FM_EINVAL,
                       "%s: training option layers goes with names in targets; a pattern says "
                       "itself which layers it means",
                       name);
    if (c->layers[0] && (m == FM_METHOD_PRETRAIN || m == FM_METHOD_IA3 || m == FM_METHOD_PREFIX ||
                         m == FM_METHOD_PROMPT || m == FM_METHOD_NORMS))
        return needs(name, "layers", "lora, bitfit or full");
    return FM_OK;
}

/* ---- from the settings ---- */
static fm_status declare_adapter(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                                 const fm_json *config)
{
    switch (c->method) {
    case FM_METHOD_LORA:
        return fmt_lora_declare(net, ps, c, config);
    case FM_METHOD_IA3:
        return fmt_ia3_declare(net, ps, c);
    case FM_METHOD_PREFIX:
        return fmt_virtual_declare(net, ps, FMT_VIRTUAL_KV, c->virtual_tokens);
    case FM_METHOD_PROMPT:
        return fmt_virtual_declare(net, ps, FMT_VIRTUAL_ROWS, c->virtual_tokens);
    case FM_METHOD_NORMS:
        return fmt_norms_declare(net, ps, c);
    case FM_METHOD_LOHA:
    case FM_METHOD_LOKR:
    case FM_METHOD_OFT:
    case FM_METHOD_BOFT:
    case FM_METHOD_HRA:
    case FM_METHOD_MISS:
    case FM_METHOD_SHIRA:
    case FM_METHOD_FOURIERFT:
    case FM_METHOD_RANDLORA:
    case FM_METHOD_VERA:
    case FM_METHOD_ADALORA:
        return fmt_fold_declare(net, ps, c, config);
    case FM_METHOD_FULL:
    case FM_METHOD_PRETRAIN:
    case FM_METHOD_BITFIT:
        break;
    }
    return FM_OK;
}

/* ---- from an adapter ---- */
static const char *ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s);
    size_t t = strlen(tail);
    return n > t && strcmp(s + n - t, tail) == 0 ? s + n - t : NULL;
}

static fmt_linear *module_of(fmt_net *net, const char *module)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (strcmp(l->module, module) == 0)
            return l;
    return NULL;
}

static fm_status misfit(const char *name, const fmt_linear *l)
{
    return fm_fail(FM_EBASE,
                   "%s: its shape does not fit the parent's %s of %u inputs and %u outputs", name,
                   l->module, l->in, l->out);
}

static fm_status from_term(fmt_net *net, fmt_params *ps, const fm_json *config, const fm_entry *e,
                           const char *peft, fmt_linear *l)
{
    fm_lora_spec spec;
    uint64_t in = l == &net->outer[FMT_EMBED] ? l->out : l->in;
    FM_TRY(fm_lora_spec_of(&spec, config, peft));

    if (e->shape.rank != 2 || e->shape.dim[0] != spec.r || e->shape.dim[1] != in)
        return misfit(e->name, l);
    return fmt_lora_add(net, ps, l, peft, &spec, config);
}

static fm_status from_scale(fmt_net *net, fmt_params *ps, const fm_entry *e, const char *peft,
                            fmt_linear *l)
{
    const fm_shape *s = &e->shape;
    bool in = s->rank == 2 && s->dim[0] == 1 && s->dim[1] == l->in;
    bool out = s->rank == 2 && s->dim[1] == 1 && s->dim[0] == l->out;

    return in || out ? fmt_ia3_add(net, ps, l, peft, in) : misfit(e->name, l);
}

static fm_status from_saved(fmt_net *net, fmt_params *ps, const fm_entry *e)
{
    char peft[FMT_MODULE_BYTES + 64];
    char own[FMT_MODULE_BYTES + 64];

    fmt_unwrap(peft, sizeof(peft), e->name + strlen(FMT_PEFT_PREFIX));
    fmt_own_name(net, peft, own, sizeof(own));
    return fmt_net_train(net, ps, own, &e->shape, e->name);
}

static fm_status from_virtual(fmt_net *net, fmt_params *ps, const fm_json *config,
                              const fm_entry *e)
{
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), "");
    bool prefix = strcmp(type, "PREFIX_TUNING") == 0;
    uint64_t n = e->shape.rank == 2 ? e->shape.dim[0] : 0;

    if (!prefix && strcmp(type, "PROMPT_TUNING") != 0)
        return fm_fail(FM_EUNSUPPORTED, "prompt_embeddings in an adapter of peft_type '%s'", type);
    FM_TRY(fmt_virtual_declare(net, ps, prefix ? FMT_VIRTUAL_KV : FMT_VIRTUAL_ROWS,
                               n <= UINT32_MAX ? (uint32_t)n : 0));
    if (!fm_shape_eq(&e->shape, &ps->item[net->virt_param].shape))
        return fm_fail(FM_EBASE, "prompt_embeddings: %llu columns are wanted",
                       (unsigned long long)ps->item[net->virt_param].shape.dim[1]);
    return FM_OK;
}

/* PEFT saves an adapted embedding's matrix with its factors: it must be the parent's. */
static fm_status check_base_copy(const fmt_net *net, const fm_tree *parent, const fm_entry *e)
{
    char peft[FMT_MODULE_BYTES + 64];
    char own[FMT_MODULE_BYTES + 64];

    fmt_unwrap(peft, sizeof(peft), e->name + strlen(FMT_PEFT_PREFIX));
    fmt_own_name(net, peft, own, sizeof(own));
    const fm_entry *base = fmt_base_entry(net, parent, own);
    if (base && fm_digest_eq(&base->id, &e->id))
        return FM_OK;
    return fm_fail(FM_EBASE, "%s: its values are not the parent's %s", e->name, own);
}

/* A tensor of a formula: with it all those of its module are declared. */
static fm_status from_fold(fmt_net *net, fmt_params *ps, const fm_json *config, const fm_tree *tree,
                           const fm_provider *p, const char *prefix, const fm_entry *e, size_t tail)
{
    const char *kind = fmt_fold_kind_of_type(fm_json_cstr(fm_json_get(config, "peft_type"), ""));
    const size_t skip = strlen(FMT_PEFT_PREFIX);
    char peft[FMT_MODULE_BYTES + 16];
    char own[FMT_MODULE_BYTES + 16];

    (void)snprintf(peft, sizeof(peft), "%.*s", (int)(strlen(e->name) - skip - tail),
                   e->name + skip);
    fmt_own_name(net, peft, own, sizeof(own));
    fmt_linear *l = module_of(net, own);
    if (!l)
        return fm_fail(FM_EBASE, "%s: the parent has no such module", e->name);
    return fmt_fold_add(net, ps, l, kind, peft, config, tree, p, prefix);
}

static fm_status from_entry(fmt_net *net, fmt_params *ps, const fm_json *config,
                            const fm_tree *parent, const fm_tree *tree, const fm_provider *p,
                            const char *prefix, const fm_entry *e)
{
    const char *kind = fmt_fold_kind_of_type(fm_json_cstr(fm_json_get(config, "peft_type"), ""));
    size_t end = 0;
    static const char *const follow[] = {".lora_B.weight", ".lora_embedding_B",
                                         ".lora_magnitude_vector", ".lora_magnitude_vector.weight"};
    static const char *const lead[] = {".lora_A.weight", ".lora_embedding_A", ".ia3_l"};
    const char *name = e->name;
    const char *tail = NULL;
    size_t skip = strlen(FMT_PEFT_PREFIX);
    char peft[FMT_MODULE_BYTES + 16];
    char own[FMT_MODULE_BYTES + 16];

    if (strcmp(name, "prompt_embeddings") == 0)
        return from_virtual(net, ps, config, e);
    const int part = kind ? fm_fold_part(kind, name, &end) : -1;
    if (part >= 0 && *fm_fold_part_name(kind, part) == '/')
        return FM_OK; /* declared with the modules */
    if (strncmp(name, FMT_PEFT_PREFIX, skip) != 0)
        return fm_fail(FM_EUNSUPPORTED, "adapter tensor %s does not begin with " FMT_PEFT_PREFIX,
                       name);
    for (size_t i = 0; i < FM_ARRAY_LEN(follow); i++)
        if (ends_with(name, follow[i]))
            return FM_OK; /* declared with its lora_A */
    if (part >= 0)
        return from_fold(net, ps, config, tree, p, prefix, e, end);
    if (ends_with(name, ".base_layer.weight"))
        return check_base_copy(net, parent, e);
    for (size_t i = 0; !tail && i < FM_ARRAY_LEN(lead); i++)
        tail = ends_with(name, lead[i]);
    if (!tail)
        return from_saved(net, ps, e);
    (void)snprintf(peft, sizeof(peft), "%.*s", (int)((size_t)(tail - name) - skip), name + skip);
    fmt_own_name(net, peft, own, sizeof(own));
    fmt_linear *l = module_of(net, own);
    if (!l)
        return fm_fail(FM_EBASE, "%s: the parent has no such module", name);
    if (strcmp(tail, ".ia3_l") == 0)
        return from_scale(net, ps, e, peft, l);
    return from_term(net, ps, config, e, peft, l);
}

static fm_status read_config(fm_json **out, const fm_tree *tree, const fm_provider *p,
                             const char *prefix, bool *found)
{
    char *path = fm_asprintf("%s" ADAPTER_CONFIG, prefix);
    const fm_entry *e = path ? fm_tree_find(tree, path) : NULL;
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    fm_buf text;

    *found = e != NULL;
    fm_buf_init(&text, (size_t)16 << 20);
    if (rc == FM_OK && e)
        rc = fm_entry_read(&text, p, e);
    if (rc == FM_OK && e)
        rc = fm_json_parse(out, fm_buf_span(&text), path);
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

static void set_dropout(fmt_net *net, float dropout)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        for (size_t t = 0; t < l->terms; t++)
            if (l->term[t].a_param >= 0 && l != &net->outer[FMT_EMBED])
                l->term[t].dropout = dropout;
}

/* Only what an engine has terms for has gradients: settings and kinds that store/adapted.h folds
 * into weights have none. prefix: for messages. */
static fm_status check_trained(const fm_json *config, const char *prefix)
{
    static const char *const folded[] = {"lora_bias", "trainable_token_indices"};
    static const char *const types[] = {"LORA", "IA3", "PREFIX_TUNING", "PROMPT_TUNING",
                                        "LN_TUNING"};
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), ""), *set = NULL;
    const char *start = fm_json_cstr(fm_json_get(config, "init_lora_weights"), "");
    bool known = fmt_fold_kind_of_type(type) != NULL;

    for (size_t i = 0; i < FM_ARRAY_LEN(types); i++)
        known = known || strcmp(type, types[i]) == 0;
    if (!known)
        return fm_fail(FM_EUNSUPPORTED, "%s: an adapter of peft_type %.40s is not trained here",
                       prefix, type);
    for (size_t i = 0; i < FM_ARRAY_LEN(folded); i++)
        if (fm_json_bool(fm_json_get(config, folded[i]), false) ||
            fm_json_count(fm_json_get(config, folded[i])) > 0)
            set = folded[i];
    if (strcmp(start, "pissa") == 0 || strcmp(start, "olora") == 0 || strcmp(start, "OLoRA") == 0)
        set = "init_lora_weights";
    return set ? fm_fail(FM_EUNSUPPORTED, "%s: an adapter with '%s' set is not trained here",
                         prefix, set)
               : FM_OK;
}

fm_status fmt_method_declare_from(fmt_net *net, fmt_params *ps, const fm_tree *parent,
                                  const fm_tree *tree, const fm_provider *p, const char *prefix,
                                  fm_json **config)
{
    size_t begin = 0;
    size_t end = 0;
    bool found = false;
    fm_status rc = read_config(config, tree, p, prefix, &found);

    if (rc == FM_OK && !found)
        rc = fm_fail(FM_ENOTFOUND, "%s" ADAPTER_CONFIG " is missing", prefix);
    FM_THEN(rc, check_trained(*config, prefix));
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end && rc == FM_OK; i++)
        if (fm_tree_at(tree, i)->kind == FM_ENTRY_TENSOR)
            rc = from_entry(net, ps, *config, parent, tree, p, prefix, fm_tree_at(tree, i));
    set_dropout(net, 0.0f);
    return rc;
}

/* Declares what trains by init, where init has an adapter_config.json. */
static fm_status from_init(fmt_net *net, fmt_params *ps, const fmt_method *m, fm_json **config,
                           bool *done)
{
    fm_buf prefix;
    fm_status rc = FM_OK;

    *done = false;
    fm_buf_init(&prefix, FM_MAX_PATH_BYTES);
    rc = fmt_top_adapter(&prefix, m->init);
    if (rc == FM_OK && prefix.len > 0)
        rc = read_config(config, m->init, m->init_p, fm_buf_cstr(&prefix), done);
    fm_json_free(*config);
    *config = NULL;
    if (rc == FM_OK && *done)
        rc = fmt_method_declare_from(net, ps, m->parent, m->init, m->init_p, fm_buf_cstr(&prefix),
                                     config);
    if (rc == FM_OK && *done) {
        set_dropout(net, (float)fm_json_real(fm_json_get(*config, "lora_dropout"), 0.0));
        fmt_loraplus(ps, m->c->loraplus);
    }
    fm_buf_release(&prefix);
    return rc;
}

/* Refuses to train a weight that is quantized, before memory is taken for it. */
static fm_status check_scaled(const fmt_params *ps, const fmt_method *m)
{
    fm_plain *plain = NULL;
    fm_status rc = fm_plain_open(&plain, m->parent, m->p, "the parent");

    for (size_t i = 0; rc == FM_OK && i < ps->count; i++) {
        const fm_entry *is = fmt_find_tensor(fm_plain_tree(plain), ps->item[i].name);
        if (is && fm_plain_made(plain, is))
            rc = fm_fail(FM_EUNSUPPORTED,
                         "%s is quantized, with a scale, and cannot be trained itself: train an "
                         "adapter, or export the parent with --dtype bf16 and import that",
                         is->name);
    }
    fm_plain_close(plain);
    return rc;
}

fm_status fmt_method_declare(fmt_net *net, fmt_params *ps, const fmt_method *m, fm_json **config)
{
    const fm_train_config *c = m->c;
    bool done = false;
    fm_status rc = FM_OK;

    *config = NULL;
    if (!fmt_method_is_adapter(c->method)) {
        rc = c->method == FM_METHOD_BITFIT ? fmt_bitfit_declare(net, ps, c)
                                           : fmt_full_declare(net, ps, c);
        return rc == FM_OK ? check_scaled(ps, m) : rc;
    }
    if (m->init)
        rc = from_init(net, ps, m, config, &done);
    if (rc < 0 || done)
        return rc;
    rc = fmt_check_layers(c->layers, net->arch.layers);
    FM_THEN(rc, fmt_method_config(config, net, c, NULL));
    return rc == FM_OK ? declare_adapter(net, ps, c, *config) : rc;
}

/* ---- values ---- */
void fmt_method_bind(fmt_net *net, fmt_params *ps)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        if (l->in_scale.param >= 0)
            l->in_scale.s = ps->p + ps->item[l->in_scale.param].at;
        if (l->out_scale.param >= 0)
            l->out_scale.s = ps->p + ps->item[l->out_scale.param].at;
        if (!l->dora)
            continue;
        l->out_scale.s = l->dora->scale;
        l->bias_after = l->bias; /* DoRA scales W x + s B A x without the bias */
        l->bias = NULL;
    }
    if (net->virt_param >= 0)
        net->virt_rows = ps->p + ps->item[net->virt_param].at;
}

fm_status fmt_method_fill(fmt_net *net, fmt_params *ps, const fmt_method *m)
{
    fm_plain *plain = NULL;
    fm_adapted *adapted = NULL;
    fmt_method seen = *m;
    fm_status rc = fm_plain_open(&plain, m->parent, m->p, "the parent");

    if (rc == FM_OK)
        rc = fm_adapted_open(&adapted, fm_plain_tree(plain), fm_plain_provider(plain),
                             FM_ADAPTED_RUN, FM_DTYPE_NONE, "the parent");
    if (rc == FM_OK) {
        seen.parent = fm_adapted_tree(adapted);
        seen.p = fm_adapted_provider(adapted);
    }
    FM_THEN(rc, fmt_dora_prepare(net, seen.parent, seen.p));
    FM_THEN(rc, fmt_fold_prepare(net, seen.parent, seen.p));
    FM_THEN(rc, fmt_method_begin(net, ps, &seen));
    if (rc == FM_OK && m->init)
        rc = fmt_params_load(ps, m->init, m->init_p, "", false);
    fm_adapted_close(adapted);
    fm_plain_close(plain);
    return rc;
}
