/* suite_files.c - makes suites of the files under suites/. */
#include "cli/ops/version/suite_files.h"
#include "cli/ops/base/say.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/os/io.h"
#include "store/base/mem.h"

#define FOLDER "suites/"
#define SUITE_MAX_BYTES ((size_t)16 << 20)

/* ---- files ---- */

void fmo_suite_files_release(fmo_suite_files *f)
{
    for (size_t i = 0; i < f->count; i++) {
        fm_free(f->file[i].path);
        fm_buf_release(&f->file[i].text);
    }
    fm_free(f->file);
    *f = (fmo_suite_files){0};
}

/* Finds the file at that path, or adds an empty one. */
static fm_status place(fmo_suite_files *f, const char *path, fmo_suite_file **out)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->file[i].path, path) == 0) {
            *out = &f->file[i];
            return FM_OK;
        }
    fm_status rc = fm_grow(&f->file, &f->cap, f->count + 1, sizeof *f->file);
    char *copy = rc == FM_OK ? fm_strdup(path) : NULL;
    if (!copy)
        return FM_ENOMEM;
    *out = &f->file[f->count++];
    (*out)->path = copy;
    fm_buf_init(&(*out)->text, SUITE_MAX_BYTES);
    return FM_OK;
}

fm_status fmo_suite_files_of(fm_ops *c, const fm_tree *tree, fmo_suite_files *out)
{
    size_t begin = 0, end = 0;
    fmo_suite_file *to = NULL;
    fm_status rc = FM_OK;
    *out = (fmo_suite_files){0};
    if (tree)
        fm_tree_range(tree, FOLDER, &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        rc = place(out, fm_tree_at(tree, i)->path, &to);
        FM_THEN(rc, fm_ops_entry_bytes(c, fm_tree_at(tree, i), &to->text));
    }
    if (rc < 0)
        fmo_suite_files_release(out);
    return rc;
}

/* Reads a user's file; *where: its path in the tree, owned. */
static fm_status read_file(fm_buf *text, char **where, const char *path)
{
    char *suite = NULL, *topic = NULL;
    *where = NULL;
    fm_buf_init(text, SUITE_MAX_BYTES);
    fm_status rc = fm_read_file(text, path, SUITE_MAX_BYTES);
    FM_THEN(rc, fm_suite_doc_kind(&suite, &topic, fm_buf_span(text), path));
    if (rc == FM_OK) {
        *where = fm_asprintf(FOLDER "%s%s%s.yaml", suite, topic ? "." : "", topic ? topic : "");
        rc = *where ? FM_OK : FM_ENOMEM;
    }
    fm_free(suite);
    fm_free(topic);
    return rc;
}

fm_status fmo_suite_files_put(fmo_suite_files *f, const char *path)
{
    fm_buf text;
    char *where;
    fmo_suite_file *to = NULL;
    fm_status rc = read_file(&text, &where, path);
    FM_THEN(rc, place(f, where, &to));
    if (rc == FM_OK) {
        fm_buf_clear(&to->text);
        fm_buf_append(&to->text, text.data, text.len);
        rc = fm_buf_ok(&to->text);
    }
    fm_free(where);
    fm_buf_release(&text);
    return rc;
}

fm_status fmo_suite_files_check(const fm_words *files)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < files->count; i++) {
        fm_buf text;
        char *where;
        rc = read_file(&text, &where, files->item[i]);
        fm_free(where);
        fm_buf_release(&text);
    }
    return rc;
}

fm_status fmo_suite_files_check_with(fm_ops *c, const fm_tree *tree, const fm_words *files)
{
    fmo_suite_files f;
    fm_suite_set set = {0};
    fm_status rc = fmo_suite_files_of(c, tree, &f);
    for (size_t i = 0; rc == FM_OK && i < files->count; i++)
        rc = fmo_suite_files_put(&f, files->item[i]);
    FM_THEN(rc, fmo_suite_files_parse(&f, &set));
    fm_suite_set_free(&set);
    fmo_suite_files_release(&f);
    return rc;
}

fm_status fm_ops_add_suite(fm_txn *txn, fm_tree *tree, const char *path)
{
    fm_buf text;
    char *where;
    fm_status rc = read_file(&text, &where, path);
    FM_THEN(rc, fm_txn_put_path(txn, tree, where, fm_buf_span(&text)));
    fm_free(where);
    fm_buf_release(&text);
    return rc;
}

/* ---- suites ---- */

void fm_suite_set_free(fm_suite_set *s)
{
    for (size_t i = 0; i < s->count; i++)
        fm_suite_free(s->suite[i]);
    fm_free(s->suite);
    s->suite = NULL;
    s->count = 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp((*(fmo_suite_file *const *)a)->path, (*(fmo_suite_file *const *)b)->path);
}

/* The offset in "suites/<suite>.<topic>.yaml" at which the suite's name ends; 0: the file is a
 * suite itself. A suite's name has no dot. */
static size_t topic_at(const char *path)
{
    const char *dot = strchr(path, '.'), *last = strrchr(path, '.');
    return dot && dot != last ? (size_t)(dot - path) : 0;
}

static bool changes(const fmo_suite_file *change, const fmo_suite_file *suite)
{
    size_t n = topic_at(change->path);
    return n && strncmp(change->path, suite->path, n) == 0 && strcmp(suite->path + n, ".yaml") == 0;
}

/* Parses the suite sorted[at] with its changes, by topic. */
static fm_status parse_one(fm_suite **out, fmo_suite_file *const *sorted, size_t n, size_t at)
{
    fm_suite_doc *doc = fm_calloc(n, sizeof *doc);
    size_t docs = 1;
    if (!doc)
        return FM_ENOMEM;
    doc[0] = (fm_suite_doc){fm_buf_span(&sorted[at]->text), sorted[at]->path};
    for (size_t i = 0; i < n; i++)
        if (changes(sorted[i], sorted[at]))
            doc[docs++] = (fm_suite_doc){fm_buf_span(&sorted[i]->text), sorted[i]->path};
    fm_status rc = fm_suite_parse_changed(out, doc, docs);
    fm_free(doc);
    return rc;
}

static fm_status check_has_suite(fmo_suite_file *const *sorted, size_t n, size_t at)
{
    for (size_t i = 0; i < n; i++)
        if (changes(sorted[at], sorted[i]))
            return FM_OK;
    return fm_fail(FM_EINVAL, "%s changes a suite that is not there: %.*s.yaml is missing",
                   sorted[at]->path, (int)topic_at(sorted[at]->path), sorted[at]->path);
}

fm_status fmo_suite_files_parse(const fmo_suite_files *f, fm_suite_set *out)
{
    fmo_suite_file **sorted = fm_calloc(f->count, sizeof *sorted);
    *out = (fm_suite_set){.suite = fm_calloc(f->count, sizeof *out->suite)};
    fm_status rc = sorted && out->suite ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        sorted[i] = &f->file[i];
    if (rc == FM_OK)
        qsort(sorted, f->count, sizeof(fmo_suite_file *), by_path);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++) {
        if (topic_at(sorted[i]->path)) {
            rc = check_has_suite(sorted, f->count, i);
            continue;
        }
        rc = parse_one(&out->suite[out->count], sorted, f->count, i);
        if (rc == FM_OK)
            out->count++;
    }
    fm_free(sorted);
    if (rc < 0)
        fm_suite_set_free(out);
    return rc;
}

/* ---- waivers' ends ---- */

static bool is_date(const char *s)
{
    static const char form[] = "dddd-dd-dd";
    for (size_t i = 0; i < sizeof form; i++)
        if (form[i] == 'd' ? s[i] < '0' || s[i] > '9' : s[i] != form[i])
            return false;
    return true;
}

/* SOURCE_DATE_EPOCH or the clock, as for commits. */
static int64_t today(void)
{
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    return fixed && *fixed ? strtoll(fixed, NULL, 10) : (int64_t)time(NULL);
}

/* A waiver is in force to the end of its day, in UTC. */
static fm_status day_is_over(const char *until, bool *over)
{
    int64_t day = 0, now = today();
    fm_status rc = fm_time_parse(&day, until, now);
    *over = rc == FM_OK && now >= day + 86400;
    return rc;
}

static fm_status version_has(fm_ops *c, const char *rev, const fm_oid *at, bool *has)
{
    fm_oid oid, base;
    *has = false;
    fm_status rc = fm_rev_resolve(c->repo, &oid, rev);
    FM_THEN(rc, fm_merge_base(c->repo, &base, &oid, at));
    if (rc == FM_OK)
        *has = fm_oid_eq(&base, &oid);
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_clear(); /* a future release, or one of another family */
    return FM_OK;
}

fm_status fmo_waiver_until_check(fm_ops *c, const char *until, const fm_oid *at)
{
    bool over = false;
    FM_TRY(is_date(until) ? day_is_over(until, &over) : version_has(c, until, at, &over));
    if (over)
        return fm_fail(FM_EINVAL, "a waiver until '%s' would be over already: %s", until,
                       is_date(until) ? "that day has passed"
                                      : "the branch comes from that version");
    return FM_OK;
}

/* at NULL: ends waivers until a day; else those until a revision. */
static fm_status end_waivers(fm_ops *c, const fm_suite_set *s, const fm_oid *at)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; rc == FM_OK && k < fm_suite_count(s->suite[i]); k++) {
            const fm_waiver *w = fm_suite_waiver(s->suite[i], k);
            bool over = false;
            if (!w || !w->until || w->over || is_date(w->until) != !at)
                continue;
            rc = at ? version_has(c, w->until, at, &over) : day_is_over(w->until, &over);
            if (rc < 0)
                rc = fm_error_prefix(rc, "suite '%s', case '%s': waived until '%s'",
                                     fm_suite_name(s->suite[i]), fm_suite_case_name(s->suite[i], k),
                                     w->until);
            if (rc == FM_OK && over)
                fm_suite_waiver_end(s->suite[i], k);
        }
    return rc;
}

fm_status fmo_suites_of(fm_ops *c, const fm_tree *tree, fm_suite_set *out)
{
    fmo_suite_files f;
    *out = (fm_suite_set){0};
    fm_status rc = fmo_suite_files_of(c, tree, &f);
    FM_THEN(rc, fmo_suite_files_parse(&f, out));
    FM_THEN(rc, end_waivers(c, out, NULL));
    fmo_suite_files_release(&f);
    if (rc < 0)
        fm_suite_set_free(out);
    return rc;
}

fm_status fmo_suites_end_waivers(fm_ops *c, const fm_suite_set *s, const fm_oid *at)
{
    return end_waivers(c, s, at);
}

fm_status fm_ops_suites(fm_ops *c, const fm_oid *at, const fm_tree *tree, fm_suite_set *out)
{
    fm_tree *own = NULL;
    *out = (fm_suite_set){0};
    fm_status rc = tree ? FM_OK : fm_version_tree(c->repo, &own, at);
    FM_THEN(rc, fmo_suites_of(c, tree ? tree : own, out));
    FM_THEN(rc, fmo_suites_end_waivers(c, out, at));
    if (rc < 0)
        fm_suite_set_free(out);
    fm_tree_free(own);
    return rc;
}

/* ---- merges ---- */

static bool same_entry(const fm_entry *a, const fm_entry *b)
{
    return a == b || (a && b && fm_digest_eq(&a->id, &b->id));
}

typedef struct suite_merge {
    fm_ops *c;
    fm_tree *dst;
    const fm_tree *theirs, *base; /* base NULL: no common ancestor */
    bool first_wins;
} suite_merge;

static fm_status merge_path(suite_merge *m, const char *path)
{
    const fm_entry *ours = fm_tree_find(m->dst, path), *theirs = fm_tree_find(m->theirs, path);
    const fm_entry *base = m->base ? fm_tree_find(m->base, path) : NULL;
    if (same_entry(ours, theirs) || same_entry(theirs, base))
        return FM_OK;
    if (same_entry(ours, base))
        return theirs ? fm_tree_put_entry(m->dst, theirs) : fm_tree_remove(m->dst, path);
    if (!m->first_wins)
        return fm_fail(FM_ECONFLICT,
                       "%s differs between the parents of this merge; make one of it with 'fmstore "
                       "suite add' on one of the branches, or let the first parent's stand",
                       path);
    fmo_ui_say(m->c, FM_UI_NOTE,
               "  note: %s differs between the parents: the first parent's stands", path);
    return FM_OK;
}

static fm_status merge_all(suite_merge *m, const fm_tree *of)
{
    size_t begin = 0, end = 0;

    if (of)
        fm_tree_range(of, FOLDER, &begin, &end);
    for (size_t i = begin; i < end; i++)
        FM_TRY(merge_path(m, fm_tree_at(of, i)->path));
    return FM_OK;
}

fm_status fmo_tree_merge_suites(fm_ops *c, fm_tree *dst, const fm_oid *parent, size_t parents,
                                bool first_wins)
{
    fm_tree *first = NULL;
    fm_status rc = parents ? fm_version_tree(c->repo, &first, &parent[0]) : FM_OK;
    suite_merge m = {.c = c, .dst = dst, .theirs = first, .first_wins = true};
    FM_THEN(rc, merge_all(&m, first));
    fm_tree_free(first);
    for (size_t i = 1; rc == FM_OK && i < parents; i++) {
        fm_oid at;
        fm_tree *theirs = NULL, *base = NULL;
        rc = fm_merge_base(c->repo, &at, &parent[0], &parent[i]);
        FM_THEN(rc, fm_version_tree(c->repo, &base, &at));
        if (rc == FM_ENOTFOUND) {
            fm_error_clear();
            rc = FM_OK;
        }
        FM_THEN(rc, fm_version_tree(c->repo, &theirs, &parent[i]));
        m = (suite_merge){c, dst, theirs, base, first_wins};
        FM_THEN(rc, merge_all(&m, theirs));
        if (rc == FM_OK) /* files that the other parent removed */
            rc = merge_all(&m, base);
        fm_tree_free(theirs);
        fm_tree_free(base);
    }
    fm_suite_set check = {0};
    FM_THEN(rc, fmo_suites_of(c, dst, &check)); /* fails on a waiver of a case that is gone */
    fm_suite_set_free(&check);
    return rc;
}
