/* source_link.c - checks where the links in a folder lead. */
#include <string.h>

#include "store/import/source_impl.h"

/* In Hugging Face's cache, models--<name>/snapshots/<revision>/ links to models--<name>/blobs/. */
fm_status src_find_bounds(fm_source *src, const char *dir)
{
    fm_status rc = fm_path_real(&src->real, dir);
    const char *at = rc == FM_OK ? src->real : "";

    while ((at = strstr(at, "/models--"))) {
        const char *model = ++at, *end = strchr(model, '/');
        if (!end || strncmp(end, "/snapshots/", 11) != 0)
            continue;
        src->blobs = fm_asprintf("%.*s/blobs", (int)(end - src->real), src->real);
        return src->blobs ? FM_OK : FM_ENOMEM;
    }
    return rc;
}

static bool lies_in(const char *path, const char *dir)
{
    const size_t n = dir ? strlen(dir) : 0;

    return dir && strncmp(path, dir, n) == 0 && (path[n] == '/' || (n == 1 && path[n] != 0));
}

fm_status src_check_link(const fm_source *src, const char *dir, const char *name)
{
    char *path = fm_path_join(dir, name), *real = NULL;
    fm_status rc = path ? fm_path_real(&real, path) : FM_ENOMEM;

    if (rc == FM_OK && !lies_in(real, src->real) && !lies_in(real, src->blobs))
        rc = fm_fail(FM_EINVAL,
                     "%s: is a link to '%s', outside of the folder, and could be any file; if it "
                     "belongs to the model, put a copy in its place",
                     path, real);
    fm_free(path);
    fm_free(real);
    return rc;
}
