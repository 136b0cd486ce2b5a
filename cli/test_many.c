/* test_many.c - the suites of several versions as one batch. */
#include "cli/test_many.h"

#include <string.h>
#include <unistd.h>

#include "store/base/mem.h"

static tested *known_version(const test_many *t, const fm_oid *oid)
{
    for (size_t i = 0; i < t->count; i++)
        if (fm_oid_eq(&t->version[i].oid, oid))
            return &t->version[i];
    return NULL;
}

static fm_status add_name(tested *v, const char *rev)
{
    char *both = fm_asprintf("%s, %s", v->rev, rev);
    if (!both)
        return FM_ENOMEM;
    fm_free(v->rev);
    v->rev = both;
    return FM_OK;
}

static fm_status add_parents(cli *c, tested *v)
{
    fm_version version;
    fm_status rc = fm_version_read(c->repo, &version, &v->oid);
    if (rc < 0)
        return rc;
    v->parent = fm_calloc(version.parent_count, sizeof *v->parent);
    if (v->parent) {
        v->parent_count = version.parent_count;
        memcpy(v->parent, version.parent, v->parent_count * sizeof *v->parent);
    }
    fm_version_release(&version);
    return v->parent ? FM_OK : FM_ENOMEM;
}

static fm_status add_version(cli *c, test_many *t, const char *rev, const fm_oid *oid)
{
    tested *v = known_version(t, oid);
    if (v)
        return strcmp(v->rev, rev) == 0 ? FM_OK : add_name(v, rev);
    fm_status rc = fm_grow(&t->version, &t->cap, t->count + 1, sizeof *t->version);
    if (rc < 0)
        return rc;
    v = &t->version[t->count];
    *v = (tested){.rev = fm_strdup(rev), .oid = *oid};
    if (!v->rev)
        return FM_ENOMEM;
    t->count++;
    return add_parents(c, v);
}

fm_status test_many_add(cli *c, test_many *t, const char *rev)
{
    fm_oid oid;
    fm_status rc = cli_resolve(c, rev, &oid, NULL);
    return rc == FM_OK ? add_version(c, t, rev, &oid) : rc;
}

typedef struct descent {
    cli *c;
    test_many *t;
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

fm_status test_many_descendants(cli *c, test_many *t, const char *rev)
{
    fm_oid from;
    descent d = {c, t, &from};
    fm_status rc = test_many_add(c, t, rev);
    if (rc == FM_OK)
        rc = cli_resolve(c, rev, &from, NULL);
    return rc == FM_OK ? fm_ref_each(c->repo, "refs/heads/", add_descendant, &d) : rc;
}

/* ---- suites ---- */

static void choose(suite_set *set, const test_choice *choice)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        fm_suite *s = set->suite[i];
        bool want = (!choice->suite || strcmp(fm_suite_name(s), choice->suite) == 0) &&
                    (!choice->case_name || fm_suite_find(s, choice->case_name) >= 0);
        if (want)
            set->suite[kept++] = s;
        else
            fm_suite_free(s);
    }
    set->count = kept;
}

static fm_status read_suites(cli *c, test_many *t, const test_choice *choice)
{
    size_t found = 0;
    for (size_t i = 0; i < t->count; i++) {
        tested *v = &t->version[i];
        fm_status rc = suites_at(c, &v->oid, NULL, &v->set);
        if (rc < 0)
            return rc;
        choose(&v->set, choice);
        v->run = fm_calloc(v->set.count, sizeof *v->run);
        if (!v->run)
            return FM_ENOMEM;
        found += v->set.count;
    }
    if (found)
        return FM_OK;
    if (choice->suite || choice->case_name)
        return fm_fail(FM_ENOTFOUND, "none of these versions has a suite%s%s%s%s",
                       choice->suite ? " called " : "", choice->suite ? choice->suite : "",
                       choice->case_name ? " with a case named " : "",
                       choice->case_name ? choice->case_name : "");
    return fm_fail(FM_ENOTFOUND, "none of these versions carries a suite; add one with 'fmstore "
                                 "suite add BRANCH FILE'");
}

/* ---- batches ---- */

static uint64_t half_of_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages / 2 * (uint64_t)bytes : UINT64_MAX;
}

/* Files that are mapped cost no memory that could run out. */
static bool memory_is_full(const cli *c)
{
    fm_engine_stats s = fm_engine_stats_of(c->engine);
    uint64_t max = c->weight_bytes_max ? c->weight_bytes_max : half_of_memory();
    return s.weight_bytes - FM_MIN(s.weight_bytes, s.weight_bytes_mapped + s.weight_bytes_idle) +
               s.kv_bytes >
           max;
}

static fm_status load_version(cli *c, tested *v)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(c->repo, &tree, &v->oid);
    if (rc == FM_OK)
        rc = cli_load_model(c, tree, v->rev, &v->model);
    fm_tree_free(tree);
    return rc;
}

/* Opens models from first on. *end: behind the last one of this batch. The one that makes it too
 * large is in it still, unless the engine's own budget refused it. */
static fm_status load_batch(cli *c, test_many *t, size_t first, size_t *end)
{
    size_t i = first, open = 0;
    for (; i < t->count && !(open && memory_is_full(c)); i++) {
        tested *v = &t->version[i];
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

/* The suites of versions first to end, whose models are open, as one. */
static fm_status run_batch(cli *c, test_many *t, size_t first, size_t end, const char *case_name)
{
    fm_result_cache cache = suite_cache(c);
    size_t n = 0, k = 0;
    for (size_t i = first; i < end; i++)
        n += t->version[i].set.count;
    fm_suite_ask *ask = fm_calloc(n, sizeof *ask);
    fm_suite_run *run = fm_calloc(n, sizeof *run);
    fm_status rc = ask && run ? FM_OK : FM_ENOMEM;
    for (size_t i = first; rc == FM_OK && i < end; i++)
        for (size_t s = 0; s < t->version[i].set.count; s++)
            ask[k++] = (fm_suite_ask){.suite = t->version[i].set.suite[s],
                                      .model = t->version[i].model,
                                      .case_name = case_name};
    if (rc == FM_OK && n)
        rc = fm_suites_run(run, ask, n, &cache);
    k = 0;
    for (size_t i = first; rc == FM_OK && i < end; i++)
        for (size_t s = 0; s < t->version[i].set.count; s++)
            t->version[i].run[s] = run[k++];
    fm_free(ask);
    fm_free(run);
    return rc;
}

/* All but the last one's, which holds the stem for the batch that comes. */
static void close_batch(test_many *t, size_t first, size_t end, fm_model **stem)
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

fm_status test_many_run(cli *c, test_many *t, const test_choice *choice)
{
    fm_model *stem = NULL;
    fm_status rc = cli_lease(c, false, "test");
    if (rc == FM_OK)
        rc = read_suites(c, t, choice);
    for (size_t first = 0, end = 0; rc == FM_OK && first < t->count; first = end) {
        rc = load_batch(c, t, first, &end);
        if (rc == FM_OK)
            rc = run_batch(c, t, first, end, choice->case_name);
        close_batch(t, first, end, &stem);
        t->batches++;
    }
    fm_model_close(stem);
    return rc;
}

void test_many_release(test_many *t)
{
    for (size_t i = 0; i < t->count; i++) {
        tested *v = &t->version[i];
        for (size_t k = 0; v->run && k < v->set.count; k++)
            fm_suite_run_release(&v->run[k]);
        fm_model_close(v->model);
        fm_free(v->run);
        fm_free(v->parent);
        fm_free(v->rev);
        suites_free(&v->set);
    }
    fm_free(t->version);
    *t = (test_many){0};
}
