/* Recurrences along sequences: the oracle, and rows that are cut in any way, with states between. */
#include "tests/kernel/kernel_kit.h"

#define TOL 2e-6
#define TOL_SUM 5e-6
#define TOL_GRAD 1e-5
#define ROWS 23u
#define PAGES 12u

/* Rows of three sequences in turns: one begins, one goes on from page 3 and has a state taken in
 * its middle, one is a single row. */
static fm_state_rows rows_of(kk *k, size_t page_floats)
{
    int32_t *row = kk_shuffled(k, ROWS), *from = kk_alloc(k, ROWS * sizeof *from);
    int32_t *to = kk_alloc(k, ROWS * sizeof *to);

    for (uint32_t i = 0; i < ROWS; i++) {
        from[i] = i == 0 ? FM_STATE_NONE : i == 9 ? 3 : i == 22 ? 4 : FM_STATE_ON;
        to[i] = i == 8 ? 5 : i == 10 ? 6 : i == 21 ? 7 : i == 22 ? 8 : FM_STATE_NONE;
    }
    return (fm_state_rows){.pages = kk_out(k, PAGES * page_floats, 1.0),
                           .page_floats = page_floats,
                           .row = row,
                           .from = from,
                           .to = to,
                           .m = ROWS};
}

/* dim: channels, kernel, padding, whether gates and a bias and silu are there */
static void case_convolve(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0], ld = n + dim[2];
    bool all = dim[3];
    fm_convolve c = {.rows = rows_of(k, (size_t)(dim[1] - 1) * n + 3),
                     .ldy = ld,
                     .ldx = ld,
                     .channels = n,
                     .kernel = dim[1],
                     .silu = all};

    c.x = kk_in(k, (size_t)ROWS * ld, 2.0);
    c.before = all ? kk_in(k, (size_t)ROWS * ld, 1.5) : NULL;
    c.after = all ? kk_in(k, (size_t)ROWS * ld, 1.5) : NULL;
    c.weight = kk_in(k, (size_t)n * dim[1], 1.0);
    c.bias = all ? kk_in(k, n, 1.0) : NULL;
    c.y = kk_out(k, (size_t)ROWS * ld, 1.0);
    k->be->convolve(k->be, &c);
}

/* Rows of four sequences that all begin in the list, one of them a single row. */
static fm_state_rows whole_rows(kk *k)
{
    int32_t *row = kk_shuffled(k, ROWS), *from = kk_alloc(k, ROWS * sizeof *from);
    int32_t *to = kk_alloc(k, ROWS * sizeof *to);

    for (uint32_t i = 0; i < ROWS; i++) {
        from[i] = i == 0 || i == 9 || i == 11 || i == 22 ? FM_STATE_NONE : FM_STATE_ON;
        to[i] = FM_STATE_NONE;
    }
    return (fm_state_rows){.row = row, .from = from, .to = to, .m = ROWS};
}

/* dim as in case_convolve */
static void case_convolve_grad(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0], ld = n + dim[2];
    size_t all = dim[3] ? (size_t)ROWS * ld : 0;
    fm_convolve_grad g = {
        .c = {.rows = whole_rows(k), .ldx = ld, .channels = n, .kernel = dim[1], .silu = dim[3]},
        .lddy = ld,
        .lddx = ld};

    g.c.x = kk_in(k, (size_t)ROWS * ld, 2.0);
    g.c.before = all ? kk_in(k, all, 1.5) : NULL;
    g.c.after = all ? kk_in(k, all, 1.5) : NULL;
    g.c.weight = kk_in(k, (size_t)n * dim[1], 1.0);
    g.c.bias = all ? kk_in(k, n, 1.0) : NULL;
    g.dy = kk_in(k, (size_t)ROWS * ld, 1.0);
    g.dx = kk_out(k, (size_t)ROWS * ld, 1.0);
    g.dbefore = all ? kk_out(k, all, 1.0) : NULL;
    g.dafter = all ? kk_out(k, all, 1.0) : NULL;
    g.dweight = kk_out(k, (size_t)n * dim[1], 1.0);
    g.dbias = all ? kk_out(k, n, 1.0) : NULL;
    k->be->convolve_grad(k->be, &g);
}

/* dim: heads, hd, groups, n, by channel */
static void case_scan(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0] * dim[1], own = dim[4] ? n : dim[0], bc = dim[2] * dim[3];
    fm_scan s = {.rows = rows_of(k, (size_t)dim[3] * n + 2),
                 .ldy = n,
                 .ldx = n + 1,
                 .ldb = bc + 3,
                 .lddt = own,
                 .heads = dim[0],
                 .hd = dim[1],
                 .groups = dim[2],
                 .n = dim[3],
                 .dt_min = 0.01f,
                 .dt_max = 6.0f,
                 .by_channel = dim[4]};

    s.x = kk_in(k, (size_t)ROWS * s.ldx, 2.0);
    s.b = kk_in(k, (size_t)ROWS * s.ldb, 1.5);
    s.c = kk_in(k, (size_t)ROWS * s.ldb, 1.5);
    s.dt = kk_in(k, (size_t)ROWS * own, 7.0);
    s.a_log = kk_in(k, dim[4] ? (size_t)n * dim[3] : own, 1.0);
    s.d = kk_in(k, own, 1.0);
    s.dt_bias = kk_in(k, own, 1.0);
    s.y = kk_out(k, (size_t)ROWS * n, 1.0);
    k->be->scan(k->be, &s);
}

/* Sequences that end within chunks of the gradients, or at their ends. */
#define LONG_ROWS 150u
static fm_state_rows long_rows(kk *k)
{
    int32_t *row = kk_shuffled(k, LONG_ROWS), *from = kk_alloc(k, LONG_ROWS * sizeof *from);
    int32_t *to = kk_alloc(k, LONG_ROWS * sizeof *to);

    for (uint32_t i = 0; i < LONG_ROWS; i++) {
        from[i] = i == 0 || i == 40 || i == 41 || i == 128 ? FM_STATE_NONE : FM_STATE_ON;
        to[i] = FM_STATE_NONE;
    }
    return (fm_state_rows){.row = row, .from = from, .to = to, .m = LONG_ROWS};
}

/* dim as in case_scan */
static void case_scan_grad(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0] * dim[1], own = dim[4] ? n : dim[0], bc = dim[2] * dim[3];
    size_t rates = dim[4] ? (size_t)n * dim[3] : own;
    fm_scan_grad g = {.s = {.rows = long_rows(k),
                            .ldx = n + 1,
                            .ldb = bc + 3,
                            .lddt = own,
                            .heads = dim[0],
                            .hd = dim[1],
                            .groups = dim[2],
                            .n = dim[3],
                            .dt_min = 0.01f,
                            .dt_max = 6.0f,
                            .by_channel = dim[4]},
                      .lddy = n + 2,
                      .lddx = n + 1,
                      .lddb = bc + 1,
                      .ldddt = own + 1};

    g.s.x = kk_in(k, (size_t)LONG_ROWS * g.s.ldx, 2.0);
    g.s.b = kk_in(k, (size_t)LONG_ROWS * g.s.ldb, 1.5);
    g.s.c = kk_in(k, (size_t)LONG_ROWS * g.s.ldb, 1.5);
    g.s.dt = kk_in(k, (size_t)LONG_ROWS * own, 7.0);
    g.s.a_log = kk_in(k, rates, 1.0);
    g.s.d = kk_in(k, own, 1.0);
    g.s.dt_bias = kk_in(k, own, 1.0);
    g.dy = kk_in(k, (size_t)LONG_ROWS * g.lddy, 1.0);
    g.dx = kk_out(k, (size_t)LONG_ROWS * g.lddx, 1.0);
    g.db = kk_out(k, (size_t)LONG_ROWS * g.lddb, 1.0);
    g.dc = kk_out(k, (size_t)LONG_ROWS * g.lddb, 1.0);
    g.ddt = kk_out(k, (size_t)LONG_ROWS * g.ldddt, 1.0);
    g.da_log = kk_out(k, rates, 1.0);
    g.dd = kk_out(k, own, 1.0);
    g.ddt_bias = kk_out(k, own, 1.0);
    g.work = kk_alloc(k, fm_scan_grad_floats(&g.s) * sizeof(float));
    k->be->scan_grad(k->be, &g);
}

/* dim: heads of keys, heads of values, dk, dv */
static void case_delta(kk *k, const uint32_t *dim)
{
    uint32_t q = dim[0] * dim[2], v = dim[1] * dim[3];
    fm_delta d = {.rows = rows_of(k, (size_t)dim[2] * v + 1),
                  .ldy = v,
                  .ldx = 2 * q + v,
                  .lda = dim[1] + 1,
                  .hk = dim[0],
                  .hv = dim[1],
                  .dk = dim[2],
                  .dv = dim[3]};

    d.q = kk_in(k, (size_t)ROWS * d.ldx, 2.0);
    d.k = d.q + q;
    d.v = d.q + 2 * (size_t)q;
    d.a = kk_in(k, (size_t)ROWS * d.lda, 4.0);
    d.b = kk_in(k, (size_t)ROWS * d.lda, 4.0);
    d.a_log = kk_in(k, dim[1], 1.0);
    d.dt_bias = kk_in(k, dim[1], 1.0);
    d.y = kk_out(k, (size_t)ROWS * v, 1.0);
    k->be->delta(k->be, &d);
}

/* dim as in case_delta; the rows of case_scan_grad */
static void case_delta_grad(kk *k, const uint32_t *dim)
{
    uint32_t q = dim[0] * dim[2], v = dim[1] * dim[3];
    fm_delta_grad g = {.d = {.rows = long_rows(k),
                             .ldx = 2 * q + v,
                             .lda = dim[1] + 1,
                             .hk = dim[0],
                             .hv = dim[1],
                             .dk = dim[2],
                             .dv = dim[3]},
                       .lddy = v + 1,
                       .lddx = 2 * q + v + 2,
                       .ldda = dim[1] + 2};

    g.d.q = kk_in(k, (size_t)LONG_ROWS * g.d.ldx, 2.0);
    g.d.k = g.d.q + q;
    g.d.v = g.d.q + 2 * (size_t)q;
    g.d.a = kk_in(k, (size_t)LONG_ROWS * g.d.lda, 4.0);
    g.d.b = kk_in(k, (size_t)LONG_ROWS * g.d.lda, 4.0);
    g.d.a_log = kk_in(k, dim[1], 1.0);
    g.d.dt_bias = kk_in(k, dim[1], 1.0);
    g.dy = kk_in(k, (size_t)LONG_ROWS * g.lddy, 1.0);
    g.dq = kk_out(k, (size_t)LONG_ROWS * g.lddx, 1.0);
    g.dk = g.dq + q;
    g.dv = g.dq + 2 * (size_t)q;
    g.da = kk_out(k, (size_t)LONG_ROWS * g.ldda, 1.0);
    g.db = kk_out(k, (size_t)LONG_ROWS * g.ldda, 1.0);
    g.da_log = kk_out(k, dim[1], 1.0);
    g.ddt_bias = kk_out(k, dim[1], 1.0);
    g.work = kk_alloc(k, fm_delta_grad_floats(&g.d) * sizeof(float));
    k->be->delta_grad(k->be, &g);
}

TEST(scans_equal_the_oracle)
{
    static const uint32_t dims[][5] = {{1, 1, 1, 1, 0},  {4, 8, 2, 16, 0},  {2, 64, 1, 128, 0},
                                       {3, 17, 3, 5, 0}, {1, 40, 1, 16, 1}, {1, 333, 1, 7, 1}};
    static const uint32_t delta[][4] = {
        {1, 1, 1, 1}, {2, 4, 8, 16}, {2, 2, 128, 128}, {1, 3, 17, 9}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("scan", case_scan, dims[i], TOL_SUM);
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("scan_grad", case_scan_grad, dims[i], TOL_GRAD);
    for (size_t i = 0; i < FM_ARRAY_LEN(delta); i++)
        kk_check("delta", case_delta, delta[i], TOL_SUM);
    for (size_t i = 0; i < FM_ARRAY_LEN(delta); i++)
        kk_check("delta_grad", case_delta_grad, delta[i], TOL_GRAD);
}

TEST(convolutions_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 0},  {1, 3, 2},    {16, 2, 0},  {17, 4, 1},
                                       {70, 3, 3}, {600, 16, 0}, {2049, 4, 5}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        for (uint32_t all = 0; all < 2; all++) {
            const uint32_t d[] = {dims[i][0], dims[i][1], dims[i][2], all};
            kk_check("convolve", case_convolve, d, TOL);
            kk_check("convolve_grad", case_convolve_grad, d, TOL_SUM);
        }
}

#define CHANNELS 37u
#define KERNEL 4u

/* A sequence in two pieces: the state between is all that the second needs. */
TEST(a_cut_changes_no_bit)
{
    fm_backend *be;
    int32_t row[ROWS], from[ROWS], to[ROWS];
    float whole[ROWS * CHANNELS], cut[ROWS * CHANNELS], pages[2 * (KERNEL - 1) * CHANNELS];
    kk k = {0};

    tk_ok(fm_backend_open(&be, "exact", NULL));
    k.be = be;
    for (uint32_t i = 0; i < ROWS; i++)
        row[i] = (int32_t)i;
    fm_convolve c = {.rows = {.pages = pages,
                              .page_floats = (KERNEL - 1) * CHANNELS,
                              .row = row,
                              .from = from,
                              .to = to,
                              .m = ROWS},
                     .ldy = CHANNELS,
                     .x = kk_in(&k, ROWS * CHANNELS, 2.0),
                     .ldx = CHANNELS,
                     .weight = kk_in(&k, KERNEL * CHANNELS, 1.0),
                     .channels = CHANNELS,
                     .kernel = KERNEL};
    for (uint32_t at = 0; at < ROWS; at++) { /* at 0: not cut */
        for (uint32_t i = 0; i < ROWS; i++) {
            from[i] = i == 0 ? FM_STATE_NONE : i == at ? 1 : FM_STATE_ON;
            to[i] = i + 1 == at ? 1 : FM_STATE_NONE;
        }
        c.y = at ? cut : whole;
        c.rows.m = at ? at : ROWS;
        be->convolve(be, &c);
        fm_convolve rest = c;
        rest.rows.row += at;
        rest.rows.from += at;
        rest.rows.to += at;
        rest.rows.m = at ? ROWS - at : 0;
        be->convolve(be, &rest);
        tk_ok(be->sync(be));
        if (at)
            assert_memory_equal(whole, cut, sizeof whole);
    }
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_equal_the_oracle),
        cmocka_unit_test(scans_equal_the_oracle),
        cmocka_unit_test(a_cut_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
