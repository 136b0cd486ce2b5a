/* stored.h - which version of a repository was imported from a file with a given SHA-256. */
#ifndef FM_REMOTE_HUB_STORED_H
#define FM_REMOTE_HUB_STORED_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

typedef struct fmr_stored_ask {
    fm_digest sha256;
    bool found; /* out */
    fm_oid oid; /* out: a version whose source.json names it */
} fmr_stored_ask;
/* Looks at source/source.json of every version that a branch or tag reaches, newest first, until
 * all are found; versions that cannot be read are passed over. */
FM_CHECKED fm_status fmr_stored_find(fm_repo *r, fmr_stored_ask *ask, size_t count);
/* Makes the file again from that version, at path. */
FM_CHECKED fm_status fmr_stored_write(fm_repo *r, const fmr_stored_ask *ask, const char *path);

FM_END_DECLS
#endif
