/* gate.c - runs the suites that a tree carries, before a branch moves. */
#include <stdio.h>
#include <string.h>

#include "cli/ops/version/version_tree.h"
#include "cli/ops/base/say.h"
#include "store/base/mem.h"
#include "testing/policy.h"

static fm_status cache_get(void *ctx, fm_buf *out, const char key[65])
{
    return fm_result_get(((fm_ops *)ctx)->repo, out, key);
}

static fm_status cache_put(void *ctx, const char key[65], fm_span value)
{
    return fm_result_put(((fm_ops *)ctx)->repo, key, value);
}

fm_result_cache fmo_suite_cache(fm_ops *c)
{
    return (fm_result_cache){
        .ctx = c, .get = cache_get, .put = cache_put, .open = fmo_pinned_model};
}

char *fmo_tests_note(fm_ops *c, const fm_oid *oid)
{
    fm_buf note;
    char *line = NULL;
    fm_buf_init(&note, 0);
    if (fm_note_read(c->repo, &note, oid) == FM_OK) {
        while (note.len && note.data[note.len - 1] == '\n')
            note.data[--note.len] = 0;
        const char *text = fm_buf_cstr(&note), *last = strrchr(text, '\n');
        line = fm_strdup(last ? last + 1 : text);
    }
    fm_error_clear(); /* most versions have no note */
    fm_buf_release(&note);
    return line;
}

fm_status fmo_note_tests(fm_ops *c, const fm_oid *oid, const fm_tally *tally)
{
    char line[200];
    if (!tally->count)
        return FM_OK;
    char waived[40] = "", quarantined[40] = "";
    if (tally->waived)
        snprintf(waived, sizeof waived, ", %zu waived", tally->waived);
    if (tally->quarantined)
        snprintf(quarantined, sizeof quarantined, ", %zu quarantined", tally->quarantined);
    snprintf(line, sizeof line, "tests: %zu of %zu cases passed%s%s (%s)", tally->passed,
             tally->count, waived, quarantined, fm_engine_mode(c->engine));
    char *last = fmo_tests_note(c, oid);
    bool known = last && strcmp(last, line) == 0;
    fm_free(last);
    return known ? FM_OK : fm_note_add(c->repo, oid, line);
}

/* ---- gates ---- */

/* A version that gates compare with; several suites may share one. */
typedef struct baseline {
    fm_oid oid;
    fm_model *model; /* open while its batch runs */
    char name[32];   /* "parent 1a2b3c4d5e" */
} baseline;

#define BASELINES_MAX 64u
#define BASELINES_AT_ONCE 4u /* open together with the version: each may have weights of its own */

typedef struct gates {
    fm_ops *c;
    const char *label;
    fm_suite_set set;
    fm_model *model;
    fm_version version;
    baseline base[BASELINES_MAX];
    size_t bases;
    baseline **of;              /* [set.count] baseline of each suite; NULL = none */
    fm_suite_run *run, *before; /* [set.count] on the version; on the baseline, if there is one */
} gates;

/* The oldest version along first parents. */
static fm_status first_version(fm_ops *c, const fm_version *v, fm_oid *out)
{
    *out = v->parent[0];
    for (bool more = true; more;) {
        fm_version up;
        FM_TRY(fm_version_read(c->repo, &up, out));

        more = up.parent_count > 0;
        if (more)
            *out = up.parent[0];
        fm_version_release(&up);
    }
    return FM_OK;
}

/* The baseline that a policy names. *found false: it names none, or the version has no parent. */
static fm_status baseline_oid(gates *g, const fm_policy *p, fm_oid *out, const char **word,
                              bool *found)
{
    *found = true;
    if (p->baseline == FM_BASELINE_ID) {
        *word = "version";
        fm_status rc = fm_rev_resolve(g->c->repo, out, p->baseline_id);
        return rc < 0 ? fm_error_prefix(rc, "the gate's baseline") : FM_OK;
    }
    *found = p->baseline != FM_BASELINE_NONE && g->version.parent_count > 0;
    if (!*found)
        return FM_OK;
    *word = p->baseline == FM_BASELINE_PARENT ? "parent" : "first version";
    if (p->baseline == FM_BASELINE_FIRST)
        return first_version(g->c, &g->version, out);
    *out = g->version.parent[0];
    return FM_OK;
}

static fm_status note_baseline(gates *g, const fm_oid *oid, const char *word, baseline **out)
{
    for (size_t i = 0; i < g->bases; i++)
        if (fm_oid_eq(&g->base[i].oid, oid)) {
            *out = &g->base[i];
            return FM_OK;
        }
    if (g->bases == BASELINES_MAX)
        return fm_fail(FM_ELIMIT, "%s: gates name more than %u baselines", g->label, BASELINES_MAX);
    *out = &g->base[g->bases++];
    (*out)->oid = *oid;
    snprintf((*out)->name, sizeof(*out)->name, "%s %s", word, fm_ops_short_oid(oid));
    return FM_OK;
}

static fm_status open_baseline(const gates *g, baseline *b)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(g->c->repo, &tree, &b->oid);
    FM_THEN(rc, fm_ops_load_model(g->c, tree, b->name, &b->model));
    fm_tree_free(tree);
    return rc;
}

static fm_status find_baselines(gates *g)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < g->set.count; i++) {
        const fm_policy *p = fm_suite_policy(g->set.suite[i]);
        const char *word = "";
        bool found = false;
        fm_oid oid;
        if (!p->gate || !p->asks_regressions)
            continue;
        rc = baseline_oid(g, p, &oid, &word, &found);
        if (rc == FM_OK && found)
            rc = note_baseline(g, &oid, word, &g->of[i]);
        if (rc < 0)
            rc = fm_error_prefix(rc, "suite '%s'", fm_suite_name(g->set.suite[i]));
    }
    return rc;
}

static bool is_among(const gates *g, size_t suite, size_t first, size_t end)
{
    const baseline *b = g->of[suite];
    return b && b >= g->base + first && b < g->base + end;
}

/* Runs the suites on baselines first to end; with first 0 also on the version. */
static fm_status run_batch(gates *g, size_t first, size_t end)
{
    fm_result_cache cache = fmo_suite_cache(g->c);
    size_t n = 0, count = g->set.count;
    fm_suite_ask *ask = fm_calloc(2 * count, sizeof *ask);
    fm_suite_run *run = fm_calloc(2 * count, sizeof *run);
    fm_suite_run **to = fm_calloc(2 * count, sizeof *to);
    fm_status rc = ask && run && to ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && first == 0 && i < count; i++) {
        to[n] = &g->run[i];
        ask[n++] = (fm_suite_ask){.suite = g->set.suite[i], .model = g->model};
    }
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        if (is_among(g, i, first, end)) {
            to[n] = &g->before[i];
            ask[n++] = (fm_suite_ask){.suite = g->set.suite[i], .model = g->of[i]->model};
        }
    FM_THEN(rc, fm_suites_run(run, ask, n, &cache));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        *to[i] = run[i];
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = fm_quarantine_apply(to[i], &cache);
    fm_free(ask);
    fm_free(run);
    fm_free(to);
    return rc;
}

/* Runs the version and its baselines in batches of a few baselines each. */
static fm_status run_all(gates *g)
{
    fm_status rc = FM_OK;
    size_t first = 0;
    do {
        size_t end = FM_MIN(first + BASELINES_AT_ONCE, g->bases);
        for (size_t i = first; rc == FM_OK && i < end; i++)
            rc = open_baseline(g, &g->base[i]);
        FM_THEN(rc, run_batch(g, first, end));
        for (size_t i = first; i < end; i++) {
            fm_model_close(g->base[i].model);
            g->base[i].model = NULL;
        }
        first = end;
    } while (rc == FM_OK && first < g->bases);
    return rc;
}

static void say_waiver(fm_buf *o, const fm_suite_run *run, size_t i, const char *branch)
{
    const fm_case_result *r = &run->result[i];
    const fm_waiver *w = fm_suite_waiver(run->suite, i);
    if (!w)
        return;
    if (w->over)
        fm_buf_printf(o, "    %s: its waiver ended: until %s\n", r->name, w->until);
    else if (r->verdict == FM_PASS)
        fm_buf_printf(
            o, "    %s passes: its waiver is no longer needed (fmstore suite unwaive %s %s/%s)\n",
            r->name, branch, fm_suite_name(run->suite), r->name);
}

static void say_case(fm_buf *o, const fm_suite_run *run, size_t i)
{
    const fm_case_result *r = &run->result[i];
    const fm_waiver *w = fm_suite_waiver(run->suite, i);
    if (r->flaky) {
        fm_buf_printf(
            o,
            "    quarantined %s: %u of %u repeats passed; 'fmstore results lift REV %s/%s' lets "
            "it count\n",
            r->name, r->repeats_passed, r->repeats, fm_suite_name(run->suite), r->name);
        return;
    }
    if (r->verdict == FM_PASS)
        return;
    fm_buf_printf(o, "    %s%s %s: %s\n", r->waived ? "waived " : "",
                  r->verdict == FM_FAIL ? "FAIL" : "ERROR", r->name, fmo_ui_shown(r->detail, 160));
    if (r->waived && w)
        fm_buf_printf(o, "      waived: %s%s%s\n", fmo_ui_shown(w->reason, 160),
                      w->until ? ", until " : "", w->until ? w->until : "");
}

static void say_run(fm_buf *o, const fm_suite_run *run, const char *label)
{
    fm_buf_printf(o, "  %s  suite %s%s: %zu of %zu passed", label, fm_suite_name(run->suite),
                  fm_suite_is_gate(run->suite) ? " (gate)" : "", run->passed, run->count);
    if (run->waived)
        fm_buf_printf(o, ", %zu waived", run->waived);
    if (run->flaky)
        fm_buf_printf(o, ", %zu quarantined", run->flaky);
    fm_buf_printf(o, "%s\n", run->cached == run->count ? " (cached)" : "");
    for (size_t i = 0; i < run->count; i++) {
        say_case(o, run, i);
        say_waiver(o, run, i, label);
    }
}

static void say_rules(fm_buf *o, const char *why)
{
    for (size_t n; (n = strcspn(why, "\n")) > 0; why += n + 1)
        fm_buf_printf(o, "    gate fails: %.*s\n", (int)n, why);
}

static fm_status judge(gates *g, fm_tally *out)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < g->set.count; i++) {
        const fm_suite_run *run = &g->run[i];
        fm_policy_outcome o;
        fm_buf why, said;
        fm_buf_init(&why, 0);
        fm_buf_init(&said, 0);
        rc = fm_gate_judge(&o, &why, run, g->of[i] ? &g->before[i] : NULL,
                           g->of[i] ? g->of[i]->name : "");
        say_run(&said, run, g->label);
        if (rc == FM_OK && !o.holds) {
            say_rules(&said, fm_buf_cstr(&why));
            out->gates_failed++;
        }
        fmo_ui_say_buf(g->c, FM_UI_NOTE, &said);
        out->passed += run->passed;
        out->count += run->count;
        out->waived += run->waived;
        out->quarantined += run->flaky;
        fm_buf_release(&why);
    }
    return rc;
}

static void gates_release(gates *g)
{
    for (size_t i = 0; i < g->set.count; i++) {
        if (g->run)
            fm_suite_run_release(&g->run[i]);
        if (g->before)
            fm_suite_run_release(&g->before[i]);
    }
    fm_model_close(g->model);
    fm_free(g->run);
    fm_free(g->before);
    fm_free(g->of);
    fm_version_release(&g->version);
    fm_suite_set_free(&g->set);
}

fm_status fm_ops_gate(fm_ops *c, const fm_oid *oid, const fm_tree *tree, const char *label,
                      fm_tally *out)
{
    gates g = {.c = c, .label = label};
    *out = (fm_tally){0};
    fm_status rc = fm_ops_suites(c, oid, tree, &g.set);
    FM_THEN(rc, fm_version_read(c->repo, &g.version, oid));
    if (rc == FM_OK && g.set.count) {
        g.of = fm_calloc(g.set.count, sizeof *g.of);
        g.run = fm_calloc(g.set.count, sizeof *g.run);
        g.before = fm_calloc(g.set.count, sizeof *g.before);
        rc = g.of && g.run && g.before ? FM_OK : FM_ENOMEM;
        FM_THEN(rc, fm_ops_load_model(c, tree, label, &g.model));
        FM_THEN(rc, find_baselines(&g));
        FM_THEN(rc, run_all(&g));
        FM_THEN(rc, judge(&g, out));
        FM_THEN(rc, fm_result_flush(c->repo));
    }
    gates_release(&g);
    return rc;
}
