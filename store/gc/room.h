/* room.h - the little that gc needs to begin on a full disk.
 *
 * REPO/reserve is an empty file with blocks of its own. gc lets go of it before it writes its first
 * byte and makes it again when it has ended. Any writer may find the disk full; only gc frees it. */
#ifndef FM_STORE_ROOM_H
#define FM_STORE_ROOM_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

/* The list of the condemned, the index's log, the names of a few small files; a line of the list is
 * at most FMS_ROOM_OBJECT_BYTES, and the log takes about as much for a row. */
#define FMS_ROOM_BYTES (256u << 10)
#define FMS_ROOM_OBJECT_BYTES 160u

/* Both do what they can: without room nothing is reserved. They keep the current error text. */
void fms_room_let_go(const char *root);
void fms_room_reserve(const char *root, uint64_t bytes);
/* The current error is that of a full disk or a quota, whoever found it: we, libgit2 or SQLite. */
bool fms_no_room(void);

FM_END_DECLS
#endif
