/* fsck.c - fmstore fsck: checks every byte, pointer and ref; lists what damage affects; repairs
 * it. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/remote.h"
#include "cli/ops/version/fsck_version.h"

enum { PLACES_SHOWN = 200 };

typedef struct fsck_run {
    bool quick, rebuild, json;
    uint64_t oldest; /* percent of all bytes to decode; 0: all */
    const char *repair;
    fm_json *faults, *places, *absent; /* --json */
    uint64_t place_count;
    fm_repair_report repaired;
    bool set_aside;
    fmo_fsck_versions versions;
} fsck_run;

/* Paths and names of a stranger's tree are in the text. */
static void print_line(const char *what, const char *text)
{
    fputs(what, stdout);
    out_line(text, strlen(text));
}

static void print_fault(void *ctx, const char *text)
{
    fsck_run *s = ctx;
    if (s->faults)
        fm_ignore(fm_json_push(s->faults, fm_json_new_str(text)), "counted in the report as well");
    else
        print_line("fault: ", text);
}

static void print_absent(void *ctx, const char *text)
{
    fsck_run *s = ctx;
    if (s->absent)
        fm_ignore(fm_json_push(s->absent, fm_json_new_str(text)), "no fault");
    else
        print_line("absent: ", text);
}

static void ignore_fault(void *ctx, const char *text)
{
    (void)ctx;
    (void)text;
}

static fm_status check_version(void *ctx, const fm_version *v, const fm_tree *tree)
{
    fsck_run *s = ctx;
    return fmo_fsck_version(&s->versions, v, tree);
}

static fm_status print_place(void *ctx, const char *rev, const char *path, const fm_entry *e)
{
    fsck_run *s = ctx;
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    fm_digest_hex(&e->id, hex);
    s->place_count++;
    if (s->places) {
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "version", fm_json_new_str(rev));
        fm_json_put(&rc, o, "path", fm_json_new_str(path));
        fm_json_put(&rc, o, "id", fm_json_new_str(hex));
        fm_json_push_to(&rc, s->places, o);
    } else if (s->place_count <= PLACES_SHOWN) {
        printf("damaged: %s:%s  sha256:%.16s\n", out_text(rev, 200), out_text(path, 300), hex);
    }
    return rc;
}

static fm_status print_repair(const fsck_run *s)
{
    const fm_repair_report *r = &s->repaired;
    if (r->packs)
        printf("repaired: %llu packs from their own records\n", (unsigned long long)r->packs);
    printf("repaired: %llu of %llu objects, %llu git objects, from %s%s\n",
           (unsigned long long)r->objects, (unsigned long long)r->wanted,
           (unsigned long long)r->git_objects, s->repair,
           s->set_aside ? "; damaged packs are in quarantine/" : "");
    return FM_OK;
}

static fm_status print_report(const fm_fsck_report *r, const fsck_run *s)
{
    if (!s->json) {
        if (s->place_count > PLACES_SHOWN)
            printf("damaged: and %llu more\n", (unsigned long long)s->place_count - PLACES_SHOWN);
        printf("%llu packs, %llu objects, ", (unsigned long long)r->packs,
               (unsigned long long)r->objects);
        printf(s->quick ? "structure only" : "%s verified", out_bytes(r->bytes_verified));
        puts(r->faults || s->place_count ? ": NOT CLEAN" : ": clean");
        return FM_OK;
    }
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "packs", fm_json_new_int((int64_t)r->packs));
    fm_json_put(&rc, o, "objects", fm_json_new_int((int64_t)r->objects));
    fm_json_put(&rc, o, "bytes_verified", fm_json_new_int((int64_t)r->bytes_verified));
    fm_json_put(&rc, o, "faults", fm_json_ref(s->faults));
    fm_json_put(&rc, o, "damaged", fm_json_ref(s->places));
    fm_json_put(&rc, o, "absent", fm_json_ref(s->absent));
    if (s->repair) {
        fm_json_put(&rc, o, "objects_wanted", fm_json_new_int((int64_t)s->repaired.wanted));
        fm_json_put(&rc, o, "objects_repaired", fm_json_new_int((int64_t)s->repaired.objects));
        fm_json_put(&rc, o, "packs_repaired", fm_json_new_int((int64_t)s->repaired.packs));
        fm_json_put(&rc, o, "git_objects_repaired",
                    fm_json_new_int((int64_t)s->repaired.git_objects));
    }
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

/* Finds damaged objects and copies sound ones; if faults remain, moves damaged packs to quarantine,
 * which gc does only if every reached object is sound. The caller's fsck then reports what is
 * left. */
static fm_status repair(cli *c, fsck_run *s)
{
    fm_fsck_report before, after;
    fm_status rc = fm_repo_fsck(c->repo, true, &before, ignore_fault, NULL);
    FM_THEN(rc, fm_ops_repair(c, s->repair, &s->repaired));
    FM_THEN(rc, fm_repo_fsck(c->repo, true, &after, ignore_fault, NULL));
    if (rc != FM_OK || after.faults == 0)
        return rc;
    fm_gc_opts opts = fm_gc_defaults();
    fm_gc_report report;
    opts.quarantine = true;
    opts.prune = opts.reflog = opts.checkpoints = "never";
    fm_store_lease_end(fm_repo_store(c->repo)); /* taken by the repair; gc would wait for it */
    rc = fm_repo_gc(c->repo, &opts, &report);
    s->set_aside = rc == FM_OK;
    fm_gc_report_release(&report);
    if (rc == FM_ECORRUPT) { /* an object is still lost: the report names it */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static fm_status look(cli *c, fsck_run *s, fm_fsck_report *report)
{
    const fm_fsck_opts opts = {.full = !s->quick && !s->oldest,
                               .share = (unsigned)s->oldest,
                               .version = check_version,
                               .fault = print_fault,
                               .absent = print_absent,
                               .ctx = s};
    s->versions = (fmo_fsck_versions){.c = c};
    fm_status rc = fm_map_new(&s->versions.suites);
    FM_THEN(rc, fm_repo_fsck_as(c->repo, &opts, report));
    fm_map_free(s->versions.suites);
    return rc;
}

static fm_status check(cli *c, fsck_run *s, fm_fsck_report *report)
{
    FM_TRY(fm_ops_open(c));
    if (s->json && (!(s->faults = fm_json_new_array()) || !(s->places = fm_json_new_array()) ||
                    !(s->absent = fm_json_new_array())))
        FM_TRY(FM_ENOMEM);
    if (s->rebuild)
        FM_TRY(fm_repo_rebuild_index(c->repo));
    if (s->repair)
        FM_TRY(repair(c, s));
    if (s->repair && !s->json)
        FM_TRY(print_repair(s));
    FM_TRY(look(c, s, report));
    if (report->faults)
        FM_TRY(fm_repo_damage(c->repo, print_place, s));
    return print_report(report, s);
}

int cmd_fsck(cli *c, int argc, char **argv)
{
    size_t n;
    fm_fsck_report report = {0};
    fsck_run s = {0};
    const opt_spec table[] = {
        {0, "quick", OPT_FLAG, NULL, "structure only; do not decode and hash every object",
         &s.quick},
        {0, "verify-oldest", OPT_UINT, "N",
         "decode N percent of the bytes: the packs that were longest not decoded", &s.oldest},
        {0, "rebuild-index", OPT_FLAG, NULL, "make the indexes anew from packs and git first",
         &s.rebuild},
        {0, "repair", OPT_STR, "FROM",
         "mend packs from their own records, and take sound copies of what is damaged or missing "
         "from another repository (a remote, a URL or a path), or from the file or folder that was "
         "imported; FROM may be this "
         "repository itself, where the first is enough",
         &s.repair},
        {0, "json", OPT_FLAG, NULL, "as JSON", &s.json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, NULL, 0, 0, &n);
    if (code != CLI_GO_ON)
        return code;
    if (s.oldest > 100 || (s.oldest && (s.quick || s.repair)))
        return cli_usage_error(c,
                               "--verify-oldest wants 1 to 100, and neither --quick nor --repair");
    fm_status rc = check(c, &s, &report);
    fm_json_free(s.faults);
    fm_json_free(s.places);
    fm_json_free(s.absent);
    if (rc == FM_OK && (report.faults || s.place_count)) {
        fm_error_clear();
        rc = FM_EREFUSED;
    }
    return cli_exit(rc);
}
