/* fix.c - finds repairs: makes candidates, runs all suites of the version on each, and ranks them
 * (commit.c commits the best). */
#include "cli/ops/blame/repair/fix.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/blame/repair/rederive.h"
#include "store/base/math/hash.h"
#include "store/base/mem.h"

typedef struct outcomes { /* results of all suites on one tree */
    fm_suite_run *run;
    size_t count;
} outcomes;

static void outcomes_release(outcomes *o)
{
    for (size_t i = 0; i < o->count; i++)
        fm_suite_run_release(&o->run[i]);
    fm_free(o->run);
    *o = (outcomes){0};
}

static fm_status run_suites(fmo_blame_more *m, const fm_tree *tree, const fm_provider *p,
                            const char *what, outcomes *out)
{
    fm_ops *c = m->b->c;
    fm_model *model = NULL;
    fm_result_cache cache = fmo_suite_cache(c);
    size_t n = m->suites->count;
    fm_suite_ask *ask = fm_calloc(FM_MAX(n, (size_t)1), sizeof *ask);
    out->run = fm_calloc(FM_MAX(n, (size_t)1), sizeof *out->run);
    fm_status rc = ask && out->run ? fm_ops_engine(c) : FM_ENOMEM;
    FM_THEN(rc, fm_model_load(&model, c->engine, tree, p, what));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        ask[i] = (fm_suite_ask){.suite = m->suites->suite[i], .model = model};
    if (rc == FM_OK && n)
        rc = fm_suites_run(out->run, ask, n, &cache);
    out->count = rc == FM_OK ? n : 0;
    m->runs++;
    fm_model_close(model);
    fm_free(ask);
    return rc;
}

/* ---- one candidate ---- */

static fm_status add_name(char ***list, size_t *count, size_t *cap, const fm_suite_run *run,
                          size_t i)
{
    FM_TRY(fm_grow(list, cap, *count + 1, sizeof **list));
    (*list)[*count] = fm_asprintf("%s/%s", fm_suite_name(run->suite), run->result[i].name);
    return (*list)[(*count)++] ? FM_OK : FM_ENOMEM;
}

static fm_status compare(fmo_blame_candidate *k, const outcomes *before, const outcomes *after)
{
    fm_status rc = FM_OK;
    for (size_t s = 0; s < before->count; s++) {
        const fm_suite_run *a = &before->run[s], *b = &after->run[s];
        k->total += b->count;
        k->passed += b->passed;
        k->passed_before += a->passed;
        for (size_t i = 0; rc == FM_OK && i < a->count && i < b->count; i++) {
            bool was = a->result[i].verdict == FM_PASS, is = b->result[i].verdict == FM_PASS;
            if (was && !is)
                rc = add_name(&k->breaks, &k->break_count, &k->break_cap, b, i);
            if (!was && is)
                rc = add_name(&k->fixes, &k->fix_count, &k->fix_cap, b, i);
        }
    }
    return rc;
}

/* Adds the sum of squares of the difference of two entries. An entry that is NULL, or cannot be
 * read as numbers, counts as zero. */
static fm_status add_distance(const fm_provider *p, const fm_entry *a, const fm_entry *b,
                              double *sum)
{
    float *x = NULL, *y = NULL;
    uint64_t n = 0, other = 0;
    fm_status rc = FM_OK;
    if (a && b && fm_digest_eq(&a->id, &b->id))
        return FM_OK;
    if (a && fmo_blame_can_compute(a)) {
        rc = fm_shape_elems(&n, &a->shape);
        FM_THEN(rc, fmo_blame_read_f32(p, a, &x));
    }
    if (rc == FM_OK && b && fmo_blame_can_compute(b)) {
        rc = fm_shape_elems(&other, &b->shape);
        FM_THEN(rc, fmo_blame_read_f32(p, b, &y));
    }
    for (uint64_t i = 0; rc == FM_OK && i < FM_MAX(n, other); i++) {
        double d = (i < n ? (double)x[i] : 0) - (i < other ? (double)y[i] : 0);
        *sum += d * d;
    }
    fm_free(x);
    fm_free(y);
    return rc;
}

static bool is_weight(const fm_entry *e)
{
    return e->kind == FM_ENTRY_TENSOR;
}

static fm_status distance(const fm_provider *p, const fm_tree *a, const fm_tree *b, double *out)
{
    double sum = 0;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(a); i++) {
        const fm_entry *e = fm_tree_at(a, i);
        if (is_weight(e))
            rc = add_distance(p, e, fm_tree_find(b, e->path), &sum);
    }
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(b); i++) {
        const fm_entry *e = fm_tree_at(b, i);
        if (is_weight(e) && !fm_tree_find(a, e->path))
            rc = add_distance(p, NULL, e, &sum);
    }
    *out = sqrt(sum);
    return rc;
}

/* The mean of the version's margin and that of the guilty step's parent; NaN if one is not
 * known. */
static double halfway(const fmo_blame_more *m)
{
    const fmo_blame *b = m->b;
    const fm_blame_node *n = &b->version[b->history.culprit].node;
    size_t parent = n->parent_count ? n->parent[0] : 0;
    const fmo_blame_answers *a = &m->answers;
    return (a->wrong_lp[0] - a->right_lp[0] + a->wrong_lp[parent] - a->right_lp[parent]) / 2;
}

static fm_status judge(fmo_blame_more *m, fmo_blame_candidate *k, const fm_tree *version,
                       const outcomes *before)
{
    double moved = 0, whole = 0;
    outcomes after = {0};
    fm_verdict v = FM_ERROR_CASE;
    fm_provider p = k->made->provider;
    (void)fmo_ui_progress(m->b->c, 0, 0, "repair: all suites on '%s'", k->what);
    fm_status rc = fmo_blame_try(m, k->tree, k->made, "candidate", &v, &k->margin);
    FM_THEN(rc, run_suites(m, k->tree, &p, "candidate", &after));
    FM_THEN(rc, compare(k, before, &after));
    FM_THEN(rc, distance(&p, version, k->tree, &moved));
    FM_THEN(rc, distance(&p, m->b->parent, m->b->child, &whole));
    k->moved = whole > 0 ? moved / whole : 0;
    k->passes = v == FM_PASS;
    k->offered = k->passes && k->break_count == 0;
    k->firm = k->margin < 0 && k->margin <= halfway(m);
    k->run = rc == FM_OK;
    outcomes_release(&after);
    return rc;
}

/* A candidate that cannot be made keeps the reason in k->why; other failures are returned. */
static fm_status set_aside(fmo_blame_candidate *k, fm_status rc)
{
    if (rc != FM_EUNSUPPORTED && rc != FM_EINVAL && rc != FM_ENOTFOUND && rc != FM_EBASE)
        return rc;
    k->why = fm_strdup(fm_error_text());
    fm_error_clear();
    fm_tree_free(k->tree);
    k->tree = NULL;
    return k->why ? FM_OK : FM_ENOMEM;
}

static fm_status add(fmo_blame_more *m, fmo_blame_repair_kind kind, char *what,
                     fmo_blame_candidate **out)
{
    fmo_blame_repairs *r = &m->repairs;
    fm_status rc = what ? fm_grow(&r->item, &r->cap, r->count + 1, sizeof *r->item) : FM_ENOMEM;
    if (rc < 0) {
        fm_free(what);
        return rc;
    }
    *out = &r->item[r->count++];
    **out = (fmo_blame_candidate){.kind = kind, .what = what, .margin = NAN};
    return FM_OK;
}

/* ---- grafts ---- */

static char *graft_text(const fmo_blame *b, bool reweight, bool whole)
{
    if (whole)
        return fm_asprintf("re-weight the whole step, %zu tensors", b->unit_count);
    return fm_asprintf(reweight ? "re-weight %zu of %zu tensors towards the parent"
                                : "set %zu of %zu tensors back to the parent",
                       b->repair.size, b->unit_count);
}

static fm_status graft_one(fmo_blame_more *m, bool reweight, bool whole, const fm_tree *version,
                           const outcomes *before)
{
    fmo_blame_candidate *k = NULL;
    double began = fm_now_s();
    FM_TRY(add(m, reweight ? BLAME_REPAIR_REWEIGHT : BLAME_REPAIR_REVERT,
               graft_text(m->b, reweight, whole), &k));
    k->whole = whole;
    fm_status rc = reweight ? fmo_blame_reweight(m, k) : fmo_blame_graft(m, k, 0);
    FM_THEN(rc, judge(m, k, version, before));
    if (rc == FM_OK && !(k->recipe = fmo_blame_graft_recipe(m, k)))
        rc = FM_ENOMEM;
    k->seconds = fm_now_s() - began;
    return set_aside(k, rc);
}

static fm_status grafts(fmo_blame_more *m, const fm_tree *version, const outcomes *before)
{
    fmo_blame *b = m->b;
    fm_status rc = FM_OK;
    if (!b->unit_count)
        return FM_OK;
    if (b->repair.sufficient && b->repair.size) {
        rc = graft_one(m, false, false, version, before);
        FM_THEN(rc, graft_one(m, true, false, version, before));
    }
    return rc == FM_OK && b->repair.size < b->unit_count ? graft_one(m, true, true, version, before)
                                                         : rc;
}

/* ---- train again ---- */

/* The recipe of this training, with the version and case that it repairs. */
static fm_json *trained_recipe(const fmo_blame_more *m, const fmo_blame_variant *v)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_copy(v->recipe), *repairs = fm_json_new_object();
    fm_oid_hex(&m->b->version[0].commit.oid, hex);
    fm_json_put(&rc, repairs, "version", fm_json_new_str(hex));
    fm_json_put(&rc, repairs, "case", fm_json_new_str(m->case_spec));
    fm_json_put(&rc, o, "data", fmo_data_manifests(v->data));
    fm_json_put(&rc, o, "repairs", repairs);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* Whether a candidate waits for its training: it has neither a tree nor a reason for none. */
static bool waits(const fmo_blame_candidate *k)
{
    return (k->kind == BLAME_REPAIR_DROP || k->kind == BLAME_REPAIR_FILE) && !k->why && !k->tree;
}

static bool same_file(const fmo_blame_example *a, const fmo_blame_example *b)
{
    return !a->file || !b->file || strcmp(a->file, b->file) == 0;
}

/* The recipe without the records that stand out, each left out of its own file. */
static fm_json *recipe_without_outstanding(const fmo_blame *b, const fm_json *recipe)
{
    uint32_t *record = fm_calloc(b->outstanding, sizeof *record);
    fm_json *out = record ? fm_json_copy(recipe) : NULL;
    for (size_t i = 0; out && i < b->outstanding; i++) {
        size_t n = 0, first = 0;
        while (!same_file(&b->example[first], &b->example[i]))
            first++;
        if (first < i) /* done with the first record of its file */
            continue;
        for (size_t k = i; k < b->outstanding; k++)
            if (same_file(&b->example[k], &b->example[i]))
                record[n++] = b->example[k].index;
        fm_json *less = fmo_blame_recipe_without(out, b->example[i].file, record, n);
        fm_json_free(out);
        out = less;
    }
    fm_free(record);
    return out;
}

static fm_json *recipe_for(const fmo_blame_more *m, const fmo_replay *r,
                           const fmo_blame_candidate *k)
{
    if (k->kind == BLAME_REPAIR_FILE)
        return fmo_blame_recipe_without(r->recipe, strchr(k->what, ' ') + 1, NULL, 0);
    return recipe_without_outstanding(m->b, r->recipe);
}

static fm_status rederive_one(fmo_blame_more *m, const fmo_replay *r, fmo_blame_candidate *k,
                              const fm_tree *version, const outcomes *before)
{
    fmo_blame_variant v;
    fm_status rc = fmo_blame_variant_open(&v, r, &r->config, recipe_for(m, r, k));
    FM_THEN(rc, fmo_blame_variants_train(m, r, &v, 1, "repair"));
    if (rc == FM_OK && v.result.failed)
        rc = fm_fail(FM_EUNSUPPORTED, "%s", v.result.why ? v.result.why : "training failed");
    FM_THEN(rc, fmo_blame_candidate_clear(m, k));
    FM_THEN(rc, fmo_blame_tree_of_result(r, &v.result, &k->tree, k->made));
    if (rc == FM_OK && !(k->recipe = trained_recipe(m, &v)))
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        k->log = fm_json_ref(v.result.log);
    FM_THEN(rc, judge(m, k, version, before));
    fmo_blame_variant_release(&v);
    return rc;
}

static fm_status list_rederivations(fmo_blame_more *m, const fmo_replay *r)
{
    fmo_blame *b = m->b;
    fmo_blame_candidate *k = NULL;
    const fm_json *data = fm_json_get(r->recipe, "data");

    size_t files = fm_json_count(data);
    if (b->outstanding)
        FM_TRY(add(m, BLAME_REPAIR_DROP,
                   fm_asprintf("train again without %zu examples that stand out", b->outstanding),
                   &k));
    for (size_t i = 0; files > 1 && i < files; i++)
        if (!fm_json_bool(fm_json_get(fm_json_at(data, i), "evaluation"), false))
            FM_TRY(add(m, BLAME_REPAIR_FILE,
                       fm_asprintf("without %s",
                                   fm_json_cstr(fm_json_get(fm_json_at(data, i), "name"), "")),
                       &k));
    return FM_OK;
}

static fm_status refuse(fmo_blame_candidate *k, const char *why)
{
    k->why = fm_strdup(why);
    return k->why ? FM_OK : FM_ENOMEM;
}

static fm_status rederive_all(fmo_blame_more *m, const fmo_replay *r, const fm_tree *version,
                              const outcomes *before)
{
    fmo_blame_repairs *s = &m->repairs;
    uint64_t state_bytes;
    double each = m->steps.plan_s > 0 ? m->steps.plan_s : fmo_blame_plan(m, r, &state_bytes);
    double left = (double)m->budget_s - m->steps.seconds;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < s->count; i++) {
        fmo_blame_candidate *k = &s->item[i];
        double began = fm_now_s();
        char text[200];
        if (!waits(k))
            continue;
        snprintf(text, sizeof text, "about %.0f s of training: add --rederive", each);
        if (m->b->history.culprit != 0)
            rc = refuse(k, "a later step stands on the guilty one: derive it again first");
        else if (!m->rederive)
            rc = refuse(k, text);
        else if (each > left)
            rc = refuse(k, "the budget is used up");
        else
            rc = set_aside(k, rederive_one(m, r, k, version, before));
        k->seconds = fm_now_s() - began;
        left -= k->seconds;
    }
    return rc;
}

static fm_status rederivations(fmo_blame_more *m, const fm_tree *version, const outcomes *before)
{
    fmo_replay r;
    fm_status rc = fmo_blame_replay_open(m, &r);
    FM_THEN(rc, list_rederivations(m, &r));
    FM_THEN(rc, rederive_all(m, &r, version, before));
    fmo_blame_replay_close(m, &r);
    if (rc == FM_EUNSUPPORTED || rc == FM_ECORRUPT || rc == FM_ENOTFOUND) {
        fm_error_clear(); /* no training made it, or it cannot be repeated: only grafts are left */
        rc = FM_OK;
    }
    return rc;
}

/* ---- all candidates ---- */

/* Order: the offered first; then those that were run; more cases fixed; fewer broken; firm ones; a
 * smaller change of the version. */
static int better(const void *x, const void *y)
{
    const fmo_blame_candidate *a = x, *b = y;
    if (a->offered != b->offered)
        return a->offered ? -1 : 1;
    if (a->run != b->run)
        return a->run ? -1 : 1;
    if (a->fix_count != b->fix_count)
        return a->fix_count > b->fix_count ? -1 : 1;
    if (a->break_count != b->break_count)
        return a->break_count < b->break_count ? -1 : 1;
    if (a->firm != b->firm)
        return a->firm ? -1 : 1;
    if (a->moved < b->moved || a->moved > b->moved)
        return a->moved < b->moved ? -1 : 1;
    return (int)a->kind - (int)b->kind;
}

fm_status fmo_blame_find_repairs(fmo_blame_more *m)
{
    fmo_blame *b = m->b;
    fmo_blame_repairs *s = &m->repairs;
    outcomes before = {0};
    fm_tree *version = NULL;
    double began = fm_now_s();
    fm_provider p = fm_store_provider(fm_repo_store(b->c->repo));
    fm_status rc = fmo_blame_open_culprit(b);
    if (rc == FM_OK && !b->parent) {
        s->why_not = fm_strdup("the guilty version has no parent to go back to");
        return s->why_not ? FM_OK : FM_ENOMEM;
    }
    FM_THEN(rc, fm_version_tree(b->c->repo, &version, &b->version[0].commit.oid));
    FM_THEN(rc, run_suites(m, version, &p, m->rev, &before));
    FM_THEN(rc, grafts(m, version, &before));
    FM_THEN(rc, rederivations(m, version, &before));
    if (rc == FM_OK && s->count)
        qsort(s->item, s->count, sizeof *s->item, better);
    fmo_ui_progress_end(b->c);
    outcomes_release(&before);
    fm_tree_free(version);
    s->done = rc == FM_OK;
    s->seconds = fm_now_s() - began;
    m->seconds += s->seconds;
    return rc;
}
