/* gradients.c - loss and gradients of one batch, for tests against references; attribution.h ranks
 * examples. */
#include "train/net/method.h"
#include "train/pass/pass.h"

#include "store/adapted.h"
#include "store/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct probe { /* A net whose gradients are wanted at the given values. */
    fm_tree *stem;     /* the tree without the adapter that trains */
    fm_model *model;
    fmt_net net;
    fmt_params ps;
    fmt_lane lane;
    fmt_batch_how how;
    fmt_pass *pass;
    fm_json *config; /* of the adapter that trains */
} probe;

static void probe_release(probe *b)
{
    fmt_pass_free(b->pass);
    fmt_batch_release(&b->lane.batch);
    if (b->lane.mem)
        b->net.be->free(b->net.be, b->lane.mem);
    fmt_params_release(&b->ps);
    fmt_net_release(&b->net);
    fm_model_close(b->model);
    fm_json_free(b->config);
    fm_tree_free(b->stem);
}

static fm_status probe_load(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                            const char *without)
{
    fm_backend *be = fm_engine_backend(e);
    const char *lacks = fm_backend_lacks(be, true);

    if (lacks)
        return fm_fail(FM_EUNSUPPORTED, "the %s backend cannot train: it lacks %s", be->name,
                       lacks);
    FM_TRY(fmt_tree_without(&b->stem, tree, without));
    FM_TRY(fm_model_load(&b->model, e, b->stem, p, "gradients"));
    FM_TRY(fmt_net_init(&b->net, be, fm_model_arch(b->model), b->model));
    if (!b->net.outer[FMT_HEAD].w)
        return fm_fail(FM_EUNSUPPORTED, "%s has no language head: no gradient of its next token",
                       b->net.arch.family);
    return FM_OK;
}

/* DoRA's norms, and what formulas begin with, are those of the weights as the adapters below have
 * changed them. */
static fm_status prepare(probe *b, const fm_tree *tree, const fm_provider *p)
{
    fm_adapted *adapted = NULL;
    fm_status rc = fm_adapted_open(&adapted, tree, p, FM_ADAPTED_RUN, FM_DTYPE_NONE, "gradients");

    if (rc == FM_OK)
        rc = fmt_dora_prepare(&b->net, fm_adapted_tree(adapted), fm_adapted_provider(adapted));
    FM_THEN(rc, fmt_fold_prepare(&b->net, fm_adapted_tree(adapted), fm_adapted_provider(adapted)));
    fm_adapted_close(adapted);
    return rc;
}

/* For a tree with adapters: the adapter at prefix trains, and the net gets its values. */
static fm_status probe_adapter(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                               const char *prefix)
{
    FM_TRY(probe_load(b, e, tree, p, prefix));

    FM_TRY(fmt_method_declare_from(&b->net, &b->ps, b->stem, tree, p, prefix, &b->config));
    FM_TRY(fmt_params_alloc(&b->ps, b->net.be, false));
    FM_TRY(fmt_net_bind(&b->net, &b->ps, true));
    FM_TRY(prepare(b, b->stem, p));
    FM_TRY(fmt_params_load(&b->ps, tree, p, prefix, true));
    return fmt_net_refresh(&b->net, &b->ps);
}

static fm_status probe_full(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p)
{
    fm_param param;
    FM_TRY(probe_load(b, e, tree, p, "tokenizer/"));

    for (uint32_t i = 0; fm_arch_param(&b->net.arch, i, &param); i++)
        if (fmt_place_trains(param.place))
            FM_TRY(fmt_net_train(&b->net, &b->ps, param.name, &param.shape, param.name));
    FM_TRY(fmt_params_alloc(&b->ps, b->net.be, false));
    return fmt_net_bind(&b->net, &b->ps, false);
}

/* Adds up the gradients of the sequences, scaled to give the gradient of the mean loss. */
static fm_status probe_run(probe *b, const fmt_seq_in *s, size_t n, double *loss)
{
    fmt_lane *lane = &b->lane;
    fm_status rc = fmt_batch_build(&lane->batch, s, n, &b->how);

    if (rc < 0)
        return rc;
    uint32_t labels = lane->batch.labels;
    lane->dloss = labels > 0 ? (float)(1.0 / (double)labels) : 0.0f;
    lane->loss = 0.0;
    fmt_params_zero_grad(&b->ps);
    if (rc == FM_OK && labels > 0)
        rc = fmt_pass_run(b->pass, &lane, 1);
    *loss = labels > 0 ? lane->loss / (double)labels : 0.0;
    return rc == FM_OK ? fmt_fold_gather(&b->net, &b->ps) : rc;
}

static fm_status probe_pass(probe *b)
{
    fmt_lane *lane = &b->lane;

    lane->net = &b->net;
    lane->ps = &b->ps;
    lane->objective = &fmt_next_token;
    return fmt_pass_new(&b->pass, b->net.be, &lane, 1, &lane->most, false);
}

static fm_status probe_batch(probe *b, const int32_t *ids, const int32_t *labels, uint32_t batch,
                             uint32_t tokens, double *loss)
{
    fmt_seq_in *s = fm_calloc(batch, sizeof(*s));
    fm_status rc = s ? FM_OK : FM_ENOMEM;

    fmt_virtual_how(&b->net, &b->how);
    for (uint32_t i = 0; rc == FM_OK && i < batch; i++) {
        size_t at = (size_t)i * tokens;
        s[i] = (fmt_seq_in){ids + at, labels + at, tokens};
    }
    if (rc == FM_OK)
        fmt_size_grow(&b->lane.most, s, batch, &b->how);
    if (rc == FM_OK && b->lane.most.labels == 0)
        rc = fm_fail(FM_EINVAL, "no token of the batch counts as a target");
    FM_THEN(rc, probe_pass(b));
    FM_THEN(rc, probe_run(b, s, batch, loss));
    fm_free(s);
    return rc;
}

fm_status fm_train_gradients(fm_engine *e, const fm_tree *tree, const fm_provider *p,
                             const int32_t *ids, const int32_t *labels, uint32_t batch,
                             uint32_t tokens, double *loss, fm_train_result *grads)
{
    probe b = {0};
    fm_buf top;
    fm_model_view *seen = NULL;
    fm_plain *plain = NULL;
    fm_status rc;

    memset(grads, 0, sizeof(*grads));
    *loss = 0.0;
    fm_buf_init(&top, FM_MAX_PATH_BYTES);
    rc = fmt_top_adapter(&top, tree);
    if (rc == FM_OK && top.len > 0) {
        rc = fm_plain_open(&plain, tree, p, "gradients");
        FM_THEN(rc, probe_adapter(&b, e, fm_plain_tree(plain), fm_plain_provider(plain),
                                  fm_buf_cstr(&top)));
    } else if (rc == FM_OK) { /* experts that lie in one tensor have a gradient each */
        rc = fm_model_view_open(&seen, tree, p, "gradients", FM_PLAIN_WIDE);
        FM_THEN(rc, probe_full(&b, e, fm_model_view_tree(seen), fm_model_view_provider(seen)));
    }
    FM_THEN(rc, probe_batch(&b, ids, labels, batch, tokens, loss));
    FM_THEN(rc, fmt_params_result(&b.ps, b.ps.g, FM_F32, NULL, grads));
    if (rc < 0)
        fm_train_result_release(grads);
    fm_buf_release(&top);
    probe_release(&b);
    fm_model_view_close(seen);
    fm_plain_close(plain);
    return rc;
}
