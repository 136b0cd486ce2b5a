/* written.c - opens a written GGUF as import would, without storing it. */
#include "cli/ops/version/written.h"

#include <string.h>

#include "cli/ops/version/version_tree.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

/* ---- bytes: of the files, else of the store, which has the base ---- */

static fm_status read_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            void *dst, unsigned flags)
{
    const fmo_written *w = ctx;
    fm_status rc = FM_ENOTFOUND;

    for (size_t i = 0; rc == FM_ENOTFOUND && i < w->count; i++) {
        const fm_provider p = fm_source_provider(w->source[i]);
        rc = p.range(p.ctx, e, offset, bytes, dst, flags);
    }
    return rc == FM_ENOTFOUND && w->laid
               ? fm_entry_read_range(&w->store, e, offset, bytes, dst, flags)
               : rc;
}

static fm_status read_entry(void *ctx, const fm_entry *e, void *dst)
{
    return read_range(ctx, e, 0, e->bytes, dst, 0);
}

/* ---- files ---- */

static fm_status refuse(const char *path, const char *why)
{
    return fm_fail(FM_EREFUSED, "%s: cannot be read again: %s", path, why);
}

/* Opens one file and, if it is an adapter, lays it on what is there so far. */
static fm_status add_file(fmo_written *w, const char *path)
{
    const fm_tree *on = w->laid ? w->laid : w->base;
    fm_source *src = NULL;
    fm_tree *laid = NULL;
    FM_TRY(fm_grow(&w->source, &w->cap, w->count + 1, sizeof(fm_source *)));
    fm_status rc = fm_source_open_for(&src, path, on, &w->store);

    if (rc == FM_ECORRUPT || rc == FM_EUNSUPPORTED || rc == FM_EBASE)
        return refuse(path, fm_error_text());
    if (rc < 0)
        return rc;
    w->source[w->count++] = src;
    if (fm_source_kept(src))
        return refuse(path, fm_source_kept(src));
    if (!fm_source_is_adapter(src))
        return FM_OK;
    rc = fm_adapter_apply(&laid, on, fm_source_tree(src), NULL, NULL);
    if (rc == FM_EBASE || rc == FM_EINVAL)
        rc = refuse(path, fm_error_text());
    if (rc == FM_OK) {
        fm_tree_free(w->laid);
        w->laid = laid;
    }
    return rc;
}

/* A folder has a file for each adapter of the version, called as its folder in the tree. */
static fm_status add_folder(fmo_written *w, const fm_tree *tree, const char *path)
{
    size_t begin, end;
    fm_status rc = FM_OK;

    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const char *name = fm_tree_at(tree, i)->path + strlen("adapters/");
        const size_t n = strcspn(name, "/");
        if (strcmp(name + n, "/adapter_config.json") != 0)
            continue;
        char *file = fm_asprintf("%s/%.*s.gguf", path, (int)n, name);
        rc = file ? add_file(w, file) : FM_ENOMEM;
        fm_free(file);
    }
    return rc;
}

fm_status fmo_written_open(fmo_written *out, fm_ops *c, const fm_tree *tree, const char *path)
{
    *out = (fmo_written){.store = fm_store_provider(fm_repo_store(c->repo))};
    fm_status rc = fm_tree_copy(&out->base, tree);
    FM_THEN(rc, fmo_tree_drop(out->base, "adapters/"));
    FM_THEN(rc, fm_path_is_dir(path) ? add_folder(out, tree, path) : add_file(out, path));
    if (rc < 0)
        fmo_written_close(out);
    return rc;
}

void fmo_written_close(fmo_written *w)
{
    for (size_t i = 0; i < w->count; i++)
        fm_source_close(w->source[i]);
    fm_free(w->source);
    fm_tree_free(w->laid);
    fm_tree_free(w->base);
    *w = (fmo_written){.source = NULL};
}

const fm_tree *fmo_written_tree(const fmo_written *w)
{
    return w->laid ? w->laid : fm_source_tree(w->source[0]);
}

fm_provider fmo_written_provider(fmo_written *w)
{
    return (fm_provider){.ctx = w, .read = read_entry, .range = read_range};
}
