/* render.c - pieces of one training record to ids and labels, in the model's own template.
 *
 * A conversation is rendered up to each assistant turn with the generation prompt, and again with
 * the turn: what the second has more is the turn as the model must learn to write it, its end
 * marker included. The pieces are tokenized one by one, so that the ids in front of an answer are
 * exactly those that inference will put there. */
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

/* at: the place of the first token that follows. */
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
    fm_status rc = fm_ids_push(&p->ids, id);
    return rc == FM_OK ? fm_ids_push(&p->labels, counts ? id : FMT_NO_LABEL) : rc;
}

/* The token that the tokenizer itself puts in front of a text, for text without a template. */
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
typedef struct around { /* what the tokenizer puts in front of a text and behind it */
    fm_ids ids;
    size_t head, tail;
} around;

static fm_status around_of(around *a, const fm_tokenizer *tok)
{
    fm_ids one = {0};
    fm_status rc = fm_tokenizer_encode(tok, fm_span_str(""), true, &a->ids);

    if (rc == FM_OK)
        rc = fm_tokenizer_encode(tok, fm_span_str("a"), true, &one);
    while (a->head < a->ids.count && a->head < one.count && a->ids.id[a->head] == one.id[a->head])
        a->head++;
    a->tail = a->ids.count - a->head;
    fm_ids_release(&one);
    return rc;
}

/* The first `room` of count ids, the last `tail` of them being the last of all. */
static fm_status push_whole(fmt_pieces *p, const int32_t *id, size_t count, size_t tail,
                            size_t room)
{
    size_t keep = FM_MIN(count, room);
    fm_status rc = FM_OK;

    tail = FM_MIN(tail, keep);
    p->part_lost[p->parts - 1] += count - keep;
    for (size_t i = 0; i < keep && rc == FM_OK; i++)
        rc = fmt_add_labelled(p, id[i < keep - tail ? i : count - keep + i], false);
    return rc;
}

/* The longer text gives way first, as in Hugging Face's truncation "longest_first". */
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
    fm_status rc = push_whole(p, a->id, a->count, with->tail, with->head + one + with->tail);
    return rc == FM_OK ? push_whole(p, b->id + with->head, b->count - with->head, with->tail,
                                    two + with->tail)
                       : rc;
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
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(p->r->tok, fm_buf_span(&all), true, &ids);
    if (rc == FM_OK)
        rc = push_whole(p, ids.id, ids.count, tail, p->r->max_tokens);
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
        if (rc == FM_OK)
            rc = fm_tokenizer_encode(p->r->tok, second, true, &b);
        if (rc == FM_OK)
            rc = push_two(p, &a, &b, &with);
    }
    fm_ids_release(&with.ids);
    fm_ids_release(&a);
    fm_ids_release(&b);
    return rc < 0 ? fm_error_prefix(rc, "%s: record %zu", p->r->what, p->number) : rc;
}

/* ---- parts ---- */
static void end_part(fmt_pieces *p)
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
    end_part(p);
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

/* The text of now beyond what is done; FM_EUNSUPPORTED where now does not begin with it. */
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
    fm_status rc = render(&t->now, t, turn, true);

    if (rc == FM_OK)
        rc = beyond(&text, t->p, &t->done, &t->now);
    if (rc == FM_OK)
        rc = fmt_add_text(t->p, text, false);
    if (rc == FM_OK)
        rc = render(&t->done, t, turn + 1, false);
    if (rc == FM_OK)
        rc = beyond(&text, t->p, &t->now, &t->done);
    return rc == FM_OK ? fmt_add_text(t->p, text, counts) : rc;
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

/* A text, parts of one, or nothing where the turn is a call of tools. */
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

    if (rc == FM_OK)
        rc = fm_json_set(m, "content", fm_json_new_strn((const char *)text.data, text.len));
    if (rc < 0) {
        fm_json_free(m);
        return rc;
    }
    return fm_json_push(messages, m);
}

/* ---- an example of its pieces ---- */
/* Never cut inside a code point. */
static size_t whole_chars(const uint8_t *s, size_t len, size_t max)
{
    size_t n = FM_MIN(len, max);

    while (n > 0 && n < len && (s[n] & 0xC0) == 0x80)
        n--;
    return n;
}

static fm_status take_preview(fm_example *out, const fmt_pieces *p)
{
    fm_buf text;
    size_t prompt = p->prompt.len;
    size_t answer = p->answer.len;

    /* The end of a long prompt says less than the beginning of the answer: half the room each. */
    if (prompt + answer + 4 > FMT_PREVIEW_BYTES) {
        size_t half = FMT_PREVIEW_BYTES / 2 - 2;
        size_t spare = answer < half ? half - answer : 0;
        prompt = FM_MIN(prompt, half + spare);
        answer = FM_MIN(answer, FMT_PREVIEW_BYTES - 4 - prompt);
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

static fm_status take_example(fm_example *out, fmt_render_info *info, fmt_pieces *p)
{
    fm_status rc = fm_buf_ok(&p->prompt);

    if (rc == FM_OK)
        rc = fm_buf_ok(&p->answer);
    if (rc < 0)
        return rc;
    end_part(p);
    size_t n = p->ids.count;
    out->len = (uint32_t)n;
    out->ids = fm_calloc(n, sizeof(int32_t));
    out->labels = fm_calloc(n, sizeof(int32_t));
    if (!out->ids || !out->labels)
        return FM_ENOMEM;
    if (n > 0) {
        memcpy(out->ids, p->ids.id, n * sizeof(int32_t));
        memcpy(out->labels, p->labels.id, n * sizeof(int32_t));
    }
    out->parts = p->parts;
    for (uint32_t i = 0; i < p->parts; i++) {
        size_t end = i + 1 < p->parts ? p->part_at[i + 1] : n;
        out->part_len[i] = (uint32_t)(end - p->part_at[i]);
        out->lost += (uint32_t)FM_MIN(p->part_lost[i], (size_t)UINT32_MAX / FM_EXAMPLE_PARTS);
    }
    out->klass = -1;
    out->index = (uint32_t)p->number;
    info->kind = p->kind;
    info->prompt_len = p->answered ? (uint32_t)FM_MIN(p->prompt_len, (size_t)out->part_len[0]) : 0;
    info->has_answer = p->answered && p->kind != FMT_KIND_TEXT && p->kind != FMT_KIND_BLOCK;
    return take_preview(out, p);
}

static void pieces_init(fmt_pieces *p, const fmt_renderer *r, size_t number, fmt_kind kind)
{
    memset(p, 0, sizeof(*p));
    p->r = r;
    p->number = number;
    p->kind = kind;
    fm_buf_init(&p->prompt, 0);
    fm_buf_init(&p->answer, 0);
}

static fm_status pieces_finish(fm_example *out, fmt_render_info *info, fmt_pieces *p, fm_status rc)
{
    if (rc == FM_OK)
        rc = take_example(out, info, p);
    if (rc < 0)
        fmt_example_release(out);
    fm_ids_release(&p->ids);
    fm_ids_release(&p->labels);
    fm_buf_release(&p->prompt);
    fm_buf_release(&p->answer);
    return rc;
}

fm_status fmt_render_record(fm_example *out, fmt_render_info *info, const fmt_renderer *r,
                            const fm_json *record, size_t number)
{
    fmt_pieces p;

    memset(out, 0, sizeof(*out));
    memset(info, 0, sizeof(*info));
    pieces_init(&p, r, number, fmt_kind_of(record, r->objective));
    fmt_begin_part(&p);
    fm_status rc = fmt_add_record(&p, record);
    return pieces_finish(out, info, &p, rc);
}

fm_status fmt_render_block(fm_example *out, fmt_render_info *info, const fmt_renderer *r,
                           const int32_t *ids, size_t n, size_t number)
{
    fmt_pieces p;
    fm_buf text;

    memset(out, 0, sizeof(*out));
    memset(info, 0, sizeof(*info));
    pieces_init(&p, r, number, FMT_KIND_BLOCK);
    fm_buf_init(&text, 0);
    fmt_begin_part(&p);
    fm_status rc = FM_OK;
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = fmt_add_id(&p, ids[i], true);
    if (rc == FM_OK)
        rc = fm_tokenizer_decode(r->tok, ids, n, false, &text);
    fmt_note(&p.answer, fm_buf_span(&text));
    if (rc == FM_OK)
        rc = fm_sha256(&out->digest, text.data, text.len);
    fm_buf_release(&text);
    return pieces_finish(out, info, &p, rc);
}

void fmt_example_release(fm_example *e)
{
    fm_free(e->ids);
    fm_free(e->labels);
    fm_free(e->preview);
    memset(e, 0, sizeof(*e));
}
