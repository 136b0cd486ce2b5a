/* json.c - writes a blame as JSON. Keys may be added, but never removed or renamed. */
#include "cli/ops/blame/report/words.h"

static fm_json *history_json(const fmo_blame_more *m)
{
    const fmo_blame *b = m->b;
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = 0; i < b->count; i++) {
        fm_json *o = fmo_version_json(&b->version[i].commit);
        fm_json_put(&rc, o, "names", fm_json_new_str(b->version[i].names));
        fm_json_put(&rc, o, "outcome", fm_json_new_str(blame_verdict_word[b->history.at[i]]));
        fm_json_put(&rc, o, "output", fm_json_new_str(b->version[i].output));
        fm_json_put(&rc, o, "asks", fm_json_new_int(b->history.asks[i]));
        fm_json_put(&rc, o, "fails", fm_json_new_real(b->history.fails[i]));
        fm_json_put(&rc, o, "share", fm_json_new_real(b->history.share[i]));
        if (m->answers.wrong_lp) {
            fm_json_put(&rc, o, "wrong_logprob", fm_json_new_real(m->answers.wrong_lp[i]));
            fm_json_put(&rc, o, "right_logprob", fm_json_new_real(m->answers.right_lp[i]));
        }
        fm_json_push_to(&rc, array, o);
    }
    return array;
}

static fm_json *set_json(const fmo_blame *b, const fm_minimal_set *set)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *units = fm_json_new_array();
    for (size_t u = 0; u < b->unit_count; u++)
        if (set->take[u])
            fm_json_push_to(&rc, units, fm_json_new_str(b->unit[u].name));
    fm_json_put(&rc, o, "units", units);
    fm_json_put(&rc, o, "sufficient", fm_json_new_bool(set->sufficient));
    fm_json_put(&rc, o, "minimal", fm_json_new_bool(set->minimal));
    fm_json_put(&rc, o, "necessary", fm_json_new_bool(set->necessary));
    fm_json_put(&rc, o, "posterior", fm_json_new_real(set->posterior));
    fm_json_put(&rc, o, "runs", fm_json_new_int(set->runs));
    fm_json_put(&rc, o, "rounds", fm_json_new_int(set->rounds));
    return o;
}

static fm_json *ranks_json(const fmo_blame *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t k = 0; k < b->rank_count; k++) {
        if (!b->rank_set.take[k])
            continue;
        fm_json *r = fm_json_new_object();
        fm_json_put(&rc, r, "unit", fm_json_new_str(b->unit[b->rank[k].unit].name));
        fm_json_put(&rc, r, "rank", fm_json_new_int(b->rank[k].rank));
        fm_json_push_to(&rc, list, r);
    }
    fm_json_put(&rc, o, "of", fm_json_new_int((int64_t)b->rank_count));
    fm_json_put(&rc, o, "ranks", list);
    fm_json_put(&rc, o, "sufficient", fm_json_new_bool(b->rank_set.sufficient));
    fm_json_put(&rc, o, "minimal", fm_json_new_bool(b->rank_set.minimal));
    fm_json_put(&rc, o, "runs", fm_json_new_int(b->rank_set.runs));
    return o;
}

static fm_json *shapley_json(const fmo_blame *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t u = 0, k = 0; k < b->shapley.units && u < b->unit_count; u++) {
        if (!b->minimal.take[u])
            continue;
        fm_json *v = fm_json_new_object();
        fm_json_put(&rc, v, "unit", fm_json_new_str(b->unit[u].name));
        fm_json_put(&rc, v, "value", fm_json_new_real(b->shapley.value[k]));
        fm_json_put(&rc, v, "low", fm_json_new_real(b->shapley.low[k]));
        fm_json_put(&rc, v, "high", fm_json_new_real(b->shapley.high[k++]));
        fm_json_push_to(&rc, list, v);
    }
    fm_json_put(&rc, o, "of", fm_json_new_str(b->shapley_margin ? "margin" : "failing"));
    fm_json_put(&rc, o, "nothing", fm_json_new_real(b->shapley.nothing));
    fm_json_put(&rc, o, "whole", fm_json_new_real(b->shapley.whole));
    fm_json_put(&rc, o, "exact", fm_json_new_bool(b->shapley.exact));
    fm_json_put(&rc, o, "runs", fm_json_new_int(b->shapley.runs));
    fm_json_put(&rc, o, "units", list);
    return o;
}

static fm_json *worth_json(const fmo_blame_more *m)
{
    const fmo_blame_step_shapley *w = &m->worth;
    const fm_shapley *s = &w->value;
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t i = s->units; i-- > 0;) {
        char hex[41];
        fm_json *v = fm_json_new_object();
        fm_oid_hex(&m->b->version[w->node[i]].commit.oid, hex);
        fm_json_put(&rc, v, "id", fm_json_new_str(hex));
        fm_json_put(&rc, v, "name", fm_json_new_str(fmo_blame_who(m->b, w->node[i])));
        fm_json_put(&rc, v, "value", fm_json_new_real(s->value[i]));
        fm_json_put(&rc, v, "low", fm_json_new_real(s->low[i]));
        fm_json_put(&rc, v, "high", fm_json_new_real(s->high[i]));
        fm_json_push_to(&rc, list, v);
    }
    fm_json_put(&rc, o, "why_not", fm_json_new_str(w->why_not));
    fm_json_put(&rc, o, "of", fm_json_new_str(w->margin ? "margin" : "failing"));
    fm_json_put(&rc, o, "nothing", fm_json_new_real(s->nothing));
    fm_json_put(&rc, o, "whole", fm_json_new_real(s->whole));
    fm_json_put(&rc, o, "exact", fm_json_new_bool(s->exact));
    fm_json_put(&rc, o, "runs", fm_json_new_int(s->runs));
    fm_json_put(&rc, o, "steps", list);
    return o;
}

static fm_json *tensors_json(const fmo_blame *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "changed", fm_json_new_int((int64_t)b->unit_count));
    if (b->unit_count) {
        fm_json_put(&rc, o, "breaks_parent", set_json(b, &b->minimal));
        fm_json_put(&rc, o, "repairs_child", set_json(b, &b->repair));
    }
    if (b->rank_count)
        fm_json_put(&rc, o, "ranks", ranks_json(b));
    if (b->shapley.units)
        fm_json_put(&rc, o, "shapley", shapley_json(b));
    if (b->shapley_why_not)
        fm_json_put(&rc, o, "shapley_why_not", fm_json_new_str(b->shapley_why_not));
    return o;
}

/* The runs on versions, forms of the case and sums of steps, in order. */
static fm_json *evidence_json(const fmo_blame *b)
{
    static const char *const kind[] = {"case", "form", "mix"};
    const fm_blame_history *h = &b->history;
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < h->evidence_count; i++) {
        const fm_blame_evidence *e = &h->evidence[i];
        fm_json *o = fm_json_new_object(), *steps = fm_json_new_array();
        char hex[41];
        fm_oid_hex(&b->version[e->node].commit.oid, hex);
        fm_json_put(&rc, o, "kind", fm_json_new_str(kind[e->kind]));
        fm_json_put(&rc, o, "version", fm_json_new_str(hex));
        fm_json_put(&rc, o, "round", fm_json_new_int(e->round));
        if (e->kind == FM_BLAME_FORM) {
            fm_json_put(&rc, o, "forms", fm_json_new_int(e->forms.asked));
            fm_json_put(&rc, o, "same", fm_json_new_int(e->forms.same));
        } else {
            fm_json_put(&rc, o, "outcome", fm_json_new_str(blame_verdict_word[e->said.verdict]));
            fm_json_put(&rc, o, "repeat", fm_json_new_int(e->repeat));
        }
        for (size_t k = 0; k < e->step_count && e->kind == FM_BLAME_MIX; k++) {
            fm_oid_hex(&b->version[h->steps[e->step_begin + k]].commit.oid, hex);
            fm_json_push_to(&rc, steps, fm_json_new_str(hex));
        }
        fm_json_put(&rc, o, "steps", steps);
        fm_json_push_to(&rc, list, o);
    }
    return list;
}

static fm_json *answers_json(const fmo_blame_answers *a)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "wrong", fm_json_new_str(a->wrong));
    fm_json_put(&rc, o, "right", fm_json_new_str(a->right));
    fm_json_put(&rc, o, "right_from", fm_json_new_str(a->right_from));
    return o;
}

/* ---- trace ---- */

static fm_json *site_json(const fm_trace *t, unsigned s)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *layers = fm_json_new_array(), *rows = fm_json_new_array();
    for (uint32_t i = 0; i < t->rows[s]; i++) {
        fm_json *row = fm_json_new_array();
        for (uint32_t c = 0; c < t->columns; c++)
            fm_json_push_to(&rc, row, fm_json_new_real(t->effect[s][(size_t)i * t->columns + c]));
        fm_json_push_to(&rc, rows, row);
        fm_json_push_to(&rc, layers, fm_json_new_int(t->layer[s][i]));
    }
    fm_json_put(&rc, o, "layers", layers);
    fm_json_put(&rc, o, "margins", rows);
    return o;
}

static fm_json *grid_json(const fm_trace *t)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "margin", fm_json_new_real(t->margin));
    fm_json_put(&rc, o, "other_margin", fm_json_new_real(t->from_margin));
    for (unsigned s = 0; s < FM_SITES; s++)
        fm_json_put(&rc, o, blame_site_word[s], site_json(t, s));
    return o;
}

static fm_json *trace_json(const fmo_blame_grids *g)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *tokens = fm_json_new_array(), *begin = fm_json_new_array();
    for (uint32_t i = 0; g->token && i < g->grid[0].common; i++)
        fm_json_push_to(&rc, tokens, fm_json_new_str(g->token[i]));
    for (uint32_t c = 0; g->done && c <= g->grid[0].columns; c++)
        fm_json_push_to(&rc, begin, fm_json_new_int(g->grid[0].begin[c]));
    fm_json_put(&rc, o, "done", fm_json_new_bool(g->done));
    fm_json_put(&rc, o, "why_not", fm_json_new_str(g->why_not));
    fm_json_put(&rc, o, "tokens", tokens);
    fm_json_put(&rc, o, "columns", begin);
    if (g->done) {
        fm_json_put(&rc, o, "child_with_parent", grid_json(&g->grid[0]));
        fm_json_put(&rc, o, "parent_with_child", grid_json(&g->grid[1]));
    }
    fm_json_put(&rc, o, "seconds", fm_json_new_real(g->seconds));
    return o;
}

/* ---- steps ---- */

static fm_json *points_json(const fmo_blame_steps *s)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < s->points; i++) {
        fm_json *p = fm_json_new_object();
        fm_json_put(&rc, p, "step", fm_json_new_int(s->point[i].step));
        fm_json_put(&rc, p, "outcome", fm_json_new_str(blame_verdict_word[s->point[i].verdict]));
        fm_json_put(&rc, p, "margin", fm_json_new_real(s->point[i].margin));
        fm_json_put(&rc, p, "kept", fm_json_new_bool(s->point[i].kept));
        fm_json_push_to(&rc, list, p);
    }
    return list;
}

static fm_json *ablations_json(const fmo_blame_steps *s)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < s->ablations; i++) {
        const fmo_blame_ablation *a = &s->ablation[i];
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "what", fm_json_new_str(a->what));
        fm_json_put(&rc, o, "run", fm_json_new_bool(a->run));
        fm_json_put(&rc, o, "why", fm_json_new_str(a->why));
        fm_json_put(&rc, o, "outcome",
                    fm_json_new_str(a->run ? blame_verdict_word[a->verdict] : NULL));
        fm_json_put(&rc, o, "margin", fm_json_new_real(a->margin));
        fm_json_put(&rc, o, "estimate_s", fm_json_new_real(a->estimate_s));
        fm_json_put(&rc, o, "seconds", fm_json_new_real(a->seconds));
        fm_json_push_to(&rc, list, o);
    }
    return list;
}

static fm_json *steps_json(const fmo_blame_steps *s)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *records = fm_json_new_array();
    for (size_t i = 0; i < s->records; i++)
        fm_json_push_to(&rc, records, fm_json_new_int(s->index[i]));
    fm_json_put(&rc, o, "done", fm_json_new_bool(s->done));
    fm_json_put(&rc, o, "why_not", fm_json_new_str(s->why_not));
    fm_json_put(&rc, o, "steps", fm_json_new_int(s->steps));
    fm_json_put(&rc, o, "checkpoints", fm_json_new_int((int64_t)s->states_kept));
    fm_json_put(&rc, o, "passes_after", fm_json_new_int(s->passes_at));
    fm_json_put(&rc, o, "fails_after", fm_json_new_int(s->fails_at));
    fm_json_put(&rc, o, "exact", fm_json_new_bool(s->exact));
    fm_json_put(&rc, o, "points", points_json(s));
    fm_json_put(&rc, o, "records", records);
    fm_json_put(&rc, o, "ablations", ablations_json(s));
    fm_json_put(&rc, o, "training_s", fm_json_new_real(s->plan_s));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(s->seconds));
    return o;
}

/* ---- repairs ---- */

static fm_json *texts_json(char **text, size_t n)
{
    fm_status rc = FM_OK;
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < n; i++)
        fm_json_push_to(&rc, list, fm_json_new_str(text[i]));
    return list;
}

static fm_json *candidate_json(const fmo_blame_candidate *k)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "kind", fm_json_new_str(blame_repair_word[k->kind]));
    fm_json_put(&rc, o, "what", fm_json_new_str(k->what));
    fm_json_put(&rc, o, "run", fm_json_new_bool(k->run));
    fm_json_put(&rc, o, "why", fm_json_new_str(k->why));
    fm_json_put(&rc, o, "offered", fm_json_new_bool(k->offered));
    fm_json_put(&rc, o, "passes", fm_json_new_bool(k->passes));
    fm_json_put(&rc, o, "firm", fm_json_new_bool(k->firm));
    fm_json_put(&rc, o, "margin", fm_json_new_real(k->margin));
    if (k->kind == BLAME_REPAIR_REWEIGHT)
        fm_json_put(&rc, o, "alpha", fm_json_new_real(k->alpha));
    fm_json_put(&rc, o, "moved", fm_json_new_real(k->moved));
    fm_json_put(&rc, o, "cases", fm_json_new_int((int64_t)k->total));
    fm_json_put(&rc, o, "passed", fm_json_new_int((int64_t)k->passed));
    fm_json_put(&rc, o, "passed_before", fm_json_new_int((int64_t)k->passed_before));
    fm_json_put(&rc, o, "repairs", texts_json(k->fixes, k->fix_count));
    fm_json_put(&rc, o, "breaks", texts_json(k->breaks, k->break_count));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(k->seconds));
    return o;
}

static fm_json *repairs_json(const fmo_blame_repairs *r)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t i = 0; i < r->count; i++)
        fm_json_push_to(&rc, list, candidate_json(&r->item[i]));
    fm_json_put(&rc, o, "done", fm_json_new_bool(r->done));
    fm_json_put(&rc, o, "why_not", fm_json_new_str(r->why_not));
    fm_json_put(&rc, o, "candidates", list);
    fm_json_put(&rc, o, "committed", fm_json_new_str(r->committed));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(r->seconds));
    return o;
}

static fm_json *ran_json(const fmo_blame_more *m, bool tensors, bool data)
{
    fm_status rc = FM_OK;
    fmo_blame_lines l = {0};
    fm_json *o = fm_json_new_object();
    fmo_blame_ran_lines(m, tensors, data, &l);
    fm_json_put(&rc, o, "evaluations", fm_json_new_int((int64_t)fmo_blame_evaluations(m)));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(m->seconds));
    fm_json_put(&rc, o, "commands", texts_json(l.line, l.count));
    fmo_blame_lines_release(&l);
    return o;
}

static fm_json *doubts_json(const fmo_blame_more *m, bool tensors, bool data)
{
    fmo_blame_lines l = {0};
    fmo_blame_doubt_lines(m, tensors, data, &l);
    fm_json *list = texts_json(l.line, l.count);
    fmo_blame_lines_release(&l);
    return list;
}

fm_json *fmo_blame_json(const fmo_blame_more *m, bool tensors, bool data)
{
    const fmo_blame *b = m->b;
    fm_status rc = FM_OK;
    char hex[41];
    fm_json *o = fm_json_new_object();
    fm_oid_hex(&b->version[b->history.culprit].commit.oid, hex);
    fm_json_put(&rc, o, "suite", fm_json_new_str(fm_suite_name(b->suite)));
    fm_json_put(&rc, o, "case", fm_json_new_str(fm_suite_case_name(b->suite, b->case_index)));
    fm_json_put(&rc, o, "verdict", fm_json_new_str(fm_blame_class_word(b->history.verdict)));
    fm_json_put(&rc, o, "culprit", fm_json_new_str(hex));
    fm_json_put(&rc, o, "uncertain", fm_json_new_bool(b->history.uncertain));
    fm_json_put(&rc, o, "likely", fm_json_new_str(fm_blame_class_word(b->history.likely)));
    fm_json_put(&rc, o, "posterior", fm_json_new_real(b->history.posterior));
    fm_json_put(&rc, o, "flip_rate", fm_json_new_real(b->history.flip_rate));
    fm_json_put(&rc, o, "runs", fm_json_new_int(b->history.runs));
    fm_json_put(&rc, o, "rounds", fm_json_new_int(b->history.rounds));
    fm_json_put(&rc, o, "note", fm_json_new_str(b->history.note));
    fm_json_put(&rc, o, "history", history_json(m));
    fm_json_put(&rc, o, "evidence", evidence_json(b));
    fm_json_put(&rc, o, "answers", answers_json(&m->answers));
    if (m->worth.value.units || m->worth.why_not)
        fm_json_put(&rc, o, "worth", worth_json(m));
    if (tensors)
        fm_json_put(&rc, o, "tensors", tensors_json(b));
    if (data)
        fm_json_put(&rc, o, "data", fmo_blame_data_json(b));
    if (m->grids.done || m->grids.why_not)
        fm_json_put(&rc, o, "trace", trace_json(&m->grids));
    if (m->steps.done || m->steps.why_not)
        fm_json_put(&rc, o, "steps", steps_json(&m->steps));
    if (m->repairs.done || m->repairs.why_not)
        fm_json_put(&rc, o, "repairs", repairs_json(&m->repairs));
    fm_json_put(&rc, o, "ran", ran_json(m, tensors, data));
    fm_json_put(&rc, o, "unsure", doubts_json(m, tensors, data));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}
