/* quant_config.c - the config's quantization_config, by exclusion: a field is understood, known to
 * be without effect on a finished checkpoint, or refused by name. */
#include "store/quant/plain.h"

#include <string.h>

fm_status fms_quant_refuse(const char *what, const char *field, const char *value)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: config field 'quantization_config' has %s %s; read here are F8 weights "
                   "with scales (fp8, compressed-tensors, fbgemm_fp8, modelopt) and codes of 4 and "
                   "8 bits (gptq, awq, bitsandbytes, compressed-tensors, mxfp4, torchao), ternary "
                   "weights (bitnet)",
                   what, field, value);
}

static bool listed(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (strcmp(*list, key) == 0)
            return true;
    return false;
}

static bool stands_for_nothing(const fm_json *v)
{
    const fm_json_type t = fm_json_typeof(v);
    return t == FM_JSON_NULL ||
           ((t == FM_JSON_ARRAY || t == FM_JSON_OBJECT) && !fm_json_count(v)) ||
           (t == FM_JSON_BOOL && !fm_json_bool(v, true));
}

fm_status fms_quant_keys(const fm_json *o, const char *const *known, const char *const *off,
                         const char *what)
{
    for (void *it = fm_json_iter(o); it; it = fm_json_next(o, it)) {
        const char *key = fm_json_iter_key(it);
        if (listed(known, key))
            continue;
        if (!listed(off, key))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: config field 'quantization_config.%s' is not understood and may "
                           "change the result",
                           what, key);
        if (!stands_for_nothing(fm_json_iter_value(it)))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: config field 'quantization_config.%s' is set, which is not "
                           "supported",
                           what, key);
    }
    return FM_OK;
}

static fm_dtype computed_in(const fm_json *config)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const fm_json *place[] = {config, fm_json_get(config, "text_config")};
    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(keys); k++) {
            const char *word = fm_json_cstr(fm_json_get(place[i], keys[k]), "");
            if (strcmp(word, "float16") == 0)
                return FM_F16;
            if (strcmp(word, "float32") == 0)
                return FM_F32;
        }
    return FM_BF16;
}

/* ==== GPTQ and AWQ ==== */

static fm_status bits_and_group(fms_quant *out, const fm_json *q, bool eight, const char *what)
{
    int64_t bits = fm_json_int(fm_json_get(q, "bits"), 4);
    int64_t group = fm_json_int(fm_json_get(q, "group_size"), 128);
    if (bits != 4 && !(eight && bits == 8))
        return fm_fail(FM_EUNSUPPORTED, "%s: config field 'quantization_config.bits' is %lld; %s",
                       what, (long long)bits, eight ? "4 and 8 are read" : "4 is read");
    if (group != -1 && (group < 1 || group > UINT32_MAX))
        return fm_fail(FM_EINVAL, "%s: config field 'quantization_config.group_size' is %lld", what,
                       (long long)group);
    out->bits = (uint32_t)bits;
    out->group = group < 0 ? 0 : (uint64_t)group;
    return FM_OK;
}

/* How a tool searched for the codes, and how one may compute with them. */
#define SEARCH                                                                                     \
    "quant_method", "bits", "group_size", "sym", "true_sequential", "damp_percent",                \
        "damp_auto_increment", "static_groups", "desc_act", "act_group_aware", "lm_head", "meta",  \
        "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block",             \
        "batch_size", "pad_token_id", "max_input_length", "cache_block_outputs",                   \
        "modules_in_block_to_quantize", "tokenizer", "dataset", "model_name_or_path",              \
        "model_file_base_name", "quantizer", "version", "backend", "use_exllama", "use_cuda_fp16", \
        "exllama_config", "disable_exllama", "pack_dtype", "pack_impl", "mse", "gptaq",            \
        "gptaq_alpha", "offload_to_disk", "offload_to_disk_path", "hyb_act",                       \
        "modules_to_not_convert", "do_fuse", "fuse_max_seq_len", "checkpoint_format", "format",    \
        "method", "zero_point"
static const char *const search[] = {SEARCH, NULL};
/* Other weights than a code, its zero and its scale give; other bits in some layers. */
static const char *const others[] = {"dynamic",       "rotation",         "adapter",         "lora",
                                     "preprocessors", "is_marlin_format", "modules_to_fuse", NULL};

static fm_status gptq(fms_quant *out, const fm_json *q, const char *what)
{
    const char *format = fm_json_cstr(fm_json_get(q, "checkpoint_format"), NULL);
    const char *words = fm_json_cstr(fm_json_get(q, "pack_dtype"), "int32");
    format = format ? format : fm_json_cstr(fm_json_get(q, "format"), "gptq");
    out->form = &fms_quant_form_gptq;
    out->plus_1 = strcmp(format, "gptq") == 0;
    FM_TRY(fms_quant_keys(q, search, others, what));
    if (!out->plus_1 && strcmp(format, "gptq_v2") != 0)
        return fms_quant_refuse(what, "checkpoint_format", format);
    if (strcmp(words, "int32") != 0)
        return fms_quant_refuse(what, "pack_dtype", words);
    return bits_and_group(out, q, true, what);
}

static fm_status awq(fms_quant *out, const fm_json *q, const char *what)
{
    const char *format = fm_json_cstr(fm_json_get(q, "version"), NULL);
    const char *backend = fm_json_cstr(fm_json_get(q, "backend"), "");
    format = format ? format : fm_json_cstr(fm_json_get(q, "format"), "gemm");
    out->form = &fms_quant_form_awq;
    FM_TRY(fms_quant_keys(q, search, others, what));
    if (strcmp(format, "gemm") != 0 && strcmp(format, "GEMM") != 0)
        return fms_quant_refuse(what, "version", format);
    if (strcmp(backend, "llm-awq") == 0)
        return fms_quant_refuse(what, "backend", backend);
    if (!fm_json_bool(fm_json_get(q, "zero_point"), true))
        return fms_quant_refuse(what, "zero_point", "false");
    return bits_and_group(out, q, false, what);
}

/* ==== the others ==== */

/* Its sizes are in the tensors; other fields say what a product is computed in. */
static fm_status bitsandbytes(fms_quant *out, const fm_json *q, const char *what)
{
    static const char *const known[] = {"quant_method",
                                        "load_in_4bit",
                                        "load_in_8bit",
                                        "_load_in_4bit",
                                        "_load_in_8bit",
                                        "bnb_4bit_quant_type",
                                        "bnb_4bit_use_double_quant",
                                        "bnb_4bit_compute_dtype",
                                        "bnb_4bit_quant_storage",
                                        "llm_int8_threshold",
                                        "llm_int8_skip_modules",
                                        "llm_int8_enable_fp32_cpu_offload",
                                        "modules_to_not_convert",
                                        "target_parameters",
                                        NULL};
    static const char *const off[] = {"llm_int8_has_fp16_weight", NULL};
    out->form = &fms_quant_form_bnb;
    return fms_quant_keys(q, known, off, what);
}

static fm_status mxfp4(fms_quant *out, const fm_json *q, const char *what)
{
    static const char *const known[] = {"quant_method", "modules_to_not_convert", "dequantize",
                                        NULL};
    static const char *const off[] = {NULL};
    out->form = &fms_quant_form_mxfp4;
    return fms_quant_keys(q, known, off, what);
}

static bool is_f8_groups(const fm_json *q)
{
    const char *format = fm_json_cstr(fm_json_get(q, "format"), "float-quantized");
    const fm_json *groups = fm_json_get(q, "config_groups");
    bool ints = strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0;
    for (void *it = fm_json_iter(groups); it; it = fm_json_next(groups, it))
        ints = ints ||
               strcmp(fm_json_cstr(fm_json_path(fm_json_iter_value(it), "weights.type"), "float"),
                      "int") == 0;
    return !ints;
}

fm_status fms_quant_of(fms_quant *out, const fm_json *config, const char *what)
{
    const fm_json *q = fm_json_get(config, "quantization_config");
    memset(out, 0, sizeof(*out));
    if (fm_json_typeof(q) == FM_JSON_NULL)
        return FM_OK;
    const char *method = fm_json_cstr(fm_json_get(q, "quant_method"), "(missing)");
    out->dtype = computed_in(config);
    if (strcmp(method, "fp8") == 0 || strcmp(method, "modelopt") == 0 ||
        strcmp(method, "fbgemm_fp8") == 0 ||
        (strcmp(method, "compressed-tensors") == 0 && is_f8_groups(q)))
        return fms_quant_f8(out, q, method, what);
    if (strcmp(fm_json_cstr(fm_json_get(config, "model_type"), ""), "gpt2") == 0)
        return fms_quant_refuse(what, "for GPT-2's matrices [in, out] the quant_method", method);
    if (strcmp(method, "gptq") == 0)
        return gptq(out, q, what);
    if (strcmp(method, "awq") == 0)
        return awq(out, q, what);
    if (strcmp(method, "bitsandbytes") == 0)
        return bitsandbytes(out, q, what);
    if (strcmp(method, "compressed-tensors") == 0)
        return fms_quant_ct(out, q, what);
    if (strcmp(method, "mxfp4") == 0)
        return mxfp4(out, q, what);
    if (strcmp(method, "torchao") == 0)
        return fms_quant_torchao(out, q, what);
    if (strcmp(method, "bitnet") == 0)
        return fms_quant_bitnet(out, q, what);
    return fms_quant_refuse(what, "quant_method", method);
}

fm_status fm_plain_config_check(const fm_json *config, const char *what)
{
    fms_quant q;
    return fms_quant_of(&q, config, what);
}
