/* blame_ask.c - the asks of a search for a version, which update counts and worlds. */
#include "store/base/mem.h"
#include "testing/search/hypotheses.h"

fm_status fmv_keep_evidence(fmv_search *s, const fm_blame_evidence *e)
{
    fm_blame_history *out = s->out;
    FM_TRY(
        fm_grow(&out->evidence, &s->evidence_cap, out->evidence_count + 1, sizeof *out->evidence));
    out->evidence[out->evidence_count++] = *e;
    return FM_OK;
}

uint64_t fmv_wrong_answer(const fmv_search *s, size_t node)
{
    const fm_blame_history *h = s->out;
    uint64_t best = 0;
    size_t most = 0;
    for (size_t i = 0; i < h->evidence_count; i++) {
        size_t same = 0;
        const fm_blame_evidence *e = &h->evidence[i];
        if (e->kind != FM_BLAME_CASE || e->node != node || e->said.verdict != FM_FAIL)
            continue;
        for (size_t k = 0; k <= i; k++)
            same += h->evidence[k].kind == FM_BLAME_CASE && h->evidence[k].node == node &&
                    h->evidence[k].said.verdict == FM_FAIL &&
                    h->evidence[k].said.answer == e->said.answer;
        if (same > most) {
            most = same;
            best = e->said.answer;
        }
    }
    return best;
}

/* Updates counts and worlds by one reply. */
static fm_status take_reply(fmv_search *s, const fm_blame_ask *ask, const fm_blame_reply *said)
{
    const fm_blame_evidence e = {.kind = FM_BLAME_CASE,
                                 .node = ask->node,
                                 .repeat = ask->repeat,
                                 .said = *said,
                                 .round = s->out->rounds};
    FM_TRY(fmv_keep_evidence(s, &e));
    s->can[ask->node] = said->verdict != FM_ERROR_CASE && s->opts.flip_rate != 0;
    if (said->verdict == FM_ERROR_CASE) {
        s->unasked[ask->node] = true;
        if (ask->node == 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "the case cannot be run on this version, so there is no "
                           "failure to trace; 'fmstore test' says why");
        return FM_OK;
    }
    s->failed[ask->node] += said->verdict == FM_FAIL;
    s->passed[ask->node] += said->verdict == FM_PASS;
    if (s->w.n)
        fmv_hypotheses_learn(&s->w, ask->node, said->verdict == FM_FAIL);
    return FM_OK;
}

fm_status fmv_ask_nodes(fmv_search *s, const size_t *node, size_t n)
{
    fm_blame_history *out = s->out;
    n = FM_MIN(n, (size_t)(s->opts.max_runs - out->runs));
    if (!n)
        return FM_OK;
    fm_blame_ask *ask = fm_calloc(n, sizeof *ask);
    fm_blame_reply *said = fm_calloc(n, sizeof *said);
    fm_status rc = ask && said ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        ask[i] = (fm_blame_ask){node[i], out->asks[node[i]]++};
    FM_THEN(rc, s->oracle->ask(s->oracle->ctx, ask, n, said));
    if (rc == FM_OK) {
        out->rounds++;
        out->runs += (uint32_t)n;
    }
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = take_reply(s, &ask[i], &said[i]);
    if (rc == FM_OK && s->w.n)
        fmv_hypotheses_normalize(&s->w);
    fm_free(ask);
    fm_free(said);
    return rc;
}
