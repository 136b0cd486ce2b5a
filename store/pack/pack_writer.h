/* pack_writer.h - writes one new pack, record by record, for transactions, gc and repack.
 *
 * Bytes go to a temporary and are hashed on the way; sealing ends the pack and gives it its name,
 * placing makes it durable and indexes it. The same records in the same order give the same
 * pack. */
#ifndef FM_STORE_PACK_WRITER_H
#define FM_STORE_PACK_WRITER_H

#include "store/pack/store_priv.h"

FM_BEGIN_DECLS

typedef struct fms_packer {
    fm_store *store;
    fm_writer *writer;
    fm_hasher *whole, *heads;
    fm_buf head;
    uint32_t features; /* features in its header */
    uint64_t offset, records;
    char name[FM_HEX_CHARS + 1]; /* set when sealed */
} fms_packer;

/* features: those that the records need of a reader (pack.h). */
FM_CHECKED fm_status fms_packer_begin(fms_packer *p, fm_store *s, uint32_t features);
void fms_packer_release(fms_packer *p); /* removes an unplaced file; p may be all zeros */

/* A new record: its head, from r and rows, r->payload_bytes of payload in any pieces, its end. */
FM_CHECKED fm_status fms_packer_head(fms_packer *p, const fms_record *r, const fms_leaf_row *rows);
FM_CHECKED fm_status fms_packer_payload(fms_packer *p, const void *data, size_t len);
FM_CHECKED fm_status fms_packer_end(fms_packer *p, const fms_record *r);
FM_CHECKED fm_status fms_packer_add(fms_packer *p, const fms_record *r, const fms_leaf_row *rows,
                                    fm_span payload); /* head, payload, end */
/* Copies a whole record of another pack, which has r->stored_bytes. */
FM_CHECKED fm_status fms_packer_copy(fms_packer *p, const fms_record *r, const uint8_t *bytes);

FM_CHECKED fm_status fms_packer_seal(fms_packer *p); /* no record can be added any more */
/* Places a sealed pack; store.lock must be held. Durable and indexed on return. */
FM_CHECKED fm_status fms_packer_place(fms_packer *p);
/* Seals, takes the lock, places. */
FM_CHECKED fm_status fms_packer_publish(fms_packer *p);

FM_END_DECLS
#endif
