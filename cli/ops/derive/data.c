/* data.c - see data.h. */
#include "cli/ops/derive/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/version/version_tree.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/base/text/utf8.h"
#include "store/base/text/yaml.h"

#define DATA_MAX_BYTES ((size_t)8 << 30)
#define META_MAX_BYTES ((size_t)1 << 20)

/* ---- options and keys ---- */

static fmo_data_file *add_file(fmo_data_list *l, char *path)
{
    if (!path || fm_grow(&l->file, &l->cap, l->count + 1, sizeof *l->file) < 0) {
        fm_free(path);
        return NULL;
    }
    fmo_data_file *f = &l->file[l->count++];
    memset(f, 0, sizeof *f);
    f->path = path;
    f->weight = 1.0;
    fm_buf_init(&f->bytes, DATA_MAX_BYTES);
    return f;
}

static bool is_number(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end && ((s[0] >= '0' && s[0] <= '9') || s[0] == '.');
}

fm_status fmo_data_add_word(fmo_data_list *l, const char *word)
{
    const char *colon = strrchr(word, ':');
    double weight = 1.0;
    bool weighted = colon && is_number(colon + 1, &weight) && !fm_path_exists(word);
    fmo_data_file *f =
        add_file(l, weighted ? fm_strndup(word, (size_t)(colon - word)) : fm_strdup(word));
    if (!f)
        return FM_ENOMEM;
    f->weight = weighted ? weight : 1.0;
    return FM_OK;
}

static fm_status set_share(fmo_data_list *l, double share, const char *where)
{
    if (!(share > 0.0 && share < 1.0))
        return fm_fail(FM_EINVAL, "%s: the share to hold out lies between 0 and 1, not %g", where,
                       share);
    l->eval_share = share;
    return FM_OK;
}

fm_status fmo_data_eval_word(fmo_data_list *l, const char *word)
{
    double share;
    if (is_number(word, &share) && !fm_path_exists(word))
        return set_share(l, share, "--eval");
    fmo_data_file *f = add_file(l, fm_strdup(word));
    if (!f)
        return FM_ENOMEM;
    f->held_out = true;
    return FM_OK;
}

char *fmo_path_beside(const char *family_path, const char *path)
{
    const char *base = fm_path_base(family_path);
    if (path[0] == '/' || base == family_path)
        return fm_strdup(path);
    return fm_asprintf("%.*s%s", (int)(base - family_path), family_path, path);
}

static fm_status take_text(char **out, const fm_json *obj, const char *key, const char *where)
{
    const fm_json *v = fm_json_get(obj, key);
    if (!v || *out)
        return FM_OK;
    if (!fm_json_is(v, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: '%s' must be text", where, key);
    *out = fm_strdup(fm_json_cstr(v, ""));
    return *out ? FM_OK : FM_ENOMEM;
}

/* Takes licence, source and split from obj where f lacks them. */
static fm_status take_origin(fmo_data_file *f, const fm_json *obj, const char *where)
{
    FM_TRY(take_text(&f->licence, obj, "licence", where));
    FM_TRY(take_text(&f->licence, obj, "license", where));
    FM_TRY(take_text(&f->source, obj, "source", where));
    return take_text(&f->split, obj, "split", where);
}

static fm_status take_skip(fmo_data_file *f, const fm_json *v, const char *where)
{
    const fm_json *skip = fm_json_get(v, "skip");
    size_t n = fm_json_count(skip);
    if (!skip)
        return FM_OK;
    f->skip = fm_calloc(n, sizeof *f->skip);
    if (!f->skip)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int64_t number = fm_json_int(fm_json_at(skip, i), -1);
        if (number < 0 || number > UINT32_MAX)
            return fm_fail(FM_EINVAL, "%s: 'skip' must list record numbers", where);
        f->skip[f->skip_count++] = (uint32_t)number;
    }
    return fm_json_is(skip, FM_JSON_ARRAY)
               ? FM_OK
               : fm_fail(FM_EINVAL, "%s: 'skip' must list record numbers", where);
}

static fm_status read_file_key(fmo_data_list *l, const fm_json *v, const char *family_path,
                               const char *where)
{
    static const char *const known[] = {"file",   "weight", "licence", "license",
                                        "source", "split",  "skip",    NULL};
    bool map = fm_json_is(v, FM_JSON_OBJECT);
    const char *path = fm_json_cstr(map ? fm_json_get(v, "file") : v, NULL);
    FM_TRY(map ? fm_json_known_keys(v, known, where) : FM_OK);
    if (!path)
        return fm_fail(FM_EINVAL, "%s: 'data' wants a file, {file: ..., weight: ...} or a list",
                       where);
    fmo_data_file *f = add_file(l, fmo_path_beside(family_path, path));
    if (!f)
        return FM_ENOMEM;
    const fm_json *weight = fm_json_get(v, "weight");
    if (weight && !fm_json_is(weight, FM_JSON_INT) && !fm_json_is(weight, FM_JSON_REAL))
        return fm_fail(FM_EINVAL, "%s: 'weight' must be a number", where);
    f->weight = fm_json_real(weight, 1.0);
    FM_TRY(take_skip(f, v, where));
    return take_origin(f, v, where);
}

fm_status fmo_data_read_keys(fmo_data_list *l, const fm_json *child, const char *family_path,
                             const char *where)
{
    const fm_json *data = fm_json_get(child, "data"), *eval = fm_json_get(child, "eval");
    bool list = fm_json_is(data, FM_JSON_ARRAY);
    fm_status rc = FM_OK;
    if (list && fm_json_count(data) == 0)
        return fm_fail(FM_EINVAL, "%s: 'data' must list at least one file", where);
    for (size_t i = 0; rc == FM_OK && i < (list ? fm_json_count(data) : 1); i++)
        rc = read_file_key(l, list ? fm_json_at(data, i) : data, family_path, where);
    for (size_t i = 0; rc == FM_OK && i < l->count; i++)
        rc = take_origin(&l->file[i], child, where);
    if (rc < 0 || !eval)
        return rc;
    if (fm_json_is(eval, FM_JSON_INT) || fm_json_is(eval, FM_JSON_REAL))
        return set_share(l, fm_json_real(eval, 0.0), where);
    if (!fm_json_is(eval, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: 'eval' wants a share such as 0.05, or a file", where);
    fmo_data_file *f = add_file(l, fmo_path_beside(family_path, fm_json_cstr(eval, "")));
    if (!f)
        return FM_ENOMEM;
    f->held_out = true;
    return FM_OK;
}

void fmo_data_release(fmo_data_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        fmo_data_file *f = &l->file[i];
        fm_free(f->path);
        fm_free(f->licence);
        fm_free(f->source);
        fm_free(f->split);
        fm_free(f->skip);
        fm_buf_release(&f->bytes);
    }
    fm_free(l->file);
    memset(l, 0, sizeof *l);
}

const char *fmo_data_title(const fmo_data_list *l)
{
    static char ring[4][400];
    static unsigned next;
    char *s = ring[next++ % 4];
    size_t trained = 0, first = 0;
    for (size_t i = l->count; i-- > 0;)
        if (!l->file[i].held_out) {
            trained++;
            first = i;
        }
    int n =
        snprintf(s, sizeof ring[0], "%.300s", l->count ? fm_path_base(l->file[first].path) : "");
    if (trained > 1)
        snprintf(s + n, sizeof ring[0] - (size_t)n, " and %zu more", trained - 1);
    return s;
}

/* ---- a data set from files ---- */

static fm_status read_meta(fmo_data_file *f)
{
    static const char *const known[] = {"licence", "license", "source", "split", NULL};
    fm_json *meta = NULL;
    fm_buf text;
    char *path = fm_asprintf("%s.meta.yaml", f->path);
    if (!path)
        return FM_ENOMEM;
    fm_buf_init(&text, META_MAX_BYTES);
    fm_status rc = FM_OK;
    if (fm_path_exists(path)) {
        rc = fm_read_file(&text, path, META_MAX_BYTES);
        FM_THEN(rc, fm_yaml_parse(&meta, fm_buf_span(&text), path));
        if (rc == FM_OK && !fm_json_is(meta, FM_JSON_OBJECT))
            rc = fm_fail(FM_EINVAL, "%s: want 'key: value' lines here", path);
        FM_THEN(rc, fm_json_known_keys(meta, known, path));
        FM_THEN(rc, take_origin(f, meta, path));
    }
    fm_json_free(meta);
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

/* A version keeps a data file under its name, and the recipe names it in JSON: a name that a tree
 * or a JSON text cannot hold is refused before the training, not after it. */
static fm_status check_name(const char *name)
{
    char *path = fm_asprintf("data/%s", name);
    fm_status rc = path ? fm_tree_check_path(path) : FM_ENOMEM;
    if (rc == FM_OK && fm_utf8_valid((const uint8_t *)name, strlen(name)) < strlen(name))
        rc = fm_fail(FM_EINVAL, "is no UTF-8, and recipe.json is");
    if (rc == FM_EINVAL)
        rc = fm_error_prefix(rc, "the data file '%s' cannot be kept by name; rename it", name);
    fm_free(path);
    return rc;
}

static fm_status check_names(const fmo_data_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        FM_TRY(check_name(fm_path_base(l->file[i].path)));
        for (size_t k = 0; k < i; k++)
            if (strcmp(fm_path_base(l->file[i].path), fm_path_base(l->file[k].path)) == 0)
                return fm_fail(FM_EINVAL,
                               "two data files are called %s; a version keeps them by name, so "
                               "rename one",
                               fm_path_base(l->file[i].path));
    }
    return FM_OK;
}

static fm_data_file view(const fmo_data_file *f)
{
    return (fm_data_file){.bytes = fm_buf_span(&f->bytes),
                          .what = fm_path_base(f->path),
                          .weight = f->weight,
                          .skip = f->skip,
                          .skip_count = f->skip_count,
                          .held_out = f->held_out,
                          .licence = f->licence,
                          .source = f->source,
                          .split = f->split};
}

static fm_status open_files(const fmo_data_list *l, fm_dataset **out, const fm_tokenizer *tok,
                            const fm_chat_template *chat, const fm_train_config *c)
{
    fm_data_file *file = fm_calloc(l->count, sizeof *file);
    if (!file)
        return FM_ENOMEM;
    for (size_t i = 0; i < l->count; i++)
        file[i] = view(&l->file[i]);
    fm_status rc = fm_dataset_open_files(out, file, l->count, tok, chat, c, l->eval_share);
    fm_free(file);
    return rc;
}

fm_status fmo_data_open(fmo_data_list *l, fm_dataset **out, const fm_tokenizer *tok,
                        const fm_chat_template *chat, const fm_train_config *c,
                        const uint32_t *skip, size_t skip_count)
{
    FM_TRY(check_names(l));
    if (skip_count > 0 && (l->count != 1 || l->file[0].skip))
        return fm_fail(FM_EINVAL, "skip goes with one data file; with several name it: --skip "
                                  "a.jsonl:3, or data: [{file: a.jsonl, skip: [3]}, ...]");
    if (skip_count > 0) {
        l->file[0].skip = fm_memdup(skip, skip_count * sizeof *skip);
        l->file[0].skip_count = skip_count;
        FM_TRY(l->file[0].skip ? FM_OK : FM_ENOMEM);
    }
    for (size_t i = 0; i < l->count; i++) {
        FM_TRY(fm_read_file(&l->file[i].bytes, l->file[i].path, DATA_MAX_BYTES));
        FM_TRY(read_meta(&l->file[i]));
    }
    return open_files(l, out, tok, chat, c);
}

/* ---- data in a version ---- */

fm_json *fmo_data_manifests(const fm_dataset *d)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < fm_dataset_files(d); i++)
        fm_json_push_to(&rc, a, fm_dataset_file_manifest(d, i));
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

static fm_status put_report(fm_txn *txn, fm_tree *tree, const char *name, const fm_json *report)
{
    char *path = fm_asprintf("data/%s.report.json", name);
    fm_status rc = path ? fmo_tree_put_json(txn, tree, path, report) : FM_ENOMEM;
    fm_free(path);
    return rc;
}

fm_status fmo_data_put(fm_txn *txn, fm_tree *tree, const fmo_data_list *l, const fm_json *report)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < l->count; i++) {
        char *path = fm_asprintf("data/%s", fm_path_base(l->file[i].path));
        rc = path ? fm_txn_put_path(txn, tree, path, fm_buf_span(&l->file[i].bytes)) : FM_ENOMEM;
        fm_free(path);
    }
    return rc == FM_OK && report ? put_report(txn, tree, fm_path_base(l->file[0].path), report)
                                 : rc;
}

fm_json *fmo_data_summary(const fm_data_report *r)
{
    static const char *const keys[] = {"examples", "held_out", "tokens",   "counted",
                                       "lost",     "answers",  "findings", "lengths"};
    static const char *const lists[] = {"truncated", "no_stop", "duplicates", "conflicts",
                                        "contaminated"};
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        fm_json_put(&rc, o, keys[i], fm_json_ref(fm_json_get(r->json, keys[i])));
    for (size_t i = 0; i < FM_ARRAY_LEN(lists); i++)
        fm_json_put(&rc, o, lists[i],
                    fm_json_ref(fm_json_get(fm_json_get(r->json, lists[i]), "count")));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status recipe_skips(fmo_data_file *f, const fm_json *manifest)
{
    const fm_json *skipped = fm_json_get(manifest, "skipped");
    f->skip = fm_calloc(fm_json_count(skipped), sizeof *f->skip);
    for (; f->skip && f->skip_count < fm_json_count(skipped); f->skip_count++)
        f->skip[f->skip_count] = (uint32_t)fm_json_int(fm_json_at(skipped, f->skip_count), 0);
    return f->skip ? FM_OK : FM_ENOMEM;
}

/* Reads a file of the version and compares it with the digest in the recipe. */
static fm_status recipe_file(fm_ops *c, fmo_data_list *l, const fm_tree *tree,
                             const fm_json *manifest)
{
    const char *name = fm_json_cstr(fm_json_get(manifest, "name"), "");
    const char *hex = fm_json_cstr(fm_json_get(manifest, "sha256"), "");
    char have[FM_HEX_CHARS + 1];
    fm_digest digest;
    fmo_data_file *f = add_file(l, fm_strdup(name));
    char *path = fm_asprintf("data/%s", name);
    const fm_entry *e = path ? fm_tree_find(tree, path) : NULL;
    fm_status rc = f && path ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && !e)
        rc = fm_fail(FM_ENOTFOUND, "has no data/%s, on which it was trained", name);
    FM_THEN(rc, fm_ops_entry_bytes(c, e, &f->bytes));
    FM_THEN(rc, fm_sha256(&digest, f->bytes.data, f->bytes.len));
    if (rc == FM_OK) {
        fm_digest_hex(&digest, have);
        if (strcmp(have, hex) != 0)
            rc = fm_fail(FM_ECORRUPT, "%s is not what the recipe's sha256 says", path);
    }
    if (rc == FM_OK) {
        f->weight = fm_json_real(fm_json_get(manifest, "weight"), 1.0);
        f->held_out = fm_json_bool(fm_json_get(manifest, "evaluation"), false);
        l->eval_share = FM_MAX(l->eval_share, fm_json_real(fm_json_get(manifest, "eval"), 0.0));
        rc = recipe_skips(f, manifest);
    }
    FM_THEN(rc, take_origin(f, manifest, "recipe.json"));
    fm_free(path);
    return rc;
}

fm_status fmo_data_of_version(fm_ops *c, const fm_tree *tree, const fm_json *recipe,
                              const fm_train_config *config, const fm_tokenizer *tok,
                              const fm_chat_template *chat, fm_dataset **out)
{
    const fm_json *data = fm_json_get(recipe, "data");
    fmo_data_list l = {0};
    fm_status rc = FM_OK;
    *out = NULL;
    if (fm_json_count(data) == 0)
        return fm_fail(FM_ENOTFOUND, "the recipe names no data");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(data); i++)
        rc = recipe_file(c, &l, tree, fm_json_at(data, i));
    FM_THEN(rc, open_files(&l, out, tok, chat, config));
    fmo_data_release(&l);
    return rc;
}

/* ---- the report ---- */

typedef struct probes {
    fm_data_probe *item;
    char **name; /* [count] owned */
    size_t count, cap, name_cap;
    const char *suite, *label;
} probes;

static fm_status add_probe(void *ctx, fm_span text)
{
    probes *p = ctx;
    fm_status rc = fm_grow(&p->item, &p->cap, p->count + 1, sizeof *p->item);
    FM_THEN(rc, fm_grow(&p->name, &p->name_cap, p->count + 1, sizeof *p->name));
    char *name = rc == FM_OK ? fm_asprintf("%s/%s", p->suite, p->label) : NULL;
    if (!name)
        return FM_ENOMEM;
    p->name[p->count] = name;
    p->item[p->count++] = (fm_data_probe){name, text};
    return FM_OK;
}

static fm_status add_suite(probes *p, const fm_suite *s)
{
    p->suite = fm_suite_name(s);
    for (size_t i = 0; i < fm_suite_count(s); i++) {
        p->label = fm_suite_case_name(s, i);
        FM_TRY(fm_suite_case_texts(s, i, add_probe, p));
    }
    return FM_OK;
}

fm_status fmo_data_report(fm_ops *c, const fm_dataset *d, const fm_tokenizer *tok,
                          const fm_model *model, const fm_train_config *config,
                          const fm_tree *parent, const fm_words *suites, fm_data_report *out)
{
    fmo_suite_files files;
    fm_suite_set set = {0};
    probes p = {0};
    fm_status rc = fmo_suite_files_of(c, parent, &files);
    for (size_t i = 0; rc == FM_OK && i < suites->count; i++)
        rc = fmo_suite_files_put(&files, suites->item[i]);
    FM_THEN(rc, fmo_suite_files_parse(&files, &set));
    for (size_t i = 0; rc == FM_OK && i < set.count; i++)
        rc = add_suite(&p, set.suite[i]);
    fm_data_report_opts opts = {.probe = p.item, .probes = p.count};
    if (model) {
        opts.end = fm_model_arch(model)->eos;
        opts.ends = fm_model_arch(model)->eos_count;
    }
    FM_THEN(rc, fm_dataset_report(out, d, tok, config, &opts));
    for (size_t i = 0; i < p.count; i++)
        fm_free(p.name[i]);
    fm_free(p.name);
    fm_free(p.item);
    fm_suite_set_free(&set);
    fmo_suite_files_release(&files);
    return rc;
}
