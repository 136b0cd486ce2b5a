/* fsck_version.c - opens a version with the functions that the other commands use.
 *
 * An import keeps a model whether or not this fmstore can compute with it, so there a config that
 * no engine takes is no damage. A version made by fmstore was opened when it was made, so it must
 * open. */
#include "cli/ops/version/fsck_version.h"

#include <string.h>

#include "cli/ops/version/suite_files.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/math/hash.h"
#include "store/base/mem.h"

static fm_status read_json(fm_ops *c, const fm_tree *tree, const char *path, fm_json_type type,
                           fm_json **out)
{
    fm_buf text;
    const fm_entry *e = fm_tree_find(tree, path);
    *out = NULL;
    if (!e)
        return fm_fail(FM_ENOTFOUND, "tree path '%s': is missing", path);
    fm_buf_init(&text, 0);
    fm_status rc = fm_ops_entry_bytes(c, e, &text);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), path));
    if (rc == FM_OK && !fm_json_is(*out, type))
        rc = fm_fail(FM_ECORRUPT, "tree path '%s': is no JSON %s", path,
                     type == FM_JSON_OBJECT ? "object" : "array");
    fm_buf_release(&text);
    return rc;
}

/* Checks that the commit names the digest of the recipe in its tree. */
static fm_status check_digest(const fm_version *v, const fm_json *recipe)
{
    fm_buf text;
    fm_digest digest;
    char hex[FM_HEX_CHARS + 1];
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, recipe, FM_JSON_CANONICAL);
    FM_THEN(rc, fm_sha256(&digest, text.data, text.len));
    fm_buf_release(&text);
    if (rc != FM_OK)
        return rc;
    fm_digest_hex(&digest, hex);
    return strcmp(hex, v->recipe) == 0
               ? FM_OK
               : fm_fail(FM_ECORRUPT,
                         "recipe.json: has the digest %.16s..., the commit says %.16s...", hex,
                         v->recipe);
}

static fm_status check_recipe(fmo_fsck_versions *s, const fm_version *v, const fm_tree *tree,
                              bool *merged)
{
    fm_json *recipe = NULL;
    *merged = false;
    if (!v->recipe && !fm_tree_find(tree, "recipe.json"))
        return FM_OK;
    fm_status rc = read_json(s->c, tree, "recipe.json", FM_JSON_OBJECT, &recipe);
    if (rc == FM_OK && v->recipe)
        rc = check_digest(v, recipe);
    *merged = strcmp(fm_json_cstr(fm_json_get(recipe, "operation"), ""), "merge") == 0;
    fm_json_free(recipe);
    return rc;
}

/* merged: the version is a merge, whose parents may have been models that no engine takes. */
static fm_status check_model(fmo_fsck_versions *s, const fm_tree *tree, bool merged)
{
    const fm_provider p = fm_store_provider(fm_repo_store(s->c->repo));
    const bool made_here = !fm_tree_find(tree, "source/source.json") && !merged;
    if (!fm_tree_find(tree, "model.json"))
        return FM_OK;
    fm_status rc = fm_model_check(tree, &p, "the model");
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECORRUPT)
        return rc;
    if (rc != FM_EUNSUPPORTED && made_here)
        return rc;
    fm_error_clear();
    return FM_OK;
}

static fm_status suites_digest(const fm_tree *tree, fm_digest *out)
{
    fm_hasher *h = NULL;
    size_t begin, end;
    fm_tree_range(tree, "suites/", &begin, &end);
    fm_status rc = fm_hasher_new(&h);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        rc = fm_hasher_update(h, e->path, strlen(e->path) + 1);
        FM_THEN(rc, fm_hasher_update(h, e->id.b, sizeof(e->id.b)));
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

/* Reads each set of suites once: children inherit them. */
static fm_status check_suites(fmo_fsck_versions *s, const fm_tree *tree)
{
    fm_digest id;
    fm_suite_set set = {0};
    fm_status rc = suites_digest(tree, &id);
    if (rc != FM_OK || fm_map_has(s->suites, id.b, sizeof(id.b)))
        return rc;
    rc = fmo_suites_of(s->c, tree, &set);
    fm_suite_set_free(&set);
    return rc == FM_OK ? fm_map_put(s->suites, id.b, sizeof(id.b), s, NULL) : rc;
}

static fm_status check_state(fmo_fsck_versions *s, const fm_tree *tree)
{
    fm_json *about = NULL, *log = NULL;
    fm_status rc = read_json(s->c, tree, "checkpoint.json", FM_JSON_OBJECT, &about);
    FM_THEN(rc, read_json(s->c, tree, "train_log.json", FM_JSON_ARRAY, &log));
    fm_json_free(about);
    fm_json_free(log);
    return rc;
}

fm_status fmo_fsck_version(fmo_fsck_versions *s, const fm_version *v, const fm_tree *tree)
{
    bool merged = false;
    if (strcmp(v->kind, "checkpoint") == 0)
        return check_state(s, tree);
    FM_TRY(check_recipe(s, v, tree, &merged));
    FM_TRY(check_model(s, tree, merged));
    return check_suites(s, tree);
}
