/* ctest: card cuda_cost=15 */
/* Self-attention of mode bf16 on a GPU (KK_DEVICE=cuda; emulated or real) and its gradient: the
 * oracle over the same rounded operands, finite differences, sequences alone and in company. */
#include "tests/kernel/kernel_kit.h"

#include "store/base/os/io.h"

/* Weights are rounded to bf16 on their way into the product with the values: 2^-9 / sqrt(3) each,
 * 1.1e-3, of terms whose signs differ; the sum of the same rounded weights divides. */
#define TOL_OUT 2.5e-3
/* Weights, or their gradients p (dp - D), are rounded likewise; dp and D are sums whose difference
 * has lost a digit, and D has the error of out. */
#define TOL_GRAD 4e-3

#define SEQS 4u

typedef struct dims {
    uint32_t nh, nkv, hd, window, longest, virt;
    bool encoder, cap, fused;
} dims;

enum { OUT, DQ, DK, DV, DVK, DVV, RESULTS };
static const char *const names[RESULTS] = {"out", "dq", "dk", "dv", "dvk", "dvv"};
static const double tols[RESULTS] = {TOL_OUT, TOL_GRAD, TOL_GRAD, TOL_GRAD, TOL_GRAD, TOL_GRAD};

/* Inputs and results of one backend. Four sequences: the longest, half of it, one row, and 8; those
 * with virtual positions share one table. fused: q, k, v lie in one row, and so do gradients. */
typedef struct world {
    kk k;
    fm_train_seq seq[SEQS];
    fm_attn_train a;
    float *q, *key, *v, *vk, *vv;
    float *got[RESULTS];
    size_t n[RESULTS]; /* rows */
    size_t width[RESULTS], ld[RESULTS];
} world;

static float *rounded(kk *k, size_t n, double size)
{
    float *x = kk_in(k, n, size);
    for (size_t i = 0; i < n; i++)
        x[i] = fm_bf16_to_f32(fm_f32_to_bf16(x[i]));
    return x;
}

static float *result(world *w, int r, size_t rows, size_t width)
{
    w->n[r] = rows;
    w->width[r] = w->ld[r] = width;
    return w->got[r] = kk_in(&w->k, rows * width, 1.0);
}

static void results(world *w, const dims *d, size_t fused)
{
    const size_t qd = (size_t)d->nh * d->hd, kd = (size_t)d->nkv * d->hd;

    w->a.out = result(w, OUT, w->a.rows, qd);
    w->a.lse = kk_in(&w->k, (size_t)w->a.rows * d->nh, 1.0);
    w->a.dq = result(w, DQ, w->a.rows, fused ? fused : qd);
    w->a.dk = result(w, DK, w->a.rows, kd);
    w->a.dv = result(w, DV, w->a.rows, kd);
    if (fused) {
        w->a.dk = w->got[DK] = w->a.dq + qd;
        w->a.dv = w->got[DV] = w->a.dk + kd;
        w->ld[DQ] = w->ld[DK] = w->ld[DV] = fused;
        w->width[DQ] = qd;
    }
    result(w, DVK, d->virt, kd);
    result(w, DVV, d->virt, kd);
}

static void make(world *w, fm_backend *be, const dims *d)
{
    uint32_t len[SEQS] = {d->longest, d->longest / 2 + 1, 1, FM_MIN(d->longest, 8u)}, rows = 0;
    const size_t qd = (size_t)d->nh * d->hd, kd = (size_t)d->nkv * d->hd;
    const size_t fused = d->fused ? qd + 2 * kd + 3 : 0;

    memset(w, 0, sizeof *w);
    w->k.be = be;
    w->vk = rounded(&w->k, d->virt * kd, 1.0);
    w->vv = rounded(&w->k, d->virt * kd, 1.0);
    for (uint32_t i = 0; i < SEQS; i++) {
        w->seq[i] = (fm_train_seq){.begin = rows, .len = len[i]};
        rows += len[i];
        if (i == 1 || d->virt == 0) /* one sequence has none */
            continue;
        w->seq[i].virt = d->virt;
        w->seq[i].vk = w->vk;
        w->seq[i].vv = w->vv;
    }
    w->a = (fm_attn_train){.rows = rows,
                           .seqs = SEQS,
                           .nh = d->nh,
                           .nkv = d->nkv,
                           .hd = d->hd,
                           .window = d->window,
                           .encoder = d->encoder,
                           .scale = 1.5f / sqrtf((float)d->hd),
                           .softcap = d->cap ? 2.5f : 0.0f,
                           .seq = w->seq,
                           .ldq = fused ? fused : qd,
                           .ldk = fused ? fused : kd};
    w->q = rounded(&w->k, rows * (fused ? fused : qd), 2.0);
    w->key = fused ? w->q + qd : rounded(&w->k, rows * kd, 2.0);
    w->v = fused ? w->key + kd : rounded(&w->k, rows * kd, 1.0);
    w->a.q = w->q;
    w->a.k = w->key;
    w->a.v = w->v;
    w->a.dout = rounded(&w->k, rows * qd, 1.0);
    results(w, d, fused);
    for (uint32_t i = 0; i < SEQS; i++)
        if (w->seq[i].virt && i != 3) { /* the last one's table is frozen */
            w->seq[i].dvk = w->got[DVK];
            w->seq[i].dvv = i == 2 ? NULL : w->got[DVV];
        }
}

static void attend(world *w)
{
    w->k.be->self_attention(w->k.be, &w->a);
    w->k.be->self_attention_grad(w->k.be, &w->a);
    tk_ok(w->k.be->sync(w->k.be));
}

static void drop(world *w)
{
    kk_gather(&w->k);
    fm_free(w->k.result);
}

static void compare(const world *got, const world *want, int r)
{
    double err = 0, norm = 0, worst = 0, most = 0;

    for (size_t i = 0; i < want->n[r]; i++)
        for (size_t d = 0; d < want->width[r]; d++) {
            double x = (double)want->got[r][i * want->ld[r] + d];
            double e = fabs((double)got->got[r][i * got->ld[r] + d] - x);
            err += e * e;
            norm += x * x;
            worst = !(e <= worst) ? e : worst; /* NaN is worst */
            most = fmax(most, fabs(x));
        }
    if (getenv("CARD_ATTENTION_SHOW"))
        print_message("%s: %.2e, worst %.2e of %.2e\n", names[r], sqrt(err / norm), worst, most);
    if (!(sqrt(err) <= tols[r] * sqrt(norm)) || !(worst <= 8 * tols[r] * most))
        fail_msg("%s, heads of %u: relative error %g, largest %g of %g, allowed %g", names[r],
                 want->a.hd, sqrt(err / norm), worst, most, tols[r]);
}

static const dims shapes[] = {
    {1, 1, 2, 0, 5, 0, 0, 0, 0},      {3, 3, 8, 0, 33, 5, 0, 0, 0},
    {4, 2, 34, 0, 70, 0, 1, 0, 1},    {5, 1, 80, 7, 97, 0, 0, 1, 0},
    {2, 1, 64, 40, 150, 33, 0, 1, 1}, {2, 1, 128, 1, 40, 3, 0, 0, 0},
    {3, 1, 20, 0, 150, 70, 1, 1, 0},  {2, 2, 48, 3, 160, 0, 0, 0, 1},
    {1, 1, 96, 0, 200, 1, 0, 0, 0},   {2, 1, 160, 0, 40, 9, 0, 1, 0},
    {2, 1, 256, 20, 70, 0, 0, 0, 1},
};

TEST(attention_and_its_gradient_equal_the_oracle)
{
    fm_backend *be = kk_card("bf16"), *ref;

    if (!be)
        skip();
    tk_ok(fm_backend_cpu_ref(&ref));
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        world got, want;
        make(&got, be, &shapes[i]);
        make(&want, ref, &shapes[i]);
        attend(&got);
        attend(&want);
        for (int r = 0; r < RESULTS; r++)
            compare(&got, &want, r);
        drop(&got);
        drop(&want);
    }
    fm_backend_close(ref);
    fm_backend_close(be);
}

/* sum of out * dout, by the oracle. */
static double loss(world *w)
{
    double sum = 0;
    w->k.be->self_attention(w->k.be, &w->a);
    for (size_t i = 0; i < w->n[OUT] * w->width[OUT]; i++)
        sum += (double)w->got[OUT][i] * (double)w->a.dout[i];
    return sum;
}

/* Along a random direction of each input; the quotient's own error, of float32 results over a step
 * of 2^-6, is some 1e-3 of the gradient's norm. */
TEST(gradients_are_those_of_finite_differences)
{
    const dims d = {2, 1, 24, 20, 70, 9, 0, 1, 0};
    const float step = 0x1p-6f;
    fm_backend *be = kk_card("bf16"), *ref;
    world got, by;

    if (!be)
        skip();
    tk_ok(fm_backend_cpu_ref(&ref));
    make(&got, be, &d);
    make(&by, ref, &d);
    for (int r = DVK; r <= DVV; r++) /* these are added to */
        memset(got.got[r], 0, got.n[r] * got.width[r] * sizeof(float));
    for (uint32_t i = 0; i < SEQS; i++)
        if (got.seq[i].virt) {
            got.seq[i].dvk = got.got[DVK];
            got.seq[i].dvv = got.got[DVV];
        }
    attend(&got);
    float *inputs[RESULTS] = {NULL, by.q, by.key, by.v, by.vk, by.vv};
    for (int r = DQ; r < RESULTS; r++) {
        const size_t n = got.n[r] * got.width[r];
        double along = 0, norm = 0, quotient;
        float *x = inputs[r], *old = fm_memdup(x, n * sizeof *x);
        for (size_t i = 0; i < n; i++) {
            float u = fm_rng_below(3, (uint64_t)r, i, 2) ? 1.0f : -1.0f;
            along += (double)(u * got.got[r][i]);
            norm += (double)got.got[r][i] * (double)got.got[r][i];
            x[i] = old[i] + u * step;
        }
        quotient = loss(&by);
        for (size_t i = 0; i < n; i++)
            x[i] = 2.0f * old[i] - x[i];
        quotient = (quotient - loss(&by)) / (2.0 * (double)step);
        memcpy(x, old, n * sizeof *x);
        fm_free(old);
        assert_true(norm > 0);
        tk_assert_le(fabs(quotient - along) / sqrt(norm), 2e-2, names[r]);
    }
    drop(&got);
    drop(&by);
    fm_backend_close(ref);
    fm_backend_close(be);
}

/* One call for all sequences, and one for each: the same bits. */
TEST(a_sequence_does_not_know_its_neighbours)
{
    static const dims list[] = {{4, 2, 20, 0, 150, 0, 0, 0, 0}, {2, 1, 72, 33, 90, 5, 0, 0, 1}};
    fm_backend *be = kk_card("bf16");

    if (!be)
        skip();
    for (size_t n = 0; n < FM_ARRAY_LEN(list); n++) {
        world all, one;
        make(&all, be, &list[n]);
        make(&one, be, &list[n]);
        attend(&all);
        one.a.seqs = 1;
        for (uint32_t i = 0; i < SEQS; i++) {
            one.a.seq = one.seq + i;
            attend(&one);
        }
        for (int r = 0; r < RESULTS; r++)
            for (size_t i = 0; i < all.n[r]; i++)
                assert_memory_equal(all.got[r] + i * all.ld[r], one.got[r] + i * one.ld[r],
                                    all.width[r] * sizeof(float));
        drop(&all);
        drop(&one);
    }
    fm_backend_close(be);
}

/* Mode exact's, bit for bit. */
TEST(longer_heads_are_mode_exacts)
{
    const dims d = {2, 1, 260, 0, 9, 3, 0, 0, 0};
    fm_backend *be = kk_card("bf16"), *exact = kk_card("exact");
    world got, want;

    if (!be)
        skip();
    make(&got, be, &d);
    make(&want, exact, &d);
    attend(&got);
    attend(&want);
    for (int r = 0; r < RESULTS; r++)
        assert_memory_equal(got.got[r], want.got[r], got.n[r] * got.ld[r] * sizeof(float));
    drop(&got);
    drop(&want);
    fm_backend_close(exact);
    fm_backend_close(be);
}

/* ---- Hopper's kernels ---- */

static const dims wide_shapes[] = {
    {2, 1, 64, 40, 140, 33, 0, 1, 1}, {2, 2, 128, 0, 100, 70, 0, 0, 0},
    {1, 1, 96, 0, 210, 0, 1, 0, 0},   {3, 1, 20, 100, 260, 0, 0, 0, 1},
    {1, 1, 128, 70, 260, 0, 0, 1, 0},
};

/* A GPU with Hopper's kernels (which round as `how` says), or without. */
static fm_backend *open_card(bool wide, const char *how)
{
    setenv("FMSTORE_CUDA_WIDE", wide ? "1" : "0", 1);
    setenv("SIMT_WIDE", how, 1);
    fm_backend *be = kk_card("bf16");
    unsetenv("FMSTORE_CUDA_WIDE");
    return be;
}

/* Blocks that multiplied with such instructions since the last time; the emulator alone knows. */
static size_t blocks_of(const char *log)
{
    size_t lines = 0;
    FILE *f = fopen(log, "r");

    for (int c; f && (c = fgetc(f)) != EOF;)
        lines += c == '\n';
    if (f)
        fclose(f);
    (void)remove(log);
    return lines;
}

static void same_bits(fm_backend *wide, fm_backend *plain, const dims *d)
{
    world x, y;

    make(&x, wide, d);
    make(&y, plain, d);
    attend(&x);
    attend(&y);
    assert_memory_equal(x.a.lse, y.a.lse, (size_t)x.a.rows * x.a.nh * sizeof(float));
    for (int r = 0; r < RESULTS; r++)
        for (size_t i = 0; i < x.n[r]; i++)
            if (memcmp(x.got[r] + i * x.ld[r], y.got[r] + i * y.ld[r],
                       x.width[r] * sizeof(float)) != 0)
                fail_msg("heads of %u: %s differs in row %zu", d->hd, names[r], i);
    drop(&x);
    drop(&y);
}

TEST(kernels_of_hopper_have_the_bits_of_the_others)
{
    const char *module = getenv("FMSTORE_CUDA_MODULE"), *how[] = {"same", "other"};
    char *dir = tk_scratch(), *log = fm_path_join(dir, "wide.log");
    bool emulated = module && strstr(module, "emulated");

    setenv("SIMT_WIDE_LOG", log, 1);
    for (size_t n = 0; n < (emulated ? 2 : 1); n++) { /* another rounding: tried, never used */
        fm_backend *wide = open_card(true, how[n]);
        if (!wide)
            skip();
        fm_backend *plain = open_card(false, how[n]);
        for (size_t i = 0; i < (n == 0 ? FM_ARRAY_LEN(wide_shapes) : 2); i++) {
            same_bits(wide, plain, &wide_shapes[i]);
            size_t blocks = blocks_of(log), tried = i < 2 ? 6 : 0; /* at the first of a length */
            if (emulated && (n == 0 ? blocks <= tried : blocks != tried))
                fail_msg("%s, shape %zu: %zu blocks, of them %zu of the check", how[n], i, blocks,
                         tried);
        }
        fm_backend_close(wide);
        fm_backend_close(plain);
    }
    unsetenv("SIMT_WIDE");
    unsetenv("SIMT_WIDE_LOG");
    fm_free(log);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_and_its_gradient_equal_the_oracle),
        cmocka_unit_test(gradients_are_those_of_finite_differences),
        cmocka_unit_test(a_sequence_does_not_know_its_neighbours),
        cmocka_unit_test(longer_heads_are_mode_exacts),
        cmocka_unit_test(kernels_of_hopper_have_the_bits_of_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
