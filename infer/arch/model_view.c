/* model_view.c - a tree as models read it: quantized weights plain, each expert's tensors on their
 * own where a file stacks those of all experts in one, and what adapters do to whole weights done.
 *
 * A file's stacked tensor is [experts, in, out] (turned), [experts, out, in] or, of biases,
 * [experts, out]; of block types always [experts, out, in]; of no experts [out, in]. It may hold
 * two layers' outputs, in turns or one behind the other (table.c says how). Nothing is cached: an
 * expert is computed when it is read. */
#include "infer/arch/table.h"

#include <stdio.h>
#include <string.h>

#include "store/adapted.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/scaled.h"

typedef struct part {
    const fm_entry *from;         /* in the plain tree */
    uint32_t expert, first, step; /* its outputs in the stack: first, first + step, .. */
    uint64_t outs, rows, cols;    /* outputs of the stack; its own shape, cols 1: a vector */
    bool turned, alone;           /* as fmi_stack has them */
} part;

struct fm_model_view {
    fm_plain *plain;
    fm_adapted *adapted; /* of the stacks' tree */
    const fm_tree *tree; /* own, or the plain one */
    fm_tree *own;        /* NULL: nothing is stacked */
    const fm_provider *behind;
    fm_provider p;
    fm_map *by_id; /* id in own -> part * */
    fm_map *used;  /* paths of the stacks */
    part *list;
    size_t count, room;
};

/* ==== the view ==== */

static fm_status find(const fm_entry **out, const fm_tree *tree, const char *name)
{
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    *out = rc == FM_OK ? fm_tree_find(tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    if (*out && (*out)->kind != FM_ENTRY_TENSOR)
        *out = NULL;
    return rc;
}

static const fmi_stack *stack_of(const fmi_family *f, fm_place place)
{
    for (const fmi_stack *s = f->stacks; s && s->name; s++)
        if (s->place == place)
            return s;
    return NULL;
}

bool fm_arch_stacks(const fm_arch *a, fm_place place)
{
    return stack_of(fmi_family_of(a), place) != NULL;
}

static bool has_shape(const fm_entry *e, const uint64_t *dim, uint32_t rank)
{
    bool same = e->shape.rank == rank;
    for (uint32_t i = 0; same && i < rank; i++)
        same = e->shape.dim[i] == dim[i];
    return same;
}

/* Whether the stack has the shape that the config says. */
static fm_status check_part(const fm_arch *a, const part *s, const char *what)
{
    uint64_t in = s->cols, dim[2] = {a->sw.experts, s->outs};
    uint64_t matrix[3] = {dim[0], s->turned ? in : s->outs, s->turned ? s->outs : in};
    char shape[96];
    fm_shape_text(&s->from->shape, shape, sizeof(shape));
    if (s->alone && !has_shape(s->from, matrix + 1, 2))
        return fm_fail(FM_EBASE, "%s: tensor '%s' has shape %s, the config says [%llu, %llu]", what,
                       s->from->name, shape, (unsigned long long)s->outs, (unsigned long long)in);
    if (!s->alone && !has_shape(s->from, in == 1 ? dim : matrix, in == 1 ? 2 : 3))
        return fm_fail(FM_EBASE,
                       "%s: tensor '%s' has shape %s, the config says %u experts of %llu outputs "
                       "and %llu inputs",
                       what, s->from->name, shape, a->sw.experts, (unsigned long long)s->outs,
                       (unsigned long long)in);
    if (!fm_dtype_get(s->from->dtype)->is_float)
        return fm_fail(FM_EUNSUPPORTED, "%s: experts stacked in '%s' as %s are not supported", what,
                       s->from->name, fm_dtype_get(s->from->dtype)->name);
    return FM_OK;
}

static fm_status id_of(fm_digest *out, const part *s)
{
    uint8_t text[16 + FM_DIGEST_BYTES + 6 * 8] = "fmstore stack 2";
    uint8_t *at = text + 16 + FM_DIGEST_BYTES;
    memcpy(text + 16, s->from->id.b, FM_DIGEST_BYTES);
    fm_put_u64(at, s->expert);
    fm_put_u64(at + 8, s->first);
    fm_put_u64(at + 16, s->step);
    fm_put_u64(at + 24, s->turned);
    fm_put_u64(at + 32, s->rows);
    fm_put_u64(at + 40, s->cols);
    return fm_sha256(out, text, sizeof(text));
}

static fm_status put_part(fm_model_view *v, const fm_param *p, part *s)
{
    fm_digest id;
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = id_of(&id, s);
    FM_THEN(rc, fm_tensor_path(&path, "tensors", p->name));
    FM_THEN(rc, fm_tree_put_tensor(v->own, fm_buf_cstr(&path), p->name, s->from->dtype, &p->shape,
                                   &id));
    FM_THEN(rc, fm_map_put(v->by_id, id.b, sizeof(id.b), s, NULL));
    FM_THEN(rc, fm_map_put(v->used, s->from->path, strlen(s->from->path), s, NULL));
    fm_buf_release(&path);
    return rc;
}

/* Adds parameter p, where the tree has it in a stack. */
static fm_status add(fm_model_view *v, const fm_arch *a, const fm_param *p, const fmi_stack *k,
                     const char *what)
{
    const fm_tree *tree = fm_plain_tree(v->plain);
    char name[FM_MAX_NAME_BYTES];
    part *s = &v->list[v->count];
    uint32_t halves = k->share == FMI_STACK_ALL ? 1 : 2;
    bool second = k->share == FMI_STACK_ODD || k->share == FMI_STACK_BEHIND;
    bool turns = k->share == FMI_STACK_EVEN || k->share == FMI_STACK_ODD;
    (void)snprintf(name, sizeof(name), "%s%s%d.%s", a->prefix, fmi_family_of(a)->layers,
                   (int)p->layer, k->name);
    *s = (part){.expert = p->expert,
                .rows = p->shape.dim[0],
                .cols = p->is_matrix ? p->shape.dim[1] : 1,
                .outs = halves * p->shape.dim[0],
                .step = turns ? 2 : 1,
                .first = !second ? 0
                         : turns ? 1
                                 : (uint32_t)p->shape.dim[0],
                .turned = k->turned,
                .alone = k->alone};
    FM_TRY(find(&s->from, tree, name));
    if (!s->from)
        return FM_OK;
    s->turned = s->turned && fm_dtype_get(s->from->dtype)->block_elems == 1;
    FM_TRY(check_part(a, s, what));
    v->count++;
    return put_part(v, p, s);
}

static fm_status put_others(fm_model_view *v, const fm_tree *tree)
{
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (!fm_map_has(v->used, e->path, strlen(e->path)))
            FM_TRY(fm_tree_put_entry(v->own, e));
    }
    return FM_OK;
}

/* ==== reading ==== */

static const part *part_of(const fm_model_view *v, const fm_entry *e)
{
    return v->own && e->kind == FM_ENTRY_TENSOR ? fm_map_get(v->by_id, e->id.b, sizeof(e->id.b))
                                                : NULL;
}

/* The bytes of one expert in a stack, or of a tensor that has none. */
static fm_status expert_bytes(uint8_t **out, const fm_model_view *v, const part *s)
{
    const fm_entry *e = s->from;
    uint64_t bytes = e->bytes / (s->alone ? 1 : e->shape.dim[0]);
    *out = fm_aligned_alloc(64, (size_t)bytes);
    return *out ? fm_entry_read_range(v->behind, e, s->expert * bytes, bytes, *out, 0) : FM_ENOMEM;
}

/* Output r of a stack is part of each input's row (turned), or a row itself. */
static void make_part(uint8_t *dst, const part *s, const uint8_t *from)
{
    const fm_dtype_info *d = fm_dtype_get(s->from->dtype);
    const size_t size = d->block_bytes, cols = (size_t)s->cols / d->block_elems;
    for (size_t r = 0; r < s->rows; r++) {
        size_t out = s->first + r * s->step;
        uint8_t *to = dst + r * cols * size;
        for (size_t c = 0; s->turned && c < cols; c++)
            memcpy(to + c * size, from + (c * (size_t)s->outs + out) * size, size);
        if (!s->turned)
            memcpy(to, from + out * cols * size, cols * size);
    }
}

static fm_status read_part(const fm_model_view *v, const part *s, uint8_t *dst)
{
    uint8_t *from = NULL;
    fm_status rc = expert_bytes(&from, v, s);
    if (rc == FM_OK)
        make_part(dst, s, from);
    fm_free(from);
    return rc;
}

static fm_status view_read(void *ctx, const fm_entry *e, void *dst)
{
    const fm_model_view *v = ctx;
    const part *s = part_of(v, e);
    return s ? read_part(v, s, dst) : v->behind->read(v->behind->ctx, e, dst);
}

static fm_status view_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            void *dst, unsigned flags)
{
    const fm_model_view *v = ctx;
    const part *s = part_of(v, e);
    if (!s)
        return fm_entry_read_range(v->behind, e, offset, bytes, dst, flags);
    uint8_t *whole = fm_malloc((size_t)e->bytes);
    fm_status rc = whole ? read_part(v, s, whole) : FM_ENOMEM;
    if (rc == FM_OK)
        memcpy(dst, whole + offset, (size_t)bytes);
    fm_free(whole);
    return rc;
}

static fm_status view_view(void *ctx, const fm_entry *e, fm_span *out)
{
    const fm_model_view *v = ctx;
    *out = (fm_span){0};
    return part_of(v, e) || !v->behind->view ? FM_OK : v->behind->view(v->behind->ctx, e, out);
}

static fm_status view_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    const fm_model_view *v = ctx;
    *out = (fm_file_part){0};
    return part_of(v, e) || !v->behind->place ? FM_OK : v->behind->place(v->behind->ctx, e, out);
}

/* ==== life ==== */

/* Sets the view's own tree, where the family has stacks and the tree has one of them. */
static fm_status open_stacks(fm_model_view *v, const fm_arch *a, const char *what)
{
    const fmi_family *f = fmi_family_of(a);
    fm_param p;
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++)
        v->room += p.layer >= 0 && stack_of(f, p.place);
    v->list = fm_calloc(v->room + 1, sizeof(part));
    fm_status rc = v->list ? fm_map_new(&v->by_id) : FM_ENOMEM;
    FM_THEN(rc, fm_map_new(&v->used));
    FM_THEN(rc, fm_tree_new(&v->own));
    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(a, i, &p); i++) {
        const fmi_stack *k = p.layer >= 0 ? stack_of(f, p.place) : NULL;
        if (k)
            rc = add(v, a, &p, k, what);
    }
    FM_THEN(rc, put_others(v, fm_plain_tree(v->plain)));
    if (rc != FM_OK || v->count == 0)
        return rc;
    v->tree = v->own;
    v->p = (fm_provider){.ctx = v,
                         .read = view_read,
                         .view = v->behind->view ? view_view : NULL,
                         .range = view_range,
                         .place = v->behind->place ? view_place : NULL};
    return FM_OK;
}

fm_status fm_model_view_open(fm_model_view **out, const fm_tree *tree, const fm_provider *p,
                             const char *what, fm_plain_as as)
{
    fm_arch a;
    *out = NULL;
    fm_model_view *v = fm_calloc(1, sizeof(*v));
    fm_status rc = v ? fm_plain_open_as(&v->plain, tree, p, what, as) : FM_ENOMEM;
    if (rc == FM_OK) {
        v->tree = fm_plain_tree(v->plain);
        v->behind = fm_plain_provider(v->plain);
        v->p = *v->behind;
        rc = fm_arch_of_tree(&a, v->tree, v->behind, what);
    }
    if (rc == FM_OK && fmi_family_of(&a)->stacks)
        rc = open_stacks(v, &a, what);
    FM_THEN(rc, fm_adapted_open(&v->adapted, v->tree, &v->p, FM_ADAPTED_RUN, FM_DTYPE_NONE, what));
    if (rc != FM_OK) {
        fm_model_view_close(v);
        return rc;
    }
    *out = v;
    return FM_OK;
}

void fm_model_view_close(fm_model_view *v)
{
    if (!v)
        return;
    fm_adapted_close(v->adapted);
    fm_tree_free(v->own);
    fm_map_free(v->by_id);
    fm_map_free(v->used);
    fm_free(v->list);
    fm_plain_close(v->plain);
    fm_free(v);
}

const fm_tree *fm_model_view_tree(const fm_model_view *v)
{
    return fm_adapted_tree(v->adapted);
}

const fm_provider *fm_model_view_provider(const fm_model_view *v)
{
    return fm_adapted_provider(v->adapted);
}
