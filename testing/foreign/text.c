/* text.c - the templates of other tools: {{ name }} is read here, since a name without a value must
 * be an error; other Jinja goes through the engine of chat templates. */
#include <string.h>

#include "testing/foreign/foreign.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

/* Reads a part of a path: name, .name, [3], ['name']; *v becomes its value. False: other form. */
static bool part(const char **p, const fm_json **v, bool first)
{
    char key[128];
    bool bracket = **p == '[';
    const char *begin = *p + (first ? 0 : 1);
    char quote = bracket && (*begin == '\'' || *begin == '"') ? *begin++ : 0;
    size_t n = quote ? strcspn(begin, quote == '"' ? "\"{}" : "'{}") : strspn(begin, NAME_CHARS);
    if ((!first && **p != '.' && !bracket) || n == 0 || n >= sizeof key)
        return false;
    memcpy(key, begin, n);
    key[n] = 0;
    const char *end = begin + n;
    if ((quote && *end++ != quote) || (bracket && *end++ != ']'))
        return false;
    bool number = strspn(key, "0123456789") == n;
    if (first && number)
        return false;
    if (number && !quote && n < 7) {
        size_t at = 0;
        for (size_t i = 0; i < n; i++)
            at = at * 10 + (size_t)(key[i] - '0');
        *v = fm_json_at(*v, at);
    } else {
        *v = fm_json_get(*v, key);
    }
    *p = end;
    return true;
}

/* Length of a plain "{{ path }}" at p, 0: it is none. *v: the value, NULL: there is none. */
static size_t path_at(const char *p, const fm_json *vars, const fm_json **v)
{
    const char *at = p + 2;
    *v = vars;
    at += *at == '-';
    at += strspn(at, " ");
    if (!part(&at, v, true))
        return 0;
    while (*at == '.' || *at == '[')
        if (!part(&at, v, false))
            return 0;
    at += strspn(at, " ");
    return at[0] == '}' && at[1] == '}' && p[2] != '-' ? (size_t)(at + 2 - p) : 0;
}

static bool simple(const char *tmpl)
{
    const fm_json *v;
    for (const char *p = tmpl; *p; p++) {
        if (p[0] == '{' && (p[1] == '%' || p[1] == '#'))
            return false;
        if (p[0] == '{' && p[1] == '{' && !path_at(p, NULL, &v))
            return false;
    }
    return true;
}

const fm_json *fmv_foreign_value(const char *tmpl, const fm_json *vars)
{
    const fm_json *v = NULL;
    size_t n = strncmp(tmpl, "{{", 2) == 0 ? path_at(tmpl, vars, &v) : 0;
    return n && n == strlen(tmpl) ? v : NULL;
}

/* Refuses statements that repeat, so that the work in a template is bounded by its length. */
static fm_status check_statements(const char *tmpl, const char *where)
{
    static const char *const words[] = {"for", "macro", "call", "include", "import"};
    for (const char *p = strstr(tmpl, "{%"); p; p = strstr(p + 2, "{%")) {
        const char *word = p + 2 + strspn(p + 2, "-+ \t\n");
        size_t n = strspn(word, NAME_CHARS);
        for (size_t i = 0; i < FM_ARRAY_LEN(words); i++)
            if (n == strlen(words[i]) && strncmp(word, words[i], n) == 0)
                return fm_fail(FM_EUNSUPPORTED,
                               "%s: '{%% %s' is not read: write its outcome into the data", where,
                               words[i]);
    }
    return FM_OK;
}

static fm_status by_engine(fm_buf *out, const char *tmpl, const fm_json *vars, const char *where)
{
    fm_chat_template *t = NULL;
    fm_json *none = fm_json_new_array();
    fm_status rc = none ? check_statements(tmpl, where) : FM_ENOMEM;
    FM_THEN(rc, fm_chat_template_open(&t, fm_span_str(tmpl), where));
    FM_THEN(rc, fm_chat_render(out, t, none, NULL, false, vars));
    fm_chat_template_close(t);
    fm_json_free(none);
    return rc;
}

fm_status fmv_foreign_render(fm_buf *out, const char *tmpl, const fm_json *vars, const char *where)
{
    if (!simple(tmpl))
        return by_engine(out, tmpl, vars, where);
    for (const char *p = tmpl; *p;) {
        const fm_json *v = NULL;
        if (p[0] != '{' || p[1] != '{') {
            fm_buf_char(out, *p++);
            continue;
        }
        size_t n = path_at(p, vars, &v);
        fm_span s = fm_json_str(v);
        if (!v)
            return fm_fail(FM_EINVAL, "%s: '%.*s' names nothing there is", where,
                           (int)FM_MIN(n, (size_t)60), p);
        if (s.data)
            fm_buf_append(out, s.data, s.len);
        else
            FM_TRY(fm_json_write(out, v, FM_JSON_COMPACT));
        p += n;
    }
    return fm_buf_ok(out);
}
