/* The arithmetic of bench_gpu: bytes and operations of its models, counted by hand. */
#include "tests/testkit.h"

#include "tests/bench/gpu_work.h"

TEST(layers_have_their_parameters)
{
    double n = 0.0;

    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t rows, k;
        gw_product(&gw_7b, i, &rows, &k);
        n += (double)rows * k;
    }
    /* Llama 2 7B: 4 x 4096^2 + 3 x 4096 x 11008 */
    assert_true(n == 202375168.0);
    assert_true(gw_layer_flops(&gw_7b, 3) == 6.0 * n);
    assert_true(gw_lora_step_flops(&gw_7b, 3) == 12.0 * n);
}

TEST(bytes_are_weights_and_rows)
{
    /* one row in bf16: x 4096 + 4096 + 4096 + 11008, y 4 x 4096 + 2 x 11008 + 4096 floats */
    assert_true(gw_layer_bytes(&gw_7b, FM_BF16, 1) ==
                2.0 * 202375168 + 4.0 * (3 * 4096 + 11008) + 4.0 * (5 * 4096 + 2 * 11008));
    assert_true(gw_weight_bytes(FM_Q8_0, 64, 320) == 64.0 * 10 * 34);
    assert_true(gw_weight_bytes(FM_Q4_K, 8, 512) == 8.0 * 2 * 144);
    /* two children of rank 16 and no rows: 2 x 16 x (n + k) x 2 bytes over q k v o gate up down */
    assert_true(gw_lora_bytes(&gw_7b, 2, 16, 0) == 64.0 * (4 * 8192.0 + 3 * (4096.0 + 11008.0)));
    assert_true(gw_lora_bytes(&gw_7b, 2, 16, 1) - gw_lora_bytes(&gw_7b, 2, 16, 0) ==
                8.0 * (5 * 4096 + 2 * 11008));
}

TEST(attention_is_counted_causally)
{
    assert_true(gw_prefill_flops(&gw_7b, 1) == 4.0 * 4096);
    assert_true(gw_prefill_flops(&gw_7b, 4) == 4.0 * 4096 * 10);
    assert_true(gw_decode_bytes(&gw_7b, 2, 33, 1000.0) == 2 * (4 * 1000.0 + 8.0 * 4096));
}

TEST(whole_steps_are_their_parts)
{
    double layer = gw_layer_bytes(&gw_1b, FM_BF16, 2), kv = gw_decode_bytes(&gw_1b, 2, 40, 100.0);
    assert_true(gw_step_bytes(&gw_1b, FM_BF16, 2, 40, 100.0) ==
                16 * (layer + kv) + 2.0 * 128256 * 2048 + 16.0 * 128256);
}

TEST(experts_are_counted_where_rows_go)
{
    /* one expert: gate, up and down of 2048 x 768 in bf16 */
    double one =
        gw_moe_bytes(&gw_30b_a3b, FM_BF16, 1, 9) - gw_moe_bytes(&gw_30b_a3b, FM_BF16, 1, 8);
    assert_true(one == 3.0 * 2048 * 768 * 2);
    /* no expert, one row: the router, x and scores, then 8 rows of x, gate, up, their product, y */
    assert_true(gw_moe_bytes(&gw_30b_a3b, FM_BF16, 1, 0) ==
                2.0 * 128 * 2048 + 4.0 * (2048 + 128) + 4.0 * 8 * (2 * 2048 + 3 * 768));
    assert_true(gw_moe_flops(&gw_30b_a3b, 3) == 6.0 * 2048 * (128 + 3 * 8 * 768));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_their_parameters),
        cmocka_unit_test(bytes_are_weights_and_rows),
        cmocka_unit_test(attention_is_counted_causally),
        cmocka_unit_test(whole_steps_are_their_parts),
        cmocka_unit_test(experts_are_counted_where_rows_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
