/* torch_legacy.c - see torch_legacy.h. */
#include "store/formats/torch_legacy.h"

#include <string.h>

#include "store/base/checked.h"

/* The pickles of 0x1950a86a20f9469cfc6c and of 1001, protocol 2 as torch writes them. */
static const uint8_t magic[] = {0x80, 2,    0x8a, 10,  0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a,
                                0xa8, 0x50, 0x19, '.', 0x80, 2,    'M',  0xe9, 3,    '.'};

bool fm_torch_is_legacy(fm_span file)
{
    return file.len > sizeof magic && memcmp(file.data, magic, sizeof magic) == 0;
}

static fm_status next_pickle(tp_value **out, fm_arena *arena, fm_span *left, const char *what,
                             const tp_storage **storages)
{
    size_t used = 0;
    FM_TRY(tp_load_next(out, arena, *left, what, &used, storages));

    left->data += used;
    left->len -= used;
    return FM_OK;
}

static fm_status check_system(const tp_value *info, const char *what)
{
    const tp_item *it = info->kind == TP_DICT ? info->u.list.first : NULL;

    for (; it; it = it->next)
        if (it->key->kind == TP_TEXT && fm_span_eq_str(it->key->u.text, "little_endian"))
            return it->value->kind == TP_BOOL && it->value->u.i
                       ? FM_OK
                       : fm_fail(FM_EUNSUPPORTED, "%s: field 'little_endian' is not True", what);
    return fm_fail(FM_ECORRUPT, "%s: field 'little_endian' is missing", what);
}

/* Fills `width`: an element's bytes by storage key; all storages of a key must have one type. */
static fm_status widths_of(fm_map *width, fm_arena *arena, const tp_storage *s, const char *what)
{
    for (; s; s = s->next) {
        const uint32_t bytes = s->dtype == FM_DTYPE_NONE ? 1 : fm_dtype_get(s->dtype)->block_bytes;
        const uint32_t *old = fm_map_get(width, s->key.data, s->key.len);
        uint32_t *v;
        if (old && *old != bytes)
            return fm_fail(FM_ECORRUPT, "%s: a storage of two types", what);
        if (old)
            continue;
        v = fm_arena_alloc(arena, sizeof *v);
        if (!v)
            return FM_ENOMEM;
        *v = bytes;
        FM_TRY(fm_map_put(width, s->key.data, s->key.len, v, NULL));
    }
    return FM_OK;
}

static fm_status add_place(fm_map *places, const fm_map *width, fm_arena *arena,
                           const tp_value *key, fm_span *left, const uint8_t *file,
                           const char *what)
{
    const uint32_t *elem = key->kind == TP_TEXT && key->u.text.len <= TP_MAX_KEY_BYTES
                               ? fm_map_get(width, key->u.text.data, key->u.text.len)
                               : NULL;
    fm_torch_place *p = fm_arena_alloc(arena, sizeof *p);
    void *old = NULL;

    if (!p)
        return FM_ENOMEM;
    if (!elem)
        return fm_fail(FM_ECORRUPT, "%s: the list of storages has a key that no tensor names",
                       what);
    if (left->len < 8 || fm_mul_overflow(&p->bytes, fm_get_u64(left->data), *elem) ||
        p->bytes > left->len - 8)
        return fm_fail(FM_ECORRUPT, "%s: a storage reaches past the end of the file", what);
    p->at = (uint64_t)(left->data - file) + 8;
    left->data += 8 + p->bytes;
    left->len -= 8 + (size_t)p->bytes;
    FM_TRY(fm_map_put(places, key->u.text.data, key->u.text.len, p, &old));
    if (old)
        return fm_fail(FM_ECORRUPT, "%s: the list of storages names one twice", what);
    return FM_OK;
}

static fm_status add_places(fm_map *places, const fm_map *width, fm_arena *arena,
                            const tp_value *keys, fm_span left, const uint8_t *file,
                            const char *what)
{
    if (keys->kind != TP_LIST)
        return fm_fail(FM_ECORRUPT, "%s: the keys of the storages are no list", what);
    for (const tp_item *it = keys->u.list.first; it; it = it->next)
        FM_TRY(add_place(places, width, arena, it->value, &left, file, what));
    if (left.len > 0)
        return fm_fail(FM_ECORRUPT, "%s: %zu bytes follow the last storage", what, left.len);
    return FM_OK;
}

fm_status fm_torch_legacy(tp_value **root, fm_map *places, fm_arena *arena, fm_span file,
                          const char *what)
{
    fm_span left = fm_span_of(file.data + sizeof magic, file.len - sizeof magic);
    tp_value *info = NULL, *keys = NULL;
    const tp_storage *storages = NULL;
    fm_map *width = NULL;
    fm_status rc = next_pickle(&info, arena, &left, what, NULL);

    *root = NULL;
    FM_THEN(rc, check_system(info, what));
    FM_THEN(rc, next_pickle(root, arena, &left, what, &storages));
    FM_THEN(rc, next_pickle(&keys, arena, &left, what, NULL));
    FM_THEN(rc, fm_map_new(&width));
    FM_THEN(rc, widths_of(width, arena, storages, what));
    FM_THEN(rc, add_places(places, width, arena, keys, left, file.data, what));
    fm_map_free(width);
    return rc;
}
