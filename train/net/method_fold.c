/* method_fold.c - methods that change a weight by a formula (store/fold.h): LoHa, LoKr, OFT.
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

static const struct {
    fm_method method;
    const char *kind, *peft_type;
} kinds[] = {
    {FM_METHOD_LOHA, "loha", "LOHA"},
    {FM_METHOD_LOKR, "lokr", "LOKR"},
    {FM_METHOD_OFT, "oft", "OFT"},
};

const char *fmt_fold_kind(fm_method m)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (kinds[i].method == m)
            return kinds[i].kind;
    return NULL;
}

const char *fmt_fold_kind_of_type(const char *peft_type)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].peft_type, peft_type) == 0)
            return kinds[i].kind;
    return NULL;
}

/* ---- shapes of a module's tensors, by the settings ---- */
typedef struct wanted { /* of each part; rank 0: absent */
    fm_shape shape[FM_FOLD_PARTS];
} wanted;

static fm_shape matrix(uint64_t rows, uint64_t cols)
{
    return (fm_shape){.rank = 2, .dim = {rows, cols}};
}

static fm_status loha_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                             const char *module)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, module));

    w->shape[0] = w->shape[2] = matrix(l->out, spec.r);
    w->shape[1] = w->shape[3] = matrix(spec.r, l->in);
    return FM_OK;
}

/* PEFT's factorization: n = *small * *large, as near to a square as factor allows. */
static void two_factors(uint64_t n, int64_t factor, uint64_t *small, uint64_t *large)
{
    uint64_t a = 1, b = n, most = factor < 0 ? n : (uint64_t)factor;

    if (factor > 0 && n % most == 0) {
        a = most;
        b = n / most;
        *small = a;
        *large = b;
        return;
    }
    while (a < b) {
        uint64_t next = a + 1;
        while (n % next != 0)
            next++;
        if (next + n / next > 1 + n || next > most)
            break;
        a = next;
        b = n / next;
    }
    *small = FM_MIN(a, b);
    *large = FM_MAX(a, b);
}

/* A factor [n, m] at part `at`: whole, or as two factors of rank r. */
static void lokr_side(wanted *w, size_t at, bool whole, uint64_t n, uint64_t m, uint64_t r)
{
    if (whole) {
        w->shape[at] = matrix(n, m);
        return;
    }
    w->shape[at + 1] = matrix(n, r);
    w->shape[at + 2] = matrix(r, m);
}

static fm_status lokr_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                             const char *module)
{
    const int64_t factor = fm_json_int(fm_json_get(config, "decompose_factor"), -1);
    const bool both = fm_json_bool(fm_json_get(config, "decompose_both"), false);
    uint64_t out1, out2, in1, in2;
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, module));

    two_factors(l->in, factor, &in1, &in2);
    two_factors(l->out, factor, &out1, &out2);
    lokr_side(w, 0, !(both && 2 * (uint64_t)spec.r < FM_MAX(out1, in1)), out1, in1, spec.r);
    lokr_side(w, 3, 2 * (uint64_t)spec.r >= FM_MAX(out2, in2), out2, in2, spec.r);
    return FM_OK;
}

/* PEFT's adjust_oft_parameters: the divisor of n next to want, the lower one of two. */
static uint64_t near_divisor(uint64_t n, uint64_t want)
{
    uint64_t up = want, down = want;

    if (want >= n)
        return n;
    while (up <= n && n % up != 0)
        up++;
    while (down > 1 && n % down != 0)
        down--;
    return want - down <= up - want ? down : up;
}

static fm_status oft_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const uint64_t size = (uint64_t)fm_json_int(fm_json_get(config, "oft_block_size"), 0);
    const uint64_t r = (uint64_t)fm_json_int(fm_json_get(config, "r"), 0);
    const bool shared = fm_json_bool(fm_json_get(config, "block_share"), false);
    const uint64_t block = size > 0 ? near_divisor(l->in, size) : l->in / near_divisor(l->in, r);

    if (block < 2)
        return fm_fail(FM_EINVAL, "oft on '%s': blocks of one input have nothing to rotate",
                       l->module);
    w->shape[0] = matrix(shared ? 1 : l->in / block, block * (block - 1) / 2);
    return FM_OK;
}

static fm_status wanted_of(wanted *w, fm_method m, const fmt_linear *l, const fm_json *config,
                           const char *module)
{
    memset(w, 0, sizeof(*w));
    if (m == FM_METHOD_LOHA)
        return loha_shapes(w, l, config, module);
    if (m == FM_METHOD_LOKR)
        return lokr_shapes(w, l, config, module);
    return oft_shapes(w, l, config);
}

/* ---- declaring ---- */
static fm_status check_place(const fmt_net *net, const fmt_linear *l, const char *kind)
{
    FM_TRY(fmt_check_free(l));
    if (fmt_net_layer_of(net, l) == FMT_OUTSIDE && l != &net->outer[FMT_HEAD])
        return fm_fail(FM_EUNSUPPORTED, "%s on '%s': it is no linear layer", kind, l->module);
    if (l->transposed)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s on '%s': its weight is stored [in, out], for which PEFT has no %s", kind,
                       l->module, kind);
    if (l->terms > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s on '%s': the parent has a low-rank term there; export the parent merged "
                       "and import that",
                       kind, l->module);
    return FM_OK;
}

static fm_status add_parts(fmt_fold *f, fmt_params *ps, const char *kind, const char *module,
                           const fm_shape *const *shape)
{
    char name[FMT_MODULE_BYTES + 96];

    for (int i = 0; i < (int)FM_FOLD_PARTS; i++) {
        if (!shape[i])
            continue;
        (void)snprintf(name, sizeof(name), FMT_PEFT_PREFIX "%s.%s", module,
                       fm_fold_part_name(kind, i));
        FM_TRY(fmt_params_add(ps, &f->param[i], name, shape[i]));
    }
    return FM_OK;
}

/* shape[i]: of part i, or NULL. */
static fm_status add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *kind,
                     const char *module, const fm_json *config, const fm_shape *const *shape)
{
    const fm_fold_of of = {
        .kind = kind, .module = module, .config = config, .out = l->out, .in = l->in};
    FM_TRY(check_place(net, l, kind));
    fmt_fold *f = fm_calloc(1, sizeof(*f));
    if (!f)
        return FM_ENOMEM;

    for (size_t i = 0; i < FM_FOLD_PARTS; i++)
        f->param[i] = -1;
    l->fold = f;
    net->folds++;
    FM_TRY(fm_fold_new(&f->formula, &of, shape));
    return add_parts(f, ps, kind, module, shape);
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
    const char *kind = fmt_fold_kind(c->method);
    fmt_linear *l;
    FM_TRY(fmt_check_targets(net, c->targets, "targets"));

    FM_TRY(fmt_check_patterns(net, c, config));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        char module[FMT_MODULE_BYTES + 16];
        const fm_shape *shape[FM_FOLD_PARTS];
        wanted w;
        if (!fmt_is_target(net, l, c, c->targets))
            continue;
        fmt_peft_name(net, l->module, module, sizeof(module));
        FM_TRY(wanted_of(&w, c->method, l, config, module));
        for (size_t k = 0; k < FM_FOLD_PARTS; k++)
            shape[k] = w.shape[k].rank > 0 ? &w.shape[k] : NULL;
        FM_TRY(add(net, ps, l, kind, module, config, shape));
    }
    return fmt_saved_declare(net, ps, c);
}

fm_status fmt_fold_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *kind,
                       const char *module, const fm_json *config, const fm_tree *tree,
                       const char *prefix)
{
    const fm_shape *shape[FM_FOLD_PARTS] = {0};
    const size_t skip = strlen(FMT_PEFT_PREFIX), n = strlen(module);
    size_t begin = 0, end = 0;

    if (l->fold)
        return FM_OK; /* declared with its first tensor */
    fm_tree_range(tree, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        size_t tail = 0;
        int part = e->kind == FM_ENTRY_TENSOR ? fm_fold_part(kind, e->name, &tail) : -1;
        if (part >= 0 && strlen(e->name) == skip + n + tail &&
            strncmp(e->name + skip, module, n) == 0)
            shape[part] = &e->shape;
    }
    return add(net, ps, l, kind, module, config, shape);
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

static uint64_t floats_of(const fmt_linear *l)
{
    return (uint64_t)l->out * l->in;
}

uint64_t fmt_fold_bytes(const fmt_net *net)
{
    return (3 * net->fold.all + 3 * net->fold.most) * sizeof(float);
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
    uint64_t at = 0;
    fmt_linear *l;
    void *mem = NULL;

    if (net->folds == 0 || set->mem)
        return FM_OK;
    set->lo = UINT64_MAX;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold) {
            set->all += floats_of(l);
            set->most = FM_MAX(set->most, floats_of(l));
            used_params(ps, l->fold, &set->lo, &set->hi);
        }
    FM_TRY(net->be->alloc(net->be, &mem, (size_t)(set->all + set->most) * sizeof(float)));
    set->mem = mem;
    set->host = fm_malloc((size_t)(2 * set->most + 2 * (set->hi - set->lo)) * sizeof(float));
    if (!set->host)
        return FM_ENOMEM;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold) {
            FM_TRY(own_layout(net, l));
            l->fold->dw = set->mem + at;
            at += floats_of(l);
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
static fm_status take_base(fmt_net *net, fmt_linear *l, const fm_tree *parent, const fm_provider *p)
{
    char name[FMT_MODULE_BYTES + 16];

    (void)snprintf(name, sizeof(name), "%s.weight", l->module);
    const fm_entry *e = fmt_base_entry(net, parent, name);
    if (!e)
        return fm_fail(FM_EBASE, "the parent has no %s", name);
    if (e->shape.rank != 2 || e->shape.dim[0] != l->out || e->shape.dim[1] != l->in)
        return fm_fail(FM_EBASE, "the parent's %s has another shape than its config says", name);
    fm_free(l->fold->base);
    return fmt_read_f32(&l->fold->base, p, e);
}

fm_status fmt_fold_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->fold)
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
        FM_TRY(net->be->download(net->be, dw, l->fold->dw, (size_t)floats_of(l) * sizeof(float)));
        FM_TRY(fm_fold_grad(l->fold->formula, l->fold->base, dw, v.part, v.grad));
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
