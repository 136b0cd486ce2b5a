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
    fm_serve_plan_of(&p, &ask, &t, 8);
    assert_string_equal(p.refused, "");
    assert_int_equal(p.heads, 8);
    assert_int_equal(p.kv_heads, 1);
    assert_int_equal(p.inter, 3584);
    assert_int_equal(p.vocab, 16032);
    assert_int_equal(p.kv_bytes, 8ull << 30);
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
    fm_serve_plan_of(&p, &ask, &t, 1);
    assert_false(p.fits); /* 141 GB on a card of 80 GiB */
    fm_serve_plan_of(&p, &ask, &t, 4);
    assert_true(p.fits);
    assert_int_equal(p.replicas, 2);
}

static void a_pcie_box(void **state)
{
    const fm_topology t = topology("ranks=4,link=pcie,memory-gib=80,memory-gb=2000,tflops=300");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan all[9];
    uint32_t best = 9;
    (void)state;
    assert_int_equal(fm_serve_plan_best(all, 9, &best, &ask, &t), 3); /* 1, 2, 4 */
    assert_int_equal(all[best].split, 2); /* one does not fit; four pay more for their links */
    assert_int_equal(all[best].replicas, 2);
    uint64_t reduce = 161ull * 2 * 1 * (64 * 8192 / 2) * 4, gather = 64ull * 64129 * 4;
    assert_int_equal(all[best].traffic.bytes[FM_LINK_BUS], reduce + gather);
    near(all[best].comm_s, (double)(reduce + gather) / (50 * GB) + 323 * 15e-6, "links");
    near(all[best].rows_s, 128 / all[best].step_s, "rows of both replicas");
    fm_topology slow = t;
    slow.memory_bytes_s = 20 * GB; /* now reading weights is what takes the time */
    (void)fm_serve_plan_best(all, 9, &best, &ask, &slow);
    assert_int_equal(all[best].split, 2); /* half as fast, twice as many */
    slow.memory_bytes = 44ull << 30;
    (void)fm_serve_plan_best(all, 9, &best, &ask, &slow);
    assert_int_equal(all[best].split, 4);
}

static void two_nodes(void **state)
{
    const fm_topology t =
        topology("ranks=8,nodes=2,link=nvlink,net-gb=25,memory-gib=44,memory-gb=3350,tflops=400");
    const fm_arch a = big();
    const fm_serve_ask ask = {
        .arch = &a, .weight_bytes = 141000000000u, .kv_bytes = 16ull << 30, .rows = 64};
    fm_serve_plan all[9], p;
    uint32_t best = 9;
    (void)state;
    (void)fm_serve_plan_best(all, 9, &best, &ask, &t);
    assert_int_equal(all[best].split, 4); /* a replica stays on a node */
    assert_int_equal(all[best].traffic.bytes[FM_LINK_NET], 0);
    fm_serve_plan_of(&p, &ask, &t, 8);
    /* Each of 4 ranks of a node sends 65,536 floats to each of 4 on the other, twice, 161 times. */
    uint64_t net = 161ull * 2 * 4 * 4 * 65536 * 4, far = 4ull * 64 * 16033 * 4;
    assert_int_equal(p.traffic.bytes[FM_LINK_NET], net + far);
    near(p.traffic.seconds[FM_LINK_NET], (double)(net + far) / (25 * GB) + 323 * 30e-6, "network");
    assert_true(p.rows_s < all[best].rows_s);
    fm_topology small = t;
    small.memory_bytes = 24ull << 30; /* now it takes both nodes */
    (void)fm_serve_plan_best(all, 9, &best, &ask, &small);
    assert_int_equal(all[best].split, 8);
}

static void what_cannot_be_split_says_why(void **state)
{
    const fm_topology t = topology("ranks=3");
    const fm_arch a = big();
    const fm_serve_ask ask = {.arch = &a, .weight_bytes = 1, .kv_bytes = 1, .rows = 1};
    fm_serve_plan all[9];
    uint32_t best = 9;
    fm_topology bad = t;
    (void)state;
    assert_int_equal(fm_serve_plan_best(all, 9, &best, &ask, &t), 2); /* 1 and 3 */
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
    assert_int_equal(p.moment_bytes, 8 * n / 8);
    assert_int_equal(p.waiting_bytes, 64 << 20); /* pieces of eight shards */
    assert_int_equal(fm_train_piece(n / 8, 8), 2 << 20);
    assert_int_equal(fm_train_piece(1000, 8), 1000);
    assert_int_equal(fm_train_piece(n, 4096), 65536);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_nvlink_box), cmocka_unit_test(a_pcie_box), cmocka_unit_test(two_nodes),
        cmocka_unit_test(what_cannot_be_split_says_why), cmocka_unit_test(training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
