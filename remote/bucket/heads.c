/* heads.c - reads the heads of packs. */
#include "remote/bucket/heads.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/pack/pack.h"

fm_status fmr_heads_init(fmr_heads *h)
{
    memset(h, 0, sizeof *h);
    FM_TRY(fm_map_new(&h->place));
    return fm_arena_new(&h->arena);
}

void fmr_heads_release(fmr_heads *h)
{
    fm_map_free(h->place);
    fm_arena_free(h->arena);
    memset(h, 0, sizeof *h);
}

const fmr_place *fmr_heads_find(const fmr_heads *h, const fm_digest *id)
{
    return fm_map_get(h->place, id->b, FM_DIGEST_BYTES);
}

/* Parents of a record that is coded against another one come before it, so theirs are known. */
static uint32_t level_of(const fmr_heads *h, const fms_record *r)
{
    uint32_t level = 0;
    for (uint32_t k = 0; k < r->parent_count; k++) {
        const fmr_place *p = fmr_heads_find(h, &r->parent[k]);
        level = FM_MAX(level, p ? p->level + 1 : 1);
    }
    return level;
}

static fm_status add(fmr_heads *h, const fms_record *r, size_t pack, uint64_t offset)
{
    if (fmr_heads_find(h, &r->id))
        return FM_OK;
    if (fm_map_count(h->place) == FMR_RECORDS_MAX)
        return fm_fail(FM_ELIMIT, "the bucket has more than %u objects", FMR_RECORDS_MAX);
    fmr_place *p = fm_arena_alloc(h->arena, sizeof *p);
    fm_digest *parent = fm_arena_alloc(h->arena, (r->parent_count + 1) * sizeof *parent);
    if (!p || !parent)
        return FM_ENOMEM;
    memcpy(parent, r->parent, r->parent_count * sizeof *parent);
    p->id = r->id;
    memcpy(p->head.b, r->payload - FM_DIGEST_BYTES, FM_DIGEST_BYTES);
    p->bytes = r->bytes;
    p->stored_bytes = r->stored_bytes;
    p->offset = offset;
    p->pack = pack;
    p->depth = r->depth;
    p->level = level_of(h, r);
    p->parent_count = r->parent_count;
    p->parent = parent;
    return fm_map_put(h->place, r->id.b, FM_DIGEST_BYTES, p, NULL);
}

fm_status fmr_heads_add(fmr_heads *h, fm_span heads, size_t pack, uint64_t pack_bytes,
                        const char *what)
{
    uint64_t offset = FMS_PACK_HEADER_BYTES;
    while (heads.len > 0) {
        fms_record r;
        FM_TRY(fms_record_parse_head(&r, heads, what));
        const uint64_t end = pack_bytes - FM_MIN(pack_bytes, (uint64_t)FMS_PACK_FOOTER_BYTES);
        if (offset > end || r.stored_bytes > end - offset)
            return fm_fail(FM_ECORRUPT, "%s: a record of it leaves the pack", what);
        FM_TRY(add(h, &r, pack, offset));
        offset += r.stored_bytes;
        heads.data += r.head_bytes;
        heads.len -= (size_t)r.head_bytes;
    }
    if (offset + FMS_PACK_FOOTER_BYTES != pack_bytes)
        return fm_fail(FM_ECORRUPT, "%s: its records end at byte %llu of a pack of %llu", what,
                       (unsigned long long)offset, (unsigned long long)pack_bytes);
    return FM_OK;
}

void fmr_place_info(const fmr_place *p, fm_record_info *out)
{
    memset(out, 0, sizeof *out);
    out->id = p->id;
    out->head = p->head;
    out->bytes = p->bytes;
    out->stored_bytes = p->stored_bytes;
    out->depth = p->depth;
    out->parent_count = p->parent_count;
    memcpy(out->parent, p->parent, p->parent_count * sizeof *p->parent);
}
