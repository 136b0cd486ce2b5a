/* blame_tensors.c - which tensors: mixtures of the guilty step's parent and child, run for real. */
#include "cli/blame.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

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
        rc = blame_run_case(b, tree, "mixture", &r, &run);
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

fm_status blame_tensors(blame *b, uint32_t max_runs)
{
    fm_model *keep[2] = {NULL, NULL};
    fm_status rc = blame_open_culprit(b);
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
