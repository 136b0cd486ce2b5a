/* safetensors.c - see safetensors.h. */
#include "store/formats/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/base/mem.h"

struct fm_st {
    fm_span file;
    char *what;
    uint64_t body;
    fm_st_tensor *tensor;
    size_t count;
    fm_map *by_name;
};

void fm_st_close(fm_st *st)
{
    if (!st)
        return;
    for (size_t i = 0; i < st->count; i++)
        fm_free(st->tensor[i].name);
    fm_free(st->tensor);
    fm_map_free(st->by_name);
    fm_free(st->what);
    fm_free(st);
}

size_t fm_st_count(const fm_st *st)
{
    return st->count;
}

const fm_st_tensor *fm_st_at(const fm_st *st, size_t i)
{
    fm_assert(i < st->count);
    return &st->tensor[i];
}

const fm_st_tensor *fm_st_find(const fm_st *st, const char *name)
{
    return fm_map_get(st->by_name, name, strlen(name));
}

fm_span fm_st_bytes(const fm_st *st, const fm_st_tensor *t)
{
    return fm_span_of(st->file.data + t->at, (size_t)t->bytes);
}

uint64_t fm_st_body(const fm_st *st)
{
    return st->body;
}

static fm_status bad(const fm_st *st, const char *name, const char *field, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: tensor '%.200s': field '%s' %s", st->what, name, field, why);
}

/* Reads a non-negative integer; anything else (a real, -1, true) gives false. */
static bool get_u64(const fm_json *v, uint64_t *out)
{
    int64_t i = fm_json_int(v, -1);

    if (!fm_json_is(v, FM_JSON_INT) || i < 0)
        return false;
    *out = (uint64_t)i;
    return true;
}

static fm_status parse_shape(const fm_st *st, fm_st_tensor *t, const fm_json *shape)
{
    if (!fm_json_is(shape, FM_JSON_ARRAY))
        return bad(st, t->name, "shape", "must be a list");
    if (fm_json_count(shape) > FM_MAX_RANK)
        return bad(st, t->name, "shape", "has more than 8 dimensions");
    t->shape.rank = (uint32_t)fm_json_count(shape);
    for (uint32_t i = 0; i < t->shape.rank; i++)
        if (!get_u64(fm_json_at(shape, i), &t->shape.dim[i]))
            return bad(st, t->name, "shape", "must hold integers from 0");
    return FM_OK;
}

static fm_status parse_offsets(const fm_st *st, fm_st_tensor *t, const fm_json *offsets)
{
    uint64_t begin = 0, end = 0, need = 0, body_bytes = st->file.len - st->body;

    if (!fm_json_is(offsets, FM_JSON_ARRAY) || fm_json_count(offsets) != 2 ||
        !get_u64(fm_json_at(offsets, 0), &begin) || !get_u64(fm_json_at(offsets, 1), &end))
        return bad(st, t->name, "data_offsets", "must be two integers from 0");
    if (begin > end || end > body_bytes)
        return fm_fail(FM_ECORRUPT,
                       "%s: tensor '%.200s': field 'data_offsets' [%" PRIu64 ", %" PRIu64
                       "] lies outside the file's %" PRIu64 " bytes of tensors",
                       st->what, t->name, begin, end, body_bytes);
    if (fm_tensor_bytes(&need, t->dtype, &t->shape, t->name) < 0)
        return fm_error_prefix(FM_ECORRUPT, "%s: field 'shape'", st->what);
    if (need != end - begin)
        return fm_fail(FM_ECORRUPT,
                       "%s: tensor '%.200s': shape and dtype need %" PRIu64
                       " bytes, field 'data_offsets' gives %" PRIu64,
                       st->what, t->name, need, end - begin);
    t->at = st->body + begin;
    t->bytes = need;
    return FM_OK;
}

static fm_status parse_tensor(const fm_st *st, fm_st_tensor *t, const char *name, const fm_json *v)
{
    size_t len = strlen(name);
    fm_span dtype = fm_json_str(fm_json_get(v, "dtype"));

    if (len == 0 || len > FM_MAX_NAME_BYTES)
        return fm_fail(len ? FM_ELIMIT : FM_ECORRUPT,
                       "%s: a tensor name of %zu bytes; 1 to %u are allowed", st->what, len,
                       FM_MAX_NAME_BYTES);
    t->name = fm_strdup(name);
    if (!t->name)
        return FM_ENOMEM;
    if (!fm_json_is(v, FM_JSON_OBJECT))
        return bad(st, name, "(whole)", "must be an object");
    if (!dtype.data)
        return bad(st, name, "dtype", "must be a string");
    t->dtype = fm_dtype_parse((const char *)dtype.data, dtype.len);
    if (t->dtype == FM_DTYPE_NONE || fm_dtype_get(t->dtype)->is_block)
        return fm_fail(FM_EUNSUPPORTED, "%s: tensor '%.200s': dtype '%.40s' is not supported",
                       st->what, name, (const char *)dtype.data);
    FM_TRY(parse_shape(st, t, fm_json_get(v, "shape")));

    return parse_offsets(st, t, fm_json_get(v, "data_offsets"));
}

static int by_place(const void *a, const void *b)
{
    const fm_st_tensor *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->bytes != y->bytes) /* empty tensors first: they tile with the next one */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Refuses bytes of no tensor, which could hide anything, or of two, which would change together. */
static fm_status check_tiling(const fm_st *st)
{
    uint64_t at = st->body;

    for (size_t i = 0; i < st->count; i++) {
        const fm_st_tensor *t = &st->tensor[i];
        if (t->at != at)
            return bad(st, t->name, "data_offsets",
                       t->at < at ? "overlaps another tensor" : "leaves a hole before it");
        at += t->bytes;
    }
    if (at != st->file.len)
        return fm_fail(FM_ECORRUPT, "%s: %" PRIu64 " bytes follow the last tensor", st->what,
                       st->file.len - at);
    return FM_OK;
}

static fm_status check_metadata(const fm_st *st, const fm_json *meta)
{
    if (fm_json_is(meta, FM_JSON_NULL))
        return FM_OK;
    if (!fm_json_is(meta, FM_JSON_OBJECT))
        return fm_fail(FM_ECORRUPT, "%s: field '__metadata__' must be an object", st->what);
    for (void *it = fm_json_iter(meta); it; it = fm_json_next(meta, it))
        if (!fm_json_is(fm_json_iter_value(it), FM_JSON_STRING))
            return fm_fail(FM_ECORRUPT, "%s: field '__metadata__.%.100s' must be a string",
                           st->what, fm_json_iter_key(it));
    return FM_OK;
}

static fm_status parse_all(fm_st *st, const fm_json *root)
{
    size_t n = fm_json_count(root);
    fm_status rc = FM_OK;

    if (n > FM_MAX_TENSORS + 1)
        return fm_fail(FM_ELIMIT, "%s: more than %u tensors", st->what, FM_MAX_TENSORS);
    st->tensor = fm_calloc(n + 1, sizeof *st->tensor);
    if (!st->tensor)
        return FM_ENOMEM;
    for (void *it = fm_json_iter(root); it && rc == FM_OK; it = fm_json_next(root, it)) {
        const char *name = fm_json_iter_key(it);
        rc = fm_go_on();
        if (rc < 0)
            return rc;
        if (strcmp(name, "__metadata__") == 0) {
            rc = check_metadata(st, fm_json_iter_value(it));
            continue;
        }
        rc = parse_tensor(st, &st->tensor[st->count++], name, fm_json_iter_value(it));
    }
    if (rc < 0)
        return rc;
    qsort(st->tensor, st->count, sizeof *st->tensor, by_place);
    rc = check_tiling(st);
    FM_THEN(rc, fm_map_new(&st->by_name));
    for (size_t i = 0; i < st->count && rc == FM_OK; i++)
        rc = fm_map_put(st->by_name, st->tensor[i].name, strlen(st->tensor[i].name), &st->tensor[i],
                        NULL);
    return rc;
}

static fm_status check_lengths(fm_st *st)
{
    uint64_t header;

    if (st->file.len < 8)
        return fm_fail(FM_ECORRUPT, "%s: %zu bytes are too few for a safetensors file", st->what,
                       st->file.len);
    header = fm_get_u64(st->file.data);
    if (header > FM_ST_MAX_HEADER_BYTES)
        return fm_fail(FM_ECORRUPT, "%s: header length %" PRIu64 " is beyond the limit of %u",
                       st->what, header, FM_ST_MAX_HEADER_BYTES);
    if (header > st->file.len - 8)
        return fm_fail(FM_ECORRUPT,
                       "%s: header length %" PRIu64 " reaches past the end of the file (%zu bytes)",
                       st->what, header, st->file.len);
    if (header == 0 || st->file.data[8] != '{')
        return fm_fail(FM_ECORRUPT, "%s: the header is no JSON object; is this a safetensors file?",
                       st->what);
    st->body = 8 + header;
    return FM_OK;
}

fm_status fm_st_parse(fm_st **out, fm_span file, const char *what)
{
    fm_json *root = NULL;
    fm_st *st = fm_calloc(1, sizeof *st);
    fm_status rc = st ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (!st)
        return rc;
    st->file = file;
    st->what = fm_strdup(what);
    rc = st->what ? check_lengths(st) : FM_ENOMEM;
    if (rc < 0)
        goto fail;
    rc = fm_json_parse(&root, fm_span_of(file.data + 8, (size_t)st->body - 8), what);
    if (rc < 0)
        rc = rc == FM_ENOMEM || rc == FM_ECANCELLED
                 ? rc
                 : fm_error_prefix(FM_ECORRUPT, "safetensors header");
    if (rc == FM_OK && !fm_json_is(root, FM_JSON_OBJECT))
        rc = fm_fail(FM_ECORRUPT, "%s: the header is no JSON object", what);
    FM_THEN(rc, parse_all(st, root));
    if (rc < 0)
        goto fail;
    fm_json_free(root);
    *out = st;
    return FM_OK;
fail:
    fm_json_free(root);
    fm_st_close(st);
    return rc;
}

/* ---- writer ---- */

/* The format's own order of dtypes; a body sorted by it, descending, keeps every tensor aligned. */
static int dtype_rank(fm_dtype dtype)
{
    static const uint8_t rank[FM_DTYPE_COUNT] = {
        [FM_BOOL] = 1, [FM_U8] = 2,   [FM_I8] = 3,   [FM_F8_E5M2] = 4, [FM_F8_E4M3] = 5,
        [FM_I16] = 6,  [FM_U16] = 7,  [FM_F16] = 8,  [FM_BF16] = 9,    [FM_I32] = 10,
        [FM_U32] = 11, [FM_F32] = 12, [FM_F64] = 13, [FM_I64] = 14,    [FM_U64] = 15,
    };
    return rank[dtype];
}

static int by_alignment(const void *a, const void *b)
{
    const fm_st_item *x = a, *y = b;

    if (dtype_rank(x->dtype) != dtype_rank(y->dtype))
        return dtype_rank(y->dtype) - dtype_rank(x->dtype);
    return strcmp(x->name, y->name);
}

static fm_status push_int(fm_json *array, uint64_t v)
{
    return fm_json_push(array, fm_json_new_int((int64_t)v));
}

static fm_status add_item(fm_json *root, const fm_st_item *item, uint64_t *at)
{
    fm_json *o = fm_json_new_object(), *shape = fm_json_new_array(), *place = fm_json_new_array();
    uint64_t bytes = 0;
    fm_status rc = o && shape && place ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_tensor_bytes(&bytes, item->dtype, &item->shape, item->name));
    for (uint32_t i = 0; rc == FM_OK && i < item->shape.rank; i++)
        rc = push_int(shape, item->shape.dim[i]);
    FM_THEN(rc, push_int(place, *at));
    if (rc == FM_OK && fm_add_overflow(at, *at, bytes))
        rc = fm_fail(FM_ELIMIT, "tensor '%s': the file would be too large", item->name);
    FM_THEN(rc, push_int(place, *at));
    FM_THEN(rc, fm_json_set(o, "dtype", fm_json_new_str(fm_dtype_get(item->dtype)->name)));
    FM_THEN(rc, fm_json_set(o, "shape", fm_json_ref(shape)));
    FM_THEN(rc, fm_json_set(o, "data_offsets", fm_json_ref(place)));
    FM_THEN(rc, fm_json_set(root, item->name, fm_json_ref(o)));
    fm_json_free(o);
    fm_json_free(shape);
    fm_json_free(place);
    return rc;
}

static fm_status header_json(fm_json **out, const fm_st_item *items, size_t count)
{
    fm_json *root = fm_json_new_object(), *meta = fm_json_new_object();
    uint64_t at = 0;
    fm_status rc = root && meta ? FM_OK : FM_ENOMEM;

    *out = NULL;
    FM_THEN(rc, fm_json_set(meta, "format", fm_json_new_str("pt")));
    FM_THEN(rc, fm_json_set(root, "__metadata__", fm_json_ref(meta)));
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        if (dtype_rank(items[i].dtype) == 0)
            rc = fm_fail(FM_EUNSUPPORTED, "tensor '%s': safetensors cannot hold %s", items[i].name,
                         fm_dtype_get(items[i].dtype)->name);
        else
            rc = add_item(root, &items[i], &at);
    }
    if (rc == FM_OK && fm_json_count(root) != count + 1)
        rc = fm_fail(FM_EINVAL, "two tensors have one name, or one is called __metadata__");
    fm_json_free(meta);
    if (rc < 0) {
        fm_json_free(root);
        return rc;
    }
    *out = root;
    return FM_OK;
}

fm_status fm_st_header(fm_buf *out, fm_st_item *items, size_t count)
{
    fm_json *root = NULL;
    size_t start = out->len;
    fm_status rc;

    if (count > 0)
        qsort(items, count, sizeof *items, by_alignment);
    FM_TRY(header_json(&root, items, count));
    fm_buf_u64(out, 0);
    rc = fm_json_write(out, root, FM_JSON_COMPACT);
    fm_json_free(root);
    if (rc < 0)
        return rc;
    while ((out->len - start) % 8 != 0 && out->failed == FM_OK)
        fm_buf_char(out, ' ');
    FM_TRY(fm_buf_ok(out));
    if (out->len - start - 8 > FM_ST_MAX_HEADER_BYTES)
        return fm_fail(FM_ELIMIT, "a safetensors header beyond %u bytes", FM_ST_MAX_HEADER_BYTES);
    fm_put_u64(out->data + start, out->len - start - 8);
    return FM_OK;
}
