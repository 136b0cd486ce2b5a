/* gc_words.c - runs the collector, and writes its report as text and JSON. */
#include "cli/cmd/gc_words.h"

#include <string.h>

typedef unsigned long long ull;

static void line(const char *what, uint64_t objects, uint64_t bytes, const char *why)
{
    if (objects)
        printf("%-12s %llu objects, %s%s\n", what, (ull)objects, out_bytes(bytes), why);
}

static void print_packs(const fm_gc_report *r)
{
    printf("%-12s %llu -> %llu, %s -> %s\n", "packs", (ull)r->packs_before, (ull)r->packs_after,
           out_bytes(r->pack_bytes_before), out_bytes(r->pack_bytes_after));
}

static void print_rest(const fm_gc_report *r)
{
    if (r->git_new || r->git_gone)
        printf("%-12s %llu condemned, %llu deleted\n", "git objects", (ull)r->git_new,
               (ull)r->git_gone);
    if (r->reflog_entries)
        printf("%-12s %llu entries dropped\n", "reflogs", (ull)r->reflog_entries);
    if (r->no_room)
        printf("%-12s packs that must be written anew first are as they were: run gc again\n",
               "no room");
    if (r->bad_objects)
        printf("%-12s %llu objects do not decode; their packs were left alone: run fsck\n",
               "damaged", (ull)r->bad_objects);
}

static void print_trainings(const fm_gc_report *r, bool dry_run)
{
    for (size_t i = 0; i < r->trainings; i++) {
        const fm_gc_training *t = &r->training[i];
        printf("%-12s %s: %llu state%s, %s%s\n", "training", out_text(t->subject, 100),
               (ull)t->states, t->states == 1 ? "" : "s", out_bytes(t->bytes),
               dry_run ? ", would be dropped" : ", dropped");
    }
}

static const char *short_name(const char *name)
{
    static const char *const head[] = {"refs/heads/", "refs/"};
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        if (strncmp(name, head[i], strlen(head[i])) == 0)
            return name + strlen(head[i]);
    return name;
}

static fm_status print_roots(const fm_gc_report *r)
{
    out_table *t = out_table_new();
    if (!t)
        return FM_ENOMEM;
    puts("only reached by");
    for (size_t i = 0; i < r->roots; i++) {
        const fm_gc_root *k = &r->root[i];
        if (!k->objects)
            continue;
        out_cell(t, "%s", out_text(short_name(k->name), 60));
        out_cell_right(t, "%llu objects", (ull)k->objects);
        out_cell_right(t, "%s", out_bytes(k->bytes));
        out_end_row(t);
    }
    out_cell(t, "several of them");
    out_cell_right(t, "%llu objects", (ull)r->shared_objects);
    out_cell_right(t, "%s", out_bytes(r->shared_bytes));
    out_end_row(t);
    out_table_print(t, stdout, "  ");
    return FM_OK;
}

fm_status gc_print(const fm_gc_report *r, bool dry_run)
{
    printf("%-12s %llu versions, %llu objects, %s\n", "reached", (ull)r->versions,
           (ull)r->live_objects, out_bytes(r->live_bytes));
    line(dry_run ? "unreached" : "condemned", r->new_objects, r->new_bytes,
         dry_run ? ", would be condemned" : " (new)");
    line("waiting", r->waiting_objects, r->waiting_bytes,
         " until their grace is over (gc.pruneExpire)");
    line("held", r->held_objects, r->held_bytes,
         " that a running import or derivation may be using: run gc again when it has ended");
    line("stuck", r->stuck_objects, r->stuck_bytes,
         " in packs that are mostly reached: fmstore repack --all frees them");
    line(dry_run ? "would go" : "deleted", r->gone_objects, r->gone_bytes, "");
    print_trainings(r, dry_run);
    print_rest(r);
    print_packs(r);
    return dry_run ? print_roots(r) : FM_OK;
}

fm_status repack_print(const fm_gc_report *r, bool dry_run)
{
    if (r->packs_written || r->recoded_objects)
        printf("%-12s %llu packs, %llu objects coded anew\n", "written", (ull)r->packs_written,
               (ull)r->recoded_objects);
    line(dry_run ? "would go" : "deleted", r->gone_objects, r->gone_bytes, "");
    print_rest(r);
    print_packs(r);
    return FM_OK;
}

static void set_int(fm_status *rc, fm_json *o, const char *key, uint64_t v)
{
    fm_json_put(rc, o, key, fm_json_new_int((int64_t)v));
}

static void set_pair(fm_status *rc, fm_json *o, const char *key, uint64_t objects, uint64_t bytes)
{
    fm_json *p = fm_json_new_object();
    set_int(rc, p, "objects", objects);
    set_int(rc, p, "bytes", bytes);
    fm_json_put(rc, o, key, p);
}

fm_status gc_json(const fm_gc_report *r, bool dry_run)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *roots = fm_json_new_array();
    fm_json_put(&rc, o, "dry_run", fm_json_new_bool(dry_run));
    set_int(&rc, o, "versions", r->versions);
    set_pair(&rc, o, "all", r->objects, r->bytes);
    set_pair(&rc, o, "reached", r->live_objects, r->live_bytes);
    set_pair(&rc, o, "condemned", r->new_objects, r->new_bytes);
    set_pair(&rc, o, "waiting", r->waiting_objects, r->waiting_bytes);
    set_pair(&rc, o, "held", r->held_objects, r->held_bytes);
    set_pair(&rc, o, "stuck", r->stuck_objects, r->stuck_bytes);
    set_pair(&rc, o, "deleted", r->gone_objects, r->gone_bytes);
    set_int(&rc, o, "packs_before", r->packs_before);
    set_int(&rc, o, "packs_after", r->packs_after);
    set_int(&rc, o, "pack_bytes_before", r->pack_bytes_before);
    set_int(&rc, o, "pack_bytes_after", r->pack_bytes_after);
    set_int(&rc, o, "packs_written", r->packs_written);
    set_int(&rc, o, "objects_recoded", r->recoded_objects);
    set_int(&rc, o, "objects_damaged", r->bad_objects);
    set_int(&rc, o, "git_condemned", r->git_new);
    set_int(&rc, o, "git_deleted", r->git_gone);
    set_int(&rc, o, "reflog_entries_dropped", r->reflog_entries);
    set_int(&rc, o, "writers", r->writers);
    fm_json_put(&rc, o, "no_room", fm_json_new_bool(r->no_room));
    for (size_t i = 0; i < r->roots; i++) {
        fm_json *k = fm_json_new_object();
        fm_json_put(&rc, k, "name", fm_json_new_str(r->root[i].name));
        set_int(&rc, k, "objects", r->root[i].objects);
        set_int(&rc, k, "bytes", r->root[i].bytes);
        fm_json_push_to(&rc, roots, k);
    }
    fm_json *trainings = fm_json_new_array();
    for (size_t i = 0; i < r->trainings; i++) {
        fm_json *t = fm_json_new_object();
        fm_json_put(&rc, t, "last_state", fm_json_new_str(r->training[i].subject));
        set_int(&rc, t, "states", r->training[i].states);
        set_int(&rc, t, "bytes", r->training[i].bytes);
        fm_json_push_to(&rc, trainings, t);
    }
    fm_json_put(&rc, o, "trainings_dropped", trainings);
    set_pair(&rc, o, "shared", r->shared_objects, r->shared_bytes);
    fm_json_put(&rc, o, "only_reached_by", roots);
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static bool show_progress(void *ctx, uint64_t done, uint64_t total)
{
    out_progress("%s %s of %s", (const char *)ctx, out_bytes(done), out_bytes(total));
    return cli_interrupted != 0;
}

int gc_run(cli *c, fm_gc_opts *opts, const char *doing, bool json,
           fm_status (*print)(const fm_gc_report *r, bool dry_run))
{
    fm_gc_report report;
    cli_catch_interrupts(false);
    opts->progress = show_progress;
    opts->ctx = (void *)(uintptr_t)doing;
    fm_status rc = fm_ops_open(c);
    FM_THEN(rc, fm_repo_gc(c->repo, opts, &report));
    out_progress_end();
    if (rc != FM_OK)
        return cli_exit(rc);
    rc = json ? gc_json(&report, opts->dry_run) : print(&report, opts->dry_run);
    fm_gc_report_release(&report);
    return cli_exit(rc);
}
