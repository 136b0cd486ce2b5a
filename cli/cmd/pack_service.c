/* pack_service.c - fmstore upload-pack and fmstore receive-pack: what fetch and push start at the
 * other end of ssh. They speak on standard input and output (remote/wire/message.h). */
#include <signal.h>
#include <unistd.h>

#include "cli/commands.h"
#include "remote/serve.h"

static fm_status serve(cli *c, const char *dir, bool write)
{
    bool yes;
    FM_TRY(fm_repo_is(dir, &yes));
    if (!yes)
        return fm_fail(FM_ENOTFOUND, "'%s' is no repository of fmstore on this machine", dir);
    c->dir = dir;
    FM_TRY(fm_ops_open(c));
    return fm_remote_serve(c->repo, write, STDIN_FILENO, STDOUT_FILENO);
}

static int run(cli *c, int argc, char **argv, bool write)
{
    const char *args[1];
    size_t n;
    const opt_spec table[] = {{0, NULL, OPT_FLAG, NULL, NULL, NULL}};
    int code = cli_parse(c, argc, argv, table, args, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    (void)signal(SIGPIPE, SIG_IGN); /* a client that left is an error of the write */
    return cli_exit(serve(c, args[0], write));
}

int cmd_upload_pack(cli *c, int argc, char **argv)
{
    return run(c, argc, argv, false);
}

int cmd_receive_pack(cli *c, int argc, char **argv)
{
    return run(c, argc, argv, true);
}
