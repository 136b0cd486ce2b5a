/* torch_kit.h - PyTorch checkpoints made in the test: a zip writer that bends, and pickles. */
#ifndef FM_TESTS_FORMAT_TORCH_KIT_H
#define FM_TESTS_FORMAT_TORCH_KIT_H

#include "tests/testkit.h"

#include <string.h>

/* ---- pickles ---- */

static inline void pk_text(fm_buf *b, const char *s)
{
    fm_buf_char(b, 'X');
    fm_buf_u32(b, (uint32_t)strlen(s));
    fm_buf_str(b, s);
}

static inline void pk_int(fm_buf *b, int64_t v)
{
    fm_buf_str(b, "\x8a\x08");
    fm_buf_u64(b, (uint64_t)v);
}

static inline void pk_tuple(fm_buf *b, const int64_t *v, size_t n)
{
    fm_buf_char(b, '(');
    for (size_t i = 0; i < n; i++)
        pk_int(b, v[i]);
    fm_buf_char(b, 't');
}

typedef struct pk_tensor {
    const char *storage, *key; /* NULL: FloatStorage, "0" */
    int64_t elems, offset;
    size_t rank, strides; /* strides 0: as rank */
    int64_t size[10], stride[10];
} pk_tensor;

static inline void pk_put_tensor(fm_buf *b, const pk_tensor *t)
{
    fm_buf_str(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    pk_text(b, "storage");
    fm_buf_printf(b, "ctorch\n%s\n", t->storage ? t->storage : "FloatStorage");
    pk_text(b, t->key ? t->key : "0");
    pk_text(b, "cpu");
    pk_int(b, t->elems);
    fm_buf_str(b, "tQ");
    pk_int(b, t->offset);
    pk_tuple(b, t->size, t->rank);
    pk_tuple(b, t->stride, t->strides ? t->strides : t->rank);
    fm_buf_str(b, "\x89"
                  "ccollections\nOrderedDict\n)RtR");
}

/* {"w": t} */
static inline void pk_one(fm_buf *b, const pk_tensor *t)
{
    fm_buf_str(b, "\x80\x02}");
    pk_text(b, "w");
    pk_put_tensor(b, t);
    fm_buf_str(b, "s.");
}

/* ---- zip ---- */

typedef struct zk_entry {
    const char *name;
    const void *data;
    size_t len;
    const char *local_name; /* NULL: the same */
    uint16_t method, flags;
    bool at_first;   /* its central record points at the first entry's header */
    bool descriptor; /* sizes only behind the bytes */
    bool bad_descriptor;
    uint32_t claim; /* size in the central record instead of len */
} zk_entry;

static inline void zk_build(fm_buf *out, const zk_entry *e, size_t n)
{
    size_t head[16], dir;
    fm_buf_clear(out);
    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++) {
        const char *name = e[i].local_name ? e[i].local_name : e[i].name;
        const uint16_t flags = (uint16_t)(e[i].flags | (e[i].descriptor ? 8 : 0));
        head[i] = out->len;
        fm_buf_str(out, "PK\3\4");
        fm_buf_u16(out, 0);
        fm_buf_u16(out, flags);
        fm_buf_u16(out, e[i].method);
        fm_buf_u32(out, 0);
        fm_buf_u32(out, 0); /* crc: none */
        fm_buf_u32(out, e[i].descriptor ? 0 : (uint32_t)e[i].len);
        fm_buf_u32(out, e[i].descriptor ? 0 : (uint32_t)e[i].len);
        fm_buf_u16(out, (uint16_t)strlen(name));
        fm_buf_u16(out, 0);
        fm_buf_str(out, name);
        if (e[i].len > 0)
            fm_buf_append(out, e[i].data, e[i].len);
        if (e[i].descriptor) {
            fm_buf_str(out, "PK\7\10");
            fm_buf_u32(out, 0);
            fm_buf_u32(out, (uint32_t)e[i].len + e[i].bad_descriptor);
            fm_buf_u32(out, (uint32_t)e[i].len);
        }
    }
    dir = out->len;
    for (size_t i = 0; i < n; i++) {
        const uint32_t len = e[i].claim ? e[i].claim : (uint32_t)e[i].len;
        fm_buf_str(out, "PK\1\2");
        fm_buf_u32(out, 0);
        fm_buf_u16(out, (uint16_t)(e[i].flags | (e[i].descriptor ? 8 : 0)));
        fm_buf_u16(out, e[i].method);
        fm_buf_u32(out, 0);
        fm_buf_u32(out, 0);
        fm_buf_u32(out, len);
        fm_buf_u32(out, len);
        fm_buf_u16(out, (uint16_t)strlen(e[i].name));
        fm_buf_u64(out, 0); /* extra, comment, disk, internal attributes */
        fm_buf_u32(out, 0);
        fm_buf_u32(out, (uint32_t)head[e[i].at_first ? 0 : i]);
        fm_buf_str(out, e[i].name);
    }
    const size_t end = out->len;
    fm_buf_str(out, "PK\5\6");
    fm_buf_u32(out, 0);
    fm_buf_u16(out, (uint16_t)n);
    fm_buf_u16(out, (uint16_t)n);
    fm_buf_u32(out, (uint32_t)(end - dir));
    fm_buf_u32(out, (uint32_t)dir);
    fm_buf_u16(out, 0);
    tk_ok(fm_buf_ok(out));
}

/* An archive of this pickle and one storage data/0 of 6 floats. */
static inline void zk_model(fm_buf *out, fm_span pickle)
{
    static const uint8_t storage[24] = {1, 2, 3, 4, 5, 6, 7, 8};
    const zk_entry e[] = {
        {.name = "m/data.pkl", .data = pickle.data, .len = pickle.len, .descriptor = true},
        {.name = "m/byteorder", .data = "little", .len = 6},
        {.name = "m/data/0", .data = storage, .len = sizeof storage},
        {.name = "m/version", .data = "3\n", .len = 2},
    };
    zk_build(out, e, FM_ARRAY_LEN(e));
}

#endif
