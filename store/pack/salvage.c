/* salvage.c - copies the records of damaged or cut packs: records describe themselves and have
 * checksums, so each one that decodes goes into a new pack. If all do, the new pack has the damaged
 * one's name and replaces it; else the damaged pack stays, for quarantine. A pack whose name is the
 * SHA-256 of its bytes is not damaged: a newer fmstore wrote it, and it is left alone. */
#include <string.h>

#include "store/pack/pack_writer.h"

typedef struct salvage {
    fm_store *s;
    const char *name;
    const fm_file_map *map;
    fms_coder *coder;
    uint8_t *leaf; /* FM_LEAF_BYTES */
    fms_packer packer;
    uint32_t features;
    uint64_t records; /* copied, since they decode */
    int64_t row;
    bool frame; /* header or footer is wrong, so the pack cannot be read as it is */
    bool fault; /* a record is damaged, or the footer does not match the records */
} salvage;

static fm_status pass_over(void *ctx, uint64_t offset, const fms_record *r)
{
    (void)ctx;
    (void)offset;
    (void)r;
    return FM_OK;
}

static fm_status note_fault(void *ctx, const char *text)
{
    salvage *v = ctx;
    (void)text;
    v->fault = true;
    return FM_OK;
}

/* A pack is damaged if it has a fault and its name is not the SHA-256 of its bytes. */
static fm_status is_damaged(salvage *v, bool *yes)
{
    bool intact;
    const fm_span pack = fm_span_of(v->map->data, v->map->len);
    fms_pack_visitor look = {v, pass_over, note_fault};
    fm_status rc = fms_pack_walk(pack, v->name, &look);
    v->frame = rc == FM_ECORRUPT || rc == FM_EVERSION;
    *yes = v->frame || v->fault;
    if (!*yes)
        return rc;
    fm_error_clear();
    rc = fms_pack_is_intact(pack, v->name, &intact);
    *yes = !intact;
    return rc;
}

static fm_status index_record(void *ctx, uint64_t offset, const fms_record *r)
{
    salvage *v = ctx;
    if (r->recipe.op != FMS_OP_NONE)
        v->features |= FMS_PACK_RECIPES;
    return fms_index_put_object(v->s->index, v->row, offset, r);
}

/* Indexes the pack's records for a while, since they may be coded against each other and reads go
 * by the index; every leaf is compared with its digest. */
static fm_status show(salvage *v)
{
    bool known;
    fms_pack_visitor index = {v, index_record, NULL};
    pthread_mutex_lock(&v->s->mutex);
    fm_status rc = fms_index_begin(v->s->index);
    if (rc == FM_OK) {
        rc = fms_index_put_pack(v->s->index, v->name, v->map->len, true, &v->row, &known);
        FM_THEN(rc, fms_pack_salvage(fm_span_of(v->map->data, v->map->len), v->name, &index));
        rc = fms_index_end(v->s->index, rc);
    }
    pthread_mutex_unlock(&v->s->mutex);
    return rc;
}

static fm_status hide(salvage *v)
{
    bool known;
    pthread_mutex_lock(&v->s->mutex);
    fm_status rc = fms_index_begin(v->s->index);
    if (rc == FM_OK) {
        rc = fms_index_put_pack(v->s->index, v->name, v->map->len, false, &v->row, &known);
        rc = fms_index_end(v->s->index, rc);
    }
    pthread_mutex_unlock(&v->s->mutex);
    return rc;
}

/* Copies a record if it decodes. */
static fm_status copy_record(void *ctx, uint64_t offset, const fms_record *r)
{
    salvage *v = ctx;
    fm_status rc = fms_record_verify(v->s, v->coder, r, v->leaf);
    if (fms_is_damage(rc)) {
        fm_error_clear();
        return FM_OK;
    }
    v->records += rc == FM_OK;
    return rc == FM_OK ? fms_packer_copy(&v->packer, r, v->map->data + offset) : rc;
}

/* Places the new pack, unless the old one can be read and only lost records. */
static fm_status place(salvage *v, bool *same)
{
    fm_lock *lock = NULL;
    fm_status rc = fms_packer_seal(&v->packer);
    *same = rc == FM_OK && strcmp(v->packer.name, v->name) == 0;
    if (rc != FM_OK || (!v->frame && !*same))
        return rc;
    rc = fm_lock_take(&lock, v->s->lock_path);
    FM_THEN(rc, fms_packer_place(&v->packer));
    fm_lock_drop(lock);
    return rc;
}

static fm_status copy_pack(salvage *v, uint64_t *packs)
{
    bool same = false;
    fms_pack_visitor copy = {v, copy_record, NULL};
    FM_TRY(show(v));

    fm_status rc = fms_packer_begin(&v->packer, v->s, v->features);
    FM_THEN(rc, fms_pack_salvage(fm_span_of(v->map->data, v->map->len), v->name, &copy));
    if (rc == FM_OK && v->records)
        rc = place(v, &same);
    *packs += rc == FM_OK && v->records && (v->frame || same);
    fms_packer_release(&v->packer);
    if (v->frame && !same) {
        fm_status hidden = hide(v);
        rc = rc == FM_OK ? hidden : rc;
    }
    return rc;
}

static fm_status look_at(fm_store *s, fms_coder *coder, uint8_t *leaf, const char *name,
                         uint64_t *packs)
{
    fm_file_map map = {NULL, 0};
    salvage v = {.s = s, .name = name, .map = &map, .coder = coder, .leaf = leaf};
    bool damaged = false;
    char *path = fms_store_pack_path(s, name);
    fm_status rc = path ? fm_map_verified(&map, path) : FM_ENOMEM;
    fm_free(path);
    if (rc == FM_ENOTFOUND) /* removed since it was listed */
        return FM_OK;
    FM_THEN(rc, is_damaged(&v, &damaged));
    if (rc == FM_OK && damaged)
        rc = copy_pack(&v, packs);
    fm_unmap_verified(&map);
    return rc;
}

fm_status fm_store_salvage(fm_store *s, uint64_t *packs)
{
    fm_names files = {NULL, 0};
    fms_coder *coder = NULL;
    uint8_t *leaf = fm_malloc(FM_LEAF_BYTES);
    *packs = 0;
    fm_status rc = leaf ? fms_store_coder(s, &coder) : FM_ENOMEM;
    FM_THEN(rc, fm_list_dir(&files, s->packs_dir));
    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (fms_is_pack_name(files.name[i], name))
            rc = look_at(s, coder, leaf, name, packs);
    }
    fm_names_release(&files);
    fms_store_coder_return(s, coder);
    fm_free(leaf);
    return rc;
}
