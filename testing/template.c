/* template.c - one template, many cases: every string of it with {slot} filled in. slots is a list
 * of rows ([{country: A, capital: B}, ...]) or a mapping of lists (their product). */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/internal.h"

#define SLOTS_MAX 16

/* One filling. */
typedef struct filler {
    const fm_json *row;
    const char *where; /* "<file>: template 'capital-{id}'" */
    size_t *budget;    /* shared by the suite's templates */
} filler;

static fm_status slot_value(fm_buf *out, const filler *f, const char *name, size_t len)
{
    char key[128] = "";
    if (len < sizeof key)
        memcpy(key, name, len);
    const fm_json *v = *key ? fm_json_get(f->row, key) : NULL;
    if (!v)
        return fm_fail(FM_EINVAL, "%s: '{%.*s}' names no slot ('{{' writes a brace)", f->where,
                       (int)FM_MIN(len, (size_t)60), name);
    if (!fm_json_is(v, FM_JSON_STRING))
        return fm_json_write(out, v, FM_JSON_COMPACT);
    fm_buf_str(out, fm_json_cstr(v, ""));
    return fm_buf_ok(out);
}

static fm_status fill_into(fm_buf *out, const filler *f, const char *text)
{
    fm_status rc = FM_OK;
    for (const char *p = text; rc == FM_OK && *p;) {
        if ((p[0] == '{' && p[1] == '{') || (p[0] == '}' && p[1] == '}')) {
            fm_buf_char(out, *p);
            p += 2;
        } else if (*p == '{') {
            size_t len = strcspn(p + 1, "{}");
            if (p[1 + len] != '}')
                return fm_fail(FM_EINVAL, "%s: '{%.*s' has no end ('{{' writes a brace)", f->where,
                               (int)FM_MIN(len, (size_t)60), p + 1);
            rc = slot_value(out, f, p + 1, len);
            p += len + 2;
        } else {
            fm_buf_char(out, *p++);
        }
    }
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}

/* "{x}" becomes the row's x; "{{" and "}}" are braces; a name that is no slot is an error. */
static fm_status fill_text(fm_json **out, const char *text, const filler *f)
{
    fm_buf b;
    fm_buf_init(&b, *f->budget + 1); /* a maximum of 0 would mean the default */
    fm_status rc = fill_into(&b, f, text);
    if (rc == FM_ELIMIT || (rc == FM_OK && b.len > *f->budget))
        rc = fm_fail(FM_ELIMIT, "%s: the suite's templates write more than %zu bytes", f->where,
                     FMI_EXPANDED_BYTES_MAX);
    if (rc == FM_OK && !(*out = fm_json_new_strn(fm_buf_cstr(&b), b.len)))
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        *f->budget -= b.len;
    fm_buf_release(&b);
    return rc;
}

#define FILL_DEPTH_MAX 16
#define NODE_BYTES 32 /* what a value costs beside its text, so that empty ones are not free */
static fm_status fill(fm_json **out, const fm_json *v, const filler *f, int depth)
{
    fm_status rc = FM_OK;
    *out = NULL;
    if (depth > FILL_DEPTH_MAX || *f->budget < NODE_BYTES)
        return fm_fail(FM_ELIMIT,
                       "%s: nested deeper than %d, or the suite's templates write more "
                       "than %zu bytes",
                       f->where, FILL_DEPTH_MAX, FMI_EXPANDED_BYTES_MAX);
    *f->budget -= NODE_BYTES;
    if (fm_json_is(v, FM_JSON_STRING))
        return fill_text(out, fm_json_cstr(v, ""), f);
    if (!fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_OBJECT)) {
        *out = fm_json_copy(v);
        return *out ? FM_OK : FM_ENOMEM;
    }
    bool array = fm_json_is(v, FM_JSON_ARRAY);
    fm_json *made = array ? fm_json_new_array() : fm_json_new_object(), *part = NULL;
    if (!made)
        return FM_ENOMEM;
    for (size_t i = 0; array && rc == FM_OK && i < fm_json_count(v); i++) {
        rc = fill(&part, fm_json_at(v, i), f, depth + 1);
        if (rc == FM_OK)
            rc = fm_json_push(made, part);
    }
    for (void *it = array ? NULL : fm_json_iter(v); rc == FM_OK && it; it = fm_json_next(v, it)) {
        if (depth == 0 && strcmp(fm_json_iter_key(it), "slots") == 0)
            continue;
        rc = fill(&part, fm_json_iter_value(it), f, depth + 1);
        if (rc == FM_OK)
            rc = fm_json_set(made, fm_json_iter_key(it), part);
    }
    if (rc < 0)
        fm_json_free(made);
    else
        *out = made;
    return rc;
}

typedef struct expansion {
    const fm_json *tmpl;
    const char *where;
    size_t *budget;
    fmi_case_fn each;
    void *ctx;
} expansion;

static fm_status emit(const expansion *x, const fm_json *row)
{
    fm_json *doc;
    filler f = {row, x->where, x->budget};
    fm_status rc = fill(&doc, x->tmpl, &f, 0);
    return rc == FM_OK ? x->each(x->ctx, doc) : rc;
}

/* The product of the lists, the last slot fastest. */
static fm_status expand_product(const expansion *x, const fm_json *slots)
{
    const char *name[SLOTS_MAX];
    const fm_json *list[SLOTS_MAX];
    size_t at[SLOTS_MAX] = {0}, n = 0;
    for (void *it = fm_json_iter(slots); it; it = fm_json_next(slots, it)) {
        if (n == SLOTS_MAX || fm_json_count(fm_json_iter_value(it)) == 0 ||
            !fm_json_is(fm_json_iter_value(it), FM_JSON_ARRAY))
            return fm_fail(FM_EINVAL, "%s: slots: up to %d lists, none of them empty", x->where,
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
            rc = emit(x, row);
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

fm_status fmi_template_expand(const fm_json *tmpl, const char *what, size_t *budget,
                              fmi_case_fn each, void *ctx)
{
    const fm_json *slots = fm_json_get(tmpl, "slots");
    char where[512];
    snprintf(where, sizeof where, "%.200s: template '%.200s'", what,
             fm_json_cstr(fm_json_get(tmpl, "name"), ""));
    expansion x = {tmpl, where, budget, each, ctx};
    if (fm_json_is(slots, FM_JSON_OBJECT) && fm_json_count(slots))
        return expand_product(&x, slots);
    if (!fm_json_is(slots, FM_JSON_ARRAY) || fm_json_count(slots) == 0)
        return fm_fail(FM_EINVAL, "%s: 'slots' wants a list of rows, or lists by name", where);
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(slots); i++) {
        if (!fm_json_is(fm_json_at(slots, i), FM_JSON_OBJECT))
            return fm_fail(FM_EINVAL, "%s: slots[%zu] wants a mapping of slot to value", where, i);
        rc = emit(&x, fm_json_at(slots, i));
    }
    return rc;
}
