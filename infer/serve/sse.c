/* sse.c - streamed answers as server-sent events.
 *
 * Answers collect in the job; a chunk holds what came since the last one, so a slow reader gets
 * fewer and larger chunks and the batch never waits for it. A chunk has TOKENS_PER_CHUNK tokens at
 * most, and chunks are made as the socket takes them, so that they take little memory besides the
 * answer. The engine gives text in whole code points, so the joined chunks equal the text of an
 * answer that is not streamed. */
#include "infer/serve/internal.h"

#include <string.h>

#define TOKENS_PER_CHUNK 64u

static fm_status emit(fmi_job *j, fm_json *o, fm_status rc)
{
    if (rc == FM_OK) {
        fm_buf_str(&j->out, "data: ");
        rc = fm_json_write(&j->out, o, FM_JSON_COMPACT);
        fm_buf_str(&j->out, "\n\n");
    }
    fm_json_free(o);
    return rc == FM_OK ? fm_buf_ok(&j->out) : rc;
}

/* Puts the text of one chunk into "text", or into a delta, the first of which names the role. */
static void put_text(fm_json *o, const fmi_job *j, fmi_choice *c, size_t end, fm_status *rc)
{
    size_t n = end - c->sent_text;
    fm_json *text = fm_json_new_strn(fm_buf_cstr(&c->text) + c->sent_text, n);
    if (!j->ask.chat) {
        fm_json_put(rc, o, "text", text);
        return;
    }
    fm_json *delta = fm_json_new_object();
    if (!c->began)
        fm_json_put(rc, delta, "role", fm_json_new_str("assistant"));
    if (!c->began || n > 0)
        fm_json_put(rc, delta, "content", text);
    else
        fm_json_free(text);
    fm_json_put(rc, o, "delta", delta);
}

static fm_json *token_ids(const fmi_choice *c, size_t from, size_t to, fm_status *rc)
{
    fm_json *list = fm_json_new_array();
    for (size_t i = from; i < to; i++)
        fm_json_push_to(rc, list, fm_json_new_int(c->token[i].id));
    return list;
}

static fm_status choice_chunk(fmi_job *j, size_t i, bool last)
{
    fmi_choice *c = &j->choice[i];
    fm_status rc = FM_OK;
    fm_json *base = fmi_answer_base(j, true, &rc), *choices = fm_json_new_array();
    fm_json *o = fm_json_new_object();
    bool wordy = j->ask.logprobs || j->ask.token_ids;
    size_t from = c->sent_token, to = wordy ? FM_MIN(c->count, from + TOKENS_PER_CHUNK) : c->count;
    size_t text_end = to < c->count ? c->token[to - 1].text_end : c->text.len;
    fm_json_put(&rc, o, "index", fm_json_new_int((int64_t)i));
    put_text(o, j, c, text_end, &rc);
    fm_json_put(&rc, o, "logprobs", fmi_answer_logprobs(j, c, from, to, &rc));
    fm_json_put(&rc, o, "finish_reason", last ? fm_json_new_str(c->finish) : fm_json_new_null());
    if (j->ask.token_ids)
        fm_json_put(&rc, o, "token_ids", token_ids(c, from, to, &rc));
    fm_json_push_to(&rc, choices, o);
    fm_json_put(&rc, base, "choices", choices);
    if (j->ask.include_usage)
        fm_json_put(&rc, base, "usage", fm_json_new_null());
    c->began = true;
    c->ended = last;
    c->sent_text = text_end;
    c->sent_token = to;
    return emit(j, base, rc);
}

static fm_status usage_chunk(fmi_job *j)
{
    fm_status rc = FM_OK;
    fm_json *base = fmi_answer_base(j, true, &rc);
    fm_json_put(&rc, base, "choices", fm_json_new_array());
    fm_json_put(&rc, base, "usage", fmi_answer_usage(j, &rc));
    return emit(j, base, rc);
}

static fm_status error_event(fmi_job *j)
{
    fm_buf_str(&j->out, "data: ");
    fm_status rc = fmi_fault_write(&j->out, &j->fault);
    fm_buf_str(&j->out, "\n\n");
    return rc == FM_OK ? fm_buf_ok(&j->out) : rc;
}

static bool has_more(const fmi_job *j, const fmi_choice *c)
{
    bool tokens = (j->ask.logprobs || j->ask.token_ids) && c->count > c->sent_token;
    return (!c->began && j->ask.chat) || c->text.len > c->sent_text || tokens;
}

static fm_status fill_choice(fmi_job *j, size_t i, size_t most)
{
    const fmi_choice *c = &j->choice[i];

    while (!c->ended && j->out.len < most) {
        bool more = has_more(j, c);
        if (!more && !c->done)
            break;
        FM_TRY(choice_chunk(j, i, !more));
    }
    return FM_OK;
}

fm_status fmi_sse_fill(fmi_job *j, size_t most)
{
    fm_status rc = FM_OK;
    if (j->fault.http) { /* the status 200 was sent before */
        j->stream_over = true;
        return error_event(j);
    }
    for (size_t i = 0; i < j->choices && rc == FM_OK; i++)
        rc = fill_choice(j, i, most);
    if (rc < 0 || j->left > 0 || j->out.len >= most) /* the next call goes on */
        return rc;
    j->stream_over = true;
    if (j->ask.include_usage)
        rc = usage_chunk(j);
    fm_buf_str(&j->out, "data: [DONE]\n\n");
    return rc == FM_OK ? fm_buf_ok(&j->out) : rc;
}
