/* downloads.c - what imports from a Hub left in incoming-hub/ (remote/hub/cache.h): a folder and
 * its lock file, which the import holds and whose time is that of its last run. */
#include "lineage/internal.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/io.h"

static const char suffix[] = ".lock";

/* Removes one folder unless somebody holds it, or held it since. */
static fm_status expire_one(const char *dir, const char *name, int64_t expire)
{
    const size_t stem = strlen(name) - strlen(suffix);
    char *path = fm_path_join(dir, name);
    char *folder = path ? fm_strndup(path, strlen(dir) + 1 + stem) : NULL;
    fm_lock *lock = NULL;
    int64_t ns = 0;
    fm_status rc = folder ? fm_file_time(&ns, path) : FM_ENOMEM;
    if (rc == FM_OK && ns / 1000000000 <= expire) {
        rc = fm_lock_try(&lock, path);
        FM_THEN(rc, fm_remove_tree(folder));
        if (rc == FM_OK)
            fm_lock_end(lock, path);
        else
            fm_lock_drop(lock);
        if (rc == FM_ECONFLICT) {
            fm_error_clear();
            rc = FM_OK;
        }
    }
    fm_free(path);
    fm_free(folder);
    return rc;
}

fm_status fml_downloads_expire(fm_repo *r, int64_t expire)
{
    char *dir = fm_path_join(r->path, "incoming-hub");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && fm_path_is_dir(dir) && expire != INT64_MIN)
        rc = fm_list_dir(&names, dir);
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        const size_t n = strlen(names.name[i]), end = strlen(suffix);
        if (n > end && strcmp(names.name[i] + n - end, suffix) == 0)
            rc = expire_one(dir, names.name[i], expire);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}
