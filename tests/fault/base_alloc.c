/* Each allocation of a scenario fails in turn, once and for ever after: the result is FM_ENOMEM or
 * the right answer, never a wrong one; leaks are for the address sanitizer to find. */
#include "tests/fault/kit/alloc_kit.h"

#include "store/base/math/hash.h"
#include "store/base/map.h"
#include "store/base/os/pool.h"
#include "store/base/text/yaml.h"

static fm_status expect_json(const fm_json *v, const char *want)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    fm_status rc = fm_json_write(&b, v, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
    return rc;
}

static fm_status parse_json(void)
{
    static const char text[] = "{\"a\": [1, 2.5, \"a string long enough to be grown in its buffer, "
                               "and once more\"], \"b\": {\"c\": null, \"d\": {\"e\": true}}}";
    fm_json *v;
    fm_status rc = fm_json_parse(&v, fm_span_str(text), "t");

    if (rc < 0) {
        assert_null(v);
        return rc;
    }
    rc = expect_json(v, "{\"a\":[1,2.5,\"a string long enough to be grown in its buffer, and once "
                        "more\"],\"b\":{\"c\":null,\"d\":{\"e\":true}}}");
    fm_json_free(v);
    return rc;
}

static fm_status parse_json_with_huge_integers(void)
{
    fm_json *v;
    fm_status rc = fm_json_parse(&v, fm_span_str("[1, 1000000000000000019884624838656]"), "t");

    if (rc < 0)
        return rc;
    rc = expect_json(v, "[1,1e+30]");
    fm_json_free(v);
    return rc;
}

static fm_status build_json(void)
{
    fm_json *o = fm_json_new_object();
    fm_json *list = fm_json_new_array();
    fm_status rc = FM_OK;

    for (int i = 0; i < 20 && rc == FM_OK; i++)
        rc = fm_json_push(list, fm_json_new_str("x"));
    if (rc == FM_OK) {
        rc = fm_json_set(o, "list", list);
        list = NULL;
    }
    if (rc == FM_OK)
        rc = fm_json_set(o, "r", fm_json_new_real(0.5));
    if (rc == FM_OK) {
        fm_json *copy = fm_json_copy(o);
        rc = copy ? FM_OK : FM_ENOMEM;
        if (copy)
            assert_true(fm_json_equal(copy, o));
        fm_json_free(copy);
    }
    fm_json_free(list);
    fm_json_free(o);
    return rc;
}

static fm_status parse_yaml(void)
{
    static const char text[] = "a: &x [1, 2.5, 'text']\nb:\n  c: *x\n  d: |\n    block\n";
    fm_json *v;
    fm_status rc = fm_yaml_parse(&v, fm_span_str(text), "t");

    if (rc < 0) {
        assert_null(v);
        return rc;
    }
    rc = expect_json(v,
                     "{\"a\":[1,2.5,\"text\"],\"b\":{\"c\":[1,2.5,\"text\"],\"d\":\"block\\n\"}}");
    fm_json_free(v);
    return rc;
}

static fm_status fill_map(void)
{
    fm_map *m;
    fm_status rc = fm_map_new(&m);
    uintptr_t i;

    for (i = 0; i < 500 && rc == FM_OK; i++)
        rc = fm_map_put(m, &i, sizeof(i), (void *)(i + 1), NULL);
    if (m) { /* what went in before the failure is all there */
        size_t count = rc == FM_OK ? 500 : i - 1;
        assert_int_equal(fm_map_count(m), count);
        for (i = 0; i < count; i++)
            assert_ptr_equal(fm_map_get(m, &i, sizeof(i)), (void *)(i + 1));
    }
    fm_map_free(m);
    return rc;
}

static fm_status fill_buffer(void)
{
    fm_buf b;
    fm_status rc;

    fm_buf_init(&b, 0);
    for (int i = 0; i < 1000; i++)
        fm_buf_printf(&b, "%d,", i % 10);
    rc = fm_buf_ok(&b);
    if (rc == FM_OK)
        assert_int_equal(b.len, 2000);
    fm_buf_release(&b);
    return rc;
}

static fm_status join_and_hash(void)
{
    fm_hasher *h = NULL;
    fm_arena *a = NULL;
    fm_status rc = fm_hasher_new(&h);

    if (rc == FM_OK)
        rc = fm_arena_new(&a);
    for (int i = 0; i < 10 && rc == FM_OK; i++)
        rc = fm_arena_alloc(a, 5000) ? FM_OK : FM_ENOMEM;
    fm_arena_free(a);
    fm_hasher_free(h);
    return rc;
}

static fm_status start_pool(void)
{
    fm_pool *p;
    fm_status rc = fm_pool_new(&p, 3);

    fm_pool_free(p);
    return rc;
}

TEST(json_parse_survives_each_failure)
{
    ak_fail_each(parse_json, 10);
    ak_fail_each(parse_json_with_huge_integers, 4);
}

TEST(json_building_survives_each_failure)
{
    ak_fail_each(build_json, 20);
}

TEST(yaml_survives_each_failure)
{
    ak_fail_each(parse_yaml, 15);
}

TEST(map_survives_each_failure)
{
    ak_fail_each(fill_map, 15);
}

TEST(buffer_survives_each_failure)
{
    ak_fail_each(fill_buffer, 4);
}

TEST(arena_hasher_and_pool_survive_each_failure)
{
    ak_fail_each(join_and_hash, 4);
    ak_fail_each(start_pool, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_parse_survives_each_failure),
        cmocka_unit_test(json_building_survives_each_failure),
        cmocka_unit_test(yaml_survives_each_failure),
        cmocka_unit_test(map_survives_each_failure),
        cmocka_unit_test(buffer_survives_each_failure),
        cmocka_unit_test(arena_hasher_and_pool_survive_each_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
