/* sse.c - streamed answers as server-sent events.
 *
 * Answers pile up in the job; a chunk is whatever came since the last one, so a slow reader gets
 * fewer and larger chunks and the batch never waits for it. Pieces of text are whole code points
 * (the engine sees to that), so that the chunks joined are the text of the answer not streamed. */
#include "infer/serve/internal.h"

#include <string.h>

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

/* The text of one chunk: into "text", or into a delta whose first names the role. */
static void put_text(fm_json *o, const fmi_job *j, fmi_choice *c, fm_status *rc)
{
    size_t n = c->text.len - c->sent_text;
    fm_json *text = fm_json_new_strn(fm_buf_cstr(&c->text) + c->sent_text, n);
    if (!j->ask.chat) {
        fmi_put(rc, o, "text", text);
        return;
    }
    fm_json *delta = fm_json_new_object();
    if (!c->began)
        fmi_put(rc, delta, "role", fm_json_new_str("assistant"));
    if (!c->began || n > 0)
        fmi_put(rc, delta, "content", text);
    else
        fm_json_free(text);
    fmi_put(rc, o, "delta", delta);
}

static fm_status choice_chunk(fmi_job *j, size_t i, bool last)
{
    fmi_choice *c = &j->choice[i];
    fm_status rc = FM_OK;
    fm_json *base = fmi_answer_base(j, true, &rc), *choices = fm_json_new_array();
    fm_json *o = fm_json_new_object();
    bool tokens = c->count > c->sent_token;
    fmi_put(&rc, o, "index", fm_json_new_int((int64_t)i));
    put_text(o, j, c, &rc);
    fmi_put(&rc, o, "logprobs",
            tokens ? fmi_answer_logprobs(j, c, c->sent_token, &rc) : fm_json_new_null());
    fmi_put(&rc, o, "finish_reason", last ? fm_json_new_str(c->finish) : fm_json_new_null());
    if (j->ask.token_ids)
        fmi_put(&rc, o, "token_ids", fmi_answer_token_ids(c, c->sent_token, &rc));
    fmi_add(&rc, choices, o);
    fmi_put(&rc, base, "choices", choices);
    if (j->ask.include_usage)
        fmi_put(&rc, base, "usage", fm_json_new_null());
    c->began = true;
    c->ended = last;
    c->sent_text = c->text.len;
    c->sent_token = c->count;
    return emit(j, base, rc);
}

static fm_status usage_chunk(fmi_job *j)
{
    fm_status rc = FM_OK;
    fm_json *base = fmi_answer_base(j, true, &rc);
    fmi_put(&rc, base, "choices", fm_json_new_array());
    fmi_put(&rc, base, "usage", fmi_answer_usage(j, &rc));
    return emit(j, base, rc);
}

static fm_status error_event(fmi_job *j)
{
    fm_buf_str(&j->out, "data: ");
    fm_status rc = fmi_fault_write(&j->out, &j->fault);
    fm_buf_str(&j->out, "\n\n");
    return rc == FM_OK ? fm_buf_ok(&j->out) : rc;
}

static fm_status fill_choice(fmi_job *j, size_t i)
{
    fmi_choice *c = &j->choice[i];
    bool tokens = (j->ask.logprobs || j->ask.token_ids) && c->count > c->sent_token;
    fm_status rc = FM_OK;
    if (c->ended)
        return FM_OK;
    if ((!c->began && j->ask.chat) || c->text.len > c->sent_text || tokens)
        rc = choice_chunk(j, i, false);
    if (rc == FM_OK && c->done)
        rc = choice_chunk(j, i, true);
    return rc;
}

fm_status fmi_sse_fill(fmi_job *j)
{
    fm_status rc = FM_OK;
    if (j->fault.http) { /* the head of the answer said 200 long ago */
        j->stream_over = true;
        return error_event(j);
    }
    for (size_t i = 0; i < j->choices && rc == FM_OK; i++)
        rc = fill_choice(j, i);
    if (rc < 0 || j->left > 0)
        return rc;
    j->stream_over = true;
    if (j->ask.include_usage)
        rc = usage_chunk(j);
    fm_buf_str(&j->out, "data: [DONE]\n\n");
    return rc == FM_OK ? fm_buf_ok(&j->out) : rc;
}
