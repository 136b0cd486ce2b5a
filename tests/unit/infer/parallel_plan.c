/* parallel_plan.c - plans over ranks, against figures worked out by hand: an NVLink box, a PCIe
 * box, two nodes; and what is chosen where memory or a slow network decides. */
#include <math.h>

#include "infer/parallel_plan.h"
#include "tests/testkit.h"

/* The shape of Llama 3 70B: 80 layers, 64 heads on 8 of keys and values. */
static fm_arch big(void)
{
    static const char text[] =
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":128256,"
        "\"hidden_size\":8192,\"intermediate_size\":28672,\"num_hidden_layers\":80,"
        "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":128,"
        "\"max_position_embeddings\":8192,\"tie_word_embeddings\":false}}";
    fm_json *v = NULL;
    fm_arch a;
    tk_ok(fm_json_parse(&v, fm_span_str(text), "big"));
    tk_ok(fm_arch_from_json(&a, v, "big"));
    fm_json_free(v);
    return a;
}

static fm_topology topology(const char *text)
{
    fm_topology t = fm_topology_here(1);
    tk_ok(fm_topology_parse(&t, text));
    return t;
}

static void near(double got, double want, const char *what)
{
    tk_assert_le(fabs(got - want), 1e-9 * fabs(want), what);
}

#define GB 1000000000.0

static void an_nvlink_box(void **state)
{
    const fm_topology t = topology("ranks=8,link=nvlink,memory-gib=80,memory-gb=3350,tflops=400");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 64ull << 30, .rows = 8};
    fm_serve_plan p;
    (void)state;
    fm_serve_plan_of(&p, &ask, &t, 1, 8);
    assert_string_equal(p.refused, "");
    assert_int_equal(p.heads, 8);
    assert_int_equal(p.kv_heads, 1);
    assert_int_equal(p.inter, 3584);
    assert_int_equal(p.vocab, 16032);
    assert_int_equal(p.kv_bytes, 8ull << 30); /* what the engine of a rank is given */
    assert_int_equal(p.text_bytes, 64ull << 30);
    /* 8 rows of 8192 are 65,536 floats: 8,192 of them to each of 7 ranks, twice, 161 times; then
     * rank 0 takes 8 rows of 16,033 from 7 ranks. */
    uint64_t reduce = 161ull * 2 * 7 * 8192 * 4, gather = 7ull * 8 * 16033 * 4;
    assert_int_equal(p.traffic.bytes[FM_LINK_DEVICE], reduce + gather);
    assert_int_equal(p.traffic.bytes[FM_LINK_NET], 0);
    near(p.comm_s, (double)(reduce + gather) / (450 * GB) + 323 * 10e-6, "seconds of links");
    assert_int_equal(p.exchanges, 162);
    /* Norms are whole on every rank: 161 vectors of 8192 among 70.55 G parameters. */
    double all = 70553706496.0, whole = 161.0 * 8192.0;
    near((double)p.weight_bytes, floor(141e9 * (whole / all + (1 - whole / all) / 8)), "weights");
    near(p.compute_s, (double)p.weight_bytes / (3350 * GB), "weights are read once");
    assert_true(p.fits);
    fm_serve_plan_of(&p, &ask, &t, 1, 1);
    assert_false(p.fits); /* 141 GB on a card of 80 GiB */
    fm_serve_plan_of(&p, &ask, &t, 1, 4);
    assert_true(p.fits);
    assert_int_equal(p.replicas, 2);
}

static void a_pcie_box(void **state)
{
    const fm_topology t = topology("ranks=4,link=pcie,memory-gib=80,memory-gb=2000,tflops=300");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan all[FM_SERVE_PLANS];
    uint32_t best = 9;
    (void)state;
    assert_int_equal(fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &t),
                     6); /* 1 x 1, 1 x 2, 1 x 4, 2 x 1, 2 x 2, 4 x 1 */
    assert_int_equal(all[best].stages, 1);
    assert_int_equal(all[best].split, 2); /* one does not fit; four pay more for their links */
    assert_int_equal(all[best].replicas, 2);
    uint64_t reduce = 161ull * 2 * 1 * (64 * 8192 / 2) * 4, gather = 64ull * 64129 * 4;
    assert_int_equal(all[best].traffic.bytes[FM_LINK_BUS], reduce + gather);
    near(all[best].comm_s, (double)(reduce + gather) / (50 * GB) + 323 * 15e-6, "links");
    near(all[best].rows_s, 128 / all[best].step_s, "rows of both replicas");
    fm_topology slow = t;
    slow.memory_bytes_s = 20 * GB; /* now reading weights is what takes the time */
    (void)fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &slow);
    assert_int_equal(all[best].split, 2); /* half as fast, twice as many */
    slow.memory_bytes = 44ull << 30;
    (void)fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &slow);
    assert_int_equal(all[best].split, 4);
}

static void two_nodes(void **state)
{
    const fm_topology t =
        topology("ranks=8,nodes=2,link=nvlink,net-gb=25,memory-gib=44,memory-gb=3350,tflops=400");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan all[FM_SERVE_PLANS], p;
    uint32_t best = 9;
    (void)state;
    (void)fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &t);
    assert_int_equal(all[best].split, 4); /* a replica stays on a node */
    assert_int_equal(all[best].traffic.bytes[FM_LINK_NET], 0);
    fm_serve_plan_of(&p, &ask, &t, 1, 8);
    /* Each of 4 ranks of a node sends 65,536 floats to each of 4 on the other, twice, 161 times. */
    uint64_t net = 161ull * 2 * 4 * 4 * 65536 * 4, far = 4ull * 64 * 16033 * 4;
    assert_int_equal(p.traffic.bytes[FM_LINK_NET], net + far);
    near(p.traffic.seconds[FM_LINK_NET], (double)(net + far) / (25 * GB) + 323 * 30e-6, "network");
    assert_true(p.rows_s < all[best].rows_s);
    fm_topology small = t;
    small.memory_bytes = 24ull << 30; /* now it takes both nodes */
    (void)fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &small);
    assert_int_equal(all[best].stages, 2); /* whose stages stay on a node */
    assert_int_equal(all[best].split, 4);
    assert_int_equal(all[best].hops, 1);
}

/* ==== stages ==== */

#define BIG_LAYER 855638016.0 /* 2 x 8192^2 + 2 x 1024 x 8192 + 3 x 28672 x 8192 */
#define BIG_HEAD 1050673152.0 /* 128256 x 8192 */
#define BIG_ALL 70553706496.0

/* Sixteen cards of which none holds more than 12 GiB: sums inside of a node, two stages over
 * them. */
static void stages_over_nodes(void **state)
{
    const fm_topology t =
        topology("ranks=16,nodes=2,link=nvlink,net-gb=25,memory-gib=12,memory-gb=3350,tflops=400");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan all[FM_SERVE_PLANS];
    uint32_t best = 99;
    (void)state;
    uint32_t count = fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &t);
    assert_int_equal(count, 15); /* 2^i x 2^j, i + j <= 4 */
    const fm_serve_plan *p = &all[best];
    assert_int_equal(p->stages, 2);
    assert_int_equal(p->split, 8);
    assert_int_equal(p->hops, 1);
    assert_int_equal(p->pieces,
                     1); /* 64 rows are few for a card: cutting would read weights again */
    /* The head is 1.23 layers: 41 layers, and 39 with it. */
    assert_int_equal(p->layers, 41);
    double first = ((41 * BIG_LAYER + BIG_HEAD) / 8 + 82.0 * 8192) / BIG_ALL;
    double last = ((39 * BIG_LAYER + BIG_HEAD) / 8 + 79.0 * 8192) / BIG_ALL;
    near((double)p->weight_bytes, floor(141e9 * first), "weights of the first stage");
    assert_int_equal(p->kv_bytes, 1ull << 30);
    near((double)p->text_bytes, floor((double)(1ull << 30) * 8 * 80 / 41), "the fullest stage's");
    assert_int_equal(p->bytes, p->weight_bytes + p->kv_bytes + p->room_bytes);
    near(p->compute_s, 141e9 * first / (3350 * GB), "weights are read once");
    /* A sum of 64 x 8192 floats is twice 65,536 floats to each of 7; 83 of them in the first stage,
     * 78 in the last. Then each rank sends its eighth on, and 8 gather. */
    double sum = 2 * (7 * 262144.0 / (450 * GB) + 10e-6);
    double hop = 8 * 262144.0 / (25 * GB) + 30e-6 + sum / 2;
    double states = 64.0 * 8192 * 4, logits = 8.0 * 64 * 16033 * 4;
    double end = (states + logits) / (25 * GB) + 2 * 30e-6;
    near(p->comm_s, 83 * sum + hop + end, "links on the way of a step");
    near(p->wait_s, 141e9 * last / (3350 * GB) + 78 * sum, "the first waits for the last");
    near(p->step_s, p->compute_s + p->comm_s + p->wait_s, "a step");
    near(p->bubble, p->wait_s / p->step_s, "bubble");
    assert_int_equal(p->traffic.bytes[FM_LINK_DEVICE], (83 * 2 + 1) * 7 * 262144);
    assert_int_equal(p->traffic.bytes[FM_LINK_NET], (uint64_t)(states + logits));
    const fm_serve_plan *flat = &all[4]; /* 1 x 16: every sum goes over the network */
    assert_int_equal(flat->split, 16);
    assert_true(flat->fits && flat->step_s > 5 * p->step_s);
    assert_true(flat->traffic.bytes[FM_LINK_NET] > 50 * p->traffic.bytes[FM_LINK_NET]);
}

/* Two processes of a host, four layers of 7 x 64 x 64, a head of 64 x 64: 2 layers and 2 with the
 * head. Products alone take time: 4 pieces of 16 rows. */
static void pieces_keep_stages_busy(void **state)
{
    static const char text[] =
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":64,"
        "\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":4,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":16,"
        "\"max_position_embeddings\":64,\"tie_word_embeddings\":false}}";
    fm_json *v = NULL;
    fm_arch a;
    fm_serve_plan p, q;
    (void)state;
    tk_ok(fm_json_parse(&v, fm_span_str(text), "small"));
    tk_ok(fm_arch_from_json(&a, v, "small"));
    fm_json_free(v);
    fm_topology t = topology("ranks=2,link=host,memory-gb=1000000,tflops=0.000001");
    fm_serve_ask ask = {.arch = &a, .weight_bytes = 4 * 123456, .kv_bytes = 1 << 20, .rows = 64};
    fm_serve_plan_of(&p, &ask, &t, 2, 1);
    assert_int_equal(p.pieces, 4);
    /* Both work at once, on processors that they share: half the rate for each. */
    double c0 = 2 * 57344.0 * 16 * 2 / 1e6, c1 = 2 * 61440.0 * 16 * 2 / 1e6;
    double hop = 16 * 64 * 4 / (2 * GB) + 30e-6;
    double end = 64 * 64 * 4 / (2 * GB) * 2 + 2 * 30e-6;
    near(p.compute_s, 4 * c1, "the last stage's work");
    near(p.comm_s, hop + end, "one piece on its way, the others meanwhile");
    near(p.wait_s, c0, "the last stage waits for the first piece");
    near(p.bubble, c0 / (4 * c1 + c0 + hop + end), "about one in five");
    assert_true(fabs(p.bubble - 0.2) < 0.02); /* (2 - 1) / (4 + 2 - 1) */
    t = topology("ranks=2,link=pcie,memory-gb=1000000,tflops=0.000001");
    fm_serve_plan_of(&p, &ask, &t, 2, 1);
    fm_serve_plan_of(&q, &ask, &t, 1, 1);
    assert_int_equal(p.pieces, 1); /* a card of its own each, and nothing to overlap */
    near(p.compute_s + p.wait_s, q.compute_s, "one after the other");
    fm_serve_plan_of(&p, &ask, &t, 8, 1);
    assert_string_equal(p.refused, "4 layers cannot be dealt to 8 stages");
}

static void what_cannot_be_split_says_why(void **state)
{
    const fm_topology t = topology("ranks=3");
    const fm_arch a = big();
    const fm_serve_ask ask = {.arch = &a, .weight_bytes = 1, .kv_bytes = 1, .rows = 1};
    fm_serve_plan all[FM_SERVE_PLANS];
    uint32_t best = 9;
    fm_topology bad = t;
    (void)state;
    assert_int_equal(fm_serve_plan_best(all, FM_SERVE_PLANS, &best, &ask, &t),
                     3); /* 1 x 1, 1 x 3, 3 x 1 */
    assert_int_equal(all[best].split, 1);
    assert_string_equal(all[1].refused, "64 query heads do not go into 3 equal parts");
    tk_fails(fm_topology_parse(&bad, "ranks=3,nodes=2"), FM_EINVAL, "3 ranks do not lie on 2");
    bad = t;
    tk_fails(fm_topology_parse(&bad, "wire=thin"), FM_EINVAL, "wire=thin");
    tk_fails(fm_topology_parse(&bad, "ranks=2.5"), FM_EINVAL, "ranks=2.5");
    tk_fails(fm_topology_parse(&bad, "link=string"), FM_EINVAL, "link=string");
    tk_fails(fm_topology_parse(&bad, "ranks"), FM_EINVAL, "ranks");
}

static void training(void **state)
{
    const fm_topology box = topology("ranks=8,link=nvlink");
    const fm_topology nodes = topology("ranks=8,nodes=2,link=nvlink,net-gb=25");
    fm_train_ranks_plan p;
    const uint64_t n = 1000000000;
    (void)state;
    fm_train_ranks_plan_of(&p, n, 8, 8.0, 0.8, &box);
    assert_int_equal(p.parameter_bytes, 4 * n);
    assert_int_equal(p.moment_bytes, 8ull * ((2 << 20) * 59 + (2 << 20)));
    assert_int_equal(p.waiting_bytes, 56 << 20); /* stripes of seven shards */
    assert_int_equal(fm_train_stripe(n, 8, 8, false), 2 << 20);
    assert_int_equal(fm_train_stripe(n, 8, 8, true), 2 << 16);
    assert_int_equal(fm_train_stripe(n, 8, 4096, false), 65536);
    assert_int_equal(fm_train_stripe(1000, 8, 8, false), 65536);
    assert_int_equal(fm_train_stripe(100 << 20, 2, 2, false), 100 << 16); /* eight of each rank */
    /* An eighth of the gradient to each of 7, then an eighth of the values. */
    assert_int_equal(p.traffic.bytes[FM_LINK_DEVICE], 2 * 7 * (4 * n / 8));
    near(p.comm_s, 2 * (7 * 0.5 * GB / (450 * GB) + 10e-6), "seconds of links");
    near(p.step_s, 1.1 + p.comm_s, "a step");
    near(p.faster, 8.8 / p.step_s, "faster");
    fm_train_ranks_plan_of(&p, n, 16, 8.0, 0.8, &box); /* two shards a rank */
    assert_int_equal(p.traffic.bytes[FM_LINK_DEVICE], 3 * 7 * (4 * n / 8));
    fm_train_ranks_plan_of(&p, n, 8, 8.0, 0.8, &nodes);
    assert_int_equal(p.traffic.bytes[FM_LINK_NET], 2 * 4 * 4 * (4 * n / 8));
    near(p.comm_s, 2 * (16 * 0.5 * GB / (25 * GB) + 30e-6), "the network is what takes time");
    const fm_topology host = fm_topology_here(2);
    fm_train_ranks_plan_of(&p, 1000, 2, 8.0, 0.8, &host);
    assert_true(p.faster < 1.0); /* they share the processors */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_nvlink_box),
                                       cmocka_unit_test(a_pcie_box),
                                       cmocka_unit_test(two_nodes),
                                       cmocka_unit_test(stages_over_nodes),
                                       cmocka_unit_test(pieces_keep_stages_busy),
                                       cmocka_unit_test(what_cannot_be_split_says_why),
                                       cmocka_unit_test(training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
