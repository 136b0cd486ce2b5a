/* method_fold_shapes.c - the tensors of the kinds of method_fold.c, by the settings: their shapes
 * as PEFT has them, and what is drawn once and never trained. */
#include "train/net/method.h"

#include "store/base/math/rng.h"
#include "store/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    fm_method method;
    const char *kind, *peft_type;
} kinds[] = {
    {FM_METHOD_LOHA, "loha", "LOHA"},
    {FM_METHOD_LOKR, "lokr", "LOKR"},
    {FM_METHOD_OFT, "oft", "OFT"},
    {FM_METHOD_BOFT, "boft", "BOFT"},
    {FM_METHOD_HRA, "hra", "HRA"},
    {FM_METHOD_MISS, "miss", "MISS"},
    {FM_METHOD_SHIRA, "shira", "SHIRA"},
    {FM_METHOD_FOURIERFT, "fourierft", "FOURIERFT"},
    {FM_METHOD_RANDLORA, "randlora", "RANDLORA"},
    {FM_METHOD_VERA, "vera", "VERA"},
    {FM_METHOD_ADALORA, "adalora", "ADALORA"},
};

const char *fmt_fold_kind(fm_method m)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (kinds[i].method == m)
            return kinds[i].kind;
    return NULL;
}

const char *fmt_fold_kind_of_type(const char *peft_type)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].peft_type, peft_type) == 0)
            return kinds[i].kind;
    return NULL;
}

/* ---- shapes of a module's tensors, by the settings ---- */
typedef fmt_fold_wanted wanted;

static fm_shape vector(uint64_t n)
{
    return (fm_shape){.rank = 1, .dim = {n}};
}

static fm_shape matrix(uint64_t rows, uint64_t cols)
{
    return (fm_shape){.rank = 2, .dim = {rows, cols}};
}

static fm_status loha_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                             const char *module)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, module));

    w->shape[0] = w->shape[2] = matrix(l->out, spec.r);
    w->shape[1] = w->shape[3] = matrix(spec.r, l->in);
    return FM_OK;
}

/* PEFT's factorization: n = *small * *large, as near to a square as factor allows. */
static void two_factors(uint64_t n, int64_t factor, uint64_t *small, uint64_t *large)
{
    uint64_t a = 1, b = n, most = factor < 0 ? n : (uint64_t)factor;

    if (factor > 0 && n % most == 0) {
        a = most;
        b = n / most;
        *small = a;
        *large = b;
        return;
    }
    while (a < b) {
        uint64_t next = a + 1;
        while (n % next != 0)
            next++;
        if (next + n / next > 1 + n || next > most)
            break;
        a = next;
        b = n / next;
    }
    *small = FM_MIN(a, b);
    *large = FM_MAX(a, b);
}

/* A factor [n, m] at part `at`: whole, or as two factors of rank r. */
static void lokr_side(wanted *w, size_t at, bool whole, uint64_t n, uint64_t m, uint64_t r)
{
    if (whole) {
        w->shape[at] = matrix(n, m);
        return;
    }
    w->shape[at + 1] = matrix(n, r);
    w->shape[at + 2] = matrix(r, m);
}

static fm_status lokr_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                             const char *module)
{
    const int64_t factor = fm_json_int(fm_json_get(config, "decompose_factor"), -1);
    const bool both = fm_json_bool(fm_json_get(config, "decompose_both"), false);
    uint64_t out1, out2, in1, in2;
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, module));

    two_factors(l->in, factor, &in1, &in2);
    two_factors(l->out, factor, &out1, &out2);
    lokr_side(w, 0, !(both && 2 * (uint64_t)spec.r < FM_MAX(out1, in1)), out1, in1, spec.r);
    lokr_side(w, 3, 2 * (uint64_t)spec.r >= FM_MAX(out2, in2), out2, in2, spec.r);
    return FM_OK;
}

/* PEFT's adjust_oft_parameters: the divisor of n next to want, the lower one of two. */
static uint64_t near_divisor(uint64_t n, uint64_t want)
{
    uint64_t up = want, down = want;

    if (want >= n)
        return n;
    while (up <= n && n % up != 0)
        up++;
    while (down > 1 && n % down != 0)
        down--;
    return want - down <= up - want ? down : up;
}

static fm_status oft_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const uint64_t size = (uint64_t)fm_json_int(fm_json_get(config, "oft_block_size"), 0);
    const uint64_t r = (uint64_t)fm_json_int(fm_json_get(config, "r"), 0);
    const bool shared = fm_json_bool(fm_json_get(config, "block_share"), false);
    const uint64_t block = size > 0 ? near_divisor(l->in, size) : l->in / near_divisor(l->in, r);

    if (block < 2)
        return fm_fail(FM_EINVAL, "oft on '%s': blocks of one input have nothing to rotate",
                       l->module);
    w->shape[0] = matrix(shared ? 1 : l->in / block, block * (block - 1) / 2);
    return FM_OK;
}

static uint64_t number_of(const fm_json *config, const char *key)
{
    const int64_t n = fm_json_int(fm_json_get(config, key), 0);
    return n > 0 ? (uint64_t)n : 0;
}

static fm_status boft_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const uint64_t count = number_of(config, "boft_block_num");
    const uint64_t size = count > 0 ? l->in / count : number_of(config, "boft_block_size");

    if (size < 1 || l->in % size || (count > 0 && l->in % count))
        return fm_fail(FM_EINVAL, "boft on '%s': %u inputs are no blocks of %llu", l->module, l->in,
                       (unsigned long long)size);
    w->shape[0] = (fm_shape){
        .rank = 4, .dim = {number_of(config, "boft_n_butterfly_factor"), l->in / size, size, size}};
    w->shape[1] = matrix(l->out, 1);
    return FM_OK;
}

static fm_status miss_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const char *start = fm_json_cstr(fm_json_get(config, "init_weights"), "");
    const uint64_t r = number_of(config, "r"), mini = number_of(config, "mini_r");

    if (strcmp(start, "bat") == 0 && (r < 1 || l->out % r))
        return fm_fail(FM_EINVAL, "miss on '%s': [%u, %u] is no blocks of [r, r]", l->module,
                       l->out, l->in);
    if (strcmp(start, "bat") == 0)
        w->shape[0] = (fm_shape){.rank = 3, .dim = {l->out / r, r, r}};
    else
        w->shape[0] = matrix(r, strcmp(start, "mini") == 0 ? mini : l->out);
    return FM_OK;
}

static fm_status shira_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const uint64_t n = number_of(config, "r") * ((uint64_t)l->in + l->out);

    if (n > (uint64_t)l->in * l->out)
        return fm_fail(FM_EINVAL, "shira on '%s': r * (in + out) is above its %llu values",
                       l->module, (unsigned long long)l->in * l->out);
    w->shape[0] = vector(n);
    w->shape[1] = matrix(2, n);
    return FM_OK;
}

/* Each module takes its part of what is drawn for the greatest sizes. */
static void randlora_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                            const fmt_fold_most *most)
{
    const uint64_t r = FM_MAX(number_of(config, "r"), (uint64_t)1);
    const uint64_t min = FM_MIN(l->in, l->out), most_min = FM_MIN(most->in, most->out);

    w->shape[2] = matrix(r, (min + r - 1) / r);
    w->shape[3] = matrix((min + r - 1) / r, min);
    w->shape[4] = (fm_shape){.rank = 3, .dim = {r, 1, most_min}};
    w->shape[5] =
        (fm_shape){.rank = 3, .dim = {FM_MAX(most->in, most->out), (most_min + r - 1) / r, r}};
}

static void vera_shapes(wanted *w, const fmt_linear *l, const fm_json *config,
                        const fmt_fold_most *most)
{
    const uint64_t r = number_of(config, "r");

    w->shape[0] = vector(l->out);
    w->shape[1] = vector(r);
    w->shape[2] = matrix(r, most->in);
    w->shape[3] = matrix(most->out, r);
}

static void adalora_shapes(wanted *w, const fmt_linear *l, const fm_json *config)
{
    const uint64_t r = number_of(config, "init_r");

    w->shape[0] = matrix(r, l->in);
    w->shape[1] = matrix(l->out, r);
    w->shape[2] = matrix(r, 1);
}

fm_status fmt_fold_shapes(fmt_fold_wanted *w, fm_method m, const fmt_linear *l,
                          const fm_json *config, const char *module, const fmt_fold_most *most)
{
    memset(w, 0, sizeof(*w));
    if (m == FM_METHOD_LOHA)
        return loha_shapes(w, l, config, module);
    if (m == FM_METHOD_LOKR)
        return lokr_shapes(w, l, config, module);
    if (m == FM_METHOD_OFT)
        return oft_shapes(w, l, config);
    if (m == FM_METHOD_BOFT)
        return boft_shapes(w, l, config);
    if (m == FM_METHOD_MISS)
        return miss_shapes(w, l, config);
    if (m == FM_METHOD_SHIRA)
        return shira_shapes(w, l, config);
    if (m == FM_METHOD_HRA)
        w->shape[0] = matrix(l->in, number_of(config, "r"));
    if (m == FM_METHOD_FOURIERFT)
        w->shape[0] = vector(number_of(config, "n_frequency"));
    if (m == FM_METHOD_RANDLORA)
        randlora_shapes(w, l, config, most);
    if (m == FM_METHOD_VERA)
        vera_shapes(w, l, config, most);
    if (m == FM_METHOD_ADALORA)
        adalora_shapes(w, l, config);
    return FM_OK;
}

/* ---- what is drawn once ---- */
/* Even over an interval around 0, then of deviation 1, as PEFT makes RandLoRA's bases. */
static fm_status draw_bases(float *x, uint64_t n, uint64_t seed, const char *name)
{
    uint64_t stream = 0;
    double mean = 0.0, squares = 0.0;
    FM_TRY(fmt_stream(&stream, "randlora", name));

    for (uint64_t i = 0; i < n; i++) {
        x[i] = (float)(2.0 * fm_rng_uniform(seed, stream, i) - 1.0);
        mean += (double)x[i];
    }
    mean /= (double)n;
    for (uint64_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    for (uint64_t i = 0; n > 1 && i < n; i++)
        x[i] = (float)((double)x[i] / sqrt(squares / (double)(n - 1)));
    return FM_OK;
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* SHiRA's random mask: rows, then columns, of n places in their order. */
static fm_status draw_places(float *x, uint64_t n, const fmt_linear *l, uint64_t seed,
                             const char *name)
{
    uint64_t stream = 0;
    int64_t *at = fm_malloc((size_t)n * sizeof(*at));
    fm_status rc = at ? fmt_stream(&stream, "shira", name) : FM_ENOMEM;

    FM_THEN(rc, fm_fold_places(at, (size_t)n, (uint64_t)l->in * l->out,
                               fm_rng_u64(seed, stream, 0) >> 1));
    if (rc == FM_OK)
        qsort(at, (size_t)n, sizeof(*at), by_size);
    for (uint64_t i = 0; rc == FM_OK && i < n; i++) {
        x[i] = (float)(at[i] / (int64_t)l->in);
        x[n + i] = (float)(at[i] % (int64_t)l->in);
    }
    fm_free(at);
    return rc;
}

/* VeRA's projections are torch's of projection_prng_key: the formula draws them where they are not
 * stored, and gives them with lambdas of 1. */
static fm_status draw_vera(float *x, bool b, const fm_json *config, const fmt_fold_most *most,
                           uint64_t r)
{
    const fm_fold_of of = {.kind = "vera",
                           .module = "vera",
                           .config = config,
                           .out = most->out,
                           .in = most->in,
                           .most_out = most->out,
                           .most_in = most->in};
    const fm_shape rows = vector(most->out), rank = vector(r);
    const fm_shape *shape[FM_FOLD_PARTS] = {&rows, &rank};
    float *ones = fm_malloc((size_t)FM_MAX(most->out, r) * sizeof(*ones));
    float *const part[FM_FOLD_PARTS] = {ones, ones};
    fm_fold *f = NULL;
    fm_status rc = ones ? fm_fold_new(&f, &of, shape) : FM_ENOMEM;

    for (uint64_t i = 0; ones && i < FM_MAX(most->out, r); i++)
        ones[i] = 1.0f;
    FM_THEN(rc, fm_fold_factor(f, x, b, part));
    fm_fold_free(f);
    fm_free(ones);
    return rc;
}

fm_status fmt_fold_draw(float *x, const fm_train_config *c, const fmt_linear *l,
                        const fm_json *config, const fmt_fold_most *most, int part,
                        const fm_shape *shape, const char *name)
{
    uint64_t n = 0;
    FM_TRY(fm_shape_elems(&n, shape));

    if (c->method == FM_METHOD_VERA)
        return draw_vera(x, part == 3, config, most, shape->dim[part == 3 ? 1 : 0]);
    if (c->method == FM_METHOD_SHIRA)
        return draw_places(x, n / 2, l, c->seed, name);
    return draw_bases(x, n, c->seed, name);
}
