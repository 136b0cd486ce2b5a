/* ctest: card cost=8 */
/* Products of training: low-rank terms, gradients by a weight and of a weight, against double
 * precision, on every instruction set and on 1 to 3 threads, and against the stated order. */
#include "infer/cpu/fast/fast.h"
#include "infer/cpu/ref/ref.h"
#include "tests/kernel/kernel_kit.h"

#include "store/base/mem.h"

/* As kernel_product's: five times the error that roundings of random signs give a long chain. */
#define TOL_SUM 5e-6

/* ---- lists of low-rank terms ---- */

#define TERM_DIMS 6u
#define TERMS_MOST 24u
enum {
    ALL = 0,
    NO_DA = 1,
    NO_DB = 2,
    NO_DX = 4,
    SHARES = 8
}; /* SHARES: x and dx of the one before */

typedef struct terms {
    fm_term t[TERMS_MOST];
    uint32_t count;
    size_t x, y, u, dy, da, db; /* floats that all terms take of each; dx as x */
} terms;

/* dim: count, then for each in, out, r, m, room after a row, flags. Twice: to count, to place. */
static void place(terms *l, const uint32_t *dim, fm_term base)
{
    *l = (terms){.count = dim[0]};
    for (uint32_t i = 0; i < l->count; i++) {
        const uint32_t *d = dim + 1 + i * TERM_DIMS;
        fm_term *t = &l->t[i];
        uint32_t in = d[0], out = d[1], r = d[2], m = d[3], room = d[4];
        size_t x = d[5] & SHARES ? l->x - (size_t)m * (in + room) : l->x;
        *t = base;
        t->in = in;
        t->out = out;
        t->r = r;
        t->m = m;
        t->scale = 0.5f + 0.25f * (float)(i % 5);
        t->ldx = t->lddx = in + room;
        t->ldy = t->lddy = out + room;
        if (base.x) {
            t->x += x;
            t->dx = d[5] & NO_DX ? NULL : t->dx + x;
            t->y += l->y;
            t->dy += l->y;
            t->u += l->u;
            t->du += l->u;
            t->a += l->da;
            t->b += l->db;
            t->da = d[5] & NO_DA ? NULL : t->da + l->da;
            t->db = d[5] & NO_DB ? NULL : t->db + l->db;
        }
        l->x = x + (size_t)m * (in + room);
        l->y += (size_t)m * (out + room);
        l->u += (size_t)m * r;
        l->da += (size_t)r * in;
        l->db += (size_t)out * r;
    }
}

static void run_terms(kk *k, const uint32_t *dim)
{
    terms l;
    fm_term base = {0};

    place(&l, dim, base);
    base.x = kk_in(k, l.x, 1.0);
    base.dy = kk_in(k, l.y, 1.0);
    base.a = kk_in(k, l.da, 0.1);
    base.b = kk_in(k, l.db, 0.5);
    base.y = kk_out(k, l.y, 1.0);
    base.u = kk_out(k, l.u, 1.0);
    base.du = kk_out(k, l.u, 0.0);
    base.da = kk_out(k, l.da, 1.0);
    base.db = kk_out(k, l.db, 1.0);
    base.dx = kk_out(k, l.x, 1.0);
    place(&l, dim, base);
    k->be->terms(k->be, l.t, l.count);
    k->be->terms_grad(k->be, l.t, l.count);
}

static const uint32_t term_lists[][1 + TERMS_MOST * TERM_DIMS] = {
    {1, 576, 576, 8, 512, 0, ALL},
    {1, 1, 1, 1, 1, 0, ALL},
    {1, 17, 33, 3, 7, 2, ALL},
    {1, 513, 40, 9, 1025, 1, ALL},
    {1, 1100, 7, 16, 513, 0, ALL},
    {1, 40, 1030, 600, 13, 3, ALL},
    {1, 24, 24, 13, 0, 0, ALL},
    {3, 576, 576, 8, 130, 0, ALL, 576, 192, 8, 130, 0, SHARES, 576, 192, 8, 130, 0, SHARES},
    {3, 65, 50, 5, 70, 1, ALL, 65, 31, 12, 70, 1, SHARES, 65, 16, 24, 70, 1, SHARES},
    {4,  65, 50, 5, 70,    1,  NO_DA, 65, 31, 12, 70,           1, SHARES | NO_DB, 30,
     16, 24, 1,  0, NO_DX, 30, 99,    8,  7,  0,  NO_DX | NO_DA},
    {5,  96, 64,  8,  8,  0,  ALL, 96, 64,  16,  500, 0, ALL, 96, 64,   4,
     33, 0,  ALL, 96, 64, 64, 1,   0,  ALL, 200, 64,  8, 513, 0,  NO_DX},
};

TEST(lists_of_terms_equal_the_oracle)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(term_lists); i++)
        kk_check("terms", run_terms, term_lists[i], TOL_SUM);
}

/* Eight children, q, k and v of each. */
TEST(many_children_equal_the_oracle)
{
    uint32_t dim[1 + TERMS_MOST * TERM_DIMS] = {TERMS_MOST};

    for (uint32_t i = 0; i < TERMS_MOST; i++) {
        uint32_t d[TERM_DIMS] = {96, i % 3 ? 32 : 96,     2u << i / 6, 8 + (i / 3) * (i / 3) * 10,
                                 0,  i % 3 ? SHARES : ALL};
        memcpy(dim + 1 + i * TERM_DIMS, d, sizeof d);
    }
    kk_check("terms of children", run_terms, dim, TOL_SUM);
}

/* dim: terms of one row: more than one copy to a GPU holds. */
static void case_long_list(kk *k, const uint32_t *dim)
{
    enum { IN = 3, OUT = 2 };
    uint32_t n = dim[0];
    float *x = kk_in(k, (size_t)n * IN, 1.0), *dy = kk_in(k, (size_t)n * OUT, 1.0);
    float *a = kk_in(k, IN, 1.0), *b = kk_in(k, OUT, 1.0);
    float *y = kk_out(k, (size_t)n * OUT, 1.0), *u = kk_out(k, n, 1.0), *du = kk_out(k, n, 1.0);
    float *dx = kk_out(k, (size_t)n / 2 * IN, 1.0), *da = kk_out(k, (size_t)n * IN, 1.0);
    fm_term *t = fm_calloc(n, sizeof *t);

    for (uint32_t i = 0; i < n; i++) /* the second half adds to the first half's dx */
        t[i] = (fm_term){.a = a,
                         .b = b,
                         .in = IN,
                         .out = OUT,
                         .r = 1,
                         .m = 1,
                         .scale = 0.5f,
                         .x = x + (size_t)i * IN,
                         .ldx = IN,
                         .y = y + (size_t)i * OUT,
                         .ldy = OUT,
                         .u = u + i,
                         .dy = dy + (size_t)i * OUT,
                         .lddy = OUT,
                         .du = du + i,
                         .da = da + (size_t)i * IN,
                         .dx = dx + (size_t)(i % (n / 2)) * IN,
                         .lddx = IN};
    k->be->terms(k->be, t, n);
    k->be->terms_grad(k->be, t, n);
    fm_free(t);
}

TEST(long_lists_of_terms_equal_the_oracle)
{
    kk_check("long list of terms", case_long_list, (uint32_t[]){4000}, TOL_SUM);
}

/* The same bits as six products each, one after another: the order that backend.h states, and a
 * term that does not know what else is in its list. */
TEST(terms_are_their_products_bit_for_bit)
{
    fm_pool *pool;

    kk_cpu_only();
    tk_ok(fm_pool_new(&pool, 3));
    for (size_t i = 0; i < FM_ARRAY_LEN(term_lists); i++) {
        fm_backend *be;
        tk_ok(fm_backend_open(&be, "exact", pool));
        kk got = kk_run(be, run_terms, term_lists[i]);
        be->terms = fmi_ref_terms; /* products of the table */
        be->terms_grad = fmi_ref_terms_grad;
        kk want = kk_run(be, run_terms, term_lists[i]);
        kk_same_bits(&want, &got, "terms", be->isa, 3);
        fm_free(want.result);
        fm_free(got.result);
        fm_backend_close(be);
    }
    fm_pool_free(pool);
}

TEST(a_failed_allocation_of_terms_is_reported)
{
    enum { IN = 40, OUT = 30, R = 8, M = 9 };
    static float x[M * IN], y[M * OUT], a[R * IN], b[OUT * R], u[M * R];
    fm_term t = {.a = a,
                 .b = b,
                 .in = IN,
                 .out = OUT,
                 .r = R,
                 .m = M,
                 .scale = 1.0f,
                 .x = x,
                 .ldx = IN,
                 .y = y,
                 .ldy = OUT,
                 .u = u};
    fm_backend *be;

    kk_cpu_only();
    tk_ok(fm_backend_open(&be, "exact", NULL));
    fm_mem_fail_at(1, true);
    be->terms(be, &t, 1);
    fm_mem_fail_at(0, false);
    fm_error_clear();
    assert_int_equal(be->sync(be), FM_ENOMEM);
    be->terms(be, &t, 1);
    tk_ok(be->sync(be));
    fm_backend_close(be);
}

/* ---- products by a weight and of a weight, in every mode of training ---- */

/* Roundings of both operands, 2^-9 of each at most, random signs: 0.2 % of a sum. */
#define TOL_BF16 4e-3

static bool round_inputs; /* to bf16, by the store's conversion */

static float *in_values(kk *k, size_t n, double size)
{
    float *x = kk_in(k, n, size);

    for (size_t i = 0; i < n && round_inputs; i++) {
        uint16_t half;
        tk_ok(fm_from_f32(&half, FM_BF16, &x[i], 1));
        x[i] = fm_bf16_to_f32(half);
    }
    return x;
}

/* dim: m, n, k, way: bits of LAYOUT, UPDATED, ADDED, and MADE: the layout was used before the
 * update */
enum { LAYOUT = 1, UPDATED = 2, ADDED = 4, MADE = 8 };

/* The second product with a weight makes the layout that was asked for. */
static void use_layout(kk *k, uint32_t times, const float *dy, const fm_weight *weight,
                       const uint32_t *dim)
{
    float *lost = kk_zeros(k, (size_t)dim[0] * dim[2] * sizeof *lost);

    for (uint32_t i = 0; i < times; i++)
        k->be->linear_dx(k->be, lost, dim[2], dy, dim[1] + 2, weight, dim[0], false);
}

/* Forward and gradient of the input by one weight, which may have been updated before. */
static void case_weight(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2], way = dim[3];
    float *w = in_values(k, (size_t)n * kd, 0.1), *other = in_values(k, (size_t)n * kd, 0.1);
    float *x = in_values(k, (size_t)m * (kd + 3), 1.0), *bias = kk_in(k, n, 1.0);
    float *dy = in_values(k, (size_t)m * (n + 2), 1.0);
    float *y = kk_out(k, (size_t)m * (n + 2), 1.0), *dx = kk_out(k, (size_t)m * (kd + 1), 1.0);
    float *row = kk_out(k, kd, 1.0);
    int32_t *id = kk_zeros(k, sizeof *id);
    fm_weight *weight = kk_weight(k, way & UPDATED ? other : w, n, kd);

    if (way & LAYOUT && k->be->weight_for_dx) {
        uint64_t before = k->be->weight_bytes(weight);
        tk_ok(k->be->weight_for_dx(k->be, weight));
        tk_ok(k->be->weight_for_dx(k->be, weight));
        assert_true(k->be->weight_bytes(weight) > before);
        use_layout(k, way & MADE ? 2 : 1, dy, weight, dim);
    }
    if (way & UPDATED)
        k->be->weight_update(k->be, weight, w);
    k->be->linear(k->be, y, n + 2, x, kd + 3, weight, bias, NULL, m);
    k->be->linear_dx(k->be, dx, kd + 1, dy, n + 2, weight, m, way & ADDED);
    *id = (int32_t)n - 1;
    k->be->embed(k->be, row, kd, weight, id, NULL, 1);
    k->be->weight_free(k->be, weight);
}

/* Three weights on one x: shuffled rows, a range of them, and one row. */
static void case_list(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2];
    float *w = in_values(k, (size_t)n * kd, 0.1), *x = in_values(k, (size_t)(m + 2) * kd, 1.0);
    float *y = kk_out(k, (size_t)(m + 2) * 3 * n, 1.0);
    int32_t *rows = kk_shuffled(k, m + 2);
    fm_weight *weight = kk_weight(k, w, n, kd);
    const fm_product list[] = {
        {.y = y, .ldy = 3 * n, .w = weight, .m = m, .rows = rows},
        {.y = y + n, .ldy = 3 * n, .w = weight, .m = m, .first = 2},
        {.y = y + 2 * n, .ldy = 3 * n, .w = weight, .m = 1, .first = 1},
    };

    k->be->products(k->be, x, kd, kd, list, FM_ARRAY_LEN(list));
    k->be->weight_free(k->be, weight);
}

/* Gradient of a weight, stored either way. */
static void case_dw(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2];
    float *dy = in_values(k, (size_t)m * (n + 2), 1.0),
          *x = in_values(k, (size_t)m * (kd + 1), 1.0);
    float *dw = kk_out(k, (size_t)n * kd, 1.0), *turned = kk_out(k, (size_t)n * kd, 1.0);

    k->be->linear_dw(k->be, dw, dy, n + 2, x, kd + 1, m, n, kd, false);
    k->be->linear_dw(k->be, turned, dy, n + 2, x, kd + 1, m, n, kd, true);
}

typedef fm_status (*open_fn)(fm_backend **out, fm_pool *pool, const char *isa);
static const struct mode {
    const char *name;
    open_fn open;
    double tol; /* of inputs that are bf16 already, whose products fit float32 but for the sum */
} modes[] = {{"exact", fmi_cpu_open_isa, TOL_SUM}, {"bf16", fmi_cpu_open_bf16, 1e-5}};

static kk run_oracle(kk_case fn, const uint32_t *dim)
{
    fm_backend *ref;

    tk_ok(fm_backend_cpu_ref(&ref));
    kk want = kk_run(ref, fn, dim);
    fm_backend_close(ref);
    return want;
}

/* Every instruction set on 1 to 3 threads; the first result is the caller's. Kernels that round
 * subnormals away (VDPBF16PS) meet none here. */
static kk run_all(const struct mode *mode, const char *what, kk_case fn, const uint32_t *dim)
{
    static const char *const isa[] = {"generic", "avx2", "avx512", "avx512vnni", "avx512bf16"};
    kk first = {0};

    for (unsigned threads = 1; threads <= 3; threads++) {
        fm_pool *pool;
        tk_ok(fm_pool_new(&pool, threads));
        for (size_t i = 0; i < FM_ARRAY_LEN(isa); i++) {
            fm_backend *be;
            fm_status rc = mode->open(&be, pool, isa[i]);
            if (rc == FM_EUNSUPPORTED)
                continue;
            assert_int_equal(rc, FM_OK);
            assert_string_equal(be->mode, mode->name);
            kk got = kk_run(be, fn, dim);
            fm_backend_close(be);
            if (!first.result) {
                first = got;
                continue;
            }
            kk_same_bits(&first, &got, what, isa[i], threads);
            fm_free(got.result);
        }
        fm_pool_free(pool);
    }
    return first;
}

static void check_modes(const char *what, kk_case fn, const uint32_t *dim)
{
    if (getenv("KK_DEVICE")) {
        kk_check(what, fn, dim, TOL_SUM);
        return;
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(modes); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s, %s, %u x %u x %u", modes[i].name, what, dim[0],
                       dim[1], dim[2]);
        round_inputs = true;
        kk want = run_oracle(fn, dim), got = run_all(&modes[i], name, fn, dim);
        kk_close(&want, &got, modes[i].tol, name);
        if (strcmp(modes[i].name, "bf16") ==
            0) { /* what the mode rounds is what the test rounded */
            round_inputs = false;
            kk far = run_oracle(fn, dim), same = run_all(&modes[i], name, fn, dim);
            kk_same_bits(&got, &same, name, "rounded inside", 0);
            kk_close(&far, &same, TOL_BF16, name);
            fm_free(far.result);
            fm_free(same.result);
        }
        fm_free(want.result);
        fm_free(got.result);
    }
}

TEST(products_by_a_weight_equal_the_oracle)
{
    static const uint32_t dims[][4] = {
        {1, 1, 1, LAYOUT},      {1, 33, 5, 0},
        {7, 31, 513, ADDED},    {7, 513, 31, LAYOUT | ADDED},
        {13, 47, 1025, LAYOUT}, {13, 1025, 47, UPDATED},
        {513, 40, 48, LAYOUT},  {65, 2049, 17, LAYOUT | UPDATED},
        {130, 70, 600, ADDED},  {130, 600, 70, LAYOUT | UPDATED | ADDED},
        {5, 4100, 33, LAYOUT},  {1025, 33, 50, LAYOUT | UPDATED},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        check_modes("weight", case_weight, dims[i]);
}

TEST(lists_of_products_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 1}, {7, 33, 513}, {140, 48, 65}, {513, 17, 31}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        check_modes("list", case_list, dims[i]);
}

TEST(gradients_of_a_weight_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 1},      {1, 33, 17},    {7, 31, 65},   {513, 48, 40},
                                       {1025, 33, 31}, {130, 70, 600}, {64, 16, 1100}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        check_modes("dw", case_dw, dims[i]);
}

/* A second layout changes speed and memory, and no bit. */
TEST(a_layout_for_dx_changes_no_bit)
{
    static const uint32_t dims[][3] = {{7, 31, 513}, {70, 1100, 96}, {200, 33, 17}};
    fm_pool *pool;

    kk_cpu_only();
    round_inputs = false;
    tk_ok(fm_pool_new(&pool, 2));
    for (size_t i = 0; i < 4 * FM_ARRAY_LEN(dims); i++) {
        const uint32_t *d = dims[i / 4], plain[] = {d[0], d[1], d[2], 0};
        const uint32_t laid[] = {d[0], d[1], d[2], LAYOUT | UPDATED | (i & 2 ? MADE : 0)};
        fm_backend *be;
        tk_ok(modes[i % 2].open(&be, pool, NULL));
        kk want = kk_run(be, case_weight, plain), got = kk_run(be, case_weight, laid);
        kk_same_bits(&want, &got, modes[i % 2].name, be->isa, 2);
        fm_free(want.result);
        fm_free(got.result);
        fm_backend_close(be);
    }
    fm_pool_free(pool);
}

/* A row's result does not depend on how many there are. */
TEST(rows_of_bf16_do_not_know_their_neighbours)
{
    enum { N = 70, K = 1100, M = 37 };
    fm_backend *be;
    kk k = {0};
    float *w = kk_in(&k, N * K, 0.1), *x = kk_in(&k, M * K, 1.0), *dy = kk_in(&k, M * N, 1.0);
    float *y = kk_in(&k, M * N, 0.0), *dx = kk_in(&k, M * K, 0.0), *one = kk_in(&k, K, 0.0);
    fm_weight *weight;

    kk_cpu_only();
    tk_ok(fm_backend_open(&be, "bf16", NULL));
    assert_null(fm_backend_lacks(be, true));
    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w));
    tk_ok(be->weight_for_dx(be, weight));
    be->linear(be, y, N, x, K, weight, NULL, NULL, M);
    be->linear_dx(be, dx, K, dy, N, weight, M, false);
    be->linear_dx(be, dx, K, dy, N, weight, M, false); /* this one with the layout */
    for (uint32_t i = 0; i < M; i++) {
        be->linear(be, one, N, x + (size_t)i * K, K, weight, NULL, NULL, 1);
        assert_memory_equal(one, y + (size_t)i * N, N * sizeof *one);
        be->linear_dx(be, one, K, dy + (size_t)i * N, N, weight, 1, false);
        assert_memory_equal(one, dx + (size_t)i * K, K * sizeof *one);
    }
    tk_ok(be->sync(be));
    be->weight_free(be, weight);
    fm_backend_close(be);
    kk_gather(&k);
    fm_free(k.result);
}

/* Two bytes a weight for each layout, whatever the file holds; bf16 keeps its bits. */
TEST(weights_of_bf16_take_two_bytes)
{
    enum { N = 64, K = 96 };
    fm_backend *be;
    fm_weight *weight;
    static float w[N * K];
    static uint16_t half[N * K];
    float row[K];
    int32_t id = 33;
    uint64_t bytes;

    kk_cpu_only();
    for (uint32_t i = 0; i < N * K; i++)
        w[i] = (float)(fm_rng_uniform(3, 1, i) - 0.5);
    tk_ok(fm_from_f32(half, FM_BF16, w, N * K));
    tk_ok(fm_backend_open(&be, "bf16", NULL));
    tk_ok(be->weight_image_bytes(be, &bytes, FM_ROLE_LINEAR, FM_F32, N, K));
    assert_int_equal(bytes, 2 * N * K);
    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_BF16, N, K, half));
    bytes = be->weight_bytes(weight);
    tk_ok(be->weight_for_dx(be, weight));
    assert_int_equal(be->weight_bytes(weight), bytes + 2 * N * K);
    be->embed(be, row, K, weight, &id, NULL, 1);
    for (uint32_t i = 0; i < K; i++)
        assert_true(row[i] == fm_bf16_to_f32(half[33 * K + i]));
    be->weight_free(be, weight);
    tk_fails(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_I32, 2, 4, w), FM_EUNSUPPORTED, "I32");
    for (uint64_t nth = 1; nth <= 3; nth++) {
        fm_mem_fail_at(nth, false);
        fm_status rc = be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w);
        fm_mem_fail_at(0, false);
        assert_int_equal(rc, FM_ENOMEM);
        assert_null(weight);
    }
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_terms_equal_the_oracle),
        cmocka_unit_test(many_children_equal_the_oracle),
        cmocka_unit_test(long_lists_of_terms_equal_the_oracle),
        cmocka_unit_test(terms_are_their_products_bit_for_bit),
        cmocka_unit_test(a_failed_allocation_of_terms_is_reported),
        cmocka_unit_test(products_by_a_weight_equal_the_oracle),
        cmocka_unit_test(lists_of_products_equal_the_oracle),
        cmocka_unit_test(gradients_of_a_weight_equal_the_oracle),
        cmocka_unit_test(a_layout_for_dx_changes_no_bit),
        cmocka_unit_test(rows_of_bf16_do_not_know_their_neighbours),
        cmocka_unit_test(weights_of_bf16_take_two_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
