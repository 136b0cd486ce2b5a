/* merge.c - $ref and allOf: one schema out of several that must all hold. */
#include "infer/grammar/internal.h"

#include <string.h>

bool gr_is_annotation(const char *key)
{
    static const char *const all[] = {
        "title",    "description", "default",     "examples", "example",    "$schema",  "$id",
        "$comment", "$defs",       "definitions", "readOnly", "deprecated", "writeOnly"};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        if (strcmp(key, all[i]) == 0)
            return true;
    return false;
}

/* ---- references ---- */

/* Reads one step of a JSON pointer, with ~0 and ~1 decoded. */
static fm_status pointer_step(const gr_builder *b, const char **at, char *key, size_t room)
{
    size_t n = 0;

    for (; **at && **at != '/'; (*at)++) {
        char c = **at;
        if (c == '~' && ((*at)[1] == '0' || (*at)[1] == '1'))
            c = *++*at == '0' ? '~' : '/';
        if (c == '%' || n + 1 >= room)
            return fm_fail(FM_EUNSUPPORTED, "%s: a $ref with '%%' or a long name", b->where);
        key[n++] = c;
    }
    key[n] = 0;
    return FM_OK;
}

/* Below the root '$id' would move what '#' means. */
static fm_status check_id(const gr_builder *b, const fm_json *schema)
{
    if (schema == b->root || !fm_json_is(fm_json_get(schema, "$id"), FM_JSON_STRING))
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED, "%s: '$id' below the root of a schema is not supported",
                   b->where);
}

/* What a keyword holds: a schema, or ('m') schemas by name or number; 0: nothing that is one. */
static char holds(const char *key)
{
    static const char *const one[] = {
        "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"};
    static const char *const many[] = {
        "properties",  "prefixItems",       "allOf",           "anyOf", "oneOf", "$defs",
        "definitions", "patternProperties", "dependentSchemas"};

    for (size_t i = 0; i < FM_ARRAY_LEN(one); i++)
        if (strcmp(key, one[i]) == 0)
            return '1';
    for (size_t i = 0; i < FM_ARRAY_LEN(many); i++)
        if (strcmp(key, many[i]) == 0)
            return 'm';
    return 0;
}

static fm_status target(const gr_builder *b, const fm_json **out, const char *ref)
{
    const fm_json *v = b->root;
    const char *at = ref;
    char key[256], in = '1';

    if (*at++ != '#' || (*at && *at != '/'))
        return fm_fail(FM_EUNSUPPORTED, "%s: $ref '%.200s' leads out of the schema", b->where, ref);
    while (*at == '/' && v) {
        at++;
        FM_TRY(pointer_step(b, &at, key, sizeof key));
        in = in == 'm' ? '1' : holds(key);
        if (!in) /* a 'default' or an 'enum' holds values, not schemas */
            break;
        if (fm_json_is(v, FM_JSON_ARRAY)) {
            size_t i = 0, n = 0;
            for (; key[n] >= '0' && key[n] <= '9' && n < 6; n++)
                i = i * 10 + (size_t)(key[n] - '0');
            v = n > 0 && !key[n] ? fm_json_at(v, i) : NULL;
        } else {
            v = fm_json_get(v, key);
        }
        FM_TRY(check_id(b, v));
    }
    *out = v;
    return v && in == '1'
               ? FM_OK
               : fm_fail(FM_EINVAL, "%s: $ref '%.200s' leads to no schema", b->where, ref);
}

fm_status gr_without(gr_builder *b, const fm_json **out, const fm_json *schema, const char *key,
                     bool *some)
{
    fm_json *rest = fm_json_new_object();
    fm_status rc = gr_own(b, rest);

    for (void *it = fm_json_iter(schema); it && rc == FM_OK; it = fm_json_next(schema, it))
        if (strcmp(fm_json_iter_key(it), key) != 0 && !gr_is_annotation(fm_json_iter_key(it)))
            rc = fm_json_set(rest, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    *out = rest;
    *some = rc == FM_OK && fm_json_count(rest) > 0;
    return rc;
}

static fm_status resolve_ref(gr_builder *b, const fm_json **out, const fm_json *schema)
{
    const fm_json *to, *rest;
    bool some;
    const char *ref = fm_json_cstr(fm_json_get(schema, "$ref"), NULL);

    if (!ref)
        return fm_fail(FM_EINVAL, "%s: '$ref' must be a string", b->where);
    FM_TRY(target(b, &to, ref));
    FM_TRY(gr_without(b, &rest, schema, "$ref", &some));
    *out = to;
    return some ? gr_merge(b, out, rest, to) : FM_OK;
}

static fm_status resolve_all(gr_builder *b, const fm_json **out, const fm_json *schema)
{
    const fm_json *list = fm_json_get(schema, "allOf");
    bool some;

    if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) == 0)
        return fm_fail(FM_EINVAL, "%s: 'allOf' must be an array with something in it", b->where);
    FM_TRY(gr_without(b, out, schema, "allOf", &some));
    for (size_t i = 0; i < fm_json_count(list); i++)
        FM_TRY(gr_merge(b, out, *out, fm_json_at(list, i)));
    return FM_OK;
}

fm_status gr_resolve(gr_builder *b, const fm_json **out, const fm_json *schema)
{
    fm_status rc = gr_work(b, 1);

    *out = schema;
    for (int i = 0; rc == FM_OK && fm_json_is(*out, FM_JSON_OBJECT); i++) {
        FM_TRY(check_id(b, *out));
        bool ref = fm_json_get(*out, "$ref") != NULL;
        if (!ref && !fm_json_get(*out, "allOf"))
            return FM_OK;
        if (i >= GR_INLINE_DEPTH || b->depth >= GR_INLINE_DEPTH)
            return fm_fail(FM_ELIMIT, "%s: the schema refers to itself without a value in between",
                           b->where);
        b->depth++;
        rc = ref ? resolve_ref(b, out, *out) : resolve_all(b, out, *out);
        b->depth--;
    }
    return rc;
}

/* ---- two schemas that must both hold ---- */

static fm_status both(gr_builder *b, fm_json **out, const fm_json *x, const fm_json *y)
{
    fm_json *list = fm_json_new_array(), *o = fm_json_new_object();
    fm_status rc = list && o ? FM_OK : FM_ENOMEM;

    (void)b;
    FM_THEN(rc, fm_json_push(list, fm_json_ref(x)));
    FM_THEN(rc, fm_json_push(list, fm_json_ref(y)));
    if (rc == FM_OK) {
        rc = fm_json_set(o, "allOf", list);
        list = NULL;
    }
    fm_json_free(list);
    if (rc < 0)
        fm_json_free(o);
    *out = rc == FM_OK ? o : NULL;
    return rc;
}

/* Merges the properties of x and y; one that both have must satisfy both schemas. */
static fm_status merge_properties(gr_builder *b, fm_json **out, const fm_json *x, const fm_json *y)
{
    fm_json *o = fm_json_copy(x), *two;
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    for (void *it = fm_json_iter(y); it && rc == FM_OK; it = fm_json_next(y, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *v = fm_json_iter_value(it), *had = fm_json_get(x, key);
        if (had && !fm_json_equal(had, v)) {
            rc = both(b, &two, had, v);
            FM_THEN(rc, fm_json_set(o, key, two));
        } else if (!had) {
            rc = fm_json_set(o, key, fm_json_ref(v));
        }
    }
    *out = o;
    return rc;
}

static bool has(const fm_json *list, const fm_json *v)
{
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fm_json_equal(fm_json_at(list, i), v))
            return true;
    return false;
}

/* all: the union of two lists (required); else their intersection (enum). */
static fm_status merge_lists(fm_json **out, const fm_json *x, const fm_json *y, bool all)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(x); i++)
        if (all || has(y, fm_json_at(x, i)))
            rc = fm_json_push(list, fm_json_ref(fm_json_at(x, i)));
    for (size_t i = 0; rc == FM_OK && all && i < fm_json_count(y); i++)
        if (!has(x, fm_json_at(y, i)))
            rc = fm_json_push(list, fm_json_ref(fm_json_at(y, i)));
    *out = list;
    return rc;
}

static bool names_type(const fm_json *t, const char *name)
{
    if (fm_json_is(t, FM_JSON_STRING))
        return strcmp(fm_json_cstr(t, ""), name) == 0;
    for (size_t i = 0; i < fm_json_count(t); i++)
        if (strcmp(fm_json_cstr(fm_json_at(t, i), ""), name) == 0)
            return true;
    return false;
}

static fm_status merge_types(fm_json **out, const fm_json *x, const fm_json *y)
{
    static const char *const all[] = {"object", "array",   "string", "integer",
                                      "number", "boolean", "null"};
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(all); i++) {
        bool whole = strcmp(all[i], "integer") == 0; /* every integer is a number */
        bool in_x = names_type(x, all[i]), in_y = names_type(y, all[i]);
        if ((in_x && in_y) ||
            (whole && ((in_x && names_type(y, "number")) || (in_y && names_type(x, "number")))))
            rc = fm_json_push(list, fm_json_new_str(all[i]));
    }
    *out = list;
    return rc;
}

static bool is_one_of(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static fm_status merge_key(gr_builder *b, fm_json **out, const char *key, const fm_json *x,
                           const fm_json *y)
{
    static const char *const larger[] = {"minimum", "exclusiveMinimum", "minItems", "minLength"};
    static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxItems", "maxLength"};

    *out = NULL;
    if (fm_json_equal(x, y)) {
        *out = fm_json_ref(x);
        return FM_OK;
    }
    if (strcmp(key, "properties") == 0)
        return merge_properties(b, out, x, y);
    if (strcmp(key, "required") == 0 || strcmp(key, "enum") == 0)
        return merge_lists(out, x, y, key[0] == 'r');
    if (strcmp(key, "type") == 0)
        return merge_types(out, x, y);
    if (strcmp(key, "items") == 0)
        return both(b, out, x, y);
    bool low = is_one_of(key, larger, FM_ARRAY_LEN(larger));
    if (!low && !is_one_of(key, smaller, FM_ARRAY_LEN(smaller)))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: two different '%.64s' that must both hold are not "
                       "supported",
                       b->where, key);
    *out = fm_json_ref((fm_json_real(x, 0) > fm_json_real(y, 0)) == low ? x : y);
    return FM_OK;
}

/* Where one side forbids what it does not declare, the other may not declare more. */
static fm_status check_closed(const gr_builder *b, const fm_json *x, const fm_json *y)
{
    const fm_json *mine = fm_json_get(x, "properties"), *theirs = fm_json_get(y, "properties");
    const fm_json *more = fm_json_get(x, "additionalProperties");

    if (!more || (fm_json_is(more, FM_JSON_BOOL) && fm_json_bool(more, false)))
        return FM_OK;
    for (void *it = fm_json_iter(theirs); it; it = fm_json_next(theirs, it))
        if (!fm_json_get(mine, fm_json_iter_key(it)))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: allOf adds property '%.64s' to a schema whose "
                           "additionalProperties speaks of it",
                           b->where, fm_json_iter_key(it));
    return FM_OK;
}

/* 'items' speaks of what the 'prefixItems' beside it leave, and of these alone. */
static fm_status check_items(const gr_builder *b, const fm_json *x, const fm_json *y)
{
    if (!fm_json_get(x, "items") || fm_json_get(x, "prefixItems") || !fm_json_get(y, "prefixItems"))
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: 'items' of one schema and 'prefixItems' of another that must both hold are "
                   "not supported",
                   b->where);
}

static fm_status merge_objects(gr_builder *b, fm_json *o, const fm_json *x, const fm_json *y)
{
    fm_status rc = check_closed(b, x, y);

    FM_THEN(rc, check_closed(b, y, x));
    FM_THEN(rc, check_items(b, x, y));
    FM_THEN(rc, check_items(b, y, x));
    for (void *it = fm_json_iter(x); it && rc == FM_OK; it = fm_json_next(x, it)) {
        const char *key = fm_json_iter_key(it);
        fm_json *v = fm_json_ref(fm_json_iter_value(it));
        if (fm_json_get(y, key) && !gr_is_annotation(key)) {
            fm_json_free(v);
            rc = merge_key(b, &v, key, fm_json_iter_value(it), fm_json_get(y, key));
        }
        if (rc == FM_OK)
            rc = fm_json_set(o, key, v);
        else
            fm_json_free(v);
    }
    for (void *it = fm_json_iter(y); it && rc == FM_OK; it = fm_json_next(y, it))
        if (!fm_json_get(x, fm_json_iter_key(it)))
            rc = fm_json_set(o, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    return rc;
}

fm_status gr_merge(gr_builder *b, const fm_json **out, const fm_json *x, const fm_json *y)
{
    FM_TRY(gr_resolve(b, &x, x));

    FM_TRY(gr_resolve(b, &y, y));
    bool x_bool = fm_json_is(x, FM_JSON_BOOL), y_bool = fm_json_is(y, FM_JSON_BOOL);
    if (x_bool || y_bool) { /* true gives the other schema, false allows nothing */
        const fm_json *flag = x_bool ? x : y, *other = x_bool ? y : x;
        *out = fm_json_bool(flag, false) ? other : flag;
        return FM_OK;
    }
    if (!fm_json_is(x, FM_JSON_OBJECT) || !fm_json_is(y, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: a schema must be an object or a boolean", b->where);
    fm_json *o = fm_json_new_object();
    fm_status rc = gr_own(b, o);
    FM_THEN(rc, gr_work(b, 1 + fm_json_count(x) + fm_json_count(y)));
    FM_THEN(rc, merge_objects(b, o, x, y));
    *out = o;
    return rc;
}
