/* names.c - which version a model's name and a revision mean, and what an adapter stands on. */
#include <stdio.h>
#include <string.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"

#define ID_MIN 7u          /* hex digits of a commit's id */
#define FURTHER_MAX 65536u /* versions between an adapter and what it stands on */
#define TOP_CHARS 40u      /* of "adapters/{n}-" */

static bool is_id(const char *text)
{
    const size_t n = strlen(text);
    return n >= ID_MIN && n <= 40 && strspn(text, "0123456789abcdef") == n;
}

void fmr_model_name(fm_buf *out, const char *branch)
{
    for (; *branch; branch++)
        fm_buf_str(out, *branch == '/' ? "__" : (char[2]){*branch, '\0'});
}

/* name with "__" as '/', or NULL where that is the same. */
static char *slashed(const char *name)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    if (!strstr(name, "__"))
        return NULL;
    for (const char *p = name; *p;) {
        const bool slash = p[0] == '_' && p[1] == '_';
        fm_buf_char(&text, slash ? '/' : *p);
        p += slash ? 2 : 1;
    }
    char *out = fm_buf_take(&text);
    fm_buf_release(&text);
    return out;
}

/* A name that git refuses is no ref's. */
static fm_status read_ref(fm_repo *r, const char *ref, fm_oid *out)
{
    const fm_status rc = fm_ref_read(r, out, ref);
    return rc == FM_EINVAL ? FM_ENOTFOUND : rc;
}

static fm_status find_ref(fm_repo *r, fmr_model *m, const char *name)
{
    static const char *const space[] = {"refs/heads/", "refs/tags/"};
    fm_status rc = FM_ENOTFOUND;
    for (size_t i = 0; rc == FM_ENOTFOUND && i < FM_ARRAY_LEN(space); i++) {
        (void)snprintf(m->ref, sizeof m->ref, "%s%s", space[i], name);
        rc = read_ref(r, m->ref, &m->oid);
    }
    return rc;
}

static fm_status find_id(fm_repo *r, fm_oid *out, const char *text)
{
    if (!is_id(text))
        return FM_ENOTFOUND;
    const fm_status rc = fm_rev_resolve(r, out, text);
    return rc == FM_EINVAL ? FM_ENOTFOUND : rc; /* several begin so, or it is no commit */
}

static fm_status find_whole(fm_repo *r, fmr_model *m, const char *name)
{
    if (!*name || strlen(name) > FMR_SERVE_NAME_MAX)
        return FM_ENOTFOUND;
    fm_status rc = find_ref(r, m, name);
    char *other = rc == FM_ENOTFOUND ? slashed(name) : NULL;
    if (other)
        rc = find_ref(r, m, other);
    fm_free(other);
    if (rc == FM_ENOTFOUND) {
        m->ref[0] = '\0';
        rc = find_id(r, &m->oid, name);
    }
    return rc;
}

static bool without(char *out, size_t cap, const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || n - m >= cap || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(out, name, n - m);
    out[n - m] = '\0';
    return true;
}

fm_status fmr_model_find(fm_repo *r, fmr_model *out, const char *name)
{
    char bare[FMR_SERVE_NAME_MAX + 1];
    out->form = FMR_FORM_OWN;
    fm_status rc = find_whole(r, out, name);
    if (rc == FM_ENOTFOUND && without(bare, sizeof bare, name, "-merged")) {
        out->form = FMR_FORM_MERGED;
        rc = find_whole(r, out, bare);
    } else if (rc == FM_ENOTFOUND && without(bare, sizeof bare, name, "-GGUF")) {
        out->form = FMR_FORM_GGUF;
        rc = find_whole(r, out, bare);
    }
    return rc == FM_ENOTFOUND
               ? fm_fail(FM_ENOTFOUND, "no branch, tag or version is called '%.200s'", name)
               : rc;
}

/* The first parts of text up to `end`, as a revision. */
static fm_status read_revision(fm_repo *r, fm_oid *out, const fmr_model *m, const char *text,
                               size_t end)
{
    char rev[FMR_SERVE_REVISION_MAX + 1], ref[FMR_SERVE_REVISION_MAX + 16];
    if (end == 0 || end > FMR_SERVE_REVISION_MAX)
        return FM_ENOTFOUND;
    memcpy(rev, text, end);
    rev[end] = '\0';
    if (strcmp(rev, "main") == 0) {
        *out = m->oid;
        return FM_OK;
    }
    if (strncmp(rev, "refs/heads/", 11) == 0 || strncmp(rev, "refs/tags/", 10) == 0)
        return read_ref(r, rev, out);
    (void)snprintf(ref, sizeof ref, "refs/tags/%s", rev);
    const fm_status rc = read_ref(r, ref, out);
    return rc == FM_ENOTFOUND ? find_id(r, out, rev) : rc;
}

fm_status fmr_model_revision(fm_repo *r, fm_oid *out, const fmr_model *m, const char *text,
                             const char **rest)
{
    fm_status rc = FM_ENOTFOUND;
    size_t end = strcspn(text, "/");
    /* A name may have several parts; none of git's names is a folder of another. */
    while ((rc = read_revision(r, out, m, text, end)) == FM_ENOTFOUND && text[end])
        end += 1 + strcspn(text + end + 1, "/");
    if (rc == FM_ENOTFOUND)
        return fm_fail(rc, "there is no revision '%.*s'", (int)FM_MIN(strcspn(text, "/"), 200u),
                       text);
    FM_TRY(rc);
    *rest = text + end + (text[end] == '/');
    /* One that is named by its id has this version alone: a client that asks for an adapter's
     * revision asks for the same revision of its base. */
    if (!m->ref[0])
        *out = m->oid;
    return FM_OK;
}

/* ==== what an adapter stands on ==== */

static bool is_weights(const fm_entry *e)
{
    return strcmp(e->path, "model.json") == 0 || strncmp(e->path, "tensors/", 8) == 0 ||
           strncmp(e->path, "adapters/", 9) == 0;
}

/* The number of adapters, whose folders are numbered from 0; *top: the last one's number and
 * '-'. */
static size_t adapters(const fm_tree *tree, char top[TOP_CHARS])
{
    size_t begin, end, n = 0;
    do {
        (void)snprintf(top, TOP_CHARS, "adapters/%zu-", n);
        fm_tree_range(tree, top, &begin, &end);
    } while (end > begin && ++n);
    if (n)
        (void)snprintf(top, TOP_CHARS, "adapters/%zu-", n - 1);
    return n;
}

/* The child has the parent's weights, and beside them what lies below `top` alone. */
static bool adds_only(const fm_tree *child, const fm_tree *parent, const char *top)
{
    size_t there = 0, common = 0;
    for (size_t i = 0; i < fm_tree_count(parent); i++)
        there += is_weights(fm_tree_at(parent, i));
    for (size_t i = 0; i < fm_tree_count(child); i++) {
        const fm_entry *e = fm_tree_at(child, i);
        if (!is_weights(e) || strncmp(e->path, top, strlen(top)) == 0)
            continue;
        const fm_entry *p = fm_tree_find(parent, e->path);
        if (!p || p->kind != e->kind || !fm_digest_eq(&p->id, &e->id))
            return false;
        common++;
    }
    return common == there;
}

/* One step towards the first version. *oid: the parent; *done: it is the base, or there is none. */
static fm_status step(fm_repo *r, fm_oid *oid, const fm_tree *tree, size_t count, const char *top,
                      bool *found, bool *done)
{
    char other[TOP_CHARS];
    fm_tree *parent = NULL;
    fm_version v;
    FM_TRY(fm_version_read(r, &v, oid));
    *done = v.parent_count == 0;
    if (!*done)
        *oid = v.parent[0];
    fm_version_release(&v);
    if (*done)
        return FM_OK;
    FM_TRY(fm_version_tree(r, &parent, oid));
    const size_t n = adapters(parent, other);
    *found = n + 1 == count && adds_only(tree, parent, top);
    *done = n != count;
    fm_tree_free(parent);
    return FM_OK;
}

fm_status fmr_model_base(fm_repo *r, const fm_oid *oid, const fm_tree *tree, fm_oid *base,
                         bool *found, bool *whole)
{
    char top[TOP_CHARS];
    const size_t count = adapters(tree, top);
    bool done = count == 0;
    *found = false;
    *whole = count > 1;
    *base = *oid;
    for (size_t i = 0; !done && i < FURTHER_MAX; i++)
        FM_TRY(step(r, base, tree, count, top, found, &done));
    return FM_OK;
}
