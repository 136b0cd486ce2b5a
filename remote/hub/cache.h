/* cache.h - the folders in which files of a model lie: Hugging Face's cache, which is read alone,
 * and the one in which downloads gather.
 *
 *   CACHE/models--org--name/refs/<revision>             the commit that it was
 *   CACHE/models--org--name/snapshots/<commit>/<file>   a link to
 *   CACHE/models--org--name/blobs/<etag>                a file by its digest
 *
 *   REPO/incoming-hub/<key>/files/    whole files; <key> is made of endpoint, model and commit
 *   REPO/incoming-hub/<key>/parts/    files on their way
 *   REPO/incoming-hub/<key>.lock      who gathers them; gc removes what nobody holds, in time */
#ifndef FM_REMOTE_HUB_CACHE_H
#define FM_REMOTE_HUB_CACHE_H

#include "remote/hub/address.h"
#include "remote/hub/listing.h"
#include "store/base/os/io.h"

FM_BEGIN_DECLS

/* The path of a snapshot's folder; *out NULL: there is no cache, or it has no such snapshot. */
FM_CHECKED fm_status fmr_cache_snapshot(char **out, const fmr_hub_env *env, const char *repo,
                                        const char *commit);
/* The commit that a revision was when the cache last saw it, or "" where it never did. */
FM_CHECKED fm_status fmr_cache_commit(char out[41], const fmr_hub_env *env, const char *repo,
                                      const char *revision);
/* The path of the cached file with these very bytes, by its name; NULL as above. */
FM_CHECKED fm_status fmr_cache_blob(char **out, const fmr_hub_env *env, const char *repo,
                                    const fmr_hub_file *file);
/* Whether folder has every file that is to be taken. A file counts by its size, and by its bytes
 * where it is not in LFS; those in LFS, which may be large, are compared after they were hashed for
 * the import (fmr_hub_check). */
FM_CHECKED fm_status fmr_folder_has_all(bool *yes, const char *folder, const fmr_listing *l);
FM_CHECKED fm_status fmr_folder_has(bool *yes, const char *folder, const fmr_hub_file *file);
/* Git's id of a file of at most FMR_HUB_PLAIN_MAX_BYTES, as a blob, in hex. */
FM_CHECKED fm_status fmr_git_id(char out[41], const char *path, uint64_t bytes);

typedef struct fmr_gathering {
    char *files, *parts; /* folders */
    char *dir, *lock_path;
    fm_lock *lock;
} fmr_gathering;
/* Makes the folders and takes the lock. FM_ECONFLICT: another process gathers the same. */
FM_CHECKED fm_status fmr_gathering_open(fmr_gathering *out, const char *repo_path, const char *key);
void fmr_gathering_close(fmr_gathering *g, bool remove); /* zeroed: nothing */
/* Makes the folder of a file's path below `folder`; the path: fm_free. */
FM_CHECKED fm_status fmr_path_for(char **out, const char *folder, const char *name);

FM_END_DECLS
#endif
