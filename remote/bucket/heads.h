/* heads.h - where the records of a bucket lie, read from the heads of its packs: an object's
 * record, what it is coded against and its byte range are known without reading the pack.
 *
 * The heads of a pack are one file: head after head, in the order of the records. Offsets are not
 * written: records follow each other without gaps, so each head says where the next record begins,
 * and the last one must end where the footer does. Each head is checked by its own checksum and by
 * its object's id. Of an object with several records the one of the first pack counts: what that
 * is coded against lies in the same pack or in an earlier one. */
#ifndef FM_REMOTE_BUCKET_HEADS_H
#define FM_REMOTE_BUCKET_HEADS_H

#include "store/base/map.h"
#include "store/exchange.h"

FM_BEGIN_DECLS

#define FMR_RECORDS_MAX (1u << 22) /* of a bucket: they are in memory, 200 bytes each */

typedef struct fmr_place {
    fm_digest id, head;
    uint64_t bytes, stored_bytes, offset;
    size_t pack;    /* its number in the manifest */
    uint32_t depth; /* as its head has it */
    uint32_t level; /* of the bucket's records: greater than those of what it is coded against */
    uint32_t parent_count;
    fm_digest *parent;
} fmr_place;

typedef struct fmr_heads {
    fm_map *place; /* id -> fmr_place */
    struct fm_arena *arena;
} fmr_heads;

FM_CHECKED fm_status fmr_heads_init(fmr_heads *h);
void fmr_heads_release(fmr_heads *h);
/* Adds the heads of a pack of so many bytes. FM_ECORRUPT: a head is wrong, or they do not fill the
 * pack; the places that came before the fault stay. */
FM_CHECKED fm_status fmr_heads_add(fmr_heads *h, fm_span heads, size_t pack, uint64_t pack_bytes,
                                   const char *what);
const fmr_place *fmr_heads_find(const fmr_heads *h, const fm_digest *id); /* NULL: none */
void fmr_place_info(const fmr_place *p, fm_record_info *out);

FM_END_DECLS
#endif
