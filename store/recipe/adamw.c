/* adamw.c - AdamW's recurrence forwards, and its scalars out of two checkpoints.
 *
 * The gradient is computed from the first moment in double, so its error is that of m': half a unit
 * of its last place over 1 - beta1. In v' that is less than a unit, so most are equal. */
#include "store/recipe/adamw.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#define TARGET_FMA __attribute__((target("avx2,fma")))
#endif

/* ==== forwards ============================================================================== */

/* Replaces every NaN by one: which payload survives is the compiler's choice. */
INLINE float settled(float v)
{
    return v == v ? v : NAN;
}

INLINE float gradient(float m0, float m1, double inverse)
{
    return (float)((double)m0 + ((double)m1 - (double)m0) * inverse);
}

INLINE void predict_v(float *out, const float *v0, const float *m0, const float *m1, size_t n,
                      const fms_adamw_scalars *s, bool fused)
{
    const double inverse = 1.0 / (double)s->one_less_beta1;
    const float b2 = s->beta2, w2 = s->one_less_beta2;

    for (size_t i = 0; i < n; i++) {
        const float g = gradient(m0[i], m1[i], inverse), old = v0[i] * b2, part = g * w2;
        out[i] = settled(fused ? fmaf(part, g, old) : old + part * g);
    }
}

INLINE void predict_w(float *out, const float *w0, const float *m1, const float *v1, size_t n,
                      const fms_adamw_scalars *s, fms_adamw_mode mode)
{
    const float decay = s->decay, step = s->step, root = s->root, eps = s->eps;

    for (size_t i = 0; i < n; i++) {
        const float old = w0[i] * decay, below = sqrtf(v1[i]) / root + eps;
        float w;
        if (mode == FMS_ADAMW_FUSED)
            w = fmaf(-step, m1[i] / below, old);
        else if (mode == FMS_ADAMW_QUOTIENT)
            w = old + -step * m1[i] / below;
        else
            w = old - step * (m1[i] / below);
        out[i] = settled(w);
    }
}

INLINE void all_v(float *out, const float *v0, const float *m0, const float *m1, size_t n,
                  const fms_adamw_scalars *s, fms_adamw_mode mode)
{
    if (mode == FMS_ADAMW_PLAIN)
        predict_v(out, v0, m0, m1, n, s, false);
    else
        predict_v(out, v0, m0, m1, n, s, true);
}

INLINE void all_w(float *out, const float *w0, const float *m1, const float *v1, size_t n,
                  const fms_adamw_scalars *s, fms_adamw_mode mode)
{
    if (mode == FMS_ADAMW_FUSED)
        predict_w(out, w0, m1, v1, n, s, FMS_ADAMW_FUSED);
    else if (mode == FMS_ADAMW_QUOTIENT)
        predict_w(out, w0, m1, v1, n, s, FMS_ADAMW_QUOTIENT);
    else
        predict_w(out, w0, m1, v1, n, s, FMS_ADAMW_PLAIN);
}

#ifdef X86
/* The same code with the FMA instruction: without it fmaf is a call per element. */
TARGET_FMA static void v_fma(float *out, const float *v0, const float *m0, const float *m1,
                             size_t n, const fms_adamw_scalars *s, fms_adamw_mode mode)
{
    all_v(out, v0, m0, m1, n, s, mode);
}

TARGET_FMA static void w_fma(float *out, const float *w0, const float *m1, const float *v1,
                             size_t n, const fms_adamw_scalars *s, fms_adamw_mode mode)
{
    all_w(out, w0, m1, v1, n, s, mode);
}
#endif

void fms_adamw_v(float *v1, const float *v0, const float *m0, const float *m1, size_t n,
                 const fms_adamw_scalars *s, fms_adamw_mode mode)
{
#ifdef X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        v_fma(v1, v0, m0, m1, n, s, mode);
        return;
    }
#endif
    all_v(v1, v0, m0, m1, n, s, mode);
}

void fms_adamw_w(float *w1, const float *w0, const float *m1, const float *v1, size_t n,
                 const fms_adamw_scalars *s, fms_adamw_mode mode)
{
#ifdef X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        w_fma(w1, w0, m1, v1, n, s, mode);
        return;
    }
#endif
    all_w(w1, w0, m1, v1, n, s, mode);
}

/* ==== parameters as bytes =================================================================== */

static float *scalar(fms_adamw_scalars *s, unsigned i)
{
    float *const at[] = {&s->one_less_beta1, &s->beta2, &s->one_less_beta2, &s->decay, &s->step,
                         &s->root,           &s->eps};
    return at[i];
}

void fms_adamw_put(uint8_t dst[FMS_ADAMW_BYTES], const fms_adamw_scalars *s)
{
    fms_adamw_scalars copy = *s;

    for (unsigned i = 0; i < FMS_ADAMW_BYTES / 4; i++) {
        uint32_t u;
        memcpy(&u, scalar(&copy, i), sizeof u);
        fm_put_u32(dst + 4 * i, u);
    }
}

fm_status fms_adamw_get(fms_adamw_scalars *out, fm_span params)
{
    if (params.len != FMS_ADAMW_BYTES)
        return fm_fail(FM_ECORRUPT, "adamw: %zu bytes of parameters, %u wanted", params.len,
                       FMS_ADAMW_BYTES);
    for (unsigned i = 0; i < FMS_ADAMW_BYTES / 4; i++) {
        const uint32_t u = fm_get_u32(params.data + 4 * i);
        memcpy(scalar(out, i), &u, sizeof u);
        if (!isfinite(*scalar(out, i)))
            return fm_fail(FM_ECORRUPT, "adamw: parameter %u is not finite", i);
    }
    if (out->one_less_beta1 == 0.0f)
        return fm_fail(FM_ECORRUPT, "adamw: 1 - beta1 is zero");
    return FM_OK;
}

/* ==== the scalars out of two checkpoints ==================================================== */

#define PART 512u

typedef struct arrays { /* a fit makes `want` of a, b, c */
    const float *want, *a, *b, *c;
    size_t n;
    bool second; /* v of (v0, m0, m1); else w of (w0, m1, v1) */
} arrays;

static size_t equal(const arrays *x, const fms_adamw_scalars *s, fms_adamw_mode mode, size_t n)
{
    float out[PART];
    size_t same = 0;

    n = FM_MIN(n, x->n);
    for (size_t at = 0; at < n; at += PART) {
        const size_t len = FM_MIN(n - at, (size_t)PART);
        if (x->second)
            fms_adamw_v(out, x->a + at, x->b + at, x->c + at, len, s, mode);
        else
            fms_adamw_w(out, x->a + at, x->b + at, x->c + at, len, s, mode);
        for (size_t i = 0; i < len; i++)
            same += out[i] == x->want[at + i];
    }
    return same;
}

/* Gaussian elimination with pivots; false: singular. */
static bool solve(double a[3][4], unsigned n, double *x)
{
    for (unsigned c = 0; c < n; c++) {
        unsigned p = c;
        for (unsigned r = c + 1; r < n; r++)
            p = fabs(a[r][c]) > fabs(a[p][c]) ? r : p;
        if (!(fabs(a[p][c]) > 0.0))
            return false;
        for (unsigned k = 0; k <= n; k++) {
            const double t = a[c][k];
            a[c][k] = a[p][k];
            a[p][k] = t;
        }
        for (unsigned r = 0; r < n; r++) {
            const double f = r == c ? 0.0 : a[r][c] / a[c][c];
            for (unsigned k = c; k <= n && r != c; k++)
                a[r][k] -= f * a[c][k];
        }
    }
    for (unsigned c = 0; c < n; c++)
        x[c] = a[c][n] / a[c][c];
    return true;
}

/* Adds one weighted observation to the normal equations of n unknowns. */
static void observe(double a[3][4], unsigned n, const double *x, double y, double weight)
{
    for (unsigned r = 0; r < n; r++) {
        for (unsigned c = 0; c < n; c++)
            a[r][c] += weight * weight * x[r] * x[c];
        a[r][n] += weight * weight * x[r] * y;
    }
}

/* v1 - v0 = c (m0^2 - v0) + 2 c k m0 d + c k^2 d^2 with d = m1 - m0, c = 1 - beta2, k = 1 / (1 -
 * beta1) */
static bool estimate_betas(const arrays *x, double *beta1, double *beta2)
{
    double a[3][4] = {{0}}, r[3];

    for (size_t i = 0; i < x->n; i++) {
        const double v0 = (double)x->a[i], m0 = (double)x->b[i], d = (double)x->c[i] - m0;
        const double row[3] = {m0 * m0 - v0, 2.0 * m0 * d, d * d};
        if (isfinite(row[0] + row[1] + row[2]) && x->want[i] > 1e-37f)
            observe(a, 3, row, (double)x->want[i] - v0, 1.0 / (double)x->want[i]);
    }
    if (!solve(a, 3, r) || !(r[0] > 0.0) || !(r[2] > r[0]))
        return false;
    *beta1 = 1.0 - sqrt(r[0] / r[2]);
    *beta2 = 1.0 - r[0];
    return *beta1 >= 0.0 && *beta2 > 0.0 && *beta2 < 1.0;
}

static double decimals(double v, int n)
{
    const double unit = pow(10.0, n);
    return floor(v * unit + 0.5) / unit;
}

/* PyTorch rounds 1 - beta from doubles; programs with float32 betas (narrow) get another last
 * bit. */
static void set_betas(fms_adamw_scalars *s, double beta1, double beta2, bool narrow)
{
    if (narrow) {
        beta1 = (double)(float)beta1;
        beta2 = (double)(float)beta2;
    }
    s->one_less_beta1 = (float)(1.0 - beta1);
    s->beta2 = (float)beta2;
    s->one_less_beta2 = (float)(1.0 - beta2);
}

void fms_adamw_fit_v(fms_adamw_fit *f, const float *v1, const float *v0, const float *m0,
                     const float *m1, size_t n)
{
    const arrays x = {.want = v1, .a = v0, .b = m0, .c = m1, .n = n, .second = true};
    double beta1, beta2;

    f->exact_v = 0;
    if (!estimate_betas(&x, &beta1, &beta2))
        return;
    for (int k = 0; k < 5 * 6 * 4; k++) { /* 0.9 before 0.90012: the first of equal fits stays */
        const double b1 = decimals(beta1, 1 + k / 4 % 5), b2 = decimals(beta2, 1 + k / 20);
        const fms_adamw_mode mode = k & 1 ? FMS_ADAMW_PLAIN : FMS_ADAMW_FUSED;
        fms_adamw_scalars s = f->s;
        if (!(b1 >= 0.0 && b1 < 1.0 && b2 > 0.0 && b2 < 1.0))
            continue;
        set_betas(&s, b1, b2, (k & 2) != 0);
        const size_t same = equal(&x, &s, mode, n);
        if (same > f->exact_v) {
            f->s = s;
            f->mode = mode;
            f->beta2 = (k & 2) != 0 ? (double)(float)b2 : b2;
            f->exact_v = same;
        }
    }
}

/* w1 - w0 = (decay - 1) w0 - (step root) m1 / (sqrt(v1) + eps root), from the first n elements;
 * each weighs by what rounding may have done to it. s has root and eps, and gets decay and step. */
static bool estimate_step(fms_adamw_scalars *s, const arrays *x, size_t n)
{
    const double root = (double)s->root, below = (double)s->eps * root;
    double a[3][4] = {{0}}, r[3];

    for (size_t i = 0; i < FM_MIN(n, x->n); i++) {
        const double w0 = (double)x->a[i], y = (double)x->want[i] - w0;
        const double row[2] = {w0, (double)x->b[i] / (sqrt((double)x->c[i]) + below)};
        const double far = fabs(w0) + fabs(y);
        if (isfinite(row[0] + row[1] + far) && far > 1e-30)
            observe(a, 2, row, y, 1.0 / far);
    }
    if (!solve(a, 2, r) || !isfinite(r[0] + r[1]))
        return false;
    s->decay = (float)(1.0 + r[0]);
    s->step = (float)(-r[1] / root);
    return true;
}

/* Takes s into f where it gives more equal elements; compares the first `part` elements first. */
static void keep_better(fms_adamw_fit *f, const arrays *x, const fms_adamw_scalars *s, size_t part)
{
    const bool plain_v = f->mode == FMS_ADAMW_PLAIN; /* the fit of v decided this */

    part = FM_MIN(part, x->n);
    for (int m = 0; m < FMS_ADAMW_MODES; m++) {
        if ((m == FMS_ADAMW_PLAIN) != plain_v)
            continue;
        if (part < x->n && equal(x, s, (fms_adamw_mode)m, part) * x->n < f->exact_w * part)
            continue;
        const size_t same = equal(x, s, (fms_adamw_mode)m, x->n);
        if (same > f->exact_w) {
            f->s = *s;
            f->mode = (fms_adamw_mode)m;
            f->exact_w = same;
        }
    }
}

static bool set_root(fms_adamw_scalars *s, const fms_adamw_fit *f, double t)
{
    s->root = (float)sqrt(1.0 - pow(f->beta2, t));
    return s->root > 0.0f;
}

/* Tries step numbers t, from 4,000 on by 1 %: root = sqrt(1 - beta2^t). Returns the best, or 0. */
static double scan_steps(fms_adamw_fit *f, const arrays *x, float eps)
{
    fms_adamw_scalars s = f->s;
    double best = 0.0;

    s.eps = eps;
    s.root = 1.0f;
    if (estimate_step(&s, x, x->n))
        keep_better(f, x, &s, x->n);
    for (double t = 1.0; t < 2e5; t = t < 4000.0 ? t + 1.0 : floor(t * 1.01)) {
        const size_t before = f->exact_w;
        if (set_root(&s, f, t) && estimate_step(&s, x, 2 * PART))
            keep_better(f, x, &s, PART);
        best = f->exact_w > before ? t : best;
    }
    return best;
}

/* Finds the last bits of step and decay for one root, by all elements. */
static void polish(fms_adamw_fit *f, const arrays *x, fms_adamw_scalars s)
{
    if (!estimate_step(&s, x, x->n))
        return;
    const fms_adamw_scalars centre = s;
    for (int d = -1; d <= 2; d++)
        for (int k = -2; k <= 2; k++) {
            s.decay = d == 2 ? 1.0f : centre.decay + (float)d * 0x1p-24f;
            s.step = centre.step * (1.0f + (float)k * 0x1p-23f);
            keep_better(f, x, &s, PART);
        }
}

void fms_adamw_fit_w(fms_adamw_fit *f, const float *w1, const float *w0, const float *m1,
                     const float *v1, size_t n)
{
    static const float EPS[] = {1e-8f, 1e-6f, 1e-5f, 1e-7f, 1e-10f, 1e-12f};
    const arrays x = {.want = w1, .a = w0, .b = m1, .c = v1, .n = n};
    double t = 0.0;

    f->exact_w = 0;
    for (size_t e = 0; e < FM_ARRAY_LEN(EPS) && f->exact_w < n / 10 * 9; e++) {
        const double found = scan_steps(f, &x, EPS[e]);
        t = found > 0.0 ? found : t;
    }
    if (f->exact_w == 0)
        return;
    polish(f, &x, f->s);
    /* The scan's estimates were rough, so the true t may be a little off. */
    for (double near = t - 16.0; t > 0.0 && near <= t + 16.0; near += 1.0) {
        fms_adamw_scalars s = f->s;
        if (near > 0.0 && set_root(&s, f, near))
            polish(f, &x, s);
    }
}
