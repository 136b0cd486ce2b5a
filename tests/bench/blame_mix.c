/* blame_mix.c - models between the versions, run for real: the root with some steps' changes, a
 * step's parent with some of its tensors. The bench's own way to them, so that blame's is tested by
 * it. */
#include "tests/bench/blame_bench.h"

#include <stdlib.h>
#include <string.h>

/* ==== memory =============================================================================== */

static bool recall(const fm_map *memory, const void *key, size_t len, bb_outcome *out)
{
    const bb_outcome *o = fm_map_get(memory, key, len);
    if (o)
        *out = *o;
    return o != NULL;
}

static fm_status run_and_keep(bench *b, bb_family *f, fm_map *memory, const fm_tree *tree,
                              const void *key, size_t len, bb_outcome *out)
{
    bb_outcome *kept = fm_calloc(1, sizeof *kept);
    fm_status rc = kept ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && tree) {
        rc = bb_run(b, f, tree, kept);
        f->mixtures++;
    } else if (rc == FM_OK) {
        kept->verdict = FM_ERROR_CASE;
    }
    if (rc == FM_OK) {
        *out = *kept;
        rc = fm_map_put(memory, key, len, kept, NULL);
    }
    if (rc != FM_OK)
        fm_free(kept);
    return rc;
}

/* ==== steps ================================================================================ */

static bool has_adapters(const fm_tree *tree)
{
    size_t begin, end;
    fm_tree_range(tree, "adapters/", &begin, &end);
    return begin < end;
}

/* "adapters/3-lora/x" -> number, and the rest behind it; -1: another path. */
static long adapter_number(const char *path, const char **rest)
{
    static const char folder[] = "adapters/";
    char *end;
    if (strncmp(path, folder, sizeof folder - 1) != 0)
        return -1;
    const long n = strtol(path + sizeof folder - 1, &end, 10);
    *rest = end;
    return n;
}

/* The adapter that the step added goes on top of what the mixture has. */
static fm_status add_adapter(fm_tree *mix, const fm_tree *parent, const fm_tree *child)
{
    long next = 0;
    const char *rest = NULL;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < fm_tree_count(mix); i++)
        next = FM_MAX(next, adapter_number(fm_tree_at(mix, i)->path, &rest) + 1);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(child); i++) {
        char path[FM_MAX_PATH_BYTES];
        fm_entry moved = *fm_tree_at(child, i);
        if (adapter_number(moved.path, &rest) < 0 || fm_tree_find(parent, moved.path))
            continue;
        snprintf(path, sizeof path, "adapters/%ld%s", next, rest);
        moved.path = path;
        rc = fm_tree_put_entry(mix, &moved);
    }
    return rc;
}

static fm_status read_floats(bench *b, const fm_entry *e, float **out, uint64_t *n)
{
    fm_buf raw;
    fm_buf_init(&raw, 0);
    fm_status rc = fm_ops_entry_bytes(b->c, e, &raw);
    *out = NULL;
    if (rc == FM_OK)
        rc = fm_shape_elems(n, &e->shape);
    if (rc == FM_OK && !(*out = fm_malloc((size_t)(*n + 1) * sizeof **out)))
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_to_f32(*out, e->dtype, raw.data, *n);
    fm_buf_release(&raw);
    return rc;
}

/* w + (child - parent), into the store. */
static fm_status add_change(bench *b, fm_txn *txn, fm_tree *mix, const fm_entry *p,
                            const fm_entry *c)
{
    const fm_entry *own = fm_tree_find(mix, c->path);
    const fm_entry *of[3] = {own, p, c};
    float *w[3] = {NULL, NULL, NULL};
    uint64_t n = 0;
    fm_digest id;
    fm_status rc = own ? FM_OK : FM_ENOTFOUND;
    for (int k = 0; rc == FM_OK && k < 3; k++)
        rc = read_floats(b, of[k], &w[k], &n);
    for (uint64_t i = 0; rc == FM_OK && i < n; i++)
        w[0][i] += w[2][i] - w[1][i];
    if (rc == FM_OK)
        rc = fm_from_f32(w[1], own->dtype, w[0], n);
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(txn, &id, own->dtype, &own->shape,
                               fm_span_of(w[1], (size_t)own->bytes), NULL, NULL);
    if (rc == FM_OK)
        rc = fm_tree_put_tensor(mix, c->path, c->name, own->dtype, &c->shape, &id);
    for (int k = 0; k < 3; k++)
        fm_free(w[k]);
    return rc;
}

static fm_status add_changes(bench *b, fm_tree *mix, const fm_tree *parent, const fm_tree *child)
{
    fm_txn *txn = NULL;
    size_t begin, end;
    fm_tree_range(child, "tensors/", &begin, &end);
    fm_status rc = fm_txn_begin(&txn, fm_repo_store(b->c->repo));
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *c = fm_tree_at(child, i), *p = fm_tree_find(parent, c->path);
        if (p && !fm_digest_eq(&p->id, &c->id))
            rc = add_change(b, txn, mix, p, c);
    }
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    return rc;
}

/* Only what adds an adapter, or changes tensors where no adapter is, can be laid on another
 * version. */
static bool can_add(const bb_family *f, size_t node)
{
    if (f->node[node].parent_count != 1)
        return false;
    const fm_tree *parent = f->tree[f->node[node].parent[0]], *child = f->tree[node];
    return strcmp(f->version[node].kind, "lora") == 0 ||
           (!has_adapters(parent) && !has_adapters(child));
}

static fm_status make_steps(bench *b, const bb_family *f, const size_t *step, size_t n,
                            fm_tree **out)
{
    size_t root = f->culprit;
    while (f->node[root].parent_count)
        root = f->node[root].parent[0];
    fm_status rc = fm_tree_copy(out, f->tree[root]);
    for (size_t i = n; rc == FM_OK && i-- > 0;) { /* oldest first */
        const fm_tree *parent = f->tree[f->node[step[i]].parent[0]], *child = f->tree[step[i]];
        rc = strcmp(f->version[step[i]].kind, "lora") == 0 ? add_adapter(*out, parent, child)
                                                           : add_changes(b, *out, parent, child);
    }
    return rc;
}

fm_status bb_mix_steps(bench *b, bb_family *f, const size_t *step, size_t n, bb_outcome *out)
{
    fm_tree *tree = NULL;
    bool can = true;
    fm_status rc = FM_OK;
    if (recall(f->stepped, step, n * sizeof *step, out))
        return FM_OK;
    for (size_t i = 0; i < n; i++)
        can = can && can_add(f, step[i]);
    if (can)
        rc = make_steps(b, f, step, n, &tree);
    if (rc == FM_OK)
        rc = run_and_keep(b, f, f->stepped, tree, step, n * sizeof *step, out);
    fm_tree_free(tree);
    return rc;
}

/* ==== tensors ============================================================================== */

static fm_status keep_change(void *ctx, const fm_change *ch)
{
    bb_units *u = ctx;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    if (e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    fm_status rc = fm_grow(&u->change, &u->change_cap, u->changes + 1, sizeof *u->change);
    if (rc == FM_OK)
        u->change[u->changes++] = *ch;
    return rc;
}

/* The module that a tensor belongs to: an adapter's two factors are one unit. */
static void module_name(char out[BLAME_UNIT_NAME], const fm_entry *e)
{
    static const char peft[] = "base_model.model.";
    const bool wrapped = strncmp(e->name, peft, sizeof peft - 1) == 0;
    snprintf(out, BLAME_UNIT_NAME, "%s", e->name + (wrapped ? sizeof peft - 1 : 0));
    char *cut = strstr(out, wrapped ? ".lora_" : ".weight");
    if (cut)
        *cut = 0;
}

size_t bb_unit_find(const bb_units *u, const char *name)
{
    for (size_t i = 0; i < u->count; i++)
        if (strcmp(u->name[i], name) == 0)
            return i;
    return SIZE_MAX;
}

/* "model.layers.3.mlp.up_proj": layer 3, block 7; what is outside of layers is beyond them. */
static size_t place_of(const char *name, bool block)
{
    const char *at = strstr(name, "layers.");
    const size_t layer = at ? (size_t)strtoul(at + strlen("layers."), NULL, 10) : 64;
    return block ? 2 * layer + (strstr(name, "mlp") != NULL) : layer;
}

/* Groups as numbers below the count of units, in the order of their first unit. */
static void number_groups(const bb_units *u, bool block, size_t *group)
{
    size_t next = 0;
    for (size_t i = 0; i < u->count; i++) {
        size_t k = 0;
        while (k < i && place_of(u->name[k], block) != place_of(u->name[i], block))
            k++;
        group[i] = k < i ? group[k] : next++;
    }
}

fm_status bb_units_open(bb_units *u, bench *b, bb_family *f)
{
    *u = (bb_units){.f = f, .b = b, .child = f->tree[f->culprit]};
    u->parent = f->tree[f->node[f->culprit].parent[0]];
    fm_status rc = fm_diff_trees(u->parent, u->child, keep_change, u);
    u->name = fm_calloc(u->changes + 1, sizeof *u->name);
    u->unit_of = fm_calloc(u->changes + 1, sizeof *u->unit_of);
    u->layer = fm_calloc(u->changes + 1, sizeof *u->layer);
    u->block = fm_calloc(u->changes + 1, sizeof *u->block);
    if (rc == FM_OK && (!u->name || !u->unit_of || !u->layer || !u->block))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < u->changes; i++) {
        char name[BLAME_UNIT_NAME];
        module_name(name, u->change[i].b ? u->change[i].b : u->change[i].a);
        u->unit_of[i] = bb_unit_find(u, name);
        if (u->unit_of[i] != SIZE_MAX)
            continue;
        u->unit_of[i] = u->count;
        memcpy(u->name[u->count], name, sizeof name);
        u->count++;
    }
    if (rc == FM_OK) {
        number_groups(u, false, u->layer);
        number_groups(u, true, u->block);
    }
    return rc;
}

void bb_units_release(bb_units *u)
{
    fm_free(u->name);
    fm_free(u->change);
    fm_free(u->unit_of);
    fm_free(u->layer);
    fm_free(u->block);
}

/* The child with all that is not taken set back; an adapter of which nothing is left goes. */
static fm_status make_mixture(const bb_units *u, const bool *take, fm_tree **out)
{
    fm_status rc = fm_tree_copy(out, u->child);
    bool factors = false;
    for (size_t i = 0; rc == FM_OK && i < u->changes; i++) {
        const fm_change *ch = &u->change[i];
        if (take[u->unit_of[i]])
            factors = factors || !ch->a;
        else
            rc = ch->a ? fm_tree_put_entry(*out, ch->a) : fm_tree_remove(*out, ch->b->path);
    }
    for (size_t i = fm_tree_count(*out); rc == FM_OK && !factors && i-- > 0;) {
        const char *path = fm_tree_at(*out, i)->path;
        if (strncmp(path, "adapters/", 9) == 0 && !fm_tree_find(u->parent, path))
            rc = fm_tree_remove(*out, path);
    }
    return rc;
}

fm_status bb_mix_units(bb_units *u, const bool *take, bb_outcome *out)
{
    fm_tree *tree = NULL;
    if (recall(u->f->mixed, take, u->count * sizeof *take, out))
        return FM_OK;
    fm_status rc = make_mixture(u, take, &tree);
    if (rc == FM_OK)
        rc = run_and_keep(u->b, u->f, u->f->mixed, tree, take, u->count * sizeof *take, out);
    fm_tree_free(tree);
    return rc;
}
