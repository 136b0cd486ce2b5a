/* bucket.c - opens a bucket: its manifest. */
#include "remote/bucket/bucket.h"

#include <stdio.h>
#include <string.h>

#include "remote/bucket/bucket_impl.h"
#include "remote/remote.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

static void name_of(char out[FMR_OBJECT_MAX], const char *folder, const fm_digest *d,
                    const char *end)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(d, hex);
    (void)snprintf(out, FMR_OBJECT_MAX, "%s/%s%s", folder, hex, end);
}

void fmr_pack_name(char out[FMR_OBJECT_MAX], const fm_digest *d)
{
    name_of(out, "packs", d, ".pack");
}

void fmr_heads_name(char out[FMR_OBJECT_MAX], const fm_digest *d)
{
    name_of(out, "packs", d, ".heads");
}

void fmr_git_name(char out[FMR_OBJECT_MAX], const fm_digest *d)
{
    name_of(out, "lineage", d, ".pack");
}

fm_status fmr_bucket_load(fmr_bucket *b)
{
    fm_buf text;
    fm_buf_init(&text, FMR_MANIFEST_MAX);
    fmr_manifest_release(&b->manifest);
    b->tag[0] = '\0';
    fm_status rc = b->door->ops->get(b->door, FMR_MANIFEST_NAME, 0, 0, &text, b->tag);
    FM_THEN(rc, fmr_manifest_parse(&b->manifest, fm_buf_span(&text), FMR_MANIFEST_NAME));
    fm_buf_release(&text);
    fmr_heads_release(&b->heads);
    b->has_heads = false;
    return rc;
}

fm_status fmr_bucket_workers(fmr_bucket *b)
{
    for (unsigned i = 0; i < b->door->workers; i++)
        if (!b->worker[i])
            FM_TRY(b->door->ops->again(b->door, &b->worker[i]));
    return FM_OK;
}

static void traffic(fmr_far *f, uint64_t *in, uint64_t *out)
{
    const fmr_bucket *b = fmr_bucket_of(f);
    *in = b->door->in;
    *out = b->door->out;
    for (unsigned i = 0; i < b->door->workers; i++) {
        *in += b->worker[i] ? b->worker[i]->in : 0;
        *out += b->worker[i] ? b->worker[i]->out : 0;
    }
}

static fm_status refs(fmr_far *f, fm_exchange_ref_fn fn, void *ctx)
{
    const fmr_manifest *m = &fmr_bucket_of(f)->manifest;
    for (size_t i = 0; i < m->refs; i++)
        if (fm_exchange_ref_travels(m->ref[i].name)) /* a newer fmstore may have other kinds */
            FM_TRY(fn(ctx, m->ref[i].name, &m->ref[i].oid, &m->ref[i].peeled));
    return FM_OK;
}

/* A pack that a push left cut is found by its name in put. */
static fm_status cut(fmr_far *f, fmr_ask_record *out, bool *there)
{
    (void)f;
    memset(out, 0, sizeof *out);
    *there = false;
    return FM_OK;
}

static void close_bucket(fmr_far *f)
{
    fmr_bucket *b = fmr_bucket_of(f);
    for (unsigned i = 0; i < FMR_CREW_MAX; i++)
        if (b->worker[i])
            b->worker[i]->ops->close(b->worker[i]);
    if (b->door)
        b->door->ops->close(b->door);
    fmr_manifest_release(&b->manifest);
    fmr_manifest_release(&b->fresh);
    fmr_heads_release(&b->heads);
    fm_map_free(b->listed);
    fm_arena_free(b->arena);
    fm_free(b);
}

static const fmr_far_ops bucket_ops = {
    refs,           fmr_bucket_git_get, fmr_bucket_info, fmr_bucket_get, fmr_bucket_has, cut,
    fmr_bucket_put, fmr_bucket_git_put, fmr_bucket_move, traffic,        close_bucket};

/* Takes the door over. may_make: a push makes the manifest. */
static fm_status open_bucket(fmr_far **out, fmr_door *door, fmr_service service, bool may_make)
{
    fm_error_state text;
    fmr_bucket *b = fm_calloc(1, sizeof *b);
    if (!b) {
        door->ops->close(door);
        return FM_ENOMEM;
    }
    b->far.ops = &bucket_ops;
    b->far.unkept = true;
    b->pack_bytes = FMR_PACK_BYTES;
    b->part_bytes = FMR_PART_BYTES;
    b->piece_bytes = FMR_PIECE_BYTES;
    b->door = door;
    b->service = service;
    fm_status rc = fmr_bucket_load(b);
    if (rc == FM_ENOTFOUND && service == FMR_WRITE && may_make) {
        fm_error_clear();
        rc = FM_OK;
    }
    if (rc == FM_OK && service == FMR_WRITE)
        rc = fmr_bucket_list(b);
    else if (rc == FM_ENOTFOUND)
        rc = fm_fail(FM_ENOTFOUND, "%s: there is no repository of fmstore (%s)", door->shown,
                     fm_error_text());
    if (rc != FM_OK) {
        fm_error_save(&text);
        close_bucket(&b->far);
        fm_error_restore(&text);
        return rc;
    }
    *out = &b->far;
    return FM_OK;
}

bool fmr_is_bucket(const char *dir)
{
    char *path = fm_path_join(dir, FMR_MANIFEST_NAME);
    const bool yes = path && fm_path_exists(path);
    fm_free(path);
    return yes;
}

fm_status fmr_open_bucket_folder(fmr_far **out, const char *dir, fmr_service service)
{
    fmr_door *door;
    *out = NULL;
    FM_TRY(fmr_door_folder(&door, dir));
    return open_bucket(out, door, service, false);
}

fm_status fmr_open_bucket_http(fmr_far **out, const char *url, fmr_service service,
                               const char *ca_file)
{
    fmr_door *door;
    *out = NULL;
    if (service == FMR_WRITE)
        return fm_fail(FM_EREFUSED,
                       "%s: a static file server can only be read; push to the folder "
                       "or the bucket that it serves",
                       url);
    FM_TRY(fmr_door_http(&door, url, ca_file));
    return open_bucket(out, door, service, false);
}

fm_status fmr_open_bucket_s3(fmr_far **out, const char *bucket, const char *prefix,
                             fmr_service service)
{
    fmr_door *door;
    *out = NULL;
    FM_TRY(fmr_door_s3(&door, bucket, prefix));
    return open_bucket(out, door, service, true);
}

fm_status fm_remote_make_bucket(const char *dir)
{
    fmr_manifest none = {0};
    fmr_door *door;
    fm_buf text;
    FM_TRY(fm_make_dirs(dir));
    FM_TRY(fmr_door_folder(&door, dir));
    fm_buf_init(&text, 0);
    fm_status rc = fmr_manifest_write(&none, &text);
    FM_THEN(rc, door->ops->put(door, FMR_MANIFEST_NAME, fm_buf_span(&text), ""));
    if (rc == FM_ECONFLICT)
        rc = fm_fail(FM_EEXISTS, "'%s' is a bucket already", dir);
    fm_buf_release(&text);
    door->ops->close(door);
    return rc;
}
