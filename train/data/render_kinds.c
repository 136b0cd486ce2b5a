/* render_kinds.c - the kind of a record, by its fields, and the pieces of each kind. */
#include "train/data/render.h"

#include "store/base/mem.h"

#include <string.h>

static const char *const kind_names[] = {"unknown",    "messages", "sharegpt", "alpaca",
                                         "completion", "text",     "tokens",   "preference",
                                         "pair",       "class",    "block"};

const char *fmt_kind_name(fmt_kind kind)
{
    return kind_names[kind];
}

static bool has(const fm_json *record, const char *key)
{
    return fm_json_get(record, key) != NULL;
}

/* Fields with texts that belong together, and below fields with one text to classify. */
static const char *const pair_fields[][FM_EXAMPLE_PARTS] = {
    {"anchor", "positive", "negative"},
    {"query", "positive", "negative"},
    {"query", "document", "negative"},
    {"sentence1", "sentence2", "negative"},
};
static const char *const class_fields[][2] = {
    {"premise", "hypothesis"}, {"sentence1", "sentence2"}, {"text", NULL}, {"sentence", NULL}};

static long pair_of(const fm_json *record)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(pair_fields); i++)
        if (has(record, pair_fields[i][0]) && has(record, pair_fields[i][1]))
            return (long)i;
    return -1;
}

static long class_of(const fm_json *record)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(class_fields); i++)
        if (has(record, class_fields[i][0]) &&
            (!class_fields[i][1] || has(record, class_fields[i][1])))
            return (long)i;
    return -1;
}

static fmt_kind text_kind(const fm_json *record)
{
    if (has(record, "input_ids"))
        return FMT_KIND_TOKENS;
    if (has(record, "messages"))
        return FMT_KIND_MESSAGES;
    if (has(record, "conversations"))
        return FMT_KIND_SHAREGPT;
    if (has(record, "instruction") || has(record, "output"))
        return FMT_KIND_ALPACA;
    if (has(record, "chosen") || has(record, "rejected"))
        return FMT_KIND_NONE; /* half a preference is refused, not ignored */
    if (has(record, "prompt") || has(record, "completion"))
        return FMT_KIND_COMPLETION;
    return has(record, "text") ? FMT_KIND_TEXT : FMT_KIND_NONE;
}

fmt_kind fmt_kind_of(const fm_json *record, fm_objective objective)
{
    switch (objective) {
    case FM_OBJECTIVE_DPO:
        return has(record, "chosen") && has(record, "rejected") ? FMT_KIND_PREFERENCE
                                                                : FMT_KIND_NONE;
    case FM_OBJECTIVE_CONTRASTIVE:
        return pair_of(record) >= 0 ? FMT_KIND_PAIR : FMT_KIND_NONE;
    case FM_OBJECTIVE_CLASSIFY:
        return has(record, "label") && class_of(record) >= 0 ? FMT_KIND_CLASS : FMT_KIND_NONE;
    case FM_OBJECTIVE_NEXT_TOKEN:
    case FM_OBJECTIVE_DISTILL:
        return text_kind(record);
    }
    return FMT_KIND_NONE;
}

static const struct need {
    fm_objective objective;
    const char *name, *fields;
} needs[] = {
    {FM_OBJECTIVE_NEXT_TOKEN, "next_token",
     "messages; conversations; instruction and output; prompt and completion; text; input_ids"},
    {FM_OBJECTIVE_DISTILL, "distill",
     "messages; conversations; instruction and output; prompt and completion; text; input_ids"},
    {FM_OBJECTIVE_DPO, "dpo", "chosen and rejected, with or without prompt"},
    {FM_OBJECTIVE_CONTRASTIVE, "contrastive",
     "anchor and positive; query and document; sentence1 and sentence2"},
    {FM_OBJECTIVE_CLASSIFY, "classify",
     "label, and text; sentence; premise and hypothesis; sentence1 and sentence2"},
};

/* The record is of no kind that the objective can use: names the fields that it needs, and the
 * objective that would fit the record. */
static fm_status misfit(const fmt_pieces *p, const fm_json *record)
{
    const struct need *wanted = &needs[0];
    const struct need *other = NULL;

    for (size_t i = 0; i < FM_ARRAY_LEN(needs); i++) {
        if (needs[i].objective == p->r->objective)
            wanted = &needs[i];
        if (!other && fmt_kind_of(record, needs[i].objective) != FMT_KIND_NONE)
            other = &needs[i];
    }
    if (other)
        return fm_fail(FM_EINVAL,
                       "%s: record %zu holds '%s', which objective %s cannot use: it wants %s; or "
                       "train with objective=%s",
                       p->r->what, p->number, fmt_kind_name(fmt_kind_of(record, other->objective)),
                       wanted->name, wanted->fields, other->name);
    return fm_fail(FM_EINVAL, "%s: record %zu has none of the fields that objective %s wants: %s",
                   p->r->what, p->number, wanted->name, wanted->fields);
}

/* ---- text fields ---- */
/* Reads a text field; an absent field and null give an empty span without data. */
static fm_status optional_text(fm_span *out, const fmt_pieces *p, const fm_json *record,
                               const char *field)
{
    const fm_json *v = fm_json_get(record, field);

    *out = fm_json_str(v);
    if (v && !out->data && !fm_json_is(v, FM_JSON_NULL))
        return fmt_bad_field(p, field, "must be text");
    return FM_OK;
}

static fm_status needed_text(fm_span *out, const fmt_pieces *p, const fm_json *record,
                             const char *field)
{
    *out = fm_json_str(fm_json_get(record, field));
    return out->data ? FM_OK : fmt_bad_field(p, field, "must be text");
}

/* A field that is an array, or a text that holds one as JSON: owned, NULL where there is none. */
static fm_status take_array(fm_json **out, const fmt_pieces *p, const fm_json *record,
                            const char *field)
{
    const fm_json *v = fm_json_get(record, field);
    fm_span text = fm_json_str(v);
    fm_status rc = FM_OK;

    *out = NULL;
    if (!v || fm_json_is(v, FM_JSON_NULL) || (text.data && text.len == 0))
        return FM_OK;
    if (text.data)
        rc = fm_json_parse(out, text, p->r->what);
    else
        *out = fm_json_ref(v);
    if (rc == FM_ENOMEM)
        return rc;
    if (rc < 0 || !fm_json_is(*out, FM_JSON_ARRAY)) {
        fm_json_free(*out);
        *out = NULL;
        return fmt_bad_field(p, field, "must be a list");
    }
    return FM_OK;
}

static fm_status add_pair(fmt_pieces *p, fm_span prompt, fm_span answer)
{
    fm_status rc = fmt_add_bos(p);

    if (p->parts == 1) {
        fmt_note(&p->prompt, prompt);
        fmt_note(&p->answer, answer);
    }
    if (rc == FM_OK && prompt.len > 0)
        rc = fmt_add_text(p, prompt, false);
    FM_THEN(rc, fmt_add_text(p, answer, true));
    return rc == FM_OK ? fmt_add_id(p, fm_tokenizer_eos(p->r->tok), true) : rc;
}

/* ---- conversations ---- */
static fm_status add_messages(fmt_pieces *p, const fm_json *record)
{
    fm_json *messages = NULL;
    fm_json *tools = NULL;
    fm_status rc = take_array(&messages, p, record, "messages");

    FM_THEN(rc, take_array(&tools, p, record, "tools"));
    FM_THEN(rc, fmt_add_conversation(p, messages, 0, tools, "messages"));
    fm_json_free(messages);
    fm_json_free(tools);
    return rc;
}

static const char *const roles[][2] = {{"human", "user"},
                                       {"user", "user"},
                                       {"gpt", "assistant"},
                                       {"assistant", "assistant"},
                                       {"chatgpt", "assistant"},
                                       {"bing", "assistant"},
                                       {"bard", "assistant"},
                                       {"model", "assistant"},
                                       {"function_call", "assistant"},
                                       {"system", "system"},
                                       {"tool", "tool"},
                                       {"observation", "tool"},
                                       {"function_response", "tool"}};

static fm_status push_sharegpt(fm_json *messages, const fmt_pieces *p, const fm_json *turn)
{
    const char *from = fm_json_cstr(fm_json_get(turn, "from"), NULL);
    fm_span value = fm_json_str(fm_json_get(turn, "value"));

    if (!from && has(turn, "role"))
        return fm_json_push(messages, fm_json_ref(turn));
    if (!from || !value.data)
        return fmt_bad_field(p, "conversations", "must hold objects with text from and value");
    for (size_t i = 0; i < FM_ARRAY_LEN(roles); i++)
        if (strcmp(from, roles[i][0]) == 0)
            return fmt_push_message(messages, roles[i][1], value);
    return fm_fail(FM_EINVAL,
                   "%s: record %zu: field 'conversations': from '%.40s' is none of human, gpt, "
                   "system, tool, function_call, observation",
                   p->r->what, p->number, from);
}

static fm_status add_sharegpt(fmt_pieces *p, const fm_json *record)
{
    fm_json *turns = NULL;
    fm_json *tools = NULL;
    fm_json *messages = fm_json_new_array();
    fm_span system = {0};
    fm_status rc = messages ? take_array(&turns, p, record, "conversations") : FM_ENOMEM;

    FM_THEN(rc, take_array(&tools, p, record, "tools"));
    FM_THEN(rc, optional_text(&system, p, record, "system"));
    const char *first = fm_json_cstr(fm_json_get(fm_json_at(turns, 0), "from"), "");
    if (rc == FM_OK && system.len > 0 && strcmp(first, "system") != 0)
        rc = fmt_push_message(messages, "system", system);
    for (size_t i = 0; i < fm_json_count(turns) && rc == FM_OK; i++)
        rc = push_sharegpt(messages, p, fm_json_at(turns, i));
    if (rc == FM_OK && fm_json_count(turns) == 0)
        rc = fmt_bad_field(p, "conversations", "must hold 1 to 4096 messages");
    FM_THEN(rc, fmt_add_conversation(p, messages, 0, tools, "conversations"));
    fm_json_free(messages);
    fm_json_free(turns);
    fm_json_free(tools);
    return rc;
}

/* ---- alpaca ---- */
static fm_status check_history(const fmt_pieces *p, const fm_json *history)
{
    for (size_t i = 0; i < fm_json_count(history); i++) {
        const fm_json *pair = fm_json_at(history, i);
        if (fm_json_count(pair) != 2 || !fm_json_str(fm_json_at(pair, 0)).data ||
            !fm_json_str(fm_json_at(pair, 1)).data)
            return fmt_bad_field(p, "history", "must hold pairs of texts [instruction, output]");
    }
    return FM_OK;
}

static fm_status alpaca_messages(fmt_pieces *p, fm_span system, const fm_json *history,
                                 fm_span user, fm_span answer)
{
    fm_json *messages = fm_json_new_array();
    fm_status rc = messages ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && system.len > 0)
        rc = fmt_push_message(messages, "system", system);
    for (size_t i = 0; i < fm_json_count(history) && rc == FM_OK; i++) {
        const fm_json *pair = fm_json_at(history, i);
        rc = fmt_push_message(messages, "user", fm_json_str(fm_json_at(pair, 0)));
        FM_THEN(rc, fmt_push_message(messages, "assistant", fm_json_str(fm_json_at(pair, 1))));
    }
    FM_THEN(rc, fmt_push_message(messages, "user", user));
    FM_THEN(rc, fmt_push_message(messages, "assistant", answer));
    FM_THEN(rc, fmt_add_conversation(p, messages, 0, NULL, "history"));
    fm_json_free(messages);
    return rc;
}

static fm_status add_line(fmt_pieces *p, fm_span text, bool counts)
{
    fm_buf line;

    fm_buf_init(&line, 0);
    fm_buf_append(&line, text.data, text.len);
    fm_buf_char(&line, '\n');
    fm_status rc = fm_buf_ok(&line);
    FM_THEN(rc, fmt_add_text(p, fm_buf_span(&line), counts));
    fm_buf_release(&line);
    return rc;
}

/* Adds the fields of a record without a template: each is a line. */
static fm_status alpaca_lines(fmt_pieces *p, fm_span system, const fm_json *history, fm_span user,
                              fm_span answer)
{
    fm_status rc = fmt_add_bos(p);

    fmt_note(&p->prompt, user);
    fmt_note(&p->answer, answer);
    if (rc == FM_OK && system.len > 0)
        rc = add_line(p, system, false);
    for (size_t i = 0; i < fm_json_count(history) && rc == FM_OK; i++) {
        const fm_json *pair = fm_json_at(history, i);
        rc = add_line(p, fm_json_str(fm_json_at(pair, 0)), false);
        FM_THEN(rc, add_line(p, fm_json_str(fm_json_at(pair, 1)), true));
    }
    FM_THEN(rc, add_line(p, user, false));
    FM_THEN(rc, fmt_add_text(p, answer, true));
    return rc == FM_OK ? fmt_add_id(p, fm_tokenizer_eos(p->r->tok), true) : rc;
}

static fm_status add_alpaca(fmt_pieces *p, const fm_json *record)
{
    fm_span instruction = {0};
    fm_span input = {0};
    fm_span answer = {0};
    fm_span system = {0};
    fm_json *history = NULL;
    fm_buf user;
    fm_status rc = needed_text(&instruction, p, record, "instruction");

    FM_THEN(rc, optional_text(&input, p, record, "input"));
    FM_THEN(rc, needed_text(&answer, p, record, "output"));
    FM_THEN(rc, optional_text(&system, p, record, "system"));
    FM_THEN(rc, take_array(&history, p, record, "history"));
    FM_THEN(rc, check_history(p, history));
    fm_buf_init(&user, 0);
    fm_buf_append(&user, instruction.data, instruction.len);
    if (input.len > 0) {
        fm_buf_char(&user, '\n');
        fm_buf_append(&user, input.data, input.len);
    }
    FM_THEN(rc, fm_buf_ok(&user));
    if (rc == FM_OK && p->r->chat)
        rc = alpaca_messages(p, system, history, fm_buf_span(&user), answer);
    else if (rc == FM_OK)
        rc = alpaca_lines(p, system, history, fm_buf_span(&user), answer);
    fm_buf_release(&user);
    fm_json_free(history);
    return rc;
}

/* ---- prompts with completions or preferences ---- */

/* Joins prompt (messages, or a text of the user) and side (messages, or a text of the assistant).
 * *first: the number of messages before side. */
static fm_status join_messages(fm_json **out, size_t *first, const fmt_pieces *p,
                               const fm_json *prompt, const fm_json *side)
{
    fm_json *all = fm_json_new_array();
    fm_status rc = all ? FM_OK : FM_ENOMEM;
    const char *begins = fm_json_cstr(fm_json_get(fm_json_at(side, 0), "role"), "");
    bool whole = strcmp(begins, "user") == 0 || strcmp(begins, "system") == 0;
    fm_span text = fm_json_str(prompt);

    if (rc == FM_OK && text.data && !whole)
        rc = fmt_push_message(all, "user", text);
    for (size_t i = 0; i < fm_json_count(prompt) && rc == FM_OK; i++)
        rc = fm_json_push(all, fm_json_ref(fm_json_at(prompt, i)));
    *first = fm_json_count(all);
    text = fm_json_str(side);
    if (rc == FM_OK && text.data)
        rc = fmt_push_message(all, "assistant", text);
    for (size_t i = 0; i < fm_json_count(side) && rc == FM_OK; i++)
        rc = fm_json_push(all, fm_json_ref(fm_json_at(side, i)));
    *out = all;
    if (rc < 0 || fm_json_count(all) > 0)
        return rc;
    return fmt_bad_field(p, "prompt", "holds no message");
}

static bool text_or_list(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_STRING) || fm_json_is(v, FM_JSON_ARRAY);
}

static fm_status add_completion(fmt_pieces *p, const fm_json *record)
{
    const fm_json *prompt = fm_json_get(record, "prompt");
    const fm_json *answer = fm_json_get(record, "completion");
    fm_json *all = NULL;
    size_t first = 0;

    if (!text_or_list(prompt))
        return fmt_bad_field(p, "prompt", "must be text, or a list of messages");
    if (!text_or_list(answer))
        return fmt_bad_field(p, "completion", "must be text, or a list of messages");
    if (fm_json_is(prompt, FM_JSON_STRING) && fm_json_is(answer, FM_JSON_STRING))
        return add_pair(p, fm_json_str(prompt), fm_json_str(answer));
    fm_status rc = join_messages(&all, &first, p, prompt, answer);
    FM_THEN(rc, fmt_add_conversation(p, all, first, NULL, "completion"));
    fm_json_free(all);
    return rc;
}

/* Length of the common beginning of two texts, which never ends inside a character or a word. */
static size_t common_text(fm_span a, fm_span b)
{
    size_t n = 0;

    while (n < a.len && n < b.len && a.data[n] == b.data[n])
        n++;
    while (n > 0 && a.data[n - 1] != ' ' && a.data[n - 1] != '\n')
        n--;
    if (n > 0 && a.data[n - 1] == ' ')
        n--; /* the token of a word includes the space in front of it */
    return n;
}

static fm_status add_texts_preferred(fmt_pieces *p, fm_span prompt, fm_span chosen,
                                     fm_span rejected)
{
    if (!prompt.data) {
        size_t n = common_text(chosen, rejected);
        prompt = fm_span_of(chosen.data, n);
        chosen = fm_span_of(chosen.data + n, chosen.len - n);
        rejected = fm_span_of(rejected.data + n, rejected.len - n);
    }
    FM_TRY(add_pair(p, prompt, chosen));
    fmt_begin_part(p);
    return add_pair(p, prompt, rejected);
}

static size_t common_messages(const fm_json *a, const fm_json *b)
{
    size_t n = 0;

    while (n < fm_json_count(a) && n < fm_json_count(b) &&
           fm_json_equal(fm_json_at(a, n), fm_json_at(b, n)))
        n++;
    return n;
}

static fm_status add_preference(fmt_pieces *p, const fm_json *record)
{
    const fm_json *prompt = fm_json_get(record, "prompt");
    const fm_json *chosen = fm_json_get(record, "chosen");
    const fm_json *rejected = fm_json_get(record, "rejected");
    fm_json *good = NULL;
    fm_json *bad = NULL;
    size_t first = 0;

    if (prompt && !text_or_list(prompt) && !fm_json_is(prompt, FM_JSON_NULL))
        return fmt_bad_field(p, "prompt", "must be text, or a list of messages");
    if (!text_or_list(chosen))
        return fmt_bad_field(p, "chosen", "must be text, or a list of messages");
    if (fm_json_typeof(rejected) != fm_json_typeof(chosen))
        return fmt_bad_field(p, "rejected", "must be text or messages as 'chosen' is");
    if (!fm_json_is(prompt, FM_JSON_ARRAY) && fm_json_is(chosen, FM_JSON_STRING))
        return add_texts_preferred(p, fm_json_str(prompt), fm_json_str(chosen),
                                   fm_json_str(rejected));
    fm_status rc = join_messages(&good, &first, p, prompt, chosen);
    FM_THEN(rc, join_messages(&bad, &first, p, prompt, rejected));
    if (rc == FM_OK)
        first = FM_MAX(first, common_messages(good, bad));
    FM_THEN(rc, fmt_add_conversation(p, good, first, NULL, "chosen"));
    if (rc == FM_OK) {
        fmt_begin_part(p);
        rc = fmt_add_conversation(p, bad, first, NULL, "rejected");
    }
    fm_json_free(good);
    fm_json_free(bad);
    return rc;
}

/* ---- texts without an answer ---- */
static fm_status add_related(fmt_pieces *p, const fm_json *record)
{
    const char *const *field = pair_fields[pair_of(record)];

    if (has(record, "label") || has(record, "score"))
        return fmt_bad_field(p, has(record, "label") ? "label" : "score",
                             "has no place among texts that belong together: keep the pairs that "
                             "match and leave the field out, or train with objective=classify");
    for (size_t i = 0; i < FM_EXAMPLE_PARTS; i++) {
        fm_span text;
        FM_TRY(i < 2 ? needed_text(&text, p, record, field[i])
                     : optional_text(&text, p, record, field[i]));
        if (i == 2 && text.len == 0)
            break;
        if (i > 0)
            fmt_begin_part(p);
        FM_TRY(fmt_add_whole(p, text, fm_span_of(NULL, 0)));
        fmt_note(i == 0 ? &p->prompt : &p->answer, i < 2 ? text : fm_span_of(NULL, 0));
    }
    return FM_OK;
}

static fm_status add_classed(fmt_pieces *p, const fm_json *record)
{
    const char *const *field = class_fields[class_of(record)];
    fm_span first = {0};
    fm_span second = {0};
    FM_TRY(needed_text(&first, p, record, field[0]));

    if (field[1])
        FM_TRY(needed_text(&second, p, record, field[1]));
    fmt_note(&p->prompt, first);
    fmt_note(&p->answer, fm_json_str(fm_json_get(record, "label")));
    return fmt_add_whole(p, first, second);
}

/* ---- tokens ---- */
static fm_status token_at(int32_t *out, const fmt_pieces *p, const fm_json *list, size_t i,
                          const char *field)
{
    const fm_json *v = fm_json_at(list, i);
    int64_t id = fm_json_int(v, -1);
    bool none = id == FMT_NO_LABEL && strcmp(field, "labels") == 0;
    size_t vocab = fm_tokenizer_vocab_size(p->r->tok);

    *out = (int32_t)id;
    if (fm_json_is(v, FM_JSON_INT) && (none || (id >= 0 && (uint64_t)id < vocab)))
        return FM_OK;
    return fm_fail(FM_EINVAL, "%s: record %zu: field '%s': element %zu is no token of 0 .. %zu%s",
                   p->r->what, p->number, field, i, vocab - 1,
                   strcmp(field, "labels") == 0 ? ", nor -100" : "");
}

static fm_status add_token(fmt_pieces *p, const fm_json *ids, const fm_json *labels, size_t i)
{
    int32_t id = 0;
    int32_t label = 0;
    FM_TRY(token_at(&id, p, ids, i, "input_ids"));

    if (labels)
        FM_TRY(token_at(&label, p, labels, i, "labels"));
    if (labels && label != FMT_NO_LABEL && label != id)
        return fm_fail(
            FM_EINVAL,
            "%s: record %zu: field 'labels': element %zu is %d, input_ids has %d there; a "
            "label is its own token or -100 (the shift by one is made in training)",
            p->r->what, p->number, i, label, id);
    return fmt_add_labelled(p, id, !labels || label != FMT_NO_LABEL);
}

/* Number of tokens that the mask leaves; a mask may only pad on the right. */
static fm_status masked_count(size_t *n, const fmt_pieces *p, const fm_json *mask)
{
    if (!mask)
        return FM_OK;
    if (fm_json_count(mask) != *n)
        return fmt_bad_field(p, "attention_mask", "must be as long as input_ids");
    while (*n > 0 && fm_json_int(fm_json_at(mask, *n - 1), 1) == 0)
        --*n;
    for (size_t i = 0; i < *n; i++)
        if (fm_json_int(fm_json_at(mask, i), 0) != 1)
            return fmt_bad_field(p, "attention_mask", "must be ones, then zeros: pad on the right");
    return FM_OK;
}

static fm_status add_tokens(fmt_pieces *p, const fm_json *record)
{
    fm_json *ids = NULL;
    fm_json *labels = NULL;
    fm_json *mask = NULL;
    fm_buf text;
    fm_status rc = take_array(&ids, p, record, "input_ids");

    FM_THEN(rc, take_array(&labels, p, record, "labels"));
    FM_THEN(rc, take_array(&mask, p, record, "attention_mask"));
    size_t n = fm_json_count(ids);
    if (rc == FM_OK && labels && fm_json_count(labels) != n)
        rc = fmt_bad_field(p, "labels", "must be as long as input_ids");
    FM_THEN(rc, masked_count(&n, p, mask));
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = add_token(p, ids, labels, i);
    fm_buf_init(&text, 0);
    FM_THEN(rc, fm_tokenizer_decode(p->r->tok, p->ids.id, FM_MIN(p->ids.count, FMT_PREVIEW_BYTES),
                                    false, &text));
    fmt_note(&p->answer, fm_buf_span(&text));
    fm_buf_release(&text);
    fm_json_free(ids);
    fm_json_free(labels);
    fm_json_free(mask);
    return rc;
}

fm_status fmt_add_record(fmt_pieces *p, const fm_json *record)
{
    fm_span text;

    if (!fm_json_is(record, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: record %zu must be an object", p->r->what, p->number);
    switch (p->kind) {
    case FMT_KIND_NONE:
    case FMT_KIND_BLOCK:
        return misfit(p, record);
    case FMT_KIND_MESSAGES:
        return add_messages(p, record);
    case FMT_KIND_SHAREGPT:
        return add_sharegpt(p, record);
    case FMT_KIND_ALPACA:
        return add_alpaca(p, record);
    case FMT_KIND_COMPLETION:
        return add_completion(p, record);
    case FMT_KIND_TEXT: {
        fm_status rc = needed_text(&text, p, record, "text");
        return rc == FM_OK ? add_pair(p, fm_span_str(""), text) : rc;
    }
    case FMT_KIND_TOKENS:
        return add_tokens(p, record);
    case FMT_KIND_PREFERENCE:
        return add_preference(p, record);
    case FMT_KIND_PAIR:
        return add_related(p, record);
    case FMT_KIND_CLASS:
        return add_classed(p, record);
    }
    return misfit(p, record);
}
