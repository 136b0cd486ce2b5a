/* message.c - the message of a commit: the author's text, and fmstore's trailers as last paragraph.
 *
 * Trailers are git's own convention, so `git log --format='%(trailers:key=Fmstore-Kind)'` works.
 * Only the last paragraph counts, and a message with Fmstore- lines of its own is refused: a
 * message cannot forge the kind of an edge. */
#include "lineage/internal.h"

#include <string.h>
#include <strings.h>

#define TRAILER "Fmstore-"

static const char *const kinds[] = {"pretrain",  "import",    "finetune", "lora",    "prefix",
                                    "ia3",       "bitfit",    "head",     "distill", "prune",
                                    "quantize",  "cast",      "merge",    "rebase",  "edit",
                                    "retrieval", "checkpoint"};

bool fml_kind_known(const char *kind)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i], kind) == 0)
            return true;
    return false;
}

static fm_status fail_kind(const char *kind)
{
    fm_buf b;
    fm_status rc;

    fm_buf_init(&b, 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        fm_buf_printf(&b, "%s%s", i ? " " : "", kinds[i]);
    rc = fm_fail(FM_EINVAL, "kind '%.40s' is not known; it is one of: %s", kind ? kind : "",
                 fm_buf_cstr(&b));
    fm_buf_release(&b);
    return rc;
}

fm_status fm_kind_check(const char *kind)
{
    return kind && fml_kind_known(kind) ? FM_OK : fail_kind(kind);
}

/* The start of the last paragraph, or the end if there is only one (a subject has no trailers). */
static const char *last_paragraph(const char *message)
{
    const char *end = message + strlen(message), *at;

    while (end > message && end[-1] == '\n')
        end--;
    for (at = end; at > message + 1; at--)
        if (at[-1] == '\n' && at[-2] == '\n')
            return at;
    return message + strlen(message);
}

static bool is_trailer(const char *line)
{
    return strncasecmp(line, TRAILER, sizeof TRAILER - 1) == 0;
}

static const char *next_line(const char *line)
{
    const char *nl = strchr(line, '\n');

    return nl ? nl + 1 : line + strlen(line);
}

static fm_status check_text(const char *message)
{
    size_t len = message ? strlen(message) : 0;

    if (len == 0 || strspn(message, " \t\r\n") == len)
        return fm_fail(FM_EINVAL, "a commit needs a message");
    if (len > FML_MAX_MESSAGE_BYTES)
        return fm_fail(FM_ELIMIT, "commit message: %zu bytes, at most %u", len,
                       FML_MAX_MESSAGE_BYTES);
    for (const char *l = message; *l; l = next_line(l))
        if (is_trailer(l))
            return fm_fail(FM_EINVAL, "commit message: a line begins with '" TRAILER
                                      "', which is fmstore's own");
    return FM_OK;
}

static fm_status check_digest(const char *what, const char *hex)
{
    fm_digest d;

    if (hex && !fm_digest_parse(&d, hex, strlen(hex)))
        return fm_fail(FM_EINVAL, "%s digest '%.80s' is not 64 hex digits", what, hex);
    return FM_OK;
}

fm_status fml_message_make(fm_buf *out, const fm_commit_opts *opts)
{
    git_buf clean = GIT_BUF_INIT;

    int code;

    if (!opts->kind || !fml_kind_known(opts->kind))
        return fail_kind(opts->kind);
    FM_TRY(check_text(opts->message));
    FM_TRY(check_digest("recipe", opts->recipe_digest));
    FM_TRY(check_digest("data", opts->data_digest));
    code = git_message_prettify(&clean, opts->message, 0, '#');
    if (code < 0)
        return fml_git_fail(code, "cannot clean the commit message");
    fm_buf_append(out, clean.ptr, clean.size);
    git_buf_dispose(&clean);
    fm_buf_printf(out, "\n" TRAILER "Kind: %s\n", opts->kind);
    if (opts->recipe_digest)
        fm_buf_printf(out, TRAILER "Recipe: %s\n", opts->recipe_digest);
    if (opts->data_digest)
        fm_buf_printf(out, TRAILER "Data: %s\n", opts->data_digest);
    fm_buf_printf(out, TRAILER "Version: %d\n", FML_ENCODING);
    return fm_buf_ok(out);
}

/* The value of `line` if its key is TRAILER key, without the spaces around it. */
static bool value_of(const char *line, const char *key, fm_span *value)
{
    size_t n = strlen(key), len = (size_t)(next_line(line) - line);
    const char *v = line + sizeof TRAILER - 1, *end = line + len;

    if (!is_trailer(line) || strncasecmp(v, key, n) != 0 || v[n] != ':')
        return false;
    v += n + 1;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == '\n' || end[-1] == '\r' || end[-1] == ' '))
        end--;
    *value = fm_span_of(v, (size_t)(end - v));
    return true;
}

/* A value that is no known kind, in a foreign commit, reads as none. */
static void read_kind(fm_version *out, fm_span v)
{
    if (v.len >= sizeof out->kind)
        return;
    memcpy(out->kind, v.data, v.len);
    out->kind[v.len] = '\0';
    if (!fml_kind_known(out->kind))
        out->kind[0] = '\0';
}

static fm_status read_digest(char **out, fm_span v)
{
    fm_digest d;

    if (*out || !fm_digest_parse(&d, (const char *)v.data, v.len))
        return FM_OK;
    *out = fm_strndup((const char *)v.data, v.len);
    return *out ? FM_OK : FM_ENOMEM;
}

fm_status fml_message_read(fm_version *out, const char *message)
{
    const char *tail = last_paragraph(message), *body = message;
    fm_buf text;
    fm_span v;
    fm_status rc = FM_OK;

    fm_buf_init(&text, 0);
    while (*body == '\n')
        body++;
    out->subject = fm_strndup(body, strcspn(body, "\n"));
    if (!out->subject)
        return FM_ENOMEM;
    if (tail > body)
        fm_buf_append(&text, body, (size_t)(tail - body));
    for (const char *l = tail; *l && rc == FM_OK; l = next_line(l)) {
        if (value_of(l, "Kind", &v))
            read_kind(out, v);
        else if (value_of(l, "Recipe", &v))
            rc = read_digest(&out->recipe, v);
        else if (value_of(l, "Data", &v))
            rc = read_digest(&out->data, v);
        else if (!is_trailer(l))
            fm_buf_append(&text, l, (size_t)(next_line(l) - l));
    }
    while (text.len > 0 && text.data[text.len - 1] == '\n')
        text.data[--text.len] = '\0';
    FM_THEN(rc, fm_buf_ok(&text));
    if (rc == FM_OK) {
        out->message = fm_strdup(fm_buf_cstr(&text));
        rc = out->message ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&text);
    return rc;
}

uint32_t fml_message_encoding(const char *message)
{
    fm_span v;

    for (const char *l = last_paragraph(message); *l; l = next_line(l)) {
        uint32_t n = 0;
        if (!value_of(l, "Version", &v))
            continue;
        for (size_t i = 0; i < v.len && i < 6 && v.data[i] >= '0' && v.data[i] <= '9'; i++)
            n = n * 10 + (uint32_t)(v.data[i] - '0');
        return n;
    }
    return 0;
}
