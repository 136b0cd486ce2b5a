/* score_batch.c - scores whole texts, of all jobs together: log-probabilities over windows,
 * classes, and states as vectors. */
#include <string.h>

#include "store/base/mem.h"
#include "testing/run/run.h"

/* ---- windows ---- */

typedef struct windows {
    fm_score_request *req;
    fmv_work **to; /* the work whose tokens [from, end) a window scores */
    size_t *from, *begin;
    size_t n, cap, caps[3];
} windows;

static fm_status add_window(windows *w, fm_model *m, fmv_work *to, size_t begin, size_t from,
                            size_t end)
{
    size_t need = w->n + 1;
    FM_TRY(fm_grow(&w->req, &w->cap, need, sizeof *w->req));
    FM_TRY(fm_grow(&w->to, &w->caps[0], need, sizeof *w->to));
    FM_TRY(fm_grow(&w->from, &w->caps[1], need, sizeof *w->from));
    FM_TRY(fm_grow(&w->begin, &w->caps[2], need, sizeof *w->begin));
    float *out = fm_calloc(end - begin, sizeof *out);
    if (!out)
        return FM_ENOMEM;
    w->req[w->n] = (fm_score_request){.model = m,
                                      .ids = to->ids.id + begin,
                                      .n = end - begin,
                                      .logprobs = out,
                                      .from = from - begin};
    w->to[w->n] = to;
    w->from[w->n] = from;
    w->begin[w->n++] = begin;
    return FM_OK;
}

static void windows_release(windows *w)
{
    for (size_t i = 0; i < w->n; i++)
        fm_free(w->req[i].logprobs);
    fm_free(w->req);
    fm_free(w->to);
    fm_free(w->from);
    fm_free(w->begin);
}

static fm_status run_windows(fm_engine *e, fmv_job *job, size_t jobs)
{
    windows w = {0};
    size_t begin, from, end;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++) {
        fmv_job *j = &job[i];
        if (j->broken || j->c->scoring != FMV_SCORE_ROLLING)
            continue;
        for (size_t k = 0;
             rc == FM_OK && fmv_window(j->work->ids.count, fmv_reach(j), k, &begin, &from, &end);
             k++)
            rc = add_window(&w, j->model, j->work, begin, from, end);
    }
    if (rc == FM_OK && w.n)
        rc = fm_score_many(e, w.req, w.n);
    for (size_t i = 0; rc == FM_OK && i < w.n; i++) {
        size_t skip = w.from[i] - w.begin[i];
        memcpy(w.to[i]->logprobs + w.from[i], w.req[i].logprobs + skip,
               (w.req[i].n - skip) * sizeof(float));
    }
    windows_release(&w);
    return rc;
}

/* ---- classes and states ---- */

static fm_status run_texts(fm_engine *e, fmv_job *job, size_t jobs)
{
    size_t n = 1, classes = 0, states = 0;
    for (size_t i = 0; i < jobs; i++)
        n += job[i].count;
    fm_classify_request *c = fm_calloc(n, sizeof *c);
    fm_embed_request *s = fm_calloc(n, sizeof *s);
    fm_status rc = c && s ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++) {
        fmv_job *j = &job[i];
        for (size_t k = 0; k < j->count && !j->broken; k++) {
            fmv_work *w = &j->work[k];
            if (j->c->scoring == FMV_SCORE_CLASS)
                c[classes++] =
                    (fm_classify_request){j->model, w->ids.id, w->ids.count, w->logprobs};
            else if (j->c->scoring == FMV_SCORE_EMBED)
                s[states++] = (fm_embed_request){j->model, w->ids.id, w->ids.count, w->logprobs};
        }
    }
    if (rc == FM_OK && classes)
        rc = fm_classify_many(e, c, classes);
    if (rc == FM_OK && states)
        rc = fm_embed_many(e, s, states);
    fm_free(c);
    fm_free(s);
    return rc;
}

fm_status fmv_look_all(fm_engine *e, fmv_job *job, size_t jobs)
{
    fm_status rc = run_windows(e, job, jobs);
    FM_THEN(rc, run_texts(e, job, jobs));
    if (rc == FM_OK || rc == FM_ENOMEM)
        return rc;
    fm_error_clear(); /* a version that cannot be scored fails the batch: run each job alone */
    rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < jobs; i++) {
        rc = run_windows(e, &job[i], 1);
        FM_THEN(rc, run_texts(e, &job[i], 1));
        if (rc < 0)
            rc = fmv_case_error(&job[i], rc);
    }
    return rc;
}
