/* history.c - searches the history: versions are the nodes of testing's search. */
#include "cli/ops/blame/blame.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

#define MIXTURE_ID                                                                                 \
    7u /* question ids of mixtures of steps begin with it; those of versions are small */

typedef struct collect {
    fmo_blame *b;
    fm_map *index; /* oid -> node number + 1 */
} collect;

static fm_status collect_version(void *ctx, const fm_version *v)
{
    collect *k = ctx;
    fmo_blame *b = k->b;
    FM_TRY(fm_grow(&b->version, &b->cap, b->count + 1, sizeof *b->version));
    b->version[b->count] = (fmo_blamed_version){0};
    FM_TRY(fm_version_read(b->c->repo, &b->version[b->count].commit, &v->oid));
    b->count++;
    return fm_map_put(k->index, v->oid.b, sizeof v->oid.b, (void *)(uintptr_t)b->count, NULL);
}

static fm_status name_node(void *ctx, const char *ref, const fm_oid *oid)
{
    collect *k = ctx;
    uintptr_t at = (uintptr_t)fm_map_get(k->index, oid->b, sizeof oid->b);
    if (at) {
        char *names = k->b->version[at - 1].names;
        size_t len = strlen(names);
        snprintf(names + len, sizeof k->b->version[at - 1].names - len, "%s%s", len ? ", " : "",
                 strchr(ref + 5, '/') + 1);
    }
    return FM_OK;
}

/* The prior weight of a step that changed no part of the model (it added a suite): it can hardly
 * have broken a case. */
#define WEIGHT_OF_NOTHING 0.02

static fm_status count_bytes(void *ctx, const fm_change *ch)
{
    double *bytes = ctx;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    if (e->kind == FM_ENTRY_TENSOR || strncmp(e->path, "tokenizer/", 10) == 0 ||
        strncmp(e->path, "adapters/", 9) == 0 || strcmp(e->path, "model.json") == 0)
        *bytes += (double)e->bytes;
    return FM_OK;
}

static fm_status weigh_nodes(fmo_blame *b)
{
    for (size_t i = 0; i < b->count; i++) {
        const fm_tree *own = NULL, *before = NULL;
        b->version[i].node.weight = 1;
        if (!b->version[i].node.parent_count)
            continue;
        FM_TRY(fmo_blame_node_tree(b, i, &own));
        FM_TRY(fmo_blame_node_tree(b, b->version[i].node.parent[0], &before));
        FM_TRY(fm_diff_trees(before, own, count_bytes, &b->version[i].changed_bytes));
        if (b->version[i].changed_bytes == 0 && b->version[i].node.parent_count == 1)
            b->version[i].node.weight = WEIGHT_OF_NOTHING;
    }
    return FM_OK;
}

static fm_status link_nodes(fmo_blame *b, const fm_map *index)
{
    for (size_t i = 0; i < b->count; i++) {
        const fm_version *v = &b->version[i].commit;
        size_t *parent = fm_calloc(v->parent_count, sizeof *parent);
        if (!parent)
            return FM_ENOMEM;
        b->version[i].node.parent = parent;
        for (uint32_t p = 0; p < v->parent_count; p++) {
            uintptr_t at = (uintptr_t)fm_map_get(index, v->parent[p].b, sizeof v->parent[p].b);
            if (at)
                parent[b->version[i].node.parent_count++] = at - 1;
        }
    }
    return FM_OK;
}

/* Runs a round of versions, and loads each model once, however often it runs. */
static fm_status ask_versions(void *ctx, const fm_blame_ask *ask, size_t n, fm_blame_reply *out)
{
    fmo_blame *b = ctx;
    fmo_blame_question *q = fm_calloc(n, sizeof *q);
    fmo_blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_status rc = q && heard ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        q[i] = (fmo_blame_question){
            .what = b->version[ask[i].node].names[0] ? b->version[ask[i].node].names : "history",
            .id = ask[i].node,
            .repeat = ask[i].repeat};
        rc = fmo_blame_node_tree(b, ask[i].node, &q[i].tree);
    }
    FM_THEN(rc, fmo_blame_ask(b, q, n, heard));
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        size_t node = ask[i].node;
        out[i] = (fm_blame_reply){heard[i].verdict, heard[i].answer, heard[i].score};
        if (!b->version[node].output || heard[i].verdict == FM_FAIL) {
            fm_free(b->version[node].output);
            fm_free(b->version[node].text);
            b->version[node].output = heard[i].output;
            b->version[node].text = heard[i].text;
            b->version[node].heard = heard[i].answer;
            b->version[node].passed = heard[i].verdict == FM_PASS;
            heard[i].output = heard[i].text = NULL;
        }
    }
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, n);
    fm_free(q);
    fm_free(heard);
    return rc;
}

/* Runs a round of mixtures of steps. */
fm_status fmo_blame_ask_step_mixtures(void *ctx, const fm_blame_mix *mix, size_t n,
                                      fm_blame_reply *out)
{
    fmo_blame *b = ctx;
    fmo_blame_question *q = fm_calloc(n, sizeof *q);
    fmo_blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_tree **tree = fm_calloc(n, sizeof *tree);
    fmo_blame_overlay *overlay = fm_calloc(n, sizeof *overlay);
    size_t *of = fm_calloc(n, sizeof *of), asks = 0;
    fm_status rc = q && heard && tree && overlay && of ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        fmo_blame_overlay_open(&overlay[i], b);
        out[i] = (fm_blame_reply){FM_ERROR_CASE, 0, (double)NAN};
        rc = fmo_blame_mix_steps(b, mix[i].step, mix[i].count, &overlay[i], &tree[i]);
        if (rc < 0 || !tree[i])
            continue;
        of[asks] = i;
        q[asks++] = (fmo_blame_question){.tree = tree[i],
                                         .provider = &overlay[i].provider,
                                         .what = "the base with some of its steps",
                                         .id = MIXTURE_ID,
                                         .repeat = mix[i].repeat};
        for (size_t k = 0; k < mix[i].count; k++)
            q[asks - 1].id = q[asks - 1].id * 1000003 + mix[i].step[k];
    }
    FM_THEN(rc, fmo_blame_ask(b, q, asks, heard));
    for (size_t k = 0; rc == FM_OK && k < asks; k++)
        out[of[k]] = (fm_blame_reply){heard[k].verdict, heard[k].answer, heard[k].score};
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, asks);
    for (size_t i = 0; tree && overlay && i < n; i++) {
        fm_tree_free(tree[i]);
        fmo_blame_overlay_release(&overlay[i]);
    }
    fm_free(q);
    fm_free(heard);
    fm_free(tree);
    fm_free(overlay);
    fm_free(of);
    return rc;
}

/* Copies the nodes into one array for the search; their lists of parents stay those of
 * b->version. */
static fm_status search(fmo_blame *b, const fm_blame_oracle *oracle, const fm_blame_opts *opts)
{
    fm_blame_node *node = fm_calloc(b->count, sizeof *node);
    if (!node)
        return FM_ENOMEM;
    for (size_t i = 0; i < b->count; i++)
        node[i] = b->version[i].node;
    fm_status rc = fm_blame_search(&b->history, node, b->count, oracle, opts);
    fm_free(node);
    return rc;
}

fm_status fmo_blame_history(fmo_blame *b, const fm_oid *start)
{
    collect k = {b, NULL};
    const fm_blame_oracle oracle = {.ctx = b,
                                    .ask = ask_versions,
                                    .forms = fmo_blame_ask_forms,
                                    .mix = fmo_blame_ask_step_mixtures};
    const fm_blame_opts opts = {.flip_rate = fmo_blame_flip_rate(b),
                                .confidence = b->how.confidence,
                                .max_runs = b->how.history_runs,
                                .all_versions = b->how.all_versions};
    fm_status rc = fm_map_new(&k.index);
    FM_THEN(rc, fm_log_walk(b->c->repo, start, 1, collect_version, &k));
    FM_THEN(rc, fm_ref_each(b->c->repo, "refs/heads/", name_node, &k));
    FM_THEN(rc, fm_ref_each(b->c->repo, "refs/tags/", name_node, &k));
    FM_THEN(rc, link_nodes(b, k.index));
    FM_THEN(rc, weigh_nodes(b));
    FM_THEN(rc, search(b, &oracle, &opts));
    fm_map_free(k.index);
    return rc;
}
