/* method_config.c - adapter_config.json as PEFT 0.21 writes it: every field, keys sorted. */
#include "train/net/method.h"

#include "store/base/text/regex.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTER_CONFIG "adapter_config.json"

typedef struct peft_default {
    const char *key;
    char kind; /* n null, t true, f false, o empty object, i 16, z 0.0, s text */
    const char *text;
} peft_default;

/* Fields that depend on the run are filled in between. */
static const peft_default lora_fields[] = {
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
    {"task_type", 'n', NULL},
    {"trainable_token_indices", 'n', NULL},
    {"use_bdlora", 'n', NULL},
    {"use_dora", 'f', NULL},
    {"use_qalora", 'f', NULL},
    {"use_rslora", 'f', NULL},
    {"velora_config", 'n', NULL},
};

static const peft_default norm_fields[] = {
    {"auto_mapping", 'n', NULL},     {"base_model_name_or_path", 'n', NULL},
    {"exclude_modules", 'n', NULL},  {"inference_mode", 't', NULL},
    {"modules_to_save", 'n', NULL},  {"peft_type", 's', "LN_TUNING"},
    {"peft_version", 's', "0.21.2"}, {"revision", 'n', NULL},
    {"target_modules", 'n', NULL},   {"task_type", 'n', NULL},
};
static const peft_default ia3_fields[] = {
    {"auto_mapping", 'n', NULL},
    {"base_model_name_or_path", 'n', NULL},
    {"exclude_modules", 'n', NULL},
    {"fan_in_fan_out", 'f', NULL},
    {"feedforward_modules", 'n', NULL},
    {"inference_mode", 't', NULL},
    {"init_ia3_weights", 't', NULL},
    {"modules_to_save", 'n', NULL},
    {"peft_type", 's', "IA3"},
    {"peft_version", 's', "0.21.2"},
    {"revision", 'n', NULL},
    {"target_modules", 'n', NULL},
    {"task_type", 'n', NULL},
};

static const peft_default prefix_fields[] = {
    {"auto_mapping", 'n', NULL},
    {"base_model_name_or_path", 'n', NULL},
    {"encoder_hidden_size", 'n', NULL},
    {"inference_mode", 't', NULL},
    {"init_weights", 'n', NULL},
    {"modules_to_save", 'n', NULL},
    {"num_attention_heads", 'n', NULL},
    {"num_layers", 'n', NULL},
    {"num_transformer_submodules", 'n', NULL},
    {"num_virtual_tokens", 'n', NULL},
    {"peft_type", 's', "PREFIX_TUNING"},
    {"peft_version", 's', "0.21.2"},
    {"prefix_projection", 'f', NULL},
    {"revision", 'n', NULL},
    {"task_type", 'n', NULL},
    {"token_dim", 'n', NULL},
};

static const peft_default prompt_fields[] = {
    {"auto_mapping", 'n', NULL},
    {"base_model_name_or_path", 'n', NULL},
    {"inference_mode", 't', NULL},
    {"modules_to_save", 'n', NULL},
    {"num_attention_heads", 'n', NULL},
    {"num_layers", 'n', NULL},
    {"num_transformer_submodules", 'n', NULL},
    {"num_virtual_tokens", 'n', NULL},
    {"peft_type", 's', "PROMPT_TUNING"},
    {"peft_version", 's', "0.21.2"},
    {"prompt_tuning_init", 's', "RANDOM"},
    {"prompt_tuning_init_text", 'n', NULL},
    {"revision", 'n', NULL},
    {"task_type", 'n', NULL},
    {"token_dim", 'n', NULL},
    {"tokenizer_kwargs", 'n', NULL},
    {"tokenizer_name_or_path", 'n', NULL},
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

static fm_json *number(double v)
{
    return v == floor(v) ? fm_json_new_int((int64_t)v) : fm_json_new_real(v);
}

/* "q_proj=4,layers.1.self_attn.v_proj=16" as PEFT's rank_pattern or alpha_pattern. */
static fm_status set_pattern(fm_json *o, const char *setting, const char *list)
{
    fm_json *map = fm_json_new_object();
    fm_status rc = map ? FM_OK : FM_ENOMEM;
    size_t len = 0;

    for (const char *item; rc == FM_OK && (item = fmt_next_name(&list, &len));) {
        const char *eq = memchr(item, '=', len);
        char key[FMT_MODULE_BYTES];
        char *end = NULL;
        double v = eq ? strtod(eq + 1, &end) : 0.0;
        if (!eq || eq == item || end != item + len || !(v > 0.0 && v <= 1e9) ||
            (size_t)(eq - item) >= sizeof(key)) {
            rc = fm_fail(FM_EINVAL, "training option %s: '%.*s' is not MODULE=NUMBER", setting,
                         (int)len, item);
            break;
        }
        (void)snprintf(key, sizeof(key), "%.*s", (int)(eq - item), item);
        rc = fm_json_set(map, key, number(v));
    }
    if (rc == FM_OK)
        return fm_json_set(o, setting, map);
    fm_json_free(map);
    return rc;
}

static fm_json *layer_list(const char *list, uint32_t layers)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;

    for (uint32_t l = 0; l < layers && rc == FM_OK; l++)
        if (fmt_layer_listed(list, (int32_t)l))
            rc = fm_json_push(a, fm_json_new_int((int64_t)l));
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

/* PEFT's classes for text classification save their head under one of two names. */
static fm_json *saved_names(const fm_train_config *c)
{
    char all[sizeof(c->modules_to_save) + 32];
    bool classify = c->objective == FM_OBJECTIVE_CLASSIFY;

    (void)snprintf(all, sizeof(all), "%s%s%s", c->modules_to_save,
                   classify && c->modules_to_save[0] ? "," : "",
                   classify ? "classifier,score" : "");
    return all[0] ? fmt_names_json(all) : fm_json_new_null();
}

static fm_status common(fm_json *o, const fm_train_config *c, const char *base_name)
{
    const char *task = c->objective == FM_OBJECTIVE_CLASSIFY      ? "SEQ_CLS"
                       : c->objective == FM_OBJECTIVE_CONTRASTIVE ? "FEATURE_EXTRACTION"
                                                                  : "CAUSAL_LM";
    FM_TRY(fm_json_set(o, "base_model_name_or_path", fm_json_new_str(base_name)));

    FM_TRY(fm_json_set(o, "modules_to_save", saved_names(c)));
    return fm_json_set(o, "task_type", fm_json_new_str(task));
}

/* A list of targets as PEFT writes it; a regular expression is a JSON string. */
static fm_json *target_names(fmt_net *net, const char *targets)
{
    if (fm_pattern_is_regex(targets))
        return fm_json_new_str(targets);
    return strcmp(targets, "all-linear") == 0 ? fmt_all_linear_json(net) : fmt_names_json(targets);
}

static fm_status exclude(fm_json *o, const fm_train_config *c)
{
    return c->exclude[0] ? fm_json_set(o, "exclude_modules", fmt_names_json(c->exclude)) : FM_OK;
}

/* "model.layers." -> "layers": the name before a layer's number, where experts are numbered too. */
static fm_status layers_of(fm_json *o, fmt_net *net, const fm_train_config *c)
{
    const char *module = fmt_net_linear(net, 0)->module;
    const char *number_at = strstr(module, ".0.");
    fm_status rc = fm_json_set(o, "layers_to_transform", layer_list(c->layers, net->arch.layers));

    if (rc < 0 || net->arch.sw.experts == 0 || !number_at)
        return rc;
    const char *name = number_at;
    while (name > module && name[-1] != '.')
        name--;
    return fm_json_set(o, "layers_pattern", fm_json_new_strn(name, (size_t)(number_at - name)));
}

static bool stored_turned(const fmt_net *net)
{
    return fmt_net_at(net, 0, FMT_O)->transposed;
}

static fm_status lora(fm_json *o, fmt_net *net, const fm_train_config *c)
{
    const struct {
        const char *key;
        fm_json *value;
    } set[] = {
        {"bias", fm_json_new_str(c->bias[0] ? c->bias : "none")},
        {"fan_in_fan_out", fm_json_new_bool(stored_turned(net))},
        {"lora_alpha", number(c->alpha)},
        {"lora_dropout", fm_json_new_real(c->dropout)},
        {"r", fm_json_new_int((int64_t)c->r)},
        {"target_modules", target_names(net, c->targets)},
        {"use_dora", fm_json_new_bool(c->dora)},
        {"use_rslora", fm_json_new_bool(c->rslora)},
    };
    fm_status rc = exclude(o, c);

    /* each value is consumed, also after an error */
    for (size_t i = 0; i < FM_ARRAY_LEN(set); i++) {
        fm_status one = fm_json_set(o, set[i].key, set[i].value);
        rc = rc == FM_OK ? one : rc;
    }
    FM_THEN(rc, set_pattern(o, "alpha_pattern", c->alpha_pattern));
    FM_THEN(rc, set_pattern(o, "rank_pattern", c->rank_pattern));
    return rc == FM_OK && c->layers[0] ? layers_of(o, net, c) : rc;
}

static fm_status ia3(fm_json *o, fmt_net *net, const fm_train_config *c)
{
    const char *targets = NULL;
    const char *feedforward = NULL;
    FM_TRY(fmt_ia3_defaults(&net->arch, c, &targets, &feedforward));

    FM_TRY(exclude(o, c));
    FM_TRY(fm_json_set(o, "target_modules", target_names(net, targets)));
    FM_TRY(fm_json_set(o, "fan_in_fan_out", fm_json_new_bool(stored_turned(net))));
    return fm_json_set(o, "feedforward_modules", fmt_names_json(feedforward));
}

static fm_status virtuals(fm_json *o, const fmt_net *net, const fm_train_config *c)
{
    const fm_arch *a = &net->arch;
    bool prefix = c->method == FM_METHOD_PREFIX;
    int64_t dim = prefix ? (int64_t)a->kv_heads * a->head_dim : (int64_t)a->hidden;
    FM_TRY(fm_json_set(o, "num_virtual_tokens", fm_json_new_int((int64_t)c->virtual_tokens)));

    FM_TRY(fm_json_set(o, "num_layers", fm_json_new_int((int64_t)a->layers)));
    FM_TRY(fm_json_set(o, "num_transformer_submodules", fm_json_new_int(1)));
    FM_TRY(fm_json_set(o, "num_attention_heads",
                       fm_json_new_int(prefix ? (int64_t)a->kv_heads : (int64_t)a->heads)));
    FM_TRY(fm_json_set(o, "token_dim", fm_json_new_int(dim)));
    if (prefix)
        FM_TRY(fm_json_set(o, "encoder_hidden_size", fm_json_new_int(dim)));
    return FM_OK;
}

static fm_json *with_defaults(const peft_default *f, size_t n)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = fm_json_set(o, f[i].key, default_value(&f[i]));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* ---- kinds with formulas: PEFT's defaults, then the settings of the same names ---- */
static const struct fold_fields {
    fm_method method;
    const char *json;
} fold_fields[] = {
    {FM_METHOD_LOHA, "{\"alpha\":8,\"alpha_pattern\":{},\"auto_mapping\":null,"
                     "\"base_model_name_or_path\":null,\"exclude_modules\":null,"
                     "\"inference_mode\":true,\"init_weights\":true,\"layers_pattern\":null,"
                     "\"layers_to_transform\":null,\"module_dropout\":0.0,"
                     "\"modules_to_save\":null,\"peft_type\":\"LOHA\","
                     "\"peft_version\":\"0.21.2\",\"r\":8,\"rank_dropout\":0.0,"
                     "\"rank_pattern\":{},\"revision\":null,\"target_modules\":null,"
                     "\"task_type\":null,\"use_effective_conv2d\":false}"},
    {FM_METHOD_LOKR, "{\"alpha\":8,\"alpha_pattern\":{},\"auto_mapping\":null,"
                     "\"base_model_name_or_path\":null,\"decompose_both\":false,"
                     "\"decompose_factor\":-1,\"exclude_modules\":null,"
                     "\"inference_mode\":true,\"init_weights\":true,\"layers_pattern\":null,"
                     "\"layers_to_transform\":null,\"module_dropout\":0.0,"
                     "\"modules_to_save\":null,\"peft_type\":\"LOKR\","
                     "\"peft_version\":\"0.21.2\",\"r\":8,\"rank_dropout\":0.0,"
                     "\"rank_dropout_scale\":false,\"rank_pattern\":{},\"revision\":null,"
                     "\"target_modules\":null,\"task_type\":null,"
                     "\"use_effective_conv2d\":false}"},
    {FM_METHOD_OFT, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                    "\"bias\":\"none\",\"block_share\":false,\"coft\":false,\"eps\":6e-05,"
                    "\"exclude_modules\":null,\"fan_in_fan_out\":false,"
                    "\"inference_mode\":true,\"init_weights\":true,\"layers_pattern\":null,"
                    "\"layers_to_transform\":null,\"module_dropout\":0.0,"
                    "\"modules_to_save\":null,\"num_cayley_neumann_terms\":5,"
                    "\"oft_block_size\":32,\"peft_type\":\"OFT\",\"peft_version\":\"0.21.2\","
                    "\"r\":0,\"revision\":null,\"target_modules\":null,\"task_type\":null,"
                    "\"use_cayley_neumann\":true}"},
    {FM_METHOD_BOFT, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                     "\"bias\":\"none\",\"boft_block_num\":0,\"boft_block_size\":4,"
                     "\"boft_dropout\":0.0,\"boft_n_butterfly_factor\":1,"
                     "\"exclude_modules\":null,\"fan_in_fan_out\":false,"
                     "\"inference_mode\":true,\"init_weights\":true,\"layers_pattern\":null,"
                     "\"layers_to_transform\":null,\"modules_to_save\":null,"
                     "\"peft_type\":\"BOFT\",\"peft_version\":\"0.21.2\",\"revision\":null,"
                     "\"target_modules\":null,\"task_type\":null}"},
    {FM_METHOD_HRA, "{\"apply_GS\":false,\"auto_mapping\":null,"
                    "\"base_model_name_or_path\":null,\"bias\":\"none\","
                    "\"exclude_modules\":null,\"inference_mode\":true,\"init_weights\":true,"
                    "\"layers_pattern\":null,\"layers_to_transform\":null,"
                    "\"modules_to_save\":null,\"peft_type\":\"HRA\","
                    "\"peft_version\":\"0.21.2\",\"r\":8,\"revision\":null,"
                    "\"target_modules\":null,\"task_type\":null}"},
    {FM_METHOD_MISS, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                     "\"bias\":\"none\",\"exclude_modules\":null,\"inference_mode\":true,"
                     "\"init_weights\":true,\"layers_pattern\":null,"
                     "\"layers_to_transform\":null,\"mini_r\":1,\"miss_dropout\":0.0,"
                     "\"modules_to_save\":null,\"peft_type\":\"MISS\","
                     "\"peft_version\":\"0.21.2\",\"r\":64,\"revision\":null,"
                     "\"target_modules\":null,\"task_type\":null}"},
    {FM_METHOD_SHIRA, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                      "\"fan_in_fan_out\":false,\"inference_mode\":true,\"init_weights\":true,"
                      "\"mask_type\":\"random\",\"modules_to_save\":null,"
                      "\"peft_type\":\"SHIRA\",\"peft_version\":\"0.21.2\",\"r\":32,"
                      "\"random_seed\":null,\"revision\":null,\"target_modules\":null,"
                      "\"task_type\":null}"},
    {FM_METHOD_FOURIERFT, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                          "\"bias\":\"none\",\"exclude_modules\":null,\"fan_in_fan_out\":false,"
                          "\"inference_mode\":true,\"init_weights\":false,\"layers_pattern\":null,"
                          "\"layers_to_transform\":null,\"modules_to_save\":null,"
                          "\"n_frequency\":1000,\"n_frequency_pattern\":{},"
                          "\"peft_type\":\"FOURIERFT\",\"peft_version\":\"0.21.2\","
                          "\"random_loc_seed\":777,\"revision\":null,\"scaling\":150.0,"
                          "\"target_modules\":null,\"task_type\":null}"},
    {FM_METHOD_RANDLORA, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                         "\"bias\":\"none\",\"fan_in_fan_out\":false,\"inference_mode\":true,"
                         "\"init_weights\":true,\"layers_pattern\":null,"
                         "\"layers_to_transform\":null,\"modules_to_save\":null,"
                         "\"peft_type\":\"RANDLORA\",\"peft_version\":\"0.21.2\","
                         "\"projection_prng_key\":0,\"r\":32,\"randlora_alpha\":640,"
                         "\"randlora_dropout\":0.0,\"revision\":null,\"save_projection\":true,"
                         "\"sparse\":false,\"target_modules\":null,\"task_type\":null,"
                         "\"very_sparse\":false}"},
    {FM_METHOD_VERA, "{\"auto_mapping\":null,\"base_model_name_or_path\":null,"
                     "\"bias\":\"none\",\"d_initial\":0.1,\"fan_in_fan_out\":false,"
                     "\"inference_mode\":true,\"init_weights\":true,\"layers_pattern\":null,"
                     "\"layers_to_transform\":null,\"modules_to_save\":null,"
                     "\"peft_type\":\"VERA\",\"peft_version\":\"0.21.2\","
                     "\"projection_prng_key\":0,\"r\":256,\"revision\":null,"
                     "\"save_projection\":true,\"target_modules\":null,\"task_type\":null,"
                     "\"vera_dropout\":0.0}"},
    {FM_METHOD_ADALORA, "{\"alora_invocation_tokens\":null,\"alpha_pattern\":{},"
                        "\"arrow_config\":null,\"auto_mapping\":null,"
                        "\"base_model_name_or_path\":null,\"beta1\":0.85,\"beta2\":0.85,"
                        "\"bias\":\"none\",\"corda_config\":null,\"deltaT\":1,"
                        "\"ensure_weight_tying\":false,\"eva_config\":null,"
                        "\"exclude_modules\":null,\"fan_in_fan_out\":false,"
                        "\"inference_mode\":true,\"init_lora_weights\":true,\"init_r\":12,"
                        "\"kasa_config\":null,\"layer_replication\":null,\"layers_pattern\":null,"
                        "\"layers_to_transform\":null,\"loftq_config\":{},\"lora_alpha\":8,"
                        "\"lora_bias\":false,\"lora_dropout\":0.0,\"lora_ga_config\":null,"
                        "\"megatron_config\":null,\"megatron_core\":\"megatron.core\","
                        "\"modules_to_save\":null,\"monteclora_config\":null,"
                        "\"orth_reg_weight\":0.5,\"peft_type\":\"ADALORA\","
                        "\"peft_version\":\"0.21.2\",\"qalora_group_size\":16,\"r\":8,"
                        "\"rank_pattern\":null,\"revision\":null,\"target_modules\":null,"
                        "\"target_parameters\":null,\"target_r\":8,\"task_type\":null,"
                        "\"tfinal\":0,\"tinit\":0,\"total_step\":1,"
                        "\"trainable_token_indices\":null,\"use_bdlora\":null,\"use_dora\":false,"
                        "\"use_qalora\":false,\"use_rslora\":false,\"velora_config\":null}"},
};

static fm_json *fold_defaults(fm_method m)
{
    fm_json *o = NULL;

    for (size_t i = 0; i < FM_ARRAY_LEN(fold_fields); i++)
        if (fold_fields[i].method == m &&
            fm_json_parse(&o, fm_span_str(fold_fields[i].json), ADAPTER_CONFIG) < 0)
            return NULL;
    return o;
}

/* Sets what the config has by the names that the settings have, too. */
static fm_status take_settings(fm_json *o, const fm_train_config *c)
{
    static const char *const same[] = {"r",
                                       "decompose_both",
                                       "decompose_factor",
                                       "oft_block_size",
                                       "coft",
                                       "block_share",
                                       "use_cayley_neumann",
                                       "num_cayley_neumann_terms",
                                       "boft_block_size",
                                       "boft_block_num",
                                       "boft_n_butterfly_factor",
                                       "apply_GS",
                                       "mini_r",
                                       "n_frequency",
                                       "scaling",
                                       "random_loc_seed",
                                       "projection_prng_key",
                                       "d_initial",
                                       "init_r"};

    for (size_t i = 0; i < FM_ARRAY_LEN(same); i++)
        if (fm_json_get(o, same[i]) && fmt_config_has(c, same[i]))
            FM_TRY(fm_json_set(o, same[i], fmt_config_value(c, same[i])));
    return FM_OK;
}

/* PEFT's numbers for alpha have the name of the kind. */
static fm_status set_alpha(fm_json *o, const fm_train_config *c)
{
    static const char *const names[] = {"alpha", "lora_alpha", "randlora_alpha"};

    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        if (fm_json_get(o, names[i]))
            FM_TRY(fm_json_set(o, names[i], number(c->alpha)));
    if (!fm_json_get(o, "alpha"))
        return FM_OK;
    FM_TRY(set_pattern(o, "alpha_pattern", c->alpha_pattern));
    return set_pattern(o, "rank_pattern", c->rank_pattern);
}

/* What one kind alone has. AdaLoRA keeps its first ranks: what a budget would need is at rest. */
static fm_status set_apart(fm_json *o, const fmt_net *net, const fm_train_config *c)
{
    const bool start = strcmp(c->init_weights, "true") == 0;

    if (c->method == FM_METHOD_OFT)
        return fm_json_set(o, "eps", fm_json_new_real(c->coft_eps));
    if (c->init_weights[0])
        FM_TRY(fm_json_set(o, "init_weights",
                           start || strcmp(c->init_weights, "false") == 0
                               ? fm_json_new_bool(start)
                               : fm_json_new_str(c->init_weights)));
    if (c->method == FM_METHOD_ADALORA)
        FM_TRY(fm_json_set(o, "target_r", fm_json_new_int((int64_t)c->init_r)));
    if (fm_json_get(o, "fan_in_fan_out") && c->method != FM_METHOD_SHIRA)
        return fm_json_set(o, "fan_in_fan_out", fm_json_new_bool(stored_turned(net)));
    return FM_OK;
}

static fm_status fold(fm_json *o, fmt_net *net, const fm_train_config *c)
{
    FM_TRY(take_settings(o, c));

    FM_TRY(set_alpha(o, c));
    FM_TRY(set_apart(o, net, c));
    if ((c->exclude[0] && !fm_json_get(o, "exclude_modules")) ||
        (c->layers[0] && !fm_json_get(o, "layers_to_transform")))
        return fm_fail(FM_EUNSUPPORTED, "PEFT's %s has no %s", fmt_fold_kind(c->method),
                       c->layers[0] ? "layers_to_transform" : "exclude_modules");
    FM_TRY(exclude(o, c));
    FM_TRY(fm_json_set(o, "target_modules", target_names(net, c->targets)));
    return c->layers[0] ? layers_of(o, net, c) : FM_OK;
}

static fm_json *fields_of(fm_method m)
{
    switch (m) {
    case FM_METHOD_LORA:
        return with_defaults(lora_fields, FM_ARRAY_LEN(lora_fields));
    case FM_METHOD_IA3:
        return with_defaults(ia3_fields, FM_ARRAY_LEN(ia3_fields));
    case FM_METHOD_PREFIX:
        return with_defaults(prefix_fields, FM_ARRAY_LEN(prefix_fields));
    case FM_METHOD_PROMPT:
        return with_defaults(prompt_fields, FM_ARRAY_LEN(prompt_fields));
    case FM_METHOD_NORMS:
        return with_defaults(norm_fields, FM_ARRAY_LEN(norm_fields));
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
        return fold_defaults(m);
    case FM_METHOD_FULL:
    case FM_METHOD_PRETRAIN:
    case FM_METHOD_BITFIT:
        break;
    }
    return NULL;
}

fm_status fmt_method_config(fm_json **out, fmt_net *net, const fm_train_config *c,
                            const char *base_name)
{
    fm_json *o = fields_of(c->method);
    fm_status rc = o ? common(o, c, base_name) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && c->method == FM_METHOD_LORA)
        rc = lora(o, net, c);
    else if (rc == FM_OK && c->method == FM_METHOD_IA3)
        rc = ia3(o, net, c);
    else if (rc == FM_OK && c->method == FM_METHOD_NORMS)
        rc = fm_json_set(o, "target_modules", fmt_norms_json(&net->arch, c->targets));
    else if (rc == FM_OK && fmt_fold_kind(c->method))
        rc = fold(o, net, c);
    else if (rc == FM_OK)
        rc = virtuals(o, net, c);
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}
