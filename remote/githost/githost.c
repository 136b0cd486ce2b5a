/* githost.c - opens a git host and its bucket, each when it is first needed. */
#include "remote/githost/githost.h"

#include <string.h>

#include "remote/bucket/bucket.h"
#include "remote/githost/githost_impl.h"
#include "remote/link/credential.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define LIST_BYTES_MAX ((size_t)64 << 20)   /* of `git ls-remote`, */
#define LIST_MEMORY_MAX ((uint64_t)1 << 30) /* and of its memory: it gathers all before it prints */

/* ---- the git half ---- */

/* Outside of any repository: the refs are asked for before there is one, in a clone. */
fm_status fmr_githost_list(fmr_githost *h)
{
    fmr_call c;
    fm_buf text;
    fmr_host_refs_release(&h->refs);
    h->listed = false;
    fm_buf_init(&text, LIST_BYTES_MAX);
    fmr_call_init(&c, h, "/dev/null");
    fmr_call_add(&c, "ls-remote");
    fmr_call_add(&c, "--");
    fmr_call_add(&c, "%s", h->url);
    fmr_git_run run = {.answer = &text, .memory_bytes = LIST_MEMORY_MAX};
    fm_status rc = fmr_call_run(&c, h, &run);
    if (rc == FM_EIO && (strstr(run.words, "does not appear to be a git repository") ||
                         strstr(run.words, "not found")))
        rc = FM_ENOTFOUND;
    FM_THEN(rc, fmr_host_refs_parse(&h->refs, fm_buf_span(&text), h->shown));
    h->listed = rc == FM_OK;
    h->in += text.len;
    fmr_call_release(&c);
    fm_buf_release(&text);
    return rc;
}

/* ---- the bucket's half ---- */

static void close_bucket(fmr_githost *h)
{
    if (!h->bucket)
        return;
    uint64_t in, out;
    h->bucket->ops->traffic(h->bucket, &in, &out);
    h->in += in;
    h->out += out;
    h->bucket->ops->close(h->bucket);
    h->bucket = NULL;
}

static void traffic(fmr_far *f, uint64_t *in, uint64_t *out)
{
    const fmr_githost *h = fmr_githost_of(f);
    *in = *out = 0;
    if (h->bucket)
        h->bucket->ops->traffic(h->bucket, in, out);
    *in += h->in;
    *out += h->out;
}

static fm_status open_bucket(fmr_githost *h)
{
    const fmr_url *u = &h->packs;
    if (u->scheme == FMR_S3)
        return fmr_open_bucket_s3(&h->bucket, u->host, u->path, h->service);
    if (u->scheme != FMR_HTTP)
        return fmr_open_bucket_folder(&h->bucket, u->path, h->service);
    char *ca = fmr_ca_file(u, h->ca_file);
    const fm_status rc = fmr_open_bucket_http(&h->bucket, u->text, h->service, ca);
    fm_free(ca);
    return rc;
}

fm_status fmr_githost_bucket(fmr_githost *h)
{
    fm_status rc = h->bucket ? FM_OK : open_bucket(h);
    if (rc == FM_ENOTFOUND && h->packs.scheme == FMR_FOLDER)
        rc = fm_fail(rc, "%s; 'fmstore init --bucket %s' makes a bucket", fm_error_text(),
                     h->packs.text);
    if (rc == FM_OK)
        h->bucket->repo = h->far.repo;
    return rc;
}

/* ---- the far side ---- */

/* The bucket after the refs, and anew: what the refs reach was there before they moved. */
static fm_status refs(fmr_far *f, fm_exchange_ref_fn fn, void *ctx)
{
    fmr_githost *h = fmr_githost_of(f);
    close_bucket(h);
    FM_TRY(fmr_githost_list(h));
    FM_TRY(fmr_githost_bucket(h));
    for (size_t i = 0; i < h->refs.count; i++)
        FM_TRY(fn(ctx, h->refs.ref[i].name, &h->refs.ref[i].oid, &h->refs.ref[i].peeled));
    return FM_OK;
}

static fm_status info(fmr_far *f, const fm_digest *id, size_t count, fm_record_info *out,
                      bool *there)
{
    fmr_githost *h = fmr_githost_of(f);
    FM_TRY(fmr_githost_bucket(h));
    return h->bucket->ops->info(h->bucket, id, count, out, there);
}

static fm_status get(fmr_far *f, const fmr_ask_record *ask, size_t count, const fmr_sink *to)
{
    fmr_githost *h = fmr_githost_of(f);
    FM_TRY(fmr_githost_bucket(h));
    return h->bucket->ops->get(h->bucket, ask, count, to);
}

static fm_status has(fmr_far *f, const fm_digest *id, size_t count, bool *there)
{
    fmr_githost *h = fmr_githost_of(f);
    FM_TRY(fmr_githost_bucket(h));
    return h->bucket->ops->has(h->bucket, id, count, there);
}

static fm_status cut(fmr_far *f, fmr_ask_record *out, bool *there)
{
    fmr_githost *h = fmr_githost_of(f);
    FM_TRY(fmr_githost_bucket(h));
    return h->bucket->ops->cut(h->bucket, out, there);
}

static fm_status put(fmr_far *f, const fmr_load *load)
{
    fmr_githost *h = fmr_githost_of(f);
    FM_TRY(fmr_githost_bucket(h));
    return h->bucket->ops->put(h->bucket, load);
}

static void close_githost(fmr_far *f)
{
    fmr_githost *h = fmr_githost_of(f);
    close_bucket(h);
    fmr_host_refs_release(&h->refs);
    fmr_url_release(&h->packs);
    fm_free(h->url);
    fm_free(h->shown);
    fm_free(h->ssh);
    fm_free(h->ca_file);
    fm_free(h);
}

static const fmr_far_ops githost_ops = {
    refs, fmr_githost_get, info, get, has, cut, put, fmr_githost_put, fmr_githost_move, traffic,
    close_githost};

/* ---- opening ---- */

fm_status fmr_githost_check(const fmr_url *git, const fmr_url *packs)
{
    if (git->scheme == FMR_S3)
        return fm_fail(FM_EINVAL, "%s: with --packs the first URL is that of a git repository",
                       git->text);
    if (packs->scheme == FMR_SSH || packs->scheme == FMR_GIT)
        return fm_fail(FM_EINVAL,
                       "%s: --packs names a bucket: a folder that 'fmstore init --bucket' made, "
                       "s3://BUCKET/PREFIX, or https:// for reading",
                       packs->text);
    return FM_OK;
}

/* A path means the same from wherever git looks. */
static fm_status set_url(fmr_githost *h, const char *text)
{
    fmr_url u;
    FM_TRY(fmr_url_parse(&u, text));
    const bool folder = u.scheme == FMR_FOLDER;
    fm_status rc = FM_OK;
    h->shown = fm_strdup(u.text);
    if (folder && fm_path_is_dir(u.path))
        rc = fm_path_real(&h->url, u.path);
    else
        h->url = fm_strdup(text);
    fmr_url_release(&u);
    return rc == FM_OK && (!h->shown || !h->url) ? FM_ENOMEM : rc;
}

static fm_status copy(char **out, const char *text)
{
    *out = text && *text ? fm_strdup(text) : NULL;
    return text && *text && !*out ? FM_ENOMEM : FM_OK;
}

fm_status fmr_open_githost(fmr_far **out, const char *text, const fmr_url *packs,
                           fmr_service service, const fmr_open_opts *opts)
{
    *out = NULL;
    fmr_githost *h = fm_calloc(1, sizeof *h);
    if (!h)
        return FM_ENOMEM;
    h->far.ops = &githost_ops;
    h->far.unkept = true;
    h->service = service;
    fm_status rc = set_url(h, text);
    FM_THEN(rc, fmr_url_parse(&h->packs, packs->text));
    FM_THEN(rc, copy(&h->ssh, opts->ssh));
    FM_THEN(rc, copy(&h->ca_file, opts->ca_file));
    if (rc != FM_OK) {
        close_githost(&h->far);
        return rc;
    }
    *out = &h->far;
    return FM_OK;
}
