/* read.c - what a fetch asks of a bucket: git packs, the heads of packs, and ranges of packs.
 *
 * Records that were asked for one after the other, and lie so, are one request; what lies between
 * two by little is read and dropped. A crew reads ahead of what is being verified. */
#include <string.h>

#include "remote/bucket/bucket_impl.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define SLOTS 8u
#define GAP_BYTES ((uint64_t)64 << 10)    /* less between two records is read too */
#define GIT_BYTES_MAX ((uint64_t)4 << 30) /* of all git packs of a fetch */
#define TRIES 3u                          /* of a part that broke off */
#define CACHE_DIR "cache/heads"

/* ---- git's objects ---- */

static bool tips_are_here(fm_repo *r, const struct fmr_bucket_git *g)
{
    for (size_t i = 0; i < g->tips; i++)
        if (!fm_exchange_has(r, &g->tip[i]))
            return false;
    return true;
}

static fm_status give_git(fmr_bucket *b, const struct fmr_bucket_git *g, fm_bytes_fn fn, void *ctx)
{
    char name[FMR_OBJECT_MAX];
    fm_digest sum;
    fm_buf pack;
    FM_TRY(fm_go_on());
    fmr_git_name(name, &g->name);
    fm_buf_init(&pack, (size_t)g->bytes + 1);
    fm_status rc = b->door->ops->get(b->door, name, 0, g->bytes, &pack, NULL);
    FM_THEN(rc, fm_sha256(&sum, pack.data, pack.len));
    if (rc == FM_OK && !fm_digest_eq(&sum, &g->name))
        rc = fm_fail(FM_ECORRUPT, "%s: %s has not the bytes that its name says", b->door->shown,
                     name);
    FM_THEN(rc, fn(ctx, pack.data, pack.len));
    FM_THEN(rc, fn(ctx, NULL, 0));
    fm_buf_release(&pack);
    return rc;
}

/* The packs whose tips are not here, oldest first. Where all tips are here, and the fetch asks all
 * the same, a part of what they reach was lost: then all packs come. */
fm_status fmr_bucket_git_get(fmr_far *f, const fm_exchange_ask *ask, fm_bytes_fn fn, void *ctx)
{
    fmr_bucket *b = fmr_bucket_of(f);
    const fmr_manifest *m = &b->manifest;
    uint64_t bytes = 0;
    bool any = false;
    (void)ask;
    for (size_t i = 0; i < m->gits; i++)
        any = any || !f->repo || !tips_are_here(f->repo, &m->git[i]);
    for (size_t i = 0; i < m->gits; i++) {
        if (any && f->repo && tips_are_here(f->repo, &m->git[i]))
            continue;
        bytes += m->git[i].bytes;
        if (bytes > GIT_BYTES_MAX)
            return fm_fail(FM_ELIMIT, "%s: its lineage is more than %llu GiB", b->door->shown,
                           (unsigned long long)(GIT_BYTES_MAX >> 30));
        FM_TRY(give_git(b, &m->git[i], fn, ctx));
    }
    return FM_OK;
}

/* ---- heads ---- */

static char *cache_path(const fmr_bucket *b, const fm_digest *d)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(d, hex);
    return b->far.repo ? fm_asprintf("%s/" CACHE_DIR "/%s", fm_repo_path(b->far.repo), hex) : NULL;
}

static bool is_right(const fm_buf *text, const fm_digest *want)
{
    fm_digest sum;
    return fm_sha256(&sum, text->data, text->len) == FM_OK && fm_digest_eq(&sum, want);
}

/* False: they are not in the cache. */
static bool read_cached(const fmr_bucket *b, const struct fmr_bucket_pack *p, fm_buf *out)
{
    char *path = cache_path(b, &p->heads);
    const bool hit = path && fm_path_exists(path) && fm_read_file(out, path, out->max) == FM_OK &&
                     is_right(out, &p->heads);
    fm_free(path);
    if (!hit)
        fm_buf_clear(out);
    return hit;
}

static void keep_cached(const fmr_bucket *b, const struct fmr_bucket_pack *p, const fm_buf *text)
{
    fm_error_state kept;
    char *path = cache_path(b, &p->heads);
    char *dir = path ? fm_asprintf("%s/" CACHE_DIR, fm_repo_path(b->far.repo)) : NULL;
    fm_error_save(&kept);
    if (path && dir && fm_make_dirs(dir) == FM_OK)
        fm_ignore(fm_write_file(path, text->data, text->len), "they are read again next time");
    fm_error_restore(&kept);
    fm_free(dir);
    fm_free(path);
}

typedef struct heads_job {
    fmr_bucket *b;
    size_t pack[SLOTS];
    fm_buf text[SLOTS];
} heads_job;

static fm_status read_heads(void *ctx, unsigned worker, unsigned slot)
{
    heads_job *j = ctx;
    fmr_door *d = j->b->worker[worker];
    const struct fmr_bucket_pack *p = &j->b->manifest.pack[j->pack[slot]];
    fm_buf *text = &j->text[slot];
    char name[FMR_OBJECT_MAX];
    fm_buf_release(text);
    fm_buf_init(text, (size_t)p->heads_bytes + 1);
    if (read_cached(j->b, p, text))
        return FM_OK;
    fmr_heads_name(name, &p->name);
    FM_TRY(d->ops->get(d, name, 0, p->heads_bytes, text, NULL));
    if (!is_right(text, &p->heads))
        return fm_fail(FM_ECORRUPT, "%s: %s has not the bytes that the bucket's list says",
                       d->shown, name);
    keep_cached(j->b, p, text);
    return FM_OK;
}

static fm_status take_heads(heads_job *j, fmr_crew *crew, unsigned slot)
{
    char name[FMR_OBJECT_MAX];
    const struct fmr_bucket_pack *p = &j->b->manifest.pack[j->pack[slot]];
    FM_TRY(fmr_crew_wait(crew, slot));
    fmr_heads_name(name, &p->name);
    return fmr_heads_add(&j->b->heads, fm_buf_span(&j->text[slot]), j->pack[slot], p->bytes, name);
}

/* Packs are read ahead, and taken in the manifest's order. */
static fm_status read_all_heads(heads_job *j, fmr_crew *crew)
{
    const fmr_manifest *m = &j->b->manifest;
    size_t given = 0, taken = 0;
    for (size_t i = 0; i < m->packs; i++) {
        if (m->pack[i].gone)
            continue;
        if (given - taken == SLOTS)
            FM_TRY(take_heads(j, crew, (unsigned)(taken++ % SLOTS)));
        j->pack[given % SLOTS] = i;
        fmr_crew_give(crew, (unsigned)(given++ % SLOTS));
    }
    while (taken < given)
        FM_TRY(take_heads(j, crew, (unsigned)(taken++ % SLOTS)));
    return FM_OK;
}

fm_status fmr_bucket_heads(fmr_bucket *b)
{
    heads_job j = {.b = b};
    fmr_crew *crew;
    if (b->has_heads)
        return FM_OK;
    fmr_heads_release(&b->heads);
    FM_TRY(fmr_heads_init(&b->heads));
    FM_TRY(fmr_bucket_workers(b));
    FM_TRY(fmr_crew_new(&crew, b->door->workers, read_heads, &j));
    fm_status rc = read_all_heads(&j, crew);
    fmr_crew_free(crew);
    for (unsigned i = 0; i < SLOTS; i++)
        fm_buf_release(&j.text[i]);
    b->has_heads = rc == FM_OK;
    return rc;
}

fm_status fmr_bucket_info(fmr_far *f, const fm_digest *id, size_t count, fm_record_info *out,
                          bool *there)
{
    fmr_bucket *b = fmr_bucket_of(f);
    FM_TRY(fmr_bucket_heads(b));
    for (size_t i = 0; i < count; i++) {
        const fmr_place *p = fmr_heads_find(&b->heads, &id[i]);
        there[i] = p != NULL;
        if (p)
            fmr_place_info(p, &out[i]);
    }
    return FM_OK;
}

/* ---- records ---- */

/* A range of a pack, as one request reads it. */
typedef struct piece {
    size_t pack;
    uint64_t from, bytes;
    fm_buf data;
} piece;

typedef struct reading {
    fmr_bucket *b;
    const fmr_ask_record *ask;
    const fmr_place **place; /* of each; NULL: the bucket has no such record */
    size_t count;
    const fmr_sink *to;
    fmr_crew *crew;
    piece piece[SLOTS];
    /* how far requests were planned */
    size_t next;
    uint64_t next_at;
    /* how far records were given to the sink */
    size_t at;
    bool begun;
    uint64_t left; /* of the record that has begun */
} reading;

static fm_status find_places(reading *r)
{
    r->place = fm_calloc(r->count + 1, sizeof(const fmr_place *));
    if (!r->place)
        return FM_ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const fmr_place *p = fmr_heads_find(&r->b->heads, &r->ask[i].id);
        if (p && fm_digest_eq(&p->head, &r->ask[i].head) && r->ask[i].offset <= p->stored_bytes)
            r->place[i] = p;
    }
    return FM_OK;
}

/* Moves on to the next record of which bytes are to come. */
static void start_next(reading *r)
{
    while (r->next < r->count) {
        const fmr_place *p = r->place[r->next];
        r->next_at = p ? p->offset + r->ask[r->next].offset : 0;
        if (p && r->ask[r->next].offset < p->stored_bytes)
            return;
        r->next++;
    }
}

/* Plans one request from where the last one ended; false: nothing is left. */
static bool plan(reading *r, piece *out)
{
    if (r->next == r->count)
        return false;
    out->pack = r->place[r->next]->pack;
    out->from = r->next_at;
    uint64_t end = r->next_at;
    while (r->next < r->count) {
        const fmr_place *p = r->place[r->next];
        const uint64_t most = out->from + r->b->piece_bytes;
        if (p->pack != out->pack || r->next_at < end || r->next_at > end + GAP_BYTES ||
            r->next_at >= most)
            break;
        end = FM_MIN(p->offset + p->stored_bytes, most);
        if (end < p->offset + p->stored_bytes) { /* the rest is the next request's */
            r->next_at = end;
            break;
        }
        r->next++;
        start_next(r);
    }
    out->bytes = end - out->from;
    return true;
}

static fm_status read_piece(void *ctx, unsigned worker, unsigned slot)
{
    reading *r = ctx;
    piece *p = &r->piece[slot];
    fmr_door *d = r->b->worker[worker];
    char name[FMR_OBJECT_MAX];
    fm_status rc = FM_OK;
    fmr_pack_name(name, &r->b->manifest.pack[p->pack].name);
    for (unsigned tried = 0; tried < TRIES; tried++) {
        FM_TRY(fm_go_on());
        fm_buf_clear(&p->data);
        rc = d->ops->get(d, name, p->from, p->bytes, &p->data, NULL);
        if (rc != FM_EIO && rc != FM_ECORRUPT)
            break;
    }
    return rc;
}

/* Records that the bucket lacks, or of which nothing is asked, up to one that bytes belong to. */
static fm_status begin_record(reading *r)
{
    while (r->at < r->count && !r->begun) {
        const fmr_place *p = r->place[r->at];
        FM_TRY(r->to->begin(r->to->ctx, r->at, p != NULL));
        r->left = p ? p->stored_bytes - r->ask[r->at].offset : 0;
        r->begun = r->left > 0;
        if (r->begun)
            break;
        if (p)
            FM_TRY(r->to->end(r->to->ctx));
        r->at++;
    }
    return FM_OK;
}

static fm_status give_piece(reading *r, const piece *p)
{
    uint64_t pos = 0;
    while (pos < p->bytes) {
        FM_TRY(begin_record(r));
        const fmr_place *place = r->place[r->at];
        const uint64_t here = place->offset + place->stored_bytes - r->left;
        fm_assert(here >= p->from + pos);
        pos = here - p->from; /* over what lies between two */
        const uint64_t n = FM_MIN(r->left, p->bytes - pos);
        FM_TRY(r->to->bytes(r->to->ctx, p->data.data + pos, (size_t)n));
        pos += n;
        r->left -= n;
        if (r->left > 0)
            continue;
        FM_TRY(r->to->end(r->to->ctx));
        r->begun = false;
        r->at++;
    }
    return FM_OK;
}

static fm_status take_piece(reading *r, unsigned slot)
{
    FM_TRY(fmr_crew_wait(r->crew, slot));
    return give_piece(r, &r->piece[slot]);
}

static fm_status read_records(reading *r)
{
    size_t given = 0, taken = 0;
    start_next(r);
    while (plan(r, &r->piece[given % SLOTS])) {
        fmr_crew_give(r->crew, (unsigned)(given++ % SLOTS));
        if (given - taken == SLOTS)
            FM_TRY(take_piece(r, (unsigned)(taken++ % SLOTS)));
    }
    while (taken < given)
        FM_TRY(take_piece(r, (unsigned)(taken++ % SLOTS)));
    return begin_record(r);
}

fm_status fmr_bucket_get(fmr_far *f, const fmr_ask_record *ask, size_t count, const fmr_sink *to)
{
    fmr_bucket *b = fmr_bucket_of(f);
    reading r = {.b = b, .ask = ask, .count = count, .to = to};
    FM_TRY(fmr_bucket_heads(b));
    FM_TRY(fmr_bucket_workers(b));
    for (unsigned i = 0; i < SLOTS; i++)
        fm_buf_init(&r.piece[i].data, (size_t)b->piece_bytes + 1);
    fm_status rc = fmr_crew_new(&r.crew, b->door->workers, read_piece, &r);
    FM_THEN(rc, find_places(&r));
    FM_THEN(rc, read_records(&r));
    fmr_crew_free(r.crew);
    fm_free((void *)r.place);
    for (unsigned i = 0; i < SLOTS; i++)
        fm_buf_release(&r.piece[i].data);
    return rc;
}
