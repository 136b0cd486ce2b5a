/* read.c - objects out of records: delta chains, leaves, digests.
 *
 * Each leaf's digest is compared, the parents' too: a read gives the right bytes or an error. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/pack/store_priv.h"

/* ==== what is known of an object =========================================================== */

static const char *codec_summary(const fms_record *r)
{
    if (r->leaf_count == 0)
        return "raw";
    uint8_t first = fms_leaf_codec(r, 0);
    for (uint32_t i = 1; i < r->leaf_count; i++)
        if (fms_leaf_codec(r, i) != first)
            return "several";
    return fms_codec_name(first);
}

fm_status fm_store_info(fm_store *s, fm_object_info *out, const fm_digest *id)
{
    memset(out, 0, sizeof *out);
    fms_record r;
    fms_place place;
    FM_TRY(fms_store_record(s, id, 0, true, &r, &place));
    out->is_blob = r.is_blob;
    out->dtype = r.dtype;
    out->shape = r.shape;
    out->bytes = r.bytes;
    out->stored_bytes = r.stored_bytes;
    out->chain_depth = r.depth;
    out->parent_count = r.parent_count;
    memcpy(out->parent, r.parent, sizeof out->parent);
    snprintf(out->codec, sizeof out->codec, "%s", codec_summary(&r));
    return FM_OK;
}

fm_status fm_store_coding(fm_store *s, fm_coding *out, const fm_digest *id)
{
    uint8_t at[256]; /* 1 + index in out->codec, by codec */
    fms_record r;
    fms_place place;
    memset(out, 0, sizeof *out);
    memset(at, 0, sizeof at);
    FM_TRY(fms_store_record(s, id, 0, true, &r, &place));
    if (r.recipe.op != FMS_OP_NONE) {
        snprintf(out->recipe, sizeof out->recipe, "%s", fms_op_name(r.recipe.op));
        fms_recipe_text(&r.recipe, r.parent_count, out->detail, sizeof out->detail);
    }
    for (uint32_t i = 0; i < r.leaf_count; i++) {
        const uint8_t codec = fms_leaf_codec(&r, i);
        if (!at[codec] && out->codecs < FM_CODECS_MAX) {
            struct fm_codec_use *u = &out->codec[out->codecs];
            snprintf(u->name, sizeof u->name, "%s", fms_codec_name(codec));
            u->against = fms_codec_needs_parent(codec);
            at[codec] = (uint8_t)++out->codecs;
        }
        if (!at[codec])
            continue;
        struct fm_codec_use *u = &out->codec[at[codec] - 1];
        u->leaves++;
        u->bytes += fms_leaf_bytes(r.bytes, i);
        u->stored_bytes += fms_leaf_stored(&r, i);
    }
    return FM_OK;
}

typedef struct id_list {
    fm_digest *id;
    size_t count, cap;
} id_list;

static fm_status collect_id(void *ctx, const fm_digest *id)
{
    id_list *l = ctx;
    FM_TRY(fm_grow(&l->id, &l->cap, l->count + 1, sizeof *l->id));
    l->id[l->count++] = *id;
    return FM_OK;
}

fm_status fm_store_each(fm_store *s, fm_status (*fn)(void *ctx, const fm_digest *id), void *ctx)
{
    id_list l = {NULL, 0, 0};
    pthread_mutex_lock(&s->mutex); /* fn may use the store, so the ids come first */
    fm_status rc = fms_store_refresh(s);
    FM_THEN(rc, fms_index_ids(s->index, collect_id, &l));
    pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; rc == FM_OK && i < l.count; i++)
        rc = fn(ctx, &l.id[i]);
    fm_free(l.id);
    return rc;
}

/* ==== reading ============================================================================== */

static fm_status read_place(fm_store *s, fms_coder *c, const fm_digest *id, uint32_t nth, void *dst,
                            uint64_t bytes)
{
    fms_chain ch;
    fm_status rc = fms_chain_open(&ch, s, id, nth, NULL);
    if (rc != FM_OK)
        return rc;
    if (ch.link[0].bytes != bytes) {
        char hex[FM_HEX_CHARS + 1];
        fm_digest_hex(id, hex);
        rc = fm_fail(FM_EINVAL, "object %s has %llu bytes, %llu were asked for", hex,
                     (unsigned long long)ch.link[0].bytes, (unsigned long long)bytes);
    }
    for (uint32_t i = 0; rc == FM_OK && i < ch.link[0].leaf_count; i++)
        rc = fms_chain_leaf(&ch, c, i, (uint8_t *)dst + (size_t)i * FM_LEAF_BYTES);
    fms_chain_release(&ch);
    return rc;
}

fm_status fm_store_read(fm_store *s, const fm_digest *id, void *dst, uint64_t bytes)
{
    fms_coder *c;
    FM_TRY(fms_store_coder(s, &c));

    fm_status rc = read_place(s, c, id, 0, dst, bytes);
    fm_error_state first;
    fm_error_save(&first);
    fm_status again = rc;
    for (uint32_t nth = 1; again == FM_ECORRUPT || again == FM_EBASE; nth++) {
        again = read_place(s, c, id, nth, dst, bytes);
        if (again == FM_OK)
            rc = FM_OK;
    }
    if (rc != FM_OK)
        fm_error_restore(&first);
    fms_store_coder_return(s, c);
    return rc;
}

static bool all_raw(const fms_record *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->leaf_count; i++) {
        if (fms_leaf_codec(r, i) != FMS_CODEC_RAW ||
            fms_leaf_stored(r, i) != fms_leaf_bytes(r->bytes, i))
            return false;
        bytes += fms_leaf_stored(r, i);
    }
    return bytes == r->bytes && bytes <= r->payload_bytes;
}

fm_status fm_store_view(fm_store *s, const fm_digest *id, fm_span *out)
{
    fms_record r;
    fms_place place;
    *out = (fm_span){NULL, 0};
    fm_status rc = fms_store_record(s, id, 0, true, &r, &place);
    if (rc != FM_OK || r.leaf_count == 0 || !all_raw(&r))
        return rc;
    const uint8_t *at = r.payload;
    for (uint32_t i = 0; rc == FM_OK && i < r.leaf_count; i++) {
        fm_digest want, got;
        fms_leaf_digest(&r, i, &want);
        rc = fm_sha256(&got, at, fms_leaf_bytes(r.bytes, i));
        at += fms_leaf_bytes(r.bytes, i);
        if (rc == FM_OK && !fm_digest_eq(&got, &want)) {
            char hex[FM_HEX_CHARS + 1];
            fm_digest_hex(id, hex);
            rc = fm_fail(FM_ECORRUPT,
                         "object %s, leaf %u: stored bytes do not match their digest: run fsck",
                         hex, i);
        }
    }
    /* A caller that has the view does not compare digests any more. */
    if (rc == FM_OK && !fm_map_pin(r.payload))
        rc = fm_fail(FM_ECORRUPT, "%s was cut since it was opened, or its disk fails",
                     fm_map_failed(r.payload));
    if (rc == FM_OK)
        *out = fm_span_of(r.payload, (size_t)r.bytes);
    return rc;
}

/* A damaged copy gives no view: a read may find a sound one in another pack. */
static fm_status provide_view(void *ctx, const fm_entry *e, fm_span *out)
{
    fm_error_state kept;
    *out = (fm_span){NULL, 0};
    if (e->kind == FM_ENTRY_FILE)
        return FM_OK;
    fm_error_save(&kept);
    if (fm_store_view(ctx, &e->id, out) != FM_OK || out->len != e->bytes)
        *out = (fm_span){NULL, 0};
    fm_error_restore(&kept);
    return FM_OK;
}

static fm_status provide(void *ctx, const fm_entry *e, void *dst)
{
    if (e->kind == FM_ENTRY_FILE) {
        memcpy(dst, e->data, (size_t)e->bytes);
        return FM_OK;
    }
    fm_status rc = fm_store_read(ctx, &e->id, dst, e->bytes);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", e->path);
}

fm_provider fm_store_provider(fm_store *s)
{
    fm_provider p = {.ctx = s,
                     .read = provide,
                     .view = provide_view,
                     .range = fms_store_provide_range,
                     .place = fms_store_provide_place};
    return p;
}
