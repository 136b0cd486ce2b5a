/* method_ia3.c - IA3 (Liu et al. 2022): learned scales of keys, values and feed-forward inputs. */
#include "train/net/method.h"

#include <stdio.h>
#include <string.h>

/* PEFT's TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING and _FEEDFORWARD_, by model_type; the
 * first entry also serves every family that is built like Llama. */
static const struct usual {
    const char *family;
    const char *targets, *feedforward;
} usual[] = {
    {"", "k_proj,v_proj,down_proj", "down_proj"},
    {"gemma", "q_proj,v_proj,down_proj", "down_proj"},
    {"mixtral", "k_proj,v_proj,w2", "w2"},
    {"phi", "q_proj,v_proj,fc2", "fc2"},
    {"opt", "q_proj,k_proj,fc2", "fc2"},
    {"gptj", "q_proj,v_proj,fc_out", "fc_out"},
    {"gpt_bigcode", "c_attn,mlp.c_proj", "mlp.c_proj"},
    {"falcon", "query_key_value,dense_4h_to_h", "dense_4h_to_h"},
    {"phi3", "qkv_proj,down_proj", "down_proj"},
    {"gpt2", "c_attn,mlp.c_proj", "mlp.c_proj"},
    {"starcoder2", "k_proj,v_proj,c_proj", "c_proj"},
    {"gpt_neox", "query_key_value,dense_4h_to_h", "dense_4h_to_h"},
    {"bert", "key,value,output.dense", "output.dense"},
    {"roberta", "key,value,output.dense", "output.dense"},
    {"xlm-roberta", "key,value,output.dense", "output.dense"},
    {"electra", "key,value,output.dense", "output.dense"}, /* PEFT has none for the next two */
    {"distilbert", "k_lin,v_lin,lin2", "lin2"},
    {"nomic_bert", "Wqkv,fc2", "fc2"},
};

fm_status fmt_ia3_defaults(const fm_arch *a, const fm_train_config *c, const char **targets,
                           const char **feedforward)
{
    const struct usual *u = &usual[0];

    for (size_t i = 1; i < FM_ARRAY_LEN(usual); i++)
        if (strcmp(a->family, usual[i].family) == 0)
            u = &usual[i];
    *targets = c->targets[0] ? c->targets : u->targets;
    *feedforward = c->targets[0] || c->feedforward[0] ? c->feedforward : u->feedforward;
    return FM_OK;
}

fm_status fmt_ia3_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                      bool feedforward)
{
    char name[FMT_MODULE_BYTES + 96];
    fmt_scale *scale = feedforward ? &l->in_scale : &l->out_scale;
    fm_shape shape = {.rank = 2, .dim = {l->out, 1}};
    FM_TRY(fmt_check_free(l));

    if (fmt_net_layer_of(net, l) == FMT_OUTSIDE && l != &net->outer[FMT_HEAD])
        return fm_fail(FM_EUNSUPPORTED, "ia3 on '%s': it is no linear layer", l->module);
    if (feedforward)
        shape = (fm_shape){.rank = 2, .dim = {1, l->in}};
    (void)snprintf(name, sizeof(name), FMT_PEFT_PREFIX "%s.ia3_l", module);
    return fmt_params_add(ps, &scale->param, name, &shape);
}

/* Whether this module's name ends with a name of the list. */
static bool ends_in(const char *module, const char *list)
{
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));)
        if (fmt_names_module(module, name, len))
            return true;
    return false;
}

/* PEFT: feedforward_modules is a subset of target_modules. */
static fm_status check_subset(const char *targets, const char *feedforward)
{
    size_t len = 0;

    if (strcmp(targets, "all-linear") == 0)
        return FM_OK;
    for (const char *name; (name = fmt_next_name(&feedforward, &len));) {
        const char *at = targets;
        size_t n = 0;
        bool found = false;
        for (const char *t; !found && (t = fmt_next_name(&at, &n));)
            found = n == len && memcmp(t, name, n) == 0;
        if (!found)
            return fm_fail(FM_EINVAL, "feedforward: '%.*s' must be one of targets too", (int)len,
                           name);
    }
    return FM_OK;
}

fm_status fmt_ia3_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    const char *targets = NULL;
    const char *feedforward = NULL;
    fmt_linear *l;
    FM_TRY(fmt_ia3_defaults(&net->arch, c, &targets, &feedforward));

    FM_TRY(fmt_check_targets(net, targets, "targets"));
    FM_TRY(fmt_check_targets(net, feedforward, "feedforward"));
    FM_TRY(check_subset(targets, feedforward));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        char module[FMT_MODULE_BYTES + 16];
        if (!fmt_is_target(net, l, c, targets))
            continue;
        fmt_peft_name(net, l->module, module, sizeof(module));
        FM_TRY(fmt_ia3_add(net, ps, l, module, ends_in(module, feedforward)));
    }
    return fmt_saved_declare(net, ps, c);
}
