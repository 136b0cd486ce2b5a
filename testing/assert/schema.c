/* schema.c - JSON Schema, draft 2020-12, without the parts that need other documents or dynamic
 * scopes: a keyword that is not understood and would change a verdict is refused when the suite is
 * read. The schema is walked as JSON; only its patterns are compiled.
 *
 * As in the draft, numbers are compared by value (1 is 1.0, and an integer), strings by code
 * points, objects without order. Patterns are PCRE2, which agrees with ECMA-262 in common ones. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "infer/grammar.h"
#include "store/base/mem.h"
#include "testing/assert/assert.h"

#define SCHEMA_DEEP_MAX 64       /* nesting of the schema */
#define CHECK_DEEP_MAX 512       /* nesting of a check: values and references */
#define CHECK_STEPS_MAX 1000000u /* subschemas and comparisons of one check */
#define PATTERN_STEPS 500u       /* steps of one match of a pattern */
#define SCHEMA_NODES_MAX 100000u

struct fmv_schema {
    const fm_json *doc;
    struct pattern {
        const fm_json *at; /* the string, or the schema behind a key of patternProperties */
        fm_regex *regex;
    } * pattern;
    size_t patterns, cap, nodes;
};

/* ---- reading ---- */

typedef enum form {
    ANYTHING,
    SCHEMA,
    SCHEMAS,     /* a list of schemas, not empty */
    SCHEMA_MAP,  /* schemas by name */
    PATTERN_MAP, /* schemas by pattern */
    NUMBER,
    POSITIVE,
    COUNT, /* a whole number, 0 or more */
    FLAG,
    NAMES,     /* a list of strings */
    NAMES_MAP, /* lists of strings by name */
    LIST,      /* a list, not empty */
    TYPES,
    PATTERN,
    REFERENCE,
    DRAFT,
} form;

static const struct {
    const char *word;
    form form;
} keyword[] = {
    {"type", TYPES},
    {"enum", LIST},
    {"const", ANYTHING},
    {"properties", SCHEMA_MAP},
    {"patternProperties", PATTERN_MAP},
    {"additionalProperties", SCHEMA},
    {"propertyNames", SCHEMA},
    {"required", NAMES},
    {"dependentRequired", NAMES_MAP},
    {"dependentSchemas", SCHEMA_MAP},
    {"minProperties", COUNT},
    {"maxProperties", COUNT},
    {"prefixItems", SCHEMAS},
    {"items", SCHEMA},
    {"contains", SCHEMA},
    {"minContains", COUNT},
    {"maxContains", COUNT},
    {"minItems", COUNT},
    {"maxItems", COUNT},
    {"uniqueItems", FLAG},
    {"minLength", COUNT},
    {"maxLength", COUNT},
    {"pattern", PATTERN},
    {"minimum", NUMBER},
    {"maximum", NUMBER},
    {"exclusiveMinimum", NUMBER},
    {"exclusiveMaximum", NUMBER},
    {"multipleOf", POSITIVE},
    {"allOf", SCHEMAS},
    {"anyOf", SCHEMAS},
    {"oneOf", SCHEMAS},
    {"not", SCHEMA},
    {"if", SCHEMA},
    {"then", SCHEMA},
    {"else", SCHEMA},
    {"$ref", REFERENCE},
    {"$defs", SCHEMA_MAP},
    {"definitions", SCHEMA_MAP},
    {"$schema", DRAFT},
    {"$comment", ANYTHING}, /* from here on: says nothing of a value */
    {"title", ANYTHING},
    {"description", ANYTHING},
    {"default", ANYTHING},
    {"examples", ANYTHING},
    {"example", ANYTHING},
    {"deprecated", ANYTHING},
    {"readOnly", ANYTHING},
    {"writeOnly", ANYTHING},
};

typedef struct reader {
    fmv_schema *s;
    const char *where;
    int depth;
} reader;

static fm_status read_schema(reader *r, const fm_json *v);

static fm_status wants(const reader *r, const char *word, const char *what)
{
    return fm_fail(FM_EINVAL, "%s: schema: '%s' wants %s", r->where, word, what);
}

static fm_status add_pattern(reader *r, const fm_json *at, const char *text)
{
    fmv_schema *s = r->s;
    fm_regex *regex = NULL;
    fm_status rc = fmv_pattern_compile(&regex, text, false, r->where);
    FM_THEN(rc, fm_grow(&s->pattern, &s->cap, s->patterns + 1, sizeof *s->pattern));
    if (rc < 0) {
        fm_regex_free(regex);
        return rc;
    }
    s->pattern[s->patterns++] = (struct pattern){at, regex};
    return FM_OK;
}

static bool all_strings(const fm_json *v)
{
    bool ok = fm_json_is(v, FM_JSON_ARRAY);
    for (size_t i = 0; ok && i < fm_json_count(v); i++)
        ok = fm_json_is(fm_json_at(v, i), FM_JSON_STRING);
    return ok;
}

static fm_status read_types(const reader *r, const fm_json *v)
{
    static const char *const known[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    bool ok = fm_json_is(v, FM_JSON_STRING) || (all_strings(v) && fm_json_count(v));
    for (size_t i = 0; ok && i < fmv_text_count(v); i++) {
        ok = false;
        for (size_t k = 0; k < FM_ARRAY_LEN(known); k++)
            ok = ok || fm_span_eq_str(fmv_text_at(v, i), known[k]);
    }
    return ok ? FM_OK : wants(r, "type", "one or a list of JSON's types");
}

static form form_of(const char *word)
{
    for (size_t k = 0; k < FM_ARRAY_LEN(keyword); k++)
        if (strcmp(keyword[k].word, word) == 0)
            return keyword[k].form;
    return ANYTHING;
}

/* Reads a part of a JSON Pointer, at *p behind its '/'. False: too long, or not supported. */
static bool take_part(char *name, size_t size, const char **p)
{
    size_t n = 0;
    for (; **p && **p != '/'; ++*p) {
        char c = **p;
        if (c == '~' && ((*p)[1] == '0' || (*p)[1] == '1'))
            c = *++*p == '0' ? '~' : '/';
        if (c == '%' || n + 1 >= size)
            return false;
        name[n++] = c;
    }
    name[n] = '\0';
    return true;
}

static const fm_json *entry_of(const fm_json *list, const char *name)
{
    size_t i = 0;
    for (const char *p = name; *p; p++)
        i = *p >= '0' && *p <= '9' && i < 100000 ? i * 10 + (size_t)(*p - '0') : SIZE_MAX / 16;
    return *name && i < fm_json_count(list) ? fm_json_at(list, i) : NULL;
}

/* The schema that "#" or "#/$defs/name" refers to within the document, by JSON Pointer, from schema
 * to schema: a value in a `default` or an `enum` was not read as one. NULL: there is none. */
static const fm_json *referred(const fm_json *doc, const char *ref)
{
    const fm_json *v = doc;
    form at = SCHEMA;
    char name[256];
    if (*ref++ != '#')
        return NULL;
    while (v && *ref) {
        if (*ref++ != '/' || !take_part(name, sizeof name, &ref))
            return NULL;
        form next = at == SCHEMA ? form_of(name) : SCHEMA;
        if (next != SCHEMA && next != SCHEMAS && next != SCHEMA_MAP && next != PATTERN_MAP)
            return NULL;
        v = at == SCHEMAS ? entry_of(v, name) : fm_json_get(v, name);
        at = next;
    }
    return at == SCHEMA ? v : NULL;
}

static bool is_schema(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_BOOL) || fm_json_is(v, FM_JSON_OBJECT);
}

static fm_status read_map(reader *r, const char *word, const fm_json *v, form f)
{
    FM_TRY(fm_json_is(v, FM_JSON_OBJECT) ? FM_OK : wants(r, word, "a mapping"));
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        const fm_json *one = fm_json_iter_value(it);
        if (f == NAMES_MAP)
            FM_TRY(all_strings(one) ? FM_OK : wants(r, word, "lists of names"));
        else if (f == PATTERN_MAP)
            FM_TRY(add_pattern(r, one, fm_json_iter_key(it)));
        if (f != NAMES_MAP)
            FM_TRY(is_schema(one) ? read_schema(r, one) : wants(r, word, "schemas by name"));
    }
    return FM_OK;
}

static fm_status read_value(reader *r, const char *word, const fm_json *v, form f)
{
    fm_status rc = FM_OK;
    switch (f) {
    case ANYTHING:
        return FM_OK;
    case SCHEMA:
        return is_schema(v) ? read_schema(r, v)
                            : wants(r, word, "a schema: a mapping, true or false");
    case SCHEMAS:
        if (!fm_json_is(v, FM_JSON_ARRAY) || !fm_json_count(v))
            return wants(r, word, "a list of schemas");
        for (size_t i = 0; rc == FM_OK && i < fm_json_count(v); i++)
            rc = is_schema(fm_json_at(v, i)) ? read_schema(r, fm_json_at(v, i))
                                             : wants(r, word, "a list of schemas");
        return rc;
    case SCHEMA_MAP:
    case PATTERN_MAP:
    case NAMES_MAP:
        return read_map(r, word, v, f);
    case NUMBER:
        return fmv_is_number(v) ? FM_OK : wants(r, word, "a number");
    case POSITIVE:
        return fmv_is_number(v) && fm_json_real(v, 0) > 0 ? FM_OK : wants(r, word, "a number > 0");
    case COUNT:
        return fm_json_is(v, FM_JSON_INT) && fm_json_int(v, -1) >= 0
                   ? FM_OK
                   : wants(r, word, "a whole number, 0 or more");
    case FLAG:
        return fm_json_is(v, FM_JSON_BOOL) ? FM_OK : wants(r, word, "true or false");
    case NAMES:
        return all_strings(v) ? FM_OK : wants(r, word, "a list of names");
    case LIST:
        return fm_json_is(v, FM_JSON_ARRAY) && fm_json_count(v)
                   ? FM_OK
                   : wants(r, word, "a list of values");
    case TYPES:
        return read_types(r, v);
    case PATTERN:
        return fm_json_is(v, FM_JSON_STRING) ? add_pattern(r, v, fm_json_cstr(v, ""))
                                             : wants(r, word, "a string");
    case REFERENCE:
        return is_schema(referred(r->s->doc, fm_json_cstr(v, "")))
                   ? FM_OK
                   : wants(r, word, "a schema of the same document, like '#/$defs/name'");
    case DRAFT:
        return fm_grammar_check_draft(v, r->where);
    }
    return FM_OK;
}

static fm_status read_schema(reader *r, const fm_json *v)
{
    if (!is_schema(v))
        return fm_fail(FM_EINVAL, "%s: a schema is a mapping, true or false", r->where);
    if (r->depth >= SCHEMA_DEEP_MAX || ++r->s->nodes > SCHEMA_NODES_MAX)
        return fm_fail(FM_ELIMIT, "%s: the schema is deeper than %d or has more than %u parts",
                       r->where, SCHEMA_DEEP_MAX, SCHEMA_NODES_MAX);
    r->depth++;
    fm_status rc = FM_OK;
    for (void *it = fm_json_iter(v); rc == FM_OK && it; it = fm_json_next(v, it)) {
        const char *word = fm_json_iter_key(it);
        size_t k = 0;
        while (k < FM_ARRAY_LEN(keyword) && strcmp(keyword[k].word, word) != 0)
            k++;
        if (r->depth == 1 && strcmp(word, "$id") == 0) /* deeper, $id would change what '#' means */
            continue;
        if (strcmp(word, "nullable") == 0 && fm_json_is(fm_json_iter_value(it), FM_JSON_BOOL) &&
            !fm_json_bool(fm_json_iter_value(it), true)) /* OpenAPI's: it allows nothing more */
            continue;
        rc = k < FM_ARRAY_LEN(keyword)
                 ? read_value(r, word, fm_json_iter_value(it), keyword[k].form)
                 : fm_fail(FM_EINVAL, "%s: schema: keyword '%.60s' is not understood", r->where,
                           word);
    }
    r->depth--;
    return rc;
}

void fmv_schema_free(fmv_schema *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->patterns; i++)
        fm_regex_free(s->pattern[i].regex);
    fm_free(s->pattern);
    fm_free(s);
}

fm_status fmv_schema_new(fmv_schema **out, const fm_json *doc, const char *where)
{
    fmv_schema *s = fm_calloc(1, sizeof *s);
    uint32_t steps = 0;
    bool valid;
    char why[8];
    *out = NULL;
    if (!s)
        return FM_ENOMEM;
    s->doc = doc;
    reader r = {s, where, 0};
    fm_status rc = read_schema(&r, doc);
    /* A schema of references to itself alone would never end. */
    if (rc == FM_OK && (rc = fmv_schema_check(s, NULL, &steps, &valid, why, sizeof why)) < 0)
        rc = fm_error_prefix(rc, "%s", where);
    if (rc < 0)
        fmv_schema_free(s);
    else
        *out = s;
    return rc;
}

/* ---- checking ---- */

typedef struct check {
    const fmv_schema *s;
    uint32_t steps;
    int depth;
    char path[160]; /* JSON Pointer of the value, cut where it is long */
    char *why;      /* reason of the innermost place that broke first; NULL: not wanted */
    size_t why_size;
    fm_status rc; /* after an error nothing more is decided */
} check;

static bool valid(check *c, const fm_json *schema, const fm_json *v);

static bool spent(check *c)
{
    if (c->rc == FM_OK && ++c->steps > CHECK_STEPS_MAX)
        c->rc = fm_fail(FM_ELIMIT, "the JSON Schema takes more than %u steps", CHECK_STEPS_MAX);
    return c->rc < 0;
}

static bool broke(check *c, const char *word)
{
    if (c->why && !*c->why)
        snprintf(c->why, c->why_size, "%s: %s", *c->path ? c->path : "/", word);
    return false;
}

static int compare(const fm_json *a, const fm_json *b)
{
    if (fm_json_is(a, FM_JSON_INT) && fm_json_is(b, FM_JSON_INT)) {
        int64_t x = fm_json_int(a, 0), y = fm_json_int(b, 0);
        return (x > y) - (x < y);
    }
    double x = fm_json_real(a, 0), y = fm_json_real(b, 0);
    return (x > y) - (x < y);
}

static bool same(check *c, const fm_json *a, const fm_json *b)
{
    if (spent(c))
        return false;
    if (fmv_is_number(a) && fmv_is_number(b))
        return compare(a, b) == 0;
    if (fm_json_typeof(a) != fm_json_typeof(b) || fm_json_count(a) != fm_json_count(b))
        return false;
    if (fm_json_is(a, FM_JSON_STRING))
        return fm_span_eq(fm_json_str(a), fm_json_str(b));
    bool equal = !fm_json_is(a, FM_JSON_BOOL) || fm_json_bool(a, false) == fm_json_bool(b, false);
    for (size_t i = 0; equal && fm_json_is(a, FM_JSON_ARRAY) && i < fm_json_count(a); i++)
        equal = same(c, fm_json_at(a, i), fm_json_at(b, i));
    for (void *it = fm_json_is(a, FM_JSON_OBJECT) ? fm_json_iter(a) : NULL; equal && it;
         it = fm_json_next(a, it)) {
        const fm_json *other = fm_json_get(b, fm_json_iter_key(it));
        equal = other && same(c, fm_json_iter_value(it), other);
    }
    return equal;
}

/* Checks a value inside of v, whose name or index is added to the path meanwhile. */
static bool valid_inside(check *c, const fm_json *schema, const fm_json *v, const char *name,
                         size_t index)
{
    size_t n = strlen(c->path);
    if (name)
        snprintf(c->path + n, sizeof c->path - n, "/%.60s", name);
    else
        snprintf(c->path + n, sizeof c->path - n, "/%zu", index);
    bool ok = valid(c, schema, v);
    c->path[n] = '\0';
    return ok;
}

/* Checks without recording a reason, for anyOf, not, if, contains. */
static bool valid_quietly(check *c, const fm_json *schema, const fm_json *v)
{
    char *why = c->why;
    c->why = NULL;
    bool ok = valid(c, schema, v);
    c->why = why;
    return ok;
}

static bool matches(check *c, const fm_json *at, fm_span text)
{
    bool found = false;
    for (size_t i = 0; i < c->s->patterns && c->rc == FM_OK; i++)
        if (c->s->pattern[i].at == at) {
            c->steps += PATTERN_STEPS + (uint32_t)i / 16;
            c->rc = fmv_pattern_found(c->s->pattern[i].regex, text, &found);
            break;
        }
    return found;
}

static bool is_type(const fm_json *v, fm_span type)
{
    static const char *const name[] = {
        [FM_JSON_NULL] = "null",     [FM_JSON_BOOL] = "boolean",  [FM_JSON_INT] = "integer",
        [FM_JSON_REAL] = "number",   [FM_JSON_STRING] = "string", [FM_JSON_ARRAY] = "array",
        [FM_JSON_OBJECT] = "object",
    };
    if (fm_span_eq_str(type, "number"))
        return fmv_is_number(v);
    if (fm_span_eq_str(type, "integer") && fm_json_is(v, FM_JSON_REAL))
        return fm_json_real(v, 0.5) == floor(fm_json_real(v, 0.5));
    return fm_span_eq_str(type, name[fm_json_typeof(v)]);
}

static bool check_any_kind(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *type = fm_json_get(s, "type"), *list = fm_json_get(s, "enum"),
                  *only = fm_json_get(s, "const");
    bool ok = !type;
    for (size_t i = 0; type && !ok && i < fmv_text_count(type); i++)
        ok = is_type(v, fmv_text_at(type, i));
    if (!ok)
        return broke(c, "type");
    ok = !list;
    for (size_t i = 0; !ok && i < fm_json_count(list); i++)
        ok = same(c, fm_json_at(list, i), v);
    if (!ok)
        return broke(c, "enum");
    return !only || same(c, only, v) || broke(c, "const");
}

/* Whether n is within the bounds of the keywords low and high. */
static bool within(check *c, const fm_json *s, size_t n, const char *low, const char *high)
{
    const fm_json *l = fm_json_get(s, low), *h = fm_json_get(s, high);
    if (l && n < (size_t)fm_json_int(l, 0))
        return broke(c, low);
    return !h || n <= (size_t)fm_json_int(h, 0) || broke(c, high);
}

static bool is_multiple(const fm_json *v, const fm_json *of)
{
    if (fm_json_is(v, FM_JSON_INT) && fm_json_is(of, FM_JSON_INT))
        return fm_json_int(v, 0) % fm_json_int(of, 1) == 0;
    double q = fm_json_real(v, 0) / fm_json_real(of, 1);
    return q == floor(q) && isfinite(q);
}

static bool check_number(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *b;
    if (!fmv_is_number(v))
        return true;
    if ((b = fm_json_get(s, "minimum")) && compare(v, b) < 0)
        return broke(c, "minimum");
    if ((b = fm_json_get(s, "maximum")) && compare(v, b) > 0)
        return broke(c, "maximum");
    if ((b = fm_json_get(s, "exclusiveMinimum")) && compare(v, b) <= 0)
        return broke(c, "exclusiveMinimum");
    if ((b = fm_json_get(s, "exclusiveMaximum")) && compare(v, b) >= 0)
        return broke(c, "exclusiveMaximum");
    return !(b = fm_json_get(s, "multipleOf")) || is_multiple(v, b) || broke(c, "multipleOf");
}

static bool check_string(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *pattern = fm_json_get(s, "pattern");
    if (!fm_json_is(v, FM_JSON_STRING))
        return true;
    return within(c, s, fmv_count_points(fm_json_str(v)), "minLength", "maxLength") &&
           (!pattern || matches(c, pattern, fm_json_str(v)) || broke(c, "pattern"));
}

static bool all_different(check *c, const fm_json *v)
{
    for (size_t i = 0; i < fm_json_count(v); i++)
        for (size_t k = 0; k < i; k++)
            if (same(c, fm_json_at(v, i), fm_json_at(v, k)) || c->rc < 0)
                return false;
    return true;
}

static bool check_contains(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *want = fm_json_get(s, "contains");
    const fm_json *high = fm_json_get(s, "maxContains");
    int64_t low = fm_json_int(fm_json_get(s, "minContains"), 1), n = 0;
    if (!want)
        return true;
    for (size_t i = 0; i < fm_json_count(v); i++)
        n += valid_quietly(c, want, fm_json_at(v, i));
    return n >= low && (!high || n <= fm_json_int(high, 0)) ? true : broke(c, "contains");
}

static bool check_array(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *prefix = fm_json_get(s, "prefixItems"), *items = fm_json_get(s, "items");
    if (!fm_json_is(v, FM_JSON_ARRAY))
        return true;
    if (!within(c, s, fm_json_count(v), "minItems", "maxItems"))
        return false;
    for (size_t i = 0; i < fm_json_count(v); i++) {
        const fm_json *one = i < fm_json_count(prefix) ? fm_json_at(prefix, i) : items;
        if (one && !valid_inside(c, one, fm_json_at(v, i), NULL, i))
            return false;
    }
    if (fm_json_bool(fm_json_get(s, "uniqueItems"), false) && !all_different(c, v))
        return broke(c, "uniqueItems");
    return check_contains(c, s, v);
}

static bool has_all(check *c, const fm_json *names, const fm_json *v, const char *word)
{
    for (size_t i = 0; i < fm_json_count(names); i++)
        if (!fm_json_get(v, fm_json_cstr(fm_json_at(names, i), "")))
            return broke(c, word);
    return true;
}

static bool check_property(check *c, const fm_json *s, const char *name, const fm_json *v)
{
    const fm_json *own = fm_json_get(fm_json_get(s, "properties"), name),
                  *by = fm_json_get(s, "patternProperties"),
                  *rest = fm_json_get(s, "additionalProperties");
    bool known = own != NULL;
    if (own && !valid_inside(c, own, v, name, 0))
        return false;
    for (void *it = fm_json_iter(by); it; it = fm_json_next(by, it)) {
        const fm_json *one = fm_json_iter_value(it);
        if (!matches(c, one, fm_span_str(name)))
            continue;
        known = true;
        if (!valid_inside(c, one, v, name, 0))
            return false;
    }
    if (known || !rest)
        return true;
    return fm_json_is(rest, FM_JSON_BOOL) && !fm_json_bool(rest, true)
               ? broke(c, "additionalProperties")
               : valid_inside(c, rest, v, name, 0);
}

static bool check_names(check *c, const fm_json *s, const char *name)
{
    const fm_json *want = fm_json_get(s, "propertyNames");
    if (!want)
        return true;
    fm_json *text = fm_json_new_str(name);
    if (!text)
        c->rc = FM_ENOMEM;
    bool ok = text && valid_quietly(c, want, text);
    fm_json_free(text);
    return ok || broke(c, "propertyNames");
}

static bool check_object(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *needs = fm_json_get(s, "dependentRequired"),
                  *then = fm_json_get(s, "dependentSchemas");
    if (!fm_json_is(v, FM_JSON_OBJECT))
        return true;
    if (!has_all(c, fm_json_get(s, "required"), v, "required") ||
        !within(c, s, fm_json_count(v), "minProperties", "maxProperties"))
        return false;
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it))
        if (!check_names(c, s, fm_json_iter_key(it)) ||
            !check_property(c, s, fm_json_iter_key(it), fm_json_iter_value(it)))
            return false;
    for (void *it = fm_json_iter(needs); it; it = fm_json_next(needs, it))
        if (fm_json_get(v, fm_json_iter_key(it)) &&
            !has_all(c, fm_json_iter_value(it), v, "dependentRequired"))
            return false;
    for (void *it = fm_json_iter(then); it; it = fm_json_next(then, it))
        if (fm_json_get(v, fm_json_iter_key(it)) && !valid(c, fm_json_iter_value(it), v))
            return false;
    return true;
}

static size_t count_valid(check *c, const fm_json *list, const fm_json *v, size_t enough)
{
    size_t n = 0;
    for (size_t i = 0; i < fm_json_count(list) && n < enough; i++)
        n += valid_quietly(c, fm_json_at(list, i), v);
    return n;
}

static bool check_together(check *c, const fm_json *s, const fm_json *v)
{
    const fm_json *ref = fm_json_get(s, "$ref"), *all = fm_json_get(s, "allOf"),
                  *any = fm_json_get(s, "anyOf"), *one = fm_json_get(s, "oneOf"),
                  *no = fm_json_get(s, "not"), *when = fm_json_get(s, "if");
    if (ref && !valid(c, referred(c->s->doc, fm_json_cstr(ref, "")), v))
        return false;
    for (size_t i = 0; i < fm_json_count(all); i++)
        if (!valid(c, fm_json_at(all, i), v))
            return false;
    if (any && !count_valid(c, any, v, 1))
        return broke(c, "anyOf");
    if (one && count_valid(c, one, v, 2) != 1)
        return broke(c, "oneOf");
    if (no && valid_quietly(c, no, v))
        return broke(c, "not");
    const fm_json *then = when ? fm_json_get(s, valid_quietly(c, when, v) ? "then" : "else") : NULL;
    return !then || valid(c, then, v);
}

static bool valid(check *c, const fm_json *schema, const fm_json *v)
{
    if (spent(c))
        return false;
    if (fm_json_is(schema, FM_JSON_BOOL))
        return fm_json_bool(schema, false) || broke(c, "false");
    if (c->depth >= CHECK_DEEP_MAX) {
        c->rc = fm_fail(FM_ELIMIT, "the JSON Schema refers deeper than %d levels", CHECK_DEEP_MAX);
        return false;
    }
    c->depth++;
    bool ok = check_any_kind(c, schema, v) && check_number(c, schema, v) &&
              check_string(c, schema, v) && check_array(c, schema, v) &&
              check_object(c, schema, v) && check_together(c, schema, v);
    c->depth--;
    return ok && c->rc == FM_OK;
}

fm_status fmv_schema_check(const fmv_schema *s, const fm_json *v, uint32_t *steps, bool *is_valid,
                           char *why, size_t why_size)
{
    check c = {.s = s, .steps = *steps, .why = why, .why_size = why_size};
    *why = '\0';
    *is_valid = valid(&c, s->doc, v);
    *steps = c.steps;
    return c.rc;
}
