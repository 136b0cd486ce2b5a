/* method_fold.c - methods that change a weight by a formula (store/fold.h): LoHa, LoKr, OFT, BOFT,
 * HRA, MiSS, SHiRA, FourierFT, RandLoRA; VeRA and AdaLoRA, whose formula gives a term's factors.
 *
 * Their target trains as a weight of its own: the formula makes it anew from the parent's weight
 * and the adapter's tensors after each step, on the host, with the bits that inference has. The
 * pass adds up the gradient of the whole weight, beside the flat gradients, and at the end of each
 * shard it becomes that of the tensors. The passes know nothing of formulas. */
#include "train/net/method.h"

#include "store/base/mem.h"
#include "store/fold.h"

#include <stdio.h>
#include <string.h>

/* ---- declaring ---- */
/* Kinds of which PEFT has a form for weights that are stored [in, out]: fan_in_fan_out. */
static bool turns(const char *kind)
{
    static const char *const known[] = {"vera", "adalora", "randlora", "fourierft"};

    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(kind, known[i]) == 0)
            return true;
    return false;
}

static fm_status check_place(const fmt_net *net, const fmt_linear *l, const char *kind,
                             const fm_json *config)
{
    const bool turned = fm_json_bool(fm_json_get(config, "fan_in_fan_out"), false);
    FM_TRY(fmt_check_free(l));
    if (fmt_net_layer_of(net, l) == FMT_OUTSIDE && l != &net->outer[FMT_HEAD])
        return fm_fail(FM_EUNSUPPORTED, "%s on '%s': it is no linear layer", kind, l->module);
    if (l->transposed ? !turns(kind) : turns(kind) && turned)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s on '%s': its weight is stored [%s], for which PEFT has no %s", kind,
                       l->module, l->transposed ? "in, out" : "out, in", kind);
    return FM_OK;
}

static fm_status check_below(const fmt_linear *l, const char *kind)
{
    if (l->terms > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s on '%s': the parent has a low-rank term there; export the parent merged "
                       "and import that",
                       kind, l->module);
    return FM_OK;
}

/* What a module's tensors are, by settings or by an adapter. */
typedef struct source {
    const char *kind, *module;
    const fm_json *config;
    const fmt_fold_most *most;
    const fm_shape *shape[FM_FOLD_PARTS]; /* NULL: absent */
    const fm_train_config *c;             /* or NULL: */
    const fm_entry *entry[FM_FOLD_PARTS];
    const fm_provider *p;
} source;

/* Whole numbers may be of any type there; PEFT writes 32 bits. */
static fm_status read_fixed(fmt_fixed *f, const fm_entry *e, const fm_provider *p)
{
    const fm_dtype_info *info = fm_dtype_get(e->dtype);
    const size_t one = e->dtype == FM_I64 ? 8 : 4;
    float *x = NULL;
    uint64_t n = 0;
    FM_TRY(fm_shape_elems(&n, &e->shape));

    if (info->is_float) {
        FM_TRY(fmt_read_f32(&x, p, e));
        memcpy(f->value, x, (size_t)n * sizeof(float));
        fm_free(x);
        return FM_OK;
    }
    if (e->dtype != FM_I32 && e->dtype != FM_I64)
        return fm_fail(FM_EUNSUPPORTED, "%s: indices of this type are not read here", e->name);
    uint8_t *raw = fm_malloc((size_t)e->bytes);
    fm_status rc = raw ? p->read(p->ctx, e, raw) : FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < n; i++)
        f->value[i] = one == 8 ? (float)(int64_t)fm_get_u64(raw + 8 * i)
                               : (float)(int32_t)fm_get_u32(raw + 4 * i);
    fm_free(raw);
    return rc;
}

static fm_status add_fixed(fmt_fold *f, fmt_params *ps, const fmt_linear *l, const source *s,
                           int part, const char *name)
{
    bool fresh = false;
    const fm_dtype dtype = strcmp(s->kind, "shira") == 0 ? FM_I32 : FM_F32;
    FM_TRY(fmt_params_fix(ps, &f->fixed[part], name, dtype, s->shape[part], &fresh));

    fmt_fixed *x = &ps->fixed[f->fixed[part]];
    if (!fresh)
        return FM_OK;
    if (s->entry[part])
        return read_fixed(x, s->entry[part], s->p);
    return fmt_fold_draw(x->value, s->c, l, s->config, s->most, part, s->shape[part], name);
}

static fm_status add_parts(fmt_fold *f, fmt_params *ps, const fmt_linear *l, const source *s)
{
    char name[FMT_MODULE_BYTES + 96];

    for (int i = 0; i < (int)FM_FOLD_PARTS; i++) {
        const char *end = fm_fold_part_name(s->kind, i);
        if (!s->shape[i])
            continue;
        if (*end == '/')
            (void)snprintf(name, sizeof(name), "base_model.%s", end + 1);
        else
            (void)snprintf(name, sizeof(name), FMT_PEFT_PREFIX "%s.%s", s->module, end);
        FM_TRY(fm_fold_part_fixed(s->kind, i)
                   ? add_fixed(f, ps, l, s, i, name)
                   : fmt_params_add(ps, &f->param[i], name, s->shape[i]));
    }
    return FM_OK;
}

/* The term that a kind with a rank is: fmt_fold_room gives it factors. */
static fm_status add_term(fmt_linear *l)
{
    fmt_fold *f = l->fold;

    f->rank = fm_fold_rank(f->formula);
    if (f->rank == 0)
        return FM_OK;
    FM_TRY(fm_grow(&l->term, &l->cap, l->terms + 1, sizeof(*l->term)));
    f->term = (uint32_t)l->terms;
    l->term[l->terms++] =
        (fmt_term){.r = f->rank, .scale = 1.0f, .a_param = -1, .b_param = -1, .made = true};
    return FM_OK;
}

static fm_status add(fmt_net *net, fmt_params *ps, fmt_linear *l, const source *s)
{
    const fm_fold_of of = {.kind = s->kind,
                           .module = s->module,
                           .config = s->config,
                           .out = l->out,
                           .in = l->in,
                           .most_out = s->most->out,
                           .most_in = s->most->in};
    FM_TRY(check_place(net, l, s->kind, s->config));
    fmt_fold *f = fm_calloc(1, sizeof(*f));
    if (!f)
        return FM_ENOMEM;

    for (size_t i = 0; i < FM_FOLD_PARTS; i++)
        f->param[i] = f->fixed[i] = -1;
    l->fold = f;
    net->folds++;
    FM_TRY(fm_fold_new(&f->formula, &of, s->shape));
    if (fm_fold_rank(f->formula) == 0)
        FM_TRY(check_below(l, s->kind));
    FM_TRY(add_term(l));
    return add_parts(f, ps, l, s);
}

void fmt_fold_free(fmt_fold *f)
{
    if (!f)
        return;
    fm_fold_free(f->formula);
    fm_free(f->base);
    fm_free(f);
}

fm_status fmt_fold_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                           const fm_json *config)
{
    fmt_fold_most most = {0};
    fmt_linear *l;
    FM_TRY(fmt_check_targets(net, c->targets, "targets"));

    FM_TRY(fmt_check_patterns(net, c, config));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (fmt_is_target(net, l, c, c->targets))
            most = (fmt_fold_most){FM_MAX(most.in, l->in), FM_MAX(most.out, l->out)};
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        char module[FMT_MODULE_BYTES + 16];
        source s = {fmt_fold_kind(c->method), module, config, &most, {0}, c, {0}, NULL};
        fmt_fold_wanted w;
        if (!fmt_is_target(net, l, c, c->targets))
            continue;
        fmt_peft_name(net, l->module, module, sizeof(module));
        FM_TRY(fmt_fold_shapes(&w, c->method, l, config, module, &most));
        for (size_t k = 0; k < FM_FOLD_PARTS; k++)
            s.shape[k] = w.shape[k].rank > 0 ? &w.shape[k] : NULL;
        FM_TRY(add(net, ps, l, &s));
    }
    return fmt_saved_declare(net, ps, c);
}

/* The greatest sizes of the modules that have tensors of this kind. */
static fmt_fold_most most_of(fmt_net *net, const char *kind, const fm_tree *tree,
                             const char *prefix)
{
    const size_t skip = strlen(FMT_PEFT_PREFIX);
    fmt_fold_most most = {0};
    size_t begin = 0, end = 0;

    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        size_t tail = 0;
        char peft[FMT_MODULE_BYTES + 16], own[FMT_MODULE_BYTES + 16];
        if (e->kind != FM_ENTRY_TENSOR || fm_fold_part(kind, e->name, &tail) < 0 ||
            strncmp(e->name, FMT_PEFT_PREFIX, skip) != 0)
            continue;
        (void)snprintf(peft, sizeof(peft), "%.*s", (int)(strlen(e->name) - skip - tail),
                       e->name + skip);
        fmt_own_name(net, peft, own, sizeof(own));
        const fmt_linear *l = NULL;
        for (size_t k = 0; (l = fmt_net_linear(net, k)) && strcmp(l->module, own) != 0;)
            k++;
        if (l)
            most = (fmt_fold_most){FM_MAX(most.in, l->in), FM_MAX(most.out, l->out)};
    }
    return most;
}

fm_status fmt_fold_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *kind,
                       const char *module, const fm_json *config, const fm_tree *tree,
                       const fm_provider *p, const char *prefix)
{
    const size_t skip = strlen(FMT_PEFT_PREFIX), n = strlen(module);
    size_t begin = 0, end = 0;

    if (l->fold)
        return FM_OK; /* declared with its first tensor */
    const fmt_fold_most most = most_of(net, kind, tree, prefix);
    source s = {kind, module, config, &most, {0}, NULL, {0}, p};
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        size_t tail = 0;
        int part = e->kind == FM_ENTRY_TENSOR ? fm_fold_part(kind, e->name, &tail) : -1;
        if (part < 0)
            continue;
        const bool shared = *fm_fold_part_name(kind, part) == '/';
        if (shared ||
            (strlen(e->name) == skip + n + tail && strncmp(e->name + skip, module, n) == 0)) {
            s.shape[part] = &e->shape;
            s.entry[part] = e;
        }
    }
    return add(net, ps, l, &s);
}

/* ---- memory ---- */
/* Widens lo .. hi - 1, the flat floats that the formulas read. */
static void used_params(const fmt_params *ps, const fmt_fold *f, uint64_t *lo, uint64_t *hi)
{
    for (size_t i = 0; i < FM_FOLD_PARTS; i++) {
        if (f->param[i] < 0)
            continue;
        const fmt_param *p = &ps->item[f->param[i]];
        *lo = FM_MIN(*lo, p->at);
        *hi = FM_MAX(*hi, p->at + p->n);
    }
}

/* Of the gradient that the pass adds up: a weight, or two factors. */
static uint64_t floats_of(const fmt_linear *l)
{
    return l->fold->rank > 0 ? (uint64_t)l->fold->rank * ((uint64_t)l->in + l->out)
                             : (uint64_t)l->out * l->in;
}

uint64_t fmt_fold_bytes(const fmt_net *net)
{
    return (3 * net->fold.all + 3 * net->fold.most) * sizeof(float);
}

/* Points a term at its factors. */
static void own_factors(fmt_linear *l, float *mem)
{
    fmt_fold *f = l->fold;
    fmt_term *t = &l->term[f->term];

    f->a = mem;
    f->b = mem + (uint64_t)f->rank * l->in;
    t->a = f->a;
    t->b = f->b;
    t->da = f->dw;
    t->db = f->dw + (uint64_t)f->rank * l->in;
    f->dw = NULL; /* the weight has no gradient */
}

/* A layout of the module's own, made of zeros until fmt_fold_refresh. */
static fm_status own_layout(const fmt_net *net, fmt_linear *l)
{
    void *zero = fm_calloc((size_t)floats_of(l), sizeof(float));
    fm_status rc = zero ? net->be->weight_new(net->be, &l->fold->w, FM_ROLE_LINEAR, FM_F32, l->out,
                                              l->in, zero)
                        : FM_ENOMEM;

    fm_free(zero);
    if (rc == FM_OK)
        l->w = l->fold->w;
    return rc;
}

fm_status fmt_fold_room(fmt_net *net, const fmt_params *ps)
{
    fmt_fold_set *set = &net->fold;
    uint64_t at = 0, made = 0;
    fmt_linear *l;
    void *mem = NULL;

    if (net->folds == 0 || set->mem)
        return FM_OK;
    set->lo = UINT64_MAX;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold) {
            set->all += floats_of(l);
            set->factors += l->fold->rank > 0 ? floats_of(l) : 0;
            set->most = FM_MAX(set->most, floats_of(l));
            used_params(ps, l->fold, &set->lo, &set->hi);
        }
    FM_TRY(net->be->alloc(net->be, &mem,
                          (size_t)(set->all + set->most + set->factors) * sizeof(float)));
    set->mem = mem;
    set->host = fm_malloc((size_t)(2 * set->most + 2 * (set->hi - set->lo)) * sizeof(float));
    if (!set->host)
        return FM_ENOMEM;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold) {
            l->fold->dw = set->mem + at;
            at += floats_of(l);
            if (l->fold->rank == 0) {
                FM_TRY(own_layout(net, l));
                continue;
            }
            own_factors(l, set->mem + set->all + set->most + made);
            made += floats_of(l);
        }
    fmt_fold_zero(net, ps);
    return FM_OK;
}

void fmt_fold_release(fmt_net *net)
{
    fmt_linear *l;

    for (size_t i = 0; net->block && (l = fmt_net_linear(net, i)); i++)
        if (l->fold && l->fold->w) {
            net->be->weight_free(net->be, l->fold->w);
            l->fold->w = NULL;
        }
    if (net->fold.mem)
        net->be->free(net->be, net->fold.mem);
    fm_free(net->fold.host);
    memset(&net->fold, 0, sizeof(net->fold));
}

/* ---- the parent's weights ---- */
static fm_status turn(fmt_linear *l)
{
    float *stored = l->fold->base;
    float *own = fm_malloc((size_t)l->in * l->out * sizeof(*own));

    if (!own)
        return FM_ENOMEM;
    for (size_t o = 0; o < l->out; o++)
        for (size_t k = 0; k < l->in; k++)
            own[o * l->in + k] = stored[k * l->out + o];
    l->fold->base = own;
    fm_free(stored);
    return FM_OK;
}

static fm_status take_base(fmt_net *net, fmt_linear *l, const fm_tree *parent, const fm_provider *p)
{
    char name[FMT_MODULE_BYTES + 16];

    (void)snprintf(name, sizeof(name), "%s.weight", l->module);
    const fm_entry *e = fmt_base_entry(net, parent, name);
    if (!e)
        return fm_fail(FM_EBASE, "the parent has no %s", name);
    if (e->shape.rank != 2 || e->shape.dim[l->transposed ? 1 : 0] != l->out ||
        e->shape.dim[l->transposed ? 0 : 1] != l->in)
        return fm_fail(FM_EBASE, "the parent's %s has another shape than its config says", name);
    fm_free(l->fold->base);
    FM_TRY(fmt_read_f32(&l->fold->base, p, e));
    return l->transposed ? turn(l) : FM_OK;
}

fm_status fmt_fold_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold && l->fold->rank == 0)
            FM_TRY(take_base(net, l, parent, p));
    return FM_OK;
}

/* ---- steps ---- */
typedef struct values { /* of a fold's parts, on the host */
    float *part[FM_FOLD_PARTS], *grad[FM_FOLD_PARTS];
} values;

static values values_of(const fmt_fold_set *set, const fmt_params *ps, const fmt_fold *f)
{
    float *at = set->host + 2 * set->most, *grads = at + (set->hi - set->lo);
    values v = {0};

    for (size_t i = 0; i < FM_FOLD_PARTS; i++)
        if (f->param[i] >= 0) {
            v.part[i] = at + (ps->item[f->param[i]].at - set->lo);
            v.grad[i] = grads + (ps->item[f->param[i]].at - set->lo);
        } else if (f->fixed[i] >= 0) {
            v.part[i] = ps->fixed[f->fixed[i]].value;
        }
    return v;
}

static fm_status take_values(const fmt_net *net, const fmt_params *ps)
{
    const fmt_fold_set *set = &net->fold;

    return net->be->download(net->be, set->host + 2 * set->most, ps->p + set->lo,
                             (size_t)(set->hi - set->lo) * sizeof(float));
}

fm_status fmt_fold_refresh(fmt_net *net, fmt_params *ps)
{
    const fmt_fold_set *set = &net->fold;
    float *staged = set->mem + set->all;
    fmt_linear *l;

    if (net->folds == 0)
        return FM_OK;
    FM_TRY(take_values(net, ps));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        if (!l->fold)
            continue;
        const size_t bytes = (size_t)floats_of(l) * sizeof(float);
        values v = values_of(set, ps, l->fold);
        if (l->fold->rank > 0) {
            float *b = set->host + (l->fold->b - l->fold->a);
            FM_TRY(fm_fold_factor(l->fold->formula, set->host, false, v.part));
            FM_TRY(fm_fold_factor(l->fold->formula, b, true, v.part));
            FM_TRY(net->be->upload(net->be, l->fold->a, set->host, bytes));
            continue;
        }
        memcpy(set->host, l->fold->base, bytes);
        FM_TRY(fm_fold_apply(l->fold->formula, set->host, v.part));
        FM_TRY(net->be->upload(net->be, staged, set->host, bytes));
        net->be->weight_update(net->be, l->fold->w, staged);
    }
    return FM_OK;
}

void fmt_fold_zero(fmt_net *net, const fmt_params *ps)
{
    if (net->folds > 0)
        fmt_params_put_zeros(ps, net->fold.mem, net->fold.all);
}

/* Stores the gradients of a fold's parts; what is drawn back into its bounds, too. */
static fm_status give(const fmt_net *net, fmt_params *ps, const fmt_fold *f, const values *v,
                      bool settled)
{
    fm_backend *be = net->be;

    for (size_t i = 0; i < FM_FOLD_PARTS; i++) {
        if (f->param[i] < 0)
            continue;
        const fmt_param *p = &ps->item[f->param[i]];
        const size_t bytes = (size_t)p->n * sizeof(float);
        FM_TRY(be->upload(be, ps->g + p->at, v->grad[i], bytes));
        if (settled)
            FM_TRY(be->upload(be, ps->p + p->at, v->part[i], bytes));
    }
    return FM_OK;
}

static const float *gradient_of(const fmt_linear *l)
{
    return l->fold->rank > 0 ? l->term[l->fold->term].da : l->fold->dw;
}

fm_status fmt_fold_gather(fmt_net *net, fmt_params *ps)
{
    const fmt_fold_set *set = &net->fold;
    float *dw = set->host + set->most;
    fmt_linear *l;

    if (net->folds == 0)
        return FM_OK;
    FM_TRY(take_values(net, ps));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        if (!l->fold)
            continue;
        values v = values_of(set, ps, l->fold);
        const bool settled = fm_fold_settle(l->fold->formula, v.part);
        FM_TRY(
            net->be->download(net->be, dw, gradient_of(l), (size_t)floats_of(l) * sizeof(float)));
        FM_TRY(l->fold->rank > 0
                   ? fm_fold_factor_grad(l->fold->formula, dw, dw + (l->fold->b - l->fold->a),
                                         v.part, v.grad)
                   : fm_fold_grad(l->fold->formula, l->fold->base, dw, v.part, v.grad));
        FM_TRY(give(net, ps, l->fold, &v, settled));
    }
    fmt_fold_zero(net, ps);
    return FM_OK;
}

float *fmt_weight_grad(const fmt_linear *l, const fmt_params *ps)
{
    if (!ps)
        return NULL;
    if (l->fold)
        return l->fold->dw;
    return l->w_param >= 0 ? ps->g + ps->item[l->w_param].at : NULL;
}
