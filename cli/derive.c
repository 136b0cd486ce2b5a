/* derive.c - one training call for all children of a parent, then one version each.
 *
 * The recipe holds what a replay needs: operation, every setting, parent, data digests, compute mode
 * and kernel class. Data travels with the version (data/<name>), so that blame can rank it. */
#include "cli/derive.h"

#include <string.h>

#include "store/base/hash.h"
#include "store/base/io.h"
#include "store/base/mem.h"
#include "store/source.h"

#define DATA_MAX_BYTES ((size_t)8 << 30)

typedef struct derivation {
    cli *c;
    family *f;
    fm_oid parent_oid;
    fm_tree *parent;      /* PRETRAIN: model.json and tokenizer alone */
    fm_model *model;      /* keeps the stem resident; NULL for PRETRAIN */
    fm_tokenizer *own_tokenizer; /* PRETRAIN */
    const fm_tokenizer *tok;
    const fm_chat_template *chat;
    fm_buf *data;         /* [count] the files' bytes */
    fm_dataset **dataset; /* [count] */
    char **checkpoint;    /* [count] */
    fm_train_job *job;
    fm_train_result *result;
    bool pretrain;
} derivation;

static fm_status read_entry_text(cli *c, const fm_tree *tree, const char *path, fm_buf *out)
{
    const fm_entry *e = fm_tree_find(tree, path);
    return e ? cli_entry_bytes(c, e, out) : FM_OK;
}

/* A tree of a config folder: what a model is before it has weights. */
static fm_status tree_of_config(cli *c, const char *dir, fm_tree **out)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja"};
    fm_txn *txn = NULL;
    fm_json *config = NULL, *model = fm_json_new_object();
    fm_buf text;
    fm_buf_init(&text, 0);
    char *path = fm_path_join(dir, "config.json");
    fm_status rc = path && model ? fm_tree_new(out) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_json_parse_file(&config, path, (size_t)4 << 20);
    out_set(&rc, model, "format", fm_json_new_int(1));
    out_set(&rc, model, "architecture",
            fm_json_new_str(fm_json_cstr(fm_json_get(config, "model_type"), "")));
    out_set(&rc, model, "config", fm_json_ref(config));
    if (rc == FM_OK)
        rc = fm_json_write(&text, model, FM_JSON_PRETTY);
    if (rc == FM_OK)
        rc = fm_tree_put_file(*out, "model.json", fm_buf_span(&text));
    if (rc == FM_OK)
        rc = fm_txn_begin(&txn, fm_repo_store(c->repo));
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(files); i++) {
        char *from = fm_path_join(dir, files[i]), *to = fm_path_join("tokenizer", files[i]);
        fm_buf_clear(&text);
        if (!from || !to)
            rc = FM_ENOMEM;
        else if (fm_path_exists(from))
            rc = fm_read_file(&text, from, (size_t)256 << 20);
        if (rc == FM_OK && text.len)
            rc = fm_txn_put_path(txn, *out, to, fm_buf_span(&text));
        fm_free(from);
        fm_free(to);
    }
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    fm_buf_release(&text);
    fm_json_free(config);
    fm_json_free(model);
    fm_free(path);
    return rc;
}

static fm_status open_tokenizer(derivation *d)
{
    fm_buf json, config;
    fm_buf_init(&json, 0);
    fm_buf_init(&config, 0);
    fm_status rc = read_entry_text(d->c, d->parent, "tokenizer/tokenizer.json", &json);
    if (rc == FM_OK)
        rc = read_entry_text(d->c, d->parent, "tokenizer/tokenizer_config.json", &config);
    if (rc == FM_OK && !json.len)
        rc = fm_fail(FM_ENOTFOUND, "%s holds no tokenizer.json", d->f->config_dir);
    if (rc == FM_OK)
        rc = fm_tokenizer_open(&d->own_tokenizer, fm_buf_span(&json), fm_buf_span(&config),
                               d->f->config_dir);
    d->tok = d->own_tokenizer;
    fm_buf_release(&json);
    fm_buf_release(&config);
    return rc;
}

static fm_status open_parent(derivation *d)
{
    if (d->pretrain) {
        fm_status rc = tree_of_config(d->c, d->f->config_dir, &d->parent);
        return rc == FM_OK ? open_tokenizer(d) : rc;
    }
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
        d->checkpoint[i] =
            fm_asprintf("%s/cache/checkpoints/%.20s", fm_repo_path(d->c->repo), hex);
        rc = d->checkpoint[i] ? fm_make_dirs(d->checkpoint[i]) : FM_ENOMEM;
    }
    fm_json_free(config);
    fm_json_free(manifest);
    fm_buf_release(&key);
    return rc;
}

static fm_status prepare_child(derivation *d, size_t i)
{
    child *ch = &d->f->child[i];
    fm_oid there;
    char ref[300];
    fm_status rc = fm_branch_name_check(ch->name);
    if (rc < 0)
        return rc;
    snprintf(ref, sizeof ref, "refs/heads/%.250s", ch->name);
    if (fm_ref_read(d->c->repo, &there, ref) == FM_OK)
        return fm_fail(FM_EEXISTS, "branch '%s' is there already; choose another name or delete it "
                                   "with 'fmstore branch -d %s'", ch->name, ch->name);
    if ((ch->config.method == FM_METHOD_PRETRAIN) != d->pretrain)
        return fm_fail(FM_EINVAL, "child '%s': method pretrain goes with a config folder, the "
                                  "others with a parent", ch->name);
    rc = fm_read_file(&d->data[i], ch->data_path, DATA_MAX_BYTES);
    if (rc == FM_OK)
        rc = fm_dataset_open(&d->dataset[i], fm_buf_span(&d->data[i]), fm_path_base(ch->data_path),
                             d->tok, d->chat, &ch->config, ch->skip, ch->skip_count);
    if (rc == FM_OK)
        rc = checkpoint_place(d, i);
    if (rc == FM_OK)
        d->job[i] = (fm_train_job){.name = ch->name, .config = ch->config, .parent = d->parent,
                                   .data = d->dataset[i], .checkpoint_dir = d->checkpoint[i],
                                   .checkpoint_every = 200};
    return rc;
}

static bool show_progress(void *ctx, const fm_train_progress *p)
{
    const derivation *d = ctx;
    const char *name = d->f->child[p->child].name;
    uint32_t every = p->steps / 4 ? p->steps / 4 : 1;
    out_progress("%s  step %u/%u  loss %.4f  %.0f tokens/s", name, p->step + 1, p->steps, p->loss,
                 p->tokens_per_s);
    if (p->step == 0 || (p->step + 1) % every == 0 || p->step + 1 == p->steps) {
        out_progress_end();
        fprintf(stderr, "  %s  step %u/%u  loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s\n", name,
                p->step + 1, p->steps, p->loss, p->grad_norm, p->lr, p->tokens_per_s);
    }
    return cli_interrupted != 0;
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
    static const char *const parents_own[] = {"source/", "data/", "recipe.json", "train_log.json"};
    child *ch = &d->f->child[i];
    fm_txn *txn = NULL;
    fm_json *doc = NULL, *manifest = fm_dataset_manifest(d->dataset[i]);
    fm_buf path;
    fm_buf_init(&path, 0);
    fm_status rc = manifest ? FM_OK : FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < FM_ARRAY_LEN(parents_own); k++)
        rc = tree_drop(tree, parents_own[k]);
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
    if (rc == FM_OK || rc == FM_EREFUSED)
        fm_ignore(fm_remove_tree(d->checkpoint[i]), "a leftover checkpoint does no harm");
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
    fm_tree_free(d->parent);
}

/* Every child lands or is refused on its own: a failing gate does not hold its siblings back. */
static fm_status land_all(derivation *d, bool gate)
{
    fm_status worst = FM_OK;
    for (size_t i = 0; i < d->f->count; i++) {
        if (d->result[i].stopped)
            return fm_fail(FM_ECANCELLED, "stopped; the same command takes '%s' up again where it "
                                          "was", d->f->child[i].name);
        fm_status rc = land_child(d, i, gate);
        if (rc < 0 && rc != FM_EREFUSED)
            return rc;
        if (rc == FM_EREFUSED) {
            worst = rc;
            if (i + 1 < d->f->count)
                fprintf(stderr, "fmstore: %s\n", fm_error_text());
        }
    }
    return worst;
}

fm_status family_derive(cli *c, family *f, bool gate)
{
    derivation d = {.c = c, .f = f, .pretrain = f->config_dir != NULL};
    fm_status rc = cli_engine(c);
    if (rc == FM_OK)
        rc = derivation_new(&d);
    if (rc == FM_OK)
        rc = open_parent(&d);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        rc = prepare_child(&d, i);
    if (rc == FM_OK) {
        fm_provider p = fm_store_provider(fm_repo_store(c->repo));
        rc = fm_train_run(c->engine, &p, d.job, f->count, d.result, show_progress, &d);
        out_progress_end();
    }
    if (rc == FM_OK)
        rc = land_all(&d, gate);
    derivation_release(&d);
    return rc;
}
