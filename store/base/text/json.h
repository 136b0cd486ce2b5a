/* json.h - the value tree: parse with limits and clear errors, walk, build, write. The nodes are
 * jansson's, and this is its only door.
 *
 * A value is an opaque reference-counted node. fm_json_parse and the constructors give an owned
 * node (fm_json_free); accessors give borrowed ones, valid while their root lives. Objects keep the
 * order of their keys. Duplicate keys are refused. Integers beyond 64 bits are read as reals.
 * Strings are UTF-8 and may hold NUL: fm_json_str gives a span, its data NUL-terminated. */
#ifndef FM_BASE_JSON_H
#define FM_BASE_JSON_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

typedef struct fm_json fm_json;
typedef enum fm_json_type {
    FM_JSON_NULL,
    FM_JSON_BOOL,
    FM_JSON_INT,
    FM_JSON_REAL,
    FM_JSON_STRING,
    FM_JSON_ARRAY,
    FM_JSON_OBJECT
} fm_json_type;

/* Levels of arrays and objects inside one another, in reading and in writing. */
#define FM_JSON_MAX_DEPTH 2048

/* `what` names the file in errors: "<what>: line 3: duplicate key 'a'". FM_ECORRUPT: not JSON;
 * FM_ELIMIT: too deep; FM_ENOMEM. Any value may stand at the top. */
FM_CHECKED fm_status fm_json_parse(fm_json **out, fm_span text, const char *what);
FM_CHECKED fm_status fm_json_parse_file(fm_json **out, const char *path, size_t max_bytes);
void fm_json_free(fm_json *v); /* NULL is fine; drops one reference */
fm_json *fm_json_ref(const fm_json *v);

/* Walking. All accept v == NULL (an absent value): type FM_JSON_NULL, count 0, NULL. */
fm_json_type fm_json_typeof(const fm_json *v); /* FM_JSON_NULL for NULL */
bool fm_json_is(const fm_json *v, fm_json_type t);
const fm_json *fm_json_get(const fm_json *obj, const char *key);     /* NULL: absent or no object */
const fm_json *fm_json_path(const fm_json *obj, const char *dotted); /* "a.b.c" */
size_t fm_json_count(const fm_json *v);                              /* array or object */
const fm_json *fm_json_at(const fm_json *array, size_t i);
/* for (it = fm_json_iter(o); it; it = fm_json_next(o, it)) ... */
void *fm_json_iter(const fm_json *obj);
void *fm_json_next(const fm_json *obj, void *it);
const char *fm_json_iter_key(void *it);
const fm_json *fm_json_iter_value(void *it);

/* Values; dflt where the value is absent or of another type. */
fm_span fm_json_str(const fm_json *v);                        /* data NULL when no string */
const char *fm_json_cstr(const fm_json *v, const char *dflt); /* NUL-terminated */
int64_t fm_json_int(const fm_json *v, int64_t dflt);
double fm_json_real(const fm_json *v, double dflt); /* ints too */
bool fm_json_bool(const fm_json *v, bool dflt);

/* Fields that must be there: FM_EINVAL "<what>: field 'x' must be a string, is a number". */
FM_CHECKED fm_status fm_json_need_int(int64_t *out, const fm_json *obj, const char *key,
                                      const char *what);
FM_CHECKED fm_status fm_json_need_real(double *out, const fm_json *obj, const char *key,
                                       const char *what);
FM_CHECKED fm_status fm_json_need_str(const char **out, const fm_json *obj, const char *key,
                                      const char *what);

/* Every key of obj is among the NULL-ended list, so that a misspelt one is never ignored:
 * FM_EINVAL "<what>: unknown key 'x' (known: a, b)". Anything but an object has no keys. */
FM_CHECKED fm_status fm_json_known_keys(const fm_json *obj, const char *const *known,
                                        const char *what);

/* Building. Constructors return NULL on ENOMEM; set and push consume value, and take NULL for a
 * failed constructor (FM_ENOMEM), so that calls nest: fm_json_set(o, "k", fm_json_new_int(3)). */
fm_json *fm_json_new_object(void);
fm_json *fm_json_new_array(void);
fm_json *fm_json_new_str(const char *s); /* ill-formed UTF-8 becomes U+FFFD; NULL gives null */
fm_json *fm_json_new_strn(const char *s, size_t len);
fm_json *fm_json_new_int(int64_t v);
fm_json *fm_json_new_real(double v); /* NaN and infinities become null */
fm_json *fm_json_new_bool(bool v);
fm_json *fm_json_new_null(void);
fm_json *fm_json_copy(const fm_json *v); /* deep */
FM_CHECKED fm_status fm_json_set(fm_json *obj, const char *key, fm_json *value);
FM_CHECKED fm_status fm_json_push(fm_json *array, fm_json *value);
/* The same without checks: after a failure in *rc value is only freed; a new one goes to *rc. */
void fm_json_put(fm_status *rc, fm_json *obj, const char *key, fm_json *value);
void fm_json_push_to(fm_status *rc, fm_json *array, fm_json *value);
bool fm_json_equal(const fm_json *a, const fm_json *b);

/* Writing. Canonical, for digests: keys sorted by bytes, no spaces, reals with the fewest digits
 * that read back equal. Pretty: two spaces, file order. Compact: one line, file order. */
typedef enum fm_json_style { FM_JSON_CANONICAL, FM_JSON_PRETTY, FM_JSON_COMPACT } fm_json_style;
FM_CHECKED fm_status fm_json_write(fm_buf *out, const fm_json *v, fm_json_style style);

/* Internal to json*.c and yaml.c. Parses a finite real, whatever the locale. */
bool fms_json_real_of(double *out, const char *text);

FM_END_DECLS
#endif
