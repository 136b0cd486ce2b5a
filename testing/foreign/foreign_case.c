/* foreign_case.c - helpers of the readers: building JSON, adding a case under its own name. */
#include "testing/foreign/foreign.h"

#include <string.h>

#include "store/base/mem.h"

void fmv_foreign_text(fm_status *rc, fm_json *o, const char *key, fm_span text)
{
    FM_THEN(*rc, fm_json_set(o, key,
                             fm_json_new_strn(text.data ? (const char *)text.data : "", text.len)));
}

fm_status fmv_foreign_keep(char **to, const fm_json *v)
{
    const char *text = fm_json_cstr(v, NULL);
    if (!text || !*text || *to)
        return FM_OK;
    *to = fm_strdup(text);
    return *to ? FM_OK : FM_ENOMEM;
}

/* Makes a case's name: one line, no control bytes, at most 150 bytes; numbered if it is taken. */
static fm_status name_case(fm_buf *out, const fmv_foreign *f, const char *name)
{
    fm_span s = fmv_clip(fm_span_str(name), 150);
    fm_buf_init(out, 0);
    for (size_t i = 0; i < s.len; i++)
        fm_buf_char(out, s.data[i] < 0x20 || s.data[i] == 0x7f ? ' ' : (char)s.data[i]);
    /* A name's value in the map is the last number given to it, so that the next free number of a
     * frequent name is found at once. */
    const size_t own = out->len;
    uintptr_t k = (uintptr_t)fm_map_get(f->names, fm_buf_cstr(out), own);
    fm_status rc = fm_buf_ok(out);
    char *base = rc == FM_OK ? fm_strndup(fm_buf_cstr(out), own) : NULL;
    if (rc == FM_OK && !base)
        rc = FM_ENOMEM;
    while (rc == FM_OK && fm_map_has(f->names, fm_buf_cstr(out), out->len)) {
        out->len = own;
        fm_buf_printf(out, "-%zu", (size_t)++k);
        rc = fm_buf_ok(out);
    }
    if (rc == FM_OK && k)
        rc = fm_map_put(f->names, base, own, (void *)k, NULL);
    if (rc == FM_OK) /* 1: the next case of this name is -2 */
        rc = fm_map_put(f->names, fm_buf_cstr(out), out->len, (void *)(uintptr_t)1, NULL);
    fm_free(base);
    return rc;
}

fm_status fmv_foreign_add(fmv_foreign *f, fm_json *c, const char *name)
{
    fm_buf text, own;
    fm_json *named = fm_json_new_object();
    fm_buf_init(&text, 0);
    fm_status rc = name_case(&own, f, name);
    if (rc == FM_OK && !named)
        rc = FM_ENOMEM;
    FM_THEN(rc, fm_json_write(&text, c, FM_JSON_COMPACT));
    if (rc == FM_OK && (text.len + 200 > f->bytes || fm_json_count(f->cases) >= FMV_CASES_MAX))
        rc = fm_fail(FM_ELIMIT, "%s: makes more than %u cases or %zu bytes", f->what, FMV_CASES_MAX,
                     FMV_SUITE_BYTES_MAX);
    fmv_foreign_text(&rc, named, "name", fm_buf_span(&own));
    for (void *it = fm_json_iter(c); it && rc == FM_OK; it = fm_json_next(c, it))
        rc = fm_json_set(named, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    if (rc == FM_OK) {
        f->bytes -= text.len + 200;
        rc = fm_json_push(f->cases, fm_json_ref(named));
    }
    fm_json_free(named);
    fm_json_free(c);
    fm_buf_release(&text);
    fm_buf_release(&own);
    return rc;
}
