/* store_lease.c - an open store's lease: taken once, kept until the handle is closed. */
#include "store/pack/store_priv.h"

fm_status fm_store_lease(fm_store *s, bool writes, const char *what)
{
    if (s->lease && (fms_lease_writes(s->lease) || !writes))
        return FM_OK;
    fms_lease *lease;
    FM_TRY(fms_lease_begin(&lease, s->root, writes, what));

    fm_status rc = fms_lease_inherit(lease, s->lease);
    if (rc != FM_OK) {
        fms_lease_end(lease);
        return rc;
    }
    fms_lease_end(s->lease); /* after the new one began: a reader becomes a writer without a gap */
    s->lease = lease;
    return FM_OK;
}

void fm_store_lease_end(fm_store *s)
{
    fms_lease_end(s->lease);
    s->lease = NULL;
}

fm_status fms_store_lease_need(fm_store *s)
{
    return fm_store_lease(s, true, "a transaction");
}

bool fms_store_condemned(const fm_store *s, const fm_digest *id)
{
    return s->lease && fms_condemned_object(fms_lease_condemned(s->lease), id);
}

bool fms_store_git_condemned(const fm_store *s, const uint8_t *id)
{
    return s->lease && fms_condemned_git(fms_lease_condemned(s->lease), id);
}

fm_status fms_store_hold(fm_store *s, fms_hold kind, const uint8_t *ids, size_t count)
{
    return s->lease ? fms_lease_hold(s->lease, kind, ids, count) : FM_OK;
}

bool fms_store_leased(const fm_store *s, bool writes)
{
    return s->lease && (!writes || fms_lease_writes(s->lease));
}
