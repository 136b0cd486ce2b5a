/* safetensors.h - strict reader and writer of the safetensors format.
 *
 * A file: u64 header length N, N bytes of JSON, then the tensors' bytes. The header is untrusted:
 * every tensor must lie in the body and have exactly the bytes that its shape and dtype need, and
 * together they must tile the body without hole or overlap, as the format's own library demands. */
#ifndef FM_STORE_SAFETENSORS_H
#define FM_STORE_SAFETENSORS_H

#include "store/base/text/json.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

#define FM_ST_MAX_HEADER_BYTES 100000000u /* the format's own limit */

typedef struct fm_st_tensor {
    char *name; /* owned by the reader */
    fm_dtype dtype;
    fm_shape shape;
    uint64_t at; /* from the start of the file */
    uint64_t bytes;
} fm_st_tensor;

typedef struct fm_st fm_st;

/* Borrows the bytes, which must outlive *out. `what` names the file in errors. */
FM_CHECKED fm_status fm_st_parse(fm_st **out, fm_span file, const char *what);
void fm_st_close(fm_st *st);
size_t fm_st_count(const fm_st *st);
const fm_st_tensor *fm_st_at(const fm_st *st, size_t i);           /* in the order of their bytes */
const fm_st_tensor *fm_st_find(const fm_st *st, const char *name); /* NULL = absent */
fm_span fm_st_bytes(const fm_st *st, const fm_st_tensor *t);
uint64_t fm_st_body(const fm_st *st); /* where the tensors begin */

typedef struct fm_st_item {
    const char *name; /* borrowed */
    fm_dtype dtype;
    fm_shape shape;
    const void *user; /* travels with the item through the sort */
} fm_st_item;

/* Sorts items as the format's library does (larger alignment first, then name) and appends the
 * length and header for them, metadata {"format":"pt"}; the bodies follow in that order. Block
 * types: FM_EUNSUPPORTED. */
FM_CHECKED fm_status fm_st_header(fm_buf *out, fm_st_item *items, size_t count);

FM_END_DECLS
#endif
