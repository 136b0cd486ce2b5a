/* answer.c - the JSON that goes back: errors, whole answers, and the pieces that chunks share.
 * Runs on HTTP threads; tokenizers are immutable, so token texts are looked up here. */
#include "infer/serve/internal.h"

#include <math.h>
#include <string.h>

#define LOWEST_LOGPROB (-9999.0) /* JSON has no infinity; what clients of this API expect */

void fmi_put(fm_status *rc, fm_json *obj, const char *key, fm_json *value)
{
    fm_status one = fm_json_set(obj, key, value);
    if (*rc == FM_OK)
        *rc = one;
}

void fmi_add(fm_status *rc, fm_json *array, fm_json *value)
{
    fm_status one = fm_json_push(array, value);
    if (*rc == FM_OK)
        *rc = one;
}

/* ==== errors ==== */

static const char *error_type(unsigned http)
{
    switch (http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 503:
        return "overloaded_error";
    default:
        return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

fm_status fmi_fault_write(fm_buf *out, const fmi_fault *f)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *e = fm_json_new_object();
    fmi_put(&rc, e, "message", fm_json_new_str(f->text));
    fmi_put(&rc, e, "type", fm_json_new_str(error_type(f->http)));
    fmi_put(&rc, e, "param", f->param[0] ? fm_json_new_str(f->param) : fm_json_new_null());
    fmi_put(&rc, e, "code", f->code ? fm_json_new_str(f->code) : fm_json_new_null());
    fmi_put(&rc, o, "error", e);
    if (rc == FM_OK)
        rc = fm_json_write(out, o, FM_JSON_COMPACT);
    fm_json_free(o);
    return rc;
}

/* ==== pieces ==== */

fm_json *fmi_answer_base(const fmi_job *j, bool chunk, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    const char *object = !j->ask.chat ? "text_completion"
                         : chunk      ? "chat.completion.chunk"
                                      : "chat.completion";
    fmi_put(rc, o, "id", fm_json_new_str(j->id));
    fmi_put(rc, o, "object", fm_json_new_str(object));
    fmi_put(rc, o, "created", fm_json_new_int(j->created));
    fmi_put(rc, o, "model", fm_json_new_str(j->ask.model));
    fmi_put(rc, o, "system_fingerprint", fm_json_new_str(j->res->version));
    return o;
}

fm_json *fmi_answer_usage(const fmi_job *j, fm_status *rc)
{
    size_t in = 0, out = 0, cached = 0;
    for (size_t i = 0; i < j->choices; i++) {
        if (i % j->ask.n == 0) { /* a prompt counts once, however many answers it gets */
            in += j->choice[i].prompt_len;
            cached += j->choice[i].cached;
        }
        out += j->choice[i].count;
    }
    fm_json *o = fm_json_new_object();
    fmi_put(rc, o, "prompt_tokens", fm_json_new_int((int64_t)in));
    fmi_put(rc, o, "completion_tokens", fm_json_new_int((int64_t)out));
    fmi_put(rc, o, "total_tokens", fm_json_new_int((int64_t)(in + out)));
    fm_json *details = fm_json_new_object();
    fmi_put(rc, details, "cached_tokens", fm_json_new_int((int64_t)cached));
    fmi_put(rc, o, "prompt_tokens_details", details);
    return o;
}

fm_json *fmi_answer_ids(const int32_t *id, size_t n, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = 0; i < n; i++)
        fmi_add(rc, list, fm_json_new_int(id[i]));
    return list;
}

fm_json *fmi_answer_token_ids(const fmi_choice *c, size_t from, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = from; i < c->count; i++)
        fmi_add(rc, list, fm_json_new_int(c->token[i].id));
    return list;
}

static double shown(float logprob)
{
    double x = (double)logprob;
    return x > LOWEST_LOGPROB ? x : LOWEST_LOGPROB;
}

static fm_span token_bytes(const fmi_job *j, int32_t id)
{
    const fm_tokenizer *t = fm_model_tokenizer(j->res->model);
    return t ? fm_tokenizer_token_bytes(t, id) : fm_span_of(NULL, 0);
}

static fm_json *token_text(const fmi_job *j, int32_t id)
{
    fm_span s = token_bytes(j, id);
    return fm_json_new_strn(s.len ? (const char *)s.data : "", s.len);
}

/* {"token", "logprob", "bytes"} of the chat API. */
static fm_json *chat_token(const fmi_job *j, int32_t id, float logprob, fm_status *rc)
{
    fm_span s = token_bytes(j, id);
    fm_json *o = fm_json_new_object(), *bytes = fm_json_new_array();
    for (size_t i = 0; i < s.len; i++)
        fmi_add(rc, bytes, fm_json_new_int(s.data[i]));
    fmi_put(rc, o, "token", token_text(j, id));
    fmi_put(rc, o, "logprob", fm_json_new_real(shown(logprob)));
    fmi_put(rc, o, "bytes", bytes);
    return o;
}

static fm_json *chat_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, fm_status *rc)
{
    fm_json *o = fm_json_new_object(), *content = fm_json_new_array();
    for (size_t i = from; i < c->count; i++) {
        const fmi_token *t = &c->token[i];
        fm_json *one = chat_token(j, t->id, t->logprob, rc), *tops = fm_json_new_array();
        for (uint32_t k = 0; k < t->top_count; k++) {
            const fm_logprob *l = &c->top[t->top0 + k];
            fmi_add(rc, tops, chat_token(j, l->token, l->logprob, rc));
        }
        fmi_put(rc, one, "top_logprobs", tops);
        fmi_add(rc, content, one);
    }
    fmi_put(rc, o, "content", content);
    fmi_put(rc, o, "refusal", fm_json_new_null());
    return o;
}

/* {text: logprob}; of two tokens with one text (both ill-formed alone, say) the likelier stays. */
static fm_json *text_tops(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    for (uint32_t k = 0; k < t->top_count; k++) {
        const fm_logprob *l = &c->top[t->top0 + k];
        fm_json *key = token_text(j, l->token);
        const char *text = fm_json_cstr(key, "");
        if (!fm_json_get(o, text))
            fmi_put(rc, o, text, fm_json_new_real(shown(l->logprob)));
        fm_json_free(key);
    }
    return o;
}

static fm_json *text_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    fm_json *tokens = fm_json_new_array(), *values = fm_json_new_array();
    fm_json *tops = fm_json_new_array(), *offsets = fm_json_new_array();
    for (size_t i = from; i < c->count; i++) {
        const fmi_token *t = &c->token[i];
        fmi_add(rc, tokens, token_text(j, t->id));
        fmi_add(rc, values, fm_json_new_real(shown(t->logprob)));
        fmi_add(rc, tops, text_tops(j, c, t, rc));
        fmi_add(rc, offsets, fm_json_new_int((int64_t)t->text_at));
    }
    fmi_put(rc, o, "tokens", tokens);
    fmi_put(rc, o, "token_logprobs", values);
    fmi_put(rc, o, "top_logprobs", tops);
    fmi_put(rc, o, "text_offset", offsets);
    return o;
}

fm_json *fmi_answer_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, fm_status *rc)
{
    if (!j->ask.logprobs)
        return fm_json_new_null();
    return j->ask.chat ? chat_logprobs(j, c, from, rc) : text_logprobs(j, c, from, rc);
}

/* ==== whole answers ==== */

static fm_json *whole_choice(const fmi_job *j, size_t i, fm_status *rc)
{
    const fmi_choice *c = &j->choice[i];
    fm_json *o = fm_json_new_object();
    fm_json *text = fm_json_new_strn(fm_buf_cstr(&c->text), c->text.len);
    fmi_put(rc, o, "index", fm_json_new_int((int64_t)i));
    if (j->ask.chat) {
        fm_json *m = fm_json_new_object();
        fmi_put(rc, m, "role", fm_json_new_str("assistant"));
        fmi_put(rc, m, "content", text);
        fmi_put(rc, o, "message", m);
    } else {
        fmi_put(rc, o, "text", text);
    }
    fmi_put(rc, o, "logprobs", fmi_answer_logprobs(j, c, 0, rc));
    fmi_put(rc, o, "finish_reason", fm_json_new_str(c->finish));
    if (j->ask.token_ids) {
        fmi_put(rc, o, "prompt_token_ids", fmi_answer_ids(c->prompt, c->prompt_len, rc));
        fmi_put(rc, o, "token_ids", fmi_answer_token_ids(c, 0, rc));
    }
    return o;
}

fm_status fmi_answer_write(fm_buf *out, fmi_job *j)
{
    fm_status rc = FM_OK;
    fm_json *o = fmi_answer_base(j, false, &rc), *choices = fm_json_new_array();
    for (size_t i = 0; i < j->choices; i++)
        fmi_add(&rc, choices, whole_choice(j, i, &rc));
    fmi_put(&rc, o, "choices", choices);
    fmi_put(&rc, o, "usage", fmi_answer_usage(j, &rc));
    if (rc == FM_OK)
        rc = fm_json_write(out, o, FM_JSON_COMPACT);
    fm_json_free(o);
    return rc;
}
