/* log.c - fmstore log: versions, newest first, printed as they are read. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"

typedef struct log_state {
    cli *c;
    uint64_t left;
    bool oneline;
    fm_json *array; /* --json */
} log_state;

static void print_version(const fm_version *v)
{
    char hex[41];
    fm_oid_hex(&v->oid, hex);
    printf("%sversion %s%s\n", out_c(OUT_YELLOW), hex, out_c(OUT_PLAIN));
    printf("Kind:    %s\n", out_text(v->kind, 60));
    for (uint32_t i = 0; i < v->parent_count; i++)
        printf("Parent:  %s\n", fm_ops_short_oid(&v->parent[i]));
    printf("Author:  %s\nDate:    %s\n", out_text(v->author, 400), out_date(v->time));
    if (v->recipe)
        printf("Recipe:  %.16s\n", v->recipe);
    if (v->data)
        printf("Data:    %.16s\n", v->data);
    putchar('\n');
    for (const char *p = v->message; *p;) {
        size_t len = strcspn(p, "\n");
        fputs("    ", stdout);
        out_line(p, len);
        p += len + (p[len] == '\n');
    }
    putchar('\n');
}

static fm_status each(void *ctx, const fm_version *v)
{
    log_state *s = ctx;
    if (s->left == 0)
        return FM_ECANCELLED;
    s->left--;
    if (s->array)
        return fm_json_push(s->array, fmo_version_json(v));
    if (s->oneline)
        printf("%s%s%s %-9s %s\n", out_c(OUT_YELLOW), fm_ops_short_oid(&v->oid), out_c(OUT_PLAIN),
               out_text(v->kind, 60), out_text(v->subject, 500));
    else
        print_version(v);
    return FM_OK;
}

#define LOG_STARTS_MAX 64

int cmd_log(cli *c, int argc, char **argv)
{
    bool json = false;
    log_state s = {.c = c, .left = UINT64_MAX};
    const char *args[LOG_STARTS_MAX];
    fm_oid start[LOG_STARTS_MAX];
    size_t n;
    const opt_spec table[] = {
        {'n', "max-count", OPT_UINT, "N", "at most N versions", &s.left},
        {0, "oneline", OPT_FLAG, NULL, "one line a version", &s.oneline},
        {0, "json", OPT_FLAG, NULL, "as a JSON array", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, LOG_STARTS_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_status rc = fm_ops_open(c);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = fm_ops_resolve(c, args[i], &start[i], NULL);
    if (rc == FM_OK && json && !(s.array = fm_json_new_array()))
        rc = FM_ENOMEM;
    FM_THEN(rc, fm_log_walk(c->repo, n ? start : NULL, n, each, &s));
    if (rc == FM_OK && s.array)
        rc = out_json(s.array);
    else
        fm_json_free(s.array);
    return cli_exit(rc);
}
