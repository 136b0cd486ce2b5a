/* derive.c - one training call for all children of a parent, then one version each.
 *
 * The recipe holds what a replay needs: operation, every setting, parent, data digests, compute
 * mode and kernel class. Data travels with the version (data/<name>), so that blame can rank it. */
#include "cli/derive.h"

#include <string.h>

#include "store/base/hash.h"
#include "store/base/io.h"
#include "store/base/mem.h"
#include "store/source.h"

#define DATA_MAX_BYTES ((size_t)8 << 30)
#define CONFIG_MAX_BYTES ((size_t)256 << 20)

/* Of a folder to pretrain from; the first CONFIG_NEEDED must be there. */
enum { CONFIG_NEEDED = 2, CONFIG_FILES = 5 };
static const char *const config_files[CONFIG_FILES] = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja"};

typedef struct derivation {
    cli *c;
    family *f;
    fm_oid parent_oid;
    fm_tree *parent;             /* PRETRAIN: model.json and tokenizer alone */
    fm_model *model;             /* keeps the stem resident; NULL for PRETRAIN */
    fm_buf config[CONFIG_FILES]; /* PRETRAIN: the folder's files */
    fm_tokenizer *own_tokenizer; /* PRETRAIN */
    const fm_tokenizer *tok;
    const fm_chat_template *chat;
    fm_buf *data;         /* [count] the files' bytes */
    fm_dataset **dataset; /* [count] */
    char **checkpoint;    /* [count] */
    fm_train_job *job;
    fm_train_result *result;
    bool pretrain;
    fm_train_progress last; /* the newest step */
    uint64_t steps_done;    /* of this call */
    uint64_t stop_after;    /* 0 = never */
} derivation;

/* ---- what the children begin from ---- */

/* The config folder's files, read before anything is stored. */
static fm_status read_config_files(derivation *d)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < CONFIG_FILES; i++) {
        char *from = fm_path_join(d->f->config_dir, config_files[i]);
        fm_buf_init(&d->config[i], CONFIG_MAX_BYTES);
        if (!from)
            rc = FM_ENOMEM;
        else if (i < CONFIG_NEEDED || fm_path_exists(from))
            rc = fm_read_file(&d->config[i], from, CONFIG_MAX_BYTES);
        fm_free(from);
    }
    if (rc == FM_OK)
        rc = fm_tokenizer_open(&d->own_tokenizer, fm_buf_span(&d->config[1]),
                               fm_buf_span(&d->config[2]), d->f->config_dir);
    d->tok = d->own_tokenizer;
    return rc;
}

static fm_status put_model_json(const derivation *d, fm_tree *tree)
{
    fm_json *config = NULL, *model = fm_json_new_object();
    char *path = fm_path_join(d->f->config_dir, config_files[0]);
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = model && path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_json_parse(&config, fm_buf_span(&d->config[0]), path);
    out_set(&rc, model, "format", fm_json_new_int(1));
    out_set(&rc, model, "architecture",
            fm_json_new_str(fm_json_cstr(fm_json_get(config, "model_type"), "")));
    out_set(&rc, model, "config", fm_json_ref(config));
    if (rc == FM_OK)
        rc = fm_json_write(&text, model, FM_JSON_PRETTY);
    if (rc == FM_OK)
        rc = fm_tree_put_file(tree, "model.json", fm_buf_span(&text));
    fm_buf_release(&text);
    fm_json_free(config);
    fm_json_free(model);
    fm_free(path);
    return rc;
}

/* A tree of the config folder: what a model is before it has weights. */
static fm_status store_config(derivation *d)
{
    fm_txn *txn = NULL;
    fm_status rc = fm_tree_new(&d->parent);
    if (rc == FM_OK)
        rc = put_model_json(d, d->parent);
    if (rc == FM_OK)
        rc = fm_txn_begin(&txn, fm_repo_store(d->c->repo));
    for (size_t i = 1; rc == FM_OK && i < CONFIG_FILES; i++) {
        char *to = fm_path_join("tokenizer", config_files[i]);
        if (!to)
            rc = FM_ENOMEM;
        else if (d->config[i].len)
            rc = fm_txn_put_path(txn, d->parent, to, fm_buf_span(&d->config[i]));
        fm_free(to);
    }
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    return rc;
}

static fm_status open_parent(derivation *d)
{
    if (d->pretrain)
        return read_config_files(d);
    fm_status rc = cli_resolve(d->c, d->f->parent, &d->parent_oid, &d->parent);
    if (rc == FM_OK)
        rc = cli_load_model(d->c, d->parent, d->f->parent, &d->model);
    if (rc == FM_OK && !fm_model_tokenizer(d->model))
        rc = fm_fail(FM_EUNSUPPORTED, "%s has no tokenizer, so text cannot be trained on",
                     d->f->parent);
    if (rc == FM_OK) {
        d->tok = fm_model_tokenizer(d->model);
        d->chat = fm_model_chat_template(d->model);
    }
    return rc;
}

/* Where an interrupted run of the very same child would have left its state. */
static fm_status checkpoint_place(derivation *d, size_t i)
{
    fm_digest digest;
    char hex[FM_HEX_CHARS + 1], parent[41];
    fm_buf key;
    fm_buf_init(&key, 0);
    fm_json *config = fm_train_config_json(&d->f->child[i].config);
    fm_status rc = config ? fm_json_write(&key, config, FM_JSON_CANONICAL) : FM_ENOMEM;
    fm_json *manifest = rc == FM_OK ? fm_dataset_manifest(d->dataset[i]) : NULL;
    if (rc == FM_OK)
        rc = manifest ? fm_json_write(&key, manifest, FM_JSON_CANONICAL) : FM_ENOMEM;
    fm_oid_hex(&d->parent_oid, parent);
    fm_buf_str(&key, parent);
    if (rc == FM_OK)
        rc = fm_sha256(&digest, key.data, key.len);
    if (rc == FM_OK) {
        fm_digest_hex(&digest, hex);
        d->checkpoint[i] = fm_asprintf("%s/cache/checkpoints/%.20s", fm_repo_path(d->c->repo), hex);
        rc = d->checkpoint[i] ? FM_OK : FM_ENOMEM;
    }
    fm_json_free(config);
    fm_json_free(manifest);
    fm_buf_release(&key);
    return rc;
}

/* Everything that can be wrong with the words of a child, before any work. */
static fm_status check_child(const derivation *d, size_t i)
{
    const child *ch = &d->f->child[i];
    fm_status rc = branch_must_be_new(d->c, ch->name);
    for (size_t k = 0; rc == FM_OK && k < i; k++)
        if (strcmp(d->f->child[k].name, ch->name) == 0)
            rc =
                fm_fail(FM_EINVAL, "two children are called '%s'; a branch is made once", ch->name);
    if (rc == FM_OK && (ch->config.method == FM_METHOD_PRETRAIN) != d->pretrain)
        rc = fm_fail(FM_EINVAL,
                     "child '%s': method pretrain goes with a config folder, the others "
                     "with a parent",
                     ch->name);
    return rc == FM_OK ? suite_files_check(&ch->suites) : rc;
}

/* A number beyond the data is a mistake, and would be left out in silence. */
static fm_status check_skip(const child *ch, const fm_dataset *data)
{
    fm_json *manifest = fm_dataset_manifest(data);
    fm_status rc = manifest ? FM_OK : FM_ENOMEM;
    int64_t records = fm_json_int(fm_json_get(manifest, "records"), 0);
    for (size_t k = 0; rc == FM_OK && k < ch->skip_count; k++)
        if (ch->skip[k] >= records)
            rc = fm_fail(FM_EINVAL,
                         "child '%s': skip names record %u, but %s has %lld, counted from 0",
                         ch->name, ch->skip[k], fm_path_base(ch->data_path), (long long)records);
    fm_json_free(manifest);
    return rc;
}

/* By its content alone a broken JSON file would be trained on as text. */
static fm_status check_named_json(const char *path, fm_span bytes)
{
    const char *dot = strrchr(fm_path_base(path), '.');
    size_t at = bytes.len >= 3 && memcmp(bytes.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    if (!dot || (strcmp(dot, ".json") != 0 && strcmp(dot, ".jsonl") != 0))
        return FM_OK;
    while (at < bytes.len && strchr(" \t\r\n", bytes.data[at]) && bytes.data[at])
        at++;
    if (at == bytes.len || bytes.data[at] == '{' || bytes.data[at] == '[')
        return FM_OK;
    return fm_fail(FM_EINVAL,
                   "%s: is named as JSON, but begins with neither '{' nor '['; rename it to .txt "
                   "to train on it as text",
                   path);
}

static fm_status prepare_child(derivation *d, size_t i)
{
    child *ch = &d->f->child[i];
    fm_status rc = fm_read_file(&d->data[i], ch->data_path, DATA_MAX_BYTES);
    if (rc == FM_OK)
        rc = check_named_json(ch->data_path, fm_buf_span(&d->data[i]));
    if (rc == FM_OK)
        rc = fm_dataset_open(&d->dataset[i], fm_buf_span(&d->data[i]), fm_path_base(ch->data_path),
                             d->tok, d->chat, &ch->config, ch->skip, ch->skip_count);
    if (rc == FM_OK)
        rc = check_skip(ch, d->dataset[i]);
    return rc == FM_OK ? checkpoint_place(d, i) : rc;
}

static fm_train_job job_of(const derivation *d, size_t i)
{
    const child *ch = &d->f->child[i];
    return (fm_train_job){.name = ch->name,
                          .config = ch->config,
                          .parent = d->parent,
                          .data = d->dataset[i],
                          .checkpoint_dir = d->checkpoint[i],
                          .checkpoint_every = 200};
}

static bool show_progress(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    (void)n;
    (void)drop;
    derivation *d = ctx;
    const char *name = d->f->child[p->child].name;
    uint32_t every = p->steps / 4 + (p->steps % 4 != 0);
    out_progress("%s  step %u/%u  loss %.4f  %.0f tokens/s", name, p->step + 1, p->steps, p->loss,
                 p->tokens_per_s);
    if (p->step == 0 || (p->step + 1) % every == 0 || p->step + 1 == p->steps) {
        out_progress_end();
        fprintf(stderr, "  %s  step %u/%u  loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s\n", name,
                p->step + 1, p->steps, p->loss, p->grad_norm, p->lr, p->tokens_per_s);
    }
    d->last = *p;
    return cli_interrupted || ++d->steps_done == d->stop_after;
}

/* ---- from a result to a version ---- */

static fm_json *make_recipe(const derivation *d, size_t i, fm_json *manifest)
{
    char hex[FM_HEX_CHARS + 1];
    const child *ch = &d->f->child[i];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *data = fm_json_new_array();
    out_push(&rc, data, manifest);
    out_set(&rc, o, "format", fm_json_new_int(1));
    out_set(&rc, o, "operation", fm_json_new_str(method_name(ch->config.method)));
    out_set(&rc, o, "engine", fm_json_new_str("fmstore " FM_VERSION));
    out_set(&rc, o, "device", fm_json_new_str("cpu"));
    out_set(&rc, o, "mode", fm_json_new_str(fm_engine_mode(d->c->engine)));
    out_set(&rc, o, "kernel_class", fm_json_new_str(fm_engine_kernel_class(d->c->engine)));
    if (!d->pretrain) {
        fm_digest weights = fm_model_digest(d->model);
        fm_digest_hex(&weights, hex);
        out_set(&rc, o, "parent_model", fm_json_new_str(hex));
    }
    out_set(&rc, o, "config", fm_train_config_json(&ch->config));
    out_set(&rc, o, "data", data);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status put_json(fm_txn *txn, fm_tree *tree, const char *path, const fm_json *v,
                          fm_digest *digest)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = FM_OK;
    if (digest) {
        rc = fm_json_write(&text, v, FM_JSON_CANONICAL);
        if (rc == FM_OK)
            rc = fm_sha256(digest, text.data, text.len);
        fm_buf_clear(&text);
    }
    if (rc == FM_OK)
        rc = fm_json_write(&text, v, FM_JSON_PRETTY);
    fm_buf_char(&text, '\n');
    if (rc == FM_OK)
        rc = fm_txn_put_path(txn, tree, path, fm_buf_span(&text));
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
    if (rc == FM_OK)
        rc = fm_tree_put_tensor(tree, fm_buf_cstr(&path), t->name, t->dtype, &t->shape, &id);
    fm_buf_release(&path);
    return rc;
}

static fm_status next_adapter(const fm_tree *tree, char *out, size_t bytes)
{
    for (unsigned n = 0; n < 1000; n++) {
        size_t begin, end;
        snprintf(out, bytes, "adapters/%u-", n);
        fm_tree_range(tree, out, &begin, &end);
        if (begin == end) {
            snprintf(out, bytes, "adapters/%u-lora", n);
            return FM_OK;
        }
    }
    return fm_fail(FM_ELIMIT, "this version has 1,000 adapters already; merge some");
}

static fm_status put_weights(fm_txn *txn, fm_tree *tree, const fm_train_result *r)
{
    char adapter[64] = "", prefix[96] = "tensors", config[96];
    fm_status rc = FM_OK;
    if (r->adapter_config) {
        rc = next_adapter(tree, adapter, sizeof adapter);
        snprintf(prefix, sizeof prefix, "%s/tensors", adapter);
        snprintf(config, sizeof config, "%s/adapter_config.json", adapter);
        if (rc == FM_OK)
            rc = put_json(txn, tree, config, r->adapter_config, NULL);
    }
    for (size_t i = 0; rc == FM_OK && i < r->count; i++)
        rc = put_tensor(txn, tree, prefix, &r->tensors[i]);
    return rc;
}

static fm_status put_version(derivation *d, size_t i, fm_tree *tree, fm_digest *recipe,
                             fm_digest *data)
{
    child *ch = &d->f->child[i];
    fm_txn *txn = NULL;
    fm_json *doc = NULL, *manifest = fm_dataset_manifest(d->dataset[i]);
    fm_buf path;
    fm_buf_init(&path, 0);
    fm_status rc = manifest ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        rc = tree_drop_history(tree);
    if (rc == FM_OK)
        rc = fm_txn_begin(&txn, fm_repo_store(d->c->repo));
    if (rc == FM_OK)
        rc = put_weights(txn, tree, &d->result[i]);
    fm_buf_printf(&path, "data/%s", fm_path_base(ch->data_path));
    if (rc == FM_OK)
        rc = fm_txn_put_path(txn, tree, fm_buf_cstr(&path), fm_buf_span(&d->data[i]));
    for (size_t k = 0; rc == FM_OK && k < ch->suites.count; k++)
        rc = tree_add_suite(txn, tree, ch->suites.item[k]);
    if (rc == FM_OK)
        rc = put_json(txn, tree, "train_log.json", d->result[i].log, NULL);
    if (rc == FM_OK)
        doc = make_recipe(d, i, fm_json_ref(manifest));
    if (rc == FM_OK)
        rc = doc ? put_json(txn, tree, "recipe.json", doc, recipe) : FM_ENOMEM;
    fm_buf_clear(&path);
    if (rc == FM_OK)
        rc = fm_json_write(&path, manifest, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        rc = fm_sha256(data, path.data, path.len);
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    fm_buf_release(&path);
    fm_json_free(doc);
    fm_json_free(manifest);
    return rc;
}

static fm_status land_child(derivation *d, size_t i, bool gate)
{
    static const char *const kinds[] = {"lora", "finetune", "pretrain"};
    child *ch = &d->f->child[i];
    fm_tree *tree = NULL;
    fm_oid oid;
    fm_digest recipe, data;
    char recipe_hex[FM_HEX_CHARS + 1], data_hex[FM_HEX_CHARS + 1], subject[400];
    fm_status rc = fm_tree_copy(&tree, d->parent);
    if (rc == FM_OK)
        rc = put_version(d, i, tree, &recipe, &data);
    if (rc == FM_OK) {
        fm_digest_hex(&recipe, recipe_hex);
        fm_digest_hex(&data, data_hex);
        snprintf(subject, sizeof subject, "%s on %.300s", method_name(ch->config.method),
                 fm_path_base(ch->data_path));
        landing l = {.branch = ch->name, .tree = tree, .gate = gate};
        l.commit = (fm_commit_opts){.kind = kinds[ch->config.method],
                                    .message = ch->message ? ch->message : subject,
                                    .parent = &d->parent_oid,
                                    .parent_count = d->pretrain ? 0 : 1,
                                    .recipe_digest = recipe_hex,
                                    .data_digest = data_hex};
        rc = land_version(d->c, &l, &oid);
    }
    bool kept = rc == FM_OK || rc == FM_EREFUSED || rc == FM_ECONFLICT || rc == FM_EEXISTS;
    if (kept) { /* there is a commit: nothing is left to resume */
        fm_error_state text;
        fm_error_save(&text);
        fm_ignore(fm_remove_tree(d->checkpoint[i]), "a leftover checkpoint does no harm");
        fm_error_restore(&text);
    }
    fm_tree_free(tree);
    return rc;
}

static fm_status derivation_new(derivation *d)
{
    size_t n = d->f->count;
    d->data = fm_calloc(n, sizeof *d->data);
    d->dataset = fm_calloc(n, sizeof *d->dataset);
    d->checkpoint = fm_calloc(n, sizeof *d->checkpoint);
    d->job = fm_calloc(n, sizeof *d->job);
    d->result = fm_calloc(n, sizeof *d->result);
    if (!d->data || !d->dataset || !d->checkpoint || !d->job || !d->result)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        fm_buf_init(&d->data[i], DATA_MAX_BYTES);
    return FM_OK;
}

static void derivation_release(derivation *d)
{
    for (size_t i = 0; i < d->f->count; i++) {
        if (d->data)
            fm_buf_release(&d->data[i]);
        if (d->dataset)
            fm_dataset_close(d->dataset[i]);
        if (d->checkpoint)
            fm_free(d->checkpoint[i]);
        if (d->result)
            fm_train_result_release(&d->result[i]);
    }
    fm_free(d->data);
    fm_free(d->dataset);
    fm_free(d->checkpoint);
    fm_free(d->job);
    fm_free(d->result);
    fm_model_close(d->model);
    fm_tokenizer_close(d->own_tokenizer);
    for (size_t i = 0; i < CONFIG_FILES; i++)
        fm_buf_release(&d->config[i]);
    fm_tree_free(d->parent);
}

/* Every child lands or is refused on its own: one that fails does not hold its siblings back. The
 * text of the worst is left to the caller, the others are printed here. */
static fm_status land_all(derivation *d, bool gate)
{
    fm_status worst = FM_OK;
    fm_error_state kept = {""};
    for (size_t i = 0; i < d->f->count; i++) {
        fm_error_state text;
        fm_status rc = land_child(d, i, gate);
        if (rc == FM_OK)
            continue;
        fm_error_save(&text);
        bool worse = worst == FM_OK || (worst == FM_EREFUSED && rc != FM_EREFUSED);
        fm_error_restore(worse ? &kept : &text);
        if (worst != FM_OK)
            cli_say_error();
        if (worse) {
            worst = rc;
            kept = text;
        }
    }
    fm_error_restore(&kept);
    return worst;
}

/* Nothing lands before all are trained: the very same command then goes on where this one ended. */
static fm_status fail_stopped(const derivation *d)
{
    return fm_fail(FM_ECANCELLED,
                   "stopped after step %u of %u of '%s'; no branch was made; the same "
                   "command goes on from there",
                   d->last.step + 1, d->last.steps, d->f->child[d->last.child].name);
}

static fm_status write_log(const derivation *d, const char *path)
{
    fm_buf text;
    fm_json *all = fm_json_new_object();
    fm_status rc = all ? FM_OK : FM_ENOMEM;
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < d->f->count; i++)
        if (d->result[i].log)
            out_set(&rc, all, d->f->child[i].name, fm_json_ref(d->result[i].log));
    if (rc == FM_OK)
        rc = fm_json_write(&text, all, FM_JSON_PRETTY);
    fm_buf_char(&text, '\n');
    if (rc == FM_OK)
        rc = fm_write_file(path, text.data, text.len);
    fm_buf_release(&text);
    fm_json_free(all);
    return rc;
}

static fm_status train(derivation *d)
{
    fm_provider p = fm_store_provider(fm_repo_store(d->c->repo));
    for (size_t i = 0; i < d->f->count; i++)
        d->job[i] = job_of(d, i);
    fm_status rc = fm_train_run(d->c->engine, &p, d->job, d->f->count, d->result, show_progress, d);
    out_progress_end();
    return rc;
}

fm_status family_derive(cli *c, family *f, const derive_how *how)
{
    derivation d = {.c = c, .f = f, .pretrain = f->config_dir != NULL};
    bool stopped = false;
    d.stop_after = how->stop_after;
    fm_status rc = derivation_new(&d);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        rc = check_child(&d, i);
    if (rc == FM_OK)
        rc = cli_engine(c);
    if (rc == FM_OK)
        rc = open_parent(&d);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        rc = prepare_child(&d, i);
    if (rc == FM_OK && d.pretrain)
        rc = store_config(&d);
    if (rc == FM_OK)
        rc = train(&d);
    if (rc == FM_OK && how->log_path)
        rc = write_log(&d, how->log_path);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        stopped = stopped || d.result[i].stopped;
    if (rc == FM_OK)
        rc = stopped ? fail_stopped(&d) : land_all(&d, how->gate);
    derivation_release(&d);
    return rc;
}
