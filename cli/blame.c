/* blame.c - what the parts of a blame share: the case run on a tree, the guilty step opened. */
#include "cli/blame.h"

#include <string.h>

#include "store/base/mem.h"

fm_status blame_run_case(blame *b, const fm_tree *tree, const char *what, fm_case_result *out,
                         fm_suite_run *run)
{
    fm_model *m = NULL;
    fm_result_cache cache = suite_cache(b->c);
    fm_status rc = cli_load_model(b->c, tree, what, &m);
    if (rc == FM_OK)
        rc = fm_suite_run_on(run, b->suite, m, fm_suite_case_name(b->suite, b->case_index), &cache);
    fm_model_close(m);
    if (rc == FM_OK)
        *out = run->result[0];
    return rc;
}

fm_status blame_open_culprit(blame *b)
{
    const fm_version *v = &b->version[b->history.culprit];
    fm_case_result r;
    fm_suite_run run = {0};
    if (b->child)
        return FM_OK;
    fm_status rc = fm_version_tree(b->c->repo, &b->child, &v->oid);
    if (rc == FM_OK && v->parent_count)
        rc = fm_version_tree(b->c->repo, &b->parent, &v->parent[0]);
    if (rc == FM_OK)
        rc = blame_run_case(b, b->child, "culprit", &r, &run);
    if (rc == FM_OK) {
        b->answer = r.answer ? fm_strdup(r.answer) : NULL;
        b->detail = r.detail ? fm_strdup(r.detail) : NULL;
        fm_suite_run_release(&run);
    }
    return rc;
}

void blame_release(blame *b)
{
    for (size_t i = 0; i < b->count; i++) {
        fm_version_release(&b->version[i]);
        if (b->node)
            fm_free((void *)(uintptr_t)b->node[i].parent);
        if (b->output)
            fm_free(b->output[i]);
    }
    for (size_t u = 0; u < b->unit_count; u++)
        fm_free(b->unit[u].change);
    for (size_t i = 0; i < b->example_count; i++) {
        fm_free(b->example[i].preview);
        fm_free(b->example[i].file);
    }
    blame_data_release(&b->data);
    fm_free(b->version);
    fm_free(b->names);
    fm_free(b->node);
    fm_free(b->output);
    fm_free(b->history.at);
    fm_tree_free(b->parent);
    fm_tree_free(b->child);
    fm_free(b->change);
    fm_free(b->unit);
    fm_free(b->minimal.take);
    fm_free(b->repair.take);
    fm_free(b->keep);
    fm_free(b->answer);
    fm_free(b->detail);
    fm_free(b->example);
    fm_free(b->data_name);
}
