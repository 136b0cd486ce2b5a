/* render.c - one training record to ids and labels, in the model's own template.
 *
 * A conversation is rendered up to each assistant turn with the generation prompt, and again with
 * the turn: what the second has more is the turn as the model must learn to write it, its end
 * marker included. The pieces are tokenized one by one, so that the ids in front of an answer are
 * exactly those that inference will put there. */
#include "train/render.h"

#include "store/base/mem.h"

#include <string.h>

#define MAX_TURNS 4096u

typedef struct pieces { /* an example under construction */
    const fmi_renderer *r;
    fm_ids ids;
    fm_ids labels;
    fm_buf prompt, answer; /* heads of both, for the preview */
    size_t number;
} pieces;

static fm_status bad_field(const pieces *p, const char *field, const char *must)
{
    return fm_fail(FM_EINVAL, "%s: record %zu: field '%s' %s", p->r->what, p->number, field, must);
}

static void note(fm_buf *b, fm_span text)
{
    size_t room = FMI_PREVIEW_BYTES - FM_MIN(b->len, FMI_PREVIEW_BYTES);
    fm_buf_append(b, text.data, FM_MIN(text.len, room));
}

static fm_status add_text(pieces *p, fm_span text, bool counts)
{
    size_t before = p->ids.count;
    fm_status rc = fm_tokenizer_encode(p->r->tok, text, false, &p->ids);

    for (size_t i = before; i < p->ids.count && rc == FM_OK; i++)
        rc = fm_ids_push(&p->labels, counts || !p->r->answers_only ? p->ids.id[i] : FMI_NO_LABEL);
    return rc;
}

static fm_status add_id(pieces *p, int32_t id, bool counts)
{
    fm_status rc = id < 0 ? FM_OK : fm_ids_push(&p->ids, id);

    if (rc == FM_OK && id >= 0)
        rc = fm_ids_push(&p->labels, counts || !p->r->answers_only ? id : FMI_NO_LABEL);
    return rc;
}

/* The token that the tokenizer itself puts in front of a text, for text without a template. */
static fm_status add_bos(pieces *p)
{
    fm_ids ids = {0};
    int32_t bos = fm_tokenizer_bos(p->r->tok);
    fm_status rc = fm_tokenizer_encode(p->r->tok, fm_span_str("a"), true, &ids);

    if (rc == FM_OK && bos >= 0 && ids.count > 0 && ids.id[0] == bos)
        rc = add_id(p, bos, false);
    fm_ids_release(&ids);
    return rc;
}

static fm_status add_pair(pieces *p, fm_span prompt, fm_span answer)
{
    fm_status rc = add_bos(p);

    note(&p->prompt, prompt);
    note(&p->answer, answer);
    if (rc == FM_OK && prompt.len > 0)
        rc = add_text(p, prompt, false);
    if (rc == FM_OK)
        rc = add_text(p, answer, true);
    return rc == FM_OK ? add_id(p, fm_tokenizer_eos(p->r->tok), true) : rc;
}

/* ---- conversations ---- */
static fm_json *first_messages(const fm_json *messages, size_t n)
{
    fm_json *a = fm_json_new_array();

    for (size_t i = 0; a && i < n; i++) {
        if (fm_json_push(a, fm_json_ref(fm_json_at(messages, i))) < 0) {
            fm_json_free(a);
            return NULL;
        }
    }
    return a;
}

static fm_status render(fm_buf *out, const pieces *p, const fm_json *messages, size_t n,
                        bool add_generation_prompt)
{
    fm_json *head = first_messages(messages, n);
    fm_status rc = FM_ENOMEM;

    fm_buf_clear(out);
    if (head)
        rc = fm_chat_render(out, p->r->chat, head, NULL, add_generation_prompt, p->r->extra);
    fm_json_free(head);
    return rc < 0 ? fm_error_prefix(rc, "%s: record %zu", p->r->what, p->number) : rc;
}

/* The text of now beyond what is done; FM_EUNSUPPORTED where now does not begin with it. */
static fm_status beyond(fm_span *out, const pieces *p, const fm_buf *done, const fm_buf *now)
{
    if (now->len < done->len || (done->len > 0 && memcmp(now->data, done->data, done->len) != 0))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: record %zu: this chat template rewrites earlier text when a turn is "
                       "added, so that answers cannot be told from prompts",
                       p->r->what, p->number);
    *out = fm_span_of(now->data + done->len, now->len - done->len);
    return FM_OK;
}

static fm_status add_turn(pieces *p, const fm_json *messages, size_t turn, fm_buf *done,
                          fm_buf *now)
{
    fm_span text;
    fm_status rc = render(now, p, messages, turn, true);

    if (rc == FM_OK)
        rc = beyond(&text, p, done, now);
    if (rc == FM_OK)
        rc = add_text(p, text, false);
    if (rc == FM_OK)
        rc = render(done, p, messages, turn + 1, false);
    if (rc == FM_OK)
        rc = beyond(&text, p, now, done);
    return rc == FM_OK ? add_text(p, text, true) : rc;
}

static void note_message(pieces *p, const fm_json *message, const char *role)
{
    fm_span text = fm_json_str(fm_json_get(message, "content"));

    if (strcmp(role, "user") == 0)
        note(&p->prompt, text);
    if (strcmp(role, "assistant") == 0)
        note(&p->answer, text);
}

static fm_status add_messages(pieces *p, const fm_json *messages)
{
    size_t n = fm_json_count(messages);
    fm_status rc = FM_OK;
    fm_buf done;
    fm_buf now;

    if (n == 0 || n > MAX_TURNS)
        return bad_field(p, "messages", "must hold 1 to 4096 messages");
    if (!p->r->chat)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: record %zu has messages, and the model has no chat "
                       "template",
                       p->r->what, p->number);
    fm_buf_init(&done, 0);
    fm_buf_init(&now, 0);
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        const fm_json *m = fm_json_at(messages, i);
        const char *role = fm_json_cstr(fm_json_get(m, "role"), NULL);
        if (!role || !fm_json_is(fm_json_get(m, "content"), FM_JSON_STRING))
            rc = bad_field(p, "messages", "must hold objects with text role and content");
        else if (strcmp(role, "assistant") == 0)
            rc = add_turn(p, messages, i, &done, &now);
        if (rc == FM_OK)
            note_message(p, m, role);
    }
    fm_buf_release(&done);
    fm_buf_release(&now);
    return rc;
}

/* ---- the kinds of record ---- */
static fm_status push_message(fm_json *messages, const char *role, fm_span text)
{
    fm_json *m = fm_json_new_object();
    fm_status rc = m ? fm_json_set(m, "role", fm_json_new_str(role)) : FM_ENOMEM;

    if (rc == FM_OK)
        rc = fm_json_set(m, "content", fm_json_new_strn((const char *)text.data, text.len));
    if (rc < 0) {
        fm_json_free(m);
        return rc;
    }
    return fm_json_push(messages, m);
}

static fm_status alpaca_messages(pieces *p, fm_span system, fm_span user, fm_span answer)
{
    fm_json *messages = fm_json_new_array();
    fm_status rc = messages ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && system.len > 0)
        rc = push_message(messages, "system", system);
    if (rc == FM_OK)
        rc = push_message(messages, "user", user);
    if (rc == FM_OK)
        rc = push_message(messages, "assistant", answer);
    if (rc == FM_OK)
        rc = add_messages(p, messages);
    fm_json_free(messages);
    return rc;
}

static fm_status add_alpaca(pieces *p, const fm_json *record)
{
    const fm_json *in = fm_json_get(record, "input");
    fm_span input = fm_json_str(in);
    fm_span answer = fm_json_str(fm_json_get(record, "output"));
    fm_buf user;

    if (!fm_json_is(fm_json_get(record, "instruction"), FM_JSON_STRING))
        return bad_field(p, "instruction", "must be text");
    if (in && !fm_json_is(in, FM_JSON_STRING) && !fm_json_is(in, FM_JSON_NULL))
        return bad_field(p, "input", "must be text");
    if (!answer.data)
        return bad_field(p, "output", "must be text");
    fm_buf_init(&user, 0);
    fm_span instruction = fm_json_str(fm_json_get(record, "instruction"));
    fm_buf_append(&user, instruction.data, instruction.len);
    if (input.len > 0) {
        fm_buf_char(&user, '\n');
        fm_buf_append(&user, input.data, input.len);
    }
    if (!p->r->chat)
        fm_buf_char(&user, '\n');
    fm_status rc = fm_buf_ok(&user);
    fm_span system = fm_json_str(fm_json_get(record, "system"));
    if (rc == FM_OK && p->r->chat)
        rc = alpaca_messages(p, system, fm_buf_span(&user), answer);
    else if (rc == FM_OK)
        rc = add_pair(p, fm_buf_span(&user), answer);
    fm_buf_release(&user);
    return rc;
}

static fm_status add_record(pieces *p, const fm_json *record)
{
    if (!fm_json_is(record, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: record %zu must be an object", p->r->what, p->number);
    if (fm_json_get(record, "messages"))
        return add_messages(p, fm_json_get(record, "messages"));
    if (fm_json_get(record, "instruction") || fm_json_get(record, "output"))
        return add_alpaca(p, record);
    if (fm_json_get(record, "prompt") || fm_json_get(record, "completion")) {
        fm_span prompt = fm_json_str(fm_json_get(record, "prompt"));
        fm_span answer = fm_json_str(fm_json_get(record, "completion"));
        if (!prompt.data)
            return bad_field(p, "prompt", "must be text");
        if (!answer.data)
            return bad_field(p, "completion", "must be text");
        return add_pair(p, prompt, answer);
    }
    fm_span text = fm_json_str(fm_json_get(record, "text"));
    if (text.data)
        return add_pair(p, fm_span_str(""), text);
    return fm_fail(FM_EINVAL,
                   "%s: record %zu has none of messages; instruction and output; prompt and "
                   "completion; text",
                   p->r->what, p->number);
}

/* Never cut inside a code point. */
static size_t whole_chars(const uint8_t *s, size_t len, size_t max)
{
    size_t n = FM_MIN(len, max);

    while (n > 0 && n < len && (s[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static fm_status take_preview(fm_example *out, const pieces *p)
{
    fm_buf text;
    size_t prompt = p->prompt.len;
    size_t answer = p->answer.len;

    /* The end of a long prompt says less than the beginning of the answer: half the room each. */
    if (prompt + answer + 4 > FMI_PREVIEW_BYTES) {
        size_t half = FMI_PREVIEW_BYTES / 2 - 2;
        size_t spare = answer < half ? half - answer : 0;
        prompt = FM_MIN(prompt, half + spare);
        answer = FM_MIN(answer, FMI_PREVIEW_BYTES - 4 - prompt);
    }
    fm_buf_init(&text, 0);
    if (prompt > 0) {
        fm_buf_append(&text, p->prompt.data, whole_chars(p->prompt.data, p->prompt.len, prompt));
        fm_buf_str(&text, " -> ");
    }
    if (answer > 0)
        fm_buf_append(&text, p->answer.data, whole_chars(p->answer.data, p->answer.len, answer));
    fm_status rc = fm_buf_ok(&text);
    if (rc == FM_OK) {
        out->preview = fm_strndup(fm_buf_cstr(&text), text.len);
        rc = out->preview ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&text);
    return rc;
}

static fm_status take_example(fm_example *out, pieces *p)
{
    size_t n = FM_MIN(p->ids.count, p->r->max_tokens);
    fm_status rc = fm_buf_ok(&p->prompt);

    if (rc == FM_OK)
        rc = fm_buf_ok(&p->answer);
    if (rc < 0)
        return rc;
    out->len = (uint32_t)n;
    out->ids = fm_calloc(n, sizeof(int32_t));
    out->labels = fm_calloc(n, sizeof(int32_t));
    if (!out->ids || !out->labels)
        return FM_ENOMEM;
    if (n > 0) {
        memcpy(out->ids, p->ids.id, n * sizeof(int32_t));
        memcpy(out->labels, p->labels.id, n * sizeof(int32_t));
    }
    return take_preview(out, p);
}

static void pieces_init(pieces *p, const fmi_renderer *r, size_t number)
{
    memset(p, 0, sizeof(*p));
    p->r = r;
    p->number = number;
    fm_buf_init(&p->prompt, 0);
    fm_buf_init(&p->answer, 0);
}

static fm_status pieces_finish(fm_example *out, pieces *p, fm_status rc)
{
    if (rc == FM_OK)
        rc = take_example(out, p);
    if (rc < 0)
        fmi_example_release(out);
    fm_ids_release(&p->ids);
    fm_ids_release(&p->labels);
    fm_buf_release(&p->prompt);
    fm_buf_release(&p->answer);
    return rc;
}

fm_status fmi_render_record(fm_example *out, const fmi_renderer *r, const fm_json *record,
                            size_t number)
{
    pieces p;

    memset(out, 0, sizeof(*out));
    pieces_init(&p, r, number);
    return pieces_finish(out, &p, add_record(&p, record));
}

fm_status fmi_render_block(fm_example *out, const fmi_renderer *r, const int32_t *ids, size_t n)
{
    pieces p;
    fm_buf text;
    fm_status rc = FM_OK;

    memset(out, 0, sizeof(*out));
    pieces_init(&p, r, 0);
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = add_id(&p, ids[i], true);
    if (rc == FM_OK)
        rc = fm_tokenizer_decode(r->tok, ids, n, false, &text);
    note(&p.answer, fm_buf_span(&text));
    if (rc == FM_OK)
        rc = fm_sha256(&out->digest, text.data, text.len);
    fm_buf_release(&text);
    return pieces_finish(out, &p, rc);
}

void fmi_example_release(fm_example *e)
{
    fm_free(e->ids);
    fm_free(e->labels);
    fm_free(e->preview);
    memset(e, 0, sizeof(*e));
}
