/* derive_land.c - makes a version of a training's result: a tree of weights, data, recipe, log and
 * curve; commit, gates, branch.
 *
 * The recipe holds what a replay needs: operation, every setting, parent, data digests, compute
 * mode and kernel class. Data travels with the version (data/<name>), so that blame can rank it. */
#include "cli/ops/derive/derive_run.h"
#include "cli/ops/base/say.h"

#include <stdio.h>
#include <string.h>

#include "cli/ops/derive/curve.h"
#include "store/base/math/hash.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

size_t fmo_data_owner(const fmo_derivation *d, size_t i)
{
    const fmo_child *ch = &d->f->child[i];
    const fmo_unit *u = &d->f->unit[ch->unit];
    bool same_split =
        ch->data.eval_share <= 0.0 || ch->config.seed == d->f->child[u->first].config.seed;
    return u->sweep && fmo_sweep_shares_data(u->sweep) && same_split ? u->first : i;
}

/* ---- the base of a child ---- */

static const fmo_candidate *base_of(const fmo_derivation *d, size_t i)
{
    size_t on = d->f->unit[d->f->child[i].unit].on;
    return on == UNIT_NONE ? NULL : &d->cand[on];
}

const fm_tree *fmo_base_tree(const fmo_derivation *d, size_t i)
{
    return base_of(d, i) ? base_of(d, i)->tree : d->parent;
}

const fm_oid *fmo_base_oid(const fmo_derivation *d, size_t i)
{
    return base_of(d, i) ? &base_of(d, i)->oid : &d->parent_oid;
}

const fm_model *fmo_base_model(const fmo_derivation *d, size_t i)
{
    return base_of(d, i) ? base_of(d, i)->model : d->model;
}

/* ---- the version's tree ---- */

/* manifests: one for each data file; consumed. */
static fm_json *make_recipe(const fmo_derivation *d, size_t i, fm_json *manifests)
{
    char hex[FM_HEX_CHARS + 1];
    const fmo_child *ch = &d->f->child[i];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "operation", fm_json_new_str(fmo_method_name(ch->config.method)));
    fm_json_put(&rc, o, "engine", fm_json_new_str("fmstore " FM_VERSION));
    fm_json_put(&rc, o, "device", fm_json_new_str(fm_engine_device(d->c->engine)));
    fm_json_put(&rc, o, "mode", fm_json_new_str(fm_engine_mode(d->c->engine)));
    fm_json_put(&rc, o, "kernel_class", fm_json_new_str(fm_engine_kernel_class(d->c->engine)));
    if (!d->pretrain) {
        fm_digest weights = fm_model_digest(fmo_base_model(d, i));
        fm_digest_hex(&weights, hex);
        fm_json_put(&rc, o, "parent_model", fm_json_new_str(hex));
    }
    fm_json_put(&rc, o, "config", fm_train_config_json(&ch->config));
    fmo_goal_recipe(&d->training[i].goal, o, &rc);
    fm_json_put(&rc, o, "data", manifests);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* The digest of v's canonical form. */
static fm_status digest_json(fm_digest *digest, const fm_json *v)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, v, FM_JSON_CANONICAL);
    FM_THEN(rc, fm_sha256(digest, text.data, text.len));
    fm_buf_release(&text);
    return rc;
}

static fm_status put_tensor(fm_txn *txn, fm_tree *tree, const char *prefix, const fm_trained *t)
{
    fm_digest id;
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, prefix, t->name);
    if (rc == FM_OK) {
        const fm_entry *old = fm_tree_find(tree, fm_buf_cstr(&path));
        bool fits = old && old->kind == FM_ENTRY_TENSOR && old->dtype == t->dtype &&
                    fm_shape_eq(&old->shape, &t->shape);
        rc = fm_txn_put_tensor(txn, &id, t->dtype, &t->shape, fm_span_of(t->data, t->bytes),
                               fits ? &old->id : NULL, NULL);
    }
    FM_THEN(rc, fm_tree_put_tensor(tree, fm_buf_cstr(&path), t->name, t->dtype, &t->shape, &id));
    fm_buf_release(&path);
    return rc;
}

/* The kind in an adapter folder's name, as infer reads it (infer/model/adapter.c). */
static const char *adapter_kind(const fm_json *config)
{
    static const struct {
        const char *peft_type, *kind;
    } kinds[] = {{"IA3", "ia3"},
                 {"PREFIX_TUNING", "prefix"},
                 {"PROMPT_TUNING", "prompt"},
                 {"LN_TUNING", "ln_tuning"},
                 {"LOHA", "loha"},
                 {"LOKR", "lokr"},
                 {"OFT", "oft"},
                 {"BOFT", "boft"},
                 {"HRA", "hra"},
                 {"MISS", "miss"},
                 {"SHIRA", "shira"},
                 {"FOURIERFT", "fourierft"},
                 {"RANDLORA", "randlora"},
                 {"VERA", "vera"},
                 {"ADALORA", "adalora"}};
    const char *type = fm_json_cstr(fm_json_get(config, "peft_type"), "");
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (strcmp(type, kinds[i].peft_type) == 0)
            return kinds[i].kind;
    return fm_json_bool(fm_json_get(config, "use_dora"), false) ? "dora" : "lora";
}

fm_status fmo_next_adapter(const fm_tree *tree, const fm_json *config, char *out, size_t bytes)
{
    for (unsigned n = 0; n < 1000; n++) {
        size_t begin, end;
        snprintf(out, bytes, "adapters/%u-", n);
        fm_tree_range(tree, out, &begin, &end);
        if (begin == end) {
            snprintf(out, bytes, "adapters/%u-%s", n, adapter_kind(config));
            return FM_OK;
        }
    }
    return fm_fail(FM_ELIMIT, "this version has 1,000 adapters already; merge some");
}

static fm_status put_weights(fm_txn *txn, fm_tree *tree, const fm_train_result *r)
{
    char adapter[64] = "", prefix[96] = "tensors", config[96];

    if (r->adapter_config) {
        FM_TRY(fmo_next_adapter(tree, r->adapter_config, adapter, sizeof adapter));
        snprintf(prefix, sizeof prefix, "%s/tensors", adapter);
        snprintf(config, sizeof config, "%s/adapter_config.json", adapter);
        FM_TRY(fmo_tree_put_json(txn, tree, config, r->adapter_config));
    }
    for (size_t i = 0; i < r->count; i++)
        FM_TRY(put_tensor(txn, tree, prefix, &r->tensors[i]));
    if (r->model_json)
        FM_TRY(
            fm_tree_put_file(tree, "model.json", fm_span_of(r->model_json, strlen(r->model_json))));
    return FM_OK;
}

static fm_status put_text(fm_txn *txn, fm_tree *tree, const char *path, fm_buf *text, fm_status rc)
{
    FM_THEN(rc, fm_buf_ok(text));
    FM_THEN(rc, fm_txn_put_path(txn, tree, path, fm_buf_span(text)));
    fm_buf_release(text);
    return rc;
}

/* Adds the curve and the page, once the tree has all else. */
static fm_status put_pages(const fmo_derivation *d, size_t i, fm_txn *txn, fm_tree *tree,
                           const fm_json *recipe, const fm_json *trials)
{
    const char *gates[FM_WORDS_MAX];
    size_t begin, end, n = 0;
    fm_buf svg, html;
    fm_buf_init(&svg, 0);
    fm_buf_init(&html, 0);
    fm_tree_range(tree, "suites/", &begin, &end);
    for (size_t k = begin; k < end && n < FM_WORDS_MAX; k++)
        gates[n++] = fm_path_base(fm_tree_at(tree, k)->path);
    char title[400]; /* without the branch: equal trainings give one tree */
    snprintf(title, sizeof title, "%s on %.300s", fmo_method_name(d->f->child[i].config.method),
             fmo_data_title(&d->f->child[i].data));
    fm_json *reports = fm_json_new_array();
    fm_status rc = reports ? FM_OK : FM_ENOMEM;
    fm_json_push_to(&rc, reports, fmo_data_summary(&d->training[fmo_data_owner(d, i)].report));
    fmo_curve_page page = {.title = title,
                           .log = d->training[i].result.log,
                           .recipe = recipe,
                           .report = reports,
                           .sweep = trials,
                           .gates = gates,
                           .gate_count = n};
    FM_THEN(rc, put_text(txn, tree, "train.svg", &svg, fmo_curve_svg(&svg, page.log, title)));
    FM_THEN(rc, put_text(txn, tree, "train.html", &html, fmo_curve_html(&html, &page)));
    fm_json_free(reports);
    return rc;
}

static fm_status put_record(const fmo_derivation *d, size_t i, fm_txn *txn, fm_tree *tree,
                            const fm_json *manifests, fm_digest *recipe)
{
    const fmo_unit *u = &d->f->unit[d->f->child[i].unit];
    fm_json *doc = make_recipe(d, i, fm_json_ref(manifests)), *trials = NULL;
    fm_status rc = doc ? digest_json(recipe, doc) : FM_ENOMEM;
    FM_THEN(rc, fmo_tree_put_json(txn, tree, "recipe.json", doc));
    FM_THEN(rc, fmo_tree_put_json(txn, tree, "train_log.json", d->training[i].result.log));
    if (rc == FM_OK && u->sweep) {
        trials = fmo_sweep_json(u->sweep);
        rc = trials ? fmo_tree_put_json(txn, tree, "sweep.json", trials) : FM_ENOMEM;
    }
    FM_THEN(rc, put_pages(d, i, txn, tree, doc, trials));
    fm_json_free(doc);
    fm_json_free(trials);
    return rc;
}

static fm_status put_version(fmo_derivation *d, size_t i, fm_tree *tree, fm_digest *recipe,
                             fm_digest *data)
{
    fmo_child *ch = &d->f->child[i];
    fm_txn *txn = NULL;
    size_t owner = fmo_data_owner(d, i);
    fm_json *manifests = fmo_data_manifests(d->training[i].dataset);
    fm_status rc = manifests ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fmo_tree_drop_history(tree));
    FM_THEN(rc, fm_txn_begin(&txn, fm_repo_store(d->c->repo)));
    FM_THEN(rc, put_weights(txn, tree, &d->training[i].result));
    FM_THEN(rc, fmo_data_put(txn, tree, &d->f->child[owner].data, d->training[owner].report.json));
    for (size_t k = 0; rc == FM_OK && k < ch->suites.count; k++)
        rc = fm_ops_add_suite(txn, tree, ch->suites.item[k]);
    FM_THEN(rc, put_record(d, i, txn, tree, manifests, recipe));
    bool one = fm_json_count(manifests) == 1; /* older versions have a digest of one manifest */
    FM_THEN(rc, digest_json(data, one ? fm_json_at(manifests, 0) : manifests));
    FM_THEN(rc, fm_txn_commit(txn, NULL));
    fm_txn_close(txn);
    fm_json_free(manifests);
    return rc;
}

/* The kind of the edge, a name that lineage knows. */
static const char *edge_kind(const fm_train_config *c)
{
    static const char *const kinds[] = {"lora",   "finetune", "pretrain", "ia3",
                                        "prefix", "prefix",   "bitfit",   "finetune"};
    if (c->objective == FM_OBJECTIVE_DISTILL)
        return "distill";
    return (size_t)c->method < FM_ARRAY_LEN(kinds) ? kinds[c->method] : "finetune";
}

static fm_landing landing_of(const fmo_derivation *d, const fmo_unit *u)
{
    const fmo_candidate *cand = &d->cand[u - d->f->unit];
    return (fm_landing){.branch = fmo_unit_name(d->f, u),
                        .tree = cand->tree,
                        .gate = d->gate,
                        .commit = {.kind = edge_kind(&d->f->child[cand->child].config),
                                   .message = cand->message,
                                   .parent = fmo_base_oid(d, cand->child),
                                   .parent_count = d->pretrain ? 0 : 1}};
}

/* Suites run in mode exact, whatever mode trained, so that their results can be compared; and on a
 * whole model, which an engine that trains over stages does not have. */
static void swap_engines(fmo_derivation *d, const char *mode)
{
    fm_engine *e = d->c->engine;
    d->c->engine = d->judge;
    d->judge = e;
    d->c->mode = mode;
}

static fm_status commit_and_judge(fmo_derivation *d, const fm_landing *l, fmo_candidate *cand)
{
    const char *mode = d->c->mode;
    bool inexact = mode && strcmp(mode, "exact") != 0;
    bool other = l->gate && (inexact || fm_engine_batch_stages(d->c->engine) > 1);
    if (other)
        swap_engines(d, NULL);
    fm_status rc = fmo_version_candidate(d->c, l, &cand->oid, &cand->tally);
    if (other)
        swap_engines(d, mode);
    return rc;
}

fm_status fmo_commit_candidate(fmo_derivation *d, const fmo_unit *u, fmo_candidate *cand)
{
    const fmo_child *ch = &d->f->child[cand->child];
    fm_digest recipe, data;
    char recipe_hex[FM_HEX_CHARS + 1], data_hex[FM_HEX_CHARS + 1];
    fm_status rc = fm_tree_copy(&cand->tree, fmo_base_tree(d, cand->child));
    cand->message = ch->message ? fm_strdup(ch->message)
                                : fm_asprintf("%s on %.300s", fmo_method_name(ch->config.method),
                                              fmo_data_title(&ch->data));
    FM_THEN(rc,
            cand->message ? put_version(d, cand->child, cand->tree, &recipe, &data) : FM_ENOMEM);
    if (rc < 0)
        return rc;
    fm_digest_hex(&recipe, recipe_hex);
    fm_digest_hex(&data, data_hex);
    fm_landing l = landing_of(d, u);
    l.commit.recipe_digest = recipe_hex;
    l.commit.data_digest = data_hex;
    rc = commit_and_judge(d, &l, cand);
    if (rc == FM_OK && u->stood_on)
        rc = fm_ops_load_model(d->c, cand->tree, fmo_unit_name(d->f, u), &cand->model);
    return rc;
}

void fmo_come_to_nothing(fmo_derivation *d, fm_status rc)
{
    fm_error_state text;
    bool worse = d->worst == FM_OK || (d->worst == FM_EREFUSED && rc != FM_EREFUSED);
    bool first = d->worst == FM_OK;
    fm_error_save(&text);
    fm_error_restore(worse ? &d->worst_text : &text);
    if (!first)
        fmo_ui_say(d->c, FM_UI_WARNING, "%s", fm_error_text());
    if (worse) {
        d->worst = rc;
        d->worst_text = text;
    }
    fm_error_clear();
}

/* Once there is a commit, the checkpoints of the winner and of all other trials can go. */
void fmo_forget_states(fmo_derivation *d, const fmo_unit *u, fm_status rc)
{
    if (rc == FM_OK || rc == FM_EREFUSED || rc == FM_ECONFLICT || rc == FM_EEXISTS)
        for (size_t i = 0; i < u->count; i++)
            fmo_checkpoints_landed(d->checkpoints, u->first + i);
}

void fmo_land_unit(fmo_derivation *d, size_t at)
{
    const fmo_unit *u = &d->f->unit[at];
    fmo_candidate *cand = &d->cand[at];
    if (!cand->made || cand->rc != FM_OK || cand->landed)
        return;
    fm_landing l = landing_of(d, u);
    fm_status rc = u->branch ? fmo_version_land(d->c, &l, &cand->oid, &cand->tally) : FM_OK;
    cand->landed = true;
    cand->rc = rc;
    fmo_forget_states(d, u, rc);
    if (rc < 0)
        fmo_come_to_nothing(d, rc);
}
