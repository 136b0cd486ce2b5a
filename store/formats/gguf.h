/* gguf.h - strict reader of GGUF version 2 and 3.
 *
 * Gives the metadata as typed, bounds-checked values and the tensors with shapes in row-major order
 * (GGUF writes dimensions fastest first). import/gguf_canon.h interprets the names. Tensors whose
 * values are not known here are given as bytes (FM_U8, one dimension): those of a big-endian file,
 * and of ggml types of later times, which reach to the next tensor. */
#ifndef FM_STORE_GGUF_H
#define FM_STORE_GGUF_H

#include "store/tensor.h"

FM_BEGIN_DECLS

#define FM_GGUF_MAX_KV 65536u
#define FM_GGUF_MAX_KEY_BYTES 65535u /* the format's own limit */
#define FM_GGUF_MAX_STRING_BYTES (64u << 20)
#define FM_GGUF_MAX_DIMS 4u
#define FM_GGUF_MAX_ALIGNMENT (1u << 20)
#define FM_GGUF_MAX_ARRAY_DEPTH 4u

typedef enum fm_gguf_type {
    FM_GGUF_U8,
    FM_GGUF_I8,
    FM_GGUF_U16,
    FM_GGUF_I16,
    FM_GGUF_U32,
    FM_GGUF_I32,
    FM_GGUF_F32,
    FM_GGUF_BOOL,
    FM_GGUF_STRING,
    FM_GGUF_ARRAY,
    FM_GGUF_U64,
    FM_GGUF_I64,
    FM_GGUF_F64,
    FM_GGUF_TYPE_COUNT
} fm_gguf_type;

typedef struct fm_gguf_kv {
    char *key; /* owned by the reader */
    fm_gguf_type type;
    fm_gguf_type elem; /* ARRAY */
    uint64_t count;    /* ARRAY: elements; 1 else */
    fm_span data;      /* the value's bytes, known to be whole; an array's without its head */
} fm_gguf_kv;

typedef struct fm_gguf_tensor {
    char *name; /* owned by the reader */
    fm_dtype dtype;
    fm_shape shape;
    uint64_t at; /* from the start of the file */
    uint64_t bytes;
} fm_gguf_tensor;

typedef struct fm_gguf fm_gguf;

/* Borrows the bytes, which must outlive *out. `what` names the file in errors. */
FM_CHECKED fm_status fm_gguf_parse(fm_gguf **out, fm_span file, const char *what);
void fm_gguf_close(fm_gguf *g);
const char *fm_gguf_what(const fm_gguf *g);
/* NULL, or why tensors are given as bytes: "it is big-endian", "tensor 'x' has ggml type 77". */
const char *fm_gguf_opaque(const fm_gguf *g);
size_t fm_gguf_kv_count(const fm_gguf *g);
const fm_gguf_kv *fm_gguf_kv_at(const fm_gguf *g, size_t i);
const fm_gguf_kv *fm_gguf_get(const fm_gguf *g, const char *key); /* NULL = absent */
size_t fm_gguf_count(const fm_gguf *g);
const fm_gguf_tensor *fm_gguf_at(const fm_gguf *g, size_t i); /* in the order of their bytes */
const fm_gguf_tensor *fm_gguf_find(const fm_gguf *g, const char *name);
fm_span fm_gguf_bytes(const fm_gguf *g, const fm_gguf_tensor *t);
/* The number by which ggml names the type; false: ggml has no such type. */
bool fm_gguf_ggml_type(uint32_t *out, fm_dtype dtype);

/* Values (of a little-endian file, but for u64). An absent key is FM_OK with *found false and *out
 * unchanged; a value of another type is FM_ECORRUPT, which names the key. u64 accepts any integer
 * type, but no negative value. */
FM_CHECKED fm_status fm_gguf_u64(const fm_gguf *g, const char *key, uint64_t *out, bool *found);
FM_CHECKED fm_status fm_gguf_f64(const fm_gguf *g, const char *key, double *out, bool *found);
FM_CHECKED fm_status fm_gguf_bool(const fm_gguf *g, const char *key, bool *out, bool *found);
FM_CHECKED fm_status fm_gguf_str(const fm_gguf *g, const char *key, fm_span *out, bool *found);

/* The next string of an array; *at begins as 0. fm_gguf_parse has checked the array. */
fm_span fm_gguf_next_string(const fm_gguf_kv *kv, size_t *at);
/* Element i of an array of integers, widened; i < count. */
int64_t fm_gguf_int_at(const fm_gguf_kv *kv, uint64_t i);

FM_END_DECLS
#endif
