/* classify.c - classes of whole texts: a model's head (model/class_head.h) over their states. */
#include "infer/engine/engine.h"
#include "infer/tasks/embed.h"
#include "store/base/math/detmath.h"
#include "store/base/mem.h"

static fm_status check(const fm_classify_request *q)
{
    const fmi_class_head *h = &fmi_priv(q->model)->classifier;
    if (h->classes == 0)
        return fm_fail(FM_EUNSUPPORTED, "classify: this version has no classification head; derive "
                                        "one with objective=classify");
    if (h->refused[0])
        return fm_fail(FM_EUNSUPPORTED, "classify: %s", h->refused);
    return q->n ? FM_OK : fm_fail(FM_EINVAL, "classify: no tokens");
}

/* Computes the logits [classes] of one state [hidden]; room: device [2 hidden + classes]. */
static fm_status run_head(fm_engine *e, const fmi_class_head *h, const float *state, float *room,
                          float *logits)
{
    fm_backend *be = e->be;
    uint32_t n = h->out.in;
    float *x = room, *y = room + n, *z = room + 2 * (size_t)n;
    FM_TRY(be->upload(be, x, state, n * sizeof(float)));
    if (h->dense.w) {
        be->linear(be, y, n, x, n, h->dense.w, h->dense.bias, NULL, 1);
        if (h->norm) {
            be->act(be, h->act, y, n, y, n, NULL, 0, 1, n);
            be->layernorm(be, y, y, h->norm, h->norm_b, 1, n, n, h->eps);
        } else if (h->relu)
            be->act(be, FM_ACT_RELU, y, n, y, n, NULL, 0, 1, n);
        else
            be->softcap(be, y, n, 1, n, 1.0f); /* tanh */
        x = y;
    }
    be->linear(be, z, h->out.out, x, n, h->out.w, h->out.bias, NULL, 1);
    return be->download(be, logits, z, h->out.out * sizeof(float));
}

/* Log softmax in double over ascending classes, rounded once. */
static void log_softmax(float *x, uint32_t n)
{
    double max = (double)x[0], sum = 0.0;
    for (uint32_t i = 1; i < n; i++)
        max = FM_MAX(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += fm_exp((double)x[i] - max);
    double lse = max + fm_log(sum);
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] - lse);
}

static fm_status heads(fm_engine *e, const fm_classify_request *req, size_t n, const double *sum,
                       size_t wide)
{
    fm_backend *be = e->be;
    uint32_t classes = 0;
    void *room = NULL;
    float *state = fm_calloc(wide, sizeof(*state));
    fm_status rc = state ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        classes = FM_MAX(classes, fmi_priv(req[i].model)->classifier.classes);
    FM_THEN(rc, be->alloc(be, &room, (2 * wide + classes) * sizeof(float)));
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fmi_class_head *h = &fmi_priv(req[i].model)->classifier;
        double count = h->mean ? (double)req[i].n : 1.0; /* the sum of one token is exact */
        for (uint32_t k = 0; k < h->out.in; k++)
            state[k] = (float)(sum[i * wide + k] / count);
        rc = run_head(e, h, state, room, req[i].logprobs);
        if (rc == FM_OK && !h->scores)
            log_softmax(req[i].logprobs, h->classes);
    }
    if (room)
        be->free(be, room);
    fm_free(state);
    return rc;
}

fm_status fm_classify_many(fm_engine *e, const fm_classify_request *req, size_t n)
{
    size_t wide = 1;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = check(&req[i]);
        wide = FM_MAX(wide, (size_t)req[i].model->arch.hidden);
    }
    fmi_states_request *q = fm_calloc(n + 1, sizeof(*q));
    double *sum = fm_calloc(n * wide + 1, sizeof(*sum));
    if (rc == FM_OK && (!q || !sum))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_arch *a = &req[i].model->arch;
        bool mean = fmi_priv(req[i].model)->classifier.mean;
        size_t at = fmi_class_token(req[i].ids, req[i].n, a->sw.encoder, a->pad);
        q[i] = (fmi_states_request){.model = req[i].model,
                                    .ids = req[i].ids,
                                    .n = a->sw.encoder ? req[i].n : at + 1,
                                    .first = mean ? 0 : at,
                                    .last = mean ? req[i].n - 1 : at,
                                    .sum = sum + i * wide,
                                    .what = "classify"};
    }
    FM_THEN(rc, fmi_states_many(e, q, n));
    FM_THEN(rc, heads(e, req, n, sum, wide));
    fm_free(q);
    fm_free(sum);
    return rc;
}
