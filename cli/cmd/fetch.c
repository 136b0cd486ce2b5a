/* fetch.c - fmstore fetch and fmstore pull: versions come from another repository. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/remote.h"
#include "cli/report/travel.h"

/* Brings tensors of one version. */
static fm_status fetch_version(cli *c, const char *rev, const char *const *pattern, size_t count)
{
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_travel t;
    fm_status rc = fm_ops_resolve(c, rev, &oid, &tree);
    FM_THEN(rc, fm_ops_fetch_tree(c, NULL, tree, pattern, count, &t));
    fm_tree_free(tree);
    if (rc == FM_OK)
        report_travel(&t, false, false);
    return rc;
}

/* The first word is a version, not a remote, where names of tensors follow it, or where it names a
 * version and no remote. */
static fm_status is_version(cli *c, const char *word, bool *yes)
{
    fm_oid oid;
    bool remote = false;
    FM_TRY(fm_ops_remote_is(c, word, &remote));
    *yes = !remote && fm_rev_resolve(c->repo, &oid, word) == FM_OK;
    fm_error_clear();
    return FM_OK;
}

/* The place of "--", argc without one. */
static int dashes(int argc, char **argv)
{
    int i = 0;
    while (i < argc && strcmp(argv[i], "--") != 0)
        i++;
    return i;
}

typedef char ref_name[300];

/* "tag NAME" is refs/tags/NAME, as in git; such names are put into `made`, which has room for
 * all. */
static size_t take_tags(const char **args, size_t n, ref_name *made)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++, count++) {
        args[count] = args[i];
        if (i == 0 || i + 1 == n || strcmp(args[i], "tag") != 0)
            continue;
        snprintf(made[count], sizeof made[count], "refs/tags/%.280s", args[++i]);
        args[count] = made[count];
    }
    return count;
}

/* SRC:DST of git; where there is one, a branch is fetched as REMOTE/NAME. */
static bool has_colon(const char *const *args, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (strchr(args[i], ':'))
            return true;
    return false;
}

static int run(cli *c, int argc, char **argv,
               fm_status (*what)(fm_ops *c, const fm_fetch_opts *o, fm_travel *out))
{
    const char *args[FM_WORDS_MAX], *pattern[FM_WORDS_MAX];
    ref_name tag[FM_WORDS_MAX];
    const int end = dashes(argc, argv);
    fm_fetch_opts o = {0};
    fm_travel t;
    size_t n, patterns = 0;
    bool version = end < argc;
    const opt_spec table[] = {
        {'n', "dry-run", OPT_FLAG, NULL, "say what would travel, and which refs would move",
         &o.dry_run},
        {'p', "prune", OPT_FLAG, NULL, "forget branches that the remote has no more", &o.prune},
        {0, "lineage-only", OPT_FLAG, NULL, "versions without their tensors", &o.lineage_only},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, end, argv, table, args, 0, FM_WORDS_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    if (version && (n != 1 || what != fm_ops_fetch || argc - end > (int)FM_WORDS_MAX))
        return cli_usage_error(c, "one version stands before '--', and names of tensors after it");
    if (has_colon(args, n))
        return cli_usage_error(c, "a branch is fetched as REMOTE/NAME, so there is no SRC:DST; "
                                  "'fmstore branch DST REMOTE/SRC' makes a branch of it");
    for (int i = end + 1; i < argc; i++)
        pattern[patterns++] = argv[i];
    cli_catch_interrupts(true);
    fm_status rc = fm_ops_open(c);
    if (rc == FM_OK && !version && n == 1 && what == fm_ops_fetch)
        rc = is_version(c, args[0], &version);
    if (rc == FM_OK && version)
        return cli_exit(fetch_version(c, args[0], pattern, patterns));
    o.remote = n ? args[0] : NULL;
    o.name = args + 1;
    o.count = n ? take_tags(args, n, tag) - 1 : 0;
    FM_THEN(rc, what(c, &o, &t));
    if (rc == FM_OK || rc == FM_EREFUSED)
        report_travel(&t, o.dry_run, o.lineage_only);
    return cli_exit(rc);
}

int cmd_fetch(cli *c, int argc, char **argv)
{
    return run(c, argc, argv, fm_ops_fetch);
}

int cmd_pull(cli *c, int argc, char **argv)
{
    return run(c, argc, argv, fm_ops_pull);
}
