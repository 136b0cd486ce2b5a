/* index.h - the places of objects: a SQLite file that is a cache of the packs, never the truth.
 *
 * It can be deleted at any time; opening the store fills it again by scanning. So it is written
 * with synchronous=NORMAL in WAL mode: a power cut may lose the last rows, never a pack, and a pack
 * whose row is missing is scanned again. SQLite keeps no checksums, so rows may be wrong: a reader
 * compares what a row points at, and fms_index_reset makes a new file. An object may be in several
 * packs (two processes may have stored it at once); all places are kept, so that losing one pack
 * costs nothing. Not to be shared between threads: the store's mutex guards it. */
#ifndef FM_STORE_INDEX_H
#define FM_STORE_INDEX_H

#include "store/pack/pack.h"

FM_BEGIN_DECLS

typedef struct fms_index fms_index;

/* Opens or makes the file. A damaged or foreign file is replaced; where the file or its folder
 * cannot be written, the index lives in memory. */
FM_CHECKED fm_status fms_index_open(fms_index **out, const char *path);
void fms_index_close(fms_index *ix);
/* Deletes the file and makes an empty one; pack rows are numbered from 1 again. Processes that have
 * the old file open keep it. No change may be open. */
FM_CHECKED fm_status fms_index_reset(fms_index *ix);
/* Uses an empty index in memory from now on; the file stays as it is. */
FM_CHECKED fm_status fms_index_to_memory(fms_index *ix);
/* FM_ECORRUPT where SQLite finds the file's structure damaged. Reads the whole file. */
FM_CHECKED fm_status fms_index_check(fms_index *ix);

typedef struct fms_place {
    int64_t pack; /* row of the pack */
    uint64_t offset;
    uint64_t stored_bytes;
    bool bad; /* a full fsck found that it does not decode */
    uint32_t parent_count;
    fm_digest parent[FMS_PARENTS_MAX];
} fms_place;
/* The nth place of id, sound ones first. FM_ENOTFOUND, without setting a text: there is none. */
FM_CHECKED fm_status fms_index_find(fms_index *ix, const fm_digest *id, uint32_t nth,
                                    fms_place *out);
FM_CHECKED fm_status fms_index_mark_bad(fms_index *ix, const fm_digest *id, int64_t pack,
                                        uint64_t offset, bool bad);

/* The time of packs/ when the rows agreed with it; 0: not known. set: FM_EIO, if others are
 * writing. */
FM_CHECKED fm_status fms_index_folder(fms_index *ix, int64_t *seen);
FM_CHECKED fm_status fms_index_set_folder(fms_index *ix, int64_t seen);

/* One change: packs and objects put between begin and end appear together. */
FM_CHECKED fm_status fms_index_begin(fms_index *ix);
/* Commits the change if rc is FM_OK, else rolls it back. Returns rc, or why the commit failed. */
FM_CHECKED fm_status fms_index_end(fms_index *ix, fm_status rc);
/* name: 64 hex digits. sound: false for a pack whose frame is damaged (it gets no objects). Sets
 * *pack; *known: the pack was there before with the same `sound`, and nothing was done. */
FM_CHECKED fm_status fms_index_put_pack(fms_index *ix, const char *name, uint64_t bytes, bool sound,
                                        int64_t *pack, bool *known);
FM_CHECKED fm_status fms_index_put_object(fms_index *ix, int64_t pack, uint64_t offset,
                                          const fms_record *r);
FM_CHECKED fm_status fms_index_drop_pack(fms_index *ix, int64_t pack);
/* Missing packs stay noted. What was marked as bad is marked again, where the same pack is back, by
 * fms_index_mark_again: a scan decodes nothing, so it finds no damage of leaves. */
FM_CHECKED fm_status fms_index_drop_all(fms_index *ix);
FM_CHECKED fm_status fms_index_mark_again(fms_index *ix);

/* Drops the rows of a pack whose file gc did not remove, and notes its name as missing: gc deletes
 * nothing while a pack is missing. fms_index_put_pack and fms_index_forget_missing end that. */
FM_CHECKED fm_status fms_index_miss_pack(fms_index *ix, int64_t pack);
FM_CHECKED fm_status fms_index_missing(fms_index *ix, char name[FM_HEX_CHARS + 1], uint64_t *count);
FM_CHECKED fm_status fms_index_forget_missing(fms_index *ix);

/* true: each change is on the disk when fms_index_end returns; gc needs that, since after a power
 * cut no row may name a removed pack. No change may be open. */
FM_CHECKED fm_status fms_index_durable(fms_index *ix, bool yes);

/* Calls fn for every pack, by row; fn must not change the index. */
typedef fm_status (*fms_pack_row_fn)(void *ctx, int64_t pack, const char *name, uint64_t bytes,
                                     bool sound);
FM_CHECKED fm_status fms_index_packs(fms_index *ix, fms_pack_row_fn fn, void *ctx);
/* Likewise, those first whose last full fsck was longest ago; fms_index_verified records one. */
FM_CHECKED fm_status fms_index_oldest(fms_index *ix, fms_pack_row_fn fn, void *ctx);
FM_CHECKED fm_status fms_index_verified(fms_index *ix, const char *name, int64_t time);
/* Calls fn for every id with a place that is marked bad; fn must not change the index. */
typedef fm_status (*fms_id_fn)(void *ctx, const fm_digest *id);
FM_CHECKED fm_status fms_index_bad(fms_index *ix, fms_id_fn fn, void *ctx);
/* Name and size of the pack with this row. */
FM_CHECKED fm_status fms_index_pack_at(fms_index *ix, int64_t pack, char name[FM_HEX_CHARS + 1],
                                       uint64_t *bytes);
/* Calls fn for every id once, ascending; fn must not use the index. */
typedef fm_status (*fms_id_fn)(void *ctx, const fm_digest *id);
FM_CHECKED fm_status fms_index_ids(fms_index *ix, fms_id_fn fn, void *ctx);
FM_CHECKED fm_status fms_index_count(fms_index *ix, int64_t pack, uint64_t *objects);
FM_CHECKED fm_status fms_index_totals(fms_index *ix, uint64_t *objects, uint64_t *bytes_decoded,
                                      uint64_t *packs, uint64_t *bytes_packs);

FM_END_DECLS
#endif
