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
    int taken; /* the kinds that may set it */
} fields[] = {
    /* Read here: by the engine, or by what exports and trains an adapter. */
    {"peft_type", ALL},
    {"r", LORAS},
    {"lora_alpha", LORAS},
    {"rank_pattern", LORAS},
    {"alpha_pattern", LORAS},
    {"use_rslora", LORAS},
    {"use_dora", DORA},
    {"bias", LORAS},
    {"init_lora_weights", LORAS},
    {"ensure_weight_tying", LORAS},
    {"fan_in_fan_out", LORAS | IA3},
    {"feedforward_modules", IA3},
    {"modules_to_save", ALL},
    {"num_virtual_tokens", VIRTUAL},
    {"num_transformer_submodules", VIRTUAL},
    {"num_layers", VIRTUAL},
    {"num_attention_heads", VIRTUAL},
    {"token_dim", VIRTUAL},
    /* Which modules were trained: the names of the tensors say it. */
    {"target_modules", ALL},
    {"exclude_modules", ALL},
    {"layers_to_transform", LORAS},
    {"layers_pattern", LORAS},
    /* Where it comes from. */
    {"task_type", ALL},
    {"auto_mapping", ALL},
    {"base_model_name_or_path", ALL},
    {"revision", ALL},
    {"peft_version", ALL},
    {"inference_mode", ALL},
    /* Of training alone, or read by PEFT only beside a field that is refused. */
    {"lora_dropout", LORAS},
    {"init_ia3_weights", IA3},
    {"init_weights", PREFIX},
    {"encoder_hidden_size", VIRTUAL},
    {"prefix_projection", VIRTUAL}, /* PEFT saves what came out of the projection */
    {"prompt_tuning_init", PROMPT},
    {"prompt_tuning_init_text", PROMPT},
    {"tokenizer_name_or_path", PROMPT},
    {"tokenizer_kwargs", PROMPT},
    {"loftq_config", LORAS},
    {"eva_config", LORAS},
    {"corda_config", LORAS},
    {"lora_ga_config", LORAS},
    {"qalora_group_size", LORAS},
    {"megatron_core", LORAS},
    {"runtime_config", LORAS}, /* PEFT passes over it */
    /* Not computed here. */
    {"lora_bias", 0},
    {"target_parameters", 0},
    {"trainable_token_indices", 0},
    {"layer_replication", 0},
    {"alora_invocation_tokens", 0},
    {"arrow_config", 0},
    {"kasa_config", 0},
    {"monteclora_config", 0},
    {"velora_config", 0},
    {"use_bdlora", 0},
    {"use_qalora", 0},
    {"megatron_config", 0},
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

static fm_status check_field(const struct kind *k, const char *name, const char *what)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return fields[i].taken & k->bit
                       ? FM_OK
                       : fm_fail(FM_EUNSUPPORTED,
                                 "%s: adapter setting '%s' is not supported for kind %s; merge the "
                                 "adapter with PEFT (merge_and_unload) and import the whole model",
                                 what, name, k->name);
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
        return FM_OK;
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), "");
    if (strcmp(type, k->peft_type) != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: peft_type '%.100s' in a folder of kind %s, which wants %s", what, type,
                       k->name, k->peft_type);
    for (void *it = fm_json_iter(config); it; it = fm_json_next(config, it))
        if (!is_off(fm_json_iter_value(it)))
            FM_TRY(check_field(k, fm_json_iter_key(it), what));
    if (k->bit & LORAS) {
        FM_TRY(check_init(config, what));
        FM_TRY(check_bias(config, what));
    }
    return FM_OK;
}
