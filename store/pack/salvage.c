/* salvage.c - packs that are damaged or were cut off: their records are self-describing and carry
 * checksums, so each whose head is sound goes into a pack that can be read.
 * Where all of them are, that pack has the damaged one's very name and takes its place; else the
 * damaged one stays, for the quarantine. A pack whose name is the SHA-256 of its bytes is not
 * damaged: a newer fmstore wrote it, and it is left alone. */
#include <string.h>

#include "store/pack/pack_writer.h"

typedef struct salvage {
    fm_store *s;
    const fm_file_map *map;
    fmi_packer packer;
    uint32_t features;
    uint64_t records;
} salvage;

static fm_status count_record(void *ctx, uint64_t offset, const fmi_record *r)
{
    salvage *v = ctx;
    (void)offset;
    v->records++;
    if (r->recipe.op != FMI_OP_NONE)
        v->features |= FMI_PACK_RECIPES;
    return FM_OK;
}

static fm_status copy_record(void *ctx, uint64_t offset, const fmi_record *r)
{
    salvage *v = ctx;
    return fmi_packer_copy(&v->packer, r, v->map->data + offset);
}

static fm_status pass_over(void *ctx, uint64_t offset, const fmi_record *r)
{
    (void)ctx;
    (void)offset;
    (void)r;
    return FM_OK;
}

static fm_status note_fault(void *ctx, const char *text)
{
    (void)text;
    *(bool *)ctx = true;
    return FM_OK;
}

/* It cannot be read as it is, and that is damage: the bytes are not what the name says. */
static fm_status is_damaged(const fm_file_map *map, const char *name, bool *yes)
{
    fm_digest sum;
    char hex[FM_HEX_CHARS + 1];
    fmi_pack_visitor v = {yes, pass_over, note_fault};
    *yes = false;
    fm_status rc = fmi_pack_walk(fm_span_of(map->data, map->len), name, &v);
    *yes = *yes || rc == FM_ECORRUPT || rc == FM_EVERSION;
    if (!*yes)
        return rc;
    fm_error_clear();
    rc = fm_sha256(&sum, map->data, map->len);
    fm_digest_hex(&sum, hex);
    *yes = strcmp(hex, name) != 0;
    return rc;
}

static fm_status copy_pack(salvage *v, const char *name, bool *copied)
{
    fm_span bytes = fm_span_of(v->map->data, v->map->len);
    fmi_pack_visitor count = {v, count_record, NULL}, copy = {v, copy_record, NULL};
    fm_status rc = fmi_pack_salvage(bytes, name, &count);
    *copied = false;
    if (rc != FM_OK || v->records == 0)
        return rc;
    rc = fmi_packer_begin(&v->packer, v->s, v->features);
    if (rc == FM_OK)
        rc = fmi_pack_salvage(bytes, name, &copy);
    if (rc == FM_OK)
        rc = fmi_packer_publish(&v->packer);
    *copied = rc == FM_OK;
    fmi_packer_release(&v->packer);
    return rc;
}

static fm_status look_at(fm_store *s, const char *name, uint64_t *packs)
{
    fm_file_map map = {NULL, 0};
    salvage v = {.s = s, .map = &map};
    bool damaged = false, copied = false;
    char *path = fmi_store_pack_path(s, name);
    fm_status rc = path ? fm_map_verified(&map, path) : FM_ENOMEM;
    fm_free(path);
    if (rc == FM_ENOTFOUND) /* removed since it was listed */
        return FM_OK;
    if (rc == FM_OK)
        rc = is_damaged(&map, name, &damaged);
    if (rc == FM_OK && damaged)
        rc = copy_pack(&v, name, &copied);
    *packs += copied;
    fm_unmap_verified(&map);
    return rc;
}

fm_status fm_store_salvage(fm_store *s, uint64_t *packs)
{
    fm_names files = {NULL, 0};
    *packs = 0;
    fm_status rc = fm_list_dir(&files, s->packs_dir);
    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (fmi_is_pack_name(files.name[i], name))
            rc = look_at(s, name, packs);
    }
    fm_names_release(&files);
    return rc;
}
