/* lineage_kit.h - small repositories for the tests of lineage. */
#ifndef FM_TESTS_KIT_LINEAGE_H
#define FM_TESTS_KIT_LINEAGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lineage/lineage.h"
#include "tests/testkit.h"

#define KIT_TIME 1700000000

/* A fresh bare repository, open; *dir is fm_free'd by the caller. */
static inline fm_repo *kit_repo(char **dir)
{
    fm_repo *r = NULL;

    unsetenv("SOURCE_DATE_EPOCH");
    setenv("GIT_AUTHOR_NAME", "Ada Test", 1);
    setenv("GIT_AUTHOR_EMAIL", "ada@example.org", 1);
    *dir = tk_scratch();
    tk_ok(fm_repo_init(*dir, true));
    tk_ok(fm_repo_open(&r, *dir));
    return r;
}

static inline void kit_close(fm_repo *r, char *dir)
{
    fm_repo_close(r);
    fm_free(dir);
}

/* to is replaced by a copy of the folder from. */
static inline void kit_copy_tree(const char *from, const char *to)
{
    char command[512];

    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
    assert_int_equal(system(command), 0);
}

static inline void kit_print_fault(void *ctx, const char *text)
{
    (void)ctx;
    print_message("fault: %s\n", text);
}

/* By a full fsck, which prints them. */
static inline uint64_t kit_faults(const char *dir)
{
    fm_repo *r;
    fm_fsck_report report;

    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_fsck(r, true, &report, kit_print_fault, NULL));
    fm_repo_close(r);
    return report.faults;
}

/* F32 [4, 8] filled from (layer, seed). */
static inline void kit_put(fm_txn *t, fm_tree *tree, unsigned layer, unsigned seed)
{
    char name[64];
    float w[32];
    fm_shape shape = {2, {4, 8}};
    fm_digest id;
    fm_buf path;

    for (unsigned i = 0; i < 32; i++)
        w[i] = (float)(layer * 100 + i) + (float)seed * 0.125f;
    snprintf(name, sizeof name, "model.layers.%u.mlp.up_proj.weight", layer);
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    tk_ok(fm_txn_put_tensor(t, &id, FM_F32, &shape, fm_span_of(w, sizeof w), NULL, NULL));
    tk_ok(fm_tree_put_tensor(tree, fm_buf_cstr(&path), name, FM_F32, &shape, &id));
    fm_buf_release(&path);
}

/* layers tensors of which the first `changed` differ by seed, model.json and a blob; stored. */
static inline fm_tree *kit_model(fm_repo *r, unsigned layers, unsigned changed, unsigned seed)
{
    static const char config[] = "{\"format\":1,\"config\":{}}";
    fm_tree *tree = NULL;
    fm_txn *t = NULL;
    fm_digest id;

    tk_ok(fm_tree_new(&tree));
    tk_ok(fm_txn_begin(&t, fm_repo_store(r)));
    for (unsigned l = 0; l < layers; l++)
        kit_put(t, tree, l, l < changed ? seed : 0);
    tk_ok(fm_txn_put_blob(t, &id, fm_span_str("tokens tokens tokens"), NULL));
    tk_ok(fm_tree_put_blob(tree, "tokenizer/tokenizer.json", &id, 20));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(config)));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return tree;
}

static inline fm_oid kit_commit(fm_repo *r, const fm_tree *tree, const char *message,
                                const fm_oid *parent, uint32_t parents, int64_t time)
{
    fm_commit_opts o = {.kind = parents > 1 ? "merge"
                                : parents   ? "finetune"
                                            : "import",
                        .message = message,
                        .parent = parent,
                        .parent_count = parents,
                        .time = time};
    fm_oid oid;

    tk_ok(fm_version_commit(r, &oid, tree, &o));
    return oid;
}

/* Commits a fresh model of 3 layers on branch `name`, from `parent` (NULL: root). */
static inline fm_oid kit_branch(fm_repo *r, const char *name, const fm_oid *parent, unsigned seed)
{
    fm_tree *tree = kit_model(r, 3, 1, seed);
    char ref[256];
    fm_oid oid = kit_commit(r, tree, name, parent, parent ? 1 : 0, KIT_TIME + (int64_t)seed);

    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    tk_ok(fm_ref_update(r, ref, &oid, NULL, "made"));
    fm_tree_free(tree);
    return oid;
}

/* Runs a shell command with plain git; its output (cut) in out. The exit code. */
static inline int kit_git(const char *dir, const char *args, char *out, size_t out_bytes)
{
    char command[1024];
    size_t n;
    FILE *p;

    snprintf(command, sizeof command, "git -C '%s/lineage.git' -c safe.directory='*' %s 2>&1", dir,
             args);
    p = popen(command, "r");
    assert_non_null(p);
    n = fread(out, 1, out_bytes - 1, p);
    out[n] = '\0';
    while (fgetc(p) != EOF)
        ;
    return pclose(p);
}

static inline bool kit_have_git(void)
{
    return system("git --version >/dev/null 2>&1") == 0;
}

#endif
