/* gpu_moe.c - a layer's branch with experts, as block_moe.c runs it: the choice, the lists and the
 * products of all experts on the GPU. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "tests/bench/gpu_bench.h"

typedef struct moe {
    const gw_moe *of;
    uint32_t m;
    fm_weight *router, **gate, **up, **down;
    fm_product *both, *last;
    float *x, *score, *xr, *g, *u, *yr, *y, *weight;
    int32_t *expert, *list, *begin, *bound, *row, *number;
} moe;

static void once(gb *g, void *ctx)
{
    const moe *t = ctx;
    const gw_moe *w = t->of;
    fm_backend *be = g->be;
    const uint32_t all = t->m * w->chosen;
    const fm_product router = {.y = t->score, .ldy = w->experts, .w = t->router, .m = t->m};

    be->products(be, t->x, w->h, w->h, &router, 1);
    be->route(be, &(fm_route){.score = t->score,
                              .ld = w->experts,
                              .m = t->m,
                              .experts = w->experts,
                              .chosen = w->chosen,
                              .renormalise = true,
                              .bound = t->bound,
                              .parts = 1,
                              .weight = t->weight,
                              .expert = t->expert,
                              .list = t->list,
                              .begin = t->begin});
    be->copy_rows(be, t->xr, w->h, t->x, w->h, t->row, all, w->h);
    be->products(be, t->xr, w->h, w->h, t->both, 2 * w->experts);
    be->act(be, FM_ACT_SILU, t->g, w->inter, t->g, w->inter, t->u, w->inter, all, w->inter);
    be->products(be, t->g, w->inter, w->inter, t->last, w->experts);
    be->mix_rows(be, t->y, w->h, t->yr, w->h, t->number, t->weight, w->chosen, t->m, w->h);
}

static fm_product of_expert(const moe *t, uint32_t e, float *y, uint32_t n, const fm_weight *w)
{
    return (fm_product){.y = y,
                        .ldy = n,
                        .w = w,
                        .m = t->m,
                        .rows = t->list,
                        .from = t->begin + e,
                        .to = t->begin + e + 1,
                        .listed = t->m * t->of->chosen};
}

static void rows_open(gb *g, moe *t, uint32_t m)
{
    const gw_moe *w = t->of;
    const uint32_t all = m * w->chosen;
    const int32_t bound[] = {0, (int32_t)m};

    t->m = m;
    t->x = gb_floats(g, (size_t)m * w->h);
    t->y = gb_floats(g, (size_t)m * w->h);
    t->score = gb_floats(g, (size_t)m * w->experts);
    t->xr = gb_floats(g, (size_t)all * w->h);
    t->yr = gb_floats(g, (size_t)all * w->h);
    t->g = gb_floats(g, (size_t)all * w->inter);
    t->u = gb_floats(g, (size_t)all * w->inter);
    t->weight = gb_floats(g, all);
    t->expert = gb_count(g, all);
    t->list = gb_count(g, all);
    t->begin = gb_count(g, w->experts + 1);
    t->bound = gb_count(g, 2);
    t->number = gb_count(g, all);
    t->row = gb_count(g, all);
    gb_must(g->be->upload(g->be, t->bound, bound, sizeof bound), "upload");
    int32_t *row = fm_malloc(all * sizeof *row);
    if (!row)
        gb_must(FM_ENOMEM, "host memory");
    for (uint32_t i = 0; i < all; i++)
        row[i] = (int32_t)(i / w->chosen);
    gb_must(g->be->upload(g->be, t->row, row, all * sizeof *row), "upload");
    fm_free(row);
    for (uint32_t e = 0; e < w->experts; e++) {
        t->both[e] = of_expert(t, e, t->g, w->inter, t->gate[e]);
        t->both[w->experts + e] = of_expert(t, e, t->u, w->inter, t->up[e]);
        t->last[e] = of_expert(t, e, t->yr, w->h, t->down[e]);
    }
}

/* Experts that some row went to, after a run. */
static uint32_t distinct(gb *g, const moe *t)
{
    int32_t begin[1025];
    uint32_t n = 0;

    gb_must(g->be->download(g->be, begin, t->begin, (t->of->experts + 1) * sizeof *begin),
            "download");
    for (uint32_t e = 0; e < t->of->experts; e++)
        n += begin[e + 1] > begin[e];
    return n;
}

static void weights(gb *g, moe *t, bool open)
{
    const gw_moe *w = t->of;
    fm_weight **list[] = {t->gate, t->up, t->down};

    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t e = 0; e < w->experts; e++)
            if (open)
                list[i][e] = gb_weight(g, FM_ROLE_LINEAR, FM_BF16, i == 2 ? w->h : w->inter,
                                       i == 2 ? w->inter : w->h);
            else
                g->be->weight_free(g->be, list[i][e]);
    if (open)
        t->router = gb_weight(g, FM_ROLE_LINEAR, FM_BF16, w->experts, w->h);
    else
        g->be->weight_free(g->be, t->router);
}

void gb_moe(gb *g)
{
    static const uint32_t rows[] = {1, 16, 64, 512, 4096};
    static fm_weight *gate[128], *up[128], *down[128];
    static fm_product both[256], last[128];
    moe t = {.of = g->tiny ? &gw_moe_tiny : &gw_30b_a3b,
             .gate = gate,
             .up = up,
             .down = down,
             .both = both,
             .last = last};

    weights(g, &t, true);
    for (size_t i = 0; i < FM_ARRAY_LEN(rows) - (g->tiny ? 2 : 0); i++) {
        char what[112];
        rows_open(g, &t, rows[i]);
        double s = rows[i] > 64 ? gb_time(g, once, &t) : gb_time_replayed(g, once, &t);
        uint32_t n = distinct(g, &t);
        double bytes = gw_moe_bytes(t.of, FM_BF16, rows[i], n) / g->bytes_s;
        double flops = gw_moe_flops(t.of, rows[i]) / g->flops_s;
        snprintf(what, sizeof what, "experts, %s layer, %u rows to %u of %u", t.of->name, rows[i],
                 n, t.of->experts);
        gb_report(g, what, s, FM_MAX(bytes, flops), bytes > flops ? "bytes" : "bf16 peak");
        gb_release(g);
    }
    weights(g, &t, false);
}
