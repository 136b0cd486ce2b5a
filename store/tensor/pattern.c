/* pattern.c - patterns of PEFT's configs through regcomp. */
#include "store/tensor/pattern.h"

#include <regex.h>
#include <string.h>

#define MAX_PATTERN 1024u

bool fm_pattern_is_regex(const char *pattern)
{
    return strpbrk(pattern, "\\^$*+?()[]{}|") != NULL;
}

typedef struct turner { /* Python's syntax to POSIX's */
    char out[8 * MAX_PATTERN + 16];
    size_t len;
    const char *pattern, *what;
} turner;

static void put(turner *t, const char *text, size_t len)
{
    memcpy(t->out + t->len, text, len); /* an escape of two characters is at most 14 */
    t->len += len;
}

static fm_status refuse(const turner *t, const char *why)
{
    return fm_fail(FM_EUNSUPPORTED, "%s: the pattern '%s' is not supported: %s", t->what,
                   t->pattern, why);
}

/* An escape; inside: between brackets. */
static fm_status escape(turner *t, char c, bool inside)
{
    static const struct {
        char c;
        const char *outside, *inside;
    } class[] = {
        {'d', "[0-9]", "0-9"},
        {'w', "[0-9A-Za-z_]", "0-9A-Za-z_"},
        {'s', "[[:space:]]", "[:space:]"},
        {'D', "[^0-9]", NULL},
        {'W', "[^0-9A-Za-z_]", NULL},
        {'S', "[^[:space:]]", NULL},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(class); i++) {
        const char *as = inside ? class[i].inside : class[i].outside;
        if (c != class[i].c)
            continue;
        if (!as)
            return refuse(t, "a negated class between brackets");
        put(t, as, strlen(as));
        return FM_OK;
    }
    if (!strchr("\\.^$*+?()[]{}|-_/", c) || c == '\0')
        return refuse(t, "an escape");
    if (inside && strchr("\\^]-", c))
        return refuse(t, "an escape between brackets");
    if (!inside && strchr("\\.^$*+?()[]{}|", c))
        put(t, "\\", 1);
    put(t, &c, 1);
    return FM_OK;
}

/* From the bracket on; returns what follows the class. */
static fm_status brackets(turner *t, const char **at)
{
    const char *p = *at + 1;
    fm_status rc = FM_OK;

    put(t, "[", 1);
    if (*p == '^')
        put(t, p++, 1);
    if (*p == ']' || *p == '[')
        return refuse(t, "a bracket between brackets");
    for (; *p && *p != ']' && rc == FM_OK; p++) {
        if (*p == '[')
            return refuse(t, "a bracket between brackets");
        if (*p == '\\')
            rc = escape(t, *++p, true);
        else
            put(t, p, 1);
    }
    if (rc == FM_OK && *p != ']')
        return refuse(t, "a bracket that is not closed");
    put(t, "]", 1);
    *at = p + 1;
    return rc;
}

static fm_status turn(turner *t)
{
    const char *p = t->pattern;
    fm_status rc = FM_OK;

    put(t, "^(", 2);
    while (*p && rc == FM_OK) {
        if (*p == '\\') {
            rc = escape(t, p[1], false);
            p += 2;
        } else if (*p == '[') {
            rc = brackets(t, &p);
        } else if (*p == '{') {
            return refuse(t, "a counted repeat");
        } else if (p[0] == '(' && p[1] == '?') {
            if (p[2] != ':')
                return refuse(t, "a group that begins with (?");
            put(t, "(", 1);
            p += 3;
        } else if (strchr("*+?", *p)) {
            put(t, p, 1);
            p += p[1] == '?' ? 2 : 1;
            if (*p == '+' || *p == '*')
                return refuse(t, "a repeat of a repeat");
        } else {
            put(t, p++, 1);
        }
    }
    put(t, ")$", 3);
    return rc;
}

fm_status fm_pattern_matches(bool *out, const char *pattern, const char *text, const char *what)
{
    turner t = {.pattern = pattern, .what = what};
    regex_t re;

    *out = false;
    if (strlen(pattern) > MAX_PATTERN)
        return fm_fail(FM_ELIMIT, "%s: a pattern of more than %u bytes", what, MAX_PATTERN);
    fm_status rc = turn(&t);
    if (rc < 0)
        return rc;
    if (regcomp(&re, t.out, REG_EXTENDED | REG_NOSUB) != 0)
        return refuse(&t, "it is no regular expression");
    *out = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return FM_OK;
}
