/* plain.c - see scaled.h: the view of a tree in which quantized weights are plain ones. */
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

struct fm_plain {
    const fm_tree *tree; /* the view: own, or the tree that was given */
    fm_tree *own;        /* NULL: nothing is quantized */
    const fm_provider *behind;
    fm_provider p;
    fm_map *by_id; /* id in own -> fms_made * */
    fms_made **list;
    size_t count, cap;
};

/* ==== names ==== */

fm_status fms_beside(const fm_entry **out, const fms_scan *s, const fm_entry *e, const char *own,
                     const char *tail)
{
    char name[FM_MAX_NAME_BYTES + 64];
    fm_buf path;
    fm_assert(fm_ends_with(e->name, own) && strlen(tail) < 64);
    (void)snprintf(name, sizeof(name), "%.*s%s", (int)(strlen(e->name) - strlen(own)), e->name,
                   tail);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    *out = rc == FM_OK ? fm_tree_find(s->tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    if (*out && (*out)->kind != FM_ENTRY_TENSOR)
        *out = NULL;
    return rc;
}

fm_status fms_is_part(bool *out, const fms_scan *s, const fm_entry *e, const char *const *tails,
                      const char *const *heads)
{
    *out = false;
    for (; *tails && !*out; tails++)
        for (size_t i = 0; heads[i] && !*out && fm_ends_with(e->name, *tails); i++) {
            const fm_entry *head = NULL;
            FM_TRY(fms_beside(&head, s, e, *tails, heads[i]));
            *out = head != NULL;
        }
    return FM_OK;
}

static fm_status misfit(const fms_made *m, const fm_entry *e, const char *tail, const char *type,
                        const fm_shape *shape)
{
    char have[96], want[96];
    fm_shape_text(shape, want, sizeof(want));
    if (!e)
        return fm_fail(FM_EBASE, "tensor '%s' has no '%s' beside it", m->part[0]->name, tail);
    fm_shape_text(&e->shape, have, sizeof(have));
    return fm_fail(FM_EBASE, "tensor '%s' is %s %s; the weight '%s' needs %s %s", e->name,
                   fm_dtype_get(e->dtype)->name, have, m->name, type, want);
}

fm_status fms_expect(const fms_made *m, const fm_entry *e, const char *tail, fm_dtype dtype,
                     fm_shape shape)
{
    return e && e->dtype == dtype && fm_shape_eq(&e->shape, &shape)
               ? FM_OK
               : misfit(m, e, tail, fm_dtype_get(dtype)->name, &shape);
}

fm_status fms_expect_floats(const fms_made *m, const fm_entry *e, const char *tail, fm_shape shape)
{
    return e && (e->dtype == FM_F16 || e->dtype == FM_BF16 || e->dtype == FM_F32) &&
                   fm_shape_eq(&e->shape, &shape)
               ? FM_OK
               : misfit(m, e, tail, "F16, BF16 or F32", &shape);
}

bool fms_of_activations(const char *name)
{
    static const char *const tail[] = {".input_scale", ".activation_scale", ".output_scale",
                                       ".k_scale",     ".v_scale",          ".input_scale_ub"};
    for (size_t i = 0; i < FM_ARRAY_LEN(tail); i++)
        if (fm_ends_with(name, tail[i]))
            return true;
    return false;
}

/* ==== bytes ==== */

fm_status fms_part_bytes(uint8_t **out, const fm_provider *p, const fm_entry *e)
{
    *out = fm_aligned_alloc(64, (size_t)e->bytes + 64);
    fm_status rc = *out ? p->read(p->ctx, e, *out) : FM_ENOMEM;
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

fm_status fms_part_floats(float **out, const fm_provider *p, const fm_entry *e)
{
    uint64_t n = 0;
    uint8_t *raw = NULL;
    *out = NULL;
    FM_TRY(fm_shape_elems(&n, &e->shape));
    fm_status rc = fms_part_bytes(&raw, p, e);
    if (rc == FM_OK) {
        *out = fm_malloc((size_t)n * sizeof(float) + 1);
        rc = *out ? fm_to_f32(*out, e->dtype, raw, n) : FM_ENOMEM;
    }
    fm_free(raw);
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ==== the view ==== */

static fm_status id_of(fm_digest *out, const fms_made *m)
{
    static const uint8_t none[sizeof(fm_digest)];
    char text[256];
    if (m->form->id)
        return m->form->id(out, m);
    int n =
        snprintf(text, sizeof(text),
                 "fmstore quantized weight 1\n%s %s %s %llu %llu %llu %u %u %d %d %llu %llu "
                 "%a\n",
                 m->form->name, fm_dtype_get(m->dtype)->name, fm_dtype_get(m->rounded)->name,
                 (unsigned long long)m->n, (unsigned long long)m->k, (unsigned long long)m->group,
                 m->bits, m->kind, m->plus_1, m->words, (unsigned long long)m->block,
                 (unsigned long long)m->nested_block, (double)m->nested_offset);
    fm_assert(n > 0 && (size_t)n < sizeof(text));
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);
    FM_THEN(rc, fm_hasher_update(h, text, (size_t)n));
    for (size_t i = 0; rc == FM_OK && i < FMS_PARTS; i++)
        rc = fm_hasher_update(h, m->part[i] ? m->part[i]->id.b : none, sizeof(fm_digest));
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

/* The name of a weight [n, k] is set by its form; its path follows. */
static fm_status put_made(fm_plain *v, const fms_scan *s, const fm_entry *e)
{
    fm_digest id;
    fm_buf path;
    FM_TRY(fm_grow(&v->list, &v->cap, v->count + 1, sizeof(*v->list)));
    fms_made *m = v->list[v->count] = fm_calloc(1, sizeof(*m));
    if (!m)
        return FM_ENOMEM;
    v->count++;
    *m = (fms_made){.form = s->q->form, .part = {e}, .rounded = s->q->dtype};
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = s->q->form->take(m, s, e);
    FM_THEN(rc, fm_tensor_path(&path, "tensors", m->name));
    FM_THEN(rc, id_of(&id, m));
    if (rc == FM_OK && strcmp(fm_buf_cstr(&path), e->path) != 0 &&
        fm_tree_find(s->tree, fm_buf_cstr(&path)))
        rc = fm_fail(FM_EBASE, "'%s' and a quantized form of it ('%s') are both there", m->name,
                     e->name);
    FM_THEN(rc, fm_tree_put_tensor(v->own, fm_buf_cstr(&path), m->name, m->dtype, &m->shape, &id));
    FM_THEN(rc, fm_map_put(v->by_id, id.b, sizeof(id.b), m, NULL));
    fm_buf_release(&path);
    return rc;
}

static fm_status without(fm_json **out, const fm_json *v, const char *key)
{
    fm_json *o = *out = fm_json_new_object();
    FM_TRY(o ? FM_OK : FM_ENOMEM);
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it))
        if (strcmp(fm_json_iter_key(it), key) != 0)
            FM_TRY(fm_json_set(o, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    return FM_OK;
}

/* What is left of quantization_config: inputs of a bitnet are rounded in any view. */
static fm_status set_rounding(fm_json *config)
{
    fm_json *q = fm_json_new_object();
    FM_TRY(q ? FM_OK : FM_ENOMEM);
    fm_status rc = fm_json_set(q, "quant_method", fm_json_new_str("bitnet"));
    FM_THEN(rc, fm_json_set(q, "linear_class", fm_json_new_str(FMS_QUANT_MADE)));
    if (rc == FM_OK)
        return fm_json_set(config, "quantization_config", q);
    fm_json_free(q);
    return rc;
}

static fm_status put_model(fm_plain *v, const fms_scan *s, const fm_json *model)
{
    fm_json *config = NULL, *plain = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = without(&config, fm_json_get(model, "config"), "quantization_config");
    if (rc == FM_OK && s->q->rounds)
        rc = set_rounding(config);
    FM_THEN(rc, without(&plain, model, "config"));
    if (rc == FM_OK) {
        rc = fm_json_set(plain, "config", config);
        config = NULL;
    }
    FM_THEN(rc, fm_json_write(&text, plain, FM_JSON_PRETTY));
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_tree_put_file(v->own, "model.json", fm_buf_span(&text)));
    fm_json_free(config);
    fm_json_free(plain);
    fm_buf_release(&text);
    return rc;
}

static fm_status put_tensor(fm_plain *v, const fms_scan *s, const fm_entry *e)
{
    fms_role role = FMS_OTHER;
    FM_TRY(s->q->form->role(&role, s, e));
    if (role == FMS_HEAD)
        return put_made(v, s, e);
    return role == FMS_PART ? FM_OK : fm_tree_put_entry(v->own, e);
}

static fm_status put_all(fm_plain *v, const fms_scan *s, const fm_json *model)
{
    for (size_t i = 0; i < fm_tree_count(s->tree); i++) {
        const fm_entry *e = fm_tree_at(s->tree, i);
        if (strcmp(e->path, "model.json") == 0)
            FM_TRY(put_model(v, s, model));
        else if (e->kind == FM_ENTRY_TENSOR && strncmp(e->path, "tensors/", 8) == 0)
            FM_TRY(put_tensor(v, s, e));
        else
            FM_TRY(fm_tree_put_entry(v->own, e));
    }
    return FM_OK;
}

/* ==== reading ==== */

static const fms_made *made_of(const fm_plain *v, const fm_entry *e)
{
    return v->by_id && e->kind == FM_ENTRY_TENSOR ? fm_map_get(v->by_id, e->id.b, sizeof(e->id.b))
                                                  : NULL;
}

static fm_status plain_read(void *ctx, const fm_entry *e, void *dst)
{
    const fm_plain *v = ctx;
    const fms_made *m = made_of(v, e);
    if (!m)
        return v->behind->read(v->behind->ctx, e, dst);
    return e->bytes > 0 ? m->form->make(dst, m, v->behind, 0, m->n, 0) : FM_OK;
}

static fm_status plain_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                             void *dst, unsigned flags)
{
    const fm_plain *v = ctx;
    const fms_made *m = made_of(v, e);
    if (!m)
        return fm_entry_read_range(v->behind, e, offset, bytes, dst, flags);
    if (bytes == 0)
        return FM_OK;
    const uint64_t line = e->bytes / m->n, first = offset / line;
    const uint64_t rows = (offset + bytes + line - 1) / line - first;
    if (offset % line == 0 && bytes % line == 0)
        return m->form->make(dst, m, v->behind, first, rows, flags);
    uint8_t *whole = fm_malloc((size_t)(rows * line));
    fm_status rc = whole ? m->form->make(whole, m, v->behind, first, rows, flags) : FM_ENOMEM;
    if (rc == FM_OK)
        memcpy(dst, whole + offset % line, (size_t)bytes);
    fm_free(whole);
    return rc;
}

static fm_status plain_view(void *ctx, const fm_entry *e, fm_span *out)
{
    const fm_plain *v = ctx;
    *out = (fm_span){0};
    return made_of(v, e) || !v->behind->view ? FM_OK : v->behind->view(v->behind->ctx, e, out);
}

static fm_status plain_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    const fm_plain *v = ctx;
    *out = (fm_file_part){0};
    return made_of(v, e) || !v->behind->place ? FM_OK : v->behind->place(v->behind->ctx, e, out);
}

/* ==== life ==== */

static fm_status open_quantized(fm_plain *v, const fms_scan *s, const fm_json *model)
{
    fm_status rc = fm_map_new(&v->by_id);
    FM_THEN(rc, fm_tree_new(&v->own));
    FM_THEN(rc, put_all(v, s, model));
    v->tree = v->own;
    v->p = (fm_provider){.ctx = v,
                         .read = plain_read,
                         .view = v->behind->view ? plain_view : NULL,
                         .range = plain_range,
                         .place = v->behind->place ? plain_place : NULL};
    return rc;
}

fm_status fm_plain_open_as(fm_plain **out, const fm_tree *tree, const fm_provider *p,
                           const char *what, fm_plain_as as)
{
    const fm_entry *e = fm_tree_find(tree, "model.json");
    fm_plain *v = fm_calloc(1, sizeof(*v));
    fms_quant q = {0};
    const fms_scan scan = {tree, p, &q, as};
    fm_json *model = NULL;
    fm_buf text;
    *out = NULL;
    if (!v)
        return FM_ENOMEM;
    v->tree = tree;
    v->behind = p;
    v->p = *p;
    fm_buf_init(&text, 0);
    fm_status rc = e ? fm_entry_read(&text, p, e) : FM_OK;
    if (rc == FM_OK && e)
        rc = fm_json_parse(&model, fm_buf_span(&text), "model.json");
    if (rc == FM_OK && e)
        rc = fms_quant_of(&q, fm_json_get(model, "config"), "model.json");
    if (rc == FM_OK && q.form)
        rc = open_quantized(v, &scan, model);
    fm_buf_release(&text);
    fm_json_free(model);
    if (rc != FM_OK) {
        fm_plain_close(v);
        return fm_error_prefix(rc, "%s", what);
    }
    *out = v;
    return FM_OK;
}

fm_status fm_plain_open(fm_plain **out, const fm_tree *tree, const fm_provider *p, const char *what)
{
    return fm_plain_open_as(out, tree, p, what, FM_PLAIN_WIDE);
}

void fm_plain_close(fm_plain *v)
{
    if (!v)
        return;
    for (size_t i = 0; i < v->count; i++)
        fm_free(v->list[i]);
    fm_tree_free(v->own);
    fm_map_free(v->by_id);
    fm_free(v->list);
    fm_free(v);
}

const fm_tree *fm_plain_tree(const fm_plain *v)
{
    return v->tree;
}

const fm_provider *fm_plain_provider(const fm_plain *v)
{
    return &v->p;
}

bool fm_plain_scales(const fm_plain *v)
{
    return v->own != NULL;
}

bool fm_plain_made(const fm_plain *v, const fm_entry *e)
{
    return made_of(v, e) != NULL;
}
