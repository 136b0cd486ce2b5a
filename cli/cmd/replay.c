/* replay.c - fmstore replay: trains a version again and reports whether it is the same. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/replay.h"

#define NAMED 20u /* most differing paths that are printed */

static void print_replayed(const fm_json *v)
{
    const fm_json *paths = fm_json_get(v, "paths");
    const bool same = fm_json_bool(fm_json_get(v, "equal"), false);
    const size_t differ = (size_t)fm_json_int(fm_json_get(v, "differ"), 0);
    printf("%s%s%s  %s: %lld tensors, %lld steps, %.1f s\n", out_c(same ? OUT_GREEN : OUT_RED),
           same ? "equal" : "differs", out_c(OUT_PLAIN), fm_json_cstr(fm_json_get(v, "rev"), ""),
           (long long)fm_json_int(fm_json_get(v, "tensors"), 0),
           (long long)fm_json_int(fm_json_get(v, "steps"), 0),
           fm_json_real(fm_json_get(v, "seconds"), 0));
    for (size_t i = 0; i < fm_json_count(paths) && i < NAMED; i++)
        printf("  %s\n", fm_json_cstr(fm_json_at(paths, i), ""));
    if (differ > NAMED)
        printf("  and %zu more\n", differ - NAMED);
    if (!fm_json_bool(fm_json_get(v, "log_equal"), true))
        printf("  train_log.json\n");
}

typedef struct told {
    fm_json *list; /* for --json; NULL: prints text */
    fm_status rc;
} told;

static void tell(void *ctx, const char *kind, const fm_json *v)
{
    told *t = ctx;
    if (strcmp(kind, "replayed") != 0)
        return;
    if (t->list)
        fm_json_push_to(&t->rc, t->list, fm_json_ref(v));
    else
        print_replayed(v);
}

int cmd_replay(cli *c, int argc, char **argv)
{
    bool json = false, chain = false, same;
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        {0, "chain", OPT_FLAG, NULL, "also all it stands on, up to an import", &chain},
        {0, "json", OPT_FLAG, NULL, "as a JSON array, one object a version", &json},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    told t = {.list = json ? fm_json_new_array() : NULL};
    fm_status rc = json && !t.list ? FM_ENOMEM : FM_OK;
    c->ui.ctx = &t;
    c->ui.result = tell;
    cli_catch_interrupts(true);
    FM_THEN(rc, fm_ops_replay(c, rev, chain, &same));
    FM_THEN(rc, t.rc);
    if (rc == FM_OK && json)
        rc = out_json(t.list);
    else
        fm_json_free(t.list);
    if (rc < 0)
        return cli_exit(rc);
    return same ? EXIT_YES : EXIT_NO;
}
