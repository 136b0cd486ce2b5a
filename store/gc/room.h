/* room.h - the disk space that gc reserves to be able to begin on a full disk.
 *
 * REPO/reserve is an empty file with blocks of its own. gc removes it before it writes its first
 * byte and makes it again at the end. No other writer removes it, even if the disk is full. */
#ifndef FM_STORE_ROOM_H
#define FM_STORE_ROOM_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

/* For the list of the condemned, the index's log and a few small files, and for each object: a line
 * of the list and its row in the log together take less than FMS_ROOM_OBJECT_BYTES. */
#define FMS_ROOM_BYTES (256u << 10)
#define FMS_ROOM_OBJECT_BYTES 160u

/* Remove and make the reserve, if there is space for it. They keep the current error text. */
void fms_room_let_go(const char *root);
void fms_room_reserve(const char *root, uint64_t bytes);
/* Whether the current error is that of a full disk or quota, from fmstore, libgit2 or SQLite. */
bool fms_no_room(void);

FM_END_DECLS
#endif
