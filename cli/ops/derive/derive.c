/* derive.c - trains all children of a wave in one call, then makes a version of each.
 *
 * The children of the first wave are trained on the parent, those of each later wave on children of
 * the waves before, which are committed by then. Branches move when the last wave is trained, so
 * that a family that is stopped lands nothing. */
#include "cli/ops/derive/derive_run.h"
#include "cli/ops/base/say.h"
#include "cli/ops/base/ranks.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/hash.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/source.h"

#define CONFIG_MAX_BYTES ((size_t)256 << 20)

/* The first CONFIG_NEEDED of these must be in a folder to pretrain from. */
enum { CONFIG_NEEDED = 2 };
static const char *const config_files[CONFIG_FILES] = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja"};

/* ---- parent and data ---- */

/* Reads the config folder's files, before anything is stored. */
static fm_status read_config_files(fmo_derivation *d)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < CONFIG_FILES; i++) {
        char *from = fm_path_join(d->f->config_dir, config_files[i]);
        fm_buf_init(&d->config[i], CONFIG_MAX_BYTES);
        if (!from)
            rc = FM_ENOMEM;
        else if (i < CONFIG_NEEDED || fm_path_exists(from))
            rc = fm_read_file(&d->config[i], from, CONFIG_MAX_BYTES);
        fm_free(from);
    }
    FM_THEN(rc, fm_tokenizer_open(&d->own_tokenizer, fm_buf_span(&d->config[1]),
                                  fm_buf_span(&d->config[2]), d->f->config_dir));
    d->tok = d->own_tokenizer;
    return rc;
}

static fm_status put_model_json(const fmo_derivation *d, fm_tree *tree)
{
    fm_json *config = NULL, *model = fm_json_new_object();
    char *path = fm_path_join(d->f->config_dir, config_files[0]);
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = model && path ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_parse(&config, fm_buf_span(&d->config[0]), path));
    fm_json_put(&rc, model, "format", fm_json_new_int(1));
    fm_json_put(&rc, model, "architecture",
                fm_json_new_str(fm_json_cstr(fm_json_get(config, "model_type"), "")));
    fm_json_put(&rc, model, "config", fm_json_ref(config));
    FM_THEN(rc, fm_json_write(&text, model, FM_JSON_PRETTY));
    FM_THEN(rc, fm_tree_put_file(tree, "model.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_json_free(config);
    fm_json_free(model);
    fm_free(path);
    return rc;
}

/* Makes a tree of the config folder: a model without weights. */
static fm_status store_config(fmo_derivation *d)
{
    fm_txn *txn = NULL;
    fm_status rc = fm_tree_new(&d->parent);
    FM_THEN(rc, put_model_json(d, d->parent));
    FM_THEN(rc, fm_txn_begin(&txn, fm_repo_store(d->c->repo)));
    for (size_t i = 1; rc == FM_OK && i < CONFIG_FILES; i++) {
        char *to = fm_path_join("tokenizer", config_files[i]);
        if (!to)
            rc = FM_ENOMEM;
        else if (d->config[i].len)
            rc = fm_txn_put_path(txn, d->parent, to, fm_buf_span(&d->config[i]));
        fm_free(to);
    }
    if (rc == FM_OK && !d->plan && fmo_ranks_mine() == 0) /* a plan stores nothing */
        rc = fm_txn_commit(txn, NULL);
    fm_txn_close(txn);
    return rc;
}

static fm_status open_parent(fmo_derivation *d)
{
    if (d->pretrain)
        return read_config_files(d);
    FM_TRY(fm_ops_resolve(d->c, d->f->parent, &d->parent_oid, &d->parent));
    FM_TRY(fm_ops_load_model(d->c, d->parent, d->f->parent, &d->model));
    if (!fm_model_tokenizer(d->model))
        return fm_fail(FM_EUNSUPPORTED, "%s has no tokenizer, so text cannot be trained on",
                       d->f->parent);
    d->tok = fm_model_tokenizer(d->model);
    d->chat = fm_model_chat_template(d->model);
    return FM_OK;
}

/* Checks all options of a child before any work. */
static fm_status check_child(const fmo_derivation *d, size_t i)
{
    const fmo_child *ch = &d->f->child[i];
    const fmo_unit *u = &d->f->unit[ch->unit];
    bool lands = u->branch && !d->check_data;
    FM_TRY(lands ? fmo_branch_must_be_new(d->c, fmo_unit_name(d->f, u)) : FM_OK);
    if ((ch->config.method == FM_METHOD_PRETRAIN) != d->pretrain)
        return fm_fail(FM_EINVAL,
                       "child '%s': method pretrain goes with a config folder, the others "
                       "with a parent",
                       ch->name);
    if (d->c->stages > 1)
        FM_TRY(fm_train_check_stages(&ch->config, ch->name));
    return fmo_suite_files_check(&ch->suites);
}

static fm_status prepare_child(fmo_derivation *d, size_t i)
{
    fmo_child *ch = &d->f->child[i];
    size_t owner = fmo_data_owner(d, i);
    fm_status rc = FM_OK;
    if (owner != i)
        d->training[i].dataset = d->training[owner].dataset;
    else
        rc = fmo_data_open(&ch->data, &d->training[i].dataset, d->tok, d->chat, &ch->config,
                           ch->skip, ch->skip_count);
    FM_THEN(rc, fmo_goal_open(&d->training[i].goal, d->c, d->training[i].dataset, &ch->config,
                              ch->teacher, d->eval_every));
    if (rc < 0)
        return fm_error_prefix(rc, "child '%s'", ch->name);
    if (owner == i)
        rc = fmo_data_report(d->c, d->training[i].dataset, d->tok, d->model, &ch->config, d->parent,
                             &ch->suites, &d->training[i].report);
    return rc;
}

/* Reports on the data before the first step, once for each data set. */
static fm_status show_reports(const fmo_derivation *d)
{
    const fm_ui_level level = d->check_data ? FM_UI_RESULT : FM_UI_NOTE;
    size_t errors = 0;
    for (size_t i = 0; i < d->f->count; i++) {
        const fm_data_report *r = &d->training[i].report;
        size_t same = 0;
        if (!r->text)
            continue;
        errors += r->errors;
        while (same < i && !(d->training[same].report.text &&
                             strcmp(d->training[same].report.text, r->text) == 0))
            same++;
        fm_buf said;
        fm_buf_init(&said, 0);
        if (d->f->count > 1)
            fm_buf_printf(&said, "%s: ", d->f->child[i].name);
        if (same < i)
            fm_buf_printf(&said, "data as for %s", d->f->child[same].name);
        else
            fm_buf_str(&said, r->text);
        fmo_ui_say_buf(d->c, level, &said);
    }
    if (d->check_data && errors > 0)
        return fm_fail(FM_EREFUSED, "the data have %zu error%s that make training meaningless",
                       errors, errors == 1 ? "" : "s");
    return FM_OK;
}

static fm_train_job job_of(const fmo_derivation *d, size_t i)
{
    const fmo_child *ch = &d->f->child[i];
    fm_train_job job = {.name = ch->name,
                        .config = ch->config,
                        .parent = fmo_base_tree(d, i),
                        .data = d->training[i].dataset,
                        .checkpoints = fmo_checkpoints_train(d->checkpoints),
                        .checkpoint_every = 1, /* checkpoints.c decides when */
                        .recompute = d->recompute};
    fmo_goal_job(&d->training[i].goal, &job);
    return job;
}

/* ---- during training ---- */

static bool show_one(const fmo_derivation *d, const fm_train_progress *p, size_t i)
{
    const char *name = d->f->child[i].name;
    uint32_t every = p->steps / 4 + (p->steps % 4 != 0);
    bool stop =
        fmo_ui_progress(d->c, p->step + 1, p->steps, "%s  step %u/%u  loss %.4f  %.0f tokens/s",
                        name, p->step + 1, p->steps, p->loss, p->tokens_per_s);
    if (p->step == 0 || (p->step + 1) % every == 0 || p->step + 1 == p->steps)
        fmo_ui_say(d->c, FM_UI_NOTE,
                   "  %s  step %u/%u  loss %.4f  grad %.3f  lr %.2e  %.0f tokens/s", name,
                   p->step + 1, p->steps, p->loss, p->grad_norm, p->lr, p->tokens_per_s);
    if (p->evaluated) {
        char right[32] = "";
        if (p->held_out.accuracy >= 0)
            snprintf(right, sizeof right, ", %.1f %% right", 100 * p->held_out.accuracy);
        fmo_ui_say(d->c, FM_UI_NOTE, "  %s  step %u  held out: loss %.4f over %llu%s", name,
                   p->step + 1, p->held_out.loss, (unsigned long long)p->held_out.units, right);
    }
    return stop;
}

/* Notes a step of a trial; the steps before it resumed are in the log of its state. */
static fm_status note_step(fmo_derivation *d, size_t i, const fm_train_progress *p)
{
    const fmo_unit *u = &d->f->unit[d->f->child[i].unit];
    size_t trial = i - u->first;

    if (!u->sweep)
        return FM_OK;
    if (fmo_sweep_seen(u->sweep, trial) == 0)
        FM_TRY(fmo_sweep_log(u->sweep, trial, fmo_checkpoints_log(d->checkpoints, i)));
    return fmo_sweep_step(u->sweep, trial, p->step, p->loss);
}

/* A trial that was seen, has steps left and is not among the n has failed; the reason comes
 * later. */
static void note_absent(fmo_derivation *d, const fm_train_progress *p, size_t n)
{
    for (size_t j = 0; j < d->jobs; j++) {
        size_t i = d->job_child[j];
        const fmo_unit *u = &d->f->unit[d->f->child[i].unit];
        bool here = false;
        for (size_t k = 0; k < n; k++)
            here = here || p[k].child == j;
        if (u->sweep && !here && d->training[i].came > 0 &&
            d->training[i].came < d->training[i].steps)
            fmo_sweep_failed(u->sweep, i - u->first, "it broke down");
    }
}

static bool on_step(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    fmo_derivation *d = ctx;
    bool asked = false;
    for (size_t k = 0; k < n; k++) {
        size_t i = d->job_child[p[k].child];
        fmo_checkpoints_step(d->checkpoints, i, p[k].step + 1, p[k].steps);
        d->training[i].came = p[k].step + 1;
        d->training[i].steps = p[k].steps;
        asked = show_one(d, &p[k], i) || asked;
        d->last = p[k];
        d->last_child = i;
        FM_THEN(d->sweep_rc, note_step(d, i, &p[k]));
    }
    note_absent(d, p, n);
    for (size_t j = 0; j < d->f->units; j++)
        if (d->f->unit[j].sweep)
            fmo_sweep_judge(d->f->unit[j].sweep);
    for (size_t k = 0; k < n; k++) {
        size_t i = d->job_child[p[k].child];
        const fmo_unit *u = &d->f->unit[d->f->child[i].unit];
        drop[k] = u->sweep && fmo_sweep_dropped(u->sweep, i - u->first);
    }
    bool stop = ++d->steps_done == d->stop_after || asked || d->sweep_rc < 0;
    if (stop)
        fmo_checkpoints_stopping(d->checkpoints);
    return stop;
}

static fm_status derivation_new(fmo_derivation *d)
{
    size_t n = d->f->count;
    d->training = fm_calloc(n, sizeof *d->training);
    d->job = fm_calloc(n, sizeof *d->job);
    d->job_child = fm_calloc(n, sizeof *d->job_child);
    d->cand = fm_calloc(d->f->units, sizeof *d->cand);
    return d->training && d->job && d->job_child && d->cand ? FM_OK : FM_ENOMEM;
}

static void candidates_release(fmo_derivation *d)
{
    for (size_t i = 0; d->cand && i < d->f->units; i++) {
        fm_model_close(d->cand[i].model);
        fm_tree_free(d->cand[i].tree);
        fm_free(d->cand[i].message);
    }
    fm_free(d->cand);
}

static void derivation_release(fmo_derivation *d)
{
    for (size_t i = 0; d->training && i < d->f->count; i++) {
        fmo_training *own = &d->training[i];
        fm_data_report_release(&own->report);
        if (fmo_data_owner(d, i) == i)
            fm_dataset_close(own->dataset);
        fmo_goal_release(&own->goal);
        fm_train_result_release(&own->result);
    }
    candidates_release(d);
    fm_free(d->training);
    fm_free(d->job);
    fm_free(d->job_child);
    fmo_checkpoints_free(d->checkpoints);
    fm_model_close(d->model);
    fm_engine_free(d->judge);
    fm_tokenizer_close(d->own_tokenizer);
    for (size_t i = 0; i < CONFIG_FILES; i++)
        fm_buf_release(&d->config[i]);
    fm_tree_free(d->parent);
}

/* No branch moves before all are trained, so the same command resumes where this one ended. */
static fm_status fail_stopped(const fmo_derivation *d)
{
    if (d->last.steps == 0)
        return fm_fail(FM_ECANCELLED, "stopped; no branch was made; the same command goes on from "
                                      "the last step that was done, if there is one");
    return fm_fail(FM_ECANCELLED,
                   "stopped after step %u of %u of '%s'; no branch was made; the same "
                   "command goes on from there",
                   d->last.step + 1, d->last.steps, d->f->child[d->last_child].name);
}

static fm_status write_log(const fmo_derivation *d, const char *path)
{
    fm_buf text;
    fm_json *all = fm_json_new_object();
    fm_status rc = all ? FM_OK : FM_ENOMEM;
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < d->f->count; i++)
        if (d->training[i].result.log)
            fm_json_put(&rc, all, d->f->child[i].name, fm_json_ref(d->training[i].result.log));
    FM_THEN(rc, fm_json_write(&text, all, FM_JSON_PRETTY));
    fm_buf_char(&text, '\n');
    FM_THEN(rc, fm_write_file(path, text.data, text.len));
    fm_buf_release(&text);
    fm_json_free(all);
    return rc;
}

/* ---- a wave ---- */

/* A unit is not trained if the unit that it builds on has failed. */
static bool can_train(fmo_derivation *d, size_t at)
{
    const fmo_unit *u = &d->f->unit[at];
    const fmo_candidate *on = u->on == UNIT_NONE ? NULL : &d->cand[u->on];
    if (!on || on->rc == FM_OK)
        return true;
    d->cand[at].made = true;
    d->cand[at].rc = on->rc;
    if (fmo_ranks_mine() > 0) /* rank 0 reports it */
        return false;
    fmo_come_to_nothing(d, fm_fail(on->rc, "'%s' was not trained: '%s', on which it stands, %s",
                                   fmo_unit_name(d->f, u), fmo_unit_name(d->f, &d->f->unit[u->on]),
                                   on->rc == FM_EREFUSED ? "was refused by its gates" : "failed"));
    return false;
}

static void collect_jobs(fmo_derivation *d, unsigned wave)
{
    d->jobs = 0;
    for (size_t k = 0; k < d->f->units; k++) {
        const fmo_unit *u = &d->f->unit[k];
        if (u->wave != wave || !can_train(d, k))
            continue;
        for (size_t i = u->first; i < u->first + u->count; i++) {
            d->job_child[d->jobs] = i;
            d->job[d->jobs++] = job_of(d, i);
        }
    }
}

static fm_status train_wave(fmo_derivation *d, unsigned wave, bool *stopped)
{
    fm_provider p = fm_store_provider(fm_repo_store(d->c->repo));
    collect_jobs(d, wave);
    if (d->jobs == 0)
        return FM_OK;
    fmo_checkpoints_jobs(d->checkpoints, d->job_child);
    fmo_checkpoints_at_ends(d->checkpoints, wave + 1 < d->f->waves);
    fm_train_result *result = fm_calloc(d->jobs, sizeof *result);
    fm_status rc = result ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_train_run(d->c->engine, &p, d->job, d->jobs, result, on_step, d));
    fmo_ui_progress_end(d->c);
    for (size_t j = 0; rc == FM_OK && j < d->jobs; j++) {
        d->training[d->job_child[j]].result = result[j];
        *stopped = *stopped || result[j].stopped;
    }
    fm_free(result);
    return rc == FM_OK ? d->sweep_rc : rc;
}

/* The reason why a child failed, without its name in front. */
static const char *why_failed(const fmo_derivation *d, size_t i)
{
    const char *why = d->training[i].result.why, *name = d->f->child[i].name;
    size_t len = strlen(name);
    if (!why)
        return "training failed";
    return strncmp(why, name, len) == 0 && strncmp(why + len, ": ", 2) == 0 ? why + len + 2 : why;
}

static void tell_sweep(const fm_ops *c, const fmo_sweep *s)
{
    fm_json *o = fmo_sweep_json(s);
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    fm_json_put(&rc, o, "name", fm_json_new_str(fmo_sweep_name(s)));
    fmo_ui_result(c, "sweep", o, rc);
}

/* Chooses the best trial of a sweep, or the only child. */
static fm_status choose_child(fmo_derivation *d, const fmo_unit *u, size_t *out)
{
    size_t winner = 0;
    for (size_t i = 0; u->sweep && i < u->count; i++) {
        const fm_train_result *r = &d->training[u->first + i].result;
        if (fmo_sweep_seen(u->sweep, i) == 0) { /* it resumed at its last step */
            FM_TRY(fmo_sweep_log(u->sweep, i, r->log));
        }
        if (r->failed)
            fmo_sweep_failed(u->sweep, i, why_failed(d, u->first + i));
    }
    fm_status rc = u->sweep ? fmo_sweep_end(u->sweep, &winner) : FM_OK;
    if (rc == FM_OK && u->sweep)
        tell_sweep(d->c, u->sweep);
    *out = u->first + (winner == SIZE_MAX ? 0 : winner);
    return rc;
}

static void make_candidate(fmo_derivation *d, size_t at)
{
    const fmo_unit *u = &d->f->unit[at];
    fmo_candidate *cand = &d->cand[at];
    fm_status rc = choose_child(d, u, &cand->child);
    const fm_train_result *r = &d->training[cand->child].result;
    if (rc == FM_OK && r->failed)
        rc = fm_fail(r->failed, "'%s': %s", fmo_unit_name(d->f, u), why_failed(d, cand->child));
    FM_THEN(rc, fmo_commit_candidate(d, u, cand));
    cand->made = true;
    cand->rc = rc;
    if (rc == FM_OK)
        return;
    fmo_forget_states(d, u, rc);
    fmo_come_to_nothing(d, rc);
}

/* Makes the versions of a wave. With the last wave all land: first the earlier ones, then each
 * child as it is made. */
static void finish_wave(fmo_derivation *d, unsigned wave)
{
    bool last = wave + 1 == d->f->waves;
    for (size_t k = 0; last && k < d->f->units; k++)
        fmo_land_unit(d, k);
    for (size_t k = 0; k < d->f->units; k++) {
        if (d->f->unit[k].wave != wave || d->cand[k].made)
            continue;
        make_candidate(d, k);
        if (last)
            fmo_land_unit(d, k);
    }
}

typedef struct told { /* rank 0's message about a candidate */
    fm_status rc;
    bool made;
    fm_oid oid;
} told;

/* Rank 0 sends the ids of the versions that it made of a wave: the other ranks read them from the
 * same repository as bases of the next wave. */
static fm_status share_wave(fmo_derivation *d)
{
    fm_status rc = FM_OK, told_rc = FM_OK;
    for (size_t k = 0; told_rc == FM_OK && k < d->f->units; k++) {
        fmo_candidate *cand = &d->cand[k];
        told t;
        memset(&t, 0, sizeof t); /* its padding is sent too */
        t.rc = cand->rc;
        t.made = cand->made;
        t.oid = cand->oid;
        told_rc = fm_comm_tell(d->c->comm, &t, sizeof t, 0);
        if (rc < 0 || told_rc < 0 || fmo_ranks_mine() == 0 || !t.made || cand->made)
            continue;
        cand->made = true;
        cand->rc = t.rc;
        cand->oid = t.oid;
        if (t.rc == FM_OK && d->f->unit[k].stood_on)
            rc = fm_version_tree(d->c->repo, &cand->tree, &t.oid);
        if (rc < 0)
            rc =
                fm_error_prefix(rc, "'%s', which rank 0 made", fmo_unit_name(d->f, &d->f->unit[k]));
    }
    return told_rc == FM_OK ? fm_comm_agree(d->c->comm, rc) : told_rc;
}

static fm_status prepare(fmo_derivation *d)
{
    FM_TRY(derivation_new(d));
    FM_TRY(fmo_checkpoints_policy_fill(&d->policy, d->c));
    for (size_t i = 0; i < d->f->count; i++)
        FM_TRY(check_child(d, i));
    FM_TRY(fm_ops_engine(d->c));
    FM_TRY(open_parent(d));
    for (size_t i = 0; i < d->f->count; i++)
        FM_TRY(prepare_child(d, i));
    if (d->pretrain)
        FM_TRY(store_config(d));
    FM_TRY(fmo_checkpoints_new(&d->checkpoints, d->c, &d->policy, d->f->count));
    for (size_t i = 0; i < d->f->count; i++)
        fmo_checkpoints_name(d->checkpoints, i, d->f->child[i].name);
    return FM_OK;
}

/* Fills in the outcome of each version that was tried. */
static fm_status take_result(const fmo_derivation *d, fm_derive_result *out)
{
    out->item = fm_calloc(FM_MAX(d->f->units, (size_t)1), sizeof *out->item);
    if (!out->item)
        return FM_ENOMEM;
    for (size_t k = 0; k < d->f->units; k++) {
        const fmo_candidate *cand = &d->cand[k];
        if (!cand->made)
            continue;
        fm_derived *item = &out->item[out->count];
        *item = (fm_derived){.name = fm_strdup(fmo_unit_name(d->f, &d->f->unit[k])),
                             .status = cand->rc,
                             .landed = cand->landed && d->f->unit[k].branch && cand->rc == FM_OK,
                             .oid = cand->oid,
                             .tally = cand->tally};
        if (!item->name)
            return FM_ENOMEM;
        out->count++;
    }
    return FM_OK;
}

fm_status fmo_family_derive(fm_ops *c, fmo_family *f, const fm_derive_opts *how, uint32_t ranks,
                            fm_derive_result *out)
{
    fmo_derivation d = {.c = c,
                        .f = f,
                        .pretrain = f->config_dir != NULL,
                        .gate = !how->no_gate,
                        .plan = how->plan,
                        .recompute = how->recompute,
                        .check_data = how->check_data,
                        .policy = how->keep,
                        .eval_every = how->eval_every,
                        .plan_ranks = FM_MAX(ranks, 1u),
                        .stop_after = how->stop_after};
    bool stopped = false, lands = fmo_ranks_mine() == 0;
    fm_status rc = prepare(&d);
    rc = fm_comm_meet(c->comm, rc, 0); /* parts of it are collective */
    if (rc == FM_OK && lands)
        rc = show_reports(&d);
    if (rc == FM_OK && how->plan) {
        collect_jobs(&d, 0);
        rc = fmo_make_plan(&d, &out->plan);
        derivation_release(&d);
        return rc;
    }
    for (unsigned w = 0; rc == FM_OK && !stopped && !d.check_data && w < f->waves; w++) {
        rc = train_wave(&d, w, &stopped);
        if (rc == FM_OK && !stopped && lands)
            finish_wave(&d, w);
        if (rc == FM_OK && !stopped && c->comm && w + 1 < f->waves)
            rc = share_wave(&d);
    }
    if (rc == FM_OK && how->log_path && lands)
        rc = write_log(&d, how->log_path);
    if (rc == FM_OK && stopped)
        rc = fail_stopped(&d);
    if (rc == FM_OK && d.worst < 0) {
        rc = d.worst;
        fm_error_restore(&d.worst_text);
    }
    if (d.cand && take_result(&d, out) < 0 && rc == FM_OK)
        rc = FM_ENOMEM;
    derivation_release(&d);
    return rc;
}
