/* tree.c - the sorted list of entries that makes up a model version.
 *
 * An array of pointers kept sorted at every put: trees have thousands of entries, arrive nearly
 * sorted, and are read far more often than changed; and a constant tree can then be searched by
 * many threads without a lock. */
#include "store/tree.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/text/json.h"
#include "store/base/text/utf8.h"
#include "store/base/mem.h"

struct fm_tree {
    fm_entry **entry;
    size_t count;
    size_t cap;
};

fm_status fm_tree_new(fm_tree **out)
{
    *out = fm_calloc(1, sizeof **out);
    return *out ? FM_OK : FM_ENOMEM;
}

static void entry_free(fm_entry *e)
{
    if (!e)
        return;
    fm_free(e->path);
    fm_free(e->name);
    fm_free(e->data);
    fm_free(e);
}

void fm_tree_free(fm_tree *tree)
{
    if (!tree)
        return;
    for (size_t i = 0; i < tree->count; i++)
        entry_free(tree->entry[i]);
    fm_free(tree->entry);
    fm_free(tree);
}

fm_status fm_tree_copy(fm_tree **out, const fm_tree *tree)
{
    fm_tree *t = NULL;
    fm_status rc = fm_tree_new(&t);

    *out = NULL;
    for (size_t i = 0; rc == FM_OK && i < tree->count; i++)
        rc = fm_tree_put_entry(t, tree->entry[i]);
    if (rc < 0) {
        fm_tree_free(t);
        return rc;
    }
    *out = t;
    return FM_OK;
}

size_t fm_tree_count(const fm_tree *tree)
{
    return tree->count;
}

const fm_entry *fm_tree_at(const fm_tree *tree, size_t i)
{
    fm_assert(i < tree->count);
    return tree->entry[i];
}

/* First entry whose path is not below `path` in byte order. */
static size_t lower_bound(const fm_tree *tree, const char *path)
{
    size_t lo = 0, hi = tree->count;

    if (hi > 0 && strcmp(tree->entry[hi - 1]->path, path) < 0)
        return hi; /* appending in order is the common case */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(tree->entry[mid]->path, path) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const fm_entry *fm_tree_find(const fm_tree *tree, const char *path)
{
    size_t i = lower_bound(tree, path);

    if (i < tree->count && strcmp(tree->entry[i]->path, path) == 0)
        return tree->entry[i];
    return NULL;
}

void fm_tree_range(const fm_tree *tree, const char *prefix, size_t *begin, size_t *end)
{
    size_t len = strlen(prefix), i = lower_bound(tree, prefix);

    *begin = i;
    while (i < tree->count && strncmp(tree->entry[i]->path, prefix, len) == 0)
        i++;
    *end = i;
}

/* Why a file system or a git tree may not hold this part of a path; NULL: it may. */
static const char *part_fault(const char *part, size_t len)
{
    if (len == 0)
        return "has an empty part";
    if ((len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
        return "has a part '.' or '..'";
    if (len == 4 && strncasecmp(part, ".git", 4) == 0)
        return "has a part '.git'";
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f)
            return "holds a control byte";
    return NULL;
}

fm_status fm_tree_check_path(const char *path)
{
    const char *part = path, *fault = NULL;
    size_t len = strlen(path);

    if (len > FM_MAX_PATH_BYTES)
        return fm_fail(FM_EINVAL, "tree path '%.60s...' is longer than %u bytes", path,
                       FM_MAX_PATH_BYTES);
    while (!fault) {
        size_t n = strcspn(part, "/");
        fault = part_fault(part, n);
        if (part[n] == '\0')
            break;
        part += n + 1;
    }
    if (fault)
        return fm_fail(FM_EINVAL, "tree path '%s' %s", path, fault);
    return FM_OK;
}

/* The length of path up to the last '/' that both paths share. */
static size_t shared_folders(const char *path, const char *other)
{
    size_t shared = 0;

    for (size_t i = 0; path[i] && path[i] == other[i]; i++)
        if (path[i] == '/')
            shared = i + 1;
    return shared;
}

/* No path may be a file and a folder at once: git could not hold the tree. Folders that the entries
 * around `at` have are known to be no files; a name may have hundreds, most of them shared. */
static fm_status check_folders(const fm_tree *tree, const char *path, size_t at)
{
    char prefix[FM_MAX_PATH_BYTES + 2];
    size_t len = strlen(path), known = 0, i;

    if (at > 0)
        known = shared_folders(path, tree->entry[at - 1]->path);
    if (at < tree->count)
        known = FM_MAX(known, shared_folders(path, tree->entry[at]->path));

    memcpy(prefix, path, len);
    memcpy(prefix + len, "/", 2);
    i = lower_bound(tree, prefix);
    if (i < tree->count && strncmp(tree->entry[i]->path, prefix, len + 1) == 0)
        return fm_fail(FM_EINVAL, "tree path '%s' is also the folder of '%s'", path,
                       tree->entry[i]->path);
    for (i = known; i < len; i++) {
        if (path[i] != '/')
            continue;
        prefix[i] = '\0';
        if (fm_tree_find(tree, prefix))
            return fm_fail(FM_EINVAL, "tree path '%s' lies under '%s', which is a file", path,
                           prefix);
        prefix[i] = '/';
    }
    return FM_OK;
}

/* Takes ownership of e, also on failure. */
static fm_status insert(fm_tree *tree, fm_entry *e)
{
    size_t at = lower_bound(tree, e->path);
    fm_status rc;

    if (at < tree->count && strcmp(tree->entry[at]->path, e->path) == 0) {
        entry_free(tree->entry[at]);
        tree->entry[at] = e;
        return FM_OK;
    }
    rc = check_folders(tree, e->path, at);
    FM_THEN(rc, fm_grow(&tree->entry, &tree->cap, tree->count + 1, sizeof(fm_entry *)));
    if (rc < 0) {
        entry_free(e);
        return rc;
    }
    memmove(tree->entry + at + 1, tree->entry + at, (tree->count - at) * sizeof(fm_entry *));
    tree->entry[at] = e;
    tree->count++;
    return FM_OK;
}

static fm_status entry_new(fm_entry **out, const char *path, fm_entry_kind kind)
{
    fm_entry *e = NULL;
    fm_status rc = fm_tree_check_path(path);

    *out = NULL;
    if (rc < 0)
        return rc;
    e = fm_calloc(1, sizeof *e);
    if (!e)
        return FM_ENOMEM;
    e->kind = kind;
    e->path = fm_strdup(path);
    if (!e->path) {
        entry_free(e);
        return FM_ENOMEM;
    }
    *out = e;
    return FM_OK;
}

static fm_status check_name(const char *name, const char *path)
{
    size_t len = strlen(name);

    if (len == 0 || len > FM_MAX_NAME_BYTES)
        return fm_fail(FM_EINVAL, "tensor at '%s': its name has %zu bytes, must have 1 to %u", path,
                       len, FM_MAX_NAME_BYTES);
    return FM_OK;
}

fm_status fm_tree_put_tensor(fm_tree *tree, const char *path, const char *name, fm_dtype dtype,
                             const fm_shape *shape, const fm_digest *id)
{
    fm_entry *e = NULL;
    uint64_t bytes = 0;
    FM_TRY(check_name(name, path));

    FM_TRY(fm_tensor_bytes(&bytes, dtype, shape, name));
    FM_TRY(entry_new(&e, path, FM_ENTRY_TENSOR));
    e->id = *id;
    e->bytes = bytes;
    e->dtype = dtype;
    e->shape = *shape;
    e->name = fm_strdup(name);
    if (!e->name) {
        entry_free(e);
        return FM_ENOMEM;
    }
    return insert(tree, e);
}

fm_status fm_tree_put_blob(fm_tree *tree, const char *path, const fm_digest *id, uint64_t bytes)
{
    fm_entry *e = NULL;
    FM_TRY(entry_new(&e, path, FM_ENTRY_BLOB));
    e->id = *id;
    e->bytes = bytes;
    return insert(tree, e);
}

static const char POINTER_MARK[] = "fmstore ";

fm_status fm_tree_put_file(fm_tree *tree, const char *path, fm_span bytes)
{
    fm_entry *e = NULL;
    fm_status rc;

    if (bytes.len > FM_INLINE_MAX_BYTES)
        return fm_fail(FM_ELIMIT, "'%s' has %zu bytes, an inline file at most %u", path, bytes.len,
                       FM_INLINE_MAX_BYTES);
    if (fm_span_starts(bytes, fm_span_str(POINTER_MARK)))
        return fm_fail(FM_ELIMIT, "'%s' begins with \"fmstore \", the mark of a pointer", path);
    FM_TRY(entry_new(&e, path, FM_ENTRY_FILE));
    e->bytes = bytes.len;
    e->data = fm_malloc(bytes.len + 1);
    rc = e->data ? fm_blob_id(&e->id, bytes, NULL) : FM_ENOMEM;
    if (rc < 0) {
        entry_free(e);
        return rc;
    }
    if (bytes.len > 0)
        memcpy(e->data, bytes.data, bytes.len);
    e->data[bytes.len] = '\0';
    return insert(tree, e);
}

fm_status fm_tree_put_entry(fm_tree *tree, const fm_entry *src)
{
    switch (src->kind) {
    case FM_ENTRY_TENSOR:
        return fm_tree_put_tensor(tree, src->path, src->name, src->dtype, &src->shape, &src->id);
    case FM_ENTRY_BLOB:
        return fm_tree_put_blob(tree, src->path, &src->id, src->bytes);
    case FM_ENTRY_FILE:
        return fm_tree_put_file(tree, src->path, fm_span_of(src->data, (size_t)src->bytes));
    }
    return fm_fail(FM_EINVAL, "'%s': unknown kind of entry", src->path);
}

fm_status fm_tree_remove(fm_tree *tree, const char *path)
{
    size_t at = lower_bound(tree, path);

    if (at == tree->count || strcmp(tree->entry[at]->path, path) != 0)
        return fm_fail(FM_ENOTFOUND, "no '%s' in this tree", path);
    entry_free(tree->entry[at]);
    memmove(tree->entry + at, tree->entry + at + 1, (tree->count - at - 1) * sizeof(fm_entry *));
    tree->count--;
    return FM_OK;
}

/* ---- paths of tensor names ---- */

static bool must_escape(unsigned char c)
{
    return c < 0x20 || c == 0x7f || c == '%' || c == '/' || c == '\\' || c == ':' || c == '~';
}

/* "%00" stands for the empty part: a name cannot hold NUL, so it is free. A leading dot would hide
 * the file or make ".git"; some file systems drop a trailing dot or space; '~' and ':' make short
 * names and streams that git refuses (GIT~1). Bytes that are not UTF-8 cannot be in JSON. */
void fm_path_part(fm_buf *out, const char *part, size_t len)
{
    if (len == 0)
        fm_buf_str(out, "%00");
    for (size_t i = 0, n; i < len; i += n) {
        unsigned char c = (unsigned char)part[i];
        bool dot_first = i == 0 && c == '.';
        bool ends = i == len - 1 && (c == '.' || c == ' ');
        n = fm_utf8_len((const uint8_t *)part + i, len - i);
        if (n == 0 || must_escape(c) || dot_first || ends)
            fm_buf_printf(out, "%%%02X", c);
        else
            fm_buf_append(out, part + i, n);
        n = FM_MAX(n, (size_t)1);
    }
}

fm_status fm_tensor_path(fm_buf *out, const char *prefix, const char *name)
{
    const char *last = strrchr(name, '.'), *part = name;
    FM_TRY(check_name(name, prefix));
    fm_buf_str(out, prefix);
    for (;;) {
        const char *dot = strchr(part, '.');
        fm_buf_char(out, '/');
        if (!last || part > last || dot == last) {
            fm_path_part(out, part, strlen(part));
            return fm_buf_ok(out);
        }
        fm_path_part(out, part, (size_t)(dot - part));
        part = dot + 1;
    }
}

fm_status fm_entry_check_name(const fm_entry *e)
{
    static const char folder[] = "tensors/";
    char prefix[FM_MAX_PATH_BYTES + 1];
    const char *at = strncmp(e->path, folder, sizeof folder - 1) == 0 ? e->path : NULL;
    fm_buf path;

    if (!at && strncmp(e->path, "adapters/", 9) == 0 && (at = strstr(e->path, "/tensors/")))
        at++;
    if (!at || e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    const size_t n = (size_t)(at - e->path) + sizeof folder - 2; /* without the last '/' */
    memcpy(prefix, e->path, n);
    prefix[n] = '\0';
    fm_buf_init(&path, 0);
    fm_status rc = fm_tensor_path(&path, prefix, e->name);
    if (rc == FM_OK && strcmp(fm_buf_cstr(&path), e->path) != 0)
        rc = fm_fail(FM_ECORRUPT, "tree path '%s' holds a tensor called '%s'", e->path, e->name);
    fm_buf_release(&path);
    return rc;
}

/* ---- pointer blobs ---- */

/* The name is one line of text: control bytes and '%' become %XX. */
static void put_name(fm_buf *out, const char *name)
{
    for (const char *p = name; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f || c == '%')
            fm_buf_printf(out, "%%%02X", c);
        else
            fm_buf_char(out, (char)c);
    }
}

fm_status fm_entry_encode(fm_buf *out, const fm_entry *e)
{
    char hex[FM_HEX_CHARS + 1];

    if (e->kind == FM_ENTRY_FILE) {
        fm_buf_append(out, e->data, (size_t)e->bytes);
        return fm_buf_ok(out);
    }
    fm_digest_hex(&e->id, hex);
    fm_buf_printf(out, "fmstore %s 1\nid sha256:%s\n",
                  e->kind == FM_ENTRY_TENSOR ? "tensor" : "blob", hex);
    if (e->kind == FM_ENTRY_TENSOR) {
        fm_buf_printf(out, "dtype %s\nshape", fm_dtype_get(e->dtype)->name);
        for (uint32_t i = 0; i < e->shape.rank; i++)
            fm_buf_printf(out, " %" PRIu64, e->shape.dim[i]);
        fm_buf_char(out, '\n');
    }
    fm_buf_printf(out, "bytes %" PRIu64 "\n", e->bytes);
    if (e->kind == FM_ENTRY_TENSOR) {
        fm_buf_str(out, "name ");
        put_name(out, e->name);
        fm_buf_char(out, '\n');
    }
    return fm_buf_ok(out);
}

/* ---- digests and bytes ---- */

static bool skipped(const char *path, const char *const *skip_prefix)
{
    for (; skip_prefix && *skip_prefix; skip_prefix++)
        if (strncmp(path, *skip_prefix, strlen(*skip_prefix)) == 0)
            return true;
    return false;
}

fm_status fm_tree_digest(fm_digest *out, const fm_tree *tree, const char *const *skip_prefix)
{
    static const char tag[] = "fmstore tree 1\n";
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);

    memset(out, 0, sizeof *out);
    FM_THEN(rc, fm_hasher_update(h, tag, sizeof tag - 1));
    for (size_t i = 0; rc == FM_OK && i < tree->count; i++) {
        const fm_entry *e = tree->entry[i];
        if (skipped(e->path, skip_prefix))
            continue;
        rc = fm_hasher_update(h, e->path, strlen(e->path) + 1);
        FM_THEN(rc, fm_hasher_update(h, e->kind == FM_ENTRY_TENSOR ? "t" : "b", 1));
        FM_THEN(rc, fm_hasher_update(h, e->id.b, FM_DIGEST_BYTES));
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

fm_status fm_entry_read(fm_buf *out, const fm_provider *p, const fm_entry *e)
{
    uint8_t *dst = NULL;

    if (e->kind == FM_ENTRY_FILE) {
        fm_buf_append(out, e->data, (size_t)e->bytes);
        return fm_buf_ok(out);
    }
    if (e->bytes == 0)
        return FM_OK;
    dst = fm_buf_extend(out, (size_t)e->bytes);
    if (!dst)
        return fm_error_prefix(fm_buf_ok(out), "'%s'", e->path);
    return p->read(p->ctx, e, dst);
}

static fm_status range_of_whole(const fm_provider *p, const fm_entry *e, uint64_t offset,
                                uint64_t bytes, void *dst)
{
    fm_buf whole;
    fm_status rc;

    if (offset == 0 && bytes == e->bytes)
        return p->read(p->ctx, e, dst);
    fm_buf_init(&whole, (size_t)FM_MAX_TENSOR_BYTES);
    rc = fm_entry_read(&whole, p, e);
    if (rc == FM_OK)
        memcpy(dst, whole.data + offset, (size_t)bytes);
    fm_buf_release(&whole);
    return rc;
}

fm_status fm_entry_read_range(const fm_provider *p, const fm_entry *e, uint64_t offset,
                              uint64_t bytes, void *dst, unsigned flags)
{
    if (offset > e->bytes || bytes > e->bytes - offset)
        return fm_fail(FM_EINVAL,
                       "'%s' has %" PRIu64 " bytes; %" PRIu64 " from %" PRIu64 " on are not within",
                       e->path, e->bytes, bytes, offset);
    if (bytes == 0)
        return FM_OK;
    if (e->kind == FM_ENTRY_FILE) {
        memcpy(dst, e->data + offset, (size_t)bytes);
        return FM_OK;
    }
    return p->range ? p->range(p->ctx, e, offset, bytes, dst, flags)
                    : range_of_whole(p, e, offset, bytes, dst);
}
