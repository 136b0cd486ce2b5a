/* ctest: card */
/* experts.c - the choice of experts and what goes over segments of lists that only the device
 * knows the length of: products, low-rank terms, scales. */
#include "tests/kernel/kernel_kit.h"

/* ---- choice ---- */

/* dim: rows, experts, chosen, parts, renormalise, kind of scores (0: any, 1: many are equal),
 * sigmoid, bias, groups (6: by their best), groups kept, least in hundredths, scale in tenths,
 * jitter in hundredths, more in hundredths, by score (large, so that sigmoids are equal). */
static void case_route(kk *k, const uint32_t *dim)
{
    const uint32_t m = dim[0], experts = dim[1], chosen = dim[2], parts = dim[3];
    const size_t ld = experts + 3, all = (size_t)m * chosen, begins = (size_t)experts * parts + 1;
    float *score = kk_in(k, m * ld, 8.0), *weight = kk_out(k, all, 1.0);
    float *numbers = kk_out(k, 2 * all + begins, 1.0);
    int32_t *bound = kk_alloc(k, (parts + 1u) * sizeof *bound);
    int32_t *expert = kk_alloc(k, all * sizeof *expert), *list = kk_alloc(k, all * sizeof *list);
    int32_t *begin = kk_alloc(k, begins * sizeof *begin), *slot = kk_alloc(k, all * sizeof *slot);
    float *dweight = kk_in(k, all, 1.0), *dscore = kk_out(k, (size_t)m * experts, 1.0);
    float *bias = kk_in(k, (size_t)m * experts, 0.4);

    for (size_t i = 0; i < m * ld && dim[5]; i++)
        score[i] = (float)(int)(score[i] / 4.0f);
    for (size_t i = 0; i < m * ld && dim[14]; i++)
        score[i] = score[i] * 8.0f;
    for (uint32_t p = 0; p <= parts; p++) /* the second part is empty where there are three */
        bound[p] = (int32_t)(p == parts ? m : parts == 3 && p == 2 ? m / parts : p * m / parts);
    const fm_route r = {.score = score,
                        .ld = ld,
                        .m = m,
                        .experts = experts,
                        .chosen = chosen,
                        .renormalise = dim[4] != 0,
                        .sigmoid = dim[6] != 0,
                        .by_score = dim[14] != 0,
                        .groups = dim[8],
                        .groups_kept = dim[9],
                        .groups_best = dim[8] == 6,
                        .bias = dim[7] ? bias : NULL,
                        .least = dim[10] / 100.0,
                        .scale = (float)dim[11] / 10.0f,
                        .jitter = (float)dim[12] / 100.0f,
                        .more = dim[13] / 100.0,
                        .bound = bound,
                        .parts = parts,
                        .weight = weight,
                        .expert = expert,
                        .list = list,
                        .begin = begin,
                        .slot = slot};
    k->be->route(k->be, &r);
    k->be->route_grad(k->be, &r, dscore, dweight);
    tk_ok(k->be->sync(k->be));
    for (size_t i = 0; i < all; i++) {
        assert_int_equal(slot[list[i]], (int)i);
        numbers[i] = (float)expert[i];
        numbers[all + i] = (float)list[i];
    }
    for (size_t i = 0; i < begins; i++)
        numbers[2 * all + i] = (float)begin[i];
}

TEST(the_choice_equals_the_oracle)
{
    static const uint32_t dims[][15] = {
        {1, 4, 2, 1, 1, 0},    {5, 8, 2, 2, 0, 0},   {3, 1, 1, 1, 1, 0},   {64, 60, 4, 3, 0, 0},
        {33, 128, 8, 7, 1, 0}, {9, 33, 33, 3, 1, 0}, {17, 40, 5, 3, 1, 1}, {6, 1024, 64, 6, 0, 1}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("route", case_route, dims[i], 1e-6);
}

TEST(sigmoids_biases_and_groups_choose_as_the_oracle)
{
    static const uint32_t dims[][15] = {{5, 8, 2, 2, 0, 0, 1, 0, 0, 0, 0, 0},
                                        {33, 128, 8, 7, 1, 0, 1, 1, 0, 0, 0, 25},
                                        {17, 64, 6, 3, 1, 0, 1, 1, 8, 3, 0, 25},
                                        {17, 60, 7, 3, 0, 0, 1, 1, 30, 9, 0, 13},
                                        {17, 40, 5, 3, 1, 1, 1, 0, 4, 2, 0, 0},
                                        {21, 40, 5, 3, 1, 0, 0, 1, 0, 0, 0, 0},
                                        {21, 40, 5, 3, 1, 0, 0, 1, 5, 2, 60, 15},
                                        {21, 40, 3, 3, 1, 0, 1, 1, 0, 0, 250, 15},
                                        {3, 1024, 64, 3, 1, 0, 1, 1, 64, 32, 0, 25},
                                        {17, 60, 7, 3, 0, 0, 0, 0, 6, 2, 0, 15},
                                        {17, 32, 4, 3, 1, 0, 1, 1, 0, 0, 0, 15, 0, 30},
                                        {19, 16, 1, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1},
                                        {19, 40, 3, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("route", case_route, dims[i], 1e-6);
}

TEST(a_sparse_mixer_chooses_as_the_oracle)
{
    static const uint32_t dims[][15] = {{1, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
                                        {33, 16, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 1},
                                        {40, 16, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 40},
                                        {17, 9, 2, 3, 0, 1, 0, 0, 0, 0, 0, 0, 20}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("route", case_route, dims[i], 1e-6);
}

/* Scores that are no numbers: nothing is larger than a NaN that comes first, none is larger than
 * another score; weights are what the softmax makes of it. */
static void case_broken(kk *k, const uint32_t *dim)
{
    static const float odd[][5] = {{NAN, 1, 2, 3, 0},           {1, NAN, 2, 3, 0},
                                   {NAN, NAN, NAN, NAN, NAN},   {3, 2, 1, NAN, NAN},
                                   {INFINITY, 1, 2, 3, 4},      {-INFINITY, -INFINITY, 0, NAN, 5},
                                   {0.0f, -0.0f, 0.0f, -1, -2}, {1, 1, 1, 1, 1}};
    static const float want[][2] = {{0, 3}, {2, 3}, {0, 1}, {0, 1}, {0, 4}, {2, 4}, {0, 1}, {0, 1}};
    const uint32_t m = FM_ARRAY_LEN(odd);
    float *score = kk_in(k, sizeof odd / sizeof(float), 1.0), *weight = kk_out(k, 2 * m, 1.0);
    int32_t *bound = kk_alloc(k, 2 * sizeof *bound), *expert = kk_alloc(k, 2 * m * sizeof *expert);
    int32_t *list = kk_alloc(k, 2 * m * sizeof *list), *begin = kk_alloc(k, 6 * sizeof *begin);

    memcpy(score, odd, sizeof odd);
    bound[0] = 0;
    bound[1] = (int32_t)m;
    k->be->route(k->be, &(fm_route){.score = score,
                                    .ld = 5,
                                    .m = m,
                                    .experts = 5,
                                    .chosen = 2,
                                    .renormalise = dim[0] != 0,
                                    .bound = bound,
                                    .parts = 1,
                                    .weight = weight,
                                    .expert = expert,
                                    .list = list,
                                    .begin = begin});
    tk_ok(k->be->sync(k->be));
    for (uint32_t i = 0; i < 2 * m; i++)
        assert_int_equal(expert[i], (int)want[i / 2][i % 2]);
}

TEST(broken_scores_choose_alike)
{
    for (uint32_t norm = 0; norm < 2; norm++)
        fm_free(kk_check_bits("route", case_broken, &norm).result);
}

static void case_sigmoid(kk *k, const uint32_t *dim)
{
    float *y = kk_out(k, dim[0], 1.0), *x = kk_in(k, dim[0], 30.0);
    float *dx = kk_out(k, dim[0], 1.0), *dy = kk_in(k, dim[0], 2.0);
    k->be->sigmoid(k->be, y, x, dim[0]);
    k->be->sigmoid_grad(k->be, dx, dy, y, dim[0]);
}

TEST(sigmoids_equal_the_oracle)
{
    static const uint32_t dims[] = {1, 77, 1000};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("sigmoid", case_sigmoid, &dims[i], 1e-7);
}

/* ---- segments ---- */

#define STRETCHES 6u

/* Rows of segment s of `rows`: some have none, one has most. */
static uint32_t rows_of(uint32_t s, uint32_t rows)
{
    static const uint32_t of_16[STRETCHES] = {2, 0, 9, 1, 0, 4};
    return of_16[s] * rows / 16;
}

typedef struct lot { /* a list in segments, of which the first dim[0] rows are split */
    uint32_t rows, k, n, listed, ldx;
    float *x;
    int32_t *list, *begin;
    fm_weight *w[STRETCHES], *a[STRETCHES], *b[STRETCHES];
} lot;

/* dim: rows, k, n, type, offset of x in floats. */
static void lot_open(lot *l, kk *k, const uint32_t *dim)
{
    int32_t at = 0;
    *l = (lot){.rows = dim[0], .k = dim[1], .n = dim[2], .listed = dim[0] + 5, .ldx = dim[1] + 3};
    l->x = kk_in(k, (size_t)l->listed * l->ldx + dim[4], 1.0) + dim[4];
    l->list = kk_shuffled(k, l->listed);
    l->begin = kk_alloc(k, (STRETCHES + 1) * sizeof *l->begin);
    for (uint32_t s = 0; s <= STRETCHES; s++) {
        l->begin[s] = at;
        at += s < STRETCHES ? (int32_t)rows_of(s, l->rows) : 0;
    }
    for (uint32_t s = 0; s < STRETCHES; s++) {
        const fm_dtype_info *t = fm_dtype_get((fm_dtype)dim[3]);
        size_t bytes = (size_t)l->n * l->k / t->block_elems * t->block_bytes;
        unsigned char *w = fm_malloc(bytes);
        for (size_t i = 0; i < bytes; i++) /* small as float32, bf16 and f16 */
            w[i] = (unsigned char)(fm_rng_u64(3, s, i) & 0xbb);
        tk_ok(k->be->weight_new(k->be, &l->w[s], FM_ROLE_LINEAR, (fm_dtype)dim[3], l->n, l->k, w));
        fm_free(w);
        uint32_t r = 3 + 7 * s;
        l->a[s] = kk_role(k->be, FM_ROLE_LORA_A, kk_in(k, (size_t)r * l->k, 0.3), r, l->k);
        l->b[s] = kk_role(k->be, FM_ROLE_LORA_B, kk_in(k, (size_t)r * l->n, 0.3), l->n, r);
    }
}

static void lot_close(lot *l, fm_backend *be)
{
    tk_ok(be->sync(be));
    for (uint32_t s = 0; s < STRETCHES; s++) {
        be->weight_free(be, l->w[s]);
        be->weight_free(be, l->a[s]);
        be->weight_free(be, l->b[s]);
    }
}

/* Two lists of products on the same x and a term to each, as gate and up are; a segment may be all
 * of two neighbours. told: the host says where they lie. */
static void run_lot(kk *k, const lot *l, float *y, float *z, bool told)
{
    fm_backend *be = k->be;
    fm_product p[2 * STRETCHES];
    fm_lora t[STRETCHES];
    uint32_t count = 0;
    for (uint32_t s = 0; s < STRETCHES; s++) {
        p[count++] =
            (fm_product){.y = y, .w = l->w[s], .from = l->begin + s, .to = l->begin + s + 1};
        t[s] = (fm_lora){.y = y,
                         .ldy = l->n,
                         .a = l->a[s],
                         .b = l->b[s],
                         .scale = 0.5f,
                         .m = told ? rows_of(s, l->rows) : l->rows,
                         .rows = l->list + (told ? l->begin[s] : 0),
                         .from = told ? NULL : l->begin + s,
                         .to = told ? NULL : l->begin + s + 1,
                         .listed = told ? 0 : l->listed};
    }
    for (uint32_t s = 0; s < STRETCHES; s += 2)
        p[count++] =
            (fm_product){.y = z, .w = l->w[s], .from = l->begin + s, .to = l->begin + s + 2};
    for (uint32_t i = 0; i < count; i++) {
        p[i].ldy = l->n;
        p[i].split = i == 2;
        p[i].listed = l->listed;
        p[i].m = told ? (uint32_t)(*p[i].to - *p[i].from) : l->rows;
        p[i].rows = l->list + (told ? *p[i].from : 0);
        if (told)
            p[i].from = p[i].to = NULL;
    }
    be->products(be, l->x, l->ldx, l->k, p, count);
    be->lora(be, l->x, l->ldx, l->k, t, STRETCHES);
}

static void case_segments(kk *k, const uint32_t *dim)
{
    lot l;
    lot_open(&l, k, dim);
    size_t floats = (size_t)l.listed * l.n;
    run_lot(k, &l, kk_out(k, floats, 1.0), kk_out(k, floats, 1.0), false);
    lot_close(&l, k->be);
}

TEST(stretches_equal_the_oracle)
{
    static const uint32_t dims[][5] = {{16, 40, 33, FM_F32, 0},
                                       {32, 516, 20, FM_F32, 1},
                                       {160, 64, 70, FM_F32, 0},
                                       {300, 1030, 24, FM_F32, 0}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("segments", case_segments, dims[i], 2e-5);
}

/* In every mode and type: the bits of a list whose lengths the host has said. */
TEST(stretches_are_the_lists_they_stand_for)
{
    static const char *const mode[] = {"exact", "fast"};
    static const uint32_t types[] = {FM_F32, FM_BF16, FM_F16, FM_Q8_0, FM_Q4_K};
    static const uint32_t rows[] = {6, 16, 33, 140};
    for (size_t i = 0; i < FM_ARRAY_LEN(mode) * FM_ARRAY_LEN(types) * FM_ARRAY_LEN(rows); i++) {
        const uint32_t r = rows[i % 4], type = types[i / 4 % FM_ARRAY_LEN(types)];
        const uint32_t dim[] = {r, 512, 40, type, 0};
        fm_backend *be = kk_card(mode[i / 20]);
        if (!be)
            tk_ok(fm_backend_open(&be, mode[i / 20], NULL));
        kk k = {.be = be};
        lot l;
        lot_open(&l, &k, dim);
        size_t floats = (size_t)l.listed * l.n, bytes = floats * sizeof(float);
        float *y[4];
        for (size_t j = 0; j < 4; j++)
            y[j] = memset(kk_alloc(&k, bytes), 0, bytes);
        run_lot(&k, &l, y[0], y[1], false);
        run_lot(&k, &l, y[2], y[3], true);
        lot_close(&l, be);
        assert_memory_equal(y[0], y[2], bytes);
        assert_memory_equal(y[1], y[3], bytes);
        bool any = false;
        for (size_t j = 0; j < floats; j++)
            any = any || y[1][j] != 0.0f;
        assert_true(any);
        for (size_t j = 0; j < k.ptrs; j++)
            if (be->host_free)
                be->host_free(be, k.ptr[j]);
            else
                fm_free(k.ptr[j]);
        be->close(be);
    }
}

static void case_scalings(kk *k, const uint32_t *dim)
{
    const uint32_t rows = dim[0], n = dim[1], listed = rows + 5;
    float *y = kk_out(k, (size_t)listed * (n + 1), 1.0), *by = kk_in(k, STRETCHES * n, 2.0);
    int32_t *list = kk_shuffled(k, listed), at = 0;
    int32_t *begin = kk_alloc(k, (STRETCHES + 1) * sizeof *begin);
    fm_scaling s[STRETCHES];
    for (uint32_t i = 0; i <= STRETCHES; i++) {
        begin[i] = at;
        at += i < STRETCHES ? (int32_t)rows_of(i, rows) : 0;
    }
    for (uint32_t i = 0; i < STRETCHES; i++)
        s[i] = (fm_scaling){.y = y,
                            .ldy = n + 1,
                            .n = n,
                            .scale = i != 2 ? by + (size_t)i * n : NULL,
                            .bias = i % 2 == 0 ? by + (size_t)(STRETCHES - 1 - i) * n : NULL,
                            .m = rows,
                            .rows = list,
                            .from = begin + i,
                            .to = begin + i + 1};
    s[3].rows = list + begin[3]; /* one whose length is known */
    s[3].m = (uint32_t)(begin[4] - begin[3]);
    s[3].from = s[3].to = NULL;
    k->be->scalings(k->be, s, STRETCHES);
}

TEST(scales_of_stretches_equal_the_oracle)
{
    static const uint32_t dims[][2] = {{16, 5}, {48, 300}, {320, 33}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("scalings", case_scalings, dims[i], 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_equals_the_oracle),
        cmocka_unit_test(sigmoids_biases_and_groups_choose_as_the_oracle),
        cmocka_unit_test(a_sparse_mixer_chooses_as_the_oracle),
        cmocka_unit_test(broken_scores_choose_alike),
        cmocka_unit_test(sigmoids_equal_the_oracle),
        cmocka_unit_test(stretches_equal_the_oracle),
        cmocka_unit_test(stretches_are_the_lists_they_stand_for),
        cmocka_unit_test(scales_of_stretches_equal_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
