/* pack_writer.c - writes a pack in this order: bytes, fsync, rename, fsync of the folder, index. */
#include "store/pack/pack_writer.h"

#include <string.h>

static fm_status append(fms_packer *p, const void *data, size_t len)
{
    fm_status rc = fm_writer_write(p->writer, data, len);

    FM_THEN(rc, fm_hasher_update(p->whole, data, len));
    p->offset += len;
    return rc;
}

fm_status fms_packer_begin(fms_packer *p, fm_store *s, uint32_t features)
{
    uint8_t header[FMS_PACK_HEADER_BYTES];

    memset(p, 0, sizeof *p);
    p->store = s;
    p->features = features;
    fm_buf_init(&p->head, 0);
    fm_status rc = fm_hasher_new(&p->whole);
    FM_THEN(rc, fm_hasher_new(&p->heads));
    FM_THEN(rc, fm_writer_open(&p->writer, NULL, s->tmp_dir));
    fms_pack_header(header, features);
    FM_THEN(rc, append(p, header, sizeof header));
    if (rc != FM_OK)
        fms_packer_release(p);
    return rc;
}

static fm_status count_head(fms_packer *p, const uint8_t *head, uint64_t head_bytes)
{
    p->records++;
    return fm_hasher_update(p->heads, head + head_bytes - FM_DIGEST_BYTES, FM_DIGEST_BYTES);
}

fm_status fms_packer_copy(fms_packer *p, const fms_record *r, const uint8_t *bytes)
{
    FM_TRY(append(p, bytes, (size_t)r->stored_bytes));

    return count_head(p, bytes, r->head_bytes);
}

fm_status fms_packer_head(fms_packer *p, const fms_record *r, const fms_leaf_row *rows)
{
    fm_buf_clear(&p->head);
    FM_TRY(fms_record_head(&p->head, r, rows));
    FM_TRY(append(p, p->head.data, p->head.len));
    return count_head(p, p->head.data, p->head.len);
}

fm_status fms_packer_payload(fms_packer *p, const void *data, size_t len)
{
    return len ? append(p, data, len) : FM_OK;
}

fm_status fms_packer_end(fms_packer *p, const fms_record *r)
{
    static const uint8_t zero[FMS_PACK_ALIGN];
    const size_t over = (size_t)(r->payload_bytes % FMS_PACK_ALIGN);

    return over ? append(p, zero, FMS_PACK_ALIGN - over) : FM_OK;
}

fm_status fms_packer_add(fms_packer *p, const fms_record *r, const fms_leaf_row *rows,
                         fm_span payload)
{
    FM_TRY(fms_packer_head(p, r, rows));

    FM_TRY(fms_packer_payload(p, payload.data, payload.len));
    return fms_packer_end(p, r);
}

fm_status fms_packer_seal(fms_packer *p)
{
    fm_digest heads, whole;
    uint8_t footer[FMS_PACK_FOOTER_BYTES];
    FM_TRY(fm_hasher_final(p->heads, &heads));
    fms_pack_footer(footer, p->records, p->offset + sizeof footer, &heads);
    FM_TRY(append(p, footer, sizeof footer));
    FM_TRY(fm_hasher_final(p->whole, &whole));
    fm_digest_hex(&whole, p->name);
    return FM_OK;
}

fm_status fms_packer_place(fms_packer *p)
{
    char *path = fms_store_pack_path(p->store, p->name);
    fm_status rc = path ? fm_writer_commit(p->writer, path) : FM_ENOMEM;

    fm_free(path);
    return rc == FM_OK ? fms_store_index_pack(p->store, p->name) : rc;
}

fm_status fms_packer_publish(fms_packer *p)
{
    fm_lock *lock = NULL;
    fm_status rc = fms_packer_seal(p);

    FM_THEN(rc, fm_lock_take(&lock, p->store->lock_path));
    FM_THEN(rc, fms_packer_place(p));
    fm_lock_drop(lock);
    return rc;
}

void fms_packer_release(fms_packer *p)
{
    fm_writer_close(p->writer);
    fm_hasher_free(p->whole);
    fm_hasher_free(p->heads);
    fm_buf_release(&p->head);
    memset(p, 0, sizeof *p);
}
