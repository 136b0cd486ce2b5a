/* import.c - fmstore import: makes a version of a foreign model; its suites run as gates. */
#include "cli/commands.h"
#include "cli/ops/import.h"

int cmd_import(cli *c, int argc, char **argv)
{
    fm_import_opts o = {0};
    fm_import_result r;
    size_t n;
    const opt_spec table[] = {
        {0, "as", OPT_STR, "NAME", "branch to make", &o.name},
        {0, "parent", OPT_STR, "REV", "the version that it was adapted from", &o.parent},
        {0, "kind", OPT_STR, "KIND", "edge kind: import, finetune, lora, quantize, ...", &o.kind},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &o.suites},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &o.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &o.message},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &o.path, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (!o.name)
        return cli_usage_error(c, "--as NAME is missing: what should the branch be called?");
    cli_catch_interrupts(true);
    fm_status rc = fm_ops_import(c, &o, &r);
    if (rc == FM_OK || rc == FM_EREFUSED)
        printf("  %s in, %s stored (%llu objects new, %llu known)\n", out_bytes(r.file_bytes),
               out_bytes(r.stats.bytes_stored), (unsigned long long)r.stats.objects_new,
               (unsigned long long)r.stats.objects_known);
    return cli_exit(rc);
}
