/* pack_writer.c - writing a pack: bytes, fsync, rename, fsync of the folder, index, in this
 * order. */
#include "store/pack/pack_writer.h"

#include <string.h>

static fm_status append(fmi_packer *p, const void *data, size_t len)
{
    fm_status rc = fm_writer_write(p->writer, data, len);

    if (rc == FM_OK)
        rc = fm_hasher_update(p->whole, data, len);
    p->offset += len;
    return rc;
}

fm_status fmi_packer_begin(fmi_packer *p, fm_store *s, uint32_t features)
{
    uint8_t header[FMI_PACK_HEADER_BYTES];

    memset(p, 0, sizeof *p);
    p->store = s;
    p->features = features;
    fm_buf_init(&p->head, 0);
    fm_status rc = fm_hasher_new(&p->whole);
    if (rc == FM_OK)
        rc = fm_hasher_new(&p->heads);
    if (rc == FM_OK)
        rc = fm_writer_open(&p->writer, NULL, s->tmp_dir);
    fmi_pack_header(header, features);
    if (rc == FM_OK)
        rc = append(p, header, sizeof header);
    if (rc != FM_OK)
        fmi_packer_release(p);
    return rc;
}

static fm_status count_head(fmi_packer *p, const uint8_t *head, uint64_t head_bytes)
{
    p->records++;
    return fm_hasher_update(p->heads, head + head_bytes - FM_DIGEST_BYTES, FM_DIGEST_BYTES);
}

fm_status fmi_packer_copy(fmi_packer *p, const fmi_record *r, const uint8_t *bytes)
{
    fm_status rc = append(p, bytes, (size_t)r->stored_bytes);

    return rc == FM_OK ? count_head(p, bytes, r->head_bytes) : rc;
}

fm_status fmi_packer_head(fmi_packer *p, const fmi_record *r, const fmi_leaf_row *rows)
{
    fm_buf_clear(&p->head);
    fm_status rc = fmi_record_head(&p->head, r, rows);
    if (rc == FM_OK)
        rc = append(p, p->head.data, p->head.len);
    return rc == FM_OK ? count_head(p, p->head.data, p->head.len) : rc;
}

fm_status fmi_packer_payload(fmi_packer *p, const void *data, size_t len)
{
    return len ? append(p, data, len) : FM_OK;
}

fm_status fmi_packer_end(fmi_packer *p, const fmi_record *r)
{
    static const uint8_t zero[FMI_PACK_ALIGN];
    const size_t over = (size_t)(r->payload_bytes % FMI_PACK_ALIGN);

    return over ? append(p, zero, FMI_PACK_ALIGN - over) : FM_OK;
}

fm_status fmi_packer_add(fmi_packer *p, const fmi_record *r, const fmi_leaf_row *rows,
                         fm_span payload)
{
    fm_status rc = fmi_packer_head(p, r, rows);

    if (rc == FM_OK)
        rc = fmi_packer_payload(p, payload.data, payload.len);
    return rc == FM_OK ? fmi_packer_end(p, r) : rc;
}

fm_status fmi_packer_seal(fmi_packer *p)
{
    fm_digest heads, whole;
    uint8_t footer[FMI_PACK_FOOTER_BYTES];
    fm_status rc = fm_hasher_final(p->heads, &heads);

    if (rc != FM_OK)
        return rc;
    fmi_pack_footer(footer, p->records, p->offset + sizeof footer, &heads);
    rc = append(p, footer, sizeof footer);
    if (rc == FM_OK)
        rc = fm_hasher_final(p->whole, &whole);
    if (rc == FM_OK)
        fm_digest_hex(&whole, p->name);
    return rc;
}

fm_status fmi_packer_place(fmi_packer *p)
{
    char *path = fmi_store_pack_path(p->store, p->name);
    fm_status rc = path ? fm_writer_commit(p->writer, path) : FM_ENOMEM;

    fm_free(path);
    return rc == FM_OK ? fmi_store_index_pack(p->store, p->name) : rc;
}

fm_status fmi_packer_publish(fmi_packer *p)
{
    fm_lock *lock = NULL;
    fm_status rc = fmi_packer_seal(p);

    if (rc == FM_OK)
        rc = fm_lock_take(&lock, p->store->lock_path);
    if (rc == FM_OK)
        rc = fmi_packer_place(p);
    fm_lock_drop(lock);
    return rc;
}

void fmi_packer_release(fmi_packer *p)
{
    fm_writer_close(p->writer);
    fm_hasher_free(p->whole);
    fm_hasher_free(p->heads);
    fm_buf_release(&p->head);
    memset(p, 0, sizeof *p);
}
