/* template.c - one template, many cases: every string of it with {slot} filled in. slots is a list
 * of rows ([{country: A, capital: B}, ...]) or a mapping of lists (their product). */
#include <string.h>

#include "store/base/mem.h"
#include "testing/internal.h"

#define SLOTS_MAX 16

static bool slot_value(fm_buf *out, const fm_json *row, const char *name, size_t len)
{
    char key[128];
    if (len == 0 || len >= sizeof key)
        return false;
    memcpy(key, name, len);
    key[len] = 0;
    const fm_json *v = fm_json_get(row, key);
    if (fm_json_is(v, FM_JSON_STRING)) {
        fm_buf_str(out, fm_json_cstr(v, ""));
        return true;
    }
    return v && fm_json_write(out, v, FM_JSON_COMPACT) == FM_OK;
}

/* "{x}" becomes the row's x; "{{" and "}}" are braces; a name that is no slot is an error. */
static fm_status fill_text(fm_json **out, const char *text, const fm_json *row, const char *what)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_status rc = FM_OK;
    for (const char *p = text; rc == FM_OK && *p;) {
        if ((p[0] == '{' && p[1] == '{') || (p[0] == '}' && p[1] == '}')) {
            fm_buf_char(&b, *p);
            p += 2;
        } else if (*p == '{') {
            size_t len = strcspn(p + 1, "{}");
            if (p[1 + len] != '}' || !slot_value(&b, row, p + 1, len))
                rc = fm_fail(FM_EINVAL, "%s: '{%.*s' names no slot ('{{' writes a brace)", what,
                             (int)FM_MIN(len + 1, (size_t)60), p + 1);
            p += len + 2;
        } else {
            fm_buf_char(&b, *p++);
        }
    }
    if (rc == FM_OK)
        rc = fm_buf_ok(&b);
    if (rc == FM_OK && !(*out = fm_json_new_strn(fm_buf_cstr(&b), b.len)))
        rc = FM_ENOMEM;
    fm_buf_release(&b);
    return rc;
}

#define FILL_DEPTH_MAX 16
static fm_status fill(fm_json **out, const fm_json *v, const fm_json *row, const char *what,
                      int depth)
{
    fm_status rc = FM_OK;
    *out = NULL;
    if (depth > FILL_DEPTH_MAX)
        return fm_fail(FM_ELIMIT, "%s: a template is nested deeper than %d", what, FILL_DEPTH_MAX);
    if (fm_json_is(v, FM_JSON_STRING))
        return fill_text(out, fm_json_cstr(v, ""), row, what);
    if (!fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_OBJECT)) {
        *out = fm_json_copy(v);
        return *out ? FM_OK : FM_ENOMEM;
    }
    bool array = fm_json_is(v, FM_JSON_ARRAY);
    fm_json *made = array ? fm_json_new_array() : fm_json_new_object(), *part = NULL;
    if (!made)
        return FM_ENOMEM;
    for (size_t i = 0; array && rc == FM_OK && i < fm_json_count(v); i++) {
        rc = fill(&part, fm_json_at(v, i), row, what, depth + 1);
        if (rc == FM_OK)
            rc = fm_json_push(made, part);
    }
    for (void *it = array ? NULL : fm_json_iter(v); rc == FM_OK && it; it = fm_json_next(v, it)) {
        if (depth == 0 && strcmp(fm_json_iter_key(it), "slots") == 0)
            continue;
        rc = fill(&part, fm_json_iter_value(it), row, what, depth + 1);
        if (rc == FM_OK)
            rc = fm_json_set(made, fm_json_iter_key(it), part);
    }
    if (rc < 0)
        fm_json_free(made);
    else
        *out = made;
    return rc;
}

static fm_status emit(const fm_json *tmpl, const fm_json *row, const char *what, fmi_case_fn each,
                      void *ctx)
{
    fm_json *doc;
    fm_status rc = fill(&doc, tmpl, row, what, 0);
    return rc == FM_OK ? each(ctx, doc) : rc;
}

/* The product of the lists, the last slot fastest. */
static fm_status expand_product(const fm_json *tmpl, const fm_json *slots, const char *what,
                                fmi_case_fn each, void *ctx)
{
    const char *name[SLOTS_MAX];
    const fm_json *list[SLOTS_MAX];
    size_t at[SLOTS_MAX] = {0}, n = 0;
    for (void *it = fm_json_iter(slots); it; it = fm_json_next(slots, it)) {
        if (n == SLOTS_MAX || fm_json_count(fm_json_iter_value(it)) == 0 ||
            !fm_json_is(fm_json_iter_value(it), FM_JSON_ARRAY))
            return fm_fail(FM_EINVAL, "%s: slots: up to %d lists, none of them empty", what,
                           SLOTS_MAX);
        name[n] = fm_json_iter_key(it);
        list[n++] = fm_json_iter_value(it);
    }
    for (;;) {
        fm_json *row = fm_json_new_object();
        fm_status rc = row && n ? FM_OK : FM_ENOMEM;
        for (size_t i = 0; rc == FM_OK && i < n; i++)
            rc = fm_json_set(row, name[i], fm_json_ref(fm_json_at(list[i], at[i])));
        if (rc == FM_OK)
            rc = emit(tmpl, row, what, each, ctx);
        fm_json_free(row);
        if (rc < 0)
            return rc;
        size_t i = n;
        while (i > 0 && ++at[i - 1] == fm_json_count(list[i - 1]))
            at[--i] = 0;
        if (i == 0)
            return FM_OK;
    }
}

fm_status fmi_template_expand(const fm_json *tmpl, const char *what, fmi_case_fn each, void *ctx)
{
    const fm_json *slots = fm_json_get(tmpl, "slots");
    if (fm_json_is(slots, FM_JSON_OBJECT) && fm_json_count(slots))
        return expand_product(tmpl, slots, what, each, ctx);
    if (!fm_json_is(slots, FM_JSON_ARRAY) || fm_json_count(slots) == 0)
        return fm_fail(FM_EINVAL, "%s: a template wants 'slots': a list of rows, or lists by name",
                       what);
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(slots); i++)
        rc = emit(tmpl, fm_json_at(slots, i), what, each, ctx);
    return rc;
}
