/* exchange_move.c - refs move to versions that arrived: forward, by compare-and-swap, and only
 * where all is there; results and notes are joined. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kit/grown_kit.h"

/* ---- moves ---- */

TEST(a_branch_moves_only_forward)
{
    char *here;
    fm_repo *a = kit_repo(&here);
    fm_oid tip[4], side, at;
    fm_ref_wish w;

    grow(a, tip, 4);
    side = kit_branch(a, "side", &tip[0], 9);
    w = kit_wish("refs/heads/x", &tip[1], NULL);
    assert_int_equal(kit_move(a, &w), FM_OK);
    w = kit_wish("refs/heads/x", &tip[2], NULL);
    assert_int_equal(kit_move(a, &w), FM_ECONFLICT);
    assert_non_null(strstr(w.text, "refs/heads/x: it was made meanwhile"));
    w = kit_wish("refs/heads/x", &tip[2], &tip[0]);
    assert_int_equal(kit_move(a, &w), FM_ECONFLICT);
    assert_non_null(strstr(w.text, "it moved meanwhile"));
    w = kit_wish("refs/heads/x", &tip[2], &tip[1]);
    assert_int_equal(kit_move(a, &w), FM_OK);
    w = kit_wish("refs/heads/x", &side, &tip[2]);
    assert_int_equal(kit_move(a, &w), FM_EREFUSED);
    assert_string_equal(w.text,
                        "refs/heads/x: not a fast-forward (the remote has versions that you "
                        "lack): fetch and merge, or --force-with-lease");
    w.force = true;
    w.old = tip[1];
    assert_int_equal(kit_move(a, &w), FM_ECONFLICT); /* force is no licence to race */
    w.old = tip[2];
    assert_int_equal(kit_move(a, &w), FM_OK);
    tk_ok(fm_ref_read(a, &at, "refs/heads/x"));
    assert_true(fm_oid_eq(&at, &side));
    w = kit_wish("refs/heads/gone", NULL, &side);
    assert_int_equal(kit_move(a, &w), FM_OK); /* it was not there already */
    w = kit_wish("refs/heads/x", NULL, &tip[2]);
    assert_int_equal(kit_move(a, &w), FM_ECONFLICT);
    w = kit_wish("refs/heads/x", NULL, &side);
    assert_int_equal(kit_move(a, &w), FM_OK);
    tk_fails(fm_ref_read(a, &at, "refs/heads/x"), FM_ENOTFOUND, NULL);
    kit_close(a, here);
}

TEST(tags_stay_and_remote_tracking_refs_follow)
{
    char *here;
    fm_repo *a = kit_repo(&here);
    fm_oid tip[3], at;
    fm_ref_wish w;

    grow(a, tip, 3);
    w = kit_wish("refs/tags/v1", &tip[0], NULL);
    assert_int_equal(kit_move(a, &w), FM_OK);
    w = kit_wish("refs/tags/v1", &tip[1], &tip[0]);
    assert_int_equal(kit_move(a, &w), FM_EREFUSED);
    assert_non_null(strstr(w.text, "tags do not move"));
    w.force = true;
    assert_int_equal(kit_move(a, &w), FM_OK);
    for (unsigned i = 3; i > 0; i--) { /* backwards, whatever it held */
        w = kit_wish("refs/remotes/origin/main", &tip[i - 1], NULL);
        w.any_old = true;
        assert_int_equal(kit_move(a, &w), FM_OK);
    }
    tk_ok(fm_rev_resolve(a, &at, "origin/main"));
    assert_true(fm_oid_eq(&at, &tip[0]));
    w = kit_wish("refs/remotes/origin/main", NULL, NULL);
    w.any_old = true;
    assert_int_equal(kit_move(a, &w), FM_OK);
    tk_fails(fm_rev_resolve(a, &at, "origin/main"), FM_ENOTFOUND, NULL);
    kit_close(a, here);
}

TEST(names_that_do_not_travel_are_refused)
{
    static const char *const name[] = {"refs/fmstore/rejected/x",
                                       "refs/heads/../x",
                                       "refs/heads/",
                                       "refs/remotes/origin",
                                       "HEAD",
                                       "refs/heads/a b",
                                       "refs/heads/deadbeef",
                                       "refs/heads/\342\200\256x",
                                       "refs/notes/other",
                                       "refs/heads/x.lock"};
    char *here;
    fm_repo *a = kit_repo(&here);
    fm_oid main = kit_branch(a, "main", NULL, 0);

    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++) {
        fm_ref_wish w = kit_wish(name[i], &main, NULL);
        assert_int_equal(kit_move(a, &w), FM_EINVAL);
        assert_true(w.text[0]);
    }
    assert_true(fm_exchange_ref_travels("refs/heads/x/y"));
    assert_true(fm_exchange_ref_travels("refs/fmstore/results"));
    assert_false(fm_exchange_ref_travels("refs/fmstore/lost/x"));
    assert_false(fm_exchange_ref_travels("refs/remotes/origin/x"));
    assert_false(fm_exchange_ref_travels("refs/heads/a..b"));
    assert_false(fm_exchange_ref_travels(NULL));
    kit_close(a, here);
}

TEST(a_version_without_its_tensors_moves_no_ref)
{
    char *here, *there;
    fm_repo *a = kit_repo(&here), *b = kit_repo(&there);
    fm_oid tip[2], at;
    fm_ref_wish w;
    fm_buf pack;

    grow(a, tip, 2);
    share_tensors(b, 1);
    kit_send(a, &pack, &tip[1], 1, NULL, 0);
    tk_ok(kit_take(b, fm_buf_span(&pack), 1000));
    w = kit_wish("refs/heads/main", &tip[1], NULL);
    assert_int_equal(kit_move(b, &w), FM_EBASE);
    assert_non_null(strstr(w.text, "has not arrived"));
    tk_fails(fm_ref_read(b, &at, "refs/heads/main"), FM_ENOTFOUND, NULL);
    tk_ok(fm_refs_move(b, &w, 1, true, "clone --lineage-only"));
    assert_int_equal(w.status, FM_OK);
    /* The branch is here without its tensors, and still does not count for whole. */
    w = kit_wish("refs/heads/other", &tip[1], NULL);
    assert_int_equal(kit_move(b, &w), FM_EBASE);
    share_tensors(b, 2);
    assert_int_equal(kit_move(b, &w), FM_OK);
    fm_buf_release(&pack);
    kit_close(a, here);
    kit_close(b, there);
}

/* What was looked at for one ref that cannot move does not count for the next one. */
TEST(versions_that_share_a_missing_tensor_move_no_ref)
{
    char *here, *there;
    fm_repo *a = kit_repo(&here), *b = kit_repo(&there);
    fm_oid one = kit_branch(a, "one", NULL, 3), two, want[2];
    fm_tree *tree;
    fm_ref_wish w[3];
    fm_buf pack;

    tk_ok(fm_version_tree(a, &tree, &one));
    two = kit_commit(a, tree, "the same tree", NULL, 0, KIT_TIME + 9);
    tk_ok(fm_ref_update(a, "refs/heads/two", &two, NULL, "made"));
    want[0] = one;
    want[1] = two;
    kit_send(a, &pack, want, 2, NULL, 0);
    tk_ok(kit_take(b, fm_buf_span(&pack), pack.len));
    w[0] = kit_wish("refs/heads/one", &one, NULL);
    w[1] = kit_wish("refs/heads/two", &two, NULL);
    w[2] = kit_wish("refs/heads/again", &one, NULL);
    tk_ok(fm_refs_move(b, w, 3, false, "push"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(w[i].status, FM_EBASE);
    fm_tree_free(kit_model(b, 3, 1, 3));
    tk_ok(fm_refs_move(b, w, 3, false, "push"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(w[i].status, FM_OK);
    fm_buf_release(&pack);
    fm_tree_free(tree);
    kit_close(a, here);
    fm_repo_close(b);
    assert_int_equal(kit_faults(there), 0);
    fm_free(there);
}

/* Exit code 1: won, 2: lost by conflict. */
static int mover(const char *dir, const fm_oid *to, const fm_oid *old)
{
    fm_repo *r = NULL;
    fm_ref_wish w = kit_wish("refs/heads/main", to, old);

    if (fm_repo_open(&r, dir) < 0 || fm_refs_move(r, &w, 1, false, "push") < 0)
        return 100;
    fm_repo_close(r);
    return w.status == FM_OK ? 1 : w.status == FM_ECONFLICT ? 2 : 100;
}

TEST(of_many_movers_at_once_one_wins)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid base = kit_branch(r, "main", NULL, 0), child[6];
    pid_t pid[6];
    unsigned won = 0, lost = 0;

    for (unsigned i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "child%u", i);
        child[i] = kit_branch(r, name, &base, i + 1);
    }
    fm_repo_close(r);
    for (unsigned i = 0; i < 6; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(mover(dir, &child[i], &base));
    }
    for (unsigned i = 0; i < 6; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        won += WEXITSTATUS(status) == 1;
        lost += WEXITSTATUS(status) == 2;
    }
    assert_int_equal(won, 1);
    assert_int_equal(lost, 5);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

/* ---- unions ---- */

static fm_oid tree_at(const char *dir, const char *name, fm_oid *commit)
{
    git_repository *g = git_of(dir);
    git_oid id;
    git_commit *c = NULL;
    fm_oid out;

    assert_int_equal(git_reference_name_to_id(&id, g, name), 0);
    assert_int_equal(git_commit_lookup(&c, g, &id), 0);
    memcpy(out.b, git_commit_tree_id(c)->id, sizeof out.b);
    if (commit)
        memcpy(commit->b, id.id, sizeof commit->b);
    git_commit_free(c);
    git_repository_free(g);
    return out;
}

/* Both repositories get what the other has, at once: neither sees the other's outcome. */
static void cross(const char *da, fm_repo *a, const char *db, fm_repo *b, const char *name)
{
    fm_oid x, y;
    fm_buf pa, pb;
    fm_ref_wish w;

    (void)tree_at(da, name, &x);
    (void)tree_at(db, name, &y);
    kit_send(a, &pa, &x, 1, NULL, 0);
    kit_send(b, &pb, &y, 1, NULL, 0);
    tk_ok(kit_take(b, fm_buf_span(&pa), 512));
    tk_ok(kit_take(a, fm_buf_span(&pb), 512));
    w = kit_wish(name, &y, NULL);
    assert_int_equal(kit_move(a, &w), FM_OK);
    w = kit_wish(name, &x, NULL);
    assert_int_equal(kit_move(b, &w), FM_OK);
    fm_buf_release(&pa);
    fm_buf_release(&pb);
}

static void assert_note(fm_repo *r, const fm_oid *at, const char *text)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    tk_ok(fm_note_read(r, &b, at));
    assert_string_equal(fm_buf_cstr(&b), text);
    fm_buf_release(&b);
}

TEST(notes_of_two_clones_become_the_same_union)
{
    char *da, *db, out[200];
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_oid at = kit_branch(a, "main", NULL, 0), other = kit_branch(a, "side", &at, 1), x, y;
    fm_oid tx, ty;
    fm_ref_wish w;

    share_tensors(b, 2);
    kit_carry(a, b, "refs/heads/side");
    kit_carry(a, b, "refs/heads/main");
    tk_ok(fm_note_add(a, &at, "common"));
    kit_carry(a, b, "refs/notes/fmstore");
    assert_note(b, &at, "common\n");
    tk_ok(fm_note_add(a, &at, "of a"));
    tk_ok(fm_note_add(a, &at, "both"));
    tk_ok(fm_note_add(b, &at, "both"));
    tk_ok(fm_note_add(b, &at, "of b"));
    tk_ok(fm_note_add(b, &other, "only b"));
    cross(da, a, db, b, "refs/notes/fmstore");
    tx = tree_at(da, "refs/notes/fmstore", &x);
    ty = tree_at(db, "refs/notes/fmstore", &y);
    assert_true(fm_oid_eq(&tx, &ty));
    assert_true(fm_oid_eq(&x, &y)); /* the very same commit */
    assert_note(a, &at, "common\nboth\nof b\nof a\n");
    assert_note(b, &other, "only b\n");
    /* A note that goes on where the other ends stays as it is, and the ref goes forward. */
    tk_ok(fm_note_add(a, &at, "later"));
    kit_carry(a, b, "refs/notes/fmstore");
    (void)tree_at(da, "refs/notes/fmstore", &x);
    (void)tree_at(db, "refs/notes/fmstore", &y);
    assert_true(fm_oid_eq(&x, &y));
    w = kit_wish("refs/notes/fmstore", NULL, &x);
    assert_int_equal(kit_move(a, &w), FM_EREFUSED);
    if (kit_have_git())
        assert_int_equal(kit_git(db, "notes --ref fmstore list", out, sizeof out), 0);
    assert_git_clean(db);
    fm_repo_close(a);
    fm_repo_close(b);
    assert_int_equal(kit_faults(da), 0);
    assert_int_equal(kit_faults(db), 0);
    fm_free(da);
    fm_free(db);
}

TEST(notes_that_plain_git_fanned_out_are_read)
{
    char *da, *db, hex[41], args[200], out[300];
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_oid at = kit_branch(a, "main", NULL, 0), x;
    git_repository *g;
    git_treebuilder *top = NULL, *sub = NULL;
    git_oid blob, tree, commit;
    git_tree *t = NULL;
    git_signature *who = NULL;

    share_tensors(b, 1);
    kit_carry(a, b, "refs/heads/main");
    tk_ok(fm_note_add(a, &at, "flat"));
    (void)args;
    g = git_of(db);
    fm_oid_hex(&at, hex);
    assert_int_equal(git_blob_create_from_buffer(&blob, g, "fanned", 6), 0);
    assert_int_equal(git_treebuilder_new(&sub, g, NULL), 0);
    assert_int_equal(git_treebuilder_insert(NULL, sub, hex + 2, &blob, GIT_FILEMODE_BLOB), 0);
    assert_int_equal(git_treebuilder_write(&tree, sub), 0);
    hex[2] = '\0';
    assert_int_equal(git_treebuilder_new(&top, g, NULL), 0);
    assert_int_equal(git_treebuilder_insert(NULL, top, hex, &tree, GIT_FILEMODE_TREE), 0);
    assert_int_equal(git_treebuilder_insert(NULL, top, "README", &blob, GIT_FILEMODE_BLOB), 0);
    assert_int_equal(git_treebuilder_write(&tree, top), 0);
    assert_int_equal(git_tree_lookup(&t, g, &tree), 0);
    assert_int_equal(git_signature_new(&who, "A", "a@b", 1, 0), 0);
    assert_int_equal(
        git_commit_create(&commit, g, "refs/notes/fmstore", who, who, NULL, "n", t, 0, NULL), 0);
    memcpy(x.b, commit.id, sizeof x.b);
    fm_repo_close(b);
    tk_ok(fm_repo_open(&b, db));
    cross(da, a, db, b, "refs/notes/fmstore");
    assert_note(a, &at, "fanned\nflat\n");
    assert_note(b, &at, "fanned\nflat\n");
    x = tree_at(da, "refs/notes/fmstore", NULL);
    assert_memory_equal(x.b, tree_at(db, "refs/notes/fmstore", NULL).b, sizeof x.b);
    (void)out;
    git_signature_free(who);
    git_tree_free(t);
    git_treebuilder_free(top);
    git_treebuilder_free(sub);
    git_repository_free(g);
    kit_close(a, da);
    kit_close(b, db);
}

static void put_result(fm_repo *r, char c, const char *json)
{
    char key[65];

    memset(key, c, 64);
    key[64] = '\0';
    tk_ok(fm_result_put(r, key, fm_span_str(json)));
    tk_ok(fm_result_flush(r));
}

static void assert_result(fm_repo *r, char c, const char *json)
{
    char key[65];
    fm_buf b;

    memset(key, c, 64);
    key[64] = '\0';
    fm_buf_init(&b, 0);
    tk_ok(fm_result_get(r, &b, key));
    assert_string_equal(fm_buf_cstr(&b), json);
    fm_buf_release(&b);
}

TEST(results_of_two_clones_become_the_same_union)
{
    char *da, *db;
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_oid tx, ty, x, y;
    fm_ref_wish w;

    put_result(a, 'a', "1");
    put_result(a, 'c', "[1]");
    put_result(b, 'b', "2");
    put_result(b, 'c', "[2]");
    cross(da, a, db, b, "refs/fmstore/results");
    tx = tree_at(da, "refs/fmstore/results", &x);
    ty = tree_at(db, "refs/fmstore/results", &y);
    assert_true(fm_oid_eq(&tx, &ty));
    for (unsigned i = 0; i < 2; i++) {
        assert_result(i ? a : b, 'a', "1");
        assert_result(i ? a : b, 'b', "2");
        assert_result(i ? a : b, 'c', "[1]");
    }
    kit_carry(a, b, "refs/fmstore/results");
    kit_carry(b, a, "refs/fmstore/results");
    (void)tree_at(da, "refs/fmstore/results", &x);
    (void)tree_at(db, "refs/fmstore/results", &y);
    assert_true(fm_oid_eq(&x, &y));
    w = kit_wish("refs/fmstore/results", NULL, &x);
    assert_int_equal(kit_move(a, &w), FM_EREFUSED);
    assert_git_clean(da);
    fm_repo_close(a);
    fm_repo_close(b);
    assert_int_equal(kit_faults(da), 0);
    assert_int_equal(kit_faults(db), 0);
    fm_free(da);
    fm_free(db);
}

/* ---- hostile versions ---- */

/* A pack of one commit over a tree of these bytes and a file "hello"; the commit's id. */
static fm_oid pack_of_tree(fm_buf *p, fm_span tree, const char *message)
{
    git_oid id;
    char hex[41] = "", text[500];
    fm_oid out;
    int n;

    assert_int_equal(git_odb_hash(&id, tree.data, tree.len, GIT_OBJECT_TREE), 0);
    git_oid_fmt(hex, &id);
    n = snprintf(text, sizeof text,
                 "tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\n%s", hex, message);
    kit_pack_begin(p, 3);
    kit_pack_object(p, 1, text, (size_t)n);
    kit_pack_object(p, 2, tree.data, tree.len);
    kit_pack_object(p, 3, "hello", 5);
    kit_pack_end(p);
    assert_int_equal(git_odb_hash(&id, text, (size_t)n, GIT_OBJECT_COMMIT), 0);
    memcpy(out.b, id.id, sizeof out.b);
    return out;
}

static void add_entry(fm_buf *b, const char *mode, const char *name)
{
    git_oid id;

    assert_int_equal(git_odb_hash(&id, "hello", 5, GIT_OBJECT_BLOB), 0);
    fm_buf_printf(b, "%s %s", mode, name);
    fm_buf_u8(b, 0);
    fm_buf_append(b, id.id, sizeof id.id);
}

static void refused_tree(fm_repo *r, const fm_buf *tree, const char *message, fm_status status)
{
    fm_buf pack;
    fm_oid at = pack_of_tree(&pack, fm_buf_span(tree), message);
    fm_ref_wish w = kit_wish("refs/heads/hostile", &at, NULL);
    fm_oid now;

    tk_ok(kit_take(r, fm_buf_span(&pack), pack.len));
    if (kit_move(r, &w) != status)
        print_message("%s: %s\n", fm_status_name(w.status), w.text);
    assert_int_equal(w.status, status);
    if (status != FM_OK)
        tk_fails(fm_ref_read(r, &now, "refs/heads/hostile"), FM_ENOTFOUND, NULL);
    fm_buf_release(&pack);
}

TEST(versions_that_fsck_would_not_pass_move_no_ref)
{
    char *there;
    fm_repo *b = kit_repo(&there);
    fm_buf t;
    fm_oid at;
    fm_ref_wish w;

    fm_buf_init(&t, 0);
    add_entry(&t, "100644", "a");
    add_entry(&t, "100644", "a");
    refused_tree(b, &t, "m\n", FM_ECORRUPT);
    fm_buf_clear(&t);
    add_entry(&t, "100644", "..");
    refused_tree(b, &t, "m\n", FM_ECORRUPT);
    fm_buf_clear(&t);
    add_entry(&t, "120000", "link");
    refused_tree(b, &t, "m\n", FM_ECORRUPT);
    fm_buf_clear(&t);
    add_entry(&t, "40000", "folder"); /* which is a file */
    refused_tree(b, &t, "m\n", FM_ECORRUPT);
    fm_buf_clear(&t);
    add_entry(&t, "100644", "a");
    refused_tree(b, &t, "m\n\nFmstore-Kind: import\nFmstore-Version: 99\n", FM_EVERSION);
    refused_tree(b, &t, "m\n\nFmstore-Kind: import\nFmstore-Version: 1\n", FM_OK);
    /* Notes and results do not take a model's tree for theirs. */
    tk_ok(fm_ref_read(b, &at, "refs/heads/hostile"));
    w = kit_wish("refs/fmstore/results", &at, NULL);
    assert_int_equal(kit_move(b, &w), FM_EINVAL);
    fm_buf_release(&t);
    fm_repo_close(b);
    assert_int_equal(kit_faults(there), 0);
    fm_free(there);
}

TEST(a_pack_without_what_it_reaches_moves_no_ref)
{
    char *here, *there;
    fm_repo *a = kit_repo(&here), *b = kit_repo(&there);
    fm_oid tip[3], now;
    fm_ref_wish w;
    fm_buf pack;
    git_repository *g;
    git_packbuilder *pb = NULL;
    git_commit *c = NULL;
    git_oid id;
    git_buf buf = {0};

    grow(a, tip, 3);
    share_tensors(b, 3);
    kit_send(a, &pack, &tip[2], 1, &tip[1], 1); /* its parent is missing */
    tk_ok(kit_take(b, fm_buf_span(&pack), pack.len));
    w = kit_wish("refs/heads/main", &tip[2], NULL);
    assert_int_equal(kit_move(b, &w), FM_EBASE);
    w = kit_wish("refs/heads/main", &tip[1], NULL);
    assert_int_equal(kit_move(b, &w), FM_EBASE);
    /* A commit and its tree, without the folders and files of it. */
    g = git_of(here);
    git_oid_fromraw(&id, tip[0].b);
    assert_int_equal(git_packbuilder_new(&pb, g), 0);
    assert_int_equal(git_commit_lookup(&c, g, &id), 0);
    assert_int_equal(git_packbuilder_insert(pb, &id, NULL), 0);
    assert_int_equal(git_packbuilder_insert(pb, git_commit_tree_id(c), NULL), 0);
    assert_int_equal(git_packbuilder_write_buf(&buf, pb), 0);
    tk_ok(kit_take(b, fm_span_of(buf.ptr, buf.size), buf.size));
    w = kit_wish("refs/heads/main", &tip[0], NULL);
    assert_int_equal(kit_move(b, &w), FM_EBASE);
    tk_fails(fm_ref_read(b, &now, "refs/heads/main"), FM_ENOTFOUND, NULL);
    git_buf_dispose(&buf);
    git_commit_free(c);
    git_packbuilder_free(pb);
    git_repository_free(g);
    fm_buf_release(&pack);
    kit_close(a, here);
    fm_repo_close(b);
    assert_int_equal(kit_faults(there), 0);
    fm_free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_branch_moves_only_forward),
        cmocka_unit_test(tags_stay_and_remote_tracking_refs_follow),
        cmocka_unit_test(names_that_do_not_travel_are_refused),
        cmocka_unit_test(a_version_without_its_tensors_moves_no_ref),
        cmocka_unit_test(versions_that_share_a_missing_tensor_move_no_ref),
        cmocka_unit_test(of_many_movers_at_once_one_wins),
        cmocka_unit_test(notes_of_two_clones_become_the_same_union),
        cmocka_unit_test(notes_that_plain_git_fanned_out_are_read),
        cmocka_unit_test(results_of_two_clones_become_the_same_union),
        cmocka_unit_test(versions_that_fsck_would_not_pass_move_no_ref),
        cmocka_unit_test(a_pack_without_what_it_reaches_moves_no_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
