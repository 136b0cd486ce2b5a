/* Tokenizers of many kinds against ids that Hugging Face's `tokenizers` gave (tokenizer_cases.json,
 * tokenizer_cases/: small vocabularies, hostile texts), what must be refused, and the streaming
 * decoder. */
#include "infer/tokenizer.h"
#include "store/source.h"
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

/* Bytes a-d and one merge; `%s` are the fields under test. */
#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4},"          \
    "\"merges\":[\"a b\",[\"ab\",\"c\"]]}"

static fm_status open_text(fm_tokenizer **t, const char *json)
{
    return fm_tokenizer_open(t, fm_span_str(json), fm_span_of(NULL, 0), "toy");
}

static void refused(const char *json, fm_status status, const char *needle)
{
    fm_tokenizer *t;

    tk_fails(open_text(&t, json), status, needle);
    assert_null(t);
    assert_non_null(strstr(fm_error_text(), "toy: "));
}

TEST(what_is_not_implemented_is_refused_by_name)
{
    refused("{\"model\":{\"type\":\"Rwkv\",\"vocab\":[]}}", FM_EUNSUPPORTED, "type 'Rwkv'");
    refused("{\"normalizer\":{\"type\":\"Rot13\"}," MODEL "}", FM_EUNSUPPORTED,
            "normalizer: type 'Rot13'");
    refused("{\"pre_tokenizer\":{\"type\":\"Random\"}," MODEL "}", FM_EUNSUPPORTED,
            "pre_tokenizer: type 'Random'");
    refused("{\"post_processor\":{\"type\":\"Chop\"}," MODEL "}", FM_EUNSUPPORTED, "Chop");
    refused("{\"decoder\":{\"type\":\"Upper\"}," MODEL "}", FM_EUNSUPPORTED, "Upper");
    refused("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
            "{\"type\":\"Metaspace\"}]}," MODEL "}",
            FM_EUNSUPPORTED, "'Metaspace' behind Fuse");
    refused("{\"model\":{\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", FM_EUNSUPPORTED,
            "model.dropout");
}

static void split_with(char *out, size_t cap, const char *regex)
{
    snprintf(out, cap,
             "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
             "\"behavior\":\"Isolated\",\"invert\":false}," MODEL "}",
             regex);
}

TEST(patterns_that_could_mean_something_else_are_refused)
{
    static const char *const bad[] = {"^a",       "a$",           "\\\\ba",    "[a[b]]", "[a&&b]",
                                      "(a)\\\\1", "\\\\p{Greek}", "(?x)a",     "\\\\h",  "a{,3}",
                                      "[]",       "(?<n>a)",      "\\\\p{Mn}", "[\\\\W]"};
    static const char *const broken[] = {"(a", "*a", "a**"};
    char json[512];

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        split_with(json, sizeof json, bad[i]);
        refused(json, FM_EUNSUPPORTED, "regular expression");
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(broken); i++) {
        split_with(json, sizeof json, broken[i]);
        refused(json, FM_EINVAL, "regular expression");
    }
}

TEST(contradictions_are_refused)
{
    refused("", FM_ECORRUPT, NULL);
    refused("{}", FM_EINVAL, "'model' must be an object");
    refused("{\"model\":{\"vocab\":{},\"merges\":[]}}", FM_EINVAL, "vocab");
    refused("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", FM_EINVAL, "valid id");
    refused("{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", FM_EINVAL, "valid id");
    refused("{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", FM_ECORRUPT, "id 0");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", FM_ECORRUPT, "merges[0]");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", FM_ECORRUPT, "merges[0]");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", FM_ECORRUPT, "not a pair");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", FM_ECORRUPT, "not a pair");
    refused("{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]," MODEL "}", FM_ECORRUPT, "id 1");
    refused("{\"added_tokens\":[{\"id\":1,\"content\":\"z\"}]," MODEL "}", FM_ECORRUPT, "id 1");
    refused("{\"added_tokens\":[{\"content\":\"z\"}]," MODEL "}", FM_EINVAL, "added_tokens[0]");
    refused("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
            "{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":{}}," MODEL "}",
            FM_EINVAL, "'x'");
}

TEST(text_that_is_not_utf8_is_refused_with_its_offset)
{
    static const char *const bad[] = {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\x80",
                                      "ab\xf4\x90\x80\x80"};
    fm_tokenizer *t;
    fm_ids ids = {0};

    tk_ok(open_text(&t, "{" MODEL "}"));
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        tk_fails(fm_tokenizer_encode(t, fm_span_str(bad[i]), false, &ids), FM_EINVAL, "byte 2");
    fm_ids_release(&ids);
    fm_tokenizer_close(t);
}

/* Streamed pieces are whole code points and join to the text. */
static void check_stream(const fm_tokenizer *t, const fm_ids *ids, fm_span want)
{
    fm_tok_stream s;
    fm_buf out;

    fm_buf_init(&out, 0);
    fm_tok_stream_init(&s, t, false);
    for (size_t i = 0; i <= ids->count; i++) {
        size_t before = out.len;
        if (i < ids->count)
            tk_ok(fm_tok_stream_push(&s, t, ids->id[i], &out));
        else
            tk_ok(fm_tok_stream_finish(&s, t, &out));
        fm_json *piece = fm_json_new_strn(fm_buf_cstr(&out) + before, out.len - before);
        assert_int_equal(fm_json_str(piece).len, out.len - before); /* else it is no UTF-8 */
        fm_json_free(piece);
    }
    assert_true(fm_span_eq(fm_buf_span(&out), want));
    fm_buf_release(&out);
}

/* [text, ids, decoded or null] */
static void check_case(const fm_tokenizer *t, const char *name, const fm_json *c, bool plain,
                       size_t *bad)
{
    fm_span text = fm_json_str(fm_json_at(c, 0)), want = fm_json_str(fm_json_at(c, 2));
    const fm_json *ids_want = fm_json_at(c, 1);
    fm_ids ids = {0};
    fm_buf out;

    fm_buf_init(&out, 0);
    tk_ok(plain ? fm_tokenizer_encode_plain(t, text, true, &ids)
                : fm_tokenizer_encode(t, text, true, &ids));
    bool ok = ids.count == fm_json_count(ids_want);
    for (size_t i = 0; ok && i < ids.count; i++)
        ok = ids.id[i] == fm_json_int(fm_json_at(ids_want, i), -1);
    tk_ok(fm_tokenizer_decode(t, ids.id, ids.count, false, &out));
    if (!ok || (want.data && !fm_span_eq(fm_buf_span(&out), want))) {
        fprintf(stderr, "%s: %s of '%s'\n", name, ok ? "text" : "ids", (const char *)text.data);
        ++*bad;
    }
    check_stream(t, &ids, fm_buf_span(&out));
    fm_buf_release(&out);
    fm_ids_release(&ids);
}

static void base64(fm_buf *out, const char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    unsigned have = 0;

    for (; *s && *s != '='; s++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *s) - digits);
        have += 6;
        if (have < 8)
            continue;
        have -= 8;
        fm_buf_u8(out, (uint8_t)(bits >> have));
    }
}

static void read_entry(fm_buf *out, const fm_source *src, const char *path)
{
    const fm_entry *e = fm_tree_find(fm_source_tree(src), path);
    fm_provider p = fm_source_provider(src);

    if (e)
        tk_ok(fm_entry_read(out, &p, e));
}

/* What the importer makes of a GGUF. */
static void import(fm_buf *out, fm_buf *config, const char *gguf)
{
    char *dir = tk_scratch(), *path = fm_path_join(dir, "m.gguf");
    fm_source *src = NULL;
    fm_buf bytes;

    fm_buf_init(&bytes, 0);
    base64(&bytes, gguf);
    tk_ok(fm_write_file(path, bytes.data, bytes.len));
    tk_ok(fm_source_open(&src, path));
    for (size_t i = 0; out->len == 0 && fm_tokenizer_paths[i]; i++)
        read_entry(out, src, fm_tokenizer_paths[i]);
    read_entry(config, src, "tokenizer/tokenizer_config.json");
    fm_source_close(src);
    fm_buf_release(&bytes);
    fm_free(path);
    fm_free(dir);
}

/* The tokenizer.json, or the SentencePiece model, of a golden file. */
static void file_of(fm_buf *out, fm_buf *config, const fm_json *one)
{
    fm_buf_init(out, 0);
    fm_buf_init(config, 0);
    if (fm_json_get(one, "gguf"))
        import(out, config, fm_json_cstr(fm_json_get(one, "gguf"), ""));
    else if (fm_json_get(one, "model"))
        base64(out, fm_json_cstr(fm_json_get(one, "model"), ""));
    else
        tk_ok(fm_json_write(out, fm_json_get(one, "tokenizer"), FM_JSON_COMPACT));
}

static void check_kind(const fm_json *one, size_t *bad)
{
    const fm_json *cases = fm_json_get(one, "cases");
    const char *name = fm_json_cstr(fm_json_get(one, "name"), "");
    bool plain = fm_json_bool(fm_json_get(one, "plain"), false);
    fm_tokenizer *t;
    fm_buf file, config;

    file_of(&file, &config, one);
    tk_ok(fm_tokenizer_open(&t, fm_buf_span(&file), fm_buf_span(&config), name));
    assert_true(fm_json_count(cases) >= 20);
    for (size_t k = 0; k < fm_json_count(cases); k++)
        check_case(t, name, fm_json_at(cases, k), plain, bad);
    fm_tokenizer_close(t);
    fm_buf_release(&file);
    fm_buf_release(&config);
}

TEST(pre_tokenizers_of_known_models_equal_hugging_face)
{
    char *path = tk_source("tests/unit/infer/tokenizer_cases.json");
    fm_json *list;
    size_t bad = 0;

    tk_ok(fm_json_parse_file(&list, path, (size_t)1 << 22));
    assert_true(fm_json_count(list) >= 10);
    for (size_t i = 0; i < fm_json_count(list); i++)
        check_kind(fm_json_at(list, i), &bad);
    fm_json_free(list);
    fm_free(path);
    assert_int_equal(bad, 0);
}

TEST(all_kinds_equal_their_packages)
{
    char *folder = tk_source("tests/unit/infer/tokenizer_cases");
    fm_names names;
    size_t bad = 0;

    tk_ok(fm_list_dir(&names, folder));
    assert_true(names.count >= 20);
    for (size_t i = 0; i < names.count; i++) {
        char *path = fm_path_join(folder, names.name[i]);
        fm_json *one;
        tk_ok(fm_json_parse_file(&one, path, (size_t)1 << 22));
        check_kind(one, &bad);
        fm_json_free(one);
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(folder);
    assert_int_equal(bad, 0);
}

static void golden_bytes(fm_buf *out, const char *kind)
{
    char *path = tk_source("tests/unit/infer/tokenizer_cases");
    char *file = fm_asprintf("%s/%s.json", path, kind);
    fm_json *one;

    fm_buf config;

    tk_ok(fm_json_parse_file(&one, file, (size_t)1 << 22));
    file_of(out, &config, one);
    fm_buf_release(&config);
    fm_json_free(one);
    fm_free(file);
    fm_free(path);
}

/* What Hugging Face's classes put around a SentencePiece model comes from the configuration. */
TEST(a_model_file_takes_its_frame_from_the_config)
{
    static const struct {
        const char *config;
        int32_t ids[8]; /* of "<s>fox" up to -1; 1 <s>, 2 </s>, 3 fox, -2 the space before it */
    } cases[] = {
        {"", {1, -2, 3, -1}},
        {"{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\"}", {1, 1, -2, 3, -1}},
        {"{\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":false,\"add_eos_token\":true}",
         {1, -2, 3, 2, -1}},
        {"{\"legacy\":false}", {1, 3, -1}},
        {"{\"tokenizer_class\":\"T5Tokenizer\",\"eos_token\":{\"content\":\"</s>\"}}",
         {1, -2, 3, 2, -1}},
        {"{\"added_tokens_decoder\":{\"999\":{\"content\":\"<s>fox\",\"special\":true}}}",
         {999, -1}}};
    fm_buf file;
    fm_tokenizer *t;

    golden_bytes(&file, "spm-bpe");
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        fm_ids ids = {0};
        tk_ok(fm_tokenizer_open(&t, fm_buf_span(&file), fm_span_str(cases[i].config), "toy"));
        tk_ok(fm_tokenizer_encode(t, fm_span_str("<s>fox"), true, &ids));
        int32_t space = fm_tokenizer_id(t, fm_span_str("\xe2\x96\x81"));
        for (size_t k = 0; k < ids.count; k++)
            assert_int_equal(ids.id[k], cases[i].ids[k] == -2 ? space : cases[i].ids[k]);
        assert_int_equal(cases[i].ids[ids.count], -1);
        fm_ids_release(&ids);
        fm_tokenizer_close(t);
    }
    tk_fails(fm_tokenizer_open(&t, fm_buf_span(&file),
                               fm_span_str("{\"tokenizer_class\":\"XLMRobertaTokenizer\"}"), "toy"),
             FM_EUNSUPPORTED, "tokenizer_class 'XLMRobertaTokenizer'");
    fm_buf_release(&file);
}

TEST(hostile_model_files_are_refused_by_field)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *needle;
    } bad[] = {{"\x0a\x05\x0a\x01", 4, "cut off"},                  /* longer than the file */
               {"\x0a\x03\x0a\x01\x61", 5, "none of type unknown"}, /* no unk */
               {"\x0a\x02\x18\x02", 4, "pieces[0].piece must be UTF-8 text"}, /* an empty piece */
               {"\x0a\x05\x0a\x01\xff\x18\x02", 7, "pieces[0].piece must be UTF-8 text"},
               {"\x0a\x0a\x0a\x01\x61\x15\x00\x00\xc0\x7f\x18\x02", 12, "pieces[0].score"},
               {"\x0a\x05\x0a\x01\x61\x18\x07", 7, "pieces[0].type is unknown"},
               {"\x0a\x02\x08\x01", 4, "pieces.piece has the wrong kind"},
               {"\x0a\x05\x0a\x01\x61\x18\x02\x0a\x05\x0a\x01\x62\x18\x02", 14, "a second unknown"},
               {"\x0a\x05\x0a\x01\x61\x18\x02\x12\x02\x18\x03", 11, "model_type WORD"},
               {"\x0a\x05\x0a\x01\x61\x18\x02\x12\x05\x18\x02\x98\x02\x01", 14,
                "without the piece <0x00>"},
               {"\x0a\x05\x0a\x01\x61\x18\x02\x1a\x03\x12\x01\x61", 12, "precompiled_charsmap"},
               {"\x0a\x05\x0a\x01\x61\x18\x02\x2a\x03\x12\x01\x61", 12, "denormalizer_spec"},
               {"\x12\x01\x7b", 3, "cut off"}};
    fm_tokenizer *t;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_status rc =
            fm_tokenizer_open(&t, fm_span_of(bad[i].bytes, bad[i].len), fm_span_of(NULL, 0), "toy");
        assert_true(rc == FM_ECORRUPT || rc == FM_EUNSUPPORTED);
        if (!strstr(fm_error_text(), bad[i].needle))
            fail_msg("%zu: '%s' lacks '%s'", i, fm_error_text(), bad[i].needle);
    }
}

/* A byte-level vocabulary of the euro sign's three bytes. */
static const char euro[] = "{\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":3,"
                           "\"content\":\"<s>\",\"special\":true}],"
                           "\"model\":{\"vocab\":{\"\\u00e2\":0,\"\\u0124\":1,\"\\u00ac\":2},"
                           "\"merges\":[]}}";

TEST(streaming_holds_back_an_unfinished_code_point)
{
    static const int32_t ids[] = {0, 1, 2, 0, 3, 1, 0, 1};
    static const char *const after[] = {
        "", "", "\xe2\x82\xac", "", "\xef\xbf\xbd<s>", "\xef\xbf\xbd", "", ""};
    fm_tokenizer *t;
    fm_tok_stream s;
    fm_buf out;

    tk_ok(open_text(&t, euro));
    fm_tok_stream_init(&s, t, false);
    for (size_t i = 0; i < FM_ARRAY_LEN(ids); i++) {
        fm_buf_init(&out, 0);
        tk_ok(fm_tok_stream_push(&s, t, ids[i], &out));
        assert_string_equal(fm_buf_cstr(&out), after[i]);
        fm_buf_release(&out);
    }
    fm_buf_init(&out, 0);
    tk_ok(fm_tok_stream_finish(&s, t, &out));
    assert_string_equal(fm_buf_cstr(&out), "\xef\xbf\xbd");
    tk_fails(fm_tok_stream_push(&s, t, 4, &out), FM_EINVAL, "4 is no token id");
    tk_fails(fm_tok_stream_push(&s, t, -1, &out), FM_EINVAL, "-1 is no token id");
    fm_buf_release(&out);
    fm_tokenizer_close(t);
}

TEST(special_tokens_can_be_skipped_or_treated_as_text)
{
    static const int32_t ids[] = {0, 1, 2, 3};
    fm_tokenizer *t;
    fm_ids got = {0};
    fm_buf out;

    tk_ok(open_text(&t, euro));
    fm_buf_init(&out, 0);
    tk_ok(fm_tokenizer_decode(t, ids, 4, true, &out));
    assert_string_equal(fm_buf_cstr(&out), "\xe2\x82\xac");
    tk_ok(fm_tokenizer_encode(t, fm_span_str("<s>"), false, &got));
    assert_int_equal(got.count, 1);
    tk_ok(fm_tokenizer_encode_plain(t, fm_span_str("<s>"), false, &got));
    assert_int_equal(got.count, 1); /* its characters are not in the vocabulary */
    fm_ids_release(&got);
    fm_buf_release(&out);
    fm_tokenizer_close(t);
}

TEST(a_long_word_is_merged_like_a_short_one)
{
    fm_tokenizer *t;
    fm_ids ids = {0};
    fm_buf text;

    tk_ok(open_text(&t, "{" MODEL "}"));
    fm_buf_init(&text, 0);
    for (int i = 0; i < 200000; i++)
        fm_buf_str(&text, "abcab");
    tk_ok(fm_tokenizer_encode(t, fm_buf_span(&text), false, &ids));
    assert_int_equal(ids.count, 400000);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.id[i], i % 2 ? 3 : 4);
    fm_ids_release(&ids);
    fm_buf_release(&text);
    fm_tokenizer_close(t);
}

/* 5 million bytes without a border: WordPiece finds the longest token each time, Unigram looks at
 * all tokens that begin at each place. Quadratic work would take hours. */
TEST(long_words_take_linear_time)
{
    static const char *const json[] = {
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"#"
        "\","
        "\"max_input_chars_per_word\":999999999,\"vocab\":{\"u\":0,\"ab\":1,\"#a\":2,\"#bab\":3,"
        "\"#abababa\":4,\"#b\":5}}}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"u\",0],[\"a\",-1],[\"b\",-1],"
        "[\"ab\",-1.5],[\"abababab\",-2]]}}"};
    fm_buf text;

    fm_buf_init(&text, 0);
    for (int i = 0; i < 2500000; i++)
        fm_buf_str(&text, "ab");
    for (size_t i = 0; i < FM_ARRAY_LEN(json); i++) {
        fm_tokenizer *t;
        fm_ids ids = {0};
        tk_ok(open_text(&t, json[i]));
        tk_ok(fm_tokenizer_encode(t, fm_buf_span(&text), false, &ids));
        if (i == 1)
            assert_int_equal(ids.count, 625000);
        assert_true(ids.count > 1);
        fm_ids_release(&ids);
        fm_tokenizer_close(t);
    }
    fm_buf_release(&text);
}

/* Marks in falling classes: putting them in order must not take quadratic time either. */
/* {"<part>": {"type": "Sequence", "<list>": [step, step, ...]}, MODEL} */
static void chain(fm_buf *out, const char *part, const char *list, const char *step, int times)
{
    fm_buf_clear(out);
    fm_buf_printf(out, "{\"%s\":{\"type\":\"Sequence\",\"%s\":[", part, list);
    for (int i = 0; i < times; i++)
        fm_buf_printf(out, "%s%s", i > 0 ? "," : "", step);
    fm_buf_str(out, "]}," MODEL "}");
}

/* Each step makes the text some times longer, and a few in a row a gigabyte of one letter. */
TEST(steps_that_lengthen_the_text_have_a_limit)
{
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaa\"}";
    static const char bytes[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                "\"trim_offsets\":true,\"use_regex\":false}";
    fm_tokenizer *t;
    fm_ids ids = {0};
    fm_buf json;
    fm_buf_init(&json, 0);
    chain(&json, "normalizer", "normalizers", replace, 10);
    tk_ok(open_text(&t, fm_buf_cstr(&json)));
    tk_fails(fm_tokenizer_encode(t, fm_span_str("banana"), false, &ids), FM_ELIMIT,
             "normalizer Replace (step 10 of 10)");
    fm_tokenizer_close(t);
    chain(&json, "normalizer", "normalizers", replace, 3); /* sound: 64 letters for one */
    tk_ok(open_text(&t, fm_buf_cstr(&json)));
    tk_ok(fm_tokenizer_encode(t, fm_span_str("aba"), false, &ids));
    assert_int_equal(ids.count, 64 + 64); /* 63 of "a", "ab", 64 of "a" */
    fm_tokenizer_close(t);
    ids.count = 0;
    chain(&json, "pre_tokenizer", "pretokenizers", bytes, 24);
    tk_ok(open_text(&t, fm_buf_cstr(&json)));
    tk_fails(fm_tokenizer_encode(t, fm_span_str("\xc3\xa9"), false, &ids), FM_ELIMIT,
             "pre-tokenizers make the text longer");
    fm_tokenizer_close(t);
    /* each place of a text is compared with as much as an added token has */
    fm_buf_clear(&json);
    fm_buf_printf(&json,
                  "{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"%01024d\"},"
                  "\"added_tokens\":[{\"id\":5,\"content\":\"x\"}]," MODEL "}",
                  0);
    refused(fm_buf_cstr(&json), FM_ELIMIT, "1025 bytes when normalized");
    chain(&json, "decoder", "decoders", replace, 14);
    refused(fm_buf_cstr(&json), FM_ELIMIT, "decoder: step 11 of 14");
    fm_buf_release(&json);
    fm_ids_release(&ids);
}

/* Millions of steps a word are within a match's limit, but not a thousand times in one text. */
TEST(matches_of_one_text_have_a_limit_together)
{
    char json[512];
    fm_tokenizer *t;
    fm_ids ids = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    split_with(json, sizeof json, "(?:(?:a+a+)+c|.)");
    tk_ok(open_text(&t, json));
    tk_ok(fm_tokenizer_encode(t, fm_span_str("aaaaaaaaaaaaaaaaaab"), false, &ids));
    for (int i = 0; i < 2000; i++)
        fm_buf_str(&text, "aaaaaaaaaaaaaaaaaaaaab");
    tk_fails(fm_tokenizer_encode(t, fm_buf_span(&text), false, &ids), FM_ELIMIT, "gave up");
    fm_tokenizer_close(t);
    fm_buf_release(&text);
    fm_ids_release(&ids);
}

TEST(long_runs_of_marks_take_linear_time)
{
    static const char form[] =
        "{\"normalizer\":{\"type\":\"NFD\"},\"model\":{\"type\":\"WordLevel\","
        "\"unk_token\":\"u\",\"vocab\":{\"u\":0}}}";
    fm_tokenizer *t;
    fm_ids ids = {0};
    fm_buf text;

    fm_buf_init(&text, 0);
    for (int i = 0; i < 500000; i++)
        fm_buf_str(&text, "\xcd\x85\xcc\x80\xe0\xbd\xb3"); /* U+0345, U+0300, U+0F73 */
    tk_ok(open_text(&t, form));
    tk_ok(fm_tokenizer_encode(t, fm_buf_span(&text), false, &ids));
    assert_int_equal(ids.count, 1);
    fm_ids_release(&ids);
    fm_buf_release(&text);
    fm_tokenizer_close(t);
}

TEST(every_failed_allocation_is_reported)
{
    for (uint64_t n = 1; n < 2000; n++) {
        fm_tokenizer *t;
        fm_ids ids = {0};
        fm_mem_fail_at(n, false);
        fm_status rc = open_text(&t, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL "}");
        if (rc == FM_OK)
            rc = fm_tokenizer_encode(t, fm_span_str("abc ab"), false, &ids);
        fm_mem_fail_at(0, false);
        fm_tokenizer_close(t);
        fm_ids_release(&ids);
        if (rc == FM_OK)
            return;
        assert_int_equal(rc, FM_ENOMEM);
    }
    fail_msg("never succeeded");
}

/* The same for models and steps with tables of their own; later allocations are sampled. */
TEST(failed_allocations_of_other_kinds_are_reported)
{
    static const char *const kinds[] = {"wordpiece", "unigram", "spm-bpe", "spm-unigram",
                                        "bpe-clip"};

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        fm_status rc = FM_ENOMEM;
        fm_buf file;
        golden_bytes(&file, kinds[i]);
        for (uint64_t n = 1; rc != FM_OK; n += 1 + n / 50) {
            fm_tokenizer *t;
            fm_ids ids = {0};
            fm_buf out;
            assert_true(n < 1000000);
            fm_buf_init(&out, 0);
            fm_mem_fail_at(n, false);
            rc = fm_tokenizer_open(&t, fm_buf_span(&file), fm_span_of(NULL, 0), "toy");
            if (rc == FM_OK)
                rc = fm_tokenizer_encode(t, fm_span_str("The \xc3\xa9\xe4\xb8\xad fox."), true,
                                         &ids);
            if (rc == FM_OK)
                rc = fm_tokenizer_decode(t, ids.id, ids.count, false, &out);
            fm_mem_fail_at(0, false);
            fm_tokenizer_close(t);
            fm_ids_release(&ids);
            fm_buf_release(&out);
            assert_true(rc == FM_OK || rc == FM_ENOMEM);
        }
        fm_buf_release(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_implemented_is_refused_by_name),
        cmocka_unit_test(patterns_that_could_mean_something_else_are_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_offset),
        cmocka_unit_test(pre_tokenizers_of_known_models_equal_hugging_face),
        cmocka_unit_test(all_kinds_equal_their_packages),
        cmocka_unit_test(a_model_file_takes_its_frame_from_the_config),
        cmocka_unit_test(hostile_model_files_are_refused_by_field),
        cmocka_unit_test(streaming_holds_back_an_unfinished_code_point),
        cmocka_unit_test(special_tokens_can_be_skipped_or_treated_as_text),
        cmocka_unit_test(a_long_word_is_merged_like_a_short_one),
        cmocka_unit_test(long_words_take_linear_time),
        cmocka_unit_test(steps_that_lengthen_the_text_have_a_limit),
        cmocka_unit_test(matches_of_one_text_have_a_limit_together),
        cmocka_unit_test(long_runs_of_marks_take_linear_time),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(failed_allocations_of_other_kinds_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
