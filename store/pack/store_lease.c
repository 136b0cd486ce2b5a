/* store_lease.c - an open store's lease: taken once, kept until the handle is closed. */
#include "store/pack/store_priv.h"

fm_status fm_store_lease(fm_store *s, bool writes, const char *what)
{
    if (s->lease && (fmi_lease_writes(s->lease) || !writes))
        return FM_OK;
    fmi_lease *lease;
    fm_status rc = fmi_lease_begin(&lease, s->root, writes, what);
    if (rc != FM_OK)
        return rc;
    rc = fmi_lease_inherit(lease, s->lease);
    if (rc != FM_OK) {
        fmi_lease_end(lease);
        return rc;
    }
    fmi_lease_end(s->lease); /* a reader that becomes a writer is covered all along */
    s->lease = lease;
    return FM_OK;
}

void fm_store_lease_end(fm_store *s)
{
    fmi_lease_end(s->lease);
    s->lease = NULL;
}

fm_status fmi_store_lease_need(fm_store *s)
{
    return fm_store_lease(s, true, "a transaction");
}

bool fmi_store_condemned(const fm_store *s, const fm_digest *id)
{
    return s->lease && fmi_condemned_object(fmi_lease_condemned(s->lease), id);
}

bool fmi_store_git_condemned(const fm_store *s, const uint8_t *id)
{
    return s->lease && fmi_condemned_git(fmi_lease_condemned(s->lease), id);
}

fm_status fmi_store_hold(fm_store *s, fmi_hold kind, const uint8_t *ids, size_t count)
{
    return s->lease ? fmi_lease_hold(s->lease, kind, ids, count) : FM_OK;
}

bool fmi_store_leased(const fm_store *s, bool writes)
{
    return s->lease && (!writes || fmi_lease_writes(s->lease));
}
