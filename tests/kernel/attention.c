/* ctest: card cost=8 */
/* Attention, paged and whole: the oracle, the stated order in scalar, equality of both forms, rows
 * that do not know their neighbours, windows, padding, and gradients. */
#include "tests/kernel/kernel_kit.h"

#include "store/base/math/detmath.h"
#define FMI_ISA_GENERIC
#include "infer/cpu/kern/vec.h"

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

/* dim: m, nh, nkv, hd, window, longest position, pages of a table (0: as many as needed; a GPU
 * takes rows of long tables in parts). Each row is a sequence of its own length, its
 * pages scattered; only the positions it sees are written, the rest of the cache is NaN. */
static paged make_paged(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], nh = dim[1], nkv = dim[2], hd = dim[3];
    uint32_t per_row = dim[5] / FM_KV_PAGE + 1, pages = m * per_row, n = dim[5] + 1;
    size_t cache = (size_t)pages * FM_KV_PAGE * nkv * hd;
    size_t row_floats = (size_t)n * nkv * hd;
    int32_t *placed = kk_shuffled(k, pages);
    paged p = {.stride = dim[6] ? dim[6] : per_row, .q = kk_in(k, (size_t)m * nh * hd, 2.0)};
    float *rows_k = kk_in(k, row_floats, 1.0), *rows_v = kk_in(k, row_floats, 1.0);
    int32_t *slot = kk_shuffled(k, n);

    p.kv = (fm_kv_view){kk_in(k, cache, 1.0), kk_in(k, cache, 1.0)};
    for (size_t i = 0; i < cache; i++)
        ((float *)p.kv.k)[i] = ((float *)p.kv.v)[i] = NAN;
    p.table = kk_shuffled(k, m * p.stride); /* what no position needs is no page */
    for (uint32_t i = 0; i < pages; i++)
        p.table[i / per_row * p.stride + i % per_row] = placed[i];
    p.pos = kk_shuffled(k, m);
    p.seq = kk_shuffled(k, m);
    for (uint32_t row = 0; row < m; row++) {
        uint32_t last = row == 0 ? dim[5] : (uint32_t)(fm_rng_below(5, 1, row, n));
        p.pos[row] = (int32_t)last;
        for (uint32_t i = 0; i <= last; i++)
            slot[i] =
                p.table[(uint32_t)p.seq[row] * p.stride + i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE +
                (int32_t)(i % FM_KV_PAGE);
        k->be->kv_write(k->be, p.kv, rows_k, nkv * hd, rows_v, nkv * hd, slot, last + 1, nkv, hd);
        tk_ok(k->be->sync(k->be)); /* rows_k and slot change now */
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
    fm_attn sunk = a;
    int32_t *first = kk_shuffled(k, dim[0]);
    for (uint32_t i = 0; i < dim[0]; i++)
        first[i] = p.pos[i] / 3;
    sunk.out = kk_out(k, (size_t)dim[0] * nh * hd, 1.0);
    sunk.sink = kk_in(k, nh, 3.0);
    sunk.first = first;
    k->be->attention(k->be, &sunk);
    if (!getenv("KK_DEVICE")) { /* no card has these */
        fm_attn near = a;
        near.bias_zero = dim[5] + 2;
        near.bias_ld = 2 * dim[5] + 5;
        near.bias = kk_in(k, (size_t)nh * near.bias_ld, 3.0);
        int32_t *own = kk_shuffled(k, dim[0]);
        for (uint32_t i = 0; i < dim[0]; i++) {
            own[i] = p.pos[i] / 2;
        }
        near.first = first;
        near.out = kk_out(k, (size_t)dim[0] * nh * hd, 1.0);
        k->be->attention(k->be, &near); /* own is pos */
        near.own = own;
        near.out = kk_out(k, (size_t)dim[0] * nh * hd, 1.0);
        k->be->attention(k->be, &near);
    }
}

TEST(paged_attention_equals_the_oracle)
{
    static const uint32_t dims[][7] = {
        {1, 1, 1, 2, 0, 0, 0},    {3, 1, 1, 16, 0, 31, 0},      {4, 9, 3, 64, 0, 70, 0},
        {5, 4, 2, 34, 0, 200, 0}, {6, 8, 1, 80, 9, 130, 0},     {7, 5, 1, 96, 33, 64, 0},
        {2, 14, 2, 64, 1, 40, 0}, {9, 2, 2, 128, 0, 300, 0},    {2, 37, 1, 24, 0, 40, 0},
        {1, 3, 1, 512, 0, 33, 0}, {5, 16, 1, 17, 0, 70, 16384},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("attention", case_paged, dims[i], TOL);
}

/* ---- whole sequences ---- */

/* dim: nh, nkv, hd, window, longest, virtual positions, encoder, cap, fused. Four sequences: the
 * longest, half of it, one row, and 8; those with virtual positions share one table. fused: q, k,
 * v lie in one row, and so do their gradients. */
#define WHOLE_SEQS 4u
typedef struct whole {
    fm_train_seq seq[WHOLE_SEQS];
    fm_attn_train a;
    size_t nq, nk, fused;
} whole;

static whole make_whole(kk *k, const uint32_t *d)
{
    uint32_t len[WHOLE_SEQS] = {d[4], d[4] / 2 + 1, 1, FM_MIN(d[4], 8u)}, rows = 0;
    size_t qd = (size_t)d[0] * d[2], kd = (size_t)d[1] * d[2], nv = d[5] * kd;
    whole w = {.fused = d[8] ? qd + 2 * kd + 3 : 0};
    float *vk = kk_in(k, nv, 1.0), *vv = kk_in(k, nv, 1.0);

    for (uint32_t i = 0; i < WHOLE_SEQS; i++) {
        w.seq[i] = (fm_train_seq){.begin = rows, .len = len[i]};
        rows += len[i];
        if (i == 1 || d[5] == 0) /* one sequence has none */
            continue;
        w.seq[i].virt = d[5];
        w.seq[i].vk = vk;
        w.seq[i].vv = vv;
    }
    w.nq = rows * qd;
    w.nk = rows * kd;
    w.a = (fm_attn_train){.rows = rows,
                          .seqs = WHOLE_SEQS,
                          .nh = d[0],
                          .nkv = d[1],
                          .hd = d[2],
                          .window = d[3],
                          .encoder = d[6],
                          .scale = 0.3f,
                          .softcap = d[7] ? 2.5f : 0.0f,
                          .ldq = d[8] ? w.fused : qd,
                          .ldk = d[8] ? w.fused : kd};
    float *q = kk_in(k, d[8] ? rows * w.fused : w.nq, 2.0);
    w.a.q = q;
    w.a.k = d[8] ? q + qd : kk_in(k, w.nk, 1.0);
    w.a.v = d[8] ? q + qd + kd : kk_in(k, w.nk, 1.0);
    return w;
}

static void case_whole(kk *k, const uint32_t *dim)
{
    whole w = make_whole(k, dim);

    w.a.seq = w.seq;
    w.a.out = kk_out(k, w.nq, 1.0);
    w.a.lse = kk_out(k, (size_t)w.a.rows * w.a.nh, 1.0);
    k->be->self_attention(k->be, &w.a);
}

static void case_whole_sunk(kk *k, const uint32_t *dim)
{
    whole w = make_whole(k, dim);
    const float *sink = kk_in(k, w.a.nh, 3.0);

    for (uint32_t i = 0; i < WHOLE_SEQS; i++)
        w.seq[i].sink = i == 1 ? NULL : sink;
    w.a.seq = w.seq;
    w.a.out = kk_out(k, w.nq, 1.0);
    w.a.lse = kk_out(k, (size_t)w.a.rows * w.a.nh, 1.0);
    k->be->self_attention(k->be, &w.a);
}

/* dim: as make_whole's; the window reaches to both sides where it is an encoder's. */
static void case_whole_biased(kk *k, const uint32_t *dim)
{
    whole w = make_whole(k, dim);

    w.a.seq = w.seq;
    w.a.bias_zero = dim[4] + dim[5];
    w.a.bias_ld = 2 * dim[4] + dim[5];
    const float *bias = kk_in(k, (size_t)w.a.nh * w.a.bias_ld, 3.0);
    for (uint32_t i = 0; i < WHOLE_SEQS; i++)
        w.seq[i].bias = i == 1 ? NULL : bias;
    w.a.out = kk_out(k, w.nq, 1.0);
    w.a.lse = kk_out(k, (size_t)w.a.rows * w.a.nh, 1.0);
    k->be->self_attention(k->be, &w.a);
}

static void case_whole_grad(kk *k, const uint32_t *dim)
{
    whole w = make_whole(k, dim);
    size_t kd = (size_t)dim[1] * dim[2], nv = dim[5] * kd;
    float *dvk = kk_out(k, nv, 1.0), *dvv = kk_out(k, nv, 1.0);

    w.a.seq = w.seq;
    w.a.out = kk_in(k, w.nq, 1.0);
    w.a.lse = kk_in(k, (size_t)w.a.rows * w.a.nh, 1.0);
    w.a.dout = kk_in(k, w.nq, 1.0);
    for (uint32_t i = 0; i < WHOLE_SEQS; i++)
        if (w.seq[i].virt && i != 3) { /* the last one's table is frozen */
            w.seq[i].dvk = dvk;
            w.seq[i].dvv = i == 2 ? NULL : dvv;
        }
    w.a.dq = kk_out(k, dim[8] ? w.a.rows * w.fused : w.nq, 1.0);
    w.a.dk = dim[8] ? w.a.dq + (size_t)dim[0] * dim[2] : kk_out(k, w.nk, 1.0);
    w.a.dv = dim[8] ? w.a.dk + kd : kk_out(k, w.nk, 1.0);
    k->be->self_attention(k->be, &w.a);
    k->be->self_attention_grad(k->be, &w.a);
}

static const uint32_t whole_dims[][9] = {
    {1, 1, 2, 0, 5, 0, 0, 0, 0},      {2, 1, 16, 0, 9, 0, 0, 0, 1},
    {3, 3, 8, 0, 33, 5, 0, 0, 0},     {9, 3, 64, 0, 64, 0, 0, 0, 0},
    {4, 2, 34, 0, 70, 0, 1, 0, 1},    {5, 1, 80, 7, 97, 0, 0, 1, 0},
    {4, 2, 64, 40, 130, 33, 0, 1, 1}, {2, 1, 128, 1, 40, 3, 0, 0, 0},
    {3, 1, 20, 0, 200, 64, 1, 1, 0},  {2, 2, 48, 3, 160, 0, 0, 0, 1},
    {6, 2, 40, 0, 150, 1, 0, 0, 0},   {2, 1, 259, 0, 20, 3, 0, 1, 0},
};

TEST(whole_attention_equals_the_oracle)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(whole_dims); i++)
        kk_check("self_attention", case_whole, whole_dims[i], TOL);
}

TEST(whole_attention_with_sinks_equals_the_oracle)
{
    kk_cpu_only();
    for (size_t i = 0; i < FM_ARRAY_LEN(whole_dims); i++)
        kk_check("self_attention with sinks", case_whole_sunk, whole_dims[i], TOL);
}

TEST(whole_attention_with_biases_equals_the_oracle)
{
    static const uint32_t both[][9] = {{4, 2, 16, 5, 40, 0, 1, 0, 0},
                                       {3, 1, 24, 33, 130, 6, 1, 1, 1}};
    kk_cpu_only();
    for (size_t i = 0; i < FM_ARRAY_LEN(whole_dims); i++)
        kk_check("self_attention with biases", case_whole_biased, whole_dims[i], TOL);
    for (size_t i = 0; i < FM_ARRAY_LEN(both); i++)
        kk_check("self_attention near an encoder's rows", case_whole_biased, both[i], TOL);
}

TEST(attention_gradient_equals_the_oracle)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(whole_dims); i++)
        kk_check("self_attention_grad", case_whole_grad, whole_dims[i], TOL_GRAD);
}

/* ---- order and equality ---- */

static float exp1(float x)
{
    float out[VF_LANES];

    vf_store(out, vf_exp(vf_set1(x)));
    return out[0];
}

/* The GPU where there is one, else this CPU. */
static fm_backend *open_exact(fm_pool *pool)
{
    fm_backend *be = kk_card("exact");

    if (!be)
        tk_ok(fm_backend_open(&be, "exact", pool));
    return be;
}

/* KERNELS.md in scalar, forward and gradient of two query heads on one key/value head. */
enum { ST_T = 75, ST_HD = 24, ST_NH = 2 };
typedef struct stated {
    float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
} stated;

static float stated_score(const stated *x, size_t h, size_t i, size_t j)
{
    float dot = 0.0f;
    for (size_t d = 0; d < ST_HD; d++)
        dot = fmaf(x->q[(i * ST_NH + h) * ST_HD + d], x->k[j * ST_HD + d], dot);
    return dot * 0.25f;
}

static void stated_forward(const stated *x, size_t h, size_t i)
{
    float s[ST_T], max = -INFINITY, sum = 0.0f, mix[ST_HD] = {0};

    for (size_t j = 0; j <= i; j++) {
        s[j] = stated_score(x, h, i, j);
        max = s[j] > max ? s[j] : max;
    }
    for (size_t j = 0; j <= i; j++) {
        float e = exp1(s[j] - max);
        sum = sum + e;
        for (size_t d = 0; d < ST_HD; d++)
            mix[d] = fmaf(e, x->v[j * ST_HD + d], mix[d]);
    }
    for (size_t d = 0; d < ST_HD; d++)
        assert_true(x->out[(i * ST_NH + h) * ST_HD + d] == mix[d] / sum);
    assert_true(x->lse[h * ST_T + i] == (float)((double)max + fm_log((double)sum)));
}

static void stated_backward(const stated *x, size_t h, size_t i, float *dk, float *dv)
{
    const float *dout = x->dout + (i * ST_NH + h) * ST_HD, *out = x->out + (i * ST_NH + h) * ST_HD;
    float lane[FM_LANES] = {0}, dq[ST_HD] = {0};

    for (size_t d = 0; d < ST_HD; d++)
        lane[d % FM_LANES] = fmaf(dout[d], out[d], lane[d % FM_LANES]);
    for (size_t half = FM_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            lane[l] = lane[l] + lane[l + half];
    for (size_t j = 0; j <= i; j++) {
        float dp = 0.0f, p = exp1(stated_score(x, h, i, j) - x->lse[h * ST_T + i]);
        for (size_t d = 0; d < ST_HD; d++)
            dp = fmaf(dout[d], x->v[j * ST_HD + d], dp);
        float ds = (p * (dp - lane[0])) * 0.25f;
        for (size_t d = 0; d < ST_HD; d++) {
            dq[d] = fmaf(ds, x->k[j * ST_HD + d], dq[d]);
            dk[j * ST_HD + d] = fmaf(ds, x->q[(i * ST_NH + h) * ST_HD + d], dk[j * ST_HD + d]);
            dv[j * ST_HD + d] = fmaf(p, dout[d], dv[j * ST_HD + d]);
        }
    }
    for (size_t d = 0; d < ST_HD; d++)
        assert_true(x->dq[(i * ST_NH + h) * ST_HD + d] == dq[d]);
}

TEST(attention_follows_the_stated_order)
{
    const fm_train_seq seq = {.len = ST_T};
    float dk[ST_T * ST_HD] = {0}, dv[ST_T * ST_HD] = {0};
    fm_backend *be = open_exact(NULL);
    kk k = {.be = be};
    stated x = {.q = kk_in(&k, ST_T * ST_NH * ST_HD, 2.0), .k = kk_in(&k, ST_T * ST_HD, 1.0)};

    x.v = kk_in(&k, ST_T * ST_HD, 1.0);
    x.dout = kk_in(&k, ST_T * ST_NH * ST_HD, 1.0);
    x.out = kk_in(&k, ST_T * ST_NH * ST_HD, 1.0);
    x.dq = kk_in(&k, ST_T * ST_NH * ST_HD, 1.0);
    x.lse = kk_in(&k, ST_T * ST_NH, 1.0);
    x.dk = kk_in(&k, ST_T * ST_HD, 1.0);
    x.dv = kk_in(&k, ST_T * ST_HD, 1.0);
    const fm_attn_train a = {.rows = ST_T,
                             .seqs = 1,
                             .nh = ST_NH,
                             .nkv = 1,
                             .hd = ST_HD,
                             .scale = 0.25f,
                             .seq = &seq,
                             .q = x.q,
                             .k = x.k,
                             .v = x.v,
                             .ldq = ST_NH * ST_HD,
                             .ldk = ST_HD,
                             .out = x.out,
                             .lse = x.lse,
                             .dout = x.dout,
                             .dq = x.dq,
                             .dk = x.dk,
                             .dv = x.dv};
    be->self_attention(be, &a);
    be->self_attention_grad(be, &a);
    tk_ok(be->sync(be));
    for (size_t h = 0; h < ST_NH; h++)
        for (size_t i = 0; i < ST_T; i++) {
            stated_forward(&x, h, i);
            stated_backward(&x, h, i, dk, dv);
        }
    for (size_t i = 0; i < ST_T * ST_HD; i++)
        assert_true(x.dk[i] == dk[i] && x.dv[i] == dv[i]);
    kk_gather(&k);
    fm_backend_close(be);
    fm_free(k.result);
}

/* A prompt in one step, in pieces, row by row, and as training sees it: the same bits. */
TEST(paged_and_whole_attention_agree)
{
    enum { T = 101, NH = 6, NKV = 2, HD = 48, W = 50 };
    fm_pool *pool;
    tk_ok(fm_pool_new(&pool, 2));
    fm_backend *be = open_exact(pool);
    kk k = {.be = be};
    float *q = kk_in(&k, T * NH * HD, 2.0), *key = kk_in(&k, T * NKV * HD, 1.0);
    float *v = kk_in(&k, T * NKV * HD, 1.0), *lse = kk_in(&k, NH * T, 1.0);
    float *all = kk_in(&k, T * NH * HD, 1.0), *step = kk_in(&k, T * NH * HD, 1.0);
    fm_kv_view kv = {kk_in(&k, 4 * 32 * NKV * HD, 1.0), kk_in(&k, 4 * 32 * NKV * HD, 1.0)};
    int32_t *table = kk_shuffled(&k, 8), *seq = kk_shuffled(&k, T);
    int32_t *pos = kk_shuffled(&k, T), *slot = kk_shuffled(&k, T);
    const fm_train_seq one = {.len = T};

    for (int32_t i = 0; i < 8; i++) /* two sequences on the same pages */
        table[i] = (3 * i + 2) % 4;
    for (int32_t i = 0; i < T; i++) {
        seq[i] = 0;
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
    be->self_attention(be, &(fm_attn_train){.rows = T,
                                            .seqs = 1,
                                            .nh = NH,
                                            .nkv = NKV,
                                            .hd = HD,
                                            .window = W,
                                            .scale = 0.2f,
                                            .seq = &one,
                                            .q = q,
                                            .k = key,
                                            .v = v,
                                            .ldq = NH * HD,
                                            .ldk = NKV * HD,
                                            .out = all,
                                            .lse = lse});
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
    tk_ok(be->sync(be));
    assert_memory_equal(all, step, T * NH * HD * sizeof *step);
    for (uint32_t deal = 0; deal < 2; deal++) { /* then rows of either by turns of five */
        for (uint32_t i = 0; i < T; i++)
            seq[i] = (int32_t)(deal * (i / 5 % 2));
        kk_fill(&k, step, T * NH * HD, 1.0);
        be->attention(be, &a);
        tk_ok(be->sync(be));
        assert_memory_equal(all, step, T * NH * HD * sizeof *step);
    }
    kk_gather(&k);
    fm_backend_close(be);
    fm_pool_free(pool);
    fm_free(k.result);
}

/* Alone and among others, on one thread and on several (which may split it): the same bits. */
TEST(a_sequence_does_not_know_its_neighbours)
{
    const uint32_t dim[] = {4, 2, 20, 0, 190, 0, 0, 0, 0};

    for (unsigned threads = 1; threads <= 3; threads++) {
        fm_pool *pool;
        tk_ok(fm_pool_new(&pool, threads));
        fm_backend *be = open_exact(pool);
        kk k = {.be = be};
        whole w = make_whole(&k, dim);
        size_t lse_n = (size_t)w.a.rows * w.a.nh;
        bool be_is_cpu = be->host_visible;
        w.a.seq = w.seq;
        w.a.dout = kk_in(&k, w.nq, 1.0);
        float *all[5] = {kk_in(&k, w.nq, 1.0), kk_in(&k, lse_n, 1.0), kk_in(&k, w.nq, 1.0),
                         kk_in(&k, w.nk, 1.0), kk_in(&k, w.nk, 1.0)};
        float *own[5] = {kk_in(&k, w.nq, 1.0), kk_in(&k, lse_n, 1.0), kk_in(&k, w.nq, 1.0),
                         kk_in(&k, w.nk, 1.0), kk_in(&k, w.nk, 1.0)};
        for (int run = 0; run < 2; run++) {
            float **o = run ? own : all;
            fm_attn_train a = w.a;
            a.out = o[0];
            a.lse = o[1];
            a.dq = o[2];
            a.dk = o[3];
            a.dv = o[4];
            a.seqs = run ? 1 : WHOLE_SEQS;
            for (uint32_t i = 0; i < WHOLE_SEQS; i += a.seqs) {
                a.seq = w.seq + i;
                be->self_attention(be, &a);
                be->self_attention_grad(be, &a);
            }
        }
        tk_ok(be->sync(be));
        const size_t n[5] = {w.nq, lse_n, w.nq, w.nk, w.nk};
        for (size_t i = 0; i < 5; i++)
            assert_memory_equal(all[i], own[i], n[i] * sizeof(float));
        kk_gather(&k);
        fm_backend_close(be);
        fm_pool_free(pool);
        fm_free(k.result);
        if (!be_is_cpu)
            break; /* no threads there */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_attention_equals_the_oracle),
        cmocka_unit_test(whole_attention_equals_the_oracle),
        cmocka_unit_test(whole_attention_with_sinks_equals_the_oracle),
        cmocka_unit_test(whole_attention_with_biases_equals_the_oracle),
        cmocka_unit_test(attention_gradient_equals_the_oracle),
        cmocka_unit_test(attention_follows_the_stated_order),
        cmocka_unit_test(paged_and_whole_attention_agree),
        cmocka_unit_test(a_sequence_does_not_know_its_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
