/* cmd_test.c - fmstore test: a version's suites, alone or against another version. */
#include <string.h>

#include "cli/commands.h"
#include "cli/test_many.h"
#include "store/base/io.h"
#include "store/base/mem.h"

typedef struct test_opts {
    const char *rev, *against, *suite, *case_name, *junit;
    char suite_word[80]; /* what suite points to when it stood in --case SUITE/CASE */
    bool json, verbose, descendants;
} test_opts;

typedef struct test_side {
    const char *rev;
    fm_oid oid;
    fm_model *model;
    fm_suite_run *run; /* one per suite of the set */
} test_side;

static fm_status run_side(cli *c, const test_opts *o, const suite_set *set, test_side *side)
{
    fm_result_cache cache = suite_cache(c);
    side->run = fm_calloc(set->count, sizeof *side->run);
    fm_status rc = side->run ? cli_load_rev(c, side->rev, &side->oid, &side->model) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < set->count; i++)
        rc = fm_suite_run_on(&side->run[i], set->suite[i], side->model, o->case_name, &cache);
    return rc;
}

static void side_release(test_side *side, size_t n)
{
    for (size_t i = 0; side->run && i < n; i++)
        fm_suite_run_release(&side->run[i]);
    fm_free(side->run);
    fm_model_close(side->model);
}

/* --case SUITE/CASE, as blame takes it; a name of a case may hold '/' itself. */
static void split_case(const suite_set *set, test_opts *o)
{
    const char *slash = o->case_name ? strchr(o->case_name, '/') : NULL;
    if (!slash || o->suite)
        return;
    size_t len = (size_t)(slash - o->case_name);
    for (size_t i = 0; i < set->count; i++)
        if (fm_suite_find(set->suite[i], o->case_name) >= 0)
            return;
    for (size_t i = 0; i < set->count; i++) {
        const char *name = fm_suite_name(set->suite[i]);
        if (strlen(name) == len && strncmp(name, o->case_name, len) == 0) {
            snprintf(o->suite_word, sizeof o->suite_word, "%s", name);
            o->suite = o->suite_word;
            o->case_name = slash + 1;
            return;
        }
    }
}

/* Keep only the suite that was asked for (--suite), or those that have the case (--case). */
static fm_status select_suites(suite_set *set, const test_opts *o)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        fm_suite *s = set->suite[i];
        bool want = (!o->suite || strcmp(fm_suite_name(s), o->suite) == 0) &&
                    (!o->case_name || fm_suite_find(s, o->case_name) >= 0);
        if (want)
            set->suite[kept++] = s;
        else
            fm_suite_free(s);
    }
    set->count = kept;
    if (kept)
        return FM_OK;
    if (o->case_name)
        return fm_fail(
            FM_ENOTFOUND,
            "no suite%s%s of %s has a case '%s'; 'fmstore suite ls %s --json' lists them",
            o->suite ? " " : "", o->suite ? o->suite : "", o->rev, o->case_name, o->rev);
    if (o->suite)
        return fm_fail(FM_ENOTFOUND,
                       "no suite of %s is called '%s'; 'fmstore suite ls %s' lists them", o->rev,
                       o->suite, o->rev);
    return fm_fail(FM_ENOTFOUND, "%s carries no suite; add one with 'fmstore suite add %s FILE'",
                   o->rev, o->rev);
}

static void print_side(const test_opts *o, const test_side *side, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const fm_suite_run *run = &side->run[i];
        printf("%s%s%s  %s%s: %zu of %zu passed", out_c(OUT_BOLD), side->rev, out_c(OUT_PLAIN),
               fm_suite_name(run->suite), fm_suite_is_gate(run->suite) ? " (gate)" : "",
               run->passed, run->count);
        printf(run->cached == run->count ? ", cached\n" : ", %.1f s\n", run->seconds);
        for (size_t k = 0; k < run->count; k++) {
            const fm_case_result *r = &run->result[k];
            if (r->verdict == FM_PASS && !o->verbose)
                continue;
            bool pass = r->verdict == FM_PASS;
            printf("  %s%s%s%s %s\n", out_c(pass ? OUT_GREEN : OUT_RED), r->waived ? "waived " : "",
                   pass                    ? "pass"
                   : r->verdict == FM_FAIL ? "FAIL"
                                           : "ERROR",
                   out_c(OUT_PLAIN), r->name);
            if (!pass && r->detail)
                printf("       %s\n", out_text(r->detail, 200));
            if (r->output)
                printf("       answer: %s\n", out_text(r->output, 120));
        }
    }
}

static void print_flips(const test_side *a, const test_side *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const fm_suite_run *old_run = &a->run[i], *new_run = &b->run[i];
        fm_comparison cmp = fm_suite_compare(old_run, new_run);
        printf("%s  %s: %zu passed -> %s: %zu passed of %zu;  %zu broken, %zu fixed (p = %.3g)\n",
               fm_suite_name(old_run->suite), a->rev, old_run->passed, b->rev, new_run->passed,
               new_run->count, cmp.broken, cmp.fixed, cmp.p_value);
        for (size_t k = 0; k < new_run->count; k++) {
            bool was = old_run->result[k].verdict == FM_PASS;
            bool is = new_run->result[k].verdict == FM_PASS;
            if (was == is)
                continue;
            printf("  %s%-6s%s %s\n", out_c(is ? OUT_GREEN : OUT_RED), is ? "fixed" : "broken",
                   out_c(OUT_PLAIN), new_run->result[k].name);
            printf("         %s: %s\n", a->rev, out_text(old_run->result[k].output, 100));
            printf("         %s: %s\n", b->rev, out_text(new_run->result[k].output, 100));
        }
    }
}

static fm_json *side_json(const test_side *side, size_t n)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *runs = fm_json_new_array();
    fm_oid_hex(&side->oid, hex);
    for (size_t i = 0; i < n; i++)
        out_push(&rc, runs, fm_suite_run_json(&side->run[i]));
    out_set(&rc, o, "rev", fm_json_new_str(side->rev));
    out_set(&rc, o, "id", fm_json_new_str(hex));
    out_set(&rc, o, "suites", runs);
    return o;
}

static fm_status print_json(const test_side *side, const test_side *base, size_t n)
{
    fm_status rc = FM_OK;
    fm_json *o = side_json(side, n), *flips = fm_json_new_array();
    for (size_t i = 0; base->run && i < n; i++) {
        fm_comparison cmp = fm_suite_compare(&base->run[i], &side->run[i]);
        fm_json *f = fm_json_new_object();
        out_set(&rc, f, "suite", fm_json_new_str(fm_suite_name(side->run[i].suite)));
        out_set(&rc, f, "fixed", fm_json_new_int((int64_t)cmp.fixed));
        out_set(&rc, f, "broken", fm_json_new_int((int64_t)cmp.broken));
        out_set(&rc, f, "p_value", fm_json_new_real(cmp.p_value));
        out_push(&rc, flips, f);
    }
    if (base->run) {
        out_set(&rc, o, "against", side_json(base, n));
        out_set(&rc, o, "flips", flips);
        flips = NULL;
    }
    fm_json_free(flips);
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static fm_status write_junit(const test_opts *o, const test_side *side, size_t n)
{
    fm_buf xml;
    fm_buf_init(&xml, 0);
    fm_status rc = fm_report_junit(&xml, side->run, n, side->rev);
    if (rc == FM_OK)
        rc = fm_write_file(o->junit, xml.data, xml.len);
    fm_buf_release(&xml);
    return rc;
}

static test_tally tally_of(const test_side *side, size_t n)
{
    test_tally t = {0};
    for (size_t i = 0; i < n; i++) {
        t.passed += side->run[i].passed;
        t.count += side->run[i].count;
        t.waived += side->run[i].waived;
    }
    return t;
}

static fm_status report(cli *c, const test_opts *o, const test_side *side, const test_side *base,
                        size_t n)
{
    const test_tally tally = tally_of(side, n);
    fm_status rc = fm_result_flush(c->repo);
    if (rc == FM_OK && !o->case_name && !o->suite)
        rc = note_tests(c, &side->oid, &tally);
    if (rc == FM_OK && o->junit)
        rc = write_junit(o, side, n);
    if (rc == FM_OK && o->json) {
        rc = print_json(side, base, n);
    } else if (rc == FM_OK) {
        if (base->run)
            print_flips(base, side, n);
        else
            print_side(o, side, n);
    }
    if (rc < 0 || tally.passed + tally.waived == tally.count)
        return rc;
    fm_error_clear();
    return FM_EREFUSED; /* the honest no has been printed already */
}

static fm_status report_many(cli *c, const test_opts *o, const test_many *t)
{
    bool bad = false;
    fm_json *all = fm_json_new_array();
    fm_status rc = fm_result_flush(c->repo);
    for (size_t i = 0; rc == FM_OK && i < t->count; i++) {
        const tested *v = &t->version[i];
        const test_side side = {.rev = v->rev, .oid = v->oid, .run = v->run};
        const test_tally tally = tally_of(&side, v->set.count);
        bad |= tally.passed + tally.waived != tally.count;
        if (!o->case_name && !o->suite)
            rc = note_tests(c, &v->oid, &tally);
        if (rc == FM_OK && o->json)
            out_push(&rc, all, side_json(&side, v->set.count));
        else if (rc == FM_OK)
            print_side(o, &side, v->set.count);
    }
    if (rc == FM_OK && o->json)
        rc = out_json(all);
    else
        fm_json_free(all);
    if (rc < 0 || !bad)
        return rc;
    fm_error_clear();
    return FM_EREFUSED; /* the honest no has been printed already */
}

static fm_status test_several(cli *c, test_opts *o, const char *const *rev, size_t n)
{
    test_many t = {0};
    fm_status rc = cli_lease(c, false, "test");
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = o->descendants ? test_many_descendants(c, &t, rev[i]) : test_many_add(c, &t, rev[i]);
    if (rc == FM_OK)
        rc = test_many_run(c, &t, &(test_choice){o->suite, o->case_name});
    if (rc == FM_OK)
        rc = report_many(c, o, &t);
    test_many_release(&t);
    return rc;
}

int cmd_test(cli *c, int argc, char **argv)
{
    test_opts o = {0};
    const char *revs[OPT_LIST_MAX];
    size_t n;
    const opt_spec table[] = {
        {0, "suite", OPT_STR, "NAME", "only this suite", &o.suite},
        {0, "case", OPT_STR, "NAME", "only this case; SUITE/NAME too", &o.case_name},
        {0, "against", OPT_STR, "REV", "run the same suites on REV too and show what flipped",
         &o.against},
        {0, "junit", OPT_STR, "FILE", "write JUnit XML", &o.junit},
        {0, "descendants", OPT_FLAG, NULL, "REV and every branch that comes from it, in one batch",
         &o.descendants},
        {'v', "verbose", OPT_FLAG, NULL, "show passing cases too", &o.verbose},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.json},
        CLI_MODE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    c->keep_packed = true;
    int code = cli_parse(c, argc, argv, table, revs, 1, OPT_LIST_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    if ((n > 1 || o.descendants) && (o.against || o.junit))
        return cli_usage_error(c, "--against and --junit go with one version");
    if (n > 1 || o.descendants)
        return cli_exit(test_several(c, &o, revs, n));
    o.rev = revs[0];
    fm_oid oid;
    fm_tree *tree = NULL;
    suite_set set = {0};
    test_side side = {.rev = o.rev}, base = {.rev = o.against};
    fm_status rc = cli_lease(c, false, "test");
    if (rc == FM_OK)
        rc = cli_resolve(c, o.rev, &oid, &tree);
    if (rc == FM_OK)
        rc = suites_at(c, &oid, tree, &set);
    if (rc == FM_OK)
        split_case(&set, &o);
    if (rc == FM_OK)
        rc = select_suites(&set, &o);
    if (rc == FM_OK)
        rc = run_side(c, &o, &set, &side);
    if (rc == FM_OK && o.against)
        rc = run_side(c, &o, &set, &base);
    if (rc == FM_OK)
        rc = report(c, &o, &side, &base, set.count);
    side_release(&side, set.count);
    side_release(&base, set.count);
    suites_free(&set);
    fm_tree_free(tree);
    return cli_exit(rc);
}
