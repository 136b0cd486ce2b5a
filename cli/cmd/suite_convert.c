/* suite_convert.c - fmstore suite convert: prints a suite of another tool as a suite of fmstore. It
 * needs no repository. */
#include <string.h>

#include "cli/commands.h"
#include "cli/cmd/suite_convert.h"
#include "store/base/os/io.h"

#define FILE_MAX ((size_t)64 << 20)

static fm_status convert(const char *path, fm_foreign_opts *o)
{
    fm_buf text, data, out;
    fm_buf_init(&text, 0);
    fm_buf_init(&data, 0);
    fm_buf_init(&out, 0);
    fm_status rc = fm_read_file(&text, path, FILE_MAX);
    if (rc == FM_OK && o->data_what)
        rc = fm_read_file(&data, o->data_what, FILE_MAX);
    o->data = fm_buf_span(&data);
    FM_THEN(rc, fm_suite_convert(&out, fm_buf_span(&text), path, o));
    if (rc == FM_OK)
        fwrite(fm_buf_cstr(&out), 1, out.len, stdout);
    fm_buf_release(&text);
    fm_buf_release(&data);
    fm_buf_release(&out);
    return rc;
}

int suite_convert(cli *c, int argc, char **argv)
{
    fm_foreign_opts o = {0};
    const char *args[2];
    size_t n;
    const opt_spec table[] = {
        {0, "from", OPT_STR, "FORMAT",
         "promptfoo, lm-eval, checklist or csv; else told by the file", &o.from},
        {0, "data", OPT_STR, "FILE", "lm-eval: the examples, JSON lines", &o.data_what},
        {0, "suite", OPT_STR, "NAME", "the suite's name; else the file's own", &o.suite},
        {0, "chat", OPT_FLAG, NULL, "ask through the chat template, not as bare prompts", &o.chat},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, 2, &n);
    return code == CLI_GO_ON ? cli_exit(convert(args[1], &o)) : code;
}
