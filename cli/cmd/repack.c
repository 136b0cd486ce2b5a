/* repack.c - fmstore repack: joins packs, shortens delta chains, codes objects anew. */
#include <string.h>

#include "cli/commands.h"
#include "cli/cmd/gc_words.h"

int cmd_repack(cli *c, int argc, char **argv)
{
    bool json = false;
    uint64_t depth = FM_GC_ANY_DEPTH, size_mib = 0;
    fm_gc_opts opts = fm_gc_defaults();
    size_t n;
    const opt_spec table[] = {
        {0, "all", OPT_FLAG, NULL, "every pack, not only the small ones", &opts.repack_all},
        {0, "depth", OPT_UINT, "N", "code again what needs more than N delta steps; 0: no deltas",
         &depth},
        {0, "slow", OPT_FLAG, NULL, "code again with the slow level; kept where it is smaller",
         &opts.slow},
        {0, "pack-size", OPT_UINT, "MIB", "begin a new pack after so many MiB (2048)", &size_mib},
        {'n', "dry-run", OPT_FLAG, NULL, "change nothing; say what would be done", &opts.dry_run},
        {0, "prune", OPT_STR, "TIME", "as for gc: what may be left out of the new packs",
         &opts.prune},
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    if (size_mib > 1u << 20)
        return cli_usage_error(c, "--pack-size is at most 1048576 MiB");
    opts.repack = true;
    opts.depth = (uint32_t)FM_MIN(depth, (uint64_t)FM_GC_ANY_DEPTH);
    opts.pack_bytes = size_mib << 20;
    opts.reflog = opts.checkpoints = "never";
    return gc_run(c, &opts, "repacking", json, repack_print);
}
