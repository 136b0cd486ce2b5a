/* train.cu - mode bf16: training whose products run on tensor cores, sums and masters in f32.
 *
 * Weights of role LINEAR are bf16 in tiles, whatever their stored type; operands of linear,
 * products, linear_dx and linear_dw are rounded to bf16. Low-rank terms and gemm keep both operands
 * as two bf16 (16 bits each): three mma for one. Every product is one of fast.h, with the dimension
 * that is summed as its k; an operand that is not a weight is packed in tiles first. Factors of
 * low-rank terms stay f32 and are mode exact's weights. */
#include "infer/cuda/mma/fast.h"

#define TERMS_MAX 256u

/* ---- operands ---- */

/* f32 [n, k] (turned: stored [k, n]) that is to become W of a product. */
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

static void fill_tiles(fmc_device *d, const operand *o, unsigned char *tiles)
{
    fmc_tiles_from_floats(d, o->kind, tiles, o->from, o->ld, o->turned, o->n, o->k);
}

/* Reserves the operands' tiles, side by side in FMC_SCRATCH_OTHER; false: failed, kept for sync. */
static bool place_tiles(fmc_device *d, const operand *list, uint32_t count, unsigned char **tiles)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += operand_bytes(&list[i]);
    unsigned char *at = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, bytes);
    if (!at)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        tiles[i] = at;
        at += operand_bytes(&list[i]);
    }
    return true;
}

static bool make_tiles(fmc_device *d, const operand *list, uint32_t count, unsigned char **tiles)
{
    if (!place_tiles(d, list, count, tiles))
        return false;
    for (uint32_t i = 0; i < count; i++)
        fill_tiles(d, &list[i], tiles[i]);
    return d->failed == FM_OK;
}

/* y [m, n] += alpha * x W^T with an operand as W; x [m, k] or, turned, [k, m]. */
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

/* da += du^T x. x, the larger operand, is read once, as rows of a product whose outputs are
 * du's. */
static fmc_sum grad_of_a(const fm_term *t, operand *o)
{
    operand du = {t->du, t->r, t->r, t->m, FMC_PAIR, true};
    operand x = {t->x, t->ldx, t->in, t->m, FMC_PAIR, true};
    fmc_sum s = sum_with(&du, NULL, t->da, t->in, t->x, t->ldx, true, t->in, 1.0f);
    s.across = true;
    *o = du;
    if (fmc_is_skinny(&s))
        return s;
    *o = x;
    return sum_with(&x, NULL, t->da, t->in, t->du, t->r, true, t->r, 1.0f);
}

/* du = scale dy B; db += scale dy^T u; then the products that need du. */
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
    if (t->dx) { /* terms may share dx: one after another, in the order of the list */
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

/* ---- products and their low-rank terms at once ----
 *
 * The term's thin product reads x (backward: dy) and stores it rounded in the layout that the large
 * product reads, which then adds the term to its sums: x is read once for both, y once in all. On a
 * GPU without such kernels, or for other rows and shapes, the calls run one by one. */

#define AT_ONCE 64u

/* The products of one call, with their terms and operands. */
typedef struct together {
    fmc_sum sum[AT_ONCE];         /* with cores and tails */
    const fm_term *term[AT_ONCE]; /* the term of each; NULL: none */
    uint32_t cores_of[AT_ONCE];   /* the first product with the same rows */
    operand o[4 * AT_ONCE];       /* operands of terms that become tiles, by product and use */
    unsigned char *tiles[4 * AT_ONCE];
    uint32_t count;
} together;

static bool place_cores(fmc_device *d, together *g)
{
    uint64_t bytes = 0, at[AT_ONCE];
    for (uint32_t i = 0; i < g->count; i++)
        at[i] = g->cores_of[i] == i ? fmc_take(&bytes, fmc_cores_bytes(g->sum[i].p.m, g->sum[i].k))
                                    : at[g->cores_of[i]];
    unsigned char *cores = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_CORES, bytes);
    for (uint32_t i = 0; cores && i < g->count; i++)
        g->sum[i].cores = g->term[g->cores_of[i]] ? cores + at[i] : NULL;
    return cores != NULL;
}

/* x A^T of a term of those rows. */
static fmc_sum down_of(const fm_term *t, const operand *a, const unsigned char *tiles)
{
    fmc_sum s = sum_with(a, tiles, t->u, t->r, t->x, t->ldx, false, t->m, 1.0f);
    s.add = false;
    return s;
}

/* The term whose rows are all of p's or the first of them; NULL: none. */
static const fm_term *term_at(const fm_product *p, const float *x, size_t ldx, const fm_term *term,
                              uint32_t terms)
{
    for (uint32_t i = 0; i < terms; i++) {
        const fm_term *t = &term[i];
        if (t->y == p->y + p->first * p->ldy && t->ldy == p->ldy && t->m > 0 && t->m <= p->m &&
            t->x == x + p->first * ldx && t->ldx == ldx)
            return t;
    }
    return NULL;
}

/* Whether a product may be cut into pieces of rows: the pieces must not fill many more blocks of
 * rows than before, so that their terms save more than the blocks cost. */
static bool pieces_pay(uint64_t filled, uint64_t rows)
{
    return 8 * filled <= 9 * rows;
}
static uint64_t filled_by(uint32_t m)
{
    return fmc_ceil(m, 192) * 192ull;
}

/* made: the product itself computes x from gate and up; the memory of x stays unchanged. */
static void make_on_the_way(fmc_sum *s, const fm_swiglu *made)
{
    if (!made)
        return;
    size_t at = (size_t)(s->x - made->x);
    s->x = made->gate + at;
    s->up = made->up + at;
}

/* The first product with these rows that has a term writes their cores. */
static void share_cores(together *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t j = 0;
        while (j < i && (!g->term[j] || g->sum[j].p.first != g->sum[i].p.first ||
                         g->sum[j].p.m != g->sum[i].p.m))
            j++;
        g->cores_of[i] = j;
    }
}

/* Adds a product and its term t (or NULL); false: the term's product is not thin. */
static bool add_together(together *g, const fm_product *p, const float *x, size_t ldx,
                         const fm_term *t)
{
    uint32_t n = g->count++;
    g->term[n] = t;
    g->sum[n] = fmc_sum_of(p, x, ldx);
    if (!t)
        return true;
    g->o[2 * n] = {t->a, t->in, t->r, t->in, FMC_PAIR, false};
    g->o[2 * n + 1] = {t->b, t->r, t->out, t->r, FMC_PAIR, false};
    g->sum[n].tail = {t->u, NULL, t->r, t->scale};
    fmc_sum down = down_of(t, &g->o[2 * n], NULL);
    return fmc_is_skinny(&down);
}

/* Adds a product in pieces, each with the rows of one term. */
static bool add_pieces(together *g, const fm_product *p, const float *x, size_t ldx,
                       const fm_term *term, uint32_t terms)
{
    fm_product piece = *p;
    uint64_t filled = 0;
    while (piece.m > 0) {
        const fm_term *t = term_at(&piece, x, ldx, term, terms);
        uint32_t left = t ? piece.m - t->m : 0;
        if (!t || g->count == AT_ONCE)
            return false;
        piece.m = t->m;
        filled += filled_by(t->m);
        if (!add_together(g, &piece, x, ldx, t))
            return false;
        piece.first += t->m;
        piece.m = left;
    }
    return filled == filled_by(p->m) || pieces_pay(filled, p->m);
}

/* Plans a forward list, products with terms first; false: not all can be done so. */
static bool forward_together(fmc_device *d, together *g, const float *x, size_t ldx,
                             const fm_product *list, uint32_t count, const fm_term *term,
                             uint32_t terms)
{
    g->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].rows || list[i].from || list[i].split)
            return false;
        if (term_at(&list[i], x, ldx, term, terms) && !add_pieces(g, &list[i], x, ldx, term, terms))
            return false;
    }
    if (g->count != terms || terms == 0)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!term_at(&list[i], x, ldx, term, terms) &&
            (g->count == AT_ONCE || !add_together(g, &list[i], x, ldx, NULL)))
            return false;
    share_cores(g);
    return fmc_sm90_takes(d, g->sum, g->count);
}

/* Whether every product gets cores from a term; else x must exist, to be packed. */
static bool all_have_cores(const together *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (!g->term[g->cores_of[i]])
            return false;
    return true;
}

static void products_terms(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                           const fm_product *list, uint32_t count, const fm_term *term,
                           uint32_t count_terms, const fm_swiglu *made)
{
    static thread_local together g;
    fmc_device *d = fmc_of(be);
    fmc_sum down[AT_ONCE];
    uint32_t n = 0;
    if (!forward_together(d, &g, x, ldx, list, count, term, count_terms) ||
        (made && !all_have_cores(&g))) {
        if (made)
            be->swiglu(be, made->x, made->gate, made->up, made->n);
        be->products(be, x, ldx, k, list, count);
        be->terms(be, term, count_terms);
        return;
    }
    if (!make_tiles(d, g.o, 2 * count_terms, g.tiles) || !place_cores(d, &g))
        return;
    for (uint32_t i = 0; i < g.count && g.term[i]; i++) {
        g.sum[i].tail.tiles = g.tiles[2 * i + 1];
        down[n] = down_of(g.term[i], &g.o[2 * i], g.tiles[2 * i]);
        make_on_the_way(&down[n], made);
        down[n++].cores = g.cores_of[i] == i ? g.sum[i].cores : NULL;
    }
    fmc_sums(d, down, n);
    fmc_sums(d, g.sum, g.count);
}

/* The operands of a term that become tiles. */
enum { BACK_B, BACK_U, BACK_A, BACK_DU, BACK_OPERANDS };

/* scale * dy B */
static fmc_sum du_of(const fm_term *t, const operand *b, const unsigned char *tiles)
{
    fmc_sum s = sum_with(b, tiles, t->du, t->r, t->dy, t->lddy, false, t->m, t->scale);
    s.add = false;
    return s;
}

static fmc_sum db_of(const fm_term *t, const operand *u, const unsigned char *tiles)
{
    return sum_with(u, tiles, t->db, t->r, t->dy, t->lddy, true, t->out, t->scale);
}

static bool back_fits(const fm_back *b, const float *dx, size_t lddx)
{
    const fm_term *t = &b->term;
    dx += b->first * lddx;
    return fmc_fast_weight_of(b->w)->turned &&
           (t->m == 0 || (t->m == b->m && t->dy == b->dy && t->lddy == b->lddy &&
                          (!t->dx || (t->dx == dx && t->lddx == lddx))));
}

/* Whether the products that write cores or make x are thin; for db any kernel will do. */
static bool back_is_thin(const fm_term *t, operand o[BACK_OPERANDS])
{
    o[BACK_B] = {t->b, t->r, t->r, t->out, FMC_PAIR, true};
    o[BACK_U] = {t->u, t->r, t->r, t->m, FMC_PAIR, true};
    o[BACK_A] = {t->a, t->in, t->in, t->r, FMC_PAIR, true};
    fmc_sum du = du_of(t, &o[BACK_B], NULL), da = grad_of_a(t, &o[BACK_DU]);
    return fmc_is_skinny(&du) && (!t->da || da.across);
}

/* Number of entries from i on whose rows of dx differ, so that they run in parallel; entries with
 * the same rows add to them one after another. */
static uint32_t side_by_side(const fm_back *list, uint32_t i, uint32_t count)
{
    uint32_t n = 1;
    while (i + n < count && list[i + n].first >= list[i + n - 1].first + list[i + n - 1].m)
        n++;
    return n;
}

/* Number of entries from i on that would be one product if they had no terms. */
static uint32_t one_product(const fm_back *list, uint32_t i, uint32_t count, uint32_t *rows)
{
    uint32_t n = 1;
    *rows = list[i].m;
    while (i + n < count && list[i + n].w == list[i].w && list[i + n].add == list[i].add &&
           list[i + n].lddy == list[i].lddy && list[i + n].first == list[i].first + *rows &&
           list[i + n].dy == list[i].dy + *rows * list[i].lddy)
        *rows += list[i + n++].m;
    return n;
}

static bool backs_pay(const fm_back *list, uint32_t count)
{
    for (uint32_t i = 0, n; i < count; i += n) {
        uint32_t rows;
        uint64_t filled = 0;
        n = one_product(list, i, count, &rows);
        for (uint32_t k = 0; k < n; k++)
            filled += filled_by(list[i + k].m);
        if (n > 1 && !pieces_pay(filled, rows))
            return false;
    }
    return true;
}

static bool back_together(fmc_device *d, together *g, float *dx, size_t lddx, const fm_back *list,
                          uint32_t count)
{
    g->count = 0;
    if (count > AT_ONCE || !backs_pay(list, count))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const fmc_fast_weight *w = fmc_fast_weight_of(list[i].w);
        const fm_term *t = list[i].term.m > 0 ? &list[i].term : NULL;
        operand of_w = {NULL, 0, w->k, w->n, FMC_BF16, false}, *o = &g->o[BACK_OPERANDS * i];
        for (uint32_t use = 0; use < BACK_OPERANDS; use++)
            o[use] = {};
        if (!back_fits(&list[i], dx, lddx) || (t && !back_is_thin(t, o)))
            return false;
        g->term[i] = t;
        g->cores_of[i] = i;
        g->sum[i] = sum_with(&of_w, w->turned, dx + list[i].first * lddx, lddx, list[i].dy,
                             list[i].lddy, false, list[i].m, 1.0f);
        g->sum[i].add = list[i].add;
        if (t && t->dx)
            g->sum[i].tail = {t->du, NULL, t->r, 1.0f};
    }
    for (uint32_t i = 0, n; i < count; i += n) {
        n = side_by_side(list, i, count);
        if (!fmc_sm90_takes(d, &g->sum[i], n))
            return false;
    }
    g->count = count;
    return count > 0;
}

/* Runs the sums over rows whose operand `use` is ready now. */
static void run_backs(fmc_device *d, together *g, unsigned use, const fm_swiglu *made)
{
    fmc_sum sums[2 * AT_ONCE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const fm_term *t = g->term[i];
        operand *o = &g->o[BACK_OPERANDS * i];
        unsigned char **tiles = &g->tiles[BACK_OPERANDS * i];
        if (!t)
            continue;
        if (use == BACK_DU && t->da) {
            fill_tiles(d, &o[BACK_DU], tiles[BACK_DU]);
            sums[n] = grad_of_a(t, &o[BACK_DU]);
            make_on_the_way(&sums[n], made);
            sums[n++].tiles = tiles[BACK_DU];
        }
        if (use == BACK_DU)
            continue;
        fill_tiles(d, &o[BACK_B], tiles[BACK_B]);
        sums[n] = du_of(t, &o[BACK_B], tiles[BACK_B]);
        sums[n++].cores = g->sum[i].cores;
        if (t->db) {
            fill_tiles(d, &o[BACK_U], tiles[BACK_U]);
            sums[n++] = db_of(t, &o[BACK_U], tiles[BACK_U]);
        }
    }
    fmc_sums(d, sums, n);
}

static void one_after_another(fm_backend *be, float *dx, size_t lddx, const fm_back *list,
                              uint32_t count)
{
    for (uint32_t i = 0, n; i < count; i += n) {
        uint32_t rows;
        n = one_product(list, i, count, &rows);
        be->linear_dx(be, dx + list[i].first * lddx, lddx, list[i].dy, list[i].lddy, list[i].w,
                      rows, list[i].add);
        for (uint32_t k = 0; k < n; k++)
            be->terms_grad(be, &list[i + k].term, 1);
    }
}

static void linears_dx(fm_backend *be, float *dx, size_t lddx, const fm_back *list, uint32_t count,
                       const fm_swiglu *made)
{
    static thread_local together g;
    fmc_device *d = fmc_of(be);
    if (!back_together(d, &g, dx, lddx, list, count)) {
        if (made)
            be->swiglu(be, made->x, made->gate, made->up, made->n);
        one_after_another(be, dx, lddx, list, count);
        return;
    }
    if (!place_tiles(d, g.o, BACK_OPERANDS * count, g.tiles) || !place_cores(d, &g))
        return;
    run_backs(d, &g, BACK_B, NULL);
    run_backs(d, &g, BACK_DU, made);
    for (uint32_t i = 0; i < count; i++)
        if (g.sum[i].tail.r > 0) {
            g.sum[i].tail.tiles = g.tiles[BACK_OPERANDS * i + BACK_A];
            fill_tiles(d, &g.o[BACK_OPERANDS * i + BACK_A], g.tiles[BACK_OPERANDS * i + BACK_A]);
        }
    for (uint32_t i = 0, n; i < count; i += n) {
        n = side_by_side(list, i, count);
        fmc_sums(d, &g.sum[i], n);
    }
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

/* The factors are mode exact's weights. */
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
    be->products_terms = products_terms;
    be->linears_dx = linears_dx;
    be->weight_update = weight_update;
    be->weight_floats = exact->weight_floats ? weight_floats : NULL;
    be->weight_for_dx = weight_for_dx;
    be->lora = exact->lora ? lora : NULL;
}
