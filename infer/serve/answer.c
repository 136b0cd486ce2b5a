/* answer.c - the JSON of responses: errors, whole answers, and the pieces that chunks share. Runs
 * on HTTP threads; tokenizers are immutable, so token texts are looked up here.
 *
 * A whole answer is written piece by piece as it is sent. Until then only the engine's results are
 * kept (24 bytes a token and 8 an alternative); the text may be a hundred times that, and a JSON
 * tree of all of it eleven times the text. */
#include "infer/serve/internal.h"

#include <math.h>
#include <string.h>

#define LOWEST_LOGPROB (-9999.0) /* JSON has no infinity; clients of this API expect this value */

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
    fm_json_put(&rc, e, "message", fm_json_new_str(f->text));
    fm_json_put(&rc, e, "type", fm_json_new_str(error_type(f->http)));
    fm_json_put(&rc, e, "param", f->param[0] ? fm_json_new_str(f->param) : fm_json_new_null());
    fm_json_put(&rc, e, "code", f->code ? fm_json_new_str(f->code) : fm_json_new_null());
    fm_json_put(&rc, o, "error", e);
    FM_THEN(rc, fm_json_write(out, o, FM_JSON_COMPACT));
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
    fm_json_put(rc, o, "id", fm_json_new_str(j->id));
    fm_json_put(rc, o, "object", fm_json_new_str(object));
    fm_json_put(rc, o, "created", fm_json_new_int(j->created));
    fm_json_put(rc, o, "model", fm_json_new_str(j->ask.model));
    fm_json_put(rc, o, "system_fingerprint", fm_json_new_str(j->res->version));
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
    fm_json_put(rc, o, "prompt_tokens", fm_json_new_int((int64_t)in));
    fm_json_put(rc, o, "completion_tokens", fm_json_new_int((int64_t)out));
    fm_json_put(rc, o, "total_tokens", fm_json_new_int((int64_t)(in + out)));
    fm_json *details = fm_json_new_object();
    fm_json_put(rc, details, "cached_tokens", fm_json_new_int((int64_t)cached));
    fm_json_put(rc, o, "prompt_tokens_details", details);
    return o;
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
        fm_json_push_to(rc, bytes, fm_json_new_int(s.data[i]));
    fm_json_put(rc, o, "token", token_text(j, id));
    fm_json_put(rc, o, "logprob", fm_json_new_real(shown(logprob)));
    fm_json_put(rc, o, "bytes", bytes);
    return o;
}

static fm_json *chat_entry(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc)
{
    fm_json *one = chat_token(j, t->id, t->logprob, rc), *tops = fm_json_new_array();
    for (uint32_t k = 0; k < t->top_count; k++) {
        const fm_logprob *l = &c->top[t->top0 + k];
        fm_json_push_to(rc, tops, chat_token(j, l->token, l->logprob, rc));
    }
    fm_json_put(rc, one, "top_logprobs", tops);
    return one;
}

static fm_json *text_token(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc)
{
    (void)c;
    (void)rc;
    return token_text(j, t->id);
}

static fm_json *text_value(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc)
{
    (void)j;
    (void)c;
    (void)rc;
    return fm_json_new_real(shown(t->logprob));
}

/* {text: logprob}; of two tokens with the same text (ill-formed ones) the likelier is kept. */
static fm_json *text_tops(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc)
{
    fm_json *o = fm_json_new_object();
    for (uint32_t k = 0; k < t->top_count; k++) {
        const fm_logprob *l = &c->top[t->top0 + k];
        fm_json *key = token_text(j, l->token);
        const char *text = fm_json_cstr(key, "");
        if (!fm_json_get(o, text))
            fm_json_put(rc, o, text, fm_json_new_real(shown(l->logprob)));
        fm_json_free(key);
    }
    return o;
}

static fm_json *text_offset(const fmi_job *j, const fmi_choice *c, const fmi_token *t,
                            fm_status *rc)
{
    (void)j;
    (void)c;
    (void)rc;
    return fm_json_new_int(t->text_at);
}

/* A list inside of "logprobs", with an entry for each token; there are one or several. */
typedef struct list {
    const char *name; /* NULL: no more */
    fm_json *(*entry)(const fmi_job *j, const fmi_choice *c, const fmi_token *t, fm_status *rc);
} list;

static const list chat_lists[] = {{"content", chat_entry}, {NULL, NULL}};
static const list text_lists[] = {{"tokens", text_token},
                                  {"token_logprobs", text_value},
                                  {"top_logprobs", text_tops},
                                  {"text_offset", text_offset},
                                  {NULL, NULL}};

static const list *lists_of(const fmi_job *j)
{
    return j->ask.chat ? chat_lists : text_lists;
}

fm_json *fmi_answer_logprobs(const fmi_job *j, const fmi_choice *c, size_t from, size_t to,
                             fm_status *rc)
{
    if (!j->ask.logprobs || from == to)
        return fm_json_new_null();
    fm_json *o = fm_json_new_object();
    for (const list *l = lists_of(j); l->name; l++) {
        fm_json *entries = fm_json_new_array();
        for (size_t i = from; i < to; i++)
            fm_json_push_to(rc, entries, l->entry(j, c, &c->token[i], rc));
        fm_json_put(rc, o, l->name, entries);
    }
    if (j->ask.chat)
        fm_json_put(rc, o, "refusal", fm_json_new_null());
    return o;
}

/* ==== whole answers ==== */

/* Consumes v. */
static fm_status write_value(fm_buf *out, fm_json *v, fm_status rc)
{
    FM_THEN(rc, v ? fm_json_write(out, v, FM_JSON_COMPACT) : FM_ENOMEM);
    fm_json_free(v);
    return rc;
}

/* Writes an object without its closing brace, so that it can go on. Consumes it. */
static fm_status write_open(fm_buf *out, fm_json *object, fm_status rc)
{
    rc = write_value(out, object, rc);
    if (rc == FM_OK)
        out->len--; /* its brace */
    return rc;
}

static void write_prompt_ids(fm_buf *out, const fmi_choice *c)
{
    fm_buf_str(out, ",\"prompt_token_ids\":[");
    for (size_t i = 0; i < c->prompt_len; i++)
        fm_buf_printf(out, "%s%d", i ? "," : "", c->prompt[i]);
    fm_buf_str(out, "],\"token_ids\":[");
    for (size_t i = 0; i < c->count; i++)
        fm_buf_printf(out, "%s%d", i ? "," : "", c->token[i].id);
    fm_buf_char(out, ']');
}

static fm_status begin_choice(fm_buf *out, const fmi_job *j, size_t i)
{
    const fmi_choice *c = &j->choice[i];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json *text = fm_json_new_strn(fm_buf_cstr(&c->text), c->text.len);
    fm_json_put(&rc, o, "index", fm_json_new_int((int64_t)i));
    if (j->ask.chat) {
        fm_json *m = fm_json_new_object();
        fm_json_put(&rc, m, "role", fm_json_new_str("assistant"));
        fm_json_put(&rc, m, "content", text);
        fm_json_put(&rc, o, "message", m);
    } else {
        fm_json_put(&rc, o, "text", text);
    }
    if (i)
        fm_buf_char(out, ',');
    rc = write_open(out, o, rc);
    fm_buf_str(out, ",\"logprobs\":");
    fm_buf_str(out, j->ask.logprobs ? "{" : "null");
    return rc;
}

/* Writes entries of c's current list, up to its end or until out holds `most` bytes. */
static fm_status fill_list(fm_buf *out, const fmi_job *j, fmi_choice *c, size_t most)
{
    const list *l = &lists_of(j)[c->list];
    fm_status rc = FM_OK;
    if (c->sent_token == 0)
        fm_buf_printf(out, "%s\"%s\":[", c->list ? "," : "", l->name);
    while (c->sent_token < c->count) {
        fm_status one = FM_OK;
        fm_json *v = l->entry(j, c, &c->token[c->sent_token], &one);
        if (c->sent_token++)
            fm_buf_char(out, ',');
        rc = write_value(out, v, one);
        if (rc < 0 || out->len >= most)
            break;
    }
    if (c->sent_token < c->count || rc < 0)
        return rc;
    fm_buf_char(out, ']');
    c->sent_token = 0;
    c->list++;
    return rc;
}

static fm_status end_choice(fm_buf *out, const fmi_job *j, const fmi_choice *c)
{
    if (j->ask.logprobs)
        fm_buf_str(out, j->ask.chat ? ",\"refusal\":null}" : "}");
    fm_buf_str(out, ",\"finish_reason\":");
    fm_status rc = write_value(out, fm_json_new_str(c->finish), FM_OK);
    if (j->ask.token_ids)
        write_prompt_ids(out, c);
    fm_buf_char(out, '}');
    return rc;
}

static fm_status fill_choice(fm_buf *out, const fmi_job *j, size_t i, size_t most)
{
    fmi_choice *c = &j->choice[i];
    fm_status rc = c->began ? FM_OK : begin_choice(out, j, i);
    c->began = true;
    while (rc == FM_OK && j->ask.logprobs && lists_of(j)[c->list].name && out->len < most)
        rc = fill_list(out, j, c, most);
    if (rc < 0 || (j->ask.logprobs && lists_of(j)[c->list].name))
        return rc;
    c->ended = true;
    return end_choice(out, j, c);
}

fm_status fmi_answer_fill(fmi_job *j, size_t most)
{
    fm_buf *out = &j->out;
    fm_status rc = FM_OK;
    if (j->filled == 0 && !j->choice[0].began) {
        fm_json *base = fmi_answer_base(j, false, &rc);
        rc = write_open(out, base, rc);
        fm_buf_str(out, ",\"choices\":[");
    }
    while (rc == FM_OK && j->filled < j->choices && out->len < most) {
        rc = fill_choice(out, j, j->filled, most);
        j->filled += j->choice[j->filled].ended;
    }
    if (rc < 0 || j->filled < j->choices)
        return rc;
    j->stream_over = true;
    fm_buf_str(out, "],\"usage\":");
    fm_json *usage = fmi_answer_usage(j, &rc);
    rc = write_value(out, usage, rc);
    fm_buf_char(out, '}');
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}
