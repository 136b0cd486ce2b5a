/* class_head.c - see class_head.h: the names of a head's tensors, binding it, its labels. */
#include "infer/model/class_head.h"

#include <stdio.h>
#include <string.h>

#include "infer/model/model_bind.h"
#include "store/base/mem.h"

#define MAX_CLASSES 65536u

/* ==== names ==== */

void fmi_class_names_of(fmi_class_names *out, const fm_arch *a)
{
    bool albert = strcmp(a->family, "albert") == 0;
    bool bert = strcmp(a->family, "bert") == 0 || albert,
         distil = strcmp(a->family, "distilbert") == 0;
    *out = (fmi_class_names){.bias = a->sw.encoder, .relu = distil};
    if (strcmp(a->family, "electra") == 0 || strcmp(a->family, "nomic_bert") == 0)
        return;
    if (strcmp(a->family, "modernbert") == 0) {
        (void)snprintf(out->dense, sizeof(out->dense), "head.dense");
        (void)snprintf(out->norm, sizeof(out->norm), "head.norm");
        (void)snprintf(out->out, sizeof(out->out), "classifier");
        return;
    }
    if (distil)
        (void)snprintf(out->dense, sizeof(out->dense), "pre_classifier");
    else if (bert)
        (void)snprintf(out->dense, sizeof(out->dense), albert ? "%spooler" : "%spooler.dense",
                       a->prefix);
    else if (a->sw.encoder)
        (void)snprintf(out->dense, sizeof(out->dense), "classifier.dense");
    (void)snprintf(out->out, sizeof(out->out), "%s",
                   bert || distil  ? "classifier"
                   : a->sw.encoder ? "classifier.out_proj"
                                   : "score");
}

size_t fmi_class_token(const int32_t *ids, size_t n, bool encoder, int32_t pad)
{
    size_t at = 0;
    for (size_t i = 0; i < n && !encoder; i++)
        if (pad < 0 || ids[i] != pad)
            at = i;
    return at;
}

static bool is_of(const char *tensor, const char *module, bool bias)
{
    size_t n = strlen(module);
    return n && strncmp(tensor, module, n) == 0 &&
           (strcmp(tensor + n, ".weight") == 0 || (bias && strcmp(tensor + n, ".bias") == 0));
}

/* PEFT names modules as the class with the head does: "bert.pooler.dense", even where the model
 * file leaves the prefix out. */
static const char *dense_in_adapter(const fm_arch *a)
{
    return strcmp(a->family, "bert") == 0         ? "bert.pooler.dense"
           : strcmp(a->family, "albert") == 0     ? "albert.pooler"
           : strcmp(a->family, "distilbert") == 0 ? "pre_classifier"
           : strcmp(a->family, "modernbert") == 0 ? "head.dense"
                                                  : "classifier.dense";
}

bool fmi_class_tensor(const fm_arch *a, const char *tensor)
{
    fmi_class_names names;
    fmi_class_names_of(&names, a);
    return is_of(tensor, names.out, names.bias) || is_of(tensor, names.dense, names.bias) ||
           (names.dense[0] && is_of(tensor, dense_in_adapter(a), names.bias));
}

/* ==== binding ==== */

static fm_status entry_named(const fm_entry **out, const fmi_binder *b, const char *module,
                             const char *what)
{
    char name[96];
    fm_buf path;
    (void)snprintf(name, sizeof(name), "%s.%s", module, what);
    *out = fm_map_get(b->replaced, name, strlen(name));
    if (*out)
        return FM_OK;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    if (rc == FM_OK)
        *out = fm_tree_find(b->tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return rc;
}

static fm_status hold_into(fmi_binder *b, fmi_cached **w, const fm_entry *e, fmi_form form,
                           uint32_t rank, uint64_t rows, uint64_t cols, fm_hasher *digest)
{
    if (e->kind != FM_ENTRY_TENSOR || e->shape.rank != rank || e->shape.dim[0] != rows ||
        (rank == 2 && e->shape.dim[1] != cols))
        return fm_fail(FM_EBASE, "%s: tensor '%s' of the classification head has the wrong shape",
                       b->what, e->name);
    FM_TRY(fmi_hold(b, w, e, form));
    return fm_hasher_update(digest, e->id.b, sizeof(e->id.b));
}

/* Binds a linear layer of the head. rows 0: as many as the tensor has. */
static fm_status bind_linear(fmi_binder *b, fm_linear *lin, const fm_entry *w, const char *module,
                             uint32_t rows, bool bias, fm_hasher *digest)
{
    uint32_t h = b->m->arch.hidden;
    const fm_entry *e = NULL;
    fmi_cached *c = NULL;
    if (w->kind == FM_ENTRY_TENSOR && rows == 0 && w->shape.rank == 2 &&
        w->shape.dim[0] <= MAX_CLASSES)
        rows = (uint32_t)w->shape.dim[0];
    FM_TRY(hold_into(b, &c, w, FMI_MATRIX, 2, rows, h, digest));
    *lin = (fm_linear){.w = c->w, .id = c->id, .in = h, .out = rows};
    FM_TRY(bias ? entry_named(&e, b, module, "bias") : FM_OK);
    if (bias && !e)
        return fm_fail(FM_ENOTFOUND, "%s: tensor '%s.bias' is missing", b->what, module);
    if (bias)
        FM_TRY(hold_into(b, &c, e, FMI_VECTOR, 1, rows, 0, digest));
    if (bias)
        lin->bias = c->v;
    return FM_OK;
}

/* ==== labels ==== */

static fm_status read_labels(fmi_class_head *h, const fm_json *config)
{
    const fm_json *names = fm_json_get(config, "id2label");
    h->label = fm_calloc(h->classes, sizeof(*h->label));
    if (!h->label)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < h->classes; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%u", i);
        const char *name = fm_json_cstr(fm_json_get(names, key), NULL);
        h->label[i] = name ? fm_strdup(name) : fm_asprintf("LABEL_%u", i);
        if (!h->label[i])
            return FM_ENOMEM;
    }
    return FM_OK;
}

static fm_status read_config(fmi_binder *b, fmi_class_head *h)
{
    fm_json *v = NULL;
    FM_TRY(fm_model_json_of_tree(&v, b->tree, b->p, b->what));
    const fm_json *config = fm_json_get(v, "config");
    const char *problem = fm_json_cstr(fm_json_get(config, "problem_type"), NULL);
    h->scores = h->classes == 1;
    if (!h->refused[0] && !h->scores && problem &&
        strcmp(problem, "single_label_classification") != 0)
        (void)snprintf(h->refused, sizeof(h->refused),
                       "problem_type '%.60s' is not supported, single_label_classification is",
                       problem);
    fm_status rc = read_labels(h, config);
    fm_json_free(v);
    return rc;
}

/* Reads ModernBERT's settings; they change the answer as tensors do, so that they are hashed. */
static fm_status read_settings(fmi_binder *b, fmi_class_head *h, const fm_json *config,
                               fm_hasher *digest)
{
    static const struct {
        const char *name;
        fm_act act;
    } known[] = {{"gelu", FM_ACT_GELU}, {"silu", FM_ACT_SILU}, {"relu", FM_ACT_RELU}};
    const char *act = fm_json_cstr(fm_json_get(config, "classifier_activation"), "gelu");
    const char *pooling = fm_json_cstr(fm_json_get(config, "classifier_pooling"), "cls");
    const char *made = fm_json_cstr(fm_json_at(fm_json_get(config, "architectures"), 0), "");
    size_t i = 0;
    while (i < FM_ARRAY_LEN(known) && strcmp(known[i].name, act) != 0)
        i++;
    if (i == FM_ARRAY_LEN(known))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: classifier_activation '%.40s' is not supported; gelu, silu, relu are",
                       b->what, act);
    if (strcmp(pooling, "cls") != 0 && strcmp(pooling, "mean") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: classifier_pooling '%.40s' is not supported; cls and mean are", b->what,
                       pooling);
    if (made[0] && !strstr(made, "ForSequenceClassification"))
        (void)snprintf(h->refused, sizeof(h->refused),
                       "the head of a %.60s is not supported, that of whole texts is", made);
    h->act = known[i].act;
    h->mean = strcmp(pooling, "mean") == 0;
    FM_TRY(fm_hasher_update(digest, act, strlen(act) + 1));
    return fm_hasher_update(digest, pooling, strlen(pooling) + 1);
}

static fm_status bind_norm(fmi_binder *b, fmi_class_head *h, const char *module, fm_hasher *digest)
{
    const fm_entry *e = NULL;
    const char *own[] = {"weight", "bias"};
    const float **to[] = {&h->norm, &h->norm_b};
    fm_json *v = NULL;
    fmi_cached *c = NULL;
    for (size_t i = 0; i < (b->m->arch.sw.norm_bias ? 2u : 1u); i++) {
        FM_TRY(entry_named(&e, b, module, own[i]));
        if (!e)
            return fm_fail(FM_ENOTFOUND, "%s: tensor '%s.%s' is missing", b->what, module, own[i]);
        FM_TRY(hold_into(b, &c, e, FMI_VECTOR, 1, b->m->arch.hidden, 0, digest));
        *to[i] = c->v;
    }
    h->eps = b->m->arch.eps;
    FM_TRY(fm_model_json_of_tree(&v, b->tree, b->p, b->what));
    fm_status rc = read_settings(b, h, fm_json_get(v, "config"), digest);
    fm_json_free(v);
    return rc;
}

fm_status fmi_class_bind(fmi_binder *b, fm_hasher *digest)
{
    fmi_class_head *h = &fmi_priv(b->m)->classifier;
    const fm_arch *a = &b->m->arch;
    fmi_class_names names;
    const fm_entry *out = NULL, *dense = NULL;
    fmi_class_names_of(&names, a);
    fm_status rc = names.out[0] ? entry_named(&out, b, names.out, "weight") : FM_OK;
    if (rc != FM_OK || !out)
        return rc;
    h->relu = names.relu;
    rc = bind_linear(b, &h->out, out, names.out, 0, names.bias, digest);
    const char *module = names.dense;
    if (rc == FM_OK && module[0]) {
        rc = entry_named(&dense, b, dense_in_adapter(a), "weight");
        if (dense)
            module = dense_in_adapter(a);
        else if (rc == FM_OK)
            rc = entry_named(&dense, b, module, "weight");
        if (rc == FM_OK && !dense)
            rc = fm_fail(FM_ENOTFOUND, "%s: tensor '%s.weight' is missing", b->what, module);
        const fm_entry *bias = NULL;
        FM_THEN(rc, names.norm[0] ? entry_named(&bias, b, module, "bias") : FM_OK);
        bool biased = names.norm[0] ? bias != NULL : names.bias;
        FM_THEN(rc, bind_linear(b, &h->dense, dense, module, a->hidden, biased, digest));
    }
    if (rc == FM_OK && names.norm[0])
        rc = bind_norm(b, h, names.norm, digest);
    if (rc != FM_OK)
        return rc;
    h->classes = h->out.out;
    return read_config(b, h);
}

void fmi_class_head_release(fmi_class_head *h)
{
    for (uint32_t i = 0; h->label && i < h->classes; i++)
        fm_free(h->label[i]);
    fm_free(h->label);
}

const fmi_class_head *fmi_model_class_head(const fm_model *m)
{
    const fmi_class_head *h = &fmi_priv(m)->classifier;
    return h->classes ? h : NULL;
}

bool fm_model_scores(const fm_model *m)
{
    return fmi_priv(m)->classifier.scores;
}

uint32_t fm_model_classes(const fm_model *m)
{
    return fmi_priv(m)->classifier.classes;
}

const char *fm_model_label(const fm_model *m, uint32_t i)
{
    const fmi_class_head *h = &fmi_priv(m)->classifier;
    return i < h->classes ? h->label[i] : NULL;
}
