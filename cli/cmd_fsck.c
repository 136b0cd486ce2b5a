/* cmd_fsck.c - fmstore fsck: every byte, every pointer, every ref. */
#include "cli/commands.h"

typedef struct fsck_state {
    fm_json *faults; /* --json */
} fsck_state;

static void print_fault(void *ctx, const char *text)
{
    fsck_state *s = ctx;
    if (s->faults)
        fm_ignore(fm_json_push(s->faults, fm_json_new_str(text)), "counted in the report as well");
    else
        printf("fault: %s\n", text);
}

static fm_status print_report(const fm_fsck_report *r, bool quick, fm_json *faults)
{
    if (!faults) {
        printf("%llu packs, %llu objects, ", (unsigned long long)r->packs,
               (unsigned long long)r->objects);
        printf(quick ? "structure only" : "%s verified", out_bytes(r->bytes_verified));
        puts(r->faults ? ": NOT CLEAN" : ": clean");
        return FM_OK;
    }
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    out_set(&rc, o, "packs", fm_json_new_int((int64_t)r->packs));
    out_set(&rc, o, "objects", fm_json_new_int((int64_t)r->objects));
    out_set(&rc, o, "bytes_verified", fm_json_new_int((int64_t)r->bytes_verified));
    out_set(&rc, o, "faults", faults);
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

int cmd_fsck(cli *c, int argc, char **argv)
{
    bool quick = false, rebuild = false, json = false;
    size_t n;
    fm_fsck_report report = {0};
    fsck_state s = {0};
    const opt_spec table[] = {
        {0, "quick", OPT_FLAG, NULL, "structure only; do not decode and hash every object", &quick},
        {0, "rebuild-index", OPT_FLAG, NULL, "make the indexes anew from packs and git first",
         &rebuild},
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_status rc = cli_open(c);
    if (rc == FM_OK && json && !(s.faults = fm_json_new_array()))
        rc = FM_ENOMEM;
    if (rc == FM_OK && rebuild)
        rc = fm_repo_rebuild_index(c->repo);
    if (rc == FM_OK)
        rc = fm_repo_fsck(c->repo, !quick, &report, print_fault, &s);
    if (rc == FM_OK)
        rc = print_report(&report, quick, s.faults);
    else
        fm_json_free(s.faults);
    if (rc == FM_OK && report.faults) {
        fm_error_clear();
        rc = FM_EREFUSED;
    }
    return cli_exit(rc);
}
