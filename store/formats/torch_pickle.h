/* torch_pickle.h - reads the pickle inside a PyTorch checkpoint without executing anything.
 *
 * A pickle is a program for a stack machine that may import and call any Python function. Here the
 * opcodes that torch.save writes build plain values, and the pickle may only name what is on a list
 * (collections.OrderedDict, torch._utils._rebuild_tensor_v2 and its siblings, the storage classes,
 * dtypes, torch.Size, torch.device); these names are recognised, never called. Any other opcode or
 * name is refused by an error that names it. Method: CPython's pickletools, PEP 307, PEP 3154; the
 * selection follows PyTorch's own `weights_only` reader. Inside store only. */
#ifndef FM_STORE_TORCH_PICKLE_H
#define FM_STORE_TORCH_PICKLE_H

#include "store/base/mem.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

#define TP_MAX_PICKLE_BYTES ((size_t)64 << 20)
#define TP_MAX_VALUES 4000000u
#define TP_MAX_STACK 1000000u
#define TP_MAX_TEXT_BYTES (1u << 20)
#define TP_MAX_KEY_BYTES 64u /* longest key of a storage */

typedef enum tp_kind {
    TP_OTHER, /* None, a float, bytes, a long integer: values that no tensor needs */
    TP_BOOL,
    TP_INT,
    TP_TEXT,
    TP_TUPLE,
    TP_LIST,
    TP_DICT,
    TP_GLOBAL,
    TP_STORAGE,
    TP_TENSOR,
} tp_kind;

typedef struct tp_value tp_value;
typedef struct tp_item tp_item;

struct tp_item {
    tp_value *key; /* DICT only */
    tp_value *value;
    tp_item *next;
};

typedef struct tp_storage {
    fm_span key;                   /* "0": the entry data/0; 1 to TP_MAX_KEY_BYTES */
    fm_dtype dtype;                /* FM_DTYPE_NONE: untyped bytes */
    uint64_t elems;                /* bytes where untyped */
    const struct tp_storage *next; /* the one named before it */
} tp_storage;

typedef struct tp_tensor { /* in elements, as the pickle claims: nothing is checked yet */
    const tp_storage *storage;
    fm_dtype dtype;
    uint64_t offset;
    fm_shape shape;
    uint64_t stride[FM_MAX_RANK];
} tp_tensor;

struct tp_value { /* all in the caller's arena; lists and dictionaries may hold themselves */
    tp_kind kind;
    bool utf8;    /* TEXT: it is UTF-8 without NUL; checked only once */
    size_t count; /* number of items */
    union {
        int64_t i; /* BOOL, INT */
        fm_span text;
        struct {
            tp_item *first, *last;
        } list;
        const void *global;
        const tp_storage *storage;
        const tp_tensor *tensor;
    } u;
};

/* The value that the pickle stands for. Texts lie in pkl, which must outlive it. `what` names the
 * file in errors. FM_ECORRUPT; FM_EUNSUPPORTED names the opcode or the global that is not on the
 * list; FM_ELIMIT. */
FM_CHECKED fm_status tp_load(tp_value **out, fm_arena *arena, fm_span pkl, const char *what);
/* Likewise for the first of several pickles: *used is its length in bytes, *storages the list of
 * all storages that it names, the last one first (both may be NULL). */
FM_CHECKED fm_status tp_load_next(tp_value **out, fm_arena *arena, fm_span bytes, const char *what,
                                  size_t *used, const tp_storage **storages);

FM_END_DECLS
#endif
