/* views.c - versions as folders of files, open for whoever asks.
 *
 * Each open version has a repository handle of its own, whose reader's lease keeps what the version
 * needs from gc. The lease ends when nobody reads the version, and begins anew with the next
 * reader: a server that idles keeps nothing alive. */
#include <stdio.h>
#include <string.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"

#define MERGED "-merged"

bool fmr_ends_with(const char *s, const char *suffix)
{
    const size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcasecmp(s + n - m, suffix) == 0;
}

/* ==== opening ==== */

static void close_open(fmr_open *o)
{
    if (!o)
        return;
    fm_view_close(o->view);
    fm_tree_free(o->tree);
    fm_repo_close(o->repo);
    fm_free(o->title);
    fm_free(o->sum);
    fm_free(o);
}

/* Takes the lease, and names the version in it. A read-only disk has no lease, and no gc. */
static fm_status hold(fmr_open *o)
{
    fm_oid oid;
    if (fm_store_lease(fm_repo_store(o->repo), false, "serve --hub") != FM_OK)
        fm_error_clear();
    return fm_rev_resolve(o->repo, &oid, o->commit);
}

static fm_status read_version(fmr_open *o, const fm_oid *oid)
{
    fm_version v;
    FM_TRY(fm_version_read(o->repo, &v, oid));
    fm_oid_hex(&v.tree, o->tree_id);
    o->title = fm_strdup(v.subject);
    o->time = v.time;
    fm_version_release(&v);
    return o->title ? fm_version_tree(o->repo, &o->tree, oid) : FM_ENOMEM;
}

/* The version's own form is PEFT's where its last step is one adapter over an ancestor. */
static fm_status choose(fmr_open *o, const fm_oid *oid, fm_view_opts *opts)
{
    fm_oid base;
    char hex[41];
    bool whole;
    *opts = (fm_view_opts){.format = FM_EXPORT_HF, .dtype = FM_DTYPE_NONE};
    if (o->form == FMR_FORM_OWN)
        FM_TRY(fmr_model_base(o->repo, oid, o->tree, &base, &o->peft, &whole));
    if (o->peft) {
        fm_oid_hex(&base, hex);
        (void)snprintf(o->base, sizeof o->base, "%s/%s%s", o->owner, hex, whole ? MERGED : "");
        opts->format = FM_EXPORT_PEFT;
        opts->base_name = o->base;
    } else if (!fm_tree_find(o->tree, "model.json")) {
        opts->format = FM_EXPORT_SAFETENSORS; /* tensors alone */
    }
    return FM_OK;
}

bool fmr_view_has(const fm_view *v, const char *suffix)
{
    for (size_t i = 0; i < fm_view_count(v); i++)
        if (fmr_ends_with(fm_view_at(v, i)->name, suffix))
            return true;
    return false;
}

/* What came in is a folder as clients like it best: its digests are known, and it has all its
 * files. False: it is none, was changed, or holds pickles. */
static bool open_source(fmr_open *o)
{
    const fm_view_opts opts = {.format = FM_EXPORT_SOURCE, .dtype = FM_DTYPE_NONE};
    if (!fm_tree_find(o->tree, "source/source.json") ||
        fm_view_open(&o->view, o->tree, &o->provider, &opts) != FM_OK) {
        fm_error_clear();
        return false;
    }
    if (fm_view_find(o->view, "config.json") != SIZE_MAX && fmr_view_has(o->view, ".safetensors") &&
        !fmr_view_has(o->view, ".bin") && !fmr_view_has(o->view, ".pt") &&
        !fmr_view_has(o->view, ".pth"))
        return true;
    fm_view_close(o->view);
    o->view = NULL;
    return false;
}

/* The GGUF that came in, else one that is written on the way. */
static fm_status open_gguf(fmr_open *o)
{
    const fm_view_opts came = {.format = FM_EXPORT_SOURCE, .dtype = FM_DTYPE_NONE};
    const fm_view_opts made = {.format = FM_EXPORT_GGUF, .dtype = FM_DTYPE_NONE};
    if (fm_tree_find(o->tree, "source/source.json") &&
        fm_view_open(&o->view, o->tree, &o->provider, &came) == FM_OK) {
        if (fmr_view_has(o->view, ".gguf"))
            return FM_OK;
        fm_view_close(o->view);
        o->view = NULL;
    }
    fm_error_clear();
    return fm_view_open(&o->view, o->tree, &o->provider, &made);
}

static fm_status open_files(fmr_open *o, const fm_oid *oid)
{
    fm_view_opts opts;
    if (o->form == FMR_FORM_GGUF)
        return open_gguf(o);
    FM_TRY(choose(o, oid, &opts));
    if (o->form == FMR_FORM_OWN && opts.format == FM_EXPORT_HF && open_source(o))
        return FM_OK;
    return fm_view_open(&o->view, o->tree, &o->provider, &opts);
}

static fm_status open_view(fmr_open *o, const char *dir, const fm_oid *oid)
{
    FM_TRY(fm_repo_open(&o->repo, dir));
    FM_TRY(hold(o));
    FM_TRY(read_version(o, oid));
    o->provider = fm_store_provider(fm_repo_store(o->repo));
    FM_TRY(open_files(o, oid));
    o->sum = fm_calloc(fm_view_count(o->view) + 1, sizeof *o->sum);
    return o->sum ? FM_OK : FM_ENOMEM;
}

static fm_status open_new(const fmr_views *v, fmr_open **out, const fm_oid *oid, fmr_form form,
                          const char *owner)
{
    fm_error_state text;
    fmr_open *o = fm_calloc(1, sizeof *o);
    if (!o)
        return FM_ENOMEM;
    fm_oid_hex(oid, o->commit);
    (void)snprintf(o->owner, sizeof o->owner, "%s", owner);
    o->form = form;
    const fm_status rc = open_view(o, v->dir, oid);
    if (rc != FM_OK) {
        fm_error_save(&text);
        close_open(o);
        fm_error_restore(&text);
        return rc;
    }
    *out = o;
    return FM_OK;
}

/* ==== those that are open ==== */

fm_status fmr_views_init(fmr_views *v, const char *dir)
{
    *v = (fmr_views){.dir = dir};
    if (pthread_mutex_init(&v->lock, NULL) != 0)
        return fm_fail(FM_ENOMEM, "a Hub's server: cannot make a lock");
    if (pthread_cond_init(&v->change, NULL) == 0)
        return FM_OK;
    (void)pthread_mutex_destroy(&v->lock);
    return fm_fail(FM_ENOMEM, "a Hub's server: cannot make a lock");
}

void fmr_views_release(fmr_views *v)
{
    for (size_t i = 0; i < v->count; i++)
        close_open(v->open[i]);
    fm_free(v->open);
    (void)pthread_cond_destroy(&v->change);
    (void)pthread_mutex_destroy(&v->lock);
}

/* Lock held. A PEFT folder names its base with the owner that was asked for. */
static fmr_open *find(const fmr_views *v, const char *commit, fmr_form form, const char *owner)
{
    for (size_t i = 0; i < v->count; i++) {
        fmr_open *o = v->open[i];
        if (o->form == form && strcmp(o->commit, commit) == 0 &&
            (!o->peft || strcmp(o->owner, owner) == 0))
            return o;
    }
    return NULL;
}

/* Lock held. */
static void take_out(fmr_views *v, const fmr_open *o)
{
    size_t i = 0;
    while (v->open[i] != o)
        i++;
    v->open[i] = v->open[--v->count];
}

/* Lock held. NULL: fewer idle ones are open than may stay; else the one used longest ago. */
static fmr_open *surplus(fmr_views *v)
{
    fmr_open *oldest = NULL;
    size_t idle = 0;
    for (size_t i = 0; i < v->count; i++) {
        fmr_open *o = v->open[i];
        if (o->users > 0)
            continue;
        idle++;
        if (!oldest || o->used < oldest->used)
            oldest = o;
    }
    if (idle <= FMR_SERVE_VIEWS)
        return NULL;
    take_out(v, oldest);
    return oldest;
}

/* Lock held. *gone: what is to be closed: one that gc has taken away meanwhile. */
static bool take_open(fmr_views *v, fmr_open **out, const char *commit, fmr_form form,
                      const char *owner, fmr_open **gone)
{
    fmr_open *o = find(v, commit, form, owner);
    *gone = NULL;
    if (o && o->users == 0 && hold(o) != FM_OK) {
        fm_error_clear();
        take_out(v, o);
        *gone = o;
        o = NULL;
    }
    if (o)
        o->users++;
    *out = o;
    return o != NULL;
}

/* Lock held. */
static fm_status keep(fmr_views *v, fmr_open *o)
{
    FM_TRY(fm_grow(&v->open, &v->cap, v->count + 1, sizeof(*v->open)));
    v->open[v->count++] = o;
    o->users = 1;
    return FM_OK;
}

fm_status fmr_views_take(fmr_views *v, fmr_open **out, const fm_oid *oid, fmr_form form,
                         const char *owner)
{
    char commit[41];
    fmr_open *gone, *new_one = NULL;
    fm_oid_hex(oid, commit);
    (void)pthread_mutex_lock(&v->lock);
    bool there = take_open(v, out, commit, form, owner, &gone);
    (void)pthread_mutex_unlock(&v->lock);
    close_open(gone);
    if (there)
        return FM_OK;
    FM_TRY(open_new(v, &new_one, oid, form, owner));
    (void)pthread_mutex_lock(&v->lock);
    there = take_open(v, out, commit, form, owner, &gone); /* another request was faster */
    const fm_status rc = there ? FM_OK : keep(v, new_one);
    (void)pthread_mutex_unlock(&v->lock);
    close_open(gone);
    if (there || rc != FM_OK)
        close_open(new_one);
    else
        *out = new_one;
    return rc;
}

void fmr_views_give(fmr_views *v, fmr_open *o)
{
    fm_error_state text;
    fmr_open *gone = NULL;
    if (!o)
        return;
    fm_error_save(&text);
    (void)pthread_mutex_lock(&v->lock);
    o->used = ++v->ticks;
    if (--o->users == 0) {
        fm_store_lease_end(fm_repo_store(o->repo));
        gone = surplus(v);
    }
    (void)pthread_mutex_unlock(&v->lock);
    close_open(gone);
    fm_error_restore(&text);
}
