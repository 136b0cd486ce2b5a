/* json.c - the value tree and its writer; the only user of jansson, whose nodes the values are.
 *
 * The writer does not use jansson's, which prints reals with a fixed precision and sorts keys by a
 * flag of its own: digests are taken of these bytes. The parser is in json_parse.c. */
#include "store/base/text/json.h"

#include "store/base/mem.h"
#include "store/base/text/utf8.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDENT_MAX 32u               /* levels: beyond them indentation would be most of the text */
#define EXACT_INT 9007199254740992.0 /* 2^53: integral reals below are exact integers */

/* ==== the allocator door ==== */

static pthread_once_t alloc_once = PTHREAD_ONCE_INIT;
static _Thread_local bool alloc_failed;

static void *door_malloc(size_t bytes)
{
    void *p = fm_malloc(bytes);

    if (!p)
        alloc_failed = true;
    return p;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(door_malloc, fm_free);
}

static void ready(void)
{
    pthread_once(&alloc_once, set_allocator);
}

/* jansson has no const in its types; nodes reached through const are only read or referenced. */
static json_t *node(const fm_json *v)
{
    return (json_t *)(uintptr_t)v;
}

static fm_json *ours(json_t *v)
{
    return (fm_json *)v;
}

void fm_json_free(fm_json *v)
{
    json_decref(node(v));
}

fm_json *fm_json_ref(const fm_json *v)
{
    return ours(json_incref(node(v)));
}

/* ==== walking ==== */

fm_json_type fm_json_typeof(const fm_json *v)
{
    if (!v)
        return FM_JSON_NULL;
    switch (json_typeof(node(v))) {
    case JSON_OBJECT:
        return FM_JSON_OBJECT;
    case JSON_ARRAY:
        return FM_JSON_ARRAY;
    case JSON_STRING:
        return FM_JSON_STRING;
    case JSON_INTEGER:
        return FM_JSON_INT;
    case JSON_REAL:
        return FM_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return FM_JSON_BOOL;
    case JSON_NULL:
        return FM_JSON_NULL;
    }
    return FM_JSON_NULL;
}

bool fm_json_is(const fm_json *v, fm_json_type t)
{
    return v && fm_json_typeof(v) == t;
}

const fm_json *fm_json_get(const fm_json *obj, const char *key)
{
    return fm_json_is(obj, FM_JSON_OBJECT) ? ours(json_object_get(node(obj), key)) : NULL;
}

const fm_json *fm_json_path(const fm_json *obj, const char *dotted)
{
    char key[256];

    while (obj) {
        size_t len = strcspn(dotted, ".");
        if (len >= sizeof(key))
            return NULL;
        memcpy(key, dotted, len);
        key[len] = '\0';
        obj = fm_json_get(obj, key);
        if (dotted[len] == '\0')
            return obj;
        dotted += len + 1;
    }
    return NULL;
}

size_t fm_json_count(const fm_json *v)
{
    if (fm_json_is(v, FM_JSON_ARRAY))
        return json_array_size(node(v));
    return fm_json_is(v, FM_JSON_OBJECT) ? json_object_size(node(v)) : 0;
}

const fm_json *fm_json_at(const fm_json *array, size_t i)
{
    return fm_json_is(array, FM_JSON_ARRAY) ? ours(json_array_get(node(array), i)) : NULL;
}

void *fm_json_iter(const fm_json *obj)
{
    return fm_json_is(obj, FM_JSON_OBJECT) ? json_object_iter(node(obj)) : NULL;
}

void *fm_json_next(const fm_json *obj, void *it)
{
    return it ? json_object_iter_next(node(obj), it) : NULL;
}

const char *fm_json_iter_key(void *it)
{
    return json_object_iter_key(it);
}

const fm_json *fm_json_iter_value(void *it)
{
    return ours(json_object_iter_value(it));
}

/* ==== values ==== */

fm_span fm_json_str(const fm_json *v)
{
    fm_span none = {NULL, 0};

    if (!fm_json_is(v, FM_JSON_STRING))
        return none;
    return fm_span_of(json_string_value(node(v)), json_string_length(node(v)));
}

const char *fm_json_cstr(const fm_json *v, const char *dflt)
{
    return fm_json_is(v, FM_JSON_STRING) ? json_string_value(node(v)) : dflt;
}

static bool get_int(int64_t *out, const fm_json *v)
{
    if (fm_json_is(v, FM_JSON_INT)) {
        *out = json_integer_value(node(v));
        return true;
    }
    double r = fm_json_is(v, FM_JSON_REAL) ? json_real_value(node(v)) : 0.5;
    if (!(r >= -EXACT_INT && r <= EXACT_INT) || (double)(int64_t)r < r || (double)(int64_t)r > r)
        return false;
    *out = (int64_t)r;
    return true;
}

int64_t fm_json_int(const fm_json *v, int64_t dflt)
{
    int64_t i;
    return get_int(&i, v) ? i : dflt;
}

double fm_json_real(const fm_json *v, double dflt)
{
    return v && json_is_number(node(v)) ? json_number_value(node(v)) : dflt;
}

bool fm_json_bool(const fm_json *v, bool dflt)
{
    return fm_json_is(v, FM_JSON_BOOL) ? json_is_true(node(v)) : dflt;
}

static fm_status wrong_type(const char *what, const char *key, const char *want, const fm_json *v)
{
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};

    if (!v)
        return fm_fail(FM_EINVAL, "%s: field '%s' must be %s, is missing", what, key, want);
    return fm_fail(FM_EINVAL, "%s: field '%s' must be %s, is %s", what, key, want,
                   names[fm_json_typeof(v)]);
}

fm_status fm_json_need_int(int64_t *out, const fm_json *obj, const char *key, const char *what)
{
    const fm_json *v = fm_json_get(obj, key);

    *out = 0;
    return get_int(out, v) ? FM_OK : wrong_type(what, key, "an integer", v);
}

fm_status fm_json_need_real(double *out, const fm_json *obj, const char *key, const char *what)
{
    const fm_json *v = fm_json_get(obj, key);

    *out = 0.0;
    if (!v || !json_is_number(node(v)))
        return wrong_type(what, key, "a number", v);
    *out = json_number_value(node(v));
    return FM_OK;
}

fm_status fm_json_need_str(const char **out, const fm_json *obj, const char *key, const char *what)
{
    const fm_json *v = fm_json_get(obj, key);

    *out = fm_json_cstr(v, NULL);
    return *out ? FM_OK : wrong_type(what, key, "a string", v);
}

/* ==== building ==== */

fm_json *fm_json_new_object(void)
{
    ready();
    return ours(json_object());
}

fm_json *fm_json_new_array(void)
{
    ready();
    return ours(json_array());
}

fm_json *fm_json_new_strn(const char *s, size_t len)
{
    fm_buf clean;
    json_t *v = NULL;

    ready();
    if (len == 0 || fm_utf8_valid((const uint8_t *)s, len) == len)
        return ours(json_stringn_nocheck(len ? s : "", len));
    fm_buf_init(&clean, SIZE_MAX / 2);
    fm_utf8_lossy(&clean, (const uint8_t *)s, len);
    if (clean.failed >= 0)
        v = json_stringn_nocheck(fm_buf_cstr(&clean), clean.len);
    fm_buf_release(&clean);
    return ours(v);
}

fm_json *fm_json_new_str(const char *s)
{
    return s ? fm_json_new_strn(s, strlen(s)) : fm_json_new_null();
}

fm_json *fm_json_new_int(int64_t v)
{
    ready();
    return ours(json_integer(v));
}

fm_json *fm_json_new_real(double v)
{
    ready();
    return ours(isfinite(v) ? json_real(v) : json_null());
}

fm_json *fm_json_new_bool(bool v)
{
    return ours(json_boolean(v));
}

fm_json *fm_json_new_null(void)
{
    return ours(json_null());
}

fm_json *fm_json_copy(const fm_json *v)
{
    ready();
    return ours(json_deep_copy(node(v)));
}

/* The status of a call of jansson that failed: for lack of memory, or because of its arguments. */
static fm_status build_error(const char *text, const char *key)
{
    if (alloc_failed)
        return fm_fail(FM_ENOMEM, "out of memory while building JSON");
    return fm_fail(FM_EINVAL, "JSON: %s '%s'", text, key);
}

fm_status fm_json_set(fm_json *obj, const char *key, fm_json *value)
{
    ready();
    if (!obj || !value) {
        fm_json_free(value);
        return fm_fail(FM_ENOMEM, "out of memory while building JSON");
    }
    alloc_failed = false;
    if (json_object_set_new(node(obj), key, node(value)) == 0)
        return FM_OK;
    return build_error("cannot set field", key);
}

fm_status fm_json_push(fm_json *array, fm_json *value)
{
    ready();
    if (!array || !value) {
        fm_json_free(value);
        return fm_fail(FM_ENOMEM, "out of memory while building JSON");
    }
    alloc_failed = false;
    if (json_array_append_new(node(array), node(value)) == 0)
        return FM_OK;
    return build_error("cannot append to", "array");
}

void fm_json_put(fm_status *rc, fm_json *obj, const char *key, fm_json *value)
{
    if (*rc == FM_OK)
        *rc = fm_json_set(obj, key, value);
    else
        fm_json_free(value);
}

void fm_json_push_to(fm_status *rc, fm_json *array, fm_json *value)
{
    if (*rc == FM_OK)
        *rc = fm_json_push(array, value);
    else
        fm_json_free(value);
}

bool fm_json_equal(const fm_json *a, const fm_json *b)
{
    return a && b ? json_equal(node(a), node(b)) != 0 : a == b;
}

/* ==== writing ==== */

static void write_string(fm_buf *out, fm_span s)
{
    static const char digits[] = "0123456789abcdef";
    static const char short_from[] = "\b\f\n\r\t\"\\";
    static const char short_to[] = "bfnrt\"\\";
    size_t from = 0;

    fm_buf_char(out, '"');
    for (size_t i = 0; i < s.len; i++) {
        const uint8_t c = s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        fm_buf_append(out, s.data + from, i - from);
        from = i + 1;
        const char *at = c ? strchr(short_from, c) : NULL;
        char esc[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
        if (at)
            esc[1] = short_to[at - short_from];
        fm_buf_append(out, esc, at ? 2 : sizeof(esc));
    }
    if (s.len > from)
        fm_buf_append(out, s.data + from, s.len - from);
    fm_buf_char(out, '"');
}

/* The shortest of 15 to 17 digits that reads back as the same bits, with a '.' or 'e' in it. */
static void write_real(fm_buf *out, double v)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        double back = strtod(text, NULL);
        if (memcmp(&back, &v, sizeof(v)) == 0)
            break;
    }
    for (char *p = text; *p; p++) /* the locale may have another decimal mark */
        if (!strchr("0123456789+-e", *p))
            *p = '.';
    fm_buf_str(out, text);
    if (!strpbrk(text, ".e"))
        fm_buf_str(out, ".0");
}

static void new_line(fm_buf *out, fm_json_style style, unsigned depth)
{
    if (style != FM_JSON_PRETTY)
        return;
    fm_buf_char(out, '\n');
    for (unsigned i = 0; i < FM_MIN(depth, INDENT_MAX); i++)
        fm_buf_str(out, "  ");
}

static fm_status write_value(fm_buf *out, const fm_json *v, fm_json_style style, unsigned depth);

static fm_status write_array(fm_buf *out, const fm_json *v, fm_json_style style, unsigned depth)
{
    const size_t count = fm_json_count(v);
    fm_status rc = FM_OK;

    fm_buf_char(out, '[');
    for (size_t i = 0; i < count && rc >= 0; i++) {
        if (i)
            fm_buf_char(out, ',');
        new_line(out, style, depth + 1);
        rc = write_value(out, fm_json_at(v, i), style, depth + 1);
    }
    if (count)
        new_line(out, style, depth);
    fm_buf_char(out, ']');
    return rc;
}

struct field {
    const char *key;
    const fm_json *value;
};

static int by_key(const void *a, const void *b)
{
    const struct field *x = a;
    const struct field *y = b;
    return strcmp(x->key, y->key);
}

static fm_status write_object(fm_buf *out, const fm_json *v, fm_json_style style, unsigned depth)
{
    const size_t count = fm_json_count(v);
    fm_status rc = FM_OK;
    size_t n = 0;

    struct field *field = fm_calloc(FM_MAX(count, 1), sizeof(*field));
    if (!field)
        return FM_ENOMEM;
    for (void *it = fm_json_iter(v); it && n < count; it = fm_json_next(v, it))
        field[n++] = (struct field){fm_json_iter_key(it), fm_json_iter_value(it)};
    if (style == FM_JSON_CANONICAL)
        qsort(field, n, sizeof(*field), by_key);
    fm_buf_char(out, '{');
    for (size_t i = 0; i < n && rc >= 0; i++) {
        if (i)
            fm_buf_char(out, ',');
        new_line(out, style, depth + 1);
        write_string(out, fm_span_str(field[i].key));
        fm_buf_str(out, style == FM_JSON_PRETTY ? ": " : ":");
        rc = write_value(out, field[i].value, style, depth + 1);
    }
    if (n)
        new_line(out, style, depth);
    fm_buf_char(out, '}');
    fm_free(field);
    return rc;
}

static fm_status write_value(fm_buf *out, const fm_json *v, fm_json_style style, unsigned depth)
{
    if (depth > FM_JSON_MAX_DEPTH)
        return fm_fail(FM_ELIMIT, "JSON: nested deeper than %d", FM_JSON_MAX_DEPTH);
    switch (fm_json_typeof(v)) {
    case FM_JSON_NULL:
        fm_buf_str(out, "null");
        return FM_OK;
    case FM_JSON_BOOL:
        fm_buf_str(out, fm_json_bool(v, false) ? "true" : "false");
        return FM_OK;
    case FM_JSON_INT:
        fm_buf_printf(out, "%" PRId64, fm_json_int(v, 0));
        return FM_OK;
    case FM_JSON_REAL:
        write_real(out, fm_json_real(v, 0.0));
        return FM_OK;
    case FM_JSON_STRING:
        write_string(out, fm_json_str(v));
        return FM_OK;
    case FM_JSON_ARRAY:
        return write_array(out, v, style, depth);
    case FM_JSON_OBJECT:
        return write_object(out, v, style, depth);
    }
    return FM_OK;
}

fm_status fm_json_write(fm_buf *out, const fm_json *v, fm_json_style style)
{
    FM_TRY(write_value(out, v, style, 0));
    return fm_buf_ok(out);
}

fm_status fm_json_known_keys(const fm_json *obj, const char *const *known, const char *what)
{
    for (void *it = fm_json_iter(obj); it; it = fm_json_next(obj, it)) {
        const char *key = fm_json_iter_key(it);
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (*k)
            continue;
        char list[512] = "";
        for (k = known; *k; k++) {
            strncat(list, *list ? ", " : "", sizeof list - strlen(list) - 1);
            strncat(list, *k, sizeof list - strlen(list) - 1);
        }
        return fm_fail(FM_EINVAL, "%s: unknown key '%s' (known: %s)", what, key, list);
    }
    return FM_OK;
}
