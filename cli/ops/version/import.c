/* import.c - makes a version of a foreign file or folder, of this machine or of a Hub: tree, store,
 * landing. */
#include "cli/ops/import.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/say.h"
#include "cli/ops/version/kinship.h"
#include "cli/ops/version/version_tree.h"
#include "infer/arch.h"
#include "remote/hub.h"
#include "store/base/os/io.h"
#include "store/source.h"

typedef struct importing {
    const fm_import_opts *o;
    fm_import_result *out;
    fmr_hub_model *hub; /* NULL: a path of this machine */
    fm_json *recipe;    /* where it came from; NULL likewise */
    char recipe_hex[FM_HEX_CHARS + 1];
    fm_source *source;
    fm_tree *parent, *tree;
    fm_oid parent_oid;
} importing;

static bool show_bytes(void *ctx, uint64_t done, uint64_t total)
{
    return fmo_ui_progress_bytes(ctx, done, total, "storing");
}

/* Names the parts of the source that are not imported. */
static void tell_left_out(const fm_ops *c, const fm_source *src, const char *name)
{
    enum { SHOWN = 20 };
    size_t count;
    const fm_left_out *left = fm_source_left_out(src, &count);
    uint64_t more = 0;
    for (size_t i = 0; i < count; i++) {
        if (i < SHOWN)
            fmo_ui_say(c, FM_UI_NOTE, "  note: not imported: '%s' (%" PRIu64 " bytes), %s",
                       fmo_ui_shown(left[i].name, 200), left[i].bytes, left[i].why);
        else
            more += left[i].bytes;
    }
    if (count > SHOWN)
        fmo_ui_say(c, FM_UI_NOTE,
                   "  note: not imported: %zu more (%" PRIu64
                   " bytes), which fmstore cat %s:source/source.json names",
                   count - SHOWN, more, name);
}

/* One line where the version can be stored and not be run. */
static void tell_kept(const fm_ops *c, const fm_source *src)
{
    const fm_tree *tree = fm_source_tree(src);
    const fm_provider p = fm_source_provider(src);
    const char *why = fm_source_kept(src);
    fm_arch arch;
    if (!why && fm_tree_find(tree, "model.json") &&
        fm_arch_of_tree(&arch, tree, &p, "model.json") == FM_EUNSUPPORTED)
        why = fm_error_text();
    if (why)
        fmo_ui_say(c, FM_UI_NOTE, "  note: kept, not run: %s", fmo_ui_shown(why, 500));
    fm_error_clear();
}

/* Makes the tree to store: the source's own, or the parent's with the source's adapter. Suites are
 * inherited. */
static fm_status compose(fm_ops *c, importing *im)
{
    fm_status rc;
    const fm_tree *own = fm_source_tree(im->source);
    if (fm_source_is_adapter(im->source)) {
        if (!im->parent)
            return fm_fail(FM_EINVAL,
                           "%s: is an adapter; name the version that it was trained on "
                           "with --parent REV",
                           im->o->path);
        fm_buf warning;
        fm_buf_init(&warning, 0);
        fm_tree *base = NULL; /* the parent's data are not this version's */
        const fm_provider p = fm_store_provider(fm_repo_store(c->repo));
        rc = fm_tree_copy(&base, im->parent);
        FM_THEN(rc, fmo_tree_drop_history(base));
        FM_THEN(rc, fm_adapter_apply_to(&im->tree, base, &p, own, im->o->parent, &warning));
        fm_tree_free(base);
        if (rc == FM_OK && warning.len)
            fmo_ui_say(c, FM_UI_NOTE, "  note: %s", fm_buf_cstr(&warning));
        fm_buf_release(&warning);
        return rc;
    }
    rc = fm_tree_copy(&im->tree, own);
    if (rc == FM_OK && im->parent) {
        const fm_provider p = fm_source_provider(im->source);
        rc = fmo_kinship(c, own, &p, im->parent, im->o, &im->out->kin);
    }
    if (rc == FM_OK && im->parent)
        rc = fmo_tree_inherit(im->tree, im->parent, "suites/");
    return rc;
}

static fm_status store_tree(fm_ops *c, importing *im)
{
    fm_txn *txn = NULL;
    fm_provider p = fm_source_provider(im->source);
    fm_store *store = fm_repo_store(c->repo);
    fm_status rc = fm_txn_begin(&txn, store);
    if (rc == FM_OK && im->parent)
        rc = fm_txn_offer(txn, im->parent);
    FM_THEN(rc, fm_txn_expect(txn, fm_source_tree(im->source), &p));
    FM_THEN(rc, fmo_offer_branches(c, txn));
    FM_THEN(rc, fm_txn_put_tree(txn, fm_source_tree(im->source), &p, im->parent, show_bytes, c));
    if (rc == FM_OK && im->recipe)
        rc = fmo_tree_put_json(txn, im->tree, "recipe.json", im->recipe);
    for (size_t i = 0; rc == FM_OK && i < im->o->suites.count; i++)
        rc = fm_ops_add_suite(txn, im->tree, im->o->suites.item[i]);
    FM_THEN(rc, fm_txn_commit(txn, &im->out->stats));
    fmo_ui_progress_end(c);
    if (rc == FM_OK && im->out->stats.offers_passed_over)
        fmo_ui_say(c, FM_UI_NOTE,
                   "  note: coded against what the nearest branches hold; %llu farther ones were "
                   "compared by samples alone",
                   (unsigned long long)im->out->stats.offers_passed_over);
    fm_txn_close(txn);
    return rc;
}

/* The kind of an adapter, from its folder: "adapters/0-lora/". */
static const char *adapter_kind(const fm_tree *adapter, char *word, size_t bytes)
{
    static const char folder[] = "adapters/0-";
    size_t begin, end;
    fm_tree_range(adapter, folder, &begin, &end);
    if (begin == end)
        return "lora";
    const char *kind = fm_tree_at(adapter, begin)->path + sizeof folder - 1;
    snprintf(word, bytes, "%.*s", (int)strcspn(kind, "/"), kind);
    if (fm_kind_check(word) == FM_OK)
        return word;
    fm_error_clear(); /* lineage has no such kind: take the nearest */
    if (strcmp(word, "dora") == 0)
        return "lora";
    return strcmp(word, "prompt") == 0 ? "prefix" : "finetune";
}

static const char *kind_of(const importing *im, char *word, size_t bytes)
{
    if (im->o->kind)
        return im->o->kind;
    if (fm_source_is_adapter(im->source))
        return adapter_kind(fm_source_tree(im->source), word, bytes);
    return im->parent ? "finetune" : "import";
}

static fm_status land(fm_ops *c, importing *im)
{
    char subject[600], word[32];
    snprintf(subject, sizeof subject, "import %.400s",
             im->hub ? fmr_hub_name(im->hub) : fm_path_base(im->o->path));
    fm_landing l = {.branch = im->o->name, .tree = im->tree, .gate = !im->o->no_gate};
    l.commit.kind = kind_of(im, word, sizeof word);
    l.commit.message = im->o->message ? im->o->message : subject;
    l.commit.parent = &im->parent_oid;
    l.commit.parent_count = im->parent ? 1 : 0;
    l.commit.recipe_digest = im->recipe ? im->recipe_hex : NULL;
    im->out->file_bytes = fm_source_file_bytes(im->source);
    return fm_ops_land(c, &l, &im->out->oid);
}

/* Finds wrong options before hours of hashing. */
static fm_status check_words(fm_ops *c, const importing *im)
{
    FM_TRY(fmo_branch_must_be_new(c, im->o->name));
    if (im->o->kind)
        FM_TRY(fm_kind_check(im->o->kind));
    return fmo_suite_files_check(&im->o->suites);
}

/* ---- models of a Hub ---- */

static bool show_download(void *ctx, uint64_t done, uint64_t total)
{
    return fmo_ui_progress_bytes(ctx, done, total, "downloading");
}

static void tell(void *ctx, const char *text)
{
    fmo_ui_say(ctx, FM_UI_NOTE, "  note: %s", fmo_ui_shown(text, 500));
}

static fm_status make_recipe(importing *im)
{
    fm_buf text;
    fm_digest digest;
    fm_status rc = FM_OK;
    fm_buf_init(&text, 0);
    im->recipe = fm_json_new_object();
    fm_json_put(&rc, im->recipe, "format", fm_json_new_int(1));
    fm_json_put(&rc, im->recipe, "operation", fm_json_new_str("import"));
    fm_json_put(&rc, im->recipe, "engine", fm_json_new_str("fmstore " FM_VERSION));
    fm_json_put(&rc, im->recipe, "source", fmr_hub_origin(im->hub));
    FM_THEN(rc, fm_json_write(&text, im->recipe, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_sha256(&digest, text.data, text.len));
    if (rc == FM_OK)
        fm_digest_hex(&digest, im->recipe_hex);
    fm_buf_release(&text);
    return rc;
}

static fm_status download(fm_ops *c, importing *im)
{
    const fmr_hub_opts o = {.repo = c->repo, .progress = show_download, .note = tell, .ctx = c};
    fm_status rc = fmr_hub_get(&im->hub, &o, im->o->path);
    fmo_ui_progress_end(c);
    FM_THEN(rc, make_recipe(im));
    return rc;
}

/* The bytes that were hashed must be those that the Hub announced, wherever they lay. */
static fm_status check_download(const importing *im)
{
    const fm_tree *tree = fm_source_tree(im->source);
    const fm_entry *e = fm_tree_find(tree, "source/source.json");
    const fm_provider p = fm_source_provider(im->source);
    fm_json *spec = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = e ? fm_entry_read(&text, &p, e) : fm_fail(FM_ECORRUPT, "no source/source.json");
    FM_THEN(rc, fm_json_parse(&spec, fm_buf_span(&text), "source/source.json"));
    FM_THEN(rc, fmr_hub_check(im->hub, spec));
    fm_json_free(spec);
    fm_buf_release(&text);
    return rc;
}

/* What was downloaded goes once the version has it, or where it is damaged; else the next import of
 * the same goes on with it. */
static void close_download(importing *im, fm_status rc)
{
    fmr_hub_close(im->hub, rc == FM_OK || rc == FM_EREFUSED || rc == FM_ECORRUPT);
    fm_json_free(im->recipe);
}

static fm_status open_source(fm_ops *c, importing *im)
{
    if (fmr_hub_is_address(im->o->path))
        FM_TRY(download(c, im));
    const char *path = im->hub ? fmr_hub_path(im->hub) : im->o->path;
    (void)fmo_ui_progress(c, 0, 0, "hashing %s", im->hub ? fmr_hub_name(im->hub) : path);
    const fm_provider stored = fm_store_provider(fm_repo_store(c->repo));
    fm_status rc = fm_source_open_for(&im->source, path, im->parent, &stored);
    fmo_ui_progress_end(c);
    if (rc == FM_ECORRUPT)
        rc = fm_fail(rc, "%s; the file is damaged: get a fresh copy", fm_error_text());
    if (rc == FM_OK && im->hub)
        rc = check_download(im);
    if (rc == FM_OK) {
        tell_left_out(c, im->source, im->o->name);
        tell_kept(c, im->source);
    }
    return rc;
}

fm_status fm_ops_import(fm_ops *c, const fm_import_opts *opts, fm_import_result *out)
{
    importing im = {.o = opts, .out = out};
    memset(out, 0, sizeof *out);
    c->stopped = false;
    fm_status rc = fm_ops_lease(c, true, "import");
    FM_THEN(rc, check_words(c, &im));
    if (rc == FM_OK && opts->parent)
        rc = fm_ops_resolve(c, opts->parent, &im.parent_oid, &im.parent);
    FM_THEN(rc, open_source(c, &im));
    FM_THEN(rc, fmo_ui_go_on(c));
    FM_THEN(rc, compose(c, &im));
    FM_THEN(rc, fmo_suite_files_check_with(c, im.parent, &opts->suites));
    FM_THEN(rc, store_tree(c, &im));
    FM_THEN(rc, land(c, &im));
    fm_tree_free(im.tree);
    fm_tree_free(im.parent);
    fm_source_close(im.source);
    close_download(&im, rc);
    return rc;
}
