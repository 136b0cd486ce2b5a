/* objective_setup.c - sets a job's classes, held-out examples and teacher. */
#include "cli/ops/derive/objective_setup.h"

#include <string.h>

#include "cli/ops/base/say.h"
#include "store/base/mem.h"

static fm_status take_held(fmo_goal *g, const fm_dataset *data)
{
    g->helds = fm_dataset_held_out_count(data);
    if (g->helds == 0)
        return FM_OK;
    g->held = fm_calloc(g->helds, sizeof *g->held);
    for (size_t i = 0; g->held && i < g->helds; i++)
        g->held[i] = fm_dataset_held_out(data, i);
    return g->held ? FM_OK : FM_ENOMEM;
}

static fm_status take_names(fmo_goal *g, const fm_dataset *data)
{
    g->names = fm_dataset_classes(data);
    if (g->names == 0)
        return FM_OK;
    g->name = fm_calloc(g->names, sizeof *g->name);
    for (uint32_t i = 0; g->name && i < g->names; i++)
        g->name[i] = fm_dataset_class_name(data, i);
    return g->name ? FM_OK : FM_ENOMEM;
}

fm_status fmo_goal_open(fmo_goal *g, fm_ops *c, const fm_dataset *data,
                        const fm_train_config *config, const char *teacher, uint64_t eval_every)
{
    memset(g, 0, sizeof *g);
    g->eval_every = (uint32_t)FM_MIN(eval_every, (uint64_t)UINT32_MAX);
    if ((config->objective == FM_OBJECTIVE_DISTILL) != (teacher != NULL))
        return fm_fail(FM_EINVAL, "objective=distill and a teacher go together: --teacher REV, or "
                                  "'teacher: REV' of a child");
    fm_status rc = take_held(g, data);
    FM_THEN(rc, take_names(g, data));
    if (rc == FM_OK && teacher)
        rc = fm_ops_resolve(c, teacher, &g->teacher_oid, &g->teacher);
    g->provider = fm_store_provider(fm_repo_store(c->repo));
    return rc;
}

void fmo_goal_release(fmo_goal *g)
{
    fm_free(g->held);
    fm_free(g->name);
    fm_tree_free(g->teacher);
    memset(g, 0, sizeof *g);
}

void fmo_goal_job(const fmo_goal *g, fm_train_job *job)
{
    job->held_out = g->held;
    job->held_outs = g->helds;
    job->eval_every = g->eval_every;
    job->class_name = g->name;
    job->class_names = g->names;
    job->teacher = g->teacher;
    job->teacher_provider = g->teacher ? &g->provider : NULL;
}

void fmo_goal_recipe(const fmo_goal *g, fm_json *recipe, fm_status *rc)
{
    char hex[41];
    if (g->teacher) {
        fm_oid_hex(&g->teacher_oid, hex);
        fm_json_put(rc, recipe, "teacher", fm_json_new_str(hex));
    }
    if (g->eval_every > 0)
        fm_json_put(rc, recipe, "eval_every", fm_json_new_int((int64_t)g->eval_every));
}

fm_status fmo_goal_of_recipe(fmo_goal *g, fm_ops *c, const fm_dataset *data,
                             const fm_train_config *config, const fm_json *recipe)
{
    int64_t every = fm_json_int(fm_json_get(recipe, "eval_every"), 0);
    return fmo_goal_open(g, c, data, config, fm_json_cstr(fm_json_get(recipe, "teacher"), NULL),
                         every > 0 ? (uint64_t)every : 0);
}
