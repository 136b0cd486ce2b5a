/* gpu_parts.c - what bench_gpu times: layers of 1B and 7B models out of random weights, operation
 * by operation through the seam, in the lists that the engine makes. */
#include <stdio.h>

#include "tests/bench/gpu_bench.h"

#define RANK GB_RANK
#define CHILDREN GB_CHILDREN

/* ---- a layer's products ---- */

typedef gb_layer layer;

/* q k v and gate up share x. */
static const uint32_t group_of[GW_PRODUCTS] = {0, 0, 0, 3, 4, 4, 6};

void gb_layer_open(gb *g, gb_layer *l, const gw_model *model, fm_dtype d, uint32_t m)
{
    *l = (layer){.model = model, .m = m};
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        gw_product(model, i, &l->n[i], &l->k[i]);
        l->w[i] = gb_weight(g, FM_ROLE_LINEAR, d, l->n[i], l->k[i]);
        l->y[i] = gb_floats(g, (size_t)m * l->n[i]);
        l->x[i] = group_of[i] == i ? gb_floats(g, (size_t)m * l->k[i]) : l->x[group_of[i]];
    }
}

void gb_layer_close(gb *g, gb_layer *l)
{
    gb_must(g->be->sync(g->be), "sync");
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        g->be->weight_free(g->be, l->w[i]);
        for (uint32_t t = 0; t < l->terms; t++) {
            g->be->weight_free(g->be, l->a[i][t]);
            g->be->weight_free(g->be, l->b[i][t]);
        }
    }
    gb_release(g);
}

void gb_layer_products(gb *g, void *ctx)
{
    const layer *l = ctx;

    for (uint32_t i = 0; i < GW_PRODUCTS;) {
        fm_product list[3];
        uint32_t count = 0, first = i;
        for (; i < GW_PRODUCTS && group_of[i] == first; i++)
            list[count++] = (fm_product){.y = l->y[i], .ldy = l->n[i], .w = l->w[i], .m = l->m};
        g->be->products(g->be, l->x[first], l->k[first], l->k[first], list, count);
    }
}

/* Every row is another child's. */
static void layer_terms(gb *g, void *ctx)
{
    const layer *l = ctx;
    fm_lora list[3 * CHILDREN];

    gb_layer_products(g, ctx);
    for (uint32_t i = 0; i < GW_PRODUCTS;) {
        uint32_t count = 0, first = i;
        for (; i < GW_PRODUCTS && group_of[i] == first; i++)
            for (uint32_t t = 0; t < l->terms; t++)
                list[count++] = (fm_lora){.y = l->y[i],
                                          .ldy = l->n[i],
                                          .a = l->a[i][t],
                                          .b = l->b[i][t],
                                          .scale = 0.5f,
                                          .first = t * (l->m / l->terms),
                                          .m = l->m / l->terms};
        g->be->lora(g->be, l->x[first], l->k[first], l->k[first], list, count);
    }
}

bool gb_has_type(gb *g, fm_dtype d)
{
    uint64_t bytes;
    fm_status rc = g->be->weight_image_bytes(g->be, &bytes, FM_ROLE_LINEAR, d, 256, 256);

    fm_error_clear();
    return rc == FM_OK;
}

/* torch's request for all products of a layer. */
static const char *layer_request(char *text, size_t cap, const layer *l)
{
    int at = snprintf(text, cap, "layer %u", l->m);
    for (uint32_t i = 0; i < GW_PRODUCTS; i++)
        at += snprintf(text + at, cap - (size_t)at, " %u %u", l->n[i], l->k[i]);
    return text;
}

void gb_decode(gb *g)
{
    static const uint32_t batch[] = {1, 4, 16, 64};
    static const fm_dtype types[] = {FM_BF16, FM_F8_E4M3, FM_Q8_0, FM_Q4_0, FM_Q4_K};
    char request[256];
    const gw_model *models[] = {g->tiny ? &gw_tiny : &gw_1b, g->tiny ? &gw_tiny : &gw_7b};

    for (size_t i = 0; i < 2; i++)
        for (size_t d = 0; d < FM_ARRAY_LEN(types); d++)
            for (size_t b = 0; b < FM_ARRAY_LEN(batch); b++) {
                layer l;
                char what[96];
                if ((g->tiny && (i == 0 || b == 1 || b == 3)) || (i == 0 && d > 0) ||
                    !gb_has_type(g, types[d]))
                    continue;
                gb_layer_open(g, &l, models[i], types[d], batch[b]);
                double s = gb_time_replayed(g, gb_layer_products, &l);
                snprintf(what, sizeof what, "decode, %s layer, %s, batch %u", models[i]->name,
                         fm_dtype_get(types[d])->name, batch[b]);
                gb_report(g, what, s, gw_layer_bytes(models[i], types[d], batch[b]) / g->bytes_s,
                          "bytes");
                if (types[d] == FM_BF16)
                    gb_beside_torch(g, what, s, layer_request(request, sizeof request, &l));
                gb_layer_close(g, &l);
            }
}

void gb_prefill(gb *g)
{
    const gw_model *model = g->tiny ? &gw_tiny : &gw_7b;
    const uint32_t rows[] = {g->tiny ? 20 : 512, g->tiny ? 70 : 4096};
    static const fm_dtype types[] = {FM_BF16, FM_F8_E4M3, FM_Q8_0, FM_Q4_0, FM_Q4_K};

    for (size_t i = 0; i < FM_ARRAY_LEN(rows) * FM_ARRAY_LEN(types); i++) {
        layer l;
        char what[96], beside[128], request[256];
        double library = 0.0;
        uint32_t m = rows[i % FM_ARRAY_LEN(rows)];
        fm_dtype d = types[i / FM_ARRAY_LEN(rows)];
        if (!gb_has_type(g, d) || (g->tiny && i > 3))
            continue;
        gb_layer_open(g, &l, model, d, m);
        double s = gb_time(g, gb_layer_products, &l);
        snprintf(what, sizeof what, "prefill, %s layer, %s, %u rows", model->name,
                 fm_dtype_get(d)->name, m);
        gb_report(g, what, s, gw_layer_flops(model, m) / g->flops_s, "bf16 peak");
        for (uint32_t p = 0; p < GW_PRODUCTS && d == FM_BF16; p++)
            library += gb_library_s(g, m, l.n[p], l.k[p]);
        snprintf(beside, sizeof beside, "%s, beside cuBLASLt", what);
        if (library > 0.0)
            gb_report(g, beside, s, library, "cuBLASLt's time");
        if (d == FM_BF16)
            gb_beside_torch(g, what, s, layer_request(request, sizeof request, &l));
        gb_layer_close(g, &l);
    }
}

void gb_lora(gb *g)
{
    const gw_model *model = g->tiny ? &gw_tiny : &gw_7b;
    const uint32_t m = g->tiny ? 4 : CHILDREN;
    layer l;
    char what[96];

    if (!g->be->lora)
        return;
    gb_layer_open(g, &l, model, FM_BF16, m);
    double plain = gb_time_replayed(g, gb_layer_products, &l);
    l.terms = m;
    for (uint32_t i = 0; i < GW_PRODUCTS; i++)
        for (uint32_t t = 0; t < m; t++) {
            l.a[i][t] = gb_weight(g, FM_ROLE_LORA_A, FM_BF16, RANK, l.k[i]);
            l.b[i][t] = gb_weight(g, FM_ROLE_LORA_B, FM_BF16, l.n[i], RANK);
        }
    double with = gb_time_replayed(g, layer_terms, &l);
    double bytes = gw_layer_bytes(model, FM_BF16, m);
    snprintf(what, sizeof what, "%u rows of %u children, rank %u, %s layer", m, m, RANK,
             model->name);
    gb_report(g, what, with, (bytes + gw_lora_bytes(model, m, RANK, m)) / g->bytes_s, "bytes");
    snprintf(what, sizeof what, "%u rows of %u children, beside one model", m, m);
    gb_report(g, what, with, plain, "the same rows of one model");
    gb_layer_close(g, &l);
}

/* ---- attention ---- */

typedef struct attending {
    fm_attn a;
} attending;

static void attend_once(gb *g, void *ctx)
{
    const attending *t = ctx;
    g->be->attention(g->be, &t->a);
}

int32_t *gb_filled(gb *g, uint32_t n, uint32_t each, int32_t base, int32_t step)
{
    int32_t *p = gb_count(g, n);
    int32_t host[8192];

    for (uint32_t i = 0; i < n && i < FM_ARRAY_LEN(host); i++)
        host[i] = base + step * (int32_t)(i / each);
    gb_must(g->be->upload(g->be, p, host, FM_MIN(n, (uint32_t)FM_ARRAY_LEN(host)) * sizeof *p),
            "upload");
    return p;
}

/* Keys and values of `pages` pages, written through the seam. */
fm_kv_view gb_pages(gb *g, const gw_model *m, uint32_t pages)
{
    size_t bytes = g->be->kv_page_bytes(g->be, m->nkv, m->hd), kv = (size_t)m->nkv * m->hd;
    uint32_t rows = pages * FM_KV_PAGE, most = FM_MIN(rows, 4096u);
    fm_kv_view v = {.k = gb_random(g, pages * bytes), .v = gb_random(g, pages * bytes)};
    float *k = gb_floats(g, most * kv);

    for (uint32_t at = 0; at < rows; at += most) {
        uint32_t n = FM_MIN(rows - at, most);
        int32_t *slot = gb_filled(g, n, 1, (int32_t)at, 1);
        g->be->kv_write(g->be, v, k, kv, k, kv, slot, n, m->nkv, m->hd);
        gb_must(g->be->sync(g->be), "sync");
        g->be->free(g->be, slot);
        g->ptrs--;
    }
    return v;
}

/* rows of seqs sequences of `positions` each: the last row of each, or all rows of one. */
static void attention_part(gb *g, const gw_model *m, uint32_t seqs, uint32_t positions, bool all)
{
    uint32_t rows = all ? positions : seqs, each = (positions + FM_KV_PAGE - 1) / FM_KV_PAGE;
    size_t width = (size_t)m->nh * m->hd;
    char what[96];
    attending t = {.a = {.kv = gb_pages(g, m, seqs * each),
                         .table = gb_count(g, seqs * each),
                         .table_stride = each,
                         .m = rows,
                         .nh = m->nh,
                         .nkv = m->nkv,
                         .hd = m->hd,
                         .ldo = width,
                         .ldq = width,
                         .scale = 0.1f}};
    float *out = gb_floats(g, rows * width);

    t.a.out = out;
    t.a.q = gb_floats(g, rows * width);
    t.a.seq = gb_filled(g, rows, 1, 0, all ? 0 : 1);
    t.a.pos = gb_filled(g, rows, 1, all ? 0 : (int32_t)positions - 1, all ? 1 : 0);
    double s = all ? gb_time(g, attend_once, &t) : gb_time_replayed(g, attend_once, &t);
    char request[96];
    double bytes =
        gw_decode_bytes(m, seqs, positions, (double)g->be->kv_page_bytes(g->be, m->nkv, m->hd));
    snprintf(what, sizeof what, "attention, %s, %u x %u positions, %s", m->name, seqs, positions,
             all ? "prefill" : "decode");
    if (all)
        snprintf(request, sizeof request, "prefill %u %u %u %u", m->nh, m->nkv, m->hd, positions);
    else
        snprintf(request, sizeof request, "decode %u %u %u %u %u", seqs, m->nh, m->nkv, m->hd,
                 positions);
    if (all)
        gb_report(g, what, s, gw_prefill_flops(m, positions) / g->flops_s, "bf16 peak");
    else
        gb_report(g, what, s, bytes / g->bytes_s, "bytes");
    gb_beside_torch(g, what, s, request);
    gb_release(g);
}

void gb_attention(gb *g)
{
    if (!g->be->attention || !g->be->kv_write || !g->be->kv_page_bytes)
        return;
    attention_part(g, g->tiny ? &gw_tiny : &gw_7b, g->tiny ? 3 : 64, g->tiny ? 70 : 2048, false);
    attention_part(g, g->tiny ? &gw_tiny : &gw_1b, g->tiny ? 3 : 64, g->tiny ? 70 : 2048, false);
    attention_part(g, g->tiny ? &gw_tiny : &gw_7b, 1, g->tiny ? 70 : 4096, true);
    if (!g->tiny)
        attention_part(g, &gw_1b, 1, 4096, true);
}

/* ---- a LoRA step of one layer, mode bf16 ---- */

typedef struct step {
    layer l;
    fm_term term[GW_PRODUCTS];
    float *dx[GW_PRODUCTS];
    fm_attn_train attn;
    fm_train_seq seq;
    bool attends;
} step;

static void step_forward(gb *g, const step *s)
{
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        const fm_product p = {.y = s->l.y[i], .ldy = s->l.n[i], .w = s->l.w[i], .m = s->l.m};
        const uint32_t k = s->l.k[i];
        if (g->be->products_terms) {
            g->be->products_terms(g->be, s->l.x[i], k, k, &p, 1, &s->term[i], 1, NULL);
        } else {
            g->be->products(g->be, s->l.x[i], k, k, &p, 1);
            g->be->terms(g->be, &s->term[i], 1);
        }
    }
    if (s->attends)
        g->be->self_attention(g->be, &s->attn);
}

static void step_once(gb *g, void *ctx)
{
    const step *s = ctx;

    step_forward(g, s);
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        const fm_back b = {
            .dy = s->l.y[i], .lddy = s->l.n[i], .w = s->l.w[i], .m = s->l.m, .term = s->term[i]};
        if (g->be->linears_dx) {
            g->be->linears_dx(g->be, s->dx[i], s->l.k[i], &b, 1, NULL);
        } else {
            g->be->linear_dx(g->be, s->dx[i], s->l.k[i], b.dy, b.lddy, b.w, b.m, false);
            g->be->terms_grad(g->be, &b.term, 1);
        }
    }
    if (s->attends)
        g->be->self_attention_grad(g->be, &s->attn);
}

static void step_attention(gb *g, step *s, const gw_model *m, uint32_t rows)
{
    size_t q = (size_t)rows * m->nh * m->hd, kv = (size_t)rows * m->nkv * m->hd;

    s->attends = g->be->self_attention && g->be->self_attention_grad;
    if (!s->attends)
        return;
    s->seq.len = rows;
    s->attn = (fm_attn_train){.seqs = 1,
                              .rows = rows,
                              .nh = m->nh,
                              .nkv = m->nkv,
                              .hd = m->hd,
                              .scale = 0.1f,
                              .seq = &s->seq,
                              .q = s->l.y[0],
                              .k = s->l.y[1],
                              .v = s->l.y[2],
                              .ldq = (size_t)m->nh * m->hd,
                              .ldk = (size_t)m->nkv * m->hd,
                              .out = gb_floats(g, q),
                              .lse = gb_floats(g, (size_t)rows * m->nh),
                              .dout = gb_floats(g, q),
                              .dq = gb_floats(g, q),
                              .dk = gb_floats(g, kv),
                              .dv = gb_floats(g, kv)};
}

void gb_train(gb *g)
{
    const gw_model *m = g->tiny ? &gw_tiny : &gw_7b;
    const uint32_t rows = g->tiny ? 40 : 4096;
    static step s;
    char what[96];

    if (!g->be->linear_dx || !g->be->terms || !g->be->terms_grad)
        return;
    gb_layer_open(g, &s.l, m, FM_BF16, rows);
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n = s.l.n[i], k = s.l.k[i];
        s.dx[i] = gb_floats(g, (size_t)rows * k);
        gb_must(g->be->weight_for_dx(g->be, s.l.w[i]), "weight_for_dx");
        s.term[i] = (fm_term){.a = gb_floats(g, (size_t)RANK * k),
                              .b = gb_floats(g, (size_t)n * RANK),
                              .in = k,
                              .out = n,
                              .r = RANK,
                              .m = rows,
                              .scale = 0.5f,
                              .x = s.l.x[i],
                              .ldx = k,
                              .y = s.l.y[i],
                              .ldy = n,
                              .u = gb_floats(g, (size_t)rows * RANK),
                              .dy = s.l.y[i],
                              .lddy = n,
                              .du = gb_floats(g, (size_t)rows * RANK),
                              .da = gb_floats(g, (size_t)RANK * k),
                              .db = gb_floats(g, (size_t)n * RANK),
                              .dx = s.dx[i],
                              .lddx = k};
    }
    step_attention(g, &s, m, rows);
    double t = gb_time(g, step_once, &s);
    /* attention: two products forward, five back */
    double flops =
        gw_lora_step_flops(m, rows) + (s.attends ? 3.5 * gw_prefill_flops(m, rows) : 0.0);
    snprintf(what, sizeof what, "LoRA step, %s layer, %u rows%s", m->name, rows,
             s.attends ? "" : ", no attention");
    gb_report(g, what, t, flops / g->flops_s, "bf16 peak (MFU)");
    gb_layer_close(g, &s.l);
}
