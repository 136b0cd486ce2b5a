/* checkpoints.c - checkpoints: one commit per state, one ref per commit, one lock per run. */
#include "cli/ops/derive/checkpoints.h"
#include "cli/ops/base/say.h"
#include "cli/ops/base/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/version/version_tree.h"
#include "store/base/cancel.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define PREFIX FM_CHECKPOINTS
#define RUN_HEX FM_RUN_CHARS
enum { STEP_DIGITS = 10, SECONDS_BETWEEN = 60 };
static const double cost_share = 0.02; /* largest share of the time spent on checkpoints */

typedef struct kept {
    const char *name;
    char run[RUN_HEX + 1]; /* empty: not begun */
    fm_lock *lock;         /* NULL also if an earlier child of the same run holds it */
    char *lock_path;
    fm_tree *newest; /* of the last state, against which the next is coded */
    fm_json *log;    /* of the state that was loaded */
    uint32_t step, steps;
    double saved_s; /* time of the last state; before it, that of the beginning */
} kept;

struct fmo_checkpoints {
    fm_ops *c;
    fm_repo *repo; /* the handle in use: c->repo, or while a state is written one of its own */
    fm_keep_policy policy;
    kept *child;
    size_t count;
    const size_t *job; /* the child of each job */
    bool stopping, at_ends;
    double begun_s, spent_s, cost_s; /* start; seconds for all states, for the last one */
    fm_train_checkpoints train;
};

/* ---- policy ---- */

static fm_status config_number(uint64_t *out, fm_ops *c, const char *key)
{
    return fm_ops_config_uint(c, key, "steps or states", 0, UINT32_MAX, out);
}

fm_status fmo_checkpoints_policy_fill(fm_keep_policy *p, fm_ops *c)
{
    fm_status rc = FM_OK;
    if (!p->every)
        rc = config_number(&p->every, c, "fmstore.checkpointevery");
    if (rc == FM_OK && !p->last)
        rc = config_number(&p->last, c, "fmstore.checkpointlast");
    if (rc == FM_OK && !p->each)
        rc = config_number(&p->each, c, "fmstore.checkpointeach");
    if (!p->last)
        p->last = 1;
    return rc;
}

void fmo_checkpoints_step(fmo_checkpoints *k, size_t child, uint32_t step, uint32_t steps)
{
    k->child[child].step = step;
    k->child[child].steps = steps;
}

void fmo_checkpoints_stopping(fmo_checkpoints *k)
{
    k->stopping = true;
}

void fmo_checkpoints_at_ends(fmo_checkpoints *k, bool on)
{
    k->at_ends = on;
}

void fmo_checkpoints_jobs(fmo_checkpoints *k, const size_t *child)
{
    k->job = child;
}

void fmo_checkpoints_name(fmo_checkpoints *k, size_t child, const char *name)
{
    k->child[child].name = name;
}

/* Whether to write a state now. Time decides only that, never the content of a state. */
static bool due(void *ctx, uint32_t job, uint32_t step)
{
    fmo_checkpoints *k = ctx;
    const kept *s = &k->child[k->job[job]];
    bool at_end = step == s->steps;
    double now = fm_now_s(), since = now - s->saved_s;
    if (k->stopping || (at_end && k->at_ends))
        return true;
    if (fm_go_on() < 0) { /* stopped in the middle of the next step */
        fm_error_clear();
        return true;
    }
    if (k->policy.every)
        return step % k->policy.every == 0;
    if (since < SECONDS_BETWEEN) /* at the end too: at most a minute is lost */
        return false;
    return at_end || k->spent_s + k->cost_s <= cost_share * (now - k->begun_s);
}

/* ---- names ---- */

static bool ref_of(const kept *s, uint32_t step, char *out, size_t bytes)
{
    int n = snprintf(out, bytes, PREFIX "%s/%0*u", s->run, STEP_DIGITS, step);
    return n > 0 && (size_t)n < bytes;
}

typedef struct state_refs { /* of one run, ascending steps */
    uint32_t *step;
    fm_oid *oid;
    size_t count, step_cap, oid_cap;
} state_refs;

static fm_status take_ref(void *ctx, const char *name, const fm_oid *oid)
{
    state_refs *l = ctx;
    char *end = NULL;
    const char *digits = strrchr(name, '/') + 1;
    unsigned long long step = strtoull(digits, &end, 10);
    if (*end || end == digits || step > UINT32_MAX)
        return FM_OK; /* not a checkpoint's name */
    FM_TRY(fm_grow(&l->step, &l->step_cap, l->count + 1, sizeof *l->step));
    FM_TRY(fm_grow(&l->oid, &l->oid_cap, l->count + 1, sizeof *l->oid));
    l->step[l->count] = (uint32_t)step;
    l->oid[l->count++] = *oid;
    return FM_OK;
}

static fm_status list_refs(const fmo_checkpoints *k, const kept *s, state_refs *out)
{
    char prefix[sizeof PREFIX + RUN_HEX + 2];
    memset(out, 0, sizeof *out);
    snprintf(prefix, sizeof prefix, PREFIX "%s/", s->run);
    return fm_ref_each(k->repo, prefix, take_ref, out); /* sorted by name, so by step */
}

static void free_refs(state_refs *l)
{
    fm_free(l->step);
    fm_free(l->oid);
}

static fm_status drop_ref(const fmo_checkpoints *k, const kept *s, uint32_t step, const fm_oid *oid)
{
    char name[128];
    if (!ref_of(s, step, name, sizeof name))
        return fm_fail(FM_ELIMIT, "a checkpoint's name is too long");
    fm_status rc = fm_ref_delete(k->repo, name, oid);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static fm_status unmark(const fmo_checkpoints *k, const kept *s)
{
    fm_oid oid;
    char name[sizeof FM_CHECKPOINTS_KEPT + RUN_HEX + 1];
    snprintf(name, sizeof name, FM_CHECKPOINTS_KEPT "%s", s->run);
    fm_status rc = fm_ref_read(k->repo, &oid, name);
    FM_THEN(rc, fm_ref_delete(k->repo, name, &oid));
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_clear();
    return FM_OK;
}

/* Drops the refs that the policy does not keep; gc deletes the rest. all: the child has landed. */
static fm_status drop_refs(const fmo_checkpoints *k, const kept *s, bool all)
{
    state_refs l;
    fm_status rc = list_refs(k, s, &l);
    for (size_t i = 0; rc == FM_OK && i < l.count; i++) {
        bool newest = l.count - i <= k->policy.last;
        bool each = k->policy.each && l.step[i] % k->policy.each == 0;
        if (all || !(newest || each))
            rc = drop_ref(k, s, l.step[i], &l.oid[i]);
    }
    free_refs(&l);
    return rc == FM_OK && all ? unmark(k, s) : rc;
}

static fm_status move_ref(const fmo_checkpoints *k, const char *name, const fm_oid *oid)
{
    fm_oid old;
    fm_status rc = fm_ref_read(k->repo, &old, name);
    bool there = rc == FM_OK;
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc == FM_OK ? fm_ref_update(k->repo, name, oid, there ? &old : NULL, "checkpoint") : rc;
}

/* Marks the checkpoints as kept: gc does not drop them for their age alone. */
static fm_status mark_kept(const fmo_checkpoints *k, const kept *s)
{
    state_refs l;
    char name[sizeof FM_CHECKPOINTS_KEPT + RUN_HEX + 1];
    snprintf(name, sizeof name, FM_CHECKPOINTS_KEPT "%s", s->run);
    fm_status rc = list_refs(k, s, &l);
    if (rc == FM_OK && l.count > 0)
        rc = move_ref(k, name, &l.oid[l.count - 1]);
    free_refs(&l);
    return rc;
}

/* ---- save ---- */

static fm_status put_about(fm_txn *txn, fm_tree *tree, const kept *s, const fm_train_state *state)
{
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_digest_hex(&state->run, hex);
    fm_json_put(&rc, o, "format", fm_json_new_int(1));
    fm_json_put(&rc, o, "run", fm_json_new_str(hex));
    fm_json_put(&rc, o, "child", fm_json_new_str(s->name));
    fm_json_put(&rc, o, "step", fm_json_new_int((int64_t)state->step));
    fm_json_put(&rc, o, "tokens", fm_json_new_int((int64_t)state->tokens));
    FM_THEN(rc, fmo_tree_put_json(txn, tree, "checkpoint.json", o));
    fm_json_free(o);
    return rc == FM_OK ? fmo_tree_put_json(txn, tree, "train_log.json", state->log) : rc;
}

/* Puts "p/NAME" below p/, at the path of NAME. */
static fm_status put_state_tensor(fm_txn *txn, fm_tree *tree, const fm_tree *before,
                                  const fm_trained *t)
{
    char part[2] = {t->name[0], 0};
    fm_digest id;
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, part, t->name + 2);
    if (rc == FM_OK) {
        const fm_entry *old = before ? fm_tree_find(before, fm_buf_cstr(&path)) : NULL;
        rc = fm_txn_put_tensor(txn, &id, t->dtype, &t->shape, fm_span_of(t->data, t->bytes),
                               old ? &old->id : NULL, NULL);
    }
    FM_THEN(rc, fm_tree_put_tensor(tree, fm_buf_cstr(&path), t->name, t->dtype, &t->shape, &id));
    fm_buf_release(&path);
    return rc;
}

static fm_status store_state(fmo_checkpoints *k, const kept *s, const fm_train_state *state,
                             fm_tree *tree)
{
    fm_txn *txn = NULL;
    fm_status rc = fm_txn_begin(&txn, fm_repo_store(k->repo));
    for (size_t i = 0; rc == FM_OK && i < state->count; i++)
        rc = put_state_tensor(txn, tree, s->newest, &state->tensors[i]);
    FM_THEN(rc, put_about(txn, tree, s, state));
    FM_THEN(rc, fm_txn_commit(txn, NULL));
    fm_txn_close(txn);
    return rc;
}

/* Points the ref of a step at a state. An old ref may exist: of another child that is the same run,
 * or of a damaged state. */
static fm_status point_at(const fmo_checkpoints *k, const kept *s, uint32_t step, const fm_oid *oid)
{
    char name[128];
    if (!ref_of(s, step, name, sizeof name))
        return fm_fail(FM_ELIMIT, "a checkpoint's name is too long");
    return move_ref(k, name, oid);
}

static fm_status write_state(fmo_checkpoints *k, kept *s, const fm_train_state *state,
                             fm_tree *tree)
{
    fm_oid oid;
    char message[400];
    snprintf(message, sizeof message, "checkpoint of %.300s after step %u", s->name, state->step);
    FM_TRY(store_state(k, s, state, tree));
    fm_commit_opts opts = {.kind = "checkpoint", .message = message};
    FM_TRY(fm_version_commit(k->repo, &oid, tree, &opts));
    FM_TRY(point_at(k, s, state->step, &oid));
    return drop_refs(k, s, false);
}

/* Writes a state through a handle of its own, whose lease ends with it: then the ref alone keeps
 * the state, and the next gc deletes states that the policy dropped, even while the training
 * runs. */
static fm_status save(void *ctx, uint32_t job, const fm_train_state *state)
{
    fmo_checkpoints *k = ctx;
    kept *s = &k->child[k->job[job]];
    fm_tree *tree = NULL;
    double began = fm_now_s();
    fm_cancel_wait(true); /* a state is written when the run stops, too */
    fm_status rc = fm_repo_open(&k->repo, fm_repo_path(k->c->repo));
    FM_THEN(rc, fm_tree_new(&tree));
    FM_THEN(rc, write_state(k, s, state, tree));
    fm_error_state text;
    fm_error_save(&text);
    fm_repo_close(k->repo);
    fm_cancel_wait(false);
    fm_error_restore(&text);
    k->repo = k->c->repo;
    if (rc < 0) {
        fm_tree_free(tree);
        return fm_error_prefix(rc, "checkpoint of '%s' after step %u", s->name, state->step);
    }
    fm_tree_free(s->newest);
    s->newest = tree;
    s->saved_s = fm_now_s();
    k->cost_s = s->saved_s - began;
    k->spent_s += k->cost_s;
    return FM_OK;
}

/* ---- load ---- */

static fm_status read_json_file(const fmo_checkpoints *k, const fm_tree *tree, const char *path,
                                fm_json **out)
{
    fm_buf text;
    const fm_entry *e = fm_tree_find(tree, path);
    if (!e)
        return fm_fail(FM_ECORRUPT, "it has no %s", path);
    fm_buf_init(&text, 0);
    fm_status rc = fm_ops_entry_bytes(k->c, e, &text);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), path));
    fm_buf_release(&text);
    return rc;
}

static fm_status read_about(const fmo_checkpoints *k, const fm_tree *tree, const fm_digest *run,
                            fm_train_state *out)
{
    fm_json *about = NULL;
    char hex[FM_HEX_CHARS + 1];
    int64_t step = 0, tokens = 0;
    fm_digest_hex(run, hex);
    fm_status rc = read_json_file(k, tree, "checkpoint.json", &about);
    if (rc == FM_OK && strcmp(fm_json_cstr(fm_json_get(about, "run"), ""), hex) != 0)
        rc = fm_fail(FM_ECORRUPT, "it is of another run");
    FM_THEN(rc, fm_json_need_int(&step, about, "step", "checkpoint.json"));
    FM_THEN(rc, fm_json_need_int(&tokens, about, "tokens", "checkpoint.json"));
    if (rc == FM_OK && (step < 0 || step > UINT32_MAX || tokens < 0))
        rc = fm_fail(FM_ECORRUPT, "its step or tokens cannot be");
    if (rc == FM_OK) {
        out->step = (uint32_t)step;
        out->tokens = (uint64_t)tokens;
        rc = read_json_file(k, tree, "train_log.json", &out->log);
    }
    fm_json_free(about);
    return rc;
}

static fm_status read_tensors(const fmo_checkpoints *k, const fm_tree *tree, fm_train_state *out)
{
    fm_store *store = fm_repo_store(k->c->repo);
    size_t n = fm_tree_count(tree);

    out->tensors = fm_calloc(n, sizeof *out->tensors);
    if (!out->tensors)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        fm_trained *t = &out->tensors[out->count++];
        *t = (fm_trained){.dtype = e->dtype, .shape = e->shape, .bytes = e->bytes};
        t->name = fm_strdup(e->name);
        t->data = fm_malloc((size_t)e->bytes);
        FM_TRY(t->name && t->data ? fm_store_read(store, &e->id, t->data, e->bytes) : FM_ENOMEM);
    }
    return FM_OK;
}

static fm_status load_one(fmo_checkpoints *k, kept *s, const fm_oid *oid, const fm_digest *run,
                          fm_train_state *out)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(k->c->repo, &tree, oid);
    memset(out, 0, sizeof *out);
    out->run = *run;
    FM_THEN(rc, read_about(k, tree, run, out));
    FM_THEN(rc, read_tensors(k, tree, out));
    if (rc < 0) {
        fm_train_state_release(out);
        fm_tree_free(tree);
        return rc;
    }
    fm_tree_free(s->newest);
    s->newest = tree;
    return FM_OK;
}

/* Loads the newest state that can be read. A damaged one costs time only: the bits of the result do
 * not depend on the step at which a run resumes. */
static fm_status load_newest(fmo_checkpoints *k, kept *s, const fm_digest *run, fm_train_state *out,
                             bool *found)
{
    state_refs l;
    fm_status rc = list_refs(k, s, &l);
    *found = false;
    for (size_t i = l.count; rc == FM_OK && !*found && i > 0; i--) {
        fm_status one = load_one(k, s, &l.oid[i - 1], run, out);
        *found = one == FM_OK;
        if (one == FM_ECORRUPT || one == FM_ENOTFOUND || one == FM_EBASE) {
            fmo_ui_say(k->c, FM_UI_NOTE, "  %s  the checkpoint after step %u cannot be used: %s",
                       s->name, l.step[i - 1], fm_error_text());
            fm_error_clear();
        } else {
            rc = one;
        }
    }
    free_refs(&l);
    return rc;
}

fm_status fmo_checkpoints_states(fm_ops *c, const fm_digest *run, size_t most, uint64_t max_bytes,
                                 fm_train_state **out, size_t *count)
{
    fmo_checkpoints k = {.c = c, .repo = c->repo};
    kept s = {.name = "kept"};
    char hex[FM_HEX_CHARS + 1];
    state_refs l;
    fm_digest_hex(run, hex);
    snprintf(s.run, sizeof s.run, "%.*s", (int)RUN_HEX, hex);
    fm_status rc = list_refs(&k, &s, &l);
    size_t n = FM_MIN(l.count, most);
    *count = 0;
    *out = fm_calloc(FM_MAX(n, (size_t)1), sizeof **out);
    if (rc == FM_OK && !*out)
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        fm_train_state *state = &(*out)[i];
        uint64_t bytes = 0;
        rc = load_one(&k, &s, &l.oid[(i + 1) * l.count / n - 1], run, state);
        *count += rc == FM_OK;
        for (size_t t = 0; rc == FM_OK && i == 0 && t < state->count; t++)
            bytes += state->tensors[t].bytes;
        if (bytes > 0)
            n = FM_MAX((size_t)1, FM_MIN(n, (size_t)(max_bytes / bytes)));
    }
    fm_tree_free(s.newest);
    free_refs(&l);
    return rc;
}

/* Takes the lock of the run. Of several children that are the same run, one holds it for all. */
static fm_status lock_run(fmo_checkpoints *k, kept *s)
{
    if (fmo_ranks_mine() > 0)
        return FM_OK; /* rank 0 holds it */
    for (size_t i = 0; i < k->count; i++)
        if (&k->child[i] != s && k->child[i].lock && strcmp(k->child[i].run, s->run) == 0)
            return FM_OK;
    s->lock_path = fm_checkpoint_lock(k->c->repo, s->run);
    fm_status rc = s->lock_path ? fm_lock_try(&s->lock, s->lock_path) : FM_ENOMEM;
    if (rc == FM_ECONFLICT)
        rc =
            fm_fail(FM_ECONFLICT,
                    "'%s': another process is training just this (same parent, data and settings); "
                    "wait for it, or stop it and run this again to go on where it was",
                    s->name);
    return rc;
}

static fm_status load(void *ctx, uint32_t job, const fm_digest *run, fm_train_state *out,
                      bool *found)
{
    fmo_checkpoints *k = ctx;
    kept *s = &k->child[k->job[job]];
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(run, hex);
    snprintf(s->run, sizeof s->run, "%.*s", (int)RUN_HEX, hex);
    if (k->begun_s <= 0.0)
        k->begun_s = fm_now_s();
    s->saved_s = fm_now_s();
    FM_TRY(lock_run(k, s));
    FM_TRY(load_newest(k, s, run, out, found));
    if (*found) {
        s->log = fm_json_ref(out->log);
        if (fmo_ranks_mine() == 0)
            fmo_ui_say(k->c, FM_UI_NOTE, "  %s  goes on after step %u", s->name, out->step);
    }
    return FM_OK;
}

/* ---- life cycle ---- */

fm_status fmo_checkpoints_new(fmo_checkpoints **out, fm_ops *c, const fm_keep_policy *policy,
                              size_t children)
{
    fmo_checkpoints *k = fm_calloc(1, sizeof *k);
    *out = k;
    if (!k)
        return FM_ENOMEM;
    k->c = c;
    k->repo = c->repo;
    k->policy = *policy;
    k->count = children;
    k->train = (fm_train_checkpoints){.ctx = k, .due = due, .save = save, .load = load};
    k->child = fm_calloc(children, sizeof *k->child);
    return k->child ? FM_OK : FM_ENOMEM;
}

const fm_train_checkpoints *fmo_checkpoints_train(fmo_checkpoints *k)
{
    return &k->train;
}

const fm_json *fmo_checkpoints_log(const fmo_checkpoints *k, size_t child)
{
    return k->child[child].log;
}

void fmo_checkpoints_landed(fmo_checkpoints *k, size_t child)
{
    fm_error_state text;
    const kept *s = &k->child[child];
    if (!s->run[0])
        return;
    fm_error_save(&text);
    if (k->policy.after)
        fm_ignore(mark_kept(k, s), "gc may then drop them when they are old");
    else
        fm_ignore(drop_refs(k, s, true), "gc drops a leftover checkpoint");
    fm_error_restore(&text);
}

void fmo_checkpoints_free(fmo_checkpoints *k)
{
    if (!k)
        return;
    for (size_t i = 0; k->child && i < k->count; i++) {
        kept *s = &k->child[i];
        fm_lock_end(s->lock, s->lock_path);
        fm_free(s->lock_path);
        fm_tree_free(s->newest);
        fm_json_free(s->log);
    }
    fm_free(k->child);
    fm_free(k);
}
