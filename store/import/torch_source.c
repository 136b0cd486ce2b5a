/* torch_source.c - a PyTorch checkpoint as a file of a source.
 *
 * The file is cut at its contiguous tensors; of several that share bytes (tied weights, views) the
 * first and longest is used. Bytes between them are literal, or where long (a storage that only
 * strided tensors or none use) a blob of their own, so that the file comes back byte for byte. */
#include "store/import/source_impl.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/checked.h"

#define MAX_VIEW_BYTES ((uint64_t)1 << 30) /* limit of all views that are not contiguous: this, */
#define MAX_VIEW_TIMES 4u                  /* plus so many times the file's bytes */

typedef struct segment {
    uint64_t at, bytes;
    const char *path;
} segment;

static int by_place(const void *a, const void *b)
{
    const segment *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return strcmp(x->path, y->path);
}

/* Views of few bytes may have very many elements, all of which are hashed, so they are limited. */
static fm_status make_piece(fm_source *src, const src_file *f, const fm_torch_tensor *t,
                            uint64_t *viewed, src_piece **out)
{
    const uint8_t *data = t->contiguous ? f->map.data + t->at : f->map.data;

    if (!t->contiguous && (fm_add_overflow(viewed, *viewed, t->bytes) ||
                           *viewed > MAX_VIEW_BYTES + MAX_VIEW_TIMES * f->map.len))
        return fm_fail(FM_ELIMIT,
                       "%s: tensor '%s': views that are not contiguous stand for more than 1 GiB "
                       "and %u times the file; save them with .contiguous(), or as safetensors",
                       f->name, t->name, MAX_VIEW_TIMES);
    *out = src_new_piece(src, fm_span_of(data, (size_t)t->bytes));
    if (!*out)
        return FM_ENOMEM;
    (*out)->rows = t->shape.rank > 0 ? t->shape.dim[0] : 1;
    (*out)->view = t->contiguous ? NULL : t;
    return FM_OK;
}

static fm_status cut_file(fm_source *src, src_file *f, const segment *s, size_t count)
{
    uint64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        if (s[i].at < at || s[i].bytes == 0)
            continue; /* the segment before has its bytes, or some of them */
        FM_TRY(src_add_segment(src, f, at, s[i].at));
        FM_TRY(src_add_entry_part(src, f, s[i].path, s[i].bytes));
        at = s[i].at + s[i].bytes;
    }
    return src_add_segment(src, f, at, f->map.len);
}

static fm_status add_tensors(fm_source *src, src_file *f, const char *prefix, const fm_torch *pt)
{
    segment *s = fm_calloc(fm_torch_count(pt) + 1, sizeof *s);
    uint64_t viewed = 0;
    size_t n = 0;
    fm_status rc = s ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < fm_torch_count(pt); i++) {
        const fm_torch_tensor *t = fm_torch_at(pt, i);
        src_tensor q = {.name = t->name, .dtype = t->dtype, .shape = t->shape};
        rc = make_piece(src, f, t, &viewed, &q.piece);
        FM_THEN(rc, src_queue_tensor(src, prefix, &q));
        if (rc == FM_OK && t->contiguous)
            s[n++] = (segment){t->at, t->bytes, q.path};
    }
    if (rc == FM_OK && n > 0)
        qsort(s, n, sizeof *s, by_place);
    FM_THEN(rc, cut_file(src, f, s, n));
    fm_free(s);
    return rc;
}

fm_status src_add_torch(fm_source *src, const char *dir, const char *name, const char *prefix)
{
    src_file *f = NULL;
    FM_TRY(src_add_file(&f, src, dir, name));

    FM_TRY(fm_torch_parse(&f->torch, fm_span_of(f->map.data, f->map.len), dir ? name : src->path));
    return add_tensors(src, f, prefix, f->torch);
}
