/* tree.h - a model tree: the sorted list of paths that makes one model version.
 *
 * This is the vocabulary between folders: a source gives one, lineage stores and returns one,
 * infer loads one, blame grafts two into a third. It holds pointers (ids) and small files, never
 * weights; a provider turns an entry into bytes.
 *
 *   model.json            {"format":1, "architecture":"llama", "config":{... HF config ...},
 *                          "generation_config":{...} if there is one}
 *   tensors/<path of the name>      tensors under Hugging Face names
 *   adapters/<n>-<kind>/            adapter_config.json and tensors/<path of PEFT's key>;
 *                                   n = 0, 1, ... in order of application; kind = lora
 *   tokenizer/...         tokenizer.json, tokenizer_config.json, chat_template.jinja ...
 *   suites/<name>.yaml    behavioural suites
 *   recipe.json           how these weights were made (absent for a plain import)
 *   train_log.json        loss and gradient norm of every step of that
 *   data/<name>           examples the derivation was trained on (blob or file)
 *   source/...            what byte-exact export needs
 *   README.md             model GPU
 *
 * A tensor name is split at its dots but the last: "model.layers.0.mlp.up_proj.weight" lives at
 * "tensors/model/layers/0/mlp/up_proj.weight". '%', '/', control bytes, empty parts, leading dots
 * and names that git forbids (".git" in any case, trailing dot or space) are %XX-escaped. */
#ifndef FM_STORE_TREE_H
#define FM_STORE_TREE_H

#include "store/base/buf.h"
#include "store/base/text/json.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

#define FM_INLINE_MAX_BYTES 65536u /* larger files become blobs in the packs */
#define FM_MAX_PATH_BYTES 2048u

typedef enum fm_entry_kind { FM_ENTRY_TENSOR, FM_ENTRY_BLOB, FM_ENTRY_FILE } fm_entry_kind;

typedef struct fm_entry {
    char *path; /* owned by the tree, as all below */
    fm_entry_kind kind;
    fm_digest id;   /* TENSOR, BLOB: content id; FILE: fm_blob_id of its bytes */
    uint64_t bytes; /* decoded size */
    char *name;     /* TENSOR: true name; else NULL */
    fm_dtype dtype; /* TENSOR */
    fm_shape shape; /* TENSOR */
    uint8_t *data;  /* FILE: its bytes (NUL-terminated beyond `bytes`); else NULL */
} fm_entry;

typedef struct fm_tree fm_tree; /* not for sharing between threads while changed */

FM_CHECKED fm_status fm_tree_new(fm_tree **out);
FM_CHECKED fm_status fm_tree_copy(fm_tree **out, const fm_tree *tree);
void fm_tree_free(fm_tree *tree);

size_t fm_tree_count(const fm_tree *tree);
const fm_entry *fm_tree_at(const fm_tree *tree, size_t i);           /* sorted by path bytes */
const fm_entry *fm_tree_find(const fm_tree *tree, const char *path); /* NULL = absent */
/* [*begin, *end): entries whose path starts with prefix ("tensors/"). */
void fm_tree_range(const fm_tree *tree, const char *prefix, size_t *begin, size_t *end);

/* Put replaces what is at the path. Paths are checked: relative, no "..", no empty parts, no
 * control bytes, no path that is also another's folder; FM_EINVAL names it. */
FM_CHECKED fm_status fm_tree_put_tensor(fm_tree *tree, const char *path, const char *name,
                                        fm_dtype dtype, const fm_shape *shape, const fm_digest *id);
FM_CHECKED fm_status fm_tree_put_blob(fm_tree *tree, const char *path, const fm_digest *id,
                                      uint64_t bytes);
/* bytes <= FM_INLINE_MAX_BYTES and not starting with "fmstore " (that is a pointer's mark);
 * otherwise FM_ELIMIT: put it as a blob through the store's transaction. */
FM_CHECKED fm_status fm_tree_put_file(fm_tree *tree, const char *path, fm_span bytes);
FM_CHECKED fm_status fm_tree_put_entry(fm_tree *tree, const fm_entry *e); /* copies, graft's tool */
FM_CHECKED fm_status fm_tree_remove(fm_tree *tree, const char *path);     /* FM_ENOTFOUND */

/* prefix ("tensors" or "adapters/0-lora/tensors") + escaped path of a tensor name. */
FM_CHECKED fm_status fm_tensor_path(fm_buf *out, const char *prefix, const char *name);
/* One part (a file's name, say) escaped the same way. */
void fm_path_part(fm_buf *out, const char *part, size_t len);

/* The pointer blobs that lineage keeps in git, text, one field a line:
 *   fmstore tensor 1\nid sha256:<hex>\ndtype Q4_1\nshape 576 1536\nbytes N\nname <true name>\n
 *   fmstore blob 1\nid sha256:<hex>\nbytes N\n
 * FILE entries are their own bytes. Parse: FM_ECORRUPT naming path and field. */
FM_CHECKED fm_status fm_entry_encode(fm_buf *out, const fm_entry *e);
FM_CHECKED fm_status fm_tree_put_encoded(fm_tree *tree, const char *path, fm_span git_blob);

/* Digest of a whole tree (sorted path, kind, id): the cache key "model tree". `skip_prefix`es
 * (NULL-terminated list, may be NULL) are left out, e.g. suites/ and source/ for a result's key. */
FM_CHECKED fm_status fm_tree_digest(fm_digest *out, const fm_tree *tree,
                                    const char *const *skip_prefix);

/* A segment of a file. data is the same bytes mapped, while whoever gave it is open. */
typedef struct fm_file_part {
    char *path; /* fm_free */
    uint64_t offset;
    fm_span data;
} fm_file_part;

/* Whoever can turn an entry into bytes: a store, an open source, a test. Thread-safe. */
typedef struct fm_provider {
    void *ctx;
    /* dst has e->bytes bytes. Verifies the id. FM_ENOTFOUND names the tensor. */
    fm_status (*read)(void *ctx, const fm_entry *e, void *dst);
    /* May be NULL: the entry's bytes where they lie, verified, 64-byte aligned; valid as long as
     * whoever provides them is open. out->data NULL: they lie nowhere as they are, or not sound;
     * read them. */
    fm_status (*view)(void *ctx, const fm_entry *e, fm_span *out);
    /* May be NULL: bytes [offset, offset + bytes) of the entry, within e->bytes, into dst. flags is
     * a set of fm_range_flags. Every leaf that is touched is verified against the id. Whole leaves
     * (offset a multiple of FM_LEAF_BYTES) are the cheap case: a part of a leaf is read as the
     * whole and cut. Memory: a few leaves, whatever the entry's size. Each call finds the entry
     * anew, so ask for several leaves at once. */
    fm_status (*range)(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes, void *dst,
                       unsigned flags);
    /* May be NULL: the file in which the entry's bytes lie as they are, not verified. path NULL:
     * they are coded. */
    fm_status (*place)(void *ctx, const fm_entry *e, fm_file_part *out);
} fm_provider;
typedef enum fm_range_flags {
    /* Digests are not compared: for a caller who has a digest over all that it reads, and who reads
     * again without this flag where that does not agree. Damage may pass or be an error. */
    FM_RANGE_UNCHECKED = 1u << 0,
} fm_range_flags;
/* FILE entries are copied from the tree; others go to the provider. Appends to out. */
FM_CHECKED fm_status fm_entry_read(fm_buf *out, const fm_provider *p, const fm_entry *e);
/* The same for a part of the bytes, into dst. A provider without `range` reads the whole into
 * memory for it. FM_EINVAL: not within the entry. */
FM_CHECKED fm_status fm_entry_read_range(const fm_provider *p, const fm_entry *e, uint64_t offset,
                                         uint64_t bytes, void *dst, unsigned flags);

FM_END_DECLS
#endif
