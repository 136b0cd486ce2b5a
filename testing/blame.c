/* blame.c - where in history a case began to fail.
 *
 * Each version is asked at most once, and asked only when the answer matters: from the failing version
 * upwards along failing parents. A version whose parents all pass, itself failing, introduced the
 * failure. Then older ancestors are looked at: a failure there means fixed, then broken again.
 * Versions that cannot run count as neither: the search goes on through them. */
#include <string.h>

#include "store/base/mem.h"
#include "testing/internal.h"

typedef struct search {
    const fm_blame_node *node;
    size_t count;
    fm_blame_eval_fn eval;
    void *ctx;
    bool *known;
    fm_verdict *at;
} search;

static fm_status ask(search *s, size_t i, fm_verdict *v)
{
    fm_status rc = FM_OK;
    if (!s->known[i]) {
        rc = s->eval(s->ctx, i, &s->at[i]);
        s->known[i] = rc == FM_OK;
    }
    *v = s->at[i];
    return rc;
}

/* The oldest failing version reachable from node 0 along failing (or unaskable) parents: nodes come
 * children before parents, so the last one marked is the oldest. */
static fm_status walk_failing(search *s, bool *failing, size_t *origin)
{
    fm_status rc = FM_OK;
    fm_verdict v;
    failing[0] = true;
    *origin = 0;
    for (size_t i = 0; rc == FM_OK && i < s->count; i++) {
        if (!failing[i])
            continue;
        if (s->at[i] == FM_FAIL)
            *origin = i;
        for (size_t p = 0; rc == FM_OK && p < s->node[i].parent_count; p++) {
            size_t parent = s->node[i].parent[p];
            rc = ask(s, parent, &v);
            if (rc == FM_OK && v != FM_PASS)
                failing[parent] = true;
        }
    }
    return rc;
}

static bool has_passing_parent(const search *s, size_t i)
{
    for (size_t p = 0; p < s->node[i].parent_count; p++)
        if (s->at[s->node[i].parent[p]] == FM_PASS)
            return true;
    return false;
}

/* Some failing version on the way back has a passing parent? Then the newest such is the culprit of
 * this failure; *origin is left when there is none (inherited from a root). */
static bool find_introduction(const search *s, const bool *failing, size_t *culprit)
{
    for (size_t i = 0; i < s->count; i++)
        if (failing[i] && s->at[i] == FM_FAIL && has_passing_parent(s, i)) {
            *culprit = i;
            return true;
        }
    return false;
}

/* Everything older than a version that passes: did it fail there? */
static fm_status failed_before(search *s, size_t culprit, bool *out)
{
    bool *older = fm_calloc(s->count, sizeof *older);
    fm_status rc = older ? FM_OK : FM_ENOMEM;
    fm_verdict v;
    *out = false;
    if (older)
        older[culprit] = true;
    for (size_t i = culprit; rc == FM_OK && i < s->count; i++)
        for (size_t p = 0; older[i] && rc == FM_OK && p < s->node[i].parent_count; p++) {
            size_t parent = s->node[i].parent[p];
            older[parent] = true;
            rc = ask(s, parent, &v);
            *out = *out || (rc == FM_OK && v == FM_FAIL);
        }
    fm_free(older);
    return rc;
}

static fm_status ask_the_rest(search *s)
{
    fm_status rc = FM_OK;
    fm_verdict v;
    for (size_t i = 0; rc == FM_OK && i < s->count; i++)
        rc = ask(s, i, &v);
    return rc;
}

static fm_status classify(search *s, bool *failing, fm_blame_history *out)
{
    bool before = false;
    size_t origin;
    fm_status rc = walk_failing(s, failing, &origin);
    out->culprit = origin;
    out->verdict = FM_BLAME_INHERITED;
    if (rc < 0 || !find_introduction(s, failing, &out->culprit))
        return rc;
    rc = failed_before(s, out->culprit, &before);
    out->verdict = before ? FM_BLAME_REINTRODUCED : FM_BLAME_INTRODUCED;
    return rc;
}

fm_status fm_blame_find(fm_blame_history *out, const fm_blame_node *nodes, size_t count,
                        fm_blame_eval_fn eval, void *ctx)
{
    memset(out, 0, sizeof *out);
    fm_assert(count > 0);
    search s = {nodes, count, eval, ctx, fm_calloc(count, sizeof(bool)),
                fm_calloc(count, sizeof(fm_verdict))};
    bool *failing = fm_calloc(count, sizeof *failing);
    fm_verdict v = FM_PASS;
    fm_status rc = s.known && s.at && failing ? ask(&s, 0, &v) : FM_ENOMEM;
    if (rc == FM_OK && v == FM_ERROR_CASE)
        rc = fm_fail(FM_EUNSUPPORTED, "the case cannot be run on this version, so there is no "
                                      "failure to trace; 'fmstore test' says why");
    out->verdict = FM_BLAME_PASSES;
    if (rc == FM_OK && v == FM_FAIL)
        rc = classify(&s, failing, out);
    if (rc == FM_OK)
        rc = ask_the_rest(&s);
    fm_free(failing);
    fm_free(s.known);
    if (rc < 0) {
        fm_free(s.at);
        memset(out, 0, sizeof *out);
        return rc;
    }
    out->at = s.at;
    return FM_OK;
}
