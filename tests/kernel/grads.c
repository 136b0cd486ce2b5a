/* ctest: card */
/* Every gradient of the seam against finite differences of the oracle's forward.
 *
 * The loss is a fixed random combination of an operation's outputs, summed in double; its slope
 * along a random direction, by fourth-order central differences, must be the product of gradient
 * and direction. The oracle's gradients are tested here; the kernels' equal them in the files
 * beside this one, and are tested here once more (with KK_DEVICE=cuda the GPU's). */
#include "tests/kernel/kernel_kit.h"

/* The forward rounds its outputs to float: 6e-8 of an output over a step of 0.02 gives about 5e-6
 * of the slope; the fourth-order remainder is smaller. */
#define TOL_FD 1e-4

typedef struct fd {
    kk k;
    fm_backend *ref, *be; /* forwards run on ref, gradients on be */
    const uint32_t *dim;
    float *in[7], *grad[7];
    size_t n[7], inputs;
    float *out, *dout; /* dout: the loss's coefficients */
    size_t out_n;
    int32_t *label;
    float *aux; /* rstd, lse */
    void (*forward)(struct fd *f);
    void (*gradient)(struct fd *f);
} fd;

static void fd_in(fd *f, size_t n, double size)
{
    f->in[f->inputs] = kk_in(&f->k, n, size);
    f->grad[f->inputs] = kk_in(&f->k, n, 0.0);
    f->n[f->inputs++] = n;
}

static void fd_out(fd *f, size_t n)
{
    f->out = kk_in(&f->k, n, 0.0);
    f->dout = kk_in(&f->k, n, 1.0);
    f->out_n = n;
}

static double fd_loss(fd *f, size_t input, const float *origin, const float *direction, double step)
{
    double sum = 0.0;

    for (size_t i = 0; i < f->n[input]; i++)
        f->in[input][i] = (float)((double)origin[i] + step * (double)direction[i]);
    f->forward(f);
    for (size_t i = 0; i < f->out_n; i++)
        sum += (double)f->out[i] * (double)f->dout[i];
    memcpy(f->in[input], origin, f->n[input] * sizeof *origin);
    return sum;
}

static void fd_check_input(fd *f, size_t input, const char *what)
{
    const double h = 0x1p-6;
    float *origin = kk_in(&f->k, f->n[input], 0.0);
    float *direction = kk_in(&f->k, f->n[input], 1.0);
    double slope, dot = 0.0, norm = 0.0;

    memcpy(origin, f->in[input], f->n[input] * sizeof *origin);
    for (size_t i = 0; i < f->n[input]; i++) { /* steps of a power of two */
        direction[i] = direction[i] > 0.0f ? 1.0f : -1.0f;
        dot += (double)direction[i] * (double)f->grad[input][i];
        norm += (double)f->grad[input][i] * (double)f->grad[input][i];
    }
    slope = 8.0 * fd_loss(f, input, origin, direction, h);
    slope -= 8.0 * fd_loss(f, input, origin, direction, -h);
    slope -= fd_loss(f, input, origin, direction, 2 * h);
    slope += fd_loss(f, input, origin, direction, -2 * h);
    slope /= 12.0 * h;
    /* A random direction sees |gradient| of it, give or take: errors are held against that. */
    if (!(fabs(slope - dot) <= TOL_FD * sqrt(norm)) || !(norm > 0.0))
        fail_msg("%s, input %zu: slope %g, gradient says %g (norm %g)", what, input, slope, dot,
                 sqrt(norm));
}

static void fd_check(const char *what, void (*setup)(fd *f), const uint32_t *dim)
{
    for (int who = 0; who < 2; who++) {
        fd f = {.dim = dim};
        tk_ok(fm_backend_cpu_ref(&f.ref));
        f.k.be = f.be = kk_open_exact(NULL);
        setup(&f);
        f.forward(&f);
        if (who == 0) {
            fm_backend *be = f.be;
            f.be = f.ref;
            f.gradient(&f);
            f.be = be;
        } else {
            f.gradient(&f);
        }
        tk_ok(f.be->sync(f.be));
        for (size_t i = 0; i < f.inputs; i++)
            fd_check_input(&f, i, what);
        kk_gather(&f.k);
        fm_free(f.k.result);
        fm_backend_close(f.be);
        fm_backend_close(f.ref);
    }
}

/* ---- linear: x [m, k], w [n, k], bias [n]; as gemm for w ---- */

static void linear_forward(fd *f)
{
    fm_weight *w;

    tk_ok(f->ref->weight_new(f->ref, &w, FM_ROLE_LINEAR, FM_F32, f->dim[1], f->dim[2], f->in[1]));
    f->ref->linear(f->ref, f->out, f->dim[1], f->in[0], f->dim[2], w, f->in[2], NULL, f->dim[0]);
    f->ref->weight_free(f->ref, w);
}

static void linear_gradient(fd *f)
{
    uint32_t m = f->dim[0], n = f->dim[1], k = f->dim[2];
    fm_weight *w;

    tk_ok(f->be->weight_new(f->be, &w, FM_ROLE_LINEAR, FM_F32, n, k, f->in[1]));
    f->be->linear_dx(f->be, f->grad[0], k, f->dout, n, w, m, true);
    f->be->gemm(f->be, f->grad[1], k, f->dout, n, true, f->in[0], k, false, n, k, m, 1.0f, true);
    f->be->bias_grad(f->be, f->grad[2], f->dout, n, m, n);
    f->be->weight_free(f->be, w);
}

static void linear_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[2], 1.0);
    fd_in(f, (size_t)f->dim[1] * f->dim[2], 1.0);
    fd_in(f, f->dim[1], 1.0);
    fd_out(f, (size_t)f->dim[0] * f->dim[1]);
    f->forward = linear_forward;
    f->gradient = linear_gradient;
}

/* ---- embed: w [v, h]; rows repeat ---- */

static void embed_forward(fd *f)
{
    fm_weight *w;

    tk_ok(f->ref->weight_new(f->ref, &w, FM_ROLE_LINEAR, FM_F32, f->dim[1], f->dim[2], f->in[0]));
    f->ref->embed(f->ref, f->out, f->dim[2], w, f->label, NULL, f->dim[0]);
    f->ref->weight_free(f->ref, w);
}

static void embed_gradient(fd *f)
{
    f->be->embed_grad(f->be, f->grad[0], f->dout, f->dim[2], f->label, f->dim[0], f->dim[2]);
}

static void embed_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[1] * f->dim[2], 1.0);
    fd_out(f, (size_t)f->dim[0] * f->dim[2]);
    f->label = kk_shuffled(&f->k, f->dim[0]);
    for (uint32_t i = 0; i < f->dim[0]; i++)
        f->label[i] = f->label[i] % (int32_t)f->dim[1];
    f->forward = embed_forward;
    f->gradient = embed_gradient;
}

/* ---- rmsnorm: x [m, h], gain [h] ---- */

static void norm_forward(fd *f)
{
    f->ref->rmsnorm(f->ref, f->out, f->in[0], f->in[1], f->aux, f->dim[0], f->dim[1], f->dim[1],
                    1e-5f);
}

static void norm_gradient(fd *f)
{
    f->be->rmsnorm_grad(f->be, f->grad[0], f->grad[1], f->dout, f->in[0], f->in[1], f->aux,
                        f->dim[0], f->dim[1], f->dim[1], true);
}

static void norm_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 2.0);
    fd_in(f, f->dim[1], 1.0);
    fd_out(f, (size_t)f->dim[0] * f->dim[1]);
    f->aux = kk_in(&f->k, f->dim[0], 0.0);
    f->forward = norm_forward;
    f->gradient = norm_gradient;
}

/* ---- rope: x [m, heads * hd], in place; the gradient is the inverse ---- */

static void rope_run(fd *f, fm_backend *be, float *x, bool inverse)
{
    uint32_t m = f->dim[0], heads = f->dim[1], hd = f->dim[2];
    const float *cos_table = f->aux, *sin_table = f->aux + (size_t)m * hd / 2;

    be->rope(be, x, heads * hd, f->label, cos_table, sin_table, m, heads, hd, f->dim[3], inverse);
}

static void rope_forward(fd *f)
{
    memcpy(f->out, f->in[0], f->out_n * sizeof *f->out);
    rope_run(f, f->ref, f->out, false);
}

static void rope_gradient(fd *f)
{
    memcpy(f->grad[0], f->dout, f->out_n * sizeof *f->dout);
    rope_run(f, f->be, f->grad[0], true);
}

static void rope_setup(fd *f)
{
    size_t half = (size_t)f->dim[0] * f->dim[2] / 2;

    fd_in(f, (size_t)f->dim[0] * f->dim[1] * f->dim[2], 1.0);
    fd_out(f, f->n[0]);
    f->label = kk_shuffled(&f->k, f->dim[0]);
    f->aux = kk_in(&f->k, 2 * half, 3.0);
    for (size_t i = 0; i < half; i++) {
        float angle = f->aux[i];
        f->aux[i] = cosf(angle);
        f->aux[half + i] = sinf(angle);
    }
    f->forward = rope_forward;
    f->gradient = rope_gradient;
}

/* ---- swiglu: gate, up ---- */

static void swiglu_forward(fd *f)
{
    f->ref->swiglu(f->ref, f->out, f->in[0], f->in[1], f->out_n);
}

static void swiglu_gradient(fd *f)
{
    f->be->swiglu_grad(f->be, f->grad[0], f->grad[1], f->dout, f->in[0], f->in[1], f->out_n);
}

static void swiglu_setup(fd *f)
{
    fd_in(f, f->dim[0], 4.0);
    fd_in(f, f->dim[0], 2.0);
    fd_out(f, f->dim[0]);
    f->forward = swiglu_forward;
    f->gradient = swiglu_gradient;
}

/* ---- attention: q, k, v, virtual keys and values; dim: nh, nkv, hd, window, longest, virtual
 * positions, encoder, cap, sinks. Two sequences, one of them shorter by 5, share the virtual rows ---- */

static fm_attn_train attention_of(fd *f, fm_train_seq *seq)
{
    const uint32_t *d = f->dim;
    fm_attn_train a = {.rows = 2 * d[4] - 5,
                       .seqs = 2,
                       .nh = d[0],
                       .nkv = d[1],
                       .hd = d[2],
                       .window = d[3],
                       .encoder = d[6],
                       .scale = 0.5f,
                       .softcap = d[7] ? 1.5f : 0.0f,
                       .seq = seq,
                       .q = f->in[0],
                       .k = f->in[1],
                       .v = f->in[2],
                       .ldq = (size_t)d[0] * d[2],
                       .ldk = (size_t)d[1] * d[2],
                       .out = f->out,
                       .lse = f->aux,
                       .dout = f->dout,
                       .dq = f->grad[0],
                       .dk = f->grad[1],
                       .dv = f->grad[2]};

    for (uint32_t i = 0; i < 2; i++)
        seq[i] = (fm_train_seq){.begin = i ? d[4] : 0,
                                .len = i ? d[4] - 5 : d[4],
                                .virt = d[5],
                                .vk = f->in[3],
                                .vv = f->in[4],
                                .dvk = f->grad[3],
                                .dvv = f->grad[4],
                                .sink = d[8] ? f->in[5] : NULL,
                                .dsink = d[8] ? f->grad[5] : NULL};
    return a;
}

static void attention_run(fd *f)
{
    fm_train_seq seq[2];
    fm_attn_train a = attention_of(f, seq);

    f->ref->self_attention(f->ref, &a);
}

static void attention_gradient(fd *f)
{
    fm_train_seq seq[2];
    fm_attn_train a = attention_of(f, seq);

    f->be->self_attention_grad(f->be, &a);
}

static void attention_setup(fd *f)
{
    const uint32_t *d = f->dim;
    size_t rows = 2 * (size_t)d[4] - 5, kd = (size_t)d[1] * d[2];

    fd_in(f, rows * d[0] * d[2], 1.0);
    fd_in(f, rows * kd, 1.0);
    fd_in(f, rows * kd, 1.0);
    if (d[5]) {
        fd_in(f, d[5] * kd, 1.0);
        fd_in(f, d[5] * kd, 1.0);
    }
    if (d[8])
        fd_in(f, d[0], 2.0);
    fd_out(f, f->n[0]);
    f->aux = kk_in(&f->k, rows * d[0], 0.0);
    f->forward = attention_run;
    f->gradient = attention_gradient;
}

/* ---- convolve: channels, kernel, with gates, bias and silu. Two sequences ---- */

#define RECUR_ROWS 17u

static fm_state_rows two_sequences(void)
{
    static int32_t row[RECUR_ROWS], from[RECUR_ROWS], to[RECUR_ROWS];

    for (uint32_t i = 0; i < RECUR_ROWS; i++) {
        row[i] = (int32_t)i;
        from[i] = i == 0 || i == 6 ? FM_STATE_NONE : FM_STATE_ON;
        to[i] = FM_STATE_NONE;
    }
    return (fm_state_rows){.row = row, .from = from, .to = to, .m = RECUR_ROWS};
}

static fm_convolve convolve_of(fd *f)
{
    const uint32_t *d = f->dim;

    return (fm_convolve){.rows = two_sequences(),
                         .y = f->out,
                         .ldy = d[0],
                         .x = f->in[0],
                         .before = d[2] ? f->in[2] : NULL,
                         .after = d[2] ? f->in[3] : NULL,
                         .ldx = d[0],
                         .weight = f->in[1],
                         .bias = d[2] ? f->in[4] : NULL,
                         .channels = d[0],
                         .kernel = d[1],
                         .silu = d[2]};
}

static void convolve_run(fd *f)
{
    fm_convolve c = convolve_of(f);

    f->ref->convolve(f->ref, &c);
}

static void convolve_gradient(fd *f)
{
    bool all = f->dim[2];
    fm_convolve_grad g = {.c = convolve_of(f),
                          .dy = f->dout,
                          .lddy = f->dim[0],
                          .dx = f->grad[0],
                          .dbefore = all ? f->grad[2] : NULL,
                          .dafter = all ? f->grad[3] : NULL,
                          .lddx = f->dim[0],
                          .dweight = f->grad[1],
                          .dbias = all ? f->grad[4] : NULL};

    f->be->convolve_grad(f->be, &g);
}

static void convolve_setup(fd *f)
{
    size_t n = (size_t)RECUR_ROWS * f->dim[0];

    fd_in(f, n, 1.0);
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 1.0);
    if (f->dim[2]) {
        fd_in(f, n, 1.0);
        fd_in(f, n, 1.0);
        fd_in(f, f->dim[0], 1.0);
    }
    fd_out(f, n);
    f->forward = convolve_run;
    f->gradient = convolve_gradient;
}

/* ---- scan: heads, hd, groups, n, by channel. Two sequences; no step is at its limits ---- */
static fm_scan scan_of(fd *f)
{
    const uint32_t *d = f->dim;
    uint32_t n = d[0] * d[1], own = d[4] ? n : d[0];

    return (fm_scan){.rows = two_sequences(),
                     .y = f->out,
                     .ldy = n,
                     .x = f->in[0],
                     .ldx = n,
                     .b = f->in[1],
                     .c = f->in[2],
                     .ldb = d[2] * d[3],
                     .dt = f->in[3],
                     .lddt = own,
                     .a_log = f->in[4],
                     .d = f->in[5],
                     .dt_bias = f->in[6],
                     .heads = d[0],
                     .hd = d[1],
                     .groups = d[2],
                     .n = d[3],
                     .dt_min = 0.001f,
                     .dt_max = INFINITY,
                     .by_channel = d[4]};
}

static void scan_run(fd *f)
{
    fm_scan s = scan_of(f);

    f->ref->scan(f->ref, &s);
}

static void scan_gradient(fd *f)
{
    fm_scan_grad g = {.s = scan_of(f),
                      .dy = f->dout,
                      .dx = f->grad[0],
                      .db = f->grad[1],
                      .dc = f->grad[2],
                      .ddt = f->grad[3],
                      .da_log = f->grad[4],
                      .dd = f->grad[5],
                      .ddt_bias = f->grad[6],
                      .work = f->aux};
    g.lddy = g.s.ldy;
    g.lddx = g.s.ldx;
    g.lddb = g.s.ldb;
    g.ldddt = g.s.lddt;
    f->be->scan_grad(f->be, &g);
}

static void scan_setup(fd *f)
{
    const uint32_t *d = f->dim;
    uint32_t n = d[0] * d[1], own = d[4] ? n : d[0];
    const size_t sizes[] = {(size_t)RECUR_ROWS * n,
                            (size_t)RECUR_ROWS * d[2] * d[3],
                            (size_t)RECUR_ROWS * d[2] * d[3],
                            (size_t)RECUR_ROWS * own,
                            d[4] ? (size_t)n * d[3] : own,
                            own,
                            own};

    for (size_t i = 0; i < FM_ARRAY_LEN(sizes); i++)
        fd_in(f, sizes[i], 1.0);
    fd_out(f, (size_t)RECUR_ROWS * n);
    const fm_scan s = scan_of(f);
    f->aux = kk_in(&f->k, fm_scan_grad_floats(&s), 0.0);
    f->forward = scan_run;
    f->gradient = scan_gradient;
}

/* ---- delta: heads of keys, of values, dk, dv ---- */
static fm_delta delta_of(fd *f)
{
    const uint32_t *d = f->dim;
    uint32_t q = d[0] * d[2], v = d[1] * d[3];

    return (fm_delta){.rows = two_sequences(),
                      .y = f->out,
                      .ldy = v,
                      .q = f->in[0],
                      .k = f->in[0] + q,
                      .v = f->in[0] + 2 * (size_t)q,
                      .ldx = 2 * q + v,
                      .a = f->in[1],
                      .b = f->in[2],
                      .lda = d[1],
                      .a_log = f->in[3],
                      .dt_bias = f->in[4],
                      .hk = d[0],
                      .hv = d[1],
                      .dk = d[2],
                      .dv = d[3]};
}

static void delta_run(fd *f)
{
    fm_delta d = delta_of(f);

    f->ref->delta(f->ref, &d);
}

static void delta_gradient(fd *f)
{
    uint32_t q = f->dim[0] * f->dim[2];
    fm_delta_grad g = {.d = delta_of(f),
                       .dy = f->dout,
                       .dq = f->grad[0],
                       .dk = f->grad[0] + q,
                       .dv = f->grad[0] + 2 * (size_t)q,
                       .da = f->grad[1],
                       .db = f->grad[2],
                       .da_log = f->grad[3],
                       .ddt_bias = f->grad[4],
                       .work = f->aux};
    g.lddy = g.d.ldy;
    g.lddx = g.d.ldx;
    g.ldda = g.d.lda;
    f->be->delta_grad(f->be, &g);
}

static void delta_setup(fd *f)
{
    const uint32_t *d = f->dim;
    uint32_t wide = 2 * d[0] * d[2] + d[1] * d[3];

    fd_in(f, (size_t)RECUR_ROWS * wide, 1.0);
    fd_in(f, (size_t)RECUR_ROWS * d[1], 1.0);
    fd_in(f, (size_t)RECUR_ROWS * d[1], 1.0);
    fd_in(f, d[1], 1.0);
    fd_in(f, d[1], 1.0);
    fd_out(f, (size_t)RECUR_ROWS * d[1] * d[3]);
    const fm_delta t = delta_of(f);
    f->aux = kk_in(&f->k, fm_delta_grad_floats(&t), 0.0);
    f->forward = delta_run;
    f->gradient = delta_gradient;
}

/* The same with a bias by distance; the window of an encoder reaches to both sides. */
static float near_bias[4][128];

static fm_attn_train near_of(fd *f, fm_train_seq *seq)
{
    fm_attn_train a = attention_of(f, seq);

    for (uint32_t i = 0; i < 2; i++)
        seq[i].bias = &near_bias[0][0];
    a.bias_ld = 128;
    a.bias_zero = 64;
    return a;
}

static void near_run(fd *f)
{
    fm_train_seq seq[2];
    fm_attn_train a = near_of(f, seq);

    f->ref->self_attention(f->ref, &a);
}

static void near_gradient(fd *f)
{
    fm_train_seq seq[2];
    fm_attn_train a = near_of(f, seq);

    f->be->self_attention_grad(f->be, &a);
}

static void near_setup(fd *f)
{
    for (size_t i = 0; i < 4 * 128; i++)
        near_bias[i / 128][i % 128] = (float)(i % 13) / 6.0f - 1.0f;
    attention_setup(f);
    f->forward = near_run;
    f->gradient = near_gradient;
}

/* ---- layer norm: x [m, h], gain, bias ---- */

static void layernorm_forward(fd *f)
{
    f->ref->layernorm(f->ref, f->out, f->in[0], f->in[1], f->in[2], f->dim[0], f->dim[1], f->dim[1],
                      1e-5f);
}

static void layernorm_gradient(fd *f)
{
    f->be->layernorm_grad(f->be, f->grad[0], f->grad[1], f->grad[2], f->dout, f->in[0], f->in[1],
                          f->dim[0], f->dim[1], f->dim[1], 1e-5f, true);
}

static void layernorm_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 2.0);
    fd_in(f, f->dim[1], 1.0);
    fd_in(f, f->dim[1], 1.0);
    fd_out(f, f->n[0]);
    f->forward = layernorm_forward;
    f->gradient = layernorm_gradient;
}

/* ---- act: gate, up; dim: function, m, n, gated. RELU's gate keeps away from its corner ---- */

static void act_forward(fd *f)
{
    uint32_t m = f->dim[1], n = f->dim[2];

    f->ref->act(f->ref, (fm_act)f->dim[0], f->out, n, f->in[0], n, f->dim[3] ? f->in[1] : NULL, n,
                m, n);
}

static void act_gradient(fd *f)
{
    uint32_t m = f->dim[1], n = f->dim[2];

    f->be->act_grad(f->be, (fm_act)f->dim[0], f->grad[0], n, f->dim[3] ? f->grad[1] : NULL, n,
                    f->dout, n, f->in[0], n, f->dim[3] ? f->in[1] : NULL, n, m, n);
}

static void act_setup(fd *f)
{
    size_t n = (size_t)f->dim[1] * f->dim[2];

    fd_in(f, n, 4.0);
    for (size_t i = 0; i < n; i++)
        if (f->dim[0] >= FM_ACT_RELU && fabsf(f->in[0][i]) < 0.1f)
            f->in[0][i] += 0.5f;
    if (f->dim[3])
        fd_in(f, n, 2.0);
    fd_out(f, n);
    f->forward = act_forward;
    f->gradient = act_gradient;
}

/* ---- softcap: y, in place ---- */

static void softcap_forward(fd *f)
{
    memcpy(f->out, f->in[0], f->out_n * sizeof *f->out);
    f->ref->softcap(f->ref, f->out, f->dim[1], f->dim[0], f->dim[1], 3.0f);
}

static void softcap_gradient(fd *f)
{
    softcap_forward(f);
    memcpy(f->grad[0], f->dout, f->out_n * sizeof *f->dout);
    f->be->softcap_grad(f->be, f->grad[0], f->dim[1], f->out, f->dim[1], f->dim[0], f->dim[1],
                        3.0f);
}

static void softcap_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 6.0);
    fd_out(f, f->n[0]);
    f->forward = softcap_forward;
    f->gradient = softcap_gradient;
}

/* ---- scales by column: x [m, n], scale [n] ---- */

static void scales_forward(fd *f)
{
    memcpy(f->out, f->in[0], f->out_n * sizeof *f->out);
    f->ref->affine(f->ref, f->out, f->dim[1], f->dim[1], f->in[1], NULL, 0, f->dim[0], NULL);
}

static void scales_gradient(fd *f)
{
    f->be->scale_grad(f->be, f->grad[0], f->dim[1], f->grad[1], f->dout, f->dim[1], f->in[0],
                      f->dim[1], f->in[1], f->dim[0], f->dim[1]);
}

static void scales_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 1.0);
    fd_in(f, f->dim[1], 1.0);
    fd_out(f, f->n[0]);
    f->forward = scales_forward;
    f->gradient = scales_gradient;
}

/* ---- dropout: x; its gradient is itself ---- */

static void dropout_forward(fd *f)
{
    f->ref->dropout(f->ref, f->out, f->dim[1], f->in[0], f->dim[1], f->dim[0], f->dim[1], 0.3f, 5,
                    9, 70, false);
}

static void dropout_gradient(fd *f)
{
    f->be->dropout(f->be, f->grad[0], f->dim[1], f->dout, f->dim[1], f->dim[0], f->dim[1], 0.3f, 5,
                   9, 70, true);
}

static void dropout_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 1.0);
    fd_out(f, f->n[0]);
    f->forward = dropout_forward;
    f->gradient = dropout_gradient;
}

/* ---- cross entropy: logits [m, v]; every row counts by the same dloss ---- */

#define DLOSS 0.25f

static void loss_forward(fd *f)
{
    memcpy(f->aux, f->in[0], f->n[0] * sizeof *f->aux);
    f->ref->cross_entropy(f->ref, f->out, f->aux, f->dim[1], f->label, f->dim[0], f->dim[1], DLOSS);
}

static void loss_gradient(fd *f)
{
    memcpy(f->grad[0], f->in[0], f->n[0] * sizeof *f->aux);
    f->be->cross_entropy(f->be, f->out, f->grad[0], f->dim[1], f->label, f->dim[0], f->dim[1],
                         DLOSS);
}

static void loss_setup(fd *f)
{
    fd_in(f, (size_t)f->dim[0] * f->dim[1], 3.0);
    fd_out(f, f->dim[0]);
    for (size_t i = 0; i < f->out_n; i++)
        f->dout[i] = DLOSS;
    f->aux = kk_in(&f->k, f->n[0], 0.0);
    f->label = kk_shuffled(&f->k, f->dim[0]);
    for (uint32_t i = 0; i < f->dim[0]; i++)
        f->label[i] = i % 4 == 3 ? -100 : (int32_t)((uint32_t)f->label[i] % f->dim[1]);
    f->forward = loss_forward;
    f->gradient = loss_gradient;
}

TEST(products_have_the_right_slopes)
{
    static const uint32_t linear[] = {5, 33, 37}, embed[] = {20, 7, 33};

    fd_check("linear", linear_setup, linear);
    fd_check("embed", embed_setup, embed);
}

TEST(elements_have_the_right_slopes)
{
    static const uint32_t norm[] = {6, 45}, rope[] = {5, 3, 10, 0}, turns[] = {5, 3, 10, 1},
                          swiglu[] = {333};
    static const uint32_t drop[] = {5, 333};

    fd_check("rmsnorm", norm_setup, norm);
    fd_check("rope", rope_setup, rope);
    fd_check("rope of pairs", rope_setup, turns);
    fd_check("swiglu", swiglu_setup, swiglu);
    fd_check("layernorm", layernorm_setup, norm);
    fd_check("softcap", softcap_setup, norm);
    fd_check("scales", scales_setup, norm);
    fd_check("dropout", dropout_setup, drop);
    for (uint32_t f = FM_ACT_SILU; f <= FM_ACT_SIGMOID; f++)
        for (uint32_t gated = 0; gated < 2; gated++) {
            const uint32_t act[] = {f, 7, 37, gated};
            fd_check("act", act_setup, act);
        }
}

TEST(attention_has_the_right_slopes)
{
    static const uint32_t all[] = {4, 2, 6, 0, 37, 0, 0, 0, 0};
    static const uint32_t window[] = {3, 1, 18, 5, 40, 0, 0, 0, 0};
    static const uint32_t prefix[] = {4, 2, 10, 6, 22, 7, 0, 0, 0};
    static const uint32_t encoder[] = {2, 2, 8, 0, 24, 3, 1, 0, 0};
    static const uint32_t cap[] = {4, 1, 6, 0, 30, 2, 0, 1, 0};
    static const uint32_t sinks[] = {4, 2, 8, 7, 30, 3, 0, 0, 1};

    fd_check("attention", attention_setup, all);
    fd_check("attention with a window", attention_setup, window);
    fd_check("attention with virtual positions and a window", attention_setup, prefix);
    fd_check("attention of an encoder", attention_setup, encoder);
    fd_check("attention with a cap", attention_setup, cap);
    if (!getenv("KK_DEVICE")) { /* no card has these */
        fd_check("attention with sinks", attention_setup, sinks);
        static const uint32_t near[] = {2, 2, 8, 6, 24, 3, 1, 0, 0};
        fd_check("attention with biases", near_setup, all);
        fd_check("attention with virtual positions and biases", near_setup, prefix);
        fd_check("attention near an encoder's rows", near_setup, near);
        fd_check("attention with a cap and biases", near_setup, cap);
    }
}

TEST(recurrences_have_the_right_slopes)
{
    static const uint32_t plain[] = {5, 4, 0}, gated[] = {19, 3, 1}, single[] = {3, 1, 1};
    static const uint32_t heads[] = {4, 19, 2, 5, 0}, channels[] = {1, 21, 1, 3, 1};
    static const uint32_t delta[] = {2, 4, 5, 19};

    kk_cpu_only();
    fd_check("convolve", convolve_setup, plain);
    fd_check("convolve with gates, bias and silu", convolve_setup, gated);
    fd_check("convolve with one weight", convolve_setup, single);
    fd_check("scan by head", scan_setup, heads);
    fd_check("scan by channel", scan_setup, channels);
    fd_check("delta", delta_setup, delta);
}

TEST(losses_have_the_right_slopes)
{
    static const uint32_t loss[] = {9, 55};

    fd_check("cross_entropy", loss_setup, loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_right_slopes),
        cmocka_unit_test(elements_have_the_right_slopes),
        cmocka_unit_test(attention_has_the_right_slopes),
        cmocka_unit_test(recurrences_have_the_right_slopes),
        cmocka_unit_test(losses_have_the_right_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
