/* write.c - what a push brings to a bucket: packs made of records that lie in this repository's
 * packs, their heads, and a git pack.
 *
 * A pack is read twice out of the mapped records and never written here: first for its name, the
 * SHA-256 of its bytes, then to be sent. So it is uploaded under its own name, and nothing has to
 * be copied there; the same records give the same name, so a push that was killed finds its packs,
 * and the parts of the one that was cut. In a folder a file is renamed for nothing, so there a pack
 * is read once, unless one of its size is there, which a push that was killed may have brought. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "remote/bucket/bucket_impl.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/pack/pack.h"

#define HEADS_BYTES ((uint64_t)16 << 20) /* a pack that has so many of heads ends */
#define PART_BYTES_MAX ((uint64_t)64 << 20)
#define LOOKS 4u /* for a pack that another push is about to end */
#define LOOK_MS 400

/* ---- what is there ---- */

static fm_status note_listed(void *ctx, const char *name, uint64_t bytes)
{
    fmr_bucket *b = ctx;
    uint64_t *size = fm_arena_alloc(b->arena, sizeof *size);
    if (fm_map_count(b->listed) == FMR_LIST_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %zu objects", b->door->shown, FMR_LIST_MAX);
    if (!size)
        return FM_ENOMEM;
    *size = bytes;
    return fm_map_put(b->listed, name, strlen(name), size, NULL);
}

static bool lists(const fmr_bucket *b, const char *name, uint64_t bytes)
{
    const uint64_t *size = fm_map_get(b->listed, name, strlen(name));
    return size && *size == bytes;
}

static fm_status mark_gone(fmr_bucket *b)
{
    char name[FMR_OBJECT_MAX], heads[FMR_OBJECT_MAX];
    fmr_manifest *m = &b->manifest;
    for (size_t i = 0; i < m->packs; i++) {
        fmr_pack_name(name, &m->pack[i].name);
        fmr_heads_name(heads, &m->pack[i].name);
        m->pack[i].gone =
            !lists(b, name, m->pack[i].bytes) || !lists(b, heads, m->pack[i].heads_bytes);
    }
    for (size_t i = 0; i < m->gits; i++) {
        fmr_git_name(name, &m->git[i].name);
        if (!lists(b, name, m->git[i].bytes))
            return fm_fail(FM_ECORRUPT,
                           "%s: %s, which its list names, is not there as it was; put it back, or "
                           "push to a new place",
                           b->door->shown, name);
    }
    return FM_OK;
}

/* The opening for a push has listed the objects. */
static fm_status need_list(const fmr_bucket *b)
{
    return b->listed ? FM_OK
                     : fm_fail(FM_EREFUSED, "%s: was not opened for writing", b->door->shown);
}

fm_status fmr_bucket_list(fmr_bucket *b)
{
    fm_map_free(b->listed);
    b->listed = NULL;
    if (!b->arena)
        FM_TRY(fm_arena_new(&b->arena));
    FM_TRY(fm_map_new(&b->listed));
    FM_TRY(b->door->ops->list(b->door, "packs", note_listed, b));
    FM_TRY(b->door->ops->list(b->door, "lineage", note_listed, b));
    return mark_gone(b);
}

fm_status fmr_bucket_has(fmr_far *f, const fm_digest *id, size_t count, bool *there)
{
    fmr_bucket *b = fmr_bucket_of(f);
    FM_TRY(need_list(b));
    FM_TRY(fmr_bucket_heads(b));
    for (size_t i = 0; i < count; i++)
        there[i] = fmr_heads_find(&b->heads, &id[i]) != NULL;
    return FM_OK;
}

/* ---- a pack, made of records on the way ---- */

typedef struct packing {
    fmr_bucket *b;
    const fmr_load *load;
    size_t first, end; /* of the load's records */
    struct fmr_bucket_pack pack;
    fm_buf heads;
} packing;

typedef struct flow {
    fm_bytes_fn fn;
    void *ctx;
    const fmr_load *tell; /* whose `sent` is told of records; NULL: none */
} flow;

static fm_status pass_on(void *ctx, const void *data, size_t len)
{
    const flow *w = ctx;
    FM_TRY(w->fn(w->ctx, data, len));
    return w->tell && w->tell->sent ? w->tell->sent(w->tell->ctx, data, len) : fm_go_on();
}

/* Gives all bytes of the pack. */
static fm_status stream(const packing *p, flow *w)
{
    uint8_t frame[FMS_PACK_HEADER_BYTES];
    fm_hasher *hasher;
    fm_digest heads;
    fms_pack_header(frame, FMS_PACK_RECIPES);
    FM_TRY(w->fn(w->ctx, frame, sizeof frame));
    FM_TRY(fm_hasher_new(&hasher));
    fm_status rc = FM_OK;
    for (size_t i = p->first; rc == FM_OK && i < p->end; i++) {
        rc = fm_record_send(p->load->from, &p->load->info[i], 0, pass_on, w);
        FM_THEN(rc, fm_hasher_update(hasher, p->load->info[i].head.b, FM_DIGEST_BYTES));
    }
    FM_THEN(rc, fm_hasher_final(hasher, &heads));
    fm_hasher_free(hasher);
    FM_TRY(rc);
    fms_pack_footer(frame, p->end - p->first, p->pack.bytes, &heads);
    return w->fn(w->ctx, frame, sizeof frame);
}

typedef struct head_of {
    fm_buf *out;
    size_t begin;
    uint64_t need; /* 0: not known yet */
    bool whole;
} head_of;

static fm_status take_head(void *ctx, const void *data, size_t len)
{
    head_of *h = ctx;
    const size_t had = h->out->len - h->begin;
    if (h->need == 0)
        FM_TRY(fms_record_head_length(&h->need, fm_span_of(data, len), "a record"));
    fm_buf_append(h->out, data, (size_t)FM_MIN(len, h->need - had));
    FM_TRY(fm_buf_ok(h->out));
    h->whole = h->out->len - h->begin == h->need;
    return h->whole ? FM_ECANCELLED : FM_OK; /* it is enough */
}

/* Takes the load's next record into the pack. */
static fm_status add_record(packing *p)
{
    const fm_record_info *info = &p->load->info[p->end];
    head_of h = {.out = &p->heads, .begin = p->heads.len};
    fm_assert(p->load->offset[p->end] == 0); /* nothing is ever cut here */
    fm_status rc = fm_record_send(p->load->from, info, 0, take_head, &h);
    if (!h.whole)
        return rc != FM_OK ? rc : fm_fail(FM_ECORRUPT, "a record is shorter than its head");
    p->pack.bytes += info->stored_bytes;
    p->end++;
    return FM_OK;
}

static fm_status add_to_hash(void *ctx, const void *data, size_t len)
{
    return fm_hasher_update(ctx, data, len);
}

static fm_status name_pack(packing *p)
{
    fm_hasher *hasher;
    FM_TRY(fm_hasher_new(&hasher));
    flow w = {add_to_hash, hasher, NULL};
    fm_status rc = stream(p, &w);
    FM_THEN(rc, fm_hasher_final(hasher, &p->pack.name));
    fm_hasher_free(hasher);
    return rc;
}

/* ---- sending it ---- */

typedef struct sending {
    fmr_bucket *b;
    fmr_upload up;
    fmr_crew *crew;
    unsigned slots, slot; /* the one that is being filled */
    uint8_t *data[FMR_CREW_MAX];
    size_t part_of[FMR_CREW_MAX];
    size_t part; /* that is being filled */
    uint64_t filled;
    fm_hasher *hasher; /* of a pack whose name is not known yet; NULL */
} sending;

static fm_status send_part(void *ctx, unsigned worker, unsigned slot)
{
    sending *s = ctx;
    fmr_door *d = s->b->door->workers > 1 ? s->b->worker[worker] : s->b->door;
    const size_t i = s->part_of[slot];
    return d->ops->part(d, &s->up, i,
                        fm_span_of(s->data[slot], (size_t)fmr_upload_part_bytes(&s->up, i)));
}

static fm_status part_is_full(sending *s)
{
    s->filled = 0;
    if (s->up.part[s->part++].there)
        return FM_OK;
    s->part_of[s->slot] = s->part - 1;
    fmr_crew_give(s->crew, s->slot);
    s->slot = (s->slot + 1) % s->slots;
    return fmr_crew_wait(s->crew, s->slot);
}

static fm_status fill(void *ctx, const void *data, size_t len)
{
    sending *s = ctx;
    if (s->hasher)
        FM_TRY(fm_hasher_update(s->hasher, data, len));
    while (len > 0) {
        const size_t n = (size_t)FM_MIN(len, fmr_upload_part_bytes(&s->up, s->part) - s->filled);
        if (!s->up.part[s->part].there)
            memcpy(s->data[s->slot] + s->filled, data, n);
        data = (const uint8_t *)data + n;
        len -= n;
        s->filled += n;
        if (s->filled == fmr_upload_part_bytes(&s->up, s->part))
            FM_TRY(part_is_full(s));
    }
    return FM_OK;
}

static fm_status send_parts(sending *s, const packing *p)
{
    flow w = {fill, s, p->load};
    fm_status rc = FM_OK;
    for (unsigned i = 0; i < s->slots; i++) {
        s->data[i] = fm_malloc((size_t)FM_MIN(s->up.part_bytes, s->up.bytes));
        if (!s->data[i])
            return FM_ENOMEM;
    }
    FM_TRY(fmr_crew_new(&s->crew, s->b->door->workers, send_part, s));
    rc = stream(p, &w);
    for (unsigned i = 0; i < s->slots; i++)
        FM_THEN(rc, fmr_crew_wait(s->crew, i));
    return rc;
}

static bool may_be_there(const fmr_bucket *b, uint64_t bytes)
{
    for (size_t i = 0; i < fm_map_count(b->listed); i++)
        if (*(const uint64_t *)fm_map_value_at(b->listed, i) == bytes)
            return true;
    return false;
}

typedef struct look {
    const fmr_upload *up;
    bool there;
} look;

static fm_status is_it(void *ctx, const char *name, uint64_t bytes)
{
    look *l = ctx;
    l->there = l->there || (strcmp(name, l->up->name) == 0 && bytes == l->up->bytes);
    return FM_OK;
}

/* Two who push the same pack share its upload. Where one of them has ended it, or is about to, the
 * other's part or end is refused, in words that depend on the server. */
static fm_status unless_there(fmr_bucket *b, const fmr_upload *up, fm_status rc)
{
    const struct timespec pause = {0, LOOK_MS * 1000000L};
    look l = {.up = up};
    fm_error_state text;
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECANCELLED || !up->id)
        return rc;
    fm_error_save(&text);
    for (unsigned n = 0; n < LOOKS && !l.there; n++) {
        if (n > 0)
            (void)nanosleep(&pause, NULL);
        if (fm_go_on() != FM_OK || b->door->ops->list(b->door, "packs", is_it, &l) != FM_OK)
            break;
    }
    if (l.there) {
        fm_error_clear();
        return FM_OK;
    }
    fm_error_restore(&text);
    return rc;
}

/* late: its name is found out on the way. */
static fm_status send_pack(packing *p, bool late)
{
    fmr_bucket *b = p->b;
    fmr_door *d = b->door;
    char name[FMR_OBJECT_MAX];
    uint64_t part_bytes = b->part_bytes;
    sending s = {.b = b, .slots = d->workers + 1};
    fmr_pack_name(name, &p->pack.name);
    if (!late && lists(b, name, p->pack.bytes)) /* a push that was killed has brought it */
        return FM_OK;
    while (part_bytes < PART_BYTES_MAX && p->pack.bytes / part_bytes >= FMR_PARTS_MAX)
        part_bytes *= 2;
    fm_status rc = fmr_upload_init(&s.up, name, p->pack.bytes, part_bytes);
    FM_THEN(rc, fmr_bucket_workers(b));
    FM_THEN(rc, d->ops->begin(d, &s.up));
    if (late)
        FM_THEN(rc, fm_hasher_new(&s.hasher));
    FM_THEN(rc, send_parts(&s, p));
    fmr_crew_free(s.crew);
    if (late)
        FM_THEN(rc, fm_hasher_final(s.hasher, &p->pack.name));
    fmr_pack_name(name, &p->pack.name);
    FM_THEN(rc, d->ops->finish(d, &s.up));
    if (rc != FM_OK && d->ops->drop) {
        fm_error_state text;
        fm_error_save(&text);
        d->ops->drop(d, &s.up);
        fm_error_restore(&text);
    }
    rc = unless_there(b, &s.up, rc);
    for (unsigned i = 0; i < s.slots; i++)
        fm_free(s.data[i]);
    fmr_upload_release(&s.up);
    fm_hasher_free(s.hasher);
    return rc;
}

/* The heads go after the pack: where they are, the pack is. */
static fm_status put_pack(packing *p)
{
    char name[FMR_OBJECT_MAX];
    p->pack.heads_bytes = p->heads.len;
    fm_status rc = fm_sha256(&p->pack.heads, p->heads.data, p->heads.len);
    const bool late = p->b->door->late_names && !may_be_there(p->b, p->pack.bytes);
    if (!late)
        FM_THEN(rc, name_pack(p));
    FM_THEN(rc, send_pack(p, late));
    fmr_heads_name(name, &p->pack.name);
    if (rc == FM_OK && !lists(p->b, name, p->pack.heads_bytes))
        rc = p->b->door->ops->put(p->b->door, name, fm_buf_span(&p->heads), NULL);
    FM_THEN(rc, fmr_manifest_add_pack(&p->b->fresh, &p->pack));
    return rc;
}

/* Elsewhere an object may be coded in more steps than here, and what builds on it adds one. */
static fm_status check_levels(const fmr_bucket *b, const fmr_load *load)
{
    fm_map *seen;
    FM_TRY(fm_map_new(&seen));
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < load->count; i++) {
        const fm_record_info *r = &load->info[i];
        size_t deep = 0;
        for (uint32_t k = 0; k < r->parent_count; k++) {
            const fm_digest *parent = &r->parent[k];
            const size_t here = (size_t)(uintptr_t)fm_map_get(seen, parent->b, FM_DIGEST_BYTES);
            const fmr_place *there = fmr_heads_find(&b->heads, parent);
            deep = FM_MAX(deep, here ? here : there ? there->level + 1 : 1);
        }
        if (deep > FMS_CHAIN_MAX) {
            char hex[FM_HEX_CHARS + 1];
            fm_digest_hex(&r->id, hex);
            rc = fm_fail(FM_ELIMIT,
                         "object %.12s would be coded in more than %u steps in %s; push it after "
                         "'fmstore gc --repack' here",
                         hex, FMS_CHAIN_MAX, b->door->shown);
        }
        /* the value: the level of what builds on it */
        FM_THEN(rc,
                fm_map_put(seen, r->id.b, FM_DIGEST_BYTES, (void *)(uintptr_t)(deep + 1), NULL));
    }
    fm_map_free(seen);
    return rc;
}

fm_status fmr_bucket_put(fmr_far *f, const fmr_load *load)
{
    fmr_bucket *b = fmr_bucket_of(f);
    FM_TRY(need_list(b));
    FM_TRY(fmr_bucket_heads(b));
    FM_TRY(check_levels(b, load));
    packing p = {.b = b, .load = load};
    fm_status rc = FM_OK;
    fm_buf_init(&p.heads, (size_t)FMR_HEADS_MAX);
    while (rc == FM_OK && p.end < load->count) {
        p.first = p.end;
        p.pack.bytes = FMS_PACK_HEADER_BYTES + FMS_PACK_FOOTER_BYTES;
        fm_buf_clear(&p.heads);
        do
            rc = add_record(&p);
        while (rc == FM_OK && p.end < load->count && p.pack.bytes < b->pack_bytes &&
               p.heads.len < HEADS_BYTES);
        FM_THEN(rc, put_pack(&p));
    }
    fm_buf_release(&p.heads);
    return rc;
}

/* ---- git's objects ---- */

static fm_status take_git(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static fm_status put_git_pack(fmr_bucket *b, const fm_buf *pack, const fm_exchange_ask *ask)
{
    char name[FMR_OBJECT_MAX];
    fm_digest sum;
    FM_TRY(fm_sha256(&sum, pack->data, pack->len));
    fmr_git_name(name, &sum);
    FM_TRY(b->door->ops->put(b->door, name, fm_buf_span(pack), NULL));
    return fmr_manifest_add_git(&b->fresh, &sum, pack->len, ask->want, ask->wants);
}

fm_status fmr_bucket_git_put(fmr_far *f, fm_repo *from, const fm_exchange_ask *ask)
{
    fmr_bucket *b = fmr_bucket_of(f);
    uint64_t objects = 0;
    fm_buf pack;
    FM_TRY(need_list(b));
    fm_buf_init(&pack, (size_t)FMR_GIT_PACK_MAX);
    fm_status rc = fm_git_send(from, ask, take_git, &pack, &objects);
    if (rc == FM_ELIMIT)
        rc = fm_fail(FM_ELIMIT, "the lineage is more than %llu MiB; push fewer branches at once",
                     (unsigned long long)(FMR_GIT_PACK_MAX >> 20));
    if (rc == FM_OK && objects > 0)
        rc = put_git_pack(b, &pack, ask);
    fm_buf_release(&pack);
    return rc;
}
