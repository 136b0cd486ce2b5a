/* export.c - writes the files of a view: the target must be new, and a failure leaves none
 * behind. */
#include "store/export/export_impl.h"

#include <string.h>

#include "store/import/source_impl.h"
#include "store/base/mem.h"

enum { WRITE_THREADS = 12 };

typedef struct writing {
    const fm_view *v;
    exp_pump *pump;
    fm_hasher *hash;
    fm_writer *file;
    bool hashes; /* the file's digest is known, and compared before the file is committed */
} writing;

static fm_status take(void *ctx, const void *data, size_t len)
{
    writing *w = ctx;

    if (w->hashes)
        FM_TRY(fm_hasher_update(w->hash, data, len));
    return fm_writer_write(w->file, data, len);
}

/* Hashes mapped bytes and lets the kernel copy them. */
static fm_status take_place(void *ctx, const fm_file_part *place, uint64_t offset, uint64_t len)
{
    enum { PIECE = 1 << 20 };
    writing *w = ctx;
    const fm_file_map map = {place->data.data, place->data.len};
    fm_status rc = FM_OK;

    for (uint64_t at = 0; rc == FM_OK && at < len; at += PIECE) {
        const size_t n = (size_t)FM_MIN(len - at, (uint64_t)PIECE);
        rc = fm_hasher_update(w->hash, map.data + offset + at, n);
        fm_map_forget(&map, (size_t)(offset + at), n);
    }
    return rc == FM_OK ? fm_writer_copy(w->file, place->path, place->offset + offset, len) : rc;
}

static fm_status check_digest(writing *w, const fm_view_file *f)
{
    fm_digest got;
    FM_TRY(fm_hasher_final(w->hash, &got));

    return fm_digest_eq(&got, &f->sha256)
               ? FM_OK
               : fm_fail(FM_EUNSUPPORTED,
                         "%s: this version was changed since it was imported, so "
                         "the bytes that came in cannot be made; export it with --format hf",
                         f->name);
}

/* unchecked: the file's digest is compared, so leaves' digests need not be. */
static fm_status write_once(writing *w, size_t i, const char *path, bool unchecked)
{
    const fm_view_file *f = fm_view_at(w->v, i);
    fm_digest unfinished;

    w->hashes = f->known;
    exp_pump_flags(w->pump, unchecked ? FM_RANGE_UNCHECKED : 0);
    exp_pump_places(w->pump, unchecked ? take_place : NULL);
    fm_status rc = fm_writer_open(&w->file, path, NULL);
    FM_THEN(rc, fm_writer_reserve(w->file, f->bytes));
    FM_THEN(rc, exp_view_pump(w->v, i, 0, f->bytes, w->pump));
    if (rc == FM_OK && f->known)
        rc = check_digest(w, f);
    else if (f->known)
        fm_ignore(fm_hasher_final(w->hash, &unfinished), "it starts afresh");
    FM_THEN(rc, fm_writer_commit(w->file, NULL));
    fm_writer_close(w->file);
    w->file = NULL;
    exp_pump_drop(w->pump);
    return rc;
}

/* A file with a wrong digest is made again with every leaf compared: then damage is named, and a
 * sound copy of the bytes is read where there is one. */
static fm_status write_file(writing *w, size_t i, const char *path)
{
    const bool known = fm_view_at(w->v, i)->known;
    fm_status rc = write_once(w, i, path, known);

    if (known && (rc == FM_ECORRUPT || rc == FM_EUNSUPPORTED || rc == FM_EBASE))
        rc = write_once(w, i, path, false);
    return rc;
}

static fm_status make_folder_of(const char *path)
{
    const char *base = fm_path_base(path);
    char *dir = fm_strndup(path, (size_t)(base - path));
    fm_status rc = dir ? fm_make_dirs(dir) : FM_ENOMEM;

    fm_free(dir);
    return rc;
}

static fm_status write_below(writing *w, size_t i, const char *dst)
{
    const char *name = fm_view_at(w->v, i)->name;
    char *path = fm_path_join(dst, name);
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && strchr(name, '/'))
        rc = make_folder_of(path);
    FM_THEN(rc, write_file(w, i, path));
    fm_free(path);
    return rc;
}

static fm_status write_files(const fm_view *v, const char *dst)
{
    writing w = {.v = v};
    fm_status rc = fm_hasher_new(&w.hash);

    FM_THEN(rc, exp_pump_new(&w.pump, v->p, WRITE_THREADS, take, &w));
    if (v->single)
        FM_THEN(rc, write_file(&w, 0, dst));
    else
        FM_THEN(rc, fm_make_dirs(dst));
    for (size_t i = 0; rc == FM_OK && !v->single && i < v->count; i++)
        rc = write_below(&w, i, dst);
    fm_hasher_free(w.hash);
    exp_pump_free(w.pump);
    return rc;
}

fm_status exp_write(const fm_view *v, const char *dst)
{
    fm_error_state why;
    fm_status rc = write_files(v, dst);

    if (rc < 0 && fm_path_exists(dst)) {
        fm_error_save(&why);
        fm_ignore(fm_remove_tree(dst), "the first error is the one to tell");
        fm_error_restore(&why);
    }
    return rc;
}

static bool is_gguf_name(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

fm_status fm_export_as(const fm_tree *tree, const fm_provider *p, const char *dst,
                       const fm_view_opts *opts)
{
    fm_view *v = NULL;

    if (fm_path_exists(dst))
        return fm_fail(FM_EEXISTS, "%s: is there already; export to a new path", dst);
    fm_status rc = fm_view_open(&v, tree, p, opts);
    if (rc == FM_OK && opts->format == FM_EXPORT_GGUF_LORA && !v->single && is_gguf_name(dst))
        rc = fm_fail(FM_EINVAL, "%s: this version has %zu adapters, a GGUF for each; name a folder",
                     dst, v->count);
    FM_THEN(rc, exp_write(v, dst));
    fm_view_close(v);
    return rc;
}

fm_status fm_export(const fm_tree *tree, const fm_provider *p, const char *dst,
                    fm_export_format format, fm_dtype dtype)
{
    const fm_view_opts opts = {.format = format, .dtype = dtype};
    return fm_export_as(tree, p, dst, &opts);
}

fm_status fm_export_file(const fm_tree *tree, const fm_provider *p, const fm_digest *sha256,
                         const char *dst)
{
    fm_view v = {.tree = tree, .p = p};

    if (fm_path_exists(dst))
        return fm_fail(FM_EEXISTS, "%s exists", dst);
    fm_status rc = exp_source(&v, sha256);
    v.single = true;
    FM_THEN(rc, exp_write(&v, dst));
    exp_view_release(&v);
    return rc;
}

/* FM_EUNSUPPORTED is no fault of the tree: the format or this fmstore cannot write its kind. */
static fm_status or_unsupported(fm_status rc)
{
    if (rc != FM_EUNSUPPORTED)
        return rc;
    fm_error_clear();
    return FM_OK;
}

static bool has_any(const fm_tree *tree, const char *folder)
{
    size_t begin, end;

    fm_tree_range(tree, folder, &begin, &end);
    return begin < end;
}

static fm_status check_model(const fm_tree *tree, const fm_provider *p)
{
    exp_plan plan;
    fm_json *model = NULL;
    fm_status rc = FM_OK;

    if (fm_tree_find(tree, "model.json"))
        rc = exp_model_json(&model, tree, p);
    else if (has_any(tree, "tokenizer/") && has_any(tree, "tensors/"))
        rc = fm_fail(FM_ENOTFOUND, "tree path 'model.json': is missing beside a tokenizer");
    fm_json_free(model);
    if (rc == FM_OK) {
        rc = or_unsupported(exp_plan_make(&plan, tree, p, FM_DTYPE_NONE));
        exp_plan_free(&plan);
    }
    return rc;
}

fm_status fm_export_check(const fm_tree *tree, const fm_provider *p)
{
    /* Code that changes a model drops source/, so all pieces that source.json names must be
     * there. */
    fm_view v = {.tree = tree, .p = p};
    fm_status rc = fm_tree_find(tree, FM_SOURCE_JSON) ? exp_source(&v, NULL) : FM_OK;

    exp_view_release(&v);
    if (rc < 0)
        return rc;
    if (!fm_tree_find(tree, FM_SOURCE_JSON) && has_any(tree, "source/"))
        return fm_fail(FM_ENOTFOUND, "tree path '" FM_SOURCE_JSON "': is missing from source/");
    return check_model(tree, p);
}
