/* fetch.c - brings git's objects from a git host.
 *
 * git works in a repository of its own below REPO/tmp, whose alternate is the lineage: so both
 * sides' git find out what is missing here, and a thin pack is made whole. The packs that came
 * then pass through the same intake as those of any other far side. A push works in such a one
 * too, so that no configuration of the lineage's own, which another user may have written, says
 * what git runs. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "remote/githost/githost_impl.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define GIT_BYTES_MAX ((uint64_t)4 << 30) /* of a fetch; the intake's limit for one pack */
#define MEMORY_BYTES ((uint64_t)4 << 30)  /* of git, which unpacks what the host sends */
#define PIECE_BYTES ((size_t)1 << 20)

/* ---- the repository that git works in ---- */

static fm_status make_file(const char *dir, const char *name, const char *text)
{
    char *path = fm_path_join(dir, name);
    fm_status rc = path ? fm_write_file(path, text, strlen(text)) : FM_ENOMEM;
    fm_free(path);
    return rc;
}

static fm_status make_folder(const char *dir, const char *name)
{
    char *path = fm_path_join(dir, name);
    fm_status rc = path ? fm_make_dirs(path) : FM_ENOMEM;
    fm_free(path);
    return rc;
}

/* A path with a line break cannot be named. */
fm_status fmr_githost_repo(const char *dir, const char *root, bool borrow)
{
    FM_TRY(make_folder(dir, "objects/info"));
    FM_TRY(make_folder(dir, "objects/pack"));
    FM_TRY(make_folder(dir, "refs"));
    FM_TRY(make_file(dir, "HEAD", "ref: refs/heads/none\n"));
    FM_TRY(make_file(dir, "config", "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"));
    if (!borrow || strchr(root, '\n'))
        return FM_OK;
    char *text = fm_asprintf("%s/lineage.git/objects\n", root);
    fm_status rc = text ? make_file(dir, "objects/info/alternates", text) : FM_ENOMEM;
    fm_free(text);
    return rc;
}

/* ---- the packs that came ---- */

static fm_status give_pack(fmr_githost *h, const char *path, fm_bytes_fn fn, void *ctx)
{
    fm_file_map map;
    FM_TRY(fm_map_file(&map, path));
    fm_status rc = FM_OK;
    h->in += map.len;
    for (size_t at = 0; rc == FM_OK && at < map.len; at += PIECE_BYTES) {
        rc = fm_go_on();
        FM_THEN(rc, fn(ctx, map.data + at, FM_MIN(map.len - at, PIECE_BYTES)));
    }
    FM_THEN(rc, fn(ctx, NULL, 0));
    fm_unmap_file(&map);
    return rc;
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);
    return n > e && strcmp(name + n - e, end) == 0;
}

static fm_status give_packs(fmr_githost *h, const char *dir, fm_bytes_fn fn, void *ctx)
{
    fm_names names = {NULL, 0};
    char *packs = fm_path_join(dir, "objects/pack");
    fm_status rc = packs ? fm_list_dir(&names, packs) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        if (!ends_in(names.name[i], ".pack"))
            continue;
        char *path = fm_path_join(packs, names.name[i]);
        rc = path ? give_pack(h, path, fn, ctx) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(packs);
    return rc;
}

/* A host that only gives files away lets git gather objects one by one. */
static fm_status check_form(const fmr_githost *h, const char *dir)
{
    fm_names names = {NULL, 0};
    char *objects = fm_path_join(dir, "objects");
    fm_status rc = objects ? fm_list_dir(&names, objects) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < names.count; i++)
        if (strlen(names.name[i]) == 2)
            rc = fm_fail(FM_EUNSUPPORTED,
                         "%s: gives its files away one by one (git's dumb HTTP); serve it by "
                         "'git http-backend'",
                         h->shown);
    fm_names_release(&names);
    fm_free(objects);
    return rc;
}

/* ---- the fetch ---- */

static void say_oid(fm_buf *say, const fm_oid *oid)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    fm_buf_printf(say, "%s\n", hex);
}

/* What is wanted, and all kept versions that are not here: any of them may be named by what
 * comes. */
static fm_status say_wants(fm_buf *say, const fmr_githost *h, const fm_exchange_ask *ask)
{
    for (size_t i = 0; i < ask->wants; i++)
        say_oid(say, &ask->want[i]);
    for (size_t i = 0; i < h->refs.kept_count; i++)
        if (!fm_exchange_has(h->far.repo, &h->refs.kept[i]))
            say_oid(say, &h->refs.kept[i]);
    return fm_buf_ok(say);
}

static fm_status run_fetch(const fmr_githost *h, const char *dir, const fm_buf *say)
{
    char died[40];
    fmr_call c;
    fm_buf none;
    fm_buf_init(&none, 4096);
    fmr_call_init(&c, h, dir);
    fmr_call_add(&c, "fetch");
    fmr_call_add(&c, "--quiet");
    fmr_call_add(&c, "--stdin");
    fmr_call_add(&c, "--no-tags");
    fmr_call_add(&c, "--no-write-fetch-head");
    fmr_call_add(&c, "--");
    fmr_call_add(&c, "%s", h->url);
    fmr_git_run run = {.say = fm_buf_span(say),
                       .answer = &none,
                       .file_bytes = GIT_BYTES_MAX,
                       .memory_bytes = MEMORY_BYTES};
    fm_status rc = fmr_call_run(&c, h, &run);
    if (rc == FM_OK && run.code != 0) /* 1: an object that it was told of is missing */
        rc = fm_fail(FM_EIO, "%s: git could not fetch all", h->shown);
    (void)snprintf(died, sizeof died, "died of signal %d", SIGXFSZ);
    if (rc == FM_EIO && strstr(run.words, died))
        rc = fm_fail(FM_ELIMIT, "%s: sends more than %llu GiB", h->shown,
                     (unsigned long long)(GIT_BYTES_MAX >> 30));
    fmr_call_release(&c);
    fm_buf_release(&none);
    return rc;
}

/* Where all that is wanted is here, a part of what it reaches was lost: then all of it comes. */
static bool is_new(fm_repo *r, const fm_exchange_ask *ask)
{
    for (size_t i = 0; i < ask->wants; i++)
        if (!fm_exchange_has(r, &ask->want[i]))
            return true;
    return false;
}

fm_status fmr_githost_get(fmr_far *f, const fm_exchange_ask *ask, fm_bytes_fn fn, void *ctx)
{
    fmr_githost *h = fmr_githost_of(f);
    fm_staging *staging;
    fm_buf say;
    fm_assert(f->repo);
    if (!h->listed)
        FM_TRY(fmr_githost_list(h));
    FM_TRY(fm_staging_make(&staging, f->repo));
    const char *dir = fm_staging_dir(staging);
    fm_buf_init(&say, 0);
    fm_status rc = fmr_githost_repo(dir, fm_repo_path(f->repo), is_new(f->repo, ask));
    FM_THEN(rc, say_wants(&say, h, ask));
    if (rc == FM_OK && say.len)
        rc = run_fetch(h, dir, &say);
    FM_THEN(rc, check_form(h, dir));
    FM_THEN(rc, give_packs(h, dir, fn, ctx));
    fm_buf_release(&say);
    fm_staging_end(staging);
    return rc;
}
