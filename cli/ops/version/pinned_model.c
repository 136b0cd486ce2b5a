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

fm_status fmo_pinned_model(void *ctx, const char *id, fm_model **out)
{
    fm_ops *c = ctx;
    fm_tree *tree = NULL;
    *out = NULL;
    if (!is_full_id(id))
        return refuse_name(c, id);
    fm_status rc = fm_tree_of_id(c->repo, &tree, id);
    if (rc == FM_ENOTFOUND)
        rc = fm_fail(rc, "model %s: the repository has no version or tree of this id", id);
    FM_THEN(rc, fm_ops_load_model(c, tree, id, out));
    fm_tree_free(tree);
    return rc;
}
