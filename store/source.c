/* source.c - opens a foreign model by its content and hands out its bytes. */
#include <string.h>

#include "store/source_impl.h"

void fm_source_close(fm_source *src)
{
    if (!src)
        return;
    for (size_t i = 0; i < src->file_count; i++) {
        src_file *f = src->file[i];
        fm_st_close(f->st);
        fm_unmap_file(&f->map);
        fm_buf_release(&f->literal);
        fm_free(f->part);
    }
    fm_free(src->file);
    fm_free(src->tensor);
    fm_map_free(src->by_id);
    fm_tree_free(src->tree);
    fm_json_free(src->left_out);
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

/* Row (h, j, i) of HF's order, j choosing the half, is row (h, i, j) of GGUF's: the original Llama
 * code rotates neighbours, HF rotates element i with element i + half. */
void src_rows_to_hf(uint8_t *dst, const uint8_t *from, uint64_t rows, uint64_t row_bytes,
                    uint32_t heads)
{
    const uint64_t dim = rows / heads, half = dim / 2;

    for (uint64_t r = 0; r < rows; r++) {
        const uint64_t h = r / dim, j = r % dim / half, i = r % dim % half;
        memcpy(dst + r * row_bytes, from + (h * dim + 2 * i + j) * row_bytes, (size_t)row_bytes);
    }
}

void src_rows_to_gguf(uint8_t *dst, const uint8_t *from, uint64_t rows, uint64_t row_bytes,
                      uint32_t heads)
{
    const uint64_t dim = rows / heads, half = dim / 2;

    for (uint64_t r = 0; r < rows; r++) {
        const uint64_t h = r / dim, j = r % dim / half, i = r % dim % half;
        memcpy(dst + (h * dim + 2 * i + j) * row_bytes, from + r * row_bytes, (size_t)row_bytes);
    }
}

/* The files may have changed since they were hashed, so the bytes are hashed again. */
static fm_status verify(const fm_source *src, const fm_entry *e, const void *bytes)
{
    fm_digest id;
    fm_span span = fm_span_of(bytes, (size_t)e->bytes);
    fm_status rc = e->kind == FM_ENTRY_TENSOR ? fm_tensor_id(&id, e->dtype, &e->shape, span, NULL)
                                              : fm_blob_id(&id, span, NULL);

    if (rc == FM_OK && !fm_digest_eq(&id, &e->id))
        rc = fm_fail(FM_ECORRUPT, "%s: the bytes of '%s' changed while it was open", src->path,
                     e->name ? e->name : e->path);
    return rc;
}

static fm_status read_entry(void *ctx, const fm_entry *e, void *dst)
{
    const fm_source *src = ctx;
    const src_piece *p = fm_map_get(src->by_id, e->id.b, FM_DIGEST_BYTES);

    if (!p || p->bytes != e->bytes)
        return fm_fail(FM_ENOTFOUND, "%s: '%s' is not in this source", src->path,
                       e->name ? e->name : e->path);
    if (p->bytes == 0)
        return FM_OK;
    if (p->heads > 0)
        src_rows_to_hf(dst, p->data, p->rows, p->bytes / p->rows, p->heads);
    else
        memcpy(dst, p->data, (size_t)p->bytes);
    return verify(src, e, dst);
}

fm_provider fm_source_provider(const fm_source *src)
{
    fm_provider p;

    memcpy(&p.ctx, &src, sizeof p.ctx); /* the callback reads only; the type has no const there */
    p.read = read_entry;
    return p;
}

/* A pickle of protocol 2 to 5, or a zip. A safetensors header of 0x..80 bytes begins with the same
 * byte as a pickle, but its length then fits the file, which a pickle's first bytes never do. */
static bool is_pickle(const uint8_t head[8], uint64_t bytes)
{
    if (memcmp(head, "PK\3\4", 4) == 0)
        return true;
    return head[0] == 0x80 && head[1] <= 5 && fm_get_u64(head) >= bytes;
}

/* One file: GGUF by its magic, pickles refused, safetensors else. */
static fm_status open_file(fm_source *src)
{
    uint8_t head[8] = {0};
    uint64_t bytes = 0;
    fm_status rc = fm_file_bytes(&bytes, src->path);

    src->single = true;
    if (rc == FM_OK && bytes < 4)
        rc = fm_fail(FM_ECORRUPT, "%s: %llu bytes are too few for a model file", src->path,
                     (unsigned long long)bytes);
    if (rc == FM_OK)
        rc = fm_pread_file(src->path, 0, head, (size_t)FM_MIN(bytes, (uint64_t)sizeof head));
    if (rc < 0)
        return rc;
    if (memcmp(head, "GGUF", 4) == 0)
        return src_open_gguf(src);
    if (is_pickle(head, bytes))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a PyTorch pickle can run code and is not read; save the model as "
                       "safetensors",
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
    char *path = fm_path_join(src->path, name);
    bool found = path && fm_path_exists(path);

    fm_free(path);
    return found;
}

static fm_status open_any(fm_source *src)
{
    if (!fm_path_exists(src->path))
        return fm_fail(FM_ENOTFOUND, "%s: no such file or folder", src->path);
    if (!fm_path_is_dir(src->path))
        return open_file(src);
    if (holds(src, "adapter_config.json") && !holds(src, "model.safetensors") &&
        !holds(src, "model.safetensors.index.json"))
        return src_open_peft(src);
    return src_open_hf(src);
}

fm_status fm_source_open(fm_source **out, const char *path)
{
    fm_source *src = fm_calloc(1, sizeof *src);
    fm_status rc = src ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (!src)
        return rc;
    src->root = "";
    src->path = fm_strdup(path);
    src->left_out = fm_json_new_array();
    if (!src->path || !src->left_out)
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_arena_new(&src->arena);
    if (rc == FM_OK)
        rc = fm_map_new(&src->by_id);
    if (rc == FM_OK)
        rc = fm_tree_new(&src->tree);
    if (rc == FM_OK)
        rc = open_any(src);
    if (rc == FM_OK)
        rc = src_finish(src);
    if (rc < 0) {
        fm_source_close(src);
        return rc;
    }
    *out = src;
    return FM_OK;
}
