/* answers.c - finds the wrong and the right answer, and each version's log-probability of them. */
#include "cli/ops/blame/blame_more.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

/* ---- log P ---- */

fm_status fmo_blame_answer_lps(const fmo_blame_more *m, fm_model *model, double *wrong,
                               double *right)
{
    const fmo_blame_answer a[2] = {{model, m->answers.wrong}, {model, m->answers.right}};
    double lp[2];
    fm_status rc = fmo_blame_lps(m->b, a, 2, lp);
    *wrong = lp[0];
    *right = lp[1];
    return rc;
}

fm_status fmo_blame_try(fmo_blame_more *m, const fm_tree *tree, const fmo_blame_overlay *made,
                        const char *what, fm_verdict *verdict, double *margin)
{
    fm_ops *c = m->b->c;
    fm_model *model = NULL;
    fm_suite_run run = {0};
    fm_result_cache cache = fmo_suite_cache(c);
    fm_provider p = made ? made->provider : fm_store_provider(fm_repo_store(c->repo));
    double wrong = NAN, right = NAN;
    *verdict = FM_ERROR_CASE;
    fm_status rc = fmo_ui_go_on(c);
    FM_THEN(rc, fm_ops_engine(c));
    FM_THEN(rc, fm_model_load(&model, c->engine, tree, &p, what));
    FM_THEN(rc, fm_suite_run_on(&run, m->b->suite, model,
                                fm_suite_case_name(m->b->suite, m->b->case_index), &cache));
    if (rc == FM_OK) {
        *verdict = run.result[0].verdict;
        fm_suite_run_release(&run);
        rc = fmo_blame_answer_lps(m, model, &wrong, &right);
    } else if (rc == FM_EUNSUPPORTED) {
        fm_error_clear();
        rc = FM_OK;
    }
    m->runs++;
    *margin = wrong - right;
    fm_model_close(model);
    return rc;
}

/* ---- which answers ---- */

/* The answer of a version, if it passes. */
static fm_status passing_answer(fmo_blame_more *m, size_t node, char **out)
{
    fmo_blame *b = m->b;
    const fm_tree *tree = NULL;
    fmo_blame_heard heard = {0};
    fm_status rc = fmo_blame_node_tree(b, node, &tree);
    const fmo_blame_question q = {
        .tree = tree, .what = fm_ops_short_oid(&b->version[node].commit.oid), .id = node};
    FM_THEN(rc, fmo_blame_ask(b, &q, 1, &heard));
    if (rc == FM_OK) {
        *out = heard.verdict == FM_PASS && heard.text ? fm_strdup(heard.text) : NULL;
        fmo_blame_heard_release(&heard, 1);
    }
    m->runs++;
    return rc;
}

/* Takes the right answer from a parent of the culprit, else from the nearest version that
 * passes. */
static fm_status find_right(fmo_blame_more *m)
{
    fmo_blame *b = m->b;
    const fm_blame_node *n = &b->version[b->history.culprit].node;

    for (size_t i = 0; !m->answers.right && i < n->parent_count + b->count; i++) {
        size_t node = i < n->parent_count ? n->parent[i] : i - n->parent_count;
        if (b->history.at[node] != FM_PASS)
            continue;
        FM_TRY(passing_answer(m, node, &m->answers.right));
        if (m->answers.right)
            m->answers.right_from = fm_strdup(b->version[node].names[0]
                                                  ? b->version[node].names
                                                  : fm_ops_short_oid(&b->version[node].commit.oid));
    }
    return FM_OK;
}

static fm_status likelihoods(fmo_blame_more *m, size_t node)
{
    fmo_blame *b = m->b;
    const fm_tree *tree = NULL;
    fm_model *model = NULL;
    fm_status rc = fmo_blame_node_tree(b, node, &tree);
    FM_THEN(rc,
            fm_ops_load_model(b->c, tree, fm_ops_short_oid(&b->version[node].commit.oid), &model));
    FM_THEN(rc,
            fmo_blame_answer_lps(m, model, &m->answers.wrong_lp[node], &m->answers.right_lp[node]));
    if (rc == FM_EUNSUPPORTED) {
        fm_error_clear();
        rc = FM_OK;
    }
    fm_model_close(model);
    return rc;
}

fm_status fmo_blame_find_answers(fmo_blame_more *m)
{
    fmo_blame *b = m->b;
    double began = fm_now_s();
    m->answers.wrong_lp = fm_calloc(2 * b->count, sizeof(double));
    if (!m->answers.wrong_lp)
        return FM_ENOMEM;
    m->answers.right_lp = m->answers.wrong_lp + b->count;
    for (size_t i = 0; i < 2 * b->count; i++)
        m->answers.wrong_lp[i] = NAN;
    fm_status rc = fmo_blame_open_culprit(b);
    if (rc == FM_OK && b->history.at[b->history.culprit] == FM_FAIL && b->answer &&
        !(m->answers.wrong = fm_strdup(b->answer)))
        rc = FM_ENOMEM;
    FM_THEN(rc, find_right(m));
    for (size_t i = 0; rc == FM_OK && m->answers.wrong && i < b->count; i++) {
        (void)fmo_ui_progress(b->c, i, b->count, "answers: %s",
                              fm_ops_short_oid(&b->version[i].commit.oid));
        rc = fmo_ui_go_on(b->c);
        if (rc == FM_OK && b->history.asks[i] && b->history.at[i] != FM_ERROR_CASE)
            rc = likelihoods(m, i);
    }
    fmo_ui_progress_end(b->c);
    m->seconds += fm_now_s() - began;
    return rc;
}
