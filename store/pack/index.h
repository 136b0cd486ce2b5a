/* index.h - where each object lies: a SQLite file that is a cache of the packs, never the truth.
 *
 * It can be deleted at any time; opening the store fills it again by scanning. So it is written
 * with synchronous=NORMAL in WAL mode: a power cut may lose the last rows, never a pack, and a
 * pack whose row is missing is scanned again. SQLite keeps no checksums, so rows may be
 * rubbish: whoever follows one compares what lies there, and fmi_index_reset starts afresh.
 * An object may lie in several packs (two processes
 * may have stored it at once); all places are kept, so that losing one pack costs nothing.
 * Not for sharing between threads: the store guards it. */
#ifndef FM_STORE_INDEX_H
#define FM_STORE_INDEX_H

#include "store/pack/pack.h"

FM_BEGIN_DECLS

typedef struct fmi_index fmi_index;

/* Opens or makes the file. A damaged or foreign file is replaced; where the file or its folder
 * cannot be written, the index lives in memory. */
FM_CHECKED fm_status fmi_index_open(fmi_index **out, const char *path);
void fmi_index_close(fmi_index *ix);
/* Deletes the file and makes an empty one; pack rows are numbered from 1 again. Others that have
 * the old file open keep it. No change may be open. */
FM_CHECKED fm_status fmi_index_reset(fmi_index *ix);
/* From now on an empty one in memory; the file stays as it is. */
FM_CHECKED fm_status fmi_index_to_memory(fmi_index *ix);
/* FM_ECORRUPT where SQLite finds the file's own structure damaged. Reads all of it. */
FM_CHECKED fm_status fmi_index_check(fmi_index *ix);

typedef struct fmi_place {
    int64_t pack; /* row of the pack */
    uint64_t offset;
    uint64_t stored_bytes;
    bool bad; /* a full fsck found that it does not decode */
    uint32_t parent_count;
    fm_digest parent[FMI_PARENTS_MAX];
} fmi_place;
/* The nth place of id, sound ones first. FM_ENOTFOUND (without text of its own) when there is none.
 */
FM_CHECKED fm_status fmi_index_find(fmi_index *ix, const fm_digest *id, uint32_t nth,
                                    fmi_place *out);
FM_CHECKED fm_status fmi_index_mark_bad(fmi_index *ix, const fm_digest *id, int64_t pack,
                                        uint64_t offset, bool bad);

/* The time of packs/ at which the rows agreed with it; 0: not known. set does not wait for other
 * writers: FM_EIO. */
FM_CHECKED fm_status fmi_index_folder(fmi_index *ix, int64_t *seen);
FM_CHECKED fm_status fmi_index_set_folder(fmi_index *ix, int64_t seen);

/* One change: packs and objects put between begin and end appear together. */
FM_CHECKED fm_status fmi_index_begin(fmi_index *ix);
/* Keeps the change if rc is FM_OK, else undoes it. Returns rc with its text, or why not kept. */
FM_CHECKED fm_status fmi_index_end(fmi_index *ix, fm_status rc);
/* name: 64 hex digits. sound: false for a pack whose frame is damaged (it gets no objects). Sets
 * *pack; *known says that the pack was there before with the same judgement, and nothing was done.
 */
FM_CHECKED fm_status fmi_index_put_pack(fmi_index *ix, const char *name, uint64_t bytes, bool sound,
                                        int64_t *pack, bool *known);
FM_CHECKED fm_status fmi_index_put_object(fmi_index *ix, int64_t pack, uint64_t offset,
                                          const fmi_record *r);
FM_CHECKED fm_status fmi_index_drop_pack(fmi_index *ix, int64_t pack);
FM_CHECKED fm_status fmi_index_drop_all(fmi_index *ix); /* missing packs stay noted */

/* Drops the rows of a pack whose file nobody of ours removed, and notes its name: gc deletes nothing
 * while a pack is missing. A pack that is put in again, or forgotten, is missing no more. */
FM_CHECKED fm_status fmi_index_miss_pack(fmi_index *ix, int64_t pack);
FM_CHECKED fm_status fmi_index_missing(fmi_index *ix, char name[FM_HEX_CHARS + 1], uint64_t *count);
FM_CHECKED fm_status fmi_index_forget_missing(fmi_index *ix);

/* true: each change is on the disk when fmi_index_end returns, as deleting needs it: after a power
 * cut no row may name a pack that was removed. No change may be open. */
FM_CHECKED fm_status fmi_index_durable(fmi_index *ix, bool yes);

/* Every pack, by row. The callback must not change the index. */
typedef fm_status (*fmi_pack_row_fn)(void *ctx, int64_t pack, const char *name, uint64_t bytes,
                                     bool sound);
FM_CHECKED fm_status fmi_index_packs(fmi_index *ix, fmi_pack_row_fn fn, void *ctx);
/* Likewise, those first whose last full fsck was longest ago; fmi_index_verified remembers one. */
FM_CHECKED fm_status fmi_index_oldest(fmi_index *ix, fmi_pack_row_fn fn, void *ctx);
FM_CHECKED fm_status fmi_index_verified(fmi_index *ix, const char *name, int64_t time);
/* Every id with a place that is marked bad; fn must not change the index. */
typedef fm_status (*fmi_id_fn)(void *ctx, const fm_digest *id);
FM_CHECKED fm_status fmi_index_bad(fmi_index *ix, fmi_id_fn fn, void *ctx);
/* The pack with this row: name (65 bytes) and size. */
FM_CHECKED fm_status fmi_index_pack_at(fmi_index *ix, int64_t pack, char name[FM_HEX_CHARS + 1],
                                       uint64_t *bytes);
/* Every id once, ascending. The callback must not use the index. */
typedef fm_status (*fmi_id_fn)(void *ctx, const fm_digest *id);
FM_CHECKED fm_status fmi_index_ids(fmi_index *ix, fmi_id_fn fn, void *ctx);
FM_CHECKED fm_status fmi_index_count(fmi_index *ix, int64_t pack, uint64_t *objects);
FM_CHECKED fm_status fmi_index_totals(fmi_index *ix, uint64_t *objects, uint64_t *bytes_decoded,
                                      uint64_t *packs, uint64_t *bytes_packs);

FM_END_DECLS
#endif
