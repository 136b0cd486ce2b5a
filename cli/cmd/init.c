/* init.c - fmstore init: makes an empty repository, or an empty bucket. */
#include "cli/commands.h"
#include "remote/remote.h"
#include "store/base/os/io.h"

int cmd_init(cli *c, int argc, char **argv)
{
    bool bare = false, bucket = false;
    const char *args[1] = {c->dir};
    size_t n;
    const opt_spec table[] = {
        {0, "bare", OPT_FLAG, NULL, "the folder is the repository itself, not DIR/.fmstore", &bare},
        {0, "bucket", OPT_FLAG, NULL, "a folder of packs to push to; no program need run there",
         &bucket},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (bare && bucket)
        return cli_usage_error(c, "--bare and --bucket exclude each other");
    fm_status rc = bucket ? fm_remote_make_bucket(args[0]) : fm_repo_init(args[0], bare);
    if (rc == FM_OK && bucket)
        printf("empty bucket in %s\n", args[0]);
    else if (rc == FM_OK)
        printf("empty fmstore repository in %s%s\n", args[0], bare ? "" : "/.fmstore");
    return cli_exit(rc);
}
