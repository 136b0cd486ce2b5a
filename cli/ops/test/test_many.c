/* test_many.c - runs the suites of several versions as one batch. */
#include "cli/ops/test/test_many.h"
#include "cli/ops/base/say.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

static fm_tested *known_version(const fm_test_result *t, const fm_oid *oid)
{
    for (size_t i = 0; i < t->count; i++)
        if (fm_oid_eq(&t->version[i].oid, oid))
            return &t->version[i];
    return NULL;
}

static fm_status add_name(fm_tested *v, const char *rev)
{
    char *both = fm_asprintf("%s, %s", v->rev, rev);
    if (!both)
        return FM_ENOMEM;
    fm_free(v->rev);
    v->rev = both;
    return FM_OK;
}

static fm_status add_parents(fm_ops *c, fm_tested *v)
{
    fm_version version;
    FM_TRY(fm_version_read(c->repo, &version, &v->oid));
    v->parent = fm_calloc(version.parent_count, sizeof *v->parent);
    if (v->parent) {
        v->parent_count = version.parent_count;
        memcpy(v->parent, version.parent, v->parent_count * sizeof *v->parent);
    }
    fm_version_release(&version);
    return v->parent ? FM_OK : FM_ENOMEM;
}

static fm_status add_version(fm_ops *c, fm_test_result *t, const char *rev, const fm_oid *oid)
{
    fm_tested *v = known_version(t, oid);
    if (v)
        return strcmp(v->rev, rev) == 0 ? FM_OK : add_name(v, rev);
    FM_TRY(fm_grow(&t->version, &t->cap, t->count + 1, sizeof *t->version));
    v = &t->version[t->count];
    *v = (fm_tested){.rev = fm_strdup(rev), .oid = *oid};
    if (!v->rev)
        return FM_ENOMEM;
    t->count++;
    return add_parents(c, v);
}

fm_status fmo_test_many_add(fm_ops *c, fm_test_result *t, const char *rev)
{
    fm_oid oid;
    FM_TRY(fm_ops_resolve(c, rev, &oid, NULL));
    return add_version(c, t, rev, &oid);
}

typedef struct descent {
    fm_ops *c;
    fm_test_result *t;
    const fm_oid *from;
} descent;

static fm_status add_descendant(void *ctx, const char *name, const fm_oid *oid)
{
    descent *d = ctx;
    fm_oid base;
    fm_status rc = fm_merge_base(d->c->repo, &base, d->from, oid);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        return FM_OK;
    }
    if (rc < 0 || !fm_oid_eq(&base, d->from))
        return rc;
    return add_version(d->c, d->t, name + strlen("refs/heads/"), oid);
}

fm_status fmo_test_many_descendants(fm_ops *c, fm_test_result *t, const char *rev)
{
    fm_oid from;
    descent d = {c, t, &from};
    FM_TRY(fmo_test_many_add(c, t, rev));
    FM_TRY(fm_ops_resolve(c, rev, &from, NULL));
    return fm_ref_each(c->repo, "refs/heads/", add_descendant, &d);
}

/* The name of a version: that of a branch at its commit, else its id. */
typedef struct name_search {
    const fm_oid *oid;
    char name[256];
} name_search;

static fm_status take_name(void *ctx, const char *name, const fm_oid *oid)
{
    name_search *n = ctx;
    if (!n->name[0] && fm_oid_eq(oid, n->oid))
        snprintf(n->name, sizeof n->name, "%s", name + strlen("refs/heads/"));
    return FM_OK;
}

static fm_status add_ancestor(void *ctx, const fm_version *v)
{
    descent *d = ctx;
    name_search n = {.oid = &v->oid};
    if (known_version(d->t, &v->oid))
        return FM_OK;
    FM_TRY(fm_ref_each(d->c->repo, "refs/heads/", take_name, &n));
    return add_version(d->c, d->t, n.name[0] ? n.name : fm_ops_short_oid(&v->oid), &v->oid);
}

fm_status fmo_test_many_ancestors(fm_ops *c, fm_test_result *t, const char *rev)
{
    fm_oid from;
    descent d = {c, t, &from};
    FM_TRY(fmo_test_many_add(c, t, rev));
    FM_TRY(fm_ops_resolve(c, rev, &from, NULL));
    return fm_log_walk(c->repo, &from, 1, add_ancestor, &d);
}

/* ---- suites ---- */

/* Accepts --case SUITE/CASE, as blame does; the name of a case may hold '/' itself. */
static fm_test_choice in_suite(const fm_suite *s, const fm_test_choice *choice)
{
    fm_test_choice one = *choice;
    const char *name = fm_suite_name(s), *word = choice->case_name;
    size_t len = strlen(name);
    if (word && !choice->suite && fm_suite_find(s, word) < 0 && strncmp(word, name, len) == 0 &&
        word[len] == '/')
        one.case_name = word + len + 1;
    return one;
}

/* Keeps the suites with chosen cases, and opens their parts. */
static fm_status choose(fm_tested *v, const fm_test_choice *choice)
{
    size_t kept = 0, all = v->set.count;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < all; i++) {
        fm_suite *s = v->set.suite[i];
        fm_test_part part = {0};
        const fm_test_choice one = in_suite(s, choice);
        if (rc == FM_OK && (!choice->suite || strcmp(fm_suite_name(s), choice->suite) == 0))
            rc = fmo_test_part_open(&part, s, &one);
        v->set.suite[kept] = s;
        v->part[kept] = part;
        if (part.count) {
            kept++;
        } else {
            fmo_test_part_release(&v->part[kept]);
            fm_suite_free(s);
        }
    }
    v->set.count = kept;
    return rc;
}

static fm_status nothing_found(const fm_test_result *t, const fm_test_choice *o)
{
    const char *rev = t->version[0].rev;
    if (o->slice && o->slice->count)
        return fm_fail(FM_ENOTFOUND, "no case lies in the slice --slice %s%s", o->slice->item[0],
                       o->slice->count > 1 ? " and the others" : "");
    if (t->count > 1 && !o->suites_of)
        return o->suite || o->case_name
                   ? fm_fail(FM_ENOTFOUND, "none of these versions has a suite%s%s%s%s",
                             o->suite ? " called " : "", o->suite ? o->suite : "",
                             o->case_name ? " with a case named " : "",
                             o->case_name ? o->case_name : "")
                   : fm_fail(FM_ENOTFOUND, "none of these versions carries a suite; add one with "
                                           "'fmstore suite add BRANCH FILE'");
    if (o->case_name)
        return fm_fail(
            FM_ENOTFOUND,
            "no suite%s%s of %s has a case '%s'; 'fmstore suite ls %s --json' lists them",
            o->suite ? " " : "", o->suite ? o->suite : "", rev, o->case_name, rev);
    if (o->suite)
        return fm_fail(FM_ENOTFOUND,
                       "no suite of %s is called '%s'; 'fmstore suite ls %s' lists them", rev,
                       o->suite, rev);
    return fm_fail(FM_ENOTFOUND, "%s carries no suite; add one with 'fmstore suite add %s FILE'",
                   rev, rev);
}

static fm_status read_suites(fm_ops *c, fm_test_result *t, const fm_test_choice *choice)
{
    size_t found = 0;
    for (size_t i = 0; i < t->count; i++) {
        fm_tested *v = &t->version[i];
        const fm_oid *from = choice->suites_of ? choice->suites_of : &v->oid;
        FM_TRY(fm_ops_suites(c, from, NULL, &v->set));
        v->run = fm_calloc(v->set.count, sizeof *v->run);
        v->part = fm_calloc(v->set.count, sizeof *v->part);
        FM_TRY(v->run && v->part ? choose(v, choice) : FM_ENOMEM);
        found += v->set.count;
    }
    return found ? FM_OK : nothing_found(t, choice);
}

/* ---- batches ---- */

static uint64_t half_of_memory(void)
{
    uint64_t bytes = fm_ops_machine_bytes();
    return bytes ? bytes / 2 : UINT64_MAX;
}

/* Mapped files do not count: the system can drop their pages. */
static bool memory_is_full(const fm_ops *c)
{
    fm_engine_stats s = fm_engine_stats_of(c->engine);
    uint64_t max = c->weight_bytes_max ? c->weight_bytes_max : half_of_memory();
    return s.weight_bytes - FM_MIN(s.weight_bytes, s.weight_bytes_mapped + s.weight_bytes_idle) +
               s.kv_bytes >
           max;
}

static fm_status load_version(fm_ops *c, fm_tested *v)
{
    fm_tree *tree = NULL;
    (void)fmo_ui_progress(c, 0, 0, "asking %s", v->rev);
    fm_status rc = fmo_ui_go_on(c);
    FM_THEN(rc, fm_version_tree(c->repo, &tree, &v->oid));
    FM_THEN(rc, fm_ops_load_model(c, tree, v->rev, &v->model));
    fm_tree_free(tree);
    return rc;
}

/* Opens models from first on. *end: one past the last of this batch. The model that fills the
 * memory is still part of it, unless the engine's own budget refused it. */
static fm_status load_batch(fm_ops *c, fm_test_result *t, size_t first, size_t *end)
{
    size_t i = first, open = 0;
    for (; i < t->count && !(open && memory_is_full(c)); i++) {
        fm_tested *v = &t->version[i];
        if (!v->set.count)
            continue;
        fm_status rc = load_version(c, v);
        if (rc == FM_ELIMIT && open) {
            fm_error_clear();
            break;
        }
        if (rc < 0)
            return rc;
        open++;
    }
    *end = i;
    return FM_OK;
}

/* The requests of one round, and the place of each result. */
typedef struct round {
    fm_suite_ask *ask;
    fm_suite_run *run;
    fm_suite_run **to;
    fm_test_part **part;
    size_t **own; /* [n] picks made for this round, or NULL */
    size_t n;
} round;

static void round_release(round *r)
{
    for (size_t i = 0; i < r->n; i++) {
        if (r->run)
            fm_suite_run_release(&r->run[i]);
        if (r->own)
            fm_free(r->own[i]);
    }
    fm_free(r->ask);
    fm_free(r->run);
    fm_free(r->to);
    fm_free(r->part);
    fm_free(r->own);
}

/* Lists the cases of a run whose result depends on the seed. */
static fm_status pick_sampling(size_t **out, size_t *n, const fm_suite_run *run)
{
    *n = 0;
    *out = fm_calloc(run->count, sizeof **out);
    for (size_t i = 0; *out && i < run->count; i++)
        if (fm_suite_case_samples(run->suite, run->result[i].at))
            (*out)[(*n)++] = run->result[i].at;
    return *out ? FM_OK : FM_ENOMEM;
}

/* shift 0: takes the next cases of each part; else all cases that sample, with another seed. */
static fm_status plan_round(round *r, fm_test_result *t, size_t first, size_t end, uint64_t shift)
{
    size_t cap = 0;
    fm_status rc = FM_OK;
    for (size_t i = first; i < end; i++)
        cap += t->version[i].set.count;
    *r = (round){.ask = fm_calloc(cap, sizeof *r->ask),
                 .run = fm_calloc(cap, sizeof *r->run),
                 .to = fm_calloc(cap, sizeof *r->to),
                 .part = fm_calloc(cap, sizeof *r->part),
                 .own = fm_calloc(cap, sizeof *r->own)};
    if (!r->ask || !r->run || !r->to || !r->part || !r->own)
        return FM_ENOMEM;
    for (size_t i = first; i < end; i++)
        for (size_t s = 0; rc == FM_OK && s < t->version[i].set.count; s++) {
            fm_tested *v = &t->version[i];
            fm_suite_ask a = {.suite = v->set.suite[s], .model = v->model, .seed_shift = shift};
            if (shift)
                rc = pick_sampling(&r->own[r->n], &a.pick_count, &v->run[s]);
            a.pick = r->own[r->n];
            if (!shift)
                a.pick_count = fmo_test_part_next(&v->part[s], &a.pick);
            if (!a.pick_count) {
                fm_free(r->own[r->n]);
                r->own[r->n] = NULL;
                continue;
            }
            r->to[r->n] = &v->run[s];
            r->part[r->n] = &v->part[s];
            r->ask[r->n++] = a;
        }
    return rc;
}

static fm_status run_round(fm_ops *c, round *r, uint64_t shift)
{
    fm_result_cache cache = fmo_suite_cache(c);
    fm_status rc = fm_suites_run(r->run, r->ask, r->n, &cache);
    for (size_t i = 0; rc == FM_OK && i < r->n; i++) {
        if (shift) {
            rc = fm_suite_run_repeat(r->to[i], &r->run[i]);
            continue;
        }
        rc = fm_suite_run_join(r->to[i], &r->run[i]);
        if (rc == FM_OK)
            fmo_test_part_look(r->part[i], r->to[i]);
    }
    return rc;
}

/* Stores the flaky cases that repeats found; without repeats, marks those stored before. */
static fm_status keep_flaky(fm_ops *c, fm_tested *v, uint64_t repeat)
{
    fm_result_cache cache = fmo_suite_cache(c);

    for (size_t i = 0; i < v->set.count; i++)
        FM_TRY(repeat > 1 ? fm_quarantine_note(&v->run[i], &cache)
                          : fm_quarantine_apply(&v->run[i], &cache));
    return FM_OK;
}

/* Runs the suites of versions first to end, whose models are open: rounds of all of them as one
 * batch, until no case is left, then the repeats. */
static fm_status run_batch(fm_ops *c, fm_test_result *t, size_t first, size_t end, uint64_t repeat)
{
    fm_status rc = FM_OK;
    for (uint64_t shift = 0; rc == FM_OK && (shift == 0 || shift < repeat);) {
        round r;
        rc = plan_round(&r, t, first, end, shift);
        bool more = rc == FM_OK && r.n;
        if (more)
            rc = run_round(c, &r, shift);
        round_release(&r);
        shift += shift || !more;
    }
    for (size_t i = first; rc == FM_OK && i < end; i++)
        rc = keep_flaky(c, &t->version[i], repeat);
    return rc;
}

/* Closes all models but the last, which keeps the stem in memory for the next batch. */
static void close_batch(fm_test_result *t, size_t first, size_t end, fm_model **stem)
{
    fm_model *last = NULL;
    for (size_t i = first; i < end; i++) {
        if (t->version[i].model) {
            fm_model_close(last);
            last = t->version[i].model;
        }
        t->version[i].model = NULL;
    }
    fm_model_close(*stem);
    *stem = last;
}

fm_status fmo_test_many_run(fm_ops *c, fm_test_result *t, const fm_test_choice *choice)
{
    fm_model *stem = NULL;
    fm_status rc = fm_ops_lease(c, false, "test");
    FM_THEN(rc, read_suites(c, t, choice));
    for (size_t first = 0, end = 0; rc == FM_OK && first < t->count; first = end) {
        rc = load_batch(c, t, first, &end);
        FM_THEN(rc, run_batch(c, t, first, end, choice->repeat));
        close_batch(t, first, end, &stem);
        t->batches++;
    }
    fmo_ui_progress_end(c);
    fm_model_close(stem);
    return rc;
}

void fm_test_result_release(fm_test_result *t)
{
    for (size_t i = 0; i < t->count; i++) {
        fm_tested *v = &t->version[i];
        for (size_t k = 0; v->run && k < v->set.count; k++)
            fm_suite_run_release(&v->run[k]);
        fm_model_close(v->model);
        for (size_t k = 0; v->part && k < v->set.count; k++)
            fmo_test_part_release(&v->part[k]);
        fm_free(v->part);
        fm_free(v->run);
        fm_free(v->parent);
        fm_free(v->rev);
        fm_suite_set_free(&v->set);
    }
    fm_free(t->version);
    *t = (fm_test_result){0};
}
