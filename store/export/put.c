/* put.c - writes small files of an export. */
#include "store/export/export_impl.h"

#include "store/base/mem.h"

fm_status exp_put_file(const char *dst, const char *name, fm_span bytes)
{
    char *path = fm_path_join(dst, name);
    fm_status rc = path ? fm_write_file(path, bytes.data, bytes.len) : FM_ENOMEM;

    fm_free(path);
    return rc;
}

fm_status exp_put_entry(const char *dst, const char *name, const fm_provider *p, const fm_entry *e)
{
    fm_buf bytes;
    fm_status rc;

    fm_buf_init(&bytes, 0);
    rc = fm_entry_read(&bytes, p, e);
    FM_THEN(rc, exp_put_file(dst, name, fm_buf_span(&bytes)));
    fm_buf_release(&bytes);
    return rc;
}
