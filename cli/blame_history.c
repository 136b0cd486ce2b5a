/* blame_history.c - where in history: versions as nodes of the search in testing. */
#include "cli/blame.h"

#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

typedef struct collect {
    blame *b;
    fm_map *index; /* oid -> node number + 1 */
} collect;

static fm_status collect_version(void *ctx, const fm_version *v)
{
    collect *k = ctx;
    blame *b = k->b;
    size_t cap = b->cap;
    fm_status rc = fm_grow(&b->version, &b->cap, b->count + 1, sizeof *b->version);
    if (rc == FM_OK && b->cap != cap) {
        void *names = fm_realloc(b->names, b->cap * sizeof *b->names);
        if (!names)
            return FM_ENOMEM;
        b->names = names;
    }
    if (rc == FM_OK)
        rc = fm_version_read(b->c->repo, &b->version[b->count], &v->oid);
    if (rc == FM_OK) {
        b->names[b->count][0] = 0;
        rc = fm_map_put(k->index, v->oid.b, sizeof v->oid.b, (void *)(uintptr_t)(b->count + 1),
                        NULL);
        b->count++;
    }
    return rc;
}

static fm_status name_node(void *ctx, const char *ref, const fm_oid *oid)
{
    collect *k = ctx;
    uintptr_t at = (uintptr_t)fm_map_get(k->index, oid->b, sizeof oid->b);
    if (at) {
        char *names = k->b->names[at - 1];
        size_t len = strlen(names);
        snprintf(names + len, sizeof *k->b->names - len, "%s%s", len ? ", " : "",
                 strchr(ref + 5, '/') + 1);
    }
    return FM_OK;
}

static fm_status link_nodes(blame *b, const fm_map *index)
{
    b->node = fm_calloc(b->count, sizeof *b->node);
    b->output = fm_calloc(b->count, sizeof *b->output);
    if (!b->node || !b->output)
        return FM_ENOMEM;
    for (size_t i = 0; i < b->count; i++) {
        const fm_version *v = &b->version[i];
        size_t *parent = fm_calloc(v->parent_count, sizeof *parent);
        if (!parent)
            return FM_ENOMEM;
        b->node[i].parent = parent;
        for (uint32_t p = 0; p < v->parent_count; p++) {
            uintptr_t at = (uintptr_t)fm_map_get(index, v->parent[p].b, sizeof v->parent[p].b);
            if (at)
                parent[b->node[i].parent_count++] = at - 1;
        }
    }
    return FM_OK;
}

static fm_status eval_node(void *ctx, size_t node, fm_verdict *verdict)
{
    blame *b = ctx;
    fm_tree *tree = NULL;
    fm_case_result r;
    fm_suite_run run = {0};
    out_progress("history: %s", cli_short_oid(&b->version[node].oid));
    fm_status rc = fm_version_tree(b->c->repo, &tree, &b->version[node].oid);
    if (rc == FM_OK)
        rc = blame_run_case(b, tree, cli_short_oid(&b->version[node].oid), &r, &run);
    if (rc == FM_OK) {
        *verdict = r.verdict;
        fm_free(b->output[node]);
        b->output[node] = r.output ? fm_strdup(r.output) : NULL;
        fm_suite_run_release(&run);
    } else if (rc == FM_EUNSUPPORTED) {
        *verdict = FM_ERROR_CASE;
        b->output[node] = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = FM_OK;
    }
    fm_tree_free(tree);
    return rc;
}

fm_status blame_history(blame *b, const fm_oid *start)
{
    collect k = {b, NULL};
    fm_status rc = fm_map_new(&k.index);
    if (rc == FM_OK)
        rc = fm_log_walk(b->c->repo, start, 1, collect_version, &k);
    if (rc == FM_OK)
        rc = fm_ref_each(b->c->repo, "refs/heads/", name_node, &k);
    if (rc == FM_OK)
        rc = fm_ref_each(b->c->repo, "refs/tags/", name_node, &k);
    if (rc == FM_OK)
        rc = link_nodes(b, k.index);
    if (rc == FM_OK)
        rc = fm_blame_find(&b->history, b->node, b->count, eval_node, b);
    out_progress_end();
    fm_map_free(k.index);
    return rc;
}
