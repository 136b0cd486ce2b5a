/* room.c - see room.h: a reserve of blocks for gc on a full disk. */
#include "store/gc/room.h"

#include <errno.h>
#include <string.h>

#include "store/base/error.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

static const char name[] = "reserve";

void fms_room_let_go(const char *root)
{
    fm_error_state kept;
    fm_error_save(&kept);
    char *path = fm_path_join(root, name);
    if (path)
        fm_ignore(fm_remove_file(path), "there may be none");
    fm_free(path);
    fm_error_restore(&kept);
}

static fm_status reserve(const char *root, const char *path, uint64_t bytes)
{
    fm_writer *w = NULL;
    char *tmp = fm_path_join(root, "tmp");
    fm_status rc = tmp ? fm_writer_open(&w, path, tmp) : FM_ENOMEM;
    FM_THEN(rc, fm_writer_reserve(w, bytes));
    FM_THEN(rc, fm_writer_commit(w, NULL));
    fm_writer_close(w);
    fm_free(tmp);
    return rc;
}

void fms_room_reserve(const char *root, uint64_t bytes)
{
    fm_error_state kept;
    fm_error_save(&kept);
    char *path = fm_path_join(root, name);
    if (path)
        fm_ignore(reserve(root, path, bytes), "the next gc tries again");
    fm_free(path);
    fm_error_restore(&kept);
}

bool fms_no_room(void)
{
    static const int codes[] = {ENOSPC, EDQUOT};
    const char *text = fm_error_text();
    for (size_t i = 0; i < FM_ARRAY_LEN(codes); i++)
        if (strstr(text, strerror(codes[i])))
            return true;
    return strstr(text, "database or disk is full") != NULL;
}
