/* A hostile chat template: must be refused or rendered within its limits. */
#include "infer/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
        "\"content\":[{\"type\":\"text\",\"text\":\"h\\u00e9\"}],\"n\":1.5}]";
    fm_chat_template *t;
    fm_json *messages = NULL;
    fm_buf out;
    fm_chat_watch w = {.work_max = 50000000}; /* many inputs, not one for seconds */

    if (fm_chat_template_open(&t, fm_span_of(data, size), "fuzz") < 0)
        return 0;
    fm_buf_init(&out, 0);
    (void)fm_chat_watch_set(&w);
    if (fm_json_parse(&messages, fm_span_str(text), "m") == FM_OK)
        fm_ignore(fm_chat_render(&out, t, messages, messages, true, NULL), "any result is fine");
    (void)fm_chat_watch_set(NULL);
    fm_json_free(messages);
    fm_buf_release(&out);
    fm_chat_template_close(t);
    return 0;
}
