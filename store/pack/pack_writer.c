/* pack_writer.c - writing a pack: bytes, fsync, rename, fsync of the folder, index, in this
 * order. */
#include "store/pack/pack_writer.h"

#include <string.h>

static fm_status append(fms_packer *p, const void *data, size_t len)
{
    fm_status rc = fm_writer_write(p->writer, data, len);

    if (rc == FM_OK)
        rc = fm_hasher_update(p->whole, data, len);
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
    if (rc == FM_OK)
        rc = fm_hasher_new(&p->heads);
    if (rc == FM_OK)
        rc = fm_writer_open(&p->writer, NULL, s->tmp_dir);
    fms_pack_header(header, features);
    if (rc == FM_OK)
        rc = append(p, header, sizeof header);
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
    fm_status rc = append(p, bytes, (size_t)r->stored_bytes);

    return rc == FM_OK ? count_head(p, bytes, r->head_bytes) : rc;
}

fm_status fms_packer_head(fms_packer *p, const fms_record *r, const fms_leaf_row *rows)
{
    fm_buf_clear(&p->head);
    fm_status rc = fms_record_head(&p->head, r, rows);
    if (rc == FM_OK)
        rc = append(p, p->head.data, p->head.len);
    return rc == FM_OK ? count_head(p, p->head.data, p->head.len) : rc;
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
    fm_status rc = fms_packer_head(p, r, rows);

    if (rc == FM_OK)
        rc = fms_packer_payload(p, payload.data, payload.len);
    return rc == FM_OK ? fms_packer_end(p, r) : rc;
}

fm_status fms_packer_seal(fms_packer *p)
{
    fm_digest heads, whole;
    uint8_t footer[FMS_PACK_FOOTER_BYTES];
    fm_status rc = fm_hasher_final(p->heads, &heads);

    if (rc != FM_OK)
        return rc;
    fms_pack_footer(footer, p->records, p->offset + sizeof footer, &heads);
    rc = append(p, footer, sizeof footer);
    if (rc == FM_OK)
        rc = fm_hasher_final(p->whole, &whole);
    if (rc == FM_OK)
        fm_digest_hex(&whole, p->name);
    return rc;
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

    if (rc == FM_OK)
        rc = fm_lock_take(&lock, p->store->lock_path);
    if (rc == FM_OK)
        rc = fms_packer_place(p);
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
