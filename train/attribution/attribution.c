/* attribution.c - the table of methods, their common parts, and training again without a group. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"
#include "train/data/dataset.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOGETHER = 4 }; /* children of one run */

const fm_attribution_method fm_attribution_methods[FM_ATTRIBUTIONS] = {
    [FM_ATTR_PATH] = {"path", "dot product of gradients on the step's way", true},
    [FM_ATTR_TRACIN] = {"tracin", "TracIn: dot product of gradients at kept states", true},
    [FM_ATTR_COSINE] = {"cosine", "cosine of gradients on the step's way", true},
    [FM_ATTR_DOT] = {"dot", "dot product of gradients at the end", true},
    [FM_ATTR_INFLUENCE] = {"influence", "influence through a damped Gauss-Newton matrix (EK-FAC)",
                           true},
    [FM_ATTR_RELATIF] = {"relatif", "influence over the example's own size", true},
    [FM_ATTR_BM25] = {"bm25", "BM25 over tokens", false},
};

fm_status fm_attribution_find(fm_attribution_kind *out, const char *name)
{
    char list[256] = "";
    size_t n = 0;

    for (int i = 0; i < FM_ATTRIBUTIONS; i++) {
        const char *own = fm_attribution_methods[i].name;
        *out = (fm_attribution_kind)i;
        if (strcmp(own, name) == 0)
            return FM_OK;
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", own);
    }
    return fm_fail(FM_EINVAL, "no method '%s' that ranks examples; there are %s", name, list);
}

fm_status fm_attribution_scores(const fm_attribution_in *in, double *const score[FM_ATTRIBUTIONS])
{
    size_t n = fm_dataset_count(in->job->data);
    bool gradients = false;
    fm_status rc = FM_OK;

    for (int i = 0; i < FM_ATTRIBUTIONS; i++) {
        if (!score[i])
            continue;
        memset(score[i], 0, n * sizeof(**score));
        gradients = gradients || fm_attribution_methods[i].gradients;
    }
    if (score[FM_ATTR_BM25])
        rc = fmt_attribution_bm25(in, score[FM_ATTR_BM25]);
    return rc == FM_OK && gradients ? fmt_attribution_gradients(in, score) : rc;
}

/* ---- the digest of the run ---- */
static fm_status note_run(void *ctx, uint32_t child, const fm_digest *run, fm_train_state *out,
                          bool *found)
{
    (void)child;
    (void)out;
    *(fm_digest *)ctx = *run;
    *found = false;
    return FM_OK;
}

fm_status fm_attribution_run(const fm_attribution_in *in, fm_digest *run)
{
    fm_train_checkpoints checkpoints = {.ctx = run, .load = note_run};
    fm_train_job job = *in->job;
    fm_train_result result = {0};
    fmt_child ch;

    job.checkpoints = &checkpoints;
    job.held_out = NULL;
    job.held_outs = job.eval_every = 0;
    fm_status rc = fmt_child_open(&ch, in->e, in->p, &job, 0, &result);
    FM_THEN(rc, fmt_child_resume(&ch));
    fmt_child_release(&ch);
    return rc;
}

/* ---- training again ---- */
/* The data set without the examples that are left out; it borrows its examples from d. */
static fm_status subset(fm_dataset *out, const fm_dataset *d, const bool *without, const char *name)
{
    *out = *d;
    out->train = (fmt_examples){0};
    out->train.item = fm_calloc(d->train.count, sizeof(*out->train.item));
    out->train.info = fm_calloc(d->train.count, sizeof(*out->train.info));
    if (!out->train.item || !out->train.info)
        return FM_ENOMEM;
    for (size_t i = 0; i < d->train.count; i++) {
        if (without && without[i])
            continue;
        out->train.item[out->train.count] = d->train.item[i];
        out->train.info[out->train.count++] = d->train.info[i];
    }
    return out->train.count > 0
               ? FM_OK
               : fm_fail(FM_EINVAL, "%s: a group of all examples leaves nothing to train on", name);
}

static bool show(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    const fm_attribution_in *in = ctx;

    (void)drop;
    if (in->progress && n > 0)
        in->progress(in->ctx, p->step + 1, p->steps);
    return false;
}

static fm_status retrain_some(fmt_walk *w, const bool *const *without, size_t n, double *margin)
{
    const fm_attribution_in *in = w->in;
    fm_dataset data[TOGETHER] = {0};
    fm_train_job job[TOGETHER];
    fm_train_result result[TOGETHER] = {0};
    fm_status rc = FM_OK;

    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        job[i] = *in->job;
        job[i].data = &data[i];
        job[i].checkpoints = NULL;
        job[i].held_out = NULL;
        job[i].held_outs = job[i].eval_every = 0;
        rc = subset(&data[i], in->job->data, without[i], in->job->name);
    }
    FM_THEN(rc, fm_train_run(in->e, in->p, job, n, result, show, (void *)(uintptr_t)in));
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        if (result[i].failed != FM_OK)
            rc = fm_fail(result[i].failed, "%s",
                         result[i].why ? result[i].why : "training again failed");
        FM_THEN(rc, fmt_walk_put(w, &result[i]));
        FM_THEN(rc, fmt_walk_margin(w, &margin[i]));
    }
    for (size_t i = 0; i < n; i++) {
        fm_train_result_release(&result[i]);
        fm_free(data[i].train.item);
        fm_free(data[i].train.info);
    }
    return rc;
}

fm_status fm_attribution_retrain(const fm_attribution_in *in, const bool *const *without,
                                 size_t groups, double *margin)
{
    bool alone = in->job->config.method == FM_METHOD_PRETRAIN;
    fmt_walk w;
    fm_status rc = fmt_walk_open(&w, in, false);

    for (size_t at = 0; at < groups && rc == FM_OK;) {
        size_t n = FM_MIN(groups - at, alone ? (size_t)1 : (size_t)TOGETHER);
        rc = retrain_some(&w, without + at, n, margin + at);
        at += n;
    }
    fmt_walk_close(&w);
    return rc;
}

fm_status fm_attribution_margin(const fm_attribution_in *in, double *margin)
{
    fmt_walk w;
    fm_status rc = fmt_walk_open(&w, in, false);

    FM_THEN(rc, fmt_walk_stand(&w, w.points));
    FM_THEN(rc, fmt_walk_margin(&w, margin));
    fmt_walk_close(&w);
    return rc;
}

static void ranks(double *rank, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t less = 0;
        size_t same = 0;
        for (size_t k = 0; k < n; k++) {
            less += v[k] < v[i];
            same += !(v[k] < v[i]) && !(v[k] > v[i]);
        }
        rank[i] = (double)less + ((double)same - 1.0) / 2.0;
    }
}

double fm_spearman(const double *a, const double *b, size_t n)
{
    double *r = n >= 2 ? fm_calloc(2 * n, sizeof(*r)) : NULL;
    double mean = ((double)n - 1.0) / 2.0;
    double ab = 0.0;
    double aa = 0.0;
    double bb = 0.0;

    if (!r)
        return (double)NAN;
    ranks(r, a, n);
    ranks(r + n, b, n);
    for (size_t i = 0; i < n; i++) {
        ab += (r[i] - mean) * (r[n + i] - mean);
        aa += (r[i] - mean) * (r[i] - mean);
        bb += (r[n + i] - mean) * (r[n + i] - mean);
    }
    fm_free(r);
    return aa > 0.0 && bb > 0.0 ? ab / sqrt(aa * bb) : (double)NAN;
}
