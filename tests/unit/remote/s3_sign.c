/* Signatures of requests to S3: the examples that AWS publishes with their results, HMAC by RFC
 * 4231, and the files that credentials come from. */
#include "remote/bucket/s3_sign.h"

#include <stdlib.h>
#include <string.h>

#include "remote/bucket/s3_keys.h"
#include "remote/bucket/s3_xml.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"
#include "tests/testkit.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void check_signature(const fmr_sign *q, const char *signature)
{
    fm_buf out;
    fm_buf_init(&out, 0);
    tk_ok(fmr_sign_v4(&out, q));
    const char *at = strstr(fm_buf_cstr(&out), "Signature=");
    assert_non_null(at);
    assert_string_equal(at + 10, signature);
    fm_buf_release(&out);
}

/* "get-vanilla" and "get-vanilla-query-order-key-case" of AWS's suite for Signature Version 4. */
TEST(the_suite_of_aws)
{
    fmr_sign q = {"AKIDEXAMPLE",
                  "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
                  "us-east-1",
                  "service",
                  "20150830T123600Z",
                  "GET",
                  "/",
                  "",
                  EMPTY,
                  {{"host", "example.amazonaws.com"}, {"x-amz-date", "20150830T123600Z"}}};
    check_signature(&q, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    q.query = "Param1=value1&Param2=value2";
    check_signature(&q, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

/* The four examples of "Signature Calculations for the Authorization Header" in S3's reference. */
TEST(the_examples_of_s3)
{
    fmr_sign q = {"AKIAIOSFODNN7EXAMPLE",
                  "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                  "us-east-1",
                  "s3",
                  "20130524T000000Z",
                  "GET",
                  "/test.txt",
                  "",
                  EMPTY,
                  {{"host", "examplebucket.s3.amazonaws.com"},
                   {"range", "bytes=0-9"},
                   {"x-amz-content-sha256", EMPTY},
                   {"x-amz-date", "20130524T000000Z"}}};
    check_signature(&q, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

    const fmr_sign lists = {"AKIAIOSFODNN7EXAMPLE",
                            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                            "us-east-1",
                            "s3",
                            "20130524T000000Z",
                            "GET",
                            "/",
                            "max-keys=2&prefix=J",
                            EMPTY,
                            {{"host", "examplebucket.s3.amazonaws.com"},
                             {"x-amz-content-sha256", EMPTY},
                             {"x-amz-date", "20130524T000000Z"}}};
    check_signature(&lists, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");

    fmr_sign other = lists;
    other.query = "lifecycle=";
    check_signature(&other, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");

#define WELCOME "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
    const fmr_sign put = {"AKIAIOSFODNN7EXAMPLE",
                          "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                          "us-east-1",
                          "s3",
                          "20130524T000000Z",
                          "PUT",
                          "/test%24file.text",
                          "",
                          WELCOME,
                          {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                           {"host", "examplebucket.s3.amazonaws.com"},
                           {"x-amz-content-sha256", WELCOME},
                           {"x-amz-date", "20130524T000000Z"},
                           {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}};
    check_signature(&put, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(hmac_has_the_digests_of_rfc_4231)
{
    uint8_t key[131];
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];
    memset(key, 0x0b, 20);
    tk_ok(fmr_hmac_sha256(&d, fm_span_of(key, 20), fm_span_str("Hi There")));
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    memset(key, 0xaa, sizeof key); /* a key longer than a block */
    assert_int_equal(
        fmr_hmac_sha256(&d, fm_span_of(key, sizeof key),
                        fm_span_str("Test Using Larger Than Block-Size Key - Hash Key First")),
        FM_OK);
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void check_value(const char *text, const char *section, const char *key, const char *want)
{
    char *v = fmr_ini_value(fm_span_str(text), section, key);
    if (want)
        assert_string_equal(v, want);
    else
        assert_null(v);
    fm_free(v);
}

TEST(a_profile_is_read)
{
    static const char text[] = "# keys\n[default]\naws_access_key_id = A\n\n[ other ]\r\n"
                               "aws_access_key_id=B==\r\n;x = 1\nregion\n";
    check_value(text, "default", "aws_access_key_id", "A");
    check_value(text, "other", "aws_access_key_id", "B==");
    check_value(text, "other", "region", NULL);
    check_value(text, "none", "aws_access_key_id", NULL);
    check_value("aws_access_key_id = A", "default", "aws_access_key_id", NULL);
}

static void clear_environment(const char *dir)
{
    static const char *const name[] = {
        "AWS_ACCESS_KEY_ID",  "AWS_SECRET_ACCESS_KEY",      "AWS_SESSION_TOKEN",   "AWS_REGION",
        "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",           "AWS_ENDPOINT_URL_S3", "AWS_PROFILE",
        "AWS_CONFIG_FILE",    "AWS_SHARED_CREDENTIALS_FILE"};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++)
        unsetenv(name[i]);
    setenv("HOME", dir, 1);
}

TEST(the_environment_goes_before_the_files)
{
    fmr_s3_keys k;
    char *dir = tk_scratch();
    char *aws = fm_path_join(dir, ".aws"), *file = fm_path_join(aws, "credentials");
    static const char text[] = "[default]\naws_access_key_id = A\naws_secret_access_key = S\n"
                               "[p]\naws_access_key_id = PA\naws_secret_access_key = PS\n"
                               "aws_session_token = PT\n";
    clear_environment(dir);
    tk_ok(fmr_s3_keys_read(&k));
    assert_null(k.access);
    assert_string_equal(k.region, "us-east-1");
    assert_null(k.endpoint);
    fmr_s3_keys_release(&k);

    tk_ok(fm_make_dirs(aws));
    tk_ok(fm_write_file(file, text, strlen(text)));
    tk_ok(fmr_s3_keys_read(&k));
    assert_string_equal(k.access, "A");
    assert_null(k.token);
    fmr_s3_keys_release(&k);

    setenv("AWS_PROFILE", "p", 1);
    setenv("AWS_DEFAULT_REGION", "eu-west-9", 1);
    tk_ok(fmr_s3_keys_read(&k));
    assert_string_equal(k.secret, "PS");
    assert_string_equal(k.token, "PT");
    assert_string_equal(k.region, "eu-west-9");
    fmr_s3_keys_release(&k);

    setenv("AWS_PROFILE", "missing", 1);
    assert_int_equal(fmr_s3_keys_read(&k), FM_EREFUSED);
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    assert_int_equal(fmr_s3_keys_read(&k), FM_EREFUSED); /* a half */
    setenv("AWS_SECRET_ACCESS_KEY", "ES", 1);
    tk_ok(fmr_s3_keys_read(&k));
    assert_string_equal(k.access, "E");
    assert_null(k.token); /* not the profile's */
    fmr_s3_keys_release(&k);
    clear_environment(dir);
    fm_free(file);
    fm_free(aws);
    fm_free(dir);
}

TEST(answers_of_s3_are_read)
{
    fm_span text = fm_span_str("<R><A>1</A><A>x&amp;&lt;&#34;&bad;&</A><B>7</B><A>open</R>");
    fm_span first = fmr_xml_next(&text, "A"), second = fmr_xml_next(&text, "A");
    uint64_t n;
    fm_buf out;
    assert_true(fmr_xml_number(first, &n));
    assert_int_equal(n, 1);
    fm_buf_init(&out, 0);
    fmr_xml_text(&out, second);
    assert_string_equal(fm_buf_cstr(&out), "x&<\"&bad;&");
    fm_buf_release(&out);
    assert_null(fmr_xml_next(&text, "A").data); /* it does not end */
    assert_int_equal(text.len, 0);
    assert_false(fmr_xml_number(fm_span_str("18446744073709551616"), &n));
    assert_false(fmr_xml_number(fm_span_str(""), &n));
    assert_false(fmr_xml_number(fm_span_str("-1"), &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_suite_of_aws),
        cmocka_unit_test(the_examples_of_s3),
        cmocka_unit_test(hmac_has_the_digests_of_rfc_4231),
        cmocka_unit_test(a_profile_is_read),
        cmocka_unit_test(the_environment_goes_before_the_files),
        cmocka_unit_test(answers_of_s3_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
