/* render_pieces.c - turns the pieces of one training record into ids and labels, in the model's own
 * template.
 *
 * A conversation is rendered up to each assistant turn with the generation prompt, and again with
 * the turn: the text that the second rendering adds is the turn as the model must learn to write
 * it, with its end marker. The pieces are tokenized one by one, so that the ids in front of an
 * answer are exactly those of inference. */
#include "train/data/render.h"

#include "store/base/mem.h"

#include <string.h>

#define MAX_TURNS 4096u

fm_status fmt_bad_field(const fmt_pieces *p, const char *field, const char *must)
{
    return fm_fail(FM_EINVAL, "%s: record %zu: field '%s' %s", p->r->what, p->number, field, must);
}

void fmt_note(fm_buf *b, fm_span text)
{
    size_t room = FMT_PREVIEW_BYTES - FM_MIN(b->len, FMT_PREVIEW_BYTES);
    fm_buf_append(b, text.data, FM_MIN(text.len, room));
}

/* Notes where the answer begins. at: index of its first token. */
static void begin_answer(fmt_pieces *p, size_t at, bool counts)
{
    if (!counts || p->answered || p->parts > 1)
        return;
    p->answered = true;
    p->prompt_len = at;
}

fm_status fmt_add_text(fmt_pieces *p, fm_span text, bool counts)
{
    size_t before = p->ids.count;
    fm_status rc = fm_tokenizer_encode(p->r->tok, text, false, &p->ids);

    if (rc < 0)
        return fm_error_prefix(rc, "%s: record %zu", p->r->what, p->number);
    begin_answer(p, before, counts);
    for (size_t i = before; i < p->ids.count && rc == FM_OK; i++)
        rc = fm_ids_push(&p->labels, counts || !p->r->answers_only ? p->ids.id[i] : FMT_NO_LABEL);
    return rc;
}

fm_status fmt_add_id(fmt_pieces *p, int32_t id, bool counts)
{
    if (id < 0)
        return FM_OK;
    begin_answer(p, p->ids.count, counts);
    return fmt_add_labelled(p, id, counts || !p->r->answers_only);
}

fm_status fmt_add_labelled(fmt_pieces *p, int32_t id, bool counts)
{
    FM_TRY(fm_ids_push(&p->ids, id));
    return fm_ids_push(&p->labels, counts ? id : FMT_NO_LABEL);
}

/* Adds the token that the tokenizer itself puts in front of a text, where there is no template. */
fm_status fmt_add_bos(fmt_pieces *p)
{
    fm_ids ids = {0};
    int32_t bos = fm_tokenizer_bos(p->r->tok);
    fm_status rc = fm_tokenizer_encode(p->r->tok, fm_span_str("a"), true, &ids);

    if (rc == FM_OK && bos >= 0 && ids.count > 0 && ids.id[0] == bos)
        rc = fmt_add_id(p, bos, false);
    fm_ids_release(&ids);
    return rc;
}

/* ---- whole texts ---- */
typedef struct around { /* ids that the tokenizer puts in front of a text and behind it */
    fm_ids ids;
    size_t head, tail;
} around;

static fm_status around_of(around *a, const fm_tokenizer *tok)
{
    fm_ids one = {0};
    fm_status rc = fm_tokenizer_encode(tok, fm_span_str(""), true, &a->ids);

    FM_THEN(rc, fm_tokenizer_encode(tok, fm_span_str("a"), true, &one));
    while (a->head < a->ids.count && a->head < one.count && a->ids.id[a->head] == one.id[a->head])
        a->head++;
    a->tail = a->ids.count - a->head;
    fm_ids_release(&one);
    return rc;
}

/* Adds at most `room` of count ids: the first ones, then the last `tail` ones. */
static fm_status push_whole(fmt_pieces *p, const int32_t *id, size_t count, size_t tail,
                            size_t room)
{
    size_t keep = FM_MIN(count, room);

    tail = FM_MIN(tail, keep);
    p->part_lost[p->parts - 1] += count - keep;
    for (size_t i = 0; i < keep; i++)
        FM_TRY(fmt_add_labelled(p, id[i < keep - tail ? i : count - keep + i], false));
    return FM_OK;
}

/* Adds two texts. The longer one is cut first, as in Hugging Face's truncation "longest_first". */
static fm_status push_two(fmt_pieces *p, const fm_ids *a, const fm_ids *b, const around *with)
{
    size_t fixed = with->head + 2 * with->tail;
    size_t room = p->r->max_tokens > fixed ? p->r->max_tokens - fixed : 0;
    size_t one = a->count - with->head - with->tail;
    size_t two = b->count - with->head - with->tail;

    if (one + two > room) {
        size_t small = FM_MIN(FM_MIN(one, two), room / 2);
        one = one <= two ? small : room - small;
        two = room - one;
    }
    FM_TRY(push_whole(p, a->id, a->count, with->tail, with->head + one + with->tail));
    return push_whole(p, b->id + with->head, b->count - with->head, with->tail, two + with->tail);
}

static fm_status add_joined(fmt_pieces *p, fm_span text, fm_span second, size_t tail)
{
    fm_ids ids = {0};
    fm_buf all;

    fm_buf_init(&all, 0);
    fm_buf_append(&all, text.data, text.len);
    if (second.data)
        fm_buf_char(&all, '\n');
    fm_buf_append(&all, second.data, second.len);
    fm_status rc = fm_buf_ok(&all);
    FM_THEN(rc, fm_tokenizer_encode(p->r->tok, fm_buf_span(&all), true, &ids));
    FM_THEN(rc, push_whole(p, ids.id, ids.count, tail, p->r->max_tokens));
    fm_ids_release(&ids);
    fm_buf_release(&all);
    return rc;
}

fm_status fmt_add_whole(fmt_pieces *p, fm_span text, fm_span second)
{
    around with = {0};
    fm_ids a = {0};
    fm_ids b = {0};
    fm_status rc = around_of(&with, p->r->tok);

    if (rc == FM_OK && (!second.data || with.tail == 0)) {
        rc = add_joined(p, text, second, with.tail);
    } else if (rc == FM_OK) {
        rc = fm_tokenizer_encode(p->r->tok, text, true, &a);
        FM_THEN(rc, fm_tokenizer_encode(p->r->tok, second, true, &b));
        FM_THEN(rc, push_two(p, &a, &b, &with));
    }
    fm_ids_release(&with.ids);
    fm_ids_release(&a);
    fm_ids_release(&b);
    return rc < 0 ? fm_error_prefix(rc, "%s: record %zu", p->r->what, p->number) : rc;
}

/* ---- parts ---- */
void fmt_end_part(fmt_pieces *p)
{
    if (p->parts == 0)
        return;
    size_t at = p->part_at[p->parts - 1];
    size_t len = p->ids.count - at;
    if (len > p->r->max_tokens) {
        p->part_lost[p->parts - 1] += len - p->r->max_tokens;
        p->ids.count = p->labels.count = at + p->r->max_tokens;
    }
}

void fmt_begin_part(fmt_pieces *p)
{
    fm_assert(p->parts < FM_EXAMPLE_PARTS);
    fmt_end_part(p);
    p->part_at[p->parts++] = p->ids.count;
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

typedef struct talk { /* a conversation that is being rendered */
    fmt_pieces *p;
    const fm_json *messages, *tools;
    fm_buf done, now;
} talk;

static fm_status render(fm_buf *out, const talk *t, size_t n, bool add_generation_prompt)
{
    const fmt_pieces *p = t->p;
    fm_json *head = first_messages(t->messages, n);
    fm_status rc = FM_ENOMEM;

    fm_buf_clear(out);
    if (head)
        rc = fm_chat_render(out, p->r->chat, head, t->tools, add_generation_prompt, p->r->extra);
    fm_json_free(head);
    return rc < 0 ? fm_error_prefix(rc, "%s: record %zu", p->r->what, p->number) : rc;
}

/* The text of now behind done; FM_EUNSUPPORTED where now does not begin with done. */
static fm_status beyond(fm_span *out, const fmt_pieces *p, const fm_buf *done, const fm_buf *now)
{
    if (now->len < done->len || (done->len > 0 && memcmp(now->data, done->data, done->len) != 0))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: record %zu: this chat template rewrites earlier text when a turn is "
                       "added, so that answers cannot be told from prompts",
                       p->r->what, p->number);
    *out = fm_span_of(now->data + done->len, now->len - done->len);
    return FM_OK;
}

static fm_status add_turn(talk *t, size_t turn, bool counts)
{
    fm_span text;
    FM_TRY(render(&t->now, t, turn, true));

    FM_TRY(beyond(&text, t->p, &t->done, &t->now));
    FM_TRY(fmt_add_text(t->p, text, false));
    FM_TRY(render(&t->done, t, turn + 1, false));
    FM_TRY(beyond(&text, t->p, &t->now, &t->done));
    return fmt_add_text(t->p, text, counts);
}

static void note_message(fmt_pieces *p, const fm_json *message, const char *role)
{
    fm_span text = fm_json_str(fm_json_get(message, "content"));

    if (!text.data || p->parts > 1)
        return;
    if (strcmp(role, "user") == 0)
        fmt_note(&p->prompt, text);
    if (strcmp(role, "assistant") == 0)
        fmt_note(&p->answer, text);
}

/* Whether a message has content: a text or parts of one. A turn that calls tools may have none. */
static bool has_content(const fm_json *message)
{
    const fm_json *content = fm_json_get(message, "content");

    if (fm_json_is(content, FM_JSON_STRING))
        return true;
    if (fm_json_is(content, FM_JSON_ARRAY))
        return fm_json_count(content) > 0;
    return fm_json_is(content, FM_JSON_NULL) && fm_json_count(fm_json_get(message, "tool_calls"));
}

fm_status fmt_add_conversation(fmt_pieces *p, const fm_json *messages, size_t first,
                               const fm_json *tools, const char *field)
{
    size_t n = fm_json_count(messages);
    talk t = {.p = p, .messages = messages, .tools = tools};
    fm_status rc = FM_OK;

    if (!fm_json_is(messages, FM_JSON_ARRAY) || n == 0 || n > MAX_TURNS)
        return fmt_bad_field(p, field, "must hold 1 to 4096 messages");
    if (!p->r->chat)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: record %zu has messages, and the model has no chat template; give "
                       "prompt and completion, or a model with a template",
                       p->r->what, p->number);
    fm_buf_init(&t.done, 0);
    fm_buf_init(&t.now, 0);
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        const fm_json *m = fm_json_at(messages, i);
        const char *role = fm_json_cstr(fm_json_get(m, "role"), NULL);
        bool counts = i >= first && fm_json_real(fm_json_get(m, "weight"), 1.0) > 0.0;
        if (!role || !has_content(m))
            rc = fmt_bad_field(p, field, "must hold objects with text role and content");
        else if (strcmp(role, "assistant") == 0)
            rc = add_turn(&t, i, counts);
        if (rc == FM_OK)
            note_message(p, m, role);
    }
    fm_buf_release(&t.done);
    fm_buf_release(&t.now);
    return rc;
}

fm_status fmt_push_message(fm_json *messages, const char *role, fm_span text)
{
    fm_json *m = fm_json_new_object();
    fm_status rc = m ? fm_json_set(m, "role", fm_json_new_str(role)) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(m, "content", fm_json_new_strn((const char *)text.data, text.len)));
    if (rc < 0) {
        fm_json_free(m);
        return rc;
    }
    return fm_json_push(messages, m);
}
