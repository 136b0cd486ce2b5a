/* assert_json.c - answers that are JSON, or hold it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/assert.h"

#define SEARCH_BYTES_MAX ((size_t)4 << 20) /* looked at for JSON inside one answer */

static fm_status read_fields(fmi_assertion *a, const char *where)
{
    if (!fm_json_is(a->value, FM_JSON_OBJECT) && !fm_json_bool(a->value, false))
        return fm_fail(FM_EINVAL, "%s: expect.%s%s wants true or a mapping of fields", where,
                       a->negated ? "not-" : "", a->type->word);
    return FM_OK;
}

static fm_status read_schema(fmi_assertion *a, const char *where)
{
    char at[640];
    if (fm_json_bool(a->value, false))
        return FM_OK;
    if (!fm_json_is(a->value, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants true or a JSON Schema", where,
                       a->type->word);
    snprintf(at, sizeof at, "%s: expect.%s", where, a->type->word);
    return fmi_schema_new(&a->schema, a->value, at);
}

/* *got NULL: not JSON. */
static fm_status parsed(fm_json **got, fm_span text)
{
    *got = NULL;
    fm_status rc = fm_json_parse(got, text, "answer");
    if (rc == FM_ENOMEM || rc == FM_OK)
        return rc;
    fm_error_clear();
    return FM_OK;
}

/* true = any JSON value; a mapping: an object that has these fields with these values. */
static fm_status check_fields(const fmi_assertion *a, const fmi_answer *said, fmi_grade *out)
{
    const fm_json *want = a->value;
    fm_json *got = NULL;
    fm_status rc = parsed(&got, fmi_trim(said->text));
    bool fits = got && (!fm_json_is(want, FM_JSON_OBJECT) || fm_json_is(got, FM_JSON_OBJECT));
    for (void *it = fm_json_iter(want); fits && it; it = fm_json_next(want, it))
        fits = fm_json_equal(fm_json_get(got, fm_json_iter_key(it)), fm_json_iter_value(it));
    fm_json_free(got);
    fmi_set_grade(out, fits);
    return rc;
}

/* JSON that satisfies the schema, if there is one. Keeps the first reason why not. */
static fm_status fits_schema(const fmi_assertion *a, fm_span text, uint32_t *steps, bool *fits,
                             fmi_grade *out)
{
    fm_json *got = NULL;
    char why[sizeof out->note] = "";
    fm_status rc = parsed(&got, text);
    *fits = got != NULL;
    if (rc == FM_OK && got && a->schema)
        rc = fmi_schema_check(a->schema, got, steps, fits, why, sizeof why);
    fm_json_free(got);
    if (!*fits && !out->note[0])
        snprintf(out->note, sizeof out->note, "%s", why);
    return rc;
}

static fm_status check_whole(const fmi_assertion *a, const fmi_answer *said, fmi_grade *out)
{
    uint32_t steps = 0;
    bool fits = false;
    fm_status rc = fits_schema(a, fmi_trim(said->text), &steps, &fits, out);
    fmi_set_grade(out, fits);
    return rc;
}

/* The length of the object or list that begins at s, brackets and strings alone looked at; 0: it
 * has no end. */
static size_t bracketed(fm_span s, size_t *looked)
{
    size_t depth = 0;
    bool text = false;
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = s.data[i];
        ++*looked;
        if (text) {
            i += c == '\\';
            text = c != '"';
        } else if (c == '"') {
            text = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

static fm_status check_inside(const fmi_assertion *a, const fmi_answer *said, fmi_grade *out)
{
    fm_span s = said->text;
    size_t looked = 0;
    uint32_t steps = 0; /* over all that is found */
    bool fits = false;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !fits && i < s.len; i++) {
        if (s.data[i] != '{' && s.data[i] != '[')
            continue;
        size_t n = bracketed((fm_span){s.data + i, s.len - i}, &looked);
        looked += n;
        if (looked > SEARCH_BYTES_MAX)
            return fm_fail(FM_ELIMIT, "the search for JSON in the answer took too long");
        if (n)
            rc = fits_schema(a, (fm_span){s.data + i, n}, &steps, &fits, out);
    }
    fmi_set_grade(out, fits);
    return rc;
}

const fmi_assert_type fmi_assert_json[] = {
    {.word = "json",
     .kind = FMI_JSON,
     .threshold = NAN,
     .read = read_fields,
     .check = check_fields},
    {.word = "is-json",
     .kind = FMI_RULE,
     .threshold = NAN,
     .read = read_schema,
     .check = check_whole},
    {.word = "contains-json",
     .kind = FMI_RULE,
     .threshold = NAN,
     .read = read_schema,
     .check = check_inside},
    {0},
};
