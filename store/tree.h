/* tree.h - a model tree: the sorted list of paths that makes up one model version.
 *
 * Folders exchange models as trees: a source gives one, lineage stores and returns one, infer loads
 * one, blame grafts two into a third. A tree holds pointers (ids) and small files, never weights; a
 * provider turns an entry into bytes.
 *
 *   model.json            {"format":1, "architecture":"llama", "config":{... HF config ...},
 *                          "generation_config":{...} if there is one}
 *   tensors/<path of the name>      tensors under Hugging Face names
 *   adapters/<n>-<kind>/            adapter_config.json and tensors/<path of PEFT's key>;
 *                                   n = 0, 1, ... in order of application; kind = lora
 *   tokenizer/...         tokenizer.json, tokenizer_config.json, chat_template.jinja ...
 *   suites/<name>.yaml    behavioural suites
 *   recipe.json           how these weights were made (absent for a plain import)
 *   train_log.json        loss and gradient norm of every training step
 *   data/<name>           examples the derivation was trained on (blob or file)
 *   source/...            what byte-exact export needs
 *   README.md             model card
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
    char *path; /* owned by the tree, as are the pointers below */
    fm_entry_kind kind;
    fm_digest id;   /* TENSOR, BLOB: content id; FILE: fm_blob_id of its bytes */
    uint64_t bytes; /* decoded size */
    char *name;     /* TENSOR: true name; else NULL */
    fm_dtype dtype; /* TENSOR */
    fm_shape shape; /* TENSOR */
    uint8_t *data;  /* FILE: its bytes (NUL-terminated beyond `bytes`); else NULL */
} fm_entry;

typedef struct fm_tree fm_tree; /* not to be shared between threads while it is changed */

FM_CHECKED fm_status fm_tree_new(fm_tree **out);
FM_CHECKED fm_status fm_tree_copy(fm_tree **out, const fm_tree *tree);
void fm_tree_free(fm_tree *tree);

size_t fm_tree_count(const fm_tree *tree);
const fm_entry *fm_tree_at(const fm_tree *tree, size_t i);           /* sorted by path bytes */
const fm_entry *fm_tree_find(const fm_tree *tree, const char *path); /* NULL = absent */
/* [*begin, *end): entries whose path starts with prefix ("tensors/"). */
void fm_tree_range(const fm_tree *tree, const char *prefix, size_t *begin, size_t *end);

/* Put replaces the entry at the path. A path must be relative, without "..", empty parts and
 * control bytes, and not a folder of another path; FM_EINVAL names the path. */
FM_CHECKED fm_status fm_tree_put_tensor(fm_tree *tree, const char *path, const char *name,
                                        fm_dtype dtype, const fm_shape *shape, const fm_digest *id);
FM_CHECKED fm_status fm_tree_put_blob(fm_tree *tree, const char *path, const fm_digest *id,
                                      uint64_t bytes);
FM_CHECKED fm_status fm_tree_check_path(const char *path); /* whether a put may take the path */
/* At most FM_INLINE_MAX_BYTES, and not starting with "fmstore " (which marks a pointer); otherwise
 * FM_ELIMIT: put the bytes as a blob through the store's transaction. */
FM_CHECKED fm_status fm_tree_put_file(fm_tree *tree, const char *path, fm_span bytes);
FM_CHECKED fm_status fm_tree_put_entry(fm_tree *tree, const fm_entry *e); /* copies e */
FM_CHECKED fm_status fm_tree_remove(fm_tree *tree, const char *path);     /* FM_ENOTFOUND */

/* Appends prefix ("tensors", "adapters/0-lora/tensors"), '/' and a tensor name's escaped path. */
FM_CHECKED fm_status fm_tensor_path(fm_buf *out, const char *prefix, const char *name);
/* An engine finds a tensor by its path, an export by its name: FM_ECORRUPT where a tensor below
 * tensors/ or an adapter's tensors/ lies at another path than its name says. */
FM_CHECKED fm_status fm_entry_check_name(const fm_entry *e);
/* Appends one part (a file's name, say), escaped the same way. */
void fm_path_part(fm_buf *out, const char *part, size_t len);

/* The pointer blobs that lineage keeps in git, text, one field a line:
 *   fmstore tensor 1\nid sha256:<hex>\ndtype Q4_1\nshape 576 1536\nbytes N\nname <true name>\n
 *   fmstore blob 1\nid sha256:<hex>\nbytes N\n
 * A FILE entry's blob is its own bytes. Parsing gives FM_ECORRUPT, which names path and field. */
FM_CHECKED fm_status fm_entry_encode(fm_buf *out, const fm_entry *e);
FM_CHECKED fm_status fm_tree_put_encoded(fm_tree *tree, const char *path, fm_span git_blob);

/* Digest of a tree (path, kind and id of each entry, in order), for cache keys. Paths that begin
 * with one of skip_prefix (NULL-terminated, may be NULL) are left out: suites/ for a result's
 * key. */
FM_CHECKED fm_status fm_tree_digest(fm_digest *out, const fm_tree *tree,
                                    const char *const *skip_prefix);

/* A segment of a file. data: the same bytes, mapped; valid while the store that gave it is open. */
typedef struct fm_file_part {
    char *path; /* fm_free */
    uint64_t offset;
    fm_span data;
} fm_file_part;

/* Turns entries into bytes: a store, an open source, a test. Must be thread-safe. */
typedef struct fm_provider {
    void *ctx;
    /* dst has e->bytes bytes. Verifies the id. FM_ENOTFOUND names the tensor. */
    fm_status (*read)(void *ctx, const fm_entry *e, void *dst);
    /* May be NULL. The entry's bytes in the provider's memory, verified, 64-byte aligned; valid
     * while the provider is open. out->data NULL: not there, or damaged; use read. */
    fm_status (*view)(void *ctx, const fm_entry *e, fm_span *out);
    /* May be NULL. Bytes [offset, offset + bytes) of the entry, within e->bytes, into dst. flags:
     * fm_range_flags. Every leaf of the range is verified against the id. Whole leaves (offset a
     * multiple of FM_LEAF_BYTES) are the cheap case: for a part of a leaf all of it is read.
     * Memory: a few leaves. Each call looks the entry up, so read several leaves at once. */
    fm_status (*range)(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes, void *dst,
                       unsigned flags);
    /* May be NULL. The file with the entry's bytes uncoded, not verified. out->path NULL: coded. */
    fm_status (*place)(void *ctx, const fm_entry *e, fm_file_part *out);
} fm_provider;
typedef enum fm_range_flags {
    /* Leaves' digests are not compared: for a caller that has a digest over all it reads, and reads
     * again without this flag where that differs. Damage may go unnoticed. */
    FM_RANGE_UNCHECKED = 1u << 0,
} fm_range_flags;
/* Appends the entry's bytes to out: of FILE entries from the tree, of others from the provider. */
FM_CHECKED fm_status fm_entry_read(fm_buf *out, const fm_provider *p, const fm_entry *e);
/* The same for a part of the bytes, into dst. With a provider that has no `range`, the whole entry
 * is read into memory. FM_EINVAL: the range is not within the entry. */
FM_CHECKED fm_status fm_entry_read_range(const fm_provider *p, const fm_entry *e, uint64_t offset,
                                         uint64_t bytes, void *dst, unsigned flags);
/* Elements first .. first + n of a tensor, widened to float32, into dst; first and n are multiples
 * of the blocks of its type. raw: memory for these elements as they are stored. */
FM_CHECKED fm_status fm_entry_read_f32(float *dst, const fm_provider *p, const fm_entry *e,
                                       uint64_t first, uint64_t n, void *raw);

FM_END_DECLS
#endif
