/* adapter_config.c - every field of PEFT's adapter_config.json and what this engine does with it.
 *
 * An adapter is refused by name where a field that is set would change what the model computes and
 * is not computed here. PEFT writes null, false or an empty value for a field that is not in use;
 * such a field never stands in the way, known or not. */
#include "store/source.h"

#include <stdio.h>
#include <string.h>

enum {
    LORA = 1 << 0,
    DORA = 1 << 1,
    IA3 = 1 << 2,
    PREFIX = 1 << 3,
    PROMPT = 1 << 4,
    P_TUNING = 1 << 5,
    ADALORA = 1 << 6,
    VERA = 1 << 7,
    VBLORA = 1 << 8,
    RANDLORA = 1 << 9,
    LOHA = 1 << 10,
    LOKR = 1 << 11,
    FOURIER = 1 << 12,
    SHIRA = 1 << 13,
    MISS = 1 << 14,
    OFT = 1 << 15,
    BOFT = 1 << 16,
    HRA = 1 << 17,
    TOKENS = 1 << 18,
    NORMS = 1 << 19,
    LORAS = LORA | DORA,
    FACTORS = LORAS | ADALORA,
    LYCORIS = LOHA | LOKR,
    VIRTUAL = PREFIX | PROMPT | P_TUNING,
    ALL = (1 << 20) - 1,
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
    {"p_tuning", "P_TUNING", P_TUNING},
    {"adalora", "ADALORA", ADALORA},
    {"vera", "VERA", VERA},
    {"vblora", "VBLORA", VBLORA},
    {"randlora", "RANDLORA", RANDLORA},
    {"loha", "LOHA", LOHA},
    {"lokr", "LOKR", LOKR},
    {"fourierft", "FOURIERFT", FOURIER},
    {"shira", "SHIRA", SHIRA},
    {"miss", "MISS", MISS},
    {"oft", "OFT", OFT},
    {"boft", "BOFT", BOFT},
    {"hra", "HRA", HRA},
    {"trainable_tokens", "TRAINABLE_TOKENS", TOKENS},
    {"ln_tuning", "LN_TUNING", NORMS},
};

/* A field that is in the table for other kinds alone is refused where it is set. */
static const struct field {
    const char *name;
    int taken;         /* the kinds that may set it */
    fm_json_type type; /* NULL: of any; what is read here and is of another is refused */
} fields[] = {
    /* Read here: by the engine, or by what exports and trains an adapter. */
    {"peft_type", ALL, FM_JSON_NULL},
    {"r", ALL, FM_JSON_NULL},
    {"lora_alpha", FACTORS, FM_JSON_NULL},
    {"alpha", LYCORIS, FM_JSON_NULL},
    {"rank_pattern", FACTORS | LYCORIS, FM_JSON_OBJECT},
    {"alpha_pattern", LORAS | LYCORIS, FM_JSON_OBJECT},
    {"use_rslora", LORAS, FM_JSON_BOOL},
    {"use_dora", DORA, FM_JSON_BOOL},
    {"bias", ALL, FM_JSON_NULL},
    {"lora_bias", LORA, FM_JSON_BOOL},
    {"trainable_token_indices", LORA, FM_JSON_NULL},
    {"token_indices", TOKENS, FM_JSON_ARRAY},
    {"init_lora_weights", FACTORS, FM_JSON_NULL},
    {"ensure_weight_tying", LORAS, FM_JSON_BOOL},
    {"fan_in_fan_out", FACTORS | IA3 | VERA | VBLORA | RANDLORA | FOURIER, FM_JSON_BOOL},
    {"feedforward_modules", IA3, FM_JSON_NULL},
    {"modules_to_save", ALL, FM_JSON_NULL},
    {"num_virtual_tokens", VIRTUAL, FM_JSON_NULL},
    {"num_transformer_submodules", VIRTUAL, FM_JSON_NULL},
    {"num_layers", VIRTUAL, FM_JSON_NULL},
    {"num_attention_heads", VIRTUAL, FM_JSON_NULL},
    {"token_dim", VIRTUAL, FM_JSON_NULL},
    {"encoder_reparameterization_type", P_TUNING, FM_JSON_NULL}, /* PEFT saves what came out */
    {"save_projection", VERA | RANDLORA, FM_JSON_BOOL},
    {"projection_prng_key", VERA | RANDLORA, FM_JSON_INT},
    {"randlora_alpha", RANDLORA, FM_JSON_NULL},
    {"topk", VBLORA, FM_JSON_INT},
    {"num_vectors", VBLORA, FM_JSON_INT},
    {"vector_length", VBLORA, FM_JSON_INT},
    {"save_only_topk_weights", VBLORA, FM_JSON_BOOL},
    {"n_frequency", FOURIER, FM_JSON_INT},
    {"n_frequency_pattern", FOURIER, FM_JSON_OBJECT},
    {"scaling", FOURIER, FM_JSON_NULL},
    {"random_loc_seed", FOURIER, FM_JSON_INT},
    {"mini_r", MISS, FM_JSON_INT},
    {"oft_block_size", OFT, FM_JSON_INT},
    {"coft", OFT, FM_JSON_BOOL},
    {"eps", OFT, FM_JSON_NULL},
    {"block_share", OFT, FM_JSON_BOOL},
    {"use_cayley_neumann", OFT, FM_JSON_BOOL},
    {"num_cayley_neumann_terms", OFT, FM_JSON_INT},
    {"boft_block_size", BOFT, FM_JSON_INT},
    {"boft_block_num", BOFT, FM_JSON_INT},
    {"boft_n_butterfly_factor", BOFT, FM_JSON_INT},
    {"apply_GS", HRA, FM_JSON_BOOL},
    /* Which modules were trained: the names of the tensors say it. */
    {"target_modules", ALL, FM_JSON_NULL},
    {"exclude_modules", ALL, FM_JSON_NULL},
    {"layers_to_transform", ALL, FM_JSON_NULL},
    {"layers_pattern", ALL, FM_JSON_NULL},
    /* Where it comes from. */
    {"task_type", ALL, FM_JSON_NULL},
    {"auto_mapping", ALL, FM_JSON_NULL},
    {"base_model_name_or_path", ALL, FM_JSON_NULL},
    {"revision", ALL, FM_JSON_NULL},
    {"peft_version", ALL, FM_JSON_NULL},
    {"inference_mode", ALL, FM_JSON_NULL},
    /* Of training alone, or read by PEFT only beside a field that is refused. */
    {"lora_dropout", FACTORS, FM_JSON_NULL},
    {"init_ia3_weights", IA3, FM_JSON_NULL},
    {"init_weights", ALL, FM_JSON_NULL}, /* but MiSS reads it */
    {"encoder_hidden_size", VIRTUAL, FM_JSON_NULL},
    {"prefix_projection", VIRTUAL, FM_JSON_NULL}, /* PEFT saves what came out of the projection */
    {"prompt_tuning_init", PROMPT, FM_JSON_NULL},
    {"prompt_tuning_init_text", PROMPT, FM_JSON_NULL},
    {"tokenizer_name_or_path", PROMPT, FM_JSON_NULL},
    {"tokenizer_kwargs", PROMPT, FM_JSON_NULL},
    {"loftq_config", FACTORS, FM_JSON_NULL},
    {"eva_config", LORAS, FM_JSON_NULL},
    {"corda_config", LORAS, FM_JSON_NULL},
    {"lora_ga_config", LORAS, FM_JSON_NULL},
    {"qalora_group_size", FACTORS, FM_JSON_NULL},
    {"megatron_core", FACTORS, FM_JSON_NULL},
    {"runtime_config", LORAS, FM_JSON_NULL}, /* PEFT passes over it */
    {"target_r", ADALORA, FM_JSON_NULL},
    {"init_r", ADALORA, FM_JSON_NULL},
    {"tinit", ADALORA, FM_JSON_NULL},
    {"tfinal", ADALORA, FM_JSON_NULL},
    {"deltaT", ADALORA, FM_JSON_NULL},
    {"beta1", ADALORA, FM_JSON_NULL},
    {"beta2", ADALORA, FM_JSON_NULL},
    {"orth_reg_weight", ADALORA, FM_JSON_NULL},
    {"total_step", ADALORA, FM_JSON_NULL},
    {"vera_dropout", VERA, FM_JSON_NULL},
    {"d_initial", VERA, FM_JSON_NULL},
    {"vblora_dropout", VBLORA, FM_JSON_NULL},
    {"init_logits_std", VBLORA, FM_JSON_NULL},
    {"init_vector_bank_bound", VBLORA, FM_JSON_NULL},
    {"randlora_dropout", RANDLORA, FM_JSON_NULL},
    {"sparse", RANDLORA, FM_JSON_NULL}, /* of the projections, which are in the file */
    {"very_sparse", RANDLORA, FM_JSON_NULL},
    {"rank_dropout", LYCORIS, FM_JSON_NULL},
    {"rank_dropout_scale", LYCORIS, FM_JSON_NULL},
    {"module_dropout", LYCORIS | OFT, FM_JSON_NULL},
    {"use_effective_conv2d", LYCORIS, FM_JSON_NULL},
    {"decompose_both", LOKR, FM_JSON_NULL},
    {"decompose_factor", LOKR, FM_JSON_NULL},
    {"mask_type", SHIRA, FM_JSON_NULL}, /* the places are in the file */
    {"random_seed", SHIRA, FM_JSON_NULL},
    {"miss_dropout", MISS, FM_JSON_NULL},
    {"boft_dropout", BOFT, FM_JSON_NULL},
    {"encoder_num_layers", P_TUNING, FM_JSON_NULL},
    {"encoder_dropout", P_TUNING, FM_JSON_NULL},
    /* Not computed here. */
    {"target_parameters", 0, FM_JSON_NULL},
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

/* The laws of a LoRA's start that leave the base's weights alone, and those that take a part out of
 * them which can be found again (adapted.h). The others (pissa_niter_N, corda, loftq, lora_ga) take
 * out what depends on chance or data: the factors mean nothing on the base as it is. */
static const char *const plain_inits[] = {"gaussian", "eva",   "orthogonal", "mica",
                                          "pissa",    "olora", "OLoRA"};

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
