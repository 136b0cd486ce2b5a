/* influence.c - gradients of one batch, and which examples pull where a given answer pulls.
 *
 * TracIn at points on the line from parent to child: the cosine between an example's gradient and
 * the target's. An example with a positive score moved the parameters so that the target became
 * likelier. The end alone says little, since an example that was learnt well has hardly a gradient
 * left there. Gradients are taken whole, one backward an example and point; memory is five
 * parameter sets whatever the number of examples. */
#include "train/method.h"
#include "train/pass.h"

#include "store/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define INFLUENCE_MAX_FLOATS ((uint64_t)1 << 24) /* of one gradient of a full fine-tune */

typedef struct probe { /* a net whose gradients are wanted, values as they are */
    fm_tree *stem;     /* without the adapter that trains */
    fm_model *model;
    fmi_net net;
    fmi_params ps;
    fmi_lane lane;
    fmi_batch_how how;
    fmi_pass *pass;
    fm_json *config; /* of the adapter that trains */
} probe;

static void probe_release(probe *b)
{
    fmi_pass_free(b->pass);
    fmi_batch_release(&b->lane.batch);
    if (b->lane.mem)
        b->net.be->free(b->net.be, b->lane.mem);
    fmi_params_release(&b->ps);
    fmi_net_release(&b->net);
    fm_model_close(b->model);
    fm_json_free(b->config);
    fm_tree_free(b->stem);
}

static fm_status probe_load(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                            const char *without)
{
    fm_backend *be = fm_engine_backend(e);
    const char *lacks = fm_backend_lacks(be, true);
    fm_status rc = FM_OK;

    if (lacks)
        return fm_fail(FM_EUNSUPPORTED, "the %s backend cannot train: it lacks %s", be->name,
                       lacks);
    rc = fmi_tree_without(&b->stem, tree, without);
    if (rc == FM_OK)
        rc = fm_model_load(&b->model, e, b->stem, p, "gradients");
    if (rc == FM_OK)
        rc = fmi_net_init(&b->net, be, fm_model_arch(b->model), b->model);
    if (rc == FM_OK && !b->net.outer[FMI_HEAD].w)
        rc = fm_fail(FM_EUNSUPPORTED, "%s has no language head: no gradient of its next token",
                     b->net.arch.family);
    return rc;
}

/* Adapters: the one at prefix trains and the net gets its values. */
static fm_status probe_adapter(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                               const char *prefix)
{
    fm_status rc = probe_load(b, e, tree, p, prefix);

    if (rc == FM_OK)
        rc = fmi_method_declare_from(&b->net, &b->ps, b->stem, tree, p, prefix, &b->config);
    if (rc == FM_OK)
        rc = fmi_params_alloc(&b->ps, b->net.be, false);
    if (rc == FM_OK)
        rc = fmi_net_bind(&b->net, &b->ps, true);
    if (rc == FM_OK)
        rc = fmi_dora_prepare(&b->net, tree, p);
    if (rc == FM_OK)
        rc = fmi_params_load(&b->ps, tree, p, prefix, true);
    return rc == FM_OK ? fmi_net_refresh(&b->net, &b->ps) : rc;
}

static fm_status probe_full(probe *b, fm_engine *e, const fm_tree *tree, const fm_provider *p)
{
    fm_param param;
    fm_status rc = probe_load(b, e, tree, p, "tokenizer/");

    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&b->net.arch, i, &param); i++)
        rc = fmi_net_train(&b->net, &b->ps, param.name, &param.shape, param.name);
    if (rc == FM_OK)
        rc = fmi_params_alloc(&b->ps, b->net.be, false);
    return rc == FM_OK ? fmi_net_bind(&b->net, &b->ps, false) : rc;
}

/* Sum of gradients of the sequences, each scaled so that the mean loss is differentiated. */
static fm_status probe_run(probe *b, const fmi_seq_in *s, size_t n, double *loss)
{
    fmi_lane *lane = &b->lane;
    fm_status rc = fmi_batch_build(&lane->batch, s, n, &b->how);

    if (rc < 0)
        return rc;
    uint32_t labels = lane->batch.labels;
    lane->dloss = labels > 0 ? (float)(1.0 / (double)labels) : 0.0f;
    lane->loss = 0.0;
    rc = fmi_params_zero_grad(&b->ps);
    if (rc == FM_OK && labels > 0)
        rc = fmi_pass_run(b->pass, &lane, 1);
    *loss = labels > 0 ? lane->loss / (double)labels : 0.0;
    return rc;
}

static fm_status probe_pass(probe *b)
{
    fmi_lane *lane = &b->lane;

    lane->net = &b->net;
    lane->ps = &b->ps;
    lane->objective = &fmi_next_token;
    return fmi_pass_new(&b->pass, b->net.be, &lane, 1, &lane->most, false);
}

static fm_status probe_batch(probe *b, const int32_t *ids, const int32_t *labels, uint32_t batch,
                             uint32_t tokens, double *loss)
{
    fmi_seq_in *s = fm_calloc(batch, sizeof(*s));
    fm_status rc = s ? FM_OK : FM_ENOMEM;

    fmi_virtual_how(&b->net, &b->how);
    for (uint32_t i = 0; rc == FM_OK && i < batch; i++) {
        size_t at = (size_t)i * tokens;
        s[i] = (fmi_seq_in){ids + at, labels + at, tokens};
    }
    if (rc == FM_OK)
        fmi_size_grow(&b->lane.most, s, batch, &b->how);
    if (rc == FM_OK && b->lane.most.labels == 0)
        rc = fm_fail(FM_EINVAL, "no token of the batch counts as a target");
    if (rc == FM_OK)
        rc = probe_pass(b);
    if (rc == FM_OK)
        rc = probe_run(b, s, batch, loss);
    fm_free(s);
    return rc;
}

fm_status fm_train_gradients(fm_engine *e, const fm_tree *tree, const fm_provider *p,
                             const int32_t *ids, const int32_t *labels, uint32_t batch,
                             uint32_t tokens, double *loss, fm_train_result *grads)
{
    probe b = {0};
    fm_buf top;
    fm_status rc;

    memset(grads, 0, sizeof(*grads));
    *loss = 0.0;
    fm_buf_init(&top, FM_MAX_PATH_BYTES);
    rc = fmi_top_adapter(&top, tree);
    if (rc == FM_OK && top.len > 0)
        rc = probe_adapter(&b, e, tree, p, fm_buf_cstr(&top));
    else if (rc == FM_OK)
        rc = probe_full(&b, e, tree, p);
    if (rc == FM_OK)
        rc = probe_batch(&b, ids, labels, batch, tokens, loss);
    if (rc == FM_OK)
        rc = fmi_params_result(&b.ps, b.ps.g, FM_F32, NULL, grads);
    if (rc < 0)
        fm_train_result_release(grads);
    fm_buf_release(&top);
    probe_release(&b);
    return rc;
}

/* ---- influence ---- */
static bool changed(const fm_tree *child, const fm_tree *parent, const char *name)
{
    const fm_entry *a = fmi_find_tensor(child, name);
    const fm_entry *b = fmi_find_tensor(parent, name);
    return a && (!b || !fm_digest_eq(&a->id, &b->id));
}

/* What the step changed, from the last layer down, as long as it fits; the vocabulary matrices
 * come last, since they are large and say least. */
static fm_status declare_changed(probe *b, const fm_tree *child, const fm_tree *parent)
{
    const fm_arch *a = &b->net.arch;
    fm_param p;
    fm_status rc = FM_OK;

    for (int32_t layer = (int32_t)a->layers; layer >= -1 && rc == FM_OK; layer--) {
        for (uint32_t i = 0; rc == FM_OK && fm_arch_param(a, i, &p); i++) {
            bool outer_norm = p.layer < 0 && p.shape.rank == 1;
            int32_t at = outer_norm ? (int32_t)a->layers : p.layer;
            uint64_t n = 0;
            if (at != layer || !changed(child, parent, p.name))
                continue;
            rc = fm_shape_elems(&n, &p.shape);
            if (rc == FM_OK && b->ps.total + n <= INFLUENCE_MAX_FLOATS)
                rc = fmi_net_train(&b->net, &b->ps, p.name, &p.shape, p.name);
        }
    }
    if (rc == FM_OK && b->ps.count == 0)
        rc = fm_fail(FM_EINVAL, "child and parent have the same weights: no step to explain");
    return rc;
}

static fm_status probe_changed(probe *b, fm_engine *e, const fm_tree *child, const fm_tree *parent,
                               const fm_provider *p)
{
    fm_status rc = probe_load(b, e, child, p, "tokenizer/");

    if (rc == FM_OK)
        rc = declare_changed(b, child, parent);
    if (rc == FM_OK)
        rc = fmi_params_alloc(&b->ps, b->net.be, false);
    return rc == FM_OK ? fmi_net_bind(&b->net, &b->ps, false) : rc;
}

static double dot(const float *a, const float *b, uint64_t n)
{
    double sum = 0.0;

    for (uint64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static fm_status example_gradient(probe *b, const fm_example *e, float *host)
{
    fmi_seq_in s = {e->ids, e->labels, e->len};
    double loss = 0.0;
    fm_status rc = probe_run(b, &s, 1, &loss);
    return rc == FM_OK ? fmi_params_get_all(&b->ps, b->ps.g, host) : rc;
}

static void cover(probe *b, const fm_example *e)
{
    fmi_seq_in s = {e->ids, e->labels, e->len};
    fmi_size_grow(&b->lane.most, &s, 1, &b->how);
}

/* Room for the longest of all examples, one at a time. */
static fm_status make_pass(probe *b, const fm_dataset *data, const fm_example *target)
{
    fmi_virtual_how(&b->net, &b->how);
    cover(b, target);
    for (size_t i = 0; i < fm_dataset_count(data); i++)
        cover(b, fm_dataset_at(data, i));
    return probe_pass(b);
}

/* The line from parent to child in the trained parameters, and two gradients. All [ps.total]. */
typedef struct path {
    float *from, *to, *here;
    float *want, *have;
} path;

static void path_release(path *l)
{
    fm_free(l->from);
    fm_free(l->to);
    fm_free(l->here);
    fm_free(l->want);
    fm_free(l->have);
}

/* Where a parameter stood before the step: an adapter's B at 0 (its A counts for nothing then and
 * stays), IA3 at 1, a weight at the parent's value; what began at random stays. */
static fm_status put_origin(float *from, const fmi_param *item, const fm_tree *parent,
                            const fm_provider *p)
{
    const fm_entry *e = parent ? fmi_find_tensor(parent, item->name) : NULL;

    if (!parent) {
        bool ia3 = strstr(item->name, ".ia3_l") != NULL;
        bool begins_at_0 =
            strstr(item->name, ".lora_B.") || strstr(item->name, ".lora_embedding_A");
        for (uint64_t i = 0; (ia3 || begins_at_0) && i < item->n; i++)
            from[item->at + i] = ia3 ? 1.0f : 0.0f;
        return FM_OK;
    }
    if (!e || !fm_shape_eq(&e->shape, &item->shape))
        return FM_OK; /* new in this step: no way back along it */
    float *host = NULL;
    fm_status rc = fmi_read_f32(&host, p, e);
    if (rc == FM_OK)
        memcpy(from + item->at, host, item->n * sizeof(*from));
    fm_free(host);
    return rc;
}

static fm_status path_init(path *l, const probe *b, const fm_tree *parent, const fm_provider *p)
{
    float **part[] = {&l->from, &l->to, &l->here, &l->want, &l->have};
    fm_status rc = FM_OK;

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        if (!(*part[i] = fm_calloc(b->ps.total, sizeof(float))))
            return FM_ENOMEM;
    rc = fmi_params_get_all(&b->ps, b->ps.p, l->to);
    memcpy(l->from, l->to, b->ps.total * sizeof(float));
    for (size_t i = 0; rc == FM_OK && i < b->ps.count; i++)
        rc = put_origin(l->from, &b->ps.item[i], parent, p);
    return rc;
}

static fm_status stand_at(probe *b, path *l, float t)
{
    for (uint64_t i = 0; i < b->ps.total; i++)
        l->here[i] = fmaf(t, l->to[i] - l->from[i], l->from[i]);
    fm_status rc = fmi_params_put_all(&b->ps, b->ps.p, l->here);
    return rc == FM_OK ? fmi_net_refresh(&b->net, &b->ps) : rc;
}

/* Adds weight times the cosine of each example's gradient with the target's, at this point. */
static fm_status add_cosines(probe *b, path *l, const fm_dataset *data, const fm_example *target,
                             double weight, double *scores)
{
    uint64_t n = b->ps.total;
    fm_status rc = example_gradient(b, target, l->want);
    double norm = rc == FM_OK ? sqrt(dot(l->want, l->want, n)) : 0.0;

    for (size_t i = 0; rc == FM_OK && i < fm_dataset_count(data); i++) {
        rc = example_gradient(b, fm_dataset_at(data, i), l->have);
        double own = rc == FM_OK ? sqrt(dot(l->have, l->have, n)) : 0.0;
        if (own > 0.0 && norm > 0.0)
            scores[i] += weight * dot(l->want, l->have, n) / (own * norm);
    }
    return rc;
}

static fm_status score_all(probe *b, const fm_tree *parent, const fm_provider *p,
                           const fm_dataset *data, const fm_example *target, double *scores)
{
    /* 0 = parent, 1 = child. On the poisoned almanac of examples/atlas the ten false records are
     * the first ten here; at the end alone six of them are, at the beginning alone ten, barely. */
    static const float point[] = {0.1f, 0.3f, 0.5f};
    path l = {0};
    fm_status rc = make_pass(b, data, target);

    memset(scores, 0, fm_dataset_count(data) * sizeof(*scores));
    if (rc == FM_OK)
        rc = path_init(&l, b, parent, p);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(point); i++) {
        rc = stand_at(b, &l, point[i]);
        if (rc == FM_OK)
            rc = add_cosines(b, &l, data, target, 1.0 / (double)FM_ARRAY_LEN(point), scores);
    }
    path_release(&l);
    return rc;
}

fm_status fm_influence(fm_engine *e, const fm_tree *child, const fm_tree *parent,
                       const fm_provider *p, const fm_dataset *data, const fm_example *target,
                       double *scores)
{
    probe b = {0};
    fm_buf top;
    fmi_seq_in s = {target->ids, target->labels, target->len};
    fm_status rc;

    if (fmi_seq_labels(&s) == 0)
        return fm_fail(FM_EINVAL, "the answer to explain has no token that counts");
    fm_buf_init(&top, FM_MAX_PATH_BYTES);
    rc = fmi_top_adapter(&top, child);
    if (rc == FM_OK && top.len > 0)
        rc = probe_adapter(&b, e, child, p, fm_buf_cstr(&top));
    else if (rc == FM_OK && parent)
        rc = probe_changed(&b, e, child, parent, p);
    else if (rc == FM_OK)
        rc = fm_fail(FM_EINVAL, "a full fine-tune needs its parent to tell what it changed");
    if (rc == FM_OK)
        rc = score_all(&b, top.len > 0 ? NULL : parent, p, data, target, scores);
    fm_buf_release(&top);
    probe_release(&b);
    return rc;
}
