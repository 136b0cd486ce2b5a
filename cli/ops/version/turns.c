/* turns.c - takes a chat template apart by what it makes of conversations with known messages. */
#include "cli/ops/version/turns.h"

#include <string.h>

#include "store/base/mem.h"

/* The messages; none of these texts stands in a template. */
static const char *const USER[] = {"fmstore-asks-1", "fmstore-asks-2", "fmstore-asks-3"};
static const char *const ASSISTANT[] = {"fmstore-answers-1", "fmstore-answers-2"};
static const char SYSTEM[] = "fmstore-rules-1";

void fmo_turns_release(fmo_turns *t)
{
    fm_free(t->first);
    fm_free(t->question);
    fm_free(t->prompt);
    fm_free(t->answer);
    fm_free(t->system);
    fm_free(t->after_system);
    fm_free(t->default_system);
    *t = (fmo_turns){.first = NULL};
}

/* The n-th message: of "suau" the third is ASSISTANT[0]. */
static const char *content_of(const char *roles, size_t n, const char *system)
{
    const bool begins = roles[0] == 's';

    if (roles[n] == 's')
        return system;
    return roles[n] == 'u' ? USER[(n - begins) / 2] : ASSISTANT[(n - begins) / 2];
}

static fm_status render(fm_buf *out, const fm_chat_template *t, const fm_json *extra,
                        const char *roles, const char *system)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    fm_buf_clear(out);
    for (size_t i = 0; rc == FM_OK && roles[i]; i++) {
        fm_json *m = fm_json_new_object();
        const char *role = roles[i] == 's' ? "system" : roles[i] == 'u' ? "user" : "assistant";
        rc = m ? FM_OK : FM_ENOMEM;
        fm_json_put(&rc, m, "role", fm_json_new_str(role));
        fm_json_put(&rc, m, "content", fm_json_new_str(content_of(roles, i, system)));
        fm_json_push_to(&rc, list, fm_json_ref(m));
        fm_json_free(m);
    }
    FM_THEN(rc, fm_chat_render(out, t, list, NULL, true, extra));
    fm_json_free(list);
    if (rc == FM_EINVAL || rc == FM_ELIMIT) /* it raises, or takes too much work */
        rc = fm_fail(FM_EUNSUPPORTED, "%s", fm_error_text());
    return rc;
}

static fm_status compose(fm_buf *out, const fmo_turns *t, const char *roles)
{
    const bool begins = roles[0] == 's';

    fm_buf_clear(out);
    fm_buf_str(out, begins ? t->system : t->first);
    for (size_t i = 0; roles[i]; i++) {
        fm_buf_str(out, content_of(roles, i, SYSTEM));
        fm_buf_str(out, roles[i] == 's'   ? t->after_system
                        : roles[i] == 'a' ? t->answer
                        : roles[i + 1]    ? t->question
                                          : t->prompt);
    }
    return fm_buf_ok(out);
}

/* Cuts a conversation at its messages: *part[0] is what stands before the first. NULL where a part
 * is not wanted. FM_EUNSUPPORTED: a message is missing. */
static fm_status cut(const fm_buf *text, const char *roles, char **const *part)
{
    const char *at = fm_buf_cstr(text), *next = at;

    for (size_t i = 0; roles[i]; i++) {
        const char *content = content_of(roles, i, SYSTEM);
        next = strstr(at, content);
        if (!next)
            return fm_fail(FM_EUNSUPPORTED, "it changes or leaves out a message");
        if (part[i] && !*part[i] && !(*part[i] = fm_strndup(at, (size_t)(next - at))))
            return FM_ENOMEM;
        at = next + strlen(content);
    }
    char **last = part[strlen(roles)];
    if (last && !*last && !(*last = fm_strdup(at)))
        return FM_ENOMEM;
    return FM_OK;
}

static bool is_text(const fm_buf *a, const fm_buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* first == system + default + after_system, and giving the default changes nothing. */
static fm_status find_default(fmo_turns *out, const fm_chat_template *t, const fm_json *extra)
{
    const size_t n = strlen(out->first), a = strlen(out->system), b = strlen(out->after_system);
    fm_buf without, with;

    if (n <= a + b || strncmp(out->first, out->system, a) != 0 ||
        strcmp(out->first + n - b, out->after_system) != 0)
        return FM_OK;
    out->default_system = fm_strndup(out->first + a, n - a - b);
    if (!out->default_system)
        return FM_ENOMEM;
    fm_buf_init(&without, 0);
    fm_buf_init(&with, 0);
    fm_status rc = render(&without, t, extra, "u", SYSTEM);
    FM_THEN(rc, render(&with, t, extra, "su", out->default_system));
    if (rc == FM_OK && !is_text(&without, &with)) {
        fm_free(out->default_system);
        out->default_system = NULL;
    }
    fm_buf_release(&without);
    fm_buf_release(&with);
    return rc;
}

/* A template that refuses a system message, or drops it, takes none. */
static fm_status find_system(fmo_turns *out, const fm_chat_template *t, const fm_json *extra,
                             fm_buf *text)
{
    char **const part[] = {&out->system, &out->after_system, NULL};
    fm_status rc = render(text, t, extra, "su", SYSTEM);

    FM_THEN(rc, cut(text, "su", part));
    if (rc == FM_OK)
        return find_default(out, t, extra);
    if (rc != FM_EUNSUPPORTED)
        return rc;
    fm_error_clear();
    fm_free(out->system);
    out->system = NULL;
    return FM_OK;
}

static fm_status check(const fmo_turns *out, const fm_chat_template *t, const fm_json *extra,
                       fm_buf *text)
{
    static const char *const roles[] = {"u", "uau", "uauau", "su", "suau", "suauau"};
    fm_status rc = FM_OK;
    fm_buf want;

    fm_buf_init(&want, 0);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(roles); i++) {
        if (roles[i][0] == 's' && !out->system)
            continue;
        rc = render(text, t, extra, roles[i], SYSTEM);
        FM_THEN(rc, compose(&want, out, roles[i]));
        if (rc == FM_OK && !is_text(text, &want))
            rc = fm_fail(FM_EUNSUPPORTED, "it does not put the same text around each message");
    }
    fm_buf_release(&want);
    return rc;
}

fm_status fmo_turns_of(fmo_turns *out, const fm_chat_template *t, const fm_json *extra)
{
    char **const part[] = {&out->first, &out->question, &out->answer, &out->prompt};
    fm_buf text;

    *out = (fmo_turns){.first = NULL};
    fm_buf_init(&text, 0);
    fm_status rc = render(&text, t, extra, "uau", SYSTEM);
    FM_THEN(rc, cut(&text, "uau", part));
    FM_THEN(rc, find_system(out, t, extra, &text));
    FM_THEN(rc, check(out, t, extra, &text));
    fm_buf_release(&text);
    if (rc < 0)
        fmo_turns_release(out);
    return rc;
}

fm_status fmo_chat_open(fm_ops *c, const fm_tree *tree, const fm_tokenizer *t,
                        fm_chat_template **out)
{
    const fm_entry *e = fm_tree_find(tree, "tokenizer/chat_template.jinja");
    fm_buf file;

    *out = NULL;
    fm_buf_init(&file, 0);
    fm_status rc = e ? fm_ops_entry_bytes(c, e, &file) : FM_OK;
    const fm_span source = e ? fm_buf_span(&file) : fm_tokenizer_chat_template(t);
    if (rc == FM_OK && source.len > 0)
        rc = fm_chat_template_open(out, source, "chat template");
    fm_buf_release(&file);
    return rc;
}
