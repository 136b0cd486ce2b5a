/* chat.c - opens and renders chat templates: between JSON and the Jinja interpreter. */
#include "infer/chat.h"

#include <string.h>

#include "infer/jinja/jinja.h"
#include "infer/text/chat_plain.h"
#include "infer/tokenizer/internal.h"

struct fm_chat_template {
    fm_arena *arena; /* tree and literals */
    jj_node *root;
    char *what;
};

fm_status fm_chat_template_open(fm_chat_template **out, fm_span source, const char *what)
{
    fm_chat_template *t = fm_calloc(1, sizeof *t);
    fm_status rc = t ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc < 0)
        return rc;
    t->what = fm_strdup(what ? what : "chat template");
    if (!t->what) {
        rc = FM_ENOMEM;
        goto fail;
    }
    if (source.len > FM_CHAT_SOURCE_MAX)
        rc = fm_fail(FM_ELIMIT, "%s: %zu bytes (at most %zu)", t->what, source.len,
                     FM_CHAT_SOURCE_MAX);
    else if (source.len > 0 && fm_utf8_valid(source.data, source.len) != source.len)
        rc = fm_fail(FM_EINVAL, "%s: not UTF-8", t->what);
    else
        rc = fm_arena_new(&t->arena);
    if (rc < 0)
        goto fail;
    rc = jj_parse(&t->root, t->arena, source);
    if (rc < 0) {
        rc = rc == FM_ENOMEM ? rc : fm_error_prefix(rc, "%s", t->what);
        goto fail;
    }
    *out = t;
    return FM_OK;
fail:
    fm_chat_template_close(t);
    return rc;
}

void fm_chat_template_close(fm_chat_template *t)
{
    if (!t)
        return;
    fm_arena_free(t->arena);
    fm_free(t->what);
    fm_free(t);
}

static fm_status set_json(jj_ctx *c, const char *name, const fm_json *v)
{
    jj_val value = jj_none();
    FM_TRY(v ? jj_from_json(c, &value, v) : FM_OK);

    return jj_assign(c, name, value);
}

/* The variables that transformers gives every template, then the caller's. */
static fm_status globals(jj_ctx *c, const fm_json *messages, const fm_json *tools, bool add_prompt,
                         const fm_json *extra)
{
    const fm_json *now = fm_json_get(extra, "strftime_now");
    fm_status rc = set_json(c, "messages", messages);

    FM_THEN(rc, set_json(c, "tools", tools));
    FM_THEN(rc, set_json(c, "documents", NULL));
    FM_THEN(rc, jj_assign(c, "add_generation_prompt", jj_bool(add_prompt)));
    c->have_now = fm_json_is(now, FM_JSON_INT);
    c->now = fm_json_int(now, 0);
    if (rc == FM_OK && c->have_now && (c->now < -62135596800 || c->now > 253402300799))
        return fm_fail(FM_EINVAL, "strftime_now: %lld is outside years 1 to 9999",
                       (long long)c->now);
    for (void *it = fm_json_is(extra, FM_JSON_OBJECT) ? fm_json_iter(extra) : NULL;
         it && rc == FM_OK; it = fm_json_next(extra, it)) {
        if (strcmp(fm_json_iter_key(it), "strftime_now") != 0)
            rc = set_json(c, fm_json_iter_key(it), fm_json_iter_value(it));
    }
    return rc;
}

static _Thread_local fm_chat_watch *watched_by;

fm_chat_watch *fm_chat_watch_set(fm_chat_watch *w)
{
    fm_chat_watch *before = watched_by;

    watched_by = w;
    return before;
}

typedef struct rendering {
    const fm_chat_template *t;
    const fm_json *tools, *extra;
    bool add_prompt;
    fm_chat_watch *watch;
    uint64_t work, work_max; /* done and the most, of all turns together */
} rendering;

/* text: initialized and released by the caller, empty; gets its bound here. */
static fm_status render_text(rendering *r, const fm_json *messages, fm_buf *text)
{
    jj_scope scope = {.parent = NULL};
    jj_ctx c = {.scope = &scope,
                .out = text,
                .watch = r->watch,
                .work_max = r->work_max > r->work ? r->work_max - r->work : 1};
    fm_status rc;

    FM_TRY(fm_arena_new(&c.arena));
    rc = globals(&c, messages, r->tools, r->add_prompt, r->extra);
    /* c.bytes: the values of what was given, at most JJ_MEMORY_MAX */
    fm_buf_init(
        text, FM_MIN(FM_CHAT_OUTPUT_ALWAYS + c.bytes * FM_CHAT_OUTPUT_FACTOR, FM_CHAT_OUTPUT_MAX));
    FM_THEN(rc, jj_exec(&c, r->t->root));
    FM_THEN(rc, fm_buf_ok(text));
    r->work += c.work;
    fm_arena_free(c.arena);
    return rc;
}

/* The least change of the messages with which the template shows all of them: none, parts joined,
 * null made "", both. Where none does, both. */
static fm_status render_changed(rendering *r, const fm_json *messages, fm_buf *text)
{
    enum { ALL = FMI_CHAT_JOIN | FMI_CHAT_BLANK };
    const int changes = fmi_chat_unplain(messages);
    fm_buf made[ALL + 1];
    bool there[ALL + 1] = {false};
    fm_status rc = FM_OK;
    int best = -1;

    for (int k = 0; k <= ALL; k++)
        fm_buf_init(&made[k], 0);
    for (int k = 0; k <= ALL && best < 0; k++) {
        fm_json *changed = NULL;
        if ((k & changes) != k)
            continue;
        rc = k ? fmi_chat_plain(&changed, messages, k) : FM_OK;
        FM_THEN(rc, render_text(r, k ? changed : messages, &made[k]));
        fm_json_free(changed);
        there[k] = rc == FM_OK;
        if (k == changes || (there[k] && fmi_chat_shows_all(&made[k], NULL, messages)) ||
            (rc < 0 && rc != FM_EINVAL))
            best = k;
    }
    /* The least that shows no more than all the changes do. */
    for (int k = 0; best == changes && k < changes; k++)
        if (there[k] &&
            (!there[changes] || fmi_chat_shows_all(&made[k], &made[changes], messages))) {
            best = k;
            rc = FM_OK;
        }
    *text = made[best];
    for (int k = 0; k <= ALL; k++)
        if (k != best)
            fm_buf_release(&made[k]);
    return rc;
}

fm_status fm_chat_render(fm_buf *out, const fm_chat_template *t, const fm_json *messages,
                         const fm_json *tools_or_null, bool add_generation_prompt,
                         const fm_json *extra_or_null)
{
    fm_chat_watch *w = watched_by;
    rendering r = {.t = t,
                   .tools = tools_or_null,
                   .extra = extra_or_null,
                   .add_prompt = add_generation_prompt,
                   .watch = w,
                   .work_max = w && w->work_max ? w->work_max : FM_CHAT_WORK_MAX};
    fm_buf text;

    if (!fm_json_is(messages, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: messages must be a list", t->what);
    fm_status rc = render_changed(&r, messages, &text);
    if (rc == FM_OK) {
        fm_buf_append(out, text.data, text.len);
        rc = fm_buf_ok(out);
    } else if (rc != FM_ENOMEM) {
        rc = fm_error_prefix(rc, "%s", t->what);
    }
    if (w)
        w->work = r.work;
    fm_buf_release(&text);
    return rc;
}

static fm_status add_special(fm_json *extra, const fm_tokenizer *t, const char *key, int32_t id)
{
    fm_span s = fm_tokenizer_token_text(t, id);

    return s.data ? fm_json_set(extra, key, fm_json_new_strn((const char *)s.data, s.len)) : FM_OK;
}

fm_status fm_chat_extra_new(fm_json **out, const fm_tokenizer *t)
{
    fm_json *extra = fm_json_new_object();
    fm_status rc = extra ? FM_OK : FM_ENOMEM;

    *out = NULL;
    FM_THEN(rc, add_special(extra, t, "bos_token", fm_tokenizer_bos(t)));
    FM_THEN(rc, add_special(extra, t, "eos_token", fm_tokenizer_eos(t)));
    FM_THEN(rc, add_special(extra, t, "pad_token", fm_tokenizer_pad(t)));
    FM_THEN(rc, add_special(extra, t, "unk_token", fm_tokenizer_unk(t)));
    if (rc < 0) {
        fm_json_free(extra);
        return rc;
    }
    *out = extra;
    return FM_OK;
}
