/* read_range.c - a part of a stored object: only the leaves that it touches are decoded. */
#include <string.h>

#include "store/base/mem.h"
#include "store/store_priv.h"

typedef struct range_job {
    const fmi_chain *chain;
    fmi_coder *coder;
    uint8_t *part; /* a leaf of which not all is wanted; made at its first use */
} range_job;

static fm_status read_leaves(range_job *j, uint64_t offset, uint64_t bytes, uint8_t *dst)
{
    const fmi_record *r = &j->chain->link[0];
    fm_status rc = FM_OK;

    while (rc == FM_OK && bytes > 0) {
        const uint32_t i = (uint32_t)(offset / FM_LEAF_BYTES);
        const uint64_t leaf = fmi_leaf_bytes(r->bytes, i), skip = offset % FM_LEAF_BYTES;
        const uint64_t n = FM_MIN(bytes, leaf - skip);
        if (n == leaf) {
            rc = fmi_chain_leaf(j->chain, j->coder, i, dst);
        } else {
            if (!j->part)
                j->part = fm_malloc(FM_LEAF_BYTES);
            rc = j->part ? fmi_chain_leaf(j->chain, j->coder, i, j->part) : FM_ENOMEM;
            if (rc == FM_OK)
                memcpy(dst, j->part + skip, (size_t)n);
        }
        dst += n;
        offset += n;
        bytes -= n;
    }
    return rc;
}

static fm_status read_place(fm_store *s, range_job *j, const fm_digest *id, uint32_t nth,
                            uint64_t offset, uint64_t bytes, void *dst)
{
    fmi_chain ch;
    fm_status rc = fmi_chain_open(&ch, s, id, nth, NULL);

    if (rc != FM_OK)
        return rc;
    j->chain = &ch;
    if (offset > ch.link[0].bytes || bytes > ch.link[0].bytes - offset) {
        char hex[FM_HEX_CHARS + 1];
        fm_digest_hex(id, hex);
        rc = fm_fail(FM_EINVAL, "object %s has %llu bytes, %llu from %llu on were asked for", hex,
                     (unsigned long long)ch.link[0].bytes, (unsigned long long)bytes,
                     (unsigned long long)offset);
    }
    if (rc == FM_OK)
        rc = read_leaves(j, offset, bytes, dst);
    fmi_chain_release(&ch);
    return rc;
}

/* As a whole read does: where one place is damaged, another may be sound. */
fm_status fm_store_read_range(fm_store *s, const fm_digest *id, uint64_t offset, uint64_t bytes,
                              void *dst, unsigned flags)
{
    range_job j = {NULL, NULL, NULL};
    fm_status rc = fmi_store_coder(s, &j.coder);
    fm_error_state first;

    (void)flags;
    if (rc != FM_OK)
        return rc;
    rc = read_place(s, &j, id, 0, offset, bytes, dst);
    fm_error_save(&first);
    fm_status again = rc;
    for (uint32_t nth = 1; again == FM_ECORRUPT || again == FM_EBASE; nth++) {
        again = read_place(s, &j, id, nth, offset, bytes, dst);
        if (again == FM_OK)
            rc = FM_OK;
    }
    if (rc != FM_OK)
        fm_error_restore(&first);
    fmi_store_coder_return(s, j.coder);
    fm_free(j.part);
    return rc;
}

fm_status fmi_store_provide_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                                  void *dst, unsigned flags)
{
    fm_status rc = fm_store_read_range(ctx, &e->id, offset, bytes, dst, flags);

    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", e->path);
}
