/* Products of training: low-rank terms, gradients by a weight and of a weight, against double
 * precision, on every instruction set and on 1 to 3 threads, and against the stated order. */
#include "tests/kernel/kernel_kit.h"

#include "store/base/mem.h"

/* As kernel_product's: five times the error that roundings of random signs give a long chain. */
#define TOL_SUM 5e-6

void fmi_train_install(fm_backend *be);

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

/* dim: count, then for each in, out, r, m, room beyond each row, flags. Twice: to count, to place. */
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

static void lists_of_terms_equal_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(term_lists); i++)
        kk_check("terms", run_terms, term_lists[i], TOL_SUM);
}

/* Eight children, q, k and v of each. */
static void many_children_equal_the_oracle(void **state)
{
    uint32_t dim[1 + TERMS_MOST * TERM_DIMS] = {TERMS_MOST};

    (void)state;
    for (uint32_t i = 0; i < TERMS_MOST; i++) {
        uint32_t d[TERM_DIMS] = {96, i % 3 ? 32 : 96,     2u << i / 6, 8 + (i / 3) * (i / 3) * 10,
                                 0,  i % 3 ? SHARES : ALL};
        memcpy(dim + 1 + i * TERM_DIMS, d, sizeof d);
    }
    kk_check("terms of children", run_terms, dim, TOL_SUM);
}

/* The same bits as six products each, one after another: the order that backend.h states, and a
 * term that does not know what else is in its list. */
static void terms_are_their_products_bit_for_bit(void **state)
{
    fm_pool *pool;

    (void)state;
    tk_ok(fm_pool_new(&pool, 3));
    for (size_t i = 0; i < FM_ARRAY_LEN(term_lists); i++) {
        fm_backend *be;
        tk_ok(fm_backend_open(&be, "exact", pool));
        kk got = kk_run(be, run_terms, term_lists[i]);
        fmi_train_install(be); /* products of the table */
        kk want = kk_run(be, run_terms, term_lists[i]);
        kk_same_bits(&want, &got, "terms", be->isa, 3);
        fm_free(want.result);
        fm_free(got.result);
        fm_backend_close(be);
    }
    fm_pool_free(pool);
}

static void a_failed_allocation_of_terms_is_reported(void **state)
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

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_terms_equal_the_oracle),
        cmocka_unit_test(many_children_equal_the_oracle),
        cmocka_unit_test(terms_are_their_products_bit_for_bit),
        cmocka_unit_test(a_failed_allocation_of_terms_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
