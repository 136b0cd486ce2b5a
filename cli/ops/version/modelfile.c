/* modelfile.c - an Ollama Modelfile.
 *
 * Ollama's parser knows no escapes. A value in three quotes ends where a line ends with three
 * quotes; of other characters it drops those that do not print. So some texts cannot be written,
 * and are left out. */
#include "cli/ops/export.h"

#include <string.h>

#include "cli/ops/version/turns.h"
#include "store/base/mem.h"
#include "store/base/text/utf8.h"

typedef struct writing {
    fm_ops *c;
    const fm_modelfile_opts *o;
    fm_buf *out;
    fm_tokenizer *tokenizer;
    fm_chat_template *chat; /* NULL: the version has none */
    fm_json *extra;
} writing;

/* ---- values ---- */

/* Whether a character reaches Ollama: unsure ones do not. */
static bool prints(uint32_t c)
{
    static const uint32_t not_in[][2] = {
        {0, 8},           {11, 31},         {0x7f, 0xa0},     {0xad, 0xad},
        {0x600, 0x605},   {0x61c, 0x61c},   {0x1680, 0x1680}, {0x180e, 0x180e},
        {0x2000, 0x200f}, {0x2028, 0x202f}, {0x205f, 0x206f}, {0x3000, 0x3000},
        {0xd800, 0xf8ff}, {0xfeff, 0xfeff}, {0xfff0, 0xfffb}, {0xe0000, 0x10ffff}};

    for (size_t i = 0; i < FM_ARRAY_LEN(not_in); i++)
        if (c >= not_in[i][0] && c <= not_in[i][1])
            return false;
    return true;
}

/* Whether the parser gives the text back as it is. */
static bool can_be_written(const char *text)
{
    const size_t n = strlen(text);
    uint32_t c = 0;

    if (fm_utf8_valid((const uint8_t *)text, n) != n || strstr(text, "\"\"\""))
        return false;
    for (size_t at = 0; at < n;) {
        at += fm_utf8_next((const uint8_t *)text + at, &c);
        if (!prints(c))
            return false;
    }
    return true;
}

/* A value in one pair of quotes ends with its line, and must not begin with a quote. */
static void put(const writing *w, const char *command, const char *text)
{
    const char *quotes = strpbrk(text, "\n\"") ? "\"\"\"" : "\"";
    fm_buf_printf(w->out, "%s %s%s%s\n", command, quotes, text, quotes);
}

/* A comment of one line, whatever the text holds. */
static void put_comment(const writing *w, const char *what, const char *text)
{
    fm_buf_printf(w->out, "# %s", what);
    for (; *text; text++)
        fm_buf_char(w->out, (unsigned char)*text < 0x20 ? ' ' : *text);
    fm_buf_char(w->out, '\n');
}

static fm_status put_file(const writing *w, const char *command, const char *name)
{
    char *path = fm_asprintf("./%s", name);
    fm_status rc = path ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && (!can_be_written(name) || strpbrk(name, "\r\n\"")))
        rc = fm_fail(FM_EUNSUPPORTED,
                     "a Modelfile cannot name the file '%s'; choose a name of plain characters",
                     name);
    if (rc == FM_OK)
        fm_buf_printf(w->out, strchr(name, ' ') ? "%s \"%s\"\n" : "%s %s\n", command, path);
    fm_free(path);
    return rc;
}

/* ---- the chat ---- */

/* The tokenizer's first token comes before the prompt in Ollama too, so the text has it not. */
static fm_status drop_bos(const writing *w, char *text)
{
    fm_ids ids = {NULL, 0, 0};
    const int32_t bos = fm_tokenizer_bos(w->tokenizer);
    fm_status rc = fm_tokenizer_encode(w->tokenizer, fm_span_str(""), true, &ids);

    if (rc == FM_OK && text && bos >= 0 && ids.count > 0 && ids.id[0] == bos) {
        const fm_span s = fm_tokenizer_token_text(w->tokenizer, bos);
        if (s.len > 0 && strncmp(text, (const char *)s.data, s.len) == 0)
            memmove(text, text + s.len, strlen(text + s.len) + 1);
    }
    fm_ids_release(&ids);
    return rc;
}

#define MORE "{{ if gt (len (slice $.Messages $i)) 1 }}" /* it is not the last message */

static void add_template(fm_buf *out, const fmo_turns *t)
{
    if (t->system)
        fm_buf_printf(out, "{{ if .System }}%s{{ .System }}%s{{ else }}%s{{ end }}", t->system,
                      t->after_system, t->first);
    else
        fm_buf_str(out, t->first);
    fm_buf_str(out, "{{ range $i, $m := .Messages }}{{ if eq $m.Role \"user\" }}{{ $m.Content }}");
    if (strcmp(t->question, t->prompt) == 0)
        fm_buf_str(out, t->prompt);
    else
        fm_buf_printf(out, MORE "%s{{ else }}%s{{ end }}", t->question, t->prompt);
    fm_buf_printf(out,
                  "{{ else if eq $m.Role \"assistant\" }}{{ $m.Content }}" MORE
                  "%s{{ end }}{{ end }}{{ end }}",
                  t->answer);
}

/* "{{" begins an action; a "{" may stand in front of one of ours. */
static bool has_brace(const fmo_turns *t)
{
    const char *const all[] = {t->first,  t->question, t->prompt,
                               t->answer, t->system,   t->after_system};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        if (all[i] && strchr(all[i], '{'))
            return true;
    return false;
}

static fm_status put_turns(writing *w, const fmo_turns *t)
{
    fm_buf text;

    fm_buf_init(&text, 0);
    add_template(&text, t);
    fm_status rc = fm_buf_ok(&text);
    if (rc == FM_OK && !has_brace(t) && can_be_written(fm_buf_cstr(&text)))
        put(w, "TEMPLATE", fm_buf_cstr(&text));
    else if (rc == FM_OK)
        put_comment(w, "No TEMPLATE: ", "its text holds what a Modelfile cannot");
    if (rc == FM_OK && t->default_system && can_be_written(t->default_system))
        put(w, "SYSTEM", t->default_system);
    else if (rc == FM_OK && t->default_system)
        put_comment(w, "No SYSTEM: ", "the default's text holds what a Modelfile cannot");
    fm_buf_release(&text);
    return rc;
}

static fm_status put_chat(writing *w)
{
    fmo_turns t = {.first = NULL};
    fm_status rc = fmo_chat_open(w->c, w->o->tree, w->tokenizer, &w->chat);

    FM_THEN(rc, fm_chat_extra_new(&w->extra, w->tokenizer));
    if (rc == FM_OK && !w->chat)
        rc = fm_fail(FM_EUNSUPPORTED, "the version has no chat template");
    FM_THEN(rc, fmo_turns_of(&t, w->chat, w->extra));
    FM_THEN(rc, drop_bos(w, t.first));
    FM_THEN(rc, drop_bos(w, t.system));
    FM_THEN(rc, put_turns(w, &t));
    fmo_turns_release(&t);
    if (rc != FM_EUNSUPPORTED && rc != FM_EINVAL)
        return rc; /* FM_EINVAL: no syntax of a template */
    put_comment(w,
                "No TEMPLATE, so Ollama takes what it knows for the GGUF's own: ", fm_error_text());
    fm_error_clear();
    return FM_OK;
}

/* ---- parameters ---- */

static void put_stop(const writing *w, int32_t id)
{
    const fm_span s = fm_tokenizer_token_text(w->tokenizer, id);
    char text[256];

    if (s.len == 0 || s.len >= sizeof text || memchr(s.data, 0, s.len))
        return;
    memcpy(text, s.data, s.len);
    text[s.len] = '\0';
    if (can_be_written(text))
        put(w, "PARAMETER stop", text);
    else
        put_comment(w, "No stop for a token that a Modelfile cannot hold: ", text);
}

static fm_status put_parameters(const writing *w)
{
    const fm_provider p = fm_store_provider(fm_repo_store(w->c->repo));
    const int32_t eos = fm_tokenizer_eos(w->tokenizer);
    bool named = false;
    fm_arch arch;
    FM_TRY(fm_arch_of_tree(&arch, w->o->tree, &p, w->o->what));

    for (size_t i = 0; i < arch.eos_count; i++) {
        put_stop(w, arch.eos[i]);
        named = named || arch.eos[i] == eos;
    }
    if (!named && eos >= 0)
        put_stop(w, eos);
    fm_buf_printf(w->out, "PARAMETER num_ctx %u\n", (unsigned)arch.max_positions);
    return FM_OK;
}

static fm_status put_files(const writing *w)
{
    size_t begin, end, adapters = 0;
    FM_TRY(put_file(w, "FROM", w->o->model));

    if (!w->o->adapter)
        return FM_OK;
    fm_tree_range(w->o->tree, "adapters/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const char *name = strrchr(fm_tree_at(w->o->tree, i)->path, '/');
        adapters += name && strcmp(name, "/adapter_config.json") == 0;
    }
    return adapters == 1 ? put_file(w, "ADAPTER", w->o->adapter)
                         : fm_fail(FM_EUNSUPPORTED,
                                   "%s: has %zu adapters, and a Modelfile names one; export with "
                                   "--format gguf, which merges",
                                   w->o->what, adapters);
}

fm_status fm_ops_modelfile(fm_ops *c, const fm_modelfile_opts *opts, fm_buf *out)
{
    writing w = {.c = c, .o = opts, .out = out};
    fm_status rc = fm_ops_open_tokenizer(c, opts->tree, opts->what, &w.tokenizer);

    put_comment(&w, "Written by fmstore of ", opts->what);
    FM_THEN(rc, put_files(&w));
    FM_THEN(rc, put_chat(&w));
    FM_THEN(rc, put_parameters(&w));
    FM_THEN(rc, fm_buf_ok(out));
    fm_json_free(w.extra);
    fm_chat_template_close(w.chat);
    fm_tokenizer_close(w.tokenizer);
    return rc;
}
