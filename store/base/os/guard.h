/* guard.h - mapped files whose disk fails, or that are cut, while they are mapped.
 *
 * The system reports such a failure to a reader of the mapping by SIGBUS, which ends the process. A
 * mapping made here is for readers that compare every byte they use with a digest: pages that
 * cannot be read give zeros from then on, the digest is wrong, and the reader asks fm_map_failed
 * why. Reading costs nothing. A mapping whose bytes are handed out and used without a comparison
 * each time is pinned: a failure still ends the process, since zeros would be taken for weights.
 *
 * The handler is installed at the first such mapping and passes every other SIGBUS to the handler
 * that was set before. A program that sets a handler later switches this off. Up to 16,384 mappings
 * are guarded at once; further ones are plain mappings. Thread-safe. */
#ifndef FM_BASE_GUARD_H
#define FM_BASE_GUARD_H

#include "store/base/os/io.h"

FM_BEGIN_DECLS

FM_CHECKED fm_status fm_map_verified(fm_file_map *out, const char *path); /* as fm_map_file */
/* As fm_writer_map. */
FM_CHECKED fm_status fm_map_written(fm_file_map *out, const fm_writer *w, size_t len);
void fm_unmap_verified(fm_file_map *map); /* NULL-safe */
/* From now on a page of the guarded mapping that holds `at` ends the process where it cannot be
 * read. False: pages of it could not be read before, and zeros are in their place. */
bool fm_map_pin(const void *at);
/* The path of the guarded mapping that holds `at`, if pages of it could not be read; else NULL.
 * Borrowed while it is mapped. */
const char *fm_map_failed(const void *at);

FM_END_DECLS
#endif
