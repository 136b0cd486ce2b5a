/* source.c - opens a foreign model by its content and provides its bytes. */
#include <string.h>

#include "store/import/source_impl.h"

void fm_source_close(fm_source *src)
{
    if (!src)
        return;
    for (size_t i = 0; i < src->file_count; i++) {
        src_file *f = src->file[i];
        fm_st_close(f->st);
        fm_torch_close(f->torch);
        fm_unmap_file(&f->map);
        fm_buf_release(&f->literal);
        fm_free(f->part);
    }
    fm_free(src->file);
    fm_free(src->tensor);
    fm_map_free(src->by_id);
    fm_map_free(src->file_by_name);
    fm_tree_free(src->tree);
    fm_free(src->left_out);
    fm_free(src->real);
    fm_free(src->blobs);
    fm_arena_free(src->arena);
    fm_free(src->path);
    fm_free(src);
}

fm_source_kind fm_source_kind_of(const fm_source *src)
{
    return src->kind;
}

const fm_tree *fm_source_tree(const fm_source *src)
{
    return src->tree;
}

uint64_t fm_source_file_bytes(const fm_source *src)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < src->file_count; i++)
        sum += src->file[i]->map.len;
    return sum;
}

/* The files may have changed since they were hashed, so the copied bytes are hashed again: the
 * mapping may change between two reads. */
static fm_status read_leaf(const fm_source *src, const fm_entry *e, const src_piece *p, uint64_t i,
                           uint8_t *dst)
{
    const uint64_t at = i * FM_LEAF_BYTES, n = FM_MIN(p->bytes - at, (uint64_t)FM_LEAF_BYTES);
    fm_digest got;

    src_piece_copy(dst, p, at, n);
    FM_TRY(fm_sha256(&got, dst, (size_t)n));
    if (!fm_digest_eq(&got, &p->leaf[i]))
        return fm_fail(FM_ECORRUPT, "%s: the bytes of '%s' changed while it was open", src->path,
                       e->name ? e->name : e->path);
    return FM_OK;
}

static fm_status read_leaves(const fm_source *src, const fm_entry *e, const src_piece *p,
                             uint64_t offset, uint64_t bytes, uint8_t *dst)
{
    uint8_t *part = NULL; /* buffer for a leaf of which only a part is wanted */
    fm_status rc = FM_OK;

    while (rc == FM_OK && bytes > 0) {
        const uint64_t i = offset / FM_LEAF_BYTES, skip = offset % FM_LEAF_BYTES;
        const uint64_t leaf = FM_MIN(p->bytes - i * FM_LEAF_BYTES, (uint64_t)FM_LEAF_BYTES);
        const uint64_t n = FM_MIN(bytes, leaf - skip);
        if (n == leaf) {
            rc = read_leaf(src, e, p, i, dst);
        } else {
            part = part ? part : fm_malloc(FM_LEAF_BYTES);
            rc = part ? read_leaf(src, e, p, i, part) : FM_ENOMEM;
            if (rc == FM_OK)
                memcpy(dst, part + skip, (size_t)n);
        }
        dst += n;
        offset += n;
        bytes -= n;
    }
    fm_free(part);
    return rc;
}

static fm_status read_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            void *dst, unsigned flags)
{
    const fm_source *src = ctx;
    const src_piece *p = fm_map_get(src->by_id, e->id.b, FM_DIGEST_BYTES);

    if (!p || p->bytes != e->bytes)
        return fm_fail(FM_ENOTFOUND, "%s: '%s' is not in this source", src->path,
                       e->name ? e->name : e->path);
    if (offset > p->bytes || bytes > p->bytes - offset)
        return fm_fail(FM_EINVAL, "%s: a range beyond '%s'", src->path,
                       e->name ? e->name : e->path);
    fm_status rc = FM_OK;
    if (flags & FM_RANGE_UNCHECKED)
        src_piece_copy(dst, p, offset, bytes);
    else
        rc = read_leaves(src, e, p, offset, bytes, dst);
    if (p->map) /* a model may be larger than memory: drop what was read */
        fm_map_forget(p->map, (size_t)(p->data - p->map->data) + (size_t)offset, (size_t)bytes);
    return rc;
}

static fm_status read_entry(void *ctx, const fm_entry *e, void *dst)
{
    return read_range(ctx, e, 0, e->bytes, dst, 0);
}

const fm_left_out *fm_source_left_out(const fm_source *src, size_t *count)
{
    *count = src->left_out_count;
    return src->left_out;
}

const char *fm_source_kept(const fm_source *src)
{
    return src->kept;
}

fm_provider fm_source_provider(const fm_source *src)
{
    fm_provider p = {.read = read_entry, .range = read_range};

    memcpy(&p.ctx, &src, sizeof p.ctx); /* drops a const: the callbacks only read */
    return p;
}

/* Whether the file is a pickle. A safetensors header of 0x..80 bytes begins with the same byte, but
 * its length fits the file, which a pickle's first eight bytes as a length never do. */
static bool is_pickle(const uint8_t *head, uint64_t bytes)
{
    return head[0] == 0x80 && head[1] <= 5 && fm_get_u64(head) >= bytes;
}

/* Opens one file: GGUF or PyTorch's by its magic, safetensors else; other pickles are refused. */
static fm_status open_file(fm_source *src)
{
    uint8_t head[24] = {0};
    uint64_t bytes = 0;
    fm_status rc = fm_file_bytes(&bytes, src->path);

    src->single = true;
    if (rc == FM_OK && bytes < 4)
        rc = fm_fail(FM_ECORRUPT, "%s: %llu bytes are too few for a model file", src->path,
                     (unsigned long long)bytes);
    FM_THEN(rc, fm_pread_file(src->path, 0, head, (size_t)FM_MIN(bytes, (uint64_t)sizeof head)));
    if (rc < 0)
        return rc;
    if (memcmp(head, "GGUF", 4) == 0)
        return src_open_gguf(src);
    if (fm_torch_is_zip(head) || fm_torch_is_legacy(fm_span_of(head, sizeof head)))
        return src_open_torch(src);
    if (is_pickle(head, bytes))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a pickle that is no file of torch.save is not read; load it in Python "
                       "and save the weights as safetensors",
                       src->path);
    size_t len = strlen(src->path);
    if (len > 5 && strcmp(src->path + len - 5, ".gguf") == 0)
        return fm_fail(FM_ECORRUPT,
                       "%s: does not begin with GGUF's mark; it is another file under that name, "
                       "or damaged",
                       src->path);
    return src_open_single(src);
}

static bool holds(const fm_source *src, const char *name)
{
    return fm_path_holds(src->path, name);
}

static fm_status open_any(fm_source *src)
{
    if (!fm_path_exists(src->path))
        return fm_fail(FM_ENOTFOUND, "%s: no such file or folder", src->path);
    if (!fm_path_is_dir(src->path))
        return open_file(src);
    FM_TRY(src_find_bounds(src, src->path));
    if (holds(src, "adapter_config.json") && !holds(src, "model.safetensors") &&
        !holds(src, "model.safetensors.index.json"))
        return src_open_peft(src);
    return src_open_hf(src);
}

fm_status fm_source_open(fm_source **out, const char *path)
{
    return fm_source_open_for(out, path, NULL, NULL);
}

bool fm_source_is_adapter(const fm_source *src)
{
    return src->root[0] != '\0';
}

fm_status fm_source_open_for(fm_source **out, const char *path, const fm_tree *parent,
                             const fm_provider *p)
{
    fm_source *src = fm_calloc(1, sizeof *src);
    fm_status rc = src ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (!src)
        return rc;
    src->root = "";
    src->parent = parent;
    src->parent_p = p;
    src->path = fm_strdup(path);
    if (!src->path)
        rc = FM_ENOMEM;
    FM_THEN(rc, fm_arena_new(&src->arena));
    FM_THEN(rc, fm_map_new(&src->by_id));
    FM_THEN(rc, fm_map_new(&src->file_by_name));
    FM_THEN(rc, fm_tree_new(&src->tree));
    FM_THEN(rc, open_any(src));
    FM_THEN(rc, src_finish(src));
    if (rc < 0) {
        fm_source_close(src);
        return rc;
    }
    *out = src;
    return FM_OK;
}
