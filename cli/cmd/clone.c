/* clone.c - fmstore clone: a new repository with the branches of another one. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/remote.h"
#include "cli/report/travel.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define NOT_GIVEN UINT64_MAX

/* The last name of the URL, without the endings that bare repositories have. */
static char *folder_of(const char *url)
{
    static const char *const ending[] = {"/.fmstore", ".fmstore", ".git"};
    size_t end = strlen(url);
    while (end > 1 && url[end - 1] == '/')
        end--;
    for (size_t i = 0; i < FM_ARRAY_LEN(ending); i++) {
        const size_t n = strlen(ending[i]);
        if (end > n && strncmp(url + end - n, ending[i], n) == 0 && url[end - n - 1] != '/') {
            end -= n;
            break;
        }
    }
    size_t from = end;
    while (from > 0 && url[from - 1] != '/' && url[from - 1] != ':')
        from--;
    return fm_strndup(url + from, end - from);
}

/* given: by the user, not made of the URL. */
static fm_status check_folder(const char *dir, bool given)
{
    fm_names names = {NULL, 0};
    if (!*dir || (!given && (strcmp(dir, ".") == 0 || strcmp(dir, "..") == 0)))
        return fm_fail(FM_EINVAL, "clone: the URL names no folder; give one after it");
    if (!fm_path_exists(dir))
        return FM_OK;
    fm_status rc = fm_list_dir(&names, dir);
    if (rc != FM_OK || names.count)
        rc = fm_fail(FM_EEXISTS, "clone: '%s' is there and not empty", dir);
    fm_names_release(&names);
    return rc;
}

int cmd_clone(cli *c, int argc, char **argv)
{
    fm_clone_opts o = {0};
    const char *args[2] = {NULL, NULL};
    fm_travel t;
    size_t n;
    uint64_t depth = NOT_GIVEN;
    const opt_spec table[] = {
        {0, "bare", OPT_FLAG, NULL, "the folder is the repository itself, not DIR/.fmstore",
         &o.bare},
        {'b', "branch", OPT_STR, "NAME", "this branch alone", &o.branch},
        {0, "packs", OPT_STR, "URL", "the bucket of the tensors, where URL is a git host's",
         &o.packs},
        {0, "lineage-only", OPT_FLAG, NULL,
         "versions without their tensors, which come when they are needed", &o.lineage_only},
        {0, "depth", OPT_UINT, "N",
         "all versions, with tensors of the newest N of each branch; others come when needed",
         &depth},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 1, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    const bool deep = depth != NOT_GIVEN;
    if (deep && (depth == 0 || depth > FM_DEPTH_MAX || o.lineage_only))
        return cli_usage_error(c,
                               "--depth wants 1 to %u, and goes without --lineage-only, "
                               "which brings no tensors",
                               FM_DEPTH_MAX);
    o.depth = deep ? (uint32_t)depth : 0;
    cli_catch_interrupts(true);
    char *named = n == 1 ? folder_of(args[0]) : fm_strdup(args[1]);
    fm_status rc = named ? check_folder(named, n == 2) : FM_ENOMEM;
    if (rc == FM_OK) {
        o.url = args[0];
        o.dir = named;
        fprintf(stderr, "cloning into %s\n", out_text(named, 300));
        rc = fm_ops_clone(c, &o, &t);
        if (rc == FM_OK)
            report_travel(&t, false, o.lineage_only);
    }
    code = cli_exit(rc);
    fm_ops_close(c); /* before its folder's name goes */
    fm_free(named);
    return code;
}
