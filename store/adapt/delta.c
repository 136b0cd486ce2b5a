/* delta.c - adapters that add a dense matrix to a weight. Formulas as in PEFT 0.21 (peft/tuners:
 * loha, lokr, randlora, shira, fourierft, miss). */
#include <math.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

/* row[j] += f * x[j] */
static void add_row(float *row, const float *x, float f, uint64_t n)
{
    for (uint64_t j = 0; j < n; j++)
        row[j] += f * x[j];
}

/* out [n, m] = a [n, r] b [r, m], summed over ascending r. */
static void product(float *out, const float *a, const float *b, uint64_t n, uint64_t r, uint64_t m)
{
    memset(out, 0, (size_t)(n * m) * sizeof(float));
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < r; k++)
            add_row(out + i * m, b + k * m, a[i * r + k], m);
}

static float *floats(uint64_t n, uint64_t m)
{
    return fm_calloc((size_t)(n * m), sizeof(float));
}

static fm_status scale_of(adt_step *s, const fm_json *config)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, s->module));
    s->num[0] = (double)spec.scale;
    return FM_OK;
}

/* ==== LoHa: scale (w1_a w1_b) * (w2_a w2_b), element by element ==== */

fm_status adt_fit_loha(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t r = adt_dim(s, 0, 1);

    for (size_t i = 0; i < 4; i += 2) {
        FM_TRY(adt_need(s, i, 2, out, r));
        FM_TRY(adt_need(s, i + 1, 2, r, in));
    }
    return scale_of(s, c);
}

fm_status adt_loha(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, 0, 1);
    const float scale = (float)w->step->num[0];
    float *x = floats(2, w->in), *y = x ? x + w->in : NULL;

    for (uint64_t o = 0; x && o < w->out; o++) {
        product(x, w->part[0] + o * r, w->part[1], 1, r, w->in);
        product(y, w->part[2] + o * r, w->part[3], 1, r, w->in);
        for (uint64_t k = 0; k < w->in; k++)
            w->w[o * w->in + k] += x[k] * y[k] * scale;
    }
    fm_free(x);
    return x ? FM_OK : FM_ENOMEM;
}

/* ==== LoKr: scale (w1 kron w2), each whole or a product of two ==== */

enum { W1, W1_A, W1_B, W2, W2_A, W2_B };

/* The shape of a factor from its parts; FM_EBASE: they are not all there, or do not fit. */
static fm_status factor_shape(const adt_step *s, size_t whole, uint64_t *n, uint64_t *m)
{
    const size_t a = whole + 1, b = whole + 2;

    if (s->part[whole] ? s->part[a] || s->part[b] : !s->part[a] || !s->part[b])
        return fm_fail(FM_EBASE, "'%s': %s is wanted whole or as two factors", s->module,
                       s->op->part[whole]);
    *n = adt_dim(s, s->part[whole] ? whole : a, 0);
    *m = adt_dim(s, s->part[whole] ? whole : b, 1);
    if (s->part[whole])
        return adt_need(s, whole, 2, *n, *m);
    FM_TRY(adt_need(s, a, 2, *n, adt_dim(s, a, 1)));
    return adt_need(s, b, 2, adt_dim(s, a, 1), *m);
}

fm_status adt_fit_lokr(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    uint64_t n1 = 0, m1 = 0, n2 = 0, m2 = 0;

    FM_TRY(factor_shape(s, W1, &n1, &m1));
    FM_TRY(factor_shape(s, W2, &n2, &m2));
    if (n1 == 0 || m1 == 0 || out % n1 || in % m1 || out / n1 != n2 || in / m1 != m2)
        return fm_fail(FM_EBASE,
                       "'%s': a Kronecker product of [%llu, %llu] and [%llu, %llu] does not fit "
                       "[%llu, %llu]",
                       s->module, (unsigned long long)n1, (unsigned long long)m1,
                       (unsigned long long)n2, (unsigned long long)m2, (unsigned long long)out,
                       (unsigned long long)in);
    return scale_of(s, c);
}

static const float *factor_of(const adt_work *w, size_t whole, uint64_t n, uint64_t m, float **own)
{
    *own = NULL;
    if (w->part[whole])
        return w->part[whole];
    *own = floats(n, m);
    if (*own)
        product(*own, w->part[whole + 1], w->part[whole + 2], n, adt_dim(w->step, whole + 1, 1), m);
    return *own;
}

fm_status adt_lokr(adt_work *w)
{
    uint64_t n1 = 0, m1 = 0, n2 = 0, m2 = 0;
    float *own[2];
    FM_TRY(factor_shape(w->step, W1, &n1, &m1));
    FM_TRY(factor_shape(w->step, W2, &n2, &m2));
    const float *x = factor_of(w, W1, n1, m1, &own[0]), *y = factor_of(w, W2, n2, m2, &own[1]);
    const float scale = (float)w->step->num[0];

    for (uint64_t o = 0; x && y && o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k++)
            w->w[o * w->in + k] += x[o / n2 * m1 + k / m2] * y[o % n2 * m2 + k % m2] * scale;
    fm_free(own[0]);
    fm_free(own[1]);
    return x && y ? FM_OK : FM_ENOMEM;
}

/* ==== RandLoRA ==== */

enum { RAND_A, RAND_B, LAMBDA, GAMMA, SHARED_A, SHARED_B };

/* A [r, 1, >= min], B [>= max, >= bases, r], lambda [r, bases], gamma [bases, min], where min and
 * max are the lesser and greater of out and in. */
fm_status adt_fit_randlora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t min = FM_MIN(out, in), max = FM_MAX(out, in);
    const uint64_t r = adt_dim(s, LAMBDA, 0), bases = adt_dim(s, LAMBDA, 1);
    const double alpha = fm_json_real(fm_json_get(c, "randlora_alpha"), NAN);

    for (size_t i = 0; i < 2; i++) { /* each module has the same, or the adapter has them once */
        if (!s->part[RAND_A + i])
            s->part[RAND_A + i] = s->part[SHARED_A + i];
        s->part[SHARED_A + i] = NULL;
        if (!s->part[RAND_A + i])
            return fm_fail(FM_EUNSUPPORTED,
                           "'%s': %s is not in the file; save with save_projection", s->module,
                           s->op->part[RAND_A + i]);
    }
    const fm_shape *a = &s->part[RAND_A]->shape, *b = &s->part[RAND_B]->shape;
    FM_TRY(adt_need(s, LAMBDA, 2, r, bases));
    FM_TRY(adt_need(s, GAMMA, 2, bases, min));
    if (a->rank != 3 || b->rank != 3 || r < 1 || a->dim[0] != r || a->dim[1] != 1 ||
        a->dim[2] < min || b->dim[0] < max || b->dim[1] < bases || b->dim[2] != r)
        return fm_fail(FM_EBASE, "'%s': randlora_A and randlora_B do not fit the module",
                       s->module);
    if (!(fabs(alpha) <= 1e9))
        return fm_fail(FM_EINVAL, "adapter_config.json: field 'randlora_alpha' must be a number");
    s->num[0] = alpha / (double)r;
    return FM_OK;
}

/* PEFT flattens A by (i, base) and B by (base, i), and multiplies what stands at one flat place. */
fm_status adt_randlora(adt_work *w)
{
    const uint64_t min = FM_MIN(w->out, w->in), max = FM_MAX(w->out, w->in);
    const uint64_t r = adt_dim(w->step, LAMBDA, 0), bases = adt_dim(w->step, LAMBDA, 1);
    const uint64_t flat = r * bases, b_wide = adt_dim(w->step, RAND_B, 1) * r;
    const uint64_t a_wide = adt_dim(w->step, RAND_A, 2);
    const float scale = (float)w->step->num[0];
    const bool turned = min != w->in; /* the product is [in, out] */
    float *a = floats(flat, min), *b = floats(max, flat), *sum = turned ? floats(max, min) : NULL;
    const bool there = a && b && (sum || !turned);

    for (uint64_t f = 0; there && f < flat; f++)
        for (uint64_t k = 0; k < min; k++)
            a[f * min + k] = w->part[LAMBDA][f] * w->part[RAND_A][f / bases * a_wide + k] *
                             w->part[GAMMA][f % bases * min + k];
    for (uint64_t o = 0; there && o < max; o++)
        memcpy(b + o * flat, w->part[RAND_B] + o * b_wide, (size_t)flat * sizeof *b);
    if (there)
        fm_lora_merge(turned ? sum : w->w, a, b, max, min, flat, scale);
    for (uint64_t k = 0; there && turned && k < max; k++)
        for (uint64_t o = 0; o < min; o++)
            w->w[o * w->in + k] += sum[k * min + o];
    fm_free(a);
    fm_free(b);
    fm_free(sum);
    return there ? FM_OK : FM_ENOMEM;
}

/* ==== SHiRA: some elements, their places [2, n] ==== */

fm_status adt_fit_shira(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t n = adt_dim(s, 0, 0);

    (void)c, (void)out, (void)in;
    FM_TRY(adt_need(s, 0, 1, n, 0));
    return adt_need(s, 1, 2, 2, n);
}

fm_status adt_shira(adt_work *w)
{
    const uint64_t n = adt_dim(w->step, 0, 0);

    for (uint64_t i = 0; i < n; i++) {
        const float o = w->part[1][i], k = w->part[1][n + i];
        if (!(o >= 0 && o < (float)w->out && k >= 0 && k < (float)w->in))
            return fm_fail(FM_EBASE, "'%s': shira_indices leave the weight", w->step->module);
        w->w[(uint64_t)o * w->in + (uint64_t)k] += w->part[0][i];
    }
    return FM_OK;
}

/* ==== FourierFT: the real part of a sparse spectrum's inverse transform ==== */

fm_status adt_fit_fourierft(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const uint64_t n = adt_dim(s, 0, 0);
    const int64_t seed = fm_json_int(fm_json_get(c, "random_loc_seed"), 777);

    FM_TRY(adt_need(s, 0, 1, n, 0));
    if (n > out * in || seed < 0)
        return fm_fail(FM_EBASE, "'%s': %llu frequencies at places of seed %lld do not fit",
                       s->module, (unsigned long long)n, (long long)seed);
    s->num[0] = fm_json_real(fm_json_get(c, "scaling"), 150.0);
    s->num[1] = (double)seed;
    s->index_count = (size_t)n;
    s->index = fm_malloc((size_t)FM_MAX(n, (uint64_t)1) * sizeof *s->index);
    return s->index ? adt_torch_places(s->index, (size_t)n, out * in, (uint64_t)seed) : FM_ENOMEM;
}

/* The waves of coefficients that stand in row u of the spectrum, summed along the weight's rows. */
static void row_wave(float *re, float *im, const adt_work *w, const double *turn, uint64_t u)
{
    memset(re, 0, (size_t)w->in * sizeof(float));
    memset(im, 0, (size_t)w->in * sizeof(float));
    for (size_t i = 0; i < w->step->index_count; i++) {
        const uint64_t at = (uint64_t)w->step->index[i], v = at % w->in;
        if (at / w->in != u)
            continue;
        for (uint64_t k = 0, phase = 0; k < w->in; k++, phase = (phase + v) % w->in) {
            re[k] += w->part[0][i] * (float)turn[2 * phase];
            im[k] += w->part[0][i] * (float)turn[2 * phase + 1];
        }
    }
}

static double *turns(uint64_t n)
{
    double *turn = fm_malloc((size_t)n * 2 * sizeof *turn);

    for (uint64_t i = 0; turn && i < n; i++) {
        turn[2 * i] = cos(6.283185307179586 * (double)i / (double)n);
        turn[2 * i + 1] = sin(6.283185307179586 * (double)i / (double)n);
    }
    return turn;
}

/* delta[p, q] = scale / (out in) sum of s cos(2 pi (p u / out + q v / in)): with `rows` rows u that
 * have coefficients, a product of waves down [out, 2 rows] and waves across [2 rows, in]. */
static void add_waves(adt_work *w, const double *across, const double *down, const bool *has,
                      uint64_t rows, float *a, float *b)
{
    uint64_t at = 0;

    for (uint64_t u = 0; u < w->out; u++) {
        if (!has[u])
            continue;
        row_wave(a + at * w->in, a + (at + 1) * w->in, w, across, u);
        for (uint64_t o = 0, phase = 0; o < w->out; o++, phase = (phase + u) % w->out) {
            b[o * 2 * rows + at] = (float)down[2 * phase];
            b[o * 2 * rows + at + 1] = -(float)down[2 * phase + 1];
        }
        at += 2;
    }
    fm_lora_merge(w->w, a, b, w->out, w->in, 2 * rows,
                  (float)(w->step->num[0] / ((double)w->out * (double)w->in)));
}

fm_status adt_fourierft(adt_work *w)
{
    double *across = turns(w->in), *down = turns(w->out);
    bool *has = fm_calloc((size_t)w->out, sizeof *has);
    uint64_t rows = 0;

    for (size_t i = 0; has && i < w->step->index_count; i++) {
        bool *row = &has[(uint64_t)w->step->index[i] / w->in];
        rows += !*row;
        *row = true;
    }
    float *a = floats(FM_MAX(rows, (uint64_t)1) * 2, w->in), *b = floats(w->out, rows * 2 + 1);
    const bool there = across && down && has && a && b;
    if (there && rows > 0)
        add_waves(w, across, down, has, rows, a, b);
    fm_free(across);
    fm_free(down);
    fm_free(has);
    fm_free(a);
    fm_free(b);
    return there ? FM_OK : FM_ENOMEM;
}

/* ==== MiSS ==== */

enum { MISS_ROWS, MISS_BAT, MISS_MINI };

/* block [r, out]; "mini" [r, mini_r], repeated over out; "bat" [out / r, r, r]. */
fm_status adt_fit_miss(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    const char *start = fm_json_cstr(fm_json_get(c, "init_weights"), "");
    const bool bat = strcmp(start, "bat") == 0, mini = strcmp(start, "mini") == 0;
    const uint64_t r = adt_dim(s, 0, bat ? 1 : 0), wide = adt_dim(s, 0, 1);
    const fm_shape *have = &s->part[0]->shape;

    s->num[0] = bat ? MISS_BAT : mini ? MISS_MINI : MISS_ROWS;
    if (bat && (have->rank != 3 || r < 1 || have->dim[2] != r || out % r || in % r ||
                have->dim[0] != out / r))
        return fm_fail(FM_EBASE, "'%s': miss_block is wanted as [%llu / r, r, r]", s->module,
                       (unsigned long long)out);
    if (mini && (wide < 1 || out % wide))
        return fm_fail(FM_EBASE, "'%s': miss_block's second dimension must divide %llu", s->module,
                       (unsigned long long)out);
    if (!bat && (r < 1 || r > in))
        return fm_fail(FM_EBASE, "'%s': miss_block has a rank of %llu for %llu inputs", s->module,
                       (unsigned long long)r, (unsigned long long)in);
    return bat ? FM_OK : adt_need(s, 0, 2, r, mini ? wide : out);
}

/* Each block [r, r] of W becomes W + W B + B, B the one of its rows. */
static fm_status bat(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, 0, 1);
    float *row = floats(1, r);

    for (uint64_t o = 0; row && o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k += r) {
            const float *b = w->part[0] + o / r * r * r;
            float *at = w->w + o * w->in + k;
            product(row, at, b, 1, r, r);
            for (uint64_t j = 0; j < r; j++)
                at[j] += row[j] + b[o % r * r + j];
        }
    fm_free(row);
    return row ? FM_OK : FM_ENOMEM;
}

fm_status adt_miss(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, 0, 0), wide = adt_dim(w->step, 0, 1);

    if ((int)w->step->num[0] == MISS_BAT)
        return bat(w);
    for (uint64_t o = 0; o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k++)
            w->w[o * w->in + k] += w->part[0][k % r * wide + o % wide];
    return FM_OK;
}
