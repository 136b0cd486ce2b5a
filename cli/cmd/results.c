/* results.c - fmstore results: lists stored test results, and joins those of another clone. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/suite_edit.h"
#include "cli/ops/version/suite_files.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/mem.h"

/* ---- merge ---- */

static fm_status tell_differing(void *ctx, const char *key, fm_span ours, fm_span theirs,
                                bool theirs_stands)
{
    (void)ctx;
    fm_span stands = theirs_stands ? theirs : ours, other = theirs_stands ? ours : theirs;
    char a[200], b[200];
    snprintf(a, sizeof a, "%.*s", (int)FM_MIN(stands.len, sizeof a - 1), (const char *)stands.data);
    snprintf(b, sizeof b, "%.*s", (int)FM_MIN(other.len, sizeof b - 1), (const char *)other.data);
    fprintf(stderr,
            "  differs: %.16s...: equal inputs gave two outcomes; %s stands: %s; the other: %s\n",
            key, theirs_stands ? "theirs" : "ours", out_text(a, 160), out_text(b, 160));
    return FM_OK;
}

static fm_status merge(cli *c, const char *from, bool json)
{
    fm_results_merge_report m;
    fm_status rc = fm_ops_lease(c, true, "results merge");
    FM_THEN(rc, fm_results_merge(c->repo, from, tell_differing, NULL, &m));
    if (rc < 0)
        return rc;
    if (json) {
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "theirs", fm_json_new_int((int64_t)m.theirs));
        fm_json_put(&rc, o, "added", fm_json_new_int((int64_t)m.added));
        fm_json_put(&rc, o, "differing", fm_json_new_int((int64_t)m.differing));
        fm_json_put(&rc, o, "refused", fm_json_new_int((int64_t)m.refused));
        if (rc == FM_OK)
            return out_json(o);
        fm_json_free(o);
        return rc;
    }
    printf("%llu results there, %llu of them new here", (unsigned long long)m.theirs,
           (unsigned long long)m.added);
    if (m.differing)
        printf(", %llu differed", (unsigned long long)m.differing);
    if (m.refused)
        printf(", %llu entries that are no results left out", (unsigned long long)m.refused);
    putchar('\n');
    return FM_OK;
}

/* ---- ls ---- */

typedef struct listing {
    cli *c;
    const fm_model *model;
    fm_json *array; /* --json; NULL: prints text */
    size_t kept, count;
} listing;

static fm_status verdict_of(listing *l, const char key[65], char *out, size_t bytes)
{
    fm_buf text;
    fm_json *v = NULL;
    fm_buf_init(&text, 0);
    snprintf(out, bytes, "-");
    fm_status rc = fm_result_get(l->c->repo, &text, key);
    FM_THEN(rc, fm_json_parse(&v, fm_buf_span(&text), "kept result"));
    if (rc == FM_OK) {
        snprintf(out, bytes, "%s", fm_json_cstr(fm_json_get(v, "verdict"), "?"));
        l->kept++;
    }
    fm_json_free(v);
    fm_buf_release(&text);
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_clear();
    return FM_OK;
}

static fm_status is_quarantined(const listing *l, const fm_suite *s, size_t i, bool *out)
{
    const fm_result_cache cache = fmo_suite_cache(l->c);
    fm_quarantine q;
    fm_status rc = fm_quarantine_read(&q, s, i, &cache);
    *out = q.on;
    return rc;
}

static fm_status list_case(listing *l, const fm_suite *s, size_t i)
{
    char key[65], verdict[16];
    bool quarantined = false;
    fm_status rc = fm_result_key(key, s, i, l->model);
    FM_THEN(rc, verdict_of(l, key, verdict, sizeof verdict));
    FM_THEN(rc, is_quarantined(l, s, i, &quarantined));
    if (rc < 0)
        return rc;
    l->count++;
    if (!l->array) {
        printf("%.16s  %-5s  %s/%s%s\n", key, verdict, fm_suite_name(s),
               out_text(fm_suite_case_name(s, i), 300), quarantined ? "  (quarantined)" : "");
        return FM_OK;
    }
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "suite", fm_json_new_str(fm_suite_name(s)));
    fm_json_put(&rc, o, "case", fm_json_new_str(fm_suite_case_name(s, i)));
    fm_json_put(&rc, o, "key", fm_json_new_str(key));
    fm_json_put(&rc, o, "verdict",
                strcmp(verdict, "-") ? fm_json_new_str(verdict) : fm_json_new_null());
    if (quarantined)
        fm_json_put(&rc, o, "quarantined", fm_json_new_bool(true));
    fm_json_push_to(&rc, l->array, o);
    return rc;
}

/* Keys depend on the ids of tensors and not on their values, which are neither read nor, in a clone
 * of the lineage alone, fetched. */
static fm_status read_no_tensor(void *ctx, const fm_entry *e, void *dst)
{
    const fm_provider *store = ctx;
    if (e->kind != FM_ENTRY_TENSOR)
        return store->read(store->ctx, e, dst);
    memset(dst, 0, e->bytes);
    return FM_OK;
}

static fm_status load_without_values(cli *c, const char *rev, fm_oid *oid, fm_model **out)
{
    fm_tree *tree = NULL;
    FM_TRY(fm_ops_lease(c, false, "a model in use"));
    FM_TRY(fm_ops_resolve(c, rev, oid, &tree));
    fm_provider store = fm_store_provider(fm_repo_store(c->repo));
    const fm_provider p = {.ctx = &store, .read = read_no_tensor};
    fm_status rc = fm_ops_engine(c);
    FM_THEN(rc, fm_model_load(out, c->engine, tree, &p, rev));
    fm_tree_free(tree);
    return rc;
}

static fm_status list(cli *c, const char *rev, bool json)
{
    fm_oid oid;
    fm_model *model = NULL;
    fm_suite_set set = {0};
    fm_status rc = load_without_values(c, rev, &oid, &model);
    FM_THEN(rc, fm_ops_suites(c, &oid, NULL, &set));
    listing l = {.c = c, .model = model, .array = json ? fm_json_new_array() : NULL};
    for (size_t i = 0; rc == FM_OK && i < set.count; i++)
        for (size_t k = 0; rc == FM_OK && k < fm_suite_count(set.suite[i]); k++)
            rc = list_case(&l, set.suite[i], k);
    if (rc == FM_OK && json) {
        rc = out_json(l.array);
        l.array = NULL;
    } else if (rc == FM_OK) {
        fprintf(stderr, "%zu of %zu results are kept (%s)\n", l.kept, l.count,
                fm_engine_mode(c->engine));
    }
    fm_json_free(l.array);
    fm_suite_set_free(&set);
    fm_model_close(model);
    return rc;
}

/* ---- lift ---- */

static fm_status lift(cli *c, const char *rev, const char *which)
{
    const fm_result_cache cache = fmo_suite_cache(c);
    fm_oid oid;
    fm_suite_set set = {0};
    size_t s = 0, i = 0;
    bool was = false;
    fm_status rc = fm_ops_lease(c, true, "results lift");
    FM_THEN(rc, fm_ops_resolve(c, rev, &oid, NULL));
    FM_THEN(rc, fm_ops_suites(c, &oid, NULL, &set));
    FM_THEN(rc, fmo_suite_case_find(&set, which, &s, &i));
    FM_THEN(rc, fm_quarantine_lift(set.suite[s], i, &cache, &was));
    if (rc == FM_OK && was)
        rc = fm_result_flush(c->repo);
    if (rc == FM_OK && !was)
        rc = fm_fail(FM_ENOTFOUND, "%s is not quarantined; 'fmstore results ls %s' shows what is",
                     which, rev);
    fm_suite_set_free(&set);
    return rc;
}

int cmd_results(cli *c, int argc, char **argv)
{
    bool json = false;
    const char *args[3];
    size_t n;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as JSON, keys whole", &json},
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, 3, &n);
    if (code != CLI_GO_ON)
        return code;
    if (n == 3 && strcmp(args[0], "lift") == 0)
        return cli_exit(lift(c, args[1], args[2]));
    if (n == 3)
        return cli_usage_error(c, "want 'results lift REV SUITE/CASE'");
    if (strcmp(args[0], "merge") == 0)
        return cli_exit(merge(c, args[1], json));
    if (strcmp(args[0], "ls") == 0)
        return cli_exit(list(c, args[1], json));
    return cli_usage_error(
        c, "want 'results ls REV', 'results merge PATH|REF' or 'results lift REV SUITE/CASE'");
}
