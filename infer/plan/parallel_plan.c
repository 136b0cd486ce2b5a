/* parallel_plan.c - bytes, memory and time of a model over ranks.
 *
 * Bytes are counted as comm/comm.c sends them: an exchange is all to all, so between nodes each
 * pair of ranks sends its part, and a node's way out carries those of all its ranks. Links work at
 * the same time; an exchange takes as long as the slowest. */
#include "infer/parallel_plan.h"

#include <stdlib.h>
#include <string.h>

#include "infer/model/shard.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define SMALL_BYTES (64u << 10) /* comm/comm.c: an all_reduce below this is one exchange */
#define SLICE_FLOATS 16u

/* ==== topologies ==== */

typedef struct usual { /* one way, bytes a second; what is declared or measured goes before it */
    const char *word;
    fm_link link;
    bool shared;
    double bytes_s, latency_s;
} usual;

static const usual links[] = {
    {"nvlink", FM_LINK_DEVICE, false, 450e9, 10e-6}, /* NVLink 4 of an H100 or H200 */
    {"pcie", FM_LINK_BUS, false, 50e9, 15e-6},       /* PCIe 5 x16, what is left of 63 */
    {"host", FM_LINK_HOST, true, 2e9, 30e-6},        /* sockets of one host */
};

static fm_status bad(const char *key, const char *value)
{
    return fm_fail(FM_EINVAL,
                   "topology: %s=%s is not understood; it has ranks, nodes, link (nvlink, pcie, "
                   "host), link-gb, net-gb, memory-gib, memory-gb, tflops",
                   key, value);
}

static fm_status set_link(fm_topology *t, const char *value)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(links); i++)
        if (strcmp(links[i].word, value) == 0) {
            t->inside = links[i].link;
            t->shared = links[i].shared;
            t->inside_bytes_s = links[i].bytes_s;
            t->inside_latency_s = links[i].latency_s;
            return FM_OK;
        }
    return bad("link", value);
}

static fm_status set_key(fm_topology *t, const char *key, const char *value)
{
    char *end = NULL;
    if (strcmp(key, "link") == 0)
        return set_link(t, value);
    double x = strtod(value, &end);
    bool number = end != value && *end == '\0' && x > 0.0 && x < 1e9;
    bool whole = number && x <= FM_COMM_MAX_RANKS && x - (double)(uint32_t)x <= 0.0;
    if (strcmp(key, "ranks") == 0 && whole)
        t->ranks = (uint32_t)x;
    else if (strcmp(key, "nodes") == 0 && whole)
        t->nodes = (uint32_t)x;
    else if (strcmp(key, "link-gb") == 0 && number)
        t->inside_bytes_s = x * 1e9;
    else if (strcmp(key, "net-gb") == 0 && number)
        t->net_bytes_s = x * 1e9;
    else if (strcmp(key, "memory-gib") == 0 && number)
        t->memory_bytes = (uint64_t)(x * 1073741824.0);
    else if (strcmp(key, "memory-gb") == 0 && number)
        t->memory_bytes_s = x * 1e9;
    else if (strcmp(key, "tflops") == 0 && number)
        t->flops_s = x * 1e12;
    else
        return bad(key, value);
    return FM_OK;
}

fm_status fm_topology_parse(fm_topology *t, const char *text)
{
    char word[64];
    while (*text) {
        size_t n = strcspn(text, ",");
        char *eq = n < sizeof(word) ? memcpy(word, text, n) : NULL;
        if (!eq)
            return bad("a word", "too long");
        word[n] = '\0';
        eq = strchr(word, '=');
        if (!eq)
            return bad(word, "");
        *eq = '\0';
        fm_status rc = set_key(t, word, eq + 1);
        if (rc != FM_OK)
            return rc;
        text += n + (text[n] == ',');
    }
    if (t->nodes == 0 || t->ranks % t->nodes != 0)
        return fm_fail(FM_EINVAL, "topology: %u ranks do not lie on %u equal nodes", t->ranks,
                       t->nodes);
    return FM_OK;
}

/* ==== traffic ==== */

/* Ranks of a group that share a node. */
static uint32_t in_node(const fm_topology *t, uint32_t size)
{
    return FM_MIN(size, t->ranks / t->nodes);
}

void fm_traffic_exchange(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t bytes)
{
    uint32_t near = in_node(t, size), per_node = t->ranks / t->nodes;
    uint64_t inside = (uint64_t)(near - 1) * bytes;
    uint64_t sharers = t->shared ? per_node : 1;
    uint64_t out = (uint64_t)(size - near) * bytes * per_node; /* groups side by side: all of it */
    double a = inside ? (double)(inside * sharers) / t->inside_bytes_s + t->inside_latency_s : 0.0;
    double b = out ? (double)out / t->net_bytes_s + t->net_latency_s : 0.0;
    sum->bytes[t->inside] += inside;
    sum->bytes[FM_LINK_NET] += out;
    /* They overlap: the longer one counts, under its own name. */
    if (a >= b)
        sum->seconds[t->inside] += a;
    else
        sum->seconds[FM_LINK_NET] += b;
}

void fmi_traffic_gather(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t bytes)
{
    uint32_t near = in_node(t, size), per_node = t->ranks / t->nodes;
    uint64_t inside = (uint64_t)(near - 1) * bytes, out = (uint64_t)(size - near) * bytes;
    double sharers = t->shared ? (double)per_node / size : 1.0;
    double a = (double)inside * FM_MAX(sharers, 1.0) / t->inside_bytes_s + t->inside_latency_s;
    double b = out ? (double)out / t->net_bytes_s + t->net_latency_s : 0.0;
    sum->bytes[t->inside] += inside;
    sum->bytes[FM_LINK_NET] += out;
    sum->seconds[a >= b ? t->inside : FM_LINK_NET] += FM_MAX(a, b);
}

void fm_traffic_all_reduce(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t n)
{
    if (size <= 1 || n == 0)
        return;
    if (n * sizeof(float) <= SMALL_BYTES) {
        fm_traffic_exchange(sum, t, size, n * sizeof(float));
        return;
    }
    uint64_t per = (n + size - 1) / size;
    per = (per + SLICE_FLOATS - 1) / SLICE_FLOATS * SLICE_FLOATS;
    fm_traffic_exchange(sum, t, size, per * sizeof(float));
    fm_traffic_exchange(sum, t, size, per * sizeof(float));
}

void fmi_traffic_send(fm_traffic *sum, const fm_topology *t, uint32_t senders, uint64_t bytes,
                      bool network)
{
    fm_link link = network ? FM_LINK_NET : t->inside;
    uint64_t out = bytes * (network || t->shared ? senders : 1);
    if (bytes == 0)
        return;
    sum->bytes[link] += network ? out : bytes;
    sum->seconds[link] += network ? (double)out / t->net_bytes_s + t->net_latency_s
                                  : (double)out / t->inside_bytes_s + t->inside_latency_s;
}

double fmi_traffic_seconds(const fm_traffic *x)
{
    double s = 0.0;
    for (size_t i = 0; i < FM_LINKS; i++)
        s += x->seconds[i];
    return s;
}

/* ==== training ==== */

uint64_t fm_train_stripe(uint64_t parameters, uint32_t ranks, uint32_t shards, bool host)
{
    const uint64_t block = FM_TRAIN_BLOCK_FLOATS;
    uint64_t most = host ? 2 : FM_TRAIN_ROOM_FLOATS / block / FM_MAX(shards, 1u);
    uint64_t even = (parameters + block - 1) / block / ((uint64_t)ranks * 8);
    return FM_MAX(FM_MIN(most, even), (uint64_t)1) * block;
}

/* Floats of the first rank's stripes: nobody has more. */
static uint64_t most_owned(uint64_t parameters, uint32_t ranks, uint64_t stripe)
{
    uint64_t round = ranks * stripe, rest = parameters % round;
    return parameters / round * stripe + FM_MIN(rest, stripe);
}

void fm_train_ranks_plan_of(fm_train_ranks_plan *out, uint64_t parameters, uint32_t shards,
                            double batch_s, double update_s, const fm_topology *t)
{
    bool host = t->inside == FM_LINK_HOST, several = t->ranks > 1;
    uint64_t bytes = parameters * sizeof(float), slice = bytes / t->ranks;
    uint64_t stripe = fm_train_stripe(parameters, t->ranks, shards, host);
    uint32_t own = shards / t->ranks;
    memset(out, 0, sizeof(*out));
    out->parameter_bytes = bytes;
    out->gradient_bytes = bytes;
    out->moment_bytes =
        2 * sizeof(float) * (several ? most_owned(parameters, t->ranks, stripe) : parameters);
    out->waiting_bytes = several ? (shards - own) * stripe * sizeof(float) + (own - 1) * bytes
                                 : (shards > 1 ? bytes : 0);
    for (uint32_t i = 0; several && i < own; i++)
        fm_traffic_exchange(&out->traffic, t, t->ranks, slice); /* gradients */
    if (several)
        fm_traffic_exchange(&out->traffic, t, t->ranks, slice);     /* values */
    double share = t->shared ? (double)t->nodes : (double)t->ranks; /* processors that work */
    out->compute_s = (batch_s + update_s) / share;
    out->comm_s = fmi_traffic_seconds(&out->traffic);
    out->step_s = out->compute_s + out->comm_s;
    out->faster = out->step_s > 0.0 ? (batch_s + update_s) / out->step_s : 1.0;
}

/* ==== this machine ==== */

/* Seconds of one product of m rows with a [side, side] matrix: the best of a few. */
static double time_product(fm_backend *be, const fm_weight *w, float *y, const float *x, uint32_t m,
                           uint32_t side)
{
    double best = 0.0;
    for (int i = 0; i < 6; i++) {
        double began = fm_now_s();
        be->linear(be, y, side, x, side, w, NULL, NULL, m);
        fm_ignore(be->sync(be), "only the time counts");
        double took = fm_now_s() - began;
        best = i < 2 || took < best ? took : best; /* the first touches memory for the first time */
    }
    return best;
}

fm_status fm_topology_measure(fm_topology *t, fm_engine *e)
{
    enum { SIDE = 2048, ROWS = 64 };
    fm_backend *be = fm_engine_backend(e);
    const size_t bytes = (size_t)SIDE * SIDE * sizeof(float);
    fm_weight *w = NULL;
    void *x = NULL, *y = NULL;
    float *host = fm_calloc((size_t)SIDE * SIDE, sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < (size_t)SIDE * SIDE; i++)
        host[i] = (float)(i % 251) / 251.0f;
    if (rc == FM_OK)
        rc = be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F32, SIDE, SIDE, host);
    if (rc == FM_OK)
        rc = be->alloc(be, &x, (size_t)ROWS * SIDE * sizeof(float));
    if (rc == FM_OK)
        rc = be->alloc(be, &y, (size_t)ROWS * SIDE * sizeof(float));
    if (rc == FM_OK)
        rc = be->upload(be, x, host, (size_t)ROWS * SIDE * sizeof(float));
    if (rc == FM_OK) {
        t->memory_bytes_s = (double)bytes / time_product(be, w, y, x, 1, SIDE);
        t->flops_s = 2.0 * ROWS * SIDE * SIDE / time_product(be, w, y, x, ROWS, SIDE);
    }
    if (w)
        be->weight_free(be, w);
    if (x)
        be->free(be, x);
    if (y)
        be->free(be, y);
    fm_free(host);
    return rc;
}

fm_topology fm_topology_here(uint32_t ranks)
{
    fm_topology t = {.ranks = ranks,
                     .nodes = 1,
                     .net_bytes_s = 12.5e9, /* 100 Gbit/s */
                     .net_latency_s = 30e-6,
                     .memory_bytes_s = 10e9,
                     .flops_s = 1e11};
    fm_ignore(set_link(&t, "host"), "it is in the table");
    return t;
}
