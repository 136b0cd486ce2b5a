/* txn_pack.c - the packs that a transaction writes: payloads, records, footers. */
#include "store/txn/put.h"

#include <string.h>

#include "store/base/mem.h"

enum { COPY_BYTES = 1 << 20 };

/* ==== the payload of one object ============================================================ */

void fms_payload_clear(fm_txn *t)
{
    fm_writer_close(t->spill);
    t->spill = NULL;
    fm_buf_clear(&t->payload);
}

static fm_status spill_held(fm_txn *t)
{
    fm_status rc = FM_OK;

    if (!t->spill)
        rc = fm_writer_open(&t->spill, NULL, t->store->tmp_dir);
    FM_THEN(rc, fm_writer_write(t->spill, t->payload.data, t->payload.len));
    fm_buf_clear(&t->payload);
    return rc;
}

fm_status fms_payload_append(fm_txn *t, const void *data, size_t len)
{
    fm_status rc = FM_OK;

    if (t->payload.len + len > t->held_max)
        rc = spill_held(t);
    if (rc == FM_OK && t->payload.cap < t->held_max && t->payload.len > t->held_max / 16) {
        const size_t held = t->payload.len; /* in one step: growing by doubling would copy often */
        fm_ignore(!fm_buf_extend(&t->payload, t->held_max - held), "fm_buf_ok tells below");
        t->payload.len = held;
    }
    fm_buf_append(&t->payload, data, len);
    return rc == FM_OK ? fm_buf_ok(&t->payload) : rc;
}

/* ==== packs ================================================================================ */

static fms_packer *last_pack(fm_txn *t)
{
    return &t->pack[t->packs - 1];
}

/* Opens a new pack if there is none, the last is large, or its header lacks a needed feature. */
static fm_status need_pack(fm_txn *t, uint32_t features)
{
    fm_status rc = FM_OK;

    if (t->packs && last_pack(t)->offset < t->roll_bytes &&
        (last_pack(t)->features & features) == features)
        return FM_OK;
    if (t->packs)
        rc = fms_packer_seal(last_pack(t));
    FM_THEN(rc, fm_grow(&t->pack, &t->packs_cap, t->packs + 1, sizeof *t->pack));
    FM_THEN(rc, fms_packer_begin(&t->pack[t->packs], t->store, features));
    t->packs += rc == FM_OK;
    return rc;
}

fm_status fms_txn_seal(fm_txn *t)
{
    return fms_packer_seal(last_pack(t));
}

static fm_status append_spill(fm_txn *t)
{
    uint8_t *part = fm_malloc(COPY_BYTES);
    const uint64_t end = fm_writer_offset(t->spill);
    fm_status rc = part ? FM_OK : FM_ENOMEM;

    for (uint64_t at = 0; rc == FM_OK && at < end; at += COPY_BYTES) {
        const size_t n = (size_t)FM_MIN(end - at, (uint64_t)COPY_BYTES);
        rc = fm_writer_pread(t->spill, at, part, n);
        FM_THEN(rc, fms_packer_payload(last_pack(t), part, n));
    }
    fm_free(part);
    return rc;
}

fm_status fms_txn_write(fm_txn *t, fms_put *p)
{
    FM_TRY(need_pack(t, p->r.recipe.op == FMS_OP_NONE ? 0 : FMS_PACK_RECIPES));
    fms_packer *pack = last_pack(t);
    const uint64_t offset = pack->offset;
    p->r.payload_bytes = p->payload_bytes;
    FM_TRY(fms_packer_head(pack, &p->r, p->rows));
    if (t->spill)
        FM_TRY(append_spill(t));
    FM_TRY(fms_packer_payload(pack, t->payload.data, t->payload.len));
    FM_TRY(fms_packer_end(pack, &p->r));
    fms_staged_object *o = fm_map_get(t->staged, p->r.id.b, FM_DIGEST_BYTES);
    fm_assert(o);
    *o = (fms_staged_object){(uint32_t)(t->packs - 1), false, offset, pack->offset - offset};
    return FM_OK;
}

fm_status fms_txn_read_staged(void *ctx, const fm_digest *id, uint8_t **bytes, size_t *len)
{
    fm_txn *t = ctx;
    const fms_staged_object *o = fm_map_get(t->staged, id->b, FM_DIGEST_BYTES);

    if (!o || o->pending)
        return FM_ENOTFOUND;
    if (o->stored_bytes > FMS_STAGED_READ_MAX_BYTES) /* the child is then coded alone */
        return fm_fail(FM_ECORRUPT, "a parent of this transaction is too large to be read back");
    *len = (size_t)o->stored_bytes;
    *bytes = fm_malloc(*len);
    if (!*bytes)
        return FM_ENOMEM;
    return fm_writer_pread(t->pack[o->pack].writer, o->offset, *bytes, *len);
}
