/* blame.c - where in history a case began to fail.
 *
 * Every version is asked once, the failing one first; then the graph alone decides. What failed is
 * followed upwards along failing parents, and through versions that could not be asked, whose own
 * parents stand in for them. A failing version none of whose parents fails introduced it. A merge
 * of a failing and a passing line has the failure from the failing line, unless that line failed
 * from its root on and the other one had mended it: then the merge lost the repair. */
#include <string.h>

#include "store/base/mem.h"
#include "testing/internal.h"

typedef struct search {
    const fm_blame_node *node;
    size_t count;
    const fm_verdict *at;
    bool *mark, *near; /* scratch [count] each */
} search;

/* What the parents of a version said, those that could not be asked replaced by their parents. */
typedef struct ancestry {
    size_t passing, failing, unasked;
} ancestry;

static void mark_parents(const search *s, size_t i)
{
    for (size_t p = 0; p < s->node[i].parent_count; p++)
        s->mark[s->node[i].parent[p]] = true;
}

/* Parents come after children, so one sweep sees each version after all that lead to it. */
static ancestry parents_of(const search *s, size_t i)
{
    ancestry a = {0};
    memset(s->mark, 0, s->count * sizeof *s->mark);
    mark_parents(s, i);
    for (size_t k = i + 1; k < s->count; k++) {
        if (!s->mark[k])
            continue;
        a.passing += s->at[k] == FM_PASS;
        a.failing += s->at[k] == FM_FAIL;
        a.unasked += s->at[k] == FM_ERROR_CASE;
        if (s->at[k] == FM_ERROR_CASE)
            mark_parents(s, k);
    }
    return a;
}

static bool failed_before(const search *s, size_t i)
{
    bool before = false;
    memset(s->mark, 0, s->count * sizeof *s->mark);
    mark_parents(s, i);
    for (size_t k = i + 1; k < s->count; k++) {
        if (!s->mark[k])
            continue;
        before = before || s->at[k] == FM_FAIL;
        mark_parents(s, k);
    }
    return before;
}

/* Does a passing parent of i (or one behind an unasked parent) itself come from a failing version?
 */
static bool lost_a_repair(const search *s, size_t i)
{
    bool found = false;
    parents_of(s, i);
    memcpy(s->near, s->mark, s->count * sizeof *s->mark);
    for (size_t k = i + 1; !found && k < s->count; k++)
        found = s->near[k] && s->at[k] == FM_PASS && failed_before(s, k);
    return found;
}

static void accuse(fm_blame_history *out, fm_blame_class class, size_t culprit, bool uncertain)
{
    out->verdict = class;
    out->culprit = culprit;
    out->uncertain = uncertain;
}

/* failing[i]: version i is reached from node 0 through versions that do not pass. */
static void classify(const search *s, bool *failing, fm_blame_history *out)
{
    size_t merge = SIZE_MAX, oldest = 0;
    bool unasked = false;
    failing[0] = true;
    for (size_t i = 0; i < s->count; i++) {
        if (!failing[i])
            continue;
        unasked = unasked || s->at[i] == FM_ERROR_CASE;
        for (size_t p = 0; p < s->node[i].parent_count; p++)
            if (s->at[s->node[i].parent[p]] != FM_PASS)
                failing[s->node[i].parent[p]] = true;
        if (s->at[i] != FM_FAIL)
            continue;
        oldest = i;
        ancestry a = parents_of(s, i);
        if (a.passing && !a.failing) {
            fm_blame_class class =
                failed_before(s, i) ? FM_BLAME_REINTRODUCED : FM_BLAME_INTRODUCED;
            accuse(out, class, i, a.unasked > 0);
            return;
        }
        if (a.passing && merge == SIZE_MAX && lost_a_repair(s, i))
            merge = i;
    }
    if (merge != SIZE_MAX)
        accuse(out, FM_BLAME_REINTRODUCED, merge, unasked);
    else
        accuse(out, FM_BLAME_INHERITED, oldest, unasked);
}

static fm_status ask_all(const fm_blame_node *nodes, size_t count, fm_blame_eval_fn eval, void *ctx,
                         fm_verdict *at)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        for (size_t p = 0; p < nodes[i].parent_count; p++)
            fm_assert(nodes[i].parent[p] > i && nodes[i].parent[p] < count);
        rc = eval(ctx, i, &at[i]);
        if (rc == FM_OK && i == 0 && at[i] == FM_ERROR_CASE)
            rc = fm_fail(FM_EUNSUPPORTED, "the case cannot be run on this version, so there is no "
                                          "failure to trace; 'fmstore test' says why");
    }
    return rc;
}

fm_status fm_blame_find(fm_blame_history *out, const fm_blame_node *nodes, size_t count,
                        fm_blame_eval_fn eval, void *ctx)
{
    memset(out, 0, sizeof *out);
    fm_assert(count > 0);
    bool *failing = fm_calloc(count, sizeof *failing), *mark = fm_calloc(count, sizeof *mark),
         *near = fm_calloc(count, sizeof *near);
    fm_verdict *at = fm_calloc(count, sizeof *at);
    fm_status rc = failing && mark && near && at ? ask_all(nodes, count, eval, ctx, at) : FM_ENOMEM;
    accuse(out, FM_BLAME_PASSES, 0, false);
    search s = {nodes, count, at, mark, near};
    if (rc == FM_OK && at[0] == FM_FAIL)
        classify(&s, failing, out);
    fm_free(failing);
    fm_free(mark);
    fm_free(near);
    if (rc < 0) {
        fm_free(at);
        memset(out, 0, sizeof *out);
        return rc;
    }
    out->at = at;
    return FM_OK;
}
