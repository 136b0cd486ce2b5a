/* gpu_load.c - a child comes onto the GPU while it decodes: a thread makes the weights of a layer
 * from pinned memory, again and again, beside replays of a decode step. The limit of a load is what
 * the bus carries, measured first. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/bench/gpu_bench.h"

typedef struct load {
    gb *g;
    const gw_model *of;
    void *host, *dev; /* pinned; device */
    size_t bytes;     /* of the layer's weights */
    atomic_bool stop;
    double took_s; /* of all loads */
    uint32_t loads;
} load;

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void upload_once(gb *g, void *ctx)
{
    const load *l = ctx;
    gb_must(g->be->upload(g->be, l->dev, l->host, l->bytes), "upload");
}

/* The weights of a layer, made and dropped; returns when they are there. */
static void load_once(gb *g, void *ctx)
{
    const load *l = ctx;
    fm_weight *w[GW_PRODUCTS];
    const unsigned char *from = l->host;

    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n, k;
        gw_product(l->of, i, &n, &k);
        gb_must(g->be->weight_new(g->be, &w[i], FM_ROLE_LINEAR, FM_BF16, n, k, from), "a weight");
        from += (size_t)n * k * 2;
    }
    for (uint32_t i = 0; i < GW_PRODUCTS; i++)
        g->be->weight_free(g->be, w[i]);
}

static void *load_on(void *ctx)
{
    load *l = ctx;
    double from = now_s();

    do {
        load_once(l->g, l);
        l->loads++;
    } while (!atomic_load(&l->stop));
    l->took_s = now_s() - from;
    return NULL;
}

void gb_load(gb *g)
{
    static load l;
    gb_layer layer;
    pthread_t thread;
    char what[112];

    if (!g->be->host_alloc)
        return;
    l = (load){.g = g, .of = g->tiny ? &gw_tiny : &gw_7b};
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n, k;
        gw_product(l.of, i, &n, &k);
        l.bytes += (size_t)n * k * 2;
    }
    gb_must(g->be->host_alloc(g->be, &l.host, l.bytes), "pinned memory");
    memset(l.host, 0x3c, l.bytes);
    l.dev = gb_random(g, l.bytes);
    double bus = gb_time(g, upload_once, &l), alone = gb_time(g, load_once, &l);
    gb_release(g);
    snprintf(what, sizeof what, "load of a %s layer, %.0f MB, bf16", l.of->name,
             1e-6 * (double)l.bytes);
    gb_report(g, what, alone, bus, "the same bytes over the bus");
    gb_layer_open(g, &layer, l.of, FM_BF16, g->tiny ? 1 : 16);
    double quiet = gb_time_replayed(g, gb_layer_products, &layer);
    gb_must(pthread_create(&thread, NULL, load_on, &l) == 0 ? FM_OK : FM_EIO, "a thread");
    double beside = gb_time_replayed(g, gb_layer_products, &layer);
    atomic_store(&l.stop, true);
    (void)pthread_join(thread, NULL);
    snprintf(what, sizeof what, "the same beside decoding, batch %u", layer.m);
    gb_report(g, what, l.took_s / l.loads, bus, "the same bytes over the bus");
    snprintf(what, sizeof what, "decode, %s layer, batch %u, beside loads", l.of->name, layer.m);
    gb_report(g, what, beside, quiet, "the same without loads");
    gb_layer_close(g, &layer);
    g->be->host_free(g->be, l.host);
}
