/* torch.c - see torch.h. */
#include "store/formats/torch.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/buf.h"
#include "store/base/cancel.h"
#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/formats/torch_legacy.h"
#include "store/formats/torch_zip.h"

#define MAX_DEPTH 16u
#define MAX_VISITS (2u * TP_MAX_VALUES) /* visits of values: a shared list has many */
#define WORK_TIMES 64u                  /* work limit: so many times the file's bytes */
#define WORK_MORE ((uint64_t)1 << 20)   /* plus this */

struct fm_torch {
    fm_arena *arena;
    const char *what;
    fm_zip *zip;    /* NULL: the older layout */
    fm_map *places; /* places of the older layout's storages */
    fm_torch_tensor *tensor;
    size_t count, cap;
    fm_map *by_name;
};

typedef struct step {
    const tp_value *key; /* NULL: an item of a list */
    size_t index;
} step;

typedef struct walk {
    fm_torch *t;
    step way[MAX_DEPTH + 1]; /* from the root to the current value */
    uint32_t steps;
    size_t visits;
    uint64_t work, max_work; /* visits plus bytes of names */
    fm_buf name;             /* made of `way` by name_it */
} walk;

bool fm_torch_is_zip(const uint8_t head[4])
{
    return memcmp(head, "PK\3\4", 4) == 0;
}

void fm_torch_close(fm_torch *t)
{
    if (!t)
        return;
    fm_zip_close(t->zip);
    fm_map_free(t->places);
    fm_map_free(t->by_name);
    fm_free(t->tensor);
    fm_arena_free(t->arena);
    fm_free(t);
}

size_t fm_torch_count(const fm_torch *t)
{
    return t->count;
}

const fm_torch_tensor *fm_torch_at(const fm_torch *t, size_t i)
{
    fm_assert(i < t->count);
    return &t->tensor[i];
}

const fm_torch_tensor *fm_torch_find(const fm_torch *t, const char *name)
{
    return fm_map_get(t->by_name, name, strlen(name));
}

/* ---- names and work ---- */

/* Makes the current value's name. A key may be long and used very often, so names are made only
 * when needed, and a key is copied only until the name is too long. */
static const char *name_it(walk *w)
{
    fm_buf_clear(&w->name);
    for (uint32_t i = 0; i < w->steps; i++) {
        const tp_value *key = w->way[i].key;
        if (w->name.len > 0)
            fm_buf_char(&w->name, '.');
        if (!key)
            fm_buf_printf(&w->name, "%zu", w->way[i].index);
        else if (key->kind == TP_INT)
            fm_buf_printf(&w->name, "%" PRId64, key->u.i);
        else
            fm_buf_append(&w->name, key->u.text.data,
                          FM_MIN(key->u.text.len, (size_t)FM_MAX_NAME_BYTES + 1));
    }
    return fm_buf_cstr(&w->name);
}

static fm_status spend(walk *w, uint64_t work)
{
    w->work += work;
    if (w->work > w->max_work)
        return fm_fail(FM_ELIMIT,
                       "%s: pickle: its lists and dictionaries share one another and so stand for "
                       "more than %u times the file's bytes",
                       w->t->what, WORK_TIMES);
    return fm_go_on();
}

static fm_status visit(walk *w)
{
    if (++w->visits > MAX_VISITS)
        return fm_fail(FM_ELIMIT, "%s: pickle: lists within lists stand for more than %u items",
                       w->t->what, MAX_VISITS);
    return spend(w, 1);
}

/* ---- one tensor ---- */

static fm_status bad(walk *w, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: tensor '%s': %s", w->t->what, name_it(w), why);
}

static bool place_of(const fm_torch *t, fm_span key, fm_torch_place *out)
{
    char name[TP_MAX_KEY_BYTES + 8] = "data/";
    const fm_zip_entry *e;

    if (!t->zip) {
        const fm_torch_place *p = fm_map_get(t->places, key.data, key.len);
        if (p)
            *out = *p;
        return p != NULL;
    }
    memcpy(name + 5, key.data, key.len);
    e = fm_zip_find(t->zip, name);
    if (e)
        *out = (fm_torch_place){e->at, e->bytes};
    return e != NULL;
}

static fm_status find_storage(walk *w, const tp_storage *s, fm_torch_place *out)
{
    const uint64_t elem = s->dtype == FM_DTYPE_NONE ? 1 : fm_dtype_get(s->dtype)->block_bytes;
    uint64_t bytes;

    if (memchr(s->key.data, '/', s->key.len) || memchr(s->key.data, '\0', s->key.len))
        return bad(w, "its storage's key is no short name");
    if (!place_of(w->t, s->key, out))
        return bad(w, "the file lacks its storage");
    if (fm_mul_overflow(&bytes, s->elems, elem) || bytes != out->bytes)
        return bad(w, "its storage has another size than the pickle says");
    return FM_OK;
}

/* *out: the number of elements from the first to the last that the strides reach. */
static bool reach(const tp_tensor *p, uint64_t *out)
{
    uint64_t last = 0;

    *out = 0;
    for (uint32_t i = 0; i < p->shape.rank; i++) {
        uint64_t way;
        if (p->shape.dim[i] == 0)
            return true;
        if (fm_mul_overflow(&way, p->shape.dim[i] - 1, p->stride[i]) ||
            fm_add_overflow(&last, last, way))
            return false;
    }
    return !fm_add_overflow(out, last, 1);
}

static bool is_row_major(const fm_shape *shape, const uint64_t *stride)
{
    uint64_t want = 1;

    for (uint32_t i = shape->rank; i-- > 0;) {
        if (shape->dim[i] == 0)
            return true;
        if (shape->dim[i] > 1 && stride[i] != want)
            return false;
        want *= shape->dim[i];
    }
    return true;
}

static fm_status add_tensor(walk *w, const tp_tensor *p)
{
    fm_torch *t = w->t;
    fm_torch_tensor out = {.dtype = p->dtype, .shape = p->shape};
    const uint64_t elem = fm_dtype_get(p->dtype)->block_bytes;
    fm_torch_place e = {0, 0};
    uint64_t span = 0, end = 0, elems = 0;

    if (t->count == FM_MAX_TENSORS)
        return fm_fail(FM_ELIMIT, "%s: more than %u tensors", t->what, FM_MAX_TENSORS);
    name_it(w);
    FM_TRY(fm_buf_ok(&w->name));
    if (w->name.len == 0)
        return fm_fail(FM_ELIMIT, "%s: a tensor has an empty name", t->what);
    if (w->name.len > FM_MAX_NAME_BYTES)
        return fm_fail(FM_ELIMIT, "%s: tensor '%.200s...': a name of more than %u bytes", t->what,
                       fm_buf_cstr(&w->name), FM_MAX_NAME_BYTES);
    FM_TRY(spend(w, w->name.len));
    FM_TRY(find_storage(w, p->storage, &e));
    FM_TRY(fm_tensor_bytes(&out.bytes, p->dtype, &p->shape, fm_buf_cstr(&w->name)));
    FM_TRY(fm_shape_elems(&elems, &p->shape));
    if (!reach(p, &span) || (span > 0 && fm_add_overflow(&end, p->offset, span)) ||
        fm_mul_overflow(&end, end, elem) || (elems > 0 && end > e.bytes))
        return bad(w, "its elements lie outside of its storage");
    out.at = elems > 0 ? e.at + p->offset * elem : e.at;
    out.contiguous = is_row_major(&p->shape, p->stride);
    memcpy(out.stride, p->stride, sizeof out.stride);
    out.name = fm_arena_strndup(t->arena, fm_buf_cstr(&w->name), w->name.len);
    FM_TRY(out.name ? fm_grow(&t->tensor, &t->cap, t->count + 1, sizeof out) : FM_ENOMEM);
    t->tensor[t->count++] = out;
    return FM_OK;
}

/* ---- the values that hold tensors ---- */

static bool holds_tensors(const tp_value *v)
{
    return v->kind == TP_TENSOR || v->kind == TP_DICT || v->kind == TP_LIST || v->kind == TP_TUPLE;
}

static fm_status walk_value(walk *w, const tp_value *v);

static fm_status walk_item(walk *w, const tp_value *key, size_t index, const tp_value *v)
{
    fm_status rc = visit(w);

    if (rc < 0 || !holds_tensors(v))
        return rc;
    if (key && key->kind != TP_INT && !(key->kind == TP_TEXT && key->utf8))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: pickle: below '%.200s' a key is neither UTF-8 text nor an integer",
                       w->t->what, name_it(w));
    w->way[w->steps++] = (step){key, index};
    rc = walk_value(w, v);
    if (rc == FM_OK)
        w->steps--;
    return rc;
}

static fm_status walk_value(walk *w, const tp_value *v)
{
    size_t index = 0;

    if (v->kind == TP_TENSOR)
        return add_tensor(w, v->u.tensor);
    if (w->steps > MAX_DEPTH)
        return fm_fail(FM_ELIMIT, "%s: pickle: '%.200s...' is nested deeper than %u", w->t->what,
                       name_it(w), MAX_DEPTH);
    for (const tp_item *it = v->u.list.first; it; it = it->next)
        FM_TRY(walk_item(w, it->key, index++, it->value));
    return FM_OK;
}

static fm_status holds_tensor_itself(walk *w, const tp_value *dict, bool *out)
{
    *out = false;
    for (const tp_item *it = dict->u.list.first; !*out && it; it = it->next) {
        *out = it->value->kind == TP_TENSOR;
        FM_TRY(visit(w));
    }
    return FM_OK;
}

/* Finds the model's dictionary inside a training checkpoint; *out NULL: there is none. */
static fm_status model_in(walk *w, const tp_value *root, const tp_item **out)
{
    static const char *const name[] = {"state_dict", "model_state_dict", "model"};
    bool plain = false, found = false;
    fm_status rc = holds_tensor_itself(w, root, &plain);

    *out = NULL;
    for (size_t i = 0; rc == FM_OK && !plain && i < FM_ARRAY_LEN(name); i++)
        for (const tp_item *it = root->u.list.first; rc == FM_OK && it; it = it->next) {
            if (it->key->kind != TP_TEXT || !fm_span_eq_str(it->key->u.text, name[i]) ||
                it->value->kind != TP_DICT)
                continue;
            rc = holds_tensor_itself(w, it->value, &found);
            if (found) {
                *out = it;
                return rc;
            }
        }
    return rc;
}

static fm_status collect(fm_torch *t, const tp_value *root, size_t file_bytes)
{
    walk w = {.t = t};
    const tp_item *model = NULL;
    fm_status rc;

    if (root->kind != TP_DICT)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: holds no dictionary of tensors; save model.state_dict()", t->what);
    w.max_work = WORK_TIMES * (uint64_t)FM_MIN(file_bytes, TP_MAX_PICKLE_BYTES) + WORK_MORE;
    fm_buf_init(&w.name, 0);
    rc = model_in(&w, root, &model);
    if (rc == FM_OK && model)
        rc = walk_value(&w, model->value);
    for (const tp_item *it = root->u.list.first; rc == FM_OK && it; it = it->next)
        if (it != model)
            rc = walk_item(&w, it->key, 0, it->value);
    fm_buf_release(&w.name);
    if (rc == FM_OK && t->count == 0)
        rc = fm_fail(FM_EUNSUPPORTED, "%s: its dictionary holds no tensor", t->what);
    return rc;
}

/* Called when all tensors are in the list, since it moves while it grows. */
static fm_status index_names(fm_torch *t)
{
    FM_TRY(fm_map_new(&t->by_name));

    for (size_t i = 0; i < t->count; i++) {
        fm_torch_tensor *p = &t->tensor[i];
        void *old = NULL;
        FM_TRY(fm_map_put(t->by_name, p->name, strlen(p->name), p, &old));
        if (old)
            return fm_fail(FM_ECORRUPT, "%s: tensor '%s' is there twice", t->what, p->name);
    }
    return FM_OK;
}

/* ---- the archive ---- */

static fm_status check_archive(const fm_torch *t, fm_span *pkl)
{
    const fm_zip_entry *e = fm_zip_find(t->zip, "data.pkl");
    const fm_zip_entry *order = fm_zip_find(t->zip, "byteorder");

    if (fm_zip_find(t->zip, "constants.pkl"))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a TorchScript program, not weights; save model.state_dict()", t->what);
    if (!e)
        return fm_fail(FM_ECORRUPT, "%s: a zip archive without data.pkl, no file of torch.save",
                       t->what);
    if (order && !fm_span_eq_str(fm_zip_bytes(t->zip, order), "little"))
        return fm_fail(FM_EUNSUPPORTED, "%s: its entry 'byteorder' is not 'little'", t->what);
    *pkl = fm_zip_bytes(t->zip, e);
    return FM_OK;
}

static fm_status read_zip(fm_torch *t, tp_value **root, fm_arena *values, fm_span file)
{
    fm_span pkl = {NULL, 0};
    FM_TRY(fm_zip_parse(&t->zip, file, t->what));

    FM_TRY(check_archive(t, &pkl));
    return tp_load(root, values, pkl, t->what);
}

static fm_status read_legacy(fm_torch *t, tp_value **root, fm_arena *values, fm_span file)
{
    FM_TRY(fm_map_new(&t->places));

    return fm_torch_legacy(root, t->places, values, file, t->what);
}

fm_status fm_torch_parse(fm_torch **out, fm_span file, const char *what)
{
    fm_torch *t = fm_calloc(1, sizeof *t);
    fm_arena *values = NULL;
    tp_value *root = NULL;
    fm_status rc = t ? fm_arena_new(&t->arena) : FM_ENOMEM;

    *out = NULL;
    if (rc < 0)
        goto fail;
    t->what = fm_arena_strndup(t->arena, what, strlen(what));
    rc = t->what ? fm_arena_new(&values) : FM_ENOMEM;
    FM_THEN(rc, fm_torch_is_legacy(file) ? read_legacy(t, &root, values, file)
                                         : read_zip(t, &root, values, file));
    FM_THEN(rc, collect(t, root, file.len));
    FM_THEN(rc, index_names(t));
    if (rc < 0)
        goto fail;
    fm_map_free(t->places); /* the arena that holds its values is freed here */
    t->places = NULL;
    fm_arena_free(values);
    *out = t;
    return FM_OK;
fail:
    fm_torch_close(t);
    fm_arena_free(values);
    return rc;
}

/* ---- bytes ---- */

/* The address of element `index`, which has a number for each dimension. */
static const uint8_t *element_at(const fm_torch_tensor *t, const uint8_t *file,
                                 const uint64_t *index)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < t->shape.rank; i++)
        at += index[i] * t->stride[i];
    return file + t->at + at * fm_dtype_get(t->dtype)->block_bytes;
}

void fm_torch_gather(const fm_torch_tensor *t, const uint8_t *file, uint64_t from, void *dst,
                     uint64_t bytes)
{
    const uint64_t elem = fm_dtype_get(t->dtype)->block_bytes;
    uint64_t index[FM_MAX_RANK] = {0}, left = from / elem, skip = from % elem;
    uint8_t *to = dst;

    fm_assert(bytes <= t->bytes && from <= t->bytes - bytes);
    if (bytes == 0)
        return;
    if (t->contiguous) {
        memcpy(to, file + t->at + from, (size_t)bytes);
        return;
    }
    for (uint32_t i = t->shape.rank; i-- > 0; left /= t->shape.dim[i])
        index[i] = left % t->shape.dim[i];
    while (bytes > 0) {
        const uint64_t n = FM_MIN(elem - skip, bytes);
        memcpy(to, element_at(t, file, index) + skip, (size_t)n);
        to += n;
        bytes -= n;
        skip = 0;
        for (uint32_t i = t->shape.rank; i-- > 0;) {
            if (++index[i] < t->shape.dim[i])
                break;
            index[i] = 0;
        }
    }
}
