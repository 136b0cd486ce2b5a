/* mix.c - makes trees that no version has: a base with the changes of some steps, an adapter
 * without some of its ranks. Tensors that must be computed are in memory; a provider serves them
 * together with the store's. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "store/base/mem.h"

#define FOLDER "adapters/"

/* ---- computed tensors ---- */

static const fmo_blame_made *made_of(const fmo_blame_overlay *o, const fm_entry *e)
{
    for (size_t i = 0; i < o->count; i++)
        if (fm_digest_eq(&o->made[i].id, &e->id))
            return &o->made[i];
    return NULL;
}

static fm_status overlay_read(void *ctx, const fm_entry *e, void *dst)
{
    const fmo_blame_overlay *o = ctx;
    const fmo_blame_made *m = made_of(o, e);
    if (!m)
        return o->store.read(o->store.ctx, e, dst);
    fm_assert(m->bytes == e->bytes);
    memcpy(dst, m->data, m->bytes);
    return FM_OK;
}

static fm_status overlay_view(void *ctx, const fm_entry *e, fm_span *out)
{
    const fmo_blame_overlay *o = ctx;
    *out = (fm_span){NULL, 0};
    if (made_of(o, e) || !o->store.view)
        return FM_OK;
    return o->store.view(o->store.ctx, e, out);
}

static fm_status overlay_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                               void *dst, unsigned flags)
{
    const fmo_blame_overlay *o = ctx;
    const fmo_blame_made *m = made_of(o, e);
    if (!m)
        return fm_entry_read_range(&o->store, e, offset, bytes, dst, flags);
    fm_assert(offset <= m->bytes && bytes <= m->bytes - offset);
    memcpy(dst, m->data + offset, bytes);
    return FM_OK;
}

void fmo_blame_overlay_open(fmo_blame_overlay *o, const fmo_blame *b)
{
    *o = (fmo_blame_overlay){.store = fm_store_provider(fm_repo_store(b->c->repo))};
    o->provider =
        (fm_provider){.ctx = o, .read = overlay_read, .view = overlay_view, .range = overlay_range};
}

void fmo_blame_overlay_release(fmo_blame_overlay *o)
{
    for (size_t i = 0; i < o->count; i++)
        fm_free(o->made[i].data);
    fm_free(o->made);
    memset(o, 0, sizeof *o);
}

fm_status fmo_blame_overlay_put(fmo_blame_overlay *o, fm_tree *tree, const fm_entry *like,
                                float *value)
{
    uint64_t n;
    fmo_blame_made m = {.bytes = like->bytes};
    fm_status rc = fm_shape_elems(&n, &like->shape);
    if (rc == FM_OK && !(m.data = fm_malloc(m.bytes)))
        rc = FM_ENOMEM;
    FM_THEN(rc, fm_from_f32(m.data, like->dtype, value, n));
    FM_THEN(rc, fm_tensor_id(&m.id, like->dtype, &like->shape, (fm_span){m.data, m.bytes}, NULL));
    FM_THEN(rc, fm_grow(&o->made, &o->cap, o->count + 1, sizeof *o->made));
    if (rc == FM_OK) {
        o->made[o->count++] = m;
        m.data = NULL;
        rc = fm_tree_put_tensor(tree, like->path, like->name, like->dtype, &like->shape, &m.id);
    }
    fm_free(m.data);
    return rc;
}

bool fmo_blame_can_compute(const fm_entry *e)
{
    return e->kind == FM_ENTRY_TENSOR &&
           (e->dtype == FM_F32 || e->dtype == FM_F16 || e->dtype == FM_BF16);
}

fm_status fmo_blame_read_f32(const fm_provider *p, const fm_entry *e, float **out)
{
    uint64_t n;
    void *raw = NULL;
    *out = NULL;
    fm_status rc = fm_shape_elems(&n, &e->shape);
    if (rc == FM_OK && (!(raw = fm_malloc(e->bytes)) || !(*out = fm_calloc(n, sizeof **out))))
        rc = FM_ENOMEM;
    FM_THEN(rc, p->read(p->ctx, e, raw));
    FM_THEN(rc, fm_to_f32(*out, e->dtype, raw, n));
    fm_free(raw);
    if (rc < 0) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- adapters ---- */

/* Length of "adapters/12-lora/" in a path, 0 = not in such a folder. */
static size_t folder_of(const char *path)
{
    const char *slash = strncmp(path, FOLDER, sizeof FOLDER - 1) == 0
                            ? strchr(path + sizeof FOLDER - 1, '/')
                            : NULL;
    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* Copies the folder at src[begin ...] into dst under another number. */
static fm_status copy_folder(fm_tree *dst, const fm_tree *src, size_t begin, size_t end, unsigned n)
{
    for (size_t i = begin; i < end; i++) {
        char path[FM_MAX_PATH_BYTES];
        fm_entry e = *fm_tree_at(src, i);
        const char *kind = strchr(e.path + sizeof FOLDER - 1, '-');
        snprintf(path, sizeof path, FOLDER "%u%s", n, kind ? kind : "");
        e.path = path;
        FM_TRY(fm_tree_put_entry(dst, &e));
    }
    return FM_OK;
}

static unsigned adapters_of(const fm_tree *tree)
{
    for (unsigned n = 0;; n++) {
        char prefix[64];
        size_t begin, end;
        snprintf(prefix, sizeof prefix, FOLDER "%u-", n);
        fm_tree_range(tree, prefix, &begin, &end);
        if (begin == end)
            return n;
    }
}

fm_status fmo_blame_close_gaps(fm_tree *tree)
{
    unsigned next = 0;
    fm_status rc = FM_OK;
    for (unsigned n = 0; rc == FM_OK && n < 1000; n++) {
        char prefix[64], tensors[FM_MAX_PATH_BYTES];
        size_t begin, end, tb, te;
        snprintf(prefix, sizeof prefix, FOLDER "%u-", n);
        fm_tree_range(tree, prefix, &begin, &end);
        if (begin == end)
            continue;
        const char *path = fm_tree_at(tree, begin)->path;
        snprintf(tensors, sizeof tensors, "%.*stensors/", (int)folder_of(path), path);
        fm_tree_range(tree, tensors, &tb, &te);
        if (tb != te && next++ == n)
            continue;
        /* An adapter without a tensor goes with its config; a later one takes its number. */
        fm_tree *was = NULL;
        rc = fm_tree_copy(&was, tree);
        FM_THEN(rc, fmo_tree_drop(tree, prefix));
        if (rc == FM_OK && tb != te)
            rc = copy_folder(tree, was, begin, end, next - 1);
        fm_tree_free(was);
    }
    return rc;
}

/* ---- a tensor with the changes of some steps is x + (b1 - a1) + (b2 - a2) + ... ---- */

typedef struct mixing {
    fmo_blame *b;
    fmo_blame_overlay *overlay;
    fm_tree *tree;
    const fm_tree *own, *before; /* of the current step */
    fm_change *change;           /* of all steps; entries live in b->tree */
    size_t changes, change_cap;
    bool impossible;
} mixing;

static fm_status keep_step_change(void *ctx, const fm_change *ch)
{
    mixing *m = ctx;
    FM_TRY(fm_grow(&m->change, &m->change_cap, m->changes + 1, sizeof *m->change));
    m->change[m->changes++] = *ch;
    return FM_OK;
}

/* Whether the step added this adapter; else it changed it in place, or removed it. */
static bool folder_is_new(const mixing *m, const char *path)
{
    char prefix[FM_MAX_PATH_BYTES];
    size_t begin, end;
    snprintf(prefix, sizeof prefix, "%.*s", (int)folder_of(path), path);
    fm_tree_range(m->before, prefix, &begin, &end);
    return begin == end;
}

static fm_status add_folder(mixing *m, const char *path)
{
    char prefix[FM_MAX_PATH_BYTES];
    size_t begin, end;
    snprintf(prefix, sizeof prefix, "%.*s", (int)folder_of(path), path);
    fm_tree_range(m->own, prefix, &begin, &end);
    return copy_folder(m->tree, m->own, begin, end, adapters_of(m->tree));
}

static bool of_the_model(const char *path)
{
    return strncmp(path, "tokenizer/", 10) == 0 || strcmp(path, "model.json") == 0 ||
           strncmp(path, "tensors/", 8) == 0;
}

/* Takes over the changes of a step, except those of tensors, which are added up later. */
static fm_status take_step(mixing *m, size_t node)
{
    char last[FM_MAX_PATH_BYTES] = "";
    size_t first = m->changes;
    FM_TRY(fmo_blame_node_tree(m->b, node, &m->own));
    FM_TRY(fmo_blame_node_tree(m->b, m->b->version[node].node.parent[0], &m->before));
    FM_TRY(fm_diff_trees(m->before, m->own, keep_step_change, m));
    for (size_t i = first; i < m->changes; i++) {
        const fm_change *ch = &m->change[i];
        const char *path = (ch->b ? ch->b : ch->a)->path;
        size_t folder = folder_of(path);
        if (folder && (!ch->b || ch->a || !folder_is_new(m, path))) {
            m->impossible = true;
        } else if (folder) {
            if (strncmp(last, path, folder) != 0)
                FM_TRY(add_folder(m, path));
            snprintf(last, sizeof last, "%s", path);
        } else if (of_the_model(path) && !(ch->a && ch->b && ch->a->kind == FM_ENTRY_TENSOR)) {
            bool there = fm_tree_find(m->tree, path);
            FM_TRY(ch->b   ? fm_tree_put_entry(m->tree, ch->b)
                   : there ? fm_tree_remove(m->tree, path)
                           : FM_OK);
        }
    }
    return FM_OK;
}

static fm_status add_difference(const fm_provider *p, const fm_change *ch, float *x, uint64_t n)
{
    float *a = NULL, *b = NULL;
    fm_status rc = fmo_blame_read_f32(p, ch->a, &a);
    FM_THEN(rc, fmo_blame_read_f32(p, ch->b, &b));
    for (uint64_t i = 0; rc == FM_OK && i < n; i++)
        x[i] += b[i] - a[i];
    fm_free(a);
    fm_free(b);
    return rc;
}

/* Adds up all changes of one path, from -> to, oldest first. If each begins with the tensor with
 * which the one before it ends, the sum is the last tensor, to the bit. */
static fm_status put_sum(mixing *m, const fm_change *const *ch, size_t count)
{
    const fm_entry *base = fm_tree_find(m->tree, ch[0]->a->path);
    const fm_digest *at = base ? &base->id : NULL;
    bool chained = base != NULL, fit = base && fmo_blame_can_compute(base);
    float *x = NULL;
    uint64_t n;
    for (size_t i = 0; base && i < count; i++) {
        chained = chained && fm_digest_eq(at, &ch[i]->a->id);
        at = &ch[i]->b->id;
        fit = fit && fmo_blame_can_compute(ch[i]->a) && fmo_blame_can_compute(ch[i]->b) &&
              fm_shape_eq(&base->shape, &ch[i]->a->shape) &&
              fm_shape_eq(&base->shape, &ch[i]->b->shape);
    }
    if (chained)
        return fm_tree_put_entry(m->tree, ch[count - 1]->b);
    if (!fit) {
        m->impossible = true;
        return FM_OK;
    }
    const fm_entry *like = ch[count - 1]->b;
    fm_status rc = fm_shape_elems(&n, &base->shape);
    FM_THEN(rc, fmo_blame_read_f32(&m->overlay->store, base, &x));
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = add_difference(&m->overlay->store, ch[i], x, n);
    FM_THEN(rc, fmo_blame_overlay_put(m->overlay, m->tree, like, x));
    fm_free(x);
    return rc;
}

static int by_path(const void *x, const void *y)
{
    const fm_change *const *a = x, *const *b = y;
    int order = strcmp((*a)->b->path, (*b)->b->path);
    return order ? order : *a < *b ? -1 : *a > *b; /* one path: oldest first */
}

static fm_status put_sums(mixing *m)
{
    const fm_change **ch = fm_calloc(m->changes, sizeof *ch);
    size_t n = 0;
    if (!ch)
        return FM_ENOMEM;
    for (size_t i = 0; i < m->changes; i++) {
        const fm_change *c = &m->change[i];
        if (c->a && c->b && c->a->kind == FM_ENTRY_TENSOR && !folder_of(c->b->path))
            ch[n++] = c;
    }
    qsort(ch, n, sizeof *ch, by_path);
    fm_status rc = FM_OK;
    for (size_t i = 0, some; rc == FM_OK && i < n && !m->impossible; i += some) {
        for (some = 1; i + some < n && strcmp(ch[i]->b->path, ch[i + some]->b->path) == 0;)
            some++;
        rc = put_sum(m, ch + i, some);
    }
    fm_free(ch);
    return rc;
}

fm_status fmo_blame_mix_steps(fmo_blame *b, const size_t *step, size_t n,
                              fmo_blame_overlay *overlay, fm_tree **out)
{
    mixing m = {.b = b, .overlay = overlay};
    const fm_tree *tree = NULL;
    size_t base = step[0];
    while (b->version[base].node.parent_count)
        base = b->version[base].node.parent[0];
    *out = NULL;
    fm_status rc = fmo_blame_node_tree(b, base, &tree);
    FM_THEN(rc, fm_tree_copy(&m.tree, tree));
    for (size_t i = n; rc == FM_OK && i-- > 0 && !m.impossible;)
        rc = take_step(&m, step[i]);
    if (rc == FM_OK && !m.impossible)
        rc = put_sums(&m);
    fm_free(m.change);
    if (rc < 0 || m.impossible) {
        fm_tree_free(m.tree);
        m.tree = NULL;
    }
    *out = m.tree;
    return rc;
}
