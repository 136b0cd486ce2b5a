/* ctest: plain cost=15 */
/* Long histories: git's packs stay few and sound, whatever the commits are made of. */
#include "tests/kit/lineage_kit.h"

#include <errno.h>

#include "lineage/internal.h"

typedef struct packs {
    size_t count;
    uint64_t largest; /* objects, by the size of its index */
} packs;

static packs packs_of(const char *dir)
{
    packs p = {0, 0};
    char *folder = fm_asprintf("%s/lineage.git/objects/pack", dir);
    fm_names names;
    tk_ok(fm_list_dir(&names, folder));
    for (size_t i = 0; i < names.count; i++) {
        uint64_t bytes = 0;
        if (!fml_is_pack_index(names.name[i]))
            continue;
        char *path = fm_path_join(folder, names.name[i]);
        tk_ok(fm_file_bytes(&bytes, path));
        p.largest = FM_MAX(p.largest, (bytes - 1072) / 28);
        p.count++;
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(folder);
    return p;
}

static void on_fault(void *ctx, const char *text)
{
    (void)ctx;
    print_message("%s\n", text);
}

static void is_sound(fm_repo *r, const char *dir)
{
    fm_fsck_report report;
    char out[4096];
    tk_ok(fm_repo_fsck(r, false, &report, on_fault, NULL));
    assert_int_equal(report.faults, 0);
    if (!kit_have_git())
        return;
    if (kit_git(dir, "fsck --full --strict --no-dangling --no-progress", out, sizeof out) != 0)
        fail_msg("%s", out);
    char *verify = fm_asprintf("verify-pack '%s'/lineage.git/objects/pack/*.idx", dir);
    if (kit_git(dir, verify, out, sizeof out) != 0)
        fail_msg("%s", out);
    fm_free(verify);
}

/* Version i is told from the others by its README. */
static void reads_all(fm_repo *r, const fm_oid *oid, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char text[16];
        fm_tree *back = NULL;
        snprintf(text, sizeof text, "%u", i);
        tk_ok(fm_version_tree(r, &back, &oid[i]));
        assert_string_equal(fm_tree_find(back, "README.md")->data, text);
        fm_tree_free(back);
    }
}

static fm_oid next_version(fm_repo *r, unsigned layers, unsigned changed, unsigned i,
                           const fm_oid *parent)
{
    fm_tree *tree = kit_model(r, layers, changed, i);
    char text[16];
    fm_oid oid;
    snprintf(text, sizeof text, "%u", i);
    tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str(text)));
    oid = kit_commit(r, tree, text, parent, parent ? 1 : 0, KIT_TIME + (int64_t)i);
    tk_ok(fm_ref_update(r, "refs/heads/main", &oid, parent, "step"));
    fm_tree_free(tree);
    return oid;
}

TEST(two_hundred_versions_lie_in_few_packs)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid oid[200];
    bool folded = false;
    for (unsigned i = 0; i < 200; i++) {
        oid[i] = next_version(r, 12, 1, i, i ? &oid[i - 1] : NULL);
        const packs p = packs_of(dir);
        folded = folded || p.count < i + 1;
        assert_true(p.count <= 34);
        assert_true(p.largest <= 2048);
    }
    assert_true(folded);
    reads_all(r, oid, 200);
    is_sound(r, dir);
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, dir));
    reads_all(r, oid, 200);
    tk_ok(fml_packs_repack(r, true));
    assert_int_equal(packs_of(dir).count, 1);
    is_sound(r, dir);
    reads_all(r, oid, 200);
    kit_close(r, dir);
}

/* Commits too large to be coded again in passing: their packs are joined by copying. */
TEST(large_commits_are_joined)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid oid[70];
    for (unsigned i = 0; i < 70; i++) {
        oid[i] = next_version(r, 60, 60, i, i ? &oid[i - 1] : NULL);
        assert_true(packs_of(dir).count <= 34);
    }
    assert_true(packs_of(dir).largest > 4096);
    reads_all(r, oid, 70);
    is_sound(r, dir);
    kit_close(r, dir);
}

/* Two writers that did not see one another put the same objects into two packs. */
TEST(an_object_in_two_packs_does_no_harm)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid oid[64];
    for (unsigned i = 0; i < 40; i += 2) {
        fm_repo *other = NULL;
        const fm_oid *parent = i ? &oid[i - 1] : NULL;
        tk_ok(fm_repo_open(&other, dir));
        oid[i] = next_version(r, 60, 60, i, parent);
        fm_tree *tree = kit_model(other, 60, 60, i);
        tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str("x")));
        (void)kit_commit(other, tree, "twin", parent, parent ? 1 : 0, KIT_TIME);
        fm_tree_free(tree);
        fm_repo_close(other);
        oid[i + 1] = next_version(r, 60, 60, i + 1, &oid[i]);
    }
    reads_all(r, oid, 40);
    is_sound(r, dir);
    kit_close(r, dir);
}

static void flip(const char *path, uint64_t at)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 1u << 30));
    b.data[at] ^= 1;
    tk_ok(fm_write_file(path, b.data, b.len));
    fm_buf_release(&b);
}

TEST(a_damaged_pack_is_not_joined)
{
    char *dir, *name[2] = {NULL, NULL}, *folder, *idx[2] = {NULL, NULL}, *pack;
    fm_repo *r = kit_repo(&dir);
    fm_oid oid[2];
    fm_names names;
    size_t n = 0;
    oid[0] = next_version(r, 3, 3, 0, NULL);
    oid[1] = next_version(r, 3, 3, 1, &oid[0]);
    folder = fm_asprintf("%s/lineage.git/objects/pack", dir);
    tk_ok(fm_list_dir(&names, folder));
    for (size_t i = 0; i < names.count && n < 2; i++)
        if (fml_is_pack_index(names.name[i]))
            idx[n++] = fm_path_join(folder, names.name[i]);
    assert_int_equal(n, 2);
    pack = fm_asprintf("%.*s.pack", (int)strlen(idx[1]) - 4, idx[1]);
    tk_ok(fml_packs_concat(r, idx, 2, &name[0], &name[1]));
    assert_null(name[1]);
    fm_free(name[0]);
    flip(pack, 40);
    tk_fails(fml_packs_concat(r, idx, 2, &name[0], &name[1]), FM_ECORRUPT, "checksum");
    flip(pack, 40);
    flip(idx[1], 1100);
    tk_fails(fml_packs_concat(r, idx, 2, &name[0], &name[1]), FM_ECORRUPT, "checksum");
    assert_null(name[0]);
    fm_free(pack);
    fm_free(idx[0]);
    fm_free(idx[1]);
    fm_names_release(&names);
    fm_free(folder);
    kit_close(r, dir);
}

/* Every write-side call of a join fails in turn: the packs that are there stay. */
TEST(a_join_that_cannot_be_written_loses_nothing)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid oid[40];
    for (unsigned i = 0; i < 32; i++)
        oid[i] = next_version(r, 60, 60, i, i ? &oid[i - 1] : NULL);
    for (uint64_t nth = 1; packs_of(dir).count > 16; nth++) {
        const unsigned at = 32 + (unsigned)nth % 7;
        fm_tree *tree = kit_model(r, 60, 60, 1000 + (unsigned)nth);
        const fm_commit_opts o = {
            .kind = "finetune", .message = "x", .parent = &oid[31], .parent_count = 1};
        tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str("x")));
        fm_io_fail_at(nth, ENOSPC);
        fm_ignore(fm_version_commit(r, &oid[at], tree, &o), "it may stand or not");
        fm_io_fail_at(0, 0);
        fm_tree_free(tree);
        if (nth % 8 == 1)
            reads_all(r, oid, 32);
        assert_true(nth < 200);
    }
    reads_all(r, oid, 32);
    is_sound(r, dir);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_hundred_versions_lie_in_few_packs),
        cmocka_unit_test(large_commits_are_joined),
        cmocka_unit_test(an_object_in_two_packs_does_no_harm),
        cmocka_unit_test(a_damaged_pack_is_not_joined),
        cmocka_unit_test(a_join_that_cannot_be_written_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
