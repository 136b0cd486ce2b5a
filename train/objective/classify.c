/* classify.c - classes of whole texts: the loss over the picked states, and the parent with a head
 * for the classes of the data. */
#include "train/objective/objective.h"

#include "infer/arch/table.h"
#include "infer/model/class_head.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

#include <stdio.h>
#include <string.h>

/* ==== the loss ==== */

static void count_hits(fmt_objective_setup *g, uint32_t rows, uint32_t classes)
{
    for (uint32_t i = 0; i < rows; i++) {
        const float *z = g->host + (size_t)i * classes;
        uint32_t best = 0;
        for (uint32_t k = 1; k < classes; k++)
            best = z[k] > z[best] ? k : best;
        g->hits += (int32_t)best == g->lane->batch.label[i];
    }
    g->tried += rows;
}

static fm_status classify_states(fmt_pass *p, fmt_lane *lane, const float *x, float *dx,
                                 double *loss)
{
    fmt_objective_setup *g = lane->objective_ctx;
    fm_backend *be = p->be;
    bool dense = lane->net->outer[FMT_DENSE].module[0];
    fmi_class_names names;
    uint32_t n = lane->labels, classes = lane->net->outer[FMT_SCORE].out;
    size_t h = lane->net->arch.hidden;
    float *y = g->room, *dy = y + n * h, *z = dy + n * h;
    fmt_part part = {.lane = lane, .count = n, .deeper = lane->ps && (dense || lane->deep)};
    fmt_parts ps = {&part, 1, n};
    const fmt_out middle = {FMT_DENSE, y, h}, back = {FMT_DENSE, dy, h};
    const fmt_out out = {FMT_SCORE, z, classes};
    fm_status rc = FM_OK;

    fmi_class_names_of(&names, &lane->net->arch);
    if (dense) {
        rc = fmt_linears_forward(p, ps, FMT_OUTSIDE, x, h, &middle, 1);
        if (names.relu)
            be->act(be, FM_ACT_RELU, y, h, y, h, NULL, 0, n, (uint32_t)h);
        else
            be->softcap(be, y, h, n, (uint32_t)h, 1.0f); /* tanh */
    }
    FM_THEN(rc, fmt_linears_forward(p, ps, FMT_OUTSIDE, dense ? y : x, h, &out, 1));
    if (rc == FM_OK && !lane->ps) {
        rc = be->download(be, g->host, z, (size_t)n * classes * sizeof(float));
        count_hits(g, n, classes);
    }
    if (rc < 0)
        return rc;
    be->cross_entropy(be, p->loss + lane->label0, z, classes, p->label + lane->label0, n, classes,
                      lane->dloss);
    bool later = fmt_puts_off(p, lane);
    rc = later ? fmt_put_off(p, lane)
               : be->download(be, p->host_loss + lane->label0, p->loss + lane->label0,
                              n * sizeof(float));
    for (uint32_t i = 0; !later && i < n; i++)
        *loss += (double)p->host_loss[lane->label0 + i];
    if (rc < 0 || !lane->ps)
        return rc;
    rc = fmt_linears_grad(p, ps, FMT_OUTSIDE, dense ? dy : dx, h, false, dense ? y : x, h, &out, 1);
    if (rc == FM_OK && dense) {
        if (names.relu) /* y is above 0 where its input was */
            be->act_grad(be, FM_ACT_RELU, dy, h, NULL, 0, dy, h, y, h, NULL, 0, n, (uint32_t)h);
        else
            be->softcap_grad(be, dy, h, y, h, n, (uint32_t)h, 1.0f);
        part.deeper = lane->deep;
        rc = fmt_linears_grad(p, ps, FMT_OUTSIDE, dx, h, false, x, h, &back, 1);
    }
    return rc;
}

const fmt_objective fmt_classify = {.name = "classify", .states = classify_states};

/* ==== the parent with a head ==== */

static fm_status fresh_read(void *ctx, const fm_entry *e, void *dst)
{
    const fmt_fresh *f = ctx;

    for (size_t i = 0; i < f->parts; i++)
        if (fm_digest_eq(&f->part[i].id, &e->id)) {
            memcpy(dst, f->part[i].data, (size_t)f->part[i].bytes);
            return FM_OK;
        }
    return f->behind->read(f->behind->ctx, e, dst);
}

static fm_status put(fmt_fresh *f, const char *name, const fm_shape *shape, float *data)
{
    fm_buf path;
    uint64_t n = shape->dim[0] * (shape->rank == 2 ? shape->dim[1] : 1);

    fm_assert(f->parts < FM_ARRAY_LEN(f->part));
    f->part[f->parts].data = data;
    f->part[f->parts].bytes = n * sizeof(float);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_digest *id = &f->part[f->parts++].id;
    fm_status rc =
        fm_tensor_id(id, FM_F32, shape, fm_span_of(data, (size_t)n * sizeof(float)), NULL);
    FM_THEN(rc, fm_tensor_path(&path, "tensors", name));
    FM_THEN(rc, fm_tree_put_tensor(f->tree, fm_buf_cstr(&path), name, FM_F32, shape, id));
    fm_buf_release(&path);
    return rc;
}

/* Initial values of a linear layer, as in transformers: N(0, initializer_range), biases 0. */
static fm_status put_linear(fmt_fresh *f, const char *module, uint32_t out, uint32_t in, bool bias,
                            uint64_t seed, double range)
{
    char name[96];
    const fm_shape w = {.rank = 2, .dim = {out, in}}, b = {.rank = 1, .dim = {out}};
    uint64_t stream = 0;
    float *data = fm_calloc((size_t)out * in, sizeof(float));

    if (!data)
        return FM_ENOMEM;
    (void)snprintf(name, sizeof(name), "%s.weight", module);
    fm_status rc = fmt_stream(&stream, "init", name);
    for (size_t i = 0; i < (size_t)out * in; i++)
        data[i] = (float)(range * fm_rng_normal(seed, stream, i));
    if (rc < 0) {
        fm_free(data);
        return rc;
    }
    rc = put(f, name, &w, data);
    if (rc < 0 || !bias)
        return rc;
    (void)snprintf(name, sizeof(name), "%s.bias", module);
    data = fm_calloc(out, sizeof(float));
    return data ? put(f, name, &b, data) : FM_ENOMEM;
}

/* The parent's own tensor of this module, or one that its adapter saved. */
static const fm_entry *parents(const fm_tree *tree, const char *module)
{
    char name[96], saved[128];
    size_t begin = 0, end = 0;
    const fm_entry *found = NULL;

    (void)snprintf(name, sizeof(name), "%s.weight", module);
    (void)snprintf(saved, sizeof(saved), FMT_PEFT_PREFIX "%s", name);
    fm_tree_range(tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++)
        if (fm_tree_at(tree, i)->kind == FM_ENTRY_TENSOR &&
            strcmp(fm_tree_at(tree, i)->name, saved) == 0)
            found = fm_tree_at(tree, i);
    return found ? found : fmt_find_tensor(tree, name);
}

/* ---- settings ---- */
static fm_status class_names(fm_json *config, const fm_train_job *job, uint32_t classes)
{
    fm_json *names = fm_json_new_object(), *numbers = fm_json_new_object();
    fm_status rc = names && numbers ? FM_OK : FM_ENOMEM;

    for (uint32_t i = 0; i < classes && rc == FM_OK; i++) {
        char key[16], plain[32];
        (void)snprintf(key, sizeof(key), "%u", i);
        (void)snprintf(plain, sizeof(plain), "LABEL_%u", i);
        const char *name = i < job->class_names && job->class_name ? job->class_name[i] : plain;
        rc = fm_json_set(names, key, fm_json_new_str(name));
        FM_THEN(rc, fm_json_set(numbers, name, fm_json_new_int((int64_t)i)));
    }
    if (rc < 0) {
        fm_json_free(names);
        fm_json_free(numbers);
        return rc;
    }
    rc = fm_json_set(config, "id2label", names);
    return rc == FM_OK ? fm_json_set(config, "label2id", numbers) : (fm_json_free(numbers), rc);
}

/* "LlamaForCausalLM", "BertModel" -> "...ForSequenceClassification" */
static fm_status class_architecture(fm_json *config)
{
    const char *old = fm_json_cstr(fm_json_at(fm_json_get(config, "architectures"), 0), "");
    const char *end = strstr(old, "For");
    size_t n = strlen(old);

    if (!end && n > 5 && strcmp(old + n - 5, "Model") == 0)
        end = old + n - 5;
    if (!end)
        return FM_OK;
    char *name = fm_asprintf("%.*sForSequenceClassification", (int)(end - old), old);
    fm_json *list = fm_json_new_array();
    fm_status rc = name && list ? fm_json_push(list, fm_json_new_str(name)) : FM_ENOMEM;
    fm_free(name);
    if (rc < 0) {
        fm_json_free(list);
        return rc;
    }
    return fm_json_set(config, "architectures", list);
}

static fm_status settle_config(fmt_fresh *f, const fm_train_job *job, double *range)
{
    fm_json *v = NULL;
    fm_buf text;
    fm_status rc = fm_model_json_of_tree(&v, f->tree, f->behind, job->name);

    fm_buf_init(&text, (size_t)16 << 20);
    union { /* this function parsed it and may change it */
        const fm_json *in;
        fm_json *out;
    } config = {.in = fm_json_get(v, "config")};
    if (rc == FM_OK) {
        *range = fm_json_real(fm_json_get(config.in, "initializer_range"), 0.02);
        rc = class_names(config.out, job, f->classes);
    }
    FM_THEN(rc, class_architecture(config.out));
    FM_THEN(rc, fm_json_set(config.out, "problem_type",
                            fm_json_new_str("single_label_classification")));
    FM_THEN(rc, fm_json_write(&text, v, FM_JSON_PRETTY));
    FM_THEN(rc, fm_tree_put_file(f->tree, "model.json", fm_buf_span(&text)));
    if (rc == FM_OK) {
        f->model_json = fm_strdup(fm_buf_cstr(&text));
        rc = f->model_json ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&text);
    fm_json_free(v);
    return rc;
}

/* ---- how many classes ---- */
static fm_status grow_classes(uint32_t *classes, int32_t klass, const fm_train_job *job, size_t at)
{
    if (klass < 0)
        return fm_fail(FM_EINVAL, "%s: example %zu has no class", job->name, at);
    *classes = FM_MAX(*classes, (uint32_t)klass + 1);
    return FM_OK;
}

static fm_status classes_of(uint32_t *out, const fm_train_job *job)
{
    const fm_train_config *c = &job->config;
    size_t rows = (size_t)c->steps * c->batch * c->accumulate;
    uint32_t seen = job->class_names;
    fm_status rc = FM_OK;

    for (size_t i = 0; job->data && rc == FM_OK && i < fm_dataset_count(job->data); i++)
        rc = grow_classes(&seen, fm_dataset_at(job->data, i)->klass, job, i);
    for (size_t i = 0; !job->data && rc == FM_OK && i < rows; i++)
        rc = grow_classes(&seen, job->batch_labels[i * c->max_tokens], job, i);
    for (size_t i = 0; rc == FM_OK && i < job->held_outs; i++)
        rc = grow_classes(&seen, job->held_out[i]->klass, job, i);
    *out = c->classes > 0 ? c->classes : seen;
    if (rc == FM_OK && seen > *out)
        return fm_fail(FM_EINVAL, "%s: the data have %u classes, classes=%u", job->name, seen,
                       *out);
    if (rc == FM_OK && *out < 2)
        return fm_fail(FM_EINVAL, "%s: %u class: there is nothing to tell apart", job->name, *out);
    return rc;
}

/* ---- the whole ---- */
fm_status fmt_fresh_head(fmt_fresh *f, fm_train_job *job, fm_provider *p, const fm_provider *behind)
{
    fm_arch a;
    fmi_class_names names;
    double range = 0.02;
    fm_status rc = fm_arch_of_tree(&a, job->parent, behind, job->name);

    memset(f, 0, sizeof(*f));
    f->behind = behind;
    fmi_class_names_of(&names, &a);
    if (rc == FM_OK && (!names.out[0] || names.norm[0]))
        return fm_fail(FM_EUNSUPPORTED, "%s: the classification head of %s is not supported",
                       job->name, a.family);
    FM_THEN(rc, classes_of(&f->classes, job));
    FM_THEN(rc, fm_tree_copy(&f->tree, job->parent));
    FM_THEN(rc, settle_config(f, job, &range));
    if (rc < 0)
        return rc;
    const fm_entry *out = parents(job->parent, names.out);
    f->new_dense = names.dense[0] && !parents(job->parent, names.dense);
    f->save_dense = f->new_dense || strstr(names.dense, "classifier") != NULL;
    if (out && out->shape.dim[0] != f->classes)
        return fm_fail(FM_EBASE, "%s: the parent tells %u classes apart, the data have %u",
                       job->name, (uint32_t)out->shape.dim[0], f->classes);
    if (!out)
        rc = put_linear(f, names.out, f->classes, a.hidden, names.bias, job->config.seed, range);
    if (rc == FM_OK && f->new_dense)
        rc = put_linear(f, names.dense, a.hidden, a.hidden, names.bias, job->config.seed, range);
    job->parent = f->tree;
    *p = (fm_provider){.ctx = f, .read = fresh_read};
    return rc;
}

void fmt_fresh_release(fmt_fresh *f)
{
    for (size_t i = 0; i < f->parts; i++)
        fm_free(f->part[i].data);
    fm_tree_free(f->tree);
    fm_free(f->model_json);
    memset(f, 0, sizeof(*f));
}

static fm_status declare_one(fmt_net *net, fmt_params *ps, uint32_t which, const char *as)
{
    const fmt_linear *l = &net->outer[which];
    const fm_shape w = {.rank = 2, .dim = {l->out, l->in}}, b = {.rank = 1, .dim = {l->out}};
    char name[FMT_MODULE_BYTES + 16], called[FMT_MODULE_BYTES + 64];

    (void)snprintf(name, sizeof(name), "%s.weight", l->module);
    (void)snprintf(called, sizeof(called), "%s%s", as, name);
    fm_status rc = fmt_net_train(net, ps, name, &w, called);
    if (rc < 0 || !l->has_bias)
        return rc;
    (void)snprintf(name, sizeof(name), "%s.bias", l->module);
    (void)snprintf(called, sizeof(called), "%s%s", as, name);
    return fmt_net_train(net, ps, name, &b, called);
}

fm_status fmt_fresh_declare(fmt_fresh *f, fmt_net *net, fmt_params *ps, const fm_train_config *c,
                            const fm_model *stem)
{
    bool full = c->method == FM_METHOD_FULL || c->method == FM_METHOD_PRETRAIN;
    const char *as = full || c->method == FM_METHOD_BITFIT ? "" : FMT_PEFT_PREFIX;
    fm_status rc = fmt_net_add_classes(net, f->classes, stem);

    (void)snprintf(f->score, sizeof(f->score), "%s", net->outer[FMT_SCORE].module);
    (void)snprintf(f->dense, sizeof(f->dense), "%s", net->outer[FMT_DENSE].module);
    if (rc == FM_OK && net->outer[FMT_DENSE].module[0] && (full || f->save_dense))
        rc = declare_one(net, ps, FMT_DENSE, as);
    return rc == FM_OK ? declare_one(net, ps, FMT_SCORE, as) : rc;
}

/* ==== the result ==== */

/* PEFT names modules as the class with the head does, which puts an encoder inside of "bert.". */
static fm_status inside(fm_train_result *out, const char *model)
{
    size_t skip = strlen(FMT_PEFT_PREFIX);

    for (size_t i = 0; i < out->count; i++) {
        char *name = out->tensors[i].name;
        if (strncmp(name, FMT_PEFT_PREFIX, skip) != 0 ||
            strncmp(name + skip, model, strlen(model)) == 0 ||
            strncmp(name + skip, "classifier.", 11) == 0 ||
            strncmp(name + skip, "pre_classifier.", 15) == 0)
            continue;
        char *named = fm_asprintf(FMT_PEFT_PREFIX "%s%s", model, name + skip);
        if (!named)
            return FM_ENOMEM;
        fm_free(name);
        out->tensors[i].name = named;
    }
    return FM_OK;
}

static fm_status saved_modules(const fmt_fresh *f, fm_json *config)
{
    const fm_json *old = fm_json_get(config, "modules_to_save");
    fm_json *list = fm_json_new_array();
    bool one = strncmp(f->score, "classifier.", 11) == 0; /* PEFT saves it with all inside */
    const char *add[] = {one ? "classifier" : f->score, f->save_dense && !one ? f->dense : NULL};
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && fm_json_is(old, FM_JSON_ARRAY) && i < fm_json_count(old); i++)
        rc = fm_json_push(list, fm_json_new_str(fm_json_cstr(fm_json_at(old, i), "")));
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(add) && add[i]; i++)
        rc = fm_json_push(list, fm_json_new_str(add[i]));
    if (rc < 0) {
        fm_json_free(list);
        return rc;
    }
    return fm_json_set(config, "modules_to_save", list);
}

fm_status fmt_fresh_result(const fmt_fresh *f, const fmt_net *net, fm_train_result *out)
{
    out->model_json = fm_strdup(f->model_json);
    if (!out->model_json)
        return FM_ENOMEM;
    if (!out->adapter_config)
        return FM_OK;
    FM_TRY(fm_json_set(out->adapter_config, "task_type", fm_json_new_str("SEQ_CLS")));
    FM_TRY(saved_modules(f, out->adapter_config));
    return net->arch.sw.encoder ? inside(out, fmi_family_of(&net->arch)->prefix[1]) : FM_OK;
}
