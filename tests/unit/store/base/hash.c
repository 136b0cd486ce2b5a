/* SHA-256 against the vectors of FIPS 180-4, and digests as text. */
#include "tests/testkit.h"

#include "store/base/math/hash.h"

#include <string.h>

static void assert_digest(const fm_digest *d, const char *hex)
{
    char text[FM_HEX_CHARS + 1];

    fm_digest_hex(d, text);
    assert_string_equal(text, hex);
}

TEST(bad_hex_is_refused_and_leaves_zeros)
{
    fm_digest d;
    char text[80];

    memset(text, 'a', sizeof(text));
    assert_false(fm_digest_parse(&d, text, 63));
    assert_false(fm_digest_parse(&d, text, 65));
    text[63] = 'g';
    assert_false(fm_digest_parse(&d, text, 64));
    assert_true(fm_digest_is_zero(&d));
}

TEST(known_vectors_hold)
{
    fm_digest d;

    tk_ok(fm_sha256(&d, NULL, 0));
    assert_digest(&d, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    tk_ok(fm_sha256(&d, "abc", 3));
    assert_digest(&d, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(pieces_hash_like_the_whole_and_the_hasher_starts_afresh)
{
    fm_hasher *h;
    fm_digest d;
    char a[1000];

    memset(a, 'a', sizeof(a));
    tk_ok(fm_hasher_new(&h));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 1000; i++)
            tk_ok(fm_hasher_update(h, a, sizeof(a)));
        tk_ok(fm_hasher_update(h, NULL, 0));
        tk_ok(fm_hasher_final(h, &d));
        assert_digest(&d, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    fm_hasher_free(h);
    fm_hasher_free(NULL);
}

TEST(hex_reads_back_in_either_case)
{
    fm_digest a, b;
    char hex[FM_HEX_CHARS + 1];

    tk_ok(fm_sha256(&a, "x", 1));
    fm_digest_hex(&a, hex);
    assert_true(fm_digest_parse(&b, hex, 64));
    assert_true(fm_digest_eq(&a, &b));
    for (char *p = hex; *p; p++)
        if (*p >= 'a')
            *p = (char)(*p - 32);
    assert_true(fm_digest_parse(&b, hex, 64));
    assert_true(fm_digest_eq(&a, &b));
    b.b[31] ^= 1;
    assert_int_not_equal(fm_digest_cmp(&a, &b), 0);
    assert_false(fm_digest_is_zero(&a));
}

/* Every length around a block, and cuts of them: by the processor, by OpenSSL, one or two at
 * once. */
TEST(all_ways_give_the_same_digest)
{
    uint8_t data[700];
    fm_digest want[2], got[2];
    fm_hasher *h;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 131 + i / 7);
    for (size_t n = 0; n <= 300; n++) {
        const fm_span a = fm_span_of(data, n), b = fm_span_of(data + n, (n * 7) % 300);
        fm_hash_plainly(true);
        tk_ok(fm_sha256(&want[0], a.data, a.len));
        tk_ok(fm_sha256_two(got, a, b));
        want[1] = got[1];
        fm_hash_plainly(false);
        assert_memory_equal(&want[0], &got[0], sizeof *got);
        tk_ok(fm_sha256(&got[0], a.data, a.len));
        assert_memory_equal(&want[0], &got[0], sizeof *got);
        tk_ok(fm_sha256_two(got, a, b));
        assert_memory_equal(want, got, sizeof got);
        tk_ok(fm_hasher_new(&h));
        const size_t cut = n * 5 % 67 <= n ? n * 5 % 67 : 0;
        tk_ok(fm_hasher_update(h, data, cut));
        tk_ok(fm_hasher_along(h, fm_span_of(data + cut, n - cut), &got[1], b));
        tk_ok(fm_hasher_final(h, &got[0]));
        assert_memory_equal(want, got, sizeof got);
        fm_hasher_free(h);
    }
}

TEST(a_look_in_between_changes_nothing)
{
    for (int plainly = 0; plainly < 2; plainly++) {
        fm_hasher *h;
        fm_digest d, want;
        fm_hash_plainly(plainly);
        tk_ok(fm_hasher_new(&h));
        tk_ok(fm_hasher_update(h, "abc", 3));
        for (int i = 0; i < 2; i++) {
            tk_ok(fm_hasher_peek(h, &d));
            assert_digest(&d, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        }
        tk_ok(fm_hasher_update(h, "def", 3));
        tk_ok(fm_hasher_final(h, &d));
        tk_ok(fm_sha256(&want, "abcdef", 6));
        assert_true(fm_digest_eq(&d, &want));
        fm_hasher_free(h);
    }
    fm_hash_plainly(false);
}

TEST(a_copy_goes_on_by_itself)
{
    for (int plainly = 0; plainly < 2; plainly++) {
        fm_hasher *h, *copy;
        fm_digest d, want;
        fm_hash_plainly(plainly);
        tk_ok(fm_hasher_new(&h));
        tk_ok(fm_hasher_new(&copy));
        tk_ok(fm_hasher_update(h, "abc", 3));
        tk_ok(fm_hasher_update(copy, "what is forgotten", 17));
        tk_ok(fm_hasher_copy(copy, h));
        tk_ok(fm_hasher_update(h, "xyz", 3));
        tk_ok(fm_hasher_update(copy, "def", 3));
        tk_ok(fm_sha256(&want, "abcdef", 6));
        tk_ok(fm_hasher_final(copy, &d));
        assert_true(fm_digest_eq(&d, &want));
        tk_ok(fm_sha256(&want, "abcxyz", 6));
        tk_ok(fm_hasher_final(h, &d));
        assert_true(fm_digest_eq(&d, &want));
        fm_hasher_free(copy);
        fm_hasher_free(h);
    }
    fm_hash_plainly(false);
}

TEST(base64_is_that_of_rfc_4648)
{
    static const char *const pair[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"\xff\xfe\xfd", "//79"}};
    static const char *const bad[] = {
        "Zg",       "Zg=",          "Zg==Zg==", "Z===", "====",     "Zm9v\n",
        "    Zm9v", "Zm9v\n\n\n\n", "Zm 9",     "Zm-_", "Zm9v----", "Zm=v"};
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(pair); i++) {
        fm_buf_clear(&b);
        tk_ok(fm_base64_encode(&b, fm_span_str(pair[i][0])));
        assert_string_equal(fm_buf_cstr(&b), pair[i][1]);
        fm_buf_clear(&b);
        tk_ok(fm_base64_decode(&b, fm_span_str(pair[i][1])));
        assert_string_equal(fm_buf_cstr(&b), pair[i][0]);
    }
    fm_buf_clear(&b);
    fm_buf_str(&b, "kept");
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        tk_fails(fm_base64_decode(&b, fm_span_str(bad[i])), FM_ECORRUPT, "not base64");
        assert_string_equal(fm_buf_cstr(&b), "kept");
    }
    fm_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_hex_is_refused_and_leaves_zeros),
        cmocka_unit_test(known_vectors_hold),
        cmocka_unit_test(pieces_hash_like_the_whole_and_the_hasher_starts_afresh),
        cmocka_unit_test(a_look_in_between_changes_nothing),
        cmocka_unit_test(a_copy_goes_on_by_itself),
        cmocka_unit_test(base64_is_that_of_rfc_4648),
        cmocka_unit_test(all_ways_give_the_same_digest),
        cmocka_unit_test(hex_reads_back_in_either_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
