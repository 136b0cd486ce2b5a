/* replay.c - takes data, suites and parent from the store, settings, mode and kernel class from the
 * recipe; the training runs without checkpoints; ids are compared, not bytes.
 *
 * It does not matter whether the version was trained in a family or a sweep, or was interrupted:
 * each child's bytes are those of its run alone. A setting that an older recipe lacks has its
 * default, which it had then. */
#include "cli/ops/derive/replay.h"
#include "cli/ops/base/say.h"

#include <stdio.h>
#include <string.h>

#include "cli/ops/derive/family.h"
#include "store/base/math/hash.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

void fmo_replay_report_release(fmo_replay_report *r)
{
    fm_json_free(r->paths);
    r->paths = NULL;
}

bool fmo_replay_equal(const fmo_replay_report *r)
{
    return r->differ == 0 && r->log_same;
}

static bool is_training(const fm_json *recipe)
{
    fm_train_config config;
    bool yes =
        recipe && fm_json_get(recipe, "config") &&
        fmo_config_of_method(&config, fm_json_cstr(fm_json_get(recipe, "operation"), "")) == FM_OK;
    fm_error_clear();
    return yes;
}

fm_status fmo_replay_can(fm_ops *c, const fm_oid *oid, bool *yes)
{
    fm_tree *tree = NULL;
    fm_json *recipe = NULL;
    fm_status rc = fm_version_tree(c->repo, &tree, oid);
    FM_THEN(rc, fmo_tree_recipe(c, tree, &recipe));
    *yes = rc == FM_OK && is_training(recipe);
    fm_json_free(recipe);
    fm_tree_free(tree);
    return rc;
}

/* ---- the machine ---- */

static fm_status use_mode(fmo_replay *r)
{
    fm_ops *c = r->c;
    const char *mode = fm_json_cstr(fm_json_get(r->recipe, "mode"), "exact");
    const char *kernels = fm_json_cstr(fm_json_get(r->recipe, "kernel_class"), "");
    if (c->engine && strcmp(fm_engine_mode(c->engine), mode) != 0) {
        fm_engine_free(c->engine);
        c->engine = NULL;
    }
    c->mode = mode;
    fm_status rc = fm_ops_engine(c);
    c->mode = NULL; /* the text belongs to the recipe, which is freed; the engine has a copy */
    if (rc == FM_OK && strcmp(fm_engine_kernel_class(c->engine), kernels) != 0)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: was trained in kernel class '%s' (device %s), this machine computes mode "
                     "%s in '%s' (device %s): other bits are no finding; replay it on a machine or "
                     "--device of that class",
                     r->label, kernels, fm_json_cstr(fm_json_get(r->recipe, "device"), "unknown"),
                     mode, fm_engine_kernel_class(c->engine), fm_engine_device(c->engine));
    return rc;
}

/* ---- the parent ---- */

/* Makes the tree of a pretraining's config folder, as derive does: a model without weights. */
static fm_status unborn_parent(fmo_replay *r)
{
    const fm_entry *model = fm_tree_find(r->tree, "model.json");
    FM_TRY(fm_tree_new(&r->parent));
    FM_TRY(model ? fm_tree_put_entry(r->parent, model)
                 : fm_fail(FM_ECORRUPT, "%s has no model.json", r->label));
    FM_TRY(fmo_tree_inherit(r->parent, r->tree, "tokenizer/"));

    return fm_ops_open_tokenizer(r->c, r->parent, r->label, &r->own);
}

static fm_status try_parent(fmo_replay *r, uint32_t i, char hex[FM_HEX_CHARS + 1])
{
    fm_model_close(r->model);
    fm_tree_free(r->parent);
    r->model = NULL;
    r->parent = NULL;
    FM_TRY(fm_version_tree(r->c->repo, &r->parent, &r->version.parent[i]));
    FM_TRY(fm_ops_load_model(r->c, r->parent, r->label, &r->model));
    fm_digest weights = fm_model_digest(r->model);
    fm_digest_hex(&weights, hex);
    return FM_OK;
}

/* Finds the first parent that is the recipe's model: a repair (blame --fix) has the version that it
 * repairs as first parent, and the one that it was trained on as second. */
static fm_status stored_parent(fmo_replay *r)
{
    char hex[FM_HEX_CHARS + 1] = "";
    const char *want = fm_json_cstr(fm_json_get(r->recipe, "parent_model"), NULL);
    bool found = false;
    fm_status rc = FM_OK;
    if (r->version.parent_count == 0)
        return fm_fail(FM_ECORRUPT, "%s has no parent, which its recipe needs", r->label);
    for (uint32_t i = 0; rc == FM_OK && !found && i < r->version.parent_count; i++) {
        rc = try_parent(r, i, hex);
        found = rc == FM_OK && (!want || strcmp(want, hex) == 0);
    }
    if (rc < 0)
        return rc;
    if (!found && r->version.parent_count > 1)
        return fm_fail(
            FM_ECORRUPT,
            "%s: none of its %u parents is the model %.16s that the recipe says: history "
            "was rewritten",
            r->label, r->version.parent_count, want);
    if (!found)
        return fm_fail(FM_ECORRUPT,
                       "%s: its parent %s is the model %.16s, the recipe says %.16s: history was "
                       "rewritten",
                       r->label, fm_ops_short_oid(&r->version.parent[0]), hex, want);
    if (!fm_model_tokenizer(r->model))
        return fm_fail(FM_EUNSUPPORTED, "%s: its parent has no tokenizer", r->label);
    return FM_OK;
}

static fm_status open_data(fmo_replay *r)
{
    const fm_tokenizer *tok = r->model ? fm_model_tokenizer(r->model) : r->own;
    const fm_chat_template *chat = r->model ? fm_model_chat_template(r->model) : NULL;
    fm_status rc = fmo_data_of_version(r->c, r->tree, r->recipe, &r->config, tok, chat, &r->data);
    FM_THEN(rc, fmo_goal_of_recipe(&r->goal, r->c, r->data, &r->config, r->recipe));
    return rc < 0 ? fm_error_prefix(rc, "%s", r->label) : rc;
}

fm_status fmo_replay_open(fmo_replay *r, fm_ops *c, const fm_oid *oid, const char *label)
{
    memset(r, 0, sizeof *r);
    r->c = c;
    r->label = label;
    FM_TRY(fm_version_read(r->c->repo, &r->version, oid));
    FM_TRY(fm_version_tree(r->c->repo, &r->tree, oid));
    FM_TRY(fmo_tree_recipe(r->c, r->tree, &r->recipe));
    if (!r->recipe)
        return fm_fail(FM_EUNSUPPORTED, "%s has no recipe.json: it was not made by training here",
                       r->label);
    if (!is_training(r->recipe))
        return fm_fail(FM_EUNSUPPORTED, "%s: its recipe's operation '%s' is no training", r->label,
                       fm_json_cstr(fm_json_get(r->recipe, "operation"), "?"));
    FM_TRY(fm_train_config_from_json(&r->config, fm_json_get(r->recipe, "config"), r->label));
    FM_TRY(use_mode(r));
    FM_TRY(r->config.method == FM_METHOD_PRETRAIN ? unborn_parent(r) : stored_parent(r));
    return open_data(r);
}

/* ---- train again ---- */

static bool show_step(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    const fmo_replay *r = ctx;
    (void)n;
    (void)drop;
    return fmo_ui_progress(r->c, p->step + 1, p->steps, "%s  step %u/%u  loss %.4f", r->label,
                           p->step + 1, p->steps, p->loss);
}

static fm_status train_again(fmo_replay *r)
{
    fm_provider p = fm_store_provider(fm_repo_store(r->c->repo));
    fm_train_job job = {
        .name = r->label, .config = r->config, .parent = r->parent, .data = r->data};
    fmo_goal_job(&r->goal, &job);
    fm_status rc = fm_train_run(r->c->engine, &p, &job, 1, &r->result, show_step, r);
    fmo_ui_progress_end(r->c);
    if (rc == FM_OK && r->result.failed)
        rc = fm_fail(r->result.failed, "%s: %s", r->label,
                     r->result.why ? r->result.why : "training failed");
    if (rc == FM_OK && r->result.stopped)
        rc = fm_fail(FM_ECANCELLED, "%s: stopped before its last step", r->label);
    return rc;
}

/* ---- compare ---- */

static fm_status put_result(fmo_replay *r, fm_tree *tree)
{
    char prefix[96] = "tensors";
    fm_status rc = FM_OK;
    if (r->result.adapter_config) {
        char adapter[64] = "";
        rc = fmo_next_adapter(tree, r->result.adapter_config, adapter, sizeof adapter);
        snprintf(prefix, sizeof prefix, "%s/tensors", adapter);
    }
    for (size_t i = 0; rc == FM_OK && i < r->result.count; i++) {
        const fm_trained *t = &r->result.tensors[i];
        fm_digest id;
        fm_buf path;
        fm_buf_init(&path, FM_MAX_PATH_BYTES);
        rc = fm_tensor_path(&path, prefix, t->name);
        FM_THEN(rc, fm_tensor_id(&id, t->dtype, &t->shape, fm_span_of(t->data, t->bytes), NULL));
        FM_THEN(rc,
                fm_tree_put_tensor(tree, fm_buf_cstr(&path), t->name, t->dtype, &t->shape, &id));
        fm_buf_release(&path);
    }
    return rc;
}

static fm_status take_change(void *ctx, const fm_change *change)
{
    fmo_replay_report *out = ctx;
    const fm_entry *e = change->a ? change->a : change->b;
    if (e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    out->differ++;
    return out->differ > REPLAY_PATHS ? FM_OK : fm_json_push(out->paths, fm_json_new_str(e->path));
}

static fm_status compare_log(const fmo_replay *r, fmo_replay_report *out)
{
    fm_json *log = NULL;
    fm_buf then, now;
    const fm_entry *e = fm_tree_find(r->tree, "train_log.json");
    fm_buf_init(&then, 0);
    fm_buf_init(&now, 0);
    fm_status rc = e ? fm_ops_entry_bytes(r->c, e, &then)
                     : fm_fail(FM_ECORRUPT, "%s has no train_log.json", r->label);
    FM_THEN(rc, fm_json_parse(&log, fm_buf_span(&then), "train_log.json"));
    fm_buf_clear(&then);
    FM_THEN(rc, fm_json_write(&then, log, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_json_write(&now, r->result.log, FM_JSON_CANONICAL));
    out->steps = (uint32_t)fm_json_count(r->result.log);
    out->log_same = rc == FM_OK && then.len == now.len && memcmp(then.data, now.data, now.len) == 0;
    fm_buf_release(&then);
    fm_buf_release(&now);
    fm_json_free(log);
    return rc;
}

/* Compares the version with the parent's tree plus the tensors trained now, so that tensors which
 * training leaves alone are compared too. */
static fm_status compare(fmo_replay *r, fmo_replay_report *out)
{
    fm_status rc = fm_tree_copy(&r->expect, r->parent);
    out->tensors = r->result.count;
    out->seconds = r->result.seconds;
    out->paths = fm_json_new_array();
    FM_THEN(rc, out->paths ? put_result(r, r->expect) : FM_ENOMEM);
    FM_THEN(rc, fm_diff_trees(r->expect, r->tree, take_change, out));
    return rc == FM_OK ? compare_log(r, out) : rc;
}

void fmo_replay_close(fmo_replay *r)
{
    fm_train_result_release(&r->result);
    fm_dataset_close(r->data);
    fm_model_close(r->model);
    fm_tokenizer_close(r->own);
    fm_tree_free(r->expect);
    fm_tree_free(r->parent);
    fm_tree_free(r->tree);
    fmo_goal_release(&r->goal);
    fm_json_free(r->recipe);
    fm_version_release(&r->version);
    memset(r, 0, sizeof *r);
}

fm_status fmo_replay_training(fm_ops *c, const fm_oid *oid, const char *label,
                              fmo_replay_report *out)
{
    fmo_replay r;
    memset(out, 0, sizeof *out);
    fm_status rc = fmo_replay_open(&r, c, oid, label);
    FM_THEN(rc, train_again(&r));
    FM_THEN(rc, compare(&r, out));
    fmo_replay_close(&r);
    return rc;
}
