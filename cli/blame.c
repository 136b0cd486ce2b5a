/* blame.c - the callbacks between blame's searches (testing), mixtures of trees (store), the case
 * run for real (infer) and the ranking of examples (train). */
#include "cli/blame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "infer/prompt.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "train/train.h"

/* ---- history ---- */

typedef struct collect {
    blame *b;
    fm_map *index; /* oid -> node number + 1 */
} collect;

static fm_status collect_version(void *ctx, const fm_version *v)
{
    collect *k = ctx;
    blame *b = k->b;
    size_t cap = b->cap;
    fm_status rc = fm_grow(&b->version, &b->cap, b->count + 1, sizeof *b->version);
    if (rc == FM_OK && b->cap != cap) {
        void *names = fm_realloc(b->names, b->cap * sizeof *b->names);
        if (!names)
            return FM_ENOMEM;
        b->names = names;
    }
    if (rc == FM_OK)
        rc = fm_version_read(b->c->repo, &b->version[b->count], &v->oid);
    if (rc == FM_OK) {
        b->names[b->count][0] = 0;
        rc = fm_map_put(k->index, v->oid.b, sizeof v->oid.b, (void *)(uintptr_t)(b->count + 1),
                        NULL);
        b->count++;
    }
    return rc;
}

static fm_status name_node(void *ctx, const char *ref, const fm_oid *oid)
{
    collect *k = ctx;
    uintptr_t at = (uintptr_t)fm_map_get(k->index, oid->b, sizeof oid->b);
    if (at) {
        char *names = k->b->names[at - 1];
        size_t len = strlen(names);
        snprintf(names + len, sizeof *k->b->names - len, "%s%s", len ? ", " : "",
                 strchr(ref + 5, '/') + 1);
    }
    return FM_OK;
}

static fm_status link_nodes(blame *b, const fm_map *index)
{
    b->node = fm_calloc(b->count, sizeof *b->node);
    b->output = fm_calloc(b->count, sizeof *b->output);
    if (!b->node || !b->output)
        return FM_ENOMEM;
    for (size_t i = 0; i < b->count; i++) {
        const fm_version *v = &b->version[i];
        size_t *parent = fm_calloc(v->parent_count, sizeof *parent);
        if (!parent)
            return FM_ENOMEM;
        b->node[i].parent = parent;
        for (uint32_t p = 0; p < v->parent_count; p++) {
            uintptr_t at = (uintptr_t)fm_map_get(index, v->parent[p].b, sizeof v->parent[p].b);
            if (at)
                parent[b->node[i].parent_count++] = at - 1;
        }
    }
    return FM_OK;
}

/* The case on one tree. A version that cannot run (no weights, another architecture) is an error
 * of the case, not of blame. */
static fm_status run_case(blame *b, const fm_tree *tree, const char *what, fm_case_result *out,
                          fm_suite_run *run)
{
    fm_model *m = NULL;
    fm_result_cache cache = suite_cache(b->c);
    fm_status rc = cli_load_model(b->c, tree, what, &m);
    if (rc == FM_OK)
        rc = fm_suite_run_on(run, b->suite, m, fm_suite_case_name(b->suite, b->case_index), &cache);
    fm_model_close(m);
    if (rc == FM_OK)
        *out = run->result[0];
    return rc;
}

static fm_status eval_node(void *ctx, size_t node, fm_verdict *verdict)
{
    blame *b = ctx;
    fm_tree *tree = NULL;
    fm_case_result r;
    fm_suite_run run = {0};
    out_progress("history: %s", cli_short_oid(&b->version[node].oid));
    fm_status rc = fm_version_tree(b->c->repo, &tree, &b->version[node].oid);
    if (rc == FM_OK)
        rc = run_case(b, tree, cli_short_oid(&b->version[node].oid), &r, &run);
    if (rc == FM_OK) {
        *verdict = r.verdict;
        fm_free(b->output[node]);
        b->output[node] = r.output ? fm_strdup(r.output) : NULL;
        fm_suite_run_release(&run);
    } else if (rc == FM_EUNSUPPORTED) {
        *verdict = FM_ERROR_CASE;
        b->output[node] = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = FM_OK;
    }
    fm_tree_free(tree);
    return rc;
}

fm_status blame_history(blame *b, const fm_oid *start)
{
    collect k = {b, NULL};
    fm_status rc = fm_map_new(&k.index);
    if (rc == FM_OK)
        rc = fm_log_walk(b->c->repo, start, 1, collect_version, &k);
    if (rc == FM_OK)
        rc = fm_ref_each(b->c->repo, "refs/heads/", name_node, &k);
    if (rc == FM_OK)
        rc = fm_ref_each(b->c->repo, "refs/tags/", name_node, &k);
    if (rc == FM_OK)
        rc = link_nodes(b, k.index);
    if (rc == FM_OK)
        rc = fm_blame_find(&b->history, b->node, b->count, eval_node, b);
    out_progress_end();
    fm_map_free(k.index);
    return rc;
}

/* ---- tensors ---- */

static fm_status keep_change(void *ctx, const fm_change *ch)
{
    blame *b = ctx;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    if (e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    fm_status rc = fm_grow(&b->change, &b->change_cap, b->change_count + 1, sizeof *b->change);
    if (rc == FM_OK)
        b->change[b->change_count++] = *ch;
    return rc;
}

/* "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" -> "model.layers.0.mlp.up_proj" with
 * the adapter's folder in front when it is not the first; plain tensors keep their name. */
static void unit_name(char out[BLAME_UNIT_NAME], const fm_entry *e)
{
    static const char peft[] = "base_model.model.";
    const char *name = e->name;
    if (strncmp(name, peft, sizeof peft - 1) == 0)
        name += sizeof peft - 1;
    snprintf(out, BLAME_UNIT_NAME, "%s", name);
    char *low_rank = strstr(out, ".lora_");
    if (low_rank)
        *low_rank = 0;
    else if (strlen(out) > 7 && strcmp(out + strlen(out) - 7, ".weight") == 0)
        out[strlen(out) - 7] = 0;
    if (strncmp(e->path, "adapters/", 9) == 0 && strncmp(e->path, "adapters/0-", 11) != 0) {
        size_t len = strlen(out), folder = strcspn(e->path + 9, "/");
        snprintf(out + len, BLAME_UNIT_NAME - len, " (adapter %.*s)", (int)folder, e->path + 9);
    }
}

/* Units of one layer form a group; what is outside the layers is a group by itself. */
static void group_key(char *out, size_t bytes, const char *unit)
{
    const char *layers = strstr(unit, "layers.");
    if (layers)
        snprintf(out, bytes, "layers.%ld", strtol(layers + 7, NULL, 10));
    else
        snprintf(out, bytes, "%s", unit);
}

static fm_status number_of(fm_map *map, const char *key, size_t *next, size_t *out)
{
    uintptr_t at = (uintptr_t)fm_map_get(map, key, strlen(key));
    if (at) {
        *out = at - 1;
        return FM_OK;
    }
    *out = (*next)++;
    return fm_map_put(map, key, strlen(key), (void *)(uintptr_t)*next, NULL);
}

static fm_status build_units(blame *b)
{
    fm_map *by_name = NULL, *by_group = NULL;
    fm_status rc = fm_map_new(&by_name);
    if (rc == FM_OK)
        rc = fm_map_new(&by_group);
    for (size_t i = 0; rc == FM_OK && i < b->change_count; i++) {
        const fm_change *ch = &b->change[i];
        char name[BLAME_UNIT_NAME], group[BLAME_UNIT_NAME];
        size_t before = b->unit_count, u = 0;
        unit_name(name, ch->b ? ch->b : ch->a);
        group_key(group, sizeof group, name);
        rc = fm_grow(&b->unit, &b->unit_cap, b->unit_count + 1, sizeof *b->unit);
        if (rc == FM_OK)
            rc = number_of(by_name, name, &b->unit_count, &u);
        if (rc < 0)
            break;
        blame_unit *unit = &b->unit[u];
        if (b->unit_count > before) {
            memset(unit, 0, sizeof *unit);
            memcpy(unit->name, name, sizeof name);
            rc = number_of(by_group, group, &b->group_count, &unit->group);
        }
        if (rc == FM_OK)
            rc = fm_grow(&unit->change, &unit->cap, unit->count + 1, sizeof *unit->change);
        if (rc == FM_OK)
            unit->change[unit->count++] = ch;
    }
    fm_map_free(by_name);
    fm_map_free(by_group);
    return rc;
}

/* An adapter without any tensor left has nothing to say, and its config must go too. */
static fm_status drop_empty_adapters(fm_tree *tree)
{
    for (unsigned n = 0; n < 1000; n++) {
        char prefix[64], tensors[160];
        size_t begin, end, tb, te;
        snprintf(prefix, sizeof prefix, "adapters/%u-", n);
        fm_tree_range(tree, prefix, &begin, &end);
        if (begin == end)
            return FM_OK;
        const char *path = fm_tree_at(tree, begin)->path;
        int folder = (int)(strlen("adapters/") + strcspn(path + strlen("adapters/"), "/"));
        snprintf(tensors, sizeof tensors, "%.*s/tensors/", folder, path);
        fm_tree_range(tree, tensors, &tb, &te);
        fm_status rc = tb == te ? tree_drop(tree, prefix) : FM_OK;
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* The child's tree with every unit that is not taken set back to the parent's value. */
static fm_status make_mixture(const blame *b, const bool *take, fm_tree **out)
{
    fm_status rc = fm_tree_copy(out, b->child);
    for (size_t u = 0; rc == FM_OK && u < b->unit_count; u++) {
        for (size_t i = 0; rc == FM_OK && !take[u] && i < b->unit[u].count; i++) {
            const fm_change *ch = b->unit[u].change[i];
            rc = ch->a ? fm_tree_put_entry(*out, ch->a) : fm_tree_remove(*out, ch->b->path);
        }
    }
    return rc == FM_OK ? drop_empty_adapters(*out) : rc;
}

static fm_status run_mixture(blame *b, const bool *take, fm_verdict *verdict)
{
    fm_tree *tree = NULL;
    fm_case_result r;
    fm_suite_run run = {0};
    size_t taken = 0;
    for (size_t u = 0; u < b->unit_count; u++)
        taken += take[u];
    out_progress("tensors: running a mixture with %zu of %zu units of the child", taken,
                 b->unit_count);
    fm_status rc = make_mixture(b, take, &tree);
    if (rc == FM_OK)
        rc = run_case(b, tree, "mixture", &r, &run);
    if (rc == FM_OK) {
        *verdict = r.verdict;
        fm_suite_run_release(&run);
    }
    fm_tree_free(tree);
    return rc;
}

/* A mixture that cannot be asked proves nothing, in either direction. */
static fm_status mixture_fails(void *ctx, const bool *take, bool *fails)
{
    fm_verdict v = FM_ERROR_CASE;
    fm_status rc = run_mixture(ctx, take, &v);
    *fails = v == FM_FAIL;
    return rc;
}

/* The other way round: does the child pass once the taken units are set back to the parent? */
static fm_status reset_repairs(void *ctx, const bool *take, bool *repairs)
{
    blame *b = ctx;
    fm_verdict v = FM_ERROR_CASE;
    for (size_t u = 0; u < b->unit_count; u++)
        b->keep[u] = !take[u];
    fm_status rc = run_mixture(b, b->keep, &v);
    *repairs = v == FM_PASS;
    return rc;
}

static fm_status open_culprit(blame *b)
{
    const fm_version *v = &b->version[b->history.culprit];
    fm_case_result r;
    fm_suite_run run = {0};
    if (b->child)
        return FM_OK;
    fm_status rc = fm_version_tree(b->c->repo, &b->child, &v->oid);
    if (rc == FM_OK && v->parent_count)
        rc = fm_version_tree(b->c->repo, &b->parent, &v->parent[0]);
    if (rc == FM_OK)
        rc = run_case(b, b->child, "culprit", &r, &run);
    if (rc == FM_OK) {
        b->answer = r.answer ? fm_strdup(r.answer) : NULL;
        b->detail = r.detail ? fm_strdup(r.detail) : NULL;
        fm_suite_run_release(&run);
    }
    return rc;
}

fm_status blame_tensors(blame *b, uint32_t max_runs)
{
    fm_model *keep[2] = {NULL, NULL};
    fm_status rc = open_culprit(b);
    if (rc == FM_OK && b->parent)
        rc = fm_diff_trees(b->parent, b->child, keep_change, b);
    if (rc == FM_OK)
        rc = build_units(b);
    if (rc < 0 || b->unit_count == 0)
        return rc;
    size_t *group_of = fm_calloc(b->unit_count, sizeof *group_of);
    b->keep = fm_calloc(b->unit_count, sizeof *b->keep);
    if (!group_of || !b->keep) {
        fm_free(group_of);
        return FM_ENOMEM;
    }
    for (size_t u = 0; u < b->unit_count; u++)
        group_of[u] = b->unit[u].group;
    /* Both ends stay resident, so that a mixture loads no weight at all. */
    rc = cli_load_model(b->c, b->parent, "parent", &keep[0]);
    if (rc == FM_OK)
        rc = cli_load_model(b->c, b->child, "child", &keep[1]);
    if (rc == FM_OK)
        rc = fm_blame_units(&b->minimal, b->unit_count, group_of, b->group_count, mixture_fails, b,
                            max_runs);
    if (rc == FM_OK)
        rc = fm_blame_units(&b->repair, b->unit_count, group_of, b->group_count, reset_repairs, b,
                            max_runs);
    out_progress_end();
    fm_model_close(keep[0]);
    fm_model_close(keep[1]);
    fm_free(group_of);
    return rc;
}

/* ---- data ---- */

static int by_score(const void *x, const void *y)
{
    const blame_example *a = x, *b = y;
    if (a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* How many examples stand out of the crowd: more than six robust deviations (median absolute
 * deviation, scaled to a normal's) above the median. A place to look, not a verdict. */
static size_t standing_out(const blame_example *e, size_t count)
{
    double *v = fm_calloc(count, sizeof *v);
    size_t out = 0;
    if (!v || count == 0) {
        fm_free(v);
        return 0;
    }
    double median = e[count / 2].score;
    for (size_t i = 0; i < count; i++)
        v[i] = fabs(e[i].score - median);
    qsort(v, count, sizeof *v, by_value);
    double bound = median + 6 * 1.4826 * v[count / 2];
    while (out < count && e[out].score > fmax(bound, 0))
        out++;
    fm_free(v);
    return out;
}

/* prompt + the culprit's wrong answer, labels on the answer. */
static fm_status make_target(const blame *b, const fm_model *m, fm_example *target)
{
    fm_ids ids = {0};
    size_t prompt;
    fm_status rc = fm_suite_case_prompt(&ids, b->suite, b->case_index, m);
    prompt = ids.count;
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(b->answer), false, &ids);
    if (rc == FM_OK && ids.count == prompt)
        rc = fm_fail(FM_EUNSUPPORTED, "the answer is empty, so no gradient can be taken of it");
    if (rc == FM_OK && !(target->labels = fm_calloc(ids.count, sizeof *target->labels)))
        rc = FM_ENOMEM;
    if (rc < 0) {
        fm_ids_release(&ids);
        return rc;
    }
    for (size_t i = 0; i < ids.count; i++)
        target->labels[i] = i < prompt ? -100 : ids.id[i];
    target->len = target->part_len[0] = (uint32_t)ids.count;
    target->parts = 1;
    target->klass = -1;
    target->ids = ids.id; /* taken */
    return FM_OK;
}

/* Did the culprit's step train an adapter (rather than the weights themselves)? */
static bool trained_adapter(const blame *b)
{
    size_t begin, end, parent_begin = 0, parent_end = 0;
    fm_tree_range(b->child, "adapters/", &begin, &end);
    if (b->parent)
        fm_tree_range(b->parent, "adapters/", &parent_begin, &parent_end);
    return end - begin > parent_end - parent_begin;
}

/* A record's number says all where there is one file. */
static char *preview_of(const fm_dataset *data, const fm_example *e)
{
    if (fm_dataset_files(data) == 1)
        return fm_strdup(e->preview);
    fm_json *manifest = fm_dataset_file_manifest(data, e->file);
    char *text = manifest ? fm_asprintf("%s: %s", fm_json_cstr(fm_json_get(manifest, "name"), ""),
                                        e->preview)
                          : NULL;
    fm_json_free(manifest);
    return text;
}

static fm_status rank(blame *b, const fm_dataset *data, const fm_example *target)
{
    size_t n = fm_dataset_count(data);
    fm_provider p = fm_store_provider(fm_repo_store(b->c->repo));
    double *score = fm_calloc(n, sizeof *score);
    b->example = fm_calloc(n, sizeof *b->example);
    if (!score || !b->example) {
        fm_free(score);
        return FM_ENOMEM;
    }
    fm_status rc = fm_influence(b->c->engine, b->child, trained_adapter(b) ? NULL : b->parent, &p,
                                data, target, score);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_example *e = fm_dataset_at(data, i);
        b->example[i] = (blame_example){e->index, score[i], preview_of(data, e)};
        b->example_count++;
    }
    if (rc == FM_OK) {
        qsort(b->example, n, sizeof *b->example, by_score);
        b->outstanding = standing_out(b->example, n);
    }
    fm_free(score);
    return rc;
}

/* The data as the recipe trained on it: same files and settings, same records left out. */
static fm_status open_data(blame *b, const fm_model *m, fm_dataset **out)
{
    size_t begin, end;
    fm_json *recipe = NULL;
    fm_train_config config;
    fm_tree_range(b->child, "data/", &begin, &end);
    fm_status rc = tree_recipe(b->c, b->child, &recipe);
    if (rc < 0 || begin == end || !recipe) {
        fm_json_free(recipe);
        return rc;
    }
    const fm_json *data = fm_json_get(recipe, "data");
    b->data_name = fm_strdup(fm_json_cstr(fm_json_get(fm_json_at(data, 0), "name"), ""));
    rc = b->data_name
             ? fm_train_config_from_json(&config, fm_json_get(recipe, "config"), "recipe.json")
             : FM_ENOMEM;
    if (rc == FM_OK)
        rc = data_of_version(b->c, b->child, recipe, &config, fm_model_tokenizer(m),
                             fm_model_chat_template(m), out);
    fm_json_free(recipe);
    return rc;
}

fm_status blame_data(blame *b)
{
    fm_model *m = NULL;
    fm_dataset *data = NULL;
    fm_example target = {0};
    fm_status rc = open_culprit(b);
    if (rc == FM_OK && b->answer)
        rc = cli_load_model(b->c, b->child, "culprit", &m);
    if (rc == FM_OK && m)
        rc = open_data(b, m, &data);
    if (rc == FM_OK && data)
        rc = make_target(b, m, &target);
    if (rc == FM_OK && data) {
        out_progress("data: gradients of %zu examples", fm_dataset_count(data));
        rc = rank(b, data, &target);
    }
    out_progress_end();
    fm_free(target.ids);
    fm_free(target.labels);
    fm_dataset_close(data);
    fm_model_close(m);
    return rc;
}

void blame_release(blame *b)
{
    for (size_t i = 0; i < b->count; i++) {
        fm_version_release(&b->version[i]);
        if (b->node)
            fm_free((void *)(uintptr_t)b->node[i].parent);
        if (b->output)
            fm_free(b->output[i]);
    }
    for (size_t u = 0; u < b->unit_count; u++)
        fm_free(b->unit[u].change);
    for (size_t i = 0; i < b->example_count; i++)
        fm_free(b->example[i].preview);
    fm_free(b->version);
    fm_free(b->names);
    fm_free(b->node);
    fm_free(b->output);
    fm_free(b->history.at);
    fm_tree_free(b->parent);
    fm_tree_free(b->child);
    fm_free(b->change);
    fm_free(b->unit);
    fm_free(b->minimal.take);
    fm_free(b->repair.take);
    fm_free(b->keep);
    fm_free(b->answer);
    fm_free(b->detail);
    fm_free(b->example);
    fm_free(b->data_name);
}
