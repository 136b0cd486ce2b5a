/* export_view.h - the files that fm_export would write, read in ranges without being written.
 *
 * A file is a row of segments: literal bytes, stored entries, and weights that are made on the way
 * (cast, or merged with adapters). Sizes and places are known when the view is opened, which reads
 * small files and no weights. fm_export writes through a view, so the bytes are the same. */
#ifndef FM_STORE_EXPORT_VIEW_H
#define FM_STORE_EXPORT_VIEW_H

#include "store/source.h"

FM_BEGIN_DECLS

typedef struct fm_view fm_view;

/* The tree and the provider must live until the close. Fails as fm_export does. */
FM_CHECKED fm_status fm_view_open(fm_view **out, const fm_tree *tree, const fm_provider *p,
                                  const fm_view_opts *opts);
void fm_view_close(fm_view *v); /* NULL is fine */

typedef struct fm_view_file {
    /* Relative, '/' between parts, none empty, "." or ".."; borrowed, untrusted. */
    const char *name;
    uint64_t bytes;
    bool known; /* sha256 is set: source.json records it; it was not computed from the bytes */
    fm_digest sha256;
} fm_view_file;
size_t fm_view_count(const fm_view *v);
const fm_view_file *fm_view_at(const fm_view *v, size_t i); /* in the order of names */
/* The number of the file; SIZE_MAX: there is none of this name. */
size_t fm_view_find(const fm_view *v, const char *name);

/* Gives bytes [offset, offset + bytes) of file i in order, in pieces of at most 4 MiB; a failure of
 * fn ends it. Every stored leaf that it reads is verified. Memory: a few pieces, and where a weight
 * is merged, that weight. Several threads may read a view at once. FM_EINVAL: the range is not
 * within the file. */
FM_CHECKED fm_status fm_view_read(fm_view *v, size_t i, uint64_t offset, uint64_t bytes,
                                  fm_status (*fn)(void *ctx, const void *data, size_t len),
                                  void *ctx);

FM_END_DECLS
#endif
