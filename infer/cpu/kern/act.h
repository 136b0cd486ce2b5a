/* act.h - layer norm, activations, softcaps and mixtures of rows; part of kern.c. */

/* Sums in the lane order: of x, or of (x - mean)^2. Lanes beyond h add +0. */
FMI_INLINE float lane_mean(const float *x, uint32_t h)
{
    vf sum = vf_zero();

    for (uint32_t i = 0; i < h; i += VF_LANES)
        sum = vf_add(sum, vf_load_upto(x + i, h - i));
    return vf_fold_add(sum) / (float)h;
}

FMI_INLINE float lane_variance(const float *x, uint32_t h, float mean)
{
    vf sum = vf_zero(), shift = vf_set1(mean);
    uint32_t i = 0;

    for (; i + VF_LANES <= h; i += VF_LANES) {
        vf d = vf_sub(vf_load(x + i), shift);
        sum = vf_fma(d, d, sum);
    }
    if (i < h) {
        float tail[VF_LANES] = {0};
        vf_store_n(tail, vf_sub(vf_load_n(x + i, h - i), shift), h - i);
        sum = vf_fma(vf_load(tail), vf_load(tail), sum);
    }
    return vf_fold_add(sum) / (float)h;
}

static void k_layernorm(float *y, const float *x, const float *gain, const float *bias, uint32_t m,
                        uint32_t h, size_t ldx, float eps)
{
    for (uint32_t row = 0; row < m; row++) {
        const float *xr = x + row * ldx;
        float *yr = y + row * ldx, mean = lane_mean(xr, h);
        vf shift = vf_set1(mean), scale = vf_set1(1.0f / sqrtf(lane_variance(xr, h, mean) + eps));
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            uint32_t n = h - i;
            vf v = vf_mul(vf_sub(vf_load_upto(xr + i, n), shift), scale);
            if (gain)
                v = vf_mul(v, vf_load_upto(gain + i, n));
            if (bias)
                v = vf_add(v, vf_load_upto(bias + i, n));
            vf_store_upto(yr + i, v, n);
        }
    }
}

FMI_INLINE vf act_of(fm_act f, vf x)
{
    switch (f) {
    case FM_ACT_GELU_TANH:
        return vf_gelu_tanh(x);
    case FM_ACT_GELU:
        return vf_gelu(x);
    case FM_ACT_RELU:
        return vf_max(vf_zero(), x); /* keeps NaN */
    case FM_ACT_RELU2:
        x = vf_max(vf_zero(), x);
        return vf_mul(x, x);
    case FM_ACT_CLAMPED:
        x = vf_min(vf_set1(FM_ACT_LIMIT), x); /* keeps NaN */
        return vf_mul(x, vf_sigmoid(vf_mul(x, vf_set1(FM_ACT_ALPHA))));
    case FM_ACT_SIGMOID:
        return vf_sigmoid(x);
    case FM_ACT_SILU:
        break;
    }
    return vf_mul(x, vf_sigmoid(x));
}

/* What f(gate) is multiplied by. */
FMI_INLINE vf act_factor(fm_act f, vf up)
{
    if (f != FM_ACT_CLAMPED)
        return up;
    up = vf_max(vf_set1(-FM_ACT_LIMIT), vf_min(vf_set1(FM_ACT_LIMIT), up));
    return vf_add(up, vf_set1(1.0f));
}

static void k_act(fm_act f, float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf v = act_of(f, vf_load_upto(gate + i, left));
        if (up)
            v = vf_mul(v, act_factor(f, vf_load_upto(up + i, left)));
        vf_store_upto(y + i, v, left);
    }
}

static void k_softcap(float *y, size_t n, float cap)
{
    vf c = vf_set1(cap);

    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf v = vf_tanh(vf_div(vf_load_upto(y + i, left), c));
        vf_store_upto(y + i, vf_mul(c, v), left);
    }
}

static void k_mix_rows(float *y, const float *x, size_t ldx, const int32_t *row,
                       const float *weight, uint32_t per, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = n - i;
        vf sum = vf_zero();
        for (uint32_t j = 0; j < per; j++)
            sum = vf_fma(vf_set1(weight[j]), vf_load_upto(x + (size_t)row[j] * ldx + i, left), sum);
        vf_store_upto(y + i, sum, left);
    }
}
