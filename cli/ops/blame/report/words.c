/* words.c - makes the texts of a blame that its reports share. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/blame/report/words.h"
#include "store/base/mem.h"

const char *const blame_verdict_word[] = {"pass", "FAIL", "error"};
const char *const blame_site_word[] = {"residual", "attention", "mlp"};
const char *const blame_repair_word[] = {"revert", "reweight", "drop", "file"};

void fmo_blame_line(fmo_blame_lines *l, const char *fmt, ...)
{
    va_list args;
    fm_buf text;
    if (l->rc < 0)
        return;
    l->rc = fm_grow(&l->line, &l->cap, l->count + 1, sizeof *l->line);
    if (l->rc < 0)
        return;
    char small[1024];
    va_start(args, fmt);
    (void)vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    fm_buf_init(&text, 0);
    fm_buf_str(&text, small);
    l->line[l->count] = fm_buf_take(&text);
    l->rc = l->line[l->count] ? FM_OK : FM_ENOMEM;
    l->count += l->rc == FM_OK;
}

void fmo_blame_lines_release(fmo_blame_lines *l)
{
    for (size_t i = 0; i < l->count; i++)
        fm_free(l->line[i]);
    fm_free(l->line);
    memset(l, 0, sizeof *l);
}

const char *fmo_blame_who(const fmo_blame *b, size_t node)
{
    static char ring[4][200];
    static unsigned at;
    char *out = ring[at++ % 4];
    const fm_version *v = &b->version[node].commit;
    if (b->version[node].names[0])
        snprintf(out, sizeof *ring, "%s (%s, %s)", b->version[node].names,
                 fm_ops_short_oid(&v->oid), v->kind);
    else
        snprintf(out, sizeof *ring, "%s (%s)", fm_ops_short_oid(&v->oid), v->kind);
    return out;
}

void fmo_blame_verdict_text(const fmo_blame *b, char *out, size_t bytes)
{
    const fm_blame_history *h = &b->history;
    const char *who = fmo_blame_who(b, h->culprit);
    char text[500] = "";
    switch (h->verdict) {
    case FM_BLAME_PASSES:
        snprintf(out, bytes, "nothing to blame: the case passes here");
        return;
    case FM_BLAME_INHERITED:
        snprintf(text, sizeof text, "inherited: it fails as far back as %s", who);
        break;
    case FM_BLAME_INTRODUCED:
        snprintf(text, sizeof text, "introduced by %s: its parents pass, it fails", who);
        break;
    case FM_BLAME_REINTRODUCED:
        snprintf(text, sizeof text, "fixed, then broken again by %s", who);
        break;
    case FM_BLAME_EXPOSED:
        if (h->source != SIZE_MAX)
            snprintf(text, sizeof text,
                     "exposed by %s: its parents pass, but the fault is older: %s", who,
                     fmo_blame_who(b, h->source));
        else
            snprintf(text, sizeof text, "exposed by %s: its parents pass, but the fault is older",
                     who);
        break;
    case FM_BLAME_INTERACTION:
        snprintf(text, sizeof text, "interaction: %s fails, though what it is made of passes", who);
        for (size_t i = 0; i < h->partner_count && i < 4; i++) {
            size_t len = strlen(text);
            snprintf(text + len, sizeof text - len, "%s%s", i ? ", " : "; it needs ",
                     fmo_blame_who(b, h->partner[i]));
        }
        break;
    case FM_BLAME_FLAKY:
        snprintf(text, sizeof text, "flaky: repeats disagree from %s on", who);
        break;
    case FM_BLAME_CANNOT_TELL:
        snprintf(text, sizeof text, "cannot tell; likeliest is %s by %s",
                 fm_blame_class_word(h->likely), who);
        break;
    }
    snprintf(out, bytes, "%s (%.0f %%, %u asks)", text, 100 * h->posterior, h->runs);
}

static fm_status take_text(void *ctx, fm_span text)
{
    fmo_blame_line(ctx, "%.*s", (int)FM_MIN(text.len, (size_t)1000), (const char *)text.data);
    return ((fmo_blame_lines *)ctx)->rc;
}

void fmo_blame_case_lines(const fmo_blame_more *m, fmo_blame_lines *out)
{
    fm_status rc = fm_suite_case_texts(m->b->suite, m->b->case_index, take_text, out);
    FM_THEN(out->rc, rc);
}

void fmo_blame_ran_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out)
{
    const fmo_blame *b = m->b;
    for (size_t i = 0; i < b->count; i++)
        if (b->history.asks[i] && b->history.at[i] != FM_ERROR_CASE && m->case_spec)
            fmo_blame_line(out, "fmstore test %s --suite %s",
                           fm_ops_short_oid(&b->version[i].commit.oid), fm_suite_name(b->suite));
    const char *oid = fm_ops_short_oid(&b->version[0].commit.oid);
    char words[600];
    if (m->case_spec)
        snprintf(words, sizeof words, "fmstore blame %s --case %s", oid, m->case_spec);
    else
        snprintf(words, sizeof words, "fmstore blame %s --prompt ... --expect ...", oid);
    const char *worth = m->worth.value.units ? " --shapley" : "";
    if (tensors)
        fmo_blame_line(out, "%s --tensors%s%s --max-runs %u", words, b->how.ranks ? " --ranks" : "",
                       b->how.shapley ? " --shapley" : "", m->max_runs);
    if (data)
        fmo_blame_line(out, "%s --data%s", words, tensors ? "" : worth);
    if (m->grids.done)
        fmo_blame_line(out, "%s --trace%s", words, tensors || data ? "" : worth);
    if (m->steps.done)
        fmo_blame_line(out, "%s --steps%s --budget %llu", words, m->rederive ? " --rederive" : "",
                       (unsigned long long)m->budget_s);
    if (m->repairs.done)
        fmo_blame_line(out, "%s --repairs%s --budget %llu", words, m->rederive ? " --rederive" : "",
                       (unsigned long long)m->budget_s);
    bool trained = false;
    if (fmo_replay_can(b->c, &b->version[b->history.culprit].commit.oid, &trained) == FM_OK &&
        trained)
        fmo_blame_line(out, "fmstore replay %s",
                       fm_ops_short_oid(&b->version[b->history.culprit].commit.oid));
    fm_error_clear();
}

static void doubts_of_tensors(const fmo_blame *b, fmo_blame_lines *out)
{
    if (!b->unit_count)
        return;
    if (!b->minimal.sufficient)
        fmo_blame_line(out,
                       "with all changed tensors of the child the parent still passes: the cause "
                       "lies outside of them (tokenizer, template, config)");
    else if (!b->minimal.necessary)
        fmo_blame_line(out,
                       "the child fails without the sufficient set too: there is another cause "
                       "beside it");
    if (!b->minimal.minimal || !b->repair.minimal)
        fmo_blame_line(out, "the runs were used up (--max-runs): smaller sets may do");
    if (b->minimal.sufficient && b->minimal.minimal)
        fmo_blame_line(out,
                       "a minimal set is one that does; others may do as well, also smaller ones");
}

static void doubts_of_more(const fmo_blame_more *m, fmo_blame_lines *out)
{
    const fmo_blame_steps *s = &m->steps;
    if (m->grids.done)
        fmo_blame_line(out,
                       "patching says which state decides the answer, not which weights are wrong: "
                       "the tensors do that");
    if (s->done && !s->exact && s->fails_at)
        fmo_blame_line(out,
                       "the step lies between %u and %u of %u; to find it trains them again, about "
                       "%.0f s: --steps --rederive",
                       s->passes_at, s->fails_at, s->steps,
                       s->plan_s * s->fails_at / FM_MAX(s->steps, 1u));
    if (s->done && s->exact)
        fmo_blame_line(
            out, "the case may turn more than once in a run; this is the first turn among the "
                 "states that were asked");
}

void fmo_blame_doubt_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out)
{
    const fmo_blame *b = m->b;
    if (b->history.uncertain)
        fmo_blame_line(out, "a version in between cannot be run here; it may have begun there");
    if (b->history.note[0])
        fmo_blame_line(out, "%s", b->history.note);
    if (b->history.posterior < 0.9999 && b->history.verdict != FM_BLAME_PASSES)
        fmo_blame_line(out, "the verdict has a posterior of %.1f %% at a flip rate of %.1f %%",
                       100 * b->history.posterior, 100 * b->history.flip_rate);
    if (tensors)
        doubts_of_tensors(b, out);
    if (data && b->example_count && !m->repairs.done)
        fmo_blame_line(out,
                       "the ranking of examples is a statistic of gradients: only training without "
                       "them shows whether they did it (--repairs --rederive)");
    doubts_of_more(m, out);
    if (m->answers.wrong && !m->answers.right)
        fmo_blame_line(
            out, "no version in the history passes: there is no right answer to compare with");
}

uint64_t fmo_blame_evaluations(const fmo_blame_more *m)
{
    return m->b->history.runs + m->b->minimal.runs + m->b->repair.runs + m->b->rank_set.runs +
           m->b->shapley.runs + m->worth.value.runs + m->runs;
}

double fmo_blame_share(const fm_trace *t, unsigned site, size_t cell)
{
    double whole = t->from_margin - t->margin;
    return fabs(whole) < 1e-12 ? 0 : (t->effect[site][cell] - t->margin) / whole;
}

bool fmo_blame_turned(const fm_trace *t, unsigned site, size_t cell)
{
    return (t->effect[site][cell] > 0) != (t->margin > 0);
}

char *fmo_blame_column_text(const fmo_blame_grids *g, const fm_trace *t, uint32_t c)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    for (uint32_t i = t->begin[c]; i < t->begin[c + 1]; i++)
        fm_buf_str(&text, g->token[i]);
    return fm_buf_take(&text);
}

long fmo_blame_unit_layer(const char *name, const char **module)
{
    const char *layers = strstr(name, "layers.");
    char *end = NULL;
    *module = name;
    if (!layers)
        return -1;
    long layer = strtol(layers + strlen("layers."), &end, 10);
    if (!end || *end != '.')
        return -1;
    *module = end + 1;
    return layer;
}

/* ---- releasing ---- */

static void release_steps(fmo_blame_steps *s)
{
    for (size_t i = 0; i < s->records; i++)
        fm_free(s->preview[i]);
    for (size_t i = 0; i < s->ablations; i++) {
        fm_free(s->ablation[i].what);
        fm_free(s->ablation[i].why);
    }
    fm_free(s->preview);
    fm_free(s->index);
    fm_free(s->record);
    fm_free(s->ablation);
    fm_free(s->point);
    fm_free(s->why_not);
}

static void release_candidate(fmo_blame_candidate *k)
{
    for (size_t i = 0; i < k->break_count; i++)
        fm_free(k->breaks[i]);
    for (size_t i = 0; i < k->fix_count; i++)
        fm_free(k->fixes[i]);
    fm_free(k->breaks);
    fm_free(k->fixes);
    fm_free(k->what);
    fm_free(k->why);
    fm_tree_free(k->tree);
    if (k->made)
        fmo_blame_overlay_release(k->made);
    fm_free(k->made);
    fm_json_free(k->recipe);
    fm_json_free(k->log);
}

void fmo_blame_more_release(fmo_blame_more *m)
{
    fmo_blame_grids *g = &m->grids;
    for (uint32_t i = 0; g->token && i < g->grid[0].common; i++)
        fm_free(g->token[i]);
    fm_free(g->token);
    fm_free(g->why_not);
    fm_trace_release(&g->grid[0]);
    fm_trace_release(&g->grid[1]);
    fm_shapley_release(&m->worth.value);
    fm_free(m->worth.why_not);
    release_steps(&m->steps);
    for (size_t i = 0; i < m->repairs.count; i++)
        release_candidate(&m->repairs.item[i]);
    fm_free(m->repairs.item);
    fm_free(m->repairs.why_not);
    fm_free(m->repairs.committed);
    fm_free(m->answers.wrong);
    fm_free(m->answers.right);
    fm_free(m->answers.right_from);
    fm_free(m->answers.wrong_lp);
    fm_engine_free(m->other);
}
