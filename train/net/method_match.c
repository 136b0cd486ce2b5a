/* method_match.c - which modules the settings of a method choose: PEFT's rules for names. */
#include "train/net/method.h"

#include "infer/arch/table.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *fmt_next_name(const char **at, size_t *len)
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

bool fmt_names_module(const char *module, const char *target, size_t len)
{
    size_t n = strlen(module);

    if (len == 0 || n < len || memcmp(module + n - len, target, len) != 0)
        return false;
    return n == len || module[n - len - 1] == '.';
}

static bool is_part(const char *path, const char *name, size_t len)
{
    for (const char *at = path; at; at = strchr(at, '.')) {
        at += *at == '.';
        if (strncmp(at, name, len) == 0 && (at[len] == '\0' || at[len] == '.'))
            return true;
    }
    return false;
}

bool fmt_lies_in(const char *path, const char *list)
{
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));)
        if (is_part(path, name, len))
            return true;
    return false;
}

bool fmt_is_saved(const char *path, const char *list)
{
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));)
        for (const char *at = path; *at; at++)
            if (strncmp(at, name, len) == 0 && (at[len] == '\0' || at[len] == '.'))
                return true;
    return false;
}

/* Reads "3" or "3-5" into low and high; false: it is neither. */
static bool parse_range(const char *text, size_t len, uint32_t *low, uint32_t *high)
{
    char own[32];
    char *end = NULL;

    if (len >= sizeof(own) || text[0] < '0' || text[0] > '9')
        return false;
    memcpy(own, text, len);
    own[len] = '\0';
    unsigned long a = strtoul(own, &end, 10);
    unsigned long b = a;
    if (*end == '-' && end[1] >= '0' && end[1] <= '9')
        b = strtoul(end + 1, &end, 10);
    if (*end || a > b || b >= FM_MAX_LAYERS)
        return false;
    *low = (uint32_t)a;
    *high = (uint32_t)b;
    return true;
}

bool fmt_layer_listed(const char *list, int32_t layer)
{
    uint32_t low = 0;
    uint32_t high = 0;
    size_t len = 0;

    if (!list[0])
        return true;
    for (const char *name; (name = fmt_next_name(&list, &len));)
        if (parse_range(name, len, &low, &high) && layer >= (int32_t)low && layer <= (int32_t)high)
            return true;
    return false;
}

fm_status fmt_check_layers(const char *list, uint32_t layers)
{
    uint32_t low = 0;
    uint32_t high = 0;
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));) {
        if (!parse_range(name, len, &low, &high))
            return fm_fail(FM_EINVAL,
                           "training option layers: '%.*s' is no layer and no range; "
                           "write them as 0-3,7",
                           (int)len, name);
        if (high >= layers)
            return fm_fail(FM_EBASE,
                           "training option layers: the parent has layers 0 to %u, not %u",
                           layers - 1, high);
    }
    return FM_OK;
}

static bool begins_module(const char *name, const char *module)
{
    size_t n = strlen(module);
    return n > 0 && strncmp(name, module, n) == 0 && (!name[n] || name[n] == '.');
}

/* Heads do not have the family's prefix in their names. */
static bool of_head(const fmt_net *net, const char *name)
{
    return begins_module(name, net->arch.head_name) ||
           begins_module(name, net->outer[FMT_DENSE].module) ||
           begins_module(name, net->outer[FMT_SCORE].module);
}

void fmt_peft_name(const fmt_net *net, const char *name, char *out, size_t room)
{
    const fm_arch *a = &net->arch;
    const char *usual = fmi_class_prefix(a);
    size_t own = strlen(a->prefix);

    if (of_head(net, name) || strcmp(usual, a->prefix) == 0 || strncmp(name, a->prefix, own) != 0)
        (void)snprintf(out, room, "%s", name);
    else
        (void)snprintf(out, room, "%s%s", usual, name + own);
}

void fmt_own_name(const fmt_net *net, const char *peft, char *out, size_t room)
{
    const fm_arch *a = &net->arch;
    const char *const *prefix = fmi_family_of(a)->prefix;
    const char *usual = fmi_class_prefix(a);

    if (strncmp(peft, usual, strlen(usual)) != 0)
        usual = prefix[0];
    /* a class with a head may have another name for the model inside: "bert.encoder" */
    for (size_t i = 1; i < FM_ARRAY_LEN(fmi_family_of(a)->prefix) && prefix[i] && !usual[0]; i++)
        if (strncmp(peft, prefix[i], strlen(prefix[i])) == 0)
            usual = prefix[i];
    size_t n = strlen(usual);

    if (of_head(net, peft) || strcmp(usual, a->prefix) == 0 || strncmp(peft, usual, n) != 0)
        (void)snprintf(out, room, "%s", peft);
    else
        (void)snprintf(out, room, "%s%s", a->prefix, peft + n);
}

static bool listed(const char *module, const char *list)
{
    size_t len = 0;

    for (const char *name; (name = fmt_next_name(&list, &len));)
        if (fmt_names_module(module, name, len))
            return true;
    return false;
}

bool fmt_is_target(fmt_net *net, const fmt_linear *l, const fm_train_config *c, const char *targets)
{
    int32_t layer = fmt_net_layer_of(net, l);
    char name[FMT_MODULE_BYTES + 16];

    if (l->no_module)
        return false;
    fmt_peft_name(net, l->module, name, sizeof(name));
    if (listed(name, c->exclude) || fmt_is_saved(name, c->modules_to_save))
        return false;
    if (c->layers[0] && (layer == FMT_OUTSIDE || !fmt_layer_listed(c->layers, layer)))
        return false;
    if (strcmp(targets, "all-linear") == 0)
        return layer != FMT_OUTSIDE;
    if (fm_pattern_is_regex(targets)) { /* fmt_check_targets has checked it */
        bool found = false;
        return fm_pattern_matches(&found, targets, name, "targets") == FM_OK && found;
    }
    return listed(name, targets);
}

/* The part of a module's name that is the same in all layers and experts. */
static const char *kind_of(const char *module)
{
    const char *last = strrchr(module, '.');
    const char *kind = last ? last + 1 : module;

    /* BERT names several modules dense, also the pooler's, which is no module here */
    if (strcmp(kind, "dense") != 0 || !last)
        return kind;
    for (kind = last; kind > module && kind[-1] != '.';)
        kind--;
    return kind;
}

static bool has_text(const fm_json *a, const char *text)
{
    for (size_t i = 0; i < fm_json_count(a); i++)
        if (strcmp(fm_json_cstr(fm_json_at(a, i), ""), text) == 0)
            return true;
    return false;
}

fm_json *fmt_all_linear_json(fmt_net *net)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;
    fmt_linear *l;

    for (size_t i = 0; rc == FM_OK && (l = fmt_net_linear(net, i)); i++) {
        const char *kind = kind_of(l->module);
        if (fmt_net_layer_of(net, l) != FMT_OUTSIDE && !l->no_module && !has_text(a, kind))
            rc = fm_json_push(a, fm_json_new_str(kind));
    }
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

fm_json *fmt_names_json(const char *list)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;
    size_t len = 0;

    for (const char *name; rc == FM_OK && (name = fmt_next_name(&list, &len));)
        rc = fm_json_push(a, fm_json_new_strn(name, len));
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

static fm_status no_such_module(fmt_net *net, const char *setting, const char *name, size_t len)
{
    fm_buf have;
    fm_json *all = fmt_all_linear_json(net);

    fm_buf_init(&have, 4096);
    for (size_t i = 0; i < fm_json_count(all); i++)
        fm_buf_printf(&have, "%s, ", fm_json_cstr(fm_json_at(all, i), ""));
    fm_json_free(all);
    fm_status rc = fm_fail(FM_EBASE, "%s: the parent has no module '%.*s'; it has %s%s", setting,
                           (int)len, name, fm_buf_cstr(&have), net->arch.head_name);
    fm_buf_release(&have);
    return rc;
}

static fm_status check_pattern(fmt_net *net, const char *pattern, const char *setting)
{
    bool found = false, one;
    fmt_linear *l;
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && (l = fmt_net_linear(net, i)); i++) {
        char own[FMT_MODULE_BYTES + 16];
        fmt_peft_name(net, l->module, own, sizeof(own));
        rc = fm_pattern_matches(&one, pattern, own, setting);
        found = found || (one && !l->no_module);
    }
    return rc == FM_OK && !found ? no_such_module(net, setting, pattern, strlen(pattern)) : rc;
}

fm_status fmt_check_targets(fmt_net *net, const char *list, const char *setting)
{
    size_t len = 0;

    if (strcmp(list, "all-linear") == 0)
        return FM_OK;
    if (fm_pattern_is_regex(list))
        return check_pattern(net, list, setting);
    for (const char *name; (name = fmt_next_name(&list, &len));) {
        bool found = false;
        fmt_linear *l;
        for (size_t i = 0; !found && (l = fmt_net_linear(net, i)); i++) {
            char own[FMT_MODULE_BYTES + 16];
            fmt_peft_name(net, l->module, own, sizeof(own));
            found = !l->no_module && fmt_names_module(own, name, len);
        }
        if (!found)
            return no_such_module(net, setting, name, len);
    }
    return FM_OK;
}
