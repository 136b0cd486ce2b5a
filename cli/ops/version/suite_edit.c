/* suite_edit.c - changes suites on a branch: the commit; waivers added and removed. */
#include "cli/ops/version/suite_edit.h"
#include "cli/ops/base/say.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/yaml.h"

/* ---- an edit as a commit ---- */

fm_status fmo_suite_edit_open(fmo_suite_edit *e, fm_ops *c, const char *branch)
{
    *e = (fmo_suite_edit){.c = c, .branch = branch};
    char *ref = fm_asprintf("refs/heads/%s", branch);
    fm_status rc = ref ? fm_ops_lease(c, true, "suite") : FM_ENOMEM;
    FM_THEN(rc, fm_ref_read(c->repo, &e->old, ref));
    if (rc == FM_ENOTFOUND)
        rc = fm_fail(FM_ENOTFOUND, "'%s' is not a branch; suites are changed on a branch's tip",
                     branch);
    FM_THEN(rc, fm_version_tree(c->repo, &e->before, &e->old));
    FM_THEN(rc, fm_tree_copy(&e->tree, e->before));
    FM_THEN(rc, fm_txn_begin(&e->txn, fm_repo_store(c->repo)));
    fm_free(ref);
    return rc;
}

static bool same_entries(const fm_tree *a, const fm_tree *b)
{
    bool same = fm_tree_count(a) == fm_tree_count(b);
    for (size_t i = 0; same && i < fm_tree_count(a); i++) {
        const fm_entry *x = fm_tree_at(a, i), *y = fm_tree_at(b, i);
        same = strcmp(x->path, y->path) == 0 && fm_digest_eq(&x->id, &y->id);
    }
    return same;
}

fm_status fmo_suite_edit_land(fmo_suite_edit *e, const char *message, bool *same)
{
    fm_suite_set set = {0};
    fm_oid oid;
    fm_status rc = fm_txn_commit(e->txn, NULL);
    *same = rc == FM_OK && same_entries(e->tree, e->before);
    if (rc < 0 || *same)
        return rc;
    rc = fmo_suites_of(e->c, e->tree, &set);
    fm_suite_set_free(&set);
    fm_landing l = {.branch = e->branch, .expect_old = &e->old, .tree = e->tree, .gate = false};
    l.commit =
        (fm_commit_opts){.kind = "edit", .message = message, .parent = &e->old, .parent_count = 1};
    return rc == FM_OK ? fm_ops_land(e->c, &l, &oid) : rc;
}

void fmo_suite_edit_close(fmo_suite_edit *e)
{
    fm_txn_close(e->txn);
    fm_tree_free(e->before);
    fm_tree_free(e->tree);
}

/* ---- SUITE/CASE ---- */

fm_status fmo_suite_case_find(const fm_suite_set *set, const char *word, size_t *suite, size_t *at)
{
    const char *slash = strchr(word, '/');
    size_t len = slash ? (size_t)(slash - word) : 0;
    if (!len)
        return fm_fail(FM_EINVAL, "'%s': want SUITE/CASE", word);
    for (size_t i = 0; i < set->count; i++) {
        const char *name = fm_suite_name(set->suite[i]);
        if (strlen(name) != len || strncmp(name, word, len) != 0)
            continue;
        long found = fm_suite_find(set->suite[i], slash + 1);
        if (found < 0)
            return fm_fail(FM_ENOTFOUND, "suite '%s' has no case '%s'", name, slash + 1);
        *suite = i;
        *at = (size_t)found;
        return FM_OK;
    }
    return fm_fail(FM_ENOTFOUND, "there is no suite '%.*s' here; 'fmstore suite ls' lists them",
                   (int)len, word);
}

/* ---- the file of waivers ---- */

static fm_status read_doc(fmo_suite_edit *e, const char *path, fm_json **out)
{
    const fm_entry *entry = fm_tree_find(e->tree, path);
    fm_buf text;
    *out = NULL;
    if (!entry)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = fm_ops_entry_bytes(e->c, entry, &text);
    FM_THEN(rc, fm_yaml_parse(out, fm_buf_span(&text), path));
    fm_buf_release(&text);
    return rc;
}

static void write_value(fm_buf *out, const fm_json *v, fm_status *rc)
{
    FM_THEN(*rc, fm_json_write(out, v, FM_JSON_COMPACT));
}

/* Writes YAML that git shows line by line: one line for each entry of a list, in JSON, which is
 * YAML too. */
static fm_status write_doc(fmo_suite_edit *e, const char *path, const fm_json *doc)
{
    fm_buf text;
    fm_status rc = FM_OK;
    fm_buf_init(&text, 0);
    for (void *it = fm_json_iter(doc); it; it = fm_json_next(doc, it)) {
        const fm_json *v = fm_json_iter_value(it);
        fm_buf_printf(&text, "%s:", fm_json_iter_key(it));
        if (!fm_json_is(v, FM_JSON_ARRAY)) {
            fm_buf_char(&text, ' ');
            write_value(&text, v, &rc);
        }
        fm_buf_char(&text, '\n');
        for (size_t i = 0; fm_json_is(v, FM_JSON_ARRAY) && i < fm_json_count(v); i++) {
            fm_buf_str(&text, "  - ");
            write_value(&text, fm_json_at(v, i), &rc);
            fm_buf_char(&text, '\n');
        }
    }
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_txn_put_path(e->txn, e->tree, path, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

/* Copies doc without the waiver of that case, and with one more if `more` is not NULL (consumed).
 * *left: number of entries in the copy's lists. *found: doc had such a waiver. */
static fm_status changed_doc(fm_json **out, const fm_json *doc, const char *suite, const char *name,
                             fm_json *more, size_t *left, bool *found)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    const fm_json *old = fm_json_get(doc, "waive");
    *found = false;
    *left = 0;
    fm_json_put(&rc, o, "changes", fm_json_new_str(suite));
    fm_json_put(&rc, o, "topic", fm_json_new_str("waivers"));
    for (void *it = fm_json_iter(doc); rc == FM_OK && it; it = fm_json_next(doc, it)) {
        const fm_json *v = fm_json_iter_value(it);
        if (strcmp(fm_json_iter_key(it), "waive") == 0)
            continue;
        *left += fm_json_is(v, FM_JSON_ARRAY) ? fm_json_count(v) : 0;
        fm_json_put(&rc, o, fm_json_iter_key(it), fm_json_ref(v));
    }
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(old); i++) {
        const fm_json *w = fm_json_at(old, i);
        if (strcmp(fm_json_cstr(fm_json_get(w, "case"), ""), name) == 0)
            *found = true;
        else
            fm_json_push_to(&rc, list, fm_json_ref(w));
    }
    if (more)
        fm_json_push_to(&rc, list, more);
    *left += fm_json_count(list);
    if (fm_json_count(list))
        fm_json_put(&rc, o, "waive", list);
    else
        fm_json_free(list);
    *out = o;
    return rc;
}

static fm_json *waiver_json(const fmo_waive_words *w, const char *name)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "case", fm_json_new_str(name));
    fm_json_put(&rc, o, "reason", fm_json_new_str(w->reason));
    if (w->until)
        fm_json_put(&rc, o, "until", fm_json_new_str(w->until));
    if (w->owner)
        fm_json_put(&rc, o, "owner", fm_json_new_str(w->owner));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* Adds a waiver by the words to the file of waivers (NULL: removes the case's). */
static fm_status edit_waiver(fmo_suite_edit *e, const char *suite, const char *name,
                             const fmo_waive_words *words, bool *found)
{
    fm_json *doc = NULL, *now = NULL, *more = words ? waiver_json(words, name) : NULL;
    size_t left;
    if (words && !more)
        return FM_ENOMEM;
    char *path = fm_asprintf("suites/%s.waivers.yaml", suite);
    fm_status rc = path ? read_doc(e, path, &doc) : FM_ENOMEM;
    if (rc < 0) {
        fm_json_free(more);
        fm_free(path);
        return rc;
    }
    rc = changed_doc(&now, doc, suite, name, more, &left, found);
    if (rc == FM_OK && (words || *found))
        rc = left ? write_doc(e, path, now) : fm_tree_remove(e->tree, path);
    fm_json_free(doc);
    fm_json_free(now);
    fm_free(path);
    return rc;
}

fm_status fmo_suite_waive(fm_ops *c, const fmo_waive_words *w)
{
    fmo_suite_edit e;
    fm_suite_set set = {0};
    size_t s = 0, at = 0;
    bool same = false, found;
    char *message = fm_asprintf("waive %.300s\n\n%s\n", w->which, w->reason);
    fm_status rc = fmo_suite_edit_open(&e, c, w->branch);
    FM_THEN(rc, message ? fmo_suites_of(c, e.before, &set) : FM_ENOMEM);
    FM_THEN(rc, fmo_suite_case_find(&set, w->which, &s, &at));
    if (rc == FM_OK && w->until)
        rc = fmo_waiver_until_check(c, w->until, &e.old);
    FM_THEN(rc, edit_waiver(&e, fm_suite_name(set.suite[s]), fm_suite_case_name(set.suite[s], at),
                            w, &found));
    FM_THEN(rc, fmo_suite_edit_land(&e, message, &same));
    if (rc == FM_OK && same)
        fmo_ui_say(c, FM_UI_RESULT, "%s is waived on %s already, in these words", w->which,
                   w->branch);
    fmo_suite_edit_close(&e);
    fm_suite_set_free(&set);
    fm_free(message);
    return rc;
}

/* Does not parse the suites: a waiver of a case that no longer exists can be removed. */
fm_status fmo_suite_unwaive(fm_ops *c, const char *branch, const char *which)
{
    fmo_suite_edit e;
    bool same, found = false;
    const char *slash = strchr(which, '/');
    if (!slash || slash == which)
        return fm_fail(FM_EINVAL, "'%s': want SUITE/CASE", which);
    char *message = fm_asprintf("unwaive %.300s", which);
    char *suite = fm_asprintf("%.*s", (int)(slash - which), which);
    fm_status rc = fmo_suite_edit_open(&e, c, branch);
    FM_THEN(rc, message && suite ? edit_waiver(&e, suite, slash + 1, NULL, &found) : FM_ENOMEM);
    if (rc == FM_OK && !found)
        rc =
            fm_fail(FM_ENOTFOUND,
                    "suites/%s.waivers.yaml of %s does not waive '%s'; a waiver in another file is "
                    "taken out there, and the file put back with 'fmstore suite add'",
                    suite, branch, slash + 1);
    FM_THEN(rc, fmo_suite_edit_land(&e, message, &same));
    fmo_suite_edit_close(&e);
    fm_free(message);
    fm_free(suite);
    return rc;
}
