/* export.c - the entry to all formats: the target must be new, and a failure leaves none behind. */
#include "store/export/export_impl.h"

#include "store/scaled.h"
#include "store/import/source_impl.h"
#include "store/base/mem.h"

static fm_status write_as(const fm_tree *tree, const fm_provider *p, const char *dst,
                          fm_export_format format, fm_dtype dtype)
{
    switch (format) {
    case FM_EXPORT_SOURCE:
        return exp_source(tree, p, dst);
    case FM_EXPORT_HF:
        return exp_hf(tree, p, dst, dtype, FM_EXPORT_SHARD_BYTES);
    case FM_EXPORT_SAFETENSORS:
        return exp_safetensors(tree, p, dst, dtype);
    case FM_EXPORT_PEFT:
        return exp_peft(tree, p, dst, dtype);
    }
    return fm_fail(FM_EINVAL, "unknown export format %d", (int)format);
}

/* Weights with scales become plain first where weights change their type or an adapter is merged: a
 * changed weight no longer fits its scale. */
static fm_status write_format(const fm_tree *tree, const fm_provider *p, const char *dst,
                              fm_export_format format, fm_dtype dtype)
{
    size_t begin, end;
    fm_plain *plain = NULL;
    fm_tree_range(tree, "adapters/", &begin, &end);
    bool changes = dtype != FM_DTYPE_NONE || begin < end;
    if (!changes || (format != FM_EXPORT_HF && format != FM_EXPORT_SAFETENSORS))
        return write_as(tree, p, dst, format, dtype);
    fm_status rc = fm_plain_open(&plain, tree, p, "export");
    FM_THEN(rc, write_as(fm_plain_tree(plain), fm_plain_provider(plain), dst, format, dtype));
    fm_plain_close(plain);
    return rc;
}

fm_status fm_export(const fm_tree *tree, const fm_provider *p, const char *dst,
                    fm_export_format format, fm_dtype dtype)
{
    fm_error_state why;
    fm_status rc;

    if (dtype != FM_DTYPE_NONE && dtype != FM_F32 && dtype != FM_F16 && dtype != FM_BF16)
        return fm_fail(FM_EINVAL, "cannot export as %s; use F32, F16 or BF16",
                       fm_dtype_get(dtype)->name);
    if (format == FM_EXPORT_SOURCE && dtype != FM_DTYPE_NONE)
        return fm_fail(FM_EINVAL, "the bytes that came in have their own dtype; choose a format");
    if (fm_path_exists(dst))
        return fm_fail(FM_EEXISTS, "%s: is there already; export to a new path", dst);
    rc = write_format(tree, p, dst, format, dtype);
    if (rc < 0 && fm_path_exists(dst)) {
        fm_error_save(&why);
        fm_ignore(fm_remove_tree(dst), "the first error is the one to tell");
        fm_error_restore(&why);
    }
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
    FM_TRY(fm_tree_find(tree, FM_SOURCE_JSON) ? exp_source_check(tree, p) : FM_OK);

    if (!fm_tree_find(tree, FM_SOURCE_JSON) && has_any(tree, "source/"))
        return fm_fail(FM_ENOTFOUND, "tree path '" FM_SOURCE_JSON "': is missing from source/");
    return check_model(tree, p);
}
