/* cmd_gc.c - fmstore gc: one run of the collector, told in words or JSON. */
#include <string.h>

#include "cli/commands.h"
#include "cli/gc_words.h"

static bool show_progress(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    out_progress("decoding and copying %s of %s", out_bytes(done), out_bytes(total));
    return cli_interrupted != 0;
}

int cmd_gc(cli *c, int argc, char **argv)
{
    bool json = false;
    fm_gc_opts opts = fm_gc_defaults();
    fm_gc_report report;
    size_t n;
    const opt_spec table[] = {
        {'n', "dry-run", OPT_FLAG, NULL,
         "change nothing; say what would go and what keeps the rest", &opts.dry_run},
        {0, "prune", OPT_STR, "TIME",
         "delete what was found unreached before TIME: now, never, 3.days.ago, 2026-11-21 "
         "(config gc.pruneExpire, default 2.weeks.ago)",
         &opts.prune},
        {0, "reflog", OPT_STR, "TIME",
         "drop reflog entries from before TIME (config gc.reflogExpire, default 90.days.ago)",
         &opts.reflog},
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    cli_catch_interrupts();
    opts.progress = show_progress;
    fm_status rc = cli_open(c);
    if (rc == FM_OK)
        rc = fm_repo_gc(c->repo, &opts, &report);
    out_progress_end();
    if (rc != FM_OK)
        return cli_exit(rc);
    rc = json ? gc_json(&report, opts.dry_run) : gc_print(&report, opts.dry_run);
    fm_gc_report_release(&report);
    return cli_exit(rc);
}
