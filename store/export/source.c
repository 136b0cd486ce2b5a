/* source.c - restores the imported files, byte for byte, from source.json's pieces.
 *
 * source.json may come from an untrusted repository: names must stay inside dst, ranges inside
 * their literals, and a file is committed only when its SHA-256 is the recorded one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/export/export_impl.h"
#include "store/import/source_impl.h"

typedef struct rebuild {
    const fm_tree *tree;
    const fm_provider *p;
    const char *root;
    fm_writer *file;
    fm_hasher *hash;
    exp_pump *pump; /* NULL: source.json is only checked, nothing is read or written */
    uint64_t left;  /* bytes still missing in the file */
} rebuild;

static fm_status bad(const char *what, const char *why)
{
    return fm_fail(FM_ECORRUPT, "source/source.json: %s %s", what, why);
}

static fm_status emit(void *ctx, const uint8_t *data, size_t len)
{
    rebuild *r = ctx;
    FM_TRY(fm_hasher_update(r->hash, data, len));

    return fm_writer_write(r->file, data, len);
}

/* Hashes mapped bytes and lets the kernel copy them. */
static fm_status emit_place(void *ctx, const fm_file_part *place, uint64_t offset, uint64_t len)
{
    enum { PIECE = 1 << 20 };
    rebuild *r = ctx;
    const fm_file_map map = {place->data.data, place->data.len};
    fm_status rc = FM_OK;

    for (uint64_t at = 0; rc == FM_OK && at < len; at += PIECE) {
        const size_t n = (size_t)FM_MIN(len - at, (uint64_t)PIECE);
        rc = fm_hasher_update(r->hash, map.data + offset + at, n);
        fm_map_forget(&map, (size_t)(offset + at), n);
    }
    return rc == FM_OK ? fm_writer_copy(r->file, place->path, place->offset + offset, len) : rc;
}

static fm_status spend(rebuild *r, uint64_t bytes)
{
    if (bytes > r->left)
        return bad("field 'pieces'", "gives more bytes than the file has");
    r->left -= bytes;
    return FM_OK;
}

static bool get_u64(const fm_json *v, uint64_t *out)
{
    int64_t i = fm_json_int(v, -1);

    *out = (uint64_t)i;
    return fm_json_is(v, FM_JSON_INT) && i >= 0;
}

static fm_status emit_literal(rebuild *r, const fm_json *piece, const char *path)
{
    const fm_entry *e = fm_tree_find(r->tree, path);
    uint64_t at = 0, bytes;
    fm_status rc;

    if (!e || e->kind == FM_ENTRY_TENSOR)
        return fm_fail(FM_ENOTFOUND, "source/source.json: the tree has no file '%s'", path);
    bytes = e->bytes;
    if (fm_json_get(piece, "at") &&
        (!get_u64(fm_json_get(piece, "at"), &at) || !get_u64(fm_json_get(piece, "bytes"), &bytes)))
        return bad("fields 'at' and 'bytes'", "must be integers from 0");
    if (at > e->bytes || bytes > e->bytes - at)
        return bad("fields 'at' and 'bytes'", "reach past the literal");
    rc = spend(r, bytes);
    return rc == FM_OK && r->pump ? exp_pump_entry(r->pump, e, at, bytes) : rc;
}

static fm_status emit_rows(rebuild *r, const fm_entry *e, uint64_t heads)
{
    uint64_t rows = e->kind == FM_ENTRY_TENSOR && e->shape.rank > 0 ? e->shape.dim[0] : 0;

    if (heads > UINT32_MAX / 2 || rows == 0 || rows % (2 * heads) != 0 || e->bytes % rows != 0)
        return bad("field 'rotary_heads'", "does not fit the tensor's rows");
    return r->pump ? exp_pump_rotary(r->pump, e, heads) : FM_OK;
}

static fm_status emit_entry(rebuild *r, const fm_json *piece, const char *name)
{
    char *path = r->root[0] ? fm_asprintf("%s/%s", r->root, name) : fm_strdup(name);
    const fm_entry *e = path ? fm_tree_find(r->tree, path) : NULL;
    uint64_t heads = 0;
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && !e)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "'%s' is no longer in this version, so the bytes that came "
                     "in cannot be made; export it with --format hf",
                     path);
    fm_free(path);
    if (rc < 0)
        return rc;
    if (fm_json_get(piece, "rotary_heads") && !get_u64(fm_json_get(piece, "rotary_heads"), &heads))
        return bad("field 'rotary_heads'", "must be an integer from 0");
    rc = spend(r, e->bytes);
    if (rc == FM_OK && heads > 0)
        return emit_rows(r, e, heads);
    return rc == FM_OK && r->pump ? exp_pump_entry(r->pump, e, 0, e->bytes) : rc;
}

static fm_status emit_pieces(rebuild *r, const fm_json *pieces)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(pieces); i++) {
        const fm_json *piece = fm_json_at(pieces, i);
        const char *entry = fm_json_cstr(fm_json_get(piece, "entry"), NULL);
        const char *literal = fm_json_cstr(fm_json_get(piece, "literal"), NULL);
        if (entry)
            rc = emit_entry(r, piece, entry);
        else if (literal)
            rc = emit_literal(r, piece, literal);
        else
            rc = bad("a piece", "is neither 'entry' nor 'literal'");
    }
    return rc == FM_OK && r->pump ? exp_pump_flush(r->pump) : rc;
}

static fm_status check_file(rebuild *r, const char *name, const char *sha)
{
    fm_digest got, want;
    FM_TRY(fm_hasher_final(r->hash, &got));
    if (!fm_digest_parse(&want, sha, strlen(sha)))
        return bad("field 'sha256'", "is no digest");
    if (r->left != 0 || !fm_digest_eq(&got, &want))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: this version was changed since it was imported, so "
                       "the bytes that came in cannot be made; export it with --format hf",
                       name);
    return FM_OK;
}

/* Writes one file and compares its digest, so leaves' digests need not be compared. */
static fm_status write_file(rebuild *r, const fm_json *file, const char *name, const char *path,
                            unsigned flags)
{
    const fm_json *pieces = fm_json_get(file, "pieces");
    const char *sha = fm_json_cstr(fm_json_get(file, "sha256"), "");
    fm_digest unfinished;
    fm_status rc;

    if (!fm_json_is(pieces, FM_JSON_ARRAY) || !get_u64(fm_json_get(file, "bytes"), &r->left))
        return bad(name, "has no 'pieces' or no 'bytes'");
    exp_pump_flags(r->pump, flags);
    exp_pump_places(r->pump, flags & FM_RANGE_UNCHECKED ? emit_place : NULL);
    rc = fm_writer_open(&r->file, path, NULL);
    FM_THEN(rc, fm_writer_reserve(r->file, r->left));
    FM_THEN(rc, emit_pieces(r, pieces));
    if (rc == FM_OK)
        rc = check_file(r, name, sha);
    else
        fm_ignore(fm_hasher_final(r->hash, &unfinished), "it starts afresh");
    FM_THEN(rc, fm_writer_commit(r->file, NULL));
    fm_writer_close(r->file);
    r->file = NULL;
    exp_pump_drop(r->pump);
    return rc;
}

/* A file with a wrong digest is made again with every leaf compared: then damage is named, and a
 * sound copy of the bytes is read where there is one. */
static fm_status rebuild_file(rebuild *r, const fm_json *file, const char *name, const char *path)
{
    fm_status rc = write_file(r, file, name, path, FM_RANGE_UNCHECKED);

    if (rc == FM_ECORRUPT || rc == FM_EUNSUPPORTED || rc == FM_EBASE)
        rc = write_file(r, file, name, path, 0);
    return rc;
}

/* Whether name is "a" or "a/b", without a part that is empty, "." or "..". */
static bool is_safe_name(const char *name)
{
    for (;;) {
        size_t n = strcspn(name, "/");
        if (n == 0 || n > 255 || (n <= 2 && strncmp(name, "..", n) == 0))
            return false;
        if (name[n] == '\0')
            return true;
        name += n + 1;
    }
}

static fm_status make_folder_of(const char *path)
{
    const char *base = fm_path_base(path);
    char *dir = fm_strndup(path, (size_t)(base - path));
    fm_status rc = dir ? fm_make_dirs(dir) : FM_ENOMEM;

    fm_free(dir);
    return rc;
}

/* Checks a file without reading tensors: its pieces must exist and add up to its size. */
static fm_status check_file_spec(rebuild *r, const fm_json *file, const char *name)
{
    const fm_json *pieces = fm_json_get(file, "pieces");
    const char *sha = fm_json_cstr(fm_json_get(file, "sha256"), "");
    fm_digest want;

    if (!fm_json_is(pieces, FM_JSON_ARRAY) || !get_u64(fm_json_get(file, "bytes"), &r->left))
        return bad(name, "has no 'pieces' or no 'bytes'");
    if (!fm_digest_parse(&want, sha, strlen(sha)))
        return bad("field 'sha256'", "is no digest");
    FM_TRY(emit_pieces(r, pieces));
    if (r->left != 0)
        return fm_fail(FM_ECORRUPT,
                       "source/source.json: '%.200s' is said to have %" PRIu64
                       " bytes more than its pieces give",
                       name, r->left);
    return FM_OK;
}

/* Refuses a name that occurs twice, or also as a folder: one file would overwrite the other. */
static fm_status take_name(fm_map *names, const char *name)
{
    static int as_file, as_folder;
    size_t len = strlen(name);

    for (size_t n = strcspn(name, "/"); n < len; n += 1 + strcspn(name + n + 1, "/")) {
        if (fm_map_get(names, name, n) == &as_file)
            return fm_fail(FM_ECORRUPT,
                           "source/source.json: field 'name': '%.200s' is a file and a folder",
                           name);
        FM_TRY(fm_map_put(names, name, n, &as_folder, NULL));
    }
    if (fm_map_has(names, name, len))
        return fm_fail(FM_ECORRUPT, "source/source.json: field 'name': '%.200s' is there twice",
                       name);
    return fm_map_put(names, name, len, &as_file, NULL);
}

/* Makes all checks that are possible before the first byte is written. */
static fm_status check_all(const rebuild *from, const fm_json *spec)
{
    rebuild r = *from;
    const fm_json *files = fm_json_get(spec, "files");
    bool single = fm_json_bool(fm_json_get(spec, "single"), false);
    fm_map *names = NULL;
    fm_status rc;

    r.pump = NULL;
    if (!fm_json_is(files, FM_JSON_ARRAY) || fm_json_count(files) > FM_SOURCE_MAX_FILES ||
        (single && fm_json_count(files) != 1))
        return bad("field 'files'", "must be a list (of one where 'single' is set)");
    rc = fm_map_new(&names);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(files); i++) {
        const fm_json *file = fm_json_at(files, i);
        char *name = NULL;
        rc = src_name_get(&name, file);
        if (rc == FM_OK && !is_safe_name(name))
            rc = bad("field 'name'", "must be a path inside the folder");
        FM_THEN(rc, take_name(names, name));
        FM_THEN(rc, check_file_spec(&r, file, name));
        fm_free(name);
    }
    fm_map_free(names);
    return rc;
}

static fm_status rebuild_one(rebuild *r, const fm_json *file, const char *name, bool single,
                             const char *dst)
{
    char *path = single ? fm_strdup(dst) : fm_path_join(dst, name);
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && !single && strchr(name, '/'))
        rc = make_folder_of(path);
    FM_THEN(rc, rebuild_file(r, file, name, path));
    fm_free(path);
    return rc;
}

static fm_status rebuild_all(rebuild *r, const fm_json *spec, const char *dst)
{
    const fm_json *files = fm_json_get(spec, "files");
    bool single = fm_json_bool(fm_json_get(spec, "single"), false);
    fm_status rc = single ? FM_OK : fm_make_dirs(dst);

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(files); i++) {
        const fm_json *file = fm_json_at(files, i);
        char *name = NULL;
        rc = src_name_get(&name, file);
        FM_THEN(rc, rebuild_one(r, file, name, single, dst));
        fm_free(name);
    }
    return rc;
}

static fm_status read_spec(fm_json **out, rebuild *r)
{
    const fm_entry *e = fm_tree_find(r->tree, FM_SOURCE_JSON);
    const fm_entry *root = fm_tree_find(r->tree, FM_SOURCE_ROOT);
    fm_buf text;
    fm_status rc;

    *out = NULL;
    if (!e)
        return fm_fail(FM_EUNSUPPORTED, "this version was made here, no file came in; export it "
                                        "with --format hf or peft");
    if (root && root->kind == FM_ENTRY_FILE)
        r->root = (const char *)root->data;
    fm_buf_init(&text, 0);
    rc = fm_entry_read(&text, r->p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), FM_SOURCE_JSON));
    if (rc == FM_OK && fm_json_int(fm_json_get(*out, "format"), 0) != 1)
        rc = fm_fail(FM_EVERSION, "source/source.json: an unknown format; use a newer fmstore");
    fm_buf_release(&text);
    return rc;
}

fm_status exp_source_check(const fm_tree *tree, const fm_provider *p)
{
    rebuild r = {.tree = tree, .p = p, .root = ""};
    fm_json *spec = NULL;
    fm_status rc = read_spec(&spec, &r);

    FM_THEN(rc, check_all(&r, spec));
    fm_json_free(spec);
    return rc;
}

fm_status exp_source(const fm_tree *tree, const fm_provider *p, const char *dst)
{
    rebuild r = {.tree = tree, .p = p, .root = ""};
    fm_json *spec = NULL;
    fm_status rc = read_spec(&spec, &r);

    FM_THEN(rc, check_all(&r, spec));
    FM_THEN(rc, fm_hasher_new(&r.hash));
    FM_THEN(rc, exp_pump_new(&r.pump, p, emit, &r));
    FM_THEN(rc, rebuild_all(&r, spec, dst));
    fm_json_free(spec);
    fm_hasher_free(r.hash);
    exp_pump_free(r.pump);
    return rc;
}

static const fm_json *file_with(const fm_json *spec, const char *hex)
{
    const fm_json *files = fm_json_get(spec, "files");
    for (size_t i = 0; i < fm_json_count(files); i++)
        if (strcmp(fm_json_cstr(fm_json_get(fm_json_at(files, i), "sha256"), ""), hex) == 0)
            return fm_json_at(files, i);
    return NULL;
}

fm_status fm_export_file(const fm_tree *tree, const fm_provider *p, const fm_digest *sha256,
                         const char *dst)
{
    rebuild r = {.tree = tree, .p = p, .root = ""};
    fm_json *spec = NULL;
    char hex[FM_HEX_CHARS + 1];

    fm_digest_hex(sha256, hex);
    if (fm_path_exists(dst))
        return fm_fail(FM_EEXISTS, "%s exists", dst);
    fm_status rc = read_spec(&spec, &r);
    const fm_json *file = rc == FM_OK ? file_with(spec, hex) : NULL;
    if (rc == FM_OK && !file)
        rc = fm_fail(FM_ENOTFOUND, "source/source.json: no file has the SHA-256 %.16s...", hex);
    FM_THEN(rc, fm_hasher_new(&r.hash));
    FM_THEN(rc, exp_pump_new(&r.pump, p, emit, &r));
    FM_THEN(rc, rebuild_file(&r, file, "the file", dst));
    fm_json_free(spec);
    fm_hasher_free(r.hash);
    exp_pump_free(r.pump);
    return rc;
}
