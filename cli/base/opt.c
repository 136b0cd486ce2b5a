/* opt.c - the parser of every command's options: --name VALUE, --name=VALUE, -x VALUE, -xVALUE. */
#include "cli/base/opt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const opt_spec *find_long(const opt_spec *t, const char *name, size_t len)
{
    for (; t->help; t++)
        if (t->name && strlen(t->name) == len && memcmp(t->name, name, len) == 0)
            return t;
    return NULL;
}

static const opt_spec *find_letter(const opt_spec *t, char letter)
{
    for (; t->help; t++)
        if (t->letter == letter)
            return t;
    return NULL;
}

static fm_status store_uint(const opt_spec *o, const char *shown, const char *value)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (errno || end == value || *end || value[0] == '-')
        return fm_fail(FM_EINVAL, "%s wants a whole number, got '%s'", shown, value);
    *(uint64_t *)o->dest = v;
    return FM_OK;
}

static fm_status store_real(const opt_spec *o, const char *shown, const char *value)
{
    char *end;
    errno = 0;
    double v = strtod(value, &end);
    if (errno || end == value || *end)
        return fm_fail(FM_EINVAL, "%s wants a number, got '%s'", shown, value);
    *(double *)o->dest = v;
    return FM_OK;
}

static fm_status store_value(const opt_spec *o, const char *shown, const char *value)
{
    opt_list *list;
    switch (o->type) {
    case OPT_FLAG:
        return fm_fail(FM_EINVAL, "%s takes no value", shown);
    case OPT_STR:
        *(const char **)o->dest = value;
        return FM_OK;
    case OPT_UINT:
        return store_uint(o, shown, value);
    case OPT_REAL:
        return store_real(o, shown, value);
    case OPT_LIST:
        list = o->dest;
        if (list->count == OPT_LIST_MAX)
            return fm_fail(FM_EINVAL, "%s is given more than %d times", shown, OPT_LIST_MAX);
        list->item[list->count++] = value;
        return FM_OK;
    }
    return FM_OK;
}

/* Takes the option at argv[*i], perhaps with the next word as its value. */
static fm_status take_option(int argc, char **argv, int *i, const opt_spec *table)
{
    char *word = argv[*i];
    char *value = NULL;
    const opt_spec *o;
    if (word[1] == '-') {
        char *eq = strchr(word, '=');
        o = find_long(table, word + 2, eq ? (size_t)(eq - word) - 2 : strlen(word) - 2);
        value = eq ? eq + 1 : NULL;
    } else {
        o = find_letter(table, word[1]);
        value = word[2] ? word + 2 : NULL;
    }
    if (!o)
        return fm_fail(FM_EINVAL, "unknown option '%s'; -h lists the options", word);
    if (o->type == OPT_FLAG && !value) {
        *(bool *)o->dest = true;
        return FM_OK;
    }
    if (!value) {
        if (*i + 1 >= argc)
            return fm_fail(FM_EINVAL, "option '%s' wants a value (%s)", word, o->arg);
        value = argv[++*i];
    }
    return store_value(o, word, value);
}

fm_status opt_parse(int argc, char **argv, const opt_spec *table, const char **args, size_t min,
                    size_t max, size_t *count)
{
    bool only_words = false;
    *count = 0;
    for (int i = 1; i < argc; i++) {
        const char *w = argv[i];
        if (!only_words && strcmp(w, "--") == 0) {
            only_words = true;
        } else if (!only_words && (strcmp(w, "-h") == 0 || strcmp(w, "--help") == 0)) {
            return FM_ECANCELLED;
        } else if (!only_words && w[0] == '-' && w[1]) {
            FM_TRY(take_option(argc, argv, &i, table));
        } else {
            if (*count == max)
                return fm_fail(FM_EINVAL, "unexpected argument '%s'", w);
            args[(*count)++] = w;
        }
    }
    if (*count < min)
        return fm_fail(FM_EINVAL, "%s",
                       *count ? "an argument is missing" : "arguments are missing");
    return FM_OK;
}

void opt_print_help(const opt_spec *table)
{
    for (; table->help; table++) {
        char head[64];
        int n = 0;
        if (table->letter)
            n = snprintf(head, sizeof head, "-%c%s", table->letter, table->name ? ", " : "");
        if (table->name)
            n += snprintf(head + n, sizeof head - (size_t)n, "--%s", table->name);
        if (table->arg)
            snprintf(head + n, sizeof head - (size_t)n, " %s", table->arg);
        printf("  %-26s %s\n", head, table->help);
    }
}
