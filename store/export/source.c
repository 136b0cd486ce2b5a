/* source.c - the imported files, byte for byte, from source.json's pieces.
 *
 * source.json may come from an untrusted repository: names must stay inside the folder and ranges
 * inside their literals. The SHA-256 of what comes out is compared by who writes it (export.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/map.h"
#include "store/export/export_impl.h"
#include "store/import/source_impl.h"

typedef struct rebuild {
    fm_view *v;
    const char *root;
    uint64_t left; /* bytes still missing in the file */
} rebuild;

static fm_status bad(const char *what, const char *why)
{
    return fm_fail(FM_ECORRUPT, "source/source.json: %s %s", what, why);
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

static fm_status add_literal(rebuild *r, const fm_json *piece, const char *path)
{
    const fm_entry *e = fm_tree_find(r->v->tree, path);
    uint64_t at = 0, bytes;

    if (!e || e->kind == FM_ENTRY_TENSOR)
        return fm_fail(FM_ENOTFOUND, "source/source.json: the tree has no file '%s'", path);
    bytes = e->bytes;
    if (fm_json_get(piece, "at") &&
        (!get_u64(fm_json_get(piece, "at"), &at) || !get_u64(fm_json_get(piece, "bytes"), &bytes)))
        return bad("fields 'at' and 'bytes'", "must be integers from 0");
    if (at > e->bytes || bytes > e->bytes - at)
        return bad("fields 'at' and 'bytes'", "reach past the literal");
    FM_TRY(spend(r, bytes));
    return exp_add_entry(r->v, e, at, bytes);
}

static fm_status add_rows(rebuild *r, const fm_entry *e, const char *field, uint64_t heads,
                          uint64_t queries)
{
    const uint64_t rows = e->kind == FM_ENTRY_TENSOR && e->shape.rank > 0 ? e->shape.dim[0] : 0;
    const src_order order = {(uint32_t)heads, (uint32_t)queries};

    if (heads > UINT32_MAX / 2 || queries > UINT32_MAX / 2 || !src_order_fits(order, rows) ||
        e->bytes % rows != 0)
        return bad(field, "does not fit the tensor's rows");
    return exp_add_rows(r->v, e, order);
}

static fm_status add_entry(rebuild *r, const fm_json *piece, const char *name)
{
    char *path = r->root[0] ? fm_asprintf("%s/%s", r->root, name) : fm_strdup(name);
    const fm_entry *e = path ? fm_tree_find(r->v->tree, path) : NULL;
    uint64_t heads = 0, groups = 0, queries = 0;
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
    if (fm_json_get(piece, "fused_groups") &&
        (!get_u64(fm_json_get(piece, "fused_groups"), &groups) ||
         !get_u64(fm_json_get(piece, "fused_queries"), &queries) || groups == 0 || queries == 0))
        return bad("fields 'fused_groups' and 'fused_queries'", "must be integers from 1");
    FM_TRY(spend(r, e->bytes));
    if (groups > 0)
        return add_rows(r, e, "field 'fused_groups'", groups, queries);
    return heads > 0 ? add_rows(r, e, "field 'rotary_heads'", heads, 0)
                     : exp_add_entry(r->v, e, 0, e->bytes);
}

static fm_status add_pieces(rebuild *r, const fm_json *pieces)
{
    if (r->v->segments + fm_json_count(pieces) > FM_SOURCE_MAX_PIECES)
        return fm_fail(FM_ELIMIT, "source/source.json: more than %u pieces", FM_SOURCE_MAX_PIECES);
    for (size_t i = 0; i < fm_json_count(pieces); i++) {
        const fm_json *piece = fm_json_at(pieces, i);
        const char *entry = fm_json_cstr(fm_json_get(piece, "entry"), NULL);
        const char *literal = fm_json_cstr(fm_json_get(piece, "literal"), NULL);
        if (!entry && !literal)
            return bad("a piece", "is neither 'entry' nor 'literal'");
        FM_TRY(entry ? add_entry(r, piece, entry) : add_literal(r, piece, literal));
    }
    return FM_OK;
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

/* Adds a file; its pieces must exist and add up to its size. */
static fm_status add_file(rebuild *r, const fm_json *file, const char *name)
{
    const fm_json *pieces = fm_json_get(file, "pieces");
    const char *sha = fm_json_cstr(fm_json_get(file, "sha256"), "");

    if (!fm_json_is(pieces, FM_JSON_ARRAY) || !get_u64(fm_json_get(file, "bytes"), &r->left))
        return bad(name, "has no 'pieces' or no 'bytes'");
    FM_TRY(exp_add_file(r->v, name));
    fm_view_file *shown = &r->v->file[r->v->count - 1].shown;
    if (!fm_digest_parse(&shown->sha256, sha, strlen(sha)))
        return bad("field 'sha256'", "is no digest");
    shown->known = true;
    FM_TRY(add_pieces(r, pieces));
    if (r->left != 0)
        return fm_fail(FM_ECORRUPT,
                       "source/source.json: '%.200s' is said to have %" PRIu64
                       " bytes more than its pieces give",
                       name, r->left);
    return FM_OK;
}

static bool has_digest(const fm_json *file, const fm_digest *sha256)
{
    const char *text = fm_json_cstr(fm_json_get(file, "sha256"), "");
    fm_digest d;

    return fm_digest_parse(&d, text, strlen(text)) && fm_digest_eq(&d, sha256);
}

static fm_status add_files(rebuild *r, const fm_json *spec, const fm_digest *only)
{
    const fm_json *files = fm_json_get(spec, "files");
    fm_map *names = NULL;
    fm_status rc;

    r->v->single = fm_json_bool(fm_json_get(spec, "single"), false);
    if (!fm_json_is(files, FM_JSON_ARRAY) || fm_json_count(files) > FM_SOURCE_MAX_FILES ||
        (r->v->single && fm_json_count(files) != 1))
        return bad("field 'files'", "must be a list (of one where 'single' is set)");
    rc = fm_map_new(&names);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(files); i++) {
        const fm_json *file = fm_json_at(files, i);
        char *name = NULL;
        if (only && (r->v->count > 0 || !has_digest(file, only)))
            continue;
        rc = src_name_get(&name, file);
        if (rc == FM_OK && !is_safe_name(name))
            rc = bad("field 'name'", "must be a path inside the folder");
        FM_THEN(rc, take_name(names, name));
        FM_THEN(rc, add_file(r, file, name));
        fm_free(name);
    }
    fm_map_free(names);
    return rc;
}

static fm_status read_spec(fm_json **out, rebuild *r)
{
    const fm_entry *e = fm_tree_find(r->v->tree, FM_SOURCE_JSON);
    const fm_entry *root = fm_tree_find(r->v->tree, FM_SOURCE_ROOT);
    fm_buf text;
    fm_status rc;

    *out = NULL;
    if (!e)
        return fm_fail(FM_EUNSUPPORTED, "this version was made here, no file came in; export it "
                                        "with --format hf or peft");
    if (root && root->kind == FM_ENTRY_FILE)
        r->root = (const char *)root->data;
    fm_buf_init(&text, 0);
    rc = fm_entry_read(&text, r->v->p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), FM_SOURCE_JSON));
    if (rc == FM_OK && fm_json_int(fm_json_get(*out, "format"), 0) != 1)
        rc = fm_fail(FM_EVERSION, "source/source.json: an unknown format; use a newer fmstore");
    fm_buf_release(&text);
    return rc;
}

fm_status exp_source(fm_view *v, const fm_digest *only)
{
    rebuild r = {.v = v, .root = ""};
    fm_json *spec = NULL;
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = read_spec(&spec, &r);

    FM_THEN(rc, add_files(&r, spec, only));
    if (rc == FM_OK && only && v->count == 0) {
        fm_digest_hex(only, hex);
        rc = fm_fail(FM_ENOTFOUND, "source/source.json: no file has the SHA-256 %.16s...", hex);
    }
    fm_json_free(spec);
    return rc;
}
