/* csv.c - a table of cases (RFC 4180; commas, or tabs in a .tsv): one case a row.
 *
 *   prompt (or chat), name, capability, tags.KEY, choices ("a|b|c"), answer, max-tokens,
 *   expected (promptfoo: __expected, __expected1, ...; __description is name)
 *
 * Expectations are written as in promptfoo: "contains: Paris", "not-regex: ...", "icontains-any: a,
 * b", "levenshtein(3): text"; text without a type is `equals`. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/csv.h"
#include "testing/foreign/foreign.h"

/* ==== what is expected ==== */

/* Splits text at separators; words: without the white space around them and without empty ones. */
static fm_json *list_of(const char *text, const char *separator, bool words)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;
    for (const char *p = text; rc == FM_OK; p++) {
        size_t n = strcspn(p, separator);
        fm_span s = words ? fmv_trim(fm_span_of(p, n)) : fm_span_of(p, n);
        if (s.len || !words)
            rc = fm_json_push(list, fm_json_new_strn((const char *)s.data, s.len));
        p += n;
        if (!*p)
            break;
    }
    if (rc == FM_OK)
        return list;
    fm_json_free(list);
    return NULL;
}

/* Reads "type(threshold): value" as {type, value, threshold}; else {equals}. */
static fm_status read_expected(fm_json *a, const char *text, const char *where)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz-");
    const char *rest = text + n;
    double threshold = 0;
    int used = 0;
    bool typed = n > 0;
    if (typed && *rest == '(') {
        typed = sscanf(rest, "(%lf)%n", &threshold, &used) == 1 && used > 0;
        rest += used;
    }
    typed = typed && *rest == ':';
    fm_status rc = FM_OK;
    if (!typed && (strcmp(text, "is-json") == 0 || strcmp(text, "not-is-json") == 0))
        return fm_json_set(a, "type", fm_json_new_str(text));
    if (!typed) {
        rc = fm_json_set(a, "type", fm_json_new_str("equals"));
        fm_json_put(&rc, a, "value", fm_json_new_str(text));
        return rc;
    }
    char *type = fm_strndup(text, n);
    fm_span value = fmv_trim(fm_span_str(rest + 1));
    if (!type)
        return FM_ENOMEM;
    if (strcmp(type, "grade") == 0 || strcmp(type, "file") == 0 || strcmp(type, "fn") == 0 ||
        strcmp(type, "eval") == 0)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: '%s:' is not read: a suite runs no code and fetches "
                     "nothing; a judge is named in the case",
                     where, type);
    fm_json_put(&rc, a, "type", fm_json_new_str(type));
    if (strstr(type, "-any") || strstr(type, "-all"))
        fm_json_put(&rc, a, "value", list_of((const char *)value.data, ",", true));
    else if (value.len)
        fm_json_put(&rc, a, "value", fm_json_new_strn((const char *)value.data, value.len));
    if (used)
        fm_json_put(&rc, a, "threshold", fm_json_new_real(threshold));
    fm_free(type);
    return rc;
}

static fm_status push_expected(fm_json *expect, const char *text, const char *where)
{
    fm_json *a = fm_json_new_object(), *none = fm_json_new_object();
    fm_status rc = a && none ? read_expected(a, text, where) : FM_ENOMEM;
    FM_THEN(rc, fmv_foreign_assert(expect, a, none, where));
    fm_json_free(a);
    fm_json_free(none);
    return rc;
}

/* ==== rows ==== */

typedef struct row_parts {
    fm_json *c, *expect, *tags, *generate;
    const char *name;
} row_parts;

static fm_status read_cell(row_parts *r, const char *column, const char *text, const char *where)
{
    fm_status rc = FM_OK;
    if (!*text)
        return FM_OK;
    if (strcmp(column, "prompt") == 0 || strcmp(column, "chat") == 0 ||
        strcmp(column, "capability") == 0 || strcmp(column, "answer") == 0 ||
        strcmp(column, "note") == 0)
        return fm_json_set(r->c, column, fm_json_new_str(text));
    if (strcmp(column, "name") == 0 || strcmp(column, "__description") == 0) {
        r->name = text;
    } else if (strcmp(column, "choices") == 0) {
        return fm_json_set(r->c, column, list_of(text, "|", false));
    } else if (strcmp(column, "expected") == 0 || strncmp(column, "__expected", 10) == 0) {
        return push_expected(r->expect, text, where);
    } else if (strncmp(column, "tags.", 5) == 0) {
        return fm_json_set(r->tags, column + 5, fm_json_new_str(text));
    } else if (strcmp(column, "max-tokens") == 0) {
        size_t n = strspn(text, "0123456789");
        int64_t v = 0;
        for (size_t i = 0; i < n && n < 10; i++)
            v = v * 10 + (text[i] - '0');
        if (text[n] || !v)
            return fm_fail(FM_EINVAL, "%s: max-tokens wants a number", where);
        return fm_json_set(r->generate, column, fm_json_new_int(v));
    } else {
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: column '%.60s' is not read (prompt, chat, name, capability, tags.KEY, "
                     "choices, answer, expected, __expected, max-tokens, note)",
                     where, column);
    }
    return rc;
}

static fm_status add_row(fmv_foreign *f, const fm_json *head, const fm_csv *row, size_t number)
{
    char where[300], name[40];
    row_parts r = {fm_json_new_object(), fm_json_new_array(), fm_json_new_object(),
                   fm_json_new_object(), NULL};
    fm_status rc = r.c && r.expect && r.tags && r.generate ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && row->count > fm_json_count(head))
        rc = fm_fail(FM_EINVAL, "%s: line %zu: %zu fields, the head has %zu", f->what,
                     row->row_line, row->count, fm_json_count(head));
    for (size_t i = 0; i < row->count && rc == FM_OK; i++) {
        const char *column = fm_json_cstr(fm_json_at(head, i), "");
        snprintf(where, sizeof where, "%.180s: line %zu: %.60s", f->what, row->row_line, column);
        rc = read_cell(&r, column, (const char *)fm_csv_cell(row, i).data, where);
    }
    if (rc == FM_OK && fm_json_count(r.expect))
        rc = fm_json_set(r.c, "expect", fm_json_ref(r.expect));
    if (rc == FM_OK && fm_json_count(r.tags))
        rc = fm_json_set(r.c, "tags", fm_json_ref(r.tags));
    if (rc == FM_OK && fm_json_count(r.generate))
        rc = fm_json_set(r.c, "generate", fm_json_ref(r.generate));
    fm_json_free(r.expect);
    fm_json_free(r.tags);
    fm_json_free(r.generate);
    snprintf(name, sizeof name, "%zu", number);
    if (rc == FM_OK)
        return fmv_foreign_add(f, r.c, r.name ? r.name : name);
    fm_json_free(r.c);
    return rc;
}

static fm_status check_head(const fm_json *head, const char *what)
{
    bool asks = false;
    for (size_t i = 0; i < fm_json_count(head); i++) {
        const char *name = fm_json_cstr(fm_json_at(head, i), "");
        asks = asks || strcmp(name, "prompt") == 0 || strcmp(name, "chat") == 0;
        for (size_t k = 0; k < i; k++)
            if (strcmp(name, fm_json_cstr(fm_json_at(head, k), "")) == 0)
                return fm_fail(FM_EINVAL, "%s: two columns are named '%.60s'", what, name);
    }
    return asks ? FM_OK
                : fm_fail(FM_EINVAL,
                          "%s: the first line wants a column 'prompt' or 'chat' (a table of "
                          "variables alone needs its prompts: write them in)",
                          what);
}

static fm_status read_head(fm_json *head, const fm_csv *row)
{
    for (size_t i = 0; i < row->count; i++)
        FM_TRY(fm_json_push(head, fm_json_new_str((const char *)fm_csv_cell(row, i).data)));
    return check_head(head, row->what);
}

fm_status fmv_foreign_csv(fmv_foreign *f, fm_span text)
{
    const char *dot = strrchr(f->what, '.');
    fm_json *head = fm_json_new_array();
    bool found = true;
    fm_csv t;
    fm_csv_init(&t, text, dot && strcmp(dot, ".tsv") == 0 ? '\t' : ',', f->what);
    fm_status rc = head ? fm_csv_next(&t, &found) : FM_ENOMEM;
    FM_THEN(rc, read_head(head, &t));
    for (size_t number = 1; rc == FM_OK; number++) {
        rc = fm_csv_next(&t, &found);
        if (rc < 0 || !found)
            break;
        rc = add_row(f, head, &t, number);
    }
    fm_json_free(head);
    fm_csv_release(&t);
    return rc;
}
