/* Addresses of models, the Hub's answers, and which files are chosen. */
#include "remote/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/hub/address.h"
#include "remote/hub/cache.h"
#include "remote/hub/listing.h"
#include "tests/testkit.h"

#define HUB "https://huggingface.co"

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

TEST(addresses_are_read)
{
    static const struct {
        const char *src, *repo, *revision, *file, *url;
    } cases[] = {
        {"hf:org/name", "org/name", "main", NULL, NULL},
        {"hf:gpt2", "gpt2", "main", NULL, NULL},
        {"hf:org/name/", "org/name", "main", NULL, NULL},
        {"hf:org/name@v1.0", "org/name", "v1.0", NULL, NULL},
        {"hf:org/name@refs/pr/3", "org/name", "refs/pr/3", NULL, NULL},
        {"hf:org/name@refs/pr/3/x.gguf", "org/name", "refs/pr/3", "x.gguf", NULL},
        {"hf:org/name@a%2Fb/q/x.gguf", "org/name", "a/b", "q/x.gguf", NULL},
        {"hf:org/name/x y.gguf", "org/name", "main", "x y.gguf", NULL},
        {HUB "/org/name", "org/name", "main", NULL, NULL},
        {HUB "/org/name?x=1", "org/name", "main", NULL, NULL},
        {HUB "/org/name/tree/v2", "org/name", "v2", NULL, NULL},
        {HUB "/org/name/blob/main/q/x%20y.gguf", "org/name", "main", "q/x y.gguf", NULL},
        {HUB "/org/name/resolve/main/x.gguf?download=true", "org/name", "main", "x.gguf", NULL},
        {"https://other.example/a/x%20y.gguf?sig=1#f", NULL, NULL, "x y.gguf",
         "https://other.example/a/x%20y.gguf?sig=1#f"},
        {HUB ".evil.example/org/name/x.gguf", NULL, NULL, "x.gguf",
         HUB ".evil.example/org/name/x.gguf"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        fmr_address a;
        tk_ok(fmr_address_parse(&a, cases[i].src, HUB));
        if (!same(a.repo, cases[i].repo) || !same(a.revision, cases[i].revision) ||
            !same(a.file, cases[i].file) || !same(a.url, cases[i].url))
            fail_msg("%s: %s, %s, %s, %s", cases[i].src, a.repo, a.revision, a.file, a.url);
        fmr_address_release(&a);
    }
    assert_true(fmr_hub_is_address("hf:x") && fmr_hub_is_address("https://x"));
    assert_false(fmr_hub_is_address("./hf:x"));
    assert_false(fmr_hub_is_address("httpx/y"));
}

TEST(other_addresses_are_refused)
{
    static const char *const bad[] = {
        "hf:",
        "hf:/",
        "hf:../x",
        "hf:.x/y",
        "hf:-x/y",
        "hf:org/name@",
        "hf:org/name@../x",
        "hf:org/name@-x",
        "hf:org/name@a b",
        "hf:org/name@%00",
        "hf:org/name/../x",
        "hf:org/name//x",
        "hf:org/name/a/./b",
        "hf:org/na me",
        "hf:org/name?x",
        "hf:org/name/a\nb",
        "https://host",
        "https://host/",
        "https://host/a/..",
        "https://host/%2e%2e",
        "https://host/a%2Fb",
        HUB "/org/name/blob/main/../../x",
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fmr_address a;
        if (fmr_address_parse(&a, bad[i], HUB) != FM_EINVAL)
            fail_msg("taken: %s", bad[i]);
        assert_null(a.repo);
    }
}

TEST(the_environment_is_read_as_hugging_face_reads_it)
{
    static const char *const names[] = {
        "HF_ENDPOINT",           "HF_TOKEN",       "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",         "HF_HUB_CACHE",   "HF_HOME",
        "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_HUB_OFFLINE",
    };
    fmr_hub_env e;
    char *dir = tk_scratch(), path[512];
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    setenv("HOME", dir, 1);
    tk_ok(fmr_hub_env_read(&e));
    assert_string_equal(e.endpoint, HUB);
    assert_null(e.token);
    assert_false(e.offline);
    snprintf(path, sizeof path, "%s/.cache/huggingface/hub", dir);
    assert_string_equal(e.cache, path);
    fmr_hub_env_release(&e);

    snprintf(path, sizeof path, "%s/.cache/huggingface", dir);
    tk_ok(fm_make_dirs(path));
    snprintf(path, sizeof path, "%s/.cache/huggingface/token", dir);
    tk_ok(fm_write_file(path, " tok\n", 5));
    setenv("HF_ENDPOINT", "http://h:1//", 1);
    setenv("HF_HUB_OFFLINE", "YES", 1);
    tk_ok(fmr_hub_env_read(&e));
    assert_string_equal(e.token, "tok");
    assert_string_equal(e.endpoint, "http://h:1");
    assert_true(e.offline);
    fmr_hub_env_release(&e);

    setenv("HF_TOKEN", "\n word \r\n", 1);
    setenv("HF_HOME", "~/h", 1);
    tk_ok(fmr_hub_env_read(&e));
    assert_string_equal(e.token, "word");
    snprintf(path, sizeof path, "%s/h/hub", dir);
    assert_string_equal(e.cache, path);
    fmr_hub_env_release(&e);
    setenv("HF_ENDPOINT", "ftp://x", 1);
    tk_fails(fmr_hub_env_read(&e), FM_EINVAL, "HF_ENDPOINT");
    unsetenv("HF_ENDPOINT");
    fm_free(dir);
}

/* ==== answers ==== */

#define SHA "0123456789012345678901234567890123456789"
#define LFS SHA "012345678901234567890123"
#define PLAIN(name, size) "{\"rfilename\":\"" name "\",\"size\":" size ",\"blobId\":\"" SHA "\"}"
#define BIG(name, size)                                                                            \
    "{\"rfilename\":\"" name "\",\"size\":" size ",\"blobId\":\"" SHA "\",\"lfs\":{\"size\":" size \
    ",\"sha256\":\"" LFS "\",\"pointerSize\":130}}"
#define ANSWER(files) "{\"sha\":\"" SHA "\",\"siblings\":[" files "]}"

TEST(answers_that_contradict_themselves_are_refused)
{
    static const char *const bad[][2] = {
        {"", "line 1"},
        {"[]", "sha"},
        {"{\"sha\":\"x\"}", "no commit"},
        {"{\"sha\":\"" SHA "\"}", "no list"},
        {"{\"sha\":\"" SHA "\",\"siblings\":{}}", "no list"},
        {ANSWER("7"), "without a name"},
        {ANSWER("{}"), "without a name"},
        {ANSWER("{\"rfilename\":\"a\\u0000b\"}"), "without a name"},
        {ANSWER(PLAIN("../a", "1")), "no path"},
        {ANSWER(PLAIN("/etc/passwd", "1")), "no path"},
        {ANSWER(PLAIN("a/../../b", "1")), "no path"},
        {ANSWER(PLAIN("", "1")), "no path"},
        {ANSWER(PLAIN("a\\nb", "1")), "no path"},
        {ANSWER(PLAIN("a", "-1")), "sensible size"},
        {ANSWER(PLAIN("a", "99999999999999999")), "sensible size"},
        {ANSWER(PLAIN("a", "\"1\"")), "sensible size"},
        {ANSWER("{\"rfilename\":\"a\",\"size\":1}"), "no digest"},
        {ANSWER("{\"rfilename\":\"a\",\"size\":1,\"blobId\":\"xyz\"}"), "no digest"},
        {ANSWER("{\"rfilename\":\"a\",\"size\":1,\"lfs\":{\"size\":1,\"sha256\":\"" SHA "\"}}"),
         "no digest"},
        {ANSWER("{\"rfilename\":\"a\",\"size\":1,\"lfs\":{\"size\":2,\"sha256\":\"" LFS "\"}}"),
         "two sizes"},
        {ANSWER(PLAIN("a", "1") "," PLAIN("a", "1")), "twice"},
        {ANSWER(PLAIN("a/b", "1") "," PLAIN("a-b", "1") "," PLAIN("a", "1")), "file and a folder"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fmr_listing l;
        tk_fails(fmr_listing_parse(&l, fm_span_str(bad[i][0]), "hf:x"), FM_ECORRUPT, bad[i][1]);
        assert_null(l.file);
    }
}

/* The names that are taken, in order, with a blank behind each. */
static void takes(const fmr_listing *l, const char *want)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < l->count; i++)
        if (l->file[i].take)
            fm_buf_printf(&b, "%s ", l->file[i].name);
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

static void listing(fmr_listing *l, const char *text)
{
    tk_ok(fmr_listing_parse(l, fm_span_str(text), "hf:x"));
    assert_string_equal(l->commit, SHA);
}

TEST(one_form_of_the_weights_is_chosen_and_what_stands_beside_it)
{
    fmr_listing l;
    listing(
        &l,
        ANSWER(PLAIN("config.json", "10") "," BIG("pytorch_model.bin", "99") "," BIG(
            "model.safetensors",
            "99") "," PLAIN("README.md",
                            "1") "," BIG("big.dat",
                                         "99999999") "," PLAIN("onnx/x.json",
                                                               "1") "," PLAIN("1_Pooling/"
                                                                              "config.json",
                                                                              "1") "," BIG("1_"
                                                                                           "Pooling"
                                                                                           "/w.bin",
                                                                                           "1") "," BIG("m.gguf",
                                                                                                        "1") "," BIG("tokenizer.json",
                                                                                                                     "5")));
    tk_ok(fmr_listing_choose(&l, "hf:x"));
    takes(&l, "1_Pooling/config.json README.md config.json model.safetensors tokenizer.json ");
    assert_null(l.index);
    tk_ok(fmr_listing_choose_one(&l, "m.gguf", "hf:x"));
    takes(&l, "m.gguf ");
    tk_fails(fmr_listing_choose_one(&l, "n.gguf", "hf:x"), FM_ENOTFOUND, "m.gguf");
    fmr_listing_release(&l);

    listing(&l, ANSWER(PLAIN("adapter_config.json", "10") "," BIG("adapter_model.bin", "9") "," BIG(
                    "adapter_model.safetensors", "9") "," BIG("pytorch_model.bin", "9")));
    tk_ok(fmr_listing_choose(&l, "hf:x"));
    takes(&l, "adapter_config.json adapter_model.safetensors ");
    fmr_listing_release(&l);

    listing(&l, ANSWER(BIG("a.gguf", "10") "," BIG("b.gguf", "9") "," PLAIN("config.json", "9")));
    tk_fails(fmr_listing_choose(&l, "hf:x"), FM_ENOTFOUND, "a.gguf, b.gguf");
    fmr_listing_release(&l);
}

TEST(shards_are_those_that_the_index_names)
{
    fmr_listing l;
    listing(&l, ANSWER(PLAIN("model.safetensors.index.json", "10") "," BIG(
                    "model-1.safetensors",
                    "99999999") "," BIG("model-2.safetensors",
                                        "99999999") "," BIG("consolidated.safetensors",
                                                            "99999999") "," BIG("pytorch_model.bin",
                                                                                "9")));
    tk_ok(fmr_listing_choose(&l, "hf:x"));
    takes(&l, "model.safetensors.index.json ");
    assert_string_equal(l.index, "model.safetensors.index.json");
    tk_ok(fmr_listing_choose_shards(
        &l,
        fm_span_str(
            "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}"),
        "hf:x"));
    takes(&l, "model-1.safetensors model-2.safetensors model.safetensors.index.json ");
    tk_fails(fmr_listing_choose_shards(
                 &l, fm_span_str("{\"weight_map\":{\"a\":\"../../etc/passwd\"}}"), "hf:x"),
             FM_ENOTFOUND, "is not there");
    tk_fails(fmr_listing_choose_shards(&l, fm_span_str("{\"weight_map\":[]}"), "hf:x"), FM_ECORRUPT,
             "weight_map");
    tk_fails(fmr_listing_choose_shards(&l, fm_span_str("{"), "hf:x"), FM_ECORRUPT, "line 1");
    fmr_listing_release(&l);
}

TEST(what_gathers_has_one_owner)
{
    fmr_gathering a, b;
    char *dir = tk_scratch(), *path;
    tk_ok(fmr_gathering_open(&a, dir, "k"));
    tk_fails(fmr_gathering_open(&b, dir, "k"), FM_ECONFLICT, "another process");
    tk_ok(fmr_gathering_open(&b, dir, "other"));
    fmr_gathering_close(&b, true);
    tk_ok(fmr_path_for(&path, a.files, "x/y/z"));
    tk_ok(fm_write_file(path, "1", 1));
    fmr_gathering_close(&a, false);
    assert_true(fm_path_exists(path));
    tk_ok(fmr_gathering_open(&a, dir, "k"));
    fmr_gathering_close(&a, true);
    assert_false(fm_path_exists(path));
    fm_free(path);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_read),
        cmocka_unit_test(other_addresses_are_refused),
        cmocka_unit_test(the_environment_is_read_as_hugging_face_reads_it),
        cmocka_unit_test(answers_that_contradict_themselves_are_refused),
        cmocka_unit_test(one_form_of_the_weights_is_chosen_and_what_stands_beside_it),
        cmocka_unit_test(shards_are_those_that_the_index_names),
        cmocka_unit_test(what_gathers_has_one_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
