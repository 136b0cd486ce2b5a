/* value.c - values of a rendering: Python's notions of truth, equality, order and text. */
#include "infer/jinja/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

jj_val jj_none(void)
{
    jj_val v = {.type = JJ_NONE};
    return v;
}

jj_val jj_undefined(const char *name)
{
    jj_val v = {.type = JJ_UNDEFINED};
    v.u.s.p = name;
    return v;
}

jj_val jj_bool(bool b)
{
    jj_val v = {.type = JJ_BOOL};
    v.u.b = b;
    return v;
}

jj_val jj_int(int64_t i)
{
    jj_val v = {.type = JJ_INT};
    v.u.i = i;
    return v;
}

jj_val jj_float(double f)
{
    jj_val v = {.type = JJ_FLOAT};
    v.u.f = f;
    return v;
}

fm_status jj_grow(jj_ctx *c, void *array_ptr, size_t *cap, size_t count, size_t elem)
{
    void **array = array_ptr;

    if (count < *cap)
        return FM_OK;
    size_t n = *cap ? 2 * *cap : 4;
    void *bigger = jj_alloc(c, n * elem);
    if (!bigger)
        return jj_alloc_status(c);
    if (count)
        memcpy(bigger, *array, count * elem);
    *array = bigger;
    *cap = n;
    return FM_OK;
}

fm_status jj_list_new(jj_ctx *c, jj_val *out)
{
    memset(out, 0, sizeof *out);
    out->type = JJ_LIST;
    out->u.list = jj_alloc(c, sizeof *out->u.list);
    return out->u.list ? FM_OK : jj_alloc_status(c);
}

fm_status jj_list_push(jj_ctx *c, jj_list *l, jj_val v)
{
    FM_TRY(jj_work(c, JJ_ITEM));

    FM_TRY(jj_grow(c, &l->v, &l->cap, l->count, sizeof *l->v));
    l->v[l->count++] = v;
    return FM_OK;
}

fm_status jj_dict_new(jj_ctx *c, jj_val *out)
{
    memset(out, 0, sizeof *out);
    out->type = JJ_DICT;
    out->u.dict = jj_alloc(c, sizeof *out->u.dict);
    return out->u.dict ? FM_OK : jj_alloc_status(c);
}

fm_status jj_dict_put(jj_ctx *c, jj_dict *d, jj_val key, jj_val v)
{
    if (key.type == JJ_LIST || key.type == JJ_DICT)
        return jj_error(c, FM_EINVAL, "%s cannot be a key", jj_type_name(key));
    for (size_t i = 0; i < d->count; i++) {
        bool same;
        FM_TRY(jj_equal(c, &same, d->p[i].key, key));
        if (!same)
            continue;
        d->p[i].value = v;
        return FM_OK;
    }
    FM_TRY(jj_grow(c, &d->p, &d->cap, d->count, sizeof *d->p));
    d->p[d->count].key = key;
    d->p[d->count++].value = v;
    return jj_work(c, JJ_ITEM);
}

fm_status jj_dict_get(jj_ctx *c, const jj_val **out, const jj_dict *d, const char *key, size_t n)
{
    *out = NULL;
    for (size_t i = 0; i < d->count; i++) {
        const jj_val *k = &d->p[i].key;
        bool maybe = k->type == JJ_STRING && k->u.s.n == n;
        FM_TRY(jj_work(c, JJ_ITEM + (maybe ? n : 0)));
        if (maybe && memcmp(k->u.s.p, key, n) == 0) {
            *out = &d->p[i].value;
            return FM_OK;
        }
    }
    return FM_OK;
}

static fm_status from_array(jj_ctx *c, jj_val *out, const fm_json *v)
{
    FM_TRY(jj_list_new(c, out));

    for (size_t i = 0; i < fm_json_count(v); i++) {
        jj_val item = jj_none();
        FM_TRY(jj_from_json(c, &item, fm_json_at(v, i)));
        FM_TRY(jj_list_push(c, out->u.list, item));
    }
    return FM_OK;
}

/* Keys of parsed JSON are unique: they are appended without a search. */
static fm_status from_object(jj_ctx *c, jj_val *out, const fm_json *v)
{
    FM_TRY(jj_dict_new(c, out));

    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        const char *key = fm_json_iter_key(it);
        jj_dict *d = out->u.dict;
        jj_val k = jj_none(), item = jj_none();
        FM_TRY(jj_str_copy(c, &k, key, strlen(key)));
        FM_TRY(jj_from_json(c, &item, fm_json_iter_value(it)));
        FM_TRY(jj_work(c, JJ_ITEM));
        FM_TRY(jj_grow(c, &d->p, &d->cap, d->count, sizeof *d->p));
        d->p[d->count].key = k;
        d->p[d->count++].value = item;
    }
    return FM_OK;
}

fm_status jj_from_json(jj_ctx *c, jj_val *out, const fm_json *v)
{
    fm_span s;

    *out = jj_none();
    switch (fm_json_typeof(v)) {
    case FM_JSON_NULL:
        return FM_OK;
    case FM_JSON_BOOL:
        *out = jj_bool(fm_json_bool(v, false));
        return FM_OK;
    case FM_JSON_INT:
        *out = jj_int(fm_json_int(v, 0));
        return FM_OK;
    case FM_JSON_REAL:
        *out = jj_float(fm_json_real(v, 0));
        return FM_OK;
    case FM_JSON_STRING:
        s = fm_json_str(v);
        return jj_str_copy(c, out, s.data, s.len);
    case FM_JSON_ARRAY:
        return from_array(c, out, v);
    case FM_JSON_OBJECT:
        return from_object(c, out, v);
    }
    return FM_OK;
}

const char *jj_type_name(jj_val v)
{
    static const char *const name[] = {
        "undefined", "none",     "a boolean", "an integer",       "a float",     "a string",
        "a list",    "a tuple",  "a range",   "a mapping's view", "a generator", "a mapping",
        "namespace", "the loop", "a macro",   "a function"};
    return name[v.type];
}

bool jj_is_number(jj_val v)
{
    return v.type == JJ_BOOL || v.type == JJ_INT || v.type == JJ_FLOAT;
}

double jj_number(jj_val v)
{
    if (v.type == JJ_FLOAT)
        return v.u.f;
    return v.type == JJ_BOOL ? (double)v.u.b : (double)v.u.i;
}

bool jj_truth(jj_val v)
{
    switch (v.type) {
    case JJ_UNDEFINED:
    case JJ_NONE:
        return false;
    case JJ_BOOL:
        return v.u.b;
    case JJ_INT:
        return v.u.i != 0;
    case JJ_FLOAT:
        return v.u.f != 0.0;
    case JJ_STRING:
        return v.u.s.n > 0;
    case JJ_LIST:
    case JJ_TUPLE:
    case JJ_RANGE:
    case JJ_VIEW:
        return v.u.list->count > 0;
    case JJ_DICT:
        return v.u.dict->count > 0;
    case JJ_LOOP: /* has a length, that of its items, which is not 0 */
    case JJ_GEN:
    case JJ_NAMESPACE:
    case JJ_MACRO:
    case JJ_BUILTIN:
        break;
    }
    return true;
}

int64_t jj_whole(jj_val v)
{
    return v.type == JJ_BOOL ? v.u.b : v.u.i;
}

static fm_status equal_at(jj_ctx *c, bool *out, jj_val a, jj_val b, int depth);

static fm_status dicts_equal(jj_ctx *c, bool *out, const jj_dict *a, const jj_dict *b, int depth)
{
    fm_status rc = FM_OK;

    *out = a->count == b->count;
    for (size_t i = 0; rc == FM_OK && *out && i < a->count; i++) {
        bool found = false;
        size_t k = 0;
        for (; rc == FM_OK && !found && k < b->count; k++)
            rc = equal_at(c, &found, a->p[i].key, b->p[k].key, depth + 1);
        *out = found;
        if (rc == FM_OK && found)
            rc = equal_at(c, out, a->p[i].value, b->p[k - 1].value, depth + 1);
    }
    return rc;
}

static fm_status lists_equal(jj_ctx *c, bool *out, const jj_list *a, const jj_list *b, int depth)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++)
        FM_TRY(equal_at(c, out, a->v[i], b->v[i], depth + 1));
    return FM_OK;
}

/* Equality of values that hold no others. */
static bool plain_equal(jj_val a, jj_val b)
{
    switch (a.type) {
    case JJ_STRING:
        return a.u.s.n == b.u.s.n && memcmp(a.u.s.p, b.u.s.p, a.u.s.n) == 0;
    case JJ_NAMESPACE:
        return a.u.dict == b.u.dict;
    case JJ_MACRO:
        return a.u.macro == b.u.macro;
    case JJ_LOOP:
        return a.u.loop == b.u.loop;
    case JJ_BUILTIN:
        return a.u.builtin == b.u.builtin;
    case JJ_GEN:
        return a.u.list == b.u.list;
    case JJ_LIST:
    case JJ_TUPLE:
    case JJ_RANGE:
    case JJ_VIEW:
    case JJ_DICT:
    case JJ_UNDEFINED:
    case JJ_NONE:
    case JJ_BOOL:
    case JJ_INT:
    case JJ_FLOAT:
        break;
    }
    return true;
}

/* A list may hold another one many times, so that even a small value can take almost endless time
 * to compare: every compared pair counts as work. */
static fm_status equal_at(jj_ctx *c, bool *out, jj_val a, jj_val b, int depth)
{
    bool texts = a.type == JJ_STRING && b.type == JJ_STRING && a.u.s.n == b.u.s.n;
    fm_status rc = jj_work(c, JJ_PAIR + (texts ? a.u.s.n : 0));

    *out = false;
    if (rc == FM_OK && depth > JJ_VALUE_DEPTH)
        return jj_error(c, FM_ELIMIT, "value nested deeper than %d", JJ_VALUE_DEPTH);
    if (rc < 0)
        return rc;
    if (jj_is_number(a) && jj_is_number(b))
        *out = a.type != JJ_FLOAT && b.type != JJ_FLOAT ? jj_whole(a) == jj_whole(b)
                                                        : jj_number(a) == jj_number(b);
    else if (a.type != b.type)
        return FM_OK;
    else if (jj_is_seq(a) || a.type == JJ_VIEW)
        return lists_equal(c, out, a.u.list, b.u.list, depth);
    else if (a.type == JJ_DICT)
        return dicts_equal(c, out, a.u.dict, b.u.dict, depth);
    else
        *out = plain_equal(a, b);
    return FM_OK;
}

fm_status jj_equal(jj_ctx *c, bool *out, jj_val a, jj_val b)
{
    return equal_at(c, out, a, b, 0);
}

static int sign(double d)
{
    return (d > 0) - (d < 0);
}

/* UTF-8 bytes sort as code points do. */
static int compare_bytes(const char *a, size_t an, const char *b, size_t bn)
{
    int r = memcmp(a, b, FM_MIN(an, bn));

    return r ? r : (an > bn) - (an < bn);
}

static fm_status compare_at(jj_ctx *c, int *order, jj_val a, jj_val b, int depth)
{
    bool texts = a.type == JJ_STRING && b.type == JJ_STRING;
    fm_status rc = jj_work(c, JJ_PAIR + (texts ? FM_MIN(a.u.s.n, b.u.s.n) : 0));

    *order = 0;
    if (rc < 0)
        return rc;
    if (depth > JJ_VALUE_DEPTH)
        return jj_error(c, FM_ELIMIT, "value nested deeper than %d", JJ_VALUE_DEPTH);
    if (jj_is_number(a) && jj_is_number(b)) {
        if (a.type != JJ_FLOAT && b.type != JJ_FLOAT)
            *order = (jj_whole(a) > jj_whole(b)) - (jj_whole(a) < jj_whole(b));
        else
            *order = sign(jj_number(a) - jj_number(b));
        return FM_OK;
    }
    if (texts) {
        *order = compare_bytes(a.u.s.p, a.u.s.n, b.u.s.p, b.u.s.n);
        return FM_OK;
    }
    if (a.type != b.type || (a.type != JJ_LIST && a.type != JJ_TUPLE))
        return jj_error(c, FM_EINVAL, "cannot order %s and %s", jj_type_name(a), jj_type_name(b));
    size_t an = a.u.list->count, bn = b.u.list->count;
    for (size_t i = 0; i < an && i < bn; i++) { /* the first pair that differs decides */
        bool same;
        FM_TRY(equal_at(c, &same, a.u.list->v[i], b.u.list->v[i], depth + 1));
        if (!same)
            return compare_at(c, order, a.u.list->v[i], b.u.list->v[i], depth + 1);
    }
    *order = (an > bn) - (an < bn);
    return FM_OK;
}

fm_status jj_compare(jj_ctx *c, int *order, jj_val a, jj_val b)
{
    return compare_at(c, order, a, b, 0);
}

/* The C library finds parts of up to 256 bytes by a hash of two bytes, and compares the rest at
 * each place where that fits; it finds longer parts in linear time. */
fm_status jj_count_search(jj_ctx *c, jj_val s, jj_val part)
{
    FM_TRY(jj_work(c, part.u.s.n));

    return jj_work_by(c, s.u.s.n, 1 + FM_MIN(part.u.s.n, (size_t)256) / 16);
}

fm_status jj_find(jj_ctx *c, const char **out, jj_val s, jj_val part)
{
    fm_status rc = jj_count_search(c, s, part);

    *out = NULL;
    if (rc == FM_OK && part.u.s.n <= s.u.s.n)
        *out = part.u.s.n ? memmem(s.u.s.p, s.u.s.n, part.u.s.p, part.u.s.n) : s.u.s.p;
    return rc;
}

fm_status jj_contains(jj_ctx *c, bool *out, jj_val needle, jj_val hay)
{
    const char *hit;
    fm_status rc = FM_OK;

    *out = false;
    if (hay.type == JJ_STRING) {
        if (needle.type != JJ_STRING)
            return jj_error(c, FM_EINVAL, "'in <string>' needs a string, not %s",
                            jj_type_name(needle));
        rc = jj_find(c, &hit, hay, needle);
        *out = hit != NULL;
        return rc;
    }
    if (hay.type == JJ_UNDEFINED)
        return FM_OK;
    if (hay.type == JJ_GEN) { /* the search uses up the items that it looks at */
        while (rc == FM_OK && hay.u.list->at < hay.u.list->count && !*out)
            rc = jj_equal(c, out, needle, hay.u.list->v[hay.u.list->at++]);
        return rc;
    }
    if (jj_is_seq(hay) || hay.type == JJ_VIEW) {
        for (size_t i = 0; rc == FM_OK && i < hay.u.list->count && !*out; i++)
            rc = jj_equal(c, out, needle, hay.u.list->v[i]);
        return rc;
    }
    if (hay.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "%s cannot contain anything", jj_type_name(hay));
    for (size_t i = 0; rc == FM_OK && i < hay.u.dict->count && !*out; i++)
        rc = jj_equal(c, out, needle, hay.u.dict->p[i].key);
    return rc;
}

/* ---- text ---- */

/* Shortest digits that read back as the same double, laid out as Python's repr does. */
static void float_text(fm_buf *out, double f)
{
    fm_buf d;
    int precision = 0;

    if (isnan(f)) {
        fm_buf_str(out, "nan");
        return;
    }
    if (isinf(f)) {
        fm_buf_str(out, f < 0 ? "-inf" : "inf");
        return;
    }
    fm_buf_init(&d, 64);
    do {
        fm_buf_clear(&d);
        fm_buf_printf(&d, "%.*e", precision, f);
    } while (strtod(fm_buf_cstr(&d), NULL) != f && ++precision < 17);
    int exponent = (int)strtol(strchr(fm_buf_cstr(&d), 'e') + 1, NULL, 10);
    fm_buf_clear(&d);
    if (exponent >= -4 && exponent < 16)
        fm_buf_printf(out, "%.*f", FM_MAX(precision - exponent, 1), f);
    else
        fm_buf_printf(out, "%.*e", precision, f);
    fm_buf_release(&d);
}

static fm_status scalar_text(jj_ctx *c, fm_buf *out, jj_val v)
{
    FM_TRY(jj_work(c, v.type == JJ_STRING ? v.u.s.n : v.type == JJ_FLOAT ? JJ_REAL : JJ_CALL));
    switch (v.type) {
    case JJ_UNDEFINED:
        return FM_OK;
    case JJ_NONE:
        fm_buf_str(out, "None");
        break;
    case JJ_BOOL:
        fm_buf_str(out, v.u.b ? "True" : "False");
        break;
    case JJ_INT:
        fm_buf_printf(out, "%lld", (long long)v.u.i);
        break;
    case JJ_FLOAT:
        float_text(out, v.u.f);
        break;
    case JJ_STRING:
        fm_buf_append(out, v.u.s.p, v.u.s.n);
        break;
    case JJ_LIST:
    case JJ_TUPLE:
    case JJ_RANGE:
    case JJ_VIEW:
    case JJ_GEN:
    case JJ_DICT:
    case JJ_NAMESPACE:
    case JJ_LOOP:
    case JJ_MACRO:
    case JJ_BUILTIN:
        return jj_error(c, FM_EUNSUPPORTED, "%s cannot be printed", jj_type_name(v));
    }
    return fm_buf_ok(out);
}

void jj_put_hex(fm_buf *out, const char *head, uint32_t v, int digits)
{
    fm_buf_str(out, head);
    while (digits-- > 0)
        fm_buf_char(out, "0123456789abcdef"[v >> 4 * digits & 15]);
}

static void repr_string(fm_buf *out, jj_val v)
{
    bool dq = memchr(v.u.s.p, '\'', v.u.s.n) && !memchr(v.u.s.p, '"', v.u.s.n);
    uint32_t quote = dq ? '"' : '\'', cp;

    fm_buf_char(out, (char)quote);
    for (size_t i = 0; i < v.u.s.n;) {
        size_t n = fm_utf8_next((const uint8_t *)v.u.s.p + i, &cp);
        if (cp == '\\' || cp == quote)
            fm_buf_append(out, (char[]){'\\', (char)cp}, 2);
        else if (cp == '\n' || cp == '\t' || cp == '\r')
            fm_buf_str(out, cp == '\n' ? "\\n" : cp == '\t' ? "\\t" : "\\r");
        else if (jj_is_printable(cp))
            fm_buf_append(out, v.u.s.p + i, n);
        else
            jj_put_hex(out,
                       cp < 0x100     ? "\\x"
                       : cp < 0x10000 ? "\\u"
                                      : "\\U",
                       cp,
                       cp < 0x100     ? 2
                       : cp < 0x10000 ? 4
                                      : 8);
        i += n;
    }
    fm_buf_char(out, (char)quote);
}

static fm_status repr(jj_ctx *c, fm_buf *out, jj_val v, int depth);

static fm_status repr_items(jj_ctx *c, fm_buf *out, jj_val v, int depth)
{
    bool dict = v.type == JJ_DICT;
    size_t n = dict ? v.u.dict->count : v.u.list->count;
    fm_status rc = FM_OK;

    fm_buf_char(out, dict ? '{' : v.type == JJ_TUPLE ? '(' : '[');
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        if (i > 0)
            fm_buf_str(out, ", ");
        if (dict) {
            rc = repr(c, out, v.u.dict->p[i].key, depth + 1);
            fm_buf_str(out, ": ");
        }
        FM_THEN(rc, repr(c, out, dict ? v.u.dict->p[i].value : v.u.list->v[i], depth + 1));
    }
    fm_buf_str(out, dict ? "}" : v.type != JJ_TUPLE ? "]" : n == 1 ? ",)" : ")");
    return rc;
}

static fm_status repr(jj_ctx *c, fm_buf *out, jj_val v, int depth)
{
    FM_TRY(jj_work_by(c, v.type == JJ_STRING ? v.u.s.n + 1 : 1, 2 * JJ_CHAR));
    if (depth > JJ_VALUE_DEPTH)
        return jj_error(c, FM_ELIMIT, "value nested deeper than %d", JJ_VALUE_DEPTH);
    if (v.type == JJ_STRING)
        repr_string(out, v);
    else if (v.type == JJ_UNDEFINED)
        fm_buf_str(out, "Undefined");
    else if (v.type == JJ_DICT || v.type == JJ_LIST || v.type == JJ_TUPLE)
        FM_TRY(repr_items(c, out, v, depth));
    else
        FM_TRY(scalar_text(c, out, v));
    return fm_buf_ok(out);
}

fm_status jj_to_text(jj_ctx *c, fm_buf *out, jj_val v)
{
    if (v.type == JJ_LIST || v.type == JJ_TUPLE || v.type == JJ_DICT)
        return repr(c, out, v, 0);
    return scalar_text(c, out, v);
}

/* ---- strings and iteration ---- */

size_t jj_chars(jj_val str)
{
    size_t n = 0;

    for (size_t i = 0; i < str.u.s.n; i++)
        n += (str.u.s.p[i] & 0xc0) != 0x80;
    return n;
}

size_t jj_char_offset(jj_val str, size_t index)
{
    size_t i = 0;

    for (; i < str.u.s.n; i++)
        if ((str.u.s.p[i] & 0xc0) != 0x80 && index-- == 0)
            break;
    return i;
}

bool jj_is_seq(jj_val v)
{
    return v.type == JJ_LIST || v.type == JJ_TUPLE || v.type == JJ_RANGE;
}

fm_status jj_gen_new(jj_ctx *c, jj_val *out)
{
    fm_status rc = jj_list_new(c, out);

    out->type = JJ_GEN;
    return rc;
}

fm_status jj_as_list(jj_ctx *c, jj_val *out, jj_val v)
{
    fm_status rc = FM_OK;

    if (jj_is_seq(v) || v.type == JJ_VIEW) {
        *out = v;
        out->type = JJ_LIST;
        return FM_OK;
    }
    rc = jj_list_new(c, out);
    for (; rc == FM_OK && v.type == JJ_GEN && v.u.list->at < v.u.list->count; v.u.list->at++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[v.u.list->at]);
    if (rc < 0 || v.type == JJ_GEN || v.type == JJ_UNDEFINED)
        return rc;
    if (v.type == JJ_DICT) {
        for (size_t i = 0; i < v.u.dict->count && rc == FM_OK; i++)
            rc = jj_list_push(c, out->u.list, v.u.dict->p[i].key);
        return rc;
    }
    if (v.type != JJ_STRING)
        return jj_error(c, FM_EINVAL, "%s cannot be iterated", jj_type_name(v));
    rc = jj_work_by(c, v.u.s.n, JJ_CHAR);
    for (size_t i = 0; i < v.u.s.n && rc == FM_OK;) {
        uint32_t cp;
        size_t n = fm_utf8_next((const uint8_t *)v.u.s.p + i, &cp);
        rc = jj_list_push(c, out->u.list, jj_str(v.u.s.p + i, n));
        i += n;
    }
    return rc;
}
