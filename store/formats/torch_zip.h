/* torch_zip.h - strict reader of the zip archives that torch.save writes.
 *
 * Accepts only what PyTorch's writer makes: entries stored and not compressed, below one folder,
 * zip64 and data descriptors allowed, nothing between the last record and the end of the file. Each
 * central record is compared with its local header, entries must not overlap, and names must be
 * relative paths without "..". CRCs are compared between the records but not with the bytes:
 * PyTorch has an option to write none. Method: PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.5. */
#ifndef FM_STORE_TORCH_ZIP_H
#define FM_STORE_TORCH_ZIP_H

#include "store/base/cursor.h"

FM_BEGIN_DECLS

#define FM_ZIP_MAX_ENTRIES 1100000u
#define FM_ZIP_MAX_NAME_BYTES 1024u

typedef struct fm_zip_entry {
    const char *name; /* below the archive's folder: "data.pkl", "data/0"; owned by the reader */
    uint64_t head;    /* where its local header begins */
    uint64_t at;      /* where its bytes begin, from the start of the file */
    uint64_t bytes;
} fm_zip_entry;

typedef struct fm_zip fm_zip; /* immutable once open */

/* Borrows the bytes, which must outlive *out. `what` names the file in errors. FM_ECORRUPT,
 * FM_ELIMIT; FM_EUNSUPPORTED for compressed and encrypted entries. */
FM_CHECKED fm_status fm_zip_parse(fm_zip **out, fm_span file, const char *what);
void fm_zip_close(fm_zip *zip);
size_t fm_zip_count(const fm_zip *zip);
const fm_zip_entry *fm_zip_at(const fm_zip *zip, size_t i);           /* in the file's order */
const fm_zip_entry *fm_zip_find(const fm_zip *zip, const char *name); /* NULL = absent */
fm_span fm_zip_bytes(const fm_zip *zip, const fm_zip_entry *e);

FM_END_DECLS
#endif
