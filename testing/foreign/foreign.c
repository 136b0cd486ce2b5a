/* foreign.c - conversion of suites of other tools: the choice of the reader, the common frame, and
 * the check that the result is a suite. */
#include "testing/foreign/foreign.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

static const struct {
    const char *word;
    fm_status (*read)(fmv_foreign *f, fm_span text);
} readers[] = {
    {"promptfoo", fmv_foreign_promptfoo},
    {"lm-eval", fmv_foreign_lm_eval},
    {"checklist", fmv_foreign_checklist},
    {"csv", fmv_foreign_csv},
};

/* Finds the format: JSON has CheckList's tests, YAML `prompts` or `task`; else a table. */
static const char *told_by(fm_span text, const char *what)
{
    const char *dot = strrchr(what, '.');
    size_t at = 0;
    while (at < text.len && strchr(" \t\r\n", text.data[at]))
        at++;
    if (dot && (strcmp(dot, ".csv") == 0 || strcmp(dot, ".tsv") == 0))
        return "csv";
    if (at < text.len && (text.data[at] == '{' || text.data[at] == '['))
        return "checklist";
    for (size_t i = 0; i < text.len; i++)
        if (i == 0 || text.data[i - 1] == '\n') {
            if (text.len - i >= 8 && memcmp(text.data + i, "prompts:", 8) == 0)
                return "promptfoo";
            if (text.len - i >= 7 && memcmp(text.data + i, "doc_to_", 7) == 0)
                return "lm-eval";
        }
    return NULL;
}

/* Turns a file's name into the name of a suite. */
static void suite_name(char out[65], const char *from)
{
    size_t n = 0;
    for (; *from && n < 64; from++) {
        bool ok = (*from >= 'a' && *from <= 'z') || (*from >= 'A' && *from <= 'Z') ||
                  (*from >= '0' && *from <= '9') || *from == '_' || *from == '-';
        if (ok || (n && out[n - 1] != '-'))
            out[n++] = ok ? *from : '-';
    }
    while (n && out[n - 1] == '-')
        n--;
    out[n] = 0;
    if (!n)
        snprintf(out, 65, "suite");
}

static fm_status write_suite(fm_buf *out, const fmv_foreign *f)
{
    char name[65];
    const char *slash = strrchr(f->what, '/'), *file = slash ? slash + 1 : f->what;
    char *stem = fm_strndup(file, strcspn(file, "."));
    fm_suite *check = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_json *doc = fm_json_new_object();
    fm_status rc = doc && stem ? FM_OK : FM_ENOMEM;
    suite_name(name, f->opts->suite ? f->opts->suite : f->name ? f->name : stem ? stem : "");
    fm_json_put(&rc, doc, "suite", fm_json_new_str(name));
    if (f->description)
        fm_json_put(&rc, doc, "description", fm_json_new_str(f->description));
    fm_json_put(&rc, doc, "cases", fm_json_ref(f->cases));
    FM_THEN(rc, fmv_yaml_write(&text, doc));
    if (rc == FM_OK) {
        rc = fm_suite_parse(&check, fm_buf_span(&text), f->what);
        fm_suite_free(check);
    }
    if (rc == FM_OK) {
        fm_buf_append(out, text.data, text.len);
        rc = fm_buf_ok(out);
    }
    fm_buf_release(&text);
    fm_json_free(doc);
    fm_free(stem);
    return rc;
}

fm_status fm_suite_convert(fm_buf *out, fm_span text, const char *what, const fm_foreign_opts *o)
{
    const char *from = o->from ? o->from : told_by(text, what);
    size_t k = 0;
    if (!from)
        return fm_fail(
            FM_EINVAL,
            "%s: cannot tell what it is; say --from promptfoo, lm-eval, checklist or csv", what);
    while (k < FM_ARRAY_LEN(readers) && strcmp(readers[k].word, from) != 0)
        k++;
    if (k == FM_ARRAY_LEN(readers))
        return fm_fail(FM_EINVAL, "'%.40s' is no format: promptfoo, lm-eval, checklist, csv", from);
    if (text.len > FMV_SUITE_BYTES_MAX)
        return fm_fail(FM_ELIMIT, "%s: has more than %zu bytes", what, FMV_SUITE_BYTES_MAX);
    fmv_foreign f = {.what = what,
                     .opts = o,
                     .key = o->chat ? "chat" : "prompt",
                     .bytes = FMV_SUITE_BYTES_MAX,
                     .cases = fm_json_new_array()};
    fm_status rc = f.cases ? fm_map_new(&f.names) : FM_ENOMEM;
    FM_THEN(rc, readers[k].read(&f, text));
    if (rc == FM_OK && fm_json_count(f.cases) == 0)
        rc = fm_fail(FM_EINVAL, "%s: has no test", what);
    FM_THEN(rc, write_suite(out, &f));
    fm_map_free(f.names);
    fm_json_free(f.cases);
    fm_free(f.name);
    fm_free(f.description);
    return rc;
}
