/* filter.c - filters of lists, mappings and any value, and the table of all filters' names. */
#include "infer/jinja/jinja.h"

#include <string.h>

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static fm_status no_args(jj_ctx *c, const jj_args *a, const char *what)
{
    return jj_args_check(c, a, what, NULL, 0);
}

/* ---- anything ---- */

static fm_status f_default(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default_value");
    bool boolean = jj_truth(jj_arg(a, 1, "boolean"));
    fm_status rc = jj_args_check(c, a, "default", NAMES("default_value", "boolean"), 2);

    if (dflt.type == JJ_UNDEFINED && !dflt.u.s.p && a->count == 0)
        dflt = jj_str("", 0);
    *out = in.type == JJ_UNDEFINED || (boolean && !jj_truth(in)) ? dflt : in;
    return rc;
}

static fm_status f_length(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    fm_status rc = no_args(c, a, "length");

    if (rc < 0)
        return rc;
    if (in.type == JJ_STRING) {
        rc = jj_work(c, in.u.s.n);
        *out = jj_int(rc == FM_OK ? (int64_t)jj_chars(in) : 0);
    } else if (jj_is_seq(in) || in.type == JJ_VIEW)
        *out = jj_int((int64_t)in.u.list->count);
    else if (in.type == JJ_DICT)
        *out = jj_int((int64_t)in.u.dict->count);
    else if (in.type == JJ_UNDEFINED)
        *out = jj_int(0);
    else
        return jj_error(c, FM_EINVAL, "length of %s", jj_type_name(in));
    return rc;
}

static fm_status f_items(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    FM_TRY(no_args(c, a, "items"));
    if (in.type == JJ_UNDEFINED)
        return jj_gen_new(c, out);
    if (in.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "items of %s", jj_type_name(in));
    fm_status rc = jj_method(c, out, in, "items", a);
    out->type = JJ_GEN;
    return rc;
}

/* ---- lists ---- */

static fm_status f_list(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val v;
    FM_TRY(no_args(c, a, "list"));

    FM_TRY(jj_as_list(c, &v, in));
    FM_TRY(jj_list_new(c, out));
    for (size_t i = 0; i < v.u.list->count; i++)
        FM_TRY(jj_list_push(c, out->u.list, v.u.list->v[i]));
    return FM_OK;
}

static fm_status end_of(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool last)
{
    jj_val v;
    FM_TRY(no_args(c, a, last ? "last" : "first"));

    if (in.type == JJ_GEN) {
        jj_list *l = in.u.list;
        if (last)
            return jj_error(c, FM_EINVAL, "a generator is not reversible");
        *out = l->at < l->count ? l->v[l->at++] : jj_undefined("an item of an empty list");
        return FM_OK;
    }
    if (last && in.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "reverse", in, in);
    FM_TRY(jj_as_list(c, &v, in));
    size_t n = v.u.list->count;
    *out = n == 0 ? jj_undefined("an item of an empty list") : v.u.list->v[last ? n - 1 : 0];
    return FM_OK;
}

static fm_status f_first(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return end_of(c, out, in, a, false);
}

static fm_status f_last(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return end_of(c, out, in, a, true);
}

static fm_status f_reverse(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val v;
    fm_buf b;
    fm_status rc = no_args(c, a, "reverse");

    FM_THEN(rc, jj_as_list(c, &v, in));
    FM_THEN(rc, jj_list_new(c, out));
    for (size_t i = 0; rc == FM_OK && i < v.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[v.u.list->count - 1 - i]);
    if (in.type != JJ_GEN) /* a generator has no length and gives a list */
        out->type = JJ_GEN;
    if (rc < 0 || in.type != JJ_STRING)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX); /* the work was counted when the items were listed */
    for (size_t i = 0; i < out->u.list->count; i++)
        fm_buf_append(&b, out->u.list->v[i].u.s.p, out->u.list->v[i].u.s.n);
    return jj_buf_str(c, out, &b, FM_OK);
}

static fm_status f_join(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, sep = jj_arg(a, 0, "d");
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "join", NAMES("d"), 1);

    FM_THEN(rc, jj_as_list(c, &list, in));
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        if (i > 0 && sep.type != JJ_UNDEFINED)
            rc = jj_to_text(c, &b, sep);
        FM_THEN(rc, jj_to_text(c, &b, list.u.list->v[i]));
    }
    return jj_buf_str(c, out, &b, rc);
}

static jj_args tail(const jj_args *a, size_t n)
{
    jj_args t = {.pos = a->count > n ? a->pos + n : NULL,
                 .count = a->count - n,
                 .kw = a->kw,
                 .kw_value = a->kw_value,
                 .kw_count = a->kw_count};

    return t;
}

/* map(attribute=..), or map of a filter and its arguments. */
static fm_status f_map(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, v, attr = jj_arg(a, SIZE_MAX, "attribute");
    bool by_attr = attr.type != JJ_UNDEFINED;
    int fn = -1;

    if (by_attr && a->count + a->kw_count > 1)
        return jj_error(c, FM_EUNSUPPORTED, "map: arguments beside attribute= are not implemented");
    if (!by_attr && (a->count == 0 || a->pos[0].type != JJ_STRING))
        return jj_error(c, FM_EINVAL, "map needs attribute= or the name of a filter");
    if (!by_attr && (fn = jj_filter_find(a->pos[0].u.s.p)) < 0)
        return jj_error(c, FM_EUNSUPPORTED, "filter '%s' is not implemented", a->pos[0].u.s.p);
    jj_args rest = tail(a, by_attr ? 0 : 1);
    fm_status rc = jj_gen_new(c, out);
    if (rc < 0 || !jj_truth(in)) /* of none too */
        return rc;
    rc = jj_as_list(c, &list, in);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        rc = by_attr ? jj_attr_path(c, &v, list.u.list->v[i], attr)
                     : jj_filter_run(c, &v, fn, list.u.list->v[i], &rest);
        FM_THEN(rc, jj_list_push(c, out->u.list, v));
    }
    return rc;
}

/* select, reject (by_attr false), selectattr, rejectattr */
static fm_status pick(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool by_attr, bool want)
{
    jj_val list;
    size_t at = by_attr ? 1 : 0;
    int fn = -1;

    if (a->count < at)
        return jj_error(c, FM_EINVAL, "select or reject: bad arguments");
    if (a->count > at) {
        jj_val name = a->pos[at];
        if (name.type != JJ_STRING || (fn = jj_test_find(name.u.s.p)) < 0)
            return jj_error(c, FM_EUNSUPPORTED, "select or reject: test '%s' is not implemented",
                            name.type == JJ_STRING ? name.u.s.p : jj_type_name(name));
    }
    jj_args rest = tail(a, FM_MIN(at + 1, a->count));
    fm_status rc = jj_gen_new(c, out);
    if (rc < 0 || !jj_truth(in)) /* of none too */
        return rc;
    rc = jj_as_list(c, &list, in);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (by_attr)
            rc = jj_attr_path(c, &v, list.u.list->v[i], a->pos[0]);
        bool hit = jj_truth(v);
        if (rc == FM_OK && fn >= 0)
            rc = jj_test_run(c, &hit, fn, v, &rest);
        if (rc == FM_OK && hit == want)
            rc = jj_list_push(c, out->u.list, list.u.list->v[i]);
    }
    return rc;
}

static fm_status f_select(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, false, true);
}

static fm_status f_reject(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, false, false);
}

static fm_status f_selectattr(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, true, true);
}

static fm_status f_rejectattr(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, true, false);
}

/* Stable merge by (key, order). */
static fm_status merge_sort(jj_ctx *c, jj_pair *p, jj_pair *tmp, size_t n, bool reverse)
{
    size_t half = n / 2, i = 0, k = half, at = 0;

    if (n < 2)
        return FM_OK;
    fm_status rc = merge_sort(c, p, tmp, half, reverse);
    FM_THEN(rc, merge_sort(c, p + half, tmp, n - half, reverse));
    FM_THEN(rc, jj_work_by(c, n, JJ_ITEM));
    while (rc == FM_OK && i < half && k < n) {
        int order;
        rc = jj_compare(c, &order, p[i].key, p[k].key);
        bool first = reverse ? order >= 0 : order <= 0;
        tmp[at++] = first ? p[i++] : p[k++];
    }
    while (i < half)
        tmp[at++] = p[i++];
    while (k < n)
        tmp[at++] = p[k++];
    memcpy(p, tmp, n * sizeof *p);
    return rc;
}

static fm_status sort_by(jj_ctx *c, jj_list *list, const jj_list *keys, bool reverse)
{
    size_t n = list->count;
    jj_pair *p = jj_alloc(c, (2 * n + 1) * sizeof *p);

    if (!p)
        return jj_alloc_status(c);
    for (size_t i = 0; i < n; i++)
        p[i] = (jj_pair){keys->v[i], list->v[i]};
    fm_status rc = merge_sort(c, p, p + n, n, reverse);
    for (size_t i = 0; i < n; i++)
        list->v[i] = p[i].value;
    return rc;
}

/* The keys by which sort, unique, min and max compare: items or one attribute of them, strings in
 * lower case where fold. */
static fm_status keys_of(jj_ctx *c, jj_val *out, jj_val list, jj_val attr, bool fold)
{
    bool by_attr = attr.type != JJ_UNDEFINED && attr.type != JJ_NONE;
    fm_status rc = jj_list_new(c, out);

    if (attr.type == JJ_STRING && memchr(attr.u.s.p, ',', attr.u.s.n))
        return jj_error(c, FM_EUNSUPPORTED, "several attributes at once are not implemented");
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (by_attr)
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
        if (rc == FM_OK && fold && v.type == JJ_STRING)
            rc = jj_cased(c, &v, v, JJ_LOWER);
        FM_THEN(rc, jj_list_push(c, out->u.list, v));
    }
    return rc;
}

static fm_status f_sort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    jj_val keys;
    FM_TRY(jj_args_check(c, a, "sort", NAMES("reverse", "case_sensitive", "attribute"), 3));

    FM_TRY(f_list(c, out, in, &none));
    FM_TRY(keys_of(c, &keys, *out, jj_arg(a, 2, "attribute"),
                   !jj_truth(jj_arg(a, 1, "case_sensitive"))));
    return sort_by(c, out->u.list, keys.u.list, jj_truth(jj_arg(a, 0, "reverse")));
}

static fm_status f_dictsort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val keys;
    fm_status rc = no_args(c, a, "dictsort");

    if (rc == FM_OK && in.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "dictsort of %s", jj_type_name(in));
    FM_THEN(rc, f_items(c, out, in, a));
    out->type = JJ_LIST;
    FM_THEN(rc, keys_of(c, &keys, *out, jj_int(0), true));
    return rc < 0 ? rc : sort_by(c, out->u.list, keys.u.list, false);
}

static fm_status f_unique(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, keys, seen;
    FM_TRY(no_args(c, a, "unique"));

    FM_TRY(jj_as_list(c, &list, in));
    FM_TRY(keys_of(c, &keys, list, jj_none(), true));
    FM_TRY(jj_dict_new(c, &seen));
    FM_TRY(jj_gen_new(c, out));
    for (size_t i = 0; i < list.u.list->count; i++) {
        size_t before = seen.u.dict->count;
        FM_TRY(jj_dict_put(c, seen.u.dict, keys.u.list->v[i], jj_none()));
        if (seen.u.dict->count > before)
            FM_TRY(jj_list_push(c, out->u.list, list.u.list->v[i]));
    }
    return FM_OK;
}

static fm_status extreme(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, int want)
{
    jj_val list, keys;
    size_t best = 0;
    FM_TRY(no_args(c, a, want < 0 ? "min" : "max"));

    FM_TRY(jj_as_list(c, &list, in));
    FM_TRY(keys_of(c, &keys, list, jj_none(), true));
    *out = jj_undefined("an item of an empty list");
    for (size_t i = 1; i < list.u.list->count; i++) {
        int order;
        FM_TRY(jj_compare(c, &order, keys.u.list->v[i], keys.u.list->v[best]));
        if (order * want > 0)
            best = i;
    }
    if (list.u.list->count > 0)
        *out = list.u.list->v[best];
    return FM_OK;
}

static fm_status f_min(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return extreme(c, out, in, a, -1);
}

static fm_status f_max(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return extreme(c, out, in, a, 1);
}

static const jj_filter filters[] = {{"length", f_length},
                                    {"count", f_length},
                                    {"join", f_join},
                                    {"default", f_default},
                                    {"d", f_default},
                                    {"first", f_first},
                                    {"last", f_last},
                                    {"list", f_list},
                                    {"map", f_map},
                                    {"select", f_select},
                                    {"selectattr", f_selectattr},
                                    {"reject", f_reject},
                                    {"rejectattr", f_rejectattr},
                                    {"items", f_items},
                                    {"dictsort", f_dictsort},
                                    {"unique", f_unique},
                                    {"reverse", f_reverse},
                                    {"sort", f_sort},
                                    {"min", f_min},
                                    {"max", f_max}};

/* Indices count these filters, then those of text and numbers. */
int jj_filter_find(const char *name)
{
    for (int i = 0; i < (int)FM_ARRAY_LEN(filters); i++)
        if (strcmp(filters[i].name, name) == 0)
            return i;
    for (int i = 0; i < (int)jj_text_filter_count; i++)
        if (strcmp(jj_text_filters[i].name, name) == 0)
            return (int)FM_ARRAY_LEN(filters) + i;
    return -1;
}

fm_status jj_filter_run(jj_ctx *c, jj_val *out, int fn, jj_val in, const jj_args *a)
{
    const int own = (int)FM_ARRAY_LEN(filters);
    fm_status rc = jj_work(c, JJ_CALL);

    *out = jj_none();
    if (rc < 0)
        return rc;
    return (fn < own ? filters[fn].fn : jj_text_filters[fn - own].fn)(c, out, in, a);
}
