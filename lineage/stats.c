/* stats.c - the size of a repository, and of each branch's own objects.
 *
 * Objects are counted by content id: a tensor at two paths, or in two branches, is stored once. The
 * shared bytes of each of two branches that share a tensor count it. */
#include "lineage/internal.h"

#include <string.h>
#include <sys/stat.h>

typedef struct usage { /* of one object, over all branches */
    size_t branches;
    size_t last; /* 1 + index of the last branch counted */
    uint64_t bytes, stored;
} usage;

typedef struct family {
    fm_repo *r;
    fm_repo_stats *out;
    size_t cap, tree_cap;
    fm_tree **tree; /* per branch */
    fm_map *use;    /* id -> usage */
} family;

static fm_status use_of(family *f, const fm_entry *e, usage **out)
{
    usage *u = fm_map_get(f->use, e->id.b, sizeof e->id.b);
    fm_object_info info = {.bytes = e->bytes}; /* of what only the remote has */
    bool promised;
    fm_status rc;

    *out = u;
    if (u)
        return FM_OK;
    rc = fml_elsewhere(f->r, &e->id, &promised);
    if (rc == FM_OK && !promised)
        rc = fm_store_info(f->r->store, &info, &e->id);
    if (rc < 0)
        return fm_error_prefix(rc, "tree path '%s'", e->path);
    u = fm_calloc(1, sizeof *u);
    if (!u)
        return FM_ENOMEM;
    u->bytes = info.bytes;
    u->stored = info.stored_bytes;
    rc = fm_map_put(f->use, e->id.b, sizeof e->id.b, u, NULL);
    if (rc < 0) {
        fm_free(u);
        return rc;
    }
    f->out->unique_bytes += u->bytes;
    *out = u;
    return FM_OK;
}

static fm_status count_uses(family *f, const fm_tree *tree)
{
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        usage *u = NULL;
        if (e->kind == FM_ENTRY_FILE)
            continue;
        FM_TRY(use_of(f, e, &u));
        if (u && u->last != f->out->count) {
            u->last = f->out->count;
            u->branches++;
        }
    }
    return FM_OK;
}

static fm_status add_branch(void *ctx, const char *name, const fm_oid *oid)
{
    family *f = ctx;
    fm_repo_stats *s = f->out;
    fm_status rc = fm_grow(&s->branch, &f->cap, s->count + 1, sizeof *s->branch);

    FM_THEN(rc, fm_grow(&f->tree, &f->tree_cap, s->count + 1, sizeof *f->tree));
    if (rc < 0 || !s->branch || !f->tree)
        return rc;
    f->tree[s->count] = NULL;
    memset(&s->branch[s->count], 0, sizeof *s->branch);
    s->branch[s->count].name = fm_strdup(name + strlen("refs/heads/"));
    s->count++;
    if (!s->branch[s->count - 1].name)
        return FM_ENOMEM;
    rc = fm_version_tree(f->r, &f->tree[s->count - 1], oid);
    return rc == FM_OK ? count_uses(f, f->tree[s->count - 1]) : rc;
}

/* The second pass, when the number of branches of every object is known. */
static void sum_branch(family *f, size_t b)
{
    fm_branch_stats *s = &f->out->branch[b];
    const fm_tree *tree = f->tree[b];

    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        usage *u = e->kind == FM_ENTRY_FILE ? NULL : fm_map_get(f->use, e->id.b, sizeof e->id.b);
        bool tensor = e->kind == FM_ENTRY_TENSOR;
        if (!u)
            continue;
        s->logical_bytes += u->bytes;
        s->tensors += tensor;
        if (u->branches > 1) {
            s->shared_bytes += u->bytes;
            s->tensors_shared += tensor;
            continue;
        }
        s->own_bytes += u->bytes;
        if (u->last != 0) { /* once, though it may be at two paths */
            s->own_stored += u->stored;
            u->last = 0;
        }
    }
    f->out->logical_bytes += s->logical_bytes;
}

/* Adds the sizes of the files under path; skips files that vanish meanwhile. */
static fm_status folder_bytes(uint64_t *sum, const char *path, unsigned depth)
{
    fm_names names;
    fm_status rc = fm_list_dir(&names, path);

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        char *sub = fm_path_join(path, names.name[i]);
        struct stat st;
        if (!sub)
            rc = FM_ENOMEM;
        else if (lstat(sub, &st) == 0 && S_ISREG(st.st_mode))
            *sum += (uint64_t)st.st_size;
        else if (depth < 16 && fm_path_is_dir(sub))
            rc = folder_bytes(sum, sub, depth + 1);
        fm_free(sub);
    }
    fm_names_release(&names);
    return rc;
}

fm_status fm_repo_stats_of(fm_repo *r, fm_repo_stats *out)
{
    family f = {.r = r, .out = out};
    fm_status rc;

    memset(out, 0, sizeof *out);
    if (!r)
        return fm_fail(FM_EINVAL, "stats: no repository");
    rc = fm_map_new(&f.use);
    FM_THEN(rc, fm_ref_each(r, "refs/heads/", add_branch, &f));
    for (size_t b = 0; rc == FM_OK && b < out->count; b++)
        sum_branch(&f, b);
    FM_THEN(rc, fm_store_totals_of(r->store, &out->store));
    FM_THEN(rc, folder_bytes(&out->git_bytes, r->git_path, 0));
    out->physical_bytes = out->store.bytes_packs;
    for (size_t i = 0; f.use && i < fm_map_count(f.use); i++)
        fm_free(fm_map_value_at(f.use, i));
    fm_map_free(f.use);
    for (size_t b = 0; b < out->count; b++)
        fm_tree_free(f.tree[b]);
    fm_free(f.tree);
    if (rc < 0)
        fm_repo_stats_release(out);
    return rc;
}

void fm_repo_stats_release(fm_repo_stats *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++)
        fm_free(s->branch[i].name);
    fm_free(s->branch);
    memset(s, 0, sizeof *s);
}
