/* named.c - the ids of versions in recipes and suites.
 *
 * The files are read as words, not as JSON and YAML: who asks what must be kept wants every id that
 * could be meant, also one in a place that only a later fmstore reads. */
#include "lineage/named.h"
#include "store/base/cancel.h"

#include <string.h>

#define ID_CHARS 40u
#define PREFIX_CHARS 7u
#define KEY_CHARS 15u
#define PIECE_BYTES ((size_t)1 << 20)

static const char tensor_head[] = "fmstore tensor 1\nid sha256:",
                  blob_head[] = "fmstore blob 1\nid sha256:";

static size_t head_of(fm_span file, const char *head, size_t len)
{
    return file.len >= len && memcmp(file.data, head, len) == 0 ? len : 0;
}

bool fml_pointer_of(fm_digest *out, bool *is_tensor, fm_span file)
{
    size_t head = head_of(file, tensor_head, sizeof tensor_head - 1);

    *is_tensor = head > 0;
    if (!head)
        head = head_of(file, blob_head, sizeof blob_head - 1);
    return head && file.len > head + FM_HEX_CHARS &&
           fm_digest_parse(out, (const char *)file.data + head, FM_HEX_CHARS);
}

/* ---- words ---- */

typedef struct scan {
    const fml_named *v;
    const char *path;
    const char *const *keys; /* that ask for a version */
    char word[ID_CHARS + 1];
    size_t len; /* of the word, which may be longer than its room */
    char key[KEY_CHARS + 1];
    bool colon; /* behind the key */
} scan;

static const char *asked_key(const scan *s)
{
    for (size_t i = 0; s->colon && s->keys[i]; i++)
        if (strcmp(s->keys[i], s->key) == 0)
            return s->keys[i];
    return NULL;
}

static fm_status end_word(scan *s)
{
    const size_t len = s->len;
    const char *key = asked_key(s);
    bool hex;

    s->len = 0;
    s->colon = false;
    s->word[FM_MIN(len, (size_t)ID_CHARS)] = '\0';
    hex = strspn(s->word, "0123456789abcdefABCDEF") == len;
    s->key[0] = '\0';
    if (len <= KEY_CHARS)
        memcpy(s->key, s->word, len + 1);
    if (hex && (len == ID_CHARS ||
                (len >= PREFIX_CHARS && len < ID_CHARS && key && strcmp(key, "baseline") == 0)))
        return s->v->name(s->v->ctx, s->path, fm_span_of(s->word, len), key);
    return FM_OK;
}

static bool in_word(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-';
}

static fm_status read_bytes(scan *s, fm_span bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        const uint8_t c = bytes.data[i];

        if (in_word(c)) {
            if (s->len < ID_CHARS)
                s->word[s->len] = (char)c;
            s->len++;
            continue;
        }
        if (s->len > 0)
            FM_TRY(end_word(s));
        if (c == ':')
            s->colon = true;
        else if (!strchr(" \t\r\n\"'", c) || c == '\0')
            s->key[0] = '\0';
    }
    return FM_OK;
}

/* ---- files ---- */

/* What only the remote of a clone has names nothing here. */
static fm_status read_object(fm_repo *r, scan *s, const fm_digest *id)
{
    fm_object_info info;
    bool promised;
    FM_TRY(fml_elsewhere(r, id, &promised));
    if (promised)
        return FM_OK;
    fm_status rc = fm_store_info(r->store, &info, id);
    const size_t room = rc == FM_OK ? (size_t)FM_MIN(info.bytes, (uint64_t)PIECE_BYTES) : 0;
    uint8_t *piece = rc == FM_OK ? fm_malloc(room + 1) : NULL;

    if (rc == FM_OK && !piece)
        rc = FM_ENOMEM;
    for (uint64_t at = 0; rc == FM_OK && at < info.bytes; at += room) {
        const size_t n = (size_t)FM_MIN((uint64_t)room, info.bytes - at);
        rc = fm_go_on();
        FM_THEN(rc, fm_store_read_range(r->store, id, at, n, piece, 0));
        FM_THEN(rc, read_bytes(s, fm_span_of(piece, n)));
    }
    fm_free(piece);
    return rc;
}

static fm_status read_file(fm_repo *r, scan *s, const git_oid *id)
{
    git_odb_object *obj = NULL;
    fm_digest digest;
    bool is_tensor;
    int code = git_odb_read(&obj, r->odb, id);

    if (code < 0)
        return fml_damage(code, "%s cannot be read", s->path);
    const fm_span file = fm_span_of(git_odb_object_data(obj), git_odb_object_size(obj));
    fm_status rc = !fml_pointer_of(&digest, &is_tensor, file) ? read_bytes(s, file)
                   : is_tensor                                ? FM_OK
                                                              : read_object(r, s, &digest);
    if (rc == FM_OK && s->len > 0)
        rc = end_word(s);
    git_odb_object_free(obj);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", s->path);
}

static fm_status named_in(fm_repo *r, const git_oid *id, const char *path, const char *const *keys,
                          const fml_named *v)
{
    scan s = {.v = v, .path = path, .keys = keys};
    bool yes = false;

    FM_TRY(v->enter(v->ctx, id, &yes));
    return yes ? read_file(r, &s, id) : FM_OK;
}

static fm_status named_in_suites(fm_repo *r, const git_oid *id, const char *path, unsigned depth,
                                 const fml_named *v);

static fm_status named_in_entry(fm_repo *r, const git_tree_entry *e, const char *folder,
                                unsigned depth, const fml_named *v)
{
    static const char *const keys[] = {"model", "baseline", NULL};
    char *path = fm_path_join(folder, git_tree_entry_name(e));
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && git_tree_entry_type(e) == GIT_OBJECT_BLOB)
        rc = named_in(r, git_tree_entry_id(e), path, keys, v);
    else if (rc == FM_OK && git_tree_entry_type(e) == GIT_OBJECT_TREE)
        rc = named_in_suites(r, git_tree_entry_id(e), path, depth + 1, v);
    fm_free(path);
    return rc;
}

static fm_status named_in_suites(fm_repo *r, const git_oid *id, const char *path, unsigned depth,
                                 const fml_named *v)
{
    git_tree *tree = NULL;
    bool yes = false;
    fm_status rc = v->enter(v->ctx, id, &yes);
    int code = rc == FM_OK && yes ? git_tree_lookup(&tree, r->git, id) : 0;

    if (code < 0)
        return fml_damage(code, "%s/ cannot be read", path);
    if (depth > FML_TREE_DEPTH_MAX)
        rc = fm_fail(FM_ECORRUPT, "folders in folders, more than %u deep", FML_TREE_DEPTH_MAX);
    for (size_t i = 0; rc == FM_OK && tree && i < git_tree_entrycount(tree); i++)
        rc = named_in_entry(r, git_tree_entry_byindex(tree, i), path, depth, v);
    git_tree_free(tree);
    return rc;
}

fm_status fml_named_each(fm_repo *r, const git_oid *tree, const fml_named *v)
{
    static const char *const keys[] = {"teacher", "version", "from", "step", NULL};
    git_tree *root = NULL;
    fm_status rc = FM_OK;
    int code = git_tree_lookup(&root, r->git, tree);

    if (code < 0)
        return fml_damage(code, "the tree of a version cannot be read");
    const git_tree_entry *recipe = git_tree_entry_byname(root, "recipe.json");
    const git_tree_entry *suites = git_tree_entry_byname(root, "suites");
    if (recipe && git_tree_entry_type(recipe) == GIT_OBJECT_BLOB)
        rc = named_in(r, git_tree_entry_id(recipe), "recipe.json", keys, v);
    if (rc == FM_OK && suites && git_tree_entry_type(suites) == GIT_OBJECT_TREE)
        rc = named_in_suites(r, git_tree_entry_id(suites), "suites", 0, v);
    git_tree_free(root);
    return rc;
}

fm_status fml_named_find(fm_repo *r, fm_span hex, git_oid *out, bool *there)
{
    git_oid id;
    size_t bytes;
    git_object_t type = GIT_OBJECT_INVALID;
    int code = git_oid_fromstrn(&id, (const char *)hex.data, hex.len);

    *there = false;
    if (code == 0 && hex.len == ID_CHARS)
        *out = id;
    else if (code == 0)
        code = git_odb_exists_prefix(out, r->odb, &id, hex.len);
    /* Without a look at the folder of packs for each miss: any 40 digits of a prompt end here. */
    if (code == 0 && git_odb_exists_ext(r->odb, out, GIT_ODB_LOOKUP_NO_REFRESH))
        code = git_odb_read_header(&bytes, &type, r->odb, out);
    if (code < 0 && code != GIT_ENOTFOUND && code != GIT_EAMBIGUOUS)
        return fml_damage(code, "the version %.*s that is named", (int)hex.len,
                          (const char *)hex.data);
    *there = type == GIT_OBJECT_COMMIT || type == GIT_OBJECT_TREE;
    return FM_OK;
}
