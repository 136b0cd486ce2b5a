/* method_full.c - parameters that train whole: a full fine-tune with frozen parts, biases alone
 * (BitFit, Ben Zaken et al. 2021), and modules and biases that an adapter also saves. */
#include "train/net/method.h"

#include <stdio.h>
#include <string.h>

/* A parameter that the parent's file has in one tensor with others would be written beside that
 * tensor, where nothing reads it. */
static fm_status check_apart(const fm_arch *a, const fm_param *p)
{
    const char *shared = strstr(p->name, "shared_mlp.");
    if (!fm_arch_stacks(a, p->place))
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: files of %s have %s in one tensor, and these do not train whole; "
                   "freeze=%s leaves them as they are, and adapters of other modules train too",
                   p->name, a->family,
                   shared ? "gate and up of the shared expert" : "all experts of a layer",
                   shared ? "experts,shared_mlp" : "experts");
}

static bool params_has(const fmt_params *ps, const char *name)
{
    for (size_t i = 0; i < ps->count; i++)
        if (strcmp(ps->item[i].name, name) == 0)
            return true;
    return false;
}

static bool is_bias(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".bias") == 0;
}

/* "model.norm.weight" -> "model.norm" */
static void module_part(const fm_param *p, char *out, size_t room)
{
    const char *dot = strrchr(p->name, '.');
    (void)snprintf(out, room, "%.*s", (int)(dot ? dot - p->name : 0), p->name);
}

/* Checks that each name of the list is a module of the parent or lies above one. */
static fm_status check_modules(const fm_arch *a, const char *list, const char *setting,
                               bool (*names)(const char *path, const char *list))
{
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));) {
        char one[FMT_MODULE_BYTES];
        bool found = false;
        fm_param p;
        (void)snprintf(one, sizeof(one), "%.*s", (int)len, name);
        for (uint32_t i = 0; !found && fm_arch_param(a, i, &p); i++) {
            char module[FMT_MODULE_BYTES];
            module_part(&p, module, sizeof(module));
            found = names(module, one);
        }
        found = found || names(a->head_name, one);
        if (!found)
            return fm_fail(FM_EBASE, "%s: the parent has no module '%s'", setting, one);
    }
    return FM_OK;
}

fm_status fmt_full_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    fm_param p;
    FM_TRY(check_modules(&net->arch, c->freeze, "freeze", fmt_lies_in));

    FM_TRY(fmt_check_layers(c->layers, net->arch.layers));
    for (uint32_t i = 0; fm_arch_param(&net->arch, i, &p); i++) {
        char module[FMT_MODULE_BYTES];
        module_part(&p, module, sizeof(module));
        if (fmt_lies_in(module, c->freeze) ||
            (p.layer >= 0 && !fmt_layer_listed(c->layers, p.layer)))
            continue;
        FM_TRY(check_apart(&net->arch, &p));
        FM_TRY(fmt_net_train(net, ps, p.name, &p.shape, p.name));
    }
    if (ps->count == 0)
        return fm_fail(FM_EINVAL, "freeze and layers leave nothing to train");
    return FM_OK;
}

fm_status fmt_bitfit_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    fm_param p;
    FM_TRY(fmt_check_layers(c->layers, net->arch.layers));

    for (uint32_t i = 0; fm_arch_param(&net->arch, i, &p); i++)
        if (is_bias(p.name) && !fm_arch_stacks(&net->arch, p.place) &&
            (!c->layers[0] || (p.layer >= 0 && fmt_layer_listed(c->layers, p.layer))))
            FM_TRY(fmt_net_train(net, ps, p.name, &p.shape, p.name));
    if (ps->count == 0)
        return fm_fail(FM_EBASE,
                       "bitfit trains biases, and this %s has none%s; use lora, ia3 or full",
                       net->arch.family, c->layers[0] ? " in the layers asked for" : "");
    return FM_OK;
}

static fm_status save_param(fmt_net *net, fmt_params *ps, const char *name, const fm_shape *shape)
{
    char peft[FMT_MODULE_BYTES + 16];
    char as[FMT_MODULE_BYTES + 64];

    fmt_peft_name(net, name, peft, sizeof(peft));
    (void)snprintf(as, sizeof(as), FMT_PEFT_PREFIX "%s", peft);
    return params_has(ps, as) ? FM_OK : fmt_net_train(net, ps, name, shape, as);
}

fm_status fmt_saved_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    const fm_arch *a = &net->arch;
    fmt_linear *head = &net->outer[FMT_HEAD];
    fm_param p;
    FM_TRY(c->objective == FM_OBJECTIVE_CLASSIFY
               ? FM_OK /* the objective declares the head */
               : check_modules(a, c->modules_to_save, "modules_to_save", fmt_is_saved));

    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        char module[FMT_MODULE_BYTES];
        module_part(&p, module, sizeof(module));
        if (!fmt_is_saved(module, c->modules_to_save))
            continue;
        FM_TRY(check_apart(a, &p));
        FM_TRY(save_param(net, ps, p.name, &p.shape));
    }
    /* a tied head is a parameter of its own only when it is saved */
    if (a->tied && head->module[0] && fmt_is_saved(head->module, c->modules_to_save)) {
        char name[FMT_MODULE_BYTES + 16];
        fm_shape shape = {.rank = 2, .dim = {head->out, head->in}};
        (void)snprintf(name, sizeof(name), "%s.weight", head->module);
        FM_TRY(save_param(net, ps, name, &shape));
    }
    return FM_OK;
}

/* ---- norms ---- */

/* Whether p is of a norm: a vector, and no bias of a linear module, which has a matrix as well. */
static bool is_norm(const fm_arch *a, const fm_param *p)
{
    char module[FMT_MODULE_BYTES];
    char other[FMT_MODULE_BYTES];
    fm_param q;

    module_part(p, module, sizeof(module));
    for (uint32_t i = 0; p->shape.rank == 1 && fm_arch_param(a, i, &q); i++) {
        module_part(&q, other, sizeof(other));
        if (q.shape.rank > 1 && strcmp(module, other) == 0)
            return false;
    }
    return p->shape.rank == 1;
}

/* The last part of a norm's name, which PEFT matches. */
static const char *last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

fm_json *fmt_norms_json(const fm_arch *a, const char *targets)
{
    char all[512] = "";
    fm_param p;

    for (uint32_t i = 0; !targets[0] && fm_arch_param(a, i, &p); i++) {
        char module[FMT_MODULE_BYTES];
        size_t n = strlen(all);
        module_part(&p, module, sizeof(module));
        if (is_norm(a, &p) && !fmt_is_saved(last_part(module), all))
            (void)snprintf(all + n, sizeof(all) - n, "%s%s", n ? "," : "", last_part(module));
    }
    return fmt_names_json(targets[0] ? targets : all);
}

fm_status fmt_norms_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    fm_param p;
    FM_TRY(check_modules(&net->arch, c->targets, "targets", fmt_is_saved));

    for (uint32_t i = 0; fm_arch_param(&net->arch, i, &p); i++) {
        char module[FMT_MODULE_BYTES];
        char peft[FMT_MODULE_BYTES + 16];
        char as[FMT_MODULE_BYTES + 64];
        module_part(&p, module, sizeof(module));
        if (!is_norm(&net->arch, &p) || (c->targets[0] && !fmt_is_saved(module, c->targets)))
            continue;
        fmt_peft_name(net, p.name, peft, sizeof(peft));
        const char *tail = strrchr(peft, '.');
        (void)snprintf(as, sizeof(as), FMT_PEFT_PREFIX "%.*s.ln_tuning_layers%s",
                       (int)(tail - peft), peft, tail);
        FM_TRY(fmt_net_train(net, ps, p.name, &p.shape, as));
    }
    if (ps->count == 0)
        return fm_fail(FM_EBASE, "ln_tuning: targets '%s' names no norm of this %s", c->targets,
                       net->arch.family);
    return FM_OK;
}

/* ---- biases ---- */

/* The linear module whose bias is `name`; NULL: the bias of a norm. */
static const fmt_linear *linear_of_bias(fmt_net *net, const char *name)
{
    size_t n = strlen(name) - strlen(".bias");
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (strncmp(l->module, name, n) == 0 && l->module[n] == '\0')
            return l;
    return NULL;
}

/* PEFT wraps a module that it adapts, so its bias is named under base_layer. */
fm_status fmt_biases_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c)
{
    bool all = strcmp(c->bias, "all") == 0;
    size_t before = ps->count;
    fm_param p;

    if (strcmp(c->bias, "none") == 0 || !c->bias[0])
        return FM_OK;
    for (uint32_t i = 0; fm_arch_param(&net->arch, i, &p); i++) {
        char as[FMT_MODULE_BYTES + 64];
        char peft[FMT_MODULE_BYTES + 16];
        if (!is_bias(p.name) || fm_arch_stacks(&net->arch, p.place))
            continue;
        const fmt_linear *l = linear_of_bias(net, p.name);
        bool wrapped = l && fmt_is_target(net, l, c, c->targets);
        if (!all && !wrapped)
            continue;
        fmt_peft_name(net, p.name, peft, sizeof(peft));
        int stem = (int)(strlen(peft) - strlen(".bias"));
        (void)snprintf(as, sizeof(as), FMT_PEFT_PREFIX "%.*s%s.bias", stem, peft,
                       wrapped ? ".base_layer" : "");
        if (!fmt_is_saved(peft, c->modules_to_save))
            FM_TRY(fmt_net_train(net, ps, p.name, &p.shape, as));
    }
    if (ps->count == before)
        return fm_fail(FM_EBASE, "bias=%s: the %s of this %s has no bias", c->bias,
                       all ? "whole" : "chosen part", net->arch.family);
    return FM_OK;
}
