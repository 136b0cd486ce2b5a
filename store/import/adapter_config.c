/* adapter_config.c - every field of PEFT's adapter_config.json and what this engine does with it.
 *
 * An adapter is refused by name where a field that is set would change what the model computes and
 * is not computed here. PEFT writes null, false or an empty value for a field that is not in use;
 * such a field never stands in the way, known or not. */
#include "store/source.h"

#include <stdio.h>
#include <string.h>

enum {
    LORA = 1,
    DORA = 2,
    IA3 = 4,
    PREFIX = 8,
    PROMPT = 16,
    LORAS = LORA | DORA,
    VIRTUAL = PREFIX | PROMPT,
    ALL = LORAS | IA3 | VIRTUAL,
};

static const struct kind {
    const char *name, *peft_type;
    int bit;
} kinds[] = {
    {"lora", "LORA", LORA},
    {"dora", "LORA", DORA},
    {"ia3", "IA3", IA3},
    {"prefix", "PREFIX_TUNING", PREFIX},
    {"prompt", "PROMPT_TUNING", PROMPT},
};

/* A field that is in the table for other kinds alone is refused where it is set. */
static const struct field {
    const char *name;
    int taken;         /* the kinds that may set it */
    fm_json_type type; /* NULL: of any; what is read here and is of another is refused */
} fields[] = {
    /* Read here: by the engine, or by what exports and trains an adapter. */
    {"peft_type", ALL, FM_JSON_NULL},
    {"r", LORAS, FM_JSON_NULL},
    {"lora_alpha", LORAS, FM_JSON_NULL},
    {"rank_pattern", LORAS, FM_JSON_OBJECT},
    {"alpha_pattern", LORAS, FM_JSON_OBJECT},
    {"use_rslora", LORAS, FM_JSON_BOOL},
    {"use_dora", DORA, FM_JSON_BOOL},
    {"bias", LORAS, FM_JSON_NULL},
    {"init_lora_weights", LORAS, FM_JSON_NULL},
    {"ensure_weight_tying", LORAS, FM_JSON_BOOL},
    {"fan_in_fan_out", LORAS | IA3, FM_JSON_BOOL},
    {"feedforward_modules", IA3, FM_JSON_NULL},
    {"modules_to_save", ALL, FM_JSON_NULL},
    {"num_virtual_tokens", VIRTUAL, FM_JSON_NULL},
    {"num_transformer_submodules", VIRTUAL, FM_JSON_NULL},
    {"num_layers", VIRTUAL, FM_JSON_NULL},
    {"num_attention_heads", VIRTUAL, FM_JSON_NULL},
    {"token_dim", VIRTUAL, FM_JSON_NULL},
    /* Which modules were trained: the names of the tensors say it. */
    {"target_modules", ALL, FM_JSON_NULL},
    {"exclude_modules", ALL, FM_JSON_NULL},
    {"layers_to_transform", LORAS, FM_JSON_NULL},
    {"layers_pattern", LORAS, FM_JSON_NULL},
    /* Where it comes from. */
    {"task_type", ALL, FM_JSON_NULL},
    {"auto_mapping", ALL, FM_JSON_NULL},
    {"base_model_name_or_path", ALL, FM_JSON_NULL},
    {"revision", ALL, FM_JSON_NULL},
    {"peft_version", ALL, FM_JSON_NULL},
    {"inference_mode", ALL, FM_JSON_NULL},
    /* Of training alone, or read by PEFT only beside a field that is refused. */
    {"lora_dropout", LORAS, FM_JSON_NULL},
    {"init_ia3_weights", IA3, FM_JSON_NULL},
    {"init_weights", PREFIX, FM_JSON_NULL},
    {"encoder_hidden_size", VIRTUAL, FM_JSON_NULL},
    {"prefix_projection", VIRTUAL, FM_JSON_NULL}, /* PEFT saves what came out of the projection */
    {"prompt_tuning_init", PROMPT, FM_JSON_NULL},
    {"prompt_tuning_init_text", PROMPT, FM_JSON_NULL},
    {"tokenizer_name_or_path", PROMPT, FM_JSON_NULL},
    {"tokenizer_kwargs", PROMPT, FM_JSON_NULL},
    {"loftq_config", LORAS, FM_JSON_NULL},
    {"eva_config", LORAS, FM_JSON_NULL},
    {"corda_config", LORAS, FM_JSON_NULL},
    {"lora_ga_config", LORAS, FM_JSON_NULL},
    {"qalora_group_size", LORAS, FM_JSON_NULL},
    {"megatron_core", LORAS, FM_JSON_NULL},
    {"runtime_config", LORAS, FM_JSON_NULL}, /* PEFT passes over it */
    /* Not computed here. */
    {"lora_bias", 0, FM_JSON_NULL},
    {"target_parameters", 0, FM_JSON_NULL},
    {"trainable_token_indices", 0, FM_JSON_NULL},
    {"layer_replication", 0, FM_JSON_NULL},
    {"alora_invocation_tokens", 0, FM_JSON_NULL},
    {"arrow_config", 0, FM_JSON_NULL},
    {"kasa_config", 0, FM_JSON_NULL},
    {"monteclora_config", 0, FM_JSON_NULL},
    {"velora_config", 0, FM_JSON_NULL},
    {"use_bdlora", 0, FM_JSON_NULL},
    {"use_qalora", 0, FM_JSON_NULL},
    {"megatron_config", 0, FM_JSON_NULL},
};

/* The laws of a LoRA's start that leave the base's weights alone. The others (pissa, pissa_niter_N,
 * olora, corda, loftq, lora_ga) take a part out of them: PEFT does so again when it loads, or wants
 * the changed base, and either way the factors mean nothing on the base as it is. */
static const char *const plain_inits[] = {"gaussian", "eva", "orthogonal", "mica"};

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

static fm_status check_known(const struct kind *k, const struct field *f, const fm_json *v,
                             const char *what)
{
    if (!(f->taken & k->bit))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: adapter setting '%s' is not supported for kind %s; merge the "
                       "adapter with PEFT (merge_and_unload) and import the whole model",
                       what, f->name, k->name);
    if (f->type != FM_JSON_NULL && !fm_json_is(v, f->type))
        return fm_fail(FM_EINVAL, "%s: field '%s' must be %s", what, f->name,
                       f->type == FM_JSON_BOOL ? "true or false" : "an object");
    return FM_OK;
}

static fm_status check_field(const struct kind *k, const char *name, const fm_json *v,
                             const char *what)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return check_known(k, &fields[i], v, what);
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: adapter setting '%.100s' is not known here, and it is set; where it does "
                   "not change what the model computes, take it out or make it null; else merge "
                   "the adapter with PEFT (merge_and_unload) and import the whole model",
                   what, name);
}

static fm_status check_init(const fm_json *config, const char *what)
{
    const fm_json *v = fm_json_get(config, "init_lora_weights");
    const char *init = fm_json_cstr(v, "");
    if (is_off(v) || fm_json_is(v, FM_JSON_BOOL))
        return FM_OK;
    for (size_t i = 0; i < FM_ARRAY_LEN(plain_inits); i++)
        if (strcmp(init, plain_inits[i]) == 0)
            return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: field 'init_lora_weights' is '%.100s': such an adapter belongs to a base "
                   "whose weights that start has changed, and would answer wrongly on this one; "
                   "save it as a plain LoRA (PEFT's save_pretrained with "
                   "path_initial_model_for_weight_conversion), or merge it with PEFT "
                   "(merge_and_unload) and import the whole model",
                   what, init);
}

static fm_status check_bias(const fm_json *config, const char *what)
{
    const char *bias = fm_json_cstr(fm_json_get(config, "bias"), "none");
    if (strcmp(bias, "none") == 0 || strcmp(bias, "all") == 0 || strcmp(bias, "lora_only") == 0)
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED, "%s: bias '%.100s' is not supported; none, all, lora_only are",
                   what, bias);
}

fm_status fm_adapter_config_check(const fm_json *config, const char *kind, const char *what)
{
    const struct kind *k = NULL;
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].name, kind) == 0)
            k = &kinds[i];
    if (!k)
        return fm_fail(FM_EUNSUPPORTED, "%s: adapter kind %.48s is not computed here", what, kind);
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), "");
    if (strcmp(type, k->peft_type) != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: peft_type '%.100s' in a folder of kind %s, which wants %s", what, type,
                       k->name, k->peft_type);
    for (void *it = fm_json_iter(config); it; it = fm_json_next(config, it))
        if (!is_off(fm_json_iter_value(it)))
            FM_TRY(check_field(k, fm_json_iter_key(it), fm_json_iter_value(it), what));
    if (k->bit & LORAS) {
        FM_TRY(check_init(config, what));
        FM_TRY(check_bias(config, what));
    }
    return FM_OK;
}
