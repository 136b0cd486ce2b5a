/* ctest: card */
/* Low-rank terms of many rows in mode bf16 on a GPU (KK_DEVICE=cuda; emulated or real), whose
 * products read x as it lies: a row has the bits that it has among few rows, which other kernels
 * multiply, and gradients of factors are those of sums in double. */
#include "tests/kernel/matrix_kit.h"

#define TOL_TWO 5e-5 /* both operands as two bf16: the rests' product is left out, 2^-16 of it */

static fm_backend *be;

static int open_card(void **state)
{
    (void)state;
    be = kk_card("bf16");
    return 0;
}
static int close_card(void **state)
{
    (void)state;
    if (be)
        be->close(be);
    return 0;
}

static float *floats(size_t n)
{
    void *p;
    float *from = random_floats(n, 1.0);

    tk_ok(be->host_alloc(be, &p, (n + 1) * sizeof(float)));
    memcpy(p, from, n * sizeof(float));
    fm_free(from);
    return p;
}

typedef struct shape {
    uint32_t m, in, out, r, pad; /* pad: of rows of x, dy, y, dx */
} shape;

/* Rows of a block and less, k of one part and of several; odd ones, so that nothing is aligned. */
static const shape shapes[] = {
    {70, 66, 130, 3, 1}, {300, 97, 80, 16, 0}, {129, 200, 65, 33, 2}, {66, 90, 257, 64, 3}};

static fm_term term(const shape *s)
{
    return (fm_term){.a = floats((size_t)s->r * s->in),
                     .b = floats((size_t)s->out * s->r),
                     .in = s->in,
                     .out = s->out,
                     .r = s->r,
                     .m = s->m,
                     .scale = 0.5f,
                     .x = floats((size_t)s->m * (s->in + s->pad)),
                     .ldx = s->in + s->pad,
                     .y = floats((size_t)s->m * (s->out + s->pad)),
                     .ldy = s->out + s->pad,
                     .u = floats((size_t)s->m * s->r),
                     .dy = floats((size_t)s->m * (s->out + s->pad)),
                     .lddy = s->out + s->pad,
                     .du = floats((size_t)s->m * s->r),
                     .da = floats((size_t)s->r * s->in),
                     .db = floats((size_t)s->out * s->r),
                     .dx = floats((size_t)s->m * (s->in + s->pad)),
                     .lddx = s->in + s->pad};
}

static void release(const fm_term *t)
{
    const float *all[] = {t->a, t->b, t->x, t->y, t->u, t->dy, t->du, t->da, t->db, t->dx};
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        be->host_free(be, (void *)(uintptr_t)all[i]);
}

static float *copy(const float *x, size_t n)
{
    float *r = fm_memdup(x, n * sizeof *x);

    assert_non_null(r);
    return r;
}

static void same(const float *got, const float *want, size_t n, const char *what, const shape *s)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s of %u x %u x %u, rank %u: %a at %zu, expected %a", what, s->m, s->in,
                     s->out, s->r, (double)got[i], i, (double)want[i]);
}

/* u, y, du and dx of all rows at once, and of 30 at a time, which are too few for these kernels. */
TEST(a_row_has_the_bits_that_it_has_among_few)
{
    if (!be)
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        size_t us = (size_t)s->m * s->r, ys = (size_t)s->m * (s->out + s->pad);
        size_t xs = (size_t)s->m * (s->in + s->pad);
        fm_term t = term(s);
        float *y0 = copy(t.y, ys), *dx0 = copy(t.dx, xs);
        be->host_free(be, t.da);
        be->host_free(be, t.db);
        t.da = t.db = NULL;
        be->terms(be, &t, 1);
        be->terms_grad(be, &t, 1);
        tk_ok(be->sync(be));
        float *u = copy(t.u, us), *y = copy(t.y, ys), *du = copy(t.du, us), *dx = copy(t.dx, xs);
        memcpy(t.y, y0, ys * sizeof *y0);
        memcpy(t.dx, dx0, xs * sizeof *dx0);
        for (uint32_t row = 0; row < s->m; row += 30) {
            fm_term few = t;
            few.m = s->m - row < 30 ? s->m - row : 30;
            few.x += row * t.ldx;
            few.y += row * t.ldy;
            few.u += (size_t)row * s->r;
            few.dy += row * t.lddy;
            few.du += (size_t)row * s->r;
            few.dx += row * t.lddx;
            be->terms(be, &few, 1);
            be->terms_grad(be, &few, 1);
        }
        tk_ok(be->sync(be));
        same(u, t.u, us, "u", s);
        same(y, t.y, ys, "y", s);
        same(du, t.du, us, "du", s);
        same(dx, t.dx, xs, "dx", s);
        float *mine[] = {y0, dx0, u, y, du, dx};
        for (size_t f = 0; f < FM_ARRAY_LEN(mine); f++)
            fm_free(mine[f]);
        release(&t);
    }
}

/* to[i, j] += scale * sum over rows of p[row, i] q[row, j] */
static void add_outer(float *to, const float *p, size_t ldp, const float *q, size_t ldq, uint32_t n,
                      uint32_t k, uint32_t m, double scale)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++) {
            double sum = 0.0;
            for (uint32_t row = 0; row < m; row++)
                sum += (double)p[row * ldp + i] * (double)q[row * ldq + j];
            to[(size_t)i * k + j] = (float)((double)to[(size_t)i * k + j] + scale * sum);
        }
}

static void close_to(const float *got, const float *want, size_t n, const char *what,
                     const shape *s)
{
    double rel = tk_rel_norm(got, want, n), norm = 0.0, worst = tk_max_abs_diff(got, want, n);

    for (size_t i = 0; i < n; i++)
        norm = fmax(norm, fabs((double)want[i]));
    if (!(rel <= TOL_TWO) || !(worst <= 8.0 * TOL_TWO * norm))
        fail_msg("%s of %u x %u x %u, rank %u: relative error %g, largest %g of %g", what, s->m,
                 s->in, s->out, s->r, rel, worst, norm);
}

TEST(gradients_of_factors_equal_the_reference)
{
    if (!be)
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        fm_term t = term(s);
        size_t as = (size_t)s->r * s->in, bs = (size_t)s->out * s->r;
        float *da = copy(t.da, as), *db = copy(t.db, bs);
        be->terms_grad(be, &t, 1);
        tk_ok(be->sync(be));
        add_outer(da, t.du, s->r, t.x, t.ldx, s->r, s->in, s->m, 1.0);
        add_outer(db, t.dy, t.lddy, t.u, s->r, s->out, s->r, s->m, (double)t.scale);
        close_to(t.da, da, as, "da", s);
        close_to(t.db, db, bs, "db", s);
        fm_free(da);
        fm_free(db);
        release(&t);
    }
}

/* Rows that are no numbers stay rows of their own. */
TEST(not_a_number_stays_in_its_row)
{
    if (!be)
        skip();
    const shape *s = &shapes[0];
    fm_term t = term(s);
    float *x = copy(t.x, (size_t)s->m * t.ldx);
    x[5 * t.ldx + 7] = INFINITY;
    x[9 * t.ldx + 8] = NAN;
    memcpy((void *)(uintptr_t)t.x, x, (size_t)s->m * t.ldx * sizeof *x);
    be->terms(be, &t, 1);
    tk_ok(be->sync(be));
    for (uint32_t row = 0; row < s->m; row++)
        for (uint32_t j = 0; j < s->r; j++)
            assert_true(isfinite((double)t.u[row * s->r + j]) == (row != 5 && row != 9));
    fm_free(x);
    release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_bits_that_it_has_among_few),
        cmocka_unit_test(gradients_of_factors_equal_the_reference),
        cmocka_unit_test(not_a_number_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
