/* ctest: card */
/* Mode bf16 on a GPU (KK_DEVICE=cuda; emulated or real): the products of training against sums in
 * double, and rows alone and in company. */
#include "tests/kernel/matrix_kit.h"

#define TOL_SUM 1e-5   /* of rounded operands: float32 sums */
#define TOL_LOOSE 4e-3 /* rounding both: 0.2 to 0.3 % */
#define TOL_TWO 5e-5   /* both operands as two bf16: the rests' product is left out, 2^-16 of it */

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
#define NEEDS_CARD()                                                                               \
    if (!be)                                                                                       \
    skip()

static float *shared_floats(size_t n, double size)
{
    void *p;
    float *from = random_floats(n, size);

    tk_ok(be->host_alloc(be, &p, (n + 1) * sizeof(float)));
    memcpy(p, from, n * sizeof(float));
    fm_free(from);
    return p;
}

static float bf16(float v)
{
    return fm_bf16_to_f32(fm_f32_to_bf16(v));
}

static float *rounded(const float *x, size_t n)
{
    float *r = fm_memdup(x, n * sizeof *x);

    assert_non_null(r);
    for (size_t i = 0; i < n; i++)
        r[i] = bf16(x[i]);
    return r;
}

static void close_to(const float *got, const float *want, size_t n, double tol, const char *what)
{
    double rel = tk_rel_norm(got, want, n), norm = 0.0, worst = tk_max_abs_diff(got, want, n);

    for (size_t i = 0; i < n; i++)
        norm = fmax(norm, fabs((double)want[i]));
    if (!(rel <= tol) || !(worst <= 8.0 * tol * norm))
        fail_msg("%s: relative error %g, largest %g of %g, allowed %g", what, rel, worst, norm,
                 tol);
}

/* c[m, n] = alpha op(a) op(b) (+ c), in double. */
static void reference(float *c, size_t ldc, const float *a, size_t lda, bool ta, const float *b,
                      size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k, double alpha,
                      bool add)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double s = 0.0;
            for (uint32_t l = 0; l < k; l++)
                s += (double)(ta ? a[l * lda + i] : a[i * lda + l]) *
                     (double)(tb ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = (float)(alpha * s + (add ? (double)c[i * ldc + j] : 0.0));
        }
}

typedef struct shape {
    uint32_t m, n, k;
} shape;
static const shape shapes[] = {{1, 5, 7}, {8, 33, 200}, {21, 70, 65}, {70, 40, 129}};

TEST(products_and_their_gradients)
{
    NEEDS_CARD();
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++)
        for (int way = 0; way < 4; way++) { /* with and without weight_for_dx, += or = */
            const uint32_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
            matrix w0 = random_matrix(way == 3 ? FM_F16 : FM_F32, n, k);
            float *w = shared_floats((size_t)n * k, 0.5), *x = shared_floats((size_t)m * k, 1.0);
            float *y = shared_floats((size_t)m * n, 1.0), *dx = shared_floats((size_t)m * k, 1.0);
            float *wr = rounded(w, (size_t)n * k), *xr = rounded(x, (size_t)m * k);
            float *want = fm_memdup(dx, (size_t)m * k * sizeof *dx), *dyr;
            float *out = random_floats((size_t)m * n, 1.0);
            fm_weight *weight;
            tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, w0.dtype, n, k, w0.bytes));
            if (way % 2)
                tk_ok(be->weight_for_dx(be, weight));
            be->weight_update(be, weight, w);
            be->linear(be, y, n, x, k, weight, NULL, NULL, m);
            tk_ok(be->sync(be));
            reference(out, n, xr, k, false, wr, k, true, m, n, k, 1.0, false);
            close_to(y, out, (size_t)m * n, TOL_SUM, "linear");
            be->linear_dx(be, dx, k, y, n, weight, m, way >= 2);
            tk_ok(be->sync(be));
            dyr = rounded(y, (size_t)m * n);
            reference(want, k, dyr, n, false, wr, k, false, m, k, n, 1.0, way >= 2);
            close_to(dx, want, (size_t)m * k, TOL_SUM, "linear_dx");
            float *dw = shared_floats((size_t)n * k, 1.0);
            float *dw_want = fm_memdup(dw, (size_t)n * k * sizeof *dw);
            be->linear_dw(be, dw, y, n, x, k, m, n, k, way % 2);
            tk_ok(be->sync(be));
            if (way % 2)
                reference(dw_want, n, xr, k, true, dyr, n, false, k, n, m, 1.0, true);
            else
                reference(dw_want, k, dyr, n, true, xr, k, false, n, k, m, 1.0, true);
            close_to(dw, dw_want, (size_t)n * k, TOL_SUM, "linear_dw");
            be->weight_free(be, weight);
            matrix_free(&w0);
            float *mine[] = {w, x, y, dx, dw};
            for (size_t f = 0; f < FM_ARRAY_LEN(mine); f++)
                be->host_free(be, mine[f]);
            float *plain[] = {wr, xr, want, dyr, out, dw_want};
            for (size_t f = 0; f < FM_ARRAY_LEN(plain); f++)
                fm_free(plain[f]);
        }
}

TEST(gemm_keeps_sixteen_bits)
{
    NEEDS_CARD();
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++)
        for (int way = 0; way < 8; way++) {
            const uint32_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
            bool ta = way & 1, tb = way & 2, add = way & 4;
            size_t lda = (ta ? m : k) + 1, ldb = (tb ? k : n) + 2, ldc = n + 3;
            float *a = shared_floats((ta ? k : m) * lda, 1.0);
            float *b = shared_floats((tb ? n : k) * ldb, 1.0), *c = shared_floats(m * ldc, 1.0);
            float *want = fm_memdup(c, m * ldc * sizeof *c);
            be->gemm(be, c, ldc, a, lda, ta, b, ldb, tb, m, n, k, 0.75f, add);
            tk_ok(be->sync(be));
            reference(want, ldc, a, lda, ta, b, ldb, tb, m, n, k, 0.75, add);
            close_to(c, want, m * ldc, TOL_TWO, "gemm");
            be->host_free(be, a);
            be->host_free(be, b);
            be->host_free(be, c);
            fm_free(want);
        }
}

/* ---- low-rank terms ---- */

enum { TERMS = 3, IN = 40, ROWS = 37 };
static const uint32_t ranks[TERMS] = {3, 16, 40}, outs[TERMS] = {20, 33, 8};

static void reference_terms(fm_term *t)
{
    reference(t->u, t->r, t->x, t->ldx, false, t->a, t->in, true, t->m, t->r, t->in, 1.0, false);
    reference(t->y, t->ldy, t->u, t->r, false, t->b, t->r, true, t->m, t->out, t->r,
              (double)t->scale, true);
    reference(t->du, t->r, t->dy, t->lddy, false, t->b, t->r, false, t->m, t->r, t->out,
              (double)t->scale, false);
    reference(t->db, t->r, t->dy, t->lddy, true, t->u, t->r, false, t->out, t->r, t->m,
              (double)t->scale, true);
    reference(t->da, t->in, t->du, t->r, true, t->x, t->ldx, false, t->r, t->in, t->m, 1.0, true);
    reference(t->dx, t->lddx, t->du, t->r, false, t->a, t->in, false, t->m, t->in, t->r, 1.0, true);
}

static float *copy_of(const float *x, size_t n)
{
    float *r = fm_memdup(x, n * sizeof *x);

    assert_non_null(r);
    return r;
}

TEST(terms_and_their_gradients)
{
    fm_term t[TERMS], want[TERMS];
    NEEDS_CARD();
    float *x = shared_floats(ROWS * IN, 1.0), *dx = shared_floats(ROWS * IN, 1.0);
    float *dx_want = copy_of(dx, ROWS * IN);

    for (int i = 0; i < TERMS; i++) {
        uint32_t r = ranks[i], out = outs[i];
        t[i] = (fm_term){.a = shared_floats((size_t)r * IN, 1.0),
                         .b = shared_floats((size_t)out * r, 1.0),
                         .in = IN,
                         .out = out,
                         .r = r,
                         .m = ROWS,
                         .scale = 0.5f + (float)i,
                         .x = x,
                         .ldx = IN,
                         .y = shared_floats((size_t)ROWS * out, 1.0),
                         .ldy = out,
                         .u = shared_floats((size_t)ROWS * r, 1.0),
                         .dy = shared_floats((size_t)ROWS * out, 1.0),
                         .lddy = out,
                         .du = shared_floats((size_t)ROWS * r, 1.0),
                         .da = shared_floats((size_t)r * IN, 1.0),
                         .db = shared_floats((size_t)out * r, 1.0),
                         .dx = dx,
                         .lddx = IN};
        want[i] = t[i];
        want[i].y = copy_of(t[i].y, (size_t)ROWS * out);
        want[i].u = copy_of(t[i].u, (size_t)ROWS * r);
        want[i].du = copy_of(t[i].du, (size_t)ROWS * r);
        want[i].da = copy_of(t[i].da, (size_t)r * IN);
        want[i].db = copy_of(t[i].db, (size_t)out * r);
        want[i].dx = dx_want;
        reference_terms(&want[i]);
    }
    be->terms(be, t, TERMS);
    be->terms_grad(be, t, TERMS);
    tk_ok(be->sync(be));
    close_to(dx, dx_want, ROWS * IN, TOL_TWO, "dx");
    for (int i = 0; i < TERMS; i++) {
        uint32_t r = ranks[i], out = outs[i];
        close_to(t[i].y, want[i].y, (size_t)ROWS * out, TOL_TWO, "y");
        close_to(t[i].u, want[i].u, (size_t)ROWS * r, TOL_TWO, "u");
        close_to(t[i].du, want[i].du, (size_t)ROWS * r, TOL_TWO, "du");
        close_to(t[i].da, want[i].da, (size_t)r * IN, TOL_TWO, "da");
        close_to(t[i].db, want[i].db, (size_t)out * r, TOL_TWO, "db");
        float *plain[] = {want[i].y, want[i].u, want[i].du, want[i].da, want[i].db};
        for (size_t f = 0; f < FM_ARRAY_LEN(plain); f++)
            fm_free(plain[f]);
        const float *mine[] = {t[i].a, t[i].b, t[i].y, t[i].u, t[i].dy, t[i].du, t[i].da, t[i].db};
        for (size_t f = 0; f < FM_ARRAY_LEN(mine); f++)
            be->host_free(be, (void *)(uintptr_t)mine[f]);
    }
    fm_free(dx_want);
    be->host_free(be, x);
    be->host_free(be, dx);
}

/* Factors are mode exact's: f32, for whoever updates them in place. */
TEST(factors_stay_floats)
{
    enum { R = 4, K = 20 };
    fm_weight *w;

    NEEDS_CARD();
    matrix m = random_matrix(FM_F32, R, K);
    float got[R * K];
    tk_ok(be->weight_new(be, &w, FM_ROLE_LORA_A, FM_F32, R, K, m.bytes));
    tk_ok(be->download(be, got, be->weight_floats(w), sizeof got));
    assert_memory_equal(got, m.f, sizeof got);
    be->weight_free(be, w);
    matrix_free(&m);
}

/* The gradient of a row does not depend on its neighbours. */
TEST(a_row_of_dx_has_its_bits_in_any_company)
{
    enum { M = 70, N = 200, K = 20 };
    fm_weight *w;

    NEEDS_CARD();
    matrix m = random_matrix(FM_BF16, N, K);
    float *dy = shared_floats(M * N, 1.0), *dx = shared_floats(M * K, 1.0);
    float *alone = shared_floats(K, 1.0);
    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_BF16, N, K, m.bytes));
    be->linear_dx(be, dx, K, dy, N, w, M, false);
    for (uint32_t i = 0; i < M; i += 9) {
        be->linear_dx(be, alone, K, dy + i * N, N, w, 1, false);
        tk_ok(be->sync(be));
        assert_memory_equal(dx + i * K, alone, K * sizeof *dx);
    }
    be->weight_free(be, w);
    be->host_free(be, dy);
    be->host_free(be, dx);
    be->host_free(be, alone);
    matrix_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_and_their_gradients),
        cmocka_unit_test(gemm_keeps_sixteen_bits),
        cmocka_unit_test(terms_and_their_gradients),
        cmocka_unit_test(factors_stay_floats),
        cmocka_unit_test(a_row_of_dx_has_its_bits_in_any_company),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
