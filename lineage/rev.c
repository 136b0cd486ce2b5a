/* rev.c - resolves a version's name, written as for git, to a commit; libgit2 does the parsing.
 *
 * HEAD is refused: nothing is checked out, so HEAD would mean whichever branch was made first. */
#include "lineage/internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_NEAR_BYTES 64u

/* The number of letters to insert, delete or replace; the length limit bounds the cost. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[MAX_NEAR_BYTES + 1], n = strlen(a), m = strlen(b);

    if (n > MAX_NEAR_BYTES || m > MAX_NEAR_BYTES)
        return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t up = row[j], cost = diag + (a[i - 1] != b[j - 1]);
            size_t best = FM_MIN(up, row[j - 1]) + 1;
            row[j] = FM_MIN(best, cost);
            diag = up;
        }
    }
    return row[m];
}

typedef struct near {
    const char *want;
    size_t best;
    char name[MAX_NEAR_BYTES + 1];
} near;

static fm_status try_near(void *ctx, const char *name, const fm_oid *oid)
{
    near *n = ctx;
    const char *bare = strchr(name + 5, '/'); /* after refs/heads, refs/tags or refs/remotes */
    size_t d;

    (void)oid;
    bare = bare ? bare + 1 : name;
    d = edit_distance(n->want, bare);
    if (d < n->best) {
        n->best = d;
        memcpy(n->name, bare, strlen(bare) + 1);
    }
    return FM_OK;
}

static fm_status not_found(fm_repo *r, const char *rev)
{
    char want[FML_MAX_REV_BYTES + 1];
    size_t len = strcspn(rev, "~^@");
    near n = {.want = want};

    memcpy(want, rev, len);
    want[len] = '\0';
    n.best = len / 3 + 2; /* a third of the letters may be wrong */
    n.best = FM_MIN(n.best, FM_MAX(len, (size_t)1));
    if (fm_ref_each(r, "refs/heads/", try_near, &n) == FM_OK &&
        fm_ref_each(r, "refs/tags/", try_near, &n) == FM_OK &&
        fm_ref_each(r, "refs/remotes/", try_near, &n) == FM_OK && n.name[0] && n.best == 0)
        return fm_fail(FM_ENOTFOUND, "no version '%s': '%s' exists but does not go back that far",
                       rev, n.name);
    if (n.name[0])
        return fm_fail(FM_ENOTFOUND, "no version '%s'; did you mean '%s'?", rev, n.name);
    return fm_fail(FM_ENOTFOUND, "no version '%s'; 'fmstore branch' lists the names", rev);
}

static fm_status check_spelling(const char *rev)
{
    size_t len = rev ? strlen(rev) : 0;

    if (len == 0)
        return fm_fail(FM_EINVAL, "no version was named");
    if (len > FML_MAX_REV_BYTES)
        return fm_fail(FM_EINVAL, "version '%.40s...': longer than %u bytes", rev,
                       FML_MAX_REV_BYTES);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)rev[i] < ' ' || rev[i] == 0x7f)
            return fm_fail(FM_EINVAL, "a version's name holds a control byte");
    if (rev[0] == '-')
        return fm_fail(FM_EINVAL, "version '%s' begins with '-'", rev);
    if (strchr(rev, ':'))
        return fm_fail(FM_EINVAL, "version '%s' holds ':'; a path is not a version", rev);
    if (strstr(rev, ".."))
        return fm_fail(FM_EINVAL, "version '%s' is a range; one version is needed", rev);
    if (rev[0] == '@' || (strncmp(rev, "HEAD", 4) == 0 && (!rev[4] || strchr("~^@", rev[4]))))
        return fm_fail(FM_EINVAL, "version '%s': nothing is checked out here; name a branch", rev);
    return FM_OK;
}

/* git takes a tag before a branch of the same name; here a branch is a model's name, which no tag
 * that comes from elsewhere may take over. out: rev with the whole name of the branch, if there is
 * one. */
static void branch_first(fm_repo *r, char *out, size_t bytes, const char *rev)
{
    static const char *const space[] = {"refs/heads/", "refs/remotes/"};
    const char *at = strstr(rev, "@{");
    size_t n = strcspn(rev, "~^");

    n = at ? FM_MIN(n, (size_t)(at - rev)) : n;
    snprintf(out, bytes, "%s", rev);
    for (size_t i = 0; i < FM_ARRAY_LEN(space); i++) {
        char name[FML_MAX_REV_BYTES + 32];
        git_oid id;
        snprintf(name, sizeof name, "%s%.*s", space[i], (int)n, rev);
        if (git_reference_name_to_id(&id, r->git, name) == 0) {
            snprintf(out, bytes, "%s%s", space[i], rev);
            return;
        }
    }
}

fm_status fm_rev_resolve(fm_repo *r, fm_oid *out, const char *rev)
{
    char whole[FML_MAX_REV_BYTES + 32];
    git_object *obj = NULL, *commit = NULL;
    fm_status rc;
    int code;

    memset(out, 0, sizeof *out);
    rc = r ? check_spelling(rev) : fm_fail(FM_EINVAL, "version: no repository");
    if (rc < 0)
        return rc;
    branch_first(r, whole, sizeof whole, rev);
    code = git_revparse_single(&obj, r->git, whole);
    if (code == GIT_ENOTFOUND)
        return not_found(r, rev);
    if (code == GIT_EAMBIGUOUS)
        return fm_fail(FM_EINVAL, "version '%s' is the beginning of several ids; add digits", rev);
    if (code < 0)
        return fml_git_fail(code, "version '%s' cannot be understood", rev);
    code = git_object_peel(&commit, obj, GIT_OBJECT_COMMIT);
    if (code < 0)
        rc = fm_fail(FM_EINVAL, "'%s' is a %s, not a version", rev,
                     git_object_type2string(git_object_type(obj)));
    else
        rc = fml_hold_commit(r, git_object_id(commit));
    if (rc == FM_OK)
        fml_from_git(out, git_object_id(commit));
    git_object_free(commit);
    git_object_free(obj);
    return rc;
}
