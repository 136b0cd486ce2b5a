/* sums.c - digests of files that are made from tensors, kept as small files that may be deleted at
 * any time: their names are digests of what the bytes follow from. */
#include <string.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define KEPT_MAX 4096u /* files; then all go */

static char *path_for(const char *dir, fm_span of)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest d;
    if (fm_sha256(&d, of.data, of.len) != FM_OK)
        return NULL;
    fm_digest_hex(&d, hex);
    return fm_asprintf("%s/cache/hub/%s", dir, hex);
}

void fmr_sums_read(const char *dir, fm_span of, char sha256[65], bool *found)
{
    char *path = path_for(dir, of);
    fm_digest d;
    fm_buf text;
    fm_buf_init(&text, FM_HEX_CHARS);
    *found = path && fm_read_file(&text, path, FM_HEX_CHARS) == FM_OK &&
             fm_digest_parse(&d, fm_buf_cstr(&text), text.len);
    if (*found)
        fm_digest_hex(&d, sha256);
    else
        fm_error_clear();
    fm_buf_release(&text);
    fm_free(path);
}

static fm_status make_room(const char *folder)
{
    fm_names names;
    FM_TRY(fm_make_dirs(folder));
    FM_TRY(fm_list_dir(&names, folder));
    const bool full = names.count >= KEPT_MAX;
    fm_names_release(&names);
    if (!full)
        return FM_OK;
    FM_TRY(fm_remove_tree(folder));
    return fm_make_dirs(folder);
}

void fmr_sums_keep(const char *dir, fm_span of, const char *sha256)
{
    char *folder = fm_asprintf("%s/cache/hub", dir), *path = path_for(dir, of);
    fm_writer *w = NULL;
    fm_status rc = folder && path ? make_room(folder) : FM_ENOMEM;
    FM_THEN(rc, fm_writer_open(&w, path, NULL));
    FM_THEN(rc, fm_writer_write(w, sha256, strlen(sha256)));
    FM_THEN(rc, fm_writer_place(w, path));
    fm_writer_close(w);
    fm_free(folder);
    fm_free(path);
    fm_error_clear();
}
