/* family.c - the family file: children of one parent, as YAML.
 *
 *   parent: base
 *   method: lora                    # for all children unless they say otherwise
 *   set: {r: 8, lr: 0.001}          # likewise, merged key by key
 *   children:
 *     - as: guide
 *       data: guide.jsonl
 *       set: {steps: 60}
 *       skip: [3, 17]
 *       suites: [guide.yaml]
 *       message: learn the guide's tone */
#include <stdlib.h>
#include <string.h>

#include "cli/derive.h"
#include "store/base/io.h"
#include "store/base/mem.h"
#include "store/base/yaml.h"

static const struct {
    const char *word;
    fm_method method;
} methods[] = {
    {"lora", FM_METHOD_LORA}, {"full", FM_METHOD_FULL}, {"pretrain", FM_METHOD_PRETRAIN}};

fm_status method_parse(fm_method *out, const char *word)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (strcmp(word, methods[i].word) == 0) {
            *out = methods[i].method;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "method '%s' is not known (lora, full, pretrain)", word);
}

const char *method_name(fm_method method)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (methods[i].method == method)
            return methods[i].word;
    return "?";
}

child *family_add(family *f, fm_method method)
{
    if (fm_grow(&f->child, &f->cap, f->count + 1, sizeof *f->child) < 0)
        return NULL;
    child *ch = &f->child[f->count++];
    memset(ch, 0, sizeof *ch);
    ch->config = fm_train_defaults(method);
    return ch;
}

static fm_status add_skip(child *ch, int64_t n)
{
    if (n < 0 || n > UINT32_MAX)
        return fm_fail(FM_EINVAL, "skip: %lld is no record number", (long long)n);
    if (ch->skip_count == CHILD_SKIP_MAX)
        return fm_fail(FM_ELIMIT, "skip: more than %d records", CHILD_SKIP_MAX);
    fm_status rc = fm_grow(&ch->skip, &ch->skip_cap, ch->skip_count + 1, sizeof *ch->skip);
    if (rc == FM_OK)
        ch->skip[ch->skip_count++] = (uint32_t)n;
    return rc;
}

fm_status child_skip_text(child *ch, const char *numbers)
{
    const char *p = numbers;
    fm_status rc = FM_OK;
    while (rc == FM_OK && *p) {
        char *end;
        long long n = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ','))
            return fm_fail(FM_EINVAL, "--skip wants record numbers like 3,17,29, got '%s'",
                           numbers);
        rc = add_skip(ch, n);
        p = *end ? end + 1 : end;
    }
    return rc;
}

static fm_status known_keys(const fm_json *obj, const char *const *known, const char *where)
{
    if (!fm_json_is(obj, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: want 'key: value' lines here", where);
    return fm_json_known_keys(obj, known, where);
}

/* Absent is fine; another type would be left out in silence. */
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

static fm_status apply_settings(child *ch, const fm_json *set, const char *where)
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
        if (rc == FM_OK)
            rc = fm_train_config_set(&ch->config, fm_json_iter_key(it), fm_buf_cstr(&text));
        fm_buf_release(&text);
        if (rc < 0)
            return fm_error_prefix(rc, "%s", where);
    }
    return FM_OK;
}

/* A path of the file, meant from the file's own folder. */
static char *beside(const char *family_path, const char *path)
{
    const char *base = fm_path_base(family_path);
    if (path[0] == '/' || base == family_path)
        return fm_strdup(path);
    return fm_asprintf("%.*s%s", (int)(base - family_path), family_path, path);
}

static fm_status check_child_keys(const fm_json *v, const char *where)
{
    static const char *const known[] = {"as",   "method", "data",    "set",
                                        "skip", "suites", "message", NULL};
    static const char *const texts[] = {"as", "method", "data", "message"};
    fm_status rc = known_keys(v, known, where);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(texts); i++)
        rc = want_type(v, texts[i], FM_JSON_STRING, where);
    if (rc == FM_OK)
        rc = want_type(v, "set", FM_JSON_OBJECT, where);
    if (rc == FM_OK)
        rc = want_type(v, "skip", FM_JSON_ARRAY, where);
    if (rc == FM_OK)
        rc = want_type(v, "suites", FM_JSON_ARRAY, where);
    if (rc == FM_OK && (!fm_json_get(v, "as") || !fm_json_get(v, "data")))
        rc =
            fm_fail(FM_EINVAL, "%s: 'as' (a branch name) and 'data' (a file) must be there", where);
    return rc;
}

static fm_status read_lists(child *ch, const fm_json *v, const char *path, const char *where)
{
    fm_status rc = FM_OK;
    const fm_json *skip = fm_json_get(v, "skip"), *suites = fm_json_get(v, "suites");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(skip); i++)
        rc = add_skip(ch, fm_json_int(fm_json_at(skip, i), -1));
    if (rc < 0)
        return fm_error_prefix(rc, "%s", where);
    if (fm_json_count(suites) > OPT_LIST_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %d suites", where, OPT_LIST_MAX);
    for (size_t i = 0; i < fm_json_count(suites); i++) {
        const char *name = fm_json_cstr(fm_json_at(suites, i), NULL);
        if (!name)
            return fm_fail(FM_EINVAL, "%s: 'suites' must list files", where);
        char *suite = beside(path, name);
        if (!suite)
            return FM_ENOMEM;
        ch->suites.item[ch->suites.count++] = suite;
    }
    return FM_OK;
}

static fm_status read_child(family *f, const fm_json *v, const char *path, size_t number)
{
    char where[600];
    fm_method method = FM_METHOD_LORA;
    snprintf(where, sizeof where, "%.400s: child %zu", path, number + 1);
    fm_status rc = check_child_keys(v, where);
    if (rc < 0)
        return rc;
    const char *message = fm_json_cstr(fm_json_get(v, "message"), NULL);
    const char *word =
        fm_json_cstr(fm_json_get(v, "method"), fm_json_cstr(fm_json_get(f->doc, "method"),
                                                            f->config_dir ? "pretrain" : "lora"));
    rc = method_parse(&method, word);
    if (rc < 0)
        return fm_error_prefix(rc, "%s", where);
    child *ch = family_add(f, method);
    if (!ch)
        return FM_ENOMEM;
    ch->name = fm_strdup(fm_json_cstr(fm_json_get(v, "as"), ""));
    ch->data_path = beside(path, fm_json_cstr(fm_json_get(v, "data"), ""));
    ch->message = message ? fm_strdup(message) : NULL;
    if (!ch->name || !ch->data_path || (message && !ch->message))
        return FM_ENOMEM;
    rc = apply_settings(ch, fm_json_get(f->doc, "set"), where);
    if (rc == FM_OK)
        rc = apply_settings(ch, fm_json_get(v, "set"), where);
    return rc == FM_OK ? read_lists(ch, v, path, where) : rc;
}

#define FAMILY_MAX_BYTES ((size_t)4 << 20)

fm_status family_read(family *f, const char *path)
{
    static const char *const known[] = {"parent", "method", "set", "children", "config", NULL};
    fm_buf text;
    fm_buf_init(&text, FAMILY_MAX_BYTES);
    fm_status rc = fm_read_file(&text, path, FAMILY_MAX_BYTES);
    if (rc == FM_OK)
        rc = fm_yaml_parse(&f->doc, fm_buf_span(&text), path);
    fm_buf_release(&text);
    if (rc == FM_OK)
        rc = known_keys(f->doc, known, path);
    if (rc == FM_OK)
        rc = want_type(f->doc, "set", FM_JSON_OBJECT, path);
    if (rc == FM_OK)
        rc = want_type(f->doc, "children", FM_JSON_ARRAY, path);
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
    f->config_dir = config ? beside(path, config) : NULL;
    if (!f->parent == !f->config_dir)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(children); i++)
        rc = read_child(f, fm_json_at(children, i), path, i);
    return rc;
}

void family_release(family *f)
{
    for (size_t i = 0; i < f->count; i++) {
        child *ch = &f->child[i];
        fm_free(ch->name);
        fm_free(ch->data_path);
        fm_free(ch->message);
        fm_free(ch->skip);
        for (size_t k = 0; f->doc && k < ch->suites.count; k++)
            fm_free((void *)(uintptr_t)ch->suites.item[k]); /* family files own theirs */
    }
    fm_free(f->child);
    fm_free(f->parent);
    fm_free(f->config_dir);
    fm_json_free(f->doc);
}
