/* import.c - fmstore import: a foreign model becomes a version, its suites run as gates. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/os/io.h"
#include "store/source.h"

typedef struct import {
    const char *src, *name, *parent_rev, *kind, *message;
    opt_list suites;
    bool no_gate;
    fm_source *source;
    fm_tree *parent, *tree;
    fm_oid parent_oid;
    fm_txn_stats stats;
} import;

static bool show_bytes(void *ctx, uint64_t done, uint64_t total)
{
    out_bar_at(ctx, done, total);
    return cli_interrupted != 0;
}

/* What stays behind is told: an import that drops it without a word looks whole. */
static void tell_left_out(const fm_source *src)
{
    enum { SHOWN = 20 };
    size_t count;
    const fm_left_out *left = fm_source_left_out(src, &count);
    for (size_t i = 0; i < FM_MIN(count, (size_t)SHOWN); i++)
        fprintf(stderr, "  note: not imported: '%s', %s\n", out_text(left[i].name, 200),
                left[i].why);
    if (count > SHOWN)
        fprintf(stderr, "  note: not imported: %zu more\n", count - SHOWN);
}

/* The tree to store: the source's own, or its adapter laid on the parent. Suites are inherited. */
static fm_status compose(import *im)
{
    fm_status rc;
    const fm_tree *own = fm_source_tree(im->source);
    if (fm_source_kind_of(im->source) == FM_SOURCE_PEFT) {
        if (!im->parent)
            return fm_fail(FM_EINVAL,
                           "%s: is an adapter; name the version that it was trained on "
                           "with --parent REV",
                           im->src);
        fm_buf warning;
        fm_buf_init(&warning, 0);
        fm_tree *base = NULL; /* what the parent was trained on is not what this one was */
        rc = fm_tree_copy(&base, im->parent);
        FM_THEN(rc, tree_drop_history(base));
        FM_THEN(rc, fm_adapter_apply(&im->tree, base, own, im->parent_rev, &warning));
        fm_tree_free(base);
        if (rc == FM_OK && warning.len)
            fprintf(stderr, "  note: %s\n", fm_buf_cstr(&warning));
        fm_buf_release(&warning);
        return rc;
    }
    rc = fm_tree_copy(&im->tree, own);
    if (rc == FM_OK && im->parent)
        rc = tree_inherit(im->tree, im->parent, "suites/");
    return rc;
}

static fm_status store_tree(cli *c, import *im)
{
    fm_txn *txn = NULL;
    out_bar bar;
    fm_provider p = fm_source_provider(im->source);
    fm_store *store = fm_repo_store(c->repo);
    fm_status rc = fm_txn_begin(&txn, store);
    out_bar_begin(&bar, "storing");
    if (rc == FM_OK && im->parent)
        rc = fm_txn_offer(txn, im->parent);
    FM_THEN(rc, offer_branches(c, txn));
    FM_THEN(rc, fm_txn_put_tree(txn, fm_source_tree(im->source), &p, im->parent, show_bytes, &bar));
    for (size_t i = 0; rc == FM_OK && i < im->suites.count; i++)
        rc = fm_ops_add_suite(txn, im->tree, im->suites.item[i]);
    FM_THEN(rc, fm_txn_commit(txn, &im->stats));
    out_progress_end();
    fm_txn_close(txn);
    return rc;
}

/* An adapter's folder says its kind: "adapters/0-lora/". */
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
    fm_error_clear(); /* what can be kept, though not run, goes under its nearest relation */
    if (strcmp(word, "dora") == 0)
        return "lora";
    return strcmp(word, "prompt") == 0 ? "prefix" : "finetune";
}

static const char *kind_of(const import *im, char *word, size_t bytes)
{
    if (im->kind)
        return im->kind;
    if (fm_source_kind_of(im->source) == FM_SOURCE_PEFT)
        return adapter_kind(fm_source_tree(im->source), word, bytes);
    return im->parent ? "finetune" : "import";
}

static fm_status land(cli *c, import *im)
{
    fm_oid oid;
    char subject[600], word[32];
    snprintf(subject, sizeof subject, "import %.400s", fm_path_base(im->src));
    fm_landing l = {.branch = im->name, .tree = im->tree, .gate = !im->no_gate};
    l.commit.kind = kind_of(im, word, sizeof word);
    l.commit.message = im->message ? im->message : subject;
    l.commit.parent = &im->parent_oid;
    l.commit.parent_count = im->parent ? 1 : 0;
    fm_status rc = fm_ops_land(c, &l, &oid);
    if (rc == FM_OK || rc == FM_EREFUSED)
        printf("  %s in, %s stored (%llu objects new, %llu known)\n",
               out_bytes(fm_source_file_bytes(im->source)), out_bytes(im->stats.bytes_stored),
               (unsigned long long)im->stats.objects_new,
               (unsigned long long)im->stats.objects_known);
    return rc;
}

/* Say so before hours of hashing, not after. */
static fm_status check_words(cli *c, const import *im)
{
    FM_TRY(branch_must_be_new(c, im->name));
    if (im->kind)
        FM_TRY(fm_kind_check(im->kind));
    return suite_files_check(&im->suites);
}

int cmd_import(cli *c, int argc, char **argv)
{
import im = {0 };
    size_t n;
    const opt_spec table[] = {
        {0, "as", OPT_STR, "NAME", "branch to make", &im.name},
        {0, "parent", OPT_STR, "REV", "the version that it was adapted from", &im.parent_rev},
        {0, "kind", OPT_STR, "KIND", "edge kind: import, finetune, lora, quantize, ...", &im.kind},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &im.suites},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &im.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &im.message},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &im.src, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (!im.name)
        return cli_usage_error(c, "--as NAME is missing: what should the branch be called?");
    cli_catch_interrupts(true);
    fm_status rc = fm_ops_lease(c, true, "import");
    FM_THEN(rc, check_words(c, &im));
    if (rc == FM_OK && im.parent_rev)
        rc = fm_ops_resolve(c, im.parent_rev, &im.parent_oid, &im.parent);
    if (rc == FM_OK)
        out_progress("hashing %s", im.src);
    FM_THEN(rc, fm_source_open(&im.source, im.src));
    out_progress_end();
    if (rc == FM_ECORRUPT)
        rc = fm_fail(rc, "%s; the file is damaged: get a fresh copy", fm_error_text());
    if (rc == FM_OK)
        tell_left_out(im.source);
    FM_THEN(rc, compose(&im));
    FM_THEN(rc, suite_files_check_with(c, im.parent, &im.suites));
    FM_THEN(rc, store_tree(c, &im));
    FM_THEN(rc, land(c, &im));
    fm_tree_free(im.tree);
    fm_tree_free(im.parent);
    fm_source_close(im.source);
    return cli_exit(rc);
}
