/* merge.c - merges several versions into one. store computes the weights; this file chooses parents
 * and base, checks that the parents agree in all else, and makes the version with its recipe. */
#include "cli/ops/merge.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/say.h"
#include "cli/ops/version/version_tree.h"

#define COEFFICIENT_MAX 1e6 /* beyond it float32 keeps nothing of the other versions */

typedef struct merging {
    fm_ops *c;
    const fm_merge_opts *o;
    fm_merge_result *out;
    fm_oid oid[FM_PARENTS_MAX], base_oid;
    fm_tree *parent[FM_PARENTS_MAX], *base, *tree;
} merging;

/* ==== weights ============================================================================== */

static double weight_of(const merging *g, size_t k)
{
    return g->o->weight ? g->o->weight[k] : 1;
}

/* The factor of version k; sum: that of all weights. */
static double coefficient(const merging *g, size_t k, double sum)
{
    const double w = weight_of(g, k);
    return g->o->method == FM_MERGE_AVERAGE ? w / sum : w * g->o->lambda;
}

static double sum_of_weights(const merging *g)
{
    double sum = 0;
    for (size_t k = 0; k < g->o->count; k++)
        sum += weight_of(g, k);
    return sum;
}

static fm_status check_weights(const merging *g)
{
    const double sum = sum_of_weights(g);
    if (g->o->method == FM_MERGE_AVERAGE && !(fabs(sum) > 1e-6))
        return fm_fail(FM_EINVAL, "the weights of an average must not sum to 0");
    if (!isfinite(g->o->lambda) || (g->o->method == FM_MERGE_TASK && g->o->lambda == 0))
        return fm_fail(FM_EINVAL, "--lambda wants a finite number that is not 0");
    for (size_t k = 0; k < g->o->count; k++)
        if (!(fabs(coefficient(g, k, sum)) <= COEFFICIENT_MAX) || !isfinite(sum))
            return fm_fail(FM_EINVAL,
                           "%s would be taken %g times: more than %g is no merge; check --weight%s",
                           g->o->rev[k], coefficient(g, k, sum), COEFFICIENT_MAX,
                           g->o->method == FM_MERGE_TASK ? " and --lambda" : " (and their sum)");
    return FM_OK;
}

/* ==== parents and base ===================================================================== */

static fm_status find_base(merging *g)
{
    fm_status rc = FM_OK;
    if (g->o->base)
        return fm_ops_resolve(g->c, g->o->base, &g->base_oid, &g->base);
    g->base_oid = g->oid[0];
    for (size_t k = 1; rc == FM_OK && k < g->o->count; k++) {
        const fm_oid so_far = g->base_oid;
        rc = fm_merge_base(g->c->repo, &g->base_oid, &so_far, &g->oid[k]);
        if (rc == FM_ENOTFOUND)
            rc = fm_fail(FM_ENOTFOUND,
                         "%s and the versions before it have no common ancestor to take their "
                         "differences from; name one with --base REV, or use --method average",
                         g->o->rev[k]);
    }
    return rc == FM_OK ? fm_version_tree(g->c->repo, &g->base, &g->base_oid) : rc;
}

static fm_status open_parents(merging *g)
{
    for (size_t k = 0; k < g->o->count; k++) {
        FM_TRY(fm_ops_resolve(g->c, g->o->rev[k], &g->oid[k], &g->parent[k]));
        for (size_t j = 0; j < k; j++)
            if (fm_oid_eq(&g->oid[j], &g->oid[k]))
                return fm_fail(FM_EINVAL, "'%s' and '%s' are the same version", g->o->rev[j],
                               g->o->rev[k]);
    }
    if (g->o->method == FM_MERGE_TASK)
        FM_TRY(find_base(g));
    return FM_OK;
}

/* ==== config and tokenizer ================================================================= */

static fm_status differ(const merging *g, size_t k, const char *what)
{
    return fm_fail(FM_EBASE,
                   "%s differs between %s and %s: what is merged must read the same text and have "
                   "the same form",
                   what, g->o->rev[0], g->o->rev[k]);
}

static fm_status same_tokenizer(const merging *g, size_t k)
{
    size_t i, iend, j, jend;
    fm_tree_range(g->parent[0], "tokenizer/", &i, &iend);
    fm_tree_range(g->parent[k], "tokenizer/", &j, &jend);
    for (; i < iend || j < jend; i++, j++) {
        const fm_entry *a = i < iend ? fm_tree_at(g->parent[0], i) : NULL;
        const fm_entry *b = j < jend ? fm_tree_at(g->parent[k], j) : NULL;
        const int order = !a ? 1 : !b ? -1 : strcmp(a->path, b->path);
        const fm_entry *odd = order > 0 ? b : a;
        if (odd && (order || !fm_digest_eq(&a->id, &b->id)))
            return differ(g, k, odd->path);
    }
    return FM_OK;
}

/* Whether a key of the config describes the architecture; keys of origin and writer do not. */
static bool is_form(const char *key)
{
    static const char *const free_keys[] = {"_name_or_path", "transformers_version", "torch_dtype",
                                            "dtype"};
    for (size_t i = 0; i < FM_ARRAY_LEN(free_keys); i++)
        if (strcmp(key, free_keys[i]) == 0)
            return false;
    return true;
}

/* The first key of a that b lacks or has with another value, or NULL. */
static const char *first_difference(const fm_json *a, const fm_json *b)
{
    for (void *it = fm_json_iter(a); it; it = fm_json_next(a, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *other = fm_json_get(b, key);
        if (is_form(key) && !(other && fm_json_equal(fm_json_iter_value(it), other)))
            return key;
    }
    return NULL;
}

static fm_status model_json(fm_ops *c, const fm_tree *tree, const char *rev, fm_json **out)
{
    fm_buf text;
    *out = NULL;
    const fm_entry *e = fm_tree_find(tree, "model.json");
    if (!e)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s has no config, so that it cannot be told whether it is the same kind of "
                       "model; import its whole folder",
                       rev);
    fm_buf_init(&text, 0);
    fm_status rc = fm_ops_entry_bytes(c, e, &text);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), "model.json"));
    fm_buf_release(&text);
    return rc;
}

static fm_status same_config(const merging *g, size_t k)
{
    fm_json *a = NULL, *b = NULL;
    char what[128];
    fm_status rc = model_json(g->c, g->parent[0], g->o->rev[0], &a);
    FM_THEN(rc, model_json(g->c, g->parent[k], g->o->rev[k], &b));
    const fm_json *ca = fm_json_get(a, "config"), *cb = fm_json_get(b, "config");
    const char *key = NULL;
    if (rc == FM_OK &&
        !fm_json_equal(fm_json_get(a, "architecture"), fm_json_get(b, "architecture")))
        rc = differ(g, k, "the architecture");
    if (rc == FM_OK && !(key = first_difference(ca, cb)))
        key = first_difference(cb, ca);
    if (key) {
        snprintf(what, sizeof what, "field '%.80s' of the config", key);
        rc = differ(g, k, what);
    }
    fm_json_free(a);
    fm_json_free(b);
    return rc;
}

static fm_status agree(const merging *g)
{
    for (size_t k = 1; k < g->o->count; k++) {
        FM_TRY(same_config(g, k));
        FM_TRY(same_tokenizer(g, k));
    }
    return FM_OK;
}

/* ==== the version ========================================================================== */

static fm_status merge_weights(merging *g)
{
    fm_merge_part part[FM_PARENTS_MAX];
    const double sum = sum_of_weights(g);
    char base_name[64];
    for (size_t k = 0; k < g->o->count; k++)
        part[k] = (fm_merge_part){g->parent[k], g->o->rev[k], coefficient(g, k, sum)};
    snprintf(base_name, sizeof base_name, "the base %s", fm_ops_short_oid(&g->base_oid));
    const fm_merge m = {.method = g->o->method,
                        .base = {g->base, g->o->base ? g->o->base : base_name, 1},
                        .part = part,
                        .count = (uint32_t)g->o->count};
    return fm_merge_tensors(g->tree, fm_repo_store(g->c->repo), &m, &g->out->stats);
}

/* Makes the first parent's tree without its weights and its history, with the union of all parents'
 * suites. */
static fm_status start_tree(merging *g)
{
    FM_TRY(fm_tree_copy(&g->tree, g->parent[0]));
    FM_TRY(fmo_tree_drop_history(g->tree));
    FM_TRY(fmo_tree_drop(g->tree, "tensors/"));
    FM_TRY(fmo_tree_drop(g->tree, "adapters/"));
    return fmo_tree_merge_suites(g->c, g->tree, g->oid, g->o->count, true);
}

static void add_part(fm_status *rc, fm_json *o, const fm_tree *tree)
{
    /* Left out of the digest: all but weights, config and tokenizer, on which answers depend. */
    static const char *const beside[] = {"suites/",        "source/",   "data/",      "recipe.json",
                                         "train_log.json", "train.svg", "train.html", "sweep.json",
                                         "README.md",      NULL};
    char hex[FM_HEX_CHARS + 1];
    fm_digest id;
    FM_THEN(*rc, fm_tree_digest(&id, tree, beside));
    if (*rc != FM_OK)
        return;
    fm_digest_hex(&id, hex);
    fm_json_put(rc, o, "model", fm_json_new_str(hex));
}

static fm_json *recipe_json(const merging *g)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *parts = fm_json_new_array();
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "operation", fm_json_new_str("merge"));
    fm_json_put(&rc, o, "engine", fm_json_new_str("fmstore " FM_VERSION));
    fm_json_put(&rc, o, "method", fm_json_new_str(fm_merge_method_name(g->o->method)));
    fm_json_put(&rc, o, "arithmetic", fm_json_new_str("float32, parents in order, rounded once"));
    for (size_t k = 0; k < g->o->count; k++) {
        fm_json *p = fm_json_new_object();
        add_part(&rc, p, g->parent[k]);
        fm_json_put(&rc, p, "weight", fm_json_new_real(weight_of(g, k)));
        fm_json_push_to(&rc, parts, p);
    }
    fm_json_put(&rc, o, "parents", parts);
    if (g->o->method == FM_MERGE_TASK) {
        fm_json *base = fm_json_new_object();
        add_part(&rc, base, g->base);
        fm_oid_hex(&g->base_oid, hex);
        fm_json_put(&rc, base, "version", fm_json_new_str(hex)); /* no parent: the name keeps it */
        fm_json_put(&rc, o, "base", base);
        fm_json_put(&rc, o, "lambda", fm_json_new_real(g->o->lambda));
    }
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status put_rest(merging *g, char recipe_hex[FM_HEX_CHARS + 1])
{
    fm_txn *txn = NULL;
    fm_buf text;
    fm_digest digest;
    fm_json *recipe = recipe_json(g);
    fm_buf_init(&text, 0);
    fm_status rc = recipe ? fm_json_write(&text, recipe, FM_JSON_CANONICAL) : FM_ENOMEM;
    FM_THEN(rc, fm_sha256(&digest, text.data, text.len));
    if (rc == FM_OK) {
        fm_digest_hex(&digest, recipe_hex);
        rc = fm_txn_begin(&txn, fm_repo_store(g->c->repo));
    }
    FM_THEN(rc, fmo_tree_put_json(txn, g->tree, "recipe.json", recipe));
    for (size_t i = 0; rc == FM_OK && i < g->o->suites.count; i++)
        rc = fm_ops_add_suite(txn, g->tree, g->o->suites.item[i]);
    FM_THEN(rc, fm_txn_commit(txn, NULL));
    fm_txn_close(txn);
    fm_buf_release(&text);
    fm_json_free(recipe);
    return rc;
}

static fm_status land(merging *g, const char *recipe_hex)
{
    fm_buf subject;
    fm_buf_init(&subject, 0);
    fm_buf_printf(&subject, "merge of");
    for (size_t k = 0; k < g->o->count; k++)
        fm_buf_printf(&subject, "%s %.60s", k ? "," : "", g->o->rev[k]);
    fm_buf_printf(&subject, " by %s", fm_merge_method_name(g->o->method));
    fm_status rc = fm_buf_ok(&subject);
    fm_landing l = {.branch = g->o->name, .tree = g->tree, .gate = !g->o->no_gate};
    l.commit = (fm_commit_opts){.kind = "merge",
                                .message = g->o->message ? g->o->message : fm_buf_cstr(&subject),
                                .parent = g->oid,
                                .parent_count = (uint32_t)g->o->count,
                                .recipe_digest = recipe_hex};
    FM_THEN(rc, fm_ops_land(g->c, &l, &g->out->oid));
    fm_buf_release(&subject);
    return rc;
}

static fm_status merge(merging *g)
{
    char recipe_hex[FM_HEX_CHARS + 1];
    FM_TRY(check_weights(g));
    FM_TRY(fm_ops_lease(g->c, true, "merge"));
    FM_TRY(fmo_branch_must_be_new(g->c, g->o->name));
    FM_TRY(open_parents(g));
    FM_TRY(agree(g));
    FM_TRY(start_tree(g));
    FM_TRY(fmo_suite_files_check_with(g->c, g->tree, &g->o->suites));
    (void)fmo_ui_progress(g->c, 0, 0, "merging %zu versions", g->o->count);
    fm_status rc = merge_weights(g);
    fmo_ui_progress_end(g->c);
    FM_THEN(rc, fmo_ui_go_on(g->c));
    FM_THEN(rc, put_rest(g, recipe_hex));
    return rc == FM_OK ? land(g, recipe_hex) : rc;
}

const char *fm_merge_method_name(fm_merge_method m)
{
    return m == FM_MERGE_TASK ? "task-arithmetic" : "average";
}

fm_status fm_ops_merge(fm_ops *c, const fm_merge_opts *opts, fm_merge_result *out)
{
    merging g = {.c = c, .o = opts, .out = out};
    memset(out, 0, sizeof *out);
    c->stopped = false;
    if (opts->count < 2 || opts->count > FM_PARENTS_MAX)
        return fm_fail(FM_EINVAL, "%zu versions to merge; give 2 to %u", opts->count,
                       FM_PARENTS_MAX);
    fm_status rc = merge(&g);
    for (size_t k = 0; k < opts->count; k++)
        fm_tree_free(g.parent[k]);
    fm_tree_free(g.base);
    fm_tree_free(g.tree);
    return rc;
}
