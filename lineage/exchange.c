/* exchange.c - the sender of versions, and what both sides ask of a repository before. */
#include "lineage/exchange.h"
#include "lineage/closure.h"
#include "lineage/named.h"
#include "store/base/cancel.h"

#include <stdlib.h>
#include <string.h>

#define HEADS "refs/heads/"
#define TAGS "refs/tags/"

/* ---- refs ---- */

bool fm_exchange_ref_travels(const char *name)
{
    if (!name || fml_ref_name_check(name) < 0) {
        fm_error_clear();
        return false;
    }
    return strncmp(name, HEADS, sizeof HEADS - 1) == 0 ||
           strncmp(name, TAGS, sizeof TAGS - 1) == 0 || strcmp(name, FML_NOTES_REF) == 0 ||
           strcmp(name, FML_RESULTS_REF) == 0;
}

typedef struct listing {
    fm_repo *r;
    fm_exchange_ref_fn fn;
    void *ctx;
} listing;

/* oid is peeled already; the ref may have been moved or deleted since. */
static fm_status list_one(void *ctx, const char *name, const fm_oid *oid)
{
    const listing *l = ctx;
    git_oid id;
    bool exists;
    git_object *obj = NULL;
    fm_oid held, peeled = {{0}};

    (void)oid;
    if (!fm_exchange_ref_travels(name))
        return FM_OK;
    FM_TRY(fml_ref_peek(l->r, &id, &exists, name));
    if (!exists)
        return FM_OK;
    if (!fml_is_commit(l->r, &id)) {
        int code = git_object_lookup(&obj, l->r->git, &id, GIT_OBJECT_TAG);
        git_object *commit = NULL;
        if (code == 0)
            code = git_object_peel(&commit, obj, GIT_OBJECT_COMMIT);
        if (code == 0)
            fml_from_git(&peeled, git_object_id(commit));
        git_object_free(commit);
        git_object_free(obj);
        if (code < 0)
            return fml_damage(code, "ref '%s'", name);
    }
    fml_from_git(&held, &id);
    return l->fn(l->ctx, name, &held, &peeled);
}

fm_status fm_exchange_refs(fm_repo *r, fm_exchange_ref_fn fn, void *ctx)
{
    listing l = {r, fn, ctx};

    if (!fn)
        return fm_fail(FM_EINVAL, "refs: a callback is needed");
    return fm_ref_each(r, "refs/", list_one, &l);
}

bool fm_exchange_has(fm_repo *r, const fm_oid *oid)
{
    const git_oid id = fml_git_oid(oid);

    return r && r->odb && git_odb_exists(r->odb, &id);
}

fm_status fml_peel(fm_repo *r, git_oid *out, const git_oid *id)
{
    git_object *obj = NULL, *commit = NULL;
    char hex[41] = "";
    int code = git_object_lookup(&obj, r->git, id, GIT_OBJECT_ANY);

    git_oid_fmt(hex, id);
    if (code == 0)
        code = git_object_peel(&commit, obj, GIT_OBJECT_COMMIT);
    if (code == 0)
        *out = *git_object_id(commit);
    git_object_free(commit);
    git_object_free(obj);
    if (code == GIT_EPEEL || code == GIT_EINVALIDSPEC || code == GIT_EAMBIGUOUS)
        return fm_fail(FM_EINVAL, "%s is no version", hex);
    return code < 0 ? fml_git_fail(code, "version %s", hex) : FM_OK;
}

fm_status fm_is_ancestor(fm_repo *r, bool *yes, const fm_oid *old, const fm_oid *new_oid)
{
    git_oid from, to;

    *yes = false;
    if (!r || !old || !new_oid)
        return fm_fail(FM_EINVAL, "ancestor: a repository and two versions are needed");
    from = fml_git_oid(old);
    to = fml_git_oid(new_oid);
    FM_TRY(fml_peel(r, &from, &from));
    FM_TRY(fml_peel(r, &to, &to));
    int code = git_oid_equal(&from, &to) ? 1 : git_graph_descendant_of(r->git, &to, &from);
    if (code < 0)
        return fml_git_fail(code, "history");
    *yes = code == 1;
    return FM_OK;
}

fm_status fm_ahead_behind(fm_repo *r, size_t *ahead, size_t *behind, const fm_oid *a,
                          const fm_oid *b)
{
    git_oid ours, theirs;

    if (!r || !a || !b)
        return fm_fail(FM_EINVAL, "ahead, behind: a repository and two versions are needed");
    ours = fml_git_oid(a);
    theirs = fml_git_oid(b);
    FM_TRY(fml_peel(r, &ours, &ours));
    FM_TRY(fml_peel(r, &theirs, &theirs));
    int code = git_graph_ahead_behind(ahead, behind, r->git, &ours, &theirs);
    return code < 0 ? fml_git_fail(code, "history") : FM_OK;
}

/* ---- haves ---- */

typedef struct have {
    fm_oid oid;
    int64_t time;
    size_t seq; /* as met */
    bool tip;
} have;

typedef struct haves {
    fm_repo *r;
    fm_map *tips;
    git_revwalk *walk;
    have *have;
    size_t count, cap;
} haves;

static fm_status add_tip(void *ctx, const char *name, const fm_oid *oid)
{
    haves *h = ctx;
    const git_oid id = fml_git_oid(oid);

    (void)name;
    int code = git_revwalk_push(h->walk, &id);
    if (code < 0)
        return fml_damage(code, "ref '%s'", name);
    return fm_map_put(h->tips, oid->b, sizeof oid->b, h, NULL);
}

static fm_status add_have(haves *h, const git_oid *id, bool tip)
{
    git_commit *c = NULL;
    FM_TRY(fm_grow(&h->have, &h->cap, h->count + 1, sizeof *h->have));
    int code = git_commit_lookup(&c, h->r->git, id);

    if (code < 0)
        return fml_damage(code, "history");
    have *v = &h->have[h->count];
    *v = (have){.time = (int64_t)git_commit_time(c), .seq = h->count, .tip = tip};
    fml_from_git(&v->oid, id);
    h->count++;
    git_commit_free(c);
    return FM_OK;
}

/* Tips first, then the newest. */
static int by_worth(const void *a, const void *b)
{
    const have *x = a, *y = b;

    if (x->tip != y->tip)
        return x->tip ? -1 : 1;
    if (x->time != y->time)
        return x->time > y->time ? -1 : 1;
    return x->seq < y->seq ? -1 : 1;
}

static int by_time(const void *a, const void *b)
{
    const have *x = a, *y = b;

    if (x->time != y->time)
        return x->time > y->time ? -1 : 1;
    return x->seq < y->seq ? -1 : 1;
}

/* The distances between the older ones double. */
static fm_status gather_haves(haves *h)
{
    uint64_t step = 1, since = 0;
    git_oid id;
    fm_status rc = FM_OK;
    int code = git_revwalk_sorting(h->walk, GIT_SORT_TIME);

    while (rc == FM_OK && code == 0 && (code = git_revwalk_next(&id, h->walk)) == 0) {
        const bool tip = fm_map_has(h->tips, id.id, sizeof id.id);
        rc = fm_go_on();
        if (rc == FM_OK && (tip || ++since == step))
            rc = add_have(h, &id, tip);
        if (!tip && since == step) {
            since = 0;
            step *= 2;
        }
    }
    return rc == FM_OK && code != GIT_ITEROVER ? fml_damage(code, "history") : rc;
}

fm_status fm_exchange_haves(fm_repo *r, fm_oid **out, size_t *count, size_t most)
{
    haves h = {.r = r};
    fm_status rc;

    *out = NULL;
    *count = 0;
    if (!r)
        return fm_fail(FM_EINVAL, "haves: no repository");
    rc = fm_map_new(&h.tips);
    if (rc == FM_OK && git_revwalk_new(&h.walk, r->git) < 0)
        rc = fml_git_fail(-1, "history");
    FM_THEN(rc, fm_ref_each(r, "refs/", add_tip, &h));
    FM_THEN(rc, gather_haves(&h));
    if (rc == FM_OK && h.count > 1)
        qsort(h.have, h.count, sizeof *h.have, by_worth);
    h.count = FM_MIN(h.count, most);
    if (rc == FM_OK && h.count > 1)
        qsort(h.have, h.count, sizeof *h.have, by_time);
    *out = rc == FM_OK ? fm_calloc(h.count + 1, sizeof **out) : NULL;
    if (rc == FM_OK && !*out)
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < h.count; i++)
        (*out)[(*count)++] = h.have[i].oid;
    git_revwalk_free(h.walk);
    fm_map_free(h.tips);
    fm_free(h.have);
    return rc;
}

/* ---- whether a want may be given away ---- */

typedef struct reached {
    fm_repo *r;
    fm_map *want; /* id -> itself once a ref was found to reach it */
    size_t left;
    git_revwalk *walk;
} reached;

static fm_status meet_want(reached *x, const git_oid *id)
{
    if (!fm_map_has(x->want, id->id, sizeof id->id) ||
        fm_map_get(x->want, id->id, sizeof id->id) == x)
        return FM_OK;
    x->left--;
    return fm_map_put(x->want, id->id, sizeof id->id, x, NULL);
}

static fm_status meet_ref(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    reached *x = ctx;
    git_oid id = fml_git_oid(oid);
    git_tag *tag = NULL;

    (void)peeled;
    FM_TRY(meet_want(x, &id));
    while (git_tag_lookup(&tag, x->r->git, &id) == 0) {
        id = *git_tag_target_id(tag);
        git_tag_free(tag);
        FM_TRY(meet_want(x, &id));
    }
    int code = git_revwalk_push(x->walk, &id);
    return code < 0 ? fml_damage(code, "ref '%s'", name) : FM_OK;
}

static fm_status name_unreached(const reached *x, const fm_exchange_ask *ask)
{
    char hex[41] = "";

    for (size_t i = 0; i < ask->wants; i++)
        if (fm_map_get(x->want, ask->want[i].b, sizeof ask->want[i].b) != x)
            fm_oid_hex(&ask->want[i], hex);
    return fm_fail(FM_ENOTFOUND,
                   "no branch or tag reaches %s: it may have been deleted; fetch anew", hex);
}

static fm_status check_wants(fm_repo *r, const fm_exchange_ask *ask)
{
    reached x = {.r = r};
    git_oid id;
    int code = 0;
    fm_status rc = fm_map_new(&x.want);

    for (size_t i = 0; rc == FM_OK && i < ask->wants; i++)
        rc = fm_map_put(x.want, ask->want[i].b, sizeof ask->want[i].b, r, NULL);
    x.left = rc == FM_OK ? fm_map_count(x.want) : 0;
    if (rc == FM_OK && git_revwalk_new(&x.walk, r->git) < 0)
        rc = fml_git_fail(-1, "history");
    FM_THEN(rc, fm_exchange_refs(r, meet_ref, &x));
    while (rc == FM_OK && x.left > 0 && (code = git_revwalk_next(&id, x.walk)) == 0) {
        rc = fm_go_on();
        FM_THEN(rc, meet_want(&x, &id));
    }
    if (rc == FM_OK && code < 0 && code != GIT_ITEROVER)
        rc = fml_damage(code, "history");
    if (rc == FM_OK && x.left > 0)
        rc = name_unreached(&x, ask);
    git_revwalk_free(x.walk);
    fm_map_free(x.want);
    return rc;
}

/* ---- send ---- */

typedef struct sending {
    git_packbuilder *pb;
    fm_status (*fn)(void *ctx, const void *data, size_t len);
    void *ctx;
    fm_status rc;
} sending;

static fm_status add_object(void *ctx, const git_oid *id, const char *path)
{
    const sending *s = ctx;
    int code = git_packbuilder_insert(s->pb, id, path);

    if (code < 0) {
        char hex[41] = "";
        git_oid_fmt(hex, id);
        return code == GIT_ENOTFOUND
                   ? fm_fail(FM_ENOTFOUND, "'%s': git object %s is not here", path, hex)
                   : fml_git_fail(code, "'%s': git object %s cannot be sent", path, hex);
    }
    return FM_OK;
}

static int give_bytes(void *data, size_t len, void *ctx)
{
    sending *s = ctx;

    s->rc = fm_go_on();
    FM_THEN(s->rc, s->fn(s->ctx, data, len));
    return s->rc == FM_OK ? 0 : -1;
}

static int look_up(int stage, uint32_t current, uint32_t total, void *ctx)
{
    sending *s = ctx;

    (void)stage;
    (void)current;
    (void)total;
    s->rc = fm_go_on();
    return s->rc == FM_OK ? 0 : -1;
}

static fm_status add_all(fml_closure *c, const fm_oid *oid, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const git_oid id = fml_git_oid(&oid[i]);
        if (!c->known || fm_exchange_has(c->r, &oid[i]))
            FM_TRY(fml_closure_add(c, &id));
    }
    return FM_OK;
}

/* Known is what `have` reaches, whole: the other side may ask for a version that shares a file with
 * one far back. */
static fm_status close_over(fml_closure *c, const fm_exchange_ask *ask)
{
    c->names = true;
    c->known = true;
    FM_TRY(add_all(c, ask->have, ask->haves));
    c->known = false;
    return add_all(c, ask->want, ask->wants);
}

static fm_status write_out(sending *s)
{
    int code = git_packbuilder_set_callbacks(s->pb, look_up, s);

    if (code == 0)
        code = git_packbuilder_foreach(s->pb, give_bytes, s);
    if (s->rc < 0)
        return s->rc;
    return code < 0 ? fml_git_fail(code, "cannot make a git pack") : FM_OK;
}

static fm_status check_ask(const fm_repo *r, const fm_exchange_ask *ask)
{
    if (!r || !ask || (ask->wants > 0 && !ask->want) || (ask->haves > 0 && !ask->have))
        return fm_fail(FM_EINVAL, "exchange: a repository and ids are needed");
    return FM_OK;
}

/* A gc that runs meanwhile keeps what the wants reach. A read-only disk takes no lease, and has no
 * gc either. */
static fm_status hold_wants(fm_repo *r, const fm_exchange_ask *ask)
{
    fm_status rc = fm_store_lease(r->store, false, "an exchange of versions");

    if (rc == FM_ENOMEM)
        return rc;
    if (rc < 0)
        fm_error_clear();
    for (size_t i = 0; i < ask->wants; i++)
        FM_TRY(fms_store_hold(r->store, FMS_HOLD_COMMIT, ask->want[i].b, 1));
    return FM_OK;
}

fm_status fm_git_send(fm_repo *r, const fm_exchange_ask *ask,
                      fm_status (*fn)(void *ctx, const void *data, size_t len), void *ctx,
                      uint64_t *objects)
{
    sending s = {.fn = fn, .ctx = ctx};
    fml_closure c;
    FM_TRY(check_ask(r, ask));
    FM_TRY(fn ? FM_OK : fm_fail(FM_EINVAL, "exchange: a callback is needed"));
    FM_TRY(check_wants(r, ask));
    FM_TRY(hold_wants(r, ask));

    fm_status rc = fml_closure_init(&c, r);
    if (rc == FM_OK && git_packbuilder_new(&s.pb, r->git) < 0)
        rc = fml_git_fail(-1, "cannot make a git pack");
    c.object = add_object;
    c.ctx = &s;
    FM_THEN(rc, close_over(&c, ask));
    fml_closure_release(&c);
    FM_THEN(rc, write_out(&s));
    if (rc == FM_OK && objects)
        *objects = git_packbuilder_object_count(s.pb);
    git_packbuilder_free(s.pb);
    return rc;
}

/* ---- what is named ---- */

typedef struct names {
    git_oid *id;
    size_t count, cap;
} names;

static fm_status add_name(void *ctx, const git_oid *id)
{
    names *n = ctx;
    FM_TRY(fm_grow(&n->id, &n->cap, n->count + 1, sizeof *n->id));
    n->id[n->count++] = *id;
    return FM_OK;
}

static fm_status gather_names(fm_repo *r, const fm_exchange_ask *ask, names *out)
{
    fml_closure c;
    fm_status rc = fml_closure_init(&c, r);

    c.name = add_name;
    c.ctx = out;
    FM_THEN(rc, close_over(&c, ask));
    fml_closure_release(&c);
    return rc;
}

/* A name may be met before the history that holds it, so that is looked at apart. */
static fm_status give_names(fm_repo *r, const fm_exchange_ask *ask, const names *n, fm_oid_fn fn,
                            void *ctx)
{
    fml_closure c;
    fm_oid oid;
    fm_status rc = fml_closure_init(&c, r);

    c.known = true;
    FM_THEN(rc, add_all(&c, ask->have, ask->haves));
    FM_THEN(rc, add_all(&c, ask->want, ask->wants));
    for (size_t i = 0; rc == FM_OK && i < n->count; i++) {
        if (fm_map_has(c.seen, n->id[i].id, sizeof n->id[i].id))
            continue;
        fml_from_git(&oid, &n->id[i]);
        rc = fn(ctx, &oid);
    }
    fml_closure_release(&c);
    return rc;
}

fm_status fm_exchange_named(fm_repo *r, const fm_exchange_ask *ask, fm_oid_fn fn, void *ctx)
{
    names n = {NULL, 0, 0};
    FM_TRY(check_ask(r, ask));
    FM_TRY(fn ? FM_OK : fm_fail(FM_EINVAL, "exchange: a callback is needed"));
    FM_TRY(hold_wants(r, ask));

    fm_status rc = gather_names(r, ask, &n);
    if (rc == FM_OK && n.count)
        rc = give_names(r, ask, &n, fn, ctx);
    fm_free(n.id);
    return rc;
}

/* ---- pointers ---- */

typedef struct pointer {
    fm_digest id;
    uint64_t bytes;
    bool is_tensor, known;
} pointer;

typedef struct pointers {
    fm_repo *r;
    fm_map *at; /* content id -> 1 + its number */
    pointer *pointer;
    size_t count, cap;
    fm_map *folders; /* of known versions, which were read */
} pointers;

static fm_status pointer_of(const char *path, fm_span bytes, pointer *out)
{
    fm_tree *one = NULL;
    fm_status rc = fm_tree_new(&one);

    FM_THEN(rc, fm_tree_put_encoded(one, path, bytes));
    if (rc == FM_OK) {
        const fm_entry *e = fm_tree_at(one, 0);
        *out = (pointer){.id = e->id, .bytes = e->bytes, .is_tensor = e->kind == FM_ENTRY_TENSOR};
    }
    fm_tree_free(one);
    return rc == FM_EINVAL || rc == FM_ELIMIT ? FM_ECORRUPT : rc;
}

static fm_status take_pointer(void *ctx, const char *path, fm_span bytes)
{
    pointers *p = ctx;
    fm_digest id;
    bool is_tensor;

    if (!fml_pointer_of(&id, &is_tensor, bytes) || fm_map_has(p->at, id.b, sizeof id.b))
        return FM_OK;
    FM_TRY(fm_grow(&p->pointer, &p->cap, p->count + 1, sizeof *p->pointer));
    FM_TRY(pointer_of(path, bytes, &p->pointer[p->count]));
    p->count++;
    return fm_map_put(p->at, id.b, sizeof id.b, (void *)(uintptr_t)p->count, NULL);
}

static bool enter_known(void *ctx, const git_oid *tree, const char *path)
{
    pointers *p = ctx;

    (void)path;
    if (fm_map_has(p->folders, tree->id, sizeof tree->id))
        return false;
    return fm_map_put(p->folders, tree->id, sizeof tree->id, p, NULL) == FM_OK;
}

static fm_status mark_known(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    pointers *p = ctx;
    fm_digest digest;
    bool is_tensor;

    (void)path;
    (void)id;
    if (fml_pointer_of(&digest, &is_tensor, bytes)) {
        const size_t at = (uintptr_t)fm_map_get(p->at, digest.b, sizeof digest.b);
        if (at > 0)
            p->pointer[at - 1].known = true;
    }
    return FM_OK;
}

/* A tensor may be the same at another path or in another form of pointer. Only the trees of `have`
 * itself are read for that. */
static fm_status leave_out(pointers *p, const fm_exchange_ask *ask)
{
    const fml_tree_visitor v = {
        .enter = enter_known, .blob = mark_known, .ctx = p, .max_blob_bytes = FM_INLINE_MAX_BYTES};
    for (size_t i = 0; i < ask->haves && p->count > 0; i++) {
        const git_oid id = fml_git_oid(&ask->have[i]);
        git_object *obj = NULL, *tree = NULL;
        fm_status rc = FM_OK;
        if (git_object_lookup(&obj, p->r->git, &id, GIT_OBJECT_ANY) == 0 &&
            git_object_peel(&tree, obj, GIT_OBJECT_TREE) == 0 &&
            enter_known(p, git_object_id(tree), ""))
            rc = fml_tree_walk(p->r, git_object_id(tree), &v);
        git_object_free(tree);
        git_object_free(obj);
        if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
            return rc;
        fm_error_clear(); /* results and notes are no models; their trees have other rules */
    }
    return FM_OK;
}

fm_status fm_exchange_pointers(fm_repo *r, const fm_exchange_ask *ask, fm_pointer_fn fn, void *ctx)
{
    pointers p = {.r = r};
    fml_closure c;
    FM_TRY(check_ask(r, ask));
    FM_TRY(fn ? FM_OK : fm_fail(FM_EINVAL, "exchange: a callback is needed"));

    fm_status rc = fm_map_new(&p.at);
    FM_THEN(rc, fm_map_new(&p.folders));
    fm_status made = fml_closure_init(&c, r);
    FM_THEN(rc, made);
    c.file = take_pointer;
    c.ctx = &p;
    FM_THEN(rc, close_over(&c, ask));
    fml_closure_release(&c);
    FM_THEN(rc, leave_out(&p, ask));
    for (size_t i = 0; rc == FM_OK && i < p.count; i++)
        if (!p.pointer[i].known)
            rc = fn(ctx, &p.pointer[i].id, p.pointer[i].is_tensor, p.pointer[i].bytes);
    fm_free(p.pointer);
    fm_map_free(p.at);
    fm_map_free(p.folders);
    return rc;
}
