/* gpu_model.c - a decode step of a whole model out of random weights, every layer its own: all
 * that a server's step runs on the GPU, recorded and replayed. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "tests/bench/gpu_bench.h"

#define LAYERS_MAX 32u

typedef struct model {
    const gw_model *of;
    uint32_t m;
    fm_weight *w[LAYERS_MAX][GW_PRODUCTS], *head;
    float *x, *xn, *q, *k, *v, *att, *o, *gate, *up, *logits;
    const float *gain, *cos, *sin;
    const int32_t *pos, *slot, *seq, *table;
    uint32_t table_stride;
    fm_kv_view kv;
    int32_t *token; /* and whether it is bad */
    fm_pick *pick;
} model;

static void attend(gb *g, const model *t)
{
    const gw_model *m = t->of;
    fm_backend *be = g->be;
    const uint32_t q = m->nh * m->hd, kv = m->nkv * m->hd;

    be->keep_rows(be, &(fm_new_rows){.kv = t->kv,
                                     .q = t->q,
                                     .k = t->k,
                                     .v = t->v,
                                     .ldq = q,
                                     .ldk = kv,
                                     .ldv = kv,
                                     .slot = t->slot,
                                     .pos = t->pos,
                                     .cos = t->cos,
                                     .sin = t->sin,
                                     .m = t->m,
                                     .nh = m->nh,
                                     .nkv = m->nkv,
                                     .hd = m->hd,
                                     .turns = m->hd});
    be->attention(be, &(fm_attn){.out = t->att,
                                 .ldo = q,
                                 .q = t->q,
                                 .ldq = q,
                                 .kv = t->kv,
                                 .table = t->table,
                                 .table_stride = t->table_stride,
                                 .seq = t->seq,
                                 .pos = t->pos,
                                 .m = t->m,
                                 .nh = m->nh,
                                 .nkv = m->nkv,
                                 .hd = m->hd,
                                 .scale = 0.1f,
                                 .single = true});
}

/* xn is what the layer reads, and then what the next one reads. */
static void run_layer(gb *g, const model *t, fm_weight *const *w)
{
    const gw_model *m = t->of;
    fm_backend *be = g->be;
    const uint32_t q = m->nh * m->hd, kv = m->nkv * m->hd, h = m->h, rows = t->m;
    const fm_product qkv[] = {{.y = t->q, .ldy = q, .w = w[0], .m = rows},
                              {.y = t->k, .ldy = kv, .w = w[1], .m = rows},
                              {.y = t->v, .ldy = kv, .w = w[2], .m = rows}};
    const fm_product out = {.y = t->o, .ldy = h, .w = w[3], .m = rows};
    const fm_product both[] = {{.y = t->gate, .ldy = m->inter, .w = w[4], .m = rows},
                               {.y = t->up, .ldy = m->inter, .w = w[5], .m = rows}};
    const fm_product down = {.y = t->o, .ldy = h, .w = w[6], .m = rows};

    be->products(be, t->xn, h, h, qkv, 3);
    attend(g, t);
    be->products(be, t->att, q, q, &out, 1);
    be->add_rmsnorm(be, t->xn, t->x, t->o, t->gain, rows, h, 1e-5f);
    be->products(be, t->xn, h, h, both, 2);
    be->swiglu(be, t->gate, t->gate, t->up, (uint64_t)rows * m->inter);
    be->products(be, t->gate, m->inter, m->inter, &down, 1);
    be->add_rmsnorm(be, t->xn, t->x, t->o, t->gain, rows, h, 1e-5f);
}

static void step(gb *g, void *ctx)
{
    const model *t = ctx;
    fm_backend *be = g->be;
    const uint32_t h = t->of->h, vocab = t->of->vocab;
    const fm_product head = {.y = t->logits, .ldy = vocab, .w = t->head, .m = t->m, .split = true};

    be->rmsnorm(be, t->xn, t->x, t->gain, NULL, t->m, h, h, 1e-5f);
    for (uint32_t l = 0; l < t->of->layers; l++)
        run_layer(g, t, t->w[l]);
    be->products(be, t->xn, h, h, &head, 1);
    be->sample(be, t->token, t->token + t->m, t->logits, vocab, t->pick, t->m, vocab);
}

static void rows_open(gb *g, model *t, uint32_t m, uint32_t positions)
{
    const gw_model *of = t->of;
    const uint32_t each = (positions + FM_KV_PAGE - 1) / FM_KV_PAGE;
    const size_t q = (size_t)of->nh * of->hd, kv = (size_t)of->nkv * of->hd;
    fm_pick *pick = fm_calloc(m, sizeof *pick);

    t->m = m;
    t->x = gb_floats(g, m * (size_t)of->h);
    t->xn = gb_floats(g, m * (size_t)of->h);
    t->o = gb_floats(g, m * (size_t)of->h);
    t->q = gb_floats(g, m * q);
    t->att = gb_floats(g, m * q);
    t->k = gb_floats(g, m * kv);
    t->v = gb_floats(g, m * kv);
    t->gate = gb_floats(g, m * (size_t)of->inter);
    t->up = gb_floats(g, m * (size_t)of->inter);
    t->logits = gb_floats(g, m * (size_t)of->vocab);
    t->gain = gb_floats(g, of->h);
    t->cos = gb_floats(g, (size_t)positions * of->hd / 2);
    t->sin = gb_floats(g, (size_t)positions * of->hd / 2);
    t->kv = gb_pages(g, of, m * each);
    t->table = gb_count(g, m * each);
    t->table_stride = each;
    t->seq = gb_filled(g, m, 1, 0, 1);
    t->pos = gb_filled(g, m, 1, (int32_t)positions - 1, 0);
    t->slot = gb_filled(g, m, 1, (int32_t)positions - 1, (int32_t)(each * FM_KV_PAGE));
    t->token = gb_random(g, 2 * m * sizeof(int32_t));
    t->pick = gb_random(g, m * sizeof *pick);
    if (!pick)
        gb_must(FM_ENOMEM, "host memory");
    for (uint32_t i = 0; i < m; i++) /* greedy */
        pick[i] =
            (fm_pick){.row = i, .vocab = of->vocab, .top_p = 1.0f, .repetition_penalty = 1.0f};
    gb_must(g->be->upload(g->be, t->pick, pick, m * sizeof *pick), "upload");
    fm_free(pick);
}

/* All layers share one cache of keys and values: as many bytes are read as from their own. */
void gb_model(gb *g)
{
    static const uint32_t batch[] = {1, 16, 64};
    const uint32_t positions = g->tiny ? 40 : 512;
    static model t;

    if (!g->be->sample || !g->be->attention)
        return;
    t = (model){.of = g->tiny ? &gw_tiny : &gw_1b};
    for (uint32_t l = 0; l < t.of->layers; l++)
        for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
            uint32_t n, k;
            gw_product(t.of, i, &n, &k);
            t.w[l][i] = gb_weight(g, FM_ROLE_LINEAR, FM_BF16, n, k);
        }
    t.head = gb_weight(g, FM_ROLE_LINEAR, FM_BF16, t.of->vocab, t.of->h);
    for (size_t b = 0; b < FM_ARRAY_LEN(batch) - (g->tiny ? 1 : 0); b++) {
        char what[112];
        rows_open(g, &t, batch[b], positions);
        double page = (double)g->be->kv_page_bytes(g->be, t.of->nkv, t.of->hd);
        double bytes = gw_step_bytes(t.of, FM_BF16, batch[b], positions, page);
        double s = gb_time_replayed(g, step, &t);
        snprintf(what, sizeof what, "decode step, %s model, bf16, %u positions, batch %u",
                 t.of->name, positions, batch[b]);
        gb_report(g, what, s, bytes / g->bytes_s, "bytes");
        gb_release(g);
    }
    for (uint32_t l = 0; l < t.of->layers; l++)
        for (uint32_t i = 0; i < GW_PRODUCTS; i++)
            g->be->weight_free(g->be, t.w[l][i]);
    g->be->weight_free(g->be, t.head);
}
