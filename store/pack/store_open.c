/* store_open.c - makes a repository's store, opens and closes it. */
#include "store/pack/store_priv.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

#define FORMAT_TEXT "fmstore store "
enum { FORMAT_VERSION = 1, FORMAT_MAX_BYTES = 256 };

static char *format_path(const char *root)
{
    return fm_path_join(root, "format");
}

fm_status fm_store_init(const char *root)
{
    static const char *const folder[] = {"packs", "tmp"};
    char *format = format_path(root);
    if (!format)
        return FM_ENOMEM;
    fm_status rc = FM_OK;
    if (fm_path_exists(format))
        rc = fm_fail(FM_EEXISTS, "%s: there is a repository here already", root);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(folder); i++) {
        char *dir = fm_path_join(root, folder[i]);
        rc = dir ? fm_make_dirs(dir) : FM_ENOMEM;
        fm_free(dir);
    }
    char text[64];
    snprintf(text, sizeof text, FORMAT_TEXT "%d\n", FORMAT_VERSION);
    FM_THEN(rc, fm_write_file(format, text, strlen(text))); /* last: this file makes a repository */
    fm_free(format);
    return rc;
}

static fm_status check_format(const char *root)
{
    char *path = format_path(root);
    if (!path)
        return FM_ENOMEM;
    fm_buf text;
    fm_buf_init(&text, FORMAT_MAX_BYTES);
    fm_status rc = fm_read_file(&text, path, FORMAT_MAX_BYTES);
    const char *t = fm_buf_cstr(&text);
    size_t head = strlen(FORMAT_TEXT);
    if (rc == FM_ENOTFOUND)
        rc = fm_fail(FM_ENOTFOUND, "%s: no repository here (its file 'format' is missing)", root);
    else if (rc == FM_OK && strncmp(t, FORMAT_TEXT, head) != 0)
        rc = fm_fail(FM_ECORRUPT, "%s: is not what a repository has here", path);
    else if (rc == FM_OK && strcmp(t + head, "1\n") != 0)
        rc =
            fm_fail(FM_EVERSION, "%s: written by a newer fmstore, format %.*s; nothing was changed",
                    root, (int)FM_MIN(strcspn(t + head, "\n"), (size_t)16), t + head);
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

fm_status fm_store_open(fm_store **out, const char *root)
{
    *out = NULL;
    FM_TRY(check_format(root));
    fm_store *s = fm_calloc(1, sizeof *s);
    if (!s)
        return FM_ENOMEM;
    pthread_mutex_init(&s->mutex, NULL);
    s->root = fm_strdup(root);
    s->packs_dir = fm_path_join(root, "packs");
    s->tmp_dir = fm_path_join(root, "tmp");
    s->index_path = fm_path_join(root, "index.sqlite");
    s->lock_path = fm_path_join(root, "store.lock");
    fm_status rc =
        s->root && s->packs_dir && s->tmp_dir && s->index_path && s->lock_path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        fm_remove_dead_temps(s->tmp_dir);
    FM_THEN(rc, fms_index_open(&s->index, s->index_path));
    FM_THEN(rc, fms_store_look(s));
    if (rc != FM_OK) {
        fm_store_close(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

void fm_store_close(fm_store *s)
{
    if (!s)
        return;
    fm_store_lease_end(s);
    fms_store_forget_recent(s);
    while (s->open) {
        fms_open_pack *p = s->open;
        s->open = p->next;
        fm_unmap_verified(&p->map);
        fm_free(p);
    }
    for (size_t i = 0; i < s->idle_count; i++)
        fms_coder_free(s->idle[i]);
    fms_index_close(s->index);
    pthread_mutex_destroy(&s->mutex);
    fm_free(s->root);
    fm_free(s->packs_dir);
    fm_free(s->tmp_dir);
    fm_free(s->index_path);
    fm_free(s->lock_path);
    fm_free(s);
}
