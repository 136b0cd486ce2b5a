/* schema.c - a JSON schema as automata: objects, arrays, strings, unions, references. */
#include "infer/grammar/internal.h"

#include <string.h>

static fm_status emit(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema);

fm_status gr_refuse(const gr_builder *b, const char *key)
{
    return fm_fail(FM_EUNSUPPORTED, "%s: keyword '%.64s' is not supported here", b->where, key);
}

/* ---- rules ---- */

static bool is_any(const fm_json *schema)
{
    if (fm_json_is(schema, FM_JSON_BOOL))
        return fm_json_bool(schema, false);
    for (void *it = fm_json_is(schema, FM_JSON_OBJECT) ? fm_json_iter(schema) : NULL; it;
         it = fm_json_next(schema, it))
        if (!gr_is_annotation(fm_json_iter_key(it)))
            return false;
    return fm_json_is(schema, FM_JSON_OBJECT);
}

/* Strips annotations, so that schemas that differ in titles alone become one rule. */
static fm_status strip(gr_builder *b, const fm_json **io)
{
    bool any = false;

    for (void *it = fm_json_is(*io, FM_JSON_OBJECT) ? fm_json_iter(*io) : NULL; it && !any;
         it = fm_json_next(*io, it))
        any = gr_is_annotation(fm_json_iter_key(it));
    if (!any)
        return FM_OK;
    fm_json *bare = fm_json_new_object();
    fm_status rc = gr_own(b, bare);
    for (void *it = fm_json_iter(*io); it && rc == FM_OK; it = fm_json_next(*io, it))
        if (!gr_is_annotation(fm_json_iter_key(it)))
            rc = fm_json_set(bare, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    *io = bare;
    return rc;
}

/* The rule of a subschema; `step` is its path below the current place, for errors. */
static fm_status rule_of(gr_builder *b, const fm_json *schema, const char *step, uint32_t *out)
{
    fm_buf text;
    fm_status rc = FM_OK;

    FM_TRY(gr_resolve(b, &schema, schema));
    FM_TRY(strip(b, &schema));
    if (is_any(schema))
        return gr_built_in(b, GR_ANY, FM_GRAMMAR_ANY_DEPTH, out);
    if (fm_json_count(schema) == 1 &&
        strcmp(fm_json_cstr(fm_json_get(schema, "type"), ""), "string") == 0)
        return gr_built_in(b, GR_STRING, 0, out);
    fm_buf_init(&text, 0);
    rc = fm_json_write(&text, schema, FM_JSON_CANONICAL);
    FM_THEN(rc, gr_work(b, text.len / 16));
    for (size_t i = 0; rc == FM_OK && i < b->rules; i++)
        if (b->rule[i].kind == GR_SCHEMA && b->rule[i].text &&
            strcmp(b->rule[i].text, fm_buf_cstr(&text)) == 0) {
            fm_buf_release(&text);
            *out = (uint32_t)i;
            return FM_OK;
        }
    char *kept = rc == FM_OK ? fm_strdup(fm_buf_cstr(&text)) : NULL;
    char *where = kept ? fm_asprintf("%.160s.%.64s", b->where, step) : NULL;
    fm_buf_release(&text);
    if (!kept || !where)
        rc = rc < 0 ? rc : FM_ENOMEM;
    FM_THEN(rc, gr_new_rule(b, (gr_rule){.kind = GR_SCHEMA, .schema = schema, .text = kept}, where,
                            out));
    if (rc < 0)
        fm_free(kept);
    fm_free(where);
    return rc;
}

/* Whether the schema is a small set of texts. Such a set is written in place instead of called, so
 * that alternatives that differ in it part early. */
static bool is_small(const fm_json *schema)
{
    const char *type = fm_json_cstr(fm_json_get(schema, "type"), "");

    return fm_json_get(schema, "const") || fm_json_get(schema, "enum") ||
           strcmp(type, "boolean") == 0 || strcmp(type, "null") == 0;
}

static fm_status value(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema,
                       const char *step)
{
    uint32_t rule;

    if (is_small(schema))
        return emit(b, in, out, schema);
    if (fm_json_is(schema, FM_JSON_BOOL) && !fm_json_bool(schema, true))
        return FM_OK; /* false allows no value */
    FM_TRY(rule_of(b, schema, step, &rule));
    return gr_call_to(b, in, out, rule);
}

/* ---- objects ---- */

typedef struct object {
    const fm_json *properties, *required;
    const fm_json *other; /* schema of undeclared properties; NULL: none */
    uint32_t key;         /* before the name of the next property */
    uint32_t end;         /* behind the last one, before the blanks and '}' */
    size_t missing;       /* required properties that are still to come */
} object;

static bool names(const fm_json *list, const char *name)
{
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fm_span_eq_str(fm_json_str(fm_json_at(list, i)), name))
            return true;
    return false;
}

/* Writes ':' and the value behind a name; then the end, or a comma and the next name. */
static fm_status key_value(gr_builder *b, const object *o, uint32_t named, uint32_t next,
                           const fm_json *schema, const char *name)
{
    uint32_t colon, begin, behind, comma;
    uint32_t *const node[] = {&colon, &begin, &behind, &comma};

    for (size_t i = 0; i < FM_ARRAY_LEN(node); i++)
        FM_TRY(gr_node(b, node[i]));
    FM_TRY(gr_str(b, named, colon, ":"));
    FM_TRY(gr_blanks(b, colon, begin, true, false));
    FM_TRY(value(b, begin, behind, schema, name));
    if (o->missing == 0)
        FM_TRY(gr_empty(b, behind, o->end));
    FM_TRY(gr_str(b, behind, comma, ","));
    return gr_blanks(b, comma, next, true, true);
}

/* Writes one declared property at o->key, which moves on to the next one. */
static fm_status property(gr_builder *b, object *o, const char *name, const fm_json *schema)
{
    uint32_t named, next;
    bool needed = names(o->required, name);
    fm_json *text_of = fm_json_new_str(name);
    fm_status rc = text_of ? gr_node(b, &named) : FM_ENOMEM;

    FM_THEN(rc, gr_node(b, &next));
    FM_THEN(rc, gr_json_text(b, o->key, named, text_of));
    fm_json_free(text_of);
    o->missing -= needed && o->missing > 0;
    FM_THEN(rc, key_value(b, o, named, next, schema, name));
    if (rc == FM_OK && !needed)
        rc = gr_empty(b, o->key, next);
    o->key = next;
    return rc;
}

/* Writes the names in 'required' that no property declares. */
static fm_status undeclared(gr_builder *b, object *o)
{
    for (size_t i = 0; i < fm_json_count(o->required); i++) {
        const char *name = fm_json_cstr(fm_json_at(o->required, i), "");
        if (fm_json_get(o->properties, name))
            continue;
        if (!o->other)
            return fm_fail(FM_EINVAL, "%s: '%.64s' is required, but no property declares it",
                           b->where, name);
        FM_TRY(property(b, o, name, o->other));
    }
    return FM_OK;
}

/* The names that an undeclared property may not have: all declared and all required ones. */
static fm_status taken_names(gr_builder *b, const object *o, const fm_json **out)
{
    fm_json *all = fm_json_new_object();
    fm_status rc = gr_own(b, all);

    for (void *it = fm_json_iter(o->properties); it && rc == FM_OK;
         it = fm_json_next(o->properties, it))
        rc = fm_json_set(all, fm_json_iter_key(it), fm_json_new_null());
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(o->required); i++)
        rc = fm_json_set(all, fm_json_cstr(fm_json_at(o->required, i), ""), fm_json_new_null());
    *out = all;
    return rc;
}

static fm_status others(gr_builder *b, object *o)
{
    const fm_json *taken;
    uint32_t named;
    FM_TRY(taken_names(b, o, &taken));

    FM_TRY(gr_node(b, &named));
    FM_TRY(gr_other_name(b, o->key, named, taken));
    return key_value(b, o, named, o->key, o->other, "additionalProperties");
}

/* Checks that each required name is a string and comes once. */
static fm_status check_required(const gr_builder *b, const fm_json *required)
{
    for (size_t i = 0; i < fm_json_count(required); i++) {
        const char *name = fm_json_cstr(fm_json_at(required, i), NULL);
        if (!name)
            return fm_fail(FM_EINVAL, "%s: 'required' must hold strings", b->where);
        for (size_t k = 0; k < i; k++)
            if (fm_span_eq_str(fm_json_str(fm_json_at(required, k)), name))
                return fm_fail(FM_EINVAL, "%s: 'required' names '%.64s' twice", b->where, name);
    }
    return FM_OK;
}

static fm_status members(gr_builder *b, uint32_t in, uint32_t out, object *o)
{
    uint32_t open, close;
    fm_status rc = check_required(b, o->required);

    o->missing = fm_json_count(o->required);
    bool may_be_empty = o->missing == 0;
    FM_THEN(rc, gr_node(b, &open));
    FM_THEN(rc, gr_node(b, &close));
    FM_THEN(rc, gr_node(b, &o->key));
    FM_THEN(rc, gr_node(b, &o->end));
    FM_THEN(rc, gr_str(b, in, open, "{"));
    if (rc == FM_OK && may_be_empty)
        rc = gr_str(b, open, out, "}");
    FM_THEN(rc, gr_blanks(b, open, o->key, false, true));
    FM_THEN(rc, gr_blanks(b, o->end, close, false, true));
    FM_THEN(rc, gr_str(b, close, out, "}"));
    for (void *it = fm_json_iter(o->properties); it && rc == FM_OK;
         it = fm_json_next(o->properties, it))
        rc = property(b, o, fm_json_iter_key(it), fm_json_iter_value(it));
    FM_THEN(rc, undeclared(b, o));
    return rc < 0 || !o->other ? rc : others(b, o);
}

static fm_status emit_object(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    const fm_json *more = fm_json_get(schema, "additionalProperties");
    object o = {.properties = fm_json_get(schema, "properties"),
                .required = fm_json_get(schema, "required"),
                .other = more};

    if (o.properties && !fm_json_is(o.properties, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: 'properties' must be an object", b->where);
    if (o.required && !fm_json_is(o.required, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'required' must be an array", b->where);
    if (fm_json_is(more, FM_JSON_BOOL) && !fm_json_bool(more, false))
        o.other = NULL;
    if (more || (fm_json_count(o.properties) > 0 && fm_json_count(o.required) == 0))
        return members(b, in, out, &o);
    /* An absent additionalProperties means true, where no properties are declared. */
    fm_json *any = fm_json_new_bool(true);
    FM_TRY(gr_own(b, any));
    bool lacks = fm_json_count(o.properties) == 0;
    for (size_t i = 0; i < fm_json_count(o.required) && !lacks; i++)
        lacks = !fm_json_get(o.properties, fm_json_cstr(fm_json_at(o.required, i), ""));
    o.other = lacks ? any : NULL;
    return members(b, in, out, &o);
}

/* ---- arrays ---- */

/* Writes the i-th item between the state before it and the one behind it. */
static fm_status item(gr_builder *b, uint32_t from, uint32_t to, uint32_t i, const fm_json *schema)
{
    uint32_t begin, comma = from;
    FM_TRY(gr_node(b, &begin));

    if (i > 0) {
        FM_TRY(gr_node(b, &comma));
        FM_TRY(gr_str(b, from, comma, ","));
    }
    FM_TRY(gr_blanks(b, comma, begin, i > 0, true));
    return value(b, begin, to, schema, "items");
}

typedef struct array {
    const fm_json *first; /* prefixItems, or NULL */
    const fm_json *rest;  /* NULL: any */
    uint32_t least, most; /* most GR_NONE: no limit */
} array;

static fm_status read_array(gr_builder *b, array *a, const fm_json *schema)
{
    const fm_json *rest = fm_json_get(schema, "items");
    fm_status rc = gr_count_of(b, schema, "minItems", 0, &a->least);

    a->first = fm_json_get(schema, "prefixItems");
    a->rest = rest;
    FM_THEN(rc, gr_count_of(b, schema, "maxItems", GR_NONE, &a->most));
    if (rc == FM_OK && a->first && !fm_json_is(a->first, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'prefixItems' must be an array", b->where);
    if (rc == FM_OK && fm_json_is(rest, FM_JSON_ARRAY))
        return fm_fail(FM_EUNSUPPORTED, "%s: 'items' as a list is not supported; say prefixItems",
                       b->where);
    if (fm_json_is(rest, FM_JSON_BOOL) && !fm_json_bool(rest, true))
        a->most = FM_MIN(a->most, (uint32_t)FM_MIN(fm_json_count(a->first), (size_t)1 << 20));
    if (rc == FM_OK && !rest) {
        fm_json *any = fm_json_new_bool(true);
        a->rest = any;
        rc = gr_own(b, any);
    }
    return rc;
}

static fm_status emit_array(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    array a;
    uint32_t at, next, close, firsts;
    fm_status rc = read_array(b, &a, schema);

    FM_THEN(rc, gr_node(b, &at));
    FM_THEN(rc, gr_node(b, &close));
    FM_THEN(rc, gr_str(b, in, at, "["));
    FM_THEN(rc, gr_empty(b, close, out));
    if (rc < 0)
        return rc;
    firsts = (uint32_t)fm_json_count(a.first);
    uint32_t apart = FM_MAX(FM_MAX(firsts, a.least), 1u); /* items with states of their own */
    uint32_t stop = a.most == GR_NONE ? apart : a.most;
    for (uint32_t i = 0; rc == FM_OK; i++, at = next) {
        uint32_t end;
        if (i >= a.least) {
            rc = gr_node(b, &end);
            FM_THEN(rc, i > 0 ? gr_blanks(b, at, end, false, true) : gr_empty(b, at, end));
            FM_THEN(rc, gr_str(b, end, close, "]"));
        }
        if (rc < 0 || i >= stop)
            break;
        rc = gr_node(b, &next);
        FM_THEN(rc, item(b, at, next, i, i < firsts ? fm_json_at(a.first, i) : a.rest));
    }
    if (rc == FM_OK && a.most == GR_NONE)
        rc = item(b, at, at, apart, a.rest);
    return rc;
}

/* ---- a schema ---- */

/* Checks keywords; those of the second list are known only with the value that demands nothing. */
static fm_status check_keys(const gr_builder *b, const fm_json *schema)
{
    static const char *const known[] = {"type",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "items",
                                        "prefixItems",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "enum",
                                        "const",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "anyOf",
                                        "exclusiveMaximum",
                                        "oneOf",
                                        "allOf",
                                        "$ref"};
    for (void *it = fm_json_iter(schema); it; it = fm_json_next(schema, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *v = fm_json_iter_value(it);
        bool fine = gr_is_annotation(key);
        for (size_t i = 0; i < FM_ARRAY_LEN(known) && !fine; i++)
            fine = strcmp(key, known[i]) == 0;
        if (strcmp(key, "uniqueItems") == 0 || strcmp(key, "nullable") == 0)
            fine = fm_json_is(v, FM_JSON_BOOL) && !fm_json_bool(v, true);
        if (strcmp(key, "minProperties") == 0 || strcmp(key, "minContains") == 0)
            fine = fm_json_is(v, FM_JSON_INT) && fm_json_int(v, 1) == 0;
        if (strcmp(key, "multipleOf") == 0)
            fine = fm_json_int(v, 0) == 1 &&
                   strcmp(fm_json_cstr(fm_json_get(schema, "type"), ""), "integer") == 0;
        if (!fine)
            return gr_refuse(b, key);
    }
    return FM_OK;
}

static bool type_fits(const fm_json *v, const char *type)
{
    double x = fm_json_real(v, 0.5);

    switch (fm_json_typeof(v)) {
    case FM_JSON_NULL:
        return strcmp(type, "null") == 0;
    case FM_JSON_BOOL:
        return strcmp(type, "boolean") == 0;
    case FM_JSON_INT:
        return strcmp(type, "integer") == 0 || strcmp(type, "number") == 0;
    case FM_JSON_REAL:
        return strcmp(type, "number") == 0 ||
               (strcmp(type, "integer") == 0 && x < 9e15 && x > -9e15 && (double)(int64_t)x == x);
    case FM_JSON_STRING:
        return strcmp(type, "string") == 0;
    case FM_JSON_ARRAY:
        return strcmp(type, "array") == 0;
    case FM_JSON_OBJECT:
        break;
    }
    return strcmp(type, "object") == 0;
}

static bool fits(const fm_json *v, const fm_json *type)
{
    bool hit = !type || (fm_json_is(type, FM_JSON_STRING) && type_fits(v, fm_json_cstr(type, "")));

    for (size_t i = 0; fm_json_is(type, FM_JSON_ARRAY) && i < fm_json_count(type); i++)
        hit = hit || type_fits(v, fm_json_cstr(fm_json_at(type, i), ""));
    return hit;
}

static fm_status emit_listed(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    const fm_json *list = fm_json_get(schema, "enum"), *only = fm_json_get(schema, "const");
    const fm_json *type = fm_json_get(schema, "type");

    for (void *it = fm_json_iter(schema); it; it = fm_json_next(schema, it)) {
        const char *key = fm_json_iter_key(it);
        if (strcmp(key, "enum") && strcmp(key, "const") && strcmp(key, "type") &&
            !gr_is_annotation(key))
            return fm_fail(FM_EUNSUPPORTED, "%s: '%.64s' beside 'enum' or 'const' is not supported",
                           b->where, key);
    }
    if (!list)
        return fits(only, type) ? gr_json_text(b, in, out, only) : FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'enum' must be an array", b->where);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *v = fm_json_at(list, i);
        if (fits(v, type) && (!only || fm_json_equal(v, only)))
            FM_TRY(gr_json_text(b, in, out, v));
    }
    return FM_OK;
}

static fm_status emit_type(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema,
                           const char *type)
{
    if (strcmp(type, "object") == 0)
        return emit_object(b, in, out, schema);
    if (strcmp(type, "array") == 0)
        return emit_array(b, in, out, schema);
    if (strcmp(type, "string") == 0)
        return gr_string(b, in, out, schema);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return gr_number(b, in, out, schema, type[0] == 'i');
    if (strcmp(type, "null") == 0)
        return gr_str(b, in, out, "null");
    if (strcmp(type, "boolean") != 0)
        return fm_fail(FM_EINVAL, "%s: there is no type '%.64s'", b->where, type);
    FM_TRY(gr_str(b, in, out, "true"));
    return gr_str(b, in, out, "false");
}

const char *gr_implied_type(const fm_json *schema)
{
    static const char *const of[][2] = {{"properties", "object"},
                                        {"required", "object"},
                                        {"additionalProperties", "object"},
                                        {"items", "array"},
                                        {"prefixItems", "array"},
                                        {"minItems", "array"},
                                        {"maxItems", "array"},
                                        {"pattern", "string"},
                                        {"minLength", "string"},
                                        {"maxLength", "string"},
                                        {"format", "string"},
                                        {"minimum", "number"},
                                        {"maximum", "number"},
                                        {"exclusiveMinimum", "number"},
                                        {"exclusiveMaximum", "number"}};

    for (size_t i = 0; i < FM_ARRAY_LEN(of); i++)
        if (fm_json_get(schema, of[i][0]))
            return of[i][1];
    return NULL;
}

static fm_status emit_typed(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    const fm_json *type = fm_json_get(schema, "type");
    const char *one = type ? fm_json_cstr(type, NULL) : gr_implied_type(schema);

    if (one)
        return emit_type(b, in, out, schema, one);
    if (!type)
        return gr_any_value(b, in, out, FM_GRAMMAR_ANY_DEPTH);
    if (!fm_json_is(type, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'type' must be a string or an array", b->where);
    for (size_t i = 0; i < fm_json_count(type); i++)
        FM_TRY(emit_type(b, in, out, schema, fm_json_cstr(fm_json_at(type, i), "")));
    return FM_OK;
}

/* anyOf, oneOf: each branch merged with the keywords next to it. */
static fm_status emit_union(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema,
                            const char *key)
{
    const fm_json *list = fm_json_get(schema, key), *branch, *rest;
    bool some;
    fm_status rc = gr_without(b, &rest, schema, key, &some);

    if (rc == FM_OK && (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) == 0))
        return fm_fail(FM_EINVAL, "%s: '%s' must be an array with something in it", b->where, key);
    if (fm_json_get(schema, "anyOf") && fm_json_get(schema, "oneOf"))
        return fm_fail(FM_EUNSUPPORTED, "%s: 'anyOf' beside 'oneOf' is not supported", b->where);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        branch = fm_json_at(list, i);
        if (some)
            rc = gr_merge(b, &branch, rest, branch);
        if (rc == FM_OK && key[0] == 'o')
            rc = gr_check_one_of(b, branch, list, i);
        FM_THEN(rc, emit(b, in, out, branch));
    }
    return rc;
}

static fm_status emit_object_schema(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    FM_TRY(check_keys(b, schema));

    FM_TRY(gr_resolve(b, &schema, schema));
    if (fm_json_is(schema, FM_JSON_BOOL))
        return emit(b, in, out, schema);
    FM_TRY(check_keys(b, schema));
    if (fm_json_get(schema, "anyOf") || fm_json_get(schema, "oneOf"))
        return emit_union(b, in, out, schema, fm_json_get(schema, "anyOf") ? "anyOf" : "oneOf");
    if (fm_json_get(schema, "const") || fm_json_get(schema, "enum"))
        return emit_listed(b, in, out, schema);
    return emit_typed(b, in, out, schema);
}

/* Alternatives start at nodes of their own, since they must not share loops at their start. */
static fm_status emit(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema)
{
    uint32_t own;
    FM_TRY(gr_node(b, &own));

    FM_TRY(gr_empty(b, in, own));
    if (fm_json_is(schema, FM_JSON_BOOL))
        return fm_json_bool(schema, false) ? gr_any_value(b, own, out, FM_GRAMMAR_ANY_DEPTH)
                                           : FM_OK;
    if (!fm_json_is(schema, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: a schema must be an object or a boolean", b->where);
    if (b->depth >= GR_INLINE_DEPTH)
        return fm_fail(FM_ELIMIT, "%s: the schema refers to itself without a value in between",
                       b->where);
    b->depth++;
    fm_status rc = emit_object_schema(b, own, out, schema);
    b->depth--;
    return rc;
}

/* ---- compiling ---- */

static fm_status write_rule(gr_builder *b, uint32_t i)
{
    gr_rule r = b->rule[i];
    uint32_t in, out;

    b->nodes = b->nfa_count = 0;
    b->where = r.where;
    FM_TRY(gr_node(b, &in));
    FM_TRY(gr_node(b, &out));
    if (r.kind == GR_STRING)
        FM_TRY(gr_any_string(b, in, out));
    else if (r.kind == GR_CHAR)
        FM_TRY(gr_any_char(b, in, out));
    else if (r.kind == GR_BLANK)
        FM_TRY(gr_some_blanks(b, in, out, r.depth > 0));
    else if (r.kind == GR_OBJECT)
        FM_TRY(gr_any_container(b, in, out, true, r.depth));
    else if (r.kind == GR_ANY)
        FM_TRY(gr_any_value(b, in, out, r.depth));
    else
        FM_TRY(emit(b, in, out, r.schema));
    return gr_determinize(b, i, in, out);
}

static fm_status compile(gr_builder *b, const fm_json *schema)
{
    uint32_t root;

    b->root = schema;
    b->where = "schema";
    if (schema)
        FM_TRY(gr_new_rule(b, (gr_rule){.kind = GR_SCHEMA, .schema = schema, .text = NULL},
                           "schema", &root));
    else
        FM_TRY(gr_new_rule(b, (gr_rule){.kind = GR_OBJECT, .depth = FM_GRAMMAR_ANY_DEPTH}, "object",
                           &root));
    for (uint32_t i = 0; i < b->rules; i++)
        FM_TRY(write_rule(b, i));
    return gr_trim(b);
}

static fm_status build(fm_grammar **out, const fm_json *schema, bool compact)
{
    gr_builder b = {.compact = compact};

    *out = NULL;
    b.g = fm_calloc(1, sizeof *b.g);
    if (!b.g)
        return FM_ENOMEM;
    fm_status rc = compile(&b, schema);
    for (size_t i = 0; i < b.rules; i++) {
        fm_free(b.rule[i].text);
        fm_free(b.rule[i].where);
    }
    for (size_t i = 0; i < b.owned_count; i++)
        fm_json_free(b.owned[i]);
    fm_free(b.rule);
    fm_free(b.owned);
    fm_free(b.head);
    fm_free(b.nfa);
    if (rc == FM_OK)
        *out = b.g;
    else
        fm_grammar_free(b.g);
    return rc;
}

fm_status fm_grammar_check_draft(const fm_json *uri, const char *where)
{
    static const char *const known[] = {"/draft/2020-12/schema", "/draft/2019-09/schema",
                                        "/draft-07/schema", "/draft-06/schema", "/draft-04/schema"};
    const char *text = fm_json_cstr(uri, ""), *at = strstr(text, "://json-schema.org/");

    for (size_t i = 0; at && i < FM_ARRAY_LEN(known); i++) {
        const char *path = at + strlen("://json-schema.org");
        size_t n = strlen(known[i]);
        if (strncmp(path, known[i], n) == 0 && (!path[n] || strcmp(path + n, "#") == 0))
            return FM_OK;
    }
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: '$schema' names '%.100s', which is no draft of json-schema.org from 4 to "
                   "2020-12; what its keywords mean is not known here",
                   where, text);
}

fm_status fm_grammar_new(fm_grammar **out, const fm_json *schema, bool compact)
{
    *out = NULL;
    if (!fm_json_is(schema, FM_JSON_OBJECT) && !fm_json_is(schema, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "schema: must be an object or a boolean");
    if (fm_json_get(schema, "$schema"))
        FM_TRY(fm_grammar_check_draft(fm_json_get(schema, "$schema"), "schema"));
    return build(out, schema, compact);
}

fm_status fm_grammar_new_object(fm_grammar **out, bool compact)
{
    return build(out, NULL, compact);
}
