/* elem.h - element-wise operations, norms, losses and the optimizer; part of kern.c.
 * Reductions keep sixteen sums, element i in lane i % 16, ascending, and fold them by halves. */

static void k_swiglu(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf g = vf_load_upto(gate + i, left), u = vf_load_upto(up + i, left);
        vf_store_upto(y + i, vf_mul(vf_mul(g, vf_sigmoid(g)), u), left);
    }
}

/* s = sigmoid(gate): d silu / d gate = s (1 + gate (1 - s)). */
static void k_swiglu_grad(float *dgate, float *dup, const float *dy, const float *gate,
                          const float *up, size_t n)
{
    const vf one = vf_set1(1.0f);

    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf g = vf_load_upto(gate + i, left), u = vf_load_upto(up + i, left);
        vf d = vf_load_upto(dy + i, left), s = vf_sigmoid(g);
        vf slope = vf_mul(s, vf_fma(g, vf_sub(one, s), one));
        vf_store_upto(dup + i, vf_mul(d, vf_mul(g, s)), left);
        vf_store_upto(dgate + i, vf_mul(vf_mul(d, u), slope), left);
    }
}

static void k_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void k_scale(float *y, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * s;
}

/* Elements 2i and 2i + 1 of a head turn together, with the roundings of k_rope's lanes. */
FMI_INLINE void turn_pairs(float *x, const float *c, const float *s, uint32_t half, float sign)
{
    for (uint32_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], turn = sign * s[i];
        x[2 * i] = fmaf(b, 0.0f - turn, a * c[i]);
        x[2 * i + 1] = fmaf(a, turn, b * c[i]);
    }
}

static void k_rope(float *x, size_t ldx, const int32_t *pos, const float *cos_table,
                   const float *sin_table, uint32_t m, uint32_t heads, uint32_t hd, bool pairs,
                   bool inverse)
{
    uint32_t half = hd / 2;
    vf sign = vf_set1(inverse ? -1.0f : 1.0f);

    for (uint32_t row = 0; row < m; row++) {
        const float *ct = cos_table + (size_t)pos[row] * half;
        const float *st = sin_table + (size_t)pos[row] * half;
        for (uint32_t head = 0; head < heads; head++) {
            float *lo = x + row * ldx + (size_t)head * hd, *hi = lo + half;
            if (pairs)
                turn_pairs(lo, ct, st, half, inverse ? -1.0f : 1.0f);
            for (uint32_t i = 0; !pairs && i < half; i += VF_LANES) {
                uint32_t n = half - i;
                vf c = vf_load_upto(ct + i, n), s = vf_mul(sign, vf_load_upto(st + i, n));
                vf a = vf_load_upto(lo + i, n), b = vf_load_upto(hi + i, n);
                vf neg = vf_sub(vf_zero(), s);
                vf_store_upto(lo + i, vf_fma(b, neg, vf_mul(a, c)), n);
                vf_store_upto(hi + i, vf_fma(a, s, vf_mul(b, c)), n);
            }
        }
    }
}

FMI_INLINE float dot_lanes(const float *a, const float *b, uint32_t n)
{
    vf sum = vf_zero();

    for (uint32_t i = 0; i < n; i += VF_LANES)
        sum = vf_fma(vf_load_upto(a + i, n - i), vf_load_upto(b + i, n - i), sum);
    return vf_fold_add(sum);
}

static void k_rmsnorm(float *y, const float *x, const float *gain, float *rstd_out, uint32_t m,
                      uint32_t h, size_t ldx, float eps)
{
    for (uint32_t row = 0; row < m; row++) {
        const float *xr = x + row * ldx;
        float *yr = y + row * ldx;
        float rstd = 1.0f / sqrtf(dot_lanes(xr, xr, h) / (float)h + eps);
        vf scale = vf_set1(rstd);
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            uint32_t n = h - i;
            vf v = vf_mul(vf_load_upto(xr + i, n), scale);
            vf_store_upto(yr + i, vf_mul(v, vf_load_upto(gain + i, n)), n);
        }
        if (rstd_out)
            rstd_out[row] = rstd;
    }
}

/* With g = dy * gain, xhat = x * rstd: dx = rstd * (g - xhat * mean(g * xhat)). */
static void k_rmsnorm_dx(float *dx, const float *dy, const float *x, const float *gain,
                         const float *rstd, uint32_t m, uint32_t h, size_t ldx, bool accumulate)
{
    for (uint32_t row = 0; row < m; row++) {
        const float *xr = x + row * ldx, *dyr = dy + row * ldx;
        float *dxr = dx + row * ldx;
        vf scale = vf_set1(rstd[row]), sum = vf_zero(), mean;
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            uint32_t n = h - i;
            vf g = vf_mul(vf_load_upto(dyr + i, n), vf_load_upto(gain + i, n));
            sum = vf_fma(g, vf_mul(vf_load_upto(xr + i, n), scale), sum);
        }
        mean = vf_set1(0.0f - vf_fold_add(sum) / (float)h);
        for (uint32_t i = 0; i < h; i += VF_LANES) {
            uint32_t n = h - i;
            vf g = vf_mul(vf_load_upto(dyr + i, n), vf_load_upto(gain + i, n));
            vf d = vf_mul(scale, vf_fma(vf_mul(vf_load_upto(xr + i, n), scale), mean, g));
            if (accumulate)
                d = vf_add(vf_load_upto(dxr + i, n), d);
            vf_store_upto(dxr + i, d, n);
        }
    }
}

/* Four vectors of columns at a time, so that the row loop is not one chain of additions. */
FMI_INLINE void column_sum4(float *dst, const float *dy, const float *x, const float *rstd,
                            uint32_t m, uint32_t n, size_t ld)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    uint32_t vectors = (n + VF_LANES - 1) / VF_LANES;

    for (uint32_t row = 0; row < m; row++)
        for (uint32_t j = 0; j < vectors; j++) {
            size_t at = row * ld + j * VF_LANES;
            uint32_t left = n - j * VF_LANES;
            vf d = vf_load_upto(dy + at, left);
            if (x)
                sum[j] = vf_fma(d, vf_mul(vf_load_upto(x + at, left), vf_set1(rstd[row])), sum[j]);
            else
                sum[j] = vf_add(sum[j], d);
        }
    for (uint32_t j = 0; j < vectors; j++) {
        float *out = dst + j * VF_LANES;
        uint32_t left = n - j * VF_LANES;
        vf_store_upto(out, vf_add(vf_load_upto(out, left), sum[j]), left);
    }
}

static void k_column_sum(float *dst, const float *dy, const float *x, const float *rstd, uint32_t m,
                         uint32_t n, size_t ld)
{
    for (uint32_t j = 0; j < n; j += 4 * VF_LANES)
        column_sum4(dst + j, dy + j, x ? x + j : NULL, rstd, m,
                    n - j < 4 * VF_LANES ? n - j : 4 * VF_LANES, ld);
}

static float row_max(const float *x, uint32_t n)
{
    vf best = vf_set1(-INFINITY), other = best; /* two chains: either may win */
    uint32_t at = 0;

    for (; at + 2 * VF_LANES <= n; at += 2 * VF_LANES) {
        best = vf_max(vf_load(x + at), best);
        other = vf_max(vf_load(x + at + VF_LANES), other);
    }
    if (at + VF_LANES <= n)
        best = vf_max(vf_load(x + at), best);
    float max = vf_fold_max(vf_max(other, best));
    for (uint32_t i = n / VF_LANES * VF_LANES; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* Sum of e^(x - max) in the lane order; lanes beyond n add +0. y: receives the terms, or NULL. */
FMI_INLINE float row_exp_sum(float *y, const float *x, uint32_t n, float max)
{
    vf sum = vf_zero(), shift = vf_set1(max);
    uint32_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES) {
        vf e = vf_exp(vf_sub(vf_load(x + i), shift));
        sum = vf_add(sum, e);
        if (y)
            vf_store(y + i, e);
    }
    if (i < n) {
        float tail[VF_LANES] = {0};
        vf_store_n(tail, vf_exp(vf_sub(vf_load_n(x + i, n - i), shift)), n - i);
        sum = vf_add(sum, vf_load(tail));
        if (y)
            memcpy(y + i, tail, (n - i) * sizeof *y);
    }
    return vf_fold_add(sum);
}

/* The logarithm is one scalar a row: in double, rounded once. */
static float row_lse(const float *x, uint32_t n)
{
    float max = row_max(x, n);

    return (float)((double)max + fm_log((double)row_exp_sum(NULL, x, n, max)));
}

static void k_logsumexp(float *lse, const float *logits, size_t ld, uint32_t m, uint32_t v)
{
    for (uint32_t row = 0; row < m; row++)
        lse[row] = row_lse(logits + row * ld, v);
}

static void k_cross_entropy(float *loss, float *logits, size_t ld, const int32_t *label, uint32_t m,
                            uint32_t v, float dloss)
{
    for (uint32_t row = 0; row < m; row++) {
        float *x = logits + row * ld;
        if (label[row] < 0) {
            loss[row] = 0.0f;
            memset(x, 0, v * sizeof *x);
            continue;
        }
        float target = x[label[row]], max = row_max(x, v), sum = row_exp_sum(x, x, v, max);
        loss[row] = (float)((double)max + fm_log((double)sum) - (double)target);
        k_scale(x, dloss / sum, v);
        x[label[row]] = x[label[row]] - dloss;
    }
}

static double k_sum_squares(const float *x, size_t n)
{
    double sum[VF_LANES] = {0};
    size_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        for (uint32_t l = 0; l < VF_LANES; l++)
            sum[l] = sum[l] + (double)x[i + l] * (double)x[i + l];
    for (uint32_t l = 0; i + l < n; l++)
        sum[l] = sum[l] + (double)x[i + l] * (double)x[i + l];
    for (uint32_t half = VF_LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            sum[l] = sum[l] + sum[l + half];
    return sum[0];
}

static void k_adamw(float *p, float *m, float *v, const float *g, size_t n, const fmi_adamw *o)
{
    vf decay = vf_set1(o->decay), w1 = vf_set1(o->one_less_beta1), b2 = vf_set1(o->beta2);
    vf w2 = vf_set1(o->one_less_beta2), step = vf_set1(0.0f - o->step_size);
    vf root = vf_set1(o->bias2_sqrt), eps = vf_set1(o->eps), gs = vf_set1(o->g_scale);

    for (size_t i = 0; i < n; i += VF_LANES) {
        uint32_t left = (uint32_t)(n - i < VF_LANES ? n - i : VF_LANES);
        vf grad = vf_mul(vf_load_upto(g + i, left), gs);
        vf m1 = vf_load_upto(m + i, left), v1 = vf_load_upto(v + i, left);
        vf w = vf_mul(vf_load_upto(p + i, left), decay);
        m1 = vf_fma(vf_sub(grad, m1), w1, m1);
        v1 = vf_fma(vf_mul(grad, w2), grad, vf_mul(v1, b2));
        vf denom = vf_add(vf_div(vf_sqrt(v1), root), eps);
        w = vf_fma(step, vf_div(m1, denom), w);
        vf_store_upto(p + i, w, left);
        vf_store_upto(m + i, m1, left);
        vf_store_upto(v + i, v1, left);
    }
}
