/* util.c - helpers of all files here: libgit2's errors as fm_status, ids as text, the lock of the
 * repository's refs. */
#include "lineage/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static fm_status status_of(int code)
{
    const git_error *e = git_error_last();

    switch (code) {
    case GIT_ENOTFOUND:
        return FM_ENOTFOUND;
    case GIT_EEXISTS:
        return FM_EEXISTS;
    case GIT_EMODIFIED:
    case GIT_ELOCKED:
        return FM_ECONFLICT;
    case GIT_EINVALIDSPEC:
    case GIT_EAMBIGUOUS:
    case GIT_EINVALID:
        return FM_EINVAL;
    case GIT_EMISMATCH:
        return FM_ECORRUPT;
    default:
        break;
    }
    if (!e)
        return FM_EIO;
    if (e->klass == GIT_ERROR_NOMEMORY)
        return FM_ENOMEM;
    if (e->klass == GIT_ERROR_REFERENCE) /* e.g. a name that is a folder of other refs */
        return FM_EINVAL;
    if (e->klass == GIT_ERROR_ODB || e->klass == GIT_ERROR_OBJECT || e->klass == GIT_ERROR_TREE ||
        e->klass == GIT_ERROR_CONFIG || e->klass == GIT_ERROR_ZLIB || e->klass == GIT_ERROR_INDEXER)
        return FM_ECORRUPT;
    return FM_EIO;
}

static fm_status git_fail_v(fm_status status, const char *fmt, va_list args)
{
    const git_error *e = git_error_last();
    char text[600];

    (void)vsnprintf(text, sizeof text, fmt, args);
    if (!e || !e->message)
        return fm_fail(status, "%s", text);
    return fm_fail(status, "%s: %s", text, e->message);
}

fm_status fml_git_fail(int code, const char *fmt, ...)
{
    va_list args;
    fm_status rc = status_of(code);

    va_start(args, fmt);
    rc = git_fail_v(rc, fmt, args);
    va_end(args);
    return rc;
}

fm_status fml_damage(int code, const char *fmt, ...)
{
    va_list args;
    fm_status rc = status_of(code);

    if (rc == FM_ENOTFOUND || rc == FM_EINVAL || rc == FM_EEXISTS)
        rc = FM_ECORRUPT;
    va_start(args, fmt);
    rc = git_fail_v(rc, fmt, args);
    va_end(args);
    return rc;
}

void fm_oid_hex(const fm_oid *oid, char out[41])
{
    static const char digit[] = "0123456789abcdef";

    for (size_t i = 0; i < sizeof oid->b; i++) {
        out[2 * i] = digit[oid->b[i] >> 4];
        out[2 * i + 1] = digit[oid->b[i] & 15];
    }
    out[40] = '\0';
}

bool fm_oid_eq(const fm_oid *a, const fm_oid *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

fm_status fml_ref_lock(fm_repo *r, fm_lock **out)
{
    *out = NULL;
    return fm_lock_take(out, r->lock_path);
}
