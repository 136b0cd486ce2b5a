/* apart.c - may a text that is written for one schema satisfy another one too? 'oneOf' needs that
 * it does not.
 *
 * The answer is sound, not complete: types that differ, values of const and enum that do, a member
 * that one side requires and the other cannot have, or has with a value that is apart. What is
 * written for a schema is less than what satisfies it (grammar.h), which counts for the writer. */
#include "infer/grammar/internal.h"

#include <string.h>

#define APART_DEEP_MAX 8 /* properties and unions inside one another; beyond, nothing is proved */
#define OBJECT (1u << 0)
#define ARRAY (1u << 1)
#define STRING (1u << 2)
#define WHOLE (1u << 3)
#define FRACTION (1u << 4)
#define BOOLEAN (1u << 5)
#define NOTHING (1u << 6)
#define ALL 0x7fu

static fm_status apart(gr_builder *b, bool *out, const fm_json *writer, const fm_json *other,
                       int depth);

static unsigned kinds_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } all[] = {
        {"object", OBJECT},           {"array", ARRAY},     {"string", STRING}, {"integer", WHOLE},
        {"number", WHOLE | FRACTION}, {"boolean", BOOLEAN}, {"null", NOTHING}};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].kinds;
    return ALL;
}

static unsigned kinds_of_value(const fm_json *v)
{
    static const unsigned of[] = {
        [FM_JSON_NULL] = NOTHING,          [FM_JSON_BOOL] = BOOLEAN,  [FM_JSON_INT] = WHOLE,
        [FM_JSON_REAL] = WHOLE | FRACTION, [FM_JSON_STRING] = STRING, [FM_JSON_ARRAY] = ARRAY,
        [FM_JSON_OBJECT] = OBJECT};

    return of[fm_json_typeof(v)];
}

/* By type alone. */
static unsigned kinds_of_type(const fm_json *schema, bool written)
{
    const fm_json *type = fm_json_get(schema, "type");
    const char *one = type ? fm_json_cstr(type, NULL) : written ? gr_implied_type(schema) : NULL;
    unsigned kinds = 0;

    if (one)
        return kinds_of_name(one);
    if (!fm_json_is(type, FM_JSON_ARRAY))
        return ALL;
    for (size_t i = 0; i < fm_json_count(type); i++)
        kinds |= kinds_of_name(fm_json_cstr(fm_json_at(type, i), ""));
    return kinds;
}

static unsigned kinds_of(const fm_json *schema, bool written)
{
    const fm_json *only = fm_json_get(schema, "const"), *list = fm_json_get(schema, "enum");
    unsigned kinds = kinds_of_type(schema, written), listed = 0;

    if (only)
        kinds &= kinds_of_value(only);
    for (size_t i = 0; i < fm_json_count(list); i++)
        listed |= kinds_of_value(fm_json_at(list, i));
    return list ? kinds & listed : kinds;
}

/* Numbers by value: 1 is 1.0. */
static bool may_be_equal(const fm_json *x, const fm_json *y)
{
    bool equal = true;

    if ((kinds_of_value(x) & kinds_of_value(y)) == 0)
        return false;
    if (kinds_of_value(x) & WHOLE)
        return !(fm_json_real(x, 0) < fm_json_real(y, 0)) &&
               !(fm_json_real(x, 0) > fm_json_real(y, 0));
    if (fm_json_count(x) != fm_json_count(y))
        return false;
    if (fm_json_is(x, FM_JSON_ARRAY))
        for (size_t i = 0; equal && i < fm_json_count(x); i++)
            equal = may_be_equal(fm_json_at(x, i), fm_json_at(y, i));
    else if (fm_json_is(x, FM_JSON_OBJECT))
        for (void *it = fm_json_iter(x); equal && it; it = fm_json_next(x, it)) {
            const fm_json *v = fm_json_get(y, fm_json_iter_key(it));
            equal = v && may_be_equal(fm_json_iter_value(it), v);
        }
    else
        equal = fm_json_equal(x, y);
    return equal;
}

/* May the schema hold for this value? By its type, const and enum alone. */
static bool may_hold(const fm_json *schema, const fm_json *v)
{
    const fm_json *only = fm_json_get(schema, "const"), *list = fm_json_get(schema, "enum");
    bool hit = !list;

    if ((kinds_of(schema, false) & kinds_of_value(v)) == 0 || (only && !may_be_equal(only, v)))
        return false;
    for (size_t i = 0; i < fm_json_count(list) && !hit; i++)
        hit = may_be_equal(fm_json_at(list, i), v);
    return hit;
}

static bool values_apart(const fm_json *writer, const fm_json *other)
{
    const fm_json *only = fm_json_get(writer, "const"), *list = fm_json_get(writer, "enum");

    if (only)
        return !may_hold(other, only);
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (may_hold(writer, fm_json_at(list, i)) && may_hold(other, fm_json_at(list, i)))
            return false;
    return list != NULL;
}

/* ---- objects ---- */

static bool is_false(const fm_json *schema)
{
    return fm_json_is(schema, FM_JSON_BOOL) && !fm_json_bool(schema, true);
}

static bool requires(const fm_json *schema, const char *name)
{
    const fm_json *list = fm_json_get(schema, "required");

    for (size_t i = 0; i < fm_json_count(list); i++)
        if (strcmp(fm_json_cstr(fm_json_at(list, i), ""), name) == 0)
            return true;
    return false;
}

/* Of undeclared members: no such one is written, or allowed. */
static bool is_closed(const fm_json *schema, bool written)
{
    const fm_json *properties = fm_json_get(schema, "properties");
    const fm_json *required = fm_json_get(schema, "required");
    const fm_json *more = fm_json_get(schema, "additionalProperties");

    if (more || !written)
        return is_false(more);
    for (size_t i = 0; i < fm_json_count(required); i++)
        if (!fm_json_get(properties, fm_json_cstr(fm_json_at(required, i), "")))
            return false;
    return fm_json_count(properties) > 0;
}

/* The schema of a member; NULL: any value. *none: there is no such member. */
static const fm_json *member_of(const fm_json *schema, const char *name, bool written, bool *none)
{
    const fm_json *own = fm_json_get(fm_json_get(schema, "properties"), name);

    *none = own ? is_false(own) : is_closed(schema, written);
    return own ? own : fm_json_get(schema, "additionalProperties");
}

/* `name` is required by one of the two. */
static fm_status member_apart(gr_builder *b, bool *out, const fm_json *writer, const fm_json *other,
                              const char *name, int depth)
{
    bool never, forbidden;
    const fm_json *mine = member_of(writer, name, true, &never);
    const fm_json *theirs = member_of(other, name, false, &forbidden);

    *out = (never && requires(other, name)) || (forbidden && requires(writer, name));
    return *out || !mine || !theirs ? FM_OK : apart(b, out, mine, theirs, depth);
}

static fm_status members_apart(gr_builder *b, bool *out, const fm_json *writer,
                               const fm_json *other, int depth)
{
    const fm_json *list[] = {fm_json_get(writer, "required"), fm_json_get(other, "required")};

    for (size_t k = 0; k < 2 && !*out; k++)
        for (size_t i = 0; i < fm_json_count(list[k]) && !*out; i++)
            FM_TRY(member_apart(b, out, writer, other, fm_json_cstr(fm_json_at(list[k], i), ""),
                                depth));
    return FM_OK;
}

/* ---- schemas ---- */

/* anyOf or oneOf of the writer: each branch is written together with what stands beside it. */
static fm_status branches_apart(gr_builder *b, bool *out, const fm_json *writer, const char *key,
                                const fm_json *other, int depth)
{
    const fm_json *list = fm_json_get(writer, key), *rest, *branch;
    bool some;
    FM_TRY(gr_without(b, &rest, writer, key, &some));

    *out = true;
    for (size_t i = 0; i < fm_json_count(list) && *out; i++) {
        branch = fm_json_at(list, i);
        if (some)
            FM_TRY(gr_merge(b, &branch, rest, branch));
        FM_TRY(apart(b, out, branch, other, depth));
    }
    return FM_OK;
}

/* anyOf or oneOf of the other: one of its branches would have to hold. */
static fm_status apart_from_all(gr_builder *b, bool *out, const fm_json *writer,
                                const fm_json *list, int depth)
{
    *out = list != NULL;
    for (size_t i = 0; i < fm_json_count(list) && *out; i++)
        FM_TRY(apart(b, out, writer, fm_json_at(list, i), depth));
    return FM_OK;
}

static const char *union_of(const fm_json *schema)
{
    return fm_json_get(schema, "anyOf") ? "anyOf" : fm_json_get(schema, "oneOf") ? "oneOf" : NULL;
}

static fm_status apart(gr_builder *b, bool *out, const fm_json *writer, const fm_json *other,
                       int depth)
{
    *out = false;
    if (depth >= APART_DEEP_MAX)
        return FM_OK;
    FM_TRY(gr_work(b, 16));
    FM_TRY(gr_resolve(b, &writer, writer));
    FM_TRY(gr_resolve(b, &other, other));
    *out = is_false(writer) || is_false(other);
    if (*out || !fm_json_is(writer, FM_JSON_OBJECT) || !fm_json_is(other, FM_JSON_OBJECT))
        return FM_OK;
    FM_TRY(gr_work(b, fm_json_count(fm_json_get(writer, "enum")) *
                              (1 + fm_json_count(fm_json_get(other, "enum"))) +
                          fm_json_count(fm_json_get(writer, "required")) +
                          fm_json_count(fm_json_get(other, "required"))));
    if (union_of(writer))
        return branches_apart(b, out, writer, union_of(writer), other, depth + 1);
    unsigned common = kinds_of(writer, true) & kinds_of(other, false);
    *out = common == 0 || values_apart(writer, other);
    if (!*out && (common & ~OBJECT) == 0)
        FM_TRY(members_apart(b, out, writer, other, depth + 1));
    if (!*out && union_of(other))
        FM_TRY(apart_from_all(b, out, writer, fm_json_get(other, union_of(other)), depth + 1));
    return FM_OK;
}

fm_status gr_check_one_of(gr_builder *b, const fm_json *written, const fm_json *list, size_t i)
{
    for (size_t k = 0; k < fm_json_count(list); k++) {
        bool fine = k == i;
        if (!fine)
            FM_TRY(apart(b, &fine, written, fm_json_at(list, k), 0));
        if (!fine)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: 'oneOf': a value of branch %zu may satisfy branch %zu too; give "
                           "them different types, or a property that both require with different "
                           "'const' values, or say 'anyOf'",
                           b->where, i, k);
    }
    return FM_OK;
}
