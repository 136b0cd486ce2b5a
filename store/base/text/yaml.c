/* yaml.c - the only user of libyaml: its events become a JSON value tree.
 *
 * Nodes and depth are counted through aliases, so that a short file cannot expand into a huge or
 * deep tree ("billion laughs"). An alias is a deep copy: the tree stays a tree. */
#include "store/base/text/yaml.h"

#include "store/base/cancel.h"
#include "store/base/map.h"
#include "store/base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_INPUT_BYTES ((size_t)64 << 20)
#define MAX_DEPTH 100
#define MAX_NODES 4000000
#define MAX_EXPANDED 100000 /* nodes copied through aliases: people share settings, not data */
#define MAX_NUMBER_CHARS 512

struct anchor {
    fm_json *value; /* owned reference */
    size_t nodes;
    unsigned height;
};

struct reader {
    yaml_parser_t parser;
    const char *what;
    fm_map *anchors; /* name -> index in anchor[] + 1 */
    struct anchor *anchor;
    size_t anchors_count;
    size_t anchors_cap;
    size_t nodes;
    size_t expanded;
};

static fm_status fail_at(fm_status status, const struct reader *r, yaml_mark_t at, const char *text)
{
    return fm_fail(status, "%s: line %zu: %s", r->what, at.line + 1, text);
}

static fm_status next_event(struct reader *r, yaml_event_t *event)
{
    fm_status rc = fm_go_on();

    if (rc == FM_OK && yaml_parser_parse(&r->parser, event))
        return FM_OK;
    memset(event, 0, sizeof(*event));
    if (rc < 0)
        return rc;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return fm_fail(FM_ENOMEM, "%s: out of memory while parsing YAML", r->what);
    return fail_at(FM_ECORRUPT, r, r->parser.problem_mark,
                   r->parser.problem ? r->parser.problem : "not YAML");
}

/* ==== plain scalars, by the core schema ==== */

static bool one_of(const char *s, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s, words[i]) == 0)
            return true;
    return false;
}

static size_t span_digits(const char *s)
{
    return strspn(s, "0123456789");
}

static bool looks_int(const char *s)
{
    s += *s == '-' || *s == '+';
    size_t n = span_digits(s);
    return n > 0 && s[n] == '\0';
}

/* [-+]? ( \.[0-9]+ | [0-9]+ (\.[0-9]*)? ) ([eE][-+]?[0-9]+)? */
static bool looks_real(const char *s)
{
    s += *s == '-' || *s == '+';
    size_t whole = span_digits(s);
    s += whole;
    size_t fraction = 0;
    if (*s == '.') {
        fraction = span_digits(s + 1);
        s += 1 + fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        size_t n = span_digits(s);
        if (n == 0)
            return false;
        s += n;
    }
    return *s == '\0';
}

static bool looks_special_real(const char *s)
{
    static const char *const words[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"};
    const bool sign = *s == '-' || *s == '+';
    return one_of(s + sign, words, sign ? 3 : FM_ARRAY_LEN(words));
}

static fm_status number(fm_json **out, const struct reader *r, yaml_mark_t at, const char *s,
                        int base)
{
    char *end;

    if (base != 0) {
        errno = 0;
        long long v = strtoll(s, &end, base);
        if (errno == 0 && *end == '\0') {
            *out = fm_json_new_int(v);
            return *out ? FM_OK : FM_ENOMEM;
        }
        if (base != 10)
            return fail_at(FM_ECORRUPT, r, at, "integer is beyond 64 bits");
    }
    double v;
    if (!fms_json_real_of(&v, s))
        return fail_at(FM_ECORRUPT, r, at, "number is out of range");
    *out = fm_json_new_real(v);
    return *out ? FM_OK : FM_ENOMEM;
}

static bool based_int(const char *s, const char *prefix, const char *digits)
{
    return strncmp(s, prefix, 2) == 0 && s[2] && s[2 + strspn(s + 2, digits)] == '\0';
}

static fm_status plain(fm_json **out, const struct reader *r, const yaml_event_t *e)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    static const char *const trues[] = {"true", "True", "TRUE"};
    static const char *const falses[] = {"false", "False", "FALSE"};
    const char *s = (const char *)e->data.scalar.value;
    const size_t len = e->data.scalar.length;

    if (strlen(s) == len && len <= MAX_NUMBER_CHARS) {
        if (one_of(s, nulls, FM_ARRAY_LEN(nulls)))
            *out = fm_json_new_null();
        else if (one_of(s, trues, FM_ARRAY_LEN(trues)))
            *out = fm_json_new_bool(true);
        else if (one_of(s, falses, FM_ARRAY_LEN(falses)))
            *out = fm_json_new_bool(false);
        else if (looks_int(s))
            return number(out, r, e->start_mark, s, 10);
        else if (based_int(s, "0o", "01234567"))
            return number(out, r, e->start_mark, s + 2, 8);
        else if (based_int(s, "0x", "0123456789abcdefABCDEF"))
            return number(out, r, e->start_mark, s + 2, 16);
        else if (looks_real(s))
            return number(out, r, e->start_mark, s, 0);
        else if (looks_special_real(s))
            return fail_at(FM_ECORRUPT, r, e->start_mark,
                           "infinity and NaN have no place in a value; quote it if it is text");
    }
    if (!*out)
        *out = fm_json_new_strn(s, len);
    return *out ? FM_OK : FM_ENOMEM;
}

/* ==== the tree ==== */

static fm_status scalar(fm_json **out, const struct reader *r, const yaml_event_t *e)
{
    *out = NULL;
    if (e->data.scalar.tag)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "tags are not read");
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return plain(out, r, e);
    *out = fm_json_new_strn((const char *)e->data.scalar.value, e->data.scalar.length);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status remember(struct reader *r, const yaml_char_t *name, const fm_json *v, size_t nodes,
                          unsigned height)
{
    if (!name)
        return FM_OK;
    FM_TRY(fm_grow(&r->anchor, &r->anchors_cap, r->anchors_count + 1, sizeof(*r->anchor)));
    /* An anchor's name given twice means the later node from here on, as YAML defines it. */
    FM_TRY(fm_map_put(r->anchors, name, strlen((const char *)name),
                      (void *)(uintptr_t)(r->anchors_count + 1), NULL));
    r->anchor[r->anchors_count++] = (struct anchor){fm_json_ref(v), nodes, height};
    return FM_OK;
}

static fm_status alias(fm_json **out, unsigned *height, struct reader *r, const yaml_event_t *e,
                       unsigned depth)
{
    const char *name = (const char *)e->data.alias.anchor;
    const size_t index = (size_t)(uintptr_t)fm_map_get(r->anchors, name, strlen(name));

    if (index == 0)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "alias names no finished anchor");
    const struct anchor *a = &r->anchor[index - 1];
    if (a->nodes > MAX_EXPANDED - r->expanded || a->nodes > MAX_NODES - r->nodes)
        return fail_at(FM_ELIMIT, r, e->start_mark, "aliases expand into too many values");
    if (depth + a->height > MAX_DEPTH)
        return fail_at(FM_ELIMIT, r, e->start_mark, "nested too deep");
    r->nodes += a->nodes;
    r->expanded += a->nodes;
    *height = a->height;
    *out = fm_json_copy(a->value);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status value(fm_json **out, unsigned *height, struct reader *r, yaml_event_t *e,
                       unsigned depth);

static fm_status sequence(fm_json **out, unsigned *height, struct reader *r, unsigned depth)
{
    fm_status rc = FM_OK;

    *out = fm_json_new_array();
    if (!*out)
        return FM_ENOMEM;
    while (rc >= 0) {
        yaml_event_t e;
        fm_json *item = NULL;
        unsigned below = 0;
        rc = next_event(r, &e);
        if (rc < 0 || e.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&e);
            break;
        }
        rc = value(&item, &below, r, &e, depth + 1);
        yaml_event_delete(&e);
        *height = FM_MAX(*height, below + 1);
        if (rc >= 0)
            rc = fm_json_push(*out, item);
    }
    return rc;
}

/* Reads the key of a field: a string that is new in this mapping. The caller frees *out. */
static fm_status field_key(fm_json **out, const struct reader *r, const yaml_event_t *e,
                           const fm_json *map)
{
    *out = NULL;
    if (e->type != YAML_SCALAR_EVENT)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "a key must be a plain or quoted string");
    if (e->data.scalar.anchor)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "anchors on keys are not read");
    FM_TRY(scalar(out, r, e));
    const fm_span key = fm_json_str(*out);
    if (!key.data)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "a key must be a string: quote it");
    if (strlen((const char *)key.data) != key.len)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "a key holds a NUL character");
    if (fm_span_eq_str(key, "<<") && e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(FM_ECORRUPT, r, e->start_mark, "merge keys (<<) are not read: write it out");
    if (fm_json_get(map, (const char *)key.data))
        return fm_fail(FM_ECORRUPT, "%s: line %zu: duplicate key '%s'", r->what,
                       e->start_mark.line + 1, (const char *)key.data);
    return FM_OK;
}

static fm_status field(fm_json *map, unsigned *below, struct reader *r, const yaml_event_t *key_at,
                       unsigned depth)
{
    yaml_event_t e;
    fm_json *key = NULL;
    fm_json *item = NULL;
    fm_status rc = field_key(&key, r, key_at, map);

    if (rc >= 0) {
        rc = next_event(r, &e);
        if (rc >= 0)
            rc = value(&item, below, r, &e, depth);
        yaml_event_delete(&e);
    }
    if (rc >= 0)
        rc = fm_json_set(map, fm_json_cstr(key, ""), item);
    fm_json_free(key);
    return rc;
}

static fm_status mapping(fm_json **out, unsigned *height, struct reader *r, unsigned depth)
{
    fm_status rc = FM_OK;

    *out = fm_json_new_object();
    if (!*out)
        return FM_ENOMEM;
    while (rc >= 0) {
        yaml_event_t e;
        unsigned below = 0;
        rc = next_event(r, &e);
        if (rc < 0 || e.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&e);
            break;
        }
        rc = field(*out, &below, r, &e, depth + 1);
        yaml_event_delete(&e);
        *height = FM_MAX(*height, below + 1);
    }
    return rc;
}

/* Reads the value that begins with event e; *out NULL on failure. *height: the levels below it. */
static fm_status value(fm_json **out, unsigned *height, struct reader *r, yaml_event_t *e,
                       unsigned depth)
{
    const size_t nodes_before = r->nodes++;
    const yaml_char_t *name = NULL;
    const yaml_char_t *tag = NULL;
    fm_status rc;

    *out = NULL;
    *height = 0;
    if (r->nodes > MAX_NODES)
        return fail_at(FM_ELIMIT, r, e->start_mark, "too many values");
    if (depth > MAX_DEPTH)
        return fail_at(FM_ELIMIT, r, e->start_mark, "nested too deep");
    if (e->type == YAML_ALIAS_EVENT)
        return alias(out, height, r, e, depth);
    if (e->type == YAML_SCALAR_EVENT) {
        name = e->data.scalar.anchor;
        rc = scalar(out, r, e);
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        name = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
        rc = tag ? FM_OK : sequence(out, height, r, depth);
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        name = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
        rc = tag ? FM_OK : mapping(out, height, r, depth);
    } else {
        rc = fail_at(FM_ECORRUPT, r, e->start_mark, "a value is missing");
    }
    if (tag)
        rc = fail_at(FM_ECORRUPT, r, e->start_mark, "tags are not read");
    if (rc >= 0)
        rc = remember(r, name, *out, r->nodes - nodes_before, *height);
    if (rc < 0) {
        fm_json_free(*out);
        *out = NULL;
    }
    return rc;
}

static fm_status expect(struct reader *r, yaml_event_type_t want, const char *text)
{
    yaml_event_t e;
    fm_status rc = next_event(r, &e);

    if (rc >= 0 && e.type != want)
        rc = fail_at(FM_ECORRUPT, r, e.start_mark, text);
    yaml_event_delete(&e);
    return rc;
}

static fm_status document(fm_json **out, struct reader *r)
{
    yaml_event_t e;
    unsigned height;
    FM_TRY(expect(r, YAML_STREAM_START_EVENT, "not YAML"));

    fm_status rc = next_event(r, &e);
    if (rc >= 0 && e.type == YAML_STREAM_END_EVENT) {
        yaml_event_delete(&e);
        *out = fm_json_new_null(); /* an empty file, or comments alone */
        return FM_OK;
    }
    yaml_event_delete(&e);
    if (rc < 0)
        return rc;
    rc = next_event(r, &e);
    if (rc >= 0)
        rc = value(out, &height, r, &e, 0);
    yaml_event_delete(&e);
    if (rc >= 0)
        rc = expect(r, YAML_DOCUMENT_END_EVENT, "more than one value");
    return rc < 0 ? rc : expect(r, YAML_STREAM_END_EVENT, "more than one document");
}

fm_status fm_yaml_parse(fm_json **out, fm_span text, const char *what)
{
    struct reader r = {.what = what};

    *out = NULL;
    if (text.len > MAX_INPUT_BYTES)
        return fm_fail(FM_ELIMIT, "%s: larger than %zu bytes", what, MAX_INPUT_BYTES);
    FM_TRY(fm_map_new(&r.anchors));
    if (!yaml_parser_initialize(&r.parser)) {
        fm_map_free(r.anchors);
        return fm_fail(FM_ENOMEM, "%s: out of memory while parsing YAML", what);
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, text.data ? text.data : (const uint8_t *)"", text.len);
    fm_status rc = document(out, &r);
    yaml_parser_delete(&r.parser);
    for (size_t i = 0; i < r.anchors_count; i++)
        fm_json_free(r.anchor[i].value);
    fm_free(r.anchor);
    fm_map_free(r.anchors);
    if (rc < 0) {
        fm_json_free(*out);
        *out = NULL;
    }
    return rc;
}
