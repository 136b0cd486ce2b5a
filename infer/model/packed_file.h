/* packed_file.h - images of weights (fm_backend.weight_image) kept in files and mapped.
 *
 * An image follows from a tensor's id and the backend's layout, so its file is named by both:
 *
 *   <cache_dir>/packed/<layout>/<first 2 hex of id>/<id>.<role>
 *
 *   OFFSET SIZE  FIELD (little-endian)
 *   0      8     "FMPACKED"
 *   8      4     version, 2
 *   12     4     role: 0 linear, 1 lora_a, 2 lora_b
 *   16     8     dtype, NUL-padded name
 *   24     4+4   n, k
 *   32     32    tensor id
 *   64     64    layout, NUL-padded
 *   128    8     bytes of the image
 *   136    16    XXH3-128 of the image: its low half, then its high
 *   152    32    SHA-256 of bytes 0..151
 *   184    3912  zero
 *   4096   ...   the image, to the end of the file
 *
 * A file is written under a temporary name, renamed and never changed: processes map and share it,
 * and it may be deleted at any time, also while it is mapped. It is a cache and not made durable:
 * every map checks header and sum. A file that does not fit (damaged, cut, of another tensor)
 * counts as absent, is counted as refused, and is written anew. Where no file can be written
 * (read-only, full), loading goes on without. Any thread may call.
 *
 * The sum finds accidents, at the speed of memory. SHA-256 over the image would cost as much as
 * packing anew, and would not stop an attacker who can write here: he can write its digest too. */
#ifndef FM_INFER_PACKED_FILE_H
#define FM_INFER_PACKED_FILE_H

#include "infer/backend.h"
#include "store/base/math/hash.h"
#include "store/base/os/io.h"

FM_BEGIN_DECLS

#define FMI_ARTEFACT_HEADER_BYTES 4096u

typedef struct fmi_packed_file_key {
    fm_digest id;
    fm_role role;
    fm_dtype dtype;
    uint32_t n, k;
    uint64_t bytes; /* of the image */
} fmi_packed_file_key;

typedef struct fmi_packed_files fmi_packed_files;
/* bytes_max: of all files of all layouts; the least recently used are deleted. 0: no bound. */
FM_CHECKED fm_status fmi_packed_files_new(fmi_packed_files **out, const char *cache_dir,
                                          const char *layout, uint64_t bytes_max);
void fmi_packed_files_free(fmi_packed_files *a); /* NULL is fine; mappings stay valid */

/* true: *map is the file (fm_unmap_file), its image at FMI_ARTEFACT_HEADER_BYTES. */
bool fmi_packed_file_map(fmi_packed_files *a, fm_file_map *map, const fmi_packed_file_key *key);
/* true: the file is there now. */
bool fmi_packed_file_write(fmi_packed_files *a, const fmi_packed_file_key *key, const void *image);

typedef struct fmi_packed_file_stats {
    uint64_t mapped, written, refused; /* files; refused: found, but header or sum did not fit */
} fmi_packed_file_stats;
fmi_packed_file_stats fmi_packed_file_stats_of(fmi_packed_files *a);

FM_END_DECLS
#endif
