/* tensors.c - finds the guilty tensors: runs mixtures of the guilty step's parent and child. */
#include "cli/ops/base/say.h"
#include "cli/ops/blame/blame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

static fm_status keep_change(void *ctx, const fm_change *ch)
{
    fmo_blame *b = ctx;
    const fm_entry *e = ch->b ? ch->b : ch->a;
    if (e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    FM_TRY(fm_grow(&b->change, &b->change_cap, b->change_count + 1, sizeof *b->change));
    b->change[b->change_count++] = *ch;
    return FM_OK;
}

/* Names the unit of an entry: "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" becomes
 * "model.layers.0.mlp.up_proj", with " (adapter FOLDER)" behind it unless the adapter is the first;
 * a plain tensor loses only ".weight". */
static void fmo_unit_name(char out[BLAME_UNIT_NAME], const fm_entry *e)
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

/* The units of one layer form a group, and within it those of one part ("layers.3.mlp") a block; a
 * unit outside the layers is a group and a block of its own. */
static void group_key(char *out, size_t bytes, const char *unit, bool block)
{
    const char *layers = strstr(unit, "layers."), *dot = layers ? strchr(layers + 7, '.') : NULL;
    if (!layers)
        snprintf(out, bytes, "%s", unit);
    else if (block && dot)
        snprintf(out, bytes, "%.*s", (int)(dot + 1 + strcspn(dot + 1, ".") - layers), layers);
    else
        snprintf(out, bytes, "layers.%ld", strtol(layers + 7, NULL, 10));
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

static fm_status build_units(fmo_blame *b)
{
    fm_map *by_name = NULL, *by_group = NULL, *by_block = NULL;
    fm_status rc = fm_map_new(&by_name);
    FM_THEN(rc, fm_map_new(&by_group));
    FM_THEN(rc, fm_map_new(&by_block));
    for (size_t i = 0; rc == FM_OK && i < b->change_count; i++) {
        const fm_change *ch = &b->change[i];
        char name[BLAME_UNIT_NAME], group[BLAME_UNIT_NAME];
        size_t before = b->unit_count, u = 0;
        fmo_unit_name(name, ch->b ? ch->b : ch->a);
        rc = fm_grow(&b->unit, &b->unit_cap, b->unit_count + 1, sizeof *b->unit);
        FM_THEN(rc, number_of(by_name, name, &b->unit_count, &u));
        if (rc < 0)
            break;
        fmo_blame_unit *unit = &b->unit[u];
        if (b->unit_count > before) {
            memset(unit, 0, sizeof *unit);
            memcpy(unit->name, name, sizeof name);
            group_key(group, sizeof group, name, false);
            rc = number_of(by_group, group, &b->group_count, &unit->group);
            group_key(group, sizeof group, name, true);
            FM_THEN(rc, number_of(by_block, group, &b->block_count, &unit->block));
        }
        FM_THEN(rc, fm_grow(&unit->change, &unit->cap, unit->count + 1, sizeof *unit->change));
        if (rc == FM_OK)
            unit->change[unit->count++] = ch;
    }
    fm_map_free(by_name);
    fm_map_free(by_group);
    fm_map_free(by_block);
    return rc;
}

/* Runs mixtures. set_back: take marks the units set back to the parent, and the search looks for a
 * child that passes; else take marks the child's units, and it looks for a failure. */
static fm_status ask_mixtures(fmo_blame *b, const fm_mixture *mix, size_t n, bool set_back,
                              fm_mixture_reply *out)
{
    size_t units = b->unit_count;
    bool *take = fm_calloc(n * units, sizeof *take);
    uint32_t *repeat = fm_calloc(n, sizeof *repeat);
    fmo_blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_status rc = take && repeat && heard ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        repeat[i] = mix[i].repeat;
        for (size_t u = 0; u < units; u++)
            take[i * units + u] = mix[i].take[u] != set_back;
    }
    FM_THEN(rc, fmo_blame_run_mixtures(b, take, repeat, n, heard));
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        /* A mixture that cannot be run proves nothing, in either direction. */
        out[i] = (fm_mixture_reply){
            .fails = heard[i].verdict == (set_back ? FM_PASS : FM_FAIL),
            .unasked = heard[i].verdict == FM_ERROR_CASE,
            .score = set_back ? -heard[i].score : heard[i].score,
        };
    }
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, n);
    fm_free(take);
    fm_free(repeat);
    fm_free(heard);
    return rc;
}

static fm_status mixtures_fail(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    return ask_mixtures(ctx, mix, n, false, out);
}

static fm_status resets_repair(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    return ask_mixtures(ctx, mix, n, true, out);
}

/* Searches both sets of units: one that breaks the parent, one that repairs the child. */
static fm_status search_units(fmo_blame *b)
{
    size_t n = b->unit_count;
    size_t *layer = fm_calloc(n, sizeof *layer), *block = fm_calloc(n, sizeof *block);
    double *weight = fm_calloc(n, sizeof *weight);
    fm_status rc = layer && block && weight ? FM_OK : FM_ENOMEM;
    for (size_t u = 0; rc == FM_OK && u < n; u++) {
        layer[u] = b->unit[u].group;
        block[u] = b->unit[u].block;
        rc = fmo_blame_unit_size(b, &b->unit[u], &weight[u]);
    }
    const fm_blame_units units = {
        .count = n, .levels = 2, .group_of = {layer, block}, .weight = weight};
    const fm_minimal_opts opts = {.flip_rate = b->history.flip_rate,
                                  .confidence = b->how.confidence,
                                  .max_runs = b->how.max_runs};
    FM_THEN(rc, fm_blame_minimal(&b->minimal, &units, mixtures_fail, b, &opts));
    FM_THEN(rc, fm_blame_minimal(&b->repair, &units, resets_repair, b, &opts));
    fm_free(layer);
    fm_free(block);
    fm_free(weight);
    return rc;
}

fm_status fmo_blame_tensors(fmo_blame *b)
{
    fm_model *keep[2] = {NULL, NULL};
    fm_status rc = fmo_blame_open_culprit(b);
    if (rc == FM_OK && b->parent)
        rc = fm_diff_trees(b->parent, b->child, keep_change, b);
    FM_THEN(rc, build_units(b));
    if (rc < 0 || b->unit_count == 0)
        return rc;
    /* Parent and child stay open, so that a mixture loads no weight at all. */
    rc = fm_ops_load_model(b->c, b->parent, "parent", &keep[0]);
    FM_THEN(rc, fm_ops_load_model(b->c, b->child, "child", &keep[1]));
    fmo_blame_contrast(b);
    FM_THEN(rc, search_units(b));
    if (rc == FM_OK && b->how.ranks)
        rc = fmo_blame_ranks(b);
    if (rc == FM_OK && b->how.shapley)
        rc = fmo_blame_shapley(b);
    fmo_ui_progress_end(b->c);
    fm_model_close(keep[0]);
    fm_model_close(keep[1]);
    return rc;
}
