/* gc.c - fmstore gc: one run of the collector, reported as text or JSON. */
#include <string.h>

#include "cli/commands.h"
#include "cli/cmd/gc_words.h"

int cmd_gc(cli *c, int argc, char **argv)
{
    bool json = false;
    fm_gc_opts opts = fm_gc_defaults();
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
        {0, "checkpoints", OPT_STR, "TIME",
         "drop states of trainings that do not run and had their last one before TIME, kept ones "
         "too "
         "(config gc.checkpointExpire, default 2.weeks.ago: but those of --keep-checkpoints)",
         &opts.checkpoints},
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    return gc_run(c, &opts, "decoding and copying", json, gc_print);
}
