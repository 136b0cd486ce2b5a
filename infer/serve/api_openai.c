/* api_openai.c - reads request bodies by one table of fields: name, endpoints, reading function. */
#include "infer/serve/openai_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { IN_CHAT = 1, IN_TEXT = 2, IN_BOTH = 3, IN_EMBED = 4 };

typedef fmi_ask_reader reader;

/* ==== scalars ==== */

static fm_status read_uint(const reader *r, uint32_t lo, uint32_t hi, uint32_t *out)
{
    if (!fm_json_is(r->v, FM_JSON_INT))
        return fmi_ask_wants(r, "an integer");
    int64_t n = fm_json_int(r->v, -1);
    if (n < (int64_t)lo || n > (int64_t)hi)
        return fmi_ask_at(
            r->a, r->name,
            fm_fail(FM_EINVAL, "'%s' must be from %u to %u, is %" PRId64, r->name, lo, hi, n));
    *out = (uint32_t)n;
    return FM_OK;
}

static fm_status read_real(const reader *r, double lo, double hi, float *out)
{
    if (!fm_json_is(r->v, FM_JSON_INT) && !fm_json_is(r->v, FM_JSON_REAL))
        return fmi_ask_wants(r, "a number");
    double x = fm_json_real(r->v, -1);
    if (!(x >= lo && x <= hi))
        return fmi_ask_at(
            r->a, r->name,
            fm_fail(FM_EINVAL, "'%s' must be from %g to %g, is %g", r->name, lo, hi, x));
    *out = (float)x;
    return FM_OK;
}

static fm_status read_bool(const reader *r, bool *out)
{
    if (!fm_json_is(r->v, FM_JSON_BOOL))
        return fmi_ask_wants(r, "true or false");
    *out = fm_json_bool(r->v, false);
    return FM_OK;
}

static fm_status take_model(reader *r)
{
    fm_span s = fm_json_str(r->v);
    if (!s.data)
        return fmi_ask_wants(r, "a string");
    if (s.len == 0 || s.len > FMI_ASK_MAX_MODEL_BYTES || memchr(s.data, 0, s.len))
        return fmi_ask_at(r->a, "model",
                          fm_fail(FM_EINVAL, "'model' must have 1 to %u bytes and no NUL",
                                  FMI_ASK_MAX_MODEL_BYTES));
    r->a->model = fm_strndup((const char *)s.data, s.len);
    return r->a->model ? FM_OK : FM_ENOMEM;
}

static fm_status take_max_tokens(reader *r)
{
    return read_uint(r, 1, r->cap, &r->a->max_tokens);
}

static fm_status take_temperature(reader *r)
{
    return read_real(r, 0, 2, &r->a->sampling.temperature);
}

static fm_status take_top_p(reader *r)
{
    FM_TRY(read_real(r, 0, 1, &r->a->sampling.top_p));
    if (!(r->a->sampling.top_p > 0.0f))
        return fmi_ask_at(r->a, r->name, fm_fail(FM_EINVAL, "'top_p' must be above 0"));
    return FM_OK;
}

/* -1 is how several servers spell "off". */
static fm_status take_top_k(reader *r)
{
    if (fm_json_is(r->v, FM_JSON_INT) && fm_json_int(r->v, 0) == -1)
        return FM_OK;
    return read_uint(r, 0, 1u << 24, &r->a->sampling.top_k);
}

static fm_status take_min_p(reader *r)
{
    return read_real(r, 0, 1, &r->a->sampling.min_p);
}

static fm_status take_repetition_penalty(reader *r)
{
    FM_TRY(read_real(r, 0, 100, &r->a->sampling.repetition_penalty));
    if (!(r->a->sampling.repetition_penalty > 0.0f))
        return fmi_ask_at(r->a, r->name,
                          fm_fail(FM_EINVAL, "'repetition_penalty' must be above 0"));
    return FM_OK;
}

static fm_status take_n(reader *r)
{
    return read_uint(r, 1, FMI_ASK_MAX_CHOICES, &r->a->n);
}

static fm_status take_best_of(reader *r)
{
    return read_uint(r, 1, FMI_ASK_MAX_CHOICES, &r->a->best_of);
}

static fm_status take_seed(reader *r)
{
    if (!fm_json_is(r->v, FM_JSON_INT))
        return fmi_ask_wants(r, "an integer of 64 bits");
    r->a->sampling.seed = (uint64_t)fm_json_int(r->v, 0);
    r->a->seeded = true;
    return FM_OK;
}

static fm_status take_stream(reader *r)
{
    return read_bool(r, &r->a->stream);
}

static fm_status take_ignore_eos(reader *r)
{
    return read_bool(r, &r->a->ignore_eos);
}

static fm_status take_token_ids(reader *r)
{
    return read_bool(r, &r->a->token_ids);
}

static fm_status take_logprobs(reader *r)
{
    if (r->a->chat)
        return read_bool(r, &r->a->logprobs);
    r->a->logprobs = true;
    return read_uint(r, 0, FMI_ASK_MAX_TOP, &r->a->top_logprobs);
}

static fm_status take_top_logprobs(reader *r)
{
    r->a->has_top = true;
    return read_uint(r, 0, FMI_ASK_MAX_TOP, &r->a->top_logprobs);
}

static fm_status refuse(const reader *r, const char *only)
{
    return fmi_ask_at(
        r->a, r->name,
        fm_fail(FM_EINVAL, "'%s' is not supported here but as %s; leave it out", r->name, only));
}

static fm_status only_false(reader *r)
{
    return fm_json_is(r->v, FM_JSON_BOOL) && !fm_json_bool(r->v, true) ? FM_OK : refuse(r, "false");
}

static fm_status take_stream_options(reader *r)
{
    if (!fm_json_is(r->v, FM_JSON_OBJECT))
        return fmi_ask_wants(r, "an object");
    for (void *it = fm_json_iter(r->v); it; it = fm_json_next(r->v, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *v = fm_json_iter_value(it);
        if (fm_json_is(v, FM_JSON_NULL))
            continue;
        if (strcmp(key, "include_obfuscation") == 0) { /* it would hide the lengths of chunks */
            reader no = {r->a, v, "stream_options.include_obfuscation", 0};
            FM_TRY(only_false(&no));
            continue;
        }
        if (strcmp(key, "include_usage") != 0)
            return fmi_ask_at(
                r->a, r->name,
                fm_fail(FM_EINVAL, "'stream_options' has an unknown field '%.48s'", key));
        reader sub = {r->a, v, "stream_options.include_usage", 0};
        FM_TRY(read_bool(&sub, &r->a->include_usage));
    }
    return FM_OK;
}

/* ==== stop ==== */

static fm_status add_stop(reader *r, const fm_json *v)
{
    fm_span s = fm_json_str(v);
    fmi_ask *a = r->a;
    if (!s.data)
        return fmi_ask_at(a, "stop",
                          fm_fail(FM_EINVAL, "'stop' must be a string or an array of strings"));
    if (s.len == 0 || s.len > FMI_ASK_MAX_STOP_BYTES || memchr(s.data, 0, s.len))
        return fmi_ask_at(a, "stop",
                          fm_fail(FM_EINVAL, "a string of 'stop' must have 1 to %u bytes",
                                  FMI_ASK_MAX_STOP_BYTES));
    a->stop[a->stops] = fm_strndup((const char *)s.data, s.len);
    if (!a->stop[a->stops])
        return FM_ENOMEM;
    a->stops++;
    return FM_OK;
}

static fm_status take_stop(reader *r)
{
    if (!fm_json_is(r->v, FM_JSON_ARRAY))
        return add_stop(r, r->v);
    if (fm_json_count(r->v) > FMI_ASK_MAX_STOPS)
        return fmi_ask_at(r->a, "stop",
                          fm_fail(FM_EINVAL, "'stop' has %zu strings, at most %u are allowed",
                                  fm_json_count(r->v), FMI_ASK_MAX_STOPS));
    for (size_t i = 0; i < fm_json_count(r->v); i++) {
        FM_TRY(add_stop(r, fm_json_at(r->v, i)));
    }
    return FM_OK;
}

/* ==== prompt: text, texts, ids, or lists of ids ==== */

static fm_status prompt_ids(reader *r, const fm_json *list, fmi_prompt *p)
{
    size_t n = fm_json_count(list);
    if (n == 0)
        return fmi_ask_at(r->a, r->name,
                          fm_fail(FM_EINVAL, "'%s' holds an empty list of token ids", r->name));
    p->ids = fm_malloc(n * sizeof(int32_t));
    if (!p->ids)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const fm_json *v = fm_json_at(list, i);
        int64_t id = fm_json_int(v, -1);
        if (!fm_json_is(v, FM_JSON_INT) || id < 0 || id > INT32_MAX)
            return fmi_ask_at(r->a, r->name,
                              fm_fail(FM_EINVAL, "'%s': item %zu is no token id", r->name, i));
        p->ids[i] = (int32_t)id;
    }
    p->count = n;
    return FM_OK;
}

static fm_status prompt_one(reader *r, const fm_json *v, fmi_prompt *p)
{
    if (fm_json_is(v, FM_JSON_ARRAY))
        return prompt_ids(r, v, p);
    p->text = fm_json_str(v);
    if (!p->text.data)
        return fmi_ask_at(r->a, r->name,
                          fm_fail(FM_EINVAL,
                                  "'%s' must be a string, an array of strings, an array of "
                                  "token ids or an array of such arrays",
                                  r->name));
    return FM_OK;
}

static fm_status take_prompt(reader *r)
{
    bool array = fm_json_is(r->v, FM_JSON_ARRAY);
    bool one = !array || fm_json_is(fm_json_at(r->v, 0), FM_JSON_INT);
    size_t n = one ? 1 : fm_json_count(r->v);
    uint32_t most = r->a->kind == FMI_ASK_EMBED ? FMI_ASK_MAX_INPUTS : FMI_ASK_MAX_PROMPTS;
    if (n == 0 || n > most)
        return fmi_ask_at(r->a, r->name,
                          fm_fail(FM_EINVAL, "'%s' holds %zu texts, 1 to %u go", r->name, n, most));
    r->a->prompt = fm_calloc(n, sizeof(fmi_prompt));
    if (!r->a->prompt)
        return FM_ENOMEM;
    r->a->prompts = n;
    for (size_t i = 0; i < n; i++) {
        FM_TRY(prompt_one(r, one ? r->v : fm_json_at(r->v, i), &r->a->prompt[i]));
    }
    return FM_OK;
}

/* ==== messages ==== */

static fm_status bad_message(fmi_ask *a, size_t i, const char *field, const char *what)
{
    char param[64];
    (void)snprintf(param, sizeof(param), "messages[%zu]%s", i, field);
    return fmi_ask_at(a, param, fm_fail(FM_EINVAL, "'%s' %s", param, what));
}

/* Parts of other kinds need models that see or hear. */
static fm_status check_parts(fmi_ask *a, size_t i, const fm_json *parts)
{
    for (size_t k = 0; k < fm_json_count(parts); k++) {
        const fm_json *part = fm_json_at(parts, k);
        if (!fm_span_eq_str(fm_json_str(fm_json_get(part, "type")), "text"))
            return bad_message(a, i, ".content", "holds a part that is not of type 'text'");
        if (!fm_json_str(fm_json_get(part, "text")).data)
            return bad_message(a, i, ".content", "holds a part whose 'text' is no string");
    }
    return FM_OK;
}

/* Clients write the arguments of a call as JSON text; templates take the object. Other text
 * stays. */
static fm_status read_arguments(fm_json *call)
{
    const fm_json *f = fm_json_get(call, "function");
    fm_span text = fm_json_str(fm_json_get(f, "arguments"));
    fm_json *value = NULL, *copy;
    fm_status rc = FM_OK;
    if (!text.data)
        return FM_OK;
    if (text.len > 0)
        rc = fm_json_parse(&value, text, "arguments");
    else
        value = fm_json_new_object();
    if (rc < 0)
        return rc == FM_ENOMEM ? rc : FM_OK;
    copy = fm_json_copy(f);
    rc = fm_json_set(copy, "arguments", value);
    if (rc == FM_OK)
        return fm_json_set(call, "function", copy);
    fm_json_free(copy);
    return rc;
}

static fm_status with_calls(const fm_json *calls, fm_json **io)
{
    fm_json *m = fm_json_copy(*io), *list = fm_json_new_array();
    fm_status rc = m && list ? FM_OK : FM_ENOMEM;
    fm_json_free(*io);
    *io = m;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(calls); i++) {
        fm_json *call = fm_json_copy(fm_json_at(calls, i));
        rc = call ? read_arguments(call) : FM_ENOMEM;
        if (rc == FM_OK)
            rc = fm_json_push(list, call);
        else
            fm_json_free(call);
    }
    if (rc == FM_OK)
        return fm_json_set(m, "tool_calls", list);
    fm_json_free(list);
    return rc;
}

/* Clients send what they keep, with null or [] for what is not there; a template that asks whether
 * the name is there would take it for a call. */
static fm_status without_calls(fm_json **io)
{
    fm_json *m = fm_json_new_object();
    fm_status rc = m ? FM_OK : FM_ENOMEM;
    for (void *it = fm_json_iter(*io); rc == FM_OK && it; it = fm_json_next(*io, it))
        if (strcmp(fm_json_iter_key(it), "tool_calls") != 0)
            rc = fm_json_set(m, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    fm_json_free(*io);
    *io = m;
    return rc;
}

static fm_status check_message(fmi_ask *a, size_t i, const fm_json *m, fm_json **out)
{
    const fm_json *list = fm_json_get(m, "tool_calls");
    const fm_json *content = fm_json_get(m, "content");
    *out = NULL;
    if (!fm_json_is(m, FM_JSON_OBJECT))
        return bad_message(a, i, "", "must be an object");
    if (fm_json_str(fm_json_get(m, "role")).len == 0)
        return bad_message(a, i, ".role", "must be a string that is not empty");
    if (list && !fm_json_is(list, FM_JSON_NULL) && !fm_json_is(list, FM_JSON_ARRAY))
        return bad_message(a, i, ".tool_calls", "must be an array");
    bool calls = fm_json_count(list) > 0;
    if (fm_json_is(content, FM_JSON_ARRAY))
        FM_TRY(check_parts(a, i, content));
    else if (!fm_json_is(content, FM_JSON_STRING) &&
             !(calls && fm_json_typeof(content) == FM_JSON_NULL))
        return bad_message(a, i, ".content", "must be a string or an array of text parts");
    *out = fm_json_ref(m);
    if (calls)
        return with_calls(list, out);
    return list ? without_calls(out) : FM_OK;
}

static fm_status take_messages(reader *r)
{
    fmi_ask *a = r->a;
    if (!fm_json_is(r->v, FM_JSON_ARRAY))
        return fmi_ask_wants(r, "an array");
    if (fm_json_count(r->v) == 0)
        return fmi_ask_at(a, r->name, fm_fail(FM_EINVAL, "'messages' is empty"));
    a->messages = fm_json_new_array();
    for (size_t i = 0; i < fm_json_count(r->v); i++) {
        fm_json *m = NULL;
        fm_status rc = check_message(a, i, fm_json_at(r->v, i), &m);
        if (rc == FM_OK)
            rc = fm_json_push(a->messages, m);
        else
            fm_json_free(m);
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* ==== known fields that are accepted only with the value that changes nothing ==== */

static fm_status only_zero(reader *r)
{
    bool number = fm_json_is(r->v, FM_JSON_INT) || fm_json_is(r->v, FM_JSON_REAL);
    double x = fm_json_real(r->v, 1);
    return number && !(x < 0) && !(x > 0) ? FM_OK : refuse(r, "0");
}

static fm_status only_empty(reader *r)
{
    bool container = fm_json_is(r->v, FM_JSON_ARRAY) || fm_json_is(r->v, FM_JSON_OBJECT);
    bool empty_text = fm_json_is(r->v, FM_JSON_STRING) && fm_json_str(r->v).len == 0;
    return (container && fm_json_count(r->v) == 0) || empty_text ? FM_OK : refuse(r, "empty");
}

static fm_status only_no_tools(reader *r)
{
    fm_span s = fm_json_str(r->v);
    return fm_span_eq_str(s, "none") || fm_span_eq_str(s, "auto") ? FM_OK : refuse(r, "\"none\"");
}

static fm_status only_text_out(reader *r)
{
    bool text = fm_json_is(r->v, FM_JSON_ARRAY) && fm_json_count(r->v) == 1 &&
                fm_span_eq_str(fm_json_str(fm_json_at(r->v, 0)), "text");
    return text ? FM_OK : refuse(r, "[\"text\"]");
}

/* ==== further variables of a template ==== */

static fm_status objects(const reader *r, size_t most)
{
    if (!fm_json_is(r->v, FM_JSON_ARRAY))
        return fmi_ask_wants(r, "an array of objects");
    if (fm_json_count(r->v) > most)
        return fmi_ask_at(r->a, r->name,
                          fm_fail(FM_EINVAL, "'%s' has %zu items, at most %zu are allowed", r->name,
                                  fm_json_count(r->v), most));
    for (size_t i = 0; i < fm_json_count(r->v); i++)
        if (!fm_json_is(fm_json_at(r->v, i), FM_JSON_OBJECT))
            return fmi_ask_at(r->a, r->name,
                              fm_fail(FM_EINVAL, "'%s': item %zu is no object", r->name, i));
    return FM_OK;
}

static fm_status take_tools(reader *r)
{
    FM_TRY(objects(r, FMI_ASK_MAX_TOOLS));
    if (fm_json_count(r->v) > 0)
        r->a->tools = fm_json_ref(r->v);
    return FM_OK;
}

/* "required" and a named function are refused: their answers would have to be calls. */
static fm_status take_tool_choice(reader *r)
{
    fm_span s = fm_json_str(r->v);
    r->a->hide_tools = fm_span_eq_str(s, "none");
    return r->a->hide_tools || fm_span_eq_str(s, "auto") ? FM_OK
                                                         : refuse(r, "\"none\" or \"auto\"");
}

static fm_status set_variable(fmi_ask *a, const char *name, const fm_json *v)
{
    if (!a->variables)
        a->variables = fm_json_new_object();
    return fm_json_set(a->variables, name, fm_json_ref(v));
}

static fm_status take_documents(reader *r)
{
    FM_TRY(objects(r, FMI_ASK_MAX_TOOLS));
    return set_variable(r->a, "documents", r->v);
}

static fm_status take_template_kwargs(reader *r)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};

    if (!fm_json_is(r->v, FM_JSON_OBJECT))
        return fmi_ask_wants(r, "an object");
    for (void *it = fm_json_iter(r->v); it; it = fm_json_next(r->v, it)) {
        const char *key = fm_json_iter_key(it);
        for (size_t i = 0; i < FM_ARRAY_LEN(own); i++)
            if (strcmp(key, own[i]) == 0)
                return fmi_ask_at(r->a, r->name,
                                  fm_fail(FM_EINVAL, "'%s' cannot set '%s'", r->name, key));
        FM_TRY(set_variable(r->a, key, fm_json_iter_value(it)));
    }
    return FM_OK;
}

static fm_status take_encoding(reader *r)
{
    fm_span s = fm_json_str(r->v);
    r->a->base64 = fm_span_eq_str(s, "base64");
    if (r->a->base64 || fm_span_eq_str(s, "float"))
        return FM_OK;
    return fmi_ask_wants(r, "\"float\" or \"base64\"");
}

/* Several calls in one answer are not prevented: check_whole refuses `false` beside tools. */
static fm_status take_parallel_calls(reader *r)
{
    bool parallel = true;
    FM_TRY(read_bool(r, &parallel));
    r->a->one_call = !parallel;
    return FM_OK;
}

/* For fields that say who asks, what to keep of it and how soon or how cheaply to answer: the
 * answer is the same without them, whatever their value. */
static fm_status changes_nothing(reader *r)
{
    (void)r;
    return FM_OK;
}

/* ==== the table ==== */

typedef struct field {
    const char *name;
    int where;
    fm_status (*take)(reader *r);
} field;

static const field fields[] = {
    {"model", IN_BOTH | IN_EMBED, take_model},
    {"input", IN_EMBED, take_prompt},
    {"encoding_format", IN_EMBED, take_encoding},
    {"messages", IN_CHAT, take_messages},
    {"prompt", IN_TEXT, take_prompt},
    {"max_tokens", IN_BOTH, take_max_tokens},
    {"max_completion_tokens", IN_BOTH, take_max_tokens},
    {"temperature", IN_BOTH, take_temperature},
    {"top_p", IN_BOTH, take_top_p},
    {"top_k", IN_BOTH, take_top_k},
    {"min_p", IN_BOTH, take_min_p},
    {"repetition_penalty", IN_BOTH, take_repetition_penalty},
    {"seed", IN_BOTH, take_seed},
    {"stop", IN_BOTH, take_stop},
    {"stream", IN_BOTH, take_stream},
    {"stream_options", IN_BOTH, take_stream_options},
    {"logprobs", IN_BOTH, take_logprobs},
    {"top_logprobs", IN_CHAT, take_top_logprobs},
    {"ignore_eos", IN_BOTH, take_ignore_eos},
    {"return_token_ids", IN_BOTH, take_token_ids},
    {"n", IN_BOTH, take_n},
    {"best_of", IN_TEXT, take_best_of},
    {"echo", IN_BOTH, only_false},
    {"suffix", IN_TEXT, only_empty},
    {"presence_penalty", IN_BOTH, only_zero},
    {"frequency_penalty", IN_BOTH, only_zero},
    {"logit_bias", IN_BOTH, only_empty},
    {"tools", IN_CHAT, take_tools},
    {"functions", IN_CHAT, only_empty},
    {"tool_choice", IN_CHAT, take_tool_choice},
    {"documents", IN_CHAT, take_documents},
    {"chat_template_kwargs", IN_CHAT, take_template_kwargs},
    {"function_call", IN_CHAT, only_no_tools},
    {"response_format", IN_BOTH, fmi_ask_take_format},
    {"guided_json", IN_BOTH, fmi_ask_take_guided_json},
    {"structured_outputs", IN_BOTH, fmi_ask_take_structured},
    {"modalities", IN_CHAT, only_text_out},
    {"parallel_tool_calls", IN_CHAT, take_parallel_calls},
    {"store", IN_CHAT, changes_nothing},
    {"metadata", IN_CHAT, changes_nothing},
    {"service_tier", IN_BOTH, changes_nothing},
    {"prompt_cache_key", IN_BOTH, changes_nothing},
    {"prompt_cache_retention", IN_BOTH, changes_nothing},
    {"cache_prompt", IN_BOTH, changes_nothing}, /* llama.cpp's */
    {"prediction", IN_CHAT, changes_nothing},
    {"safety_identifier", IN_BOTH, changes_nothing},
    {"user", IN_BOTH | IN_EMBED, changes_nothing},
};

static const field *find_field(const char *name, fmi_ask_kind kind)
{
    static const int where[] = {IN_TEXT, IN_CHAT, IN_EMBED};
    for (size_t i = 0; i < FM_ARRAY_LEN(fields); i++)
        if (strcmp(fields[i].name, name) == 0)
            return fields[i].where & where[kind] ? &fields[i] : NULL;
    return NULL;
}

static fm_status take_all(fmi_ask *a, const fm_json *body, uint32_t cap)
{
    for (void *it = fm_json_iter(body); it; it = fm_json_next(body, it)) {
        const char *name = fm_json_iter_key(it);
        const field *f = find_field(name, a->kind);
        reader r = {a, fm_json_iter_value(it), f ? f->name : name, cap};
        if (fm_json_is(r.v, FM_JSON_NULL))
            continue;
        if (!f)
            return fmi_ask_at(a, name,
                              fm_fail(FM_EINVAL,
                                      "unknown field '%.63s'; it would be ignored, so "
                                      "leave it out",
                                      name));
        fm_status rc = f->take(&r);
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

static fm_status check_whole(fmi_ask *a)
{
    if (!a->model)
        return fmi_ask_at(a, "model", fm_fail(FM_EINVAL, "'model' is missing"));
    if (a->chat && !a->messages)
        return fmi_ask_at(a, "messages", fm_fail(FM_EINVAL, "'messages' is missing"));
    if (!a->chat && !a->prompt) {
        const char *name = a->kind == FMI_ASK_EMBED ? "input" : "prompt";
        return fmi_ask_at(a, name, fm_fail(FM_EINVAL, "'%s' is missing", name));
    }
    size_t prompts = a->chat ? 1 : a->prompts;
    if (a->best_of && a->best_of != a->n)
        return fmi_ask_at(a, "best_of",
                          fm_fail(FM_EINVAL,
                                  "'best_of' is %u and 'n' is %u; only equal ones are "
                                  "supported",
                                  a->best_of, a->n));
    if (a->kind != FMI_ASK_EMBED && prompts * a->n > FMI_ASK_MAX_CHOICES)
        return fmi_ask_at(a, "n",
                          fm_fail(FM_EINVAL,
                                  "'n' is %u for each of %zu prompts; at most %u answers "
                                  "are given",
                                  a->n, prompts, FMI_ASK_MAX_CHOICES));
    if (a->hide_tools) {
        fm_json_free(a->tools);
        a->tools = NULL;
    }
    if (a->one_call && fm_json_count(a->tools) > 0)
        return fmi_ask_at(a, "parallel_tool_calls",
                          fm_fail(FM_EINVAL, "'parallel_tool_calls' false is not supported beside "
                                             "'tools': an answer may hold several calls; leave it "
                                             "out"));
    if (a->has_top && !a->logprobs)
        return fmi_ask_at(a, "top_logprobs",
                          fm_fail(FM_EINVAL, "'top_logprobs' is given without 'logprobs': true"));
    if (a->include_usage && !a->stream)
        return fmi_ask_at(a, "stream_options",
                          fm_fail(FM_EINVAL, "'stream_options' is given without 'stream': true"));
    return FM_OK;
}

fm_status fmi_ask_parse(fmi_ask *out, const fm_json *body, fmi_ask_kind kind,
                        uint32_t max_tokens_cap)
{
    memset(out, 0, sizeof(*out));
    out->kind = kind;
    out->chat = kind == FMI_ASK_CHAT;
    out->n = 1;
    out->max_tokens = FM_MIN(FMI_ASK_DEFAULT_TOKENS, max_tokens_cap);
    fm_sample_defaults(&out->sampling);
    out->sampling.temperature = 1.0f; /* the API's default */
    if (!fm_json_is(body, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "the body must be a JSON object, is %s", fmi_ask_type(body));
    out->body = fm_json_ref(body);
    FM_TRY(take_all(out, body, max_tokens_cap));
    return check_whole(out);
}

void fmi_ask_drop_texts(fmi_ask *a)
{
    for (size_t i = 0; i < a->prompts; i++)
        a->prompt[i].text = fm_span_of(NULL, 0);
    fm_json_free(a->messages);
    fm_json_free(a->tools);
    fm_json_free(a->variables);
    fm_json_free(a->body);
    a->messages = a->tools = a->variables = a->body = NULL;
}

void fmi_ask_release(fmi_ask *a)
{
    fmi_ask_drop_texts(a);
    for (size_t i = 0; i < a->prompts; i++)
        fm_free(a->prompt[i].ids);
    for (size_t i = 0; i < a->stops; i++)
        fm_free(a->stop[i]);
    fm_grammar_free(a->grammar);
    fm_free(a->prompt);
    fm_free(a->model);
    memset(a, 0, sizeof(*a));
}
