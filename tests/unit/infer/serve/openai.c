/* Request bodies of the server: what is read, and that whatever is refused is refused by name. */
#include "infer/serve/openai.h"

#include <stdio.h>
#include <string.h>

#include "tests/testkit.h"

#define CAP 4096u

static fm_status parse(fmi_ask *a, fmi_ask_kind kind, const char *text)
{
    fm_json *body = NULL;
    tk_ok(fm_json_parse(&body, fm_span_str(text), "test"));
    fm_status rc = fmi_ask_parse(a, body, kind, CAP);
    fm_json_free(body);
    return rc;
}

static void refused(fmi_ask_kind kind, const char *text, const char *param)
{
    fmi_ask a;
    tk_fails(parse(&a, kind, text), FM_EINVAL, NULL);
    if (strcmp(a.param, param) != 0)
        fail_msg("%s: blamed '%s', not '%s' (%s)", text, a.param, param, fm_error_text());
    assert_non_null(strstr(fm_error_text(), param));
    fmi_ask_release(&a);
}

#define T "\"model\":\"m\",\"prompt\":\"p\","
#define C "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"p\"}],"

TEST(bodies_that_lack_something_name_it)
{
    refused(FMI_ASK_TEXT, "[]", "");
    refused(FMI_ASK_TEXT, "3", "");
    refused(FMI_ASK_TEXT, "{\"prompt\":\"p\"}", "model");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\"}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":null}", "prompt");
    refused(FMI_ASK_CHAT, "{\"model\":\"m\"}", "messages");
    refused(FMI_ASK_CHAT, "{\"model\":\"m\",\"messages\":[]}", "messages");
    refused(FMI_ASK_TEXT, "{\"model\":7,\"prompt\":\"p\"}", "model");
    refused(FMI_ASK_TEXT, "{\"model\":\"\",\"prompt\":\"p\"}", "model");
    refused(FMI_ASK_TEXT, "{\"model\":\"a\\u0000b\",\"prompt\":\"p\"}", "model");
}

TEST(inputs_of_embeddings_are_read)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_EMBED,
                "{\"model\":\"m\",\"input\":[\"a\",[3,4]],"
                "\"encoding_format\":\"base64\",\"user\":\"u\"}"));
    assert_int_equal(a.prompts, 2);
    assert_true(a.base64 && a.prompt[0].text.len == 1 && a.prompt[1].count == 2);
    fmi_ask_release(&a);
    refused(FMI_ASK_EMBED, "{\"model\":\"m\"}", "input");
    refused(FMI_ASK_EMBED, "{\"model\":\"m\",\"input\":[]}", "input");
    refused(FMI_ASK_EMBED, "{\"model\":\"m\",\"input\":[[]]}", "input");
    refused(FMI_ASK_EMBED, "{\"model\":\"m\",\"input\":\"a\",\"encoding_format\":\"hex\"}",
            "encoding_format");
    refused(FMI_ASK_EMBED, "{\"model\":\"m\",\"input\":\"a\",\"dimensions\":8}", "dimensions");
    refused(FMI_ASK_EMBED, "{\"model\":\"m\",\"input\":\"a\",\"temperature\":1}", "temperature");
    refused(FMI_ASK_CHAT, "{" C "\"input\":\"a\"}", "input");
}

TEST(wrong_types_and_ranges_name_their_field)
{
    static const char *const bad[][2] = {
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":4097", "max_tokens"},
        {"\"max_tokens\":1.5", "max_tokens"},
        {"\"max_tokens\":\"9\"", "max_tokens"},
        {"\"max_completion_tokens\":-1", "max_completion_tokens"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":true", "temperature"},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":1.01", "top_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"top_k\":0.5", "top_k"},
        {"\"min_p\":2", "min_p"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":99999999999999999999", "seed"},
        {"\"stop\":7", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",3]", "stop"},
        {"\"stop\":[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7]", "stop"},
        {"\"stream\":1", "stream"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream_options\":[],\"stream\":true", "stream_options"},
        {"\"stream_options\":{\"x\":1},\"stream\":true", "stream_options"},
        {"\"ignore_eos\":\"no\"", "ignore_eos"},
        {"\"n\":0", "n"},
        {"\"n\":129", "n"},
        {"\"presence_penalty\":0.5", "presence_penalty"},
        {"\"frequency_penalty\":-1", "frequency_penalty"},
        {"\"logit_bias\":{\"5\":1}", "logit_bias"},
        {"\"response_format\":{\"type\":\"yaml\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format"},
        {"\"response_format\":{\"type\":\"text\",\"schema\":{}}", "response_format"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
         "response_format"},
        {"\"guided_json\":\"{\"", "guided_json"},
        {"\"guided_json\":{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "guided_json"},
        {"\"guided_json\":{},\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"structured_outputs\":{\"regex\":\"a\"}", "structured_outputs"},
        {"\"structured_outputs\":{}", "structured_outputs"},
        {"\"echo\":true", "echo"},
        {"\"temprature\":1", "temprature"},
    };
    char text[512];
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        (void)snprintf(text, sizeof(text), "{" T "%s}", bad[i][0]);
        refused(FMI_ASK_TEXT, text, bad[i][1]);
        (void)snprintf(text, sizeof(text), "{" C "%s}", bad[i][0]);
        refused(FMI_ASK_CHAT, text, bad[i][1]);
    }
}

TEST(fields_of_the_other_endpoint_are_unknown)
{
    refused(FMI_ASK_CHAT, "{" C "\"prompt\":\"p\"}", "prompt");
    refused(FMI_ASK_TEXT, "{" T "\"messages\":[]}", "messages");
    refused(FMI_ASK_TEXT, "{" T "\"top_logprobs\":3}", "top_logprobs");
    refused(FMI_ASK_CHAT, "{" C "\"logprobs\":3}", "logprobs");
    refused(FMI_ASK_TEXT, "{" T "\"logprobs\":true}", "logprobs");
    refused(FMI_ASK_TEXT, "{" T "\"logprobs\":21}", "logprobs");
    refused(FMI_ASK_CHAT, "{" C "\"top_logprobs\":3}", "top_logprobs");
    refused(FMI_ASK_CHAT, "{" C "\"tools\":{}}", "tools");
    refused(FMI_ASK_CHAT, "{" C "\"tools\":[3]}", "tools");
    refused(FMI_ASK_CHAT, "{" C "\"documents\":[\"x\"]}", "documents");
    refused(FMI_ASK_CHAT, "{" C "\"chat_template_kwargs\":{\"messages\":[]}}",
            "chat_template_kwargs");
    refused(FMI_ASK_CHAT, "{" C "\"chat_template_kwargs\":7}", "chat_template_kwargs");
    refused(FMI_ASK_TEXT, "{" T "\"tools\":[]}", "tools");
    refused(FMI_ASK_TEXT, "{" T "\"n\":2,\"best_of\":3}", "best_of");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"n\":100}", "n");
    refused(FMI_ASK_CHAT,
            "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":3}]}",
            "messages[0].tool_calls");
    refused(FMI_ASK_CHAT, "{" C "\"tool_choice\":\"required\"}", "tool_choice");
    refused(FMI_ASK_TEXT, "{" T "\"suffix\":\"x\"}", "suffix");
    refused(FMI_ASK_TEXT, "{" T "\"best_of\":3}", "best_of");
}

TEST(no_field_is_taken_and_ignored)
{
    static const char tools[] = "\"tools\":[{\"type\":\"function\"}],";
    static const char *const harmless[] = {"user",
                                           "safety_identifier",
                                           "metadata",
                                           "store",
                                           "service_tier",
                                           "prompt_cache_key",
                                           "prompt_cache_retention",
                                           "cache_prompt",
                                           "prediction"};
    char text[300];
    fmi_ask a;
    for (size_t i = 0; i < FM_ARRAY_LEN(harmless); i++) {
        snprintf(text, sizeof text, "{" C "\"%s\":{\"any\":\"value\"}}", harmless[i]);
        tk_ok(parse(&a, FMI_ASK_CHAT, text));
        fmi_ask_release(&a);
    }
    snprintf(text, sizeof text, "{" C "%s\"parallel_tool_calls\":false}", tools);
    refused(FMI_ASK_CHAT, text, "parallel_tool_calls");
    refused(FMI_ASK_CHAT, "{" C "\"parallel_tool_calls\":7}", "parallel_tool_calls");
    snprintf(text, sizeof text, "{" C "%s\"parallel_tool_calls\":true}", tools);
    tk_ok(parse(&a, FMI_ASK_CHAT, text));
    fmi_ask_release(&a);
    snprintf(text, sizeof text, "{" C "%s\"parallel_tool_calls\":false,\"tool_choice\":\"none\"}",
             tools);
    tk_ok(parse(&a, FMI_ASK_CHAT, text));
    fmi_ask_release(&a);
    refused(FMI_ASK_CHAT,
            "{" C "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}}",
            "stream_options.include_obfuscation");
    tk_ok(parse(&a, FMI_ASK_CHAT,
                "{" C "\"stream\":true,\"stream_options\":{\"include_obfuscation\":false}}"));
    fmi_ask_release(&a);
    refused(FMI_ASK_CHAT,
            "{" C "\"response_format\":{\"type\":\"json_object\",\"json_schema\":{\"schema\":{}}}}",
            "response_format");
    refused(FMI_ASK_CHAT, "{" C "\"verbosity\":\"low\"}", "verbosity");
}

TEST(bad_prompts_and_messages_are_placed)
{
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":{}}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[]}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[1,\"a\"]}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[\"a\",1]}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[-1]}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[2147483648]}", "prompt");
    refused(FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[[]]}", "prompt");
    refused(FMI_ASK_CHAT, "{\"model\":\"m\",\"messages\":[3]}", "messages[0]");
    refused(FMI_ASK_CHAT, "{\"model\":\"m\",\"messages\":[{\"content\":\"a\"}]}",
            "messages[0].role");
    refused(FMI_ASK_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}]}",
            "messages[0].content");
    refused(FMI_ASK_CHAT,
            "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
            "{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
            "messages[1].content");
}

TEST(every_field_arrives)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_TEXT,
                "{\"model\":\"team/x~1\",\"prompt\":[\"a\",\"\"],\"max_tokens\":7,"
                "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":9,\"min_p\":0.125,"
                "\"repetition_penalty\":1.5,\"seed\":-2,\"stop\":[\"x\",\"yy\"],\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true},\"logprobs\":3,\"user\":\"me\","
                "\"n\":1,\"echo\":false,\"logit_bias\":{},\"presence_penalty\":0.0,"
                "\"suffix\":null,\"ignore_eos\":true,\"return_token_ids\":true}"));
    assert_string_equal(a.model, "team/x~1");
    assert_int_equal(a.prompts, 2);
    assert_true(fm_span_eq_str(a.prompt[0].text, "a"));
    assert_true(fm_span_eq_str(a.prompt[1].text, ""));
    assert_int_equal(a.max_tokens, 7);
    assert_true(a.sampling.temperature == 0.5f && a.sampling.top_p == 0.25f);
    assert_true(a.sampling.top_k == 9 && a.sampling.min_p == 0.125f);
    assert_true(a.sampling.repetition_penalty == 1.5f);
    assert_true(a.seeded && a.sampling.seed == (uint64_t)-2);
    assert_int_equal(a.stops, 2);
    assert_string_equal(a.stop[1], "yy");
    assert_true(a.stream && a.include_usage && a.logprobs && a.ignore_eos && a.token_ids);
    assert_int_equal(a.top_logprobs, 3);
    fmi_ask_release(&a);
}

TEST(forms_tools_and_variables_arrive)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_CHAT,
                "{" C
                "\"n\":3,\"tools\":[{\"type\":\"function\"}],\"documents\":[{\"text\":\"d\"}],"
                "\"chat_template_kwargs\":{\"enable_thinking\":false},\"tool_choice\":\"auto\","
                "\"response_format\":{\"type\":\"json_object\"}}"));
    assert_int_equal(a.n, 3);
    assert_int_equal(fm_json_count(a.tools), 1);
    assert_int_equal(fm_json_count(fm_json_get(a.variables, "documents")), 1);
    assert_false(fm_json_bool(fm_json_get(a.variables, "enable_thinking"), true));
    assert_non_null(a.grammar);
    fmi_ask_release(&a);
    tk_ok(parse(&a, FMI_ASK_CHAT,
                "{" C "\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\"}]}"));
    assert_null(a.tools);
    assert_null(a.grammar);
    fmi_ask_release(&a);
    tk_ok(parse(&a, FMI_ASK_TEXT,
                "{" T "\"n\":2,\"best_of\":2,\"structured_outputs\":{\"json\":\"{}\"}}"));
    assert_non_null(a.grammar);
    fmi_ask_release(&a);
    tk_ok(parse(
        &a, true,
        "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":["
        "{\"function\":{\"arguments\":\"{\\\"a\\\":1}\"}},"
        "{\"function\":{\"arguments\":\"no json\"}},{\"function\":{\"arguments\":\"\"}}]}]}"));
    const fm_json *calls = fm_json_get(fm_json_at(a.messages, 0), "tool_calls");
    assert_int_equal(fm_json_int(fm_json_path(fm_json_at(calls, 0), "function.arguments.a"), 0), 1);
    assert_string_equal(fm_json_cstr(fm_json_path(fm_json_at(calls, 1), "function.arguments"), ""),
                        "no json");
    assert_true(
        fm_json_is(fm_json_path(fm_json_at(calls, 2), "function.arguments"), FM_JSON_OBJECT));
    fmi_ask_release(&a);
}

TEST(absent_fields_have_the_defaults_of_the_api)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_CHAT, "{" C "\"temperature\":null}"));
    assert_true(a.sampling.temperature == 1.0f && a.sampling.top_p == 1.0f);
    assert_true(!a.seeded && !a.stream && !a.logprobs && a.stops == 0);
    assert_int_equal(a.max_tokens, FMI_ASK_DEFAULT_TOKENS);
    fmi_ask_release(&a);
}

TEST(prompts_of_ids_are_one_or_many)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[5,0,7]}"));
    assert_int_equal(a.prompts, 1);
    assert_int_equal(a.prompt[0].count, 3);
    assert_int_equal(a.prompt[0].ids[2], 7);
    fmi_ask_release(&a);
    tk_ok(parse(&a, FMI_ASK_TEXT, "{\"model\":\"m\",\"prompt\":[[1],[2,3]]}"));
    assert_int_equal(a.prompts, 2);
    assert_int_equal(a.prompt[1].ids[1], 3);
    fmi_ask_release(&a);
}

/* The template decides what it takes: infer/chat.h. */
TEST(contents_arrive_as_they_were_sent)
{
    fmi_ask a;
    tk_ok(parse(&a, FMI_ASK_CHAT,
                "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":["
                "{\"type\":\"text\",\"text\":\"ab\"},{\"type\":\"text\",\"text\":\"c\"}]},"
                "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{}]},"
                "{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":null},"
                "{\"role\":\"assistant\",\"content\":\"y\",\"tool_calls\":[]}]}"));
    const fm_json *parts = fm_json_get(fm_json_at(a.messages, 0), "content");
    assert_int_equal(fm_json_count(parts), 2);
    assert_string_equal(fm_json_cstr(fm_json_get(fm_json_at(parts, 1), "text"), ""), "c");
    assert_int_equal(fm_json_count(a.messages), 4);
    assert_true(fm_json_is(fm_json_get(fm_json_at(a.messages, 1), "content"), FM_JSON_NULL));
    for (size_t i = 2; i < 4; i++) { /* no call: no field that a template could take for one */
        assert_null(fm_json_get(fm_json_at(a.messages, i), "tool_calls"));
        assert_int_equal(fm_json_count(fm_json_at(a.messages, i)), 2);
    }
    fmi_ask_release(&a);
}

TEST(running_out_of_memory_leaks_nothing)
{
    fm_json *body = NULL;
    bool done = false;
    tk_ok(fm_json_parse(&body,
                        fm_span_str("{\"model\":\"m\",\"stop\":[\"a\",\"b\"],\"tools\":[{}],"
                                    "\"guided_json\":{\"type\":\"integer\"},\"documents\":[{}],"
                                    "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{"
                                    "\"function\":{\"arguments\":\"{}\"}}]},{"
                                    "\"role\":\"user\",\"content\":\"\",\"tool_calls\":[]},{\"role\":\"user\","
                                    "\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}"),
                        "test"));
    for (uint64_t nth = 1; !done && nth < 400; nth++) {
        fmi_ask a;
        fm_mem_fail_at(nth, false);
        fm_status rc = fmi_ask_parse(&a, body, FMI_ASK_CHAT, CAP);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
        done = rc == FM_OK;
        fmi_ask_release(&a);
    }
    assert_true(done);
    fm_json_free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_lack_something_name_it),
        cmocka_unit_test(inputs_of_embeddings_are_read),
        cmocka_unit_test(wrong_types_and_ranges_name_their_field),
        cmocka_unit_test(fields_of_the_other_endpoint_are_unknown),
        cmocka_unit_test(no_field_is_taken_and_ignored),
        cmocka_unit_test(bad_prompts_and_messages_are_placed),
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(forms_tools_and_variables_arrive),
        cmocka_unit_test(absent_fields_have_the_defaults_of_the_api),
        cmocka_unit_test(prompts_of_ids_are_one_or_many),
        cmocka_unit_test(contents_arrive_as_they_were_sent),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
