/* train_limits.c - the products of a training step, by oneDNN alone.
 *
 * For each linear layer: y = x W^T, dx = dy W and, where the weight trains, dW = dy^T x, each on
 * its own shape, weights packed beforehand; the head likewise. Attention, norms, low-rank terms
 * and the optimizer count nothing, so nobody reaches the whole of it. */
#include "tests/bench/train_bench.h"

#define LAYERS 5u
#define WAYS 3u        /* y, dx, dW */
#define MOST_ROWS 1024 /* more rows run at the same rate; the time is scaled */

typedef struct way {
    bk_product *p;
    double scale; /* rows of the step over rows of p */
    double best;  /* seconds of p */
    double flops; /* of the step's, scaled */
    uint32_t times;
} way;

struct tb_limit {
    way w[LAYERS * WAYS];
    size_t n;
};

bool tb_limit_has(int kind)
{
#if defined(__x86_64__)
    return kind == BK_F32 || __builtin_cpu_supports("avx512bw");
#else
    return kind == BK_F32;
#endif
}

static void add(tb_limit *l, int kind, uint32_t times, double scale, int64_t m, int64_t n,
                int64_t k)
{
    way *w = &l->w[l->n++];

    *w = (way){.p = bk_product_open(kind, m, n, k),
               .scale = scale,
               .best = 1e9,
               .flops = 2.0 * scale * (double)m * (double)n * (double)k * times,
               .times = times};
    bk_product_run(w->p);
}

tb_limit *tb_limit_open(const fm_arch *a, int kind, uint32_t rows, bool full)
{
    int64_t wide = (int64_t)a->heads * a->head_dim;
    int64_t kv = (int64_t)a->kv_heads * a->head_dim;
    const struct {
        int64_t n, k;
        uint32_t times;
    } shape[LAYERS] = {{wide, a->hidden, 2 * a->layers},
                       {kv, a->hidden, 2 * a->layers},
                       {a->inter, a->hidden, 2 * a->layers},
                       {a->hidden, a->inter, a->layers},
                       {a->vocab, a->hidden, 1}};
    int64_t m = FM_MIN(rows, MOST_ROWS);
    double scale = (double)rows / (double)m;
    tb_limit *l = fm_calloc(1, sizeof(*l));

    assert_non_null(l);
    for (size_t i = 0; i < LAYERS; i++) {
        add(l, kind, shape[i].times, scale, m, shape[i].n, shape[i].k);
        add(l, kind, shape[i].times, scale, m, shape[i].k, shape[i].n);
        if (full)
            add(l, kind, shape[i].times, scale, shape[i].n, shape[i].k, m);
    }
    return l;
}

void tb_limit_take(tb_limit *l)
{
    for (size_t i = 0; i < l->n; i++) {
        double t = bk_product_s(l->w[i].p, 0.03);
        l->w[i].best = t < l->w[i].best ? t : l->w[i].best;
    }
    bk_rest();
}

double tb_limit_s(const tb_limit *l)
{
    double sum = 0;
    for (size_t i = 0; i < l->n; i++)
        sum += l->w[i].best * l->w[i].scale * l->w[i].times;
    return sum;
}

double tb_limit_flops(const tb_limit *l)
{
    double sum = 0;
    for (size_t i = 0; i < l->n; i++)
        sum += l->w[i].flops;
    return sum;
}

void tb_limit_close(tb_limit *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n; i++)
        bk_product_close(l->w[i].p);
    fm_free(l);
}
