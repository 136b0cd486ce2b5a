/* models.c - the versions in memory, found by version id and by no name.
 *
 * Weights are shared by tensor id inside the engine, so what a resident version costs is mostly
 * what it does not share. A new one is loaded before an old one is closed: its tensors are often
 * the very ones that the old one holds. */
#include "infer/serve/internal.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/mem.h"

static fmi_resident *find(fm_server *s, const char *version)
{
    for (fmi_resident *r = s->resident; r; r = r->next)
        if (strcmp(r->version, version) == 0)
            return r;
    return NULL;
}

static fmi_resident **oldest_idle(fm_server *s)
{
    fmi_resident **best = NULL;
    for (fmi_resident **at = &s->resident; *at; at = &(*at)->next)
        if (atomic_load(&(*at)->pins) == 0 && (!best || (*at)->used < (*best)->used))
            best = at;
    return best;
}

static void close_at(fm_server *s, fmi_resident **at)
{
    fmi_resident *r = *at;
    *at = r->next;
    s->residents--;
    fm_model_close(r->model);
    fm_free(r);
}

static fm_status load(fm_server *s, const char *name, const char *version, fmi_resident **out)
{
    fm_server_catalog *k = &s->opts.catalog;
    fm_tree *tree = NULL;
    fmi_resident *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    memcpy(r->version, version, sizeof(r->version));
    fm_status rc = k->tree(k->ctx, version, &tree);
    if (rc == FM_OK)
        rc = fm_model_load(&r->model, s->engine, tree, &k->provider, name);
    fm_tree_free(tree);
    if (rc < 0) {
        fm_free(r);
        return rc;
    }
    r->next = s->resident;
    s->resident = r;
    s->residents++;
    *out = r;
    return FM_OK;
}

fm_status fmi_models_pin(fm_server *s, const char *name, fmi_resident **out)
{
    char version[65] = "";
    *out = NULL;
    fm_status rc = s->opts.catalog.resolve(s->opts.catalog.ctx, name, version);
    if (rc < 0)
        return rc;
    version[64] = '\0';
    fmi_resident *r = find(s, version);
    if (!r) {
        bool full = s->residents >= s->opts.max_models;
        if (full && !oldest_idle(s))
            return fm_fail(FM_ELIMIT, "all %u resident models are busy; try again", s->residents);
        rc = load(s, name, version, &r);
        if (rc < 0)
            return rc;
    }
    atomic_fetch_add(&r->pins, 1);
    r->used = ++s->use_clock;
    while (s->residents > s->opts.max_models) {
        fmi_resident **victim = oldest_idle(s);
        if (!victim)
            break;
        close_at(s, victim);
    }
    *out = r;
    return FM_OK;
}

void fmi_models_unpin(fmi_resident *r)
{
    if (r)
        atomic_fetch_sub(&r->pins, 1);
}

void fmi_models_close_all(fm_server *s)
{
    while (s->resident)
        close_at(s, &s->resident);
}

/* ==== descriptions ==== */

typedef struct lister {
    fm_json *list;    /* all, or */
    const char *only; /* the first of this name */
    fm_json *found;
} lister;

static fm_json *describe(const char *name, const char *version, int64_t created, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    fmi_put(rc, o, "id", fm_json_new_str(name));
    fmi_put(rc, o, "object", fm_json_new_str("model"));
    fmi_put(rc, o, "created", fm_json_new_int(created));
    fmi_put(rc, o, "owned_by", fm_json_new_str("fmstore"));
    fmi_put(rc, o, "version", fm_json_new_str(version));
    return o;
}

static fm_status each(void *ctx, const char *name, const char *version, int64_t created)
{
    lister *l = ctx;
    fm_status rc = FM_OK;
    if (l->list) {
        fmi_add(&rc, l->list, describe(name, version, created, &rc));
        return rc;
    }
    if (!l->found && strcmp(name, l->only) == 0)
        l->found = describe(name, version, created, &rc);
    return rc;
}

static fm_status describe_one(fm_server *s, const char *name, fm_json **out)
{
    char version[65] = "";
    lister l = {.only = name};
    fm_server_catalog *k = &s->opts.catalog;
    fm_status rc = k->resolve(k->ctx, name, version);
    if (rc == FM_OK)
        rc = k->list(k->ctx, each, &l);
    version[64] = '\0';
    if (rc == FM_OK && !l.found) /* a revision that is no branch or tag: its time is not listed */
        l.found = describe(name, version, 0, &rc);
    if (rc < 0) {
        fm_json_free(l.found);
        return rc;
    }
    *out = l.found;
    return FM_OK;
}

fm_status fmi_models_describe(fm_server *s, const char *name, fm_json **out)
{
    *out = NULL;
    if (name)
        return describe_one(s, name, out);
    fm_json *o = fm_json_new_object(), *data = fm_json_new_array();
    lister l = {.list = data};
    fm_status rc = data ? s->opts.catalog.list(s->opts.catalog.ctx, each, &l) : FM_ENOMEM;
    fmi_put(&rc, o, "object", fm_json_new_str("list"));
    fmi_put(&rc, o, "data", data);
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}
