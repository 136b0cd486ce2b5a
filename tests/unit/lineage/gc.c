/* gc over refs, reflogs, leases and time: what goes, what stays, what comes back. */
#include <stdlib.h>
#include <time.h>

#include "store/lease/doomed.h"
#include "store/lease/lease.h"
#include "tests/kit/lineage_kit.h"

static fm_gc_report collect(fm_repo *r, const char *prune, bool dry)
{
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    o.prune = prune;
    o.dry_run = dry;
    tk_ok(fm_repo_gc(r, &o, &report));
    return report;
}

/* gc by a handle of its own: a handle that has written holds a lease. */
static fm_gc_report collect_at(const char *dir, const char *prune)
{
    fm_repo *r;
    tk_ok(fm_repo_open(&r, dir));
    fm_gc_report report = collect(r, prune, false), figures = report;
    fm_gc_report_release(&report);
    fm_repo_close(r);
    return figures; /* its list is gone */
}

static bool has_version(const char *dir, const fm_oid *oid)
{
    fm_repo *r;
    fm_tree *tree = NULL;
    tk_ok(fm_repo_open(&r, dir));
    bool yes = fm_version_tree(r, &tree, oid) == FM_OK;
    for (size_t i = 0; yes && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        yes = e->kind == FM_ENTRY_FILE || fm_store_has(fm_repo_store(r), &e->id);
    }
    fm_tree_free(tree);
    fm_repo_close(r);
    return yes;
}

/* main and side, side deleted: its first tensor, commit and trees are garbage. */
static char *with_garbage(fm_oid *main_oid, fm_oid *side)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    *main_oid = kit_branch(r, "main", NULL, 0);
    *side = kit_branch(r, "side", main_oid, 1);
    tk_ok(fm_ref_delete(r, "refs/heads/side", side));
    fm_repo_close(r);
    return dir;
}

TEST(what_is_reached_stays)
{
    fm_oid a, b;
    char *dir;
    fm_repo *r = kit_repo(&dir);
    a = kit_branch(r, "main", NULL, 0);
    b = kit_branch(r, "side", &a, 1);
    tk_ok(fm_result_put(r, "0000000000000000000000000000000000000000000000000000000000000001",
                        fm_span_str("{}")));
    tk_ok(fm_result_flush(r));
    tk_ok(fm_note_add(r, &b, "a note"));
    fm_repo_close(r);
    fm_gc_report report = collect_at(dir, "now");
    assert_int_equal(report.new_objects, 0);
    assert_int_equal(report.gone_objects, 0);
    assert_int_equal(report.git_new, 0);
    assert_int_equal(report.versions, 4); /* two of models, one of results, one of notes */
    assert_true(has_version(dir, &a) && has_version(dir, &b));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

TEST(the_unreached_waits_and_then_goes)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    fm_gc_report report = collect_at(dir, NULL);
    assert_int_equal(report.new_objects, 1);
    assert_true(report.git_new > 0);
    assert_int_equal(report.gone_objects, 0);
    assert_true(has_version(dir, &b)); /* to a reader it is there as before */
    report = collect_at(dir, NULL);
    assert_int_equal(report.new_objects, 0);
    assert_int_equal(report.waiting_objects, 1);
    report = collect_at(dir, "never");
    assert_int_equal(report.waiting_objects, 1);
    report = collect_at(dir, "now");
    assert_int_equal(report.gone_objects, 1);
    assert_true(report.git_gone > 0);
    assert_false(has_version(dir, &b));
    assert_true(has_version(dir, &a));
    assert_int_equal(kit_faults(dir), 0);
    report = collect_at(dir, "now");
    assert_int_equal(report.new_objects + report.waiting_objects + report.gone_objects, 0);
    fm_free(dir);
}

TEST(a_dry_run_changes_nothing)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b), *condemned = fm_path_join(dir, "condemned");
    fm_repo *r;
    tk_ok(fm_repo_open(&r, dir));
    fm_gc_report report = collect(r, "now", true);
    assert_int_equal(report.new_objects, 1);
    assert_int_equal(report.gone_objects, 1);
    assert_int_equal(report.roots, 1);
    assert_string_equal(report.root[0].name, "refs/heads/main");
    assert_int_equal(report.root[0].objects, report.live_objects);
    fm_gc_report_release(&report);
    fm_repo_close(r);
    assert_false(fm_path_exists(condemned));
    assert_true(has_version(dir, &b));
    fm_free(condemned);
    fm_free(dir);
}

TEST(a_condemned_version_can_be_named_again)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    fm_repo *r;
    collect_at(dir, NULL);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_ref_update(r, "refs/heads/back", &b, NULL, "it was a mistake"));
    fm_repo_close(r);
    fm_gc_report report = collect_at(dir, "now");
    assert_int_equal(report.gone_objects + report.git_gone, 0);
    assert_true(has_version(dir, &b));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

TEST(a_deleted_version_cannot_be_named)
{
    fm_oid a, b, at;
    char *dir = with_garbage(&a, &b);
    fm_repo *r;
    fm_version v;
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_version_read(r, &v, &b)); /* libgit2 keeps it in memory now */
    fm_version_release(&v);
    collect_at(dir, "now");
    tk_fails(fm_ref_update(r, "refs/heads/back", &b, NULL, "too late"), FM_ENOTFOUND, "no version");
    tk_fails(fm_ref_read(r, &at, "refs/heads/back"), FM_ENOTFOUND, NULL);
    fm_repo_close(r);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

/* The loss of others: an importer finds an object stored, gc deletes it, the importer's ref moves.
 */
TEST(what_an_importer_found_stored_is_not_deleted)
{
    fm_oid a, b, c;
    char *dir = with_garbage(&a, &b);
    fm_repo *r;
    tk_ok(fm_repo_open(&r, dir));
    fm_tree *tree = kit_model(r, 3, 1, 1); /* side's: all found stored, nothing written */
    fm_gc_report report = collect_at(dir, "now");
    assert_int_equal(report.writers, 1);
    assert_int_equal(report.gone_objects, 0);
    assert_int_equal(report.held_objects, 1);
    c = kit_commit(r, tree, "again", &a, 1, KIT_TIME + 50);
    report = collect_at(dir, "now");
    assert_int_equal(report.gone_objects, 0);
    tk_ok(fm_ref_update(r, "refs/heads/again", &c, NULL, "made"));
    fm_tree_free(tree);
    report = collect_at(dir, "now");
    fm_repo_close(r);
    report = collect_at(dir, "now");
    assert_true(has_version(dir, &c));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

/* Begun after gc condemned: it must not lean on what is about to go, nor on git's side of it. */
TEST(who_comes_after_condemning_stores_again)
{
    fm_oid a, b, c;
    char *dir = with_garbage(&a, &b);
    fm_repo *r;
    collect_at(dir, NULL);
    tk_ok(fm_repo_open(&r, dir));
    fm_tree *tree = kit_model(r, 3, 1, 1);
    collect_at(dir, "now"); /* its pack is byte for byte the one that goes */
    c = kit_commit(r, tree, "side", &a, 1, KIT_TIME + 1); /* the very commit of side */
    assert_true(fm_oid_eq(&b, &c));
    collect_at(dir, "now"); /* between the commit and its ref */
    tk_ok(fm_ref_update(r, "refs/heads/side", &c, NULL, "made"));
    fm_repo_close(r);
    fm_tree_free(tree);
    collect_at(dir, "now");
    assert_true(has_version(dir, &c));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

/* A tree taken over from a condemned version, no byte of it stored anew. */
TEST(a_condemned_tree_taken_over_is_rescued)
{
    fm_oid a, b, c;
    char *dir = with_garbage(&a, &b);
    fm_repo *r;
    fm_tree *tree;
    collect_at(dir, NULL);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_store_lease(fm_repo_store(r), true, "test"));
    tk_ok(fm_version_tree(r, &tree, &b));
    tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str("another")));
    c = kit_commit(r, tree, "taken over", &a, 1, KIT_TIME + 9);
    collect_at(dir, "now");
    tk_ok(fm_ref_update(r, "refs/heads/taken", &c, NULL, "made"));
    fm_repo_close(r);
    fm_tree_free(tree);
    collect_at(dir, "now");
    assert_true(has_version(dir, &c));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

TEST(a_dead_owners_lease_holds_nothing)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    char *lease = fm_asprintf("%s/leases/0123456789abcdef0123456789abcdef", dir);
    tk_ok(fm_write_file(lease, "fmstore lease 1\nbegun 1\nwrite the dead\n", 39));
    fm_gc_report report = collect_at(dir, "now");
    assert_int_equal(report.writers, 0);
    assert_int_equal(report.gone_objects, 1);
    assert_false(fm_path_exists(lease));
    fm_free(lease);
    fm_free(dir);
}

TEST(a_lease_that_cannot_be_read_stops_gc)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    char *path = fm_asprintf("%s/leases/0123456789abcdef0123456789abcdef", dir);
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    fm_lock *lease;
    fm_repo *r;
    o.prune = "now";
    tk_ok(fm_lock_make(&lease, path));
    tk_ok(fm_lock_append(lease, "fmstore lease 2\n", 16));
    tk_ok(fm_repo_open(&r, dir));
    tk_fails(fm_repo_gc(r, &o, &report), FM_ECORRUPT, "nothing is deleted");
    fm_lock_drop(lease);
    fm_repo_close(r);
    assert_true(has_version(dir, &b));
    fm_free(path);
    fm_free(dir);
}

/* What a killed transfer left: it goes with its grace, unless somebody goes on with it. */
TEST(a_file_that_came_in_part_goes_when_its_time_is_over)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    char *folder = fm_path_join(dir, "incoming");
    char *dead = fm_path_join(folder, "tmp-1-dead"), *living = fm_path_join(folder, "tmp-1-living");
    fm_writer *w;
    fm_repo *r;
    tk_ok(fm_make_dirs(folder));
    tk_ok(fm_write_file(dead, "some bytes", 10));
    tk_ok(fm_write_file(living, "some bytes", 10));
    tk_ok(fm_writer_resume(&w, living));
    collect_at(dir, "2.weeks.ago");
    tk_ok(fm_repo_open(&r, dir));
    fm_gc_report report = collect(r, "now", true);
    fm_gc_report_release(&report);
    fm_repo_close(r);
    assert_true(fm_path_exists(dead));
    collect_at(dir, "now");
    assert_false(fm_path_exists(dead));
    assert_true(fm_path_exists(living));
    fm_writer_close(w);
    fm_free(folder);
    fm_free(dead);
    fm_free(living);
    fm_free(dir);
}

TEST(reflogs_keep_until_they_expire)
{
    fm_oid a, b;
    char *dir;
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    fm_repo *r = kit_repo(&dir);
    a = kit_branch(r, "main", NULL, 0);
    b = kit_branch(r, "side", &a, 1);
    tk_ok(fm_ref_update(r, "refs/heads/side", &a, &b, "moved back"));
    fm_repo_close(r);
    report = collect_at(dir, "now");
    assert_int_equal(report.new_objects, 0);
    assert_true(has_version(dir, &b));
    tk_ok(fm_repo_open(&r, dir));
    o.prune = o.reflog = "now";
    tk_ok(fm_repo_gc(r, &o, &report));
    assert_true(report.reflog_entries > 0);
    assert_int_equal(report.gone_objects, 1);
    fm_gc_report_release(&report);
    fm_repo_close(r);
    assert_false(has_version(dir, &b));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

TEST(what_cannot_be_read_stops_gc)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b);
    char *path = fm_asprintf("%s/lineage.git/refs/heads/broken", dir);
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    fm_repo *r;
    o.prune = "now";
    tk_ok(fm_write_file(path, "1111111111111111111111111111111111111111\n", 41));
    tk_ok(fm_repo_open(&r, dir));
    tk_fails(fm_repo_gc(r, &o, &report), FM_ECORRUPT, "nothing was deleted");
    fm_repo_close(r);
    assert_true(has_version(dir, &b));
    fm_free(path);
    fm_free(dir);
}

TEST(a_lost_or_damaged_list_costs_time_only)
{
    fm_oid a, b;
    char *dir = with_garbage(&a, &b), *path = fm_path_join(dir, "condemned");
    collect_at(dir, NULL);
    assert_true(fm_path_exists(path));
    tk_ok(fm_write_file(path, "fmstore condemned 1\nobject x\n", 29));
    fm_gc_report report = collect_at(dir, NULL);
    assert_int_equal(report.new_objects, 1);
    tk_ok(fm_remove_file(path));
    report = collect_at(dir, "2.weeks.ago");
    assert_int_equal(report.new_objects, 1);
    assert_int_equal(report.gone_objects, 0);
    fm_free(path);
    fm_free(dir);
}

TEST(times_read_as_git_writes_them)
{
    int64_t t;
    tk_ok(fm_time_parse(&t, "2.weeks.ago", 2000000000));
    assert_int_equal(t, 2000000000 - 14 * 86400);
    tk_ok(fm_time_parse(&t, "90 days", 2000000000));
    assert_int_equal(t, 2000000000 - 90 * 86400);
    tk_ok(fm_time_parse(&t, "2026-11-21", 0));
    assert_int_equal(t, 1795219200);
    tk_ok(fm_time_parse(&t, "2026-11-21 00:01:00", 0));
    assert_int_equal(t, 1795219260);
    tk_ok(fm_time_parse(&t, "1795219200", 0));
    assert_int_equal(t, 1795219200);
    tk_ok(fm_time_parse(&t, "now", 0));
    assert_true(t == INT64_MAX);
    tk_ok(fm_time_parse(&t, "never", 0));
    assert_true(t == INT64_MIN);
    tk_fails(fm_time_parse(&t, "soon", 0), FM_EINVAL, "2.weeks.ago");
    tk_fails(fm_time_parse(&t, "", 0), FM_EINVAL, NULL);
    tk_fails(fm_time_parse(&t, "3.fortnights", 0), FM_EINVAL, NULL);
    tk_fails(fm_time_parse(&t, "2026-13-01", 0), FM_EINVAL, NULL);
}

/* As the command line keeps states of training: commits without parents, one ref each. */
TEST(a_checkpoint_lives_as_long_as_its_ref)
{
    fm_oid oid[2];
    char *dir;
    fm_repo *r = kit_repo(&dir);
    static const char *const names[] = {"refs/fmstore/checkpoints/0123456789abcdef0123/0000000007",
                                        "refs/fmstore/checkpoints/0123456789abcdef0123/0000000014"};

    for (unsigned i = 0; i < 2; i++) {
        fm_tree *tree = kit_model(r, 3, 3, 40 + i);
        fm_commit_opts opts = {.kind = "checkpoint", .message = "after a step", .time = KIT_TIME};
        tk_ok(fm_version_commit(r, &oid[i], tree, &opts));
        tk_ok(fm_ref_update(r, names[i], &oid[i], NULL, "checkpoint"));
        fm_tree_free(tree);
    }
    tk_ok(fm_ref_delete(r, names[0], &oid[0]));
    fm_repo_close(r);
    fm_gc_report report = collect_at(dir, "now");
    assert_true(report.gone_objects > 0);
    assert_false(has_version(dir, &oid[0]));
    assert_true(has_version(dir, &oid[1]));
    tk_ok(fm_repo_open(&r, dir));
    fm_version v;
    tk_ok(fm_version_read(r, &v, &oid[1]));
    assert_string_equal(v.kind, "checkpoint");
    assert_int_equal(v.parent_count, 0);
    fm_version_release(&v);
    tk_ok(fm_ref_delete(r, names[1], NULL));
    fm_repo_close(r);
    (void)collect_at(dir, "now");
    assert_false(has_version(dir, &oid[1]));
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

/* ---- what a recipe or a suite names ---- */

static void hex_of(const fm_oid *oid, char hex[41])
{
    fm_oid_hex(oid, hex);
}

/* HEAD and its reflog are of a branch that stays. */
static fm_repo *repo_with_main(char **dir)
{
    fm_repo *r = kit_repo(dir);

    kit_branch(r, "main", NULL, 0);
    return r;
}

/* A version like kit_branch's with one more file, of which @ is hex. padded: too large for git, so
 * the store has it. */
static fm_oid naming_branch(fm_repo *r, const char *name, const char *path, const char *text,
                            const char *hex, bool padded)
{
    fm_tree *tree = kit_model(r, 2, 0, 0);
    fm_txn *t = NULL;
    fm_buf file;
    char ref[256];

    fm_buf_init(&file, 0);
    for (unsigned i = 0; padded && i < 40000; i++)
        fm_buf_str(&file, i % 8 ? " #    " : "\n#    ");
    fm_buf_str(&file, "\n");
    fm_buf_append(&file, text, strcspn(text, "@"));
    fm_buf_printf(&file, "%s%s", hex, text + strcspn(text, "@") + 1);
    tk_ok(fm_txn_begin(&t, fm_repo_store(r)));
    tk_ok(fm_txn_put_path(t, tree, path, fm_buf_span(&file)));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    assert_int_equal(fm_tree_find(tree, path)->kind == FM_ENTRY_BLOB, padded);
    fm_oid oid = kit_commit(r, tree, name, NULL, 0, KIT_TIME);
    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    tk_ok(fm_ref_update(r, ref, &oid, NULL, "made"));
    fm_buf_release(&file);
    fm_tree_free(tree);
    return oid;
}

static void drop_branch(fm_repo *r, const char *name, const fm_oid *oid)
{
    char ref[256];

    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    tk_ok(fm_ref_delete(r, ref, oid));
}

/* Two runs: the first one's list, and the second one's look behind it. */
static void collect_all(const char *dir)
{
    collect_at(dir, "now");
    collect_at(dir, "now");
}

TEST(what_is_named_stays)
{
    static const struct {
        const char *path, *text;
        unsigned chars; /* of the id */
        bool of_tree, padded;
    } way[] = {
        {"recipe.json", "{\"operation\": \"lora\", \"teacher\": \"@\"}", 40, false, false},
        {"recipe.json", "{\"base\": {\"model\": \"\", \"version\": \"@\"}}", 40, false, true},
        {"recipe.json", "{\"repairs\": {\"version\":\"@\"}}", 40, false, false},
        {"recipe.json", "{\"what_comes_later\": [\"@\"]}", 40, false, false},
        {"suites/s.yaml", "cases:\n- expect: {similar: x, model: @}\n", 40, false, false},
        {"suites/s.yaml", "cases:\n- expect: {similar: x, model: @}\n", 40, false, true},
        {"suites/s.yaml", "cases:\n- expect: {similar: x, model: \"@\"}\n", 40, true, false},
        {"suites/s.yaml", "gate:\n  baseline: \"@\"\n", 12, false, false},
        {"suites/s.waivers.yaml", "waive:\n- {case: a, until: @", 40, false, false},
        {"suites/more/s.yaml", "model: @", 40, false, false},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(way); i++) {
        char *dir, hex[41];
        fm_repo *r = repo_with_main(&dir);
        fm_version v;
        fm_oid teacher = kit_branch(r, "teacher", NULL, 7);
        tk_ok(fm_version_read(r, &v, &teacher));
        hex_of(way[i].of_tree ? &v.tree : &teacher, hex);
        fm_version_release(&v);
        hex[way[i].chars] = '\0';
        fm_oid pupil = naming_branch(r, "pupil", way[i].path, way[i].text, hex, way[i].padded);
        drop_branch(r, "teacher", &teacher);
        fm_repo_close(r);
        collect_all(dir);
        assert_true(way[i].of_tree || has_version(dir, &teacher));
        tk_ok(fm_repo_open(&r, dir));
        fm_gc_report report = collect(r, "now", false);
        assert_int_equal(report.live_objects, way[i].padded ? 6 : 5);
        assert_int_equal(report.objects, report.live_objects);
        fm_gc_report_release(&report);
        drop_branch(r, "pupil", &pupil);
        fm_repo_close(r);
        collect_all(dir);
        assert_false(has_version(dir, &teacher)); /* nobody names it now */
        assert_int_equal(kit_faults(dir), 0);
        fm_free(dir);
    }
}

/* A judge whose own recipe names its teacher, and a name in a version that itself waits. */
TEST(names_are_followed_on)
{
    char *dir, hex[41];
    fm_repo *r = repo_with_main(&dir);
    fm_oid base = kit_branch(r, "base", NULL, 3), teacher = kit_branch(r, "teacher", &base, 7);
    hex_of(&teacher, hex);
    fm_oid judge = naming_branch(r, "judge", "recipe.json", "{\"teacher\": \"@\"}", hex, false);
    hex_of(&judge, hex);
    fm_oid top = naming_branch(r, "top", "suites/s.yaml", "model: @", hex, false);
    drop_branch(r, "base", &base);
    drop_branch(r, "teacher", &teacher);
    drop_branch(r, "judge", &judge);
    fm_repo_close(r);
    collect_all(dir);
    assert_true(has_version(dir, &base) && has_version(dir, &teacher) && has_version(dir, &judge));
    tk_ok(fm_repo_open(&r, dir));
    drop_branch(r, "top", &top);
    fm_repo_close(r);
    collect_at(dir, NULL); /* all four wait, and name each other still */
    assert_true(has_version(dir, &base) && has_version(dir, &teacher) && has_version(dir, &judge));
    collect_all(dir);
    assert_false(has_version(dir, &base) || has_version(dir, &judge));
    fm_free(dir);
}

/* Elsewhere forty digits are forty digits. */
TEST(a_card_keeps_nothing)
{
    static const char *const path[] = {"README.md", "train_log.json", "suites.md"};

    for (size_t i = 0; i < FM_ARRAY_LEN(path); i++) {
        char *dir, hex[41];
        fm_repo *r = repo_with_main(&dir);
        fm_oid other = kit_branch(r, "other", NULL, 7);
        hex_of(&other, hex);
        naming_branch(r, "card", path[i], "model: @", hex, false);
        drop_branch(r, "other", &other);
        fm_repo_close(r);
        collect_all(dir);
        assert_false(has_version(dir, &other));
        fm_free(dir);
    }
}

typedef struct absences {
    unsigned count;
    char text[512];
} absences;

static void count_absence(void *ctx, const char *text)
{
    absences *a = ctx;
    a->count++;
    snprintf(a->text, sizeof a->text, "%s", text);
}

static absences absent_from(const char *dir)
{
    absences a = {0, ""};
    const fm_fsck_opts o = {.full = true, .absent = count_absence, .ctx = &a};
    fm_fsck_report report;
    fm_repo *r;

    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_fsck_as(r, &o, &report));
    assert_int_equal(report.faults, 0);
    fm_repo_close(r);
    return a;
}

TEST(a_name_of_what_is_not_here_is_told_by_fsck)
{
    static const char nobody[] = "0123456789abcdef0123456789abcdef01234567";
    char *dir;
    fm_repo *r = repo_with_main(&dir);

    naming_branch(r, "a", "recipe.json", "{\"teacher\": \"@\"}", nobody, false);
    naming_branch(r, "b", "suites/s.yaml", "cases: [{prompt: say @}]", nobody, false);
    fm_repo_close(r);
    collect_all(dir);
    absences a = absent_from(dir);
    assert_int_equal(a.count, 1);
    assert_non_null(strstr(a.text, "recipe.json names teacher 0123456789abcdef"));
    fm_free(dir);
}

/* A gc that was killed between the store's packs and git's left the commit without its bytes. */
TEST(a_name_of_what_is_half_gone_stops_no_gc)
{
    char *dir, hex[41], command[600];
    fm_repo *r = repo_with_main(&dir);
    fm_oid teacher = kit_branch(r, "teacher", NULL, 7);
    hex_of(&teacher, hex);
    drop_branch(r, "teacher", &teacher);
    naming_branch(r, "other", "README.md", "@", "none", false);
    fm_repo_close(r);
    collect_at(dir, NULL); /* condemned */
    snprintf(command, sizeof command,
             "cp -a '%s/lineage.git' '%s/kept.git' && cp '%s/condemned' '%s/list'", dir, dir, dir,
             dir);
    assert_int_equal(system(command), 0);
    collect_all(dir);
    assert_false(has_version(dir, &teacher));
    snprintf(command, sizeof command,
             "rm -rf '%s/lineage.git' && mv '%s/kept.git' '%s/lineage.git' && mv '%s/list' "
             "'%s/condemned'",
             dir, dir, dir, dir, dir);
    assert_int_equal(system(command), 0);
    tk_ok(fm_repo_open(&r, dir));
    naming_branch(r, "pupil", "recipe.json", "{\"teacher\": \"@\"}", hex, false);
    fm_repo_close(r);
    absences a = absent_from(dir);
    assert_int_equal(a.count, 1);
    collect_all(dir);
    tk_ok(fm_repo_open(&r, dir));
    fm_version v;
    tk_fails(fm_version_read(r, &v, &teacher), FM_ENOTFOUND, "no version");
    fm_repo_close(r);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

static void keep_fault(void *ctx, const char *text)
{
    snprintf(ctx, 512, "%s", text);
}

/* What is named is checked as gc needs it: damage in it is a fault, and is repaired. */
TEST(damage_in_what_is_named_is_told_and_repaired)
{
    char *dir, *copy, hex[41], text[512] = "", command[600];
    fm_repair_report mended;
    fm_fsck_report report;
    fm_repo *r = repo_with_main(&dir);

    snprintf(command, sizeof command, "ls '%s'/packs/* > '%s/before'", dir, dir);
    assert_int_equal(system(command), 0);
    fm_oid teacher = kit_branch(r, "teacher", NULL, 7);
    hex_of(&teacher, hex);
    snprintf(command, sizeof command, "ls '%s'/packs/* | grep -vxFf '%s/before' > '%s/theirs'", dir,
             dir, dir);
    assert_int_equal(system(command), 0);
    naming_branch(r, "pupil", "recipe.json", "{\"teacher\": \"@\"}", hex, false);
    drop_branch(r, "teacher", &teacher);
    fm_repo_close(r);
    assert_int_equal(kit_faults(dir), 0);
    copy = tk_scratch();
    kit_copy_tree(dir, copy);
    snprintf(command, sizeof command, "rm -f $(cat '%s/theirs')", dir);
    assert_int_equal(system(command), 0);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_fsck(r, false, &report, keep_fault, text));
    fm_repo_close(r);
    assert_true(report.faults > 0);
    hex[12] = '\0';
    assert_non_null(strstr(text, hex));
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_repair(r, copy, &mended));
    fm_repo_close(r);
    assert_int_equal(mended.objects, 1);
    assert_int_equal(kit_faults(dir), 0);
    collect_all(dir);
    assert_true(has_version(dir, &teacher));
    fm_free(copy);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_lives_as_long_as_its_ref),
        cmocka_unit_test(what_is_reached_stays),
        cmocka_unit_test(the_unreached_waits_and_then_goes),
        cmocka_unit_test(a_dry_run_changes_nothing),
        cmocka_unit_test(a_condemned_version_can_be_named_again),
        cmocka_unit_test(a_deleted_version_cannot_be_named),
        cmocka_unit_test(what_an_importer_found_stored_is_not_deleted),
        cmocka_unit_test(who_comes_after_condemning_stores_again),
        cmocka_unit_test(a_condemned_tree_taken_over_is_rescued),
        cmocka_unit_test(a_dead_owners_lease_holds_nothing),
        cmocka_unit_test(a_lease_that_cannot_be_read_stops_gc),
        cmocka_unit_test(a_file_that_came_in_part_goes_when_its_time_is_over),
        cmocka_unit_test(reflogs_keep_until_they_expire),
        cmocka_unit_test(what_cannot_be_read_stops_gc),
        cmocka_unit_test(a_lost_or_damaged_list_costs_time_only),
        cmocka_unit_test(times_read_as_git_writes_them),
        cmocka_unit_test(what_is_named_stays),
        cmocka_unit_test(names_are_followed_on),
        cmocka_unit_test(a_card_keeps_nothing),
        cmocka_unit_test(a_name_of_what_is_not_here_is_told_by_fsck),
        cmocka_unit_test(a_name_of_what_is_half_gone_stops_no_gc),
        cmocka_unit_test(damage_in_what_is_named_is_told_and_repaired),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
