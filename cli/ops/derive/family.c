/* family.c - the family file: children of one parent, and of one another, as YAML.
 *
 *   parent: base
 *   mode: exact                     # or what --mode takes; of all children
 *   method: lora                    # for all children unless they say otherwise
 *   set: {r: 8, lr: 0.001}          # likewise, merged key by key
 *   modules:                        # made once for others to stand on; a branch if `as` is given
 *     style: {data: style.jsonl}
 *   children:
 *     - as: guide
 *       on: style                   # a module or another child; without it the parent
 *       data: guide.jsonl
 *       set: {steps: 60}
 *       skip: [3, 17]
 *       suites: [guide.yaml]
 *       message: learn the guide's tone
 *     - as: best
 *       data: guide.jsonl
 *       sweep: {lr: [0.001, 0.003], r: [4, 8]}   # sweep.h
 *       halving: {rungs: [20, 40, 80]} */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/derive/family.h"
#include "cli/ops/derive/sweep.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/base/text/yaml.h"

static const struct {
    const char *word;
    fm_method method;
} methods[] = {{"lora", FM_METHOD_LORA},
               {"full", FM_METHOD_FULL},
               {"ia3", FM_METHOD_IA3},
               {"prefix", FM_METHOD_PREFIX},
               {"prompt", FM_METHOD_PROMPT},
               {"bitfit", FM_METHOD_BITFIT},
               {"ln_tuning", FM_METHOD_NORMS},
               {"loha", FM_METHOD_LOHA},
               {"lokr", FM_METHOD_LOKR},
               {"oft", FM_METHOD_OFT},
               {"boft", FM_METHOD_BOFT},
               {"hra", FM_METHOD_HRA},
               {"miss", FM_METHOD_MISS},
               {"shira", FM_METHOD_SHIRA},
               {"fourierft", FM_METHOD_FOURIERFT},
               {"randlora", FM_METHOD_RANDLORA},
               {"vera", FM_METHOD_VERA},
               {"adalora", FM_METHOD_ADALORA},
               {"pretrain", FM_METHOD_PRETRAIN}};
#define DORA "dora" /* LoRA with dora=true */

static fm_status method_parse(fm_method *out, const char *word)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (strcmp(word, methods[i].word) == 0) {
            *out = methods[i].method;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL,
                   "method '%s' is not known (lora, dora, full, ia3, prefix, prompt, bitfit, "
                   "ln_tuning, loha, lokr, oft, boft, hra, miss, shira, fourierft, randlora, vera, "
                   "adalora, pretrain)",
                   word);
}

const char *fmo_method_name(fm_method method)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (methods[i].method == method)
            return methods[i].word;
    return "?";
}

fm_status fmo_config_of_method(fm_train_config *out, const char *word)
{
    fm_method method = FM_METHOD_LORA;
    bool dora = strcmp(word, DORA) == 0;
    fm_status rc = dora ? FM_OK : method_parse(&method, word);
    *out = fm_train_defaults(method);
    out->dora = dora;
    return rc;
}

static fmo_child *add_child(fmo_family *f, const fm_train_config *config)
{
    if (fm_grow(&f->child, &f->cap, f->count + 1, sizeof *f->child) < 0)
        return NULL;
    fmo_child *ch = &f->child[f->count++];
    memset(ch, 0, sizeof *ch);
    ch->config = *config;
    ch->unit = f->units - 1;
    f->unit[ch->unit].count++;
    return ch;
}

static fmo_unit *add_unit(fmo_family *f)
{
    if (fm_grow(&f->unit, &f->unit_cap, f->units + 1, sizeof *f->unit) < 0)
        return NULL;
    fmo_unit *u = &f->unit[f->units++];
    memset(u, 0, sizeof *u);
    u->first = f->count;
    u->on = UNIT_NONE;
    u->branch = true;
    f->waves = FM_MAX(f->waves, 1u);
    return u;
}

fmo_child *fmo_family_add(fmo_family *f, const fm_train_config *config)
{
    return add_unit(f) ? add_child(f, config) : NULL;
}

const char *fmo_unit_name(const fmo_family *f, const fmo_unit *u)
{
    return u->sweep ? fmo_sweep_name(u->sweep) : f->child[u->first].name;
}

const char *fmo_family_mode(const fmo_family *f)
{
    return fm_json_cstr(fm_json_get(f->doc, "mode"), NULL);
}

static fm_status add_skip(fmo_child *ch, int64_t n)
{
    if (n < 0 || n > UINT32_MAX)
        return fm_fail(FM_EINVAL, "skip: %lld is no record number", (long long)n);
    if (ch->skip_count == CHILD_SKIP_MAX)
        return fm_fail(FM_ELIMIT, "skip: more than %d records", CHILD_SKIP_MAX);
    FM_TRY(fm_grow(&ch->skip, &ch->skip_cap, ch->skip_count + 1, sizeof *ch->skip));
    ch->skip[ch->skip_count++] = (uint32_t)n;
    return FM_OK;
}

/* Adds "FILE:N", a record of one of several files, to the list of that file. */
static fm_status add_file_skip(fmo_child *ch, const char *name, size_t len, long long n)
{
    for (size_t i = 0; i < ch->data.count; i++) {
        fmo_data_file *f = &ch->data.file[i];
        const char *base = fm_path_base(f->path);
        if (strlen(base) != len || strncmp(base, name, len) != 0)
            continue;
        if (n < 0 || n > UINT32_MAX)
            return fm_fail(FM_EINVAL, "--skip: %lld is no record number", n);
        uint32_t *more = fm_realloc(f->skip, (f->skip_count + 1) * sizeof *more);
        if (!more)
            return FM_ENOMEM;
        f->skip = more;
        f->skip[f->skip_count++] = (uint32_t)n;
        return FM_OK;
    }
    return fm_fail(FM_EINVAL, "--skip: no --data file is called '%.*s'", (int)len, name);
}

fm_status fmo_child_skip_text(fmo_child *ch, const char *numbers)
{
    for (const char *p = numbers; *p;) {
        char *end;
        size_t len = strcspn(p, ",");
        const char *colon = memrchr(p, ':', len);
        const char *digits = colon ? colon + 1 : p;
        long long n = strtoll(digits, &end, 10);
        if (end == digits || end != p + len)
            return fm_fail(FM_EINVAL,
                           "--skip wants record numbers like 3,17,29, or with several files "
                           "a.jsonl:3,b.csv:17, got '%s'",
                           numbers);
        FM_TRY(colon ? add_file_skip(ch, p, (size_t)(colon - p), n) : add_skip(ch, n));
        p += len + (p[len] == ',');
    }
    return FM_OK;
}

static fm_status known_keys(const fm_json *obj, const char *const *known, const char *where)
{
    if (!fm_json_is(obj, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: want 'key: value' lines here", where);
    return fm_json_known_keys(obj, known, where);
}

/* Checks the type of a key that may be absent: a value of another type would be ignored. */
static fm_status want_type(const fm_json *obj, const char *key, fm_json_type type,
                           const char *where)
{
    const fm_json *v = fm_json_get(obj, key);
    if (!v || fm_json_is(v, type))
        return FM_OK;
    const char *shape = type == FM_JSON_ARRAY    ? "a list [a, b]"
                        : type == FM_JSON_OBJECT ? "a mapping {key: value}"
                                                 : "text";
    return fm_fail(FM_EINVAL, "%s: '%s' must be %s", where, key, shape);
}

fm_status fmo_apply_settings(fmo_child *ch, const fm_json *set, const char *where)
{
    for (void *it = fm_json_iter(set); it; it = fm_json_next(set, it)) {
        const fm_json *v = fm_json_iter_value(it);
        fm_buf text;
        fm_buf_init(&text, 0);
        fm_status rc = FM_OK;
        if (fm_json_is(v, FM_JSON_STRING))
            fm_buf_str(&text, fm_json_cstr(v, ""));
        else
            rc = fm_json_write(&text, v, FM_JSON_COMPACT);
        FM_THEN(rc, fm_train_config_set(&ch->config, fm_json_iter_key(it), fm_buf_cstr(&text)));
        fm_buf_release(&text);
        if (rc < 0)
            return fm_error_prefix(rc, "%s", where);
    }
    return FM_OK;
}

static fm_status check_child_keys(const fm_json *v, bool module, const char *where)
{
    static const char *const known[] = {"as",      "method",  "data",  "set",     "skip", "suites",
                                        "on",      "message", "sweep", "halving", "eval", "licence",
                                        "license", "source",  "split", "teacher", NULL};
    static const char *const texts[] = {"as", "method", "message", "on", "teacher"};
    static const char *const maps[] = {"set", "sweep", "halving"};
    FM_TRY(known_keys(v, known, where));
    for (size_t i = 0; i < FM_ARRAY_LEN(texts); i++)
        FM_TRY(want_type(v, texts[i], FM_JSON_STRING, where));
    for (size_t i = 0; i < FM_ARRAY_LEN(maps); i++)
        FM_TRY(want_type(v, maps[i], FM_JSON_OBJECT, where));
    FM_TRY(want_type(v, "skip", FM_JSON_ARRAY, where));
    FM_TRY(want_type(v, "suites", FM_JSON_ARRAY, where));
    if (!fm_json_get(v, "data"))
        return fm_fail(FM_EINVAL, "%s: 'data' (a file) must be there", where);
    if (!module && !fm_json_get(v, "as"))
        return fm_fail(FM_EINVAL, "%s: 'as' (a branch name) must be there", where);
    return FM_OK;
}

static fm_status read_lists(fmo_child *ch, const fm_json *v, const char *path, const char *where)
{
    fm_status rc = FM_OK;
    const fm_json *skip = fm_json_get(v, "skip"), *suites = fm_json_get(v, "suites");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(skip); i++)
        rc = add_skip(ch, fm_json_int(fm_json_at(skip, i), -1));
    if (rc < 0)
        return fm_error_prefix(rc, "%s", where);
    if (fm_json_count(suites) > FM_WORDS_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %d suites", where, FM_WORDS_MAX);
    for (size_t i = 0; i < fm_json_count(suites); i++) {
        const char *name = fm_json_cstr(fm_json_at(suites, i), NULL);
        if (!name)
            return fm_fail(FM_EINVAL, "%s: 'suites' must list files", where);
        char *suite = fmo_path_beside(path, name);
        if (!suite)
            return FM_ENOMEM;
        ch->suites.item[ch->suites.count++] = suite;
    }
    return FM_OK;
}

/* trial: the settings that a sweep gives this child; NULL without a sweep. */
static fm_status read_child(fmo_family *f, const fm_json *v, const char *path, const char *name,
                            const fm_json *trial, const char *where)
{
    fm_train_config config;
    const char *message = fm_json_cstr(fm_json_get(v, "message"), NULL);
    const char *teacher = fm_json_cstr(fm_json_get(v, "teacher"), NULL);
    const char *word =
        fm_json_cstr(fm_json_get(v, "method"), fm_json_cstr(fm_json_get(f->doc, "method"),
                                                            f->config_dir ? "pretrain" : "lora"));
    fm_status rc = fmo_config_of_method(&config, word);
    if (rc < 0)
        return fm_error_prefix(rc, "%s", where);
    fmo_child *ch = add_child(f, &config);
    if (!ch)
        return FM_ENOMEM;
    ch->name = fm_strdup(name);
    ch->message = message ? fm_strdup(message) : NULL;
    ch->teacher = teacher ? fm_strdup(teacher) : NULL;
    if (!ch->name || (message && !ch->message) || (teacher && !ch->teacher))
        return FM_ENOMEM;
    rc = fmo_data_read_keys(&ch->data, v, path, where);
    FM_THEN(rc, fmo_apply_settings(ch, fm_json_get(f->doc, "set"), where));
    FM_THEN(rc, fmo_apply_settings(ch, fm_json_get(v, "set"), where));
    if (rc == FM_OK && trial)
        rc = fmo_apply_settings(ch, trial, where);
    return rc == FM_OK ? read_lists(ch, v, path, where) : rc;
}

static fm_status read_trials(fmo_family *f, const fm_json *v, const char *path, const char *name,
                             const char *where)
{
    fmo_unit *u = &f->unit[f->units - 1];
    FM_TRY(fmo_sweep_new(&u->sweep, v, name, where));
    for (size_t i = 0; i < fmo_sweep_trials(u->sweep); i++) {
        char label[300];
        snprintf(label, sizeof label, "%.250s trial %zu", name, i + 1);
        FM_TRY(read_child(f, v, path, label, fmo_sweep_settings(u->sweep, i), where));
        fmo_sweep_trial_config(u->sweep, &f->child[f->count - 1].config);
    }
    return FM_OK;
}

/* module: the key of a module; NULL: the unit is a child. */
static fm_status read_unit(fmo_family *f, const fm_json *v, const char *path, const char *module,
                           const char *where)
{
    FM_TRY(check_child_keys(v, module != NULL, where));
    fmo_unit *u = add_unit(f);
    if (!u)
        return FM_ENOMEM;
    const char *as = fm_json_cstr(fm_json_get(v, "as"), NULL);
    const char *on = fm_json_cstr(fm_json_get(v, "on"), NULL);
    const char *name = as ? as : module;
    u->branch = as != NULL;
    u->module = module ? fm_strdup(module) : NULL;
    u->on_name = on ? fm_strdup(on) : NULL;
    if ((on && !u->on_name) || (module && !u->module))
        return FM_ENOMEM;
    if (fm_json_get(v, "sweep"))
        return read_trials(f, v, path, name, where);
    if (fm_json_get(v, "halving"))
        return fm_fail(FM_EINVAL, "%s: 'halving' goes with 'sweep'", where);
    return read_child(f, v, path, name, NULL, where);
}

static fm_status read_modules(fmo_family *f, const char *path)
{
    const fm_json *modules = fm_json_get(f->doc, "modules");

    for (void *it = fm_json_iter(modules); it; it = fm_json_next(modules, it)) {
        char where[600];
        snprintf(where, sizeof where, "%.400s: module '%.100s'", path, fm_json_iter_key(it));
        FM_TRY(read_unit(f, fm_json_iter_value(it), path, fm_json_iter_key(it), where));
    }
    return FM_OK;
}

static fm_status read_children(fmo_family *f, const char *path)
{
    const fm_json *children = fm_json_get(f->doc, "children");

    for (size_t i = 0; i < fm_json_count(children); i++) {
        char where[600];
        snprintf(where, sizeof where, "%.400s: child %zu", path, i + 1);
        FM_TRY(read_unit(f, fm_json_at(children, i), path, NULL, where));
    }
    return FM_OK;
}

/* ---- the order of units ---- */

static bool is_called(const fmo_family *f, const fmo_unit *u, const char *name)
{
    return (u->module && strcmp(u->module, name) == 0) || strcmp(fmo_unit_name(f, u), name) == 0;
}

static fm_status find_on(fmo_family *f, fmo_unit *u, const char *path)
{
    for (size_t i = 0; i < f->units; i++)
        if (is_called(f, &f->unit[i], u->on_name)) {
            u->on = i;
            f->unit[i].stood_on = true;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "%s: '%s' is on '%s', which is neither a module nor a child here",
                   path, fmo_unit_name(f, u), u->on_name);
}

/* Numbers the waves one after another; units left over form a cycle. */
static fm_status find_waves(fmo_family *f, const char *path)
{
    for (size_t i = 0; i < f->units; i++) {
        fmo_unit *u = &f->unit[i];
        size_t steps = 0;
        for (size_t at = u->on; at != UNIT_NONE; at = f->unit[at].on)
            if (++steps > f->units)
                return fm_fail(FM_EINVAL, "%s: '%s' stands on itself: follow its 'on'", path,
                               fmo_unit_name(f, u));
        u->wave = (unsigned)steps;
        f->waves = FM_MAX(f->waves, u->wave + 1);
    }
    return FM_OK;
}

static fm_status check_names(const fmo_family *f, const char *path)
{
    for (size_t i = 0; i < f->units; i++) {
        const fmo_unit *u = &f->unit[i];
        for (size_t k = 0; k < i; k++)
            if (is_called(f, &f->unit[k], fmo_unit_name(f, u)) ||
                (u->module && is_called(f, &f->unit[k], u->module)))
                return fm_fail(FM_EINVAL, "%s: two children are called '%s'; a branch is made once",
                               path, fmo_unit_name(f, u));
        if (!u->branch && !u->stood_on)
            return fm_fail(FM_EINVAL,
                           "%s: module '%s' is used by nobody; name it by 'on', or give it a "
                           "branch by 'as'",
                           path, fmo_unit_name(f, u));
    }
    return FM_OK;
}

static fm_status link_units(fmo_family *f, const char *path)
{
    for (size_t i = 0; i < f->units; i++)
        if (f->unit[i].on_name)
            FM_TRY(f->config_dir
                       ? fm_fail(FM_EINVAL, "%s: 'on' goes with a parent, not with 'config'", path)
                       : find_on(f, &f->unit[i], path));
    FM_TRY(check_names(f, path));
    return find_waves(f, path);
}

#define FAMILY_MAX_BYTES ((size_t)4 << 20)

fm_status fmo_family_read(fmo_family *f, const char *path)
{
    static const char *const known[] = {"parent",   "method", "set",     "mode",
                                        "children", "config", "modules", NULL};
    fm_buf text;
    fm_buf_init(&text, FAMILY_MAX_BYTES);
    fm_status rc = fm_read_file(&text, path, FAMILY_MAX_BYTES);
    FM_THEN(rc, fm_yaml_parse(&f->doc, fm_buf_span(&text), path));
    fm_buf_release(&text);
    FM_THEN(rc, known_keys(f->doc, known, path));
    FM_THEN(rc, want_type(f->doc, "set", FM_JSON_OBJECT, path));
    FM_THEN(rc, want_type(f->doc, "children", FM_JSON_ARRAY, path));
    FM_THEN(rc, want_type(f->doc, "modules", FM_JSON_OBJECT, path));
    FM_THEN(rc, want_type(f->doc, "mode", FM_JSON_STRING, path));
    if (rc < 0)
        return rc;
    const char *parent = fm_json_cstr(fm_json_get(f->doc, "parent"), NULL);
    const char *config = fm_json_cstr(fm_json_get(f->doc, "config"), NULL);
    const fm_json *children = fm_json_get(f->doc, "children");
    if (!parent == !config)
        return fm_fail(FM_EINVAL,
                       "%s: want 'parent' (a revision), or 'config' (a folder) to pretrain", path);
    if (fm_json_count(children) == 0)
        return fm_fail(FM_EINVAL, "%s: 'children' must list at least one child", path);
    f->parent = parent ? fm_strdup(parent) : NULL;
    f->config_dir = config ? fmo_path_beside(path, config) : NULL;
    if (!f->parent == !f->config_dir)
        return FM_ENOMEM;
    rc = read_modules(f, path);
    FM_THEN(rc, read_children(f, path));
    return rc == FM_OK ? link_units(f, path) : rc;
}

void fmo_family_release(fmo_family *f)
{
    for (size_t i = 0; i < f->count; i++) {
        fmo_child *ch = &f->child[i];
        fm_free(ch->name);
        fmo_data_release(&ch->data);
        fm_free(ch->message);
        fm_free(ch->teacher);
        fm_free(ch->skip);
        for (size_t k = 0; f->doc && k < ch->suites.count; k++)
            fm_free((void *)(uintptr_t)ch->suites.item[k]); /* owned if a family file made them */
    }
    for (size_t i = 0; i < f->units; i++) {
        fm_free(f->unit[i].on_name);
        fm_free(f->unit[i].module);
        fmo_sweep_free(f->unit[i].sweep);
    }
    fm_free(f->child);
    fm_free(f->unit);
    fm_free(f->parent);
    fm_free(f->config_dir);
    fm_json_free(f->doc);
}

/* ---- one child ---- */

fm_status fmo_family_of_opts(fmo_family *f, const fm_derive_opts *o)
{
    fm_train_config config;
    const char *word = o->method ? o->method : o->config_dir ? "pretrain" : "lora";
    fm_status rc = fmo_config_of_method(&config, word);
    fmo_child *ch = rc == FM_OK ? fmo_family_add(f, &config) : NULL;
    if (!ch)
        return rc < 0 ? rc : FM_ENOMEM;
    f->parent = o->parent ? fm_strdup(o->parent) : NULL;
    f->config_dir = o->config_dir ? fm_strdup(o->config_dir) : NULL;
    ch->name = fm_strdup(o->name);
    ch->message = o->message ? fm_strdup(o->message) : NULL;
    ch->teacher = o->teacher ? fm_strdup(o->teacher) : NULL;
    ch->suites = o->suites;
    if (!f->parent == !f->config_dir || !ch->name || !o->message != !ch->message ||
        !o->teacher != !ch->teacher)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < o->data.count; i++)
        rc = fmo_data_add_word(&ch->data, o->data.item[i]);
    if (rc == FM_OK && o->eval)
        rc = fmo_data_eval_word(&ch->data, o->eval);
    for (size_t i = 0; rc == FM_OK && i < o->set.count; i++) {
        char key[64];
        const char *eq = strchr(o->set.item[i], '=');
        if (!eq || (size_t)(eq - o->set.item[i]) >= sizeof key)
            return fm_fail(FM_EINVAL, "--set wants KEY=VALUE, got '%s'", o->set.item[i]);
        memcpy(key, o->set.item[i], (size_t)(eq - o->set.item[i]));
        key[eq - o->set.item[i]] = 0;
        rc = fm_train_config_set(&ch->config, key, eq + 1);
    }
    if (rc == FM_OK && o->skip)
        rc = fmo_child_skip_text(ch, o->skip);
    return rc;
}
