/* How lists of a training's settings name modules. */
#include "tests/testkit.h"
#include "train/net/method.h"

/* PEFT's modules_to_save (0.21, peft/utils/other.py): a module whose name ends so, with all in
 * it. */
TEST(saved_modules_are_named_by_their_ends)
{
    assert_true(fmt_is_saved("model.norm", "norm"));
    assert_true(fmt_is_saved("model.layers.0.input_layernorm", "lm_head,norm"));
    assert_true(fmt_is_saved("model.layers.1.mlp.up_proj", "mlp"));
    assert_true(fmt_is_saved("lm_head", "lm_head"));
    assert_false(fmt_is_saved("model.layers.0.input_layernorm", "model.norm"));
    assert_false(fmt_is_saved("model.normal", "norm"));
    assert_false(fmt_is_saved("model.norm", ""));
}

/* What is frozen or left out is named by whole parts of a path. */
TEST(frozen_modules_are_named_by_parts)
{
    assert_true(fmt_lies_in("model.layers.1.mlp.up_proj", "mlp"));
    assert_true(fmt_lies_in("model.norm", "norm"));
    assert_false(fmt_lies_in("model.layers.0.input_layernorm", "norm"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_modules_are_named_by_their_ends),
        cmocka_unit_test(frozen_modules_are_named_by_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
