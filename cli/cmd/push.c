/* push.c - fmstore push: versions go to another repository. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/remote.h"
#include "cli/report/travel.h"

int cmd_push(cli *c, int argc, char **argv)
{
    const char *args[FM_WORDS_MAX];
    fm_push_opts o = {0};
    fm_travel t;
    size_t n;
    const opt_spec table[] = {
        {0, "all", OPT_FLAG, NULL, "all branches and tags", &o.all},
        {0, "force-with-lease", OPT_FLAG, NULL,
         "let a branch lose versions if it holds what was fetched last", &o.lease},
        {'n', "dry-run", OPT_FLAG, NULL, "say what would travel, and which refs would move",
         &o.dry_run},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, FM_WORDS_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    if (o.all && n > 1)
        return cli_usage_error(c, "--all stands in the place of names");
    cli_catch_interrupts(true);
    o.remote = n ? args[0] : NULL;
    o.spec = args + 1;
    o.count = n ? n - 1 : 0;
    fm_status rc = fm_ops_push(c, &o, &t);
    if (rc == FM_OK || rc == FM_EREFUSED)
        report_travel(&t, o.dry_run, false);
    return cli_exit(rc);
}
