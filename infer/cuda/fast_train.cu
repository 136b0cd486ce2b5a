/* fast_train.cu - mode bf16: training whose products run on tensor cores, sums and masters in f32.
 *
 * Weights of role LINEAR are bf16 in tiles, whatever they were; operands of linear, products,
 * linear_dx and linear_dw are rounded to bf16. Low-rank terms and gemm keep both operands as two
 * bf16 (16 bits each): three mma for one. Every product is one of fast.h's, whose k here is what the
 * operation sums over; what is not a weight becomes tiles first. Factors of low-rank terms stay f32
 * and are mode exact's weights. */
#include "infer/cuda/fast.h"

#define TERMS_MAX 256u

/* ---- operands ---- */

/* f32 [n, k] (turned: stored [k, n]) on its way to become W of a product. */
typedef struct operand {
    const float *from;
    size_t ld;
    uint32_t n, k;
    fmc_kind kind;
    bool turned;
} operand;

static uint64_t operand_bytes(const operand *o)
{
    return (fmc_tiles_bytes(o->kind, o->n, o->k) + 255) / 256 * 256;
}

/* Tiles of all of them, side by side in FMC_SCRATCH_OTHER; false: failed, sticks. */
static bool make_tiles(fmc_device *d, const operand *list, uint32_t count, unsigned char **tiles)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += operand_bytes(&list[i]);
    unsigned char *at = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, bytes);
    if (!at)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const operand *o = &list[i];
        tiles[i] = at;
        at += operand_bytes(o);
        fmc_tiles_from_floats(d, o->kind, tiles[i], o->from, o->ld, o->turned, o->n, o->k);
    }
    return d->failed == FM_OK;
}

/* y [m, n] += alpha * x W^T of an operand; x [m, k] or, turned, [k, m]. */
static fmc_sum sum_with(const operand *w, const unsigned char *tiles, float *y, size_t ldy,
                        const float *x, size_t ldx, bool turned, uint32_t m, float alpha)
{
    fmc_sum s = {};
    s.p.y = y;
    s.p.ldy = ldy;
    s.p.m = m;
    s.p.split = w->kind == FMC_PAIR;
    s.kind = w->kind;
    s.tiles = tiles;
    s.n = w->n;
    s.k = w->k;
    s.x = x;
    s.ldx = ldx;
    s.turned = turned;
    s.add = true;
    s.alpha = alpha;
    return s;
}

static void one_sum(fmc_device *d, const operand *w, float *y, size_t ldy, const float *x,
                    size_t ldx, bool turned, uint32_t m, float alpha, bool add)
{
    unsigned char *tiles;
    if (m == 0 || w->n == 0 || w->k == 0 || !make_tiles(d, w, 1, &tiles))
        return;
    fmc_sum s = sum_with(w, tiles, y, ldy, x, ldx, turned, m, alpha);
    s.add = add;
    fmc_sums(d, &s, 1);
}

/* ---- gradients of large products ---- */

static void linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                      const fm_weight *weight, uint32_t m, bool accumulate)
{
    fmc_device *d = fmc_of(be);
    const fmc_fast_weight *w = fmc_fast_weight_of(weight);
    unsigned char *turned = w->turned;
    operand o = {NULL, 0, w->k, w->n, FMC_BF16, false};
    if (m == 0)
        return;
    if (!turned) {
        turned = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, operand_bytes(&o));
        if (!turned)
            return;
        fmc_tiles_turn(d, turned, w->tiles, w->n, w->k);
    }
    fmc_sum s = sum_with(&o, turned, dx, lddx, dy, lddy, false, m, 1.0f);
    s.add = accumulate;
    fmc_sums(d, &s, 1);
}

static void linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                      size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    operand o =
        stored_kn ? operand{dy, lddy, n, m, FMC_BF16, true} : operand{x, ldx, k, m, FMC_BF16, true};
    if (stored_kn)
        one_sum(fmc_of(be), &o, dw, n, x, ldx, true, k, 1.0f, true);
    else
        one_sum(fmc_of(be), &o, dw, k, dy, lddy, true, n, 1.0f, true);
}

static void gemm(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
                 const float *b, size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k,
                 float alpha, bool accumulate)
{
    operand o = {b, ldb, n, k, FMC_PAIR, !tb};
    one_sum(fmc_of(be), &o, c, ldc, a, lda, ta, m, alpha, accumulate);
}

/* ---- low-rank terms ---- */

static bool has_rows(const fm_term *t)
{
    return t->m > 0;
}

static void run_terms(fmc_device *d, const fm_term *list, uint32_t count)
{
    operand o[2 * TERMS_MAX];
    unsigned char *tiles[2 * TERMS_MAX];
    static thread_local fmc_sum down[TERMS_MAX], up[TERMS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        o[2 * i] = {list[i].a, list[i].in, list[i].r, list[i].in, FMC_PAIR, false};
        o[2 * i + 1] = {list[i].b, list[i].r, list[i].out, list[i].r, FMC_PAIR, false};
    }
    if (!make_tiles(d, o, 2 * count, tiles))
        return;
    for (uint32_t i = 0; i < count; i++) {
        const fm_term *t = &list[i];
        if (!has_rows(t))
            continue;
        down[n] = sum_with(&o[2 * i], tiles[2 * i], t->u, t->r, t->x, t->ldx, false, t->m, 1.0f);
        down[n].add = false;
        up[n++] = sum_with(&o[2 * i + 1], tiles[2 * i + 1], t->y, t->ldy, t->u, t->r, false, t->m,
                           t->scale);
    }
    fmc_sums(d, down, n);
    fmc_sums(d, up, n);
}

static void terms(fm_backend *be, const fm_term *list, uint32_t count)
{
    for (uint32_t at = 0; at < count; at += TERMS_MAX)
        run_terms(fmc_of(be), list + at, count - at < TERMS_MAX ? count - at : TERMS_MAX);
}

/* da += du^T x. x is the larger: read once as the rows of a product whose outputs are du's. */
static fmc_sum grad_of_a(const fm_term *t, operand *o)
{
    operand du = {t->du, t->r, t->r, t->m, FMC_PAIR, true};
    operand x = {t->x, t->ldx, t->in, t->m, FMC_PAIR, true};
    fmc_sum s = sum_with(&du, NULL, t->da, t->in, t->x, t->ldx, true, t->in, 1.0f);
    s.across = true;
    *o = du;
    if (fmc_is_thin(&s))
        return s;
    *o = x;
    return sum_with(&x, NULL, t->da, t->in, t->du, t->r, true, t->r, 1.0f);
}

/* du = scale dy B; db += scale dy^T u; then what needs du. */
static void term_grad(fmc_device *d, const fm_term *t)
{
    operand o[2] = {{t->b, t->r, t->r, t->out, FMC_PAIR, true},
                    {t->u, t->r, t->r, t->m, FMC_PAIR, true}};
    unsigned char *tiles[2];
    fmc_sum s[2];
    uint32_t n = 0;
    if (!make_tiles(d, o, 2, tiles))
        return;
    s[n] = sum_with(&o[0], tiles[0], t->du, t->r, t->dy, t->lddy, false, t->m, t->scale);
    s[n++].add = false;
    if (t->db)
        s[n++] = sum_with(&o[1], tiles[1], t->db, t->r, t->dy, t->lddy, true, t->out, t->scale);
    fmc_sums(d, s, n);
    n = 0;
    if (t->da) {
        s[n] = grad_of_a(t, &o[n]);
        n++;
    }
    if (t->dx) { /* terms may share it: one after another, in the order of the list */
        o[n] = {t->a, t->in, t->in, t->r, FMC_PAIR, true};
        s[n] = sum_with(&o[n], NULL, t->dx, t->lddx, t->du, t->r, false, t->m, 1.0f);
        n++;
    }
    if (n == 0 || !make_tiles(d, o, n, tiles))
        return;
    for (uint32_t i = 0; i < n; i++)
        s[i].tiles = tiles[i];
    fmc_sums(d, s, n);
}

static void terms_grad(fm_backend *be, const fm_term *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (has_rows(&list[i]))
            term_grad(fmc_of(be), &list[i]);
}

/* ---- weights ---- */

static void weight_update(fm_backend *be, fm_weight *weight, const float *src)
{
    fmc_fast_weight *w = fmc_fast_weight_of(weight);
    fmc_device *d = fmc_of(be);
    if (w->exact) {
        fmc_fast_of(be)->exact.weight_update(be, w->exact, src);
        return;
    }
    fmc_tiles_from_floats(d, FMC_BF16, w->tiles, src, w->k, false, w->n, w->k);
    if (w->turned)
        fmc_tiles_turn(d, w->turned, w->tiles, w->n, w->k);
}

static const float *weight_floats(const fm_weight *weight)
{
    const fmc_fast_weight *w = fmc_fast_weight_of(weight);
    return w->exact ? w->exact_floats(w->exact) : NULL;
}

static fm_status weight_for_dx(fm_backend *be, fm_weight *weight)
{
    fmc_fast_weight *w = fmc_fast_weight_of(weight);
    fmc_device *d = fmc_of(be);
    void *turned;
    if (w->exact || w->turned)
        return FM_OK;
    uint64_t bytes = fmc_tiles_bytes(FMC_BF16, w->k, w->n);
    fm_status rc = be->alloc(be, &turned, bytes);
    if (rc != FM_OK)
        return rc;
    w->turned = (unsigned char *)turned;
    w->bytes += bytes;
    fmc_tiles_turn(d, w->turned, w->tiles, w->n, w->k);
    return FM_OK;
}

/* Factors are mode exact's weights. */
static void lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                 uint32_t count)
{
    fm_lora list[TERMS_MAX];
    for (uint32_t at = 0; at < count; at += TERMS_MAX) {
        uint32_t n = count - at < TERMS_MAX ? count - at : TERMS_MAX;
        for (uint32_t i = 0; i < n; i++) {
            list[i] = term[at + i];
            list[i].a = fmc_fast_weight_of(term[at + i].a)->exact;
            list[i].b = fmc_fast_weight_of(term[at + i].b)->exact;
        }
        fmc_fast_of(be)->exact.lora(be, x, ldx, k, list, n);
    }
}

void fmc_fast_train_install(fm_backend *be)
{
    const fm_backend *exact = &fmc_fast_of(be)->exact;
    be->linear_dx = linear_dx;
    be->linear_dw = linear_dw;
    be->gemm = gemm;
    be->terms = terms;
    be->terms_grad = terms_grad;
    be->weight_update = weight_update;
    be->weight_floats = exact->weight_floats ? weight_floats : NULL;
    be->weight_for_dx = weight_for_dx;
    be->lora = exact->lora ? lora : NULL;
}
