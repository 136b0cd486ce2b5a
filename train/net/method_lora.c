/* method_lora.c - LoRA (Hu et al. 2021), rsLoRA, LoRA+ (Hayou et al. 2024): low-rank terms. */
#include "train/net/method.h"

#include "store/base/mem.h"
#include "store/base/text/regex.h"

#include <stdio.h>
#include <string.h>

fm_status fmt_check_free(const fmt_linear *l)
{
    if (l->in_scale.s || l->out_scale.s)
        return fm_fail(FM_EUNSUPPORTED,
                       "'%s' is scaled by the parent's adapter (DoRA or IA3); nothing can be put "
                       "on top of it",
                       l->module);
    return FM_OK;
}

static fm_status add_factor(fmt_params *ps, int32_t *index, const char *module, const char *what,
                            uint64_t rows, uint64_t cols)
{
    char name[FMT_MODULE_BYTES + 96];
    fm_shape shape = {.rank = 2, .dim = {rows, cols}};

    (void)snprintf(name, sizeof(name), FMT_PEFT_PREFIX "%s.%s", module, what);
    return fmt_params_add(ps, index, name, &shape);
}

fm_status fmt_lora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                       const fm_lora_spec *spec, const fm_json *config)
{
    bool embed = l == &net->outer[FMT_EMBED];
    bool dora = fm_json_bool(fm_json_get(config, "use_dora"), false);
    fmt_term t = {.r = spec->r, .scale = spec->scale, .a_param = -1, .b_param = -1};
    FM_TRY(fmt_check_free(l));

    if (l == &net->outer[FMT_POSITIONS] || l == &net->outer[FMT_TYPES])
        return fm_fail(FM_EUNSUPPORTED, "a low-rank term on '%s' is not supported", l->module);
    if (dora && embed)
        return fm_fail(FM_EUNSUPPORTED,
                       "dora on '%s' is not supported: only lora fits on an embedding", l->module);
    if (embed) { /* in: tokens; PEFT: A [r, V], B [H, r] */
        FM_TRY(add_factor(ps, &t.a_param, module, "lora_embedding_A", spec->r, l->out));
        ps->item[t.a_param].turned = 1;
        FM_TRY(add_factor(ps, &t.b_param, module, "lora_embedding_B", l->in, spec->r));
    } else {
        t.dropout = (float)fm_json_real(fm_json_get(config, "lora_dropout"), 0.0);
        FM_TRY(add_factor(ps, &t.a_param, module, "lora_A.weight", spec->r, l->in));
        FM_TRY(add_factor(ps, &t.b_param, module, "lora_B.weight", l->out, spec->r));
        FM_TRY(fmt_stream(&t.stream, "dropout", l->module));
    }
    FM_TRY(fm_grow(&l->term, &l->cap, l->terms + 1, sizeof(*l->term)));
    l->term[l->terms++] = t;
    return dora ? fmt_dora_add(net, ps, l, module) : FM_OK;
}

/* Every name of a pattern must mean a chosen module; else a typing error would pass unseen. */
static fm_status check_patterns(fmt_net *net, const fm_train_config *c, const fm_json *config,
                                const char *field)
{
    const fm_json *map = fm_json_get(config, field);

    for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it)) {
        const char *key = fm_json_iter_key(it);
        bool found = false;
        fmt_linear *l;
        for (size_t i = 0; !found && (l = fmt_net_linear(net, i)); i++)
            found = fmt_is_target(net, l, c, c->targets) &&
                    (fm_pattern_is_regex(key) || fmt_names_module(l->module, key, strlen(key)));
        if (!found)
            return fm_fail(FM_EBASE, "%s: none of the modules chosen by targets is named '%s'",
                           field, key);
    }
    return FM_OK;
}

fm_status fmt_check_patterns(fmt_net *net, const fm_train_config *c, const fm_json *config)
{
    FM_TRY(check_patterns(net, c, config, "rank_pattern"));
    return check_patterns(net, c, config, "alpha_pattern");
}

void fmt_loraplus(fmt_params *ps, double ratio)
{
    for (size_t i = 0; i < ps->count; i++) {
        fmt_param *p = &ps->item[i];
        if (p->shape.rank == 1 || strstr(p->name, ".lora_B.weight"))
            p->lr_scale = (float)ratio;
    }
}

fm_status fmt_lora_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                           const fm_json *config)
{
    fmt_linear *l;
    FM_TRY(fmt_check_targets(net, c->targets, "targets"));

    FM_TRY(fmt_check_patterns(net, c, config));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        fm_lora_spec spec;
        char module[FMT_MODULE_BYTES + 16];
        if (!fmt_is_target(net, l, c, c->targets))
            continue;
        fmt_peft_name(net, l->module, module, sizeof(module));
        FM_TRY(fm_lora_spec_of(&spec, config, module));
        FM_TRY(fmt_lora_add(net, ps, l, module, &spec, config));
    }
    FM_TRY(fmt_saved_declare(net, ps, c));
    FM_TRY(fmt_biases_declare(net, ps, c));
    fmt_loraplus(ps, c->loraplus);
    return FM_OK;
}
