/* tensors.c - tensors of trees: found by name, read as float32; their random streams. */
#include "train/params/params.h"

#include "store/base/mem.h"

#include <string.h>

const fm_entry *fmt_find_tensor(const fm_tree *tree, const char *name)
{
    fm_buf path;
    const fm_entry *e = NULL;

    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    if (fm_tensor_path(&path, "tensors", name) == FM_OK)
        e = fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return e && e->kind == FM_ENTRY_TENSOR ? e : NULL;
}

fm_status fmt_read_f32(float **out, const fm_provider *p, const fm_entry *e)
{
    uint64_t n = 0;
    void *raw = NULL;
    fm_status rc = fm_shape_elems(&n, &e->shape);

    *out = NULL;
    if (rc < 0)
        return rc;
    raw = fm_malloc((size_t)e->bytes);
    float *f = fm_malloc((size_t)n * sizeof(float));
    rc = raw && f ? p->read(p->ctx, e, raw) : FM_ENOMEM;
    FM_THEN(rc, fm_to_f32(f, e->dtype, raw, n));
    fm_free(raw);
    if (rc < 0) {
        fm_free(f);
        return rc;
    }
    *out = f;
    return FM_OK;
}

fm_status fmt_stream(uint64_t *out, const char *purpose, const char *name)
{
    fm_digest d;
    char *text = fm_asprintf("%s\n%s", purpose, name);

    *out = 0;
    if (!text)
        return FM_ENOMEM;
    fm_status rc = fm_sha256(&d, text, strlen(text));
    fm_free(text);
    if (rc == FM_OK)
        *out = fm_get_u64(d.b);
    return rc;
}
