/* merge.c - fmstore merge: one version out of several, by weighted average or task arithmetic.
 *
 * The weights are store's work (store/merge.h); here: which parents, over which base, do they agree
 * on what is no weight, and the version with its recipe. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"
#include "store/base/mem.h"
#include "store/merge.h"

#define COEFFICIENT_MAX 1e6 /* beyond it nothing is left of the others, or of float32 */

typedef struct merging {
    cli *c;
    const char *name, *method_word, *base_rev, *message;
    opt_list weights, suites;
    double lambda;
    bool no_gate;
    const char *const *rev; /* of the parents */
    size_t count;
    fm_merge_method method;
    double weight[FM_PARENTS_MAX]; /* as they are written; 1 where none were */
    fm_oid oid[FM_PARENTS_MAX], base_oid;
    fm_tree *parent[FM_PARENTS_MAX], *base, *tree;
    fm_merge_stats stats;
} merging;

/* ==== words ================================================================================ */

static fm_status read_weight(double *out, const char *text)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (end == text || *end || errno || !isfinite(*out))
        return fm_fail(FM_EINVAL, "--weight wants a number, got '%s'", text);
    return FM_OK;
}

/* How often version k is taken; sum: of the weights. */
static double coefficient(const merging *g, size_t k, double sum)
{
    return g->method == FM_MERGE_AVERAGE ? g->weight[k] / sum : g->weight[k] * g->lambda;
}

static fm_status read_weights(merging *g)
{
    double sum = 0;
    fm_status rc = FM_OK;
    for (size_t k = 0; k < g->count; k++)
        g->weight[k] = 1;
    if (g->weights.count && g->weights.count != g->count)
        return fm_fail(FM_EINVAL,
                       "%zu versions and %zu times --weight; give one for each, in order", g->count,
                       g->weights.count);
    for (size_t k = 0; rc == FM_OK && k < g->weights.count; k++)
        rc = read_weight(&g->weight[k], g->weights.item[k]);
    for (size_t k = 0; k < g->count; k++)
        sum += g->weight[k];
    if (rc == FM_OK && g->method == FM_MERGE_AVERAGE && !(fabs(sum) > 1e-6))
        rc = fm_fail(FM_EINVAL, "the weights of an average must not sum to 0");
    if (rc == FM_OK && !isfinite(g->lambda))
        rc = fm_fail(FM_EINVAL, "--lambda wants a finite number");
    for (size_t k = 0; rc == FM_OK && k < g->count; k++)
        if (!(fabs(coefficient(g, k, sum)) <= COEFFICIENT_MAX) || !isfinite(sum))
            rc = fm_fail(FM_EINVAL,
                         "%s would be taken %g times: more than %g is no merge; check --weight%s",
                         g->rev[k], coefficient(g, k, sum), COEFFICIENT_MAX,
                         g->method == FM_MERGE_TASK ? " and --lambda" : " (and their sum)");
    return rc;
}

static fm_status read_method(merging *g)
{
    static const char *const word[] = {"average", "task-arithmetic"};
    for (size_t i = 0; i < FM_ARRAY_LEN(word); i++)
        if (!g->method_word || strcmp(g->method_word, word[i]) == 0) {
            g->method = (fm_merge_method)i;
            g->method_word = word[i];
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "--method '%s' is not known; there are average and task-arithmetic",
                   g->method_word);
}

/* ==== parents and base ===================================================================== */

static fm_status find_base(merging *g)
{
    fm_status rc = FM_OK;
    if (g->base_rev)
        return fm_ops_resolve(g->c, g->base_rev, &g->base_oid, &g->base);
    g->base_oid = g->oid[0];
    for (size_t k = 1; rc == FM_OK && k < g->count; k++) {
        const fm_oid so_far = g->base_oid;
        rc = fm_merge_base(g->c->repo, &g->base_oid, &so_far, &g->oid[k]);
        if (rc == FM_ENOTFOUND)
            rc = fm_fail(FM_ENOTFOUND,
                         "%s and the versions before it have no common ancestor to take their "
                         "differences from; name one with --base REV, or use --method average",
                         g->rev[k]);
    }
    return rc == FM_OK ? fm_version_tree(g->c->repo, &g->base, &g->base_oid) : rc;
}

static fm_status open_parents(merging *g)
{
    for (size_t k = 0; k < g->count; k++) {
        FM_TRY(fm_ops_resolve(g->c, g->rev[k], &g->oid[k], &g->parent[k]));
        for (size_t j = 0; j < k; j++)
            if (fm_oid_eq(&g->oid[j], &g->oid[k]))
                return fm_fail(FM_EINVAL, "'%s' and '%s' are the same version", g->rev[j],
                               g->rev[k]);
    }
    if (g->method == FM_MERGE_TASK)
        FM_TRY(find_base(g));
    return FM_OK;
}

/* ==== what is no weight ==================================================================== */

static fm_status differ(const merging *g, size_t k, const char *what)
{
    return fm_fail(FM_EBASE,
                   "%s differs between %s and %s: what is merged must read the same text and have "
                   "the same form",
                   what, g->rev[0], g->rev[k]);
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

/* Where it came from and what wrote it is no part of a model's form. */
static bool is_form(const char *key)
{
    static const char *const free_keys[] = {"_name_or_path", "transformers_version", "torch_dtype",
                                            "dtype"};
    for (size_t i = 0; i < FM_ARRAY_LEN(free_keys); i++)
        if (strcmp(key, free_keys[i]) == 0)
            return false;
    return true;
}

/* The first key of a that b lacks or has otherwise, or NULL. */
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

static fm_status model_json(cli *c, const fm_tree *tree, const char *rev, fm_json **out)
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
    fm_status rc = model_json(g->c, g->parent[0], g->rev[0], &a);
    FM_THEN(rc, model_json(g->c, g->parent[k], g->rev[k], &b));
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
    for (size_t k = 1; k < g->count; k++) {
        FM_TRY(same_config(g, k));
        FM_TRY(same_tokenizer(g, k));
    }
    return FM_OK;
}

/* ==== the version ========================================================================== */

static fm_status merge_weights(merging *g)
{
    fm_merge_part part[FM_PARENTS_MAX];
    double sum = 0;
    char base_name[64];
    for (size_t k = 0; k < g->count; k++)
        sum += g->weight[k];
    for (size_t k = 0; k < g->count; k++)
        part[k] = (fm_merge_part){g->parent[k], g->rev[k], coefficient(g, k, sum)};
    snprintf(base_name, sizeof base_name, "the base %s", fm_ops_short_oid(&g->base_oid));
    const fm_merge m = {.method = g->method,
                        .base = {g->base, g->base_rev ? g->base_rev : base_name, 1},
                        .part = part,
                        .count = (uint32_t)g->count};
    return fm_merge_tensors(g->tree, fm_repo_store(g->c->repo), &m, &g->stats);
}

/* The first parent's tree without its weights and its history; the union of all parents' suites. */
static fm_status start_tree(merging *g)
{
    FM_TRY(fm_tree_copy(&g->tree, g->parent[0]));
    FM_TRY(tree_drop_history(g->tree));
    FM_TRY(tree_drop(g->tree, "tensors/"));
    FM_TRY(tree_drop(g->tree, "adapters/"));
    return tree_merge_suites(g->c, g->tree, g->oid, g->count, true);
}

static void add_part(fm_status *rc, fm_json *o, const fm_tree *tree)
{
    /* What is no weight, config or tokenizer: two versions that answer alike are one here. */
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
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *parts = fm_json_new_array();
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "operation", fm_json_new_str("merge"));
    fm_json_put(&rc, o, "engine", fm_json_new_str("fmstore " FM_VERSION));
    fm_json_put(&rc, o, "method", fm_json_new_str(g->method_word));
    fm_json_put(&rc, o, "arithmetic", fm_json_new_str("float32, parents in order, rounded once"));
    for (size_t k = 0; k < g->count; k++) {
        fm_json *p = fm_json_new_object();
        add_part(&rc, p, g->parent[k]);
        fm_json_put(&rc, p, "weight", fm_json_new_real(g->weight[k]));
        fm_json_push_to(&rc, parts, p);
    }
    fm_json_put(&rc, o, "parents", parts);
    if (g->method == FM_MERGE_TASK) {
        fm_json *base = fm_json_new_object();
        add_part(&rc, base, g->base);
        fm_json_put(&rc, o, "base", base);
        fm_json_put(&rc, o, "lambda", fm_json_new_real(g->lambda));
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
    FM_THEN(rc, tree_put_json(txn, g->tree, "recipe.json", recipe));
    for (size_t i = 0; rc == FM_OK && i < g->suites.count; i++)
        rc = fm_ops_add_suite(txn, g->tree, g->suites.item[i]);
    FM_THEN(rc, fm_txn_commit(txn, NULL));
    fm_txn_close(txn);
    fm_buf_release(&text);
    fm_json_free(recipe);
    return rc;
}

static void say_sizes(const merging *g)
{
    const fm_merge_stats *s = &g->stats;
    printf("  %llu tensors, %llu of them the same in all; %s made, %s stored",
           (unsigned long long)s->tensors, (unsigned long long)s->kept, out_bytes(s->bytes),
           out_bytes(s->bytes_stored));
    if (s->folded)
        printf(" (%llu adapter terms merged first)", (unsigned long long)s->folded);
    putchar('\n');
}

static fm_status land(merging *g, const char *recipe_hex)
{
    fm_oid oid;
    fm_buf subject;
    fm_buf_init(&subject, 0);
    fm_buf_printf(&subject, "merge of");
    for (size_t k = 0; k < g->count; k++)
        fm_buf_printf(&subject, "%s %.60s", k ? "," : "", g->rev[k]);
    fm_buf_printf(&subject, " by %s", g->method_word);
    fm_status rc = fm_buf_ok(&subject);
    fm_landing l = {.branch = g->name, .tree = g->tree, .gate = !g->no_gate};
    l.commit = (fm_commit_opts){.kind = "merge",
                                .message = g->message ? g->message : fm_buf_cstr(&subject),
                                .parent = g->oid,
                                .parent_count = (uint32_t)g->count,
                                .recipe_digest = recipe_hex};
    FM_THEN(rc, fm_ops_land(g->c, &l, &oid));
    if (rc == FM_OK || rc == FM_EREFUSED)
        say_sizes(g);
    fm_buf_release(&subject);
    return rc;
}

static fm_status merge(merging *g)
{
    char recipe_hex[FM_HEX_CHARS + 1];
    fm_status rc = read_method(g);
    FM_THEN(rc, read_weights(g));
    FM_THEN(rc, fm_ops_lease(g->c, true, "merge"));
    FM_THEN(rc, branch_must_be_new(g->c, g->name));
    FM_THEN(rc, open_parents(g));
    FM_THEN(rc, agree(g));
    FM_THEN(rc, start_tree(g));
    FM_THEN(rc, suite_files_check_with(g->c, g->tree, &g->suites));
    out_progress("merging %zu versions", g->count);
    FM_THEN(rc, merge_weights(g));
    out_progress_end();
    FM_THEN(rc, put_rest(g, recipe_hex));
    return rc == FM_OK ? land(g, recipe_hex) : rc;
}

int cmd_merge(cli *c, int argc, char **argv)
{
    const char *rev[FM_PARENTS_MAX];
    merging g = {.c = c, .lambda = 1, .rev = rev};
    const opt_spec table[] = {
        {0, "as", OPT_STR, "NAME", "branch to make", &g.name},
        {0, "method", OPT_STR, "M", "average (default) or task-arithmetic", &g.method_word},
        {0, "weight", OPT_LIST, "W",
         "of each version, in order (1); an average divides by their sum", &g.weights},
        {0, "lambda", OPT_REAL, "L", "task-arithmetic: times each difference (1)", &g.lambda},
        {0, "base", OPT_STR, "REV",
         "task-arithmetic: what differences are taken from (the merge base)", &g.base_rev},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &g.suites},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &g.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &g.message},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, rev, 2, FM_PARENTS_MAX, &g.count);
    if (code != CLI_GO_ON)
        return code;
    if (!g.name)
        return cli_usage_error(c, "--as NAME is missing: what should the branch be called?");
    fm_status rc = merge(&g);
    for (size_t k = 0; k < g.count; k++)
        fm_tree_free(g.parent[k]);
    fm_tree_free(g.base);
    fm_tree_free(g.tree);
    return cli_exit(rc);
}
