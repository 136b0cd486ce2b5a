/* Recurrences along sequences: the oracle, and rows that are cut in any way, with states between. */
#include "tests/kernel/kernel_kit.h"

#define TOL 2e-6
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

TEST(convolutions_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 0},  {1, 3, 2},    {16, 2, 0},  {17, 4, 1},
                                       {70, 3, 3}, {600, 16, 0}, {2049, 4, 5}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        for (uint32_t all = 0; all < 2; all++) {
            const uint32_t d[] = {dims[i][0], dims[i][1], dims[i][2], all};
            kk_check("convolve", case_convolve, d, TOL);
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
        cmocka_unit_test(a_cut_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
