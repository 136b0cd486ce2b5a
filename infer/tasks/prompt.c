/* prompt.c - one path from messages or text to ids, so that a suite tests what the server serves.
 */
#include "infer/prompt.h"

#include <string.h>

#include "infer/text/special_escape.h"

static fm_status need_tokenizer(const fm_model *m)
{
    if (fm_model_tokenizer(m))
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED, "this version has no tokenizer/tokenizer.json; import one with "
                                    "its model folder");
}

static fm_status add_variables(fm_json *extra, const fm_json *variables)
{
    for (void *it = fm_json_iter(variables); it; it = fm_json_next(variables, it))
        FM_TRY(fm_json_set(extra, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    return FM_OK;
}

fm_status fm_prompt_chat(fm_ids *out, const fm_model *m, const fm_json *messages,
                         const fm_json *tools_or_null)
{
    return fm_prompt_messages(out, m, messages, tools_or_null, NULL);
}

/* Messages, tools and documents, with marks where they hold special tokens. */
typedef struct guarded {
    fmi_special_escape guard;
    fm_json *messages, *tools;
} guarded;

static fm_status guard(guarded *g, const fm_model *m, const fm_json *messages, const fm_json *tools,
                       fm_json *extra)
{
    const fm_json *documents = fm_json_get(extra, "documents");
    const fm_json *const all[] = {messages, tools, documents};
    fm_json *marked = NULL;
    fm_status rc =
        fmi_special_escape_init(&g->guard, fm_model_tokenizer(m), all, FM_ARRAY_LEN(all));
    FM_THEN(rc, fmi_special_escape_value(&g->guard, &g->messages, messages));
    FM_THEN(rc, fmi_special_escape_value(&g->guard, &g->tools, tools));
    if (rc == FM_OK && documents)
        rc = fmi_special_escape_value(&g->guard, &marked, documents);
    return rc == FM_OK && documents ? fm_json_set(extra, "documents", marked) : rc;
}

static fm_status render(fm_ids *out, const fm_model *m, guarded *g, const fm_json *extra)
{
    fm_buf text;
    fm_buf_init(&text, FM_CHAT_OUTPUT_MAX);
    fm_status rc =
        fm_chat_render(&text, fm_model_chat_template(m), g->messages, g->tools, true, extra);
    FM_THEN(rc, fmi_special_escape_strip(&g->guard, &text));
    FM_THEN(rc, fm_tokenizer_encode_marked(fm_model_tokenizer(m), fm_buf_span(&text), g->guard.at,
                                           g->guard.count, out));
    fm_buf_release(&text);
    return rc;
}

fm_status fm_prompt_messages(fm_ids *out, const fm_model *m, const fm_json *messages,
                             const fm_json *tools_or_null, const fm_json *variables_or_null)
{
    guarded g = {.messages = NULL};
    fm_json *extra = NULL;
    FM_TRY(need_tokenizer(m));
    if (!fm_model_chat_template(m))
        return fm_fail(FM_EUNSUPPORTED, "this version has no chat template; give a plain prompt");
    fm_status rc = fm_chat_extra_new(&extra, fm_model_tokenizer(m));
    FM_THEN(rc, add_variables(extra, variables_or_null));
    FM_THEN(rc, guard(&g, m, messages, tools_or_null, extra));
    FM_THEN(rc, render(out, m, &g, extra));
    fm_json_free(g.messages);
    fm_json_free(g.tools);
    fmi_special_escape_release(&g.guard);
    fm_json_free(extra);
    return rc;
}

fm_status fm_prompt_user(fm_ids *out, const fm_model *m, fm_span text)
{
    fm_json *messages = fm_json_new_array(), *message = fm_json_new_object();
    fm_status rc = messages && message ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(message, "role", fm_json_new_str("user")));
    FM_THEN(rc,
            fm_json_set(message, "content", fm_json_new_strn((const char *)text.data, text.len)));
    if (rc == FM_OK) {
        rc = fm_json_push(messages, message);
        message = NULL;
    }
    FM_THEN(rc, fm_prompt_chat(out, m, messages, NULL));
    fm_json_free(message);
    fm_json_free(messages);
    return rc;
}

fm_status fm_prompt_text(fm_ids *out, const fm_model *m, fm_span text)
{
    FM_TRY(need_tokenizer(m));
    return fm_tokenizer_encode(fm_model_tokenizer(m), text, true, out);
}
