/* filter.c - filters, and tests (`x is defined`), which use each other: each in a table that the
 * parser checks names against. */
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
    jj_args none = {.count = 0};
    fm_status rc = no_args(c, a, "items");

    if (rc < 0)
        return rc;
    if (in.type == JJ_UNDEFINED)
        return jj_gen_new(c, out);
    if (in.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "items of %s", jj_type_name(in));
    rc = jj_method(c, out, in, "items", &none);
    out->type = JJ_GEN;
    return rc;
}

/* ---- lists ---- */

static fm_status f_list(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val v;
    fm_status rc = no_args(c, a, "list");

    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < v.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[i]);
    return rc;
}

static fm_status end_of(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool last)
{
    jj_val v;
    fm_status rc = no_args(c, a, last ? "last" : "first");

    if (rc == FM_OK && in.type == JJ_GEN) {
        jj_list *l = in.u.list;
        if (last)
            return jj_error(c, FM_EINVAL, "a generator is not reversible");
        *out = l->at < l->count ? l->v[l->at++] : jj_undefined("an item of an empty list");
        return FM_OK;
    }
    if (rc == FM_OK && last && in.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "reverse", in, in);
    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc < 0)
        return rc;
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

    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < v.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[v.u.list->count - 1 - i]);
    if (in.type != JJ_GEN) /* that has no length: a list is made of it first */
        out->type = JJ_GEN;
    if (rc < 0 || in.type != JJ_STRING)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX); /* counted as they were listed */
    for (size_t i = 0; i < out->u.list->count; i++)
        fm_buf_append(&b, out->u.list->v[i].u.s.p, out->u.list->v[i].u.s.n);
    return jj_buf_str(c, out, &b);
}

static fm_status f_join(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, sep = jj_arg(a, 0, "d"), attr = jj_arg(a, 1, "attribute");
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "join", NAMES("d", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (i > 0 && sep.type != JJ_UNDEFINED)
            rc = jj_to_text(c, &b, sep);
        if (rc == FM_OK && attr.type != JJ_UNDEFINED)
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
        if (rc == FM_OK)
            rc = jj_to_text(c, &b, v);
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
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

static fm_status f_map(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, attr = jj_arg(a, 99, "attribute"), dflt = jj_arg(a, 99, "default");
    int fn = -1;
    fm_status rc = jj_as_list(c, &list, in);

    if (attr.type == JJ_UNDEFINED) {
        if (a->count == 0 || a->pos[0].type != JJ_STRING)
            return jj_error(c, FM_EINVAL, "map needs attribute= or the name of a filter");
        fn = jj_filter_find(a->pos[0].u.s.p);
        if (fn < 0)
            return jj_error(c, FM_EUNSUPPORTED, "filter '%s' is not implemented", a->pos[0].u.s.p);
    } else if (a->count > 0 || a->kw_count > 1u + (dflt.type != JJ_UNDEFINED)) {
        return jj_error(c, FM_EINVAL, "map: unexpected arguments beside attribute=");
    }
    if (rc == FM_OK)
        rc = jj_gen_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_args rest = tail(a, fn < 0 ? 0 : 1);
        jj_val v;
        if (fn < 0) {
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
            if (rc == FM_OK && v.type == JJ_UNDEFINED && dflt.type != JJ_UNDEFINED)
                v = dflt;
        } else {
            rc = jj_filter_run(c, &v, fn, list.u.list->v[i], &rest);
        }
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, v);
    }
    return rc;
}

/* select, reject (by_attr false), selectattr, rejectattr */
static fm_status pick(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool by_attr, bool want)
{
    jj_val list;
    size_t at = by_attr ? 1 : 0;
    int fn = -1;
    fm_status rc = jj_as_list(c, &list, in);

    if (rc == FM_OK && a->count < at)
        return jj_error(c, FM_EINVAL, "select or reject: bad arguments");
    if (rc == FM_OK && a->count > at) {
        if (a->pos[at].type != JJ_STRING || (fn = jj_test_find(a->pos[at].u.s.p)) < 0)
            return jj_error(c, FM_EUNSUPPORTED, "select or reject: test is not implemented");
    }
    jj_args rest = tail(a, FM_MIN(at + 1, a->count));
    if (rc == FM_OK)
        rc = jj_gen_new(c, out);
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
    if (rc == FM_OK)
        rc = merge_sort(c, p + half, tmp, n - half, reverse);
    if (rc == FM_OK)
        rc = jj_work_by(c, n, JJ_ITEM);
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

static fm_status folded(jj_ctx *c, jj_val *io, bool fold)
{
    fm_buf b;

    if (!fold || io->type != JJ_STRING)
        return FM_OK;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = jj_lower(c, &b, *io);
    if (rc == FM_OK)
        return jj_buf_str(c, io, &b);
    fm_buf_release(&b);
    return rc;
}

/* The values at attributes "a,b" as a list. */
static fm_status many_keys(jj_ctx *c, jj_val *out, jj_val v, jj_val attr, bool fold)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i <= attr.u.s.n;) {
        const char *comma = memchr(attr.u.s.p + i, ',', attr.u.s.n - i);
        size_t n = comma ? (size_t)(comma - attr.u.s.p) - i : attr.u.s.n - i;
        jj_val one;
        rc = jj_attr_path(c, &one, v, jj_str(attr.u.s.p + i, n));
        if (rc == FM_OK)
            rc = folded(c, &one, fold);
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, one);
        i += n + 1;
    }
    return rc;
}

/* The keys that sort, unique, min, max, sum look at: items or one attribute of them, strings in
 * lower case where fold. */
static fm_status keys_of(jj_ctx *c, jj_val *out, jj_val list, jj_val attr, bool fold)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        rc = jj_work(c, attr.type == JJ_STRING ? attr.u.s.n : 0);
        if (rc < 0)
            break;
        if (attr.type == JJ_STRING && memchr(attr.u.s.p, ',', attr.u.s.n))
            rc = many_keys(c, &v, list.u.list->v[i], attr, fold);
        else if (attr.type != JJ_UNDEFINED && attr.type != JJ_NONE)
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
        if (rc == FM_OK)
            rc = folded(c, &v, fold);
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, v);
    }
    return rc;
}

static fm_status f_sort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    jj_val keys;
    fm_status rc = jj_args_check(c, a, "sort", NAMES("reverse", "case_sensitive", "attribute"), 3);

    if (rc == FM_OK)
        rc = f_list(c, out, in, &none);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, *out, jj_arg(a, 2, "attribute"),
                     !jj_truth(jj_arg(a, 1, "case_sensitive")));
    return rc < 0 ? rc : sort_by(c, out->u.list, keys.u.list, jj_truth(jj_arg(a, 0, "reverse")));
}

static fm_status f_dictsort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    jj_val keys, by = jj_arg(a, 1, "by");
    fm_status rc = jj_args_check(c, a, "dictsort", NAMES("case_sensitive", "by", "reverse"), 3);

    if (rc == FM_OK && in.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "dictsort of %s", jj_type_name(in));
    if (rc == FM_OK)
        rc = f_items(c, out, in, &none);
    out->type = JJ_LIST;
    bool value = by.type == JJ_STRING && strcmp(by.u.s.p, "value") == 0;
    if (rc == FM_OK && by.type != JJ_UNDEFINED && !value &&
        (by.type != JJ_STRING || strcmp(by.u.s.p, "key") != 0))
        return jj_error(c, FM_EINVAL, "dictsort: by must be 'key' or 'value'");
    if (rc == FM_OK)
        rc = keys_of(c, &keys, *out, jj_int(value ? 1 : 0),
                     !jj_truth(jj_arg(a, 0, "case_sensitive")));
    return rc < 0 ? rc : sort_by(c, out->u.list, keys.u.list, jj_truth(jj_arg(a, 2, "reverse")));
}

static fm_status f_unique(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, keys, seen;
    fm_status rc = jj_args_check(c, a, "unique", NAMES("case_sensitive", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 1, "attribute"),
                     !jj_truth(jj_arg(a, 0, "case_sensitive")));
    if (rc == FM_OK)
        rc = jj_dict_new(c, &seen);
    if (rc == FM_OK)
        rc = jj_gen_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        size_t before = seen.u.dict->count;
        rc = jj_dict_put(c, seen.u.dict, keys.u.list->v[i], jj_none());
        if (rc == FM_OK && seen.u.dict->count > before)
            rc = jj_list_push(c, out->u.list, list.u.list->v[i]);
    }
    return rc;
}

static fm_status extreme(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, int want)
{
    jj_val list, keys;
    size_t best = 0;
    fm_status rc = jj_args_check(c, a, "min or max", NAMES("case_sensitive", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 1, "attribute"),
                     !jj_truth(jj_arg(a, 0, "case_sensitive")));
    if (rc < 0)
        return rc;
    *out = jj_undefined("an item of an empty list");
    for (size_t i = 1; i < list.u.list->count; i++) {
        int order;
        rc = jj_compare(c, &order, keys.u.list->v[i], keys.u.list->v[best]);
        if (rc < 0)
            return rc;
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

static fm_status f_sum(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, keys, start = jj_arg(a, 1, "start");
    fm_status rc = jj_args_check(c, a, "sum", NAMES("attribute", "start"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 0, "attribute"), false);
    *out = start.type == JJ_UNDEFINED ? jj_int(0) : start;
    if (rc == FM_OK && out->type == JJ_STRING)
        return jj_error(c, FM_EINVAL, "sum of strings");
    for (size_t i = 0; rc == FM_OK && i < keys.u.list->count; i++)
        rc = jj_binary(c, out, JJ_ADD, *out, keys.u.list->v[i]);
    return rc;
}

static fm_status f_attr(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val name = jj_arg(a, 0, "name");
    fm_status rc = jj_args_check(c, a, "attr", NAMES("name"), 1);

    if (rc == FM_OK)
        rc = jj_need_str(c, name, "attr");
    *out = jj_undefined("an attribute");
    if (rc < 0 || in.type == JJ_DICT) /* attributes only: no keys of mappings */
        return rc;
    rc = jj_str_copy(c, &name, name.u.s.p, name.u.s.n);
    return rc < 0 || in.type == JJ_UNDEFINED ? rc : jj_get_attr(c, out, in, name.u.s.p);
}

/* Lists of `size` items each; the last one filled up where fill is given. */
static fm_status f_batch(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, part, size = jj_arg(a, 0, "linecount"), fill = jj_arg(a, 1, "fill_with");
    fm_status rc = jj_args_check(c, a, "batch", NAMES("linecount", "fill_with"), 2);

    if (rc == FM_OK && (size.type != JJ_INT || size.u.i < 1))
        return jj_error(c, FM_EUNSUPPORTED, "batch needs a number above 0");
    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = jj_gen_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        if ((int64_t)i % size.u.i == 0) {
            rc = jj_list_new(c, &part);
            if (rc == FM_OK)
                rc = jj_list_push(c, out->u.list, part);
        }
        if (rc == FM_OK)
            rc = jj_list_push(c, part.u.list, list.u.list->v[i]);
    }
    while (rc == FM_OK && out->u.list->count > 0 && fill.type != JJ_UNDEFINED &&
           fill.type != JJ_NONE && (int64_t)part.u.list->count < size.u.i)
        rc = jj_list_push(c, part.u.list, fill);
    return rc;
}

/* `slices` lists, the first ones longer by one. */
static fm_status f_slice(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, part, count = jj_arg(a, 0, "slices"), fill = jj_arg(a, 1, "fill_with");
    size_t at = 0;
    fm_status rc = jj_args_check(c, a, "slice", NAMES("slices", "fill_with"), 2);

    if (rc == FM_OK && (count.type != JJ_INT || count.u.i < 1 || count.u.i > JJ_RANGE_MAX))
        return jj_error(c, FM_EINVAL, "slice needs a number above 0");
    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = jj_gen_new(c, out);
    if (rc < 0)
        return rc;
    size_t n = (size_t)count.u.i, each = list.u.list->count / n, longer = list.u.list->count % n;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = jj_list_new(c, &part);
        for (size_t k = 0; rc == FM_OK && k < each + (i < longer); k++)
            rc = jj_list_push(c, part.u.list, list.u.list->v[at++]);
        if (rc == FM_OK && fill.type != JJ_UNDEFINED && fill.type != JJ_NONE && i >= longer)
            rc = jj_list_push(c, part.u.list, fill);
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, part);
    }
    return rc;
}

/* (key, items) tuples with the fields grouper and list, by ascending key. */
static fm_status f_groupby(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val keys, items, group = jj_none(), attr = jj_arg(a, 0, "attribute");
    jj_args none = {.count = 0};
    bool fold = !jj_truth(jj_arg(a, 2, "case_sensitive"));
    fm_status rc =
        jj_args_check(c, a, "groupby", NAMES("attribute", "default", "case_sensitive"), 3);

    if (rc == FM_OK && (attr.type == JJ_UNDEFINED || jj_arg(a, 1, "default").type != JJ_UNDEFINED))
        return jj_error(c, FM_EUNSUPPORTED,
                        "groupby needs an attribute; no default is implemented");
    if (rc == FM_OK)
        rc = f_list(c, &items, in, &none);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, items, attr, fold);
    if (rc == FM_OK)
        rc = sort_by(c, items.u.list, keys.u.list, false);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, items, attr, fold);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count; i++) {
        bool same = false;
        if (i > 0)
            rc = jj_equal(c, &same, keys.u.list->v[i - 1], keys.u.list->v[i]);
        if (rc == FM_OK && !same) {
            jj_val real, list;
            rc = jj_attr_path(c, &real, items.u.list->v[i], attr);
            if (rc == FM_OK)
                rc = jj_list_new(c, &group);
            if (rc == FM_OK)
                rc = jj_list_new(c, &list);
            if (rc == FM_OK)
                rc = jj_list_push(c, group.u.list, real);
            if (rc == FM_OK)
                rc = jj_list_push(c, group.u.list, list);
            if (rc < 0)
                return rc;
            group.type = JJ_TUPLE;
            group.u.list->label = "group";
            rc = jj_list_push(c, out->u.list, group);
        }
        if (rc == FM_OK)
            rc = jj_list_push(c, group.u.list->v[1].u.list, items.u.list->v[i]);
    }
    return rc;
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
                                    {"sum", f_sum},
                                    {"min", f_min},
                                    {"max", f_max},
                                    {"attr", f_attr},
                                    {"batch", f_batch},
                                    {"slice", f_slice},
                                    {"groupby", f_groupby}};

/* These, then those of text and numbers. */
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

/* ---- tests ---- */

enum {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_STRING,
    T_MAPPING,
    T_ITERABLE,
    T_SEQUENCE,
    T_NUMBER,
    T_INTEGER,
    T_FLOAT,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_CALLABLE,
    T_ESCAPED,
    T_LOWER,
    T_UPPER,
    T_FILTER,
    T_TEST,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_IN,
    T_SAMEAS,
    T_ODD,
    T_EVEN,
    T_DIVISIBLE
};

static const struct {
    const char *name;
    int test;
} tests[] = {{"defined", T_DEFINED},
             {"undefined", T_UNDEFINED},
             {"none", T_NONE},
             {"string", T_STRING},
             {"mapping", T_MAPPING},
             {"iterable", T_ITERABLE},
             {"sequence", T_SEQUENCE},
             {"number", T_NUMBER},
             {"integer", T_INTEGER},
             {"float", T_FLOAT},
             {"boolean", T_BOOLEAN},
             {"true", T_TRUE},
             {"false", T_FALSE},
             {"callable", T_CALLABLE},
             {"escaped", T_ESCAPED},
             {"lower", T_LOWER},
             {"upper", T_UPPER},
             {"filter", T_FILTER},
             {"test", T_TEST},
             {"sameas", T_SAMEAS},
             {"eq", T_EQ},
             {"equalto", T_EQ},
             {"==", T_EQ},
             {"ne", T_NE},
             {"!=", T_NE},
             {"lt", T_LT},
             {"lessthan", T_LT},
             {"<", T_LT},
             {"le", T_LE},
             {"<=", T_LE},
             {"gt", T_GT},
             {"greaterthan", T_GT},
             {">", T_GT},
             {"ge", T_GE},
             {">=", T_GE},
             {"in", T_IN},
             {"odd", T_ODD},
             {"even", T_EVEN},
             {"divisibleby", T_DIVISIBLE}};

int jj_test_find(const char *name)
{
    for (int i = 0; i < (int)FM_ARRAY_LEN(tests); i++)
        if (strcmp(tests[i].name, name) == 0)
            return i;
    return -1;
}

static bool type_test(int t, jj_val v)
{
    bool seq = v.type == JJ_STRING || jj_is_seq(v) || v.type == JJ_DICT || v.type == JJ_UNDEFINED;

    switch (t) {
    case T_DEFINED:
        return v.type != JJ_UNDEFINED;
    case T_UNDEFINED:
        return v.type == JJ_UNDEFINED;
    case T_NONE:
        return v.type == JJ_NONE;
    case T_STRING:
        return v.type == JJ_STRING;
    case T_MAPPING:
        return v.type == JJ_DICT;
    case T_ITERABLE:
        return seq || v.type == JJ_LOOP || v.type == JJ_VIEW || v.type == JJ_GEN;
    case T_SEQUENCE:
        return seq;
    case T_NUMBER:
        return jj_is_number(v);
    case T_INTEGER:
        return v.type == JJ_INT;
    case T_FLOAT:
        return v.type == JJ_FLOAT;
    case T_BOOLEAN:
        return v.type == JJ_BOOL;
    case T_TRUE:
        return v.type == JJ_BOOL && v.u.b;
    case T_FALSE:
        return v.type == JJ_BOOL && !v.u.b;
    case T_ESCAPED: /* nothing is marked up here */
        return false;
    case T_FILTER:
        return v.type == JJ_STRING && jj_filter_find(v.u.s.p) >= 0;
    case T_TEST:
        return v.type == JJ_STRING && jj_test_find(v.u.s.p) >= 0;
    default:
        return v.type == JJ_MACRO || v.type == JJ_BUILTIN || v.type == JJ_JOINER ||
               v.type == JJ_LOOP || v.type == JJ_UNDEFINED;
    }
}

static fm_status int_test(jj_ctx *c, bool *out, int t, jj_val v, jj_val by)
{
    jj_val rest, divisor = t == T_DIVISIBLE ? by : jj_int(2);
    fm_status rc = jj_is_number(v) ? FM_OK : jj_bad_operands(c, "divide", v, divisor);

    if (rc == FM_OK)
        rc = jj_binary(c, &rest, JJ_MOD, v, divisor);
    return rc < 0 ? rc : jj_equal(c, out, rest, jj_int(t == T_ODD));
}

static fm_status case_test(jj_ctx *c, bool *out, jj_val v, bool upper)
{
    fm_status rc = jj_as_text(c, &v, v);

    return rc < 0 ? rc : jj_all_case(c, out, v, upper);
}

/* Python's `is`: small values are one object each, other literals are not. */
static fm_status same(jj_ctx *c, bool *out, jj_val a, jj_val b)
{
    *out = false;
    if (a.type != b.type)
        return FM_OK;
    if (a.type == JJ_DICT || a.type == JJ_NAMESPACE)
        *out = a.u.dict == b.u.dict;
    else if (jj_is_seq(a) || a.type == JJ_VIEW || a.type == JJ_GEN)
        *out = a.u.list == b.u.list;
    else
        return jj_equal(c, out, a, b);
    return FM_OK;
}

static fm_status order_test(jj_ctx *c, bool *out, int t, jj_val v, jj_val other)
{
    int order;
    fm_status rc = jj_compare(c, &order, v, other);

    *out = t == T_LT ? order < 0 : t == T_LE ? order <= 0 : t == T_GT ? order > 0 : order >= 0;
    return rc;
}

fm_status jj_test_run(jj_ctx *c, bool *out, int fn, jj_val in, const jj_args *a)
{
    int t = tests[fn].test;
    size_t want = t >= T_EQ && t != T_ODD && t != T_EVEN ? 1 : 0;
    fm_status rc = jj_work(c, JJ_CALL);

    *out = false;
    if (rc == FM_OK && (a->count != want || a->kw_count > 0))
        return jj_error(c, FM_EINVAL, "test '%s' takes %zu arguments", tests[fn].name, want);
    if (rc < 0)
        return rc;
    if (t == T_LOWER || t == T_UPPER)
        return case_test(c, out, in, t == T_UPPER);
    if (t < T_EQ) {
        *out = type_test(t, in);
        return FM_OK;
    }
    jj_val other = jj_arg(a, 0, NULL);
    if (t == T_EQ || t == T_NE) {
        rc = jj_equal(c, out, in, other);
        *out = *out == (t == T_EQ);
        return rc;
    }
    if (t == T_SAMEAS)
        return same(c, out, in, other);
    if (t == T_IN)
        return jj_contains(c, out, in, other);
    if (t >= T_ODD)
        return int_test(c, out, t, in, other);
    return order_test(c, out, t, in, other);
}
