/* packer.h - one new pack, record by record: what gc and repack write.
 *
 * Bytes go to a temporary and are hashed on the way; publishing makes them durable under their name
 * and enters them into the index. Same records in the same order: same pack. */
#ifndef FM_STORE_PACKER_H
#define FM_STORE_PACKER_H

#include "store/store_priv.h"

FM_BEGIN_DECLS

typedef struct fmi_packer {
    fm_store *store;
    fm_writer *writer;
    fm_hasher *whole, *heads;
    uint64_t offset, records;
} fmi_packer;

/* features: what the records to come need of a reader (pack.h). */
FM_CHECKED fm_status fmi_packer_begin(fmi_packer *p, fm_store *s, uint32_t features);
/* A whole record as it lies in a pack (stored_bytes of it). */
FM_CHECKED fm_status fmi_packer_copy(fmi_packer *p, const fmi_record *r, const uint8_t *bytes);
/* A record made anew: head from r and rows, payload of r->payload_bytes. */
FM_CHECKED fm_status fmi_packer_add(fmi_packer *p, const fmi_record *r, const fmi_leaf_row *rows,
                                    fm_span payload);
/* Durable and indexed on return. */
FM_CHECKED fm_status fmi_packer_publish(fmi_packer *p, char name[FM_HEX_CHARS + 1]);
void fmi_packer_release(fmi_packer *p); /* removes what was not published */

FM_END_DECLS
#endif
