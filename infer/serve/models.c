/* models.c - the versions in memory, found by version id, never by name.
 *
 * Weights are shared by tensor id inside the engine, so a resident version mostly costs the weights
 * that it does not share. A new version is loaded before an old one is closed, since the old one
 * often holds the same tensors. Only where the budget for weights refuses, an idle version is
 * closed first; the weights read by then stay in the cache, so the second try goes on there. */
#include "infer/serve/prepare.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/mem.h"

#define PARK_SECONDS 1.0 /* wait for other models to end before 503 */

/* ==== the list ==== */

static fmi_resident *find(fm_server *s, const char *version)
{
    for (fmi_resident *r = s->resident; r; r = r->next)
        if (strcmp(r->version, version) == 0)
            return r;
    return NULL;
}

static bool idle(const fmi_resident *r)
{
    return r->ready && r->kept == 0 && atomic_load(&r->pins) == 0;
}

static void remove_one(fm_server *s, fmi_resident *r)
{
    fmi_resident **at = &s->resident;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    s->residents--;
    s->loading -= !r->ready;
    fm_model_close(r->model);
    fm_free(r->name);
    fm_free(r);
}

static bool close_oldest(fm_server *s)
{
    fmi_resident *best = NULL;
    for (fmi_resident *r = s->resident; r; r = r->next)
        if (idle(r) && (!best || r->used < best->used))
            best = r;
    if (best)
        remove_one(s, best);
    return best != NULL;
}

static bool any_idle(const fm_server *s)
{
    const fmi_resident *r = s->resident;
    while (r && !idle(r))
        r = r->next;
    return r != NULL;
}

/* Whether requests hold a model: they will give its memory back. */
static bool any_busy(const fm_server *s)
{
    const fmi_resident *r = s->resident;
    while (r && (!r->ready || atomic_load(&r->pins) == 0))
        r = r->next;
    return r != NULL;
}

static fm_status add(fm_server *s, const char *name, const char *version, fmi_resident **out)
{
    *out = NULL;
    fmi_resident *r = fm_calloc(1, sizeof(*r));
    char *copy = fm_strdup(name);
    if (!r || !copy) {
        fm_free(r);
        fm_free(copy);
        return FM_ENOMEM;
    }
    memcpy(r->version, version, sizeof(r->version));
    r->name = copy;
    fmi_resident **at = &s->resident; /* oldest first: the longest waiting is looked at first */
    while (*at)
        at = &(*at)->next;
    *at = r;
    s->residents++;
    s->loading++;
    *out = r;
    return FM_OK;
}

/* Whether there is a place for one more version, perhaps after closing an idle one. */
static bool has_place(const fm_server *s, uint32_t beside)
{
    return beside < s->opts.max_models || any_idle(s);
}

static fm_status no_place(const fm_server *s)
{
    return fm_fail(FM_ELIMIT,
                   "all %u models that may be in memory are busy (serve --max-models); try again",
                   s->opts.max_models);
}

static void enforce_count(fm_server *s)
{
    while (s->residents > s->opts.max_models && close_oldest(s))
        ;
}

/* ==== pins ==== */

static void pin(fm_server *s, fmi_resident *r)
{
    atomic_fetch_add(&r->pins, 1);
    r->used = ++s->use_clock;
}

/* Moves a kept name to the version that it means now. */
static void follow(fm_server *s, const char *name, fmi_resident *r)
{
    fmi_kept *k = s->kept;
    while (k && strcmp(k->name, name) != 0)
        k = k->next;
    if (!k || k->res == r)
        return;
    if (k->res)
        k->res->kept--;
    k->res = r;
    r->kept++;
}

/* Gives r, which is ready, to j; the caller does not hold j's lock. */
static void give(fm_server *s, fmi_job *j, fmi_resident *r)
{
    follow(s, j->ask.model, r);
    pin(s, r);
    (void)pthread_mutex_lock(&j->lock);
    j->res = r;
    (void)pthread_mutex_unlock(&j->lock);
    fmi_prepare_put(s, j);
}

/* ==== loads ==== */

static void count_load(fm_server *s, const fmi_resident *r, fm_status rc)
{
    if (rc == FM_OK)
        fmi_metrics_add(&s->metrics, &s->metrics.load, r->seconds);
    (void)pthread_mutex_lock(&s->metrics.lock);
    s->metrics.loads += rc == FM_OK;
    s->metrics.load_failures += rc != FM_OK;
    (void)pthread_mutex_unlock(&s->metrics.lock);
}

static void begin_load(fm_server *s, fmi_resident *r)
{
    r->alone = true;
    for (const fmi_resident *o = s->resident; o; o = o->next)
        if (o != r && o->kept == 0 && (o->ready || o->parked <= 0))
            r->alone = false;
    r->opened = s->opened;
    r->parked = 0;
    fmi_loader_put(s, r);
}

/* Whether r's load lacked memory although there was no other model that could be closed. */
static bool never_fits(const fm_server *s, const fmi_resident *r)
{
    return r->alone && r->opened == s->opened;
}

/* Called after fmi_load. FM_OK: r is ready; or *again: a model was closed: load once more. */
static fm_status conclude(fm_server *s, fmi_resident *r, bool *again)
{
    fm_status rc = r->rc;
    *again = false;
    if (rc == FM_OK && (rc = fm_model_adopt(r->model)) != FM_OK) { /* a rank lacked memory */
        fm_error_save(&r->error);
        fm_model_close(r->model);
        r->model = NULL;
    }
    if (rc == FM_ELIMIT && close_oldest(s)) {
        *again = true;
        return rc;
    }
    if (rc < 0)
        fm_error_restore(&r->error);
    if (rc != FM_ELIMIT)
        count_load(s, r, rc);
    if (rc < 0)
        return rc;
    r->ready = true;
    s->opened++;
    r->used = ++s->use_clock;
    s->loading--;
    return FM_OK;
}

static void fail_waiting(fmi_resident *r, fm_status rc)
{
    fm_error_state kept;
    fm_error_save(&kept);
    while (r->waiting) {
        fmi_job *j = r->waiting;
        r->waiting = j->next_queued;
        fm_error_restore(&kept);
        fmi_job_fail_model(j, rc);
        fmi_job_give_back(j, FMI_FAILED);
        fmi_job_unref(j);
    }
    fm_error_restore(&kept);
}

static void give_up(fm_server *s, fmi_resident *r, fm_status rc)
{
    fail_waiting(r, rc);
    remove_one(s, r);
}

/* Whether a model is loading, which will be busy and then idle. */
static bool any_load(const fm_server *s)
{
    const fmi_resident *r = s->resident;
    while (r && (r->ready || r->parked > 0))
        r = r->next;
    return r != NULL;
}

static uint32_t parked_for_place(const fm_server *s)
{
    uint32_t n = 0;
    for (const fmi_resident *r = s->resident; r; r = r->next)
        n += r->parked > 0 && !r->for_memory;
    return n;
}

static bool all_places_kept(const fm_server *s)
{
    uint32_t n = 0;
    for (const fmi_resident *r = s->resident; r; r = r->next)
        n += r->kept > 0;
    return n >= s->opts.max_models;
}

/* Looks at a parked load: models may have been closed since it failed. It begins again whenever an
 * idle model can be closed or no other is in the way; its failure is final only where none was. */
static bool look_at_one(fm_server *s, fmi_resident *r)
{
    if (!r->waiting) { /* no job wants it any more */
        remove_one(s, r);
        return true;
    }
    bool busy = any_busy(s), loads = any_load(s);
    bool never = r->for_memory ? never_fits(s, r) : all_places_kept(s);
    bool room = r->for_memory ? !never && (close_oldest(s) || (!busy && !loads))
                              : has_place(s, s->residents - parked_for_place(s));
    if (room) {
        begin_load(s, r);
        return true;
    }
    if (!never && (loads || !busy || fm_now_s() - r->parked < PARK_SECONDS))
        return false;
    fm_status rc = FM_ELIMIT;
    if (r->for_memory)
        fm_error_restore(&r->error);
    else
        rc = no_place(s);
    if (never) /* waiting would not help */
        rc = fm_error_prefix(FM_EUNSUPPORTED, "the server's memory is too small");
    give_up(s, r, rc);
    return true;
}

/* true: the list has changed, look again. */
static bool look_at_parked(fm_server *s)
{
    for (fmi_resident *r = s->resident; r; r = r->next)
        if (r->parked > 0 && look_at_one(s, r))
            return true;
    return false;
}

void fmi_models_settle(fm_server *s)
{
    fmi_resident *r;
    while ((r = fmi_loader_take(s))) {
        bool again;
        fm_status rc = conclude(s, r, &again);
        if (again) {
            begin_load(s, r);
            continue;
        }
        if (rc == FM_ELIMIT) {
            r->parked = fm_now_s();
            r->for_memory = true;
            continue;
        }
        if (rc < 0) {
            give_up(s, r, rc);
            continue;
        }
        while (r->waiting) {
            fmi_job *j = r->waiting;
            r->waiting = j->next_queued;
            give(s, j, r);
            fmi_job_unref(j);
        }
        enforce_count(s);
    }
    while (look_at_parked(s))
        ;
}

static fm_status resolve(fm_server *s, const char *name, char version[65])
{
    version[0] = '\0';
    fm_status rc = s->opts.catalog.resolve(s->opts.catalog.ctx, name, version);
    version[64] = '\0';
    return rc;
}

void fmi_models_want(fm_server *s, fmi_job *j)
{
    char version[65];
    fmi_resident *r = NULL;
    fm_status rc = resolve(s, j->ask.model, version);
    if (rc == FM_OK)
        r = find(s, version);
    if (rc == FM_OK && !r) {
        bool place = has_place(s, s->residents - parked_for_place(s));
        rc = add(s, j->ask.model, version, &r);
        if (rc == FM_OK && place)
            begin_load(s, r);
        else if (rc == FM_OK)
            r->parked = fm_now_s();
    }
    if (rc < 0 || !r) {
        fmi_job_fail_model(j, rc);
        fmi_job_give_back(j, FMI_FAILED);
        return;
    }
    if (r->ready) {
        give(s, j, r);
        return;
    }
    fmi_job_ref(j);
    fmi_job **at = &r->waiting;
    while (*at)
        at = &(*at)->next_queued;
    j->next_queued = NULL;
    *at = j;
}

void fmi_models_drop_waiting(fm_server *s, bool all)
{
    for (fmi_resident *r = s->resident; r; r = r->next)
        for (fmi_job **at = &r->waiting; *at;) {
            fmi_job *j = *at;
            if (!all && !fmi_job_client_left(j)) {
                at = &j->next_queued;
                continue;
            }
            *at = j->next_queued;
            fmi_job_fail_cancelled(j);
            fmi_job_give_back(j, FMI_FAILED);
            fmi_job_unref(j);
        }
}

fm_status fmi_models_load_now(fm_server *s, const char *name, bool keep)
{
    char version[65];
    fm_status rc = resolve(s, name, version);
    fmi_resident *r = rc == FM_OK ? find(s, version) : NULL;
    bool again = !r;
    if (rc == FM_OK && !r)
        rc = has_place(s, s->residents) ? add(s, name, version, &r) : no_place(s);
    while (rc == FM_OK && again) {
        fmi_load(s, r, fm_engine_threads(s->engine));
        rc = conclude(s, r, &again);
        if (again)
            rc = FM_OK;
        else if (rc < 0)
            remove_one(s, r);
    }
    if (rc == FM_OK && keep) {
        fmi_kept *k = fm_calloc(1, sizeof(*k));
        char *copy = fm_strdup(name);
        if (!k || !copy) {
            fm_free(k);
            fm_free(copy);
            return FM_ENOMEM;
        }
        *k = (fmi_kept){.name = copy, .next = s->kept};
        s->kept = k;
        follow(s, name, r);
    }
    if (rc == FM_OK)
        enforce_count(s);
    return rc;
}

void fmi_models_close_all(fm_server *s)
{
    while (s->resident)
        remove_one(s, s->resident);
    while (s->kept) {
        fmi_kept *k = s->kept;
        s->kept = k->next;
        fm_free(k->name);
        fm_free(k);
    }
}

/* ==== descriptions ==== */

typedef struct lister {
    fm_json *list;    /* gets all models; or, where only is set, */
    const char *only; /* found gets the first of this name */
    fm_json *found;
} lister;

static fm_json *describe(const char *name, const char *version, int64_t created, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    fm_json_put(rc, o, "id", fm_json_new_str(name));
    fm_json_put(rc, o, "object", fm_json_new_str("model"));
    fm_json_put(rc, o, "created", fm_json_new_int(created));
    fm_json_put(rc, o, "owned_by", fm_json_new_str("fmstore"));
    fm_json_put(rc, o, "version", fm_json_new_str(version));
    return o;
}

static fm_status each(void *ctx, const char *name, const char *version, int64_t created)
{
    lister *l = ctx;
    fm_status rc = FM_OK;
    if (l->list) {
        fm_json_push_to(&rc, l->list, describe(name, version, created, &rc));
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
    FM_THEN(rc, k->list(k->ctx, each, &l));
    version[64] = '\0';
    if (rc == FM_OK && !l.found) /* a revision that is no branch or tag has no listed time */
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
    fm_json_put(&rc, o, "object", fm_json_new_str("list"));
    fm_json_put(&rc, o, "data", data);
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}
