/* source_impl.h - shared by the readers of all kinds of sources; inside store only.
 *
 * A reader maps its files, names the tensors in them and lists the parts that each file is made of;
 * source_hash.c hashes everything once, source_build.c makes the tree and source.json. */
#ifndef FM_STORE_SOURCE_IMPL_H
#define FM_STORE_SOURCE_IMPL_H

#include "store/base/os/io.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/formats/safetensors.h"
#include "store/source.h"
#include "store/formats/torch.h"

#define FM_SOURCE_MAX_FILES 10000u
#define FM_SOURCE_MAX_PIECES (4u * FM_MAX_TENSORS) /* that source.json lists */
#define FM_SOURCE_MAX_LITERAL_BYTES ((size_t)1 << 30)
#define FM_SOURCE_JSON "source/source.json"
/* The folder of source.json's entries ("adapters/0-lora"; absent: ""), in a file of its own, so
 * that applying an adapter to a parent, which moves the entries, need not rewrite source.json. */
#define FM_SOURCE_ROOT "source/root"

/* How GGUF orders a tensor's rows otherwise than Hugging Face. queries 0: within each head those
 * that turn together are neighbours. Else it is a fused product: Hugging Face has `heads` groups of
 * so many queries, a key and a value, GGUF all queries, then all keys, then all values. */
typedef struct src_order {
    uint32_t heads; /* 0: the rows are as they are */
    uint32_t queries;
} src_order;

/* The place of an object's bytes; they are `rows` rows, which may be in GGUF's order. */
typedef struct src_piece {
    const uint8_t *data;
    uint64_t bytes;
    uint64_t rows;
    src_order order;
    const fm_torch_tensor *view; /* not NULL: has strides, and data is the whole file */
    const fm_file_map *map;      /* NULL: not in a file */
    fm_digest *leaf;             /* digests of leaves in Hugging Face's order; in the arena */
} src_piece;

/* One segment of an original file: an entry of the tree or bytes of a literal. */
typedef struct src_part {
    const char *path; /* entry: below root; literal: whole tree path. In the arena. */
    bool is_entry;
    bool whole; /* all of the literal, not `bytes` from `at` */
    uint64_t at, bytes;
    src_order order;
} src_part;

typedef struct src_file {
    const char *name; /* below the exported folder, '/' between parts */
    fm_file_map map;
    fm_digest sha;
    fm_st *st;       /* set for a safetensors file */
    fm_torch *torch; /* set for a file of torch.save */
    src_part *part;
    size_t part_count, part_cap;
    size_t first_tensor, end_tensor; /* its tensors in fm_source.tensor */
    fm_buf literal;                  /* the bytes that belong to no tensor, in order */
} src_file;

typedef struct src_tensor { /* waiting for its id */
    const char *path, *name;
    fm_dtype dtype;
    fm_shape shape;
    src_piece *piece;
    fm_digest id;
} src_tensor;

struct fm_source {
    fm_source_kind kind;
    bool single; /* one file came in, not a folder */
    char *path;
    const char *root; /* "" or "adapters/0-lora"; in the arena */
    const fm_tree *parent; /* fm_source_open_for's; may be NULL */
    const fm_provider *parent_p;
    fm_arena *arena;
    fm_tree *tree;
    fm_map *by_id; /* digest -> src_piece */
    src_file **file;
    size_t file_count, file_cap;
    fm_map *file_by_name;
    src_tensor *tensor;
    size_t tensor_count, tensor_cap;
    fm_left_out *left_out;
    size_t left_out_count, left_out_cap;
    const char *kept;   /* fm_source_kept; in the arena */
    char *real, *blobs; /* where a folder's links may lead; blobs may be NULL */
};

/* Maps dir/name, or where dir is NULL src->path. */
fm_status src_add_file(src_file **out, fm_source *src, const char *dir, const char *name);
/* Queues a tensor, and adds the part of f that it is. prefix as for fm_tensor_path. */
fm_status src_add_tensor(fm_source *src, src_file *f, const char *prefix, const char *name,
                         fm_dtype dtype, const fm_shape *shape, fm_span bytes, src_order order);
/* The same in two steps, for files whose tensors share bytes: queue t (name, dtype, shape and piece
 * given; path is set), and add parts of f: the entry at a path, or bytes put there as a blob. */
fm_status src_queue_tensor(fm_source *src, const char *prefix, src_tensor *t);
fm_status src_add_entry_part(fm_source *src, src_file *f, const char *path, uint64_t bytes);
fm_status src_add_blob(fm_source *src, src_file *f, const char *path, fm_span bytes);
/* Adds bytes of f that belong to no tensor to its literal, joined to a literal part before them. */
fm_status src_add_literal(fm_source *src, src_file *f, fm_span bytes);
/* The same for bytes [from, to) of f; if they are more than FM_INLINE_MAX_BYTES, they become a blob
 * of their own, which another file may share. */
fm_status src_add_segment(fm_source *src, src_file *f, uint64_t from, uint64_t to);
/* Makes all of f the tree entry at path, without a copy of the mapped bytes. */
fm_status src_whole_file(fm_source *src, src_file *f, const char *path, bool is_entry);
/* Puts bytes at a tree path: inline where they fit, else as a blob; `bytes` must outlive src. */
fm_status src_put_bytes(fm_source *src, const char *path, fm_span bytes);
/* Likewise, and copies the bytes. */
fm_status src_put_copy(fm_source *src, const char *path, fm_span bytes);
fm_status src_put_json(fm_source *src, const char *path, const fm_json *v, fm_json_style style);
/* A file's name in source.json: "name", or where it is not UTF-8 "name_escaped", with %XX for '%'
 * and bytes that are not printable ASCII. get: *out is freed by fm_free; FM_ECORRUPT. */
fm_status src_name_put(fm_json *file, const char *name);
fm_status src_name_get(char **out, const fm_json *file);
/* "source/files/<name escaped>" in the arena; NULL = ENOMEM. */
const char *src_extra_path(fm_source *src, const char *name);
const char *src_strdup(fm_source *src, const char *s);
/* Finds a folder's real path, and the second folder into which its links may lead. */
fm_status src_find_bounds(fm_source *src, const char *dir);
/* Refuses a file that is a link to elsewhere: FM_EINVAL names link and target. */
fm_status src_check_link(const fm_source *src, const char *dir, const char *name);
/* Adds a file of torch.save, or of safetensors (its header literal), with tensors under prefix. */
fm_status src_add_torch(fm_source *src, const char *dir, const char *name, const char *prefix);
fm_status src_add_safetensors(fm_source *src, const char *dir, const char *name,
                              const char *prefix);
/* Adds every file of dir that is not in src yet, whole: at place(name), or below source/files. */
typedef const char *src_place_fn(const char *name); /* tree path, or NULL */
fm_status src_add_extras(fm_source *src, const char *dir, src_place_fn *place);
/* Computes the ids of all tensors and the digests of all files and leaves. */
fm_status src_hash_all(fm_source *src);
/* Hashes, fills the tree, writes source.json. */
fm_status src_finish(fm_source *src);

fm_status src_open_hf(fm_source *src);
fm_status src_open_peft(fm_source *src);
fm_status src_open_single(fm_source *src);
fm_status src_open_gguf(fm_source *src);
fm_status src_open_torch(fm_source *src);

/* A piece whose leaf digests are still to be filled; NULL = ENOMEM. */
src_piece *src_new_piece(fm_source *src, fm_span bytes);

/* Bytes [offset, offset + bytes) of the piece in Hugging Face's order, not verified. */
void src_piece_copy(uint8_t *dst, const src_piece *p, uint64_t offset, uint64_t bytes);
/* Whether so many rows can be in that order. */
bool src_order_fits(src_order order, uint64_t rows);
/* Puts rows, which fit, from Hugging Face's order into GGUF's. */
void src_rows_to_gguf(uint8_t *dst, const uint8_t *from, uint64_t rows, uint64_t row_bytes,
                      src_order order);

#endif
