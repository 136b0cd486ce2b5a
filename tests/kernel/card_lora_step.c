/* ctest: card */
/* Large products and their low-rank terms in one call, mode bf16 on a GPU (KK_DEVICE=cuda;
 * emulated, or a real one of Hopper's kind): products_terms and linears_dx have the bits of the
 * calls that they stand for on a GPU that has no such kernels. */
#include "tests/kernel/matrix_kit.h"

#include <unistd.h>

enum { PRODUCTS = 3, WAYS = 4 };
static const char *const ways[WAYS] = {"0", "64", "128", "192"}; /* FMSTORE_CUDA_WIDE */
static char log_path[] = "/tmp/fm_lora_step_XXXXXX";

typedef struct shape {
    uint32_t m, in, out[PRODUCTS], r[PRODUCTS], first, pad;
    uint32_t children[2]; /* rows of each; the second may have none */
} shape;

/* Ranks of one step of 16 and of up to four, odd ones, none; more outputs of terms of one x than
 * one thin product has (33 + 64); rows of one block and of several, of one child and of two; k of
 * one part and of two; a product without a term whose rows are not those of the others (pad 1). */
static const shape shapes[] = {{70, 66, {80, 65, 72}, {16, 16, 16}, 0, 0, {70, 0}},
                               {200, 139, {145, 66, 70}, {3, 0, 33}, 5, 1, {200, 0}},
                               {129, 72, {136, 66, 90}, {33, 64, 0}, 16, 3, {129, 0}},
                               {375, 66, {66, 65, 70}, {17, 4, 0}, 3, 0, {189, 186}}};

static fm_backend *card(const char *wide)
{
    setenv("FMSTORE_CUDA_WIDE", wide, 1);
    return kk_card("bf16");
}

static int open_log(void **state)
{
    int fd = mkstemp(log_path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    setenv("SIMT_WIDE_LOG", log_path, 1);
    return 0;
}
static int close_log(void **state)
{
    (void)state;
    return remove(log_path);
}

/* Blocks that have multiplied in Hopper's way so far, on the emulated GPU. */
static size_t blocks_so_far(void)
{
    FILE *f = fopen(log_path, "r");
    size_t n = 0;

    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

/* ---- what a call reads and writes: one room, the same values for each GPU ---- */

typedef struct room {
    fm_backend *be;
    float *at; /* host_alloc */
    size_t used, cap;
} room;

static float *take(room *r, size_t n)
{
    float *p = r->at + r->used;

    r->used += (n + 7) / 8 * 8 + 8;
    assert_true(r->used <= r->cap);
    return p;
}

static room new_room(fm_backend *be, const float *values, size_t cap)
{
    room r = {be, NULL, 0, cap};
    void *p;

    tk_ok(be->host_alloc(be, &p, cap * sizeof(float)));
    memcpy(p, values, cap * sizeof(float));
    r.at = p;
    return r;
}

typedef struct call {
    room r;
    fm_weight *w[PRODUCTS];
    fm_product product[PRODUCTS];
    fm_back back[2 * PRODUCTS];
    fm_term term[2 * PRODUCTS];
    uint32_t terms, backs;
    const float *x;
    float *dx;
    size_t ldx;
    fm_swiglu made; /* x */
} call;

/* The term of a child's rows, `at` of the shape's rows on; y, dy: of the shape's first row. */
static fm_term term_of(call *c, const shape *s, uint32_t i, uint32_t at, uint32_t m, float *y,
                       const float *dy)
{
    size_t ldy = s->out[i] + s->pad, x = (size_t)(s->first + at) * c->ldx;

    return (fm_term){.a = take(&c->r, (size_t)s->r[i] * s->in),
                     .b = take(&c->r, (size_t)s->r[i] * s->out[i]),
                     .in = s->in,
                     .out = s->out[i],
                     .r = s->r[i],
                     .m = m,
                     .scale = 0.75f,
                     .x = c->x + x,
                     .ldx = c->ldx,
                     .y = y + at * ldy,
                     .ldy = ldy,
                     .u = take(&c->r, (size_t)m * s->r[i]),
                     .dy = dy + at * ldy,
                     .lddy = ldy,
                     .du = take(&c->r, (size_t)m * s->r[i]),
                     .da = take(&c->r, (size_t)s->r[i] * s->in),
                     .db = take(&c->r, (size_t)s->r[i] * s->out[i]),
                     .dx = c->dx + x,
                     .lddx = c->ldx};
}

/* Everything of a shape; forward: y of products, else dy and what follows. */
static void lay_out(call *c, const shape *s)
{
    uint32_t rows = s->first + s->m;
    float *x;

    c->ldx = s->in + s->pad;
    c->x = x = take(&c->r, rows * c->ldx);
    c->dx = take(&c->r, rows * c->ldx);
    c->made = (fm_swiglu){.x = x, .n = rows * c->ldx};
    c->made.gate = take(&c->r, rows * c->ldx);
    c->made.up = take(&c->r, rows * c->ldx);
    c->terms = c->backs = 0;
    for (uint32_t i = 0; i < PRODUCTS; i++) {
        size_t ldy = s->out[i] + s->pad;
        float *y = take(&c->r, rows * ldy), *dy = take(&c->r, rows * ldy);
        c->product[i] = (fm_product){.y = y,
                                     .ldy = ldy,
                                     .w = c->w[i],
                                     .bias = i == 0 ? take(&c->r, s->out[i]) : NULL,
                                     .first = s->first,
                                     .m = s->m - (s->pad == 1 && s->r[i] == 0)};
        y += s->first * ldy;
        dy += s->first * ldy;
        for (uint32_t child = 0, at = 0; child < 2; at += s->children[child++]) {
            uint32_t m = s->children[child];
            fm_back *b = &c->back[c->backs];
            if (m == 0)
                continue;
            c->backs++;
            *b = (fm_back){
                .dy = dy + at * ldy, .lddy = ldy, .w = c->w[i], .first = s->first + at, .m = m};
            if (s->r[i] == 0)
                continue;
            b->term = term_of(c, s, i, at, m, y, dy);
            if (i == 2) { /* frozen, and nobody below */
                b->term.da = s->pad ? NULL : b->term.da;
                b->term.dx = s->pad == 1 ? NULL : b->term.dx;
            }
            c->term[c->terms++] = b->term;
        }
    }
}

static void open_call(call *c, fm_backend *be, const shape *s, const matrix *w, const float *values,
                      size_t cap)
{
    for (uint32_t i = 0; i < PRODUCTS; i++) {
        tk_ok(be->weight_new(be, &c->w[i], FM_ROLE_LINEAR, w[i].dtype, w[i].n, w[i].k, w[i].bytes));
        tk_ok(be->weight_for_dx(be, c->w[i]));
    }
    c->r = new_room(be, values, cap);
    lay_out(c, s);
}

static void close_call(call *c)
{
    fm_backend *be = c->r.be;

    for (uint32_t i = 0; i < PRODUCTS; i++)
        be->weight_free(be, c->w[i]);
    be->host_free(be, c->r.at);
}

/* Forward, backward, backward on top; at once or one call after another. */
static void run(call *c, const shape *s, bool at_once, bool make)
{
    fm_backend *be = c->r.be;
    const fm_swiglu *made = make ? &c->made : NULL;

    if (make && !at_once)
        be->swiglu(be, made->x, made->gate, made->up, made->n);
    if (at_once) {
        be->products_terms(be, c->x, c->ldx, s->in, c->product, PRODUCTS, c->term, c->terms, made);
    } else {
        be->products(be, c->x, c->ldx, s->in, c->product, PRODUCTS);
        be->terms(be, c->term, c->terms);
    }
    for (int add = 0; add < 2; add++) {
        for (uint32_t i = 0; i < c->backs; i++) {
            fm_back *b = &c->back[i];
            b->add = add || b->w != c->w[0];
            if (at_once)
                continue;
            be->linear_dx(be, c->dx + b->first * c->ldx, c->ldx, b->dy, b->lddy, b->w, b->m,
                          b->add);
            be->terms_grad(be, &b->term, 1);
        }
        if (at_once)
            be->linears_dx(be, c->dx, c->ldx, c->back, c->backs, made);
    }
    tk_ok(be->sync(be));
}

static size_t floats_of(const shape *s)
{
    size_t rows = s->first + s->m, n = 2000 + 4 * rows * (s->in + s->pad);

    for (uint32_t i = 0; i < PRODUCTS; i++)
        n += 2 * rows * (s->out[i] + s->pad) + s->out[i] + 2 * (size_t)s->r[i] * s->m +
             4 * (size_t)s->r[i] * (s->in + s->out[i]);
    return n;
}

static size_t rows_of_x(const shape *s)
{
    return (s->first + s->m) * (size_t)(s->in + s->pad);
}

/* Of sizes from 2^-30 to 1, some that cancel; one row is no number. */
static float *values_of(const shape *s, size_t n)
{
    float *v = random_floats(n, 1.0);

    for (size_t i = 0; i < n; i++) {
        if (i / 16 % 3 == 0)
            v[i] *= ldexpf(1.0f, -(int)(i * 7 % 31));
        if (i % 64 == 1)
            v[i] = -v[i - 1];
    }
    v[(s->first + 9) * (s->in + s->pad) + 7] = INFINITY;
    v[(s->first + 20) * (s->in + s->pad) + 8] = NAN;
    return v;
}

TEST(at_once_has_the_bits_of_one_after_another)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(shapes); i++) {
        const shape *s = &shapes[i];
        size_t n = floats_of(s);
        float *values = values_of(s, n);
        matrix w[PRODUCTS];
        call want, got, apart;
        for (uint32_t k = 0; k < PRODUCTS; k++)
            w[k] = random_matrix(FM_BF16, s->out[k], s->in);
        fm_backend *none = card(ways[0]), *wide = card(ways[1 + i % 3]);
        if (!none || !wide)
            skip();
        open_call(&want, none, s, w, values, n);
        open_call(&got, wide, s, w, values, n);
        open_call(&apart, wide, s, w, values, n);
        run(&want, s, false, i == 1);
        run(&apart, s, false, i == 1);
        run(&got, s, true, i == 1); /* its checks are done from here on */
        for (size_t k = i == 1 ? rows_of_x(s) : 0; k < n; k++) /* x made on the way is left open */
            if (memcmp(&got.r.at[k], &want.r.at[k], sizeof(float)) != 0 &&
                !(isnan(got.r.at[k]) && isnan(want.r.at[k]))) /* a GPU has one NaN */
                fail_msg("shape %zu: %a at %zu, expected %a", i, (double)got.r.at[k], k,
                         (double)want.r.at[k]);
        size_t before = blocks_so_far();
        run(&apart, s, false, i == 1);
        size_t between = blocks_so_far();
        run(&got, s, true, i == 1);
        size_t after = blocks_so_far();
        if (between > before) /* terms were multiplied in no launch of their own */
            assert_true(after > between && after - between < between - before);
        call *all[] = {&want, &got, &apart};
        for (size_t k = 0; k < FM_ARRAY_LEN(all); k++)
            close_call(all[k]);
        none->close(none);
        wide->close(wide);
        for (uint32_t k = 0; k < PRODUCTS; k++)
            matrix_free(&w[k]);
        fm_free(values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_once_has_the_bits_of_one_after_another),
    };
    return cmocka_run_group_tests(tests, open_log, close_log);
}
