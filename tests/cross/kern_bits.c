/* kern_bits.c - two tables of exact kernels on the same inputs, bit for bit: run on another CPU (or
 * its emulator), where the test programs and their libraries are not at hand. Exit 0: equal. */
#include <stdio.h>
#include <string.h>

#include "infer/cpu/kern/kern.h"

#if defined(__aarch64__)
#define VECTOR fmi_kern_neon
#else
#define VECTOR fmi_kern_avx2
#endif

#define N 4096
#define M 13
#define K 517
#define COLS 29

static float in_a[M * K], in_b[K * FMI_PANEL], in_c[N], out[2][6][N];
static float scratch[1 << 20];
static uint32_t seed;
static int failures;

static float noise(float size)
{
    seed = seed * 1664525u + 1013904223u;
    return size * ((float)(int32_t)seed / 2147483648.0f);
}

static void fill(float *x, size_t n, float size)
{
    for (size_t i = 0; i < n; i++)
        x[i] = noise(size);
}

static void check(const char *what)
{
    if (memcmp(out[0], out[1], sizeof out[0]) == 0)
        return;
    failures++;
    (void)fprintf(stderr, "%s differs between %s and %s\n", what, fmi_kern_generic.isa, VECTOR.isa);
}

static void products(const fmi_kern *k, float (*o)[N])
{
    const fmi_epilogue epi = {.alpha = 0.75f, .add = true, .bias = in_c};
    k->pack_a(scratch, in_a, K, NULL, false, M, K);
    k->product(o[0], COLS, NULL, scratch, M, in_b, COLS, K, &epi);
    k->row_product(o[1], in_a, in_a, K, M, K, &(fmi_epilogue){.alpha = 1.0f});
    k->transpose(o[2], FMI_PANEL, in_a, K, M, 40);
    k->copy_panel(o[3], in_a, K, COLS, M);
}

static void elements(const fmi_kern *k, float (*o)[N])
{
    k->swiglu(o[0], in_a, in_b, 1001);
    k->swiglu_grad(o[1], o[2], in_c, in_a, in_b, 1001);
    k->add(o[3], in_a, 1001);
    k->scale(o[4], 0.3f, 1001);
    double sum = k->sum_squares(in_a, 5003);
    memcpy(o[5], &sum, sizeof sum);
}

static void norms(const fmi_kern *k, float (*o)[N])
{
    static const int32_t label[M] = {3, -1, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    k->rmsnorm(o[0], in_a, in_c, o[1], 5, 301, 301, 1e-5f);
    k->rmsnorm_dx(o[2], in_b, in_a, in_c, o[1], 5, 301, 301, true);
    k->column_sum(o[3], in_b, in_a, o[1], 5, 301, 301);
    k->logsumexp(o[1] + 64, in_a, 301, 5, 301);
    k->cross_entropy(o[1] + 128, o[4], 301, label, M, 301, 0.25f);
    const fmi_adamw w = {0.999f, 0.1f, 0.999f, 0.001f, 1e-3f, 0.03f, 1e-8f, 0.7f};
    for (size_t i = 0; i < 999; i++)
        o[5][i + 2000] = in_c[i] * in_c[i];
    k->adamw(o[5], o[5] + 1000, o[5] + 2000, in_a, 999, &w);
}

static void attention(const fmi_kern *k, float (*o)[N])
{
    enum { G = 3, HD = 24, LAST = 75, T = 40 };
    const float *page[] = {in_b, in_b + 800, in_b + 1600};
    const fmi_attn a = {.out = o[0],
                        .q = in_a,
                        .out_stride = HD,
                        .q_stride = HD,
                        .lse = o[1],
                        .lse_stride = 1,
                        .kpage = page,
                        .vpage = page,
                        .ldv = HD,
                        .score = scratch,
                        .g = G,
                        .first = 3,
                        .last = LAST,
                        .hd = HD,
                        .scale = 0.3f};
    k->attention(&a);
    static const float *kpage[2] = {scratch, scratch + 32 * HD};
    static const float *vpage[2] = {scratch + 64 * HD, scratch + 96 * HD};
    float *p = scratch + 128 * HD, *ds = p + FMI_GRAD_ROWS * 64;
    fmi_attn_seq s = {.q = in_a,
                      .k = in_b,
                      .v = in_b + 1000,
                      .ldq = HD,
                      .ldk = HD,
                      .out = o[5],
                      .dout = in_a + 3,
                      .ldo = HD,
                      .lse = o[1] + 100,
                      .dq = o[2],
                      .dk = o[3],
                      .dv = o[4],
                      .kpage = kpage,
                      .vpage = vpage,
                      .g = 1,
                      .len = T,
                      .hd = HD,
                      .window = 17,
                      .scale = 0.2f,
                      .softcap = 3.0f};
    k->attn_pages(scratch, s.k, HD, T, HD);
    k->attn_pages(scratch + 64 * HD, s.v, HD, T, HD);
    for (uint32_t i = 0; i < T; i += 4)
        k->attn_rows(&s, 0, i, 4, p);
    for (uint32_t i = 0; i < T; i += FMI_GRAD_ROWS) {
        k->attn_grad_rows(&s, 0, i, FMI_GRAD_ROWS, p, ds);
        k->attn_spread(&s, 0, i, FMI_GRAD_ROWS, p, ds, 0, 64);
    }
}

/* What training adds to them. */
static void training(const fmi_kern *k, float (*o)[N])
{
    const fmi_dropout drop = {.seed = 5, .stream = 6, .drop = 9000, .scale = 1.25f};
    k->layernorm_stats(o[0], in_a, 5, 301, 301, 1e-5f);
    k->layernorm_dx(o[1], in_b, in_a, in_c, o[0], 5, 301, 301, true);
    k->layernorm_columns(o[2], o[2] + 400, in_b, in_a, o[0], 5, 301, 301);
    k->act_grad(FM_ACT_GELU, o[3], o[3] + 1001, in_c, in_a, in_b, 1001);
    k->act_grad(FM_ACT_GELU_TANH, o[4], o[4] + 1001, in_c, in_a, in_b, 1001);
    k->dropout(o[5], in_a, 1001, &drop, 77);
    k->softcap_grad(o[5], in_b, 1001, 30.0f);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(const fmi_kern *k, float (*o)[N]);
        float size;
    } part[] = {{"products", products, 1.0f},
                {"elements", elements, 20.0f},
                {"norms and losses", norms, 5.0f},
                {"attention", attention, 2.0f},
                {"training", training, 3.0f}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        seed = 7;
        fill(in_a, M * K, part[i].size);
        fill(in_b, K * FMI_PANEL, part[i].size);
        fill(in_c, N, part[i].size);
        fill(out[0][0], 6 * N, part[i].size);
        memcpy(out[1], out[0], sizeof out[0]);
        part[i].run(&fmi_kern_generic, out[0]);
        part[i].run(&VECTOR, out[1]);
        check(part[i].name);
    }
    (void)printf("%s against %s: %d of 5 parts differ\n", VECTOR.isa, fmi_kern_generic.isa,
                 failures);
    return failures != 0;
}
