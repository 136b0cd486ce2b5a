/* shapley_steps.c - Shapley values of the history's steps: how much each adds to the failure. The
 * base is run with subsets of the steps since. */
#include <math.h>
#include <string.h>

#include "cli/ops/blame/blame_more.h"
#include "cli/ops/base/say.h"
#include "store/base/mem.h"

#define AT_ONCE 16u /* mixtures whose computed tensors are in memory at a time */

/* Whether the step changed a tensor or another part of the model. */
static bool counts(const fmo_blame *b, size_t node)
{
    return b->version[node].node.parent_count && b->version[node].changed_bytes > 0;
}

static fm_status mix_some(const fmo_blame_step_shapley *w, fmo_blame *b, const bool *take, size_t n,
                          double *value)
{
    fm_blame_mix mix[AT_ONCE];
    fm_blame_reply reply[AT_ONCE];
    size_t *step = fm_calloc(n * w->count, sizeof *step);
    fm_status rc = step ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        mix[i] = (fm_blame_mix){.step = step + i * w->count};
        step[i * w->count] = w->node[0]; /* names the base, even with count 0 */
        for (size_t k = 0; k < w->count; k++)
            if (take[i * w->count + k])
                step[i * w->count + mix[i].count++] = w->node[k];
    }
    FM_THEN(rc, fmo_blame_ask_step_mixtures(b, mix, n, reply));
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        if (reply[i].verdict == FM_ERROR_CASE)
            rc = fm_fail(FM_EUNSUPPORTED, "the steps cannot be taken apart: one changed an adapter "
                                          "in place, or what cannot be added");
        value[i] = w->margin ? -reply[i].score : reply[i].verdict == FM_FAIL;
    }
    fm_free(step);
    return rc;
}

typedef struct asking {
    fmo_blame_step_shapley *w;
    fmo_blame *b;
} asking;

static fm_status coalitions(void *ctx, const bool *take, size_t n, double *value)
{
    const asking *a = ctx;

    for (size_t at = 0, some; at < n; at += some) {
        some = FM_MIN(n - at, (size_t)AT_ONCE);
        FM_TRY(mix_some(a->w, a->b, take + at * a->w->count, some, value + at));
    }
    return FM_OK;
}

/* Sets w->margin: whether the base and the base with all steps both have a score. */
static fm_status has_margin(asking *a)
{
    bool both[2 * BLAME_WORTH_MOST] = {false};
    double value[2];
    a->w->margin = true;
    memset(both + a->w->count, 1, a->w->count * sizeof *both);
    fm_status rc = coalitions(a, both, 2, value);
    a->w->margin = rc == FM_OK && isfinite(value[0]) && isfinite(value[1]);
    return rc;
}

fm_status fmo_blame_shapley_steps(fmo_blame_more *m)
{
    fmo_blame *b = m->b;
    fmo_blame_step_shapley *w = &m->worth;
    asking a = {w, b};
    const fm_shapley_opts opts = {
        .max_runs = m->max_runs, .confidence = b->how.confidence, .seed = b->how.seed};
    double began = fm_now_s();
    size_t node = 0;
    for (; b->version[node].node.parent_count; node = b->version[node].node.parent[0]) {
        if (!counts(b, node))
            continue;
        if (w->count == BLAME_WORTH_MOST) {
            w->why_not = fm_asprintf("more than %d steps", BLAME_WORTH_MOST);
            w->count = 0;
            return w->why_not ? FM_OK : FM_ENOMEM;
        }
        w->node[w->count++] = node;
    }
    if (w->count < 2)
        return FM_OK;
    fm_status rc = fmo_blame_open_culprit(b);
    if (rc == FM_OK) {
        fmo_blame_contrast(b);
        rc = has_margin(&a);
    }
    FM_THEN(rc, fm_shapley_values(&w->value, w->count, coalitions, &a, &opts));
    fmo_ui_progress_end(b->c);
    m->seconds += fm_now_s() - began;
    if (rc == FM_EUNSUPPORTED || rc == FM_EINVAL) {
        w->why_not = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = w->why_not ? FM_OK : FM_ENOMEM;
    }
    return rc;
}
