/* view_kit.h - trees to be exported, and digests of exports: as files, and as what a view reads. */
#ifndef FM_TESTS_FORMAT_VIEW_KIT_H
#define FM_TESTS_FORMAT_VIEW_KIT_H

#include "tests/format/fixtures.h"

#include "store/base/math/rng.h"
#include "store/export/export_impl.h"

/* A model and maybe an adapter on it, with a provider of both. */
typedef struct vk_world {
    fm_source *src, *adapter;
    fm_tree *own; /* NULL: src's */
    const fm_tree *tree;
    fm_provider from[2], p;
} vk_world;

static inline fm_status vk_read(void *ctx, const fm_entry *e, void *dst)
{
    const vk_world *w = ctx;
    fm_status rc = w->from[0].read(w->from[0].ctx, e, dst);
    return rc == FM_ENOTFOUND && w->adapter ? w->from[1].read(w->from[1].ctx, e, dst) : rc;
}

static inline fm_status vk_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                                 void *dst, unsigned flags)
{
    const vk_world *w = ctx;
    fm_status rc = w->from[0].range(w->from[0].ctx, e, offset, bytes, dst, flags);
    return rc == FM_ENOTFOUND && w->adapter
               ? w->from[1].range(w->from[1].ctx, e, offset, bytes, dst, flags)
               : rc;
}

/* w must not move. adapter: NULL for none. Frees the paths. */
static inline void vk_open(vk_world *w, char *model, char *adapter)
{
    memset(w, 0, sizeof *w);
    tk_ok(fm_source_open(&w->src, model));
    w->tree = fm_source_tree(w->src);
    w->from[0] = fm_source_provider(w->src);
    if (adapter) {
        tk_ok(fm_source_open(&w->adapter, adapter));
        w->from[1] = fm_source_provider(w->adapter);
        tk_ok(fm_adapter_apply(&w->own, w->tree, fm_source_tree(w->adapter), NULL, NULL));
        w->tree = w->own;
    }
    w->p = (fm_provider){.ctx = w, .read = vk_read, .range = vk_range};
    fm_free(model);
    fm_free(adapter);
}

static inline void vk_close(vk_world *w)
{
    fm_tree_free(w->own);
    fm_source_close(w->src);
    fm_source_close(w->adapter);
}

/* ---- cases ---- */

/* sha256: of the export, made by fmstore before there were views (commit 2420775e). */
typedef struct vk_case {
    const char *model;
    fm_export_format format;
    fm_dtype dtype;
    const char *sha256;
} vk_case;

/* The digest of an export is that of each file's "name bytes\n" and its bytes, in order of
 * names. */
static inline void vk_head(fm_hasher *h, const char *name, uint64_t bytes)
{
    char *line = fm_asprintf("%s %llu\n", name, (unsigned long long)bytes);
    tk_ok(fm_hasher_update(h, line, strlen(line)));
    fm_free(line);
}

static inline void vk_hash_file(fm_hasher *h, const char *path, const char *name)
{
    fm_file_map map;
    tk_ok(fm_map_file(&map, path));
    vk_head(h, name, map.len);
    tk_ok(fm_hasher_update(h, map.data, map.len));
    fm_unmap_file(&map);
}

static inline void vk_hash_folder(fm_hasher *h, const char *dir, const char *prefix)
{
    fm_names names;
    tk_ok(fm_list_dir(&names, dir));
    for (size_t i = 0; i < names.count; i++) {
        char *path = fm_path_join(dir, names.name[i]);
        char *name = fm_asprintf("%s%s", prefix, names.name[i]);
        char *below = fm_asprintf("%s/", name);
        if (fm_path_is_dir(path))
            vk_hash_folder(h, path, below);
        else
            vk_hash_file(h, path, name);
        fm_free(path);
        fm_free(name);
        fm_free(below);
    }
    fm_names_release(&names);
}

/* alone: the name of an export that is one file. */
static inline void vk_digest_of_files(char hex[FM_HEX_CHARS + 1], const char *dst,
                                      const char *alone)
{
    fm_hasher *h = NULL;
    fm_digest d;
    tk_ok(fm_hasher_new(&h));
    if (fm_path_is_dir(dst))
        vk_hash_folder(h, dst, "");
    else
        vk_hash_file(h, dst, alone);
    tk_ok(fm_hasher_final(h, &d));
    fm_digest_hex(&d, hex);
    fm_hasher_free(h);
}

/* ---- views ---- */

typedef struct vk_got {
    uint8_t *data;
    size_t len, max;
} vk_got;

static inline fm_status vk_take(void *ctx, const void *data, size_t len)
{
    vk_got *g = ctx;
    assert_true(len > 0 && len <= 4u << 20 && len <= g->max - g->len);
    memcpy(g->data + g->len, data, len);
    g->len += len;
    return FM_OK;
}

/* Bytes of a file of the view; fm_free. */
static inline uint8_t *vk_range_of(fm_view *v, size_t i, uint64_t offset, uint64_t bytes)
{
    vk_got g = {fm_malloc((size_t)bytes + 1), 0, (size_t)bytes};
    assert_non_null(g.data);
    tk_ok(fm_view_read(v, i, offset, bytes, vk_take, &g));
    assert_int_equal(g.len, bytes);
    return g.data;
}

static inline void vk_same_range(fm_view *v, size_t i, const uint8_t *whole, uint64_t offset,
                                 uint64_t bytes)
{
    uint8_t *got = vk_range_of(v, i, offset, bytes);
    if (memcmp(got, whole + offset, (size_t)bytes) != 0)
        fail_msg("%s: bytes %llu from %llu on differ", fm_view_at(v, i)->name,
                 (unsigned long long)bytes, (unsigned long long)offset);
    fm_free(got);
}

/* Ranges of all lengths, and the bytes on both sides of every segment's border (of `borders` at
 * most) against the whole file. */
static inline void vk_check_ranges(fm_view *v, size_t i, const uint8_t *whole, unsigned ranges,
                                   size_t borders)
{
    const uint64_t n = fm_view_at(v, i)->bytes;
    const size_t first = v->file[i].first, count = v->file[i].end - first;
    const size_t step = FM_MAX(count / borders, (size_t)1);
    for (unsigned k = 0; n > 0 && k < ranges; k++) { /* most are short, some reach to the end */
        const uint64_t at = fm_rng_u64(19, i, 2 * k) % n;
        const uint64_t len = n >> fm_rng_u64(19, i, 2 * k + 1) % 24;
        vk_same_range(v, i, whole, at, FM_MIN(len, n - at));
    }
    for (size_t k = 0; k < count; k += step) {
        const exp_segment *s = &v->segment[first + k];
        vk_same_range(v, i, whole, s->at, 1);
        vk_same_range(v, i, whole, s->at + s->bytes - 1, 1);
    }
}

/* Every file in one go, whose digest is the case's, and in ranges. */
static inline void vk_check_view(fm_view *v, const char *sha256, unsigned ranges, size_t borders)
{
    fm_hasher *h = NULL;
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];
    tk_ok(fm_hasher_new(&h));
    for (size_t i = 0; i < fm_view_count(v); i++) {
        const fm_view_file *f = fm_view_at(v, i);
        assert_int_equal(fm_view_find(v, f->name), i);
        uint8_t *whole = vk_range_of(v, i, 0, f->bytes);
        vk_head(h, f->name, f->bytes);
        tk_ok(fm_hasher_update(h, whole, (size_t)f->bytes));
        if (f->known) {
            tk_ok(fm_sha256(&d, whole, (size_t)f->bytes));
            assert_true(fm_digest_eq(&d, &f->sha256));
        }
        vk_check_ranges(v, i, whole, ranges, borders);
        fm_free(whole);
    }
    tk_ok(fm_hasher_final(h, &d));
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, sha256);
    fm_hasher_free(h);
}

/* The view of a case and what fm_export writes are, both, what was written before. */
static inline void vk_check(const vk_world *w, const vk_case *c, const char *root, unsigned ranges,
                            size_t borders)
{
    const fm_view_opts opts = {.format = c->format, .dtype = c->dtype};
    char *out = fm_path_join(root, "exported"), hex[FM_HEX_CHARS + 1];
    fm_view *v = NULL;
    print_message("%s, format %d, dtype %d\n", c->model, (int)c->format, (int)c->dtype);
    tk_ok(fm_view_open(&v, w->tree, &w->p, &opts));
    vk_check_view(v, c->sha256, ranges, borders);
    for (size_t i = 0; i < fm_view_count(v); i++)
        assert_true(fm_view_at(v, i)->known == (c->format == FM_EXPORT_SOURCE));
    tk_ok(fm_export(w->tree, &w->p, out, c->format, c->dtype));
    vk_digest_of_files(hex, out, fm_view_at(v, 0)->name);
    assert_string_equal(hex, c->sha256);
    tk_ok(fm_remove_tree(out));
    fm_view_close(v);
    fm_free(out);
}

#endif
