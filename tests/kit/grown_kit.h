/* grown_kit.h - what the tests of lineage/exchange.h share: repositories that grow alike. */
#ifndef FM_TESTS_KIT_GROWN_H
#define FM_TESTS_KIT_GROWN_H

#include <git2.h>
#include "tests/kit/versions_kit.h"

/* Both repositories hold the tensors of kit_model with these seeds. */
static inline void share_tensors(fm_repo *to, unsigned seeds)
{
    for (unsigned i = 0; i < seeds; i++)
        fm_tree_free(kit_model(to, 3, 1, i));
}

/* main with `versions` versions, one after the other; tip[i] is the one of seed i. */
static inline void grow(fm_repo *r, fm_oid *tip, unsigned versions)
{
    tip[0] = kit_branch(r, "main", NULL, 0);
    for (unsigned i = 1; i < versions; i++) {
        fm_tree *tree = kit_model(r, 3, 1, i);
        tip[i] = kit_commit(r, tree, "more", &tip[i - 1], 1, KIT_TIME + (int64_t)i);
        tk_ok(fm_ref_update(r, "refs/heads/main", &tip[i], &tip[i - 1], "more"));
        fm_tree_free(tree);
    }
}

static inline void assert_git_clean(const char *dir)
{
    char out[4000];
    int code = kit_have_git() ? kit_git(dir, "fsck --strict --no-dangling", out, sizeof out) : 0;

    if (code != 0)
        print_message("%s\n", out);
    assert_int_equal(code, 0);
}

static inline unsigned files_in(const char *dir, const char *sub)
{
    char *path = fm_path_join(dir, sub);
    fm_names names;
    unsigned count;

    tk_ok(fm_list_dir(&names, path));
    count = (unsigned)names.count;
    fm_names_release(&names);
    fm_free(path);
    return count;
}

static inline git_repository *git_of(const char *dir)
{
    git_repository *g = NULL;
    char path[512];

    snprintf(path, sizeof path, "%s/lineage.git", dir);
    assert_int_equal(git_repository_open_bare(&g, path), 0);
    return g;
}

#endif
