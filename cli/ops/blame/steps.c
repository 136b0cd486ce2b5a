/* steps.c - finds the step of the guilty run at which the case began to fail.
 *
 * Points are states of the run on which the case is run: the parent (it passes), checkpoints that
 * the repository keeps, the version (it fails). The first pair of neighbours of which one passes
 * and the next fails is narrowed, first by the checkpoints between them, then by training the steps
 * between them again from the nearest state before, up to FINE states at a time. The result is a
 * step before which the case passes and after which it fails, both run; a run may have several
 * such. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/blame/repair/rederive.h"
#include "cli/ops/base/say.h"
#include "store/base/mem.h"
#include "train/attribution.h"
#include "train/train.h"

#define STATES_BYTES (1ull << 30) /* limit for the states held in memory */
enum { FINE = 16 };

typedef struct kept_state { /* a checkpoint, or a state in memory */
    uint32_t step;
    fm_oid oid;           /* of the checkpoint */
    fm_train_state state; /* count 0: not read */
} kept_state;

typedef struct hunt {
    fmo_blame_more *m;
    fmo_replay *r;
    fm_digest run;
    kept_state *kept; /* ascending steps */
    size_t count, cap;
    uint64_t state_bytes;
    /* the current walk: a training from one state to a step */
    const kept_state *from; /* NULL: the beginning */
    uint32_t to, every;
    kept_state *got;
    size_t got_count, got_cap;
} hunt;

/* ---- the run's name, and its checkpoints ---- */

static fm_train_job job_of(const fmo_replay *r)
{
    fm_train_job job = {
        .name = r->label, .config = r->config, .parent = r->parent, .data = r->data};
    fmo_goal_job(&r->goal, &job);
    return job;
}

static fm_status train(hunt *h, const fm_train_checkpoints *checkpoints, uint32_t every,
                       fm_train_fn progress, fm_train_result *result)
{
    fm_provider p = fm_store_provider(fm_repo_store(h->r->c->repo));
    fm_train_job job = job_of(h->r);
    job.checkpoints = checkpoints;
    job.checkpoint_every = every;
    job.held_outs = 0; /* held-out examples move no weight */
    fmo_blame_swap_engines(h->m);
    fm_status rc = fm_train_run(h->r->c->engine, &p, &job, 1, result, progress, h);
    fmo_blame_swap_engines(h->m);
    return rc;
}

/* Computes the digest that names the checkpoints of this run. */
static fm_status name_run(hunt *h)
{
    const fm_provider p = fm_store_provider(fm_repo_store(h->r->c->repo));
    const fm_train_job job = job_of(h->r);
    fmo_blame_swap_engines(h->m);
    const fm_attribution_in in = {.e = h->r->c->engine, .p = &p, .job = &job};
    fm_status rc = fm_attribution_run(&in, &h->run);
    fmo_blame_swap_engines(h->m);
    return rc;
}

static fm_status take_ref(void *ctx, const char *name, const fm_oid *oid)
{
    hunt *h = ctx;
    char *end = NULL;
    const char *digits = strrchr(name, '/') + 1;
    unsigned long long step = strtoull(digits, &end, 10);
    if (*end || end == digits || step == 0 || step >= h->m->steps.steps)
        return FM_OK;
    FM_TRY(fm_grow(&h->kept, &h->cap, h->count + 1, sizeof *h->kept));
    h->kept[h->count++] = (kept_state){.step = (uint32_t)step, .oid = *oid};
    return FM_OK;
}

static fm_status find_kept(hunt *h)
{
    char hex[FM_HEX_CHARS + 1], prefix[sizeof FM_CHECKPOINTS + FM_RUN_CHARS + 2];
    fm_status rc = name_run(h);
    fm_digest_hex(&h->run, hex);
    snprintf(prefix, sizeof prefix, FM_CHECKPOINTS "%.*s/", (int)FM_RUN_CHARS, hex);
    FM_THEN(rc, fm_ref_each(h->r->c->repo, prefix, take_ref, h));
    h->m->steps.states_kept = h->count;
    return rc;
}

static fm_status read_log(fm_ops *c, const fm_tree *tree, fm_json **out)
{
    fm_buf text;
    const fm_entry *e = fm_tree_find(tree, "train_log.json");
    fm_buf_init(&text, 0);
    fm_status rc = e ? fm_ops_entry_bytes(c, e, &text)
                     : fm_fail(FM_ECORRUPT, "a checkpoint has no train_log.json");
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), "train_log.json"));
    fm_buf_release(&text);
    return rc;
}

static fm_status read_state(hunt *h, kept_state *k)
{
    fm_ops *c = h->r->c;
    fm_tree *tree = NULL;
    fm_store *store = fm_repo_store(c->repo);
    if (k->state.count)
        return FM_OK;
    k->state.run = h->run;
    k->state.step = k->step;
    fm_status rc = fm_version_tree(c->repo, &tree, &k->oid);
    FM_THEN(rc, read_log(c, tree, &k->state.log));
    size_t n = rc == FM_OK ? fm_tree_count(tree) : 0;
    if (n && !(k->state.tensors = fm_calloc(n, sizeof *k->state.tensors)))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        fm_trained *t = &k->state.tensors[k->state.count++];
        *t = (fm_trained){.dtype = e->dtype, .shape = e->shape, .bytes = e->bytes};
        t->name = fm_strdup(e->name);
        t->data = fm_malloc((size_t)e->bytes);
        rc = t->name && t->data ? fm_store_read(store, &e->id, t->data, e->bytes) : FM_ENOMEM;
    }
    fm_tree_free(tree);
    return rc;
}

/* ---- points ---- */

static fm_status add_point(hunt *h, uint32_t step, fm_verdict v, double margin, bool kept)
{
    fmo_blame_steps *s = &h->m->steps;
    FM_TRY(fm_grow(&s->point, &s->point_cap, s->points + 1, sizeof *s->point));
    size_t at = s->points++;
    for (; at > 0 && s->point[at - 1].step > step; at--)
        s->point[at] = s->point[at - 1];
    s->point[at] = (fmo_blame_point){step, v, margin, kept};
    return FM_OK;
}

static fm_status ask_state(hunt *h, const kept_state *k, bool kept)
{
    fmo_blame_overlay made;
    fm_tree *tree = NULL;
    fm_verdict v = FM_ERROR_CASE;
    double margin = NAN;
    (void)fmo_ui_progress(h->m->b->c, 0, 0, "steps: the state after step %u", k->step);
    fmo_blame_overlay_open(&made, h->m->b);
    fm_status rc = fmo_blame_tree_of_state(h->r, k->state.tensors, k->state.count, &tree, &made);
    FM_THEN(rc, fmo_blame_try(h->m, tree, &made, "state", &v, &margin));
    FM_THEN(rc, add_point(h, k->step, v, margin, kept));
    fm_tree_free(tree);
    fmo_blame_overlay_release(&made);
    return rc;
}

/* Finds the first neighbours of which one passes and the next fails; points that could not be run
 * are skipped. */
static void narrow(fmo_blame_steps *s)
{
    size_t pass = SIZE_MAX;
    for (size_t i = 0; i < s->points; i++) {
        if (s->point[i].verdict == FM_PASS)
            pass = i;
        if (s->point[i].verdict != FM_FAIL || pass == SIZE_MAX)
            continue;
        s->passes_at = s->point[pass].step;
        s->fails_at = s->point[i].step;
        s->exact = s->fails_at == s->passes_at + 1;
        return;
    }
}

static fm_status ends(hunt *h)
{
    fmo_blame_more *m = h->m;
    fmo_blame *b = m->b;
    double margin[2] = {NAN, NAN};
    fm_verdict v[2] = {FM_ERROR_CASE, FM_ERROR_CASE};

    for (int i = 0; i < 2; i++)
        if (i == 1 || h->r->config.method != FM_METHOD_PRETRAIN)
            FM_TRY(fmo_blame_try(m, i ? b->child : h->r->parent, NULL, "end", &v[i], &margin[i]));
    FM_TRY(add_point(h, 0, v[0], margin[0], true));
    FM_TRY(add_point(h, m->steps.steps, v[1], margin[1], true));
    narrow(&m->steps);
    return FM_OK;
}

/* Runs the case on checkpoints strictly between the pair, FINE at a time, evenly chosen. */
static fm_status ask_kept(hunt *h)
{
    fmo_blame_steps *s = &h->m->steps;
    fm_status rc = FM_OK;
    for (bool more = true; rc == FM_OK && more;) {
        size_t first = 0, n = 0;
        const uint32_t low = s->passes_at, high = s->fails_at;
        while (first < h->count && h->kept[first].step <= s->passes_at)
            first++;
        while (first + n < h->count && h->kept[first + n].step < s->fails_at)
            n++;
        size_t take = FM_MIN(n, (size_t)FINE);
        for (size_t i = 0; rc == FM_OK && i < take; i++) {
            kept_state *k = &h->kept[first + (2 * i + 1) * n / (2 * take)];
            rc = read_state(h, k);
            FM_THEN(rc, ask_state(h, k, true));
        }
        narrow(s);
        more = s->passes_at > low || s->fails_at < high; /* else none of them could be run */
    }
    return rc;
}

/* ---- train again, state by state ---- */

static void states_release(kept_state *k, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fm_train_state_release(&k[i].state);
    fm_free(k);
}

static fm_status copy_state(fm_train_state *out, const fm_train_state *s)
{
    *out = (fm_train_state){.run = s->run, .step = s->step, .tokens = s->tokens};
    out->log = fm_json_copy(s->log);
    out->tensors = fm_calloc(s->count, sizeof *out->tensors);
    if (!out->log || !out->tensors)
        return FM_ENOMEM;
    for (size_t i = 0; i < s->count; i++) {
        fm_trained *t = &out->tensors[out->count++];
        *t = s->tensors[i];
        t->name = fm_strdup(s->tensors[i].name);
        t->data = fm_memdup(s->tensors[i].data, (size_t)t->bytes);
        if (!t->name || !t->data)
            return FM_ENOMEM;
    }
    return FM_OK;
}

static fm_status load_from(void *ctx, uint32_t child, const fm_digest *run, fm_train_state *out,
                           bool *found)
{
    const hunt *h = ctx;
    (void)child;
    (void)run;
    *found = h->from != NULL;
    return *found ? copy_state(out, &h->from->state) : FM_OK;
}

static fm_status save_state(void *ctx, uint32_t child, const fm_train_state *s)
{
    hunt *h = ctx;
    (void)child;
    if (s->step >= h->to)
        return FM_OK;
    FM_TRY(fm_grow(&h->got, &h->got_cap, h->got_count + 1, sizeof *h->got));
    h->got[h->got_count] = (kept_state){.step = s->step};
    return copy_state(&h->got[h->got_count++].state, s);
}

static bool until(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    const hunt *h = ctx;
    (void)n;
    drop[0] = p->step + 1 >= h->to;
    return fmo_ui_progress(h->m->b->c, p->step + 1, h->to,
                           "steps: training again, step %u of %u to %u", p->step + 1,
                           h->from ? h->from->step : 0, h->to);
}

/* Trains from a state (NULL: the beginning) to fails_at and keeps states on the way. */
static fm_status walk(hunt *h, const kept_state *from)
{
    const fmo_blame_steps *s = &h->m->steps;
    const fm_train_checkpoints checkpoints = {.ctx = h, .save = save_state, .load = load_from};
    uint32_t span = s->fails_at - (from ? from->step : 0);
    uint64_t fit = h->state_bytes ? STATES_BYTES / h->state_bytes : FINE;
    uint32_t fine = (uint32_t)FM_MAX(FM_MIN(fit, (uint64_t)FINE), 1u);
    fm_train_result result = {0};
    h->from = from;
    h->to = s->fails_at;
    h->every = FM_MAX((span + fine) / (fine + 1), 1u);
    h->got = NULL;
    h->got_count = h->got_cap = 0;
    fm_status rc = train(h, &checkpoints, h->every, until, &result);
    if (rc == FM_OK && result.failed)
        rc = fm_fail(result.failed, "%s", result.why ? result.why : "training failed");
    if (rc == FM_OK && result.stopped)
        rc = fm_fail(FM_ECANCELLED, "stopped");
    fm_train_result_release(&result);
    return rc;
}

static const kept_state *newest_before(kept_state *k, size_t n, uint32_t step)
{
    const kept_state *best = NULL;
    for (size_t i = 0; i < n; i++)
        if (k[i].step <= step && k[i].state.count)
            best = &k[i];
    return best;
}

static fm_status ask_got(hunt *h)
{
    const fmo_blame_steps *s = &h->m->steps;
    uint32_t low = s->passes_at, high = s->fails_at;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < h->got_count; i++)
        if (h->got[i].step > low && h->got[i].step < high)
            rc = ask_state(h, &h->got[i], false);
    narrow(&h->m->steps);
    return rc;
}

static fm_status train_between(hunt *h)
{
    fmo_blame_steps *s = &h->m->steps;
    kept_state *held = NULL; /* the states of the walk before */
    size_t held_count = 0;
    fm_status rc = FM_OK;
    fmo_ui_say(h->m->b->c, FM_UI_NOTE,
               "blame: steps %u to %u of %u are trained again, about %.0f s", s->passes_at,
               s->fails_at, s->steps, s->plan_s * s->fails_at / FM_MAX(s->steps, 1u));
    while (rc == FM_OK && !s->exact) {
        uint32_t low = s->passes_at, high = s->fails_at;
        const kept_state *from = newest_before(held, held_count, s->passes_at);
        if (!from)
            from = newest_before(h->kept, h->count, s->passes_at);
        rc = walk(h, from);
        FM_THEN(rc, ask_got(h));
        states_release(held, held_count);
        held = h->got;
        held_count = h->got_count;
        if (s->passes_at == low && s->fails_at == high)
            break; /* no state between them could be run */
    }
    states_release(held, held_count);
    h->got = NULL;
    return rc;
}

/* ---- the examples of the step ---- */

static fm_status take_records(hunt *h)
{
    fmo_blame_steps *s = &h->m->steps;
    size_t n = 0;
    fm_status rc =
        fm_train_step_examples(&s->record, &n, &h->r->config, h->r->data, s->fails_at - 1);
    s->preview = rc == FM_OK ? fm_calloc(n, sizeof *s->preview) : NULL;
    s->index = rc == FM_OK ? fm_calloc(n, sizeof *s->index) : NULL;
    if (rc == FM_OK && (!s->preview || !s->index))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_example *e = fm_dataset_at(h->r->data, s->record[i]);
        s->preview[i] = fm_strdup(e->preview);
        s->index[i] = e->index;
        s->records = i + 1;
        rc = s->preview[i] ? FM_OK : FM_ENOMEM;
    }
    return rc;
}

static fm_status hunt_down(hunt *h)
{
    fmo_blame_steps *s = &h->m->steps;
    fm_status rc = ends(h);
    FM_THEN(rc, find_kept(h));
    if (rc == FM_OK && s->fails_at)
        rc = ask_kept(h);
    bool wanted = rc == FM_OK && s->fails_at && !s->exact && h->m->rederive;
    if (wanted && s->plan_s > (double)h->m->budget_s)
        fmo_ui_say(h->m->b->c, FM_UI_NOTE,
                   "blame: to train the steps again takes about %.0f s, --budget allows %llu",
                   s->plan_s, (unsigned long long)h->m->budget_s);
    else if (wanted)
        rc = train_between(h);
    if (rc == FM_OK && s->exact)
        rc = take_records(h);
    fmo_ui_progress_end(h->m->b->c);
    return rc;
}

fm_status fmo_blame_find_step(fmo_blame_more *m)
{
    fmo_replay r;
    fmo_blame_steps *s = &m->steps;
    double began = fm_now_s();
    hunt h = {.m = m, .r = &r};
    fm_status rc = fmo_blame_replay_open(m, &r);
    if (rc == FM_OK) {
        fm_json *log = NULL;
        rc = read_log(m->b->c, m->b->child, &log);
        s->steps = (uint32_t)fm_json_count(log);
        fm_json_free(log);
    }
    if (rc == FM_OK) {
        s->plan_s = fmo_blame_plan(m, &r, &h.state_bytes);
        rc = hunt_down(&h);
    }
    states_release(h.kept, h.count);
    s->done = rc == FM_OK;
    s->seconds = fm_now_s() - began;
    FM_THEN(rc, fmo_blame_ablate(m, &r));
    fmo_blame_replay_close(m, &r);
    if (rc == FM_EUNSUPPORTED || rc == FM_ECORRUPT || rc == FM_ENOTFOUND) {
        s->done = false;
        s->why_not = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = s->why_not ? FM_OK : FM_ENOMEM;
    }
    m->seconds += fm_now_s() - began;
    return rc;
}
