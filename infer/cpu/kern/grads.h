/* grads.h - gradients of layer norm, activations and softcaps, sums over columns, dropout;
 * part of kern.c. */

/* ---- layer norm ---- */

static void k_layernorm_stats(float *stat, const float *x, uint32_t m, uint32_t h, size_t ldx,
                              float eps)
{
    for (uint32_t row = 0; row < m; row++) {
        const float *xr = x + row * ldx;
        float mean = lane_mean(xr, h);
        stat[2 * row] = mean;
        stat[2 * row + 1] = 1.0f / sqrtf(lane_variance(xr, h, mean) + eps);
    }
}

FMI_INLINE vf gained(const float *dy, const float *gain, uint32_t i, uint32_t n)
{
    vf d = vf_load_upto(dy + i, n);
    return gain ? vf_mul(d, vf_load_upto(gain + i, n)) : d;
}

/* With g = dy * gain: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)). Lanes beyond h load 0 in
 * dy, so they add nothing to either sum. */
static void k_layernorm_dx(float *dx, const float *dy, const float *x, const float *gain,
                           const float *stat, uint32_t m, uint32_t h, size_t ldx, bool accumulate)
{
    for (uint32_t row = 0; row < m; row++) {
        const float *xr = x + row * ldx, *dyr = dy + row * ldx;
        float *dxr = dx + row * ldx;
        vf shift = vf_set1(stat[2 * row]), scale = vf_set1(stat[2 * row + 1]);
        vf sum = vf_zero(), dot = vf_zero();
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            vf g = gained(dyr, gain, i, h - i);
            vf xhat = vf_mul(vf_sub(vf_load_upto(xr + i, h - i), shift), scale);
            sum = vf_add(sum, g);
            dot = vf_fma(g, xhat, dot);
        }
        vf mean = vf_set1(vf_fold_add(sum) / (float)h);
        vf slope = vf_set1(0.0f - vf_fold_add(dot) / (float)h);
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            uint32_t n = h - i;
            vf g = vf_sub(gained(dyr, gain, i, n), mean);
            vf xhat = vf_mul(vf_sub(vf_load_upto(xr + i, n), shift), scale);
            vf d = vf_mul(scale, vf_fma(xhat, slope, g));
            if (accumulate)
                d = vf_add(vf_load_upto(dxr + i, n), d);
            vf_store_upto(dxr + i, d, n);
        }
    }
}

static void k_layernorm_columns(float *dgain, float *dbias, const float *dy, const float *x,
                                const float *stat, uint32_t m, uint32_t n, size_t ldx)
{
    for (uint32_t j = 0; j < n; j += VF_LANES) {
        vf gain = vf_zero(), bias = vf_zero();
        for (uint32_t row = 0; row < m; row++) {
            vf d = vf_load_upto(dy + row * ldx + j, n - j);
            vf xhat = vf_sub(vf_load_upto(x + row * ldx + j, n - j), vf_set1(stat[2 * row]));
            gain = vf_fma(d, vf_mul(xhat, vf_set1(stat[2 * row + 1])), gain);
            bias = vf_add(bias, d);
        }
        if (dgain)
            vf_store_upto(dgain + j, vf_add(vf_load_upto(dgain + j, n - j), gain), n - j);
        if (dbias)
            vf_store_upto(dbias + j, vf_add(vf_load_upto(dbias + j, n - j), bias), n - j);
    }
}

static void k_column_dots(float *dst, const float *dy, size_t lddy, const float *x, size_t ldx,
                          uint32_t m, uint32_t n)
{
    for (uint32_t j = 0; j < n; j += VF_LANES) {
        vf sum = vf_zero();
        for (uint32_t row = 0; row < m; row++)
            sum = vf_fma(vf_load_upto(dy + row * lddy + j, n - j),
                         vf_load_upto(x + row * ldx + j, n - j), sum);
        vf_store_upto(dst + j, vf_add(vf_load_upto(dst + j, n - j), sum), n - j);
    }
}

/* ---- elements ---- */

typedef struct act_slope {
    vf y, slope; /* f(x), f'(x) */
} act_slope;

/* s (1 + x (1 - s)): as in swiglu's gradient. */
FMI_INLINE act_slope silu_slope(vf x)
{
    const vf one = vf_set1(1.0f);
    vf s = vf_sigmoid(x);
    return (act_slope){vf_mul(x, s), vf_mul(s, vf_fma(x, vf_sub(one, s), one))};
}

/* The normal distribution's share below x, and the slope, which adds x times the density there. */
FMI_INLINE act_slope gelu_slope(vf x)
{
    vf tail = vf_normal_tail(x), sq = vf_min(vf_set1(400.0f), vf_mul(x, x));
    vf share = vf_pick(x, vf_zero(), vf_sub(vf_set1(1.0f), tail), tail);
    vf density = vf_mul(vf_exp(vf_mul(sq, vf_set1(-0.5f))), vf_set1(0.3989422804014327f));
    return (act_slope){vf_mul(x, share),
                       vf_fma(vf_pick(sq, vf_set1(399.0f), vf_zero(), x), density, share)};
}

/* x sigmoid(u): s + x s (1 - s) u'; beyond |x| = 20 s (1 - s) is 0, and u' must stay finite. */
FMI_INLINE act_slope gelu_tanh_slope(vf x)
{
    const vf one = vf_set1(1.0f), k = vf_set1(1.5957691216057308f);
    vf u = vf_mul(vf_fma(vf_mul(vf_mul(x, x), x), vf_set1(0.044715f), x), k);
    vf s = vf_sigmoid(u), sq = vf_min(vf_set1(400.0f), vf_mul(x, x));
    vf du = vf_mul(vf_fma(sq, vf_set1(3.0f * 0.044715f), one), k);
    vf near = vf_pick(sq, vf_set1(399.0f), vf_zero(), x);
    return (act_slope){vf_mul(x, s), vf_fma(vf_mul(near, du), vf_mul(s, vf_sub(one, s)), s)};
}

/* Constant behind the limit. */
FMI_INLINE act_slope clamped_slope(vf x)
{
    const vf one = vf_set1(1.0f), limit = vf_set1(FM_ACT_LIMIT);
    vf g = vf_min(limit, x), u = vf_mul(g, vf_set1(FM_ACT_ALPHA)), s = vf_sigmoid(u);
    vf slope = vf_mul(s, vf_fma(u, vf_sub(one, s), one));
    return (act_slope){vf_mul(g, s), vf_pick(x, limit, vf_zero(), slope)};
}

/* dup where up is inside of the limits, else 0. */
FMI_INLINE vf inside(fm_act f, vf up, vf dup)
{
    if (f != FM_ACT_CLAMPED)
        return dup;
    dup = vf_pick(up, vf_set1(FM_ACT_LIMIT), vf_zero(), dup);
    return vf_pick(vf_set1(-FM_ACT_LIMIT), up, vf_zero(), dup);
}

FMI_INLINE act_slope slope_of(fm_act f, vf x)
{
    switch (f) {
    case FM_ACT_GELU_TANH:
        return gelu_tanh_slope(x);
    case FM_ACT_GELU:
        return gelu_slope(x);
    case FM_ACT_RELU:
        return (act_slope){vf_max(vf_zero(), x), vf_pick(x, vf_zero(), vf_set1(1.0f), vf_zero())};
    case FM_ACT_RELU2:
        x = vf_max(vf_zero(), x);
        return (act_slope){vf_mul(x, x), vf_add(x, x)};
    case FM_ACT_CLAMPED:
        return clamped_slope(x);
    case FM_ACT_SIGMOID:
        x = vf_sigmoid(x);
        return (act_slope){x, vf_mul(x, vf_sub(vf_set1(1.0f), x))};
    case FM_ACT_SILU:
        break;
    }
    return silu_slope(x);
}

FMI_INLINE void act_grad_run(const fm_act f, float *dgate, float *dup, const float *dy,
                             const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        act_slope a = slope_of(f, vf_load_upto(gate + i, left));
        vf d = vf_load_upto(dy + i, left);
        vf u = up ? vf_load_upto(up + i, left) : vf_zero();
        if (dup)
            vf_store_upto(dup + i, inside(f, u, vf_mul(d, a.y)), left);
        if (up)
            d = vf_mul(d, act_factor(f, u));
        vf_store_upto(dgate + i, vf_mul(d, a.slope), left);
    }
}

static void k_act_grad(fm_act f, float *dgate, float *dup, const float *dy, const float *gate,
                       const float *up, size_t n)
{
    switch (f) {
    case FM_ACT_GELU_TANH:
        act_grad_run(FM_ACT_GELU_TANH, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_GELU:
        act_grad_run(FM_ACT_GELU, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_RELU:
        act_grad_run(FM_ACT_RELU, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_RELU2:
        act_grad_run(FM_ACT_RELU2, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_CLAMPED:
        act_grad_run(FM_ACT_CLAMPED, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_SIGMOID:
        act_grad_run(FM_ACT_SIGMOID, dgate, dup, dy, gate, up, n);
        break;
    case FM_ACT_SILU:
        act_grad_run(FM_ACT_SILU, dgate, dup, dy, gate, up, n);
        break;
    }
}

static void k_softcap_grad(float *dy, const float *y, size_t n, float cap)
{
    const vf c = vf_set1(cap), one = vf_set1(1.0f);

    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf t = vf_div(vf_load_upto(y + i, left), c);
        vf slope = vf_fma(vf_sub(vf_zero(), t), t, one);
        vf_store_upto(dy + i, vf_mul(vf_load_upto(dy + i, left), slope), left);
    }
}

static void k_multiply(float *y, const float *x, const float *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * w[i];
}

static void k_scale_to(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

static float k_dot(const float *a, const float *b, uint32_t n)
{
    return dot_lanes(a, b, n);
}

/* ---- dropout: sixteen blocks of Philox4x32-10 (store/base/math/rng.c) give 128 columns ---- */

#define PHILOX_ROUNDS 10

typedef struct philox {
    vu c[4];
} philox;

FMI_INLINE philox philox_blocks(uint64_t seed, uint64_t stream, uint64_t index)
{
    philox x = {{vu_add(vu_set1((uint32_t)index), vu_iota()), vu_set1((uint32_t)(index >> 32)),
                 vu_set1((uint32_t)stream), vu_set1((uint32_t)(stream >> 32))}};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#pragma GCC unroll 10
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        vu2 a = vu_product(x.c[0], 0xD2511F53u), b = vu_product(x.c[2], 0xCD9E8D57u);
        x = (philox){{vu_xor(vu_xor(b.hi, x.c[1]), vu_set1(k0)), b.lo,
                      vu_xor(vu_xor(a.hi, x.c[3]), vu_set1(k1)), a.lo}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return x;
}

/* Column j: block (j / 128) * 16 + j % 16 of the row, its 16-bit number (j / 16) % 8. A row has
 * 2^24 blocks; the lowest 4 bits of an index are a lane, so the addition above never carries. */
static void k_dropout(float *y, const float *x, size_t n, const fmi_dropout *d, uint64_t row)
{
    const vf scale = vf_set1(d->scale), zero = vf_zero();
    const vf limit = vf_set1((float)d->drop - 0.5f);

    for (size_t at = 0; at < n; at += 8 * VF_LANES) {
        philox p = philox_blocks(d->seed, d->stream, row << 24 | at / 8);
#pragma GCC unroll 4
        for (uint32_t w = 0; w < 4; w++) {
            vf half[2] = {vu_low_half(p.c[w]), vu_high_half(p.c[w])};
#pragma GCC unroll 2
            for (uint32_t k = 0; k < 2; k++) {
                size_t i = at + (2 * w + k) * VF_LANES;
                if (i >= n)
                    return;
                uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
                vf v = vf_mul(vf_load_upto(x + i, left), scale);
                v = vf_pick(half[k], limit, v, zero);
                if (d->accumulate)
                    v = vf_add(vf_load_upto(y + i, left), v);
                vf_store_upto(y + i, v, left);
            }
        }
    }
}
