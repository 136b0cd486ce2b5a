/* torch.h - tensors of a PyTorch checkpoint (.bin, .pt, .pth: a zip with data.pkl, or the older
 * layout of torch_legacy.h), read without executing its pickle (torch_pickle.h).
 *
 * Names: the keys of the dictionary; nested dictionaries and lists are joined by dots
 * ("optimizer.state.0.exp_avg"). Where the outermost dictionary holds no tensor itself but its
 * "state_dict", "model_state_dict" or "model" does, the tensors of that dictionary have no prefix.
 * Other values are ignored. Tensors may share a storage and may be views with any strides from 0;
 * every element must lie in its storage, and a storage has the size that the pickle claims. */
#ifndef FM_STORE_TORCH_H
#define FM_STORE_TORCH_H

#include "store/base/cursor.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

typedef struct fm_torch_tensor {
    const char *name; /* owned by the reader */
    fm_dtype dtype;
    fm_shape shape;
    uint64_t bytes;               /* size of the tensor, row-major */
    uint64_t at;                  /* offset of its first element in the file */
    uint64_t stride[FM_MAX_RANK]; /* in elements */
    bool contiguous;              /* [at, at + bytes) are its row-major bytes */
} fm_torch_tensor;

typedef struct fm_torch fm_torch; /* immutable once open: share freely between threads */

/* Whether the first four bytes are those of a zip archive. */
bool fm_torch_is_zip(const uint8_t head[4]);
/* Whether the bytes begin as torch.save wrote them before PyTorch 1.6. */
bool fm_torch_is_legacy(fm_span file);

/* Borrows the bytes, which must outlive *out. `what` names the file in errors. FM_ECORRUPT,
 * FM_ELIMIT; FM_EUNSUPPORTED names the construct of the pickle that is not supported. */
FM_CHECKED fm_status fm_torch_parse(fm_torch **out, fm_span file, const char *what);
void fm_torch_close(fm_torch *t);
size_t fm_torch_count(const fm_torch *t);
const fm_torch_tensor *fm_torch_at(const fm_torch *t, size_t i); /* in the order of the pickle */
const fm_torch_tensor *fm_torch_find(const fm_torch *t, const char *name); /* NULL = absent */

/* Bytes [from, from + bytes) of the row-major form. file: the bytes that were parsed. */
void fm_torch_gather(const fm_torch_tensor *t, const uint8_t *file, uint64_t from, void *dst,
                     uint64_t bytes);

FM_END_DECLS
#endif
