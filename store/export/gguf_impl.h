/* gguf_impl.h - shared by the parts that write a GGUF: its fields and its tensors. */
#ifndef FM_STORE_EXPORT_GGUF_IMPL_H
#define FM_STORE_EXPORT_GGUF_IMPL_H

#include "store/export/export_impl.h"
#include "store/import/gguf_canon.h"

/* The fields so far. */
typedef struct ggw_fields {
    fm_buf bytes;
    uint64_t count;
} ggw_fields;

void ggw_u32(ggw_fields *f, const char *key, uint64_t v);
void ggw_f32(ggw_fields *f, const char *key, double v);
void ggw_bool(ggw_fields *f, const char *key, bool v);
void ggw_str(ggw_fields *f, const char *key, fm_span v);
/* The head of a list; its elements are appended to f->bytes. */
void ggw_list(ggw_fields *f, const char *key, fm_gguf_type elem, uint64_t count);
void ggw_text(fm_buf *out, fm_span text); /* one string, with its length */
void ggw_float(fm_buf *out, float v);     /* one F32 */

/* A tensor that follows from the config: floats. */
typedef struct ggw_table {
    const char *name;
    float *v; /* owned */
    uint64_t count;
} ggw_table;

/* What the config says. */
typedef struct ggw_model {
    const gguf_arch *arch;
    const fm_json *config;
    fm_json *joined; /* the config, where it has a text beside pictures; owned */
    uint64_t layers, hidden, heads, kv_heads, head_dim, rotary, vocab, experts;
    uint64_t skip; /* rows of positions before the first */
    ggw_table table[2];
    size_t tables;
} ggw_model;

/* ---- llama-quantize's mixes ---- */

typedef struct ggw_mix ggw_mix;
const ggw_mix *ggw_mix_find(const char *name); /* "Q4_K_M"; NULL: none has this name */
uint32_t ggw_mix_file_type(const ggw_mix *m);

typedef struct ggw_mix_tensor {
    const char *name;      /* GGUF's */
    const fm_shape *shape; /* in Hugging Face's order, of rank 1 at least */
    uint32_t parts;        /* experts that are one tensor, else 1 */
    fm_dtype dtype;        /* set */
} ggw_mix_tensor;
/* Sets the types; t is in ggw_mix_order. weighted: there is an importance matrix. */
fm_status ggw_mix_types(const ggw_mix *mix, const ggw_model *m, bool weighted, ggw_mix_tensor *t,
                        size_t count);
/* True where llama-quantize refuses to write the tensor without an importance matrix. */
bool ggw_mix_wants_importance(const ggw_mix *mix, const char *name, fm_dtype dtype);
/* The fields by which llama-quantize tells of an importance matrix; path: as it was given. */
void ggw_imatrix_fields(ggw_fields *f, const fm_imatrix *m, const char *path);
/* The order of tensors in llama-quantize's files: by layer, then by name. */
int ggw_mix_order(const char *a, const char *b);
/* The dimensions that ggml counts: outer ones of length one are none, but for the last. */
uint32_t ggw_mix_dims(const fm_shape *shape, uint32_t parts);

/* Reads what names and rows need. FM_EUNSUPPORTED: GGUF has no words for it. */
fm_status ggw_read_model(ggw_model *m, const fm_json *config);
bool ggw_is_tied(const ggw_model *m); /* the head is the embedding */
void ggw_model_free(ggw_model *m);
/* The fields below the architecture's prefix, and m->table. */
fm_status ggw_arch_fields(ggw_fields *f, ggw_model *m);
/* The pooling that a sentence-transformers folder says. */
fm_status ggw_pooling(ggw_fields *f, const fm_view *v, const ggw_model *m);
/* Of a WordPiece vocabulary the token as a GGUF has it, in the arena. */
fm_status ggw_phantom(fm_span *token, fm_arena *arena);
/* The fields of the tokenizer in tokenizer/, if there is one. */
fm_status ggw_tokenizer_fields(ggw_fields *f, const fm_view *v, const ggw_model *m);
/* general.architecture, general.type, general.name. */
void ggw_general(ggw_fields *f, const ggw_model *m, const char *type);
#define GGW_QUANT_VERSION 2u /* general.quantization_version */

/* The order of a weight's rows, by GGUF's stem of its name; *heads: so many heads, 0: any rows. */
src_order ggw_order_of(const ggw_model *m, const char *stem, uint64_t *heads);
/* Requires whole heads: FM_EUNSUPPORTED. */
fm_status ggw_check_rows(const ggw_model *m, const exp_weight *one, uint64_t heads);

/* A tensor's line in the head. */
typedef struct ggw_place {
    const char *name;
    fm_shape shape;
    uint32_t dims;  /* written: those of shape, then `parts` */
    uint32_t parts; /* so many of the shape */
    fm_dtype dtype;
    uint64_t bytes;
} ggw_place;
/* The head: begun, with the fields; then a tensor's name and place, which *at moves past its
 * bytes; then padded, as each tensor's bytes are. */
void ggw_begin(fm_buf *out, uint64_t tensors, const ggw_fields *fields);
fm_status ggw_info(fm_buf *out, const ggw_place *t, uint64_t *at);
void ggw_pad(fm_buf *out);
uint64_t ggw_padded(uint64_t bytes);

#endif
