/* pack_writer.h - one new pack, record by record: what transactions, gc and repack write.
 *
 * Bytes go to a temporary and are hashed on the way; sealing ends the pack and gives it its name, placing makes
 * it durable under that and enters it into the index. Same records in the same order: same pack. */
#ifndef FM_STORE_PACKER_H
#define FM_STORE_PACKER_H

#include "store/pack/store_priv.h"

FM_BEGIN_DECLS

typedef struct fmi_packer {
    fm_store *store;
    fm_writer *writer;
    fm_hasher *whole, *heads;
    fm_buf head;
    uint32_t features; /* of its header */
    uint64_t offset, records;
    char name[FM_HEX_CHARS + 1]; /* once sealed */
} fmi_packer;

/* features: what the records to come need of a reader (pack.h). */
FM_CHECKED fm_status fmi_packer_begin(fmi_packer *p, fm_store *s, uint32_t features);
void fmi_packer_release(fmi_packer *p); /* removes what was not placed; zeros: fine */

/* A record made anew: its head, from r and rows; then r->payload_bytes of payload in any pieces; then its end. */
FM_CHECKED fm_status fmi_packer_head(fmi_packer *p, const fmi_record *r, const fmi_leaf_row *rows);
FM_CHECKED fm_status fmi_packer_payload(fmi_packer *p, const void *data, size_t len);
FM_CHECKED fm_status fmi_packer_end(fmi_packer *p, const fmi_record *r);
FM_CHECKED fm_status fmi_packer_add(fmi_packer *p, const fmi_record *r, const fmi_leaf_row *rows,
                                    fm_span payload); /* all three */
/* A whole record as it lies in a pack (stored_bytes of it). */
FM_CHECKED fm_status fmi_packer_copy(fmi_packer *p, const fmi_record *r, const uint8_t *bytes);

FM_CHECKED fm_status fmi_packer_seal(fmi_packer *p); /* nothing is added any more */
/* Of a sealed pack; store.lock must be held. Durable and indexed on return. */
FM_CHECKED fm_status fmi_packer_place(fmi_packer *p);
/* Seals, takes the lock, places. */
FM_CHECKED fm_status fmi_packer_publish(fmi_packer *p);

FM_END_DECLS
#endif
