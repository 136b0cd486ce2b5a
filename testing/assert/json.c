/* json.c - assertions on answers that are JSON, or contain it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/assert/assert.h"

#define SEARCH_BYTES_MAX ((size_t)4 << 20) /* most bytes searched for JSON inside one answer */

static fm_status read_fields(fmv_assertion *a, const char *where)
{
    if (!fm_json_is(a->value, FM_JSON_OBJECT) && !fm_json_bool(a->value, false))
        return fm_fail(FM_EINVAL, "%s: expect.%s%s wants true or a mapping of fields", where,
                       a->negated ? "not-" : "", a->type->word);
    return FM_OK;
}

static fm_status read_schema(fmv_assertion *a, const char *where)
{
    char at[640];
    if (fm_json_bool(a->value, false))
        return FM_OK;
    if (!fm_json_is(a->value, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants true or a JSON Schema", where,
                       a->type->word);
    snprintf(at, sizeof at, "%s: expect.%s", where, a->type->word);
    return fmv_schema_new(&a->schema, a->value, at);
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

/* Checks that the answer is JSON. true: any value; a mapping: an object with these fields. */
static fm_status check_fields(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    const fm_json *want = a->value;
    fm_json *got = NULL;
    fm_status rc = parsed(&got, fmv_trim(said->text));
    bool fits = got && (!fm_json_is(want, FM_JSON_OBJECT) || fm_json_is(got, FM_JSON_OBJECT));
    for (void *it = fm_json_iter(want); fits && it; it = fm_json_next(want, it))
        fits = fm_json_equal(fm_json_get(got, fm_json_iter_key(it)), fm_json_iter_value(it));
    fm_json_free(got);
    fmv_set_grade(out, fits);
    return rc;
}

/* Whether text is JSON that satisfies the schema, if any. Keeps the first reason why not. */
static fm_status fits_schema(const fmv_assertion *a, fm_span text, uint32_t *steps, bool *fits,
                             fmv_grade *out)
{
    fm_json *got = NULL;
    char why[sizeof out->note] = "";
    fm_status rc = parsed(&got, text);
    *fits = got != NULL;
    if (rc == FM_OK && got && a->schema)
        rc = fmv_schema_check(a->schema, got, steps, fits, why, sizeof why);
    fm_json_free(got);
    if (!*fits && !out->note[0])
        snprintf(out->note, sizeof out->note, "%s", why);
    return rc;
}

static fm_status check_whole(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    uint32_t steps = 0;
    bool fits = false;
    fm_status rc = fits_schema(a, fmv_trim(said->text), &steps, &fits, out);
    fmv_set_grade(out, fits);
    return rc;
}

#define NO_END SIZE_MAX

/* Sets end[i] of every bracket from `from` on that is in no string: the index behind its partner,
 * or NO_END. Brackets inside what looks like a string from here stay 0 for another start. */
static void find_ends(size_t *end, size_t *open, fm_span s, size_t from)
{
    size_t depth = 0;
    bool text = false;
    for (size_t i = from; i < s.len; i++) {
        uint8_t c = s.data[i];
        if (text) {
            i += c == '\\';
            text = c != '"';
        } else if (c == '"') {
            text = true;
        } else if (c == '{' || c == '[') {
            open[depth++] = i;
            end[i] = NO_END;
        } else if ((c == '}' || c == ']') && depth) {
            end[open[--depth]] = i + 1;
        }
    }
}

/* The search ended without a find, which does not prove that there is none. */
static fm_status gave_up(const fmv_assertion *a, fmv_grade *out)
{
    if (a->negated)
        return fm_fail(FM_ELIMIT, "the search for JSON in the answer took too long");
    snprintf(out->note, sizeof out->note, "none was found before the search took too long");
    fmv_set_grade(out, false);
    return FM_OK;
}

static fm_status search(const fmv_assertion *a, fm_span s, size_t *end, size_t *open,
                        fmv_grade *out)
{
    size_t looked = 0;
    uint32_t steps = 0; /* over all candidates */
    bool fits = false;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !fits && i < s.len; i++) {
        if (s.data[i] != '{' && s.data[i] != '[')
            continue;
        if (!end[i]) {
            find_ends(end, open, s, i);
            looked += s.len - i;
        }
        size_t n = end[i] == NO_END ? 0 : end[i] - i;
        looked += n;
        if (looked > SEARCH_BYTES_MAX)
            return gave_up(a, out);
        if (n)
            rc = fits_schema(a, (fm_span){s.data + i, n}, &steps, &fits, out);
    }
    fmv_set_grade(out, fits);
    return rc;
}

static fm_status check_inside(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    size_t *end = fm_calloc(said->text.len + 1, sizeof *end);
    size_t *open = fm_calloc(said->text.len + 1, sizeof *open);
    fm_status rc = end && open ? search(a, said->text, end, open, out) : FM_ENOMEM;
    fm_free(end);
    fm_free(open);
    return rc;
}

const fmv_assert_type fmv_assert_json[] = {
    {.word = "json",
     .kind = FMV_JSON,
     .threshold = NAN,
     .read = read_fields,
     .check = check_fields},
    {.word = "is-json",
     .kind = FMV_RULE,
     .threshold = NAN,
     .read = read_schema,
     .check = check_whole},
    {.word = "contains-json",
     .kind = FMV_RULE,
     .threshold = NAN,
     .read = read_schema,
     .check = check_inside},
    {0},
};
