/* train_data_kinds.c - every kind of record and every format of file: what counts, what is
 * refused. Expected texts follow the template of the kit by hand:
 * "<|start|>role:content<|end|>" a message, "<|start|>assistant:" to prompt for an answer. */
#include "tests/kit/train_kit.h"

#include <stdio.h>
#include <string.h>

#include "train/train.h"

static fm_tokenizer *tok;
static fm_chat_template *chat;

static fm_status open_as(fm_dataset **d, const char *name, const char *text, fm_objective objective,
                         uint32_t max_tokens)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.objective = objective;
    c.max_tokens = max_tokens;
    return fm_dataset_open(d, fm_span_str(text), name, tok, chat, &c, NULL, 0);
}

/* One part as text, what counts in brackets. */
static void part_text(fm_buf *b, const fm_example *e, uint32_t part)
{
    uint32_t at = 0;
    bool inside = false;

    for (uint32_t i = 0; i < part; i++)
        at += e->part_len[i];
    for (uint32_t i = at; i < at + e->part_len[part]; i++) {
        bool counts = e->labels[i] >= 0;
        assert_true(e->labels[i] == (counts ? e->ids[i] : -100));
        if (counts != inside)
            fm_buf_char(b, counts ? '[' : ']');
        inside = counts;
        tk_ok(fm_tokenizer_decode(tok, &e->ids[i], 1, false, b));
    }
    if (inside)
        fm_buf_char(b, ']');
}

static void check_parts(const fm_example *e, uint32_t parts, const char *const *want)
{
    uint32_t sum = 0;

    assert_int_equal(e->parts, parts);
    for (uint32_t i = 0; i < parts; i++) {
        fm_buf b;
        fm_buf_init(&b, 0);
        part_text(&b, e, i);
        assert_string_equal(fm_buf_cstr(&b), want[i]);
        sum += e->part_len[i];
        fm_buf_release(&b);
    }
    assert_int_equal(e->len, sum);
}

static void check(const char *name, const char *text, fm_objective objective, uint32_t parts,
                  const char *const *want)
{
    fm_dataset *d = NULL;

    tk_ok(open_as(&d, name, text, objective, 1000));
    assert_int_equal(fm_dataset_count(d), 1);
    check_parts(fm_dataset_at(d, 0), parts, want);
    assert_int_equal(fm_dataset_at(d, 0)->lost, 0);
    fm_dataset_close(d);
}

static void check_text(const char *name, const char *text, const char *want)
{
    check(name, text, FM_OBJECTIVE_NEXT_TOKEN, 1, &want);
}

TEST(bad_records_are_refused_with_field_and_remedy)
{
    static const struct {
        fm_objective objective;
        const char *text, *says;
    } bad[] = {
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}",
         "objective=dpo"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"anchor\":\"a\",\"positive\":\"b\"}", "objective=contrastive"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"premise\":\"a\",\"hypothesis\":\"b\",\"label\":1}",
         "objective=classify"},
        {FM_OBJECTIVE_DPO, "{\"instruction\":\"a\",\"output\":\"b\"}", "chosen and rejected"},
        {FM_OBJECTIVE_DPO, "{\"chosen\":\"a\"}", "chosen and rejected"},
        {FM_OBJECTIVE_DPO, "{\"chosen\":\"a\",\"rejected\":[]}", "rejected"},
        {FM_OBJECTIVE_DPO, "{\"prompt\":3,\"chosen\":\"a\",\"rejected\":\"b\"}", "'prompt'"},
        {FM_OBJECTIVE_DPO, "{\"chosen\":\"same\",\"rejected\":\"same\"}", "no example is left"},
        {FM_OBJECTIVE_CONTRASTIVE, "{\"text\":\"a\"}", "anchor and positive"},
        {FM_OBJECTIVE_CONTRASTIVE, "{\"sentence1\":\"a\",\"sentence2\":\"b\",\"label\":0}",
         "keep the pairs that match"},
        {FM_OBJECTIVE_CONTRASTIVE, "{\"anchor\":\"a\",\"positive\":3}", "'positive'"},
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\"}", "label"},
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\",\"label\":-1}", "0 .. 65535"},
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\",\"label\":1.5}", "'label'"},
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\",\"label\":1}\n{\"text\":\"a\",\"label\":\"x\"}",
         "record 1: field 'label' is a name here"},
        {FM_OBJECTIVE_CLASSIFY, "a plain text", "plain text"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"input_ids\":[1,260]}", "element 1 is no token of 0 .. 258"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"input_ids\":[1,2],\"labels\":[-100]}", "as long as"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"input_ids\":[1,2],\"labels\":[2,2]}", "shift by one"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"input_ids\":[1,2],\"labels\":[-100,-100]}",
         "no example is left"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"input_ids\":[1,2],\"attention_mask\":[0,1]}",
         "pad on the right"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"conversations\":[{\"from\":\"alien\",\"value\":\"a\"}]}",
         "'alien'"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"conversations\":[]}", "conversations"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"instruction\":\"a\",\"output\":\"b\",\"history\":[[\"x\"]]}",
         "history"},
        {FM_OBJECTIVE_NEXT_TOKEN, "{\"instruction\":\"a\",\"output\":\"b\",\"system\":3}",
         "system"},
        {FM_OBJECTIVE_NEXT_TOKEN,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":3}", "tools"},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_dataset *d = NULL;
        tk_fails(open_as(&d, "d", bad[i].text, bad[i].objective, 100), FM_EINVAL, bad[i].says);
        assert_null(d);
    }
}

TEST(broken_tables_are_refused_by_line)
{
    static const char *const bad[][2] = {
        {"prompt,completion\na,b\na\n", "line 3"},
        {"prompt,completion\na,b,c\n", "line 2"},
        {"prompt,completion\na,b\na,\"b\n", "line 3"},
        {"prompt,completion\n\"a\"x,b\n", "line 2"},
        {"prompt,completion\n\"a\nb\",c\nx\n", "line 4"},
        {"prompt,prompt\na,b\n", "two columns are called 'prompt'"},
        {"prompt,\na,b\n", "no name"},
        {"prompt,completion\na,\xff\n", "line 2"},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_dataset *d = NULL;
        tk_fails(open_as(&d, "d.csv", bad[i][0], FM_OBJECTIVE_NEXT_TOKEN, 100), FM_ECORRUPT,
                 bad[i][1]);
        assert_null(d);
    }
    fm_dataset *d = NULL;
    tk_fails(open_as(&d, "d.csv", "prompt,answer\na,b\n", FM_OBJECTIVE_NEXT_TOKEN, 100), FM_EINVAL,
             "completion");
    tk_fails(open_as(&d, "d.csv", "prompt,completion\n", FM_OBJECTIVE_NEXT_TOKEN, 100), FM_EINVAL,
             "no example is left");
    tk_fails(open_as(&d, "d.json", "text", FM_OBJECTIVE_NEXT_TOKEN, 100), FM_EINVAL, ".txt");
}

TEST(tables_are_read_with_quotes_breaks_and_any_line_end)
{
    check_text("d.csv", "prompt,completion\na,b\n", "a[b<|end|>]");
    check_text("d.csv", "\xEF\xBB\xBFprompt,completion\r\n\"a,\"\"x\"\"\r\n\",b",
               "a,\"x\"\r\n[b<|end|>]");
    check_text("d.tsv", "prompt\tcompletion\na,\tb\n\n", "a,[b<|end|>]");
    check_text("d.csv", "id,text\n7,ab\n", "[ab<|end|>]");
    check_text("d.csv", "text\nab\n", "[ab<|end|>]");
    /* by content alone: the header names what makes a record */
    check_text("d", "prompt,completion\na,b\n", "a[b<|end|>]");
    check_text("d", "completion\tprompt\nb\ta\n", "a[b<|end|>]");
    check_text("d", "text\nab\n", "[text\nab\n]");
    check_text("d.txt", "prompt,completion\na,b\n", "[prompt,completion\na,b\n]");
    check_text("d.txt", "[x] is no JSON", "[[x] is no JSON]");
    check_text("d.txt", "{\"text\":\"ab\"}", "[ab<|end|>]");
    check_text("d.csv",
               "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"a\"\"},"
               "{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"b\"\"}]\"\n",
               "<|start|>user:a<|end|><|start|>assistant:[b<|end|>]");
}

TEST(conversations_of_every_dialect_are_the_same_text)
{
    static const char want[] = "<|start|>system:s<|end|><|start|>user:a<|end|><|start|>assistant:"
                               "[b<|end|>]<|start|>user:c<|end|><|start|>assistant:[d<|end|>]";
    check_text("d",
               "{\"system\":\"s\",\"instruction\":\"c\",\"output\":\"d\","
               "\"history\":[[\"a\",\"b\"]]}",
               want);
    check_text("d",
               "{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\","
               "\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"},{\"from\":\"human\","
               "\"value\":\"c\"},{\"from\":\"gpt\",\"value\":\"d\"}]}",
               want);
    check_text("d",
               "{\"system\":\"s\",\"conversations\":[{\"role\":\"user\",\"content\":\"a\"},"
               "{\"from\":\"assistant\",\"value\":\"b\"},{\"from\":\"user\",\"value\":\"c\"},"
               "{\"from\":\"gpt\",\"value\":\"d\"}]}",
               want);
    check_text("d",
               "{\"prompt\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
               "\"content\":\"a\"}],\"completion\":[{\"role\":\"assistant\",\"content\":"
               "\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\","
               "\"content\":\"d\"}]}",
               want);
    check_text("d",
               "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
               "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0},"
               "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":"
               "\"d\",\"weight\":1}]}",
               "<|start|>system:s<|end|><|start|>user:a<|end|><|start|>assistant:b<|end|>"
               "<|start|>user:c<|end|><|start|>assistant:[d<|end|>]");
}

TEST(tools_reach_the_template)
{
    static const char source[] =
        "{% if tools %}{% for t in tools %}<{{ t['name'] }}>{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m['role'] }}:{% if m['tool_calls'] %}call "
        "{{ m['tool_calls'][0]['name'] }}{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}";
    fm_chat_template *kept = chat;

    tk_ok(fm_chat_template_open(&chat, fm_span_str(source), "tools"));
    check_text("d",
               "{\"tools\":[{\"name\":\"clock\"}],\"messages\":[{\"role\":\"user\",\"content\":"
               "\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"name\":"
               "\"clock\"}]},{\"role\":\"tool\",\"content\":\"9\"},{\"role\":\"assistant\","
               "\"content\":\"nine\"}]}",
               "<clock>user:a<|end|>assistant:[call clock<|end|>]tool:9<|end|>assistant:"
               "[nine<|end|>]");
    check_text("d",
               "{\"tools\":\"[{\\\"name\\\":\\\"x\\\"}]\",\"conversations\":[{\"from\":"
               "\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}",
               "<x>user:a<|end|>assistant:[b<|end|>]");
    fm_chat_template_close(chat);
    chat = kept;
}

TEST(tokens_are_taken_as_they_are)
{
    check_text("d", "{\"input_ids\":[97,98,99,257],\"labels\":[-100,98,-100,257]}",
               "a[b]c[<|end|>]");
    check_text("d", "{\"input_ids\":[97,98]}", "[ab]");
    check_text("d",
               "{\"input_ids\":[97,98,0,0],\"labels\":[-100,98,-100,-100],"
               "\"attention_mask\":[1,1,0,0]}",
               "a[b]");
    check_text("d.csv", "input_ids,labels\n\"[97, 98]\",\"[-100, 98]\"\n", "a[b]");
}

TEST(a_preference_is_two_whole_answers)
{
    static const char *const plain[] = {"a[b<|end|>]", "a[cd<|end|>]"};
    static const char *const talk[] = {"<|start|>user:a<|end|><|start|>assistant:[b<|end|>]",
                                       "<|start|>user:a<|end|><|start|>assistant:[cd<|end|>]"};
    static const char *const shared[] = {"Q: x[ one<|end|>]", "Q: x[ two<|end|>]"};
    static const char user[] = "{\"role\":\"user\",\"content\":\"a\"}";
    static const char b[] = "{\"role\":\"assistant\",\"content\":\"b\"}";
    static const char cd[] = "{\"role\":\"assistant\",\"content\":\"cd\"}";
    char text[400];

    check("d", "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"cd\"}", FM_OBJECTIVE_DPO, 2,
          plain);
    check("d.csv", "prompt,chosen,rejected\na,b,cd\n", FM_OBJECTIVE_DPO, 2, plain);
    check("d", "{\"chosen\":\"Q: x one\",\"rejected\":\"Q: x two\"}", FM_OBJECTIVE_DPO, 2, shared);
    snprintf(text, sizeof text, "{\"prompt\":[%s],\"chosen\":[%s],\"rejected\":[%s]}", user, b, cd);
    check("d", text, FM_OBJECTIVE_DPO, 2, talk);
    snprintf(text, sizeof text, "{\"chosen\":[%s,%s],\"rejected\":[%s,%s]}", user, b, user, cd);
    check("d", text, FM_OBJECTIVE_DPO, 2, talk);
    snprintf(text, sizeof text, "{\"prompt\":\"a\",\"chosen\":[%s,%s],\"rejected\":[%s,%s]}", user,
             b, user, cd);
    check("d", text, FM_OBJECTIVE_DPO, 2, talk);
    snprintf(text, sizeof text, "{\"prompt\":\"a\",\"chosen\":[%s],\"rejected\":[%s]}", b, cd);
    check("d", text, FM_OBJECTIVE_DPO, 2, talk);
    snprintf(text, sizeof text, "{\"prompt\":[%s],\"chosen\":\"b\",\"rejected\":\"cd\"}", user);
    check("d", text, FM_OBJECTIVE_DPO, 2, talk);
}

TEST(each_part_is_cut_on_its_own)
{
    fm_dataset *d = NULL;

    tk_ok(open_as(&d, "d", "{\"prompt\":\"ab\",\"chosen\":\"cdefg\",\"rejected\":\"h\"}",
                  FM_OBJECTIVE_DPO, 4));
    check_parts(fm_dataset_at(d, 0), 2, (const char *const[]){"ab[cd]", "ab[h<|end|>]"});
    assert_int_equal(fm_dataset_at(d, 0)->lost, 4);
    fm_dataset_close(d);
    tk_fails(open_as(&d, "d", "{\"prompt\":\"abcd\",\"chosen\":\"e\",\"rejected\":\"f\"}",
                     FM_OBJECTIVE_DPO, 4),
             FM_EINVAL, "no example is left");
}

TEST(texts_that_belong_together_are_parts_without_targets)
{
    static const char *const two[] = {"ab", "c"};
    static const char *const three[] = {"ab", "c", "xyz"};

    check("d", "{\"anchor\":\"ab\",\"positive\":\"c\"}", FM_OBJECTIVE_CONTRASTIVE, 2, two);
    check("d", "{\"anchor\":\"ab\",\"positive\":\"c\",\"negative\":\"xyz\"}",
          FM_OBJECTIVE_CONTRASTIVE, 3, three);
    check("d", "{\"query\":\"ab\",\"document\":\"c\"}", FM_OBJECTIVE_CONTRASTIVE, 2, two);
    check("d", "{\"query\":\"ab\",\"positive\":\"c\",\"negative\":\"xyz\"}",
          FM_OBJECTIVE_CONTRASTIVE, 3, three);
    check("d.tsv", "sentence1\tsentence2\nab\tc\n", FM_OBJECTIVE_CONTRASTIVE, 2, two);
}

TEST(classes_have_a_fixed_order)
{
    static const char words[] = "{\"text\":\"a\",\"label\":\"warm\"}\n"
                                "{\"sentence\":\"b\",\"label\":\"cold\"}\n"
                                "{\"premise\":\"c\",\"hypothesis\":\"d\",\"label\":\"warm\"}\n";
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;

    tk_ok(open_as(&d, "d", words, FM_OBJECTIVE_CLASSIFY, 100));
    assert_int_equal(fm_dataset_classes(d), 2);
    assert_string_equal(fm_dataset_class_name(d, 0), "cold");
    assert_string_equal(fm_dataset_class_name(d, 1), "warm");
    assert_null(fm_dataset_class_name(d, 2));
    assert_int_equal(fm_dataset_at(d, 0)->klass, 1);
    assert_int_equal(fm_dataset_at(d, 1)->klass, 0);
    check_parts(fm_dataset_at(d, 2), 1, (const char *const[]){"c\nd"});
    fm_json *m = fm_dataset_manifest(d);
    assert_string_equal(fm_json_cstr(fm_json_at(fm_json_get(m, "classes"), 0), ""), "cold");
    assert_string_equal(fm_json_cstr(fm_json_get(m, "kind"), ""), "class");
    fm_json_free(m);
    fm_dataset_close(d);

    /* Leaving a record out renumbers nothing. */
    c.objective = FM_OBJECTIVE_CLASSIFY;
    tk_ok(fm_dataset_open(&d, fm_span_str(words), "d", tok, chat, &c, (const uint32_t[]){1}, 1));
    assert_int_equal(fm_dataset_classes(d), 2);
    assert_int_equal(fm_dataset_at(d, 0)->klass, 1);
    fm_dataset_close(d);

    tk_ok(open_as(&d, "d.csv", "text,label\na,2\nb,0\n", FM_OBJECTIVE_CLASSIFY, 100));
    assert_int_equal(fm_dataset_classes(d), 3);
    assert_string_equal(fm_dataset_class_name(d, 2), "2");
    assert_int_equal(fm_dataset_at(d, 0)->klass, 2);
    fm_dataset_close(d);

    c.classes = 2;
    tk_fails(fm_dataset_open(&d, fm_span_str("{\"text\":\"a\",\"label\":2}"), "d", tok, chat, &c,
                             NULL, 0),
             FM_EINVAL, "0 .. 1");
    c.classes = 1;
    tk_fails(fm_dataset_open(&d, fm_span_str(words), "d", tok, chat, &c, NULL, 0), FM_EINVAL,
             "classes is 1");
    c.classes = 4;
    tk_ok(fm_dataset_open(&d, fm_span_str(words), "d", tok, chat, &c, NULL, 0));
    assert_int_equal(fm_dataset_classes(d), 4);
    fm_dataset_close(d);
}

static fm_status open_two(fm_dataset **d, double weight, double eval_share, uint64_t seed)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_buf many;

    c.seed = seed;
    fm_buf_init(&many, 0);
    for (int i = 0; i < 1000; i++)
        fm_buf_printf(&many, "{\"prompt\":\"p%d\",\"completion\":\"c\"}\n", i % 900);
    fm_data_file file[] = {
        {.bytes = fm_buf_span(&many), .what = "many.jsonl", .weight = 1.0, .licence = "CC0-1.0"},
        {.bytes = fm_span_str("{\"text\":\"own\"}"),
         .what = "own.jsonl",
         .weight = weight,
         .source = "here",
         .split = "train"},
    };
    fm_status rc = fm_dataset_open_files(d, file, 2, tok, chat, &c, eval_share);
    fm_buf_release(&many);
    return rc;
}

TEST(several_files_keep_weights_and_origins)
{
    fm_dataset *d = NULL;

    tk_fails(open_two(&d, 0.0, 0.0, 1), FM_EINVAL, "own.jsonl: weight 0");
    tk_fails(open_two(&d, 1.0, 1.0, 1), FM_EINVAL, "eval");
    tk_ok(open_two(&d, 2.5, 0.0, 1));
    assert_int_equal(fm_dataset_count(d), 1001);
    assert_int_equal(fm_dataset_files(d), 2);
    assert_int_equal(fm_dataset_at(d, 1000)->file, 1);
    assert_int_equal(fm_dataset_at(d, 1000)->index, 0);
    assert_true(fm_dataset_weight(d, 0) == 1.0 && fm_dataset_weight(d, 1000) == 2.5);
    fm_json *m = fm_dataset_file_manifest(d, 1);
    assert_true(fm_json_real(fm_json_get(m, "weight"), 0) == 2.5);
    assert_string_equal(fm_json_cstr(fm_json_get(m, "source"), ""), "here");
    assert_string_equal(fm_json_cstr(fm_json_get(m, "split"), ""), "train");
    assert_null(fm_json_get(m, "licence"));
    fm_json_free(m);
    m = fm_dataset_file_manifest(d, 0);
    assert_string_equal(fm_json_cstr(fm_json_get(m, "licence"), ""), "CC0-1.0");
    assert_null(fm_json_get(m, "weight"));
    fm_json_free(m);
    fm_dataset_close(d);
}

TEST(the_held_out_share_is_a_function_of_seed_and_record)
{
    fm_dataset *d = NULL;
    fm_dataset *other = NULL;

    tk_ok(open_two(&d, 1.0, 0.1, 7));
    size_t n = fm_dataset_held_out_count(d);
    assert_int_equal(fm_dataset_count(d) + n, 1001);
    assert_true(n > 70 && n < 130); /* 100 expected, 3 standard deviations are 28 */
    fm_json *m = fm_dataset_manifest(d);
    assert_true(fm_json_count(fm_json_get(m, "held_out")) + 1 >= n);
    assert_int_equal(fm_json_int(fm_json_at(fm_json_get(m, "held_out"), 0), -1),
                     fm_dataset_held_out(d, 0)->index);
    fm_json_free(m);
    /* Records 900.. repeat records 0..: both copies are on one side. */
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < fm_dataset_count(d); k++)
            assert_false(
                fm_digest_eq(&fm_dataset_held_out(d, i)->digest, &fm_dataset_at(d, k)->digest));
    tk_ok(open_two(&other, 2.0, 0.1, 7));
    assert_int_equal(fm_dataset_held_out_count(other), n);
    fm_dataset_close(other);
    tk_ok(open_two(&other, 1.0, 0.1, 8));
    bool same = fm_dataset_held_out_count(other) == n;
    for (size_t i = 0; same && i < n; i++)
        same = fm_dataset_held_out(other, i)->index == fm_dataset_held_out(d, i)->index;
    assert_false(same);
    fm_dataset_close(other);
    fm_dataset_close(d);
}

TEST(a_file_may_be_held_out_whole)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_data_file file[] = {{.bytes = fm_span_str("{\"text\":\"a\"}"), .what = "a", .weight = 1.0},
                           {.bytes = fm_span_str("{\"text\":\"b\"}\n{\"text\":\"c\"}"),
                            .what = "b",
                            .held_out = true,
                            .split = "eval"}};
    fm_dataset *d = NULL;

    tk_ok(fm_dataset_open_files(&d, file, 2, tok, chat, &c, 0.0));
    assert_int_equal(fm_dataset_count(d), 1);
    assert_int_equal(fm_dataset_held_out_count(d), 2);
    assert_null(fm_dataset_held_out(d, 2));
    fm_dataset_close(d);
    file[0].held_out = true;
    tk_fails(fm_dataset_open_files(&d, file, 2, tok, chat, &c, 0.0), FM_EINVAL, "3 are held out");
}

TEST(a_skip_beyond_the_records_is_a_mistake)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;

    tk_fails(fm_dataset_open(&d, fm_span_str("{\"text\":\"a\"}"), "d", tok, chat, &c,
                             (const uint32_t[]){1}, 1),
             FM_EINVAL, "record 1, but there are 1");
}

/* Every allocation may fail: an error, no leak, and the next try works. */
TEST(no_allocation_failure_is_mistaken)
{
    static const struct {
        const char *name, *text;
        fm_objective objective;
    } file[] = {
        {"d", "text,label\nsome,x\nmore,y\n", FM_OBJECTIVE_CLASSIFY},
        {"d.txt", "{\n\"text\":\"a\"}", FM_OBJECTIVE_NEXT_TOKEN},
        {"d.txt", "[a text", FM_OBJECTIVE_NEXT_TOKEN},
        {"d", "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}", FM_OBJECTIVE_DPO},
        {"d",
         "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"chosen\":\"b\",\"rejected\":"
         "\"c\"}",
         FM_OBJECTIVE_DPO},
        {"d", "{\"anchor\":\"a\",\"positive\":\"b\"}", FM_OBJECTIVE_CONTRASTIVE},
        {"d",
         "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\","
         "\"value\":\"b\"}],\"tools\":\"[]\"}",
         FM_OBJECTIVE_NEXT_TOKEN},
        {"d", "{\"input_ids\":[97,98],\"labels\":[-100,98]}", FM_OBJECTIVE_NEXT_TOKEN},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(file); i++) {
        fm_status rc = FM_ENOMEM;
        for (uint64_t n = 1; rc == FM_ENOMEM; n++) {
            fm_dataset *d = NULL;
            fm_mem_fail_at(n, false);
            rc = open_as(&d, file[i].name, file[i].text, file[i].objective, 100);
            fm_mem_fail_at(0, false);
            if (rc != FM_OK && rc != FM_ENOMEM)
                fail_msg("file %zu: %s", i, fm_error_text());
            fm_dataset_close(d);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_records_are_refused_with_field_and_remedy),
        cmocka_unit_test(broken_tables_are_refused_by_line),
        cmocka_unit_test(tables_are_read_with_quotes_breaks_and_any_line_end),
        cmocka_unit_test(conversations_of_every_dialect_are_the_same_text),
        cmocka_unit_test(tools_reach_the_template),
        cmocka_unit_test(tokens_are_taken_as_they_are),
        cmocka_unit_test(a_preference_is_two_whole_answers),
        cmocka_unit_test(each_part_is_cut_on_its_own),
        cmocka_unit_test(texts_that_belong_together_are_parts_without_targets),
        cmocka_unit_test(classes_have_a_fixed_order),
        cmocka_unit_test(several_files_keep_weights_and_origins),
        cmocka_unit_test(the_held_out_share_is_a_function_of_seed_and_record),
        cmocka_unit_test(a_file_may_be_held_out_whole),
        cmocka_unit_test(a_skip_beyond_the_records_is_a_mistake),
        cmocka_unit_test(no_allocation_failure_is_mistaken),
    };

    tok = kit_tokenizer();
    chat = kit_chat();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_chat_template_close(chat);
    fm_tokenizer_close(tok);
    return failed;
}
