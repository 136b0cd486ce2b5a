/* Request bodies of the server: no input crashes, every refusal has a text, whatever is accepted is
 * within the limits that the engine counts on. */
#include "infer/serve/openai.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(const fmi_ask *a)
{
    fm_assert(a->model && a->model[0]);
    if (a->kind == FMI_ASK_EMBED)
        fm_assert(a->n == 1 && a->prompts <= FMI_ASK_MAX_INPUTS);
    else
        fm_assert(a->n >= 1 && a->n * (a->chat ? 1 : a->prompts) <= FMI_ASK_MAX_CHOICES);
    fm_assert(a->max_tokens >= 1 && a->max_tokens <= 100);
    fm_assert(a->stops <= FMI_ASK_MAX_STOPS && a->top_logprobs <= FMI_ASK_MAX_TOP);
    fm_assert(fm_sample_check(&a->sampling) == FM_OK);
    fm_assert(a->chat ? fm_json_count(a->messages) > 0 : a->prompts > 0);
    for (size_t i = 0; i < a->prompts; i++)
        fm_assert(a->prompt[i].text.data || a->prompt[i].count > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_json *body = NULL;

    if (fm_json_parse(&body, fm_span_of(data, size), "fuzz") < 0)
        return 0;
    for (fmi_ask_kind kind = FMI_ASK_TEXT; kind <= FMI_ASK_EMBED; kind++) {
        fmi_ask a;
        fm_error_clear();
        fm_status rc = fmi_ask_parse(&a, body, kind, 100);
        if (rc == FM_OK)
            check_accepted(&a);
        else
            fm_assert(rc == FM_EINVAL && fm_error_text()[0]);
        fmi_ask_release(&a);
    }
    fm_json_free(body);
    return 0;
}
