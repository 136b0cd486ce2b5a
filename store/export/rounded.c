/* rounded.c - a version whose weights are merged and rounded as in a file of it. */
#include "store/export/export_impl.h"

#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

struct fm_rounded {
    fm_plain *plain;
    fm_adapted *adapted;
    const fm_provider *behind;
    exp_plan plan;
    fm_tree *tree;
    fm_map *by_id; /* id in tree -> the weight, if it is made */
};

enum { WIDE_ELEMS = 1 << 14 };

/* ---- the tree ---- */

static fm_status id_of(fm_digest *out, const exp_weight *w)
{
    fm_hasher *h = NULL;
    const uint8_t dtype = (uint8_t)w->dtype;
    fm_status rc = fm_hasher_new(&h);

    FM_THEN(rc, fm_hasher_update(h, "rounded", 7));
    FM_THEN(rc, fm_hasher_update(h, w->base->id.b, FM_DIGEST_BYTES));
    FM_THEN(rc, fm_hasher_update(h, &dtype, 1));
    for (size_t i = 0; rc == FM_OK && i < w->term_count; i++) {
        rc = fm_hasher_update(h, w->term[i].a->id.b, FM_DIGEST_BYTES);
        FM_THEN(rc, fm_hasher_update(h, w->term[i].b->id.b, FM_DIGEST_BYTES));
        FM_THEN(rc, fm_hasher_update(h, &w->term[i].scale, sizeof w->term[i].scale));
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

/* Puts the weight at a path, in the type that the file has there; a path that the file has not is
 * left alone. */
static fm_status put_at(fm_rounded *r, exp_weight *w, const char *path, const char *name,
                        const fm_tree *file)
{
    const fm_entry *e = fm_tree_find(file, path);
    fm_digest id = w->base->id;

    if (!e || e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    w->dtype = e->dtype;
    FM_TRY(fm_tensor_bytes(&w->bytes, w->dtype, &w->base->shape, name));
    if (w->dtype != w->base->dtype || w->term_count > 0) {
        FM_TRY(id_of(&id, w));
        FM_TRY(fm_map_put(r->by_id, id.b, FM_DIGEST_BYTES, w, NULL));
    }
    return fm_tree_put_tensor(r->tree, path, name, w->dtype, &w->base->shape, &id);
}

static fm_status put_weight(fm_rounded *r, exp_weight *w, const fm_tree *file)
{
    fm_buf path;

    fm_buf_init(&path, 0);
    fm_status rc = fm_tensor_path(&path, "tensors", w->name);
    FM_THEN(rc, put_at(r, w, fm_buf_cstr(&path), w->name, file));
    fm_buf_release(&path);
    return rc;
}

/* model.json, whose head is a weight of its own where an adapter made it one. */
static fm_status put_model(fm_rounded *r, const fm_tree *tree)
{
    const fm_entry *e = fm_tree_find(tree, "model.json");
    fm_json *model = NULL, *config = NULL;
    fm_buf text;

    if (e && !r->plan.unties)
        return fm_tree_put_entry(r->tree, e);
    fm_buf_init(&text, 0);
    fm_status rc = exp_model_json(&model, tree, r->behind);
    if (rc == FM_OK)
        config = fm_json_ref(fm_json_get(model, "config"));
    FM_THEN(rc, fm_json_set(config, "tie_word_embeddings", fm_json_new_bool(false)));
    fm_json_free(config);
    FM_THEN(rc, fm_json_write(&text, model, FM_JSON_COMPACT));
    FM_THEN(rc, fm_tree_put_file(r->tree, "model.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_json_free(model);
    return rc;
}

static fm_status put_all(fm_rounded *r, const fm_tree *tree, const fm_tree *file)
{
    size_t begin, end;
    FM_TRY(put_model(r, tree));

    for (size_t i = 0; i < r->plan.count; i++)
        FM_TRY(put_weight(r, &r->plan.weight[i], file));
    fm_tree_range(tree, "tokenizer/", &begin, &end);
    for (size_t i = begin; i < end; i++)
        FM_TRY(fm_tree_put_entry(r->tree, fm_tree_at(tree, i)));
    return FM_OK;
}

/* Of a file of adapters: all is the version's but the types of their tensors. */
static fm_status open_adapters(fm_rounded *r, const fm_tree *tree, const fm_tree *file)
{
    size_t begin, end;

    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++) /* a weight for each, which then stays in its place */
        if (fm_tree_at(tree, i)->kind == FM_ENTRY_TENSOR)
            FM_TRY(exp_plan_add(&r->plan, fm_tree_at(tree, i)->path, fm_tree_at(tree, i)));
    FM_TRY(fm_tree_copy(&r->tree, tree));
    for (size_t i = 0; i < r->plan.count; i++) {
        exp_weight *w = &r->plan.weight[i];
        FM_TRY(put_at(r, w, w->name, w->base->name, file));
    }
    return FM_OK;
}

static fm_status open_merged(fm_rounded *r, const fm_tree *tree, const fm_tree *file)
{
    FM_TRY(fm_plain_open(&r->plain, tree, r->behind, "export"));
    tree = fm_plain_tree(r->plain);
    r->behind = fm_plain_provider(r->plain);
    FM_TRY(fm_adapted_open(&r->adapted, tree, r->behind, FM_ADAPTED_MERGE, FM_F32, "export"));
    tree = fm_adapted_tree(r->adapted);
    r->behind = fm_adapted_provider(r->adapted);
    FM_TRY(exp_plan_make(&r->plan, tree, r->behind, FM_DTYPE_NONE));
    FM_TRY(fm_tree_new(&r->tree));
    return put_all(r, tree, file);
}

fm_status fm_rounded_open(fm_rounded **out, const fm_tree *tree, const fm_provider *p,
                          const fm_tree *file)
{
    fm_rounded *r = fm_calloc(1, sizeof *r);
    fm_status rc = r ? fm_map_new(&r->by_id) : FM_ENOMEM;
    size_t begin, end;

    *out = NULL;
    fm_tree_range(file, "adapters/", &begin, &end);
    if (rc == FM_OK) {
        r->behind = p;
        rc = begin < end ? open_adapters(r, tree, file) : open_merged(r, tree, file);
    }
    if (rc < 0) {
        fm_rounded_close(r);
        return rc;
    }
    *out = r;
    return FM_OK;
}

void fm_rounded_close(fm_rounded *r)
{
    if (!r)
        return;
    fm_tree_free(r->tree);
    fm_map_free(r->by_id);
    exp_plan_free(&r->plan);
    fm_adapted_close(r->adapted);
    fm_plain_close(r->plain);
    fm_free(r);
}

const fm_tree *fm_rounded_tree(const fm_rounded *r)
{
    return r->tree;
}

/* ---- the bytes ---- */

/* Makes elements [first, first + n), whole units; out: as written. */
static fm_status make(uint8_t *out, const fm_rounded *r, const exp_weight *w, uint64_t first,
                      uint64_t n)
{
    const uint64_t wide = FM_MAX(exp_unit(w), (uint64_t)WIDE_ELEMS);
    const uint64_t stored = exp_stored_bytes(w, n);
    uint8_t *raw = fm_malloc((size_t)stored);
    float *floats = fm_calloc((size_t)wide, sizeof *floats);
    exp_factors f = {NULL, NULL, 0};
    fm_status rc = raw && floats ? exp_factors_read(&f, w, r->behind) : FM_ENOMEM;

    FM_THEN(rc,
            fm_entry_read_range(r->behind, w->base, exp_stored_bytes(w, first), stored, raw, 0));
    FM_THEN(rc, exp_make(out, floats, wide, w, &f, raw, first, n));
    exp_factors_free(&f);
    fm_free(floats);
    fm_free(raw);
    return rc;
}

static fm_status read_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            void *dst, unsigned flags)
{
    const fm_rounded *r = ctx;
    const exp_weight *w = fm_map_get(r->by_id, e->id.b, FM_DIGEST_BYTES);

    if (!w)
        return fm_entry_read_range(r->behind, e, offset, bytes, dst, flags);
    if (offset > w->bytes || bytes > w->bytes - offset)
        return fm_fail(FM_EINVAL, "tensor '%s': a range beyond its end", w->name);
    if (bytes == 0)
        return FM_OK;
    const uint64_t unit = exp_unit(w), each = exp_made_bytes(w, unit);
    const uint64_t from = offset / each, end = (offset + bytes - 1) / each + 1;
    uint8_t *made = fm_malloc((size_t)((end - from) * each));
    fm_status rc = made ? make(made, r, w, from * unit, (end - from) * unit) : FM_ENOMEM;

    if (rc == FM_OK)
        memcpy(dst, made + (offset - from * each), (size_t)bytes);
    fm_free(made);
    return rc;
}

static fm_status read_entry(void *ctx, const fm_entry *e, void *dst)
{
    return read_range(ctx, e, 0, e->bytes, dst, 0);
}

fm_provider fm_rounded_provider(const fm_rounded *r)
{
    fm_provider p = {.read = read_entry, .range = read_range};

    memcpy(&p.ctx, &r, sizeof p.ctx); /* drops a const: the callbacks only read */
    return p;
}
