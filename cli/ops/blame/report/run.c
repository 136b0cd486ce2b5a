/* run.c - the operation: request, history, the searches in the guilty step, report. */
#include "cli/ops/blame/report/run.h"

#include <string.h>

#include "cli/ops/base/ranks.h"
#include "cli/ops/blame/report/words.h"
#include "cli/ops/version/suite_edit.h"
#include "store/base/mem.h"

#define MAX_RUNS 400u
#define BUDGET_S 600u

static fm_status check(const fm_ops *c, const fm_blame_request *o)
{
    bool trains = o->data || o->steps || o->repairs || o->fix;
    fm_attribution_kind kind;
    if (!o->case_spec == !o->prompt || !o->prompt != !o->expect)
        return fm_fail(FM_EINVAL, "want a case, or a prompt with what its answer should contain");
    if (!(o->flip_rate >= 0 && o->flip_rate < 0.451) || !(o->confidence >= 0 && o->confidence < 1))
        return fm_fail(FM_EINVAL, "a flip rate is 0 to 0.45, a confidence 0 to below 1");
    if (o->data_method && strcmp(o->data_method, "all") != 0 &&
        fm_attribution_find(&kind, o->data_method) < 0)
        return FM_EINVAL;
    if (o->data_target && strcmp(o->data_target, "margin") != 0 &&
        strcmp(o->data_target, "wrong") != 0)
        return fm_fail(FM_EINVAL, "a target is margin or wrong, not '%s'", o->data_target);
    /* Gradients and training need whole models. */
    return trains && fmo_ranks_count(c) > 1
               ? fm_fail(FM_EUNSUPPORTED,
                         "blame --data, --steps, --repairs and --fix train, and models that are "
                         "split over ranks cannot; leave --ranks and --stages out, or ask for "
                         "--tensors and --trace")
               : FM_OK;
}

/* Checks that the version is named by a branch, which the fix will move. */
static fm_status check_branch(const fmo_blame_run *r)
{
    fm_oid oid;
    char *ref = fm_asprintf("refs/heads/%s", r->ask->rev);
    fm_status rc = ref ? fm_ref_read(r->b.c->repo, &oid, ref) : FM_ENOMEM;
    fm_free(ref);
    bool none = rc == FM_ENOTFOUND || rc == FM_EINVAL;
    return none ? fm_fail(FM_EINVAL,
                          "--fix moves a branch, and '%s' is none; name a "
                          "branch",
                          r->ask->rev)
                : rc;
}

/* Finds the suite and its case. */
static fm_status find_case(fmo_blame_run *r)
{
    const fm_blame_request *o = r->ask;
    fm_ops *c = r->b.c;
    size_t at = 0;
    fm_status rc = FM_OK;
    if (o->prompt) {
        rc = fm_suite_from_prompt(&r->made, o->prompt, o->expect, !o->raw);
        r->b.suite = r->made;
    }
    if (rc == FM_OK && (!o->prompt || o->repairs || o->fix))
        rc = fmo_suites_of(c, r->tree, &r->set);
    if (rc == FM_OK && !o->prompt)
        rc = fmo_suite_case_find(&r->set, o->case_spec, &at, &r->b.case_index);
    if (rc == FM_OK && !o->prompt)
        r->b.suite = r->set.suite[at];
    return rc;
}

static void fill(fmo_blame_run *r, fm_ops *c, const fm_blame_request *o)
{
    const uint32_t max_runs = o->max_runs ? o->max_runs : MAX_RUNS;
    memset(r, 0, sizeof *r);
    r->ask = o;
    r->b.c = c;
    r->b.how = (fmo_blame_how){.flip_rate = o->flip_rate,
                               .confidence = o->confidence,
                               .max_runs = max_runs,
                               .all_versions = o->all_versions,
                               .ranks = o->ranks,
                               .shapley = o->shapley};
    r->b.data.opts = (fmo_blame_data_opts){.method = o->data_method,
                                           .target = o->data_target,
                                           .fidelity = o->fidelity,
                                           .budget = o->trainings};
    r->m = (fmo_blame_more){.b = &r->b,
                            .suites = &r->set,
                            .rev = o->rev,
                            .case_spec = o->case_spec,
                            .rederive = o->rederive,
                            .budget_s = o->budget_s ? o->budget_s : BUDGET_S,
                            .max_runs = max_runs};
}

/* Sets the parts to search, if a step caused the failure: the requested ones; tensors and data if
 * none is requested (tensors alone with several ranks). Repairs need tensors and data. */
static void choose_parts(fmo_blame_run *r)
{
    const fm_blame_request *o = r->ask;
    bool repairs = o->repairs || o->fix, step = fmo_blame_has_step(&r->b);
    bool whole = fmo_ranks_count(r->b.c) == 1;
    bool none = !o->tensors && !o->data && !o->trace && !o->steps && !repairs;
    r->parts.worth = step && o->shapley;
    r->parts.tensors = step && (none || o->tensors || repairs);
    r->parts.data = step && ((none && whole) || o->data || repairs);
    r->parts.trace = step && o->trace;
    r->parts.steps = step && o->steps;
    r->parts.repairs = step && repairs;
}

fm_status fmo_blame_run_history(fmo_blame_run *r, fm_ops *c, const fm_blame_request *ask)
{
    fm_oid oid;
    fill(r, c, ask);
    c->stopped = false;
    fm_status rc = fm_ops_lease(c, ask->fix, "blame");
    FM_THEN(rc, fm_ops_resolve(c, ask->rev, &oid, &r->tree));
    FM_THEN(rc, find_case(r));
    FM_THEN(rc, check(c, ask));
    double began = fm_now_s();
    if (rc == FM_OK && ask->fix)
        rc = check_branch(r);
    FM_THEN(rc, fmo_blame_history(&r->b, &oid));
    r->m.seconds += fm_now_s() - began;
    if (rc == FM_OK && r->b.history.verdict != FM_BLAME_PASSES)
        rc = fmo_blame_find_answers(&r->m);
    if (rc == FM_OK)
        choose_parts(r);
    return rc;
}

fm_status fmo_blame_run_search(fmo_blame_run *r)
{
    double began = fm_now_s();
    fm_status rc = r->parts.worth ? fmo_blame_shapley_steps(&r->m) : FM_OK;
    if (rc == FM_OK && r->parts.tensors)
        rc = fmo_blame_tensors(&r->b);
    if (rc == FM_OK && r->parts.data)
        rc = fmo_blame_data(&r->b);
    r->m.seconds += fm_now_s() - began;
    return rc;
}

fm_status fmo_blame_run_explain(fmo_blame_run *r)
{
    FM_TRY(r->parts.trace ? fmo_blame_trace(&r->m) : FM_OK);
    if (r->parts.steps)
        FM_TRY(fmo_blame_find_step(&r->m));
    if (r->parts.repairs)
        FM_TRY(fmo_blame_find_repairs(&r->m));
    if (r->parts.repairs && r->ask->fix) {
        r->fixed = fmo_blame_fix(&r->m, r->ask->rev);
        fm_error_save(&r->fixed_text);
    }
    return FM_OK;
}

fm_status fmo_blame_run_end(fmo_blame_run *r)
{
    FM_TRY(fm_result_flush(r->b.c->repo));
    if (r->fixed < 0) {
        fm_error_restore(&r->fixed_text);
        FM_TRY(r->fixed);
    }
    return FM_OK;
}

void fmo_blame_run_close(fmo_blame_run *r)
{
    fmo_blame_more_release(&r->m);
    fmo_blame_release(&r->b);
    fm_suite_free(r->made);
    fm_suite_set_free(&r->set);
    fm_tree_free(r->tree);
}

static fm_status report(const fmo_blame_run *r, fm_blame_report *out)
{
    char text[700];
    fmo_blame_verdict_text(&r->b, text, sizeof text);
    out->verdict = r->b.history.verdict;
    out->has_step = fmo_blame_has_step(&r->b);
    if (out->has_step)
        out->culprit = r->b.version[r->b.history.culprit].commit.oid;
    out->sentence = fm_strdup(text);
    out->json = fmo_blame_json(&r->m, r->parts.tensors, r->parts.data);
    return out->sentence && out->json ? FM_OK : FM_ENOMEM;
}

fm_status fm_ops_blame(fm_ops *c, const fm_blame_request *ask, fm_blame_report *out)
{
    fmo_blame_run r;
    memset(out, 0, sizeof *out);
    fm_status rc = fmo_blame_run_history(&r, c, ask);
    FM_THEN(rc, fmo_blame_run_search(&r));
    FM_THEN(rc, fmo_blame_run_explain(&r));
    FM_THEN(rc, report(&r, out));
    FM_THEN(rc, fmo_blame_run_end(&r));
    fmo_blame_run_close(&r);
    return rc;
}

void fm_blame_report_release(fm_blame_report *r)
{
    fm_free(r->sentence);
    fm_json_free(r->json);
    memset(r, 0, sizeof *r);
}
