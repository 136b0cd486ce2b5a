/* Attention, paged and whole: the oracle, the stated order in scalar, equality of both forms, rows
 * that do not know their neighbours, windows, padding, and gradients. */
#include "tests/kernel/kernel_kit.h"

#include "store/base/detmath.h"
#define FMI_ISA_GENERIC
#include "infer/cpu/vec.h"

/* Scores are sums of hd products, weights are exponentials of them: an error of 4 half-ulps in a
 * score of size 8 moves its weight by 2e-6. */
#define TOL 5e-6
/* The gradient subtracts (dp - D), which cancels a digit. */
#define TOL_GRAD 2e-5

typedef struct paged {
    fm_kv_view kv;
    int32_t *table, *pos, *seq;
    float *q;
    uint32_t stride;
} paged;

/* dim: m, nh, nkv, hd, window, longest position. Each row is a sequence of its own length, its
 * pages scattered; only the positions it sees are written, the rest of the cache is NaN. */
static paged make_paged(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], nh = dim[1], nkv = dim[2], hd = dim[3];
    uint32_t per_row = dim[5] / FM_KV_PAGE + 1, pages = m * per_row, n = dim[5] + 1;
    size_t cache = (size_t)pages * FM_KV_PAGE * nkv * hd;
    size_t row_floats = (size_t)n * nkv * hd;
    paged p = {
        .stride = per_row, .table = kk_shuffled(k, pages), .q = kk_in(k, (size_t)m * nh * hd, 2.0)};
    float *rows_k = kk_in(k, row_floats, 1.0), *rows_v = kk_in(k, row_floats, 1.0);
    int32_t *slot = kk_shuffled(k, n);

    p.kv = (fm_kv_view){kk_in(k, cache, 1.0), kk_in(k, cache, 1.0)};
    for (size_t i = 0; i < cache; i++)
        ((float *)p.kv.k)[i] = ((float *)p.kv.v)[i] = NAN;
    p.pos = kk_shuffled(k, m);
    p.seq = kk_shuffled(k, m);
    for (uint32_t row = 0; row < m; row++) {
        uint32_t last = row == 0 ? dim[5] : (uint32_t)(fm_rng_below(5, 1, row, n));
        p.pos[row] = (int32_t)last;
        for (uint32_t i = 0; i <= last; i++)
            slot[i] =
                p.table[(uint32_t)p.seq[row] * per_row + i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE +
                (int32_t)(i % FM_KV_PAGE);
        k->be->kv_write(k->be, p.kv, rows_k, nkv * hd, rows_v, nkv * hd, slot, last + 1, nkv, hd);
        kk_fill(k, rows_k, (size_t)n * nkv * hd, 1.0);
    }
    return p;
}

static void case_paged(kk *k, const uint32_t *dim)
{
    paged p = make_paged(k, dim);
    uint32_t nh = dim[1], nkv = dim[2], hd = dim[3];
    float *out = kk_out(k, (size_t)dim[0] * nh * hd, 1.0);

    const fm_attn a = {.out = out,
                       .ldo = nh * hd,
                       .q = p.q,
                       .ldq = nh * hd,
                       .kv = p.kv,
                       .table = p.table,
                       .table_stride = p.stride,
                       .seq = p.seq,
                       .pos = p.pos,
                       .m = dim[0],
                       .nh = nh,
                       .nkv = nkv,
                       .hd = hd,
                       .window = dim[4],
                       .scale = 0.3f};
    k->be->attention(k->be, &a);
    fm_attn capped = a;
    capped.out = kk_out(k, (size_t)dim[0] * nh * hd, 1.0);
    capped.softcap = 2.5f;
    k->be->attention(k->be, &capped);
}

static void paged_attention_equals_the_oracle(void **state)
{
    static const uint32_t dims[][6] = {
        {1, 1, 1, 2, 0, 0},    {3, 1, 1, 16, 0, 31},  {4, 9, 3, 64, 0, 70},  {5, 4, 2, 34, 0, 200},
        {6, 8, 1, 80, 9, 130}, {7, 5, 1, 96, 33, 64}, {2, 14, 2, 64, 1, 40}, {9, 2, 2, 128, 0, 300},
    };

    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("attention", case_paged, dims[i], TOL);
}

/* dim: b, t, nh, nkv, hd, window */
static void case_train(kk *k, const uint32_t *dim)
{
    uint32_t b = dim[0], t = dim[1], nh = dim[2], nkv = dim[3], hd = dim[4];
    size_t nq = (size_t)b * t * nh * hd, nk = (size_t)b * t * nkv * hd;
    float *q = kk_in(k, nq, 2.0), *key = kk_in(k, nk, 1.0), *v = kk_in(k, nk, 1.0);
    float *out = kk_out(k, nq, 1.0), *lse = kk_out(k, (size_t)b * nh * t, 1.0);
    int32_t *len = kk_shuffled(k, b);

    for (uint32_t i = 0; i < b; i++)
        len[i] = (int32_t)(i == 0 ? t : t - t / (i + 1));
    k->be->attention_train(k->be, out, lse, q, key, v, len, b, t, nh, nkv, hd, dim[5], 0.3f);
}

static void case_grad(kk *k, const uint32_t *dim)
{
    uint32_t b = dim[0], t = dim[1], nh = dim[2], nkv = dim[3], hd = dim[4];
    size_t nq = (size_t)b * t * nh * hd, nk = (size_t)b * t * nkv * hd;
    float *q = kk_in(k, nq, 2.0), *key = kk_in(k, nk, 1.0), *v = kk_in(k, nk, 1.0);
    float *out = kk_in(k, nq, 1.0), *lse = kk_in(k, (size_t)b * nh * t, 1.0);
    float *dout = kk_in(k, nq, 1.0);
    float *dq = kk_out(k, nq, 1.0), *dk = kk_out(k, nk, 1.0), *dv = kk_out(k, nk, 1.0);
    int32_t *len = kk_shuffled(k, b);

    for (uint32_t i = 0; i < b; i++)
        len[i] = (int32_t)(i == 0 ? t : t - t / (i + 1));
    k->be->attention_train(k->be, out, lse, q, key, v, len, b, t, nh, nkv, hd, dim[5], 0.3f);
    k->be->attention_grad(k->be, dq, dk, dv, dout, q, key, v, out, lse, len, b, t, nh, nkv, hd,
                          dim[5], 0.3f);
}

static const uint32_t train_dims[][6] = {
    {1, 1, 1, 1, 2, 0},   {2, 5, 2, 1, 16, 0},  {1, 33, 3, 3, 8, 0},    {3, 64, 9, 3, 64, 0},
    {2, 70, 4, 2, 34, 0}, {2, 97, 5, 1, 80, 7}, {1, 130, 4, 2, 64, 40}, {2, 40, 2, 1, 128, 1},
};

static void whole_attention_equals_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(train_dims); i++)
        kk_check("attention_train", case_train, train_dims[i], TOL);
}

static void attention_gradient_equals_the_oracle(void **state)
{
    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(train_dims); i++)
        kk_check("attention_grad", case_grad, train_dims[i], TOL_GRAD);
}

/* ---- order and equality ---- */

static float exp1(float x)
{
    float out[VF_LANES];

    vf_store(out, vf_exp(vf_set1(x)));
    return out[0];
}

static void attention_follows_the_stated_order(void **state)
{
    enum { T = 75, HD = 24 };
    fm_backend *be;
    kk k = {0};
    float *q = kk_in(&k, T * HD, 2.0), *key = kk_in(&k, T * HD, 1.0), *v = kk_in(&k, T * HD, 1.0);
    float *out = kk_in(&k, T * HD, 1.0), *lse = kk_in(&k, T, 1.0);
    int32_t len = T;

    (void)state;
    tk_ok(fm_backend_open(&be, "exact", NULL));
    be->attention_train(be, out, lse, q, key, v, &len, 1, T, 1, 1, HD, 0, 0.25f);
    for (size_t i = 0; i < T; i++) {
        float s[T], max = -INFINITY, sum = 0.0f, mix[HD] = {0};
        for (size_t j = 0; j <= i; j++) {
            float dot = 0.0f;
            for (size_t d = 0; d < HD; d++)
                dot = fmaf(q[i * HD + d], key[j * HD + d], dot);
            s[j] = dot * 0.25f;
            max = s[j] > max ? s[j] : max;
        }
        for (size_t j = 0; j <= i; j++) {
            float e = exp1(s[j] - max);
            sum = sum + e;
            for (size_t d = 0; d < HD; d++)
                mix[d] = fmaf(e, v[j * HD + d], mix[d]);
        }
        for (size_t d = 0; d < HD; d++)
            assert_true(out[i * HD + d] == mix[d] / sum);
        assert_true(lse[i] == (float)((double)max + fm_log((double)sum)));
    }
    fm_backend_close(be);
    kk_gather(&k);
    fm_free(k.result);
}

/* A prompt in one step, in pieces, row by row, and as training sees it: the same bits. */
static void paged_and_whole_attention_agree(void **state)
{
    enum { T = 101, NH = 6, NKV = 2, HD = 48, W = 50 };
    fm_backend *be;
    fm_pool *pool;
    kk k = {0};
    float *q = kk_in(&k, T * NH * HD, 2.0), *key = kk_in(&k, T * NKV * HD, 1.0);
    float *v = kk_in(&k, T * NKV * HD, 1.0), *lse = kk_in(&k, NH * T, 1.0);
    float *whole = kk_in(&k, T * NH * HD, 1.0), *step = kk_in(&k, T * NH * HD, 1.0);
    fm_kv_view kv = {kk_in(&k, 4 * 32 * NKV * HD, 1.0), kk_in(&k, 4 * 32 * NKV * HD, 1.0)};
    int32_t table[4] = {2, 0, 3, 1}, seq[T] = {0}, pos[T], slot[T], len = T;

    (void)state;
    tk_ok(fm_pool_new(&pool, 2));
    tk_ok(fm_backend_open(&be, "exact", pool));
    for (int32_t i = 0; i < T; i++) {
        pos[i] = i;
        slot[i] = table[i / 32] * 32 + i % 32;
    }
    fm_attn a = {.out = step,
                 .ldo = NH * HD,
                 .q = q,
                 .ldq = NH * HD,
                 .kv = kv,
                 .table = table,
                 .table_stride = 4,
                 .seq = seq,
                 .pos = pos,
                 .m = T,
                 .nh = NH,
                 .nkv = NKV,
                 .hd = HD,
                 .window = W,
                 .scale = 0.2f};
    be->attention_train(be, whole, lse, q, key, v, &len, 1, T, NH, NKV, HD, W, 0.2f);
    for (uint32_t i = 0; i < T; i += 7) {
        uint32_t m = FM_MIN(7u, T - i);
        be->kv_write(be, kv, key + i * NKV * HD, NKV * HD, v + i * NKV * HD, NKV * HD, slot + i, m,
                     NKV, HD);
        fm_attn piece = a;
        piece.out += i * NH * HD;
        piece.q += i * NH * HD;
        piece.pos += i;
        piece.m = m;
        be->attention(be, &piece);
    }
    assert_memory_equal(whole, step, T * NH * HD * sizeof *step);
    kk_fill(&k, step, T * NH * HD, 1.0);
    be->attention(be, &a);
    assert_memory_equal(whole, step, T * NH * HD * sizeof *step);
    fm_backend_close(be);
    fm_pool_free(pool);
    kk_gather(&k);
    fm_free(k.result);
}

static void a_sequence_does_not_know_its_neighbours(void **state)
{
    enum { B = 3, T = 45, NH = 4, NKV = 2, HD = 20, NQ = T * NH * HD, NK = T * NKV * HD };
    fm_backend *be;
    kk k = {0};
    float *q = kk_in(&k, B * NQ, 2.0), *key = kk_in(&k, B * NK, 1.0), *v = kk_in(&k, B * NK, 1.0);
    float *dout = kk_in(&k, B * NQ, 1.0), *out = kk_in(&k, B * NQ, 1.0);
    float *lse = kk_in(&k, B * NH * T, 1.0), *dq = kk_in(&k, B * NQ, 1.0);
    float *dk = kk_in(&k, B * NK, 1.0), *dv = kk_in(&k, B * NK, 1.0);
    float *dq1 = kk_in(&k, NQ, 1.0), *dk1 = kk_in(&k, NK, 1.0), *dv1 = kk_in(&k, NK, 1.0);
    int32_t len[B] = {45, 30, 1};

    (void)state;
    tk_ok(fm_backend_open(&be, "exact", NULL));
    be->attention_train(be, out, lse, q, key, v, len, B, T, NH, NKV, HD, 0, 0.2f);
    be->attention_grad(be, dq, dk, dv, dout, q, key, v, out, lse, len, B, T, NH, NKV, HD, 0, 0.2f);
    for (size_t b = 0; b < B; b++) {
        be->attention_grad(be, dq1, dk1, dv1, dout + b * NQ, q + b * NQ, key + b * NK, v + b * NK,
                           out + b * NQ, lse + b * NH * T, len + b, 1, T, NH, NKV, HD, 0, 0.2f);
        assert_memory_equal(dq1, dq + b * NQ, NQ * sizeof *dq);
        assert_memory_equal(dk1, dk + b * NK, NK * sizeof *dk);
        assert_memory_equal(dv1, dv + b * NK, NK * sizeof *dv);
        for (size_t i = (size_t)len[b] * NH * HD; i < NQ; i++)
            assert_true(out[b * NQ + i] == 0.0f && dq[b * NQ + i] == 0.0f);
    }
    fm_backend_close(be);
    kk_gather(&k);
    fm_free(k.result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_attention_equals_the_oracle),
        cmocka_unit_test(whole_attention_equals_the_oracle),
        cmocka_unit_test(attention_gradient_equals_the_oracle),
        cmocka_unit_test(attention_follows_the_stated_order),
        cmocka_unit_test(paged_and_whole_attention_agree),
        cmocka_unit_test(a_sequence_does_not_know_its_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
