/* rederive.c - trains the guilty step again, with examples left out or settings changed. */
#include "cli/ops/blame/repair/rederive.h"
#include "cli/ops/base/say.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

/* ---- engines ---- */

/* Swaps the judging engine, of mode exact, and the one of the training's mode, if they differ. */
void fmo_blame_swap_engines(fmo_blame_more *m)
{
    if (!m->other)
        return;
    fm_engine *e = m->b->c->engine;
    m->b->c->engine = m->other;
    m->other = e;
}

fm_status fmo_blame_replay_open(fmo_blame_more *m, fmo_replay *r)
{
    fm_ops *c = m->b->c;
    const fm_version *v = &m->b->version[m->b->history.culprit].commit;
    fm_json *recipe = NULL;
    bool can = false;
    memset(r, 0, sizeof *r);
    fm_status rc = fmo_blame_open_culprit(m->b);
    FM_THEN(rc, fmo_replay_can(c, &v->oid, &can));
    if (rc == FM_OK && !can)
        rc = fm_fail(FM_EUNSUPPORTED, "no training made this version (kind %s)", v->kind);
    FM_THEN(rc, fmo_tree_recipe(c, m->b->child, &recipe));
    const char *mode = fm_json_cstr(fm_json_get(recipe, "mode"), "exact");
    bool other = rc == FM_OK && c->engine && strcmp(fm_engine_mode(c->engine), mode) != 0;
    if (other) {
        m->other = c->engine;
        c->engine = NULL;
    }
    FM_THEN(rc, fmo_replay_open(r, c, &v->oid, "culprit"));
    if (other)
        fmo_blame_swap_engines(m);
    fm_json_free(recipe);
    return rc;
}

void fmo_blame_replay_close(fmo_blame_more *m, fmo_replay *r)
{
    fmo_replay_close(r);
    fm_engine_free(m->other);
    m->other = NULL;
}

/* ---- recipes ---- */

static bool among(const uint32_t *record, size_t records, int64_t n)
{
    for (size_t i = 0; i < records; i++)
        if ((int64_t)record[i] == n)
            return true;
    return false;
}

static fm_json *skip_list(const fm_json *old, const uint32_t *record, size_t records)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < fm_json_count(old); i++)
        if (!among(record, records, fm_json_int(fm_json_at(old, i), -1)))
            fm_json_push_to(&rc, list, fm_json_copy(fm_json_at(old, i)));
    for (size_t i = 0; i < records; i++)
        fm_json_push_to(&rc, list, fm_json_new_int(record[i]));
    if (rc == FM_OK)
        return list;
    fm_json_free(list);
    return NULL;
}

fm_json *fmo_blame_recipe_without(const fm_json *recipe, const char *file, const uint32_t *record,
                                  size_t records)
{
    fm_status rc = FM_OK;
    const fm_json *data = fm_json_get(recipe, "data");
    fm_json *out = fm_json_copy(recipe), *list = fm_json_new_array();
    for (size_t i = 0; i < fm_json_count(data); i++) {
        const fm_json *one = fm_json_at(data, i);
        const char *name = fm_json_cstr(fm_json_get(one, "name"), "");
        bool this = !file || strcmp(file, name) == 0;
        if (this && !record)
            continue;
        fm_json *copy = fm_json_copy(one);
        if (this && record)
            fm_json_put(&rc, copy, "skipped",
                        skip_list(fm_json_get(one, "skipped"), record, records));
        fm_json_push_to(&rc, list, copy);
    }
    fm_json_put(&rc, out, "data", list);
    if (rc == FM_OK)
        return out;
    fm_json_free(out);
    return NULL;
}

/* ---- variants ---- */

fm_status fmo_blame_variant_open(fmo_blame_variant *v, const fmo_replay *r,
                                 const fm_train_config *config, fm_json *recipe)
{
    const fm_tokenizer *tok = r->model ? fm_model_tokenizer(r->model) : r->own;
    const fm_chat_template *chat = r->model ? fm_model_chat_template(r->model) : NULL;
    memset(v, 0, sizeof *v);
    v->recipe = recipe;
    v->config = *config;
    FM_TRY(recipe ? FM_OK : FM_ENOMEM);
    FM_TRY(fmo_data_of_version(r->c, r->tree, recipe, config, tok, chat, &v->data));

    return fmo_goal_of_recipe(&v->goal, r->c, v->data, config, recipe);
}

void fmo_blame_variant_release(fmo_blame_variant *v)
{
    fm_train_result_release(&v->result);
    fmo_goal_release(&v->goal);
    fm_dataset_close(v->data);
    fm_json_free(v->recipe);
    memset(v, 0, sizeof *v);
}

typedef struct variants { /* for show_steps */
    fm_ops *c;
    const char *label;
} variants;

static bool show_steps(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    const variants *v = ctx;
    (void)drop;
    return fmo_ui_progress(v->c, p->step + 1, p->steps, "%s: %zu in one pass, step %u/%u", v->label,
                           n, p->step + 1, p->steps);
}

fm_status fmo_blame_variants_train(fmo_blame_more *m, const fmo_replay *r, fmo_blame_variant *v,
                                   size_t n, const char *label)
{
    fm_provider p = fm_store_provider(fm_repo_store(r->c->repo));
    fm_train_job *job = fm_calloc(n, sizeof *job);
    fm_train_result *result = fm_calloc(n, sizeof *result);
    variants told = {r->c, label};
    fm_status rc = job && result ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        job[i] = (fm_train_job){
            .name = label, .config = v[i].config, .parent = r->parent, .data = v[i].data};
        fmo_goal_job(&v[i].goal, &job[i]);
    }
    fmo_blame_swap_engines(m);
    FM_THEN(rc, fm_train_run(r->c->engine, &p, job, n, result, show_steps, &told));
    fmo_blame_swap_engines(m);
    fmo_ui_progress_end(r->c);
    for (size_t i = 0; result && i < n; i++) {
        v[i].result = result[i];
        if (rc == FM_OK && result[i].stopped)
            rc = fm_fail(FM_ECANCELLED, "%s: stopped", label);
    }
    fm_free(job);
    fm_free(result);
    return rc;
}

double fmo_blame_plan(fmo_blame_more *m, const fmo_replay *r, uint64_t *state_bytes)
{
    fm_provider p = fm_store_provider(fm_repo_store(r->c->repo));
    fm_train_job job = {
        .name = r->label, .config = r->config, .parent = r->parent, .data = r->data};
    fm_plan plan;
    fmo_goal_job(&r->goal, &job);
    fmo_blame_swap_engines(m);
    fm_status rc = fm_train_plan(r->c->engine, &p, &job, 1, &plan);
    fmo_blame_swap_engines(m);
    *state_bytes = 0;
    if (rc < 0) {
        fm_error_clear();
        return 0;
    }
    *state_bytes = plan.parameter_bytes + plan.moment_bytes;
    return plan.seconds;
}

/* ---- trees ---- */

/* The folder of the adapter that this step added: "adapters/1-lora"; "" if it added none. */
static void own_adapter(const fmo_replay *r, char *out, size_t bytes)
{
    size_t begin, end;
    fm_tree_range(r->tree, "adapters/", &begin, &end);
    out[0] = 0;
    for (size_t i = begin; i < end && !out[0]; i++) {
        const char *path = fm_tree_at(r->tree, i)->path;
        size_t folder = strlen("adapters/") + strcspn(path + strlen("adapters/"), "/");
        size_t b, e;
        snprintf(out, bytes, "%.*s/", (int)folder, path);
        fm_tree_range(r->parent, out, &b, &e);
        if (b < e)
            out[0] = 0;
        else if (strlen(out))
            out[strlen(out) - 1] = 0;
    }
}

/* Puts a state's F32 values into the tree, in the type of the version's tensor of that path. */
static fm_status put_state(const fmo_replay *r, const fm_trained *t, const char *path,
                           fm_tree *tree, fmo_blame_overlay *made)
{
    const fm_entry *e = fm_tree_find(r->tree, path);
    if (!e || !fmo_blame_can_compute(e) || !fm_shape_eq(&e->shape, &t->shape))
        return fm_fail(FM_EUNSUPPORTED, "a state of the run has %s, which the version has not",
                       t->name);
    return fmo_blame_overlay_put(made, tree, e, (float *)(void *)t->data);
}

static fm_status put_trained(const fm_trained *t, char *path, fm_tree *tree,
                             fmo_blame_overlay *made)
{
    uint64_t n = 0;
    const fm_entry like = {.path = path,
                           .kind = FM_ENTRY_TENSOR,
                           .bytes = t->bytes,
                           .name = t->name,
                           .dtype = t->dtype,
                           .shape = t->shape};
    fm_status rc = fm_shape_elems(&n, &t->shape);
    float *value = rc == FM_OK ? fm_calloc((size_t)n, sizeof *value) : NULL;
    FM_THEN(rc, value ? fm_to_f32(value, t->dtype, t->data, n) : FM_ENOMEM);
    FM_THEN(rc, fmo_blame_overlay_put(made, tree, &like, value));
    fm_free(value);
    return rc;
}

fm_status fmo_blame_tree_of_state(const fmo_replay *r, const fm_trained *t, size_t n, fm_tree **out,
                                  fmo_blame_overlay *made)
{
    char adapter[64], prefix[96];
    own_adapter(r, adapter, sizeof adapter);
    snprintf(prefix, sizeof prefix, "%s%stensors", adapter, adapter[0] ? "/" : "");
    fm_status rc = fm_tree_copy(out, r->tree);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        fm_buf path;
        if (t[i].name[0] != 'p' || t[i].name[1] != '/')
            continue;
        fm_buf_init(&path, FM_MAX_PATH_BYTES);
        rc = fm_tensor_path(&path, prefix, t[i].name + 2);
        FM_THEN(rc, put_state(r, &t[i], fm_buf_cstr(&path), *out, made));
        fm_buf_release(&path);
    }
    return rc;
}

static fm_status put_adapter_config(const char *adapter, const fm_json *config, fm_tree *tree)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    char *path = fm_asprintf("%s/adapter_config.json", adapter);
    fm_status rc = path ? fm_json_write(&text, config, FM_JSON_PRETTY) : FM_ENOMEM;
    fm_buf_char(&text, '\n');
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_tree_put_file(tree, path, fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

fm_status fmo_blame_tree_of_result(const fmo_replay *r, const fm_train_result *result,
                                   fm_tree **out, fmo_blame_overlay *made)
{
    char adapter[64], prefix[96];
    own_adapter(r, adapter, sizeof adapter);
    snprintf(prefix, sizeof prefix, "%s%stensors", adapter, adapter[0] ? "/" : "");
    fm_status rc = fm_tree_copy(out, r->tree);
    if (rc == FM_OK && adapter[0]) {
        char folder[100];
        snprintf(folder, sizeof folder, "%s/", prefix);
        rc = fmo_tree_drop(*out, folder);
        if (rc == FM_OK && result->adapter_config)
            rc = put_adapter_config(adapter, result->adapter_config, *out);
    }
    for (size_t i = 0; rc == FM_OK && i < result->count; i++) {
        fm_buf path;
        fm_buf_init(&path, FM_MAX_PATH_BYTES);
        rc = fm_tensor_path(&path, prefix, result->tensors[i].name);
        FM_THEN(rc, put_trained(&result->tensors[i], (char *)path.data, *out, made));
        fm_buf_release(&path);
    }
    return rc;
}
