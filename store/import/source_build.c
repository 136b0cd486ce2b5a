/* source_build.c - from mapped files and named tensors to a tree, ids and source.json. */
#include "store/import/source_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/checked.h"
#include "store/base/text/utf8.h"

const char *src_strdup(fm_source *src, const char *s)
{
    return fm_arena_strndup(src->arena, s, strlen(s));
}

fm_status src_add_file(src_file **out, fm_source *src, const char *dir, const char *name)
{
    char *path = dir ? fm_path_join(dir, name) : fm_strdup(src->path);
    src_file *f = fm_arena_alloc(src->arena, sizeof *f);
    fm_status rc = path && f ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && dir)
        rc = src_check_link(src, dir, name);
    if (rc == FM_OK && src->file_count == FM_SOURCE_MAX_FILES)
        rc = fm_fail(FM_ELIMIT, "%s: more than %u files", src->path, FM_SOURCE_MAX_FILES);
    FM_THEN(rc, fm_grow(&src->file, &src->file_cap, src->file_count + 1, sizeof(src_file *)));
    if (rc == FM_OK) {
        f->name = src_strdup(src, name);
        rc = f->name ? fm_map_file(&f->map, path) : FM_ENOMEM;
    }
    FM_THEN(rc, fm_map_put(src->file_by_name, name, strlen(name), f, NULL));
    if (rc < 0 && f)
        fm_unmap_file(&f->map);
    if (rc == FM_OK) {
        f->first_tensor = f->end_tensor = src->tensor_count;
        fm_buf_init(&f->literal, FM_SOURCE_MAX_LITERAL_BYTES);
        src->file[src->file_count++] = f;
        *out = f;
    }
    fm_free(path);
    return rc;
}

src_piece *src_new_piece(fm_source *src, fm_span bytes)
{
    src_piece *piece = fm_arena_alloc(src->arena, sizeof *piece);

    if (!piece)
        return NULL;
    piece->data = bytes.data;
    piece->bytes = bytes.len;
    piece->leaf = fm_arena_alloc(src->arena, (bytes.len / FM_LEAF_BYTES + 1) * sizeof *piece->leaf);
    return piece->leaf ? piece : NULL;
}

static fm_status add_part(src_file *f, const src_part *part)
{
    FM_TRY(fm_grow(&f->part, &f->part_cap, f->part_count + 1, sizeof *f->part));

    f->part[f->part_count++] = *part;
    return FM_OK;
}

/* An entry's path below the source's root, as source.json has it. */
static const char *below_root(const fm_source *src, const char *path)
{
    size_t n = strlen(src->root);

    return n == 0 ? path : path + n + 1;
}

fm_status src_queue_tensor(fm_source *src, const char *prefix, src_tensor *t)
{
    fm_buf path;
    fm_status rc;

    fm_buf_init(&path, 0);
    rc = fm_tensor_path(&path, prefix, t->name);
    FM_THEN(rc, fm_grow(&src->tensor, &src->tensor_cap, src->tensor_count + 1, sizeof *t));
    if (rc == FM_OK) {
        t->path = src_strdup(src, fm_buf_cstr(&path));
        t->name = src_strdup(src, t->name);
        rc = t->path && t->name ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&path);
    if (rc == FM_OK) {
        src->tensor[src->tensor_count++] = *t;
        src->file[src->file_count - 1]->end_tensor = src->tensor_count;
    }
    return rc;
}

fm_status src_add_entry_part(fm_source *src, src_file *f, const char *path, uint64_t bytes)
{
    src_part part = {below_root(src, path), true, false, 0, bytes, {0, 0}};

    return add_part(f, &part);
}

fm_status src_add_blob(fm_source *src, src_file *f, const char *path, fm_span bytes)
{
    src_part part = {src_strdup(src, path), false, true, 0, bytes.len, {0, 0}};
    FM_TRY(part.path ? src_put_bytes(src, path, bytes) : FM_ENOMEM);

    return add_part(f, &part);
}

fm_status src_add_tensor(fm_source *src, src_file *f, const char *prefix, const char *name,
                         fm_dtype dtype, const fm_shape *shape, fm_span bytes, src_order order)
{
    src_piece *piece = src_new_piece(src, bytes);
    src_tensor t = {NULL, name, dtype, *shape, piece, {{0}}};
    src_part part = {NULL, true, false, 0, bytes.len, order};

    if (!piece)
        return FM_ENOMEM;
    piece->rows = shape->rank > 0 ? shape->dim[0] : 1;
    piece->order = order;
    FM_TRY(src_queue_tensor(src, prefix, &t));
    part.path = below_root(src, t.path);
    return add_part(f, &part);
}

fm_status src_add_literal(fm_source *src, src_file *f, fm_span bytes)
{
    src_part part = {NULL, false, false, f->literal.len, bytes.len, {0, 0}};
    src_part *last = f->part_count > 0 ? &f->part[f->part_count - 1] : NULL;
    fm_buf path;

    if (bytes.len == 0)
        return FM_OK;
    fm_buf_append(&f->literal, bytes.data, bytes.len);
    if (fm_buf_ok(&f->literal) < 0)
        return fm_error_prefix(fm_buf_ok(&f->literal), "%s: bytes outside of tensors", f->name);
    if (last && !last->is_entry && !last->whole) {
        last->bytes += bytes.len;
        return FM_OK;
    }
    fm_buf_init(&path, 0);
    fm_buf_str(&path, "source/literal/");
    fm_path_part(&path, f->name, strlen(f->name));
    part.path = fm_buf_ok(&path) == FM_OK ? src_strdup(src, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    return part.path ? add_part(f, &part) : FM_ENOMEM;
}

fm_status src_add_segment(fm_source *src, src_file *f, uint64_t from, uint64_t to)
{
    fm_span bytes = fm_span_of(f->map.data + from, (size_t)(to - from));
    fm_buf path;
    fm_status rc;

    if (bytes.len <= FM_INLINE_MAX_BYTES)
        return src_add_literal(src, f, bytes);
    fm_buf_init(&path, 0);
    fm_buf_str(&path, "source/bytes/");
    fm_path_part(&path, f->name, strlen(f->name));
    fm_buf_printf(&path, "/%" PRIu64, from);
    rc = fm_buf_ok(&path);
    FM_THEN(rc, src_add_blob(src, f, fm_buf_cstr(&path), bytes));
    fm_buf_release(&path);
    return rc;
}

fm_status src_put_bytes(fm_source *src, const char *path, fm_span bytes)
{
    fm_digest id;
    src_piece *piece;
    fm_status rc =
        bytes.len <= FM_INLINE_MAX_BYTES ? fm_tree_put_file(src->tree, path, bytes) : FM_ELIMIT;

    if (rc != FM_ELIMIT)
        return rc;
    piece = src_new_piece(src, bytes);
    if (!piece)
        return FM_ENOMEM;
    rc = fm_blob_id(&id, bytes, piece->leaf);
    FM_THEN(rc, fm_map_put(src->by_id, id.b, FM_DIGEST_BYTES, piece, NULL));
    FM_THEN(rc, fm_tree_put_blob(src->tree, path, &id, bytes.len));
    return rc;
}

fm_status src_put_copy(fm_source *src, const char *path, fm_span bytes)
{
    uint8_t *copy = fm_arena_alloc(src->arena, bytes.len + 1);

    if (!copy)
        return FM_ENOMEM;
    if (bytes.len > 0)
        memcpy(copy, bytes.data, bytes.len);
    return src_put_bytes(src, path, fm_span_of(copy, bytes.len));
}

fm_status src_put_json(fm_source *src, const char *path, const fm_json *v, fm_json_style style)
{
    fm_buf text;
    fm_status rc;

    fm_buf_init(&text, 0);
    rc = fm_json_write(&text, v, style);
    fm_buf_char(&text, '\n');
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, src_put_copy(src, path, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

const char *src_extra_path(fm_source *src, const char *name)
{
    const char *path = NULL;
    fm_buf b;

    fm_buf_init(&b, 0);
    fm_buf_str(&b, "source/files");
    for (;;) {
        size_t n = strcspn(name, "/");
        fm_buf_char(&b, '/');
        fm_path_part(&b, name, n);
        if (name[n] == '\0')
            break;
        name += n + 1;
    }
    if (fm_buf_ok(&b) == FM_OK)
        path = src_strdup(src, fm_buf_cstr(&b));
    fm_buf_release(&b);
    return path;
}

fm_status src_whole_file(fm_source *src, src_file *f, const char *path, bool is_entry)
{
    src_part part = {NULL, is_entry, true, 0, f->map.len, {0, 0}};
    FM_TRY(src_put_bytes(src, path, fm_span_of(f->map.data, f->map.len)));
    part.path = src_strdup(src, is_entry ? below_root(src, path) : path);
    return part.path ? add_part(f, &part) : FM_ENOMEM;
}

fm_status src_add_safetensors(fm_source *src, const char *dir, const char *name, const char *prefix)
{
    src_file *f = NULL;
    FM_TRY(src_add_file(&f, src, dir, name));
    FM_TRY(fm_st_parse(&f->st, fm_span_of(f->map.data, f->map.len), dir ? name : src->path));
    FM_TRY(src_add_literal(src, f, fm_span_of(f->map.data, (size_t)fm_st_body(f->st))));
    for (size_t i = 0; i < fm_st_count(f->st); i++) {
        const fm_st_tensor *t = fm_st_at(f->st, i);
        FM_TRY(src_add_tensor(src, f, prefix, t->name, t->dtype, &t->shape, fm_st_bytes(f->st, t),
                              (src_order){0, 0}));
    }
    return FM_OK;
}

static int by_path(const void *a, const void *b)
{
    const src_tensor *x = a, *y = b;

    return strcmp(x->path, y->path);
}

/* In the tree's order, since an entry put in front of others moves them all. */
static fm_status put_tensors(fm_source *src)
{
    if (src->tensor_count > 0)
        qsort(src->tensor, src->tensor_count, sizeof *src->tensor, by_path);
    for (size_t i = 0; i < src->tensor_count; i++) {
        const src_tensor *t = &src->tensor[i];
        FM_TRY(fm_go_on());
        if (fm_tree_find(src->tree, t->path))
            return fm_fail(FM_ECORRUPT, "%s: tensor '%s' is there twice", src->path, t->name);
        FM_TRY(fm_tree_put_tensor(src->tree, t->path, t->name, t->dtype, &t->shape, &t->id));
        FM_TRY(fm_map_put(src->by_id, t->id.b, FM_DIGEST_BYTES, t->piece, NULL));
    }
    return FM_OK;
}

/* ---- source.json ---- */

static fm_json *part_json(const src_part *part)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, part->is_entry ? "entry" : "literal", fm_json_new_str(part->path)));
    if (rc == FM_OK && !part->whole && !part->is_entry) {
        rc = fm_json_set(o, "at", fm_json_new_int((int64_t)part->at));
        FM_THEN(rc, fm_json_set(o, "bytes", fm_json_new_int((int64_t)part->bytes)));
    }
    if (rc == FM_OK && part->order.heads > 0)
        rc = fm_json_set(o, part->order.queries > 0 ? "fused_groups" : "rotary_heads",
                         fm_json_new_int(part->order.heads));
    if (rc == FM_OK && part->order.queries > 0)
        rc = fm_json_set(o, "fused_queries", fm_json_new_int(part->order.queries));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

fm_status src_name_put(fm_json *file, const char *name)
{
    const size_t len = strlen(name);
    fm_buf b;
    fm_status rc;

    if (fm_utf8_valid((const uint8_t *)name, len) == len)
        return fm_json_set(file, "name", fm_json_new_str(name));
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c >= 0x7f || c == '%')
            fm_buf_printf(&b, "%%%02X", c);
        else
            fm_buf_char(&b, (char)c);
    }
    rc = fm_buf_ok(&b);
    FM_THEN(rc, fm_json_set(file, "name_escaped", fm_json_new_str(fm_buf_cstr(&b))));
    fm_buf_release(&b);
    return rc;
}

static int hex_digit(uint8_t c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Unescapes s in place. False: an escape is broken or means NUL. */
static bool unescape(char *s)
{
    char *to = s;

    for (; *s; s++) {
        int high, low;
        if (*s != '%') {
            *to++ = *s;
            continue;
        }
        high = hex_digit((uint8_t)s[1]);
        low = high >= 0 ? hex_digit((uint8_t)s[2]) : -1;
        if (low < 0 || high + low == 0)
            return false;
        *to++ = (char)(high << 4 | low);
        s += 2;
    }
    *to = '\0';
    return true;
}

fm_status src_name_get(char **out, const fm_json *file)
{
    const fm_json *escaped = fm_json_get(file, "name_escaped");
    const fm_span s = fm_json_str(escaped ? escaped : fm_json_get(file, "name"));

    *out = NULL;
    if (!s.data || memchr(s.data, '\0', s.len) || (escaped && fm_json_get(file, "name")))
        return fm_fail(FM_ECORRUPT, "source/source.json: a file needs one of the texts 'name' and "
                                    "'name_escaped', without NUL");
    *out = fm_strndup((const char *)s.data, s.len);
    if (!*out)
        return FM_ENOMEM;
    if (!escaped || unescape(*out))
        return FM_OK;
    fm_free(*out);
    *out = NULL;
    return fm_fail(FM_ECORRUPT, "source/source.json: field 'name_escaped' holds a '%%' that begins "
                                "no escape of two digits");
}

static fm_json *file_json(const src_file *f)
{
    fm_json *o = fm_json_new_object(), *parts = fm_json_new_array();
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = o && parts ? FM_OK : FM_ENOMEM;

    fm_digest_hex(&f->sha, hex);
    FM_THEN(rc, src_name_put(o, f->name));
    FM_THEN(rc, fm_json_set(o, "bytes", fm_json_new_int((int64_t)f->map.len)));
    FM_THEN(rc, fm_json_set(o, "sha256", fm_json_new_str(hex)));
    for (size_t i = 0; rc == FM_OK && i < f->part_count; i++)
        rc = fm_json_push(parts, part_json(&f->part[i]));
    FM_THEN(rc, fm_json_set(o, "pieces", fm_json_ref(parts)));
    fm_json_free(parts);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_json *left_out_json(const fm_left_out *left)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? src_name_put(o, left->name) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "bytes", fm_json_new_int((int64_t)left->bytes)));
    FM_THEN(rc, fm_json_set(o, "why", fm_json_new_str(left->why)));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status put_source_json(fm_source *src)
{
    static const char *const kind[] = {"hf", "safetensors", "gguf", "peft", "torch"};
    fm_json *o = fm_json_new_object(), *files = fm_json_new_array(), *left = fm_json_new_array();
    fm_status rc = o && files && left ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "format", fm_json_new_int(1)));
    FM_THEN(rc, fm_json_set(o, "kind", fm_json_new_str(kind[src->kind])));
    FM_THEN(rc, fm_json_set(o, "single", fm_json_new_bool(src->single)));
    for (size_t i = 0; rc == FM_OK && i < src->file_count; i++)
        rc = fm_json_push(files, file_json(src->file[i]));
    FM_THEN(rc, fm_json_set(o, "files", fm_json_ref(files)));
    for (size_t i = 0; rc == FM_OK && i < src->left_out_count; i++)
        rc = fm_json_push(left, left_out_json(&src->left_out[i]));
    FM_THEN(rc, fm_json_set(o, "left_out", fm_json_ref(left)));
    if (rc == FM_OK && src->kept)
        rc = fm_json_set(o, "kept", fm_json_new_str(src->kept));
    FM_THEN(rc, src_put_json(src, FM_SOURCE_JSON, o, FM_JSON_COMPACT));
    if (rc == FM_OK && src->root[0])
        rc = fm_tree_put_file(src->tree, FM_SOURCE_ROOT, fm_span_str(src->root));
    fm_json_free(left);
    fm_json_free(files);
    fm_json_free(o);
    return rc;
}

static fm_status put_literals(fm_source *src)
{
    for (size_t i = 0; i < src->file_count; i++) {
        const src_file *f = src->file[i];
        for (size_t p = 0; p < f->part_count; p++)
            if (!f->part[p].is_entry && !f->part[p].whole && f->part[p].at == 0)
                FM_TRY(src_put_bytes(src, f->part[p].path, fm_buf_span(&f->literal)));
    }
    return FM_OK;
}

fm_status src_finish(fm_source *src)
{
    FM_TRY(src_hash_all(src));

    FM_TRY(put_tensors(src));
    FM_TRY(put_literals(src));

    return put_source_json(src);
}
