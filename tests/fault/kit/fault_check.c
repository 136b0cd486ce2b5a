/* fault_check.c - is the repository whole, and does it hold what it held? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fault/kit/fault_kit.h"

/* The digest of all bytes of a version, remembered from its first reading, which is made while
 * nothing has been disturbed yet. */
enum { MAX_SEEN = 4096, WRONG_BYTES = 3000 };

static struct {
    fm_oid oid;
    fm_digest bytes;
} seen[MAX_SEEN];
static size_t seen_count;
static char wrong[WRONG_BYTES];

static void tell(const char *what, const char *text)
{
    size_t at = strlen(wrong);
    snprintf(wrong + at, sizeof wrong - at, "%s%s%s", at ? "; " : "", what, text);
}

static void on_fault(void *ctx, const char *text)
{
    (void)ctx;
    tell("fsck: ", text);
}

bool fk_is_model(const char *ref)
{
    return strncmp(ref, "refs/heads/", 11) == 0 || strncmp(ref, "refs/tags/", 10) == 0;
}

bool fk_has_version(const fk_refs *refs, const fm_oid *oid)
{
    for (size_t i = 0; i < refs->count; i++)
        if (fk_is_model(refs->ref[i].name) && fm_oid_eq(&refs->ref[i].oid, oid))
            return true;
    return false;
}

size_t fk_first(const fk_refs *refs, size_t at)
{
    size_t i = 0;
    while (i < at &&
           (!fk_is_model(refs->ref[i].name) || !fm_oid_eq(&refs->ref[i].oid, &refs->ref[at].oid)))
        i++;
    return i;
}

typedef struct taking {
    fm_repo *r;
    fk_refs *refs;
} taking;

/* Results are many commits or one, and hold how long a case took: the keys are what counts. */
static fm_status keys_of(fm_repo *r, fm_oid *out, const fm_oid *oid)
{
    fm_tree *tree = NULL;
    fm_buf keys;
    fm_digest d;
    fm_buf_init(&keys, 0);
    fm_status rc = fm_version_tree(r, &tree, oid);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++)
        fm_buf_printf(&keys, "%s\n", fm_tree_at(tree, i)->path);
    if (rc == FM_OK)
        rc = fm_buf_ok(&keys);
    if (rc == FM_OK)
        rc = fm_sha256(&d, keys.data, keys.len);
    if (rc == FM_OK)
        memcpy(out->b, d.b, sizeof out->b);
    fm_tree_free(tree);
    fm_buf_release(&keys);
    return rc;
}

static fm_status take(void *ctx, const char *name, const fm_oid *oid)
{
    taking *t = ctx;
    if (t->refs->count == FK_MAX_REFS)
        return fm_fail(FM_ELIMIT, "more than %d refs", FK_MAX_REFS);
    fk_ref *ref = &t->refs->ref[t->refs->count++];
    snprintf(ref->name, sizeof ref->name, "%s", name);
    ref->oid = *oid;
    return strcmp(name, "refs/fmstore/results") == 0 ? keys_of(t->r, &ref->oid, oid) : FM_OK;
}

fm_status fk_version_digest(fm_repo *r, fm_digest *out, const fm_oid *oid)
{
    fm_tree *tree = NULL;
    fm_hasher *h = NULL;
    fm_buf bytes;
    fm_provider p = fm_store_provider(fm_repo_store(r));
    fm_buf_init(&bytes, 0);
    fm_status rc = fm_version_tree(r, &tree, oid);
    if (rc == FM_OK)
        rc = fm_hasher_new(&h);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        fm_buf_clear(&bytes);
        rc = fm_entry_read(&bytes, &p, e);
        if (rc == FM_OK)
            rc = fm_hasher_update(h, e->path, strlen(e->path) + 1);
        if (rc == FM_OK && bytes.len)
            rc = fm_hasher_update(h, bytes.data, bytes.len);
    }
    if (rc == FM_OK)
        rc = fm_hasher_final(h, out);
    fm_hasher_free(h);
    fm_tree_free(tree);
    fm_buf_release(&bytes);
    return rc;
}

static void check_version(fm_repo *r, const char *name, const fm_oid *oid)
{
    fm_digest got;
    size_t i = 0;
    if (fk_version_digest(r, &got, oid) != FM_OK) {
        tell(name, fm_error_text());
        return;
    }
    while (i < seen_count && !fm_oid_eq(&seen[i].oid, oid))
        i++;
    if (i == seen_count && seen_count < MAX_SEEN) {
        seen[i].oid = *oid;
        seen[i].bytes = got;
        seen_count++;
    } else if (i < seen_count && !fm_digest_eq(&seen[i].bytes, &got)) {
        tell(name, ": other bytes than before");
    }
}

/* Each version is read once, however many names it has. */
static void check_versions(fm_repo *r, const fk_refs *refs, const fk_refs *known)
{
    for (size_t i = 0; i < refs->count; i++) {
        const fk_ref *ref = &refs->ref[i];
        if (fk_is_model(ref->name) && fk_first(refs, i) == i &&
            !(known && fk_has_version(known, &ref->oid)))
            check_version(r, ref->name, &ref->oid);
    }
}

static const fk_ref *find(const fk_refs *refs, const char *name)
{
    for (size_t i = 0; i < refs->count; i++)
        if (strcmp(refs->ref[i].name, name) == 0)
            return &refs->ref[i];
    return NULL;
}

bool fk_refs_equal(const fk_refs *a, const fk_refs *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const fk_ref *other = find(b, a->ref[i].name);
        if (!other || !fm_oid_eq(&other->oid, &a->ref[i].oid))
            return false;
    }
    return true;
}

static bool same(const fk_ref *a, const fk_ref *b)
{
    return (!a && !b) || (a && b && fm_oid_eq(&a->oid, &b->oid));
}

/* A ref is where it was or where it should go, and nowhere else. */
static void check_refs(const fk_refs *now, const fk_refs *before, const fk_refs *after,
                       bool wants_after)
{
    const fk_refs *all[3] = {before, after, now};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < all[k]->count; i++) {
            const char *name = all[k]->ref[i].name;
            const fk_ref *at = find(now, name);
            bool old = same(at, find(before, name)), new = same(at, find(after, name));
            if (!old && !new)
                tell(name, at ? " moved to something unknown" : " is lost");
            else if (wants_after && !new)
                tell(name, " was not moved though the command said so");
        }
}

/* Who opens a repository removes the temporaries of the dead. */
static void check_temps(const char *repo)
{
    char *dir = fm_path_join(repo, ".fmstore/tmp");
    fm_names names;
    if (fm_list_dir(&names, dir) == FM_OK) {
        for (size_t i = 0; i < names.count; i++)
            if (strncmp(names.name[i], "tmp-", 4) == 0)
                tell("left in tmp/: ", names.name[i]);
        fm_names_release(&names);
    }
    fm_free(dir);
}

void fk_refs_of(fk_refs *out, const char *repo)
{
    fm_repo *r;
    out->count = 0;
    tk_ok(fm_repo_open(&r, repo));
    tk_ok(fm_ref_each(r, "refs/", take, &(taking){r, out}));
    fm_repo_close(r);
}

const char *fk_wrong(const char *repo, const fk_refs *before, const fk_refs *after,
                     bool wants_after)
{
    static fk_refs now;
    fm_repo *r = NULL;
    fm_fsck_report report;
    wrong[0] = '\0';
    now.count = 0;
    if (fm_repo_open(&r, repo) != FM_OK) {
        tell("does not open: ", fm_error_text());
        return wrong;
    }
    if (fm_repo_fsck(r, true, &report, on_fault, NULL) != FM_OK)
        tell("fsck fails: ", fm_error_text());
    if (fm_ref_each(r, "refs/", take, &(taking){r, &now}) != FM_OK)
        tell("refs: ", fm_error_text());
    check_refs(&now, before, after, wants_after);
    check_temps(repo);
    check_versions(r, before, NULL);
    check_versions(r, &now, before);
    fm_repo_close(r);
    return wrong;
}
