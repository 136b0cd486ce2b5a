/* gguf.c - see gguf.h. Every count is checked against the bytes that are left before it is used, so
 * that a small file cannot cause a large allocation. */
#include "store/formats/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/base/mem.h"

struct fm_gguf {
    fm_span file;
    char *what;
    fm_gguf_kv *kv;
    size_t kv_count;
    fm_map *by_key;
    fm_gguf_tensor *tensor;
    size_t count;
    fm_map *by_name;
    uint64_t alignment;
    bool big;         /* big-endian */
    char opaque[600]; /* fm_gguf_opaque; empty: NULL */
};

static const uint8_t TYPE_BYTES[FM_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

void fm_gguf_close(fm_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->kv_count; i++)
        fm_free(g->kv[i].key);
    for (size_t i = 0; i < g->count; i++)
        fm_free(g->tensor[i].name);
    fm_free(g->kv);
    fm_free(g->tensor);
    fm_map_free(g->by_key);
    fm_map_free(g->by_name);
    fm_free(g->what);
    fm_free(g);
}

const char *fm_gguf_what(const fm_gguf *g)
{
    return g->what;
}

const char *fm_gguf_opaque(const fm_gguf *g)
{
    return g->opaque[0] ? g->opaque : NULL;
}

size_t fm_gguf_kv_count(const fm_gguf *g)
{
    return g->kv_count;
}

const fm_gguf_kv *fm_gguf_kv_at(const fm_gguf *g, size_t i)
{
    fm_assert(i < g->kv_count);
    return &g->kv[i];
}

const fm_gguf_kv *fm_gguf_get(const fm_gguf *g, const char *key)
{
    return fm_map_get(g->by_key, key, strlen(key));
}

size_t fm_gguf_count(const fm_gguf *g)
{
    return g->count;
}

const fm_gguf_tensor *fm_gguf_at(const fm_gguf *g, size_t i)
{
    fm_assert(i < g->count);
    return &g->tensor[i];
}

const fm_gguf_tensor *fm_gguf_find(const fm_gguf *g, const char *name)
{
    return fm_map_get(g->by_name, name, strlen(name));
}

fm_span fm_gguf_bytes(const fm_gguf *g, const fm_gguf_tensor *t)
{
    return fm_span_of(g->file.data + t->at, (size_t)t->bytes);
}

/* Numbers of the structure, in the file's order of bytes. */
static uint32_t read_u32(const fm_gguf *g, fm_cursor *c)
{
    const uint32_t v = fm_cursor_u32(c);

    return g->big ? __builtin_bswap32(v) : v;
}

static uint64_t read_u64(const fm_gguf *g, fm_cursor *c)
{
    const uint64_t v = fm_cursor_u64(c);

    return g->big ? __builtin_bswap64(v) : v;
}

/* ---- values of metadata ---- */

static fm_status wrong(const fm_gguf *g, const char *key, const char *want)
{
    return fm_fail(FM_ECORRUPT, "%s: field '%s' must be %s", fm_gguf_what(g), key, want);
}

static bool is_int(fm_gguf_type t)
{
    return t <= FM_GGUF_I32 || t == FM_GGUF_U64 || t == FM_GGUF_I64;
}

/* One integer of the given type; a U64 beyond the signed range becomes negative. */
static int64_t int_value(fm_gguf_type type, const uint8_t *p)
{
    if (type == FM_GGUF_U8 || type == FM_GGUF_BOOL)
        return p[0];
    if (type == FM_GGUF_I8)
        return (int8_t)p[0];
    if (type == FM_GGUF_U16)
        return fm_get_u16(p);
    if (type == FM_GGUF_I16)
        return (int16_t)fm_get_u16(p);
    if (type == FM_GGUF_U32)
        return fm_get_u32(p);
    if (type == FM_GGUF_I32)
        return (int32_t)fm_get_u32(p);
    return (int64_t)fm_get_u64(p);
}

/* The integer of a value, in the file's order of bytes. */
static int64_t int_of(const fm_gguf *g, const fm_gguf_kv *kv)
{
    uint8_t turned[8];
    const size_t n = TYPE_BYTES[kv->type];

    for (size_t i = 0; i < n; i++)
        turned[i] = kv->data.data[g->big ? n - 1 - i : i];
    return int_value(kv->type, turned);
}

fm_status fm_gguf_u64(const fm_gguf *g, const char *key, uint64_t *out, bool *found)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);
    int64_t v;

    *found = kv != NULL;
    if (!kv)
        return FM_OK;
    if (!is_int(kv->type))
        return wrong(g, key, "an integer");
    v = int_of(g, kv);
    if (v < 0)
        return wrong(g, key, "an integer from 0 to 2^63 - 1");
    *out = (uint64_t)v;
    return FM_OK;
}

fm_status fm_gguf_f64(const fm_gguf *g, const char *key, double *out, bool *found)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);
    float f;

    *found = kv != NULL;
    if (!kv)
        return FM_OK;
    if (kv->type == FM_GGUF_F32) {
        memcpy(&f, kv->data.data, sizeof f);
        *out = (double)f;
    } else if (kv->type == FM_GGUF_F64) {
        memcpy(out, kv->data.data, sizeof *out);
    } else {
        return wrong(g, key, "a float");
    }
    if (!(*out >= -1e30 && *out <= 1e30))
        return wrong(g, key, "a finite number");
    return FM_OK;
}

fm_status fm_gguf_bool(const fm_gguf *g, const char *key, bool *out, bool *found)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);

    *found = kv != NULL;
    if (!kv)
        return FM_OK;
    if (kv->type != FM_GGUF_BOOL || kv->data.data[0] > 1)
        return wrong(g, key, "true or false");
    *out = kv->data.data[0] == 1;
    return FM_OK;
}

fm_status fm_gguf_str(const fm_gguf *g, const char *key, fm_span *out, bool *found)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);

    *found = kv != NULL;
    if (!kv)
        return FM_OK;
    if (kv->type != FM_GGUF_STRING)
        return wrong(g, key, "a text");
    *out = fm_span_of(kv->data.data + 8, kv->data.len - 8);
    return FM_OK;
}

fm_span fm_gguf_next_string(const fm_gguf_kv *kv, size_t *at)
{
    fm_span s;

    fm_assert(kv->elem == FM_GGUF_STRING && *at + 8 <= kv->data.len);
    s = fm_span_of(kv->data.data + *at + 8, (size_t)fm_get_u64(kv->data.data + *at));
    fm_assert(s.len <= kv->data.len - *at - 8);
    *at += 8 + s.len;
    return s;
}

int64_t fm_gguf_int_at(const fm_gguf_kv *kv, uint64_t i)
{
    uint64_t width = kv->count > 0 ? kv->data.len / kv->count : 0;

    fm_assert(i < kv->count && is_int(kv->elem));
    return int_value(kv->elem, kv->data.data + i * width);
}

/* ---- metadata ---- */

static fm_status read_string(const fm_gguf *g, fm_cursor *c, uint64_t limit, const char *field,
                             fm_span *out)
{
    uint64_t len = read_u64(g, c);

    if (!c->failed && len > limit)
        return fm_fail(FM_ECORRUPT, "%s: %s: a text of %" PRIu64 " bytes, the limit is %" PRIu64,
                       g->what, field, len, limit);
    *out = fm_cursor_bytes(c, len);
    return fm_cursor_ok(c, g->what, field);
}

/* Reads a key or name as a C string; NUL is refused, since two names could then look equal. */
static fm_status read_name(const fm_gguf *g, fm_cursor *c, uint64_t limit, const char *field,
                           char **out)
{
    fm_span s;
    FM_TRY(read_string(g, c, limit, field, &s));
    if (s.len == 0 || memchr(s.data, 0, s.len))
        return fm_fail(FM_ECORRUPT, "%s: %s is empty or holds a NUL byte", g->what, field);
    *out = fm_strndup((const char *)s.data, s.len);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status read_type(const fm_gguf *g, fm_cursor *c, const char *key, fm_gguf_type *out)
{
    uint32_t type = read_u32(g, c);

    if (type >= FM_GGUF_TYPE_COUNT)
        return fm_fail(FM_ECORRUPT, "%s: field '%.200s' has unknown value type %" PRIu32, g->what,
                       key, type);
    *out = (fm_gguf_type)type;
    return fm_cursor_ok(c, g->what, key);
}

static fm_status skip_array(const fm_gguf *g, fm_cursor *c, const char *key, unsigned depth,
                            fm_gguf_type *elem, uint64_t *count);

static fm_status skip_value(const fm_gguf *g, fm_cursor *c, const char *key, fm_gguf_type type,
                            unsigned depth)
{
    fm_span s;
    fm_gguf_type elem;
    uint64_t count;

    if (type == FM_GGUF_STRING)
        return read_string(g, c, FM_GGUF_MAX_STRING_BYTES, key, &s);
    if (type == FM_GGUF_ARRAY)
        return skip_array(g, c, key, depth + 1, &elem, &count);
    fm_cursor_skip(c, TYPE_BYTES[type]);
    return fm_cursor_ok(c, g->what, key);
}

static fm_status skip_array(const fm_gguf *g, fm_cursor *c, const char *key, unsigned depth,
                            fm_gguf_type *elem, uint64_t *count)
{
    uint64_t bytes = 0;
    FM_TRY(read_type(g, c, key, elem));
    if (depth > FM_GGUF_MAX_ARRAY_DEPTH)
        return fm_fail(FM_ECORRUPT, "%s: field '%.200s' nests arrays too deeply", g->what, key);
    *count = read_u64(g, c);
    if (TYPE_BYTES[*elem] > 0) {
        if (fm_mul_overflow(&bytes, *count, TYPE_BYTES[*elem]))
            return fm_fail(FM_ECORRUPT, "%s: field '%.200s' claims %" PRIu64 " elements", g->what,
                           key, *count);
        fm_cursor_skip(c, bytes);
        return fm_cursor_ok(c, g->what, key);
    }
    for (uint64_t i = 0; i < *count; i++) {
        FM_TRY(fm_go_on());
        FM_TRY(skip_value(g, c, key, *elem, depth));
    }
    return FM_OK;
}

static fm_status read_kv(fm_gguf *g, fm_cursor *c)
{
    fm_gguf_kv *kv = &g->kv[g->kv_count];
    size_t start;
    void *old = NULL;
    FM_TRY(read_name(g, c, FM_GGUF_MAX_KEY_BYTES, "a metadata key", &kv->key));
    g->kv_count++;
    FM_TRY(read_type(g, c, kv->key, &kv->type));
    start = c->pos;
    kv->count = 1;
    if (kv->type == FM_GGUF_ARRAY) {
        FM_TRY(skip_array(g, c, kv->key, 1, &kv->elem, &kv->count));
        start += 12; /* u32 element type, u64 count */
    } else {
        FM_TRY(skip_value(g, c, kv->key, kv->type, 0));
    }

    kv->data = fm_span_of(g->file.data + start, c->pos - start);
    FM_TRY(fm_map_put(g->by_key, kv->key, strlen(kv->key), kv, &old));
    if (old)
        return fm_fail(FM_ECORRUPT, "%s: field '%.200s' is there twice", g->what, kv->key);
    return FM_OK;
}

/* ---- tensors ---- */

static const struct {
    uint32_t type;
    fm_dtype dtype;
} GGML_TYPES[] = {
    {0, FM_F32},      {1, FM_F16},    {2, FM_Q4_0},    {3, FM_Q4_1},     {6, FM_Q5_0},
    {7, FM_Q5_1},     {8, FM_Q8_0},   {10, FM_Q2_K},   {11, FM_Q3_K},    {12, FM_Q4_K},
    {13, FM_Q5_K},    {14, FM_Q6_K},  {15, FM_Q8_K},   {16, FM_IQ2_XXS}, {17, FM_IQ2_XS},
    {18, FM_IQ3_XXS}, {19, FM_IQ1_S}, {20, FM_IQ4_NL}, {21, FM_IQ3_S},   {22, FM_IQ2_S},
    {23, FM_IQ4_XS},  {24, FM_I8},    {25, FM_I16},    {26, FM_I32},     {27, FM_I64},
    {28, FM_F64},     {29, FM_IQ1_M}, {30, FM_BF16},   {34, FM_TQ1_0},   {35, FM_TQ2_0},
    {39, FM_MXFP4},   {40, FM_NVFP4}, {41, FM_Q1_0},   {42, FM_Q2_0}};

static fm_dtype dtype_of_ggml(uint32_t type)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(GGML_TYPES); i++)
        if (GGML_TYPES[i].type == type)
            return GGML_TYPES[i].dtype;
    return FM_DTYPE_NONE;
}

bool fm_gguf_ggml_type(uint32_t *out, fm_dtype dtype)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(GGML_TYPES); i++)
        if (GGML_TYPES[i].dtype == dtype) {
            *out = GGML_TYPES[i].type;
            return true;
        }
    return false;
}

static fm_status read_shape(const fm_gguf *g, fm_cursor *c, fm_gguf_tensor *t)
{
    uint32_t dims = read_u32(g, c);

    if (dims > FM_GGUF_MAX_DIMS)
        return fm_fail(FM_ECORRUPT, "%s: tensor '%s': %" PRIu32 " dimensions, the limit is %u",
                       g->what, t->name, dims, FM_GGUF_MAX_DIMS);
    t->shape.rank = dims;
    for (uint32_t i = 0; i < dims; i++)
        t->shape.dim[dims - 1 - i] = read_u64(g, c);
    return fm_cursor_ok(c, g->what, t->name);
}

static fm_status read_tensor(fm_gguf *g, fm_cursor *c)
{
    fm_gguf_tensor *t = &g->tensor[g->count];
    void *old = NULL;
    uint32_t type;
    FM_TRY(read_name(g, c, FM_MAX_NAME_BYTES, "a tensor name", &t->name));
    g->count++;
    FM_TRY(read_shape(g, c, t));
    type = read_u32(g, c);
    t->at = read_u64(g, c); /* from the data section's start, which is not known yet */
    FM_TRY(fm_cursor_ok(c, g->what, t->name));
    t->dtype = dtype_of_ggml(type);
    if (t->dtype == FM_DTYPE_NONE) {
        if (!g->opaque[0])
            snprintf(g->opaque, sizeof g->opaque, "tensor '%s' has ggml type %" PRIu32, t->name,
                     type);
    } else if (fm_tensor_bytes(&t->bytes, t->dtype, &t->shape, t->name) < 0) {
        return fm_error_prefix(FM_ECORRUPT, "%s", g->what);
    }
    FM_TRY(fm_map_put(g->by_name, t->name, strlen(t->name), t, &old));
    if (old)
        return fm_fail(FM_ECORRUPT, "%s: tensor '%s' is there twice", g->what, t->name);
    return FM_OK;
}

static int by_place(const void *a, const void *b)
{
    const fm_gguf_tensor *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Tensor i of the sorted ones, whose values are not known, becomes its bytes. */
static void as_bytes(fm_gguf *g, size_t i)
{
    fm_gguf_tensor *t = &g->tensor[i];

    if (t->dtype == FM_DTYPE_NONE)
        t->bytes = (i + 1 < g->count ? g->tensor[i + 1].at : g->file.len) - t->at;
    t->dtype = FM_U8;
    t->shape = (fm_shape){.rank = 1, .dim = {t->bytes}};
}

static fm_status place_tensors(fm_gguf *g, uint64_t data)
{
    uint64_t end = data;

    for (size_t i = 0; i < g->count; i++) {
        fm_gguf_tensor *t = &g->tensor[i];
        if (t->at % g->alignment != 0)
            return fm_fail(FM_ECORRUPT,
                           "%s: tensor '%s': offset %" PRIu64
                           " is no multiple of the alignment %" PRIu64,
                           g->what, t->name, t->at, g->alignment);
        if (fm_add_overflow(&t->at, t->at, data) || t->at > g->file.len ||
            t->bytes > g->file.len - t->at)
            return fm_fail(FM_ECORRUPT,
                           "%s: tensor '%s' lies outside the file (%zu bytes); is it "
                           "truncated?",
                           g->what, t->name, g->file.len);
    }
    if (g->count > 0)
        qsort(g->tensor, g->count, sizeof *g->tensor, by_place);
    for (size_t i = 0; i < g->count; i++)
        if (g->big || g->tensor[i].dtype == FM_DTYPE_NONE)
            as_bytes(g, i);
    for (size_t i = 0; i < g->count; i++) {
        const fm_gguf_tensor *t = &g->tensor[i];
        if (t->at < end)
            return fm_fail(FM_ECORRUPT, "%s: tensor '%s' overlaps another", g->what, t->name);
        end = t->at + t->bytes;
    }
    for (size_t i = 0; i < g->count; i++) /* indexed after the sort, which moved them */
        FM_TRY(fm_map_put(g->by_name, g->tensor[i].name, strlen(g->tensor[i].name), &g->tensor[i],
                          NULL));
    return FM_OK;
}

static fm_status read_alignment(fm_gguf *g)
{
    bool found = false;

    g->alignment = 32;
    FM_TRY(fm_gguf_u64(g, "general.alignment", &g->alignment, &found));
    if (g->alignment == 0 || g->alignment > FM_GGUF_MAX_ALIGNMENT ||
        (g->alignment & (g->alignment - 1)) != 0)
        return fm_fail(FM_ECORRUPT,
                       "%s: field 'general.alignment' is %" PRIu64
                       ", must be a power of two up to %u",
                       g->what, g->alignment, FM_GGUF_MAX_ALIGNMENT);
    return FM_OK;
}

/* The smallest metadata pair has 13 bytes, the smallest tensor record 25. */
static fm_status check_counts(const fm_gguf *g, const fm_cursor *c, uint64_t tensors, uint64_t kvs)
{
    if (kvs > FM_GGUF_MAX_KV || kvs > fm_cursor_left(c) / 13)
        return fm_fail(FM_ECORRUPT, "%s: claims %" PRIu64 " metadata fields", g->what, kvs);
    if (tensors > FM_MAX_TENSORS || tensors > fm_cursor_left(c) / 25)
        return fm_fail(FM_ECORRUPT, "%s: claims %" PRIu64 " tensors", g->what, tensors);
    return FM_OK;
}

static fm_status check_version(const fm_gguf *g, uint32_t version)
{
    if (version == 2 || version == 3)
        return FM_OK;
    if (version == 1)
        return fm_fail(FM_EUNSUPPORTED, "%s: GGUF version 1 is not supported; convert it", g->what);
    return fm_fail(FM_EUNSUPPORTED, "%s: GGUF version %" PRIu32 " is not supported", g->what,
                   version);
}

static fm_status parse_all(fm_gguf *g)
{
    fm_cursor c;
    fm_span magic;
    uint32_t version;
    uint64_t tensors, kvs, data = 0;

    fm_cursor_init(&c, g->file);
    magic = fm_cursor_bytes(&c, 4);
    version = fm_cursor_u32(&c);
    g->big = version == 0x02000000u || version == 0x03000000u;
    if (g->big) {
        version >>= 24;
        snprintf(g->opaque, sizeof g->opaque, "it is big-endian");
    }
    if (c.failed || memcmp(magic.data, "GGUF", 4) != 0)
        return fm_fail(FM_ECORRUPT, "%s: does not begin with \"GGUF\" and a version", g->what);
    FM_TRY(check_version(g, version));
    tensors = read_u64(g, &c);
    kvs = read_u64(g, &c);
    FM_TRY(fm_cursor_ok(&c, g->what, "the header"));
    FM_TRY(check_counts(g, &c, tensors, kvs));
    g->kv = fm_calloc((size_t)kvs + 1, sizeof *g->kv);
    g->tensor = fm_calloc((size_t)tensors + 1, sizeof *g->tensor);
    if (!g->kv || !g->tensor)
        return FM_ENOMEM;
    for (uint64_t i = 0; i < kvs; i++)
        FM_TRY(read_kv(g, &c));
    FM_TRY(read_alignment(g));
    for (uint64_t i = 0; i < tensors; i++)
        FM_TRY(read_tensor(g, &c));
    if (fm_align_overflow(&data, c.pos, g->alignment))
        return fm_fail(FM_ECORRUPT, "%s: the data section has no place", g->what);
    return place_tensors(g, data);
}

fm_status fm_gguf_parse(fm_gguf **out, fm_span file, const char *what)
{
    fm_gguf *g = fm_calloc(1, sizeof *g);
    fm_status rc = g ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (!g)
        return rc;
    g->file = file;
    g->what = fm_strdup(what);
    rc = g->what ? fm_map_new(&g->by_key) : FM_ENOMEM;
    FM_THEN(rc, fm_map_new(&g->by_name));
    FM_THEN(rc, parse_all(g));
    if (rc < 0) {
        fm_gguf_close(g);
        return rc;
    }
    *out = g;
    return FM_OK;
}
