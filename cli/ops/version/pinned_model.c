/* pinned_model.c - opens a version that a suite names by its id: judges, embedders, classifiers. */
#include <string.h>

#include "cli/ops/version/version_tree.h"

static bool is_full_id(const char *id)
{
    return strlen(id) == 40 && strspn(id, "0123456789abcdef") == 40;
}

/* Refuses a name: it may move to another version, and a suite's verdicts must not change with
 * it. */
static fm_status refuse_name(fm_ops *c, const char *name)
{
    char hex[41];
    fm_oid oid;
    fm_status rc = fm_rev_resolve(c->repo, &oid, name);
    if (rc == FM_ENOMEM)
        return rc;
    if (rc < 0)
        return fm_fail(FM_EINVAL, "model '%.80s' is not the full id of a version (40 hex digits)",
                       name);
    fm_oid_hex(&oid, hex);
    return fm_fail(FM_EINVAL, "model '%.80s' is a name, and may move: write its id, model: %s",
                   name, hex);
}

typedef struct search {
    const char *id; /* of a version or of its tree */
    fm_oid found;
    bool is_found;
} search;

static fm_status match(void *ctx, const fm_version *v)
{
    search *s = ctx;
    char hex[41];
    fm_oid_hex(&v->tree, hex);
    if (strcmp(hex, s->id) != 0)
        return FM_OK;
    s->found = v->oid;
    s->is_found = true;
    return FM_ECANCELLED;
}

static fm_status find(fm_ops *c, const char *id, fm_oid *out)
{
    search s = {.id = id};
    char hex[41];
    fm_status rc = fm_rev_resolve(c->repo, out, id);
    if (rc == FM_ENOMEM)
        return rc;
    if (rc == FM_OK) {
        fm_oid_hex(out, hex);
        if (strcmp(hex, id) == 0) /* else: a branch or tag whose name looks like an id */
            return FM_OK;
    }
    fm_error_clear();
    rc = fm_log_walk(c->repo, NULL, 0, match, &s);
    *out = s.found;
    if (rc == FM_OK && !s.is_found)
        rc =
            fm_fail(FM_ENOTFOUND, "model %s: the repository has no version or tree of this id", id);
    return rc;
}

fm_status fmo_pinned_model(void *ctx, const char *id, fm_model **out)
{
    fm_ops *c = ctx;
    fm_tree *tree = NULL;
    fm_oid oid;
    *out = NULL;
    if (!is_full_id(id))
        return refuse_name(c, id);
    fm_status rc = find(c, id, &oid);
    FM_THEN(rc, fm_version_tree(c->repo, &tree, &oid));
    FM_THEN(rc, fm_ops_load_model(c, tree, id, out));
    fm_tree_free(tree);
    return rc;
}
