/* gguf_value.c - typed access to GGUF metadata. */
#include <string.h>

#include "store/formats/gguf.h"

static fm_status wrong(const fm_gguf *g, const char *key, const char *want)
{
    return fm_fail(FM_ECORRUPT, "%s: field '%s' must be %s", fm_gguf_what(g), key, want);
}

static bool is_int(fm_gguf_type t)
{
    return t <= FM_GGUF_I32 || t == FM_GGUF_U64 || t == FM_GGUF_I64;
}

/* One integer of the given type; U64 beyond the signed range comes out negative. */
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

fm_status fm_gguf_u64(const fm_gguf *g, const char *key, uint64_t *out, bool *found)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);
    int64_t v;

    *found = kv != NULL;
    if (!kv)
        return FM_OK;
    if (!is_int(kv->type))
        return wrong(g, key, "an integer");
    v = int_value(kv->type, kv->data.data);
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
