/* fold.c - a formula by itself, without a tree: for training (store/fold.h). */
#include "store/adapt/fold_impl.h"

#include <string.h>

#include "store/base/mem.h"

/* The formulas that have gradients. fixed: bits of parts that are drawn once. */
static const struct trained {
    const char *kind;
    unsigned fixed;
    fm_status (*grad)(const adt_back *b);
    bool (*settle)(const adt_step *s, float *const *part);
    adt_factors_grad by_factors; /* of a kind with a rank, in the place of grad */
} trained[] = {
    {"loha", 0, adt_loha_grad, NULL, NULL},
    {"lokr", 0, adt_lokr_grad, NULL, NULL},
    {"oft", 0, adt_oft_grad, adt_oft_settle, NULL},
    {"boft", 0, adt_boft_grad, NULL, NULL},
    {"hra", 0, adt_hra_grad, NULL, NULL},
    {"miss", 0, adt_miss_grad, NULL, NULL},
    {"shira", 1u << 1, adt_shira_grad, NULL, NULL},
    {"fourierft", 0, adt_fourierft_grad, NULL, NULL},
    {"randlora", 1u << 0 | 1u << 1 | 1u << 4 | 1u << 5, adt_randlora_grad, NULL, NULL},
    {"vera", 1u << 2 | 1u << 3, NULL, NULL, adt_vera_grad},
    {"adalora", 0, NULL, NULL, adt_adalora_grad},
};

struct fm_fold {
    const struct trained *how;
    adt_step step;
    fm_entry part[ADT_PARTS]; /* names and shapes that step.part points to */
    uint64_t out, in;
};

static const struct trained *trained_of(const char *kind)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(trained); i++)
        if (strcmp(trained[i].kind, kind) == 0)
            return &trained[i];
    return NULL;
}

static const adt_op *op_of(const char *kind)
{
    for (size_t i = 0; i < adt_op_count; i++)
        if (strcmp(adt_ops[i].kind, kind) == 0)
            return &adt_ops[i];
    return NULL;
}

bool fm_fold_knows(const char *kind)
{
    return trained_of(kind) != NULL;
}

int fm_fold_part(const char *kind, const char *name, size_t *tail)
{
    size_t part = 0;
    const adt_op *op = trained_of(kind) ? adt_op_of(kind, name, &part) : NULL;

    *tail = op ? strlen(op->part[part]) + 1 : 0;
    return op ? (int)part : -1;
}

const char *fm_fold_part_name(const char *kind, int part)
{
    const adt_op *op = op_of(kind);

    return op && part >= 0 && part < (int)ADT_PARTS ? op->part[part] : NULL;
}

bool fm_fold_part_fixed(const char *kind, int part)
{
    const struct trained *t = trained_of(kind);

    return t && (t->fixed >> part & 1u);
}

void fm_fold_free(fm_fold *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < ADT_PARTS; i++)
        fm_free(f->part[i].name);
    fm_free(f->step.module);
    fm_free(f->step.index);
    fm_free(f);
}

static fm_status fill(fm_fold *f, const fm_fold_of *of, const fm_shape *const *shape)
{
    const adt_op *op = op_of(of->kind);

    f->step.op = op;
    f->step.of = ".weight";
    f->step.module = fm_strdup(of->module);
    if (!f->step.module)
        return FM_ENOMEM;
    for (size_t i = 0; i < ADT_PARTS; i++) {
        if (!shape[i] && op->part[i] && !(op->optional >> i & 1u))
            return fm_fail(FM_EBASE, "adapter module '%s': %s is missing", of->module, op->part[i]);
        if (!shape[i])
            continue;
        f->part[i].name = fm_asprintf("%s.%s", of->module, op->part[i] + (*op->part[i] == '/'));
        if (!f->part[i].name)
            return FM_ENOMEM;
        f->part[i].shape = *shape[i];
        f->step.part[i] = &f->part[i];
    }
    FM_TRY(op->fit(&f->step, of->config, of->out, of->in));
    adt_set_most(&f->step, of->most_out, of->most_in);
    return FM_OK;
}

fm_status fm_fold_new(fm_fold **out, const fm_fold_of *of,
                      const fm_shape *const shape[FM_FOLD_PARTS])
{
    const struct trained *how = trained_of(of->kind);

    *out = NULL;
    if (!how)
        return fm_fail(FM_EUNSUPPORTED, "'%s': an adapter of kind %s is not trained here",
                       of->module, of->kind);
    fm_fold *f = fm_calloc(1, sizeof *f);
    if (!f)
        return FM_ENOMEM;
    f->how = how;
    f->out = of->out;
    f->in = of->in;
    fm_status rc = fill(f, of, shape);
    if (rc < 0)
        fm_fold_free(f);
    else
        *out = f;
    return rc;
}

uint32_t fm_fold_rank(const fm_fold *f)
{
    return f->step.op->flags & ADT_RANK ? (uint32_t)f->step.num[0] : 0;
}

static adt_work work_of(const fm_fold *f, float *w, float *const *part)
{
    adt_work work = {.step = &f->step, .w = w, .out = f->out, .in = f->in};

    for (size_t i = 0; i < ADT_PARTS; i++) /* some formulas move a part to another place */
        work.part[i] = f->step.part[i] ? part[f->step.part[i] - f->part] : NULL;
    return work;
}

fm_status fm_fold_apply(const fm_fold *f, float *w, float *const part[FM_FOLD_PARTS])
{
    adt_work work = work_of(f, w, part);

    return f->step.op->apply(&work);
}

fm_status fm_fold_grad(const fm_fold *f, const float *w, const float *dw,
                       float *const part[FM_FOLD_PARTS], float *const grad[FM_FOLD_PARTS])
{
    union { /* no gradient writes to W */
        const float *from;
        float *to;
    } base = {.from = w};
    const adt_work work = work_of(f, base.to, part);
    const adt_back back = {.w = &work, .dw = dw, .grad = grad};

    return f->how->grad(&back);
}

bool fm_fold_settle(const fm_fold *f, float *const part[FM_FOLD_PARTS])
{
    return f->how->settle && f->how->settle(&f->step, part);
}

fm_status fm_fold_factor(const fm_fold *f, float *dst, bool b, float *const part[FM_FOLD_PARTS])
{
    const adt_work work = work_of(f, NULL, part);

    return f->step.op->factor(dst, &work, b);
}

fm_status fm_fold_factor_grad(const fm_fold *f, const float *da, const float *db,
                              float *const part[FM_FOLD_PARTS], float *const grad[FM_FOLD_PARTS])
{
    const adt_work work = work_of(f, NULL, part);

    return f->how->by_factors(&work, da, db, grad);
}

fm_status fm_fold_places(int64_t *out, size_t count, uint64_t n, uint64_t seed)
{
    return adt_torch_places(out, count, n, seed);
}
