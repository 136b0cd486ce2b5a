/* suite_origin.c - finds the versions that added, changed and waived each case of a suite.
 *
 * Three facts about a case are followed back through history one by one: its presence, its content
 * (a digest), and its waiver. While a parent has the same, the search goes on in that parent; the
 * version without such a parent introduced the fact. */
#include <string.h>

#include "cli/ops/version/suite_edit.h"
#include "store/base/map.h"
#include "store/base/mem.h"

/* The suite as one version has it. */
typedef struct stage {
    fm_version version;
    fm_digest files; /* of the suite's files: equal digests are equal suites */
    fm_suite *suite; /* NULL: the version has no suite of that name */
    fm_map *place;   /* case name -> pointer to the case's index, in `at` */
    size_t *at;      /* [count] 0, 1, 2 ...: the indices */
    bool shares;     /* suite, place and at belong to another stage with equal files */
} stage;

struct fmo_suite_origins {
    fm_ops *c;
    const char *name;
    stage **stage; /* each allocated alone: pointers to them stay valid */
    size_t count, cap;
    fm_map *by_oid;
};

void fmo_suite_origins_close(fmo_suite_origins *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->count; i++) {
        stage *s = h->stage[i];
        if (!s->shares) {
            fm_suite_free(s->suite);
            fm_map_free(s->place);
            fm_free(s->at);
        }
        fm_version_release(&s->version);
        fm_free(s);
    }
    fm_free(h->stage);
    fm_map_free(h->by_oid);
    fm_free(h);
}

static fm_status digest_files(const fmo_suite_files *f, fm_digest *out)
{
    fm_buf all;
    fm_buf_init(&all, 0);
    for (size_t i = 0; i < f->count; i++) {
        fm_buf_append(&all, f->file[i].path, strlen(f->file[i].path) + 1);
        fm_buf_u64(&all, f->file[i].text.len);
        fm_buf_append(&all, f->file[i].text.data, f->file[i].text.len);
    }
    fm_status rc = fm_buf_ok(&all);
    FM_THEN(rc, fm_sha256(out, all.data, all.len));
    fm_buf_release(&all);
    return rc;
}

/* Reads only the files of this suite. */
static fm_status read_files(fmo_suite_origins *h, const fm_oid *oid, fmo_suite_files *out)
{
    fm_tree *tree = NULL, *own = NULL;
    size_t begin = 0, end = 0, n = strlen(h->name);
    *out = (fmo_suite_files){0};
    fm_status rc = fm_version_tree(h->c->repo, &tree, oid);
    FM_THEN(rc, fm_tree_new(&own));
    if (rc == FM_OK)
        fm_tree_range(tree, "suites/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        const char *base = e->path + strlen("suites/");
        if (strncmp(base, h->name, n) == 0 && base[n] == '.')
            rc = fm_tree_put_entry(own, e);
    }
    FM_THEN(rc, fmo_suite_files_of(h->c, own, out));
    fm_tree_free(own);
    fm_tree_free(tree);
    return rc;
}

static fm_status index_cases(stage *s)
{
    size_t n = s->suite ? fm_suite_count(s->suite) : 0;
    s->at = fm_calloc(n, sizeof *s->at);
    FM_TRY(s->at ? fm_map_new(&s->place) : FM_ENOMEM);
    for (size_t i = 0; i < n; i++) {
        const char *name = fm_suite_case_name(s->suite, i);
        s->at[i] = i;
        FM_TRY(fm_map_put(s->place, name, strlen(name), &s->at[i], NULL));
    }
    return FM_OK;
}

static fm_status fill_stage(fmo_suite_origins *h, stage *s, const fmo_suite_files *files)
{
    fm_suite_set set = {0};
    for (size_t i = 0; i < h->count; i++)
        if (h->stage[i] != s && !h->stage[i]->shares &&
            fm_digest_eq(&h->stage[i]->files, &s->files)) {
            s->suite = h->stage[i]->suite;
            s->place = h->stage[i]->place;
            s->at = h->stage[i]->at;
            s->shares = true;
            return FM_OK;
        }
    fm_status rc = fmo_suite_files_parse(files, &set);
    if (rc == FM_OK && set.count) {
        s->suite = set.suite[0];
        set.count = 0;
    }
    fm_suite_set_free(&set);
    return rc == FM_OK ? index_cases(s) : rc;
}

static fm_status stage_of(fmo_suite_origins *h, const fm_oid *oid, const stage **out)
{
    fmo_suite_files files = {0};
    stage *s = fm_map_get(h->by_oid, oid->b, sizeof oid->b);
    *out = s;
    if (s)
        return FM_OK;
    FM_TRY(fm_grow(&h->stage, &h->cap, h->count + 1, sizeof(stage *)));
    FM_TRY((s = fm_calloc(1, sizeof *s)) ? FM_OK : FM_ENOMEM);
    h->stage[h->count++] = s;
    fm_status rc = fm_version_read(h->c->repo, &s->version, oid);
    FM_THEN(rc, read_files(h, oid, &files));
    FM_THEN(rc, digest_files(&files, &s->files));
    FM_THEN(rc, fill_stage(h, s, &files));
    FM_THEN(rc, fm_map_put(h->by_oid, oid->b, sizeof oid->b, s, NULL));
    fmo_suite_files_release(&files);
    *out = s;
    return rc;
}

/* ---- origins ---- */

typedef enum trait { IS_THERE, SAYS, IS_WAIVED } trait;

static bool text_eq(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_trait(trait t, const stage *a, const stage *b, const char *name)
{
    const size_t *i = fm_map_get(a->place, name, strlen(name));
    const size_t *k = fm_map_get(b->place, name, strlen(name));
    if (!i || !k)
        return i == k;
    if (a->suite == b->suite || t == IS_THERE)
        return true;
    if (t == SAYS) {
        fm_digest x = fm_suite_case_digest(a->suite, *i), y = fm_suite_case_digest(b->suite, *k);
        return fm_digest_eq(&x, &y);
    }
    const fm_waiver *x = fm_suite_waiver(a->suite, *i), *y = fm_suite_waiver(b->suite, *k);
    if (!x || !y)
        return x == y;
    return text_eq(x->reason, y->reason) && text_eq(x->until, y->until) &&
           text_eq(x->owner, y->owner);
}

static fm_status trace(fmo_suite_origins *h, trait t, const stage *from, const char *name,
                       const stage **out)
{
    fm_status rc = FM_OK;
    for (bool more = true; rc == FM_OK && more;) {
        more = false;
        for (uint32_t p = 0; rc == FM_OK && !more && p < from->version.parent_count; p++) {
            const stage *up;
            rc = stage_of(h, &from->version.parent[p], &up);
            if (rc == FM_OK && same_trait(t, from, up, name)) {
                from = up;
                more = true;
            }
        }
    }
    *out = from;
    return rc;
}

fm_status fmo_suite_origin_of(fmo_suite_origins *h, size_t i, fmo_suite_origin *out)
{
    const stage *top = h->stage[0], *added = NULL, *changed = NULL, *waived = NULL;
    const char *name = fm_suite_case_name(top->suite, i);
    *out = (fmo_suite_origin){.name = name, .waiver = fm_suite_waiver(top->suite, i)};
    FM_TRY(trace(h, IS_THERE, top, name, &added));
    FM_TRY(trace(h, SAYS, top, name, &changed));
    if (out->waiver)
        FM_TRY(trace(h, IS_WAIVED, top, name, &waived));
    out->added = &added->version;
    out->changed = changed == added ? NULL : &changed->version;
    out->waived = waived ? &waived->version : NULL;
    return FM_OK;
}

const fm_suite *fmo_suite_origins_suite(const fmo_suite_origins *h)
{
    return h->stage[0]->suite;
}

fm_status fmo_suite_origins_open(fmo_suite_origins **out, fm_ops *c, const char *rev,
                                 const char *suite)
{
    fmo_suite_origins *h = fm_calloc(1, sizeof *h);
    const stage *top = NULL;
    fm_oid oid;
    *out = h;
    if (!h)
        return FM_ENOMEM;
    *h = (fmo_suite_origins){.c = c, .name = suite};
    FM_TRY(fm_ops_resolve(c, rev, &oid, NULL));
    FM_TRY(fm_map_new(&h->by_oid));
    FM_TRY(stage_of(h, &oid, &top));
    if (!top->suite)
        return fm_fail(FM_ENOTFOUND, "%s has no suite '%s'; 'fmstore suite ls %s' lists them", rev,
                       suite, rev);
    const fm_suite_set one = {&h->stage[0]->suite, 1};
    FM_TRY(fmo_suites_end_waivers(c, &one, NULL));

    return fmo_suites_end_waivers(c, &one, &oid);
}
